//! Questions to the kernel about interfaces, addresses and network namespaces (rtnetlink).

use crate::netlink::Socket;
use netlink_packet_core::NLM_F_DUMP;
use netlink_packet_route::RouteNetlinkMessage as Message;
use netlink_packet_route::address::{AddressAttribute, AddressMessage, AddressScope};
use netlink_packet_route::link::{LinkAttribute, LinkInfo, LinkMessage};
use netlink_packet_route::nsid::{NsidAttribute, NsidMessage};
use rustix::fd::{AsFd, AsRawFd as _};
use std::io;
use std::net::IpAddr;

/// A socket to the kernel, in the network namespace in which it was opened.
pub(super) struct Netlink(Socket);

/// An interface.
pub(super) struct Link {
    pub(super) index: u32,
    /// Type of a virtual interface
    pub(super) kind: Option<String>,
    /// Index of the interface that this one is connected to, in its namespace
    pub(super) peer: Option<u32>,
    /// Number of that namespace, if it is another one
    pub(super) peer_namespace: Option<i32>,
}

impl Netlink {
    pub(super) fn open() -> io::Result<Self> {
        Socket::open(0).map(Self)
    }

    /// Returns the interface with this name.
    pub(super) fn link(&self, name: &str) -> io::Result<Link> {
        let mut request = LinkMessage::default();
        request.attributes.push(LinkAttribute::IfName(name.to_owned()));
        let mut found = None;
        self.0.request(Message::GetLink(request), 0, |message| {
            if let Message::NewLink(link) = message {
                found = Some(link);
            }
        })?;
        let found = found.ok_or(io::ErrorKind::NotFound)?;
        let mut link = Link { index: found.header.index, kind: None, peer: None, peer_namespace: None };
        for attribute in found.attributes {
            match attribute {
                LinkAttribute::Link(index) => link.peer = Some(index),
                LinkAttribute::LinkNetNsId(id) => link.peer_namespace = Some(id),
                LinkAttribute::LinkInfo(infos) => {
                    link.kind = infos.into_iter().find_map(|info| match info {
                        LinkInfo::Kind(kind) => Some(kind.to_string()),
                        _ => None,
                    });
                }
                _ => {}
            }
        }
        Ok(link)
    }

    /// Returns the addresses of an interface with their prefix lengths, without link-local ones of IPv6.
    pub(super) fn addresses(&self, interface: u32) -> io::Result<Vec<(IpAddr, u8)>> {
        let mut addresses = Vec::new();
        self.0.request(Message::GetAddress(AddressMessage::default()), NLM_F_DUMP, |message| {
            let Message::NewAddress(message) = message else { return };
            let header = message.header;
            let address = |local: bool| {
                message.attributes.iter().find_map(|attribute| match attribute {
                    AddressAttribute::Local(ip) if local => Some(*ip),
                    AddressAttribute::Address(ip) if !local => Some(*ip),
                    _ => None,
                })
            };
            // Of a point-to-point interface, `Address` is the other end.
            let Some(ip) = address(true).or_else(|| address(false)) else { return };
            let link_local = ip.is_ipv6() && header.scope == AddressScope::Link;
            if header.index == interface && !link_local {
                addresses.push((ip, header.prefix_len));
            }
        })?;
        Ok(addresses)
    }

    /// Returns the number that this namespace has for the network namespace of a file, if it has one.
    pub(super) fn namespace_id(&self, file: impl AsFd) -> io::Result<Option<i32>> {
        let mut request = NsidMessage::default();
        request.attributes.push(NsidAttribute::Fd(file.as_fd().as_raw_fd().cast_unsigned()));
        let mut id = None;
        self.0.request(Message::GetNsId(request), 0, |message| {
            if let Message::NewNsId(message) = message {
                id = message.attributes.iter().find_map(|attribute| match attribute {
                    NsidAttribute::Id(id) if *id >= 0 => Some(*id),
                    _ => None,
                });
            }
        })?;
        Ok(id)
    }
}
