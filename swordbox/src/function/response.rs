//! Handling of server responses. Each response is attributed to the requests that it answers, and forwarded
//! or regenerated for each client as on the client's own connection.

use super::Swordbox;
use super::shared_response::send_first;
use crate::address::{NO_SERVER, source_of};
use crate::flow::Stage;
use crate::records::{Record, RecordKind};
use crate::shared_qps::SharedQp;
use crate::{Id, MIN_PATH_MTU, NONE};
use core::num::NonZero;
use rocev2::aeth::{Aeth, NakCode, Syndrome};
use rocev2::rewrite::Rewriter;
use rocev2::{Layout, Msn, Opcode, Packet, Psn};
use switch::{DropReason, Frame, Nanos, Output, PortId, Verdict};

impl Swordbox {
    #[expect(
        clippy::inline_always,
        reason = "the kind and the layout of the packet are constants in the callers"
    )]
    #[inline(always)]
    pub(crate) fn on_response<O: Output>(
        &mut self,
        frame: &mut O::Frame,
        layout: Layout,
        port: PortId,
        now: Nanos,
        out: &mut O,
    ) -> Verdict {
        let packet = Packet::new(frame.bytes(), layout);
        let from = source_of(&packet);
        let server = self.connections.server_of(from);
        if server == NO_SERVER {
            return self.forward.route(frame, port, now, out);
        }
        if self.ended.has_orphaned_clients()
            && self.ended.is_for_orphaned_client(&packet, now, self.config.dead_after)
        {
            if self.try_succeed(&packet, port, now) {
                return self.forward.route(frame, port, now, out);
            }
            return self.drop_ended_packet();
        }
        // Client's endpoint
        let Some(to) = self.endpoint_of(&packet) else {
            return self.forward_untracked(frame, layout, port, now, out);
        };
        self.on_response_at(to, server, frame, layout, port, now, out)
    }

    /// Handles a server's response to a known endpoint.
    #[allow(clippy::too_many_arguments, reason = "a frame with its layout, port and time")]
    #[expect(
        clippy::inline_always,
        reason = "the kind and the layout of the packet are constants in the callers"
    )]
    #[inline(always)]
    pub(crate) fn on_response_at<O: Output>(
        &mut self,
        to: Id,
        server: u8,
        frame: &mut O::Frame,
        layout: Layout,
        port: PortId,
        now: Nanos,
        out: &mut O,
    ) -> Verdict {
        let packet = Packet::new(frame.bytes(), layout);
        if let Some(shared_qp) = self.fast_ack_of(to, &packet, server, port)
            && packet.verify_icrc_inline()
        {
            self.connections.endpoint_mut(to).seen = now;
            return self.complete_fast(shared_qp, frame, now, out);
        }
        self.on_response_to(to, server, frame, layout, port, now, out)
    }

    /// Handles a server's response to a client's endpoint that is not on the fast path.
    #[allow(clippy::too_many_arguments, reason = "a frame with its layout, port and time")]
    #[inline(never)]
    fn on_response_to<O: Output>(
        &mut self,
        to: Id,
        server: u8,
        frame: &mut O::Frame,
        layout: Layout,
        port: PortId,
        now: Nanos,
        out: &mut O,
    ) -> Verdict {
        let packet = Packet::new(frame.bytes(), layout);
        let from = source_of(&packet);
        let id = self.connections.endpoint(to).peer();
        if let Some(flow) = self.connections.get_flow(id)
            && flow.server != server
        {
            if flow.stage >= Stage::Translating {
                self.counters.spoofed.add(1);
                return Verdict::Drop(DropReason::WrongSource);
            }
            // A forged REQ and REP may have named the wrong server. Dropping the responses of the right one
            // would end a client's connection.
            return self.on_stray_response(to, frame, layout, port, now, out);
        }
        if self.connections.get_flow(id).is_none_or(|flow| !flow.accepts_response(packet.bth().psn()))
            && self.try_succeed(&packet, port, now)
        {
            return self.forward.route(frame, port, now, out);
        }
        if let Some(flow) = self.connections.get_flow(id)
            && !flow.accepts_response(packet.bth().psn())
        {
            return self.on_stray_response(to, frame, layout, port, now, out);
        }
        let answers_request = id == NONE || self.awaits(id, packet.bth().psn());
        let end = self.connections.endpoint_mut(to);
        end.seen = now;
        // Headers of packets that may be damaged, forged or from another host are not stored.
        let ours = answers_request && (end.from == 0 || end.from == from);
        if ours && !end.headers.has_path_of(&packet) && packet.verify_icrc() {
            end.refresh(&packet);
        }
        if id == NONE {
            if !packet.verify_icrc() {
                return Self::WRONG_ICRC;
            }
            self.match_response(to, &packet, from, port);
            return self.forward.route(frame, port, now, out);
        }
        let end = self.connections.endpoint_mut(to);
        // A forged response must not change the port on which requests leave.
        if answers_request && end.peer_port != port {
            end.peer_port = port;
            self.connections.endpoint_mut(id).port = port;
        }
        let flow = self.connections.flow(id);
        // Operations of other clients on this shared QP are completed even if the owner's own flow has ended.
        if flow.stage == Stage::Ended && flow.shared_qp == NONE {
            return self.drop_ended_packet();
        }
        // The switch has to see everything that a client learns, so a damaged response is dropped.
        if !packet.verify_icrc() {
            return Self::WRONG_ICRC;
        }
        let psn = packet.bth().psn();
        if flow.via == NONE {
            self.learn_psn_count(id, &packet, self.connections.flow(id).translation.to_client(psn));
        }
        let flow = self.connections.flow(id);
        if flow.stage < Stage::Translating {
            self.update_flow(id, &packet, psn);
            return self.forward.route(frame, port, now, out);
        }
        let flow = self.connections.flow(id);
        let (shared_qp, is_switch_owned) = (flow.shared_qp, flow.is_switch_owned);
        if is_switch_owned && self.on_probe(shared_qp, &packet, now, out) {
            return Verdict::Consume;
        }
        if shared_qp != NONE
            && self.shared_qps[shared_qp].in_flight() > 0
            && !psn.precedes(self.shared_qps[shared_qp].acked)
        {
            return self.on_shared_qp(shared_qp, frame, layout, now, out);
        }
        if self.connections.flow(id).stage == Stage::Ended {
            return self.drop_ended_packet();
        }
        let mut verdict = self.on_own_response(id, frame, layout, port, now, out);
        if self.has_waiting(id) || self.steering.linked {
            verdict = send_first::<O>(verdict, frame, out);
            self.after_own_response(id, now, out);
            self.release(now, out);
        }
        verdict
    }

    /// Handles a response to a client's queue pair that matches no request of the tracked connection. Its
    /// client ignores it, unless the queue pair number was reused: then the response matches the requests of
    /// another connection.
    #[cold]
    fn on_stray_response<O: Output>(
        &mut self,
        to: Id,
        frame: &mut O::Frame,
        layout: Layout,
        port: PortId,
        now: Nanos,
        out: &mut O,
    ) -> Verdict {
        let packet = Packet::new(frame.bytes(), layout);
        if !packet.verify_icrc() {
            return Self::WRONG_ICRC;
        }
        self.counters.strays.add(1);
        let (id, from) = (self.connections.endpoint(to).peer(), source_of(&packet));
        // Used for pairing if it arrives on the port of the known connection's server, or comes from another
        // server.
        if self.connections.endpoint(id).port == port
            || self.connections.flow(id).server != self.connections.server_of(from)
        {
            self.match_response(to, &packet, from, port);
        }
        self.forward.route(frame, port, now, out)
    }

    /// Returns whether a server's PSN answers a request without a response: one of the client itself, a
    /// retransmitted READ, or, on a shared QP, an operation of another client or the switch's probe.
    fn awaits(&self, id: Id, server_psn: Psn) -> bool {
        let flow = self.connections.flow(id);
        let psn = flow.translation.to_client(server_psn);
        let is_own_request =
            !flow.is_started || !psn.precedes(flow.acked) && psn.distance(flow.sent) < flow.uncounted_psns();
        let is_shared = |shared_qp: &SharedQp| {
            (0..shared_qp.in_flight() as i32).contains(&server_psn.distance(shared_qp.acked))
                || shared_qp.probe().is_some_and(|probe| probe.psn == Some(server_psn))
        };
        is_own_request
            || flow.rereads.awaits(server_psn)
            || self.shared_qps.get(flow.shared_qp).is_some_and(is_shared)
    }

    /// Returns whether something waits for a flow's own requests, all of which are complete.
    fn has_waiting(&self, id: Id) -> bool {
        let flow = self.connections.flow(id);
        let waiting = flow.shared_qp != NONE && self.shared_qps[flow.shared_qp].waiting[0] != NONE;
        let rereads = flow.rereading && !flow.rereads.is_sent();
        flow.is_idle() && (waiting || flow.has_held() || flow.nak_due || rereads)
    }

    /// Continues the requests that waited for a flow's own requests, after a response on the client's own
    /// connection.
    pub(crate) fn after_own_response<O: Output>(&mut self, id: Id, now: Nanos, out: &mut O) {
        if !self.has_waiting(id) {
            return;
        }
        let flow = self.connections.flow(id);
        let shared_qp = flow.shared_qp;
        if shared_qp != NONE && self.shared_qps[shared_qp].waiting[0] != NONE && !flow.in_message {
            self.retry_waiting(shared_qp, now, out);
        }
        self.forward_held(id, now, out);
    }

    /// Handles a response on a client's own connection, which may have to be withheld.
    fn on_own_response<O: Output>(
        &mut self,
        id: Id,
        frame: &mut O::Frame,
        layout: Layout,
        port: PortId,
        now: Nanos,
        out: &mut O,
    ) -> Verdict {
        let packet = Packet::new(frame.bytes(), layout);
        let flow = self.connections.flow(id);
        let psn = flow.translation.to_client(packet.bth().psn());
        if flow.via == NONE
            && !psn.precedes(flow.acked)
            && psn.precedes(flow.sent)
            && let Some(verdict) = self.withhold(id, frame, &packet, psn, port)
        {
            return verdict;
        }
        self.forward_own(id, frame, layout, port, now, out)
    }

    /// Forwards a response on a client's own connection.
    pub(crate) fn forward_own<O: Output>(
        &mut self,
        id: Id,
        frame: &mut O::Frame,
        layout: Layout,
        port: PortId,
        now: Nanos,
        out: &mut O,
    ) -> Verdict {
        if self.connections.flow(id).rereading
            && let Some(verdict) = self.on_reread(id, frame, layout, port, now, out)
        {
            return verdict;
        }
        let packet = Packet::new(frame.bytes(), layout);
        let server_psn = packet.bth().psn();
        let flow = self.connections.flow(id);
        let psn = flow.translation.to_client(server_psn);
        let is_read = matches!(
            layout.opcode(),
            Opcode::RC_READ_RESPONSE_FIRST
                | Opcode::RC_READ_RESPONSE_MIDDLE
                | Opcode::RC_READ_RESPONSE_LAST
                | Opcode::RC_READ_RESPONSE_ONLY
        );
        if flow.via == NONE && !psn.precedes(flow.acked) && psn.precedes(flow.sent) {
            self.learn_from_response(id, &packet, psn);
            self.update_flow(id, &packet, psn);
            let flow = self.connections.flow(id);
            let msn = packet.aeth().map(|aeth| flow.translation.msn_to_client(aeth.msn()));
            rewrite_response(frame, layout, psn, msn);
            return self.forward.route(frame, port, now, out);
        }
        // Responses to a READ whose last response overtook others, or that was retransmitted in the middle of
        // a message.
        if is_read {
            let reads = self
                .connections
                .records(id)
                .iter()
                .filter(|record| matches!(record.kind, RecordKind::UncountedReads | RecordKind::Read));
            let fitting = reads.filter_map(|record| Some((record, record.client_psn_of(server_psn)?)));
            let nearest = fitting.min_by_key(|(record, _)| {
                (server_psn.distance(record.server_psn), record.kind == RecordKind::UncountedReads)
            });
            if let Some((record, psn)) = nearest {
                let end = record.psn.add(record.count);
                let flow = self.connections.flow_mut(id);
                if psn.add(1) == end && flow.reread_until.is_some_and(|(until, _)| until == end) {
                    flow.reread_until = None;
                }
                let msn = packet.aeth().map(|_| self.connections.flow(id).msn);
                rewrite_response(frame, layout, psn, msn);
                return self.forward.route(frame, port, now, out);
            }
        }
        self.counters.stale.add(1);
        Verdict::Drop(DropReason::Stale)
    }

    /// Updates a flow from a response on its own connection. `psn` is the client's.
    pub(crate) fn update_flow(&mut self, id: Id, packet: &Packet<'_>, psn: Psn) {
        let opcode = packet.layout().opcode();
        if let Some(found) = packet.atomic_ack()
            && self.connections.flow(id).stage < Stage::Translating
        {
            // Needed even if everything before is known to be complete, since the client may not have the
            // response.
            for record in self.connections.records_mut(id) {
                if record.psn == psn && record.kind == RecordKind::AtomicWithoutResult {
                    record.kind = RecordKind::Atomic;
                    record.value = found.original.get();
                }
            }
        }
        let flow = self.connections.flow(id);
        if !flow.is_started || psn.precedes(flow.acked) || !psn.precedes(flow.sent) {
            return;
        }
        match opcode {
            Opcode::RC_ACKNOWLEDGE => {
                let Some(aeth) = packet.aeth() else { return };
                match aeth.kind() {
                    Syndrome::Ack(credit) => {
                        self.connections.flow_mut(id).credit = credit.0;
                        self.complete_before(id, psn.add(1));
                    }
                    Syndrome::RnrNak(_) | Syndrome::Nak(NakCode::PSN_SEQUENCE_ERROR) => {
                        self.complete_before(id, psn);
                    }
                    Syndrome::Nak(code) => {
                        // The server's queue pair is in error. Requests before this one are complete.
                        self.complete_before(id, psn);
                        let flow = self.connections.flow_mut(id);
                        flow.pending.clear();
                        self.end_detour(id, true);
                        self.note_refusal(id, psn, code);
                    }
                    Syndrome::Reserved(_) => return,
                }
                self.update_msn(id, *aeth);
            }
            Opcode::RC_ATOMIC_ACKNOWLEDGE => {
                let Some(found) = packet.atomic_ack() else { return };
                let found = found.original.get();
                let record = self
                    .connections
                    .records_mut(id)
                    .iter_mut()
                    .find(|record| record.psn == psn && !record.done);
                let Some(record) = record.filter(|record| record.kind == RecordKind::Atomic) else { return };
                record.done = true;
                record.value = found;
                self.connections.flow_mut(id).open -= 1;
                self.complete_before(id, psn.add(1));
                if let Some(aeth) = packet.aeth() {
                    self.update_msn(id, *aeth);
                }
            }
            _ => {
                let within =
                    |record: &&mut Record| (0..record.count as i32).contains(&psn.distance(record.psn));
                let records = self.connections.records_mut(id).iter_mut().filter(within);
                let records =
                    records.filter(|record| !record.done || record.kind == RecordKind::UncountedReads);
                // The PSN count of a READ may be an estimate; the nearest READ is the right one.
                let Some(record) = records.min_by_key(|record| (psn.distance(record.psn), record.done))
                else {
                    return;
                };
                if record.kind == RecordKind::UncountedReads {
                    self.complete_before(id, psn.add(1));
                    return;
                }
                if record.kind != RecordKind::Read {
                    return;
                }
                let (first, end) = (record.psn, record.psn.add(record.count));
                if psn.add(1) == end {
                    record.done = true;
                    self.connections.flow_mut(id).open -= 1;
                    self.complete_before(id, end);
                } else {
                    self.complete_before(id, first);
                }
                if let Some(aeth) = packet.aeth() {
                    self.update_msn(id, *aeth);
                }
            }
        }
    }

    /// Skips the current proof period if the server refuses a request whose client had the right: the right
    /// was revoked, and those of other clients may have been, too.
    pub(super) fn note_refusal(&mut self, id: Id, psn: Psn, code: NakCode) {
        let flow = self.connections.flow(id);
        let had = !flow.pending.is_unproven(psn) && flow.proofs.has_any(self.period);
        if code == NakCode::REMOTE_ACCESS_ERROR && had {
            self.period.skip();
        }
    }

    fn update_msn(&mut self, id: Id, aeth: Aeth) {
        let flow = self.connections.flow_mut(id);
        let server_msn = aeth.msn();
        if flow.translation.msn().precedes(server_msn) || flow.stage < Stage::Synced {
            flow.translation.set_msn(server_msn);
            flow.msn = flow.translation.msn_to_client(server_msn);
        }
    }

    /// Completes all requests before `psn`, up to the first one whose response is missing.
    pub(crate) fn complete_before(&mut self, id: Id, psn: Psn) {
        let flow = self.connections.flow_mut(id);
        flow.executed = flow.executed.later(psn);
        let mut psn = flow.executed;
        if self.connections.flow(id).open > 0 {
            for record in self.connections.records(id) {
                if !record.done && record.psn.precedes(psn) {
                    psn = record.psn;
                }
            }
        }
        let flow = self.connections.flow_mut(id);
        if flow.acked.precedes(psn) {
            flow.acked = psn;
            // An acknowledgement may match by chance: it has to cover requests from the starting PSN on.
            flow.limits.confirm(flow.first.precedes(flow.next) && !flow.next.precedes(psn));
            flow.existence.apply_request(psn);
            if flow.apply_pending_proof() {
                self.sources.set_proven(self.connections.endpoint(id).from);
            }
            self.note_acknowledged(id);
            let flow = self.connections.flow(id);
            let reaches = flow.pending.has_memory();
            let detour_ends = flow.detour.is_some_and(|(psn, _)| psn.precedes(flow.acked));
            if reaches {
                self.note_existing_memory(id);
            }
            if detour_ends {
                self.end_detour(id, true);
            }
            let flow = self.connections.flow_mut(id);
            if flow.stage == Stage::Paired {
                // Everything before the first tracked request is complete, and all later requests are known.
                flow.stage = Stage::Synced;
            }
        }
    }

    /// Learns the path MTU, and the PSN count of the last request if that is a READ with unknown count.
    ///
    /// The First and Middle packets of a READ response are as long as the path MTU. An Only packet shows that
    /// its READ takes one PSN, and so do READs that are not longer. Since packets may be reordered, a Last
    /// packet also determines the path MTU, if exactly one value fits its PSN and length.
    fn learn_psn_count(&mut self, id: Id, packet: &Packet<'_>, psn: Psn) {
        let opcode = packet.layout().opcode();
        let bytes = packet.payload().len() as u32;
        let flow = self.connections.flow(id);
        let is_full = matches!(opcode, Opcode::RC_READ_RESPONSE_FIRST | Opcode::RC_READ_RESPONSE_MIDDLE)
            && bytes.is_power_of_two()
            && (MIN_PATH_MTU..=4096).contains(&bytes);
        let is_news = flow.limits.is_longest(bytes) || (is_full && bytes != flow.limits.mtu().into());
        if is_news && self.connections.is_read(id, psn) {
            let flow = self.connections.flow_mut(id);
            flow.limits.note_payload(bytes as usize);
            if is_full {
                flow.limits.set_mtu(bytes as u16);
            }
        }
        let flow = self.connections.flow_mut(id);
        let Some(len) = flow.uncounted_read.map(NonZero::get) else { return };
        let before = psn.distance(flow.next.sub(1));
        let count = match opcode {
            Opcode::RC_READ_RESPONSE_ONLY if before == 0 => Some(1),
            Opcode::RC_READ_RESPONSE_LAST if before > 0 => {
                let mtu = len.saturating_sub(bytes) / before as u32;
                let is_mtu = mtu.is_power_of_two() && (MIN_PATH_MTU..=4096).contains(&mtu);
                let fits = is_mtu
                    && mtu * before as u32 + bytes == len
                    && [0, mtu as u16].contains(&flow.limits.mtu());
                if fits {
                    flow.limits.set_mtu(mtu as u16);
                }
                fits.then_some(before as u32 + 1)
            }
            _ => flow.limits.psn_count_of(len),
        };
        if let Some(count) = count {
            self.connections.set_read_count(id, count);
        }
    }
}

/// Sets a response's PSN and MSN to those that the client expects.
pub(crate) fn rewrite_response<F: Frame>(frame: &mut F, layout: Layout, psn: Psn, msn: Option<Msn>) {
    let packet = Packet::new(frame.bytes(), layout);
    let (psn_is_right, aeth) = (packet.bth().psn() == psn, packet.aeth().copied());
    let wrong = aeth.zip(msn).filter(|(aeth, msn)| aeth.msn() != *msn);
    if psn_is_right && wrong.is_none() {
        return;
    }
    let mut rewriter = Rewriter::new(frame.bytes_mut(), layout);
    rewriter.set_psn(psn);
    if let Some((mut aeth, msn)) = wrong {
        aeth.set_msn(msn);
        _ = rewriter.set_aeth(aeth);
    }
    rewriter.finish();
}
