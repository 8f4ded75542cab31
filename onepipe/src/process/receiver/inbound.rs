//! Receiver state of one sender: reassembles runs of packets, each of which is accepted as a whole and once,
//! or refused (1Pipe, section 6.1).
//!
//! Packets are decided in the order of their PSNs. A missing packet may still arrive, on another path, until
//! the barrier passes the timestamp of a packet behind it: then its own timestamp is past as well, because
//! timestamps grow with PSNs. Only packets behind a gap are buffered one by one; a run that is complete in
//! itself is accepted at once even there.

use crate::header::{AckBody, NakBody};
use rocev2::Psn;
use std::collections::VecDeque;
use switch::Nanos;

use super::super::config::cost;
use super::super::counters::Refusal;

/// Maximum number of PSNs missing before a packet: a sender that is further ahead has restarted, or lost that
/// many
const MAX_GAP: i32 = 1024;

/// Packet of a message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packet<'a> {
    pub(super) psn: Psn,
    /// Its timestamp, unwrapped
    pub(super) time: u64,
    pub(super) flags: RunFlags,
    pub(super) marked: bool,
    pub(super) payload: &'a [u8],
}

/// Position of a packet in its run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct RunFlags {
    /// Whether the packet is the first one of its run.
    pub(in super::super) first: bool,
    /// Whether a message ends with the packet.
    pub(in super::super) end: bool,
    /// Whether the packet is the last one of its run, and has the timestamp.
    pub(in super::super) last: bool,
}

/// Run that was accepted.
#[derive(Clone, Debug)]
pub(in super::super) struct Run {
    /// Its timestamp, unwrapped
    pub(in super::super) time: u64,
    /// Position of its last packet among the sender's
    pub(in super::super) position: u64,
    /// Its messages, concatenated
    pub(in super::super) data: Vec<u8>,
    /// Ends of all messages in `data` but the last
    pub(in super::super) ends: Vec<u32>,
    pub(in super::super) cost: usize,
}

/// Results of a call in addition to its return value; to be consumed by the caller.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcome {
    /// Buffers for small messages, of messages that were delivered
    pub(super) spare: Vec<Vec<u8>>,
    pub(super) runs: Vec<Run>,
    /// PSNs to be NAKed, and the reasons
    pub(super) naks: Vec<(Psn, u8)>,
    /// Number of packets that were buffered, and are useless because others of their run were lost
    pub(super) incomplete: u64,
}

impl Outcome {
    /// Returns whether there is nothing to be consumed.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.runs.is_empty() && self.naks.is_empty() && self.incomplete == 0
    }
}

/// Contents of an ACK: the sender's latest timestamp, its highest PSN, and its arrivals
pub(super) type AckContents = (u64, Psn, AckBody);

/// Packet behind a gap.
#[derive(Clone, Debug)]
enum Ahead {
    Missing,
    /// Accepted, or refused
    Decided,
    Kept {
        psn: Psn,
        time: u64,
        flags: RunFlags,
        payload: Vec<u8>,
    },
}

/// Run that is being reassembled.
#[derive(Clone, Debug, Default)]
struct Assembly {
    open: bool,
    data: Vec<u8>,
    ends: Vec<u32>,
    cost: usize,
}

/// Receiver state of a sender.
#[derive(Clone, Debug)]
pub(super) struct Inbound {
    /// All packets before this PSN are decided.
    next: Psn,
    /// Position of `next` among all of the sender's packets: `next`, unwrapped
    next_position: u64,
    /// Packets from the one behind `next` on; the last one is not missing
    ahead: VecDeque<Ahead>,
    assembly: Assembly,
    highest: Psn,
    /// Bit n: the packet n before the highest has arrived
    arrived: u128,
    /// Bit n: that packet ended a run that was accepted
    taken: u128,
    /// Latest timestamp received, unwrapped
    latest: u64,
    packets: u32,
    marked: u32,
    /// Bytes buffered of its messages, from arrival until the application has taken them
    held: usize,
    /// Time at which a packet was last received
    last_received_at: Nanos,
}

impl Inbound {
    /// Creates the state of a sender whose first packet has this PSN.
    pub(super) fn new(first: Psn) -> Self {
        Self {
            next: first,
            next_position: 1,
            ahead: VecDeque::new(),
            assembly: Assembly::default(),
            highest: first.sub(1),
            arrived: 0,
            taken: 0,
            latest: 0,
            packets: 0,
            marked: 0,
            held: 0,
            last_received_at: Nanos::ZERO,
        }
    }

