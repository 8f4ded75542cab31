//! A server: heartbeats, permission, and whose turn it is to lead.

use super::detector::Detector;
use super::hello::{Hello, Purpose};
use super::leader::Leadership;
use super::log::{Layout, Term};
use super::through::{Group, Through};
use crate::wire::{MemberRequest, Region};
use core::net::IpAddr;
use rnic::cm::{Conn, Event as CmEvent, PortSpace, service_id_of};
use rnic::{
    Access, Buffer, Completion, ConnParam, Cq, Data, MemoryError, Mr, Operation, Pd, QpError, QpInit, Remote,
    Rnic, SendRequest, Sge, Status, Transport,
};
use rocev2::Qpn;
use rocev2::cm::RejReason;
use std::collections::{BTreeMap, VecDeque};
use switch::Nanos;

/// Virtual addresses of what a server registers
const CONTROL_VA: u64 = 0x1000_0000;
pub(super) const LOG_VA: u64 = 0x2000_0000;
const SCRATCH_VA: u64 = 0x3000_0000;
/// Heartbeat, promised term, decided, applied: a word each
const CONTROL_LEN: usize = 32;
/// Heartbeats that a connection may take to stand
const PATIENCE: u64 = 20;
const COMPLETIONS: usize = 1 << 14;

/// What a server is told about itself and the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Its number
    pub id: u8,
    /// The addresses of all servers, by their numbers
    pub servers: Vec<IpAddr>,
    /// Where they listen, in `rdma_cm`'s TCP port space
    pub port: u16,
    /// Their logs
    pub layout: Layout,
    /// The time between two heartbeats, and between two looks at the others'
    pub heartbeat: Nanos,
    /// Values that are proposed and not decided at once
    pub window: u64,
    /// How long a NIC waits for an acknowledgement: 4.096 us times two to this
    pub ack_timeout: u8,
    /// And how often it tries again
    pub retry_count: u8,
    /// The switch that replicates, if there is one
    pub through: Option<Through>,
}

impl Config {
    /// Servers that have to hold an entry beside the leader: f of 2f + 1
    pub fn quorum(&self) -> usize {
        self.servers.len() / 2
    }
}

/// Why a value is not proposed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProposeError {
    /// Another server leads, or none does yet
    #[error("this server does not lead")]
    NotLeader,
    /// As many as the window allows are under way
    #[error("too many values are under way")]
    Busy,
    /// Longer than an entry can be
    #[error("the value is too long")]
    TooLong,
}

/// A connection that this server has asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outgoing {
    pub(super) qpn: Qpn,
    pub(super) remote: Option<Region>,
    since: Nanos,
}

impl Outgoing {
    /// Whether it was asked for longer ago.
    pub(super) fn is_older_than(&self, now: Nanos, span: Nanos) -> bool {
        now.since(self.since) > span
    }
}

/// What a queue pair is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// We read the heartbeat of this server.
    Watch(u8),
    /// We write the log of this server.
    Write(u8),
    /// The switch writes the logs of those in our group.
    Group,
    /// The switch writes here.
    Joined,
    /// Another server reads here.
    Watched,
    /// Another server writes here.
    Written,
}

/// Another server, as it is watched.
#[derive(Clone, Copy, Debug, Default)]
struct Watched {
    link: Option<Outgoing>,
    reading: bool,
    retry_at: Nanos,
    /// What was read last
    promised: Term,
    applied: u64,
}

/// What a server has of its NIC.
#[derive(Debug)]
pub(super) struct Resources {
    pub(super) pd: Pd,
    pub(super) cq: Cq,
    control: (Buffer, Mr),
    /// The log; the key is for reading one's own to send it
    pub(super) log: (Buffer, Mr),
    pub(super) scratch: (Buffer, Mr),
}

