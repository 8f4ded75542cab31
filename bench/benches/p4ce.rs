//! Cost of scattering and gathering per packet, without DPDK.

#![allow(missing_docs, reason = "criterion's macros")]

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use p4ce::{Command, Config, Group, P4ce};
use rocev2::ethernet::MacAddr;
use switch::memory::{FrameCollector, MemoryFrame, run_frame};
use switch::{Function as _, Nanos, PortId};

fn function(groups: u32, replicas: u32) -> P4ce {
    let mut function = P4ce::new(Config {
        forward: switch::forward::Config::bridge(1, 16),
        mac: MacAddr([2, 0, 0, 0, 0, 1]),
        addresses: vec![[198, 18, 0, 1].into()],
        groups: 1024,
        queue_pairs: 32768,
        workers: 1,
        silent_after: Nanos::ZERO,
        bug: None,
    });
    for (n, group) in (0..).zip(bench::p4ce::groups(groups, replicas, 1)) {
        function.on_command(Command::Open(Group::new(group).expect("a valid group")), Nanos::ZERO);
        function.poll_event();
        run_frame(&mut function, &bench::traffic::write_only(n, 64), PortId(0), Nanos::ZERO);
    }
    function
}

/// Measures a WRITE to one replica. The frame is restored before each, which adds the cost of a copy.
fn scatter(c: &mut Criterion) {
    let mut group = c.benchmark_group("p4ce: WRITE to one replica");
    group.throughput(Throughput::Elements(1));
    for payload in [64, 1024] {
        let mut function = function(1024, 1);
        let frames: Vec<_> = (0..1024).map(|n| bench::traffic::write_only(n, payload)).collect();
        let mut frame = MemoryFrame::new(frames[0].clone());
        let mut out = FrameCollector::with_room(0);
        let mut n = 0;
        group.bench_function(BenchmarkId::from_parameter(payload), |b| {
            b.iter(|| {
                n = (n + 1) % frames.len();
                switch::Frame::bytes_mut(&mut frame).copy_from_slice(&frames[n]);
                function.on_frame(&mut frame, PortId(0), Nanos::ZERO, &mut out)
            });
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(std::time::Duration::from_millis(300)).measurement_time(std::time::Duration::from_secs(1));
    targets = scatter
}
criterion_main!(benches);
