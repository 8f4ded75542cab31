//! The repository's captures.

use std::path::{Path, PathBuf};

/// Where a capture of this name lies.
pub fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("captures").join(name)
}

/// Every capture, in the order of their names.
pub fn all() -> Vec<PathBuf> {
    let mut files: Vec<_> = std::fs::read_dir(path(""))
        .expect("the folder of captures")
        .map(|entry| entry.expect("an entry of the folder").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "pcap"))
        .collect();
    files.sort();
    assert!(files.len() >= 30, "captures are missing");
    files
}

/// The frames of a little-endian pcap file.
pub fn frames(path: &Path) -> Vec<Vec<u8>> {
    let bytes = std::fs::read(path).expect("a readable file");
    // A header of 24 bytes; then 16 before each frame, its captured length the third word of them.
    let mut rest = &bytes[24..];
    let mut frames = Vec::new();
    while rest.len() >= 16 {
        let len = u32::from_le_bytes([rest[8], rest[9], rest[10], rest[11]]) as usize;
        frames.push(rest[16..16 + len].to_vec());
        rest = &rest[16 + len..];
    }
    frames
}
