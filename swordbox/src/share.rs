//! Operations on shared connections (lanes): which ones take which, what they become there, and how they get through.

use crate::answer::Answer;
use crate::config::FailedCas;
use crate::flow::{Stage, right};
use crate::records::{NO_RECORD, Record, What};
use crate::function::{End, NO_SERVER, Swordbox};
use crate::headers::{Base, Class8, Payload};
use crate::lane::{Asked, Entry, LONGEST_WRITE, Under};
use crate::lines::{in_one_line, offset_of, word_of};
use crate::op::{Kind, Op, atomic_of, memory_of, outcome};
use crate::request::Done;
use crate::{Id, NONE};
use rocev2::atomic::AtomicEth;
use rocev2::reth::Reth;
use rocev2::{Layout, Opcode, Packet, Psn};
use switch::{Frame, Nanos, NoRoom, Output, PortId};
use zerocopy::IntoBytes;

/// Which way a request goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// A lane
    Lane(Passage),
    /// The client's own connection
    Own,
    /// None yet: it waits for this lane, or for the client's own requests
    Wait(Id),
}

/// A request's way on a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Passage {
    pub lane: Id,
    /// The line that it touches
    pub line: Id,
    /// What the word holds, if it is decided here
    pub known: Option<u64>,
    pub wish: Wish,
}

/// What a request asks of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wish {
    pub va: u64,
    pub rkey: u32,
    pub rights: u8,
    pub atomic: bool,
}

impl End {
    /// Makes `frame` the packet that the server gets here for an operation on the shared connection.
    #[expect(clippy::inline_always, reason = "its caller has what is asked in registers")]
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
    /// What a request would ask of a lane, if it is one that can take one.
    #[expect(clippy::inline_always, reason = "what it finds stays in registers")]
    #[inline(always)]
    pub(crate) fn wish_of(&self, server: u8, packet: &Packet<'_>, op: Op) -> Option<Wish> {
        let atomic = op.kind == Kind::Atomic;
        // READs stay where they are: asked for again, the server reads again, on the client's own connection.
        if !atomic && packet.layout().opcode() != Opcode::RC_WRITE_ONLY {
            return None;
        }
        let (va, rkey, len) = memory_of(packet)?;
        if atomic && !va.is_multiple_of(8) {
            self.counters.misplaced.add(1);
            return None;
        }
        let fits = len as usize == packet.payload().len() && len as usize <= LONGEST_WRITE;
        if !atomic && (!fits || !in_one_line(va, len as usize)) {
            return None;
        }
        let rights = if atomic { right::ATOMIC } else { right::WRITE };
        let server = self.config.servers.get(usize::from(server))?;
        // A line may hold a word that is never cached beside others that are.
        if server.is_never_cached(va) || (!atomic && server.is_never_cached(va + (u64::from(len) - 1))) {
            return None;
        }
        Some(Wish { va, rkey, rights, atomic })
    }

    /// Whether a request would take a lane if its connection could: then it is worth that the two sides differ.
    pub(crate) fn wants_lane(&mut self, id: Id, packet: &Packet<'_>, op: Op) -> bool {
        if !self.layers.remap {
            return false;
        }
        let peer = self.ends[id as usize].peer;
        if peer == NONE || self.ends[peer as usize].headers.is_none() {
            return false;
        }
        let flow = &self.flows[id as usize];
        let Some(wish) = self.wish_of(flow.server, packet, op) else { return false };
        self.lines.find(flow.server, wish.va).is_some()
            || self.steering.is_word(flow.server, wish.va, wish.rkey)
            || (wish.atomic && self.is_tracked(flow.server, &wish))
    }

