//! The cost of a packet does not depend on the number of queue pairs.

use super::pair::*;
use crate::*;
use rocev2::{Packet, Qpn};
use switch::Nanos;

const QUEUE_PAIRS: usize = 100_000;

/// Returns a NIC with `count` queue pairs, connected to those with the same numbers on the other NIC.
fn nic(number: usize, count: usize) -> (Rnic, Vec<Qpn>, Cq, Mr) {
    let mut interface = config(number).interface;
    interface.neighbours.push((address(1 - number), config(1 - number).interface.mac));
    let mut nic = Rnic::new(Config { max_qps: QUEUE_PAIRS, interface, ..config(number) });
    let pd = nic.alloc_pd();
    let cq = nic.create_cq(1 << 18).unwrap();
    let (_, mr) = nic.register_new(pd, 4096, VA, Access::ALL).unwrap();
    let init = QpInit::rc(pd, cq, 4, 4);
    let qpns: Vec<_> = (0..count).map(|_| nic.create_qp(init).unwrap()).collect();
    let setup = Setup { mtu: PathMtu::B256, ..Setup::default() };
    for qpn in &qpns {
        setup.make_ready(&mut nic, *qpn, *qpn, Path::new(address(number), address(1 - number)));
    }
    (nic, qpns, cq, mr)
}

/// Delivers everything that either NIC sends to the other one. Returns the number of packets.
fn exchange(nics: &mut [Rnic; 2], now: Nanos) -> usize {
    let (mut frame, mut packets) = (Vec::new(), 0);
    loop {
        let before = packets;
        for from in [0, 1] {
            while nics[from].poll_transmit(now, &mut frame) {
                nics[1 - from].on_frame(&frame, now);
                packets += 1;
            }
        }
        if packets == before {
            return packets;
        }
    }
}

#[test]
fn a_hundred_thousand_queue_pairs_are_possible() {
    let (a, qpns, cq, mr) = nic(0, QUEUE_PAIRS);
    let (b, _, _, remote) = nic(1, QUEUE_PAIRS);
    let mut nics = [a, b];
    for (id, qpn) in (0..).zip(&qpns) {
        let data = Data::Memory(Sge { mr, va: VA, len: 64 });
        let write = Operation::Write(Remote { va: VA + 64, rkey: remote.0 });
        nics[0].post_send(*qpn, SendRequest::new(id, write, data)).unwrap();
    }
    assert_eq!(exchange(&mut nics, Nanos(1)), 2 * QUEUE_PAIRS, "a WRITE and its acknowledgement, each");
    let done = core::iter::from_fn(|| nics[0].poll_cq(cq)).filter(|done| done.status == Status::Success);
    assert_eq!(done.count(), QUEUE_PAIRS);
    // An idle NIC has no work except timer entries that have not expired yet.
    assert!(!nics[0].wants_to_transmit() && !nics[1].wants_to_transmit());
}

#[test]
fn a_queue_pair_has_one_timer_entry() {
    // Near deadlines of held-back acknowledgements come and go while a distant one is pending.
    let ack = AckPolicy::Every { packets: 100, time: Nanos::from_micros(2) };
    let mut pair = Pair::new(1, [config(0), config(1)].map(|config| Config { ack, ..config }));
    let ends = pair.connect(Setup { timeout: 20, ..Setup::default() });
    pair.resolve_neighbours(&ends);
    for id in 0..100 {
        for nic in [0, 1] {
            let write = Operation::Write(ends[1 - nic].remote(0));
            pair.post(nic, ends[nic].qpn, id, write, Data::Inline(vec![1; 8]));
        }
        pair.run_for(Nanos::from_micros(10));
        assert_eq!([0, 1].map(|nic| pair.statuses(nic, &ends[nic]).len()), [1, 1]);
        assert!(pair.nics.iter().all(|nic| nic.scheduled().1 <= 1), "after {id} exchanges");
    }
}

#[test]
fn destroyed_queue_pairs_do_not_accumulate_in_the_round() {
    let (mut pair, [a, b]) = Pair::connected(Setup::default());
    let init = pair.nics[0].qp_init(a.qpn).unwrap();
    for _ in 0..1000 {
        // No packet is sent meanwhile: the port is busy.
        let nic = &mut pair.nics[0];
        let qpn = nic.create_qp(init).unwrap();
        Setup::default().make_ready(nic, qpn, b.qpn, Path::new(address(0), address(1)));
        nic.post_send(qpn, SendRequest::new(0, Operation::Send, Data::None)).unwrap();
        nic.destroy_qp(qpn).unwrap();
    }
    assert!(pair.nics[0].scheduled().0 <= 2, "{} entries for two slots", pair.nics[0].scheduled().0);
}

#[test]
fn idle_queue_pairs_cost_nothing() {
    // The work per packet is counted, not timed: the entries in the round-robin queue and in the timer heap.
    for count in [1, 1000, QUEUE_PAIRS] {
        let (mut nic, qpns, ..) = nic(0, count);
        let busy = qpns[count / 2];
        for id in 0..4 {
            nic.post_send(busy, SendRequest::new(id, Operation::Send, Data::Inline(vec![1; 700]))).unwrap();
        }
        assert_eq!(nic.scheduled().0, 1, "of {count} queue pairs");
        let mut frame = Vec::new();
        let mut packets = 0;
        while nic.poll_transmit(Nanos(1), &mut frame) {
            assert_eq!(Packet::parse(&frame).unwrap().bth().dest_qp(), busy);
            assert!(nic.scheduled().0 <= 1 && nic.scheduled().1 <= 1);
            packets += 1;
        }
        assert_eq!(packets, 12);
    }
}
