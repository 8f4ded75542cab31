//! Routing of requests: on a shared QP or on the client's own connection.

use super::Swordbox;
use crate::flow::RemoteRange;
use crate::lines::{in_one_line, offset_of, word_of, words_of};
use crate::op::{Kind, Op, memory_of};
use crate::proof::right;
use crate::shared_qps::{LONGEST_WRITE, SharedQp};
use crate::{Bug, Id, NONE};
use core::ops::Range;
use rocev2::{Opcode, Packet};
use switch::Nanos;

/// Route of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// A shared QP
    SharedQp(SharedRoute),
    /// The client's own connection
    Own,
    /// Undecided: the request waits for this shared QP, or, if `NONE`, for the client's own requests
    Wait(Id),
}

/// Route of a request on a shared QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SharedRoute {
    pub shared_qp: Id,
    /// Cached line that the request accesses
    pub line: Id,
    /// Value of the word, if the atomic is resolved by the switch
    pub known: Option<u64>,
    pub access: Access,
}

/// Access of a request that may use a shared QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Access {
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
    pub(crate) fn access_of(&self, server: u8, packet: &Packet<'_>, op: Op) -> Option<Access> {
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
        Some(Access { va, rkey, len: len as u8, rights, atomic })
    }

    /// Returns whether requests of a flow may use shared QPs at all.
    #[inline]
    fn may_share(&self, id: Id) -> bool {
        let server = usize::from(self.connections.flow(id).server);
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
    pub(crate) fn wants_sharing(&mut self, id: Id, packet: &Packet<'_>, op: Op) -> bool {
        if !self.may_share(id) {
            return false;
        }
        let peer = self.connections.endpoint(id).peer();
        if peer == NONE || self.connections.endpoint(peer).headers.is_none() {
            return false;
        }
        let flow = self.connections.flow(id);
        let Some(access) = self.access_of(flow.server, packet, op) else {
            self.count_misplaced(packet, op);
            return false;
        };
        self.lines.find(flow.server, access.va).is_some()
            || self.steering.is_contended_word(flow.server, access.va, access.rkey)
            || (access.atomic && self.is_tracked(flow.server, &access))
    }

    /// Returns whether a word that is the target of an atomic should be tracked.
    fn is_tracked(&mut self, server: u8, access: &Access) -> bool {
        let declared = &self.config.servers[usize::from(server)];
        if declared.table_of(access.va, access.rkey).is_some() {
            return true;
        }
        if declared.tables.iter().any(|table| table.range.contains(&access.va)) {
            self.counters.misplaced.add(1);
        }
        let detect = declared.detect_after;
        if detect > 0 && self.is_steering() && self.steering.at(server, access.va).is_some() {
            // A node receives one append only. And a withheld response would block the shared QP for the
            // operations that it waits for.
            return false;
        }
        detect > 0 && self.lines.count_atomic(access.va, access.rkey) >= detect
    }

    /// Returns the words of a line that the configuration declares, as a bit set.
    fn declared_words(&self, server: u8, va: u64, rkey: u32) -> u8 {
        let tables = &self.config.servers[usize::from(server)].tables;
        let tables = tables.iter().filter(|table| table.rkey.is_none_or(|own| own == rkey));
        let line = va - offset_of(va) as u64;
        let contains_word = |range: &Range<u64>, word: u64| {
            range.contains(&(line + 8 * word)) && range.end - (line + 8 * word) >= 8
        };
        let mut words = 0;
        for word in 0..8 {
            let declared = tables.clone().any(|table| contains_word(&table.range, word))
                || self.steering.is_contended_word(server, line + 8 * word, rkey);
            words |= u8::from(declared) << word;
        }
        words
    }

    /// Notes the memory that the last request on its own connection accesses. It is known to exist when the
    /// request completes.
    pub(crate) fn note_access(&mut self, id: Id, va: u64, rkey: u32, len: u32) {
        let flow = self.connections.flow_mut(id);
        if flow.pending.has_memory()
            || !flow.is_psn_unique()
            || len as usize > LONGEST_WRITE
            || !in_one_line(va, len as usize)
        {
            return;
        }
        let memory = RemoteRange { va, len: len as u8, rkey };
        if let Some(line) = self.lines.find(flow.server, va).map(|line| self.lines.get(line))
            && line.rkey == rkey
            && !line.exists(va, memory.len)
        {
            let flow = self.connections.flow_mut(id);
            flow.pending.begin_memory(flow.sent, memory);
        }
    }

    /// Marks words as existing after the requests before a flow's `acked` have completed.
    pub(crate) fn note_existing_memory(&mut self, id: Id) {
        let flow = self.connections.flow_mut(id);
        let Some(RemoteRange { va, len, rkey }) = flow.pending.take_memory(flow.acked) else { return };
        if let Some(line) = self.lines.find(flow.server, va)
            && let line = self.lines.get_mut(line)
            && line.rkey == rkey
        {
            line.existing |= words_of(va, len);
        }
    }

    /// Chooses the route of the next request in order.
    #[inline]
    pub(crate) fn route_of(&mut self, id: Id, packet: &Packet<'_>, op: Op, now: Nanos) -> Route {
        if !self.may_share(id) || self.connections.flow(id).in_message {
            return Route::Own;
        }
        let server = self.connections.flow(id).server;
        let Some(access) = self.access_of(server, packet, op) else {
            self.count_misplaced(packet, op);
            return Route::Own;
        };
        let line = match self.lines.find(server, access.va) {
            Some(line) => line,
            // A key without a proven right must not occupy the line, which would exclude clients with the
            // right key.
            None if self.steering.is_contended_word(server, access.va, access.rkey)
                || (access.atomic && self.is_tracked(server, &access)) =>
            {
                if !self.connections.flow(id).proofs.has(access.rkey, access.rights, self.period) {
                    self.counters.unproven.add(1);
                    return Route::Own;
                }
                let quiet_until = now + self.config.settle;
                let declared = self.declared_words(server, access.va, access.rkey);
                match self.lines.make(server, access.va, access.rkey, declared, quiet_until) {
                    Ok(line) => line,
                    Err(switch::Full) => return Route::Own,
                }
            }
            None => return Route::Own,
        };
        self.lines.apply_invalidations(line);
        let flow = self.connections.flow(id);
        let cached = self.lines.get(line);
        if cached.rkey != access.rkey {
            if !access.atomic
                || cached.in_flight > 0
                || !flow.proofs.has(access.rkey, access.rights, self.period)
            {
                return Route::Own;
            }
            // The server has issued another key, or two keys exist. The word's value is unknown under this
            // one.
            let settle = self.config.settle;
            let declared = self.declared_words(server, access.va, access.rkey);
            let cached = self.lines.get_mut(line);
            cached.detour(now, settle);
            (cached.rkey, cached.shared_qp, cached.existing) = (access.rkey, NONE, declared);
        }
        let proven = self.connections.flow(id).proofs.has(access.rkey, access.rights, self.period);
        // An access beyond the end of its region would fail the shared QP with all of its clients.
        if !proven || !self.lines.get(line).exists(access.va, access.len) {
            self.counters.unproven.add(1);
            return Route::Own;
        }
        let shared_qp = match self.shared_qp_of(id, line, &access, now) {
            Choice::SharedQp(shared_qp) => shared_qp,
            Choice::Probed(shared_qp) => return Route::Wait(shared_qp),
            Choice::None => return Route::Own,
        };
        if !self.is_of_incarnation(id, &self.shared_qps[shared_qp]) {
            self.counters.unproven.add(1);
            return Route::Own;
        }
        let writes = self.may_write(id, shared_qp, access.va, access.rkey);
        let cached = &self.lines.get(line);
        if access.rights == right::WRITE && !writes {
            return Route::Own;
        }
        let known = cached.value(word_of(access.va));
        let known = known.filter(|_| access.atomic && self.layers.cas_to_write && writes);
        let flow = self.connections.flow(id);
        let busy = if flow.shared_in_flight > 0 { flow.via != shared_qp } else { !flow.is_idle() };
        if busy || flow.rereading {
            return Route::Wait(NONE);
        }
        let qp = &self.shared_qps[shared_qp];
        let owner = self.connections.flow(qp.owner);
        let unresolved = access.atomic && known.is_none();
        if qp.is_full()
            || self.shared_qps.may_have_restarted(qp)
            || (qp.owner != id
                && (owner.uses_own_connection()
                    || owner.waits_for == shared_qp
                    || owner.closing
                    || (owner.nak_sent && now < qp.reserved_until)))
            || (unresolved && qp.has_most_atomics())
        {
            return Route::Wait(shared_qp);
        }
        Route::SharedQp(SharedRoute { shared_qp, line, known, access })
    }

    /// Returns whether a flow's queue pair at the server is known to exist after the shared QP did. Otherwise
    /// the server may have restarted in between, and an operation that it would refuse on the flow's own
    /// connection, whose queue pair is gone, must not be executed on the shared QP.
    #[inline]
    pub(crate) fn is_of_incarnation(&self, id: Id, shared_qp: &SharedQp) -> bool {
        if self.config.has_bug(Bug::DeadClient) {
            return true;
        }
        shared_qp.owner == id || self.connections.flow(id).existence.alive_at() > shared_qp.existed_at
    }

    /// Returns whether a resolved value may be written on a shared QP.
    #[inline]
    fn may_write(&mut self, id: Id, shared_qp: Id, va: u64, rkey: u32) -> bool {
        let qp = &self.shared_qps[shared_qp];
        let server = &self.config.servers[usize::from(qp.server)];
        if qp.accepts(self.connections.flow(qp.owner), rkey, right::WRITE)
            || server.table_of(va, rkey).is_some_and(|table| table.writable)
        {
            return true;
        }
        // Write permission belongs to the region, independent of the connection.
        let proven =
            qp.is_switch_owned && self.connections.flow(id).proofs.has(rkey, right::WRITE, self.period);
        if proven {
            self.shared_qps[shared_qp].keys.add(rkey, right::WRITE);
        }
        proven
    }

    /// Returns the shared QP that all operations on a line use, and chooses one if it has none.
    #[inline]
    fn shared_qp_of(&mut self, id: Id, line: Id, access: &Access, now: Nanos) -> Choice {
        let cached = self.lines.get(line);
        let server = self.connections.flow(id).server;
        if cached.shared_qp != NONE
            && cached.incarnation == self.shared_qps[cached.shared_qp].incarnation
            && (cached.in_flight > 0
                || (self.accepts(&self.shared_qps[cached.shared_qp], server, cached.rkey)
                    && !self.shared_qps[cached.shared_qp].is_overdue()))
        {
            return Choice::SharedQp(cached.shared_qp);
        }
        self.choose_shared_qp(id, line, access, now)
    }

    /// Returns whether operations with this key can use a shared QP.
    #[inline]
    fn accepts(&self, shared_qp: &SharedQp, server: u8, rkey: u32) -> bool {
        shared_qp.server == server && shared_qp.owner != NONE && {
            let owner = self.connections.flow(shared_qp.owner);
            !owner.closing && shared_qp.accepts(owner, rkey, right::ATOMIC)
        }
    }

    #[cold]
    fn choose_shared_qp(&mut self, id: Id, line: Id, access: &Access, now: Nanos) -> Choice {
        let rkey = self.lines.get(line).rkey;
        let server = self.connections.flow(id).server;
        if !self.shared_qps.has_refused(server, rkey, now) {
            // If a probe is overdue, operations use another QP, or none.
            let open = |shared_qp: &SharedQp| {
                shared_qp.server == server
                    && shared_qp.is_switch_owned
                    && shared_qp.owner != NONE
                    && !shared_qp.is_overdue()
            };
            if let Some(shared_qp) = self.shared_qps.nth(access.va, open) {
                if !self.is_of_incarnation(id, &self.shared_qps[shared_qp]) {
                    self.counters.unproven.add(1);
                    return Choice::None;
                }
                if !self.accepts(&self.shared_qps[shared_qp], server, rkey) {
                    self.probe_key(shared_qp, access.va, rkey, now);
                    return Choice::Probed(shared_qp);
                }
                return self.assign_line(line, shared_qp, server, access);
            }
        }
        self.share_connection(id, server, now);
        let usable = |qp: &SharedQp| !qp.is_switch_owned && self.accepts(qp, server, rkey);
        match self.shared_qps.nth(access.va, usable) {
            Some(chosen) => self.assign_line(line, chosen, server, access),
            None => Choice::None,
        }
    }

    /// Assigns a line to another shared QP, or to a new incarnation of its QP.
    fn assign_line(&mut self, line: Id, chosen: Id, server: u8, access: &Access) -> Choice {
        let incarnation = self.shared_qps[chosen].incarnation;
        let declared = self.declared_words(server, access.va, access.rkey);
        let cached = self.lines.get_mut(line);
        let moves =
            cached.shared_qp != NONE && (cached.shared_qp, cached.incarnation) != (chosen, incarnation);
        let moves = moves && !self.config.has_bug(Bug::KeptWord);
        if moves {
            // The server may have restarted with different memory since the previous QP could last write to
            // it.
            cached.forget_all();
            cached.existing = declared;
        }
        (cached.shared_qp, cached.incarnation) = (chosen, incarnation);
        if !moves || cached.exists(access.va, access.len) { Choice::SharedQp(chosen) } else { Choice::None }
    }

    /// Shares a client's connection if the server's limit permits and the connection is idle.
    fn share_connection(&mut self, id: Id, server: u8, now: Nanos) {
        let flow = self.connections.flow(id);
        if flow.shared_qp != NONE || now < flow.unshareable_until || flow.uses_own_connection() {
            return;
        }
        let Some(free) = self.shared_qps.unused(server) else { return };
        let declared = u32::from(self.config.servers[usize::from(server)].rd_atomic);
        let flow = self.connections.flow_mut(id);
        flow.shared_qp = free;
        let max_atomics = flow.limits.max_atomics(declared);
        self.shared_qps[free].open(
            id,
            flow.translation.next(),
            max_atomics,
            flow.existence.existed_at(),
            now,
        );
        self.counters.shared_qps.add(1);
    }
}

/// Choice of a shared QP for a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Choice {
    SharedQp(Id),
    /// The key is being probed on this QP.
    Probed(Id),
    /// No QP is available.
    None,
}
