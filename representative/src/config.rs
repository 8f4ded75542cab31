//! What a representative is asked for.

use core::net::IpAddr;
use rocev2::Qpn;
use rocev2::ethernet::MacAddr;
use rocev2::onepipe::Timestamp;
use switch::tunnel::{self, EntranceError};
use switch::{Nanos, PortId, forward};

/// The least [`Config::dead_after_intervals`]. A barrier that stands is said again every other interval; one of these beacons may be
/// lost, and those around it late.
pub const MIN_DEAD_AFTER: u32 = 5;

/// Configuration of [`Representative`](crate::Representative).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The bridge for frames that are not 1Pipe's, and that says where messages go
    pub forward: forward::Config,
    /// Which of the paper's three this is
    pub incarnation: Incarnation,
    /// When beacons are sent
    pub pace: Pace,
    /// The switch's own MAC address: that of the beacons it sends
    pub mac: MacAddr,
    /// Its IP addresses. A beacon has the first one of the neighbour's version
    pub addresses: Vec<IpAddr>,
    /// The `Q_Key` by which 1Pipe's datagrams are told from others, [`OnePipe::QKEY`](rocev2::onepipe::OnePipe::QKEY) unless
    /// all have agreed on another
    pub qkey: u32,
    /// The queue pair of the first link; those of the others follow it, in the order of `links`
    pub first_qp: Qpn,
    /// Where beacons that are RDMA WRITEs go
    pub registers: Registers,
    /// Time between two beacons on an idle link, 1 us to 1 ms; the paper has 3 us. One of the whole network: it says where the
    /// instants lie
    pub beacon_interval: Nanos,
    /// A link that is silent for more intervals than this is dead, [`MIN_DEAD_AFTER`] at least; the paper has 10
    pub dead_after_intervals: u32,
    /// A link that comes back and is behind by no more than this is waited for; it is how long it may stop the others. More
    /// than a barrier takes through the whole network, and no less than the time after which a link is dead
    pub join_window: Nanos,
    /// A barrier that is ahead of the clock by more than this is refused, and so are its sender's messages: clocks that are
    /// synchronised differ by microseconds
    pub ahead_max: Nanos,
    /// 1Pipe's time when the runner's is 0. [`Command::Clock`](crate::Command::Clock) corrects it
    pub clock: Timestamp,
    /// DSCP and ECN of beacons. The DSCP has to be that of the messages, or they wait in other queues and overtake one another
    /// (FACTS C-49)
    pub traffic_class: u8,
    /// The switch's links, both directions of each
    pub links: Vec<Link>,
    /// A planted bug, to see whether it is found
    #[cfg(debug_assertions)]
    pub bug: Option<crate::Bug>,
}

/// Where a switch's barriers are kept (section 6.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Incarnation {
    /// In the switch itself: each message updates the register of the link that it came in on and leaves with the barrier
    /// of the link that it leaves on. Only links without messages need beacons (6.2.1). Links are ports.
    Chip,
    /// On the switch's CPU: messages pass untouched, and every output gets beacons (6.2.2). Links are ports.
    SwitchCpu,
    /// On a host beside the switch: beacons come and go through the very links that they speak of, addressed to
    /// representatives (6.2.3). Links are queue pairs, and may share a port.
    Host,
}

/// When beacons are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pace {
    /// When this clock shows a multiple of the interval, as the paper has it. A barrier that has come a long way has waited
    /// for the next instant at every switch.
    Instants,
    /// When the barrier passes a multiple of the interval, that is, when the last link has said so: the hosts' clocks set the
    /// pace, and a barrier waits nowhere. It is one beacon an interval as well; where a barrier stands still, it is said again
    /// every other interval.
    Passing,
}

/// Where the neighbour at a link stands in the routing graph. Routes go up, then down; so a switch is two nodes of the
/// graph, and a barrier never waits for itself (section 3.1, figure 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// A host, or a switch nearer to the hosts
    Below,
    /// A switch nearer to the core
    Above,
}

/// A link of the switch: an input and an output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Which side it leads to
    pub side: Side,
    /// The port that it is at, or that its beacons come and go through
    pub port: PortId,
    /// The MAC address that beacons are sent to: the neighbour's, or that of the next hop to its representative or into the
    /// detour
    pub mac: MacAddr,
    /// The IP address of the neighbour, or of its representative. Beacons from others are refused
    pub address: IpAddr,
    /// How beacons get onto the link where routes would lead them elsewhere (section 6.2.3)
    pub detour: Detour,
    /// Its queue pair for them
    pub qpn: Qpn,
    /// How they are sent. Either kind is taken
    pub beacon: BeaconForm,
    /// Whether messages carry barriers on this link, in both directions: true of hosts and of switches that are
    /// [`Chip`](Incarnation::Chip). Other switches leave what the sender wrote, which says nothing of this link, and take no
    /// barriers from messages: they get their beacons however many messages pass
    pub barriers_in_messages: bool,
}

/// Switches that a beacon has to pass, by the addresses at which their tunnels end, in this order: it goes to the first in one
/// tunnel, and from there to the next in another, inside it. So it passes the link between them, if each is the other's neighbour;
/// both switches take a header off, and the rest of the way is that of the routes. (The paper names S2 -> H2 for the innermost
/// header. Here its source is the sender, by which receivers know their neighbours.)
///
/// Empty where routes pass the link anyhow: two switches for a link between switches, and one, the nearer, for one to a host that
/// can be reached through another link, too.
pub type Detour = Vec<IpAddr>;

