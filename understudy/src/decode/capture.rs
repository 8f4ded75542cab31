//! Reader of capture files (pcap and pcapng, either byte order), frame by frame.

use super::dissect::Link;
use pcap_file::pcap::PcapReader;
use pcap_file::pcapng::{Block, PcapNgReader};
use pcap_file::{DataLink, PcapError, TsResolution};
use rocev2::ethernet::ethertype;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

/// A frame of a capture.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame<'a> {
    /// Number of the frame in the file, from 1
    pub number: u64,
    /// Capture time in nanoseconds since 1970; `None` if the file has none
    pub time_ns: Option<u64>,
    /// Captured bytes
    pub bytes: &'a [u8],
    /// Length on the wire, in bytes
    pub wire_len: usize,
    /// Link type on which the frame was captured
    pub link: LinkType,
    /// Number of the interface in the file; Linux "cooked" captures of version 2 have the system's number
    pub interface: u32,
}

/// Link type, by its number in capture files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinkType(u32);

impl LinkType {
    pub(crate) const ETHERNET: Self = Self(1);
    /// Linux "cooked" capture, version 2
    const SLL2: Self = Self(276);
    /// Linux "cooked" capture, version 1
    const SLL: Self = Self(113);

    /// Returns a number that tells apart the interfaces and directions that share a "cooked" capture; 0 for
    /// other link types.
    fn sub_interface(self, frame: &[u8]) -> u32 {
        match self {
            // Interface index, and the type of the packet, which differs between received and sent
            Self::SLL2 => frame.get(4..11).map_or(0, |b| {
                u32::from_be_bytes([b[0], b[1], b[2], b[3]]).wrapping_mul(8) + u32::from(b[6])
            }),
            Self::SLL => frame.get(1).map_or(0, |&kind| u32::from(kind)),
            _ => 0,
        }
    }

    /// Returns the link header's length and the ethertype; `None` if the link type is unknown or the frame is
    /// too short.
    pub(crate) fn link(self, frame: &[u8]) -> Option<Link> {
        let ethertype_at = |at: usize| Some(u16::from_be_bytes([*frame.get(at)?, *frame.get(at + 1)?]));
        let of_version = |first: u8| if first >> 4 == 6 { ethertype::IPV6 } else { ethertype::IPV4 };
        match self.0 {
            1 => Some(Link { len: 14, ethertype: ethertype_at(12)? }),
            // Raw IP: systems use different numbers for it
            12 | 14 | 101 => Some(Link { len: 0, ethertype: of_version(*frame.first()?) }),
            228 => Some(Link { len: 0, ethertype: ethertype::IPV4 }),
            229 => Some(Link { len: 0, ethertype: ethertype::IPV6 }),
            // Linux "cooked" captures, versions 1 and 2
            113 => Some(Link { len: 16, ethertype: ethertype_at(14)? }),
            276 => Some(Link { len: 20, ethertype: ethertype_at(0)? }),
            _ => None,
        }
    }
}

/// Reason why a capture could not be read, or not to its end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CaptureError {
    /// The file cannot be opened or read
    #[error("{0}")]
    Io(#[from] io::Error),
    /// Neither pcap nor pcapng
    #[error("neither a pcap nor a pcapng file")]
    Format,
    /// The file ends in the middle of a frame
    #[error("the file ends in the middle of a frame")]
    Cut,
    /// The file contradicts itself
    #[error("the file is damaged: {0}")]
    Damaged(String),
}

impl From<PcapError> for CaptureError {
    fn from(error: PcapError) -> Self {
        match error {
            PcapError::IncompleteBuffer => Self::Cut,
            PcapError::IoError(error) if error.kind() == io::ErrorKind::UnexpectedEof => Self::Cut,
            PcapError::IoError(error) => Self::Io(error),
            other => Self::Damaged(other.to_string()),
        }
    }
}

/// Whether to continue with the next frame.
pub(crate) type Flow = std::ops::ControlFlow<()>;

/// Name of standard input in place of a file
pub(crate) const STDIN: &str = "-";