    /// Whether a word on which an atomic is done is to be tracked.
    fn is_tracked(&mut self, server: u8, wish: &Wish) -> bool {
        let declared = &self.config.servers[usize::from(server)];
        if declared.table_of(wish.va, wish.rkey).is_some() {
            return true;
        }
        if declared.tables.iter().any(|table| table.range.contains(&wish.va)) {
            self.counters.misplaced.add(1);
        }
        let detect = declared.detect;
        if detect > 0 && self.is_steering() && self.steering.at(server, wish.va).is_some() {
            // A node is appended to once; and an answer that waits would keep a lane from those that it waits for.
            return false;
        }
        detect > 0 && self.sketch.add(wish.va ^ u64::from(wish.rkey) << 32) >= detect
    }

    /// Which way a request goes whose turn it is.
    #[inline]
    pub(crate) fn way_of(&mut self, id: Id, packet: &Packet<'_>, op: Op, now: Nanos) -> Way {
        if !self.layers.remap || self.flows[id as usize].in_message {
            return Way::Own;
        }
        let server = self.flows[id as usize].server;
        let Some(wish) = self.wish_of(server, packet, op) else { return Way::Own };
        let line = match self.lines.find(server, wish.va) {
            Some(line) => line,
            // A key that may be refused would keep the line from those that have the right one.
            None if self.steering.is_word(server, wish.va, wish.rkey)
                || (wish.atomic && self.is_tracked(server, &wish)) =>
            {
                if !self.flows[id as usize].has_proven(wish.rkey, wish.rights) {
                    self.counters.unproven.add(1);
                    return Way::Own;
                }
                let quiet_until = now + self.config.settle;
                match self.lines.make(server, wish.va, wish.rkey, quiet_until) {
                    Ok(line) => line,
                    Err(switch::Full) => return Way::Own,
                }
            }
            None => return Way::Own,
        };
        let flow = &self.flows[id as usize];
        let own = self.lines.get(line);
        if own.rkey != wish.rkey {
            if !wish.atomic || own.under_way > 0 || !flow.has_proven(wish.rkey, wish.rights) {
                return Way::Own;
            }
            // The server has given another key, or there are two: the word is not known by this one yet.
            let settle = self.config.settle;
            let own = self.lines.get_mut(line);
            own.detour(now, settle);
            (own.rkey, own.lane) = (wish.rkey, NONE);
        }
        let flow = &self.flows[id as usize];
        if !flow.has_proven(wish.rkey, wish.rights) {
            self.counters.unproven.add(1);
            return Way::Own;
        }
        let Some(lane) = self.lane_of(id, line, wish.va, now) else { return Way::Own };
        let own = &self.lines.get(line);
        let writes = self.may_write(lane, wish.va, wish.rkey);
        if wish.rights == right::WRITE && !writes {
            return Way::Own;
        }
        let known = own.value(word_of(wish.va));
        let known = known.filter(|_| wish.atomic && self.layers.cas_to_write && writes);
        let flow = &self.flows[id as usize];
        let busy = if flow.shared > 0 { flow.via != lane } else { !flow.is_quiet() };
        if busy {
            return Way::Wait(NONE);
        }
        let there = &self.lanes[lane as usize];
        let owner = &self.flows[there.owner as usize];
        let undecided = wish.atomic && known.is_none();
        if there.is_full()
            || (there.owner != id
                && (owner.is_private()
                    || owner.waits == lane
                    || owner.leaving
                    || (owner.nak_sent && now < there.reserved)))
            || (undecided && there.atomics >= there.max_atomics)
        {
            return Way::Wait(lane);
        }
        Way::Lane(Passage { lane, line, known, wish })
    }

    /// Whether what is decided may be written there on a lane.
    #[inline]
    fn may_write(&self, lane: Id, va: u64, rkey: u32) -> bool {
        let lane = &self.lanes[lane as usize];
        let server = &self.config.servers[usize::from(lane.server)];
        self.flows[lane.owner as usize].has_proven(rkey, right::WRITE)
            || server.table_of(va, rkey).is_some_and(|table| table.writable)
    }

