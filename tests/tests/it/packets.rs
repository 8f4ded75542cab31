//! Runs the table of packets through switch functions.

use std::collections::HashSet;
use switch::drop::FaultSet;
use switch::forward::config::ForwardingMode;
use switch::forward::{Config, Forward};
use switch::impair::{self, Action, Field, Impair, Match, Rule};
use switch::memory::run_frame;
use switch::{DropReason, Function, Nanos, PortId, Probability, Verdict};
use understudy_tests::packets::table;

fn forward(drop: FaultSet) -> Forward {
    Forward::new(&Config {
        ports: 2,
        mode: ForwardingMode::Pairs(vec![(PortId(0), PortId(1))]),
        drop,
        verify_icrc: true,
        verify_udp_checksum: true,
        counted_qps: 8,
        health: true,
    })
}

#[test]
fn forwarding_drops_exactly_the_faulty_packets_and_counts_every_fault() {
    for row in table() {
        let mut strict = forward(FaultSet::ALL);
        let (verdict, frames) = run_frame(&mut strict, &row.frame, PortId(0), Nanos::ZERO);
        match row.fault {
            None => assert_eq!(verdict, Verdict::Forward(PortId(1)), "{}", row.description),
            Some(fault) => {
                assert_eq!(verdict, Verdict::Drop(DropReason::Malformed(fault)), "{}", row.description);
            }
        }
        assert_eq!(frames.len(), usize::from(row.fault.is_none()), "{}", row.description);

        let mut lenient = forward(FaultSet::NONE);
        let (verdict, frames) = run_frame(&mut lenient, &row.frame, PortId(1), Nanos::ZERO);
        assert_eq!(
            (verdict, frames),
            (Verdict::Forward(PortId(0)), vec![(row.frame.clone(), PortId(0))]),
            "{}",
            row.description
        );

        let counters = lenient.counters();
        let counted: Vec<_> =
            (0..=255u8).filter(|&op| counters.opcodes[usize::from(op)].frames.get() > 0).collect();
        assert_eq!(counted, row.opcode.map(|op| op.0).into_iter().collect::<Vec<_>>(), "{}", row.description);
        for fault in rocev2::Fault::ALL {
            let expected = u64::from(row.fault == Some(fault));
            assert_eq!(counters.faults[fault as usize].get(), expected, "{}: {fault}", row.description);
        }
    }
}

#[test]
fn impairing_forwards_frames_that_are_not_packets_unchanged() {
    let rule = |name: &str, action| Rule {
        name: name.into(),
        matching: Match::default(),
        share: Probability::ALWAYS,
        skip: 0,
        times: u64::MAX,
        action,
    };
    let rules = vec![
        rule("copy", Action::Duplicate { copies: 1 }),
        rule("mark", Action::Mark { force: true }),
        rule("damage", Action::Corrupt(Field::Header)),
        rule("late", Action::Delay { by: Nanos(1), jitter: Nanos::ZERO }),
    ];
    let config = impair::Config {
        ports: 2,
        pairs: vec![(PortId(0), PortId(1))],
        seed: 1,
        held: 1,
        frame_len: 9000,
        flows: 1,
        counted_qps: 0,
        health: false,
        rules,
    };
    for row in table() {
        let mut impair = Impair::new(&config, 0);
        let (verdict, frames) = run_frame(&mut impair, &row.frame, PortId(0), Nanos::ZERO);
        let expected = if row.opcode.is_some() { Verdict::Consume } else { Verdict::Forward(PortId(1)) };
        assert_eq!(
            (verdict, frames),
            (expected, vec![(row.frame.clone(), PortId(1))]),
            "{}",
            row.description
        );
        assert_eq!(impair.next_timer(), row.opcode.map(|_| Nanos(1)), "{}", row.description);
    }
}

#[test]
fn every_fault_is_in_the_table() {
    let faults: HashSet<_> = table().into_iter().filter_map(|row| row.fault).collect();
    assert_eq!(faults.len(), rocev2::Fault::ALL.len());
}