    /// Returns the bytes buffered of the sender's messages.
    #[inline]
    pub(super) const fn held(&self) -> usize {
        self.held
    }

    /// Accounts for bytes that the application has taken.
    #[inline]
    pub(super) const fn release(&mut self, cost: usize) {
        self.held -= cost;
    }

    /// Returns the time at which a packet was last received.
    pub(super) const fn last_received_at(&self) -> Nanos {
        self.last_received_at
    }

    /// Accepts a packet received at `now`, for which there is room, if it is a run of one packet, arrives in
    /// order, and no run is incomplete and no packet missing before it: the case of nearly all packets.
    /// Returns its position; `None` if any condition fails, and then nothing has changed.
    #[inline]
    pub(super) fn accept_in_order(&mut self, packet: &Packet<'_>, now: Nanos) -> Option<u64> {
        let in_turn = packet.psn == self.next
            && packet.psn == self.highest.add(1)
            && packet.flags.first
            && packet.flags.last
            && self.ahead.is_empty()
            && !self.assembly.open;
        if !in_turn {
            return None;
        }
        self.record(packet);
        self.last_received_at = now;
        self.taken |= 1;
        self.held += cost(packet.payload.len());
        let position = self.next_position;
        (self.next, self.next_position) = (packet.psn.add(1), position + 1);
        Some(position)
    }

    /// Records that a packet was received at `now`.
    pub(super) const fn on_packet(&mut self, now: Nanos) {
        self.last_received_at = now;
    }

    /// Handles a received packet, which is to be accepted if `admission` is `Ok`. Returns the position of a
    /// packet that waits behind a gap: [`settle`](Self::settle) is due for it when the barrier has passed its
    /// timestamp.
    pub(super) fn accept(
        &mut self,
        packet: &Packet<'_>,
        admission: Result<(), Refusal>,
        out: &mut Outcome,
    ) -> Result<Option<u64>, Refusal> {
        let ahead = packet.psn.distance(self.next);
        if ahead < 0 {
            let before = self.highest.distance(packet.psn) as u32;
            if before >= AckBody::HISTORY {
                return Err(Refusal::GivenUp);
            }
            if self.arrived >> before & 1 == 1 {
                return Err(Refusal::Duplicate);
            }
            out.naks.push((packet.psn, NakBody::LATE));
            return Err(Refusal::Late);
        }
        if ahead > MAX_GAP {
            return Err(Refusal::GivenUp);
        }
        let index = (ahead as usize).checked_sub(1);
        if index.and_then(|index| self.ahead.get(index)).is_some_and(|slot| !matches!(slot, Ahead::Missing)) {
            return Err(Refusal::Duplicate);
        }
        self.record(packet);
        if let Err(why) = admission {
            let reason = if why == Refusal::NoRoom { NakBody::NO_ROOM } else { NakBody::LATE };
            out.naks.push((packet.psn, reason));
            match index {
                None => {
                    self.discard_assembly();
                    self.advance(out);
                }
                Some(index) => self.put(index, Ahead::Decided),
            }
            return Err(why);
        }
        let Some(index) = index else {
            let Packet { psn, time, flags, payload, .. } = *packet;
            let result = self.consume(psn, self.next_position, time, flags, payload, out);
            self.advance(out);
            return result.map(|()| None);
        };
        let position = self.next_position + ahead as u64;
        if packet.flags.first && packet.flags.last {
            self.complete(packet.psn, position, packet.time, packet.payload, out);
            self.put(index, Ahead::Decided);
            return Ok(None);
        }
        let Packet { psn, time, flags, payload, .. } = *packet;
        self.held += cost(payload.len());
        self.put(index, Ahead::Kept { psn, time, flags, payload: payload.to_vec() });
        Ok(Some(position))
    }

    /// Returns whether a packet shows that its sender has restarted: its timestamp is the latest, but its PSN
    /// is not. (Within one incarnation, they grow together.)
    pub(super) fn is_after_restart(&self, packet: &Packet<'_>) -> bool {
        let ahead = packet.psn.distance(self.next);
        packet.time > self.latest && !(0..=MAX_GAP).contains(&ahead)
    }

