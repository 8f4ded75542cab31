//! Cache of the servers' memory: lines of 64 bytes, of eight words each.
//!
//! The cached value of a word is the value *after all operations in flight on the line's shared QP*; it
//! determines the result of the next atomic. It is valid only while no other packet may write to the line. A
//! packet that may write to it without taking the shared QP is a *detour*: it invalidates the line, which
//! learns no value for some time afterwards.

mod guard;
mod range_invalidation;

use crate::sketch::Sketch;
use crate::{Id, NONE};
use guard::Guard;
use range_invalidation::RangeInvalidations;
use switch::table::{Index, Key, Salt, mix};
use switch::{Full, Nanos};

/// Base-2 logarithm of the line length in bytes
const LINE_SHIFT: u32 = 6;
/// Base-2 logarithm of the block length in bytes. Lines are counted by block to search long ranges
const BLOCK_SHIFT: u32 = 12;
/// Maximum number of blocks searched one by one, so that a search costs at most about one lookup per packet
/// of the message
const MAX_BLOCKS: u64 = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LineKey {
    server: u8,
    number: u64,
}

impl Key for LineKey {
    #[inline]
    fn hash(&self) -> u64 {
        mix(self.number ^ u64::from(self.server) << 56)
    }

    #[inline]
    fn salted(&self, salt: Salt) -> u64 {
        salt.hash(u128::from(self.server) << 64 | u128::from(self.number), 0)
    }
}

/// A cached line of a server's memory; two cache lines of the CPU.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(crate) struct Line {
    /// R_Key of the operations
    pub rkey: u32,
    /// Shared QP of all operations on the line
    pub shared_qp: Id,
    /// Incarnation of `shared_qp` when it was assigned. All cached values were learnt on that connection
    pub incarnation: u32,
    /// Operations in flight on the shared QP
    pub in_flight: u32,
    /// Operations in flight that the switch resolved
    pub resolved: u32,
    /// Number of detours so far
    pub detours: u32,
    /// Detours in flight whose completion will be observed
    pub detours_in_flight: u32,
    /// Number of range invalidations of the server that were applied to this line
    applied: u32,
    /// Time by which the detours in flight have completed at the latest
    pub detoured_until: Nanos,
    /// Results of operations sent before this time are not cached
    pub quiet_until: Nanos,
    /// Words with a known value, as a bit set
    known: u8,
    /// Words that are known to exist (not beyond the end of their region), as a bit set
    pub existing: u8,
    /// Whether the line was used since the last pass of the eviction clock
    used: bool,
    server: u8,
    values: [u64; 8],
    /// Virtual address divided by the line length
    number: u64,
}

const _: () = assert!(size_of::<Line>() == 128);

impl Line {
    /// Returns the value of word `word` after all operations in flight.
    #[inline]
    pub(crate) fn value(&self, word: usize) -> Option<u64> {
        (self.known >> word & 1 != 0).then(|| self.values[word])
    }

    #[inline]
    pub(crate) fn set(&mut self, word: usize, value: u64) {
        self.known |= 1 << word;
        self.values[word] = value;
    }

    /// Returns whether all of these bytes are known to exist.
    #[inline]
    pub(crate) fn exists(&self, va: u64, len: u8) -> bool {
        words_of(va, len) & !self.existing == 0
    }

    /// Returns whether values may be learnt from operations that are sent now.
    #[inline]
    pub(crate) fn may_learn(&self, now: Nanos) -> bool {
        now >= self.quiet_until && (self.detours_in_flight == 0 || now >= self.detoured_until)
    }

    pub(crate) fn forget(&mut self, word: usize) {
        self.known &= !(1 << word);
    }

    pub(crate) fn forget_all(&mut self) {
        self.known = 0;
    }

    /// Writes bytes at `offset` of the line. With `learn`, words that are written as a whole become known.
    #[inline]
    pub(crate) fn write(&mut self, offset: usize, bytes: &[u8], learn: bool) {
        if let Ok(whole) = <&[u8; 1 << LINE_SHIFT]>::try_from(bytes) {
            let (words, _) = whole.as_chunks();
            for (value, word) in self.values.iter_mut().zip(words) {
                *value = u64::from_le_bytes(*word);
            }
            if learn {
                self.known = u8::MAX;
            }
            return;
        }
        self.write_part(offset, bytes, learn);
    }

