//! Faults of hosts, switches and links.

use crate::link::LinkId;
use crate::node::NodeId;
use rocev2::ethernet::MacAddr;

/// A fault that happens at a time of the world. Faults may overlap: a state that several faults brought about
/// ends when all of them have ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A host or switch goes down and loses all state; frames that arrive at it are lost
    Crash(NodeId),
    /// A node that is down starts again from its initial state
    Restart(NodeId),
    /// A node stops, as a process that is suspended. Frames that arrive meanwhile wait, up to 1,024 frames
    Pause(NodeId),
    /// A paused node continues
    Resume(NodeId),
    /// Links lose all frames in both directions, including those in flight
    Cut(Vec<LinkId>),
    /// Links that were cut work again
    Heal(Vec<LinkId>),
    /// Frames that the node sends on these links are lost; frames in the other direction arrive
    Mute(NodeId, Vec<LinkId>),
    /// Ends [`Mute`](Self::Mute): frames that the node sends on these links arrive again
    Unmute(NodeId, Vec<LinkId>),
    /// Frames between two interfaces are lost on every link, in both directions; no other frames are: a
    /// partition that is not transitive
    PartitionPair(MacAddr, MacAddr),
    /// Ends [`PartitionPair`](Self::PartitionPair): the two interfaces reach each other again
    HealPair(MacAddr, MacAddr),
    /// Frames from the first interface to the second one are lost on every link; those in the other direction
    /// arrive
    MutePair(MacAddr, MacAddr),
    /// Ends [`MutePair`](Self::MutePair) of the same interfaces in the same order
    UnmutePair(MacAddr, MacAddr),
    /// MTU of a link from now on (bytes of the IP packet); longer packets are lost
    Mtu(LinkId, usize),
    /// Two links of a switch exchange their ports, as when the hosts behind them have moved
    Swap(LinkId, LinkId),
    /// A host puts this frame on its first link
    Send(NodeId, Vec<u8>),
    /// A host uses other UDP source ports until it restarts, chosen by this salt, so that ECMP may choose
    /// other paths
    Rehash(NodeId, u16),
    /// A clock jumps by this number of nanoseconds; negative is back
    ClockStep(NodeId, i64),
    /// Drift of a clock from now on, in parts per billion; positive is fast
    ClockDrift(NodeId, i64),
}
