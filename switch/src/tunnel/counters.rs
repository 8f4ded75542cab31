//! Counters of tunnel termination.

use crate::DropReason;
use crate::counters::{Counter, FrameCounter};
use crate::{metrics, reasons};
use rocev2::Fault;

metrics! {
    /// Counters of one instance: written by its worker, read by any thread.
    #[derive(Debug, Default)]
    pub struct Counters {
        /// Packets whose outer header was removed: the remaining frames
        pub terminated: FrameCounter {
            frames: [frames as terminated_frames / tunnel_frames],
            bytes: [bytes as terminated_bytes / tunnel_bytes],
        },
        refused: [Counter; Refusal::ALL.len()],
    }
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

reasons! {
    /// The reason why a packet that is addressed to the tunnel endpoint was dropped. A test covers each reason.
    pub enum Refusal counted as "tunnel_refused_" [packets] {
        /// The length in the outer header is not that of the packet, or the packet is longer than its buffer
        OuterLength = "outer_length",
        /// The checksum of the outer header is wrong
        OuterChecksum = "outer_checksum",
        /// The packet is a fragment, and the switch does not reassemble
        Fragment = "fragment",
        /// The outer source is not a permitted one
        Source = "source",
        /// The payload is not an IP packet, or not a complete one
        Inner = "inner",
        /// The packet has more nested headers than a detour needs
        TooDeep = "too_deep",
        /// The inner destination is a tunnel endpoint of this switch
        Returning = "returning",
        /// The TTL or hop limit of the inner packet is used up
        Expired = "expired",
        /// The outer header is marked "congestion experienced", but the inner packet is not ECN-capable (RFC
        /// 6040)
        Congested = "congested",
        /// No next hop is configured for the inner destination
        NoNextHop = "no_next_hop",
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
