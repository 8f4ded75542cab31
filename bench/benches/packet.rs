//! Cost per packet of parsing and counting, and of the full and the incremental ICRC, without DPDK.

#![allow(missing_docs, reason = "criterion's macros")]

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use rocev2::rewrite::Rewriter;
use rocev2::{Class, Layout, Packet, Psn, Qpn, classify, icrc};
use std::hint::black_box;
use switch::drop::FaultSet;
use switch::forward::config::ForwardingMode;
use switch::forward::{Config, Forward};
use switch::memory::{FrameCollector, MemoryFrame};
use switch::{Function as _, Nanos, PortId};

const PAYLOADS: [usize; 3] = [64, 1024, 4096];

fn layout(frame: &[u8]) -> Layout {
    match classify(frame) {
        Class::Roce(layout) => layout,
        other => panic!("{other:?}"),
    }
}

/// Measures a new address pair, QPN and PSN, with updated checksums. The goal is at most 8 ns, both at 64 B
/// and at 4 KB.
fn rewrite(c: &mut Criterion) {
    let mut group = c.benchmark_group("rewrite addresses, QPN, PSN");
    for payload in PAYLOADS {
        let mut frame = bench::traffic::write_only(1, payload);
        let layout = layout(&frame);
        let mut n = 0u32;
        group.bench_function(BenchmarkId::from_parameter(payload), |b| {
            b.iter(|| {
                n = n.wrapping_add(0x9e37_79b9);
                let mut rewriter = Rewriter::new(black_box(&mut frame), layout);
                _ = rewriter.set_ipv4_addresses(n.to_be_bytes(), (!n).to_be_bytes());
                rewriter.set_dest_qp(Qpn::new(n));
                rewriter.set_psn(Psn::new(n >> 3));
                rewriter.finish();
            });
        });
        assert!(Packet::new(&frame, layout).verify_icrc());
    }
    group.finish();
    let mut group = c.benchmark_group("incremental ICRC alone, 4 words");
    for payload in PAYLOADS {
        let mut n = 0u32;
        group.bench_function(BenchmarkId::from_parameter(payload), |b| {
            b.iter(|| {
                n = n.wrapping_add(0x9e37_79b9);
                let mut changes = icrc::Changes::new();
                for follow in [payload + 48, payload + 44, payload + 28, payload + 24] {
                    changes.add_word(black_box(n), follow);
                }
                changes.effect()
            });
        });
    }
    group.finish();
}

fn whole_icrc(c: &mut Criterion) {
    let mut group = c.benchmark_group("whole ICRC");
    for payload in PAYLOADS {
        let frame = bench::traffic::write_only(1, payload);
        let layout = layout(&frame);
        group.throughput(Throughput::Bytes(frame.len() as u64));
        group.bench_function(BenchmarkId::from_parameter(payload), |b| {
            b.iter(|| icrc::compute(black_box(&frame), &layout));
        });
    }
    group.finish();
}

/// Measures parsing and counting, on 1,024 queue pairs in turn.
fn forward(c: &mut Criterion) {
    let mut group = c.benchmark_group("forward");
    for (name, counted_qps, verify_icrc) in
        [("plain", 0, false), ("QPs counted", 1024, false), ("ICRC verified", 0, true)]
    {
        for payload in [64, 1024] {
            let config = Config {
                ports: 2,
                mode: ForwardingMode::Pairs(vec![(PortId(0), PortId(1))]),
                drop: FaultSet::NONE,
                verify_icrc,
                verify_udp_checksum: false,
                counted_qps,
                health: false,
            };
            let mut function = Forward::new(&config);
            let mut frames: Vec<_> =
                (0..1024).map(|n| MemoryFrame::new(bench::traffic::write_only(n, payload))).collect();
            let mut out = FrameCollector::with_room(0);
            let mut n = 0;
            group.bench_function(BenchmarkId::new(name, payload), |b| {
                b.iter(|| {
                    n = (n + 1) % frames.len();
                    function.on_frame(&mut frames[n], PortId(0), Nanos::ZERO, &mut out)
                });
            });
        }
    }
    group.finish();
}

/// Measures the whole table, including malformed packets. No row may cost much more than the others.
fn table(c: &mut Criterion) {
    let config = Config {
        ports: 2,
        mode: ForwardingMode::Pairs(vec![(PortId(0), PortId(1))]),
        drop: FaultSet::ALL,
        verify_icrc: true,
        verify_udp_checksum: false,
        counted_qps: 8,
        health: true,
    };
    let mut function = Forward::new(&config);
    let mut frames: Vec<_> =
        understudy_tests::packets::table().into_iter().map(|row| MemoryFrame::new(row.frame)).collect();
    let mut out = FrameCollector::with_room(0);
    let mut group = c.benchmark_group("table of packets");
    group.throughput(Throughput::Elements(frames.len() as u64));
    group.bench_function("ICRC verified", |b| {
        b.iter(|| {
            for frame in &mut frames {
                black_box(function.on_frame(frame, PortId(0), Nanos::ZERO, &mut out));
            }
        });
    });
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(std::time::Duration::from_millis(300)).measurement_time(std::time::Duration::from_secs(1));
    targets = rewrite, whole_icrc, forward, table
}
criterion_main!(benches);
