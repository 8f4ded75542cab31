//! The log, as it lies in registered memory: a ring of slots that a leader writes to from afar, and that its owner and
//! later leaders read.
//!
//! Entry `i` lies in slot `i mod n`. A write is one contiguous range, and RDMA writes in order; so the last word, which
//! depends on the index and the length, is there only if all before it is. It does not depend on the term: a later
//! leader that settles an entry which a server holds already writes the one word of the term, and never tears what may
//! have been decided.

use core::fmt;

/// Bytes in front of the slots: words that leaders write
pub const HEAD: usize = 64;
/// Where in the head it says how many entries are decided
pub const DECIDED: usize = 0;
/// Where it says which incarnation of the server is a member
pub const ADMITTED: usize = 8;
/// Where the [`SnapshotHead`] stands
pub const SNAPSHOT: usize = 16;
/// What is written to see whether it still can be; nobody reads it.
pub const CHECK: usize = 40;
/// Index, term, how many were decided when it was written, length
const HEADER: usize = 32;
const TAIL: usize = 8;
/// Where in an entry the term stands
const TERM: usize = 8;

/// A leader's time of office: later ones are greater, and no two leaders have the same. Not even a server and the one
/// that it was before it forgot everything have, but for one time in 65,536.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Term(pub u64);

impl Term {
    const ROUND: u32 = 24;

    /// The first term of this incarnation of a server that is later than this one.
    #[must_use]
    pub const fn next_of(self, server: u8, incarnation: u64) -> Self {
        Self(((self.0 >> Self::ROUND) + 1) << Self::ROUND | (incarnation & 0xffff) << 8 | server as u64)
    }

    /// Whose it is
    pub const fn server(self) -> u8 {
        self.0.to_le_bytes()[0]
    }
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "term {} of server {}", self.0 >> Self::ROUND, self.server())
    }
}

/// How a log lies in memory. The same at all servers of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    slots: u64,
    slot_len: usize,
    snapshot: usize,
}

/// An entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Its place, counted from 0
    pub index: u64,
    /// Of the leader that wrote it
    pub term: Term,
    /// How many entries were decided when it was written
    pub decided: u64,
    /// The value
    pub value: &'a [u8],
}

impl Layout {
    /// `slots` entries of values of up to `max_value` bytes, and room for a snapshot of up to `max_snapshot` bytes.
    ///
    /// # Panics
    /// If there are no slots.
    pub const fn new(slots: u64, max_value: usize, max_snapshot: usize) -> Self {
        assert!(slots > 0, "a log without slots");
        Self { slots, slot_len: HEADER + max_value.next_multiple_of(8) + TAIL, snapshot: max_snapshot }
    }

    /// Entries that it holds at once
    pub const fn slots(&self) -> u64 {
        self.slots
    }

    /// The longest value (bytes)
    pub const fn max_value(&self) -> usize {
        self.slot_len - HEADER - TAIL
    }

    /// The longest snapshot (bytes)
    pub const fn max_snapshot(&self) -> usize {
        self.snapshot
    }

    /// Bytes of head and entries
    pub const fn log_len(&self) -> usize {
        HEAD + self.slots as usize * self.slot_len
    }

    /// Bytes of memory that it takes: the snapshot lies behind the entries.
    pub const fn memory_len(&self) -> usize {
        self.log_len() + self.snapshot
    }

    /// Bytes that are written for a value of so many
    pub const fn written_len(value: usize) -> usize {
        HEADER + value.next_multiple_of(8) + TAIL
    }

    /// Where entry `index` begins
    pub const fn at(&self, index: u64) -> usize {
        HEAD + (index % self.slots) as usize * self.slot_len
    }

    /// Where the term of entry `index` stands: 8 bytes, little-endian
    pub const fn term_at(&self, index: u64) -> usize {
        self.at(index) + TERM
    }

    /// What is written at [`at`](Self::at) for an entry; `None` if the value is too long.
    pub fn encode(&self, entry: &Entry<'_>, out: &mut Vec<u8>) -> Option<()> {
        if entry.value.len() > self.max_value() {
            return None;
        }
        out.clear();
        // Index 0 is written as 1: memory that nobody wrote to holds no entry.
        out.extend((entry.index + 1).to_le_bytes());
        out.extend(entry.term.0.to_le_bytes());
        out.extend(entry.decided.to_le_bytes());
        out.extend((entry.value.len() as u64).to_le_bytes());
        out.extend(entry.value);
        out.resize(out.len().next_multiple_of(8), 0);
        out.extend(tail(entry.index, entry.value.len()).to_le_bytes());
        Some(())
    }

    /// Entry `index`, if it is there, whole. `slot` is the memory from [`at`](Self::at) on.
    pub fn decode<'a>(&self, index: u64, slot: &'a [u8]) -> Option<Entry<'a>> {
        let (words, _) = slot.get(..HEADER)?.as_chunks::<8>();
        let [stored, term, decided, len] = words else { return None };
        let [stored, term, decided, len] = [stored, term, decided, len].map(|word| u64::from_le_bytes(*word));
        if stored != index + 1 || len > self.max_value() as u64 {
            return None;
        }
        let len = len as usize;
        let end = HEADER + len.next_multiple_of(8);
        let last = slot.get(end..end + TAIL)?.first_chunk()?;
        (u64::from_le_bytes(*last) == tail(index, len)).then(|| Entry {
            index,
            term: Term(term),
            decided,
            value: &slot[HEADER..HEADER + len],
        })
    }

    /// Entry `index` of a whole log.
    pub fn entry<'a>(&self, index: u64, log: &'a [u8]) -> Option<Entry<'a>> {
        self.decode(index, log.get(self.at(index)..self.at(index) + self.slot_len)?)
    }
}

