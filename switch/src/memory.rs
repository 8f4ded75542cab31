//! Frames in ordinary memory: what tests, fuzzers, benchmarks and the simulator run functions on.

use crate::{Frame, Full, Function, Nanos, NoRoom, Output, PortId, Verdict};

/// A frame in a vector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryFrame {
    bytes: Vec<u8>,
    whole: bool,
}

impl MemoryFrame {
    /// A whole frame.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Self {
        Self { bytes: bytes.into(), whole: true }
    }

    /// The beginning of a frame that was longer than its buffer.
    pub fn beginning(bytes: impl Into<Vec<u8>>) -> Self {
        Self { bytes: bytes.into(), whole: false }
    }

    /// Its bytes
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

impl Frame for MemoryFrame {
    fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    fn is_whole(&self) -> bool {
        self.whole
    }

    fn resize(&mut self, len: usize) -> Result<(), NoRoom> {
        self.bytes.resize(len, 0);
        Ok(())
    }

    fn prepend(&mut self, len: usize) -> Result<(), NoRoom> {
        self.bytes.splice(..0, core::iter::repeat_n(0, len));
        Ok(())
    }

    fn strip(&mut self, len: usize) {
        self.bytes.drain(..len);
    }
}

/// Frames that a function sent, in order; full when it holds `room` of them.
#[derive(Clone, Debug)]
pub struct Sent {
    /// What was sent, through which port
    pub frames: Vec<(MemoryFrame, PortId)>,
    /// How many frames it holds
    pub room: usize,
}

impl Sent {
    /// Nothing yet, with room for this many frames.
    pub fn with_room(room: usize) -> Self {
        Self { frames: Vec::new(), room }
    }
}

impl Output for Sent {
    type Frame = MemoryFrame;

    fn make(&mut self, len: usize) -> Result<MemoryFrame, Full> {
        if self.frames.len() < self.room { Ok(MemoryFrame::new(vec![0; len])) } else { Err(Full) }
    }

    fn room(&self, _port: PortId) -> usize {
        self.room.saturating_sub(self.frames.len())
    }

    fn copy(&mut self, frame: &MemoryFrame) -> Result<MemoryFrame, Full> {
        if self.frames.len() < self.room { Ok(frame.clone()) } else { Err(Full) }
    }

    fn send(&mut self, frame: MemoryFrame, port: PortId) -> Result<(), Full> {
        if self.frames.len() < self.room {
            self.frames.push((frame, port));
            return Ok(());
        }
        Err(Full)
    }
}

/// Runs one frame through `function`: the verdict, and every frame that leaves, that of the verdict last.
pub fn run_frame<F: Function>(
    function: &mut F,
    frame: &[u8],
    port: PortId,
    now: Nanos,
) -> (Verdict, Vec<(Vec<u8>, PortId)>) {
    let mut out = Sent::with_room(usize::MAX);
    let mut frame = MemoryFrame::new(frame);
    let verdict = function.on_frame(&mut frame, port, now, &mut out);
    if let Verdict::Forward(port) = verdict {
        out.frames.push((frame, port));
    }
    (verdict, out.frames.into_iter().map(|(frame, port)| (frame.bytes, port)).collect())
}
