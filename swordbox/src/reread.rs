//! READs that are done and that their clients repeat.
//!
//! A responder need keep no more READs and atomics than it takes at once (`max_dest_rd_atomic`; IB 9.7.5.1.4), and atomics of
//! other clients may have taken a shared connection since: the server would not answer a READ of an old PSN. A repeated READ is
//! therefore a new request of its client's connection, one at a time, with nothing else under way there. It is sent again from
//! here until it is answered, since its client does not know its PSN.

use crate::flow::Stage;
use crate::function::Swordbox;
use crate::op::memory_of;
use crate::records::{Record, What};
use crate::request::rewrite_request;
use crate::response::rewrite_response;
use crate::{Id, NONE};
use rocev2::aeth::{NakCode, Syndrome};
use rocev2::{Class, Layout, Opcode, Packet, Psn, classify};
use switch::{DropReason, Frame, Nanos, Output, PortId, Verdict};

/// Bytes of the smallest path MTU
const LEAST_MTU: u32 = 256;
/// The time between two transmissions doubles, up to this often.
const MOST_DOUBLED: u8 = 6;

/// Repeated READs of one flow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rereads {
    /// Their requests as the client sent them, in its order, as queue of [`Held`](crate::held::Held)
    queue: [u32; 2],
    count: u16,
    /// PSNs of the first and the last in the queue
    first: Psn,
    last: Psn,
    /// The first one, if it has been sent to the server
    sent: Option<Sent>,
}

/// A READ under way for the second time.
#[derive(Clone, Copy, Debug)]
struct Sent {
    /// First PSN as the client knows it
    psn: Psn,
    /// First PSN as the server knows it
    own: Psn,
    /// PSNs that its responses take at most
    span: i32,
    /// When it was sent first, and last
    since: Nanos,
    at: Nanos,
    tries: u8,
}

impl Rereads {
    pub(crate) const NONE: Self =
        Self { queue: [NONE; 2], count: 0, first: Psn::ZERO, last: Psn::ZERO, sent: None };

    /// Returns whether a server's PSN answers the READ that is under way.
    pub(crate) fn awaits(&self, own: Psn) -> bool {
        self.sent.is_some_and(|sent| (0..sent.span).contains(&own.distance(sent.own)))
    }

    /// Whether one is under way.
    pub(crate) const fn is_sent(&self) -> bool {
        self.sent.is_some()
    }
}

impl Swordbox {
    /// Whether a message of several packets must not begin yet: until it ends, no new request could go in between, and a READ
    /// that its client repeats meanwhile may be one that the server has forgotten. The client may be unable to end it before
    /// that READ is answered, as its window is full.
    pub(crate) fn is_forgotten(&self, id: Id) -> bool {
        let flow = &self.flows[id as usize];
        let is_read = |record: &Record| record.count > 0 && matches!(record.what, What::Read | What::Unseen);
        flow.forgotten && !flow.in_message && self.records(id).iter().any(is_read)
    }

    /// Asks a client for the message again that it was about to begin. A NAK says that all before is done: a client that still
    /// waits for the response to a READ repeats that instead.
    pub(crate) fn ask_for_message<O: Output>(&mut self, id: Id, now: Nanos, out: &mut O) {
        let flow = &mut self.flows[id as usize];
        flow.asking = true;
        flow.nak_due = true;
        self.tell_if_quiet(id, now, out);
    }

