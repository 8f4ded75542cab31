//! Control words that servers read from each other by RDMA READ: heartbeats, progress, and membership; and
//! the bootstrap of a group.
//!
//! A server's state is in its memory only. A restarted server has lost its promises and its log, and does not
//! count until a leader has admitted it again ([`super::admit`]). At the very first start there is no leader,
//! so the operator bootstraps one blank server ([`Server::bootstrap`]). The bootstrap succeeds only if the
//! server has observed that at one moment all other servers were blank, too. The server then publishes the
//! incarnations of all servers that it observed, and a blank server that finds its own incarnation among them
//! becomes a member as well. A blank server that may hold entries of a lost leader has to restart first.
//! Servers that have all lost their memory look the same as servers that never had any. Only the operator can
//! know that no state of value is lost by starting empty.

use super::Server;
use crate::config::{BootstrapError, Config, WaitReason};
use crate::detector::Detector;
use crate::hello::Purpose;
use crate::log::{Term, word};
use crate::resources::Outgoing;
use crate::resources::{SCRATCH_VA, WORDS, control_len};
use rnic::{Data, Operation, Remote, Rnic, SendRequest, Sge};
use switch::Nanos;

/// Heartbeats before a candidacy, after the start and after a leadership
pub(super) const CANDIDACY_DELAY: u64 = 20;
/// Heartbeats after which a connection that is not established is requested again
const RETRY_HEARTBEATS: u64 = 5;

/// Membership of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Membership {
    /// Started with empty memory, and does not count.
    Blank,
    /// A member.
    Member,
    /// A member that lacks decided entries that none of the logs it has read holds, and so cannot lead.
    Behind,
}

impl Membership {
    fn from_word(word: u64) -> Self {
        match word {
            1 => Self::Member,
            2 => Self::Behind,
            _ => Self::Blank,
        }
    }

    const fn to_word(self) -> u64 {
        match self {
            Self::Blank => 0,
            Self::Member => 1,
            Self::Behind => 2,
        }
    }
}

/// Observation of a blank server. A server that ceases to be blank never becomes blank again in the same
/// incarnation.
#[derive(Clone, Copy, Debug)]
struct Blank {
    incarnation: u64,
    /// Moment before which it was blank
    first: u64,
    /// Moment after which it was blank
    last: u64,
}

/// State of another server, as it was read.
#[derive(Clone, Debug)]
pub(super) struct PeerState {
    pub(super) link: Option<Outgoing>,
    /// Moment at which the READ in flight was posted
    reading: Option<u64>,
    retry_at: Nanos,
    blank: Option<Blank>,
    pub(super) promised: Term,
    pub(super) applied: u64,
    pub(super) incarnation: u64,
    membership: Membership,
    /// Incarnations at the bootstrap that it has joined
    bootstrap_incarnations: Vec<u64>,
    /// Whether its control words were read since this server started
    seen: bool,
    /// Whether it rejected the last request without a reason, which means that the group configurations
    /// differ
    pub(super) refuses: bool,
}

impl PeerState {
    fn unknown() -> Self {
        Self {
            link: None,
            reading: None,
            retry_at: Nanos::ZERO,
            blank: None,
            promised: Term::default(),
            applied: 0,
            incarnation: 0,
            membership: Membership::Member,
            bootstrap_incarnations: Vec::new(),
            seen: false,
            refuses: false,
        }
    }
}

/// State of all other servers.
#[derive(Debug)]
pub(super) struct Watch {
    detector: Detector,
    pub(super) peers: Vec<PeerState>,
    /// Counter of READs and their completions, which orders observations
    moment: u64,
    /// Incarnations at the bootstrap that this server has joined, if any
    bootstrap_incarnations: Vec<u64>,
}

impl Watch {
    pub(super) fn new(config: &Config) -> Self {
        let count = config.servers.len();
        Self {
            detector: Detector::new(config.id, count),
            peers: vec![PeerState::unknown(); count],
            moment: 0,
            bootstrap_incarnations: vec![0; count],
        }
    }

    /// Returns the server that should lead: the live member with the lowest number.
    pub(super) fn leader(&self) -> u8 {
        self.detector.leader(|server| self.peers[usize::from(server)].membership == Membership::Member)
    }

