//! Rewriting a packet in place. Each setter of a [`Rewriter`] changes a field and records the change;
//! [`finish`] then updates the IPv4 header checksum, the UDP checksum (if there is one) and the ICRC for all
//! changes at once, at a cost that does not depend on the packet's length.
//!
//! Checksums are updated, not recomputed: a packet that arrived with a wrong ICRC also leaves with a wrong
//! one.
//!
//! [`finish`]: Rewriter::finish

use crate::aeth::Aeth;
use crate::ethernet::{Ethernet, MacAddr};
use crate::icrc::Changes;
use crate::ipv4::Ipv4;
use crate::layout::Layout;
use crate::opcode::Headers;
use crate::{Bth, Psn, Qpn, checksum};

/// A packet that is being rewritten. Setters change fields immediately; [`finish`](Self::finish) updates the
/// checksums.
#[derive(Debug)]
#[must_use = "checksums are wrong until `finish` is called"]
pub struct Rewriter<'a> {
    bytes: &'a mut [u8],
    layout: Layout,
    changes: Changes,
    /// One's complement sums of the old and the new values of all changed 32-bit words that the UDP checksum
    /// covers
    udp_change: (u64, u64),
}

impl<'a> Rewriter<'a> {
    /// Begins to rewrite `frame`. `layout` has to be the result of [`classify`](crate::classify) for it.
    #[inline]
    pub fn new(frame: &'a mut [u8], layout: Layout) -> Self {
        Self { bytes: frame, layout, changes: Changes::new(), udp_change: (0, 0) }
    }

    /// Returns the four bytes at offset `at`, with a single bounds check.
    #[inline]
    fn word_mut(&mut self, at: usize) -> &mut [u8; 4] {
        self.bytes[at..].first_chunk_mut().expect("four bytes")
    }

    #[inline]
    fn word(&mut self, at: usize) -> u32 {
        u32::from_be_bytes(*self.word_mut(at))
    }

    /// Writes a word that the ICRC covers completely, or whose uncovered bits do not change. Returns the old
    /// value.
    #[allow(clippy::inline_always, reason = "a call would cost more than its work")]
    #[inline(always)]
    fn set_word(&mut self, at: usize, new: u32) -> u32 {
        let word = self.word_mut(at);
        let old = u32::from_be_bytes(*word);
        *word = new.to_be_bytes();
        self.changes.add_word((old ^ new).swap_bytes(), self.layout.icrc() - at - 4);
        self.udp_change.0 += u64::from(!old);
        self.udp_change.1 += u64::from(new);
        old
    }

    /// Writes consecutive words, under the same condition as [`set_word`](Self::set_word).
    #[allow(clippy::inline_always, reason = "as above")]
    #[inline(always)]
    fn set_words<const N: usize>(&mut self, at: usize, new: [[u8; 4]; N]) {
        let words = self.bytes[at..].as_chunks_mut::<4>().0.first_chunk_mut::<N>().expect("wrong layout");
        let mut xors = [0; N];
        for ((word, new), xor) in words.iter_mut().zip(new).zip(&mut xors) {
            *xor = u32::from_le_bytes(*word) ^ u32::from_le_bytes(new);
            self.udp_change.0 += u64::from(!u32::from_be_bytes(*word));
            self.udp_change.1 += u64::from(u32::from_be_bytes(new));
            *word = new;
        }
        self.changes.words(xors, self.layout.icrc() - at - 4 * N);
    }

    /// Sets the Ethernet addresses, which no checksum covers.
    #[inline]
    pub fn set_ethernet(&mut self, src: MacAddr, dst: MacAddr) {
        self.bytes[..6].copy_from_slice(&dst.0);
        self.bytes[6..Ethernet::LEN - 2].copy_from_slice(&src.0);
    }

