//! Control messages between nodes. In place of the paper's TCP connections (RDMC, section 4.2), nodes
//! exchange short messages over one reliable connection between each two nodes, which all of their groups
//! share. All numbers are in network byte order.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 2 | `RD` |
//! | 2 | 1 | version: 2 |
//! | 3 | 1 | kind |
//! | 4 | 4 | number of the group |
//! | 8 | 8 | create: incarnation at the sender; close, received: messages; failed: 4 bytes code, 4 bytes member |
//! | 16 | 8 | hash of the configuration on which all members have to agree (create) |
//! | 24 | 8 | virtual address to which the receiver writes its ready word (create) |
//! | 32 | 4 | remote key for it |
//! | 36 | 4 | queue pair for blocks; 0 if the two members exchange none |
//! | 40 | 4 | first PSN that this queue pair expects |
//! | 44 | 4 | maximum path MTU in bytes |
//!
//! An application's note has its 40 bytes in place of all fields from offset 8 on.

use crate::config::Failure;
use core::net::IpAddr;
use rnic::Remote;
use rocev2::{Psn, Qpn};
use zerocopy::byteorder::network_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const MAGIC: [u8; 2] = *b"RD";
const VERSION: u8 = 2;

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Layout {
    magic: [u8; 2],
    version: u8,
    kind: u8,
    group: U32,
    value: U64,
    config_hash: U64,
    va: U64,
    rkey: U32,
    qpn: U32,
    psn: U32,
    mtu: U32,
}

/// Bytes of every message.
pub(crate) const LEN: usize = size_of::<Layout>();

/// Private data of a connection request between two nodes.
pub(crate) const HELLO: [u8; 4] = [MAGIC[0], MAGIC[1], VERSION, 0];

/// Returns whether `private_data` is that of a node.
pub(crate) fn is_hello(private_data: &[u8]) -> bool {
    private_data.starts_with(&HELLO)
}

/// One end of a block connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct End {
    pub(crate) qpn: Qpn,
    /// First PSN that the queue pair expects.
    pub(crate) psn: Psn,
    pub(crate) mtu: u16,
    /// Ready word of this end: the peer writes here how many blocks it is ready to receive.
    pub(crate) ready_word: Remote,
}

/// Contents of the message with which a member announces that it has created a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Create {
    /// Incarnation of the group at this member.
    pub(crate) incarnation: u64,
    /// Hash of the configuration on which all members have to agree.
    pub(crate) config_hash: u64,
    /// End of the block connection, if the two members exchange blocks.
    pub(crate) end: Option<End>,
}

/// Message about a group, keepalive, or note.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// The sender has created the group.
    Create(Create),
    /// The sender has received `Create` from all members, and its connections are established.
    Joined,
    /// The group has failed, for the reason of this code, with the member at this index at fault; the sender
    /// itself at [`Message::SENDER`].
    Failed { code: u32, member: u32 },
    /// From the root: it has sent this number of messages, and sends no more.
    Close { messages: u64 },
    /// To the root: the sender has this number of messages.
    Received { messages: u64 },
    /// From the root: all members have all messages.
    Done,
    /// Keepalive request.
    Ping,
    /// Keepalive response.
    Pong,
    /// Note from one application to the other.
    Note([u8; NOTE]),
}

/// Bytes of a note.
pub(crate) const NOTE: usize = 40;
const NOTE_KIND: u8 = 9;

impl Message {
    /// Index of the sender of a failure, if it does not know the members
    pub(crate) const SENDER: u32 = u32::MAX - 1;

    /// Returns the message that reports `failure` to the members of a group.
    pub(crate) fn failed(failure: &Failure, members: &[IpAddr]) -> Self {
        let member = members.iter().position(|ip| *ip == failure.member());
        Self::Failed { code: failure.code(), member: member.map_or(u32::MAX, |member| member as u32) }
    }

    pub(crate) fn to_bytes(self, group: u32) -> [u8; LEN] {
        let mut layout = Layout {
            magic: MAGIC,
            version: VERSION,
            kind: 0,
            group: group.into(),
            value: 0.into(),
            config_hash: 0.into(),
            va: 0.into(),
            rkey: 0.into(),
            qpn: 0.into(),
            psn: 0.into(),
            mtu: 0.into(),
        };
        layout.kind = match self {
            Self::Create(create) => {
                layout.value = create.incarnation.into();
                layout.config_hash = create.config_hash.into();
                if let Some(end) = create.end {
                    layout.va = end.ready_word.va.into();
                    layout.rkey = end.ready_word.rkey.into();
                    layout.qpn = end.qpn.get().into();
                    layout.psn = end.psn.get().into();
                    layout.mtu = u32::from(end.mtu).into();
                }
                1
            }
            Self::Joined => 2,
            Self::Failed { code, member } => {
                layout.value = (u64::from(code) << 32 | u64::from(member)).into();
                3
            }
            Self::Close { messages } => {
                layout.value = messages.into();
                4
            }
            Self::Received { messages } => {
                layout.value = messages.into();
                5
            }
            Self::Done => 6,
            Self::Ping => 7,
            Self::Pong => 8,
            Self::Note(_) => NOTE_KIND,
        };
        let mut bytes = [0; LEN];
        bytes.copy_from_slice(layout.as_bytes());
        if let Self::Note(note) = self {
            bytes[LEN - NOTE..].copy_from_slice(&note);
        }
        bytes
    }