    /// Gives up everything up to `psn`, with which the sender goes on: it has restarted, or all of its
    /// packets were lost for long.
    pub(super) fn restart(&mut self, psn: Psn, out: &mut Outcome) {
        self.discard_assembly();
        while let Some(slot) = self.ahead.pop_front() {
            self.discard(&slot, out);
        }
        // Positions that still wait to be settled are below.
        self.next_position += 1 << 24;
        self.next = psn;
        // A PSN beyond all others may also be of the same incarnation, behind a long gap: accepted packets
        // stay accepted.
        if psn.distance(self.highest) <= 0 {
            self.highest = psn.sub(1);
            (self.arrived, self.taken, self.packets, self.marked) = (0, 0, 0, 0);
        }
    }

    #[inline]
    fn record(&mut self, packet: &Packet<'_>) {
        let by = packet.psn.distance(self.highest);
        if by == 1 {
            // The usual case; shifting 128 bits by a variable takes longer.
            (self.arrived, self.taken) = (self.arrived << 1, self.taken << 1);
            self.highest = packet.psn;
        } else if by > 0 {
            self.arrived = self.arrived.checked_shl(by as u32).unwrap_or(0);
            self.taken = self.taken.checked_shl(by as u32).unwrap_or(0);
            self.highest = packet.psn;
        }
        self.arrived |= self.bit(packet.psn);
        self.latest = self.latest.max(packet.time);
        self.packets = self.packets.wrapping_add(1);
        self.marked = self.marked.wrapping_add(packet.marked.into());
    }

    #[inline]
    fn bit(&self, psn: Psn) -> u128 {
        if psn == self.highest {
            return 1;
        }
        1u128.checked_shl(self.highest.distance(psn) as u32).unwrap_or(0)
    }

    fn put(&mut self, index: usize, slot: Ahead) {
        while self.ahead.len() <= index {
            self.ahead.push_back(Ahead::Missing);
        }
        self.ahead[index] = slot;
    }

    /// Accepts a run of one packet.
    fn complete(&mut self, psn: Psn, position: u64, time: u64, payload: &[u8], out: &mut Outcome) {
        self.taken |= self.bit(psn);
        let cost = cost(payload.len());
        self.held += cost;
        let mut data = out.spare.pop().unwrap_or_default();
        data.clear();
        data.extend_from_slice(payload);
        out.runs.push(Run { time, position, data, ends: Vec::new(), cost });
    }

    /// Handles the next packet in order.
    fn consume(
        &mut self,
        psn: Psn,
        position: u64,
        time: u64,
        flags: RunFlags,
        payload: &[u8],
        out: &mut Outcome,
    ) -> Result<(), Refusal> {
        if flags.first {
            // A run that its sender aborted
            self.discard_assembly();
            if flags.last {
                self.complete(psn, position, time, payload, out);
                return Ok(());
            }
            self.assembly.open = true;
        } else if !self.assembly.open {
            if flags.last {
                out.naks.push((psn, NakBody::INCOMPLETE));
            }
            return Err(Refusal::Incomplete);
        }
        let assembly = &mut self.assembly;
        assembly.data.extend_from_slice(payload);
        assembly.cost += cost(payload.len());
        self.held += cost(payload.len());
        if flags.last {
            self.taken |= self.bit(psn);
            let Assembly { data, ends, cost, .. } = core::mem::take(&mut self.assembly);
            out.runs.push(Run { time, position, data, ends, cost });
        } else if flags.end {
            assembly.ends.push(assembly.data.len() as u32);
        }
        Ok(())
    }

    /// Moves on after the next packet was decided, over those that wait behind it.
    fn advance(&mut self, out: &mut Outcome) {
        loop {
            self.next = self.next.add(1);
            self.next_position += 1;
            if !self.consume_next(out) {
                return;
            }
        }
    }

    /// Handles the next packet if it has arrived; the packets behind it move up. Returns whether it has
    /// arrived.
    fn consume_next(&mut self, out: &mut Outcome) -> bool {
        match self.ahead.pop_front() {
            None | Some(Ahead::Missing) => return false,
            // The packet was not the middle of a run that can be completed.
            Some(Ahead::Decided) => {
                self.discard_assembly();
            }
            Some(Ahead::Kept { psn, time, flags, payload }) => {
                self.held -= cost(payload.len());
                if self.consume(psn, self.next_position, time, flags, &payload, out).is_err() {
                    out.incomplete += 1;
                }
            }
        }
        true
    }

    /// Discards the run that is being reassembled. Returns whether there was one.
    pub(super) fn discard_assembly(&mut self) -> bool {
        let Assembly { open, cost, .. } = core::mem::take(&mut self.assembly);
        self.held -= cost;
        open
    }

