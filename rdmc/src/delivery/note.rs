//! Notes between the root and the receivers of a delivery, besides the object. All numbers are in network
//! byte order.

use super::Refusal;
use crate::node::Node;
use crate::schedule::{Algorithm, Racks};
use core::net::{IpAddr, Ipv6Addr};
use p4ce::SwitchAddress;

type Bytes = [u8; Node::NOTE];

/// Maximum bytes of a name in one note.
pub(super) const NAME_PART_LEN: usize = 32;
/// Maximum bytes of a name.
pub(super) const MAX_NAME_LEN: usize = 255;

/// A note.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Note {
    /// From the root: part of the object's name, from byte `at` on.
    Name { at: u8, len: u8, part: [u8; NAME_PART_LEN] },
    /// From the root: offer of an object, by a group with this number of members.
    Offer(Terms),
    /// From the root: the switch that copies that group's blocks. Follows the offer, if the algorithm needs a
    /// switch.
    Switch { round: u32, switch: SwitchAddress },
    /// From the root: a member of that group.
    Member { round: u32, index: u32, rack: u32, ip: IpAddr },
    /// From a receiver: it has this number of segments.
    Have { round: u32, segments: u64 },
    /// From a receiver: in the previous round's group it did not reach this member in time.
    Unreached { ip: IpAddr },
    /// From a receiver: it refuses the object.
    Refuse(Refusal),
    /// From the root: the group of this round begins with segment `first`.
    Start { round: u32, first: u64 },
    /// From the root: it has stopped the delivery.
    Stop,
    /// From a receiver: it has written this number of segments.
    Written { segments: u64 },
    /// From a receiver: it has the whole object, and the digest matches.
    Stored,
    /// From a receiver: it has the whole object, and the digest differs.
    Damaged,
}

/// Terms of an offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Terms {
    pub(super) round: u32,
    pub(super) members: u32,
    /// Bytes of the object, of a segment and of a block.
    pub(super) len: u64,
    pub(super) segment: u32,
    pub(super) block: u32,
    /// Maximum number of segments by which the root stays ahead of the slowest receiver.
    pub(super) window: u32,
    /// Number of the algorithm.
    pub(super) algorithm: u8,
    pub(super) name_len: u8,
}

fn u32_at(bytes: &Bytes, at: usize) -> u32 {
    bytes[at..].first_chunk().map_or(0, |part| u32::from_be_bytes(*part))
}

fn u64_at(bytes: &Bytes, at: usize) -> u64 {
    bytes[at..].first_chunk().map_or(0, |part| u64::from_be_bytes(*part))
}

fn ip_at(bytes: &Bytes) -> Option<IpAddr> {
    let ip: [u8; 16] = *bytes[16..].first_chunk()?;
    Some(Ipv6Addr::from(ip).to_canonical())
}

