//! The responder of a reliable or unreliable connection: what it expects, what it owes (IB 9.7.4, 9.7.5, 9.8.2).
//!
//! Responses leave in the order of the requests: an acknowledgement never overtakes the response to a READ before it,
//! which the other side would take for lost.

use crate::queue::{RecvRequest, Remote};
use crate::request::packets_of;
use rocev2::aeth::{RnrTimer, Syndrome};
use rocev2::{Msn, Psn};
use std::collections::VecDeque;
use switch::Nanos;

/// When a responder acknowledges, beyond what errors and responses say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AckPolicy {
    /// Every request packet, whether asked for or not
    EveryPacket,
    /// When the requester asks for it (`AckReq`)
    OnRequest,
    /// Coalesced: asked-for acknowledgements are held back until so many are owed, or the oldest is so old
    Every {
        /// Acknowledgements owed
        packets: u32,
        /// Nanoseconds
        time: Nanos,
    },
}

/// The message that is being received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// A SEND, so many bytes of which are in the memory of this receive request
    Send { recv: RecvRequest, len: u32 },
    /// A WRITE, so many bytes of which are to come. Where it goes is looked up for each packet
    Write { into: Remote, left: u32, len: u32 },
    /// Of a UC message a packet was lost: the rest is dropped
    Broken,
}

/// Something owed to the requester.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Response {
    /// An acknowledgement or a NAK
    Ack { psn: Psn, syndrome: Reply, msn: Msn },
    /// Packets of a READ: those from `sent` on are to be sent. `again` if it was owed before
    Read { psn: Psn, from: Remote, len: u32, sent: u32, msn: Msn, again: bool },
    /// What an atomic fetched
    Atomic { psn: Psn, original: u64, msn: Msn, again: bool },
}

impl Response {
    /// Its first PSN
    pub(crate) const fn psn(&self) -> Psn {
        match *self {
            Self::Ack { psn, .. } | Self::Read { psn, .. } | Self::Atomic { psn, .. } => psn,
        }
    }
}

/// Credits are put in when an acknowledgement leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Ack,
    Other(Syndrome),
}

/// An executed READ or atomic, kept for its repetition: a responder resource (IB 9.7.5.1.4, 12.7.30).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Executed {
    /// The memory that a READ may be repeated from, and the PSN behind its last. Kept by forgetful responders only:
    /// others take all that they need from the repetition.
    Read { psn: Psn, end: Psn, from: Remote, len: u32 },
    /// What an atomic fetched
    Atomic { psn: Psn, original: u64, msn: Msn },
}

impl Executed {
    /// Its first PSN
    const fn psn(&self) -> Psn {
        match *self {
            Self::Read { psn, .. } | Self::Atomic { psn, .. } => psn,
        }
    }
}

/// Responses owed at once beyond READs and atomics: duplicates of READs can pile up no higher.
pub(crate) const SPARE_RESPONSES: usize = 8;
/// Responses owed at once from which on an acknowledgement takes the place of the one before it: far more than arrive
/// before anything is sent, as each may be counted on the way.
const MAX_ACKS: usize = 1024;

/// The receive side of a queue pair.
#[derive(Debug)]
pub(crate) struct Responder {
    /// The PSN expected next
    pub(crate) epsn: Psn,
    /// Messages completed
    pub(crate) msn: Msn,
    pub(crate) message: Option<Message>,
    /// A NAK said what is expected; no further one until that comes (IB 9.7.5.1.2)
    pub(crate) nak_sent: bool,
    pub(crate) responses: VecDeque<Response>,
    /// The latest atomics, of a forgetful responder READs too, newest last; as many as may be outstanding
    pub(crate) executed: VecDeque<Executed>,
    /// Acknowledgements owed and held back, and when to wait no longer
    pub(crate) held: u32,
    pub(crate) ack_deadline: Option<Nanos>,
    /// When a CNP was last sent
    pub(crate) cnp_at: Option<Nanos>,
    /// A CNP is due
    pub(crate) cnp_due: bool,
    /// The last acknowledgement announced no room
    pub(crate) starved: bool,
    /// What the planted bug "a stale READ" remembers
    #[cfg(debug_assertions)]
    pub(crate) stale: Option<(crate::memory::Span, Vec<u8>)>,
    /// Attributes
    pub(crate) max_rd_atomic: usize,
    pub(crate) min_rnr_timer: RnrTimer,
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
            held: 0,
            ack_deadline: None,
            cnp_at: None,
            cnp_due: false,
            starved: false,
            #[cfg(debug_assertions)]
            stale: None,
            max_rd_atomic: 0,
            min_rnr_timer: RnrTimer(0),
        }
    }
}

