//! The transmit path of a queue pair: responses and requests alternate.

use crate::config::Bug;
use crate::memory::Access;
use crate::qp::{MAX_PACKETS, QpContext, State, Transport};
use crate::queue::{Data, Operation, Status, UdDestination};
use crate::wire::PathHeaders;
use rocev2::atomic::AtomicEth;
use rocev2::deth::Deth;
use rocev2::immediate::{Ieth, ImmDt};
use rocev2::reth::Reth;
use rocev2::{Bth, Opcode, Psn};
use switch::Nanos;
use zerocopy::IntoBytes;

/// Base of an operation's opcodes: First, Middle, Last, Last with immediate, Only, Only with immediate
const SENDS: u8 = 0x00;
const WRITES: u8 = 0x06;
const UC_SERVICE: u8 = 0x20;

impl QpContext<'_> {
    /// Handles a next packet whose destination does not resolve.
    pub(crate) fn on_unreachable(&mut self) {
        self.qp.unresolved = false;
        match self.qp.init.transport {
            // Its retries run out, as with a host that does not acknowledge.
            Transport::Rc => {}
            Transport::Uc => {
                self.qp.resp.take_cnp();
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
    pub(crate) fn transmit(&mut self, now: Nanos, frame: &mut Vec<u8>) -> bool {
        if self.qp.resp.take_cnp() {
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
    fn takes_turns(&self) -> bool {
        !self.has_bug(Bug::ResponsesFirst)
    }

    pub(crate) fn emit(&mut self, frame: &mut Vec<u8>, bth: Bth, extended: &[&[u8]], payload: &[u8]) {
        if let Some((path_headers, _)) = &mut self.qp.path_headers {
            path_headers.emit(frame, bth, extended, payload);
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
            return !self.qp.pacer.may_send(now);
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
        self.qp.req.rate_limited = !self.qp.pacer.may_send(now);
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
        let Some((path_headers, _)) = &mut self.qp.path_headers else { return false };
        path_headers.emit(frame, bth, &extended, payload);
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

    pub(crate) fn transmit_datagram(
        &mut self,
        path_headers: &mut PathHeaders,
        to: &UdDestination,
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
                    self.report_error();
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
        path_headers.emit(frame, bth, &[deth.as_bytes(), imm], payload);
        self.complete_send(wqe, Status::Success);
        true
    }
}

/// Returns the opcode of a request packet.
#[inline]
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