    fn write_part(&mut self, offset: usize, bytes: &[u8], learn: bool) {
        if offset.is_multiple_of(8) && bytes.len().is_multiple_of(8) {
            // Whole words: most WRITEs of locks and nodes
            for (at, word) in (offset / 8..).zip(bytes.as_chunks().0) {
                self.values[at] = u64::from_le_bytes(*word);
                self.known |= u8::from(learn) << at;
            }
            return;
        }
        for word in offset / 8..(offset + bytes.len()).div_ceil(8) {
            let (from, to) = ((word * 8).max(offset), (word * 8 + 8).min(offset + bytes.len()));
            let part = &bytes[from - offset..to - offset];
            let mut value = self.values[word].to_le_bytes();
            value[from - word * 8..to - word * 8].copy_from_slice(part);
            if part.len() == 8 && learn {
                self.known |= 1 << word;
            }
            self.values[word] = u64::from_le_bytes(value);
        }
    }

    /// Invalidates the line for a detour. Returns whether the detour may be forwarded now: not while resolved
    /// operations are in flight, because it could change their results.
    pub(crate) fn detour(&mut self, now: Nanos, settle: Nanos) -> bool {
        self.known = 0;
        self.detours = self.detours.wrapping_add(1);
        // An earlier detour may last longer.
        self.quiet_until = self.quiet_until.max(now + settle);
        self.resolved == 0
    }
}

/// All cached lines.
#[derive(Debug)]
pub(crate) struct Lines {
    index: Index<LineKey>,
    all: Vec<Line>,
    blocks: Index<LineKey>,
    /// Number of lines in each block
    counts: Vec<u32>,
    capacity: usize,
    hand: u32,
    /// Pending range invalidations, by server
    invalidations: Box<[RangeInvalidations]>,
    /// Budget of untrusted hosts for suspending resolution, by server
    guards: Box<[Guard]>,
    /// Frequency of the words that atomics target
    sketch: Sketch,
}

/// Returns the index of the word at `va` in its line.
pub(crate) const fn word_of(va: u64) -> usize {
    (va >> 3 & 7) as usize
}

/// Returns the words of a line that a byte range touches, as a bit set.
#[inline]
pub(crate) const fn words_of(va: u64, len: u8) -> u8 {
    let last = (offset_of(va) + len as usize).saturating_sub(1) >> 3 & 7;
    (u8::MAX >> (7 - last)) & (u8::MAX << word_of(va))
}

/// Returns the offset of `va` in its line.
pub(crate) const fn offset_of(va: u64) -> usize {
    (va & 63) as usize
}

/// Returns whether a byte range is within one line, and not empty.
pub(crate) const fn in_one_line(va: u64, len: usize) -> bool {
    len > 0 && offset_of(va) + len <= 1 << LINE_SHIFT
}

impl Lines {
    /// Returns an empty table with room for `capacity` lines, for `servers` servers.
    pub(crate) fn with_capacity(capacity: usize, servers: usize) -> Self {
        Self {
            invalidations: (0..servers).map(|_| RangeInvalidations::new()).collect(),
            guards: vec![Guard::default(); servers].into(),
            sketch: Sketch::new(),
            index: Index::with_capacity(capacity),
            all: Vec::with_capacity(capacity),
            blocks: Index::with_capacity(capacity),
            counts: Vec::with_capacity(capacity),
            capacity,
            hand: 0,
        }
    }

    /// Salts the hashes of the tables.
    pub(crate) fn set_salt(&mut self, salt: Salt) {
        self.index.set_salt(salt);
        self.blocks.set_salt(salt);
    }

    /// Returns the memory in bytes for `capacity` lines.
    pub(crate) fn bytes(capacity: usize) -> usize {
        2 * Index::<LineKey>::bytes(capacity) + capacity * (size_of::<Line>() + size_of::<u32>())
    }

    pub(crate) fn len(&self) -> usize {
        self.index.len()
    }

    /// Returns the line at `va`, if it is cached.
    #[inline]
    pub(crate) fn find(&self, server: u8, va: u64) -> Option<Id> {
        self.index.get(&LineKey { server, number: va >> LINE_SHIFT })
    }

    /// Returns the address at which the lookup of the line at `va` begins, to prefetch it.
    #[inline]
    pub(crate) fn home_of(&self, server: u8, va: u64) -> *const u8 {
        self.index.slot_address(&LineKey { server, number: va >> LINE_SHIFT })
    }

    /// Prefetches the likely line at `va`. Returns its shared QP.
    #[inline]
    pub(crate) fn prefetch(&self, server: u8, va: u64, fetch: impl Fn(*const u8)) -> Id {
        let id = self.index.likely_id(&LineKey { server, number: va >> LINE_SHIFT });
        fetch(self.index.key_address(id));
        let line = self.all.as_ptr().wrapping_add(id as usize).cast::<u8>();
        fetch(line);
        fetch(line.wrapping_add(64));
        self.all.get(id as usize).map_or(NONE, |line| line.shared_qp)
    }

