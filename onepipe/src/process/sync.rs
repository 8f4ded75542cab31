//! Clock of a process that follows clock beacons ([`clock_sync`](crate::clock_sync)).

use crate::clock::{ClockSample, ClockSource, Discipline};
use crate::clock_sync::{ClockBody, INTERVALS, LEASE_TURNS, Neighbour, Refused, Times, latest};
use crate::datagram::Datagram;
use crate::header::{OnePipe, OnePipeOpcode, Timestamp};
use core::net::IpAddr;
use rocev2::Qpn;
use switch::Nanos;
use zerocopy::IntoBytes;

use super::Process;
use super::beacons::To;
use super::bug::Bug;
use super::config::{Config, ConfigError};
use super::counters::Refusal;

/// Number of turns for which a process that starts waits, from the first beacon that it hears
const WAIT_TURNS: u64 = 40;
/// Maximum time by which a process may be ahead of the group's time because its link is longer than the others
const AHEAD_MAX: i64 = 1_000_000;

/// Change of a machine's clock between two samples (ns) that is no drift: the clock was set
const STEP: i64 = 50_000;

/// What a process hears from its switch before it takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    /// Nothing is sent but clock beacons
    For(Option<Heard>),
    Over,
}

/// When beacons of either kind were heard from the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Heard {
    /// The first one since the switch was silent
    first: Nanos,
    last: Nanos,
}

/// Clock beacons of a process's link, and what it takes from them.
#[derive(Clone, Debug)]
pub(super) struct Sync {
    to: To,
    source: (IpAddr, Qpn),
    neighbour: Neighbour,
    /// The machine's clock, as it is
    machine: Discipline,
    /// Maximum time between the machine's clock and the group's
    limit: Nanos,
    /// Time of the group, as an epoch, if it was within the limit
    group: Option<Timestamp>,
    /// Time by which the process's clock was set ahead of the machine's (ns)
    correction: i64,
    /// Whether the correction is that of a time of the group
    is_corrected: bool,
    wait: Wait,
    turn: Nanos,
    next_turn: Nanos,
    turns: u64,
    is_due: bool,
    bug: Option<Bug>,
}

impl Sync {
    /// Returns the state of a process that follows clock beacons; `None` if it does not.
    pub(super) fn new(config: &Config) -> Result<Option<Box<Self>>, ConfigError> {
        if config.clock_source == ClockSource::Host {
            return Ok(None);
        }
        Ok(Some(Box::new(Self {
            to: To::new(config, &config.tor, ClockBody::LEN)?,
            source: (config.tor.address, config.tor.qpn),
            neighbour: Neighbour::new(config.beacon_interval, config.clock_bug),
            machine: Discipline::new(config.clock),
            limit: config.clock_limit,
            group: None,
            correction: 0,
            is_corrected: false,
            wait: Wait::For(None),
            turn: Nanos(config.beacon_interval.0 * INTERVALS),
            next_turn: Nanos::ZERO,
            turns: 0,
            is_due: false,
            bug: config.bug,
        })))
    }

    fn has_bug(&self, bug: Bug) -> bool {
        cfg!(debug_assertions) && self.bug == Some(bug)
    }

    /// Returns whether the process does not take part yet.
    pub(super) fn is_waiting(&self) -> bool {
        self.wait != Wait::Over
    }

    /// Returns whether clock beacons determine the clock.
    pub(super) fn is_synchronized(&self, now: Nanos) -> bool {
        self.group.is_some() && self.neighbour.is_heard(now)
    }

    /// Returns the time of the next turn, at which the wait may end as well.
    pub(super) const fn next_timer(&self) -> Nanos {
        self.next_turn
    }

    const fn longest_wait(&self) -> Nanos {
        Nanos(self.turn.0 * WAIT_TURNS)
    }

    /// Time after which a switch without a beacon is silent
    const fn silence(&self) -> Nanos {
        Nanos(self.turn.0 * LEASE_TURNS)
    }

