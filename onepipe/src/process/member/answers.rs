//! The process's answers and recalls for the controller, and their repetition.

use super::repeat::Repeat;
use super::{Bug, Member};
use crate::control::{self, Incarnation, Message};
use crate::header::Timestamp;
use crate::process::reliable::{StoredRecall, ToController};
use std::collections::{BTreeMap, VecDeque};
use switch::Nanos;

/// Number of recalls in one message
const BATCH: usize = 500;
/// Number of times that an answer is repeated. The controller asks again for what it has not got: it repeats the
/// notice when it leads again, and when this process connects.
const MAX_REPEATS: u32 = 8;

/// Answers to notices, each of which includes the ones before.
#[derive(Clone, Debug)]
pub(super) struct Answers {
    template: Repeat,
    /// By case: the latest answer, and how often it was sent
    by_case: BTreeMap<u64, (Message, Repeat, u32)>,
}

impl Answers {
    pub(super) const fn new(template: Repeat) -> Self {
        Self { template, by_case: BTreeMap::new() }
    }

    pub(super) fn clear(&mut self) {
        self.by_case.clear();
    }

    /// Makes all answers due.
    pub(super) fn restart(&mut self, now: Nanos) {
        self.by_case.values_mut().for_each(|(_, repeat, _)| repeat.restart(now));
    }

    fn set(&mut self, case: u64, message: Message, now: Nanos) {
        let mut repeat = self.template;
        repeat.soon(now);
        self.by_case.insert(case, (message, repeat, 0));
    }

    /// Returns the answers that are due again.
    pub(super) fn take_due(&mut self, now: Nanos) -> Vec<Message> {
        let mut due = Vec::new();
        self.by_case.retain(|_, (message, repeat, times)| {
            if repeat.take(now) {
                *times += 1;
                due.push(message.clone());
            }
            *times < MAX_REPEATS
        });
        due
    }

    pub(super) fn next_timer(&self) -> Option<Nanos> {
        self.by_case.values().map(|(_, repeat, _)| repeat.at()).min()
    }
}

/// Recalls to be stored: one batch at a time, until it is.
#[derive(Clone, Debug)]
pub(super) struct Recalls {
    waiting: VecDeque<StoredRecall>,
    /// Number of the present batch, or of the last one
    number: u32,
    batch: Vec<StoredRecall>,
    pub(super) repeat: Repeat,
}

impl Recalls {
    pub(super) const fn new(repeat: Repeat) -> Self {
        Self { waiting: VecDeque::new(), number: 0, batch: Vec::new(), repeat }
    }

    pub(super) fn clear(&mut self) {
        self.waiting.clear();
        self.batch.clear();
    }

    fn add(&mut self, recall: StoredRecall) {
        if !self.waiting.contains(&recall) {
            self.waiting.push_back(recall);
        }
    }

    /// Makes a batch of what waits, if none is under way. All recalls of a notice go into one, so that a store writes
    /// once.
    pub(super) fn start(&mut self, now: Nanos) {
        if self.batch.is_empty() && !self.waiting.is_empty() {
            let count = self.waiting.len().min(BATCH);
            self.batch.extend(self.waiting.drain(..count));
            self.number += 1;
            self.repeat.restart(now);
        }
    }

    /// Returns the batch if it is due.
    pub(super) fn take_due(&mut self, now: Nanos) -> Option<Message> {
        if self.batch.is_empty() || !self.repeat.take(now) {
            return None;
        }
        let recall = |recall: &StoredRecall| control::StoredRecall {
            to: recall.receiver,
            incarnation: Incarnation(recall.incarnation),
            time: Some(Timestamp::new(recall.timestamp)),
            first: recall.packets.0,
            last: recall.packets.1,
        };
        let recalls = self.batch.iter().map(recall).collect();
        Some(Message::StoreRecalls { batch: self.number, recalls })
    }

    /// Removes and returns the batch that is stored, if it is the present one.
    pub(super) fn take_stored(&mut self, number: u32, now: Nanos) -> Option<Vec<StoredRecall>> {
        if number != self.number || self.batch.is_empty() {
            return None;
        }
        let stored = core::mem::take(&mut self.batch);
        self.start(now);
        Some(stored)
    }

    pub(super) fn next_timer(&self) -> Option<Nanos> {
        (!self.batch.is_empty()).then_some(self.repeat.at())
    }
}

impl Member {
    /// Sends what the process has for the controller.
    pub(super) fn answer(&mut self, message: ToController, now: Nanos) {
        let (case, answer) = match message {
            ToController::StoreRecall(recall) => {
                self.recalls.add(recall);
                return;
            }
            ToController::Noticed { case } => (case, Message::Noticed { case }),
            ToController::Recalled { case } if self.has_bug(Bug::CompletedEarly) => {
                (case, Message::Completed { case })
            }
            ToController::Recalled { case } => (case, Message::Recalled { case }),
            ToController::Completed { case } => (case, Message::Completed { case }),
        };
        self.answers.set(case, answer.clone(), now);
        self.send(answer);
    }
}
