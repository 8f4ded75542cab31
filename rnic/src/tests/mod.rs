//! Tests of the verbs between two NICs.

mod connect;
mod neighbours;
mod pacing;
mod pair;
mod parts;
mod queues;
mod responder;
mod rights;
mod scale;
mod unreliable;

use crate::CompletionOpcode::{Recv, RecvWriteImm};
use crate::*;
use pair::{End, Pair, Setup, VA, address, config};
use rocev2::aeth::Syndrome;
use rocev2::{Opcode, Packet, Psn};
use switch::{Nanos, Probability};

fn bytes(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at as u8).wrapping_mul(31) ^ seed ^ (at >> 8) as u8).collect()
}

fn word(pair: &Pair, nic: usize, end: &End, at: usize) -> u64 {
    u64::from_le_bytes(pair.nics[nic].bytes(end.buffer)[at..at + 8].try_into().unwrap())
}

#[test]
fn every_operation_has_its_effect() {
    for mtu in PathMtu::ALL {
        let (mut pair, [a, b]) = Pair::connected(Setup { mtu, ..Setup::default() });
        let message = bytes(10_000, 1);
        pair.nics[0].bytes_mut(a.buffer)[..10_000].copy_from_slice(&message);
        pair.nics[1].bytes_mut(b.buffer)[60_000..60_008].copy_from_slice(&40u64.to_le_bytes());
        for id in 0..4 {
            let data = Some(b.sge(20_000 + id * 10_000, 10_000));
            pair.nics[1].post_recv(b.qpn, RecvRequest { id: 100 + id, data }).unwrap();
        }
        let memory = |len| Data::Memory(a.sge(0, len));
        let fetch = |at| Data::Memory(a.sge(at, 8));
        let atomic = b.remote(60_000);
        for (id, (operation, data)) in [
            (Operation::Write(b.remote(0)), memory(10_000)),
            (Operation::Send, memory(10_000)),
            (Operation::SendImm(7), Data::Inline(vec![9; 3])),
            (Operation::WriteImm(b.remote(10_000), 8), memory(4_097)),
            (Operation::Read(b.remote(0)), Data::Memory(a.sge(30_000, 10_000))),
            (Operation::FetchAdd { at: atomic, add: 2 }, fetch(50_000)),
            (Operation::CompareSwap { at: atomic, compare: 42, swap: 99 }, fetch(50_008)),
            (Operation::CompareSwap { at: atomic, compare: 42, swap: 7 }, fetch(50_016)),
            (Operation::Write(b.remote(0)), Data::None),
            (Operation::Read(b.remote(0)), Data::None),
            (Operation::Send, Data::None),
        ]
        .into_iter()
        .enumerate()
        {
            pair.post(0, a.qpn, id as u64, operation, data);
        }
        pair.run();
        let done = pair.statuses(0, &a);
        assert_eq!(done, (0..11).map(|id| (id, Status::Success)).collect::<Vec<_>>(), "{mtu:?}");
        let received = pair.completions(1, &b);
        let lengths: Vec<_> = received.iter().map(|c| (c.id, c.opcode, c.len, c.immediate)).collect();
        let wanted = [
            (100, Recv, 10_000, None),
            (101, Recv, 3, Some(7)),
            (102, RecvWriteImm, 4_097, Some(8)),
            (103, Recv, 0, None),
        ];
        assert_eq!(lengths, wanted);
        let there = pair.nics[1].bytes(b.buffer);
        assert!(
            there[..10_000] == message
                && there[20_000..30_000] == message
                && there[10_000..14_097] == message[..4_097]
        );
        assert_eq!(there[30_000..30_004], [9, 9, 9, 0]);
        assert_eq!(pair.nics[0].bytes(a.buffer)[30_000..40_000], message);
        let fetched = [50_000, 50_008, 50_016].map(|at| word(&pair, 0, &a, at));
        assert_eq!((fetched, word(&pair, 1, &b, 60_000)), ([40, 42, 99], 99));
        let counters = pair.nics.each_ref().map(|nic| *nic.counters());
        assert_eq!(counters.map(|c| (c.retransmitted, c.duplicates, c.timeouts)), [(0, 0, 0); 2]);
    }
}

