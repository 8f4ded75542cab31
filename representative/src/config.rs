//! Configuration of a representative.

use core::net::IpAddr;
use onepipe::{ClockSource, Timestamp};
use rocev2::Qpn;
use rocev2::ethernet::MacAddr;
use switch::tunnel::{self, EncapsulationError};
use switch::{Nanos, PortId, forward};

/// Minimum of [`Config::dead_after_intervals`]. A barrier that does not rise is repeated every other
/// interval; one of these beacons may be lost, and those before and after it may be late.
pub const MIN_DEAD_AFTER: u32 = 5;

/// Minimum of [`Config::evict_after`], in beacon intervals: several checks of the lag, and the time that a
/// barrier takes to cross the network
pub const MIN_EVICT_AFTER: u64 = 64;

/// Configuration of [`Representative`](crate::Representative).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Bridge or router for frames that are not 1Pipe's; also determines where messages are forwarded
    pub forward: forward::Config,
    /// Where the switch's barriers are kept (the paper's three incarnations, 1Pipe, section 6.2)
    pub incarnation: Incarnation,
    /// Times at which beacons are sent
    pub pace: Pace,
    /// MAC address of the switch, the source of its beacons
    pub mac: MacAddr,
    /// IP addresses of the switch. A beacon's source is the first one of the neighbour's IP version
    pub addresses: Vec<IpAddr>,
    /// `Q_Key` that identifies 1Pipe's datagrams, [`OnePipe::QKEY`](onepipe::OnePipe::QKEY) unless
    /// the whole network is configured with another one
    pub qkey: u32,
    /// Queue pair number of the first link; those of the other links follow it, in the order of `links`
    pub first_qp: Qpn,
    /// Memory to which neighbours send beacons as RDMA WRITEs
    pub registers: Registers,
    /// Interval between two beacons on an idle link, 1 us to 1 ms; 3 us in the paper. Has to be the same in
    /// the whole network, because it defines the instants at which beacons are sent
    pub beacon_interval: Nanos,
    /// Number of intervals after which a silent link is dead, at least [`MIN_DEAD_AFTER`]; 10 in the paper
    pub dead_after_intervals: u32,
    /// Number of intervals after which a silent link that counts for the commit barrier is reported to the
    /// controller, at least `dead_after_intervals`; `None`: there is no controller
    pub fail_after_intervals: Option<u32>,
    /// A returning link is waited for if it is behind by at most this time, which bounds the time for which
    /// it can stop the barrier. Has to be more than a barrier takes to cross the whole network, and at least
    /// the time after which a link is dead
    pub join_window: Nanos,
    /// A link whose barrier is behind those of the others by more than twice `join_window` for this long, times
    /// `layer`, is removed, as otherwise all receivers wait for one slow clock; 0: never. At least
    /// [`MIN_EVICT_AFTER`] intervals
    pub evict_after: Nanos,
    /// Distance of the switch from the processes, 1 if it has any below. All switches see the lag of one slow
    /// process at once; the nearest one removes it first, before a switch above removes all processes behind
    /// that one
    pub layer: u32,
    /// A barrier that is ahead of the clock by more than this counts as ahead by this: so one fast clock does
    /// not raise the barriers of a half by more. Synchronised clocks differ by microseconds
    pub ahead_max: Nanos,
    /// What 1Pipe's clock follows. With [`ClockSource::Beacons`] this node exchanges clock beacons with its neighbours,
    /// which processes need to follow them; at a switch of layer 1, the clock of a process that is ahead of the median
    /// by more than `ahead_max` does not count
    pub clock_source: ClockSource,
    /// 1Pipe's time when the runner's time is 0. [`Command::Clock`](crate::Command::Clock) corrects it
    pub clock: Timestamp,
    /// DSCP and ECN of beacons. The DSCP has to be that of the messages; otherwise they wait in different
    /// queues and overtake one another
    pub traffic_class: u8,
    /// Links of the switch, each with both of its directions
    pub links: Vec<Link>,
    /// Whether beacons declare what this node reads and writes; false for a node of an earlier version, in
    /// tests of mixed networks
    pub declares: bool,
    /// Planted bug, to check that tests find it; has no effect without debug assertions
    pub bug: Option<crate::bug::Bug>,
}

/// Link, as its index in the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u16);

