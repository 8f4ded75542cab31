//! What comes from one sender: runs of packets put together, each taken whole and once, or refused (1Pipe, section 6.1).
//!
//! Packets are decided in the order of their PSNs. One that is missing may still come, on another path, until the barrier
//! passes the timestamp of one behind it: then its own is past as well, as timestamps grow with PSNs. Only what arrives
//! behind a gap is kept packet by packet; a run that is complete by itself is taken at once even there.

use rocev2::Psn;
use rocev2::onepipe::{Arrivals, Refused};
use std::collections::VecDeque;
use switch::Nanos;

use super::config::PACKET_COST;
use super::counters::Refusal;

/// PSNs that may be missing before one: a sender that is further ahead has begun anew, or lost that much
const MAX_GAP: i32 = 1024;

/// A packet of a message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packet<'a> {
    pub(super) psn: Psn,
    /// Its timestamp, on the line
    pub(super) time: u64,
    pub(super) part: Part,
    pub(super) marked: bool,
    pub(super) payload: &'a [u8],
}

/// Where in its run a packet stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// It is the first.
    pub(super) first: bool,
    /// A message ends with it.
    pub(super) end: bool,
    /// It is the last, and has the timestamp.
    pub(super) last: bool,
}

/// What a packet takes of windows and buffers.
pub(super) const fn cost(payload: usize) -> usize {
    payload + PACKET_COST
}

/// A run that was taken.
#[derive(Debug)]
pub(super) struct Run {
    /// Its timestamp
    pub(super) time: u64,
    /// Where its last packet stands among the sender's
    pub(super) position: u64,
    /// Its messages, one after the other
    pub(super) data: Vec<u8>,
    /// Where messages end, but for the last
    pub(super) ends: Vec<u32>,
    pub(super) cost: usize,
}

/// What came of a call, beside its result; taken away by the caller.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// Memory for small messages, of those that were delivered
    pub(super) spare: Vec<Vec<u8>>,
    pub(super) runs: Vec<Run>,
    /// PSNs to say no to, and why
    pub(super) naks: Vec<(Psn, u8)>,
    /// Packets that were kept, and are of no use as others of their run were lost
    pub(super) incomplete: u64,
}

impl Outcome {
    /// Whether there is nothing to be taken away
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.runs.is_empty() && self.naks.is_empty() && self.incomplete == 0
    }
}

/// A sender's latest timestamp, its highest PSN, and what has come of it
pub(super) type Report = (u64, Psn, Arrivals);

/// A packet behind a gap.
#[derive(Debug)]
enum Ahead {
    Missing,
    /// Taken, or refused
    Decided,
    Kept {
        psn: Psn,
        time: u64,
        part: Part,
        payload: Vec<u8>,
    },
}

/// A run that is being put together.
#[derive(Debug, Default)]
struct Assembly {
    open: bool,
    data: Vec<u8>,
    ends: Vec<u32>,
    cost: usize,
}

/// A sender, seen from its receiver.
#[derive(Debug)]
pub(super) struct Inbound {
    /// Everything before this is decided.
    next: Psn,
    /// Where that stands among all of its packets: PSNs wrap
    line: u64,
    /// Packets from the one behind `next` on; the last one is not missing
    ahead: VecDeque<Ahead>,
    assembly: Assembly,
    highest: Psn,
    /// Bit n: the packet n before the highest has come
    seen: u128,
    /// and ended a run that was taken
    taken: u128,
    /// The latest timestamp
    latest: u64,
    packets: u32,
    marked: u32,
    /// What is kept of its messages, in bytes, from arrival until the application has taken them
    pub(super) held: usize,
    /// It was last heard then.
    pub(super) heard: Nanos,
    /// Runs of which it has not been told
    pub(super) untold: u32,
    /// There is something to tell it, and it will be told by then.
    pub(super) tell_at: Option<Nanos>,
    /// It stands in the queue of those who are to be told.
    pub(super) queued: bool,
    /// The window that it was last told of
    pub(super) told_window: u32,
    /// What all senders have left kept that small: it is to be told when there is more.
    pub(super) is_short: bool,
}

impl Inbound {
    /// A sender that begins with this PSN.
    pub(super) fn new(first: Psn) -> Self {
        Self {
            next: first,
            line: 1,
            ahead: VecDeque::new(),
            assembly: Assembly::default(),
            highest: first.sub(1),
            seen: 0,
            taken: 0,
            latest: 0,
            packets: 0,
            marked: 0,
            held: 0,
            heard: Nanos::ZERO,
            untold: 0,
            tell_at: None,
            queued: false,
            told_window: u32::MAX,
            is_short: false,
        }
    }

