//! A server: its connections, the permission to write its log, and the delivery of decided entries.

mod admit;
mod group;
mod leader;
#[cfg(test)]
mod tests;
mod watch;

pub use admit::SnapshotError;
pub use watch::Membership;

use crate::config::{Config, Decided, StartError};
use crate::hello::{Grant, Hello, Purpose};
use crate::log::{ADMITTED, DECIDED, HEAD, SEAL, SnapshotHead, Term, word};
use crate::resources::{
    CONTROL_VA, LOG_VA, Outgoing, QpRole, Resources, SCRATCH_VA, control_len, queue_pair,
};
use core::net::IpAddr;
use group::Group;
use leader::Leadership;
use p4ce::wire::{MemberRequest, Region};
use rnic::cm::{Conn, Event as CmEvent, PortSpace, RemoteRequest};
use rnic::{Access, Completion, ConnParam, Mr, Rnic, Status};
use rocev2::Qpn;
use rocev2::cm::RejReason;
use std::collections::{BTreeMap, VecDeque};
use switch::Nanos;
use watch::{CANDIDACY_DELAY, Watch};

/// Capacity of the completion queue
const COMPLETIONS: usize = 1 << 14;

/// A server.
#[derive(Debug)]
pub struct Server {
    config: Config,
    resources: Option<Resources>,
    membership: Membership,
    watch: Watch,
    qp_roles: BTreeMap<u32, QpRole>,
    conns: BTreeMap<Conn, Qpn>,
    /// Queue pairs through which other servers read this one's control words
    readers: Vec<Option<Qpn>>,
    /// The latest term in which this server granted permission, or was a candidate
    promised: Term,
    /// The latest term reported in a rejection
    rejected_term: Term,
    /// Queue pair and region of the server that may write the log
    writer: Option<(Qpn, Mr)>,
    /// Queue pair, region and connection of the group that may write the log, too
    joined: Option<(Qpn, Mr, Conn)>,
    leadership: Option<Leadership>,
    /// No candidacy before this time
    candidate_at: Nanos,
    beat_at: Nanos,
    beats: u64,
    /// Number of entries known to be decided
    decided: u64,
    /// Number of entries scanned for the decided number that they carry
    scanned: u64,
    /// Index, length and seal of a scanned entry that is torn. It is scanned again only after its seal
    /// changed, so that a long entry is not hashed for each of its packets.
    torn: Option<(u64, usize, [u8; SEAL])>,
    /// Number of entries taken out of the log
    applied: u64,
    /// Number of entries in an installed snapshot: log entries below are older than it and may be arbitrary
    valid_from: u64,
    /// Number of entries returned to the application
    polled: u64,
    results: VecDeque<Decided>,
    /// Hash of the configuration that all servers of a group share
    group: u64,
    /// Requests rejected because of their source, secret or configuration
    refused: u64,
}

impl Server {
    /// Creates a server with empty memory: at the first start, or after it has lost its memory.
    pub fn new(mut config: Config) -> Self {
        // Memory that was never written holds 0.
        config.incarnation = config.incarnation.max(1);
        let group = config.group();
        config.layout = config.layout.keyed(config.log_key());
        config.layout.trusts_torn = config.has_bug(crate::config::Bug::TornEntry);
        Self {
            group,
            refused: 0,
            torn: None,
            membership: Membership::Blank,
            watch: Watch::new(&config),
            resources: None,
            qp_roles: BTreeMap::new(),
            conns: BTreeMap::new(),
            readers: vec![None; config.servers.len()],
            promised: Term::default(),
            rejected_term: Term::default(),
            writer: None,
            joined: None,
            leadership: None,
            candidate_at: Nanos::ZERO,
            beat_at: Nanos::ZERO,
            beats: 0,
            decided: 0,
            scanned: 0,
            applied: 0,
            valid_from: 0,
            polled: 0,
            results: VecDeque::new(),
            config,
        }
    }

