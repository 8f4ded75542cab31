//! Locks in remote memory, as Sherman has them (Wang et al., SIGMOD 2022): a table of words, of which each is 0 or the
//! tag of the thread that holds it. A thread takes a lock by CAS(0 -> tag), again and again until it succeeds, and
//! releases it by an RDMA WRITE of 0; Swordbox's authors describe the release by CAS(tag -> 0), which is here, too.
//!
//! What is written under a lock is posted just before the WRITE that releases it, and nobody waits in between: requests
//! of one connection are executed in order. Whoever reorders requests has to keep that (FACTS C-15).
//!
//! A thread that ends while it holds a lock leaves it locked: freeing locks of the dead is beyond these clients.

use super::account::{Kind, SharedAccount};
use super::region::Region;
use super::threads::{Program, Start, Thread};
use super::verbs::{Stopped, Verbs, word};
use super::ycsb::Zipf;
use rnic::Remote;
use switch::{Chance, Nanos};

/// How a lock is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unlock {
    /// By WRITE 0
    Write,
    /// By CAS(tag -> 0)
    CompareSwap,
}

/// A table of locks: words, of which the n-th lies `n * stride` bytes behind the beginning of a region.
#[derive(Clone, Copy, Debug)]
pub struct LockTable {
    region: Region,
    stride: u64,
    locks: u64,
}

impl LockTable {
    /// A table of as many locks as the region holds, so many bytes apart: a multiple of eight.
    ///
    /// # Errors
    /// The region holds none.
    pub fn new(region: Region, stride: u64) -> Result<Self, Stopped> {
        let stride = stride.max(8).next_multiple_of(8);
        let locks = region.len / stride;
        if locks == 0 { Err(Stopped::Regions) } else { Ok(Self { region, stride, locks }) }
    }

    /// How many locks there are
    pub const fn locks(&self) -> u64 {
        self.locks
    }

    /// Where a lock lies; numbers beyond the last begin anew
    pub const fn at(&self, lock: u64) -> Remote {
        self.region.at(lock % self.locks * self.stride)
    }

    /// Takes a lock, however often it has to be tried. The tag is not 0, and no other thread's.
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

    /// Releases a lock that the thread holds, behind everything that it has posted.
    ///
    /// # Errors
    /// The connection ended, or somebody else has released the lock.
    pub async fn unlock(&self, verbs: &Verbs, lock: u64, tag: u64, how: Unlock) -> Result<(), Stopped> {
        let at = self.at(lock);
        match how {
            Unlock::Write => verbs.write(at, 0u64.to_le_bytes().into()).await,
            Unlock::CompareSwap if verbs.compare_swap(at, tag, 0).await? == tag => Ok(()),
            Unlock::CompareSwap => Err(Stopped::Corrupt("a lock that was held is another's")),
        }
    }
}

/// What is done under a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Under {
    /// Nothing
    Nothing,
    /// The lock's word in region 1 is read, and written back with one more: the sum of all words is the number of locks
    /// that were taken, unless two threads ever held one at the same time, or a release overtook what was written
    Count,
    /// It is held for so long.
    Hold(Nanos),
}

/// A program: takes and releases locks. Region 0 is the table.
#[derive(Clone, Debug)]
pub struct Locks {
    /// Which locks, by Zipf's law; a single one is full contention
    pub locks: Zipf,
    /// Bytes from one lock to the next
    pub stride: u64,
    /// How they are released
    pub unlock: Unlock,
    /// What is done under them
    pub under: Under,
    /// How often each thread takes one
    pub times: u64,
    /// What makes this machine's threads others than those of another: below 2^31
    pub machine: u64,
    /// For what is drawn
    pub seed: u64,
}

impl Locks {
    /// Sherman's locks, eight bytes apart, taken and released without end.
    pub const fn new(locks: Zipf, machine: u64, seed: u64) -> Self {
        let (unlock, under) = (Unlock::Write, Under::Nothing);
        Self { locks, stride: 8, unlock, under, times: u64::MAX, machine, seed }
    }
}

/// A tag for the locks of a thread: not 0, and another for each thread of each machine, each time that it begins
pub const fn tag(machine: u64, thread: usize, life: u32) -> u64 {
    1 << 63 | machine << 32 | (life as u64 & 0xffff) << 16 | thread as u64
}

impl Program for Locks {
    fn thread(&mut self, start: Start) -> Thread {
        Box::pin(run(self.clone(), start))
    }
}

async fn run(locks: Locks, start: Start) -> Result<(), Stopped> {
    let Start { number, life, verbs, regions } = start;
    let table = LockTable::new(*regions.first().ok_or(Stopped::Regions)?, locks.stride)?;
    let tag = tag(locks.machine, number, life);
    let mut chance = Chance::stream(locks.seed, tag);
    let account: SharedAccount = verbs.account().clone();
    for _ in 0..locks.times {
        let lock = locks.locks.draw(&mut chance) as u64;
        let began = verbs.now();
        table.lock(&verbs, lock, tag).await?;
        account.record(Kind::Lock, verbs.now().since(began));
        match locks.under {
            Under::Nothing => {}
            Under::Count => {
                let counter = regions.get(1).ok_or(Stopped::Regions)?.at(lock * 8);
                let count = word(&verbs.read(counter, 8).await?, 0) + 1;
                verbs.write_ahead(counter, count.to_le_bytes().into());
            }
            Under::Hold(span) => verbs.sleep(span).await,
        }
        let began = verbs.now();
        table.unlock(&verbs, lock, tag, locks.unlock).await?;
        account.record(Kind::Unlock, verbs.now().since(began));
    }
    Ok(())
}
