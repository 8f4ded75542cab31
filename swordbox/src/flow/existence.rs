//! Time in which the server's queue pair of a connection is known to have existed, and the data structures
//! of the process that it belongs to.

use crate::steering::Lifetime;
use rocev2::Psn;
use switch::Nanos;

/// What acknowledged requests have shown about the server's queue pair.
#[derive(Clone, Debug)]
#[repr(C)]
pub(crate) struct Existence {
    /// Time at which the latest request left that the server acknowledged on this connection; zero if none.
    /// The server's queue pair existed at that time
    alive_at: Nanos,
    /// Time at which the first acknowledged request left; zero if none
    existed_at: Nanos,
    /// Pending update of `alive_at`: applied when everything before this PSN is acknowledged on the client's
    /// own connection, with the time at which the request left
    pending: Option<(Psn, Nanos)>,
    /// Pending update of `structures`: applied when everything before this PSN is acknowledged; with the time
    /// at which the request left, and the structure's index
    pending_structure: Option<(Psn, Nanos, u8)>,
    /// Bit set of the server's structures whose memory this connection has reached with an acknowledged
    /// request. The queue pair then belongs to the process that has them, not to another process on the host.
    /// `structures_since` is the time at which the first such request left
    structures: u32,
    structures_since: Nanos,
}

/// Returns the bit of a structure's index. Indices from 31 on share one bit.
fn bit_of(structure: u8) -> u32 {
    1 << structure.min(31)
}

impl Existence {
    pub(super) const UNKNOWN: Self = Self {
        alive_at: Nanos::ZERO,
        existed_at: Nanos::ZERO,
        pending: None,
        pending_structure: None,
        structures: 0,
        structures_since: Nanos::ZERO,
    };

    /// Returns the latest time at which the queue pair is known to have existed; zero if none.
    #[inline]
    pub(crate) fn alive_at(&self) -> Nanos {
        self.alive_at
    }

    /// Returns the earliest time at which the queue pair is known to have existed; zero if none.
    pub(crate) fn existed_at(&self) -> Nanos {
        self.existed_at
    }

    /// Notes that requests before `sent` have left by `now`, unless one is pending.
    pub(crate) fn note_request(&mut self, sent: Psn, now: Nanos) {
        if self.pending.is_none() {
            self.pending = Some((sent, now));
        }
    }

    /// Applies the pending request, now that everything before `acked` is complete on the client's own
    /// connection.
    pub(crate) fn apply_request(&mut self, acked: Psn) {
        let Some((_, left)) = self.pending.take_if(|(psn, _)| !acked.precedes(*psn)) else { return };
        self.alive_at = left;
        if self.existed_at == Nanos::ZERO {
            self.existed_at = left;
        }
    }

    /// Notes that the last request before `sent`, sent at `now`, targets a structure's memory.
    pub(crate) fn note_structure(&mut self, structure: u8, sent: Psn, now: Nanos) {
        if self.structures & bit_of(structure) == 0 && self.pending_structure.is_none() {
            self.pending_structure = Some((sent, now, structure));
        }
    }

    /// Applies the pending structure, now that everything before `acked` is complete on the client's own
    /// connection. Returns whether the connection has reached any structure.
    pub(crate) fn apply_structure(&mut self, acked: Psn) -> bool {
        if let Some((_, left, structure)) = self.pending_structure.take_if(|(psn, ..)| !acked.precedes(*psn))
        {
            if self.structures == 0 {
                self.structures_since = left;
            }
            self.structures |= bit_of(structure);
        }
        self.structures != 0
    }

    /// Clears the structures that were reached. The next requests may be those of another connection with the
    /// same queue pair numbers, after a restart of the server.
    pub(crate) fn forget_structures(&mut self) {
        (self.pending_structure, self.structures) = (None, 0);
    }

    /// Returns the time span in which the server's queue pair is known to have existed, if it belongs to the
    /// process that has this structure.
    pub(crate) fn lifetime(&self, structure: u8) -> Option<Lifetime> {
        let first = self.structures_since;
        (self.structures & bit_of(structure) != 0)
            .then_some(Lifetime { first, last: self.alive_at.max(first) })
    }
}