    /// Takes a packet, for which there is room, if it is a run by itself and comes in its turn, nothing being put together or
    /// missing before it: what nearly all are. Its position; `None` if it is anything else, and then nothing has happened.
    #[inline]
    pub(super) fn take_in_turn(&mut self, packet: &Packet<'_>) -> Option<u64> {
        let in_turn = packet.psn == self.next
            && packet.psn == self.highest.add(1)
            && packet.part.first
            && packet.part.last
            && self.ahead.is_empty()
            && !self.assembly.open;
        if !in_turn {
            return None;
        }
        self.see(packet);
        self.taken |= 1;
        self.held += cost(packet.payload.len());
        let position = self.line;
        (self.next, self.line) = (packet.psn.add(1), position + 1);
        Some(position)
    }

    /// A packet came, which is to be taken if `fit` says so. Whether it is, and if it waits behind a gap, its position: when the
    /// barrier has passed its timestamp, [`settle`](Self::settle) is due.
    pub(super) fn take(
        &mut self,
        packet: &Packet<'_>,
        fit: Result<(), Refusal>,
        out: &mut Outcome,
    ) -> Result<Option<u64>, Refusal> {
        let ahead = packet.psn.distance(self.next);
        if ahead < 0 {
            let before = self.highest.distance(packet.psn) as u32;
            if before >= Arrivals::HISTORY {
                return Err(Refusal::GivenUp);
            }
            if self.seen >> before & 1 == 1 {
                return Err(Refusal::Duplicate);
            }
            out.naks.push((packet.psn, Refused::LATE));
            return Err(Refusal::Late);
        }
        if ahead > MAX_GAP {
            return Err(Refusal::GivenUp);
        }
        let place = (ahead as usize).checked_sub(1);
        if place.and_then(|place| self.ahead.get(place)).is_some_and(|slot| !matches!(slot, Ahead::Missing)) {
            return Err(Refusal::Duplicate);
        }
        self.see(packet);
        if let Err(why) = fit {
            let reason = if why == Refusal::NoRoom { Refused::NO_ROOM } else { Refused::LATE };
            out.naks.push((packet.psn, reason));
            match place {
                None => {
                    self.give_up();
                    self.advance(out);
                }
                Some(place) => self.put(place, Ahead::Decided),
            }
            return Err(why);
        }
        let Some(place) = place else {
            let Packet { psn, time, part, payload, .. } = *packet;
            let result = self.consume(psn, self.line, time, part, payload, out);
            self.advance(out);
            return result.map(|()| None);
        };
        let position = self.line + ahead as u64;
        if packet.part.first && packet.part.last {
            self.complete(packet.psn, position, packet.time, packet.payload, out);
            self.put(place, Ahead::Decided);
            return Ok(None);
        }
        let Packet { psn, time, part, payload, .. } = *packet;
        self.held += cost(payload.len());
        self.put(place, Ahead::Kept { psn, time, part, payload: payload.to_vec() });
        Ok(Some(position))
    }

    /// Whether a packet shows that its sender has begun anew: its timestamp is the latest, and its PSN is not. (Within one life,
    /// they grow together.)
    pub(super) fn is_of_another_life(&self, packet: &Packet<'_>) -> bool {
        let ahead = packet.psn.distance(self.next);
        packet.time > self.latest && !(0..=MAX_GAP).contains(&ahead)
    }

    /// Everything up to here is given up, and the sender goes on with this PSN: it has begun anew, or nothing came of it for long.
    pub(super) fn begin_anew(&mut self, psn: Psn, out: &mut Outcome) {
        self.give_up();
        while let Some(slot) = self.ahead.pop_front() {
            self.forget(&slot, out);
        }
        // Positions of what still waits to be settled lie before.
        self.line += 1 << 24;
        self.next = psn;
        // One that is beyond all others may as well come from the same sender, behind a long gap: what was taken of it stays so.
        if psn.distance(self.highest) <= 0 {
            self.highest = psn.sub(1);
            (self.seen, self.taken, self.packets, self.marked) = (0, 0, 0, 0);
        }
    }

