//! What the forwarding function is asked for.

use crate::drop::FaultSet;
use crate::{Nanos, PortId};
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
