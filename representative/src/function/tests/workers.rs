//! A switch on two workers: links 0 and 2 are the first one's, 1 and 3 the second one's.

use super::*;
use crate::workers::SharedWords;
use switch::memory::MemoryFrame;

fn two() -> [Representative; 2] {
    let config = config(Incarnation::Chip);
    let shared = SharedWords::new(&config, 2);
    [0, 1].map(|worker| {
        Representative::on_worker(config.clone(), worker, &shared).expect("a valid configuration")
    })
}

/// Lets each worker read and adopt what the other one has published before, handle its timer, and publish.
fn turn(functions: &mut [Representative; 2], ns: u64) {
    for function in functions {
        function.snapshot();
        function.adopt(Nanos(ns));
        timer(function, ns);
        function.publish();
    }
}

/// Returns two workers of which all links have carried a barrier.
fn started() -> [Representative; 2] {
    let mut functions = two();
    for n in 0..4 {
        verdict(&mut functions[usize::from(n % 2)], &beacon(n, Some(at(100))), n.into(), 100);
    }
    (1..6).for_each(|n| turn(&mut functions, n * T));
    functions
}

fn up(function: &Representative) -> Option<Timestamp> {
    function.barriers(Side::Above).0
}

#[test]
fn barriers_begin_when_the_links_of_all_workers_have_carried_one() {
    let mut functions = two();
    for n in 0..3 {
        verdict(&mut functions[usize::from(n % 2)], &beacon(n, Some(at(100))), n.into(), 100);
    }
    (1..5).for_each(|n| turn(&mut functions, n * T));
    assert!(functions.iter().all(|function| function.barriers(Side::Below).0.is_none()));
    assert!(functions.iter().all(|function| up(function) == Some(at(100))));
    verdict(&mut functions[1], &beacon(3, Some(at(90))), 3, 5 * T);
    (5..9).for_each(|n| turn(&mut functions, n * T));
    assert!(functions.iter().all(|function| function.barriers(Side::Below).0 == Some(at(90))));
}

#[test]
fn message_for_another_workers_link_gets_the_barrier_that_this_one_has_adopted() {
    let [mut first, mut second] = started();
    let ns = 6 * T;
    verdict(&mut first, &beacon(0, Some(at(ns))), 0, ns);
    let (frame, port) = forwarded(&mut second, &data(1, 2, ns + 50), 1, ns + 50);
    assert_eq!((header_of(&frame).barrier(), port), (header_of(&data(1, 2, ns + 50)).barrier(), PortId(2)));
    // The first worker has not adopted what the second one has received.
    let mut frame = MemoryFrame::new(frame);
    first.on_handoff(&mut frame, port, Nanos(ns + 60));
    assert_eq!(header_of(frame.bytes()).barrier(), Some(at(100)));
    assert!(second.publish() && !second.publish());
    first.snapshot();
    assert_eq!(up(&first), Some(at(100)));
    first.adopt(Nanos(ns + 70));
    assert_eq!(up(&first), Some(at(ns)));
    let (frame, port) = forwarded(&mut second, &data(1, 2, ns + 80), 1, ns + 80);
    let mut frame = MemoryFrame::new(frame);
    first.on_handoff(&mut frame, port, Nanos(ns + 80));
    assert_eq!(header_of(frame.bytes()).barrier(), Some(at(ns)));
    assert_eq!((first.counters().messages.get(), second.counters().messages.get()), (2, 0));
    // What is no message stays as it is, and so does one for a port without a link.
    for (frame, port) in [(beacon(1, Some(at(ns))), 2), (data(1, 4, ns), 4), (vec![7; 60], 2)] {
        let mut after = MemoryFrame::new(frame.clone());
        first.on_handoff(&mut after, PortId(port), Nanos(ns + 90));
        assert_eq!(after.bytes(), frame);
    }
}

