//! Memory that the workers of a switch share: what each has published, in words that are whole by themselves.

use crate::half::{DOWN, UP};
use onepipe::Timestamp;
use std::sync::atomic::{AtomicU64, Ordering};

/// Position of a word's value, above its flags
const SHIFT: u32 = 16;
/// Flag of a word whose worker [misses](crate::Barrier::misses) a link
const MISSES: u64 = 1 << 3;

/// An atomic word. In tests it is loom's, which explores every interleaving of the threads.
pub trait Word: Default {
    /// Returns the value. What its writer did before is visible to the caller.
    fn read(&self) -> u64;
    /// Sets the value.
    fn write(&self, value: u64);
}

/// Implements [`Word`] with the same memory orderings for the program's atomic and for loom's.
macro_rules! word {
    ($atomic:ty) => {
        impl Word for $atomic {
            #[inline]
            fn read(&self) -> u64 {
                self.load(Ordering::Acquire)
            }

            #[inline]
            fn write(&self, value: u64) {
                self.store(value, Ordering::Release);
            }
        }
    };
}

word!(AtomicU64);
#[cfg(test)]
word!(loom::sync::atomic::AtomicU64);

/// Barrier of a worker's links in one half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Published {
    /// A link has carried no barrier yet, so there is none
    Awaited,
    /// Every later frame of the links has this timestamp or a later one
    Live(Timestamp),
    /// All links have left, or there are none
    Left,
    /// No link takes part, and at least one has not left
    Lost,
    /// A link is about to take part, where none does: all workers wait. Holds are numbered from 1
    Hold(u64),
}

impl Published {
    /// Returns the state as a word. The word 0 is that of a worker that has published nothing.
    pub(crate) const fn encode(self, misses: bool) -> u64 {
        let word = match self {
            Self::Awaited => 0,
            Self::Live(at) => at.nanos() << SHIFT | 1,
            Self::Left => 2,
            Self::Lost => 3,
            Self::Hold(number) => number << SHIFT | 4,
        };
        if misses { word | MISSES } else { word }
    }

    /// Returns the state of a word, and whether its worker misses a link.
    pub(crate) const fn decode(word: u64) -> (Self, bool) {
        let value = word >> SHIFT;
        let state = match word & (MISSES - 1) {
            0 => Self::Awaited,
            1 => Self::Live(Timestamp::new(value)),
            2 => Self::Left,
            3 => Self::Lost,
            _ => Self::Hold(value),
        };
        (state, word & MISSES != 0)
    }
}

/// What a link has carried, as its worker has last noted it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carried {
    /// No barrier yet
    Nothing,
    /// This barrier
    Barrier(Timestamp),
    /// The link takes no part
    Gone,
}

impl Carried {
    const fn encode(self) -> u64 {
        match self {
            Self::Nothing => 0,
            Self::Barrier(at) => at.nanos() << SHIFT | 1,
            Self::Gone => 2,
        }
    }

    /// Returns the barrier, if the link has carried one and takes part.
    pub(crate) const fn barrier(self) -> Option<Timestamp> {
        match self {
            Self::Barrier(at) => Some(at),
            Self::Nothing | Self::Gone => None,
        }
    }

    const fn decode(word: u64) -> Self {
        match word & 3 {
            0 => Self::Nothing,
            1 => Self::Barrier(Timestamp::new(word >> SHIFT)),
            _ => Self::Gone,
        }
    }
}

/// What a worker publishes in every turn: a cache line that it alone writes.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Line<W> {
    /// By half, as [`Published`]
    barriers: [W; 2],
}

/// What a worker publishes now and then, in memory of its own.
#[derive(Debug)]
#[repr(align(64))]
struct Answers<W> {
    /// Barrier of what the worker sends, by half: 0 if there is none, and otherwise as [`Carried`]
    outputs: [W; 2],
    /// Time with which this worker compares barriers, as [`Carried`]
    clock: W,
    /// Number of the last hold that this worker has seen, by half and worker
    seen: Box<[[W; 2]]>,
}

