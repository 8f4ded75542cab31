//! Rings of records between an application's thread and the polling thread: one writes, one reads, neither waits, and short records
//! need no allocation.
//!
//! A record has a head of a fixed length and a body. Both lie in the ring, unless the body is long: then it is passed on as a
//! vector, which saves a large message a copy and keeps the ring small enough to stay in the cache.
//!
//! Records are shown to the reader all at once, when the writer says so: each time, the cache lines that both look at go from one
//! core to the other.

use core::sync::atomic::{AtomicUsize, Ordering};
use rtrb::{Consumer, Producer, RingBuffer};
use std::sync::Arc;
use switch::Full;

/// Bodies longer than this are passed on as vectors
pub(crate) const INLINE: usize = 4096;
/// Bytes of a ring: some thousand small records, in a core's own cache
const BYTES: usize = 1 << 20;
/// Vectors that are on their way at most
const VECTORS: usize = 1024;
/// Bytes of those at most, beside one that is longer by itself
const VECTOR_BYTES: usize = 64 << 20;
/// Bytes of records that are written before the reader is shown any, and one more record at most: they are copied while they are in the nearest cache
const STAGED: usize = 8 << 10;
/// In front of each record: how long its body is
const LENGTH: usize = 4;
/// In its place: the body is a vector
const VECTOR: u32 = u32::MAX;

/// The end that writes.
pub(crate) struct Writer<const HEAD: usize> {
    bytes: Producer<u8>,
    /// Records that the reader does not see yet. The ring has room for them
    staged: Vec<u8>,
    vectors: Producer<Vec<u8>>,
    /// Bytes of vectors on their way
    outside: Arc<AtomicUsize>,
}

/// The end that reads.
pub(crate) struct Reader<const HEAD: usize> {
    bytes: Consumer<u8>,
    vectors: Consumer<Vec<u8>>,
    outside: Arc<AtomicUsize>,
    /// A record that goes round the end of the ring
    whole: Vec<u8>,
    /// The vector of a record that was shown and not taken
    vector: Option<Vec<u8>>,
}

