//! Handling of client requests.
//!
//! While a connection is not translated, its requests are forwarded unchanged and only tracked. Its
//! translation begins when one of its operations is to use a shared QP. From then on the switch is a
//! responder towards the client, which accepts requests in order and executes retransmitted ones once, and a
//! requester towards the server.

use super::Swordbox;
use super::route::Route;
use super::translated::Outcome;
use crate::address::{NO_SERVER, source_of};
use crate::event::Event;
use crate::flow::Stage;
use crate::lines::in_one_line;
use crate::message::Message;
use crate::op::{Kind, Op, memory_of};
use crate::proof::{Proof, rights_of};
use crate::records::{NO_RECORD, Record, RecordKind};
use crate::{Bug, Id, MIN_PATH_MTU, NONE};
use core::num::NonZero;
use rocev2::{Layout, Packet};
use switch::{DropReason, Frame, Nanos, Output, PortId, Verdict};

impl Swordbox {
    #[expect(
        clippy::inline_always,
        reason = "the kind and the layout of the packet are constants in the callers"
    )]
    #[inline(always)]
    pub(crate) fn on_request<O: Output>(
        &mut self,
        frame: &mut O::Frame,
        layout: Layout,
        op: Op,
        port: PortId,
        now: Nanos,
        out: &mut O,
    ) -> Verdict {
        let packet = Packet::new(frame.bytes(), layout);
        let Some(id) = self.endpoint_of_request(&packet) else {
            if self.ended.includes(&packet) {
                return self.drop_unless_early(Self::drop_ended_packet, frame, layout, port, now, out);
            }
            return self.on_untracked(frame, layout, port, now, out);
        };
        if self.connections.flow(id).server == NO_SERVER {
            // Only the number of queue pairs is of interest.
            self.connections.endpoint_mut(id).seen = now;
            return self.forward.route(frame, port, now, out);
        }
        if self.connections.flow(id).is_switch_owned {
            // The switch is the only requester on switch-owned QPs.
            self.counters.spoofed.add(1);
            return Verdict::Drop(DropReason::WrongSource);
        }
        let is_translating = self.connections.flow(id).stage == Stage::Translating;
        let end = self.connections.endpoint_mut(id);
        // A connection becomes translated only after some of its requests, so their headers and port are
        // known.
        let is_known = is_translating && end.has_headers_of(&packet, port);
        if is_known
            && let Some(route) = self.fast_route_of(id, &packet, op)
            && packet.verify_icrc_inline()
        {
            debug_assert_eq!(
                self.route_of(id, &packet, op, now),
                Route::SharedQp(route),
                "the general path has to choose the same route"
            );
            self.connections.endpoint_mut(id).seen = now;
            let flow = self.connections.flow_mut(id);
            flow.nak_due = false;
            flow.found_no_slot = false;
            return match self.share_inline(id, route, frame, layout, now) {
                Outcome::Sent(port) => Verdict::Forward(port),
                _ => Verdict::Consume,
            };
        }
        self.on_request_of(id, is_known, frame, layout, op, port, now, out)
    }

    /// Handles a request to endpoint `id`. `is_known` states that its headers and port match the stored ones.
    #[allow(clippy::too_many_arguments, reason = "a frame with its layout, port and time")]
    #[inline(never)]
    fn on_request_of<O: Output>(
        &mut self,
        mut id: Id,
        is_known: bool,
        frame: &mut O::Frame,
        layout: Layout,
        op: Op,
        port: PortId,
        now: Nanos,
        out: &mut O,
    ) -> Verdict {
        let packet = Packet::new(frame.bytes(), layout);
        let psn = packet.bth().psn();
        if self.config.has_bug(Bug::NewPort)
            && self.connections.endpoint(id).headers.has_other_port(&packet)
            && let from = self.connections.endpoint(id).from
            && (from == 0 || from == source_of(&packet))
        {
            self.forget(id);
            id = self.endpoint_of(&packet).unwrap_or(id);
        }
        if !is_known && self.is_taken_over(id, &packet, now) {
            self.forget(id);
            let Some(new) = self.endpoint_of(&packet) else {
                return self.on_untracked(frame, layout, port, now, out);
            };
            id = new;
        }
        if !is_known && !self.is_from_known_host(id, source_of(&packet), &packet) {
            self.counters.spoofed.add(1);
            if self.connections.flow(id).stage >= Stage::Translating || self.ended.includes(&packet) {
                return Verdict::Drop(DropReason::WrongSource);
            }
            // A response to the packet must not be attributed to another connection.
            self.sources.note_untracked(source_of(&packet), now, self.last_tick);
            return self.on_untracked(frame, layout, port, now, out);
        }
        let flow = self.connections.flow(id);
        if flow.may_be_ended && self.ended.includes(&packet) {
            return self.drop_unless_early(Self::drop_ended_packet, frame, layout, port, now, out);
        }
        if flow.is_started && !flow.window().fits(psn) {
            // Either the queue pair has a new connection, or the packet is forged. The UDP source port does
            // not distinguish the two, because a network that changes paths may change it.
            if !packet.verify_icrc() {
                return Self::WRONG_ICRC;
            }
            if flow.stage >= Stage::Translating {
                return self.drop_unless_early(Self::drop_stray_packet, frame, layout, port, now, out);
            }
            if self.is_for_successor(&packet, now) || self.is_in_use(id, now) {
                // If the connection were forgotten, responses to it could be attributed to another one.
                self.counters.strays.add(1);
                self.sources.note_untracked(source_of(&packet), now, self.last_tick);
                return self.on_untracked(frame, layout, port, now, out);
            }
            self.forget(id);
            let Some(new) = self.endpoint_of(&packet) else {
                return self.on_untracked(frame, layout, port, now, out);
            };
            id = new;
            _ = self.is_from_known_host(id, source_of(&packet), &packet);
        }
        if is_known || !self.connections.flow(id).may_update_headers(psn) {
            self.connections.endpoint_mut(id).seen = now;
        } else {
            self.store_headers(id, &packet, port, now);
        }
        if self.connections.flow(id).disconnected && self.connections.flow(id).stage < Stage::Translating {
            // The DREQ was forged, or the connection goes on for another reason.
            self.connections.flow_mut(id).disconnected = false;
        }
        match self.connections.flow(id).stage {
            Stage::Ended => self.drop_ended_packet(),
            Stage::Translating => self.on_translated(id, frame, layout, op, port, now, out),
            _ => self.on_untranslated(id, frame, layout, op, port, now, out),
        }
    }

    /// Drops, by `drop`, a packet that the server might take for a request that it has executed: one of an
    /// ended connection, or one to a translated connection whose PSN is outside the window. Early requests of
    /// a successor are forwarded.
    #[cold]
    fn drop_unless_early<O: Output>(
        &mut self,
        drop: fn(&Self) -> Verdict,
        frame: &mut O::Frame,
        layout: Layout,
        port: PortId,
        now: Nanos,
        out: &mut O,
    ) -> Verdict {
        let packet = Packet::new(frame.bytes(), layout);
        if self.is_for_successor(&packet, now) {
            return self.on_untracked(frame, layout, port, now, out);
        }
        drop(self)
    }

    /// Returns whether requests to this endpoint were seen within `settle`: responses to them may still
    /// arrive.
    pub(crate) fn is_in_use(&self, id: Id, now: Nanos) -> bool {
        now.since(self.connections.endpoint(id).seen) <= self.config.settle
    }

    /// Returns whether a packet to `id` comes from a new host, and the previous host has been silent for
    /// `dead_after`: the queue pair has another connection. A translated connection is never taken over,
    /// since the packet may be forged.
    #[cold]
    fn is_taken_over(&self, id: Id, packet: &Packet<'_>, now: Nanos) -> bool {
        let end = self.connections.endpoint(id);
        end.from != 0
            && end.from != source_of(packet)
            && self.connections.flow(id).stage < Stage::Translating
            && now.since(end.seen) > self.config.dead_after
            && packet.verify_icrc()
    }

    /// Returns whether a request to `id` comes from the same host as before. The first request sets the host.
    fn is_from_known_host(&mut self, id: Id, from: u128, packet: &Packet<'_>) -> bool {
        let end = self.connections.endpoint_mut(id);
        if end.from == 0 {
            if !packet.verify_icrc() {
                return false;
            }
            end.from = from;
            self.sources.add(from);
            self.connections.flow_mut(id).may_be_ended = self.ended.may_include(packet);
            if self.connections.endpoint(id).peer() == NONE {
                self.connections.add_unpaired(id);
            }
        }
        self.connections.endpoint(id).from == from
    }

    /// Stores the headers of a packet to `id`, and the port on which its sender is reached.
    #[cold]
    fn store_headers(&mut self, id: Id, packet: &Packet<'_>, port: PortId, now: Nanos) {
        let end = self.connections.endpoint_mut(id);
        end.seen = now;
        // A packet that may be damaged is not stored.
        if !end.headers.has_path_of(packet) && packet.verify_icrc() {
            end.refresh(packet);
        }
        let peer = end.peer();
        if peer != NONE && end.peer_port != port {
            end.peer_port = port;
            self.connections.endpoint_mut(peer).port = port;
        }
    }

    /// Handles a request of a connection that is not translated.
    #[allow(clippy::too_many_arguments, reason = "a frame with its layout, port and time")]
    fn on_untranslated<O: Output>(
        &mut self,
        id: Id,
        frame: &mut O::Frame,
        layout: Layout,
        op: Op,
        port: PortId,
        now: Nanos,
        out: &mut O,
    ) -> Verdict {
        let packet = Packet::new(frame.bytes(), layout);
        let psn = packet.bth().psn();
        let flow = self.connections.flow(id);
        // Tracked requests need a valid ICRC. While the PSN count of a READ is unknown, a READ with the next
        // PSN may be a retransmission of its rest.
        let rest = flow.uncounted_read.is_some() && op.kind == Kind::Read && psn == flow.next;
        let lost = flow.is_started && (flow.next.precedes(psn) || rest);
        let new = !flow.is_started || psn == flow.next || lost;
        if new && !packet.verify_icrc() {
            return Self::WRONG_ICRC;
        }
        let server = flow.server;
        if self.lines.len() > 0
            && !self.is_trusted(id, source_of(&packet))
            && !self.may_invalidate(id, server, &packet, now)
        {
            return self.delay();
        }
        if !new {
            self.connections.flow_mut(id).note_late(psn);
            self.connections.flow_mut(id).existence.forget_structures();
        }
        let now_or_later = if new {
            self.invalidate_tracked(id, server, &packet, now)
        } else {
            self.invalidate_retransmitted(id, server, &packet, op, now)
        };
        if now_or_later.is_err() {
            self.suspend_until_retransmitted(id, server, &packet, now);
            return self.delay();
        }
        if new {
            if lost {
                // The missing requests may still overtake this one on the way to the server.
                self.connections.restart_tracking(id, psn);
            }
            self.track(id, &packet, op, now);
            if self.connections.flow(id).stage == Stage::Synced
                && (self.wants_sharing(id, &packet, op) || self.wants_steering(id, &packet))
                && self.has_all_messages_of(id)
            {
                self.request_translation(id);
            }
        } else if matches!(op.kind, Kind::Read | Kind::Atomic | Kind::AtomicWriteOrFlush)
            && packet.verify_icrc()
        {
            self.track_late(id, &packet, op);
        }
        self.forward.route(frame, port, now, out)
    }

    /// Records a READ or an atomic that arrived behind later requests, or that was sent before tracking
    /// began.
    fn track_late(&mut self, id: Id, packet: &Packet<'_>, op: Op) {
        let psn = packet.bth().psn();
        let known = |record: &Record| match op.kind {
            Kind::Atomic => {
                record.count > 0 && record.psn == psn && record.kind != RecordKind::UncountedReads
            }
            _ => (0..record.count as i32).contains(&psn.distance(record.psn)),
        };
        if self.connections.records(id).iter().any(known) {
            return;
        }
        let mut record =
            Record { psn, count: 1, server_psn: psn, kind: RecordKind::UncountedReads, ..NO_RECORD };
        match (op.kind, memory_of(packet)) {
            (Kind::Atomic, _) => self.connections.find_result(id, &mut record),
            (Kind::Read, Some((_, _, len))) => {
                record.count =
                    self.connections.flow(id).limits.psn_count_of(len).unwrap_or(len.div_ceil(MIN_PATH_MTU));
            }
            _ => {}
        }
        self.connections.record(id, record);
    }

    /// Returns whether this worker gets all messages of the connection manager about a connection, and its packets in
    /// both directions: the client is no server of another worker.
    fn has_all_messages_of(&self, id: Id) -> bool {
        let client = self.connections.key(self.connections.endpoint(id).peer());
        let other = client.and_then(|client| self.owners.worker_of_server(client.host()));
        other.is_none_or(|worker| worker == self.worker)
    }

    /// Requests permission to translate a connection from the control plane.
    fn request_translation(&mut self, id: Id) {
        if let Some(connection) = self.connections.connection_of(id) {
            let flow = self.connections.flow_mut(id);
            (flow.stage, flow.journaled) = (Stage::Requesting, true);
            self.events.push_back(Event::TranslationRequested(connection));
        }
    }

    /// Tracks a request that arrived in order and is forwarded on its own connection.
    pub(super) fn track(&mut self, id: Id, packet: &Packet<'_>, op: Op, now: Nanos) {
        let psn = packet.bth().psn();
        let flow = self.connections.flow_mut(id);
        if !flow.is_started {
            flow.begin(psn);
        }
        self.connections.resolve_read_count(id, psn);
        if op.kind == Kind::Write {
            self.learn_from_write(id, packet);
        }
        let memory = memory_of(packet);
        let flow = self.connections.flow_mut(id);
        let mut count = 1;
        if op.kind == Kind::Read
            && let Some((_, _, len)) = memory
        {
            match flow.limits.psn_count_of(len) {
                Some(known) => count = known,
                None => flow.uncounted_read = NonZero::new(len),
            }
        }
        // On other connections, any host can forge the next request, because no PSN check has been passed.
        let is_trusted = flow.stage == Stage::Translating;
        let len = packet.payload().len() as u16;
        if is_trusted {
            flow.limits.note_payload(len.into());
        }
        if op.kind == Kind::Write && !op.is_last {
            if is_trusted {
                flow.limits.set_mtu(len);
            }
            if let Some(message) = Message::of(packet) {
                // If this is in the middle of another message, one of the two is forged.
                if is_trusted && !flow.in_message && flow.is_idle() {
                    flow.long_writes.end_at(psn);
                }
                flow.long_writes.begin(message);
            }
        }
        let server_psn = flow.translation.to_server(psn);
        flow.next = psn.add(count);
        flow.sent = flow.next;
        flow.translation.set_next(server_psn.add(count));
        flow.in_message = !op.is_last;
        flow.existence.note_request(flow.sent, now);
        if let Some((va, ..)) = memory
            && let Some((structure, _)) = self.steering.at(flow.server, va)
        {
            flow.existence.note_structure(structure, flow.sent, now);
        }
        if let Some((va, rkey, len)) = memory
            && len > 0
        {
            let rights = rights_of(op.kind);
            if rights != 0 {
                let line = self.lines.find(flow.server, va).map(|line| self.lines.get(line));
                let is_there =
                    line.is_none_or(|line| !in_one_line(va, len as usize) || line.exists(va, len as u8));
                if !is_there || !flow.proofs.has(rkey, rights, self.period) {
                    flow.pending.note_unproven(psn);
                }
                flow.begin_proof(Proof::new(rkey, rights, self.period));
            }
            if rights != 0 || op.kind == Kind::Read {
                self.note_access(id, va, rkey, len);
            }
        }
        let kind = match op.kind {
            Kind::Atomic => RecordKind::Atomic,
            Kind::Read | Kind::AtomicWriteOrFlush => RecordKind::Read,
            _ => return,
        };
        self.connections.record(id, Record { psn, count, server_psn, kind, done: false, ..NO_RECORD });
    }
}