/// What a beacon looks like. Either carries a 1Pipe header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BeaconForm {
    /// A datagram (UD SEND)
    Datagram,
    /// An unreliable RDMA WRITE (UC WRITE) to a register in the neighbour's memory
    Write {
        /// The register's virtual address at the neighbour
        va: u64,
        /// The key to its memory
        rkey: u32,
    },
}

/// The memory that neighbours write their beacons to: a register for each link, [`SIZE`](Self::SIZE) bytes apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registers {
    /// The virtual address of the first
    pub va: u64,
    /// The key to all of them
    pub rkey: u32,
}

impl Registers {
    /// Bytes from one register to the next. A header takes 24; none crosses a cache line
    pub const SIZE: u64 = 32;

    /// The virtual address of a link's.
    pub const fn va_of(&self, link: u16) -> u64 {
        self.va.wrapping_add(Self::SIZE * link as u64)
    }
}

/// A configuration that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// More links than can be numbered
    #[error("{0} links; 65,534 is the most")]
    TooManyLinks(usize),
    /// A queue pair number beyond 24 bits, or one of those that are reserved
    #[error("{links} queue pairs from {first} on; they have to lie between 2 and 16,777,214")]
    QueuePairs {
        /// The first
        first: Qpn,
        /// How many
        links: usize,
    },
    /// The beacon interval is out of range
    #[error("a beacon interval of {} ns; it has to lie between 1 us and 1 ms", .0.0)]
    Interval(Nanos),
    /// A link would be taken for dead while it is alive
    #[error("a link that is dead after {0} intervals; it takes {MIN_DEAD_AFTER} at least")]
    DeadAfter(u32),
    /// A link that was dead could never come back
    #[error("a join window of {} ns; it has to be as long as it takes a link to be dead", .0.0)]
    JoinWindow(Nanos),
    /// A link's port does not exist
    #[error("link {0} is at a port that does not exist")]
    NoSuchPort(u16),
    /// In these incarnations, the port is the link
    #[error(
        "link {0} is at the port of another link; only the host incarnation tells links apart by queue pair"
    )]
    SharedPort(u16),
    /// Only a host that stands for a switch sends beacons that might go astray
    #[error("link {0} has a detour, but this is the switch: what it sends at a port passes the port's link")]
    NeedlessDetour(u16),
    /// A detour through more switches than a link has ends
    #[error("link {0} has a detour through {1} switches; a link has two ends")]
    LongDetour(u16, usize),
    /// A detour's addresses are of different versions of IP, or of one that we have no address of
    #[error("link {0}: {1}")]
    Detour(u16, EntranceError),
    /// No address of our own to send from
    #[error("link {0} leads to an address of an IP version that the switch has none of")]
    NoOwnAddress(u16),
}

impl Config {
    /// Whether this can be.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let links = self.links.len();
        if links >= usize::from(u16::MAX) {
            return Err(ConfigError::TooManyLinks(links));
        }
        let first = self.first_qp;
        if first.get() < 2 || first.get() as usize + links > 0xff_ffff {
            return Err(ConfigError::QueuePairs { first, links });
        }
        if !(Nanos::from_micros(1)..=Nanos::from_millis(1)).contains(&self.beacon_interval) {
            return Err(ConfigError::Interval(self.beacon_interval));
        }
        if self.dead_after_intervals < MIN_DEAD_AFTER {
            return Err(ConfigError::DeadAfter(self.dead_after_intervals));
        }
        if self.join_window.0 < self.beacon_interval.0 * u64::from(self.dead_after_intervals) {
            return Err(ConfigError::JoinWindow(self.join_window));
        }
        let mut taken = vec![false; usize::from(self.forward.ports)];
        for (number, link) in (0..).zip(&self.links) {
            let taken = taken.get_mut(link.port.index()).ok_or(ConfigError::NoSuchPort(number))?;
            if core::mem::replace(taken, true) && self.incarnation != Incarnation::Host {
                return Err(ConfigError::SharedPort(number));
            }
            self.own_address(link.address).ok_or(ConfigError::NoOwnAddress(number))?;
            if !link.detour.is_empty() && self.incarnation != Incarnation::Host {
                return Err(ConfigError::NeedlessDetour(number));
            }
            if link.detour.len() > 2 {
                return Err(ConfigError::LongDetour(number, link.detour.len()));
            }
            let tunnels = self.tunnels(link).ok_or(ConfigError::NoOwnAddress(number))?;
            tunnel::check(&tunnels).map_err(|why| ConfigError::Detour(number, why))?;
        }
        Ok(())
    }

    /// The tunnels of a link's detour, each from where the one before ends; `None` if there is no address to begin at.
    pub(crate) fn tunnels(&self, link: &Link) -> Option<Vec<(IpAddr, IpAddr)>> {
        let Some(&first) = link.detour.first() else { return Some(Vec::new()) };
        let starts = core::iter::once(self.own_address(first)?).chain(link.detour.iter().copied());
        Some(starts.zip(link.detour.iter().copied()).collect())
    }

    /// The switch's own address of the same version as `other`.
    pub(crate) fn own_address(&self, other: IpAddr) -> Option<IpAddr> {
        self.addresses.iter().copied().find(|own| own.is_ipv6() == other.is_ipv6())
    }
}
