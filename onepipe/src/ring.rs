//! Rings of records between an application's thread and the polling thread: one writes, one reads, neither waits, and short records
//! need no allocation.
//!
//! A record has a head and a body. Both lie in the ring, unless the body is long: then it is passed on as a vector, which
//! saves a large message a copy and keeps the ring small enough to stay in the cache.

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
/// In front of each record: how long its head is, and how long what lies in the ring of its body
const LENGTHS: usize = 8;
/// For the body's: it is a vector
const VECTOR: u32 = u32::MAX;

/// The end that writes.
pub(crate) struct Writer {
    bytes: Producer<u8>,
    vectors: Producer<Vec<u8>>,
    /// Bytes of vectors on their way
    outside: Arc<AtomicUsize>,
}

/// The end that reads.
pub(crate) struct Reader {
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
pub(crate) fn ring() -> (Writer, Reader) {
    let ((to_bytes, bytes), (to_vectors, vectors)) = (RingBuffer::new(BYTES), RingBuffer::new(VECTORS));
    let outside = Arc::<AtomicUsize>::default();
    let writer = Writer { bytes: to_bytes, vectors: to_vectors, outside: Arc::clone(&outside) };
    (writer, Reader { bytes, vectors, outside, whole: Vec::new(), vector: None })
}

impl Writer {
    /// Whether nobody reads any more.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.bytes.is_abandoned()
    }

    /// Writes a record, or nothing of it. The head and a body that is not long, which come in pieces, have to fit into the ring.
    pub(crate) fn write(&mut self, head: &[&[u8]], body: &[&[u8]]) -> Result<(), Full> {
        let len: usize = body.iter().map(|piece| piece.len()).sum();
        if len > INLINE {
            self.check_vector(len)?;
            return self.write_vector(head, body.concat()).map_err(|_| Full);
        }
        self.put(head, len as u32, body)
    }

    /// The same, of a body that may be passed on as it is; if it was not, its memory comes back.
    pub(crate) fn write_owned(&mut self, head: &[&[u8]], body: Vec<u8>) -> Result<Option<Vec<u8>>, Vec<u8>> {
        if body.len() <= INLINE {
            return match self.put(head, body.len() as u32, &[&body]) {
                Ok(()) => Ok(Some(body)),
                Err(Full) => Err(body),
            };
        }
        match self.check_vector(body.len()) {
            Ok(()) => self.write_vector(head, body).map(|()| None),
            Err(Full) => Err(body),
        }
    }

    fn check_vector(&self, len: usize) -> Result<(), Full> {
        let before = self.outside.load(Ordering::Relaxed);
        let fits = before == 0 || before + len <= VECTOR_BYTES;
        if fits && !self.vectors.is_full() { Ok(()) } else { Err(Full) }
    }

    fn write_vector(&mut self, head: &[&[u8]], body: Vec<u8>) -> Result<(), Vec<u8>> {
        let head_len: usize = head.iter().map(|piece| piece.len()).sum();
        if self.bytes.slots() < LENGTHS + head_len {
            return Err(body);
        }
        self.outside.fetch_add(body.len(), Ordering::Relaxed);
        // In this order: whoever sees the record finds its vector.
        if let Err(rtrb::PushError::Full(body)) = self.vectors.push(body) {
            self.outside.fetch_sub(body.len(), Ordering::Relaxed);
            return Err(body);
        }
        self.put(head, VECTOR, &[]).expect("there is room, and nobody else writes");
        Ok(())
    }

    #[inline]
    fn put(&mut self, head: &[&[u8]], body_len: u32, body: &[&[u8]]) -> Result<(), Full> {
        let head_len: usize = head.iter().map(|piece| piece.len()).sum();
        let inline = if body_len == VECTOR { 0 } else { body_len as usize };
        let mut chunk = self.bytes.write_chunk(LENGTHS + head_len + inline).map_err(|_| Full)?;
        let (mut first, mut second) = chunk.as_mut_slices();
        let lengths = u64::from(head_len as u32) << 32 | u64::from(body_len);
        let mut put = |bytes: &[u8]| {
            let (here, there) = bytes.split_at(bytes.len().min(first.len()));
            let (now, rest) = core::mem::take(&mut first).split_at_mut(here.len());
            now.copy_from_slice(here);
            first = rest;
            let (now, rest) = core::mem::take(&mut second).split_at_mut(there.len());
            now.copy_from_slice(there);
            second = rest;
        };
        put(&lengths.to_ne_bytes());
        head.iter().chain(body).for_each(|piece| put(piece));
        chunk.commit_all();
        Ok(())
    }
}

