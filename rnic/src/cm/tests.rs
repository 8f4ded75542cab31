use super::*;
use core::net::{IpAddr, Ipv4Addr};
use proptest::prelude::*;
use rocev2::cm::{Body, Message};
use rocev2::{Psn, Qpn};

mod bytes;
mod pipe;
mod table;

const A: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
const B: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
const A_TO_B: AddressPair = AddressPair { local: A, remote: B };
const B_TO_A: AddressPair = AddressPair { local: B, remote: A };
const SERVICE: u64 = service_id_of(PortSpace::Tcp, 7174);
const T0: Nanos = Nanos::ZERO;

fn request(qpn: u32) -> ConnectRequest {
    ConnectRequest::new(A_TO_B, SERVICE, Qpn::new(qpn), Psn::new(100))
}

fn answer(qpn: u32) -> Accept {
    Accept::new(Qpn::new(qpn), Psn::new(200))
}

fn cm(seed: u64) -> Cm {
    Cm::new(Config::default(), seed)
}

/// Returns an active manager A and a passive manager B, which listens.
fn two() -> (Cm, Cm) {
    let mut b = cm(2);
    b.listen(SERVICE).unwrap();
    (cm(1), b)
}

fn reversed(addresses: AddressPair) -> AddressPair {
    AddressPair { local: addresses.remote, remote: addresses.local }
}

/// Delivers all messages that `from` has to send, and returns their names.
fn pass(from: &mut Cm, to: &mut Cm, now: Nanos) -> Vec<&'static str> {
    let mut names = Vec::new();
    while let Some((addresses, mad)) = from.poll_transmit() {
        names.push(Message::parse(&mad).unwrap().kind().name());
        to.on_mad(reversed(addresses), &mad, now);
    }
    names
}

fn sent(cm: &mut Cm) -> Vec<[u8; MAD_LEN]> {
    core::iter::from_fn(|| cm.poll_transmit()).map(|(_, mad)| mad).collect()
}

fn names(cm: &mut Cm) -> Vec<String> {
    let name = |mad: [u8; MAD_LEN]| {
        let message = Message::parse(&mad).unwrap();
        match message.body {
            Body::Rej(rej) => format!("REJ {}", rej.reason()),
            _ => message.kind().name().to_owned(),
        }
    };
    sent(cm).into_iter().map(name).collect()
}

fn events(cm: &mut Cm) -> Vec<Event> {
    core::iter::from_fn(|| cm.poll_event()).collect()
}

/// Returns the only event.
fn event(cm: &mut Cm) -> Event {
    let mut events = events(cm);
    assert_eq!(events.len(), 1, "{events:?}");
    events.remove(0)
}

/// Returns an established connection: the handle at A and the handle at B.
fn established(a: &mut Cm, b: &mut Cm, qpn: u32) -> (Conn, Conn) {
    let conn = a.connect(&request(qpn), T0).unwrap();
    assert_eq!(pass(a, b, T0), ["REQ"]);
    let theirs = event(b).conn();
    b.accept(theirs, &answer(qpn + 1), T0).unwrap();
    assert_eq!(pass(b, a, T0), ["REP"]);
    assert!(matches!(event(a), Event::Replied { conn: c, .. } if c == conn));
    a.confirm(conn, b"go").unwrap();
    assert_eq!(pass(a, b, T0), ["RTU"]);
    assert!(matches!(event(b), Event::Established { private_data, .. } if private_data.starts_with(b"go\0")));
    (conn, theirs)
}

/// Advances time until no timer is left, and returns the messages sent meanwhile.
fn run_timers(cm: &mut Cm) -> Vec<(Nanos, String)> {
    let mut log = Vec::new();
    while let Some(at) = cm.next_timer() {
        cm.on_timer(at);
        log.extend(names(cm).into_iter().map(|name| (at, name)));
    }
    log
}

