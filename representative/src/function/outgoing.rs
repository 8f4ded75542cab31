//! Sent beacons: barriers that have passed an instant.

use super::{LOOPBACK, LinkEnds, Representative};
use crate::barrier::{Gone, Inputs};
use crate::commit::Commit;
use crate::config::{Incarnation, Pace};
use crate::half::{DOWN, UP};
use crate::view::LinkState;
use onepipe::beacon::BeaconHeader;
use onepipe::{OnePipe, OnePipeOpcode};
use rocev2::Psn;
use switch::{Nanos, Output};

/// Divisor of the time after which a link is dead. A link with messages gets a beacon in the interval after
/// this fraction of that time, which is within half of it.
const BESIDE_MESSAGES: u32 = 4;

impl Representative {
    /// Propagates a half's barrier after it may have changed.
    #[inline]
    pub(super) fn propagate(&mut self, half: usize, now: Nanos) {
        if half == UP {
            let up = &self.halves[UP].barrier;
            let now_up = (up.position(), up.inputs());
            // Most updates change no output.
            if self.up_half_copy != now_up {
                self.up_half_copy = now_up;
                self.loop_back();
            }
        }
        for half in &mut self.halves[half..] {
            if half.pass_instant(self.config.beacon_interval.0) {
                self.due.get_or_insert(now);
            }
        }
    }

    /// Passes the up half's barrier on to the down half, because messages may turn round at this switch.
    #[inline]
    pub(super) fn loop_back(&mut self) {
        let [up, down] = &mut self.halves;
        match up.barrier.inputs() {
            Inputs::Live => {
                down.barrier.update(LOOPBACK, up.barrier.best_effort());
            }
            Inputs::Left => {
                down.barrier.leave(LOOPBACK);
            }
            Inputs::Lost => {
                down.barrier.lose(LOOPBACK);
            }
        }
    }

    /// Returns the next instant after `now`.
    pub(super) fn next_instant(&self, now: Nanos) -> Nanos {
        let clock = self.clock(now).nanos();
        let interval = self.config.beacon_interval.0;
        let rest = interval - clock % interval;
        now + Nanos(rest.min((1 << 48) - clock))
    }

    pub(super) fn tick(&mut self, now: Nanos) {
        if let Some(due) = self.next_tick {
            let late = now.since(due).0;
            self.counters.late_by(late);
            self.counters.ticks_missed.add(late / self.config.beacon_interval.0);
        }
        self.counters.ticks.add(1);
        self.ticks += 1;
        self.next_tick = Some(self.next_instant(now));
        let floor = self.halves[DOWN].barrier.best_effort();
        self.registers_mut(UP).set_floor(floor);
        if self.workers.is_some() {
            self.tick_workers(now);
        }
        for half in [UP, DOWN] {
            let clock = self.reference_clock(now);
            self.registers_mut(half).tick(clock);
            while let Some((input, why)) = self.registers_mut(half).expire() {
                self.removed(half, input, why);
            }
            self.pass_on(half);
            self.propagate(half, now);
        }
        if !self.standbys.is_empty() {
            self.check_doubts();
        }
        let clock = self.reference_clock(now);
        if let Some(commit) = &mut self.commit {
            commit.tick(clock);
        }
        // What comes from below has been behind what comes from above for too long.
        if self.halves[DOWN].barrier.lags(LOOPBACK) && self.holds_upper_half() {
            self.registers_mut(UP).evict_holder();
        }
    }

    /// Reports a link that was removed.
    #[cold]
    fn removed(&mut self, half: usize, input: usize, why: Gone) {
        let link = self.by_input[half][input];
        let (counter, state) = match why {
            Gone::Evicted => (&self.counters.evicted, LinkState::Evicted),
            Gone::Silent | Gone::Left => (&self.counters.dead, LinkState::Dead),
        };
        counter.add(1);
        self.links[usize::from(link)].absence = Some(state);
        self.events.report_gone(link, state);
    }

    #[inline]
    pub(super) fn send_beacons<O: Output>(&mut self, ticked: bool, now: Nanos, out: &mut O) {
        let announcements = [UP, DOWN].map(|half| self.announcement(half, ticked, now));
        let mut sent = 0;
        if !self.standbys.is_empty() {
            sent += self.send_to_standbys(&announcements, out);
        }
        let muting = self.commit.as_deref().filter(|commit| commit.mutes_any());
        for (number, link) in self.links.iter_mut().enumerate() {
            let announcement = &announcements[link.output];
            if !announcement.is_due_for(link) || link.is_foreign {
                continue;
            }
            if link.beacon.send(announcement.contents_for(number, 0, muting), out).is_err() {
                self.counters.unsent.add(1);
                continue;
            }
            (link.sent_barrier, link.beaconed_at) = (announcement.position, self.ticks);
            // With beacons at instants, `sent_barrier_at` counts messages of the interval alone, so a beacon
            // does not update it.
            link.sent_barrier_at =
                if self.config.pace == Pace::Passing { self.ticks } else { link.sent_barrier_at };
            sent += 1;
        }
        self.counters.beacons.add(sent);
    }