    /// Counts a resolved operation on a line that is being sent. Returns its epoch tag.
    #[inline]
    pub(crate) fn begin_resolved(&mut self, id: Id) -> u8 {
        let line = &mut self.all[id as usize];
        line.resolved += 1;
        self.invalidations[usize::from(line.server)].begin()
    }

    /// Counts the completion of a resolved operation.
    #[inline]
    pub(crate) fn end_resolved(&mut self, id: Id, tag: u8) {
        let line = &mut self.all[id as usize];
        line.resolved -= 1;
        self.invalidations[usize::from(line.server)].end(tag);
    }

    /// Returns whether all range invalidations have been applied to a line.
    #[inline]
    pub(crate) fn is_up_to_date(&self, id: Id) -> bool {
        let line = &self.all[id as usize];
        line.applied == self.invalidations[usize::from(line.server)].count
    }

    /// Applies the range invalidations since the last check to a line.
    #[inline]
    pub(crate) fn apply_invalidations(&mut self, id: Id) {
        if !self.is_up_to_date(id) {
            self.apply_new_invalidations(id);
        }
    }

    #[cold]
    fn apply_new_invalidations(&mut self, id: Id) {
        let line = &mut self.all[id as usize];
        let invalidations = &self.invalidations[usize::from(line.server)];
        if let Some(until) = invalidations.since(line.applied, line.number) {
            line.forget_all();
            line.detours = line.detours.wrapping_add(1);
            line.quiet_until = line.quiet_until.max(until);
        }
        line.applied = invalidations.count;
    }

    pub(crate) fn get(&self, id: Id) -> &Line {
        &self.all[id as usize]
    }

    pub(crate) fn get_mut(&mut self, id: Id) -> &mut Line {
        let line = &mut self.all[id as usize];
        line.used = true;
        line
    }

    /// Returns the line at `va`, and creates it if necessary. A new line learns nothing before `quiet_until`,
    /// because unknown operations may be in flight to it.
    ///
    /// # Errors
    ///
    /// All lines are in use.
    pub(crate) fn make(
        &mut self,
        server: u8,
        va: u64,
        rkey: u32,
        existing: u8,
        quiet_until: Nanos,
    ) -> Result<Id, Full> {
        if self.index.len() == self.capacity {
            self.evict_one()?;
        }
        let key = LineKey { server, number: va >> LINE_SHIFT };
        let id = self.index.get_or_insert(key)?;
        let block = LineKey { server, number: va >> BLOCK_SHIFT };
        let Ok(block) = self.blocks.get_or_insert(block) else {
            self.index.remove(&key);
            return Err(Full);
        };
        let invalidations = &mut self.invalidations[usize::from(server)];
        invalidations.extend_hull(key.number);
        let applied = invalidations.count;
        let line = Line {
            rkey,
            shared_qp: NONE,
            incarnation: 0,
            in_flight: 0,
            resolved: 0,
            detours: 0,
            detours_in_flight: 0,
            detoured_until: Nanos::ZERO,
            quiet_until,
            known: 0,
            existing,
            used: true,
            applied,
            server,
            values: [0; 8],
            number: key.number,
        };
        put(&mut self.all, id, line.clone(), line);
        if block as usize >= self.counts.len() {
            self.counts.resize(block as usize + 1, 0);
        }
        self.counts[block as usize] += 1;
        Ok(id)
    }

    /// Evicts a line that was not used recently and has no operations in flight.
    fn evict_one(&mut self) -> Result<(), Full> {
        for _ in 0..64 {
            let id = self.hand;
            self.hand = (self.hand + 1) % self.index.ids().max(1);
            let Some(key) = self.index.key(id).copied() else { continue };
            let line = &mut self.all[id as usize];
            if line.used || line.in_flight > 0 || line.detours_in_flight > 0 {
                line.used = false;
                continue;
            }
            self.index.remove(&key);
            let block = LineKey { server: key.server, number: key.number >> (BLOCK_SHIFT - LINE_SHIFT) };
            if let Some(at) = self.blocks.get(&block) {
                self.counts[at as usize] -= 1;
                if self.counts[at as usize] == 0 {
                    self.blocks.remove(&block);
                }
            }
            return Ok(());
        }
        Err(Full)
    }

