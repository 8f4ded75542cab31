//! Switch-owned QPs in the data plane. The control plane connects them (`connect.rs`). They are flows like
//! those of clients, but have no client whose exit, messages or idle times could interrupt sharing.
//!
//! A key works only on queue pairs of its protection domain. Before the first operation with a key on a
//! switch-owned QP, the switch sends a READ with that key while nothing else is in flight. If the server
//! refuses it and moves its queue pair to the error state, no other operation is lost, and operations with
//! this key use client-owned QPs. After some idle time a QP is probed by a zero-length WRITE, so that a
//! server's restart is noticed before the QP is used again.

use super::Swordbox;
use super::recovery::MAX_TRIES;
use crate::address::{NO_SERVER, bits_of};
use crate::event::OpenSharedQp;
use crate::flow::Stage;
use crate::headers::{BthFields, Headers};
use crate::proof::right;
use crate::{Id, MAX_BACKOFF_SHIFT, NONE};
use rocev2::aeth::{NakCode, Syndrome};
use rocev2::neighbour;
use rocev2::reth::Reth;
use rocev2::{Opcode, Packet, Qpn};
use switch::forward::counters::HostQp;
use switch::{DropReason, Frame, Nanos, Output, PortId, Verdict};
use zerocopy::IntoBytes;

/// Divisor of `dead_after` that gives the timeout of a probe
const PROBE_TIMEOUT_DIVISOR: u64 = 4;
/// Bytes that a probe of a key reads
const WORD: u32 = 8;

impl Swordbox {
    /// Returns whether a frame is sent to the switch itself, or requests its address (ARP or neighbour
    /// discovery).
    #[inline]
    pub(crate) fn is_to_switch(&self, bytes: &[u8]) -> bool {
        let Some(interface) = &self.config.interface else { return false };
        match bytes.first_chunk::<6>() {
            Some(dst) if *dst == interface.mac.0 => true,
            Some(dst) if dst[0] & 1 != 0 => {
                neighbour::resolution_target(bytes).is_some_and(|ip| interface.has(ip))
            }
            _ => false,
        }
    }

    /// Handles a frame to the switch itself: a response on a switch-owned QP, or a frame for the control
    /// plane.
    #[inline]
    pub(crate) fn on_frame_to_switch<O: Output>(
        &mut self,
        frame: &mut O::Frame,
        port: PortId,
        now: Nanos,
        out: &mut O,
    ) -> Verdict {
        let layout = match self.forward.admit(frame, port, now) {
            Ok(Some(layout)) => layout,
            // ARP, neighbour discovery and echo requests. The control plane drops malformed frames.
            Ok(None) => return Verdict::Punt,
            Err(verdict) => return verdict,
        };
        let packet = Packet::new(frame.bytes(), layout);
        if packet.bth().dest_qp() == Qpn::GSI {
            return Verdict::Punt;
        }
        let to = self
            .connections
            .find(&HostQp::destination_of(&packet))
            .filter(|to| self.connections.is_switch_endpoint(*to));
        let Some(to) = to else { return Verdict::Drop(DropReason::NoQueuePair) };
        let server = self.connections.server_of(crate::address::source_of(&packet));
        let flow = self.connections.flow(self.connections.endpoint(to).peer());
        if !flow.accepts_response(packet.bth().psn()) {
            return self.drop_stray_packet();
        }
        match layout.opcode() {
            Opcode::RC_ACKNOWLEDGE | Opcode::RC_ATOMIC_ACKNOWLEDGE | Opcode::RC_READ_RESPONSE_ONLY
                if server != NO_SERVER =>
            {
                self.on_response_at(to, server, frame, layout, port, now, out)
            }
            Opcode::CNP => {
                self.on_cnp(frame, layout, out);
                Verdict::Consume
            }
            _ => Verdict::Drop(DropReason::Unexpected),
        }
    }

    /// Handles [`Command::OpenSharedQp`](crate::Command::OpenSharedQp).
    pub(crate) fn open_switch_owned(&mut self, params: &OpenSharedQp, now: Nanos) {
        let opened = self.try_open_switch_owned(params, now).is_some();
        let &OpenSharedQp { shared_qp, qpn, .. } = params;
        self.counters.switch_owned_qps.add(u64::from(opened));
        self.events.push_back(crate::Event::SharedQpOpened { shared_qp, qpn, opened });
    }

