//! Clocks from beacons alone: what the two ends of a link exchange to measure the time between them, and to pass
//! the network's time on (1Pipe's authors propose it as "minimax" synchronisation, without a clock master).
//!
//! A *clock beacon* is a datagram with the opcode [`OnePipeOpcode::CLOCK`], for one hop, on the path of beacons. Its
//! header has the sender's run time as timestamp, and two of the [`Times`] where other packets have barriers;
//! [`ClockBody`] follows. Nodes without clock synchronisation do not know the opcode, and are not used.
//!
//! ```text
//!  0..6   run time of the sender
//!  6..12  forward time             12..18  backward time
//! 18..24  PSN, opcode, flags, version
//! 24..30  run time in the last clock beacon that the sender has received
//! 30..34  nanoseconds since then   34..36  0
//! 36..42  time of the group        42..44  0
//! ```
//!
//! All times are carried as readings at the moment of sending, and kept as *epochs*: what the clock shows when the
//! run time of the node that keeps it is 0. So a value that is kept ages by the local oscillator, and the time for
//! which a switch keeps it is no part of any delay. docs/onepipe.md has the argument.

use crate::header::{OnePipe, OnePipeOpcode, Timestamp};
use rocev2::Psn;
use switch::Nanos;
use zerocopy::byteorder::network_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Number of beacon intervals between two clock beacons on a link
pub const INTERVALS: u64 = 16;
/// Number of such turns of which one is used while the neighbour has sent no clock beacon: it may be of an earlier
/// version, in which a switch floods what it does not know
pub const TURNS_UNHEARD: u64 = 32;
/// Number of turns without a clock beacon after which a neighbour's values do not count any more
pub(crate) const LEASE_TURNS: u64 = 10;
/// Number of samples of which a value is the latest time, so that one delayed beacon does not count
const SAMPLES: usize = 4;
/// Number of round trips of which the shortest counts, and of own clock beacons whose echo is accepted
const ROUND_TRIPS: usize = 16;
/// Longest round trip of a link that is believed
const LONGEST_ROUND_TRIP: Nanos = Nanos::from_millis(10);

/// What follows the header of a clock beacon.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct ClockBody {
    echo: [u8; 6],
    held: U32,
    reserved: [u8; 2],
    group: [u8; 6],
    reserved_too: [u8; 2],
}

impl ClockBody {
    /// Length on the wire, in bytes
    pub const LEN: usize = size_of::<Self>();
}

/// Times that pass on a link, as epochs of the node that keeps them; `None` if one is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Times {
    /// Time of the group: of a process its machine's clock, of a switch the latest clock that counts
    pub group: Option<Timestamp>,
    /// Latest time at which messages of any process arrive (the minimax's `FwdFunc`): ages by the delay of the
    /// links that it passes
    pub forward: Option<Timestamp>,
    /// Latest time that a message may have which is put on the link in the other direction now, without being the
    /// last one at any receiver (`BackFunc`)
    pub backward: Option<Timestamp>,
}

/// Returns the epoch of a clock that shows `time` now.
pub const fn epoch_of(time: Timestamp, now: Nanos) -> Timestamp {
    Timestamp::new(time.nanos().wrapping_sub(now.0))
}

/// Returns the epoch that is later by `by` nanoseconds, or earlier if that is negative.
const fn shifted(epoch: Timestamp, by: i64) -> Timestamp {
    Timestamp::new(epoch.nanos().wrapping_add_signed(by))
}

/// Returns the later of two epochs, of which either may be unknown.
pub const fn latest(a: Option<Timestamp>, b: Option<Timestamp>) -> Option<Timestamp> {
    match (a, b) {
        (Some(x), Some(y)) if x.precedes(y) => b,
        (Some(_), _) => a,
        (None, _) => b,
    }
}

/// Returns the earlier of two epochs, of which either may be unknown.
pub const fn earliest(a: Option<Timestamp>, b: Option<Timestamp>) -> Option<Timestamp> {
    match (a, b) {
        (Some(x), Some(y)) if y.precedes(x) => b,
        (Some(_), _) => a,
        (None, _) => b,
    }
}

/// The last samples of a value, of which the latest time counts.
#[derive(Clone, Copy, Debug, Default)]
struct Samples {
    recent: [Option<Timestamp>; SAMPLES],
    next: usize,
}

impl Samples {
    fn push(&mut self, epoch: Option<Timestamp>) {
        if epoch.is_none() {
            // The neighbour does not know it any more.
            self.recent = [None; SAMPLES];
        }
        self.recent[self.next] = epoch;
        self.next = (self.next + 1) % SAMPLES;
    }

    fn latest(&self) -> Option<Timestamp> {
        self.recent.iter().copied().fold(None, latest)
    }
}

/// Reason why a clock beacon was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// It has no body.
    Short,
    /// It is not later than the last one.
    Stale,
    /// It answers none of the last clock beacons of this node, or a round trip would be impossible.
    Echo,
}

/// Planted bug of a link's measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bug {
    /// An answer to a clock beacon of any incarnation of this node counts
    StaleEcho,
}

/// Measurements of the node at the other end of a link.
#[derive(Clone, Debug)]
pub struct Neighbour {
    /// Run times of the last own clock beacons
    sent: [Option<Timestamp>; ROUND_TRIPS],
    next_sent: usize,
    psn: Psn,
    /// Run time in the last clock beacon received, and when that was
    heard: Option<(Timestamp, Nanos)>,
    round_trips: [Option<u64>; ROUND_TRIPS],
    next_round_trip: usize,
    group: Samples,
    forward: Samples,
    backward: Samples,
    /// Time without a clock beacon after which nothing counts
    lease: Nanos,
    bug: Option<Bug>,
}

