//! Barrier processing of a switch as a switch function, in the paper's three incarnations (1Pipe, section
//! 6.2).
//!
//! A frame received on a link updates the link's register; a frame sent on a link carries the barrier of the
//! half that feeds the link. Both happen in the order in which frames arrive and leave, on one worker: the
//! proof in docs/onepipe.md requires only that each link is FIFO.

mod clocks;
mod events;
mod expected;
mod incoming;
mod outgoing;
mod standby;
mod workers;

use crate::barrier::{Gone, Inputs, Limits};
use crate::beacon::{Template, Templates};
use crate::commit::{Commit, Configuration};
use crate::config::{Config, ConfigError, LinkId, Side};
use crate::counters::{Counters, Refusal};
use crate::half::{DOWN, Half, UP};
use crate::view::{Gauges, HalfBarriers, LinkState};
use crate::workers::{SharedWords, Workers, worker_of};
use clocks::Clocks;
use events::Unreported;
use expected::Expected;
use onepipe::control::LinkValue;
use onepipe::{ClockSample, Discipline, Timestamp};
use rocev2::{Opcode, Packet, Qpn};
use standby::Standby;
use std::sync::Arc;
use switch::forward::{self, Forward};
use switch::{DropReason, Frame, Function, Nanos, Output, PortId, Verdict};

/// Command from the control plane to a representative.
#[derive(Debug)]
pub enum Command {
    /// Corrects 1Pipe's clock by a sample
    Clock(ClockSample),
    /// The link is about to be taken down: nothing follows on it.
    Remove(LinkId),
    /// Beacons may leave from the queue pairs of an incarnation. A [`Keeper`](crate::Keeper) sends this
    Introduce(Box<Templates>),
    /// A state of the commit registers takes effect, as a whole. A [`Keeper`](crate::Keeper) sends this
    Configure(Box<Configuration>),
    /// Copies the registers to the [gauges](Representative::gauges).
    PublishGauges,
    /// The bridge on another worker has seen a station
    Learn(forward::Command),
}

/// Event reported by a representative to the control plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A link was silent for too long, and was removed from the best-effort barrier.
    Dead(LinkId),
    /// A link's barrier was too far behind those of the other links, and the link was removed from the
    /// best-effort barrier.
    Evicted(LinkId),
    /// A link's neighbour, or the control plane, announced that nothing follows on the link.
    Left(LinkId),
    /// A link takes part again.
    Joined(LinkId),
    /// A state of the commit registers has taken effect; with the values at that moment, for the
    /// [`Keeper`](crate::Keeper)
    Configured(Box<Configuration>),
    /// A link that counts for the commit barrier is silent, speaks again, or has caught up (1Pipe, section 5.2,
    /// "Detect"); for the [`Keeper`](crate::Keeper)
    Commit(LinkValue),
    /// The bridge has seen a station, which those on the other workers have to learn
    Learned(forward::Event),
}

/// Marks a port without a link in [`Representative::by_port`]
const NO_LINK: u16 = u16::MAX;
/// Input of the down half that is the up half of the same switch
const LOOPBACK: usize = 0;

/// Latest of a number of 48-bit times: 0 if there was none, and otherwise the time in the upper 48 bits, so
/// that differences wrap as those of timestamps do, with the lowest bit set.
#[derive(Clone, Copy, Debug, Default)]
struct LatestTime(u64);

impl LatestTime {
    #[inline]
    const fn encode(time: Timestamp) -> u64 {
        time.nanos() << 16 | 1
    }

    #[inline]
    const fn note(&mut self, time: Timestamp) {
        let encoded = Self::encode(time);
        if self.0 == 0 || encoded.wrapping_sub(self.0).cast_signed() > 0 {
            self.0 = encoded;
        }
    }

    /// Returns whether no time was noted.
    const fn is_none(self) -> bool {
        self.0 == 0
    }

    /// Returns whether a time later than `time` was noted.
    const fn is_after(self, time: Timestamp) -> bool {
        self.0 != 0 && self.0.wrapping_sub(Self::encode(time)).cast_signed() > 0
    }
}

