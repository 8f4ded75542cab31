//! Refused frames, each with its reason and without effect; and invalid configurations.

use super::*;

/// Returns the header of a message from process 0 to process 1.
fn message(psn: u32, timestamp: Timestamp) -> OnePipe {
    let mut header = OnePipe::new(OnePipeOpcode::DATA, timestamp, Psn::new(psn));
    header.set_first(true);
    header.set_end_of_message(true);
    header
}

#[test]
fn frames_are_refused_with_the_right_reason() {
    let now = Nanos::from_micros(20);
    let clock = config(0, 2, false).clock.add(now.0);
    let [zero, one, tor] = [0, 1, TOR].map(|n| peer(false, n));
    let good = frame(zero, one, &message(5, clock), b"x");
    let outsider = Peer { qpn: Qpn::new(0x999), ..zero };
    let changed = |at: usize, to: u8| {
        let mut bytes = good.clone();
        bytes[at] = to;
        bytes
    };
    let ahead = clock.add(11_000_000);
    let with = |opcode| OnePipe::new(opcode, clock, Psn::new(5));
    let mut other_version = message(5, clock);
    other_version.version = 1;
    let mut early = message(5, clock);
    early.set_barrier(Some(ahead));
    let mut commits = OnePipe::new(OnePipeOpcode::BEACON, clock, Psn::ZERO);
    commits.set_commit(Some(ahead));
    let key = {
        let route = PathHeaders::new(&PathHeaderFields {
            src_mac: zero.mac,
            dst_mac: one.mac,
            vlan: None,
            src: zero.address,
            dst: one.address,
            traffic_class: 0,
            hop_limit: 1,
            src_port: 0xc000,
        });
        let mut bytes = Vec::new();
        Template::new(route.unwrap(), one.qpn, 7, zero.qpn).emit(&mut bytes, &message(5, clock), &[]);
        bytes
    };
    let cases = [
        (vec![0; 60], Refusal::NotOurs),
        (frame(zero, Peer { qpn: Qpn::new(3), ..one }, &message(5, clock), b""), Refusal::NotOurs),
        (frame(zero, Peer { mac: tor.mac, ..one }, &message(5, clock), b""), Refusal::NotOurs),
        (frame(zero, Peer { address: tor.address, ..one }, &message(5, clock), b""), Refusal::NotOurs),
        (key, Refusal::WrongKey),
        (changed(good.len() - 8, 0xee), Refusal::Damaged),
        (frame(zero, one, &other_version, b"x"), Refusal::OtherVersion),
        (frame(zero, one, &with(OnePipeOpcode::RELIABLE_DATA), b"x"), Refusal::NotAdmitted),
        (frame(zero, one, &with(OnePipeOpcode::RECALL), b""), Refusal::NotAdmitted),
        (frame(zero, one, &with(OnePipeOpcode(99)), b""), Refusal::Opcode),
        (frame(outsider, one, &message(5, clock), b"x"), Refusal::UnknownSource),
        (frame(tor, one, &message(5, clock), b"x"), Refusal::UnknownSource),
        (frame(zero, one, &with(OnePipeOpcode::BEACON), b""), Refusal::WrongSource),
        (frame(zero, one, &message(5, ahead), b"x"), Refusal::Ahead),
        (frame(zero, one, &with(OnePipeOpcode::ACK), &[0; AckBody::LEN - 1]), Refusal::NoHeader),
        (frame(zero, one, &with(OnePipeOpcode::NAK), &[0; NakBody::LEN - 1]), Refusal::NoHeader),
        (frame(zero, one, &with(OnePipeOpcode::ACK), &[0; AckBody::LEN]), Refusal::Answer),
        (frame(zero, one, &with(OnePipeOpcode::NAK), &[0; NakBody::LEN]), Refusal::Answer),
    ];
    let mut process = Process::new(config(1, 2, false)).unwrap();
    process.on_timer(now);
    declare(&mut process, now);
    for (number, (bytes, why)) in cases.into_iter().enumerate() {
        let before = process.counters().refused(why);
        assert_eq!(process.on_frame(&bytes, now), Err(why), "case {number}");
        assert_eq!(process.counters().refused(why), before + 1);
    }
    assert_eq!(process.barriers(), (None, None));
    // Barriers that are too far ahead are lowered.
    let most = clock.add(process.config().ahead_max.0);
    assert_eq!(process.on_frame(&frame(zero, one, &early, b"x"), now), Ok(()));
    assert_eq!((process.barriers(), process.counters().packets_taken.get()), ((Some(most), None), 1));
    commits.set_barrier(None);
    assert_eq!(process.on_frame(&frame(tor, one, &commits, b""), now), Ok(()));
    assert_eq!(process.barriers(), (Some(most), Some(most)));
}

