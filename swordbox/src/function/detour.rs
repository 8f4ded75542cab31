//! Detours: packets that may write to a cached line without taking its shared QP, and so invalidate the
//! cached values.

use super::Swordbox;
use crate::address::NO_SERVER;
use crate::flow::Stage;
use crate::lines::in_one_line;
use crate::message::Message;
use crate::op::{Kind, Op, memory_of};
use crate::proof::rights_of;
use crate::{Bug, Id, MIN_PATH_MTU, NONE};
use rocev2::{Opcode, Packet, Psn};
use switch::Nanos;
use switch::forward::counters::HostQp;

/// Memory that a packet may write to
pub(crate) enum Target {
    Nothing,
    /// Virtual address and length in bytes
    Range(u64, u64),
    /// Any address: neither the packet's headers nor a tracked First packet give it
    Anywhere,
}

/// Returns whether a packet is a Middle or Last packet of a WRITE.
fn is_middle_or_last(packet: &Packet<'_>) -> bool {
    matches!(
        packet.layout().opcode(),
        Opcode::RC_WRITE_MIDDLE
            | Opcode::RC_WRITE_LAST
            | Opcode::RC_WRITE_LAST_IMM
            | Opcode::UC_WRITE_MIDDLE
            | Opcode::UC_WRITE_LAST
            | Opcode::UC_WRITE_LAST_IMM
    )
}

impl Swordbox {
    /// Returns what a packet may write to. `id` is `NONE` if the packet has no tracked connection.
    pub(crate) fn write_target(&self, id: Id, packet: &Packet<'_>) -> Target {
        if self.config.has_bug(Bug::StaleWord) {
            return Target::Nothing;
        }
        if is_middle_or_last(packet) {
            return self.target_of_middle_or_last(id, packet);
        }
        match Op::of(packet.layout().opcode()).kind {
            Kind::Read | Kind::Response | Kind::UnreliableDatagram | Kind::Cnp | Kind::SendOrWriteRest => {
                Target::Nothing
            }
            Kind::Unknown => Target::Anywhere,
            Kind::Write | Kind::AtomicWriteOrFlush | Kind::Atomic | Kind::UnreliableConnection => {
                memory_of(packet).map_or(Target::Nothing, |(va, _, len)| Target::Range(va, len.into()))
            }
        }
    }

    /// Returns what a Middle or Last packet of a WRITE may write to.
    fn target_of_middle_or_last(&self, id: Id, packet: &Packet<'_>) -> Target {
        let flow = self.connections.get_flow(id);
        let writes = flow.map_or_else(|| self.untracked.of(packet), |flow| Some(&flow.long_writes));
        let psn = packet.bth().psn();
        if self.config.has_bug(Bug::EarlierMessage) {
            let newest =
                writes.and_then(|writes| writes.newest_only().memory_of(psn, packet.payload().len()));
            return newest.map_or(Target::Nothing, |(va, len)| Target::Range(va, len));
        }
        let memory = writes.and_then(|writes| writes.memory_of(psn, packet.payload().len()));
        memory.map_or(Target::Anywhere, |(va, len)| Target::Range(va, len))
    }

    /// Tracks a long WRITE whose First packet is forwarded without a tracked connection, or with a PSN
    /// outside the window.
    pub(crate) fn track_long_write(&mut self, packet: &Packet<'_>, now: Nanos) {
        let opcode = packet.layout().opcode();
        if !matches!(opcode, Opcode::RC_WRITE_FIRST | Opcode::UC_WRITE_FIRST) {
            return;
        }
        let Some(message) = Message::of(packet) else { return };
        self.untracked.begin(packet, message, now, self.config.dead_after);
        if opcode == Opcode::RC_WRITE_FIRST
            && let Some(id) = self.connections.find(&HostQp::new(packet.dst(), packet.bth().dest_qp()))
        {
            self.connections.flow_mut(id).long_writes.begin(message);
        }
    }

    /// Invalidates the lines that a packet without a tracked connection may write to. The error is the shared
    /// QP to wait for, or `NONE`.
    pub(crate) fn invalidate_untracked(
        &mut self,
        server: u8,
        packet: &Packet<'_>,
        now: Nanos,
    ) -> Result<(), Id> {
        self.invalidate_for(NONE, server, packet, now, self.config.settle)
    }

    /// Invalidates the lines that a packet may write to; they learn no value for `quiet`. The error is the
    /// shared QP to wait for, or `NONE`.
    pub(crate) fn invalidate_for(
        &mut self,
        id: Id,
        server: u8,
        packet: &Packet<'_>,
        now: Nanos,
        quiet: Nanos,
    ) -> Result<(), Id> {
        if server == NO_SERVER || self.lines.len() == 0 {
            return Ok(());
        }
        match self.write_target(id, packet) {
            Target::Nothing => Ok(()),
            Target::Range(va, len) => self.lines.detour(server, va, len, now, quiet),
            Target::Anywhere => self.lines.detour_everywhere(server, now, quiet),
        }
    }

