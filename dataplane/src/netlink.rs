//! Sockets of the kernel's rtnetlink. A netlink socket belongs to the network namespace in which it was opened, unlike
//! /sys/class/net, which may show that of another one.

use core::cell::{Cell, RefCell};
use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage as Message;
use rustix::fd::OwnedFd;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with,
};
use std::io;

/// Largest datagram that the kernel sends, in bytes (`NLMSG_GOODSIZE` with huge pages)
const BUFFER_LEN: usize = 32 * 1024;

/// A netlink socket, which does not block, and its receive buffer.
#[derive(Debug)]
pub(crate) struct Socket {
    fd: OwnedFd,
    buffer: RefCell<Vec<u8>>,
    sequence: Cell<u32>,
}

impl Socket {
    /// Opens a socket that gets the events of these groups; 0 for requests alone.
    pub(crate) fn open(groups: u32) -> io::Result<Self> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        // No protocol number, which is 0, means NETLINK_ROUTE.
        let fd = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        bind(&fd, &SocketAddrNetlink::new(0, groups))?;
        Ok(Self { fd, buffer: vec![0; BUFFER_LEN].into(), sequence: Cell::new(0) })
    }

    /// Returns the next datagram, or `None` if there is none.
    pub(crate) fn receive(&self) -> io::Result<Option<Vec<u8>>> {
        let mut buffer = self.buffer.borrow_mut();
        match recv(&self.fd, buffer.as_mut_slice(), RecvFlags::empty()) {
            Ok((len, _)) => Ok(Some(buffer[..len].to_vec())),
            Err(rustix::io::Errno::AGAIN) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Sends a request and passes each message of the response to `on_message`: one, or several if `flags` contains
    /// `NLM_F_DUMP`.
    pub(crate) fn request(
        &self,
        request: Message,
        flags: u16,
        mut on_message: impl FnMut(Message),
    ) -> io::Result<()> {
        let mut request = NetlinkMessage::from(request);
        self.sequence.set(self.sequence.get().wrapping_add(1));
        request.header.flags = NLM_F_REQUEST | flags;
        request.header.sequence_number = self.sequence.get();
        request.finalize();
        let mut bytes = vec![0; request.buffer_len()];
        request.serialize(&mut bytes);
        send(&self.fd, &bytes, SendFlags::empty())?;
        loop {
            // The kernel responds while the request is sent, and continues a dump while it is received.
            let Some(bytes) = self.receive()? else { return Err(io::ErrorKind::WouldBlock.into()) };
            for message in messages(&bytes) {
                if message.header.sequence_number != self.sequence.get() {
                    continue;
                }
                match message.payload {
                    NetlinkPayload::InnerMessage(message) => on_message(message),
                    NetlinkPayload::Error(error) => return Err(error.to_io()),
                    _ => return Ok(()),
                }
                if flags & NLM_F_DUMP != NLM_F_DUMP {
                    return Ok(());
                }
            }
        }
    }
}

/// Returns the messages of a datagram, without those that do not parse.
pub(crate) fn messages(mut bytes: &[u8]) -> impl Iterator<Item = NetlinkMessage<Message>> {
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
