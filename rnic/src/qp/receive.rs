//! Checks of arriving packets, receive requests, and datagrams.

use super::{QpContext, State, Transport};
use crate::memory::Access;
use crate::queue::{Completion, CompletionOpcode, ReceiveQueue, RecvRequest, Status};
use rocev2::{Opcode, Packet};
use switch::Nanos;

/// Bytes reserved for the GRH before the payload of a datagram
const GRH_LEN: usize = 40;
/// The upper three bits of RC, UC and UD opcodes
const RC: u8 = 0;
const UC: u8 = 1;
const UD: u8 = 3;
const CONGESTION_EXPERIENCED: u8 = 3;

/// What [`QpContext::admit`] decided about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// It is dropped
    Refused,
    /// It was a CNP, which needs no further processing
    Cnp,
    /// It is to be processed
    Admitted,
    /// As `Admitted`; it is the first packet in state RTR
    First,
}

impl QpContext<'_> {
    /// Checks whether a packet is for this queue pair in its state, and processes a CNP.
    #[inline]
    pub(crate) fn admit(&mut self, packet: &Packet<'_>, now: Nanos) -> Admission {
        let bth = packet.bth();
        let ecn = packet
            .ipv4()
            .map_or_else(|| packet.ipv6().map_or(0, |ip| ip.traffic_class() & 3), rocev2::ipv4::Ipv4::ecn);
        let service = bth.opcode().0 >> 5;
        let from_peer = self.qp.path.is_some_and(|path| path.dst == packet.src());
        let wanted = match self.qp.init.transport {
            Transport::Rc => from_peer && service == RC,
            Transport::Uc => from_peer && service == UC,
            Transport::Ud => service == UD,
        };
        if bth.opcode() == Opcode::CNP && from_peer {
            self.counters.cnps_received += 1;
            if let Some(dcqcn) = &self.config.congestion {
                self.qp.pacer.on_cnp(now, dcqcn);
            }
            return Admission::Cnp;
        }
        if !wanted || !self.qp.state.receives() {
            self.counters.no_qp += 1;
            return Admission::Refused;
        }
        if ecn == CONGESTION_EXPERIENCED {
            self.counters.ce_marked += 1;
            self.owe_cnp(now);
        }
        // A forged request whose PSN is not the expected one must not complete the handshake: afterwards the
        // peer's REP is not retransmitted.
        let in_order = self.qp.init.transport != Transport::Rc || bth.psn() == self.qp.resp.epsn();
        if self.qp.state == State::Rtr && !self.qp.event_reported && in_order {
            return Admission::First;
        }
        Admission::Admitted
    }

    /// Processes an admitted packet.
    #[inline]
    pub(crate) fn on_packet(&mut self, packet: &Packet<'_>, now: Nanos) {
        match self.qp.init.transport {
            Transport::Ud => self.on_datagram(packet),
            Transport::Uc => self.on_unreliable(packet),
            Transport::Rc => match packet.bth().opcode() {
                Opcode::RC_READ_RESPONSE_FIRST
                | Opcode::RC_READ_RESPONSE_MIDDLE
                | Opcode::RC_READ_RESPONSE_LAST
                | Opcode::RC_READ_RESPONSE_ONLY
                | Opcode::RC_ACKNOWLEDGE
                | Opcode::RC_ATOMIC_ACKNOWLEDGE => self.on_response(packet, now),
                _ => self.on_request(packet, now),
            },
        }
    }

    /// Schedules a CNP to the sender of a CE-marked packet, at most one per CNP interval.
    fn owe_cnp(&mut self, now: Nanos) {
        let Some(dcqcn) = &self.config.congestion else { return };
        if self.qp.init.transport != Transport::Ud {
            self.qp.resp.owe_cnp(now, dcqcn.cnp_interval);
        }
    }

    /// Returns the next receive request without removing it.
    pub(crate) fn next_recv(&self) -> Option<RecvRequest> {
        let queue = match self.qp.init.srq {
            Some(srq) => self.srqs.get(srq.0)?,
            None => &self.qp.recv,
        };
        queue.front()
    }

    /// Removes and returns the next receive request.
    pub(crate) fn take_recv(&mut self) -> Option<RecvRequest> {
        self.recv_queue()?.pop()
    }

    /// Returns the queue of its receive requests, its own or a shared one.
    pub(crate) fn recv_queue(&mut self) -> Option<&mut ReceiveQueue> {
        match self.qp.init.srq {
            Some(srq) => self.srqs.get_mut(srq.0),
            None => Some(&mut self.qp.recv),
        }
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
            Some(Some(sge)) if sge.len as usize >= len => self.local(&sge, Access::LOCAL_WRITE),
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
