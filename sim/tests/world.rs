//! Tests of the simulated network: the effects of links, faults and clocks, and that a run is reproducible.

use rocev2::ethernet::MacAddr;
use sim::{Clock, EPOCH, Ecn, Fault, Link, LinkId, Node, NodeId, OVERHEAD, Ports, Switch, World};
use std::sync::{Arc, Mutex};
use switch::drop::FaultSet;
use switch::forward::Forward;
use switch::forward::config::{Config, ForwardingMode, MacTable};
use switch::memory::MemoryFrame;
use switch::{Frame, Nanos, Output, PortId, Probability};

/// A node that sends `count` numbered frames, one each `every`, and records what it receives.
struct Numberer {
    len: usize,
    count: u64,
    every: Nanos,
    next: Option<Nanos>,
    sent: u64,
    /// Numbers of the frames received, and their times of arrival by the node's own clock
    received: Vec<(u64, Nanos)>,
    starts: u32,
}

impl Numberer {
    fn new(len: usize, count: u64, every: u64) -> Self {
        let every = Nanos(every);
        Self { len, count, every, next: None, sent: 0, received: Vec::new(), starts: 0 }
    }

    fn receiver() -> Self {
        Self::new(0, 0, 1)
    }
}

fn numbered(number: u64, len: usize) -> Vec<u8> {
    // Destination and source MAC address, and an EtherType for local experiments
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xb5];
    frame.extend(number.to_be_bytes());
    frame.resize(len, 0);
    frame
}

impl Node for Numberer {
    fn on_frame(&mut self, frame: MemoryFrame, _port: PortId, now: Nanos, _out: &mut Ports<'_>) {
        let number = frame.bytes().get(14..).and_then(|bytes| bytes.first_chunk());
        self.received.push((number.map_or(u64::MAX, |bytes| u64::from_be_bytes(*bytes)), now));
    }

    fn on_timer(&mut self, now: Nanos, out: &mut Ports<'_>) {
        // A full queue drops the frame.
        _ = out.send(MemoryFrame::new(numbered(self.sent, self.len)), PortId(0));
        self.sent += 1;
        self.next = (self.sent < self.count).then(|| now + self.every);
    }

    fn next_timer(&self) -> Option<Nanos> {
        self.next
    }

    fn start(&mut self, now: Nanos, _out: &mut Ports<'_>) {
        self.starts += 1;
        self.sent = 0;
        self.next = (self.count > 0).then_some(now);
    }
}

/// Builds a network of a sender, a receiver and a link between them.
fn pair(seed: u64, sender: Numberer, link: Link) -> (World, NodeId, NodeId, LinkId) {
    let mut world = World::new(seed);
    let a = world.add("a", sender, Clock::default());
    let b = world.add("b", Numberer::receiver(), Clock::default());
    let link = world.connect(a, b, link);
    (world, a, b, link)
}

fn received(world: &World, node: NodeId) -> Vec<u64> {
    world.node::<Numberer>(node).received.iter().map(|(number, _)| *number).collect()
}

const LATER: Nanos = Nanos::from_secs(10);

#[test]
fn frames_take_their_serialization_and_propagation_time() {
    let link = Link { rate_bps: 10_000_000_000, delay: Nanos(700), ..Link::default() };
    // Three frames at the same time: the second and the third wait for the link.
    let (mut world, _, b, link) = pair(1, Numberer::new(1000, 3, 0), link);
    world.run_until(LATER);
    let each = ((1000 + OVERHEAD as u64) * 8).div_ceil(10);
    let times: Vec<_> = world.node::<Numberer>(b).received.iter().map(|(_, at)| at.since(EPOCH).0).collect();
    assert_eq!(times, [each + 700, 2 * each + 700, 3 * each + 700]);
    let counters = world.counters(link)[0];
    assert_eq!((counters.sent, counters.arrived, counters.longest_queue), (3, 3, 2000));
}

#[test]
fn full_queues_and_mtus_drop_frames() {
    let link = Link { rate_bps: 1_000_000, queue: 2500, ..Link::default() };
    let (mut world, _, b, link) = pair(1, Numberer::new(1000, 5, 0), link);
    world.run_until(LATER);
    assert_eq!(received(&world, b), [0, 1, 2], "one is on the link and two are in the queue");
    assert_eq!(world.counters(link)[0].queue_full, 2);
    let (mut world, _, b, link) = pair(1, Numberer::new(1515, 2, 10), Link::default());
    world.run_until(LATER);
    assert!(received(&world, b).is_empty());
    assert_eq!(world.counters(link)[0].too_long, 2);
}

/// A link with one impairment, and the counter of that impairment
type Impairment = (Link, fn(&sim::LinkCounters) -> u64);