/// A server.
#[derive(Debug)]
pub struct Server {
    pub(super) config: Config,
    pub(super) resources: Option<Resources>,
    detector: Detector,
    watched: Vec<Watched>,
    pub(super) uses: BTreeMap<u32, Use>,
    pub(super) conns: BTreeMap<Conn, Qpn>,
    /// The latest term that anybody was given permission to write in, or was asked for
    pub(super) promised: Term,
    /// The one who may write here
    pub(super) writer: Option<(Qpn, Mr)>,
    /// The group in which it may write here, too
    pub(super) joined: Option<(Qpn, Mr, Conn)>,
    pub(super) leadership: Option<Leadership>,
    /// No candidacy before
    candidate_at: Nanos,
    pub(super) beat_at: Nanos,
    beats: u64,
    /// Entries below are decided, as far as is known here
    pub(super) decided: u64,
    /// Entries below were looked at for what they say of others
    scanned: u64,
    /// Entries below were given to the application
    applied: u64,
    out: VecDeque<(u64, Vec<u8>)>,
}

impl Server {
    /// A server that knows nothing.
    pub fn new(config: Config) -> Self {
        let count = config.servers.len();
        Self {
            detector: Detector::new(config.id, count),
            watched: vec![Watched::default(); count],
            resources: None,
            uses: BTreeMap::new(),
            conns: BTreeMap::new(),
            promised: Term::default(),
            writer: None,
            joined: None,
            leadership: None,
            candidate_at: Nanos::ZERO,
            beat_at: Nanos::ZERO,
            beats: 0,
            decided: 0,
            scanned: 0,
            applied: 0,
            out: VecDeque::new(),
            config,
        }
    }

    /// Takes what it needs of its NIC.
    ///
    /// # Errors
    /// If the NIC has no room.
    pub fn start(&mut self, nic: &mut Rnic, now: Nanos) -> Result<(), StartError> {
        let pd = nic.alloc_pd();
        let cq = nic.create_cq(COMPLETIONS)?;
        let control = nic.register_new(pd, CONTROL_LEN, CONTROL_VA, Access::REMOTE_READ)?;
        let log = nic.register_new(pd, self.config.layout.len(), LOG_VA, Access::LOCAL_READ)?;
        let room = self.config.servers.len() * (CONTROL_LEN + self.config.layout.len());
        let scratch = nic.register_new(pd, room, SCRATCH_VA, Access::LOCAL_WRITE)?;
        self.resources = Some(Resources { pd, cq, control, log, scratch });
        _ = nic.listen(PortSpace::Tcp, self.config.port);
        self.beat_at = now;
        // Everybody gets the time to be seen.
        self.candidate_at = now + self.spans(PATIENCE);
        Ok(())
    }

    pub(super) fn spans(&self, heartbeats: u64) -> Nanos {
        Nanos(self.config.heartbeat.0 * heartbeats)
    }

    /// Whether it leads.
    pub fn leads(&self) -> bool {
        self.leadership.as_ref().is_some_and(Leadership::is_established)
    }

    /// Whether what it proposes goes through the switch.
    pub fn replicates_through(&self) -> bool {
        self.leadership.as_ref().and_then(|leadership| leadership.group.as_ref()).is_some_and(Group::is_open)
    }

    /// The latest term that it knows of
    pub fn term(&self) -> Term {
        self.promised
    }

    /// Entries that are decided, as far as it knows
    pub fn decided(&self) -> u64 {
        self.decided
    }

    /// The next decided entry, in the order of their indices: each once.
    pub fn poll_decided(&mut self) -> Option<(u64, Vec<u8>)> {
        self.out.pop_front()
    }

    /// When [`run`](Self::run) is to be called, if nothing comes in before
    pub fn next_timer(&self) -> Nanos {
        self.beat_at
    }

    /// The others
    pub(super) fn others(&self) -> impl Iterator<Item = u8> + use<> {
        let own = self.config.id;
        (0..self.config.servers.len() as u8).filter(move |server| *server != own)
    }

    /// Something came in, or the time has come.
    pub fn run(&mut self, nic: &mut Rnic, now: Nanos) {
        while let Some(event) = nic.poll_cm_event() {
            self.on_cm(nic, &event, now);
        }
        while let Some(done) = self.resources.as_ref().and_then(|resources| nic.poll_cq(resources.cq)) {
            self.on_completion(nic, &done, now);
        }
        while nic.poll_event().is_some() {}
        if self.beat_at <= now {
            self.beat(nic, now);
        }
        self.lead(nic, now);
        self.learn(nic);
    }

