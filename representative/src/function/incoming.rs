//! Received frames: barriers in beacons and messages update registers; all other frames are forwarded.

use super::{LinkEnds, NO_LINK, Representative};
use crate::barrier::{Gone, UpdateResult};
use crate::commit::Source;
use crate::config::Incarnation;
use crate::counters::Refusal;
use crate::half::UP;
use crate::view::LinkState;
use onepipe::beacon;
use onepipe::{OnePipe, OnePipeOpcode, Timestamp};
use rocev2::deth::Deth;
use rocev2::{Fault, Layout, Opcode, Packet, Qpn, neighbour};
use switch::{DropReason, Frame, Nanos, Output, PortId, Verdict};

/// Number of ticks for which it counts that a link's barrier had to be lowered
pub(super) const LOWERED_FOR: u64 = 2;

impl Representative {
    /// Returns whether `frame` is a broadcast or multicast ARP request or neighbour solicitation for one of
    /// this switch's addresses.
    #[cold]
    pub(super) fn requests_own_address(&self, frame: &[u8]) -> bool {
        let is_multicast = frame.first().is_some_and(|first| first & 1 != 0);
        is_multicast
            && neighbour::resolution_target(frame).is_some_and(|ip| self.config.addresses.contains(&ip))
    }

    /// Returns whether a frame from outside names the switch itself as its source. Its destination, a
    /// neighbour, would accept it as the switch's, because it arrives on the switch's link. (A host beside a
    /// bridge does not see the frames that pass the bridge.)
    pub(super) fn is_forged(&self, packet: &Packet<'_>) -> bool {
        if self.config.has_bug(crate::bug::Bug::ForgedNeighbour) {
            return false;
        }
        self.config.incarnation != Incarnation::Host && self.config.addresses.contains(&packet.src())
    }

    #[cold]
    pub(super) fn refuse(&self, why: Refusal, reason: DropReason) -> Verdict {
        self.counters.refuse(why);
        Verdict::Drop(reason)
    }

    /// Handles a beacon that equals a fully checked one of its link except for PSNs and times, and whose ICRC
    /// is right. The result is that of the full checks, at half the cost; a frame for which this returns
    /// `None` takes the full checks.
    #[inline]
    pub(super) fn on_expected_beacon(&mut self, frame: &[u8], port: PortId, now: Nanos) -> Option<Verdict> {
        if beacon::is_longer(frame) {
            return None;
        }
        let link = match self.config.incarnation {
            Incarnation::Host => self.link_of(beacon::dest_qp(frame)?),
            Incarnation::Chip | Incarnation::SwitchCpu => self.link_at(port),
        }?;
        let expected = &self.expected[link];
        let Some(template) = expected.template(port) else {
            return self.on_expected_of_two(link, frame, port, now);
        };
        let header = template.read(frame)?;
        let (layout, source) = (template.layout(), expected.source());
        self.forward.count_admitted(frame, layout, port, now);
        Some(self.on_beacon_of_one(link, header, layout.opcode(), source, now))
    }

    /// Handles a 1Pipe datagram.
    #[expect(clippy::inline_always, reason = "part of `on_frame`; a call would pass half a dozen arguments")]
    #[inline(always)]
    pub(super) fn on_datagram<O: Output>(
        &mut self,
        frame: &mut O::Frame,
        layout: Layout,
        port: PortId,
        now: Nanos,
        out: &mut O,
    ) -> Verdict {
        let packet = Packet::new(frame.bytes(), layout);
        let incarnation = self.config.incarnation;
        // The chip handles messages to the switch's own address as all other messages.
        let own = incarnation != Incarnation::Chip && self.is_own(frame.bytes());
        let header = match OnePipe::of(&packet) {
            Some(&header) if header.version == OnePipe::VERSION => header,
            // Only the chip changes messages, and has to parse them.
            _ if incarnation != Incarnation::Chip && !own => {
                return self.forward.route(frame, port, now, out);
            }
            Some(_) => return self.refuse(Refusal::OtherVersion, DropReason::Unexpected),
            None => return self.refuse(Refusal::NoHeader, DropReason::Unexpected),
        };
        // A beacon for another node carries no barriers of the links that it passes. (For the chip, the
        // destination is checked for beacons only, which are few.)
        let is_for_us = || own || incarnation == Incarnation::Chip && self.is_own(frame.bytes());
        if header.opcode() == OnePipeOpcode::BEACON && is_for_us() {
            let link = self.link_of(packet.bth().dest_qp());
            return self.on_beacon(&packet, link, port, header, now);
        }
        if header.opcode() == OnePipeOpcode::CLOCK && is_for_us() {
            let link = self.link_of(packet.bth().dest_qp());
            return self.on_clock_beacon(&packet, link, port, &header, now);
        }
        if header.opcode().is_for_one_hop() && self.is_forged(&packet) {
            return self.refuse(Refusal::WrongSource, DropReason::WrongSource);
        }
        match incarnation {
            Incarnation::Chip | Incarnation::SwitchCpu => {
                self.on_message(frame, layout, port, header, now, out)
            }
            Incarnation::Host if own => self.refuse(Refusal::NoHeader, DropReason::Unexpected),
            Incarnation::Host => self.forward.route(frame, port, now, out),
        }
    }

