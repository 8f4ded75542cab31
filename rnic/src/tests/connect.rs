//! Connections between two NICs, opened by the communication manager.

use super::pair::*;
use crate::cm::{Conn, Event as CmEvent, PortSpace, service_id_of};
use crate::*;
use rocev2::cm::RejReason;
use rocev2::{Opcode, Packet, Psn, Qpn};
use switch::{Nanos, Probability};

const PORT: u16 = 7174;

/// Returns an unconnected queue pair and 4 KiB of memory.
fn end(pair: &mut Pair, nic: usize) -> End {
    let nic = &mut pair.nics[nic];
    let pd = nic.alloc_pd();
    let cq = nic.create_cq(64).unwrap();
    let (buffer, mr) = nic.register_new(pd, 4096, VA, Access::ALL).unwrap();
    let (max_send, max_recv) = (16, 16);
    let init = QpInit::rc(pd, cq, max_send, max_recv);
    End { cq, qpn: nic.create_qp(init).unwrap(), buffer, mr }
}

fn connect(pair: &mut Pair, qpn: Qpn, private_data: &[u8]) -> Conn {
    let param = ConnParam { private_data: private_data.to_vec(), ..ConnParam::default() };
    let now = pair.now;
    pair.nics[0].connect(qpn, address(1), service_id_of(PortSpace::Tcp, PORT), param, now).unwrap()
}

/// Runs until `nic` reports an event.
fn event(pair: &mut Pair, nic: usize) -> CmEvent {
    let until = pair.now + Nanos::from_secs(200);
    loop {
        if let Some(event) = pair.nics[nic].poll_cm_event() {
            return event;
        }
        assert!(pair.step(until), "no event before the timeout");
    }
}

/// Accepts the next request.
fn accept(pair: &mut Pair, qpn: Qpn) -> Conn {
    let CmEvent::Requested { conn, request, .. } = event(pair, 1) else { panic!("no request") };
    assert_eq!(request.cma.unwrap().src_port.get(), 0);
    let param = ConnParam { private_data: b"welcome".to_vec(), ..ConnParam::default() };
    let now = pair.now;
    pair.nics[1].accept(conn, qpn, param, now).unwrap();
    conn
}

/// Returns an established connection between two applications.
fn established(pair: &mut Pair) -> ([End; 2], [Conn; 2]) {
    let ends = [end(pair, 0), end(pair, 1)];
    pair.nics[1].listen(PortSpace::Tcp, PORT).unwrap();
    let ours = connect(pair, ends[0].qpn, b"hello");
    let theirs = accept(pair, ends[1].qpn);
    let CmEvent::Replied { conn, reply } = event(pair, 0) else { panic!("no reply") };
    assert_eq!((conn, &reply.private_data[..8]), (ours, &b"welcome\0"[..]));
    (ends, [ours, theirs])
}

fn state(pair: &Pair, nic: usize, end: &End) -> State {
    pair.nics[nic].qp_state(end.qpn).unwrap()
}

/// Executes a WRITE and a READ each way.
fn transfer(pair: &mut Pair, ends: &[End; 2]) {
    for from in [0, 1] {
        let (own, other) = (ends[from], ends[1 - from]);
        pair.post(from, own.qpn, 1, Operation::Write(other.remote(0)), Data::Inline(vec![7; 3000]));
        pair.post(from, own.qpn, 2, Operation::Read(other.remote(0)), Data::Memory(own.sge(3500, 100)));
        let until = pair.now + Nanos::from_secs(20);
        while pair.nics[from].pending_sends(own.qpn) > 0 && pair.step(until) {}
        assert_eq!(pair.statuses(from, &own), [(1, Status::Success), (2, Status::Success)]);
        assert_eq!(pair.nics[from].bytes(own.buffer)[3500..3600], [7; 100]);
    }
}

#[test]
fn a_queue_pair_is_created_with_its_connection_or_not_at_all() {
    let mut pair = Pair::new(1, [config(0), config(1)]);
    let ends = [end(&mut pair, 0), end(&mut pair, 1)];
    let inits = [0, 1].map(|nic| pair.nics[nic].qp_init(ends[nic].qpn).unwrap());
    pair.nics[1].listen(PortSpace::Tcp, PORT).unwrap();
    let (to, now) = ((address(1), PORT), pair.now);
    let too_long = ConnParam { private_data: vec![0; 200], ..ConnParam::default() };
    assert!(pair.nics[0].connect_new(inits[0], to, too_long.clone(), now).is_err());
    let (ours, conn) = pair.nics[0].connect_new(inits[0], to, ConnParam::default(), now).unwrap();
    let CmEvent::Requested { conn: theirs, .. } = event(&mut pair, 1) else { panic!("no request") };
    let now = pair.now;
    assert!(pair.nics[1].accept_new(theirs, inits[1], too_long, now).is_err());
    assert_eq!(pair.nics[1].resource_counts().queue_pairs, 1, "only the unconnected one");
    pair.nics[1].accept_new(theirs, inits[1], ConnParam::default(), now).unwrap();
    assert_eq!(event(&mut pair, 0).conn(), conn);
    assert_eq!(pair.nics[0].qp_state(ours), Some(State::Rts));
    assert_eq!(pair.nics.each_ref().map(|nic| nic.resource_counts().queue_pairs), [2, 2]);
}

