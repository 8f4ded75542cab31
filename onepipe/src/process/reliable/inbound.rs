//! Receiver state of one sender's incarnation: packets are kept until their run is complete; nothing is given
//! up but what the sender recalls (1Pipe, section 5.1).

use rocev2::Psn;
use std::collections::VecDeque;

use super::super::config::cost;
use super::super::counters::Refusal;
use super::super::receiver::inbound::{Run, RunFlags};
use crate::reliable::ReliableAckBody;

/// Packet of a reliable message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packet<'a> {
    /// Its timestamp, unwrapped
    pub(super) time: u64,
    pub(super) flags: RunFlags,
    pub(super) payload: &'a [u8],
}

/// State of a packet from the first missing one on.
#[derive(Clone, Debug)]
enum Slot {
    Missing,
    Held {
        flags: RunFlags,
        time: u64,
        payload: Vec<u8>,
    },
    /// Recalled
    Void,
}

/// Run that is being reassembled.
#[derive(Clone, Debug, Default)]
struct Assembly {
    /// Position of its first packet
    first: u64,
    is_open: bool,
    data: Vec<u8>,
    ends: Vec<u32>,
    cost: usize,
}

/// Runs that are complete, and buffers for small ones.
#[derive(Clone, Debug, Default)]
pub(super) struct Complete {
    pub(super) runs: Vec<Run>,
    pub(super) spare: Vec<Vec<u8>>,
    /// Bytes that are no longer held, because packets were recalled or have no run
    pub(super) dropped: usize,
}

/// Receiver state of a sender.
#[derive(Clone, Debug)]
pub(super) struct Inbound {
    /// Position of the first packet that is missing. The first packet of an incarnation has position 0 and
    /// PSN 0
    next: u64,
    /// Packets from `next` on
    slots: VecDeque<Slot>,
    assembly: Assembly,
    /// Position behind the highest packet received
    end: u64,
    /// Latest timestamp of a run, unwrapped
    latest: u64,
    /// Bytes held of packets behind `next`
    ahead: usize,
    packets: u32,
    marked: u32,
}

impl Inbound {
    /// Creates the state of a sender that has sent nothing yet.
    pub(super) fn new() -> Self {
        Self {
            next: 0,
            slots: VecDeque::new(),
            assembly: Assembly::default(),
            end: 0,
            latest: 0,
            ahead: 0,
            packets: 0,
            marked: 0,
        }
    }

    /// Returns the bytes held behind the first missing packet.
    #[inline]
    pub(super) const fn ahead(&self) -> usize {
        self.ahead
    }

    /// Returns the bytes held of packets whose runs are not complete.
    pub(super) const fn incomplete(&self) -> usize {
        self.ahead + self.assembly.cost
    }

    /// Counts a packet that has arrived.
    #[inline]
    pub(super) const fn count(&mut self, marked: bool) {
        self.packets = self.packets.wrapping_add(1);
        self.marked = self.marked.wrapping_add(marked as u32);
    }

    /// Returns the position of a PSN, or `None` if it lies before the first packet.
    fn position(&self, psn: Psn) -> Option<u64> {
        self.next.checked_add_signed(psn.distance(psn_of(self.next)).into())
    }

    /// Returns how far a packet is ahead of the first missing one.
    ///
    /// # Errors
    /// It was received or recalled, or is ahead by `bound` or more, which no sender may be.
    #[inline]
    pub(super) fn check(&self, psn: Psn, bound: usize) -> Result<usize, Refusal> {
        let ahead = self.position(psn).and_then(|position| position.checked_sub(self.next));
        let index = ahead.ok_or(Refusal::Duplicate)? as usize;
        if index >= bound {
            return Err(Refusal::Window);
        }
        if self.slots.get(index).is_some_and(|slot| !matches!(slot, Slot::Missing)) {
            return Err(Refusal::Duplicate);
        }
        Ok(index)
    }

    /// Accepts a packet that is `index` ahead of the first missing one, as [checked](Self::check). Returns
    /// whether packets are missing before it.
    #[inline]
    pub(super) fn accept(&mut self, packet: &Packet<'_>, index: usize, out: &mut Complete) -> bool {
        let &Packet { time, flags, payload, .. } = packet;
        self.end = self.end.max(self.next + index as u64 + 1);
        if flags.last {
            self.latest = self.latest.max(time);
        }
        if index > 0 {
            self.ahead += cost(payload.len());
            self.put(index, Slot::Held { flags, time, payload: payload.to_vec() });
            return true;
        }
        if flags.first && flags.last && !self.assembly.is_open {
            let mut data = out.spare.pop().unwrap_or_default();
            data.clear();
            data.extend_from_slice(payload);
            let (position, cost) = (self.next, cost(payload.len()));
            out.runs.push(Run { time, position, data, ends: Vec::new(), cost });
        } else {
            self.consume(time, flags, payload, out);
        }
        self.next += 1;
        if self.slots.pop_front().is_some() {
            self.advance(out);
        }
        false
    }

