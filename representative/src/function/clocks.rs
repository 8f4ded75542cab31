//! Clock beacons: a switch takes the latest clock of its inputs that counts, and passes on what processes need to
//! follow it ([`onepipe::clock_sync`]).

use super::Representative;
use crate::bug::Bug;
use crate::config::{BeaconForm, Config, Link, Side};
use crate::counters::Refusal;
use crate::half::{DOWN, UP};
use onepipe::clock_sync::{self, ClockBody, INTERVALS, Neighbour, Times, earliest, epoch_of, latest};
use onepipe::{ClockSample, ClockSource, Discipline, OnePipe, Timestamp};
use rocev2::{Fault, ICRC_LEN, Layout, Packet, Qpn, icrc};
use switch::{DropReason, Frame, Full, Nanos, Output, PortId, Verdict};
use zerocopy::IntoBytes;

/// Number of turns, from the first clock beacon on, after which a switch that has started knows a time
const WAIT_TURNS: u64 = 10;

/// State of a link's clock beacons.
#[derive(Debug)]
struct Lane {
    template: Template,
    neighbour: Neighbour,
    side: Side,
    /// Whether the clock of this link, which is that of a process, counts for the group's
    counts: bool,
}

/// Clock beacons of a switch.
#[derive(Debug)]
pub(super) struct Clocks {
    lanes: Box<[Lane]>,
    /// Times to be sent on the links that each half feeds
    times: [Times; 2],
    /// The machine's clock, as it is
    machine: Discipline,
    /// Lead over the median clock from which the clock of a process does not count
    lead_max: i64,
    /// Whether the links below are those of processes
    is_lowest: bool,
    /// Number of turns since the first clock beacon
    turns: u64,
    /// Memory in which clocks are sorted
    sorted: Vec<Timestamp>,
    /// Planted bug: every clock counts
    believes_all: bool,
}

impl Clocks {
    /// Returns the state of a switch that exchanges clock beacons; `None` if it does not.
    pub(super) fn new(config: &Config) -> Option<Box<Self>> {
        if config.clock_source == ClockSource::Host {
            return None;
        }
        let lanes = (config.first_qp.get()..).zip(&config.links).map(|(qpn, link)| Lane {
            template: Template::new(config, link, Qpn::new(qpn)),
            neighbour: Neighbour::new(config.beacon_interval, None),
            side: link.side,
            counts: false,
        });
        Some(Box::new(Self {
            lanes: lanes.collect(),
            times: [Times::default(); 2],
            machine: Discipline::new(config.clock),
            lead_max: i64::try_from(config.ahead_max.0).unwrap_or(i64::MAX),
            is_lowest: config.layer == 1,
            turns: 0,
            sorted: Vec::with_capacity(config.links.len() + 1),
            believes_all: config.has_bug(Bug::FollowsAnyClock),
        }))
    }

    /// Returns the latest of a side's values.
    fn latest_of(&self, side: Side, value: impl Fn(&Neighbour) -> Option<Timestamp>) -> Option<Timestamp> {
        let lanes = self.lanes.iter().filter(|lane| lane.side == side);
        lanes.map(|lane| value(&lane.neighbour)).fold(None, latest)
    }

    /// Returns the earliest of a side's values.
    fn earliest_of(&self, side: Side, value: impl Fn(&Neighbour) -> Option<Timestamp>) -> Option<Timestamp> {
        let lanes = self.lanes.iter().filter(|lane| lane.side == side);
        lanes.map(|lane| value(&lane.neighbour)).fold(None, earliest)
    }

