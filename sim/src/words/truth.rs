//! What clients asked for and saw. It outlives all of them.

use super::linear::{self, Action, Done, Op, Rules};
use super::{Config, Verb};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use switch::Nanos;

/// Bits of a value in which additions add up
const ADDS: u32 = 45;
/// Bits that are added, each for itself
const ADD_BITS: u32 = 40;

/// The truth, as all hosts know it.
#[derive(Clone, Debug)]
pub(super) struct Shared(Arc<Mutex<Truth>>);

impl Shared {
    pub(super) fn new(config: &Config) -> Self {
        Self(Arc::new(Mutex::new(Truth::new(config))))
    }

    pub(super) fn get(&self) -> MutexGuard<'_, Truth> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An operation on a word: which one of its history
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Recorded {
    /// The memory, by number
    pub(super) memory: usize,
    pub(super) word: usize,
    number: usize,
    /// When it was posted
    at: Nanos,
}

/// What a fault happens to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Touched {
    Client(usize),
    Server(usize),
    All,
}

/// A page of a server.
#[derive(Clone, Copy, Debug, Default)]
struct Page {
    /// The section that knows that it has the lock
    holder: Option<u64>,
    /// The section that wrote it last
    newest: u64,
}

/// What a server's memory is used for.
#[derive(Clone, Debug)]
struct Served {
    /// The moment at which it was lost; `u64::MAX` if it was not
    lost: u64,
    words: Vec<Vec<Op>>,
    /// What was seen last
    newest: Vec<u64>,
    /// Additions of each bit that have not completed, by word
    adds: Vec<[u32; ADD_BITS as usize]>,
    pages: Vec<Page>,
}

/// What is counted.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) operations: [u64; Verb::ALL.len()],
    pub(super) swapped: u64,
    pub(super) sections: u64,
    pub(super) tries: u64,
    pub(super) broken: u64,
    pub(super) longest_wait: Nanos,
}

/// What clients asked for and saw.
#[derive(Debug)]
pub(super) struct Truth {
    clock: u64,
    /// Values that were given out
    values: u64,
    /// A server that restarts has another memory, which is empty
    memories: Vec<Served>,
    empty: Served,
    /// The memory that each server has now
    current: Vec<usize>,
    /// When faults begin, and what they happen to
    pub(super) faults: Vec<(Nanos, Touched)>,
    /// Lines whose queue pairs at their servers are gone, and the moment from which on nothing of theirs may be done
    ended: BTreeMap<u32, u64>,
    /// Those of which that is yet to come, and when
    ending: VecDeque<(Nanos, u32)>,
    /// For how long what a switch has of a line may be done when its queue pair at the server is gone
    outlives: Nanos,
    /// Lines whose rights to words were revoked, and when nothing that they ask for may be done any more
    revoked: BTreeMap<u32, Nanos>,
    /// The time of the world, from [`EPOCH`](crate::EPOCH) on: hosts' clocks may drift
    pub(super) now: Nanos,
    /// The first thing that must not be
    pub(super) wrong: Option<String>,
    /// Connections to be made anew: of which client, and which of its
    pub(super) broken: Vec<(usize, usize)>,
    /// Something may be over
    pub(super) news: bool,
    pub(super) counts: Counts,
}

impl Truth {
    fn new(config: &Config) -> Self {
        let table = (config.words + config.pages) as usize;
        let memory = Served {
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
            empty: memory,
            current: (0..config.servers.into()).collect(),
            faults: Vec::new(),
            ended: BTreeMap::new(),
            ending: VecDeque::new(),
            outlives: config.outlives,
            revoked: BTreeMap::new(),
            now: Nanos::ZERO,
            wrong: None,
            broken: Vec::new(),
            news: false,
            counts: Counts::default(),
        }
    }

    fn tick(&mut self) -> u64 {
        while let Some((_, line)) = self.ending.front().copied().filter(|(at, _)| *at < self.now) {
            self.ending.pop_front();
            self.ended.entry(line).or_insert(self.clock);
        }
        self.clock += 1;
        self.clock
    }

    /// Notes that a server's queue pair of a line is gone.
    pub(super) fn end(&mut self, line: u32) {
        self.ending.push_back((self.now + self.outlives, line));
    }