#[test]
fn any_single_lost_packet_is_recovered() {
    for nth in 3..40 {
        let (mut pair, [a, b]) = Pair::connected(Setup { mtu: PathMtu::B256, ..Setup::default() });
        // Frames 1 and 2 are ARP.
        LOST.with(|lost| lost.set(nth));
        pair.drop_rule =
            Some(|_, n| LOST.with(|lost| if lost.get() <= n { lost.replace(u64::MAX) <= n } else { false }));
        pair.nics[0].bytes_mut(a.buffer)[..2000].copy_from_slice(&bytes(2000, 5));
        pair.post(0, a.qpn, 1, Operation::Write(b.remote(0)), Data::Memory(a.sge(0, 2000)));
        pair.post(
            0,
            a.qpn,
            2,
            Operation::FetchAdd { at: b.remote(4096), add: 1 },
            Data::Memory(a.sge(8000, 8)),
        );
        pair.post(0, a.qpn, 3, Operation::Read(b.remote(0)), Data::Memory(a.sge(10_000, 2000)));
        pair.post(
            0,
            a.qpn,
            4,
            Operation::FetchAdd { at: b.remote(4096), add: 1 },
            Data::Memory(a.sge(8008, 8)),
        );
        pair.run();
        let wanted = [1, 2, 3, 4].map(|id| (id, Status::Success));
        assert_eq!(pair.statuses(0, &a), wanted, "packet {nth} lost");
        assert_eq!(pair.nics[0].bytes(a.buffer)[10_000..12_000], bytes(2000, 5));
        assert_eq!((word(&pair, 1, &b, 4096), word(&pair, 0, &a, 8008)), (2, 1), "packet {nth} lost");
    }
}

thread_local! {
    static LOST: std::cell::Cell<u64> = const { std::cell::Cell::new(u64::MAX) };
}

#[test]
fn naks_fail_the_connection_with_the_matching_status() {
    let (_, [_, b]) = Pair::connected(Setup::default());
    let outside = Remote { va: VA + 65_530, ..b.remote(0) };
    let wrong_key = Remote { rkey: b.mr.0 ^ 0x100, ..b.remote(0) };
    for (operation, len, status) in [
        (Operation::Write(outside), 8, Status::RemoteAccess),
        (Operation::Read(wrong_key), 8, Status::RemoteAccess),
        (Operation::FetchAdd { at: b.remote(4), add: 1 }, 8, Status::RemoteInvalidRequest),
        (Operation::FetchAdd { at: outside, add: 1 }, 8, Status::RemoteInvalidRequest),
        (Operation::FetchAdd { at: wrong_key, add: 1 }, 8, Status::RemoteAccess),
        (Operation::Send, 101, Status::RemoteInvalidRequest),
    ] {
        let (mut pair, [a, b]) = Pair::connected(Setup::default());
        pair.nics[1].post_recv(b.qpn, RecvRequest { id: 9, data: Some(b.sge(0, 100)) }).unwrap();
        pair.post(0, a.qpn, 0, Operation::Write(b.remote(0)), Data::Memory(a.sge(0, 5000)));
        pair.post(0, a.qpn, 1, operation, Data::Memory(a.sge(0, len)));
        pair.post(0, a.qpn, 2, Operation::Write(b.remote(0)), Data::None);
        pair.run();
        let wanted = [(0, Status::Success), (1, status), (2, Status::Flushed)];
        assert_eq!(pair.statuses(0, &a), wanted, "{operation:?}");
        let receive = if operation == Operation::Send { Status::LocalLength } else { Status::Flushed };
        assert_eq!(pair.statuses(1, &b), [(9, receive)]);
        for (nic, end) in [(0, a), (1, b)] {
            assert_eq!(pair.nics[nic].qp_state(end.qpn), Some(State::Error));
            assert_eq!(pair.nics[nic].poll_event(), Some(Event::QpError(end.qpn)));
        }
    }
}