/// State of a link.
#[derive(Debug)]
struct LinkEnds {
    /// Tick until which it counts that the neighbour takes barriers from messages, by its last beacon
    reads_until: u64,
    /// Tick until which it counts that the neighbour writes the link's barrier into messages, by its last
    /// beacon
    writes_until: u64,
    /// Half that the link feeds, and its input there
    input: (usize, usize),
    /// Half that feeds the link
    output: usize,
    /// Barrier last sent to the neighbour, unwrapped
    sent_barrier: u64,
    /// Tick in which that barrier was sent
    sent_barrier_at: u64,
    /// Tick in which the last beacon was sent
    beaconed_at: u64,
    /// Last barrier that was too far ahead of the clock, as the neighbour sent it, with the tick
    lowered: Option<(Timestamp, u64)>,
    /// Reason why the link takes no part; `None` if it does
    absence: Option<LinkState>,
    /// Time of the neighbour's clock in the link's last beacon, plus 1 ns if that beacon announced that
    /// nothing follows. A first beacon with such an announcement counts although it was refused
    last_beacon: LatestTime,
    beacon: Template,
    /// Whether `beacon` is that of the incarnation's queue pair
    is_introduced: bool,
    /// Whether another worker receives from the link, and sends its beacons
    is_foreign: bool,
}

/// 1Pipe's barrier processing at a switch, as a switch function: a bridge or router that updates and stamps
/// barriers.
pub struct Representative {
    config: Config,
    forward: Forward,
    halves: [Half; 2],
    /// Commit registers; `None` without a controller
    commit: Option<Box<Commit>>,
    /// Beacons of each link from the queue pair that it does not use: the incarnation's, or the configured one.
    /// `None` before there is an incarnation
    others: Option<Box<Templates>>,
    /// State of the commit registers that took effect last, if it was not reported yet
    configured: Option<Box<Configuration>>,
    links: Box<[LinkEnds]>,
    /// Expected beacon of each link with one end; none of a link with two
    expected: Box<[Expected]>,
    /// State of links with two ends, by link; empty if no link has two
    standbys: Box<[Option<Box<Standby>>]>,
    /// Link at each port, or [`NO_LINK`]; unused with [`Incarnation::Host`](crate::Incarnation::Host)
    by_port: Box<[u16]>,
    /// Links of the inputs of both halves
    by_input: [Box<[u16]>; 2],
    discipline: Discipline,
    /// Clock beacons; `None` if the clock follows the machine's
    clocks: Option<Box<Clocks>>,
    /// 1Pipe's time when the runner's time is 0, by the discipline
    epoch: Timestamp,
    /// Maximum that `epoch` has had, or that the links from below have shown
    epoch_max: Timestamp,
    /// [`Config::ahead_max`], as a signed distance in nanoseconds
    ahead_max: i64,
    ticks: u64,
    /// `None` before the first call
    next_tick: Option<Nanos>,
    /// Barrier of the up half, and the state of its inputs, as last copied to the down half
    up_half_copy: (u64, Inputs),
    /// Time since when a barrier has passed an instant without beacons having been sent
    due: Option<Nanos>,
    counters: Arc<Counters>,
    gauges: Arc<Gauges>,
    events: Unreported,
    /// This worker of several; `None` on the only one
    workers: Option<Box<Workers>>,
}

