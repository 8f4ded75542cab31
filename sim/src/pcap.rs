//! Captures of links: all frames sent, in both directions, with the times of the world.

use std::io::{self, Write};
use switch::Nanos;

/// File header: nanosecond timestamps, version 2.4, snapshot length 262,144, Ethernet
const HEADER: [u8; 24] = [0x4d, 0x3c, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 1, 0, 0, 0];

/// pcap file that is being written.
pub(crate) struct Capture {
    to: Box<dyn Write + Send>,
    /// First error; nothing is written after it
    error: Option<io::Error>,
}

impl Capture {
    pub(crate) fn new(mut to: Box<dyn Write + Send>) -> Self {
        let error = to.write_all(&HEADER).err();
        Self { to, error }
    }

    pub(crate) fn record(&mut self, at: Nanos, frame: &[u8]) {
        if self.error.is_some() {
            return;
        }
        let len = frame.len() as u32;
        let head = [(at.0 / 1_000_000_000) as u32, (at.0 % 1_000_000_000) as u32, len, len];
        let mut bytes = [0; 16];
        for (field, word) in bytes.chunks_exact_mut(4).zip(head) {
            field.copy_from_slice(&word.to_le_bytes());
        }
        self.error = self.to.write_all(&bytes).and_then(|()| self.to.write_all(frame)).err();
    }

    pub(crate) fn finish(mut self) -> io::Result<()> {
        match self.error.take() {
            Some(error) => Err(error),
            None => self.to.flush(),
        }
    }
}

impl core::fmt::Debug for Capture {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Capture").field("error", &self.error).finish_non_exhaustive()
    }
}