    /// Allocates the NIC's resources and starts to listen.
    ///
    /// # Errors
    /// If the NIC cannot allocate a queue or memory.
    pub fn start(&mut self, nic: &mut Rnic, now: Nanos) -> Result<(), StartError> {
        let (layout, servers) = (self.config.layout, self.config.servers.len());
        let pd = nic.alloc_pd();
        let cq = nic.create_cq(COMPLETIONS)?;
        let control = nic.register_new(pd, control_len(servers), CONTROL_VA, Access::REMOTE_READ)?;
        let log = nic.register_new(pd, layout.memory_len(), LOG_VA, Access::LOCAL_READ)?;
        let room = servers * (control_len(servers) + layout.log_len());
        let scratch = nic.register_new(pd, room, SCRATCH_VA, Access::LOCAL_WRITE)?;
        self.resources = Some(Resources { pd, cq, control, log, scratch });
        _ = nic.listen(PortSpace::Tcp, self.config.port);
        self.beat_at = now;
        // Other servers get time to be seen before a candidacy.
        self.candidate_at = now + self.heartbeats(CANDIDACY_DELAY);
        Ok(())
    }

    fn heartbeats(&self, count: u64) -> Nanos {
        Nanos(self.config.heartbeat.0 * count)
    }

    /// Returns whether this server is an established leader.
    pub fn is_leader(&self) -> bool {
        self.leadership.as_ref().is_some_and(Leadership::is_established)
    }

    /// Returns the leader, if this server knows one.
    pub fn leader(&self) -> Option<u8> {
        let follows = self.leadership.is_none() && self.writer.is_some();
        (follows || self.is_leader()).then(|| self.promised.server())
    }

    /// Returns the number of queue pairs in use.
    pub fn queue_pairs(&self) -> usize {
        self.qp_roles.len()
    }

    /// Returns the number of requests for connections that were rejected because of their source, secret or
    /// configuration.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Returns whether this server is a member.
    pub fn membership(&self) -> Membership {
        self.membership
    }

    /// Returns whether proposed values are replicated through the switch.
    pub fn replicates_through_switch(&self) -> bool {
        self.leadership.as_ref().and_then(|leadership| leadership.group.as_ref()).is_some_and(Group::is_open)
    }

    /// Returns the latest term that this server has promised.
    pub fn term(&self) -> Term {
        self.promised
    }

    /// Returns the number of entries that this server knows to be decided.
    pub fn decided(&self) -> u64 {
        self.decided
    }

