//! Host memory: protection domains, buffers, and the memory regions through which queue pairs access them
//! (IB 10.6).
//!
//! A *buffer* is memory of the host. A *memory region* maps part of a buffer to a virtual address, with
//! access flags. Several regions may map the same bytes with different access flags, and access flags can
//! change while packets arrive: Mu's leader change revokes the old leader's write access that way.

use core::ops::Range;
use switch::Rng;
use switch::table::DenseTable;

/// A protection domain: a queue pair can access regions of its own domain only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pd(pub(crate) u32);

/// A buffer of host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Buffer(pub(crate) u32);

/// The key of a memory region; the same number serves as `L_Key` and `R_Key`. The upper 24 bits are an index.
/// The low byte changes with every region that is registered at the same index, starting from a random value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mr(pub u32);

/// A set of access flags of a region or a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Access(u8);

impl Access {
    /// Local reads only, which are always allowed
    pub const LOCAL_READ: Self = Self(0);
    /// Received messages and responses may be written to the region.
    pub const LOCAL_WRITE: Self = Self(1);
    /// RDMA WRITE
    pub const REMOTE_WRITE: Self = Self(2);
    /// RDMA READ
    pub const REMOTE_READ: Self = Self(4);
    /// `CmpSwap` and `FetchAdd`
    pub const REMOTE_ATOMIC: Self = Self(8);
    /// SEND with invalidate may remove the region. A queue pair needs no flag for that.
    pub const REMOTE_INVALIDATE: Self = Self(16);
    /// All flags except remote invalidate
    pub const ALL: Self = Self(15);

    /// Returns the union of both sets.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns whether all flags of `other` are in the set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// Location and access flags of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Key
    pub mr: Mr,
    /// Protection domain
    pub pd: Pd,
    /// Virtual address of the first byte
    pub va: u64,
    /// Length in bytes
    pub len: u64,
    /// Access flags
    pub access: Access,
    /// Buffer that the region maps
    pub buffer: Buffer,
    /// Offset of the region in the buffer, in bytes
    pub offset: usize,
}

/// Why an access to memory is denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    /// No region has this key
    #[error("no memory region has the key {0:#x}; register one")]
    Key(u32),
    /// The region belongs to another protection domain
    #[error("the memory region belongs to another protection domain; register it in the queue pair's domain")]
    Domain,
    /// The range is not within the region
    #[error("the access exceeds the memory region; register a longer one")]
    Bounds,
    /// The region or the queue pair does not allow this access
    #[error("the access flags of the region or of the queue pair do not allow the access; add the flag")]
    Rights,
    /// The address of an atomic is not a multiple of 8
    #[error("the address of an atomic is not a multiple of 8; align it")]
    Unaligned,
}

/// Why a buffer or region cannot be allocated, registered or freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemoryError {
    /// The limit of the configuration is reached
    #[error("the limit of buffers or memory regions is reached; raise max_regions")]
    Full,
    /// The buffer or region does not exist, or no longer
    #[error("no such buffer or memory region; it may have been freed")]
    Unknown,
    /// The range exceeds the buffer, or wraps around the end of the address space
    #[error("the range exceeds the buffer or the address space; shorten it")]
    Bounds,
    /// Memory regions still map the buffer
    #[error("memory regions still map the buffer; deregister them first")]
    Busy,
}

/// Bytes of a buffer to which access was granted. Valid for the current packet only: access flags may change
/// before the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) buffer: Buffer,
    pub(crate) at: usize,
}

impl Span {
    /// Returns the span that starts `bytes` bytes later.
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
    /// The low byte of the latest key at each index, so that a deregistered region's key differs from the
    /// next one's
    key_variants: Vec<u8>,
    rng: Rng,
}

impl Memory {
    pub(crate) fn new(max_regions: usize, rng: Rng) -> Self {
        // The key has 24 bits for the index.
        let regions = max_regions.min(1 << 24);
        Self {
            domains: 0,
            buffers: DenseTable::with_capacity(regions),
            regions: DenseTable::with_capacity(regions),
            key_variants: Vec::with_capacity(regions),
            rng,
        }
    }

    /// Returns the numbers of regions and buffers.
    pub(crate) fn counts(&self) -> (usize, usize) {
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
        let regions = (0..self.regions.ids()).filter_map(|id| self.regions.get(id));
        if regions.into_iter().any(|region| region.buffer == buffer) {
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

    /// Returns the next key at an index.
    fn next_key(&mut self, id: u32) -> Mr {
        if id as usize == self.key_variants.len() {
            self.key_variants.push(self.rng.below(256) as u8);
        }
        let variant = &mut self.key_variants[id as usize];
        *variant = variant.wrapping_add(1);
        // Key 0 is never assigned, so that a key that was not filled in grants no access.
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
        if !region.access.contains(access) {
            return Err(AccessError::Rights);
        }
        Ok(Span { buffer: region.buffer, at: region.offset + at as usize })
    }

    /// Returns the bytes of a granted span. Empty if the buffer has been freed since.
    #[inline]
    pub(crate) fn bytes(&self, span: Span, len: usize) -> &[u8] {
        self.buffer(span.buffer).get(span.at..span.at + len).unwrap_or_default()
    }

    /// Writes bytes to a granted span. Writes nothing if the buffer has been freed since.
    #[inline]
    pub(crate) fn write(&mut self, span: Span, bytes: &[u8]) {
        let buffer = self.buffers.get_mut(span.buffer.0);
        if let Some(target) = buffer.and_then(|buffer| buffer.get_mut(span.at..span.at + bytes.len())) {
            target.copy_from_slice(bytes);
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
    fn access_is_granted_within_flags_and_bounds() {
        let mut memory = Memory::new(4, Rng::new(1));
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
    fn a_key_is_reused_after_255_registrations_at_the_earliest() {
        for seed in 0..100 {
            let mut memory = Memory::new(2, Rng::new(seed));
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
    fn a_buffer_is_freed_only_after_its_regions() {
        let mut memory = Memory::new(2, Rng::new(1));
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
            "the other region is unchanged"
        );
        memory.deregister(first).unwrap();
        assert_eq!(memory.deregister(first).unwrap_err(), MemoryError::Unknown);
        memory.deregister(second).unwrap();
        assert_eq!(memory.free(buffer), Ok(vec![7; 16]));
        assert!(memory.bytes(Span { buffer, at: 0 }, 4).is_empty());
    }
}
