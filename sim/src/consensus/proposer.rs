//! A server that proposes as long as it leads, and forgets all when it restarts.

use super::truth::{Truth, chain, fill};
use crate::App;
use p4ce::consensus::{BootstrapError, Config, Decided, Server};
use rnic::Rnic;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use switch::table::mix;
use switch::{Chance, Nanos};

/// Bytes of a value that name it: its server, and how many that one has proposed
pub(super) const NAME: usize = 9;
/// Bytes of a snapshot that are its state
pub(super) const STATE: usize = 8;

/// The application.
#[derive(Debug)]
pub struct Proposer {
    config: Config,
    pub(super) server: Server,
    chance: Chance,
    /// Bytes of a value, from and to
    sizes: (usize, usize),
    /// Bytes of a snapshot
    snapshot: usize,
    /// Values that it proposes in all its lives, and has proposed
    wanted: u64,
    pub(super) proposed: u64,
    lives: u64,
    truth: Arc<Mutex<Truth>>,
    installed: u64,
    next: u64,
    /// What all values below [`next`](Self::next) come to: its state
    sum: u64,
    /// The operator has told it to begin the group.
    begins: bool,
    /// Values that it has proposed and not seen decided: their numbers, and when they were proposed
    under_way: VecDeque<(u64, Nanos)>,
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

/// What a server is to propose.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub(super) seed: u64,
    pub(super) sizes: (usize, usize),
    pub(super) snapshot: usize,
    pub(super) wanted: u64,
    pub(super) begins: bool,
}

impl Proposer {
    pub(super) fn new(config: Config, load: Load, truth: Arc<Mutex<Truth>>) -> Self {
        Self {
            server: Server::new(config.clone()),
            chance: Chance::stream(load.seed, config.id.into()),
            config,
            sizes: load.sizes,
            snapshot: load.snapshot,
            wanted: load.wanted,
            proposed: 0,
            lives: 0,
            truth,
            installed: 0,
            next: 0,
            sum: 0,
            begins: load.begins,
            under_way: VecDeque::new(),
            latencies: Latencies::default(),
            wrong: None,
        }
    }

    /// The server
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// Returns the latencies of its values in all its lives.
    pub(super) fn latencies(&self) -> Latencies {
        self.latencies
    }

    pub(super) fn want(&mut self, more: u64) {
        self.wanted = self.wanted.saturating_add(more);
    }

    /// Tells it to begin the group as soon as all servers are there, in this life.
    pub(super) fn bootstrap(&mut self) {
        self.begins = true;
    }

    /// Names this life of the server.
    pub(super) fn incarnation(&self) -> u64 {
        self.config.incarnation
    }

    /// The place of the next entry that it will see
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Snapshots that it has installed
    pub fn installed(&self) -> u64 {
        self.installed
    }

    /// What all values that it has seen come to
    pub(super) fn sum(&self) -> u64 {
        self.sum
    }

    /// Does what the operator has told it, once.
    fn begin(&mut self) {
        match self.server.bootstrap() {
            Ok(()) => lock(&self.truth).begin(self.server.beginning()),
            Err(BootstrapError::Unseen(_) | BootstrapError::Written(_)) => return,
            Err(BootstrapError::Member | BootstrapError::Begun(_)) => {}
        }
        self.begins = false;
    }

    fn propose(&mut self, nic: &mut Rnic, now: Nanos) {
        while self.server.leads() && self.proposed < self.wanted {
            let (least, most) = self.sizes;
            let len = self.chance.between(least.max(NAME) as u64, most.max(NAME) as u64) as usize;
            let value = fill(self.config.id, self.proposed, len);
            if self.server.propose(nic, &value).is_err() {
                return;
            }
            lock(&self.truth).propose(self.config.id, self.proposed, len);
            self.under_way.push_back((self.proposed, now));
            self.proposed += 1;
        }
    }

    /// Counts the latency of a value that is decided, if this server has proposed it in this life.
    fn count_latency(&mut self, value: &[u8], now: Nanos) {
        let name = value.split_first().filter(|(server, _)| **server == self.config.id);
        let Some(number) = name.and_then(|(_, rest)| rest.first_chunk()) else { return };
        let number = u64::from_le_bytes(*number);
        // Those before it were lost with an office.
        while let Some((first, since)) = self.under_way.front().copied().filter(|(first, _)| *first <= number)
        {
            self.under_way.pop_front();
            if first == number {
                self.latencies.values += 1;
                self.latencies.sum_ns += now.since(since).0;
            }
        }
    }

    /// Takes what is decided, and says what is wrong with it.
    fn take(&mut self, decided: Decided, truth: &mut Truth) -> Result<(), String> {
        match decided {
            Decided::Entry { index, .. } if index != self.next => {
                Err(format!("entry {index} comes after {}", self.next))
            }
            Decided::Entry { index, value } => {
                self.next = index + 1;
                self.sum = chain(self.sum, &value);
                truth.decide(index, &value)
            }
            Decided::Snapshot { next, .. } if next <= self.next => {
                Err(format!("a snapshot of {next} comes after {}", self.next))
            }
            Decided::Snapshot { next, state } => {
                let sum = state.first_chunk().map_or(0, |sum| u64::from_le_bytes(*sum));
                (self.next, self.sum) = (next, sum);
                self.installed += 1;
                if state != snapshot(next, sum, state.len()) {
                    return Err(format!("the snapshot of {next} was torn"));
                }
                truth.install(next, sum)
            }
        }
    }
}

/// The state after `next` values, and bytes that no other snapshot has in these places.
fn snapshot(next: u64, sum: u64, len: usize) -> Vec<u8> {
    let mut state = sum.to_le_bytes().to_vec();
    let words = (1..).flat_map(|place: u64| mix(mix(next ^ sum) ^ place).to_le_bytes());
    state.extend(words.take(len.saturating_sub(STATE)));
    state
}

pub(super) fn lock(truth: &Mutex<Truth>) -> MutexGuard<'_, Truth> {
    truth.lock().unwrap_or_else(PoisonError::into_inner)
}

impl App for Proposer {
    fn start(&mut self, nic: &mut Rnic, now: Nanos) {
        self.lives += 1;
        // What the operator said was said to the process that has ended.
        self.begins &= self.lives == 1;
        self.config.incarnation = mix(u64::from(self.config.id) << 32 | self.lives);
        self.server = Server::new(self.config.clone());
        (self.next, self.sum) = (0, 0);
        self.under_way.clear();
        if let Err(error) = self.server.start(nic, now) {
            self.wrong = Some(error.to_string());
        }
    }

    fn run(&mut self, nic: &mut Rnic, now: Nanos) {
        self.server.run(nic, now);
        if self.begins {
            self.begin();
        }
        self.propose(nic, now);
        let truth = Arc::clone(&self.truth);
        while let Some(decided) = self.server.poll_decided() {
            if let Decided::Entry { value, .. } = &decided {
                self.count_latency(value, now);
            }
            if let Err(wrong) = self.take(decided, &mut lock(&truth)) {
                self.wrong.get_or_insert(wrong);
            }
        }
        if self.server.wants_snapshot() {
            let state = snapshot(self.next, self.sum, self.snapshot);
            if let Err(error) = self.server.give_snapshot(nic, &state, now) {
                self.wrong = Some(error.to_string());
            }
        }
    }

    fn next_timer(&self) -> Option<Nanos> {
        Some(self.server.next_timer())
    }
}
