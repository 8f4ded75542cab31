//! A switch's barriers as a switch function, in the paper's three incarnations (1Pipe, section 6.2).
//!
//! What comes in on a link updates the link's register; what goes out on a link carries the barrier of the half that feeds it.
//! Both happen in the order in which frames come and go, on one worker: that a link keeps its order is the whole proof.

use crate::barrier::{Heard, Limits};
use crate::beacon::{Template, Told};
use crate::config::{Config, ConfigError, Incarnation, Link, Pace, Side};
use crate::counters::{Counters, Refusal};
use crate::half::{DOWN, Half, UP};
use crate::view::{Gauges, HalfShown, LinkState};
use rocev2::onepipe::{OnePipe, OnePipeOpcode, Timestamp};
use rocev2::rewrite::Rewriter;
use rocev2::{Fault, Layout, Opcode, Packet, Qpn, neighbour};
use std::collections::VecDeque;
use std::sync::Arc;
use switch::forward::{self, Forward};
use switch::{DropReason, Frame, Function, Nanos, Output, PortId, Verdict};

/// A link, by its place in the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u16);

/// What the control plane tells a representative.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// What 1Pipe's clock shows now
    Clock(Timestamp),
    /// The link is about to be taken down: nothing more will come on it.
    Remove(LinkId),
    /// The controller is done with the failure of the link (section 5.2, "Resume").
    RemoveCommit(LinkId),
    /// The link takes part in the reliable service again.
    AddCommit(LinkId),
    /// The registers are to be written down ([`Representative::gauges`]).
    Show,
}

/// What a representative tells the control plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A link was silent for too long, and is no part of the best-effort barrier any more (section 5.2, "Detect").
    Dead(LinkId, Committed),
    /// A link's neighbour said that nothing comes on it, or the control plane did.
    Left(LinkId, Committed),
    /// A link takes part again.
    Joined(LinkId),
}

/// The commit barrier that a link has last told, if any
pub type Committed = Option<Timestamp>;

/// Events that wait for the control plane at most
const EVENTS: usize = 256;
/// Where no link is
const NO_LINK: u16 = u16::MAX;
/// The input of the way down that is the way up of the same switch
const LOOPBACK: usize = 0;

/// What is known of a link.
#[derive(Debug)]
struct Known {
    /// The half that it feeds, and which of its inputs it is
    input: (usize, usize),
    /// The half that it is fed by
    output: usize,
    /// The barrier that its neighbour was last told, on the half's line
    told: u64,
    /// The tick in which that was
    told_at: u64,
    /// Why it takes no part, if it does not
    gone: Option<LinkState>,
    beacon: Template,
}

/// The function.
pub struct Representative {
    config: Config,
    forward: Forward,
    halves: [Half; 2],
    links: Box<[Known]>,
    /// The link at each port, or [`NO_LINK`]; not for [`Incarnation::Host`]
    by_port: Box<[u16]>,
    /// The links of the inputs of either half
    by_input: [Box<[u16]>; 2],
    /// 1Pipe's time when the runner's is 0
    epoch: Timestamp,
    ticks: u64,
    /// `None` before the first call
    next_tick: Option<Nanos>,
    /// Both barriers of the way up, and whether anybody is there, as the way down knows it
    looped_back: (u64, u64, bool),
    /// A barrier has passed an instant since then, and links have not been told yet
    due: Option<Nanos>,
    counters: Arc<Counters>,
    gauges: Arc<Gauges>,
    events: VecDeque<Event>,
}

