//! The log in registered memory: a ring of slots that a leader writes remotely, and that its owner and later
//! leaders read.
//!
//! Entry `i` is in slot `i mod n`:
//!
//! ```text
//! index + 1 | decided | length | value, padded with zeros to 8 bytes | term | hash
//! ```
//!
//! All words have 8 bytes, little-endian. The hash covers everything before it, including the term. A WRITE
//! of several packets that ends early, because its requester crashed or lost its permission, leaves a prefix
//! of the new entry over the old contents of the slot. Such a slot holds no entry, unless the old entry is
//! still intact, byte for byte: a mixture matches 64 bits of a keyed BLAKE3 hash with a probability of 2^-64.
//!
//! Term and hash are together at the end, so that a leader that proposes an entry again, which a server
//! already holds, writes only these 16 bytes in one packet: the old entry is replaced by the new one
//! atomically, or not at all.

use core::fmt;

/// Length of the head in bytes: words before the slots that leaders write
pub const HEAD: usize = 64;
/// Offset in the head of the number of decided entries
pub const DECIDED: usize = 0;
/// Offset in the head of the server's incarnation that is a member
pub const ADMITTED: usize = 8;
/// Offset in the head of the [`SnapshotHead`]
pub const SNAPSHOT: usize = 16;
/// Offset in the head of a word that is written to check the permission, and never read
pub const CHECK: usize = 40;
/// Length of an entry's header in bytes: index, decided entries when it was written, length
const HEADER: usize = 24;
/// Length of an entry's seal in bytes: term and hash
pub const SEAL: usize = 16;

/// Term of a leadership. Later terms are greater, and no two leaders have the same term. Two incarnations of
/// a server have the same term with a probability of 1 in 65,536 at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Term(pub u64);

impl Term {
    const ROUND: u32 = 24;
    /// Rounds from this one on are refused. The same number of rounds remains above it, so that arithmetic on
    /// a term never overflows. It is reached after six days at a million elections per second, and after
    /// 17,000 years at one per second.
    const LAST_ROUND: u64 = 1 << 39;

    /// Returns the first term of this incarnation of a server that is later than this one; `None` after the
    /// last round.
    #[must_use]
    pub const fn next_of(self, server: u8, incarnation: u64) -> Option<Self> {
        let round = (self.0 >> Self::ROUND) + 1;
        if round >= Self::LAST_ROUND {
            return None;
        }
        Some(Self(round << Self::ROUND | (incarnation & 0xffff) << 8 | server as u64))
    }

    /// Returns the number of the server whose term it is.
    pub const fn server(self) -> u8 {
        self.0.to_le_bytes()[0]
    }

    /// Returns whether a candidate in a group of `servers` can have this term.
    pub const fn is_possible(self, servers: usize) -> bool {
        let round = self.0 >> Self::ROUND;
        round > 0 && round < Self::LAST_ROUND && (self.server() as usize) < servers
    }
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "term {} of server {}", self.0 >> Self::ROUND, self.server())
    }
}

/// Key of the hashes of a log. Its `Debug` output does not contain it.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Key([u8; 32]);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}

/// Layout of a log in memory. The same on all servers of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    slots: u64,
    slot_len: usize,
    snapshot: usize,
    key: Key,
    /// Planted bug: the hash of an entry is not checked
    pub(super) trusts_torn: bool,
}

/// An entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Index, counted from 0
    pub index: u64,
    /// Term of the leader that wrote it
    pub term: Term,
    /// Number of decided entries when it was written
    pub decided: u64,
    /// Value
    pub value: &'a [u8],
}

impl Layout {
    /// Returns the layout of a log with `slots` entries of values of up to `max_value` bytes, and a snapshot
    /// area of `max_snapshot` bytes.
    ///
    /// # Panics
    /// If `slots` is 0.
    pub const fn new(slots: u64, max_value: usize, max_snapshot: usize) -> Self {
        assert!(slots > 0, "a log needs at least one slot");
        Self {
            slots,
            slot_len: HEADER + max_value.next_multiple_of(8) + SEAL,
            snapshot: max_snapshot,
            key: Key([0; 32]),
            trusts_torn: false,
        }
    }