#[test]
fn access_flags_may_change_between_requests() {
    let (mut pair, [a, b]) = Pair::connected(Setup::default());
    pair.post(0, a.qpn, 0, Operation::Write(b.remote(0)), Data::Inline(vec![1; 8]));
    pair.run();
    pair.nics[1].reregister(b.mr, Access::REMOTE_READ).unwrap();
    pair.post(0, a.qpn, 1, Operation::Read(b.remote(0)), Data::Memory(a.sge(0, 8)));
    pair.post(0, a.qpn, 2, Operation::Write(b.remote(0)), Data::Inline(vec![2; 8]));
    pair.run();
    let wanted = [(0, Status::Success), (1, Status::Success), (2, Status::RemoteAccess)];
    assert_eq!(pair.statuses(0, &a), wanted);
    assert_eq!(pair.nics[1].bytes(b.buffer)[..8], [1; 8]);
    // The queue pair's own access flags have the same effect.
    let [a, b] = pair.connect(Setup::default());
    pair.nics[1].modify_qp(b.qpn, Modify::Access(Access::REMOTE_READ)).unwrap();
    pair.post(0, a.qpn, 3, Operation::Write(b.remote(0)), Data::Inline(vec![3; 8]));
    pair.run();
    assert_eq!(pair.statuses(0, &a), [(3, Status::RemoteInvalidRequest)]);
}

#[test]
fn the_requester_retries_until_the_receiver_is_ready() {
    for credits in [false, true] {
        let configs = [config(0), config(1)].map(|config| Config { credits, ..config });
        let mut pair = Pair::new(1, configs);
        let [a, b] = pair.connect(Setup { flow_control: credits, ..Setup::default() });
        for id in 0..5 {
            pair.post(0, a.qpn, id, Operation::Send, Data::Inline(bytes(3000, id as u8)));
        }
        pair.run_for(Nanos::from_millis(1));
        assert!(pair.statuses(0, &a).is_empty());
        for id in 0..5 {
            let data = Some(b.sge(id * 3000, 3000));
            pair.nics[1].post_recv(b.qpn, RecvRequest { id, data }).unwrap();
            pair.run_for(Nanos::from_millis(1));
            assert_eq!(pair.statuses(0, &a), [(id, Status::Success)], "credits {credits}");
        }
        assert_eq!(pair.nics[1].bytes(b.buffer)[..3000], bytes(3000, 0));
        assert_eq!(pair.nics[1].bytes(b.buffer)[12_000..15_000], bytes(3000, 4));
        let naks = pair.nics[1].counters().rnr_naks_sent;
        assert!(naks > 0, "credits {credits}");
    }
}

#[test]
fn credits_limit_the_messages_sent() {
    let configs = [config(0), config(1)].map(|config| Config { credits: true, ..config });
    let mut pair = Pair::new(1, configs);
    let [a, b] = pair.connect(Setup { flow_control: true, ..Setup::default() });
    for id in 0..3 {
        pair.nics[1].post_recv(b.qpn, RecvRequest { id, data: None }).unwrap();
    }
    for id in 0..6 {
        pair.post(0, a.qpn, id, Operation::Send, Data::None);
    }
    pair.run_for(Nanos::from_micros(30));
    assert_eq!(pair.statuses(0, &a).len(), 3);
    let announced: Vec<_> = pair
        .seen
        .iter()
        .filter(|(to, _)| *to == 0)
        .filter_map(|(_, frame)| Packet::parse(frame)?.aeth().map(rocev2::aeth::Aeth::kind))
        .collect();
    assert!(matches!(announced[0], Syndrome::Ack(credit) if credit.messages() == Some(2)), "{announced:?}");
    // The message without a credit was sent once, to probe.
    let sends = pair.seen.iter().filter(|(to, frame)| {
        *to == 1
            && Packet::parse(frame).is_some_and(|packet| packet.layout().opcode() == Opcode::RC_SEND_ONLY)
    });
    assert_eq!(
        sends
            .map(|(_, frame)| Packet::parse(frame).unwrap().bth().psn())
            .max_by_key(|psn| psn.distance(Psn::new(0xff_fff0))),
        Some(Psn::new(0xff_fff3))
    );
}

