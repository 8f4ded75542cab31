//! The transmit path: control frames first, then one packet of each queue pair in round-robin order.
//! Responses and requests of a queue pair alternate.

use crate::memory::Access;
use crate::nic::{Config, Event, QpContext, Rnic};
use crate::qp::{Qp, QpError, State, Transport};
use crate::queue::{Data, Operation, SendRequest, Status};
use crate::responder_rx::packets_of;
use crate::wire::{Route, src_port};
use core::net::IpAddr;
use rocev2::atomic::AtomicEth;
use rocev2::deth::Deth;
use rocev2::immediate::{Ieth, ImmDt};
use rocev2::reth::Reth;
use rocev2::{Bth, Opcode, Psn};
use switch::Nanos;
use zerocopy::IntoBytes;

/// Limit of a message in packets: a quarter of the PSN space, so that old and new PSNs are always
/// distinguishable.
const MAX_PACKETS: u32 = 1 << 22;
/// Limit of a message in bytes (IB 9.4.1)
pub(crate) const MAX_MESSAGE: usize = 1 << 31;

/// Base of an operation's opcodes: First, Middle, Last, Last with immediate, Only, Only with immediate
const SENDS: u8 = 0x00;
const WRITES: u8 = 0x06;
/// The low two bits of the traffic class: not ECN-capable (RFC 3168)
const NOT_ECT: u8 = 0;
const UC_SERVICE: u8 = 0x20;

impl Qp {
    /// Validates and queues a request.
    pub(crate) fn post_send(&mut self, request: SendRequest) -> Result<(), QpError> {
        if !self.state.sends() && self.state != State::Error {
            return Err(QpError::State(self.state));
        }
        if self.req.queue.len() >= self.init.max_send {
            return Err(QpError::Full);
        }
        let (len, operation) = (request.data.len(), request.operation);
        let connected = match self.init.transport {
            Transport::Rc => true,
            Transport::Uc => !operation.fetches() && !matches!(operation, Operation::SendInvalidate(_)),
            Transport::Ud => matches!(operation, Operation::Send | Operation::SendImm(_)),
        };
        if !connected {
            return Err(QpError::Transport);
        }
        if (self.init.transport == Transport::Ud) != request.to.is_some() {
            return Err(QpError::Destination);
        }
        if operation.fetches() && self.req.max_rd_atomic == 0 {
            return Err(QpError::NoFetches);
        }
        let mtu = self.mtu.bytes();
        let inline_fetch = operation.fetches() && matches!(request.data, Data::Inline(_));
        let too_long = match self.init.transport {
            Transport::Ud => len > rocev2::MAX_PAYLOAD,
            Transport::Rc | Transport::Uc => len > MAX_MESSAGE || packets_of(len, mtu) > MAX_PACKETS,
        };
        if inline_fetch || too_long || (operation.is_atomic() && len != 8) {
            return Err(QpError::Length);
        }
        let packets = if self.init.transport == Transport::Ud { 1 } else { packets_of(len, mtu) };
        self.req.push(request, packets);
        Ok(())
    }

    /// Accounts for a packet with data that left.
    pub(crate) fn on_data_sent(&mut self, bytes: usize, now: Nanos, config: &Config) {
        if let Some(dcqcn) = &config.congestion {
            self.req.pacer.on_sent(bytes, now, dcqcn);
        }
    }

    /// Returns the destination of the next packet.
    fn destination(&self) -> Option<IpAddr> {
        let datagram = self.req.queue.front().and_then(|front| front.request.to);
        datagram.map(|to| to.path).or(self.path).map(|path| path.dst)
    }

    /// Returns whether it may have something to send. Windows, credits and rates are checked when its turn
    /// comes.
    fn wants_to_send(&self) -> bool {
        let responses = !self.resp.responses.is_empty() || self.resp.cnp_due;
        let requests =
            self.state.sends() && self.req.rnr_until.is_none() && self.req.next_to_send().is_some();
        responses || requests
    }
}

