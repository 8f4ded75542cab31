//! What is known of the servers' memory: lines of 64 bytes, of eight words each, that many clients operate on.
//!
//! A word's value is known *behind all operations on it that are under way on the line's shared connection*: that is what
//! decides the next one. It is known only as long as nothing goes to the line on any other way; what does is a *detour*,
//! after which the line keeps quiet for a while.

use crate::doubt::Doubts;
use crate::{Id, NONE};
use switch::table::{Index, Key, Salt, mix};
use switch::{Full, Nanos};

/// Bytes of a line, as a shift
const LINE: u32 = 6;
/// Bytes of a block, as a shift: lines are counted by block, so that long ranges can be searched for them
const BLOCK: u32 = 12;
/// Blocks in which lines are looked for, at most: a message that is longer has as many packets
const BLOCKS: u64 = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    server: u8,
    number: u64,
}

impl Key for Place {
    #[inline]
    fn hash(&self) -> u64 {
        mix(self.number ^ u64::from(self.server) << 56)
    }

    #[inline]
    fn salted(&self, salt: Salt) -> u64 {
        salt.hash(u128::from(self.server) << 64 | u128::from(self.number), 0)
    }
}

/// A line of a server's memory. In two cache lines.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(crate) struct Line {
    /// The key by which it is reached
    pub rkey: u32,
    /// The shared connection that all operations on it take
    pub lane: Id,
    /// Which connection that was when the line was given to it: all that is known of the words was learnt there
    pub incarnation: u32,
    /// Operations on it that are under way there
    pub under_way: u32,
    /// Those among them that were decided here
    pub decided: u32,
    /// Detours so far
    pub detours: u32,
    /// Those among them that are under way, and of which it will be known when they are done
    pub detouring: u32,
    /// Doubts about the server's memory that were applied to it
    checked: u32,
    /// When the detours under way will be done at the latest
    pub detoured_until: Nanos,
    /// No value is learnt from what is sent before this
    pub quiet_until: Nanos,
    /// Words whose value is known, by bit
    known: u8,
    /// Words of which it is known that they are there, and not behind the end of their region, by bit
    pub reached: u8,
    /// Looked at since the search for a line to forget came by
    used: bool,
    server: u8,
    values: [u64; 8],
    /// Its address, in lines
    number: u64,
}

const _: () = assert!(size_of::<Line>() == 128);

impl Line {
    /// What word `word` will hold when all that is under way is done.
    #[inline]
    pub(crate) fn value(&self, word: usize) -> Option<u64> {
        (self.known >> word & 1 != 0).then(|| self.values[word])
    }

    #[inline]
    pub(crate) fn set(&mut self, word: usize, value: u64) {
        self.known |= 1 << word;
        self.values[word] = value;
    }

    /// Whether all of these bytes are known to be there.
    #[inline]
    pub(crate) fn has_reached(&self, va: u64, len: u8) -> bool {
        words_of(va, len) & !self.reached == 0
    }

    /// Whether values may be learnt from what is sent to it now.
    #[inline]
    pub(crate) fn teaches(&self, now: Nanos) -> bool {
        now >= self.quiet_until && (self.detouring == 0 || now >= self.detoured_until)
    }

    pub(crate) fn forget(&mut self, word: usize) {
        self.known &= !(1 << word);
    }

    pub(crate) fn forget_all(&mut self) {
        self.known = 0;
    }