#[test]
fn impairments_occur_at_the_configured_rate() {
    let share = Probability::percent(10);
    let impairments: [Impairment; 4] = [
        (Link { loss: share, ..Link::default() }, |c| c.lost),
        (Link { duplicate: share, ..Link::default() }, |c| c.duplicated),
        (Link { reorder: share, ..Link::default() }, |c| c.reordered),
        (Link { corrupt: share, ..Link::default() }, |c| c.corrupted),
    ];
    for (number, (link, count)) in impairments.into_iter().enumerate() {
        let (mut world, _, b, link) = pair(3, Numberer::new(100, 10_000, 1000), link);
        world.run_until(LATER);
        let counters = world.counters(link)[0];
        assert!((850..1150).contains(&count(&counters)), "{number}: {counters:?}");
        assert_eq!((counters.offered, counters.under_way()), (10_000, 0));
        let received = received(&world, b);
        assert_eq!(received.len() as u64, counters.arrived);
        let in_order = received.windows(2).all(|pair| pair[0] < pair[1]);
        assert_eq!(in_order, number == 0, "{number}");
    }
}

#[test]
fn jitter_alone_keeps_the_order() {
    let link = Link { jitter: Nanos::from_micros(50), ..Link::default() };
    let (mut world, _, b, _) = pair(1, Numberer::new(100, 1000, 100), link);
    world.run_until(LATER);
    assert_eq!(received(&world, b), (0..1000).collect::<Vec<_>>());
}

#[test]
fn frames_that_are_not_ip_are_not_ecn_marked() {
    let ecn = Ecn { min: 3000, max: 6000, share: Probability::percent(50) };
    let link = Link { rate_bps: 1_000_000_000, ecn: Some(ecn), ..Link::default() };
    let (mut world, _, _, link) = pair(1, Numberer::new(1000, 20, 0), link);
    world.run_until(LATER);
    assert_eq!(world.counters(link)[0].marked, 0);
}

fn impaired_link() -> Link {
    let share = Probability::percent(10);
    Link {
        loss: share,
        duplicate: share,
        reorder: share,
        corrupt: share,
        jitter: Nanos(500),
        ..Link::default()
    }
}

#[test]
fn a_seed_determines_the_whole_run() {
    let run = |seed| {
        let (mut world, _, b, _) = pair(seed, Numberer::new(200, 2000, 300), impaired_link());
        world.run_until(LATER);
        (world.digest(), received(&world, b), world.events())
    };
    assert_eq!(run(7), run(7));
    assert_ne!(run(7).1, run(8).1);
}

#[test]
fn one_impairment_does_not_change_the_draws_of_another() {
    let lost = |duplicate| {
        let (mut world, .., link) =
            pair(5, Numberer::new(100, 2000, 300), Link { duplicate, ..impaired_link() });
        world.run_until(LATER);
        world.counters(link)[0].lost
    };
    assert_eq!(lost(Probability::NEVER), lost(Probability::percent(10)));
}

#[test]
fn captures_are_complete_pcap_files() {
    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);
    impl std::io::Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let file = Shared::default();
    let (mut world, _, _, link) = pair(1, Numberer::new(60, 3, 1_500_000_000), Link::default());
    world.capture(link, file.clone());
    world.run_until(LATER);
    world.finish_captures().unwrap();
    let bytes = file.0.lock().unwrap();
    assert_eq!(bytes.len(), 24 + 3 * (16 + 60));
    let word_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    assert_eq!(
        (word_at(0), word_at(20)),
        (0xa1b2_3c4d, 1),
        "magic number of nanosecond pcap, link type Ethernet"
    );
    for (number, at) in (0..3).map(|n| (n, 24 + n * 76)) {
        let nanos = number as u64 * 1_500_000_000;
        assert_eq!(
            (word_at(at), word_at(at + 4)),
            ((nanos / 1_000_000_000) as u32, (nanos % 1_000_000_000) as u32)
        );
        assert_eq!((word_at(at + 8), word_at(at + 12)), (60, 60));
        assert_eq!(bytes[at + 16..at + 76], numbered(number as u64, 60));
    }
}

#[test]
fn a_crashed_host_receives_nothing_and_restarts_from_the_beginning() {
    let (mut world, a, b, link) = pair(1, Numberer::new(100, 10, 1_000_000), Link::default());
    world.schedule(Nanos::from_micros(2500), Fault::Crash(b));
    world.schedule(Nanos::from_micros(4500), Fault::Restart(b));
    world.run_until(LATER);
    assert_eq!(received(&world, b), [0, 1, 2, 5, 6, 7, 8, 9]);
    assert_eq!((world.counters(link)[0].undelivered, world.node::<Numberer>(b).starts), (2, 2));
    // A sender that restarts sends all of its frames again.
    let (mut world, a2, b, _) = pair(1, Numberer::new(100, 3, 1_000_000), Link::default());
    assert_eq!(a, a2);
    world.schedule(Nanos::from_micros(1500), Fault::Crash(a));
    world.schedule(Nanos::from_micros(9000), Fault::Restart(a));
    world.run_until(LATER);
    assert_eq!(received(&world, b), [0, 1, 0, 1, 2]);
}

