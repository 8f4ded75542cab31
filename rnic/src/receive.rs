//! The receive path: checks frames and dispatches them to the requester, the responder, the communication
//! manager or the neighbour table.

use crate::nic::{Event, QpContext, Rnic};
use crate::qp::{State, Transport};
use crate::queue::{Completion, CompletionOpcode, RecvRequest, Status};
use rocev2::ethernet::Ethernet;
use rocev2::{Class, Opcode, Packet, Qpn, classify};
use switch::Nanos;

/// Bytes reserved for the GRH before the payload of a datagram
pub(crate) const GRH_LEN: usize = 40;
/// The upper three bits of RC, UC and UD opcodes
const RC: u8 = 0;
const UC: u8 = 1;
const UD: u8 = 3;
/// Partition key of the default partition without the membership bit: full and limited members match
/// (IB 10.9.3)
const DEFAULT_PKEY: u16 = 0x7fff;
const CONGESTION_EXPERIENCED: u8 = 3;

impl Rnic {
    /// Processes a received frame.
    pub fn on_frame(&mut self, frame: &[u8], now: Nanos) {
        self.counters.received += 1;
        let Some(dst) = frame.first_chunk::<6>() else {
            self.counters.malformed += 1;
            return;
        };
        if *dst != self.config.interface.mac.0 && dst[0] & 1 == 0 {
            self.counters.not_for_us += 1;
            return;
        }
        match classify(frame) {
            Class::Roce(layout) => {
                let packet = Packet::new(frame, layout);
                if !self.config.interface.has(packet.dst()) || !self.has_our_tag(&packet) {
                    self.counters.not_for_us += 1;
                } else if packet.verify_icrc() {
                    self.on_packet(&packet, now);
                } else {
                    self.counters.icrc_errors += 1;
                }
            }
            Class::Other if frame.len() >= Ethernet::LEN => {
                if self.endpoint.neighbours.on_frame(frame, now) {
                    self.wake_unresolved();
                }
            }
            Class::Other | Class::Malformed(_) => self.counters.malformed += 1,
        }
        self.handle_overrun();
    }

    fn has_our_tag(&self, packet: &Packet<'_>) -> bool {
        let id = packet.tags().first().map_or(0, rocev2::ethernet::VlanTag::id);
        packet.tags().len() <= 1 && id == self.config.interface.vlan.unwrap_or(0) & 0xfff
    }

    fn on_packet(&mut self, packet: &Packet<'_>, now: Nanos) {
        let bth = packet.bth();
        let qpn = bth.dest_qp();
        if bth.pkey.get() & 0x7fff != DEFAULT_PKEY {
            self.counters.no_qp += 1;
            return;
        }
        if qpn == Qpn::GSI {
            self.on_gsi(packet, now);
            return;
        }
        let Some(slot) = self.slot(qpn) else {
            self.counters.no_qp += 1;
            return;
        };
        let Some(mut ctx) = self.context(slot) else { return };
        let ecn = packet
            .ipv4()
            .map_or_else(|| packet.ipv6().map_or(0, |ip| ip.traffic_class() & 3), rocev2::ipv4::Ipv4::ecn);
        let service = bth.opcode().0 >> 5;
        let from_peer = ctx.qp.path.is_some_and(|path| path.dst == packet.src());
        let wanted = match ctx.qp.init.transport {
            Transport::Rc => from_peer && service == RC,
            Transport::Uc => from_peer && service == UC,
            Transport::Ud => service == UD,
        };
        if bth.opcode() == Opcode::CNP && from_peer {
            ctx.counters.cnps_received += 1;
            if let Some(dcqcn) = &ctx.config.congestion {
                ctx.qp.req.pacer.on_cnp(now, dcqcn);
            }
            self.update_schedule(slot);
            return;
        }
        if !wanted || !ctx.qp.state.receives() {
            ctx.counters.no_qp += 1;
            return;
        }
        if ecn == CONGESTION_EXPERIENCED {
            ctx.counters.ce_marked += 1;
            ctx.owe_cnp(now);
        }
        // A forged request whose PSN is not the expected one must not complete the handshake: afterwards the
        // peer's REP is not retransmitted.
        let in_order = ctx.qp.init.transport != Transport::Rc || bth.psn() == ctx.qp.resp.epsn;
        if ctx.qp.state == State::Rtr && !ctx.qp.event_reported && in_order {
            self.report_established(slot, now);
            let Some(again) = self.context(slot) else { return };
            ctx = again;
        }
        let duplicates = ctx.counters.duplicates;
        match ctx.qp.init.transport {
            Transport::Ud => ctx.on_datagram(packet),
            Transport::Uc => ctx.on_unreliable(packet),
            Transport::Rc => match bth.opcode() {
                Opcode::RC_READ_RESPONSE_FIRST
                | Opcode::RC_READ_RESPONSE_MIDDLE
                | Opcode::RC_READ_RESPONSE_LAST
                | Opcode::RC_READ_RESPONSE_ONLY
                | Opcode::RC_ACKNOWLEDGE
                | Opcode::RC_ATOMIC_ACKNOWLEDGE => ctx.on_response(packet, now),
                _ => ctx.on_request(packet, now),
            },
        }
        if self.counters.duplicates > duplicates {
            // The requester may retransmit because our responses go to a stale MAC address.
            self.endpoint.neighbours.verify(packet.src(), now);
        }
        self.update_schedule(slot);
    }

