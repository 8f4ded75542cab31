//! Retransmitted requests: each gets the same response as its first transmission.

use super::Swordbox;
use super::generated::Response;
use super::route::Route;
use super::translated::{Outcome, rewrite_request};
use crate::op::{Kind, Op};
use crate::records::{Record, RecordKind};
use crate::{Bug, Id, NONE};
use rocev2::{Layout, Packet, Psn};
use switch::{DropReason, Frame, Nanos, Output, PortId, Verdict};

impl Swordbox {
    /// Handles a request with a PSN before the expected one.
    #[allow(clippy::too_many_arguments, reason = "a frame with its layout, port and time")]
    pub(crate) fn on_repeated<O: Output>(
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
        let (psn, ack_req) = (packet.bth().psn(), packet.bth().ack_req());
        let flow = self.connections.flow(id);
        if !psn.precedes(flow.sent) {
            // The request is held.
            return Verdict::Drop(DropReason::Repeated);
        }
        // The PSN count of a READ may be an estimate; the nearest READ is the right one.
        let within = |record: &&Record| (0..record.count as i32).contains(&psn.distance(record.psn));
        let records = self.connections.records(id).iter().filter(within);
        let record = records
            .min_by_key(|record| (psn.distance(record.psn), record.kind == RecordKind::UncountedReads));
        let record = record.copied();
        let is_read = matches!(op.kind, Kind::Read | Kind::AtomicWriteOrFlush);
        if !psn.precedes(flow.acked) {
            // In flight. Operations on a shared QP are retransmitted by the switch.
            if flow.via != NONE {
                return Verdict::Drop(DropReason::Repeated);
            }
            let server = flow.server;
            if record.is_none()
                && matches!(op.kind, Kind::Read | Kind::Atomic)
                && self.steering.steers(server)
            {
                // The address that the request was steered to is unknown, and must not be chosen again.
                return Verdict::Drop(DropReason::Repeated);
            }
            if self.invalidate_retransmitted(id, server, &packet, op, now).is_err() {
                self.suspend_until_retransmitted(id, server, &packet, now);
                return self.delay();
            }
            let server_psn = self.connections.flow(id).translation.to_server(psn);
            let by = record.filter(|_| is_read || op.kind == Kind::Atomic).map_or(0, |record| record.steered);
            if self.detour_steered(server, &packet, by, now).is_err() {
                // Not counted as delayed: the counter covers only the detours of a packet's own address.
                return Verdict::Drop(DropReason::Delayed);
            }
            rewrite_request(frame, layout, server_psn, op.is_last, by);
            return self.forward.route(frame, port, now, out);
        }
        if self.config.has_bug(Bug::ResolvedTwice) && op.kind == Kind::Atomic {
            return self.resolve_again(id, frame, layout, now);
        }
        let keeps_psns = self.config.has_bug(Bug::OldRead);
        match record {
            Some(record)
                if matches!(record.kind, RecordKind::Read | RecordKind::UncountedReads)
                    && op.kind == Kind::Read
                    && (self.connections.flow(id).in_message || keeps_psns) =>
            {
                // No new request can be sent in the middle of a message. But the message did not begin before
                // the server was certain to have this READ (`must_nak_message`).
                let Some(server_psn) = record.server_psn_of(psn) else {
                    // The client has since retransmitted later requests, so it has this response.
                    return Verdict::Drop(DropReason::Repeated);
                };
                self.connections.flow_mut(id).reread_until = Some((record.psn.add(record.count), None));
                rewrite_request(frame, layout, server_psn, true, record.steered);
                self.forward.route(frame, port, now, out)
            }
            Some(record)
                if matches!(record.kind, RecordKind::Read | RecordKind::UncountedReads)
                    && op.kind == Kind::Read =>
            {
                // The server reads again.
                self.reread(id, frame, (psn, record), port, now, out)
            }
            // An ATOMIC WRITE must not be executed again, and flushed data stays flushed.
            Some(record)
                if matches!(record.kind, RecordKind::Read | RecordKind::UncountedReads)
                    && op.kind == Kind::AtomicWriteOrFlush =>
            {
                self.respond_again(id, frame, psn, Response::EmptyRead)
            }
            Some(record) if record.kind == RecordKind::Atomic && op.kind == Kind::Atomic => {
                self.respond_again(id, frame, psn, Response::Atomic(record.value))
            }
            _ if matches!(op.kind, Kind::Write | Kind::SendOrWriteRest) => {
                if !ack_req {
                    return Verdict::Drop(DropReason::Repeated);
                }
                self.respond_again(id, frame, psn, Response::Ack)
            }
            // The request is too old for its client to be waiting for it.
            _ => Verdict::Drop(DropReason::Repeated),
        }
    }

    /// Resolves a retransmitted atomic a second time: a planted bug.
    fn resolve_again<F: Frame>(&mut self, id: Id, frame: &mut F, layout: Layout, now: Nanos) -> Verdict {
        let packet = Packet::new(frame.bytes(), layout);
        let op = Op::of(layout.opcode());
        match self.route_of(id, &packet, op, now) {
            Route::SharedQp(route) => match self.share(id, route, frame, layout, now) {
                Outcome::Sent(port) => Verdict::Forward(port),
                _ => Verdict::Consume,
            },
            _ => Verdict::Drop(DropReason::Repeated),
        }
    }

    /// Answers a retransmitted request in its own frame. While the server has to answer an earlier READ, the
    /// request is dropped, since the client would take the response for a sign that the READ's response was
    /// lost.
    fn respond_again<F: Frame>(&mut self, id: Id, frame: &mut F, psn: Psn, response: Response) -> Verdict {
        let flow = self.connections.flow_mut(id);
        if let Some((end, last)) = flow.reread_until
            && !psn.precedes(end)
        {
            match last {
                // The client has started over at an earlier request.
                Some(last) if !last.precedes(psn) => flow.reread_until = None,
                _ => {
                    flow.reread_until = Some((end, Some(psn)));
                    return Verdict::Drop(DropReason::Repeated);
                }
            }
        }
        self.counters.replayed.add(1);
        self.respond_in(frame, id, psn, response)
    }
}
