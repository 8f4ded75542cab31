//! A client: its connections, and what they have left to do.

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

/// Completions that wait to be polled at most
const COMPLETIONS: usize = 1 << 14;

/// What a client does at a server, by one connection after another.
#[derive(Debug)]
struct Work {
    server: usize,
    plan: Plan,
    sections: u32,
    end: Option<End>,
    /// How often it was connected
    made: u32,
    /// Connections that broke when something had been done on them
    interrupted: u32,
    /// Connections that broke since then, on which nothing was done
    useless: u32,
}

impl Work {
    /// Notes that its connection has broken.
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

/// A client.
#[derive(Debug)]
pub struct ClientApp {
    config: Config,
    number: usize,
    truth: Shared,
    resources: Option<(Pd, Cq)>,
    works: Vec<Work>,
    /// Ends of connections that are over
    ended: Vec<End>,
    by_qpn: BTreeMap<u32, usize>,
    /// Works that may have something to post
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

    /// How many connections it has at once
    pub(super) fn works(&self) -> usize {
        self.works.len()
    }

    /// The server that one of its connections goes to
    pub(super) fn server_of(&self, work: usize) -> usize {
        self.works[work].server
    }

    /// One of its connections, which may have broken
    pub(super) fn end(&self, work: usize) -> Option<&End> {
        self.works[work].end.as_ref()
    }

    /// How often one of its connections was made
    pub(super) fn made(&self, work: usize) -> u32 {
        self.works[work].made
    }

    /// Connections that broke: those on which something had been done, and those without since the last of these
    pub(super) fn breaks(&self, work: usize) -> [u32; 2] {
        [self.works[work].interrupted, self.works[work].useless]
    }

    /// Whether it has nothing left to do. Who is down does nothing.
    pub(super) fn is_done(&self) -> bool {
        !self.up || self.works.iter().all(Work::is_done)
    }

    /// Whether a connection of it is to be made anew
    pub(super) fn lacks(&self, work: usize) -> bool {
        self.up && self.works[work].end.as_ref().is_none_or(|end| end.broken)
    }

    /// The lines of all its connections, those that are over first; and whether they are
    pub(super) fn ends(&self) -> impl Iterator<Item = &End> {
        self.ended.iter().chain(self.works.iter().filter_map(|work| work.end.as_ref()))
    }

    /// Makes its end of a connection; the end that it had, if any.
    pub(super) fn open(&mut self, nic: &mut Rnic, work: usize, line: u32) -> Qpn {
        let (pd, cq) = self.resources.expect("it has started");
        let config = &self.config;
        let qpn = queue_pair(nic, pd, cq, config.depth + SECTION_REQUESTS, 1);
        let size = End::slots(config) as usize * End::slot_size(config);
        let landing = nic.register_new(pd, size, LANDING_VA, Access::ALL).expect("room for memory");
        let end = End::new(config, line, self.works[work].server, qpn, landing);
        self.ended.extend(self.works[work].end.replace(end));
        self.works[work].made += 1;
        self.by_qpn.insert(qpn.get(), work);
        qpn
    }

    /// The connection stands.
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

    /// Asks a server for a connection.
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

    /// Ends all connections that stand.
    pub(super) fn disconnect(&mut self, nic: &mut Rnic, now: Nanos) {
        for work in &mut self.works {
            if let Some(conn) = work.end.as_mut().filter(|end| !end.broken).and_then(|end| end.conn.take()) {
                // It may be over already.
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
                    // The other side is told.
                    Some(conn) => _ = nic.disconnect(conn, &[], now),
                    None => _ = nic.destroy_qp(completion.qpn),
                }
                self.works[work].note_break();
            }
            self.ready.push_back(work);
        }
    }

    /// Posts as much as may be outstanding.
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
                // Nothing else would bring it on.
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