/// A body
pub(crate) enum Body<'a> {
    /// In the ring
    Inline(&'a [u8]),
    /// Beside it, to be taken away by whoever takes the record
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

/// Both ends of a ring.
pub(crate) fn ring<const HEAD: usize>() -> (Writer<HEAD>, Reader<HEAD>) {
    let ((to_bytes, bytes), (to_vectors, vectors)) = (RingBuffer::new(BYTES), RingBuffer::new(VECTORS));
    let outside = Arc::<AtomicUsize>::default();
    let staged = Vec::with_capacity(STAGED + LENGTH + HEAD + INLINE);
    let writer = Writer { bytes: to_bytes, staged, vectors: to_vectors, outside: Arc::clone(&outside) };
    (writer, Reader { bytes, vectors, outside, whole: Vec::new(), vector: None })
}

impl<const HEAD: usize> Writer<HEAD> {
    /// Whether nobody reads any more.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.bytes.is_abandoned()
    }

    /// Writes a record, or nothing of it; the reader sees it once it is [published](Self::publish).
    #[inline]
    pub(crate) fn write(&mut self, head: [u8; HEAD], body: &[u8]) -> Result<(), Full> {
        if body.len() > INLINE {
            self.check_vector(body.len())?;
            return self.write_vector(head, body.to_vec()).map_err(|_| Full);
        }
        self.begin(head, body.len())?.extend_from_slice(body);
        self.end();
        Ok(())
    }

    /// The same, of a body that may be passed on as it is; if it was not, its memory comes back.
    #[inline]
    pub(crate) fn write_owned(
        &mut self,
        head: [u8; HEAD],
        body: Vec<u8>,
    ) -> Result<Option<Vec<u8>>, Vec<u8>> {
        if body.len() <= INLINE {
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

    /// The same, of a body of so many bytes, [`INLINE`] at most, which the caller appends to what this returns.
    #[inline]
    pub(crate) fn begin(&mut self, head: [u8; HEAD], body: usize) -> Result<&mut Vec<u8>, Full> {
        debug_assert!(body <= INLINE);
        let wanted = self.staged.len() + LENGTH + HEAD + body;
        if self.bytes.cached_slots() < wanted && self.bytes.slots() < wanted {
            return Err(Full);
        }
        self.put(head, body as u32);
        Ok(&mut self.staged)
    }

    #[inline]
    fn put(&mut self, head: [u8; HEAD], body: u32) {
        self.staged.extend_from_slice(&body.to_ne_bytes());
        self.staged.extend_from_slice(&head);
    }

    /// A record is whole.
    #[inline]
    fn end(&mut self) {
        if self.staged.len() >= STAGED {
            self.publish();
        }
    }

    /// Shows the reader all that was written.
    #[inline]
    pub(crate) fn publish(&mut self) {
        if !self.staged.is_empty() {
            self.bytes
                .push_entire_slice(&self.staged)
                .expect("there was room for each, and nobody else writes");
            self.staged.clear();
        }
    }

    fn check_vector(&self, len: usize) -> Result<(), Full> {
        let before = self.outside.load(Ordering::Relaxed);
        let fits = before == 0 || before + len <= VECTOR_BYTES;
        if fits && !self.vectors.is_full() { Ok(()) } else { Err(Full) }
    }

    fn write_vector(&mut self, head: [u8; HEAD], body: Vec<u8>) -> Result<(), Vec<u8>> {
        if self.bytes.slots() < self.staged.len() + LENGTH + HEAD {
            return Err(body);
        }
        self.outside.fetch_add(body.len(), Ordering::Relaxed);
        // In this order: whoever sees the record finds its vector.
        if let Err(rtrb::PushError::Full(body)) = self.vectors.push(body) {
            self.outside.fetch_sub(body.len(), Ordering::Relaxed);
            return Err(body);
        }
        self.put(head, VECTOR);
        self.end();
        Ok(())
    }
}

impl<const HEAD: usize> Reader<HEAD> {
    /// Whether there is nothing to read.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.cached_slots() == 0 && self.bytes.is_empty()
    }

    /// Shows the next record, which is gone if `take` says that it was taken. What that says; `None` if there is no record.
    #[inline]
    pub(crate) fn next(&mut self, take: impl FnOnce(&[u8; HEAD], Body<'_>) -> bool) -> Option<bool> {
        let (mut take, mut taken) = (Some(take), None);
        self.each(|head, body| {
            if let Some(take) = take.take() {
                let is_taken = take(head, body);
                taken = Some(is_taken);
                return if is_taken { Taken::Last } else { Taken::Not };
            }
            Taken::Not
        });
        taken
    }

    /// Shows record after record, as long as there are any and `take` takes them; those that were taken are gone.
    #[inline]
    pub(crate) fn each(&mut self, mut take: impl FnMut(&[u8; HEAD], Body<'_>) -> Taken) {
        // They are published whole.
        let waiting = match self.bytes.cached_slots() {
            0 => self.bytes.slots(),
            known => known,
        };
        if waiting == 0 {
            return;
        }
        let Self { bytes, vectors, outside, whole, vector } = self;
        let chunk = bytes.read_chunk(waiting).expect("there are as many");
        let (first, second) = chunk.as_slices();
        let mut at = 0;
        while at < waiting {
            let front = piece(first, second, at, LENGTH + HEAD, whole);
            let (length, head) = front.split_first_chunk::<LENGTH>().expect("it is as long");
            let length = u32::from_ne_bytes(*length);
            let head: [u8; HEAD] = *head.first_chunk().expect("it is as long");
            at += LENGTH + HEAD;
            let inline = if length == VECTOR { 0 } else { length as usize };
            let body = if length == VECTOR {
                Body::Vector(vector.get_or_insert_with(|| {
                    let vector = vectors.pop().expect("it was pushed before its record");
                    outside.fetch_sub(vector.len(), Ordering::Relaxed);
                    vector
                }))
            } else {
                Body::Inline(piece(first, second, at, inline, whole))
            };
            let taken = take(&head, body);
            if taken == Taken::Not {
                at -= LENGTH + HEAD;
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

/// What became of a record that was shown
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// It was not taken: it is shown again.
    Not,
    /// It was, and no other is wanted now.
    Last,
    /// It was.
    Yes,
}

/// `len` bytes from `at` on, of what goes round the end of a ring put together in `whole`.
#[expect(clippy::inline_always, reason = "nearly always a slice of the first part")]
#[inline(always)]
fn piece<'a>(first: &'a [u8], second: &'a [u8], at: usize, len: usize, whole: &'a mut Vec<u8>) -> &'a [u8] {
    match first.get(at..at + len) {
        Some(piece) => piece,
        None => piece_behind(first, second, at, len, whole),
    }
}

#[cold]
fn piece_behind<'a>(
    first: &'a [u8],
    second: &'a [u8],
    at: usize,
    len: usize,
    whole: &'a mut Vec<u8>,
) -> &'a [u8] {
    if let Some(at) = at.checked_sub(first.len()) {
        return &second[at..at + len];
    }
    whole.clear();
    whole.extend_from_slice(&first[at..]);
    whole.extend_from_slice(&second[..at + len - first.len()]);
    whole
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    /// Records of all lengths, some of them refused at first, come out as they went in, also round the end of the ring.
    #[test]
    fn records_come_out_as_they_went_in() {
        let (mut writer, mut reader) = ring::<12>();
        let mut expected = VecDeque::new();
        let (mut written, mut fulls, mut seed) = (0u32, 0, 1u64);
        while written < 20_000 || !expected.is_empty() {
            seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            let draw = (seed >> 33) as usize;
            if written < 20_000 && !draw.is_multiple_of(3) {
                let len = if draw.is_multiple_of(100) { INLINE - 50 + draw / 100 % 100 } else { draw % 300 };
                let (head, body) = ([written as u8; 12], vec![draw as u8; len]);
                let done = if draw.is_multiple_of(2) {
                    writer.write(head, &body)
                } else {
                    match writer.write_owned(head, body.clone()) {
                        Ok(memory) => {
                            assert_eq!(memory.is_some(), len <= INLINE);
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
                reader.each(|head, body| {
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
        assert_eq!(reader.outside.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn one_vector_of_any_length_fits_and_many_do_not() {
        let (mut writer, mut reader) = ring();
        assert_eq!(writer.write_owned(*b"x", vec![1; 2 * VECTOR_BYTES]), Ok(None));
        assert_eq!(writer.write(*b"y", &[2; INLINE + 1]), Err(Full));
        assert_eq!(writer.write(*b"y", &[2; INLINE]), Ok(()), "this one is none");
        assert!(reader.is_empty(), "nothing is published");
        writer.publish();
        assert_eq!(
            reader.next(|head, body| head == b"x" && body.into_vec().len() == 2 * VECTOR_BYTES),
            Some(true)
        );
        assert_eq!(writer.write(*b"y", &[2; INLINE + 1]), Ok(()));
        drop(reader);
        assert!(writer.is_abandoned());
    }
}
