//! The requester of a reliable or unreliable connection: cuts requests into packets, and makes completions of
//! acknowledgements and responses. Go-back-N (IB 9.7.5, 9.7.6, 9.7.7).
//!
//! ```text
//!   completed | acknowledged | under way        | not sent yet
//!   ----------+--------------+------------------+------------------> PSN
//!                            una            cursor       top: the first PSN that was never sent
//! ```
//!
//! After a loss the cursor goes back; `top` stays. Every request has its PSNs from the moment it is posted, so a
//! retransmission is the same packet again, but for a READ, which asks for what is still missing.

use crate::congestion::Pace;
use crate::queue::{Operation, SendRequest};
use rocev2::{Msn, Psn};
use std::collections::VecDeque;
use switch::Nanos;

/// A request in the send queue.
#[derive(Debug)]
pub(crate) struct Sending {
    pub(crate) request: SendRequest,
    /// Its first PSN, and how many it takes
    pub(crate) first: Psn,
    pub(crate) packets: u32,
    /// Packets of a READ's response that have come
    pub(crate) fetched: u32,
    /// Its message sequence number: the MSN that the responder has when it is done (IB 9.7.7.1)
    pub(crate) ssn: Msn,
}

impl Sending {
    pub(crate) fn last(&self) -> Psn {
        self.first.add(self.packets - 1)
    }

    /// Whether `psn` is one of its.
    pub(crate) fn has(&self, psn: Psn) -> bool {
        psn.get().wrapping_sub(self.first.get()) & 0x00ff_ffff < self.packets
    }
}

/// The send side of a queue pair.
#[derive(Debug)]
pub(crate) struct Requester {
    /// Oldest first. Completed requests are gone.
    pub(crate) queue: VecDeque<Sending>,
    /// How many requests have left the queue: names those in it
    pub(crate) gone: u64,
    /// The next request to be posted has this PSN and this MSN
    pub(crate) next_psn: Psn,
    pub(crate) next_ssn: Msn,
    /// Oldest PSN not acknowledged
    pub(crate) una: Psn,
    /// First PSN that was never sent
    pub(crate) top: Psn,
    /// The request that is being sent, counted as by `gone`, and its next packet
    pub(crate) cursor: u64,
    pub(crate) packet: u32,
    /// READs and atomics under way
    pub(crate) fetching: u32,
    /// Packets since an acknowledgement was asked for
    pub(crate) unasked: u32,
    /// The newest PSN whose acknowledgement or response was asked for, since the cursor last went back
    pub(crate) asked: Option<Psn>,
    /// The next packet could leave, but for the pace
    pub(crate) paced_out: bool,
    /// Messages up to this number may be sent (LSN, IB 9.7.7.2); none is no limit
    pub(crate) limit: Option<Msn>,
    /// When to give up waiting for an acknowledgement
    pub(crate) deadline: Option<Nanos>,
    /// When the receiver may be ready
    pub(crate) rnr_until: Option<Nanos>,
    pub(crate) retries_left: u8,
    pub(crate) rnr_retries_left: u8,
    /// The cursor went back to here because a response was missing, and nothing has come since
    pub(crate) went_back_to: Option<Psn>,
    pub(crate) pace: Pace,
    /// Attributes
    pub(crate) max_rd_atomic: u32,
    pub(crate) timeout: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) flow_control: bool,
}

impl Default for Requester {
    fn default() -> Self {
        Self {
            queue: VecDeque::new(),
            gone: 0,
            next_psn: Psn::ZERO,
            next_ssn: Msn::new(1),
            una: Psn::ZERO,
            top: Psn::ZERO,
            cursor: 0,
            packet: 0,
            fetching: 0,
            unasked: 0,
            asked: None,
            paced_out: false,
            limit: None,
            deadline: None,
            rnr_until: None,
            retries_left: 0,
            rnr_retries_left: 0,
            went_back_to: None,
            pace: Pace::default(),
            max_rd_atomic: 0,
            timeout: 0,
            retry_count: 0,
            rnr_retry: 0,
            flow_control: false,
        }
    }
}

impl Requester {
    /// The request at the cursor.
    #[inline]
    pub(crate) fn current(&self) -> Option<&Sending> {
        self.queue.get((self.cursor - self.gone) as usize)
    }

    /// The PSN of the next packet, if there is one to send.
    #[inline]
    pub(crate) fn next_to_send(&self) -> Option<Psn> {
        self.current().map(|sending| sending.first.add(self.packet))
    }

    /// Whether anything was sent that is not acknowledged.
    #[inline]
    pub(crate) fn is_waiting(&self) -> bool {
        self.una != self.top
    }

    /// Whether the other side owes an answer to what was sent: an acknowledgement that was asked for, or a response
    pub(crate) fn is_answer_due(&self) -> bool {
        self.asked.is_some_and(|psn| psn.distance(self.una) >= 0)
    }

    /// Whether requests are half sent or wait for their acknowledgement.
    pub(crate) fn is_under_way(&self) -> bool {
        self.is_waiting() || self.packet > 0
    }

    /// Queues a request that takes so many PSNs.
    pub(crate) fn push(&mut self, request: SendRequest, packets: u32) {
        self.queue.push_back(Sending {
            request,
            first: self.next_psn,
            packets,
            fetched: 0,
            ssn: self.next_ssn,
        });
        self.next_psn = self.next_psn.add(packets);
        self.next_ssn = self.next_ssn.add(1);
    }

    /// Time to wait for an acknowledgement.
    pub(crate) fn timeout(&self) -> Option<Nanos> {
        (self.timeout > 0).then(|| Nanos(4096 << self.timeout.min(31)))
    }