    /// Takes a READ that is done and that its client repeats. It is dropped if it waits here already.
    pub(crate) fn reread<O: Output>(
        &mut self,
        id: Id,
        frame: &O::Frame,
        (psn, record): (Psn, Record),
        port: PortId,
        now: Nanos,
        out: &mut O,
    ) -> Verdict {
        let flow = &mut self.flows[id as usize];
        flow.asking = false;
        let rereads = &mut flow.rereads;
        if flow.rereading && !rereads.last.precedes(psn) {
            if !psn.precedes(rereads.first) {
                self.resend_reread(id, now, out, false);
                return Verdict::Drop(DropReason::Repeated);
            }
            // The client waits for one before those.
            let queue = &mut rereads.queue;
            if rereads.sent.is_some() {
                self.held.clear_behind_first(queue);
                rereads.count = 1;
            } else {
                self.held.clear(queue);
                rereads.count = 0;
            }
        }
        let full = usize::from(rereads.count) >= self.config.rd_atomic;
        if full || !self.held.push(&mut rereads.queue, frame.bytes(), port) {
            return Verdict::Drop(DropReason::Delayed);
        }
        rereads.last = psn;
        if rereads.count == 0 {
            rereads.first = psn;
            flow.rereading = true;
            flow.reading = Some((record.psn.add(record.count), None));
            self.rereading.push(id);
        }
        self.flows[id as usize].rereads.count += 1;
        self.send_reread(id, now, out);
        Verdict::Consume
    }

    /// Sends the next repeated READ, if there is one whose turn it is. Returns whether new requests of the flow may follow.
    pub(crate) fn send_reread<O: Output>(&mut self, id: Id, now: Nanos, out: &mut O) -> bool {
        loop {
            let flow = &self.flows[id as usize];
            if !flow.rereading {
                return true;
            }
            if flow.rereads.sent.is_some()
                || !flow.is_quiet()
                || flow.in_message
                || flow.stage != Stage::Strict
            {
                return false;
            }
            if flow.lane != NONE && self.lanes[flow.lane as usize].under_way > 0 {
                self.wait(id, flow.lane);
                return false;
            }
            let Some((bytes, _)) = self.held.first(flow.rereads.queue) else {
                self.end_rereads(id);
                return true;
            };
            let asked = Packet::parse(bytes).and_then(|packet| {
                let (_, _, len) = memory_of(&packet)?;
                Some((packet.bth().psn(), len))
            });
            let record = asked.and_then(|(psn, _)| self.read_at(id, psn));
            let (Some((psn, len)), Some(record)) = (asked, record) else {
                // It is so old by now that its client does not wait for it.
                self.pop_reread(id);
                continue;
            };
            let flow = &mut self.flows[id as usize];
            let span = len.div_ceil(LEAST_MTU).max(1) as i32;
            flow.rereads.sent = Some(Sent { psn, own: flow.own_next, span, since: now, at: now, tries: 0 });
            // It takes a place of those that the server keeps for READs and atomics.
            flow.forgotten = true;
            flow.reading = Some((record.psn.add(record.count), None));
            // From now on the server knows it by that.
            let skipped = psn.distance(record.psn) as u32;
            let own = flow.own_next.sub(skipped);
            for known in self.records_mut(id).iter_mut().filter(|known| known.psn == record.psn) {
                (known.own, known.skipped) = (own, skipped);
            }
            self.counters.reread.add(1);
            self.transmit_reread(id, now, out);
            return false;
        }
    }

    /// The record of the READ that has this PSN.
    fn read_at(&self, id: Id, psn: Psn) -> Option<Record> {
        let within = |record: &&Record| {
            matches!(record.what, What::Read | What::Unseen)
                && (0..record.count as i32).contains(&psn.distance(record.psn))
        };
        let records = self.records(id).iter().filter(within);
        records.min_by_key(|record| (psn.distance(record.psn), record.what == What::Unseen)).copied()
    }

    /// Sends the READ that is under way. Without room it is lost, as on a wire.
    fn transmit_reread<O: Output>(&mut self, id: Id, now: Nanos, out: &mut O) {
        let rereads = self.flows[id as usize].rereads;
        let (Some(sent), Some((bytes, port))) = (rereads.sent, self.held.first(rereads.queue)) else {
            return;
        };
        let Ok(mut frame) = out.make_from(bytes) else { return };
        let Class::Roce(layout) = classify(frame.bytes()) else { return };
        let by = self.read_at(id, sent.psn).map_or(0, |record| record.steered);
        rewrite_request(&mut frame, layout, sent.own, true, by);
        if let Verdict::Forward(port) = self.forward.route(&mut frame, port, now, out) {
            _ = out.send(frame, port);
        }
    }