#[test]
fn a_connection_opens_and_closes() {
    let (mut a, mut b) = two();
    let (ours, theirs) = established(&mut a, &mut b, 17);
    let info = a.info(ours).unwrap();
    assert_eq!((info.state, info.active), (State::Established, true));
    assert_eq!(info.remote_comm_id, Some(theirs.comm_id()));
    assert_eq!((info.local_qpn, info.remote_qpn), (Some(Qpn::new(17)), Some(Qpn::new(18))));
    a.disconnect(ours, b"bye", T0).unwrap();
    assert_eq!(pass(&mut a, &mut b, T0), ["DREQ"]);
    let last = events(&mut b);
    assert!(
        matches!(&last[0], Event::Disconnecting { private_data, .. } if private_data.starts_with(b"bye\0"))
    );
    assert_eq!(last[1..], [Event::Disconnected { conn: theirs }]);
    assert_eq!(pass(&mut b, &mut a, T0), ["DREP"]);
    assert_eq!(event(&mut a), Event::Disconnected { conn: ours });
    assert_eq!((a.state(ours), b.state(theirs)), (Some(State::TimeWait), Some(State::TimeWait)));
    assert!(run_timers(&mut a).is_empty() && run_timers(&mut b).is_empty());
    assert!(a.is_empty() && b.is_empty());
    // The handle of the closed connection stays invalid, also after its slot is reused.
    assert_eq!(a.disconnect(ours, &[], T0), Err(CallError::Unknown));
    for _ in 0..3000 {
        let other = a.connect(&request(17), T0).unwrap();
        assert_ne!(other, ours);
        assert_eq!(a.info(ours), None);
        a.abort(other);
    }
}

#[test]
fn an_unanswered_req_is_retransmitted_then_given_up() {
    let mut a = cm(1);
    let conn = a.connect(&request(17), T0).unwrap();
    assert_eq!(names(&mut a), ["REQ"]);
    let log = run_timers(&mut a);
    // ACK timeout 19 and response timeout 20: 2.1 s and 4.3 s
    let wait = 4096 * ((1 << 19) + (1 << 20));
    let expected: Vec<_> = (1..=15).map(|n| (Nanos(wait * n), "REQ".to_owned())).collect();
    assert_eq!(log[..15], expected);
    assert_eq!(log[15..], [(Nanos(wait * 16), "REJ timeout (4)".to_owned())]);
    assert_eq!(event(&mut a), Event::Unreachable { conn });
    assert!(a.is_empty());
}

#[test]
fn an_unanswered_rep_is_retransmitted_then_given_up() {
    let (mut a, mut b) = two();
    let ours = a.connect(&request(17), T0).unwrap();
    pass(&mut a, &mut b, T0);
    let theirs = event(&mut b).conn();
    b.accept(theirs, &answer(18), T0).unwrap();
    pass(&mut b, &mut a, T0);
    assert!(matches!(event(&mut a), Event::Replied { .. }));
    a.confirm(ours, &[]).unwrap();
    sent(&mut a);
    // The RTU is lost. B retransmits its REP as often as the REQ allows, then both sides give up.
    while b.state(theirs) == Some(State::RepSent) {
        let at = b.next_timer().unwrap();
        b.on_timer(at);
        if pass(&mut b, &mut a, at) == ["REP"] {
            assert_eq!(names(&mut a), ["RTU"], "which is lost again");
        }
    }
    assert_eq!(event(&mut b), Event::Unreachable { conn: theirs });
    assert!(matches!(event(&mut a), Event::Rejected { reason: RejReason::TIMEOUT, .. }));
    // The same with data in place of the RTU:
    let (mut a, mut b) = two();
    let ours = a.connect(&request(17), T0).unwrap();
    pass(&mut a, &mut b, T0);
    let theirs = event(&mut b).conn();
    b.established_by_traffic(theirs);
    assert_eq!(b.state(theirs), Some(State::ReqReceived), "before it was accepted");
    b.accept(theirs, &answer(18), T0).unwrap();
    pass(&mut b, &mut a, T0);
    a.confirm(ours, &[]).unwrap();
    let rtu = sent(&mut a);
    b.established_by_traffic(theirs);
    assert_eq!(event(&mut b), Event::Established { conn: theirs, private_data: vec![] });
    b.on_mad(B_TO_A, &rtu[0], T0);
    b.established_by_traffic(theirs);
    assert_eq!((events(&mut b), run_timers(&mut b)), (vec![], vec![]));
}

