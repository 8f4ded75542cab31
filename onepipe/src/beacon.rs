//! 1Pipe beacons of one sender to one receiver (1Pipe, section 4.2): build and recognise them without
//! parsing.
//!
//! All beacons of one sender to one receiver differ only in PSN, timestamps, IPv4 identification and
//! checksums. The offset of every header is therefore known in advance, and one masked comparison of all
//! other bytes replaces parsing ([`ExpectedBeacon`]). The ICRC is linear (a CRC): the contribution of the
//! constant bytes is computed once, and that of each changing field is added with one multiplication
//! ([`rocev2::template`]). For beacons that carry the same times to many receivers, the contribution of the
//! 1Pipe header is computed once as well ([`BeaconHeader`], [`Template`]).

use crate::header::OnePipe;
use rocev2::checksum;
use rocev2::deth::Deth;
use rocev2::ethernet::Ethernet;
use rocev2::icrc::{self, Changes, Weight};
use rocev2::ipv4::Ipv4;
use rocev2::ipv6::Ipv6;
use rocev2::reth::Reth;
use rocev2::template::{self, BLOCK};
use rocev2::udp::Udp;
use rocev2::{Bth, Opcode, Psn, Qpn};
use rocev2::{ICRC_LEN, Layout, Packet};
use zerocopy::{FromBytes, IntoBytes};

/// Returns the offset of the BTH in a frame without VLAN tags, IPv4 options and IPv6 extension headers.
const fn bth_offset(v6: bool) -> usize {
    Ethernet::LEN + if v6 { Ipv6::LEN } else { Ipv4::LEN } + Udp::LEN
}

/// Returns the offset of the word that holds the PSN.
const fn psn_offset(v6: bool) -> usize {
    bth_offset(v6) + Bth::PSN_WORD
}

/// Returns the offset of the 1Pipe header, in a UD SEND or (`write`) in an RDMA WRITE.
const fn onepipe_offset(v6: bool, write: bool) -> usize {
    bth_offset(v6) + Bth::LEN + if write { size_of::<Reth>() } else { size_of::<Deth>() }
}

/// Returns the offset of the ICRC.
const fn icrc_offset(v6: bool, write: bool) -> usize {
    onepipe_offset(v6, write) + OnePipe::LEN
}

/// Returns the length of the frame, in bytes.
const fn frame_len(v6: bool, write: bool) -> usize {
    icrc_offset(v6, write) + ICRC_LEN
}

/// Length of the longest beacon, rounded up to whole blocks, in bytes
const MAX_LEN: usize = frame_len(true, true).next_multiple_of(BLOCK);
/// Offset of the IPv4 identification, which some senders increment with each packet, and of the checksum that
/// covers it
const IPV4_ID: usize = Ethernet::LEN + 4;
const IPV4_CHECKSUM: usize = Ethernet::LEN + 10;

/// Returns whether a frame is longer than any beacon.
#[inline]
pub const fn is_longer(frame: &[u8]) -> bool {
    frame.len() > frame_len(true, true)
}

/// Returns the destination queue pair of a frame if its length is that of a beacon, else `None`. The result
/// is meaningless if the frame is not a beacon.
#[inline]
pub fn dest_qp(frame: &[u8]) -> Option<Qpn> {
    const V4: [usize; 2] = [frame_len(false, false), frame_len(false, true)];
    const V6: [usize; 2] = [frame_len(true, false), frame_len(true, true)];
    let at = match frame.len() {
        len if len == V4[0] || len == V4[1] => const { bth_offset(false) + Bth::DEST_QP_WORD },
        len if len == V6[0] || len == V6[1] => const { bth_offset(true) + Bth::DEST_QP_WORD },
        _ => return None,
    };
    let word = frame[at..].first_chunk().expect("a frame of this length");
    Some(Qpn::new(u32::from_be_bytes(*word) & 0xff_ffff))
}

/// Returns identification and checksum of an IPv4 header as one word.
#[inline]
fn id_and_checksum(frame: &[u8]) -> u32 {
    let header: &[u8; Ipv4::LEN] = frame[Ethernet::LEN..].first_chunk().expect("an IPv4 header");
    let (id, checksum) = (IPV4_ID - Ethernet::LEN, IPV4_CHECKSUM - Ethernet::LEN);
    u32::from_le_bytes([header[id], header[id + 1], header[checksum], header[checksum + 1]])
}

/// Byte mask: 0xff where all beacons of a sender to a receiver are equal, 0 where they differ
type Mask = [u8; MAX_LEN];

