//! Addresses, queue pairs and times that all nodes of a network have in common.

use core::net::Ipv4Addr;
use onepipe::Timestamp;
use representative::config::Registers;
use rocev2::Qpn;
use rocev2::ethernet::MacAddr;
use sim::EPOCH;
use switch::Nanos;

/// Time between two beacons, as in the paper
pub const BEACON_INTERVAL: Nanos = Nanos::from_micros(3);
/// 1Pipe's time when a clock of the simulator shows 0: timestamps wrap around 100 us after the world begins.
pub(super) const CLOCK: Timestamp = Timestamp::new((1 << 48) - EPOCH.0 - 100_000);

/// Returns 1Pipe's time of a clock that is ahead by `by_ns` when a clock of the simulator shows 0.
pub(super) fn shifted_clock(by_ns: i64) -> Timestamp {
    Timestamp::new(CLOCK.nanos().wrapping_add_signed(by_ns))
}

pub(super) const FIRST_QP: Qpn = Qpn::new(0x100);
pub(super) const HOST_QP: Qpn = Qpn::new(0x11);
pub(super) const REGISTERS: Registers = Registers { va: 0x10_0000, rkey: 0x77 };

/// Addresses of a node
#[derive(Clone, Copy, Debug)]
pub(super) struct Addresses {
    pub(super) mac: MacAddr,
    pub(super) ip: Ipv4Addr,
    pub(super) qpn: Qpn,
}

pub(super) fn host_addresses(n: usize) -> Addresses {
    let [high, low] = (n as u16).to_be_bytes();
    Addresses { mac: MacAddr([2, 0, 0, 0, high, low]), ip: Ipv4Addr::new(10, 0, high, low), qpn: HOST_QP }
}

/// Returns the addresses of a switch, or of its representative, for the neighbour at link `link`.
pub(super) fn switch_addresses(n: usize, link: usize) -> Addresses {
    let [high, low] = (n as u16).to_be_bytes();
    let qpn = Qpn::new(FIRST_QP.get() + link as u32);
    Addresses { mac: MacAddr([2, 0, 0, 1, high, low]), ip: Ipv4Addr::new(10, 1, high, low), qpn }
}

/// Returns the addresses of the standby of a switch's representative, for the neighbour at link `link`.
pub(super) fn standby_addresses(n: usize, link: usize) -> Addresses {
    let Addresses { mac: MacAddr(mut mac), ip, qpn } = switch_addresses(n, link);
    mac[3] = 3;
    let [_, _, high, low] = ip.octets();
    Addresses { mac: MacAddr(mac), ip: Ipv4Addr::new(10, 3, high, low), qpn }
}
