//! What was proposed and decided, as far as anybody has said so. It outlives all servers.

use std::collections::HashSet;
use switch::table::mix;

/// What a row of values comes to, one after the other
pub(super) fn chain(before: u64, value: &[u8]) -> u64 {
    let words = value.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    });
    words.fold(before ^ value.len() as u64, |sum, word| mix(sum ^ word))
}

/// All that is known of values.
#[derive(Debug, Default)]
pub(super) struct Truth {
    proposed: HashSet<u64>,
    decided: HashSet<u64>,
    /// Each value, and what all up to it come to
    values: Vec<(u64, u64)>,
}

impl Truth {
    /// Entries that anybody has seen decided
    pub(super) fn entries(&self) -> u64 {
        self.values.len() as u64
    }

    pub(super) fn propose(&mut self, value: &[u8]) {
        self.proposed.insert(chain(0, value));
    }

    /// Says whether a value can be what is decided at this place: the same as anybody else has, and nothing that nobody
    /// has proposed, or that is there already.
    pub(super) fn decide(&mut self, index: u64, value: &[u8]) -> Result<(), String> {
        let name = chain(0, value);
        match self.values.get(index as usize) {
            Some((known, _)) if *known == name => Ok(()),
            None if index == self.entries() => {
                if !self.proposed.contains(&name) || !self.decided.insert(name) {
                    return Err(format!("{value:?} was proposed by nobody, or is decided twice"));
                }
                let before = self.values.last().map_or(0, |(_, sum)| *sum);
                self.values.push((name, chain(before, value)));
                Ok(())
            }
            Some(_) => Err(format!("{value:?} is decided at {index}, where something else was")),
            None => Err(format!("{value:?} is decided at {index} before what is to come first")),
        }
    }

    /// Says whether a snapshot is what the values come to.
    pub(super) fn install(&self, next: u64, sum: u64) -> Result<(), String> {
        let known = if next == 0 { Some(0) } else { self.values.get(next as usize - 1).map(|(_, sum)| *sum) };
        (known == Some(sum)).then_some(()).ok_or_else(|| format!("the snapshot of {next} is another"))
    }
}