impl Representative {
    /// A representative that has heard nothing yet.
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        config.check()?;
        let dead_after_ticks = u64::from(config.dead_after_intervals);
        let limits = Limits { dead_after_ticks, window_ns: config.join_window.0 };
        let mut by_port = vec![NO_LINK; usize::from(config.forward.ports)];
        let mut by_input = [Vec::new(), vec![NO_LINK]];
        let mut links = Vec::with_capacity(config.links.len());
        for (number, link) in (0u16..).zip(&config.links) {
            let (half, output) = match link.side {
                Side::Below => (UP, DOWN),
                Side::Above => (DOWN, UP),
            };
            by_port[link.port.index()] = number;
            let input = (half, by_input[half].len());
            by_input[half].push(number);
            let qpn = Qpn::new(config.first_qp.get() + u32::from(number));
            let beacon = Template::new(&config, link, qpn);
            links.push(Known { input, output, told: 0, told_at: 0, gone: None, beacon });
        }
        let mut halves = [Half::new(by_input[UP].len(), limits), Half::new(by_input[DOWN].len(), limits)];
        halves[DOWN].barrier.keep(LOOPBACK);
        #[cfg(feature = "canary")]
        for half in &mut halves {
            half.barrier.plant(config.bug);
        }
        let mut function = Self {
            forward: Forward::alone(&config.forward),
            halves,
            links: links.into(),
            by_port: by_port.into(),
            by_input: by_input.map(Into::into),
            epoch: config.clock,
            ticks: 0,
            next_tick: None,
            looped_back: (0, 0, true),
            due: None,
            counters: Arc::default(),
            gauges: Gauges::new(config.links.iter().map(|link| link.side)).into(),
            events: VecDeque::with_capacity(EVENTS),
            config,
        };
        function.loop_back();
        function.looped_back.2 = function.halves[UP].barrier.live() > 0;
        Ok(function)
    }

    /// What it has counted so far, and goes on to count
    pub fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.counters)
    }

    /// Its registers, as it shows them when it is [told to](Command::Show)
    pub fn gauges(&self) -> Arc<Gauges> {
        Arc::clone(&self.gauges)
    }

    /// What the bridge has counted
    pub fn forward_counters(&self) -> Arc<forward::Counters> {
        self.forward.counters()
    }

    /// The best-effort and the commit barrier of the links to this side.
    pub fn barriers(&self, to: Side) -> (Option<Timestamp>, Option<Timestamp>) {
        let half = match to {
            Side::Above => UP,
            Side::Below => DOWN,
        };
        (self.halves[half].barrier.best_effort(), self.halves[half].barrier.commit())
    }

    /// Whether a link takes part in the best-effort barrier
    pub fn is_live(&self, link: LinkId) -> bool {
        let Some(known) = self.links.get(usize::from(link.0)) else { return false };
        self.halves[known.input.0].barrier.is_live(known.input.1)
    }

    /// 1Pipe's time
    #[inline]
    fn clock(&self, now: Nanos) -> Timestamp {
        self.epoch.add(now.0)
    }

    /// Whether everybody is asked for one of our addresses.
    #[cold]
    fn asks_for_us(&self, frame: &[u8]) -> bool {
        let to_all = frame.first().is_some_and(|first| first & 1 != 0);
        to_all && neighbour::asked_for(frame).is_some_and(|ip| self.config.addresses.contains(&ip))
    }

    #[cold]
    fn refuse(&self, why: Refusal, reason: DropReason) -> Verdict {
        self.counters.refuse(why);
        Verdict::Drop(reason)
    }

    fn tell(&mut self, event: Event) {
        if self.events.len() < EVENTS {
            self.events.push_back(event);
        } else {
            self.counters.events_lost.add(1);
        }
    }

    /// A datagram of 1Pipe's
    #[inline]
    fn on_datagram<O: Output>(
        &mut self,
        frame: &mut O::Frame,
        layout: Layout,
        port: PortId,
        now: Nanos,
        out: &mut O,
        own: bool,
    ) -> Verdict {
        let packet = Packet::new(frame.bytes(), layout);
        let header = match packet.onepipe() {
            Some(&header) if header.version == OnePipe::VERSION => header,
            // Only one who changes messages has to understand them.
            _ if self.config.incarnation != Incarnation::Chip && !own => {
                return self.forward.route(frame, port, now, out);
            }
            Some(_) => return self.refuse(Refusal::OtherVersion, DropReason::Unexpected),
            None => return self.refuse(Refusal::NoHeader, DropReason::Unexpected),
        };
        if header.opcode() == OnePipeOpcode::BEACON && (own || self.config.incarnation != Incarnation::Host) {
            let link = match self.config.incarnation {
                Incarnation::Host => self.link_of(packet.bth().dest_qp()),
                Incarnation::Chip | Incarnation::SwitchCpu => self.link_at(port),
            };
            return self.on_beacon(&packet, link, port, header, now);
        }
        match self.config.incarnation {
            Incarnation::Chip => self.on_message(frame, layout, port, header, now, out),
            Incarnation::Host if own => self.refuse(Refusal::NoHeader, DropReason::Unexpected),
            Incarnation::SwitchCpu | Incarnation::Host => self.forward.route(frame, port, now, out),
        }
    }

    /// A message, or part of one, in the switch (section 6.2.1)
    #[inline]
    fn on_message<O: Output>(
        &mut self,
        frame: &mut O::Frame,
        layout: Layout,
        port: PortId,
        header: OnePipe,
        now: Nanos,
        out: &mut O,
    ) -> Verdict {
        let Some(from) = self.link_at(port) else {
            return self.refuse(Refusal::UnknownLink, DropReason::WrongSource);
        };
        // What other opcodes say of barriers nobody heeds: a reliable message may be an old one that is sent again.
        let heeded = header.opcode() == OnePipeOpcode::DATA;
        if heeded && self.config.links[from].barriers_in_messages {
            if !Packet::new(frame.bytes(), layout).verify_icrc() {
                return self.refuse(Refusal::Damaged, DropReason::Malformed(Fault::Icrc));
            }
            match self.take(from, header.barrier(), header.commit(), now) {
                Ok(()) => {}
                // Its timestamp is ahead, too: receivers would keep it for as long.
                Err(Refusal::Ahead) => return self.refuse(Refusal::Ahead, DropReason::Refused),
                // It may be late. Its receiver knows, and tells its sender.
                Err(why) => self.counters.refuse(why),
            }
        }
        let Some(verdict) = self.forward.find_route(frame, port, now) else {
            if heeded {
                self.counters.flooded.add(1);
                stamp(frame.bytes_mut(), layout, None, None);
            }
            return self.forward.flood(frame, port, out);
        };
        let Verdict::Forward(to) = verdict else { return verdict };
        let Some(to) = self.link_at(to) else {
            if heeded {
                stamp(frame.bytes_mut(), layout, None, None);
            }
            return verdict;
        };
        if self.config.links[from].side == Side::Above && self.config.links[to].side == Side::Above {
            return self.refuse(Refusal::Valley, DropReason::Unexpected);
        }
        if !heeded {
            return verdict;
        }
        let link = &mut self.links[to];
        let barrier = &self.halves[link.output].barrier;
        let best_effort = barrier.best_effort();
        stamp(frame.bytes_mut(), layout, best_effort, barrier.commit());
        (link.told, link.told_at) = (barrier.position(), self.ticks);
        self.counters.messages.add(1);
        if best_effort.is_some_and(|barrier| header.timestamp().precedes(barrier)) {
            self.counters.late.add(1);
        }
        verdict
    }

    fn link_at(&self, port: PortId) -> Option<usize> {
        let link = *self.by_port.get(port.index())?;
        (link != NO_LINK).then_some(usize::from(link))
    }

    fn link_of(&self, qpn: Qpn) -> Option<usize> {
        let link = qpn.get().checked_sub(self.config.first_qp.get())? as usize;
        (link < self.links.len()).then_some(link)
    }

    /// A WRITE to one of the link's queue pairs (section 6.2.3): this is the memory that it is for.
    fn on_write(&mut self, packet: &Packet<'_>, port: PortId, now: Nanos) -> Verdict {
        let link = self.link_of(packet.bth().dest_qp());
        let place = link.map(|link| self.config.registers.va_of(link as u16));
        let right = packet.reth().is_some_and(|reth| {
            let whole = reth.len.get() as usize == OnePipe::LEN && packet.payload().len() == OnePipe::LEN;
            place.is_none_or(|va| va == reth.va.get())
                && reth.rkey.get() == self.config.registers.rkey
                && whole
        });
        if !right {
            return self.refuse(Refusal::WrongMemory, DropReason::WrongSource);
        }
        let Some(&header) = packet.onepipe() else {
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
        let Link { port: right, address, .. } = self.config.links[link];
        if port != right || packet.src() != address {
            return self.refuse(Refusal::WrongSource, DropReason::WrongSource);
        }
        if !packet.verify_icrc() {
            return self.refuse(Refusal::Damaged, DropReason::Malformed(Fault::Icrc));
        }
        match packet.layout().opcode() {
            Opcode::UC_WRITE_ONLY => self.counters.writes.add(1),
            _ => self.counters.datagrams.add(1),
        }
        match self.take(link, header.barrier(), header.commit(), now) {
            Ok(()) => {}
            Err(why @ (Refusal::Stale | Refusal::TooFarBehind)) => {
                return self.refuse(why, DropReason::Stale);
            }
            Err(why) => return self.refuse(why, DropReason::Refused),
        }
        if header.nothing_follows() {
            self.leave(link, now);
        }
        Verdict::Consume
    }

    /// A link's neighbour has promised something. What that changes is told to the links when the burst is over.
    #[inline]
    fn take(
        &mut self,
        link: usize,
        barrier: Option<Timestamp>,
        commit: Option<Timestamp>,
        now: Nanos,
    ) -> Result<(), Refusal> {
        let clock = self.clock(now);
        let limit = i64::try_from(self.config.ahead_max.0).unwrap_or(i64::MAX);
        let ahead = |told: Option<Timestamp>| told.is_some_and(|told| told.distance(clock) > limit);
        if ahead(barrier) || ahead(commit) {
            return Err(Refusal::Ahead);
        }
        let (half, input) = self.links[link].input;
        let heard = self.halves[half].barrier.update(input, barrier, commit);
        match heard {
            Heard::Raised | Heard::Same | Heard::Behind | Heard::Nothing => {}
            Heard::Joined => self.joined(link),
            Heard::Stale => return Err(Refusal::Stale),
            Heard::TooFarBehind => return Err(Refusal::TooFarBehind),
        }
        self.pass(half, now);
        Ok(())
    }

    #[cold]
    fn joined(&mut self, link: usize) {
        self.counters.joined.add(1);
        self.links[link].gone = None;
        self.tell(Event::Joined(LinkId(link as u16)));
    }

    /// After a half's barrier may have moved.
    #[inline]
    fn pass(&mut self, half: usize, now: Nanos) {
        let up = &self.halves[UP].barrier;
        let now_up = (up.position(), up.commit_position(), up.live() > 0);
        // Most of what is heard moves no barrier.
        if half == UP && self.looped_back != now_up {
            self.looped_back = now_up;
            self.loop_back();
        }
        for half in &mut self.halves[half..] {
            if half.pass(self.config.beacon_interval.0) {
                self.due.get_or_insert(now);
            }
        }
    }

    /// What goes up may turn round here and go down.
    #[inline]
    fn loop_back(&mut self) {
        let [up, down] = &mut self.halves;
        if up.barrier.live() > 0 {
            down.barrier.update(LOOPBACK, up.barrier.best_effort(), up.barrier.commit());
        } else {
            down.barrier.remove(LOOPBACK);
        }
    }

    /// Nothing more comes on a link.
    #[cold]
    fn leave(&mut self, link: usize, now: Nanos) {
        let (half, input) = self.links[link].input;
        let barrier = &mut self.halves[half].barrier;
        if barrier.remove(input) {
            let committed = barrier.committed(input);
            self.counters.left.add(1);
            self.links[link].gone = Some(LinkState::Left);
            self.tell(Event::Left(LinkId(link as u16), committed));
            self.pass(half, now);
        }
    }

    /// Writes down how the links are.
    #[cold]
    fn show(&self) {
        let half = |number: usize| {
            let barrier = &self.halves[number].barrier;
            let loopback = if number == DOWN { barrier.standing(LOOPBACK) } else { None };
            HalfShown {
                best_effort: Some(barrier.position()),
                commit: Some(barrier.commit_position()),
                loopback: loopback.map(|(register, _)| register),
            }
        };
        let link = |number: usize| {
            let Known { input: (half, input), gone, .. } = self.links[number];
            let (register, said) = self.halves[half].barrier.standing(input).unwrap_or((0, 0));
            let state = gone.unwrap_or(if register > 0 { LinkState::Alive } else { LinkState::Waiting });
            (state, register, said)
        };
        self.gauges.show(half, link);
    }

    /// The next instant after `now`.
    fn next_instant(&self, now: Nanos) -> Nanos {
        let clock = self.clock(now).nanos();
        let interval = self.config.beacon_interval.0;
        let rest = interval - clock % interval;
        now + Nanos(rest.min((1 << 48) - clock))
    }

    fn tick(&mut self, now: Nanos) {
        if let Some(due) = self.next_tick {
            let late = now.since(due).0;
            self.counters.late_by(late);
            self.counters.ticks_missed.add(late / self.config.beacon_interval.0);
        }
        self.counters.ticks.add(1);
        self.ticks += 1;
        self.next_tick = Some(self.next_instant(now));
        for half in [UP, DOWN] {
            self.halves[half].barrier.tick();
            while let Some(input) = self.halves[half].barrier.expire() {
                let committed = self.halves[half].barrier.committed(input);
                let link = self.by_input[half][input];
                self.counters.dead.add(1);
                self.links[usize::from(link)].gone = Some(LinkState::Dead);
                self.tell(Event::Dead(LinkId(link), committed));
            }
            self.pass(half, now);
        }
    }

    /// Whether a link's neighbour is to be told something.
    fn wants_beacon(&self, link: &Known, ticked: bool) -> bool {
        let half = &self.halves[link.output];
        if half.barrier.position() == 0 || half.barrier.live() == 0 {
            // It is told to wait, or that there is nothing to wait for, rather than left to find out.
            return ticked;
        }
        match (self.config.pace, self.config.incarnation) {
            // A message in the interval that has just ended has told it already.
            (Pace::Instants, Incarnation::Chip) => ticked && link.told_at + 1 != self.ticks,
            (Pace::Instants, Incarnation::SwitchCpu | Incarnation::Host) => ticked,
            (Pace::Passing, _) => link.told < half.passed || ticked && link.told_at + 2 <= self.ticks,
        }
    }

    fn send_beacons<O: Output>(&mut self, ticked: bool, now: Nanos, out: &mut O) {
        let clock = self.clock(now);
        for number in 0..self.links.len() {
            if !self.wants_beacon(&self.links[number], ticked) {
                continue;
            }
            let link = &mut self.links[number];
            let barrier = &self.halves[link.output].barrier;
            let told = match barrier.best_effort() {
                _ if barrier.live() == 0 => Told::NothingFollows,
                Some(barrier) => Told::Barrier(barrier),
                None => Told::NotYet,
            };
            if link.beacon.send(clock, told, barrier.commit(), out).is_err() {
                self.counters.unsent.add(1);
                continue;
            }
            link.told = barrier.position();
            // With beacons at instants, one is none that counts as a message of the interval that begins.
            link.told_at = if self.config.pace == Pace::Passing { self.ticks } else { link.told_at };
            self.counters.beacons.add(1);
        }
    }
}

