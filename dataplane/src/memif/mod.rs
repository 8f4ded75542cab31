//! The control channels of memif ports, which pass through this process.
//!
//! DPDK's driver notices that a peer has gone in the EAL's interrupt thread, and there and then unmaps the memory that it
//! shared with it: a worker that is in the middle of a burst dies of it, and peers that are killed are what memif is
//! here for. Nor does a client's driver ever connect a second time. So no driver gets hold of a peer's socket. Each talks to
//! a socket of ours, in a folder that no other user can enter; messages and the descriptors that come with them are
//! checked and passed on, and the end of a peer is not. Frames do not come this way: drivers share their memory as ever.
//!
//! ```text
//!            peer's messages come, or the peer answers           link is up
//!   Apart ------------------------------------------> Joining ------------> Joined    workers poll the port
//!     ^                                                  |                    |
//!     |                                 peer has gone    |                    | peer has gone
//!     +--------------------------------------------------+                    v
//!     +------------------------------------------------------------------- Leaving    workers are letting go of it
//!                    none has it; the driver's side is ended
//! ```
//!
//! All of it is done by the control thread, between two looks at the workers. A port is stopped in the interrupt thread,
//! where none of the driver's own callbacks can be under way.

mod audit;
mod folder;
mod socket;

use crate::config::{Config, Device};
use crate::error::Error;
use crate::place::{Place, PlaceError};
use crate::port;
use crate::time::{Clock, cycles};
use crate::users::Users;
use audit::Audit;
use core::sync::atomic::{AtomicBool, Ordering};
use folder::Folder;
use socket::{Message, receive};
use socket2::{SockAddr, Socket};
use std::ffi::c_void;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use switch::{Nanos, PortId};

/// How often a client asks whether its server is there
const RETRY: Nanos = Nanos::from_millis(20);
/// How long a peer may take to say what it wants, or to agree
const PATIENCE: Nanos = Nanos::from_millis(5_000);
/// Peers at once that have not said yet what they want
const CALLERS: usize = 64;

/// What the control thread tells a worker of a port.
pub(crate) enum Signal {
    /// It has a peer: poll it, and send through it.
    Adopt(PortId),
    /// It is to be stopped: leave it alone, and count down.
    Release(PortId, Arc<Users>),
}

/// How the channels reach the rest of the runtime.
pub(crate) trait Runs {
    /// How many workers there are
    fn workers(&self) -> usize;
    /// Tells a worker; `false` if its queue is full.
    fn tell(&mut self, worker: usize, signal: Signal) -> bool;
    /// The port's peer has come or gone.
    fn link(&mut self, port: usize, up: bool);
    /// Reports that a process that wanted to be the port's peer is refused.
    fn refused(&mut self, port: usize, why: &str);
}

/// The control channels of all memif ports.
pub(crate) struct Channels {
    /// Folder of the inner sockets, if there are memif ports
    folder: Option<Folder>,
    servers: Vec<Server>,
    callers: Vec<Caller>,
    ports: Vec<Port>,
    clock: Option<Clock>,
}

/// A socket on which ports of ours serve.
struct Server {
    path: PathBuf,
    outer: Socket,
    _place: Place,
    /// Where the driver listens
    inner: PathBuf,
    /// A peer for which the driver has had no ear yet
    waiting: Option<Socket>,
}

/// A peer that has not got its port yet.
struct Caller {
    server: usize,
    line: Line,
    since: Nanos,
    /// The driver has spoken. Before that it must not find the peer gone: 22.11's forgets to take back a callback that
    /// it has set, and the EAL panics.
    greeted: bool,
    /// What it asked for, while that has another peer
    asked: Option<Message>,
}

/// A control channel: to the peer, and to the driver
struct Line {
    outer: Socket,
    inner: Socket,
}

/// A memif port.
struct Port {
    index: usize,
    /// Queues in each direction
    queues: u16,
    /// A user whose processes may be the peer, besides this user's and root's
    peer_uid: Option<u32>,
    role: Role,
    state: State,
    /// Reason that was reported last, since a peer came
    refused: Option<String>,
}

enum Role {
    Server { server: usize, id: u32 },
    Client { path: SockAddr, id: u32, inner: Socket, inner_path: PathBuf, again: Nanos },
}