#[test]
fn an_mra_extends_the_response_timeout() {
    let (mut a, mut b) = two();
    let ours = a.connect(&request(17), T0).unwrap();
    pass(&mut a, &mut b, T0);
    let theirs = event(&mut b).conn();
    b.delay(theirs, 21).unwrap();
    assert_eq!(pass(&mut b, &mut a, T0), ["MRA"]);
    assert_eq!(a.state(ours), Some(State::MraReqReceived));
    let until = Nanos(4096 * ((1 << 19) + (1 << 21)));
    a.on_timer(Nanos(until.0 - 1));
    assert!(sent(&mut a).is_empty());
    a.on_timer(until);
    assert_eq!(pass(&mut a, &mut b, until), ["REQ"]);
    assert_eq!(pass(&mut b, &mut a, until), ["MRA"], "the same response again");
    // However many MRAs arrive, the timer heap does not grow, and a shorter timeout never shortens the wait.
    for _ in 0..1000 {
        b.delay(theirs, 31).unwrap();
        b.delay(theirs, 0).unwrap();
        pass(&mut b, &mut a, until);
    }
    a.on_timer(until + Nanos::from_secs(59));
    assert!(sent(&mut a).is_empty());
    a.on_timer(until + Nanos::from_secs(60));
    assert_eq!(sent(&mut a).len(), 1, "the wait is bounded by max_response_timeout");
    b.accept(theirs, &answer(18), until).unwrap();
    pass(&mut b, &mut a, until);
    event(&mut a);
    a.delay(ours, 21).unwrap();
    assert_eq!(pass(&mut a, &mut b, until), ["MRA"]);
    assert_eq!(b.state(theirs), Some(State::MraRepReceived));
    a.confirm(ours, &[]).unwrap();
    pass(&mut a, &mut b, until);
    assert!(matches!(event(&mut b), Event::Established { .. }));
}

#[test]
fn invalid_requests_are_rejected_at_once() {
    let (mut a, mut b) = two();
    // No listener.
    let conn = a.connect(&ConnectRequest { service_id: 5, ..request(17) }, T0).unwrap();
    pass(&mut a, &mut b, T0);
    pass(&mut b, &mut a, T0);
    assert!(
        matches!(event(&mut a), Event::Rejected { conn: c, reason: RejReason::INVALID_SERVICE_ID, .. } if c == conn)
    );
    assert!(b.is_empty() && events(&mut b).is_empty());
    // No capacity.
    let mut b = Cm::new(Config { capacity: 1, ..Config::default() }, 2);
    let listener = b.listen(SERVICE).unwrap();
    assert_eq!(b.listen(SERVICE), Err(ListenError::Taken(SERVICE)));
    a.connect(&request(18), T0).unwrap();
    a.connect(&request(19), T0).unwrap();
    pass(&mut a, &mut b, T0);
    assert_eq!(names(&mut b), ["REJ no_resources (3)"]);
    assert_eq!(b.connect(&request(1), T0), Err(ConnectError::Full));
    // Unsupported values.
    let taken = event(&mut b).conn();
    b.abort(taken);
    for (at, value, reason) in
        [(24 + 43, 0x04, "invalid_transport_service (9)"), (24 + 50, 0x67, "invalid_path_mtu (26)")]
    {
        a.connect(&request(20), T0).unwrap();
        let mut mad = sent(&mut a)[0];
        mad[at] = value;
        b.on_mad(B_TO_A, &mad, T0);
        assert_eq!(names(&mut b), [format!("REJ {reason}")]);
    }
    b.unlisten(listener);
    a.connect(&request(20), T0).unwrap();
    pass(&mut a, &mut b, T0);
    assert_eq!(names(&mut b), ["REJ invalid_service_id (8)"]);
    // UC is supported.
    b.listen(SERVICE).unwrap();
    a.connect(&ConnectRequest { transport: ConnectedTransport::Uc, ..request(21) }, T0).unwrap();
    pass(&mut a, &mut b, T0);
    assert!(
        matches!(event(&mut b), Event::Requested { request, .. } if request.transport == ConnectedTransport::Uc)
    );
}

