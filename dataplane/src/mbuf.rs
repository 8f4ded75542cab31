//! A packet buffer of DPDK's, owned.

use core::ptr::NonNull;
use dpdk_sys::{rte_mbuf, rte_mempool};
use switch::{Frame, Full, NoRoom};

/// An owned packet buffer: one frame, in one segment or more. Nobody else refers to what [`Frame::bytes`] shows of it, but
/// for a payload that copies share ([`switch::Output::share`]).
///
/// Dropping it gives it back to its pool.
#[derive(Debug)]
#[repr(transparent)]
pub struct Mbuf(NonNull<rte_mbuf>);

// SAFETY: an mbuf belongs to no thread; pools take back buffers from any thread.
unsafe impl Send for Mbuf {}

impl Mbuf {
    /// # Safety
    /// `raw` points to a buffer with a reference count of 1 that the caller owns, and owns no longer.
    #[inline]
    pub(crate) unsafe fn from_raw(raw: NonNull<rte_mbuf>) -> Self {
        Self(raw)
    }

    /// Gives up ownership.
    #[inline]
    pub(crate) fn into_raw(self) -> NonNull<rte_mbuf> {
        let raw = self.0;
        core::mem::forget(self);
        raw
    }

    /// An empty buffer of `pool`.
    ///
    /// # Safety
    /// `pool` is a pool of packet buffers that outlives what comes from it.
    pub(crate) unsafe fn allocate(pool: NonNull<rte_mempool>) -> Result<Self, Full> {
        // SAFETY: as the caller promises.
        let raw = unsafe { dpdk_sys::rte_pktmbuf_alloc(pool.as_ptr()) };
        NonNull::new(raw).map(Self).ok_or(Full)
    }

    /// A frame of these bytes, in a buffer as it lies in its pool.
    ///
    /// # Safety
    /// `raw` was taken from a pool of packet buffers, is the caller's alone, and is owned no longer.
    #[inline]
    pub(crate) unsafe fn fill(raw: NonNull<rte_mbuf>, bytes: &[u8]) -> Result<Self, Full> {
        // SAFETY: the buffer is valid, and nobody else refers to it. One that lies in its pool has one owner and one segment
        // (rte_mbuf_raw_free); `next` is null, and what describes offloads means nothing without flags that ask for them.
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
        // SAFETY: it was just checked that there is room for them.
        unsafe { copy_short(bytes, mbuf.buf_addr.cast::<u8>().add(headroom)) };
        Ok(Self(raw))
    }

    /// A copy of the whole frame in a buffer of `pool`.
    ///
    /// # Safety
    /// As for [`allocate`](Self::allocate).
    pub(crate) unsafe fn copy_to(&self, pool: NonNull<rte_mempool>) -> Result<Self, Full> {
        // SAFETY: the buffer is valid, and the pool as the caller promises.
        let raw = unsafe { dpdk_sys::rte_pktmbuf_copy(self.0.as_ptr(), pool.as_ptr(), 0, u32::MAX) };
        NonNull::new(raw).map(Self).ok_or(Full)
    }

