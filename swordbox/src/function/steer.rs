//! Steering in the packet path: learning from requests and responses, redirecting requests, and withholding
//! responses.
//!
//! Only translated connections are steered. After a restart their packets are dropped, so a server never
//! answers a retransmission, which would carry the original address, from its memory of a steered request.

use super::Swordbox;
use crate::address::NO_SERVER;
use crate::flow::Stage;
use crate::headers::BthFields;
use crate::op::{Kind, Op, memory_of};
use crate::records::{Record, RecordKind};
use crate::steering::{Append, Cas, Slot, State, Steering, StructureCache, Ticket};
use crate::{Bug, Id, MAX_BACKOFF_SHIFT, NONE};
use rocev2::atomic::AtomicEth;
use rocev2::{Class, Opcode, Packet, Psn, classify};
use switch::{DropReason, Frame, Nanos, Output, PortId, Verdict};

impl Swordbox {
    pub(crate) fn is_steering(&self) -> bool {
        self.layers.steer_writes || self.layers.steer_reads
    }

    /// Returns whether a request could be steered if its connection were translated, which makes translation
    /// worthwhile.
    pub(crate) fn wants_steering(&mut self, id: Id, packet: &Packet<'_>) -> bool {
        let peer = self.connections.endpoint(id).peer();
        if !self.is_steering() || peer == NONE || self.connections.endpoint(peer).headers.is_none() {
            return false;
        }
        let server = self.connections.flow(id).server;
        memory_of(packet).is_some_and(|(va, ..)| self.steering.at(server, va).is_some())
    }

    /// Notes that a connection was acknowledged. If that shows that its server may have restarted, the state
    /// of the structures that the connection reaches is discarded.
    pub(crate) fn note_acknowledged(&mut self, id: Id) {
        let flow = self.connections.flow_mut(id);
        if !flow.existence.apply_structure(flow.acked) {
            return;
        }
        let server = usize::from(flow.server);
        // Pending nodes are eventually linked, or the connections that wait for them are ended.
        let is_free = !self.steering.links.has_any(flow.server);
        for (structure, incarnation) in (0u8..).zip(&mut self.steering.incarnations[server]) {
            let Some(lifetime) = flow.existence.lifetime(structure) else { continue };
            let is_new_memory = incarnation.update(lifetime, self.config.settle, is_free);
            let is_new_memory = is_new_memory && !self.config.has_bug(Bug::KeptStructure);
            if is_new_memory {
                self.counters.structures_forgotten.add(1);
                self.steering.caches[server][usize::from(structure)].forget_all();
            }
        }
    }

    /// Returns whether a connection reaches the memory that a structure's state belongs to, not that of
    /// another incarnation of its server.
    fn is_of_known_memory(&self, id: Id, structure: u8) -> bool {
        if self.config.has_bug(Bug::KeptStructure) {
            return true;
        }
        let flow = self.connections.flow(id);
        let incarnations = self.steering.incarnations.get(usize::from(flow.server));
        let incarnation = incarnations.and_then(|structures| structures.get(usize::from(structure)));
        let lifetime = flow.existence.lifetime(structure);
        lifetime.zip(incarnation).is_some_and(|(lifetime, incarnation)| incarnation.includes(lifetime))
    }

    /// Learns from an Only or First packet of a WRITE that is forwarded.
    pub(crate) fn learn_from_write(&mut self, id: Id, packet: &Packet<'_>) {
        if !self.is_steering() {
            return;
        }
        let server = self.connections.flow(id).server;
        let Some((va, ..)) = memory_of(packet) else { return };
        let Some((structure, _)) = self.steering.at(server, va) else { return };
        let is_sure = self.is_of_known_memory(id, structure);
        let cache = &mut self.steering.caches[usize::from(server)][usize::from(structure)];
        if is_sure {
            cache.on_write(va, packet.payload());
        } else {
            cache.on_unverified_write(va, packet.payload());
        }
    }