    /// Returns the number of entries that this incarnation of a server has applied, according to its control
    /// words.
    pub(super) fn applied_by(&self, server: u8, incarnation: u64) -> u64 {
        let watched = &self.peers[usize::from(server)];
        if watched.incarnation == incarnation { watched.applied } else { 0 }
    }

    /// Returns whether a server is considered alive.
    pub(super) fn is_alive(&self, server: u8) -> bool {
        self.detector.is_alive(server)
    }

    /// Handles the loss of the connection to a server.
    pub(super) fn on_lost(&mut self, server: u8, link: impl FnOnce(&Outgoing) -> bool) {
        let watched = &mut self.peers[usize::from(server)];
        if watched.link.as_ref().is_some_and(link) {
            (watched.link, watched.reading) = (None, None);
        }
    }
}

impl Server {
    /// Publishes this server's control words.
    pub(super) fn publish(&self, nic: &mut Rnic) {
        let Some(resources) = &self.resources else { return };
        let membership = self.membership.to_word();
        let words =
            [self.beats, self.promised.0, self.decided, self.applied, self.config.incarnation, membership];
        let memory = nic.bytes_mut(resources.control.0);
        let words = words.into_iter().chain(self.watch.bootstrap_incarnations.iter().copied());
        for (target, word) in memory.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *target = word.to_le_bytes();
        }
    }

    /// Reads another server's control words, or requests the connection for it.
    pub(super) fn read_control_words(&mut self, nic: &mut Rnic, server: u8, now: Nanos) {
        let at = usize::from(server);
        let patience = self.heartbeats(RETRY_HEARTBEATS);
        let watched = &mut self.watch.peers[at];
        if watched.reading.is_some() {
            self.watch.detector.on_read(server, None);
            return;
        }
        if let Some(Outgoing { qpn, remote: Some(region), .. }) = watched.link {
            let Some(scratch) = self.resources.as_ref().map(|resources| resources.scratch.1) else { return };
            let len = control_len(self.config.servers.len());
            let read = Operation::Read(Remote { va: region.va(), rkey: region.rkey() });
            let into = Data::Memory(Sge { mr: scratch, va: SCRATCH_VA + (at * len) as u64, len: len as u32 });
            if nic.post_send(qpn, SendRequest::new(0, read, into)).is_ok() {
                self.watch.moment += 1;
                watched.reading = Some(self.watch.moment);
            }
            return;
        }
        self.watch.detector.on_read(server, None);
        let waits = watched.link.is_some_and(|link| !link.is_older_than(now, patience));
        if waits || now < watched.retry_at {
            return;
        }
        watched.retry_at = now + patience;
        let link = watched.link.take();
        self.drop_link(nic, link);
        self.watch.peers[at].link = self.connect_to(nic, server, Purpose::Watch, now);
    }

    /// Handles the control words of another server.
    pub(super) fn on_control_words(&mut self, nic: &Rnic, server: u8) {
        let Some(resources) = &self.resources else { return };
        let count = self.config.servers.len();
        let len = control_len(count);
        let words = &nic.bytes(resources.scratch.0)[usize::from(server) * len..][..len];
        let word = |n: usize| word(words, n * 8);
        let watch = &mut self.watch;
        let watched = &mut watch.peers[usize::from(server)];
        let posted = watched.reading.take().unwrap_or(watch.moment);
        (watched.promised, watched.applied, watched.incarnation) = (Term(word(1)), word(3), word(4));
        watched.membership = Membership::from_word(word(5));
        watched.bootstrap_incarnations = (0..count).map(|other| word(WORDS + other)).collect();
        watch.moment += 1;
        let before = watched.blank.filter(|blank| blank.incarnation == watched.incarnation);
        let first = before.map_or(watch.moment, |blank| blank.first);
        let blank = Blank { incarnation: watched.incarnation, first, last: posted };
        watched.blank = (watched.membership == Membership::Blank).then_some(blank);
        watch.detector.on_read(server, Some(word(0)));
        watched.seen = true;
        if self.membership == Membership::Blank {
            self.join_bootstrap();
        }
    }

    /// Becomes a member if another server was bootstrapped with this incarnation of this server.
    pub(super) fn join_bootstrap(&mut self) {
        let own = usize::from(self.config.id);
        let incarnation = self.config.incarnation;
        let mut others = self.peers().map(|server| &self.watch.peers[usize::from(server)]);
        if let Some(bootstrapped) =
            others.find(|other| other.bootstrap_incarnations.get(own) == Some(&incarnation))
        {
            self.watch.bootstrap_incarnations = bootstrapped.bootstrap_incarnations.clone();
            self.membership = Membership::Member;
        }
        if self.config.has_bug(crate::config::Bug::BootstrapsByItself) {
            _ = self.bootstrap();
        }
    }

    /// Bootstraps an empty group: the operator's command, once, on one server. Succeeds only if this server
    /// has observed that at one moment all servers were blank, and that no leader has written to them. A
    /// server that stops after that moment does not prevent it, and has to be admitted when it restarts. A
    /// failed call has no later effect: no server bootstraps without another call.
    ///
    /// # Errors
    /// If a server is a member, was not observed at such a moment, or may hold entries.
    pub fn bootstrap(&mut self) -> Result<(), BootstrapError> {
        if self.membership != Membership::Blank {
            return Err(BootstrapError::Member);
        }
        let own = usize::from(self.config.id);
        let others = || self.peers().map(|server| (server, &self.watch.peers[usize::from(server)]));
        if let Some((server, _)) =
            others().find(|(_, other)| other.seen && other.membership != Membership::Blank)
        {
            return Err(BootstrapError::OtherMember(server));
        }
        if let Some(server) = self.holder_of_entries() {
            return Err(BootstrapError::MayHoldEntries(server));
        }
        // The moment when all had been observed; a server observed as blank after it was blank at it, too.
        let moment =
            others().filter_map(|(_, other)| other.blank).map(|blank| blank.first).max().unwrap_or(0);
        let unseen = |other: &PeerState| other.blank.is_none_or(|blank| blank.last < moment);
        if let Some((server, _)) = others().find(|(_, other)| unseen(other)) {
            return Err(BootstrapError::Unseen(server));
        }
        let mut bootstrap_incarnations: Vec<u64> =
            self.watch.peers.iter().map(|other| other.incarnation).collect();
        bootstrap_incarnations[own] = self.config.incarnation;
        self.watch.bootstrap_incarnations = bootstrap_incarnations;
        self.membership = Membership::Member;
        Ok(())
    }

    /// Returns a server that has granted permission to write, this one first: its log may hold entries of a
    /// lost group, and its application may have applied them. Only meaningful while all servers are blank.
    fn holder_of_entries(&self) -> Option<u8> {
        if self.config.has_bug(crate::config::Bug::BootstrapsOverEntries) {
            return None;
        }
        let others = self.peers().map(|server| (server, self.watch.peers[usize::from(server)].promised));
        let mut all = [(self.config.id, self.promised)].into_iter().chain(others);
        all.find(|(_, promised)| *promised != Term::default()).map(|(server, _)| server)
    }

    /// Returns the incarnations of all servers at bootstrap; zeros if this server was admitted by a leader
    /// instead.
    pub fn bootstrap_incarnations(&self) -> &[u64] {
        &self.watch.bootstrap_incarnations
    }

    /// Returns what this server waits for while it is blank.
    pub fn waits_for(&self) -> Option<WaitReason> {
        if self.membership != Membership::Blank {
            return None;
        }
        let others = || self.peers().map(|server| (server, &self.watch.peers[usize::from(server)]));
        let member = others().find(|(_, other)| other.seen && other.membership != Membership::Blank);
        let refuses = others().find(|(_, other)| other.refuses);
        let unseen = others().find(|(server, other)| !other.seen || !self.watch.is_alive(*server));
        Some(if let Some((server, _)) = member {
            WaitReason::Admission(server)
        } else if let Some((server, _)) = refuses {
            WaitReason::Refused(server)
        } else if let Some((server, _)) = unseen {
            WaitReason::Server(server)
        } else if let Some(server) = self.holder_of_entries() {
            WaitReason::Restart(server)
        } else {
            WaitReason::Bootstrap
        })
    }
}