#[test]
fn duplicates_replays_and_barriers_that_go_back_are_refused() {
    let now = Nanos::from_micros(20);
    let clock = config(0, 2, false).clock.add(now.0);
    let [zero, one] = [0, 1].map(|n| peer(false, n));
    let send = |psn, timestamp| frame(zero, one, &message(psn, timestamp), b"x");
    let mut process = Process::new(config(1, 2, false)).unwrap();
    process.on_timer(now);
    declare(&mut process, now);
    let early = clock.add((1 << 48) - 5_000);
    assert_eq!(process.on_frame(&send(100, early), now), Ok(()));
    assert_eq!(process.on_frame(&send(100, early), now), Err(Refusal::Duplicate));
    assert_eq!(process.on_frame(&send(102, clock), now), Ok(()));
    assert_eq!(process.on_frame(&send(102, clock), now), Err(Refusal::Duplicate), "behind a gap");
    assert_eq!(process.barriers().0, Some(clock), "the message's own barrier");
    // The process's barrier is later; that of the late message is ignored.
    assert_eq!(process.on_frame(&send(101, early.add(1)), now), Err(Refusal::Late));
    let later = clock.add(10);
    process.on_frame(&beacon(false, 1, Some(later), now), now).unwrap();
    assert_eq!(process.on_frame(&beacon(false, 1, Some(clock), now), now), Err(Refusal::Stale));
    assert_eq!(process.barriers().0, Some(later));
    let texts: Vec<_> =
        core::iter::from_fn(|| process.unreliable_recv()).map(|message| message.timestamp).collect();
    assert_eq!(texts, [early], "the other message waits for the clock");
    process.on_timer(now + Nanos(1));
    assert_eq!(process.unreliable_recv().map(|message| message.timestamp), Some(clock));
    // After delivery, repetitions are still recognised, and so are packets too far back to be recorded.
    assert_eq!(process.on_frame(&send(100, early), now), Err(Refusal::Duplicate));
    assert_eq!(process.on_frame(&send(0x80_0000 + 90, early), now), Err(Refusal::GivenUp));
    assert_eq!(process.unreliable_recv(), None);
    // In the middle of a run whose first packet never arrived
    let mut rest = message(103, later);
    rest.set_first(false);
    assert_eq!(process.on_frame(&frame(zero, one, &rest, b"x"), now), Err(Refusal::Incomplete));
}

#[test]
fn packet_without_room_is_naked() {
    let now = Nanos::from_micros(20);
    let clock = config(0, 2, false).clock.add(now.0);
    let [zero, one] = [0, 1].map(|n| peer(false, n));
    let mut config = config(1, 2, false);
    (config.receive_buffer, config.receive_window) = (320, 1000);
    let mut process = Process::new(config).unwrap();
    process.on_timer(now);
    let send = |psn| frame(zero, one, &message(psn, clock.add(psn.into())), &[0; 100]);
    assert_eq!([1, 2].map(|psn| process.on_frame(&send(psn), now)), [Ok(()), Err(Refusal::NoRoom)]);
    let mut bytes = Vec::new();
    let mut answers = Vec::new();
    while process.poll_transmit(now, &mut bytes) {
        let packet = Packet::parse(&bytes).unwrap();
        let header = OnePipe::of(&packet).unwrap();
        answers.push((header.opcode(), header.psn().get(), packet.payload().get(OnePipe::LEN).copied()));
    }
    let refused = (OnePipeOpcode::NAK, 2, Some(NakBody::NO_ROOM));
    assert!(answers.contains(&refused), "{answers:?}");
}

