//! Observations of links by the control plane, and requests of hosts that reach it.

use super::*;
use crate::view::{LagMonitor, LinkState, View};

fn read_view(function: &mut Representative, ns: u64) -> View {
    function.on_command(Command::PublishGauges, Nanos(ns));
    function.gauges().read().expect("the registers were published just now")
}

#[test]
fn gauges_show_the_state_of_each_link() {
    let mut function = representative(Incarnation::Chip);
    assert_eq!(function.gauges().read(), None);
    timer(&mut function, 0);
    let before = read_view(&mut function, 0);
    assert!(
        before.links.iter().all(|link| link.state == LinkState::Waiting && link.lag.is_none()),
        "{before:?}"
    );
    assert_eq!((before.above.best_effort, before.above.holder), (None, Some(LinkId(0))));

    update_all(&mut function, 100);
    for (n, ns) in [(0, 5_000), (1, 4_000), (2, 4_500)] {
        verdict(&mut function, &beacon(n, Some(at(ns))), n.into(), 5_000);
    }
    let after = read_view(&mut function, 5_000);
    assert!(after.links.iter().all(|link| link.state == LinkState::Alive));
    assert_eq!((after.above.best_effort, after.above.holder), (Some(at(4_000)), Some(LinkId(1))));
    assert_eq!((after.below.best_effort, after.below.holder), (Some(at(100)), Some(LinkId(3))));
    let distances: Vec<_> =
        after.links.iter().map(|link| (link.ahead.unwrap().0, link.lag.unwrap().0)).collect();
    // The other inputs of the down half are at 4,000 (the up half) and at 4,500.
    assert_eq!(distances, [(1_000, 0), (0, 1_000), (4_400, 0), (0, 3_900)]);

    // Link 3 dies, and link 2 leaves: the down half waits for the up half, hence for link 1.
    for tick in 1..13 {
        timer(&mut function, tick * T);
        for n in 0..3 {
            verdict(&mut function, &beacon(n, Some(at(tick * T + u64::from(n != 1)))), n.into(), tick * T);
        }
    }
    function.on_command(Command::Remove(LinkId(2)), Nanos(13 * T));
    let last = read_view(&mut function, 13 * T);
    let states: Vec<_> = last.links.iter().map(|link| link.state).collect();
    assert_eq!(states, [LinkState::Alive, LinkState::Alive, LinkState::Left, LinkState::Dead]);
    assert_eq!((last.below.holder, last.below.best_effort), (Some(LinkId(1)), Some(at(12 * T))));
    // A link returns.
    verdict(&mut function, &beacon(3, Some(at(13 * T))), 3, 13 * T);
    assert_eq!(read_view(&mut function, 13 * T).links[3].state, LinkState::Alive);
}

#[test]
fn watch_names_the_link_of_a_slow_clock() {
    let mut function = representative(Incarnation::SwitchCpu);
    let mut watch = LagMonitor::new(Nanos(2 * T));
    for tick in 1..40 {
        let now = tick * T;
        timer(&mut function, now);
        for n in 0..4 {
            // Link 1 falls behind by a tenth of the time that has passed.
            let behind = if n == 1 { now / 10 } else { 0 };
            verdict(&mut function, &beacon(n, Some(at(now - behind))), n.into(), now);
        }
        let view = read_view(&mut function, now);
        let reported: Vec<_> =
            watch.check(&view, Nanos(now)).map(|lagging| (lagging.link, lagging.lag)).collect();
        let expected = [(LinkId(1), Nanos(now / 10))];
        assert_eq!(
            reported,
            expected[..usize::from(tick == 21)],
            "tick {tick}: reported once, when above two intervals"
        );
    }
}

#[test]
fn requests_for_the_switchs_address_reach_the_control_plane() {
    let arp = |target: [u8; 4]| {
        let head = [&[0xff; 6][..], &mac(0).0, &[8, 6], &[0; 24]].concat();
        [&head[..], &target].concat()
    };
    for incarnation in [Incarnation::Chip, Incarnation::Host] {
        let mut function = representative(incarnation);
        assert_eq!(verdict(&mut function, &arp([10, 0, 0, 254]), 0, 0), Verdict::Punt);
        let (flooded, copies) = run_frame(&mut function, &arp([10, 0, 0, 7]), PortId(0), Nanos(0));
        assert!(matches!(flooded, Verdict::Forward(_)) && copies.len() == 4, "for another address");
    }
}

#[test]
fn stations_that_change_ports_take_one_table_entry_each() {
    let mut function = representative(Incarnation::Chip);
    let frame = |to: u16, from: u16| {
        let station = |n: u16| [&[2, 0, 0, 9][..], &n.to_be_bytes()].concat();
        [station(to), station(from), vec![0x12, 0x34], vec![0; 46]].concat()
    };
    // The table has room for 16 stations; each of these is learnt on more than one port in turn.
    for n in 0..200 {
        run_frame(&mut function, &frame(99, n % 10), PortId(n % 4), Nanos(0));
    }
    let (verdict, _) = run_frame(&mut function, &frame(9, 98), PortId(0), Nanos(0));
    assert_eq!(verdict, Verdict::Forward(PortId(3)), "the port on which it was last seen");
}
