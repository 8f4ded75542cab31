//! Checks and changes of frames by the network itself: partitions, damage, MTU, ECN marks and the digest.

use rocev2::ethernet::{Ethernet, MacAddr, VlanTag, ethertype};
use rocev2::rewrite::Rewriter;
use rocev2::{Class, Packet, classify};

/// Returns the offset of the network-layer header, and the EtherType; `None` if the frame is too short.
fn l3(frame: &[u8]) -> Option<(usize, u16)> {
    let mut at = Ethernet::LEN;
    loop {
        let kind = u16::from_be_bytes(*frame.get(at - 2..)?.first_chunk()?);
        if !ethertype::is_tag(kind) {
            return Some((at, kind));
        }
        at += VlanTag::LEN;
    }
}

/// Returns whether a frame goes from one of two interfaces to the other, by its MAC addresses.
pub(crate) fn is_between(frame: &[u8], [a, b]: [MacAddr; 2]) -> bool {
    is_from_to(frame, [a, b]) || is_from_to(frame, [b, a])
}

/// Returns whether a frame is from the first interface to the second one.
pub(crate) fn is_from_to(frame: &[u8], [from, to]: [MacAddr; 2]) -> bool {
    (frame.get(..6), frame.get(6..12)) == (Some(&to.0), Some(&from.0))
}

/// Returns whether a checksum inside the frame covers the byte at `at`, so that its receiver can detect
/// damage. ARP has no checksum, and none covers the MAC addresses, which bridges learn from.
pub(crate) fn is_checked(frame: &[u8], at: usize) -> bool {
    at >= 2 * size_of::<MacAddr>() && l3(frame).is_none_or(|(_, kind)| kind != ethertype::ARP)
}

/// Returns the index of the bit that damage flips: the first one, from bit `start` (modulo the length) on,
/// that equals `set`; `None` if there is none. In one world all damage sets bits, or all of it clears bits.
/// So no damage undoes earlier damage; on real links the frame check sequence of each link prevents that.
pub(crate) fn bit_to_flip(frame: &[u8], start: u64, set: bool) -> Option<usize> {
    let bits = frame.len() * 8;
    let from = start as usize % bits.max(1);
    (from..bits).chain(0..from).find(|bit| (frame[bit / 8] >> (bit % 8) & 1 == 1) == set)
}

/// Returns whether a frame may pass a link of this MTU; its VLAN tags do not count.
pub(crate) fn fits(frame: &[u8], mtu: usize) -> bool {
    frame.len() <= mtu + Ethernet::LEN || l3(frame).is_some_and(|(at, _)| frame.len() <= mtu + at)
}

/// Marks an ECN-capable RoCE packet with "congestion experienced" (RFC 3168). Returns false if it is not
/// ECN-capable, or not RoCE.
pub(crate) fn mark(frame: &mut [u8]) -> bool {
    let Class::Roce(layout) = classify(frame) else { return false };
    let capable = matches!(Packet::new(frame, layout).ecn(), 1 | 2);
    if capable {
        let mut rewriter = Rewriter::new(frame, layout);
        rewriter.set_ecn(3);
        rewriter.finish();
    }
    capable
}

/// Running digest of everything that is sent; equal digests mean equal runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Digest([u64; 2]);

const MULTIPLIERS: [u64; 2] = [0x9e37_79b9_7f4a_7c15, 0xc2b2_ae3d_27d4_eb4f];

impl Digest {
    pub(crate) const fn new() -> Self {
        Self([0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344])
    }

    #[inline]
    pub(crate) fn number(&mut self, number: u64) {
        let [a, b] = &mut self.0;
        *a = (*a ^ number).wrapping_mul(MULTIPLIERS[0]).rotate_left(29);
        *b = b.wrapping_add(*a ^ number);
    }

