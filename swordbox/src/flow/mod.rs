//! State of the requests of one connection: what was forwarded, acknowledged and proven.

mod existence;
mod limits;
mod pending;
mod translation;

use crate::message::LongWrites;
use crate::proof::{Proof, Proofs};
use crate::reread::Rereads;
use crate::{Id, MIN_PATH_MTU, NONE};
use core::num::NonZero;
use existence::Existence;
use limits::Limits;
use pending::Pending;
use rocev2::{Msn, Psn};
use switch::Nanos;
use translation::Translation;

/// Stage of a connection: how far Swordbox takes part in its requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    /// The peer is not known for certain; requests are forwarded unchanged.
    Unpaired,
    /// The peer is known. Requests from before may still be in flight; requests are forwarded unchanged.
    Paired,
    /// Every request in flight is known; requests are forwarded unchanged.
    Synced,
    /// As `Synced`, and permission to translate has been requested from the control plane.
    Requesting,
    /// The PSNs of the two sides may differ: requests are accepted in order only, and every packet is
    /// rewritten.
    Translating,
    /// The PSNs that the two sides expect are unknown: every packet is dropped.
    Ended,
}

/// Bytes within one cached line, and the R_Key used
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RemoteRange {
    pub va: u64,
    pub len: u8,
    pub rkey: u32,
}

/// Number of PSNs behind the newest request that responses may refer to; less than half of the PSN space
const RESPONSE_SPAN: i32 = 1 << 22;

/// Returns the maximum number of PSNs that a READ of `len` bytes takes: that at the minimum path MTU.
fn psns_of(len: u32) -> u32 {
    len.div_ceil(MIN_PATH_MTU).clamp(1, RESPONSE_SPAN as u32)
}

/// Number of PSNs behind the last acknowledged one that a client may retransmit, and number of PSNs ahead of
/// the expected one that it may use while earlier packets are lost. The end of a longer message is within
/// this number
pub(crate) const WINDOW: i32 = 1 << 16;

/// Maximum distance behind the last acknowledged PSN at which a request may update a client's headers and
/// port; more than the outstanding READs take
const HEADER_WINDOW: i32 = 1 << 12;

/// Range of PSNs that requests of a connection may have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    acked: Psn,
    next: Psn,
    ahead: i32,
}

impl Window {
    /// Returns whether a packet with this PSN may belong to the connection.
    #[inline]
    pub(crate) fn fits(&self, psn: Psn) -> bool {
        let ahead = psn.distance(self.next);
        if ahead >= 0 { ahead <= self.ahead } else { self.acked.distance(psn) <= WINDOW }
    }
}

