//! The requester of a reliable or unreliable connection: segments requests into packets, and completes them
//! on acknowledgements and responses. Go-back-N (IB 9.7.5, 9.7.6, 9.7.7).
//!
//! ```text
//!   completed | acknowledged | in flight       | not sent yet
//!   ----------+--------------+-----------------+------------------> PSN
//!                            una           cursor      top: the first PSN that was never sent
//! ```
//!
//! After a loss the cursor goes back and `top` stays. A request gets its PSNs when it is posted, so a
//! retransmission repeats the same packet, except for a READ, which requests only what is still missing.

mod receive;
mod transmit;

use super::ReadyToSend;
use crate::queue::{Operation, SendRequest, UdDestination};
use rocev2::{Msn, Psn};
use std::collections::VecDeque;
use switch::Nanos;

/// A request in the send queue.
#[derive(Debug)]
pub(super) struct SendWqe {
    request: SendRequest,
    /// Its first PSN, and the number of PSNs that it takes
    first: Psn,
    packets: u32,
    /// Packets of a READ response that have arrived
    fetched: u32,
    /// Its send sequence number: the responder's MSN after the request is complete (IB 9.7.7.1)
    ssn: Msn,
}

impl SendWqe {
    fn last(&self) -> Psn {
        self.first.add(self.packets - 1)
    }

    /// Returns whether `psn` belongs to the request.
    fn contains(&self, psn: Psn) -> bool {
        psn.get().wrapping_sub(self.first.get()) & 0x00ff_ffff < self.packets
    }
}

/// The send side of a queue pair.
#[derive(Debug)]
pub(super) struct Requester {
    /// Requests that have not completed, oldest first.
    queue: VecDeque<SendWqe>,
    /// Number of requests that have left the queue; the front request has this index
    front_index: u64,
    /// PSN and SSN of the next request to be posted
    next_psn: Psn,
    next_ssn: Msn,
    /// Oldest unacknowledged PSN
    una: Psn,
    /// First PSN that was never sent
    top: Psn,
    /// Index of the request that is being sent, counted as `front_index`, and its next packet
    cursor: u64,
    packet: u32,
    /// READs and atomics in flight
    fetches_in_flight: u32,
    /// Packets since the last one with the AckReq bit
    since_ack_req: u32,
    /// Newest PSN for which an acknowledgement or response was requested since the cursor last went back
    ack_requested: Option<Psn>,
    /// Whether only the DCQCN rate holds the next packet back
    rate_limited: bool,
    /// Limit sequence number: messages up to it may be sent (LSN, IB 9.7.7.2); `None` is unlimited
    credit_limit: Option<Msn>,
    /// When the acknowledgement timeout expires
    deadline: Option<Nanos>,
    /// When to retry after an RNR NAK
    rnr_until: Option<Nanos>,
    retries_left: u8,
    rnr_retries_left: u8,
    /// PSN to which the cursor went back because a response was missing, while no progress has been made
    /// since
    retried_from: Option<Psn>,
    /// Attributes
    max_rd_atomic: u32,
    timeout: u8,
    retry_count: u8,
    rnr_retry: u8,
    flow_control: bool,
}

impl Default for Requester {
    fn default() -> Self {
        Self {
            queue: VecDeque::new(),
            front_index: 0,
            next_psn: Psn::ZERO,
            next_ssn: Msn::new(1),
            una: Psn::ZERO,
            top: Psn::ZERO,
            cursor: 0,
            packet: 0,
            fetches_in_flight: 0,
            since_ack_req: 0,
            ack_requested: None,
            rate_limited: false,
            credit_limit: None,
            deadline: None,
            rnr_until: None,
            retries_left: 0,
            rnr_retries_left: 0,
            retried_from: None,
            max_rd_atomic: 0,
            timeout: 0,
            retry_count: 0,
            rnr_retry: 0,
            flow_control: false,
        }
    }
}

impl Requester {
    /// Returns the number of requests that have not completed.
    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    /// Returns the destination of the request at the front.
    pub(super) fn datagram(&self) -> Option<UdDestination> {
        self.queue.front()?.request.to
    }

    /// Returns whether READs and atomics may be posted.
    pub(super) const fn may_fetch(&self) -> bool {
        self.max_rd_atomic > 0
    }

