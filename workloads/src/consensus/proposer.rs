//! A server that proposes values while it leads, and loses all state when it restarts.

use super::history::{History, ID_LEN, chain, fill};
use consensus::{BootstrapError, Config, Decided, Server};
use rnic::Rnic;
use sim::App;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use switch::table::mix;
use switch::{Nanos, Rng};

/// Port on which servers accept connections
pub(super) const SERVERS_PORT: u16 = 7000;
/// Bytes at the beginning of a snapshot that hold the state
pub(super) const STATE_LEN: usize = 8;

/// The application of a server.
#[derive(Debug)]
pub struct Proposer {
    config: Config,
    pub(super) server: Server,
    rng: Rng,
    /// Shortest and longest value (bytes)
    sizes: (usize, usize),
    /// Size of a snapshot (bytes)
    snapshot: usize,
    /// Number of values to propose over all incarnations, and of those proposed
    max_proposals: u64,
    pub(super) proposed: u64,
    starts: u64,
    history: Arc<Mutex<History>>,
    installed: u64,
    next: u64,
    /// State: hash chain over all values below [`next`](Self::next)
    sum: u64,
    /// Whether a bootstrap command of the operator is pending
    bootstraps: bool,
    /// Proposed values that this server has not seen decided: number and time of the proposal
    undecided: VecDeque<(u64, Nanos)>,
    latencies: Latencies,
    pub(super) wrong: Option<String>,
}

/// Latencies of the values that a server has proposed and seen decided.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Latencies {
    values: u64,
    sum_ns: u64,
}

impl Latencies {
    /// Returns the mean latency, in seconds, of the values that were decided since `before`.
    pub(super) fn mean_since(self, before: Self) -> f64 {
        (self.sum_ns - before.sum_ns) as f64 / (self.values - before.values) as f64 / 1e9
    }
}

/// Load of a server.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub(super) seed: u64,
    pub(super) sizes: (usize, usize),
    pub(super) snapshot: usize,
    pub(super) max_proposals: u64,
    pub(super) bootstraps: bool,
}

impl Proposer {
    pub(super) fn new(config: Config, load: Load, history: Arc<Mutex<History>>) -> Self {
        Self {
            server: Server::new(config.clone()),
            rng: Rng::stream(load.seed, config.id.into()),
            config,
            sizes: load.sizes,
            snapshot: load.snapshot,
            max_proposals: load.max_proposals,
            proposed: 0,
            starts: 0,
            history,
            installed: 0,
            next: 0,
            sum: 0,
            bootstraps: load.bootstraps,
            undecided: VecDeque::new(),
            latencies: Latencies::default(),
            wrong: None,
        }
    }

    /// Returns the server.
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// Returns the latencies of its values over all incarnations.
    pub(super) fn latencies(&self) -> Latencies {
        self.latencies
    }

    pub(super) fn propose_more(&mut self, more: u64) {
        self.max_proposals = self.max_proposals.saturating_add(more);
    }

    /// Gives the server the operator's command to bootstrap the group. A restart cancels the command.
    pub(super) fn bootstrap(&mut self) {
        self.bootstraps = true;
    }

    /// Returns the identifier of this incarnation of the server.
    pub(super) fn incarnation(&self) -> u64 {
        self.config.incarnation
    }

    /// Returns the index of the next entry that the server will see.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Returns the number of snapshots that the server has installed.
    pub fn installed(&self) -> u64 {
        self.installed
    }

    /// Returns the hash chain over all values that the server has seen.
    pub(super) fn sum(&self) -> u64 {
        self.sum
    }

    /// Executes the bootstrap command, once.
    fn begin(&mut self) {
        match self.server.bootstrap() {
            Ok(()) => lock(&self.history).begin(self.server.bootstrap_incarnations()),
            Err(BootstrapError::Unseen(_) | BootstrapError::MayHoldEntries(_)) => return,
            Err(BootstrapError::Member | BootstrapError::OtherMember(_)) => {}
        }
        self.bootstraps = false;
    }

