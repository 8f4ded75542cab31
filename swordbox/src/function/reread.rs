//! Retransmitted READs that are complete.
//!
//! A responder needs to keep only as many READs and atomics as it accepts at once (`max_dest_rd_atomic`, IB
//! 9.7.5.1.4), and atomics of other clients may have used a shared QP since, so the server would not answer a
//! READ with an old PSN. A retransmitted READ is therefore forwarded as a new request on its client's
//! connection, one at a time, with nothing else in flight there. The switch retransmits it until it is
//! answered, since the client does not know its new PSN.

use super::Swordbox;
use super::response::rewrite_response;
use super::translated::rewrite_request;
use crate::flow::Stage;
use crate::op::memory_of;
use crate::records::{Record, RecordKind};
use crate::reread::Sent;
use crate::{Id, MAX_BACKOFF_SHIFT, MIN_PATH_MTU, NONE};
use core::cmp::Ordering;
use rocev2::aeth::{NakCode, Syndrome};
use rocev2::{Class, Layout, Opcode, Packet, Psn, classify};
use switch::{DropReason, Frame, Full, Nanos, Output, PortId, Verdict};

impl Swordbox {
    /// Returns whether a message of several packets must not begin yet. New requests cannot be sent in the
    /// middle of a message, and a READ that the client retransmits meanwhile may be one that the server no
    /// longer has. The client may be unable to finish the message before that READ is answered, because its
    /// window is full.
    pub(crate) fn must_nak_message(&self, id: Id) -> bool {
        let flow = self.connections.flow(id);
        let is_read = |record: &Record| {
            record.count > 0 && matches!(record.kind, RecordKind::Read | RecordKind::UncountedReads)
        };
        flow.reads_may_be_lost && !flow.in_message && self.connections.records(id).iter().any(is_read)
    }

    /// NAKs the message that a client is about to begin. The NAK acknowledges everything before; a client
    /// that still waits for the response to a READ retransmits the READ instead.
    pub(crate) fn nak_message<O: Output>(&mut self, id: Id, now: Nanos, out: &mut O) {
        let flow = self.connections.flow_mut(id);
        flow.message_naked = true;
        flow.nak_due = true;
        self.send_due_nak(id, now, out);
    }

    /// Queues a complete READ that the client retransmitted. A READ that is queued already is dropped.
    pub(crate) fn reread<O: Output>(
        &mut self,
        id: Id,
        frame: &O::Frame,
        (psn, record): (Psn, Record),
        port: PortId,
        now: Nanos,
        out: &mut O,
    ) -> Verdict {
        let flow = self.connections.flow_mut(id);
        flow.message_naked = false;
        if flow.rereading {
            match flow.rereads.compare(psn) {
                Ordering::Greater => {}
                Ordering::Equal => {
                    self.resend_reread(id, now, out, false);
                    return Verdict::Drop(DropReason::Repeated);
                }
                // The client is missing a response before the queued READs.
                Ordering::Less => flow.rereads.clear_behind_sent(&mut self.held),
            }
        }
        match flow.rereads.push(&mut self.held, (psn, frame.bytes()), port, self.config.rd_atomic) {
            Err(Full) => return Verdict::Drop(DropReason::Delayed),
            Ok(false) => {}
            Ok(true) => {
                flow.rereading = true;
                flow.reread_until = Some((record.psn.add(record.count), None));
                self.rereading.push(id);
            }
        }
        self.send_reread(id, now, out);
        Verdict::Consume
    }

    /// Sends the next queued READ if possible. Returns whether new requests of the flow may follow.
    pub(crate) fn send_reread<O: Output>(&mut self, id: Id, now: Nanos, out: &mut O) -> bool {
        loop {
            let flow = self.connections.flow(id);
            if !flow.rereading {
                return true;
            }
            if flow.rereads.is_sent()
                || !flow.is_idle()
                || flow.in_message
                || flow.stage != Stage::Translating
            {
                return false;
            }
            if flow.shared_qp != NONE && self.shared_qps[flow.shared_qp].in_flight() > 0 {
                self.wait(id, flow.shared_qp);
                return false;
            }
            let Some((bytes, _)) = flow.rereads.request(&self.held) else {
                self.end_rereads(id);
                return true;
            };
            let request = Packet::parse(bytes).and_then(|packet| {
                let (_, _, len) = memory_of(&packet)?;
                Some((packet.bth().psn(), len))
            });
            let record = request.and_then(|(psn, _)| self.connections.read_at(id, psn));
            let (Some((psn, len)), Some(record)) = (request, record) else {
                // The READ is too old for its client to be waiting for it.
                self.pop_reread(id);
                continue;
            };
            let flow = self.connections.flow_mut(id);
            let span = len.div_ceil(MIN_PATH_MTU).max(1) as i32;
            let sent = Sent { psn, server_psn: flow.translation.next(), span, since: now, at: now, tries: 0 };
            flow.rereads.begin(sent);
            // The READ takes one of the slots in which the server keeps READs and atomics.
            flow.reads_may_be_lost = true;
            flow.reread_until = Some((record.psn.add(record.count), None));
            // The server has the request under its new PSN from now on.
            let skipped = psn.distance(record.psn) as u32;
            let server_psn = flow.translation.next().sub(skipped);
            for stored in
                self.connections.records_mut(id).iter_mut().filter(|stored| stored.psn == record.psn)
            {
                (stored.server_psn, stored.skipped) = (server_psn, skipped);
            }
            self.counters.reread.add(1);
            self.transmit_reread(id, now, out);
            return false;
        }
    }