#[test]
fn a_request_without_response_is_retried_retry_count_times() {
    let (mut pair, [a, b]) = Pair::connected(Setup { retry_count: 3, ..Setup::default() });
    pair.drop_rule = Some(|packet, _| packet.layout().opcode() == Opcode::RC_ACKNOWLEDGE);
    pair.post(0, a.qpn, 1, Operation::Write(b.remote(0)), Data::Inline(vec![7; 10]));
    pair.post(0, a.qpn, 2, Operation::Send, Data::None);
    while !pair.nics[0].cq_has_completions(a.cq) {
        assert!(pair.step(Nanos::from_secs(1)));
    }
    assert_eq!(pair.statuses(0, &a), [(1, Status::RetryExceeded), (2, Status::Flushed)]);
    assert_eq!(pair.nics[0].counters().timeouts, 4);
    // Each timeout is 131 us; the first one started after ARP
    assert!((524_288..540_000).contains(&pair.now.0), "{:?}", pair.now);
}

#[test]
fn rnr_retries_are_limited() {
    let (mut pair, [a, _]) = Pair::connected(Setup { rnr_retry: 2, ..Setup::default() });
    pair.post(0, a.qpn, 1, Operation::Send, Data::None);
    pair.run();
    assert_eq!(pair.statuses(0, &a), [(1, Status::RnrRetryExceeded)]);
    assert_eq!(pair.nics[1].counters().rnr_naks_sent, 3);
}

#[test]
fn draining_completes_started_messages() {
    let mut pair = Pair::new(1, [config(0), config(1)].map(|config| Config { window: 16, ..config }));
    let [a, b] = pair.connect(Setup { mtu: PathMtu::B256, ..Setup::default() });
    pair.post(0, a.qpn, 1, Operation::Write(b.remote(0)), Data::Memory(a.sge(0, 60_000)));
    pair.post(0, a.qpn, 2, Operation::Write(b.remote(0)), Data::Inline(vec![1]));
    while pair.nics[1].counters().received < 2 {
        pair.step(Nanos::from_secs(1)); // ARP, and the first packets
    }
    pair.nics[0].modify_qp(a.qpn, Modify::Sqd).unwrap();
    pair.run();
    assert_eq!(pair.statuses(0, &a), [(1, Status::Success)]);
    assert_eq!(pair.nics[0].poll_event(), Some(Event::Drained(a.qpn)));
    pair.nics[0].modify_qp(a.qpn, Modify::Resume).unwrap();
    pair.run();
    assert_eq!(pair.statuses(0, &a), [(2, Status::Success)]);
}

#[test]
fn outstanding_reads_and_atomics_are_limited_and_fenced() {
    let (mut pair, [a, b]) = Pair::connected(Setup { max_rd_atomic: 2, ..Setup::default() });
    for id in 0..10 {
        pair.post(0, a.qpn, id, Operation::Read(b.remote(0)), Data::Memory(a.sge(0, 4096)));
    }
    let fenced =
        SendRequest { fence: true, ..SendRequest::new(10, Operation::Write(b.remote(0)), Data::None) };
    pair.nics[0].post_send(a.qpn, fenced).unwrap();
    pair.run();
    assert_eq!(pair.statuses(0, &a).len(), 11);
    let mut outstanding = 0i32;
    for (to, frame) in &pair.seen {
        let Some(packet) = Packet::parse(frame) else { continue };
        match (to, packet.layout().opcode()) {
            (1, Opcode::RC_READ_REQUEST) => outstanding += 1,
            (0, Opcode::RC_READ_RESPONSE_LAST) => outstanding -= 1,
            (1, Opcode::RC_WRITE_ONLY) => {
                assert_eq!(outstanding, 0, "no READ is outstanding behind the fence");
            }
            _ => {}
        }
        assert!(outstanding <= 2);
    }
}