    /// Sends a READ that is under way again if its time has come, or at once.
    fn resend_reread<O: Output>(&mut self, id: Id, now: Nanos, out: &mut O, at_once: bool) {
        let Some(sent) = &mut self.flows[id as usize].rereads.sent else { return };
        if !at_once && now.since(sent.at) <= self.config.replay_after {
            return;
        }
        (sent.since, sent.at, sent.tries) = (now, now, 0);
        self.counters.resent.add(1);
        self.transmit_reread(id, now, out);
    }

    /// Sends READs again that are not answered in time. After `dead_after` only the client's repetition does.
    pub(crate) fn tend_rereads<O: Output>(&mut self, now: Nanos, out: &mut O) {
        let mut at = 0;
        while let Some(id) = self.rereading.get(at).copied() {
            at += 1;
            let flow = &mut self.flows[id as usize];
            if !flow.rereading {
                at -= 1;
                self.rereading.swap_remove(at);
                continue;
            }
            let Some(sent) = &mut flow.rereads.sent else {
                self.send_reread(id, now, out);
                continue;
            };
            let patience = Nanos(self.config.replay_after.0 << sent.tries);
            if now.since(sent.at) > patience && now.since(sent.since) <= self.config.dead_after {
                sent.at = now;
                sent.tries = (sent.tries + 1).min(MOST_DOUBLED);
                self.counters.resent.add(1);
                self.transmit_reread(id, now, out);
            }
        }
    }

    /// Passes a response to a READ that is under way for the second time; `None` if this is none.
    pub(crate) fn on_reread<O: Output>(
        &mut self,
        id: Id,
        frame: &mut O::Frame,
        layout: Layout,
        port: PortId,
        now: Nanos,
        out: &mut O,
    ) -> Option<Verdict> {
        let flow = &mut self.flows[id as usize];
        let sent = flow.rereads.sent.filter(|_| flow.rereading)?;
        let packet = Packet::new(frame.bytes(), layout);
        let own = packet.bth().psn();
        let at = own.distance(sent.own);
        if !(0..sent.span).contains(&at) {
            return None;
        }
        let psn = sent.psn.add(at as u32);
        let msn = packet.aeth().map(|_| flow.msn);
        match layout.opcode() {
            Opcode::RC_READ_RESPONSE_FIRST | Opcode::RC_READ_RESPONSE_MIDDLE => {}
            Opcode::RC_READ_RESPONSE_LAST | Opcode::RC_READ_RESPONSE_ONLY => {
                flow.own_next = own.add(1);
                flow.own_msn = flow.own_msn.add(1);
                self.pop_reread(id);
            }
            Opcode::RC_ACKNOWLEDGE => match packet.aeth().map(rocev2::aeth::Aeth::kind) {
                Some(Syndrome::Nak(NakCode::PSN_SEQUENCE_ERROR)) => {
                    self.resend_reread(id, now, out, true);
                    return Some(Verdict::Consume);
                }
                // The server's queue pair is in error: its client is told.
                Some(Syndrome::Nak(_)) => self.end_rereads(id),
                _ => return None,
            },
            _ => return None,
        }
        rewrite_response(frame, layout, psn, msn);
        Some(self.forward.route(frame, port, now, out))
    }

    /// The first repeated READ is answered, or of no use any more.
    fn pop_reread(&mut self, id: Id) {
        let rereads = &mut self.flows[id as usize].rereads;
        rereads.sent = None;
        self.held.pop(&mut rereads.queue);
        rereads.count -= 1;
        match self.held.first(rereads.queue).and_then(|(bytes, _)| Packet::parse(bytes)) {
            Some(packet) => rereads.first = packet.bth().psn(),
            None => self.end_rereads(id),
        }
    }

    /// No repeated READ of a flow waits any more.
    pub(crate) fn end_rereads(&mut self, id: Id) {
        let flow = &mut self.flows[id as usize];
        if core::mem::take(&mut flow.rereading) {
            self.held.clear(&mut flow.rereads.queue);
            flow.rereads = Rereads::NONE;
            flow.reading = None;
        }
    }
}
