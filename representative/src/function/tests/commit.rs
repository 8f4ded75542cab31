//! Commit registers in a representative, and the events of links for the control plane.

use super::*;
use crate::commit::{Configuration, Setting};
use onepipe::control::{LOOPBACK, LinkValue};

/// Queue pair from which the neighbours' packets leave
const SOURCE: Qpn = Qpn::new(0x42);

/// Returns a configuration with a controller.
pub(super) fn controlled(incarnation: Incarnation) -> Config {
    Config { fail_after_intervals: Some(12), ..config(incarnation) }
}

/// Returns the setting of a link that counts.
pub(super) fn counted(link: u16) -> Setting {
    Setting {
        link,
        counted: true,
        frozen: false,
        muted: [false; 2],
        introduced: true,
        sources: vec![(0, SOURCE)],
    }
}

/// Lets a state take effect, and returns the answer.
pub(super) fn configure(
    function: &mut Representative,
    version: u64,
    links: impl Into<Vec<Setting>>,
) -> Configuration {
    let links = links.into();
    let values = Vec::with_capacity(links.len());
    let state = Configuration { version, floors: [None; 2], links, outputs: [None; 2], values };
    function.on_command(Command::Configure(state.into()), Nanos(100));
    match function.poll_event() {
        Some(Event::Configured(answer)) => *answer,
        other => panic!("{other:?}"),
    }
}

/// Receives a beacon with a barrier and a commit barrier.
fn commit(function: &mut Representative, link: u8, ns: u64, commit: u64) {
    let mut header = header(OnePipeOpcode::BEACON, at(ns), Some(at(ns)));
    header.declare(true, true);
    header.set_commit(Some(at(commit)));
    verdict(function, &beacon_with(link, header), link.into(), ns);
}

fn commits(function: &Representative) -> [Option<Timestamp>; 2] {
    [Side::Above, Side::Below].map(|side| function.barriers(side).1)
}

/// Returns the commit barrier in the last beacon of each link in three intervals, in which each has some.
fn last_commits(function: &mut Representative, from: u64) -> [Option<Timestamp>; 4] {
    let sent: Vec<_> = (from..from + 3).flat_map(|tick| timer(function, tick * T)).collect();
    let last = |port| sent.iter().rfind(|(_, at)| *at == PortId(port)).expect("a beacon").0;
    [0, 1, 2, 3].map(|port| last(port).commit())
}

fn events(function: &mut Representative) -> Vec<Event> {
    core::iter::from_fn(|| function.poll_event()).collect()
}

const ALL: [Incarnation; 3] = [Incarnation::Chip, Incarnation::SwitchCpu, Incarnation::Host];

#[test]
fn links_that_count_alone_hold_the_commit_barrier() {
    for incarnation in ALL {
        let mut function = Representative::new(controlled(incarnation)).unwrap();
        for (link, time) in [(0, 50), (1, 10), (2, 60), (3, 10)] {
            commit(&mut function, link, 100, time);
        }
        assert_eq!(commits(&function), [None, None]);
        assert!(timer(&mut function, 110).iter().all(|(header, _)| header.commit().is_none()));
        let answer = configure(&mut function, 5, [0, 2, LOOPBACK].map(counted));
        assert_eq!((answer.version, answer.outputs), (5, [None; 2]));
        for (link, time) in [(0, 50), (1, 10), (2, 60), (3, 10)] {
            commit(&mut function, link, 200, time);
        }
        assert_eq!(commits(&function), [Some(at(50)), Some(at(50))], "links 1 and 3 do not count");
        assert_eq!(last_commits(&mut function, 1), [Some(at(50)); 4]);
        assert!(refused(&function).is_empty(), "{incarnation:?}");
    }
}

#[test]
fn messages_carry_no_commit_barrier() {
    let mut function = Representative::new(controlled(Incarnation::Chip)).unwrap();
    configure(&mut function, 1, [0, 1, 2, 3, LOOPBACK].map(counted));
    for link in 0..4 {
        commit(&mut function, link, 50, 20);
    }
    assert_eq!(commits(&function), [Some(at(20)), Some(at(20))]);
    let mut message = header(OnePipeOpcode::DATA, at(60), Some(at(60)));
    message.set_commit(Some(at(60)));
    let (frame, _) = forwarded(&mut function, &super::message(0, mac(2), message), 0, 60);
    assert_eq!((header_of(&frame).commit(), header_of(&frame).barrier()), (None, Some(at(50))));
    assert_eq!(commits(&function), [Some(at(20)), Some(at(20))], "it names no incarnation of the neighbour");
}

