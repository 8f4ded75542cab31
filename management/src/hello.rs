//! The first message of each side.
//!
//! ```text
//!  0..8   "1PIPE-MN"
//!  8..10  version of the protocol
//! 10      side: 1 of the node, 2 of the controller
//! 11      1 with a secret, 0 without
//! 12      controller: 0, or the number of the reason for which it refuses
//! 13      node: kind of the peer: 0 operator, 1 process, 2 switch
//! 14      node: which of a switch's representatives it is
//! 15      reserved, 0
//! 16..20  node: number of the process or switch
//! 20..24  reserved, 0
//! 24..32  hash of the topology; 0 of an operator, which has none
//! 32..64  random number
//! 64..96  tag
//! ```
//!
//! All numbers are big-endian. The first ten bytes are the same in all versions.

use crate::Reason;

/// Version of the protocol
pub const VERSION: u16 = 2;
/// Length, in bytes
pub(crate) const LEN: usize = 96;
/// Length of what the tag covers
pub(crate) const UNTAGGED: usize = 64;
const MAGIC: [u8; 8] = *b"1PIPE-MN";

/// What the other end of a controller's connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Peer {
    /// A process
    Process(u32),
    /// A representative of a switch: the first one, 0, or its standby, 1
    Switch(u16, u8),
    /// An operator's command
    Operator,
}

impl core::fmt::Display for Peer {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Process(id) => write!(f, "process {id}"),
            Self::Switch(id, 0) => write!(f, "switch {id}"),
            Self::Switch(id, _) => write!(f, "standby of switch {id}"),
            Self::Operator => f.write_str("operator"),
        }
    }
}

impl Peer {
    fn kind(self) -> (u8, u8, u32) {
        match self {
            Self::Operator => (0, 0, 0),
            Self::Process(id) => (1, 0, id),
            Self::Switch(id, seat) => (2, seat, id.into()),
        }
    }

    fn of(kind: u8, seat: u8, number: u32) -> Result<Self, Reason> {
        match (kind, seat, u16::try_from(number)) {
            (0, 0, Ok(0)) => Ok(Self::Operator),
            (1, 0, _) => Ok(Self::Process(number)),
            (2, 0 | 1, Ok(id)) => Ok(Self::Switch(id, seat)),
            (0..=2, ..) => Err(Reason::Reserved),
            _ => Err(Reason::UnknownPeer(kind)),
        }
    }
}

/// Side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Node,
    Controller,
}

/// A hello without its tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) side: Side,
    pub(crate) secret: bool,
    pub(crate) status: u8,
    pub(crate) peer: Peer,
    pub(crate) topology: u64,
    pub(crate) random: [u8; 32],
}

impl Hello {
    /// Returns the bytes that the tag covers.
    pub(crate) fn encode(&self) -> [u8; UNTAGGED] {
        let mut bytes = [0; UNTAGGED];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&VERSION.to_be_bytes());
        bytes[10] = if self.side == Side::Node { 1 } else { 2 };
        bytes[11] = self.secret.into();
        bytes[12] = self.status;
        let (kind, seat, number) = self.peer.kind();
        (bytes[13], bytes[14]) = (kind, seat);
        bytes[16..20].copy_from_slice(&number.to_be_bytes());
        bytes[24..32].copy_from_slice(&self.topology.to_be_bytes());
        bytes[32..].copy_from_slice(&self.random);
        bytes
    }

    /// Checks the start of a hello, of which not all bytes need to be there.
    ///
    /// # Errors
    /// It is no hello, or one of another version.
    pub(crate) fn check_start(bytes: &[u8]) -> Result<(), Reason> {
        let magic = &bytes[..bytes.len().min(8)];
        if !MAGIC.starts_with(magic) {
            return Err(Reason::NotHello);
        }
        match bytes.get(8..10) {
            Some(&[high, low]) if u16::from_be_bytes([high, low]) != VERSION => {
                Err(Reason::Version(u16::from_be_bytes([high, low])))
            }
            _ => Ok(()),
        }
    }

    /// Returns the hello of a side.
    ///
    /// # Errors
    /// [`Reason`] with the first thing that is wrong.
    pub(crate) fn decode(bytes: &[u8; LEN], side: Side) -> Result<Self, Reason> {
        Self::check_start(bytes)?;
        let expected = if side == Side::Node { 1 } else { 2 };
        if bytes[10] != expected {
            return Err(Reason::SameSide);
        }
        let status_allowed = side == Side::Controller || bytes[12] == 0;
        if bytes[11] > 1 || !status_allowed || bytes[15] != 0 || bytes[20..24] != [0; 4] {
            return Err(Reason::Reserved);
        }
        let number = u32::from_be_bytes(bytes[16..20].try_into().expect("four bytes"));
        Ok(Self {
            side,
            secret: bytes[11] == 1,
            status: bytes[12],
            peer: Peer::of(bytes[13], bytes[14], number)?,
            topology: u64::from_be_bytes(bytes[24..32].try_into().expect("eight bytes")),
            random: bytes[32..UNTAGGED].try_into().expect("32 bytes"),
        })
    }
}
