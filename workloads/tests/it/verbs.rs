//! Two NICs that use all verbs over an unreliable link.

use crate::environment;
use workloads::scenario::{
    AckSpec, EcnSpec, FaultKind, FaultSpec, HostSpec, LinkSpec, NumberRange, Planted, Scenario, SwitchKind,
    SwitchSpec, VerbsSpec, Work, run,
};

use switch::Rng;

/// Seeds of each test in `make test`; `make soak` runs others.
const SEEDS: u64 = 20;

fn scenario() -> Scenario {
    let percent = NumberRange { low: 0, high: 100_000_000 };
    let host = |name: &str, last: u8| HostSpec {
        window: NumberRange { low: 4, high: 64 },
        ack: AckSpec::Any,
        forgetful: NumberRange { low: 0, high: 1 },
        ..HostSpec::new(name, [10, 0, 0, last].into(), 24)
    };
    Scenario {
        limit: NumberRange::fixed(1_000_000_000_000),
        hosts: vec![host("a", 1), host("b", 2)],
        switches: Vec::new(),
        links: vec![LinkSpec {
            jitter: NumberRange { low: 0, high: 2_000 },
            loss: percent,
            duplicate: percent,
            reorder: percent,
            corrupt: percent,
            mtu: NumberRange::fixed(4200),
            ..LinkSpec::new("a", "b")
        }],
        work: Work::Verbs(VerbsSpec {
            connections: NumberRange { low: 1, high: 3 },
            unreliable: NumberRange { low: 0, high: 2 },
            operations: NumberRange { low: 5, high: 30 },
            mtu_log2: NumberRange { low: 8, high: 12 },
            timeout: NumberRange { low: 5, high: 9 },
            background_reads: NumberRange { low: 0, high: 1 },
            receives: NumberRange { low: 1, high: 16 },
            repost_us: NumberRange { low: 0, high: 20 },
            ..VerbsSpec::default()
        }),
        faults: Vec::new(),
    }
}

/// Returns [`scenario`] with a switch whose link to the second host is slow and marks packets, so that DCQCN
/// has to act.
fn congested() -> Scenario {
    let plain = scenario();
    let hosts = plain.hosts.iter().map(|host| HostSpec {
        dcqcn: NumberRange::fixed(1),
        window: NumberRange::fixed(64),
        ..host.clone()
    });
    let marks = EcnSpec {
        min: NumberRange::fixed(5_000),
        max: NumberRange::fixed(50_000),
        share: NumberRange::fixed(100_000_000),
    };
    let link = |host: &str| LinkSpec { ends: [host.into(), "s".into()], ..plain.links[0].clone() };
    let slow = LinkSpec {
        rate: NumberRange { low: 1_000_000_000, high: 10_000_000_000 },
        ecn: Some(marks),
        loss: NumberRange { low: 0, high: 20_000_000 },
        ..link("b")
    };
    Scenario {
        hosts: hosts.collect(),
        switches: vec![SwitchSpec { name: "s".into(), kind: SwitchKind::Bridge }],
        links: vec![LinkSpec { reorder: NumberRange::fixed(0), ..link("a") }, slow],
        ..plain
    }
}

#[test]
fn verbs_complete_correctly_on_lossy_links() {
    let scenario = scenario();
    for seed in environment::seeds("verbs", SEEDS) {
        let outcome = run(&scenario, seed, Planted::default(), Vec::new());
        assert_eq!(outcome.violation, None, "seed {seed}");
    }
}

#[test]
fn verbs_complete_correctly_in_a_congested_network() {
    let scenario = congested();
    let mut cnps = 0;
    for seed in environment::seeds("verbs", SEEDS) {
        let outcome = run(&scenario, seed, Planted::default(), Vec::new());
        assert_eq!(outcome.violation, None, "seed {seed}");
        cnps += outcome.hosts.iter().map(|host| host.counters.cnps_received).sum::<u64>();
    }
    // A single seed that is run again need not have any.
    assert!(!environment::selects_default_seeds() || cnps > 200, "only {cnps} CNPs were received");
}

/// Returns [`scenario`] in which each host revokes the access rights of one of its connections.
fn revoking() -> Scenario {
    let mut scenario = scenario();
    if let Work::Verbs(verbs) = &mut scenario.work {
        verbs.revoke_us = NumberRange { low: 1, high: 3000 };
    }
    scenario
}