    /// Handles a packet of a message in the switch (1Pipe, sections 6.2.1 and 6.2.2).
    #[expect(clippy::inline_always, reason = "as above")]
    #[inline(always)]
    fn on_message<O: Output>(
        &mut self,
        frame: &mut O::Frame,
        layout: Layout,
        port: PortId,
        header: OnePipe,
        now: Nanos,
        out: &mut O,
    ) -> Verdict {
        let chip = self.config.incarnation == Incarnation::Chip;
        // A beacon from one neighbour for another one is forwarded.
        let is_beacon = header.opcode().is_for_one_hop();
        let from = match self.link_at(port) {
            Some(from) => from,
            None if chip && !is_beacon => return self.refuse(Refusal::UnknownLink, DropReason::WrongSource),
            None => return self.forward.route(frame, port, now, out),
        };
        if self.config.has_bug(crate::bug::Bug::SilentDrop)
            && from == 0
            && header.opcode() == OnePipeOpcode::DATA
            && header.psn().get().is_multiple_of(16)
        {
            return Verdict::Drop(DropReason::Unexpected);
        }
        // Barriers in packets with other opcodes are ignored: a packet of the reliable service may be a
        // retransmission of an old one.
        let uses_barriers = chip && header.opcode() == OnePipeOpcode::DATA;
        let is_declared = self.links[from].writes_until > self.ticks
            || self.config.has_bug(crate::bug::Bug::UndeclaredBarriers);
        if uses_barriers && is_declared {
            if !Packet::new(frame.bytes(), layout).verify_icrc() {
                return self.refuse(Refusal::Damaged, DropReason::Malformed(Fault::Icrc));
            }
            match self.update_link(from, header.barrier(), now) {
                Ok(()) => {}
                // The message may be late. Its receiver detects that and reports it to the sender.
                Err(why) => self.counters.refuse(why),
            }
        }
        let Some(verdict) = self.forward.find_route(frame, port, now) else {
            if uses_barriers {
                self.counters.flooded.add(1);
                stamp(frame.bytes_mut(), layout, None);
            }
            let (links, by_port) = (&self.links, &self.by_port);
            let goes_up = |port: PortId| {
                let link = by_port.get(port.index()).and_then(|&link| links.get(usize::from(link)));
                link.is_some_and(|link| link.output == UP)
            };
            let from_above = links[from].output == UP;
            return self.forward.flood_to(frame, port, |to| !(from_above && goes_up(to)), out);
        };
        let Verdict::Forward(to) = verdict else { return verdict };
        let Some(to) = self.link_at(to) else {
            if uses_barriers {
                stamp(frame.bytes_mut(), layout, None);
            }
            return verdict;
        };
        // Both output links are fed by the up half.
        if self.links[from].output == UP && self.links[to].output == UP && !is_beacon {
            return self.refuse(Refusal::Valley, DropReason::Unexpected);
        }
        // A message for another worker's link gets its barrier there.
        if uses_barriers && self.sends_at(to) {
            self.stamp_for(to, frame.bytes_mut(), layout, header.timestamp());
        }
        verdict
    }

    /// Writes the barrier of the link `to` into a message that is about to be queued there.
    #[expect(clippy::inline_always, reason = "as above")]
    #[inline(always)]
    pub(super) fn stamp_for(&mut self, to: usize, frame: &mut [u8], layout: Layout, timestamp: Timestamp) {
        let link = &mut self.links[to];
        let barrier = &self.halves[link.output].barrier;
        let best_effort = barrier.best_effort();
        stamp(frame, layout, best_effort);
        // Other neighbours forward the message without reading its barrier, and get the barrier from beacons
        // alone.
        if link.reads_until > self.ticks {
            (link.sent_barrier, link.sent_barrier_at) = (barrier.position(), self.ticks);
        }
        self.counters.messages.add(1);
        if best_effort.is_some_and(|barrier| timestamp.precedes(barrier)) {
            self.counters.late.add(1);
        }
    }