impl Rnic {
    /// Writes the next frame to send into `frame`. Returns false if there is none now: then call again after
    /// a frame arrived, a request was posted, or the time of [`next_timer`](Self::next_timer) has come.
    pub fn poll_transmit(&mut self, now: Nanos, frame: &mut Vec<u8>) -> bool {
        loop {
            let sent = self.endpoint.poll_transmit(now, frame)
                || self.poll_queue_pairs(now, frame)
                // The round may have queued a request for a neighbour's address.
                || self.endpoint.poll_transmit(now, frame);
            // Queue pairs that just failed may have a final packet to send.
            if !self.handle_overrun() || sent {
                self.counters.sent += u64::from(sent);
                return sent;
            }
        }
    }

    fn poll_queue_pairs(&mut self, now: Nanos, frame: &mut Vec<u8>) -> bool {
        while let Some(slot) = self.next_scheduled() {
            if self.transmit_qp(slot, now, frame) {
                self.update_schedule(slot);
                return true;
            }
            self.update_timer(slot);
        }
        false
    }

    /// Returns whether [`poll_transmit`](Self::poll_transmit) may have a frame.
    pub fn wants_to_transmit(&self) -> bool {
        !self.ready_slots.is_empty() || self.endpoint.wants_to_transmit()
    }

    /// Returns the time at which [`on_timer`](Self::on_timer) is due.
    pub fn next_timer(&self) -> Option<Nanos> {
        [self.timers.next(), self.endpoint.next_timer()].into_iter().flatten().min()
    }

    /// Runs the timers that are due.
    pub fn on_timer(&mut self, now: Nanos) {
        while let Some(slot) = self.timers.pop(now) {
            let Some(mut ctx) = self.context(slot) else { continue };
            ctx.qp.unresolved = false;
            let timed_out = ctx.on_requester_timer(now);
            let unresponsive = ctx.qp.path.filter(|_| timed_out).map(|path| path.dst);
            ctx.qp.req.pacer.on_wake(now);
            if ctx.qp.resp.ack_deadline.is_some_and(|at| at <= now) {
                let newest = ctx.qp.resp.epsn.sub(1);
                ctx.qp.resp.owe_ack(newest);
            }
            if let Some(ip) = unresponsive {
                self.endpoint.neighbours.verify(ip, now);
            }
            self.update_schedule(slot);
        }
        let given_up = self.endpoint.run_timers(now);
        if !given_up.is_empty() {
            self.fail_unresolved(&given_up);
            self.wake_unresolved();
        }
        self.process_cm_events(now);
        self.handle_overrun();
    }

    /// Updates the schedule of a queue pair after a change: the round-robin queue if it may send, and its
    /// timer.
    pub(crate) fn update_schedule(&mut self, slot: u32) {
        let Some(qp) = self.qp_at(slot) else { return };
        let wants = qp.wants_to_send();
        if qp.state == State::Sqd && !qp.event_reported && !qp.req.is_in_flight() {
            qp.event_reported = true;
            let qpn = qp.qpn;
            self.events.push_back(Event::Drained(qpn));
        }
        if wants {
            self.schedule(slot);
        }
        self.update_timer(slot);
    }

    fn update_timer(&mut self, slot: u32) {
        if let Some(deadline) = self.qp_at(slot).and_then(|qp| qp.deadline()) {
            self.timers.arm(slot, deadline);
        }
    }

    /// Retries queue pairs that waited for a neighbour, after one was resolved.
    pub(crate) fn wake_unresolved(&mut self) {
        self.endpoint.retry_waiting();
        for slot in core::mem::take(&mut self.endpoint.neighbours.waiting) {
            if let Some(qp) = self.qp_at(slot) {
                qp.unresolved = false;
            }
            self.update_schedule(slot);
        }
    }