    /// Sets the addresses of an IPv4 packet.
    ///
    /// # Errors
    /// [`WrongVersion`], without any change, if the packet is IPv6.
    #[inline]
    pub fn set_ipv4_addresses(&mut self, src: [u8; 4], dst: [u8; 4]) -> Result<(), WrongVersion> {
        if self.layout.is_ipv6() {
            return Err(WrongVersion);
        }
        let l3 = self.layout.l3();
        let (src, dst) = (u32::from_be_bytes(src), u32::from_be_bytes(dst));
        let (old_src, old_dst) = (self.set_word(l3 + 12, src), self.set_word(l3 + 16, dst));
        let at = l3 + 10;
        let sum = u16::from_be_bytes([self.bytes[at], self.bytes[at + 1]]);
        let sum = checksum::update(checksum::update(sum, old_src, src), old_dst, dst);
        self.bytes[at..at + 2].copy_from_slice(&sum.to_be_bytes());
        const { assert!(size_of::<Ipv4>() == 20) }
        Ok(())
    }

    /// Sets the addresses of an IPv6 packet.
    ///
    /// # Errors
    /// [`WrongVersion`], without any change, if the packet is IPv4.
    #[inline]
    pub fn set_ipv6_addresses(&mut self, src: [u8; 16], dst: [u8; 16]) -> Result<(), WrongVersion> {
        if !self.layout.is_ipv6() {
            return Err(WrongVersion);
        }
        self.set_words::<4>(self.layout.l3() + 8, zerocopy::transmute!(src));
        self.set_words::<4>(self.layout.l3() + 24, zerocopy::transmute!(dst));
        Ok(())
    }

    /// Sets the ECN field (RFC 3168) to the two low bits of `ecn`. The IPv4 header checksum is the only
    /// checksum that covers it.
    pub fn set_ecn(&mut self, ecn: u8) {
        let l3 = self.layout.l3();
        let old = self.word(l3);
        let shift = if self.layout.is_ipv6() { 20 } else { 16 };
        let new = old & !(3 << shift) | u32::from(ecn & 3) << shift;
        self.bytes[l3..l3 + 4].copy_from_slice(&new.to_be_bytes());
        if !self.layout.is_ipv6() {
            let at = l3 + 10;
            let sum = u16::from_be_bytes([self.bytes[at], self.bytes[at + 1]]);
            self.bytes[at..at + 2].copy_from_slice(&checksum::update(sum, old, new).to_be_bytes());
        }
    }

    /// Sets the UDP source port.
    pub fn set_src_port(&mut self, port: u16) {
        let at = self.layout.udp();
        let word = self.word(at);
        self.set_word(at, u32::from(port) << 16 | (word & 0xffff));
    }

    /// Sets the destination queue pair.
    #[inline]
    pub fn set_dest_qp(&mut self, qpn: Qpn) {
        let at = self.layout.bth() + Bth::DEST_QP_WORD;
        let kept = self.word(at) & 0xff00_0000;
        self.set_word(at, kept | qpn.get());
    }

    /// Sets the packet sequence number.
    #[inline]
    pub fn set_psn(&mut self, psn: Psn) {
        let at = self.layout.bth() + Bth::PSN_WORD;
        let kept = self.word(at) & 0xff00_0000;
        self.set_word(at, kept | psn.get());
    }

    /// Sets the `AckReq` bit.
    pub fn set_ack_req(&mut self, on: bool) {
        let at = self.layout.bth() + Bth::PSN_WORD;
        let kept = self.word(at) & 0x7fff_ffff;
        self.set_word(at, kept | u32::from(on) << 31);
    }

    #[inline]
    fn extended(&self, header: Headers) -> Result<usize, NoSuchHeader> {
        let headers = self.layout.opcode().headers();
        if headers.contains(header) {
            Ok(self.layout.bth() + Bth::LEN + headers.before(header))
        } else {
            Err(NoSuchHeader)
        }
    }

    /// Sets virtual address and R_Key of a RETH, and leaves its length unchanged.
    ///
    /// # Errors
    /// [`NoSuchHeader`], without any change, if the packet has no RETH.
    #[inline]
    pub fn set_remote_memory(&mut self, va: u64, rkey: u32) -> Result<(), NoSuchHeader> {
        let at = self.extended(Headers::RETH)?;
        self.set_words::<2>(at, zerocopy::transmute!(va.to_be_bytes()));
        self.set_word(at + 8, rkey);
        Ok(())
    }