    #[inline]
    pub(super) fn link_at(&self, port: PortId) -> Option<usize> {
        let link = *self.by_port.get(port.index())?;
        (link != NO_LINK).then_some(usize::from(link))
    }

    #[inline]
    fn link_of(&self, qpn: Qpn) -> Option<usize> {
        let link = qpn.get().checked_sub(self.config.first_qp.get())? as usize;
        (link < self.links.len()).then_some(link)
    }

    /// Executes a WRITE to one of the link's queue pairs (1Pipe, section 6.2.3), whose memory is the link's
    /// register.
    pub(super) fn on_write(&mut self, packet: &Packet<'_>, port: PortId, now: Nanos) -> Verdict {
        let link = self.link_of(packet.bth().dest_qp());
        let expected_va = link.map(|link| self.config.registers.va_of(link as u16));
        let is_valid = packet.reth().is_some_and(|reth| {
            let whole = reth.len.get() as usize == OnePipe::LEN && packet.payload().len() == OnePipe::LEN;
            expected_va.is_none_or(|va| va == reth.va.get())
                && reth.rkey.get() == self.config.registers.rkey
                && whole
        });
        if !is_valid {
            return self.refuse(Refusal::WrongMemory, DropReason::WrongSource);
        }
        let Some(&header) = OnePipe::of(packet) else {
            return self.refuse(Refusal::NoHeader, DropReason::Unexpected);
        };
        if header.version != OnePipe::VERSION {
            return self.refuse(Refusal::OtherVersion, DropReason::Unexpected);
        }
        if header.opcode() != OnePipeOpcode::BEACON {
            return self.refuse(Refusal::NoHeader, DropReason::Unexpected);
        }
        self.on_beacon(packet, link, port, header, now)
    }

    fn on_beacon(
        &mut self,
        packet: &Packet<'_>,
        link: Option<usize>,
        port: PortId,
        header: OnePipe,
        now: Nanos,
    ) -> Verdict {
        let Some(link) = link else {
            return self.refuse(Refusal::UnknownLink, DropReason::NoQueuePair);
        };
        let neighbour = &self.config.links[link];
        let end = neighbour.end_of(packet.src()).filter(|_| port == neighbour.port);
        let any_end = self.config.has_bug(crate::bug::Bug::AnySource).then_some(0);
        let Some(end) = end.or(any_end) else {
            return self.refuse(Refusal::WrongSource, DropReason::WrongSource);
        };
        if !packet.verify_icrc() {
            return self.refuse(Refusal::Damaged, DropReason::Malformed(Fault::Icrc));
        }
        let opcode = packet.layout().opcode();
        let source = packet.deth().map(Deth::src_qp);
        if let Some(standby) = self.standbys.get_mut(link).and_then(Option::as_mut) {
            standby.expected[usize::from(end)].learn(packet);
            return self.on_beacon_of_two((link, end), &header, opcode, source, now);
        }
        self.expected[link].learn(packet);
        self.on_beacon_of_one(link, &header, opcode, source, now)
    }

    /// Handles a beacon of the only end of a link, which has passed all checks.
    #[inline]
    fn on_beacon_of_one(
        &mut self,
        link: usize,
        header: &OnePipe,
        opcode: Opcode,
        source: Option<Qpn>,
        now: Nanos,
    ) -> Verdict {
        let word = (header.barrier(), header.nothing_follows());
        self.take_beacon((link, 0), header, opcode, source, now, |_| Some(word))
    }

