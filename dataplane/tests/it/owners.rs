//! Frames that a worker receives and another owns.

use crate::common::{Ticks, UntilIdle, config, play, port};
use core::sync::atomic::{AtomicU64, Ordering};
use dataplane::config::Device;
use dataplane::{NoControl, Outcome, Runtime, Stop};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use switch::{DropReason, Frame, Function, Nanos, Output, PortId, Verdict};
use understudy_tests::alone;
use understudy_tests::captures::{frames, write};

/// Number of ports that frames come from; the next one is where they go
const SOURCES: u16 = 3;

/// Forwards each frame to the last port. A frame has the number of its source port, its owner, and its position.
struct Owned {
    worker: usize,
    /// Frames that another worker should have got, or whose port is wrong
    misplaced: Arc<AtomicU64>,
}

impl Function for Owned {
    type Command = ();
    type Event = ();
    const HAS_OWNERS: bool = true;

    fn owner(&self, frame: &impl Frame, _port: PortId) -> Option<usize> {
        // Frames of one kind have no owner.
        Some(usize::from(frame.bytes()[1])).filter(|owner| *owner < 9)
    }

    fn on_frame<O: Output>(
        &mut self,
        frame: &mut O::Frame,
        port: PortId,
        _now: Nanos,
        _out: &mut O,
    ) -> Verdict {
        let is_misplaced = |owner| owner != self.worker || u16::from(frame.bytes()[0]) != port.0;
        if self.owner(frame, port).is_some_and(is_misplaced) {
            self.misplaced.fetch_add(1, Ordering::Relaxed);
        }
        Verdict::Forward(PortId(SOURCES))
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

/// Returns `count` frames of a source, for owners 0, 1, 2 and none in turn.
fn frames_of(source: u16, count: u32) -> Vec<Vec<u8>> {
    let frame = |at: u32| {
        let owner = [0, 1, 2, 9][at as usize % 4];
        let mut frame = vec![0; 60 + at as usize % 200];
        frame[..2].copy_from_slice(&[source as u8, owner]);
        frame[2..6].copy_from_slice(&at.to_be_bytes());
        frame
    };
    (0..count).map(frame).collect()
}

fn functions(count: usize, misplaced: &Arc<AtomicU64>) -> Vec<Owned> {
    (0..count).map(|worker| Owned { worker, misplaced: Arc::clone(misplaced) }).collect()
}

fn sum(outcome: &Outcome, count: impl Fn(&dataplane::counters::WorkerCounters) -> u64) -> u64 {
    outcome.workers.iter().map(|worker| count(worker)).sum()
}

/// Returns the positions of a source's frames for one owner, in the order of a capture.
fn positions(of: &[Vec<u8>], source: u16, owner: u8) -> Vec<u32> {
    let is_from = |frame: &&Vec<u8>| frame[..2] == [source as u8, owner];
    let position = |frame: &Vec<u8>| u32::from_be_bytes(frame[2..6].try_into().unwrap());
    of.iter().filter(is_from).map(position).collect()
}

/// Starts three workers, each with a source that plays one of `files`.
fn start(files: &[&Path], output: &Path, ring: usize) -> Runtime {
    let mut ports: Vec<_> = files.iter().map(|file| port("in", play(file, None))).collect();
    ports.push(port("out", Device::Pcap { rx: vec![], tx: Some(output.into()), infinite: false }));
    let mut config = config(ports, 3);
    config.workers.handoff_ring = ring;
    Runtime::start(config).unwrap()
}

#[test]
fn each_frame_gets_to_its_owner_in_the_order_of_its_queue() {
    alone!();
    let dir = tempfile::tempdir().unwrap();
    let output = dir.path().join("out.pcap");
    let inputs: Vec<_> = (0..SOURCES).map(|source| dir.path().join(format!("{source}.pcap"))).collect();
    // Fewer than a ring holds, so that none is lost however long a worker waits for a CPU
    let sent: Vec<_> = (0..SOURCES).map(|source| frames_of(source, 1_000)).collect();
    inputs.iter().zip(&sent).for_each(|(file, frames)| write(file, frames));
    let files: Vec<_> = inputs.iter().map(PathBuf::as_path).collect();
    let mut runtime = start(&files, &output, 4096);
    let misplaced = Arc::default();
    let outcome = runtime.run(functions(3, &misplaced), &mut UntilIdle::new(NoControl), &Stop::new());
    drop(runtime);
    assert_eq!(misplaced.load(Ordering::Relaxed), 0);
    // Two thirds of the three quarters that have owners
    assert_eq!(sum(&outcome, |w| w.dispatched.get()), 3 * 500);
    let received = frames(&output);
    assert_eq!(received.len(), 3_000);
    for (source, sent) in (0..SOURCES).zip(&sent) {
        for owner in [0, 1, 2, 9] {
            assert_eq!(positions(&received, source, owner), positions(sent, source, owner));
        }
        let lengths: usize = sent.iter().map(Vec::len).sum();
        let counted = outcome.workers.iter().map(|w| w.ports[usize::from(source)].rx.get());
        let total = counted.fold((0, 0), |(frames, bytes), (f, b)| (frames + f, bytes + b));
        assert_eq!(total, (1_000, lengths as u64));
    }
}

#[test]
fn a_full_ring_to_an_owner_drops_and_counts() {
    alone!();
    let dir = tempfile::tempdir().unwrap();
    let output = dir.path().join("out.pcap");
    let source = || port("source", Device::Null { size: 64, copy: true });
    let mut ports: Vec<_> = (0..SOURCES).map(|_| source()).collect();
    ports.push(port("out", Device::Pcap { rx: vec![], tx: Some(output.clone()), infinite: false }));
    let mut config = config(ports, 3);
    config.workers.handoff_ring = 2;
    let mut runtime = Runtime::start(config).unwrap();
    // All frames are zero: the first worker owns them.
    let outcome = runtime.run(functions(3, &Arc::default()), &mut Ticks(50), &Stop::new());
    drop(runtime);
    let input_full = sum(&outcome, |w| w.drops[DropReason::InputFull.index()].get());
    assert!(input_full > 0 && sum(&outcome, |w| w.dispatched.get()) > 0);
    let dropped = sum(&outcome, |w| w.drops.iter().map(switch::counters::Counter::get).sum());
    let received: u64 = outcome.workers.iter().map(|w| w.received()).sum();
    assert_eq!(received, sum(&outcome, |w| w.ports[3].tx.frames.get()) + dropped);
    assert_eq!(frames(&output).len() as u64, sum(&outcome, |w| w.ports[3].tx.frames.get()));
}
