//! What the forwarding function is asked for.

use crate::drop::FaultSet;
use crate::{Nanos, PortId};
use core::fmt;
use core::net::IpAddr;
use core::str::FromStr;
use rocev2::ethernet::MacAddr;

/// Configuration of [`Forward`](super::Forward).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Number of ports; every [`PortId`] below is smaller
    pub ports: u16,
    /// Where frames go
    pub topology: Topology,
    /// Malformed frames that are dropped; the others are counted and go their way
    pub drop: FaultSet,
    /// Verify the ICRC of every packet
    pub verify_icrc: bool,
    /// Verify the UDP checksum of every packet that has one
    pub verify_udp_checksum: bool,
    /// Queue pairs that are counted one by one, 0 for none; packets to further ones are counted together
    pub counted_qps: usize,
}

impl Config {
    /// A learning bridge that drops nothing, looks at nothing twice, and counts no queue pairs by themselves. Stations are
    /// forgotten after five minutes, as IEEE 802.1Q has it.
    pub const fn bridge(ports: u16, capacity: usize) -> Self {
        let ageing = Nanos::from_secs(300);
        Self {
            ports,
            topology: Topology::Mac(MacTable { capacity, ageing, fixed: Vec::new() }),
            drop: FaultSet::NONE,
            verify_icrc: false,
            verify_udp_checksum: false,
            counted_qps: 0,
        }
    }
}

/// Where frames go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Topology {
    /// Wires: what comes in on one leaves on the other. Each port is in one pair; a port paired with itself
    /// reflects.
    Pairs(Vec<(PortId, PortId)>),
    /// A learning bridge
    Mac(MacTable),
    /// A router without a control plane: what is no IP packet, or has no route, goes no further
    Routes(RouteTable),
}

/// A router's table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteTable {
    /// The router's MAC address: what it sends to next hops that have one has to have come to it, and goes out from it
    pub mac: MacAddr,
    /// Whether a hop is counted
    pub ttl: Ttl,
    /// Which of equal next hops a flow takes depends on it; each switch had better have another
    pub seed: u64,
    /// The routes; of two to one prefix, the later one counts
    pub routes: Vec<Route>,
}

/// What becomes of the TTL, or hop limit, of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ttl {
    /// It stays: the switch cannot be seen. Routes must not have loops
    Keep,
    /// It is counted down, and a packet with none left is dropped, without a word to its sender
    Decrement,
}

/// A route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Which addresses it is for
    pub to: Prefix,
    /// Equal next hops, of which a flow takes one; without any, packets are dropped
    pub via: Vec<NextHop>,
}

/// Where a packet goes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextHop {
    /// Through which port
    pub port: PortId,
    /// To which MAC address; both stay as they are without
    pub mac: Option<MacAddr>,
}

/// The first bits of IP addresses, written `10.0.0.0/8`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Prefix {
    address: IpAddr,
    len: u8,
}

impl Prefix {
    /// The addresses that have their first `len` bits in common with this one, all of whose others have to be zero.
    pub fn new(address: IpAddr, len: u8) -> Option<Self> {
        let (bits, width) = match address {
            IpAddr::V4(v4) => (u128::from(v4.to_bits()) << 96, 32),
            IpAddr::V6(v6) => (v6.to_bits(), 128),
        };
        (len <= width && bits.trailing_zeros() >= 128 - u32::from(len)).then_some(Self { address, len })
    }

    /// The first address
    pub const fn address(&self) -> IpAddr {
        self.address
    }

    /// How many bits count
    #[expect(clippy::len_without_is_empty, reason = "of bits, not of elements")]
    pub const fn len(&self) -> u8 {
        self.len
    }

    /// Whether it is one of these addresses.
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

/// Not a prefix: no address with a length, or bits behind it
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

/// A bridge's table of stations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MacTable {
    /// Stations that are learnt at most
    pub capacity: usize,
    /// A station not heard of for so long is forgotten
    pub ageing: Nanos,
    /// Stations that are known from the start and stay where they are
    pub fixed: Vec<(MacAddr, PortId)>,
}