    /// Returns this layout with hashes under this key.
    #[must_use]
    pub(super) const fn keyed(self, key: [u8; 32]) -> Self {
        Self { key: Key(key), ..self }
    }

    /// Returns the number of entries that the log holds at once.
    pub const fn slots(&self) -> u64 {
        self.slots
    }

    /// Returns the maximum length of a value in bytes.
    pub const fn max_value(&self) -> usize {
        self.slot_len - HEADER - SEAL
    }

    /// Returns the maximum length of a snapshot in bytes.
    pub const fn max_snapshot(&self) -> usize {
        self.snapshot
    }

    /// Returns the length of head and entries in bytes.
    pub const fn log_len(&self) -> usize {
        HEAD + self.slots as usize * self.slot_len
    }

    /// Returns the length of the memory in bytes: head, entries, then the snapshot area.
    pub const fn memory_len(&self) -> usize {
        self.log_len() + self.snapshot
    }

    /// Returns the number of bytes written for a value of `value` bytes.
    pub const fn written_len(value: usize) -> usize {
        HEADER + value.next_multiple_of(8) + SEAL
    }

    /// Returns the offset of entry `index` in bytes.
    pub const fn at(&self, index: u64) -> usize {
        HEAD + (index % self.slots) as usize * self.slot_len
    }

    /// Encodes an entry into `out`, to be written at [`at`](Self::at). Returns `None` if the value is too
    /// long.
    pub fn encode(&self, entry: &Entry<'_>, out: &mut Vec<u8>) -> Option<()> {
        if entry.value.len() > self.max_value() {
            return None;
        }
        out.clear();
        // Index 0 is stored as 1, so that memory that was never written holds no entry.
        out.extend((entry.index + 1).to_le_bytes());
        out.extend(entry.decided.to_le_bytes());
        out.extend((entry.value.len() as u64).to_le_bytes());
        out.extend(entry.value);
        out.resize(out.len().next_multiple_of(8), 0);
        let seal = self.seal(out, entry.term);
        out.extend(seal);
        Some(())
    }

    /// Returns term and hash of an entry whose header and value are `body`.
    fn seal(&self, body: &[u8], term: Term) -> [u8; SEAL] {
        let mut hasher = blake3::Hasher::new_keyed(&self.key.0);
        hasher.update(body).update(&term.0.to_le_bytes());
        let mut seal = [0; SEAL];
        seal[..8].copy_from_slice(&term.0.to_le_bytes());
        seal[8..].copy_from_slice(&hasher.finalize().as_bytes()[..8]);
        seal
    }

    /// Returns the length of the value of entry `index` if `slot` has its header, complete or torn.
    fn value_len(&self, index: u64, slot: &[u8]) -> Option<usize> {
        let (words, _) = slot.get(..HEADER)?.as_chunks::<8>();
        let [stored, _, len] = words else { return None };
        let [stored, len] = [stored, len].map(|word| u64::from_le_bytes(*word));
        (stored == index + 1 && len <= self.max_value() as u64).then_some(len as usize)
    }

