//! Two nodes that exchange clock beacons, and a network of them that loses, delays and restarts.

use super::*;
use switch::Rng;

const INTERVAL: Nanos = Nanos::from_micros(3);
const TURN: u64 = INTERVAL.0 * INTERVALS;

/// A node whose run time is the world's plus `base`, which a restart changes.
struct Node {
    base: u64,
    neighbour: Neighbour,
    times: Times,
}

impl Node {
    fn new(base: u64, bug: Option<Bug>) -> Self {
        Self { base, neighbour: Neighbour::new(INTERVAL, bug), times: Times::default() }
    }

    fn local(&self, world: u64) -> Nanos {
        Nanos(world + self.base)
    }

    fn send(&mut self, world: u64) -> Vec<u8> {
        let (header, body) = self.neighbour.beacon(&self.times, self.local(world));
        [header.as_bytes(), body.as_bytes()].concat()
    }

    fn receive(&mut self, beacon: &[u8], world: u64) -> Result<(), Refused> {
        let (header, payload) = OnePipe::ref_from_prefix(beacon).unwrap();
        let now = self.local(world);
        self.neighbour.on_beacon(header, payload, now)
    }

    /// Returns the time that an epoch of this node shows.
    fn at(&self, epoch: Option<Timestamp>, world: u64) -> Option<u64> {
        epoch.map(|epoch| epoch.add(self.local(world).0).nanos())
    }
}

/// Returns two nodes after some turns, of which `delays` are the delays from each one.
fn exchanged(delays: [u64; 2]) -> ([Node; 2], u64) {
    let mut nodes = [Node::new(5_000_000, None), Node::new(77_000, None)];
    let mut world = 1000;
    for _ in 0..6 {
        for from in [0, 1] {
            world += TURN / 2;
            let sender = &mut nodes[from];
            // Each has a clock that shows the world's time plus a million times its number.
            let clock = epoch_of(Timestamp::new(world + 1_000_000 * from as u64), sender.local(world));
            sender.times = Times { group: Some(clock), forward: Some(clock), backward: Some(clock) };
            let beacon = sender.send(world);
            nodes[1 - from].receive(&beacon, world + delays[from]).unwrap();
        }
    }
    (nodes, world + TURN)
}

#[test]
fn clock_beacon_has_the_documented_layout() {
    let mut neighbour = Neighbour::new(INTERVAL, None);
    let epoch = |ns: u64| Some(Timestamp::new(ns));
    let times = Times { group: epoch(1), forward: epoch(2), backward: epoch(3) };
    let (header, body) = neighbour.beacon(&times, Nanos(0x1000));
    assert_eq!((header.timestamp(), header.opcode()), (Timestamp::new(0x1000), OnePipeOpcode::CLOCK));
    assert_eq!((header.barrier(), header.commit()), (epoch(0x1002), epoch(0x1003)));
    assert_eq!(body.as_bytes(), [[0; 10].as_slice(), &[0, 0, 0, 0, 0, 0, 0x10, 0x01, 0, 0]].concat());
    neighbour.on_beacon(&header, body.as_bytes(), Nanos(0x1100)).unwrap();
    let (_, body) = neighbour.beacon(&Times::default(), Nanos(0x1234));
    assert_eq!(body.as_bytes(), [[0, 0, 0, 0, 0x10, 0, 0, 0, 1, 0x34].as_slice(), &[0; 10]].concat());
    assert_eq!((ClockBody::LEN, OnePipe::LEN + ClockBody::LEN), (20, 44));
}

#[test]
fn clocks_are_compared_whatever_the_run_times_are() {
    let ([a, b], world) = exchanged([700, 700]);
    assert_eq!((a.neighbour.round_trip(), b.neighbour.round_trip()), (Some(Nanos(1400)), Some(Nanos(1400))));
    assert_eq!(a.at(a.neighbour.group(a.local(world)), world), Some(world + 1_000_000));
    assert_eq!(b.at(b.neighbour.group(b.local(world)), world), Some(world));
    // As it has arrived, and what arrives there then.
    assert_eq!(a.at(a.neighbour.forward(a.local(world)), world), Some(world + 1_000_000 - 700));
    assert_eq!(a.at(a.neighbour.backward(a.local(world)), world), Some(world + 1_000_000 + 700));
}

#[test]
fn backward_time_is_exact_if_the_two_directions_differ() {
    let ([a, b], world) = exchanged([9_000, 500]);
    // A message from a takes 9 us: with this time it arrives when b's clock shows it.
    assert_eq!(a.at(a.neighbour.backward(a.local(world)), world), Some(world + 1_000_000 + 9_000));
    assert_eq!(b.at(b.neighbour.backward(b.local(world)), world), Some(world + 500));
    // The comparison of clocks is off by half of the difference.
    assert_eq!(b.at(b.neighbour.group(b.local(world)), world), Some(world - 4_250));
}

