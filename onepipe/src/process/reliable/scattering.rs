//! Reliable scatterings that are not decided, and the commit value: everything up to it is decided (1Pipe,
//! section 5.1).
//!
//! A scattering is *decided* when every one of its runs is acknowledged, or when it was aborted and every run
//! is recalled. The commit value is 1 ns before the earliest timestamp of a scattering that is not decided. If
//! there is none, it is 1 ns before the clock: no later scattering is stamped earlier.

use core::ops::Range;
use std::collections::VecDeque;

use super::super::config::cost;
use super::super::types::{ProcessId, Scattering};

/// Memory that an entry keeps for the next scattering, in bytes and in packets
const KEPT_BYTES: usize = 1 << 12;
const KEPT_PIECES: usize = 16;

/// Run, as the index of its scattering and its index in the scattering
pub(super) type RunId = (u32, u32);

/// Progress of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// In its receiver's queue, with packets that are not sent or not acknowledged
    Waiting,
    /// Only the run's last packet is left, and the windows have room for it.
    Ready,
    /// All packets were sent.
    Sent,
    /// The receiver has acknowledged the run.
    Acknowledged,
    /// A recall was sent to the receiver, or to the controller for a failed receiver.
    Recalling,
    /// The receiver will not deliver the run.
    Recalled,
}

/// Packet of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    /// Range of the scattering's bytes
    start: u32,
    end: u32,
    /// Whether a message ends with this packet
    pub(super) ends_message: bool,
}

impl Piece {
    /// Returns the bytes that the packet takes of windows.
    pub(super) const fn cost(&self) -> usize {
        cost((self.end - self.start) as usize)
    }
}

/// Run: the messages of a scattering for one receiver.
#[derive(Clone, Debug)]
pub(super) struct Run {
    /// Index of the receiver among the peers
    pub(super) peer: u32,
    /// Incarnation of the receiver; 0 for this process itself
    pub(super) incarnation: u32,
    /// Its messages, as indices in the scattering's parts, and its packets
    parts: Range<u32>,
    pieces: Range<u32>,
    pub(super) state: State,
    /// Position of its first packet, and the number of packets sent and of those known to have arrived
    pub(super) first: u64,
    pub(super) sent: u32,
    pub(super) arrived: u32,
}

impl Run {
    /// Returns the number of packets that have not been sent.
    pub(super) fn left(&self) -> u32 {
        self.pieces.len() as u32 - self.sent
    }

    /// Returns the first and last position of the packets that were sent, or `None` if none was.
    pub(super) fn positions(&self) -> Option<(u64, u64)> {
        (self.sent > 0).then(|| (self.first, self.first + u64::from(self.sent) - 1))
    }
}

/// Progress of a scattering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Packets are sent and acknowledged.
    Sending,
    /// A receiver has failed: the others recall their runs.
    Aborting,
    /// Every run is acknowledged; not reported to the application yet
    Committed,
    /// Decided and reported, but still in the schedule
    Done,
    /// The index is free.
    Free,
}

/// A scattering.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) number: u64,
    pub(super) phase: Phase,
    /// Timestamp, unwrapped, once it has been stamped
    pub(super) time: Option<u64>,
    /// Whether it is in the schedule, which refers to its index.
    pub(super) is_scheduled: bool,
    /// All messages, by receiver
    pub(super) bytes: Vec<u8>,
    /// End in `bytes` and index in the call of each message
    parts: Vec<(u32, u32)>,
    pieces: Vec<Piece>,
    pub(super) runs: Vec<Run>,
    /// Number of runs that are not ready
    waiting: u32,
    /// Number of runs that are neither acknowledged nor recalled
    pub(super) open: u32,
    /// Receivers by whose failure it was aborted
    pub(super) failed: Vec<ProcessId>,
    /// Cases that wait until it is decided
    pub(super) cases: Vec<u64>,
}

impl Entry {
    const fn empty() -> Self {
        Self {
            number: 0,
            phase: Phase::Free,
            time: None,
            is_scheduled: false,
            bytes: Vec::new(),
            parts: Vec::new(),
            pieces: Vec::new(),
            runs: Vec::new(),
            waiting: 0,
            open: 0,
            failed: Vec::new(),
            cases: Vec::new(),
        }
    }

