//! Corner cases of the responder: remembered operations, held-back acknowledgements, and bounds.

use super::pair::*;
use crate::*;
use rocev2::atomic::AtomicEth;
use rocev2::reth::Reth;
use rocev2::{Bth, Opcode, Packet, Psn};
use switch::Nanos;
use zerocopy::IntoBytes;

fn connected(config_of: fn(Config) -> Config) -> (Pair, [End; 2]) {
    let mut pair = Pair::new(1, [config(0), config(1)].map(config_of));
    let ends = pair.connect(Setup::default());
    pair.resolve_neighbours(&ends);
    (pair, ends)
}

/// Returns the value that a FetchAdd of 1 to the first word of `end` fetches with this PSN.
fn fetch_add(pair: &mut Pair, end: &End, psn: Psn) -> Option<u64> {
    let header = AtomicEth { va: VA.into(), rkey: end.mr.0.into(), swap_or_add: 1.into(), compare: 0.into() };
    let mut frame = Vec::new();
    let bth = Bth::new(Opcode::RC_FETCH_ADD, end.qpn, psn);
    pair.path_headers(1).emit(&mut frame, bth, &[header.as_bytes()], &[]);
    pair.deliver(1, &[frame]);
    let response = pair.frames(1);
    response.first().and_then(|frame| Some(Packet::parse(frame)?.atomic_ack()?.original.get()))
}

fn set_epsn(pair: &mut Pair, end: &End, psn: Psn) {
    pair.nics[1].qp_mut(end.qpn).responder().advance_epsn(psn);
}

#[test]
fn a_duplicate_atomic_gets_the_newest_result_of_its_psn() {
    let (mut pair, [_, b]) = connected(|config| config);
    let psn = Setup::default().psn.add(1);
    assert_eq!(fetch_add(&mut pair, &b, psn), Some(0));
    // The PSN recurs after all others were used.
    set_epsn(&mut pair, &b, psn);
    assert_eq!(fetch_add(&mut pair, &b, psn), Some(1));
    assert_eq!(fetch_add(&mut pair, &b, psn), Some(1), "a duplicate");
}

#[test]
fn an_old_atomic_is_forgotten_before_its_psn_recurs() {
    let (mut pair, [_, b]) = connected(|config| config);
    let psn = Setup::default().psn.add(1);
    assert_eq!(fetch_add(&mut pair, &b, psn), Some(0));
    set_epsn(&mut pair, &b, psn.add(1 << 23));
    assert_eq!(fetch_add(&mut pair, &b, psn), Some(0), "not distinguishable from a duplicate");
    set_epsn(&mut pair, &b, psn.add((1 << 23) + 1));
    set_epsn(&mut pair, &b, psn.add(2));
    assert_eq!(fetch_add(&mut pair, &b, psn), None, "the PSN belongs to another request by now");
}

/// Returns whether a READ of `len` bytes, `skipped` bytes after the first word of `end`, is answered.
fn read(pair: &mut Pair, end: &End, psn: Psn, skipped: u64, len: u32) -> bool {
    let reth = Reth { va: (VA + 8 + skipped).into(), rkey: end.mr.0.into(), len: len.into() };
    let mut frame = Vec::new();
    pair.path_headers(1).emit(
        &mut frame,
        Bth::new(Opcode::RC_READ_REQUEST, end.qpn, psn),
        &[reth.as_bytes()],
        &[],
    );
    pair.deliver(1, &[frame]);
    let response = pair.frames(1);
    response.first().is_some_and(|frame| Packet::parse(frame).is_some_and(|packet| packet.bth().psn() == psn))
}

/// Returns a connection on which two READs and atomics may be outstanding.
fn forgetful(forgetful: bool) -> (Pair, End, Psn) {
    let mut pair = Pair::new(1, [config(0), config(1)].map(|config| Config { forgetful, ..config }));
    let ends = pair.connect(Setup { max_rd_atomic: 2, ..Setup::default() });
    pair.resolve_neighbours(&ends);
    (pair, ends[1], Setup::default().psn.add(1))
}

#[test]
fn a_forgetful_responder_answers_only_its_last_reads_and_atomics() {
    let (mut pair, b, psn) = forgetful(true);
    assert_eq!(fetch_add(&mut pair, &b, psn), Some(0));
    assert!(read(&mut pair, &b, psn.add(1), 0, 3000));
    assert_eq!(fetch_add(&mut pair, &b, psn), Some(0), "one of the last two");
    assert!(read(&mut pair, &b, psn.add(4), 0, 1));
    assert_eq!(fetch_add(&mut pair, &b, psn), None, "before the last two");
    assert!(read(&mut pair, &b, psn.add(1), 0, 3000));
    assert_eq!(fetch_add(&mut pair, &b, psn.add(5)), Some(1));
    assert!(!read(&mut pair, &b, psn.add(1), 0, 3000), "before the last two");
    assert!(read(&mut pair, &b, psn.add(4), 0, 1));
    assert_eq!(pair.nics[1].counters().forgotten, 2);
    // This is no error: the connection continues.
    assert_eq!(fetch_add(&mut pair, &b, psn.add(6)), Some(2));
}

