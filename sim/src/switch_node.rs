//! A switch of the network, with any switch function.

use crate::node::{Node, Ports};
use crate::turns::{BURST, Step, Turns};
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
    /// Turns of the workers, if the function has senders and there are several
    turns: Option<Turns>,
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
            turns: (F::HAS_SENDERS && workers.count > 1).then(|| Turns::new(workers)),
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
    fn handle<O: Output<Frame = MemoryFrame>>(
        &mut self,
        worker: usize,
        mut frame: MemoryFrame,
        port: PortId,
        now: Nanos,
        out: &mut O,
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

impl<F: Function> Switch<F> {
    /// Queues a frame at the worker that receives from its port.
    fn receive(&mut self, frame: MemoryFrame, port: PortId) {
        let worker = self.functions[0].receiver(port);
        if let Some(turns) = &mut self.turns {
            turns.states[worker].received.push_back((frame, port));
        }
    }

    /// Runs all steps of all workers' turns that are due.
    fn run_turns(&mut self, now: Nanos, out: &mut Ports<'_>) {
        let Some(mut turns) = self.turns.take() else { return };
        if turns.senders.is_empty() {
            let ports = (0..out.count()).map(PortId);
            let of = |function: &F| ports.clone().map(|port| function.sender(port)).collect();
            turns.senders = self.functions.iter().map(of).collect();
        }
        loop {
            self.counters.dropped[DropReason::PortFull.index()] += turns.transmit(now, out);
            let is_due = |&worker: &usize| self.due(&turns, worker).is_some_and(|at| at <= now);
            let Some(worker) = (0..self.functions.len()).find(is_due) else { break };
            self.run_step(&mut turns, worker, now, out);
            turns.finish(worker, now);
        }
        self.turns = Some(turns);
    }

    /// Runs the next step of a worker.
    fn run_step(&mut self, turns: &mut Turns, worker: usize, now: Nanos, out: &mut Ports<'_>) {
        match turns.states[worker].step {
            Step::Receive => {
                for _ in 0..BURST {
                    let Some((frame, port)) = turns.states[worker].received.pop_front() else { break };
                    self.handle(worker, frame, port, now, &mut turns.ports(worker, now, out));
                }
            }
            Step::Snapshot => {
                turns.states[worker].is_stale = false;
                self.functions[worker].snapshot();
            }
            Step::Drain(from) => {
                for (mut frame, port) in turns.take(from, worker) {
                    self.functions[worker].on_handoff(&mut frame, port, now);
                    _ = turns.ports(worker, now, out).send(frame, port);
                }
            }
            Step::Adopt => self.functions[worker].adopt(now),
            Step::Timer => {
                self.apply_commands(worker, now);
                if self.functions[worker].next_timer().is_some_and(|at| at <= now) {
                    self.functions[worker].on_timer(now, &mut turns.ports(worker, now, out));
                }
                self.collect_events(worker);
            }
            Step::Push => {
                let (pushed, lost) = turns.push(worker, out);
                self.counters.dispatched += pushed;
                self.counters.dropped[DropReason::HandoffFull.index()] += lost;
            }
            Step::Publish => {
                if self.functions[worker].publish() {
                    let others = turns.states.iter_mut().enumerate().filter(|&(other, _)| other != worker);
                    others.for_each(|(_, turn)| turn.is_stale = true);
                }
            }
        }
    }

    /// Returns when a worker's next step is due.
    fn due(&self, turns: &Turns, worker: usize) -> Option<Nanos> {
        let has_work = turns.has_work(worker) || !self.commands[worker].is_empty();
        let due = if has_work { Nanos::ZERO } else { self.functions[worker].next_timer()? };
        Some(due.max(turns.states[worker].at))
    }
}

impl<F: Function + Send + 'static> Node for Switch<F>
where
    F::Event: 'static,
    F::Command: 'static,
{
    fn on_frame(&mut self, frame: MemoryFrame, port: PortId, now: Nanos, out: &mut Ports<'_>) {
        self.counters.received += 1;
        if self.turns.is_some() {
            self.receive(frame, port);
            return self.run_turns(now, out);
        }
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
        if self.turns.is_some() {
            return self.run_turns(now, out);
        }
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
        if let Some(turns) = &self.turns {
            let due = (0..self.functions.len()).filter_map(|worker| self.due(turns, worker));
            return due.chain(turns.next_sent()).min();
        }
        let due = self.functions.iter().zip(&self.commands).enumerate().filter_map(
            |(worker, (function, commands))| {
                let due = if commands.is_empty() { function.next_timer()? } else { Nanos::ZERO };
                Some(due.max(self.polled + POLL_INTERVAL).max(self.rings.paused_until(worker)))
            },
        );
        due.chain(self.rings.next()).min()
    }

    fn start(&mut self, _now: Nanos, out: &mut Ports<'_>) {
        self.turns.iter_mut().for_each(|turns| turns.start(out));
    }

    fn crash(&mut self) {
        self.functions = (0..self.functions.len()).map(&mut self.make).collect();
        self.rings.clear();
        self.turns.iter_mut().for_each(Turns::crash);
        self.punted.clear();
        self.events.clear();
        self.commands.iter_mut().for_each(VecDeque::clear);
    }
}
