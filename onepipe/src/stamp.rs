//! Stamping: a switch sets the barriers of a packet that passes (1Pipe, section 4.1).

use crate::header::{OnePipe, Timestamp};
use rocev2::Layout;
use rocev2::Opcode;
use rocev2::icrc::Changes;
use rocev2::rewrite::Rewriter;

/// The packet cannot carry a 1Pipe header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the packet's opcode or length is not that of a packet of 1Pipe")]
pub struct NoHeader;

/// Returns the offset of the 1Pipe header, in a datagram or in a WRITE that is a beacon.
#[inline]
fn header_offset(layout: Layout) -> Result<usize, NoHeader> {
    let at = layout.payload();
    let carries = matches!(layout.opcode(), Opcode::UD_SEND_ONLY | Opcode::UC_WRITE_ONLY);
    if carries && layout.icrc() - at >= OnePipe::LEN { Ok(at) } else { Err(NoHeader) }
}

/// Sets both barriers of a 1Pipe header and updates the checksums, as a [`Rewriter`] with no other change
/// would. Packets without a UDP checksum, which are the common case, need no sums. A packet that arrived with
/// a wrong ICRC leaves with a wrong one.
///
/// # Errors
/// [`NoHeader`], without any change, if the opcode or the payload's length is not that of a 1Pipe packet.
#[inline]
pub fn stamp(
    frame: &mut [u8],
    layout: Layout,
    barrier: Option<Timestamp>,
    commit: Option<Timestamp>,
) -> Result<(), NoHeader> {
    let at = header_offset(layout)? + OnePipe::BARRIERS;
    let end = layout.icrc();
    if frame[layout.udp() + 6..].first_chunk::<2>().is_none_or(|sum| *sum != [0, 0]) {
        return stamp_with_udp_checksum(frame, layout, OnePipe::barriers_to_wire(barrier, commit));
    }
    let new = OnePipe::barriers_to_wire(barrier, commit);
    let field: &mut [u8; 12] = frame[at..].first_chunk_mut().expect("the header ends before the ICRC");
    let old: [[u8; 4]; 3] = zerocopy::transmute!(*field);
    *field = zerocopy::transmute!(new);
    let mut changes = Changes::new();
    changes.words([0, 1, 2].map(|n| u32::from_le_bytes(old[n]) ^ u32::from_le_bytes(new[n])), end - at - 12);
    let icrc = frame[end..].first_chunk_mut::<4>().expect("an ICRC");
    *icrc = (u32::from_le_bytes(*icrc) ^ changes.effect()).to_le_bytes();
    Ok(())
}

#[cold]
fn stamp_with_udp_checksum(frame: &mut [u8], layout: Layout, barriers: [[u8; 4]; 3]) -> Result<(), NoHeader> {
    let mut rewriter = Rewriter::new(frame, layout);
    rewriter.set_payload_words(OnePipe::BARRIERS, barriers).map_err(|_| NoHeader)?;
    rewriter.finish();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::header::OnePipeOpcode;
    use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
    use proptest::prelude::*;
    use rocev2::ethernet::MacAddr;
    use rocev2::path_headers::{PathHeaderFields, PathHeaders};
    use rocev2::{Bth, Packet, Psn, Qpn};
    use zerocopy::IntoBytes;

    /// Returns a frame with a right ICRC, and a right UDP checksum if it is to have one.
    fn frame(v6: bool, opcode: Opcode, payload: &[u8], udp_checksum: bool) -> (Vec<u8>, Layout) {
        let address = |n: u16| -> IpAddr {
            if v6 { Ipv6Addr::from([n; 8]).into() } else { Ipv4Addr::from([10, 0, 0, n as u8]).into() }
        };
        let mut route = PathHeaders::new(&PathHeaderFields {
            src_mac: MacAddr([2; 6]),
            dst_mac: MacAddr([4; 6]),
            vlan: None,
            src: address(1),
            dst: address(2),
            traffic_class: 0,
            hop_limit: 64,
            src_port: 0xc001,
        })
        .expect("addresses of one family");
        let headers = vec![0x5a; opcode.headers().len()];
        let mut frame = Vec::new();
        route.emit(&mut frame, Bth::new(opcode, Qpn::new(0x11), Psn::new(7)), &[&headers], payload);
        let packet = Packet::parse(&frame).expect("a route emits valid packets");
        let layout = packet.layout();
        if udp_checksum {
            let sum = packet.pseudo_header_sum().add(&frame[layout.udp()..layout.end()]).checksum();
            let at = layout.udp() + 6;
            frame[at..at + 2].copy_from_slice(&(if sum == 0 { 0xffff } else { sum }).to_be_bytes());
        }
        (frame, layout)
    }

    proptest! {
        #[test]
        fn stamping_changes_only_barriers_and_checksums(
            v6: bool,
            udp_checksum: bool,
            corrupt: bool,
            opcode in prop::sample::select(Opcode::KNOWN),
            payload in prop::collection::vec(any::<u8>(), 0..64),
            time in 0u64..1 << 48,
            barrier: Option<u32>,
            commit: Option<u32>,
        ) {
            let payload = if opcode.info().is_some_and(|info| info.payload) { payload } else { Vec::new() };
            let (mut bytes, layout) = frame(v6, opcode, &payload, udp_checksum);
            if corrupt {
                bytes[layout.icrc()] ^= 0x10;
            }
            let before = bytes.clone();
            let [barrier, commit] = [barrier, commit].map(|n| n.map(|n| Timestamp::new(time).add(n.into())));
            let stamped = stamp(&mut bytes, layout, barrier, commit);
            let carries = opcode == Opcode::UD_SEND_ONLY || opcode == Opcode::UC_WRITE_ONLY;
            prop_assert_eq!(stamped.is_ok(), carries && payload.len().next_multiple_of(4) >= OnePipe::LEN);
            let mut expected = before;
            if stamped.is_ok() {
                let mut header = OnePipe::new(OnePipeOpcode::DATA, Timestamp::default(), Psn::ZERO);
                header.set_barrier(barrier);
                header.set_commit(commit);
                let at = layout.payload() + OnePipe::BARRIERS;
                expected[at..at + 12].copy_from_slice(&header.as_bytes()[OnePipe::BARRIERS..][..12]);
                expected[layout.udp() + 6..layout.udp() + 8].copy_from_slice(&bytes[layout.udp() + 6..layout.udp() + 8]);
                expected[layout.icrc()..].copy_from_slice(&bytes[layout.icrc()..]);
            }
            prop_assert_eq!(&bytes, &expected);
            let packet = Packet::new(&bytes, layout);
            prop_assert_eq!(packet.verify_icrc(), !corrupt, "a wrong ICRC stays wrong");
            prop_assert_eq!(packet.udp().checksum.get() != 0, udp_checksum);
            prop_assert_eq!(packet.verify_udp_checksum(), !(corrupt && udp_checksum));
        }
    }
}
