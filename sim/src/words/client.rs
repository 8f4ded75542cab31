//! A client: its connections, and the work left to do on them.

use super::connect::{Joined, Memory, SECTION_REQUESTS, join, queue_pair};
use super::end::{Context, End, LANDING_VA};
use super::plan::Plan;
use super::truth::Shared;
use super::{Config, PORT};
use crate::App;
use core::net::IpAddr;
use rnic::cm::{Event as CmEvent, PortSpace, service_id_of};
use rnic::{Access, ConnParam, Cq, Pd, Rnic};
use rocev2::Qpn;
use std::collections::{BTreeMap, VecDeque};
use switch::Nanos;

/// Capacity of the completion queue
const COMPLETIONS: usize = 1 << 14;

/// The work of a client at a server, done on one connection after another.
#[derive(Debug)]
struct Work {
    server: usize,
    plan: Plan,
    sections: u32,
    end: Option<End>,
    /// Number of connections so far
    made: u32,
    /// Connections that broke after an operation had completed on them
    interrupted: u32,
    /// Connections since then that broke before any operation completed
    useless: u32,
}

impl Work {
    /// Counts a break of the connection.
    fn note_break(&mut self) {
        match &self.end {
            Some(end) if end.was_of_use() => (self.interrupted, self.useless) = (self.interrupted + 1, 0),
            _ => self.useless += 1,
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
    truth: Shared,
    resources: Option<(Pd, Cq)>,
    works: Vec<Work>,
    /// Ends of broken connections
    ended: Vec<End>,
    by_qpn: BTreeMap<u32, usize>,
    /// Work items that may have something to post
    ready: VecDeque<usize>,
    lives: u64,
    up: bool,
    now: Nanos,
}

impl ClientApp {
    pub(super) fn new(config: &Config, number: usize, truth: Shared) -> Self {
        let work = |server: usize, connection: u32| {
            let name = (number as u64) << 32 | (server as u64) << 24 | u64::from(connection);
            let seed = config.seed ^ switch::table::mix(name + 1);
            Work {
                server,
                plan: Plan::new(config, seed),
                sections: config.sections,
                end: None,
                made: 0,
                interrupted: 0,
                useless: 0,
            }
        };
        let servers = 0..usize::from(config.servers);
        let works = servers.flat_map(|server| (0..config.connections).map(move |n| (server, n)));
        Self {
            config: config.clone(),
            number,
            truth,
            resources: None,
            works: works.map(|(server, connection)| work(server, connection)).collect(),
            ended: Vec::new(),
            by_qpn: BTreeMap::new(),
            ready: VecDeque::new(),
            lives: 0,
            up: false,
            now: Nanos::ZERO,
        }
    }

    /// Returns the number of connections at once.
    pub(super) fn works(&self) -> usize {
        self.works.len()
    }

    /// Returns the server of a connection.
    pub(super) fn server_of(&self, work: usize) -> usize {
        self.works[work].server
    }

    /// Returns the end of a connection, which may be broken.
    pub(super) fn end(&self, work: usize) -> Option<&End> {
        self.works[work].end.as_ref()
    }

    /// Returns how often a connection was set up.
    pub(super) fn made(&self, work: usize) -> u32 {
        self.works[work].made
    }

    /// Returns the number of breaks of a connection: those after an operation had completed, and those since
    /// then before any did.
    pub(super) fn breaks(&self, work: usize) -> [u32; 2] {
        [self.works[work].interrupted, self.works[work].useless]
    }

    /// Returns whether nothing is left to do, as for a client that is down.
    pub(super) fn is_done(&self) -> bool {
        !self.up || self.works.iter().all(Work::is_done)
    }

    /// Returns whether a connection has to be set up (again).
    pub(super) fn lacks(&self, work: usize) -> bool {
        self.up && self.works[work].end.as_ref().is_none_or(|end| end.broken)
    }

    /// Returns the ends of all connections: broken ones first, then those of the present.
    pub(super) fn ends(&self) -> impl Iterator<Item = &End> {
        self.ended.iter().chain(self.works.iter().filter_map(|work| work.end.as_ref()))
    }

    /// Creates this client's end of a connection. The previous end, if any, is kept for the checks.
    pub(super) fn open(&mut self, nic: &mut Rnic, work: usize, line: u32) -> Qpn {
        let (pd, cq) = self.resources.expect("the client has started");
        let config = &self.config;
        let qpn = queue_pair(nic, pd, cq, config.depth + SECTION_REQUESTS, 1);
        let size = End::slots(config) as usize * End::slot_size(config);
        let landing =
            nic.register_new(pd, size, LANDING_VA, Access::ALL).expect("the NIC has room for memory");
        let end = End::new(config, line, self.works[work].server, qpn, landing);
        self.ended.extend(self.works[work].end.replace(end));
        self.works[work].made += 1;
        self.by_qpn.insert(qpn.get(), work);
        qpn
    }

    /// Connects the queue pair to the server's, and starts the work.
    pub(super) fn joined(&mut self, nic: &mut Rnic, work: usize, own: Joined, other: Joined, memory: Memory) {
        join(nic, own, other, &self.config);
        self.stands(work, memory);
    }

    fn stands(&mut self, work: usize, memory: Memory) {
        if let Some(end) = &mut self.works[work].end {
            end.memory = Some(memory);
            end.store = self.truth.get().memory_of(end.server);
        }
        self.ready.push_back(work);
    }

    /// Sends a server a connection request.
    pub(super) fn connect(&mut self, nic: &mut Rnic, work: usize, line: u32, to: IpAddr, now: Nanos) {
        let qpn = self.open(nic, work, line);
        let config = &self.config;
        let param = ConnParam {
            responder_resources: config.max_rd_atomic,
            initiator_depth: config.max_rd_atomic,
            retry_count: config.retry_count,
            rnr_retry_count: 7,
            ack_timeout: config.timeout,
            private_data: line.to_be_bytes().to_vec(),
            ..ConnParam::default()
        };
        let service = service_id_of(PortSpace::Tcp, PORT);
        let conn = nic.connect(qpn, to, service, param, now);
        if let Some(end) = &mut self.works[work].end {
            end.conn = conn.ok();
        }
    }

    /// Disconnects all established connections.
    pub(super) fn disconnect(&mut self, nic: &mut Rnic, now: Nanos) {
        for work in &mut self.works {
            if let Some(conn) = work.end.as_mut().filter(|end| !end.broken).and_then(|end| end.conn.take()) {
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
        let of = |work: &Work| work.end.as_ref().is_some_and(|end| end.conn == Some(conn) && !end.broken);
        let Some(work) = self.works.iter().position(of) else { return };
        match event {
            CmEvent::Replied { reply, .. } => {
                if let Some(memory) = Memory::from_bytes(&reply.private_data) {
                    self.stands(work, memory);
                }
            }
            _ if event.is_last() => self.fail(nic, work, event),
            _ => {}
        }
    }

    fn fail(&mut self, nic: &mut Rnic, work: usize, why: &CmEvent) {
        let truth = self.truth.clone();
        let mut truth = truth.get();
        if let Some(end) = self.works[work].end.as_mut().filter(|end| !end.broken) {
            let (client, config, now) = (self.number, &self.config, self.now);
            end.fail(why, None, &mut Context { nic, truth: &mut truth, config, client, now });
            truth.broken.push((self.number, work));
            self.works[work].note_break();
        }
    }

    fn on_completions(&mut self, nic: &mut Rnic, now: Nanos) {
        let Some((_, cq)) = self.resources else { return };
        let truth = self.truth.clone();
        while let Some(completion) = nic.poll_cq(cq) {
            let Some(work) = self.by_qpn.get(&completion.qpn.get()).copied() else { continue };
            let mut truth = truth.get();
            let Some(end) = self.works[work].end.as_mut().filter(|end| end.qpn == completion.qpn) else {
                continue;
            };
            let was_broken = end.broken;
            let (client, config) = (self.number, &self.config);
            let mut context = Context { nic, truth: &mut truth, config, client, now: self.now };
            end.on_completion(&completion, &mut context);
            if end.broken && !was_broken {
                truth.broken.push((self.number, work));
                match end.conn {
                    // Notifies the server.
                    Some(conn) => _ = nic.disconnect(conn, &[], now),
                    None => _ = nic.destroy_qp(completion.qpn),
                }
                self.works[work].note_break();
            }
            self.ready.push_back(work);
        }
    }

    /// Posts requests up to the depth.
    fn post(&mut self, nic: &mut Rnic) {
        let truth = self.truth.clone();
        while let Some(work) = self.ready.pop_front() {
            let mut truth = truth.get();
            let work = &mut self.works[work];
            let Some(end) = work.end.as_mut().filter(|end| !end.broken && end.memory.is_some()) else {
                continue;
            };
            let (client, config) = (self.number, &self.config);
            let mut context = Context { nic, truth: &mut truth, config, client, now: self.now };
            if work.sections > 0 && end.section.is_none() && end.chance.below(2) == 0 {
                work.sections -= 1;
                end.begin_section(&mut context);
            }
            while end.outstanding() < self.config.depth as usize
                && let Some(want) = work.plan.next()
            {
                end.post(&want, &mut context);
            }
            if end.outstanding() == 0 && work.sections > 0 {
                // No completion would trigger it otherwise.
                work.sections -= 1;
                end.begin_section(&mut context);
            }
            if work.is_done() {
                truth.news = true;
            }
        }
    }
}

impl App for ClientApp {
    fn start(&mut self, nic: &mut Rnic, _now: Nanos) {
        let pd = nic.alloc_pd();
        self.resources = nic.create_cq(COMPLETIONS).ok().map(|cq| (pd, cq));
        (self.up, self.lives) = (true, self.lives + 1);
        let mut truth = self.truth.get();
        truth.news = true;
        if self.lives > 1 {
            let undone = (0..self.works.len()).filter(|work| !self.works[*work].is_done());
            truth.broken.extend(undone.map(|work| (self.number, work)));
        }
    }

    fn crash(&mut self, _nic: &Rnic) {
        self.up = false;
        self.by_qpn.clear();
        self.ready.clear();
        let mut truth = self.truth.get();
        truth.news = true;
        for work in &mut self.works {
            let Some(end) = work.end.as_mut().filter(|end| !end.broken) else { continue };
            truth.counts.broken += 1;
            end.broken = true;
            work.note_break();
        }
    }

    fn run(&mut self, nic: &mut Rnic, now: Nanos) {
        self.now = self.truth.get().now;
        while let Some(event) = nic.poll_cm_event() {
            self.on_cm(nic, &event);
        }
        self.on_completions(nic, now);
        while nic.poll_event().is_some() {}
        self.post(nic);
    }
}
