//! Malformed packets: one for each fault that a receiver can find in a single packet.

use crate::template::{Template, layout};
use rocev2::checksum::Sum;
use rocev2::ethernet::Ethernet;
use rocev2::ipv4::Ipv4;
use rocev2::udp::Udp;
use rocev2::{Bth, Class, Fault, Opcode, Packet, classify};

/// Returns every malformed variant of a frame like `template`, with the fault that a receiver finds.
pub(crate) fn variants_of(template: &Template) -> Box<[(Fault, Box<[u8]>)]> {
    let malformed = Fault::ALL.into_iter().filter_map(|fault| {
        let mut frame = template.bytes.to_vec();
        break_frame(&mut frame, fault);
        // Not every frame can have every fault.
        (fault_of(&frame) == Some(fault)).then(|| (fault, frame.into()))
    });
    malformed.collect()
}

/// Returns the fault that a receiver finds that verifies ICRCs.
fn fault_of(frame: &[u8]) -> Option<Fault> {
    match classify(frame) {
        Class::Malformed(fault) => Some(fault),
        Class::Roce(layout) => (!Packet::new(frame, layout).verify_icrc()).then_some(Fault::Icrc),
        Class::Other => None,
    }
}

fn break_frame(frame: &mut Vec<u8>, fault: Fault) {
    let at = layout(frame);
    let (l3, udp, bth, v6) = (at.l3(), at.udp(), at.bth(), at.is_ipv6());
    match fault {
        Fault::Truncated => frame.truncate(at.icrc()),
        Fault::IpHeader => frame[l3] ^= if v6 { 0x10 } else { 0x01 },
        Fault::IpLength => set_ip_len(frame, v6, Udp::LEN + Bth::LEN),
        Fault::IpChecksum => frame[l3 + 10] ^= 0x10,
        Fault::Fragment if !v6 => {
            frame[l3 + 6] |= 0x20;
            fill_ipv4_checksum(frame);
        }
        Fault::UdpLength => frame[udp + 5] ^= 0x04,
        Fault::TransportVersion => frame[bth + 1] |= 0x01,
        Fault::UnknownOpcode => frame[bth] = 0x1f,
        // The lengths of these two opcodes differ, so one of them does not fit the frame.
        Fault::OpcodeLength => {
            let acknowledges = at.opcode() == Opcode::RC_ACKNOWLEDGE;
            let other = if acknowledges { Opcode::RC_ATOMIC_ACKNOWLEDGE } else { Opcode::RC_ACKNOWLEDGE };
            frame[bth] = other.0;
        }
        Fault::Unaligned => {
            let udp_len = at.end() - udp - 1;
            frame[udp + 4..udp + 6].copy_from_slice(&(udp_len as u16).to_be_bytes());
            set_ip_len(frame, v6, udp_len);
            frame.truncate(at.end() - 1);
        }
        Fault::Icrc => frame[at.icrc()] ^= 0x80,
        // UDP checksums are not used, no MTU allows an oversized payload, and IPv6 frames cannot be marked as
        // fragments here
        Fault::UdpChecksum | Fault::Oversized | Fault::Fragment => {}
    }
}

/// Sets the length in the IP header to `len` bytes behind the header.
fn set_ip_len(frame: &mut [u8], v6: bool, len: usize) {
    let (at, len) = if v6 { (4, len) } else { (2, len + Ipv4::LEN) };
    frame[Ethernet::LEN + at..Ethernet::LEN + at + 2].copy_from_slice(&(len as u16).to_be_bytes());
    if !v6 {
        fill_ipv4_checksum(frame);
    }
}

fn fill_ipv4_checksum(frame: &mut [u8]) {
    let header = &mut frame[Ethernet::LEN..Ethernet::LEN + Ipv4::LEN];
    header[10..12].fill(0);
    let sum = Sum::default().add(header).checksum();
    header[10..12].copy_from_slice(&sum.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::HostAddress;
    use rocev2::ethernet::MacAddr;
    use rocev2::repr::Extended;

    #[test]
    fn each_malformed_frame_has_exactly_its_fault() {
        for (v6, opcode, least) in [
            (false, Opcode::RC_WRITE_ONLY, 11),
            (true, Opcode::RC_WRITE_ONLY, 9),
            (false, Opcode::RC_ACKNOWLEDGE, 10),
        ] {
            let ip = |n: u8| if v6 { format!("fd00::{n}") } else { format!("10.0.0.{n}") }.parse().unwrap();
            let host = |n: u8| HostAddress { mac: MacAddr([2, 0, 0, 0, 0, n]), ip: ip(n) };
            let payload = if opcode == Opcode::RC_WRITE_ONLY { 64 } else { 0 };
            let template = Template::new(host(1), host(2), opcode, Extended::default(), payload, 0);
            let all = variants_of(&template);
            assert!(
                all.len() >= least,
                "{opcode}, IPv6 {v6}: {:?}",
                all.iter().map(|(fault, _)| fault).collect::<Vec<_>>()
            );
            for (fault, frame) in &all {
                assert_eq!(fault_of(frame), Some(*fault));
            }
        }
    }
}