    /// Steers a tracked request that is being forwarded. Returns the value to add to its virtual address.
    /// `written` states that all earlier requests of its client have completed.
    pub(crate) fn steer(&mut self, id: Id, packet: &Packet<'_>, op: Op, written: bool, now: Nanos) -> u64 {
        let needed = self.is_steering() || !self.steering.links.is_empty();
        let server = self.connections.flow(id).server;
        if !needed || server == NO_SERVER {
            return 0;
        }
        let Some((va, ..)) = memory_of(packet) else { return 0 };
        let Some((structure, _)) = self.steering.at(server, va) else { return 0 };
        if !self.is_of_known_memory(id, structure) {
            return 0;
        }
        let psn = packet.bth().psn();
        // A request without a record could not be retransmitted to the same address.
        let Some(at) =
            self.connections.records(id).iter().position(|record| record.psn == psn && !record.done)
        else {
            return 0;
        };
        let (by, depends_on, node) = match op.kind {
            Kind::Atomic if packet.layout().opcode() == Opcode::RC_COMPARE_SWAP => {
                let Some((by, ticket)) = self.steer_cas(id, packet, written, now) else { return 0 };
                (by, ticket, 0)
            }
            Kind::Read if self.layers.steer_reads => {
                let Some((by, ticket, node)) = self.steer_read(id, packet) else { return 0 };
                self.counters.steered_reads.add(u64::from(by != 0));
                (by, ticket, node)
            }
            _ => return 0,
        };
        self.counters.steered.add(u64::from(by != 0));
        let record = &mut self.connections.records_mut(id)[at];
        record.steered = by;
        record.depends_on = depends_on;
        record.value = node;
        by
    }

    fn steer_cas(&mut self, id: Id, packet: &Packet<'_>, written: bool, now: Nanos) -> Option<(u64, Ticket)> {
        let atomic = packet.atomic()?;
        let (swap, compare) = (atomic.swap_or_add.get(), atomic.compare.get());
        let cas = Cas { va: atomic.va.get(), rkey: atomic.rkey.get(), compare, swap };
        let flow = self.connections.flow(id);
        let (server, psn) = (flow.server, flow.translation.to_server(packet.bth().psn()));
        self.steering.at(server, cas.va)?;
        let links = &self.steering.links;
        let followed = links.can_begin(server, swap)?;
        // A node whose CAS failed has to be tracked when its client appends it again, even if the structure's
        // state does not cover it any more.
        let before = links.of_node(server, swap).and_then(|at| links.get(at)).map(|link| link.append);
        let as_it_is =
            |append: Append| Append { va: cas.va, to: cas.va, rkey: cas.rkey, steered: false, ..append };
        let (steer, steering) = (self.layers.steer_writes, self.is_steering());
        let (structure, cache) = self.steering.at(server, cas.va)?;
        let append = if steering { cache.on_cas(&cas, written, followed, steer) } else { None };
        let mut append = append.or(before.filter(|_| compare == 0).map(as_it_is))?;
        let mut by = append.va.wrapping_sub(cas.va);
        if by != 0 && self.lines.has_any(server, append.va, 8) {
            self.invalidate(server, structure, &append);
            (append, by) = (as_it_is(append), 0);
        }
        let links = &mut self.steering.links;
        // A node that the client names is linked, since the client has found it in the structure.
        let parent = if by == 0 { Ticket::NONE } else { links.depend_on(server, append.to) };
        let Ok(ticket) = links.begin((server, structure), append, parent, (id, psn), now) else {
            self.invalidate(server, structure, &append);
            return None;
        };
        Some((by, ticket))
    }

    fn invalidate(&mut self, server: u8, structure: u8, append: &Append) {
        self.steering.caches[usize::from(server)][usize::from(structure)].invalidate(append.key);
    }

    fn steer_read(&mut self, id: Id, packet: &Packet<'_>) -> Option<(u64, Ticket, u64)> {
        let (va, rkey, len) = memory_of(packet)?;
        let server = self.connections.flow(id).server;
        let node = self.steering.at(server, va)?.1.on_read(va, rkey, len)?;
        let by = node.wrapping_sub(va);
        if by != 0 && self.lines.has_any(server, node, u64::from(len)) {
            return None;
        }
        let ticket = if by == 0 { Ticket::NONE } else { self.steering.links.depend_on(server, node) };
        Some((by, ticket, node))
    }

    /// Returns whether the response to a request depends on a node that is not linked yet.
    fn must_wait(&self, record: &Record) -> bool {
        let links = &self.steering.links;
        let Some((_, link)) = links.open(record.depends_on) else { return false };
        match (record.kind, link.state) {
            (RecordKind::Read, _) | (_, State::Done | State::Lost) => true,
            (_, State::Failed) => links.open(link.parent).is_some(),
            (_, State::Sent) => false,
        }
    }