#[test]
fn a_retransmitted_req_gets_the_same_rej() {
    let (mut a, mut b) = two();
    let ours = a.connect(&request(17), T0).unwrap();
    let req = sent(&mut a)[0];
    b.on_mad(B_TO_A, &req, T0);
    let theirs = event(&mut b).conn();
    b.reject(theirs, RejReason::CONSUMER, b"no", T0).unwrap();
    let rej = sent(&mut b);
    b.on_mad(B_TO_A, &req, T0);
    assert_eq!(sent(&mut b), rej);
    a.on_mad(A_TO_B, &rej[0], T0);
    let Event::Rejected { reason: RejReason::CONSUMER, private_data, .. } = event(&mut a) else { panic!() };
    assert!(private_data.starts_with(b"no\0"));
    assert_eq!(b.reject(theirs, RejReason::CONSUMER, &[], T0), Err(CallError::State(State::TimeWait)));
    assert_eq!(a.accept(ours, &answer(1), T0), Err(CallError::State(State::TimeWait)));
    // The queue pair can be connected again.
    a.connect(&request(17), T0).unwrap();
    pass(&mut a, &mut b, T0);
    assert!(matches!(event(&mut b), Event::Requested { .. }));
}

#[test]
fn giving_up_a_request_notifies_the_passive_side() {
    let (mut a, mut b) = two();
    let ours = a.connect(&request(17), T0).unwrap();
    pass(&mut a, &mut b, T0);
    let theirs = event(&mut b).conn();
    a.reject(ours, RejReason::CONSUMER, &[], T0).unwrap();
    assert_eq!(pass(&mut a, &mut b, T0), ["REJ"]);
    assert!(
        matches!(event(&mut b), Event::Rejected { conn, reason: RejReason::TIMEOUT, .. } if conn == theirs),
        "found by the remote ID"
    );
}

#[test]
fn a_restarted_host_reconnects_its_queue_pair() {
    let (mut a, mut b) = two();
    let (_, theirs) = established(&mut a, &mut b, 17);
    // The same queue pair with another ID, after a restart of A.
    let mut a = cm(77);
    let again = a.connect(&request(17), T0).unwrap();
    assert_eq!(pass(&mut a, &mut b, T0), ["REQ"]);
    assert_eq!(event(&mut b), Event::Disconnected { conn: theirs });
    // B closes the old connection with a DREQ, too. A does not have it and still answers.
    assert_eq!(pass(&mut b, &mut a, T0), ["DREQ", "REJ"]);
    let Event::Rejected { conn, reason: RejReason::STALE_CONNECTION, .. } = event(&mut a) else { panic!() };
    assert_eq!((conn, pass(&mut a, &mut b, T0)), (again, vec!["DREP"]));
    assert_eq!((b.state(theirs), events(&mut b)), (Some(State::TimeWait), vec![]));
    established(&mut a, &mut b, 17);
}

