//! Control channels of memif ports, which are proxied by this process.
//!
//! DPDK's driver detects the end of a peer in the EAL's interrupt thread and immediately unmaps the shared
//! memory. A worker in the middle of a burst is then killed by SIGSEGV, and surviving the death of a peer is
//! the purpose of memif ports here. Also, a client's driver never reconnects. Therefore no driver gets a
//! peer's socket. Each driver connects to a socket of this process, in a folder that no other user can
//! access. Messages and the descriptors that they carry are validated and forwarded, but the end of a peer is
//! not. Frames do not pass through this process's sockets: the drivers exchange them in shared memory as
//! usual.
//!
//! ```text
//!                 message from a peer, or connected to one       link is up
//! Disconnected ------------------------------------> Connecting ------> Connected   workers poll the port
//!   ^                                                    |                  |
//!   |                                   peer disconnects |                  | peer disconnects
//!   +----------------------------------------------------+                  v
//!   +---------------------------------------------------------------- Disconnecting   workers release it
//!                   no worker uses it; the driver's side is stopped
//! ```
//!
//! The control thread does all of this, between two polls of the workers' queues. A port is stopped in the
//! interrupt thread, where none of the driver's own callbacks can run at the same time.

mod audit;
mod channel;
mod folder;
mod socket;

use crate::config::{Config, Device};
use crate::error::Error;
use crate::interrupt::in_interrupt_thread;
use crate::port;
use crate::time::{Clock, cycles};
use crate::unix_socket::{ListenError, ListeningSocket};
use crate::users::Users;
use audit::Audit;
use channel::{ControlChannel, HandshakeError};
use folder::Folder;
use socket::{Message, receive};
use socket2::{SockAddr, Socket};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use switch::{Nanos, PortId};

/// Interval at which a client tries to connect to its server
const RETRY: Nanos = Nanos::from_millis(20);
/// Time that a peer may take to send its request, or to complete the handshake
const HANDSHAKE_TIMEOUT: Nanos = Nanos::from_millis(5_000);
/// Time without a peer after which a port's wait for its first one is reported
const WAIT_NOTICE: Nanos = Nanos::from_millis(500);
/// Maximum number of peers that have not sent their request yet
const MAX_PENDING_PEERS: usize = 64;

/// Message of the control thread to a worker about a port.
pub(crate) enum Signal {
    /// The port has a peer: poll it, and send through it
    Adopt(PortId),
    /// The port will be stopped: stop using it, and leave `Users`
    Release(PortId, Arc<Users>),
}

/// Interface of the channels to the rest of the runtime.
pub(crate) trait MemifHooks {
    /// Returns the number of workers.
    fn workers(&self) -> usize;
    /// Sends a signal to a worker. Returns `false` if its queue is full.
    fn signal(&mut self, worker: usize, signal: Signal) -> bool;
    /// Reports that the port's peer has connected or disconnected.
    fn on_link(&mut self, port: usize, up: bool);
    /// Reports that the port still waits for its first peer.
    fn on_peer_awaited(&mut self, port: usize);
    /// Reports that a process is refused as the port's peer.
    fn on_peer_refused(&mut self, port: usize, why: &str);
}

/// Control channels of all memif ports.
pub(crate) struct Channels {
    /// Folder of the inner sockets, if there are memif ports
    folder: Option<Folder>,
    servers: Vec<Server>,
    pending_peers: Vec<PendingPeer>,
    ports: Vec<Port>,
    clock: Option<Clock>,
    /// Time of the first tick of the run
    began: Option<Nanos>,
}

/// A socket on which server ports listen.
struct Server {
    path: PathBuf,
    outer: Socket,
    _place: ListeningSocket,
    /// Path of the socket on which the driver listens
    inner: PathBuf,
    /// A peer whose connection to the driver has to be retried, because the driver's listen queue was full
    retry_peer: Option<Socket>,
}

/// A peer that is not yet assigned to a port.
struct PendingPeer {
    server: usize,
    channel: ControlChannel,
    since: Nanos,
    /// Whether the driver has sent HELLO. The driver must not see the peer disconnect before: 22.11's driver
    /// then leaves a callback registered, and the EAL panics.
    hello_sent: bool,
    /// The peer's request, while the requested port has another peer
    request: Option<Message>,
}