    /// Fills the entry with a scattering. `order` has (peer, incarnation, index in `messages`), sorted by
    /// peer.
    pub(super) fn fill(
        &mut self,
        Scattering(number): Scattering,
        messages: &[(ProcessId, &[u8])],
        order: &[(u32, u32, u32)],
        fragment: usize,
    ) {
        (self.number, self.phase) = (number, Phase::Sending);
        for &(peer, incarnation, n) in order {
            let (_, message) = messages[n as usize];
            let (part, piece) = (self.parts.len() as u32, self.pieces.len() as u32);
            self.cut(message, fragment);
            self.parts.push((self.bytes.len() as u32, n));
            if self.runs.last().is_none_or(|run| run.peer != peer) {
                let (parts, pieces) = (part..part, piece..piece);
                let state = State::Waiting;
                self.runs.push(Run {
                    peer,
                    incarnation,
                    parts,
                    pieces,
                    state,
                    first: 0,
                    sent: 0,
                    arrived: 0,
                });
            }
            let run = self.runs.last_mut().expect("one was pushed");
            (run.parts.end, run.pieces.end) = (part + 1, self.pieces.len() as u32);
        }
        self.waiting = self.runs.len() as u32;
        self.open = self.waiting;
    }

    /// Fills the empty entry with a message of one packet for a peer's incarnation, which is sent with this
    /// timestamp at this position.
    #[inline]
    pub(super) fn fill_sent(
        &mut self,
        Scattering(number): Scattering,
        (peer, incarnation): (u32, u32),
        message: &[u8],
        (time, position): (u64, u64),
    ) {
        (self.number, self.phase, self.time, self.open) = (number, Phase::Sending, Some(time), 1);
        self.bytes.extend_from_slice(message);
        let end = message.len() as u32;
        self.parts.push((end, 0));
        self.pieces.push(Piece { start: 0, end, ends_message: true });
        let (first, state) = (position, State::Sent);
        let run = Run { peer, incarnation, parts: 0..1, pieces: 0..1, state, first, sent: 1, arrived: 0 };
        self.runs.push(run);
    }

    /// Appends a message and its packets, at least one.
    fn cut(&mut self, message: &[u8], fragment: usize) {
        let mut start = self.bytes.len() as u32;
        self.bytes.extend_from_slice(message);
        let end = self.bytes.len() as u32;
        loop {
            let to = end.min(start + fragment as u32);
            self.pieces.push(Piece { start, end: to, ends_message: to == end });
            if to == end {
                return;
            }
            start = to;
        }
    }

    pub(super) fn run(&self, run: u32) -> &Run {
        &self.runs[run as usize]
    }

    pub(super) fn run_mut(&mut self, run: u32) -> &mut Run {
        &mut self.runs[run as usize]
    }

    /// Returns the packet of a run with this index, and whether it is the run's last.
    pub(super) fn piece(&self, run: u32, index: u32) -> (Piece, bool) {
        let pieces = &self.runs[run as usize].pieces;
        let at = pieces.start + index;
        (self.pieces[at as usize], at + 1 == pieces.end)
    }

    /// Returns the data of a packet.
    pub(super) fn data(&self, piece: Piece) -> &[u8] {
        &self.bytes[piece.start as usize..piece.end as usize]
    }

    /// Returns the bytes that a run takes of its receiver's window.
    pub(super) fn cost(&self, run: u32) -> usize {
        let Range { start, end } = self.runs[run as usize].pieces;
        self.pieces[start as usize..end as usize].iter().map(Piece::cost).sum()
    }

    /// Returns the messages of a run, and the end of each but the last.
    pub(super) fn messages_in(&self, run: u32) -> (&[u8], Vec<u32>) {
        let Range { start, end } = self.runs[run as usize].parts;
        let from = if start == 0 { 0 } else { self.parts[start as usize - 1].0 };
        let to = self.parts[end as usize - 1].0;
        let ends = self.parts[start as usize..end as usize - 1].iter().map(|(end, _)| end - from);
        (&self.bytes[from as usize..to as usize], ends.collect())
    }

    /// Returns the number of messages of a run.
    pub(super) fn messages_of(&self, run: u32) -> u64 {
        self.runs[run as usize].parts.len() as u64
    }

