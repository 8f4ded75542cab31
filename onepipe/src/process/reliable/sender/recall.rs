//! Failure of a receiver: the scatterings that it has not acknowledged are aborted, and all of their runs are
//! recalled (1Pipe, section 5.2).

use crate::header::{OnePipe, Timestamp};
use crate::reliable::{RecallBody, RecallResult};
use std::collections::{BTreeMap, VecDeque};
use switch::Nanos;
use zerocopy::FromBytes;

use super::super::super::counters::Refusal;
use super::super::super::types::ProcessId;
use super::super::inbound::psn_of;
use super::super::receiver::Receiver;
use super::super::scattering::{Phase, Run, State};
use super::super::types::{Event, Failed, Failure, StoredRecall, ToController};
use super::Sender;

/// Progress of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Scatterings that it has aborted are not recalled, or an earlier case's are not.
    Recalling,
    /// The application's callback has not returned.
    Calling,
    Completed,
}

/// Cases of the controller, which are kept so that a repeated notice gets the same answer.
#[derive(Clone, Debug, Default)]
pub(super) struct Cases {
    stages: BTreeMap<u64, Stage>,
    /// Cases whose callbacks were not called, in order
    waiting: VecDeque<Waiting>,
    /// Cases whose callbacks were called, and the processes whose callbacks have not returned
    calling: BTreeMap<u64, Vec<ProcessId>>,
    /// Whether the application ends, so that its callbacks count as returned
    is_draining: bool,
}

/// Case whose callbacks were not called.
#[derive(Clone, Debug)]
struct Waiting {
    case: u64,
    failed: Box<[Failed]>,
    /// Number of scatterings that it waits for
    open: u32,
}

impl Sender {
    /// Handles the notice that incarnations have failed. `known` has the index, the number and the incarnation of
    /// those that are peers.
    pub(in super::super) fn on_failed(
        &mut self,
        case: u64,
        failed: &[Failed],
        known: &[(u32, ProcessId, u32)],
        receiver: &mut Receiver,
        now: Nanos,
    ) {
        let mut aborting = Vec::new();
        for &(peer, process, incarnation) in known {
            aborting.extend(self.abort_all((peer, process, incarnation), receiver, now));
        }
        // One that is aborted for two of the failed may be decided by now.
        aborting.retain(|&index| self.scatterings.get(index).phase == Phase::Aborting);
        aborting.sort_unstable();
        aborting.dedup();
        for &index in &aborting {
            self.scatterings.get_mut(index).cases.push(case);
        }
        self.cases.stages.insert(case, Stage::Recalling);
        let at = self.cases.waiting.partition_point(|other| other.case < case);
        self.cases.waiting.insert(at, Waiting { case, failed: failed.into(), open: aborting.len() as u32 });
        self.to_controller.push_back(ToController::Noticed { case });
        self.call_back();
    }

    /// Aborts the scatterings that a failed receiver has not acknowledged. Returns those to it that are being
    /// recalled.
    fn abort_all(
        &mut self,
        (peer, process, incarnation): (u32, ProcessId, u32),
        receiver: &mut Receiver,
        now: Nanos,
    ) -> Vec<u32> {
        let is_its = |run: &Run| (run.peer, run.incarnation) == (peer, incarnation);
        // Runs that are being recalled from it: the controller stores the recalls instead.
        for index in
            self.scatterings.find(|entry| entry.phase == Phase::Aborting && entry.runs.iter().any(is_its))
        {
            self.store_recalls(index, process, peer, incarnation);
        }
        let has_open = |run: &Run| is_its(run) && run.state != State::Acknowledged;
        let aborts =
            self.scatterings.find(|entry| entry.phase == Phase::Sending && entry.runs.iter().any(has_open));
        for &index in &aborts {
            self.abort(index, process, receiver, now);
        }
        self.scatterings.find(|entry| entry.phase == Phase::Aborting && entry.runs.iter().any(is_its))
    }

    /// Returns whether the notice of a case was handled.
    pub(in super::super) fn knows(&self, case: u64) -> bool {
        self.cases.stages.contains_key(&case)
    }

    /// Repeats the answers to a notice that is known. Returns whether it is.
    pub(in super::super) fn repeat_answers(&mut self, case: u64) -> bool {
        let Some(&stage) = self.cases.stages.get(&case) else { return false };
        self.to_controller.push_back(match stage {
            Stage::Recalling => ToController::Noticed { case },
            Stage::Calling => ToController::Recalled { case },
            Stage::Completed => ToController::Completed { case },
        });
        true
    }

