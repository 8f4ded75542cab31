//! PSN translation of one connection.

use rocev2::{Msn, Psn};

/// The server's side of a connection: the PSNs and MSNs that the server uses on it, and their difference from
/// those of its client.
#[derive(Clone, Debug)]
#[repr(C)]
pub(crate) struct Translation {
    /// Next PSN that the server expects on this connection
    next: Psn,
    /// Completed messages, as the server counts them on this connection
    msn: Msn,
    /// Server's PSN minus client's PSN, for the requests in flight on the client's own connection
    psn_delta: u32,
    /// Server's MSN minus client's MSN, for the requests in flight on the client's own connection
    msn_delta: u32,
}

impl Translation {
    /// Translation of equal PSNs and MSNs
    pub(super) const NONE: Self = Self { next: Psn::ZERO, msn: Msn::ZERO, psn_delta: 0, msn_delta: 0 };

    /// Returns the next PSN that the server expects.
    #[inline]
    pub(crate) fn next(&self) -> Psn {
        self.next
    }

    /// Sets the next PSN that the server expects.
    #[inline]
    pub(crate) fn set_next(&mut self, next: Psn) {
        self.next = next;
    }

    /// Sets the number of messages that the server has completed.
    pub(crate) fn set_msn(&mut self, msn: Msn) {
        self.msn = msn;
    }

    /// Returns the number of messages that the server has completed.
    pub(crate) fn msn(&self) -> Msn {
        self.msn
    }

    /// Counts a message that the server has completed.
    #[inline]
    pub(crate) fn count_message(&mut self) {
        self.msn = self.msn.add(1);
    }

    /// Returns the server's PSN of a client's request.
    #[inline]
    pub(crate) fn to_server(&self, psn: Psn) -> Psn {
        psn.add(self.psn_delta)
    }

    /// Returns the client's PSN of a server's response.
    #[inline]
    pub(crate) fn to_client(&self, psn: Psn) -> Psn {
        psn.sub(self.psn_delta)
    }

    /// Returns the client's MSN of a server's response.
    pub(crate) fn msn_to_client(&self, msn: Msn) -> Msn {
        Msn::new(msn.get().wrapping_sub(self.msn_delta))
    }

    /// Maps the client's PSNs from `psn` on to the server's next PSNs, and its MSNs from `msn` on to the
    /// server's MSN. No request may be in flight on the client's own connection.
    pub(crate) fn rebase(&mut self, psn: Psn, msn: Msn) {
        self.psn_delta = self.next.get().wrapping_sub(psn.get());
        self.msn_delta = self.msn.get().wrapping_sub(msn.get());
    }
}
