//! Delivery of objects of any length to all receivers that do not fail.

use rdmc::Algorithm;
use rdmc::delivery::{LossReason, ReceiverError, Refusal, SenderError};
use sim::Fault;
use switch::Nanos;
use workloads::rdmc::delivery::{Delivery, ReceiverBehaviour};
use workloads::rdmc::{Setup, ip};

const END: Nanos = Nanos::from_secs(5);

#[test]
fn all_receivers_get_the_object() {
    for (receivers, len) in [(1, 3000), (2, 40_000), (3, 40_001), (4, 500_000), (7, 123_456)] {
        for algorithm in [Algorithm::Pipeline, Algorithm::Chain, Algorithm::InNetwork] {
            let setup = Setup { hosts: receivers + 1, ..Setup::default() };
            let behaviours = vec![ReceiverBehaviour::Correct; receivers.into()];
            let context = format!("{len} bytes to {receivers} by {}", algorithm.name());
            let mut delivery =
                Delivery::new(&setup, len, &behaviours, |config| config.algorithm = algorithm).unwrap();
            let all: Vec<u16> = (1..=receivers).collect();
            assert!(delivery.run_until_outcome(END, &all), "{context}: {:?}", delivery.root_outcome());
            let report = delivery.root_outcome().unwrap().as_ref().unwrap();
            assert_eq!((report.stored.len(), report.rounds), (all.len(), 1), "{context}");
            assert!(report.lost.is_empty());
            for host in all {
                assert_eq!(delivery.receiver_outcome(host), Some(&Ok(())), "{context}");
                assert!(delivery.has_stored_object(host), "{context}");
            }
        }
    }
}

#[test]
fn invalid_configurations_are_refused_with_the_reason() {
    let setup = Setup { hosts: 3, ..Setup::default() };
    let new = |change: fn(&mut rdmc::delivery::SenderConfig)| {
        Delivery::new(&setup, 50_000, &[ReceiverBehaviour::Correct, ReceiverBehaviour::Correct], change)
            .unwrap_err()
    };
    assert_eq!(new(|config| config.len = 0), SenderError::Empty);
    assert_eq!(new(|config| config.receivers.clear()), SenderError::NoReceivers);
    assert_eq!(new(|config| config.receivers = vec![ip(1), ip(1)]), SenderError::Twice(ip(1)));
    assert_eq!(new(|config| config.receivers = vec![ip(0)]), SenderError::Twice(ip(0)));
    assert_eq!(new(|config| config.name.clear()), SenderError::Name(0));
    assert_eq!(new(|config| config.name = "x".repeat(256)), SenderError::Name(256));
    assert_eq!(new(|config| config.block_bytes = 0), SenderError::Block { block: 0, len: 50_000 });
    let above = new(|config| config.block_bytes = 50_001);
    assert_eq!(above, SenderError::Block { block: 50_001, len: 50_000 });
    assert_eq!(above.to_string(), "blocks of 50001 bytes of an object of 50000: 1 to 50000 are possible");
    assert_eq!(new(|config| config.segment_bytes = 2999), SenderError::Segment);
    assert_eq!(new(|config| config.window = 0), SenderError::Segment);
    let many =
        |config: &mut rdmc::delivery::SenderConfig| (config.block_bytes, config.segment_bytes) = (1, 1 << 21);
    assert_eq!(new(many), SenderError::Segment);
    let racks = rdmc::Racks::new(&[1, 2, 2, 2]).unwrap();
    let hybrid = Delivery::new(&setup, 50_000, &[ReceiverBehaviour::Correct; 2], |config| {
        config.algorithm = Algorithm::Hybrid(racks);
    });
    assert_eq!(
        hybrid.unwrap_err().to_string(),
        "racks are given for 4 nodes, but the group has 3; give the rack of every node"
    );
}

