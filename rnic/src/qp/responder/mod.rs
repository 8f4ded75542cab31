//! State of the responder of a reliable or unreliable connection: the expected PSN and the owed responses
//! (IB 9.7.4, 9.7.5, 9.8.2).
//!
//! Responses leave in the order of the requests. An acknowledgement never overtakes the response to an
//! earlier READ, which the requester would otherwise take for lost.

mod receive;
mod transmit;

use super::ReadyToReceive;
use crate::config::AckPolicy;
#[cfg(debug_assertions)]
use crate::memory::Span;
use crate::path::packets_of;
use crate::queue::{RecvRequest, Remote};
use rocev2::aeth::{RnrTimer, Syndrome};
use rocev2::{Msn, Psn};
use std::collections::VecDeque;
use switch::Nanos;

/// The message that is being received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Message {
    /// A SEND, of which `len` bytes are in the memory of receive request `recv`
    Send { recv: RecvRequest, len: u32 },
    /// A WRITE of `len` bytes, of which `left` are still to come. The region is looked up for each packet.
    Write { into: Remote, left: u32, len: u32 },
    /// A UC message of which a packet was lost: the rest is dropped
    Broken,
}

/// A response owed to the requester.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Response {
    /// An acknowledgement or a NAK
    Ack { psn: Psn, syndrome: AckSyndrome, msn: Msn },
    /// A READ response, to be sent from packet `sent` on. `duplicate`: the request was a duplicate
    Read { psn: Psn, from: Remote, len: u32, sent: u32, msn: Msn, duplicate: bool },
    /// The value that an atomic fetched. `duplicate`: the request was a duplicate
    Atomic { psn: Psn, original: u64, msn: Msn, duplicate: bool },
}

impl Response {
    /// Returns its first PSN.
    const fn psn(&self) -> Psn {
        match *self {
            Self::Ack { psn, .. } | Self::Read { psn, .. } | Self::Atomic { psn, .. } => psn,
        }
    }
}

/// Syndrome of an owed acknowledgement. Credits are filled in when it leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AckSyndrome {
    Ack,
    Other(Syndrome),
}

/// An executed READ or atomic, remembered for duplicates: a responder resource (IB 9.7.5.1.4, 12.7.30).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Executed {
    /// The memory from which a READ may be repeated, and the PSN after its last one. Only forgetful
    /// responders remember READs; other responders find everything in the duplicate request.
    Read { psn: Psn, end: Psn, from: Remote, len: u32 },
    /// The value that an atomic fetched
    Atomic { psn: Psn, original: u64, msn: Msn },
}

impl Executed {
    /// Returns its first PSN.
    const fn psn(&self) -> Psn {
        match *self {
            Self::Read { psn, .. } | Self::Atomic { psn, .. } => psn,
        }
    }
}

/// Limit of owed responses in addition to READs and atomics: bounds the duplicate READs that can pile up.
const SPARE_RESPONSES: usize = 8;
/// Number of owed responses from which on a new acknowledgement replaces the previous one. This is far more
/// than arrive before a packet is sent, because tests and switches count acknowledgements.
const MAX_ACKS: usize = 1024;

/// The receive side of a queue pair.
#[derive(Debug)]
pub(crate) struct Responder {
    /// The expected PSN
    epsn: Psn,
    /// Messages completed
    msn: Msn,
    message: Option<Message>,
    /// Whether a NAK was sent for the expected PSN. No further NAK is sent until that request arrives (IB
    /// 9.7.5.1.2)
    nak_sent: bool,
    responses: VecDeque<Response>,
    /// The latest atomics, and READs of a forgetful responder, newest last; at most `max_rd_atomic`
    executed: VecDeque<Executed>,
    /// Acknowledgements held back, and when the oldest has to leave
    held_acks: u32,
    ack_deadline: Option<Nanos>,
    /// When a CNP was last sent
    last_cnp_at: Option<Nanos>,
    /// Whether a CNP is due
    cnp_due: bool,
    /// Whether the last acknowledgement announced zero credits
    sent_zero_credits: bool,
    /// State of the planted bug `StaleRead`
    #[cfg(debug_assertions)]
    stale: Option<(Span, Vec<u8>)>,
    /// Attributes
    max_rd_atomic: usize,
    min_rnr_timer: RnrTimer,
}