/// A memif port.
struct Port {
    index: usize,
    /// Number of queues in each direction
    queues: u16,
    /// A user whose processes may be the peer, in addition to this user and root
    peer_uid: Option<u32>,
    role: Role,
    state: State,
    /// Reason for a refusal that was reported last, since the last peer connected
    refused: Option<String>,
    /// Whether the port has reported that it waits, or has had a peer
    wait_reported: bool,
}

enum Role {
    Server { server: usize, id: u32 },
    Client { path: SockAddr, id: u32, inner: Socket, inner_path: PathBuf, retry_at: Nanos },
}

enum State {
    Disconnected,
    Connecting { channel: ControlChannel, audit: Audit, since: Nanos },
    Connected { channel: ControlChannel, notified: usize },
    Disconnecting { channel: ControlChannel, notified: usize, users: Arc<Users> },
}

impl core::fmt::Debug for Channels {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Channels").field("folder", &self.folder).finish_non_exhaustive()
    }
}

/// Reports a refusal, unless the same reason was reported last: a refused client tries again every few
/// milliseconds.
fn refuse(port: &mut Port, why: String, hooks: &mut impl MemifHooks) {
    if port.refused.as_ref() != Some(&why) {
        hooks.on_peer_refused(port.index, &why);
        port.refused = Some(why);
    }
}

impl Channels {
    /// Opens the sockets of the memif ports of `config`, before the EAL creates the ports.
    pub(crate) fn open(config: &Config) -> Result<Self, Error> {
        let mut channels = Self {
            folder: None,
            servers: Vec::new(),
            pending_peers: Vec::new(),
            ports: Vec::new(),
            clock: None,
            began: None,
        };
        for (index, port) in config.ports.iter().enumerate() {
            let Device::Memif { socket, id, server, peer_uid } = &port.device else { continue };
            if channels.folder.is_none() {
                channels.folder = Some(Folder::create()?);
            }
            let role = if *server {
                Role::Server { server: channels.server_index(socket, config)?, id: *id }
            } else {
                let failed = |error: io::Error| {
                    Error::new(
                        format!("port `{}`: {} cannot be used: {error}", port.name, socket.display()),
                        "choose another path for the socket",
                    )
                };
                let inner_path = channels.inner(&format!("client-{index}"));
                let inner = SockAddr::unix(&inner_path).and_then(|address| socket::listen(&address));
                let path = SockAddr::unix(socket).map_err(failed)?;
                Role::Client {
                    path,
                    id: *id,
                    inner: inner.map_err(failed)?,
                    inner_path,
                    retry_at: Nanos::ZERO,
                }
            };
            let queues = port::rx_queues(port, config.workers.cpus.len());
            channels.ports.push(Port {
                index,
                queues,
                peer_uid: *peer_uid,
                role,
                state: State::Disconnected,
                refused: None,
                wait_reported: false,
            });
        }
        Ok(channels)
    }

    /// Returns the index of the server at this path, and creates it if necessary.
    fn server_index(&mut self, path: &Path, config: &Config) -> Result<usize, Error> {
        if let Some(index) = self.servers.iter().position(|server| server.path == *path) {
            return Ok(index);
        }
        // Whether processes of another user may connect to a port at this path
        let open = config.ports.iter().any(|port| {
            matches!(&port.device, Device::Memif { socket, server: true, peer_uid: Some(_), .. } if socket == path)
        });
        let made = socket::socket().map_err(ListenError::Other);
        let made =
            made.and_then(|outer| ListeningSocket::listen(&outer, path, open).map(|place| (outer, place)));
        let (outer, place) = made.map_err(|error| unusable(path, &error))?;
        let inner = self.inner(&format!("server-{}", self.servers.len()));
        self.servers.push(Server { path: path.to_owned(), outer, _place: place, inner, retry_peer: None });
        Ok(self.servers.len() - 1)
    }

    /// Returns the path of an inner socket.
    fn inner(&self, name: &str) -> PathBuf {
        self.folder.as_ref().expect("open() creates the folder for the first port").path(name)
    }

