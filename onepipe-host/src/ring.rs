//! Rings of records between an application's thread and the polling thread: one writer, one reader, neither
//! of which waits, and short records need no allocation.
//!
//! A record has a head of a fixed length and a body. Both lie in the ring, unless the body is long: then it
//! is passed on as a vector, which saves copying a large message and keeps the ring small enough to stay in
//! the cache.
//!
//! The reader sees records when the writer publishes them, many at once: each time, the cache lines that both
//! access move from one core to the other.

use core::sync::atomic::{AtomicUsize, Ordering};
use rtrb::{Consumer, Producer, RingBuffer};
use std::sync::Arc;
use switch::Full;

/// Maximum length of a body in the ring, in bytes; longer ones are passed on as vectors
pub(crate) const MAX_INLINE: usize = 4096;
/// Size of a ring, in bytes: some thousand small records, in a core's own cache
const RING_BYTES: usize = 1 << 20;
/// Maximum number of vectors in transit
const MAX_VECTORS: usize = 1024;
/// Maximum number of bytes of vectors in transit, except for a single one that is longer
const MAX_VECTOR_BYTES: usize = 64 << 20;
/// Number of bytes after which records are published, which one more record may exceed: they are copied while
/// they are in the L1 cache
const PUBLISH_BYTES: usize = 8 << 10;
/// Length of the body length in front of each record, in bytes
const LENGTH_LEN: usize = 4;
/// Value of the body length if the body is a vector
const VECTOR: u32 = u32::MAX;

/// Writing end.
pub(crate) struct Writer<const HEAD: usize> {
    bytes: Producer<u8>,
    /// Records that are not published yet. The ring has room for them
    staged: Vec<u8>,
    vectors: Producer<Vec<u8>>,
    /// Bytes of vectors in transit
    vector_bytes: Arc<AtomicUsize>,
}

/// Reading end.
pub(crate) struct Reader<const HEAD: usize> {
    bytes: Consumer<u8>,
    vectors: Consumer<Vec<u8>>,
    vector_bytes: Arc<AtomicUsize>,
    /// Copy of a record that wraps around the end of the ring
    wrapped: Vec<u8>,
    /// Vector of a record that was read and not taken
    vector: Option<Vec<u8>>,
}

/// Body of a record
pub(crate) enum Body<'a> {
    /// A body in the ring
    Inline(&'a [u8]),
    /// A body passed on as a vector, which may be moved out if the record is taken
    Vector(&'a mut Vec<u8>),
}

impl Body<'_> {
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::Inline(bytes) => bytes,
            Self::Vector(vector) => vector,
        }
    }

    pub(crate) fn into_vec(self) -> Vec<u8> {
        match self {
            Self::Inline(bytes) => bytes.to_vec(),
            Self::Vector(vector) => core::mem::take(vector),
        }
    }
}

/// Creates a ring, and returns both ends.
pub(crate) fn ring<const HEAD: usize>() -> (Writer<HEAD>, Reader<HEAD>) {
    let ((to_bytes, bytes), (to_vectors, vectors)) =
        (RingBuffer::new(RING_BYTES), RingBuffer::new(MAX_VECTORS));
    let vector_bytes = Arc::<AtomicUsize>::default();
    let staged = Vec::with_capacity(PUBLISH_BYTES + LENGTH_LEN + HEAD + MAX_INLINE);
    let writer =
        Writer { bytes: to_bytes, staged, vectors: to_vectors, vector_bytes: Arc::clone(&vector_bytes) };
    (writer, Reader { bytes, vectors, vector_bytes, wrapped: Vec::new(), vector: None })
}