#[test]
fn unreliable_messages_arrive_completely_or_not_at_all() {
    let (mut pair, [a, b]) =
        Pair::connected(Setup { transport: Transport::Uc, mtu: PathMtu::B256, ..Setup::default() });
    pair.fault_rate = Probability::percent(2);
    for id in 0..200 {
        let data = Some(b.sge(0, 2000));
        pair.nics[1].post_recv(b.qpn, RecvRequest { id, data }).unwrap();
    }
    for id in 0..200 {
        pair.post(0, a.qpn, id, Operation::SendImm(id as u32), Data::Inline(bytes(2000, id as u8)));
    }
    let mut got = Vec::new();
    loop {
        let more = pair.step(Nanos::from_secs(1));
        for receipt in pair.completions(1, &b) {
            let immediate = receipt.immediate.unwrap();
            assert_eq!((receipt.status, receipt.len), (Status::Success, 2000));
            got.push((receipt.id, immediate));
        }
        if !more {
            break;
        }
    }
    assert_eq!(pair.statuses(0, &a).len(), 200, "sends complete when they leave");
    assert!((20..200).contains(&got.len()), "{} messages", got.len());
    assert!(got.iter().enumerate().all(|(at, (id, _))| *id == at as u64), "receives are consumed in order");
    assert!(got.windows(2).all(|pair| pair[0].1 < pair[1].1), "late messages are dropped");
}

#[test]
fn datagrams_carry_their_sender_and_require_the_qkey() {
    let mut pair = Pair::new(1, [config(0), config(1)]);
    let [a, b] = pair.connect(Setup { transport: Transport::Ud, ..Setup::default() });
    for id in 0..3 {
        let len = if id == 1 { 50 } else { 1000 };
        pair.nics[1].post_recv(b.qpn, RecvRequest { id, data: Some(b.sge(id * 1000, len)) }).unwrap();
    }
    let mut send = |qkey, len| {
        let to = UdDestination { path: Path::new(address(0), address(1)), qpn: b.qpn, qkey };
        let request = SendRequest::new(len as u64, Operation::SendImm(3), Data::Inline(bytes(len, 0)));
        pair.nics[0].post_send(a.qpn, SendRequest { to: Some(to), ..request }).unwrap();
        pair.run();
    };
    send(8, 20); // wrong Q_Key
    send(7, 20);
    send(7, 20); // longer than the second receive buffer
    let received = pair.completions(1, &b);
    assert_eq!(received.len(), 1);
    assert_eq!(
        (received[0].len, received[0].from, received[0].immediate),
        (60, Some((address(0), a.qpn)), Some(3))
    );
    let there = &pair.nics[1].bytes(b.buffer)[..60];
    assert_eq!(
        (there[20], &there[32..40], &there[40..]),
        (0x45, &[10, 0, 0, 1, 10, 0, 0, 2][..], &bytes(20, 0)[..])
    );
    assert_eq!(pair.nics[1].counters().unreliable_dropped, 2);
}