    /// Returns the machine's clock, as an epoch.
    fn machine(&self) -> Timestamp {
        Timestamp::new(self.machine.read(Nanos::ZERO))
    }

    /// Makes a clock beacon due if its turn has come. Returns the sample with which the process's clock starts, if
    /// the wait has ended.
    pub(super) fn on_timer(&mut self, now: Nanos) -> Option<ClockSample> {
        if self.next_turn <= now {
            self.next_turn = now + self.turn;
            self.is_due = self.neighbour.is_due(self.turns, now);
            self.turns += 1;
        }
        let Wait::For(Some(Heard { first, last })) = self.wait else { return None };
        // A switch that sends other beacons, and no clock beacons, is of an earlier version. One that is silent may know
        // the group's time when it restarts.
        let is_over = now.since(first) >= self.longest_wait()
            && (now.since(last) < self.silence() || self.has_bug(Bug::StartsInSilence))
            && (self.group.is_some() || !self.neighbour.is_heard(now));
        is_over.then(|| {
            self.wait = Wait::Over;
            self.target(now).unwrap_or_else(|| ClockSample::at(self.machine().add(now.0), now))
        })
    }

    /// Accounts for a beacon of the switch before the process takes part.
    pub(super) fn on_early(&mut self, source: (IpAddr, Qpn), now: Nanos) {
        if let Wait::For(heard) = self.wait
            && source.0 == self.source.0
        {
            let heard = heard.filter(|heard| now.since(heard.last) < self.silence());
            let first = heard.map_or(now, |heard| heard.first);
            self.wait = Wait::For(Some(Heard { first, last: now }));
        }
    }

    /// Accounts for a sample of the machine's clock. Returns the sample that the process's clock is to follow, if
    /// clock beacons do not determine it.
    pub(super) fn on_machine(&mut self, sample: &ClockSample, now: Nanos) -> Option<ClockSample> {
        let before = self.machine();
        self.machine.follow(sample);
        let change = self.machine().distance(before);
        // A clock that is set while no clock beacons arrive does not move the process's away from the group's.
        if self.is_corrected && change.abs() > STEP && !self.has_bug(Bug::SetMovesClock) {
            self.correction -= change;
        }
        let follows = self.is_waiting() || self.is_synchronized(now);
        let time = self.machine().add(now.0.wrapping_add_signed(self.correction));
        (!follows).then(|| ClockSample::at(time, now))
    }

    /// Returns whether a clock beacon is from the other end of the link.
    pub(super) fn is_from(&self, source: (IpAddr, Qpn)) -> bool {
        source == self.source
    }

    /// Accounts for a clock beacon. Returns the sample that the process's clock is to follow, if it takes part and
    /// the group's time is within the limit.
    pub(super) fn on_beacon(
        &mut self,
        header: &OnePipe,
        payload: &[u8],
        now: Nanos,
    ) -> Result<Option<ClockSample>, Refused> {
        let result = self.neighbour.on_beacon(header, payload, now);
        if result == Err(Refused::Stale) {
            return Err(Refused::Stale);
        }
        self.on_early(self.source, now);
        let limit = self.limit.0.cast_signed();
        let is_near = |group: &Timestamp| group.distance(self.machine()).abs() <= limit;
        self.group = self.neighbour.group(now).filter(is_near);
        let target = self.target(now).filter(|_| !self.is_waiting());
        if let Some(target) = &target {
            self.correction = target.time.distance(self.machine().add(now.0));
            self.is_corrected = true;
        }
        result.map(|()| target)
    }

    /// Returns whether the neighbour gives a time that is beyond the limit.
    pub(super) fn is_beyond_limit(&self, now: Nanos) -> bool {
        self.group.is_none() && self.neighbour.group(now).is_some()
    }