    /// Returns the driver arguments of a memif port that select its inner socket.
    pub(crate) fn driver_arguments(&self, index: usize) -> Option<String> {
        let port = self.ports.iter().find(|port| port.index == index)?;
        let (role, id, socket) = match &port.role {
            Role::Server { server, id } => ("server", id, &self.servers[*server].inner),
            Role::Client { id, inner_path, .. } => ("client", id, inner_path),
        };
        Some(format!("role={role},id={id},socket={},socket-abstract=no", socket.display()))
    }

    /// Returns whether there are no memif ports.
    pub(crate) fn is_empty(&self) -> bool {
        self.ports.is_empty()
    }

    /// Returns whether a port is a memif port, which workers must not use before `Signal::Adopt`.
    pub(crate) fn is_memif(&self, index: usize) -> bool {
        self.ports.iter().any(|port| port.index == index)
    }

    /// Begins a run with new workers, which use no memif port yet.
    pub(crate) fn begin(&mut self, workers: usize) {
        self.began = None;
        for port in &mut self.ports {
            match &mut port.state {
                State::Connected { notified, .. } => *notified = 0,
                State::Disconnecting { notified, users, .. } => {
                    (*notified, *users) = (workers, Arc::default());
                }
                State::Disconnected | State::Connecting { .. } => {}
            }
        }
    }

    /// Returns whether a client port is not connected yet, although its server may be running.
    pub(crate) fn is_connecting(&self) -> bool {
        let calls = |port: &Port| {
            let unconnected = matches!(port.state, State::Disconnected | State::Connecting { .. });
            matches!(port.role, Role::Client { .. }) && unconnected
        };
        self.ports.iter().any(calls)
    }

    /// Ends the run: no further peers are accepted. Peers without a port are disconnected as soon as that is
    /// safe.
    pub(crate) fn close(&mut self) {
        for _ in 0..100 {
            self.pending_peers.retain(|pending_peer| {
                !pending_peer.hello_sent && matches!(pending_peer.channel.pass_out(), Ok(false))
            });
            if self.pending_peers.is_empty() {
                return;
            }
            std::thread::sleep(core::time::Duration::from_millis(1));
        }
        core::mem::forget(core::mem::take(&mut self.pending_peers));
    }

    /// Processes pending work. Returns whether there was any. `devices` are DPDK's port IDs of all ports.
    pub(crate) fn tick(&mut self, devices: &[u16], hooks: &mut impl MemifHooks) -> bool {
        let now = self.clock.get_or_insert_with(Clock::start).nanos(cycles());
        let waited = now.since(*self.began.get_or_insert(now));
        let mut progress = self.accept_peers(now, hooks);
        for port in &mut self.ports {
            progress |= port.tick(devices[port.index], now, hooks);
            port.report_wait(waited, hooks);
        }
        progress
    }

    /// Accepts connections and handles the peers' requests.
    fn accept_peers(&mut self, now: Nanos, hooks: &mut impl MemifHooks) -> bool {
        let mut progress = false;
        for (number, server) in self.servers.iter_mut().enumerate() {
            while self.pending_peers.len() < MAX_PENDING_PEERS {
                let Some(outer) = server.retry_peer.take().or_else(|| socket::accept(&server.outer)) else {
                    break;
                };
                let mut ports = self.ports.iter_mut().filter(|port| port.serves(number));
                let first = ports.next().expect("each server has a port");
                if let Some(why) = first.refusal_reason(&outer)
                    && ports.all(|port| port.refusal_reason(&outer).is_some())
                {
                    refuse(first, why, hooks);
                    continue;
                }
                match SockAddr::unix(&server.inner).and_then(|inner| socket::connect(&inner)) {
                    Ok(inner) => {
                        progress = true;
                        let channel = ControlChannel { outer, inner };
                        let pending_peer = PendingPeer {
                            server: number,
                            channel,
                            since: now,
                            hello_sent: false,
                            request: None,
                        };
                        self.pending_peers.push(pending_peer);
                    }
                    // The driver's listen queue is short.
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        server.retry_peer = Some(outer);
                        break;
                    }
                    Err(_) => {}
                }
            }
        }
        let mut at = 0;
        while at < self.pending_peers.len() {
            match self.pending_peers[at].poll(now, &mut self.ports) {
                Poll::Pending => at += 1,
                Poll::Disconnected => drop(self.pending_peers.swap_remove(at)),
                Poll::Refused(port, why) => {
                    drop(self.pending_peers.swap_remove(at));
                    refuse(&mut self.ports[port], why, hooks);
                }
                Poll::Requested(message, port) => {
                    progress = true;
                    let channel = self.pending_peers.swap_remove(at).channel;
                    // If the driver does not receive the request, it does not respond, and the attempt times
                    // out.
                    drop(message.send(&channel.inner));
                    let port = &mut self.ports[port];
                    port.state =
                        State::Connecting { channel, audit: Audit::of_client(port.queues), since: now };
                }
            }
        }
        progress
    }
}