/// What is written behind a snapshot: that it is there, and whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotHead {
    /// Entries below are in it
    pub next: u64,
    /// Its bytes
    pub len: usize,
}

impl SnapshotHead {
    /// As it is written at [`SNAPSHOT`].
    pub fn to_bytes(self) -> [u8; 24] {
        let mut bytes = [0; 24];
        let words = [self.next, self.len as u64, tail(self.next, self.len)];
        for (place, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *place = word.to_le_bytes();
        }
        bytes
    }

    /// Reads the head of a log; `None` if no snapshot was written.
    pub fn of(head: &[u8]) -> Option<Self> {
        let words = head.get(SNAPSHOT..SNAPSHOT + 24)?.as_chunks::<8>().0;
        let [next, len, last] = words else { return None };
        let [next, len, last] = [next, len, last].map(|word| u64::from_le_bytes(*word));
        let len = usize::try_from(len).ok()?;
        (last == tail(next, len)).then_some(Self { next, len })
    }
}

/// A word of a log.
pub fn word(log: &[u8], at: usize) -> u64 {
    log.get(at..).and_then(|bytes| bytes.first_chunk()).map_or(0, |word| u64::from_le_bytes(*word))
}

/// The last word of an entry.
fn tail(index: u64, len: usize) -> u64 {
    switch::table::mix(index << 24 ^ len as u64) | 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LAYOUT: Layout = Layout::new(4, 20, 100);

    fn entry(index: u64, term: u64, value: &[u8]) -> Entry<'_> {
        Entry { index, term: Term(term), decided: index / 2, value }
    }

    fn written(entry: &Entry<'_>) -> Vec<u8> {
        let mut bytes = Vec::new();
        LAYOUT.encode(entry, &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn terms_grow_and_have_one_owner() {
        let first = Term::default().next_of(3, u64::MAX);
        assert!(first > Term::default() && first.server() == 3);
        let second = first.next_of(1, 0);
        assert!(second > first && second.server() == 1);
        assert_eq!(second.to_string(), "term 2 of server 1");
        assert_ne!(first.next_of(4, 1), first.next_of(5, 1));
        assert_ne!(first.next_of(4, 1), first.next_of(4, 2));
    }

    #[test]
    fn slots_follow_each_other_and_come_again() {
        assert_eq!(LAYOUT.max_value(), 24);
        assert_eq!((LAYOUT.at(0), LAYOUT.at(3), LAYOUT.at(4)), (64, 64 + 3 * 64, 64));
        assert_eq!((LAYOUT.log_len(), LAYOUT.memory_len()), (64 + 4 * 64, 64 + 4 * 64 + 100));
        assert_eq!(LAYOUT.encode(&entry(0, 1, &[0; 25]), &mut Vec::new()), None);
    }

    #[test]
    fn an_entry_is_there_when_its_last_word_is() {
        let old = written(&entry(1, 256, b"what stood there before"));
        let new = written(&entry(5, 257, b"what comes in its place"));
        let mut log = vec![0; LAYOUT.memory_len()];
        assert_eq!(LAYOUT.entry(1, &log), None, "nothing was written");
        let at = LAYOUT.at(1);
        log[at..at + old.len()].copy_from_slice(&old);
        assert_eq!(LAYOUT.entry(1, &log), Some(entry(1, 256, b"what stood there before")));
        for arrived in 1..=new.len() {
            log[at..at + arrived].copy_from_slice(&new[..arrived]);
            let whole = arrived == new.len();
            assert_eq!(LAYOUT.entry(5, &log).is_some(), whole, "{arrived} bytes");
            assert_eq!(LAYOUT.entry(1, &log), None);
        }
        // A later leader settles it by the term alone.
        log[LAYOUT.term_at(5)..][..8].copy_from_slice(&Term(999).0.to_le_bytes());
        assert_eq!(LAYOUT.entry(5, &log), Some(entry(5, 999, b"what comes in its place")));
    }

    #[test]
    fn a_snapshot_is_there_when_its_head_is() {
        let head = SnapshotHead { next: 1 << 40, len: 77 };
        let mut log = [0; HEAD];
        assert_eq!(SnapshotHead::of(&log), None);
        for (at, byte) in head.to_bytes().into_iter().enumerate() {
            assert_eq!(SnapshotHead::of(&log), None, "{at} bytes");
            log[SNAPSHOT + at] = byte;
        }
        assert_eq!(SnapshotHead::of(&log), Some(head));
        assert_eq!(SnapshotHead::of(&log[..SNAPSHOT + 23]), None);
    }

    proptest! {
        #[test]
        fn entries_survive(index in 0u64..1 << 40, term: u64, value in prop::collection::vec(any::<u8>(), 0..=20)) {
            let mut log = vec![0xa5; LAYOUT.memory_len()];
            let bytes = written(&entry(index, term, &value));
            log[LAYOUT.at(index)..][..bytes.len()].copy_from_slice(&bytes);
            prop_assert_eq!(LAYOUT.entry(index, &log), Some(entry(index, term, &value)));
            prop_assert_eq!(LAYOUT.entry(index + 4, &log), None);
        }

        #[test]
        fn any_memory_is_read(slot in prop::collection::vec(any::<u8>(), 0..80), index: u32) {
            _ = LAYOUT.decode(index.into(), &slot);
        }
    }
}
