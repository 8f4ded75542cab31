//! The table of packets through the forwarding function.

use std::collections::HashSet;
use switch::drop::FaultSet;
use switch::forward::config::Topology;
use switch::forward::{Config, Forward};
use switch::memory::run_frame;
use switch::{DropReason, Nanos, PortId, Verdict};
use understudy_tests::packets::table;

fn forward(drop: FaultSet) -> Forward {
    Forward::new(&Config {
        ports: 2,
        topology: Topology::Pairs(vec![(PortId(0), PortId(1))]),
        drop,
        verify_icrc: true,
        verify_udp_checksum: true,
        counted_qps: 8,
    })
}

#[test]
fn verdicts() {
    for row in table() {
        let mut strict = forward(FaultSet::ALL);
        let (verdict, frames) = run_frame(&mut strict, &row.frame, PortId(0), Nanos::ZERO);
        match row.fault {
            None => assert_eq!(verdict, Verdict::Forward(PortId(1)), "{}", row.what),
            Some(fault) => assert_eq!(verdict, Verdict::Drop(DropReason::Malformed(fault)), "{}", row.what),
        }
        assert_eq!(frames.len(), usize::from(row.fault.is_none()), "{}", row.what);

        let mut lenient = forward(FaultSet::NONE);
        let (verdict, frames) = run_frame(&mut lenient, &row.frame, PortId(1), Nanos::ZERO);
        assert_eq!(
            (verdict, frames),
            (Verdict::Forward(PortId(0)), vec![(row.frame.clone(), PortId(0))]),
            "{}",
            row.what
        );

        let counters = lenient.counters();
        let counted: Vec<_> =
            (0..=255u8).filter(|&op| counters.opcodes[usize::from(op)].frames.get() > 0).collect();
        assert_eq!(counted, row.opcode.map(|op| op.0).into_iter().collect::<Vec<_>>(), "{}", row.what);
        for fault in rocev2::Fault::ALL {
            let expected = u64::from(row.fault == Some(fault));
            assert_eq!(counters.faults[fault as usize].get(), expected, "{}: {fault}", row.what);
        }
    }
}

#[test]
fn every_fault_is_in_the_table() {
    let seen: HashSet<_> = table().into_iter().filter_map(|row| row.fault).collect();
    assert_eq!(seen.len(), rocev2::Fault::ALL.len());
}
