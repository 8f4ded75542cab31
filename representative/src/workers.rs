//! A switch on several workers: each keeps the barrier of the links that it receives from, and reads those of the other
//! workers.
//!
//! A worker publishes the barrier of its links when all frames that they carried before are in rings to the workers
//! that send them. A worker that sends reads what has been published, handles the frames that the rings have then, and
//! only then raises its own barrier. So no barrier overtakes a frame; docs/onepipe.md has the proof.
//!
//! A link that returns while no other link of its half takes part at its worker begins with a *hold*: what other
//! workers have sent meanwhile is known only when they have stopped.

mod shared;

pub use shared::SharedWords;

use crate::barrier::{Barrier, Inputs, Limits};
use crate::config::{Config, Side};
use crate::half::{DOWN, UP};
use onepipe::Timestamp;
use shared::Carried;
pub(crate) use shared::Published;
use std::sync::Arc;
use switch::PortId;

/// Interval, in ticks, at which a worker notes what its links have carried, once its barriers have begun
const NOTE_EVERY: u64 = 8;

impl SharedWords {
    /// Creates the memory that the instances of a switch with this configuration share, one on each worker.
    pub fn new(config: &Config, workers: usize) -> Arc<Self> {
        Arc::new(Self::empty(workers, config.links.len()))
    }
}

/// Returns the worker that receives from a port, and sends through it.
#[inline]
pub(crate) const fn worker_of(port: PortId, workers: usize) -> usize {
    port.index() % workers
}

/// A link that is about to take part.
#[derive(Clone, Copy, Debug)]
struct Hold {
    /// Tick after which the hold ends if no link joins
    until: u64,
    /// Whether all workers have answered
    is_answered: bool,
}

/// What becomes of a barrier of a link that takes no part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// The local barrier decides
    Local,
    /// All workers wait for the link; its next barrier counts
    Held,
}

/// State of one worker of a switch.
#[derive(Debug)]
pub(crate) struct Workers {
    own: usize,
    shared: Arc<SharedWords>,
    /// Barriers of the links of this worker. Links of other workers have left
    pub(crate) locals: [Barrier; 2],
    /// Words that were published last
    published: [u64; 2],
    /// Words of each worker at the last snapshot, and those that were adopted
    seen: Box<[([u64; 2], [u64; 2])]>,
    /// Whether another worker misses a link, by half
    misses: [bool; 2],
    holds: [Option<Hold>; 2],
    /// Number of the last hold, by half
    hold_numbers: [u64; 2],
    /// Links of each half, with whether they are this worker's
    links: [Box<[(u16, bool)]>; 2],
    /// Number of ticks after which a hold without a join ends
    hold_ticks: u64,
}

impl Workers {
    /// Creates the state of worker `own`. `by_input` has the links of each half, by input.
    pub(crate) fn new(
        config: &Config,
        own: usize,
        shared: Arc<SharedWords>,
        by_input: &[Box<[u16]>; 2],
        limits: Limits,
        clocks: [Option<Timestamp>; 2],
    ) -> Self {
        let workers = shared.workers();
        let is_own = |link: u16| {
            config.links.get(usize::from(link)).is_some_and(|link| worker_of(link.port, workers) == own)
        };
        let local = |half: usize| {
            let mut barrier = Barrier::new(by_input[half].len(), limits, clocks[half]);
            barrier.plant(config.bug);
            barrier.set_others(core::iter::empty(), true);
            let foreign = (0..).zip(&by_input[half]).filter(|&(_, &link)| !is_own(link));
            foreign.for_each(|(input, _)| _ = barrier.leave(input));
            barrier
        };
        let links = [Side::Below, Side::Above].map(|side| {
            let links = (0..).zip(&config.links).filter(|(_, link)| link.side == side);
            links.map(|(number, _)| (number, is_own(number))).collect()
        });
        Self {
            own,
            locals: [UP, DOWN].map(local),
            // Other than any word, so that the first state is published
            published: [u64::MAX; 2],
            seen: vec![([0; 2], [0; 2]); workers].into(),
            misses: [false; 2],
            holds: [None; 2],
            hold_numbers: [0; 2],
            links,
            hold_ticks: limits.dead_after_ticks,
            shared,
        }
    }

    /// Returns the worker that receives from a port, and sends through it.
    #[inline]
    pub(crate) fn of(&self, port: PortId) -> usize {
        worker_of(port, self.shared.workers())
    }

