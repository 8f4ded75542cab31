//! Owned mbufs, DPDK's packet buffers.

use core::ptr::NonNull;
use dpdk_sys::{rte_mbuf, rte_mempool};
use switch::{Frame, Full, NoRoom, PortId};

/// An owned mbuf: one frame, in one or more segments. The bytes that [`Frame::bytes`] returns are referenced
/// by no other mbuf, except for a payload that copies share ([`switch::Output::share`]).
///
/// Dropping it returns it to its pool.
#[derive(Debug)]
#[repr(transparent)]
pub struct Mbuf(NonNull<rte_mbuf>);

// SAFETY: an mbuf belongs to no thread; pools accept buffers from any thread.
unsafe impl Send for Mbuf {}

impl Mbuf {
    /// Takes ownership.
    ///
    /// # Safety
    /// `raw` points to a buffer with a reference count of 1 that the caller owns; the ownership passes to the
    /// result.
    #[inline]
    pub(crate) unsafe fn from_raw(raw: NonNull<rte_mbuf>) -> Self {
        Self(raw)
    }

    /// Returns the buffer, which the frame continues to own.
    #[inline]
    pub(crate) const fn as_raw(&self) -> *mut rte_mbuf {
        self.0.as_ptr()
    }

    /// Releases ownership to the caller.
    #[inline]
    pub(crate) fn into_raw(self) -> NonNull<rte_mbuf> {
        let raw = self.0;
        core::mem::forget(self);
        raw
    }

    /// Allocates an empty mbuf from `pool`.
    ///
    /// # Safety
    /// `pool` is a pool of packet buffers that outlives the mbufs allocated from it.
    pub(crate) unsafe fn allocate(pool: NonNull<rte_mempool>) -> Result<Self, Full> {
        // SAFETY: guaranteed by the caller.
        let raw = unsafe { dpdk_sys::rte_pktmbuf_alloc(pool.as_ptr()) };
        NonNull::new(raw).map(Self).ok_or(Full)
    }

    /// Initialises a raw mbuf, as the pool stores it, with a frame of these bytes.
    ///
    /// # Safety
    /// `raw` was taken from a pool of packet buffers, and the caller owns it; the ownership passes to the
    /// result.
    #[inline]
    pub(crate) unsafe fn fill(raw: NonNull<rte_mbuf>, bytes: &[u8]) -> Result<Self, Full> {
        // SAFETY: the buffer is valid, and no other reference to it exists. A raw mbuf has a reference count
        // of 1 and one segment (rte_mbuf_raw_free); `next` is null, and offload fields have no meaning
        // without flags in `ol_flags`.
        let mbuf = unsafe { &mut *raw.as_ptr() };
        (mbuf.data_off, mbuf.refcnt, mbuf.nb_segs, mbuf.port) =
            (dpdk_sys::RTE_PKTMBUF_HEADROOM as u16, 1, 1, u16::MAX);
        (mbuf.ol_flags, mbuf.__bindgen_anon_1.packet_type) = (0, 0);
        (mbuf.pkt_len, mbuf.data_len) = (bytes.len() as u32, bytes.len() as u16);
        (mbuf.vlan_tci, mbuf.vlan_tci_outer) = (0, 0);
        let headroom = dpdk_sys::RTE_PKTMBUF_HEADROOM as usize;
        if headroom + bytes.len() > usize::from(mbuf.buf_len) {
            mbuf.data_len = 0;
            drop(Self(raw));
            return Err(Full);
        }
        // SAFETY: the size was checked above.
        unsafe { copy_short(bytes, mbuf.buf_addr.cast::<u8>().add(headroom)) };
        Ok(Self(raw))
    }

    /// Copies the whole frame into an mbuf of `pool`.
    pub(crate) unsafe fn copy_to(&self, pool: NonNull<rte_mempool>) -> Result<Self, Full> {
        // SAFETY: the buffer is valid; the caller guarantees the rest for the pool.
        let raw = unsafe { dpdk_sys::rte_pktmbuf_copy(self.0.as_ptr(), pool.as_ptr(), 0, u32::MAX) };
        NonNull::new(raw).map(Self).ok_or(Full)
    }