#[test]
fn link_that_returns_alone_begins_above_what_other_workers_have_sent() {
    let [mut first, mut second] = started();
    let ns = 6 * T;
    second.on_command(Command::Remove(LinkId(1)), Nanos(ns));
    assert_eq!(second.poll_event(), Some(Event::Left(LinkId(1))));
    second.publish();
    let adopt = |function: &mut Representative| {
        function.snapshot();
        function.adopt(Nanos(ns));
    };
    adopt(&mut first);
    verdict(&mut first, &beacon(0, Some(at(ns + 1000))), 0, ns);
    assert_eq!(up(&first), Some(at(ns + 1000)), "the second worker has no link from below");
    verdict(&mut second, &beacon(1, Some(at(ns))), 1, ns);
    second.publish();
    verdict(&mut first, &beacon(0, Some(at(ns + 2000))), 0, ns);
    adopt(&mut first);
    verdict(&mut first, &beacon(0, Some(at(ns + 3000))), 0, ns);
    assert_eq!(up(&first), Some(at(ns + 2000)), "held");
    assert_eq!((second.poll_event(), second.is_live(LinkId(1))), (None, false));
    adopt(&mut second);
    verdict(&mut second, &beacon(1, Some(at(ns + 100))), 1, ns);
    assert_eq!(second.poll_event(), Some(Event::Joined(LinkId(1))));
    let register =
        |function: &Representative| function.registers(UP).input_state(1).map(|(at, _)| Timestamp::new(at));
    assert_eq!(register(&second), Some(at(ns + 2000)));
    second.publish();
    adopt(&mut first);
    assert_eq!(up(&first), Some(at(ns + 2000)), "waits until the link has caught up");
    verdict(&mut second, &beacon(1, Some(at(ns + 2500))), 1, ns);
    second.publish();
    adopt(&mut first);
    assert_eq!(up(&first), Some(at(ns + 2500)));
}

#[test]
fn hold_ends_if_no_link_joins() {
    let mut functions = started();
    let ns = 6 * T;
    functions[1].on_command(Command::Remove(LinkId(1)), Nanos(ns));
    turn(&mut functions, ns);
    verdict(&mut functions[1], &beacon(1, Some(at(ns))), 1, ns);
    let send = |functions: &mut [Representative; 2], n: u64| {
        for link in [0, 2, 3] {
            let function = &mut functions[usize::from(link % 2)];
            verdict(function, &beacon(link, Some(at(n * T))), link.into(), n * T);
        }
        turn(functions, n * T);
    };
    (7..9).for_each(|n| send(&mut functions, n));
    let held = up(&functions[0]);
    (9..14).for_each(|n| send(&mut functions, n));
    assert_eq!(up(&functions[0]), held);
    (14..25).for_each(|n| send(&mut functions, n));
    assert_eq!(up(&functions[0]), Some(at(24 * T)), "after the time in which a link is dead");
}

/// A hold would stop the barrier at each of its beacons.
#[test]
fn link_that_is_too_far_behind_holds_nothing() {
    let [mut first, mut second] = started();
    second.on_command(Command::Remove(LinkId(1)), Nanos(6 * T));
    let mut functions = [first, second];
    // The barrier of the links below is that of all links, so those from above go on, too.
    for n in 7..1000 {
        for link in [0, 2, 3] {
            let function = &mut functions[usize::from(link % 2)];
            verdict(function, &beacon(link, Some(at(n * T))), link.into(), n * T);
        }
        turn(&mut functions, n * T);
    }
    [first, second] = functions;
    verdict(&mut second, &beacon(1, Some(at(8 * T))), 1, 1000 * T);
    assert_eq!(refused(&second), [("too_far_behind", 1)]);
    assert!(!second.publish());
    verdict(&mut first, &beacon(0, Some(at(1001 * T))), 0, 1001 * T);
    assert_eq!(up(&first), Some(at(1001 * T)));
}

#[test]
fn what_needs_one_worker_is_refused_on_two() {
    let cases: [Case; 3] = [
        (|config| config.incarnation = Incarnation::Host, ConfigError::HostOnWorkers),
        (|config| config.fail_after_intervals = Some(10), ConfigError::ControllerOnWorkers),
        (|config| config.clock_source = onepipe::ClockSource::Beacons, ConfigError::ClockBeaconsOnWorkers),
    ];
    for (change, error) in cases {
        let mut config = config(Incarnation::Chip);
        change(&mut config);
        for (workers, expected) in [(1, None), (2, Some(error))] {
            let shared = SharedWords::new(&config, workers);
            assert_eq!(Representative::on_worker(config.clone(), 0, &shared).err(), expected);
        }
    }
}
