//! The replicated application: proposes values, applies decided ones, and publishes a copy of its state for
//! other threads.

use super::{ConsensusConfig, Load, PathStats, ReplicationPath};
use consensus::{BootstrapError, Decided, Membership, Server, WaitReason};
use rnic::{App, Counters, Rnic};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use switch::Nanos;
use switch::table::mix;

/// Interval at which the published state is refreshed
const PUBLISH_INTERVAL: Nanos = Nanos::from_millis(10);
/// Values between two checkpoints, which are compared with those of other servers
const CHECKPOINT_INTERVAL: u64 = 1024;
/// Checkpoints that are kept
const MAX_CHECKPOINTS: usize = 32;
/// Largest backlog of a paced load: the load does not make up for values that are overdue by more than this
const MAX_BACKLOG: Nanos = Nanos::from_millis(100);

/// State of the replicated application: equal after the same values in the same order, and different
/// otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct AppState {
    /// Values applied
    pub(crate) count: u64,
    /// Running hash of the values
    pub(crate) hash: u64,
}

impl AppState {
    /// Length of a snapshot, in bytes
    pub(crate) const LEN: usize = 16;

    pub(super) fn apply(&mut self, value: &[u8]) {
        let (words, rest) = value.as_chunks::<8>();
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        let words = words.iter().chain([&last]).map(|word| u64::from_le_bytes(*word));
        self.hash = words.fold(self.hash ^ value.len() as u64, |hash, word| mix(hash ^ word));
        self.count += 1;
    }

    fn to_bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&self.count.to_le_bytes());
        bytes[8..].copy_from_slice(&self.hash.to_le_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let ([count, hash], []) = bytes.as_chunks::<8>() else { return None };
        Some(Self { count: u64::from_le_bytes(*count), hash: u64::from_le_bytes(*hash) })
    }
}

switch::metrics! {
    /// State of a server as other threads see it.
    #[derive(Clone, Debug)]
    pub(crate) struct ReplicaStatus {
        pub(crate) membership: Membership,
        /// What the server waits for while it is not a member
        pub(crate) waits_for: Option<WaitReason>,
        /// Connection requests that were refused because they do not come from a server of the group
        pub(crate) refused: u64 [requests as requests_refused],
        pub(crate) leader: Option<u8>,
        /// Replication path, while the server leads
        pub(crate) path: Option<ReplicationPath>,
        pub(crate) state: AppState,
        /// Values applied one by one, without those that came in a snapshot
        pub(crate) applied: u64 [values],
        /// Earlier states, one per [`CHECKPOINT_INTERVAL`] values
        pub(crate) checkpoints: VecDeque<AppState>,
        /// Longest time without a decision since the reader last reset this field
        pub(crate) pause: Nanos,
        pub(crate) direct: PathStats,
        pub(crate) switch: PathStats,
        pub(crate) counters: Counters,
        /// Reason why the server cannot continue
        pub(crate) error: Option<String>,
    }
    also {
        /// Entries that are decided and applied at this server
        Counter decided [entries] = |status: &Self| status.state.count,
        /// Values that this server proposed as the leader without the switch and that were decided
        Counter proposed_direct [values] = |status: &Self| status.direct.decided,
        /// Values that this server proposed as the leader through the switch and that were decided
        Counter proposed_through_switch [values] = |status: &Self| status.switch.decided,
        /// Whether the server leads without the switch: 0 or 1
        Gauge leads_direct [servers] = |status: &Self| u64::from(status.path == Some(ReplicationPath::Direct)),
        /// Whether the server leads through the switch: 0 or 1
        Gauge leads_through_switch [servers] = |status: &Self| {
            u64::from(status.path == Some(ReplicationPath::Switch))
        },
    }
}

impl ReplicaStatus {
    fn new() -> Self {
        Self {
            membership: Membership::Blank,
            waits_for: None,
            refused: 0,
            leader: None,
            path: None,
            state: AppState::default(),
            applied: 0,
            checkpoints: VecDeque::with_capacity(MAX_CHECKPOINTS),
            pause: Nanos::ZERO,
            direct: PathStats::default(),
            switch: PathStats::default(),
            counters: Counters::default(),
            error: None,
        }
    }
}

