//! Recovery of a process that has failed and still has its memory (1Pipe, section 5.2, receiver recovery).

use super::repeat::Repeat;
use super::{Bug, Event, Member, Refused, Stage, describe_failed, nonzero};
use crate::control::{self, Message, MissedNotice, Reason};
use crate::header::Timestamp;
use crate::process::Process;
use crate::process::reliable::{Failed, StoredRecall};
use switch::Nanos;

/// What a process that has failed asks for, and the pages of the reply.
#[derive(Clone, Debug)]
pub(super) struct Recovery {
    pub(super) repeat: Repeat,
    case_done: u64,
    held_max: Option<Timestamp>,
    barrier: Option<Timestamp>,
    /// Term of the reply, its next page, and what the pages so far have. Each reply is complete in itself.
    term: u64,
    page: u16,
    is_answered: bool,
    notices: Vec<MissedNotice>,
    recalls: Vec<control::Recall>,
}

impl Recovery {
    pub(super) const fn new(repeat: Repeat) -> Self {
        Self {
            repeat,
            case_done: 0,
            held_max: None,
            barrier: None,
            term: 0,
            page: 0,
            is_answered: false,
            notices: Vec::new(),
            recalls: Vec::new(),
        }
    }

    pub(super) fn request(&self) -> Message {
        Message::Recover { case_done: self.case_done, held_max: self.held_max, barrier: self.barrier }
    }

    /// Returns whether a reply that delivers messages up to `until` is one to the present request: it is about all
    /// that this process holds.
    fn is_answered_by(&self, until: Option<Timestamp>) -> bool {
        until.is_none_or(|until| self.held_max.is_none_or(|held| !until.precedes(held)))
    }

    /// Adds a page. The first one starts a reply.
    fn add(
        &mut self,
        term: u64,
        page: u16,
        notices: &[MissedNotice],
        recalls: &[control::Recall],
    ) -> Result<(), Refused> {
        if page == 0 {
            (self.term, self.page) = (term, 0);
            self.notices.clear();
            self.recalls.clear();
        }
        if (term, page) != (self.term, self.page) {
            return Err(Refused::Page);
        }
        self.page += 1;
        self.notices.extend_from_slice(notices);
        self.recalls.extend_from_slice(recalls);
        Ok(())
    }
}

impl Member {
    /// Stops sending, and asks for what this process has missed.
    pub(super) fn fail(&mut self, time: Timestamp, process: &mut Process, now: Nanos) {
        let held_max = process.fence(time).and_then(nonzero);
        let (case_done, barrier) = (process.cases_completed(), process.delivered_up_to());
        self.recovery = Recovery { case_done, held_max, barrier, ..Recovery::new(self.recovery.repeat) };
        self.recovery.repeat.restart(now);
        self.stage = Stage::Recovering;
        self.reported = None;
        self.on_timer(process, now);
    }

    pub(super) fn on_message_recovering(
        &mut self,
        term: u64,
        message: &Message,
        process: &mut Process,
        now: Nanos,
    ) -> Result<(), Refused> {
        match message {
            Message::Desired { version, held, sources } => {
                self.desired(*version, *held, sources, process, now)
            }
            Message::Ping { number } => {
                self.send(Message::Pong { number: *number });
                Ok(())
            }
            Message::RecoverReply { page, last, until, notices, recalls } => {
                if !self.recovery.is_answered_by(*until) {
                    return Err(Refused::Page);
                }
                self.recovery.add(term, *page, notices, recalls)?;
                if *last && !self.recovery.is_answered {
                    self.recover(*until, process, now);
                }
                Ok(())
            }
            Message::Refused { reason: reason @ Reason::Forgotten } => {
                self.report(Event::Refused(*reason));
                process.abandon();
                self.finish(process, now);
                Ok(())
            }
            // The request is repeated already.
            Message::YouFailed { .. } => Ok(()),
            _ => Err(Refused::Unexpected),
        }
    }

    fn recover(&mut self, until: Option<Timestamp>, process: &mut Process, now: Nanos) {
        let notices = core::mem::take(&mut self.recovery.notices);
        let describe = |notice: &MissedNotice| {
            let case = notice.case;
            notice.failed.iter().map(move |failed| describe_failed(case, failed)).collect::<Vec<_>>()
        };
        let failed: Vec<Failed> = notices.iter().flat_map(describe).collect();
        let (receiver, incarnation) = (self.id, self.incarnation.0);
        let recalls = core::mem::take(&mut self.recovery.recalls);
        // A run that was not stamped cannot be complete here.
        let stamped = recalls.iter().filter_map(|recall| Some((recall, recall.time?)));
        let mut recalls: Vec<_> = stamped
            .map(|(recall, time)| StoredRecall {
                sender: recall.from,
                receiver,
                incarnation,
                timestamp: time.nanos(),
                packets: (recall.first, recall.last),
            })
            .collect();
        if self.has_bug(Bug::RecoversWithoutRecalls) {
            recalls.clear();
        }
        process.recover(until, &failed, &recalls, now);
        self.counters.recoveries.add(1);
        self.finish(process, now);
    }

    /// Asks for what this process has missed, or finishes if it has delivered that.
    pub(super) fn advance_recovery(&mut self, process: &mut Process, now: Nanos) {
        if process.is_recovered() {
            self.finish(process, now);
        } else if self.recovery.repeat.take(now) && !self.recovery.is_answered {
            let message = self.recovery.request();
            self.send(message);
        }
    }

    /// Tells the controller that nothing of this incarnation is needed any more, and registers again.
    fn finish(&mut self, process: &mut Process, now: Nanos) {
        self.recovery.is_answered = true;
        if !process.is_recovered() {
            // Messages wait for the clock.
            self.recovery.repeat.soon(now);
            return;
        }
        self.send(Message::Recovered {});
        self.stage = Stage::Registering;
        self.registration.soon(now);
        self.on_timer(process, now);
    }
}