/// Writes a link's barriers into a message.
#[inline]
fn stamp(frame: &mut [u8], layout: Layout, barrier: Option<Timestamp>, commit: Option<Timestamp>) {
    let mut rewriter = Rewriter::new(frame, layout);
    rewriter.set_barriers(barrier, commit).expect("the header was found");
    rewriter.finish();
}

impl Function for Representative {
    type Command = Command;
    type Event = Event;

    #[inline]
    fn on_frame<O: Output>(
        &mut self,
        frame: &mut O::Frame,
        port: PortId,
        now: Nanos,
        out: &mut O,
    ) -> Verdict {
        let own = frame.bytes().first_chunk() == Some(&self.config.mac.0)
            && self.forward.ends_here(frame.bytes(), &self.config.addresses);
        let layout = match self.forward.admit(frame, port) {
            Ok(Some(layout)) => layout,
            // ARP and neighbour discovery, if it is for us
            Ok(None) if own || self.asks_for_us(frame.bytes()) => return Verdict::Punt,
            Ok(None) => return self.forward.route(frame, port, now, out),
            Err(verdict) => return verdict,
        };
        let packet = Packet::new(frame.bytes(), layout);
        match layout.opcode() {
            Opcode::UD_SEND_ONLY if packet.deth().is_some_and(|deth| deth.qkey.get() == self.config.qkey) => {
                self.on_datagram(frame, layout, port, now, out, own)
            }
            Opcode::UC_WRITE_ONLY if own => self.on_write(&packet, port, now),
            _ if own => Verdict::Punt,
            _ => self.forward.route(frame, port, now, out),
        }
    }