    fn beat(&mut self, nic: &mut Rnic, now: Nanos) {
        self.beat_at = now + self.config.heartbeat;
        self.beats += 1;
        self.show(nic);
        for server in self.others() {
            self.watch(nic, server, now);
        }
        if self.leadership.is_none() && self.detector.leader() == self.config.id && now >= self.candidate_at {
            self.run_for_office(nic, now);
        }
        self.commit_when_idle(nic);
    }

    /// What others may read of it
    fn show(&self, nic: &mut Rnic) {
        let Some(resources) = &self.resources else { return };
        let words = [self.beats, self.promised.0, self.decided, self.applied];
        let memory = nic.bytes_mut(resources.control.0);
        for (place, word) in memory.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *place = word.to_le_bytes();
        }
    }

    /// Reads another server's heartbeat, or asks for the connection to do so.
    fn watch(&mut self, nic: &mut Rnic, server: u8, now: Nanos) {
        let at = usize::from(server);
        let Watched { link, reading, retry_at, .. } = self.watched[at];
        if let Some(Outgoing { qpn, remote: Some(region), .. }) = link {
            if reading {
                self.detector.on_read(server, None);
                return;
            }
            let Some(scratch) = self.resources.as_ref().map(|resources| resources.scratch.1) else { return };
            let va = SCRATCH_VA + (at * CONTROL_LEN) as u64;
            let read = Operation::Read(Remote { va: region.va(), rkey: region.rkey() });
            let into = Data::Memory(Sge { mr: scratch, va, len: CONTROL_LEN as u32 });
            self.watched[at].reading = nic.post_send(qpn, SendRequest::new(0, read, into)).is_ok();
            return;
        }
        self.detector.on_read(server, None);
        match link {
            Some(Outgoing { since, .. }) if now.since(since) < self.spans(PATIENCE) => {}
            _ if now < retry_at => {}
            _ => {
                self.drop_link(nic, link);
                self.watched[at].reading = false;
                self.watched[at].retry_at = now + self.spans(PATIENCE);
                self.watched[at].link = self.connect(nic, server, Purpose::Watch, now);
            }
        }
    }

    pub(super) fn connect(
        &mut self,
        nic: &mut Rnic,
        server: u8,
        purpose: Purpose,
        now: Nanos,
    ) -> Option<Outgoing> {
        let (resources, ip) = (self.resources.as_ref()?, self.config.servers[usize::from(server)]);
        let depth = self.config.layout.slots() as usize * 2 + 16;
        let qpn = nic.create_qp(queue_pair(resources, depth)).ok()?;
        let param = ConnParam {
            access: Access::LOCAL_READ,
            ack_timeout: self.config.ack_timeout,
            retry_count: self.config.retry_count,
            private_data: Hello { server: self.config.id, purpose }.to_bytes(),
            ..ConnParam::default()
        };
        let service = service_id_of(PortSpace::Tcp, self.config.port);
        let Ok(conn) = nic.connect(qpn, ip, service, param, now) else {
            _ = nic.destroy_qp(qpn);
            return None;
        };
        let what = if purpose == Purpose::Watch { Use::Watch(server) } else { Use::Write(server) };
        self.uses.insert(qpn.get(), what);
        self.conns.insert(conn, qpn);
        Some(Outgoing { qpn, remote: None, since: now })
    }

    pub(super) fn drop_link(&mut self, nic: &mut Rnic, link: Option<Outgoing>) {
        if let Some(Outgoing { qpn, .. }) = link {
            self.drop_qp(nic, qpn);
        }
    }

    pub(super) fn drop_qp(&mut self, nic: &mut Rnic, qpn: Qpn) {
        self.uses.remove(&qpn.get());
        self.conns.retain(|_, of| *of != qpn);
        _ = nic.destroy_qp(qpn);
    }

    fn on_cm(&mut self, nic: &mut Rnic, event: &CmEvent, now: Nanos) {
        let conn = event.conn();
        if let CmEvent::Requested { request, .. } = event {
            let hello = Hello::from_bytes(&request.private_data);
            let member = MemberRequest::from_bytes(&request.private_data);
            let welcome = match (hello, member) {
                (Some(hello), _) => self.welcome(nic, conn, hello, now),
                (None, Some(member)) => self.join(nic, conn, member, now),
                (None, None) => None,
            };
            if welcome.is_none() {
                let promised = self.promised.0.to_be_bytes();
                _ = nic.reject(conn, RejReason::CONSUMER, &promised, now);
            }
            return;
        }
        let Some(qpn) = self.conns.get(&conn).copied() else { return };
        let what = self.uses.get(&qpn.get()).copied();
        if let CmEvent::Replied { reply, .. } = event {
            let region = Region::from_private_data(&reply.private_data);
            match what {
                Some(Use::Watch(server)) => self.replied(server, qpn, region),
                Some(Use::Write(server)) => self.granted(nic, server, qpn, region),
                Some(Use::Group) => self.group_stands(nic, qpn, region, now),
                Some(Use::Watched | Use::Written | Use::Joined) | None => {}
            }
            return;
        }
        if let CmEvent::Rejected { private_data, .. } = event
            && what != Some(Use::Group)
            && let Some(term) = private_data.first_chunk()
        {
            // Somebody leads, or did, in a later term than we asked for.
            self.watched[0].promised = self.watched[0].promised.max(Term(u64::from_be_bytes(*term)));
        }
        if event.is_last() || matches!(event, CmEvent::Disconnecting { .. }) {
            self.conns.remove(&conn);
            self.lost(nic, qpn, now);
        }
    }

    fn replied(&mut self, server: u8, qpn: Qpn, region: Option<Region>) {
        let watched = &mut self.watched[usize::from(server)];
        if let Some(link) = watched.link.as_mut().filter(|link| link.qpn == qpn) {
            link.remote = region;
        }
    }

    /// A connection is no more.
    fn lost(&mut self, nic: &mut Rnic, qpn: Qpn, now: Nanos) {
        match self.uses.get(&qpn.get()).copied() {
            Some(Use::Watch(server)) => {
                let watched = &mut self.watched[usize::from(server)];
                if watched.link.is_some_and(|link| link.qpn == qpn) {
                    (watched.link, watched.reading) = (None, false);
                }
            }
            Some(Use::Write(server)) => self.follower_lost(server, qpn, now),
            Some(Use::Group) => self.group_lost(nic, qpn, now),
            Some(Use::Watched | Use::Written | Use::Joined) | None => {}
        }
        self.drop_qp(nic, qpn);
    }

    /// Another server asks for a connection.
    fn welcome(&mut self, nic: &mut Rnic, conn: Conn, hello: Hello, now: Nanos) -> Option<()> {
        if usize::from(hello.server) >= self.config.servers.len() || hello.server == self.config.id {
            return None;
        }
        let resources = self.resources.as_ref()?;
        let (pd, log, control) = (resources.pd, resources.log.0, resources.control.1);
        let (region, access, what) = match hello.purpose {
            Purpose::Watch => {
                let region = Region::new(CONTROL_VA, control.0, CONTROL_LEN as u64);
                (region, Access::REMOTE_READ, Use::Watched)
            }
            Purpose::Write(term) => {
                let again = term == self.promised && term.server() == hello.server;
                if term.server() != hello.server || (term <= self.promised && !again) {
                    return None;
                }
                // From here on, nobody else writes (paper III: permission moves with leadership).
                self.fence(nic, now);
                self.promised = term;
                self.step_down(nic, now);
                let access = Access::REMOTE_READ.and(Access::REMOTE_WRITE);
                let len = self.config.layout.len();
                let mr = nic.register(pd, log, 0..len, LOG_VA, access).ok()?;
                self.writer = Some((Qpn::new(0), mr));
                // What is not known to be decided may be replaced.
                self.scanned = self.applied;
                (Region::new(LOG_VA, mr.0, len as u64), access, Use::Written)
            }
        };
        let qpn = nic.create_qp(queue_pair(self.resources.as_ref()?, 1)).ok()?;
        let param = ConnParam { access, private_data: region.to_bytes(), ..ConnParam::default() };
        nic.accept(conn, qpn, param, now).ok()?;
        if let (Use::Written, Some(writer)) = (what, &mut self.writer) {
            writer.0 = qpn;
        }
        self.uses.insert(qpn.get(), what);
        self.conns.insert(conn, qpn);
        self.show(nic);
        Some(())
    }

    /// Takes the permission to write from whoever has it.
    pub(super) fn fence(&mut self, nic: &mut Rnic, now: Nanos) {
        self.leave(nic, now);
        if let Some((qpn, mr)) = self.writer.take() {
            _ = nic.deregister(mr);
            self.drop_qp(nic, qpn);
        }
    }

    fn on_completion(&mut self, nic: &mut Rnic, done: &Completion, now: Nanos) {
        let what = self.uses.get(&done.qpn.get()).copied();
        match what {
            _ if done.status != Status::Success => self.lost(nic, done.qpn, now),
            Some(Use::Watch(server)) => self.on_watched(nic, server),
            Some(Use::Write(server)) => self.on_follower(nic, server, done),
            Some(Use::Group) => self.on_group(nic, done.qpn, done.id),
            Some(Use::Watched | Use::Written | Use::Joined) | None => {}
        }
    }

    fn on_watched(&mut self, nic: &Rnic, server: u8) {
        let Some(resources) = &self.resources else { return };
        let at = usize::from(server) * CONTROL_LEN;
        let (words, _) = nic.bytes(resources.scratch.0)[at..at + CONTROL_LEN].as_chunks::<8>();
        let word = |n: usize| u64::from_le_bytes(words[n]);
        let watched = &mut self.watched[usize::from(server)];
        watched.reading = false;
        (watched.promised, watched.applied) = (Term(word(1)), word(3));
        let heartbeat = word(0);
        self.detector.on_read(server, Some(heartbeat));
    }

    /// The latest term that anybody is known to have promised
    pub(super) fn latest_term(&self) -> Term {
        self.watched.iter().map(|watched| watched.promised).fold(self.promised, Term::max)
    }

    /// The entry below which a server has no use for its log any more
    pub(super) fn applied_by(&self, server: u8) -> u64 {
        self.watched[usize::from(server)].applied
    }

    /// Gives up the office, if it has it or runs for it.
    pub(super) fn step_down(&mut self, nic: &mut Rnic, now: Nanos) {
        self.end_group(nic, now);
        if let Some(leadership) = self.leadership.take() {
            for link in leadership.links() {
                self.drop_link(nic, Some(link));
            }
            self.candidate_at = now + self.spans(PATIENCE);
        }
    }

    /// What the log says is decided goes to the application.
    fn learn(&mut self, nic: &mut Rnic) {
        let Some(resources) = &self.resources else { return };
        let memory = nic.bytes(resources.log.0);
        let committed = memory.first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
        let mut decided = self.decided.max(committed);
        if self.leadership.is_none() {
            while let Some(entry) = self.config.layout.entry(self.scanned, memory) {
                decided = decided.max(entry.decided);
                self.scanned += 1;
            }
        }
        while self.applied < decided
            && let Some(entry) = self.config.layout.entry(self.applied, memory)
        {
            self.out.push_back((self.applied, entry.value.to_vec()));
            self.applied += 1;
        }
        self.scanned = self.scanned.max(self.applied);
        // Nothing is known to be decided here that is not held here.
        self.decided = self.decided.max(self.applied);
    }
}

pub(super) fn queue_pair(resources: &Resources, depth: usize) -> QpInit {
    QpInit {
        transport: Transport::Rc,
        pd: resources.pd,
        send_cq: resources.cq,
        recv_cq: resources.cq,
        srq: None,
        max_send: depth,
        max_recv: 1,
    }
}

/// Why a server does not start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// No room for a queue
    #[error(transparent)]
    Queue(#[from] QpError),
    /// No room for memory
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

pub(super) fn log_scratch_va(config: &Config, server: u8) -> u64 {
    let servers = config.servers.len() * CONTROL_LEN;
    SCRATCH_VA + (servers + usize::from(server) * config.layout.len()) as u64
}

pub(super) fn log_scratch<'a>(config: &Config, scratch: &'a [u8], server: u8) -> &'a [u8] {
    let at = (log_scratch_va(config, server) - SCRATCH_VA) as usize;
    &scratch[at..at + config.layout.len()]
}
