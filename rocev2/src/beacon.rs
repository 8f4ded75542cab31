//! 1Pipe's beacons of one sender to one receiver: all the same but for PSN, times, and what counts packets (1Pipe, section 4.2).
//!
//! So the place of every header is known before a beacon has come, and one comparison of all other bytes says whether it is
//! where it should be ([`Known`]). The ICRC is linear: that of the bytes that never change is worked out once, and those that
//! do are added, a multiplication each; for all beacons that say the same at once, where there are many ([`Said`],
//! [`Template`]).

use crate::checksum;
use crate::deth::Deth;
use crate::ethernet::Ethernet;
use crate::icrc::{self, Changes};
use crate::ipv4::Ipv4;
use crate::ipv6::Ipv6;
use crate::onepipe::OnePipe;
use crate::packet::{ICRC_LEN, Layout, Packet};
use crate::reth::Reth;
use crate::udp::Udp;
use crate::{Bth, Opcode, Psn, Qpn};
use zerocopy::{FromBytes, IntoBytes};

/// Where the BTH begins, in a frame without tags, IPv4 options and IPv6 extension headers
const fn bth(v6: bool) -> usize {
    Ethernet::LEN + if v6 { Ipv6::LEN } else { Ipv4::LEN } + Udp::LEN
}

/// Where its PSN's word begins
const fn psn(v6: bool) -> usize {
    bth(v6) + Bth::PSN_WORD
}

/// Where the 1Pipe header begins, of a datagram or an RDMA WRITE
const fn header(v6: bool, write: bool) -> usize {
    bth(v6) + Bth::LEN + if write { size_of::<Reth>() } else { size_of::<Deth>() }
}

/// Where the ICRC begins
const fn icrc(v6: bool, write: bool) -> usize {
    header(v6, write) + OnePipe::LEN
}

/// Bytes of the frame
const fn len(v6: bool, write: bool) -> usize {
    icrc(v6, write) + ICRC_LEN
}

/// Bytes of the longest, in whole blocks
const MAX_LEN: usize = len(true, true).next_multiple_of(BLOCK);
/// Bytes that are compared at once
const BLOCK: usize = 32;
/// Where the identification of an IPv4 packet stands, which counts packets, and the checksum that covers it
const IPV4_ID: usize = Ethernet::LEN + 4;
const IPV4_CHECKSUM: usize = Ethernet::LEN + 10;

/// Whether a frame is longer than any beacon.
#[inline]
pub const fn is_longer(frame: &[u8]) -> bool {
    frame.len() > len(true, true)
}

/// The destination queue pair of a frame, if it is a beacon; something else is `None` if it has another length, and any number
/// otherwise.
#[inline]
pub fn dest_qp(frame: &[u8]) -> Option<Qpn> {
    const V4: [usize; 2] = [len(false, false), len(false, true)];
    const V6: [usize; 2] = [len(true, false), len(true, true)];
    let at = match frame.len() {
        len if len == V4[0] || len == V4[1] => const { bth(false) + Bth::DEST_QP_WORD },
        len if len == V6[0] || len == V6[1] => const { bth(true) + Bth::DEST_QP_WORD },
        _ => return None,
    };
    let word = frame[at..].first_chunk().expect("a frame of this length");
    Some(Qpn::new(u32::from_be_bytes(*word) & 0xff_ffff))
}

/// Identification and checksum of an IPv4 header
#[inline]
fn counted(frame: &[u8]) -> u32 {
    let header: &[u8; Ipv4::LEN] = frame[Ethernet::LEN..].first_chunk().expect("an IPv4 header");
    let (id, checksum) = (IPV4_ID - Ethernet::LEN, IPV4_CHECKSUM - Ethernet::LEN);
    u32::from_le_bytes([header[id], header[id + 1], header[checksum], header[checksum + 1]])
}

/// Ones where beacons are alike
type Mask = [u8; MAX_LEN];