#[test]
fn queue_pairs_consume_receives_from_a_shared_queue() {
    let mut pair = Pair::new(1, [config(0), config(1)]);
    let [a, b] = pair.connect(Setup::default());
    let srq = pair.nics[1].create_srq(10).unwrap();
    let init = QpInit { srq: Some(srq), ..pair.nics[1].qp_init(b.qpn).unwrap() };
    let shared = pair.nics[1].create_qp(init).unwrap();
    assert_eq!(pair.nics[1].post_recv(shared, RecvRequest { id: 0, data: None }), Err(QpError::Queue));
    pair.nics[1].post_srq_recv(srq, RecvRequest { id: 5, data: None }).unwrap();
    let setup = Setup { rnr_retry: 0, ..Setup::default() };
    pair.nics[0].modify_qp(a.qpn, Modify::Reset).unwrap();
    for (nic, qpn, dest_qp) in [(0, a.qpn, shared), (1, shared, a.qpn)] {
        let path = Path::new(address(nic), address(1 - nic));
        setup.make_ready(&mut pair.nics[nic], qpn, dest_qp, path);
    }
    pair.post(0, a.qpn, 1, Operation::Send, Data::None);
    pair.post(0, a.qpn, 2, Operation::Send, Data::None);
    pair.run();
    assert_eq!(pair.statuses(0, &a), [(1, Status::Success), (2, Status::RnrRetryExceeded)]);
    assert_eq!(pair.statuses(1, &b), [(5, Status::Success)], "one receive was posted");
}

#[test]
fn states_allow_only_their_calls() {
    let (mut pair, [a, _]) = Pair::connected(Setup::default());
    let nic = &mut pair.nics[0];
    let send = || SendRequest::new(1, Operation::Send, Data::None);
    let recv = RecvRequest { id: 2, data: None };
    nic.post_recv(a.qpn, recv).unwrap();
    nic.modify_qp(a.qpn, Modify::Error).unwrap();
    assert_eq!(nic.poll_cq(a.cq).map(|c| (c.id, c.status)), Some((2, Status::Flushed)));
    assert_eq!(nic.modify_qp(a.qpn, Modify::Resume), Err(QpError::State(State::Error)));
    nic.modify_qp(a.qpn, Modify::Reset).unwrap();
    assert_eq!(nic.post_recv(a.qpn, recv), Err(QpError::State(State::Reset)));
    nic.modify_qp(a.qpn, Modify::Init { access: Access::ALL, qkey: 0 }).unwrap();
    nic.post_recv(a.qpn, recv).unwrap();
    assert_eq!(nic.post_send(a.qpn, send()), Err(QpError::State(State::Init)));
    nic.destroy_qp(a.qpn).unwrap();
    assert_eq!(nic.post_recv(a.qpn, recv), Err(QpError::Unknown));
    assert_eq!(nic.destroy_qp(a.qpn), Err(QpError::Unknown));
}

#[test]
fn numbers_of_destroyed_queue_pairs_are_not_reused_soon() {
    let mut nic = Rnic::new(Config { max_qps: 3, ..config(0) });
    let pd = nic.alloc_pd();
    let cq = nic.create_cq(1).unwrap();
    let init = QpInit::rc(pd, cq, 1, 1);
    let mut seen = std::collections::HashSet::new();
    for _ in 0..1000 {
        let qpn = nic.create_qp(init).unwrap();
        assert!(qpn.get() >= 16 && seen.insert(qpn));
        nic.destroy_qp(qpn).unwrap();
        assert_eq!(nic.qp_state(qpn), None);
    }
    let all = [0; 3].map(|_| nic.create_qp(init).unwrap());
    assert_eq!(nic.create_qp(init), Err(QpError::Full));
    assert!(all.iter().all(|qpn| nic.qp_state(*qpn) == Some(State::Reset)));
}

