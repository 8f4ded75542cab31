//! Configuration of a process.

use crate::clock::ClockSource;
use crate::datagram::Template;
use crate::header::{OnePipe, Timestamp};
use core::net::IpAddr;
use rocev2::Qpn;
use rocev2::ethernet::MacAddr;
use rocev2::path_headers::{PathHeaderFields, PathHeaders};
use switch::Nanos;
use switch::table::mix;
use switch::tunnel::{self, EncapsulationError};

use super::types::ProcessId;

/// Maximum length of a message, in bytes
pub const MAX_MESSAGE: usize = 16 << 20;
/// Bytes of a window that a packet takes in addition to its payload: the receiver's cost of buffering a small
/// packet
pub const PACKET_COST: usize = 64;
/// Maximum number of packets in flight to one receiver: a quarter of all PSNs
const MAX_PACKETS: usize = 1 << 22;
/// Maximum number of NAKs waiting to be sent; also of saved ACKs, in addition to one per peer
pub(super) const MAX_ANSWERS: usize = 1024;
/// Minimum number of bytes that are granted to a member of the reliable service
const MIN_GRANT: usize = 4 << 10;
/// ECN-capable (RFC 3168, ECT(0))
const ECN_CAPABLE: u8 = 2;

/// Returns the bytes that a packet takes of windows and buffers.
pub(super) const fn cost(payload: usize) -> usize {
    payload + PACKET_COST
}

/// Configuration of a [`Process`](super::Process).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// This process
    pub own: Peer,
    /// Processes with which this process exchanges messages
    pub peers: Vec<Peer>,
    /// Node that keeps the barrier of this process's link: the ToR switch, or its representative. Beacons are
    /// sent to this node and received from it
    pub tor: BeaconPeer,
    /// Second such node, if the switch has a standby: it gets the same beacons, and it is enough to hear one
    pub standby: Option<BeaconPeer>,
    /// `Q_Key` of 1Pipe's datagrams
    pub qkey: u32,
    /// Maximum size of 1Pipe header and data of a packet, in bytes: the path MTU, 256 to 4,096
    pub mtu: usize,
    /// Traffic class of all packets, whose DSCP is that of the representative's beacons. The ECN bits are
    /// ignored and set to ECT(0)
    pub traffic_class: u8,
    /// Hop limit or TTL of packets
    pub hop_limit: u8,
    /// Interval between beacons, 1 us to 1 ms; the same in the whole network
    pub beacon_interval: Nanos,
    /// Maximum number of bytes of messages that have not been sent
    pub send_buffer: usize,
    /// Maximum number of messages whose result has not been reported to the application
    pub max_unsettled: usize,
    /// Maximum number of bytes that this process buffers for one sender until the application has taken them;
    /// also assumed of the peers before they have advertised their windows. [`PACKET_COST`] is added for each
    /// packet. A longer message cannot be sent
    pub receive_window: u32,
    /// Maximum number of bytes that this process buffers for all senders, counted as for `receive_window`
    pub receive_buffer: usize,
    /// Maximum number of bytes of reliable messages that this process buffers for all members, counted as for
    /// `receive_window`
    pub reliable_buffer: usize,
    /// Maximum number of members of the reliable service, this process included. Each is granted an equal
    /// share of `reliable_buffer`, which is the longest run of reliable messages to this process
    pub max_members: usize,
    /// Initial congestion window of a receiver in bytes (1Pipe, section 6.1: DCTCP), counted as for
    /// `receive_window`
    pub initial_window: u32,
    /// Time after which a message that has not been acknowledged has failed
    pub timeout: Nanos,
    /// Maximum delay of an acknowledgement
    pub ack_delay: Nanos,
    /// Number of packets after which an acknowledgement is sent at once
    pub ack_every: u32,
    /// A message that is ahead of the clock by more than this is refused, and a barrier counts as ahead by
    /// this. Synchronised clocks differ by microseconds
    pub ahead_max: Nanos,
    /// Largest difference between the clocks of two processes, at most `ahead_max`. A process that starts
    /// accepts only messages stamped later than its clock and the first barrier by this time, so none that was
    /// sent to its previous incarnation. 0: it accepts all, in a network in which no process restarts
    pub clock_error: Nanos,
    /// Time after which a barrier that has not risen is reported to the application
    /// ([`Event::Stalled`](super::Event::Stalled)), to the beacon interval; 0 for never
    pub stall_after: Nanos,
    /// What 1Pipe's clock follows. With [`ClockSource::Beacons`] the process sends nothing but clock beacons until it
    /// has the time of its network, some 2 ms
    pub clock_source: ClockSource,
    /// Maximum time between the machine's clock and that of clock beacons: a time beyond it is ignored
    pub clock_limit: Nanos,
    /// 1Pipe's time when the runner's time is 0. [`Process::set_clock`](super::Process::set_clock) corrects
    /// it
    pub clock: Timestamp,
    /// Seed of the initial PSNs and of the incarnation number
    pub seed: u64,
    /// Whether beacons declare what this process reads and writes; false for a process of an earlier version, in
    /// tests of mixed networks
    pub declares: bool,
    /// Planted bug, to check that tests find it; has no effect without debug assertions
    pub bug: Option<super::bug::Bug>,
    /// Planted bug of a link with two ends
    pub ends_bug: Option<crate::ends::Bug>,
    /// Planted bug of clock beacons
    pub clock_bug: Option<crate::clock_sync::Bug>,
}