    /// Withholds a response to a request in flight if it has to wait. Returns `None` if it may be forwarded
    /// now. `psn` is the client's.
    pub(crate) fn withhold<F: Frame>(
        &mut self,
        id: Id,
        frame: &F,
        packet: &Packet<'_>,
        psn: Psn,
        port: PortId,
    ) -> Option<Verdict> {
        let steering = &self.steering;
        if steering.links.is_empty() && steering.withheld.is_empty() {
            return None;
        }
        let mut waits = false;
        if let Some(record) = self.connections.pending_record(id, psn).copied() {
            let opcode = packet.layout().opcode();
            if opcode == Opcode::RC_ATOMIC_ACKNOWLEDGE
                && let Some(response) = packet.atomic_ack()
                && record.kind == RecordKind::Atomic
            {
                self.on_cas_result(id, record.depends_on, packet.bth().psn(), response.original.get());
                waits = self.must_wait(&record);
            } else if opcode != Opcode::RC_ACKNOWLEDGE && record.kind == RecordKind::Read {
                waits = self.must_wait(&record);
            }
        }
        let last = self.steering.withheld.last_of(id);
        if !waits && last.is_none() {
            return None;
        }
        if last.is_some_and(|last| !last.precedes(psn)) {
            return Some(Verdict::Drop(DropReason::Repeated));
        }
        if self.steering.withheld.push(id, psn, frame.bytes(), port) {
            self.counters.withheld.add(1);
            Some(Verdict::Consume)
        } else {
            Some(Verdict::Drop(DropReason::NoBuffer))
        }
    }

    /// Updates a pending node from the result of its CAS.
    fn on_cas_result(&mut self, id: Id, ticket: Ticket, server_psn: Psn, found: u64) {
        let Steering { caches, links, linked, withheld, .. } = &mut self.steering;
        let Some((at, link)) = links.open(ticket) else { return };
        if link.state != State::Sent || link.flow != id || link.psn != server_psn {
            return;
        }
        let server_caches = &mut caches[usize::from(link.server)];
        if found == 0 {
            links.succeed(at, |link, followed| {
                server_caches[usize::from(link.structure)].on_linked(&link.append, followed);
            });
            *linked |= !withheld.is_empty();
            return;
        }
        if link.append.steered || link.has_dependents {
            self.counters.stale_tails.add(1);
            server_caches[usize::from(link.structure)].invalidate(link.append.key);
        }
        links.fail(at);
    }

    /// Learns from a READ response that is forwarded to its client.
    pub(crate) fn learn_from_response(&mut self, id: Id, packet: &Packet<'_>, psn: Psn) {
        let opcode = packet.layout().opcode();
        if !self.steering.steers(self.connections.flow(id).server)
            || !matches!(opcode, Opcode::RC_READ_RESPONSE_FIRST | Opcode::RC_READ_RESPONSE_ONLY)
        {
            return;
        }
        let Some(record) = self.connections.pending_record(id, psn) else { return };
        let node = record.value;
        if record.kind != RecordKind::Read || node == 0 || record.psn != psn {
            return;
        }
        let server = self.connections.flow(id).server;
        let Some((structure, _)) = self.steering.at(server, node) else { return };
        if self.is_of_known_memory(id, structure) {
            let cache = &mut self.steering.caches[usize::from(server)][usize::from(structure)];
            cache.on_read_response(node, packet.payload());
        }
    }

    /// Forwards withheld responses that need not wait any longer.
    pub(crate) fn release<O: Output>(&mut self, now: Nanos, out: &mut O) {
        while core::mem::take(&mut self.steering.linked) {
            let mut from = 0;
            loop {
                let may_go = |slot: &Slot| {
                    self.connections
                        .pending_record(slot.flow, slot.psn)
                        .is_none_or(|record| !self.must_wait(record))
                };
                let Some(at) = self.steering.withheld.find(from, may_go) else { break };
                let (slot, bytes) = self.steering.withheld.get(at);
                let Ok(mut frame) = out.make(bytes.len()) else {
                    self.steering.linked = true;
                    return;
                };
                frame.bytes_mut().copy_from_slice(bytes);
                self.steering.withheld.remove(at);
                from = at;
                let Class::Roce(layout) = classify(frame.bytes()) else { continue };
                if self.connections.flow(slot.flow).stage != Stage::Translating {
                    continue;
                }
                let verdict = self.forward_own(slot.flow, &mut frame, layout, slot.port, now, out);
                if let Verdict::Forward(port) = verdict {
                    _ = out.send(frame, port);
                }
                self.after_own_response(slot.flow, now, out);
            }
        }
    }

    /// Discards the withheld responses and the pending CAS of a connection that is over.
    pub(crate) fn unsteer(&mut self, id: Id) {
        let Steering { caches, links, withheld, .. } = &mut self.steering;
        withheld.clear(id);
        if !links.is_empty() {
            links.orphan(id, |link| {
                caches[usize::from(link.server)][usize::from(link.structure)].invalidate(link.append.key);
            });
        }
    }

