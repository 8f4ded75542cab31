//! Kernel interfaces of ports: addresses and offloads that interfere with a port, and the other ends of veths.
//!
//! The kernel is asked through netlink and ethtool; for an interface in another network namespace, by a thread
//! that enters it, which needs CAP_SYS_ADMIN.

mod ethtool;
mod netlink;
mod peer;

pub use ethtool::Offloads;
use netlink::Netlink;
pub use peer::{Namespace, Peer};
use std::io;
use std::net::IpAddr;

/// An interface of the network namespace of this process.
#[derive(Clone, Debug)]
pub struct Interface {
    /// Addresses with their prefix lengths, without link-local addresses of IPv6
    pub addresses: Vec<(IpAddr, u8)>,
    /// Offloads that are on
    pub offloads: Offloads,
    /// Type of a virtual interface, such as `veth` or `tun`
    pub kind: Option<String>,
    /// The other end of a veth
    pub peer: Option<Peer>,
}

impl Interface {
    /// Asks the kernel about an interface.
    ///
    /// # Errors
    /// The interface does not exist, or the kernel does not answer.
    pub fn query(name: &str) -> io::Result<Self> {
        let netlink = Netlink::open()?;
        let link = netlink.link(name)?;
        let peer = link.peer.filter(|_| link.kind.as_deref() == Some("veth"));
        Ok(Self {
            addresses: netlink.addresses(link.index)?,
            offloads: Offloads::query(name)?,
            kind: link.kind,
            peer: peer.map(|index| Peer::find(index, link.peer_namespace, &netlink)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_has_its_address_and_no_other_end() {
        let lo = Interface::query("lo").unwrap();
        assert_eq!(lo.kind, None);
        assert!(lo.peer.is_none(), "{lo:?}");
        // The interface may be down, or without IPv6.
        let known =
            |(ip, prefix): &(IpAddr, u8)| ip.is_loopback() && matches!(prefix, 8 | 128) || !ip.is_loopback();
        assert!(lo.addresses.iter().all(known), "{lo:?}");
        assert!(lo.offloads.tx_checksum && lo.offloads.gso, "the kernel's `lo` always has them: {lo:?}");
        assert_eq!(Interface::query("no-such-one").unwrap_err().raw_os_error(), Some(libc::ENODEV));
    }
}
