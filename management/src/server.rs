//! Connections of all nodes to one controller.

use crate::clock::{Clock, random};
use crate::connection::{Connection, Event, Identity};
use crate::mailbox::{Delivery, Item, Mailbox};
use crate::poller::{Poller, Ready};
use crate::stream::{READ, Stream};
use crate::{HANDSHAKE_TIME, KEEP_ALIVE, Peer, Reason, Secret};
use socket2::{Domain, Socket, Type};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use switch::Nanos;

/// Connections without a complete handshake; beyond that, the oldest one ends
pub(crate) const MAX_HANDSHAKES: usize = 256;
/// Connections of operators
const MAX_OPERATORS: usize = 16;
/// Connections that are accepted before others are served
const ACCEPTS: usize = 64;
/// Time without accepting after the operating system had no descriptor, and between looks at no connections
const PAUSE: Nanos = Nanos::from_millis(100);
/// A peer that has been heard within this time is alive, and keeps its connection against a second one
const ALIVE: Nanos = Nanos(3 * KEEP_ALIVE.0);
const LISTENER: u64 = 0;

/// What a controller needs to accept nodes.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Address to listen at
    pub listen: SocketAddr,
    /// Shared secret; without one, `listen` has to be on the loopback interface
    pub secret: Option<Secret>,
    /// Hash of the topology
    pub topology: u64,
    /// Most connections of nodes at a time
    pub max_connections: usize,
}

/// Number of a connection, which is never used twice by a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(u64);

/// What happened on the connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerEvent {
    /// A node has connected
    Connected(ConnectionId, Peer, SocketAddr),
    /// A node's connection has ended
    Disconnected(ConnectionId, Reason),
    /// A connection has ended before its handshake was complete
    Refused(SocketAddr, Reason),
    /// A message of a node
    Message(ConnectionId, Vec<u8>),
}

/// Counts since the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Connections accepted
    pub accepted: u64,
    /// Handshakes completed
    pub opened: u64,
    /// Messages received
    pub received: u64,
    /// Messages sent
    pub sent: u64,
    /// Connections ended, by the reasons of [`Reason::NAMES`]
    pub ended: [u64; Reason::NAMES.len()],
}

#[derive(Debug)]
struct Counters {
    accepted: AtomicU64,
    opened: AtomicU64,
    received: AtomicU64,
    sent: AtomicU64,
    ended: [AtomicU64; Reason::NAMES.len()],
}

fn add(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Connections of all nodes, with a thread. Dropping it ends them.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    mailbox: Arc<Mailbox<ConnectionId>>,
    counters: Arc<Counters>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Server {
    /// Starts to listen. The thread calls `events`; while that does not return, the thread does nothing else.
    ///
    /// # Errors
    /// There is no secret and the address is not on the loopback interface, or the operating system refuses
    /// the address, a thread or a descriptor.
    pub fn start(config: &ServerConfig, events: impl Fn(ServerEvent) + Send + 'static) -> io::Result<Self> {
        if config.secret.is_none() && !config.listen.ip().to_canonical().is_loopback() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, Reason::NotLoopback.to_string()));
        }
        let listener = listen(config.listen)?;
        let address = listener.local_addr()?;
        let poller = Poller::new()?;
        poller.add(&listener, LISTENER, true, false)?;
        random()?;
        let mailbox = Arc::new(Mailbox::new(poller.waker()));
        let counters = Arc::new(Counters {
            accepted: AtomicU64::new(0),
            opened: AtomicU64::new(0),
            received: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            ended: std::array::from_fn(|_| AtomicU64::new(0)),
        });
        let mut worker = Worker {
            identity: Identity { secret: config.secret.clone(), topology: config.topology },
            max_connections: config.max_connections,
            listener,
            paused: None,
            poller,
            mailbox: mailbox.clone(),
            counters: counters.clone(),
            clock: Clock::start(),
            next: LISTENER + 1,
            due: Nanos::ZERO,
            peers: BTreeMap::new(),
            handshakes: BTreeSet::new(),
            by_peer: BTreeMap::new(),
            events: Box::new(events),
        };
        let thread = std::thread::Builder::new().name("management".into()).spawn(move || worker.run())?;
        Ok(Self { address, mailbox, counters, thread: Mutex::new(Some(thread)) })
    }

    /// Returns the address at which it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sends a message to a node; ignores it if the connection has ended. Where too much waits already, the
    /// connection ends, so that no message is lost on a connection that stays.
    ///
    /// # Panics
    /// If the message is longer than [`crate::MAX_MESSAGE`].
    pub fn send(&self, to: ConnectionId, message: &[u8]) {
        assert!(message.len() <= crate::MAX_MESSAGE, "a message of {} bytes", message.len());
        self.mailbox.send(to, message);
    }

    /// Ends a connection, behind the messages that were sent before.
    pub fn close(&self, connection: ConnectionId) {
        self.mailbox.close(connection);
    }

    /// Returns the counts since the start.
    pub fn counts(&self) -> Counts {
        let counters = &self.counters;
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            accepted: get(&counters.accepted),
            opened: get(&counters.opened),
            received: get(&counters.received),
            sent: get(&counters.sent),
            ended: std::array::from_fn(|at| get(&counters.ended[at])),
        }
    }

    /// Ends all connections and the thread. `events` is not called any more when it returns.
    pub fn stop(&self) {
        self.mailbox.stop();
        let thread = self.thread.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // A panic of the thread has been printed.
            drop(thread.join());
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Returns whether a peer that was last heard at a time keeps its connection.
fn is_alive(heard: Nanos, now: Nanos) -> bool {
    now.since(heard) < ALIVE
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM.nonblocking().cloexec(), None)?;
    // A controller that restarts gets its address although old connections are remembered.
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(1024)?;
    Ok(socket.into())
}

