//! A client: its connections, and the work left to do on them.

use super::connect::{Endpoint, Memory, SECTION_REQUESTS, connect_qp, queue_pair};
use super::end::{Context, End, LANDING_VA};
use super::history::Shared;
use super::plan::Plan;
use super::{Config, PORT};
use core::net::IpAddr;
use rnic::cm::{Event as CmEvent, PortSpace, service_id_of};
use rnic::{Access, ConnParam, Cq, Pd, Rnic};
use rocev2::Qpn;
use sim::App;
use std::collections::{BTreeMap, VecDeque};
use switch::Nanos;

/// Capacity of the completion queue
const COMPLETIONS: usize = 1 << 14;

/// The work of a client at a server, done on one connection after another.
#[derive(Debug)]
struct Task {
    server: usize,
    plan: Plan,
    sections: u32,
    end: Option<End>,
    /// Number of connections so far
    setups: u32,
    /// Connections that broke after an operation had completed on them
    interrupted: u32,
    /// Connections since then that broke before any operation completed
    unused: u32,
}

impl Task {
    /// Counts a break of the connection.
    fn count_break(&mut self) {
        match &self.end {
            Some(end) if end.has_completed_any() => {
                (self.interrupted, self.unused) = (self.interrupted + 1, 0);
            }
            _ => self.unused += 1,
        }
    }

    fn is_done(&self) -> bool {
        let end = self.end.as_ref().filter(|end| !end.broken);
        self.plan.is_over()
            && self.sections == 0
            && end.is_some_and(|end| end.outstanding() == 0 && end.section.is_none())
    }
}

/// The application of a client.
#[derive(Debug)]
pub struct ClientApp {
    config: Config,
    number: usize,
    history: Shared,
    resources: Option<(Pd, Cq)>,
    tasks: Vec<Task>,
    /// Ends of broken connections
    broken_ends: Vec<End>,
    by_qpn: BTreeMap<u32, usize>,
    /// Work items that may have something to post
    ready_tasks: VecDeque<usize>,
    starts: u64,
    up: bool,
    now: Nanos,
}

impl ClientApp {
    pub(super) fn new(config: &Config, number: usize, history: Shared) -> Self {
        let task = |server: usize, connection: u32| {
            let name = (number as u64) << 32 | (server as u64) << 24 | u64::from(connection);
            let seed = config.seed ^ switch::table::mix(name + 1);
            Task {
                server,
                plan: Plan::new(config, seed),
                sections: config.sections,
                end: None,
                setups: 0,
                interrupted: 0,
                unused: 0,
            }
        };
        let servers = 0..usize::from(config.servers);
        let tasks = servers.flat_map(|server| (0..config.connections).map(move |n| (server, n)));
        Self {
            config: config.clone(),
            number,
            history,
            resources: None,
            tasks: tasks.map(|(server, connection)| task(server, connection)).collect(),
            broken_ends: Vec::new(),
            by_qpn: BTreeMap::new(),
            ready_tasks: VecDeque::new(),
            starts: 0,
            up: false,
            now: Nanos::ZERO,
        }
    }

    /// Returns the number of connections at once.
    pub(super) fn task_count(&self) -> usize {
        self.tasks.len()
    }

    /// Returns the server of a connection.
    pub(super) fn server_of(&self, task: usize) -> usize {
        self.tasks[task].server
    }

    /// Returns the end of a connection, which may be broken.
    pub(super) fn end(&self, task: usize) -> Option<&End> {
        self.tasks[task].end.as_ref()
    }

    /// Returns how often a connection was set up.
    pub(super) fn setups(&self, task: usize) -> u32 {
        self.tasks[task].setups
    }

    /// Returns the number of breaks of a connection: those after an operation had completed, and those since
    /// then before any did.
    pub(super) fn breaks(&self, task: usize) -> [u32; 2] {
        [self.tasks[task].interrupted, self.tasks[task].unused]
    }

