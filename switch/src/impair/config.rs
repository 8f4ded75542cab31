//! Configuration of the impairing function.

use super::matching::Match;
use crate::{Nanos, PortId, Probability};

/// Configuration of [`Impair`](super::Impair).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Count of ports; every [`PortId`] below is smaller
    pub ports: u16,
    /// Point-to-point wires: a frame received on one port of a pair is sent on the other. Each port is in one
    /// pair; a port paired with itself reflects its frames.
    pub pairs: Vec<(PortId, PortId)>,
    /// Seed of all random choices
    pub seed: u64,
    /// Maximum count of frames that are held back at one time
    pub held: usize,
    /// Maximum length of a frame that can be held back, in bytes
    pub frame_len: usize,
    /// Maximum count of flows whose first PSN is stored, for [`Match::psn_offset`]
    pub flows: usize,
    /// Count of queue pairs with counters of their own, 0 for none; packets to any further queue pairs are
    /// counted together
    pub counted_qps: usize,
    /// Whether to observe the health of each of them
    pub health: bool,
    /// Rules, in the order in which they are applied
    pub rules: Vec<Rule>,
}

/// An action and the packets to which it applies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Name in reports. The rule's random choices depend on the seed and this name only, and names are
    /// unique: adding or removing a rule therefore does not change the choices of other rules.
    pub name: String,
    /// Condition that a packet has to meet
    pub matching: Match,
    /// Probability of acting on a matching packet
    pub share: Probability,
    /// Count of matching packets to ignore at first
    pub skip: u64,
    /// Maximum count of packets to act on
    pub times: u64,
    /// Action on these packets
    pub action: Action,
}

/// An action on a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Drops the packet.
    Drop,
    /// Holds the packet back for some time. Later packets may overtake it.
    Delay {
        /// Minimum delay
        by: Nanos,
        /// Maximum additional delay; uniformly distributed from zero
        jitter: Nanos,
    },
    /// Sends the packet several times.
    Duplicate {
        /// Count of additional copies
        copies: u32,
    },
    /// Holds the packet back until others have overtaken it. Only packets that are forwarded immediately
    /// count: neither packets that are themselves dropped or held back, nor frames that are not RoCEv2
    /// packets.
    Reorder {
        /// Count of later packets in the same direction that have to overtake it
        behind: u64,
        /// Maximum time to hold it back if fewer packets follow
        at_most: Nanos,
    },
    /// Flips a bit of the packet.
    Corrupt(Field),
    /// Sets the ECN codepoint to "congestion experienced" if the packet is ECN-capable.
    Mark {
        /// Marks the packet even if it is not ECN-capable
        force: bool,
    },
}

/// The field in which a bit is flipped. The ICRC is not updated, so it is wrong afterwards, as after damage
/// on a cable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// Payload without its padding
    Payload,
    /// BTH, but for the byte that the ICRC does not cover
    Header,
    /// ICRC
    Icrc,
}

impl Action {
    /// Returns the name used in configurations and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Drop => "drop",
            Self::Delay { .. } => "delay",
            Self::Duplicate { .. } => "duplicate",
            Self::Reorder { .. } => "reorder",
            Self::Corrupt(_) => "corrupt",
            Self::Mark { .. } => "mark",
        }
    }
}
