//! The receive side of the requester: acknowledgements, NAKs, READ and atomic responses, and timeouts
//! (IB 9.7.5, 9.7.6).

use super::SendWqe;
use crate::config::Bug;
use crate::memory::Access;
use crate::qp::{QpContext, ReadyToSend};
use crate::queue::{Completion, CompletionOpcode, Data, Operation, Status};
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

impl QpContext<'_> {
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
        let complete = self.complete_acknowledged(acknowledged, now);
        self.update_credit_limit(aeth);
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
                let unlimited = self.qp.req.rnr_retry >= 7;
                if !unlimited && self.qp.req.rnr_retries_left == 0 {
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
                    NakCode::PSN_SEQUENCE_ERROR => self.retransmit_from(psn, now),
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
    fn update_credit_limit(&mut self, aeth: Aeth) {
        let Syndrome::Ack(credit) = aeth.kind() else { return };
        if !self.qp.req.flow_control {
            return;
        }
        self.qp.req.credit_limit = credit.messages().map(|messages| {
            let limit = Msn::add(aeth.msn(), messages.into());
            self.qp.req.credit_limit.map_or(limit, |before| before.later(limit))
        });
    }

    /// Completes the requests that `psn` acknowledges. Returns false if a response before `psn` is missing,
    /// which is then requested again.
    fn complete_acknowledged(&mut self, psn: Psn, now: Nanos) -> bool {
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
            if let Some(wqe) = self.qp.req.pop() {
                self.complete_send(wqe, Status::Success);
            }
        }
        if self.qp.req.una != before {
            self.qp.req.refresh(now);
        }
        if !complete && let Some(front) = self.qp.req.queue.front() {
            self.on_missing_response(front.first.add(front.fetched), now);
        }
        complete
    }

    /// Processes a packet of a READ response, or an atomic response.
    fn on_data(&mut self, packet: &Packet<'_>, psn: Psn, aeth: Option<&Aeth>, now: Nanos) {
        // A response acknowledges all requests before it.
        if !self.qp.req.was_sent(psn) || !self.complete_before(psn, now) {
            self.counters.stale_responses += 1;
            return;
        }
        let Some(front) = self.qp.req.queue.front() else { return };
        let (expected, operation) = (front.first.add(front.fetched), front.request.operation);
        match psn.distance(expected) {
            0 => {}
            1.. => return self.on_missing_response(expected, now),
            _ => {
                self.counters.stale_responses += 1;
                return;
            }
        }
        if let Some(aeth) = aeth {
            self.update_credit_limit(*aeth);
        }
        let is_atomic_response = packet.bth().opcode() == Opcode::RC_ATOMIC_ACKNOWLEDGE;
        match operation {
            Operation::Read(_) if !is_atomic_response => self.on_read_data(packet, now),
            Operation::CompareSwap { .. } | Operation::FetchAdd { .. } if is_atomic_response => {
                let original = packet.atomic_ack().map_or(0, |ack| ack.original.get());
                self.store_fetched(0, &original.to_le_bytes(), 1, now);
            }
            // The packet does not match the type of the request that has this PSN.
            _ => self.counters.stale_responses += 1,
        }
    }

    /// Completes the requests before the one that has `psn`. Returns false if a response to one of them is
    /// missing.
    fn complete_before(&mut self, psn: Psn, now: Nanos) -> bool {
        let at = self.qp.req.queue.iter().position(|wqe| wqe.contains(psn));
        match at {
            Some(0) => true,
            Some(_) => {
                let owner = at.and_then(|at| self.qp.req.queue.get(at)).map(|wqe| wqe.first);
                owner.is_some_and(|first| self.complete_acknowledged(first.sub(1), now))
            }
            None => false,
        }
    }

    fn on_read_data(&mut self, packet: &Packet<'_>, now: Nanos) {
        let mtu = self.qp.mtu.bytes();
        let Some(front) = self.qp.req.queue.front() else { return };
        let (packets, fetched, len) = (front.packets, front.fetched, front.request.data.len());
        let is_last = fetched + 1 == packets;
        let opcode_is_last =
            matches!(packet.bth().opcode(), Opcode::RC_READ_RESPONSE_LAST | Opcode::RC_READ_RESPONSE_ONLY);
        let at = fetched as usize * mtu;
        let wanted = if is_last { len - at } else { mtu };
        if is_last != opcode_is_last || packet.payload().len() != wanted {
            self.fail(Status::BadResponse);
            return;
        }
        self.store_fetched(at, packet.payload(), packets, now);
    }

    /// Stores fetched bytes at offset `at`, and completes the request when all of its packets have arrived.
    fn store_fetched(&mut self, at: usize, bytes: &[u8], packets: u32, now: Nanos) {
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
            if let Some(wqe) = self.qp.req.pop() {
                self.complete_send(wqe, Status::Success);
            }
        } else {
            self.qp.req.una = front.first.add(front.fetched);
        }
        self.qp.req.refresh(now);
    }

    /// Handles a lost response, which a later packet revealed: requests it again at once the first time, then
    /// on timeouts only.
    fn on_missing_response(&mut self, psn: Psn, now: Nanos) {
        if self.qp.req.retried_from == Some(psn) {
            return;
        }
        self.counters.lost_responses += 1;
        self.retransmit_from(psn, now);
        self.qp.req.retried_from = Some(psn);
    }

    /// Retransmits from `psn` on, if a retry is left.
    fn retransmit_from(&mut self, psn: Psn, now: Nanos) {
        if self
            .qp
            .req
            .queue
            .front()
            .is_none_or(|front| !self.qp.req.was_sent(psn) || psn.distance(front.first) < 0)
        {
            return;
        }
        if self.consume_retry() {
            self.qp.req.go_back(psn);
            self.qp.req.restart_timer(now);
        }
    }

    /// Consumes a retry, or fails the queue pair if there is none left.
    fn consume_retry(&mut self) -> bool {
        if self.qp.req.retries_left == 0 {
            self.counters.retries_exceeded += 1;
            self.fail(Status::RetryExceeded);
            return false;
        }
        if self.qp.req.retry_count != ReadyToSend::NO_LIMIT {
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
        let mut timed_out = self.qp.req.deadline.is_some_and(|at| at <= now);
        if timed_out && let Some(wake) = self.rate_release() {
            // The delay is local: the packet that requests an acknowledgement has not left yet.
            self.qp.req.deadline = self.qp.req.timeout().map(|span| wake.max(now) + span);
            timed_out = false;
        }
        if timed_out {
            self.counters.timeouts += 1;
            self.qp.req.deadline = None;
            let from = self.qp.req.una;
            self.qp.req.retried_from = None;
            if self.qp.req.is_waiting() {
                self.retransmit_from(from, now);
            } else {
                // Nothing could be sent, because the neighbour's address is not known.
                self.consume_retry();
            }
        }
        timed_out
    }

    /// Returns when the DCQCN rate lets the packet leave that will request an acknowledgement, if none was
    /// requested yet.
    fn rate_release(&self) -> Option<Nanos> {
        let req = &self.qp.req;
        if self.has_bug(Bug::PaceExcuses) {
            return self.qp.pacer.wake_at();
        }
        self.qp.pacer.wake_at().filter(|_| req.rate_limited && !req.is_response_due())
    }

    /// Completes the request at the front with an error, and moves the queue pair to the error state.
    pub(crate) fn fail(&mut self, status: Status) {
        if let Some(wqe) = self.qp.req.pop() {
            self.complete_send(wqe, status);
        }
        self.enter_error();
        self.report_error();
    }

    /// Generates the completion of a request, if one is wanted.
    pub(in crate::qp) fn complete_send(&mut self, wqe: SendWqe, status: Status) {
        let SendWqe { request, .. } = wqe;
        if status == Status::Success && !request.signaled {
            return;
        }
        let opcode = match request.operation {
            Operation::Send | Operation::SendImm(_) | Operation::SendInvalidate(_) => CompletionOpcode::Send,
            Operation::Write(_) | Operation::WriteImm(..) => CompletionOpcode::Write,
            Operation::Read(_) => CompletionOpcode::Read,
            Operation::CompareSwap { .. } => CompletionOpcode::CompareSwap,
            Operation::FetchAdd { .. } => CompletionOpcode::FetchAdd,
        };
        let fetched = request.operation.fetches() && status == Status::Success;
        let completion = Completion {
            id: request.id,
            qpn: self.qp.qpn,
            status,
            opcode,
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