enum State {
    Apart,
    Joining { line: Line, audit: Audit, since: Nanos },
    Joined { line: Line, told: usize },
    Leaving { line: Line, told: usize, users: Arc<Users> },
}

impl core::fmt::Debug for Channels {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Channels").field("folder", &self.folder).finish_non_exhaustive()
    }
}

/// Reports a refusal, unless it is the one reported last: a refused client tries again every few milliseconds.
fn refuse(port: &mut Port, why: String, runs: &mut impl Runs) {
    if port.refused.as_ref() != Some(&why) {
        runs.refused(port.index, &why);
        port.refused = Some(why);
    }
}

impl Channels {
    /// Opens the sockets of the memif ports of `config`, before the EAL makes the ports.
    pub(crate) fn open(config: &Config) -> Result<Self, Error> {
        let mut channels =
            Self { folder: None, servers: Vec::new(), callers: Vec::new(), ports: Vec::new(), clock: None };
        for (index, port) in config.ports.iter().enumerate() {
            let Device::Memif { socket, id, server, peer_uid } = &port.device else { continue };
            if channels.folder.is_none() {
                channels.folder = Some(Folder::make()?);
            }
            let role = if *server {
                Role::Server { server: channels.server(socket, config)?, id: *id }
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
                Role::Client { path, id: *id, inner: inner.map_err(failed)?, inner_path, again: Nanos::ZERO }
            };
            let queues = port::rx_queues(port, config.workers.cpus.len());
            channels.ports.push(Port {
                index,
                queues,
                peer_uid: *peer_uid,
                role,
                state: State::Apart,
                refused: None,
            });
        }
        Ok(channels)
    }

    /// Returns the number of the server at this path, which listens from then on.
    fn server(&mut self, path: &Path, config: &Config) -> Result<usize, Error> {
        if let Some(known) = self.servers.iter().position(|server| server.path == *path) {
            return Ok(known);
        }
        // A port at this path that another user's process may join
        let open = config.ports.iter().any(|port| {
            matches!(&port.device, Device::Memif { socket, server: true, peer_uid: Some(_), .. } if socket == path)
        });
        let made = socket::socket().map_err(PlaceError::Other);
        let made = made.and_then(|outer| Place::listen(&outer, path, open).map(|place| (outer, place)));
        let (outer, place) = made.map_err(|error| unusable(path, &error))?;
        let inner = self.inner(&format!("server-{}", self.servers.len()));
        self.servers.push(Server { path: path.to_owned(), outer, _place: place, inner, waiting: None });
        Ok(self.servers.len() - 1)
    }

    /// Returns the path of an inner socket.
    fn inner(&self, name: &str) -> PathBuf {
        self.folder.as_ref().expect("it is made for the first port").path(name)
    }

    /// What the driver of a memif port is told of its socket.
    pub(crate) fn arguments(&self, index: usize) -> Option<String> {
        let port = self.ports.iter().find(|port| port.index == index)?;
        let (role, id, socket) = match &port.role {
            Role::Server { server, id } => ("server", id, &self.servers[*server].inner),
            Role::Client { id, inner_path, .. } => ("client", id, inner_path),
        };
        Some(format!("role={role},id={id},socket={},socket-abstract=no", socket.display()))
    }

    /// Whether there is nothing to do, ever
    pub(crate) fn is_empty(&self) -> bool {
        self.ports.is_empty()
    }

    /// Whether workers have to wait until they are told to adopt this port
    pub(crate) fn has(&self, index: usize) -> bool {
        self.ports.iter().any(|port| port.index == index)
    }

    /// There are new workers, which have no port yet.
    pub(crate) fn begin(&mut self, workers: usize) {
        for port in &mut self.ports {
            match &mut port.state {
                State::Joined { told, .. } => *told = 0,
                State::Leaving { told, users, .. } => (*told, *users) = (workers, Arc::default()),
                State::Apart | State::Joining { .. } => {}
            }
        }
    }

    /// Whether a client of ours has no server yet, though it may be about to
    pub(crate) fn is_calling(&self) -> bool {
        let calls = |port: &Port| {
            let apart = matches!(port.state, State::Apart | State::Joining { .. });
            matches!(port.role, Role::Client { .. }) && apart
        };
        self.ports.iter().any(calls)
    }

