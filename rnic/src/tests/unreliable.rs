//! UD and UC: requests complete although no acknowledgement arrives.

use super::pair::*;
use crate::*;
use rocev2::{Bth, Opcode};
use switch::Nanos;

/// An address without a host
const ABSENT_HOST: [u8; 4] = [10, 0, 0, 77];

/// Returns a queue pair of service `transport` on the NIC of `end`, ready to send to `peer`.
fn ready(pair: &mut Pair, end: &End, transport: Transport, peer: core::net::IpAddr) -> rocev2::Qpn {
    let nic = &mut pair.nics[0];
    let qpn = nic.create_qp(QpInit { transport, ..nic.qp_init(end.qpn).unwrap() }).unwrap();
    Setup::default().make_ready(nic, qpn, qpn, Path::new(address(0), peer));
    qpn
}

fn datagram(id: u64, to: core::net::IpAddr) -> SendRequest {
    let to = UdDestination { path: Path::new(address(0), to), qpn: rocev2::Qpn::new(99), qkey: 7 };
    SendRequest { to: Some(to), ..SendRequest::new(id, Operation::Send, Data::Inline(vec![1; 8])) }
}

#[test]
fn a_datagram_to_an_absent_host_is_lost_and_later_ones_are_sent() {
    let (mut pair, [a, _]) = Pair::connected(Setup::default());
    let qpn = ready(&mut pair, &a, Transport::Ud, address(1));
    for (id, to) in [(1, ABSENT_HOST.into()), (2, ABSENT_HOST.into()), (3, address(1))] {
        pair.nics[0].post_send(qpn, datagram(id, to)).unwrap();
    }
    pair.run_for(Nanos::from_secs(10));
    assert_eq!(pair.statuses(0, &a), [1, 2, 3].map(|id| (id, Status::Success)));
    assert_eq!(pair.nics[0].counters().unreliable_dropped, 2);
    assert_eq!(pair.nics[0].qp_state(qpn), Some(State::Rts));
}

#[test]
fn a_datagram_needs_a_local_source_address() {
    let (mut pair, [a, _]) = Pair::connected(Setup::default());
    let qpn = ready(&mut pair, &a, Transport::Ud, address(1));
    let families = datagram(1, "fd00::1".parse().unwrap());
    assert_eq!(pair.nics[0].post_send(qpn, families), Err(QpError::Path));
    let from_another =
        UdDestination { path: Path::new(address(1), address(0)), ..datagram(1, address(1)).to.unwrap() };
    let from_another = SendRequest { to: Some(from_another), ..datagram(1, address(1)) };
    assert_eq!(pair.nics[0].post_send(qpn, from_another), Err(QpError::Path));
}

#[test]
fn an_unreliable_connection_to_an_absent_host_fails() {
    let (mut pair, [a, _]) = Pair::connected(Setup::default());
    let qpn = ready(&mut pair, &a, Transport::Uc, ABSENT_HOST.into());
    pair.post(0, qpn, 1, Operation::Send, Data::None);
    pair.post(0, qpn, 2, Operation::Send, Data::None);
    pair.run_for(Nanos::from_secs(10));
    assert_eq!(pair.statuses(0, &a), [(1, Status::RetryExceeded), (2, Status::Flushed)]);
    assert_eq!(pair.nics[0].poll_event(), Some(Event::QpError(qpn)));
}

#[test]
fn single_packet_messages_arrive_at_most_once_and_in_order() {
    let (mut pair, ends) = Pair::connected(Setup { transport: Transport::Uc, ..Setup::default() });
    pair.resolve_neighbours(&ends);
    let [a, b] = ends;
    for id in 0..6 {
        pair.nics[1].post_recv(b.qpn, RecvRequest { id, data: None }).unwrap();
        pair.post(0, a.qpn, id, Operation::SendImm(id as u32), Data::None);
    }
    let frames = pair.frames(0);
    for at in [0, 0, 2, 1, 3, 3, 0, 5, 4] {
        pair.deliver(1, &frames[at..=at]);
    }
    let got: Vec<_> = pair.completions(1, &b).iter().map(|receipt| receipt.immediate.unwrap()).collect();
    assert_eq!(got, [0, 2, 3, 5]);
    assert_eq!(pair.nics[1].counters().duplicates, 5);
}

#[test]
fn a_gap_of_half_the_psn_space_is_a_gap() {
    let (mut pair, ends) = Pair::connected(Setup { transport: Transport::Uc, ..Setup::default() });
    pair.resolve_neighbours(&ends);
    let b = ends[1];
    let send = |pair: &mut Pair, psn| {
        let (mut frame, bth) = (Vec::new(), Bth::new(Opcode::UC_SEND_ONLY, b.qpn, psn));
        pair.path_headers(1).emit(&mut frame, bth, &[], &[]);
        pair.nics[1].post_recv(b.qpn, RecvRequest { id: 0, data: None }).unwrap();
        pair.deliver(1, &[frame]);
        pair.completions(1, &b).len()
    };
    let next = Setup::default().psn.add(1);
    assert_eq!(send(&mut pair, next.sub(4096)), 0, "late or duplicate");
    assert_eq!(send(&mut pair, next.sub(4097)), 1, "after a gap of all PSNs except 4,097");
    assert_eq!(send(&mut pair, next.add(1 << 23)), 1);
    assert_eq!(send(&mut pair, next.add((1 << 23) - 1)), 0, "late");
    assert_eq!(send(&mut pair, next.add((1 << 23) + 2)), 1);
}

#[test]
fn a_drained_queue_pair_sends_no_datagrams() {
    let (mut pair, ends) = Pair::connected(Setup::default());
    pair.resolve_neighbours(&ends);
    let qpn = ready(&mut pair, &ends[0], Transport::Ud, address(1));
    pair.nics[0].modify_qp(qpn, Modify::Sqd).unwrap();
    assert_eq!(pair.nics[0].poll_event(), Some(Event::Drained(qpn)));
    pair.nics[0].post_send(qpn, datagram(1, address(1))).unwrap();
    pair.run();
    assert!(pair.statuses(0, &ends[0]).is_empty());
    pair.nics[0].modify_qp(qpn, Modify::Resume).unwrap();
    pair.run();
    assert_eq!(pair.statuses(0, &ends[0]), [(1, Status::Success)]);
}
