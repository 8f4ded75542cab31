//! Complete runs that wait for the commit barrier, in the order of delivery (1Pipe, section 5.1).

use super::super::receiver::inbound::Run;
use super::super::receiver::reorder::{DeliveryKey, Reorder, Waiting};
use super::super::types::ProcessId;

/// Priority queue of runs.
#[derive(Clone, Debug, Default)]
pub(super) struct Queue(Reorder);

impl Queue {
    /// Adds a complete run of the sender with index `peer`.
    #[inline]
    pub(super) fn push(&mut self, sender: ProcessId, peer: u32, run: Run) {
        self.0.push(DeliveryKey::new(run.time, sender, run.position), peer, Some(run));
    }

    /// Removes the run that `sender` has sent with this timestamp. Returns the bytes that it held, or `None`
    /// if there is no such run.
    pub(super) fn recall(&mut self, sender: ProcessId, time: u64) -> Option<usize> {
        let runs = self.0.remove_runs(|key| key.time == time && key.sender == sender);
        (!runs.is_empty()).then(|| runs.iter().map(|run| run.cost).sum())
    }

    /// Removes all runs of `sender` that are later than `time`. Returns the bytes that they held.
    pub(super) fn discard(&mut self, sender: ProcessId, time: u64) -> usize {
        let runs = self.0.remove_runs(|key| key.time > time && key.sender == sender);
        runs.iter().map(|run| run.cost).sum()
    }

    /// Returns the time of the first run, recalled ones included.
    pub(super) fn first(&self) -> Option<u64> {
        self.0.first().map(|key| key.time)
    }

    /// Returns the latest timestamp of a run, or 0 if there is none.
    pub(super) fn latest(&self) -> u64 {
        self.0.latest().unwrap_or(0)
    }

    /// Returns the number of runs, recalled ones included.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Removes and returns the first run that is earlier than `time`: its sender, the sender's index, and the
    /// run.
    #[inline]
    pub(super) fn pop_before(&mut self, time: u64) -> Option<(ProcessId, u32, Run)> {
        loop {
            let Waiting { key, peer, run } = self.0.pop_before(time)?;
            if let Some(run) = run {
                return Some((key.sender, peer, run));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recalled_and_discarded_runs_are_not_delivered() {
        let mut queue = Queue::default();
        for (time, sender) in [(5, 1), (7, 1), (6, 2), (6, 1), (9, 2)] {
            let run = Run { time, position: 0, data: Vec::new(), ends: Vec::new(), cost: time as usize };
            queue.push(ProcessId(sender), sender, run);
        }
        assert_eq!(queue.recall(ProcessId(1), 6), Some(6));
        assert_eq!((queue.recall(ProcessId(1), 6), queue.recall(ProcessId(3), 5)), (None, None));
        assert_eq!(queue.discard(ProcessId(2), 6), 9, "its run at 6 is not later than 6");
        let order: Vec<_> =
            core::iter::from_fn(|| queue.pop_before(10)).map(|(id, _, run)| (run.time, id.0)).collect();
        assert_eq!((order, queue.len()), (vec![(5, 1), (6, 2), (7, 1)], 0));
    }
}