const fn mask(v6: bool, write: bool) -> Mask {
    let mut mask = [0; MAX_LEN];
    let mut at = 0;
    while at < icrc(v6, write) {
        let header = header(v6, write);
        let counts = !v6 && (at >> 1 == IPV4_ID >> 1 || at >> 1 == IPV4_CHECKSUM >> 1);
        let psn = psn(v6) < at && at < psn(v6) + 4;
        let times = header <= at && at < header + OnePipe::OPCODE;
        mask[at] = if counts || psn || times { 0 } else { 0xff };
        at += 1;
    }
    mask
}

static MASKS: [[Mask; 2]; 2] =
    [[mask(false, false), mask(false, true)], [mask(true, false), mask(true, true)]];
const _: () = assert!(IPV4_ID.is_multiple_of(2) && IPV4_CHECKSUM.is_multiple_of(2));

/// The PSN's word in the order of the ICRC, without `AckReq` and reserved bits
#[inline]
const fn psn_word(psn: Psn) -> u32 {
    psn.get().swap_bytes()
}

/// What beacons of any links say at one moment: a 1Pipe header without a PSN.
#[derive(Clone, Copy, Debug)]
pub struct Said {
    wire: [u8; OnePipe::LEN],
    /// What it changes the ICRC by, if it is in place of zeros
    effect: u32,
}

impl Said {
    /// This header's, whose PSN is 0.
    #[inline]
    pub fn new(header: &OnePipe) -> Self {
        let wire = *header.as_bytes().first_chunk().expect("a header");
        Self { wire, effect: icrc::end(0, OnePipe::LEN + 4, &wire) }
    }
}

/// What is the same in all beacons of a sender to a receiver.
#[derive(Clone, Copy, Debug)]
pub struct Template {
    v6: bool,
    write: bool,
    /// The ICRC if PSNs and header were zeros
    icrc: u32,
    /// What a PSN that is in both headers is multiplied by
    psn_power: u32,
    /// `AckReq` and what is reserved beside the PSN
    ack: u8,
}

impl Template {
    /// That of the frame `beacon`, whatever its ICRC. `None` if the payload is anything but a 1Pipe header, or if there is
    /// anything else that beacons have no use for: tags, options, a UDP checksum.
    #[inline]
    pub fn new(beacon: &[u8], layout: Layout) -> Option<Self> {
        let write = match layout.opcode() {
            Opcode::UD_SEND_ONLY => false,
            Opcode::UC_WRITE_ONLY => true,
            _ => return None,
        };
        let v6 = layout.is_ipv6();
        let plain = layout.l3() == Ethernet::LEN
            && layout.bth() == bth(v6)
            && layout.icrc() == icrc(v6, write)
            && beacon.len() == layout.end();
        let packet = Packet::new(beacon, layout);
        if !plain || packet.payload().len() != OnePipe::LEN || packet.udp().checksum.get() != 0 {
            return None;
        }
        let changing = icrc::end(
            psn_word(packet.bth().psn()),
            icrc(v6, write) - psn(v6) - 4,
            packet.payload().first_chunk()?,
        );
        let psn_power =
            icrc::power(icrc(v6, write) - psn(v6)) ^ icrc::power(OnePipe::LEN - OnePipe::PSN_WORD);
        let icrc = icrc::compute(beacon, &layout) ^ changing;
        Some(Self { v6, write, icrc, psn_power, ack: beacon[psn(v6)] })
    }

    /// Writes a beacon with this PSN in both headers into the frame that this was made from, or any that differs from it as
    /// beacons do.
    #[inline]
    pub fn fill(&self, frame: &mut [u8], psn_number: Psn, said: &Said) {
        let at = psn(self.v6);
        let word = u32::from(self.ack) << 24 | psn_number.get();
        let psn_place = frame[at..].first_chunk_mut::<4>().expect("a frame that the template is of");
        *psn_place = word.to_be_bytes();
        let at = header(self.v6, self.write);
        let end = frame[at..].first_chunk_mut::<{ OnePipe::LEN + ICRC_LEN }>();
        let (place, icrc) = end.expect("a frame that the template is of").split_at_mut(OnePipe::LEN);
        place.copy_from_slice(&said.wire);
        place[OnePipe::PSN_WORD + 1..][..3].copy_from_slice(&psn_number.to_wire());
        let mut changes = Changes::new();
        changes.add(psn_word(psn_number), self.psn_power);
        icrc.copy_from_slice(&(self.icrc ^ said.effect ^ changes.effect()).to_le_bytes());
    }
}

