//! Why a connection ended.

use crate::{DEAD_AFTER, HANDSHAKE_TIME, MAX_MESSAGE, MAX_QUEUED, VERSION};

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
pub enum Reason {
    /// The peer has closed the connection
    #[error("the peer has closed the connection")]
    Closed,
    /// This end has closed the connection
    #[error("this end has closed the connection")]
    Ended,
    /// The operating system reports an error
    #[error("{0}")]
    Io(std::io::ErrorKind),
    /// The first bytes are those of another protocol
    #[error("the peer speaks another protocol; connect to the port of a controller's listen")]
    NotHello,
    /// The peer is of the same side, or a hello was sent back
    #[error("the peer is not the other side of the protocol; connect a node to a controller")]
    SameSide,
    /// Another version of this protocol
    #[error("the peer has version {0} of the management protocol, this program has version {VERSION}")]
    Version(u16),
    /// An unknown kind of peer
    #[error("unknown kind of peer {0}")]
    UnknownPeer(u8),
    /// Bits that have to be 0 are not
    #[error("reserved bits of the peer's hello are not 0")]
    Reserved,
    /// The peer has a secret, this end has none
    #[error("the peer has a secret, and this end has none; write the same secret_file at both")]
    SecretMissing,
    /// This end has a secret, the peer has none
    #[error("this end has a secret, and the peer has none; write the same secret_file at both")]
    NoSecret,
    /// The peer has another secret
    #[error("the peer has another secret; give both ends the same secret_file")]
    WrongSecret,
    /// The peer has another topology
    #[error(
        "the peer has the topology {found:016x}, this end has {own:016x}; give all nodes files of the same plan"
    )]
    Topology {
        /// Topology of the peer
        found: u64,
        /// Own topology
        own: u64,
    },
    /// A frame's tag is wrong: it was changed, repeated, reordered, or is of another connection
    #[error("a frame's tag is wrong: it was changed, repeated, reordered, or belongs to another connection")]
    Tag,
    /// A frame is longer than allowed
    #[error("a frame of {0} bytes; at most {MAX_MESSAGE} are allowed")]
    TooLong(u32),
    /// An unknown kind of frame, or one that is not allowed here
    #[error("unexpected kind of frame {0}")]
    Frame(u8),
    /// The handshake took too long
    #[error("the handshake was not complete after {} ms", HANDSHAKE_TIME.0 / 1_000_000)]
    HandshakeTime,
    /// The peer has sent nothing for [`DEAD_AFTER`]
    #[error("the peer has sent nothing for {} ms", DEAD_AFTER.0 / 1_000_000)]
    Silent,
    /// The peer takes less than is sent to it
    #[error("more than {MAX_QUEUED} bytes wait for the peer, which takes too few")]
    Slow,
    /// A peer of this name is connected already
    #[error("another program is connected with this number; give each process and switch its own")]
    Connected,
    /// A newer connection of the same peer has replaced one that was silent
    #[error("a newer connection of the same peer has replaced this one")]
    Replaced,
    /// Too many connections
    #[error("too many connections")]
    TooMany,
    /// The peer is not on the loopback interface, and there is no secret
    #[error("without a secret, only peers on the loopback interface are accepted; write secret_file")]
    NotLoopback,
    /// The peer has ended the connection with a number that has no meaning here
    #[error("the peer has ended the connection with the unknown reason {0}")]
    Unknown(u8),
}

impl Reason {
    /// Names of all reasons, which are the labels of their counters
    pub const NAMES: [&str; 23] = [
        "closed",
        "ended",
        "io",
        "not_hello",
        "same_side",
        "version",
        "unknown_peer",
        "reserved",
        "secret_missing",
        "no_secret",
        "wrong_secret",
        "topology",
        "tag",
        "too_long",
        "frame",
        "handshake_time",
        "silent",
        "slow",
        "connected",
        "replaced",
        "too_many",
        "not_loopback",
        "unknown",
    ];

    /// Returns the place of the reason's name in [`Self::NAMES`].
    pub fn index(self) -> usize {
        match self {
            Self::Closed => 0,
            Self::Ended => 1,
            Self::Io(_) => 2,
            Self::NotHello => 3,
            Self::SameSide => 4,
            Self::Version(_) => 5,
            Self::UnknownPeer(_) => 6,
            Self::Reserved => 7,
            Self::SecretMissing => 8,
            Self::NoSecret => 9,
            Self::WrongSecret => 10,
            Self::Topology { .. } => 11,
            Self::Tag => 12,
            Self::TooLong(_) => 13,
            Self::Frame(_) => 14,
            Self::HandshakeTime => 15,
            Self::Silent => 16,
            Self::Slow => 17,
            Self::Connected => 18,
            Self::Replaced => 19,
            Self::TooMany => 20,
            Self::NotLoopback => 21,
            Self::Unknown(_) => 22,
        }
    }

    /// Returns the reason's name.
    pub fn name(self) -> &'static str {
        Self::NAMES[self.index()]
    }

    /// Returns the number by which the peer learns of this reason, if it does.
    pub(crate) fn code(self) -> Option<u8> {
        Some(match self {
            Self::Version(_) => 1,
            Self::NoSecret => 2,
            Self::SecretMissing => 3,
            Self::WrongSecret => 4,
            Self::Topology { .. } => 5,
            Self::UnknownPeer(_) => 6,
            Self::Connected => 7,
            Self::Replaced => 8,
            Self::TooMany => 9,
            _ => return None,
        })
    }

    /// Returns the reason for which the peer has ended the connection, from this end's point of view.
    pub(crate) fn from_peer(code: u8, version: u16, topologies: [u64; 2]) -> Self {
        let [found, own] = topologies;
        match code {
            1 => Self::Version(version),
            2 => Self::SecretMissing,
            3 => Self::NoSecret,
            4 => Self::WrongSecret,
            5 => Self::Topology { found, own },
            7 => Self::Connected,
            8 => Self::Replaced,
            9 => Self::TooMany,
            other => Self::Unknown(other),
        }
    }
}
