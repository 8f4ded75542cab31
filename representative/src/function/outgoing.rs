//! Sent beacons: barriers that have passed an instant.

use super::{Event, LOOPBACK, LinkEnds, LinkId, Representative};
use crate::config::{Incarnation, Pace};
use crate::half::{DOWN, Half, UP};
use crate::view::LinkState;
use rocev2::Psn;
use rocev2::beacon::Said;
use rocev2::onepipe::{OnePipe, OnePipeOpcode};
use switch::{Nanos, Output};

/// Divisor of the time after which a link is dead. A link with messages gets a beacon in the interval after
/// this fraction of that time, which is within half of it.
const BESIDE_MESSAGES: u32 = 4;

impl Representative {
    /// Propagates a half's barrier after it may have changed.
    #[inline]
    pub(super) fn pass(&mut self, half: usize, now: Nanos) {
        if half == UP {
            let up = &self.halves[UP].barrier;
            let now_up = (up.position(), up.commit_position(), up.live() > 0);
            // Most updates change no output.
            if self.looped_back != now_up {
                self.looped_back = now_up;
                self.loop_back();
            }
        }
        for half in &mut self.halves[half..] {
            if half.pass(self.config.beacon_interval.0) {
                self.due.get_or_insert(now);
            }
        }
    }

    /// Passes the up half's barriers on to the down half, because messages may turn round at this switch.
    #[inline]
    pub(super) fn loop_back(&mut self) {
        let [up, down] = &mut self.halves;
        if up.barrier.live() > 0 {
            down.barrier.update(LOOPBACK, up.barrier.best_effort(), up.barrier.commit());
        } else {
            down.barrier.remove(LOOPBACK);
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
        for half in [UP, DOWN] {
            self.halves[half].barrier.tick(self.clock(now));
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

    #[inline]
    pub(super) fn send_beacons<O: Output>(&mut self, ticked: bool, now: Nanos, out: &mut O) {
        let news = [UP, DOWN].map(|half| self.news(&self.halves[half], ticked, now));
        let mut sent = 0;
        for link in &mut self.links {
            let news = &news[link.output];
            if !news.wanted_by(link) {
                continue;
            }
            if link.beacon.send(&news.said, out).is_err() {
                self.counters.unsent.add(1);
                continue;
            }
            (link.told, link.beaconed_at) = (news.position, self.ticks);
            // With beacons at instants, `told_at` counts messages of the interval alone, so a beacon does not
            // update it.
            link.told_at = if self.config.pace == Pace::Passing { self.ticks } else { link.told_at };
            sent += 1;
        }
        self.counters.beacons.add(sent);
    }

    /// Returns the barriers to send to the links that a half feeds, and the conditions under which a link
    /// gets a beacon.
    fn news(&self, half: &Half, ticked: bool, now: Nanos) -> News {
        let barrier = &half.barrier;
        let (position, live) = (barrier.position(), barrier.live() > 0);
        let mut header = OnePipe::new(OnePipeOpcode::BEACON, self.clock(now), Psn::ZERO);
        header.set_nothing_follows(!live);
        header.set_barrier(if live { barrier.best_effort() } else { None });
        header.set_commit(barrier.commit());
        let all = ticked.then_some(u64::MAX);
        let (told_before, told_in, but_in) = if position == 0 || !live {
            // Beacons announce explicitly that there is no barrier yet, or that nothing follows, so that
            // neighbours need not time out.
            (0, all, None)
        } else {
            match (self.config.pace, self.config.incarnation) {
                // A message in the interval that has just ended has carried the barrier already.
                (Pace::Instants, Incarnation::Chip) => (0, all, self.ticks.checked_sub(1)),
                (Pace::Instants, Incarnation::SwitchCpu | Incarnation::Host) => (0, all, None),
                (Pace::Passing, _) => (half.passed, all.and(self.ticks.checked_sub(2)), None),
            }
        };
        // The neighbour may have refused the barriers in messages: those of a damaged one, or of a sender it
        // does not know.
        let beside = u64::from(self.config.dead_after_intervals / BESIDE_MESSAGES);
        let beaconed_in = all.and(self.ticks.checked_sub(beside));
        News { said: Said::new(&header), position, told_before, told_in, but_in, beaconed_in }
    }
}

/// Barriers to send, and the conditions under which a link gets a beacon.
struct News {
    said: Said,
    /// Best-effort barrier, unwrapped
    position: u64,
    /// Links whose neighbour was last sent a barrier below this get a beacon
    told_before: u64,
    /// Links whose neighbour was last sent a barrier in this tick or earlier get a beacon
    told_in: Option<u64>,
    /// Exception to `told_in`: links whose neighbour was last sent a barrier in this tick
    but_in: Option<u64>,
    /// Links whose last beacon was sent before this tick get a beacon, whatever barriers messages have
    /// carried since
    beaconed_in: Option<u64>,
}

impl News {
    #[inline]
    fn wanted_by(&self, link: &LinkEnds) -> bool {
        let long_ago =
            self.told_in.is_some_and(|tick| link.told_at <= tick) && Some(link.told_at) != self.but_in;
        let only_messages = self.beaconed_in.is_some_and(|tick| link.beaconed_at < tick);
        link.told < self.told_before || long_ago || only_messages
    }
}