    /// Notes that it is gone, and that no switch has anything of the line that could still be done.
    pub(super) fn end_now(&mut self, line: u32) {
        let now = self.tick();
        self.ended.entry(line).or_insert(now);
    }

    pub(super) fn fail(&mut self, wrong: impl FnOnce() -> String) {
        self.news = true;
        self.wrong.get_or_insert_with(wrong);
    }

    /// A value that was never given out before, above what additions come to
    pub(super) fn fresh(&mut self) -> u64 {
        self.values += 1;
        debug_assert!(self.values < 1 << (64 - ADDS), "values come again");
        // Of as many as there are, no two are equal.
        self.values.wrapping_mul(0x9e_3779_b97f) << ADDS
    }

    /// What is added to a word next: a power of two that as few as can be add of those that have not completed. So a sum
    /// tells what it is made of. Where some may never complete, nothing, if others add all of them.
    pub(super) fn add(&mut self, server: usize, word: usize, may_fail: bool) -> u64 {
        let memory = &self.memories[server];
        let (adds, turn) = (&memory.adds[word], memory.words[word].len() as u32);
        let bits = (0..ADD_BITS).map(|n| (turn + n) % ADD_BITS);
        let bit = bits.min_by_key(|bit| adds[*bit as usize]).unwrap_or(0);
        if may_fail && adds[bit as usize] > 0 { 0 } else { 1 << bit }
    }

    /// An operation is posted.
    pub(super) fn post(
        &mut self,
        server: usize,
        word: usize,
        line: u32,
        fence: bool,
        action: Action,
    ) -> Recorded {
        let invoked = self.tick();
        self.count_add(server, word, action, |count| *count += 1);
        let history = &mut self.memories[server].words[word];
        history.push(Op { connection: line, invoked, done: None, until: u64::MAX, fence, action });
        Recorded { memory: server, word, number: history.len() - 1, at: self.now }
    }

