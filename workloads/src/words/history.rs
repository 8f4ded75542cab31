//! Record of all requests and results of all clients. It outlives the hosts.

use super::linear::{self, Action, Done, Op, Rules};
use super::{Config, Verb};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use switch::Nanos;

/// Low bits of a value, in which additions accumulate
const ADDS: u32 = 45;
/// Number of bits that are added, each separately
const ADD_BITS: u32 = 40;

/// The record, shared by all hosts.
#[derive(Clone, Debug)]
pub(super) struct Shared(Arc<Mutex<History>>);

impl Shared {
    pub(super) fn new(config: &Config) -> Self {
        Self(Arc::new(Mutex::new(History::new(config))))
    }

    pub(super) fn get(&self) -> MutexGuard<'_, History> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reference to an operation in the history of a word
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Recorded {
    /// Number of the memory
    pub(super) memory: usize,
    pub(super) word: usize,
    number: usize,
    /// When it was posted
    at: Nanos,
}

/// What a fault affects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Affected {
    Client(usize),
    Server(usize),
    All,
}

/// A page of a server.
#[derive(Clone, Copy, Debug, Default)]
struct Page {
    /// Section whose client knows that it holds the lock
    holder: Option<u64>,
    /// Section that wrote the page last
    newest: u64,
}

/// Record of a server's memory.
#[derive(Clone, Debug)]
struct MemoryRecord {
    /// Logical time of its loss; `u64::MAX` if it was not lost
    lost: u64,
    words: Vec<Vec<Op>>,
    /// Latest observed value of each word
    newest: Vec<u64>,
    /// Additions of each bit that have not completed, by word
    adds: Vec<[u32; ADD_BITS as usize]>,
    pages: Vec<Page>,
}

/// Counts for the totals.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) operations: [u64; Verb::ALL.len()],
    pub(super) swapped: u64,
    pub(super) sections: u64,
    pub(super) tries: u64,
    pub(super) broken: u64,
    pub(super) longest_wait: Nanos,
}

/// Record of all requests and results.
#[derive(Debug)]
pub(super) struct History {
    clock: u64,
    /// Number of unique values handed out
    values: u64,
    /// Memories by number; a server that restarts without its memory gets another number
    memories: Vec<MemoryRecord>,
    empty_memory: MemoryRecord,
    /// Number of each server's present memory
    current: Vec<usize>,
    /// Begin of each fault, and what it affects
    pub(super) faults: Vec<(Nanos, Affected)>,
    /// Connections whose queue pairs at the servers are gone, with the logical time after which none of their
    /// requests may be executed
    ended: BTreeMap<u32, u64>,
    /// Connections for which that time is still to come, with the time of the world
    ending: VecDeque<(Nanos, u32)>,
    /// Time for which a switch may still forward requests after the queue pair at the server is gone
    forwarded_for: Nanos,
    /// Connections whose rights to words were revoked, with the time after which none of their requests may
    /// be executed
    revoked: BTreeMap<u32, Nanos>,
    /// Time of the world since [`EPOCH`](sim::EPOCH); used instead of the hosts' clocks, which may drift
    pub(super) now: Nanos,
    /// First violation
    pub(super) wrong: Option<String>,
    /// Connections to be set up again: number of the client, and index of the connection there
    pub(super) broken: Vec<(usize, usize)>,
    /// Whether the run may be over, or something has to be done from outside
    pub(super) check_needed: bool,
    pub(super) counts: Counts,
}

impl History {
    fn new(config: &Config) -> Self {
        let table = (config.words + config.pages) as usize;
        let memory = MemoryRecord {
            lost: u64::MAX,
            words: vec![Vec::new(); table],
            newest: vec![0; table],
            adds: vec![[0; ADD_BITS as usize]; table],
            pages: vec![Page::default(); config.pages as usize],
        };
        Self {
            clock: 0,
            values: 0,
            memories: vec![memory.clone(); config.servers.into()],
            empty_memory: memory,
            current: (0..config.servers.into()).collect(),
            faults: Vec::new(),
            ended: BTreeMap::new(),
            ending: VecDeque::new(),
            forwarded_for: config.forwarded_for,
            revoked: BTreeMap::new(),
            now: Nanos::ZERO,
            wrong: None,
            broken: Vec::new(),
            check_needed: false,
            counts: Counts::default(),
        }
    }

    fn tick(&mut self) -> u64 {
        while let Some((_, conn_id)) = self.ending.front().copied().filter(|(at, _)| *at < self.now) {
            self.ending.pop_front();
            self.ended.entry(conn_id).or_insert(self.clock);
        }
        self.clock += 1;
        self.clock
    }

    /// Records that the server's queue pair of a connection is gone.
    pub(super) fn end_connection(&mut self, conn_id: u32) {
        self.ending.push_back((self.now + self.forwarded_for, conn_id));
    }

