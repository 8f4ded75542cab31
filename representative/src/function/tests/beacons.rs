//! When beacons are sent, what they contain, and what happens to links without beacons.

use super::*;
use onepipe::ClockSample;

/// Sets the clock to `clock` at time `now`, by three samples.
pub(super) fn set_clock(function: &mut Representative, clock: u64, now: u64) {
    for _ in 0..3 {
        function.on_command(Command::Clock(ClockSample::at(at(clock), Nanos(now))), Nanos(now));
    }
}

#[test]
fn idle_links_get_beacons_when_the_barrier_passes_an_instant() {
    let mut function = representative(Incarnation::Chip);
    let sent = timer(&mut function, 5);
    assert!(
        sent.len() == 4 && sent.iter().all(|(header, _)| header.barrier().is_none()),
        "beacons without a barrier ask neighbours to wait"
    );
    assert!(sent.iter().all(|(header, _)| !header.nothing_follows()));
    update_all(&mut function, 100);
    let sent = timer(&mut function, 110);
    assert_eq!(sent.iter().map(|&(_, PortId(port))| port).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert!(sent.iter().all(|(header, _)| header.barrier() == Some(at(100))));
    assert_eq!(timer(&mut function, 120), [], "each barrier is sent once");
    // The last of the four links makes the barrier pass the instant; a message has already carried it to link
    // 2.
    for n in 0..3 {
        verdict(&mut function, &beacon(n, Some(at(T + 10))), n.into(), T + 100);
    }
    let (frame, _) = forwarded(&mut function, &data(1, 2, T + 200), 1, T + 200);
    assert_eq!(header_of(&frame).barrier(), Some(at(T + 10)));
    let sent = timer(&mut function, T + 210);
    assert_eq!(sent.len(), 1, "the up half needs links 0 and 1 only");
    assert_eq!((sent[0].1, sent[0].0.barrier()), (PortId(3), Some(at(T + 10))));
    verdict(&mut function, &beacon(3, Some(at(T + 10))), 3, T + 300);
    assert_eq!(timer(&mut function, T + 310).len(), 2, "downwards to 0 and 1");
    // A barrier that does not rise is repeated every other interval.
    let repeated: usize = (2..8).map(|n| timer(&mut function, n * T).len()).sum();
    assert_eq!(repeated, 3 * 4);
    let counters = function.counters();
    assert_eq!((counters.ticks.get(), counters.ticks_missed.get(), counters.late_ns.get()), (8, 0, 210));
    assert_eq!(counters.latest_ns.get(), 210);
}

#[test]
fn neighbour_that_reads_no_messages_gets_beacons_beside_them() {
    for pace in [Pace::Passing, Pace::Instants] {
        let mut config = config(Incarnation::Chip);
        config.pace = pace;
        let mut function = Representative::new(config).unwrap();
        update_all(&mut function, 100);
        timer(&mut function, 110);
        for n in [0, 1, 3] {
            verdict(&mut function, &beacon(n, Some(at(T + 10))), n.into(), T + 100);
        }
        verdict(&mut function, &undeclared(2, at(T + 10)), 2, T + 100);
        forwarded(&mut function, &data(1, 2, T + 200), 1, T + 200);
        forwarded(&mut function, &data(1, 3, T + 200), 1, T + 200);
        let above = timer(&mut function, T + 210).into_iter().filter(|&(_, PortId(port))| port >= 2);
        let above: Vec<_> = above.map(|(header, port)| (header.barrier(), port)).collect();
        assert_eq!(above, [(Some(at(T + 10)), PortId(2))], "{pace:?}");
    }
}

#[test]
fn beacon_that_names_the_switch_as_its_source_does_not_reach_its_neighbour() {
    for incarnation in [Incarnation::Chip, Incarnation::SwitchCpu] {
        let mut function = representative(incarnation);
        update_all(&mut function, 100);
        let promise = header(OnePipeOpcode::BEACON, at(200), Some(at(200)));
        for opcode in [Opcode::UD_SEND_ONLY, Opcode::UC_WRITE_ONLY] {
            let forged = packet((false, OWN_IP, mac(2)), opcode, FIRST_QP, promise.as_bytes(), |_| ());
            assert_eq!(verdict(&mut function, &forged, 0, 200), Verdict::Drop(DropReason::WrongSource));
        }
        assert_eq!(refused(&function), [(Refusal::WrongSource.name(), 2)], "{incarnation:?}");
    }
}

#[test]
fn beacons_at_instants_for_idle_links() {
    let mut config = config(Incarnation::Chip);
    config.pace = Pace::Instants;
    let mut function = Representative::new(config).unwrap();
    update_all(&mut function, 100);
    timer(&mut function, 110);
    assert_eq!(function.next_timer(), Some(Nanos(T)), "multiples of the interval, by 1Pipe's clock");
    forwarded(&mut function, &data(0, 2, 200), 0, 200);
    let ports: Vec<_> = timer(&mut function, T).into_iter().map(|(_, PortId(port))| port).collect();
    assert_eq!(ports, [0, 1, 3], "2 had a message");
    assert_eq!(timer(&mut function, 2 * T).len(), 4);
    // After a correction of the clock, the instants are at other times.
    set_clock(&mut function, 2 * T + 100, 2 * T);
    assert_eq!(function.next_timer(), Some(Nanos(3 * T - 100)));
}

/// One sample that is off has no effect.
#[test]
fn outlier_of_the_clock_loosens_no_limit() {
    const HOUR: u64 = 3_600_000_000_000;
    let mut function = representative(Incarnation::Chip);
    update_all(&mut function, 100);
    for off in [0, HOUR, 0] {
        let sample = ClockSample::at(at(200 + off), Nanos(200));
        function.on_command(Command::Clock(sample), Nanos(300));
    }
    forwarded(&mut function, &data(0, 2, HOUR), 0, 400);
    assert_eq!(function.counters().lowered.get(), 1, "its barrier is ahead of the clock");
}

#[test]
fn representative_whose_clock_is_set_back_refuses_no_correct_clock() {
    const MS: u64 = 1_000_000;
    let mut function = representative(Incarnation::Chip);
    update_all(&mut function, 100);
    set_clock(&mut function, 200, 10 * MS);
    forwarded(&mut function, &data(0, 2, 10 * MS + 500), 0, 10 * MS + 500);
    assert_eq!(function.counters().lowered.get(), 0);
    forwarded(&mut function, &data(0, 2, 12 * MS), 0, 10 * MS + 600);
    assert_eq!(function.counters().lowered.get(), 1);
    // A clock that is set forward again is the reference again.
    set_clock(&mut function, 12 * MS, 11 * MS);
    forwarded(&mut function, &data(0, 2, 13 * MS), 0, 11 * MS);
    assert_eq!(function.counters().lowered.get(), 1);
}

#[test]
fn write_beacons_are_executed_by_the_representative() {
    let mut config = config(Incarnation::Host);
    for link in &mut config.links {
        link.port = PortId(0);
        link.beacon = BeaconForm::Write { va: 0x1000, rkey: 0x77 };
    }
    config.links[3].address = ip(true, 3);
    let mut function = Representative::new(config).unwrap();
    timer(&mut function, 5);
    for n in 0..3 {
        assert_eq!(verdict(&mut function, &write(n, n, at(500), |_| ()), 0, 500), Verdict::Consume);
    }
    // The last link over IPv6, and with a datagram.
    let bytes = header(OnePipeOpcode::BEACON, at(400), Some(at(400)));
    let qpn = Qpn::new(FIRST_QP.get() + 3);
    let frame = packet((true, 3, OWN), Opcode::UD_SEND_ONLY, qpn, bytes.as_bytes(), |_| ());
    assert_eq!(verdict(&mut function, &frame, 0, 500), Verdict::Consume);
    assert_eq!(function.barriers(Side::Below).0, Some(at(400)));
    let counters = function.counters();
    assert_eq!((counters.writes.get(), counters.datagrams.get()), (3, 1));

    let mut out = FrameCollector::with_room(3);
    function.on_timer(Nanos(600), &mut out);
    assert_eq!((counters.beacons.get(), counters.unsent.get()), (4 + 3, 1), "there was room for three");
    for ((frame, port), n) in out.frames.iter().zip(0u8..) {
        let packet = Packet::parse(frame.bytes()).unwrap();
        assert!(packet.verify_icrc());
        assert_eq!((packet.src(), packet.dst(), *port), (ip(false, 254), ip(false, n), PortId(0)));
        assert_eq!((packet.ethernet().dst, packet.bth().dest_qp()), (mac(n), Qpn::new(0x30 + u32::from(n))));
        assert_eq!((packet.layout().opcode(), packet.ipv4().unwrap().tos), (Opcode::UC_WRITE_ONLY, 0x6a));
        let reth = packet.reth().unwrap();
        assert_eq!((reth.va.get(), reth.rkey.get(), reth.len.get()), (0x1000, 0x77, 24));
        assert_eq!(packet.payload().len(), OnePipe::LEN);
        let expected = if n < 2 { at(400) } else { at(500) };
        assert_eq!(OnePipe::read_from_bytes(packet.payload()).unwrap().barrier(), Some(expected));
    }
    // The beacon that there was no room for is still due at the next instant that the barrier passes.
    let mut out = FrameCollector::with_room(8);
    function.on_timer(Nanos(700), &mut out);
    let packet = Packet::parse(out.frames[0].0.bytes()).unwrap();
    assert_eq!((out.frames.len(), packet.dst()), (1, ip(true, 3)));
    assert_eq!(packet.ipv6().unwrap().traffic_class(), 0x6a);
}

#[test]
fn silent_link_is_removed_and_returns() {
    let mut function = representative(Incarnation::Chip);
    timer(&mut function, 0);
    update_all(&mut function, 10);
    for n in 1..=10 {
        timer(&mut function, n * T);
        for link in [0, 2, 3] {
            verdict(&mut function, &beacon(link, Some(at(n * T + 5))), link.into(), n * T + 5);
        }
    }
    assert_eq!((function.barriers(Side::Above).0, function.poll_event()), (Some(at(10)), None));
    assert_eq!(timer(&mut function, 11 * T).len(), 4, "the barrier rises at once");
    assert_eq!(function.poll_event(), Some(Event::Dead(LinkId(1))));
    assert_eq!(function.barriers(Side::Below).0, Some(at(10 * T + 5)));
    // Too far behind, then waited for, then caught up.
    assert_eq!(verdict(&mut function, &beacon(1, Some(at(4))), 1, 11 * T), Verdict::Drop(DropReason::Stale));
    assert_eq!(verdict(&mut function, &beacon(1, Some(at(9 * T))), 1, 11 * T), Verdict::Consume);
    assert_eq!(function.poll_event(), Some(Event::Joined(LinkId(1))));
    for link in [0, 2, 3] {
        verdict(&mut function, &beacon(link, Some(at(11 * T + 5))), link.into(), 11 * T + 5);
    }
    assert_eq!(function.barriers(Side::Below).0, Some(at(10 * T + 5)), "suspended");
    verdict(&mut function, &beacon(1, Some(at(11 * T + 1))), 1, 11 * T + 6);
    assert_eq!(function.barriers(Side::Below).0, Some(at(11 * T + 1)));
    assert_eq!((refused(&function), function.counters().dead.get()), (vec![("too_far_behind", 1)], 1));
}

#[test]
fn link_that_leaves_is_not_waited_for() {
    let mut function = representative(Incarnation::Chip);
    update_all(&mut function, 100);
    timer(&mut function, 100);
    assert_eq!(verdict(&mut function, &final_beacon(0, 200), 0, 200), Verdict::Consume);
    assert_eq!(function.poll_event(), Some(Event::Left(LinkId(0))));
    for n in 1..4 {
        verdict(&mut function, &beacon(n, Some(at(300))), n.into(), 300);
    }
    assert_eq!(function.barriers(Side::Below).0, Some(at(300)));
    // No link is left below: beacons announce to the neighbours above that nothing follows, and the down half
    // goes on.
    verdict(&mut function, &final_beacon(1, 400), 1, 400);
    for n in 2..4 {
        verdict(&mut function, &beacon(n, Some(at(T + 1))), n.into(), T);
    }
    let sent: Vec<_> =
        timer(&mut function, T).into_iter().map(|(header, PortId(port))| (port, header.barrier())).collect();
    assert_eq!(sent, [(0, Some(at(T + 1))), (1, Some(at(T + 1))), (2, None), (3, None)]);
    assert_eq!(verdict(&mut function, &beacon(0, Some(at(T + 50))), 0, T + 50), Verdict::Consume);
    assert_eq!((function.barriers(Side::Above).0, function.counters().left.get()), (Some(at(T + 50)), 2));
}

/// A late, repeated or overtaken announcement, of a link that has carried barriers since, would raise the
/// barrier above timestamps that still arrive.
#[test]
fn stale_announcement_that_nothing_follows_is_refused() {
    for incarnation in [Incarnation::Chip, Incarnation::SwitchCpu, Incarnation::Host] {
        let mut function = representative(incarnation);
        let stale = Verdict::Drop(DropReason::Stale);
        // Older than the join window
        assert_eq!(verdict(&mut function, &final_beacon(0, 0), 0, 10 * T + 1), stale);
        update_all(&mut function, 11 * T);
        assert_eq!(verdict(&mut function, &final_beacon(0, 11 * T - 1), 0, 11 * T), stale);
        assert!(function.is_live(LinkId(0)));
        // The link leaves, and returns with an earlier barrier, delivered late.
        assert_eq!(verdict(&mut function, &final_beacon(0, 11 * T + 50), 0, 11 * T + 50), Verdict::Consume);
        assert!(!function.is_live(LinkId(0)));
        verdict(&mut function, &beacon(0, Some(at(11 * T + 40))), 0, 11 * T + 60);
        assert!(function.is_live(LinkId(0)));
        assert_eq!(
            verdict(&mut function, &final_beacon(0, 11 * T + 50), 0, 11 * T + 60),
            stale,
            "a repetition"
        );
        assert!(function.is_live(LinkId(0)));
        for n in 1..4 {
            verdict(&mut function, &beacon(n, Some(at(11 * T + 90))), n.into(), 11 * T + 90);
        }
        assert_eq!(function.barriers(Side::Above).0, Some(at(11 * T + 40)));
        assert_eq!(verdict(&mut function, &final_beacon(0, 11 * T + 70), 0, 11 * T + 90), Verdict::Consume);
        assert_eq!(function.barriers(Side::Above).0, Some(at(11 * T + 90)));
        assert_eq!(refused(&function), [("stale", 3)]);
    }
}

/// What a neighbour announces is compared with its own beacons, so that it counts however far the two clocks
/// are apart.
#[test]
fn neighbour_leaves_whatever_the_difference_of_clocks() {
    const HOUR: u64 = 3_600_000_000_000;
    let stale = Verdict::Drop(DropReason::Stale);
    for incarnation in [Incarnation::Chip, Incarnation::SwitchCpu, Incarnation::Host] {
        // The neighbours' clocks are an hour ahead of the switch's, or as far behind.
        for [theirs, own] in [[HOUR, 0], [0, HOUR]] {
            let mut function = representative(incarnation);
            for n in 0..4 {
                verdict(&mut function, &beacon(n, Some(at(theirs + 100))), n.into(), own + 100);
            }
            assert_eq!(verdict(&mut function, &final_beacon(0, theirs + 99), 0, own + 200), stale);
            verdict(&mut function, &final_beacon(0, theirs + 200), 0, own + 200);
            assert_eq!(function.poll_event(), Some(Event::Left(LinkId(0))), "{incarnation:?}");
            assert!(!function.is_live(LinkId(0)));

            // After a restart of the switch, the first beacon tells nothing: it may be a late one. Nor does
            // its repetition.
            let mut function = representative(incarnation);
            for _ in 0..2 {
                let first = verdict(&mut function, &final_beacon(0, theirs + 300), 0, own + 300);
                assert!(matches!(first, Verdict::Drop(_)));
            }
            assert_eq!((function.poll_event(), function.is_live(LinkId(0))), (None, true));
            verdict(&mut function, &final_beacon(0, theirs + 300 + T), 0, own + 300 + T);
            assert_eq!(function.poll_event(), Some(Event::Left(LinkId(0))), "{incarnation:?}");
            // A late announcement before any beacon of the link's new incarnation does no more.
            let mut function = representative(incarnation);
            verdict(&mut function, &final_beacon(0, theirs + 300), 0, own + 400);
            verdict(&mut function, &beacon(0, Some(at(theirs + 390))), 0, own + 410);
            assert_eq!(verdict(&mut function, &final_beacon(0, theirs + 380), 0, own + 420), stale);
            assert!(function.is_live(LinkId(0)));
        }
    }
}

#[test]
fn worker_that_slept_finds_no_link_dead() {
    let mut function = representative(Incarnation::SwitchCpu);
    timer(&mut function, 0);
    update_all(&mut function, 10);
    timer(&mut function, 10 + 50 * T);
    assert_eq!((function.poll_event(), function.counters().ticks_missed.get()), (None, 49));
    assert_eq!(function.next_timer(), Some(Nanos(51 * T)));
}

#[test]
fn forged_beacon_with_a_wrong_udp_checksum_does_not_reach_the_neighbour() {
    for incarnation in [Incarnation::Chip, Incarnation::SwitchCpu] {
        let mut config = config(incarnation);
        config.forward.verify_udp_checksum = true;
        let mut function = Representative::new(config).unwrap();
        update_all(&mut function, 100);
        let promise = header(OnePipeOpcode::BEACON, at(200), Some(at(200)));
        for opcode in [Opcode::UD_SEND_ONLY, Opcode::UC_WRITE_ONLY] {
            let mut forged = packet((false, OWN_IP, mac(2)), opcode, FIRST_QP, promise.as_bytes(), |_| ());
            forged[41] = 1;
            assert!(Packet::parse(&forged).unwrap().verify_icrc(), "the ICRC does not cover the checksum");
            assert!(matches!(verdict(&mut function, &forged, 0, 200), Verdict::Drop(_)), "{incarnation:?}");
        }
    }
}

#[test]
fn message_with_a_wrong_udp_checksum_does_not_pass_with_its_senders_barrier() {
    let mut config = config(Incarnation::Chip);
    config.forward.verify_udp_checksum = true;
    let mut function = Representative::new(config).unwrap();
    update_all(&mut function, 100);
    let mut damaged = data(0, 2, 900);
    damaged[41] = 1;
    let refused = Verdict::Drop(DropReason::Malformed(rocev2::Fault::UdpChecksum));
    assert_eq!(verdict(&mut function, &damaged, 0, 900), refused);
}

#[test]
fn neighbour_gets_beacons_beside_messages_that_it_refuses() {
    for pace in [Pace::Passing, Pace::Instants] {
        let mut config = config(Incarnation::Chip);
        config.pace = pace;
        let mut function = Representative::new(config).unwrap();
        update_all(&mut function, 100);
        timer(&mut function, 110);
        let mut beacons = 0;
        for tick in 1..100u64 {
            for n in 1..4 {
                verdict(&mut function, &beacon(n, Some(at(tick * T))), n.into(), tick * T);
            }
            verdict(&mut function, &undeclared(0, at(tick * T)), 0, tick * T);
            let mut damaged = data(0, 2, tick * T + 5);
            *damaged.last_mut().unwrap() ^= 1;
            assert!(matches!(verdict(&mut function, &damaged, 0, tick * T + 5), Verdict::Forward(_)));
            beacons +=
                timer(&mut function, tick * T + 10).iter().filter(|(_, port)| *port == PortId(2)).count();
        }
        assert!(beacons > 10, "{pace:?}: {beacons}");
    }
}

#[test]
fn beacons_of_a_representative_pass_a_chip_wherever_it_is() {
    let mut function = representative(Incarnation::Chip);
    let promise = header(OnePipeOpcode::BEACON, at(200), Some(at(200)));
    for opcode in [Opcode::UC_WRITE_ONLY, Opcode::UD_SEND_ONLY] {
        let passing = packet((false, 4, mac(2)), opcode, FIRST_QP, promise.as_bytes(), |_| ());
        assert_eq!(verdict(&mut function, &passing, 4, 200), Verdict::Forward(PortId(2)), "{opcode:?}");
    }
}

#[test]
fn beacons_of_a_representative_above_pass_a_switch_upwards() {
    let mut function = representative(Incarnation::SwitchCpu);
    let promise = header(OnePipeOpcode::BEACON, at(200), Some(at(200)));
    for opcode in [Opcode::UC_WRITE_ONLY, Opcode::UD_SEND_ONLY] {
        let passing = packet((false, 77, mac(2)), opcode, FIRST_QP, promise.as_bytes(), |_| ());
        assert_eq!(verdict(&mut function, &passing, 3, 200), Verdict::Forward(PortId(2)), "{opcode:?}");
    }
}

#[test]
fn link_whose_barrier_does_not_rise_stays_alive_despite_a_lost_beacon() {
    let mut config = config(Incarnation::SwitchCpu);
    config.dead_after_intervals = crate::MIN_DEAD_AFTER;
    let [mut sender, mut receiver] = [(); 2].map(|()| Representative::new(config.clone()).unwrap());
    for function in [&mut sender, &mut receiver] {
        timer(function, 0);
        update_all(function, 100);
    }
    let mut sent = 0;
    for ns in (200..40 * T).step_by(100) {
        let receive = |function: &mut Representative, n: u8, barrier| {
            verdict(function, &beacon(n, Some(at(barrier))), n.into(), ns);
        };
        if ns % T == 700 {
            // The barrier of link 0 does not rise.
            for n in [0, 1] {
                receive(&mut sender, n, 100);
            }
            for n in [1, 2, 3] {
                receive(&mut receiver, n, ns);
            }
        }
        timer(&mut receiver, ns);
        if timer(&mut sender, ns).iter().any(|&(_, port)| port == PortId(2)) {
            sent += 1;
            if sent % 3 > 0 {
                receive(&mut receiver, 0, 100);
            }
        }
    }
    assert!(sent > 15 && receiver.is_live(LinkId(0)), "{sent} beacons");
}

#[test]
fn beacons_declare_what_their_sender_reads_and_writes() {
    for incarnation in [Incarnation::Chip, Incarnation::SwitchCpu, Incarnation::Host] {
        for declares in [true, false] {
            let mut function = Representative::new(Config { declares, ..config(incarnation) }).unwrap();
            let is_chip = declares && incarnation == Incarnation::Chip;
            let sent = timer(&mut function, 5);
            assert_eq!(sent.len(), 4);
            for (header, _) in sent {
                assert_eq!(
                    (header.declares(), header.reads_barriers(), header.writes_barriers()),
                    (declares, is_chip, is_chip),
                    "{incarnation:?}"
                );
            }
        }
    }
}

/// Returns the number of beacons to link 2 in these intervals, in each of which a message leaves on it.
/// `declares` states whether the neighbour declares in an interval that it reads barriers in messages; `None`
/// if it sends nothing.
fn beacons_beside_messages(
    function: &mut Representative,
    ticks: core::ops::Range<u64>,
    declares: impl Fn(u64) -> Option<bool>,
) -> usize {
    let mut beacons = 0;
    for tick in ticks {
        let now = tick * T;
        for n in [0, 1, 3] {
            verdict(function, &beacon(n, Some(at(now))), n.into(), now);
        }
        match declares(tick) {
            Some(true) => verdict(function, &beacon(2, Some(at(now))), 2, now),
            Some(false) => verdict(function, &undeclared(2, at(now)), 2, now),
            None => Verdict::Consume,
        };
        forwarded(function, &data(0, 2, now + 5), 0, now + 5);
        beacons += timer(function, now + 10).iter().filter(|(_, port)| *port == PortId(2)).count();
    }
    beacons
}

#[test]
fn chip_sends_every_beacon_to_a_neighbour_that_declares_nothing() {
    let mut function = representative(Incarnation::Chip);
    update_all(&mut function, 0);
    timer(&mut function, 0);
    let all = beacons_beside_messages(&mut function, 1..101, |_| Some(false));
    assert!(all >= 95, "{all}");
    let declared = beacons_beside_messages(&mut function, 101..201, |_| Some(true));
    assert!((30..40).contains(&declared), "{declared}");
    // A declaration is valid for ten intervals.
    let silent = beacons_beside_messages(&mut function, 201..210, |_| None);
    assert!(silent <= 4, "{silent}");
    let forgotten = beacons_beside_messages(&mut function, 212..262, |_| None);
    assert!(forgotten >= 45, "{forgotten}");
}

#[test]
fn undeclared_barriers_in_messages_are_ignored() {
    let mut function = representative(Incarnation::Chip);
    for n in 0..4 {
        verdict(&mut function, &undeclared(n, at(100)), n.into(), 100);
    }
    let send = |function: &mut Representative, ns: u64| {
        for n in 0..2 {
            forwarded(function, &data(n, 2, ns), n.into(), ns);
        }
        function.barriers(Side::Above).0
    };
    assert_eq!(send(&mut function, 200), Some(at(100)));
    update_all(&mut function, 300);
    assert_eq!(send(&mut function, 400), Some(at(400)), "declared");
    // The declaration ends with the tick in which the silent link would be dead.
    for tick in 1..=9 {
        timer(&mut function, 400 + tick * T);
    }
    assert_eq!(send(&mut function, 10 * T), Some(at(10 * T)));
    for tick in 10..=11 {
        timer(&mut function, 400 + tick * T);
    }
    assert_eq!(send(&mut function, 12 * T), Some(at(10 * T)));
    // A neighbour may write barriers and read none, as a process of an earlier version.
    let mut header = header(OnePipeOpcode::BEACON, at(12 * T), Some(at(12 * T)));
    header.declare(true, false);
    for n in 0..2 {
        verdict(&mut function, &beacon_with(n, header), n.into(), 12 * T);
    }
    assert_eq!(send(&mut function, 13 * T), Some(at(12 * T)));
}
