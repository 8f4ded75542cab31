//! What tunnel termination counts.

use crate::DropReason;
use crate::counters::{Counter, FrameCounter};
use rocev2::Fault;

/// Counters of one instance: written by its worker, read by anyone.
#[derive(Debug, Default)]
pub struct Counters {
    /// Packets that lost their outer header; bytes of what they carried
    pub terminated: FrameCounter,
    refused: [Counter; Refusal::ALL.len()],
}

impl Counters {
    /// How many packets were dropped for this reason
    pub fn refused(&self, why: Refusal) -> u64 {
        self.refused[why as usize].get()
    }

    #[cold]
    pub(super) fn refuse(&self, why: Refusal) {
        self.refused[why as usize].add(1);
    }
}

/// Why a packet that ends here was dropped. Each reason is reached by a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Refusal {
    /// The outer header's length is not that of the packet, or the packet is longer than its buffer
    OuterLength,
    /// The outer header's checksum is wrong
    OuterChecksum,
    /// A fragment: it would have to be put together first
    Fragment,
    /// From somebody who has no business here
    Source,
    /// What it carries is no IP packet, or not a whole one
    Inner,
    /// In more packets than a detour needs
    TooDeep,
    /// It would come back to this switch's tunnel
    Returning,
    /// The inner packet has no hops left
    Expired,
    /// A queue marked the outer header, and the inner one has no room for it (RFC 6040)
    Congested,
    /// Nobody knows where the inner packet goes
    NoNextHop,
}

impl Refusal {
    /// Every reason.
    pub const ALL: [Self; 10] = [
        Self::OuterLength,
        Self::OuterChecksum,
        Self::Fragment,
        Self::Source,
        Self::Inner,
        Self::TooDeep,
        Self::Returning,
        Self::Expired,
        Self::Congested,
        Self::NoNextHop,
    ];

    /// A word for it, as in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::OuterLength => "outer_length",
            Self::OuterChecksum => "outer_checksum",
            Self::Fragment => "fragment",
            Self::Source => "source",
            Self::Inner => "inner",
            Self::TooDeep => "too_deep",
            Self::Returning => "returning",
            Self::Expired => "expired",
            Self::Congested => "congested",
            Self::NoNextHop => "no_next_hop",
        }
    }
}

impl From<Refusal> for DropReason {
    fn from(why: Refusal) -> Self {
        match why {
            Refusal::OuterLength => Self::Malformed(Fault::IpLength),
            Refusal::OuterChecksum => Self::Malformed(Fault::IpChecksum),
            Refusal::Fragment => Self::Malformed(Fault::Fragment),
            Refusal::Inner => Self::Malformed(Fault::IpHeader),
            Refusal::Source => Self::WrongSource,
            Refusal::TooDeep
            | Refusal::Returning
            | Refusal::Expired
            | Refusal::Congested
            | Refusal::NoNextHop => Self::Unexpected,
        }
    }
}