/// Explains why a server socket cannot be used.
fn unusable(path: &Path, error: &ListenError) -> Error {
    let shown = path.display();
    match error {
        ListenError::InUse => Error::new(
            format!("another process listens on the socket {shown}"),
            "stop it, or choose another path",
        ),
        ListenError::Folder(error) => Error::new(
            format!("the folder of the socket {shown} cannot be used: {error}"),
            "create it, or choose another path for the socket",
        ),
        ListenError::Taken | ListenError::Other(_) => Error::new(
            format!("cannot create the socket {shown}: {error}"),
            "its folder has to be writable, and no other file may have this path",
        ),
    }
}

/// Result of polling a pending peer
enum Poll {
    Pending,
    Disconnected,
    /// A request for an idle port, with the index of the port
    Requested(Message, usize),
    /// The requested port, by index, refuses the peer for this reason
    Refused(usize, String),
}

impl PendingPeer {
    fn poll(&mut self, now: Nanos, ports: &mut [Port]) -> Poll {
        match self.channel.pass_out() {
            // Whether HELLO still reaches the peer is irrelevant to the driver.
            Ok(passed) => self.hello_sent |= passed,
            Err(_) => return Poll::Disconnected,
        }
        if !self.hello_sent {
            return Poll::Pending;
        }
        match receive(&self.channel.outer) {
            Ok(Some(message)) if self.request.is_none() => self.request = Some(message),
            Ok(None) => {}
            Ok(Some(_)) | Err(_) => return Poll::Disconnected,
        }
        let Some(request) = self.request.take() else {
            return if now.since(self.since) > HANDSHAKE_TIMEOUT {
                Poll::Disconnected
            } else {
                Poll::Pending
            };
        };
        let interface = request.requested_interface();
        let serves = |port: &Port| matches!(port.role, Role::Server { server, id } if server == self.server && Some(id) == interface);
        let port = ports.iter().position(serves);
        if let Some((port, why)) =
            port.and_then(|port| Some((port, ports[port].refusal_reason(&self.channel.outer)?)))
        {
            return Poll::Refused(port, why);
        }
        match port {
            None => Poll::Disconnected,
            Some(port) if matches!(ports[port].state, State::Disconnected) => Poll::Requested(request, port),
            // The port's current peer may be about to disconnect.
            Some(_) => {
                self.request = Some(request);
                Poll::Pending
            }
        }
    }
}

/// Returns whether a process of `user` may be the peer of a port of the user `own`.
fn is_trusted(user: u32, own: u32, peer_uid: Option<u32>) -> bool {
    user == own || user == 0 || Some(user) == peer_uid
}

impl Port {
    fn serves(&self, number: usize) -> bool {
        matches!(self.role, Role::Server { server, .. } if server == number)
    }

    /// Returns the reason why the process at the other end may not be this port's peer, or `None` if it may.
    fn refusal_reason(&self, socket: &Socket) -> Option<String> {
        let own = rustix::process::geteuid().as_raw();
        match socket::user(socket) {
            Ok(user) if is_trusted(user, own, self.peer_uid) => None,
            Ok(user) => Some(format!(
                "it runs as user {user}, but this process as user {own}; set `peer_uid = {user}` to permit it"
            )),
            Err(error) => Some(format!("cannot determine its user: {error}")),
        }
    }