    fn propose(&mut self, nic: &mut Rnic, now: Nanos) {
        while self.server.is_leader() && self.proposed < self.max_proposals {
            let (least, most) = self.sizes;
            let len = self.rng.between(least.max(ID_LEN) as u64, most.max(ID_LEN) as u64) as usize;
            let value = fill(self.config.id, self.proposed, len);
            if self.server.propose(nic, &value).is_err() {
                return;
            }
            lock(&self.history).propose(self.config.id, self.proposed, len);
            self.undecided.push_back((self.proposed, now));
            self.proposed += 1;
        }
    }

    /// Counts the latency of a decided value if this server has proposed it since its last start.
    fn count_latency(&mut self, value: &[u8], now: Nanos) {
        let id = value.split_first().filter(|(server, _)| **server == self.config.id);
        let Some(number) = id.and_then(|(_, rest)| rest.first_chunk()) else { return };
        let number = u64::from_le_bytes(*number);
        // Earlier values were lost when the server lost its leadership.
        while let Some((first, since)) = self.undecided.front().copied().filter(|(first, _)| *first <= number)
        {
            self.undecided.pop_front();
            if first == number {
                self.latencies.values += 1;
                self.latencies.sum_ns += now.since(since).0;
            }
        }
    }

    /// Applies a decided entry or a snapshot. Returns a violation if it contradicts earlier ones.
    fn apply(&mut self, decided: Decided, history: &mut History) -> Result<(), String> {
        match decided {
            Decided::Entry { index, .. } if index != self.next => {
                Err(format!("entry {index} was delivered when entry {} was expected", self.next))
            }
            Decided::Entry { index, value } => {
                self.next = index + 1;
                self.sum = chain(self.sum, &value);
                history.decide(index, &value)
            }
            Decided::Snapshot { next, .. } if next <= self.next => Err(format!(
                "a snapshot of {next} entries was delivered when entry {} was expected",
                self.next
            )),
            Decided::Snapshot { next, state } => {
                let sum = state.first_chunk().map_or(0, |sum| u64::from_le_bytes(*sum));
                (self.next, self.sum) = (next, sum);
                self.installed += 1;
                if state != snapshot(next, sum, state.len()) {
                    return Err(format!("the snapshot of {next} entries was torn"));
                }
                history.install(next, sum)
            }
        }
    }
}

/// Returns the snapshot after `next` values: the state, then bytes that occur in no other snapshot.
fn snapshot(next: u64, sum: u64, len: usize) -> Vec<u8> {
    let mut state = sum.to_le_bytes().to_vec();
    let words = (1..).flat_map(|index: u64| mix(mix(next ^ sum) ^ index).to_le_bytes());
    state.extend(words.take(len.saturating_sub(STATE_LEN)));
    state
}

pub(super) fn lock(history: &Mutex<History>) -> MutexGuard<'_, History> {
    history.lock().unwrap_or_else(PoisonError::into_inner)
}

impl App for Proposer {
    fn start(&mut self, nic: &mut Rnic, now: Nanos) {
        self.starts += 1;
        // The operator's command was given to the previous process.
        self.bootstraps &= self.starts == 1;
        self.config.incarnation = mix(u64::from(self.config.id) << 32 | self.starts);
        self.server = Server::new(self.config.clone());
        (self.next, self.sum) = (0, 0);
        self.undecided.clear();
        if let Err(error) = self.server.start(nic, now) {
            self.wrong = Some(error.to_string());
        }
    }

    fn run(&mut self, nic: &mut Rnic, now: Nanos) {
        self.server.run(nic, now);
        if self.bootstraps {
            self.begin();
        }
        self.propose(nic, now);
        let history = Arc::clone(&self.history);
        while let Some(decided) = self.server.poll_decided() {
            if let Decided::Entry { value, .. } = &decided {
                self.count_latency(value, now);
            }
            if let Err(wrong) = self.apply(decided, &mut lock(&history)) {
                self.wrong.get_or_insert(wrong);
            }
        }
        if self.server.wants_snapshot() {
            let state = snapshot(self.next, self.sum, self.snapshot);
            if let Err(error) = self.server.provide_snapshot(nic, &state, now) {
                self.wrong = Some(error.to_string());
            }
        }
    }

    fn next_timer(&self) -> Option<Nanos> {
        Some(self.server.next_timer())
    }
}