    fn try_open_switch_owned(&mut self, params: &OpenSharedQp, now: Nanos) -> Option<()> {
        let qp = self
            .shared_qps
            .get(params.shared_qp)
            .filter(|shared_qp| shared_qp.is_switch_owned && shared_qp.owner == NONE)?;
        let number = qp.server;
        let packet = Packet::parse(&params.template)?;
        let headers = Headers::of(&packet)?;
        let keys = [HostQp::new(packet.dst(), packet.bth().dest_qp()), HostQp::new(packet.src(), params.qpn)];
        // Both queue pairs are new, so older connections with the same numbers are forgotten.
        for key in keys {
            if let Some(id) = self.connections.find(&key) {
                self.forget(id);
            }
        }
        let [to_server, to_switch] = self.connections.add_both(keys)?;
        self.connections.pair(to_server, to_switch);
        for (id, from) in [(to_server, packet.src()), (to_switch, packet.dst())] {
            let end = self.connections.endpoint_mut(id);
            (end.port, end.from, end.seen) = (params.port, bits_of(from), now);
        }
        self.connections.endpoint_mut(to_server).headers = headers;
        let flow = self.connections.flow_mut(to_server);
        flow.begin(params.psn);
        (flow.stage, flow.is_switch_owned, flow.shared_qp) = (Stage::Translating, true, params.shared_qp);
        let qp = &mut self.shared_qps[params.shared_qp];
        qp.open(to_server, params.psn, params.rd_atomic.max(1).into(), now, now);
        qp.keys.clear();
        self.return_to_owners(number);
        Some(())
    }

    /// Returns the client-owned QPs of a server to their owners once nothing is in flight there.
    fn return_to_owners(&mut self, server: u8) {
        for lent in self
            .shared_qps
            .iter_mut()
            .filter(|shared_qp| shared_qp.server == server && !shared_qp.is_switch_owned)
        {
            if lent.owner != NONE && !self.connections.flow(lent.owner).closing {
                lent.is_returning = true;
                self.connections.flow_mut(lent.owner).closing = true;
            }
        }
    }

    /// Handles [`Command::CloseSharedQp`](crate::Command::CloseSharedQp).
    pub(crate) fn close_switch_owned(&mut self, shared_qp: Id, qpn: Qpn) {
        let Some(qp) = self.shared_qps.get(shared_qp).filter(|shared_qp| shared_qp.owner != NONE) else {
            return;
        };
        let switch_endpoint = self.connections.endpoint(qp.owner).peer();
        if qp.is_switch_owned && self.connections.key(switch_endpoint).is_some_and(|key| key.qpn() == qpn) {
            self.fail_shared_qp(shared_qp);
        }
    }

    /// Removes both endpoints of a failed switch-owned QP, and reports it to the control plane, which
    /// connects it again.
    pub(crate) fn retire(&mut self, shared_qp: Id, owner: Id) {
        let switch_endpoint = self.connections.endpoint(owner).peer();
        let qpn = self.connections.key(switch_endpoint).map_or(Qpn::new(0), HostQp::qpn);
        for id in [owner, switch_endpoint] {
            self.connections.remove(id);
        }
        self.counters.switch_owned_qps_lost.add(1);
        self.events.push_back(crate::Event::SharedQpLost { shared_qp, qpn });
    }

    /// Schedules a probe of a key, sent when nothing is in flight on the QP.
    pub(crate) fn probe_key(&mut self, shared_qp: Id, va: u64, rkey: u32, now: Nanos) {
        self.schedule_probe(shared_qp, Some((va & !7, rkey)), now);
    }

    pub(crate) fn schedule_probe(&mut self, shared_qp: Id, word: Option<(u64, u32)>, now: Nanos) {
        if self.shared_qps.begin_probe(shared_qp, word, now) {
            // While a probe is scheduled, no operation begins on the QP.
            let owner = self.shared_qps[shared_qp].owner;
            self.connections.flow_mut(owner).in_message = true;
        }
    }

    /// Handles the timers of a switch-owned QP without operations in flight.
    pub(crate) fn tick_switch_owned<O: Output>(&mut self, shared_qp: Id, now: Nanos, out: &mut O) {
        let qp = &self.shared_qps[shared_qp];
        let retransmit_timeout = qp.retransmit_timeout(self.config.replay_after);
        let Some(probe) = qp.probe() else {
            if now.since(qp.progress_at) > self.config.probe_after {
                self.schedule_probe(shared_qp, None, now);
                self.send_probe(shared_qp, now, out);
            } else {
                self.retry_waiting(shared_qp, now, out);
            }
            return;
        };
        if probe.psn.is_none() {
            self.send_probe(shared_qp, now, out);
        } else if now.since(probe.since) > Nanos(self.config.dead_after.0 / PROBE_TIMEOUT_DIVISOR)
            || (u32::from(probe.tries) >= MAX_TRIES && self.shared_qps.has_newer_connections(qp))
        {
            self.fail_shared_qp(shared_qp);
        } else if now.since(probe.at) > Nanos(retransmit_timeout.0 << probe.tries) {
            self.send_probe(shared_qp, now, out);
            self.retry_waiting(shared_qp, now, out);
        }
    }

