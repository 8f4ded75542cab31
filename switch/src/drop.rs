//! Why a frame went no further.

use core::fmt;
use rocev2::Fault;

/// Why a frame was dropped. Each reason is reached by a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DropReason {
    /// It is malformed in a way that the configuration drops
    Malformed(Fault),
    /// Its destination lies on the port that it came from
    SamePort,
    /// It is addressed to the bridge itself (01:80:c2:00:00:0x: spanning tree, pause, LLDP), which has no use for it
    LinkLocal,
    /// A copy was due and no packet buffer was free
    NoBuffer,
    /// The port did not take it: its queue was full, or the frame longer than it can send
    PortFull,
    /// The ring to the worker that owns the port was full
    HandoffFull,
    /// The queue to the control plane was full
    ControlFull,
    /// A rule of the impairing function wanted it lost
    Impaired,
    /// It is addressed to a queue pair that the switch does not have
    NoQueuePair,
    /// It is addressed to a queue pair of the switch's, and does not come from that one's other side
    WrongSource,
    /// It asks for what is not allowed, and its sender is told
    Refused,
    /// A response that says nothing new, or nothing that can be
    Stale,
    /// A kind of packet that has no place on the connection
    Unexpected,
    /// The port has no peer
    LinkDown,
    /// What it may change is being decided; its sender will repeat it
    Delayed,
    /// It repeats what is under way or done already
    Repeated,
    /// It comes before its turn; its sender will repeat it
    OutOfOrder,
    /// No route leads to its destination, or it is no IP packet and the switch a router
    NoRoute,
    /// It has passed as many routers as it may
    TtlExpired,
    /// It is addressed to another station, or a group, and the switch a router: those take what is sent to them
    OtherStation,
}

impl DropReason {
    /// How many there are
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

    /// A number below [`COUNT`](Self::COUNT), its own.
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

    /// A word for it, as in reports.
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

    /// A sentence for it.
    pub fn explanation(self) -> String {
        match self {
            Self::Malformed(fault) => fault.to_string(),
            Self::SamePort => "the destination lies on the port it came from".into(),
            Self::LinkLocal => "addressed to bridges themselves (spanning tree, pause, LLDP)".into(),
            Self::NoBuffer => "no packet buffer was free for a copy".into(),
            Self::PortFull => "the port did not take it".into(),
            Self::HandoffFull => "the ring to the worker that owns the port was full".into(),
            Self::ControlFull => "the queue to the control plane was full".into(),
            Self::Impaired => "a rule of `[impair]` dropped it".into(),
            Self::NoQueuePair => "the switch has no such queue pair".into(),
            Self::WrongSource => "not from the other side of the connection".into(),
            Self::Refused => "it asks for what is not allowed, and its sender was told".into(),
            Self::Stale => "a response that says nothing new".into(),
            Self::Unexpected => "a kind of packet that has no place on the connection".into(),
            Self::LinkDown => "the port has no peer".into(),
            Self::Delayed => "what it may change was being decided; its sender repeats it".into(),
            Self::Repeated => "it repeats what is under way or done".into(),
            Self::OutOfOrder => "it came before its turn; its sender repeats it".into(),
            Self::NoRoute => "no route leads to its destination".into(),
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
    /// None of them
    pub const NONE: Self = Self(0);
    /// All of them
    pub const ALL: Self = Self((1 << Fault::ALL.len()) - 1);

    /// This set and `fault`.
    #[must_use]
    pub const fn with(self, fault: Fault) -> Self {
        Self(self.0 | 1 << fault as u16)
    }

    /// Whether `fault` is in it.
    pub const fn has(self, fault: Fault) -> bool {
        self.0 & (1 << fault as u16) != 0
    }

    /// Those in it.
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
    fn indices_are_dense_and_names_differ() {
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
    fn sets() {
        let set = FaultSet::NONE.with(Fault::Icrc).with(Fault::Truncated);
        assert!(set.has(Fault::Icrc) && !set.has(Fault::Oversized));
        assert_eq!(set.iter().collect::<Vec<_>>(), [Fault::Truncated, Fault::Icrc]);
        assert_eq!(FaultSet::ALL.iter().count(), Fault::ALL.len());
    }
}
