//! Rewriting the packets of one connection into those of another ([`Redirect`]). Changes that are the same in
//! all packets are computed once, so that a packet costs little more than the stores.
//!
//! The ICRC is linear: the effect of the constant changes is one polynomial for all packets, and a single
//! multiplication moves it to the end of a given packet. A [`Template`](crate::template::Template) cannot be
//! used here, because the packets have any length and unknown payloads.

use crate::ethernet::MacAddr;
use crate::icrc::{self, Changes};
use crate::ipv4::Ipv4;
use crate::ipv6::Ipv6;
use crate::layout::{ICRC_LEN, Layout};
use crate::packet::Packet;
use crate::rewrite::Rewriter;
use crate::udp::Udp;
use crate::{Bth, Psn, Qpn};
use core::net::IpAddr;

/// Header fields that are the same in all packets of a connection in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowFields {
    /// Source address
    pub src: IpAddr,
    /// Destination address
    pub dst: IpAddr,
    /// Destination queue pair
    pub dest_qp: Qpn,
    /// R_Key in every RETH
    pub rkey: u32,
}

/// Length of IP, UDP and BTH, without IPv4 options
const V4: usize = Ipv4::LEN + Udp::LEN + Bth::LEN;
/// Length of IP, UDP and BTH, without IPv6 extension headers
const V6: usize = Ipv6::LEN + Udp::LEN + Bth::LEN;
/// Length from the end of the BTH to the end of a RETH's R_Key
const TO_RKEY_END: usize = 12;

/// A rewrite of the packets of one connection into those of another.
#[derive(Clone, Copy, Debug)]
#[repr(C)] // IPv4 uses only the first fields in this order.
pub struct Redirect {
    /// Destination and source MAC address, in wire order
    ethernet: [u8; 12],
    /// Expected R_Key, and the R_Key that replaces it
    rkeys: [[u8; 4]; 2],
    qpn: u32,
    /// Change of the ICRC, at the end of the destination queue pair's word
    effect: u32,
    /// Change of the ICRC with a RETH, at the end of its R_Key
    effect_with_rkey: u32,
    /// Value to add to the sum over the IPv4 header
    sum: u16,
    v6: bool,
    /// Source and destination IP address, in wire order; IPv4 uses the first 8 bytes
    addresses: [u8; 32],
}

impl Redirect {
    /// Prepares a rewrite of packets with the fields `from` into packets with the fields `to` and these MAC
    /// addresses. Returns `None` if the addresses are not all of one family.
    pub fn new(from: &FlowFields, to: &FlowFields, src: MacAddr, dst: MacAddr) -> Option<Self> {
        let (old, v6) = addresses(from)?;
        let (new, new_v6) = addresses(to)?;
        if v6 != new_v6 {
            return None;
        }
        let len = if v6 { 32 } else { 8 };
        let words = |bytes: &[u8; 32]| bytes.as_chunks::<4>().0.to_vec();
        let (old, new_words) = (words(&old), words(&new));
        // From the end of the addresses to the end of the destination queue pair's word in the BTH
        let behind = Udp::LEN + Bth::DEST_QP_WORD + 4;
        let (mut effect, mut sum) = (0, 0u64);
        for (n, (old, new)) in old.iter().zip(&new_words).enumerate().take(len / 4) {
            let change = u32::from_le_bytes(*old) ^ u32::from_le_bytes(*new);
            effect ^= icrc::advance(change, len - 4 * (n + 1) + behind);
            sum += u64::from(!u32::from_be_bytes(*old)) + u64::from(u32::from_be_bytes(*new));
        }
        let qpns = [from.dest_qp, to.dest_qp].map(|qpn| u32::from_le_bytes(qpn.get().to_be_bytes()));
        effect ^= qpns[0] ^ qpns[1];
        let rkeys = [from.rkey, to.rkey].map(u32::to_be_bytes);
        let rkey_change = u32::from_le_bytes(rkeys[0]) ^ u32::from_le_bytes(rkeys[1]);
        let effect_with_rkey =
            icrc::advance(effect, Bth::LEN - Bth::DEST_QP_WORD - 4 + TO_RKEY_END) ^ rkey_change;
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        let mut ethernet = [0; 12];
        ethernet[..6].copy_from_slice(&dst.0);
        ethernet[6..].copy_from_slice(&src.0);
        let qpn = to.dest_qp.get();
        Some(Self { ethernet, addresses: new, rkeys, qpn, v6, sum: sum as u16, effect, effect_with_rkey })
    }