    /// A copy of the whole frame that refers to this buffer for all but the first `head` and last `tail` bytes: three segments,
    /// the first and the last of which are its own. A frame that is not made of one segment, or not longer than that, is
    /// copied.
    ///
    /// # Safety
    /// As for [`allocate`](Self::allocate).
    pub(crate) unsafe fn share_to(
        &self,
        pool: NonNull<rte_mempool>,
        head: usize,
        tail: usize,
    ) -> Result<Self, Full> {
        let bytes = self.bytes();
        if !self.is_whole() || bytes.len() <= head + tail {
            // SAFETY: as the caller promises.
            return unsafe { self.copy_to(pool) };
        }
        let middle = bytes.len() - head - tail;
        let mut raw = [core::ptr::null_mut::<rte_mbuf>(); 3];
        // SAFETY: the pool is as the caller promises; there is room for three pointers.
        if unsafe { dpdk_sys::rte_pktmbuf_alloc_bulk(pool.as_ptr(), raw.as_mut_ptr(), 3) } != 0 {
            return Err(Full);
        }
        // SAFETY: they were just allocated, and are owned here alone.
        let [mut first, mut shared, mut last] = raw.map(|raw| Self(unsafe { NonNull::new_unchecked(raw) }));
        for (own, part) in [(&mut first, &bytes[..head]), (&mut last, &bytes[head + middle..])] {
            own.resize(part.len()).map_err(|NoRoom| Full)?;
            own.bytes_mut().copy_from_slice(part);
        }
        // SAFETY: both are valid; the new one is direct, and has no other owner. It takes a reference to this one's memory,
        // which goes back to its pool with the last of them.
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
        // SAFETY: the buffer is valid for as long as it is owned, and only changed through `&mut self`.
        unsafe { self.0.as_ref() }
    }

    #[inline]
    fn mbuf_mut(&mut self) -> &mut rte_mbuf {
        // SAFETY: as above.
        unsafe { self.0.as_mut() }
    }

    /// Bytes of the whole frame, further segments included.
    #[inline]
    pub fn frame_len(&self) -> usize {
        self.mbuf().pkt_len as usize
    }

    /// Bytes that can be added behind the segment.
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
        // SAFETY: the segment's data lies in its buffer and is initialised: drivers and `resize` see to that.
        unsafe {
            let start = mbuf.buf_addr.cast::<u8>().add(usize::from(mbuf.data_off));
            core::slice::from_raw_parts(start, usize::from(mbuf.data_len))
        }
    }

    #[inline]
    fn bytes_mut(&mut self) -> &mut [u8] {
        let mbuf = self.mbuf_mut();
        // SAFETY: as above; nobody else refers to the buffer.
        unsafe {
            let start = mbuf.buf_addr.cast::<u8>().add(usize::from(mbuf.data_off));
            core::slice::from_raw_parts_mut(start, usize::from(mbuf.data_len))
        }
    }

    #[inline]
    fn is_whole(&self) -> bool {
        self.mbuf().nb_segs == 1
    }

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
            // SAFETY: the tail room was checked; the bytes are written before they become part of the data.
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
        // SAFETY: the head room was checked.
        unsafe { mbuf.buf_addr.cast::<u8>().add(usize::from(mbuf.data_off)).write_bytes(0, len) };
        Ok(())
    }

    fn strip(&mut self, len: usize) {
        let mbuf = self.mbuf_mut();
        assert!(len <= usize::from(mbuf.data_len), "the frame is shorter than what is stripped");
        mbuf.data_off += len as u16;
        mbuf.data_len -= len as u16;
        mbuf.pkt_len -= len as u32;
    }
}

/// Copies bytes without a call: frames that are made by the million are short.
///
/// # Safety
/// There is room for them at `to`, where nothing of them lies.
#[inline]
unsafe fn copy_short(bytes: &[u8], to: *mut u8) {
    /// What a register holds
    type Chunk = [u8; 32];
    const LEN: usize = size_of::<Chunk>();
    let (from, len) = (bytes.as_ptr(), bytes.len());
    if !(LEN..=8 * LEN).contains(&len) {
        // SAFETY: as the caller promises.
        unsafe { core::ptr::copy_nonoverlapping(from, to, len) };
        return;
    }
    let copy = |at: usize| {
        // SAFETY: `at` is at most `len - LEN`; nothing has to be aligned.
        unsafe { to.add(at).cast::<Chunk>().write_unaligned(from.add(at).cast::<Chunk>().read_unaligned()) };
    };
    let mut at = 0;
    while at + LEN < len {
        copy(at);
        at += LEN;
    }
    // The last overlaps the one before.
    copy(len - LEN);
}

impl Drop for Mbuf {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the buffer is owned and not used again.
        unsafe { dpdk_sys::rte_pktmbuf_free(self.0.as_ptr()) }
    }
}