impl Reader {
    /// Whether there is nothing to read.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Shows the next record, which is gone if `take` says that it was taken. What that says; `None` if there is no record.
    #[inline]
    pub(crate) fn next(&mut self, take: impl FnOnce(&[u8], Body<'_>) -> bool) -> Option<bool> {
        let mut lengths = [0; LENGTHS];
        let waiting = self.bytes.slots();
        if waiting == 0 {
            return None;
        }
        {
            let chunk = self.bytes.read_chunk(LENGTHS).expect("records are written whole");
            let (first, second) = chunk.as_slices();
            lengths[..first.len()].copy_from_slice(first);
            lengths[first.len()..].copy_from_slice(second);
        }
        let lengths = u64::from_ne_bytes(lengths);
        let (head_len, body_len) = ((lengths >> 32) as usize, lengths as u32);
        let inline = if body_len == VECTOR { 0 } else { body_len as usize };
        if body_len == VECTOR && self.vector.is_none() {
            let vector = self.vectors.pop().expect("it was pushed before its record");
            self.outside.fetch_sub(vector.len(), Ordering::Relaxed);
            self.vector = Some(vector);
        }
        let chunk = self.bytes.read_chunk(LENGTHS + head_len + inline).expect("records are written whole");
        let record = match chunk.as_slices() {
            (whole, []) => whole,
            (first, second) => {
                self.whole.clear();
                self.whole.extend_from_slice(first);
                self.whole.extend_from_slice(second);
                &self.whole
            }
        };
        let (head, body) = record[LENGTHS..].split_at(head_len);
        let body = match &mut self.vector {
            Some(vector) if body_len == VECTOR => Body::Vector(vector),
            _ => Body::Inline(body),
        };
        let taken = take(head, body);
        if taken {
            chunk.commit_all();
            self.vector = None;
        }
        Some(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    /// Records of all lengths, some of them refused at first, come out as they went in, also round the end of the ring.
    #[test]
    fn records_come_out_as_they_went_in() {
        let (mut writer, mut reader) = ring();
        let mut expected = VecDeque::new();
        let (mut written, mut fulls, mut seed) = (0u32, 0, 1u64);
        while written < 20_000 || !expected.is_empty() {
            seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            let draw = (seed >> 33) as usize;
            if written < 20_000 && !draw.is_multiple_of(3) {
                let len = if draw.is_multiple_of(100) { INLINE - 50 + draw / 100 % 100 } else { draw % 300 };
                let (head, body) = (vec![written as u8; draw % 20], vec![draw as u8; len]);
                let (here, there) = body.split_at(len / 3);
                let done = if draw.is_multiple_of(2) {
                    writer.write(&[&head], &[here, there])
                } else {
                    match writer.write_owned(&[&head], body.clone()) {
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
            if draw.is_multiple_of(5) || (fulls > 0 && draw.is_multiple_of(2)) {
                let shown = reader.next(|_, _| false);
                assert_eq!(shown, (!expected.is_empty()).then_some(false));
                let taken = reader.next(|head, body| {
                    let (expected_head, expected_body) = expected.pop_front().expect("something was written");
                    assert_eq!((head, body.bytes()), (&expected_head[..], &expected_body[..]));
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
        assert_eq!(writer.write_owned(&[b"x"], vec![1; 2 * VECTOR_BYTES]), Ok(None));
        assert_eq!(writer.write(&[b"y"], &[&[2; INLINE + 1]]), Err(Full));
        assert_eq!(writer.write(&[b"y"], &[&[2; INLINE]]), Ok(()), "this one is none");
        assert_eq!(
            reader.next(|head, body| head == b"x" && body.into_vec().len() == 2 * VECTOR_BYTES),
            Some(true)
        );
        assert_eq!(writer.write(&[b"y"], &[&[2; INLINE + 1]]), Ok(()));
        drop(reader);
        assert!(writer.is_abandoned());
    }
}
