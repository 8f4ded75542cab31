//! What happens to hosts, switches and links.

use crate::{LinkId, NodeId};
use rocev2::ethernet::MacAddr;

/// Something that happens at a time of the world. Faults may overlap: what was brought about several times ends when all
/// of it has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A host or switch goes down and forgets everything; what is sent to it is lost.
    Crash(NodeId),
    /// It comes back as it was at the beginning.
    Restart(NodeId),
    /// It does nothing for a while: its process is stopped. What is sent to it waits, up to a bound.
    Pause(NodeId),
    /// It goes on.
    Resume(NodeId),
    /// Links carry nothing, in either direction; what is on its way is lost, too.
    Cut(Vec<LinkId>),
    /// They work again.
    Heal(Vec<LinkId>),
    /// What a node sends on links is lost; what is sent to it arrives.
    Mute(NodeId, Vec<LinkId>),
    /// What the node sends on them arrives again.
    Unmute(NodeId, Vec<LinkId>),
    /// Frames from either interface to the other are lost on every link, and no others: a partition that is not transitive.
    Part(MacAddr, MacAddr),
    /// The two interfaces reach each other again.
    Join(MacAddr, MacAddr),
    /// A link carries IP packets of up to this many bytes from now on; longer ones are lost.
    Mtu(LinkId, usize),
    /// Two links of a switch change their places at its ports: the hosts behind them have moved.
    Swap(LinkId, LinkId),
    /// A host puts this frame on its first link.
    Send(NodeId, Vec<u8>),
    /// A host's packets have other UDP source ports from now on, which this number decides, as a network's paths may change.
    Rehash(NodeId, u16),
    /// A clock jumps by so many nanoseconds.
    ClockStep(NodeId, i64),
    /// A clock runs too fast by so many billionths from now on.
    ClockDrift(NodeId, i64),
}