    /// Returns whether other requests depend on a CAS of a connection that is in flight.
    pub(crate) fn has_dependents_in_flight(&self, id: Id) -> bool {
        let links = &self.steering.links;
        let mut all = (0..links.ids()).filter_map(|at| links.get(at));
        all.any(|link| link.flow == id && link.has_dependents && link.state == State::Sent)
    }

    /// Handles the timers of pending nodes. A CAS that others depend on is retransmitted, because its client
    /// may be gone. After `dead_after` the node is given up, and the connections that wait for it end.
    pub(crate) fn tick_steering<O: Output>(&mut self, now: Nanos, out: &mut O) {
        self.release(now, out);
        for at in 0..self.steering.links.ids() {
            let Some(link) = self.steering.links.get(at).copied() else { continue };
            let retransmit_timeout = Nanos(self.config.replay_after.0 << link.tries.min(MAX_BACKOFF_SHIFT));
            if now.since(link.began) > self.config.dead_after {
                self.give_up(at);
            } else if link.state == State::Sent
                && link.has_dependents
                && link.flow != NONE
                && now.since(link.sent) > retransmit_timeout
            {
                self.retransmit_cas(at, now, out);
            }
        }
    }

    /// Performs the detour of a steered request that is sent again, since the word at its address may have
    /// been cached meanwhile. The error is as for [`Lines::detour`](crate::lines::Lines::detour).
    pub(crate) fn detour_steered(
        &mut self,
        server: u8,
        packet: &Packet<'_>,
        by: u64,
        now: Nanos,
    ) -> Result<(), Id> {
        match packet.atomic() {
            Some(atomic) if by != 0 => {
                let va = atomic.va.get().wrapping_add(by);
                self.lines.detour(server, va, 8, now, self.config.settle)
            }
            _ => Ok(()),
        }
    }

    /// Retransmits a CAS unchanged. A server that has executed it answers it as a duplicate.
    fn retransmit_cas<O: Output>(&mut self, at: Id, now: Nanos, out: &mut O) {
        let Some(link) = self.steering.links.get(at) else { return };
        if self.lines.detour(link.server, link.append.va, 8, now, self.config.settle).is_err() {
            // A resolved operation on the same line is in flight: try again on the next tick.
            return;
        }
        let Some(link) = self.steering.links.get_mut(at) else { return };
        link.sent = now;
        link.tries = link.tries.saturating_add(1);
        let (end, append, psn) = (self.connections.endpoint(link.flow), link.append, link.psn);
        let Some(key) = self.connections.key(link.flow) else { return };
        let Ok(mut frame) = out.make(0) else { return };
        let base = BthFields { ack_req: true, ..BthFields::new(Opcode::RC_COMPARE_SWAP, key.qpn(), psn) };
        let atomic = AtomicEth {
            va: append.va.into(),
            rkey: append.rkey.into(),
            swap_or_add: append.node.into(),
            compare: 0.into(),
        };
        let behind: [u8; AtomicEth::LEN] = zerocopy::transmute!(atomic);
        if end.headers.build(&mut frame, None, base, &behind).is_ok() && out.send(frame, end.port).is_ok() {
            self.counters.mended.add(1);
        }
    }

    /// Gives up a node whose CAS has an unknown result, and ends the connections whose responses depend on
    /// it.
    fn give_up(&mut self, at: Id) {
        let links = &mut self.steering.links;
        links.lose(at);
        let lost = |this: &Self, record: &Record| {
            let link = this.steering.links.open(record.depends_on);
            !record.done && link.is_some_and(|(_, link)| link.state == State::Lost)
        };
        let alone =
            links.get(at).is_some_and(|link| !link.has_dependents && links.open(link.parent).is_none());
        for id in 0..self.connections.ids() {
            if !alone
                && self.connections.flow(id).stage == Stage::Translating
                && self.connections.records(id).iter().any(|record| lost(self, record))
            {
                self.counters.abandoned.add(1);
                let shared_qp = self.connections.flow(id).shared_qp;
                if shared_qp != NONE {
                    self.fail_shared_qp(shared_qp);
                }
                self.orphan(id);
                self.end_connection(id);
            }
        }
        // No more nodes are appended to it.
        let Steering { caches, links, .. } = &mut self.steering;
        links.remove_lost(|link| {
            caches[usize::from(link.server)][usize::from(link.structure)].invalidate(link.append.key);
        });
    }
}
