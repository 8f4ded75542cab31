//! Record of all proposed and decided values, as the servers report them. It outlives all servers.

use std::collections::{HashMap, HashSet};
use switch::table::mix;

/// Bytes at the beginning of a value that identify it: its server, and the number of the value there
pub(super) const ID_LEN: usize = 9;

/// Returns the n-th value of a server: its identifier, then bytes derived from server, number and offset.
pub(super) fn fill(server: u8, n: u64, len: usize) -> Vec<u8> {
    let id = mix(u64::from(server) << 56 ^ n);
    let rest = len.saturating_sub(ID_LEN);
    let mut value = Vec::with_capacity(ID_LEN + rest.next_multiple_of(8));
    value.push(server);
    value.extend_from_slice(&n.to_le_bytes());
    // Whole words: simulations spend much of their time here.
    for index in 1..=rest.div_ceil(8) as u64 {
        value.extend_from_slice(&mix(id ^ index).to_le_bytes());
    }
    value.truncate(ID_LEN + rest);
    value
}

/// Returns the hash chain `before`, extended by a value.
pub(super) fn chain(before: u64, value: &[u8]) -> u64 {
    let words = value.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    });
    words.fold(before ^ value.len() as u64, |sum, word| mix(sum ^ word))
}

/// Identifier of a value: its server, and the number of values that the server proposed before
type ValueId = (u8, u64);

/// A decided value.
#[derive(Clone, Copy, Debug)]
struct DecidedValue {
    id: ValueId,
    /// Hash chain over all values up to this one
    sum: u64,
}

/// Decided and proposed values at a moment, see [`Cluster::mark`](super::Cluster::mark).
#[derive(Clone, Debug)]
pub struct Mark {
    pub(super) bootstrap_count: u64,
    pub(super) entries: u64,
    /// Number of values proposed by each server
    pub(super) proposed: Vec<u64>,
}

/// Record of all values.
#[derive(Debug, Default)]
pub(super) struct History {
    /// Proposed values with their lengths
    proposed: HashMap<ValueId, usize>,
    decided: HashSet<ValueId>,
    values: Vec<DecidedValue>,
    /// Incarnations of the servers at the group's bootstrap
    bootstrap_incarnations: Vec<u64>,
    bootstrap_count: u64,
}

impl History {
    /// Returns the number of entries that any server has seen decided.
    pub(super) fn entries(&self) -> u64 {
        self.values.len() as u64
    }

    /// Returns the index of the first decided value that was proposed after `mark`.
    pub(super) fn first_since(&self, mark: &Mark) -> Option<u64> {
        let is_new = |decided_value: &DecidedValue| {
            mark.proposed[usize::from(decided_value.id.0)] <= decided_value.id.1
        };
        // A group that was bootstrapped after the mark has no earlier entries.
        let from = if mark.bootstrap_count == self.bootstrap_count { mark.entries } else { 0 };
        let later = self.values.get(from as usize..)?;
        later.iter().position(is_new).map(|at| from + at as u64)
    }

    /// Returns how often an operator has had the group bootstrapped.
    pub(super) fn bootstrap_count(&self) -> u64 {
        self.bootstrap_count
    }

    /// Records the bootstrap of an empty group. Two servers that both got the command, and see the same
    /// servers, bootstrap the same group.
    pub(super) fn begin(&mut self, incarnations: &[u64]) {
        if self.bootstrap_incarnations != incarnations {
            self.bootstrap_incarnations = incarnations.to_vec();
            self.values.clear();
            self.bootstrap_count += 1;
        }
    }

    pub(super) fn propose(&mut self, server: u8, n: u64, len: usize) {
        self.proposed.insert((server, n), len);
    }

    /// Returns the value that is decided at an index, if any.
    pub(super) fn value(&self, index: u64) -> Option<Vec<u8>> {
        let id = self.values.get(index as usize)?.id;
        Some(fill(id.0, id.1, *self.proposed.get(&id)?))
    }

    /// Returns the hash chain over the first `next` values, if all of them are decided.
    pub(super) fn sum(&self, next: u64) -> Option<u64> {
        let before = next.checked_sub(1);
        before.map_or(Some(0), |last| self.values.get(last as usize).map(|decided_value| decided_value.sum))
    }

    /// Records that a server has seen a value decided at an index. Returns a violation unless the value is
    /// exactly what a server has proposed, equals what other servers have seen at this index, and is decided
    /// at no other index.
    pub(super) fn decide(&mut self, index: u64, value: &[u8]) -> Result<(), String> {
        let id = value.split_at_checked(ID_LEN).and_then(|(id, _)| {
            let n = id[1..].first_chunk()?;
            Some((id[0], u64::from_le_bytes(*n)))
        });
        let proposed = id.filter(|id| self.proposed.get(id) == Some(&value.len()));
        let Some(id) = proposed.filter(|id| fill(id.0, id.1, value.len()) == value) else {
            let head: Vec<_> = value.iter().take(ID_LEN).collect();
            return Err(format!(
                "a value of {} bytes that begins with {head:?} is decided, but no server proposed it",
                value.len()
            ));
        };
        match self.values.get(index as usize) {
            Some(decided_value) if decided_value.id == id => Ok(()),
            None if index == self.entries() => {
                if !self.decided.insert(id) {
                    return Err(format!("value {id:?} is decided twice, the second time at {index}"));
                }
                let before = self.values.last().map_or(0, |decided_value| decided_value.sum);
                self.values.push(DecidedValue { id, sum: chain(before, value) });
                Ok(())
            }
            Some(decided_value) => Err(format!(
                "value {id:?} is decided at {index}, where another server has decided value {:?}",
                decided_value.id
            )),
            None => Err(format!("value {id:?} is decided at {index} before earlier indexes are")),
        }
    }

    /// Returns a violation unless a snapshot equals the state after the values before it.
    pub(super) fn install(&self, next: u64, sum: u64) -> Result<(), String> {
        (self.sum(next) == Some(sum))
            .then_some(())
            .ok_or_else(|| format!("the snapshot of {next} entries differs from the decided entries"))
    }
}