    /// Performs the detour of a request of a tracked connection, and counts it if it touches cached lines.
    /// The error is as for [`invalidate_untracked`](Self::invalidate_untracked).
    pub(crate) fn invalidate_tracked(
        &mut self,
        id: Id,
        server: u8,
        packet: &Packet<'_>,
        now: Nanos,
    ) -> Result<(), Id> {
        self.invalidate_and_count(id, server, packet, now, self.config.settle)
    }

    /// Performs the detour of a request of a translated connection. If the request touches one line only, the
    /// detour ends when the request completes, since a retransmission on that connection is not executed
    /// again. The error is as for [`invalidate_untracked`](Self::invalidate_untracked).
    pub(crate) fn invalidate_until_completion(
        &mut self,
        id: Id,
        server: u8,
        packet: &Packet<'_>,
        op: Op,
        now: Nanos,
    ) -> Result<(), Id> {
        let is_whole = op.is_last && matches!(op.kind, Kind::Write | Kind::Atomic);
        let memory = memory_of(packet).filter(|(va, _, len)| {
            is_whole && in_one_line(*va, *len as usize) && self.connections.flow(id).detour.is_none()
        });
        let line = memory.and_then(|(va, ..)| self.lines.find(server, va));
        let Some(line) = line else { return self.invalidate_tracked(id, server, packet, now) };
        self.invalidate_and_count(id, server, packet, now, Nanos::ZERO)?;
        let until = now + self.config.settle;
        let cached = self.lines.get_mut(line);
        cached.detours_in_flight += 1;
        cached.detoured_until = cached.detoured_until.max(until);
        self.connections.flow_mut(id).detour = Some((packet.bth().psn(), line));
        Ok(())
    }

    /// Ends the detour in flight of a flow, if any. If its connection ends before completion (`is_done` is
    /// false), the request may still be on its way, so the line stays quiet for `settle`.
    pub(crate) fn end_detour(&mut self, id: Id, is_done: bool) {
        let Some((_, line)) = self.connections.flow_mut(id).detour.take() else { return };
        // The current time is not available here; the next tick is not earlier.
        let (now, settle) = (self.last_tick + self.tick_interval(), self.config.settle);
        let line = self.lines.get_mut(line);
        line.detours_in_flight -= 1;
        if !is_done {
            line.detour(now, settle);
        }
    }

    fn invalidate_and_count(
        &mut self,
        id: Id,
        server: u8,
        packet: &Packet<'_>,
        now: Nanos,
        quiet: Nanos,
    ) -> Result<(), Id> {
        let touches = self.lines.len() > 0
            && match self.write_target(id, packet) {
                Target::Nothing => false,
                Target::Range(va, len) => self.lines.has_any(server, va, len),
                Target::Anywhere => true,
            };
        self.invalidate_for(id, server, packet, now, quiet)?;
        self.counters.detours.add(u64::from(touches));
        Ok(())
    }

    /// Performs the detour of a request that was retransmitted or arrived behind later ones. The error is as
    /// for [`invalidate_untracked`](Self::invalidate_untracked).
    pub(crate) fn invalidate_retransmitted(
        &mut self,
        id: Id,
        server: u8,
        packet: &Packet<'_>,
        op: Op,
        now: Nanos,
    ) -> Result<(), Id> {
        self.discard_proof(id, packet, op);
        self.invalidate_for(id, server, packet, now, self.config.settle)?;
        let flow = self.connections.flow_mut(id);
        if packet.layout().opcode() == Opcode::RC_WRITE_FIRST
            && let Some(message) = Message::of(packet)
            && (flow.stage == Stage::Translating || packet.verify_icrc())
        {
            flow.long_writes.begin(message);
        }
        Ok(())
    }

    /// Discards a pending proof if this packet has the same PSN: the acknowledgement may be for either of the
    /// two.
    fn discard_proof(&mut self, id: Id, packet: &Packet<'_>, op: Op) {
        let memory = memory_of(packet);
        let psn = packet.bth().psn();
        let count = match (op.kind, memory) {
            // An upper bound, because the path MTU may be unknown.
            (Kind::Read, Some((_, _, len))) => len.div_ceil(MIN_PATH_MTU).max(1),
            _ => 1,
        };
        let takes = |behind: Psn| (0..count as i32).contains(&behind.sub(1).distance(psn));
        let rights = rights_of(op.kind);
        let flow = self.connections.flow_mut(id);
        if count > 1 {
            flow.extend_read_psns(psn, count.saturating_mul(MIN_PATH_MTU));
        }
        flow.pending.discard(
            takes,
            |proof| {
                memory.is_some_and(|(_, rkey, len)| count == 1 && len > 0 && proof.is_proven_by(rkey, rights))
            },
            |own| memory == Some((own.va, own.rkey, own.len.into())),
        );
    }

    /// Suspends resolution for the words that a dropped packet may write to, until its client retransmits it.
    /// Otherwise a packet to words in constant use would be dropped every time.
    pub(crate) fn suspend_until_retransmitted(
        &mut self,
        id: Id,
        server: u8,
        packet: &Packet<'_>,
        now: Nanos,
    ) {
        _ = self.invalidate_for(id, server, packet, now, self.config.dead_after);
    }
}