    /// Calls back for all cases whose scatterings are recalled, in the order of the cases.
    fn call_back(&mut self) {
        while self.cases.waiting.front().is_some_and(|first| first.open == 0)
            && let Some(Waiting { case, failed, .. }) = self.cases.waiting.pop_front()
        {
            self.cases.stages.insert(case, Stage::Calling);
            self.cases.calling.insert(case, failed.iter().map(|failed| failed.process).collect());
            self.to_controller.push_back(ToController::Recalled { case });
            self.events.extend(failed.iter().copied().map(Event::ProcessFailed));
        }
        if self.cases.is_draining {
            self.end_callbacks();
        }
    }

    /// Counts callbacks as returned from now on, because the application ends.
    pub(in super::super) fn drain(&mut self) {
        self.cases.is_draining = true;
        self.end_callbacks();
    }

    fn end_callbacks(&mut self) {
        for (case, _) in core::mem::take(&mut self.cases.calling) {
            self.cases.stages.insert(case, Stage::Completed);
            self.to_controller.push_back(ToController::Completed { case });
        }
    }

    /// Records that the application's callback for a process has returned. Returns whether there was one.
    pub(in super::super) fn on_callback_done(&mut self, case: u64, process: ProcessId) -> bool {
        let Some(open) = self.cases.calling.get_mut(&case) else { return false };
        let Some(at) = open.iter().position(|&other| other == process) else { return false };
        open.swap_remove(at);
        if open.is_empty() {
            self.cases.calling.remove(&case);
            self.cases.stages.insert(case, Stage::Completed);
            self.to_controller.push_back(ToController::Completed { case });
        }
        true
    }

    /// Returns the greatest number of a case up to which all that are known are completed, or 0.
    pub(in super::super) fn completed_up_to(&self) -> u64 {
        let completed = self.cases.stages.iter().take_while(|(_, stage)| **stage == Stage::Completed);
        completed.last().map_or(0, |(&case, _)| case)
    }

    /// Aborts a scattering, because a receiver that has not acknowledged it has failed.
    fn abort(&mut self, index: u32, failed: ProcessId, receiver: &mut Receiver, now: Nanos) {
        let entry = self.scatterings.get_mut(index);
        entry.phase = Phase::Aborting;
        entry.failed.push(failed);
        let mut freed = Vec::new();
        for run in 0..entry.runs.len() as u32 {
            let (peer, state) = {
                let run = self.scatterings.get(index).run(run);
                (run.peer, run.state)
            };
            if peer == self.own_index() {
                self.abort_own(index, run, receiver);
                continue;
            }
            if matches!(state, State::Waiting | State::Ready)
                && let Some(outbound) = &mut self.receivers[peer as usize]
            {
                outbound.remove((index, run));
                freed.push(peer);
            }
            let state = self.recall_run(index, run);
            self.scatterings.get_mut(index).run_mut(run).state = state;
        }
        let entry = self.scatterings.get_mut(index);
        entry.open = entry.runs.iter().filter(|run| run.state == State::Recalling).count() as u32;
        for peer in freed {
            self.advance(peer, now);
        }
        self.advance_own(receiver);
        self.fail_if_recalled(index);
    }

    /// Aborts a run of this process to itself.
    fn abort_own(&mut self, index: u32, run: u32, receiver: &mut Receiver) {
        let entry = self.scatterings.get_mut(index);
        match (entry.run(run).state, entry.time) {
            (State::Acknowledged, Some(time)) => receiver.recall_own(time),
            (State::Ready, _) => {
                receiver.release_own(entry.cost(run));
                self.is_own_ready = false;
                self.own_queue.pop_front();
            }
            _ => self.own_queue.retain(|&other| other != (index, run)),
        }
        self.scatterings.get_mut(index).run_mut(run).state = State::Recalled;
    }

    /// Recalls what was sent of a run. Returns the run's new state.
    fn recall_run(&mut self, index: u32, run: u32) -> State {
        let entry = self.scatterings.get(index);
        let (time, run_of) = (entry.time, entry.run(run));
        let (peer, incarnation) = (run_of.peer, run_of.incarnation);
        let Some(positions) = run_of.positions() else { return State::Recalled };
        if let Some(outbound) = &mut self.receivers[peer as usize]
            && outbound.incarnation == incarnation
        {
            outbound.recall((index, run), positions, time);
            self.add_control(peer);
            return State::Recalling;
        }
        // A failed receiver cannot have all packets of a run that was not stamped.
        let Some(time) = time else { return State::Recalled };
        self.store_recall(peer, incarnation, time, positions);
        State::Recalling
    }