/// Where a switch's barriers are kept (1Pipe, section 6.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Incarnation {
    /// In the switching chip: each message updates the register of its input link, and leaves with the
    /// barrier of its output link. Only links without messages need beacons (section 6.2.1). Links are ports.
    Chip,
    /// On the switch CPU: messages are forwarded unchanged, and each output link gets beacons (section
    /// 6.2.2). Links are ports.
    SwitchCpu,
    /// On a host beside the switch: beacons are addressed to representatives and pass the very links whose
    /// barriers they carry (section 6.2.3). Links are queue pairs, and may share a port.
    Host,
}

/// Times at which beacons are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pace {
    /// When this node's clock shows a multiple of the interval, as in the paper. On its way through the
    /// network, a barrier waits for the next instant at every switch.
    Instants,
    /// When the barrier passes a multiple of the interval, that is, when the last input link has passed it:
    /// the hosts' clocks set the pace, and a barrier waits at no switch. This also makes one beacon per
    /// interval; a barrier that does not rise is repeated every other interval.
    Passing,
}

/// Position of a link's neighbour in the routing graph. Routes go up, then down; so a switch is two nodes of
/// the graph, and a barrier never waits for itself (1Pipe, section 3.1, figure 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// A host, or a switch nearer to the hosts
    Below,
    /// A switch nearer to the core
    Above,
}

/// Link of the switch: an input and an output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Side of the switch that the link leads to
    pub side: Side,
    /// Port of the link, or port through which its beacons are sent and received
    pub port: PortId,
    /// Destination MAC address of beacons: the neighbour's, or that of the next hop to its representative or
    /// into the detour
    pub mac: MacAddr,
    /// IP address of the neighbour, or of its representative. Beacons from other addresses are refused
    pub address: IpAddr,
    /// Switches through which beacons are tunnelled so that they pass the link even if routes lead elsewhere
    /// (section 6.2.3)
    pub detour: Detour,
    /// The neighbour's queue pair for beacons
    pub qpn: Qpn,
    /// Form in which beacons are sent. Both forms are accepted
    pub beacon: BeaconForm,
    /// Standby of the neighbouring switch, a second node that represents it: it gets the same beacons, and it is
    /// enough to hear one
    pub standby: Option<End>,
}

/// Second node at the other end of a link, which represents the same switch. The fields are as those of a
/// [`Link`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// Destination MAC address of beacons
    pub mac: MacAddr,
    /// IP address, other than that of the first node: beacons are assigned to the two by their source
    pub address: IpAddr,
    /// Switches through which beacons are tunnelled onto the link
    pub detour: Detour,
    /// Queue pair for beacons
    pub qpn: Qpn,
    /// Form in which beacons are sent
    pub beacon: BeaconForm,
}

impl Link {
    /// Returns the link with the standby as its only other end.
    pub(crate) fn to_standby(&self) -> Option<Self> {
        let End { mac, address, detour, qpn, beacon } = self.standby.clone()?;
        Some(Self { mac, address, detour, qpn, beacon, standby: None, ..*self })
    }

    /// Returns the addresses of the nodes at the other end.
    pub(crate) fn ends(&self) -> [Option<IpAddr>; 2] {
        [Some(self.address), self.standby.as_ref().map(|standby| standby.address)]
    }

    /// Returns which of the two nodes at the other end has an address.
    #[inline]
    pub(crate) fn end_of(&self, address: IpAddr) -> Option<u8> {
        if address == self.address {
            return Some(0);
        }
        self.standby.as_ref().filter(|standby| standby.address == address).map(|_| 1)
    }
}

/// Switches that a beacon has to pass, as the addresses at which their tunnels end, in this order: the beacon
/// goes to the first switch in one tunnel, and from there to the second in another tunnel, which is nested in
/// the first. So it passes the link between the two switches, if they are neighbours; each switch removes one
/// header, and routes lead the beacon the rest of the way. (The paper has S2 -> H2 as the innermost header.
/// Here its source is the sender, by which receivers identify their neighbours.)
///
/// Empty where routes pass the link anyway. Otherwise two switches for a link between switches, and one, the
/// nearer, for a link to a host that can also be reached through another link.
pub type Detour = Vec<IpAddr>;

/// Form of a beacon. Both forms carry a 1Pipe header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BeaconForm {
    /// A datagram (UD SEND)
    Datagram,
    /// An unreliable RDMA WRITE (UC WRITE) to a register in the neighbour's memory
    Write {
        /// Virtual address of the register at the neighbour
        va: u64,
        /// Remote key of the neighbour's memory
        rkey: u32,
    },
}