    /// No more calls are answered. Who has not got a port is left, as soon as that can be.
    pub(crate) fn end(&mut self) {
        for _ in 0..100 {
            self.callers.retain(|caller| !caller.greeted && matches!(caller.line.pass_out(), Ok(false)));
            if self.callers.is_empty() {
                return;
            }
            std::thread::sleep(core::time::Duration::from_millis(1));
        }
        core::mem::forget(core::mem::take(&mut self.callers));
    }

    /// Does what there is to do; whether there was something. `devices` are DPDK's numbers of all ports.
    pub(crate) fn tick(&mut self, devices: &[u16], runs: &mut impl Runs) -> bool {
        let now = self.clock.get_or_insert_with(Clock::start).nanos(cycles());
        let mut moved = self.answer(now, runs);
        for port in &mut self.ports {
            moved |= port.tick(devices[port.index], now, runs);
        }
        moved
    }

    /// Hears who calls, and what they want.
    fn answer(&mut self, now: Nanos, runs: &mut impl Runs) -> bool {
        let mut moved = false;
        for (number, server) in self.servers.iter_mut().enumerate() {
            while self.callers.len() < CALLERS {
                let Some(outer) = server.waiting.take().or_else(|| socket::accept(&server.outer)) else {
                    break;
                };
                let mut ports = self.ports.iter_mut().filter(|port| port.serves(number));
                let first = ports.next().expect("a server is there for its ports");
                if let Some(why) = first.stranger(&outer)
                    && ports.all(|port| port.stranger(&outer).is_some())
                {
                    refuse(first, why, runs);
                    continue;
                }
                match SockAddr::unix(&server.inner).and_then(|inner| socket::connect(&inner)) {
                    Ok(inner) => {
                        moved = true;
                        let line = Line { outer, inner };
                        let caller = Caller { server: number, line, since: now, greeted: false, asked: None };
                        self.callers.push(caller);
                    }
                    // Few can wait for the driver at once.
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        server.waiting = Some(outer);
                        break;
                    }
                    Err(_) => {}
                }
            }
        }
        let mut at = 0;
        while at < self.callers.len() {
            match self.callers[at].listen(now, &mut self.ports) {
                Heard::Nothing => at += 1,
                Heard::Gone => drop(self.callers.swap_remove(at)),
                Heard::Refused(port, why) => {
                    drop(self.callers.swap_remove(at));
                    refuse(&mut self.ports[port], why, runs);
                }
                Heard::Wants(asks, port) => {
                    moved = true;
                    let line = self.callers.swap_remove(at).line;
                    // A driver that does not hear this says nothing, and has until patience ends.
                    drop(asks.send(&line.inner));
                    let port = &mut self.ports[port];
                    port.state = State::Joining { line, audit: Audit::of_client(port.queues), since: now };
                }
            }
        }
        moved
    }
}

/// Explains why a server cannot have its socket.
fn unusable(path: &Path, error: &PlaceError) -> Error {
    let shown = path.display();
    match error {
        PlaceError::InUse => Error::new(
            format!("another process listens on the socket {shown}"),
            "end it, or choose another path",
        ),
        PlaceError::Folder(error) => Error::new(
            format!("the folder of the socket {shown} cannot be used: {error}"),
            "make it, or choose another place for the socket",
        ),
        PlaceError::Taken | PlaceError::Other(_) => Error::new(
            format!("the socket {shown} could not be made: {error}"),
            "its folder has to be writable, and no other file may have its name",
        ),
    }
}

/// What a caller has said
enum Heard {
    Nothing,
    Gone,
    /// This, which the port of this number can give
    Wants(Message, usize),
    /// The port of this number refuses the caller, for this reason
    Refused(usize, String),
}

