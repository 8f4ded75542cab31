//! Health of queue pairs in the repository's captures, against what is known of them.

use switch::forward::config::Topology;
use switch::forward::counters::QpCounter;
use switch::forward::{Config, Forward};
use switch::memory::run_frame;
use switch::metrics::Metrics as _;
use switch::{Nanos, PortId};
use understudy_tests::captures;

/// Returns a wire that observes `queue_pairs` queue pairs.
fn wire(queue_pairs: usize) -> Forward {
    let topology = Topology::Pairs(vec![(PortId(0), PortId(1))]);
    Forward::new(&Config { ports: 2, topology, counted_qps: queue_pairs, health: true, ..Config::bridge(2, 1) })
}

/// Plays a capture at its times. Returns the wire.
fn play(name: &str, queue_pairs: usize) -> Forward {
    let mut wire = wire(queue_pairs);
    for (frame, at) in captures::timed_frames(&captures::path(name)) {
        run_frame(&mut wire, &frame, PortId(0), Nanos(at));
    }
    wire
}

/// Returns the values of a queue pair that are not zero, without packets, bytes and times.
fn nonzero(qp: &QpCounter<'_>) -> Vec<(&'static str, u64)> {
    let shown = |name: &str| !["frames", "bytes", "rtt_ns", "rtt_max_ns"].contains(&name);
    qp.reported().filter(|(name, value)| *value > 0 && shown(name)).collect()
}

/// Captures of connections with faults: what is known of each queue pair, and of no other. `tshark` and
/// `understudy diagnose` show the same packets.
#[test]
fn captures_have_the_known_faults() {
    for name in captures::all() {
        let name = name.file_name().unwrap().to_str().unwrap().to_owned();
        let wire = play(&name, 64);
        let counters = wire.counters();
        for qp in counters.qps.iter() {
            println!("{name} {}:{} {:?}", qp.host, qp.qpn, nonzero(&qp));
        }
    }
}
