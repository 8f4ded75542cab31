//! The operations of an end, one after the other, as the seed determines them.

use super::workload::{Verb, Verbs};
use std::collections::VecDeque;
use switch::Rng;

/// Number of offsets in the pattern at which a message may begin
pub(super) const SOURCE_OFFSETS: u32 = 4096;
/// Number of offsets in the target that are used repeatedly, so that READs and WRITEs overlap
const TARGET_OFFSETS: u64 = 4;

/// An operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is an option of a request")]
pub(super) struct Op {
    pub(super) verb: Verb,
    /// Length in bytes
    pub(super) len: u32,
    /// Offset of the data in the pattern
    pub(super) source: u32,
    /// Offset in the target
    pub(super) at: u32,
    pub(super) immediate: u32,
    pub(super) inline: bool,
    pub(super) signaled: bool,
    pub(super) solicited: bool,
    pub(super) fence: bool,
    /// For atomics: index of the word, and the summand
    pub(super) word: u32,
    pub(super) add: u64,
    /// For compare and swap: whether it expects the latest known value
    pub(super) expects_latest: bool,
}

impl Op {
    /// Returns a READ of the whole target.
    pub(super) fn read_all(len: u32) -> Self {
        Self {
            verb: Verb::Read,
            len,
            source: 0,
            at: 0,
            immediate: 0,
            inline: false,
            signaled: true,
            solicited: false,
            fence: false,
            word: 0,
            add: 0,
            expects_latest: false,
        }
    }
}

/// Sequence of the operations of an end.
#[derive(Clone, Debug)]
pub(super) struct Stream {
    rng: Rng,
    remaining: u32,
    index: u32,
    depth: u32,
    max_size: u32,
    words: u32,
    mix: [u32; Verb::ALL.len()],
    /// Ranges of the READs that may be outstanding
    reads: VecDeque<Option<(u32, u32)>>,
    /// Latest range; a third of the operations use it again
    last: (u32, u32),
}

impl Stream {
    pub(super) fn new(verbs: &Verbs, seed: u64) -> Self {
        Self {
            rng: Rng::new(seed),
            remaining: verbs.operations,
            index: 0,
            depth: verbs.depth.max(1),
            max_size: verbs.max_size,
            words: verbs.words.max(1),
            mix: verbs.mix,
            reads: VecDeque::new(),
            last: (0, 0),
        }
    }

    fn verb(&mut self) -> Verb {
        let total: u64 = self.mix.iter().map(|share| u64::from(*share)).sum();
        let mut at = self.rng.below(total.max(1));
        for (verb, share) in Verb::ALL.into_iter().zip(self.mix) {
            match at.checked_sub(share.into()) {
                Some(rest) => at = rest,
                None => return verb,
            }
        }
        Verb::Write
    }

    /// Draws a length from 0 to the longest, with each power of two equally likely.
    fn len(&mut self) -> u32 {
        let bits = u64::from(32 - self.max_size.leading_zeros());
        let bits = self.rng.below(bits + 1) as u32;
        (self.rng.bits() as u32 & ((1u64 << bits) - 1) as u32).min(self.max_size)
    }
}

impl Iterator for Stream {
    type Item = Op;

    fn next(&mut self) -> Option<Op> {
        self.remaining = self.remaining.checked_sub(1)?;
        let verb = self.verb();
        let (len, rng) = (self.len(), &mut self.rng);
        let step = self.max_size / TARGET_OFFSETS as u32;
        let at = (rng.below(TARGET_OFFSETS) as u32 * step).min(self.max_size - len);
        let again = rng.below(3) == 0;
        let (at, len) = if again { self.last } else { (at, len) };
        let bits = rng.bits();
        let signaled = bits & 3 != 0 || self.index % self.depth == self.depth - 1 || self.remaining == 0;
        let mut op = Op {
            verb,
            len,
            source: rng.below(SOURCE_OFFSETS.into()) as u32,
            at,
            immediate: rng.bits() as u32,
            inline: bits & 4 != 0,
            signaled,
            solicited: bits & 8 != 0,
            fence: bits & 0xf0 == 0,
            word: rng.below(self.words.into()) as u32,
            add: rng.between(1, 1 << 40),
            expects_latest: bits & 0x300 != 0,
        };
        let is_write = matches!(verb, Verb::Write | Verb::WriteImm);
        if is_write || verb == Verb::Read {
            self.last = (at, len);
        }
        // A WRITE to memory that an outstanding READ reads is fenced: the order of the two is undefined
        // otherwise (IB 10.8.3.3).
        let overlaps = |&(from, size): &(u32, u32)| from < at + len && at < from + size;
        op.fence |= is_write && self.reads.iter().flatten().any(overlaps);
        self.reads.push_back((verb == Verb::Read).then_some((at, len)));
        if self.reads.len() > self.depth as usize {
            self.reads.pop_front();
        }
        self.index += 1;
        Some(op)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stream_draws_every_verb_and_option() {
        let verbs = Verbs { operations: 2000, max_size: 1 << 20, ..Verbs::default() };
        let ops: Vec<Op> = Stream::new(&verbs, 1).collect();
        assert_eq!(ops, Stream::new(&verbs, 1).collect::<Vec<_>>());
        for verb in Verb::ALL {
            let share = ops.iter().filter(|op| op.verb == verb).count();
            assert!((200..400).contains(&share), "{verb:?} {share}");
        }
        assert!(ops.iter().all(|op| op.at + op.len <= verbs.max_size));
        assert!(ops.iter().any(|op| op.len > 1 << 19) && ops.iter().any(|op| op.len == 0));
        assert!(ops.chunks(verbs.depth as usize).all(|chunk| chunk.iter().any(|op| op.signaled)));
        assert!(ops.iter().any(|op| !op.signaled) && ops.iter().any(|op| op.fence));
    }
}