    /// Returns the number of this worker.
    pub(crate) const fn own(&self) -> usize {
        self.own
    }

    /// Returns the input of a half's total barrier that stands for a worker. The lower half has the path from the upper
    /// one before.
    pub(crate) const fn input_of(half: usize, worker: usize) -> usize {
        worker + (half == DOWN) as usize
    }

    /// Returns the input that stands for this worker.
    pub(crate) const fn own_input(&self, half: usize) -> usize {
        Self::input_of(half, self.own)
    }

    /// Returns whether another worker misses a link, or this one does.
    pub(crate) fn misses(&self, half: usize) -> bool {
        self.misses[half] || self.locals[half].misses()
    }

    /// Returns whether this worker's links of a half wait for the answers of the other workers.
    pub(crate) const fn holds(&self, half: usize) -> bool {
        self.holds[half].is_some()
    }

    /// Publishes this worker's barriers. Returns whether they have changed.
    #[inline]
    pub(crate) fn publish(&mut self) -> bool {
        let mut any = false;
        for half in [UP, DOWN] {
            let word = self.word(half);
            if word != self.published[half] {
                self.published[half] = word;
                self.shared.publish(self.own, half, word);
                any = true;
            }
        }
        any
    }

    /// Returns the state of a half, as it is published.
    #[inline]
    fn word(&self, half: usize) -> u64 {
        let local = &self.locals[half];
        let state = match (self.holds[half], local.inputs()) {
            (Some(_), _) => Published::Hold(self.hold_numbers[half]),
            (None, Inputs::Live) => local.best_effort().map_or(Published::Awaited, Published::Live),
            (None, Inputs::Left) => Published::Left,
            (None, Inputs::Lost) => Published::Lost,
        };
        state.encode(local.misses())
    }

    /// Reads what the other workers have published.
    #[inline]
    pub(crate) fn snapshot(&mut self) {
        for (worker, (seen, _)) in self.seen.iter_mut().enumerate() {
            if worker != self.own {
                *seen = [UP, DOWN].map(|half| self.shared.barrier(worker, half));
            }
        }
        for half in [UP, DOWN] {
            if let Some(hold) = &mut self.holds[half] {
                hold.is_answered = self.shared.all_have_seen(self.own, half, self.hold_numbers[half]);
            }
        }
    }

    /// Calls `change` with each state of another worker that the last snapshot has read, and that was not adopted yet.
    /// Returns whether there was any.
    #[inline]
    pub(crate) fn adopt(&mut self, mut change: impl FnMut(usize, usize, Published)) -> bool {
        let mut any = false;
        for (worker, (seen, adopted)) in self.seen.iter_mut().enumerate() {
            for half in [UP, DOWN] {
                if seen[half] != adopted[half] {
                    adopted[half] = seen[half];
                    any = true;
                    change(worker, half, Published::decode(seen[half]).0);
                }
            }
        }
        if any {
            for half in [UP, DOWN] {
                self.misses[half] = self.seen.iter().any(|(_, adopted)| Published::decode(adopted[half]).1);
            }
        }
        any
    }

    /// Announces the barriers of what this worker sends.
    pub(crate) fn announce(&self, outputs: [Option<Timestamp>; 2]) {
        self.shared.announce(self.own, outputs);
    }

    /// Answers the holds that this worker has adopted, if there are any: its barriers, which it announces, stand still.
    pub(crate) fn answer(&self, outputs: [Option<Timestamp>; 2]) {
        let is_hold = |word: u64| matches!(Published::decode(word).0, Published::Hold(_));
        if !self.seen.iter().any(|(_, adopted)| adopted.iter().any(|&word| is_hold(word))) {
            return;
        }
        self.shared.announce(self.own, outputs);
        for (worker, (_, adopted)) in self.seen.iter().enumerate() {
            for half in [UP, DOWN] {
                if let (Published::Hold(number), _) = Published::decode(adopted[half]) {
                    self.shared.answer(self.own, worker, half, number);
                }
            }
        }
    }

