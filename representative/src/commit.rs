//! Commit registers of a switch's links (1Pipe, sections 5.1 and 5.2), as the controller wants them.
//!
//! Only links that the controller *counts* hold the commit barrier of the half that they feed. A link takes
//! commit barriers only from beacons of the *sources* that the controller names, so nothing of an earlier
//! incarnation of its neighbour reaches the register. A register starts to count when it has *caught up* with
//! a floor: until then the output stands still. So the output never goes back, also in a new incarnation of
//! this switch, whose floor is at or above everything that earlier incarnations have sent.
//!
//! A state takes effect as a whole ([`Commit::configure`]): no output rises in between, and no frame is
//! handled. The answer has the values of that moment.

use crate::bug::Bug;
use crate::half::{DOWN, UP};
use crate::plane::{ABSENT, AWAITED, Plane};
use onepipe::Timestamp;
use onepipe::control::{LOOPBACK, LinkValue};
use rocev2::Qpn;
use std::collections::VecDeque;

/// Unwrapped time where the first timestamp is placed
const ORIGIN: u64 = 1 << 48;
/// Largest age in nanoseconds of a time that is reported; 48 bits reach back for 39 hours
const AGE_MAX: u64 = 1 << 46;

/// Number of ticks in which all links are checked for silence
const CHECKED_WITHIN: usize = 4;

/// State of the commit registers that the controller wants. The answer is the same object, with the values at
/// the moment at which the state took effect; so the worker allocates nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Configuration {
    pub(crate) version: u64,
    /// Floors of the upper and of the lower half
    pub(crate) floors: [Option<Timestamp>; 2],
    pub(crate) links: Vec<Setting>,
    /// Outputs of the upper and of the lower half
    pub(crate) outputs: [Option<Timestamp>; 2],
    /// Values of the links, with room for all of them
    pub(crate) values: Vec<LinkValue>,
}

/// Setting of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "each is a state of its own")]
pub(crate) struct Setting {
    /// Number of the link, or [`LOOPBACK`]
    pub(crate) link: u16,
    pub(crate) counted: bool,
    pub(crate) frozen: bool,
    /// By end of the link: whether beacons to it carry no commit barrier
    pub(crate) muted: [bool; 2],
    /// Whether beacons leave from the queue pair of this incarnation
    pub(crate) introduced: bool,
    /// Ends of the link, with their queue pairs, from which commit barriers are taken
    pub(crate) sources: Vec<(u8, Qpn)>,
}

/// Node from which commit barriers are taken.
#[derive(Debug)]
struct Named {
    /// Its end of the link
    end: u8,
    qpn: Qpn,
    /// Tick of its last beacon, or of the moment since when it is listened to
    heard_at: u64,
    /// Whether it is not heard
    quiet: bool,
}

/// Register of a link.
#[derive(Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is a state of its own")]
struct Input {
    /// Half that the link feeds, and its place there
    place: (usize, usize),
    counted: bool,
    frozen: bool,
    /// By end
    muted: [bool; 2],
    /// Whether the register has reached the floor, if the link counts
    caught: bool,
    /// Whether a change of `caught` or of what is heard was not reported yet
    changed: bool,
    /// Unwrapped
    floor: u64,
    /// Latest commit barrier, unwrapped; 0 if there was none
    register: u64,
    /// A link that does not count has to be heard first.
    sources: Vec<Named>,
}

impl Input {
    /// Returns whether none of the sources is heard.
    fn is_silent(&self) -> bool {
        !self.sources.is_empty() && self.sources.iter().all(|source| source.quiet)
    }

    /// Sets the sources. Those that were there are listened to for as long as before, unless the link begins to count;
    /// new ones of a link that counts and is not silent count as heard at first. Two sources need no allocation.
    fn listen(&mut self, to: &[(u8, Qpn)], begins: bool, tick: u64) {
        let is_quiet = !self.counted || self.is_silent() && !begins;
        let is = |named: &Named, &(end, qpn): &(u8, Qpn)| (named.end, named.qpn) == (end, qpn);
        self.sources.retain(|named| !begins && to.iter().any(|source| is(named, source)));
        for source in to {
            if !self.sources.iter().any(|named| is(named, source)) {
                self.sources.push(Named { end: source.0, qpn: source.1, heard_at: tick, quiet: is_quiet });
            }
        }
    }
}

/// Result of a beacon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The beacon is from one of the link's sources, or the link does not count
    Known,
    /// The link counts, and the beacon is from none of its sources
    Unknown,
}

