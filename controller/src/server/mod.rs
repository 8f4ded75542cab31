//! A controller that runs: the state machine with the connections of its nodes, a store and clocks.
//!
//! Three threads: that of the sockets ([`management::Server`]), that of the store (`storage`), which may
//! wait for a disk, and that of the state machine (`worker`), which carries out effects in their order.

mod alarms;
mod storage;
mod worker;

use crate::graph::Graph;
use crate::machine::{self, Machine};
use crate::operator::{MemberStatus, RepStatus};
use crate::store::Store;
use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use management::{Secret, Server, ServerConfig, ServerEvent};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use switch::Nanos;
use worker::Worker;

/// Events of the sockets that may wait for the state machine; then the sockets wait
const EVENTS: usize = 4096;
/// Connections beside those of the topology's processes and switches: those of unknown ones, which are
/// refused by name
const SPARE_CONNECTIONS: usize = 64;

/// Settings of a controller that runs.
#[derive(Clone, Debug)]
pub struct Config {
    /// Address to listen at
    pub listen: SocketAddr,
    /// Shared secret; without one, `listen` has to be on the loopback interface
    pub secret: Option<Secret>,
    /// Settings of the state machine
    pub machine: machine::Config,
}

/// Counts and state of a controller, at the end of the last step of its state machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Time of the snapshot; some 100 ms ago at most while the state machine runs
    pub at: Nanos,
    /// Term in which it leads; 0 if it does not lead
    pub term: u32,
    /// Processes that are members
    pub members: u64,
    /// Nodes that are connected
    pub connected: u64,
    /// Cases that are not closed
    pub open_cases: u64,
    /// Whether a failure is suspected and not decided yet
    pub suspects: bool,
    /// Links whose keepers hear nothing
    pub silent_links: u64,
    /// Last incarnations of processes
    pub processes: Vec<MemberStatus>,
    /// Last incarnations of representatives
    pub reps: Vec<RepStatus>,
    /// Counts of the state machine
    pub machine: machine::Counts,
    /// Counts of what was refused, and of alarms
    pub counts: Counts,
}

/// Counts since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Messages that are no control messages, or of no known version
    pub undecodable: u64,
    /// Messages in the name of another node
    pub other_name: u64,
    /// Requests of operators
    pub requests: u64,
    /// Requests of operators that were refused
    pub requests_refused: u64,
    /// Alarms
    pub alarms: u64,
    /// Messages that were too long to be sent
    pub too_long: u64,
    /// Writes to the store
    pub writes: u64,
    /// Errors of the store
    pub store_errors: u64,
}

/// What the thread of the state machine waits for beside the store.
enum Happened {
    Network(ServerEvent),
    Stop,
}

/// A controller that runs. Dropping it ends it.
#[derive(Debug)]
pub struct Controller {
    server: Arc<Server>,
    inputs: Sender<Happened>,
    snapshot: Arc<Mutex<Snapshot>>,
    thread: Option<JoinHandle<()>>,
}

impl Controller {
    /// Starts a controller with its store.
    ///
    /// # Errors
    /// The operating system refuses the address or a thread, or there is no secret and the address is not on
    /// the loopback interface.
    pub fn start(graph: Graph, config: &Config, store: Box<dyn Store>) -> io::Result<Self> {
        let (inputs, happened): (_, Receiver<Happened>) = bounded(EVENTS);
        let nodes = graph.processes().count() + graph.switches().len() * usize::from(onepipe::control::SEATS);
        let listen = ServerConfig {
            listen: config.listen,
            secret: config.secret.clone(),
            topology: config.machine.network,
            max_connections: nodes + SPARE_CONNECTIONS,
        };
        let events = inputs.clone();
        // It fails when the state machine has ended.
        let server = Server::start(&listen, move |event| drop(events.send(Happened::Network(event))))?;
        let server = Arc::new(server);
        let (jobs, todo) = unbounded();
        let (done, stored) = unbounded();
        let storage = storage::spawn(store, todo, done)?;
        let snapshot = Arc::new(Mutex::new(Snapshot::default()));
        let machine = Machine::new(graph, config.machine);
        let mut worker = Worker::new(machine, config.machine, server.clone(), jobs, snapshot.clone());
        let thread = std::thread::Builder::new().name("controller".into()).spawn(move || {
            worker.run(&happened, &stored);
            // The sockets' thread may wait for room.
            drop(happened);
            drop(worker);
            // A panic of the thread has been printed.
            drop(storage.join());
        })?;
        Ok(Self { server, inputs, snapshot, thread: Some(thread) })
    }

    /// Returns the address at which it listens.
    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// Returns whether its state machine runs. It ends by [`Self::stop`] only, or by a defect.
    pub fn is_running(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Returns its counts and state.
    pub fn snapshot(&self) -> Snapshot {
        self.snapshot.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the counts of its connections.
    pub fn connections(&self) -> management::Counts {
        self.server.counts()
    }

    /// Ends it, after the write that is under way. Nodes go on; the next controller of the store takes over.
    pub fn stop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        // It fails when the state machine has ended.
        drop(self.inputs.send(Happened::Stop));
        // A panic of the thread has been printed.
        drop(thread.join());
        self.server.stop();
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        self.stop();
    }
}

#[cfg(test)]
mod tests;
