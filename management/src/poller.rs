//! Waits for sockets (epoll, level-triggered) and for other threads (eventfd).

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use switch::Nanos;

/// Events per call
const EVENTS: usize = 128;
const WAKE: u64 = u64::MAX;

/// Wakes a poller from other threads.
#[derive(Clone, Debug)]
pub(crate) struct Waker(Arc<OwnedFd>);

impl Waker {
    pub(crate) fn wake(&self) {
        // It fails only if the poller has not taken 2^64 - 2 calls, and is awake then.
        _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }
}

/// What a socket is ready for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ready {
    pub(crate) token: u64,
    pub(crate) readable: bool,
}

#[derive(Debug)]
pub(crate) struct Poller {
    epoll: OwnedFd,
    waker: Waker,
}

impl Poller {
    pub(crate) fn new() -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &wake, EventData::new_u64(WAKE), EventFlags::IN)?;
        Ok(Self { epoll, waker: Waker(Arc::new(wake)) })
    }

    pub(crate) fn waker(&self) -> Waker {
        self.waker.clone()
    }

    fn flags(read: bool, write: bool) -> EventFlags {
        let mut flags = EventFlags::empty();
        flags.set(EventFlags::IN, read);
        flags.set(EventFlags::OUT, write);
        flags
    }

    /// Adds a socket. Closing it removes it.
    pub(crate) fn add(&self, socket: impl AsFd, token: u64, read: bool, write: bool) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, socket, EventData::new_u64(token), Self::flags(read, write))?)
    }

    pub(crate) fn change(&self, socket: impl AsFd, token: u64, read: bool, write: bool) -> io::Result<()> {
        Ok(epoll::modify(&self.epoll, socket, EventData::new_u64(token), Self::flags(read, write))?)
    }

    /// Waits until a socket is ready, another thread has called [`Waker::wake`], or `span` is over.
    pub(crate) fn wait(&self, span: Option<Nanos>, ready: &mut Vec<Ready>) -> io::Result<()> {
        ready.clear();
        let timeout = span.map(|span| Timespec {
            tv_sec: (span.0 / 1_000_000_000) as i64,
            tv_nsec: (span.0 % 1_000_000_000) as i64,
        });
        let mut events = Vec::with_capacity(EVENTS);
        match epoll::wait(&self.epoll, spare_capacity(&mut events), timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for event in events {
            let (token, flags) = (event.data.u64(), event.flags);
            if token == WAKE {
                _ = rustix::io::read(&self.waker.0, &mut [0; 8][..]);
                continue;
            }
            // A socket with an error is read, which returns it.
            let readable = flags.intersects(EventFlags::IN | EventFlags::ERR | EventFlags::HUP);
            ready.push(Ready { token, readable });
        }
        Ok(())
    }
}
