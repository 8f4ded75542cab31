//! What the impairing function is asked for.

use super::matching::Match;
use crate::{Nanos, PortId, Share};

/// Configuration of [`Impair`](super::Impair).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Number of ports; every [`PortId`] below is smaller
    pub ports: u16,
    /// Wires: what comes in on one leaves on the other. Each port is in one pair; a port paired with itself reflects.
    pub pairs: Vec<(PortId, PortId)>,
    /// What all chance comes from
    pub seed: u64,
    /// Frames that are held back at once
    pub held: usize,
    /// Bytes of the longest frame that can be held back
    pub frame_len: usize,
    /// Flows of which the first PSN is remembered, for [`Match::psn_offset`]
    pub flows: usize,
    /// Queue pairs that are counted one by one, 0 for none; packets to further ones are counted together
    pub counted_qps: usize,
    /// What is done to which packets, in order
    pub rules: Vec<Rule>,
}

/// What is done to some packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// What reports call it. Its chance comes from the seed and this name, and no two rules have the same: then a rule
    /// that comes or goes changes nothing in what the others choose.
    pub name: String,
    /// Which packets it is for
    pub matching: Match,
    /// How many of those it acts on
    pub share: Share,
    /// How many that match are left alone, to begin with
    pub skip: u64,
    /// How often it acts at most
    pub times: u64,
    /// What it does
    pub action: Action,
}

/// What is done to a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// It is lost.
    Drop,
    /// It is held back for a while. Packets that come later may overtake it.
    Delay {
        /// For so long
        by: Nanos,
        /// And up to so much longer, every span being equally likely
        jitter: Nanos,
    },
    /// It is sent several times.
    Duplicate {
        /// How often beside the packet itself
        copies: u32,
    },
    /// It is held back until others have overtaken it. Those count that are sent on at once: not what is itself lost or
    /// held back, nor frames that are no RoCEv2 packets.
    Reorder {
        /// So many later packets of the same direction
        behind: u64,
        /// And no longer than that, if no others come
        at_most: Nanos,
    },
    /// A bit of it flips.
    Corrupt(Field),
    /// It gets the ECN codepoint "congestion experienced", if it is ECN capable.
    Mark {
        /// Even if it is not
        force: bool,
    },
}

/// Where a bit flips. The ICRC is not corrected, and is wrong afterwards as behind a bad cable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// In the payload without its padding
    Payload,
    /// In the BTH, but for the byte that the ICRC leaves out
    Header,
    /// In the ICRC itself
    Icrc,
}

impl Action {
    /// A word for it, as in configurations and reports.
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