    fn put(&mut self, index: usize, slot: Slot) {
        while self.slots.len() <= index {
            self.slots.push_back(Slot::Missing);
        }
        self.slots[index] = slot;
    }

    /// Appends the packet at `next` to its run.
    #[inline]
    fn consume(&mut self, time: u64, flags: RunFlags, payload: &[u8], out: &mut Complete) {
        let position = self.next;
        if !flags.first && !self.assembly.is_open {
            // No sender does that: all packets of a run are recalled together.
            out.dropped += cost(payload.len());
            return;
        }
        let assembly = &mut self.assembly;
        if flags.first {
            out.dropped += assembly.cost;
            *assembly = Assembly { first: position, is_open: true, ..Assembly::default() };
            if flags.last {
                assembly.data = out.spare.pop().unwrap_or_default();
                assembly.data.clear();
            }
        }
        assembly.data.extend_from_slice(payload);
        assembly.cost += cost(payload.len());
        if flags.last {
            let Assembly { data, ends, cost, .. } = core::mem::take(assembly);
            out.runs.push(Run { time, position, data, ends, cost });
        } else if flags.end {
            assembly.ends.push(assembly.data.len() as u32);
        }
    }

    /// Moves on over the packets that wait behind the first missing one.
    fn advance(&mut self, out: &mut Complete) {
        while let Some(Slot::Held { .. } | Slot::Void) = self.slots.front() {
            match self.slots.pop_front() {
                Some(Slot::Held { flags, time, payload }) => {
                    self.ahead -= cost(payload.len());
                    self.consume(time, flags, &payload, out);
                }
                _ => out.dropped += core::mem::take(&mut self.assembly).cost,
            }
            self.next += 1;
        }
    }

    /// Recalls the packets from `first` to `last`, those that have not arrived included. The run
    /// itself, if it is complete, is the caller's.
    ///
    /// # Errors
    /// The packets are not those of a run that was sent: fewer than one, or `bound` or more.
    pub(super) fn recall(
        &mut self,
        (first, last): (Psn, Psn),
        bound: usize,
        out: &mut Complete,
    ) -> Result<(), Refusal> {
        let (Some(first), Some(last)) = (self.position(first), self.position(last)) else {
            return Err(Refusal::Recall);
        };
        if last < first || last - first >= bound as u64 || last >= self.next + bound as u64 {
            return Err(Refusal::Recall);
        }
        if self.assembly.is_open && (first..=last).contains(&self.assembly.first) {
            out.dropped += core::mem::take(&mut self.assembly).cost;
        }
        for position in first.max(self.next)..=last {
            let index = (position - self.next) as usize;
            if let Some(Slot::Held { payload, .. }) = self.slots.get(index) {
                let held = cost(payload.len());
                out.dropped += held;
                self.ahead -= held;
            }
            self.put(index, Slot::Void);
        }
        self.end = self.end.max(last + 1);
        self.advance(out);
        Ok(())
    }

    /// Returns the contents of an ACK, except for the window: latest timestamp, highest PSN, and state.
    pub(super) fn ack_contents(&self) -> (u64, Psn, ReliableAckBody) {
        let mut held = 0u128;
        for (n, slot) in self.slots.iter().skip(1).take(ReliableAckBody::HISTORY).enumerate() {
            held |= u128::from(!matches!(slot, Slot::Missing)) << n;
        }
        let mut body = ReliableAckBody::default();
        body.held = held.into();
        (body.packets, body.marked) = (self.packets.into(), self.marked.into());
        body.set_next(psn_of(self.next));
        (self.latest, psn_of(self.end).sub(1), body)
    }
}