impl Responder {
    /// Owes an acknowledgement of everything up to `psn`, in place of one that has not left yet if nothing follows it.
    pub(crate) fn acknowledge(&mut self, psn: Psn) {
        if let Some(Response::Ack { syndrome: Reply::Ack, .. }) = self.responses.back() {
            self.responses.pop_back();
        }
        self.acknowledge_apart(psn);
    }

    /// Owes an acknowledgement of its own.
    fn acknowledge_apart(&mut self, psn: Psn) {
        self.owe(psn, Reply::Ack);
    }

    /// Owes a NAK of this PSN.
    pub(crate) fn refuse(&mut self, psn: Psn, syndrome: Syndrome) {
        self.owe(psn, Reply::Other(syndrome));
    }

    fn owe(&mut self, psn: Psn, syndrome: Reply) {
        // Where nothing can be sent, what is newest says what those before it would have said.
        while self.responses.len() >= MAX_ACKS
            && let Some(Response::Ack { .. }) = self.responses.back()
        {
            self.responses.pop_back();
        }
        self.responses.push_back(Response::Ack { psn, syndrome, msn: self.msn });
        (self.held, self.ack_deadline) = (0, None);
    }

    /// An acknowledgement of everything up to `psn` was asked for, or not.
    pub(crate) fn request_came(&mut self, asked: bool, policy: AckPolicy, psn: Psn, now: Nanos) {
        match policy {
            AckPolicy::EveryPacket => self.acknowledge_apart(psn),
            AckPolicy::OnRequest if asked => self.acknowledge_apart(psn),
            AckPolicy::OnRequest => {}
            AckPolicy::Every { packets, time } => {
                self.held += u32::from(asked);
                if self.held >= packets.max(1) {
                    self.acknowledge(psn);
                } else if asked && self.ack_deadline.is_none() {
                    self.ack_deadline = Some(now + time);
                }
            }
        }
    }

    /// READs and atomics whose responses are owed. Those that are owed once more do not count: the requester may have
    /// got the first response meanwhile, and have asked for something else.
    pub(crate) fn fetches_owed(&self) -> usize {
        let first = |response: &&Response| {
            matches!(response, Response::Read { again: false, .. } | Response::Atomic { again: false, .. })
        };
        self.responses.iter().filter(first).count()
    }

    /// Owes a response once more. In the order of PSNs, in which the requester waits for them.
    pub(crate) fn owe_again(&mut self, response: Response) {
        let psn = response.psn();
        let at = self.responses.iter().position(|owed| owed.psn().distance(psn) > 0);
        self.responses.insert(at.unwrap_or(self.responses.len()), response);
    }

    /// A READ, or the rest of one, is asked for again; its last PSN is just before `end`. A READ is owed once: what was
    /// owed of it begins anew where it is asked for.
    pub(crate) fn read_again(&mut self, read: Response, end: Psn, mtu: usize, room: bool) {
        let same = self.responses.iter_mut().find(|owed| match owed {
            Response::Read { psn, len, .. } => psn.add(packets_of(*len as usize, mtu)) == end,
            _ => false,
        });
        match same {
            Some(Response::Read { psn, sent, .. }) if psn.add(*sent).distance(read.psn()) <= 0 => {
                // It has not come to it yet.
            }
            Some(owed) => *owed = read,
            None if room => self.owe_again(read),
            None => {}
        }
    }