#[test]
fn a_completion_queue_overrun_fails_its_queue_pairs() {
    let mut pair = Pair::new(1, [config(0), config(1)]);
    let [a, b] = pair.connect(Setup::default());
    let small = pair.nics[1].create_cq(2).unwrap();
    let init = QpInit { send_cq: small, recv_cq: small, ..pair.nics[1].qp_init(b.qpn).unwrap() };
    let qpn = pair.nics[1].create_qp(init).unwrap();
    pair.nics[1].modify_qp(qpn, Modify::Init { access: Access::ALL, qkey: 0 }).unwrap();
    for id in 0..3 {
        pair.nics[1].post_recv(qpn, RecvRequest { id, data: None }).unwrap();
    }
    pair.nics[1].modify_qp(qpn, Modify::Error).unwrap();
    assert!(pair.nics[1].cq_overrun(small));
    assert_eq!([(); 3].map(|()| pair.nics[1].poll_cq(small).map(|c| c.id)), [Some(0), Some(1), None]);
    pair.post(0, a.qpn, 1, Operation::Write(b.remote(0)), Data::None);
    pair.run();
    assert_eq!(pair.statuses(0, &a), [(1, Status::Success)], "other queue pairs are unaffected");
}

#[test]
fn acknowledgements_are_coalesced_as_configured() {
    let count = |ack| {
        let configs = [config(0), config(1)].map(|config| Config { ack, ..config });
        let mut pair = Pair::new(1, configs);
        let [a, b] = pair.connect(Setup { mtu: PathMtu::B256, ..Setup::default() });
        for id in 0..10 {
            pair.post(0, a.qpn, id, Operation::Write(b.remote(0)), Data::Memory(a.sge(0, 1024)));
        }
        pair.run();
        assert_eq!(pair.statuses(0, &a).len(), 10);
        pair.nics[1].counters().sent - 1 // ARP
    };
    assert_eq!(count(AckPolicy::EveryPacket), 40);
    assert_eq!(count(AckPolicy::OnRequest), 10);
    // Acknowledgements owed at the same moment leave as one.
    let every = |packets| AckPolicy::Every { packets, time: Nanos::from_micros(20) };
    assert_eq!([count(every(4)), count(every(100))], [2, 1]);
}

#[test]
fn a_lossy_link_changes_nothing_but_the_time() {
    for seed in 0..200 {
        let mut pair = Pair::new(seed, [config(0), config(1)]);
        pair.fault_rate = Probability::percent(10);
        let setup = Setup { retry_count: ReadyToSend::NO_LIMIT, mtu: PathMtu::B256, ..Setup::default() };
        let [a, b] = pair.connect(setup);
        for id in 0..100 {
            pair.nics[1].post_recv(b.qpn, RecvRequest { id, data: None }).unwrap();
            let operation = match id % 4 {
                0 => Operation::Write(b.remote(id * 400)),
                1 => Operation::FetchAdd { at: b.remote(65_000), add: id },
                2 => Operation::SendImm(id as u32),
                _ => Operation::Read(b.remote((id - 3) * 400)),
            };
            let data = match id % 4 {
                0 => Data::Inline(bytes(400, id as u8)),
                1 => Data::Memory(a.sge(id * 400, 8)),
                2 => Data::None,
                _ => Data::Memory(a.sge(id * 400, 400)),
            };
            pair.post(0, a.qpn, id, operation, data);
        }
        pair.run_for(Nanos::from_secs(20));
        let wanted: Vec<_> = (0..100).map(|id| (id, Status::Success)).collect();
        assert_eq!(pair.statuses(0, &a), wanted, "seed {seed}");
        let received: Vec<_> = pair.completions(1, &b).iter().map(|c| c.immediate.unwrap()).collect();
        assert_eq!(received, (0..25).map(|n| n * 4 + 2).collect::<Vec<_>>(), "seed {seed}");
        let mut sum = 0;
        for id in (0..100).step_by(4) {
            assert_eq!(word(&pair, 0, &a, (id + 1) * 400), sum, "seed {seed}");
            sum += id as u64 + 1;
            let read = &pair.nics[0].bytes(a.buffer)[(id + 3) * 400..(id + 3) * 400 + 400];
            assert_eq!(read, bytes(400, id as u8), "seed {seed}");
        }
    }
}
