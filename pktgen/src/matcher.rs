//! Recognizes intact packets without parsing them. All bytes that are the same in every packet of the stream
//! are compared with the template, and the ICRC is computed from the bytes that differ: a CRC is linear, so
//! the constant part is known, and only words that differ are multiplied. A packet whose ICRC is right by
//! that is right in all bytes that the ICRC covers. A packet that a router has changed, or that was damaged,
//! does not match, and has to be parsed.

use crate::message::{PacketTemplate, Va};
use crate::template::{Address, layout};
use rocev2::ethernet::Ethernet;
use rocev2::icrc::{Changes, Weight};
use rocev2::ipv4::Ipv4;
use rocev2::template::{BLOCK, Template, differences};
use rocev2::udp::Udp;
use rocev2::{Bth, Layout};

const UDP: usize = Ethernet::LEN + Ipv4::LEN;
const BTH: usize = UDP + Udp::LEN;
const QPN_WORD: usize = BTH + Bth::DEST_QP_WORD;
const PSN_WORD: usize = QPN_WORD + 4;
/// Offset of the lower half of the virtual address, in requests that have one
const VA_WORD: usize = BTH + Bth::LEN + 4;
/// Bytes up to the end of that word
const HEAD: usize = VA_WORD + 4;
/// Offsets of the payload, where time stamps are
const PAYLOAD: usize = BTH + Bth::LEN;
const PAYLOAD_OF_WRITE: usize = PAYLOAD + 16;

/// A block of the template without the bits that differ, and a mask of those that are the same in all
/// packets.
#[derive(Clone, Copy)]
struct Block {
    bytes: [u8; BLOCK],
    mask: [u8; BLOCK],
}

impl Block {
    #[inline]
    fn matches(&self, frame: &[u8; BLOCK]) -> bool {
        let differ = differences(frame, &self.bytes, &self.mask);
        // One comparison at the end: most of the time no word differs.
        differ[0] | differ[1] | differ[2] | differ[3] == 0
    }
}

/// Position of the time stamp.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stamp {
    Payload,
    PayloadOfWrite,
}

/// Template that received packets of a stream are compared with.
pub(crate) struct FrameMatcher {
    len: usize,
    blocks: Box<[Block]>,
    /// Last bytes, some of which may also be in the block before
    tail: Block,
    /// The frame with all fields that differ set to 0
    zeroed: Template,
    psn_weight: Weight,
    /// [`Weight::NONE`] if all packets have the same virtual address, or none
    va_weight: Weight,
    stamp: Option<Stamp>,
    /// Last time stamp, and its contribution to the ICRC: the packets of a burst have one time stamp
    last_stamp: (u64, u32),
    /// Layout of the frame
    pub(crate) layout: Layout,
}

/// Fields that differ from packet to packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VaryingFields {
    /// Destination queue pair number
    pub(crate) qpn: u32,
    /// Word with the PSN and the AckReq bit
    pub(crate) psn: u32,
    /// Time stamp
    pub(crate) stamp: Option<u64>,
    src_port: u16,
    /// The packet's ICRC without the contributions of all fields but the destination
    icrc_rest: u32,
}

impl VaryingFields {
    /// Returns whether the ICRC is right, and the source port is that of the queue pair's flow. `effect` is
    /// the contribution of its address to the template's ICRC.
    #[inline]
    pub(crate) fn is_intact(&self, to: Address, effect: u32) -> bool {
        self.icrc_rest == effect && self.src_port == to.src_port()
    }
}

impl FrameMatcher {
    /// Returns `None` if packets are not over IPv4, or differ in more fields than are handled here.
    pub(crate) fn new(packet_template: &PacketTemplate) -> Option<Self> {
        let template = &packet_template.template;
        let bytes = &template.bytes;
        let (va_weight, va_word) = match packet_template.va {
            Va::Fixed => (Weight::NONE, None),
            Va::Low(VA_WORD, weight) => (weight, Some((VA_WORD, 4))),
            Va::Low(..) | Va::Whole(_) => return None,
        };
        let stamp = match packet_template.stamp {
            None => None,
            Some(PAYLOAD) => Some(Stamp::Payload),
            Some(PAYLOAD_OF_WRITE) => Some(Stamp::PayloadOfWrite),
            Some(_) => return None,
        };
        let layout = layout(bytes);
        if layout.is_ipv6() || layout.bth() != BTH || bytes.len() < HEAD + 4 || layout.end() != bytes.len() {
            return None;
        }
        let mut mask = vec![0xff; bytes.len()];
        // MAC addresses belong to the network. The UDP source port, the queue pair number (behind the byte
        // that the ICRC excludes), the PSN, and the other fields that differ are checked by the ICRC, which
        // is at the end.
        let varying_fields = [(0, 12), (UDP, 2), (QPN_WORD, 8), (layout.icrc(), 4)];
        for (at, len) in
            varying_fields.into_iter().chain(va_word).chain(packet_template.stamp.map(|at| (at, 8)))
        {
            mask[at..at + len].fill(0);
        }
        let block = |bytes: &[u8; BLOCK], mask: &[u8; BLOCK]| Block {
            bytes: core::array::from_fn(|n| bytes[n] & mask[n]),
            mask: *mask,
        };
        let blocks =
            bytes.as_chunks().0.iter().zip(mask.as_chunks().0).map(|(bytes, mask)| block(bytes, mask));
        Some(Self {
            len: bytes.len(),
            blocks: blocks.collect(),
            tail: block(bytes.last_chunk()?, mask.last_chunk()?),
            zeroed: template.zeroed,
            psn_weight: template.zeroed.weight(PSN_WORD),
            va_weight,
            stamp,
            last_stamp: (0, 0),
            layout,
        })
    }