    /// Copies the whole frame, but refers to this mbuf's memory for all but the first `head` and last `tail`
    /// bytes: three segments, the first and the last of which are the copy's own. A frame of several
    /// segments, or not longer than `head + tail`, is copied completely.
    pub(crate) unsafe fn share_to(
        &self,
        pool: NonNull<rte_mempool>,
        head: usize,
        tail: usize,
    ) -> Result<Self, Full> {
        let bytes = self.bytes();
        if !self.is_whole() || bytes.len() <= head + tail {
            // SAFETY: guaranteed by the caller.
            return unsafe { self.copy_to(pool) };
        }
        let middle = bytes.len() - head - tail;
        let mut raw = [core::ptr::null_mut::<rte_mbuf>(); 3];
        // SAFETY: the caller guarantees the pool; the array has room for three pointers.
        if unsafe { dpdk_sys::rte_pktmbuf_alloc_bulk(pool.as_ptr(), raw.as_mut_ptr(), 3) } != 0 {
            return Err(Full);
        }
        // SAFETY: the mbufs were just allocated, and are owned here only.
        let [mut first, mut shared, mut last] = raw.map(|raw| Self(unsafe { NonNull::new_unchecked(raw) }));
        for (own, part) in [(&mut first, &bytes[..head]), (&mut last, &bytes[head + middle..])] {
            own.resize(part.len()).map_err(|NoRoom| Full)?;
            own.bytes_mut().copy_from_slice(part);
        }
        // SAFETY: both are valid; the new mbuf is direct, and has no other owner. It takes a reference to
        // this mbuf's memory, which returns to its pool with the last reference.
        unsafe { dpdk_sys::rte_pktmbuf_attach(shared.0.as_ptr(), self.0.as_ptr()) };
        let offset = self.mbuf().data_off + head as u16;
        let part = shared.mbuf_mut();
        (part.data_off, part.data_len) = (offset, middle as u16);
        part.next = last.into_raw().as_ptr();
        let frame = first.mbuf_mut();
        (frame.pkt_len, frame.nb_segs) = (bytes.len() as u32, 3);
        frame.next = shared.into_raw().as_ptr();
        Ok(first)
    }

    #[inline]
    fn mbuf(&self) -> &rte_mbuf {
        // SAFETY: the buffer is valid while it is owned, and changed only through `&mut self`.
        unsafe { self.0.as_ref() }
    }

    #[inline]
    fn mbuf_mut(&mut self) -> &mut rte_mbuf {
        // SAFETY: as above.
        unsafe { self.0.as_mut() }
    }

    /// Returns the length of the whole frame, including further segments, in bytes.
    #[inline]
    pub fn frame_len(&self) -> usize {
        self.mbuf().pkt_len as usize
    }

    /// Returns the port that was last [set](Self::set_port).
    #[inline]
    pub(crate) fn port(&self) -> PortId {
        PortId(self.mbuf().port)
    }

    /// Notes on which port the frame was received, in place of DPDK's ID of that port.
    #[inline]
    pub(crate) fn set_port(&mut self, port: PortId) {
        self.mbuf_mut().port = port.0;
    }

    /// Appends the first bytes of the frame to `to`, up to `most`, whatever segments they are in.
    pub(crate) fn copy_start(&self, most: usize, to: &mut Vec<u8>) {
        let end = to.len() + most;
        let mut segment = Some(self.mbuf());
        while let Some(part) = segment {
            // SAFETY: the segment's data is within its buffer and initialised, as for `bytes`.
            let bytes = unsafe {
                let start = part.buf_addr.cast::<u8>().add(usize::from(part.data_off));
                core::slice::from_raw_parts(start, usize::from(part.data_len))
            };
            to.extend_from_slice(&bytes[..bytes.len().min(end - to.len())]);
            // SAFETY: the next segment is null or valid, and belongs to this frame.
            segment = unsafe { part.next.as_ref() }.filter(|_| to.len() < end);
        }
    }

