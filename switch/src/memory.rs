//! Frames in ordinary memory, on which tests, fuzzers, benchmarks and the simulator run functions.

use crate::{Frame, Full, Function, Nanos, NoRoom, Output, PortId, Verdict};

/// A frame in a vector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryFrame {
    bytes: Vec<u8>,
    whole: bool,
}

impl MemoryFrame {
    /// Returns a whole frame.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Self {
        Self { bytes: bytes.into(), whole: true }
    }

    /// Returns the first part of a frame that was longer than its buffer.
    pub fn truncated(bytes: impl Into<Vec<u8>>) -> Self {
        Self { bytes: bytes.into(), whole: false }
    }

    /// Returns the frame's bytes.
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

    #[inline]
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

/// Output that collects the frames that a function sends, up to `room` of them.
#[derive(Clone, Debug)]
pub struct FrameCollector {
    /// Frames sent so far, and their ports
    pub frames: Vec<(MemoryFrame, PortId)>,
    /// Maximum count of frames
    pub room: usize,
}

impl FrameCollector {
    /// Returns an empty output for up to `room` frames.
    pub fn with_room(room: usize) -> Self {
        Self { frames: Vec::new(), room }
    }
}

impl Output for FrameCollector {
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

/// Passes one frame to `function`. Returns the verdict, and every frame that leaves; a forwarded input frame
/// is the last.
pub fn run_frame<F: Function>(
    function: &mut F,
    frame: &[u8],
    port: PortId,
    now: Nanos,
) -> (Verdict, Vec<(Vec<u8>, PortId)>) {
    let mut out = FrameCollector::with_room(usize::MAX);
    let mut frame = MemoryFrame::new(frame);
    let verdict = function.on_frame(&mut frame, port, now, &mut out);
    if let Verdict::Forward(port) = verdict {
        out.frames.push((frame, port));
    }
    (verdict, out.frames.into_iter().map(|(frame, port)| (frame.bytes, port)).collect())
}