impl Caller {
    fn listen(&mut self, now: Nanos, ports: &mut [Port]) -> Heard {
        match self.line.pass_out() {
            // Whether its greeting still reaches anybody is not its concern.
            Ok(passed) => self.greeted |= passed,
            Err(_) => return Heard::Gone,
        }
        if !self.greeted {
            return Heard::Nothing;
        }
        match receive(&self.line.outer) {
            Ok(Some(message)) if self.asked.is_none() => self.asked = Some(message),
            Ok(None) => {}
            Ok(Some(_)) | Err(_) => return Heard::Gone,
        }
        let Some(asked) = self.asked.take() else {
            return if now.since(self.since) > PATIENCE { Heard::Gone } else { Heard::Nothing };
        };
        let wanted = asked.asks_for();
        let serves = |port: &Port| matches!(port.role, Role::Server { server, id } if server == self.server && Some(id) == wanted);
        let port = ports.iter().position(serves);
        if let Some((port, why)) = port.and_then(|port| Some((port, ports[port].stranger(&self.line.outer)?)))
        {
            return Heard::Refused(port, why);
        }
        match port {
            None => Heard::Gone,
            Some(port) if matches!(ports[port].state, State::Apart) => Heard::Wants(asked, port),
            // Who had it may be gone already.
            Some(_) => {
                self.asked = Some(asked);
                Heard::Nothing
            }
        }
    }
}

impl Line {
    /// Passes on what the driver says; whether it said something.
    fn pass_out(&self) -> io::Result<bool> {
        pass(&self.inner, &self.outer)
    }

    /// Checks what the peer says, and passes it on; whether it said something.
    fn pass_in(&self, audit: &mut Audit) -> Result<bool, Ended> {
        let mut passed = false;
        while let Some(message) = receive(&self.outer)? {
            if let Err(why) = audit.check(&message) {
                // It may have gone already.
                drop(Message::disconnect(&why).send(&self.outer));
                return Err(Ended::Refused(why));
            }
            message.send(&self.inner)?;
            passed = true;
        }
        Ok(passed)
    }

    /// Whether the peer has gone. Once joined, it says one thing at most: that it goes.
    fn is_over(&self) -> bool {
        !matches!(receive(&self.outer), Ok(None))
    }
}

/// Why a peer does not join.
enum Ended {
    Gone,
    Refused(String),
}

impl From<io::Error> for Ended {
    fn from(_: io::Error) -> Self {
        Self::Gone
    }
}

fn pass(from: &Socket, to: &Socket) -> io::Result<bool> {
    let mut passed = false;
    while let Some(message) = receive(from)? {
        message.send(to)?;
        passed = true;
    }
    Ok(passed)
}

/// Whether a process of `user` may be the peer of a port of `own`.
fn is_trusted(user: u32, own: u32, peer_uid: Option<u32>) -> bool {
    user == own || user == 0 || Some(user) == peer_uid
}

impl Port {
    fn serves(&self, number: usize) -> bool {
        matches!(self.role, Role::Server { server, .. } if server == number)
    }

    /// Returns why the process at the other end may not be this port's peer; `None` if it may.
    fn stranger(&self, socket: &Socket) -> Option<String> {
        let own = rustix::process::geteuid().as_raw();
        match socket::user(socket) {
            Ok(user) if is_trusted(user, own, self.peer_uid) => None,
            Ok(user) => Some(format!(
                "it runs as user {user}, and this as {own}; set `peer_uid = {user}` if you trust it"
            )),
            Err(error) => Some(format!("its user is not known: {error}")),
        }
    }

    fn tick(&mut self, device: u16, now: Nanos, runs: &mut impl Runs) -> bool {
        match core::mem::replace(&mut self.state, State::Apart) {
            State::Apart => self.call(device, now, runs),
            State::Joining { line, mut audit, since } => {
                let out = line.pass_out().map_err(Ended::from);
                let passed = out.and_then(|out| Ok(line.pass_in(&mut audit)? | out));
                if passed.is_ok() && port::link_is_up(device) {
                    self.refused = None;
                    runs.link(self.index, true);
                    self.state = State::Joined { line, told: 0 };
                } else if passed.is_err() || now.since(since) > PATIENCE {
                    // No worker has adopted the port yet.
                    self.part(device);
                } else {
                    self.state = State::Joining { line, audit, since };
                }
                match passed {
                    Ok(passed) => passed,
                    Err(ended) => {
                        if let Ended::Refused(why) = ended {
                            refuse(self, why, runs);
                        }
                        true
                    }
                }
            }
            State::Joined { line, mut told } => {
                while told < runs.workers() && runs.tell(told, Signal::Adopt(PortId(self.index as u16))) {
                    told += 1;
                }
                let over = line.pass_out().is_err() || line.is_over();
                if over {
                    runs.link(self.index, false);
                    let users = Arc::new(Users::new(runs.workers()));
                    self.state = State::Leaving { line, told: 0, users };
                } else {
                    self.state = State::Joined { line, told };
                }
                over
            }
            State::Leaving { line, mut told, users } => {
                let signal = || Signal::Release(PortId(self.index as u16), Arc::clone(&users));
                while told < runs.workers() && runs.tell(told, signal()) {
                    told += 1;
                }
                let all_left = users.count() == 0;
                if all_left {
                    self.part(device);
                } else {
                    self.state = State::Leaving { line, told, users };
                }
                all_left
            }
        }
    }