/// Memory that neighbours write their beacons to: a register for each link, [`SIZE`](Self::SIZE) bytes apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registers {
    /// Virtual address of the first register
    pub va: u64,
    /// Remote key of all registers
    pub rkey: u32,
}

impl Registers {
    /// Distance from one register to the next, in bytes. A header takes 24; no register crosses a cache line
    pub const SIZE: u64 = 32;

    /// Returns the virtual address of a link's register.
    pub const fn va_of(&self, link: u16) -> u64 {
        self.va.wrapping_add(Self::SIZE * link as u64)
    }
}

/// Invalid configuration of a representative.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// More links than can be numbered
    #[error("{0} links are too many; configure at most 65,534")]
    TooManyLinks(usize),
    /// A queue pair number beyond 24 bits, or a reserved one
    #[error(
        "{links} queue pairs from {first} on are out of range; choose a first_qp such that all are between 2 and 16,777,214"
    )]
    QueuePairs {
        /// First queue pair number
        first: Qpn,
        /// Number of links
        links: usize,
    },
    /// The beacon interval is out of range
    #[error("beacon interval of {} ns is out of range; set 1000 to 1000000 ns", .0.0)]
    Interval(Nanos),
    /// A link would be declared dead while it is alive
    #[error("dead_after_intervals = {0} is too small; set at least {MIN_DEAD_AFTER}")]
    DeadAfter(u32),
    /// The controller would be asked about links that are not dead
    #[error("fail_after_intervals = {0} is below dead_after_intervals; set at least that number")]
    FailAfter(u32),
    /// A beacon by which a neighbour cannot recognise the incarnation of its sender
    #[error(
        "link {0}: a beacon in the form of a WRITE does not name its queue pair, by which the neighbour recognises it; with a controller, send datagrams"
    )]
    AnonymousBeacon(u16),
    /// A link that was dead could never return
    #[error("join window of {} ns is too short; set at least dead_after_intervals times the beacon interval", .0.0)]
    JoinWindow(Nanos),
    /// Switches of two layers would remove links at the same time
    #[error("evict_after of {} ns is too short; set 0, or at least {MIN_EVICT_AFTER} beacon intervals", .0.0)]
    EvictAfter(Nanos),
    /// A link's port does not exist
    #[error("link {0}: its port does not exist; use a configured port")]
    NoSuchPort(u16),
    /// Two links share a port, in an incarnation in which the port identifies the link
    #[error(
        "link {0}: another link has the same port; give each link its own (only the host incarnation shares ports)"
    )]
    SharedPort(u16),
    /// A detour in an incarnation other than the host's, whose beacons alone might miss the link
    #[error(
        "link {0}: a detour is valid for the host incarnation only, as a switch's beacons pass the port's link; remove it"
    )]
    NeedlessDetour(u16),
    /// A detour through more switches than a link has ends
    #[error("link {0}: a detour through {1} switches is too long; list at most the two ends of the link")]
    LongDetour(u16, usize),
    /// A detour's addresses are of different IP versions, or not valid as the ends of a tunnel
    #[error("link {0}: invalid detour: {1}")]
    Detour(u16, EncapsulationError),
    /// Clock beacons where a neighbour has a standby
    #[error(
        "link {0}: the clock cannot follow clock beacons where the neighbour has a standby; remove the standby, or set the machine's clock as source"
    )]
    ClockOfTwo(u16),
    /// The host incarnation on several workers
    #[error(
        "a host beside the switch represents it on one worker; set one worker, or keep barriers in the switch"
    )]
    HostOnWorkers,
    /// Commit registers on several workers
    #[error(
        "a switch that follows a controller runs on one worker; set one worker, or remove the controller"
    )]
    ControllerOnWorkers,
    /// Clock beacons on several workers
    #[error("clock beacons need one worker; set one worker, or let the clock follow the machine's")]
    ClockBeaconsOnWorkers,
    /// Both nodes at the other end of a link have the same address
    #[error("link {0}: {1} is the address of both its ends; name another host for the standby, or remove it")]
    SameEnd(u16, IpAddr),
    /// A link of a switch that keeps its own barriers has two nodes at the other end
    #[error(
        "link {0}: the neighbour has a standby, but this switch keeps its own barriers; remove the standby, or let a \
         host represent this switch"
    )]
    NeedlessStandby(u16),
    /// The switch has no address of the IP version of a link's neighbour
    #[error("link {0}: the switch has no address of the neighbour's IP version; add one to addresses")]
    NoOwnAddress(u16),
}

