//! Queues in use, completion queue overruns, and queues of failed queue pairs.

use super::pair::*;
use crate::*;
use rocev2::aeth::{Aeth, Credit, Syndrome};
use rocev2::{Bth, Msn, Opcode, Packet};
use zerocopy::IntoBytes;

#[test]
fn queues_in_use_cannot_be_destroyed() {
    let (mut pair, [a, b]) = Pair::connected(Setup::default());
    let nic = &mut pair.nics[0];
    let (other, srq) = (nic.create_cq(4).unwrap(), nic.create_srq(4).unwrap());
    let init = QpInit { recv_cq: other, srq: Some(srq), ..nic.qp_init(a.qpn).unwrap() };
    let second = nic.create_qp(init).unwrap();
    assert_eq!([nic.destroy_cq(a.cq), nic.destroy_cq(other)], [Err(QpError::Busy); 2]);
    assert_eq!(nic.destroy_srq(srq), Err(QpError::Busy));
    nic.destroy_qp(second).unwrap();
    assert_eq!((nic.destroy_cq(other), nic.destroy_srq(srq)), (Ok(()), Ok(())));
    assert_eq!((nic.destroy_cq(other), nic.destroy_srq(srq)), (Err(QpError::Queue), Err(QpError::Queue)));
    assert_eq!(nic.destroy_cq(a.cq), Err(QpError::Busy), "the first queue pair uses it");
    pair.post(0, a.qpn, 1, Operation::Write(b.remote(0)), Data::None);
    pair.run();
    assert_eq!(pair.statuses(0, &a), [(1, Status::Success)]);
    pair.nics[0].destroy_qp(a.qpn).unwrap();
    pair.nics[0].destroy_cq(a.cq).unwrap();
}

#[test]
fn a_reserved_syndrome_completes_nothing() {
    let (mut pair, ends) = Pair::connected(Setup::default());
    pair.resolve_neighbours(&ends);
    let [a, b] = ends;
    let psn = Setup::default().psn.add(1);
    pair.post(0, a.qpn, 1, Operation::Write(b.remote(0)), Data::None);
    pair.post(0, a.qpn, 2, Operation::Read(b.remote(0)), Data::Memory(a.sge(0, 8)));
    assert_eq!(pair.frames(0).len(), 2);
    let mut dropped = 0;
    // All syndromes except ACK, RNR NAK and the NAK codes that are valid on reliable connections (IB
    // table 45)
    for syndrome in (0x40..0x60).chain(0x64..=0xff) {
        for (opcode, psn) in [(Opcode::RC_ACKNOWLEDGE, psn), (Opcode::RC_READ_RESPONSE_ONLY, psn.add(1))] {
            let mut aeth = Aeth::new(Syndrome::Ack(Credit::UNLIMITED), Msn::ZERO);
            aeth.syndrome = syndrome;
            let mut frame = Vec::new();
            let data: &[u8] = if opcode == Opcode::RC_ACKNOWLEDGE { &[] } else { &[0; 8] };
            pair.path_headers(0).emit(&mut frame, Bth::new(opcode, a.qpn, psn), &[aeth.as_bytes()], data);
            pair.deliver(0, &[frame]);
            dropped += 1;
        }
    }
    assert_eq!(pair.statuses(0, &a), []);
    assert_eq!(pair.nics[0].counters().reserved_syndromes, dropped);
    // The dropped packets had no effect.
    pair.run();
    assert_eq!(pair.statuses(0, &a), [(1, Status::Success), (2, Status::Success)]);
}

#[test]
fn requests_and_responses_alternate() {
    let (mut pair, ends) = Pair::connected(Setup { mtu: PathMtu::B256, ..Setup::default() });
    pair.resolve_neighbours(&ends);
    let [a, b] = ends;
    pair.post(1, b.qpn, 1, Operation::Read(a.remote(0)), Data::Memory(b.sge(0, 2560)));
    let request = pair.frames(1);
    pair.deliver(0, &request);
    pair.post(0, a.qpn, 2, Operation::Write(b.remote(0)), Data::Inline(vec![1; 2560]));
    let is_response = |frame: &Vec<u8>| {
        Packet::parse(frame).is_some_and(|packet| (0x0d..=0x10).contains(&packet.layout().opcode().0))
    };
    let sent: Vec<bool> = pair.frames(0).iter().map(is_response).collect();
    assert_eq!(sent.len(), 20);
    assert!(sent.windows(2).all(|two| two[0] != two[1]), "{sent:?}");
}