    /// Sends the READ in flight. Without a free buffer it counts as lost.
    fn transmit_reread<O: Output>(&mut self, id: Id, now: Nanos, out: &mut O) {
        let rereads = self.connections.flow(id).rereads;
        let (Some(sent), Some((bytes, port))) = (rereads.sent(), rereads.request(&self.held)) else {
            return;
        };
        let Ok(mut frame) = out.make_from(bytes) else { return };
        let Class::Roce(layout) = classify(frame.bytes()) else { return };
        let by = self.connections.read_at(id, sent.psn).map_or(0, |record| record.steered);
        rewrite_request(&mut frame, layout, sent.server_psn, true, by);
        if let Verdict::Forward(port) = self.forward.route(&mut frame, port, now, out) {
            _ = out.send(frame, port);
        }
    }

    /// Retransmits the READ in flight if `replay_after` has passed, or `at_once`.
    fn resend_reread<O: Output>(&mut self, id: Id, now: Nanos, out: &mut O, at_once: bool) {
        let Some(sent) = self.connections.flow_mut(id).rereads.sent_mut() else { return };
        if !at_once && now.since(sent.at) <= self.config.replay_after {
            return;
        }
        (sent.since, sent.at, sent.tries) = (now, now, 0);
        self.counters.resent.add(1);
        self.transmit_reread(id, now, out);
    }

    /// Retransmits READs without a timely response. After `dead_after` they are retransmitted only when the
    /// client does so.
    pub(crate) fn tick_rereads<O: Output>(&mut self, now: Nanos, out: &mut O) {
        let mut at = 0;
        while let Some(id) = self.rereading.get(at).copied() {
            at += 1;
            let flow = self.connections.flow_mut(id);
            if !flow.rereading {
                at -= 1;
                self.rereading.swap_remove(at);
                continue;
            }
            let Some(sent) = flow.rereads.sent_mut() else {
                self.send_reread(id, now, out);
                continue;
            };
            let retransmit_timeout = Nanos(self.config.replay_after.0 << sent.tries);
            if now.since(sent.at) > retransmit_timeout && now.since(sent.since) <= self.config.dead_after {
                sent.at = now;
                sent.tries = (sent.tries + 1).min(MAX_BACKOFF_SHIFT);
                self.counters.resent.add(1);
                self.transmit_reread(id, now, out);
            }
        }
    }

    /// Forwards a response to a READ that is in flight again. Returns `None` if it is none.
    pub(crate) fn on_reread<O: Output>(
        &mut self,
        id: Id,
        frame: &mut O::Frame,
        layout: Layout,
        port: PortId,
        now: Nanos,
        out: &mut O,
    ) -> Option<Verdict> {
        let flow = self.connections.flow_mut(id);
        let sent = flow.rereads.sent().filter(|_| flow.rereading)?;
        let packet = Packet::new(frame.bytes(), layout);
        let server_psn = packet.bth().psn();
        let at = server_psn.distance(sent.server_psn);
        if !(0..sent.span).contains(&at) {
            return None;
        }
        let psn = sent.psn.add(at as u32);
        let msn = packet.aeth().map(|_| flow.msn);
        match layout.opcode() {
            Opcode::RC_READ_RESPONSE_FIRST | Opcode::RC_READ_RESPONSE_MIDDLE => {}
            Opcode::RC_READ_RESPONSE_LAST | Opcode::RC_READ_RESPONSE_ONLY => {
                flow.translation.set_next(server_psn.add(1));
                flow.translation.count_message();
                self.pop_reread(id);
            }
            Opcode::RC_ACKNOWLEDGE => match packet.aeth().map(rocev2::aeth::Aeth::kind) {
                Some(Syndrome::Nak(NakCode::PSN_SEQUENCE_ERROR)) => {
                    self.resend_reread(id, now, out, true);
                    return Some(Verdict::Consume);
                }
                // The server's queue pair is in error; the NAK is forwarded to the client.
                Some(Syndrome::Nak(_)) => self.end_rereads(id),
                _ => return None,
            },
            _ => return None,
        }
        rewrite_response(frame, layout, psn, msn);
        Some(self.forward.route(frame, port, now, out))
    }

    /// Removes the first queued READ, which has been answered or is obsolete.
    fn pop_reread(&mut self, id: Id) {
        if !self.connections.flow_mut(id).rereads.pop(&mut self.held) {
            self.end_rereads(id);
        }
    }

    /// Removes all queued READs of a flow.
    pub(crate) fn end_rereads(&mut self, id: Id) {
        let flow = self.connections.flow_mut(id);
        if core::mem::take(&mut flow.rereading) {
            flow.rereads.clear(&mut self.held);
            flow.reread_until = None;
        }
    }
}
