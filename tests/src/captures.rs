//! The repository's captures.

use std::path::{Path, PathBuf};

/// Returns the path of the capture `name`.
pub fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("captures").join(name)
}

/// Returns the paths of all captures, sorted by name.
///
/// # Panics
/// If the folder cannot be read, or has fewer than 30 captures.
pub fn all() -> Vec<PathBuf> {
    let mut files: Vec<_> = std::fs::read_dir(path(""))
        .expect("the folder of captures exists")
        .map(|entry| entry.expect("the folder's entries are readable").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "pcap"))
        .collect();
    files.sort();
    assert!(files.len() >= 30, "captures are missing");
    files
}

/// Returns the frames of a little-endian pcap file.
///
/// # Panics
/// If the file cannot be read, or is truncated.
pub fn frames(path: &Path) -> Vec<Vec<u8>> {
    timed_frames(path).into_iter().map(|(frame, _)| frame).collect()
}

/// Returns the frames of a little-endian pcap file and their times since 1970, in nanoseconds.
///
/// # Panics
/// If the file cannot be read, or is truncated.
pub fn timed_frames(path: &Path) -> Vec<(Vec<u8>, u64)> {
    let bytes = std::fs::read(path).expect("the capture is readable");
    let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    // The magic number determines the unit of the fractions of a second.
    let unit = if word(0) == 0xa1b2_3c4d { 1 } else { 1_000 };
    // The file header has 24 bytes. A header of 16 bytes precedes each frame: seconds, their fraction, and the
    // captured length.
    let (mut at, mut frames) = (24, Vec::new());
    while bytes.len() - at >= 16 {
        let (time, len) =
            (u64::from(word(at)) * 1_000_000_000 + u64::from(word(at + 4)) * unit, word(at + 8));
        let end = at + 16 + len as usize;
        frames.push((bytes[at + 16..end].to_vec(), time));
        at = end;
    }
    frames
}

/// Writes frames to a pcap file, all with the time 0.
///
/// # Panics
/// If the file cannot be written.
pub fn write(path: &Path, frames: &[Vec<u8>]) {
    // Magic number, version 2.4, time zone and its accuracy, longest frame, Ethernet
    let header = [0xa1b2_c3d4, 4 << 16 | 2, 0, 0, 65_535, 1];
    let mut bytes: Vec<u8> = header.into_iter().flat_map(u32::to_le_bytes).collect();
    for frame in frames {
        let len = frame.len() as u32;
        bytes.extend([0, 0, len, len].into_iter().flat_map(u32::to_le_bytes));
        bytes.extend_from_slice(frame);
    }
    std::fs::write(path, bytes).expect("the capture can be written");
}
