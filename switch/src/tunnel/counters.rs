//! Counters of tunnel termination.

use crate::DropReason;
use crate::counters::{Counter, FrameCounter};
use rocev2::Fault;

/// Counters of one instance: written by its worker, read by any thread.
#[derive(Debug, Default)]
pub struct Counters {
    /// Packets whose outer header was removed; the bytes are those of the remaining frames
    pub terminated: FrameCounter,
    refused: [Counter; Refusal::ALL.len()],
}

impl Counters {
    /// Returns the count of packets that were dropped for this reason.
    pub fn refused(&self, reason: Refusal) -> u64 {
        self.refused[reason as usize].get()
    }

    #[cold]
    pub(super) fn refuse(&self, reason: Refusal) {
        self.refused[reason as usize].add(1);
    }
}

/// The reason why a packet that is addressed to the tunnel endpoint was dropped. A test covers each reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Refusal {
    /// The length in the outer header is not that of the packet, or the packet is longer than its buffer
    OuterLength,
    /// The checksum of the outer header is wrong
    OuterChecksum,
    /// The packet is a fragment, and the switch does not reassemble
    Fragment,
    /// The outer source is not a permitted one
    Source,
    /// The payload is not an IP packet, or not a complete one
    Inner,
    /// The packet has more nested headers than a detour needs
    TooDeep,
    /// The inner destination is a tunnel endpoint of this switch
    Returning,
    /// The TTL or hop limit of the inner packet is used up
    Expired,
    /// The outer header is marked "congestion experienced", but the inner packet is not ECN-capable (RFC
    /// 6040)
    Congested,
    /// No next hop is configured for the inner destination
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

    /// Returns the name used in reports.
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
    fn from(reason: Refusal) -> Self {
        match reason {
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
