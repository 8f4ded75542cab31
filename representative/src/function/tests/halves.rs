//! What a switch announces for a half whose inputs take no part.

use super::*;

const INCARNATIONS: [Incarnation; 3] = [Incarnation::Chip, Incarnation::SwitchCpu, Incarnation::Host];

/// Sends a switch its timer in these ticks. Returns the beacons sent.
fn ticks(function: &mut Representative, ticks: core::ops::RangeInclusive<u64>) -> Vec<(OnePipe, PortId)> {
    ticks.flat_map(|tick| timer(function, tick * T)).collect()
}

#[test]
fn keeper_that_heard_no_link_falls_silent() {
    for (incarnation, pace) in INCARNATIONS
        .into_iter()
        .flat_map(|incarnation| [(incarnation, Pace::Passing), (incarnation, Pace::Instants)])
    {
        let mut function = Representative::new(Config { pace, ..config(incarnation) }).unwrap();
        timer(&mut function, 0);
        let waiting = ticks(&mut function, 1..=9);
        assert_eq!(waiting.len(), 9 * 4, "neighbours are asked to wait");
        let silent = ticks(&mut function, 10..=40);
        assert!(silent.len() <= 4, "{incarnation:?} {pace:?}: {} beacons", silent.len());
        for (header, _) in waiting.iter().chain(&silent) {
            assert!(!header.nothing_follows() && header.barrier().is_none(), "{incarnation:?} {pace:?}");
        }
        verdict(&mut function, &beacon(0, Some(at(40 * T + 5))), 0, 40 * T + 5);
        let sent = ticks(&mut function, 41..=43);
        assert!(sent.iter().any(|(header, _)| header.barrier() == Some(at(40 * T + 5))), "it recovers");
    }
}

/// Whether beacons to above announce that nothing follows; `None` if there are none
fn announced_above(function: &mut Representative, tick: u64) -> Option<bool> {
    let sent = ticks(function, tick..=tick + 2);
    let above: Vec<_> = sent.iter().filter(|(_, port)| port.0 >= 2).collect();
    let announced = above.iter().filter(|(header, _)| header.nothing_follows()).count();
    assert!([0, above.len()].contains(&announced), "{announced} of {}", above.len());
    (!above.is_empty()).then_some(announced > 0)
}

/// Returns a switch at tick 12, and the barriers of whose links above are up to date; link 0 has left and
/// link 1, if it `died`, was silent from the start.
fn with_links_gone(incarnation: Incarnation, died: bool) -> Representative {
    let mut function = representative(incarnation);
    timer(&mut function, 0);
    if !died {
        verdict(&mut function, &final_beacon(1, 5), 1, 5);
    }
    for tick in 1..=12 {
        timer(&mut function, tick * T);
        for n in 2..4 {
            verdict(&mut function, &beacon(n, Some(at(tick * T + 5))), n.into(), tick * T + 5);
        }
    }
    verdict(&mut function, &final_beacon(0, 12 * T + 10), 0, 12 * T + 10);
    function
}

#[test]
fn half_with_a_link_that_did_not_leave_announces_nothing() {
    for incarnation in INCARNATIONS {
        let mut function = with_links_gone(incarnation, false);
        assert_eq!(announced_above(&mut function, 13), Some(true), "both have left");
        assert_eq!(function.counters().dead.get(), 1, "link 0 was silent before it left");
        let mut function = with_links_gone(incarnation, true);
        assert_eq!(announced_above(&mut function, 13), None, "one is dead");
        verdict(&mut function, &final_beacon(1, 15 * T + 10), 1, 15 * T + 10);
        assert_eq!(announced_above(&mut function, 16), Some(true), "it has left after all");
        let mut function = with_links_gone(incarnation, true);
        function.on_command(Command::Remove(LinkId(1)), Nanos(12 * T + 20));
        assert_eq!(announced_above(&mut function, 13), Some(true), "the operator has taken it down");
    }
}

#[test]
fn switch_of_an_earlier_version_does_not_end_a_barrier() {
    for incarnation in INCARNATIONS {
        let mut function = representative(incarnation);
        update_all(&mut function, 100);
        timer(&mut function, 100);
        verdict(&mut function, &final_beacon(0, 200), 0, 200);
        let mut header = header(OnePipeOpcode::BEACON, at(200), None);
        header.set_nothing_follows(true);
        verdict(&mut function, &beacon_with(1, header), 1, 200);
        let events: Vec<_> = core::iter::from_fn(|| function.poll_event()).collect();
        assert_eq!(events, [0, 1].map(|link| Event::Left(LinkId(link))), "both links are not waited for");
        assert_eq!(announced_above(&mut function, 1), None, "that switch may only have heard nothing");
    }
}
