//! Sockets of memif's control channel, and their messages.
//!
//! A message has 128 bytes, the first two of which are its type. It carries at most one file descriptor: that
//! of a shared memory region, or the event descriptor of a ring.

use core::mem::MaybeUninit;
use core::ops::Range;
use socket2::{Domain, MaybeUninitSlice, MsgHdr, MsgHdrMut, SockAddr, Socket, Type};
use std::io::{self, ErrorKind, IoSlice};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};

/// Message types
pub(super) const ACK: u16 = 1;
pub(super) const HELLO: u16 = 2;
pub(super) const INIT: u16 = 3;
pub(super) const ADD_REGION: u16 = 4;
pub(super) const ADD_RING: u16 = 5;
pub(super) const CONNECT: u16 = 6;
pub(super) const CONNECTED: u16 = 7;
pub(super) const DISCONNECT: u16 = 8;

/// Length of a message, in bytes
const MESSAGE: usize = 128;
/// Offset of the interface ID that a client requests, in an `INIT`
const ID: usize = 4;
/// Range of the reason in a `DISCONNECT`, with a terminating zero
const REASON: Range<usize> = 6..102;

/// An ancillary message with one descriptor, in memory layout: there is no padding between the two fields.
#[repr(C)]
struct AncillaryMessage {
    head: libc::cmsghdr,
    descriptor: RawFd,
}

impl AncillaryMessage {
    /// Length without trailing padding: exactly one descriptor
    const LEN: usize = core::mem::offset_of!(Self, descriptor) + size_of::<RawFd>();

    fn new(descriptor: RawFd) -> Self {
        // SAFETY: all-zero is a valid header.
        let mut head: libc::cmsghdr = unsafe { core::mem::zeroed() };
        head.cmsg_level = libc::SOL_SOCKET;
        head.cmsg_type = libc::SCM_RIGHTS;
        head.cmsg_len = Self::LEN as _;
        Self { head, descriptor }
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: the first `LEN` bytes have no padding.
        unsafe { core::slice::from_raw_parts((&raw const *self).cast(), Self::LEN) }
    }

    fn uninit_bytes(&mut self) -> &mut [MaybeUninit<u8>] {
        // SAFETY: as above. Only bytes are written there, and any bytes are a valid header and number.
        unsafe { core::slice::from_raw_parts_mut((&raw mut *self).cast(), Self::LEN) }
    }

    /// Returns the descriptor, if the `used` bytes that were received contain one.
    fn received(self, used: usize) -> Option<OwnedFd> {
        let kind = (self.head.cmsg_level, self.head.cmsg_type);
        let has = used >= Self::LEN && kind == (libc::SOL_SOCKET, libc::SCM_RIGHTS);
        // SAFETY: the kernel has opened the descriptor for this process, and nothing else owns it.
        has.then(|| unsafe { OwnedFd::from_raw_fd(self.descriptor) })
    }
}

/// A received message.
pub(super) struct Message {
    bytes: [u8; MESSAGE],
    /// Descriptor that the message carries
    descriptor: Option<OwnedFd>,
}

impl Message {
    /// Returns the `DISCONNECT` message with a reason.
    pub(super) fn disconnect(reason: &str) -> Self {
        let mut bytes = [0; MESSAGE];
        bytes[..2].copy_from_slice(&DISCONNECT.to_ne_bytes());
        let reason = &reason.as_bytes()[..reason.len().min(REASON.len() - 1)];
        bytes[REASON][..reason.len()].copy_from_slice(reason);
        Self { bytes, descriptor: None }
    }

    #[cfg(test)]
    pub(super) fn new(kind: u16, body: &[u8], descriptor: Option<OwnedFd>) -> Self {
        let mut bytes = [0; MESSAGE];
        bytes[..2].copy_from_slice(&kind.to_ne_bytes());
        bytes[2..2 + body.len()].copy_from_slice(body);
        Self { bytes, descriptor }
    }

    /// Returns the interface ID that a client requests, or `None` if the message is not a request.
    pub(super) fn requested_interface(&self) -> Option<u32> {
        (self.kind() == INIT && self.descriptor.is_none()).then(|| self.u32(ID))
    }

    /// Returns the type of the message.
    pub(super) fn kind(&self) -> u16 {
        self.u16(0)
    }

    /// Returns the descriptor that the message carries.
    pub(super) fn descriptor(&self) -> Option<&OwnedFd> {
        self.descriptor.as_ref()
    }

    fn number<const N: usize>(&self, at: usize) -> [u8; N] {
        *self.bytes[at..].first_chunk().expect("fields are within the message")
    }

    pub(super) fn u8(&self, at: usize) -> u8 {
        self.bytes[at]
    }

    pub(super) fn u16(&self, at: usize) -> u16 {
        u16::from_ne_bytes(self.number(at))
    }

    pub(super) fn u32(&self, at: usize) -> u32 {
        u32::from_ne_bytes(self.number(at))
    }

    pub(super) fn u64(&self, at: usize) -> u64 {
        u64::from_ne_bytes(self.number(at))
    }