#[derive(Debug)]
struct Node {
    stream: Stream,
    address: SocketAddr,
    /// The peer, once the handshake is complete
    peer: Option<Peer>,
}

struct Worker {
    identity: Identity,
    max_connections: usize,
    listener: TcpListener,
    /// Time at which connections are accepted again
    paused: Option<Nanos>,
    poller: Poller,
    mailbox: Arc<Mailbox<ConnectionId>>,
    counters: Arc<Counters>,
    clock: Clock,
    next: u64,
    /// Time before which no timer is due
    due: Nanos,
    peers: BTreeMap<ConnectionId, Node>,
    /// Connections without a complete handshake
    handshakes: BTreeSet<ConnectionId>,
    /// Connections of processes and switches
    by_peer: BTreeMap<Peer, ConnectionId>,
    events: Box<dyn Fn(ServerEvent) + Send>,
}

impl Worker {
    fn run(&mut self) {
        let (mut ready, mut buffer) = (Vec::new(), vec![0; READ]);
        while !self.mailbox.is_stopped() {
            self.on_timers();
            let span = self.due.since(self.clock.now());
            if self.poller.wait(Some(span), &mut ready).is_err() {
                // Out of memory: try again after a while.
                std::thread::sleep(std::time::Duration::from_millis(100));
            }
            for &ready in &ready {
                if ready.token == LISTENER {
                    self.accept();
                } else {
                    self.on_ready(ready, &mut buffer);
                }
            }
            self.send_waiting();
        }
        let ids: Vec<_> = self.peers.keys().copied().collect();
        for id in ids {
            self.end(id, Reason::Ended);
        }
    }