/// State of the requests to one queue pair.
///
/// The client's PSNs are those in its packets. The server's PSNs are those that the server expects on the
/// client's own connection, which may be shared. The invariant is `acked <= sent <= next`: requests before
/// `acked` are complete, and requests from `sent` on are held.
///
/// The fields are in order of use: the first cache line has what a request on a shared QP needs of its own
/// flow, the second what it needs of the flow of the QP's owner.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(crate) struct Flow {
    pub stage: Stage,
    /// Index of the server, or `NO_SERVER`
    pub server: u8,
    /// Whether retransmitted READs are queued or in flight
    pub rereading: bool,
    /// Whether a message has begun on the client's own connection and has not ended
    pub in_message: bool,
    /// Whether the connection is about to end: other clients must not start operations on it
    pub closing: bool,
    /// Whether the client has to get a NAK for `next` as soon as everything before is complete
    pub nak_due: bool,
    /// Whether that NAK has been sent
    pub nak_sent: bool,
    /// Whether the request at `next` found no free slot to be held. The NAK is sent when that request can be
    /// forwarded, and not before, since each NAK consumes one of the client's retries
    pub found_no_slot: bool,
    /// Latest credit count of the server
    pub credit: u8,
    pub acked: Psn,
    pub sent: Psn,
    pub next: Psn,
    /// Completed messages, as the client counts them
    pub msn: Msn,
    /// Shared QP with requests of this flow in flight; `NONE` if they are on the client's own connection
    pub via: Id,
    /// Number of requests in flight on `via`
    pub shared_in_flight: u32,
    /// First and last held frame
    pub held: [u32; 2],
    /// Length in bytes of the last request, if that is a READ whose PSN count is unknown because the path MTU
    /// is
    pub uncounted_read: Option<NonZero<u32>>,
    /// PSN of the newest record, if any
    pub newest: Psn,
    /// Slot of the newest record, or [`NO_SLOT`]
    pub newest_at: u16,
    /// Records without a response
    pub open: u16,
    pub proofs: Proofs,
    pub translation: Translation,
    /// Index of the shared QP that this connection is; `NONE` if it is not shared
    pub shared_qp: Id,
    /// Shared QP that this flow waits for
    pub waits_for: Id,
    pub existence: Existence,
    /// Next flow that waits for the same shared QP
    pub next_waiting: Id,
    /// Next PSN of the shared QP at the time when this flow began to wait
    pub waits_until: Psn,
    pub limits: Limits,
    /// PSN of the oldest request seen, but at most `RESPONSE_SPAN` behind `sent`: older requests did not pass
    /// the switch
    pub first: Psn,
    /// Incarnation of the endpoint with this index, since indices are reused
    pub incarnation: u32,
    /// Whether the connection is in the journal, or about to be added
    pub journaled: bool,
    /// Whether a DREQ announced the end of the connection
    pub disconnected: bool,
    /// Whether the switch owns this connection; it has no client
    pub is_switch_owned: bool,
    /// Time before which the connection is not shared, because a request of its client did not complete while
    /// other clients waited
    pub unshareable_until: Nanos,
    /// Whether a request has been seen, or a handshake announced the starting PSN
    pub is_started: bool,
    /// Whether atomics of other clients or retransmitted READs were sent on this connection, so the server
    /// may have dropped the responses to the client's earlier READs, which the client may not have
    pub reads_may_be_lost: bool,
    /// Whether the client got a NAK for a message, to find out whether it retransmits a READ instead
    pub message_naked: bool,
    /// Whether the key equals that of an ended connection that may still exist
    pub may_be_ended: bool,
    /// PSN before which the server has executed everything on the client's own connection, although earlier
    /// responses may be missing
    pub executed: Psn,
    /// A retransmitted READ is being read again: retransmitted requests from this PSN on get no response
    /// before the READ has one. The second value is the PSN of the last such request, to detect when the
    /// client starts over
    pub reread_until: Option<(Psn, Option<Psn>)>,
    pub pending: Pending,
    /// Latest WRITEs of several packets
    pub long_writes: LongWrites,
    /// Detour that ends with the completion of an operation in flight on the client's own connection: its PSN
    /// and its cached line
    pub detour: Option<(Psn, Id)>,
    /// Completed READs that the client retransmitted
    pub rereads: Rereads,
}

// The time at which the queue pair existed, which requests on shared QPs need, is in the second cache line.
const _: () = assert!(core::mem::offset_of!(Flow, existence) + size_of::<Nanos>() <= 128);

/// Slot of no record
pub(crate) const NO_SLOT: u16 = u16::MAX;

impl Flow {
    /// Returns the state before the first request. `mtu` is the path MTU in bytes; 0 if it is unknown.
    pub(crate) const fn new(server: u8, mtu: u16, incarnation: u32) -> Self {
        Self {
            stage: Stage::Unpaired,
            server,
            is_started: false,
            rereading: false,
            reads_may_be_lost: false,
            is_switch_owned: false,
            unshareable_until: Nanos::ZERO,
            message_naked: false,
            rereads: Rereads::NONE,
            acked: Psn::ZERO,
            executed: Psn::ZERO,
            sent: Psn::ZERO,
            next: Psn::ZERO,
            translation: Translation::NONE,
            existence: Existence::UNKNOWN,
            pending: Pending::NONE,
            msn: Msn::ZERO,
            credit: 0x1f,
            shared_qp: NONE,
            via: NONE,
            shared_in_flight: 0,
            in_message: false,
            uncounted_read: None,
            first: Psn::ZERO,
            limits: Limits::new(mtu),
            newest: Psn::ZERO,
            newest_at: NO_SLOT,
            open: 0,
            disconnected: false,
            journaled: false,
            incarnation,
            may_be_ended: false,
            closing: false,
            held: [NONE; 2],
            waits_for: NONE,
            next_waiting: NONE,
            nak_due: false,
            nak_sent: false,
            found_no_slot: false,
            waits_until: Psn::ZERO,
            reread_until: None,
            proofs: Proofs::NONE,
            long_writes: LongWrites::NONE,
            detour: None,
        }
    }

