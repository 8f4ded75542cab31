//! Objects of any length, for everybody who is left.

use rdmc::Algorithm;
use rdmc::delivery::{GiveError, Lost, Refusal, TakeError};
use sim::Fault;
use sim::rdmc::courier::{Delivery, Habit};
use sim::rdmc::{Setup, ip};
use switch::Nanos;

const END: Nanos = Nanos::from_secs(5);

#[test]
fn everybody_gets_it() {
    for (receivers, len) in [(1, 3000), (2, 40_000), (3, 40_001), (4, 500_000), (7, 123_456)] {
        for algorithm in [Algorithm::Pipeline, Algorithm::Chain, Algorithm::InNetwork] {
            let setup = Setup { hosts: receivers + 1, ..Setup::default() };
            let habits = vec![Habit::Sound; receivers.into()];
            let context = format!("{len} bytes to {receivers} by {}", algorithm.name());
            let mut delivery =
                Delivery::new(&setup, len, &habits, |give| give.algorithm = algorithm).unwrap();
            let all: Vec<u16> = (1..=receivers).collect();
            assert!(delivery.settle(END, &all), "{context}: {:?}", delivery.given());
            let given = delivery.given().unwrap().as_ref().unwrap();
            assert_eq!((given.stored.len(), given.rounds), (all.len(), 1), "{context}");
            assert!(given.lost.is_empty());
            for host in all {
                assert_eq!(delivery.taken(host), Some(&Ok(())), "{context}");
                assert!(delivery.is_right(host), "{context}");
            }
        }
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let setup = Setup { hosts: 3, ..Setup::default() };
    let new = |change: fn(&mut rdmc::delivery::GiveConfig)| {
        Delivery::new(&setup, 50_000, &[Habit::Sound, Habit::Sound], change).unwrap_err()
    };
    assert_eq!(new(|give| give.len = 0), GiveError::Empty);
    assert_eq!(new(|give| give.receivers.clear()), GiveError::NoReceivers);
    assert_eq!(new(|give| give.receivers = vec![ip(1), ip(1)]), GiveError::Twice(ip(1)));
    assert_eq!(new(|give| give.receivers = vec![ip(0)]), GiveError::Twice(ip(0)));
    assert_eq!(new(|give| give.name.clear()), GiveError::Name(0));
    assert_eq!(new(|give| give.name = "x".repeat(256)), GiveError::Name(256));
    assert_eq!(new(|give| give.block_bytes = 0), GiveError::Block { block: 0, len: 50_000 });
    let above = new(|give| give.block_bytes = 50_001);
    assert_eq!(above, GiveError::Block { block: 50_001, len: 50_000 });
    assert_eq!(above.to_string(), "blocks of 50001 bytes of an object of 50000: 1 to 50000 are possible");
    assert_eq!(new(|give| give.segment_bytes = 2999), GiveError::Segment);
    assert_eq!(new(|give| give.window = 0), GiveError::Segment);
    let many = |give: &mut rdmc::delivery::GiveConfig| (give.block_bytes, give.segment_bytes) = (1, 1 << 21);
    assert_eq!(new(many), GiveError::Segment);
    let racks = rdmc::Racks::new(&[1, 2, 2, 2]).unwrap();
    let hybrid = Delivery::new(&setup, 50_000, &[Habit::Sound; 2], |give| {
        give.algorithm = Algorithm::Hybrid(racks);
    });
    assert_eq!(hybrid.unwrap_err().to_string(), "racks are given for 4 nodes, but the group has 3; give the rack of every node");
}

#[test]
fn who_does_not_play_its_part_is_named_and_the_others_get_it() {
    let setup = Setup { hosts: 5, ..Setup::default() };
    let run = |habits: [Habit; 4]| {
        let mut delivery = Delivery::new(&setup, 400_000, &habits, |_| {}).unwrap();
        let present: Vec<u16> =
            (1..=4).filter(|host| habits[usize::from(*host) - 1] != Habit::Absent).collect();
        assert!(delivery.settle(END, &present), "{habits:?}: {:?}", delivery.given());
        delivery
    };
    let delivery = run([Habit::Sound, Habit::Absent, Habit::Sound, Habit::Absent]);
    assert_eq!(delivery.given(), Some(&Err(GiveError::Silent(vec![ip(2), ip(4)]))));
    assert_eq!(delivery.taken(1), Some(&Err(TakeError::Silent(ip(0)))));

    let delivery = run([Habit::Sound, Habit::Full, Habit::Sound, Habit::Slow(40)]);
    let given = delivery.given().unwrap().as_ref().unwrap();
    assert_eq!(given.lost, [(ip(2), Lost::Refused(Refusal::NoSpace))]);
    assert_eq!(delivery.taken(2), Some(&Err(TakeError::Refused(Refusal::NoSpace))));
    for host in [1, 3, 4] {
        assert!(delivery.taken(host) == Some(&Ok(())) && delivery.is_right(host), "host {host}");
    }

    let delivery = run([Habit::Sound, Habit::Sound, Habit::Sound, Habit::Small(40_000)]);
    let given = delivery.given().unwrap().as_ref().unwrap();
    assert_eq!(given.lost, [(ip(4), Lost::Refused(Refusal::Memory))]);
    assert_eq!(delivery.taken(4), Some(&Err(TakeError::Refused(Refusal::Memory))));

    let delivery = run([Habit::Sound, Habit::Sound, Habit::Careless, Habit::Sound]);
    let given = delivery.given().unwrap().as_ref().unwrap();
    assert_eq!(given.lost, [(ip(3), Lost::Damaged)]);
    assert_eq!(delivery.taken(3), Some(&Err(TakeError::Damaged)));
    assert_eq!(given.stored, [ip(1), ip(2), ip(4)]);
}

/// Receivers crash at moments spread over a delivery: the others get the object, and nobody sends again what all of them
/// had. When the root crashes, everybody hears of it.
#[test]
fn survivors_go_on_where_they_were() {
    let (mut resumed, mut spared) = (0, 0);
    for moment in 1..=24_u64 {
        for victim in [0_u16, 1, 4] {
            let setup = Setup { hosts: 6, ..Setup::default() };
            let mut delivery = Delivery::new(&setup, 1_200_000, &[Habit::Sound; 5], |_| {}).unwrap();
            // It takes some 300 us, and everybody is there after 30.
            let at = Nanos(moment * 11_000);
            delivery.world.schedule(at, Fault::Crash(delivery.hosts[usize::from(victim)]));
            let context = format!("{victim} crashes at {at:?}");
            let others: Vec<u16> = (1..=5).filter(|host| *host != victim).collect();
            if victim == 0 {
                delivery.world.run_until(at + Nanos::from_millis(700));
                for host in others {
                    assert!(delivery.taken(host).is_some(), "{context}: {host} has not heard of it");
                    let is_right = delivery.is_right(host);
                    assert_eq!(delivery.taken(host) == Some(&Ok(())), is_right, "{context}: {host}");
                }
                continue;
            }
            assert!(delivery.settle(END, &others), "{context}: {:?}", delivery.given());
            let given = delivery.given().unwrap();
            let Ok(given) = given else {
                assert_eq!(given, &Err(GiveError::Silent(vec![ip(victim)])), "{context}");
                continue;
            };
            for host in others {
                assert_eq!(delivery.taken(host), Some(&Ok(())), "{context}: {host}");
                assert!(delivery.is_right(host), "{context}: {host}");
            }
            let segments = 30;
            assert!(delivery.read() >= segments && given.stored.len() >= 4, "{context}: {given:?}");
            if given.rounds > 1 {
                resumed += 1;
                spared += u64::from(delivery.read() < 2 * segments - 4);
            }
        }
    }
    println!("{resumed} went on in another round, {spared} of them without beginning anew");
    assert!(resumed > 10 && spared > 5, "{resumed} {spared}");
}

/// A receiver that is started anew while others are still waited for is reached again.
#[test]
fn who_is_called_may_begin_late_and_begin_anew() {
    let mut delivery =
        Delivery::new(&Setup { hosts: 3, ..Setup::default() }, 100_000, &[Habit::Sound; 2], |_| {}).unwrap();
    let ([_, first, second], from_ms) =
        (<[_; 3]>::try_from(&delivery.hosts[..]).unwrap(), Nanos::from_millis);
    for (at, fault) in [
        (Nanos::ZERO, Fault::Crash(second)),
        (from_ms(20), Fault::Crash(first)),
        (from_ms(60), Fault::Restart(first)),
        (from_ms(120), Fault::Restart(second)),
    ] {
        delivery.world.schedule(at, fault);
    }
    assert!(delivery.settle(END, &[1, 2]), "{:?}", delivery.given());
    let given = delivery.given().unwrap().as_ref().unwrap();
    assert_eq!((given.stored.len(), given.lost.len(), given.rounds), (2, 0, 1), "{given:?}");
    assert!((1..=2).all(|host| delivery.is_right(host)));
}

/// A receiver that answers and does not write holds nobody up for good.
#[test]
fn a_receiver_that_is_stuck_is_left_behind() {
    for after in [0, 3, 9] {
        let setup = Setup { hosts: 4, ..Setup::default() };
        let habits = [Habit::Sound, Habit::Stuck(after), Habit::Sound];
        let mut delivery = Delivery::new(&setup, 400_000, &habits, |_| {}).unwrap();
        assert!(delivery.settle(END, &[1, 3]), "{after}: {:?}", delivery.given());
        let given = delivery.given().unwrap().as_ref().unwrap();
        assert_eq!(given.lost, [(ip(2), Lost::Silent)], "{after}");
        assert!([1, 3].iter().all(|host| delivery.is_right(*host)), "{after}");
    }
}

/// A root that answers and does not read does not hold receivers up for good.
#[test]
fn a_root_that_is_stuck_is_given_up() {
    let setup = Setup { hosts: 3, ..Setup::default() };
    let mut delivery = Delivery::new(&setup, 400_000, &[Habit::Sound; 2], |_| {}).unwrap();
    delivery.read_at_most(3);
    delivery.world.run_until(END);
    for host in 1..=2 {
        assert!(matches!(delivery.taken(host), Some(Err(_))), "{host}: {:?}", delivery.taken(host));
    }
}

/// A disk that needs longer for what is left than others are waited for: it is waited for as long as it goes on.
#[test]
fn a_slow_disk_is_waited_for_while_it_writes() {
    let setup = Setup { hosts: 3, ..Setup::default() };
    let habits = [Habit::Sound, Habit::Disk(Nanos::from_millis(120))];
    let mut delivery = Delivery::new(&setup, 400_000, &habits, |_| {}).unwrap();
    assert!(delivery.settle(END, &[1, 2]), "{:?}", delivery.given());
    let given = delivery.given().unwrap().as_ref().unwrap();
    assert_eq!((given.stored.len(), given.lost.len(), given.rounds), (2, 0, 1), "{given:?}");
    assert!(delivery.is_right(2));
}

/// Behind a switch that copies, a receiver crashes: the switch ends the group, and goes on copying for those who are left.
#[test]
fn a_receiver_behind_a_switch_crashes() {
    let setup = Setup { hosts: 5, create_timeout: Nanos::from_secs(3), ..Setup::default() };
    let mut delivery = Delivery::new(&setup, 4_000_000, &[Habit::Sound; 4], |give| {
        give.algorithm = Algorithm::InNetwork;
        give.patience = Nanos::from_secs(4);
    })
    .unwrap();
    delivery.world.schedule(Nanos::from_micros(600), Fault::Crash(delivery.hosts[2]));
    let others = [1, 3, 4];
    assert!(delivery.settle(Nanos::from_secs(30), &others), "{:?}", delivery.given());
    let given = delivery.given().unwrap().as_ref().unwrap();
    assert_eq!(given.lost, [(ip(2), Lost::Gone)]);
    assert_eq!(given.algorithm, Algorithm::InNetwork, "{given:?}");
    assert!(others.iter().all(|host| delivery.is_right(*host)));
}

/// Nobody is at the switch's address: receivers get it without it, all of them.
#[test]
fn a_switch_that_is_not_there_is_done_without() {
    let setup = Setup { copies_at: ip(99), ..Setup::default() };
    let mut delivery = Delivery::new(&setup, 400_000, &[Habit::Sound; 3], |give| {
        give.algorithm = Algorithm::InNetwork;
    })
    .unwrap();
    assert!(delivery.settle(END, &[1, 2, 3]), "{:?}", delivery.given());
    let given = delivery.given().unwrap().as_ref().unwrap();
    assert_eq!((given.stored.len(), given.algorithm.clone()), (3, Algorithm::Pipeline), "{given:?}");
}

/// Receivers cannot reach each other: as few as possible are left out, and the others get it. One that nobody but the root
/// reaches does not cost those who accuse it, nor those whom it accuses.
#[test]
fn receivers_that_are_apart_do_not_cost_others() {
    let pair: (&[_], &[_]) = (&[(3, 4)], &[4]);
    let lonely: (&[_], &[_]) = (&[(1, 5), (2, 5), (3, 5), (4, 5)], &[5]);
    let first: (&[_], &[_]) = (&[(1, 2), (1, 3), (1, 4), (1, 5)], &[1]);
    for (apart, left_out) in [pair, lonely, first] {
        let setup = Setup { hosts: 6, apart: apart.to_vec(), ..Setup::default() };
        let mut delivery = Delivery::new(&setup, 100_000, &[Habit::Sound; 5], |_| {}).unwrap();
        let others: Vec<u16> = (1..=5).filter(|host| !left_out.contains(host)).collect();
        assert!(delivery.settle(END, &others), "{apart:?}: {:?}", delivery.given());
        let given = delivery.given().unwrap().as_ref().unwrap();
        let lost: Vec<_> = given.lost.iter().map(|(ip, _)| *ip).collect();
        assert_eq!(lost, left_out.iter().map(|host| ip(*host)).collect::<Vec<_>>(), "{apart:?}: {given:?}");
        assert!(given.lost.iter().all(|(_, why)| matches!(why, Lost::Apart(_))), "{given:?}");
        assert!(others.iter().all(|host| delivery.is_right(*host)), "{apart:?}");
    }
}

/// Two racks, and a third one that a crash empties: those who are left go on by a hybrid of their racks.
#[test]
fn racks_are_told_to_receivers() {
    for victim in [None, Some(3_u16), Some(6)] {
        let setup = Setup { hosts: 7, ..Setup::default() };
        let racks = rdmc::Racks::new(&["a", "a", "b", "b", "b", "a", "c"]).unwrap();
        let mut delivery = Delivery::new(&setup, 1_200_000, &[Habit::Sound; 6], |give| {
            give.algorithm = Algorithm::Hybrid(racks);
        })
        .unwrap();
        if let Some(victim) = victim {
            let node = delivery.hosts[usize::from(victim)];
            delivery.world.schedule(Nanos::from_micros(150), Fault::Crash(node));
        }
        let others: Vec<u16> = (1..=6).filter(|host| Some(*host) != victim).collect();
        assert!(delivery.settle(END, &others), "{victim:?}: {:?}", delivery.given());
        let given = delivery.given().unwrap().as_ref().unwrap();
        assert_eq!(given.stored.len(), others.len(), "{given:?}");
        let Algorithm::Hybrid(left) = &given.algorithm else { panic!("{given:?}") };
        assert_eq!(left.nodes(), others.len() + 1, "{given:?}");
        assert!(others.iter().all(|host| delivery.is_right(*host)), "{victim:?}");
    }
}

/// Who gives up says so: nobody has to wait for what would tell it otherwise.
#[test]
fn who_stops_is_heard() {
    let soon = Nanos::from_millis(3);
    for stops in [0, 2] {
        for at in [10, 60, 200] {
            let setup = Setup { hosts: 4, ..Setup::default() };
            let mut delivery = Delivery::new(&setup, 1_200_000, &[Habit::Sound; 3], |_| {}).unwrap();
            delivery.world.run_until(Nanos::from_micros(at));
            delivery.stop(stops);
            let context = format!("{stops} stops after {at} us");
            if stops == 0 {
                assert_eq!(delivery.given(), Some(&Err(GiveError::Stopped)), "{context}");
                delivery.world.run_until(delivery.world.now() + soon);
                for host in 1..=3 {
                    // Who was not called yet waits.
                    let taken = delivery.taken(host);
                    let expected = if at > 10 { Some(&Err(TakeError::Left(ip(0)))) } else { taken };
                    assert_eq!(taken, expected, "{context}: {host}");
                }
            } else if at > 10 {
                assert!(delivery.settle(delivery.world.now() + soon, &[1, 2, 3]), "{context}");
                let given = delivery.given().unwrap().as_ref().unwrap();
                assert_eq!(given.lost, [(ip(2), Lost::Refused(Refusal::Stopped))], "{context}");
                assert!([1, 3].iter().all(|host| delivery.is_right(*host)), "{context}");
            }
        }
    }
}

#[test]
fn a_switch_that_fails_is_done_without() {
    let setup = Setup { create_timeout: Nanos::from_secs(3), ..Setup::default() };
    let mut delivery = Delivery::new(&setup, 4_000_000, &[Habit::Sound; 3], |give| {
        give.algorithm = Algorithm::InNetwork;
        give.patience = Nanos::from_secs(4);
    })
    .unwrap();
    let at = Nanos::from_micros(600);
    delivery.world.schedule(at, Fault::Crash(delivery.switch));
    delivery.world.schedule(at + Nanos::from_micros(200), Fault::Restart(delivery.switch));
    assert!(delivery.settle(Nanos::from_secs(30), &[1, 2, 3]), "{:?}", delivery.given());
    let given = delivery.given().unwrap().as_ref().unwrap();
    assert!(given.rounds > 1 && given.stored.len() == 3, "{given:?}");
    assert!((1..=3).all(|host| delivery.is_right(host)));
}
