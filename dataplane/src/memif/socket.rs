//! Sockets of memif's control channel, and the messages on them.
//!
//! A message has 128 bytes, the first two of which are its type, and brings one file descriptor at most: a memory to
//! share, or an event of a ring.

use crate::error::Error;
use core::mem::MaybeUninit;
use socket2::{Domain, MaybeUninitSlice, MsgHdr, MsgHdrMut, SockAddr, Socket, Type};
use std::fs::File;
use std::io::{self, ErrorKind, IoSlice};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

/// Bytes of a message
const MESSAGE: usize = 128;
/// The message with which a client says what interface it wants
const INIT: u16 = 3;
/// Where that message has the interface's number, and what its sender knows
const ID: core::ops::Range<usize> = 4..8;
const SECRET: core::ops::Range<usize> = 9..33;

/// A control message with a descriptor, as it lies in memory: nothing has to be filled up between the two.
#[repr(C)]
struct Control {
    head: libc::cmsghdr,
    descriptor: RawFd,
}

impl Control {
    /// Its bytes: room for one descriptor, and no more
    const LEN: usize = core::mem::offset_of!(Self, descriptor) + size_of::<RawFd>();

    fn new(descriptor: RawFd) -> Self {
        // SAFETY: a header of zeros is one.
        let mut head: libc::cmsghdr = unsafe { core::mem::zeroed() };
        head.cmsg_level = libc::SOL_SOCKET;
        head.cmsg_type = libc::SCM_RIGHTS;
        head.cmsg_len = Self::LEN as _;
        Self { head, descriptor }
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: so many bytes of it are without gaps.
        unsafe { core::slice::from_raw_parts((&raw const *self).cast(), Self::LEN) }
    }

    fn room(&mut self) -> &mut [MaybeUninit<u8>] {
        // SAFETY: as above. Nothing but bytes is written there, and any bytes are a header and a number.
        unsafe { core::slice::from_raw_parts_mut((&raw mut *self).cast(), Self::LEN) }
    }

    /// The descriptor, if `used` bytes that were received have one.
    fn received(self, used: usize) -> Option<OwnedFd> {
        let kind = (self.head.cmsg_level, self.head.cmsg_type);
        let has = used >= Self::LEN && kind == (libc::SOL_SOCKET, libc::SCM_RIGHTS);
        // SAFETY: the kernel has opened it for us, and nobody else knows of it.
        has.then(|| unsafe { OwnedFd::from_raw_fd(self.descriptor) })
    }
}

/// A message, as it came.
pub(super) struct Message {
    bytes: [u8; MESSAGE],
    /// What came with it
    descriptor: Option<OwnedFd>,
}

impl Message {
    /// The interface that a client asks for; `None` if it asks for nothing
    pub(super) fn asks_for(&self) -> Option<u32> {
        let bytes = &self.bytes;
        let id = bytes[ID].first_chunk().map(|id| u32::from_ne_bytes(*id));
        id.filter(|_| u16::from_ne_bytes([bytes[0], bytes[1]]) == INIT)
    }

    /// Has the sender know a secret.
    pub(super) fn tell(&mut self, secret: &str) {
        let field = &mut self.bytes[SECRET];
        field.fill(0);
        field[..secret.len()].copy_from_slice(secret.as_bytes());
    }