    /// Returns (receiver's index, index in the call) of each message.
    pub(super) fn messages(&self) -> impl Iterator<Item = (u32, u32)> {
        let of_run = |run: &Run| {
            let Range { start, end } = run.parts;
            let peer = run.peer;
            self.parts[start as usize..end as usize].iter().map(move |&(_, number)| (peer, number))
        };
        self.runs.iter().flat_map(of_run)
    }

    /// Returns the number of messages.
    pub(super) const fn count(&self) -> usize {
        self.parts.len()
    }

    /// Discards the bytes, which are not sent again. Returns their number.
    pub(super) fn forget_bytes(&mut self) -> usize {
        let count = self.bytes.len();
        self.bytes.clear();
        if self.bytes.capacity() > KEPT_BYTES {
            self.bytes.shrink_to(KEPT_BYTES);
        }
        count
    }

    /// Marks a run as ready. Returns whether all runs are.
    pub(super) fn make_ready(&mut self, run: u32) -> bool {
        self.runs[run as usize].state = State::Ready;
        self.waiting -= 1;
        self.waiting == 0
    }
}

/// All scatterings that are not decided, by index.
#[derive(Clone, Debug, Default)]
pub(super) struct Scatterings {
    entries: Vec<Entry>,
    free: Vec<u32>,
}

impl Scatterings {
    /// Returns the index of an empty entry.
    pub(super) fn add(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.entries.push(Entry::empty());
            self.entries.len() as u32 - 1
        })
    }

    /// Empties an entry; keeps its memory if it is small.
    pub(super) fn remove(&mut self, index: u32) {
        let entry = &mut self.entries[index as usize];
        entry.phase = Phase::Free;
        (entry.time, entry.is_scheduled) = (None, false);
        (entry.waiting, entry.open) = (0, 0);
        entry.bytes.clear();
        entry.parts.clear();
        entry.pieces.clear();
        entry.runs.clear();
        entry.failed.clear();
        entry.cases.clear();
        if entry.bytes.capacity() > KEPT_BYTES || entry.pieces.capacity() > KEPT_PIECES {
            entry.bytes.shrink_to(KEPT_BYTES);
            entry.pieces.shrink_to(KEPT_PIECES);
        }
        self.free.push(index);
    }

    #[inline]
    pub(super) fn get(&self, index: u32) -> &Entry {
        &self.entries[index as usize]
    }

    #[inline]
    pub(super) fn get_mut(&mut self, index: u32) -> &mut Entry {
        &mut self.entries[index as usize]
    }

    /// Returns the indices of all scatterings for which `matches` is true.
    pub(super) fn find(&self, matches: impl Fn(&Entry) -> bool) -> Vec<u32> {
        let used = (0..).zip(&self.entries).filter(|(_, entry)| entry.phase != Phase::Free && matches(entry));
        used.map(|(index, _)| index).collect()
    }
}

/// Returns the bytes that a message of `len` bytes takes of windows.
pub(super) fn cost_of(len: usize, fragment: usize) -> usize {
    len + len.div_ceil(fragment).max(1) * cost(0)
}

/// Scattering that was stamped, from that moment until all earlier ones are decided.
#[derive(Clone, Copy, Debug)]
struct Stamped {
    time: u64,
    /// Index of the scattering
    index: u32,
    fate: Fate,
}

/// What was decided about a scattering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Undecided,
    /// Counts as decided too early; for a planted bug
    Early,
    Committed,
    Recalled,
}

/// Scatterings that were stamped and are not decided, in the order of their timestamps.
#[derive(Clone, Debug, Default)]
pub(super) struct Undecided {
    /// The first one is not decided.
    stamped: VecDeque<Stamped>,
    /// (timestamp, index) of committed scatterings before the first one that is not decided, until they are
    /// taken
    committed: VecDeque<(u64, u32)>,
    /// Latest commit value
    announced: u64,
}

impl Undecided {
    /// Adds a scattering with a timestamp that is later than all before.
    pub(super) fn push(&mut self, time: u64, index: u32) {
        debug_assert!(time > self.announced, "a commit value was too high");
        self.stamped.push_back(Stamped { time, index, fate: Fate::Undecided });
    }

