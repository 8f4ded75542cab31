//! Workers, a link and virtual time.

use super::*;
use crate::Totals;
use std::collections::{BTreeMap, VecDeque};
use switch::Rng;
use switch::impair::{Config, Impair};

pub(super) const DELAY: Nanos = Nanos::from_micros(1);

/// Faults of several workers.
#[derive(Clone, Copy)]
pub(super) struct Faults {
    pub(super) seed: u64,
    /// Longest time for which a frame is in a ring between two workers
    pub(super) in_ring: Nanos,
    /// Longest pause of a worker, and one of how many turns is followed by one
    pub(super) pause: Nanos,
    pub(super) every: u64,
    /// Frames that a ring holds
    pub(super) ring: usize,
}

/// A frame that a worker will see at this time, at this port.
type Due = (Nanos, PortId, Vec<u8>);

/// A worker.
pub(super) struct Worker {
    pub(super) pktgen: Pktgen,
    /// Frames from the receive queue of each worker
    rings: Vec<VecDeque<Due>>,
    /// Commands at their times, in order
    commands: VecDeque<(Nanos, Command)>,
    paused_until: Nanos,
    pub(super) done: bool,
}

impl Worker {
    /// Returns when the worker has something to do.
    fn next(&self) -> Option<Nanos> {
        let command = self.commands.front().map(|(at, _)| *at);
        let frames = self.rings.iter().filter_map(|ring| Some(ring.front()?.0));
        let times = frames.chain(command).chain(self.pktgen.next_timer());
        times.min().map(|at| at.max(self.paused_until))
    }

    /// Returns the ring whose first frame is due.
    fn due_ring(&mut self, now: Nanos) -> Option<&mut VecDeque<Due>> {
        self.rings.iter_mut().find(|ring| ring.front().is_some_and(|(at, ..)| *at <= now))
    }
}

/// A link of one microsecond between the two ports, with rules that impair it. With several workers, the receive queue of
/// a packet follows from its queue pair.
pub(super) struct World {
    pub(super) workers: Vec<Worker>,
    /// Worker that had the last turn
    last_worker: usize,
    streams: usize,
    pub(super) link: Impair,
    faults: Option<(Faults, Rng)>,
    /// Frames in flight, by time and order of arrival, with the port where they arrive
    arrivals: BTreeMap<(Nanos, u64), (PortId, Vec<u8>)>,
    order: u64,
    pub(super) now: Nanos,
    /// All frames that arrived at B, but for those that a full ring dropped
    pub(super) arrived_at_b: Vec<Vec<u8>>,
    /// Frames that full rings dropped
    pub(super) dropped: u64,
    /// Frames whose owner is not the worker that received them
    pub(super) dispatched: u64,
    /// All frames that left A, and when
    pub(super) left_a: Vec<Vec<u8>>,
    pub(super) left_a_at: Vec<Nanos>,
    /// Commands at their times, in order
    pub(super) commands: VecDeque<(Nanos, Command)>,
    /// Marks of changed rates: stream, and what it had sent
    pub(super) marks: Vec<(usize, RateMark)>,
    /// Marks that not all workers have reported, with their worker
    partial_marks: HashMap<usize, Vec<(RateMark, usize)>>,
    /// Workers that have sent everything
    drained: usize,
}

impl World {
    /// Creates a world of one worker, which has begun to send.
    pub(super) fn new(profile: &Profile, rules: Vec<Rule>) -> Self {
        Self::build(profile, rules, vec![begin(profile, Nanos(777))], None)
    }

    /// Creates a world of several workers, which begin within some microseconds.
    pub(super) fn of_workers(profile: &Profile, rules: Vec<Rule>, workers: usize, faults: Faults) -> Self {
        let instances = (0..workers).map(|worker| Pktgen::of_worker(profile, worker, workers).unwrap());
        let mut world =
            Self::build(profile, rules, instances.collect(), Some((faults, Rng::new(faults.seed))));
        world.command(Command::Begin { at: world.now });
        world
    }