/// The beacons that are expected of a neighbour: like one that was checked in every respect.
#[derive(Clone, Debug)]
pub struct Known {
    template: Template,
    layout: Layout,
    /// Identification and checksum of its IPv4 header
    counted: u32,
    /// That one, with zeros where others may differ
    like: [u8; MAX_LEN],
}

impl Known {
    /// Beacons like this one, whose ICRC is right. `None` if they have no [`Template`].
    pub fn new(beacon: &[u8], layout: Layout) -> Option<Self> {
        let template = Template::new(beacon, layout)?;
        let mut like = [0; MAX_LEN];
        for ((like, byte), mask) in like.iter_mut().zip(beacon).zip(template.mask()) {
            *like = byte & mask;
        }
        let counted = if template.v6 { 0 } else { counted(beacon) };
        Some(Self { template, layout, counted, like })
    }

    /// Where their headers lie
    #[inline]
    pub const fn layout(&self) -> Layout {
        self.layout
    }

    /// The header of a beacon of the same sender to the same receiver: all that [`classify`](crate::classify) looks at is what it
    /// was, so it would find the same layout, and the ICRC is right. `None` says nothing of a frame.
    #[inline]
    pub fn read<'a>(&self, frame: &'a [u8]) -> Option<&'a OnePipe> {
        match (self.template.v6, self.template.write) {
            (false, false) => self.read_as::<false, false>(frame),
            (false, true) => self.read_as::<false, true>(frame),
            (true, false) => self.read_as::<true, false>(frame),
            (true, true) => self.read_as::<true, true>(frame),
        }
    }

    #[expect(clippy::inline_always, reason = "offsets that are known when it is compiled need no checks")]
    #[inline(always)]
    fn read_as<'a, const V6: bool, const WRITE: bool>(&self, frame: &'a [u8]) -> Option<&'a OnePipe> {
        let len = const { len(V6, WRITE) };
        if frame.len() != len {
            return None;
        }
        let mask = &MASKS[usize::from(V6)][usize::from(WRITE)];
        // The last block overlaps the one before.
        let mut unlike = [0u64; BLOCK / 8];
        for n in 0..len.div_ceil(BLOCK) {
            let at = (BLOCK * n).min(len - BLOCK);
            let words = |bytes: &[u8]| -> [u64; BLOCK / 8] {
                zerocopy::transmute!(*bytes[at..].first_chunk::<BLOCK>().expect("a block"))
            };
            let (frame, like, mask) = (words(frame), words(&self.like), words(mask));
            for n in 0..BLOCK / 8 {
                unlike[n] |= (frame[n] & mask[n]) ^ like[n];
            }
        }
        if unlike != [0; BLOCK / 8] {
            return None;
        }
        let word = |at: usize| u32::from_le_bytes(*frame[at..].first_chunk().expect("four bytes"));
        let (end, at) = const { (icrc(V6, WRITE), header(V6, WRITE)) };
        let wire = frame[at..].first_chunk::<{ OnePipe::LEN }>().expect("a header");
        // AckReq and what is reserved beside the PSN were compared, and are in the template's ICRC.
        let psn_word = word(psn(V6)) & 0xffff_ff00;
        let mut right = self.template.icrc ^ icrc::end(psn_word, end - psn(V6) - 4, wire);
        if !V6 && counted(frame) != self.counted {
            // Some senders count their packets.
            if !checksum::is_right(frame[Ethernet::LEN..].first_chunk().expect("an IPv4 header")) {
                return None;
            }
            let mut changes = Changes::new();
            changes.add((counted(frame) ^ self.counted) & 0xffff, icrc::power(end - IPV4_ID));
            right ^= changes.effect();
        }
        if right != word(end) {
            return None;
        }
        OnePipe::ref_from_bytes(wire).ok()
    }
}

impl Template {
    #[inline]
    fn mask(&self) -> &'static Mask {
        &MASKS[usize::from(self.v6)][usize::from(self.write)]
    }
}

#[cfg(test)]
mod tests;