impl Representative {
    /// Creates a representative that has received no barriers yet.
    ///
    /// # Errors
    /// The configuration is invalid.
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        let shared = SharedWords::new(&config, 1);
        Self::on_worker(config, 0, &shared)
    }

    /// Creates the instance of a representative on one of the workers that share these words.
    ///
    /// # Errors
    /// The configuration is invalid, or not possible on several workers.
    pub fn on_worker(config: Config, worker: usize, shared: &Arc<SharedWords>) -> Result<Self, ConfigError> {
        config.check()?;
        let count = shared.workers();
        if count > 1 {
            config.check_several_workers()?;
        }
        let dead_after_ticks = u64::from(config.dead_after_intervals);
        let limits = Limits {
            dead_after_ticks,
            window_ns: config.join_window.0,
            stall_ns: config.join_window.0.max(config.ahead_max.0),
            evict_after_ticks: config.evict_after_ticks(),
        };
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
            links.push(LinkEnds {
                reads_until: 0,
                writes_until: 0,
                input,
                output,
                sent_barrier: 0,
                sent_barrier_at: 0,
                beaconed_at: 0,
                lowered: None,
                absence: None,
                last_beacon: LatestTime::default(),
                beacon,
                is_introduced: false,
                is_foreign: worker_of(link.port, count) != worker,
            });
        }
        // What comes down is at most this switch's own barrier, so it is not compared with this switch's clock.
        let clock_of_down = config.has_bug(crate::bug::Bug::EvictsEverywhere).then_some(config.clock);
        let clocks = [Some(config.clock), clock_of_down];
        let by_input = by_input.map(Into::into);
        let workers = (count > 1)
            .then(|| Workers::new(&config, worker, Arc::clone(shared), &by_input, limits, clocks).into());
        let mut halves = match &workers {
            None => [UP, DOWN].map(|half| Half::new(by_input[half].len(), limits, clocks[half])),
            Some(_) => [UP, DOWN].map(|half| Half::of_workers(half, count, limits)),
        };
        halves[DOWN].barrier.never_expire(LOOPBACK);
        for half in &mut halves {
            half.barrier.plant(config.bug);
        }
        let places = links.iter().map(|link| link.input);
        let commit = config
            .fail_after_intervals
            .map(|ticks| Box::new(Commit::new(places, (DOWN, LOOPBACK), ticks.into(), config.bug)));
        let mut function = Self {
            forward: Forward::embedded(&config.forward, count),
            halves,
            commit,
            others: None,
            configured: None,
            expected: config.links.iter().map(|link| Expected::new(link.port)).collect(),
            standbys: Standby::all(&config),
            links: links.into(),
            by_port: by_port.into(),
            by_input,
            discipline: Discipline::of(config.clock_source, config.clock),
            clocks: Clocks::new(&config),
            epoch: config.clock,
            epoch_max: config.clock,
            ahead_max: i64::try_from(config.ahead_max.0).unwrap_or(i64::MAX),
            ticks: 0,
            next_tick: None,
            up_half_copy: (0, Inputs::Live),
            due: None,
            counters: Arc::default(),
            gauges: Gauges::new(
                config.links.iter().map(|link| (link.side, worker_of(link.port, count) == worker)),
            )
            .into(),
            events: Unreported::new(config.links.len()),
            workers,
            config,
        };
        for half in [UP, DOWN] {
            function.pass_on(half);
        }
        function.loop_back();
        function.up_half_copy.1 = function.halves[UP].barrier.inputs();
        Ok(function)
    }

    /// Salts the bridge's table of stations, as [`Forward::salted`] does.
    #[must_use]
    pub fn salted(mut self, seed: u64) -> Self {
        self.forward = self.forward.salted(seed);
        self
    }

    /// Returns the counters, which stay up to date.
    pub fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.counters)
    }

    /// Returns the registers, as they were at the last [`Command::PublishGauges`].
    pub fn gauges(&self) -> Arc<Gauges> {
        Arc::clone(&self.gauges)
    }

    /// Returns the bridge's counters.
    pub fn forward_counters(&self) -> Arc<forward::Counters> {
        self.forward.counters()
    }

    /// Returns the best-effort and the commit barrier of the links to this side.
    pub fn barriers(&self, to: Side) -> (Option<Timestamp>, Option<Timestamp>) {
        let half = match to {
            Side::Above => UP,
            Side::Below => DOWN,
        };
        (self.halves[half].barrier.best_effort(), self.commit_barrier(half))
    }

    /// Returns the commit barrier of a half.
    fn commit_barrier(&self, half: usize) -> Option<Timestamp> {
        self.commit.as_ref()?.output(half)
    }

    /// Returns whether a link takes part in the best-effort barrier.
    pub fn is_live(&self, link: LinkId) -> bool {
        let Some(ends) = self.links.get(usize::from(link.0)) else { return false };
        self.registers(ends.input.0).is_live(ends.input.1)
    }

    /// Returns 1Pipe's time.
    #[inline]
    fn clock(&self, now: Nanos) -> Timestamp {
        self.epoch.add(now.0)
    }

    /// Lets 1Pipe's clock follow a sample.
    fn follow(&mut self, sample: &ClockSample, now: Nanos) {
        self.discipline.sample(sample, now);
        self.epoch = Timestamp::new(self.discipline.read(Nanos::ZERO));
        if self.epoch_max.precedes(self.epoch) {
            self.epoch_max = self.epoch;
        }
        self.next_tick = self.next_tick.map(|_| self.next_instant(now));
    }

    /// Returns the time with which barriers are compared. A clock that was set back is no reference: the
    /// neighbours' clocks, which were not, are no further ahead than this.
    #[inline]
    fn reference_clock(&self, now: Nanos) -> Timestamp {
        self.epoch_max.add(now.0)
    }

    /// Returns whether a frame is addressed to the switch itself.
    #[inline]
    fn is_own(&self, frame: &[u8]) -> bool {
        frame.first_chunk::<6>().is_some_and(|to| *to == self.config.mac.0)
            && self.forward.is_addressed_to_switch(frame, &self.config.addresses)
    }

    /// Lets the beacons of each link leave from the queue pair that its neighbour knows.
    fn introduce(&mut self, to: &Configuration) {
        let Some(others) = &mut self.others else { return };
        let ignores = self.config.has_bug(crate::bug::Bug::IntroducesToAll);
        for setting in &to.links {
            let number = usize::from(setting.link);
            let (Some(link), Some(other)) = (self.links.get_mut(number), others.0.get_mut(number)) else {
                continue;
            };
            let introduced = setting.introduced || ignores;
            if core::mem::replace(&mut link.is_introduced, introduced) != introduced {
                core::mem::swap(&mut link.beacon, &mut other.0);
                let standby = self.standbys.get_mut(number).and_then(Option::as_mut);
                if let (Some(standby), Some(other)) = (standby, &mut other.1) {
                    core::mem::swap(&mut standby.beacon, other);
                }
            }
        }
    }

    /// Copies the registers and the links' states to the gauges.
    #[cold]
    fn publish_gauges(&self) {
        let half = |number: usize| {
            let barrier = &self.halves[number].barrier;
            let loopback = if number == DOWN { barrier.input_state(LOOPBACK) } else { None };
            HalfBarriers {
                best_effort: Some(barrier.position()),
                commit: self.commit.as_ref().map(|commit| commit.position(number)),
                loopback: loopback.map(|(register, _)| register),
            }
        };
        let link = |number: usize| {
            let LinkEnds { input: (half, input), absence, .. } = self.links[number];
            let (register, carried) = self.registers(half).input_state(input).unwrap_or((0, 0));
            let state = absence.unwrap_or(if register > 0 { LinkState::Alive } else { LinkState::Waiting });
            (state, register, carried)
        };
        self.gauges.publish(half, link);
    }
}