#[test]
fn a_resumed_host_receives_the_frames_that_were_queued() {
    let (mut world, _, b, link) = pair(1, Numberer::new(100, 2000, 1_000), Link::default());
    world.schedule(Nanos::from_micros(100), Fault::Pause(b));
    world.schedule(Nanos::from_micros(5000), Fault::Resume(b));
    world.run_until(LATER);
    let undelivered = world.counters(link)[0].undelivered;
    assert!(undelivered > 500, "more frames arrived than the receive queue holds: {undelivered} were lost");
    assert_eq!(received(&world, b).len() as u64 + undelivered, 2000);
    let resumed = EPOCH + Nanos::from_micros(5000);
    let at_once = world.node::<Numberer>(b).received.iter().filter(|(_, at)| *at == resumed).count();
    assert_eq!(at_once, 1024);
}

#[test]
fn a_cut_link_loses_frames_in_flight() {
    let link = Link { delay: Nanos::from_millis(2), ..Link::default() };
    let (mut world, _, b, link) = pair(1, Numberer::new(100, 10, 1_000_000), link);
    world.schedule(Nanos::from_micros(2500), Fault::Cut(vec![link]));
    world.schedule(Nanos::from_micros(5500), Fault::Heal(vec![link]));
    world.run_until(LATER);
    // Frames are sent every millisecond from 0 ms on and take 2 ms. Those sent at 1 and 2 ms were in flight
    // when the link was cut; those sent at 3 to 5 ms did not get onto it.
    assert_eq!(received(&world, b), [0, 6, 7, 8, 9]);
    assert_eq!((world.counters(link)[0].cut, world.counters(link)[0].under_way()), (5, 0));
}

#[test]
fn a_muted_node_receives_but_is_not_received() {
    for muted in [0, 1] {
        let (mut world, a, b, link) = pair(1, Numberer::new(100, 10, 1_000_000), Link::default());
        let node = [a, b][muted];
        world.schedule(Nanos::from_micros(1500), Fault::Mute(node, vec![link]));
        world.schedule(Nanos::from_micros(3500), Fault::Unmute(node, vec![link]));
        world.run_until(LATER);
        let expected: &[u64] =
            if muted == 0 { &[0, 1, 4, 5, 6, 7, 8, 9] } else { &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9] };
        assert_eq!(received(&world, b), expected);
    }
}

#[test]
fn parted_interfaces_lose_only_each_others_frames() {
    let interface = |last| MacAddr([2, 0, 0, 0, 0, last]);
    for other in [1, 3] {
        let (mut world, _, b, _) = pair(1, Numberer::new(100, 10, 1_000_000), Link::default());
        world.schedule(Nanos::from_micros(1500), Fault::PartitionPair(interface(other), interface(2)));
        world.schedule(Nanos::from_micros(3500), Fault::HealPair(interface(2), interface(other)));
        world.run_until(LATER);
        let expected: &[u64] =
            if other == 1 { &[0, 1, 4, 5, 6, 7, 8, 9] } else { &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9] };
        assert_eq!(received(&world, b), expected);
    }
}

#[test]
fn muted_pair_loses_frames_in_one_direction() {
    let interface = |last| MacAddr([2, 0, 0, 0, 0, last]);
    for (from, to, expected) in
        [(1, 2, &[0, 1, 4, 5, 6, 7, 8, 9][..]), (2, 1, &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9])]
    {
        let (mut world, _, b, _) = pair(1, Numberer::new(100, 10, 1_000_000), Link::default());
        world.schedule(Nanos::from_micros(1500), Fault::MutePair(interface(from), interface(to)));
        world.schedule(Nanos::from_micros(3500), Fault::UnmutePair(interface(from), interface(to)));
        world.run_until(LATER);
        assert_eq!(received(&world, b), expected);
    }
}

#[test]
fn a_link_with_a_smaller_mtu_drops_longer_frames() {
    let (mut world, _, b, link) = pair(1, Numberer::new(100, 10, 1_000_000), Link::default());
    world.schedule(Nanos::from_micros(1500), Fault::Mtu(link, 85));
    world.schedule(Nanos::from_micros(3500), Fault::Mtu(link, 86));
    world.run_until(LATER);
    assert_eq!(received(&world, b), [0, 1, 4, 5, 6, 7, 8, 9]);
    assert_eq!(world.counters(link)[0].too_long, 2);
}