impl Default for Responder {
    fn default() -> Self {
        Self {
            epsn: Psn::ZERO,
            msn: Msn::ZERO,
            message: None,
            nak_sent: false,
            responses: VecDeque::new(),
            executed: VecDeque::new(),
            held_acks: 0,
            ack_deadline: None,
            last_cnp_at: None,
            cnp_due: false,
            sent_zero_credits: false,
            #[cfg(debug_assertions)]
            stale: None,
            max_rd_atomic: 0,
            min_rnr_timer: RnrTimer(0),
        }
    }
}

impl Responder {
    /// Sets the attributes of RTR.
    pub(super) const fn make_ready(&mut self, ready: &ReadyToReceive) {
        (self.epsn, self.msn) = (ready.rq_psn, Msn::ZERO);
        self.max_rd_atomic = ready.max_dest_rd_atomic as usize;
        self.min_rnr_timer = ready.min_rnr_timer;
    }

    /// Returns the expected PSN.
    #[inline]
    pub(crate) const fn epsn(&self) -> Psn {
        self.epsn
    }

    /// Returns whether a response or a CNP is owed.
    #[inline]
    pub(super) fn wants_to_send(&self) -> bool {
        !self.responses.is_empty() || self.cnp_due
    }

    /// Returns when the oldest acknowledgement that is held back has to leave.
    #[inline]
    pub(super) const fn ack_deadline(&self) -> Option<Nanos> {
        self.ack_deadline
    }

    /// Owes the acknowledgements that were held back until `now`.
    pub(super) fn on_timer(&mut self, now: Nanos) {
        if self.ack_deadline.is_some_and(|at| at <= now) {
            self.owe_ack(self.epsn.sub(1));
        }
    }

    /// Owes an acknowledgement that announces credits if the last one announced none: the requester would
    /// find out only by sending a message without one (IB 9.7.7.2.5). Returns whether it does.
    pub(super) fn announce_credits(&mut self) -> bool {
        if self.sent_zero_credits {
            self.owe_ack(self.epsn.sub(1));
        }
        self.sent_zero_credits
    }

    /// Owes a CNP, unless one was owed less than `interval` ago.
    pub(super) fn owe_cnp(&mut self, now: Nanos, interval: Nanos) {
        if self.last_cnp_at.is_none_or(|at| now.since(at) >= interval) {
            (self.last_cnp_at, self.cnp_due) = (Some(now), true);
        }
    }

    /// Returns whether a CNP was owed, and owes none any more.
    #[inline]
    pub(super) const fn take_cnp(&mut self) -> bool {
        core::mem::replace(&mut self.cnp_due, false)
    }

    /// Returns the number of owed responses, and the PSN of the newest.
    #[cfg(test)]
    pub(crate) fn owed(&self) -> (usize, Option<Psn>) {
        (self.responses.len(), self.responses.back().map(Response::psn))
    }

    /// Owes an acknowledgement of everything up to `psn`. It replaces an acknowledgement at the end of the
    /// queue.
    pub(crate) fn owe_ack(&mut self, psn: Psn) {
        if let Some(Response::Ack { syndrome: AckSyndrome::Ack, .. }) = self.responses.back() {
            self.responses.pop_back();
        }
        self.owe_separate_ack(psn);
    }

    /// Owes an acknowledgement without replacing an earlier one.
    fn owe_separate_ack(&mut self, psn: Psn) {
        self.owe(psn, AckSyndrome::Ack);
    }

    /// Owes a NAK of this PSN.
    fn owe_nak(&mut self, psn: Psn, syndrome: Syndrome) {
        self.owe(psn, AckSyndrome::Other(syndrome));
    }

    fn owe(&mut self, psn: Psn, syndrome: AckSyndrome) {
        // If nothing can be sent, the newest acknowledgement covers the ones before it.
        while self.responses.len() >= MAX_ACKS
            && let Some(Response::Ack { .. }) = self.responses.back()
        {
            self.responses.pop_back();
        }
        self.responses.push_back(Response::Ack { psn, syndrome, msn: self.msn });
        (self.held_acks, self.ack_deadline) = (0, None);
    }

    /// Applies the acknowledgement policy to a request with PSN `psn`; `ack_req` is its AckReq bit.
    fn on_request(&mut self, ack_req: bool, policy: AckPolicy, psn: Psn, now: Nanos) {
        match policy {
            AckPolicy::EveryPacket => self.owe_separate_ack(psn),
            AckPolicy::OnRequest if ack_req => self.owe_separate_ack(psn),
            AckPolicy::OnRequest => {}
            AckPolicy::Every { packets, time } => {
                self.held_acks += u32::from(ack_req);
                if self.held_acks >= packets.max(1) {
                    self.owe_ack(psn);
                } else if ack_req && self.ack_deadline.is_none() {
                    self.ack_deadline = Some(now + time);
                }
            }
        }
    }

