//! Host memory: protection domains, buffers, and the memory regions through which queue pairs reach them (IB 10.6).
//!
//! A *buffer* is memory of the host. A *memory region* is a window on one: part of its bytes under a virtual address,
//! with rights. Several regions may look at the same bytes with different rights, and rights can be changed while
//! packets arrive: who may write is how leadership moves.

use core::ops::Range;
use switch::Chance;
use switch::table::DenseTable;

/// A protection domain: queue pairs reach the regions of their own domain only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pd(pub(crate) u32);

/// Memory of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Buffer(pub(crate) u32);

/// The key of a memory region; the same number serves as `L_Key` and `R_Key`. The low byte changes with every region in
/// the same place, beginning somewhere; the rest is an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mr(pub u32);

/// What may be done to a region, or through a queue pair: a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Access(u8);

impl Access {
    /// Nothing but local reads, which are always allowed
    pub const LOCAL_READ: Self = Self(0);
    /// Received messages and responses may be written to it.
    pub const LOCAL_WRITE: Self = Self(1);
    /// RDMA WRITE
    pub const REMOTE_WRITE: Self = Self(2);
    /// RDMA READ
    pub const REMOTE_READ: Self = Self(4);
    /// `CmpSwap` and `FetchAdd`
    pub const REMOTE_ATOMIC: Self = Self(8);
    /// SEND with invalidate may remove the region. A queue pair needs no right for that.
    pub const REMOTE_INVALIDATE: Self = Self(16);
    /// All of these but the right to invalidate
    pub const ALL: Self = Self(15);

    /// Both sets together.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether all of `other` is in the set.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// Where a region lies and what may be done to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Its key
    pub mr: Mr,
    /// The domain it belongs to
    pub pd: Pd,
    /// The virtual address of its first byte
    pub va: u64,
    /// Bytes
    pub len: u64,
    /// Rights
    pub access: Access,
    /// The memory behind it
    pub buffer: Buffer,
    /// Where in the buffer it begins, in bytes
    pub offset: usize,
}

/// What is asked for is outside of the region, or not allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    /// No region has this key
    #[error("no memory region has the key {0:#x}")]
    Key(u32),
    /// The region belongs to another protection domain
    #[error("the memory region belongs to another protection domain")]
    Domain,
    /// Not within the region
    #[error("outside of the memory region")]
    Bounds,
    /// The region, or the queue pair, does not allow it
    #[error("the rights do not allow it")]
    Rights,
    /// An atomic operation on an address that is no multiple of eight
    #[error("the address of an atomic operation is no multiple of 8")]
    Unaligned,
}

/// A request for memory cannot be met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemoryError {
    /// There are as many as the configuration allows
    #[error("no room for one more")]
    Full,
    /// It does not exist, or no more
    #[error("it does not exist")]
    Unknown,
    /// Not within the buffer, or around the end of the address space
    #[error("not within the buffer or the address space")]
    Bounds,
    /// Memory regions still look at it
    #[error("memory regions look at it")]
    Busy,
}

/// Bytes of a buffer that an access was granted to. Good for the packet that asked: rights may change before the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) buffer: Buffer,
    pub(crate) at: usize,
}

impl Span {
    /// The span that begins `bytes` further on.
    pub(crate) fn skip(self, bytes: usize) -> Self {
        Self { at: self.at + bytes, ..self }
    }
}

/// All memory of a NIC.
#[derive(Debug)]
pub(crate) struct Memory {
    domains: u32,
    buffers: DenseTable<Vec<u8>>,
    regions: DenseTable<Region>,
    /// The low byte of the latest key of each place: the key of a region that went is not that of the next one
    variants: Vec<u8>,
    chance: Chance,
}

impl Memory {
    pub(crate) fn new(max_regions: usize, chance: Chance) -> Self {
        // The key has 24 bits for the index.
        let regions = max_regions.min(1 << 24);
        Self {
            domains: 0,
            buffers: DenseTable::with_capacity(regions),
            regions: DenseTable::with_capacity(regions),
            variants: Vec::with_capacity(regions),
            chance,
        }
    }

    /// Regions and buffers that there are
    pub(crate) fn held(&self) -> (usize, usize) {
        (self.regions.len(), self.buffers.len())
    }