    /// Bytes are written at `offset` in the line.
    #[inline]
    pub(crate) fn write(&mut self, offset: usize, bytes: &[u8], learn: bool) {
        if let Ok(whole) = <&[u8; 1 << LINE]>::try_from(bytes) {
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
            // Whole words, as most WRITEs of locks and nodes are
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

    /// Something goes to the line on another way than its shared connection. Whether it may go now: not while operations
    /// that were decided here are under way, which it could change the outcome of.
    pub(crate) fn detour(&mut self, now: Nanos, settle: Nanos) -> bool {
        self.known = 0;
        self.detours = self.detours.wrapping_add(1);
        // Something else may be awaited for longer.
        self.quiet_until = self.quiet_until.max(now + settle);
        self.decided == 0
    }
}

/// All lines.
#[derive(Debug)]
pub(crate) struct Lines {
    index: Index<Place>,
    all: Vec<Line>,
    blocks: Index<Place>,
    /// Lines of each block
    counts: Vec<u32>,
    capacity: usize,
    hand: u32,
    /// By server
    pub doubts: Box<[Doubts]>,
}

/// The word at `va` within its line
pub(crate) const fn word_of(va: u64) -> usize {
    (va >> 3 & 7) as usize
}

/// The words that some bytes of one line touch, by bit
#[inline]
pub(crate) const fn words_of(va: u64, len: u8) -> u8 {
    let last = (offset_of(va) + len as usize).saturating_sub(1) >> 3 & 7;
    (u8::MAX >> (7 - last)) & (u8::MAX << word_of(va))
}

/// Where `va` lies within its line
pub(crate) const fn offset_of(va: u64) -> usize {
    (va & 63) as usize
}

/// Whether these bytes lie in one line.
pub(crate) const fn in_one_line(va: u64, len: usize) -> bool {
    len > 0 && offset_of(va) + len <= 1 << LINE
}

impl Lines {
    /// Returns an empty table with room for `capacity` lines, for `servers` servers.
    pub(crate) fn with_capacity(capacity: usize, servers: usize) -> Self {
        Self {
            doubts: (0..servers).map(|_| Doubts::new()).collect(),
            index: Index::with_capacity(capacity),
            all: Vec::with_capacity(capacity),
            blocks: Index::with_capacity(capacity),
            counts: Vec::with_capacity(capacity),
            capacity,
            hand: 0,
        }
    }

    /// Salts the hashes of lines' addresses.
    pub(crate) fn set_salt(&mut self, salt: Salt) {
        self.index.set_salt(salt);
        self.blocks.set_salt(salt);
    }

    /// What so many lines take.
    pub(crate) fn bytes(capacity: usize) -> usize {
        2 * Index::<Place>::bytes(capacity) + capacity * (size_of::<Line>() + size_of::<u32>())
    }

    pub(crate) fn len(&self) -> usize {
        self.index.len()
    }

    /// The line in which `va` lies, if it is there.
    #[inline]
    pub(crate) fn find(&self, server: u8, va: u64) -> Option<Id> {
        self.index.get(&Place { server, number: va >> LINE })
    }

    /// Where the search for the line of `va` begins
    #[inline]
    pub(crate) fn home_of(&self, server: u8, va: u64) -> *const u8 {
        self.index.home_of(&Place { server, number: va >> LINE })
    }

    /// Has what will be needed of the line of `va` fetched; its lane, most likely.
    #[inline]
    pub(crate) fn foresee(&self, server: u8, va: u64, fetch: impl Fn(*const u8)) -> Id {
        let id = self.index.likely(&Place { server, number: va >> LINE });
        fetch(self.index.place_of(id));
        let line = self.all.as_ptr().wrapping_add(id as usize).cast::<u8>();
        fetch(line);
        fetch(line.wrapping_add(64));
        self.all.get(id as usize).map_or(NONE, |line| line.lane)
    }

    /// An operation on a line that was decided leaves on a lane; what it is counted by.
    #[inline]
    pub(crate) fn begin_decided(&mut self, id: Id) -> u8 {
        let line = &mut self.all[id as usize];
        line.decided += 1;
        self.doubts[usize::from(line.server)].begin()
    }

    /// It is done.
    #[inline]
    pub(crate) fn end_decided(&mut self, id: Id, tag: u8) {
        let line = &mut self.all[id as usize];
        line.decided -= 1;
        self.doubts[usize::from(line.server)].end(tag);
    }

    /// Whether all doubts have been applied to a line.
    #[inline]
    pub(crate) fn is_checked(&self, id: Id) -> bool {
        let line = &self.all[id as usize];
        line.checked == self.doubts[usize::from(line.server)].count
    }

    /// Applies to a line what came since it was last looked at.
    #[inline]
    pub(crate) fn check(&mut self, id: Id) {
        if !self.is_checked(id) {
            self.check_anew(id);
        }
    }

    #[cold]
    fn check_anew(&mut self, id: Id) {
        let line = &mut self.all[id as usize];
        let doubts = &self.doubts[usize::from(line.server)];
        if let Some(until) = doubts.since(line.checked, line.number) {
            line.forget_all();
            line.detours = line.detours.wrapping_add(1);
            line.quiet_until = line.quiet_until.max(until);
        }
        line.checked = doubts.count;
    }

    pub(crate) fn get(&self, id: Id) -> &Line {
        &self.all[id as usize]
    }

    pub(crate) fn get_mut(&mut self, id: Id) -> &mut Line {
        let line = &mut self.all[id as usize];
        line.used = true;
        line
    }

    /// The line in which `va` lies, made now if it was not there. Operations may be on their way to it of which nothing is
    /// known: it is quiet at first.
    pub(crate) fn make(
        &mut self,
        server: u8,
        va: u64,
        rkey: u32,
        reached: u8,
        quiet_until: Nanos,
    ) -> Result<Id, Full> {
        if self.index.len() == self.capacity {
            self.forget_one()?;
        }
        let place = Place { server, number: va >> LINE };
        let id = self.index.get_or_insert(place)?;
        let block = Place { server, number: va >> BLOCK };
        let Ok(block) = self.blocks.get_or_insert(block) else {
            self.index.remove(&place);
            return Err(Full);
        };
        let doubts = &mut self.doubts[usize::from(server)];
        doubts.reach(place.number);
        let checked = doubts.count;
        let line = Line {
            rkey,
            lane: NONE,
            incarnation: 0,
            under_way: 0,
            decided: 0,
            detours: 0,
            detouring: 0,
            detoured_until: Nanos::ZERO,
            quiet_until,
            known: 0,
            reached,
            used: true,
            checked,
            server,
            values: [0; 8],
            number: place.number,
        };
        put(&mut self.all, id, line.clone(), line);
        if block as usize >= self.counts.len() {
            self.counts.resize(block as usize + 1, 0);
        }
        self.counts[block as usize] += 1;
        Ok(id)
    }

    /// Forgets a line that was not looked at for a while and that nothing is under way to.
    fn forget_one(&mut self) -> Result<(), Full> {
        for _ in 0..64 {
            let id = self.hand;
            self.hand = (self.hand + 1) % self.index.ids().max(1);
            let Some(place) = self.index.key(id).copied() else { continue };
            let line = &mut self.all[id as usize];
            if line.used || line.under_way > 0 || line.detouring > 0 {
                line.used = false;
                continue;
            }
            self.index.remove(&place);
            let block = Place { server: place.server, number: place.number >> (BLOCK - LINE) };
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

    /// Something goes to `len` bytes from `va` on another way than a shared connection. An error if it may not go now: the
    /// lane to wait for, or `NONE` for all lanes on which something was decided.
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
        if (last >> BLOCK) - (va >> BLOCK) > BLOCKS {
            let doubts = &mut self.doubts[usize::from(server)];
            return doubts.add(va >> LINE, last >> LINE, now + settle, now).then_some(()).ok_or(NONE);
        }
        for block in va >> BLOCK..=last >> BLOCK {
            if self.blocks.get(&Place { server, number: block }).is_none() {
                continue;
            }
            let first = (va >> LINE).max(block << (BLOCK - LINE));
            let end = (last >> LINE).min((block << (BLOCK - LINE)) + (1 << (BLOCK - LINE)) - 1);
            for number in first..=end {
                if let Some(id) = self.index.get(&Place { server, number }) {
                    let line = self.get_mut(id);
                    if !line.detour(now, settle) {
                        wait = Err(line.lane);
                    }
                }
            }
        }
        wait
    }

    /// Whether there is a line among `len` bytes from `va`.
    pub(crate) fn has_any(&self, server: u8, va: u64, len: u64) -> bool {
        if self.index.is_empty() || len == 0 {
            return false;
        }
        let last = va.saturating_add(len - 1);
        if (last >> BLOCK) - (va >> BLOCK) > BLOCKS {
            // Too many to look for each.
            return self.doubts[usize::from(server)].may_have(va >> LINE, last >> LINE);
        }
        (va >> BLOCK..=last >> BLOCK).any(|number| self.blocks.get(&Place { server, number }).is_some())
    }

    /// Something unknown may go anywhere in a server's memory.
    pub(crate) fn detour_everywhere(&mut self, server: u8, now: Nanos, settle: Nanos) -> Result<(), Id> {
        let passes = self.doubts[usize::from(server)].add(0, u64::MAX, now + settle, now);
        passes.then_some(()).ok_or(NONE)
    }

    /// Whether operations that were decided may be under way to `len` bytes from `va`.
    pub(crate) fn is_decided(&self, server: u8, va: u64, len: u64) -> bool {
        if self.doubts[usize::from(server)].is_quiet() || len == 0 {
            return false;
        }
        let last = va.saturating_add(len - 1);
        if last - va >= 1 << BLOCK {
            return true;
        }
        (va >> LINE..=last >> LINE).any(|number| {
            self.index.get(&Place { server, number }).is_some_and(|id| self.all[id as usize].decided > 0)
        })
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Line> {
        self.all.iter_mut()
    }
}

/// Puts `value` at `id` of a vector that grows by the ids in use, filled up with `filler`.
pub(crate) fn put<T: Clone>(values: &mut Vec<T>, id: Id, value: T, filler: T) {
    if values.len() <= id as usize {
        values.resize(id as usize + 1, filler);
    }
    values[id as usize] = value;
}

#[cfg(test)]
mod tests;
