//! Shared QPs (queue pair mapping in the paper): a server's connection that many clients share. All
//! operations in flight are stored until the server acknowledges them, so that the switch can retransmit lost
//! ones in their original order.

use super::keys::Keys;
use crate::flow::Flow;
use crate::headers::TrafficClass;
use crate::{Id, MAX_BACKOFF_SHIFT, NONE};
use rocev2::{Opcode, Psn};
use switch::Nanos;

/// Maximum payload in bytes of a WRITE on a shared QP
pub(crate) const LONGEST_WRITE: usize = 64;

/// An operation in flight; one cache line.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct Entry {
    pub request: ServerRequest,
    /// Flow of the client; `NONE` if the client is gone
    pub flow: Id,
    /// Endpoint that the response is sent to
    pub to: Id,
    /// PSN of the client's request
    pub psn: Psn,
    /// Cached line
    pub line: Id,
    /// Value of the line's detour counter when the operation was sent
    pub detours: u32,
    /// Whether the result may update the cached value
    pub may_learn: bool,
    /// Whether the client requested an acknowledgement; atomics are always answered
    pub ack_req: bool,
    /// Epoch in which a resolved operation is counted
    pub tag: u8,
}

const _: () = assert!(size_of::<Entry>() == 64);

/// Request to the server, without the payload.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServerRequest {
    pub what: Operation,
    pub va: u64,
    pub rkey: u32,
    pub class: TrafficClass,
    /// Solicited event bit of the client's BTH
    pub solicited: bool,
}

/// Operation that the server receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    /// WRITE by the client, with this payload length in bytes
    Write(u8),
    /// WRITE of the result `left` of an atomic that found `found`
    Resolved { found: u64, left: u64 },
    /// Atomic with its opcode, `swap_or_add` and `compare`
    Atomic(Opcode, u64, u64),
}

impl Operation {
    /// Returns whether the operation uses one of the server's resources for READs and atomics.
    pub(crate) const fn is_atomic(self) -> bool {
        matches!(self, Self::Atomic(..))
    }
}

/// Probe of a switch-owned QP or of a key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Probe {
    /// Virtual address and R_Key to read; `None` for a probe of the QP itself
    pub word: Option<(u64, u32)>,
    /// PSN, once the probe has been sent
    pub psn: Option<Psn>,
    /// Time of the first transmission (before it, of the request for the probe), and of the latest
    /// transmission
    pub since: Nanos,
    pub at: Nanos,
    /// Number of retransmissions
    pub tries: u8,
}

/// A shared QP. Its connection is that of the owner's flow.
#[derive(Debug)]
pub(crate) struct SharedQp {
    /// Flow whose connection is shared; `NONE` while the entry is unused
    pub owner: Id,
    pub server: u8,
    /// Whether the switch owns the connection; the owner is no client
    pub is_switch_owned: bool,
    /// Whether the owner gets its connection back when nothing is in flight, because a switch-owned QP is
    /// available
    pub is_returning: bool,
    /// Keys that work on a switch-owned QP
    pub keys: Keys,
    /// Probe of a switch-owned QP, or of a key there. No operation is in flight at the same time
    probe: Option<Probe>,
    /// First unacknowledged PSN. The next PSN to send is the owner's `translation.next()`
    pub acked: Psn,
    /// Operations in flight
    in_flight: u32,
    /// Operations in flight that use a resource of the server for READs and atomics
    atomics: u32,
    /// Maximum of `atomics` that the server accepts
    pub max_atomics: u32,
    /// First and last flow that waits for this QP
    pub waiting: [Id; 2],
    /// Incarnation: number of connections that this entry has stood for
    pub incarnation: u32,
    /// Earliest time at which the QP is known to exist at the server. A connection that was acknowledged for
    /// a later request does not belong to a previous incarnation of the server
    pub existed_at: Nanos,
    /// Time of the last acknowledgement; zero if none
    pub acked_at: Nanos,
    /// Time of the last acknowledgement, or of the first operation after the QP was empty
    pub progress_at: Nanos,
    /// Time of the last retransmission
    pub resent: Nanos,
    /// Retransmissions since `progress_at`
    pub tries: u32,
    /// Start of the time in which the owner's own requests have made no progress; zero if none is in flight.
    /// `stuck_progress` is their progress at that time
    pub stuck_since: Nanos,
    pub stuck_progress: (Psn, Psn),
    /// Start of the time in which clients have waited without interruption for the owner's requests; zero if
    /// none waits
    pub waited_since: Nanos,
    /// Only the owner may start operations before this time, because it was NAKed to retransmit a request
    /// that could not be held
    pub reserved_until: Nanos,
    /// Smoothed round-trip time of the operations
    pub round_trip: Nanos,
    /// Operation whose round trip is measured, and the time when it was sent
    pub timed: Option<(Psn, Nanos)>,
    /// Operations by PSN. Only the first `mask + 1` slots are used, as many as were ever needed at once, to
    /// stay in the cache
    entries: Box<[Entry]>,
    /// Payloads of the WRITEs, by PSN
    payloads: Box<[[u8; LONGEST_WRITE]]>,
    /// Slots in use, minus one
    mask: usize,
}