    /// Fails requests to neighbours whose resolution was given up, if they would otherwise wait forever.
    fn fail_unresolved(&mut self, given_up: &[IpAddr]) {
        for slot in self.endpoint.neighbours.waiting.clone() {
            let Some(dst) = self.qp_at(slot).filter(|qp| qp.unresolved).and_then(|qp| qp.destination())
            else {
                continue;
            };
            if given_up.contains(&self.config.interface.next_hop(dst))
                && let Some(mut ctx) = self.context(slot)
            {
                ctx.qp.unresolved = false;
                ctx.unreachable();
            }
        }
    }

    fn transmit_qp(&mut self, slot: u32, now: Nanos, frame: &mut Vec<u8>) -> bool {
        let Some(qp) = self.qp_at(slot) else { return false };
        if qp.init.transport == Transport::Ud {
            return self.transmit_datagram(slot, now, frame);
        }
        let (Some(path), dest, qpn) = (qp.path, qp.peer_qpn, qp.qpn) else { return false };
        // A change of the neighbour table makes every route stale.
        if qp.route.is_none_or(|(_, version)| version != self.endpoint.neighbours.version()) {
            let Some(route) = self.route(&path, src_port(qpn, dest), now) else {
                self.endpoint.neighbours.waiting.insert(slot);
                if let Some(qp) = self.qp_at(slot) {
                    qp.unresolved = true;
                    // A host that does not resolve does not acknowledge, either.
                    if qp.init.transport == Transport::Rc && !qp.req.queue.is_empty() {
                        qp.req.deadline = qp.req.deadline.or(qp.req.timeout().map(|span| now + span));
                    }
                }
                return false;
            };
            let version = self.endpoint.neighbours.version();
            if let Some(qp) = self.qp_at(slot) {
                qp.route = Some((route, version));
            }
        }
        self.context(slot).is_some_and(|mut ctx| ctx.transmit(now, frame))
    }

    /// Returns the route to a host if its next hop's MAC address is known; otherwise sends a request for it.
    pub(crate) fn route(&mut self, path: &crate::Path, src_port: u16, now: Nanos) -> Option<Route> {
        // ECT(0) unless the path sets the ECN bits: DCQCN cannot slow down a sender whose packets are not
        // ECN-capable.
        let capable = self.config.congestion.is_some() && path.traffic_class % 4 == NOT_ECT;
        let traffic_class = path.traffic_class | if capable { 2 } else { 0 };
        self.endpoint.route(&crate::Path { traffic_class, ..*path }, src_port, now)
    }

    fn transmit_datagram(&mut self, slot: u32, now: Nanos, frame: &mut Vec<u8>) -> bool {
        let Some(qp) = self.qp_at(slot) else { return false };
        // In SQD no new datagram starts.
        if qp.state != State::Rts {
            return false;
        }
        let qpn = qp.qpn;
        let Some(to) = qp.req.queue.front().and_then(|front| front.request.to) else { return false };
        let Some(mut route) = self.route(&to.path, src_port(qpn, to.qpn), now) else {
            self.endpoint.neighbours.waiting.insert(slot);
            if let Some(qp) = self.qp_at(slot) {
                qp.unresolved = true;
            }
            return false;
        };
        self.context(slot).is_some_and(|mut ctx| ctx.transmit_datagram(&mut route, &to, frame))
    }
}

