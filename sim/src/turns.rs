//! Several workers of a switch whose ports have senders ([`switch::Function::HAS_SENDERS`]): each runs its turns step
//! by step, at drawn times, and those of other workers between them.

use crate::node::Ports;
use crate::workers::Workers;
use std::collections::VecDeque;
use switch::memory::MemoryFrame;
use switch::{Full, Nanos, Output, PortId, Rng};

/// Maximum number of frames that a worker receives in a turn
pub(crate) const BURST: usize = 32;
/// Least time from the end of a turn to the next one
const TURN: Nanos = Nanos(100);
/// Number of steps of a turn with two workers: the longest delay of a ring is that of a turn
const STEPS: u64 = 8;

/// Step of a worker's turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The function handles received frames
    Receive,
    /// The function reads what others have published
    Snapshot,
    /// The function handles the frames of the ring from this worker
    Drain(usize),
    /// The function adopts what it has read
    Adopt,
    /// The function handles commands and its timer
    Timer,
    /// Frames for other workers are put into rings
    Push,
    /// The function publishes
    Publish,
}

/// State of a worker.
#[derive(Debug)]
pub(crate) struct Turn {
    pub(crate) received: VecDeque<(MemoryFrame, PortId)>,
    /// Frames for other workers that are not in rings yet, each with its worker
    pub(crate) waiting: Vec<(usize, MemoryFrame, PortId)>,
    /// Frames in the worker's send queues, with the times at which they leave
    sending: VecDeque<(Nanos, MemoryFrame, PortId)>,
    pub(crate) step: Step,
    /// Time of that step, at the earliest
    pub(crate) at: Nanos,
    /// Whether another worker has published since the last snapshot
    pub(crate) is_stale: bool,
}

impl Turn {
    fn new() -> Self {
        Self {
            received: VecDeque::new(),
            waiting: Vec::new(),
            sending: VecDeque::new(),
            step: Step::Receive,
            at: Nanos::ZERO,
            is_stale: false,
        }
    }
}

/// Workers of a switch, with the rings between them.
pub(crate) struct Turns {
    workers: Workers,
    rng: Rng,
    pub(crate) states: Vec<Turn>,
    /// Ring from each worker (outer) to each other (inner)
    rings: Vec<Vec<VecDeque<(MemoryFrame, PortId)>>>,
    /// Frames that were under way at a crash
    orphans: Vec<MemoryFrame>,
    /// Worker that sends through each port, by the instance that states it; empty before the first frame
    pub(crate) senders: Vec<Vec<usize>>,
}

impl Turns {
    pub(crate) fn new(workers: Workers) -> Self {
        let rings = || (0..workers.count).map(|_| VecDeque::new()).collect();
        Self {
            rng: Rng::stream(workers.seed, 0x7475_726e_7300),
            states: (0..workers.count).map(|_| Turn::new()).collect(),
            rings: (0..workers.count).map(|_| rings()).collect(),
            orphans: Vec::new(),
            senders: Vec::new(),
            workers,
        }
    }

    /// Starts with empty queues and rings. Frames that were under way are lost in the next [`start`](Self::start).
    pub(crate) fn crash(&mut self) {
        for turn in &mut self.states {
            let Turn { received, waiting, sending, .. } = core::mem::replace(turn, Turn::new());
            self.orphans.extend(received.into_iter().map(|(frame, _)| frame));
            self.orphans.extend(waiting.into_iter().map(|(_, frame, _)| frame));
            self.orphans.extend(sending.into_iter().map(|(_, frame, _)| frame));
        }
        let rings = self.rings.iter_mut().flatten();
        self.orphans.extend(rings.flat_map(|ring| ring.drain(..)).map(|(frame, _)| frame));
    }

    /// Loses the frames that were under way at a crash.
    pub(crate) fn start(&mut self, out: &mut Ports<'_>) {
        self.orphans.drain(..).for_each(|frame| out.lose(frame));
    }

    /// Returns whether a worker has something to do before its function's timer.
    pub(crate) fn has_work(&self, worker: usize) -> bool {
        let turn = &self.states[worker];
        turn.step != Step::Receive
            || turn.is_stale
            || !turn.received.is_empty()
            || self.rings.iter().any(|rings| !rings[worker].is_empty())
    }