    /// Returns whether a link that takes no part may join now. Where no other link of the half takes part, the total
    /// barrier has gone on without this worker: the others have to wait first. `own_output` is the barrier of what this
    /// worker sends, which may be above what it has announced.
    #[cold]
    pub(crate) fn admit(
        &mut self,
        half: usize,
        own_output: Option<Timestamp>,
        barrier: Timestamp,
        tick: u64,
    ) -> Admission {
        if self.locals[half].live() > 0 {
            return Admission::Local;
        }
        let mut outputs = self.shared.outputs(half).chain(own_output).peekable();
        if outputs.peek().is_none() && self.others_begin(half) {
            // What the link is compared with is not known yet.
            return Admission::Held;
        }
        let local = &mut self.locals[half];
        outputs.for_each(|output| local.reach(output));
        match &mut self.holds[half] {
            Some(hold) if hold.is_answered => {
                self.holds[half] = None;
                Admission::Local
            }
            Some(hold) => {
                hold.until = tick + self.hold_ticks;
                Admission::Held
            }
            // It would stop the barrier, and be refused then.
            None if !local.would_join(barrier) => Admission::Local,
            None => {
                self.hold_numbers[half] += 1;
                self.holds[half] = Some(Hold { until: tick + self.hold_ticks, is_answered: false });
                Admission::Held
            }
        }
    }

    /// Returns whether the barrier of a half is about to begin: another worker has a link that takes part.
    fn others_begin(&self, half: usize) -> bool {
        let others = self.seen.iter().enumerate().filter(|&(worker, _)| worker != self.own);
        let mut states = others.map(|(_, (_, adopted))| Published::decode(adopted[half]).0);
        states.any(|state| matches!(state, Published::Awaited | Published::Live(_)))
    }

    /// Shares the time with which this worker compares barriers. Returns the latest one of all workers: what the
    /// links of one have shown counts for all.
    pub(crate) fn share_clock(&self, clock: Timestamp) -> Timestamp {
        let later = |one: Timestamp, other: Timestamp| if one.precedes(other) { other } else { one };
        self.shared.share_clock(self.own, clock).fold(clock, later)
    }

    /// Ends holds after which no link has joined.
    pub(crate) fn end_holds(&mut self, tick: u64) {
        for hold in &mut self.holds {
            hold.take_if(|hold| hold.until < tick);
        }
    }

    /// Notes what the links of this worker have carried, and reads that of the others; `by_link` returns the half and
    /// input of a link, and `upper` is the barrier of the upper half, which is compared with the links from above. Once the barriers of the switch have begun, most calls do nothing. Returns whether this one
    /// has exchanged anything.
    pub(crate) fn exchange(
        &mut self,
        tick: u64,
        has_begun: bool,
        upper: Option<Timestamp>,
        by_link: impl Fn(u16) -> (usize, usize),
    ) -> bool {
        if has_begun && !tick.is_multiple_of(NOTE_EVERY) {
            return false;
        }
        let Self { links, shared, locals, .. } = self;
        for half in [UP, DOWN] {
            let local = &mut locals[half];
            for &(link, _) in links[half].iter().filter(|(_, is_own)| *is_own) {
                let (_, input) = by_link(link);
                let carried = match local.carried_by(input) {
                    _ if !local.is_live(input) => Carried::Gone,
                    None => Carried::Nothing,
                    Some(at) => Carried::Barrier(at),
                };
                shared.note_carried(link.into(), carried);
            }
            let others = links[half].iter().filter(|(_, is_own)| !is_own);
            let others = others.map(|&(link, _)| shared.carried(link.into()));
            let is_awaited = others.clone().any(|carried| carried == Carried::Nothing);
            let upper = upper.filter(|_| half == DOWN);
            local.set_others(others.filter_map(Carried::barrier).chain(upper), is_awaited);
        }
        true
    }

    /// Returns what all links from above have carried, as noted.
    pub(crate) fn carried_from_above(&self) -> impl Iterator<Item = Timestamp> {
        self.links[DOWN].iter().filter_map(|&(link, _)| self.shared.carried(link.into()).barrier())
    }

    /// Notes the barrier of a link of this worker that was too far ahead of the clock, if there was one of late.
    pub(crate) fn note_lowered(&self, link: usize, barrier: Option<Timestamp>) {
        self.shared.note_lowered(link, barrier);
    }

    /// Returns the barriers of the other workers' links from below that were too far ahead of the clock. A link that
    /// takes part and was not ahead is `None`.
    pub(crate) fn lowered_from_below(&self) -> impl Iterator<Item = Option<Timestamp>> + Clone {
        let others = self.links[UP].iter().filter(|(_, is_own)| !is_own);
        let live = others.filter(|(link, _)| self.shared.carried((*link).into()) != Carried::Gone);
        live.map(|(link, _)| self.shared.lowered((*link).into()))
    }
}