    /// Returns the space behind the segment, in bytes.
    #[inline]
    fn tailroom(&self) -> usize {
        let mbuf = self.mbuf();
        usize::from(mbuf.buf_len).saturating_sub(usize::from(mbuf.data_off) + usize::from(mbuf.data_len))
    }
}

impl Frame for Mbuf {
    #[inline]
    fn bytes(&self) -> &[u8] {
        let mbuf = self.mbuf();
        // SAFETY: the segment's data is within its buffer and initialised; drivers and `resize` ensure that.
        unsafe {
            let start = mbuf.buf_addr.cast::<u8>().add(usize::from(mbuf.data_off));
            core::slice::from_raw_parts(start, usize::from(mbuf.data_len))
        }
    }

    #[inline]
    fn bytes_mut(&mut self) -> &mut [u8] {
        let mbuf = self.mbuf_mut();
        // SAFETY: as above; no other reference to the buffer exists.
        unsafe {
            let start = mbuf.buf_addr.cast::<u8>().add(usize::from(mbuf.data_off));
            core::slice::from_raw_parts_mut(start, usize::from(mbuf.data_len))
        }
    }

    #[inline]
    fn is_whole(&self) -> bool {
        self.mbuf().nb_segs == 1
    }

    #[inline]
    fn resize(&mut self, len: usize) -> Result<(), NoRoom> {
        if !self.is_whole() {
            return Err(NoRoom);
        }
        let old = usize::from(self.mbuf().data_len);
        if len > old + self.tailroom() {
            return Err(NoRoom);
        }
        if len > old {
            let mbuf = self.mbuf();
            // SAFETY: the tailroom was checked; the bytes are written before they become part of the data.
            unsafe {
                mbuf.buf_addr.cast::<u8>().add(usize::from(mbuf.data_off) + old).write_bytes(0, len - old);
            }
        }
        let mbuf = self.mbuf_mut();
        mbuf.data_len = len as u16;
        mbuf.pkt_len = len as u32;
        Ok(())
    }

    fn prepend(&mut self, len: usize) -> Result<(), NoRoom> {
        let mbuf = self.mbuf_mut();
        let grown = usize::from(mbuf.data_len) + len;
        if len > usize::from(mbuf.data_off) || u16::try_from(grown).is_err() {
            return Err(NoRoom);
        }
        mbuf.data_off -= len as u16;
        mbuf.data_len += len as u16;
        mbuf.pkt_len += len as u32;
        // SAFETY: the headroom was checked.
        unsafe { mbuf.buf_addr.cast::<u8>().add(usize::from(mbuf.data_off)).write_bytes(0, len) };
        Ok(())
    }

    fn strip(&mut self, len: usize) {
        let mbuf = self.mbuf_mut();
        assert!(len <= usize::from(mbuf.data_len), "cannot strip more bytes than the frame has");
        mbuf.data_off += len as u16;
        mbuf.data_len -= len as u16;
        mbuf.pkt_len -= len as u32;
    }
}

/// Copies bytes without a function call, because frames that are generated by the million are short.
///
/// # Safety
/// `to` has room for `bytes`, and does not overlap them.
#[inline]
unsafe fn copy_short(bytes: &[u8], to: *mut u8) {
    /// Contents of a register
    type Chunk = [u8; 32];
    const LEN: usize = size_of::<Chunk>();
    let (from, len) = (bytes.as_ptr(), bytes.len());
    if !(LEN..=8 * LEN).contains(&len) {
        // SAFETY: guaranteed by the caller.
        unsafe { core::ptr::copy_nonoverlapping(from, to, len) };
        return;
    }
    let copy = |at: usize| {
        // SAFETY: `at` is at most `len - LEN`; no alignment is required.
        unsafe { to.add(at).cast::<Chunk>().write_unaligned(from.add(at).cast::<Chunk>().read_unaligned()) };
    };
    let mut at = 0;
    while at + LEN < len {
        copy(at);
        at += LEN;
    }
    // The last chunk overlaps the one before it.
    copy(len - LEN);
}

impl Drop for Mbuf {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the buffer is owned and not used again.
        unsafe { dpdk_sys::rte_pktmbuf_free(self.0.as_ptr()) }
    }
}
