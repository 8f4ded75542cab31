//! A switch of the network, with any switch function.

use crate::node::{Node, Ports};
use crate::workers::{InputRings, Workers};
use std::collections::VecDeque;
use switch::memory::MemoryFrame;
use switch::{DropReason, Frame, Full, Function, Nanos, Output, PortId, Verdict};

/// A switch function on one or several workers, with counters of its verdicts.
pub struct Switch<F: Function> {
    make: Box<dyn FnMut(usize) -> F + Send>,
    /// The function's instance on each worker; replaced by new ones after a crash
    pub functions: Vec<F>,
    rings: InputRings,
    /// Frames by verdict
    pub counters: Counters,
    /// Frames for the control plane
    pub punted: VecDeque<(MemoryFrame, PortId)>,
    /// Events for the control plane
    pub events: VecDeque<F::Event>,
    /// Commands by worker
    commands: Vec<VecDeque<F::Command>>,
    /// When the timer was last polled
    polled: Nanos,
}

/// Time between two turns of a polling worker. A function whose timer stays due because it waits for room at
/// a port is polled again after this time.
const POLL_INTERVAL: Nanos = Nanos(200);

/// Counters of a switch, in frames.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Counters {
    /// Frames received
    pub received: u64,
    /// Frames dispatched to the worker that owns them
    pub dispatched: u64,
    /// Frames forwarded
    pub forwarded: u64,
    /// Frames consumed by the function
    pub consumed: u64,
    /// Frames punted to the control plane
    pub punted: u64,
    /// Frames dropped, by [`DropReason::index`]
    pub dropped: Vec<u64>,
}

impl<F: Function> Switch<F> {
    /// Creates a switch with one worker. `make` creates its function: once at the beginning, and once after each crash.
    pub fn new(mut make: impl FnMut() -> F + Send + 'static) -> Self {
        Self::with_workers(Workers::ONE, move |_| make())
    }

    /// Creates a switch. `make` creates the function's instance on the worker with the given number: once at the
    /// beginning, and once after each crash.
    pub fn with_workers(workers: Workers, mut make: impl FnMut(usize) -> F + Send + 'static) -> Self {
        Self {
            functions: (0..workers.count).map(&mut make).collect(),
            make: Box::new(make),
            rings: InputRings::new(workers),
            counters: Counters { dropped: vec![0; DropReason::COUNT], ..Counters::default() },
            punted: VecDeque::new(),
            events: VecDeque::new(),
            commands: (0..workers.count).map(|_| VecDeque::new()).collect(),
            polled: Nanos::ZERO,
        }
    }

    /// Queues a command of the control plane; the function's instance on `worker` gets it before its next frame or
    /// timer.
    pub fn command(&mut self, worker: usize, command: F::Command) {
        self.commands[worker].push_back(command);
    }

    fn apply_commands(&mut self, worker: usize, now: Nanos) {
        while let Some(command) = self.commands[worker].pop_front() {
            self.functions[worker].on_command(command, now);
        }
    }

    fn collect_events(&mut self, worker: usize) {
        while let Some(event) = self.functions[worker].poll_event() {
            self.events.push_back(event);
        }
    }

    /// Has a worker handle a frame.
    fn handle(
        &mut self,
        worker: usize,
        mut frame: MemoryFrame,
        port: PortId,
        now: Nanos,
        out: &mut Ports<'_>,
    ) {
        self.apply_commands(worker, now);
        match self.functions[worker].on_frame(&mut frame, port, now, out) {
            Verdict::Forward(to) => match out.send(frame, to) {
                Ok(()) => self.counters.forwarded += 1,
                Err(Full) => self.counters.dropped[DropReason::PortFull.index()] += 1,
            },
            Verdict::Drop(reason) => self.counters.dropped[reason.index()] += 1,
            Verdict::Punt => {
                self.counters.punted += 1;
                self.punted.push_back((frame, port));
            }
            Verdict::Consume => self.counters.consumed += 1,
        }
        self.collect_events(worker);
    }
}

impl<F: Function + Send + 'static> Node for Switch<F>
where
    F::Event: 'static,
    F::Command: 'static,
{
    fn on_frame(&mut self, frame: MemoryFrame, port: PortId, now: Nanos, out: &mut Ports<'_>) {
        self.counters.received += 1;
        let receiver = self.rings.receiver(frame.bytes(), port);
        let owner = if F::HAS_OWNERS { self.functions[receiver].owner(&frame, port) } else { None };
        let owner = owner.unwrap_or(receiver);
        if self.rings.is_direct(receiver, owner, now) {
            return self.handle(owner, frame, port, now, out);
        }
        match self.rings.push((receiver, owner), frame, port, now) {
            Ok(()) => self.counters.dispatched += u64::from(owner != receiver),
            Err(Full) => self.counters.dropped[DropReason::InputFull.index()] += 1,
        }
    }

    fn on_timer(&mut self, now: Nanos, out: &mut Ports<'_>) {
        self.polled = now;
        while let Some((owner, frame, port)) = self.rings.pop(now) {
            self.handle(owner, frame, port, now, out);
        }
        for worker in 0..self.functions.len() {
            if now < self.rings.paused_until(worker) {
                continue;
            }
            self.apply_commands(worker, now);
            if self.functions[worker].next_timer().is_some_and(|at| at <= now) {
                self.functions[worker].on_timer(now, out);
            }
            self.collect_events(worker);
        }
    }

    fn next_timer(&self) -> Option<Nanos> {
        let due = self.functions.iter().zip(&self.commands).enumerate().filter_map(
            |(worker, (function, commands))| {
                let due = if commands.is_empty() { function.next_timer()? } else { Nanos::ZERO };
                Some(due.max(self.polled + POLL_INTERVAL).max(self.rings.paused_until(worker)))
            },
        );
        due.chain(self.rings.next()).min()
    }

    fn start(&mut self, _now: Nanos, _out: &mut Ports<'_>) {}

    fn crash(&mut self) {
        self.functions = (0..self.functions.len()).map(&mut self.make).collect();
        self.rings.clear();
        self.punted.clear();
        self.events.clear();
        self.commands.iter_mut().for_each(VecDeque::clear);
    }
}
