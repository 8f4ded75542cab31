//! Detours: what goes to a line on another way than its lane, and makes doubtful what is known of it.

use crate::Id;
use crate::function::{NO_SERVER, Swordbox};
use crate::lines::in_one_line;
use crate::op::{Kind, Op, memory_of};
use rocev2::{Opcode, Packet};
use switch::Nanos;

impl Swordbox {
    /// What a packet writes to on another way than a shared connection is not known any more; an error if it has to wait for
    /// what was decided.
    pub(crate) fn detour(&mut self, server: u8, packet: &Packet<'_>, now: Nanos) -> Result<(), Id> {
        self.detour_for(server, packet, now, self.config.settle)
    }

    /// The same; what it touches is not decided here for so long.
    pub(crate) fn detour_for(
        &mut self,
        server: u8,
        packet: &Packet<'_>,
        now: Nanos,
        quiet: Nanos,
    ) -> Result<(), Id> {
        if server == NO_SERVER || self.lines.len() == 0 {
            return Ok(());
        }
        #[cfg(feature = "canary")]
        if self.config.bug == Some(crate::Bug::StaleWord) {
            return Ok(());
        }
        let op = Op::of(packet.layout().opcode());
        match op.kind {
            Kind::Read | Kind::Response | Kind::Datagram | Kind::Cnp | Kind::Body => Ok(()),
            Kind::Unknown => self.lines.detour_everywhere(server, now, quiet),
            Kind::Write | Kind::Other | Kind::Atomic | Kind::Unreliable => match memory_of(packet) {
                Some((va, _, len)) => self.lines.detour(server, va, len.into(), now, quiet),
                None => Ok(()),
            },
        }
    }

    /// Where a packet writes that goes on with a message: its first packet may have passed long ago.
    pub(crate) fn goes_on_at(&self, id: Id, packet: &Packet<'_>) -> Option<(u64, u64)> {
        #[cfg(feature = "canary")]
        if self.config.bug == Some(crate::Bug::StaleWord) {
            return None;
        }
        let goes_on = matches!(
            packet.layout().opcode(),
            Opcode::RC_WRITE_MIDDLE | Opcode::RC_WRITE_LAST | Opcode::RC_WRITE_LAST_IMM
        );
        let flow = &self.flows[id as usize];
        let (first, va, len) = flow.message.filter(|_| goes_on)?;
        let before = u64::try_from(packet.bth().psn().distance(first)).ok().filter(|before| *before > 0)?;
        Some((va.saturating_add(before * u64::from(len)), packet.payload().len() as u64))
    }

    /// The same for a request of a connection that is followed: that it did is remembered for when it is repeated.
    pub(crate) fn detour_of(
        &mut self,
        id: Id,
        server: u8,
        packet: &Packet<'_>,
        now: Nanos,
    ) -> Result<(), Id> {
        self.detour_of_for(id, server, packet, now, self.config.settle)
    }

    /// The same for a request of a connection whose sides may differ. One that touches one line is over as soon as it is done:
    /// what comes twice on that connection is done once.
    pub(crate) fn detour_until_done(
        &mut self,
        id: Id,
        server: u8,
        packet: &Packet<'_>,
        op: Op,
        now: Nanos,
    ) -> Result<(), Id> {
        let is_whole = op.ends && matches!(op.kind, Kind::Write | Kind::Atomic);
        let memory = memory_of(packet).filter(|(va, _, len)| {
            is_whole && in_one_line(*va, *len as usize) && self.flows[id as usize].detouring.is_none()
        });
        let line = memory.and_then(|(va, ..)| self.lines.find(server, va));
        let Some(line) = line else { return self.detour_of(id, server, packet, now) };
        self.detour_of_for(id, server, packet, now, Nanos::ZERO)?;
        let until = now + self.config.settle;
        let own = self.lines.get_mut(line);
        own.detouring += 1;
        own.detoured_until = own.detoured_until.max(until);
        self.flows[id as usize].detouring = Some((packet.bth().psn(), line));
        Ok(())
    }

    /// The detour of a flow, if it has one, is over; or, if its connection is, it may still be on its way.
    pub(crate) fn end_detour(&mut self, id: Id, is_done: bool) {
        let Some((_, line)) = self.flows[id as usize].detouring.take() else { return };
        // It is not known what time it is, but when there will be a tick.
        let (now, settle) = (self.tick + self.interval(), self.config.settle);
        let line = self.lines.get_mut(line);
        line.detouring -= 1;
        if !is_done {
            line.detour(now, settle);
        }
    }

    fn detour_of_for(
        &mut self,
        id: Id,
        server: u8,
        packet: &Packet<'_>,
        now: Nanos,
        quiet: Nanos,
    ) -> Result<(), Id> {
        let mut before = self.lines_touched(server, packet);
        self.detour_for(server, packet, now, quiet)?;
        if let Some((va, len)) = self.goes_on_at(id, packet) {
            before = self.lines.has_any(server, va, len);
            self.lines.detour(server, va, len, now, self.config.settle)?;
        }
        if before {
            self.counters.detours.add(1);
            self.flows[id as usize].touched = Some(packet.bth().psn());
        } else if Op::of(packet.layout().opcode()).kind == Kind::Body
            && let Some(touched) = self.flows[id as usize].touched
            && touched == packet.bth().psn().sub(1)
        {
            // The message goes on.
            self.flows[id as usize].touched = Some(packet.bth().psn());
        }
        Ok(())
    }

    fn lines_touched(&self, server: u8, packet: &Packet<'_>) -> bool {
        let op = Op::of(packet.layout().opcode());
        matches!(op.kind, Kind::Write | Kind::Atomic | Kind::Other)
            && memory_of(packet).is_some_and(|(va, _, len)| self.lines.has_any(server, va, len.into()))
    }

    /// The same for one that is repeated: what the rest of a message writes to is not told by it.
    pub(crate) fn detour_again(
        &mut self,
        id: Id,
        server: u8,
        packet: &Packet<'_>,
        op: Op,
        now: Nanos,
    ) -> Result<(), Id> {
        self.detour_again_for(id, server, packet, op, now, self.config.settle)
    }

    #[allow(clippy::too_many_arguments, reason = "a packet and what is known of it")]
    fn detour_again_for(
        &mut self,
        id: Id,
        server: u8,
        packet: &Packet<'_>,
        op: Op,
        now: Nanos,
        quiet: Nanos,
    ) -> Result<(), Id> {
        if let Some((va, len)) = self.goes_on_at(id, packet) {
            return self.lines.detour(server, va, len, now, quiet);
        }
        let touched = self.flows[id as usize].touched;
        if op.kind == Kind::Body && touched.is_some_and(|psn| !psn.precedes(packet.bth().psn())) {
            return self.lines.detour_everywhere(server, now, quiet);
        }
        self.detour_for(server, packet, now, quiet)
    }

    /// A packet was dropped because of what was decided for the words that it touches. Its client sends it again; until then
    /// nothing more is decided for them: otherwise, of words that are always in use, it would be dropped every time.
    pub(crate) fn await_again(&mut self, id: Id, server: u8, packet: &Packet<'_>, op: Op, now: Nanos) {
        _ = self.detour_again_for(id, server, packet, op, now, self.config.dead_after);
    }
}