    fn discard(&mut self, slot: &Ahead, out: &mut Outcome) {
        if let Ahead::Kept { payload, .. } = slot {
            self.held -= cost(payload.len());
            out.incomplete += 1;
        }
    }

    /// Gives up the packets missing before `position`, because the barrier has passed the timestamp of the
    /// packet there. Returns whether that decided any packet, which the sender has to be notified of.
    #[inline]
    pub(super) fn settle(&mut self, position: u64, out: &mut Outcome) -> bool {
        let is_decided = position > self.next_position;
        if is_decided {
            self.give_up_before(position, out);
        }
        is_decided
    }

    fn give_up_before(&mut self, position: u64, out: &mut Outcome) {
        let by = position - self.next_position;
        let missing = self.next;
        if self.discard_assembly() {
            out.naks.push((missing, NakBody::INCOMPLETE));
        }
        for _ in 1..by {
            if let Some(slot) = self.ahead.pop_front() {
                self.discard(&slot, out);
            }
        }
        self.next = self.next.add(by as u32);
        self.next_position = position;
        if self.consume_next(out) {
            self.advance(out);
        }
    }

    /// Returns the contents of an ACK, except for the window.
    pub(super) fn ack_contents(&self) -> AckContents {
        let mut arrivals = AckBody::default();
        arrivals.accepted = self.taken.into();
        (arrivals.packets, arrivals.marked) = (self.packets.into(), self.marked.into());
        arrivals.set_next(self.next);
        (self.latest, self.highest, arrivals)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// Returns a run of `len` packets from `psn` on, all with timestamp `time`; its bytes are the low bytes
    /// of their PSNs.
    fn run(psn: u32, len: u32, time: u64) -> impl Iterator<Item = (Psn, u64, RunFlags)> {
        (0..len).map(move |n| {
            let flags = RunFlags { first: n == 0, end: n + 1 == len || n % 2 == 1, last: n + 1 == len };
            (Psn::new(psn).add(n), time, flags)
        })
    }

    fn receive(
        inbound: &mut Inbound,
        (psn, time, flags): (Psn, u64, RunFlags),
        out: &mut Outcome,
    ) -> Result<Option<u64>, Refusal> {
        let payload = &[psn.get() as u8];
        inbound.accept(&Packet { psn, time, flags, marked: false, payload }, Ok(()), out)
    }

    proptest! {
        /// Packets arrive in any order, some twice, some never; each position is settled after the last
        /// packet has arrived. Complete runs are accepted once, in order of position or at once; incomplete
        /// runs never. No buffer is leaked.
        #[test]
        fn complete_runs_are_accepted_once(
            lens in proptest::collection::vec(1u32..6, 1..12),
            order in proptest::collection::vec((any::<prop::sample::Index>(), 0u8..10), 60),
            first in 0u32..1 << 24,
        ) {
            let mut packets = Vec::new();
            let mut expected = Vec::new();
            let mut psn = first;
            for (time, &len) in (1..).zip(&lens) {
                expected.push((time, (0..len).map(|n| (psn + n) as u8).collect::<Vec<_>>(), true));
                packets.extend(run(psn, len, time));
                psn += len;
            }
            let all = packets.len();
            let mut came = vec![false; all];
            let mut inbound = Inbound::new(Psn::new(first));
            let mut out = Outcome::default();
            let mut waiting = BTreeSet::new();
            // Shuffled by swaps; a tenth is lost, a tenth arrives twice.
            for (at, (with, _)) in order.iter().enumerate().take(all) {
                packets.swap(at, with.index(all));
            }
            for (&packet, &(_, fate)) in packets.iter().zip(order.iter().cycle()) {
                let number = packet.0.distance(Psn::new(first)) as usize;
                if fate == 0 {
                    continue;
                }
                came[number] = true;
                if let Ok(Some(position)) = receive(&mut inbound, packet, &mut out) {
                    waiting.insert((packet.1, position));
                }
                if fate == 1 {
                    prop_assert_eq!(receive(&mut inbound, packet, &mut out), Err(Refusal::Duplicate));
                }
            }
            // The barrier passes all packets, in order, and the runs completed thereby as well.
            let mut runs = Vec::new();
            loop {
                waiting.extend(out.runs.iter().map(|run| (run.time, run.position)));
                runs.append(&mut out.runs);
                let Some((_, position)) = waiting.pop_first() else { break };
                inbound.settle(position, &mut out);
            }
            out.runs = runs;
            let mut at = 0;
            for ((_, _, whole), &len) in expected.iter_mut().zip(&lens) {
                *whole = came[at..at + len as usize].iter().all(|&came| came);
                at += len as usize;
            }
            out.runs.sort_by_key(|run| run.time);
            let taken: Vec<_> = out.runs.iter().map(|run| (run.time, run.data.clone())).collect();
            let wanted: Vec<_> = expected.into_iter().filter(|run| run.2).map(|(time, data, _)| (time, data)).collect();
            prop_assert_eq!(taken, wanted);
            let costs: usize = out.runs.iter().map(|run| run.cost).sum();
            let open = inbound.assembly.cost;
            prop_assert_eq!(inbound.held, costs + open, "no other bytes are held");
            prop_assert!(inbound.ahead.is_empty());
        }
    }

    #[test]
    fn messages_of_a_run_are_separated() {
        let mut inbound = Inbound::new(Psn::new(0xff_ffff));
        let mut out = Outcome::default();
        for packet in run(0xff_ffff, 5, 7) {
            assert_eq!(receive(&mut inbound, packet, &mut out), Ok(None));
        }
        let run = &out.runs[0];
        assert_eq!((&run.data[..], &run.ends[..], run.time), (&[255, 0, 1, 2, 3][..], &[2, 4][..], 7));
        let (latest, highest, arrivals) = inbound.ack_contents();
        assert_eq!((latest, highest, arrivals.next()), (7, Psn::new(3), Psn::new(4)));
        assert_eq!((arrivals.accepted.get(), arrivals.packets.get()), (1, 5));
    }

    #[test]
    fn incomplete_and_late_runs_are_naked() {
        let mut inbound = Inbound::new(Psn::new(10));
        let mut out = Outcome::default();
        let [first, _, last] = run(10, 3, 5).collect::<Vec<_>>()[..] else { unreachable!("three packets") };
        assert_eq!(receive(&mut inbound, first, &mut out), Ok(None));
        assert_eq!(receive(&mut inbound, last, &mut out), Ok(Some(3)));
        inbound.settle(3, &mut out);
        assert_eq!(out.naks, [(Psn::new(11), NakBody::INCOMPLETE), (Psn::new(12), NakBody::INCOMPLETE)]);
        assert_eq!((out.incomplete, inbound.held), (1, 0));
        // The lost packet arrives after all.
        let middle = run(10, 3, 5).nth(1).unwrap();
        assert_eq!(receive(&mut inbound, middle, &mut out), Err(Refusal::Late));
        let packet = run(13, 1, 6).next().unwrap();
        let (psn, time, flags) = packet;
        let late = Packet { psn, time, flags, marked: true, payload: &[] };
        assert_eq!(inbound.accept(&late, Err(Refusal::NoRoom), &mut out), Err(Refusal::NoRoom));
        assert_eq!(out.naks[2..], [(Psn::new(11), NakBody::LATE), (psn, NakBody::NO_ROOM)]);
        let (_, highest, arrivals) = inbound.ack_contents();
        assert_eq!(
            (highest, arrivals.next(), arrivals.accepted.get(), arrivals.marked.get()),
            (psn, psn.add(1), 0, 1)
        );
    }

    #[test]
    fn restart_is_detected_by_the_timestamp() {
        let mut inbound = Inbound::new(Psn::new(1000));
        let mut out = Outcome::default();
        for packet in run(1000, 1, 50).chain(run(1001, 2, 60).take(1)) {
            assert_eq!(receive(&mut inbound, packet, &mut out), Ok(None));
        }
        let packet = |psn, time| Packet {
            psn: Psn::new(psn),
            time,
            flags: RunFlags { first: true, end: true, last: true },
            marked: false,
            payload: &[],
        };
        assert!(!inbound.is_after_restart(&packet(1000, 50)), "a duplicate packet");
        assert!(!inbound.is_after_restart(&packet(1002, 70)), "the next packet");
        assert!(inbound.is_after_restart(&packet(7, 70)) && inbound.is_after_restart(&packet(9000, 70)));
        inbound.restart(Psn::new(7), &mut out);
        assert_eq!(inbound.accept(&packet(7, 70), Ok(()), &mut out), Ok(None));
        assert_eq!((out.runs.len(), inbound.held), (2, cost(1) + cost(0)));
    }
}