#[test]
fn a_late_req_changes_nothing() {
    let (mut a, mut b) = two();
    a.connect(&request(17), T0).unwrap();
    let req = sent(&mut a)[0];
    b.on_mad(B_TO_A, &req, T0);
    let theirs = event(&mut b).conn();
    b.accept(theirs, &answer(18), T0).unwrap();
    let rep = sent(&mut b);
    b.on_mad(B_TO_A, &req, T0);
    assert_eq!(sent(&mut b), rep);
    b.established_by_traffic(theirs);
    event(&mut b);
    b.on_mad(B_TO_A, &req, T0);
    assert_eq!((b.state(theirs), sent(&mut b), events(&mut b)), (Some(State::Established), vec![], vec![]));
}

#[test]
fn messages_of_unknown_connections_are_answered() {
    let (mut a, mut b) = two();
    let (ours, theirs) = established(&mut a, &mut b, 17);
    a.abort(ours);
    // DREQ is answered; otherwise the remote side would retransmit for a minute.
    b.disconnect(theirs, &[], T0).unwrap();
    assert_eq!(pass(&mut b, &mut a, T0), ["DREQ"]);
    assert_eq!(pass(&mut a, &mut b, T0), ["DREP"]);
    assert_eq!(event(&mut b), Event::Disconnected { conn: theirs });
    // REP is answered as well.
    let ours = a.connect(&request(18), T0).unwrap();
    pass(&mut a, &mut b, T0);
    a.abort(ours);
    let theirs = event(&mut b).conn();
    b.accept(theirs, &answer(18), T0).unwrap();
    pass(&mut b, &mut a, T0);
    pass(&mut a, &mut b, T0);
    assert!(matches!(event(&mut b), Event::Rejected { reason: RejReason::INVALID_COMM_ID, .. }));
    // A message from another host matches no connection, whatever its IDs.
    let (ours, theirs) = established(&mut a, &mut b, 30);
    b.disconnect(theirs, &[], T0).unwrap();
    let dreq = sent(&mut b)[0];
    let outsider = AddressPair { local: A, remote: "10.0.0.9".parse().unwrap() };
    a.on_mad(outsider, &dreq, T0);
    assert_eq!((a.state(ours), names(&mut a)), (Some(State::Established), vec!["DREP".to_owned()]));
}

#[test]
fn both_sides_may_disconnect_at_once() {
    let (mut a, mut b) = two();
    let (ours, theirs) = established(&mut a, &mut b, 17);
    a.disconnect(ours, &[], T0).unwrap();
    b.disconnect(theirs, &[], T0).unwrap();
    let (from_a, from_b) = (sent(&mut a), sent(&mut b));
    b.on_mad(B_TO_A, &from_a[0], T0);
    a.on_mad(A_TO_B, &from_b[0], T0);
    assert_eq!(event(&mut a), Event::Disconnected { conn: ours });
    assert_eq!(event(&mut b), Event::Disconnected { conn: theirs });
    assert_eq!((pass(&mut a, &mut b, T0), pass(&mut b, &mut a, T0)), (vec!["DREP"], vec!["DREP"]));
    assert!(events(&mut a).is_empty() && events(&mut b).is_empty());
}

#[test]
fn a_host_may_connect_to_itself() {
    let mut cm = cm(1);
    cm.listen(SERVICE).unwrap();
    let addresses = AddressPair { local: A, remote: A };
    let active = cm.connect(&ConnectRequest { addresses, ..request(17) }, T0).unwrap();
    let step = |cm: &mut Cm| {
        let (addresses, mad) = cm.poll_transmit().unwrap();
        cm.on_mad(reversed(addresses), &mad, T0);
        cm.poll_event()
    };
    let passive = step(&mut cm).unwrap().conn();
    cm.accept(passive, &answer(18), T0).unwrap();
    assert_eq!(step(&mut cm).unwrap().conn(), active);
    cm.confirm(active, &[]).unwrap();
    assert!(matches!(step(&mut cm).unwrap(), Event::Established { conn, .. } if conn == passive));
}

