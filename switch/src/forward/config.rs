//! Configuration of the forwarding function.

use super::health::Monitor;
use super::queue_pairs::QpIndex;
use crate::drop::FaultSet;
use crate::{Nanos, PortId};
use core::fmt;
use core::net::IpAddr;
use core::str::FromStr;
use rocev2::ethernet::MacAddr;

/// Configuration of [`Forward`](super::Forward).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Count of ports; every [`PortId`] below is smaller
    pub ports: u16,
    /// How frames are forwarded
    pub mode: ForwardingMode,
    /// Faults whose frames are dropped; other malformed frames are counted and forwarded
    pub drop: FaultSet,
    /// Whether to verify the ICRC of every packet
    pub verify_icrc: bool,
    /// Whether to verify the UDP checksum of every packet that has one
    pub verify_udp_checksum: bool,
    /// Count of queue pairs with counters of their own, 0 for none; packets to any further queue pairs are
    /// counted together
    pub counted_qps: usize,
    /// Whether to observe the health of each of them: gaps, retransmissions, NAKs, congestion, round-trip times
    pub health: bool,
}

impl Config {
    /// Returns the memory of counters per queue pair, in bytes. Each worker has its own.
    pub fn queue_pair_memory(counted_qps: usize, health: bool) -> usize {
        QpIndex::bytes(counted_qps) + if health { Monitor::bytes(counted_qps) } else { 0 }
    }

    /// Returns the configuration of a learning bridge that drops no malformed frames, verifies neither ICRC
    /// nor UDP checksum, and has no counters per queue pair. Stations age out after five minutes, the default
    /// of IEEE 802.1Q.
    pub const fn bridge(ports: u16, capacity: usize) -> Self {
        let ageing = Nanos::from_secs(300);
        Self {
            ports,
            mode: ForwardingMode::Mac(MacTable { capacity, ageing, fixed: Vec::new() }),
            drop: FaultSet::NONE,
            verify_icrc: false,
            verify_udp_checksum: false,
            counted_qps: 0,
            health: false,
        }
    }
}

/// How frames are forwarded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ForwardingMode {
    /// Point-to-point wires: a frame received on one port of a pair is sent on the other. Each port is in one
    /// pair; a port paired with itself reflects its frames
    Pairs(Vec<(PortId, PortId)>),
    /// A learning bridge
    Mac(MacTable),
    /// A router without a control plane: frames that are not IP, or that no route matches, are dropped
    Routes(RouteTable),
}

/// Routing table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteTable {
    /// MAC address of the router. Frames for a next hop with a MAC address have to be addressed to it, and
    /// are sent with it as source
    pub mac: MacAddr,
    /// Whether forwarding decrements the TTL
    pub ttl: Ttl,
    /// Seed of the hash that selects one of several equal-cost next hops; it should differ between switches
    pub seed: u64,
    /// Routes; the later of two with the same prefix takes precedence
    pub routes: Vec<Route>,
}

/// Treatment of the TTL or hop limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ttl {
    /// Unchanged: the switch is invisible to traceroute. Routes must not contain loops
    Keep,
    /// Decremented; a packet whose TTL is used up is dropped without an ICMP message to its sender
    Decrement,
}

/// A route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Destination prefix
    pub to: Prefix,
    /// Equal-cost next hops, of which each flow uses one; if empty, packets are dropped
    pub via: Vec<NextHop>,
}

/// A next hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextHop {
    /// Output port
    pub port: PortId,
    /// MAC address of the next hop; without one, both MAC addresses of the frame are left unchanged
    pub mac: Option<MacAddr>,
}

/// An IP prefix, such as `10.0.0.0/8`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Prefix {
    address: IpAddr,
    len: u8,
}

impl Prefix {
    /// Returns the prefix of `len` bits, or `None` if `len` exceeds the address's length or one of the bits
    /// behind the prefix is set.
    pub fn new(address: IpAddr, len: u8) -> Option<Self> {
        let (bits, width) = match address {
            IpAddr::V4(v4) => (u128::from(v4.to_bits()) << 96, 32),
            IpAddr::V6(v6) => (v6.to_bits(), 128),
        };
        (len <= width && bits.trailing_zeros() >= 128 - u32::from(len)).then_some(Self { address, len })
    }

    /// First address of the prefix
    pub const fn address(&self) -> IpAddr {
        self.address
    }

    /// Length of the prefix, in bits
    #[expect(clippy::len_without_is_empty, reason = "counts bits, not elements")]
    pub const fn len(&self) -> u8 {
        self.len
    }

    /// Returns whether the prefix contains an address.
    pub fn contains(&self, other: IpAddr) -> bool {
        match (self.address, other) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                (own.to_bits() ^ other.to_bits()).leading_zeros() >= self.len.into()
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                (own.to_bits() ^ other.to_bits()).leading_zeros() >= self.len.into()
            }
            _ => false,
        }
    }
}

/// The text is not a prefix: the length is missing or too large, or bits behind the prefix are set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a prefix such as 10.0.0.0/8 or fd00::/16")]
pub struct NoPrefix;

impl FromStr for Prefix {
    type Err = NoPrefix;

    fn from_str(text: &str) -> Result<Self, NoPrefix> {
        let (address, len) = text.split_once('/').ok_or(NoPrefix)?;
        let (address, len) = (address.parse().map_err(|_| NoPrefix)?, len.parse().map_err(|_| NoPrefix)?);
        Self::new(address, len).ok_or(NoPrefix)
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.len)
    }
}

/// MAC address table of a bridge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MacTable {
    /// Maximum count of learnt stations
    pub capacity: usize,
    /// Time after which a station that sends nothing is removed
    pub ageing: Nanos,
    /// Static entries, which neither move nor age out
    pub fixed: Vec<(MacAddr, PortId)>,
}