    /// Parses a message. Returns the number of the group and the message, or `None` if the bytes are no
    /// message of this version.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<(u32, Self)> {
        let layout = Layout::ref_from_bytes(bytes).ok()?;
        if layout.magic != MAGIC || layout.version != VERSION {
            return None;
        }
        let value = layout.value.get();
        let message = match layout.kind {
            1 => {
                let qpn = layout.qpn.get();
                if qpn >= 1 << 24 || layout.psn.get() >= 1 << 24 {
                    return None;
                }
                let end = (qpn != 0).then(|| End {
                    qpn: Qpn::new(qpn),
                    psn: Psn::new(layout.psn.get()),
                    mtu: layout.mtu.get().min(u16::MAX.into()) as u16,
                    ready_word: Remote { va: layout.va.get(), rkey: layout.rkey.get() },
                });
                Self::Create(Create { incarnation: value, config_hash: layout.config_hash.get(), end })
            }
            2 => Self::Joined,
            3 => Self::Failed { code: (value >> 32) as u32, member: value as u32 },
            4 => Self::Close { messages: value },
            5 => Self::Received { messages: value },
            6 => Self::Done,
            7 => Self::Ping,
            8 => Self::Pong,
            NOTE_KIND => Self::Note(*bytes.last_chunk()?),
            _ => return None,
        };
        Some((layout.group.get(), message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive_encoding_and_parsing() {
        let end = End {
            qpn: Qpn::new(0x12_3456),
            psn: Psn::new(0xff_ffff),
            mtu: 4096,
            ready_word: Remote { va: 1 << 50, rkey: 77 },
        };
        let all = [
            Message::Create(Create { incarnation: 1 << 63, config_hash: 3, end: Some(end) }),
            Message::Create(Create { incarnation: 0, config_hash: u64::MAX, end: None }),
            Message::Joined,
            Message::Failed { code: 7, member: u32::MAX },
            Message::Close { messages: 1 << 40 },
            Message::Received { messages: 0 },
            Message::Done,
            Message::Ping,
            Message::Pong,
            Message::Note(core::array::from_fn(|at| at as u8)),
        ];
        for message in all {
            let bytes = message.to_bytes(0xdead_beef);
            assert_eq!(Message::from_bytes(&bytes), Some((0xdead_beef, message)));
            assert_eq!(Message::from_bytes(&bytes[1..]), None);
            for at in [0, 1, 2] {
                let mut other = bytes;
                other[at] ^= 1;
                assert_eq!(Message::from_bytes(&other), None, "byte {at}");
            }
        }
        let mut unknown = Message::Pong.to_bytes(1);
        unknown[3] = 10;
        assert_eq!(Message::from_bytes(&unknown), None);
        let mut wide = all[0].to_bytes(1);
        wide[36] = 1;
        assert_eq!(Message::from_bytes(&wide), None, "a QPN of 25 bits");
    }

    proptest::proptest! {
        /// Any bytes parse as a message or do not; a message that parses encodes to bytes that parse as the
        /// same message.
        #[test]
        fn any_bytes_parse_or_are_rejected(mut bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..64), kind in 0_u8..11) {
            _ = Message::from_bytes(&bytes);
            bytes.resize(LEN, 0);
            bytes[..3].copy_from_slice(&HELLO[..3]);
            bytes[3] = kind;
            if let Some((group, message)) = Message::from_bytes(&bytes) {
                proptest::prop_assert_eq!(Message::from_bytes(&message.to_bytes(group)), Some((group, message)));
            }
        }
    }

    #[test]
    fn every_failure_has_a_code_that_parses() {
        let ip = IpAddr::from([10, 0, 0, 1]);
        let all: Vec<_> = (0..=10).filter_map(|code| Some((code, Failure::of(code, ip)?))).collect();
        assert_eq!(all.len(), 9);
        for (code, failure) in all {
            assert_eq!((failure.code(), failure.member()), (code, ip));
        }
    }
}