    /// Returns the fields that differ of a packet that matches the template in all others.
    #[inline]
    pub(crate) fn varying_fields(&mut self, frame: &[u8]) -> Option<VaryingFields> {
        let head: &[u8; HEAD] = frame.first_chunk()?;
        if frame.len() != self.len || !self.matches(frame) {
            return None;
        }
        let word = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let (qpn, psn) = (word(QPN_WORD) & 0xff_ffff, word(PSN_WORD));
        let mut changes = Changes::new();
        changes.add_weighted(psn.swap_bytes(), self.psn_weight);
        changes.add_weighted(word(VA_WORD).swap_bytes(), self.va_weight);
        let mut icrc_rest = self.zeroed.icrc() ^ u32::from_le_bytes(*frame.last_chunk()?);
        let stamp = match self.stamp {
            None => None,
            Some(Stamp::Payload) => Some((PAYLOAD, frame.get(PAYLOAD..PAYLOAD + 8)?)),
            Some(Stamp::PayloadOfWrite) => {
                Some((PAYLOAD_OF_WRITE, frame.get(PAYLOAD_OF_WRITE..PAYLOAD_OF_WRITE + 8)?))
            }
        };
        let stamp = match stamp {
            None => None,
            Some((at, bytes)) => {
                let value = u64::from_be_bytes(*bytes.first_chunk()?);
                if value != self.last_stamp.0 {
                    self.last_stamp = (value, self.zeroed.effect_of_u64(at, value));
                }
                icrc_rest ^= self.last_stamp.1;
                Some(value)
            }
        };
        let src_port = u16::from_be_bytes([head[UDP], head[UDP + 1]]);
        Some(VaryingFields { qpn, psn, stamp, src_port, icrc_rest: icrc_rest ^ changes.effect() })
    }

    #[inline]
    fn matches(&self, frame: &[u8]) -> bool {
        let mut blocks = frame.as_chunks().0.iter().zip(&self.blocks);
        blocks.all(|(frame, block)| block.matches(frame))
            && frame.last_chunk().is_some_and(|tail| self.tail.matches(tail))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::function::tests::stream;
    use crate::message::messages;
    use crate::profile::{Choice, RemoteMemory, Verb};
    use proptest::prelude::*;
    use rocev2::{Class, Packet, classify};
    use switch::Nanos;

    proptest! {
        /// Intact packets are recognized, and none with a flipped bit is, but for bits that neither the ICRC
        /// nor the mask covers.
        #[test]
        fn recognized_packets_are_those_that_parsing_finds_intact(
            verb in prop::sample::select(vec![Verb::Write, Verb::Send, Verb::Read, Verb::FetchAdd]),
            size in 8u32..300,
            slots in 1u32..9,
            qpn in 0u32..1 << 24,
            psn in 0u32..1 << 24,
            ack: bool,
            now in 1u64..,
        ) {
            let mut stream = stream(verb, 0x10, 1);
            if !stream.sizes.is_empty() {
                stream.sizes = vec![size];
            }
            stream.memory = RemoteMemory { slots, choice: Choice::RoundRobin, ..stream.memory };
            let mut all = messages(&stream);
            let packet_template = &mut all[0].first;
            let mut matcher = FrameMatcher::new(packet_template).expect("over IPv4, and of one packet");
            packet_template.stamp(Nanos(now));
            let mut frame = packet_template.template.bytes.to_vec();
            let to = Address::new(qpn);
            let mut fields = packet_template.template.begin(&mut frame, to, psn, ack);
            packet_template.write_va(&mut fields, stream.memory.va + u64::from(slots - 1) * stream.slot_len());
            fields.finish();
            let recognize = |matcher: &mut FrameMatcher, frame: &[u8]| {
                matcher.varying_fields(frame).filter(|fields| {
                    let to = Address::new(fields.qpn);
                    fields.is_intact(to, packet_template.template.effect_of_address(to))
                })
            };
            let recognized = recognize(&mut matcher, &frame).expect("intact");
            prop_assert_eq!((recognized.qpn, recognized.psn), (qpn, psn | u32::from(ack) << 31));
            prop_assert_eq!(recognized.stamp, stream.stamp.then_some(now));
            prop_assert!(Packet::parse(&frame).unwrap().verify_icrc());
            let mut unchecked_bits = 0;
            for at in 0..frame.len() {
                for bit in 0..8 {
                    let mut other = frame.clone();
                    other[at] ^= 1 << bit;
                    let parsed = classify(&other);
                    if let Some(other_recognized) = recognize(&mut matcher, &other) {
                        prop_assert_eq!(other_recognized, recognized, "bit {} of byte {}", bit, at);
                        prop_assert!(matches!(parsed, Class::Roce(layout) if layout == matcher.layout));
                        prop_assert!(Packet::new(&other, matcher.layout).verify_icrc());
                        unchecked_bits += 1;
                    }
                }
            }
            // The 12 bytes of MAC addresses, and the BTH byte with the FECN and BECN bits
            prop_assert_eq!(unchecked_bits, 13 * 8);
            for other in [&frame[..frame.len() - 1], &[&frame[..], &[0]].concat(), &[]] {
                prop_assert_eq!(matcher.varying_fields(other), None);
            }
        }
    }
}