    /// Reports once that the port has waited for its first peer for [`WAIT_NOTICE`].
    fn report_wait(&mut self, waited: Nanos, hooks: &mut impl MemifHooks) {
        let is_waiting = matches!(self.state, State::Disconnected | State::Connecting { .. });
        if is_waiting && !self.wait_reported && waited >= WAIT_NOTICE {
            hooks.on_peer_awaited(self.index);
        }
        self.wait_reported |= !is_waiting || waited >= WAIT_NOTICE;
    }

    fn tick(&mut self, device: u16, now: Nanos, hooks: &mut impl MemifHooks) -> bool {
        match core::mem::replace(&mut self.state, State::Disconnected) {
            State::Disconnected => self.connect(device, now, hooks),
            State::Connecting { channel, mut audit, since } => {
                let out = channel.pass_out().map_err(HandshakeError::from);
                let passed = out.and_then(|out| Ok(channel.pass_in(&mut audit)? | out));
                if passed.is_ok() && port::link_is_up(device) {
                    self.refused = None;
                    hooks.on_link(self.index, true);
                    self.state = State::Connected { channel, notified: 0 };
                } else if passed.is_err() || now.since(since) > HANDSHAKE_TIMEOUT {
                    // No worker has adopted the port yet.
                    self.disconnect(device);
                } else {
                    self.state = State::Connecting { channel, audit, since };
                }
                match passed {
                    Ok(passed) => passed,
                    Err(ended) => {
                        if let HandshakeError::Refused(why) = ended {
                            refuse(self, why, hooks);
                        }
                        true
                    }
                }
            }
            State::Connected { channel, mut notified } => {
                while notified < hooks.workers()
                    && hooks.signal(notified, Signal::Adopt(PortId(self.index as u16)))
                {
                    notified += 1;
                }
                let ended = channel.pass_out().is_err() || channel.is_disconnected();
                if ended {
                    hooks.on_link(self.index, false);
                    let users = Arc::new(Users::new(hooks.workers()));
                    self.state = State::Disconnecting { channel, notified: 0, users };
                } else {
                    self.state = State::Connected { channel, notified };
                }
                ended
            }
            State::Disconnecting { channel, mut notified, users } => {
                let signal = || Signal::Release(PortId(self.index as u16), Arc::clone(&users));
                while notified < hooks.workers() && hooks.signal(notified, signal()) {
                    notified += 1;
                }
                let all_left = users.count() == 0;
                if all_left {
                    self.disconnect(device);
                } else {
                    self.state = State::Disconnecting { channel, notified, users };
                }
                all_left
            }
        }
    }

    /// Connects a client port to its server, if the server is running.
    fn connect(&mut self, device: u16, now: Nanos, hooks: &mut impl MemifHooks) -> bool {
        let Role::Client { path, retry_at, .. } = &mut self.role else { return false };
        if now < *retry_at {
            return false;
        }
        *retry_at = now + RETRY;
        let Ok(outer) = socket::connect(path) else { return false };
        if let Some(why) = self.refusal_reason(&outer) {
            refuse(self, why, hooks);
            return false;
        }
        if !port::start(device) {
            return false;
        }
        let Role::Client { inner, .. } = &self.role else { unreachable!("the role was matched above") };
        // The driver has connected in `port::start`.
        let Some(inner) = socket::accept(inner) else {
            self.disconnect(device);
            return false;
        };
        self.state = State::Connecting {
            channel: ControlChannel { outer, inner },
            audit: Audit::of_server(self.queues),
            since: now,
        };
        true
    }

    /// Stops the driver's side, which no worker uses. A server's driver is started again, for the next peer.
    fn disconnect(&mut self, device: u16) {
        let serves = matches!(self.role, Role::Server { .. });
        in_interrupt_thread(move || {
            port::stop(device);
            if serves {
                port::start(device);
            }
        });
        self.state = State::Disconnected;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_run_as_this_user_as_root_or_as_the_permitted_user() {
        assert!(is_trusted(1000, 1000, None) && is_trusted(0, 1000, None));
        assert!(!is_trusted(1001, 1000, None) && !is_trusted(1000, 0, None));
        assert!(is_trusted(1001, 1000, Some(1001)) && !is_trusted(1002, 1000, Some(1001)));
    }
}
