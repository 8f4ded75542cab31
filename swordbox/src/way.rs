//! Routing of requests: on a shared QP or on the client's own connection.

use crate::flow::{Memory, right};
use crate::function::Swordbox;
use crate::lane::{LONGEST_WRITE, Lane};
use crate::lines::{in_one_line, offset_of, word_of, words_of};
use crate::op::{Kind, Op, memory_of};
use crate::{Id, NONE};
use core::ops::Range;
use rocev2::{Opcode, Packet};
use switch::Nanos;

/// Route of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// A shared QP
    Lane(Passage),
    /// The client's own connection
    Own,
    /// Undecided: the request waits for this shared QP, or, if `NONE`, for the client's own requests
    Wait(Id),
}

/// Route of a request on a shared QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Passage {
    pub lane: Id,
    /// Cached line that the request accesses
    pub line: Id,
    /// Value of the word, if the atomic is resolved by the switch
    pub known: Option<u64>,
    pub wish: Wish,
}

/// Access of a request that may use a shared QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wish {
    pub va: u64,
    pub rkey: u32,
    pub len: u8,
    pub rights: u8,
    pub atomic: bool,
}
impl Swordbox {
    /// Returns the access of a request if it is of a kind that may use a shared QP.
    #[expect(clippy::inline_always, reason = "the result stays in registers")]
    #[inline(always)]
    pub(crate) fn wish_of(&self, server: u8, packet: &Packet<'_>, op: Op) -> Option<Wish> {
        let atomic = op.kind == Kind::Atomic;
        // READs stay on the client's own connection: a retransmitted READ is read again there by the server.
        if !atomic && packet.layout().opcode() != Opcode::RC_WRITE_ONLY {
            return None;
        }
        let (va, rkey, len) = memory_of(packet)?;
        if atomic && !va.is_multiple_of(8) {
            return None;
        }
        let fits = len as usize == packet.payload().len() && len as usize <= LONGEST_WRITE;
        if !atomic && (!fits || !in_one_line(va, len as usize)) {
            return None;
        }
        let rights = if atomic { right::ATOMIC } else { right::WRITE };
        let server = self.config.servers.get(usize::from(server))?;
        // A line may hold words that are never cached beside others that are.
        if server.is_never_cached(va) || (!atomic && server.is_never_cached(va + (u64::from(len) - 1))) {
            return None;
        }
        Some(Wish { va, rkey, len: len as u8, rights, atomic })
    }

    /// Returns whether requests of a flow may use shared QPs at all.
    #[inline]
    fn may_share(&self, id: Id) -> bool {
        let server = usize::from(self.flows[id as usize].server);
        self.layers.remap && self.config.servers.get(server).is_some_and(|server| server.share)
    }

    /// Counts a misaligned atomic.
    fn count_misplaced(&self, packet: &Packet<'_>, op: Op) {
        if op.kind == Kind::Atomic && memory_of(packet).is_some_and(|(va, ..)| !va.is_multiple_of(8)) {
            self.counters.misplaced.add(1);
        }
    }

    /// Returns whether a request would use a shared QP if its connection were translated, which makes
    /// translation worthwhile.
    pub(crate) fn wants_lane(&mut self, id: Id, packet: &Packet<'_>, op: Op) -> bool {
        if !self.may_share(id) {
            return false;
        }
        let peer = self.ends[id as usize].peer;
        if peer == NONE || self.ends[peer as usize].headers.is_none() {
            return false;
        }
        let flow = &self.flows[id as usize];
        let Some(wish) = self.wish_of(flow.server, packet, op) else {
            self.count_misplaced(packet, op);
            return false;
        };
        self.lines.find(flow.server, wish.va).is_some()
            || self.steering.is_word(flow.server, wish.va, wish.rkey)
            || (wish.atomic && self.is_tracked(flow.server, &wish))
    }