#[test]
fn beacon_of_another_incarnation_counts_for_best_effort_alone() {
    for incarnation in ALL {
        let mut function = Representative::new(controlled(incarnation)).unwrap();
        let other = Setting { sources: vec![(0, Qpn::new(0x41))], ..counted(0) };
        configure(&mut function, 1, [other, counted(1), counted(2), counted(3), counted(LOOPBACK)]);
        for link in 0..4 {
            commit(&mut function, link, 50, 20);
        }
        assert_eq!(function.barriers(Side::Above), (Some(at(50)), None));
        assert_eq!(refused(&function), [("other_incarnation", 1)]);
        let write = write(1, 1, at(60), |_| ());
        assert_eq!(verdict(&mut function, &write, 1, 60), Verdict::Consume);
        assert_eq!(refused(&function), [("other_incarnation", 2)], "a WRITE names no queue pair");
    }
}

#[test]
fn best_effort_and_commit_barrier_end_apart() {
    for incarnation in ALL {
        let mut function = Representative::new(controlled(incarnation)).unwrap();
        configure(&mut function, 1, [0, 1, 2, 3, LOOPBACK].map(counted));
        for link in 0..4 {
            commit(&mut function, link, 50, 20 + u64::from(link));
        }
        assert!(events(&mut function).is_empty(), "without a floor, links count at once");
        function.on_command(Command::Remove(LinkId(0)), Nanos(60));
        assert_eq!(events(&mut function), [Event::Left(LinkId(0))]);
        commit(&mut function, 1, 70, 70);
        assert_eq!(function.barriers(Side::Above), (Some(at(70)), Some(at(20))));
        configure(&mut function, 2, [Setting { counted: false, ..counted(0) }]);
        assert_eq!(function.barriers(Side::Above), (Some(at(70)), Some(at(70))));
    }
}

#[test]
fn muted_outputs_carry_no_commit_barrier() {
    for incarnation in ALL {
        let mut function = Representative::new(controlled(incarnation)).unwrap();
        let muted = Setting { muted: [true; 2], ..counted(1) };
        configure(&mut function, 1, [counted(0), muted, counted(2), counted(3), counted(LOOPBACK)]);
        for link in 0..4 {
            commit(&mut function, link, T + 50, 20);
        }
        let on = Some(at(20));
        assert_eq!(last_commits(&mut function, 1), [on, None, on, on], "{incarnation:?}");
        configure(&mut function, 2, [0, 1, 2, 3].map(counted));
        assert_eq!(last_commits(&mut function, 4), [on; 4]);
    }
}

/// The controller freezes the register of a link around which something has failed.
#[test]
fn frozen_register_stands_still_until_it_is_thawed() {
    let mut function = Representative::new(controlled(Incarnation::SwitchCpu)).unwrap();
    configure(&mut function, 1, [0, 1, 2, LOOPBACK].map(counted));
    for link in 0..3 {
        commit(&mut function, link, 50, 20);
    }
    let frozen = |link| Setting { frozen: true, ..counted(link) };
    let answer = configure(&mut function, 2, [frozen(0), counted(1), counted(2), frozen(LOOPBACK)]);
    let value = |link, raw| LinkValue { link, caught: true, silent: false, quiet: 0, raw: Some(at(raw)) };
    assert_eq!(answer.values, [value(0, 20), value(1, 20), value(2, 20), value(LOOPBACK, 20)]);
    assert_eq!(answer.outputs, [Some(at(20)); 2]);
    for link in 0..3 {
        commit(&mut function, link, 60, 60);
    }
    assert_eq!(commits(&function), [Some(at(20)); 2]);
    // The path between the halves follows at once when it is thawed.
    configure(&mut function, 3, [counted(0), frozen(LOOPBACK)]);
    commit(&mut function, 0, 70, 65);
    assert_eq!(commits(&function), [Some(at(60)), Some(at(20))]);
    let answer = configure(&mut function, 4, [counted(LOOPBACK)]);
    assert_eq!((answer.outputs, answer.values), ([Some(at(60)); 2], vec![value(LOOPBACK, 60)]));
}

