//! Reader of capture files (pcap and pcapng, either byte order), frame by frame.

use super::dissect::Link;
use pcap_file::pcap::PcapReader;
use pcap_file::pcapng::{Block, PcapNgReader};
use pcap_file::{DataLink, PcapError, TsResolution};
use rocev2::ethernet::ethertype;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader};
use std::path::Path;

/// A frame of a capture.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame<'a> {
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
}

/// Link type, by its number in capture files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LinkType(u32);

impl LinkType {
    pub(super) const ETHERNET: Self = Self(1);

    /// Returns the link header's length and the ethertype; `None` if the link type is unknown or the frame is
    /// too short.
    pub(super) fn link(self, frame: &[u8]) -> Option<Link> {
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
pub(super) enum CaptureError {
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
pub(super) type Flow = std::ops::ControlFlow<()>;

/// Calls `visit` for every frame of a file, in order, until it returns `Break`.
pub(super) fn for_each(path: &Path, visit: impl FnMut(Frame<'_>) -> Flow) -> Result<(), CaptureError> {
    let mut file = BufReader::new(File::open(path)?);
    let magic = file.fill_buf()?;
    match magic.first_chunk() {
        Some([0x0a, 0x0d, 0x0d, 0x0a]) => pcapng(file, visit),
        Some(
            [0xa1, 0xb2, 0xc3, 0xd4 | 0xcd]
            | [0xd4 | 0x4d, 0xc3 | 0x3c, 0xb2, 0xa1]
            | [0xa1, 0xb2, 0x3c, 0x4d],
        ) => pcap(file, visit),
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
        };
        if visit(frame).is_break() {
            break;
        }
    }
    Ok(())
}

fn pcapng(file: impl io::Read, mut visit: impl FnMut(Frame<'_>) -> Flow) -> Result<(), CaptureError> {
    let mut reader = PcapNgReader::new(file)?;
    // Interfaces of the current section: link type, and nanoseconds per timestamp unit.
    let mut interfaces: Vec<(LinkType, f64)> = Vec::new();
    let mut number = 0;
    while let Some(block) = reader.next_block() {
        let (interface, ticks, bytes, wire_len) = match block? {
            Block::SectionHeader(_) => {
                interfaces.clear();
                continue;
            }
            Block::InterfaceDescription(interface) => {
                interfaces.push((LinkType(u32::from(interface.linktype)), unit_ns(&interface)));
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
        let &(link, unit) = interfaces.get(interface).ok_or_else(|| {
            CaptureError::Damaged(format!(
                "frame {number} refers to an interface that the file does not describe"
            ))
        })?;
        let time_ns = ticks.map(|ticks| {
            if (unit - 1.0).abs() < f64::EPSILON { ticks as u64 } else { (ticks as f64 * unit) as u64 }
        });
        let frame = Frame { number, time_ns, bytes: &bytes, wire_len: wire_len as usize, link };
        if visit(frame).is_break() {
            break;
        }
    }
    Ok(())
}

/// Returns the nanoseconds per timestamp unit of an interface: its `if_tsresol`, or a microsecond.
fn unit_ns(
    interface: &pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionBlock<'_>,
) -> f64 {
    use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionOption;
    let resolution = interface.options.iter().find_map(|option| match option {
        InterfaceDescriptionOption::IfTsResol(resolution) => Some(*resolution),
        _ => None,
    });
    let resolution = resolution.unwrap_or(6);
    let exponent = -i32::from(resolution & 0x7f);
    1e9 * if resolution & 0x80 == 0 { 10f64.powi(exponent) } else { 2f64.powi(exponent) }
}

/// Returns whether frames of this link type can be decoded.
pub(super) fn is_known(link: LinkType) -> bool {
    link.link(&[0x45; 32]).is_some()
}

impl std::fmt::Display for LinkType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({:?})", self.0, DataLink::from(self.0))
    }
}
