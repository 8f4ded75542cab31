//! Members of the commit barriers, and what the control plane is told of links.

use super::*;

/// Receives a beacon with a barrier and a commit barrier.
fn commit(function: &mut Representative, link: u8, ns: u64, commit: u64) {
    let mut header = header(OnePipeOpcode::BEACON, at(ns), Some(at(ns)));
    header.declare(true, true);
    header.set_commit(Some(at(commit)));
    verdict(function, &beacon_with(link, header), link.into(), ns);
}

fn command(function: &mut Representative, command: Command) {
    function.on_command(command, Nanos(100));
}

fn events(function: &mut Representative) -> Vec<Event> {
    core::iter::from_fn(|| function.poll_event()).collect()
}

#[test]
fn no_commit_is_stated_before_the_members_are_complete() {
    for incarnation in [Incarnation::Chip, Incarnation::SwitchCpu, Incarnation::Host] {
        let mut function = representative(incarnation);
        for link in [0, 2] {
            command(&mut function, Command::AddCommit(LinkId(link)));
        }
        for (link, time) in [(0, 50), (1, 10), (2, 60), (3, 10)] {
            commit(&mut function, link, 100, time);
        }
        let commits =
            |function: &Representative| [Side::Above, Side::Below].map(|side| function.barriers(side).1);
        assert_eq!(commits(&function), [None, None]);
        assert!(timer(&mut function, 110).iter().all(|(header, _)| header.commit().is_none()));
        command(&mut function, Command::OpenCommit);
        assert_eq!(commits(&function), [Some(at(50)), Some(at(50))], "links 1 and 3 are no members");
        let sent = timer(&mut function, T);
        assert!(sent.iter().all(|(header, _)| header.commit() == Some(at(50))), "{incarnation:?}");
    }
}

#[test]
fn loopback_leaves_commit_with_the_last_member_below() {
    for incarnation in [Incarnation::Chip, Incarnation::SwitchCpu, Incarnation::Host] {
        let mut function = representative(incarnation);
        for link in 0..3 {
            command(&mut function, Command::AddCommit(LinkId(link)));
        }
        command(&mut function, Command::OpenCommit);
        for (link, time) in [(0, 50), (1, 40), (2, 90)] {
            commit(&mut function, link, 100, time);
        }
        assert_eq!(function.barriers(Side::Below).1, Some(at(40)));
        command(&mut function, Command::RemoveCommit(LinkId(1)));
        assert_eq!(function.barriers(Side::Below).1, Some(at(50)));
        // Both links leave; the controller resumes one, then the other.
        for link in 0..2 {
            command(&mut function, Command::Remove(LinkId(link)));
        }
        assert_eq!(function.barriers(Side::Below).1, Some(at(50)));
        command(&mut function, Command::RemoveCommit(LinkId(0)));
        assert_eq!(function.barriers(Side::Below).1, Some(at(90)), "no member is left below");
        // A member that is added again is waited for, by both halves.
        command(&mut function, Command::AddCommit(LinkId(0)));
        commit(&mut function, 2, 120, 110);
        assert_eq!(function.barriers(Side::Below).1, Some(at(90)));
        commit(&mut function, 0, 130, 105);
        assert_eq!(function.barriers(Side::Below).1, Some(at(105)));
        for unknown in [Command::FreezeCommit(LinkId(9)), Command::ThawCommit(LinkId(9))] {
            command(&mut function, unknown);
        }
    }
}

#[test]
fn commit_of_a_link_is_frozen_when_it_is_gone() {
    let mut function = representative(Incarnation::SwitchCpu);
    for link in 0..2 {
        command(&mut function, Command::AddCommit(LinkId(link)));
    }
    command(&mut function, Command::OpenCommit);
    timer(&mut function, 0);
    update_all(&mut function, 10);
    for link in 0..2 {
        commit(&mut function, link, 20, 15);
    }
    for tick in 1..=11 {
        timer(&mut function, tick * T);
        for link in [0, 2, 3] {
            commit(&mut function, link, tick * T + 5, tick * T);
        }
    }
    timer(&mut function, 12 * T);
    assert_eq!(events(&mut function), [Event::Dead(LinkId(1), Some(at(15)))]);
    commit(&mut function, 1, 12 * T + 5, 12 * T);
    assert_eq!(events(&mut function), [Event::Joined(LinkId(1))]);
    assert_eq!(function.barriers(Side::Above).1, Some(at(15)), "what was reported stays true");
    command(&mut function, Command::FreezeCommit(LinkId(0)));
    assert_eq!(events(&mut function), [Event::Frozen(LinkId(0), Some(at(11 * T)))]);
    for link in 0..2 {
        command(&mut function, Command::ThawCommit(LinkId(link.into())));
        commit(&mut function, link, 13 * T, 13 * T);
    }
    assert_eq!(function.barriers(Side::Above).1, Some(at(13 * T)));
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
    let dead: Vec<_> = (0..300).map(|link| Event::Dead(LinkId(link), None)).collect();
    let mut reported = events(&mut function);
    reported.sort_by_key(|event| match event {
        Event::Dead(LinkId(link), _) => *link,
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
    let both = [Event::Dead(LinkId(1), None), Event::Joined(LinkId(1))];
    assert_eq!(events(&mut function), both);
    // Twice: the link's last state, and that it was gone
    die_and_return(&mut function);
    die_and_return(&mut function);
    assert_eq!(events(&mut function), both);
    die_and_return(&mut function);
    function.on_command(Command::Remove(LinkId(1)), Nanos(1));
    assert_eq!(
        events(&mut function),
        [Event::Left(LinkId(1), None)],
        "a return that is over is not reported"
    );
    assert_eq!(function.counters().dead.get(), 4);
}