impl Config {
    /// Returns whether this bug was planted. Release builds have no bugs.
    #[inline]
    pub(crate) fn has_bug(&self, bug: crate::bug::Bug) -> bool {
        cfg!(debug_assertions) && self.bug == Some(bug)
    }

    /// Returns the number of ticks after which a link that lags is removed; 0: never.
    pub(crate) fn evict_after_ticks(&self) -> u64 {
        let layer = if self.has_bug(crate::bug::Bug::EvictsEverywhere) { 1 } else { self.layer.max(1) };
        self.evict_after.0.div_ceil(self.beacon_interval.0) * u64::from(layer)
    }

    /// Returns why the configuration is not possible on several workers.
    ///
    /// # Errors
    /// The reason.
    pub fn check_several_workers(&self) -> Result<(), ConfigError> {
        match self {
            Self { incarnation: Incarnation::Host, .. } => Err(ConfigError::HostOnWorkers),
            Self { fail_after_intervals: Some(_), .. } => Err(ConfigError::ControllerOnWorkers),
            Self { clock_source: ClockSource::Beacons, .. } => Err(ConfigError::ClockBeaconsOnWorkers),
            _ => Ok(()),
        }
    }

    /// Validates the configuration.
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
        if let Some(intervals) = self.fail_after_intervals.filter(|&n| n < self.dead_after_intervals) {
            return Err(ConfigError::FailAfter(intervals));
        }
        if self.join_window.0 < self.beacon_interval.0 * u64::from(self.dead_after_intervals) {
            return Err(ConfigError::JoinWindow(self.join_window));
        }
        if self.evict_after.0 != 0 && self.evict_after.0 < MIN_EVICT_AFTER * self.beacon_interval.0 {
            return Err(ConfigError::EvictAfter(self.evict_after));
        }
        let mut taken = vec![false; usize::from(self.forward.ports)];
        for (number, link) in (0..).zip(&self.links) {
            let taken = taken.get_mut(link.port.index()).ok_or(ConfigError::NoSuchPort(number))?;
            if core::mem::replace(taken, true) && self.incarnation != Incarnation::Host {
                return Err(ConfigError::SharedPort(number));
            }
            for link in [Some(link.clone()), link.to_standby()].iter().flatten() {
                self.check_end(number, link)?;
            }
            if link.standby.is_some() && self.clock_source == ClockSource::Beacons {
                return Err(ConfigError::ClockOfTwo(number));
            }
            if link.standby.is_some() && self.incarnation != Incarnation::Host {
                return Err(ConfigError::NeedlessStandby(number));
            }
            if link.standby.as_ref().is_some_and(|standby| standby.address == link.address) {
                return Err(ConfigError::SameEnd(number, link.address));
            }
        }
        Ok(())
    }

    /// Validates the first node at the other end of a link.
    fn check_end(&self, number: u16, link: &Link) -> Result<(), ConfigError> {
        self.own_address(link.address).ok_or(ConfigError::NoOwnAddress(number))?;
        if self.fail_after_intervals.is_some() && link.beacon != BeaconForm::Datagram {
            return Err(ConfigError::AnonymousBeacon(number));
        }
        if !link.detour.is_empty() && self.incarnation != Incarnation::Host {
            return Err(ConfigError::NeedlessDetour(number));
        }
        if link.detour.len() > 2 {
            return Err(ConfigError::LongDetour(number, link.detour.len()));
        }
        let tunnels = self.tunnels(link).ok_or(ConfigError::NoOwnAddress(number))?;
        tunnel::check_tunnels(&tunnels).map_err(|why| ConfigError::Detour(number, why))
    }

    /// Returns the tunnels of a link's detour as (start, end), each starting where the previous one ends;
    /// `None` if the switch has no address of the right IP version to start at.
    pub(crate) fn tunnels(&self, link: &Link) -> Option<Vec<(IpAddr, IpAddr)>> {
        let Some(&first) = link.detour.first() else { return Some(Vec::new()) };
        let starts = core::iter::once(self.own_address(first)?).chain(link.detour.iter().copied());
        Some(starts.zip(link.detour.iter().copied()).collect())
    }

    /// Returns the switch's own address of the same IP version as `other`.
    pub(crate) fn own_address(&self, other: IpAddr) -> Option<IpAddr> {
        self.addresses.iter().copied().find(|own| own.is_ipv6() == other.is_ipv6())
    }
}