/// Returns a queue pair of this service on NIC 0 whose completion queue holds one completion.
fn with_small_cq(pair: &mut Pair, end: &End, transport: Transport) -> (rocev2::Qpn, Cq) {
    let nic = &mut pair.nics[0];
    let cq = nic.create_cq(1).unwrap();
    let init = QpInit { transport, send_cq: cq, recv_cq: cq, ..nic.qp_init(end.qpn).unwrap() };
    let qpn = nic.create_qp(init).unwrap();
    let setup = Setup { retry_count: 0, ..Setup::default() };
    setup.make_ready(nic, qpn, qpn, Path::new(address(0), address(1)));
    (qpn, cq)
}

#[test]
fn a_completion_queue_overrun_is_detected_in_every_call() {
    let (mut pair, ends) = Pair::connected(Setup::default());
    pair.resolve_neighbours(&ends);
    // Sends of an unreliable connection complete when they leave.
    let (qpn, cq) = with_small_cq(&mut pair, &ends[0], Transport::Uc);
    for id in 0..2 {
        pair.post(0, qpn, id, Operation::Send, Data::None);
    }
    assert_eq!(pair.frames(0).len(), 2);
    assert!(pair.nics[0].cq_overrun(cq));
    assert_eq!(pair.nics[0].qp_state(qpn), Some(State::Error));
    assert_eq!(pair.nics[0].poll_event(), Some(Event::QpError(qpn)));
    // A queue pair that fails on a timeout flushes its requests, which overruns the completion queue of
    // another queue pair.
    let (qpn, cq) = with_small_cq(&mut pair, &ends[0], Transport::Rc);
    let init = pair.nics[0].qp_init(qpn).unwrap();
    let other = pair.nics[0].create_qp(init).unwrap();
    pair.nics[0].modify_qp(other, Modify::Init { access: Access::ALL, qkey: 0 }).unwrap();
    for id in 0..2 {
        pair.post(0, qpn, id, Operation::Send, Data::None);
    }
    pair.frames(0);
    let timer = pair.nics[0].next_timer().unwrap();
    pair.nics[0].on_timer(timer);
    assert!(pair.nics[0].cq_overrun(cq));
    assert_eq!(pair.nics[0].qp_state(other), Some(State::Error));
    // A queue pair that is moved to the error state has the same effect.
    let (qpn, _) = with_small_cq(&mut pair, &ends[0], Transport::Rc);
    let init = pair.nics[0].qp_init(qpn).unwrap();
    let other = pair.nics[0].create_qp(init).unwrap();
    pair.nics[0].modify_qp(other, Modify::Init { access: Access::ALL, qkey: 0 }).unwrap();
    for id in 0..2 {
        pair.post(0, qpn, id, Operation::Send, Data::None);
    }
    pair.nics[0].modify_qp(qpn, Modify::Error).unwrap();
    assert_eq!(pair.nics[0].qp_state(other), Some(State::Error));
}

#[test]
fn requests_posted_to_a_failed_queue_pair_are_flushed() {
    let (mut pair, [a, b]) = Pair::connected(Setup::default());
    pair.post(0, a.qpn, 1, Operation::Write(b.remote(0)), Data::None);
    pair.nics[0].modify_qp(a.qpn, Modify::Error).unwrap();
    pair.post(0, a.qpn, 2, Operation::Write(b.remote(0)), Data::None);
    pair.nics[0].post_recv(a.qpn, RecvRequest { id: 3, data: None }).unwrap();
    let unsignaled = SendRequest { signaled: false, ..SendRequest::new(4, Operation::Send, Data::None) };
    pair.nics[0].post_send(a.qpn, unsignaled).unwrap();
    assert_eq!(pair.statuses(0, &a), [1, 2, 3, 4].map(|id| (id, Status::Flushed)));
    assert_eq!(pair.nics[0].pending_sends(a.qpn), 0);
}

#[test]
fn the_window_is_clamped() {
    let mut pair = Pair::new(1, [config(0), config(1)].map(|config| Config { window: u32::MAX, ..config }));
    let [a, b] = pair.connect(Setup::default());
    pair.post(0, a.qpn, 1, Operation::Write(b.remote(0)), Data::Memory(a.sge(0, 60_000)));
    pair.run();
    assert_eq!(pair.statuses(0, &a), [(1, Status::Success)]);
}
