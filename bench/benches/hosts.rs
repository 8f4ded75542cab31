//! Cost of the software NIC and the simulator: a WRITE and its acknowledgement with few and with very many
//! queue pairs, packets of a simulated network on one core, and the rules of `impair`.

#![allow(missing_docs, reason = "criterion's macros")]

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use rnic::{Data, Operation, Remote, SendRequest, Sge, Status};
use std::hint::black_box;
use switch::impair::{self, Action, Impair, Match, Operations, Rule};
use switch::memory::{FrameCollector, MemoryFrame};
use switch::{Function as _, Nanos, PortId, Probability};
use understudy_tests::nics::{VA, address, nic};
use workloads::scenario::{HostSpec, LinkSpec, NumberRange, Planted, Scenario, VerbsSpec, Work};

const QPS: [usize; 3] = [1, 1000, 100_000];

/// Measures a WRITE of 64 bytes on each queue pair in turn: its packet, its acknowledgement and its
/// completion.
fn writes(c: &mut Criterion) {
    let mut group = c.benchmark_group("rnic: WRITE of 64 B and its ACK, queue pairs in turn");
    group.throughput(Throughput::Elements(2));
    for count in QPS {
        let (mut left, qpns, cq, mr) = nic(0, count);
        let (mut right, _, _, remote) = nic(1, count);
        let mut frame = Vec::with_capacity(4096);
        let (mut n, mut now) = (0, Nanos(1));
        group.bench_function(BenchmarkId::from_parameter(count), |b| {
            b.iter(|| {
                n = (n + 1) % count;
                now = now + Nanos(500);
                let data = Data::Memory(Sge { mr, va: VA, len: 64 });
                let write = Operation::Write(Remote { va: VA, rkey: remote.0 });
                left.post_send(qpns[n], SendRequest::new(0, write, data)).expect("room in the send queue");
                assert!(left.poll_transmit(now, &mut frame));
                right.on_frame(&frame, now);
                assert!(right.poll_transmit(now, &mut frame));
                left.on_frame(&frame, now);
                // Old timers stay armed until the timeout.
                while left.next_timer().is_some_and(|at| at <= now) {
                    left.on_timer(now);
                }
                assert!(left.poll_cq(cq).is_some_and(|done| done.status == Status::Success));
            });
        });
    }
    group.finish();
}

/// Measures a READ of 64 KiB: mainly the responder's packets.
fn reads(c: &mut Criterion) {
    let mut group = c.benchmark_group("rnic: READ of 64 KiB in packets of 1 KiB");
    group.throughput(Throughput::Bytes(1 << 16));
    let (mut left, qpns, cq, mr) = nic(0, 1);
    let (mut right, _, _, remote) = nic(1, 1);
    let mut frame = Vec::with_capacity(4096);
    let mut now = Nanos(1);
    group.bench_function("64 KiB", |b| {
        b.iter(|| {
            now = now + Nanos(100_000);
            let data = Data::Memory(Sge { mr, va: VA, len: 1 << 16 });
            let read = Operation::Read(Remote { va: VA, rkey: remote.0 });
            left.post_send(qpns[0], SendRequest::new(0, read, data)).expect("room in the send queue");
            while left.poll_transmit(now, &mut frame) {
                right.on_frame(&frame, now);
            }
            while right.poll_transmit(now, &mut frame) {
                left.on_frame(&frame, now);
            }
            assert!(left.poll_cq(cq).is_some_and(|done| done.status == Status::Success));
        });
    });
    group.finish();
}

/// Measures the simulator, in packets that arrive at any node. The goal is a million packets per second on
/// one core.
fn simulator(c: &mut Criterion) {
    let mut group = c.benchmark_group("sim: packets that arrive");
    let mut scenario = Scenario {
        limit: NumberRange::fixed(100_000_000_000),
        hosts: vec![HostSpec::new("a", address(0), 24), HostSpec::new("b", address(1), 24)],
        switches: vec![],
        links: vec![LinkSpec::new("a", "b")],
        work: Work::Verbs(VerbsSpec { operations: NumberRange::fixed(2000), ..VerbsSpec::default() }),
        faults: vec![],
    };
    for (name, damage) in [("a clean wire", 0), ("1 % lost, doubled, reordered, damaged each", 10_000_000)] {
        let link = &mut scenario.links[0];
        for share in [&mut link.loss, &mut link.duplicate, &mut link.reorder, &mut link.corrupt] {
            *share = NumberRange::fixed(damage);
        }
        let outcome = workloads::scenario::run(&scenario, 1, Planted::default(), Vec::new());
        assert_eq!(outcome.violation, None);
        group.throughput(Throughput::Elements(outcome.packets));
        group.bench_function(name, |b| {
            b.iter(|| workloads::scenario::run(black_box(&scenario), 1, Planted::default(), Vec::new()));
        });
    }
    group.finish();
}

/// Measures what rules cost a packet that matches but is not affected.
fn rules(c: &mut Criterion) {
    let mut group = c.benchmark_group("impair: packets of 64 B to 1,024 queue pairs");
    group.throughput(Throughput::Elements(1));
    let rule = |number: usize| Rule {
        name: format!("rule {number}"),
        matching: Match { operations: Some(Operations::default()), ..Match::default() },
        share: Probability::ALWAYS,
        skip: 0,
        times: u64::MAX,
        action: Action::Drop,
    };
    for count in [0, 1, 10] {
        let mut function = Impair::new(
            &impair::Config {
                ports: 2,
                pairs: vec![(PortId(0), PortId(1))],
                seed: 1,
                held: 64,
                frame_len: 1526,
                flows: 4096,
                counted_qps: 0,
                health: false,
                rules: (0..count).map(rule).collect(),
            },
            0,
        );
        let mut frames: Vec<_> =
            (0..1024).map(|n| MemoryFrame::new(bench::traffic::write_only(n, 64))).collect();
        let mut out = FrameCollector::with_room(0);
        let mut n = 0;
        group.bench_function(BenchmarkId::new("rules", count), |b| {
            b.iter(|| {
                n = (n + 1) % frames.len();
                function.on_frame(&mut frames[n], PortId(0), Nanos::ZERO, &mut out)
            });
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(std::time::Duration::from_millis(300)).measurement_time(std::time::Duration::from_secs(1));
    targets = writes, reads, simulator, rules
}
criterion_main!(benches);
