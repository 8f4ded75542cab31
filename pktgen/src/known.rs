//! Packets that came as they were sent, known without parsing them: all that does not change from one packet of the stream to the
//! next is compared with the template, and what does change has to make up for the rest of the ICRC. A CRC is linear, so the
//! constant part is known, and only words that differ are multiplied; a packet whose ICRC is right by that is right in all
//! bytes that the ICRC covers. Whatever a router, or chance, has changed makes it another packet, which is to be parsed.

use crate::message::{Part, Va};
use crate::template::{Address, layout};
use rocev2::ethernet::Ethernet;
use rocev2::icrc::{Changes, Weight};
use rocev2::ipv4::Ipv4;
use rocev2::udp::Udp;
use rocev2::{Bth, Layout};

const UDP: usize = Ethernet::LEN + Ipv4::LEN;
const BTH: usize = UDP + Udp::LEN;
const QPN_WORD: usize = BTH + Bth::DEST_QP_WORD;
const PSN_WORD: usize = QPN_WORD + 4;
/// Where the lower half of an address in memory stands, in requests that have one
const VA_WORD: usize = BTH + Bth::LEN + 4;
/// Bytes up to there
const HEAD: usize = VA_WORD + 4;
/// Where payloads begin, and with them times of sending
const PAYLOAD: usize = BTH + Bth::LEN;
const PAYLOAD_OF_WRITE: usize = PAYLOAD + 16;
/// Bytes that are compared at once
const BLOCK: usize = 32;

/// A block of the template, and which bits of it are always the same.
#[derive(Clone, Copy)]
struct Block {
    bytes: [u8; BLOCK],
    mask: [u8; BLOCK],
}

impl Block {
    #[inline]
    fn is_same(&self, frame: &[u8; BLOCK]) -> bool {
        let words = |block: &[u8; BLOCK]| {
            let (words, _) = block.as_chunks();
            [0, 1, 2, 3].map(|n| u64::from_ne_bytes(words[n]))
        };
        let (frame, bytes, mask) = (words(frame), words(&self.bytes), words(&self.mask));
        let differ = [0, 1, 2, 3].map(|n| (frame[n] ^ bytes[n]) & mask[n]);
        // At once: most of the time none does.
        differ[0] | differ[1] | differ[2] | differ[3] == 0
    }
}

/// Where the time of sending stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stamp {
    Payload,
    PayloadOfWrite,
}

/// What the packets of a stream have in common.
pub(crate) struct Known {
    len: usize,
    blocks: Box<[Block]>,
    /// The last bytes, some of which may be in a block before, too
    tail: Block,
    /// The ICRC of the template, in which all that changes is 0
    icrc: u32,
    psn_weight: Weight,
    /// Nothing, if all packets have the same address in memory, or none
    va_weight: Weight,
    stamp: Option<Stamp>,
    /// The last time of sending, and what it changed the ICRC by: a burst has one time
    stamped: (u64, u32),
    /// Where headers lie
    pub(crate) layout: Layout,
}

/// What changes from packet to packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Changing {
    /// The queue pair that it is for
    pub(crate) qpn: u32,
    /// The word with the PSN, and the bit that asks for an acknowledgement
    pub(crate) psn: u32,
    /// When it was sent
    pub(crate) stamp: Option<u64>,
    src_port: u16,
    /// What its ICRC says, but for what its queue pair has to do with it
    rest: u32,
}

impl Changing {
    /// Whether the ICRC is right, and the packet is of the flow that those to this queue pair are of. `effect` is what its address
    /// changes the template's ICRC by.
    #[inline]
    pub(crate) fn is_right(&self, to: Address, effect: u32) -> bool {
        self.rest == effect && self.src_port == to.src_port()
    }
}

