//! The operations of a connection, one after the other, as the seed determines them.

use super::Config;
use super::verb::Verb;
use switch::Rng;

/// Expected value of a `CmpSwap`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Guess {
    /// Latest value that the connection read or wrote
    Own,
    /// Latest value that any client has observed
    Newest,
    /// Value that the word never held
    Wrong,
}

/// An operation to be posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PlannedOp {
    pub(super) verb: Verb,
    /// Index of the first word, or offset of the first byte
    pub(super) at: u32,
    /// Number of words, or of bytes
    pub(super) len: u32,
    pub(super) guess: Guess,
    /// Whether a `FetchAdd` adds anything
    pub(super) adds: bool,
    pub(super) signaled: bool,
    pub(super) fence: bool,
}

/// Sequence of the operations of a connection.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    rng: Rng,
    remaining: u32,
    words: u32,
    locks: u32,
    max_size: u32,
    mix: [u32; Verb::ALL.len()],
    /// Cumulative weight of each word
    cumulative: Vec<f64>,
}

impl Plan {
    pub(super) fn new(config: &Config, seed: u64) -> Self {
        let mut sum = 0.0;
        let cumulative = (0..config.words.max(1)).map(|word| {
            sum += f64::from(word + 1).powf(-config.zipf);
            sum
        });
        Self {
            rng: Rng::new(seed),
            remaining: config.operations,
            words: config.words.max(1),
            locks: config.pages,
            max_size: config.max_size,
            mix: config.mix,
            cumulative: cumulative.collect(),
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.remaining == 0
    }

    /// Draws a word by its weight.
    fn word(&mut self) -> u32 {
        let sum = self.cumulative.last().copied().unwrap_or(1.0);
        let at = (self.rng.bits() >> 11) as f64 / (1u64 << 53) as f64 * sum;
        (self.cumulative.partition_point(|share| *share <= at) as u32).min(self.words - 1)
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
        Verb::ReadWord
    }

    /// Draws a range within `all` elements: its begin and its length. All powers of two are equally likely
    /// lengths.
    fn range(&mut self, all: u32) -> (u32, u32) {
        let bits = self.rng.below(u64::from(33 - all.leading_zeros()));
        let len = (self.rng.below(1 << bits) as u32 + 1).min(all);
        (self.rng.below(u64::from(all - len + 1)) as u32, len)
    }
}

impl Iterator for Plan {
    type Item = PlannedOp;

    fn next(&mut self) -> Option<PlannedOp> {
        self.remaining = self.remaining.checked_sub(1)?;
        let (verb, word) = (self.verb(), self.word());
        // The last two operations observe the final state: one by an atomic, one of all words.
        let verb = match self.remaining {
            0 => Verb::ReadWords,
            1 => Verb::FetchAdd,
            _ => verb,
        };
        let (at, len) = match verb {
            Verb::CompareSwap | Verb::FetchAdd | Verb::WriteWord | Verb::ReadWord => (word, 1),
            Verb::ReadWords if self.remaining == 0 || self.rng.below(3) == 0 => (0, self.words + self.locks),
            Verb::ReadWords => self.range(self.words + self.locks),
            Verb::WriteWords => self.range(self.words),
            Verb::Write | Verb::Read if self.rng.below(16) > 0 => self.range(self.max_size),
            Verb::Write | Verb::Read | Verb::Send => (0, 0),
        };
        let bits = self.rng.bits();
        let guess = match bits & 7 {
            0 => Guess::Wrong,
            1..4 => Guess::Own,
            _ => Guess::Newest,
        };
        let adds = self.remaining >= 2 && bits & 0x38 != 0;
        let signaled = bits & 0xc0 != 0 || self.remaining == 0;
        Some(PlannedOp { verb, at, len, guess, adds, signaled, fence: bits & 0xf00 == 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plan_draws_every_verb_within_bounds() {
        let config = Config { operations: 2000, words: 40, zipf: 0.99, mix: [1; 9], ..Config::default() };
        let ops: Vec<PlannedOp> = Plan::new(&config, 1).collect();
        assert_eq!(ops, Plan::new(&config, 1).collect::<Vec<_>>());
        for verb in Verb::ALL {
            let share = ops.iter().filter(|op| op.verb == verb).count();
            assert!((150..300).contains(&share), "{verb:?} {share}");
        }
        let of = |verb, word| ops.iter().filter(|op| (op.verb, op.at) == (verb, word)).count();
        assert!(of(Verb::FetchAdd, 0) > 3 * of(Verb::FetchAdd, 8), "word 0 is used most");
        for op in &ops {
            let all = match op.verb {
                Verb::Write | Verb::Read => config.max_size,
                Verb::ReadWords => config.words + config.pages,
                _ => config.words,
            };
            assert!(op.at + op.len <= all, "{op:?}");
        }
        assert_eq!(ops.last().map(|op| (op.verb, op.len)), Some((Verb::ReadWords, 42)));
    }
}
