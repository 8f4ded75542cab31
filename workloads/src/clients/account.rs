//! Counters and latencies of client operations.

use hdrhistogram::Histogram;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use switch::Nanos;

/// Histograms have a resolution of 0.1 % up to ten seconds; longer latencies are counted as ten seconds.
const DIGITS: u8 = 3;
const LONGEST_NS: u64 = 10_000_000_000;

/// Kind of an application's operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Acquisition of a lock, from the first attempt to success
    Lock,
    /// Release of a lock, from posting to acknowledgement
    Unlock,
    /// Read of a key's value
    Read,
    /// Update of a key's value
    Write,
    /// Ordered read of several keys
    Scan,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 5] = [Self::Lock, Self::Unlock, Self::Read, Self::Write, Self::Scan];

    /// Returns the name.
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

/// Counts of RDMA requests and their results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Tally {
    /// RDMA READs completed
    pub reads: u64,
    /// RDMA WRITEs completed
    pub writes: u64,
    /// CAS that found the expected value
    pub cas_succeeded: u64,
    /// CAS that found another value
    pub cas_failed: u64,
    /// FETCH_ADDs completed
    pub fetch_adds: u64,
    /// Requests by which an operation succeeded: the lock was free, or the node was the last one
    pub hits: u64,
    /// Requests that failed because another client was faster, which are additional requests of the operation
    pub misses: u64,
}

fn share(of: u64, others: u64) -> f64 {
    if of + others == 0 { 1.0 } else { of as f64 / (of + others) as f64 }
}

impl Tally {
    /// Returns the share of CAS that succeeded; 1 if there were none.
    pub fn cas_share(&self) -> f64 {
        share(self.cas_succeeded, self.cas_failed)
    }

    /// Returns the share of hits among hits and misses; 1 if there were none.
    pub fn hit_share(&self) -> f64 {
        share(self.hits, self.misses)
    }

    /// Returns the number of requests.
    pub fn requests(&self) -> u64 {
        self.reads + self.writes + self.cas_succeeded + self.cas_failed + self.fetch_adds
    }
}

/// Operations of clients since the account was created or [cleared](Self::clear).
#[derive(Clone, Debug)]
pub struct Account {
    /// Counts of requests
    pub tally: Tally,
    latency_ns: [Histogram<u64>; Kind::ALL.len()],
}

impl Default for Account {
    fn default() -> Self {
        let empty =
            |_| Histogram::new_with_max(LONGEST_NS, DIGITS).expect("the bounds are valid for a histogram");
        Self { tally: Tally::default(), latency_ns: Kind::ALL.map(empty) }
    }
}

impl Account {
    /// Returns the number of operations of a kind.
    pub fn operations(&self, kind: Kind) -> u64 {
        self.latency_ns[kind as usize].len()
    }

    /// Returns the latencies of operations of a kind, in nanoseconds.
    pub fn latency_ns(&self, kind: Kind) -> &Histogram<u64> {
        &self.latency_ns[kind as usize]
    }

    /// Clears everything, for example after a warm-up.
    pub fn clear(&mut self) {
        self.tally = Tally::default();
        self.latency_ns.iter_mut().for_each(Histogram::clear);
    }

    fn record(&mut self, kind: Kind, took: Nanos) {
        self.latency_ns[kind as usize].saturating_record(took.0.max(1));
    }
}

/// Account that several clients share.
#[derive(Clone, Debug, Default)]
pub struct SharedAccount(Arc<Mutex<Account>>);

impl SharedAccount {
    /// Locks the account. Clients block until the guard is dropped.
    pub fn lock(&self) -> MutexGuard<'_, Account> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts an operation that took `took`.
    pub fn record(&self, kind: Kind, took: Nanos) {
        self.lock().record(kind, took);
    }

    /// Counts a request that made its operation succeed (`hit`), or that another client made fail.
    pub fn tried(&self, hit: bool) {
        let tally = &mut self.lock().tally;
        *(if hit { &mut tally.hits } else { &mut tally.misses }) += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_has_the_recorded_operations() {
        let account = SharedAccount::default();
        assert!((account.lock().tally.cas_share() - 1.0).abs() < 1e-9, "no CAS failed");
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