impl QpContext<'_> {
    /// Handles a next packet whose destination does not resolve.
    fn unreachable(&mut self) {
        match self.qp.init.transport {
            // Its retries run out, as with a host that does not acknowledge.
            Transport::Rc => {}
            Transport::Uc => {
                self.qp.resp.cnp_due = false;
                if !self.qp.req.queue.is_empty() {
                    self.fail(Status::RetryExceeded);
                }
            }
            // A datagram is sent, not delivered: one to an unresolved host is lost like one that the network
            // dropped. An error would fail the queue pair, and with it the datagrams to other hosts.
            Transport::Ud => {
                if let Some(wqe) = self.qp.req.pop() {
                    self.counters.unreliable_dropped += 1;
                    self.complete_send(wqe, Status::Success);
                }
            }
        }
    }

    /// Writes the next packet of a connected queue pair. Responses and requests alternate: the remote side
    /// can keep READs outstanding indefinitely, and requests must not wait for the last of them.
    fn transmit(&mut self, now: Nanos, frame: &mut Vec<u8>) -> bool {
        if core::mem::take(&mut self.qp.resp.cnp_due) {
            self.counters.cnps_sent += 1;
            let mut bth = Bth::new(Opcode::CNP, self.qp.peer_qpn, Psn::ZERO);
            bth.set_becn(true);
            self.emit(frame, bth, &[&[0; 16]], &[]);
            return true;
        }
        if self.qp.request_next {
            // A request that has to wait keeps its turn.
            let sent = self.transmit_request(now, frame);
            self.qp.request_next = !sent;
            return sent || self.transmit_response(now, frame);
        }
        let sent = self.transmit_response(now, frame);
        self.qp.request_next = sent && self.takes_turns();
        sent || self.transmit_request(now, frame)
    }

    /// Returns whether a request has its turn after a response.
    #[allow(clippy::unused_self, reason = "only a planted bug reads it")]
    fn takes_turns(&self) -> bool {
        #[cfg(debug_assertions)]
        if self.has_bug(crate::Bug::ResponsesFirst) {
            return false;
        }
        true
    }

    pub(crate) fn emit(&mut self, frame: &mut Vec<u8>, bth: Bth, extended: &[&[u8]], payload: &[u8]) {
        if let Some((route, _)) = &mut self.qp.route {
            route.emit(frame, bth, extended, payload);
        }
    }

    /// Returns whether the next request packet, which has PSN `psn`, has to wait.
    fn must_wait(&mut self, psn: Psn, now: Nanos) -> bool {
        let req = &self.qp.req;
        let Some(wqe) = req.current() else { return true };
        let operation = wqe.request.operation;
        let begins = req.packet == 0 || operation.is_read();
        // In SQD, started messages continue and no message starts.
        if self.qp.state == State::Sqd && begins && psn.distance(req.top) >= 0 {
            return true;
        }
        if self.qp.init.transport == Transport::Uc {
            return !self.qp.req.pacer.may_send(now);
        }
        if psn.distance(req.una) >= self.config.window.clamp(1, MAX_PACKETS) as i32 {
            return true;
        }
        let waits_for_fetches = (operation.fetches() && req.fetches_in_flight >= req.max_rd_atomic)
            || (wqe.request.fence && req.fetches_in_flight > 0);
        if begins && waits_for_fetches {
            return true;
        }
        if self.lacks_credit() && psn != req.una {
            return true;
        }
        self.qp.req.rate_limited = !self.qp.req.pacer.may_send(now);
        self.qp.req.rate_limited
    }

    /// Returns whether the message at the cursor has no credit. One packet of it at a time may leave to probe
    /// for credits (IB 9.7.7.2.5): the acknowledgement that granted credits may have been lost.
    fn lacks_credit(&self) -> bool {
        let req = &self.qp.req;
        req.flow_control
            && req.current().is_some_and(|wqe| {
                wqe.request.operation.consumes_receive()
                    && req.credit_limit.is_some_and(|limit| wqe.ssn.distance(limit) > 0)
            })
    }

    fn transmit_request(&mut self, now: Nanos, frame: &mut Vec<u8>) -> bool {
        self.qp.req.rate_limited = false;
        if !self.qp.state.sends() || self.qp.req.rnr_until.is_some() {
            return false;
        }
        let Some(psn) = self.qp.req.next_to_send() else { return false };
        if self.must_wait(psn, now) {
            return false;
        }
        let probes = self.lacks_credit();
        let mtu = self.qp.mtu.bytes();
        let req = &self.qp.req;
        let Some(wqe) = req.current() else { return false };
        let (packet, packets) = (req.packet, wqe.packets);
        let (operation, solicited, len) =
            (wqe.request.operation, wqe.request.solicited, wqe.request.data.len());
        let at = packet as usize * mtu;
        let is_last = packet + 1 == packets || operation.is_read();
        let payload_len = if operation.fetches() { 0 } else { (len - at).min(mtu) };

        // A request fails here only when all requests before it are complete.
        let source = match &wqe.request.data {
            Data::Memory(sge) => {
                let access = if operation.fetches() { Access::LOCAL_WRITE } else { Access::LOCAL_READ };
                let Some(span) = self.local(sge, access) else {
                    if psn != self.qp.req.una {
                        return false;
                    }
                    self.fail(Status::LocalProtection);
                    // A held-back acknowledgement may be the queue pair's final packet.
                    return self.transmit_response(now, frame);
                };
                Some(span)
            }
            Data::None | Data::Inline(_) => None,
        };
        let req = &self.qp.req;
        let Some(wqe) = req.current() else { return false };
        let payload: &[u8] = match (&wqe.request.data, source) {
            (Data::Memory(_), Some(span)) if payload_len > 0 => self.memory.bytes(span.skip(at), payload_len),
            (Data::Inline(bytes), _) => &bytes[at..at + payload_len],
            _ => &[],
        };

        let is_rc = self.qp.init.transport == Transport::Rc;
        let opcode = opcode_of(operation, packet == 0, is_last, is_rc);
        let mut bth = Bth::new(opcode, self.qp.peer_qpn, psn);
        bth.set_solicited(solicited && is_last && operation.consumes_receive());
        let ack_interval = (self.config.window / 4).clamp(1, 64);
        let ack_req = is_rc && (is_last || probes || req.since_ack_req + 1 >= ack_interval);
        bth.set_ack_req(ack_req);

        let (mut reth, mut atomic) = (Reth::default(), AtomicEth::default());
        let (imm, ieth);
        let mut extended: [&[u8]; 2] = [&[]; 2];
        match operation {
            Operation::Write(remote) | Operation::WriteImm(remote, _) if packet == 0 => {
                reth = Reth { va: remote.va.into(), rkey: remote.rkey.into(), len: (len as u32).into() };
            }
            Operation::Read(remote) => {
                // Packets that have arrived are not requested again.
                let va = remote.va.wrapping_add(at as u64);
                reth = Reth { va: va.into(), rkey: remote.rkey.into(), len: ((len - at) as u32).into() };
            }
            Operation::CompareSwap { at, compare, swap } => {
                atomic = AtomicEth {
                    va: at.va.into(),
                    rkey: at.rkey.into(),
                    swap_or_add: swap.into(),
                    compare: compare.into(),
                };
            }
            Operation::FetchAdd { at, add } => {
                atomic = AtomicEth {
                    va: at.va.into(),
                    rkey: at.rkey.into(),
                    swap_or_add: add.into(),
                    compare: 0.into(),
                };
            }
            _ => {}
        }
        let headers = opcode.headers();
        if headers.contains(rocev2::opcode::Headers::RETH) {
            extended[0] = reth.as_bytes();
        }
        if headers.contains(rocev2::opcode::Headers::ATOMIC) {
            extended[0] = atomic.as_bytes();
        }
        match operation {
            Operation::SendImm(data) | Operation::WriteImm(_, data) if is_last => {
                imm = ImmDt { data: data.into() };
                extended[1] = imm.as_bytes();
            }
            Operation::SendInvalidate(rkey) if is_last => {
                ieth = Ieth { rkey: rkey.into() };
                extended[1] = ieth.as_bytes();
            }
            _ => {}
        }
        let Some((route, _)) = &mut self.qp.route else { return false };
        route.emit(frame, bth, &extended, payload);
        self.on_request_sent(psn, packets, ack_req || operation.fetches(), frame.len(), now);
        true
    }

    /// Accounts for a request packet that was sent.
    fn on_request_sent(&mut self, psn: Psn, packets: u32, ack_req: bool, bytes: usize, now: Nanos) {
        self.qp.on_data_sent(bytes, now, self.config);
        let is_uc = self.qp.init.transport == Transport::Uc;
        let req = &mut self.qp.req;
        let Some(operation) = req.current().map(|wqe| wqe.request.operation) else { return };
        let psn_count = if operation.is_read() { packets - req.packet } else { 1 };
        if operation.fetches() {
            req.fetches_in_flight += 1;
        }
        if psn.precedes(req.top) {
            self.counters.retransmitted += 1;
        }
        req.top = req.top.later(psn.add(psn_count));
        req.since_ack_req = if ack_req { 0 } else { req.since_ack_req + 1 };
        req.packet += psn_count;
        if req.packet >= packets {
            (req.cursor, req.packet) = (req.cursor + 1, 0);
        }
        if is_uc {
            // UC requests are not acknowledged.
            req.una = req.top;
            if req.packet == 0
                && let Some(wqe) = req.pop()
            {
                self.complete_send(wqe, Status::Success);
            }
        } else {
            // The timeout counts from the first packet that requests an acknowledgement.
            if req.deadline.is_none() || (ack_req && !req.is_response_due()) {
                req.restart_timer(now);
            }
            if ack_req {
                req.ack_requested = Some(psn.add(psn_count - 1));
            }
        }
    }

    fn transmit_datagram(
        &mut self,
        route: &mut Route,
        to: &crate::queue::Datagram,
        frame: &mut Vec<u8>,
    ) -> bool {
        let Some(wqe) = self.qp.req.pop() else { return false };
        let request = &wqe.request;
        let payload: &[u8] = match &request.data {
            Data::None => &[],
            Data::Inline(bytes) => bytes,
            Data::Memory(sge) => {
                if let Some(span) = self.local(sge, Access::LOCAL_READ) {
                    self.memory.bytes(span, sge.len as usize)
                } else {
                    self.complete_send(wqe, Status::LocalProtection);
                    self.enter_error();
                    let qpn = self.qp.qpn;
                    self.events.push_back(Event::QpError(qpn));
                    return false;
                }
            }
        };
        let (opcode, imm) = match request.operation {
            Operation::SendImm(data) => (Opcode::UD_SEND_ONLY_IMM, Some(ImmDt { data: data.into() })),
            _ => (Opcode::UD_SEND_ONLY, None),
        };
        let mut bth = Bth::new(opcode, to.qpn, wqe.first);
        bth.set_solicited(request.solicited);
        let deth = Deth::new(to.qkey, self.qp.qpn);
        let imm = imm.as_ref().map_or(&[][..], IntoBytes::as_bytes);
        route.emit(frame, bth, &[deth.as_bytes(), imm], payload);
        self.complete_send(wqe, Status::Success);
        true
    }
}

