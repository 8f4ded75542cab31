//! Reasons for which frames are dropped.

use core::fmt;
use rocev2::Fault;

/// The reason why a frame was dropped. A test covers each reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DropReason {
    /// The frame is malformed, and the configuration drops frames with this fault
    Malformed(Fault),
    /// The destination is on the port on which the frame was received
    SamePort,
    /// The destination is a link-local group address for bridges (01:80:c2:00:00:0x: spanning tree, pause,
    /// LLDP), whose protocols this switch does not implement
    LinkLocal,
    /// No packet buffer was free for a copy
    NoBuffer,
    /// The port did not accept the frame: its queue was full, or the frame exceeds its MTU
    PortFull,
    /// The hand-off ring to the worker that owns the port was full
    HandoffFull,
    /// The queue to the control plane was full
    ControlFull,
    /// A rule of the impairing function dropped it
    Impaired,
    /// The destination is a queue pair that the switch does not have
    NoQueuePair,
    /// The destination is a queue pair of the switch, but the source is not that queue pair's peer
    WrongSource,
    /// The request is not permitted; the switch has sent a NAK to the requester
    Refused,
    /// A response that acknowledges nothing new, or that cannot be valid
    Stale,
    /// A kind of packet that is not valid on the connection
    Unexpected,
    /// The port's link is down: it has no peer
    LinkDown,
    /// The packet may change data on which a decision is pending; the sender retransmits it
    Delayed,
    /// A duplicate of a request in progress or completed
    Repeated,
    /// The packet is ahead of the expected PSN; the sender retransmits it
    OutOfOrder,
    /// No route matches the destination; or the packet is not IP, and the switch is a router
    NoRoute,
    /// The TTL or hop limit is used up
    TtlExpired,
    /// The switch is a router, and the destination is a group or the MAC address of another station; a router
    /// accepts only frames addressed to it
    OtherStation,
}

impl DropReason {
    /// Count of drop reasons
    pub const COUNT: usize = Fault::ALL.len() + 19;

    /// Every reason, in the order of [`index`](Self::index).
    pub fn all() -> impl Iterator<Item = Self> {
        Fault::ALL.into_iter().map(Self::Malformed).chain([
            Self::SamePort,
            Self::LinkLocal,
            Self::NoBuffer,
            Self::PortFull,
            Self::HandoffFull,
            Self::ControlFull,
            Self::Impaired,
            Self::NoQueuePair,
            Self::WrongSource,
            Self::Refused,
            Self::Stale,
            Self::Unexpected,
            Self::LinkDown,
            Self::Delayed,
            Self::Repeated,
            Self::OutOfOrder,
            Self::NoRoute,
            Self::TtlExpired,
            Self::OtherStation,
        ])
    }

    /// Returns the index of this reason, below [`COUNT`](Self::COUNT).
    pub const fn index(self) -> usize {
        let after_faults = match self {
            Self::Malformed(fault) => return fault as usize,
            Self::SamePort => 0,
            Self::LinkLocal => 1,
            Self::NoBuffer => 2,
            Self::PortFull => 3,
            Self::HandoffFull => 4,
            Self::ControlFull => 5,
            Self::Impaired => 6,
            Self::NoQueuePair => 7,
            Self::WrongSource => 8,
            Self::Refused => 9,
            Self::Stale => 10,
            Self::Unexpected => 11,
            Self::LinkDown => 12,
            Self::Delayed => 13,
            Self::Repeated => 14,
            Self::OutOfOrder => 15,
            Self::NoRoute => 16,
            Self::TtlExpired => 17,
            Self::OtherStation => 18,
        };
        Fault::ALL.len() + after_faults
    }