#[test]
fn overlapping_faults_last_until_all_have_ended() {
    type Pair = (fn(NodeId, LinkId) -> Fault, fn(NodeId, LinkId) -> Fault);
    let faults: [Pair; 3] = [
        (|_, link| Fault::Cut(vec![link]), |_, link| Fault::Heal(vec![link])),
        (|node, _| Fault::Crash(node), |node, _| Fault::Restart(node)),
        (|node, _| Fault::Pause(node), |node, _| Fault::Resume(node)),
    ];
    for (begin, end) in faults {
        let (mut world, _, b, link) = pair(1, Numberer::new(100, 10, 1_000_000), Link::default());
        for (at, fault) in [(1500, begin), (2500, begin), (3500, end), (6500, end)] {
            world.schedule(Nanos::from_micros(at), fault(b, link));
        }
        // The end of a fault that has not begun has no effect.
        world.schedule(Nanos::from_micros(500), end(b, link));
        world.run_until(Nanos::from_micros(6400));
        assert_eq!(received(&world, b), [0, 1], "{:?}", begin(b, link));
        world.run_until(LATER);
        assert_eq!(received(&world, b).last(), Some(&9), "{:?}", begin(b, link));
    }
}

#[test]
fn a_host_that_restarts_while_it_is_paused_stays_paused() {
    let (mut world, _, b, _) = pair(1, Numberer::new(100, 10, 1_000_000), Link::default());
    for (at, fault) in [
        (1500, Fault::Crash(b)),
        (2500, Fault::Pause(b)),
        (3500, Fault::Restart(b)),
        (6500, Fault::Resume(b)),
    ] {
        world.schedule(Nanos::from_micros(at), fault);
    }
    world.run_until(Nanos::from_micros(6400));
    assert_eq!(received(&world, b), [0, 1]);
    world.run_until(LATER);
    assert_eq!(received(&world, b), [0, 1, 4, 5, 6, 7, 8, 9]);
}

#[test]
fn frames_that_wait_at_a_paused_host_are_lost_when_it_crashes() {
    let (mut world, _, b, link) = pair(1, Numberer::new(100, 10, 1_000_000), Link::default());
    for (at, fault) in [(1500, Fault::Pause(b)), (3500, Fault::Crash(b)), (4500, Fault::Resume(b))] {
        world.schedule(Nanos::from_micros(at), fault);
    }
    world.run_until(Nanos::from_micros(3400));
    let counters = world.counters(link)[0];
    assert_eq!((counters.arrived, counters.undelivered, counters.under_way()), (2, 0, 2));
    world.run_until(LATER);
    let counters = world.counters(link)[0];
    assert_eq!((counters.arrived, counters.undelivered, counters.under_way()), (2, 8, 0));
}

#[test]
fn timers_follow_the_hosts_own_clock() {
    let mut world = World::new(1);
    let clock = Clock::new(-3_000, 100_000); // 100 ppm too fast
    let a = world.add("a", Numberer::new(60, 1001, 1_000_000), clock);
    let b = world.add("b", Numberer::receiver(), Clock::default());
    world.connect(a, b, Link { rate_bps: 0, delay: Nanos::ZERO, ..Link::default() });
    world.schedule(Nanos::from_millis(1500), Fault::ClockStep(a, 7_000));
    world.run_until(LATER);
    let last = world.node::<Numberer>(b).received.last().unwrap().1.since(EPOCH);
    // A second of the fast clock is 100 us too short.
    assert!(last.0.abs_diff(1_000_000_000 - 99_990) < 20, "{last:?}");
    let ahead = world.clock(a).0 - world.clock(b).0;
    assert_eq!(ahead, 10_000_000_000 / 10_000 - 3_000 + 7_000);
}

#[test]
fn a_switch_runs_a_switch_function() {
    let mut world = World::new(1);
    let a = world.add("a", Numberer::new(100, 4, 1_000), Clock::default());
    let [b, c] = ["b", "c"].map(|name| world.add(name, Numberer::receiver(), Clock::default()));
    let make = || {
        Forward::new(&Config {
            ports: 3,
            mode: ForwardingMode::Mac(MacTable {
                capacity: 16,
                ageing: Nanos::from_secs(1),
                fixed: vec![("02:00:00:00:00:02".parse().unwrap(), PortId(2))],
            }),
            drop: FaultSet::NONE,
            verify_icrc: false,
            verify_udp_checksum: false,
            counted_qps: 0,
            health: false,
        })
    };
    let bridge = world.add("bridge", Switch::new(make), Clock::default());
    for node in [a, b, c] {
        world.connect(node, bridge, Link::default());
    }
    world.run_until(LATER);
    assert_eq!((received(&world, b).len(), received(&world, c)), (0, vec![0, 1, 2, 3]));
    let counters = &world.node::<Switch<Forward>>(bridge).counters;
    assert_eq!((counters.received, counters.forwarded, counters.dropped.iter().sum()), (4, 4, 0u64));
}
