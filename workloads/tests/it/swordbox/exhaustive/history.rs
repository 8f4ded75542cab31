//! The operations of the clients with their results, and the conditions that they have to meet.

use std::collections::{BTreeMap, BTreeSet};
use workloads::words::linear::{self, Action, Done, Op, Rules};

/// Shift of the bits of a value that contain the incarnation of the memory for which it was written
const INCARNATION: u32 = 48;
/// Shift of the bits of a value that number it. The bits below count additions.
pub(super) const NUMBER: u32 = 16;

/// Operations of the clients and their results, by incarnation of the memory and word
#[derive(Debug, Default)]
pub(super) struct History {
    clock: u64,
    values: u64,
    /// Operations on each word, in the order in which they were posted
    pub(super) ops: BTreeMap<(u64, usize), Vec<Op>>,
    /// Newest value of each word, from a result or a write
    newest: BTreeMap<(u64, usize), u64>,
}

impl History {
    /// Returns the newest value of a word, from a result or a write.
    pub(super) fn newest(&self, at: (u64, usize)) -> u64 {
        self.newest.get(&at).copied().unwrap_or(0)
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Returns a value that was never written before.
    pub(super) fn fresh(&mut self, incarnation: u64) -> u64 {
        self.values += 1;
        (incarnation + 1) << INCARNATION | self.values << NUMBER
    }

    /// Records that an operation on a word is posted. Returns its number in the word's history.
    pub(super) fn post(&mut self, at: (u64, usize), connection: u32, action: Action) -> usize {
        let invoked = self.tick();
        let ops = self.ops.entry(at).or_default();
        ops.push(Op { connection, invoked, done: None, until: u64::MAX, fence: false, action });
        ops.len() - 1
    }

    /// Records that an operation has completed. `fetched` is ignored for a WRITE.
    pub(super) fn complete(&mut self, at: (u64, usize), number: usize, fetched: u64) {
        let now = self.tick();
        if let Some(op) = self.ops.get_mut(&at).and_then(|ops| ops.get_mut(number)) {
            op.done = Some(Done { at: now, fetched });
            let after = op.after(fetched);
            self.newest.insert(at, after);
        }
    }

    /// Checks all words of all incarnations. `words` is the memory of the current one.
    pub(super) fn check(&self, current: u64, words: &[u64], rules: Rules) -> Result<(), String> {
        for (&(incarnation, word), ops) in &self.ops {
            let last = (incarnation == current).then(|| words[word]);
            check_locks(ops).map_err(|wrong| format!("word {word} of incarnation {incarnation}: {wrong}"))?;
            linear::check(ops, 0, last, rules)
                .map_err(|wrong| format!("word {word} of incarnation {incarnation}: {wrong}"))?;
        }
        for (word, value) in words.iter().enumerate() {
            let written_for = value >> INCARNATION;
            if written_for != 0 && written_for != current + 1 {
                return Err(format!("word {word} holds {value:#x}, a value of another incarnation"));
            }
            if *value != 0 && !self.ops.contains_key(&(current, word)) {
                return Err(format!("word {word} holds {value:#x}, which no operation has written"));
            }
        }
        Ok(())
    }
}

/// Checks that no value was replaced by two compare-and-swaps. All values written are different.
fn check_locks(ops: &[Op]) -> Result<(), String> {
    let mut taken = BTreeSet::new();
    for op in ops {
        if let (Action::CompareSwap { compare, .. }, Some(done)) = (op.action, op.done)
            && done.fetched == compare
            && !taken.insert(compare)
        {
            return Err(format!("two compare-and-swaps replaced {compare:#x}"));
        }
    }
    Ok(())
}