/// Sends a process a beacon without a barrier, of a switch that writes barriers into messages.
fn declare(process: &mut Process, now: Nanos) {
    let mut header = OnePipe::new(OnePipeOpcode::BEACON, config(0, 1, false).clock.add(now.0), Psn::ZERO);
    header.set_barrier(None);
    header.declare(true, true);
    process.on_frame(&frame(peer(false, TOR), peer(false, 1), &header, &[]), now).unwrap();
}

#[test]
fn barriers_in_messages_are_ignored_without_a_declaration() {
    let now = Nanos::from_micros(20);
    let clock = config(0, 2, false).clock.add(now.0);
    let mut process = Process::new(config(1, 2, false)).unwrap();
    let [zero, one] = [0, 1].map(|n| peer(false, n));
    assert_eq!(process.on_frame(&frame(zero, one, &message(5, clock), b"x"), now), Ok(()));
    assert_eq!(process.barriers(), (None, None));
    let mut header = OnePipe::new(OnePipeOpcode::BEACON, clock, Psn::ZERO);
    header.set_commit(Some(clock.add(7)));
    process.on_frame(&frame(peer(false, TOR), one, &header, b""), now).unwrap();
    assert_eq!(process.barriers(), (Some(clock), Some(clock.add(7))));
    // A declaration is valid for ten intervals.
    declare(&mut process, now);
    let lease = 10 * process.config().beacon_interval.0;
    for (psn, after, counts) in [(6, lease - 1, true), (7, lease, false)] {
        let (now, time) = (now + Nanos(after), clock.add(after));
        assert_eq!(process.on_frame(&frame(zero, one, &message(psn, time), b"x"), now), Ok(()));
        assert_eq!(process.barriers().0 == Some(time), counts);
    }
}

#[test]
fn invalid_configurations_are_refused() {
    let refused = |change: &dyn Fn(&mut Config)| {
        let mut config = config(0, 3, false);
        change(&mut config);
        Process::new(config).map(|_| ()).unwrap_err()
    };
    assert_eq!(refused(&|config| config.mtu = 255), ConfigError::Mtu(255));
    assert_eq!(refused(&|config| config.mtu = 4100), ConfigError::Mtu(4100));
    assert_eq!(refused(&|config| config.beacon_interval = Nanos(999)), ConfigError::Interval(Nanos(999)));
    let window = ConfigError::Window { name: "receive_window", bytes: 9, packet: 256 - 24 + PACKET_COST };
    assert_eq!(refused(&|config| config.receive_window = 9), window);
    let many = ConfigError::TooManyPackets { window: (1 << 28) + 1, most: 1 << 28 };
    assert_eq!(refused(&|config| config.receive_window = (1 << 28) + 1), many);
    let timeout = ConfigError::Timeout { timeout: Nanos(3000), ack_delay: Nanos(3000) };
    assert_eq!(refused(&|config| config.timeout = Nanos(3000)), timeout);
    assert_eq!(refused(&|config| config.peers[1].id = ProcessId(1)), ConfigError::Duplicate(ProcessId(1)));
    assert_eq!(refused(&|config| config.peers[1].id = ProcessId(0)), ConfigError::Duplicate(ProcessId(0)));
    let same = |config: &mut Config| {
        (config.peers[1].address, config.peers[1].qpn) = (config.peers[0].address, config.peers[0].qpn);
    };
    assert_eq!(refused(&same), ConfigError::Duplicate(ProcessId(2)));
    assert_eq!(refused(&|config| config.tor.address = ip(true, 9)), ConfigError::IpVersion(ip(true, 9)));
}