    /// A client looks whether its server is there.
    fn call(&mut self, device: u16, now: Nanos, runs: &mut impl Runs) -> bool {
        let Role::Client { path, again, .. } = &mut self.role else { return false };
        if now < *again {
            return false;
        }
        *again = now + RETRY;
        let Ok(outer) = socket::connect(path) else { return false };
        if let Some(why) = self.stranger(&outer) {
            refuse(self, why, runs);
            return false;
        }
        if !port::start(device) {
            return false;
        }
        let Role::Client { inner, .. } = &self.role else { unreachable!("it was one above") };
        // The driver has connected.
        let Some(inner) = socket::accept(inner) else {
            self.part(device);
            return false;
        };
        self.state =
            State::Joining { line: Line { outer, inner }, audit: Audit::of_server(self.queues), since: now };
        true
    }

    /// Ends the driver's side, which no worker uses. A server's can be joined again at once.
    fn part(&mut self, device: u16) {
        let serves = matches!(self.role, Role::Server { .. });
        in_interrupt_thread(move || {
            port::stop(device);
            if serves {
                port::start(device);
            }
        });
        self.state = State::Apart;
    }
}

/// Keeps the EAL's interrupt thread from doing anything ever again: to be called before ports are closed for good. The
/// driver frees the handle of its listener without telling the thread, which would look at it when next it wakes.
pub(crate) fn park_interrupts() {
    static PARKED: AtomicBool = AtomicBool::new(false);
    if PARKED.swap(true, Ordering::SeqCst) {
        return;
    }
    let (parked, wait) = mpsc::channel();
    let set = set_alarm(move || {
        _ = parked.send(());
        loop {
            std::thread::park();
        }
    });
    if set.is_ok() {
        _ = wait.recv();
    }
}

/// Runs `work` in the EAL's interrupt thread, and waits for it.
fn in_interrupt_thread(work: impl FnOnce() + Send + 'static) {
    let (done, wait) = mpsc::channel();
    let set = set_alarm(move || {
        work();
        _ = done.send(());
    });
    if let Err(work) = set {
        // There is no memory for an alarm. The driver may be at work meanwhile, but not on what workers use.
        work();
    }
    _ = wait.recv();
}

type Work = Box<dyn FnOnce() + Send>;

/// Has the EAL's interrupt thread run `work` soon; gives it back if that cannot be.
fn set_alarm(work: impl FnOnce() + Send + 'static) -> Result<(), Work> {
    unsafe extern "C" fn run(work: *mut c_void) {
        // SAFETY: it is the box that was leaked below, and this is called once.
        let work = unsafe { Box::from_raw(work.cast::<Work>()) };
        work();
    }
    let work: Box<Work> = Box::new(Box::new(work));
    let work = Box::into_raw(work);
    // SAFETY: the EAL is up; `run` takes what it is given, once.
    let result = unsafe { dpdk_sys::rte_eal_alarm_set(1, Some(run), work.cast()) };
    // SAFETY: if it failed, nobody else has it.
    if result < 0 { Err(*unsafe { Box::from_raw(work) }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_this_users_processes_roots_and_those_asked_in() {
        assert!(is_trusted(1000, 1000, None) && is_trusted(0, 1000, None));
        assert!(!is_trusted(1001, 1000, None) && !is_trusted(1000, 0, None));
        assert!(is_trusted(1001, 1000, Some(1001)) && !is_trusted(1002, 1000, Some(1001)));
    }
}