    fn on_timer<O: Output>(&mut self, now: Nanos, out: &mut O) {
        let ticked = self.next_tick.is_none_or(|at| at <= now);
        if ticked {
            self.tick(now);
            // Stations are forgotten after minutes: an interval more or less is nothing.
            if self.forward.next_timer().is_some_and(|at| at <= now) {
                self.forward.on_timer(now, out);
            }
        }
        self.due = None;
        self.send_beacons(ticked, now, out);
    }

    #[inline]
    fn next_timer(&self) -> Option<Nanos> {
        self.due.or(self.next_tick).or(Some(Nanos::ZERO))
    }

    fn on_command(&mut self, command: Command, now: Nanos) {
        let known = |LinkId(link): LinkId| self.links.get(usize::from(link)).map(|link| link.input);
        match command {
            Command::Clock(clock) => {
                self.epoch = Timestamp::new(clock.nanos().wrapping_sub(now.0));
                self.next_tick = self.next_tick.map(|_| self.next_instant(now));
            }
            Command::Remove(link) if known(link).is_some() => self.leave(usize::from(link.0), now),
            Command::RemoveCommit(link) => {
                if let Some((half, input)) = known(link) {
                    self.halves[half].barrier.remove_commit(input);
                    self.pass(half, now);
                }
            }
            Command::AddCommit(link) => {
                if let Some((half, input)) = known(link) {
                    self.halves[half].barrier.add_commit(input);
                }
            }
            Command::Show => self.show(),
            Command::Remove(_) => {}
        }
    }

    fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }
}

#[cfg(test)]
mod tests;