#[test]
fn memory_is_not_written_without_a_right() {
    let scenario = revoking();
    for seed in environment::seeds("verbs", SEEDS) {
        let outcome = run(&scenario, seed, Planted::default(), Vec::new());
        assert_eq!(outcome.violation, None, "seed {seed}");
    }
}

/// Returns [`revoking`] with few retries and a restart of one host.
fn failing() -> Scenario {
    let mut scenario = revoking();
    if let Work::Verbs(verbs) = &mut scenario.work {
        verbs.retry_count = NumberRange { low: 3, high: 7 };
    }
    let [at, lasts] = [NumberRange { low: 0, high: 2_000_000 }, NumberRange { low: 0, high: 1_000_000 }];
    scenario.faults = vec![FaultSpec { at, kind: FaultKind::Crash("a".into()), lasts: Some(lasts) }];
    scenario
}

#[test]
fn connections_fail_only_for_a_reason() {
    let scenario = failing();
    let mut broken = 0;
    for seed in environment::seeds("verbs", SEEDS) {
        let outcome = run(&scenario, seed, Planted::default(), Vec::new());
        assert_eq!(outcome.violation, None, "seed {seed}");
        broken += outcome.broken;
    }
    assert!(!environment::selects_default_seeds() || broken > 20, "only {broken} ends of connections failed");
}

/// Returns [`congested`] with one to four faults that the seed draws. Each fault ends.
fn with_faults(seed: u64) -> Scenario {
    let mut scenario = congested();
    let mut rng = Rng::stream(seed, 0x7472_6f75);
    // Some frames are late, and some duplicates arrive long after the original.
    for link in &mut scenario.links {
        link.reorder_by = NumberRange { low: 20_000, high: 3_000_000 };
    }
    let mut queue_rng = Rng::stream(seed, 0x7175_6575);
    if queue_rng.below(4) == 0 {
        scenario.links[1].queue = NumberRange { low: 10_000, high: 100_000 };
    }
    let [a, b] = ["a", "b"].map(String::from);
    let ends = || [a.clone(), "s".to_owned()];
    let kinds: [FaultKind; 10] = [
        FaultKind::Outsider("s".into(), NumberRange { low: 10, high: 200 }),
        FaultKind::Pause(a.clone()),
        FaultKind::Pause("s".into()),
        FaultKind::Crash("s".into()),
        FaultKind::Partition(vec![a.clone()]),
        FaultKind::Mute(vec![a.clone()]),
        FaultKind::Mute(vec!["s".into(), b.clone()]),
        FaultKind::PartitionPair([a.clone(), b.clone()]),
        FaultKind::Mtu(ends(), NumberRange { low: 128, high: 1100 }),
        FaultKind::Mtu(ends(), NumberRange { low: 1100, high: 4200 }),
    ];
    let [at, lasts] = [NumberRange { low: 0, high: 2_000_000 }, NumberRange { low: 0, high: 3_000_000 }];
    let faults =
        (0..rng.between(1, 4)).map(|_| FaultSpec { at, kind: rng.pick(&kinds).clone(), lasts: Some(lasts) });
    scenario.faults = faults.collect();
    scenario.faults.extend(draw_path_and_clock_faults(seed));
    scenario
}

/// Draws, from a separate stream, hosts that swap their switch ports and changes of UDP source ports, each in
/// a third of the seeds. In another third, clocks drift by up to 200 ppm, or by up to 1 % in an eighth of
/// cases, from the beginning and at another rate later.
fn draw_path_and_clock_faults(seed: u64) -> Vec<FaultSpec> {
    let mut rng = Rng::stream(seed, 0x776f_726e);
    let [a, b] = ["a", "b"].map(String::from);
    let later = NumberRange { low: 1, high: 3_000_000 };
    let [swaps, rehashes, drifts] = [(); 3].map(|()| rng.below(3) == 0);
    let most = if rng.below(8) == 0 { 10_000_000 } else { 200_000 };
    let drift = NumberRange { low: -most, high: most };
    let salt = NumberRange { low: 0, high: 65_535 };
    let kinds = [
        (swaps, later, FaultKind::Swap([a.clone(), b.clone()])),
        (rehashes, later, FaultKind::Rehash(a.clone(), salt)),
        (rehashes, later, FaultKind::Rehash(b.clone(), salt)),
        (drifts, NumberRange::fixed(0), FaultKind::ClockDrift(a.clone(), drift)),
        (drifts, NumberRange::fixed(0), FaultKind::ClockDrift(b, drift)),
        (drifts, later, FaultKind::ClockDrift(a, drift)),
    ];
    let lasts = Some(NumberRange { low: 0, high: 3_000_000 });
    let drawn = kinds.into_iter().filter(|(is_drawn, ..)| *is_drawn);
    drawn.map(|(_, at, kind)| FaultSpec { at, kind, lasts }).collect()
}