#[test]
fn a_forgetful_responder_repeats_a_remembered_read_or_the_rest_of_it() {
    let (mut pair, b, psn) = forgetful(true);
    assert!(read(&mut pair, &b, psn, 0, 3000));
    assert!(!read(&mut pair, &b, psn.add(1), 2048, 953), "one byte too long");
    assert!(read(&mut pair, &b, psn.add(1), 1024, 1976));
    assert!(!read(&mut pair, &b, psn, 0, 3000), "the part before a repeated packet is forgotten");
    assert!(read(&mut pair, &b, psn.add(2), 2048, 952));
    assert_eq!(pair.nics[1].counters().forgotten, 2);
}

#[test]
fn a_default_responder_repeats_a_read_of_any_age() {
    let (mut pair, b, psn) = forgetful(false);
    for n in 0..10 {
        assert!(read(&mut pair, &b, psn.add(n), 0, 8));
    }
    assert!(read(&mut pair, &b, psn, 0, 8));
    assert_eq!(pair.nics[1].counters().forgotten, 0);
}

#[test]
fn received_messages_are_acknowledged_before_the_error_state() {
    let (mut pair, [a, b]) = connected(|config| {
        let ack = AckPolicy::Every { packets: 100, time: Nanos::from_micros(50) };
        Config { ack, ..config }
    });
    pair.nics[1].post_recv(b.qpn, RecvRequest { id: 1, data: None }).unwrap();
    pair.post(0, a.qpn, 2, Operation::Send, Data::None);
    pair.run_for(Nanos::from_micros(10));
    assert_eq!(pair.statuses(1, &b), [(1, Status::Success)]);
    pair.nics[1].modify_qp(b.qpn, Modify::Error).unwrap();
    pair.run();
    assert_eq!(pair.statuses(0, &a), [(2, Status::Success)]);
}

#[test]
fn acknowledgements_that_cannot_leave_do_not_pile_up() {
    let mut pair = Pair::new(1, [config(0), config(1)]);
    let [_, b] = pair.connect(Setup::default());
    let (mut path_headers, first) = (pair.path_headers(1), Setup::default().psn);
    let write = |psn, qpn, path_headers: &mut crate::wire::PathHeaders| {
        let (mut frame, mut bth) = (Vec::new(), Bth::new(Opcode::RC_WRITE_ONLY, qpn, psn));
        bth.set_ack_req(true);
        path_headers.emit(&mut frame, bth, &[&[0; 16]], &[]);
        frame
    };
    // The remote side's MAC address is not resolved here, so nothing leaves. Every second packet arrives out
    // of order first.
    for n in 0..3000 {
        for psn in [n + 1, n] {
            let frame = write(first.add(psn), b.qpn, &mut path_headers);
            pair.deliver(1, &[frame]);
            assert_eq!(pair.frames(1).iter().filter(|frame| Packet::parse(frame).is_some()).count(), 0);
        }
    }
    let responder = pair.nics[1].qp_mut(b.qpn).responder();
    assert_eq!(responder.epsn(), first.add(3000));
    let (count, newest) = responder.owed();
    assert!(count <= 1024, "{count} responses");
    assert_eq!(newest, Some(first.add(2999)));
}

#[test]
fn established_is_reported_once() {
    for transport in [Transport::Rc, Transport::Uc] {
        let mut pair = Pair::new(1, [config(0), config(1)]);
        let [a, b] = pair.connect(Setup { transport, ..Setup::default() });
        let rtr = ReadyToReceive {
            path: Path::new(address(1), address(0)),
            dest_qp: a.qpn,
            mtu: PathMtu::B1024,
            rq_psn: Setup::default().psn,
            max_dest_rd_atomic: 1,
            min_rnr_timer: rocev2::aeth::RnrTimer(1),
        };
        for round in 0..2 {
            for modify in [Modify::Reset, Modify::Init { access: Access::ALL, qkey: 0 }, Modify::Rtr(rtr)] {
                pair.nics[1].modify_qp(b.qpn, modify).unwrap();
            }
            for id in 0..100 {
                pair.post(0, a.qpn, id, Operation::Write(b.remote(0)), Data::Inline(vec![1; 8]));
            }
            pair.run();
            let events: Vec<_> = core::iter::from_fn(|| pair.nics[1].poll_event()).collect();
            assert_eq!(events, [Event::Established(b.qpn)], "{transport:?}, round {round}");
            if transport == Transport::Rc {
                break; // The requester's PSNs have advanced.
            }
        }
    }
}

#[test]
fn duplicates_make_the_responder_verify_the_neighbour() {
    let (mut pair, [a, b]) = connected(|config| config);
    // NIC 1 gets a wrong MAC address for NIC 0: ARP is not authenticated.
    let wrong = rocev2::ethernet::MacAddr([2, 0, 0, 0, 0, 9]);
    let mut reply = [&config(1).interface.mac.0[..], &wrong.0, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 2]].concat();
    reply.extend([&wrong.0[..], &[10, 0, 0, 1], &config(1).interface.mac.0, &[10, 0, 0, 2]].concat());
    pair.deliver(1, &[reply]);
    // An entry of this age may be verified.
    pair.now = pair.now + Nanos::from_millis(20);
    pair.post(0, a.qpn, 1, Operation::Write(b.remote(0)), Data::Inline(vec![1; 8]));
    pair.run();
    assert_eq!(pair.statuses(0, &a), [(1, Status::Success)]);
    assert!(pair.nics[1].counters().duplicates > 0, "the first response was lost");
}
