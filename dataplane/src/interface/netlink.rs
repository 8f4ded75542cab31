//! Questions to the kernel about interfaces, addresses and network namespaces (rtnetlink).

use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage as Message;
use netlink_packet_route::address::{AddressAttribute, AddressMessage, AddressScope};
use netlink_packet_route::link::{LinkAttribute, LinkInfo, LinkMessage};
use netlink_packet_route::nsid::{NsidAttribute, NsidMessage};
use rustix::fd::{AsFd, AsRawFd as _, OwnedFd};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with};
use std::io;
use std::net::IpAddr;
use std::time::Duration;

/// Largest datagram that the kernel sends, in bytes (`NLMSG_GOODSIZE` with huge pages)
const MAX_DATAGRAM: usize = 32 << 10;
/// Time limit of an answer, which the kernel gives at once
const TIMEOUT: Duration = Duration::from_secs(2);

/// A socket to the kernel, in the network namespace in which it was opened.
pub(super) struct Netlink(OwnedFd);

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
        // Protocol 0 is NETLINK_ROUTE.
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
        set_socket_timeout(&socket, Timeout::Recv, Some(TIMEOUT))?;
        Ok(Self(socket))
    }

    /// Returns the interface with this name.
    pub(super) fn link(&mut self, name: &str) -> io::Result<Link> {
        let mut request = LinkMessage::default();
        request.attributes.push(LinkAttribute::IfName(name.to_owned()));
        let mut found = None;
        self.ask(Message::GetLink(request), 0, |message| {
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
    pub(super) fn addresses(&mut self, interface: u32) -> io::Result<Vec<(IpAddr, u8)>> {
        let mut addresses = Vec::new();
        self.ask(Message::GetAddress(AddressMessage::default()), NLM_F_DUMP, |message| {
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
    pub(super) fn namespace_id(&mut self, file: impl AsFd) -> io::Result<Option<i32>> {
        let mut request = NsidMessage::default();
        request.attributes.push(NsidAttribute::Fd(file.as_fd().as_raw_fd().cast_unsigned()));
        let mut id = None;
        self.ask(Message::GetNsId(request), 0, |message| {
            if let Message::NewNsId(message) = message {
                id = message.attributes.iter().find_map(|attribute| match attribute {
                    NsidAttribute::Id(id) if *id >= 0 => Some(*id),
                    _ => None,
                });
            }
        })?;
        Ok(id)
    }

    /// Sends a request and passes each message of the answer to `on_message`.
    fn ask(&mut self, request: Message, flags: u16, mut on_message: impl FnMut(Message)) -> io::Result<()> {
        let mut request = NetlinkMessage::from(request);
        request.header.flags = NLM_F_REQUEST | flags;
        request.finalize();
        let mut bytes = vec![0; request.buffer_len()];
        request.serialize(&mut bytes);
        send(&self.0, &bytes, SendFlags::empty())?;
        let mut datagram = vec![0; MAX_DATAGRAM];
        loop {
            let (len, _) = recv(&self.0, &mut datagram[..], RecvFlags::empty())?;
            let mut rest = &datagram[..len];
            while !rest.is_empty() {
                let message = NetlinkMessage::<Message>::deserialize(rest).map_err(io::Error::other)?;
                // Messages are aligned to four bytes.
                rest = &rest[(message.header.length as usize).next_multiple_of(4).clamp(1, rest.len())..];
                match message.payload {
                    NetlinkPayload::InnerMessage(message) => on_message(message),
                    NetlinkPayload::Error(error) => return Err(error.to_io()),
                    _ => return Ok(()),
                }
            }
            if flags & NLM_F_DUMP != NLM_F_DUMP {
                return Ok(());
            }
        }
    }
}
