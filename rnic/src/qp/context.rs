//! A queue pair together with what its packets access.

use super::{Event, Qp};
use crate::config::{Bug, Config};
use crate::counters::Counters;
use crate::memory::{Access, Memory, Span};
use crate::queue::{Completion, CompletionQueue, Cq, ReceiveQueue, Sge};
use core::net::IpAddr;
use std::collections::VecDeque;
use switch::Nanos;
use switch::table::DenseTable;

/// A queue pair and everything else that its packets access.
pub(crate) struct QpContext<'a> {
    pub(crate) qp: &'a mut Qp,
    pub(crate) memory: &'a mut Memory,
    pub(crate) cqs: &'a mut DenseTable<CompletionQueue>,
    pub(crate) srqs: &'a mut DenseTable<ReceiveQueue>,
    pub(crate) events: &'a mut VecDeque<Event>,
    pub(crate) counters: &'a mut Counters,
    pub(crate) overrun: &'a mut bool,
    pub(crate) config: &'a Config,
}

impl QpContext<'_> {
    /// Puts a completion into a completion queue.
    pub(crate) fn complete(&mut self, cq: Cq, completion: Completion) {
        if let Some(queue) = self.cqs.get_mut(cq.0) {
            self.counters.completions += 1;
            *self.overrun |= queue.push(completion);
        }
    }

    /// Returns the span of a local scatter/gather element if `access` is allowed.
    pub(crate) fn local(&self, sge: &Sge, access: Access) -> Option<Span> {
        self.memory.check(self.qp.init().pd, sge.mr.0, sge.va, sge.len.into(), access).ok()
    }

    /// Handles the deadlines that have passed. Returns the peer if it did not acknowledge in time.
    pub(crate) fn on_timer(&mut self, now: Nanos) -> Option<IpAddr> {
        self.qp.stop_waiting();
        let timed_out = self.on_requester_timer(now);
        self.qp.pacer.on_wake(now);
        self.qp.resp.on_timer(now);
        self.qp.path.filter(|_| timed_out).map(|path| path.dst)
    }

    /// Reports that the queue pair failed.
    pub(crate) fn report_error(&mut self) {
        let qpn = self.qp.qpn();
        self.events.push_back(Event::QpError(qpn));
    }

    /// Returns whether this bug was planted. Release builds have no bugs.
    #[inline]
    pub(crate) fn has_bug(&self, bug: Bug) -> bool {
        cfg!(debug_assertions) && self.config.bug == Some(bug)
    }
}
