//! Two NICs, all verbs, a bad wire.

use sim::scenario::{AckSpec, Between, HostSpec, LinkSpec, Planted, Scenario, VerbsSpec, Work, run};

fn scenario() -> Scenario {
    let percent = Between { low: 0, high: 100_000_000 };
    let host = |name: &str, last: u8| HostSpec {
        window: Between { low: 4, high: 64 },
        ack: AckSpec::Any,
        forgetful: Between { low: 0, high: 1 },
        ..HostSpec::new(name, [10, 0, 0, last].into(), 24)
    };
    Scenario {
        limit: Between::just(1_000_000_000_000),
        hosts: vec![host("a", 1), host("b", 2)],
        switches: Vec::new(),
        links: vec![LinkSpec {
            jitter: Between { low: 0, high: 2_000 },
            loss: percent,
            duplicate: percent,
            reorder: percent,
            corrupt: percent,
            mtu: Between::just(4200),
            ..LinkSpec::new("a", "b")
        }],
        work: Work::Verbs(VerbsSpec {
            connections: Between { low: 1, high: 3 },
            unreliable: Between { low: 0, high: 2 },
            operations: Between { low: 5, high: 30 },
            mtu_log2: Between { low: 8, high: 12 },
            timeout: Between { low: 5, high: 9 },
            ..VerbsSpec::default()
        }),
        faults: Vec::new(),
    }
}

#[test]
fn verbs_do_what_they_are_for() {
    let scenario = scenario();
    for seed in 0..100 {
        let outcome = run(&scenario, seed, Planted::default(), Vec::new());
        assert_eq!(outcome.violation, None, "seed {seed}");
    }
}
