//! Bytes in the order of their arrival.

/// Memory that an empty queue keeps, in bytes
const KEPT: usize = 16 << 10;

/// Bytes that are added at the end and taken at the front.
#[derive(Clone, Debug, Default)]
pub(crate) struct Queue {
    bytes: Vec<u8>,
    taken: usize,
}

impl Queue {
    /// Returns the bytes that have not been taken.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[self.taken..]
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len() - self.taken
    }

    /// Takes bytes at the front.
    pub(crate) fn take(&mut self, count: usize) {
        assert!(count <= self.len(), "{count} of {} bytes", self.len());
        self.taken += count;
        if self.taken == self.bytes.len() {
            self.bytes.clear();
            self.bytes.shrink_to(KEPT);
            self.taken = 0;
        }
    }

    /// Returns the buffer, to which bytes may be appended.
    pub(crate) fn end(&mut self) -> &mut Vec<u8> {
        // Moving what is left costs no more than what has been taken.
        if self.taken > self.bytes.len() / 2 {
            self.bytes.drain(..self.taken);
            self.taken = 0;
        }
        &mut self.bytes
    }
}