/// Commit registers of all links, and the two outputs.
#[derive(Debug)]
pub(crate) struct Commit {
    halves: [Plane; 2],
    /// By link; the last one is the path from the upper to the lower half
    inputs: Box<[Input]>,
    /// Inputs with changes, each once
    changed: VecDeque<u16>,
    /// Number of outputs without a commit barrier at an end
    muted: usize,
    /// Latest timestamp, unwrapped; 0 if there was none
    latest: u64,
    ticks: u64,
    fail_after_ticks: u64,
    /// Link to be checked next for silence
    next: usize,
    bug: Option<Bug>,
}

impl Commit {
    /// Creates the registers of links, none of which counts. `places` are the halves that they feed with their
    /// inputs there, and `loopback` that of the path between the halves. A link that was silent for more than
    /// `fail_after_ticks` is reported.
    pub(crate) fn new(
        places: impl Iterator<Item = (usize, usize)>,
        loopback: (usize, usize),
        fail_after_ticks: u64,
        bug: Option<Bug>,
    ) -> Self {
        let input = |place| Input {
            place,
            counted: false,
            frozen: false,
            muted: [false; 2],
            caught: false,
            changed: false,
            floor: 0,
            register: 0,
            sources: Vec::with_capacity(2),
        };
        let inputs: Box<[Input]> = places.chain([loopback]).map(input).collect();
        let of_half = |half: usize| inputs.iter().filter(|input| input.place.0 == half).count();
        Self {
            halves: [UP, DOWN].map(|half| Plane::empty(of_half(half))),
            changed: VecDeque::with_capacity(inputs.len()),
            inputs,
            muted: 0,
            latest: 0,
            ticks: 0,
            fail_after_ticks,
            next: 0,
            bug,
        }
    }

    fn has_bug(&self, bug: Bug) -> bool {
        cfg!(debug_assertions) && self.bug == Some(bug)
    }

    /// Returns the commit barrier of a half: all timestamps up to it are committed.
    #[inline]
    pub(crate) fn output(&self, half: usize) -> Option<Timestamp> {
        self.halves[half].output_timestamp()
    }

    /// Returns the commit barrier of a half, unwrapped; 0 if there is none.
    pub(crate) fn position(&self, half: usize) -> u64 {
        self.halves[half].output
    }

    /// Returns the latest time that processes' clocks must have passed for the outputs to rise: that of an output, or of
    /// a floor that a register has to reach.
    pub(crate) fn least(&self) -> Option<Timestamp> {
        let floors = self.inputs.iter().filter(|input| input.counted).map(|input| input.floor);
        let outputs = self.halves.iter().map(|half| half.output);
        self.timestamp(floors.chain(outputs).max().unwrap_or_default())
    }

    /// Returns whether beacons on any output carry no commit barrier.
    #[inline]
    pub(crate) fn mutes_any(&self) -> bool {
        self.muted > 0
    }

    /// Returns whether beacons to an end of a link carry no commit barrier.
    pub(crate) fn is_muted(&self, link: usize, end: usize) -> bool {
        self.inputs[link].muted[end] && !self.has_bug(Bug::MutedSpeaks)
    }

    /// Unwraps a timestamp, next to the latest one.
    fn unwrap(&self, timestamp: Timestamp) -> u64 {
        if self.latest == 0 {
            return ORIGIN + timestamp.nanos();
        }
        self.latest.wrapping_add_signed(timestamp.distance(Timestamp::new(self.latest)))
    }

    /// Unwraps a timestamp that has been reached.
    fn reach(&mut self, timestamp: Timestamp) -> u64 {
        let time = self.unwrap(timestamp);
        self.latest = self.latest.max(time);
        time
    }

    /// Takes a beacon of a link's neighbour, with the end of the link and the queue pair of its sender, if it
    /// names one.
    pub(crate) fn on_beacon(
        &mut self,
        link: usize,
        source: Option<(u8, Qpn)>,
        commit: Option<Timestamp>,
    ) -> Source {
        let any_source = self.has_bug(Bug::AnyCommitSource);
        let any_end = self.has_bug(Bug::OtherEnd);
        let input = &mut self.inputs[link];
        let counted = input.counted;
        let named = source.and_then(|(end, qpn)| {
            let is_named = |of: &&mut Named| of.qpn == qpn && (of.end == end || any_end);
            input.sources.iter_mut().find(is_named)
        });
        if let Some(named) = named {
            named.heard_at = self.ticks;
            if core::mem::take(&mut named.quiet) {
                self.report(link);
            }
        } else if !any_source {
            return if counted { Source::Unknown } else { Source::Known };
        }
        if let Some(commit) = commit.filter(|_| counted) {
            let time = self.reach(commit);
            self.raise(link, time);
        }
        Source::Known
    }