    /// Sets the virtual address of a RETH or an AtomicETH.
    ///
    /// # Errors
    /// [`NoSuchHeader`], without any change, if the packet has neither.
    #[inline]
    pub fn set_remote_address(&mut self, va: u64) -> Result<(), NoSuchHeader> {
        // Both headers begin with the virtual address.
        let at = self.extended(Headers::RETH).or_else(|_| self.extended(Headers::ATOMIC))?;
        self.set_words::<2>(at, zerocopy::transmute!(va.to_be_bytes()));
        Ok(())
    }

    /// Sets the source queue pair of a DETH.
    ///
    /// # Errors
    /// [`NoSuchHeader`], without any change, if the packet has no DETH.
    pub fn set_src_qp(&mut self, qpn: Qpn) -> Result<(), NoSuchHeader> {
        let at = self.extended(Headers::DETH)? + 4;
        let kept = self.word(at) & 0xff00_0000;
        self.set_word(at, kept | qpn.get());
        Ok(())
    }

    /// Sets the AETH.
    ///
    /// # Errors
    /// [`NoSuchHeader`], without any change, if the packet has no AETH.
    #[inline]
    pub fn set_aeth(&mut self, aeth: Aeth) -> Result<(), NoSuchHeader> {
        let at = self.extended(Headers::AETH)?;
        self.set_words::<1>(at, zerocopy::transmute!(aeth));
        Ok(())
    }

    /// Sets `N` consecutive words of the payload, of which the first begins `offset` bytes behind the last
    /// header: fields of a protocol above RoCEv2.
    ///
    /// # Errors
    /// [`BeyondPayload`], without any change, if the payload with its padding ends before the last word.
    #[inline]
    pub fn set_payload_words<const N: usize>(
        &mut self,
        offset: usize,
        new: [[u8; 4]; N],
    ) -> Result<(), BeyondPayload> {
        let at = self.layout.payload() + offset;
        if at + 4 * N > self.layout.icrc() {
            return Err(BeyondPayload);
        }
        self.set_words(at, new);
        Ok(())
    }

    /// Updates the UDP checksum and the ICRC. (The setters have updated the IPv4 header checksum.)
    #[inline]
    pub fn finish(self) {
        let at = self.layout.icrc();
        let icrc = [self.bytes[at], self.bytes[at + 1], self.bytes[at + 2], self.bytes[at + 3]];
        let old = u32::from_le_bytes(icrc);
        let new = old ^ self.changes.effect();
        self.bytes[at..at + 4].copy_from_slice(&new.to_le_bytes());
        let at = self.layout.udp() + 6;
        let sum = u16::from_be_bytes([self.bytes[at], self.bytes[at + 1]]);
        if sum != 0 {
            // The datagram contains the ICRC. Its offset is even, though not always a multiple of four,
            // because headers and padded payload have even lengths.
            let (before, after) = (
                self.udp_change.0 + u64::from(!old.swap_bytes()),
                self.udp_change.1 + u64::from(new.swap_bytes()),
            );
            let mut total = u64::from(!sum) + before + after;
            while total > 0xffff {
                total = (total & 0xffff) + (total >> 16);
            }
            // A checksum of 0 would mean "no checksum" (RFC 768).
            let sum = match !(total as u16) {
                0 => 0xffff,
                sum => sum,
            };
            self.bytes[at..at + 2].copy_from_slice(&sum.to_be_bytes());
        }
    }
}

/// The packet is of the other IP version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the packet is of the other IP version")]
pub struct WrongVersion;

/// The payload ends before the words to be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the payload ends before the words to be set")]
pub struct BeyondPayload;