    /// Starts tracking at the request with this PSN.
    pub(crate) fn begin(&mut self, psn: Psn) {
        if !self.is_started {
            self.first = psn;
        }
        self.is_started = true;
        self.acked = psn;
        self.executed = psn;
        self.sent = psn;
        self.next = psn;
        self.translation.set_next(psn);
    }

    /// Returns whether a response with this PSN may belong to one of the requests seen, while acknowledged
    /// PSNs are unknown. The responses to a client that sends without a pause may be far behind its requests.
    pub(crate) fn may_have_requested(&mut self, psn: Psn) -> bool {
        if self.sent.distance(self.first) > RESPONSE_SPAN || self.sent.precedes(self.first) {
            self.first = self.sent.sub(RESPONSE_SPAN as u32);
        }
        let ahead = psn.distance(self.sent);
        self.is_started && if ahead >= 0 { ahead < self.uncounted_psns() } else { !psn.precedes(self.first) }
    }

    /// Returns the maximum number of PSNs of the last request if that is a READ with unknown PSN count,
    /// otherwise 0.
    pub(crate) fn uncounted_psns(&self) -> i32 {
        self.uncounted_read.map_or(0, |len| psns_of(len.get()) as i32)
    }

    /// Notes a request that arrived behind later ones.
    pub(crate) fn note_late(&mut self, psn: Psn) {
        if psn.precedes(self.first) {
            self.first = psn;
            self.limits.confirm(false);
        }
    }

    /// Returns the window of PSNs that the client's requests may have.
    pub(crate) fn window(&self) -> Window {
        let ahead = WINDOW + self.uncounted_psns();
        Window { acked: self.acked, next: self.next, ahead }
    }

    /// Returns whether a request may update its client's headers and port. A forged request that does so
    /// diverts responses, so its PSN has to be nearly as exact as that of a request that the server executes.
    pub(crate) fn may_update_headers(&self, psn: Psn) -> bool {
        self.stage < Stage::Translating
            || psn == self.next
            || (psn.precedes(self.next) && self.acked.distance(psn) <= HEADER_WINDOW)
    }

    /// Returns the window of PSNs that the server's responses may have on the client's own connection.
    pub(crate) fn server_window(&self) -> Window {
        let span = self.next.distance(self.acked).max(0) as u32;
        let ahead = WINDOW + self.uncounted_psns();
        let next = self.translation.next();
        Window { acked: next.sub(span), next, ahead }
    }

    /// Returns whether a response with this PSN may belong to the connection, by the server's or by the
    /// client's PSNs.
    #[inline]
    pub(crate) fn accepts_response(&self, psn: Psn) -> bool {
        !self.is_started || self.server_window().fits(psn) || self.window().fits(psn)
    }

    /// Returns the progress: the next PSN to send and the next PSN to be acknowledged.
    pub(crate) fn progress(&self) -> (Psn, Psn) {
        (self.sent, self.acked)
    }

    /// Returns whether the connection is or was translated, and was not disconnected: its two sides may use
    /// different PSNs.
    pub(crate) fn is_translated(&self) -> bool {
        self.stage >= Stage::Translating && !self.disconnected
    }