    /// Takes the values of a beacon. `word` returns the barrier, and whether nothing follows, as if the link had one
    /// end; `None` if the beacon is stale.
    #[expect(clippy::inline_always, reason = "nothing of the second end may remain where there is none")]
    #[inline(always)]
    pub(super) fn take_beacon(
        &mut self,
        (link, end): (usize, u8),
        header: &OnePipe,
        opcode: Opcode,
        source: Option<Qpn>,
        now: Nanos,
        word: impl FnOnce(&mut Self) -> Option<(Option<Timestamp>, bool)>,
    ) -> Verdict {
        match opcode {
            Opcode::UC_WRITE_ONLY => self.counters.writes.add(1),
            _ => self.counters.datagrams.add(1),
        }
        if self.commit.is_some() {
            self.on_commit(link, source.map(|qpn| (end, qpn)), header.commit(), now);
        }
        if header.nothing_follows()
            && let Err(why) = self.check_leave((link, end), header.timestamp(), now)
        {
            let reason = if why == Refusal::Ahead { DropReason::Refused } else { DropReason::Stale };
            return self.refuse(why, reason);
        }
        let Some((barrier, is_last)) = word(self) else {
            return self.refuse(Refusal::Stale, DropReason::Stale);
        };
        match self.update_link(link, barrier, now) {
            Ok(()) => {}
            Err(why @ (Refusal::Stale | Refusal::TooFarBehind)) => {
                return self.refuse(why, DropReason::Stale);
            }
            Err(why) => return self.refuse(why, DropReason::Refused),
        }
        if self.config.incarnation == Incarnation::Chip {
            // Valid for as long as the link may be silent, so the declaration ends with the link.
            let until = self.ticks + u64::from(self.config.dead_after_intervals);
            self.links[link].reads_until = if header.reads_barriers() { until } else { 0 };
            self.links[link].writes_until = if header.writes_barriers() { until } else { 0 };
        }
        let last_beacon = self.last_beacon_of(link, end);
        last_beacon.note(header.timestamp());
        if header.nothing_follows() {
            // So a repetition of this beacon is older than the last one.
            last_beacon.note(header.timestamp().add(1));
        }
        if is_last {
            // A switch of an earlier version announces that nothing follows also if it hears none of its links.
            let why = if header.declares() { Gone::Left } else { Gone::Silent };
            self.leave(link, why, now);
        }
        Verdict::Consume
    }

    /// Checks whether a link's neighbour, which at this time of its clock announces that nothing follows, has
    /// sent nothing since. A beacon that is late or repeated may be of an earlier incarnation of the link,
    /// and has no barrier by which that could be detected.
    ///
    /// An announcement is compared with the link's last beacon, so with the same clock: that of this node may
    /// be wrong. Only the first beacon of a link can be compared with nothing else. If it is far from this
    /// node's clock, it is kept as the last beacon, and the next announcement counts.
    #[cold]
    fn check_leave(&mut self, (link, end): (usize, u8), time: Timestamp, now: Nanos) -> Result<(), Refusal> {
        let ahead = time.distance(self.reference_clock(now));
        let old = ahead < -i64::try_from(self.config.join_window.0).unwrap_or(i64::MAX);
        let believes = !old && ahead <= self.ahead_max;
        let last_beacon = self.last_beacon_of(link, end);
        if !last_beacon.is_none() {
            return if last_beacon.is_after(time) { Err(Refusal::Stale) } else { Ok(()) };
        }
        if believes {
            return Ok(());
        }
        // So a repetition of this announcement is older than the last beacon.
        last_beacon.note(time.add(1));
        Err(if old { Refusal::Stale } else { Refusal::Ahead })
    }

    /// Takes the commit barrier of a beacon, if the beacon is of the incarnation that the controller has named.
    /// The best-effort barrier of another one counts nevertheless.
    #[inline(never)]
    fn on_commit(&mut self, link: usize, source: Option<(u8, Qpn)>, commit: Option<Timestamp>, now: Nanos) {
        let commit = commit.map(|commit| self.lowered(commit, now));
        if let Some(registers) = &mut self.commit
            && registers.on_beacon(link, source, commit) == Source::Unknown
        {
            self.counters.refuse(Refusal::OtherIncarnation);
        }
    }

    /// Updates a link's register by a barrier that its neighbour has sent. Output links that this affects get
    /// their beacons at the end of the burst.
    #[allow(clippy::inline_always, reason = "most updates take a few comparisons")]
    #[inline(always)]
    fn update_link(
        &mut self,
        link: usize,
        mut barrier: Option<Timestamp>,
        now: Nanos,
    ) -> Result<(), Refusal> {
        let clock = self.reference_clock(now);
        if let Some(value) = barrier.filter(|value| value.distance(clock) > self.ahead_max) {
            if self.config.has_bug(crate::bug::Bug::RefusesAhead) {
                return Err(Refusal::Ahead);
            }
            barrier = Some(self.lower(link, value, now));
        }
        if self.workers.is_some() {
            return self.update_own(link, barrier, now);
        }
        let (half, input) = self.links[link].input;
        let output = &mut self.halves[half].barrier;
        let before = output.position();
        let result = output.update(input, barrier);
        if result == UpdateResult::Raised && output.position() == before {
            // Most updates change no output.
            return Ok(());
        }
        match result {
            UpdateResult::Raised
            | UpdateResult::Unchanged
            | UpdateResult::Behind
            | UpdateResult::NoBarrier => {}
            UpdateResult::Joined => self.joined(link),
            UpdateResult::Stale => return Err(Refusal::Stale),
            UpdateResult::TooFarBehind => return Err(Refusal::TooFarBehind),
        }
        self.propagate(half, now);
        Ok(())
    }

