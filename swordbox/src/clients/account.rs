//! What clients have done, and how long it took.

use hdrhistogram::Histogram;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use switch::Nanos;

/// Latencies are told apart by 0.1 %, up to ten seconds; longer ones count as that.
const DIGITS: u8 = 3;
const LONGEST_NS: u64 = 10_000_000_000;

/// What an application asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A lock, from the first try until it is held
    Lock,
    /// The release of a lock, from when it is posted until it is acknowledged
    Unlock,
    /// The value of a key
    Read,
    /// A new value of a key
    Write,
    /// Some keys in order
    Scan,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 5] = [Self::Lock, Self::Unlock, Self::Read, Self::Write, Self::Scan];

    /// Its name
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lock => "lock",
            Self::Unlock => "unlock",
            Self::Read => "read",
            Self::Write => "write",
            Self::Scan => "scan",
        }
    }
}

/// Requests and what came of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Tally {
    /// RDMA READs that have completed
    pub reads: u64,
    /// RDMA WRITEs that have completed
    pub writes: u64,
    /// CAS that found what they compared with
    pub cas_succeeded: u64,
    /// CAS that did not
    pub cas_failed: u64,
    /// FETCH_ADDs
    pub fetch_adds: u64,
    /// Requests that an operation succeeded by: the lock was free, the node was the last one
    pub hits: u64,
    /// Those that were in vain, as somebody else had been faster: what the operation has to send on top
    pub misses: u64,
}

fn share(of: u64, others: u64) -> f64 {
    if of + others == 0 { 1.0 } else { of as f64 / (of + others) as f64 }
}

impl Tally {
    /// The share of CAS that succeeded; 1 if there was none
    pub fn cas_share(&self) -> f64 {
        share(self.cas_succeeded, self.cas_failed)
    }

    /// The share of such requests that were not in vain; 1 if there was none
    pub fn hit_share(&self) -> f64 {
        share(self.hits, self.misses)
    }

    /// Requests
    pub fn requests(&self) -> u64 {
        self.reads + self.writes + self.cas_succeeded + self.cas_failed + self.fetch_adds
    }
}

/// What clients have done since the account was opened, or [cleared](Self::clear).
#[derive(Clone, Debug)]
pub struct Account {
    /// Requests
    pub tally: Tally,
    latency_ns: [Histogram<u64>; Kind::ALL.len()],
}

impl Default for Account {
    fn default() -> Self {
        let empty =
            |_| Histogram::new_with_max(LONGEST_NS, DIGITS).expect("bounds that a histogram can have");
        Self { tally: Tally::default(), latency_ns: Kind::ALL.map(empty) }
    }
}

impl Account {
    /// Operations of a kind that were done
    pub fn operations(&self, kind: Kind) -> u64 {
        self.latency_ns[kind as usize].len()
    }

    /// The time that operations of a kind took
    pub fn latency_ns(&self, kind: Kind) -> &Histogram<u64> {
        &self.latency_ns[kind as usize]
    }

    /// Forgets everything: what comes is measured, after a warm-up.
    pub fn clear(&mut self) {
        self.tally = Tally::default();
        self.latency_ns.iter_mut().for_each(Histogram::clear);
    }

    fn record(&mut self, kind: Kind, took: Nanos) {
        self.latency_ns[kind as usize].saturating_record(took.0.max(1));
    }
}

/// An account of several clients.
#[derive(Clone, Debug, Default)]
pub struct SharedAccount(Arc<Mutex<Account>>);

impl SharedAccount {
    /// What it holds; whoever has it looks at it and lets go.
    pub fn lock(&self) -> MutexGuard<'_, Account> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An operation is done that took so long.
    pub fn record(&self, kind: Kind, took: Nanos) {
        self.lock().record(kind, took);
    }

    /// A try succeeded, or came too late.
    pub fn tried(&self, hit: bool) {
        let tally = &mut self.lock().tally;
        *(if hit { &mut tally.hits } else { &mut tally.misses }) += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_tells_what_was_recorded() {
        let account = SharedAccount::default();
        assert!((account.lock().tally.cas_share() - 1.0).abs() < 1e-9, "nothing failed");
        for us in 1..=100 {
            account.record(Kind::Read, Nanos::from_micros(us));
        }
        account.record(Kind::Lock, Nanos::from_secs(100));
        for hit in [true, false, false, false] {
            account.tried(hit);
        }
        let mut held = account.lock();
        assert_eq!((held.operations(Kind::Read), held.operations(Kind::Write)), (100, 0));
        assert_eq!(held.latency_ns(Kind::Read).value_at_quantile(0.5) / 100, 500);
        assert!(held.latency_ns(Kind::Lock).max() >= LONGEST_NS);
        assert!((held.tally.hit_share() - 0.25).abs() < 1e-9);
        held.clear();
        assert_eq!((held.operations(Kind::Read), held.tally), (0, Tally::default()));
    }
}