    /// Decides the scattering with this timestamp. Returns whether the commit value may rise.
    pub(super) fn decide(&mut self, time: u64, fate: Fate) -> bool {
        // Mostly they are decided in their order.
        let at = match self.stamped.front() {
            Some(first) if first.time == time => Ok(0),
            _ => self.stamped.binary_search_by_key(&time, |stamped| stamped.time),
        };
        let Ok(at) = at else { return false };
        self.stamped[at].fate = fate;
        while let Some(&Stamped { time, index, fate }) = self.stamped.front()
            && matches!(fate, Fate::Committed | Fate::Recalled)
        {
            self.stamped.pop_front();
            if fate == Fate::Committed {
                self.committed.push_back((time, index));
            }
        }
        at == 0
    }

    /// Returns the commit value, unwrapped, of a beacon that carries the time `issued`: no later scattering is
    /// stamped earlier than that.
    pub(super) fn commit(&mut self, issued: u64) -> u64 {
        let mut open = self.stamped.iter().filter(|stamped| stamped.fate != Fate::Early);
        let first = open.next().map_or(issued, |first| first.time.min(issued));
        self.announced = self.announced.max(first - 1);
        self.announced
    }

    /// Removes and returns the index of the first committed scattering with a timestamp up to `time`.
    pub(super) fn take_committed(&mut self, time: u64) -> Option<u32> {
        let (first, index) = *self.committed.front()?;
        (first <= time).then(|| self.committed.pop_front())?;
        Some(index)
    }

    /// Forgets all scatterings.
    pub(super) fn clear(&mut self) {
        self.stamped.clear();
        self.committed.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[test]
    fn messages_are_cut_by_receiver() {
        let mut scatterings = Scatterings::default();
        let index = scatterings.add();
        let entry = scatterings.get_mut(index);
        let [a, b] = [ProcessId(1), ProcessId(2)];
        let messages: [(_, &[u8]); 4] = [(a, &[1; 25]), (b, &[]), (a, &[2; 10]), (b, &[3; 11])];
        entry.fill(Scattering(4), &messages, &[(0, 7, 0), (0, 7, 2), (1, 8, 1), (1, 8, 3)], 10);
        let cut = |entry: &Entry, run| {
            let pieces = (0..entry.run(run).left()).map(|n| entry.piece(run, n));
            pieces
                .map(|(piece, last)| (entry.data(piece).len(), piece.ends_message, last))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            cut(entry, 0),
            [(10, false, false), (10, false, false), (5, true, false), (10, true, true)]
        );
        assert_eq!(cut(entry, 1), [(0, true, false), (10, false, false), (1, true, true)]);
        assert_eq!((entry.messages_in(1), entry.cost(1)), ((&[3; 11][..], vec![0]), 11 + 3 * 64));
        assert_eq!(entry.messages().collect::<Vec<_>>(), [(0, 0), (0, 2), (1, 1), (1, 3)]);
        assert!(!entry.make_ready(0) && entry.make_ready(1));
        scatterings.remove(index);
        assert_eq!((scatterings.find(|_| true), scatterings.add()), (vec![], index));
    }

    proptest! {
        /// Whatever the order in which scatterings are decided, the commit value is below every one that is
        /// not, never goes back, and reaches the clock when all are; committed ones come out in order.
        #[test]
        fn commit_is_below_all_that_is_not_decided(steps in prop::collection::vec((0u8..3, any::<prop::sample::Index>()), 1..200)) {
            let (mut undecided, mut open) = (Undecided::default(), BTreeMap::new());
            let (mut clock, mut before, mut taken, mut sent) = ((1u64 << 48) - 50, 0, 0, 0u32);
            for (step, which) in steps {
                clock += 1;
                if step == 0 || open.is_empty() {
                    undecided.push(clock, sent);
                    open.insert(clock, sent);
                    sent += 1;
                } else if step == 1 {
                    let time = *open.keys().nth(which.index(open.len())).unwrap();
                    let number = open.remove(&time).unwrap();
                    let is_first = open.keys().next().is_none_or(|&first| time < first);
                    let fate = if number % 3 > 0 { Fate::Committed } else { Fate::Recalled };
                    prop_assert_eq!(undecided.decide(time, fate), is_first);
                }
                let commit = undecided.commit(clock);
                let first = open.keys().next().copied().unwrap_or(clock);
                prop_assert_eq!(commit, before.max(first - 1));
                before = commit;
                while let Some(number) = undecided.take_committed(commit) {
                    prop_assert!(number >= taken && number % 3 > 0 && !open.values().any(|&other| other <= number));
                    taken = number + 1;
                }
            }
        }
    }
}