    /// Returns whether no request is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.acked == self.sent
    }

    /// Returns whether a request is in flight on the client's own connection.
    pub(crate) fn uses_own_connection(&self) -> bool {
        self.rereading || (self.via == NONE && (!self.is_idle() || self.in_message))
    }

    /// Clears the shared QP that this flow waits for. Returns the next flow in the list.
    pub(crate) fn stop_waiting(&mut self) -> Id {
        self.waits_for = NONE;
        core::mem::replace(&mut self.next_waiting, NONE)
    }

    pub(crate) fn has_held(&self) -> bool {
        self.held[0] != NONE
    }

    /// Notes that the last request sent proves `proof` when it completes.
    pub(crate) fn begin_proof(&mut self, proof: Proof) {
        if !self.pending.has_proof() && self.is_psn_unique() && !self.proofs.includes(proof) {
            self.pending.begin_proof(self.sent, proof);
        }
    }

    /// Stores the pending proof if everything before `acked` includes its request. Returns whether it does.
    pub(crate) fn apply_pending_proof(&mut self) -> bool {
        let proof = self.pending.take_proof(self.acked);
        proof.map(|proof| self.proofs.add(proof)).is_some()
    }

    /// Extends the PSNs of READ responses by a READ of `len` bytes that is retransmitted, late, or of unknown
    /// PSN count. The server takes requests with PSNs of its responses for duplicates, and acknowledges them
    /// without checking the R_Key.
    pub(crate) fn extend_read_psns(&mut self, psn: Psn, len: u32) {
        self.pending.extend_read_psns(psn.add(psns_of(len)));
    }

    /// Returns whether the PSN of the last request is beyond all PSNs that READ responses may have taken.
    pub(crate) fn is_psn_unique(&mut self) -> bool {
        let is_behind_reads = self.pending.is_behind_reads(self.sent.sub(1));
        self.uncounted_read.is_none() && is_behind_reads
    }

    /// Returns whether the last request, a READ with unknown PSN count, took one PSN, now that the next
    /// request has this PSN. If the PSN is larger, requests in between may be lost.
    pub(crate) fn took_one(&self, psn: Psn) -> bool {
        self.uncounted_read.is_some_and(|len| len.get() <= 4096) && psn == self.next
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proof::{Period, right};

    #[test]
    fn a_pending_proof_counts_when_its_request_completes() {
        let period = Period::default();
        let mut flow = Flow::new(0, 0, 0);
        flow.begin(Psn::new(0xff_ffff));
        flow.sent = flow.sent.add(1);
        flow.begin_proof(Proof::new(7, right::WRITE, period));
        flow.begin_proof(Proof::new(8, right::WRITE, period));
        assert!(!flow.apply_pending_proof() && !flow.proofs.had(7, right::WRITE));
        flow.acked = flow.sent;
        assert!(flow.apply_pending_proof() && flow.proofs.had(7, right::WRITE));
        assert!(!flow.apply_pending_proof() && !flow.proofs.had(8, right::WRITE), "one proof at a time");
        flow.extend_read_psns(flow.sent, 1);
        flow.sent = flow.sent.add(1);
        flow.begin_proof(Proof::new(8, right::WRITE, period));
        flow.acked = flow.sent;
        assert!(!flow.apply_pending_proof(), "the PSN may be that of a READ response");
    }

    #[test]
    fn responses_ahead_belong_to_the_last_read_if_it_may_take_enough_psns() {
        let mut flow = Flow::new(0, 0, 0);
        flow.begin(Psn::new(0xff_fffe));
        let accepts = |flow: &mut Flow, ahead: u32| flow.may_have_requested(flow.sent.add(ahead));
        assert!(!accepts(&mut flow, 0), "no request has this PSN");
        // A READ of 1,024 bytes takes up to four PSNs, at a path MTU of 256.
        flow.uncounted_read = NonZero::new(1024);
        assert!((0..4).all(|ahead| accepts(&mut flow, ahead)));
        assert!(!accepts(&mut flow, 4));
        let first = flow.first;
        assert!(flow.may_have_requested(first.add(2)) && !flow.may_have_requested(first.sub(1)));
    }
}
