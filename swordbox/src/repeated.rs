//! Retransmitted requests: each gets the same response as its first transmission.

use crate::Id;
use crate::NONE;
use crate::answer::Answer;
use crate::function::Swordbox;
use crate::op::{Kind, Op};
use crate::records::{Record, What};
#[cfg(debug_assertions)]
use crate::request::Done;
use crate::request::rewrite_request;
#[cfg(debug_assertions)]
use crate::way::Way;
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
        let flow = &self.flows[id as usize];
        if !psn.precedes(flow.sent) {
            // The request is held.
            return Verdict::Drop(DropReason::Repeated);
        }
        // The PSN count of a READ may be an estimate; the nearest READ is the right one.
        let within = |record: &&Record| (0..record.count as i32).contains(&psn.distance(record.psn));
        let records = self.records(id).iter().filter(within);
        let record = records.min_by_key(|record| (psn.distance(record.psn), record.what == What::Unseen));
        let record = record.copied();
        let is_read = matches!(op.kind, Kind::Read | Kind::Other);
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
            if self.detour_again(id, server, &packet, op, now).is_err() {
                self.await_again(id, server, &packet, now);
                self.counters.delayed.add(1);
                return Verdict::Drop(DropReason::Delayed);
            }
            let own = psn.add(self.flows[id as usize].delta);
            let by = record.filter(|_| is_read || op.kind == Kind::Atomic).map_or(0, |record| record.steered);
            if self.detour_steered(server, &packet, by, now).is_err() {
                return Verdict::Drop(DropReason::Delayed);
            }
            rewrite_request(frame, layout, own, op.ends, by);
            return self.forward.route(frame, port, now, out);
        }
        #[cfg(debug_assertions)]
        if self.config.bug == Some(crate::Bug::DecidedAnew) && op.kind == Kind::Atomic {
            return self.decide_anew(id, frame, layout, now);
        }
        match record {
            Some(record)
                if matches!(record.what, What::Read | What::Unseen)
                    && op.kind == Kind::Read
                    && (self.flows[id as usize].in_message || self.repeats_old_reads()) =>
            {
                // No new request can be sent in the middle of a message. But the message did not begin before
                // the server was certain to have this READ (`is_forgotten`).
                let Some(own) = record.own_psn(psn) else {
                    // The client has since retransmitted later requests, so it has this response.
                    return Verdict::Drop(DropReason::Repeated);
                };
                self.flows[id as usize].reading = Some((record.psn.add(record.count), None));
                rewrite_request(frame, layout, own, true, record.steered);
                self.forward.route(frame, port, now, out)
            }
            Some(record) if matches!(record.what, What::Read | What::Unseen) && op.kind == Kind::Read => {
                // The server reads again.
                self.reread(id, frame, (psn, record), port, now, out)
            }
            // An ATOMIC WRITE must not be executed again, and flushed data stays flushed.
            Some(record) if matches!(record.what, What::Read | What::Unseen) && op.kind == Kind::Other => {
                self.answer_again(id, frame, psn, Answer::Nothing)
            }
            Some(record) if record.what == What::Atomic && op.kind == Kind::Atomic => {
                self.answer_again(id, frame, psn, Answer::Atomic(record.value))
            }
            _ if matches!(op.kind, Kind::Write | Kind::Body) => {
                if !ack_req {
                    return Verdict::Drop(DropReason::Repeated);
                }
                self.answer_again(id, frame, psn, Answer::Ack)
            }
            // The request is too old for its client to be waiting for it.
            _ => Verdict::Drop(DropReason::Repeated),
        }
    }

    /// Returns whether the planted bug is active by which retransmitted READs keep their PSNs.
    #[cfg(debug_assertions)]
    fn repeats_old_reads(&self) -> bool {
        self.config.bug == Some(crate::Bug::OldRead)
    }

    #[cfg(not(debug_assertions))]
    #[expect(clippy::unused_self, reason = "debug builds read the planted bug")]
    const fn repeats_old_reads(&self) -> bool {
        false
    }

    /// Resolves a retransmitted atomic a second time: a planted bug.
    #[cfg(debug_assertions)]
    fn decide_anew<F: Frame>(&mut self, id: Id, frame: &mut F, layout: Layout, now: Nanos) -> Verdict {
        let packet = Packet::new(frame.bytes(), layout);
        let op = Op::of(layout.opcode());
        match self.way_of(id, &packet, op, now) {
            Way::Lane(passage) => match self.share(id, passage, frame, layout, now) {
                Done::Sent(port) | Done::Answered(port) => Verdict::Forward(port),
                _ => Verdict::Consume,
            },
            _ => Verdict::Drop(DropReason::Repeated),
        }
    }

    /// Answers a retransmitted request in its own frame. While the server has to answer an earlier READ, the
    /// request is dropped, since the client would take the response for a sign that the READ's response was
    /// lost.
    fn answer_again<F: Frame>(&mut self, id: Id, frame: &mut F, psn: Psn, answer: Answer) -> Verdict {
        let flow = &mut self.flows[id as usize];
        if let Some((end, last)) = flow.reading
            && !psn.precedes(end)
        {
            match last {
                // The client has started over at an earlier request.
                Some(last) if !last.precedes(psn) => flow.reading = None,
                _ => {
                    flow.reading = Some((end, Some(psn)));
                    return Verdict::Drop(DropReason::Repeated);
                }
            }
        }
        self.counters.replayed.add(1);
        self.answer_in(frame, id, psn, answer)
    }
}