impl Known {
    /// None, if packets are not over IPv4, or differ in more than is looked at.
    pub(crate) fn of(part: &Part) -> Option<Self> {
        let template = &part.template;
        let bytes = &template.bytes;
        let (va_weight, va_word) = match part.va {
            Va::Fixed => (Weight::NONE, None),
            Va::Low(VA_WORD, weight) => (weight, Some((VA_WORD, 4))),
            Va::Low(..) | Va::Whole(_) => return None,
        };
        let stamp = match part.stamp {
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
        // Addresses of stations are the network's. The source port, the queue pair (in front of it the byte that the ICRC leaves
        // out), the PSN, and what else changes is judged by the ICRC, which stands at the end.
        let changing = [(0, 12), (UDP, 2), (QPN_WORD, 8), (layout.icrc(), 4)];
        for (at, len) in changing.into_iter().chain(va_word).chain(part.stamp.map(|at| (at, 8))) {
            mask[at..at + len].fill(0);
        }
        let block = |bytes: &[u8; BLOCK], mask: &[u8; BLOCK]| Block { bytes: *bytes, mask: *mask };
        let blocks =
            bytes.as_chunks().0.iter().zip(mask.as_chunks().0).map(|(bytes, mask)| block(bytes, mask));
        Some(Self {
            len: bytes.len(),
            blocks: blocks.collect(),
            tail: block(bytes.last_chunk()?, mask.last_chunk()?),
            icrc: template.icrc(),
            psn_weight: template.weight(PSN_WORD),
            va_weight,
            stamp,
            stamped: (0, 0),
            layout,
        })
    }

    /// What changes in a packet that is the same in all else.
    #[inline]
    pub(crate) fn changing(&mut self, frame: &[u8]) -> Option<Changing> {
        let head: &[u8; HEAD] = frame.first_chunk()?;
        if frame.len() != self.len || !self.is_same(frame) {
            return None;
        }
        let word = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let (qpn, psn) = (word(QPN_WORD) & 0xff_ffff, word(PSN_WORD));
        let mut changes = Changes::new();
        changes.add_weighted(psn.swap_bytes(), self.psn_weight);
        changes.add_weighted(word(VA_WORD).swap_bytes(), self.va_weight);
        let mut rest = self.icrc ^ u32::from_le_bytes(*frame.last_chunk()?);
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
                if value != self.stamped.0 {
                    self.restamp(at, value);
                }
                rest ^= self.stamped.1;
                Some(value)
            }
        };
        let src_port = u16::from_be_bytes([head[UDP], head[UDP + 1]]);
        Some(Changing { qpn, psn, stamp, src_port, rest: rest ^ changes.effect() })
    }

    #[inline]
    fn is_same(&self, frame: &[u8]) -> bool {
        let mut blocks = frame.as_chunks().0.iter().zip(&self.blocks);
        blocks.all(|(frame, block)| block.is_same(frame))
            && frame.last_chunk().is_some_and(|tail| self.tail.is_same(tail))
    }

    /// Another time.
    #[inline]
    fn restamp(&mut self, at: usize, value: u64) {
        let mut changes = Changes::new();
        let follow = self.len - 4 - at;
        changes.add_word(((value >> 32) as u32).swap_bytes(), follow - 4);
        changes.add_word((value as u32).swap_bytes(), follow - 8);
        self.stamped = (value, changes.effect());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::function::tests::stream;
    use crate::message::messages;
    use crate::profile::{Choice, Memory, Verb};
    use proptest::prelude::*;
    use rocev2::{Class, Packet, classify};
    use switch::Nanos;

    proptest! {
        /// A packet is known as it was sent, and none of which a bit was changed, but for those that are nobody's business.
        #[test]
        fn a_glance_sees_what_parsing_sees(
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
            stream.memory = Memory { slots, choice: Choice::Turn, ..stream.memory };
            let mut all = messages(&stream);
            let part = &mut all[0].first;
            let mut known = Known::of(part).expect("it is over IPv4, and of one packet");
            part.stamp(Nanos(now));
            let mut frame = part.template.bytes.to_vec();
            let to = Address::new(qpn);
            let mut patch = part.template.begin(&mut frame, to, psn, ack);
            part.write_va(&mut patch, stream.memory.va + u64::from(slots - 1) * stream.slot_len());
            patch.finish();
            let sees = |known: &mut Known, frame: &[u8]| {
                known.changing(frame).filter(|changing| {
                    let to = Address::new(changing.qpn);
                    changing.is_right(to, part.template.effect_of_address(to))
                })
            };
            let seen = sees(&mut known, &frame).expect("as it was sent");
            prop_assert_eq!((seen.qpn, seen.psn), (qpn, psn | u32::from(ack) << 31));
            prop_assert_eq!(seen.stamp, stream.stamp.then_some(now));
            prop_assert!(Packet::parse(&frame).unwrap().verify_icrc());
            let mut unseen = 0;
            for at in 0..frame.len() {
                for bit in 0..8 {
                    let mut other = frame.clone();
                    other[at] ^= 1 << bit;
                    let parsed = classify(&other);
                    if let Some(other_seen) = sees(&mut known, &other) {
                        prop_assert_eq!(other_seen, seen, "bit {} of byte {}", bit, at);
                        prop_assert!(matches!(parsed, Class::Roce(layout) if layout == known.layout));
                        prop_assert!(Packet::new(&other, known.layout).verify_icrc());
                        unseen += 1;
                    }
                }
            }
            // Addresses of stations, and the byte that congestion is marked in
            prop_assert_eq!(unseen, 13 * 8);
            for other in [&frame[..frame.len() - 1], &[&frame[..], &[0]].concat(), &[]] {
                prop_assert_eq!(known.changing(other), None);
            }
        }
    }
}
