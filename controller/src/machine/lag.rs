//! Members whose clocks fall behind for good: each delays commit everywhere by as much (1Pipe, section 6.2.1).
//!
//! The leader asks all members for their clocks. What it relies on does not depend on delays: a clock that was right
//! shows at least the time of the question, and at most that of the answer. A member fails if it is certainly behind
//! this controller's clock and behind the others, of which a wrong minority decides nothing: so fast clocks of others
//! alone never fail a member, nor does a fast clock of the controller alone. (A register would not do: a sender's
//! commit value also stands still while a receiver whose clock is slow refuses its messages.)

use super::{Alarm, Bug, Machine, NodeKey};
use onepipe::control::Message;
use onepipe::{ProcessId, Timestamp};
use std::collections::{BTreeMap, BTreeSet};
use switch::Nanos;

/// Members without whose answers nothing is compared
const MEMBERS_MIN: usize = 3;
/// Questions one after the other after which a member that is behind fails, so it was behind for `respond_within`
const QUESTIONS: u32 = 2;

/// By how much a clock is behind the controller's, in nanoseconds; negative if it is ahead.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    least: i64,
    most: i64,
}

/// What the leader knows of its members' clocks.
#[derive(Clone, Debug, Default)]
pub(super) struct Clocks {
    /// Number of the last question
    number: u32,
    /// Time and clock of the last question
    asked: Option<(Nanos, u64)>,
    answers: BTreeMap<ProcessId, Bounds>,
    /// By member: number of questions since which it has been behind
    behind: BTreeMap<ProcessId, u32>,
    /// Processes that failed for their clocks, until they register with a right one
    slow: BTreeSet<ProcessId>,
}

impl Clocks {
    /// Returns whether a process failed for its clock, and has not registered with a right one since.
    pub(super) fn is_slow(&self, id: ProcessId) -> bool {
        self.slow.contains(&id)
    }

    /// Forgets that a process failed for its clock.
    pub(super) fn forgive(&mut self, id: ProcessId) {
        self.slow.remove(&id);
    }

    /// Returns the member that is behind the median of the others, and the clock of the controller, by more than
    /// `bound` nanoseconds: the most, if there are several.
    fn slowest(&self, bound: i64, ignores_controller: bool) -> Option<(ProcessId, i64)> {
        let (&slowest, bounds) = self.answers.iter().max_by_key(|(_, bounds)| bounds.least)?;
        let mut others: Vec<_> =
            self.answers.iter().filter(|(id, _)| **id != slowest).map(|(_, bounds)| bounds.most).collect();
        others.sort_unstable();
        // Of two medians the slower one
        let median = *others.get(others.len() / 2)?;
        let behind_controller = if ignores_controller { i64::MAX } else { bounds.least };
        let by = behind_controller.min(bounds.least.saturating_sub(median));
        (self.answers.len() >= MEMBERS_MIN && by > bound).then_some((slowest, by))
    }
}

impl Machine {
    /// Returns when members are to be asked for their clocks, if they are.
    pub(super) fn clocks_due(&self) -> Option<Nanos> {
        let leader = self.leader();
        if self.config.behind_max.is_none() || leader.has_open_case() {
            return None;
        }
        match leader.clocks.asked {
            Some((at, _)) => Some(at + self.config.respond_within),
            None => (leader.members().len() >= MEMBERS_MIN).then_some(self.now),
        }
    }

    /// Asks members for their clocks, and declares one failed that is behind for good.
    pub(super) fn watch_clocks(&mut self) {
        let (Some(due), Some(behind_max)) = (self.clocks_due(), self.config.behind_max) else {
            // Members answer to what has to be decided; then they are compared afresh.
            let clocks = &mut self.leader_mut().clocks;
            (clocks.asked, clocks.answers, clocks.behind) = (None, BTreeMap::new(), BTreeMap::new());
            return;
        };
        if self.now < due {
            return;
        }
        let ignores_controller = self.has(Bug::FastClocksBelieved);
        let clocks = &mut self.leader_mut().clocks;
        let slowest = clocks.slowest(behind_max.0 as i64, ignores_controller);
        clocks.behind.retain(|id, _| slowest.is_some_and(|(slowest, _)| slowest == *id));
        if let Some((id, by)) = slowest {
            let count = clocks.behind.entry(id).or_default();
            *count += 1;
            if *count >= QUESTIONS {
                clocks.slow.insert(id);
                self.alarm(Alarm::Behind(id, by.unsigned_abs()));
                return self.declare_failed(id);
            }
        }
        let asked = Some((self.now, self.clock));
        let clocks = &mut self.leader_mut().clocks;
        (clocks.asked, clocks.answers) = (asked, BTreeMap::new());
        clocks.number = clocks.number.wrapping_add(1);
        let number = clocks.number;
        for id in self.leader().members() {
            self.send(NodeKey::Process(id), Message::AskClock { number });
        }
    }

    /// Takes a member's clock.
    pub(super) fn take_clock(&mut self, id: ProcessId, number: u32, clock: Timestamp) {
        let now = self.clock;
        let clocks = &mut self.leader_mut().clocks;
        match clocks.asked {
            Some((_, asked)) if clocks.number == number => {
                let behind = |time: u64| Timestamp::new(time).distance(clock);
                clocks.answers.insert(id, Bounds { least: behind(asked), most: behind(now) });
            }
            _ => self.counts.ignored += 1,
        }
    }
}