    #[inline]
    fn see(&mut self, packet: &Packet<'_>) {
        let by = packet.psn.distance(self.highest);
        if by == 1 {
            // Nearly always; a shift by any number of 128 bits takes some time.
            (self.seen, self.taken) = (self.seen << 1, self.taken << 1);
            self.highest = packet.psn;
        } else if by > 0 {
            self.seen = self.seen.checked_shl(by as u32).unwrap_or(0);
            self.taken = self.taken.checked_shl(by as u32).unwrap_or(0);
            self.highest = packet.psn;
        }
        self.seen |= self.bit(packet.psn);
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

    fn put(&mut self, place: usize, slot: Ahead) {
        while self.ahead.len() <= place {
            self.ahead.push_back(Ahead::Missing);
        }
        self.ahead[place] = slot;
    }

    /// A run of one packet
    fn complete(&mut self, psn: Psn, position: u64, time: u64, payload: &[u8], out: &mut Outcome) {
        self.taken |= self.bit(psn);
        let cost = cost(payload.len());
        self.held += cost;
        let mut data = out.spare.pop().unwrap_or_default();
        data.clear();
        data.extend_from_slice(payload);
        out.runs.push(Run { time, position, data, ends: Vec::new(), cost });
    }

    /// The next packet of all, in order
    fn consume(
        &mut self,
        psn: Psn,
        position: u64,
        time: u64,
        part: Part,
        payload: &[u8],
        out: &mut Outcome,
    ) -> Result<(), Refusal> {
        if part.first {
            // What its sender broke off
            self.give_up();
            if part.last {
                self.complete(psn, position, time, payload, out);
                return Ok(());
            }
            self.assembly.open = true;
        } else if !self.assembly.open {
            if part.last {
                out.naks.push((psn, Refused::INCOMPLETE));
            }
            return Err(Refusal::Incomplete);
        }
        let assembly = &mut self.assembly;
        assembly.data.extend_from_slice(payload);
        assembly.cost += cost(payload.len());
        self.held += cost(payload.len());
        if part.last {
            self.taken |= self.bit(psn);
            let Assembly { data, ends, cost, .. } = core::mem::take(&mut self.assembly);
            out.runs.push(Run { time, position, data, ends, cost });
        } else if part.end {
            assembly.ends.push(assembly.data.len() as u32);
        }
        Ok(())
    }

    /// The next one is decided, and perhaps some that wait behind it.
    fn advance(&mut self, out: &mut Outcome) {
        loop {
            self.next = self.next.add(1);
            self.line += 1;
            if !self.go_on(out) {
                return;
            }
        }
    }

    /// Whether the packet that is next has come; what waits behind it moves up.
    fn go_on(&mut self, out: &mut Outcome) -> bool {
        match self.ahead.pop_front() {
            None | Some(Ahead::Missing) => return false,
            // Whatever it was, it was not the middle of a run that can be completed.
            Some(Ahead::Decided) => {
                self.give_up();
            }
            Some(Ahead::Kept { psn, time, part, payload }) => {
                self.held -= cost(payload.len());
                if self.consume(psn, self.line, time, part, &payload, out).is_err() {
                    out.incomplete += 1;
                }
            }
        }
        true
    }

    /// What was put together so far is of no use.
    fn give_up(&mut self) -> bool {
        let Assembly { open, cost, .. } = core::mem::take(&mut self.assembly);
        self.held -= cost;
        open
    }

    fn forget(&mut self, slot: &Ahead, out: &mut Outcome) {
        if let Ahead::Kept { payload, .. } = slot {
            self.held -= cost(payload.len());
            out.incomplete += 1;
        }
    }

    /// The barrier has passed the timestamp of the packet at this position: what is missing before it will not come. Whether
    /// that decides anything, which the sender waits to hear.
    #[inline]
    pub(super) fn settle(&mut self, position: u64, out: &mut Outcome) -> bool {
        position > self.line && self.give_up_before(position, out)
    }

    fn give_up_before(&mut self, position: u64, out: &mut Outcome) -> bool {
        let by = position - self.line;
        let missing = self.next;
        if self.give_up() {
            out.naks.push((missing, Refused::INCOMPLETE));
        }
        for _ in 1..by {
            if let Some(slot) = self.ahead.pop_front() {
                self.forget(&slot, out);
            }
        }
        self.next = self.next.add(by as u32);
        self.line = position;
        if self.go_on(out) {
            self.advance(out);
        }
        true
    }

    /// The sender has been silent for long in the middle of a run.
    pub(super) fn abandon(&mut self) -> bool {
        self.give_up()
    }

    /// What an ACK says, but for the window.
    pub(super) fn report(&self) -> Report {
        let mut arrivals = Arrivals::default();
        arrivals.taken = self.taken.into();
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

    /// A run of `len` packets from `psn` on, all of timestamp `time`; its bytes are the low bytes of their PSNs
    fn run(psn: u32, len: u32, time: u64) -> impl Iterator<Item = (Psn, u64, Part)> {
        (0..len).map(move |n| {
            let part = Part { first: n == 0, end: n + 1 == len || n % 2 == 1, last: n + 1 == len };
            (Psn::new(psn).add(n), time, part)
        })
    }

    fn give(
        inbound: &mut Inbound,
        (psn, time, part): (Psn, u64, Part),
        out: &mut Outcome,
    ) -> Result<Option<u64>, Refusal> {
        let payload = &[psn.get() as u8];
        inbound.take(&Packet { psn, time, part, marked: false, payload }, Ok(()), out)
    }

    proptest! {
        /// Packets come in any order, some twice, some never; each is settled after the last one has come. Complete runs are
        /// taken once, in order of position or at once; others never. Nothing stays.
        #[test]
        fn whole_runs_are_taken_once(
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
            // Shuffled by swaps; a tenth is lost, a tenth comes twice.
            for (at, (with, _)) in order.iter().enumerate().take(all) {
                packets.swap(at, with.index(all));
            }
            for (&packet, &(_, fate)) in packets.iter().zip(order.iter().cycle()) {
                let number = packet.0.distance(Psn::new(first)) as usize;
                if fate == 0 {
                    continue;
                }
                came[number] = true;
                if let Ok(Some(position)) = give(&mut inbound, packet, &mut out) {
                    waiting.insert((packet.1, position));
                }
                if fate == 1 {
                    prop_assert_eq!(give(&mut inbound, packet, &mut out), Err(Refusal::Duplicate));
                }
            }
            // The barrier passes all of it, in order, and what is completed by that as well.
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
            prop_assert_eq!(inbound.held, costs + open, "nothing else is kept");
            prop_assert!(inbound.ahead.is_empty());
        }
    }

    #[test]
    fn messages_of_a_run_are_told_apart() {
        let mut inbound = Inbound::new(Psn::new(0xff_ffff));
        let mut out = Outcome::default();
        for packet in run(0xff_ffff, 5, 7) {
            assert_eq!(give(&mut inbound, packet, &mut out), Ok(None));
        }
        let run = &out.runs[0];
        assert_eq!((&run.data[..], &run.ends[..], run.time), (&[255, 0, 1, 2, 3][..], &[2, 4][..], 7));
        let (latest, highest, arrivals) = inbound.report();
        assert_eq!((latest, highest, arrivals.next()), (7, Psn::new(3), Psn::new(4)));
        assert_eq!((arrivals.taken.get(), arrivals.packets.get()), (1, 5));
    }

    #[test]
    fn what_is_broken_off_or_late_is_said() {
        let mut inbound = Inbound::new(Psn::new(10));
        let mut out = Outcome::default();
        let [first, _, last] = run(10, 3, 5).collect::<Vec<_>>()[..] else { unreachable!("three") };
        assert_eq!(give(&mut inbound, first, &mut out), Ok(None));
        assert_eq!(give(&mut inbound, last, &mut out), Ok(Some(3)));
        inbound.settle(3, &mut out);
        assert_eq!(out.naks, [(Psn::new(11), Refused::INCOMPLETE), (Psn::new(12), Refused::INCOMPLETE)]);
        assert_eq!((out.incomplete, inbound.held), (1, 0));
        // The lost one comes after all.
        let middle = run(10, 3, 5).nth(1).unwrap();
        assert_eq!(give(&mut inbound, middle, &mut out), Err(Refusal::Late));
        let packet = run(13, 1, 6).next().unwrap();
        let (psn, time, part) = packet;
        let late = Packet { psn, time, part, marked: true, payload: &[] };
        assert_eq!(inbound.take(&late, Err(Refusal::NoRoom), &mut out), Err(Refusal::NoRoom));
        assert_eq!(out.naks[2..], [(Psn::new(11), Refused::LATE), (psn, Refused::NO_ROOM)]);
        let (_, highest, arrivals) = inbound.report();
        assert_eq!(
            (highest, arrivals.next(), arrivals.taken.get(), arrivals.marked.get()),
            (psn, psn.add(1), 0, 1)
        );
    }

    #[test]
    fn another_life_is_known_by_its_time() {
        let mut inbound = Inbound::new(Psn::new(1000));
        let mut out = Outcome::default();
        for packet in run(1000, 1, 50).chain(run(1001, 2, 60).take(1)) {
            assert_eq!(give(&mut inbound, packet, &mut out), Ok(None));
        }
        let packet = |psn, time| Packet {
            psn: Psn::new(psn),
            time,
            part: Part { first: true, end: true, last: true },
            marked: false,
            payload: &[],
        };
        assert!(!inbound.is_of_another_life(&packet(1000, 50)), "a duplicate");
        assert!(!inbound.is_of_another_life(&packet(1002, 70)), "the next");
        assert!(inbound.is_of_another_life(&packet(7, 70)) && inbound.is_of_another_life(&packet(9000, 70)));
        inbound.begin_anew(Psn::new(7), &mut out);
        assert_eq!(inbound.take(&packet(7, 70), Ok(()), &mut out), Ok(None));
        assert_eq!((out.runs.len(), inbound.held), (2, cost(1) + cost(0)));
    }
}
