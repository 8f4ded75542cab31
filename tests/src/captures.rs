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
    let bytes = std::fs::read(path).expect("the capture is readable");
    // The file header has 24 bytes. A header of 16 bytes precedes each frame; its third word is the captured
    // length.
    let mut rest = &bytes[24..];
    let mut frames = Vec::new();
    while rest.len() >= 16 {
        let len = u32::from_le_bytes([rest[8], rest[9], rest[10], rest[11]]) as usize;
        frames.push(rest[16..16 + len].to_vec());
        rest = &rest[16 + len..];
    }
    frames
}
