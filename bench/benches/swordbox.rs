//! Cost of sharing connections and of resolving atomics per packet, without DPDK.

#![allow(missing_docs, reason = "criterion's macros")]

use bench::swordbox::load::{Load, Verb};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use switch::memory::{FrameCollector, MemoryFrame};
use switch::{Frame as _, Function as _, Nanos, PortId};

const LOAD: Load = Load { verb: Verb::Cas, connections: 1024, requests: 1, lines: 64, covered: 1 };

/// Measures a frame of the traffic, request or acknowledgement. The frame is restored before each, which adds
/// the cost of a copy.
fn frames(c: &mut Criterion) {
    let mut group = c.benchmark_group("swordbox: a frame");
    group.throughput(Throughput::Elements(1));
    let loads = [
        ("CAS", LOAD),
        ("WRITE", Load { verb: Verb::Write, ..LOAD }),
        ("CAS, 65,536 clients", Load { connections: 65_536, lines: 256, ..LOAD }),
    ];
    for (name, load) in loads {
        let (frames, mut replay) = load.make();
        let mut frame = MemoryFrame::new(vec![]);
        let mut out = FrameCollector::with_room(0);
        let mut n = 0;
        group.bench_function(BenchmarkId::from_parameter(name), |b| {
            b.iter(|| {
                frame.resize(frames[n].len()).expect("vectors grow");
                frame.bytes_mut().copy_from_slice(&frames[n]);
                n = (n + 1) % frames.len();
                replay.on_frame(&mut frame, PortId(0), Nanos::ZERO, &mut out)
            });
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(std::time::Duration::from_millis(300)).measurement_time(std::time::Duration::from_secs(1));
    targets = frames
}
criterion_main!(benches);