    /// Sends it, and what came with it.
    pub(super) fn send(&self, to: &Socket) -> io::Result<()> {
        let parts = [IoSlice::new(&self.bytes)];
        let control = self.descriptor.as_ref().map(|descriptor| Control::new(descriptor.as_raw_fd()));
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

/// The next message, if one has come. An error of the kind `UnexpectedEof` says that the other side has gone.
pub(super) fn receive(from: &Socket) -> io::Result<Option<Message>> {
    let mut bytes = [MaybeUninit::uninit(); MESSAGE];
    let mut control = Control::new(-1);
    let (len, used) = {
        let mut parts = [MaybeUninitSlice::new(&mut bytes)];
        let mut header = MsgHdrMut::new().with_buffers(&mut parts).with_control(control.room());
        match from.recvmsg(&mut header, libc::MSG_CMSG_CLOEXEC) {
            Ok(len) => (len, header.control_len()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error),
        }
    };
    let descriptor = control.received(used);
    match len {
        // SAFETY: so many bytes were written.
        MESSAGE => Ok(Some(Message { bytes: bytes.map(|byte| unsafe { byte.assume_init() }), descriptor })),
        0 => Err(ErrorKind::UnexpectedEof.into()),
        _ => Err(ErrorKind::InvalidData.into()),
    }
}

/// A name that is in no file system: it is gone with the process, whatever ends it.
pub(super) fn abstract_address(name: &str) -> io::Result<SockAddr> {
    SockAddr::unix(format!("\0{name}"))
}

fn socket() -> io::Result<Socket> {
    let socket = Socket::new(Domain::UNIX, Type::SEQPACKET, None)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Listens at an address.
pub(super) fn listen(address: &SockAddr) -> io::Result<Socket> {
    let socket = socket()?;
    socket.bind(address)?;
    socket.listen(32)?;
    Ok(socket)
}

/// Somebody who has connected. Is not there yet: `None`.
pub(super) fn accept(listener: &Socket) -> Option<Socket> {
    let (socket, _) = listener.accept().ok()?;
    socket.set_nonblocking(true).ok().map(|()| socket)
}

/// Connects to an address, if somebody listens there and has room.
pub(super) fn connect(address: &SockAddr) -> io::Result<Socket> {
    let socket = socket()?;
    socket.connect(address)?;
    Ok(socket)
}

/// Whether this process is at the other end.
pub(super) fn is_our_own(socket: &Socket) -> bool {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the descriptor is open, and `peer` has room for as many bytes as `len` says.
    let result = unsafe {
        let at = (&raw mut peer).cast();
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, at, &raw mut len)
    };
    result == 0 && u32::try_from(peer.pid) == Ok(std::process::id())
}

/// Listens at a path. The socket of a process that was killed is still there, though nobody listens on it: it is
/// replaced.
pub(super) fn listen_at(path: &Path) -> Result<Socket, Error> {
    let failed = |what: String, remedy: &str| Err(Error::new(what, remedy));
    let shown = path.display();
    let address = match SockAddr::unix(path) {
        Ok(address) => address,
        Err(error) => return failed(format!("{shown} cannot be a socket: {error}"), "choose a shorter path"),
    };
    // Two that start at once must not each take the other's new socket for an old one. The folder is what they have in
    // common, and its lock ends with the process.
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let _lock = match File::open(folder).and_then(|folder| folder.lock().map(|()| folder)) {
        Ok(lock) => lock,
        Err(error) => {
            return failed(
                format!("the folder of the socket {shown} cannot be used: {error}"),
                "make it, or choose another place for the socket",
            );
        }
    };
    let is_socket = |path: &Path| path.symlink_metadata().is_ok_and(|file| file.file_type().is_socket());
    let in_use = |error: &io::Error| error.kind() == ErrorKind::AddrInUse;
    let listening = match listen(&address) {
        Err(error) if in_use(&error) && is_socket(path) => match connect(&address) {
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                std::fs::remove_file(path).and_then(|()| listen(&address))
            }
            _ => {
                return failed(
                    format!("another process listens on the socket {shown}"),
                    "end it, or choose another path",
                );
            }
        },
        other => other,
    };
    listening.or_else(|error| {
        failed(
            format!("the socket {shown} could not be made: {error}"),
            "its folder has to be writable, and no other file may have its name",
        )
    })
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
    fn messages_are_passed_on_with_what_they_bring() {
        let (a, b) = pair();
        assert!(receive(&b).unwrap().is_none(), "nothing yet");
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let sent = Message { descriptor: Some(theirs.into()), ..message(4) };
        sent.send(&a).unwrap();
        message(5).send(&a).unwrap();
        drop(sent);
        let came = receive(&b).unwrap().unwrap();
        assert_eq!(came.bytes, message(4).bytes);
        let mut theirs = UnixStream::from(came.descriptor.expect("it came along"));
        theirs.write_all(b"here").unwrap();
        let mut text = [0; 4];
        ours.read_exact(&mut text).unwrap();
        assert_eq!(&text, b"here");
        assert!(receive(&b).unwrap().unwrap().descriptor.is_none());
        a.send(&[1; 20]).unwrap();
        assert_eq!(receive(&b).err().unwrap().kind(), ErrorKind::InvalidData);
        drop(a);
        assert_eq!(receive(&b).err().unwrap().kind(), ErrorKind::UnexpectedEof);
        assert!(message(1).send(&b).is_err(), "and no signal");
        assert!(is_our_own(&b));
    }

    #[test]
    fn what_a_client_asks_for() {
        let mut init = message(INIT);
        init.bytes[ID].copy_from_slice(&7u32.to_ne_bytes());
        assert_eq!((init.asks_for(), message(1).asks_for()), (Some(7), None));
        init.tell("0123");
        assert_eq!(init.bytes[SECRET][..6], *b"0123\0\0");
        assert_eq!((init.bytes[SECRET.start - 1], init.bytes[SECRET.end]), (0xa5, 0xa5));
    }

    #[test]
    fn a_socket_that_nobody_listens_on_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.sock");
        let first = listen_at(&path).unwrap();
        let error = listen_at(&path).unwrap_err();
        assert!(error.what.starts_with("another process listens"), "{error}");
        drop(first);
        assert!(path.exists(), "as a process that is killed leaves it");
        let second = listen_at(&path).unwrap();
        let client = connect(&SockAddr::unix(&path).unwrap()).unwrap();
        message(1).send(&client).unwrap();
        assert!(receive(&accept(&second).unwrap()).unwrap().is_some());
        // What is no socket is somebody's.
        let file = folder.path().join("file");
        std::fs::write(&file, "precious").unwrap();
        assert!(listen_at(&file).is_err());
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
        assert!(listen_at(&folder.path().join("none/m.sock")).unwrap_err().what.contains("folder"));
    }
}