    fn build(
        profile: &Profile,
        rules: Vec<Rule>,
        workers: Vec<Pktgen>,
        faults: Option<(Faults, Rng)>,
    ) -> Self {
        let config = Config {
            ports: 2,
            pairs: vec![(A, B)],
            seed: profile.seed,
            held: 4096,
            frame_len: 4300,
            flows: 64,
            counted_qps: 0,
            health: false,
            rules,
        };
        let count = workers.len();
        let worker = |pktgen| Worker {
            pktgen,
            rings: vec![VecDeque::new(); count],
            commands: VecDeque::new(),
            paused_until: Nanos::ZERO,
            done: false,
        };
        Self {
            workers: workers.into_iter().map(worker).collect(),
            last_worker: 0,
            streams: profile.streams.len(),
            link: Impair::new(&config, 0),
            faults,
            arrivals: BTreeMap::new(),
            order: 0,
            now: Nanos(777),
            arrived_at_b: Vec::new(),
            dropped: 0,
            dispatched: 0,
            left_a: Vec::new(),
            left_a_at: Vec::new(),
            commands: VecDeque::new(),
            marks: Vec::new(),
            partial_marks: HashMap::new(),
            drained: 0,
        }
    }

    /// Returns the counters of all workers.
    pub(super) fn counters(&self) -> Arc<Counters> {
        Totals::new(self.workers.iter().map(|worker| &worker.pktgen), self.streams).get()
    }

    /// Gives a command to all workers, some microseconds apart.
    fn command(&mut self, command: Command) {
        for worker in &mut self.workers {
            let late = self.faults.as_mut().map_or(0, |(_, rng)| rng.below(5_000));
            let before = worker.commands.back().map_or(Nanos::ZERO, |(at, _)| *at);
            worker.commands.push_back((before.max(self.now + Nanos(late)), command));
        }
    }

    fn arrive(&mut self, frames: Vec<(MemoryFrame, PortId)>) {
        for (frame, port) in frames {
            self.order += 1;
            self.arrivals.insert((self.now + DELAY, self.order), (port, frame.into_bytes()));
        }
    }

    /// Passes frames of the generator through the link.
    fn pass(&mut self, sent: FrameCollector) {
        for (mut frame, port) in sent.frames {
            if port == A {
                self.left_a.push(frame.clone().into_bytes());
                self.left_a_at.push(self.now);
            }
            let mut out = FrameCollector::with_room(usize::MAX);
            let verdict = self.link.on_frame(&mut frame, port, self.now, &mut out);
            if let Verdict::Forward(port) = verdict {
                out.frames.push((frame, port));
            }
            self.arrive(out.frames);
        }
    }

    /// Puts a frame that arrived into the ring from the worker that receives it to its owner.
    fn dispatch(&mut self, port: PortId, bytes: Vec<u8>) {
        let frame = MemoryFrame::new(bytes.clone());
        let owners: HashSet<_> =
            self.workers.iter().map(|worker| worker.pktgen.owner(&frame, port)).collect();
        assert_eq!(owners.len(), 1, "all workers have to agree");
        let qp = Packet::parse(&bytes).map_or(0, |packet| packet.bth().dest_qp().get());
        let receiver = switch::table::mix(qp.into()) as usize % self.workers.len();
        let owner = owners.into_iter().next().flatten().unwrap_or(receiver);
        let mut at = self.now.max(self.workers[receiver].paused_until);
        let ring_len = self.workers[owner].rings[receiver].len();
        if let Some((faults, rng)) = self.faults.as_mut().filter(|_| owner != receiver) {
            if ring_len >= faults.ring {
                self.dropped += 1;
                return;
            }
            self.dispatched += 1;
            at = at + Nanos(rng.below(faults.in_ring.0 + 1));
        }
        let ring = &mut self.workers[owner].rings[receiver];
        let before = ring.back().map_or(Nanos::ZERO, |(at, ..)| *at);
        if port == B {
            self.arrived_at_b.push(bytes.clone());
        }
        ring.push_back((at.max(before), port, bytes));
    }

