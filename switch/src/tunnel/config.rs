//! What tunnel termination is asked for.

use core::net::IpAddr;
use rocev2::ethernet::MacAddr;

/// Configuration of [`Tunnel`](super::Tunnel).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The switch's own MAC address. Frames for others pass
    pub mac: MacAddr,
    /// The addresses at which tunnels end
    pub ends: Vec<IpAddr>,
    /// Whose packets are taken there: the representatives' and the neighbouring switches'. Anybody else could pass as a host of
    /// this network (RFC 2003, section 6)
    pub sources: Vec<IpAddr>,
    /// Who sends the inner packet on
    pub onward: Onward,
}

/// Who sends an inner packet on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Onward {
    /// The function behind, which routes. It gets the frame with this switch's MAC address, and spends the packet's hop
    Function,
    /// The function behind is a bridge: these inner destinations have these stations next, and a packet for others is dropped
    NextHops(Vec<(IpAddr, MacAddr)>),
}