/// A process, as its peers address it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Number of the process, unique in the whole network: equal timestamps are ordered by it
    pub id: ProcessId,
    /// Destination MAC address of frames for it: its own, or the next hop's
    pub mac: MacAddr,
    /// IP address
    pub address: IpAddr,
    /// Queue pair
    pub qpn: Qpn,
}

/// Other end of a process's link, for beacons.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BeaconPeer {
    /// Destination MAC address of beacons
    pub mac: MacAddr,
    /// IP address. Beacons from other addresses are refused
    pub address: IpAddr,
    /// Queue pair
    pub qpn: Qpn,
    /// Switches through which beacons are tunnelled onto the link if routes would lead them elsewhere. A
    /// process whose host represents its own switch needs that switch here (1Pipe, section 6.2.3)
    pub detour: Vec<IpAddr>,
}

impl Config {
    /// Returns whether this bug was planted. Release builds have no bugs.
    #[inline]
    pub(super) fn has_bug(&self, bug: super::bug::Bug) -> bool {
        cfg!(debug_assertions) && self.bug == Some(bug)
    }

    /// Returns a configuration with the paper's values where the paper gives any: beacons every 3 us, best
    /// effort. There are no peers.
    pub fn new(own: Peer, tor: BeaconPeer) -> Self {
        Self {
            own,
            peers: Vec::new(),
            tor,
            standby: None,
            qkey: OnePipe::QKEY,
            mtu: 1024,
            traffic_class: 0,
            hop_limit: 64,
            beacon_interval: Nanos::from_micros(3),
            send_buffer: 64 << 20,
            max_unsettled: 1 << 16,
            receive_window: 18 << 20,
            receive_buffer: 256 << 20,
            reliable_buffer: 128 << 20,
            max_members: 512,
            initial_window: 64 << 10,
            timeout: Nanos::from_millis(1),
            ack_delay: Nanos::from_micros(3),
            ack_every: 16,
            ahead_max: Nanos::from_millis(10),
            clock_error: Nanos::from_micros(100),
            stall_after: Nanos::from_micros(300),
            clock_source: ClockSource::Host,
            clock_limit: Nanos::from_millis(2_000),
            clock: Timestamp::default(),
            seed: 0,
            declares: true,
            bug: None,
            ends_bug: None,
            clock_bug: None,
        }
    }

    /// Returns the maximum number of data bytes of a packet.
    pub(super) const fn fragment(&self) -> usize {
        self.mtu - OnePipe::LEN
    }

    /// Returns the bytes granted to each member of the reliable service.
    pub const fn reliable_grant(&self) -> usize {
        self.reliable_buffer / self.max_members
    }

    /// Returns the tunnels of a detour as (start, end), each starting where the previous one ends.
    pub(super) fn tunnels(&self, to: &BeaconPeer) -> Vec<(IpAddr, IpAddr)> {
        let ends = &to.detour;
        core::iter::once(self.own.address).chain(ends.iter().copied()).zip(ends.iter().copied()).collect()
    }

    /// Returns the template of datagrams to a queue pair.
    pub(super) fn template(&self, mac: MacAddr, address: IpAddr, qpn: Qpn) -> Result<Template, ConfigError> {
        self.template_from(self.own.qpn, mac, address, qpn)
    }

    /// Returns the template of datagrams from this process's queue pair `from` to a queue pair.
    pub(super) fn template_from(
        &self,
        from: Qpn,
        mac: MacAddr,
        address: IpAddr,
        qpn: Qpn,
    ) -> Result<Template, ConfigError> {
        let own = &self.own;
        // One path for each pair of queue pairs, different from pair to pair (IB A17.4.5)
        let mixed = mix(u64::from(from.get()) << 24 | u64::from(qpn.get()));
        PathHeaders::new(&PathHeaderFields {
            src_mac: own.mac,
            dst_mac: mac,
            vlan: None,
            src: own.address,
            dst: address,
            traffic_class: self.traffic_class & !3 | ECN_CAPABLE,
            hop_limit: self.hop_limit,
            src_port: 0xc000 | (mixed as u16 & 0x3fff),
        })
        .map(|route| Template::new(route, qpn, self.qkey, from))
        .ok_or(ConfigError::IpVersion(address))
    }