    /// Raises a register that counts and is not frozen.
    fn raise(&mut self, link: usize, time: u64) {
        let rises_frozen = self.has_bug(Bug::FrozenRises);
        let input = &mut self.inputs[link];
        if !input.counted || input.frozen && !rises_frozen {
            return;
        }
        input.register = input.register.max(time);
        let catches_up = !input.caught && input.register >= input.floor;
        if catches_up {
            input.caught = true;
            self.report(link);
        }
        let Input { place: (half, place), caught: true, register, .. } = self.inputs[link] else { return };
        self.halves[half].raise(place, register);
        if half == UP {
            self.loop_back();
        }
    }

    /// Passes the upper half's output on to the lower half, because messages may turn round at this switch.
    fn loop_back(&mut self) {
        let (output, loopback) = (self.halves[UP].output, self.inputs.len() - 1);
        if output > self.inputs[loopback].register {
            self.raise(loopback, output);
        }
    }

    /// Lets a state take effect, and writes the values of this moment into it. Links that do not exist are
    /// left out.
    #[cold]
    pub(crate) fn configure(&mut self, to: &mut Configuration) {
        let floors = to.floors.map(|floor| floor.map_or(0, |floor| self.reach(floor)));
        for setting in &mut to.links {
            if let Some(link) = self.index(setting.link) {
                self.set(link, setting, &floors);
            }
        }
        self.muted = self.inputs.iter().filter(|input| input.muted != [false; 2]).count();
        self.halves.iter_mut().for_each(Plane::follow);
        self.loop_back();
        to.outputs = [UP, DOWN].map(|half| self.timestamp(self.halves[half].output));
        let links = to.links.iter().filter_map(|setting| self.index(setting.link));
        to.values.extend(links.map(|link| self.value(link)));
    }

    /// Changes a link without raising an output.
    fn set(&mut self, link: usize, setting: &mut Setting, floors: &[u64; 2]) {
        let ignores_floor = self.has_bug(Bug::FloorIgnored);
        let input = &mut self.inputs[link];
        let (half, place) = input.place;
        let begins = setting.counted && !input.counted;
        if begins {
            input.floor = floors[half].max(self.halves[half].output);
            input.caught = input.register >= input.floor || ignores_floor;
        }
        (input.counted, input.frozen, input.muted) = (setting.counted, setting.frozen, setting.muted);
        input.listen(&setting.sources, begins, self.ticks);
        let register = match input {
            Input { counted: false, .. } => ABSENT,
            Input { caught: false, .. } => AWAITED,
            Input { register, .. } => *register,
        };
        self.halves[half].set_register(place, register);
    }

    /// Counts a beacon interval, at whose end 1Pipe's clock shows `clock`, and checks some links for silence.
    /// Intervals are those for which this node was running.
    pub(crate) fn tick(&mut self, clock: Timestamp) {
        self.ticks += 1;
        if self.latest != 0 {
            self.reach(clock);
        }
        let links = self.inputs.len() - 1;
        for _ in 0..links.div_ceil(CHECKED_WITHIN) {
            let link = self.next;
            self.next = if link + 1 < links { link + 1 } else { 0 };
            let mut falls_silent = false;
            for source in &mut self.inputs[link].sources {
                let is_late = self.ticks - source.heard_at > self.fail_after_ticks;
                falls_silent |= is_late && !core::mem::replace(&mut source.quiet, true);
            }
            if falls_silent {
                self.report(link);
            }
        }
    }

    #[cold]
    fn report(&mut self, link: usize) {
        if !core::mem::replace(&mut self.inputs[link].changed, true) {
            self.changed.push_back(link as u16);
        }
    }

    /// Returns a link whose state has changed since it was last returned, with its present state.
    pub(crate) fn poll_change(&mut self) -> Option<LinkValue> {
        let link = usize::from(self.changed.pop_front()?);
        self.inputs[link].changed = false;
        Some(self.value(link))
    }

    fn index(&self, number: u16) -> Option<usize> {
        let (link, loopback) = (usize::from(number), self.inputs.len() - 1);
        if number == LOOPBACK { Some(loopback) } else { (link < loopback).then_some(link) }
    }

    /// Returns the timestamp of a time, unless there is none or it is so old that its 48 bits are near to being
    /// those of a time of the future.
    fn timestamp(&self, time: u64) -> Option<Timestamp> {
        (time != 0 && time.saturating_add(AGE_MAX) > self.latest).then(|| Timestamp::new(time))
    }

    fn value(&self, link: usize) -> LinkValue {
        let input = &self.inputs[link];
        LinkValue {
            link: if link + 1 == self.inputs.len() { LOOPBACK } else { link as u16 },
            caught: input.counted && input.caught,
            silent: input.is_silent(),
            quiet: input
                .sources
                .iter()
                .filter(|source| source.quiet)
                .fold(0, |ends, source| ends | 1 << source.end),
            raw: self.timestamp(input.register),
        }
    }
}

#[cfg(test)]
mod tests;