    /// Lowers a barrier of a link that is too far ahead of the clock to the latest valid time: what holds for a
    /// barrier holds for every earlier one.
    #[cold]
    fn lower(&mut self, link: usize, barrier: Timestamp, now: Nanos) -> Timestamp {
        self.counters.lowered.add(1);
        self.links[link].lowered = Some((barrier, self.ticks));
        if let Some(workers) = &self.workers {
            workers.note_lowered(link, Some(barrier));
        }
        if self.links[link].input.0 == UP {
            self.believe(now);
        }
        self.lowered(barrier, now)
    }

    /// Returns a barrier, or the latest valid time if the barrier is too far ahead of the clock.
    fn lowered(&self, barrier: Timestamp, now: Nanos) -> Timestamp {
        let clock = self.reference_clock(now);
        let is_ahead = barrier.distance(clock) > self.ahead_max;
        if is_ahead { clock.add(self.ahead_max.unsigned_abs()) } else { barrier }
    }

    /// Returns the lower median of what the links from below are ahead of the clock, if there are several and all of
    /// them are too far ahead.
    fn median_lead(&self) -> Option<i64> {
        let ahead = |barrier: Timestamp| barrier.distance(self.epoch_max);
        let is_recent = |&(_, tick): &(Timestamp, u64)| tick + LOWERED_FOR >= self.ticks;
        let recent = |link: &LinkEnds| link.lowered.filter(is_recent).map(|(barrier, _)| barrier);
        let up = self.registers(UP);
        let inputs = (0..).zip(&self.by_input[UP]).filter(|&(input, _)| up.is_live(input));
        let own = inputs.map(|(_, &link)| recent(&self.links[usize::from(link)]));
        let others = self.workers.iter().flat_map(|workers| workers.lowered_from_below());
        let lowered = own.chain(others).map(|barrier| barrier.map(ahead));
        let count = lowered.clone().count();
        if count < 2 || lowered.clone().any(|ahead| ahead.is_none()) {
            return None;
        }
        // The lower median, without memory to sort in
        let rank = |of: i64| lowered.clone().flatten().filter(|&ahead| ahead <= of).count();
        lowered.clone().flatten().filter(|&ahead| rank(ahead) > (count - 1) / 2).min()
    }

    /// Sets the clock with which barriers are compared forward to the lower median of the links from below, if
    /// there are several and all of them are too far ahead of it: then the clock is slow. Links from above do
    /// not count, because what they carry depends on this switch.
    fn believe(&mut self, now: Nanos) {
        let Some(median) = self.median_lead() else { return };
        self.epoch_max =
            Timestamp::new(self.epoch_max.nanos().wrapping_add_signed(median - now.0.cast_signed()));
        self.counters.distrusted.add(1);
        self.take_lowered(now);
    }

    /// Updates the links from below whose barriers were lowered, because the clock was set forward.
    pub(super) fn take_lowered(&mut self, now: Nanos) {
        for input in 0..self.by_input[UP].len() {
            let link = usize::from(self.by_input[UP][input]);
            if let Some((barrier, _)) = self.links[link].lowered.take()
                && self.registers(UP).is_live(input)
            {
                let barrier = self.lowered(barrier, now);
                self.registers_mut(UP).update(input, Some(barrier));
            }
        }
        self.pass_on(UP);
        self.propagate(UP, now);
    }

    #[cold]
    pub(super) fn joined(&mut self, link: usize) {
        self.counters.joined.add(1);
        self.links[link].absence = None;
        self.events.report_joined(link as u16);
    }

    /// Removes a link on which nothing follows, or (`Gone::Silent`) on which that was announced by a switch
    /// that may not know it.
    #[cold]
    pub(super) fn leave(&mut self, link: usize, why: Gone, now: Nanos) {
        let (half, input) = self.links[link].input;
        let barrier = self.registers_mut(half);
        let changes = match why {
            Gone::Left => barrier.leave(input),
            Gone::Silent | Gone::Evicted => barrier.lose(input),
        };
        if changes {
            self.counters.left.add(1);
            self.links[link].absence = Some(LinkState::Left);
            self.events.report_gone(link as u16, LinkState::Left);
            self.pass_on(half);
            self.propagate(half, now);
        }
    }
}

/// Writes a link's barrier into a message. Commit barriers are in beacons alone, which name their sender's
/// incarnation.
#[inline]
fn stamp(frame: &mut [u8], layout: Layout, barrier: Option<Timestamp>) {
    onepipe::stamp(frame, layout, barrier, None).expect("the caller has found the 1Pipe header");
}