    /// Validates the values that do not depend on the table of peers.
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        if !(256..=rocev2::MAX_PAYLOAD).contains(&self.mtu) || !self.mtu.is_multiple_of(4) {
            return Err(ConfigError::Mtu(self.mtu));
        }
        if !(Nanos::from_micros(1)..=Nanos::from_millis(1)).contains(&self.beacon_interval) {
            return Err(ConfigError::Interval(self.beacon_interval));
        }
        let packet = self.fragment() + PACKET_COST;
        for (name, bytes) in [
            ("receive_window", self.receive_window as usize),
            ("receive_buffer", self.receive_buffer),
            ("initial_window", self.initial_window as usize),
        ] {
            if bytes < packet {
                return Err(ConfigError::Window { name, bytes, packet });
            }
        }
        let (window, most) = (self.receive_window, MAX_PACKETS * PACKET_COST);
        if window as usize > most {
            return Err(ConfigError::TooManyPackets { window, most });
        }
        for tor in core::iter::once(&self.tor).chain(&self.standby) {
            tunnel::check_tunnels(&self.tunnels(tor)).map_err(ConfigError::Detour)?;
        }
        if let Some(standby) = self.standby.as_ref().filter(|standby| standby.address == self.tor.address) {
            return Err(ConfigError::SameEnd(standby.address));
        }
        if self.clock_source == ClockSource::Beacons && self.standby.is_some() {
            return Err(ConfigError::ClockOfTwo);
        }
        if self.clock_error > self.ahead_max {
            return Err(ConfigError::ClockError { clock_error: self.clock_error, ahead_max: self.ahead_max });
        }
        if self.timeout <= self.ack_delay {
            return Err(ConfigError::Timeout { timeout: self.timeout, ack_delay: self.ack_delay });
        }
        Ok(())
    }

    /// Validates the values of the reliable service, which a process that has not joined does not need.
    pub(super) fn check_reliable(&self) -> Result<(), ConfigError> {
        let (packet, most) = (self.fragment() + PACKET_COST, MAX_PACKETS * PACKET_COST);
        if self.max_members <= self.peers.len() {
            return Err(ConfigError::Members { max: self.max_members, peers: self.peers.len() });
        }
        let grant = self.reliable_grant();
        if !(MIN_GRANT.max(packet)..=most.min(u32::MAX as usize)).contains(&grant) {
            return Err(ConfigError::Grant { grant, least: MIN_GRANT.max(packet), most });
        }
        Ok(())
    }
}

/// Invalid configuration of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The MTU is out of range, or not a multiple of four
    #[error("mtu = {0} is out of range; set a multiple of four between 256 and 4096")]
    Mtu(usize),
    /// The beacon interval is out of range
    #[error("beacon interval of {} ns is out of range; set 1000 to 1000000 ns", .0.0)]
    Interval(Nanos),
    /// A window or buffer that is smaller than a packet
    #[error("{name} of {bytes} bytes is smaller than a packet; set at least {packet}")]
    Window {
        /// Name of the setting
        name: &'static str,
        /// Its value, in bytes
        bytes: usize,
        /// Minimum value, in bytes
        packet: usize,
    },
    /// A receive window of more packets than PSNs can distinguish
    #[error(
        "receive_window of {window} bytes holds more packets than PSNs can distinguish; set at most {most}"
    )]
    TooManyPackets {
        /// Its value, in bytes
        window: u32,
        /// Maximum value, in bytes
        most: usize,
    },
    /// There are more members than the reliable buffer is divided by
    #[error("max_members = {max} is not more than the {peers} peers; set at least {}", .peers + 1)]
    Members {
        /// Value of `max_members`
        max: usize,
        /// Number of peers
        peers: usize,
    },
    /// A share of the reliable buffer that is too small or too large
    #[error(
        "reliable_buffer / max_members is {grant} bytes; set the two so that it is at least {least} and at most {most}"
    )]
    Grant {
        /// Share of each member, in bytes
        grant: usize,
        /// Minimum value, in bytes
        least: usize,
        /// Maximum value, in bytes
        most: usize,
    },
    /// Every message would fail before it could be acknowledged
    #[error("message timeout of {} ns is too short; set more than the ack delay of {} ns", .timeout.0, .ack_delay.0)]
    Timeout {
        /// Timeout of messages
        timeout: Nanos,
        /// Delay of acknowledgements
        ack_delay: Nanos,
    },
    /// Clocks that may differ by more than what is refused as too far ahead
    #[error(
        "clock_error of {} ns is longer than ahead_max of {} ns, so messages of correct processes would be refused; set at most ahead_max",
        .clock_error.0,
        .ahead_max.0
    )]
    ClockError {
        /// Largest difference between two clocks
        clock_error: Nanos,
        /// Lead from which timestamps are refused
        ahead_max: Nanos,
    },
    /// Two processes have the same number, or the same address and queue pair
    #[error("process {0}: its number, or its address and queue pair, occur twice; make them unique")]
    Duplicate(ProcessId),
    /// Address of another IP version than the process's own
    #[error("{0} is of another IP version than the process's own address; use the same version")]
    IpVersion(IpAddr),
    /// Both ends of the link have the same address, by which they are distinguished
    #[error("{0} is the address of both ends of the link; name another host for the standby, or remove it")]
    SameEnd(IpAddr),
    /// Clock beacons on a link with two ends
    #[error(
        "the clock cannot follow clock beacons where the switch has a standby; remove the standby, or set the machine's clock as source"
    )]
    ClockOfTwo,
    /// The detour of its beacons has addresses of two IP versions, or is invalid otherwise
    #[error("invalid detour: {0}")]
    Detour(EncapsulationError),
}