/// NIC counters at the time of the last count
#[derive(Clone, Copy, Debug, Default)]
struct NicMark {
    at: Nanos,
    sent: u64,
    received: u64,
}

/// A server of the group and its application.
pub(crate) struct Replica {
    server: Server,
    load: Option<Load>,
    incarnation: u64,
    /// Whether the operator requested that this server bootstraps the group
    bootstrap_requested: bool,
    value: Vec<u8>,
    /// Values proposed
    proposed: u64,
    /// Time at which the next value is due
    due: Nanos,
    /// Indices of undecided proposals, and the times at which they were proposed
    pending: VecDeque<(u64, Nanos)>,
    mark: NicMark,
    /// Time of the last decision
    decided_at: Option<Nanos>,
    last_run: Nanos,
    published_at: Nanos,
    /// Current state, copied to `published` every [`PUBLISH_INTERVAL`]
    current: ReplicaStatus,
    published: Arc<Mutex<ReplicaStatus>>,
}

impl Replica {
    /// Creates a server with this incarnation number. With `bootstrap_requested`, the server bootstraps the
    /// group, empty, once it has seen that all servers run and none is a member.
    pub(crate) fn new(config: &ConsensusConfig, incarnation: u64, bootstrap_requested: bool) -> Self {
        Self {
            server: Server::new(config.protocol_config(incarnation)),
            load: config.load,
            incarnation,
            bootstrap_requested,
            value: vec![0; config.load.map_or(0, |load| load.size)],
            proposed: 0,
            due: Nanos::ZERO,
            pending: VecDeque::with_capacity(config.window as usize),
            mark: NicMark::default(),
            decided_at: None,
            last_run: Nanos::ZERO,
            published_at: Nanos::ZERO,
            current: ReplicaStatus::new(),
            published: Arc::new(Mutex::new(ReplicaStatus::new())),
        }
    }

    /// Returns the state that other threads may read.
    pub(crate) fn published(&self) -> Arc<Mutex<ReplicaStatus>> {
        self.published.clone()
    }

    fn stats(&mut self, path: ReplicationPath) -> &mut PathStats {
        match path {
            ReplicationPath::Direct => &mut self.current.direct,
            ReplicationPath::Switch => &mut self.current.switch,
        }
    }

    /// Adds the time and packets since the last call to the account of the replication path used since then.
    fn update_stats(&mut self, nic: &Rnic, now: Nanos) {
        let counters = nic.counters();
        let mark = NicMark { at: now, sent: counters.sent, received: counters.received };
        let before = core::mem::replace(&mut self.mark, mark);
        if let Some(path) = self.current.path {
            let stats = self.stats(path);
            stats.time = stats.time + now.since(before.at);
            stats.sent += mark.sent - before.sent;
            stats.received += mark.received - before.received;
        }
    }

    /// Applies decided values and snapshots.
    fn apply(&mut self, now: Nanos) {
        while let Some(decided) = self.server.poll_decided() {
            if let Some(before) = self.decided_at.replace(now) {
                self.current.pause = self.current.pause.max(now.since(before));
            }
            match decided {
                Decided::Entry { index, value } => {
                    self.current.state.apply(&value);
                    self.current.applied += 1;
                    while let Some((proposed, at)) = self.pending.front().copied()
                        && proposed <= index
                    {
                        self.pending.pop_front();
                        if proposed == index
                            && let Some(path) = self.current.path
                        {
                            self.stats(path).decided(value.len(), now.since(at));
                        }
                    }
                    if self.current.state.count.is_multiple_of(CHECKPOINT_INTERVAL) {
                        let checkpoints = &mut self.current.checkpoints;
                        if checkpoints.len() == MAX_CHECKPOINTS {
                            checkpoints.pop_front();
                        }
                        checkpoints.push_back(self.current.state);
                    }
                }
                Decided::Snapshot { next, state } => match AppState::from_bytes(&state) {
                    Some(state) if state.count == next => self.current.state = state,
                    _ => self.fail(format!("a snapshot of {next} entries is not valid for this application")),
                },
            }
        }
    }