    /// Adds bytes and their number. Uses two independent accumulators, so that the multiplications overlap.
    #[inline]
    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        let mut chunks = bytes.chunks_exact(16);
        let [mut a, mut b] = self.0;
        let word = |bytes: &[u8]| bytes.first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
        for chunk in &mut chunks {
            a = (a ^ word(chunk)).wrapping_mul(MULTIPLIERS[0]).rotate_left(29);
            b = (b ^ word(&chunk[8..])).wrapping_mul(MULTIPLIERS[1]).rotate_left(31);
        }
        self.0 = [a, b];
        for byte in chunks.remainder() {
            self.number((*byte).into());
        }
        self.number(bytes.len() as u64);
    }

    pub(crate) fn value(self) -> u64 {
        let [a, b] = self.0;
        switch::table::mix(a ^ b.rotate_left(32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rnic::{
        Access, Config, Data, Interface, Modify, Operation, Path, PathMtu, QpInit, ReadyToReceive,
        ReadyToSend, Rnic, SendRequest, Transport, UdDestination,
    };
    use rocev2::Psn;
    use rocev2::aeth::RnrTimer;
    use rocev2::repr::Repr;
    use switch::Nanos;

    fn frame(v6: bool, ecn: u8) -> Vec<u8> {
        let src = if v6 { "fd00::1" } else { "10.0.0.1" };
        let dst = if v6 { "fd00::2" } else { "10.0.0.2" };
        let mut nic = Rnic::new(Config::new(Interface {
            neighbours: vec![(dst.parse().unwrap(), MacAddr([2; 6]))],
            ..Interface::new(MacAddr([4; 6]), src.parse().unwrap(), 24)
        }));
        let (pd, cq) = (nic.alloc_pd(), nic.create_cq(1).unwrap());
        let transport = Transport::Ud;
        let init = QpInit { transport, pd, send_cq: cq, recv_cq: cq, srq: None, max_send: 1, max_recv: 1 };
        let qpn = nic.create_qp(init).unwrap();
        let path =
            Path { traffic_class: 0x50 | ecn, ..Path::new(src.parse().unwrap(), dst.parse().unwrap()) };
        let rtr = ReadyToReceive {
            path,
            dest_qp: qpn,
            mtu: PathMtu::B1024,
            rq_psn: Psn::ZERO,
            max_dest_rd_atomic: 0,
            min_rnr_timer: RnrTimer(0),
        };
        let rts = ReadyToSend {
            sq_psn: Psn::ZERO,
            max_rd_atomic: 0,
            timeout: 0,
            retry_count: 0,
            rnr_retry: 0,
            flow_control: false,
        };
        let init = Modify::Init { access: Access::ALL, qkey: 0 };
        for modify in [init, Modify::Rtr(rtr), Modify::Rts(rts)] {
            nic.modify_qp(qpn, modify).unwrap();
        }
        let to = Some(UdDestination { path, qpn, qkey: 0 });
        let request = SendRequest { to, ..SendRequest::new(0, Operation::Send, Data::Inline(vec![1; 40])) };
        nic.post_send(qpn, request).unwrap();
        let mut frame = Vec::new();
        assert!(nic.poll_transmit(Nanos::ZERO, &mut frame));
        frame
    }

    #[test]
    fn damage_never_undoes_earlier_damage() {
        let mut frame = [0b1010_0001, 0xff, 0];
        assert_eq!(bit_to_flip(&frame, 1, true), Some(5));
        assert_eq!(bit_to_flip(&frame, 24 + 8, false), Some(16));
        assert_eq!(bit_to_flip(&frame, 16, true), Some(0), "wraps around at the end");
        for _ in 0..11 {
            let bit = bit_to_flip(&frame, 7, true).unwrap();
            frame[bit / 8] ^= 1 << (bit % 8);
        }
        assert_eq!((frame, bit_to_flip(&frame, 7, true)), ([0; 3], None));
        assert_eq!(bit_to_flip(&[], 7, false), None);
    }

    #[test]
    fn ecn_mark_keeps_checksums_valid() {
        for v6 in [false, true] {
            for ecn in [1, 2] {
                let mut marked = frame(v6, ecn);
                assert!(mark(&mut marked));
                let packet = Packet::parse(&marked).unwrap();
                assert!(packet.verify_icrc());
                assert_eq!(
                    packet.ipv4().map_or_else(|| packet.ipv6().unwrap().traffic_class(), |ip| ip.tos),
                    0x53
                );
                // The frame that is built from its parsed fields has the same checksums.
                let mut repr = Repr::parse(&marked).unwrap();
                let mut again = vec![0; repr.frame_len()];
                repr.build(&mut again).unwrap();
                assert_eq!(again, marked);
            }
            assert!(!mark(&mut frame(v6, 0)) && !mark(&mut frame(v6, 3)));
        }
        assert!(!mark(&mut [0; 14]));
    }

    #[test]
    fn mtu_ignores_vlan_tags() {
        let mut tagged = vec![0; 12];
        tagged.extend([0x81, 0, 0, 5, 8, 0]);
        tagged.resize(18 + 1500, 0);
        assert!(fits(&tagged, 1500));
        tagged.push(0);
        assert!(!fits(&tagged, 1500));
        assert!(fits(&[0; 1514], 1500) && !fits(&[0; 1515], 1500));
    }

    #[test]
    fn digest_depends_on_every_byte() {
        let of = |bytes: &[u8]| {
            let mut digest = Digest::new();
            digest.bytes(bytes);
            digest.value()
        };
        for len in [1, 15, 16, 17, 100] {
            let bytes = vec![7; len];
            for at in 0..len {
                let mut other = bytes.clone();
                other[at] ^= 0x10;
                assert_ne!(of(&bytes), of(&other), "{len} {at}");
            }
        }
        assert_ne!(of(&[0; 16]), of(&[0; 32]));
    }
}
