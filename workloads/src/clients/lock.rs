//! Locks in remote memory, as in Sherman (Wang et al., SIGMOD 2022). The table consists of words, each of
//! which is 0 or the tag of the thread that holds the lock. A thread acquires a lock by CAS(0 -> tag),
//! repeated until it succeeds, and releases it by an RDMA WRITE of 0. The authors of Swordbox describe the
//! release by CAS(tag -> 0), which is also available.
//!
//! Data written under a lock are posted just before the WRITE that releases it, without waiting in between,
//! because the requests of one connection are executed in order. A switch that reorders requests has to
//! preserve that.
//!
//! A thread that ends while it holds a lock leaves it locked; these clients do not recover such locks.

use super::account::{Kind, SharedAccount};
use super::region::Region;
use super::threads::{Program, Start, Thread};
use super::verbs::{Stopped, Verbs, word};
use super::ycsb::Zipf;
use rnic::Remote;
use switch::{Nanos, Rng};

/// Method of releasing a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unlock {
    /// WRITE of 0
    Write,
    /// CAS(tag -> 0)
    CompareSwap,
}

/// Table of locks: the n-th word is at offset `n * stride` of a region.
#[derive(Clone, Copy, Debug)]
pub struct LockTable {
    region: Region,
    stride: u64,
    locks: u64,
}

impl LockTable {
    /// Returns a table of as many locks as the region has room for, `stride` bytes apart (rounded up to a
    /// multiple of 8).
    ///
    /// # Errors
    /// The region has room for none.
    pub fn new(region: Region, stride: u64) -> Result<Self, Stopped> {
        let stride = stride.max(8).next_multiple_of(8);
        let locks = region.len / stride;
        if locks == 0 { Err(Stopped::Regions) } else { Ok(Self { region, stride, locks }) }
    }

    /// Returns the number of locks.
    pub const fn locks(&self) -> u64 {
        self.locks
    }

    /// Returns the address of a lock; numbers wrap at the number of locks.
    pub const fn at(&self, lock: u64) -> Remote {
        self.region.at(lock % self.locks * self.stride)
    }

    /// Acquires a lock, with as many attempts as needed. The tag must not be 0 or that of another thread.
    ///
    /// # Errors
    /// The connection ended.
    pub async fn lock(&self, verbs: &Verbs, lock: u64, tag: u64) -> Result<(), Stopped> {
        let at = self.at(lock);
        loop {
            let held = verbs.compare_swap(at, 0, tag).await? != 0;
            verbs.account().tried(!held);
            if !held {
                return Ok(());
            }
        }
    }

    /// Releases a lock that the thread holds, after all requests that it has posted.
    ///
    /// # Errors
    /// The connection ended, or another thread has released the lock.
    pub async fn unlock(&self, verbs: &Verbs, lock: u64, tag: u64, how: Unlock) -> Result<(), Stopped> {
        let at = self.at(lock);
        match how {
            Unlock::Write => verbs.write(at, 0u64.to_le_bytes().into()).await,
            Unlock::CompareSwap if verbs.compare_swap(at, tag, 0).await? == tag => Ok(()),
            Unlock::CompareSwap => Err(Stopped::Corrupt("a held lock does not have its holder's tag")),
        }
    }
}

/// Action while a lock is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhileHeld {
    /// Nothing
    Nothing,
    /// Read the lock's word in region 1 and write it back incremented. The sum of all words equals the number
    /// of acquisitions, unless two threads held a lock at the same time or a release overtook the write
    Count,
    /// Hold the lock for this time
    Hold(Nanos),
}

/// Program that acquires and releases locks. Region 0 is the table.
#[derive(Clone, Debug)]
pub struct Locks {
    /// Distribution of the locks (Zipf's law); a single lock gives full contention
    pub locks: Zipf,
    /// Distance between two locks in bytes
    pub stride: u64,
    /// Method of releasing them
    pub unlock: Unlock,
    /// Action while a lock is held
    pub while_held: WhileHeld,
    /// Acquisitions per thread
    pub times: u64,
    /// Number of this machine, below 2^31, which distinguishes its threads from those of other machines
    pub machine: u64,
    /// Seed of the random numbers
    pub seed: u64,
}

impl Locks {
    /// Returns a program for Sherman's locks, eight bytes apart, that acquires and releases locks without
    /// end.
    pub const fn new(locks: Zipf, machine: u64, seed: u64) -> Self {
        let (unlock, while_held) = (Unlock::Write, WhileHeld::Nothing);
        Self { locks, stride: 8, unlock, while_held, times: u64::MAX, machine, seed }
    }
}

/// Returns the tag of a thread: not 0, and different for each thread, machine and incarnation (modulo 2^16).
pub const fn tag(machine: u64, thread: usize, incarnation: u32) -> u64 {
    1 << 63 | machine << 32 | (incarnation as u64 & 0xffff) << 16 | thread as u64
}

impl Program for Locks {
    fn thread(&mut self, start: Start) -> Thread {
        Box::pin(run(self.clone(), start))
    }
}

async fn run(locks: Locks, start: Start) -> Result<(), Stopped> {
    let Start { number, incarnation, verbs, regions } = start;
    let table = LockTable::new(*regions.first().ok_or(Stopped::Regions)?, locks.stride)?;
    let tag = tag(locks.machine, number, incarnation);
    let mut rng = Rng::stream(locks.seed, tag);
    let account: SharedAccount = verbs.account().clone();
    for _ in 0..locks.times {
        let lock = locks.locks.draw(&mut rng) as u64;
        let began = verbs.now();
        table.lock(&verbs, lock, tag).await?;
        account.record(Kind::Lock, verbs.now().since(began));
        match locks.while_held {
            WhileHeld::Nothing => {}
            WhileHeld::Count => {
                let counter = regions.get(1).ok_or(Stopped::Regions)?.at(lock * 8);
                let count = word(&verbs.read(counter, 8).await?, 0) + 1;
                verbs.write_ahead(counter, count.to_le_bytes().into());
            }
            WhileHeld::Hold(span) => verbs.sleep(span).await,
        }
        let began = verbs.now();
        table.unlock(&verbs, lock, tag, locks.unlock).await?;
        account.record(Kind::Unlock, verbs.now().since(began));
    }
    Ok(())
}