    /// Sends the message with its descriptor.
    pub(super) fn send(&self, to: &Socket) -> io::Result<()> {
        let parts = [IoSlice::new(&self.bytes)];
        let control =
            self.descriptor.as_ref().map(|descriptor| AncillaryMessage::new(descriptor.as_raw_fd()));
        let mut header = MsgHdr::new().with_buffers(&parts);
        if let Some(control) = &control {
            header = header.with_control(control.bytes());
        }
        match to.sendmsg(&header, libc::MSG_NOSIGNAL)? {
            MESSAGE => Ok(()),
            _ => Err(ErrorKind::WriteZero.into()),
        }
    }
}

/// Returns the next message, or `None` if none is pending. An error of the kind `UnexpectedEof` means that
/// the peer has disconnected.
pub(super) fn receive(from: &Socket) -> io::Result<Option<Message>> {
    let mut bytes = [MaybeUninit::uninit(); MESSAGE];
    let mut control = AncillaryMessage::new(-1);
    let (len, used) = {
        let mut parts = [MaybeUninitSlice::new(&mut bytes)];
        let mut header = MsgHdrMut::new().with_buffers(&mut parts).with_control(control.uninit_bytes());
        match from.recvmsg(&mut header, libc::MSG_CMSG_CLOEXEC) {
            Ok(len) => (len, header.control_len()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error),
        }
    };
    let descriptor = control.received(used);
    match len {
        // SAFETY: `len` bytes were written, which is all of them.
        MESSAGE => Ok(Some(Message { bytes: bytes.map(|byte| unsafe { byte.assume_init() }), descriptor })),
        0 => Err(ErrorKind::UnexpectedEof.into()),
        _ => Err(ErrorKind::InvalidData.into()),
    }
}

/// Returns a new socket for memif's control channel.
pub(super) fn socket() -> io::Result<Socket> {
    let socket = Socket::new(Domain::UNIX, Type::SEQPACKET, None)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Listens on an address.
pub(super) fn listen(address: &SockAddr) -> io::Result<Socket> {
    let socket = socket()?;
    socket.bind(address)?;
    socket.listen(32)?;
    Ok(socket)
}

/// Accepts the next connection, or returns `None` if none is pending.
pub(super) fn accept(listener: &Socket) -> Option<Socket> {
    let (socket, _) = listener.accept().ok()?;
    socket.set_nonblocking(true).ok().map(|()| socket)
}

/// Connects to an address. Fails if no process listens there, or if its listen queue is full.
pub(super) fn connect(address: &SockAddr) -> io::Result<Socket> {
    let socket = socket()?;
    socket.connect(address)?;
    Ok(socket)
}

/// Returns the user of the process that connected, or of the process that listened when this side connected.
pub(super) fn user(socket: &Socket) -> io::Result<u32> {
    let mut peer = libc::ucred { pid: 0, uid: u32::MAX, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the descriptor is open, and `peer` has room for `len` bytes.
    let result = unsafe {
        let at = (&raw mut peer).cast();
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, at, &raw mut len)
    };
    if result == 0 { Ok(peer.uid) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixStream;

    fn pair() -> (Socket, Socket) {
        let (a, b) = Socket::pair(Domain::UNIX, Type::SEQPACKET, None).unwrap();
        a.set_nonblocking(true).unwrap();
        b.set_nonblocking(true).unwrap();
        (a, b)
    }

    fn message(kind: u16) -> Message {
        let mut bytes = [0xa5; MESSAGE];
        bytes[..2].copy_from_slice(&kind.to_ne_bytes());
        Message { bytes, descriptor: None }
    }

    #[test]
    fn messages_arrive_with_their_descriptors() {
        let (a, b) = pair();
        assert!(receive(&b).unwrap().is_none(), "no message is pending");
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let sent = Message { descriptor: Some(theirs.into()), ..message(4) };
        sent.send(&a).unwrap();
        message(5).send(&a).unwrap();
        drop(sent);
        let received = receive(&b).unwrap().unwrap();
        assert_eq!(received.bytes, message(4).bytes);
        let mut theirs = UnixStream::from(received.descriptor.expect("the message carries its descriptor"));
        theirs.write_all(b"here").unwrap();
        let mut text = [0; 4];
        ours.read_exact(&mut text).unwrap();
        assert_eq!(&text, b"here");
        assert!(receive(&b).unwrap().unwrap().descriptor.is_none());
        a.send(&[1; 20]).unwrap();
        assert_eq!(receive(&b).err().unwrap().kind(), ErrorKind::InvalidData);
        drop(a);
        assert_eq!(receive(&b).err().unwrap().kind(), ErrorKind::UnexpectedEof);
        assert!(message(1).send(&b).is_err(), "sending to a closed socket fails without a signal");
        assert_eq!(user(&b).unwrap(), rustix::process::getuid().as_raw());
    }

    #[test]
    fn only_an_init_requests_an_interface() {
        let mut init = message(INIT);
        init.bytes[ID..ID + 4].copy_from_slice(&7u32.to_ne_bytes());
        assert_eq!((init.requested_interface(), message(1).requested_interface()), (Some(7), None));
    }

    #[test]
    fn reason_of_a_disconnect_is_zero_terminated() {
        for reason in ["no", &"x".repeat(200)] {
            let message = Message::disconnect(reason);
            let shown: Vec<u8> =
                message.bytes[REASON].iter().copied().take_while(|byte| *byte != 0).collect();
            assert_eq!(shown, reason.as_bytes()[..reason.len().min(95)]);
            assert_eq!(message.kind(), DISCONNECT);
        }
    }
}