/// Initial number of slots in use
const INITIAL_SLOTS: usize = 64;

const EMPTY: Entry = Entry {
    request: ServerRequest {
        what: Operation::Write(0),
        va: 0,
        rkey: 0,
        class: TrafficClass(0),
        solicited: false,
    },
    flow: NONE,
    to: NONE,
    psn: Psn::ZERO,
    line: NONE,
    detours: 0,
    may_learn: false,
    ack_req: false,
    tag: 0,
};

impl SharedQp {
    pub(crate) fn new(server: u8, is_switch_owned: bool, in_flight: usize) -> Self {
        Self {
            owner: NONE,
            server,
            is_switch_owned,
            is_returning: false,
            keys: Keys::new(),
            probe: None,
            acked: Psn::ZERO,
            in_flight: 0,
            atomics: 0,
            max_atomics: 1,
            waiting: [NONE; 2],
            incarnation: 0,
            existed_at: Nanos::ZERO,
            acked_at: Nanos::ZERO,
            progress_at: Nanos::ZERO,
            resent: Nanos::ZERO,
            tries: 0,
            stuck_since: Nanos::ZERO,
            stuck_progress: (Psn::ZERO, Psn::ZERO),
            waited_since: Nanos::ZERO,
            reserved_until: Nanos::ZERO,
            round_trip: Nanos::ZERO,
            timed: None,
            entries: vec![EMPTY; in_flight].into(),
            payloads: vec![[0; LONGEST_WRITE]; in_flight].into(),
            mask: in_flight.min(INITIAL_SLOTS) - 1,
        }
    }

    /// Returns the memory in bytes of one shared QP.
    pub(crate) const fn bytes(in_flight: usize) -> usize {
        size_of::<Self>() + in_flight * (size_of::<Entry>() + LONGEST_WRITE)
    }

    /// Makes a connection this shared QP. `existed_at` is a time at which its queue pair at the server
    /// existed.
    pub(crate) fn open(&mut self, owner: Id, acked: Psn, max_atomics: u32, existed_at: Nanos, now: Nanos) {
        self.owner = owner;
        self.existed_at = existed_at;
        self.incarnation = self.incarnation.wrapping_add(1);
        self.acked_at = Nanos::ZERO;
        self.is_returning = false;
        self.acked = acked;
        self.max_atomics = max_atomics;
        self.progress_at = now;
        self.resent = now;
        self.tries = 0;
        self.reserved_until = Nanos::ZERO;
        self.waited_since = Nanos::ZERO;
        self.round_trip = Nanos::ZERO;
        self.timed = None;
    }

    /// Returns whether this key is known to work for this kind of operation.
    #[inline]
    pub(crate) fn accepts(&self, owner: &Flow, rkey: u32, rights: u8) -> bool {
        if self.is_switch_owned { self.keys.has(rkey, rights) } else { owner.proofs.had(rkey, rights) }
    }

    /// Returns whether the server has not answered a probe in time.
    #[inline]
    pub(crate) fn is_overdue(&self) -> bool {
        self.probe.is_some_and(|probe| probe.tries > 0)
    }

    pub(crate) fn is_full(&self) -> bool {
        self.in_flight as usize == self.entries.len()
    }

    /// Returns the number of operations in flight.
    #[inline]
    pub(crate) fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Returns whether the server may refuse one more atomic.
    #[inline]
    pub(crate) fn has_most_atomics(&self) -> bool {
        self.atomics >= self.max_atomics
    }

    /// Returns the probe that is pending or in flight.
    #[inline]
    pub(crate) fn probe(&self) -> Option<Probe> {
        self.probe
    }

    #[inline]
    pub(crate) fn probe_mut(&mut self) -> Option<&mut Probe> {
        self.probe.as_mut()
    }

    pub(super) fn begin_probe(&mut self, word: Option<(u64, u32)>, now: Nanos) -> bool {
        if self.probe.is_some() {
            return false;
        }
        self.probe = Some(Probe { word, psn: None, since: now, at: now, tries: 0 });
        true
    }

    pub(super) fn end_probe(&mut self) -> Option<Probe> {
        self.probe.take()
    }