    /// Returns the number of READs and atomics whose responses are owed. Responses to duplicates do not
    /// count: the requester may have received the first response meanwhile, and have sent another request.
    fn fetches_owed(&self) -> usize {
        let first = |response: &&Response| {
            matches!(
                response,
                Response::Read { duplicate: false, .. } | Response::Atomic { duplicate: false, .. }
            )
        };
        self.responses.iter().filter(first).count()
    }

    /// Owes a response to a duplicate. Inserted in PSN order, in which the requester expects the responses.
    fn owe_duplicate(&mut self, response: Response) {
        let psn = response.psn();
        let at = self.responses.iter().position(|owed| owed.psn().distance(psn) > 0);
        self.responses.insert(at.unwrap_or(self.responses.len()), response);
    }

    /// Owes the response to a duplicate READ, or to the rest of one; its last PSN is `end` - 1. A READ
    /// response is owed only once: an owed response restarts at the PSN of the duplicate.
    fn owe_duplicate_read(&mut self, read: Response, end: Psn, mtu: usize, room: bool) {
        let same = self.responses.iter_mut().find(|owed| match owed {
            Response::Read { psn, len, .. } => psn.add(packets_of(*len as usize, mtu)) == end,
            _ => false,
        });
        match same {
            Some(Response::Read { psn, sent, .. }) if psn.add(*sent).distance(read.psn()) <= 0 => {
                // The owed response has not reached that PSN yet.
            }
            Some(owed) => *owed = read,
            None if room => self.owe_duplicate(read),
            None => {}
        }
    }

    /// Returns whether a forgetful responder remembers the READ that is repeated, completely or from a later
    /// packet on: the same memory or the rest of it. As in soft-RoCE, the part before the repeated packet is
    /// then forgotten.
    fn recalls_read(&mut self, again: Psn, part: Remote, part_len: u32) -> bool {
        self.executed.iter_mut().rev().any(|executed| match executed {
            Executed::Read { psn, end, from, len } => {
                let skipped = part.va.wrapping_sub(from.va);
                let same = again.distance(*psn) >= 0
                    && again.distance(*end) < 0
                    && part.rkey == from.rkey
                    && skipped.checked_add(part_len.into()).is_some_and(|to| to <= u64::from(*len));
                if same {
                    (*from, *len) = (part, *len - skipped as u32);
                }
                same
            }
            Executed::Atomic { .. } => false,
        })
    }

    /// Returns the value that the atomic with this PSN fetched, and its MSN.
    fn recall_atomic(&self, again: Psn) -> Option<(u64, Msn)> {
        self.executed.iter().rev().find_map(|executed| match *executed {
            Executed::Atomic { psn, original, msn } if psn == again => Some((original, msn)),
            _ => None,
        })
    }

    /// Advances the expected PSN to `psn`. Forgets READs and atomics that are so old that their PSNs recur.
    pub(crate) fn advance_epsn(&mut self, psn: Psn) {
        self.epsn = psn;
        while self.executed.front().is_some_and(|executed| executed.psn().distance(psn) >= 0) {
            self.executed.pop_front();
        }
    }

