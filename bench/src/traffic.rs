//! Captures for benchmarks: frames, and the pcap files that hold them.

use rocev2::aeth::{Aeth, Credit, Syndrome};
use rocev2::checksum::Sum;
use rocev2::ethernet::{Ethernet, MacAddr, ethertype};
use rocev2::ipv4::Ipv4;
use rocev2::repr::{Ip, Repr};
use rocev2::reth::Reth;
use rocev2::udp::Udp;
use rocev2::{Bth, Class, Msn, Opcode, Psn, Qpn, classify, icrc};
use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::path::Path;
use zerocopy::IntoBytes as _;

/// Offset of the IPv4 header checksum in a frame
const IP_CHECKSUM: usize = Ethernet::LEN + 10;

/// Writes a pcap file of these frames.
pub(crate) fn write(path: &Path, frames: impl Iterator<Item = Vec<u8>>) -> io::Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    // The header of a pcap file: version 2.4, frames of up to 64 kB, Ethernet.
    for word in [0xa1b2_c3d4, 0x0004_0002, 0, 0, 65_535, 1u32] {
        file.write_all(&word.to_le_bytes())?;
    }
    for (n, frame) in (0..).zip(frames) {
        for word in [0, n, frame.len() as u32, frame.len() as u32] {
            file.write_all(&word.to_le_bytes())?;
        }
        file.write_all(&frame)?;
    }
    file.flush()
}

/// Returns an acknowledgement of `psn` and one message, with unlimited credits.
pub(crate) fn acknowledge(src: [u8; 4], dst: [u8; 4], qpn: Qpn, psn: Psn) -> Vec<u8> {
    let ethernet = Ethernet {
        dst: MacAddr([2, 0, 0, 0, 0, 1]),
        src: MacAddr([2, 0, 0, 0, 0, 2]),
        ethertype: ethertype::IPV4.into(),
    };
    let ip = Ip::V4(Ipv4 { src, dst, ..Ipv4::default() }, &[]);
    let mut repr = Repr::new(ethernet, ip, Bth::new(Opcode::RC_ACKNOWLEDGE, qpn, psn));
    repr.udp.src_port = 0xc123.into();
    repr.udp.dst_port = rocev2::UDP_PORT.into();
    let aeth = Aeth::new(Syndrome::Ack(Credit::UNLIMITED), Msn::new(1));
    repr.extended.aeth.copy_from_slice(aeth.as_bytes());
    let mut frame = vec![0; repr.frame_len()];
    repr.build(&mut frame).expect("a frame of the right length");
    frame
}

/// Returns a WRITE Only to the `n`th queue pair, with valid checksums and ICRC.
pub fn write_only(n: u32, payload: usize) -> Vec<u8> {
    write_to(n, Qpn::new(0x100 + n), payload)
}

/// Returns the WRITE Only of [`write_only`], to another queue pair.
pub(crate) fn write_to(n: u32, qpn: Qpn, payload: usize) -> Vec<u8> {
    let udp_len = Udp::LEN + Bth::LEN + Reth::LEN + payload + 4;
    let mut ip = Ipv4 {
        src: [10, 0, (n >> 8) as u8, n as u8],
        dst: [198, 18, 0, 1 + (n % 200) as u8],
        ..Ipv4::default()
    };
    ip.total_len = ((Ipv4::LEN + udp_len) as u16).into();
    let udp = Udp {
        src_port: (0xc000 | (n & 0x3fff) as u16).into(),
        len: (udp_len as u16).into(),
        ..Udp::default()
    };
    let mut bth = Bth::new(Opcode::RC_WRITE_ONLY, qpn, Psn::new(n));
    bth.set_ack_req(true);
    let reth = Reth {
        va: (0x7f00_0000_0000 + u64::from(n) * 4096).into(),
        rkey: (0x1000 + n).into(),
        len: (payload as u32).into(),
    };
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    frame.extend(ip.as_bytes());
    frame.extend(udp.as_bytes());
    frame.extend(bth.as_bytes());
    frame.extend(reth.as_bytes());
    frame.resize(frame.len() + payload + 4, 0);
    let sum = Sum::default().add(&frame[Ethernet::LEN..Ethernet::LEN + Ipv4::LEN]).checksum();
    frame[IP_CHECKSUM..IP_CHECKSUM + 2].copy_from_slice(&sum.to_be_bytes());
    let Class::Roce(layout) = classify(&frame) else { unreachable!("a well-formed RoCEv2 frame") };
    let icrc = icrc::compute(&frame, &layout);
    frame[layout.icrc()..].copy_from_slice(&icrc.to_le_bytes());
    frame
}
