//! DCQCN at the ends: what is slowed down, and what that must not do.

use super::pair::*;
use crate::*;
use rocev2::{Bth, Opcode, Psn, Qpn};
use switch::Nanos;

/// Two NICs that stay slow once they are, and a connection between them
fn connected() -> (Pair, [End; 2]) {
    let congestion = Dcqcn { increase_timer: Nanos::from_secs(100), ..Dcqcn::of_paper(1_000_000_000) };
    let mut pair =
        Pair::new(1, [config(0), config(1)].map(|config| Config { congestion: Some(congestion), ..config }));
    let ends = pair.connect(Setup { mtu: PathMtu::B4096, ..Setup::default() });
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

#[test]
fn a_slow_sender_still_notices_silence() {
    let (mut pair, [a, b]) = connected();
    slow_down(&mut pair, 0, a.qpn);
    pair.take = Some(|packet, _| packet.layout().opcode() == Opcode::RC_ACKNOWLEDGE);
    pair.post(0, a.qpn, 1, Operation::Write(b.remote(0)), Data::Memory(a.sge(0, 20_000)));
    pair.run_for(Nanos::from_secs(10));
    assert_eq!(pair.statuses(0, &a), [(1, Status::RetryExceeded)]);
}