    /// Rewrites a packet that has the fields `from`, and sets its PSN and, in a RETH, the virtual address.
    /// Checksums are updated, not recomputed: right ones stay right, and wrong ones stay wrong.
    #[inline]
    pub fn apply(&self, frame: &mut [u8], layout: Layout, psn: Psn, va: Option<u64>) {
        let headers = if self.v6 { V6 } else { V4 };
        let (l3, bth, end) = (layout.l3(), layout.bth(), layout.end());
        let plain = bth + Bth::LEN == l3 + headers && layout.is_ipv6() == self.v6;
        let packet = frame.get_mut(l3..end);
        let done = packet.filter(|_| plain).is_some_and(|packet| {
            let done = if self.v6 {
                self.rewrite(packet, va, psn, |header: &mut [u8; V6]| {
                    header[8..Ipv6::LEN].copy_from_slice(&self.addresses);
                })
            } else {
                self.rewrite(packet, va, psn, |header: &mut [u8; V4]| {
                    header[12..Ipv4::LEN].copy_from_slice(&self.addresses[..8]);
                    let sum = u32::from(!u16::from_be_bytes([header[10], header[11]])) + u32::from(self.sum);
                    let sum = (sum & 0xffff) + (sum >> 16);
                    [header[10], header[11]] = (!((sum & 0xffff) as u16 + (sum >> 16) as u16)).to_be_bytes();
                })
            };
            done.is_some()
        });
        if !done {
            return self.apply_generic(frame, layout, psn, va);
        }
        if let Some(ethernet) = frame.first_chunk_mut() {
            *ethernet = self.ethernet;
        }
    }

    /// Rewrites a packet from its IP header to its ICRC. Its first `HEADERS` bytes have to be IP, UDP and
    /// BTH. Returns `None` without any change if the packet has a UDP checksum or another R_Key, or is too
    /// short.
    #[inline]
    fn rewrite<const HEADERS: usize>(
        &self,
        packet: &mut [u8],
        va: Option<u64>,
        psn: Psn,
        set_addresses: impl FnOnce(&mut [u8; HEADERS]),
    ) -> Option<()> {
        let (header, rest) = packet.split_first_chunk_mut::<HEADERS>()?;
        let (rest, icrc) = rest.split_last_chunk_mut::<ICRC_LEN>()?;
        if header[HEADERS - Bth::LEN - 2..HEADERS - Bth::LEN] != [0, 0] {
            // The packet has a UDP checksum.
            return None;
        }
        let mut changes = Changes::new();
        let psn_power = if let Some(va) = va {
            let powers = icrc::powers::<{ TO_RKEY_END + 5 }>(rest.len().checked_sub(TO_RKEY_END)?)?;
            let (old, key) = rest.first_chunk_mut::<TO_RKEY_END>()?.split_first_chunk_mut::<8>()?;
            if *key != self.rkeys[0] {
                return None;
            }
            key.copy_from_slice(&self.rkeys[1]);
            let change = u64::from_le_bytes(*old) ^ va.swap_bytes();
            *old = va.to_be_bytes();
            changes.add(change as u32, powers[12]);
            changes.add((change >> 32) as u32, powers[8]);
            changes.add(self.effect_with_rkey, powers[4]);
            powers[16]
        } else {
            let powers = icrc::powers::<9>(rest.len())?;
            changes.add(self.effect, powers[8]);
            powers[4]
        };
        set_addresses(header);
        // Destination queue pair and PSN, each behind a byte that does not change
        let words = header.last_chunk_mut::<8>()?;
        let old = u64::from_be_bytes(*words);
        let new = old & 0xff00_0000_ff00_0000 | u64::from(self.qpn) << 32 | u64::from(psn.get());
        *words = new.to_be_bytes();
        changes.add(((old ^ new) as u32).swap_bytes(), psn_power);
        *icrc = (u32::from_le_bytes(*icrc) ^ changes.effect()).to_le_bytes();
        Some(())
    }