#[test]
fn receivers_that_fail_are_named_and_the_other_receivers_get_the_object() {
    let setup = Setup { hosts: 5, ..Setup::default() };
    let run = |behaviours: [ReceiverBehaviour; 4]| {
        let mut delivery = Delivery::new(&setup, 400_000, &behaviours, |_| {}).unwrap();
        let present: Vec<u16> =
            (1..=4).filter(|host| behaviours[usize::from(*host) - 1] != ReceiverBehaviour::Absent).collect();
        assert!(delivery.run_until_outcome(END, &present), "{behaviours:?}: {:?}", delivery.root_outcome());
        delivery
    };
    let delivery = run([
        ReceiverBehaviour::Correct,
        ReceiverBehaviour::Absent,
        ReceiverBehaviour::Correct,
        ReceiverBehaviour::Absent,
    ]);
    assert_eq!(delivery.root_outcome(), Some(&Err(SenderError::Silent(vec![ip(2), ip(4)]))));
    assert_eq!(delivery.receiver_outcome(1), Some(&Err(ReceiverError::NoOffer(ip(0)))));

    let delivery = run([
        ReceiverBehaviour::Correct,
        ReceiverBehaviour::NoSpace,
        ReceiverBehaviour::Correct,
        ReceiverBehaviour::WritesEveryNthCall(40),
    ]);
    let report = delivery.root_outcome().unwrap().as_ref().unwrap();
    assert_eq!(report.lost, [(ip(2), LossReason::Refused(Refusal::NoSpace))]);
    assert_eq!(delivery.receiver_outcome(2), Some(&Err(ReceiverError::Refused(Refusal::NoSpace))));
    for host in [1, 3, 4] {
        assert!(
            delivery.receiver_outcome(host) == Some(&Ok(())) && delivery.has_stored_object(host),
            "host {host}"
        );
    }

    let delivery = run([
        ReceiverBehaviour::Correct,
        ReceiverBehaviour::Correct,
        ReceiverBehaviour::Correct,
        ReceiverBehaviour::MemoryLimit(40_000),
    ]);
    let report = delivery.root_outcome().unwrap().as_ref().unwrap();
    assert_eq!(report.lost, [(ip(4), LossReason::Refused(Refusal::Memory))]);
    assert_eq!(delivery.receiver_outcome(4), Some(&Err(ReceiverError::Refused(Refusal::Memory))));

    let delivery = run([
        ReceiverBehaviour::Correct,
        ReceiverBehaviour::Correct,
        ReceiverBehaviour::Corrupts,
        ReceiverBehaviour::Correct,
    ]);
    let report = delivery.root_outcome().unwrap().as_ref().unwrap();
    assert_eq!(report.lost, [(ip(3), LossReason::Damaged)]);
    assert_eq!(delivery.receiver_outcome(3), Some(&Err(ReceiverError::Damaged)));
    assert_eq!(report.stored, [ip(1), ip(2), ip(4)]);
}

/// Receivers crash at moments spread over a delivery. All other receivers get the object, and segments that
/// all of them had are not sent again. When the root crashes, all receivers are notified.
#[test]
fn survivors_resume_without_sending_segments_again() {
    let (mut resumed, mut spared) = (0, 0);
    for moment in 1..=24_u64 {
        for victim in [0_u16, 1, 4] {
            let setup = Setup { hosts: 6, ..Setup::default() };
            let mut delivery =
                Delivery::new(&setup, 1_200_000, &[ReceiverBehaviour::Correct; 5], |_| {}).unwrap();
            // The delivery takes some 300 us, and all receivers have joined after 30 us.
            let at = Nanos(moment * 11_000);
            delivery.world.schedule(at, Fault::Crash(delivery.hosts[usize::from(victim)]));
            let context = format!("{victim} crashes at {at:?}");
            let others: Vec<u16> = (1..=5).filter(|host| *host != victim).collect();
            if victim == 0 {
                delivery.world.run_until(at + Nanos::from_millis(700));
                for host in others {
                    assert!(delivery.receiver_outcome(host).is_some(), "{context}: {host} has no result");
                    let has_stored_object = delivery.has_stored_object(host);
                    assert_eq!(
                        delivery.receiver_outcome(host) == Some(&Ok(())),
                        has_stored_object,
                        "{context}: {host}"
                    );
                }
                continue;
            }
            assert!(delivery.run_until_outcome(END, &others), "{context}: {:?}", delivery.root_outcome());
            let report = delivery.root_outcome().unwrap();
            let Ok(report) = report else {
                assert_eq!(report, &Err(SenderError::Silent(vec![ip(victim)])), "{context}");
                continue;
            };
            for host in others {
                assert_eq!(delivery.receiver_outcome(host), Some(&Ok(())), "{context}: {host}");
                assert!(delivery.has_stored_object(host), "{context}: {host}");
            }
            let segments = 30;
            assert!(delivery.read() >= segments && report.stored.len() >= 4, "{context}: {report:?}");
            if report.rounds > 1 {
                resumed += 1;
                spared += u64::from(delivery.read() < 2 * segments - 4);
            }
        }
    }
    println!("{resumed} continued in another round, {spared} of them without sending the whole object again");
    assert!(resumed > 10 && spared > 5, "{resumed} {spared}");
}

