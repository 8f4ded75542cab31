//! Clock beacons at a switch: which clocks count, what is passed on, and what is refused.

use super::*;
use onepipe::ClockSource;
use onepipe::clock_sync::{ClockBody, INTERVALS, Neighbour, Times, epoch_of};

const MILLISECOND: u64 = 1_000_000;

/// A switch, and the neighbours at its links, which take no time.
struct Exchange {
    function: Representative,
    neighbours: [Neighbour; 4],
    /// Time by which each neighbour's clock is ahead of the switch's machine (ns); `None` if it is silent
    ahead: [Option<i64>; 4],
    ns: u64,
}

impl Exchange {
    /// Creates a switch; `change` may change its configuration, of which links 0 to 2 lead down.
    fn new(ahead: [Option<i64>; 4], change: impl Fn(&mut Config)) -> Self {
        let mut config = config(Incarnation::SwitchCpu);
        config.links[2].side = Side::Below;
        config.clock_source = ClockSource::Beacons;
        change(&mut config);
        let function = Representative::new(config).unwrap();
        let neighbours = [0; 4].map(|_| Neighbour::new(Nanos(T), None));
        Self { function, neighbours, ahead, ns: 0 }
    }

    /// Returns the clock beacon of a neighbour.
    fn clock_beacon(&mut self, n: usize) -> Vec<u8> {
        let clock = at(self.ns.wrapping_add_signed(self.ahead[n].unwrap_or(0)));
        let clock = Some(epoch_of(clock, Nanos(self.ns)));
        let times = Times { group: clock, forward: clock, backward: clock };
        let (header, body) = self.neighbours[n].beacon(&times, Nanos(self.ns));
        framed(n as u8, &header, body.as_bytes())
    }

    /// Runs a number of turns.
    fn run(&mut self, turns: u64) {
        for tick in 0..turns * INTERVALS {
            self.ns += T;
            for n in (0..4).filter(|_| tick % INTERVALS == 3) {
                if self.ahead[n].is_some() {
                    let beacon = self.clock_beacon(n);
                    let verdict = verdict(&mut self.function, &beacon, n as u16, self.ns);
                    assert_eq!(verdict, Verdict::Consume);
                }
            }
            let mut out = FrameCollector::with_room(64);
            self.function.on_timer(Nanos(self.ns), &mut out);
            for (frame, port) in out.frames {
                let bytes = frame.into_bytes();
                let packet = Packet::parse(&bytes).expect("a packet");
                assert!(packet.verify_icrc());
                let header = *OnePipe::of(&packet).expect("with a header");
                if header.opcode() == OnePipeOpcode::CLOCK {
                    let body = &packet.payload()[OnePipe::LEN..];
                    self.neighbours[port.index()].on_beacon(&header, body, Nanos(self.ns)).unwrap();
                }
            }
        }
    }

    /// Returns by how much the time of the group at a link is ahead of the switch's machine (ns).
    fn group(&self, n: usize) -> Option<i64> {
        self.neighbours[n].group(Nanos(self.ns)).map(|epoch| epoch.distance(at(0)))
    }
}

/// Builds a clock beacon from neighbour `from`.
fn framed(from: u8, header: &OnePipe, body: &[u8]) -> Vec<u8> {
    let qpn = Qpn::new(FIRST_QP.get() + u32::from(from));
    let payload = [header.as_bytes(), body].concat();
    packet((false, from, OWN), Opcode::UD_SEND_ONLY, qpn, &payload, |_| ())
}

#[test]
fn processes_get_the_latest_clock_that_is_not_far_ahead_of_most() {
    // 1 ms is `ahead_max`: link 2 is further ahead of the median of the three and of the switch's machine.
    let mut exchange = Exchange::new([Some(-40_000), Some(700_000), Some(5_000_000), None], |_| ());
    exchange.run(20);
    assert_eq!([0, 1, 2, 3].map(|n| exchange.group(n)), [Some(700_000), Some(700_000), Some(700_000), None]);
    assert_eq!(
        exchange.function.clock(Nanos(exchange.ns)),
        at(exchange.ns + 700_000),
        "this node follows, too"
    );
    // What comes from above counts without a condition: switches below it have chosen.
    exchange.ahead[3] = Some(9_000_000);
    exchange.run(20);
    assert_eq!([0, 3].map(|n| exchange.group(n)), [Some(9_000_000), Some(700_000)]);
}

#[test]
fn clock_at_the_limit_does_not_come_and_go() {
    let mut exchange = Exchange::new([Some(0), Some(0), Some(900_000), None], |_| ());
    exchange.run(20);
    assert_eq!(exchange.group(0), Some(900_000));
    exchange.ahead[2] = Some(1_500_000);
    exchange.run(10);
    assert_eq!(exchange.group(0), Some(1_500_000), "it counts until it is ahead by twice as much");
    exchange.ahead[2] = Some(2_100_000);
    exchange.run(10);
    assert_eq!(exchange.group(0), Some(0));
    exchange.ahead[2] = Some(1_500_000);
    exchange.run(10);
    assert_eq!(exchange.group(0), Some(0), "and counts again below the limit");
}

#[test]
fn only_process_counts_unless_there_is_a_time_from_above() {
    let mut exchange = Exchange::new([Some(50_000_000), None, None, None], |_| ());
    exchange.run(5);
    assert_eq!(exchange.group(0), None, "after a start it may be the only one that is wrong");
    exchange.run(20);
    assert_eq!(exchange.group(0), Some(50_000_000));
    exchange.ahead[3] = Some(20_000);
    exchange.run(10);
    assert_eq!(exchange.group(0), Some(20_000));
    exchange.ahead = [Some(50_000_000), None, None, None];
    exchange.run(30);
    assert_eq!(exchange.group(0), Some(50_000_000));
}