    /// Returns source and destination of an IPv6 header.
    fn ipv6_addresses(&self) -> [&[u8; 16]; 2] {
        let [src, dst] = self.addresses.as_chunks::<16>().0 else { unreachable!("two addresses") };
        [src, dst]
    }

    /// Returns whether a packet flows in the reverse direction: from the destination of rewritten packets to
    /// their source.
    #[inline]
    pub fn matches_reverse(&self, packet: &Packet<'_>) -> bool {
        let header = &packet.bytes()[packet.layout().l3()..];
        if packet.layout().is_ipv6() != self.v6 {
            return false;
        }
        if self.v6 {
            let [src, dst] = self.ipv6_addresses();
            return header[8..24] == *dst && header[24..40] == *src;
        }
        header[12..16] == self.addresses[4..8] && header[16..20] == self.addresses[..4]
    }

    /// Rewrites packets with options, extension headers, a UDP checksum or another R_Key.
    #[cold]
    fn apply_generic(&self, frame: &mut [u8], layout: Layout, psn: Psn, va: Option<u64>) {
        frame[..12].copy_from_slice(&self.ethernet);
        let mut rewriter = Rewriter::new(frame, layout);
        // The addresses have the packet's family, because those in `from` have to.
        let [src, dst] = self.ipv6_addresses();
        _ = if self.v6 {
            rewriter.set_ipv6_addresses(*src, *dst)
        } else {
            let short = |at| core::array::from_fn(|n| self.addresses[at + n]);
            rewriter.set_ipv4_addresses(short(0), short(4))
        };
        rewriter.set_dest_qp(Qpn::new(self.qpn));
        rewriter.set_psn(psn);
        if let Some(va) = va {
            _ = rewriter.set_remote_memory(va, u32::from_be_bytes(self.rkeys[1]));
        }
        rewriter.finish();
    }
}

