//! Operations on shared QPs: their transformation, their completion, and the responses to their clients.

use crate::answer::Answer;
use crate::config::FailedCas;
use crate::function::{End, Swordbox};
use crate::headers::{Base, Class8, Payload};
use crate::lane::{Asked, Entry, LONGEST_WRITE, Under};
use crate::lines::{offset_of, word_of};
use crate::op::{atomic_of, outcome};
use crate::records::{NO_RECORD, Record, What};
use crate::request::Done;
use crate::way::{Passage, Wish};
use crate::{Id, NONE};
use rocev2::atomic::AtomicEth;
use rocev2::reth::Reth;
use rocev2::{Layout, Opcode, Packet, Psn};
use switch::{Frame, Nanos, NoRoom, Output, PortId};
use zerocopy::IntoBytes;

impl End {
    /// Builds the packet that the server receives on a shared QP for an operation. Returns the output port.
    #[expect(clippy::inline_always, reason = "the caller has the request in registers")]
    #[inline(always)]
    fn build_entry<F: Frame>(
        &self,
        psn: Psn,
        Asked { what, va, rkey, class, solicited }: Asked,
        payload: Payload<'_>,
        frame: &mut F,
    ) -> Result<PortId, NoRoom> {
        let base = Base { ack_req: true, solicited, ..Base::new(Opcode::RC_WRITE_ONLY, self.qpn, psn) };
        let (va, rkey, class) = (va.into(), rkey.into(), Some(class));
        match what {
            Under::Atomic(opcode, swap_or_add, compare) => {
                let atomic = AtomicEth { va, rkey, swap_or_add: swap_or_add.into(), compare: compare.into() };
                let behind: [u8; AtomicEth::LEN] = zerocopy::transmute!(atomic);
                self.headers.build(frame, class, Base { opcode, ..base }, &behind)?;
            }
            Under::Decided { left, .. } => {
                let mut behind = [0; Reth::LEN + 8];
                behind[..Reth::LEN].copy_from_slice(Reth { va, rkey, len: 8.into() }.as_bytes());
                behind[Reth::LEN..].copy_from_slice(&left.to_le_bytes());
                self.headers.build(frame, class, base, &behind)?;
            }
            Under::Write(len) => {
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
        passage: Passage,
        frame: &mut F,
        layout: Layout,
        now: Nanos,
    ) -> Done {
        self.share_inline(id, passage, frame, layout, now)
    }

    /// Does the same as [`share`](Self::share), inlined into callers for which much of the request is
    /// constant.
    #[expect(clippy::inline_always, reason = "much of the request is constant in the caller")]
    #[inline(always)]
    pub(crate) fn share_inline<F: Frame>(
        &mut self,
        id: Id,
        Passage { lane, line, known, wish }: Passage,
        frame: &mut F,
        layout: Layout,
        now: Nanos,
    ) -> Done {
        let packet = Packet::new(frame.bytes(), layout);
        let (bth, opcode) = (packet.bth(), layout.opcode());
        let (psn, Wish { va, rkey, .. }) = (bth.psn(), wish);
        // The operation as the server sees it
        let what = match atomic_of(&packet).filter(|_| wish.atomic) {
            Some(atomic) => {
                let (swap, compare) = (atomic.swap_or_add.get(), atomic.compare.get());
                match known {
                    Some(found) => Under::Decided { found, left: outcome(opcode, swap, compare, found) },
                    None => Under::Atomic(opcode, swap, compare),
                }
            }
            None => Under::Write(packet.payload().len().min(LONGEST_WRITE) as u8),
        };
        if let Under::Decided { found, left } = what
            && found == left
            && self.can_answer(id, line, lane, now)
        {
            self.counters.answered.add(1);
            return self.answer_at_once(id, frame, psn, found);
        }
        let there = &mut self.lanes[lane as usize];
        let owner = there.owner;
        let server_psn = self.flows[owner as usize].own_next;
        if there.under_way == 0 {
            there.moved = now;
            there.acked = server_psn;
        }
        if there.timed.is_none() {
            there.timed = Some((server_psn, now));
        }
        there.begin();
        self.under_way += 1;
        there.atomics += u32::from(what.is_atomic());
        let own = self.lines.get_mut(line);
        own.under_way += 1;
        let teaches = own.teaches(now);
        let asked = Asked { what, va, rkey, class: Class8::of(&packet), solicited: bth.solicited() };
        // Written in place and not read again, because the cache miss takes a while.
        let entry = there.entry_mut(server_psn);
        entry.asked = asked;
        entry.flow = id;
        entry.to = self.ends[id as usize].peer;
        entry.psn = psn;
        entry.line = line;
        entry.detours = own.detours;
        entry.teaches = teaches;
        entry.ack_req = bth.ack_req();
        let word = word_of(va);
        match what {
            Under::Decided { left, .. } => {
                entry.tag = self.lines.begin_decided(line);
                let own = self.lines.get_mut(line);
                own.set(word, left);
                self.counters.decided.add(1);
            }
            Under::Write(len) => {
                let bytes = &packet.payload()[..usize::from(len)];
                own.write(offset_of(va), bytes, teaches);
                there.put_payload(server_psn, bytes);
            }
            // The new value is known when the response arrives.
            Under::Atomic(..) => own.forget(word),
        }
        self.counters.remapped.add(1);
        let others = owner != id && what.is_atomic();
        let owner_flow = &mut self.flows[owner as usize];
        owner_flow.own_next = server_psn.add(1);
        owner_flow.forgotten |= others;
        let flow = &mut self.flows[id as usize];
        flow.via = lane;
        flow.shared += 1;
        flow.sent = psn.add(1);
        if flow.next.precedes(flow.sent) {
            flow.next = flow.sent;
        }
        let end = &self.ends[owner as usize];
        let payload = match what {
            Under::Write(len) if layout.end() == end.headers.frame_len(Reth::LEN + usize::from(len)) => {
                Payload::There(len.into())
            }
            Under::Write(len) => {
                Payload::Copied(&self.lanes[lane as usize].payload(server_psn)[..len.into()])
            }
            _ => Payload::NONE,
        };
        match end.build_entry(server_psn, asked, payload, frame) {
            Ok(port) => Done::Sent(port),
            // Retransmitted when its timeout expires.
            Err(NoRoom) => Done::Taken,
        }
    }

    /// Returns whether the switch can answer an atomic that changes nothing: no operation that the result
    /// depends on is in flight, and a recent acknowledgement shows that the server is still the one that the
    /// value was learnt from.
    fn can_answer(&self, id: Id, line: Id, lane: Id, now: Nanos) -> bool {
        let heard = self.lanes[lane as usize].heard;
        self.config.failed_cas == FailedCas::Answer
            && heard != Nanos::ZERO
            && now.since(heard) <= self.config.settle
            && self.lines.get(line).under_way == 0
            && self.flows[id as usize].is_quiet()
    }

    fn answer_at_once<F: Frame>(&mut self, id: Id, frame: &mut F, psn: Psn, found: u64) -> Done {
        let flow = &mut self.flows[id as usize];
        flow.sent = psn.add(1);
        if flow.next.precedes(flow.sent) {
            flow.next = flow.sent;
        }
        flow.acked = flow.sent;
        flow.msn = flow.msn.add(1);
        self.record(id, Record { psn, count: 1, what: What::Atomic, value: found, ..NO_RECORD });
        match self.build_answer(id, frame, psn, Answer::Atomic(found)) {
            Ok(port) => Done::Answered(port),
            Err(NoRoom) => Done::Taken,
        }
    }

    /// Retransmits all operations in flight on a shared QP, from `from` on.
    pub(crate) fn resend<O: Output>(&mut self, lane: Id, from: Psn, now: Nanos, out: &mut O) {
        let there = &mut self.lanes[lane as usize];
        there.resent = now;
        there.timed = None;
        let end = there.acked.add(there.under_way);
        let mut psn = from;
        while psn.precedes(end) {
            let Ok(mut frame) = out.make(0) else { return };
            let there = &self.lanes[lane as usize];
            let asked = there.entry(psn).asked;
            let payload = match asked.what {
                Under::Write(len) => Payload::Copied(&there.payload(psn)[..len.into()]),
                _ => Payload::NONE,
            };
            let end = &self.ends[there.owner as usize];
            let Ok(port) = end.build_entry(psn, asked, payload, &mut frame) else { return };
            if out.send(frame, port).is_err() {
                return;
            }
            self.counters.resent.add(1);
            psn = psn.add(1);
        }
    }

    /// Completes the oldest operation in flight on a shared QP. `found` is the result if it was sent as an
    /// atomic. Returns the response to its client, if it gets one.
    pub(crate) fn complete(&mut self, lane: Id, found: Option<u64>) -> Option<(Id, Psn, Answer)> {
        self.complete_inline(lane, found)
    }

    #[expect(clippy::inline_always, reason = "the caller uses the result at once")]
    #[inline(always)]
    pub(crate) fn complete_inline(&mut self, lane: Id, found: Option<u64>) -> Option<(Id, Psn, Answer)> {
        let there = &mut self.lanes[lane as usize];
        let psn = there.acked;
        there.acked = psn.add(1);
        there.under_way -= 1;
        self.under_way -= 1;
        let &Entry { asked: Asked { what, .. }, flow: id, psn: known_as, line, ack_req, tag, .. } =
            there.entry(psn);
        there.atomics -= u32::from(what.is_atomic());
        let owner = there.owner;
        let owner = &mut self.flows[owner as usize];
        owner.own_msn = owner.own_msn.add(1);
        let own = self.lines.get_mut(line);
        own.under_way -= 1;
        if let Under::Decided { .. } = what {
            self.lines.end_decided(line, tag);
        }
        if let (Under::Atomic(opcode, swap, compare), Some(found)) = (what, found) {
            let left = outcome(opcode, swap, compare, found);
            let entry = *self.lanes[lane as usize].entry(psn);
            self.learn(lane, &entry, left);
        }
        if id == NONE {
            return None;
        }
        let flow = &mut self.flows[id as usize];
        flow.acked = known_as.add(1);
        flow.shared -= 1;
        flow.msn = flow.msn.add(1);
        debug_assert!(flow.shared > 0 || flow.is_quiet(), "all operations in flight are on the shared QP");
        if flow.shared == 0 && (flow.holds() || flow.nak_due || flow.rereading) {
            self.ready.push_back(id);
        }
        let (what, value, answer) = match what {
            Under::Write(_) => {
                return ack_req.then_some((id, known_as, Answer::Ack));
            }
            Under::Decided { found, .. } => (What::Atomic, found, Answer::Atomic(found)),
            Under::Atomic(..) => (What::Atomic, found?, Answer::Atomic(found?)),
        };
        self.record(id, Record { psn: known_as, count: 1, what, value, ..NO_RECORD });
        Some((id, known_as, answer))
    }

    /// Caches the value of a word after an atomic left `value` there and all later operations on the shared
    /// QP will have executed.
    fn learn(&mut self, lane: Id, entry: &Entry, value: u64) {
        self.lines.check(entry.line);
        let line = self.lines.get(entry.line);
        if !entry.teaches || line.detours != entry.detours {
            return;
        }
        let there = &self.lanes[lane as usize];
        let word = word_of(entry.asked.va);
        let mut value = Some(value);
        for n in 0..there.under_way {
            let psn = there.acked.add(n);
            let later = there.entry(psn);
            if later.line != entry.line {
                continue;
            }
            match later.asked.what {
                Under::Atomic(opcode, swap, compare) if word_of(later.asked.va) == word => {
                    value = value.map(|value| outcome(opcode, swap, compare, value));
                }
                Under::Decided { left, .. } if word_of(later.asked.va) == word => {
                    value = value.and(Some(left));
                }
                Under::Write(len) => {
                    let offset = offset_of(later.asked.va);
                    let bytes = &there.payload(psn)[..usize::from(len)];
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
                Under::Atomic(..) | Under::Decided { .. } => {}
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
