//! A switch's barriers as a switch function, in the paper's three incarnations (1Pipe, section 6.2).
//!
//! What comes in on a link updates the link's register; what goes out on a link carries the barrier of the half that feeds it.
//! Both happen in the order in which frames come and go, on one worker: that a link keeps its order is the whole proof.

mod incoming;
mod outgoing;

use crate::barrier::Limits;
use crate::beacon::Template;
use crate::config::{Config, ConfigError, Side};
use crate::counters::{Counters, Refusal};
use crate::half::{DOWN, Half, UP};
use crate::view::{Gauges, HalfShown, LinkState};
use incoming::{Expected, NO_LINK};
use rocev2::onepipe::Timestamp;
use rocev2::{Opcode, Packet, Qpn};
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
/// The input of the way down that is the way up of the same switch
const LOOPBACK: usize = 0;

/// The latest of some times: 0 if there was none, and else in the upper bits, so that differences wrap as they do, and with the
/// lowest bit set.
#[derive(Clone, Copy, Debug, Default)]
struct Latest(u64);

impl Latest {
    #[inline]
    const fn place(time: Timestamp) -> u64 {
        time.nanos() << 16 | 1
    }

    #[inline]
    const fn note(&mut self, time: Timestamp) {
        let place = Self::place(time);
        if self.0 == 0 || place.wrapping_sub(self.0).cast_signed() > 0 {
            self.0 = place;
        }
    }

    /// Whether one was later than this.
    const fn is_after(self, time: Timestamp) -> bool {
        self.0 != 0 && self.0.wrapping_sub(Self::place(time)).cast_signed() > 0
    }
}

/// What is known of a link.
#[derive(Debug)]
struct LinkEnds {
    /// Whether messages carry barriers on it, in both directions
    barriers_in_messages: bool,
    /// The half that it feeds, and which of its inputs it is
    input: (usize, usize),
    /// The half that it is fed by
    output: usize,
    /// The barrier that its neighbour was last told, on the half's line
    told: u64,
    /// The tick in which that was
    told_at: u64,
    /// The tick in which the last beacon was sent
    beaconed_at: u64,
    /// Why it takes no part, if it does not
    gone: Option<LinkState>,
    /// What its neighbour's clock showed when it sent the last beacon, and a nanosecond more if that was to say that nothing
    /// follows
    said_at: Latest,
    beacon: Template,
}

/// The function.
pub struct Representative {
    config: Config,
    forward: Forward,
    halves: [Half; 2],
    links: Box<[LinkEnds]>,
    /// What beacons look like that come on a link
    expected: Box<[Expected]>,
    /// The link at each port, or [`NO_LINK`]; not for [`Incarnation::Host`]
    by_port: Box<[u16]>,
    /// The links of the inputs of either half
    by_input: [Box<[u16]>; 2],
    /// 1Pipe's time when the runner's is 0
    epoch: Timestamp,
    /// The latest that this has been
    epoch_max: Timestamp,
    /// [`Config::ahead_max`], as distances are
    ahead_max: i64,
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
            links.push(LinkEnds {
                barriers_in_messages: link.barriers_in_messages,
                input,
                output,
                told: 0,
                told_at: 0,
                beaconed_at: 0,
                gone: None,
                said_at: Latest::default(),
                beacon,
            });
        }
        let mut halves = [Half::new(by_input[UP].len(), limits), Half::new(by_input[DOWN].len(), limits)];
        halves[DOWN].barrier.keep(LOOPBACK);
        #[cfg(debug_assertions)]
        for half in &mut halves {
            half.barrier.plant(config.bug);
        }
        let mut function = Self {
            forward: Forward::alone(&config.forward),
            halves,
            expected: config.links.iter().map(|link| Expected::new(link.port)).collect(),
            links: links.into(),
            by_port: by_port.into(),
            by_input: by_input.map(Into::into),
            epoch: config.clock,
            epoch_max: config.clock,
            ahead_max: i64::try_from(config.ahead_max.0).unwrap_or(i64::MAX),
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

    /// Salts the bridge's table of stations, as [`Forward::salted`] does.
    #[must_use]
    pub fn salted(mut self, seed: u64) -> Self {
        self.forward = self.forward.salted(seed);
        self
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

    /// Whether a frame is for the switch itself.
    #[inline]
    fn is_own(&self, frame: &[u8]) -> bool {
        frame.first_chunk::<6>().is_some_and(|to| *to == self.config.mac.0)
            && self.forward.ends_here(frame, &self.config.addresses)
    }

    fn tell(&mut self, event: Event) {
        if self.events.len() < EVENTS {
            self.events.push_back(event);
        } else {
            self.counters.events_lost.add(1);
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
            let LinkEnds { input: (half, input), gone, .. } = self.links[number];
            let (register, said) = self.halves[half].barrier.standing(input).unwrap_or((0, 0));
            let state = gone.unwrap_or(if register > 0 { LinkState::Alive } else { LinkState::Waiting });
            (state, register, said)
        };
        self.gauges.show(half, link);
    }
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
        if let Some(verdict) = self.on_expected_beacon(frame.bytes(), port, now) {
            return verdict;
        }
        let layout = match self.forward.admit(frame, port) {
            Ok(Some(layout)) => layout,
            // ARP and neighbour discovery, if it is for us
            Ok(None) if self.is_own(frame.bytes()) || self.asks_for_us(frame.bytes()) => {
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
                if self.epoch_max.precedes(self.epoch) {
                    self.epoch_max = self.epoch;
                }
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