#[test]
fn beacons_leave_from_the_queue_pairs_of_the_incarnation() {
    let config = controlled(Incarnation::Host);
    let mut function = Representative::new(config.clone()).unwrap();
    let sources = |function: &mut Representative, ns: u64| {
        let mut out = FrameCollector::with_room(64);
        function.on_timer(Nanos(ns), &mut out);
        let source = |(frame, _): (switch::memory::MemoryFrame, PortId)| {
            let bytes = frame.into_bytes();
            let packet = Packet::parse(&bytes).expect("a packet");
            assert!(packet.verify_icrc());
            packet.deth().expect("a datagram").src_qp().get()
        };
        out.frames.into_iter().map(source).collect::<Vec<_>>()
    };
    assert_eq!(sources(&mut function, 0), [0x200, 0x201, 0x202, 0x203]);
    let templates = Templates::new(&config, Qpn::new(0x7000));
    function.on_command(Command::Introduce(templates.into()), Nanos(1));
    assert_eq!(sources(&mut function, T), [0x200, 0x201, 0x202, 0x203], "no neighbour knows it yet");
    let introduced = |link, introduced| Setting { introduced, ..counted(link) };
    configure(&mut function, 1, vec![introduced(0, true), introduced(1, false), introduced(2, true)]);
    assert_eq!(sources(&mut function, 2 * T), [0x7000, 0x201, 0x7002, 0x203]);
    configure(&mut function, 2, vec![introduced(0, false), introduced(1, true), introduced(2, true)]);
    assert_eq!(sources(&mut function, 3 * T), [0x200, 0x7001, 0x7002, 0x203]);
}

#[test]
fn three_hundred_links_that_die_in_one_tick_are_all_reported() {
    let mut config = config(Incarnation::Host);
    config.links = (0..300u16)
        .map(|n| Link {
            port: PortId(0),
            address: Ipv4Addr::new(10, 1, (n >> 8) as u8, n as u8).into(),
            ..link(0, Side::Below)
        })
        .collect();
    let mut function = Representative::new(config).unwrap();
    for tick in 0..=11 {
        timer_with_room(&mut function, tick * T);
    }
    let dead: Vec<_> = (0..300).map(|link| Event::Dead(LinkId(link))).collect();
    let mut reported = events(&mut function);
    reported.sort_by_key(|event| match event {
        Event::Dead(LinkId(link)) => *link,
        _ => u16::MAX,
    });
    assert_eq!(reported, dead);
    assert_eq!(function.counters().events_lost.get(), 0);
}

fn timer_with_room(function: &mut Representative, ns: u64) {
    function.on_timer(Nanos(ns), &mut FrameCollector::with_room(300));
}

#[test]
fn death_and_return_between_two_polls_are_both_reported() {
    let mut function = representative(Incarnation::SwitchCpu);
    timer(&mut function, 0);
    update_all(&mut function, 10);
    let mut now = 0;
    let mut die_and_return = |function: &mut Representative| {
        for _ in 0..=12 {
            now += T;
            timer(function, now);
            for link in [0, 2, 3] {
                verdict(function, &beacon(link, Some(at(now + 5))), link.into(), now + 5);
            }
        }
        verdict(function, &beacon(1, Some(at(now + 6))), 1, now + 6);
    };
    die_and_return(&mut function);
    let both = [Event::Dead(LinkId(1)), Event::Joined(LinkId(1))];
    assert_eq!(events(&mut function), both);
    // Twice: the link's last state, and that it was gone
    die_and_return(&mut function);
    die_and_return(&mut function);
    assert_eq!(events(&mut function), both);
    die_and_return(&mut function);
    function.on_command(Command::Remove(LinkId(1)), Nanos(1));
    assert_eq!(events(&mut function), [Event::Left(LinkId(1))], "a return that is over is not reported");
    assert_eq!(function.counters().dead.get(), 4);
}