    /// Lets a worker do one thing that is due.
    fn turn(&mut self, index: usize) {
        let mut out = FrameCollector::with_room(512);
        let worker = &mut self.workers[index];
        if let Some(&(_, command)) = worker.commands.front().filter(|(at, _)| *at <= self.now) {
            worker.commands.pop_front();
            worker.pktgen.on_command(command, self.now);
        } else if let Some((_, port, bytes)) = worker.due_ring(self.now).and_then(VecDeque::pop_front) {
            let mut frame = MemoryFrame::new(bytes);
            let verdict = worker.pktgen.on_frame(&mut frame, port, self.now, &mut out);
            assert_eq!(verdict, Verdict::Consume);
        } else {
            worker.pktgen.on_timer(self.now, &mut out);
            // A turn takes time.
            self.now = self.now + Nanos(50);
            if let Some((faults, rng)) = &mut self.faults
                && rng.below(faults.every) == 0
            {
                worker.paused_until = self.now + Nanos(rng.below(faults.pause.0));
            }
        }
        while let Some(event) = self.workers[index].pktgen.poll_event() {
            self.on_event(index, event);
        }
        self.pass(out);
    }

    /// Handles an event as the control plane does.
    fn on_event(&mut self, index: usize, event: Event) {
        match event {
            Event::Done => self.workers[index].done = true,
            Event::Drained => {
                self.drained += 1;
                if self.drained == self.workers.len() {
                    self.command(Command::Finish);
                }
            }
            Event::RateChanged { stream, mark } => {
                let marks = self.partial_marks.entry(stream).or_default();
                marks.push((mark, index));
                if marks.len() == self.workers.len() {
                    let marks = self.partial_marks.remove(&stream).unwrap();
                    let share_of = |index: usize| {
                        let mut streams = self.workers[index].pktgen.streams();
                        Some(streams.find(|(other, _)| *other == stream)?.1)
                    };
                    let marks = marks.into_iter().filter_map(|(mark, index)| Some((mark, share_of(index)?)));
                    self.marks.push((stream, RateMark::sum(marks)));
                }
            }
        }
    }

    /// Returns a worker that has something to do, each in turn.
    fn due_worker(&mut self) -> Option<usize> {
        let count = self.workers.len();
        let in_turn = (1..=count).map(|n| (self.last_worker + n) % count);
        let is_due = |index: &usize| self.workers[*index].next().is_some_and(|at| at <= self.now);
        let found = { in_turn }.find(is_due)?;
        self.last_worker = found;
        Some(found)
    }

    /// Runs until nothing is left to do.
    pub(super) fn run(&mut self) {
        for _ in 0..10_000_000 {
            let due = |at: Option<Nanos>| at.is_some_and(|at| at <= self.now);
            if self.commands.front().is_some_and(|(at, _)| *at <= self.now) {
                let (_, command) = self.commands.pop_front().unwrap();
                self.command(command);
            } else if self.arrivals.first_key_value().is_some_and(|((at, _), _)| *at <= self.now) {
                let (_, (port, bytes)) = self.arrivals.pop_first().unwrap();
                self.dispatch(port, bytes);
            } else if due(self.link.next_timer()) {
                let mut out = FrameCollector::with_room(usize::MAX);
                self.link.on_timer(self.now, &mut out);
                self.arrive(out.frames);
            } else if let Some(index) = self.due_worker() {
                self.turn(index);
            } else {
                let arrival = self.arrivals.first_key_value().map(|((at, _), _)| *at);
                let command = self.commands.front().map(|(at, _)| *at);
                let workers = self.workers.iter().filter_map(Worker::next);
                let others = [arrival, command, self.link.next_timer()].into_iter().flatten();
                let Some(next) = workers.chain(others).min() else { break };
                assert!(next > self.now);
                self.now = next;
            }
        }
        assert!(self.workers.iter().all(|worker| worker.done), "a run has to end");
    }
}
