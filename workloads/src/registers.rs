//! Linearizability of histories of registers: whether there is an order of all reads and writes, each taking
//! effect at a moment between its begin and its end, in which every read returns the value of the latest
//! write before it.
//!
//! Since no value is written twice, this is quick to decide (Gibbons and Korach, "Testing shared memories",
//! SIAM J. Comput. 1997, section 4): the write of a value and the reads of it are adjacent in the order. Take
//! their first end and their last begin. If the begin is later, the register holds the value between the two
//! ("forward zone"); no two forward zones may overlap. Otherwise all of them can take effect at one moment
//! between the two ("backward zone"); a backward zone must not lie within a forward zone.

use std::collections::BTreeMap;
use switch::Nanos;

/// A completed read or write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observed {
    /// Value written or read; a register holds 0 at the beginning
    pub value: u64,
    /// When the operation was requested
    pub began: Nanos,
    /// When it completed
    pub ended: Nanos,
}

/// Reads and writes of registers, by register.
#[derive(Debug, Default)]
pub struct History {
    writes: BTreeMap<u64, Vec<Observed>>,
    reads: BTreeMap<u64, Vec<Observed>>,
}

/// Last begin and first end of the operations on one value
#[derive(Clone, Copy, Debug)]
struct Zone {
    last_began: Nanos,
    first_ended: Nanos,
}

impl History {
    /// Adds a write of a register.
    pub fn add_write(&mut self, register: u64, observed: Observed) {
        self.writes.entry(register).or_default().push(observed);
    }

    /// Adds a read of a register.
    pub fn add_read(&mut self, register: u64, observed: Observed) {
        self.reads.entry(register).or_default().push(observed);
    }

    /// Returns the number of reads and writes.
    pub fn len(&self) -> usize {
        self.writes.values().chain(self.reads.values()).map(Vec::len).sum()
    }

    /// Returns whether there are no reads and writes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Checks that the history is linearizable. A write that was never acknowledged, if the caller adds it,
    /// has to end at the latest possible time.
    ///
    /// # Errors
    /// A description of the first contradiction.
    pub fn check(&self) -> Result<(), String> {
        for register in self.writes.keys().chain(self.reads.keys()) {
            self.check_register(*register).map_err(|wrong| format!("register {register}: {wrong}"))?;
        }
        Ok(())
    }

    fn of(operations: &BTreeMap<u64, Vec<Observed>>, register: u64) -> &[Observed] {
        operations.get(&register).map(Vec::as_slice).unwrap_or_default()
    }

    fn check_register(&self, register: u64) -> Result<(), String> {
        let mut zones = BTreeMap::new();
        // The initial value was written before everything else.
        zones.insert(0, (Nanos::ZERO, Zone { last_began: Nanos::ZERO, first_ended: Nanos::ZERO }));
        for write in Self::of(&self.writes, register) {
            let zone = Zone { last_began: write.began, first_ended: write.ended };
            if zones.insert(write.value, (write.began, zone)).is_some() {
                return Err(format!("{write:?}: the same value was written twice"));
            }
        }
        for read in Self::of(&self.reads, register) {
            let Some((written, zone)) = zones.get_mut(&read.value) else {
                return Err(format!("{read:?}: no write has this value"));
            };
            if read.ended < *written {
                return Err(format!("{read:?}: the value was written only after this read ended"));
            }
            zone.last_began = zone.last_began.max(read.began);
            zone.first_ended = zone.first_ended.min(read.ended);
        }
        let is_forward = |zone: &Zone| zone.first_ended < zone.last_began;
        let mut forward: Vec<_> = zones
            .iter()
            .filter(|(_, (_, zone))| is_forward(zone))
            .map(|(value, (_, zone))| (*value, *zone))
            .collect();
        forward.sort_by_key(|(_, zone)| zone.first_ended);
        for pair in forward.windows(2) {
            if pair[1].1.first_ended < pair[0].1.last_began {
                return Err(format!("the register holds two values at once: {pair:x?}"));
            }
        }
        for (value, (_, zone)) in zones.iter().filter(|(_, (_, zone))| !is_forward(zone)) {
            // Of the forward zones that begin before this zone, the last
            let at = forward.partition_point(|(_, other)| other.first_ended < zone.last_began);
            if let Some((other, around)) = forward[..at].last()
                && zone.first_ended < around.last_began
            {
                return Err(format!(
                    "value {value:#x} occurs ({zone:?}) while the register holds {other:#x} ({around:?})"
                ));
            }
        }
        Ok(())
    }

    /// Checks that a register's writes can have taken effect in the order of `values`, and that these are all
    /// of them.
    ///
    /// # Errors
    /// A description of the first contradiction.
    pub fn check_order(&self, register: u64, values: &[u64]) -> Result<(), String> {
        let writes = Self::of(&self.writes, register);
        let by_value: BTreeMap<_, _> = writes.iter().map(|write| (write.value, write)).collect();
        if values.len() != writes.len() {
            return Err(format!(
                "register {register}: the order has {} values, but there were {} writes",
                values.len(),
                writes.len()
            ));
        }
        let mut latest = Nanos::ZERO;
        for value in values {
            let write =
                by_value.get(value).ok_or_else(|| format!("register {register}: no write of {value:#x}"))?;
            if write.ended < latest {
                return Err(format!(
                    "register {register}: {write:?} follows a write that began after its end"
                ));
            }
            latest = latest.max(write.began);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_accepts_linearizable_histories_only() {
        let at = |value, began, ended| Observed { value, began: Nanos(began), ended: Nanos(ended) };
        let check = |writes: &[Observed], reads: &[Observed]| {
            let mut history = History::default();
            for write in writes {
                history.add_write(1, *write);
            }
            for read in reads {
                history.add_read(1, *read);
            }
            history.check().is_ok()
        };
        let writes = [at(1, 10, 20), at(2, 15, 30)];
        assert!(check(&writes, &[at(0, 1, 12), at(1, 17, 18), at(2, 31, 32)]));
        // Either write may be the last.
        assert!(check(&writes, &[at(1, 40, 50)]));
        assert!(!check(&writes, &[at(1, 40, 50), at(2, 60, 70)]), "the older value must not come back");
        assert!(!check(&writes, &[at(0, 31, 32)]), "the initial value must not be read after a write");
        assert!(!check(&writes, &[at(2, 1, 5)]), "a value must not be read before its write");
        assert!(!check(&writes, &[at(3, 40, 50)]), "no write has this value");
        assert!(!check(&[at(1, 1, 2), at(2, 3, 4)], &[at(1, 5, 6)]), "the value was overwritten");
        assert!(check(&[at(1, 1, 2), at(2, 3, 7)], &[at(1, 5, 6), at(2, 6, 7)]));
        assert!(!check(&[at(1, 1, 2), at(2, 3, 4), at(3, 5, 6)], &[at(1, 7, 8)]));
        let mut history = History::default();
        for write in writes {
            history.add_write(1, write);
        }
        history.add_write(1, at(3, 31, 40));
        assert!(history.check_order(1, &[2, 1, 3]).is_ok() && history.check_order(1, &[1, 2, 3]).is_ok());
        assert!(history.check_order(1, &[1, 3, 2]).is_err() && history.check_order(1, &[1, 2]).is_err());
    }
}
