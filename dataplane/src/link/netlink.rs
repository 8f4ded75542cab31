//! State, counters and changes of the kernel's interfaces, by rtnetlink.

use super::Link;
use crate::netlink::{Socket, messages};
use netlink_packet_core::{NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkMessage, Stats64};
use std::io;

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
pub(crate) struct Requests(Socket);

/// Socket for events.
#[derive(Debug)]
pub(crate) struct Events(Socket);

impl Requests {
    pub(crate) fn open() -> io::Result<Self> {
        Socket::open(0).map(Self)
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
        let mut found = None;
        let asked = self.0.request(RouteNetlinkMessage::GetLink(link), 0, |message| {
            if let RouteNetlinkMessage::NewLink(link) = message {
                found = Some(describe(link));
            }
        });
        match asked {
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(None),
            asked => asked.and(found.ok_or_else(|| io::ErrorKind::InvalidData.into()).map(Some)),
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
