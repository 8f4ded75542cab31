//! The replicated application: proposes values, applies decided ones, and publishes a copy of its state for
//! other threads.

use super::{Account, ConsensusConfig, Load, Way};
use p4ce::consensus::{BootstrapError, Decided, Server, Standing, Waiting};
use rnic::{App, Counters, Rnic};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use switch::Nanos;
use switch::table::mix;

/// Interval at which the published state is refreshed
const SHOW_EVERY: Nanos = Nanos::from_millis(10);
/// Values between two checkpoints, which are compared with those of other servers
const CHECKPOINT: u64 = 1024;
/// Checkpoints that are kept
const CHECKPOINTS: usize = 32;
/// Largest backlog of a paced load: the load does not make up for values that are overdue by more than this
const LATE: Nanos = Nanos::from_millis(100);

/// State of the replicated application: equal after the same values in the same order, and different
/// otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct State {
    /// Values applied
    pub(crate) count: u64,
    /// Running hash of the values
    pub(crate) hash: u64,
}

impl State {
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

/// State of a server as other threads see it.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) standing: Standing,
    /// What the server waits for while it is not a member
    pub(crate) waits_for: Option<Waiting>,
    /// Connection requests that were refused because they do not come from a server of the group
    pub(crate) refused: u64,
    pub(crate) leader: Option<u8>,
    /// Replication path, while the server leads
    pub(crate) way: Option<Way>,
    pub(crate) state: State,
    /// Values applied one by one, without those that came in a snapshot
    pub(crate) applied: u64,
    /// Earlier states, one per [`CHECKPOINT`] values
    pub(crate) checkpoints: VecDeque<State>,
    /// Longest time without a decision since the reader last reset this field
    pub(crate) pause: Nanos,
    pub(crate) direct: Account,
    pub(crate) switch: Account,
    pub(crate) counters: Counters,
    /// Reason why the server cannot continue
    pub(crate) error: Option<String>,
}

impl Seen {
    fn new() -> Self {
        Self {
            standing: Standing::Blank,
            waits_for: None,
            refused: 0,
            leader: None,
            way: None,
            state: State::default(),
            applied: 0,
            checkpoints: VecDeque::with_capacity(CHECKPOINTS),
            pause: Nanos::ZERO,
            direct: Account::default(),
            switch: Account::default(),
            counters: Counters::default(),
            error: None,
        }
    }
}

/// NIC counters at the time of the last count
#[derive(Clone, Copy, Debug, Default)]
struct Mark {
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
    begins: bool,
    value: Vec<u8>,
    /// Values proposed
    proposed: u64,
    /// Time at which the next value is due
    due: Nanos,
    /// Indices of undecided proposals, and the times at which they were proposed
    under_way: VecDeque<(u64, Nanos)>,
    mark: Mark,
    /// Time of the last decision
    decided_at: Option<Nanos>,
    ran: Nanos,
    shown: Nanos,
    /// Current state, copied to `seen` every [`SHOW_EVERY`]
    now: Seen,
    seen: Arc<Mutex<Seen>>,
}

impl Replica {
    /// Creates a server with this incarnation number. With `begins`, the server bootstraps the group, empty,
    /// once it has seen that all servers run and none is a member.
    pub(crate) fn new(config: &ConsensusConfig, incarnation: u64, begins: bool) -> Self {
        Self {
            server: Server::new(config.server(incarnation)),
            load: config.load,
            incarnation,
            begins,
            value: vec![0; config.load.map_or(0, |load| load.size)],
            proposed: 0,
            due: Nanos::ZERO,
            under_way: VecDeque::with_capacity(config.window as usize),
            mark: Mark::default(),
            decided_at: None,
            ran: Nanos::ZERO,
            shown: Nanos::ZERO,
            now: Seen::new(),
            seen: Arc::new(Mutex::new(Seen::new())),
        }
    }

    /// Returns the state that other threads may read.
    pub(crate) fn seen(&self) -> Arc<Mutex<Seen>> {
        self.seen.clone()
    }

    fn account(&mut self, way: Way) -> &mut Account {
        match way {
            Way::Direct => &mut self.now.direct,
            Way::Switch => &mut self.now.switch,
        }
    }

    /// Adds the time and packets since the last call to the account of the replication path used since then.
    fn count(&mut self, nic: &Rnic, now: Nanos) {
        let counters = nic.counters();
        let mark = Mark { at: now, sent: counters.sent, received: counters.received };
        let before = core::mem::replace(&mut self.mark, mark);
        if let Some(way) = self.now.way {
            let account = self.account(way);
            account.time = account.time + now.since(before.at);
            account.sent += mark.sent - before.sent;
            account.received += mark.received - before.received;
        }
    }