    /// Chooses the processes whose clocks count: all that are not far ahead of the lower median of the processes
    /// below and of this machine's clock. So one fast clock does not count where there are two others.
    fn choose(&mut self, now: Nanos) {
        let own = Timestamp::new(self.machine.read(Nanos::ZERO));
        let has_above = self.latest_of(Side::Above, |above| above.group(now)).is_some();
        let below = || self.lanes.iter().filter(|lane| lane.side == Side::Below);
        self.sorted.clear();
        self.sorted.extend(below().filter_map(|lane| lane.neighbour.group(now)));
        let Some(slowest) = self.sorted.iter().copied().reduce(Timestamp::earlier) else { return };
        self.sorted.push(own);
        // Distances from one of them, as times wrap
        self.sorted.sort_unstable_by_key(|clock| clock.distance(own));
        let median = self.sorted[(self.sorted.len() - 1) / 2];
        for lane in self.lanes.iter_mut().filter(|lane| lane.side == Side::Below) {
            let Some(clock) = lane.neighbour.group(now) else { continue };
            // A clock at the limit does not come and go.
            let lead_max = if lane.counts { 2 * self.lead_max } else { self.lead_max };
            let is_only = clock == slowest && !has_above;
            lane.counts = self.believes_all || clock.distance(median) <= lead_max || is_only;
        }
    }

    /// Computes the times to be sent. Links to processes get no time before `barrier`, an epoch: what a process
    /// stamps below the best-effort barrier would be refused, and what it commits below a floor would not count.
    fn compute(&mut self, barrier: Option<Timestamp>, now: Nanos) {
        // After a start, the first clock that is heard may be the only wrong one.
        self.turns += u64::from(self.lanes.iter().any(|lane| lane.neighbour.is_heard(now)));
        if self.turns < WAIT_TURNS {
            return;
        }
        let is_lowest = self.is_lowest;
        if is_lowest {
            self.choose(now);
        }
        let counting =
            self.lanes.iter().filter(|lane| lane.side == Side::Below && (lane.counts || !is_lowest));
        let up_group = counting.map(|lane| lane.neighbour.group(now)).fold(None, latest);
        let down_group = latest(up_group, self.latest_of(Side::Above, |above| above.group(now)));
        let down_group =
            if is_lowest { latest(down_group, barrier.filter(|_| down_group.is_some())) } else { down_group };
        // A process that follows the group is never ahead of it.
        let most =
            |forward: Option<Timestamp>| forward.map(|at| down_group.map_or(at, |group| at.earlier(group)));
        let up_forward = most(self.latest_of(Side::Below, |below| below.forward(now)));
        let down_forward = latest(up_forward, most(self.latest_of(Side::Above, |above| above.forward(now))));
        let down_backward =
            if is_lowest { down_forward } else { self.earliest_of(Side::Below, |below| below.backward(now)) };
        let up_backward = earliest(down_backward, self.earliest_of(Side::Above, |above| above.backward(now)));
        self.times[UP] = Times { group: up_group, forward: up_forward, backward: down_backward };
        self.times[DOWN] = Times { group: down_group, forward: down_forward, backward: up_backward };
    }

    /// Sends the clock beacons whose turn is in this tick.
    fn send<O: Output>(&mut self, tick: u64, now: Nanos, out: &mut O) -> u64 {
        let (slot, turn) = (tick % INTERVALS, tick / INTERVALS);
        let lanes = self.lanes.iter_mut().enumerate().filter(|(n, _)| *n as u64 % INTERVALS == slot);
        let mut sent = 0;
        for (_, lane) in lanes {
            if !lane.neighbour.is_due(turn, now) {
                continue;
            }
            let half = if lane.side == Side::Above { UP } else { DOWN };
            let (header, body) = lane.neighbour.beacon(&self.times[half], now);
            sent += u64::from(lane.template.send(&header, &body, out).is_ok());
        }
        sent
    }
}

/// Clock beacon of a link, complete except for its payload and ICRC.
#[derive(Debug)]
struct Template {
    frame: Box<[u8]>,
    /// Length of the outer headers of a detour, which are behind the Ethernet header
    outer_len: usize,
    layout: Layout,
    /// The beacon alone, in which the ICRC is computed
    inner: Box<[u8]>,
    port: PortId,
}

