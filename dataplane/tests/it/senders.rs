//! Functions whose ports have senders: frames for another worker's port go to that worker, which handles them before it
//! adopts what was published behind them.

use crate::common::{UntilIdle, config, play, port};
use core::sync::atomic::{AtomicU64, Ordering};
use dataplane::config::Device;
use dataplane::{NoControl, Runtime, Stop};
use std::path::PathBuf;
use std::sync::Arc;
use switch::{Frame, Function, Nanos, Output, PortId, Verdict};
use understudy_tests::alone;
use understudy_tests::captures::{frames, write};

const WORKERS: usize = 2;
/// Frames of each source: fewer than a ring holds, so that none is lost however long a worker waits for a CPU
const FRAMES: u32 = 1_000;

/// What the workers share.
#[derive(Default)]
struct Shared {
    /// Number of the next frame of each worker's source
    published: [AtomicU64; WORKERS],
    /// Frames that were handled below what was adopted
    overtaken: AtomicU64,
    /// Frames and calls at the wrong worker
    misplaced: AtomicU64,
    /// Greatest sum of what a worker has adopted
    adopted: AtomicU64,
}

/// Ports 0 and 1 are sources, 2 and 3 are where frames go: in turns to a port of the same worker, and of the other.
struct Ordered {
    worker: usize,
    next: u64,
    snapshot: [u64; WORKERS],
    adopted: [u64; WORKERS],
    shared: Arc<Shared>,
}

fn number(frame: &[u8]) -> u64 {
    u64::from(u32::from_be_bytes(frame[2..6].try_into().unwrap()))
}

impl Function for Ordered {
    type Command = ();
    type Event = ();
    const HAS_SENDERS: bool = true;

    fn receiver(&self, port: PortId) -> usize {
        port.index() % WORKERS
    }

    fn sender(&self, port: PortId) -> usize {
        port.index() % WORKERS
    }

    fn on_handoff(&mut self, frame: &mut impl Frame, port: PortId, _now: Nanos) {
        let (source, at) = (usize::from(frame.bytes()[0]), number(frame.bytes()));
        self.shared.overtaken.fetch_add(u64::from(at < self.adopted[source]), Ordering::Relaxed);
        let is_misplaced = self.sender(port) != self.worker || source == self.worker;
        self.shared.misplaced.fetch_add(u64::from(is_misplaced), Ordering::Relaxed);
        frame.bytes_mut()[1] = 1;
    }

    fn publish(&mut self) -> bool {
        self.shared.published[self.worker].store(self.next, Ordering::Release);
        true
    }

    fn snapshot(&mut self) {
        self.snapshot = self.shared.published.each_ref().map(|published| published.load(Ordering::Acquire));
    }

    fn adopt(&mut self, _now: Nanos) {
        self.adopted = self.snapshot;
        self.shared.adopted.fetch_max(self.adopted.iter().sum(), Ordering::Relaxed);
    }

    fn on_frame<O: Output>(
        &mut self,
        frame: &mut O::Frame,
        port: PortId,
        _now: Nanos,
        _out: &mut O,
    ) -> Verdict {
        self.shared.misplaced.fetch_add(u64::from(port.index() != self.worker), Ordering::Relaxed);
        let at = number(frame.bytes());
        self.next = at + 1;
        Verdict::Forward(PortId(2 + (at % 2) as u16))
    }

    fn on_timer<O: Output>(&mut self, _now: Nanos, _out: &mut O) {}

    fn next_timer(&self) -> Option<Nanos> {
        None
    }

    fn on_command(&mut self, (): (), _now: Nanos) {}

    fn poll_event(&mut self) -> Option<()> {
        None
    }
}

/// Returns the frames of a source, with their numbers.
fn frames_of(source: u8) -> Vec<Vec<u8>> {
    let frame = |at: u32| {
        let mut frame = vec![0; 60 + at as usize % 200];
        frame[0] = source;
        frame[2..6].copy_from_slice(&at.to_be_bytes());
        frame
    };
    (0..FRAMES).map(frame).collect()
}

#[test]
fn frames_for_another_workers_port_are_handled_before_what_is_published_behind_them() {
    alone!();
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let (inputs, outputs): (Vec<PathBuf>, Vec<PathBuf>) =
        [("0", "2"), ("1", "3")].map(|(input, output)| (path(input), path(output))).into_iter().unzip();
    inputs.iter().zip(0..).for_each(|(file, source)| write(file, &frames_of(source)));
    let sources = inputs.iter().map(|file| port("in", play(file, None)));
    let record = |file: &PathBuf| Device::Pcap { rx: vec![], tx: Some(file.clone()), infinite: false };
    let ports = sources.chain(outputs.iter().map(|file| port("out", record(file)))).collect();
    let mut config = config(ports, WORKERS);
    config.workers.handoff_ring = 2048;
    let mut runtime = Runtime::start(config).unwrap();
    let shared = Arc::<Shared>::default();
    let function = |worker| Ordered {
        worker,
        next: 0,
        snapshot: [0; WORKERS],
        adopted: [0; WORKERS],
        shared: Arc::clone(&shared),
    };
    let functions = (0..WORKERS).map(function).collect();
    let outcome = runtime.run(functions, &mut UntilIdle::new(NoControl), &Stop::new());
    drop(runtime);
    assert_eq!(shared.overtaken.load(Ordering::Relaxed), 0);
    assert_eq!(shared.misplaced.load(Ordering::Relaxed), 0);
    assert_eq!(shared.adopted.load(Ordering::Relaxed), WORKERS as u64 * u64::from(FRAMES));
    let handed: u64 = outcome.workers.iter().map(|worker| worker.handed_off.get()).sum();
    assert_eq!(handed, u64::from(FRAMES));
    for (output, port) in outputs.iter().zip(0u64..) {
        let received = frames(output);
        assert_eq!(received.len(), FRAMES as usize);
        for source in 0..WORKERS {
            let of = received.iter().filter(|frame| usize::from(frame[0]) == source);
            // Those of the other worker's source were handed over.
            assert!(of.clone().all(|frame| usize::from(frame[1]) == usize::from(source as u64 != port)));
            let numbers: Vec<u64> = of.map(|frame| number(frame)).collect();
            let sent: Vec<u64> = (0..u64::from(FRAMES)).filter(|at| at % 2 == port).collect();
            assert_eq!(numbers, sent, "source {source} at port {}", 2 + port);
        }
    }
}