    pub(crate) fn alloc_pd(&mut self) -> Pd {
        self.domains += 1;
        Pd(self.domains)
    }

    pub(crate) fn alloc(&mut self, bytes: Vec<u8>) -> Result<Buffer, MemoryError> {
        self.buffers.insert(bytes).map(Buffer).map_err(|switch::Full| MemoryError::Full)
    }

    pub(crate) fn free(&mut self, buffer: Buffer) -> Result<Vec<u8>, MemoryError> {
        let looked_at = (0..self.regions.ids()).filter_map(|id| self.regions.get(id));
        if looked_at.into_iter().any(|region| region.buffer == buffer) {
            return Err(MemoryError::Busy);
        }
        self.buffers.remove(buffer.0).ok_or(MemoryError::Unknown)
    }

    pub(crate) fn register(
        &mut self,
        pd: Pd,
        buffer: Buffer,
        range: Range<usize>,
        va: u64,
        access: Access,
    ) -> Result<Mr, MemoryError> {
        let bytes = self.buffers.get(buffer.0).ok_or(MemoryError::Unknown)?;
        if range.start > range.end || range.end > bytes.len() {
            return Err(MemoryError::Bounds);
        }
        let len = range.len() as u64;
        if va.checked_add(len).is_none() {
            return Err(MemoryError::Bounds);
        }
        let region = Region { mr: Mr(0), pd, va, len, access, buffer, offset: range.start };
        let id = self.regions.insert(region).map_err(|switch::Full| MemoryError::Full)?;
        let mr = self.next_key(id);
        if let Some(region) = self.regions.get_mut(id) {
            region.mr = mr;
        }
        Ok(mr)
    }

    /// The next key of a place.
    fn next_key(&mut self, id: u32) -> Mr {
        if id as usize == self.variants.len() {
            self.variants.push(self.chance.below(256) as u8);
        }
        let variant = &mut self.variants[id as usize];
        *variant = variant.wrapping_add(1);
        // Key 0 is nobody's: what was forgotten to be filled in reaches nothing.
        if id == 0 && *variant == 0 {
            *variant = 1;
        }
        Mr(id << 8 | u32::from(*variant))
    }

    pub(crate) fn region(&self, mr: Mr) -> Option<&Region> {
        self.regions.get(mr.0 >> 8).filter(|region| region.mr == mr)
    }

    pub(crate) fn reregister(&mut self, mr: Mr, access: Access) -> Result<(), MemoryError> {
        let region = self.regions.get_mut(mr.0 >> 8).filter(|region| region.mr == mr);
        region.ok_or(MemoryError::Unknown)?.access = access;
        Ok(())
    }

    pub(crate) fn deregister(&mut self, mr: Mr) -> Result<Region, MemoryError> {
        self.region(mr).ok_or(MemoryError::Unknown)?;
        self.regions.remove(mr.0 >> 8).ok_or(MemoryError::Unknown)
    }

    /// Grants access to `len` bytes at `va` through the region of `key`.
    #[inline]
    pub(crate) fn check(
        &self,
        pd: Pd,
        key: u32,
        va: u64,
        len: u64,
        access: Access,
    ) -> Result<Span, AccessError> {
        let region = self.region(Mr(key)).ok_or(AccessError::Key(key))?;
        if region.pd != pd {
            return Err(AccessError::Domain);
        }
        let at = va.checked_sub(region.va).ok_or(AccessError::Bounds)?;
        if at.checked_add(len).is_none_or(|end| end > region.len) {
            return Err(AccessError::Bounds);
        }
        if !region.access.has(access) {
            return Err(AccessError::Rights);
        }
        Ok(Span { buffer: region.buffer, at: region.offset + at as usize })
    }

    /// Bytes that access was granted to. Empty where the buffer has been freed since.
    #[inline]
    pub(crate) fn bytes(&self, span: Span, len: usize) -> &[u8] {
        self.buffer(span.buffer).get(span.at..span.at + len).unwrap_or_default()
    }

    /// The same, to be written. Nothing is written where the buffer has been freed since.
    #[inline]
    pub(crate) fn write(&mut self, span: Span, bytes: &[u8]) {
        let buffer = self.buffers.get_mut(span.buffer.0);
        if let Some(place) = buffer.and_then(|buffer| buffer.get_mut(span.at..span.at + bytes.len())) {
            place.copy_from_slice(bytes);
        }
    }