#[test]
fn a_connection_is_opened_used_and_closed() {
    let mut pair = Pair::new(1, [config(0), config(1)]);
    let (ends, conns) = established(&mut pair);
    assert!(matches!(event(&mut pair, 1), CmEvent::Established { conn, .. } if conn == conns[1]));
    assert_eq!([0, 1].map(|nic| state(&pair, nic, &ends[nic])), [State::Rts; 2]);
    transfer(&mut pair, &ends);
    assert_eq!(pair.nics[0].connection_of(ends[0].qpn), Some(conns[0]));
    let now = pair.now;
    pair.nics[0].disconnect(conns[0], b"bye", now).unwrap();
    assert!(matches!(event(&mut pair, 1), CmEvent::Disconnecting { .. }));
    assert!(matches!(event(&mut pair, 1), CmEvent::Disconnected { .. }));
    assert!(matches!(event(&mut pair, 0), CmEvent::Disconnected { .. }));
    assert_eq!([0, 1].map(|nic| state(&pair, nic, &ends[nic])), [State::Error; 2]);
    assert_eq!(pair.nics[0].connection_of(ends[0].qpn), None);
    // The same queue pairs are connected again.
    for nic in [0, 1] {
        pair.nics[nic].modify_qp(ends[nic].qpn, Modify::Reset).unwrap();
    }
    connect(&mut pair, ends[0].qpn, b"again");
    accept(&mut pair, ends[1].qpn);
    assert!(matches!(event(&mut pair, 0), CmEvent::Replied { .. }));
    assert!(matches!(event(&mut pair, 1), CmEvent::Established { .. }));
    transfer(&mut pair, &ends);
}

#[test]
fn a_failed_accept_changes_nothing() {
    let mut pair = Pair::new(1, [config(0), config(1)]);
    let ends = [end(&mut pair, 0), end(&mut pair, 1)];
    pair.nics[1].listen(PortSpace::Tcp, PORT).unwrap();
    connect(&mut pair, ends[0].qpn, b"");
    let CmEvent::Requested { conn, .. } = event(&mut pair, 1) else { panic!("no request") };
    let now = pair.now;
    let too_much = ConnParam { private_data: vec![0; 197], ..ConnParam::default() };
    let refused = pair.nics[1].accept(conn, ends[1].qpn, too_much, now);
    assert_eq!(refused, Err(ConnError::Call(crate::cm::CallError::PrivateData { len: 197, max: 196 })));
    assert_eq!(state(&pair, 1, &ends[1]), State::Reset);
    pair.nics[1].accept(conn, ends[1].qpn, ConnParam::default(), now).unwrap();
    assert!(matches!(event(&mut pair, 0), CmEvent::Replied { .. }));
    assert!(matches!(event(&mut pair, 1), CmEvent::Established { .. }));
    transfer(&mut pair, &ends);
}

#[test]
fn requests_are_rejected_with_the_reason() {
    let mut pair = Pair::new(1, [config(0), config(1)]);
    let ends = [end(&mut pair, 0), end(&mut pair, 1)];
    let refused = |pair: &mut Pair| match event(pair, 0) {
        CmEvent::Rejected { reason, private_data, .. } => (reason, private_data[..2].to_vec()),
        other => panic!("{other:?}"),
    };
    connect(&mut pair, ends[0].qpn, b"");
    assert_eq!(refused(&mut pair), (RejReason::INVALID_SERVICE_ID, vec![0, 0]));
    pair.nics[0].modify_qp(ends[0].qpn, Modify::Reset).unwrap();
    pair.nics[1].listen(PortSpace::Tcp, PORT).unwrap();
    connect(&mut pair, ends[0].qpn, b"");
    let CmEvent::Requested { conn, .. } = event(&mut pair, 1) else { panic!("no request") };
    let now = pair.now;
    pair.nics[1].reject(conn, RejReason::CONSUMER, b"no", now).unwrap();
    assert_eq!(refused(&mut pair), (RejReason::CONSUMER, b"no".to_vec()));
    // A path MTU above that of the remote side's port
    let large = Config { mtu: PathMtu::B4096, ..config(0) };
    let mut pair = Pair::new(1, [large, config(1)]);
    let ours = end(&mut pair, 0);
    pair.nics[1].listen(PortSpace::Tcp, PORT).unwrap();
    connect(&mut pair, ours.qpn, b"");
    assert_eq!(refused(&mut pair).0, RejReason::INVALID_PATH_MTU);
}

#[test]
fn a_connection_to_an_absent_host_is_unreachable() {
    let mut pair = Pair::new(1, [config(0), config(1)]);
    let ours = end(&mut pair, 0);
    let absent_host = "10.0.0.77".parse().unwrap();
    let service = service_id_of(PortSpace::Tcp, PORT);
    let conn =
        pair.nics[0].connect(ours.qpn, absent_host, service, ConnParam::default(), Nanos::ZERO).unwrap();
    assert_eq!(event(&mut pair, 0), CmEvent::Unreachable { conn });
    assert_eq!(state(&pair, 0, &ours), State::Error);
}