impl Function for Representative {
    type Command = Command;
    type Event = Event;
    const HAS_SENDERS: bool = true;

    fn receiver(&self, port: PortId) -> usize {
        self.workers.as_ref().map_or(0, |workers| workers.of(port))
    }

    fn sender(&self, port: PortId) -> usize {
        self.workers.as_ref().map_or(0, |workers| {
            let sends_by_itself = self.config.has_bug(crate::bug::Bug::TwoSenders);
            if sends_by_itself { workers.own() } else { workers.of(port) }
        })
    }

    fn on_handoff(&mut self, frame: &mut impl Frame, port: PortId, _now: Nanos) {
        self.stamp_handed(frame.bytes_mut(), port);
    }

    #[inline]
    fn publish(&mut self) -> bool {
        self.workers.as_mut().is_some_and(|workers| workers.publish())
    }

    #[inline]
    fn snapshot(&mut self) {
        if let Some(workers) = &mut self.workers {
            workers.snapshot();
            if self.config.has_bug(crate::bug::Bug::AdoptBeforeDrain) {
                self.adopt_others(Nanos::ZERO);
            }
        }
    }

    #[inline]
    fn adopt(&mut self, now: Nanos) {
        if self.workers.is_some() {
            self.adopt_others(now);
        }
    }

