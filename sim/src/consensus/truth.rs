//! What was proposed and decided, as far as any server has said so. It outlives all servers.

use super::Mark;
use super::proposer::NAME;
use std::collections::{HashMap, HashSet};
use switch::table::mix;

/// Returns the n-th value of a server: its name, and bytes that tell server, number and offset.
pub(super) fn fill(server: u8, n: u64, len: usize) -> Vec<u8> {
    let mut value = vec![server];
    value.extend(n.to_le_bytes());
    let name = mix(u64::from(server) << 56 ^ n);
    let words = (1..).flat_map(|place: u64| mix(name ^ place).to_le_bytes());
    value.extend(words.take(len.saturating_sub(NAME)));
    value
}

/// What a row of values comes to, one after the other
pub(super) fn chain(before: u64, value: &[u8]) -> u64 {
    let words = value.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    });
    words.fold(before ^ value.len() as u64, |sum, word| mix(sum ^ word))
}

/// A value's server, and how many that one has proposed before
type Name = (u8, u64);

/// A value that is decided.
#[derive(Clone, Copy, Debug)]
struct Known {
    name: Name,
    /// What all values up to it come to
    sum: u64,
}

/// All that is known of values.
#[derive(Debug, Default)]
pub(super) struct Truth {
    /// With their lengths
    proposed: HashMap<Name, usize>,
    decided: HashSet<Name>,
    values: Vec<Known>,
    /// Incarnations of the servers that the group began with
    beginning: Vec<u64>,
    beginnings: u64,
}

impl Truth {
    /// Entries that any server has seen decided
    pub(super) fn entries(&self) -> u64 {
        self.values.len() as u64
    }

    /// Returns the place of the first decided value that was proposed after `mark`.
    pub(super) fn first_since(&self, mark: &Mark) -> Option<u64> {
        let is_new = |known: &Known| mark.proposed[usize::from(known.name.0)] <= known.name.1;
        // A group that has begun since has no entry of before.
        let from = if mark.beginnings == self.beginnings { mark.entries } else { 0 };
        let later = self.values.get(from as usize..)?;
        later.iter().position(is_new).map(|at| from + at as u64)
    }

    /// How often the operator has had the group begin
    pub(super) fn beginnings(&self) -> u64 {
        self.beginnings
    }

    /// The group begins, empty: the operator has said so. Two servers that were told, and saw the same, begin it once.
    pub(super) fn begin(&mut self, beginning: &[u64]) {
        if self.beginning != beginning {
            self.beginning = beginning.to_vec();
            self.values.clear();
            self.beginnings += 1;
        }
    }

    pub(super) fn propose(&mut self, server: u8, n: u64, len: usize) {
        self.proposed.insert((server, n), len);
    }

    /// The value that is decided at a place, if one is
    pub(super) fn value(&self, index: u64) -> Option<Vec<u8>> {
        let name = self.values.get(index as usize)?.name;
        Some(fill(name.0, name.1, *self.proposed.get(&name)?))
    }

    /// What the first so many values come to
    pub(super) fn sum(&self, next: u64) -> Option<u64> {
        let before = next.checked_sub(1);
        before.map_or(Some(0), |last| self.values.get(last as usize).map(|known| known.sum))
    }

    /// Says whether a value can be what is decided at this place: byte for byte what a server has proposed, the same as
    /// any other server has seen there, and decided nowhere else.
    pub(super) fn decide(&mut self, index: u64, value: &[u8]) -> Result<(), String> {
        let name = value.split_at_checked(NAME).and_then(|(name, _)| {
            let n = name[1..].first_chunk()?;
            Some((name[0], u64::from_le_bytes(*n)))
        });
        let proposed = name.filter(|name| self.proposed.get(name) == Some(&value.len()));
        let Some(name) = proposed.filter(|name| fill(name.0, name.1, value.len()) == value) else {
            let head: Vec<_> = value.iter().take(NAME).collect();
            return Err(format!("{} bytes, {head:?}, were proposed by no server", value.len()));
        };
        match self.values.get(index as usize) {
            Some(known) if known.name == name => Ok(()),
            None if index == self.entries() => {
                if !self.decided.insert(name) {
                    return Err(format!("value {name:?} is decided twice, at {index} too"));
                }
                let before = self.values.last().map_or(0, |known| known.sum);
                self.values.push(Known { name, sum: chain(before, value) });
                Ok(())
            }
            Some(known) => {
                Err(format!("value {name:?} is decided at {index}, where value {:?} was", known.name))
            }
            None => Err(format!("value {name:?} is decided at {index} before what is to come first")),
        }
    }

    /// Says whether a snapshot is what the values come to.
    pub(super) fn install(&self, next: u64, sum: u64) -> Result<(), String> {
        (self.sum(next) == Some(sum))
            .then_some(())
            .ok_or_else(|| format!("the snapshot of {next} is another"))
    }
}
