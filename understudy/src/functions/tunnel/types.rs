//! Contents of `[tunnel]`, and what it needs to know of the function behind the tunnels.

use core::net::IpAddr;
use rocev2::ethernet::MacAddr;
use switch::tunnel::{Config, InnerForwarding};

/// Contents of `[tunnel]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TunnelConfig {
    /// MAC address of the switch; the first port's if `None`
    pub(crate) mac: Option<MacAddr>,
    /// Addresses at which tunnels end
    pub(crate) endpoints: Vec<IpAddr>,
    /// Addresses from which tunnels are accepted
    pub(crate) sources: Vec<IpAddr>,
    /// What sends the inner packets on
    pub(crate) inner_forwarding: InnerForwarding,
}

impl TunnelConfig {
    /// Returns the configuration of a switch whose first port has the address `port_mac`.
    pub(crate) fn with_port_mac(&self, port_mac: MacAddr) -> Config {
        let Self { mac, endpoints, sources, inner_forwarding } = self.clone();
        Config { mac: mac.unwrap_or(port_mac), endpoints, sources, inner_forwarding }
    }
}

/// Properties of the function that handles the inner packets
#[derive(Clone, Copy)]
pub(crate) struct InnerFunction {
    /// MAC address of the router, if the function is a router that has one
    pub(in crate::functions) router_mac: Option<MacAddr>,
    /// MAC address of the switch, if the file sets it
    pub(in crate::functions) mac: Option<MacAddr>,
}