/// Returns the PSN of a position.
pub(super) const fn psn_of(position: u64) -> Psn {
    Psn::new(position as u32 & 0xff_ffff)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BOUND: usize = 64;

    /// Returns the packets of runs of these lengths, which begin at a position. Runs have the timestamps 1, 2,
    /// ...; the byte of a packet is the low byte of its position.
    fn packets(first: u64, lens: &[u64]) -> Vec<(u64, u64, RunFlags)> {
        let mut position = first;
        let mut all = Vec::new();
        for (time, &len) in (1..).zip(lens) {
            for n in 0..len {
                let flags = RunFlags { first: n == 0, end: n + 1 == len, last: n + 1 == len };
                all.push((position, time, flags));
                position += 1;
            }
        }
        all
    }

    fn at(first: u64) -> Inbound {
        Inbound { next: first, end: first, ..Inbound::new() }
    }

    fn receive(
        inbound: &mut Inbound,
        packet: (u64, u64, RunFlags),
        out: &mut Complete,
    ) -> Result<(), Refusal> {
        let (position, time, flags) = packet;
        let payload = &[position as u8];
        let psn = psn_of(position);
        let index = inbound.check(psn, BOUND)?;
        inbound.accept(&Packet { time, flags, payload }, index, out);
        Ok(())
    }

    proptest! {
        /// Packets arrive in any order and repeatedly, and some runs are recalled in between: each run that is
        /// not recalled is complete once, as it was sent, in order; no byte is leaked.
        #[test]
        fn every_run_is_complete_once_or_recalled(
            lens in prop::collection::vec(1u64..5, 1..12),
            recalled in prop::collection::vec(any::<bool>(), 12),
            order in prop::collection::vec(any::<prop::sample::Index>(), 100),
            first in prop::sample::select(vec![0, 0xff_fff0, (1 << 40) - 3]),
        ) {
            let all = packets(first, &lens);
            let (mut inbound, mut out) = (at(first), Complete::default());
            // Random packets first, then all of them, so that each arrives at least once.
            let random = order.iter().map(|at| at.index(all.len()));
            for (step, at) in random.chain(0..all.len()).enumerate() {
                let packet = all[at];
                let known = !matches!(receive(&mut inbound, packet, &mut out), Ok(()));
                prop_assert!(matches!(receive(&mut inbound, packet, &mut out), Err(Refusal::Duplicate)), "{known}");
                if step % 7 == 6 && recalled[packet.1 as usize - 1] {
                    let of_run = |other: &&(u64, u64, RunFlags)| other.1 == packet.1;
                    let (from, to) = (all.iter().find(of_run).unwrap().0, all.iter().rfind(of_run).unwrap().0);
                    inbound.recall((psn_of(from), psn_of(to)), BOUND, &mut out).unwrap();
                }
            }
            let times: Vec<_> = out.runs.iter().map(|run| run.time).collect();
            prop_assert!(times.is_sorted_by(|a, b| a < b), "{times:?}");
            for (time, &len) in (1..).zip(&lens) {
                let Some(run) = out.runs.iter().find(|run| run.time == time) else {
                    prop_assert!(recalled[time as usize - 1], "run {time} is missing");
                    continue;
                };
                let data: Vec<_> = all.iter().filter(|packet| packet.1 == time).map(|packet| packet.0 as u8).collect();
                prop_assert_eq!((&run.data, run.cost), (&data, len as usize * cost(1)));
            }
            prop_assert_eq!((inbound.incomplete(), inbound.next), (0, first + all.len() as u64));
            prop_assert!(inbound.slots.is_empty());
            prop_assert!(out.dropped.is_multiple_of(cost(1)) && out.dropped <= all.len() * cost(1));
        }
    }

    #[test]
    fn packets_that_arrive_after_their_recall_are_duplicates() {
        let (mut inbound, mut out) = (at(0), Complete::default());
        let all = packets(0, &[3, 1]);
        assert_eq!(receive(&mut inbound, all[1], &mut out), Ok(()));
        assert_eq!(inbound.recall((psn_of(0), psn_of(2)), BOUND, &mut out), Ok(()));
        assert_eq!(core::mem::take(&mut out.dropped), cost(1));
        assert_eq!(receive(&mut inbound, all[0], &mut out), Err(Refusal::Duplicate));
        assert_eq!(receive(&mut inbound, all[3], &mut out), Ok(()));
        assert_eq!((out.runs.len(), inbound.next, inbound.incomplete()), (1, 4, 0));
        assert_eq!(inbound.recall((psn_of(0), psn_of(2)), BOUND, &mut out), Ok(()), "a repeated recall");
        assert_eq!(out.dropped, 0);
        for invalid in [(3, 2), (0, BOUND as u64), (90, 90)] {
            let (first, last) = (psn_of(invalid.0), psn_of(invalid.1));
            assert_eq!(inbound.recall((first, last), BOUND, &mut out), Err(Refusal::Recall), "{invalid:?}");
        }
    }

    #[test]
    fn ack_reports_what_is_held_behind_a_gap() {
        let (mut inbound, mut out) = (at(0xff_ffff), Complete::default());
        let all = packets(0xff_ffff, &[1, 1, 1, 1]);
        for n in [0, 2, 3] {
            assert_eq!(receive(&mut inbound, all[n], &mut out), Ok(()));
            inbound.count(n == 2);
        }
        let (latest, highest, body) = inbound.ack_contents();
        assert_eq!((latest, highest, body.next()), (4, Psn::new(2), Psn::new(0)));
        assert_eq!((body.held.get(), body.packets.get(), body.marked.get()), (0b11, 3, 1));
        assert_eq!(
            (inbound.ahead(), inbound.check(Psn::new(64), BOUND)),
            (2 * cost(1), Err(Refusal::Window))
        );
    }
}
