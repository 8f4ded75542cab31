//! Operations on shared QPs: their transformation, their completion, and the responses to their clients.

use super::Swordbox;
use super::generated::Response;
use super::route::{Access, SharedRoute};
use super::translated::Outcome;
use crate::config::FailedCas;
use crate::connections::Endpoint;
use crate::headers::{BthFields, Payload, TrafficClass};
use crate::lines::{offset_of, word_of};
use crate::op::{atomic_of, outcome};
use crate::records::{NO_RECORD, Record, RecordKind};
use crate::shared_qps::{Entry, LONGEST_WRITE, Operation, ServerRequest};
use crate::{Id, NONE};
use rocev2::atomic::AtomicEth;
use rocev2::reth::Reth;
use rocev2::{Layout, Opcode, Packet, Psn};
use switch::{Frame, Nanos, NoRoom, Output, PortId};
use zerocopy::IntoBytes;

impl Endpoint {
    /// Builds the packet that the server receives on a shared QP for an operation. Returns the output port.
    #[expect(clippy::inline_always, reason = "the caller has the request in registers")]
    #[inline(always)]
    fn build_entry<F: Frame>(
        &self,
        psn: Psn,
        ServerRequest { what, va, rkey, class, solicited }: ServerRequest,
        payload: Payload<'_>,
        frame: &mut F,
    ) -> Result<PortId, NoRoom> {
        let base =
            BthFields { ack_req: true, solicited, ..BthFields::new(Opcode::RC_WRITE_ONLY, self.qpn, psn) };
        let (va, rkey, class) = (va.into(), rkey.into(), Some(class));
        match what {
            Operation::Atomic(opcode, swap_or_add, compare) => {
                let atomic = AtomicEth { va, rkey, swap_or_add: swap_or_add.into(), compare: compare.into() };
                let behind: [u8; AtomicEth::LEN] = zerocopy::transmute!(atomic);
                self.headers.build(frame, class, BthFields { opcode, ..base }, &behind)?;
            }
            Operation::Resolved { left, .. } => {
                let mut behind = [0; Reth::LEN + 8];
                behind[..Reth::LEN].copy_from_slice(Reth { va, rkey, len: 8.into() }.as_bytes());
                behind[Reth::LEN..].copy_from_slice(&left.to_le_bytes());
                self.headers.build(frame, class, base, &behind)?;
            }
            Operation::Write(len) => {
                let reth = Reth { va, rkey, len: u32::from(len).into() };
                let behind: [u8; Reth::LEN] = zerocopy::transmute!(reth);
                self.headers.build_with(frame, class, base, &behind, payload)?;
            }
        }
        Ok(self.port)
    }
}

impl Swordbox {
    /// Forwards a request on a shared QP.
    pub(crate) fn share<F: Frame>(
        &mut self,
        id: Id,
        route: SharedRoute,
        frame: &mut F,
        layout: Layout,
        now: Nanos,
    ) -> Outcome {
        self.share_inline(id, route, frame, layout, now)
    }