/// What the worker of a link notes about it.
#[derive(Debug, Default)]
struct LinkWords<W> {
    /// As [`Carried`]
    carried: W,
    /// Barrier that was too far ahead of the clock, as [`Carried`]
    lowered: W,
}

/// Memory that the workers of a switch share.
#[derive(Debug)]
pub struct SharedWords<W = AtomicU64> {
    published: Box<[Line<W>]>,
    answers: Box<[Answers<W>]>,
    links: Box<[LinkWords<W>]>,
}

impl<W: Word> SharedWords<W> {
    /// Creates the memory of a number of workers that have published nothing, and of links that have carried nothing.
    pub(crate) fn empty(workers: usize, links: usize) -> Self {
        let answers = || Answers {
            outputs: Default::default(),
            clock: W::default(),
            seen: (0..workers).map(|_| Default::default()).collect(),
        };
        Self {
            published: (0..workers).map(|_| Line::default()).collect(),
            answers: (0..workers).map(|_| answers()).collect(),
            links: (0..links).map(|_| LinkWords::default()).collect(),
        }
    }

    /// Returns the number of workers.
    pub(crate) const fn workers(&self) -> usize {
        self.published.len()
    }

    /// Returns what a worker has published about a half. Frames that it had put into rings before are then there.
    #[inline]
    pub(crate) fn barrier(&self, worker: usize, half: usize) -> u64 {
        self.published[worker].barriers[half].read()
    }

    /// Publishes a worker's state of a half. All frames that its links have carried before are in rings, or lost.
    #[inline]
    pub(crate) fn publish(&self, worker: usize, half: usize, word: u64) {
        self.published[worker].barriers[half].write(word);
    }

    /// Announces the barriers of what a worker sends.
    pub(crate) fn announce(&self, worker: usize, outputs: [Option<Timestamp>; 2]) {
        for half in [UP, DOWN] {
            let word = outputs[half].map_or(0, |at| Carried::Barrier(at).encode());
            self.answers[worker].outputs[half].write(word);
        }
    }

    /// Announces the time with which a worker compares barriers. Returns those of all workers.
    pub(crate) fn share_clock(&self, worker: usize, clock: Timestamp) -> impl Iterator<Item = Timestamp> {
        self.answers[worker].clock.write(Carried::Barrier(clock).encode());
        self.answers.iter().filter_map(|answers| Carried::decode(answers.clock.read()).barrier())
    }

    /// Returns the barriers of a half that workers have announced.
    pub(crate) fn outputs(&self, half: usize) -> impl Iterator<Item = Timestamp> {
        self.answers.iter().filter_map(move |answers| Carried::decode(answers.outputs[half].read()).barrier())
    }

    /// Answers a hold of worker `of`: `worker` has [announced](Self::announce) its outputs, which stand still.
    pub(crate) fn answer(&self, worker: usize, of: usize, half: usize, number: u64) {
        self.answers[worker].seen[of][half].write(number);
    }

    /// Returns whether all other workers have answered a hold.
    pub(crate) fn all_have_seen(&self, of: usize, half: usize, number: u64) -> bool {
        let mut others = self.answers.iter().enumerate().filter(|&(worker, _)| worker != of);
        others.all(|(_, answers)| answers.seen[of][half].read() == number)
    }

    /// Notes what a link has carried.
    pub(crate) fn note_carried(&self, link: usize, carried: Carried) {
        self.links[link].carried.write(carried.encode());
    }

    /// Returns what a link has carried.
    pub(crate) fn carried(&self, link: usize) -> Carried {
        Carried::decode(self.links[link].carried.read())
    }

    /// Notes the barrier of a link that was too far ahead of the clock, if there was one of late.
    pub(crate) fn note_lowered(&self, link: usize, barrier: Option<Timestamp>) {
        self.links[link].lowered.write(barrier.map_or(0, |at| Carried::Barrier(at).encode()));
    }

    /// Returns the barrier of a link that was too far ahead of the clock, if there was one of late.
    pub(crate) fn lowered(&self, link: usize) -> Option<Timestamp> {
        Carried::decode(self.links[link].lowered.read()).barrier()
    }
}

#[cfg(test)]
mod tests;