    /// It has completed. Of a WRITE, nothing is fetched.
    pub(super) fn complete(&mut self, recorded: Recorded, fetched: u64) {
        let at = self.tick();
        let memory = &mut self.memories[recorded.memory];
        let op = &mut memory.words[recorded.word][recorded.number];
        if op.invoked > memory.lost {
            let line = op.connection;
            self.fail(|| format!("line {line}: what was posted when its server had lost its memory is done"));
            return;
        }
        let late = self.revoked.get(&op.connection).is_some_and(|after| recorded.at > *after);
        if late && op.action != Action::Read {
            let (line, posted) = (op.connection, recorded.at);
            self.fail(|| {
                format!(
                    "line {line}: what was posted at {posted:?} is done, long after its rights were revoked"
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

    /// What anybody has seen last
    pub(super) fn newest(&self, server: usize, word: usize) -> u64 {
        self.memories[server].newest[word]
    }

    /// A section has got the lock of a page.
    pub(super) fn lock(&mut self, server: usize, page: usize, section: u64) {
        let memory = &mut self.memories[server];
        let before = memory.pages[page].holder.replace(section);
        if let Some(holder) = before {
            self.fail(|| {
                format!("page {page} of server {server}: {section:#x} got the lock that {holder:#x} has")
            });
        }
    }

    /// What the holder of the lock has to find: which section wrote it.
    pub(super) fn page(&self, server: usize, page: usize) -> u64 {
        self.memories[server].pages[page].newest
    }

    /// A section has posted what it writes and, behind it, that the lock is free.
    pub(super) fn unlock(&mut self, server: usize, page: usize, section: u64) {
        self.memories[server].pages[page] = Page { holder: None, newest: section };
        self.counts.sections += 1;
    }

    /// A server has lost its memory, and will have another one.
    pub(super) fn forget(&mut self, server: usize) {
        self.memories[self.current[server]].lost = self.clock;
        self.current[server] = self.memories.len();
        self.memories.push(self.empty.clone());
    }

    /// The memory that a server has now, by number
    pub(super) fn memory_of(&self, server: usize) -> usize {
        self.current[server]
    }

    /// A line's rights to words are revoked: what is posted after this time is not to be done.
    pub(super) fn revoke(&mut self, line: u32, after: Nanos) {
        self.revoked.insert(line, after);
    }

    /// Whether a line has no right to words any more, or shares the fate of one that has none
    pub(super) fn is_revoked(&self, line: u32, config: &Config) -> bool {
        self.revoked.contains_key(&line) || (config.shares_fate && !self.revoked.is_empty())
    }

    /// How many faults have happened so far to what the connections of a client to a server need
    pub(super) fn touches(&self, client: usize, server: usize, now: Nanos) -> usize {
        let needed = [Touched::All, Touched::Client(client), Touched::Server(server)];
        self.faults.iter().filter(|(at, of)| *at <= now && needed.contains(of)).count()
    }

    /// Notes that a line has a new queue pair, with all rights: its REQ came again after its server had restarted, or had given
    /// up to wait for the RTU.
    pub(super) fn grant(&mut self, line: u32) {
        self.revoked.remove(&line);
        self.ended.remove(&line);
        self.ending.retain(|(_, ending)| *ending != line);
    }

    /// Says what cannot be of the words of a memory that holds this in the end, unless it is lost.
    pub(super) fn check(&self, memory: usize, table: Option<&[u8]>, rules: Rules) -> Result<(), String> {
        let Served { words, lost, .. } = &self.memories[memory];
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

    /// Memories that were lost, by number
    pub(super) fn lost(&self) -> impl Iterator<Item = usize> {
        (0..self.memories.len()).filter(|memory| !self.current.contains(memory))
    }

    /// Operations on words: all, and those of which nobody knows whether they took effect
    pub(super) fn recorded(&self) -> (u64, u64) {
        let ops = self.memories.iter().flat_map(|memory| memory.words.iter().flatten());
        ops.fold((0, 0), |(all, unknown), op| (all + 1, unknown + u64::from(op.done.is_none())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: Rules = Rules { reads_in_order: true };

    fn truth() -> Truth {
        Truth::new(&Config { words: 1, pages: 0, ..Config::default() })
    }

    #[test]
    fn what_preceded_the_loss_of_a_memory_is_checked() {
        let mut truth = truth();
        let write = truth.post(0, 0, 1, false, Action::Write(5));
        truth.complete(write, 0);
        let read = truth.post(0, 0, 2, false, Action::Read);
        truth.complete(read, 0);
        truth.forget(0);
        let wrong = truth.lost().try_for_each(|memory| truth.check(memory, None, RULES)).unwrap_err();
        assert!(wrong.contains("word 0 of memory 0"), "{wrong}");
    }

    #[test]
    fn nothing_is_done_in_a_memory_that_is_lost() {
        let mut truth = truth();
        let before = truth.post(0, 0, 1, false, Action::Write(5));
        truth.forget(0);
        let after = truth.post(0, 0, 1, false, Action::Write(6));
        truth.complete(before, 0);
        assert_eq!(truth.wrong, None, "its acknowledgement was on its way");
        truth.complete(after, 0);
        assert!(truth.wrong.is_some());
    }

    #[test]
    fn nothing_is_done_for_a_queue_pair_that_is_gone() {
        let seen = |at: u64| {
            let mut truth = truth();
            truth.outlives = Nanos(10);
            truth.post(0, 0, 1, false, Action::Write(5));
            truth.now = Nanos(100);
            truth.end(1);
            for (now, found) in [(Nanos(at), 0), (Nanos(at + 1), 5)] {
                truth.now = now;
                let read = truth.post(0, 0, 2, false, Action::Read);
                truth.complete(read, found);
            }
            truth.check(0, Some(&5u64.to_le_bytes()), RULES)
        };
        assert_eq!(seen(109), Ok(()));
        assert!(seen(111).is_err());
    }

    #[test]
    fn a_line_goes_on_with_a_second_queue_pair() {
        let mut truth = truth();
        truth.end_now(1);
        truth.grant(1);
        let write = truth.post(0, 0, 1, false, Action::Write(5));
        truth.complete(write, 0);
        assert_eq!(truth.check(0, Some(&5u64.to_le_bytes()), RULES), Ok(()));
        truth.post(0, 0, 1, false, Action::Write(6));
        assert_eq!(truth.check(0, Some(&6u64.to_le_bytes()), RULES), Ok(()));
    }
}
