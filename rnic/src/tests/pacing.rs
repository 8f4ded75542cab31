//! DCQCN at the ends: what is slowed down, and what that must not do.

use super::pair::*;
use crate::*;
use rocev2::rewrite::Rewriter;
use rocev2::{Bth, Class, Opcode, Psn, Qpn, classify};
use switch::Nanos;

/// Two NICs that stay slow once they are, and a connection between them
fn connected() -> (Pair, [End; 2]) {
    connected_with(Setup::default())
}

fn connected_with(setup: Setup) -> (Pair, [End; 2]) {
    let congestion = Dcqcn { increase_timer: Nanos::from_secs(100), ..Dcqcn::of_paper(1_000_000_000) };
    let mut pair =
        Pair::new(1, [config(0), config(1)].map(|config| Config { congestion: Some(congestion), ..config }));
    let ends = pair.connect(Setup { mtu: PathMtu::B4096, ..setup });
    pair.acquaint(&ends);
    (pair, ends)
}

/// CNPs bring the queue pair down to the lowest rate, 10 Mb/s: 3.3 ms for a packet of 4,096 bytes.
fn slow_down(pair: &mut Pair, nic: usize, qpn: Qpn) {
    let mut bth = Bth::new(Opcode::CNP, qpn, Psn::ZERO);
    bth.set_becn(true);
    let mut cnp = Vec::new();
    pair.route(nic).emit(&mut cnp, bth, &[&[0; 16]], &[]);
    pair.deliver(nic, &vec![cnp; 50]);
    assert_eq!(pair.nics[nic].qp_rate_bps(qpn), Some(10_000_000));
}

/// Requests of one connection; each waits for so long after the one before.
#[test]
fn marked_packets_cause_one_cnp_an_interval() {
    let (mut pair, [a, b]) = connected();
    let interval = Dcqcn::of_paper(1).cnp_interval.0;
    for (id, wait, cnps) in
        [(1, 0, 1), (2, interval / 2, 1), (3, interval, 2), (4, interval - 1, 2), (5, 1, 3)]
    {
        pair.now = pair.now + Nanos(wait);
        pair.post(0, a.qpn, id, Operation::Write(b.remote(0)), Data::Memory(a.sge(0, 8)));
        let mut frames = pair.frames(0);
        for frame in &mut frames {
            let Class::Roce(layout) = classify(frame) else { panic!("a request") };
            let mut rewriter = Rewriter::new(frame, layout);
            rewriter.set_ecn(3);
            rewriter.finish();
        }
        pair.deliver(1, &frames);
        pair.frames(1);
        let counters = pair.nics[1].counters();
        assert_eq!((counters.ce_marked, counters.cnps_sent), (id, cnps), "after {id}");
    }
}

#[test]
fn responses_with_data_are_paced() {
    let (mut pair, [a, b]) = connected();
    slow_down(&mut pair, 1, b.qpn);
    pair.post(0, a.qpn, 1, Operation::Read(b.remote(0)), Data::Memory(a.sge(0, 60_000)));
    let request = pair.frames(0);
    pair.deliver(1, &request);
    assert_eq!(pair.frames(1).len(), 1, "of fifteen, at one time");
    let next = pair.nics[1].next_timer().unwrap();
    assert!(next > pair.now + Nanos::from_millis(3), "{next:?}");
    pair.nics[1].on_timer(next);
    pair.now = next;
    assert_eq!(pair.frames(1).len(), 1);
}

#[test]
fn waiting_for_the_pace_is_not_silence() {
    // 131 us until an acknowledgement is missed, and 3.3 ms between two packets
    let (mut pair, [a, b]) = connected();
    slow_down(&mut pair, 0, a.qpn);
    pair.post(0, a.qpn, 1, Operation::Write(b.remote(0)), Data::Memory(a.sge(0, 60_000)));
    pair.run();
    assert_eq!(pair.statuses(0, &a), [(1, Status::Success)]);
    let counters = pair.nics[0].counters();
    assert_eq!((counters.timeouts, counters.retransmitted), (0, 0));
}

/// What becomes of a WRITE of 8 bytes by a slow NIC from which the other side always has four READs of 40,000 bytes to
/// come. Its first packet is lost, or not.
fn write_beside_reads(is_lost: bool) -> Vec<(u64, Status)> {
    // 67 ms until an acknowledgement is missed
    let (mut pair, [a, b]) = connected_with(Setup { timeout: 14, ..Setup::default() });
    slow_down(&mut pair, 0, a.qpn);
    if is_lost {
        pair.post(0, a.qpn, 99, Operation::Write(b.remote(50_000)), Data::Memory(a.sge(0, 8)));
        assert_eq!(pair.frames(0).len(), 1, "never delivered");
    }
    let read = |pair: &mut Pair, id| {
        pair.post(1, b.qpn, id, Operation::Read(a.remote(0)), Data::Memory(b.sge(0, 40_000)));
    };
    (0..4).for_each(|id| read(&mut pair, id));
    pair.run_for(Nanos::from_millis(5));
    if !is_lost {
        pair.post(0, a.qpn, 99, Operation::Write(b.remote(50_000)), Data::Memory(a.sge(0, 8)));
    }
    for _ in 0..1_000 {
        pair.run_for(Nanos::from_millis(1));
        for done in pair.completions(1, &b) {
            assert_eq!(done.status, Status::Success);
            read(&mut pair, done.id);
        }
    }
    pair.statuses(0, &a)
}

#[test]
fn a_request_has_its_turn_beside_paced_responses() {
    assert_eq!(write_beside_reads(false), [(99, Status::Success)]);
}

#[test]
fn a_lost_request_is_repeated_while_responses_wait_for_the_pace() {
    assert_eq!(write_beside_reads(true), [(99, Status::Success)]);
}

#[test]
fn a_slow_sender_still_notices_silence() {
    let (mut pair, [a, b]) = connected();
    slow_down(&mut pair, 0, a.qpn);
    pair.take = Some(|packet, _| packet.layout().opcode() == Opcode::RC_ACKNOWLEDGE);
    pair.post(0, a.qpn, 1, Operation::Write(b.remote(0)), Data::Memory(a.sge(0, 20_000)));
    pair.run_for(Nanos::from_secs(10));
    assert_eq!(pair.statuses(0, &a), [(1, Status::RetryExceeded)]);
}