/// Returns both addresses in wire order, and whether they are IPv6.
fn addresses(fixed: &FlowFields) -> Option<([u8; 32], bool)> {
    let mut bytes = [0; 32];
    match (fixed.src, fixed.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            bytes[..4].copy_from_slice(&src.octets());
            bytes[4..8].copy_from_slice(&dst.octets());
            Some((bytes, false))
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            bytes[..16].copy_from_slice(&src.octets());
            bytes[16..].copy_from_slice(&dst.octets());
            Some((bytes, true))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ethernet::{Ethernet, ethertype};
    use crate::repr::{Ip, Repr};
    use crate::{Class, Opcode, classify};
    use proptest::prelude::*;

    fn ip(v6: bool, bits: u128) -> IpAddr {
        if v6 {
            core::net::Ipv6Addr::from(bits).into()
        } else {
            core::net::Ipv4Addr::from(bits as u32).into()
        }
    }

    fn fixed(v6: bool, bits: [u128; 2], qpn: u32, rkey: u32) -> FlowFields {
        FlowFields { src: ip(v6, bits[0]), dst: ip(v6, bits[1]), dest_qp: Qpn::new(qpn), rkey }
    }

    proptest! {
        #[test]
        fn redirect_equals_a_rewriter(
            v6: bool,
            udp_checksum: bool,
            options: bool,
            other_key: bool,
            opcode in prop::sample::select(&[
                Opcode::RC_WRITE_FIRST, Opcode::RC_WRITE_MIDDLE, Opcode::RC_WRITE_LAST_IMM, Opcode::RC_WRITE_ONLY,
                Opcode::RC_WRITE_ONLY_IMM, Opcode::RC_SEND_ONLY, Opcode::RC_READ_REQUEST,
            ][..]),
            payload in 0usize..2000,
            old: [u128; 2],
            new: [u128; 2],
            qpns: [u32; 2],
            rkeys: [u32; 2],
            psns: [u32; 2],
            vas: [u64; 2],
            corrupt: bool,
        ) {
            let (from, to) = (fixed(v6, old, qpns[0], rkeys[0]), fixed(v6, new, qpns[1], rkeys[1]));
            let kind = if v6 { ethertype::IPV6 } else { ethertype::IPV4 };
            let ethernet = Ethernet { ethertype: kind.into(), ..Ethernet::default() };
            let ip = match (from.src, from.dst) {
                (IpAddr::V4(src), IpAddr::V4(dst)) => {
                    let extra: &[u8] = if options { &[1; 4] } else { &[] };
                    Ip::V4(Ipv4 { src: src.octets(), dst: dst.octets(), ..Ipv4::default() }, extra)
                }
                (IpAddr::V6(src), IpAddr::V6(dst)) => {
                    Ip::V6(Ipv6 { src: src.octets(), dst: dst.octets(), ..Ipv6::default() }, &[])
                }
                _ => unreachable!("mixed address families"),
            };
            let mut repr = Repr::new(ethernet, ip, Bth::new(opcode, from.dest_qp, Psn::new(psns[0])));
            repr.udp.dst_port = crate::UDP_PORT.into();
            repr.udp.checksum = u16::from(udp_checksum).into();
            repr.extended.reth.va = vas[0].into();
            repr.extended.reth.rkey = (if other_key { !rkeys[0] } else { rkeys[0] }).into();
            let content = vec![0x5a; if opcode == Opcode::RC_READ_REQUEST { 0 } else { payload }];
            repr.payload = &content;
            let mut frame = vec![0; repr.frame_len() + 4];
            let len = repr.build(&mut frame).unwrap();
            frame.truncate(len);
            let Class::Roce(layout) = classify(&frame) else { panic!("a RoCEv2 packet") };
            if corrupt {
                frame[layout.icrc()] ^= 1;
            }
            let mut expected = frame.clone();
            let (src, dst) = (MacAddr([2; 6]), MacAddr([4; 6]));
            let va = opcode.headers().contains(crate::opcode::Headers::RETH).then_some(vas[1]);
            let mut rewriter = Rewriter::new(&mut expected, layout);
            rewriter.set_ethernet(src, dst);
            _ = match (to.src, to.dst) {
                (IpAddr::V4(src), IpAddr::V4(dst)) => rewriter.set_ipv4_addresses(src.octets(), dst.octets()),
                (IpAddr::V6(src), IpAddr::V6(dst)) => rewriter.set_ipv6_addresses(src.octets(), dst.octets()),
                _ => unreachable!("mixed address families"),
            };
            rewriter.set_dest_qp(to.dest_qp);
            rewriter.set_psn(Psn::new(psns[1]));
            if let Some(va) = va {
                rewriter.set_remote_memory(va, to.rkey).unwrap();
            }
            rewriter.finish();
            Redirect::new(&from, &to, src, dst).unwrap().apply(&mut frame, layout, Psn::new(psns[1]), va);
            prop_assert_eq!(frame, expected);
        }
    }

    #[test]
    fn mixed_address_families_are_rejected() {
        let (v4, v6) = (fixed(false, [1, 2], 1, 1), fixed(true, [1, 2], 1, 1));
        assert!(Redirect::new(&v4, &v6, MacAddr([0; 6]), MacAddr([0; 6])).is_none());
        assert!(
            Redirect::new(&v4, &FlowFields { src: v6.src, ..v4 }, MacAddr([0; 6]), MacAddr([0; 6])).is_none()
        );
    }
}