const fn mask(v6: bool, write: bool) -> Mask {
    let mut mask = [0; MAX_LEN];
    let mut at = 0;
    while at < icrc_offset(v6, write) {
        let header = onepipe_offset(v6, write);
        let varies_in_ipv4 = !v6 && (at >> 1 == IPV4_ID >> 1 || at >> 1 == IPV4_CHECKSUM >> 1);
        let psn = psn_offset(v6) < at && at < psn_offset(v6) + 4;
        let times = header <= at && at < header + OnePipe::OPCODE;
        mask[at] = if varies_in_ipv4 || psn || times { 0 } else { 0xff };
        at += 1;
    }
    mask
}

static MASKS: [[Mask; 2]; 2] =
    [[mask(false, false), mask(false, true)], [mask(true, false), mask(true, true)]];
const _: () = assert!(IPV4_ID.is_multiple_of(2) && IPV4_CHECKSUM.is_multiple_of(2));

/// Returns the PSN's word in ICRC byte order, with `AckReq` and the reserved bits clear.
#[inline]
const fn psn_word(psn: Psn) -> u32 {
    psn.get().swap_bytes()
}

/// The 1Pipe header of beacons that are sent at one moment, with PSN 0, and its contribution to the ICRC. One
/// value serves all receivers.
#[derive(Clone, Copy, Debug)]
pub struct BeaconHeader {
    wire: [u8; OnePipe::LEN],
    /// XOR difference of the ICRC between a frame with this header and the same frame with zeros in its place
    effect: u32,
}

impl BeaconHeader {
    /// Prepares `header`, whose PSN has to be 0.
    #[inline]
    pub fn new(header: &OnePipe) -> Self {
        let wire = *header.as_bytes().first_chunk().expect("a header");
        Self { wire, effect: icrc::end(0, OnePipe::LEN + 4, &wire) }
    }
}

/// The constant part of all beacons of one sender to one receiver.
#[derive(Clone, Copy, Debug)]
pub struct Template {
    v6: bool,
    write: bool,
    /// The frame with both PSNs and the 1Pipe header set to zero
    zeroed: template::Template,
    /// Weight of a PSN that is in both headers
    psn_weight: Weight,
    /// The byte beside the PSN in the BTH: `AckReq` and reserved bits
    ack: u8,
}

impl Template {
    /// Makes a template of the frame `beacon`, whose ICRC is not checked. Returns `None` if the payload is
    /// not exactly a 1Pipe header, or if the frame has anything that beacons do not use: VLAN tags, IP
    /// options, a UDP checksum.
    #[inline]
    pub fn new(beacon: &[u8], layout: Layout) -> Option<Self> {
        let write = match layout.opcode() {
            Opcode::UD_SEND_ONLY => false,
            Opcode::UC_WRITE_ONLY => true,
            _ => return None,
        };
        let v6 = layout.is_ipv6();
        let plain = layout.l3() == Ethernet::LEN
            && layout.bth() == bth_offset(v6)
            && layout.icrc() == icrc_offset(v6, write)
            && beacon.len() == layout.end();
        let packet = Packet::new(beacon, layout);
        if !plain || packet.payload().len() != OnePipe::LEN || packet.udp().checksum.get() != 0 {
            return None;
        }
        let changing = icrc::end(
            psn_word(packet.bth().psn()),
            icrc_offset(v6, write) - psn_offset(v6) - 4,
            packet.payload().first_chunk()?,
        );
        let mut zeroed = template::Template::new(beacon, &layout);
        zeroed.add_effect(changing);
        let psn_in_header = onepipe_offset(v6, write) + OnePipe::PSN_WORD;
        let psn_weight = zeroed.weight(psn_offset(v6)).and(zeroed.weight(psn_in_header));
        Some(Self { v6, write, zeroed, psn_weight, ack: beacon[psn_offset(v6)] })
    }

    /// Writes a beacon with this PSN in both headers over `frame`, which has to be the frame that this
    /// template was made of, or an earlier beacon of the same template.
    ///
    /// # Panics
    /// If `frame` is shorter than the template's beacon.
    #[inline]
    pub fn fill(&self, frame: &mut [u8], psn_number: Psn, contents: &BeaconHeader) {
        // Written without `Fields`: one bounds check covers the header and the ICRC (74 instructions, not 83).
        let at = psn_offset(self.v6);
        let word = u32::from(self.ack) << 24 | psn_number.get();
        let psn_field = frame[at..].first_chunk_mut::<4>().expect("frame shorter than the template");
        *psn_field = word.to_be_bytes();
        let at = onepipe_offset(self.v6, self.write);
        let end = frame[at..].first_chunk_mut::<{ OnePipe::LEN + ICRC_LEN }>();
        let (field, icrc) = end.expect("frame shorter than the template").split_at_mut(OnePipe::LEN);
        field.copy_from_slice(&contents.wire);
        field[OnePipe::PSN_WORD + 1..][..3].copy_from_slice(&psn_number.to_wire());
        let mut changes = Changes::new();
        changes.add_weighted(psn_word(psn_number), self.psn_weight);
        icrc.copy_from_slice(&(self.zeroed.icrc() ^ contents.effect ^ changes.effect()).to_le_bytes());
    }
}

