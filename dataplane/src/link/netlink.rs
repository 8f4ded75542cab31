//! State and counters of the kernel's interfaces, by rtnetlink. A netlink socket belongs to a network
//! namespace, unlike /sys/class/net, which may show those of another one.

use super::Link;
use core::cell::{Cell, RefCell};
use netlink_packet_core::{NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkMessage, Stats64};
use rustix::fd::OwnedFd;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with,
};
use std::io;

/// Largest datagram that the kernel sends, in bytes (`NLMSG_GOODSIZE` with huge pages)
const BUFFER_LEN: usize = 32 * 1024;

/// An interface as the kernel describes it.
#[derive(Debug)]
pub(crate) struct Description {
    pub(crate) index: u32,
    pub(crate) name: String,
    /// State of its link, which is never [`Link::Gone`]
    pub(crate) link: Link,
    pub(crate) counters: Stats64,
}

/// A change of an interface.
#[derive(Debug)]
pub(crate) enum Event {
    Changed(Box<Description>),
    /// The interface with this index was removed, or moved to another network namespace
    Removed(u32),
    /// Events were lost
    Lost,
}

/// Socket for requests.
#[derive(Debug)]
pub(crate) struct Requests {
    socket: Socket,
    sequence: Cell<u32>,
}

/// Socket for events.
#[derive(Debug)]
pub(crate) struct Events(Socket);

/// A netlink socket, which does not block, and its receive buffer.
#[derive(Debug)]
struct Socket {
    fd: OwnedFd,
    buffer: RefCell<Vec<u8>>,
}

impl Requests {
    pub(crate) fn open() -> io::Result<Self> {
        Ok(Self { socket: Socket::open(0)?, sequence: Cell::new(0) })
    }

    /// Returns the interface with this index, or `None` if there is none in this network namespace.
    pub(crate) fn interface(&self, index: u32) -> io::Result<Option<Description>> {
        let mut link = LinkMessage::default();
        link.header.index = index;
        self.ask(link)
    }

    /// Returns the interface with this name, or `None` if there is none in this network namespace.
    pub(crate) fn interface_by_name(&self, name: &str) -> io::Result<Option<Description>> {
        let mut link = LinkMessage::default();
        link.attributes.push(LinkAttribute::IfName(name.into()));
        self.ask(link)
    }

    fn ask(&self, link: LinkMessage) -> io::Result<Option<Description>> {
        let mut request = NetlinkMessage::from(RouteNetlinkMessage::GetLink(link));
        self.sequence.set(self.sequence.get().wrapping_add(1));
        request.header.flags = NLM_F_REQUEST;
        request.header.sequence_number = self.sequence.get();
        request.finalize();
        let mut bytes = vec![0; request.buffer_len()];
        request.serialize(&mut bytes);
        send(&self.socket.fd, &bytes, SendFlags::empty())?;
        // The kernel has answered when the request is sent.
        loop {
            let Some(bytes) = self.socket.receive()? else { return Err(io::ErrorKind::WouldBlock.into()) };
            for message in messages(&bytes) {
                if message.header.sequence_number != self.sequence.get() {
                    continue;
                }
                return match message.payload {
                    NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewLink(link)) => {
                        Ok(Some(describe(link)))
                    }
                    NetlinkPayload::Error(error) => match error.to_io() {
                        error if error.raw_os_error() == Some(libc::ENODEV) => Ok(None),
                        error => Err(error),
                    },
                    _ => Err(io::ErrorKind::InvalidData.into()),
                };
            }
        }
    }
}

impl Events {
    /// Subscribes to the changes of all interfaces of this network namespace.
    pub(crate) fn open() -> io::Result<Self> {
        Socket::open(libc::RTMGRP_LINK as u32).map(Self)
    }

    /// Returns the changes since the last call.
    pub(crate) fn poll(&self) -> Vec<Event> {
        let mut events = Vec::new();
        loop {
            match self.0.receive() {
                Ok(Some(bytes)) => events.extend(messages(&bytes).filter_map(event)),
                Ok(None) => return events,
                // The socket's buffer was full; messages before and after that remain in their order.
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => events.push(Event::Lost),
                Err(_) => {
                    events.push(Event::Lost);
                    return events;
                }
            }
        }
    }
}

