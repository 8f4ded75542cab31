//! Connections of a node to all controllers.

use crate::clock::{Clock, random};
use crate::connection::{Connection, Event, Identity};
use crate::mailbox::{Item, Mailbox};
use crate::poller::{Poller, Ready};
use crate::stream::{READ, Stream};
use crate::{HANDSHAKE_TIME, Peer, Reason, Secret};
use socket2::{Domain, Socket, Type};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use switch::Nanos;

/// First wait before a controller is tried again; each wait is twice the one before
const FIRST_WAIT: Nanos = Nanos::from_millis(50);
/// Longest wait before a controller is tried again
const LAST_WAIT: Nanos = Nanos::from_secs(2);
/// Time within which a node that runs has connected to a controller that listens
pub const CONNECT_TIME: Nanos = Nanos(LAST_WAIT.0 + HANDSHAKE_TIME.0);
/// A connection that was open for this time was a good one: the next wait is the first one
const GOOD: Nanos = Nanos::from_secs(1);

/// What a node needs to connect.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// Addresses of all controllers
    pub controllers: Vec<SocketAddr>,
    /// Shared secret; without one, all controllers have to be on the loopback interface
    pub secret: Option<Secret>,
    /// The node
    pub peer: Peer,
    /// Hash of the topology; 0 of an operator
    pub topology: u64,
}

/// What happened on the connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientEvent {
    /// The connection to a controller has come up
    Connected(SocketAddr),
    /// The connection to a controller has ended, or an attempt to connect has failed for another reason than
    /// the one before. The client goes on trying
    Disconnected(SocketAddr, Reason),
    /// A message of a controller
    Message(Vec<u8>),
}

/// Connections to all controllers, with a thread. Dropping it ends them.
#[derive(Debug)]
pub struct Client {
    mailbox: Arc<Mailbox<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Client {
    /// Starts to connect. The thread calls `events`; while that does not return, the thread does nothing else.
    ///
    /// # Errors
    /// There is no secret and a controller is not on the loopback interface, or the operating system refuses
    /// a thread or a descriptor.
    pub fn start(config: ClientConfig, events: impl Fn(ClientEvent) + Send + 'static) -> io::Result<Self> {
        let far = config.controllers.iter().find(|address| !address.ip().to_canonical().is_loopback());
        if let (Some(far), None) = (far, &config.secret) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!(
                    "controller {far} is not on the loopback interface, and there is no secret; write secret_file"
                ),
            ));
        }
        let poller = Poller::new()?;
        let mailbox = Arc::new(Mailbox::new(poller.waker()));
        let mut worker = Worker::new(config, poller, mailbox.clone(), Box::new(events))?;
        let thread = std::thread::Builder::new().name("management".into()).spawn(move || worker.run())?;
        Ok(Self { mailbox, thread: Some(thread) })
    }

    /// Sends a message to all controllers that are connected. Where too much waits already, the connection
    /// ends, so that no message is lost on a connection that stays.
    ///
    /// # Panics
    /// If the message is longer than [`crate::MAX_MESSAGE`].
    pub fn send(&self, message: &[u8]) {
        assert!(message.len() <= crate::MAX_MESSAGE, "a message of {} bytes", message.len());
        self.mailbox.send((), message);
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.mailbox.stop();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed.
            drop(thread.join());
        }
    }
}

#[derive(Debug)]
enum State {
    Waiting { until: Nanos },
    Connecting(Stream),
    Connected(Stream, Nanos),
}

#[derive(Debug)]
struct Link {
    address: SocketAddr,
    state: State,
    wait: Nanos,
    /// Reason that was reported last, since the last success
    reported: Option<Reason>,
}

struct Worker {
    identity: Identity,
    peer: Peer,
    links: Vec<Link>,
    poller: Poller,
    mailbox: Arc<Mailbox<()>>,
    clock: Clock,
    /// State of a generator for the spread of waits
    spread: switch::Rng,
    events: Box<dyn Fn(ClientEvent) + Send>,
}

impl Worker {
    fn new(
        config: ClientConfig,
        poller: Poller,
        mailbox: Arc<Mailbox<()>>,
        events: Box<dyn Fn(ClientEvent) + Send>,
    ) -> io::Result<Self> {
        let seed = u64::from_ne_bytes(*random()?.first_chunk().expect("32 bytes"));
        let link = |address| Link {
            address,
            state: State::Waiting { until: Nanos::ZERO },
            wait: FIRST_WAIT,
            reported: None,
        };
        Ok(Self {
            identity: Identity { secret: config.secret, topology: config.topology },
            peer: config.peer,
            links: config.controllers.into_iter().map(link).collect(),
            poller,
            mailbox,
            clock: Clock::start(),
            spread: switch::Rng::new(seed),
            events,
        })
    }