/// A receiver that restarts while the root still waits for another one gets a link again.
#[test]
fn receivers_may_start_late_and_restart() {
    let mut delivery = Delivery::new(
        &Setup { hosts: 3, ..Setup::default() },
        100_000,
        &[ReceiverBehaviour::Correct; 2],
        |_| {},
    )
    .unwrap();
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
    assert!(delivery.run_until_outcome(END, &[1, 2]), "{:?}", delivery.root_outcome());
    let report = delivery.root_outcome().unwrap().as_ref().unwrap();
    assert_eq!((report.stored.len(), report.lost.len(), report.rounds), (2, 0, 1), "{report:?}");
    assert!((1..=2).all(|host| delivery.has_stored_object(host)));
}

/// A receiver that responds but does not write does not stop the delivery for good.
#[test]
fn a_stuck_receiver_is_excluded() {
    for after in [0, 3, 9] {
        let setup = Setup { hosts: 4, ..Setup::default() };
        let behaviours =
            [ReceiverBehaviour::Correct, ReceiverBehaviour::StopsAfter(after), ReceiverBehaviour::Correct];
        let mut delivery = Delivery::new(&setup, 400_000, &behaviours, |_| {}).unwrap();
        assert!(delivery.run_until_outcome(END, &[1, 3]), "{after}: {:?}", delivery.root_outcome());
        let report = delivery.root_outcome().unwrap().as_ref().unwrap();
        assert_eq!(report.lost, [(ip(2), LossReason::Silent)], "{after}");
        assert!([1, 3].iter().all(|host| delivery.has_stored_object(*host)), "{after}");
    }
}

/// A root that responds but does not read does not make receivers wait forever.
#[test]
fn receivers_give_up_a_stuck_root() {
    let setup = Setup { hosts: 3, ..Setup::default() };
    let mut delivery = Delivery::new(&setup, 400_000, &[ReceiverBehaviour::Correct; 2], |_| {}).unwrap();
    delivery.read_at_most(3);
    delivery.world.run_until(END);
    for host in 1..=2 {
        assert!(
            matches!(delivery.receiver_outcome(host), Some(Err(_))),
            "{host}: {:?}",
            delivery.receiver_outcome(host)
        );
    }
}

/// A disk needs longer for its remaining segments than the usual timeout. The root waits for it as long as it
/// makes progress.
#[test]
fn the_root_waits_for_a_slow_disk_while_it_writes() {
    let setup = Setup { hosts: 3, ..Setup::default() };
    let behaviours = [ReceiverBehaviour::Correct, ReceiverBehaviour::WriteTime(Nanos::from_millis(120))];
    let mut delivery = Delivery::new(&setup, 400_000, &behaviours, |_| {}).unwrap();
    assert!(delivery.run_until_outcome(END, &[1, 2]), "{:?}", delivery.root_outcome());
    let report = delivery.root_outcome().unwrap().as_ref().unwrap();
    assert_eq!((report.stored.len(), report.lost.len(), report.rounds), (2, 0, 1), "{report:?}");
    assert!(delivery.has_stored_object(2));
}