    /// Splits a slot that has the header of entry `index`: the length of the value, header and value, and the
    /// seal.
    fn parts<'a>(&self, index: u64, slot: &'a [u8]) -> Option<(usize, &'a [u8], &'a [u8; SEAL])> {
        let len = self.value_len(index, slot)?;
        let (body, rest) = slot.split_at_checked(HEADER + len.next_multiple_of(8))?;
        Some((len, body, rest.first_chunk()?))
    }

    /// Returns entry `index` if it is complete. `slot` is the memory from [`at`](Self::at) on.
    pub fn decode<'a>(&self, index: u64, slot: &'a [u8]) -> Option<Entry<'a>> {
        let (len, body, seal) = self.parts(index, slot)?;
        let term = Term(word(seal, 0));
        (self.is_complete(body, term, seal)).then(|| Entry {
            index,
            term,
            decided: word(body, 8),
            value: &body[HEADER..HEADER + len],
        })
    }

    /// Returns whether the hash in the seal is that of the entry.
    fn is_complete(&self, body: &[u8], term: Term, seal: &[u8; SEAL]) -> bool {
        if self.has_bug() && term != Term::default() {
            return true;
        }
        self.seal(body, term) == *seal
    }

    /// Returns whether the bug of this type was planted. Release builds have no bugs.
    #[inline]
    const fn has_bug(&self) -> bool {
        cfg!(debug_assertions) && self.trusts_torn
    }

    /// Returns entry `index` of a log if it is complete.
    pub fn entry<'a>(&self, index: u64, log: &'a [u8]) -> Option<Entry<'a>> {
        self.decode(index, self.slot(index, log)?)
    }

    fn slot<'a>(&self, index: u64, log: &'a [u8]) -> Option<&'a [u8]> {
        log.get(self.at(index)..self.at(index) + self.slot_len)
    }

    /// Returns the number of bytes that entry `index` takes in a log that has its header. The hash is not
    /// checked: this is for entries that the caller itself stored.
    pub fn stored_len(&self, index: u64, log: &[u8]) -> Option<usize> {
        self.value_len(index, self.slot(index, log)?).map(Self::written_len)
    }

    /// Returns the length of the value and the seal position's contents of entry `index`. The seal is written
    /// last, so an entry that was torn stays torn as long as these bytes do not change.
    pub fn stored_seal(&self, index: u64, log: &[u8]) -> Option<(usize, [u8; SEAL])> {
        let (len, _, seal) = self.parts(index, self.slot(index, log)?)?;
        Some((len, *seal))
    }

    /// Returns the offset and the new bytes of the seal that moves entry `index` of a log into this term with
    /// the same value. Returns `None` if the log does not have the entry.
    pub fn resealed(&self, index: u64, log: &[u8], term: Term) -> Option<(usize, [u8; SEAL])> {
        let slot = self.slot(index, log)?;
        self.decode(index, slot)?;
        let (_, body, _) = self.parts(index, slot)?;
        Some((self.at(index) + body.len(), self.seal(body, term)))
    }
}

/// Head of a snapshot, written after it: marks the snapshot as complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotHead {
    /// Number of entries that the snapshot includes
    pub next: u64,
    /// Length in bytes
    pub len: usize,
}

impl SnapshotHead {
    /// Encodes the head, to be written at [`SNAPSHOT`].
    pub fn to_bytes(self) -> [u8; 24] {
        let mut bytes = [0; 24];
        let words = [self.next, self.len as u64, check_word(self.next, self.len)];
        for (target, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *target = word.to_le_bytes();
        }
        bytes
    }

    /// Decodes the head in a log; `None` if it has no complete snapshot.
    pub fn of(head: &[u8]) -> Option<Self> {
        let words = head.get(SNAPSHOT..SNAPSHOT + 24)?.as_chunks::<8>().0;
        let [next, len, last] = words else { return None };
        let [next, len, last] = [next, len, last].map(|word| u64::from_le_bytes(*word));
        let len = usize::try_from(len).ok()?;
        (last == check_word(next, len)).then_some(Self { next, len })
    }
}

/// Returns a word of a log.
pub fn word(log: &[u8], at: usize) -> u64 {
    log.get(at..).and_then(|bytes| bytes.first_chunk()).map_or(0, |word| u64::from_le_bytes(*word))
}