    pub(super) fn close(&mut self) -> (Id, Psn, u32) {
        self.atomics = 0;
        let owner = core::mem::replace(&mut self.owner, NONE);
        (owner, self.acked, core::mem::take(&mut self.in_flight))
    }

    /// Counts the completion of the oldest operation. Returns its PSN.
    #[inline]
    pub(super) fn complete(&mut self) -> Psn {
        let psn = self.acked;
        self.acked = psn.add(1);
        self.in_flight -= 1;
        self.atomics -= u32::from(self.entry(psn).request.what.is_atomic());
        psn
    }

    /// Counts one more operation in flight, and makes room for its entry. The QP must not be full.
    #[inline]
    pub(super) fn begin(&mut self, psn: Psn, is_atomic: bool, now: Nanos) {
        if self.in_flight == 0 {
            self.progress_at = now;
            self.acked = psn;
        }
        if self.timed.is_none() {
            self.timed = Some((psn, now));
        }
        self.atomics += u32::from(is_atomic);
        if self.in_flight as usize > self.mask {
            self.grow();
        }
        self.in_flight += 1;
    }

    /// Doubles the number of slots in use.
    #[cold]
    fn grow(&mut self) {
        let before = self.mask;
        self.mask = (before * 2 + 1).min(self.entries.len() - 1);
        for n in 0..self.in_flight {
            let psn = self.acked.add(n).get() as usize;
            self.entries[psn & self.mask] = self.entries[psn & before];
            self.payloads[psn & self.mask] = self.payloads[psn & before];
        }
    }

    /// Returns the operation with this PSN.
    #[inline]
    pub(crate) fn entry(&self, psn: Psn) -> &Entry {
        &self.entries[psn.get() as usize & self.mask]
    }

    #[inline]
    pub(crate) fn entry_mut(&mut self, psn: Psn) -> &mut Entry {
        &mut self.entries[psn.get() as usize & self.mask]
    }

    /// Returns the payload buffer of the WRITE with this PSN; only its length is valid.
    #[inline]
    pub(crate) fn payload(&self, psn: Psn) -> &[u8; LONGEST_WRITE] {
        &self.payloads[psn.get() as usize & self.mask]
    }

    #[inline]
    pub(crate) fn put_payload(&mut self, psn: Psn, bytes: &[u8]) {
        let slot = &mut self.payloads[psn.get() as usize & self.mask];
        match bytes.first_chunk() {
            Some(longest) => *slot = *longest,
            None => slot[..bytes.len()].copy_from_slice(bytes),
        }
    }

    /// Returns the time without an acknowledgement after which everything is retransmitted: four round trips,
    /// at least `least`, doubled with each try up to [`MAX_BACKOFF_SHIFT`] times.
    pub(crate) fn retransmit_timeout(&self, least: Nanos) -> Nanos {
        let retransmit_timeout = Nanos((self.round_trip.0 * 4).max(least.0));
        Nanos(retransmit_timeout.0 << self.tries.min(MAX_BACKOFF_SHIFT.into()))
    }

    /// Updates timers and the round-trip time after an acknowledgement of everything up to `psn`.
    pub(crate) fn on_ack(&mut self, psn: Psn, now: Nanos) {
        self.progress_at = now;
        self.acked_at = now;
        self.tries = 0;
        self.stuck_since = Nanos::ZERO;
        if let Some((timed, sent)) = self.timed
            && !psn.precedes(timed)
        {
            let took = now.since(sent).0;
            self.round_trip =
                Nanos(if self.round_trip.0 == 0 { took } else { (self.round_trip.0 * 7 + took) / 8 });
            self.timed = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_keep_distinct_slots_while_the_table_grows() {
        let mut shared_qp = SharedQp::new(0, false, 1024);
        let first = Psn::new(0xff_ff00);
        shared_qp.open(0, first, 1, Nanos::ZERO, Nanos::ZERO);
        let bytes = |n: u32| [n as u8; LONGEST_WRITE];
        for n in 0..1024 {
            assert!(!shared_qp.is_full());
            let psn = first.add(n);
            shared_qp.begin(psn, false, Nanos::ZERO);
            *shared_qp.entry_mut(psn) = Entry { line: n, ..EMPTY };
            shared_qp.put_payload(psn, &bytes(n));
            // The oldest, the newest, and two in between
            for n in [0, n / 3, n / 2, n] {
                assert_eq!(
                    (shared_qp.entry(first.add(n)).line, shared_qp.payload(first.add(n))),
                    (n, &bytes(n))
                );
            }
        }
        assert!(shared_qp.is_full());
    }
}