    /// Does what is due, and finds out what is due next.
    fn on_timers(&mut self) {
        let now = self.clock.now();
        if now < self.due {
            return;
        }
        if self.paused.is_some_and(|until| until <= now) {
            self.paused = None;
            _ = self.poller.change(&self.listener, LISTENER, true, false);
        }
        let due = |node: &Node| node.stream.connection.next_timer().is_some_and(|at| at <= now);
        let ids: Vec<_> = self.peers.iter().filter(|(_, node)| due(node)).map(|(&id, _)| id).collect();
        for id in ids {
            let Some(node) = self.peers.get_mut(&id) else { continue };
            let result = node.stream.connection.on_timer(now);
            if let Err(reason) = result.and_then(|()| node.stream.flush(&self.poller)) {
                self.end(id, reason);
            }
        }
        // What happens meanwhile makes no timer due earlier than this, but for new connections.
        let timers = self.peers.values().filter_map(|node| node.stream.connection.next_timer());
        self.due = timers.chain(self.paused).min().unwrap_or(now + PAUSE);
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPTS {
            match self.listener.accept() {
                Ok((socket, address)) => self.add(socket, address),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted
                    ) => {}
                Err(_) => {
                    // No descriptor or no memory is left.
                    let until = self.clock.now() + PAUSE;
                    (self.paused, self.due) = (Some(until), self.due.min(until));
                    _ = self.poller.change(&self.listener, LISTENER, false, false);
                    return;
                }
            }
        }
    }

    fn add(&mut self, socket: TcpStream, address: SocketAddr) {
        add(&self.counters.accepted);
        if self.handshakes.len() == MAX_HANDSHAKES {
            let oldest = *self.handshakes.first().expect("there are some");
            self.end(oldest, Reason::TooMany);
        }
        let id = ConnectionId(self.next);
        self.next += 1;
        match self.open(socket, id) {
            Ok(stream) => {
                self.peers.insert(id, Node { stream, address, peer: None });
                self.handshakes.insert(id);
                self.due = self.due.min(self.clock.now() + HANDSHAKE_TIME);
            }
            Err(error) => self.refused(address, Reason::Io(error.kind())),
        }
    }

    fn open(&self, socket: TcpStream, id: ConnectionId) -> io::Result<Stream> {
        socket.set_nonblocking(true)?;
        socket.set_nodelay(true)?;
        let connection = Connection::controller(self.identity.clone(), random()?, self.clock.now());
        Stream::new(socket, id.0, connection, &self.poller)
    }

    fn refused(&self, address: SocketAddr, reason: Reason) {
        add(&self.counters.ended[reason.index()]);
        (self.events)(ServerEvent::Refused(address, reason));
    }

    fn on_ready(&mut self, ready: Ready, buffer: &mut [u8]) {
        let (id, now) = (ConnectionId(ready.token), self.clock.now());
        let Some(node) = self.peers.get_mut(&id) else { return };
        let result = if ready.readable { node.stream.read(buffer, now) } else { Ok(()) };
        let result = self.deliver(id, now).and(result);
        let Some(node) = self.peers.get_mut(&id) else { return };
        if let Err(reason) = result.and_then(|()| node.stream.flush(&self.poller)) {
            self.end(id, reason);
        }
    }

    /// Passes on what has arrived.
    fn deliver(&mut self, id: ConnectionId, now: Nanos) -> Result<(), Reason> {
        while let Some(node) = self.peers.get_mut(&id) {
            match node.stream.connection.poll_event() {
                None => break,
                Some(Event::Open(peer)) => self.opened(id, peer, now)?,
                Some(Event::Message(message)) => {
                    add(&self.counters.received);
                    (self.events)(ServerEvent::Message(id, message));
                }
            }
        }
        Ok(())
    }

    /// Takes a node whose handshake is complete, unless there are too many or its peer is connected already.
    fn opened(&mut self, id: ConnectionId, peer: Peer, now: Nanos) -> Result<(), Reason> {
        let operators = self.peers.values().filter(|node| node.peer == Some(Peer::Operator)).count();
        let full = match peer {
            Peer::Operator => operators >= MAX_OPERATORS,
            _ => self.by_peer.len() >= self.max_connections && !self.by_peer.contains_key(&peer),
        };
        if full {
            return Err(Reason::TooMany);
        }
        if peer != Peer::Operator {
            if let Some(&before) = self.by_peer.get(&peer) {
                if is_alive(self.peers[&before].stream.connection.heard(), now) {
                    return Err(Reason::Connected);
                }
                self.end(before, Reason::Replaced);
            }
            self.by_peer.insert(peer, id);
        }
        self.handshakes.remove(&id);
        self.due = self.due.min(now + KEEP_ALIVE);
        add(&self.counters.opened);
        let node = self.peers.get_mut(&id).expect("the caller has found it");
        node.peer = Some(peer);
        (self.events)(ServerEvent::Connected(id, peer, node.address));
        Ok(())
    }

    fn end(&mut self, id: ConnectionId, reason: Reason) {
        let Some(node) = self.peers.remove(&id) else { return };
        self.handshakes.remove(&id);
        drop(node.stream.end(reason));
        let Some(peer) = node.peer else { return self.refused(node.address, reason) };
        if self.by_peer.get(&peer) == Some(&id) {
            self.by_peer.remove(&peer);
        }
        add(&self.counters.ended[reason.index()]);
        (self.events)(ServerEvent::Disconnected(id, reason));
    }

    fn send_waiting(&mut self) {
        let now = self.clock.now();
        let Delivery { overflowed, items } = self.mailbox.take();
        for id in overflowed {
            self.end(id, Reason::Slow);
        }
        let mut touched = BTreeSet::new();
        let mut closing = BTreeSet::new();
        for item in items {
            match item {
                Item::Close(id) => {
                    closing.insert(id);
                }
                Item::Send(id, message) => {
                    let Some(node) = self.peers.get_mut(&id).filter(|_| !closing.contains(&id)) else {
                        continue;
                    };
                    if let Err(reason) = node.stream.connection.send(&message, now) {
                        self.end(id, reason);
                        continue;
                    }
                    add(&self.counters.sent);
                    touched.insert(id);
                }
            }
        }
        for id in touched {
            let Some(node) = self.peers.get_mut(&id) else { continue };
            if let Err(reason) = node.stream.flush(&self.poller) {
                self.end(id, reason);
            }
        }
        for id in closing {
            self.end(id, Reason::Ended);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_keeps_its_connection_for_three_signs_of_life_and_yields_before_it_is_dead() {
        let heard = Nanos::from_secs(7);
        assert!(is_alive(heard, heard) && is_alive(heard, Nanos(heard.0 + ALIVE.0 - 1)));
        assert!(!is_alive(heard, heard + ALIVE));
        assert!(ALIVE < crate::DEAD_AFTER);
    }
}
