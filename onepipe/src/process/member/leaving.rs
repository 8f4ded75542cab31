//! Leaving: of this process, and of others.
//!
//! A process leaves without a failure in this order: it sends no more, and its scatterings are decided
//! ([`Message::Leave`]); the others have decided theirs to it, and send it no more ([`Message::Leaving`], which all
//! have to acknowledge); it delivers what it has acknowledged; the controller stores that it has left
//! ([`Message::Left`]). It repeats its request until then, so the controller has nothing to remember before.

use super::repeat::Repeat;
use super::{Bug, Member, Refused, Stage};
use crate::control::{Incarnation, Message};
use crate::process::{Process, ProcessId};
use switch::Nanos;

/// Departures of this process and of others.
#[derive(Clone, Debug)]
pub(super) struct Departures {
    template: Repeat,
    /// Repetition of this process's request, if it leaves
    request: Option<Repeat>,
    /// Number of the controller's last answer that nothing more is sent to this process, or 0
    permitted: u64,
    has_left: bool,
    /// Members that leave, to which this process has scatterings that are not decided
    undecided: Vec<(ProcessId, Incarnation)>,
}

impl Departures {
    pub(super) const fn new(template: Repeat) -> Self {
        Self { template, request: None, permitted: 0, has_left: false, undecided: Vec::new() }
    }

    /// Returns the time at which the request is repeated.
    pub(super) fn next_timer(&self) -> Option<Nanos> {
        self.request.filter(|_| !self.has_left).map(|repeat| repeat.at())
    }

    /// Makes the request due.
    pub(super) fn restart(&mut self, now: Nanos) {
        if let Some(request) = &mut self.request {
            request.restart(now);
        }
    }

    /// Forgets the members of an earlier incarnation.
    pub(super) fn clear(&mut self) {
        self.undecided.clear();
    }
}

impl Member {
    /// Leaves: the process accepts no more reliable messages, and the controller is asked to let it go. Call
    /// [`Process::leave`] when it [`may_end`](Self::may_end), or after a time: if it has not left by then, the
    /// controller finds the process failed. Until then everything goes on.
    pub fn leave(&mut self, process: &mut Process, now: Nanos) {
        if self.departures.request.is_none() {
            process.drain();
            let mut request = self.departures.template;
            request.restart(now);
            self.departures.request = Some(request);
            self.on_timer(process, now);
        }
    }

    /// Returns whether this process [leaves](Self::leave), and the controller has agreed, or needs not: the process
    /// is no member.
    pub fn has_left(&self) -> bool {
        let is_out = match self.stage {
            // A request to join that was sent may be granted.
            Stage::Registering => !self.awaits_answer,
            Stage::Joined => self.departures.has_left,
            Stage::Recovering => true,
        };
        is_out && self.is_leaving()
    }

    /// Returns whether this process [has left](Self::has_left), and the application has received all that was sent to
    /// it: a message of the reliable service that is received in one order with best effort may wait for the
    /// best-effort barrier after all have agreed.
    pub fn may_end(&self, process: &Process) -> bool {
        let is_member = self.stage == Stage::Joined && !self.has_bug(Bug::LeavesWithMessages);
        self.has_left() && !(is_member && process.held_reliable() > 0)
    }

    pub(super) const fn is_leaving(&self) -> bool {
        self.departures.request.is_some()
    }

    /// Sends this process's request if it is due, and the acknowledgements for members that leave.
    pub(super) fn advance_departures(&mut self, process: &mut Process, now: Nanos) {
        let mut undecided = core::mem::take(&mut self.departures.undecided);
        undecided.retain(|&(id, incarnation)| {
            let is_decided = process.member_leaving(id, incarnation.0) == Ok(true);
            if is_decided {
                self.send(Message::LeavingAck { id, incarnation });
            }
            !is_decided
        });
        self.departures.undecided = undecided;
        let is_due = !self.departures.has_left
            && self.departures.request.as_mut().is_some_and(|request| request.take(now));
        if is_due && process.unsettled_reliable() == 0 {
            let is_empty = process.has_delivered_all() || self.has_bug(Bug::LeavesWithMessages);
            let (time, barrier) = (process.timestamp(now), process.delivered_up_to());
            let delivered = if is_empty { self.departures.permitted } else { 0 };
            self.send(Message::Leave { time, barrier, delivered });
        }
    }

    /// Handles the notice that a member leaves.
    pub(super) fn on_leaving(
        &mut self,
        of: (ProcessId, Incarnation),
        process: &mut Process,
    ) -> Result<(), Refused> {
        let (id, incarnation) = of;
        if id == self.id {
            return Err(Refused::Unexpected);
        }
        let is_decided =
            process.member_leaving(id, incarnation.0).map_err(|error| self.refuse_member(error))?;
        if is_decided {
            self.send(Message::LeavingAck { id, incarnation });
        } else if !self.departures.undecided.contains(&of) {
            self.departures.undecided.push(of);
        }
        Ok(())
    }

    /// Handles the answer that nothing more is sent to this process.
    pub(super) fn on_may_leave(
        &mut self,
        number: u64,
        process: &mut Process,
        now: Nanos,
    ) -> Result<(), Refused> {
        let request = self.departures.request.as_mut().ok_or(Refused::Unexpected)?;
        let is_new = core::mem::replace(&mut self.departures.permitted, number) != number;
        // What waits for the barrier is delivered soon.
        if is_new && process.has_delivered_all() {
            request.restart(now);
        } else {
            request.soon(now);
        }
        self.advance_departures(process, now);
        Ok(())
    }

    /// Handles the notice that a process has left.
    pub(super) fn on_left(
        &mut self,
        (id, incarnation): (ProcessId, Incarnation),
        process: &mut Process,
    ) -> Result<(), Refused> {
        if id != self.id {
            self.departures.undecided.retain(|&of| of != (id, incarnation));
            return process.member_left(id, incarnation.0).map_err(|error| self.refuse_member(error));
        }
        if self.departures.request.is_none() || incarnation != self.incarnation {
            return Err(Refused::Unexpected);
        }
        self.departures.has_left = true;
        Ok(())
    }
}
