//! Handling of server responses. Each response is attributed to the requests that it answers, and forwarded
//! or regenerated for each client as on the client's own connection.

use crate::answer::Answer;
use crate::flow::Stage;
use crate::function::{NO_SERVER, Swordbox, source_of};
use crate::headers::{Base, Class8};
use crate::lane::{Lane, Under};
use crate::message::LONGEST;
use crate::records::{Record, What};
use crate::{Id, NONE};
use core::num::NonZero;
use rocev2::aeth::{Aeth, NakCode, Syndrome};
use rocev2::rewrite::Rewriter;
use rocev2::{Fault, Layout, Msn, Opcode, Packet, Psn};
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
        let server = self.server_of(from);
        if server == NO_SERVER {
            return self.forward.route(frame, port, now, out);
        }
        if !self.bereft.is_empty() && self.is_from_before(&packet, now) {
            if self.is_succeeded(&packet, port, now) {
                return self.forward.route(frame, port, now, out);
            }
            self.counters.ended.add(1);
            return Verdict::Drop(DropReason::NoQueuePair);
        }
        // Client's endpoint
        let Some(to) = self.end_of(&packet) else {
            return self.pass_unknown(frame, layout, port, now, out);
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
        if let Some(lane) = self.straight_answer_to(to, &packet, server, port)
            && packet.verify_icrc_inline()
        {
            self.ends[to as usize].seen = now;
            return self.answer_straight(lane, frame, now, out);
        }
        self.on_response_to(to, server, frame, layout, port, now, out)
    }

    /// Handles a server's response to a client's endpoint that is not on the straight path.
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
        let id = self.ends[to as usize].peer;
        if let Some(flow) = self.flows.get(id as usize)
            && flow.server != server
        {
            if flow.stage >= Stage::Strict {
                self.counters.spoofed.add(1);
                return Verdict::Drop(DropReason::WrongSource);
            }
            // A forged REQ and REP may have named the wrong server. Dropping the responses of the right one
            // would end a client's connection.
            return self.on_stray_answer(to, frame, layout, port, now, out);
        }
        if self.flows.get(id as usize).is_none_or(|flow| !flow.may_answer(packet.bth().psn()))
            && self.is_succeeded(&packet, port, now)
        {
            return self.forward.route(frame, port, now, out);
        }
        if let Some(flow) = self.flows.get(id as usize)
            && !flow.may_answer(packet.bth().psn())
        {
            return self.on_stray_answer(to, frame, layout, port, now, out);
        }
        let answers_request = id == NONE || self.awaits(id, packet.bth().psn());
        let end = &mut self.ends[to as usize];
        end.seen = now;
        // Headers of packets that may be damaged, forged or from another host are not stored.
        let ours = answers_request && (end.from == 0 || end.from == from);
        if ours && !end.headers.leads_like(&packet) && packet.verify_icrc() {
            end.refresh(&packet);
        }
        if id == NONE {
            if !packet.verify_icrc() {
                return Verdict::Drop(DropReason::Malformed(Fault::Icrc));
            }
            self.guess(to, &packet, from, port);
            return self.forward.route(frame, port, now, out);
        }
        let end = &mut self.ends[to as usize];
        // A forged response must not change the port on which requests leave.
        if answers_request && end.came_on != port {
            end.came_on = port;
            self.ends[id as usize].port = port;
        }
        let flow = &self.flows[id as usize];
        // Operations of other clients on this shared QP are completed even if the owner's own flow has ended.
        if flow.stage == Stage::Ended && flow.lane == NONE {
            self.counters.ended.add(1);
            return Verdict::Drop(DropReason::NoQueuePair);
        }
        // The switch has to see everything that a client learns, so a damaged response is dropped.
        if !packet.verify_icrc() {
            return Verdict::Drop(DropReason::Malformed(Fault::Icrc));
        }
        let psn = packet.bth().psn();
        if flow.via == NONE {
            self.learn_count(id, &packet, psn.sub(self.flows[id as usize].delta));
        }
        let flow = &self.flows[id as usize];
        if flow.stage < Stage::Strict {
            self.hear(id, &packet, psn);
            return self.forward.route(frame, port, now, out);
        }
        let flow = &self.flows[id as usize];
        let (lane, is_own) = (flow.lane, flow.is_own);
        if is_own && self.on_probe(lane, &packet, now, out) {
            return Verdict::Consume;
        }
        if lane != NONE
            && self.lanes[lane as usize].under_way > 0
            && !psn.precedes(self.lanes[lane as usize].acked)
        {
            return self.on_lane(lane, frame, layout, now, out);
        }
        if self.flows[id as usize].stage == Stage::Ended {
            self.counters.ended.add(1);
            return Verdict::Drop(DropReason::NoQueuePair);
        }
        let mut verdict = self.on_own(id, frame, layout, port, now, out);
        if self.is_awaited(id) || self.steering.published {
            verdict = send_first::<O>(verdict, frame, out);
            self.after_own(id, now, out);
            self.release(now, out);
        }
        verdict
    }

    /// Handles a response to a client's queue pair that matches no request of the tracked connection. Its
    /// client ignores it, unless the queue pair number was reused: then the response matches the requests of
    /// another connection.
    #[cold]
    fn on_stray_answer<O: Output>(
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
            return Verdict::Drop(DropReason::Malformed(Fault::Icrc));
        }
        self.counters.strays.add(1);
        let (id, from) = (self.ends[to as usize].peer, source_of(&packet));
        // Used for pairing if it arrives on the port of the known connection's server, or comes from another
        // server.
        if self.ends[id as usize].port == port || self.flows[id as usize].server != self.server_of(from) {
            self.guess(to, &packet, from, port);
        }
        self.forward.route(frame, port, now, out)
    }

    /// Returns whether a server's PSN answers a request without a response: one of the client itself, a
    /// retransmitted READ, or, on a shared QP, an operation of another client or the switch's probe.
    fn awaits(&self, id: Id, own: Psn) -> bool {
        let flow = &self.flows[id as usize];
        let psn = own.sub(flow.delta);
        let is_own = !flow.begun || !psn.precedes(flow.acked) && psn.distance(flow.sent) < flow.unsure_psns();
        let is_shared = |lane: &Lane| {
            (0..lane.under_way as i32).contains(&own.distance(lane.acked))
                || lane.probe.is_some_and(|probe| probe.psn == Some(own))
        };
        is_own || flow.rereads.awaits(own) || self.lanes.get(flow.lane as usize).is_some_and(is_shared)
    }

    /// Returns whether something waits for a flow's own requests, all of which are complete.
    fn is_awaited(&self, id: Id) -> bool {
        let flow = &self.flows[id as usize];
        let waiting = flow.lane != NONE && self.lanes[flow.lane as usize].waiting[0] != NONE;
        let rereads = flow.rereading && !flow.rereads.is_sent();
        flow.is_quiet() && (waiting || flow.holds() || flow.nak_due || rereads)
    }

    /// Continues with what waited for a flow's own requests, after a response on the own connection.
    pub(crate) fn after_own<O: Output>(&mut self, id: Id, now: Nanos, out: &mut O) {
        if !self.is_awaited(id) {
            return;
        }
        let flow = &self.flows[id as usize];
        let lane = flow.lane;
        if lane != NONE && self.lanes[lane as usize].waiting[0] != NONE && !flow.in_message {
            self.pump_lane(lane, now, out);
        }
        self.pump(id, now, out);
    }

    /// Returns whether a response is for a client whose connection ended with the switch's restart. It may
    /// belong to an operation of another client on that connection. Such responses arrive within `dead_after`
    /// of the first frame.
    #[cold]
    fn is_from_before(&mut self, packet: &Packet<'_>, now: Nanos) -> bool {
        let begun = *self.begun.get_or_insert(now);
        if now.since(begun) > self.config.dead_after {
            return false;
        }
        let client = (packet.dst(), packet.bth().dest_qp());
        let Some(key) = self.bereft.get(&client) else { return false };
        self.ended.get(key).is_some_and(|gone| gone.connection.client == client)
    }

    /// Handles a response on a client's own connection, which may have to be withheld.
    fn on_own<O: Output>(
        &mut self,
        id: Id,
        frame: &mut O::Frame,
        layout: Layout,
        port: PortId,
        now: Nanos,
        out: &mut O,
    ) -> Verdict {
        let packet = Packet::new(frame.bytes(), layout);
        let flow = &self.flows[id as usize];
        let psn = packet.bth().psn().sub(flow.delta);
        if flow.via == NONE
            && !psn.precedes(flow.acked)
            && psn.precedes(flow.sent)
            && let Some(verdict) = self.withhold(id, frame, &packet, psn, port)
        {
            return verdict;
        }
        self.pass_own(id, frame, layout, port, now, out)
    }

    /// Forwards a response on a client's own connection.
    pub(crate) fn pass_own<O: Output>(
        &mut self,
        id: Id,
        frame: &mut O::Frame,
        layout: Layout,
        port: PortId,
        now: Nanos,
        out: &mut O,
    ) -> Verdict {
        if self.flows[id as usize].rereading
            && let Some(verdict) = self.on_reread(id, frame, layout, port, now, out)
        {
            return verdict;
        }
        let packet = Packet::new(frame.bytes(), layout);
        let own = packet.bth().psn();
        let flow = &self.flows[id as usize];
        let psn = own.sub(flow.delta);
        let is_read = matches!(
            layout.opcode(),
            Opcode::RC_READ_RESPONSE_FIRST
                | Opcode::RC_READ_RESPONSE_MIDDLE
                | Opcode::RC_READ_RESPONSE_LAST
                | Opcode::RC_READ_RESPONSE_ONLY
        );
        if flow.via == NONE && !psn.precedes(flow.acked) && psn.precedes(flow.sent) {
            self.see_answer(id, &packet, psn);
            self.hear(id, &packet, psn);
            let flow = &self.flows[id as usize];
            let msn = packet.aeth().map(|aeth| Msn::new(aeth.msn().get().wrapping_sub(flow.msn_delta)));
            rewrite_response(frame, layout, psn, msn);
            return self.forward.route(frame, port, now, out);
        }
        // Responses to a READ whose last response overtook others, or that was retransmitted in the middle of
        // a message.
        if is_read {
            let reads =
                self.records(id).iter().filter(|record| matches!(record.what, What::Unseen | What::Read));
            let fitting = reads.filter_map(|record| Some((record, record.client_psn(own)?)));
            let nearest =
                fitting.min_by_key(|(record, _)| (own.distance(record.own), record.what == What::Unseen));
            if let Some((record, psn)) = nearest {
                let end = record.psn.add(record.count);
                let flow = &mut self.flows[id as usize];
                if psn.add(1) == end && flow.reading.is_some_and(|(until, _)| until == end) {
                    flow.reading = None;
                }
                let msn = packet.aeth().map(|_| self.flows[id as usize].msn);
                rewrite_response(frame, layout, psn, msn);
                return self.forward.route(frame, port, now, out);
            }
        }
        self.counters.stale.add(1);
        Verdict::Drop(DropReason::Stale)
    }

    /// Updates a flow from a response on its own connection. `psn` is the client's.
    pub(crate) fn hear(&mut self, id: Id, packet: &Packet<'_>, psn: Psn) {
        let opcode = packet.layout().opcode();
        if let Some(found) = packet.atomic_ack()
            && self.flows[id as usize].stage < Stage::Strict
        {
            // Needed even if everything before is known to be complete, since the client may not have the
            // response.
            for record in self.records_mut(id) {
                if record.psn == psn && record.what == What::Unknown {
                    record.what = What::Atomic;
                    record.value = found.original.get();
                }
            }
        }
        let flow = &self.flows[id as usize];
        if !flow.begun || psn.precedes(flow.acked) || !psn.precedes(flow.sent) {
            return;
        }
        match opcode {
            Opcode::RC_ACKNOWLEDGE => {
                let Some(aeth) = packet.aeth() else { return };
                match aeth.kind() {
                    Syndrome::Ack(credit) => {
                        self.flows[id as usize].credit = credit.0;
                        self.done(id, psn.add(1));
                    }
                    Syndrome::RnrNak(_) | Syndrome::Nak(NakCode::PSN_SEQUENCE_ERROR) => {
                        self.done(id, psn);
                    }
                    Syndrome::Nak(code) => {
                        // The server's queue pair is in error. Requests before this one are complete.
                        self.done(id, psn);
                        let flow = &mut self.flows[id as usize];
                        (flow.proving, flow.reaching) = (None, None);
                        self.end_detour(id, true);
                        self.note_refusal(id, psn, code);
                    }
                    Syndrome::Reserved(_) => return,
                }
                self.hear_msn(id, *aeth);
            }
            Opcode::RC_ATOMIC_ACKNOWLEDGE => {
                let Some(found) = packet.atomic_ack() else { return };
                let found = found.original.get();
                let record = self.records_mut(id).iter_mut().find(|record| record.psn == psn && !record.done);
                let Some(record) = record.filter(|record| record.what == What::Atomic) else { return };
                record.done = true;
                record.value = found;
                self.flows[id as usize].open -= 1;
                self.done(id, psn.add(1));
                if let Some(aeth) = packet.aeth() {
                    self.hear_msn(id, *aeth);
                }
            }
            _ => {
                let within =
                    |record: &&mut Record| (0..record.count as i32).contains(&psn.distance(record.psn));
                let records = self.records_mut(id).iter_mut().filter(within);
                let records = records.filter(|record| !record.done || record.what == What::Unseen);
                // The PSN count of a READ may be an estimate; the nearest READ is the right one.
                let Some(record) = records.min_by_key(|record| (psn.distance(record.psn), record.done))
                else {
                    return;
                };
                if record.what == What::Unseen {
                    self.done(id, psn.add(1));
                    return;
                }
                if record.what != What::Read {
                    return;
                }
                let (first, end) = (record.psn, record.psn.add(record.count));
                if psn.add(1) == end {
                    record.done = true;
                    self.flows[id as usize].open -= 1;
                    self.done(id, end);
                } else {
                    self.done(id, first);
                }
                if let Some(aeth) = packet.aeth() {
                    self.hear_msn(id, *aeth);
                }
            }
        }
    }

    /// Skips the current proof period if the server refuses a request whose client had the right: the right
    /// was revoked, and those of other clients may have been, too.
    fn note_refusal(&mut self, id: Id, psn: Psn, code: NakCode) {
        let flow = &self.flows[id as usize];
        let had = flow.trial != Some(psn) && flow.has_rights(self.period);
        if code == NakCode::REMOTE_ACCESS_ERROR && had {
            self.period.skip();
        }
    }

    fn hear_msn(&mut self, id: Id, aeth: Aeth) {
        let flow = &mut self.flows[id as usize];
        let own = aeth.msn();
        if flow.own_msn.precedes(own) || flow.stage < Stage::Clear {
            flow.own_msn = own;
            flow.msn = Msn::new(own.get().wrapping_sub(flow.msn_delta));
        }
    }

    /// Completes all requests before `psn`, up to the first one whose response is missing.
    pub(crate) fn done(&mut self, id: Id, psn: Psn) {
        let flow = &mut self.flows[id as usize];
        flow.heard = flow.heard.later(psn);
        let mut psn = flow.heard;
        if self.flows[id as usize].open > 0 {
            for record in self.records(id) {
                if !record.done && record.psn.precedes(psn) {
                    psn = record.psn;
                }
            }
        }
        let flow = &mut self.flows[id as usize];
        if flow.acked.precedes(psn) {
            flow.acked = psn;
            // An acknowledgement may match by chance: it has to cover requests from the starting PSN on.
            if let Some(params) = flow.cm_params.take()
                && flow.first.precedes(flow.next)
                && !flow.next.precedes(psn)
            {
                (flow.mtu, flow.max_reads) = params;
            }
            flow.show_alive();
            if flow.proved() {
                self.sources.prove(self.ends[id as usize].from);
            }
            self.see_alive(id);
            let flow = &self.flows[id as usize];
            let reaches = flow.reaching.is_some();
            let ends = flow.detouring.is_some_and(|(psn, _)| psn.precedes(flow.acked));
            if reaches {
                self.reached(id);
            }
            if ends {
                self.end_detour(id, true);
            }
            let flow = &mut self.flows[id as usize];
            if flow.stage == Stage::Paired {
                // Everything before the first tracked request is complete, and all later requests are known.
                flow.stage = Stage::Clear;
            }
        }
    }

    /// Learns the path MTU, and the PSN count of the last request if that is a READ with unknown count.
    ///
    /// The First and Middle packets of a READ response are as long as the path MTU. An Only packet shows that
    /// its READ takes one PSN, and so do READs that are not longer. Since packets may be reordered, a Last
    /// packet also determines the path MTU, if exactly one value fits its PSN and length.
    fn learn_count(&mut self, id: Id, packet: &Packet<'_>, psn: Psn) {
        let opcode = packet.layout().opcode();
        let bytes = packet.payload().len() as u32;
        let flow = &self.flows[id as usize];
        let is_full = matches!(opcode, Opcode::RC_READ_RESPONSE_FIRST | Opcode::RC_READ_RESPONSE_MIDDLE)
            && bytes.is_power_of_two()
            && (256..=4096).contains(&bytes);
        let is_news = bytes > flow.longest.into() || (is_full && bytes != flow.mtu.into());
        if is_news && self.is_read(id, psn) {
            let flow = &mut self.flows[id as usize];
            flow.saw_payload(bytes as usize);
            flow.mtu = if is_full { bytes as u16 } else { flow.mtu };
        }
        let flow = &mut self.flows[id as usize];
        let Some(len) = flow.unsure.map(NonZero::get) else { return };
        let before = psn.distance(flow.next.sub(1));
        let count = match opcode {
            Opcode::RC_READ_RESPONSE_ONLY if before == 0 => Some(1),
            Opcode::RC_READ_RESPONSE_LAST if before > 0 => {
                let mtu = len.saturating_sub(bytes) / before as u32;
                let is_mtu = mtu.is_power_of_two() && (256..=4096).contains(&mtu);
                let fits =
                    is_mtu && mtu * before as u32 + bytes == len && [0, mtu as u16].contains(&flow.mtu);
                flow.mtu = if fits { mtu as u16 } else { flow.mtu };
                fits.then_some(before as u32 + 1)
            }
            _ => flow.count_of(len),
        };
        if let Some(count) = count {
            self.counted(id, count);
        }
    }

    /// Returns whether a READ is in flight that a response with this PSN may belong to. Without this check
    /// any host could forge responses in the server's name with any PSN.
    #[cold]
    fn is_read(&self, id: Id, psn: Psn) -> bool {
        let flow = &self.flows[id as usize];
        let unsure = flow.unsure.map(|_| flow.next.sub(1));
        self.records(id).iter().any(|record| {
            let most = if Some(record.psn) == unsure { LONGEST } else { record.count };
            record.count > 0
                && !record.done
                && record.what == What::Read
                && (0..most as i32).contains(&psn.distance(record.psn))
        })
    }

    /// Handles a response on a shared QP.
    fn on_lane<O: Output>(
        &mut self,
        lane: Id,
        frame: &mut O::Frame,
        layout: Layout,
        now: Nanos,
        out: &mut O,
    ) -> Verdict {
        let packet = Packet::new(frame.bytes(), layout);
        let psn = packet.bth().psn();
        let there = &self.lanes[lane as usize];
        if !psn.precedes(there.acked.add(there.under_way)) {
            self.counters.stale.add(1);
            return Verdict::Drop(DropReason::Stale);
        }
        let entry = there.entry(psn).asked.what;
        let (until, found, resend) = match layout.opcode() {
            Opcode::RC_ACKNOWLEDGE => {
                let Some(aeth) = packet.aeth() else { return Verdict::Drop(DropReason::Unexpected) };
                match aeth.kind() {
                    Syndrome::Ack(_) => (psn.add(1), None, false),
                    Syndrome::Nak(NakCode::PSN_SEQUENCE_ERROR) => (psn, None, true),
                    // No operation on a shared QP consumes a receive request. The operation is retransmitted
                    // when its timeout expires.
                    Syndrome::RnrNak(_) => (psn, None, false),
                    Syndrome::Nak(code) => {
                        let verdict = self.complete_until(lane, psn, None, frame, now, out);
                        let verdict = send_first::<O>(verdict, frame, out);
                        let there = &self.lanes[lane as usize];
                        let refused = (there.acked == psn).then(|| *there.entry(psn));
                        if let Some(entry) = refused.filter(|entry| entry.flow != NONE) {
                            self.note_refusal(entry.flow, entry.psn, code);
                            self.send_answer(
                                entry.flow,
                                entry.psn,
                                Answer::Syndrome(Syndrome::Nak(code)),
                                out,
                            );
                        }
                        if let Some(entry) = refused {
                            self.refuse_key(lane, entry.asked.rkey, now);
                        }
                        self.fail(lane);
                        self.pump_ready(now, out);
                        return verdict;
                    }
                    Syndrome::Reserved(_) => return Verdict::Drop(DropReason::Unexpected),
                }
            }
            Opcode::RC_ATOMIC_ACKNOWLEDGE if matches!(entry, Under::Atomic(..)) => {
                let found = packet.atomic_ack().map(|ack| ack.original.get());
                (psn.add(1), found, false)
            }
            _ => return Verdict::Drop(DropReason::Unexpected),
        };
        let mut verdict = self.complete_until(lane, until, found, frame, now, out);
        if !self.ready.is_empty() || self.lanes[lane as usize].waiting[0] != NONE {
            // The next requests may be answered at once; this response has to leave before.
            verdict = send_first::<O>(verdict, frame, out);
        }
        let there = &self.lanes[lane as usize];
        // The server sent a NAK, or the response of an earlier atomic is missing.
        let missing = there.acked.precedes(until);
        let just_did = there.resent > there.moved && now.since(there.resent) < there.round_trip;
        if (resend || missing) && there.under_way > 0 && !just_did {
            let from = there.acked;
            self.resend(lane, from, now, out);
        }
        self.pump_ready(now, out);
        if self.lanes[lane as usize].waiting[0] != NONE {
            self.pump_lane(lane, now, out);
        }
        verdict
    }

    /// Completes the operations on a shared QP before `until`. `found` is the result of the last one if that
    /// is an atomic. Each client gets its own response; the last response is written into `frame`.
    fn complete_until<O: Output>(
        &mut self,
        lane: Id,
        until: Psn,
        found: Option<u64>,
        frame: &mut O::Frame,
        now: Nanos,
        out: &mut O,
    ) -> Verdict {
        let mut told: Option<(Id, Psn, Answer)> = None;
        let mut count = 0;
        loop {
            let there = &self.lanes[lane as usize];
            let psn = there.acked;
            if there.under_way == 0 || !psn.precedes(until) {
                break;
            }
            let answers = psn.add(1) == until && found.is_some();
            if there.entry(psn).asked.what.is_atomic() && !answers {
                // Only the atomic's own response carries its result.
                break;
            }
            self.lanes[lane as usize].hear(psn, now);
            let next = self.complete(lane, found.filter(|_| answers));
            count += 1;
            #[cfg(debug_assertions)]
            if self.config.bug == Some(crate::Bug::LostAck) && count == 1 && psn.add(1) != until {
                continue;
            }
            if let Some((id, psn, answer)) = next {
                self.counters.acks.add(1);
                if let Some((id, psn, answer)) = told.replace((id, psn, answer)) {
                    self.send_answer(id, psn, answer, out);
                }
            }
        }
        if count > 1 {
            self.counters.coalesced.add(1);
        }
        match told {
            Some((id, psn, answer)) => self.answer_in(frame, id, psn, answer),
            None => Verdict::Consume,
        }
    }

    /// Forwards a congestion notification for the owner of a shared QP to all clients with operations in
    /// flight there.
    pub(crate) fn on_cnp<O: Output>(&mut self, frame: &O::Frame, layout: Layout, out: &mut O) {
        let packet = Packet::new(frame.bytes(), layout);
        let key = switch::forward::counters::HostQp::destination_of(&packet);
        let Some(to) = self.index.get(&key) else { return };
        let id = self.ends[to as usize].peer;
        if id == NONE || self.flows[id as usize].lane == NONE {
            return;
        }
        let lane = &self.lanes[self.flows[id as usize].lane as usize];
        // At most 16 clients are notified.
        let mut told = [NONE; 16];
        let mut count = 0;
        for n in 0..lane.under_way {
            let whose = lane.entry(lane.acked.add(n)).flow;
            if whose == NONE || whose == id || told.contains(&whose) || count == told.len() {
                continue;
            }
            told[count] = whose;
            count += 1;
            let peer = self.ends[whose as usize].peer;
            let (Some(end), Some(key)) = (self.ends.get(peer as usize), self.index.key(peer)) else {
                continue;
            };
            let Ok(mut copy) = out.make(0) else { return };
            let base = Base { becn: true, ..Base::new(Opcode::CNP, key.qpn(), packet.bth().psn()) };
            if end.headers.build(&mut copy, Some(Class8::of(&packet)), base, &[0; 16]).is_ok() {
                self.counters.cnps.add(1);
                _ = out.send(copy, end.port);
            }
        }
    }
}

/// Sends a copy of `frame` as `verdict` states, ahead of frames generated later. Returns the verdict for the
/// original frame.
pub(crate) fn send_first<O: Output>(verdict: Verdict, frame: &O::Frame, out: &mut O) -> Verdict {
    if let Verdict::Forward(port) = verdict
        && let Ok(copy) = out.copy(frame)
    {
        _ = out.send(copy, port);
        return Verdict::Consume;
    }
    verdict
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