/// Returns the opcode of a request packet.
fn opcode_of(operation: Operation, is_first: bool, is_last: bool, is_rc: bool) -> Opcode {
    let position = match (is_first, is_last) {
        (true, false) => 0,
        (false, false) => 1,
        (false, true) => 2,
        (true, true) => 4,
    };
    let with_immediate = u8::from(is_last);
    let service = if is_rc { 0 } else { UC_SERVICE };
    match operation {
        Operation::Send => Opcode(service + SENDS + position),
        Operation::SendImm(_) => Opcode(service + SENDS + position + with_immediate),
        Operation::SendInvalidate(_) if is_first && is_last => Opcode::RC_SEND_ONLY_INVALIDATE,
        Operation::SendInvalidate(_) if is_last => Opcode::RC_SEND_LAST_INVALIDATE,
        Operation::SendInvalidate(_) => Opcode(SENDS + position),
        Operation::Write(_) => Opcode(service + WRITES + position),
        Operation::WriteImm(..) => Opcode(service + WRITES + position + with_immediate),
        Operation::Read(_) => Opcode::RC_READ_REQUEST,
        Operation::CompareSwap { .. } => Opcode::RC_COMPARE_SWAP,
        Operation::FetchAdd { .. } => Opcode::RC_FETCH_ADD,
    }
}