impl Neighbour {
    /// Creates the state of a link whose beacons have this interval, with a planted bug if there is one.
    pub fn new(beacon_interval: Nanos, bug: Option<Bug>) -> Self {
        Self {
            sent: [None; ROUND_TRIPS],
            next_sent: 0,
            psn: Psn::ZERO,
            heard: None,
            round_trips: [None; ROUND_TRIPS],
            next_round_trip: 0,
            group: Samples::default(),
            forward: Samples::default(),
            backward: Samples::default(),
            lease: Nanos(beacon_interval.0 * INTERVALS * LEASE_TURNS),
            bug,
        }
    }

    /// Returns whether the neighbour has sent a clock beacon recently.
    pub fn is_heard(&self, now: Nanos) -> bool {
        self.heard.is_some_and(|(_, at)| now.since(at) < self.lease)
    }

    /// Returns whether a clock beacon is to be sent in this turn.
    pub fn is_due(&self, turn: u64, now: Nanos) -> bool {
        turn.is_multiple_of(TURNS_UNHEARD) || self.is_heard(now)
    }

    /// Accounts for a clock beacon of the neighbour.
    ///
    /// # Errors
    /// The reason why it does not count.
    pub fn on_beacon(&mut self, header: &OnePipe, payload: &[u8], now: Nanos) -> Result<(), Refused> {
        let (body, _) = ClockBody::ref_from_prefix(payload).map_err(|_| Refused::Short)?;
        let sent_at = header.timestamp();
        if !self.is_heard(now) {
            self.forget();
        }
        if self.heard.is_some_and(|(before, _)| !before.precedes(sent_at)) {
            return Err(Refused::Stale);
        }
        self.heard = Some((sent_at, now));
        let epoch = |time: Option<Timestamp>| time.map(|time| epoch_of(time, now));
        self.group.push(epoch(Timestamp::barrier_from_wire(body.group)));
        self.forward.push(epoch(header.barrier()));
        self.backward.push(epoch(header.commit()));
        let Some(echo) = Timestamp::barrier_from_wire(body.echo) else { return Ok(()) };
        let accepts_all = cfg!(debug_assertions) && self.bug == Some(Bug::StaleEcho);
        if !accepts_all && !self.sent.contains(&Some(echo)) {
            return Err(Refused::Echo);
        }
        let took = Timestamp::new(now.0).distance(echo) - i64::from(body.held.get());
        let took = u64::try_from(took).ok().filter(|&took| accepts_all || took <= LONGEST_ROUND_TRIP.0);
        self.round_trips[self.next_round_trip] = Some(took.ok_or(Refused::Echo)?);
        self.next_round_trip = (self.next_round_trip + 1) % ROUND_TRIPS;
        Ok(())
    }

    /// Forgets a neighbour that was silent: it may have another run time, and the path another length.
    fn forget(&mut self) {
        self.heard = None;
        self.round_trips = [None; ROUND_TRIPS];
        (self.group, self.forward, self.backward) =
            (Samples::default(), Samples::default(), Samples::default());
    }

    /// Returns the next clock beacon to the neighbour, with this node's times.
    pub fn beacon(&mut self, own: &Times, now: Nanos) -> (OnePipe, ClockBody) {
        let time = |epoch: Option<Timestamp>| epoch.map(|epoch| epoch.add(now.0));
        // Not 0, which means none.
        let run_time = Timestamp::new(now.0.max(1));
        let mut header = OnePipe::new(OnePipeOpcode::CLOCK, run_time, self.psn);
        self.psn = self.psn.add(1);
        header.set_barrier(time(own.forward));
        header.set_commit(time(own.backward));
        let (echo, held) = match self.heard.filter(|_| self.is_heard(now)) {
            Some((echo, at)) => (Some(echo), u32::try_from(now.since(at).0).unwrap_or(u32::MAX)),
            None => (None, 0),
        };
        self.sent[self.next_sent] = Some(run_time);
        self.next_sent = (self.next_sent + 1) % ROUND_TRIPS;
        let body = ClockBody {
            echo: Timestamp::barrier_to_wire(echo),
            held: held.into(),
            group: Timestamp::barrier_to_wire(time(own.group)),
            ..ClockBody::default()
        };
        (header, body)
    }

    /// Returns the shortest of the last round trips.
    pub fn round_trip(&self) -> Option<Nanos> {
        self.round_trips.iter().flatten().min().map(|&took| Nanos(took))
    }

    /// Returns a value that the neighbour has sent, later by this share of a round trip.
    fn value(&self, samples: &Samples, later: impl Fn(u64) -> u64, now: Nanos) -> Option<Timestamp> {
        let round_trip = self.round_trip()?;
        let epoch = samples.latest().filter(|_| self.is_heard(now))?;
        Some(shifted(epoch, later(round_trip.0).cast_signed()))
    }

    /// Returns the neighbour's time of the group, as this node would read it now: later by half a round trip.
    pub fn group(&self, now: Nanos) -> Option<Timestamp> {
        self.value(&self.group, |round_trip| round_trip / 2, now)
    }

    /// Returns the neighbour's forward time, as it has arrived.
    pub fn forward(&self, now: Nanos) -> Option<Timestamp> {
        self.forward.latest().filter(|_| self.is_heard(now))
    }

    /// Returns the latest time that a message to the neighbour may have: later by a round trip. Half of it is the age
    /// of the value, the other half the way of the message, whichever of the two is the longer.
    pub fn backward(&self, now: Nanos) -> Option<Timestamp> {
        self.value(&self.backward, |round_trip| round_trip, now)
    }
}

#[cfg(test)]
mod tests;