    fn propose(&mut self, nic: &mut Rnic, now: Nanos) {
        let Some(load) = self.load else { return };
        if !self.server.is_leader() {
            self.pending.clear();
            self.due = now;
            return;
        }
        self.due = self.due.max(Nanos(now.0.saturating_sub(MAX_BACKLOG.0)));
        while self.due <= now {
            let words = [self.proposed, self.incarnation].map(u64::to_le_bytes).concat();
            let len = words.len().min(self.value.len());
            self.value[..len].copy_from_slice(&words[..len]);
            let Ok(index) = self.server.propose(nic, &self.value) else { return };
            self.pending.push_back((index, now));
            self.proposed += 1;
            if let Some(rate) = load.rate {
                self.due = self.due + Nanos(1_000_000_000 / rate);
            }
        }
    }

    /// Bootstraps the group at the operator's request. The request is honoured at most once: it lapses if the
    /// group begins without it.
    fn try_bootstrap(&mut self) {
        match self.server.bootstrap() {
            Err(BootstrapError::Unseen(_) | BootstrapError::MayHoldEntries(_)) => {}
            Ok(()) | Err(BootstrapError::Member | BootstrapError::OtherMember(_)) => {
                self.bootstrap_requested = false;
            }
        }
    }

    fn fail(&mut self, error: String) {
        self.current.error.get_or_insert(error);
    }

    fn publish(&mut self, nic: &Rnic, now: Nanos) {
        self.published_at = now;
        self.update_stats(nic, now);
        if let Some(last) = self.decided_at {
            self.current.pause = self.current.pause.max(now.since(last));
        }
        self.current.membership = self.server.membership();
        self.current.waits_for = self.server.waits_for();
        self.current.refused = self.server.refused();
        self.current.leader = self.server.leader();
        // A worker does not wait for a lock: while another thread reads, that thread sees the previous state.
        let Ok(mut published) = self.published.try_lock() else { return };
        (published.waits_for, published.refused) = (self.current.waits_for, self.current.refused);
        let ReplicaStatus {
            membership,
            leader,
            path,
            state,
            applied,
            checkpoints,
            pause,
            direct,
            switch,
            error,
            ..
        } = &mut self.current;
        (published.membership, published.leader, published.path) = (*membership, *leader, *path);
        (published.state, published.applied) = (*state, *applied);
        published.checkpoints.clone_from(checkpoints);
        published.pause = published.pause.max(*pause);
        *pause = Nanos::ZERO;
        published.direct.copy_from(direct);
        published.switch.copy_from(switch);
        published.counters = *nic.counters();
        if published.error.is_none() {
            published.error = error.take();
        }
    }
}

impl App for Replica {
    fn start(&mut self, nic: &mut Rnic, now: Nanos) {
        if let Err(error) = self.server.start(nic, now) {
            self.fail(error.to_string());
        }
    }

    fn run(&mut self, nic: &mut Rnic, now: Nanos) {
        self.last_run = now;
        self.server.run(nic, now);
        if self.bootstrap_requested {
            self.try_bootstrap();
        }
        self.apply(now);
        let path = if self.server.replicates_through_switch() {
            ReplicationPath::Switch
        } else {
            ReplicationPath::Direct
        };
        let path = self.server.is_leader().then_some(path);
        if path != self.current.path {
            self.update_stats(nic, now);
            self.current.path = path;
        }
        self.propose(nic, now);
        if self.server.wants_snapshot() {
            // If the log has advanced meanwhile, the snapshot is given on the next call.
            _ = self.server.provide_snapshot(nic, &self.current.state.to_bytes(), now);
        }
        if now.since(self.published_at) >= PUBLISH_INTERVAL {
            self.publish(nic, now);
        }
    }

    fn next_timer(&self) -> Option<Nanos> {
        let next = self.server.next_timer().min(self.published_at + PUBLISH_INTERVAL);
        let paced = self.load.is_some_and(|load| load.rate.is_some()) && self.current.path.is_some();
        // An overdue value that cannot be proposed waits until the values under way are decided.
        Some(if paced && self.due > self.last_run { next.min(self.due) } else { next })
    }
}