/// Returns the check word of a snapshot's head, which one WRITE carries.
fn check_word(next: u64, len: usize) -> u64 {
    switch::table::mix(next << 24 ^ len as u64) | 1
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
    fn terms_grow_and_belong_to_one_incarnation() {
        let first = Term::default().next_of(3, u64::MAX).unwrap();
        assert!(first > Term::default() && first.server() == 3);
        let second = first.next_of(1, 0).unwrap();
        assert!(second > first && second.server() == 1);
        assert_eq!(second.to_string(), "term 2 of server 1");
        assert_ne!(first.next_of(4, 1), first.next_of(5, 1));
        assert_ne!(first.next_of(4, 1), first.next_of(4, 2));
    }

    #[test]
    fn terms_near_the_end_are_impossible_and_have_no_successor() {
        let first = Term::default().next_of(2, 7).unwrap();
        assert!(first.is_possible(3) && !first.is_possible(2), "server 2 of 3, not of 2");
        assert!(!Term::default().is_possible(3));
        for term in [u64::MAX, u64::MAX << 8 | 1, 1 << 63, (1 << 39) << 24] {
            assert_eq!((Term(term).is_possible(255), Term(term).next_of(0, 0)), (false, None), "{term:x}");
        }
        // The last valid term, and the one before it
        let last = Term(((1 << 39) - 1) << 24);
        assert!(last.is_possible(1));
        assert_eq!(last.next_of(0, 0), None);
        assert_eq!(Term(last.0 - (1 << 24)).next_of(0, 0), Some(last));
    }

    #[test]
    fn slots_form_a_ring() {
        assert_eq!((LAYOUT.slots(), LAYOUT.max_value(), LAYOUT.max_snapshot()), (4, 24, 100));
        assert_eq!((LAYOUT.at(0), LAYOUT.at(3), LAYOUT.at(4)), (64, 64 + 3 * 64, 64));
        assert_eq!((LAYOUT.log_len(), LAYOUT.memory_len()), (64 + 4 * 64, 64 + 4 * 64 + 100));
        assert_eq!(LAYOUT.encode(&entry(0, 1, &[0; 25]), &mut Vec::new()), None);
    }

    #[test]
    fn an_entry_is_valid_when_its_last_byte_has_arrived() {
        let old = written(&entry(1, 256, b"what stood there before"));
        let new = written(&entry(5, 257, b"what comes in its place"));
        let mut log = vec![0; LAYOUT.memory_len()];
        assert_eq!(LAYOUT.entry(1, &log), None, "never written");
        let at = LAYOUT.at(1);
        log[at..at + old.len()].copy_from_slice(&old);
        assert_eq!(LAYOUT.entry(1, &log), Some(entry(1, 256, b"what stood there before")));
        for arrived in 1..=new.len() {
            log[at..at + arrived].copy_from_slice(&new[..arrived]);
            let whole = arrived == new.len();
            assert_eq!(LAYOUT.entry(5, &log).is_some(), whole, "{arrived} bytes");
            assert_eq!(LAYOUT.entry(1, &log), None);
        }
    }

    #[test]
    fn a_new_seal_changes_the_term_of_an_entry() {
        let value = b"what a server holds";
        let old = written(&entry(5, 256, value));
        let mut log = vec![0; LAYOUT.memory_len()];
        assert_eq!(LAYOUT.resealed(5, &log, Term(999)), None, "never written");
        log[LAYOUT.at(5)..][..old.len()].copy_from_slice(&old);
        assert_eq!(LAYOUT.stored_len(5, &log), Some(old.len()));
        let (at, seal) = LAYOUT.resealed(5, &log, Term(999)).unwrap();
        assert_eq!((at, seal.len()), (LAYOUT.at(5) + old.len() - SEAL, SEAL));
        log[at..at + SEAL].copy_from_slice(&seal);
        assert_eq!(LAYOUT.entry(5, &log), Some(entry(5, 999, value)));
        // A term without its hash invalidates the entry.
        log[at] ^= 1;
        assert_eq!((LAYOUT.entry(5, &log), LAYOUT.resealed(5, &log, Term(1000))), (None, None));
    }

    #[test]
    fn entries_under_another_key_are_invalid() {
        let bytes = written(&entry(5, 256, b"a value"));
        assert_eq!(LAYOUT.decode(5, &bytes), Some(entry(5, 256, b"a value")));
        assert_eq!(LAYOUT.keyed([1; 32]).decode(5, &bytes), None);
    }

    #[test]
    fn the_key_of_a_log_is_not_printed() {
        let [printed, other] = [1, 2].map(|byte| format!("{:?}", LAYOUT.keyed([byte; 32])));
        assert_eq!(printed, other);
        assert!(printed.contains("key: Key"), "{printed}");
    }

    #[test]
    fn a_snapshot_is_valid_when_its_head_is_complete() {
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

    #[test]
    fn a_torn_snapshot_head_is_never_a_mixture() {
        let heads = [(1, 77), (2, 78), (1, 3 << 24 | 5), (2, 6), (1 << 40, 1 << 30)];
        let heads = heads.map(|(next, len)| SnapshotHead { next, len });
        for (old, new) in heads.iter().flat_map(|old| heads.map(|new| (*old, new))) {
            let mut log = [0; HEAD];
            log[SNAPSHOT..SNAPSHOT + 24].copy_from_slice(&old.to_bytes());
            for (at, byte) in new.to_bytes().into_iter().enumerate() {
                log[SNAPSHOT + at] = byte;
                let found = SnapshotHead::of(&log);
                assert!(
                    found.is_none_or(|found| found == old || found == new),
                    "{found:?} of {old:?} and {new:?}"
                );
            }
            assert_eq!(SnapshotHead::of(&log), Some(new));
        }
    }

    proptest! {
        #[test]
        fn entries_round_trip(index in 0u64..1 << 40, term: u64, value in prop::collection::vec(any::<u8>(), 0..=20)) {
            let mut log = vec![0xa5; LAYOUT.memory_len()];
            let bytes = written(&entry(index, term, &value));
            log[LAYOUT.at(index)..][..bytes.len()].copy_from_slice(&bytes);
            prop_assert_eq!(LAYOUT.entry(index, &log), Some(entry(index, term, &value)));
            prop_assert_eq!(LAYOUT.entry(index + 4, &log), None);
        }

        /// For every prefix of a WRITE over any old entry, the slot holds one of the two entries, or none.
        #[test]
        fn a_torn_write_leaves_the_old_entry_the_new_one_or_none(
            (index, old_index) in (0u64..8, prop_oneof![Just(0u64), Just(4)]).prop_map(|(at, wrap)| (at + 4, at + wrap)),
            terms in (256u64..260, 256u64..260),
            old in prop::collection::vec(0u8..2, 0..=24),
            new in prop::collection::vec(0u8..2, 0..=24),
            same_length: bool,
        ) {
            let mut new = new;
            if same_length {
                new.resize(old.len(), 1);
            }
            let (before, after) = (entry(old_index, terms.0, &old), entry(index, terms.1, &new));
            let (old_bytes, new_bytes) = (written(&before), written(&after));
            let mut slot = vec![0; LAYOUT.slot_len];
            slot[..old_bytes.len()].copy_from_slice(&old_bytes);
            for arrived in 0..=new_bytes.len() {
                slot[..arrived].copy_from_slice(&new_bytes[..arrived]);
                for entry_index in [old_index, index] {
                    let found = LAYOUT.decode(entry_index, &slot);
                    prop_assert!(
                        found.is_none_or(|found| found == before || found == after),
                        "{arrived} bytes: {found:?}"
                    );
                }
            }
            prop_assert_eq!(LAYOUT.decode(index, &slot), Some(after));
        }

        #[test]
        fn decoding_any_memory_does_not_panic(slot in prop::collection::vec(any::<u8>(), 0..80), index: u32) {
            _ = LAYOUT.decode(index.into(), &slot);
        }
    }
}