/// With unlimited retries, all operations complete, whatever faults occurred before.
#[test]
fn verbs_complete_after_links_and_hosts_have_recovered() {
    let mut refused = 0;
    for seed in environment::seeds("verbs", SEEDS) {
        let outcome = run(&with_faults(seed), seed, Planted::default(), Vec::new());
        assert_eq!(outcome.violation, None, "seed {seed}");
        refused += outcome.hosts.iter().map(|host| host.counters.no_qp).sum::<u64>();
    }
    // Forged packets reach the hosts. They name existing queue pairs, but none that is connected to their
    // sender.
    assert!(!environment::selects_default_seeds() || refused > 100, "only {refused} packets were refused");
}

#[cfg(debug_assertions)]
#[test]
fn planted_writes_without_a_right_are_found() {
    let scenario = revoking();
    let violation = |seed, bug| run(&scenario, seed, Planted { bug }, Vec::new()).violation;
    let bug = rnic::Bug::AnyAccess;
    let found = environment::find_bug("verbs", &bug, 0..100, |seed| {
        let wrong = violation(seed, Some(bug))
            .filter(|wrong| wrong.contains("after the right to it was taken away"))?;
        violation(seed, None).is_none().then_some(wrong)
    });
    let (seed, wrong) = found.expect("the bug is found within 100 seeds");
    println!("AnyAccess: seed {seed}: {wrong}");
}

/// A bug in atomics is found even where connections fail: an operation with an unknown outcome excuses no
/// other violation.
#[cfg(debug_assertions)]
#[test]
fn planted_double_execution_is_found_where_connections_fail() {
    let scenario = revoking();
    let bug = rnic::Bug::AtomicTwice;
    let found = environment::find_bug("verbs", &bug, 0..100, |seed| {
        let outcome = run(&scenario, seed, Planted { bug: Some(bug) }, Vec::new());
        let wrong = outcome.violation.filter(|wrong| outcome.broken > 0 && wrong.starts_with("word "))?;
        wrong.contains("never completed").then_some(wrong)
    });
    let (seed, wrong) = found.expect("the bug is found within 100 seeds");
    println!("AtomicTwice: seed {seed}: {wrong}");
}

/// Checks that the planted bug makes one of a thousand seeds stall, and that the same seed completes without
/// the bug.
#[cfg(debug_assertions)]
#[track_caller]
fn stalls(scenario: &Scenario, bug: rnic::Bug) {
    // The limit is 100 ms. Seeds that draw slow links may need longer without the bug, too.
    let scenario = Scenario { limit: NumberRange::fixed(100_000_000), ..scenario.clone() };
    let violation = |seed, bug| run(&scenario, seed, Planted { bug }, Vec::new()).violation;
    let found = environment::find_bug("verbs", &bug, 0..1000, |seed| {
        let wrong = violation(seed, Some(bug)).filter(|wrong| wrong.contains("not done"))?;
        violation(seed, None).is_none().then_some(wrong)
    });
    let (seed, wrong) = found.unwrap_or_else(|| panic!("{bug:?} was not found"));
    println!("{bug:?}: seed {seed}: {wrong}");
}

#[cfg(debug_assertions)]
#[test]
fn planted_starvation_of_requests_is_found() {
    stalls(&scenario(), rnic::Bug::ResponsesFirst);
}

#[cfg(debug_assertions)]
#[test]
fn planted_timeout_that_the_rate_limit_suppresses_is_found() {
    stalls(&congested(), rnic::Bug::PaceExcuses);
}