    /// Records that the queue pair is gone, and that no switch holds requests of the connection that could
    /// still be executed.
    pub(super) fn end_connection_now(&mut self, conn_id: u32) {
        let now = self.tick();
        self.ended.entry(conn_id).or_insert(now);
    }

    pub(super) fn fail(&mut self, wrong: impl FnOnce() -> String) {
        self.check_needed = true;
        self.wrong.get_or_insert_with(wrong);
    }

    /// Returns a value that was never returned before. It is above all possible sums of additions.
    pub(super) fn unique_value(&mut self) -> u64 {
        self.values += 1;
        debug_assert!(self.values < 1 << (64 - ADDS), "unique values are used up");
        // The multiplier is odd, so no two products in this range are equal.
        self.values.wrapping_mul(0x9e_3779_b97f) << ADDS
    }

    /// Returns the next summand for a word: the power of two of which the fewest additions are incomplete, so
    /// that a sum reveals its summands. Returns 0 if additions may never complete and every bit has an
    /// incomplete one.
    pub(super) fn add(&mut self, server: usize, word: usize, may_fail: bool) -> u64 {
        let memory = &self.memories[server];
        let (adds, turn) = (&memory.adds[word], memory.words[word].len() as u32);
        let bits = (0..ADD_BITS).map(|n| (turn + n) % ADD_BITS);
        let bit = bits.min_by_key(|bit| adds[*bit as usize]).unwrap_or(0);
        if may_fail && adds[bit as usize] > 0 { 0 } else { 1 << bit }
    }

    /// Records that an operation is posted.
    pub(super) fn post(
        &mut self,
        server: usize,
        word: usize,
        conn_id: u32,
        fence: bool,
        action: Action,
    ) -> Recorded {
        let invoked = self.tick();
        self.count_add(server, word, action, |count| *count += 1);
        let history = &mut self.memories[server].words[word];
        history.push(Op { connection: conn_id, invoked, done: None, until: u64::MAX, fence, action });
        Recorded { memory: server, word, number: history.len() - 1, at: self.now }
    }

    /// Records that an operation has completed, with the value that it fetched, if it fetches one.
    pub(super) fn complete(&mut self, recorded: Recorded, fetched: u64) {
        let at = self.tick();
        let memory = &mut self.memories[recorded.memory];
        let op = &mut memory.words[recorded.word][recorded.number];
        if op.invoked > memory.lost {
            let conn_id = op.connection;
            self.fail(|| {
                format!(
                    "connection {conn_id}: a request completed that was posted after the loss of the memory"
                )
            });
            return;
        }
        let late = self.revoked.get(&op.connection).is_some_and(|after| recorded.at > *after);
        if late && op.action != Action::Read {
            let (conn_id, posted) = (op.connection, recorded.at);
            self.fail(|| {
                format!(
                    "connection {conn_id}: a request of {posted:?}, after the end of its rights, completed"
                )
            });
            return;
        }
        op.done = Some(Done { at, fetched });
        let (after, action) = (op.after(fetched), op.action);
        memory.newest[recorded.word] = after;
        self.count_add(recorded.memory, recorded.word, action, |count| *count -= 1);
    }

    fn count_add(&mut self, server: usize, word: usize, action: Action, count: impl Fn(&mut u32)) {
        if let Action::FetchAdd(add) = action
            && add != 0
        {
            count(&mut self.memories[server].adds[word][add.trailing_zeros() as usize]);
        }
    }

    /// Returns the latest value that any client has observed.
    pub(super) fn newest(&self, server: usize, word: usize) -> u64 {
        self.memories[server].newest[word]
    }

    /// Records that a section has got the lock of a page.
    pub(super) fn lock(&mut self, server: usize, page: usize, section: u64) {
        let memory = &mut self.memories[server];
        let before = memory.pages[page].holder.replace(section);
        if let Some(holder) = before {
            self.fail(|| {
                format!("page {page} of memory {server}: {section:#x} got the lock that {holder:#x} holds")
            });
        }
    }

    /// Returns the section that wrote a page last, which determines the contents that the lock's holder has
    /// to find.
    pub(super) fn page(&self, server: usize, page: usize) -> u64 {
        self.memories[server].pages[page].newest
    }

    /// Records that a section has posted the WRITE of its page and the release of the lock.
    pub(super) fn unlock(&mut self, server: usize, page: usize, section: u64) {
        self.memories[server].pages[page] = Page { holder: None, newest: section };
        self.counts.sections += 1;
    }

    /// Records that a server has lost its memory, and assigns it a new one.
    pub(super) fn lose_memory(&mut self, server: usize) {
        self.memories[self.current[server]].lost = self.clock;
        self.current[server] = self.memories.len();
        self.memories.push(self.empty_memory.clone());
    }

    /// Returns the number of a server's present memory.
    pub(super) fn memory_of(&self, server: usize) -> usize {
        self.current[server]
    }