fn octets(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

impl Note {
    pub(super) fn to_bytes(self) -> Bytes {
        let mut bytes = [0; Node::NOTE];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        match self {
            Self::Name { at, len, part } => {
                put(0, &[1, at, len]);
                put(8, &part);
            }
            Self::Offer(terms) => {
                put(0, &[2, terms.algorithm, terms.name_len]);
                put(4, &terms.round.to_be_bytes());
                put(8, &terms.members.to_be_bytes());
                put(12, &terms.segment.to_be_bytes());
                put(16, &terms.block.to_be_bytes());
                put(20, &terms.window.to_be_bytes());
                put(24, &terms.len.to_be_bytes());
            }
            Self::Switch { round, switch } => {
                put(0, &[12]);
                put(4, &round.to_be_bytes());
                put(8, &switch.port.to_be_bytes());
                put(16, &octets(switch.address));
            }
            Self::Member { round, index, rack, ip } => {
                put(0, &[3]);
                put(4, &round.to_be_bytes());
                put(8, &index.to_be_bytes());
                put(12, &rack.to_be_bytes());
                put(16, &octets(ip));
            }
            Self::Have { round, segments } => {
                put(0, &[4]);
                put(4, &round.to_be_bytes());
                put(8, &segments.to_be_bytes());
            }
            Self::Refuse(refusal) => put(0, &[5, refusal as u8]),
            Self::Start { round, first } => {
                put(0, &[6]);
                put(4, &round.to_be_bytes());
                put(8, &first.to_be_bytes());
            }
            Self::Written { segments } => {
                put(0, &[7]);
                put(8, &segments.to_be_bytes());
            }
            Self::Stored => put(0, &[8]),
            Self::Damaged => put(0, &[9]),
            Self::Stop => put(0, &[11]),
            Self::Unreached { ip } => {
                put(0, &[10]);
                put(16, &octets(ip));
            }
        }
        bytes
    }

    /// Parses a note. Returns `None` if the bytes are no valid note.
    pub(super) fn from_bytes(bytes: &Bytes) -> Option<Self> {
        let round = u32_at(bytes, 4);
        Some(match bytes[0] {
            1 => {
                let len = bytes[2];
                if len == 0 || usize::from(len) > NAME_PART_LEN {
                    return None;
                }
                Self::Name { at: bytes[1], len, part: *bytes[8..].first_chunk()? }
            }
            2 => Self::Offer(Terms {
                round,
                members: u32_at(bytes, 8),
                segment: u32_at(bytes, 12),
                block: u32_at(bytes, 16),
                window: u32_at(bytes, 20),
                len: u64_at(bytes, 24),
                algorithm: bytes[1],
                name_len: bytes[2],
            }),
            3 => Self::Member { round, index: u32_at(bytes, 8), rack: u32_at(bytes, 12), ip: ip_at(bytes)? },
            4 => Self::Have { round, segments: u64_at(bytes, 8) },
            5 => Self::Refuse(*Refusal::ALL.get(usize::from(bytes[1]))?),
            6 => Self::Start { round, first: u64_at(bytes, 8) },
            7 => Self::Written { segments: u64_at(bytes, 8) },
            8 => Self::Stored,
            9 => Self::Damaged,
            11 => Self::Stop,
            10 => Self::Unreached { ip: ip_at(bytes)? },
            12 => {
                let port = u16::from_be_bytes(*bytes[8..].first_chunk()?);
                Self::Switch { round, switch: SwitchAddress { address: ip_at(bytes)?, port } }
            }
            _ => return None,
        })
    }
}

/// Algorithms by their numbers: those that need no parameter but the members.
const ALGORITHMS: [Algorithm; 5] =
    [Algorithm::Sequential, Algorithm::Chain, Algorithm::Tree, Algorithm::Pipeline, Algorithm::InNetwork];

/// Returns the number of an algorithm. The hybrid's follows those of [`ALGORITHMS`].
pub(super) fn algorithm_number(algorithm: &Algorithm) -> u8 {
    ALGORITHMS.iter().position(|other| other == algorithm).unwrap_or(ALGORITHMS.len()) as u8
}

/// Returns the algorithm of a number, for members in these racks; `None` if there is no such algorithm.
pub(super) fn algorithm_from_number(number: u8, racks: &[u32]) -> Option<Algorithm> {
    match ALGORITHMS.get(usize::from(number)) {
        None if usize::from(number) == ALGORITHMS.len() => Racks::new(racks).ok().map(Algorithm::Hybrid),
        algorithm => algorithm.cloned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn notes_survive_encoding_and_parsing() {
        let terms = Terms {
            round: 7,
            members: 512,
            len: 1 << 40,
            segment: 1 << 24,
            block: 1 << 20,
            window: 4,
            algorithm: 3,
            name_len: 255,
        };
        let all = [
            Note::Name { at: 224, len: 31, part: [7; NAME_PART_LEN] },
            Note::Offer(terms),
            Note::Member { round: 1, index: 2, rack: 0, ip: [10, 0, 0, 1].into() },
            Note::Member { round: 1, index: 2, rack: 7, ip: "fd00::7".parse().unwrap() },
            Note::Have { round: 9, segments: u64::MAX },
            Note::Start { round: 9, first: 5 },
            Note::Written { segments: 77 },
            Note::Stored,
            Note::Damaged,
            Note::Stop,
            Note::Unreached { ip: "fd00::7".parse().unwrap() },
            Note::Switch {
                round: 3,
                switch: SwitchAddress { address: [10, 0, 0, 254].into(), port: 18_515 },
            },
            Note::Switch {
                round: 3,
                switch: SwitchAddress { address: "fd00::fe".parse().unwrap(), port: 1 },
            },
        ];
        for note in all.into_iter().chain(Refusal::ALL.map(Note::Refuse)) {
            assert_eq!(Note::from_bytes(&note.to_bytes()), Some(note));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_parse_or_are_rejected(bytes: [u8; 32], kind in 0_u8..14) {
            let mut note = [0; Node::NOTE];
            note[1..33].copy_from_slice(&bytes);
            note[0] = kind;
            if let Some(read) = Note::from_bytes(&note) {
                prop_assert_eq!(Note::from_bytes(&read.to_bytes()), Some(read));
            }
        }
    }
}