impl Socket {
    /// Opens a socket that gets the events of these groups.
    fn open(groups: u32) -> io::Result<Self> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        // No protocol number, which is 0, means NETLINK_ROUTE.
        let fd = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        bind(&fd, &SocketAddrNetlink::new(0, groups))?;
        Ok(Self { fd, buffer: vec![0; BUFFER_LEN].into() })
    }

    /// Returns the next datagram, or `None` if there is none.
    fn receive(&self) -> io::Result<Option<Vec<u8>>> {
        let mut buffer = self.buffer.borrow_mut();
        match recv(&self.fd, buffer.as_mut_slice(), RecvFlags::empty()) {
            Ok((len, _)) => Ok(Some(buffer[..len].to_vec())),
            Err(rustix::io::Errno::AGAIN) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

/// Returns the messages of a datagram, without those that do not parse.
fn messages(mut bytes: &[u8]) -> impl Iterator<Item = NetlinkMessage<RouteNetlinkMessage>> {
    core::iter::from_fn(move || {
        loop {
            // A message begins with its length, and the next one at a multiple of four bytes.
            let len = u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?) as usize;
            let message = bytes.get(..len).filter(|message| message.len() >= 16)?;
            bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
            if let Ok(message) = NetlinkMessage::deserialize(message) {
                return Some(message);
            }
        }
    })
}

fn event(message: NetlinkMessage<RouteNetlinkMessage>) -> Option<Event> {
    match message.payload {
        NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewLink(link)) => {
            Some(Event::Changed(describe(link).into()))
        }
        NetlinkPayload::InnerMessage(RouteNetlinkMessage::DelLink(link)) => {
            Some(Event::Removed(link.header.index))
        }
        _ => None,
    }
}

fn describe(message: LinkMessage) -> Description {
    let flags = message.header.flags;
    let link = match (flags.contains(LinkFlags::Up), flags.contains(LinkFlags::LowerUp)) {
        (true, true) => Link::Up,
        (true, false) => Link::NoCarrier,
        (false, _) => Link::Down,
    };
    let mut description =
        Description { index: message.header.index, name: String::new(), link, counters: Stats64::default() };
    for attribute in message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => description.name = name,
            LinkAttribute::Stats64(counters) => description.counters = counters,
            _ => {}
        }
    }
    description
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a datagram of these messages.
    fn datagram(messages: &[RouteNetlinkMessage]) -> Vec<u8> {
        let mut datagram = Vec::new();
        for message in messages {
            let mut message = NetlinkMessage::from(message.clone());
            message.finalize();
            let mut bytes = vec![0; message.buffer_len().next_multiple_of(4)];
            message.serialize(&mut bytes);
            datagram.extend(bytes);
        }
        datagram
    }

    fn link(index: u32, name: &str, flags: LinkFlags) -> LinkMessage {
        let mut link = LinkMessage::default();
        (link.header.index, link.header.flags) = (index, flags);
        link.attributes.push(LinkAttribute::IfName(name.into()));
        link
    }

    #[test]
    fn events_of_a_datagram_keep_their_order() {
        use RouteNetlinkMessage::{DelLink, NewLink};
        let up = LinkFlags::Up | LinkFlags::LowerUp;
        let bytes = datagram(&[
            NewLink(link(7, "a", LinkFlags::LowerUp)),
            NewLink(link(7, "ab", LinkFlags::Up)),
            NewLink(link(7, "abc", up)),
            DelLink(link(7, "abc", LinkFlags::empty())),
        ]);
        let events: Vec<_> = messages(&bytes).filter_map(event).collect();
        let states: Vec<_> = events
            .iter()
            .filter_map(|event| match event {
                Event::Changed(interface) => Some((interface.index, interface.name.as_str(), interface.link)),
                Event::Removed(_) | Event::Lost => None,
            })
            .collect();
        assert_eq!(states, [(7, "a", Link::Down), (7, "ab", Link::NoCarrier), (7, "abc", Link::Up)]);
        assert!(matches!(events[..], [.., Event::Removed(7)]), "{events:?}");
    }

    #[test]
    fn a_damaged_datagram_ends_the_iteration() {
        let whole = datagram(&[RouteNetlinkMessage::NewLink(link(7, "abc", LinkFlags::Up))]);
        for len in 0..whole.len() {
            assert_eq!(messages(&whole[..len]).count(), 0, "{len}");
        }
        let mut endless = whole;
        endless[..4].fill(0);
        assert_eq!(messages(&endless).count(), 0);
    }

    /// The loopback interface exists in every network namespace, with index 1.
    #[test]
    fn the_kernel_describes_an_interface_or_reports_that_there_is_none() {
        let requests = Requests::open().unwrap();
        let loopback = requests.interface(1).unwrap().unwrap();
        assert_eq!((loopback.index, loopback.name.as_str()), (1, "lo"));
        assert_eq!(requests.interface_by_name("lo").unwrap().unwrap().index, 1);
        assert!(requests.interface(u32::MAX >> 1).unwrap().is_none());
        assert!(requests.interface_by_name("understudy-none").unwrap().is_none());
        assert!(Events::open().unwrap().poll().iter().all(|event| !matches!(event, Event::Lost)));
    }
}