    /// Invalidates the lines in `len` bytes at `va` for a detour.
    ///
    /// # Errors
    ///
    /// The detour may not be forwarded yet. The error is the shared QP to wait for, or `NONE` for all QPs
    /// with resolved operations in flight.
    pub(crate) fn detour(
        &mut self,
        server: u8,
        va: u64,
        len: u64,
        now: Nanos,
        settle: Nanos,
    ) -> Result<(), Id> {
        if self.index.is_empty() || len == 0 {
            return Ok(());
        }
        let mut wait = Ok(());
        let last = va.saturating_add(len - 1);
        if (last >> BLOCK_SHIFT) - (va >> BLOCK_SHIFT) > MAX_BLOCKS {
            let invalidations = &mut self.invalidations[usize::from(server)];
            return invalidations
                .add(va >> LINE_SHIFT, last >> LINE_SHIFT, now + settle, now)
                .then_some(())
                .ok_or(NONE);
        }
        for block in va >> BLOCK_SHIFT..=last >> BLOCK_SHIFT {
            if self.blocks.get(&LineKey { server, number: block }).is_none() {
                continue;
            }
            let first = (va >> LINE_SHIFT).max(block << (BLOCK_SHIFT - LINE_SHIFT));
            let end = (last >> LINE_SHIFT)
                .min((block << (BLOCK_SHIFT - LINE_SHIFT)) + (1 << (BLOCK_SHIFT - LINE_SHIFT)) - 1);
            for number in first..=end {
                if let Some(id) = self.index.get(&LineKey { server, number }) {
                    let line = self.get_mut(id);
                    if !line.detour(now, settle) {
                        wait = Err(line.shared_qp);
                    }
                }
            }
        }
        wait
    }

    /// Returns whether any cached line is in the blocks of `len` bytes at `va`.
    pub(crate) fn has_any(&self, server: u8, va: u64, len: u64) -> bool {
        if self.index.is_empty() || len == 0 {
            return false;
        }
        let last = va.saturating_add(len - 1);
        if (last >> BLOCK_SHIFT) - (va >> BLOCK_SHIFT) > MAX_BLOCKS {
            // Too many blocks to search.
            return self.invalidations[usize::from(server)].may_contain(va >> LINE_SHIFT, last >> LINE_SHIFT);
        }
        (va >> BLOCK_SHIFT..=last >> BLOCK_SHIFT)
            .any(|number| self.blocks.get(&LineKey { server, number }).is_some())
    }

    /// Invalidates all lines of a server. The error is as for [`detour`](Self::detour).
    pub(crate) fn detour_everywhere(&mut self, server: u8, now: Nanos, settle: Nanos) -> Result<(), Id> {
        let passes = self.invalidations[usize::from(server)].add(0, u64::MAX, now + settle, now);
        passes.then_some(()).ok_or(NONE)
    }

    /// Returns whether resolved operations may be in flight to `len` bytes at `va`.
    pub(crate) fn has_resolved(&self, server: u8, va: u64, len: u64) -> bool {
        if self.invalidations[usize::from(server)].is_idle() || len == 0 {
            return false;
        }
        let last = va.saturating_add(len - 1);
        if last - va >= 1 << BLOCK_SHIFT {
            return true;
        }
        (va >> LINE_SHIFT..=last >> LINE_SHIFT).any(|number| {
            self.index.get(&LineKey { server, number }).is_some_and(|id| self.all[id as usize].resolved > 0)
        })
    }

    /// Returns whether a packet of an untrusted host may pass that invalidates a range. `settle` and
    /// `dead_after` are the times for which the range then learns no value: without, and with resolved
    /// operations in flight there.
    pub(crate) fn may_invalidate(
        &mut self,
        server: u8,
        (va, len): (u64, u64),
        now: Nanos,
        settle: Nanos,
        dead_after: Nanos,
    ) -> bool {
        if !self.has_any(server, va, len) {
            return true;
        }
        let has_resolved = self.has_resolved(server, va, len);
        let Some(guard) = self.guards.get_mut(usize::from(server)) else { return true };
        if !has_resolved {
            // The detour keeps the words from being learnt for `settle` once more.
            return guard.at_once.open(settle, now).is_some();
        }
        let Some(until) = guard.later.open(dead_after, now) else { return false };
        self.detour(server, va, len, now, Nanos(until.0 - now.0)).is_ok()
    }

    /// Counts an atomic to a word without a line. Returns the estimated number of recent atomics to it.
    pub(crate) fn count_atomic(&mut self, va: u64, rkey: u32) -> u32 {
        self.sketch.add(va ^ u64::from(rkey) << 32)
    }

    /// Begins a new epoch of range invalidations.
    pub(crate) fn advance_epoch(&mut self) {
        self.invalidations.iter_mut().for_each(RangeInvalidations::advance_epoch);
    }

    /// Forgets the values of all words.
    pub(crate) fn forget_all(&mut self) {
        self.all.iter_mut().for_each(Line::forget_all);
    }
}

/// Stores `value` at index `id`, and first extends the vector with `filler` if necessary.
pub(crate) fn put<T: Clone>(values: &mut Vec<T>, id: Id, value: T, filler: T) {
    if values.len() <= id as usize {
        values.resize(id as usize + 1, filler);
    }
    values[id as usize] = value;
}

#[cfg(test)]
mod tests;
