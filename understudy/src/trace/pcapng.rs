//! A trace as a pcapng file, with an interface for each port and direction.

use crate::observe::{Part, TraceRecord};
use core::time::Duration;
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketBlock;
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::{DataLink, PcapError};
use std::borrow::Cow;
use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// `if_tsresol` of nanoseconds
const NANOSECONDS: u8 = 9;

/// A file that is being written.
pub(super) struct Capture(PcapNgWriter<BufWriter<File>>);

fn io(error: PcapError) -> io::Error {
    match error {
        PcapError::IoError(error) => error,
        other => io::Error::other(other),
    }
}

/// Creates a file that only this user may read, because it contains other hosts' data.
fn create_private(path: &Path) -> io::Result<File> {
    File::options().write(true).create(true).truncate(true).mode(0o600).open(path)
}

impl Capture {
    /// Creates a file with two interfaces for each port: PORT-in and PORT-out.
    pub(super) fn create(path: &Path, ports: &[String]) -> io::Result<Self> {
        let mut writer = PcapNgWriter::new(BufWriter::new(create_private(path)?)).map_err(io)?;
        for port in ports {
            for direction in ["in", "out"] {
                let interface = InterfaceDescriptionBlock {
                    linktype: DataLink::ETHERNET,
                    snaplen: 0,
                    options: vec![
                        InterfaceDescriptionOption::IfName(Cow::Owned(format!("{port}-{direction}"))),
                        InterfaceDescriptionOption::IfTsResol(NANOSECONDS),
                    ],
                };
                writer.write_pcapng_block(interface).map_err(io)?;
            }
        }
        Ok(Self(writer))
    }

    pub(super) fn write(&mut self, record: &TraceRecord) -> io::Result<()> {
        for part in &record.parts {
            let (interface_id, len, bytes) = match part {
                Part::In { port, len, bytes } => (u32::from(*port) * 2, *len, &bytes.0),
                Part::Out { port, len, bytes } => (u32::from(*port) * 2 + 1, *len, &bytes.0),
                Part::Lost { .. } | Part::Dropped { .. } | Part::Punted | Part::Consumed => continue,
            };
            let packet = EnhancedPacketBlock {
                interface_id,
                timestamp: Duration::from_nanos(record.time_ns),
                original_len: len,
                data: Cow::Borrowed(bytes),
                options: Vec::new(),
            };
            self.0.write_pcapng_block(packet).map_err(io)?;
        }
        Ok(())
    }

    pub(super) fn finish(self) -> io::Result<()> {
        self.0.into_inner().flush()
    }
}