    #[expect(clippy::inline_always, reason = "runs for every packet")]
    #[inline(always)]
    fn on_frame<O: Output>(
        &mut self,
        frame: &mut O::Frame,
        port: PortId,
        now: Nanos,
        out: &mut O,
    ) -> Verdict {
        if let Some(verdict) = self.on_expected_beacon(frame.bytes(), port, now) {
            return verdict;
        }
        let layout = match self.forward.admit(frame, port, now) {
            Ok(Some(layout)) => layout,
            // ARP and neighbour discovery, if addressed to this switch
            Ok(None) if self.is_own(frame.bytes()) || self.requests_own_address(frame.bytes()) => {
                return Verdict::Punt;
            }
            Ok(None) => return self.forward.route(frame, port, now, out),
            Err(verdict) => return verdict,
        };
        let packet = Packet::new(frame.bytes(), layout);
        match layout.opcode() {
            Opcode::UD_SEND_ONLY if packet.deth().is_some_and(|deth| deth.qkey.get() == self.config.qkey) => {
                self.on_datagram(frame, layout, port, now, out)
            }
            opcode if self.is_own(frame.bytes()) => match opcode {
                Opcode::UC_WRITE_ONLY => self.on_write(&packet, port, now),
                _ => Verdict::Punt,
            },
            Opcode::UC_WRITE_ONLY if self.is_forged(&packet) => {
                self.refuse(Refusal::WrongSource, DropReason::WrongSource)
            }
            _ => self.forward.route(frame, port, now, out),
        }
    }

    fn on_timer<O: Output>(&mut self, now: Nanos, out: &mut O) {
        let ticked = self.next_tick.is_none_or(|at| at <= now);
        if ticked {
            self.tick(now);
            // Stations age out after minutes, so an interval more or less does not matter.
            if self.forward.next_timer().is_some_and(|at| at <= now) {
                self.forward.on_timer(now, out);
            }
        }
        self.due = None;
        self.send_beacons(ticked, now, out);
        if ticked && self.clocks.is_some() {
            self.exchange_clocks(now, out);
        }
    }

    #[inline]
    fn next_timer(&self) -> Option<Nanos> {
        self.due.or(self.next_tick).or(Some(Nanos::ZERO))
    }

    fn on_command(&mut self, command: Command, now: Nanos) {
        let input_of = |LinkId(link): LinkId| self.links.get(usize::from(link)).map(|link| link.input);
        match command {
            Command::Clock(sample) => self.on_machine_clock(&sample, now),
            Command::Remove(link) if input_of(link).is_some() => {
                self.leave(usize::from(link.0), Gone::Left, now);
            }
            Command::Introduce(templates) => self.others = Some(templates),
            Command::Configure(mut to) => {
                self.introduce(&to);
                if let Some(commit) = &mut self.commit {
                    commit.configure(&mut to);
                    self.configured = Some(to);
                }
            }
            Command::PublishGauges => self.publish_gauges(),
            Command::Learn(station) => self.forward.on_command(station, now),
            Command::Remove(_) => {}
        }
    }

    fn poll_event(&mut self) -> Option<Event> {
        // The changes that follow are later than the state.
        if let Some(configured) = self.configured.take() {
            return Some(Event::Configured(configured));
        }
        let change = self.commit.as_mut().and_then(|commit| commit.poll_change());
        let change = change.map(Event::Commit).or_else(|| self.events.pop());
        change.or_else(|| self.forward.poll_event().map(Event::Learned))
    }
}

#[cfg(test)]
mod tests;