    /// Ends a step: the next one follows after a drawn time, or a pause.
    pub(crate) fn finish(&mut self, worker: usize, now: Nanos) {
        let count = self.states.len();
        let other = |from: usize| if from == worker { from + 1 } else { from };
        let step = match self.states[worker].step {
            Step::Receive => Step::Snapshot,
            Step::Snapshot => Step::Drain(other(0)),
            Step::Drain(from) if other(from + 1) < count => Step::Drain(other(from + 1)),
            Step::Drain(_) => Step::Adopt,
            Step::Adopt => Step::Timer,
            Step::Timer => Step::Push,
            Step::Push => Step::Publish,
            Step::Publish => Step::Receive,
        };
        let mut after = self.rng.below(self.workers.delay.0 / STEPS + 1);
        let every = self.workers.pause_every;
        if every > 0 && self.rng.below(every * STEPS) == 0 {
            after += self.rng.between(1, self.workers.pause.0);
        }
        if step == Step::Receive {
            after = after.max(TURN.0);
        }
        let turn = &mut self.states[worker];
        (turn.step, turn.at) = (step, now + Nanos(after));
    }

    /// Returns the ports, as a worker has them.
    pub(crate) fn ports<'a, 'b>(
        &'a mut self,
        worker: usize,
        now: Nanos,
        ports: &'a mut Ports<'b>,
    ) -> WorkerPorts<'a, 'b> {
        WorkerPorts {
            ports,
            worker,
            senders: &self.senders[worker],
            turn: &mut self.states[worker],
            rng: &mut self.rng,
            delay: self.workers.delay.0 / STEPS,
            now,
        }
    }

    /// Puts a worker's waiting frames into rings. Returns their number, and the number of those that are lost.
    pub(crate) fn push(&mut self, worker: usize, out: &mut Ports<'_>) -> (u64, u64) {
        let (mut pushed, mut lost) = (0, 0);
        for (to, frame, port) in self.states[worker].waiting.drain(..) {
            let ring = &mut self.rings[worker][to];
            if ring.len() < self.workers.ring {
                ring.push_back((frame, port));
                pushed += 1;
            } else {
                out.lose(frame);
                lost += 1;
            }
        }
        (pushed, lost)
    }

    /// Takes all frames of a ring.
    pub(crate) fn take(&mut self, from: usize, to: usize) -> VecDeque<(MemoryFrame, PortId)> {
        core::mem::take(&mut self.rings[from][to])
    }

    /// Sends the frames that are due. Returns the number of those for which links have no room.
    pub(crate) fn transmit(&mut self, now: Nanos, out: &mut Ports<'_>) -> u64 {
        let mut full = 0;
        for turn in &mut self.states {
            while turn.sending.front().is_some_and(|(at, ..)| *at <= now) {
                let Some((_, frame, port)) = turn.sending.pop_front() else { break };
                full += u64::from(out.send(frame, port) == Err(Full));
            }
        }
        full
    }

    /// Returns when the next frame leaves.
    pub(crate) fn next_sent(&self) -> Option<Nanos> {
        self.states.iter().filter_map(|turn| Some(turn.sending.front()?.0)).min()
    }
}

/// Ports of a switch, as one of its workers has them: frames for ports of another worker wait for its ring, and others
/// for the time that they take in this worker's send queue.
pub(crate) struct WorkerPorts<'a, 'b> {
    ports: &'a mut Ports<'b>,
    worker: usize,
    senders: &'a [usize],
    turn: &'a mut Turn,
    rng: &'a mut Rng,
    delay: u64,
    now: Nanos,
}

impl Output for WorkerPorts<'_, '_> {
    type Frame = MemoryFrame;

    fn make(&mut self, len: usize) -> Result<MemoryFrame, Full> {
        self.ports.make(len)
    }

    fn room(&self, port: PortId) -> usize {
        self.ports.room(port)
    }

    fn copy(&mut self, frame: &MemoryFrame) -> Result<MemoryFrame, Full> {
        self.ports.copy(frame)
    }

    fn send(&mut self, frame: MemoryFrame, port: PortId) -> Result<(), Full> {
        match self.senders.get(port.index()) {
            None => return Err(Full),
            Some(&sender) if sender != self.worker => self.turn.waiting.push((sender, frame, port)),
            Some(_) => {
                // A send queue is as long as a turn now and then.
                let most = if self.rng.below(8) == 0 { self.delay * STEPS } else { self.delay };
                let at = self.now + Nanos(self.rng.below(most + 1));
                // A send queue is first in, first out.
                let after = self.turn.sending.back().map_or(Nanos::ZERO, |last| last.0);
                self.turn.sending.push_back((at.max(after), frame, port));
            }
        }
        Ok(())
    }
}