/// A receiver behind a switch that copies crashes. The switch ends the group, and continues to copy for the
/// other receivers.
#[test]
fn a_switch_continues_to_copy_after_a_receiver_crashes() {
    let setup = Setup { hosts: 5, create_timeout: Nanos::from_secs(3), ..Setup::default() };
    let mut delivery = Delivery::new(&setup, 4_000_000, &[ReceiverBehaviour::Correct; 4], |config| {
        config.algorithm = Algorithm::InNetwork;
        config.patience = Nanos::from_secs(4);
    })
    .unwrap();
    delivery.world.schedule(Nanos::from_micros(600), Fault::Crash(delivery.hosts[2]));
    let others = [1, 3, 4];
    assert!(delivery.run_until_outcome(Nanos::from_secs(30), &others), "{:?}", delivery.root_outcome());
    let report = delivery.root_outcome().unwrap().as_ref().unwrap();
    assert_eq!(report.lost, [(ip(2), LossReason::Gone)]);
    assert_eq!(report.algorithm, Algorithm::InNetwork, "{report:?}");
    assert!(others.iter().all(|host| delivery.has_stored_object(*host)));
}

/// No host has the switch's address: all receivers get the object without the switch.
#[test]
fn an_absent_switch_is_replaced_by_a_pipeline() {
    let setup = Setup { switch_address: ip(99), ..Setup::default() };
    let mut delivery = Delivery::new(&setup, 400_000, &[ReceiverBehaviour::Correct; 3], |config| {
        config.algorithm = Algorithm::InNetwork;
    })
    .unwrap();
    assert!(delivery.run_until_outcome(END, &[1, 2, 3]), "{:?}", delivery.root_outcome());
    let report = delivery.root_outcome().unwrap().as_ref().unwrap();
    assert_eq!((report.stored.len(), report.algorithm.clone()), (3, Algorithm::Pipeline), "{report:?}");
}

/// Some receivers cannot reach each other: as few as possible are excluded, and all other receivers get the
/// object. A receiver that only the root can reach causes the exclusion of no other receiver, neither of
/// those that report it nor of those that it reports.
#[test]
fn only_unreachable_receivers_are_excluded() {
    let pair: (&[_], &[_]) = (&[(3, 4)], &[4]);
    let isolated: (&[_], &[_]) = (&[(1, 5), (2, 5), (3, 5), (4, 5)], &[5]);
    let first: (&[_], &[_]) = (&[(1, 2), (1, 3), (1, 4), (1, 5)], &[1]);
    for (apart, excluded) in [pair, isolated, first] {
        let setup = Setup { hosts: 6, unreachable_pairs: apart.to_vec(), ..Setup::default() };
        let mut delivery = Delivery::new(&setup, 100_000, &[ReceiverBehaviour::Correct; 5], |_| {}).unwrap();
        let others: Vec<u16> = (1..=5).filter(|host| !excluded.contains(host)).collect();
        assert!(delivery.run_until_outcome(END, &others), "{apart:?}: {:?}", delivery.root_outcome());
        let report = delivery.root_outcome().unwrap().as_ref().unwrap();
        let lost: Vec<_> = report.lost.iter().map(|(ip, _)| *ip).collect();
        assert_eq!(lost, excluded.iter().map(|host| ip(*host)).collect::<Vec<_>>(), "{apart:?}: {report:?}");
        assert!(report.lost.iter().all(|(_, why)| matches!(why, LossReason::Unreachable(_))), "{report:?}");
        assert!(others.iter().all(|host| delivery.has_stored_object(*host)), "{apart:?}");
    }
}

