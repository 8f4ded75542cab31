//! A server that proposes as long as it leads, and forgets all when it restarts.

use super::truth::{Truth, chain};
use crate::App;
use p4ce::consensus::{Config, Decided, Server};
use rnic::Rnic;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use switch::table::mix;
use switch::{Chance, Nanos};

/// Bytes of a snapshot: what matters, and something to carry
pub(super) const SNAPSHOT: usize = 1000;
/// What makes a value another than all others: its server, and how many that one has proposed
const NAME: usize = 9;

/// The application.
#[derive(Debug)]
pub struct Proposer {
    config: Config,
    pub(super) server: Server,
    chance: Chance,
    /// Bytes of a value, from and to
    sizes: (usize, usize),
    /// Values that it proposes in all its lives, and has proposed
    wanted: u64,
    proposed: u64,
    lives: u64,
    truth: Arc<Mutex<Truth>>,
    installed: u64,
    next: u64,
    /// What all values below [`next`](Self::next) come to: its state
    sum: u64,
    pub(super) wrong: Option<String>,
}

impl Proposer {
    pub(super) fn new(
        config: Config,
        seed: u64,
        sizes: (usize, usize),
        wanted: u64,
        truth: Arc<Mutex<Truth>>,
    ) -> Self {
        Self {
            server: Server::new(config.clone()),
            chance: Chance::stream(seed, config.id.into()),
            config,
            sizes,
            wanted,
            proposed: 0,
            lives: 0,
            truth,
            installed: 0,
            next: 0,
            sum: 0,
            wrong: None,
        }
    }

    /// The server
    pub fn server(&self) -> &Server {
        &self.server
    }

    pub(super) fn want(&mut self, more: u64) {
        self.wanted = self.wanted.saturating_add(more);
    }

    /// The place of the next entry that it will see
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Snapshots that it has installed
    pub fn installed(&self) -> u64 {
        self.installed
    }

    fn propose(&mut self, nic: &mut Rnic) {
        while self.server.leads() && self.proposed < self.wanted {
            let (least, most) = self.sizes;
            let len = self.chance.between(least.max(NAME) as u64, most.max(NAME) as u64) as usize;
            let mut value = Vec::with_capacity(len);
            value.push(self.config.id);
            value.extend(self.proposed.to_le_bytes());
            value.resize(len, 0x77);
            if self.server.propose(nic, &value).is_err() {
                return;
            }
            self.proposed += 1;
            lock(&self.truth).propose(&value);
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
                truth.install(next, sum)
            }
        }
    }
}

fn lock(truth: &Mutex<Truth>) -> MutexGuard<'_, Truth> {
    truth.lock().unwrap_or_else(PoisonError::into_inner)
}

impl App for Proposer {
    fn start(&mut self, nic: &mut Rnic, now: Nanos) {
        self.lives += 1;
        self.config.incarnation = mix(u64::from(self.config.id) << 32 | self.lives);
        self.server = Server::new(self.config.clone());
        (self.next, self.sum) = (0, 0);
        if let Err(error) = self.server.start(nic, now) {
            self.wrong = Some(error.to_string());
        }
    }

    fn run(&mut self, nic: &mut Rnic, now: Nanos) {
        self.server.run(nic, now);
        self.propose(nic);
        let truth = Arc::clone(&self.truth);
        while let Some(decided) = self.server.poll_decided() {
            if let Err(wrong) = self.take(decided, &mut lock(&truth)) {
                self.wrong.get_or_insert(wrong);
            }
        }
        if self.server.wants_snapshot() {
            let mut state = self.sum.to_le_bytes().to_vec();
            state.resize(SNAPSHOT, 0x55);
            if let Err(error) = self.server.give_snapshot(nic, &state, now) {
                self.wrong = Some(error.to_string());
            }
        }
    }

    fn next_timer(&self) -> Option<Nanos> {
        Some(self.server.next_timer())
    }
}