#[test]
fn a_hundred_thousand_connections_are_possible() {
    let config = Config { capacity: 100_000, ..Config::default() };
    let (mut a, mut b) = (Cm::new(config, 1), Cm::new(config, 2));
    b.listen(SERVICE).unwrap();
    let pairs: Vec<_> = (0..100_000).map(|n| established(&mut a, &mut b, 2 + n * 2)).collect();
    assert_eq!((a.len(), a.connect(&request(1), T0)), (100_000, Err(ConnectError::Full)));
    for (ours, _) in pairs {
        a.disconnect(ours, &[], T0).unwrap();
        pass(&mut a, &mut b, T0);
        pass(&mut b, &mut a, T0);
        events(&mut a);
        events(&mut b);
    }
    assert!(run_timers(&mut a).is_empty() && run_timers(&mut b).is_empty());
    assert!(a.is_empty() && b.is_empty());
}

proptest! {
    /// Any sequence of messages in any state causes no panic, and all connections are forgotten in the end.
    #[test]
    fn any_mad_causes_no_panic(
        steps in proptest::collection::vec((0u8..24, any::<u64>(), any::<[u8; 32]>(), any::<bool>()), 1..60),
    ) {
        let config = Config { capacity: 4, ..Config::default() };
        let (mut a, mut b) = (Cm::new(config, 1), Cm::new(config, 2));
        b.listen(SERVICE).unwrap();
        let mut conns = [vec![], vec![]];
        let mut past: Vec<(AddressPair, [u8; MAD_LEN])> = Vec::new();
        let mut now = T0;
        for (what, number, noise, left) in steps {
            let (side, cm) = if left { (0, &mut a) } else { (1, &mut b) };
            let conn = match conns[side].len() {
                0 => Conn(number as u32),
                len => conns[side][number as usize % len],
            };
            now = now + Nanos(number >> 30);
            match what {
                0 => conns[0].extend(a.connect(&request(number as u32 & 7), now)),
                1 => _ = cm.accept(conn, &answer(number as u32 & 7), now),
                2 => _ = cm.confirm(conn, &noise),
                3 => _ = cm.reject(conn, RejReason(number as u16), &noise, now),
                4 => _ = cm.delay(conn, noise[0]),
                5 => _ = cm.disconnect(conn, &noise, now),
                6 => cm.established_by_traffic(conn),
                7 => cm.on_timer(now),
                8 => cm.abort(conn),
                // An earlier message, unchanged or with noise
                9..=19 if !past.is_empty() => {
                    let (addresses, mut mad) = past[number as usize % past.len()];
                    if what > 15 {
                        let at = noise[0] as usize % (MAD_LEN - 24);
                        let end = (at + noise[1] as usize % 24).min(MAD_LEN);
                        mad[at..end].copy_from_slice(&noise[2..][..end - at]);
                    }
                    let to = if addresses.local == A { &mut b } else { &mut a };
                    to.on_mad(reversed(addresses), &mad, now);
                }
                _ => {
                    let mut mad = [0; MAD_LEN];
                    mad[..4].copy_from_slice(&[1, 7, 2, 3]);
                    mad[17] = 0x10 + noise[0] % 11;
                    mad[24..56].copy_from_slice(&noise);
                    cm.on_mad(A_TO_B, &mad[..MAD_LEN - (what == 23) as usize], now);
                }
            }
            past.extend(core::iter::from_fn(|| a.poll_transmit()));
            past.extend(core::iter::from_fn(|| b.poll_transmit()));
            conns[0].extend(events(&mut a).iter().map(Event::conn));
            conns[1].extend(events(&mut b).iter().map(Event::conn));
        }
        for (cm, conns) in [(&mut a, &conns[0]), (&mut b, &conns[1])] {
            for &conn in conns {
                _ = cm.reject(conn, RejReason::CONSUMER, &[], now);
                _ = cm.disconnect(conn, &[], now);
            }
            run_timers(cm);
            prop_assert!(cm.is_empty(), "{cm:?}");
        }
    }
}