    /// Returns the bytes of all entries in this server's log, complete or torn.
    pub fn slots<'a>(&self, nic: &'a Rnic) -> &'a [u8] {
        let memory = self.resources.as_ref().map_or(&[][..], |resources| nic.bytes(resources.log.0));
        memory.get(HEAD..self.config.layout.log_len()).unwrap_or_default()
    }

    /// Returns the value of an entry that is complete in this server's log.
    pub fn entry_value<'a>(&self, nic: &'a Rnic, index: u64) -> Option<&'a [u8]> {
        let memory = nic.bytes(self.resources.as_ref()?.log.0);
        Some(self.config.layout.entry(index, memory)?.value)
    }

    /// Returns the next result for the application: every decided entry once, in index order, except those
    /// that a snapshot includes.
    pub fn poll_decided(&mut self) -> Option<Decided> {
        let next = self.results.pop_front()?;
        self.polled = match &next {
            Decided::Entry { index, .. } => index + 1,
            Decided::Snapshot { next, .. } => *next,
        };
        Some(next)
    }

    /// Returns when to call [`run`](Self::run) at the latest.
    pub fn next_timer(&self) -> Nanos {
        self.beat_at
    }

    /// Returns the numbers of all other servers.
    fn peers(&self) -> impl Iterator<Item = u8> + use<> {
        let own = self.config.id;
        (0..self.config.servers.len() as u8).filter(move |server| *server != own)
    }

    /// Processes the events and completions of the NIC, and everything that is due.
    pub fn run(&mut self, nic: &mut Rnic, now: Nanos) {
        while let Some(event) = nic.poll_cm_event() {
            self.on_cm(nic, &event, now);
        }
        while let Some(done) = self.resources.as_ref().and_then(|resources| nic.poll_cq(resources.cq)) {
            self.on_completion(nic, &done, now);
        }
        while nic.poll_event().is_some() {}
        if self.beat_at <= now {
            self.on_heartbeat(nic, now);
        }
        self.lead(nic, now);
        self.deliver_decided(nic);
    }

    fn on_heartbeat(&mut self, nic: &mut Rnic, now: Nanos) {
        self.beat_at = now + self.config.heartbeat;
        self.beats += 1;
        if self.membership == Membership::Blank {
            self.join_bootstrap();
        }
        self.publish(nic);
        for server in self.peers() {
            self.read_control_words(nic, server, now);
        }
        let turn = self.membership == Membership::Member && self.watch.leader() == self.config.id;
        if self.leadership.is_none() && turn && now >= self.candidate_at {
            self.start_candidacy(nic, now);
        }
        self.admit(nic);
        self.commit_when_idle(nic);
    }

    /// Requests a connection to another server.
    fn connect_to(&mut self, nic: &mut Rnic, server: u8, purpose: Purpose, now: Nanos) -> Option<Outgoing> {
        let address = self.config.servers[usize::from(server)];
        let hello = Hello { server: self.config.id, purpose, group: self.group }.to_bytes();
        let hello = self.config.to(address)?.seal(hello);
        let role = if purpose == Purpose::Watch { QpRole::Watch(server) } else { QpRole::Write(server) };
        let (qpn, _) = self.connect(nic, (address, self.config.port), hello, role, now)?;
        Some(Outgoing { qpn, remote: None, since: now })
    }

    /// Requests a connection.
    fn connect(
        &mut self,
        nic: &mut Rnic,
        to: (IpAddr, u16),
        private_data: Vec<u8>,
        role: QpRole,
        now: Nanos,
    ) -> Option<(Qpn, Conn)> {
        // Every entry may be in flight twice: when it is new, and when it is proposed again.
        let depth = self.config.layout.slots() as usize * 2 + 64;
        let init = queue_pair(self.resources.as_ref()?, depth);
        let param = ConnParam {
            access: Access::LOCAL_READ,
            ack_timeout: self.config.ack_timeout,
            retry_count: self.config.retry_count,
            private_data,
            ..ConnParam::default()
        };
        let (qpn, conn) = nic.connect_new(init, to, param, now).ok()?;
        self.qp_roles.insert(qpn.get(), role);
        self.conns.insert(conn, qpn);
        Some((qpn, conn))
    }

    /// Accepts a connection.
    fn accept(
        &mut self,
        nic: &mut Rnic,
        conn: Conn,
        access: Access,
        private_data: Vec<u8>,
        role: QpRole,
        now: Nanos,
    ) -> Option<Qpn> {
        let init = queue_pair(self.resources.as_ref()?, 1);
        let param = ConnParam { access, private_data, ..ConnParam::default() };
        let qpn = nic.accept_new(conn, init, param, now).ok()?;
        self.qp_roles.insert(qpn.get(), role);
        self.conns.insert(conn, qpn);
        Some(qpn)
    }

    fn drop_link(&mut self, nic: &mut Rnic, link: Option<Outgoing>) {
        if let Some(Outgoing { qpn, .. }) = link {
            self.drop_qp(nic, qpn);
        }
    }

    fn drop_qp(&mut self, nic: &mut Rnic, qpn: Qpn) {
        self.qp_roles.remove(&qpn.get());
        self.conns.retain(|_, of| *of != qpn);
        _ = nic.destroy_qp(qpn);
    }

    fn on_cm(&mut self, nic: &mut Rnic, event: &CmEvent, now: Nanos) {
        let conn = event.conn();
        if let CmEvent::Requested { request, .. } = event {
            self.on_requested(nic, conn, request, now);
            return;
        }
        let Some(qpn) = self.conns.get(&conn).copied() else { return };
        let role = self.qp_roles.get(&qpn.get()).copied();
        if let CmEvent::Replied { reply, .. } = event {
            let region = Region::from_private_data(&reply.private_data);
            match role {
                Some(QpRole::Watch(server)) => {
                    let link = self.watch.peers[usize::from(server)].link.as_mut();
                    if let Some(link) = link.filter(|link| link.qpn == qpn) {
                        link.remote = region;
                        self.watch.peers[usize::from(server)].refuses = false;
                    }
                }
                Some(QpRole::Write(server)) => {
                    self.on_granted(nic, server, qpn, Grant::from_bytes(&reply.private_data));
                }
                Some(QpRole::Group) => self.on_group_accepted(nic, qpn, region, now),
                Some(QpRole::Watched | QpRole::Written | QpRole::Joined) | None => {}
            }
            return;
        }
        if let (
            CmEvent::Rejected { private_data, reason, .. },
            Some(QpRole::Watch(server) | QpRole::Write(server)),
        ) = (event, role)
        {
            let term = Term(private_data.first_chunk().map_or(0, |term| u64::from_be_bytes(*term)));
            if term.is_possible(self.config.servers.len()) {
                // A server promised a later term than the one that we requested.
                self.rejected_term = self.rejected_term.max(term);
            }
            self.watch.peers[usize::from(server)].refuses = *reason == RejReason::CONSUMER && term.0 == 0;
        }
        if event.is_last() || matches!(event, CmEvent::Disconnecting { .. }) {
            self.conns.remove(&conn);
            self.on_connection_lost(nic, qpn, now);
        }
    }

    /// Handles the loss of a connection.
    fn on_connection_lost(&mut self, nic: &mut Rnic, qpn: Qpn, now: Nanos) {
        match self.qp_roles.get(&qpn.get()).copied() {
            Some(QpRole::Watch(server)) => self.watch.on_lost(server, |link| link.qpn == qpn),
            Some(QpRole::Write(server)) => self.on_follower_lost(nic, server, qpn, now),
            Some(QpRole::Group) => self.on_group_lost(nic, qpn, now),
            Some(QpRole::Watched | QpRole::Written | QpRole::Joined) | None => {}
        }
        self.drop_qp(nic, qpn);
    }

    /// Handles a request for a connection. Only servers from their own address, and the switch, are accepted;
    /// other requests are rejected without private data.
    fn on_requested(&mut self, nic: &mut Rnic, conn: Conn, request: &RemoteRequest, now: Nanos) {
        let (from, data) = (request.addresses.remote, &request.private_data);
        let known = |len| self.config.from(from).is_some_and(|envelope| envelope.verifies(data, len));
        let hello = Hello::from_bytes(data).filter(|hello| {
            let address = self.config.servers.get(usize::from(hello.server));
            hello.group == self.group && self.has_source(address.copied(), from) && known(Hello::LEN)
        });
        let member = MemberRequest::from_bytes(data).filter(|member| {
            let address = self.config.switch.map(|through| through.address);
            self.has_source(address, from) && known(member.to_bytes().len())
        });
        let (refusal, accepted) = match (hello, member) {
            (Some(hello), _) => {
                let accepted = self.accept_server(nic, conn, hello, now);
                (self.promised.0.to_be_bytes().to_vec(), accepted)
            }
            (None, Some(member)) => (Vec::new(), self.join_group(nic, conn, member, now)),
            (None, None) => {
                self.refused += 1;
                (Vec::new(), None)
            }
        };
        if accepted.is_none() {
            _ = nic.reject(conn, RejReason::CONSUMER, &refusal, now);
        }
    }

    /// Handles a request from another server.
    fn accept_server(&mut self, nic: &mut Rnic, conn: Conn, hello: Hello, now: Nanos) -> Option<()> {
        if usize::from(hello.server) >= self.config.servers.len() || hello.server == self.config.id {
            return None;
        }
        let Purpose::Write(term) = hello.purpose else {
            let control = self.resources.as_ref()?.control.1;
            let region = Region::new(CONTROL_VA, control.0, control_len(self.config.servers.len()) as u64);
            let private_data = region.to_bytes();
            let qpn = self.accept(nic, conn, Access::REMOTE_READ, private_data, QpRole::Watched, now)?;
            // A server that requests again has lost its previous connection.
            let before = self.readers[usize::from(hello.server)].replace(qpn);
            if let Some(before) = before {
                self.drop_qp(nic, before);
            }
            return Some(());
        };
        let again = term == self.promised && term.server() == hello.server;
        let possible = term.server() == hello.server && term.is_possible(self.config.servers.len());
        let forgets_promise = self.config.has_bug(crate::config::Bug::ForgottenPromise);
        if !possible || (term <= self.promised && !again && !forgets_promise) {
            return None;
        }
        let access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);
        let mr = self.open_log(nic, access)?;
        // Entries that have arrived are applied before another server can overwrite them. From here on no
        // other server can write (P4CE, section III: the permission moves with the leadership).
        self.deliver_decided(nic);
        self.fence(nic, now);
        self.promised = term;
        self.step_down(nic, now);
        let region = Region::new(LOG_VA, mr.0, self.config.layout.memory_len() as u64);
        let grant = Grant {
            region,
            incarnation: self.config.incarnation,
            is_member: self.membership != Membership::Blank,
            applied: self.applied,
            valid_from: self.valid_from,
        };
        let Some(qpn) = self.accept(nic, conn, access, grant.to_bytes(), QpRole::Written, now) else {
            _ = nic.deregister(mr);
            return None;
        };
        self.writer = Some((qpn, mr));
        // Entries that are not known to be decided may be replaced.
        self.scanned = self.applied;
        self.publish(nic);
        Some(())
    }

    /// Returns whether a message comes from `address`.
    fn has_source(&self, address: Option<IpAddr>, from: IpAddr) -> bool {
        if self.config.has_bug(crate::config::Bug::AnySource) {
            return address.is_some();
        }
        address == Some(from)
    }

    /// Registers a region that maps the whole log.
    fn open_log(&self, nic: &mut Rnic, access: Access) -> Option<Mr> {
        let resources = self.resources.as_ref()?;
        let all = 0..self.config.layout.memory_len();
        nic.register(resources.pd, resources.log.0, all, LOG_VA, access).ok()
    }

    /// Revokes all permissions to write the log.
    fn fence(&mut self, nic: &mut Rnic, now: Nanos) {
        self.leave_group(nic, now);
        if let Some((qpn, mr)) = self.writer.take() {
            _ = nic.deregister(mr);
            self.drop_qp(nic, qpn);
        }
    }

    fn on_completion(&mut self, nic: &mut Rnic, done: &Completion, now: Nanos) {
        let role = self.qp_roles.get(&done.qpn.get()).copied();
        match role {
            _ if done.status != Status::Success => self.on_connection_lost(nic, done.qpn, now),
            Some(QpRole::Watch(server)) => self.on_control_words(nic, server),
            Some(QpRole::Write(server)) => self.on_follower(nic, server, done, now),
            Some(QpRole::Group) => self.on_group(nic, done.qpn, done.id),
            Some(QpRole::Watched | QpRole::Written | QpRole::Joined) | None => {}
        }
    }

    /// Returns the latest term that any server is known to have promised.
    fn latest_term(&self) -> Term {
        let servers = self.config.servers.len();
        let promised = self.watch.peers.iter().map(|watched| watched.promised);
        promised
            .filter(|term| term.is_possible(servers))
            .fold(self.promised.max(self.rejected_term), Term::max)
    }

    /// Ends the leadership or candidacy, if there is one.
    fn step_down(&mut self, nic: &mut Rnic, now: Nanos) {
        self.end_group(nic, now);
        if let Some(leadership) = self.leadership.take() {
            for link in leadership.links() {
                self.drop_link(nic, Some(link));
            }
            self.candidate_at = now + self.heartbeats(CANDIDACY_DELAY);
        }
    }

    /// Passes entries that are decided according to the log to the application.
    fn deliver_decided(&mut self, nic: &mut Rnic) {
        let Some(resources) = &self.resources else { return };
        let (memory, layout) = (nic.bytes(resources.log.0), self.config.layout);
        let before = self.applied;
        let mut decided = self.decided.max(word(memory, DECIDED));
        if self.leadership.is_none() {
            let written = SnapshotHead::of(memory).filter(|head| head.next > self.applied);
            if let Some(SnapshotHead { next, len }) = written
                && let Some(state) = memory.get(layout.log_len()..).and_then(|area| area.get(..len))
            {
                // The snapshot includes all entries that were not polled yet.
                self.results.clear();
                self.results.push_back(Decided::Snapshot { next, state: state.to_vec() });
                (self.applied, self.valid_from) = (next, next);
                self.scanned = self.scanned.max(next);
            }
            while let Some((len, seal)) = layout.stored_seal(self.scanned, memory) {
                let seen = Some((self.scanned, len, seal));
                if seen == self.torn {
                    break;
                }
                let Some(entry) = layout.entry(self.scanned, memory) else {
                    self.torn = seen;
                    break;
                };
                decided = decided.max(entry.decided);
                self.scanned += 1;
            }
        }
        while self.applied < decided
            && let Some(entry) = layout.entry(self.applied, memory)
        {
            self.results.push_back(Decided::Entry { index: self.applied, value: entry.value.to_vec() });
            self.applied += 1;
        }
        self.scanned = self.scanned.max(self.applied);
        // An entry counts as decided here only if this server holds it.
        self.decided = self.decided.max(self.applied);
        let admitted = word(memory, ADMITTED) == self.config.incarnation;
        self.membership = match self.membership {
            Membership::Blank if admitted => Membership::Member,
            // A leader has written entries that were lacking.
            Membership::Behind if self.applied > before => Membership::Member,
            membership => membership,
        };
    }
}