#[test]
fn late_and_repeated_beacons_are_refused_and_silence_ends_everything() {
    let ([mut a, mut b], world) = exchanged([700, 700]);
    let (first, second) = (a.send(world), a.send(world + 10));
    assert_eq!(b.receive(&second, world + 700), Ok(()));
    for beacon in [&first, &second] {
        assert_eq!(b.receive(beacon, world + 720), Err(Refused::Stale));
    }
    assert_eq!(b.receive(&first[..OnePipe::LEN + 7], world + 730), Err(Refused::Short));
    let end = world + 700 + TURN * LEASE_TURNS;
    assert!(b.neighbour.group(b.local(end - 1)).is_some() && b.neighbour.is_due(1, b.local(end - 1)));
    assert!(b.neighbour.group(b.local(end)).is_none() && b.neighbour.forward(b.local(end)).is_none());
    // One turn of many is used then.
    let due = (0..2 * TURNS_UNHEARD).filter(|&turn| b.neighbour.is_due(turn, b.local(end))).count();
    assert_eq!(due, 2);
    // The neighbour has another run time now; the next round trip counts alone.
    a = Node::new(0, None);
    a.times = Times { group: Some(Timestamp::new(7)), ..Times::default() };
    let beacon = a.send(end);
    assert_eq!(b.receive(&beacon, end + 700), Ok(()));
    assert_eq!(b.neighbour.group(b.local(end + 700)), None, "no round trip is known");
}

#[test]
fn value_that_the_neighbour_does_not_know_any_more_ends_at_once() {
    let ([mut a, mut b], world) = exchanged([700, 700]);
    a.times = Times::default();
    let beacon = a.send(world);
    b.receive(&beacon, world + 700).unwrap();
    let now = b.local(world + 700);
    assert_eq!(
        (b.neighbour.group(now), b.neighbour.backward(now), b.neighbour.forward(now)),
        (None, None, None)
    );
}

#[test]
fn one_late_beacon_changes_nothing() {
    let ([mut a, mut b], world) = exchanged([700, 700]);
    let before = b.at(b.neighbour.group(b.local(world)), world);
    a.times.group = Some(epoch_of(Timestamp::new(world), a.local(world)));
    let beacon = a.send(world);
    b.receive(&beacon, world + 40_000).unwrap();
    assert_eq!(b.at(b.neighbour.group(b.local(world)), world), before);
}

/// Exchanges beacons of drawn delays, with losses, and restarts of either node with another run time. Checks that no
/// round trip is shorter than the path or longer than it ever was.
fn drawn(seed: u64, bug: Option<Bug>) -> Result<usize, String> {
    let mut rng = Rng::stream(seed, 0x636c_6f63);
    let mut nodes = [0, 1].map(|_| Node::new(rng.below(1 << 40), bug));
    let delays = [rng.between(100, 20_000), rng.between(100, 20_000)];
    let (jitter, loss) = (rng.below(5_000), rng.below(4));
    let shortest = delays[0] + delays[1];
    let mut in_flight: Vec<(u64, usize, Vec<u8>)> = Vec::new();
    let (mut world, mut measured) = (0, 0);
    for _ in 0..400 {
        world += TURN / 2;
        let from = rng.below(2) as usize;
        if rng.below(40) == 0 {
            let base = rng.below(1 << 40);
            nodes[from] = Node::new(base, bug);
        }
        let beacon = nodes[from].send(world);
        if rng.below(8) >= loss {
            in_flight.push((world + delays[from] + rng.below(jitter + 1), 1 - from, beacon));
        }
        in_flight.sort_by_key(|(at, ..)| *at);
        while in_flight.first().is_some_and(|(at, ..)| *at <= world) {
            let (at, to, beacon) = in_flight.remove(0);
            _ = nodes[to].receive(&beacon, at);
        }
        for node in &nodes {
            let Some(round_trip) = node.neighbour.round_trip() else { continue };
            measured += 1;
            if !(shortest..=shortest + 2 * jitter).contains(&round_trip.0) {
                return Err(format!(
                    "a round trip of {} ns was measured, and the path takes {shortest}",
                    round_trip.0
                ));
            }
        }
    }
    Ok(measured)
}

#[test]
fn round_trips_are_those_of_the_path_also_after_restarts() {
    let measured: usize =
        (0..500).map(|seed| drawn(seed, None).unwrap_or_else(|what| panic!("seed {seed}: {what}"))).sum();
    assert!(measured > 50_000, "{measured}");
}

#[cfg(debug_assertions)]
#[test]
fn planted_bug_of_a_stale_answer_is_found() {
    assert!((0..500).any(|seed| drawn(seed, Some(Bug::StaleEcho)).is_err()));
}