    /// Returns whether nothing is left to do, as for a client that is down.
    pub(super) fn is_done(&self) -> bool {
        !self.up || self.tasks.iter().all(Task::is_done)
    }

    /// Returns whether a connection has to be set up (again).
    pub(super) fn needs_connection(&self, task: usize) -> bool {
        self.up && self.tasks[task].end.as_ref().is_none_or(|end| end.broken)
    }

    /// Returns the ends of all connections: broken ones first, then those of the present.
    pub(super) fn ends(&self) -> impl Iterator<Item = &End> {
        self.broken_ends.iter().chain(self.tasks.iter().filter_map(|task| task.end.as_ref()))
    }

    /// Creates this client's end of a connection. The previous end, if any, is kept for the checks.
    pub(super) fn open(&mut self, nic: &mut Rnic, task: usize, conn_id: u32) -> Qpn {
        let (pd, cq) = self.resources.expect("the client has started");
        let config = &self.config;
        let qpn = queue_pair(nic, pd, cq, config.depth + SECTION_REQUESTS, 1);
        let size = End::slots(config) as usize * End::slot_size(config);
        let landing =
            nic.register_new(pd, size, LANDING_VA, Access::ALL).expect("the NIC has room for memory");
        let end = End::new(config, conn_id, self.tasks[task].server, qpn, landing);
        self.broken_ends.extend(self.tasks[task].end.replace(end));
        self.tasks[task].setups += 1;
        self.by_qpn.insert(qpn.get(), task);
        qpn
    }

    /// Connects the queue pair to the server's, and starts the work.
    pub(super) fn connected(
        &mut self,
        nic: &mut Rnic,
        task: usize,
        own: Endpoint,
        other: Endpoint,
        memory: Memory,
    ) {
        connect_qp(nic, own, other, &self.config);
        self.established(task, memory);
    }

    fn established(&mut self, task: usize, memory: Memory) {
        if let Some(end) = &mut self.tasks[task].end {
            end.memory = Some(memory);
            end.memory_id = self.history.get().memory_of(end.server);
        }
        self.ready_tasks.push_back(task);
    }

    /// Sends a server a connection request.
    pub(super) fn connect(&mut self, nic: &mut Rnic, task: usize, conn_id: u32, to: IpAddr, now: Nanos) {
        let qpn = self.open(nic, task, conn_id);
        let config = &self.config;
        let param = ConnParam {
            responder_resources: config.max_rd_atomic,
            initiator_depth: config.max_rd_atomic,
            retry_count: config.retry_count,
            rnr_retry_count: 7,
            ack_timeout: config.timeout,
            private_data: conn_id.to_be_bytes().to_vec(),
            ..ConnParam::default()
        };
        let service = service_id_of(PortSpace::Tcp, PORT);
        let conn = nic.connect(qpn, to, service, param, now);
        if let Some(end) = &mut self.tasks[task].end {
            end.conn = conn.ok();
        }
    }

    /// Disconnects all established connections.
    pub(super) fn disconnect(&mut self, nic: &mut Rnic, now: Nanos) {
        for task in &mut self.tasks {
            if let Some(conn) = task.end.as_mut().filter(|end| !end.broken).and_then(|end| end.conn.take()) {
                // The connection may be over already.
                _ = nic.disconnect(conn, &[], now);
            }
        }
    }

    fn on_cm(&mut self, nic: &mut Rnic, event: &CmEvent) {
        let conn = event.conn();
        let over = |end: &&End| end.conn == Some(conn) && end.broken;
        if event.is_last()
            && let Some(end) = self.ends().find(over)
        {
            _ = nic.destroy_qp(end.qpn);
        }
        let of = |task: &Task| task.end.as_ref().is_some_and(|end| end.conn == Some(conn) && !end.broken);
        let Some(task) = self.tasks.iter().position(of) else { return };
        match event {
            CmEvent::Replied { reply, .. } => {
                if let Some(memory) = Memory::from_bytes(&reply.private_data) {
                    self.established(task, memory);
                }
            }
            _ if event.is_last() => self.fail(nic, task, event),
            _ => {}
        }
    }