    /// Applies decided values and snapshots.
    fn apply(&mut self, now: Nanos) {
        while let Some(decided) = self.server.poll_decided() {
            if let Some(before) = self.decided_at.replace(now) {
                self.now.pause = self.now.pause.max(now.since(before));
            }
            match decided {
                Decided::Entry { index, value } => {
                    self.now.state.apply(&value);
                    self.now.applied += 1;
                    while let Some((proposed, at)) = self.under_way.front().copied()
                        && proposed <= index
                    {
                        self.under_way.pop_front();
                        if proposed == index
                            && let Some(way) = self.now.way
                        {
                            self.account(way).decided(value.len(), now.since(at));
                        }
                    }
                    if self.now.state.count.is_multiple_of(CHECKPOINT) {
                        let checkpoints = &mut self.now.checkpoints;
                        if checkpoints.len() == CHECKPOINTS {
                            checkpoints.pop_front();
                        }
                        checkpoints.push_back(self.now.state);
                    }
                }
                Decided::Snapshot { next, state } => match State::from_bytes(&state) {
                    Some(state) if state.count == next => self.now.state = state,
                    _ => self.fail(format!("a snapshot of {next} entries is not valid for this application")),
                },
            }
        }
    }

    fn propose(&mut self, nic: &mut Rnic, now: Nanos) {
        let Some(load) = self.load else { return };
        if !self.server.leads() {
            self.under_way.clear();
            self.due = now;
            return;
        }
        self.due = self.due.max(Nanos(now.0.saturating_sub(LATE.0)));
        while self.due <= now {
            let words = [self.proposed, self.incarnation].map(u64::to_le_bytes).concat();
            let len = words.len().min(self.value.len());
            self.value[..len].copy_from_slice(&words[..len]);
            let Ok(index) = self.server.propose(nic, &self.value) else { return };
            self.under_way.push_back((index, now));
            self.proposed += 1;
            if let Some(rate) = load.rate {
                self.due = self.due + Nanos(1_000_000_000 / rate);
            }
        }
    }

    /// Bootstraps the group at the operator's request. The request is honoured at most once: it lapses if the
    /// group begins without it.
    fn begin(&mut self) {
        match self.server.bootstrap() {
            Err(BootstrapError::Unseen(_) | BootstrapError::Written(_)) => {}
            Ok(()) | Err(BootstrapError::Member | BootstrapError::Begun(_)) => self.begins = false,
        }
    }

    fn fail(&mut self, error: String) {
        self.now.error.get_or_insert(error);
    }

    fn show(&mut self, nic: &Rnic, now: Nanos) {
        self.shown = now;
        self.count(nic, now);
        if let Some(last) = self.decided_at {
            self.now.pause = self.now.pause.max(now.since(last));
        }
        self.now.standing = self.server.standing();
        self.now.waits_for = self.server.waits_for();
        self.now.refused = self.server.refused();
        self.now.leader = self.server.leader();
        // A worker does not wait for a lock: while another thread reads, that thread sees the previous state.
        let Ok(mut seen) = self.seen.try_lock() else { return };
        (seen.waits_for, seen.refused) = (self.now.waits_for, self.now.refused);
        let Seen { standing, leader, way, state, applied, checkpoints, pause, direct, switch, error, .. } =
            &mut self.now;
        (seen.standing, seen.leader, seen.way) = (*standing, *leader, *way);
        (seen.state, seen.applied) = (*state, *applied);
        seen.checkpoints.clone_from(checkpoints);
        seen.pause = seen.pause.max(*pause);
        *pause = Nanos::ZERO;
        seen.direct.copy_from(direct);
        seen.switch.copy_from(switch);
        seen.counters = *nic.counters();
        if seen.error.is_none() {
            seen.error = error.take();
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
        self.ran = now;
        self.server.run(nic, now);
        if self.begins {
            self.begin();
        }
        self.apply(now);
        let way = if self.server.replicates_through() { Way::Switch } else { Way::Direct };
        let way = self.server.leads().then_some(way);
        if way != self.now.way {
            self.count(nic, now);
            self.now.way = way;
        }
        self.propose(nic, now);
        if self.server.wants_snapshot() {
            // If the log has advanced meanwhile, the snapshot is given on the next call.
            _ = self.server.give_snapshot(nic, &self.now.state.to_bytes(), now);
        }
        if now.since(self.shown) >= SHOW_EVERY {
            self.show(nic, now);
        }
    }

    fn next_timer(&self) -> Option<Nanos> {
        let next = self.server.next_timer().min(self.shown + SHOW_EVERY);
        let paced = self.load.is_some_and(|load| load.rate.is_some()) && self.now.way.is_some();
        // An overdue value that cannot be proposed waits until the values under way are decided.
        Some(if paced && self.due > self.ran { next.min(self.due) } else { next })
    }
}