    /// Remembers a READ or an atomic, in place of the oldest one.
    fn remember(&mut self, executed: Executed) {
        if self.executed.len() >= self.max_rd_atomic.max(1) {
            self.executed.pop_front();
        }
        self.executed.push_back(executed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MTU: usize = 1024;
    const FROM: Remote = Remote { va: 0x1000, rkey: 7 };

    fn psn(n: u32) -> Psn {
        Psn::new(n)
    }

    /// Returns a READ of three packets from PSN `first` on, of which the packets from `sent` on are owed.
    fn read(first: u32, sent: u32) -> Response {
        Response::Read {
            psn: psn(first),
            from: FROM,
            len: 3 * MTU as u32,
            sent,
            msn: Msn::ZERO,
            duplicate: true,
        }
    }

    fn atomic(n: u32, duplicate: bool) -> Response {
        Response::Atomic { psn: psn(n), original: 0, msn: Msn::ZERO, duplicate }
    }

    fn owing(responses: &[Response]) -> Responder {
        Responder { responses: responses.iter().copied().collect(), ..Responder::default() }
    }

    #[test]
    fn coalesced_acknowledgements_leave_at_the_count_or_at_the_deadline() {
        let policy = AckPolicy::Every { packets: 3, time: Nanos(10) };
        let mut resp = Responder::default();
        resp.on_request(false, policy, psn(1), Nanos(1));
        assert_eq!(resp.ack_deadline, None, "no acknowledgement was requested");
        for (at, n) in [(5, 2), (7, 3)] {
            resp.on_request(true, policy, psn(n), Nanos(at));
            assert_eq!(
                (resp.ack_deadline, resp.responses.len()),
                (Some(Nanos(15)), 0),
                "10 ns after the oldest"
            );
        }
        resp.on_request(true, policy, psn(4), Nanos(8));
        assert_eq!(resp.ack_deadline, None);
        assert_eq!(
            resp.responses,
            [Response::Ack { psn: psn(4), syndrome: AckSyndrome::Ack, msn: Msn::ZERO }]
        );
    }

    #[test]
    fn only_first_responses_to_reads_and_atomics_count_as_owed() {
        assert_eq!(owing(&[]).fetches_owed(), 0);
        let first =
            Response::Read { psn: psn(2), from: FROM, len: 1, sent: 0, msn: Msn::ZERO, duplicate: false };
        let ack = Response::Ack { psn: psn(3), syndrome: AckSyndrome::Ack, msn: Msn::ZERO };
        let resp = owing(&[atomic(1, false), first, ack, atomic(4, true), read(5, 0), atomic(8, false)]);
        assert_eq!(resp.fetches_owed(), 3);
    }

    #[test]
    fn responses_to_duplicates_leave_in_psn_order() {
        let ack = |n| Response::Ack { psn: psn(n), syndrome: AckSyndrome::Ack, msn: Msn::ZERO };
        let mut resp = owing(&[ack(3), ack(5), ack(7)]);
        for n in [8, 5, 2] {
            resp.owe_duplicate(atomic(n, true));
        }
        assert_eq!(
            resp.responses,
            [atomic(2, true), ack(3), ack(5), atomic(5, true), ack(7), atomic(8, true)]
        );
    }

    #[test]
    fn a_duplicate_read_is_owed_once() {
        // The READ has PSNs 10 to 12; another one has 20 to 22.
        let again = |sent, ack_req: Response| {
            let mut resp = owing(&[read(10, sent), read(20, 0)]);
            resp.owe_duplicate_read(ack_req, psn(13), MTU, true);
            resp.responses
        };
        let rest = Response::Read {
            psn: psn(11),
            from: FROM,
            len: 2 * MTU as u32,
            sent: 0,
            msn: Msn::ZERO,
            duplicate: true,
        };
        assert_eq!(again(0, rest), [read(10, 0), read(20, 0)], "the requested packets are still to be sent");
        assert_eq!(again(1, rest), [read(10, 1), read(20, 0)], "the requested packet is the next one");
        assert_eq!(again(2, rest), [rest, read(20, 0)], "the requested packet has been sent already");
    }

    #[test]
    fn a_read_response_that_has_left_is_owed_again_if_there_is_room() {
        let mut resp = owing(&[read(20, 0)]);
        resp.owe_duplicate_read(read(10, 0), psn(13), MTU, false);
        assert_eq!(resp.responses, [read(20, 0)]);
        resp.owe_duplicate_read(read(10, 0), psn(13), MTU, true);
        assert_eq!(resp.responses, [read(10, 0), read(20, 0)]);
    }

    #[test]
    fn a_forgetful_responder_matches_a_read_by_psn_key_and_memory() {
        let part = |skipped: u64| Remote { va: FROM.va + skipped, ..FROM };
        let mut resp = Responder::default();
        let remembered = Executed::Read { psn: psn(10), end: psn(13), from: FROM, len: 3000 };
        resp.executed.push_back(remembered);
        assert!(!resp.recalls_read(psn(9), FROM, 100), "before its first PSN");
        assert!(!resp.recalls_read(psn(13), FROM, 100), "after its last PSN");
        assert!(!resp.recalls_read(psn(11), Remote { rkey: 8, ..FROM }, 100), "another key");
        assert!(!resp.recalls_read(psn(11), part(2000), 1001), "one byte too long");
        assert_eq!(resp.executed, [remembered]);
        assert!(resp.recalls_read(psn(11), part(1024), 1976));
        assert!(!resp.recalls_read(psn(11), part(1024), 1977), "one byte longer than the rest");
        assert!(resp.recalls_read(psn(12), part(2048), 952));
    }
}
