//! What waits for the barrier, in the order of delivery (1Pipe, section 4.1): by timestamp, then by sender, then as it was sent.

use core::cmp::Reverse;
use std::collections::BinaryHeap;

use super::ProcessId;
use super::inbound::Run;

/// The order of delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Turn {
    /// A timestamp on the line
    pub(super) time: u64,
    /// In place of the sender, if that bug is planted; 0 otherwise
    #[cfg(feature = "canary")]
    arrival: u64,
    pub(super) sender: ProcessId,
    /// Where its last packet stands among the sender's
    pub(super) position: u64,
}

impl Turn {
    pub(super) const fn new(time: u64, sender: ProcessId, position: u64) -> Self {
        Self {
            time,
            #[cfg(feature = "canary")]
            arrival: 0,
            sender,
            position,
        }
    }
}

/// Where no run is
const MARK: u32 = u32::MAX;

/// A priority queue of runs, and of marks where packets wait behind a gap.
#[derive(Debug, Default)]
pub(super) struct Reorder {
    /// Turns, places of runs, and the sender's place among the peers
    heap: BinaryHeap<Reverse<(Turn, u32, u32)>>,
    runs: Vec<Option<Run>>,
    free: Vec<u32>,
    /// Ties are broken by arrival (a planted bug)
    #[cfg(feature = "canary")]
    pub(super) by_arrival: Option<u64>,
}

impl Reorder {
    /// Adds a run of the sender at place `peer`, or if there is none, a mark.
    pub(super) fn push(&mut self, turn: Turn, peer: u32, run: Option<Run>) {
        #[cfg(feature = "canary")]
        let turn = match &mut self.by_arrival {
            Some(arrivals) => {
                *arrivals += 1;
                Turn { arrival: *arrivals, ..turn }
            }
            None => turn,
        };
        let place = match run {
            None => MARK,
            Some(run) => {
                let place = self.free.pop().unwrap_or(self.runs.len() as u32);
                if place as usize == self.runs.len() {
                    self.runs.push(None);
                }
                self.runs[place as usize] = Some(run);
                place
            }
        };
        self.heap.push(Reverse((turn, place, peer)));
    }

    /// How many wait
    pub(super) fn len(&self) -> usize {
        self.heap.len()
    }

    /// Whose turn is next
    pub(super) fn first(&self) -> Option<Turn> {
        self.heap.peek().map(|Reverse((turn, ..))| *turn)
    }

    /// Takes that out.
    pub(super) fn pop(&mut self) -> Option<(Turn, u32, Option<Run>)> {
        let Reverse((turn, place, peer)) = self.heap.pop()?;
        let run = self.runs.get_mut(place as usize).and_then(Option::take);
        if run.is_some() {
            self.free.push(place);
        }
        Some((turn, peer, run))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_time_then_sender_then_position() {
        let mut reorder = Reorder::default();
        let turns = [(7, 2, 1), (7, 1, 9), (5, 3, 2), (7, 2, 0), (5, 3, 1)];
        for (n, (time, sender, position)) in (0..).zip(turns) {
            let run = (n % 2 == 0).then(|| Run { time, position, data: vec![n], ends: Vec::new(), cost: 0 });
            reorder.push(Turn::new(time, ProcessId(sender), position), n.into(), run);
        }
        assert_eq!(reorder.first().map(|turn| turn.time), Some(5));
        let order: Vec<_> = core::iter::from_fn(|| reorder.pop())
            .map(|(_, peer, run)| (peer, run.map(|run| run.data)))
            .collect();
        let run = |n: u8| (u32::from(n), Some(vec![n]));
        assert_eq!(order, [run(4), run(2), (1, None), (3, None), run(0)]);
    }
}