    /// The lane that all operations on a line take; chosen now if it has none.
    #[inline]
    fn lane_of(&mut self, id: Id, line: Id, va: u64, now: Nanos) -> Option<Id> {
        let own = self.lines.get(line);
        let server = self.flows[id as usize].server;
        if own.lane != NONE && (own.under_way > 0 || self.is_usable(own.lane as usize, server, own.rkey)) {
            return Some(own.lane);
        }
        self.choose_lane(id, line, va, now)
    }

    /// Whether operations with this key can go on a lane.
    #[inline]
    fn is_usable(&self, lane: usize, server: u8, rkey: u32) -> bool {
        let lane = &self.lanes[lane];
        lane.server == server
            && lane.owner != NONE
            && self.flows[lane.owner as usize].has_proven(rkey, right::ATOMIC)
    }

    #[cold]
    fn choose_lane(&mut self, id: Id, line: Id, va: u64, now: Nanos) -> Option<Id> {
        let rkey = self.lines.get(line).rkey;
        let server = self.flows[id as usize].server;
        self.make_lane(id, server, now);
        let usable = |at: &usize| self.is_usable(*at, server, rkey);
        let count = (0..self.lanes.len()).filter(usable).count();
        let nth = (switch::table::mix(va >> 6) as usize).checked_rem(count)?;
        let chosen = (0..self.lanes.len()).filter(usable).nth(nth)? as Id;
        let own = self.lines.get_mut(line);
        own.lane = chosen;
        Some(chosen)
    }

    /// A connection becomes a lane, if there is to be another one.
    fn make_lane(&mut self, id: Id, server: u8, now: Nanos) {
        if self.flows[id as usize].lane != NONE {
            return;
        }
        let Some(free) = self.lanes.iter().position(|lane| lane.server == server && lane.owner == NONE)
        else {
            return;
        };
        let declared = u32::from(self.config.servers[usize::from(server)].rd_atomic);
        let flow = &mut self.flows[id as usize];
        flow.lane = free as Id;
        let max_atomics = declared.max(flow.most_reads.into()).max(flow.max_reads.into()).max(1);
        self.lanes[free].open(id, flow.own_next, max_atomics, now);
        self.counters.lanes.add(1);
    }