/// Calls `visit` for every frame of a file, or of standard input if `path` is `-`, in order, until it returns
/// `Break`. Uses the same memory for any length of the file.
pub(crate) fn for_each(path: &Path, visit: impl FnMut(Frame<'_>) -> Flow) -> Result<(), CaptureError> {
    if path.as_os_str() == STDIN {
        for_each_in(io::stdin().lock(), visit)
    } else {
        for_each_in(File::open(path)?, visit)
    }
}

/// Calls `visit` for every frame that `input` contains, in order, until it returns `Break`.
pub(crate) fn for_each_in(
    mut input: impl io::Read,
    visit: impl FnMut(Frame<'_>) -> Flow,
) -> Result<(), CaptureError> {
    let mut magic = Vec::with_capacity(4);
    // A pipe may return less than is asked for.
    (&mut input).take(4).read_to_end(&mut magic)?;
    let input = io::Cursor::new(magic.clone()).chain(input);
    match *magic {
        [0x0a, 0x0d, 0x0d, 0x0a] => pcapng(input, visit),
        [0xa1, 0xb2, 0xc3, 0xd4 | 0xcd]
        | [0xd4 | 0x4d, 0xc3 | 0x3c, 0xb2, 0xa1]
        | [0xa1, 0xb2, 0x3c, 0x4d] => pcap(input, visit),
        _ => Err(CaptureError::Format),
    }
}

fn pcap(file: impl io::Read, mut visit: impl FnMut(Frame<'_>) -> Flow) -> Result<(), CaptureError> {
    let mut reader = PcapReader::new(file)?;
    let header = reader.header();
    let unit = if header.ts_resolution == TsResolution::NanoSecond { 1 } else { 1000 };
    // The upper half states whether frames include their check sequence, which is treated as a trailer.
    let link = LinkType(u32::from(header.datalink) & 0xffff);
    let mut number = 0;
    // Raw packets, because the reader rejects a packet whose original length exceeds the snapshot length,
    // which is normal for a truncated frame.
    while let Some(packet) = reader.next_raw_packet() {
        let packet = packet?;
        number += 1;
        let time_ns = u64::from(packet.ts_sec) * 1_000_000_000 + u64::from(packet.ts_frac) * unit;
        let frame = Frame {
            number,
            time_ns: Some(time_ns),
            bytes: &packet.data,
            wire_len: packet.orig_len as usize,
            link,
            interface: link.sub_interface(&packet.data),
        };
        if visit(frame).is_break() {
            break;
        }
    }
    Ok(())
}

/// Maximum count of interfaces in a section of a pcapng file
const MAX_INTERFACES: usize = 65_536;

fn pcapng(file: impl io::Read, mut visit: impl FnMut(Frame<'_>) -> Flow) -> Result<(), CaptureError> {
    let mut reader = PcapNgReader::new(file)?;
    // Interfaces of the current section: link type, and its clock
    let mut interfaces: Vec<(LinkType, FileClock)> = Vec::new();
    let mut number = 0;
    while let Some(block) = reader.next_block() {
        let (interface, ticks, bytes, wire_len) = match block? {
            Block::SectionHeader(_) => {
                interfaces.clear();
                continue;
            }
            Block::InterfaceDescription(_) if interfaces.len() == MAX_INTERFACES => {
                return Err(CaptureError::Damaged(format!("more than {MAX_INTERFACES} interfaces")));
            }
            Block::InterfaceDescription(interface) => {
                interfaces.push((LinkType(u32::from(interface.linktype)), FileClock::of(&interface)));
                continue;
            }
            // The reader interprets timestamp units as nanoseconds.
            Block::EnhancedPacket(p) => {
                (p.interface_id as usize, Some(p.timestamp.as_nanos()), p.data, p.original_len)
            }
            Block::Packet(p) => {
                (usize::from(p.interface_id), Some(u128::from(p.timestamp)), p.data, p.original_len)
            }
            Block::SimplePacket(p) => (0, None, p.data, p.original_len),
            _ => continue,
        };
        number += 1;
        let &(link, clock) = interfaces.get(interface).ok_or_else(|| {
            CaptureError::Damaged(format!(
                "frame {number} refers to an interface that the file does not describe"
            ))
        })?;
        let frame = Frame {
            number,
            time_ns: ticks.map(|ticks| clock.nanoseconds(ticks)),
            bytes: &bytes,
            wire_len: wire_len as usize,
            link,
            interface: (interface as u32).wrapping_shl(16) ^ link.sub_interface(&bytes),
        };
        if visit(frame).is_break() {
            break;
        }
    }
    Ok(())
}

/// Clock of an interface in a pcapng file.
#[derive(Clone, Copy)]
struct FileClock {
    /// Unit of timestamps (`if_tsresol`): 10^-n s, or 2^-n s if the top bit is set
    resolution: u8,
    /// Time of timestamp 0 (`if_tsoffset`), in seconds since 1970
    offset_s: u64,
}

impl FileClock {
    fn of(
        interface: &pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionBlock<'_>,
    ) -> Self {
        use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionOption as Field;
        let mut clock = Self { resolution: 6, offset_s: 0 };
        for option in &interface.options {
            match option {
                Field::IfTsResol(resolution) => clock.resolution = *resolution,
                Field::IfTsOffset(offset) => clock.offset_s = *offset,
                _ => {}
            }
        }
        clock
    }

    /// Converts a timestamp to nanoseconds since 1970, exactly where the unit is at least a nanosecond.
    fn nanoseconds(self, ticks: u128) -> u64 {
        let exponent = u32::from(self.resolution & 0x7f);
        let ns = match (self.resolution & 0x80, exponent) {
            (0, 0..=9) => ticks.saturating_mul(10u128.pow(9 - exponent)),
            (0, 10..=38) => ticks / 10u128.pow(exponent - 9),
            (0x80, 0..=64) => ticks.saturating_mul(1_000_000_000) >> exponent,
            // No timestamp of 64 bits reaches a nanosecond.
            _ => 0,
        };
        let offset = u128::from(self.offset_s) * 1_000_000_000;
        u64::try_from(ns.saturating_add(offset)).unwrap_or(u64::MAX)
    }
}

/// Returns whether frames of this link type can be decoded.
pub(crate) fn is_known(link: LinkType) -> bool {
    link.link(&[0x45; 32]).is_some()
}

impl std::fmt::Display for LinkType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({:?})", self.0, DataLink::from(self.0))
    }
}