    /// Returns the barriers to send to the links that a half feeds, and the conditions under which a link
    /// gets a beacon.
    fn announcement(&self, number: usize, ticked: bool, now: Nanos) -> Announcement {
        let half = &self.halves[number];
        let barrier = &half.barrier;
        let (position, inputs) = (barrier.position(), barrier.inputs());
        let mut header = OnePipe::new(OnePipeOpcode::BEACON, self.clock(now), Psn::ZERO);
        header.set_nothing_follows(inputs == Inputs::Left);
        header.set_barrier(if inputs == Inputs::Live { barrier.best_effort() } else { None });
        if self.config.declares {
            let is_chip = self.config.incarnation == Incarnation::Chip;
            header.declare(is_chip, is_chip);
            header.set_removed(self.has_removed(number));
        }
        let mut without_commit = None;
        if let Some(commit) = &self.commit {
            without_commit = commit.mutes_any().then(|| BeaconHeader::new(&header));
            header.set_commit(commit.output(number));
        }
        // A half that has lost its inputs is silent: what follows on its links is unknown, so their neighbours
        // have to find them dead.
        let every_link = (ticked && inputs != Inputs::Lost).then_some(u64::MAX);
        let (below, sent_until, except_sent_at) = if position == 0 || inputs != Inputs::Live {
            // Beacons announce explicitly that there is no barrier yet, or that nothing follows, so that
            // neighbours need not time out.
            (0, every_link, None)
        } else {
            match (self.config.pace, self.config.incarnation) {
                // A message in the interval that has just ended has carried the barrier already.
                (Pace::Instants, Incarnation::Chip) => (0, every_link, self.ticks.checked_sub(1)),
                (Pace::Instants, Incarnation::SwitchCpu | Incarnation::Host) => (0, every_link, None),
                (Pace::Passing, _) => (half.passed, every_link.and(self.ticks.checked_sub(2)), None),
            }
        };
        // The neighbour may have refused the barriers in messages: those of a damaged message, or of an
        // unknown sender.
        let beacon_ticks = u64::from(self.config.dead_after_intervals / BESIDE_MESSAGES);
        let beaconed_before = every_link.and(self.ticks.checked_sub(beacon_ticks));
        Announcement {
            contents: BeaconHeader::new(&header),
            without_commit,
            position,
            below,
            sent_until,
            except_sent_at,
            beaconed_before,
        }
    }
}

/// Barriers to send, and the conditions under which a link gets a beacon.
pub(super) struct Announcement {
    contents: BeaconHeader,
    /// Contents for muted links, if there are any
    without_commit: Option<BeaconHeader>,
    /// Best-effort barrier, unwrapped
    position: u64,
    /// Links whose neighbour was last sent a barrier below this get a beacon
    below: u64,
    /// Links whose neighbour was last sent a barrier in this tick or earlier get a beacon
    sent_until: Option<u64>,
    /// Exception to `sent_until`: links whose neighbour was last sent a barrier in this tick
    except_sent_at: Option<u64>,
    /// Links whose last beacon was sent before this tick get a beacon, whatever barriers messages have
    /// carried since
    beaconed_before: Option<u64>,
}

impl Announcement {
    /// Returns what a beacon to an end of a link contains. The registers are those that mute links, if there are any.
    #[inline]
    pub(super) fn contents_for(&self, link: usize, end: usize, muting: Option<&Commit>) -> &BeaconHeader {
        match (&self.without_commit, muting) {
            (Some(contents), Some(commit)) if commit.is_muted(link, end) => contents,
            _ => &self.contents,
        }
    }

    #[inline]
    pub(super) fn is_due_for(&self, link: &LinkEnds) -> bool {
        let long_ago = self.sent_until.is_some_and(|tick| link.sent_barrier_at <= tick)
            && Some(link.sent_barrier_at) != self.except_sent_at;
        let only_messages = self.beaconed_before.is_some_and(|tick| link.beaconed_at < tick);
        link.sent_barrier < self.below || long_ago || only_messages
    }
}
