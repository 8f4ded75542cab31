//! Requests of translated connections: they are accepted in order, forwarded on their route or held until
//! that is possible, and NAKed if one is missing.

use super::Swordbox;
use super::generated::Response;
use super::route::Route;
use crate::flow::Stage;
use crate::op::{Kind, Op, memory_of};
use crate::{Id, NONE};
use rocev2::aeth::{NakCode, Syndrome};
use rocev2::rewrite::Rewriter;
use rocev2::{Class, Layout, Packet, Psn, classify};
use switch::{DropReason, Frame, Nanos, Output, PortId, Verdict};

/// Result of processing a request.
pub(crate) enum Outcome {
    /// The bridge forwards the rewritten frame.
    Forward,
    /// The frame, or the response that replaced it, leaves through this port.
    Sent(PortId),
    /// The frame is consumed.
    Consumed,
    /// The request has to wait: for this shared QP, or, if `NONE`, for the client's own requests
    Wait(Id),
    /// The client has to retransmit the request, which is NAKed
    Nak,
}

impl Swordbox {
    /// Handles a request of a translated connection.
    #[allow(clippy::too_many_arguments, reason = "a frame with its layout, port and time")]
    pub(super) fn on_translated<O: Output>(
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
            return Self::WRONG_ICRC;
        }
        let psn = packet.bth().psn();
        if op.kind != Kind::Read {
            self.connections.resolve_read_count(id, psn);
        }
        let flow = self.connections.flow(id);
        if psn.precedes(flow.next) {
            self.counters.repeated.add(1);
            return self.on_repeated(id, frame, layout, op, port, now, out);
        }
        if flow.uncounted_read.is_some() || self.holds_uncounted_read(id) {
            // The end of the READ before this request is unknown.
            self.schedule_nak(id, now, out);
            return Verdict::Drop(DropReason::OutOfOrder);
        }
        if psn != flow.next {
            self.counters.out_of_order.add(1);
            self.schedule_nak(id, now, out);
            return Verdict::Drop(DropReason::OutOfOrder);
        }
        // The client continues from `next`, whether or not it got a NAK.
        let flow = self.connections.flow_mut(id);
        if flow.message_naked && flow.nak_sent {
            // After the NAK for this request the client has retransmitted nothing before it, so it has all
            // responses.
            (flow.message_naked, flow.reads_may_be_lost) = (false, false);
        }
        flow.nak_due = false;
        flow.found_no_slot = false;
        if core::mem::take(&mut flow.nak_sent)
            && let Some(shared_qp) = self.shared_qps.get_mut(flow.shared_qp)
            && now < shared_qp.reserved_until
        {
            // The owner has used its reserved turn.
            shared_qp.reserved_until = Nanos::ZERO;
        }
        if !self.connections.flow(id).has_held() {
            match self.try_forward(id, frame, layout, op, now) {
                Outcome::Forward => return self.forward.route(frame, port, now, out),
                Outcome::Sent(port) => return Verdict::Forward(port),
                Outcome::Consumed => return Verdict::Consume,
                Outcome::Wait(shared_qp) => {
                    self.wait(id, shared_qp);
                    // Each NAK consumes one of the client's retries. A request that finds no slot is
                    // therefore forwarded on its own connection if possible, as if nothing were shared.
                    if self.held.is_full()
                        && matches!(self.try_forward_own(id, frame, layout, op, now), Outcome::Forward)
                    {
                        return self.forward.route(frame, port, now, out);
                    }
                }
                Outcome::Nak => {
                    self.nak_message(id, now, out);
                    return Verdict::Drop(DropReason::Delayed);
                }
            }
        }
        self.hold(id, frame, layout, op, port)
    }

    /// Holds a request, or drops it and schedules a NAK.
    fn hold<F: Frame>(&mut self, id: Id, frame: &F, layout: Layout, op: Op, port: PortId) -> Verdict {
        let packet = Packet::new(frame.bytes(), layout);
        let flow = self.connections.flow_mut(id);
        let count = match (op.kind, memory_of(&packet)) {
            (Kind::Read, Some((_, _, len))) => flow.limits.psn_count_of(len),
            _ => Some(1),
        };
        if self.held.push(&mut flow.held, frame.bytes(), port) {
            // No request is held behind a READ with unknown PSN count.
            flow.next = flow.next.add(count.unwrap_or(1));
            self.counters.waited.add(1);
            return Verdict::Consume;
        }
        flow.nak_due = true;
        flow.found_no_slot = true;
        self.counters.overflowed.add(1);
        Verdict::Drop(DropReason::Delayed)
    }

    /// Returns whether the last held request is a READ with unknown PSN count.
    fn holds_uncounted_read(&self, id: Id) -> bool {
        let flow = self.connections.flow(id);
        let Some((bytes, _)) = self.held.first([flow.held[1], NONE]) else { return false };
        let Class::Roce(layout) = classify(bytes) else { return false };
        let memory = memory_of(&Packet::new(bytes, layout));
        Op::of(layout.opcode()).kind == Kind::Read
            && memory.is_some_and(|(.., len)| flow.limits.psn_count_of(len).is_none())
    }

    /// Forwards the next request in order if its route permits.
    fn try_forward<F: Frame>(
        &mut self,
        id: Id,
        frame: &mut F,
        layout: Layout,
        op: Op,
        now: Nanos,
    ) -> Outcome {
        let packet = Packet::new(frame.bytes(), layout);
        match self.route_of(id, &packet, op, now) {
            Route::SharedQp(route) => self.share(id, route, frame, layout, now),
            Route::Own => self.try_forward_own(id, frame, layout, op, now),
            Route::Wait(shared_qp) => Outcome::Wait(shared_qp),
        }
    }

    /// Forwards a request on its client's own connection if nothing has to complete before.
    fn try_forward_own<F: Frame>(
        &mut self,
        id: Id,
        frame: &mut F,
        layout: Layout,
        op: Op,
        now: Nanos,
    ) -> Outcome {
        let packet = Packet::new(frame.bytes(), layout);
        let flow = self.connections.flow(id);
        if flow.shared_in_flight > 0 || flow.rereading {
            return Outcome::Wait(NONE);
        }
        if flow.shared_qp != NONE {
            let shared_qp = &self.shared_qps[flow.shared_qp];
            // Operations of other clients on this shared QP have to complete first. Clients that wait for the
            // QP get their turn between two of the owner's requests.
            if shared_qp.in_flight() > 0 {
                return Outcome::Wait(flow.shared_qp);
            }
            if shared_qp.waiting[0] != NONE
                && shared_qp.waiting[0] != id
                && !flow.is_idle()
                && !flow.in_message
            {
                return Outcome::Wait(NONE);
            }
        }
        if matches!(op.kind, Kind::Read | Kind::Atomic | Kind::AtomicWriteOrFlush)
            && flow.open as usize >= self.config.rd_atomic
        {
            return Outcome::Wait(NONE);
        }
        if !op.is_last && self.must_nak_message(id) {
            return Outcome::Nak;
        }
        let server = flow.server;
        if let Err(shared_qp) = self.invalidate_until_completion(id, server, &packet, op, now) {
            let shared_qp =
                if shared_qp == NONE { self.shared_qps.slowest(server).unwrap_or(NONE) } else { shared_qp };
            return Outcome::Wait(shared_qp);
        }
        let psn = packet.bth().psn();
        let flow = self.connections.flow_mut(id);
        if let Some(shared_qp) = self.shared_qps.get_mut(flow.shared_qp) {
            // The owner has used its reserved turn.
            shared_qp.reserved_until = Nanos::ZERO;
        }
        if flow.is_idle() && !flow.in_message {
            flow.via = NONE;
            flow.executed = flow.acked;
            flow.translation.rebase(psn, flow.msn);
        }
        self.track_own(id, frame, layout, op, now);
        Outcome::Forward
    }

    /// Tracks and rewrites a request that leaves on its own connection.
    fn track_own<F: Frame>(&mut self, id: Id, frame: &mut F, layout: Layout, op: Op, now: Nanos) {
        let packet = Packet::new(frame.bytes(), layout);
        let next = self.connections.flow(id).next;
        let quiet = self.connections.flow(id).is_idle();
        self.track(id, &packet, op, now);
        let by = self.steer(id, &packet, op, quiet, now);
        let flow = self.connections.flow_mut(id);
        // `next` already counts the requests held behind this one.
        if !next.precedes(flow.next) {
            flow.next = next;
        }
        let server_psn = flow.translation.to_server(packet.bth().psn());
        // Without an acknowledgement of the last packet, the switch could not tell when other requests may
        // follow.
        rewrite_request(frame, layout, server_psn, op.is_last, by);
    }

    /// Schedules a NAK for the expected PSN after a request out of order. The NAK is sent once it does not
    /// acknowledge requests in flight.
    fn schedule_nak<O: Output>(&mut self, id: Id, now: Nanos, out: &mut O) {
        let flow = self.connections.flow_mut(id);
        if flow.nak_due || flow.nak_sent {
            return;
        }
        flow.nak_due = true;
        self.send_due_nak(id, now, out);
    }

    /// Sends the scheduled NAK for `next` if all requests before it are complete.
    pub(crate) fn send_due_nak<O: Output>(&mut self, id: Id, now: Nanos, out: &mut O) {
        let flow = self.connections.flow_mut(id);
        let busy = flow.has_held() || !flow.is_idle() || flow.uncounted_read.is_some() || flow.rereading;
        if !flow.nak_due || busy || flow.stage != Stage::Translating {
            return;
        }
        let shared_qp = flow.shared_qp;
        if core::mem::take(&mut flow.found_no_slot) && shared_qp != NONE {
            let qp = &mut self.shared_qps[shared_qp];
            if qp.in_flight() > 0 {
                flow.found_no_slot = true;
                self.wait(id, shared_qp);
                return;
            }
            if qp.reserved_until == Nanos::ZERO {
                // The owner has the next turn if it retransmits soon. Otherwise other clients would take the
                // shared QP each time before its request arrives.
                qp.reserved_until = now + qp.retransmit_timeout(self.config.replay_after);
            } else {
                // The owner has missed its reserved turn because its round trip is too long: other clients
                // use another shared QP.
                flow.closing &= !qp.is_returning;
                self.unshare(id);
                self.connections.flow_mut(id).unshareable_until = now + self.config.dead_after;
                self.counters.shared_qps_returned.add(1);
            }
        }
        let flow = self.connections.flow_mut(id);
        flow.nak_due = false;
        flow.nak_sent = true;
        let next = flow.next;
        self.counters.naks.add(1);
        let nak = Response::Syndrome(Syndrome::Nak(NakCode::PSN_SEQUENCE_ERROR));
        self.send_response(id, next, nak, out);
    }

    /// Forwards held requests in order until one has to wait.
    pub(crate) fn forward_held<O: Output>(&mut self, id: Id, now: Nanos, out: &mut O) {
        if !self.send_reread(id, now, out) {
            return;
        }
        loop {
            let queue = self.connections.flow(id).held;
            let Some((bytes, port)) = self.held.first(queue) else { break };
            let Ok(mut frame) = out.make(bytes.len()) else {
                // No later event is certain to retry this flow.
                self.held.continue_later(id);
                return;
            };
            frame.bytes_mut().copy_from_slice(bytes);
            let Class::Roce(layout) = classify(frame.bytes()) else {
                self.held.pop(&mut self.connections.flow_mut(id).held);
                continue;
            };
            let op = Op::of(layout.opcode());
            let to = match self.try_forward(id, &mut frame, layout, op, now) {
                Outcome::Forward => match self.forward.route(&mut frame, port, now, out) {
                    Verdict::Forward(port) => Some(port),
                    _ => None,
                },
                Outcome::Sent(port) => Some(port),
                Outcome::Consumed => None,
                Outcome::Wait(shared_qp) => {
                    self.wait(id, shared_qp);
                    return;
                }
                Outcome::Nak => {
                    let flow = self.connections.flow_mut(id);
                    flow.next = Packet::new(frame.bytes(), layout).bth().psn();
                    self.held.clear(&mut flow.held);
                    self.nak_message(id, now, out);
                    return;
                }
            };
            self.held.pop(&mut self.connections.flow_mut(id).held);
            if let Some(port) = to {
                _ = out.send(frame, port);
            }
        }
        self.send_due_nak(id, now, out);
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