    /// Returns whether a word that is the target of an atomic should be tracked.
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
            // A node receives one append only. And a withheld response would block the shared QP for the
            // operations that it waits for.
            return false;
        }
        detect > 0 && self.sketch.add(wish.va ^ u64::from(wish.rkey) << 32) >= detect
    }

    /// Returns the words of a line that the configuration declares, as a bit set.
    fn declared_words(&self, server: u8, va: u64, rkey: u32) -> u8 {
        let tables = &self.config.servers[usize::from(server)].tables;
        let tables = tables.iter().filter(|table| table.rkey.is_none_or(|own| own == rkey));
        let line = va - offset_of(va) as u64;
        let holds = |range: &Range<u64>, word: u64| {
            range.contains(&(line + 8 * word)) && range.end - (line + 8 * word) >= 8
        };
        let mut words = 0;
        for word in 0..8 {
            let declared = tables.clone().any(|table| holds(&table.range, word))
                || self.steering.is_word(server, line + 8 * word, rkey);
            words |= u8::from(declared) << word;
        }
        words
    }

    /// Notes the memory that the last request on its own connection accesses. It is known to exist when the
    /// request completes.
    pub(crate) fn reach(&mut self, id: Id, va: u64, rkey: u32, len: u32) {
        let flow = &mut self.flows[id as usize];
        if flow.reaching.is_some()
            || !flow.is_unique()
            || len as usize > LONGEST_WRITE
            || !in_one_line(va, len as usize)
        {
            return;
        }
        let memory = Memory { va, len: len as u8, rkey };
        if let Some(line) = self.lines.find(flow.server, va).map(|line| self.lines.get(line))
            && line.rkey == rkey
            && !line.has_reached(va, memory.len)
        {
            let flow = &mut self.flows[id as usize];
            flow.reaching = Some((flow.sent, memory));
        }
    }

    /// Marks words as existing after the requests before a flow's `acked` have completed.
    pub(crate) fn reached(&mut self, id: Id) {
        let flow = &mut self.flows[id as usize];
        let Some(Memory { va, len, rkey }) = flow.reached() else { return };
        if let Some(line) = self.lines.find(flow.server, va)
            && let line = self.lines.get_mut(line)
            && line.rkey == rkey
        {
            line.reached |= words_of(va, len);
        }
    }

    /// Chooses the route of the next request in order.
    #[inline]
    pub(crate) fn way_of(&mut self, id: Id, packet: &Packet<'_>, op: Op, now: Nanos) -> Way {
        if !self.may_share(id) || self.flows[id as usize].in_message {
            return Way::Own;
        }
        let server = self.flows[id as usize].server;
        let Some(wish) = self.wish_of(server, packet, op) else {
            self.count_misplaced(packet, op);
            return Way::Own;
        };
        let line = match self.lines.find(server, wish.va) {
            Some(line) => line,
            // A key without a proven right must not occupy the line, which would exclude clients with the
            // right key.
            None if self.steering.is_word(server, wish.va, wish.rkey)
                || (wish.atomic && self.is_tracked(server, &wish)) =>
            {
                if !self.flows[id as usize].has_proven(wish.rkey, wish.rights, self.period) {
                    self.counters.unproven.add(1);
                    return Way::Own;
                }
                let quiet_until = now + self.config.settle;
                let declared = self.declared_words(server, wish.va, wish.rkey);
                match self.lines.make(server, wish.va, wish.rkey, declared, quiet_until) {
                    Ok(line) => line,
                    Err(switch::Full) => return Way::Own,
                }
            }
            None => return Way::Own,
        };
        self.lines.check(line);
        let flow = &self.flows[id as usize];
        let own = self.lines.get(line);
        if own.rkey != wish.rkey {
            if !wish.atomic || own.under_way > 0 || !flow.has_proven(wish.rkey, wish.rights, self.period) {
                return Way::Own;
            }
            // The server has issued another key, or two keys exist. The word's value is unknown under this
            // one.
            let settle = self.config.settle;
            let declared = self.declared_words(server, wish.va, wish.rkey);
            let own = self.lines.get_mut(line);
            own.detour(now, settle);
            (own.rkey, own.lane, own.reached) = (wish.rkey, NONE, declared);
        }
        let proven = self.flows[id as usize].has_proven(wish.rkey, wish.rights, self.period);
        // An access beyond the end of its region would fail the shared QP with all of its clients.
        if !proven || !self.lines.get(line).has_reached(wish.va, wish.len) {
            self.counters.unproven.add(1);
            return Way::Own;
        }
        let lane = match self.lane_of(id, line, &wish, now) {
            Choice::Lane(lane) => lane,
            Choice::Probed(lane) => return Way::Wait(lane),
            Choice::None => return Way::Own,
        };
        if !self.is_of_incarnation(id, &self.lanes[lane as usize]) {
            self.counters.unproven.add(1);
            return Way::Own;
        }
        let writes = self.may_write(id, lane, wish.va, wish.rkey);
        let own = &self.lines.get(line);
        if wish.rights == right::WRITE && !writes {
            return Way::Own;
        }
        let known = own.value(word_of(wish.va));
        let known = known.filter(|_| wish.atomic && self.layers.cas_to_write && writes);
        let flow = &self.flows[id as usize];
        let busy = if flow.shared > 0 { flow.via != lane } else { !flow.is_quiet() };
        if busy || flow.rereading {
            return Way::Wait(NONE);
        }
        let there = &self.lanes[lane as usize];
        let owner = &self.flows[there.owner as usize];
        let undecided = wish.atomic && known.is_none();
        if there.is_full()
            || self.is_doubtful(there)
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

    /// Returns whether a flow's queue pair at the server is known to exist after the shared QP did. Otherwise
    /// the server may have restarted in between, and an operation that it would refuse on the flow's own
    /// connection, whose queue pair is gone, must not be executed on the shared QP.
    #[inline]
    pub(crate) fn is_of_incarnation(&self, id: Id, lane: &Lane) -> bool {
        #[cfg(debug_assertions)]
        if self.config.bug == Some(crate::Bug::DeadClient) {
            return true;
        }
        lane.owner == id || self.flows[id as usize].alive_at > lane.existed_at
    }

    /// Returns whether a resolved value may be written on a shared QP.
    #[inline]
    fn may_write(&mut self, id: Id, lane: Id, va: u64, rkey: u32) -> bool {
        let there = &self.lanes[lane as usize];
        let server = &self.config.servers[usize::from(there.server)];
        if there.accepts(&self.flows[there.owner as usize], rkey, right::WRITE)
            || server.table_of(va, rkey).is_some_and(|table| table.writable)
        {
            return true;
        }
        // Write permission belongs to the region, independent of the connection.
        let proven = there.is_own && self.flows[id as usize].has_proven(rkey, right::WRITE, self.period);
        if proven {
            self.lanes[lane as usize].keys.add(rkey, right::WRITE);
        }
        proven
    }

    /// Returns the shared QP that all operations on a line use, and chooses one if it has none.
    #[inline]
    fn lane_of(&mut self, id: Id, line: Id, wish: &Wish, now: Nanos) -> Choice {
        let own = self.lines.get(line);
        let server = self.flows[id as usize].server;
        if own.lane != NONE
            && own.incarnation == self.lanes[own.lane as usize].incarnation
            && (own.under_way > 0
                || (self.is_usable(own.lane as usize, server, own.rkey)
                    && !self.lanes[own.lane as usize].is_overdue()))
        {
            return Choice::Lane(own.lane);
        }
        self.choose_lane(id, line, wish, now)
    }

    /// Returns whether a shared QP's server may have restarted: it accepts new connections, and has not
    /// answered on this QP since, despite retransmissions. Waiting requests move to another QP if this one is
    /// given up.
    #[inline]
    pub(crate) fn is_doubtful(&self, lane: &Lane) -> bool {
        lane.tries >= 2 && self.is_replaced(lane)
    }

    /// Returns whether the server has accepted connections since its last acknowledgement on this shared QP.
    #[inline]
    pub(crate) fn is_replaced(&self, lane: &Lane) -> bool {
        self.connected[usize::from(lane.server)] > lane.moved
    }

    /// Returns whether operations with this key can use a shared QP.
    #[inline]
    fn is_usable(&self, lane: usize, server: u8, rkey: u32) -> bool {
        let lane = &self.lanes[lane];
        lane.server == server && lane.owner != NONE && {
            let owner = &self.flows[lane.owner as usize];
            !owner.leaving && lane.accepts(owner, rkey, right::ATOMIC)
        }
    }

    #[cold]
    fn choose_lane(&mut self, id: Id, line: Id, wish: &Wish, now: Nanos) -> Choice {
        let rkey = self.lines.get(line).rkey;
        let server = self.flows[id as usize].server;
        if !self.refused[usize::from(server)].has(rkey, now) {
            // If a probe is overdue, operations use another QP, or none.
            let open = |lane: &Lane| {
                lane.server == server && lane.is_own && lane.owner != NONE && !lane.is_overdue()
            };
            if let Some(lane) = self.nth_lane(wish.va, open) {
                if !self.is_of_incarnation(id, &self.lanes[lane as usize]) {
                    self.counters.unproven.add(1);
                    return Choice::None;
                }
                if !self.is_usable(lane as usize, server, rkey) {
                    self.want_probe(lane, wish.va, rkey, now);
                    return Choice::Probed(lane);
                }
                return self.move_line(line, lane, server, wish);
            }
        }
        self.make_lane(id, server, now);
        let lanes = &self.lanes;
        let usable = |at: usize| !lanes[at].is_own && self.is_usable(at, server, rkey);
        let count = (0..lanes.len()).filter(|at| usable(*at)).count();
        let Some(nth) = (switch::table::mix(wish.va >> 6) as usize).checked_rem(count) else {
            return Choice::None;
        };
        let Some(chosen) = (0..lanes.len()).filter(|at| usable(*at)).nth(nth) else { return Choice::None };
        self.move_line(line, chosen as Id, server, wish)
    }

    /// Assigns a line to another shared QP, or to a new incarnation of its QP.
    fn move_line(&mut self, line: Id, chosen: Id, server: u8, wish: &Wish) -> Choice {
        let incarnation = self.lanes[chosen as usize].incarnation;
        let declared = self.declared_words(server, wish.va, wish.rkey);
        let own = self.lines.get_mut(line);
        let moves = own.lane != NONE && (own.lane, own.incarnation) != (chosen, incarnation);
        #[cfg(debug_assertions)]
        let moves = moves && self.config.bug != Some(crate::Bug::KeptWord);
        if moves {
            // The server may have restarted with different memory since the previous QP could last write to
            // it.
            own.forget_all();
            own.reached = declared;
        }
        (own.lane, own.incarnation) = (chosen, incarnation);
        if !moves || own.has_reached(wish.va, wish.len) { Choice::Lane(chosen) } else { Choice::None }
    }

    /// Returns one of the matching shared QPs, selected by the line.
    fn nth_lane(&self, va: u64, fits: impl Fn(&Lane) -> bool) -> Option<Id> {
        let all = || self.lanes.iter().zip(0..).filter(|(lane, _)| fits(lane));
        let nth = (switch::table::mix(va >> 6) as usize).checked_rem(all().count())?;
        all().nth(nth).map(|(_, number)| number)
    }

    /// Returns the busy shared QP of a server with the oldest acknowledgement. A request that waits for all
    /// resolved operations waits for that one.
    pub(crate) fn slowest_lane(&self, server: u8) -> Option<Id> {
        let lanes = self.lanes.iter().zip(0..);
        let busy = lanes.filter(|(lane, _)| lane.server == server && lane.under_way > 0);
        busy.min_by_key(|(lane, _)| lane.moved).map(|(_, number)| number)
    }

    /// Shares a client's connection if the server's limit permits and the connection is idle.
    fn make_lane(&mut self, id: Id, server: u8, now: Nanos) {
        let flow = &self.flows[id as usize];
        if flow.lane != NONE || now < flow.unfit_until || flow.is_private() {
            return;
        }
        let fits = |lane: &Lane| lane.server == server && lane.owner == NONE && !lane.is_own;
        let Some(free) = self.lanes.iter().position(fits) else { return };
        let declared = u32::from(self.config.servers[usize::from(server)].rd_atomic);
        let flow = &mut self.flows[id as usize];
        flow.lane = free as Id;
        let max_atomics = declared.max(flow.most_reads.into()).max(flow.max_reads.into()).max(1);
        self.lanes[free].open(id, flow.own_next, max_atomics, flow.existed_at, now);
        self.counters.lanes.add(1);
    }
}

/// Choice of a shared QP for a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Choice {
    Lane(Id),
    /// The key is being probed on this QP.
    Probed(Id),
    /// No QP is available.
    None,
}