    /// Returns the name used in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Malformed(fault) => fault.name(),
            Self::SamePort => "same_port",
            Self::LinkLocal => "link_local",
            Self::NoBuffer => "no_buffer",
            Self::PortFull => "port_full",
            Self::HandoffFull => "handoff_full",
            Self::ControlFull => "control_full",
            Self::Impaired => "impaired",
            Self::NoQueuePair => "no_queue_pair",
            Self::WrongSource => "wrong_source",
            Self::Refused => "refused",
            Self::Stale => "stale",
            Self::Unexpected => "unexpected",
            Self::LinkDown => "link_down",
            Self::Delayed => "delayed",
            Self::Repeated => "repeated",
            Self::OutOfOrder => "out_of_order",
            Self::NoRoute => "no_route",
            Self::TtlExpired => "ttl_expired",
            Self::OtherStation => "other_station",
        }
    }

    /// Returns an explanation as a phrase.
    pub fn explanation(self) -> String {
        match self {
            Self::Malformed(fault) => fault.to_string(),
            Self::SamePort => "the destination is on the port on which it was received".into(),
            Self::LinkLocal => "addressed to bridges themselves (spanning tree, pause, LLDP)".into(),
            Self::NoBuffer => "no packet buffer was free for a copy".into(),
            Self::PortFull => "the port did not accept it".into(),
            Self::HandoffFull => "the ring to the worker that owns the port was full".into(),
            Self::ControlFull => "the queue to the control plane was full".into(),
            Self::Impaired => "a rule of `[impair]` dropped it".into(),
            Self::NoQueuePair => "the switch has no such queue pair".into(),
            Self::WrongSource => "not from the peer of the connection".into(),
            Self::Refused => "the request is not permitted; the switch sent a NAK".into(),
            Self::Stale => "a response that acknowledges nothing new".into(),
            Self::Unexpected => "a kind of packet that is not valid on the connection".into(),
            Self::LinkDown => "the port has no peer".into(),
            Self::Delayed => {
                "it may change data on which a decision is pending; the sender retransmits it".into()
            }
            Self::Repeated => "a duplicate of a request in progress or completed".into(),
            Self::OutOfOrder => "it is ahead of the expected PSN; the sender retransmits it".into(),
            Self::NoRoute => "no route matches its destination".into(),
            Self::TtlExpired => "its TTL or hop limit was used up".into(),
            Self::OtherStation => "not addressed to the router's MAC address".into(),
        }
    }
}

impl fmt::Display for DropReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A set of faults.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct FaultSet(u16);

impl FaultSet {
    /// The empty set
    pub const NONE: Self = Self(0);
    /// The set of all faults
    pub const ALL: Self = Self((1 << Fault::ALL.len()) - 1);

    /// Returns this set with `fault` added.
    #[must_use]
    pub const fn with(self, fault: Fault) -> Self {
        Self(self.0 | 1 << fault as u16)
    }

    /// Returns whether the set contains `fault`.
    pub const fn has(self, fault: Fault) -> bool {
        self.0 & (1 << fault as u16) != 0
    }

    /// Returns the faults in the set.
    pub fn iter(self) -> impl Iterator<Item = Fault> {
        Fault::ALL.into_iter().filter(move |&fault| self.has(fault))
    }
}

impl fmt::Debug for FaultSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_are_dense_and_names_are_unique() {
        let all: Vec<_> = DropReason::all().collect();
        assert_eq!(all.len(), DropReason::COUNT);
        let mut names = std::collections::HashSet::new();
        for (index, reason) in all.iter().enumerate() {
            assert_eq!(reason.index(), index);
            assert!(names.insert(reason.name()), "{reason}");
            assert!(!reason.explanation().is_empty());
        }
    }

    #[test]
    fn fault_sets_contain_what_was_added() {
        let set = FaultSet::NONE.with(Fault::Icrc).with(Fault::Truncated);
        assert!(set.has(Fault::Icrc) && !set.has(Fault::Oversized));
        assert_eq!(set.iter().collect::<Vec<_>>(), [Fault::Truncated, Fault::Icrc]);
        assert_eq!(FaultSet::ALL.iter().count(), Fault::ALL.len());
    }
}
