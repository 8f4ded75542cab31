//! When a worker sleeps, and when it does not.

use crate::common::{config, port};
use dataplane::config::{Device, Idle};
use dataplane::{ControlHandler, ControlOutput, Live, Mbuf, Runtime, Stop};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use switch::{Function, Nanos, Output, PortId, Verdict};
use understudy_tests::alone;

/// Returns the number of the calling thread's voluntary context switches.
fn sleeps() -> u64 {
    // SAFETY: the call fills in the structure, for which all-zero is valid.
    let usage = unsafe {
        let mut usage: libc::rusage = core::mem::zeroed();
        assert_eq!(libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage), 0);
        usage
    };
    usage.ru_nvcsw as u64
}

/// Counts of what a worker has done.
#[derive(Default)]
struct Done {
    /// Timers that have fired
    timers: AtomicU64,
    /// Sleeps between the first and the last timer
    sleeps: AtomicU64,
}

/// Consumes all frames. Arms a timer, and sends nothing when it fires.
struct Waits {
    timer: Option<Nanos>,
    /// Whether each frame arms the timer, to fire immediately; if not, each expiry does
    by_frames: bool,
    first: Option<u64>,
    done: Arc<Done>,
}

impl Function for Waits {
    type Command = ();
    type Event = ();

    fn receives_from(&self, _: PortId) -> bool {
        self.by_frames
    }

    fn on_frame<O: Output>(&mut self, _: &mut O::Frame, _: PortId, now: Nanos, _: &mut O) -> Verdict {
        self.timer = Some(now);
        Verdict::Consume
    }

    fn on_timer<O: Output>(&mut self, now: Nanos, _: &mut O) {
        // Less than the 50 us for which a worker with work stays awake
        self.timer = (!self.by_frames).then_some(now + Nanos::from_micros(40));
        let sleeps = sleeps();
        let first = *self.first.get_or_insert(sleeps);
        self.done.sleeps.store(sleeps - first, Ordering::SeqCst);
        self.done.timers.fetch_add(1, Ordering::SeqCst);
    }

    fn next_timer(&self) -> Option<Nanos> {
        self.timer
    }

    fn on_command(&mut self, (): (), _: Nanos) {}

    fn poll_event(&mut self) -> Option<()> {
        None
    }
}

/// Ends the run after a number of timers, or of sleeps.
struct Until {
    timers: u64,
    sleeps: u64,
    done: Arc<Done>,
}

impl ControlHandler<Waits> for Until {
    fn on_event(&mut self, _: usize, (): (), _: &mut ControlOutput<'_, Waits>) {}

    fn on_punt(&mut self, _: usize, _: Mbuf, _: PortId, _: &mut ControlOutput<'_, Waits>) {}

    fn on_tick(&mut self, _: &Live<'_>, _: &mut ControlOutput<'_, Waits>) -> bool {
        self.done.timers.load(Ordering::SeqCst) < self.timers
            && self.done.sleeps.load(Ordering::SeqCst) < self.sleeps
    }
}

/// Returns the numbers of timers and of sleeps when one of the limits was reached.
fn run(by_frames: bool, timers: u64, sleeps: u64) -> (u64, u64) {
    let mut config = config(vec![port("in", Device::Null { size: 64, copy: false })], 1);
    config.workers.idle = Idle::Sleep;
    let mut runtime = Runtime::start(config).unwrap();
    let done = Arc::<Done>::default();
    let waits = Waits { timer: Some(Nanos::ZERO), by_frames, first: None, done: Arc::clone(&done) };
    runtime.run(vec![waits], &mut Until { timers, sleeps, done: Arc::clone(&done) }, &Stop::new());
    (done.timers.load(Ordering::SeqCst), done.sleeps.load(Ordering::SeqCst))
}

#[test]
fn worker_that_receives_in_every_iteration_does_not_sleep() {
    alone!();
    let (timers, sleeps) = run(true, 2_000, 1_000);
    assert!(timers >= 2_000 && sleeps < 1_000, "{sleeps} sleeps in {timers} iterations");
}

#[test]
fn timers_that_send_nothing_do_not_keep_a_worker_awake() {
    alone!();
    // However busy the machine is, a worker sleeps between some of them.
    let (timers, sleeps) = run(false, 100_000, 100);
    assert!(sleeps >= 100, "{sleeps} sleeps in {timers} timers");
}
