//! A switch of the network, with any switch function.

use crate::node::{Node, Ports};
use std::collections::VecDeque;
use switch::memory::MemoryFrame;
use switch::{DropReason, Full, Function, Nanos, Output, PortId, Verdict};

/// A switch function, with counters of its verdicts.
pub struct Switch<F: Function> {
    make: Box<dyn FnMut() -> F + Send>,
    /// The function; replaced by a new one after a crash
    pub function: F,
    /// Frames by verdict
    pub counters: Counters,
    /// Frames for the control plane
    pub punted: VecDeque<(MemoryFrame, PortId)>,
    /// Events for the control plane
    pub events: VecDeque<F::Event>,
    commands: VecDeque<F::Command>,
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
    /// Creates a switch. `make` creates its function: once at the beginning, and once after each crash.
    pub fn new(mut make: impl FnMut() -> F + Send + 'static) -> Self {
        Self {
            function: make(),
            make: Box::new(make),
            counters: Counters { dropped: vec![0; DropReason::COUNT], ..Counters::default() },
            punted: VecDeque::new(),
            events: VecDeque::new(),
            commands: VecDeque::new(),
            polled: Nanos::ZERO,
        }
    }

    /// Queues a command of the control plane; the function gets it before its next frame or timer.
    pub fn command(&mut self, command: F::Command) {
        self.commands.push_back(command);
    }

    fn apply_commands(&mut self, now: Nanos) {
        while let Some(command) = self.commands.pop_front() {
            self.function.on_command(command, now);
        }
    }

    fn collect_events(&mut self) {
        while let Some(event) = self.function.poll_event() {
            self.events.push_back(event);
        }
    }
}

impl<F: Function + Send + 'static> Node for Switch<F>
where
    F::Event: 'static,
    F::Command: 'static,
{
    fn on_frame(&mut self, mut frame: MemoryFrame, port: PortId, now: Nanos, out: &mut Ports<'_>) {
        self.apply_commands(now);
        self.counters.received += 1;
        match self.function.on_frame(&mut frame, port, now, out) {
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
        self.collect_events();
    }

    fn on_timer(&mut self, now: Nanos, out: &mut Ports<'_>) {
        self.apply_commands(now);
        self.polled = now;
        if self.function.next_timer().is_some_and(|at| at <= now) {
            self.function.on_timer(now, out);
        }
        self.collect_events();
    }

    fn next_timer(&self) -> Option<Nanos> {
        let due = if self.commands.is_empty() { self.function.next_timer() } else { Some(Nanos::ZERO) };
        due.map(|at| at.max(self.polled + POLL_INTERVAL))
    }

    fn start(&mut self, _now: Nanos, _out: &mut Ports<'_>) {}

    fn crash(&mut self) {
        self.function = (self.make)();
        self.punted.clear();
        self.events.clear();
        self.commands.clear();
    }
}