    /// Completes the handshake of a connection on which a packet arrived before the RTU, and reports it once.
    fn report_established(&mut self, slot: u32, now: Nanos) {
        let Some(qp) = self.qp_at(slot) else { return };
        qp.event_reported = true;
        if qp.init.transport != Transport::Ud {
            let qpn = qp.qpn;
            self.events.push_back(Event::Established(qpn));
            self.established_by_traffic(qpn, now);
        }
    }

    /// Fails queue pairs whose completions were lost. Returns whether a completion queue had overrun.
    pub(crate) fn handle_overrun(&mut self) -> bool {
        let overrun = self.overrun;
        // A queue pair that fails may overrun another completion queue.
        while core::mem::take(&mut self.overrun) {
            self.fail_overrun();
        }
        overrun
    }

    /// Moves queue pairs whose completions were lost to the error state (IB 11.6.3.2).
    #[cold]
    fn fail_overrun(&mut self) {
        for slot in 0..self.slots() {
            let Some(mut ctx) = self.context(slot) else { continue };
            let init = ctx.qp.init;
            let lost = [init.send_cq, init.recv_cq]
                .iter()
                .any(|cq| ctx.cqs.get(cq.0).is_some_and(|queue| queue.overrun));
            if lost && !matches!(ctx.qp.state, State::Error | State::Reset) {
                ctx.enter_error();
                let qpn = ctx.qp.qpn;
                ctx.events.push_back(Event::QpError(qpn));
                self.update_schedule(slot);
            }
        }
    }
}

impl QpContext<'_> {
    /// Schedules a CNP to the sender of a CE-marked packet, at most one per CNP interval.
    fn owe_cnp(&mut self, now: Nanos) {
        let Some(dcqcn) = &self.config.congestion else { return };
        let resp = &mut self.qp.resp;
        if self.qp.init.transport != Transport::Ud
            && resp.last_cnp_at.is_none_or(|at| now.since(at) >= dcqcn.cnp_interval)
        {
            (resp.last_cnp_at, resp.cnp_due) = (Some(now), true);
        }
    }

    /// Returns the next receive request without removing it.
    pub(crate) fn next_recv(&self) -> Option<RecvRequest> {
        let queue = match self.qp.init.srq {
            Some(srq) => self.srqs.get(srq.0)?,
            None => &self.qp.recv,
        };
        queue.queue.front().copied()
    }

    /// Removes and returns the next receive request.
    pub(crate) fn take_recv(&mut self) -> Option<RecvRequest> {
        let queue = match self.qp.init.srq {
            Some(srq) => self.srqs.get_mut(srq.0)?,
            None => &mut self.qp.recv,
        };
        queue.queue.pop_front()
    }

    /// Completes a receive request.
    pub(crate) fn complete_recv(&mut self, completion: Completion) {
        let cq = self.qp.init.recv_cq;
        self.complete(cq, completion);
    }

    /// Returns a successful completion of a receive request, for the caller to modify.
    pub(crate) fn recv_completion(&self, id: u64, len: u32, packet: Option<&Packet<'_>>) -> Completion {
        Completion {
            id,
            qpn: self.qp.qpn,
            status: Status::Success,
            opcode: CompletionOpcode::Recv,
            len,
            immediate: packet.and_then(Packet::immediate).map(|imm| imm.data.get()),
            invalidated: packet.and_then(Packet::ieth).map(|ieth| ieth.rkey.get()),
            from: None,
            solicited: packet.is_some_and(|packet| packet.bth().solicited()),
        }
    }

    /// Stores a datagram into the next receive buffer, after 40 bytes for its IP header. Drops it on any
    /// mismatch (IB 9.8.3).
    fn on_datagram(&mut self, packet: &Packet<'_>) {
        let Some(deth) = packet.deth() else { return };
        let len = packet.payload().len() + GRH_LEN;
        let span = match self.next_recv().map(|recv| recv.data) {
            Some(Some(sge)) if sge.len as usize >= len => {
                self.local(&sge, crate::memory::Access::LOCAL_WRITE)
            }
            _ => None,
        };
        let (true, Some(span)) = (deth.qkey.get() == self.qp.qkey, span) else {
            self.counters.unreliable_dropped += 1;
            return;
        };
        let Some(recv) = self.take_recv() else { return };
        let mut grh = [0; GRH_LEN];
        let l3 = packet.layout().l3();
        let ip_len = if packet.layout().is_ipv6() { GRH_LEN } else { rocev2::ipv4::Ipv4::LEN };
        grh[GRH_LEN - ip_len..].copy_from_slice(&packet.bytes()[l3..l3 + ip_len]);
        self.memory.write(span, &grh);
        self.memory.write(span.skip(GRH_LEN), packet.payload());
        let completion = self.recv_completion(recv.id, len as u32, Some(packet));
        self.complete_recv(Completion { from: Some((packet.src(), deth.src_qp())), ..completion });
    }
}
