//! The receive side of the requester: acknowledgements, NAKs, READ and atomic responses, and timeouts
//! (IB 9.7.5, 9.7.6).

use crate::memory::Access;
use crate::nic::{Event, Parts};
use crate::queue::{Completed, Completion, Data, Operation, Status};
use crate::requester::Sending;
use rocev2::aeth::{Aeth, NakCode, Syndrome};
use rocev2::{Msn, Opcode, Packet, Psn};
use switch::Nanos;

/// Returns whether a syndrome is reserved for a reliable connection (IB tables 44 and 45). Such a packet
/// acknowledges nothing.
fn is_reserved(aeth: Aeth) -> bool {
    match aeth.kind() {
        Syndrome::Ack(_) | Syndrome::RnrNak(_) => false,
        Syndrome::Nak(code) => !matches!(
            code,
            NakCode::PSN_SEQUENCE_ERROR
                | NakCode::INVALID_REQUEST
                | NakCode::REMOTE_ACCESS_ERROR
                | NakCode::REMOTE_OPERATIONAL_ERROR
        ),
        Syndrome::Reserved(_) => true,
    }
}

impl Parts<'_> {
    /// Processes an acknowledgement, a NAK, or a response with data.
    pub(crate) fn on_response(&mut self, packet: &Packet<'_>, now: Nanos) {
        let psn = packet.bth().psn();
        if !self.qp.state.sends() {
            self.counters.stale_responses += 1;
            return;
        }
        if packet.aeth().is_some_and(|aeth| is_reserved(*aeth)) {
            self.counters.reserved_syndromes += 1;
            return;
        }
        match (packet.bth().opcode(), packet.aeth()) {
            (Opcode::RC_ACKNOWLEDGE, Some(aeth)) => self.on_acknowledge(psn, *aeth, now),
            (_, aeth) => self.on_data(packet, psn, aeth, now),
        }
    }

    fn on_acknowledge(&mut self, psn: Psn, aeth: Aeth, now: Nanos) {
        // A NAK carries the expected PSN, and acknowledges all PSNs before it.
        let (acknowledged, known) = match aeth.kind() {
            Syndrome::Nak(_) | Syndrome::RnrNak(_) => (psn.sub(1), self.qp.req.top.distance(psn) > 0),
            _ => (psn, true),
        };
        if !known || !self.qp.req.was_sent(acknowledged) {
            self.counters.stale_responses += 1;
            return;
        }
        let complete = self.acknowledge(acknowledged, now);
        self.heed_credits(aeth);
        if !complete {
            return;
        }
        match aeth.kind() {
            // Reserved syndromes were dropped above.
            Syndrome::Ack(_) | Syndrome::Reserved(_) => {}
            Syndrome::RnrNak(timer) => {
                self.counters.naks_received += 1;
                if psn != self.qp.req.una {
                    return;
                }
                let endless = self.qp.req.rnr_retry >= 7;
                if !endless && self.qp.req.rnr_retries_left == 0 {
                    self.fail(Status::RnrRetryExceeded);
                    return;
                }
                self.qp.req.rnr_retries_left = self.qp.req.rnr_retries_left.saturating_sub(1);
                self.qp.req.go_back(psn);
                self.qp.req.rnr_until = Some(now + Nanos::from_micros(timer.microseconds().into()));
                self.qp.req.deadline = None;
            }
            Syndrome::Nak(code) => {
                self.counters.naks_received += 1;
                match code {
                    NakCode::PSN_SEQUENCE_ERROR => self.try_again(psn, now),
                    NakCode::INVALID_REQUEST => self.fail(Status::RemoteInvalidRequest),
                    NakCode::REMOTE_ACCESS_ERROR => self.fail(Status::RemoteAccess),
                    NakCode::REMOTE_OPERATIONAL_ERROR => self.fail(Status::RemoteOperation),
                    _ => self.counters.stale_responses += 1,
                }
            }
        }
    }

    /// Updates the credit limit. Credits count from the MSN of the same acknowledgement (IB 9.7.7.2). An
    /// older acknowledgement does not lower the limit.
    fn heed_credits(&mut self, aeth: Aeth) {
        let Syndrome::Ack(credit) = aeth.kind() else { return };
        if !self.qp.req.flow_control {
            return;
        }
        self.qp.req.limit = credit.messages().map(|messages| {
            let limit = Msn::add(aeth.msn(), messages.into());
            self.qp.req.limit.map_or(limit, |before| before.later(limit))
        });
    }

    /// Completes the requests that `psn` acknowledges. Returns false if a response before `psn` is missing,
    /// which is then requested again.
    fn acknowledge(&mut self, psn: Psn, now: Nanos) -> bool {
        let before = self.qp.req.una;
        let mut complete = true;
        while let Some(front) = self.qp.req.queue.front() {
            // `psn` covers nothing of the front request.
            if psn.distance(front.first) < 0 {
                break;
            }
            if front.request.operation.fetches() {
                // READ packets that have arrived need no acknowledgement: a NAK within the READ's PSNs refers
                // to what follows them.
                complete = psn.distance(front.first.add(front.fetched)) < 0;
                break;
            }
            if psn.distance(front.last()) < 0 {
                self.qp.req.una = self.qp.req.una.later(psn.add(1));
                break;
            }
            if let Some(sending) = self.qp.req.pop() {
                self.complete_send(sending, Status::Success);
            }
        }
        if self.qp.req.una != before {
            self.qp.req.refresh(now);
        }
        if !complete && let Some(front) = self.qp.req.queue.front() {
            self.missing(front.first.add(front.fetched), now);
        }
        complete
    }

    /// Processes a packet of a READ response, or an atomic response.
    fn on_data(&mut self, packet: &Packet<'_>, psn: Psn, aeth: Option<&Aeth>, now: Nanos) {
        // A response acknowledges all requests before it.
        if !self.qp.req.was_sent(psn) || !self.acknowledge_before(psn, now) {
            self.counters.stale_responses += 1;
            return;
        }
        let Some(front) = self.qp.req.queue.front() else { return };
        let (expected, operation) = (front.first.add(front.fetched), front.request.operation);
        match psn.distance(expected) {
            0 => {}
            1.. => return self.missing(expected, now),
            _ => {
                self.counters.stale_responses += 1;
                return;
            }
        }
        if let Some(aeth) = aeth {
            self.heed_credits(*aeth);
        }
        let is_atomic_response = packet.bth().opcode() == Opcode::RC_ATOMIC_ACKNOWLEDGE;
        match operation {
            Operation::Read(_) if !is_atomic_response => self.on_read_data(packet, now),
            Operation::CompareSwap { .. } | Operation::FetchAdd { .. } if is_atomic_response => {
                let original = packet.atomic_ack().map_or(0, |ack| ack.original.get());
                self.fetched(0, &original.to_le_bytes(), 1, now);
            }
            // The packet does not match the type of the request that has this PSN.
            _ => self.counters.stale_responses += 1,
        }
    }

    /// Completes the requests before the one that has `psn`. Returns false if a response to one of them is
    /// missing.
    fn acknowledge_before(&mut self, psn: Psn, now: Nanos) -> bool {
        let at = self.qp.req.queue.iter().position(|sending| sending.has(psn));
        match at {
            Some(0) => true,
            Some(_) => {
                let owner = at.and_then(|at| self.qp.req.queue.get(at)).map(|sending| sending.first);
                owner.is_some_and(|first| self.acknowledge(first.sub(1), now))
            }
            None => false,
        }
    }

    fn on_read_data(&mut self, packet: &Packet<'_>, now: Nanos) {
        let mtu = self.qp.mtu.bytes();
        let Some(front) = self.qp.req.queue.front() else { return };
        let (packets, fetched, len) = (front.packets, front.fetched, front.request.data.len());
        let is_last = fetched + 1 == packets;
        let said_last =
            matches!(packet.bth().opcode(), Opcode::RC_READ_RESPONSE_LAST | Opcode::RC_READ_RESPONSE_ONLY);
        let at = fetched as usize * mtu;
        let wanted = if is_last { len - at } else { mtu };
        if is_last != said_last || packet.payload().len() != wanted {
            self.fail(Status::BadResponse);
            return;
        }
        self.fetched(at, packet.payload(), packets, now);
    }

    /// Stores fetched bytes at offset `at`, and completes the request when all of its packets have arrived.
    fn fetched(&mut self, at: usize, bytes: &[u8], packets: u32, now: Nanos) {
        let Some(front) = self.qp.req.queue.front() else { return };
        let span = match &front.request.data {
            Data::Memory(sge) => match self.local(sge, Access::LOCAL_WRITE) {
                Some(span) => Some(span),
                None => return self.fail(Status::LocalProtection),
            },
            Data::None | Data::Inline(_) => None,
        };
        if let Some(span) = span {
            self.memory.write(span.skip(at), bytes);
        }
        let Some(front) = self.qp.req.queue.front_mut() else { return };
        front.fetched += 1;
        if front.fetched == packets {
            if let Some(sending) = self.qp.req.pop() {
                self.complete_send(sending, Status::Success);
            }
        } else {
            self.qp.req.una = front.first.add(front.fetched);
        }
        self.qp.req.refresh(now);
    }

    /// Handles a lost response, which a later packet revealed: requests it again at once the first time, then
    /// on timeouts only.
    fn missing(&mut self, psn: Psn, now: Nanos) {
        if self.qp.req.went_back_to == Some(psn) {
            return;
        }
        self.counters.lost_responses += 1;
        self.try_again(psn, now);
        self.qp.req.went_back_to = Some(psn);
    }

    /// Retransmits from `psn` on, if a retry is left.
    fn try_again(&mut self, psn: Psn, now: Nanos) {
        if self
            .qp
            .req
            .queue
            .front()
            .is_none_or(|front| !self.qp.req.was_sent(psn) || psn.distance(front.first) < 0)
        {
            return;
        }
        if self.spend_retry() {
            self.qp.req.go_back(psn);
            self.qp.req.restart_timer(now);
        }
    }

    /// Consumes a retry, or fails the queue pair if there is none left.
    fn spend_retry(&mut self) -> bool {
        if self.qp.req.retries_left == 0 {
            self.counters.retries_exceeded += 1;
            self.fail(Status::RetryExceeded);
            return false;
        }
        if self.qp.req.retry_count != crate::qp::ReadyToSend::NO_LIMIT {
            self.qp.req.retries_left -= 1;
        }
        true
    }

    /// Handles the requester's deadlines that have passed. Returns true if an acknowledgement timed out.
    pub(crate) fn on_requester_timer(&mut self, now: Nanos) -> bool {
        if self.qp.req.rnr_until.is_some_and(|at| at <= now) {
            self.qp.req.rnr_until = None;
            self.qp.req.restart_timer(now);
        }
        let mut silent = self.qp.req.deadline.is_some_and(|at| at <= now);
        if silent && let Some(wake) = self.excuse() {
            // The delay is local: the packet that requests an acknowledgement has not left yet.
            self.qp.req.deadline = self.qp.req.timeout().map(|span| wake.max(now) + span);
            silent = false;
        }
        if silent {
            self.counters.timeouts += 1;
            self.qp.req.deadline = None;
            let from = self.qp.req.una;
            self.qp.req.went_back_to = None;
            if self.qp.req.is_waiting() {
                self.try_again(from, now);
            } else {
                // Nothing could be sent, because the neighbour's address is not known.
                self.spend_retry();
            }
        }
        silent
    }

    /// Returns when the DCQCN rate lets the packet leave that will request an acknowledgement, if none was
    /// requested yet.
    fn excuse(&self) -> Option<Nanos> {
        let req = &self.qp.req;
        #[cfg(debug_assertions)]
        if self.has_bug(crate::Bug::PaceExcuses) {
            return req.pace.wake_at();
        }
        req.pace.wake_at().filter(|_| req.paced_out && !req.is_answer_due())
    }

    /// Completes the request at the front with an error, and moves the queue pair to the error state.
    pub(crate) fn fail(&mut self, status: Status) {
        if let Some(sending) = self.qp.req.pop() {
            self.complete_send(sending, status);
        }
        self.enter_error();
        let qpn = self.qp.qpn;
        self.events.push_back(Event::QpError(qpn));
    }

    /// Generates the completion of a request, if one is wanted.
    pub(crate) fn complete_send(&mut self, sending: Sending, status: Status) {
        let Sending { request, .. } = sending;
        if status == Status::Success && !request.signaled {
            return;
        }
        let of = match request.operation {
            Operation::Send | Operation::SendImm(_) | Operation::SendInvalidate(_) => Completed::Send,
            Operation::Write(_) | Operation::WriteImm(..) => Completed::Write,
            Operation::Read(_) => Completed::Read,
            Operation::CompareSwap { .. } => Completed::CompareSwap,
            Operation::FetchAdd { .. } => Completed::FetchAdd,
        };
        let fetched = request.operation.fetches() && status == Status::Success;
        let completion = Completion {
            id: request.id,
            qpn: self.qp.qpn,
            status,
            of,
            len: if fetched { request.data.len() as u32 } else { 0 },
            immediate: None,
            invalidated: None,
            from: None,
            solicited: false,
        };
        let cq = self.qp.init.send_cq;
        self.complete(cq, completion);
    }
}