impl Template {
    fn new(config: &Config, link: &Link, qpn: Qpn) -> Self {
        let link = Link { beacon: BeaconForm::Datagram, standby: None, ..link.clone() };
        let (inner, frame) = crate::beacon::datagram(config, &link, qpn, OnePipe::LEN + ClockBody::LEN);
        let outer_len = frame.len() - inner.len();
        let layout = crate::beacon::layout_of(&inner);
        Self { frame, outer_len, layout, inner, port: link.port }
    }

    fn send<O: Output>(&mut self, header: &OnePipe, body: &ClockBody, out: &mut O) -> Result<(), Full> {
        let (at, end) = (self.layout.payload(), self.layout.icrc());
        self.inner[at..at + OnePipe::LEN].copy_from_slice(header.as_bytes());
        self.inner[at + OnePipe::LEN..end].copy_from_slice(body.as_bytes());
        let sum = icrc::compute(&self.inner, &self.layout);
        self.inner[end..end + ICRC_LEN].copy_from_slice(&sum.to_le_bytes());
        let mut frame = out.make_from(&self.frame)?;
        frame.bytes_mut()[self.outer_len + at..].copy_from_slice(&self.inner[at..]);
        out.send(frame, self.port)
    }
}

impl Representative {
    /// Handles a clock beacon for this node.
    #[cold]
    pub(super) fn on_clock_beacon(
        &mut self,
        packet: &Packet<'_>,
        link: Option<usize>,
        port: PortId,
        header: &OnePipe,
        now: Nanos,
    ) -> Verdict {
        let Some(clocks) = &mut self.clocks else {
            return self.refuse(Refusal::Clock, DropReason::Unexpected);
        };
        let Some(link) = link else {
            return self.refuse(Refusal::UnknownLink, DropReason::NoQueuePair);
        };
        let neighbour = &self.config.links[link];
        if packet.src() != neighbour.address || port != neighbour.port {
            return self.refuse(Refusal::WrongSource, DropReason::WrongSource);
        }
        if !packet.verify_icrc() {
            return self.refuse(Refusal::Damaged, DropReason::Malformed(Fault::Icrc));
        }
        let payload = &packet.payload()[OnePipe::LEN..];
        match clocks.lanes[link].neighbour.on_beacon(header, payload, now) {
            Ok(()) => {
                self.counters.clock_beacons_taken.add(1);
                Verdict::Consume
            }
            Err(clock_sync::Refused::Short | clock_sync::Refused::Stale | clock_sync::Refused::Echo) => {
                self.refuse(Refusal::Clock, DropReason::Stale)
            }
        }
    }

    /// Follows the group's time, and sends the clock beacons of a tick.
    #[cold]
    pub(super) fn exchange_clocks<O: Output>(&mut self, now: Nanos, out: &mut O) {
        let Some(mut clocks) = self.clocks.take() else { return };
        if self.ticks.is_multiple_of(INTERVALS) {
            let barrier = self.halves[DOWN].barrier.best_effort();
            let commit = self.commit.as_ref().and_then(|commit| commit.least());
            let commit = commit.filter(|_| !self.config.has_bug(Bug::GroupBeforeFloor));
            let epoch = |time: Option<Timestamp>| time.map(|time| epoch_of(time, now));
            clocks.compute(latest(epoch(barrier), epoch(commit)), now);
            if let Some(group) = clocks.times[DOWN].group {
                self.follow(&ClockSample::at(group.add(now.0), now), now);
            }
        }
        self.counters.clock_beacons_sent.add(clocks.send(self.ticks, now, out));
        self.clocks = Some(clocks);
    }

    /// Accounts for a sample of the machine's clock, which determines this node's only while no group is known.
    pub(super) fn on_machine_clock(&mut self, sample: &ClockSample, now: Nanos) {
        if let Some(clocks) = &mut self.clocks {
            clocks.machine.follow(sample);
            if clocks.times[DOWN].group.is_some() {
                return;
            }
        }
        self.follow(sample, now);
    }
}
