//! DCQCN at both ends: packets that are paced, and side effects that pacing must not have.

use super::pair::*;
use crate::*;
use rocev2::rewrite::Rewriter;
use rocev2::{Bth, Class, Opcode, Psn, Qpn, classify};
use switch::Nanos;

/// Returns two NICs whose rate does not recover once it is reduced, and a connection between them.
fn connected() -> (Pair, [End; 2]) {
    connected_with(Setup::default())
}

fn connected_with(setup: Setup) -> (Pair, [End; 2]) {
    let congestion = Dcqcn { increase_timer: Nanos::from_secs(100), ..Dcqcn::paper_defaults(1_000_000_000) };
    let mut pair =
        Pair::new(1, [config(0), config(1)].map(|config| Config { congestion: Some(congestion), ..config }));
    let ends = pair.connect(Setup { mtu: PathMtu::B4096, ..setup });
    pair.resolve_neighbours(&ends);
    (pair, ends)
}

/// Reduces the rate of a queue pair to the minimum, 10 Mbit/s, by CNPs: 3.3 ms for a packet of 4,096 bytes.
fn slow_down(pair: &mut Pair, nic: usize, qpn: Qpn) {
    let mut bth = Bth::new(Opcode::CNP, qpn, Psn::ZERO);
    bth.set_becn(true);
    let mut cnp = Vec::new();
    pair.path_headers(nic).emit(&mut cnp, bth, &[&[0; 16]], &[]);
    pair.deliver(nic, &vec![cnp; 50]);
    assert_eq!(pair.nics[nic].qp_rate_bps(qpn), Some(10_000_000));
}

/// One request per row; it is sent `wait` ns after the previous one.
#[test]
fn marked_packets_cause_one_cnp_per_interval() {
    let (mut pair, [a, b]) = connected();
    let interval = Dcqcn::paper_defaults(1).cnp_interval.0;
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
    assert_eq!(pair.frames(1).len(), 1, "one of fifteen packets may leave");
    let next = pair.nics[1].next_timer().unwrap();
    assert!(next > pair.now + Nanos::from_millis(3), "{next:?}");
    pair.nics[1].on_timer(next);
    pair.now = next;
    assert_eq!(pair.frames(1).len(), 1);
}

#[test]
fn waiting_for_the_dcqcn_rate_is_no_timeout() {
    // The acknowledgement timeout is 131 us, and 3.3 ms pass between two packets.
    let (mut pair, [a, b]) = connected();
    slow_down(&mut pair, 0, a.qpn);
    pair.post(0, a.qpn, 1, Operation::Write(b.remote(0)), Data::Memory(a.sge(0, 60_000)));
    pair.run();
    assert_eq!(pair.statuses(0, &a), [(1, Status::Success)]);
    let counters = pair.nics[0].counters();
    assert_eq!((counters.timeouts, counters.retransmitted), (0, 0));
}

/// Returns the completions of a WRITE of 8 bytes by a paced NIC, from which the remote side always has four
/// READs of 40,000 bytes outstanding. If `is_lost`, its first packet is lost.
fn write_beside_reads(is_lost: bool) -> Vec<(u64, Status)> {
    // The acknowledgement timeout is 67 ms.
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
fn a_request_is_sent_between_paced_responses() {
    assert_eq!(write_beside_reads(false), [(99, Status::Success)]);
}

#[test]
fn a_lost_request_is_retransmitted_while_responses_are_paced() {
    assert_eq!(write_beside_reads(true), [(99, Status::Success)]);
}

#[test]
fn a_paced_requester_still_times_out() {
    let (mut pair, [a, b]) = connected();
    slow_down(&mut pair, 0, a.qpn);
    pair.drop_rule = Some(|packet, _| packet.layout().opcode() == Opcode::RC_ACKNOWLEDGE);
    pair.post(0, a.qpn, 1, Operation::Write(b.remote(0)), Data::Memory(a.sge(0, 20_000)));
    pair.run_for(Nanos::from_secs(10));
    assert_eq!(pair.statuses(0, &a), [(1, Status::RetryExceeded)]);
}