/// The packet's opcode does not have the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the packet's opcode does not have this header")]
pub struct NoSuchHeader;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aeth::{Credit, Syndrome};
    use crate::checksum::Sum;
    use crate::{Class, Msn, Opcode, Packet, classify, icrc};
    use proptest::prelude::*;
    use zerocopy::{FromBytes, IntoBytes};

    /// Returns a frame of `opcode` with right checksums.
    fn frame(v6: bool, opcode: Opcode, payload: usize, udp_checksum: bool) -> Vec<u8> {
        let headers = opcode.headers().len();
        let payload = if opcode.info().is_some_and(|info| info.payload) { payload * 4 } else { 0 };
        let udp_len = 8 + 12 + headers + payload + 4;
        let mut frame = vec![2; 12];
        if v6 {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            frame.extend((udp_len as u16).to_be_bytes());
            frame.extend([17, 64]);
            frame.extend([0x31; 32]);
        } else {
            frame.extend([8, 0, 0x45, 0]);
            frame.extend((20 + udp_len as u16).to_be_bytes());
            frame.extend([0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
            let sum = Sum::default().add(&frame[14..34]).checksum();
            frame[24..26].copy_from_slice(&sum.to_be_bytes());
        }
        frame.extend([0xc0, 1, 0x12, 0xb7]);
        frame.extend((udp_len as u16).to_be_bytes());
        frame.extend([0, 0]);
        frame.extend(Bth::new(opcode, Qpn::new(0x11), Psn::new(0xff_fffe)).as_bytes());
        frame.extend((0..headers + payload).map(|n| n as u8));
        frame.extend([0; 4]);
        let layout = layout(&frame);
        let icrc = icrc::compute(&frame, &layout);
        frame[layout.icrc()..layout.end()].copy_from_slice(&icrc.to_le_bytes());
        if udp_checksum {
            let packet = Packet::new(&frame, layout);
            let sum = packet.pseudo_header_sum().add(&frame[layout.udp()..layout.end()]).checksum();
            let at = layout.udp() + 6;
            frame[at..at + 2].copy_from_slice(&(if sum == 0 { 0xffff } else { sum }).to_be_bytes());
        }
        frame
    }

    fn layout(frame: &[u8]) -> Layout {
        match classify(frame) {
            Class::Roce(layout) => layout,
            other => panic!("{other:?}"),
        }
    }

    proptest! {
        #[test]
        fn checksums_follow_every_setter(
            v6: bool,
            udp_checksum: bool,
            corrupt: bool,
            opcode in prop::sample::select(Opcode::KNOWN),
            payload in 0usize..1024,
            addresses: [u128; 2],
            port: u16,
            qpn: u32,
            psn: u32,
            ecn: u8,
            ack: bool,
            va: u64,
            rkey: u32,
            syndrome: u8,
        ) {
            let mut bytes = frame(v6, opcode, payload, udp_checksum);
            let layout = layout(&bytes);
            if corrupt {
                bytes[layout.icrc() - 1] ^= 0x10;
            }
            let aeth = Aeth::new(Syndrome::from_wire(syndrome), Msn::new(psn ^ qpn));
            let mut rewriter = Rewriter::new(&mut bytes, layout);
            rewriter.set_ethernet(MacAddr([4; 6]), MacAddr([6; 6]));
            let [src, dst] = addresses;
            let src4 = (src as u32).to_be_bytes();
            let dst4 = (dst as u32).to_be_bytes();
            prop_assert_eq!(rewriter.set_ipv4_addresses(src4, dst4).is_ok(), !v6);
            prop_assert_eq!(rewriter.set_ipv6_addresses(src.to_be_bytes(), dst.to_be_bytes()).is_ok(), v6);
            rewriter.set_src_port(port);
            rewriter.set_ecn(ecn);
            rewriter.set_dest_qp(Qpn::new(qpn));
            rewriter.set_psn(Psn::new(psn));
            rewriter.set_ack_req(ack);
            let has_reth = rewriter.set_remote_memory(va, rkey).is_ok();
            let has_address = rewriter.set_remote_address(va).is_ok();
            let has_aeth = rewriter.set_aeth(aeth).is_ok();
            let has_deth = rewriter.set_src_qp(Qpn::new(rkey)).is_ok();
            let words = [va as u32, rkey, psn].map(u32::to_be_bytes);
            let in_payload = rewriter.set_payload_words(8, words).is_ok();
            rewriter.finish();

            // `classify` verifies the IPv4 header checksum.
            let packet = Packet::parse(&bytes).expect("still a packet");
            prop_assert_eq!(packet.verify_icrc(), !corrupt, "a wrong ICRC stays wrong");
            prop_assert_eq!(packet.verify_udp_checksum(), !(corrupt && udp_checksum));
            prop_assert_eq!(packet.udp().checksum.get() != 0, udp_checksum);
            if v6 {
                let ip = packet.ipv6().unwrap();
                prop_assert_eq!((ip.src, ip.dst), (src.to_be_bytes(), dst.to_be_bytes()));
            } else {
                let ip = packet.ipv4().unwrap();
                prop_assert_eq!((ip.src, ip.dst), (src4, dst4));
            }
            let bth = packet.bth();
            prop_assert_eq!((bth.dest_qp(), bth.psn(), bth.ack_req()), (Qpn::new(qpn), Psn::new(psn), ack));
            prop_assert_eq!(packet.udp().src_port.get(), port);
            prop_assert_eq!(packet.ecn(), ecn & 3);
            let behind_bth = u32::from_be_bytes(bytes[layout.bth() + Bth::LEN..][..4].try_into().unwrap());
            let [first, to, at, behind] = packet.transport_words();
            prop_assert_eq!((Qpn::new(to), Psn::new(at)), (bth.dest_qp(), bth.psn()));
            prop_assert_eq!([first >> 24, behind], [u32::from(bth.opcode().0), behind_bth]);
            prop_assert_eq!(packet.reth().map(|r| (r.va.get(), r.rkey.get())), has_reth.then_some((va, rkey)));
            prop_assert_eq!(has_address, packet.reth().is_some() || packet.atomic().is_some());
            prop_assert_eq!(packet.atomic().map(|atomic| atomic.va.get()), packet.atomic().map(|_| va));
            let source = packet.deth().map(crate::deth::Deth::src_qp);
            prop_assert_eq!(source, has_deth.then_some(Qpn::new(rkey)));
            prop_assert_eq!(packet.aeth().copied(), has_aeth.then_some(aeth));
            prop_assert_eq!(has_aeth, opcode.headers().contains(Headers::AETH));
            let payload = &bytes[layout.payload()..layout.icrc()];
            prop_assert_eq!(in_payload, payload.len() >= 20);
            if in_payload {
                prop_assert_eq!(&payload[8..20], words.as_flattened());
            }
        }
    }

    #[test]
    fn set_remote_address_changes_only_the_address() {
        for opcode in [Opcode::RC_COMPARE_SWAP, Opcode::RC_FETCH_ADD, Opcode::RC_READ_REQUEST] {
            let mut bytes = frame(false, opcode, 0, true);
            let layout = layout(&bytes);
            let mut expected = bytes.clone();
            let at = layout.bth() + Bth::LEN;
            expected[at..at + 8].copy_from_slice(&0x7000_0000_1234_5678_u64.to_be_bytes());
            let mut rewriter = Rewriter::new(&mut bytes, layout);
            assert_eq!(rewriter.set_remote_address(0x7000_0000_1234_5678), Ok(()));
            rewriter.finish();
            let packet = Packet::new(&bytes, layout);
            assert!(packet.verify_icrc() && packet.verify_udp_checksum());
            let sum = layout.udp() + 6;
            let covered = [14..sum, sum + 2..layout.icrc()];
            assert!(covered.into_iter().all(|range| bytes[range.clone()] == expected[range]), "{opcode:?}");
        }
        let mut bytes = frame(false, Opcode::RC_ACKNOWLEDGE, 0, false);
        let layout = layout(&bytes);
        assert_eq!(Rewriter::new(&mut bytes, layout).set_remote_address(1), Err(NoSuchHeader));
    }

    #[test]
    fn fields_without_a_setter_call_are_unchanged() {
        let mut bytes = frame(false, Opcode::RC_WRITE_ONLY, 16, false);
        let before = bytes.clone();
        let layout = layout(&bytes);
        let bth = Bth::mut_from_bytes(&mut bytes[layout.bth()..layout.bth() + Bth::LEN]).unwrap();
        bth.set_becn(true);
        let mut rewriter = Rewriter::new(&mut bytes, layout);
        rewriter.set_dest_qp(Qpn::new(0x77));
        rewriter.set_dest_qp(Qpn::new(0x11));
        rewriter.set_psn(Psn::new(0xff_fffe));
        rewriter.finish();
        let packet = Packet::new(&bytes, layout);
        assert!(packet.bth().becn() && packet.verify_icrc());
        let mut expected = before;
        expected[layout.bth() + Bth::MASKED_BYTE] |= 0x40;
        assert_eq!(bytes, expected, "setting equal values changes nothing");
        assert_eq!(Aeth::new(Syndrome::Ack(Credit::UNLIMITED), Msn::ZERO).as_bytes(), [0x1f, 0, 0, 0]);
    }
}