impl<const HEAD: usize> Writer<HEAD> {
    /// Returns whether the reader has been dropped.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.bytes.is_abandoned()
    }

    /// Writes a record, or nothing if there is no room. The reader sees it once it is
    /// [published](Self::publish).
    #[inline]
    pub(crate) fn write(&mut self, head: [u8; HEAD], body: &[u8]) -> Result<(), Full> {
        if body.len() > MAX_INLINE {
            self.check_vector(body.len())?;
            return self.write_vector(head, body.to_vec()).map_err(|_| Full);
        }
        self.begin(head, body.len())?.extend_from_slice(body);
        self.finish();
        Ok(())
    }

    /// Writes a record as [`write`](Self::write) does, and may pass on `body` itself. Returns `body` if it
    /// was copied, or as the error if there is no room.
    #[inline]
    pub(crate) fn write_owned(
        &mut self,
        head: [u8; HEAD],
        body: Vec<u8>,
    ) -> Result<Option<Vec<u8>>, Vec<u8>> {
        if body.len() <= MAX_INLINE {
            return match self.write(head, &body) {
                Ok(()) => Ok(Some(body)),
                Err(Full) => Err(body),
            };
        }
        match self.check_vector(body.len()) {
            Ok(()) => self.write_vector(head, body).map(|()| None),
            Err(Full) => Err(body),
        }
    }

    /// Writes the head of a record whose body has `body` bytes, at most [`MAX_INLINE`], which the caller has
    /// to append to the vector returned.
    #[inline]
    pub(crate) fn begin(&mut self, head: [u8; HEAD], body: usize) -> Result<&mut Vec<u8>, Full> {
        debug_assert!(body <= MAX_INLINE);
        let wanted = self.staged.len() + LENGTH_LEN + HEAD + body;
        if self.bytes.cached_slots() < wanted && self.bytes.slots() < wanted {
            return Err(Full);
        }
        self.put_front(head, body as u32);
        Ok(&mut self.staged)
    }

    #[inline]
    fn put_front(&mut self, head: [u8; HEAD], body: u32) {
        self.staged.extend_from_slice(&body.to_ne_bytes());
        self.staged.extend_from_slice(&head);
    }

    /// Publishes the records if there are enough, after a record was completed.
    #[inline]
    fn finish(&mut self) {
        if self.staged.len() >= PUBLISH_BYTES {
            self.publish();
        }
    }

    /// Publishes all records to the reader.
    #[inline]
    pub(crate) fn publish(&mut self) {
        if !self.staged.is_empty() {
            self.bytes
                .push_entire_slice(&self.staged)
                .expect("there was room for each record, and there is one writer");
            self.staged.clear();
        }
    }

    fn check_vector(&self, len: usize) -> Result<(), Full> {
        let before = self.vector_bytes.load(Ordering::Relaxed);
        let fits = before == 0 || before + len <= MAX_VECTOR_BYTES;
        if fits && !self.vectors.is_full() { Ok(()) } else { Err(Full) }
    }

    fn write_vector(&mut self, head: [u8; HEAD], body: Vec<u8>) -> Result<(), Vec<u8>> {
        if self.bytes.slots() < self.staged.len() + LENGTH_LEN + HEAD {
            return Err(body);
        }
        self.vector_bytes.fetch_add(body.len(), Ordering::Relaxed);
        // The vector is pushed before its record: a reader of the record must find the vector.
        if let Err(rtrb::PushError::Full(body)) = self.vectors.push(body) {
            self.vector_bytes.fetch_sub(body.len(), Ordering::Relaxed);
            return Err(body);
        }
        self.put_front(head, VECTOR);
        self.finish();
        Ok(())
    }
}

impl<const HEAD: usize> Reader<HEAD> {
    /// Returns whether there is nothing to read.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.cached_slots() == 0 && self.bytes.is_empty()
    }

    /// Passes the next record to `take`, and removes it if `take` returns true. Returns the result of `take`;
    /// `None` if there is no record.
    #[inline]
    pub(crate) fn next(&mut self, take: impl FnOnce(&[u8; HEAD], Body<'_>) -> bool) -> Option<bool> {
        let (mut take, mut taken) = (Some(take), None);
        self.for_each(|head, body| {
            if let Some(take) = take.take() {
                let is_taken = take(head, body);
                taken = Some(is_taken);
                return if is_taken { Taken::Last } else { Taken::Not };
            }
            Taken::Not
        });
        taken
    }

    /// Passes one record after the other to `take`, as long as it takes them, and removes those that were
    /// taken.
    #[inline]
    pub(crate) fn for_each(&mut self, mut take: impl FnMut(&[u8; HEAD], Body<'_>) -> Taken) {
        // Only complete records are published.
        let waiting = match self.bytes.cached_slots() {
            0 => self.bytes.slots(),
            known => known,
        };
        if waiting == 0 {
            return;
        }
        let Self { bytes, vectors, vector_bytes, wrapped, vector } = self;
        let chunk = bytes.read_chunk(waiting).expect("as many bytes are available");
        let (first, second) = chunk.as_slices();
        let mut at = 0;
        while at < waiting {
            let front = slice_at(first, second, at, LENGTH_LEN + HEAD, wrapped);
            let (length, head) = front.split_first_chunk::<LENGTH_LEN>().expect("the slice has this length");
            let length = u32::from_ne_bytes(*length);
            let head: [u8; HEAD] = *head.first_chunk().expect("the slice has this length");
            at += LENGTH_LEN + HEAD;
            let inline = if length == VECTOR { 0 } else { length as usize };
            let body = if length == VECTOR {
                Body::Vector(vector.get_or_insert_with(|| {
                    let vector = vectors.pop().expect("the vector is pushed before its record");
                    vector_bytes.fetch_sub(vector.len(), Ordering::Relaxed);
                    vector
                }))
            } else {
                Body::Inline(slice_at(first, second, at, inline, wrapped))
            };
            let taken = take(&head, body);
            if taken == Taken::Not {
                at -= LENGTH_LEN + HEAD;
                break;
            }
            *vector = None;
            at += inline;
            if taken == Taken::Last {
                break;
            }
        }
        chunk.commit(at);
    }
}

/// Result for a record passed to a reader's closure
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// Not taken; the record is read again.
    Not,
    /// Taken; the closure wants no further record now.
    Last,
    /// Taken.
    Yes,
}