    pub(crate) fn buffer(&self, buffer: Buffer) -> &[u8] {
        self.buffers.get(buffer.0).map(Vec::as_slice).unwrap_or_default()
    }

    pub(crate) fn buffer_mut(&mut self, buffer: Buffer) -> &mut [u8] {
        self.buffers.get_mut(buffer.0).map(Vec::as_mut_slice).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_is_granted_within_rights_and_bounds() {
        let mut memory = Memory::new(4, Chance::new(1));
        let (pd, other) = (memory.alloc_pd(), memory.alloc_pd());
        let buffer = memory.alloc(vec![0; 100]).unwrap();
        let mr = memory.register(pd, buffer, 10..90, 0x1000, Access::REMOTE_WRITE).unwrap();
        let check = |pd, key, va, len, access| memory.check(pd, key, va, len, access);
        let granted = Span { buffer, at: 15 };
        assert_eq!(check(pd, mr.0, 0x1005, 75, Access::REMOTE_WRITE), Ok(granted));
        assert_eq!(check(pd, mr.0, 0x1005, 76, Access::REMOTE_WRITE), Err(AccessError::Bounds));
        assert_eq!(check(pd, mr.0, 0xfff, 1, Access::REMOTE_WRITE), Err(AccessError::Bounds));
        assert_eq!(check(pd, mr.0, 0x1001, u64::MAX, Access::REMOTE_WRITE), Err(AccessError::Bounds));
        assert_eq!(check(pd, mr.0, 0x1005, 1, Access::REMOTE_READ), Err(AccessError::Rights));
        assert_eq!(check(other, mr.0, 0x1005, 1, Access::REMOTE_WRITE), Err(AccessError::Domain));
        assert_eq!(check(pd, mr.0 ^ 1, 0x1005, 1, Access::REMOTE_WRITE), Err(AccessError::Key(mr.0 ^ 1)));
    }

    #[test]
    fn a_key_comes_back_late() {
        for seed in 0..100 {
            let mut memory = Memory::new(2, Chance::new(seed));
            let pd = memory.alloc_pd();
            let buffer = memory.alloc(vec![0; 16]).unwrap();
            let mut keys = std::collections::HashSet::new();
            for _ in 0..255 {
                let mr = memory.register(pd, buffer, 0..16, 0, Access::ALL).unwrap();
                assert!(mr.0 != 0 && keys.insert(mr), "seed {seed}");
                memory.deregister(mr).unwrap();
            }
        }
    }

    #[test]
    fn regions_come_and_go() {
        let mut memory = Memory::new(2, Chance::new(1));
        let pd = memory.alloc_pd();
        let buffer = memory.alloc(vec![7; 16]).unwrap();
        let register = |memory: &mut Memory, range, va| memory.register(pd, buffer, range, va, Access::ALL);
        assert_eq!(register(&mut memory, 0..17, 0), Err(MemoryError::Bounds));
        assert_eq!(register(&mut memory, 0..16, u64::MAX - 3), Err(MemoryError::Bounds));
        let first = register(&mut memory, 0..16, 0).unwrap();
        let second = register(&mut memory, 8..16, 0x8000).unwrap();
        assert_eq!(register(&mut memory, 0..1, 0), Err(MemoryError::Full));
        assert_eq!(memory.free(buffer), Err(MemoryError::Busy));
        memory.reregister(second, Access::LOCAL_READ).unwrap();
        assert_eq!(memory.check(pd, second.0, 0x8000, 1, Access::REMOTE_READ), Err(AccessError::Rights));
        assert!(
            memory.check(pd, first.0, 8, 1, Access::REMOTE_READ).is_ok(),
            "the other window is as it was"
        );
        memory.deregister(first).unwrap();
        assert_eq!(memory.deregister(first).unwrap_err(), MemoryError::Unknown);
        memory.deregister(second).unwrap();
        assert_eq!(memory.free(buffer), Ok(vec![7; 16]));
        assert!(memory.bytes(Span { buffer, at: 0 }, 4).is_empty());
    }
}
