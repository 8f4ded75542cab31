//! Reasons for which frames are dropped.

use core::fmt;
use rocev2::Fault;

/// Declares the drop reasons, in the order of their indices: each with its name in reports and an explanation
/// as a phrase.
macro_rules! drop_reasons {
    ($($(#[$doc:meta])* $reason:ident $name:literal: $explanation:literal,)*) => {
        /// The reason why a frame was dropped. A test covers each reason.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum DropReason {
            /// The frame is malformed, and the configuration drops frames with this fault
            Malformed(Fault),
            $($(#[$doc])* $reason,)*
        }

        /// Position of a reason in the list
        enum Position {
            $($reason,)*
        }

        impl DropReason {
            /// Count of drop reasons
            pub const COUNT: usize = Fault::ALL.len() + [$($name),*].len();

            /// Every reason, in the order of [`index`](Self::index).
            pub fn all() -> impl Iterator<Item = Self> {
                Fault::ALL.into_iter().map(Self::Malformed).chain([$(Self::$reason),*])
            }

            /// Returns the index of this reason, below [`COUNT`](Self::COUNT).
            pub const fn index(self) -> usize {
                match self {
                    Self::Malformed(fault) => fault as usize,
                    $(Self::$reason => Fault::ALL.len() + Position::$reason as usize,)*
                }
            }

            /// Returns the name used in reports.
            pub const fn name(self) -> &'static str {
                match self {
                    Self::Malformed(fault) => fault.name(),
                    $(Self::$reason => $name,)*
                }
            }

            /// Returns an explanation as a phrase.
            pub fn explanation(self) -> String {
                match self {
                    Self::Malformed(fault) => fault.to_string(),
                    $(Self::$reason => $explanation.into(),)*
                }
            }
        }
    };
}

drop_reasons! {
    /// The destination is on the port on which the frame was received
    SamePort "same_port": "the destination is on the port on which it was received",
    /// The destination is a link-local group address for bridges (01:80:c2:00:00:0x: spanning tree, pause,
    /// LLDP), whose protocols this switch does not implement
    LinkLocal "link_local": "addressed to bridges themselves (spanning tree, pause, LLDP)",
    /// No packet buffer was free for a copy
    NoBuffer "no_buffer": "no packet buffer was free for a copy",
    /// The port did not accept the frame: its queue was full, or the frame exceeds its MTU
    PortFull "port_full": "the port did not accept it",
    /// The hand-off ring to the worker that owns the port was full
    HandoffFull "handoff_full": "the ring to the worker that owns the port was full",
    /// The ring to the worker that owns the frame's state was full
    InputFull "input_full": "the ring to the worker that owns its state was full",
    /// The queue to the control plane was full
    ControlFull "control_full": "the queue to the control plane was full",
    /// A rule of the impairing function dropped it
    Impaired "impaired": "a rule of `[impair]` dropped it",
    /// The destination is a queue pair that the switch does not have
    NoQueuePair "no_queue_pair": "the switch has no such queue pair",
    /// The destination is a queue pair of the switch, but the source is not that queue pair's peer
    WrongSource "wrong_source": "not from the peer of the connection",
    /// The request is not permitted; the switch has sent a NAK to the requester
    Refused "refused": "the request is not permitted; the switch sent a NAK",
    /// A response that acknowledges nothing new, or that cannot be valid
    Stale "stale": "a response that acknowledges nothing new",
    /// A kind of packet that is not valid on the connection
    Unexpected "unexpected": "a kind of packet that is not valid on the connection",
    /// The port's link is not up: it has no peer, or its interface is down or gone
    LinkDown "link_down": "the port's link is not up",
    /// The packet may change data on which a decision is pending; the sender retransmits it
    Delayed "delayed": "it may change data on which a decision is pending; the sender retransmits it",
    /// A duplicate of a request in progress or completed
    Repeated "repeated": "a duplicate of a request in progress or completed",
    /// The packet is ahead of the expected PSN; the sender retransmits it
    OutOfOrder "out_of_order": "it is ahead of the expected PSN; the sender retransmits it",
    /// No route matches the destination; or the packet is not IP, and the switch is a router
    NoRoute "no_route": "no route matches its destination",
    /// The TTL or hop limit is used up
    TtlExpired "ttl_expired": "its TTL or hop limit was used up",
    /// The switch is a router, and the destination is a group or the MAC address of another station; a router
    /// accepts only frames addressed to it
    OtherStation "other_station": "not addressed to the router's MAC address",
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