    /// Does the same as [`share`](Self::share), inlined into callers for which much of the request is
    /// constant.
    #[expect(clippy::inline_always, reason = "much of the request is constant in the caller")]
    #[inline(always)]
    pub(crate) fn share_inline<F: Frame>(
        &mut self,
        id: Id,
        SharedRoute { shared_qp, line, known, access }: SharedRoute,
        frame: &mut F,
        layout: Layout,
        now: Nanos,
    ) -> Outcome {
        let packet = Packet::new(frame.bytes(), layout);
        let (bth, opcode) = (packet.bth(), layout.opcode());
        let (psn, Access { va, rkey, .. }) = (bth.psn(), access);
        // The operation that the server receives
        let what = match atomic_of(&packet).filter(|_| access.atomic) {
            Some(atomic) => {
                let (swap, compare) = (atomic.swap_or_add.get(), atomic.compare.get());
                match known {
                    Some(found) => Operation::Resolved { found, left: outcome(opcode, swap, compare, found) },
                    None => Operation::Atomic(opcode, swap, compare),
                }
            }
            None => Operation::Write(packet.payload().len().min(LONGEST_WRITE) as u8),
        };
        if let Operation::Resolved { found, left } = what
            && found == left
            && self.can_respond(id, line, shared_qp, now)
        {
            self.counters.answered.add(1);
            return self.respond_at_once(id, frame, psn, found);
        }
        let owner = self.shared_qps[shared_qp].owner;
        let server_psn = self.connections.flow(owner).translation.next();
        let qp = self.shared_qps.begin(shared_qp, server_psn, what.is_atomic(), now);
        let cached = self.lines.get_mut(line);
        cached.in_flight += 1;
        let may_learn = cached.may_learn(now);
        let request =
            ServerRequest { what, va, rkey, class: TrafficClass::of(&packet), solicited: bth.solicited() };
        // Written in place and not read again, because the cache miss takes a while.
        let entry = qp.entry_mut(server_psn);
        entry.request = request;
        entry.flow = id;
        entry.to = self.connections.endpoint(id).peer();
        entry.psn = psn;
        entry.line = line;
        entry.detours = cached.detours;
        entry.may_learn = may_learn;
        entry.ack_req = bth.ack_req();
        let word = word_of(va);
        match what {
            Operation::Resolved { left, .. } => {
                entry.tag = self.lines.begin_resolved(line);
                let cached = self.lines.get_mut(line);
                cached.set(word, left);
                self.counters.decided.add(1);
            }
            Operation::Write(len) => {
                let bytes = &packet.payload()[..usize::from(len)];
                cached.write(offset_of(va), bytes, may_learn);
                qp.put_payload(server_psn, bytes);
            }
            // The new value is known when the response arrives.
            Operation::Atomic(..) => cached.forget(word),
        }
        self.counters.remapped.add(1);
        let others = owner != id && what.is_atomic();
        let owner_flow = self.connections.flow_mut(owner);
        owner_flow.translation.set_next(server_psn.add(1));
        owner_flow.reads_may_be_lost |= others;
        let flow = self.connections.flow_mut(id);
        flow.via = shared_qp;
        flow.shared_in_flight += 1;
        flow.sent = psn.add(1);
        if flow.next.precedes(flow.sent) {
            flow.next = flow.sent;
        }
        let end = self.connections.endpoint(owner);
        let payload = match what {
            Operation::Write(len) if layout.end() == end.headers.frame_len(Reth::LEN + usize::from(len)) => {
                Payload::InPlace(len.into())
            }
            Operation::Write(len) => {
                Payload::Copied(&self.shared_qps[shared_qp].payload(server_psn)[..len.into()])
            }
            _ => Payload::NONE,
        };
        match end.build_entry(server_psn, request, payload, frame) {
            Ok(port) => Outcome::Sent(port),
            // Retransmitted when its timeout expires.
            Err(NoRoom) => Outcome::Consumed,
        }
    }

    /// Returns whether the switch can answer an atomic that changes nothing: no operation that the result
    /// depends on is in flight, and a recent acknowledgement shows that the server is still the one that the
    /// value was learnt from.
    fn can_respond(&self, id: Id, line: Id, shared_qp: Id, now: Nanos) -> bool {
        let acked_at = self.shared_qps[shared_qp].acked_at;
        self.config.failed_cas == FailedCas::Respond
            && acked_at != Nanos::ZERO
            && now.since(acked_at) <= self.config.settle
            && self.lines.get(line).in_flight == 0
            && self.connections.flow(id).is_idle()
    }

    fn respond_at_once<F: Frame>(&mut self, id: Id, frame: &mut F, psn: Psn, found: u64) -> Outcome {
        let flow = self.connections.flow_mut(id);
        flow.sent = psn.add(1);
        if flow.next.precedes(flow.sent) {
            flow.next = flow.sent;
        }
        flow.acked = flow.sent;
        flow.msn = flow.msn.add(1);
        self.connections
            .record(id, Record { psn, count: 1, kind: RecordKind::Atomic, value: found, ..NO_RECORD });
        match self.build_response(id, frame, psn, Response::Atomic(found)) {
            Ok(port) => Outcome::Sent(port),
            Err(NoRoom) => Outcome::Consumed,
        }
    }

    /// Retransmits all operations in flight on a shared QP, from `from` on.
    pub(crate) fn resend<O: Output>(&mut self, shared_qp: Id, from: Psn, now: Nanos, out: &mut O) {
        let qp = &mut self.shared_qps[shared_qp];
        qp.resent = now;
        qp.timed = None;
        let end = qp.acked.add(qp.in_flight());
        let mut psn = from;
        while psn.precedes(end) {
            let Ok(mut frame) = out.make(0) else { return };
            let qp = &self.shared_qps[shared_qp];
            let request = qp.entry(psn).request;
            let payload = match request.what {
                Operation::Write(len) => Payload::Copied(&qp.payload(psn)[..len.into()]),
                _ => Payload::NONE,
            };
            let end = self.connections.endpoint(qp.owner);
            let Ok(port) = end.build_entry(psn, request, payload, &mut frame) else { return };
            if out.send(frame, port).is_err() {
                return;
            }
            self.counters.resent.add(1);
            psn = psn.add(1);
        }
    }