    fn store_recall(&mut self, peer: u32, incarnation: u32, time: u64, (first, last): (u64, u64)) {
        let (sender, receiver) = (self.ids[self.own_index() as usize], self.ids[peer as usize]);
        let timestamp = Timestamp::new(time).nanos();
        let packets = (psn_of(first).get(), psn_of(last).get());
        let recall = StoredRecall { sender, receiver, incarnation, timestamp, packets };
        self.to_controller.push_back(ToController::StoreRecall(recall));
    }

    /// Has the recalls of a scattering stored that a failed receiver has not answered.
    fn store_recalls(&mut self, index: u32, process: ProcessId, peer: u32, incarnation: u32) {
        let entry = self.scatterings.get_mut(index);
        entry.failed.push(process);
        let time = entry.time;
        let is_its =
            |run: &Run| (run.peer, run.incarnation, run.state) == (peer, incarnation, State::Recalling);
        let Some(run) = entry.runs.iter().position(is_its) else { return };
        let positions = entry.run(run as u32).positions();
        match time.zip(positions) {
            Some((time, positions)) => self.store_recall(peer, incarnation, time, positions),
            None => self.on_run_recalled(index, run as u32),
        }
    }

    /// Handles the answer to a recall.
    pub(in super::super) fn on_recall_ack(
        &mut self,
        peer: u32,
        header: &OnePipe,
        payload: &[u8],
    ) -> Result<(), Refusal> {
        let (body, _) = RecallBody::read_from_prefix(payload).map_err(|_| Refusal::NoHeader)?;
        let result = body.result().ok_or(Refusal::Recall)?;
        let (first, last) = body.packets();
        if header.psn() != last {
            return Err(Refusal::Recall);
        }
        let outbound = self.receivers[peer as usize].as_mut().ok_or(Refusal::OtherIncarnation)?;
        let recall = outbound.take_recall(first, last).ok_or(Refusal::Answer)?;
        if result == RecallResult::Delivered {
            self.counters.recalled_late.add(1);
        }
        self.on_run_recalled(recall.run.0, recall.run.1);
        Ok(())
    }

    /// Handles the controller's answer that it has stored a recall. Returns whether it was awaited.
    pub(in super::super) fn on_recall_stored(&mut self, recall: &StoredRecall) -> bool {
        let has_time = |time: u64| Timestamp::new(time).nanos() == recall.timestamp;
        let found =
            self.scatterings.find(|entry| entry.phase == Phase::Aborting && entry.time.is_some_and(has_time));
        let Some(&index) = found.first() else { return false };
        let is_its = |run: &Run| {
            (self.ids[run.peer as usize], run.incarnation) == (recall.receiver, recall.incarnation)
                && run.state == State::Recalling
        };
        let Some(run) = self.scatterings.get(index).runs.iter().position(is_its) else { return false };
        self.on_run_recalled(index, run as u32);
        true
    }

    fn on_run_recalled(&mut self, index: u32, run: u32) {
        let entry = self.scatterings.get_mut(index);
        entry.run_mut(run).state = State::Recalled;
        entry.open -= 1;
        self.fail_if_recalled(index);
    }

    /// Decides an aborted scattering if every run is recalled, and calls back for the cases that it has kept.
    fn fail_if_recalled(&mut self, index: u32) {
        let entry = self.scatterings.get_mut(index);
        if entry.open > 0 || entry.phase != Phase::Aborting {
            return;
        }
        let (failed, cases) = (core::mem::take(&mut entry.failed), core::mem::take(&mut entry.cases));
        let why = |dst| if failed.contains(&dst) { Failure::Dead } else { Failure::Recalled };
        self.fail_scattering(index, why);
        self.close_cases(&cases);
    }

    /// Records that a scattering is decided for which these cases wait.
    fn close_cases(&mut self, cases: &[u64]) {
        for waiting in &mut self.cases.waiting {
            waiting.open -= u32::from(cases.contains(&waiting.case));
        }
        self.call_back();
    }

    /// Commits a scattering that is being recalled (a planted bug).
    pub(super) fn commit_in_spite_of_recalls(&mut self, index: u32) {
        let cases = core::mem::take(&mut self.scatterings.get_mut(index).cases);
        self.commit_scattering(index);
        self.close_cases(&cases);
        for outbound in self.receivers.iter_mut().flatten() {
            outbound.forget_recalls(index);
        }
    }
}