    /// Sets the attributes of RTS. If it `begins`, also the first PSN and the credits.
    pub(super) fn make_ready(&mut self, ready: &ReadyToSend, begins: bool) {
        if begins {
            (self.next_psn, self.una, self.top) = (ready.sq_psn, ready.sq_psn, ready.sq_psn);
            self.credit_limit = ready.flow_control.then_some(Msn::ZERO);
        }
        self.max_rd_atomic = ready.max_rd_atomic.into();
        (self.timeout, self.retry_count) = (ready.timeout.min(31), ready.retry_count);
        (self.rnr_retry, self.flow_control) = (ready.rnr_retry, ready.flow_control);
        (self.retries_left, self.rnr_retries_left) = (ready.retry_count, ready.rnr_retry);
    }

    /// Returns whether a request may be sent, if its window, credits and rate allow it.
    #[inline]
    pub(super) fn wants_to_send(&self) -> bool {
        self.rnr_until.is_none() && self.next_to_send().is_some()
    }

    /// Returns the deadlines of the acknowledgement and of the RNR retry.
    #[inline]
    pub(super) const fn deadlines(&self) -> [Option<Nanos>; 2] {
        [self.deadline, self.rnr_until]
    }

    /// Stops the timers.
    pub(super) const fn stop_timers(&mut self) {
        (self.deadline, self.rnr_until) = (None, None);
    }

    /// Starts the acknowledgement timer if it is stopped and there is a request, though nothing was sent.
    pub(super) fn expect_response(&mut self, now: Nanos) {
        if !self.queue.is_empty() {
            self.deadline = self.deadline.or(self.timeout().map(|span| now + span));
        }
    }

    /// Returns the request at the cursor.
    #[inline]
    fn current(&self) -> Option<&SendWqe> {
        self.queue.get((self.cursor - self.front_index) as usize)
    }

    /// Returns the PSN of the next packet to send, if there is one.
    #[inline]
    fn next_to_send(&self) -> Option<Psn> {
        self.current().map(|wqe| wqe.first.add(self.packet))
    }

    /// Returns whether any sent packet is unacknowledged.
    #[inline]
    fn is_waiting(&self) -> bool {
        self.una != self.top
    }

    /// Returns whether the responder owes a response: an acknowledgement that was requested, or data.
    fn is_response_due(&self) -> bool {
        self.ack_requested.is_some_and(|psn| psn.distance(self.una) >= 0)
    }

    /// Returns whether a request is partly sent or waits for its acknowledgement.
    pub(super) fn is_in_flight(&self) -> bool {
        self.is_waiting() || self.packet > 0
    }

    /// Appends a request that takes `packets` PSNs.
    pub(super) fn push(&mut self, request: SendRequest, packets: u32) {
        self.queue.push_back(SendWqe {
            request,
            first: self.next_psn,
            packets,
            fetched: 0,
            ssn: self.next_ssn,
        });
        self.next_psn = self.next_psn.add(packets);
        self.next_ssn = self.next_ssn.add(1);
    }

    /// Returns the acknowledgement timeout, or `None` if it is unlimited.
    fn timeout(&self) -> Option<Nanos> {
        (self.timeout > 0).then(|| Nanos(4096 << self.timeout.min(31)))
    }

    /// Restarts the acknowledgement timer, or stops it if nothing is in flight.
    fn restart_timer(&mut self, now: Nanos) {
        self.deadline = if self.is_waiting() { self.timeout().map(|span| now + span) } else { None };
    }

    /// Resets the retry counters and the timer after progress.
    fn refresh(&mut self, now: Nanos) {
        self.retries_left = self.retry_count;
        self.rnr_retries_left = self.rnr_retry;
        self.retried_from = None;
        self.restart_timer(now);
        // Packets that were acknowledged late are not retransmitted after all.
        if self.next_to_send().is_some_and(|next| next.precedes(self.una)) {
            self.go_back(self.una);
        }
    }

    /// Removes and returns the request at the front.
    pub(super) fn pop(&mut self) -> Option<SendWqe> {
        let wqe = self.queue.pop_front()?;
        self.front_index += 1;
        if self.cursor < self.front_index {
            (self.cursor, self.packet) = (self.front_index, 0);
        }
        if wqe.request.operation.fetches() {
            self.fetches_in_flight = self.fetches_in_flight.saturating_sub(1);
        }
        let after = wqe.last().add(1);
        self.una = after;
        self.top = self.top.later(after);
        Some(wqe)
    }