/// Returns `len` bytes from offset `at` on; copies them to `wrapped` if they wrap around the end of the ring.
#[expect(clippy::inline_always, reason = "nearly always a slice of the first part")]
#[inline(always)]
fn slice_at<'a>(
    first: &'a [u8],
    second: &'a [u8],
    at: usize,
    len: usize,
    wrapped: &'a mut Vec<u8>,
) -> &'a [u8] {
    match first.get(at..at + len) {
        Some(slice) => slice,
        None => slice_wrapped(first, second, at, len, wrapped),
    }
}

#[cold]
fn slice_wrapped<'a>(
    first: &'a [u8],
    second: &'a [u8],
    at: usize,
    len: usize,
    wrapped: &'a mut Vec<u8>,
) -> &'a [u8] {
    if let Some(at) = at.checked_sub(first.len()) {
        return &second[at..at + len];
    }
    wrapped.clear();
    wrapped.extend_from_slice(&first[at..]);
    wrapped.extend_from_slice(&second[..at + len - first.len()]);
    wrapped
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    /// Records of all lengths, some of them refused at first, are read as they were written, also around the
    /// end of the ring.
    #[test]
    fn records_are_read_as_they_were_written() {
        let (mut writer, mut reader) = ring::<12>();
        let mut expected = VecDeque::new();
        let (mut written, mut fulls, mut seed) = (0u32, 0, 1u64);
        while written < 20_000 || !expected.is_empty() {
            seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            let draw = (seed >> 33) as usize;
            if written < 20_000 && !draw.is_multiple_of(3) {
                let len =
                    if draw.is_multiple_of(100) { MAX_INLINE - 50 + draw / 100 % 100 } else { draw % 300 };
                let (head, body) = ([written as u8; 12], vec![draw as u8; len]);
                let done = if draw.is_multiple_of(2) {
                    writer.write(head, &body)
                } else {
                    match writer.write_owned(head, body.clone()) {
                        Ok(memory) => {
                            assert_eq!(memory.is_some(), len <= MAX_INLINE);
                            Ok(())
                        }
                        Err(back) => {
                            assert_eq!(back, body);
                            Err(Full)
                        }
                    }
                };
                if done == Ok(()) {
                    written += 1;
                    expected.push_back((head, body));
                } else {
                    fulls += 1;
                }
            }
            if draw.is_multiple_of(11) {
                writer.publish();
            }
            if draw.is_multiple_of(7) {
                // Several at once
                let mut left = draw % 4;
                reader.for_each(|head, body| {
                    if left == 0 {
                        return Taken::Not;
                    }
                    left -= 1;
                    let (expected_head, expected_body) = expected.pop_front().expect("something was written");
                    assert_eq!((head, body.bytes()), (&expected_head, &expected_body[..]));
                    assert_eq!(body.into_vec(), expected_body);
                    if left == 0 && draw.is_multiple_of(2) { Taken::Last } else { Taken::Yes }
                });
            }
            if draw.is_multiple_of(5) || (fulls > 0 && draw.is_multiple_of(2)) {
                writer.publish();
                let shown = reader.next(|_, _| false);
                assert_eq!(shown, (!expected.is_empty()).then_some(false));
                let taken = reader.next(|head, body| {
                    let (expected_head, expected_body) = expected.pop_front().expect("something was written");
                    assert_eq!((head, body.bytes()), (&expected_head, &expected_body[..]));
                    assert_eq!(body.into_vec(), expected_body);
                    true
                });
                assert_eq!(taken, shown.map(|_| true));
            }
        }
        assert!(fulls > 0 && reader.is_empty() && reader.next(|_, _| true).is_none());
        assert_eq!(reader.vector_bytes.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn one_vector_of_any_length_fits_and_a_second_does_not() {
        let (mut writer, mut reader) = ring();
        assert_eq!(writer.write_owned(*b"x", vec![1; 2 * MAX_VECTOR_BYTES]), Ok(None));
        assert_eq!(writer.write(*b"y", &[2; MAX_INLINE + 1]), Err(Full));
        assert_eq!(writer.write(*b"y", &[2; MAX_INLINE]), Ok(()), "an inline body needs no vector");
        assert!(reader.is_empty(), "nothing is published");
        writer.publish();
        assert_eq!(
            reader.next(|head, body| head == b"x" && body.into_vec().len() == 2 * MAX_VECTOR_BYTES),
            Some(true)
        );
        assert_eq!(writer.write(*b"y", &[2; MAX_INLINE + 1]), Ok(()));
        drop(reader);
        assert!(writer.is_abandoned());
    }
}