/// There are two racks, and a third one that a crash empties. The surviving receivers continue with a hybrid
/// of their racks.
#[test]
fn survivors_continue_with_a_hybrid_of_the_remaining_racks() {
    for victim in [None, Some(3_u16), Some(6)] {
        let setup = Setup { hosts: 7, ..Setup::default() };
        let racks = rdmc::Racks::new(&["a", "a", "b", "b", "b", "a", "c"]).unwrap();
        let mut delivery = Delivery::new(&setup, 1_200_000, &[ReceiverBehaviour::Correct; 6], |config| {
            config.algorithm = Algorithm::Hybrid(racks);
        })
        .unwrap();
        if let Some(victim) = victim {
            let node = delivery.hosts[usize::from(victim)];
            delivery.world.schedule(Nanos::from_micros(150), Fault::Crash(node));
        }
        let others: Vec<u16> = (1..=6).filter(|host| Some(*host) != victim).collect();
        assert!(delivery.run_until_outcome(END, &others), "{victim:?}: {:?}", delivery.root_outcome());
        let report = delivery.root_outcome().unwrap().as_ref().unwrap();
        assert_eq!(report.stored.len(), others.len(), "{report:?}");
        let Algorithm::Hybrid(left) = &report.algorithm else { panic!("{report:?}") };
        assert_eq!(left.nodes(), others.len() + 1, "{report:?}");
        assert!(others.iter().all(|host| delivery.has_stored_object(*host)), "{victim:?}");
    }
}

/// A host that stops notifies the other hosts, which need not wait for a timeout.
#[test]
fn all_hosts_are_notified_when_a_host_stops() {
    let notification_limit = Nanos::from_millis(3);
    for stops in [0, 2] {
        for at in [10, 60, 200] {
            let setup = Setup { hosts: 4, ..Setup::default() };
            let mut delivery =
                Delivery::new(&setup, 1_200_000, &[ReceiverBehaviour::Correct; 3], |_| {}).unwrap();
            delivery.world.run_until(Nanos::from_micros(at));
            delivery.stop(stops);
            let context = format!("{stops} stops after {at} us");
            if stops == 0 {
                assert_eq!(delivery.root_outcome(), Some(&Err(SenderError::Stopped)), "{context}");
                delivery.world.run_until(delivery.world.now() + notification_limit);
                for host in 1..=3 {
                    // A receiver to which the sender has no link yet continues to wait.
                    let outcome = delivery.receiver_outcome(host);
                    let expected = if at > 10 { Some(&Err(ReceiverError::Stopped(ip(0)))) } else { outcome };
                    assert_eq!(outcome, expected, "{context}: {host}");
                }
            } else if at > 10 {
                assert!(
                    delivery.run_until_outcome(delivery.world.now() + notification_limit, &[1, 2, 3]),
                    "{context}"
                );
                let report = delivery.root_outcome().unwrap().as_ref().unwrap();
                assert_eq!(report.lost, [(ip(2), LossReason::Refused(Refusal::Stopped))], "{context}");
                assert!([1, 3].iter().all(|host| delivery.has_stored_object(*host)), "{context}");
            }
        }
    }
}

#[test]
fn a_failed_switch_is_replaced_by_another_algorithm() {
    let setup = Setup { create_timeout: Nanos::from_secs(3), ..Setup::default() };
    let mut delivery = Delivery::new(&setup, 4_000_000, &[ReceiverBehaviour::Correct; 3], |config| {
        config.algorithm = Algorithm::InNetwork;
        config.patience = Nanos::from_secs(4);
    })
    .unwrap();
    let at = Nanos::from_micros(600);
    delivery.world.schedule(at, Fault::Crash(delivery.switch));
    delivery.world.schedule(at + Nanos::from_micros(200), Fault::Restart(delivery.switch));
    assert!(delivery.run_until_outcome(Nanos::from_secs(30), &[1, 2, 3]), "{:?}", delivery.root_outcome());
    let report = delivery.root_outcome().unwrap().as_ref().unwrap();
    assert!(report.rounds > 1 && report.stored.len() == 3, "{report:?}");
    assert!((1..=3).all(|host| delivery.has_stored_object(host)));
}