    /// Returns whether an acknowledgement of `psn` refers to something that was sent.
    fn was_sent(&self, psn: Psn) -> bool {
        let behind = self.top.distance(psn);
        behind > 0 && psn.distance(self.una) >= -1
    }

    /// Moves the cursor back to `psn`, which has been sent and not acknowledged.
    fn go_back(&mut self, psn: Psn) {
        let Some(at) = self.queue.iter().position(|wqe| wqe.contains(psn)) else { return };
        let wqe = &self.queue[at];
        // A READ is requested again from its first missing packet.
        self.packet = match wqe.request.operation {
            Operation::Read(_) => wqe.fetched,
            _ => psn.distance(wqe.first) as u32,
        };
        self.cursor = self.front_index + at as u64;
        self.fetches_in_flight =
            self.queue.iter().take(at).filter(|wqe| wqe.request.operation.fetches()).count() as u32;
        (self.since_ack_req, self.ack_requested) = (0, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::{Data, Remote};

    fn send(id: u64) -> SendRequest {
        SendRequest::new(id, Operation::Send, Data::None)
    }

    #[test]
    fn psns_of_a_message_may_wrap() {
        let mut req = Requester { next_psn: Psn::new(0xff_fffe), ..Requester::default() };
        (req.una, req.top) = (req.next_psn, req.next_psn);
        req.push(send(1), 4);
        req.push(send(2), 1);
        assert!(req.queue[0].contains(Psn::new(0xff_fffe)) && req.queue[0].contains(Psn::new(1)));
        assert!(!req.queue[0].contains(Psn::new(2)) && req.queue[1].contains(Psn::new(2)));
        req.top = Psn::new(3);
        assert!(req.was_sent(Psn::new(0)) && req.was_sent(Psn::new(0xff_fffd)));
        assert!(!req.was_sent(Psn::new(3)) && !req.was_sent(Psn::new(0xff_fffc)));
        req.go_back(Psn::new(2));
        assert_eq!((req.cursor, req.packet), (1, 0));
        req.go_back(Psn::new(1));
        assert_eq!((req.cursor, req.packet, req.next_to_send()), (0, 3, Some(Psn::new(1))));
        assert_eq!(req.pop().map(|wqe| wqe.request.id), Some(1));
        assert_eq!((req.una, req.cursor, req.packet), (Psn::new(2), 1, 0));
    }

    #[test]
    fn timeout_zero_means_unlimited() {
        let timeout = |timeout| Requester { timeout, ..Requester::default() }.timeout();
        assert_eq!(timeout(0), None);
        assert_eq!([timeout(1), timeout(31)], [Some(Nanos(8192)), Some(Nanos(4096 << 31))]);
    }

    #[test]
    fn a_response_is_due_until_the_packet_that_requested_it_is_acknowledged() {
        let mut req = Requester { una: Psn::new(4), ..Requester::default() };
        assert!(!req.is_response_due());
        req.ack_requested = Some(Psn::new(5));
        assert!(req.is_response_due());
        req.una = Psn::new(5);
        assert!(req.is_response_due());
        req.una = Psn::new(6);
        assert!(!req.is_response_due());
    }

    #[test]
    fn a_partly_sent_request_is_in_flight_though_all_sent_packets_are_acknowledged() {
        let mut req = Requester::default();
        req.push(send(1), 4);
        assert!(!req.is_in_flight());
        req.top = Psn::new(2);
        assert!(req.is_in_flight());
        (req.una, req.packet) = (Psn::new(2), 2);
        assert!(req.is_in_flight());
        req.packet = 0;
        assert!(!req.is_in_flight());
    }

    #[test]
    fn completion_of_the_previous_request_keeps_the_cursor_within_a_partly_sent_one() {
        let mut req = Requester::default();
        req.push(send(1), 1);
        req.push(send(2), 4);
        (req.cursor, req.packet, req.top) = (1, 2, Psn::new(3));
        req.pop();
        assert_eq!((req.una, req.next_to_send()), (Psn::new(1), Some(Psn::new(3))));
    }

    #[test]
    fn a_read_is_retried_from_its_first_missing_packet() {
        let mut req = Requester::default();
        req.push(SendRequest::new(1, Operation::Read(Remote { va: 0, rkey: 0 }), Data::None), 5);
        req.top = Psn::new(5);
        req.queue[0].fetched = 2;
        req.go_back(Psn::new(0));
        assert_eq!(req.next_to_send(), Some(Psn::new(2)));
    }
}
