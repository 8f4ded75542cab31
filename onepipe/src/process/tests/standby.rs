//! A process whose switch has a standby: beacons to and from two nodes.

use super::*;

const STANDBY: u8 = 0xfe;

fn process_with_standby() -> Process {
    let mut config = config(1, 2, false);
    let Peer { mac, address, qpn, .. } = peer(false, STANDBY);
    config.standby = Some(BeaconPeer { mac, address, qpn, detour: Vec::new() });
    Process::new(config).unwrap()
}

/// Returns the destinations, sources and headers of the frames that a process sends.
fn sent(process: &mut Process, now: Nanos) -> Vec<(IpAddr, Qpn, OnePipe)> {
    let (mut frame, mut sent) = (Vec::new(), Vec::new());
    while process.poll_transmit(now, &mut frame) {
        let packet = Packet::parse(&frame).expect("a packet");
        assert!(packet.verify_icrc());
        sent.push((packet.dst(), packet.deth().unwrap().src_qp(), *OnePipe::of(&packet).unwrap()));
    }
    sent
}

#[test]
fn both_nodes_get_the_same_beacons() {
    let mut process = process_with_standby();
    for qpn in [process.config().own.qpn, Qpn::new(0x700)] {
        let config = process.config.clone();
        assert!(process.beacons.set_queue_pair(qpn, &config));
        let now = process.next_timer().unwrap();
        process.on_timer(now);
        let mut first = Vec::new();
        assert!(process.poll_transmit(now, &mut first));
        // The port has no room for the second one until later: it promises what the first one does.
        let second = sent(&mut process, now + Nanos(900));
        let packet = Packet::parse(&first).unwrap();
        let header = *OnePipe::of(&packet).unwrap();
        assert_eq!(packet.dst(), ip(false, TOR));
        assert_eq!(second, [(ip(false, STANDBY), qpn, header)]);
    }
    assert_eq!(process.counters().beacons_sent.get(), 4);
}

/// Passes a process a beacon of one of the two nodes.
fn beacon(
    process: &mut Process,
    from: u8,
    now: u64,
    change: impl FnOnce(&mut OnePipe),
) -> Result<(), Refusal> {
    let mut header = OnePipe::new(OnePipeOpcode::BEACON, config(0, 1, false).clock.add(now), Psn::ZERO);
    change(&mut header);
    let frame = super::frame(peer(false, from), peer(false, 1), &header, &[]);
    process.on_frame(&frame, Nanos(now))
}

#[test]
fn one_of_two_nodes_is_enough() {
    let mut process = process_with_standby();
    let time = |by| Some(config(0, 1, false).clock.add(by));
    beacon(&mut process, TOR, 10_000, |_| {}).unwrap();
    beacon(&mut process, STANDBY, 9_000, |_| {}).unwrap();
    assert_eq!(process.barriers().0, time(10_000), "the maximum; the slower one is not stale");
    let repeated = beacon(&mut process, STANDBY, 8_000, |_| {});
    assert_eq!(repeated, Err(Refusal::Stale));
    beacon(&mut process, STANDBY, 11_000, |_| {}).unwrap();
    beacon(&mut process, TOR, 12_000, |header| header.set_removed(true)).unwrap();
    assert_eq!(process.barriers().0, time(11_000), "the first node does not hear an input");
    beacon(&mut process, 7, 13_000, |_| {}).unwrap_err();
    // Ten intervals later, the first node is the only one.
    for _ in 0..=10 {
        process.on_timer(process.next_timer().unwrap());
    }
    beacon(&mut process, TOR, 40_000, |header| header.set_removed(true)).unwrap();
    assert_eq!(process.barriers().0, time(40_000));
}

#[test]
fn second_node_that_announces_that_nothing_follows_ends_nothing() {
    let mut process = process_with_standby();
    process.leave();
    let last = |header: &mut OnePipe| {
        header.set_barrier(None);
        header.set_nothing_follows(true);
    };
    beacon(&mut process, TOR, 1_000, |_| {}).unwrap();
    beacon(&mut process, STANDBY, 2_000, last).unwrap();
    assert_eq!(process.barriers().0, Some(config(0, 1, false).clock.add(1_000)));
    beacon(&mut process, TOR, 3_000, last).unwrap();
    assert_eq!(process.barriers().0, Some(config(0, 1, false).clock.add(3_000)), "by both");
}

#[test]
fn standby_with_the_address_of_the_first_node_is_refused() {
    let mut config = config(1, 2, false);
    config.standby = Some(BeaconPeer { qpn: Qpn::new(0x77), ..config.tor.clone() });
    assert_eq!(Process::new(config).err(), Some(ConfigError::SameEnd(ip(false, TOR))));
}

#[test]
fn node_without_a_named_source_gets_no_commit_value() {
    let mut process = process_with_standby();
    let time = |by| Some(config(0, 1, false).clock.add(by));
    let mut commits = |sources: &[u8], by: u64| {
        let sources = sources.iter().map(|&end| (ip(false, end), Qpn::new(0x900))).collect();
        process.set_commit_sources(sources);
        let (mut now, mut frame) = (Nanos::ZERO, Vec::new());
        let Process { beacons, clock, .. } = &mut process;
        let mut emit = |now| {
            beacons.send(None, false, |_| time(by), clock, now, &mut frame);
            OnePipe::of(&Packet::parse(&frame).unwrap()).unwrap().commit()
        };
        now.0 += by;
        [emit(now), emit(now)]
    };
    assert_eq!(commits(&[TOR, STANDBY], 1), [time(1), time(1)]);
    assert_eq!(commits(&[STANDBY], 2), [None, time(2)]);
    assert_eq!(commits(&[TOR], 3), [time(3), None]);
    assert_eq!(commits(&[TOR, STANDBY], 4), [time(4), time(4)]);
}