#[test]
fn a_request_to_an_absent_host_fails() {
    let mut pair = Pair::new(1, [config(0), config(1)]);
    let ours = end(&mut pair, 0);
    let path = Path::new(address(0), "10.0.0.77".parse().unwrap());
    let setup = Setup { timeout: 14, ..Setup::default() };
    setup.make_ready(&mut pair.nics[0], ours.qpn, Qpn::new(17), path);
    pair.post(0, ours.qpn, 1, Operation::Send, Data::None);
    pair.run_for(Nanos::from_secs(100));
    assert_eq!(pair.statuses(0, &ours), [(1, Status::RetryExceeded)]);
}

#[test]
fn data_completes_the_handshake_if_the_rtu_is_lost() {
    let mut pair = Pair::new(1, [config(0), config(1)]);
    pair.drop_rule = Some(|packet, _| {
        let mad = rocev2::cm::mad_of(packet).and_then(|mad| rocev2::cm::Message::parse(mad).ok());
        mad.is_some_and(|mad| mad.kind() == rocev2::cm::Kind::Rtu)
    });
    let (ends, conns) = established(&mut pair);
    assert_eq!(state(&pair, 1, &ends[1]), State::Rtr);
    pair.post(0, ends[0].qpn, 1, Operation::Write(ends[1].remote(0)), Data::Inline(vec![1; 8]));
    pair.run();
    assert_eq!(pair.statuses(0, &ends[0]), [(1, Status::Success)]);
    assert_eq!(event(&mut pair, 1), CmEvent::Established { conn: conns[1], private_data: Vec::new() });
    transfer(&mut pair, &ends);
}

/// The forged request's PSN is not the one that the responder expects.
#[test]
fn a_forged_request_does_not_complete_a_handshake_whose_rep_is_lost() {
    let mut pair = Pair::new(1, [config(0), config(1)]);
    let ends = [end(&mut pair, 0), end(&mut pair, 1)];
    pair.nics[1].listen(PortSpace::Tcp, PORT).unwrap();
    pair.drop_rule = Some(|packet, _| {
        let mad = rocev2::cm::mad_of(packet).and_then(|mad| rocev2::cm::Message::parse(mad).ok());
        mad.is_some_and(|mad| mad.kind() == rocev2::cm::Kind::Rep)
    });
    connect(&mut pair, ends[0].qpn, b"");
    accept(&mut pair, ends[1].qpn);
    assert_eq!(state(&pair, 1, &ends[1]), State::Rtr);
    let forger = end(&mut pair, 0);
    let setup = Setup { psn: Psn::new(0x99_9999), ..Setup::default() };
    setup.make_ready(&mut pair.nics[0], forger.qpn, ends[1].qpn, Path::new(address(0), address(1)));
    pair.post(0, forger.qpn, 1, Operation::Send, Data::None);
    pair.run_for(Nanos::from_millis(1));
    pair.drop_rule = None;
    pair.run_for(Nanos::from_secs(20));
    assert!(matches!(event(&mut pair, 0), CmEvent::Replied { .. }), "the REP is retransmitted");
    assert!(matches!(event(&mut pair, 1), CmEvent::Established { .. }));
    transfer(&mut pair, &ends);
}

#[test]
fn responses_that_cannot_leave_do_not_pile_up() {
    let mut pair = Pair::new(1, [config(0), config(1)]);
    let (_, conns) = established(&mut pair);
    let now = pair.now;
    pair.nics[0].disconnect(conns[0], b"", now).unwrap();
    let dreq = vec![pair.frames(0).pop().unwrap()];
    for _ in 0..20_000 {
        pair.deliver(1, &dreq);
        pair.nics[1].on_timer(now);
    }
    let (responses, dropped) = (pair.frames(1).len(), pair.nics[1].control_dropped());
    assert!((1..=10_000).contains(&responses), "{responses} responses");
    assert_eq!(responses as u64 + dropped, 20_000);
}

#[test]
fn a_lossy_link_only_delays_connections() {
    for seed in 0..50 {
        let mut pair = Pair::new(seed, [0, 1].map(|nic| Config { seed, ..config(nic) }));
        pair.fault_rate = Probability::percent(10);
        let (ends, conns) = established(&mut pair);
        transfer(&mut pair, &ends);
        let now = pair.now;
        pair.nics[1].disconnect(conns[1], b"", now).unwrap();
        while !matches!(event(&mut pair, 0), CmEvent::Disconnected { .. }) {}
        pair.run_for(Nanos::from_secs(100));
        assert!(pair.seen.iter().any(|(_, frame)| {
            Packet::parse(frame).is_some_and(|packet| packet.layout().opcode() == Opcode::UD_SEND_ONLY)
        }));
        assert!([0, 1].map(|nic| pair.nics[nic].connection_of(ends[nic].qpn)).iter().all(Option::is_none));
    }
}
