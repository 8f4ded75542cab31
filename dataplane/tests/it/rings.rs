//! Rings: what any worker sends is received, by the same worker if the ring has a queue for each.

use crate::common::{UntilIdle, config, port};
use core::sync::atomic::{AtomicU64, Ordering};
use dataplane::config::Device;
use dataplane::{NoControl, Runtime, Stop};
use std::sync::Arc;
use switch::{Frame, Function, Nanos, Output, PortId, Verdict};
use understudy_tests::alone;

const WORKERS: usize = 2;
/// Frames of each worker: fewer than a ring holds
const FRAMES: u64 = 300;

/// Sends frames to the ring and counts those that return, by the worker that sent them.
struct Loop {
    worker: usize,
    unsent: u64,
    returned: Arc<[[AtomicU64; WORKERS]; WORKERS]>,
}

impl Function for Loop {
    type Command = ();
    type Event = ();

    fn on_frame<O: Output>(
        &mut self,
        frame: &mut O::Frame,
        _port: PortId,
        _now: Nanos,
        _out: &mut O,
    ) -> Verdict {
        self.returned[self.worker][usize::from(frame.bytes()[0])].fetch_add(1, Ordering::Relaxed);
        Verdict::Consume
    }

    fn on_timer<O: Output>(&mut self, _now: Nanos, out: &mut O) {
        self.unsent -= 1;
        let frame = out.make_from(&[self.worker as u8; 60]).expect("a buffer");
        out.send(frame, PortId(1)).expect("room");
    }

    fn next_timer(&self) -> Option<Nanos> {
        (self.unsent > 0).then_some(Nanos::ZERO)
    }

    fn on_command(&mut self, (): (), _now: Nanos) {}

    fn poll_event(&mut self) -> Option<()> {
        None
    }
}

/// Runs two workers with a ring of this number of receive queues, behind a port with one queue. Returns the frames that
/// returned to each worker, by the worker that sent them.
fn returned(rx_queues: u16) -> [[u64; WORKERS]; WORKERS] {
    let ring = dataplane::config::Port { rx_queues, ..port("loop", Device::Ring) };
    let first = port("first", Device::Ring);
    let mut runtime = Runtime::start(config(vec![first, ring], WORKERS)).unwrap();
    let returned = Arc::<[[AtomicU64; WORKERS]; WORKERS]>::default();
    let function = |worker| Loop { worker, unsent: FRAMES, returned: Arc::clone(&returned) };
    let functions = (0..WORKERS).map(function).collect();
    runtime.run(functions, &mut UntilIdle::new(NoControl), &Stop::new());
    returned.each_ref().map(|of_worker| of_worker.each_ref().map(|count| count.load(Ordering::Relaxed)))
}

#[test]
fn a_ring_of_one_queue_returns_what_all_workers_send() {
    alone!();
    let returned = returned(0);
    assert_eq!(
        (0..WORKERS).map(|from| returned[0][from] + returned[1][from]).collect::<Vec<_>>(),
        [FRAMES; 2]
    );
}

/// The port before has one queue, which worker 0 polls.
#[test]
fn a_ring_with_a_queue_for_each_worker_returns_what_the_same_worker_sends() {
    alone!();
    assert_eq!(returned(2), [[FRAMES, 0], [0, FRAMES]]);
}