    /// Sends or retransmits a probe. Without a free buffer it counts as lost.
    fn send_probe<O: Output>(&mut self, shared_qp: Id, now: Nanos, out: &mut O) {
        let qp = &mut self.shared_qps[shared_qp];
        let owner = qp.owner;
        let Some(probe) = qp.probe_mut() else { return };
        let psn = if let Some(psn) = probe.psn {
            probe.tries = (probe.tries + 1).min(MAX_BACKOFF_SHIFT);
            psn
        } else {
            let flow = self.connections.flow_mut(owner);
            let psn = flow.translation.next();
            flow.translation.set_next(psn.add(1));
            (probe.psn, probe.since) = (Some(psn), now);
            psn
        };
        probe.at = now;
        let (opcode, (va, rkey), len) = match probe.word {
            Some(word) => (Opcode::RC_READ_REQUEST, word, WORD),
            None => (Opcode::RC_WRITE_ONLY, (0, 0), 0),
        };
        let Ok(mut frame) = out.make(0) else { return };
        let end = self.connections.endpoint(owner);
        let base = BthFields { ack_req: true, ..BthFields::new(opcode, end.qpn, psn) };
        let reth = Reth { va: va.into(), rkey: rkey.into(), len: len.into() };
        let mut behind = [0; Reth::LEN];
        behind.copy_from_slice(reth.as_bytes());
        if end.headers.build(&mut frame, None, base, &behind).is_ok() {
            _ = out.send(frame, end.port);
        }
    }

    /// Notes that a key does not work on switch-owned QPs, so that operations with it use other connections
    /// for 10 s.
    pub(crate) fn refuse_key(&mut self, shared_qp: Id, rkey: u32, now: Nanos) {
        if self.shared_qps.refuse_key(shared_qp, rkey, now) {
            self.counters.keys_refused.add(1);
        }
    }

    /// Handles a response to a probe. Returns false if it is none.
    pub(crate) fn on_probe<O: Output>(
        &mut self,
        shared_qp: Id,
        packet: &Packet<'_>,
        now: Nanos,
        out: &mut O,
    ) -> bool {
        let Some(qp) = self.shared_qps.get(shared_qp) else { return false };
        let Some(probe) = qp.probe().filter(|probe| probe.psn == Some(packet.bth().psn())) else {
            return false;
        };
        let Some(aeth) = packet.aeth() else { return false };
        match (packet.layout().opcode(), aeth.kind()) {
            (Opcode::RC_READ_RESPONSE_ONLY, _) if probe.word.is_some() => {}
            (Opcode::RC_ACKNOWLEDGE, Syndrome::Ack(_)) if probe.word.is_none() => {}
            (Opcode::RC_ACKNOWLEDGE, Syndrome::Nak(NakCode::PSN_SEQUENCE_ERROR)) => {
                self.send_probe(shared_qp, now, out);
                return true;
            }
            (Opcode::RC_ACKNOWLEDGE, Syndrome::Nak(_)) => {
                if let Some((_, rkey)) = probe.word {
                    self.refuse_key(shared_qp, rkey, now);
                }
                self.fail_shared_qp(shared_qp);
                self.forward_ready(now, out);
                return true;
            }
            _ => return false,
        }
        self.shared_qps.end_probe(shared_qp);
        let qp = &mut self.shared_qps[shared_qp];
        qp.on_ack(packet.bth().psn(), now);
        if let Some((_, rkey)) = probe.word {
            qp.keys.add(rkey, right::ATOMIC);
        }
        let owner = self.connections.flow_mut(qp.owner);
        owner.in_message = false;
        owner.translation.count_message();
        if probe.tries > 0 {
            // While the probe was overdue, operations may have moved to client-owned QPs.
            let server = self.shared_qps[shared_qp].server;
            self.return_to_owners(server);
        }
        self.retry_waiting(shared_qp, now, out);
        true
    }
}
