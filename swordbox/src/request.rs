//! Handling of client requests.
//!
//! While a connection is not translated, its requests are forwarded unchanged and only tracked. Its
//! translation begins when one of its operations is to use a shared QP. From then on the switch is a
//! responder towards the client, which accepts requests in order and executes retransmitted ones once, and a
//! requester towards the server.

use crate::answer::Answer;
use crate::config::Connection;
use crate::flow::{Stage, rights_of};
use crate::function::{Event, NO_SERVER, Swordbox, source_of};
use crate::lines::in_one_line;
use crate::message::Message;
use crate::op::{Kind, Op, memory_of};
use crate::proof::Proof;
use crate::records::{NO_RECORD, Record, What};
use crate::way::Way;
use crate::{Id, NONE};
use core::num::NonZero;
use rocev2::aeth::{NakCode, Syndrome};
use rocev2::rewrite::Rewriter;
use rocev2::{Class, Fault, Layout, Packet, Psn, Qpn, classify};
use switch::{DropReason, Frame, Nanos, Output, PortId, Verdict};

/// Result of processing a request.
pub(crate) enum Done {
    /// The bridge forwards the rewritten frame.
    Route,
    /// The frame leaves through this port.
    Sent(PortId),
    /// The frame was replaced by the response, which leaves through this port.
    Answered(PortId),
    /// The frame is consumed.
    Taken,
    /// The request has to wait: for this shared QP, or, if `NONE`, for the client's own requests
    Wait(Id),
    /// The client has to retransmit the request, which is NAKed
    Ask,
}

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
        let Some(id) = self.end_of_request(&packet) else {
            if self.has_ended(&packet) {
                return self.refuse_ended(frame, layout, port, now, out);
            }
            return self.on_stranger(frame, layout, port, now, out);
        };
        if self.flows[id as usize].server == NO_SERVER {
            // Only the number of queue pairs is of interest.
            self.ends[id as usize].seen = now;
            return self.forward.route(frame, port, now, out);
        }
        if self.flows[id as usize].is_own {
            // The switch is the only requester on switch-owned QPs.
            self.counters.spoofed.add(1);
            return Verdict::Drop(DropReason::WrongSource);
        }
        let is_strict = self.flows[id as usize].stage == Stage::Strict;
        let end = &mut self.ends[id as usize];
        // A connection becomes translated only after some of its requests, so their headers and port are
        // known.
        let is_known = is_strict && end.knows(&packet, port);
        if is_known
            && let Some(passage) = self.straight_way_of(id, &packet, op)
            && packet.verify_icrc_inline()
        {
            debug_assert_eq!(
                self.way_of(id, &packet, op, now),
                Way::Lane(passage),
                "the general path has to choose the same route"
            );
            self.ends[id as usize].seen = now;
            let flow = &mut self.flows[id as usize];
            flow.nak_due = false;
            flow.turned_away = false;
            return match self.share_inline(id, passage, frame, layout, now) {
                Done::Sent(port) | Done::Answered(port) => Verdict::Forward(port),
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
        #[cfg(debug_assertions)]
        if self.config.bug == Some(crate::Bug::NewPort)
            && self.ends[id as usize].headers.has_other_port(&packet)
            && let from = self.ends[id as usize].from
            && (from == 0 || from == source_of(&packet))
        {
            self.forget(id);
            id = self.end_of(&packet).unwrap_or(id);
        }
        if !is_known && self.is_taken_over(id, &packet, now) {
            self.forget(id);
            let Some(new) = self.end_of(&packet) else {
                return self.on_stranger(frame, layout, port, now, out);
            };
            id = new;
        }
        if !is_known && !self.is_from(id, source_of(&packet), &packet) {
            self.counters.spoofed.add(1);
            if self.flows[id as usize].stage >= Stage::Strict || self.has_ended(&packet) {
                return Verdict::Drop(DropReason::WrongSource);
            }
            self.note_stray(source_of(&packet), now);
            return self.on_stranger(frame, layout, port, now, out);
        }
        let flow = &self.flows[id as usize];
        if flow.haunted && self.has_ended(&packet) {
            return self.refuse_ended(frame, layout, port, now, out);
        }
        if flow.begun && !flow.window().fits(psn) {
            // Either the queue pair has a new connection, or the packet is forged. The UDP source port does
            // not distinguish the two, because a network that changes paths may change it.
            if !packet.verify_icrc() {
                return Verdict::Drop(DropReason::Malformed(Fault::Icrc));
            }
            if flow.stage >= Stage::Strict {
                return self.refuse_stray(frame, layout, port, now, out);
            }
            if self.is_of_successor(&packet, now) || self.is_in_use(id, now) {
                // If the connection were forgotten, responses to it could be attributed to another one.
                self.counters.strays.add(1);
                self.note_stray(source_of(&packet), now);
                return self.on_stranger(frame, layout, port, now, out);
            }
            self.forget(id);
            let Some(new) = self.end_of(&packet) else {
                return self.on_stranger(frame, layout, port, now, out);
            };
            id = new;
            _ = self.is_from(id, source_of(&packet), &packet);
        }
        if is_known || !self.flows[id as usize].is_believed(psn) {
            self.ends[id as usize].seen = now;
        } else {
            self.note(id, &packet, port, now);
        }
        if self.flows[id as usize].over && self.flows[id as usize].stage < Stage::Strict {
            // The DREQ was forged, or the connection goes on for another reason.
            self.flows[id as usize].over = false;
        }
        match self.flows[id as usize].stage {
            Stage::Ended => {
                self.counters.ended.add(1);
                Verdict::Drop(DropReason::NoQueuePair)
            }
            Stage::Strict => self.on_strict(id, frame, layout, op, port, now, out),
            _ => self.on_transparent(id, frame, layout, op, port, now, out),
        }
    }

    /// Drops a packet to a translated connection whose PSN is outside the window, since the server might take
    /// it for a request that it has executed. Early requests of a successor are forwarded.
    #[cold]
    fn refuse_stray<O: Output>(
        &mut self,
        frame: &mut O::Frame,
        layout: Layout,
        port: PortId,
        now: Nanos,
        out: &mut O,
    ) -> Verdict {
        let packet = Packet::new(frame.bytes(), layout);
        if self.is_of_successor(&packet, now) {
            return self.on_stranger(frame, layout, port, now, out);
        }
        self.counters.strays.add(1);
        Verdict::Drop(DropReason::NoQueuePair)
    }

    /// Drops a packet of an ended connection, for the same reason. Early requests of a successor are
    /// forwarded.
    #[cold]
    fn refuse_ended<O: Output>(
        &mut self,
        frame: &mut O::Frame,
        layout: Layout,
        port: PortId,
        now: Nanos,
        out: &mut O,
    ) -> Verdict {
        let packet = Packet::new(frame.bytes(), layout);
        if self.is_of_successor(&packet, now) {
            return self.on_stranger(frame, layout, port, now, out);
        }
        self.counters.ended.add(1);
        Verdict::Drop(DropReason::NoQueuePair)
    }

    /// Notes that a packet without a tracked connection is forwarded: a response to it must not be attributed
    /// to another connection.
    #[cold]
    fn note_stray(&mut self, from: u128, now: Nanos) {
        if !self.sources.stray(from, now) {
            self.overflowed = Some(self.tick);
        }
    }

    /// Returns whether requests to this endpoint were seen within `settle`: responses to them may still
    /// arrive.
    pub(crate) fn is_in_use(&self, id: Id, now: Nanos) -> bool {
        now.since(self.ends[id as usize].seen) <= self.config.settle
    }

    /// Returns whether a packet to `id` comes from a new host, and the previous host has been silent for
    /// `dead_after`: the queue pair has another connection. A translated connection is never taken over,
    /// since the packet may be forged.
    #[cold]
    fn is_taken_over(&self, id: Id, packet: &Packet<'_>, now: Nanos) -> bool {
        let end = &self.ends[id as usize];
        end.from != 0
            && end.from != source_of(packet)
            && self.flows[id as usize].stage < Stage::Strict
            && now.since(end.seen) > self.config.dead_after
            && packet.verify_icrc()
    }

    /// Returns whether a request belongs to an ended connection.
    fn has_ended(&self, packet: &Packet<'_>) -> bool {
        let (server, client) = ((packet.dst(), packet.bth().dest_qp()), (packet.src(), Qpn::new(0)));
        self.ended
            .get(&Connection { server, client })
            .is_some_and(|gone| !gone.is_new(packet.bth().psn()) || !packet.verify_icrc())
    }

    /// Returns whether a request to `id` comes from the same host as before. The first request sets the host.
    fn is_from(&mut self, id: Id, from: u128, packet: &Packet<'_>) -> bool {
        let end = &mut self.ends[id as usize];
        if end.from == 0 {
            if !packet.verify_icrc() {
                return false;
            }
            end.from = from;
            self.sources.add(from);
            let (server, client) = ((packet.dst(), packet.bth().dest_qp()), (packet.src(), Qpn::new(0)));
            self.flows[id as usize].haunted = self.ended.contains_key(&Connection { server, client });
            if self.ends[id as usize].peer == NONE {
                self.await_peer(id);
            }
        }
        self.ends[id as usize].from == from
    }

    /// Stores the headers of a packet to `id`, and the port on which its sender is reached.
    #[cold]
    fn note(&mut self, id: Id, packet: &Packet<'_>, port: PortId, now: Nanos) {
        let end = &mut self.ends[id as usize];
        end.seen = now;
        // A packet that may be damaged is not stored.
        if !end.headers.leads_like(packet) && packet.verify_icrc() {
            end.refresh(packet);
        }
        let peer = end.peer;
        if peer != NONE && end.came_on != port {
            end.came_on = port;
            self.ends[peer as usize].port = port;
        }
    }

    /// Handles a request of a connection that is not translated.
    #[allow(clippy::too_many_arguments, reason = "a frame with its layout, port and time")]
    fn on_transparent<O: Output>(
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
        let flow = &self.flows[id as usize];
        // Tracked requests need a valid ICRC. While the PSN count of a READ is unknown, a READ with the next
        // PSN may be a retransmission of its rest.
        let rest = flow.unsure.is_some() && op.kind == Kind::Read && psn == flow.next;
        let lost = flow.begun && (flow.next.precedes(psn) || rest);
        let new = !flow.begun || psn == flow.next || lost;
        if new && !packet.verify_icrc() {
            return Verdict::Drop(DropReason::Malformed(Fault::Icrc));
        }
        let server = flow.server;
        if self.lines.len() > 0
            && !self.is_trusted(id, source_of(&packet))
            && !self.may_disturb(id, server, &packet, now)
        {
            self.counters.delayed.add(1);
            return Verdict::Drop(DropReason::Delayed);
        }
        if !new {
            self.flows[id as usize].saw(psn);
            self.flows[id as usize].forget_structures();
        }
        let now_or_later = if new {
            self.detour_of(id, server, &packet, now)
        } else {
            self.detour_again(id, server, &packet, op, now)
        };
        if now_or_later.is_err() {
            self.await_again(id, server, &packet, now);
            self.counters.delayed.add(1);
            return Verdict::Drop(DropReason::Delayed);
        }
        if new {
            if lost {
                // The missing requests may still overtake this one on the way to the server.
                self.restart_at(id, psn);
            }
            self.follow(id, &packet, op, now);
            if self.flows[id as usize].stage == Stage::Clear
                && (self.wants_lane(id, &packet, op) || self.wants_steering(id, &packet))
            {
                self.ask(id);
            }
        } else if matches!(op.kind, Kind::Read | Kind::Atomic | Kind::Other) && packet.verify_icrc() {
            self.follow_late(id, &packet, op);
        }
        self.forward.route(frame, port, now, out)
    }

    /// Records a READ or an atomic that arrived behind later requests, or that was sent before tracking
    /// began.
    fn follow_late(&mut self, id: Id, packet: &Packet<'_>, op: Op) {
        let psn = packet.bth().psn();
        let known = |record: &Record| match op.kind {
            Kind::Atomic => record.count > 0 && record.psn == psn && record.what != What::Unseen,
            _ => (0..record.count as i32).contains(&psn.distance(record.psn)),
        };
        if self.records(id).iter().any(known) {
            return;
        }
        let mut record = Record { psn, count: 1, own: psn, what: What::Unseen, ..NO_RECORD };
        match (op.kind, memory_of(packet)) {
            (Kind::Atomic, _) => self.look_up(id, &mut record),
            (Kind::Read, Some((_, _, len))) => {
                record.count = self.flows[id as usize].count_of(len).unwrap_or(len.div_ceil(256));
            }
            _ => {}
        }
        self.record(id, record);
    }

    /// Requests permission to translate a connection from the control plane.
    fn ask(&mut self, id: Id) {
        if let Some(connection) = self.connection_of(id) {
            let flow = &mut self.flows[id as usize];
            (flow.stage, flow.written) = (Stage::Asked, true);
            self.events.push_back(Event::Diverging(connection));
        }
    }

    /// Tracks a request that arrived in order and is forwarded on its own connection.
    fn follow(&mut self, id: Id, packet: &Packet<'_>, op: Op, now: Nanos) {
        let psn = packet.bth().psn();
        let flow = &mut self.flows[id as usize];
        if !flow.begun {
            flow.begin(psn);
        }
        self.resolve(id, psn);
        if op.kind == Kind::Write {
            self.see_write(id, packet);
        }
        let memory = memory_of(packet);
        let flow = &mut self.flows[id as usize];
        let mut count = 1;
        if op.kind == Kind::Read
            && let Some((_, _, len)) = memory
        {
            match flow.count_of(len) {
                Some(known) => count = known,
                None => flow.unsure = NonZero::new(len),
            }
        }
        // On other connections, any host can forge the next request, because no PSN check has been passed.
        let is_trusted = flow.stage == Stage::Strict;
        let len = packet.payload().len() as u16;
        if is_trusted {
            flow.saw_payload(len.into());
        }
        if op.kind == Kind::Write && !op.ends {
            if is_trusted {
                flow.mtu = len;
            }
            if let Some(message) = Message::of(packet) {
                // If this is in the middle of another message, one of the two is forged.
                if is_trusted && !flow.in_message && flow.is_quiet() {
                    flow.long_writes.end_at(psn);
                }
                flow.long_writes.begin(message);
            }
        }
        let own = psn.add(flow.delta);
        flow.next = psn.add(count);
        flow.sent = flow.next;
        flow.own_next = own.add(count);
        flow.in_message = !op.ends;
        if flow.showing.is_none() {
            flow.showing = Some((flow.sent, now));
        }
        if let Some((va, ..)) = memory
            && let Some((structure, _)) = self.steering.at(flow.server, va)
        {
            flow.asks_structure(structure, now);
        }
        if let Some((va, rkey, len)) = memory
            && len > 0
        {
            let rights = rights_of(op.kind);
            if rights != 0 {
                let line = self.lines.find(flow.server, va).map(|line| self.lines.get(line));
                let is_there =
                    line.is_none_or(|line| !in_one_line(va, len as usize) || line.has_reached(va, len as u8));
                if !is_there || !flow.has_proven(rkey, rights, self.period) {
                    flow.trial = Some(psn);
                }
                flow.prove(Proof::new(rkey, rights, self.period));
            }
            if rights != 0 || op.kind == Kind::Read {
                self.reach(id, va, rkey, len);
            }
        }
        let what = match op.kind {
            Kind::Atomic => What::Atomic,
            Kind::Read | Kind::Other => What::Read,
            _ => return,
        };
        self.record(id, Record { psn, count, own, what, done: false, ..NO_RECORD });
    }

    /// Resolves the PSN count of the last READ from the PSN of the request behind it.
    #[inline]
    fn resolve(&mut self, id: Id, psn: Psn) {
        let flow = &mut self.flows[id as usize];
        if flow.took_one(psn) {
            if let Some(len) = flow.unsure {
                // The PSN count is only the client's claim.
                flow.take_psns(flow.next, len.get());
            }
            self.counted(id, 1);
        }
    }

    /// Restarts the tracking of an untranslated connection at this PSN. The acknowledgement of a later
    /// request shows that all before are complete.
    pub(crate) fn restart_at(&mut self, id: Id, psn: Psn) {
        let unsure = self.flows[id as usize].unsure.map(|_| self.flows[id as usize].next.sub(1));
        for record in self.records_mut(id) {
            if unsure == Some(record.psn) && record.count == 1 {
                // The READ may have taken all PSNs up to the new one.
                record.count = psn.distance(record.psn).max(1) as u32;
            }
            if !record.done {
                record.what = if record.what == What::Atomic { What::Unknown } else { What::Unseen };
                record.done = true;
            }
        }
        let flow = &mut self.flows[id as usize];
        flow.open = 0;
        if let Some(len) = flow.unsure.take() {
            flow.take_psns(flow.next, len.get());
        }
        flow.cm_params = None;
        flow.forget_structures();
        (flow.proving, flow.reaching) = (None, None);
        flow.stage = flow.stage.min(Stage::Paired);
        flow.begin(psn);
    }

    /// Sets the PSN count of the last request, a READ.
    pub(crate) fn counted(&mut self, id: Id, count: u32) {
        let flow = &mut self.flows[id as usize];
        flow.unsure = None;
        let first = flow.next.sub(1);
        flow.next = first.add(count);
        flow.sent = flow.next;
        flow.own_next = flow.next.add(flow.delta);
        for record in
            self.records_mut(id).iter_mut().filter(|record| record.psn == first && record.count == 1)
        {
            record.count = count;
        }
    }

    /// Handles a request of a translated connection.
    #[allow(clippy::too_many_arguments, reason = "a frame with its layout, port and time")]
    fn on_strict<O: Output>(
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
        if !packet.verify_icrc() {
            return Verdict::Drop(DropReason::Malformed(Fault::Icrc));
        }
        let psn = packet.bth().psn();
        if op.kind != Kind::Read {
            self.resolve(id, psn);
        }
        let flow = &self.flows[id as usize];
        if psn.precedes(flow.next) {
            self.counters.repeated.add(1);
            return self.on_repeated(id, frame, layout, op, port, now, out);
        }
        if flow.unsure.is_some() || self.holds_unsure(id) {
            // The end of the READ before this request is unknown.
            self.ask_again(id, now, out);
            return Verdict::Drop(DropReason::OutOfOrder);
        }
        if psn != flow.next {
            self.counters.out_of_order.add(1);
            self.ask_again(id, now, out);
            return Verdict::Drop(DropReason::OutOfOrder);
        }
        // The client continues from `next`, whether or not it got a NAK.
        let flow = &mut self.flows[id as usize];
        if flow.asking && flow.nak_sent {
            // After the NAK for this request the client has retransmitted nothing before it, so it has all
            // responses.
            (flow.asking, flow.forgotten) = (false, false);
        }
        flow.nak_due = false;
        flow.turned_away = false;
        if core::mem::take(&mut flow.nak_sent)
            && let Some(lane) = self.lanes.get_mut(flow.lane as usize)
            && now < lane.reserved
        {
            // The owner has used its reserved turn.
            lane.reserved = Nanos::ZERO;
        }
        if !self.flows[id as usize].holds() {
            match self.take(id, frame, layout, op, now) {
                Done::Route => return self.forward.route(frame, port, now, out),
                Done::Sent(port) | Done::Answered(port) => return Verdict::Forward(port),
                Done::Taken => return Verdict::Consume,
                Done::Wait(lane) => {
                    self.wait(id, lane);
                    // Each NAK consumes one of the client's retries. A request that finds no slot is
                    // therefore forwarded on its own connection if possible, as if nothing were shared.
                    if self.held.is_full() && matches!(self.take_own(id, frame, layout, op, now), Done::Route)
                    {
                        return self.forward.route(frame, port, now, out);
                    }
                }
                Done::Ask => {
                    self.ask_for_message(id, now, out);
                    return Verdict::Drop(DropReason::Delayed);
                }
            }
        }
        self.hold(id, frame, layout, op, port)
    }

    /// Holds a request, or drops it and schedules a NAK.
    fn hold<F: Frame>(&mut self, id: Id, frame: &F, layout: Layout, op: Op, port: PortId) -> Verdict {
        let packet = Packet::new(frame.bytes(), layout);
        let flow = &mut self.flows[id as usize];
        let count = match (op.kind, memory_of(&packet)) {
            (Kind::Read, Some((_, _, len))) => flow.count_of(len),
            _ => Some(1),
        };
        if self.held.push(&mut flow.held, frame.bytes(), port) {
            // No request is held behind a READ with unknown PSN count.
            flow.next = flow.next.add(count.unwrap_or(1));
            self.counters.waited.add(1);
            return Verdict::Consume;
        }
        flow.nak_due = true;
        flow.turned_away = true;
        self.counters.overflowed.add(1);
        Verdict::Drop(DropReason::Delayed)
    }

    /// Returns whether the last held request is a READ with unknown PSN count.
    fn holds_unsure(&self, id: Id) -> bool {
        let flow = &self.flows[id as usize];
        let Some((bytes, _)) = self.held.first([flow.held[1], NONE]) else { return false };
        let Class::Roce(layout) = classify(bytes) else { return false };
        let memory = memory_of(&Packet::new(bytes, layout));
        Op::of(layout.opcode()).kind == Kind::Read
            && memory.is_some_and(|(.., len)| flow.count_of(len).is_none())
    }

    /// Forwards the next request in order if its route permits.
    fn take<F: Frame>(&mut self, id: Id, frame: &mut F, layout: Layout, op: Op, now: Nanos) -> Done {
        let packet = Packet::new(frame.bytes(), layout);
        match self.way_of(id, &packet, op, now) {
            Way::Lane(passage) => self.share(id, passage, frame, layout, now),
            Way::Own => self.take_own(id, frame, layout, op, now),
            Way::Wait(lane) => Done::Wait(lane),
        }
    }

    /// Forwards a request on its client's own connection if nothing has to complete before.
    fn take_own<F: Frame>(&mut self, id: Id, frame: &mut F, layout: Layout, op: Op, now: Nanos) -> Done {
        let packet = Packet::new(frame.bytes(), layout);
        let flow = &self.flows[id as usize];
        if flow.shared > 0 || flow.rereading {
            return Done::Wait(NONE);
        }
        if flow.lane != NONE {
            let lane = &self.lanes[flow.lane as usize];
            // Operations of other clients on this shared QP have to complete first. Clients that wait for the
            // QP get their turn between two of the owner's requests.
            if lane.under_way > 0 {
                return Done::Wait(flow.lane);
            }
            if lane.waiting[0] != NONE && lane.waiting[0] != id && !flow.is_quiet() && !flow.in_message {
                return Done::Wait(NONE);
            }
        }
        if matches!(op.kind, Kind::Read | Kind::Atomic | Kind::Other)
            && flow.open as usize >= self.config.rd_atomic
        {
            return Done::Wait(NONE);
        }
        if !op.ends && self.is_forgotten(id) {
            return Done::Ask;
        }
        let server = flow.server;
        if let Err(lane) = self.detour_until_done(id, server, &packet, op, now) {
            let lane = if lane == NONE { self.slowest_lane(server).unwrap_or(NONE) } else { lane };
            return Done::Wait(lane);
        }
        let psn = packet.bth().psn();
        let flow = &mut self.flows[id as usize];
        if let Some(lane) = self.lanes.get_mut(flow.lane as usize) {
            // The owner has used its reserved turn.
            lane.reserved = Nanos::ZERO;
        }
        if flow.is_quiet() && !flow.in_message {
            flow.via = NONE;
            flow.heard = flow.acked;
            flow.delta = flow.own_next.get().wrapping_sub(psn.get());
            flow.msn_delta = flow.own_msn.get().wrapping_sub(flow.msn.get());
        }
        self.follow_own(id, frame, layout, op, now);
        Done::Route
    }

    /// Tracks and rewrites a request that leaves on its own connection.
    fn follow_own<F: Frame>(&mut self, id: Id, frame: &mut F, layout: Layout, op: Op, now: Nanos) {
        let packet = Packet::new(frame.bytes(), layout);
        let next = self.flows[id as usize].next;
        let quiet = self.flows[id as usize].is_quiet();
        self.follow(id, &packet, op, now);
        let by = self.steer(id, &packet, op, quiet, now);
        let flow = &mut self.flows[id as usize];
        // `next` already counts the requests held behind this one.
        if !next.precedes(flow.next) {
            flow.next = next;
        }
        let own = packet.bth().psn().add(flow.delta);
        // Without an acknowledgement of the last packet, the switch could not tell when other requests may
        // follow.
        rewrite_request(frame, layout, own, op.ends, by);
    }

    /// Schedules a NAK for the expected PSN after a request out of order. The NAK is sent once it does not
    /// acknowledge requests in flight.
    fn ask_again<O: Output>(&mut self, id: Id, now: Nanos, out: &mut O) {
        let flow = &mut self.flows[id as usize];
        if flow.nak_due || flow.nak_sent {
            return;
        }
        flow.nak_due = true;
        self.tell_if_quiet(id, now, out);
    }

    /// Sends the scheduled NAK for `next` if all requests before it are complete.
    pub(crate) fn tell_if_quiet<O: Output>(&mut self, id: Id, now: Nanos, out: &mut O) {
        let flow = &mut self.flows[id as usize];
        let busy = flow.holds() || !flow.is_quiet() || flow.unsure.is_some() || flow.rereading;
        if !flow.nak_due || busy || flow.stage != Stage::Strict {
            return;
        }
        let lane = flow.lane;
        if core::mem::take(&mut flow.turned_away) && lane != NONE {
            let there = &mut self.lanes[lane as usize];
            if there.under_way > 0 {
                flow.turned_away = true;
                self.wait(id, lane);
                return;
            }
            if there.reserved == Nanos::ZERO {
                // The owner has the next turn if it retransmits soon. Otherwise other clients would take the
                // shared QP each time before its request arrives.
                there.reserved = now + there.patience(self.config.replay_after);
            } else {
                // The owner has missed its reserved turn because its round trip is too long: other clients
                // use another shared QP.
                flow.leaving &= !there.is_given_back;
                self.leave(id);
                self.flows[id as usize].unfit_until = now + self.config.dead_after;
                self.counters.lanes_left.add(1);
            }
        }
        let flow = &mut self.flows[id as usize];
        flow.nak_due = false;
        flow.nak_sent = true;
        let next = flow.next;
        self.counters.naks.add(1);
        let nak = Answer::Syndrome(Syndrome::Nak(NakCode::PSN_SEQUENCE_ERROR));
        self.send_answer(id, next, nak, out);
    }

    /// Forwards held requests in order until one has to wait.
    pub(crate) fn pump<O: Output>(&mut self, id: Id, now: Nanos, out: &mut O) {
        if !self.send_reread(id, now, out) {
            return;
        }
        loop {
            let queue = self.flows[id as usize].held;
            let Some((bytes, port)) = self.held.first(queue) else { break };
            let Ok(mut frame) = out.make(bytes.len()) else {
                // No later event is certain to retry this flow.
                self.ready.push_back(id);
                return;
            };
            frame.bytes_mut().copy_from_slice(bytes);
            let Class::Roce(layout) = classify(frame.bytes()) else {
                self.held.pop(&mut self.flows[id as usize].held);
                continue;
            };
            let op = Op::of(layout.opcode());
            let to = match self.take(id, &mut frame, layout, op, now) {
                Done::Route => match self.forward.route(&mut frame, port, now, out) {
                    Verdict::Forward(port) => Some(port),
                    _ => None,
                },
                Done::Sent(port) | Done::Answered(port) => Some(port),
                Done::Taken => None,
                Done::Wait(lane) => {
                    self.wait(id, lane);
                    return;
                }
                Done::Ask => {
                    let flow = &mut self.flows[id as usize];
                    flow.next = Packet::new(frame.bytes(), layout).bth().psn();
                    self.held.clear(&mut flow.held);
                    self.ask_for_message(id, now, out);
                    return;
                }
            };
            self.held.pop(&mut self.flows[id as usize].held);
            if let Some(port) = to {
                _ = out.send(frame, port);
            }
        }
        self.tell_if_quiet(id, now, out);
    }
}

/// Sets a request's PSN, optionally its AckReq bit, and adds `by` to its virtual address.
pub(crate) fn rewrite_request<F: Frame>(frame: &mut F, layout: Layout, psn: Psn, ack_req: bool, by: u64) {
    let packet = Packet::new(frame.bytes(), layout);
    let (bth, memory) = (packet.bth(), memory_of(&packet));
    if bth.psn() == psn && (!ack_req || bth.ack_req()) && by == 0 {
        return;
    }
    let mut rewriter = Rewriter::new(frame.bytes_mut(), layout);
    rewriter.set_psn(psn);
    if ack_req {
        rewriter.set_ack_req(true);
    }
    if by != 0
        && let Some((va, ..)) = memory
    {
        _ = rewriter.set_remote_address(va.wrapping_add(by));
    }
    rewriter.finish();
}
