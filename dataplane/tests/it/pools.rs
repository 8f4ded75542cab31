//! Buffers return to their pool: the next run finds all of them there.

use crate::common::{capture, config, play, port};
use dataplane::config::{Device, Port};
use dataplane::{ControlHandler, ControlOutput, Live, Mbuf, NoControl, Runtime, Stop};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use switch::{DropReason, Function, Nanos, Output, PortId, Verdict};
use understudy_tests::alone;
use understudy_tests::captures::frames;

const BUFFERS: u32 = 2047;

/// What a worker does in its first iteration.
#[derive(Clone, Copy)]
enum First {
    Nothing,
    /// Allocates a frame, and drops it
    MakesOne,
    /// Sends frames, fewer than are offered to the port before the end of the iteration, and panics
    SendsAndPanics,
    /// Allocates frames until the pool is empty, and drops them
    TakesAll,
}

/// Alternately drops and consumes received frames.
struct DropOrConsume {
    first: Option<First>,
    received: u64,
    /// Number of frames that the first iteration allocated
    made: Arc<AtomicUsize>,
}

impl Function for DropOrConsume {
    type Command = ();
    type Event = ();

    fn on_frame<O: Output>(&mut self, _: &mut O::Frame, _: PortId, _: Nanos, _: &mut O) -> Verdict {
        self.received += 1;
        if self.received.is_multiple_of(2) { Verdict::Consume } else { Verdict::Drop(DropReason::SamePort) }
    }

    fn on_timer<O: Output>(&mut self, _: Nanos, out: &mut O) {
        let count = match self.first.take() {
            None | Some(First::Nothing) => 0,
            Some(First::MakesOne) => core::iter::from_fn(|| out.make_from(&[0; 64]).ok()).take(1).count(),
            Some(First::SendsAndPanics) => {
                for _ in 0..20 {
                    let frame = out.make_from(&[0; 64]).expect("a buffer");
                    out.send(frame, PortId(0)).expect("room");
                }
                panic!("a bug in a function");
            }
            Some(First::TakesAll) => {
                let all: Vec<_> = core::iter::from_fn(|| out.make_from(&[0; 64]).ok()).collect();
                all.len()
            }
        };
        self.made.store(count, Ordering::SeqCst);
    }

    fn next_timer(&self) -> Option<Nanos> {
        self.first.map(|_| Nanos::ZERO)
    }

    fn on_command(&mut self, (): (), _: Nanos) {}

    fn poll_event(&mut self) -> Option<()> {
        None
    }
}

/// Ends the run when the first iteration is over and a number of frames has been received.
struct Until {
    made: Arc<AtomicUsize>,
    frames: u64,
}

impl ControlHandler<DropOrConsume> for Until {
    fn on_event(&mut self, _: usize, (): (), _: &mut ControlOutput<'_, DropOrConsume>) {}

    fn on_punt(&mut self, _: usize, _: Mbuf, _: PortId, _: &mut ControlOutput<'_, DropOrConsume>) {}

    fn on_tick(&mut self, live: &Live<'_>, _: &mut ControlOutput<'_, DropOrConsume>) -> bool {
        self.made.load(Ordering::SeqCst) == NOT_YET || live.workers()[0].received() < self.frames
    }
}

const NOT_YET: usize = usize::MAX;

/// Runs until a number of frames has been received. Returns the number of frames that the first iteration
/// allocated.
fn run(runtime: &mut Runtime, first: First, frames: usize) -> usize {
    let made = Arc::new(AtomicUsize::new(NOT_YET));
    let function = DropOrConsume { first: Some(first), received: 0, made: Arc::clone(&made) };
    let mut until = Until { made: Arc::clone(&made), frames: frames as u64 };
    runtime.run(vec![function], &mut until, &Stop::new());
    made.load(Ordering::SeqCst)
}

/// Starts a port with exactly `BUFFERS` buffers.
fn start(device: Device) -> Runtime {
    Runtime::start(config(vec![Port { buffers: BUFFERS, ..port("port", device) }], 1)).unwrap()
}

fn assert_all_are_there(runtime: &mut Runtime) {
    assert_eq!(run(runtime, First::TakesAll, 0), BUFFERS as usize);
}

#[test]
fn dropped_and_consumed_frames_return_to_the_pool() {
    alone!();
    let input = capture("rc_write_loss.pcap");
    let mut runtime = start(play(&input, None));
    run(&mut runtime, First::Nothing, frames(&input).len());
    assert_all_are_there(&mut runtime);
}

#[test]
fn cached_buffers_return_to_the_pool_when_a_worker_ends() {
    alone!();
    let mut runtime = start(Device::Ring);
    assert_eq!(run(&mut runtime, First::MakesOne, 0), 1);
    assert_all_are_there(&mut runtime);
}

#[test]
fn waiting_frames_return_to_the_pool_when_a_worker_panics() {
    alone!();
    let mut runtime = start(Device::Ring);
    let made = Arc::new(AtomicUsize::new(NOT_YET));
    let panics = DropOrConsume { first: Some(First::SendsAndPanics), received: 0, made };
    let run = std::panic::AssertUnwindSafe(|| runtime.run(vec![panics], &mut NoControl, &Stop::new()));
    assert!(std::panic::catch_unwind(run).is_err());
    assert_all_are_there(&mut runtime);
}