    /// Begins to wait anew, or stops if nothing is under way.
    pub(crate) fn restart_timer(&mut self, now: Nanos) {
        self.deadline = if self.is_waiting() { self.timeout().map(|span| now + span) } else { None };
    }

    /// Something came that was waited for: patience is as it was at first.
    pub(crate) fn refresh(&mut self, now: Nanos) {
        self.retries_left = self.retry_count;
        self.rnr_retries_left = self.rnr_retry;
        self.went_back_to = None;
        self.restart_timer(now);
        // What was acknowledged late is not sent again after all.
        if self.next_to_send().is_some_and(|next| next.precedes(self.una)) {
            self.go_back(self.una);
        }
    }

    /// Takes the request at the front out.
    pub(crate) fn pop(&mut self) -> Option<Sending> {
        let sending = self.queue.pop_front()?;
        self.gone += 1;
        if self.cursor < self.gone {
            (self.cursor, self.packet) = (self.gone, 0);
        }
        if sending.request.operation.fetches() {
            self.fetching = self.fetching.saturating_sub(1);
        }
        let after = sending.last().add(1);
        self.una = after;
        self.top = self.top.later(after);
        Some(sending)
    }

    /// Whether an acknowledgement of `psn` speaks of something that was sent.
    pub(crate) fn was_sent(&self, psn: Psn) -> bool {
        let behind = self.top.distance(psn);
        behind > 0 && psn.distance(self.una) >= -1
    }

    /// Sends again from `psn` on, which has been sent and not acknowledged.
    pub(crate) fn go_back(&mut self, psn: Psn) {
        let Some(at) = self.queue.iter().position(|sending| sending.has(psn)) else { return };
        let sending = &self.queue[at];
        // A READ is asked for anew from the first packet that is missing.
        self.packet = match sending.request.operation {
            Operation::Read(_) => sending.fetched,
            _ => psn.distance(sending.first) as u32,
        };
        self.cursor = self.gone + at as u64;
        self.fetching =
            self.queue.iter().take(at).filter(|sending| sending.request.operation.fetches()).count() as u32;
        (self.unasked, self.asked) = (0, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::Data;

    fn send(id: u64) -> SendRequest {
        SendRequest::new(id, Operation::Send, Data::None)
    }

    #[test]
    fn psns_wrap_within_a_message() {
        let mut req = Requester { next_psn: Psn::new(0xff_fffe), ..Requester::default() };
        (req.una, req.top) = (req.next_psn, req.next_psn);
        req.push(send(1), 4);
        req.push(send(2), 1);
        assert!(req.queue[0].has(Psn::new(0xff_fffe)) && req.queue[0].has(Psn::new(1)));
        assert!(!req.queue[0].has(Psn::new(2)) && req.queue[1].has(Psn::new(2)));
        req.top = Psn::new(3);
        assert!(req.was_sent(Psn::new(0)) && req.was_sent(Psn::new(0xff_fffd)));
        assert!(!req.was_sent(Psn::new(3)) && !req.was_sent(Psn::new(0xff_fffc)));
        req.go_back(Psn::new(2));
        assert_eq!((req.cursor, req.packet), (1, 0));
        req.go_back(Psn::new(1));
        assert_eq!((req.cursor, req.packet, req.next_to_send()), (0, 3, Some(Psn::new(1))));
        assert_eq!(req.pop().map(|sending| sending.request.id), Some(1));
        assert_eq!((req.una, req.cursor, req.packet), (Psn::new(2), 1, 0));
    }

    #[test]
    fn timeout_zero_is_none() {
        let timeout = |timeout| Requester { timeout, ..Requester::default() }.timeout();
        assert_eq!(timeout(0), None);
        assert_eq!([timeout(1), timeout(31)], [Some(Nanos(8192)), Some(Nanos(4096 << 31))]);
    }

    #[test]
    fn an_answer_is_due_until_what_asked_for_it_is_acknowledged() {
        let mut req = Requester { una: Psn::new(4), ..Requester::default() };
        assert!(!req.is_answer_due());
        req.asked = Some(Psn::new(5));
        assert!(req.is_answer_due());
        req.una = Psn::new(5);
        assert!(req.is_answer_due());
        req.una = Psn::new(6);
        assert!(!req.is_answer_due());
    }

    #[test]
    fn a_half_sent_request_is_under_way_though_its_first_half_is_acknowledged() {
        let mut req = Requester::default();
        req.push(send(1), 4);
        assert!(!req.is_under_way());
        req.top = Psn::new(2);
        assert!(req.is_under_way());
        (req.una, req.packet) = (Psn::new(2), 2);
        assert!(req.is_under_way());
        req.packet = 0;
        assert!(!req.is_under_way());
    }

    #[test]
    fn a_half_sent_request_goes_on_where_it_was_when_the_one_before_it_completes() {
        let mut req = Requester::default();
        req.push(send(1), 1);
        req.push(send(2), 4);
        (req.cursor, req.packet, req.top) = (1, 2, Psn::new(3));
        req.pop();
        assert_eq!((req.una, req.next_to_send()), (Psn::new(1), Some(Psn::new(3))));
    }

    #[test]
    fn a_read_is_repeated_from_its_first_missing_packet() {
        let mut req = Requester::default();
        req.push(
            SendRequest::new(1, Operation::Read(crate::queue::Remote { va: 0, rkey: 0 }), Data::None),
            5,
        );
        req.top = Psn::new(5);
        req.queue[0].fetched = 2;
        req.go_back(Psn::new(0));
        assert_eq!(req.next_to_send(), Some(Psn::new(2)));
    }
}
