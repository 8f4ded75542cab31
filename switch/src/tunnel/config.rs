//! Configuration of tunnel termination.

use core::net::IpAddr;
use rocev2::ethernet::MacAddr;

/// Configuration of [`Tunnel`](super::Tunnel).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// MAC address of the switch; frames for other addresses pass unchanged
    pub mac: MacAddr,
    /// Tunnel endpoint addresses of the switch
    pub endpoints: Vec<IpAddr>,
    /// Permitted outer sources: the representatives and the neighbour switches. Without this check any sender
    /// could impersonate a host of this network (RFC 2003, section 6)
    pub sources: Vec<IpAddr>,
    /// How the inner packet is forwarded
    pub inner_forwarding: InnerForwarding,
}

/// How an inner packet is forwarded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InnerForwarding {
    /// The function behind routes. It gets the frame with this switch's MAC address, and decrements the TTL
    Function,
    /// The function behind is a bridge. These are the next hops by inner destination; packets for other
    /// destinations are dropped
    NextHops(Vec<(IpAddr, MacAddr)>),
}