    /// Completes the oldest operation in flight on a shared QP. `found` is the result if it was sent as an
    /// atomic. Returns the response to its client, if it gets one.
    pub(crate) fn complete(&mut self, shared_qp: Id, found: Option<u64>) -> Option<(Id, Psn, Response)> {
        self.complete_inline(shared_qp, found)
    }

    #[expect(clippy::inline_always, reason = "the caller uses the result at once")]
    #[inline(always)]
    pub(crate) fn complete_inline(
        &mut self,
        shared_qp: Id,
        found: Option<u64>,
    ) -> Option<(Id, Psn, Response)> {
        let (owner, entry, psn) = self.shared_qps.complete(shared_qp);
        let &Entry {
            request: ServerRequest { what, .. }, flow: id, psn: known_as, line, ack_req, tag, ..
        } = entry;
        let owner = self.connections.flow_mut(owner);
        owner.translation.count_message();
        let cached = self.lines.get_mut(line);
        cached.in_flight -= 1;
        if let Operation::Resolved { .. } = what {
            self.lines.end_resolved(line, tag);
        }
        if let (Operation::Atomic(opcode, swap, compare), Some(found)) = (what, found) {
            let left = outcome(opcode, swap, compare, found);
            let entry = *self.shared_qps[shared_qp].entry(psn);
            self.learn(shared_qp, &entry, left);
        }
        if id == NONE {
            return None;
        }
        let flow = self.connections.flow_mut(id);
        flow.acked = known_as.add(1);
        flow.shared_in_flight -= 1;
        flow.msn = flow.msn.add(1);
        debug_assert!(
            flow.shared_in_flight > 0 || flow.is_idle(),
            "all operations in flight are on the shared QP"
        );
        if flow.shared_in_flight == 0 && (flow.has_held() || flow.nak_due || flow.rereading) {
            self.held.continue_later(id);
        }
        let (kind, value, response) = match what {
            Operation::Write(_) => {
                return ack_req.then_some((id, known_as, Response::Ack));
            }
            Operation::Resolved { found, .. } => (RecordKind::Atomic, found, Response::Atomic(found)),
            Operation::Atomic(..) => (RecordKind::Atomic, found?, Response::Atomic(found?)),
        };
        self.connections.record(id, Record { psn: known_as, count: 1, kind, value, ..NO_RECORD });
        Some((id, known_as, response))
    }

    /// Caches the value of a word after an atomic left `value` there and all later operations on the shared
    /// QP will have executed.
    fn learn(&mut self, shared_qp: Id, entry: &Entry, value: u64) {
        self.lines.apply_invalidations(entry.line);
        let line = self.lines.get(entry.line);
        if !entry.may_learn || line.detours != entry.detours {
            return;
        }
        let qp = &self.shared_qps[shared_qp];
        let word = word_of(entry.request.va);
        let mut value = Some(value);
        for n in 0..qp.in_flight() {
            let psn = qp.acked.add(n);
            let later = qp.entry(psn);
            if later.line != entry.line {
                continue;
            }
            match later.request.what {
                Operation::Atomic(opcode, swap, compare) if word_of(later.request.va) == word => {
                    value = value.map(|value| outcome(opcode, swap, compare, value));
                }
                Operation::Resolved { left, .. } if word_of(later.request.va) == word => {
                    value = value.and(Some(left));
                }
                Operation::Write(len) => {
                    let offset = offset_of(later.request.va);
                    let bytes = &qp.payload(psn)[..usize::from(len)];
                    if let Some(old) = value {
                        let mut new = old.to_le_bytes();
                        for (at, byte) in bytes.iter().enumerate().map(|(n, byte)| (offset + n, byte)) {
                            if at / 8 == word {
                                new[at % 8] = *byte;
                            }
                        }
                        value = Some(u64::from_le_bytes(new));
                    }
                }
                Operation::Atomic(..) | Operation::Resolved { .. } => {}
            }
        }
        if let Some(value) = value
            && self.layers.cas_to_write
        {
            self.counters.learnt.add(1);
            self.lines.get_mut(entry.line).set(word, value);
        }
    }
}
