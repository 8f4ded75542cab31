//! Checks of capture files before DPDK opens them, because its pcap driver reports errors with little detail.

use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read};
use std::path::Path;

/// Contents of a capture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    /// Count of frames
    pub frames: u64,
    /// Length of the longest frame, in bytes
    pub longest: u32,
}

impl Size {
    /// Adds the contents of another capture.
    pub fn add(&mut self, other: Self) {
        self.frames += other.frames;
        self.longest = self.longest.max(other.longest);
    }
}

/// The reason why a capture cannot be played.
#[derive(Debug, PartialEq, Eq)]
pub struct CaptureError {
    /// Problem message
    pub message: String,
    /// Short form of the message, for the label
    pub label: &'static str,
    /// Remedy for the problem
    pub remedy: String,
}

impl CaptureError {
    fn new(message: String, label: &'static str, remedy: impl Into<String>) -> Self {
        Self { message, label, remedy: remedy.into() }
    }
}

/// Link type of Ethernet
const ETHERNET: u32 = 1;

/// Checks that a file is a capture of Ethernet frames. Counts its frames if `count` is set and the format is
/// pcap.
///
/// # Errors
/// [`CaptureError`] if the file cannot be read, or is not such a capture.
pub fn examine(path: &Path, count: bool) -> Result<Size, CaptureError> {
    let shown = path.display();
    let unreadable = |error: io::Error| match error.kind() {
        ErrorKind::NotFound => CaptureError::new(
            format!("there is no file `{shown}`"),
            "not there",
            "correct the path; a relative one begins in the folder of the configuration file",
        ),
        ErrorKind::PermissionDenied => CaptureError::new(
            format!("`{shown}` may not be read"),
            "no permission",
            format!("allow it: chmod a+r {shown}"),
        ),
        ErrorKind::UnexpectedEof => CaptureError::new(
            format!("`{shown}` ends before its first frame"),
            "not a whole capture",
            "record it again: tcpdump -w FILE -i INTERFACE",
        ),
        _ => CaptureError::new(
            format!("`{shown}` cannot be read: {}", plain(&error)),
            "unreadable",
            "name another file",
        ),
    };
    let file = File::open(path).map_err(unreadable)?;
    if file.metadata().map_err(unreadable)?.is_dir() {
        return Err(CaptureError::new(
            format!("`{shown}` is a folder"),
            "not a file",
            "name a capture in it",
        ));
    }
    let mut file = BufReader::new(file);
    let mut header = [0; 24];
    file.read_exact(&mut header[..4]).map_err(unreadable)?;
    let big_endian = match header[..4] {
        [0xa1, 0xb2, 0xc3, 0xd4] | [0xa1, 0xb2, 0x3c, 0x4d] => true,
        [0xd4, 0xc3, 0xb2, 0xa1] | [0x4d, 0x3c, 0xb2, 0xa1] => false,
        // pcapng states link types per interface, in blocks that libpcap parses.
        [0x0a, 0x0d, 0x0d, 0x0a] => return Ok(Size::default()),
        [0x1f, 0x8b, ..] => {
            return Err(CaptureError::new(
                format!("`{shown}` is compressed"),
                "gzip, not pcap",
                format!("unpack it first: gunzip -k {shown}"),
            ));
        }
        _ => {
            return Err(CaptureError::new(
                format!("`{shown}` is not a capture"),
                "neither pcap nor pcapng",
                "name a file that tcpdump or Wireshark has written",
            ));
        }
    };
    file.read_exact(&mut header[4..]).map_err(unreadable)?;
    let word = |bytes: &[u8]| {
        let bytes = [bytes[0], bytes[1], bytes[2], bytes[3]];
        if big_endian { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) }
    };
    let link = word(&header[20..]) & 0x0fff_ffff;
    if link != ETHERNET {
        return Err(CaptureError::new(
            format!("`{shown}` has frames of link type {link}, not of Ethernet"),
            "not Ethernet",
            "record on an Ethernet interface, not on `any`: tcpdump -w FILE -i eth0",
        ));
    }
    let mut size = Size::default();
    let mut record = [0; 16];
    while count && file.read_exact(&mut record).is_ok() {
        let (captured, frame) = (word(&record[8..]), word(&record[12..]));
        if file.seek_relative(captured.into()).is_err() {
            break;
        }
        size.add(Size { frames: 1, longest: frame.min(captured) });
    }
    Ok(size)
}

/// Describes why a file cannot be read.
pub fn plain(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::NotFound => "no such file or directory".into(),
        kind => kind.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pcap(magic: [u8; 4], link: [u8; 4], frames: &[&[u8]]) -> Vec<u8> {
        let mut bytes = [magic, [2, 0, 4, 0], [0; 4], [0; 4], [0, 0, 4, 0], link].concat();
        for frame in frames {
            let len = (frame.len() as u32).to_le_bytes();
            bytes.extend([[0; 4], [0; 4], len, len].concat());
            bytes.extend(*frame);
        }
        bytes
    }

    fn examined(bytes: &[u8]) -> Result<Size, CaptureError> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        examine(file.path(), true)
    }

    const LITTLE: [u8; 4] = [0xd4, 0xc3, 0xb2, 0xa1];

    #[test]
    fn frames_are_counted() {
        let bytes = pcap(LITTLE, [1, 0, 0, 0], &[&[0; 60], &[0; 1500]]);
        assert_eq!(examined(&bytes), Ok(Size { frames: 2, longest: 1500 }));
        let big = pcap([0xa1, 0xb2, 0x3c, 0x4d], [0, 0, 0, 1], &[]);
        assert_eq!(examined(&big), Ok(Size::default()));
        assert_eq!(examined(&[0x0a, 0x0d, 0x0d, 0x0a]), Ok(Size::default()));
    }

    #[test]
    fn unplayable_captures_are_rejected_with_a_reason() {
        for (bytes, label) in [
            (pcap(LITTLE, [113, 0, 0, 0], &[]), "not Ethernet"),
            (pcap(LITTLE, [1, 0, 0, 0], &[])[..20].to_vec(), "not a whole capture"),
            (Vec::new(), "not a whole capture"),
            (vec![0x1f, 0x8b, 8, 0], "gzip, not pcap"),
            (b"# a text".to_vec(), "neither pcap nor pcapng"),
        ] {
            assert_eq!(examined(&bytes).unwrap_err().label, label);
        }
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(examine(folder.path(), true).unwrap_err().label, "not a file");
        assert_eq!(examine(&folder.path().join("gone"), true).unwrap_err().label, "not there");
    }
}