/// The beacons expected of one neighbour: equal to one beacon that was checked completely, but for the fields
/// that change.
#[derive(Clone, Debug)]
pub struct ExpectedBeacon {
    template: Template,
    layout: Layout,
    /// Identification and checksum of the IPv4 header of the checked beacon
    id_and_checksum: u32,
    /// The checked beacon, with zeros where the mask is zero
    expected: [u8; MAX_LEN],
}

impl ExpectedBeacon {
    /// Expects beacons like `beacon`, whose ICRC the caller has verified. Returns `None` if it has no
    /// [`Template`].
    pub fn new(beacon: &[u8], layout: Layout) -> Option<Self> {
        let template = Template::new(beacon, layout)?;
        let mut expected = [0; MAX_LEN];
        let mask = &MASKS[usize::from(template.v6)][usize::from(template.write)];
        for ((expected, byte), mask) in expected.iter_mut().zip(beacon).zip(mask) {
            *expected = byte & mask;
        }
        let id_and_checksum = if template.v6 { 0 } else { id_and_checksum(beacon) };
        Some(Self { template, layout, id_and_checksum, expected })
    }

    /// Returns the header offsets of these beacons.
    #[inline]
    pub const fn layout(&self) -> Layout {
        self.layout
    }

    /// Returns the 1Pipe header of a frame if the frame is a beacon of the same sender to the same receiver.
    /// All bytes that [`classify`](rocev2::classify) looks at are then equal to those of the checked beacon,
    /// so that it would find the same layout, and the ICRC is right. `None` means only that the frame has to
    /// be parsed and checked in full.
    #[inline]
    pub fn read<'a>(&self, frame: &'a [u8]) -> Option<&'a OnePipe> {
        match (self.template.v6, self.template.write) {
            (false, false) => self.read_as::<false, false>(frame),
            (false, true) => self.read_as::<false, true>(frame),
            (true, false) => self.read_as::<true, false>(frame),
            (true, true) => self.read_as::<true, true>(frame),
        }
    }

    #[expect(clippy::inline_always, reason = "constant offsets need no bounds checks")]
    #[inline(always)]
    fn read_as<'a, const V6: bool, const WRITE: bool>(&self, frame: &'a [u8]) -> Option<&'a OnePipe> {
        let len = const { frame_len(V6, WRITE) };
        if frame.len() != len {
            return None;
        }
        let mask = &MASKS[usize::from(V6)][usize::from(WRITE)];
        // The last block overlaps the one before it.
        let mut differences = [0u64; BLOCK / 8];
        for n in 0..len.div_ceil(BLOCK) {
            let at = (BLOCK * n).min(len - BLOCK);
            let block = |bytes: &[u8]| *bytes[at..].first_chunk::<BLOCK>().expect("a block");
            let found = template::differences(&block(frame), &block(&self.expected), &block(mask));
            for n in 0..BLOCK / 8 {
                differences[n] |= found[n];
            }
        }
        if differences != [0; BLOCK / 8] {
            return None;
        }
        let word = |at: usize| u32::from_le_bytes(*frame[at..].first_chunk().expect("four bytes"));
        let (end, at) = const { (icrc_offset(V6, WRITE), onepipe_offset(V6, WRITE)) };
        let wire = frame[at..].first_chunk::<{ OnePipe::LEN }>().expect("a header");
        // The comparison above covers AckReq and the reserved bits beside the PSN; the template's ICRC
        // includes them.
        let psn_word = word(psn_offset(V6)) & 0xffff_ff00;
        let mut right = self.template.zeroed.icrc() ^ icrc::end(psn_word, end - psn_offset(V6) - 4, wire);
        if !V6 && id_and_checksum(frame) != self.id_and_checksum {
            // Some senders increment the identification with each packet.
            if !checksum::is_valid(frame[Ethernet::LEN..].first_chunk().expect("an IPv4 header")) {
                return None;
            }
            let mut changes = Changes::new();
            changes.add((id_and_checksum(frame) ^ self.id_and_checksum) & 0xffff, icrc::power(end - IPV4_ID));
            right ^= changes.effect();
        }
        if right != word(end) {
            return None;
        }
        OnePipe::ref_from_bytes(wire).ok()
    }
}

#[cfg(test)]
mod tests;
