//! Whether a history of registers is linearizable: whether there is an order of all reads and writes, each at a moment
//! between its beginning and its end, in which every read sees the write before it.
//!
//! As no value is written twice, that is quickly said (Gibbons and Korach, "Testing shared memories", SIAM J. Comput. 1997,
//! section 4): a value's write and its reads stand together in the order. From the first end of them to the last
//! beginning, if that is later, the register holds the value ("forward zone"): two of those must not overlap. If it
//! is earlier, all of them can be at one moment between ("backward zone"), which must not lie within a forward zone.

use std::collections::BTreeMap;
use switch::Nanos;

/// A write or a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observed {
    /// What was written, or read; 0 is what a register holds at the beginning
    pub value: u64,
    /// When it was asked for
    pub began: Nanos,
    /// When it was done
    pub ended: Nanos,
}

/// What was done to registers.
#[derive(Debug, Default)]
pub struct History {
    writes: BTreeMap<u64, Vec<Observed>>,
    reads: BTreeMap<u64, Vec<Observed>>,
}

/// The operations on a value: the last beginning and the first end
#[derive(Clone, Copy, Debug)]
struct Zone {
    last_began: Nanos,
    first_ended: Nanos,
}

impl History {
    /// A register was written.
    pub fn wrote(&mut self, register: u64, observed: Observed) {
        self.writes.entry(register).or_default().push(observed);
    }

    /// A register was read.
    pub fn read(&mut self, register: u64, observed: Observed) {
        self.reads.entry(register).or_default().push(observed);
    }

    /// How many reads and writes there are
    pub fn len(&self) -> usize {
        self.writes.values().chain(self.reads.values()).map(Vec::len).sum()
    }

    /// Whether nothing was done
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Says why it is not linearizable. A write that was never answered, if it is to count, has no end: the latest time
    /// that there is.
    ///
    /// # Errors
    /// The first thing that cannot be.
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
        // The value of the beginning was written before everything.
        zones.insert(0, (Nanos::ZERO, Zone { last_began: Nanos::ZERO, first_ended: Nanos::ZERO }));
        for write in Self::of(&self.writes, register) {
            let zone = Zone { last_began: write.began, first_ended: write.ended };
            if zones.insert(write.value, (write.began, zone)).is_some() {
                return Err(format!("{write:?}: the value was written before"));
            }
        }
        for read in Self::of(&self.reads, register) {
            let Some((written, zone)) = zones.get_mut(&read.value) else {
                return Err(format!("{read:?}: nobody wrote that"));
            };
            if read.ended < *written {
                return Err(format!("{read:?}: it was written later"));
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
                return Err(format!("it holds both of {pair:x?}"));
            }
        }
        for (value, (_, zone)) in zones.iter().filter(|(_, (_, zone))| !is_forward(zone)) {
            // The last of those that begin before it
            let at = forward.partition_point(|(_, other)| other.first_ended < zone.last_began);
            if let Some((other, around)) = forward[..at].last()
                && zone.first_ended < around.last_began
            {
                return Err(format!("{value:#x} was there ({zone:?}) while it held {other:#x} ({around:?})"));
            }
        }
        Ok(())
    }

    /// Says why a register's writes cannot have taken effect in this order, or are not these.
    ///
    /// # Errors
    /// The first that cannot be.
    pub fn check_order(&self, register: u64, values: &[u64]) -> Result<(), String> {
        let writes = Self::of(&self.writes, register);
        let by_value: BTreeMap<_, _> = writes.iter().map(|write| (write.value, write)).collect();
        if values.len() != writes.len() {
            return Err(format!(
                "register {register}: {} of {} writes are there",
                values.len(),
                writes.len()
            ));
        }
        let mut latest = Nanos::ZERO;
        for value in values {
            let write = by_value.get(value).ok_or_else(|| format!("nobody wrote {value:#x}"))?;
            if write.ended < latest {
                return Err(format!("register {register}: {write:?} comes after one that began later"));
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
    fn histories_are_told_apart() {
        let at = |value, began, ended| Observed { value, began: Nanos(began), ended: Nanos(ended) };
        let check = |writes: &[Observed], reads: &[Observed]| {
            let mut history = History::default();
            for write in writes {
                history.wrote(1, *write);
            }
            for read in reads {
                history.read(1, *read);
            }
            history.check().is_ok()
        };
        let writes = [at(1, 10, 20), at(2, 15, 30)];
        assert!(check(&writes, &[at(0, 1, 12), at(1, 17, 18), at(2, 31, 32)]));
        // Both may be the last.
        assert!(check(&writes, &[at(1, 40, 50)]));
        assert!(!check(&writes, &[at(1, 40, 50), at(2, 60, 70)]), "one after the other, and back");
        assert!(!check(&writes, &[at(0, 31, 32)]), "nobody sees the beginning after a write");
        assert!(!check(&writes, &[at(2, 1, 5)]), "nobody sees what is to come");
        assert!(!check(&writes, &[at(3, 40, 50)]), "nobody wrote it");
        assert!(!check(&[at(1, 1, 2), at(2, 3, 4)], &[at(1, 5, 6)]), "it was written over");
        assert!(check(&[at(1, 1, 2), at(2, 3, 7)], &[at(1, 5, 6), at(2, 6, 7)]));
        assert!(!check(&[at(1, 1, 2), at(2, 3, 4), at(3, 5, 6)], &[at(1, 7, 8)]));
        let mut history = History::default();
        for write in writes {
            history.wrote(1, write);
        }
        history.wrote(1, at(3, 31, 40));
        assert!(history.check_order(1, &[2, 1, 3]).is_ok() && history.check_order(1, &[1, 2, 3]).is_ok());
        assert!(history.check_order(1, &[1, 3, 2]).is_err() && history.check_order(1, &[1, 2]).is_err());
    }
}