#[test]
fn switch_above_takes_the_latest_time_of_all_and_the_earliest_of_receivers() {
    let above = |config: &mut Config| config.layer = 2;
    let mut exchange = Exchange::new([Some(0), Some(5_000_000), None, None], above);
    exchange.run(20);
    assert_eq!([exchange.group(0), exchange.group(1)], [Some(5_000_000); 2]);
    let backward = exchange.neighbours[1].backward(Nanos(exchange.ns));
    assert_eq!(backward.map(|epoch| epoch.distance(at(0))), Some(0));
}

#[test]
fn group_is_not_before_the_barrier() {
    let mut exchange = Exchange::new([Some(0), Some(0), Some(0), None], |_| ());
    exchange.run(20);
    let ns = exchange.ns;
    for n in 0..4 {
        verdict(&mut exchange.function, &beacon(n, Some(at(ns + 800_000))), n.into(), ns);
    }
    exchange.run(1);
    let ahead = exchange.group(0).unwrap();
    assert!((700_000..=800_000).contains(&ahead), "{ahead}");
}

/// Returns by how much the group's time is ahead at a switch whose commit registers have a floor of 900 us.
fn group_with_a_floor(bug: Option<crate::bug::Bug>) -> i64 {
    let change = |config: &mut Config| (config.fail_after_intervals, config.bug) = (Some(12), bug);
    let mut exchange = Exchange::new([Some(0), Some(0), Some(0), None], change);
    exchange.run(20);
    let floor = Some(at(exchange.ns + 900_000));
    let links = vec![super::commit::counted(0)];
    let values = Vec::with_capacity(links.len());
    let state =
        crate::commit::Configuration { version: 1, floors: [floor; 2], links, outputs: [None; 2], values };
    exchange.function.on_command(Command::Configure(state.into()), Nanos(exchange.ns));
    exchange.run(1);
    exchange.group(0).unwrap()
}

#[test]
fn group_is_not_before_the_floor_of_commit_registers() {
    let ahead = group_with_a_floor(None);
    assert!((800_000..=900_000).contains(&ahead), "{ahead}");
}

#[cfg(debug_assertions)]
#[test]
fn planted_bug_of_a_group_before_the_floor_is_found() {
    assert_eq!(group_with_a_floor(Some(crate::bug::Bug::GroupBeforeFloor)), 0);
}

#[test]
fn clock_beacons_are_refused_with_the_right_reason() {
    let mut exchange = Exchange::new([Some(0), Some(0), Some(0), None], |_| ());
    exchange.run(2);
    exchange.ns += T;
    let good = exchange.clock_beacon(0);
    let ns = exchange.ns;
    let mut give = |frame: &[u8], port| verdict(&mut exchange.function, frame, port, ns);
    let mut damaged = good.clone();
    *damaged.last_mut().unwrap() ^= 1;
    assert_ne!(give(&damaged, 0), Verdict::Consume);
    assert_eq!(give(&good, 1), Verdict::Drop(DropReason::WrongSource), "another port");
    assert_eq!(give(&good, 0), Verdict::Consume);
    assert_eq!(give(&good, 0), Verdict::Drop(DropReason::Stale), "repeated");
    let header = OnePipe::new(OnePipeOpcode::CLOCK, Timestamp::new(ns + 9), Psn::ZERO);
    assert_eq!(give(&framed(0, &header, &[0; 8]), 0), Verdict::Drop(DropReason::Stale), "short");
    let far = packet((false, 0, OWN), Opcode::UD_SEND_ONLY, Qpn::new(0x999), header.as_bytes(), |_| ());
    assert_eq!(give(&far, 0), Verdict::Drop(DropReason::NoQueuePair));
    assert_eq!(
        refused(&exchange.function),
        [("unknown_link", 1), ("wrong_source", 1), ("damaged", 1), ("clock", 2)]
    );
    for incarnation in [Incarnation::Chip, Incarnation::SwitchCpu, Incarnation::Host] {
        let mut function = representative(incarnation);
        assert_eq!(verdict(&mut function, &good, 0, ns), Verdict::Drop(DropReason::Unexpected));
        assert_eq!(refused(&function), [("clock", 1)], "it follows its machine's clock");
    }
    assert_eq!(ClockBody::LEN, good.len() - beacon(0, None).len());
}

#[test]
fn clock_beacons_need_one_node_at_the_other_end() {
    let mut config = config(Incarnation::Host);
    config.clock_source = ClockSource::Beacons;
    let end = &config.links[1];
    let (mac, qpn, beacon) = (end.mac, end.qpn, end.beacon);
    config.links[1].standby =
        Some(crate::config::End { mac, address: ip(false, 99), detour: Vec::new(), qpn, beacon });
    assert_eq!(Representative::new(config).err(), Some(ConfigError::ClockOfTwo(1)));
}

#[cfg(debug_assertions)]
#[test]
fn planted_bug_of_any_clock_is_found() {
    let bug = |config: &mut Config| config.bug = Some(crate::bug::Bug::FollowsAnyClock);
    let mut exchange = Exchange::new([Some(0), Some(0), Some(50 * MILLISECOND.cast_signed()), None], bug);
    exchange.run(20);
    assert_eq!(exchange.group(0), Some(50_000_000));
}