    /// Returns the time that the process's clock is to show: that of the group, or a later one at which messages
    /// are not the last ones anywhere.
    fn target(&self, now: Nanos) -> Option<ClockSample> {
        let group = self.group?;
        let most = Timestamp::new(group.nanos().wrapping_add_signed(AHEAD_MAX));
        let later = self.neighbour.backward(now).map(|backward| backward.earlier(most));
        let epoch = latest(Some(group), later)?;
        Some(ClockSample::at(epoch.add(now.0), now))
    }

    /// Writes a clock beacon if one is due. Returns whether it has.
    pub(super) fn send(&mut self, now: Nanos, frame: &mut Vec<u8>) -> bool {
        if !core::mem::take(&mut self.is_due) {
            return false;
        }
        let times = Times { group: Some(self.machine()), forward: self.group, backward: None };
        let (header, body) = self.neighbour.beacon(&times, now);
        self.to.emit(frame, &header, body.as_bytes());
        true
    }
}

/// Returns whether a planted bug lets a clock step back.
pub(super) fn steps_back(bug: Option<Bug>) -> bool {
    cfg!(debug_assertions) && bug == Some(Bug::ClockStepsBack)
}

impl Process {
    /// Returns whether the process does not take part yet, because it waits for the time of its network
    /// ([`ClockSource::Beacons`]). Messages that are sent meanwhile are queued. [`timestamp`](Self::timestamp) fixes
    /// the clock: a process that is asked for it meanwhile cannot be set back if its machine's clock is fast.
    #[inline]
    pub fn is_waiting(&self) -> bool {
        self.sync.as_ref().is_some_and(|sync| sync.is_waiting())
    }

    /// Returns whether clock beacons determine the clock.
    pub fn is_synchronized(&self, now: Nanos) -> bool {
        self.sync.as_ref().is_some_and(|sync| sync.is_synchronized(now))
    }

    /// Handles the timer of clock beacons.
    #[cold]
    pub(super) fn on_sync_timer(&mut self, now: Nanos) {
        let Some(sync) = &mut self.sync else { return };
        if let Some(sample) = sync.on_timer(now) {
            self.clock.start(sample, now);
            self.on_clock_set(now);
        }
    }

    /// Handles a clock beacon, and everything that arrives before the process takes part. Returns `None` for all
    /// other packets.
    #[inline(never)]
    pub(super) fn receive_for_clock(
        &mut self,
        datagram: &Datagram<'_>,
        now: Nanos,
    ) -> Option<Result<(), Refusal>> {
        let &Datagram { src, src_qp, header, payload, .. } = datagram;
        let sync = self.sync.as_mut()?;
        if header.opcode() != OnePipeOpcode::CLOCK {
            if !sync.is_waiting() {
                return None;
            }
            if header.opcode() == OnePipeOpcode::BEACON {
                sync.on_early((src, src_qp), now);
            }
            return Some(Err(Refusal::Unsynchronised));
        }
        if !sync.is_from((src, src_qp)) {
            return Some(Err(Refusal::WrongSource));
        }
        let taken = sync.on_beacon(header, payload, now);
        self.counters.clock_beyond_limit.add(u64::from(sync.is_beyond_limit(now)));
        let Ok(sample) = taken else { return Some(Err(Refusal::Clock)) };
        self.counters.clock_beacons_taken.add(1);
        if let Some(sample) = sample {
            self.clock.follow(&sample, now);
            self.on_clock_set(now);
        }
        Some(Ok(()))
    }

    /// Writes a clock beacon if one is due. Returns false if the process does not take part yet, and `None` if other
    /// frames may be sent.
    #[inline(never)]
    pub(super) fn send_for_clock(&mut self, now: Nanos, frame: &mut Vec<u8>) -> Option<bool> {
        let sync = self.sync.as_mut()?;
        if sync.send(now, frame) {
            self.counters.clock_beacons_sent.add(1);
            return Some(true);
        }
        sync.is_waiting().then_some(false)
    }
}