    fn fail(&mut self, nic: &mut Rnic, task: usize, why: &CmEvent) {
        let history = self.history.clone();
        let mut history = history.get();
        if let Some(end) = self.tasks[task].end.as_mut().filter(|end| !end.broken) {
            let (client, config, now) = (self.number, &self.config, self.now);
            end.fail(why, None, &mut Context { nic, history: &mut history, config, client, now });
            history.broken.push((self.number, task));
            self.tasks[task].count_break();
        }
    }

    fn on_completions(&mut self, nic: &mut Rnic, now: Nanos) {
        let Some((_, cq)) = self.resources else { return };
        let history = self.history.clone();
        while let Some(completion) = nic.poll_cq(cq) {
            let Some(task) = self.by_qpn.get(&completion.qpn.get()).copied() else { continue };
            let mut history = history.get();
            let Some(end) = self.tasks[task].end.as_mut().filter(|end| end.qpn == completion.qpn) else {
                continue;
            };
            let was_broken = end.broken;
            let (client, config) = (self.number, &self.config);
            let mut context = Context { nic, history: &mut history, config, client, now: self.now };
            end.on_completion(&completion, &mut context);
            if end.broken && !was_broken {
                history.broken.push((self.number, task));
                match end.conn {
                    // Notifies the server.
                    Some(conn) => _ = nic.disconnect(conn, &[], now),
                    None => _ = nic.destroy_qp(completion.qpn),
                }
                self.tasks[task].count_break();
            }
            self.ready_tasks.push_back(task);
        }
    }

    /// Posts requests up to the depth.
    fn post(&mut self, nic: &mut Rnic) {
        let history = self.history.clone();
        while let Some(task) = self.ready_tasks.pop_front() {
            let mut history = history.get();
            let task = &mut self.tasks[task];
            let Some(end) = task.end.as_mut().filter(|end| !end.broken && end.memory.is_some()) else {
                continue;
            };
            let (client, config) = (self.number, &self.config);
            let mut context = Context { nic, history: &mut history, config, client, now: self.now };
            if task.sections > 0 && end.section.is_none() && end.rng.below(2) == 0 {
                task.sections -= 1;
                end.begin_section(&mut context);
            }
            while end.outstanding() < self.config.depth as usize
                && let Some(op) = task.plan.next()
            {
                end.post(&op, &mut context);
            }
            if end.outstanding() == 0 && task.sections > 0 {
                // No completion would trigger it otherwise.
                task.sections -= 1;
                end.begin_section(&mut context);
            }
            if task.is_done() {
                history.check_needed = true;
            }
        }
    }
}

impl App for ClientApp {
    fn start(&mut self, nic: &mut Rnic, _now: Nanos) {
        let pd = nic.alloc_pd();
        self.resources = nic.create_cq(COMPLETIONS).ok().map(|cq| (pd, cq));
        (self.up, self.starts) = (true, self.starts + 1);
        let mut history = self.history.get();
        history.check_needed = true;
        if self.starts > 1 {
            let undone = (0..self.tasks.len()).filter(|task| !self.tasks[*task].is_done());
            history.broken.extend(undone.map(|task| (self.number, task)));
        }
    }

    fn crash(&mut self, _nic: &Rnic) {
        self.up = false;
        self.by_qpn.clear();
        self.ready_tasks.clear();
        let mut history = self.history.get();
        history.check_needed = true;
        for task in &mut self.tasks {
            let Some(end) = task.end.as_mut().filter(|end| !end.broken) else { continue };
            history.counts.broken += 1;
            end.broken = true;
            task.count_break();
        }
    }

    fn run(&mut self, nic: &mut Rnic, now: Nanos) {
        self.now = self.history.get().now;
        while let Some(event) = nic.poll_cm_event() {
            self.on_cm(nic, &event);
        }
        self.on_completions(nic, now);
        while nic.poll_event().is_some() {}
        self.post(nic);
    }
}