    /// A request leaves on a lane; with what its word holds, if it is an atomic and that is known.
    pub(crate) fn share<F: Frame>(
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
        // What it is to the server
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
            && self.can_answer(id, line)
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
        there.under_way += 1;
        self.under_way += 1;
        there.atomics += u32::from(what.is_atomic());
        let own = self.lines.get_mut(line);
        own.under_way += 1;
        let teaches = now >= own.quiet_until;
        let asked = Asked { what, va, rkey, class: Class8::of(&packet), solicited: bth.solicited() };
        // In place, and not read again: it takes a while to get there.
        let entry = there.entry_mut(server_psn);
        entry.asked = asked;
        entry.flow = id;
        entry.to = self.ends[id as usize].peer;
        entry.psn = psn;
        entry.line = line;
        entry.detours = own.detours;
        entry.teaches = teaches;
        entry.ack_req = bth.ack_req() || !matches!(what, Under::Write(_));
        let word = word_of(va);
        match what {
            Under::Decided { left, .. } => {
                own.decided += 1;
                own.set(word, left);
                self.counters.decided.add(1);
            }
            Under::Write(len) => {
                let bytes = &packet.payload()[..usize::from(len)];
                own.write(offset_of(va), bytes, teaches);
                there.put_payload(server_psn, bytes);
            }
            // What it leaves behind is known when it is answered.
            Under::Atomic(..) => own.forget(word),
        }
        self.counters.remapped.add(1);
        self.flows[owner as usize].own_next = server_psn.add(1);
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
            Under::Write(len) => Payload::Copied(&self.lanes[lane as usize].payload(server_psn)[..len.into()]),
            _ => Payload::NONE,
        };
        match end.build_entry(server_psn, asked, payload, frame) {
            Ok(port) => Done::Sent(port),
            // Sent again when its time comes.
            Err(NoRoom) => Done::Taken,
        }
    }

    /// Whether an atomic that changes nothing can be answered without the server: nothing that it depends on is under way.
    fn can_answer(&self, id: Id, line: Id) -> bool {
        self.config.failed_cas == FailedCas::Answer
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

    /// Sends everything under way on a lane again, from `from` on.
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

    /// The first operation under way on a lane is done, and found this if it was an atomic or a READ. What its client is to
    /// be told, if it is.
    pub(crate) fn complete(&mut self, lane: Id, found: Option<u64>) -> Option<(Id, Psn, Answer)> {
        let there = &mut self.lanes[lane as usize];
        let psn = there.acked;
        there.acked = psn.add(1);
        there.under_way -= 1;
        self.under_way -= 1;
        let &Entry { asked: Asked { what, .. }, flow: id, psn: known_as, line, ack_req, .. } = there.entry(psn);
        there.atomics -= u32::from(what.is_atomic());
        let owner = there.owner;
        let owner = &mut self.flows[owner as usize];
        owner.own_msn = owner.own_msn.add(1);
        let own = self.lines.get_mut(line);
        own.under_way -= 1;
        if let Under::Decided { .. } = what {
            own.decided -= 1;
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
        if flow.shared == 0 && flow.is_quiet() && (flow.holds() || flow.nak_due) {
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

    /// An atomic left `value` in its word: what all that follows it on the lane will leave is known from that.
    fn learn(&mut self, lane: Id, entry: &Entry, value: u64) {
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
                Under::Decided { left, .. } if word_of(later.asked.va) == word => value = value.and(Some(left)),
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

    /// A flow waits for a lane; for nothing in particular, until its own requests are done.
    pub(crate) fn wait(&mut self, id: Id, lane: Id) {
        let flow = &mut self.flows[id as usize];
        if lane == NONE || flow.waits != NONE {
            return;
        }
        flow.waits = lane;
        flow.next_waiting = NONE;
        let [first, last] = self.lanes[lane as usize].waiting;
        if first == NONE {
            self.lanes[lane as usize].waiting = [id, id];
        } else {
            self.flows[last as usize].next_waiting = id;
            self.lanes[lane as usize].waiting[1] = id;
        }
    }

    /// Whoever waits for a lane has another try.
    pub(crate) fn pump_lane<O: Output>(&mut self, lane: Id, now: Nanos, out: &mut O) {
        let there = &mut self.lanes[lane as usize];
        let [mut id, _] = core::mem::replace(&mut there.waiting, [NONE; 2]);
        let owner = there.owner;
        if owner != NONE && self.flows[owner as usize].waits == lane && there.under_way == 0 {
            // Its owner can go on only when the lane is empty.
            self.unwait(owner, lane, &mut id);
            let asked = self.flows[owner as usize].nak_sent;
            self.pump(owner, now, out);
            if self.flows[owner as usize].nak_sent && !asked {
                // It has the next turn, if it comes soon: others would take the lane again and again before it is there.
                let there = &mut self.lanes[lane as usize];
                there.reserved = now + there.patience(self.config.replay_after);
            }
        }
        while id != NONE {
            let flow = &mut self.flows[id as usize];
            let next = flow.next_waiting;
            flow.waits = NONE;
            flow.next_waiting = NONE;
            self.pump(id, now, out);
            id = next;
        }
    }

    /// Takes one out of a list of those that wait.
    pub(crate) fn unwait(&mut self, id: Id, lane: Id, first: &mut Id) {
        let mut at = *first;
        let next = self.flows[id as usize].next_waiting;
        if at == id {
            *first = next;
        }
        while at != NONE && at != id {
            let following = self.flows[at as usize].next_waiting;
            if following == id {
                self.flows[at as usize].next_waiting = next;
            }
            at = following;
        }
        let flow = &mut self.flows[id as usize];
        debug_assert_eq!(flow.waits, lane);
        flow.waits = NONE;
        flow.next_waiting = NONE;
    }

    /// Flows whose own requests are all done go on.
    pub(crate) fn pump_ready<O: Output>(&mut self, now: Nanos, out: &mut O) {
        // Those that find no buffer are ready again next time.
        for _ in 0..self.ready.len() {
            let Some(id) = self.ready.pop_front() else { break };
            self.pump(id, now, out);
        }
    }

    /// What is lost on lanes is sent again, and lanes that are silent are given up.
    pub(crate) fn tend_lanes<O: Output>(&mut self, now: Nanos, out: &mut O) {
        for lane in 0..self.lanes.len() as Id {
            let there = &mut self.lanes[lane as usize];
            if there.owner == NONE {
                continue;
            }
            let owner = there.owner;
            if there.under_way > 0 {
                if now.since(there.moved) > self.config.dead_after {
                    self.fail(lane);
                    continue;
                }
                if now.since(there.moved.max(there.resent)) > there.patience(self.config.replay_after) {
                    there.tries += 1;
                    let from = there.acked;
                    self.resend(lane, from, now, out);
                }
            } else if self.flows[owner as usize].leaving {
                self.leave(owner);
                continue;
            } else if there.waiting[0] == NONE || !self.flows[owner as usize].is_private() {
                there.stuck = Nanos::ZERO;
            } else if there.stuck == Nanos::ZERO || there.stuck_at != self.flows[owner as usize].sent {
                // What it has begun goes on.
                there.stuck_at = self.flows[owner as usize].sent;
                there.stuck = now;
            } else if now.since(there.stuck) > self.config.dead_after {
                // Its owner has begun something that does not end, and others wait for it.
                self.fail(lane);
                continue;
            }
            self.pump_lane(lane, now, out);
        }
        self.pump_ready(now, out);
    }

    /// A lane does not work any more. What was under way there is over: some of it may have been done, in order, and the rest
    /// never will be. Its clients cannot be told which, so their connections end.
    pub(crate) fn fail(&mut self, lane: Id) {
        let there = &mut self.lanes[lane as usize];
        let (owner, first, count) = (there.owner, there.acked, there.under_way);
        self.under_way -= count as usize;
        there.owner = NONE;
        there.under_way = 0;
        there.atomics = 0;
        self.counters.lanes_lost.add(1);
        for n in 0..count {
            let entry = *self.lanes[lane as usize].entry(first.add(n));
            let line = self.lines.get_mut(entry.line);
            line.under_way -= 1;
            line.decided -= u32::from(matches!(entry.asked.what, Under::Decided { .. }));
            line.forget_all();
            // What is on its way may still arrive.
            line.detours = line.detours.wrapping_add(1);
            line.quiet_until = line.quiet_until.max(self.tick + self.config.settle);
            if entry.flow == NONE {
                continue;
            }
            self.end(entry.flow);
        }
        self.flows[owner as usize].lane = NONE;
        self.end(owner);
        // Those that wait find another lane.
        let waiting = core::mem::replace(&mut self.lanes[lane as usize].waiting, [NONE; 2]);
        let mut id = waiting[0];
        while id != NONE {
            let flow = &mut self.flows[id as usize];
            let next = flow.next_waiting;
            flow.waits = NONE;
            flow.next_waiting = NONE;
            if flow.stage == Stage::Strict {
                self.ready.push_back(id);
            }
            id = next;
        }
    }

    /// Nothing of a flow passes any more.
    pub(crate) fn end(&mut self, id: Id) {
        if id == NONE || self.flows[id as usize].server == NO_SERVER {
            return;
        }
        // It may have something under way on another's lane.
        self.orphan(id);
        let flow = &mut self.flows[id as usize];
        flow.stage = Stage::Ended;
        flow.shared = 0;
        flow.nak_due = false;
        // What is under way on its lane is seen through, and nobody begins anything there.
        flow.leaving |= flow.lane != NONE;
        self.unsteer(id);
    }
}