    /// Records that a connection's rights to words are revoked: no request that is posted after `after` may
    /// be executed.
    pub(super) fn revoke(&mut self, conn_id: u32, after: Nanos) {
        self.revoked.insert(conn_id, after);
    }

    /// Returns whether a connection's rights are revoked, or it may break with one whose rights are.
    pub(super) fn is_revoked(&self, conn_id: u32, config: &Config) -> bool {
        self.revoked.contains_key(&conn_id) || (config.shares_fate && !self.revoked.is_empty())
    }

    /// Returns the number of faults so far that affect the connections of a client to a server.
    pub(super) fn faults_affecting(&self, client: usize, server: usize, now: Nanos) -> usize {
        let needed = [Affected::All, Affected::Client(client), Affected::Server(server)];
        self.faults.iter().filter(|(at, of)| *at <= now && needed.contains(of)).count()
    }

    /// Records that a connection has a new queue pair with all rights: its REQ arrived again after the server
    /// had restarted, or had given up waiting for the RTU.
    pub(super) fn grant(&mut self, conn_id: u32) {
        self.revoked.remove(&conn_id);
        self.ended.remove(&conn_id);
        self.ending.retain(|(_, ending)| *ending != conn_id);
    }

    /// Checks the words of a memory. `table` is its contents at the end; `None` if the memory is lost.
    pub(super) fn check(&self, memory: usize, table: Option<&[u8]>, rules: Rules) -> Result<(), String> {
        let MemoryRecord { words, lost, .. } = &self.memories[memory];
        for (word, ops) in words.iter().enumerate() {
            let over = |op: &Op| self.ended.get(&op.connection).map_or(*lost, |ended| *ended.min(lost));
            let ops: Vec<Op> = ops.iter().map(|op| Op { until: over(op), ..*op }).collect();
            let last = table.map(|table| {
                let bytes = table.get(word * 8..).and_then(|bytes| bytes.first_chunk());
                bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
            });
            linear::check(&ops, 0, last, rules)
                .map_err(|wrong| format!("word {word} of memory {memory}: {wrong}"))?;
        }
        Ok(())
    }

    /// Returns the numbers of the memories that were lost.
    pub(super) fn lost(&self) -> impl Iterator<Item = usize> {
        (0..self.memories.len()).filter(|memory| !self.current.contains(memory))
    }

    /// Returns the number of operations on words, and of those with an unknown outcome.
    pub(super) fn recorded(&self) -> (u64, u64) {
        let ops = self.memories.iter().flat_map(|memory| memory.words.iter().flatten());
        ops.fold((0, 0), |(all, unknown), op| (all + 1, unknown + u64::from(op.done.is_none())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: Rules = Rules { reads_in_order: true };

    fn history() -> History {
        History::new(&Config { words: 1, pages: 0, ..Config::default() })
    }

    #[test]
    fn operations_before_the_loss_of_a_memory_are_checked() {
        let mut history = history();
        let write = history.post(0, 0, 1, false, Action::Write(5));
        history.complete(write, 0);
        let read = history.post(0, 0, 2, false, Action::Read);
        history.complete(read, 0);
        history.lose_memory(0);
        let wrong = history.lost().try_for_each(|memory| history.check(memory, None, RULES)).unwrap_err();
        assert!(wrong.contains("word 0 of memory 0"), "{wrong}");
    }

    #[test]
    fn requests_posted_after_the_loss_of_a_memory_must_not_complete() {
        let mut history = history();
        let before = history.post(0, 0, 1, false, Action::Write(5));
        history.lose_memory(0);
        let after = history.post(0, 0, 1, false, Action::Write(6));
        history.complete(before, 0);
        assert_eq!(history.wrong, None, "the acknowledgement was in flight at the loss");
        history.complete(after, 0);
        assert!(history.wrong.is_some());
    }

    #[test]
    fn requests_must_not_execute_after_their_queue_pair_is_gone() {
        let seen = |at: u64| {
            let mut history = history();
            history.forwarded_for = Nanos(10);
            history.post(0, 0, 1, false, Action::Write(5));
            history.now = Nanos(100);
            history.end_connection(1);
            for (now, found) in [(Nanos(at), 0), (Nanos(at + 1), 5)] {
                history.now = now;
                let read = history.post(0, 0, 2, false, Action::Read);
                history.complete(read, found);
            }
            history.check(0, Some(&5u64.to_le_bytes()), RULES)
        };
        assert_eq!(seen(109), Ok(()));
        assert!(seen(111).is_err());
    }

    #[test]
    fn connection_continues_with_a_second_queue_pair() {
        let mut history = history();
        history.end_connection_now(1);
        history.grant(1);
        let write = history.post(0, 0, 1, false, Action::Write(5));
        history.complete(write, 0);
        assert_eq!(history.check(0, Some(&5u64.to_le_bytes()), RULES), Ok(()));
        history.post(0, 0, 1, false, Action::Write(6));
        assert_eq!(history.check(0, Some(&6u64.to_le_bytes()), RULES), Ok(()));
    }
}