    fn run(&mut self) {
        let (mut ready, mut buffer) = (Vec::new(), vec![0; READ]);
        while !self.mailbox.is_stopped() {
            let now = self.clock.now();
            for at in 0..self.links.len() {
                self.on_timer(at, now);
            }
            let timers = self.links.iter().filter_map(|link| match &link.state {
                State::Waiting { until } => Some(*until),
                State::Connecting(stream) | State::Connected(stream, _) => stream.connection.next_timer(),
            });
            let span = timers.min().map(|at| at.since(self.clock.now()));
            if self.poller.wait(span, &mut ready).is_err() {
                // Out of memory: try again after a while.
                std::thread::sleep(std::time::Duration::from_millis(100));
            }
            for &ready in &ready {
                self.on_ready(ready, &mut buffer);
            }
            self.send_waiting();
        }
        for link in &mut self.links {
            if let State::Connecting(stream) | State::Connected(stream, _) =
                std::mem::replace(&mut link.state, State::Waiting { until: Nanos::ZERO })
            {
                drop(stream.end(Reason::Ended));
            }
        }
    }

    fn on_timer(&mut self, at: usize, now: Nanos) {
        let result = match &mut self.links[at].state {
            State::Waiting { until } if *until <= now => self.connect(at, now),
            State::Waiting { .. } => Ok(()),
            State::Connecting(stream) => stream.connection.on_timer(now),
            State::Connected(stream, _) => {
                stream.connection.on_timer(now).and_then(|()| stream.flush(&self.poller))
            }
        };
        self.finish(at, result);
    }

    fn connect(&mut self, at: usize, now: Nanos) -> Result<(), Reason> {
        let io = |error: io::Error| Reason::Io(error.kind());
        let address = self.links[at].address;
        let socket = Socket::new(Domain::for_address(address), Type::STREAM.nonblocking().cloexec(), None);
        let socket = socket.map_err(io)?;
        socket.set_tcp_nodelay(true).map_err(io)?;
        match socket.connect(&address.into()) {
            Err(error) if error.raw_os_error() != Some(rustix::io::Errno::INPROGRESS.raw_os_error()) => {
                return Err(io(error));
            }
            _ => {}
        }
        let random = random().map_err(io)?;
        let connection = Connection::node(self.identity.clone(), self.peer, random, now);
        let stream = Stream::new(socket.into(), at as u64, connection, &self.poller).map_err(io)?;
        self.links[at].state = State::Connecting(stream);
        Ok(())
    }

    fn on_ready(&mut self, ready: Ready, buffer: &mut [u8]) {
        let (at, now) = (ready.token as usize, self.clock.now());
        let link = &mut self.links[at];
        let (State::Connecting(stream) | State::Connected(stream, _)) = &mut link.state else { return };
        let mut result = stream.check();
        if ready.readable {
            result = result.and_then(|()| stream.read(buffer, now));
        }
        // What has arrived before an error is delivered before it.
        self.deliver(at, now);
        if let State::Connecting(stream) | State::Connected(stream, _) = &mut self.links[at].state {
            result = result.and_then(|()| stream.flush(&self.poller));
        }
        self.finish(at, result);
    }

    fn deliver(&mut self, at: usize, now: Nanos) {
        loop {
            let link = &mut self.links[at];
            let (State::Connecting(stream) | State::Connected(stream, _)) = &mut link.state else { return };
            match stream.connection.poll_event() {
                None => return,
                Some(Event::Message(message)) => (self.events)(ClientEvent::Message(message)),
                Some(Event::Open(_)) => {
                    let state = std::mem::replace(&mut link.state, State::Waiting { until: now });
                    if let State::Connecting(stream) = state {
                        link.state = State::Connected(stream, now);
                        link.reported = None;
                    }
                    (self.events)(ClientEvent::Connected(link.address));
                }
            }
        }
    }

    /// Ends a connection if there is an error.
    fn finish(&mut self, at: usize, result: Result<(), Reason>) {
        let Err(reason) = result else { return };
        let now = self.clock.now();
        let link = &mut self.links[at];
        let state = std::mem::replace(&mut link.state, State::Waiting { until: now });
        let mut was_open = false;
        link.wait = match state {
            State::Connected(stream, since) => {
                was_open = true;
                drop(stream.end(reason));
                if now.since(since) >= GOOD { FIRST_WAIT } else { link.wait }
            }
            _ => link.wait,
        };
        // Between three and five quarters, so that not all nodes come at once.
        let wait = link.wait.0 / 4 * 3 + self.spread.below(link.wait.0 / 2);
        link.state = State::Waiting { until: Nanos(now.0 + wait) };
        link.wait = Nanos(link.wait.0 * 2).min(LAST_WAIT);
        if was_open || link.reported != Some(reason) {
            link.reported = Some(reason);
            (self.events)(ClientEvent::Disconnected(link.address, reason));
        }
    }

    fn send_waiting(&mut self) {
        let delivery = self.mailbox.take();
        let now = self.clock.now();
        for at in 0..self.links.len() {
            let State::Connected(stream, _) = &mut self.links[at].state else { continue };
            let mut result = if delivery.overflowed.is_empty() { Ok(()) } else { Err(Reason::Slow) };
            for item in &delivery.items {
                if let Item::Send((), message) = item {
                    result = result.and_then(|()| stream.connection.send(message, now));
                }
            }
            result = result.and_then(|()| stream.flush(&self.poller));
            self.finish(at, result);
        }
    }
}
