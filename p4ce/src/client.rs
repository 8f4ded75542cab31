//! Address of the switch, for a leader that requests groups. [`wire`](crate::wire) has the layout of its
//! requests.

use core::net::IpAddr;

/// Address at which a switch accepts requests for groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwitchAddress {
    /// IP address
    pub address: IpAddr,
    /// Port for requests for groups, in `rdma_cm`'s TCP port space
    pub port: u16,
}