    /// Whether a forgetful responder still has the READ that is repeated, whole or from a later packet on: the same
    /// memory or the rest of it. As in soft-RoCE what lies before the repeated part is forgotten then.
    pub(crate) fn recalls_read(&mut self, again: Psn, part: Remote, part_len: u32) -> bool {
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

    /// What the atomic of this PSN fetched, and its MSN
    pub(crate) fn recall_atomic(&self, again: Psn) -> Option<(u64, Msn)> {
        self.executed.iter().rev().find_map(|executed| match *executed {
            Executed::Atomic { psn, original, msn } if psn == again => Some((original, msn)),
            _ => None,
        })
    }

    /// Moves on to `psn`. READs and atomics so long ago that their PSNs come again are forgotten.
    pub(crate) fn expect(&mut self, psn: Psn) {
        self.epsn = psn;
        while self.executed.front().is_some_and(|executed| executed.psn().distance(psn) >= 0) {
            self.executed.pop_front();
        }
    }

    /// Remembers a READ or an atomic, in place of the oldest.
    pub(crate) fn remember(&mut self, executed: Executed) {
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

    /// A READ of three packets from PSN `first` on, whose packets from `sent` on are owed
    fn read(first: u32, sent: u32) -> Response {
        Response::Read { psn: psn(first), from: FROM, len: 3 * MTU as u32, sent, msn: Msn::ZERO, again: true }
    }

    fn atomic(n: u32, again: bool) -> Response {
        Response::Atomic { psn: psn(n), original: 0, msn: Msn::ZERO, again }
    }

    fn owing(responses: &[Response]) -> Responder {
        Responder { responses: responses.iter().copied().collect(), ..Responder::default() }
    }

    #[test]
    fn acknowledgements_are_held_back_until_enough_are_owed_or_the_oldest_is_old() {
        let policy = AckPolicy::Every { packets: 3, time: Nanos(10) };
        let mut resp = Responder::default();
        resp.request_came(false, policy, psn(1), Nanos(1));
        assert_eq!(resp.ack_deadline, None, "nothing was asked for");
        for (at, n) in [(5, 2), (7, 3)] {
            resp.request_came(true, policy, psn(n), Nanos(at));
            assert_eq!(
                (resp.ack_deadline, resp.responses.len()),
                (Some(Nanos(15)), 0),
                "10 ns after the oldest"
            );
        }
        resp.request_came(true, policy, psn(4), Nanos(8));
        assert_eq!(resp.ack_deadline, None);
        assert_eq!(resp.responses, [Response::Ack { psn: psn(4), syndrome: Reply::Ack, msn: Msn::ZERO }]);
    }

    #[test]
    fn reads_and_atomics_owed_for_the_first_time_count() {
        assert_eq!(owing(&[]).fetches_owed(), 0);
        let first = Response::Read { psn: psn(2), from: FROM, len: 1, sent: 0, msn: Msn::ZERO, again: false };
        let ack = Response::Ack { psn: psn(3), syndrome: Reply::Ack, msn: Msn::ZERO };
        let resp = owing(&[atomic(1, false), first, ack, atomic(4, true), read(5, 0), atomic(8, false)]);
        assert_eq!(resp.fetches_owed(), 3);
    }

    #[test]
    fn responses_owed_again_leave_in_the_order_of_psns() {
        let ack = |n| Response::Ack { psn: psn(n), syndrome: Reply::Ack, msn: Msn::ZERO };
        let mut resp = owing(&[ack(3), ack(5), ack(7)]);
        for n in [8, 5, 2] {
            resp.owe_again(atomic(n, true));
        }
        assert_eq!(
            resp.responses,
            [atomic(2, true), ack(3), ack(5), atomic(5, true), ack(7), atomic(8, true)]
        );
    }

    #[test]
    fn a_read_asked_for_again_is_owed_once() {
        // Its PSNs are 10 to 12; another one's are 20 to 22.
        let again = |sent, asked: Response| {
            let mut resp = owing(&[read(10, sent), read(20, 0)]);
            resp.read_again(asked, psn(13), MTU, true);
            resp.responses
        };
        let rest = Response::Read {
            psn: psn(11),
            from: FROM,
            len: 2 * MTU as u32,
            sent: 0,
            msn: Msn::ZERO,
            again: true,
        };
        assert_eq!(again(0, rest), [read(10, 0), read(20, 0)], "what is asked for is still to be sent");
        assert_eq!(again(1, rest), [read(10, 1), read(20, 0)], "it is the next packet");
        assert_eq!(again(2, rest), [rest, read(20, 0)], "it has been sent already");
    }

    #[test]
    fn a_read_that_is_not_owed_any_more_is_owed_again_if_there_is_room() {
        let mut resp = owing(&[read(20, 0)]);
        resp.read_again(read(10, 0), psn(13), MTU, false);
        assert_eq!(resp.responses, [read(20, 0)]);
        resp.read_again(read(10, 0), psn(13), MTU, true);
        assert_eq!(resp.responses, [read(10, 0), read(20, 0)]);
    }

    #[test]
    fn a_forgetful_responder_recalls_a_read_by_psns_key_and_memory() {
        let part = |skipped: u64| Remote { va: FROM.va + skipped, ..FROM };
        let mut resp = Responder::default();
        let remembered = Executed::Read { psn: psn(10), end: psn(13), from: FROM, len: 3000 };
        resp.executed.push_back(remembered);
        assert!(!resp.recalls_read(psn(9), FROM, 100), "before its first PSN");
        assert!(!resp.recalls_read(psn(13), FROM, 100), "behind its last PSN");
        assert!(!resp.recalls_read(psn(11), Remote { rkey: 8, ..FROM }, 100), "another key");
        assert!(!resp.recalls_read(psn(11), part(2000), 1001), "a byte more");
        assert_eq!(resp.executed, [remembered]);
        assert!(resp.recalls_read(psn(11), part(1024), 1976));
        assert!(!resp.recalls_read(psn(11), part(1024), 1977), "a byte more than the rest");
        assert!(resp.recalls_read(psn(12), part(2048), 952));
    }
}
