//! What a requester of groups needs: the switch's address. [`wire`](crate::wire) has its requests.

use core::net::IpAddr;

/// Address at which a switch accepts requests for groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwitchAddress {
    /// IP address
    pub address: IpAddr,
    /// Port for requests for groups, in `rdma_cm`'s TCP port space
    pub port: u16,
}
