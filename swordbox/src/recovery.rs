//! Waiting for shared QPs, retransmission on them, and their failure.

use crate::flow::Stage;
use crate::function::{NO_SERVER, Swordbox};
use crate::shared_qp::Operation;
use crate::{Id, NONE};
use rocev2::Psn;
use switch::{Nanos, Output};

/// Retransmissions without an acknowledgement after which a shared QP is given up, if the server has accepted
/// new connections meanwhile
pub(crate) const MAX_TRIES: u32 = 6;

impl Swordbox {
    /// Notes that a server accepts a new connection, so it may have restarted. Shared QPs without operations
    /// in flight and without an acknowledgement for `settle` are returned to their owners, or probed if the
    /// switch owns them. The others are given up soon if the server does not answer.
    pub(crate) fn on_connected(&mut self, server: u8, now: Nanos) {
        let Some(connected) = self.connected.get_mut(usize::from(server)) else { return };
        *connected = now;
        for shared_qp in 0..self.shared_qps.len() {
            let qp = &self.shared_qps[shared_qp];
            let owner = qp.owner;
            if qp.server == server
                && owner != NONE
                && qp.in_flight == 0
                && now.since(qp.progress_at) > self.config.settle
                && !self.flows[owner as usize].uses_own_connection()
            {
                if qp.is_switch_owned {
                    self.schedule_probe(shared_qp as Id, None, now);
                } else {
                    self.unshare(owner);
                }
            }
        }
    }

    /// Makes a flow wait for a shared QP. Has no effect for `NONE`: then the flow waits for its own requests.
    pub(crate) fn wait(&mut self, id: Id, shared_qp: Id) {
        if shared_qp == NONE || self.flows[id as usize].waits_for != NONE {
            return;
        }
        let owner = self.shared_qps[shared_qp as usize].owner;
        if owner == NONE {
            // The shared QP is gone: the request is routed again soon.
            self.ready.push_back(id);
            return;
        }
        let until = self.flows[owner as usize].server_next;
        self.wait_until(id, shared_qp, until);
    }

    /// Appends a flow to the list of those that wait for a shared QP.
    fn wait_until(&mut self, id: Id, shared_qp: Id, until: Psn) {
        let flow = &mut self.flows[id as usize];
        flow.waits_for = shared_qp;
        flow.waits_until = until;
        flow.next_waiting = NONE;
        let [first, last] = self.shared_qps[shared_qp as usize].waiting;
        if first == NONE {
            self.shared_qps[shared_qp as usize].waiting = [id, id];
        } else {
            self.flows[last as usize].next_waiting = id;
            self.shared_qps[shared_qp as usize].waiting[1] = id;
        }
    }

    /// Retries all flows that wait for a shared QP.
    pub(crate) fn retry_waiting<O: Output>(&mut self, shared_qp: Id, now: Nanos, out: &mut O) {
        let qp = &mut self.shared_qps[shared_qp as usize];
        let [mut id, _] = core::mem::replace(&mut qp.waiting, [NONE; 2]);
        let owner = qp.owner;
        if owner != NONE && self.flows[owner as usize].waits_for == shared_qp && qp.in_flight == 0 {
            // The owner can continue only while the shared QP is empty.
            self.remove_waiting(owner, shared_qp, &mut id);
            self.forward_held(owner, now, out);
        }
        while id != NONE {
            let flow = &mut self.flows[id as usize];
            let next = flow.next_waiting;
            flow.waits_for = NONE;
            flow.next_waiting = NONE;
            if self.keeps_waiting(id, shared_qp) {
                let until = self.flows[id as usize].waits_until;
                self.wait_until(id, shared_qp, until);
            } else {
                self.forward_held(id, now, out);
            }
            id = next;
        }
    }

    /// Returns whether a request that found no free slot would be refused again: its own connection is the
    /// shared QP and has operations of other clients in flight, or the operation that it waited for has not
    /// completed.
    fn keeps_waiting(&self, id: Id, shared_qp: Id) -> bool {
        let (flow, qp) = (&self.flows[id as usize], &self.shared_qps[shared_qp as usize]);
        flow.found_no_slot
            && flow.nak_due
            && !flow.has_held()
            && qp.in_flight > 0
            && (qp.owner == id || qp.acked.precedes(flow.waits_until))
    }

    /// Removes a flow from a list of waiting flows that begins with `first`.
    pub(crate) fn remove_waiting(&mut self, id: Id, shared_qp: Id, first: &mut Id) {
        let mut at = *first;
        let next = self.flows[id as usize].next_waiting;
        if at == id {
            *first = next;
        }
        while at != NONE && at != id {
            let following = self.flows[at as usize].next_waiting;
            if following == id {
                self.flows[at as usize].next_waiting = next;
            }
            at = following;
        }
        let flow = &mut self.flows[id as usize];
        debug_assert_eq!(flow.waits_for, shared_qp);
        flow.waits_for = NONE;
        flow.next_waiting = NONE;
    }

    /// Continues flows whose own requests are complete.
    pub(crate) fn forward_ready<O: Output>(&mut self, now: Nanos, out: &mut O) {
        // Flows without a free buffer are appended again, for the next call.
        for _ in 0..self.ready.len() {
            let Some(id) = self.ready.pop_front() else { break };
            self.forward_held(id, now, out);
        }
    }

    /// Retransmits lost operations on shared QPs, and gives up silent QPs.
    pub(crate) fn tick_shared_qps<O: Output>(&mut self, now: Nanos, out: &mut O) {
        for shared_qp in 0..self.shared_qps.len() as Id {
            let qp = &mut self.shared_qps[shared_qp as usize];
            if qp.owner == NONE {
                continue;
            }
            let owner = qp.owner;
            if qp.is_switch_owned && qp.in_flight == 0 {
                self.tick_switch_owned(shared_qp, now, out);
                continue;
            }
            if qp.in_flight > 0 {
                let qp = &self.shared_qps[shared_qp as usize];
                let restarted = qp.tries >= MAX_TRIES && self.may_have_restarted(qp);
                if restarted || now.since(qp.progress_at) > self.config.dead_after {
                    self.fail_shared_qp(shared_qp);
                    continue;
                }
                let qp = &mut self.shared_qps[shared_qp as usize];
                qp.waited_since = Nanos::ZERO;
                if now.since(qp.progress_at.max(qp.resent)) > qp.retransmit_timeout(self.config.replay_after)
                {
                    qp.tries += 1;
                    let from = qp.acked;
                    self.resend(shared_qp, from, now, out);
                }
            } else if self.flows[owner as usize].closing {
                self.flows[owner as usize].closing = !qp.is_returning;
                self.unshare(owner);
                continue;
            } else if !self.flows[owner as usize].uses_own_connection() {
                (qp.stuck_since, qp.waited_since) = (Nanos::ZERO, Nanos::ZERO);
            } else {
                let progress = self.flows[owner as usize].progress();
                if qp.stuck_since == Nanos::ZERO || qp.stuck_progress != progress {
                    // The owner's requests make progress.
                    (qp.stuck_progress, qp.stuck_since) = (progress, now);
                }
                let has_waiting = qp.waiting[0] != NONE;
                if !has_waiting {
                    qp.waited_since = Nanos::ZERO;
                } else if qp.waited_since == Nanos::ZERO {
                    qp.waited_since = now;
                }
                // Clients with short time-outs may not wait long enough, one after the other, so the time for
                // which the owner has been stuck does not depend on waiting clients.
                let is_stuck = now.since(qp.stuck_since) > qp.retransmit_timeout(self.config.replay_after);
                let is_long = has_waiting && now.since(qp.waited_since) > self.config.settle;
                if has_waiting && (is_stuck || is_long) && !self.keeps_stuck_owners() {
                    // The owner has begun a request that does not complete, such as a SEND that waits for a
                    // receive, or not soon, such as a very long WRITE, and other clients wait for it. None of
                    // their operations is in flight here, so they move to another shared QP.
                    self.unshare(owner);
                    self.flows[owner as usize].unshareable_until = now + self.config.dead_after;
                    self.counters.lanes_left.add(1);
                    continue;
                }
            }
            self.retry_waiting(shared_qp, now, out);
        }
        self.forward_ready(now, out);
    }

    /// Returns whether the planted bug is active by which a QP stays shared although its owner is stuck.
    #[cfg(debug_assertions)]
    fn keeps_stuck_owners(&self) -> bool {
        self.config.bug == Some(crate::Bug::StuckOwner)
    }

    #[cfg(not(debug_assertions))]
    #[expect(clippy::unused_self, reason = "debug builds read the planted bug")]
    const fn keeps_stuck_owners(&self) -> bool {
        false
    }

    /// Gives up a shared QP. Of the operations in flight, the server has executed those up to some point, in
    /// order, and will never execute the rest. Clients cannot be told which, so their connections end.
    pub(crate) fn fail_shared_qp(&mut self, shared_qp: Id) {
        let qp = &mut self.shared_qps[shared_qp as usize];
        let (owner, first, count) = (qp.owner, qp.acked, qp.in_flight);
        self.in_flight -= count as usize;
        qp.owner = NONE;
        qp.in_flight = 0;
        qp.atomics = 0;
        self.counters.lanes_lost.add(1);
        for n in 0..count {
            let entry = *self.shared_qps[shared_qp as usize].entry(first.add(n));
            let line = self.lines.get_mut(entry.line);
            line.in_flight -= 1;
            #[cfg(debug_assertions)]
            let keeps = self.config.bug == Some(crate::Bug::KeptWord);
            #[cfg(not(debug_assertions))]
            let keeps = false;
            if !keeps {
                line.forget_all();
                // The memory may no longer exist, which may be the cause of the failure.
                line.existing = 0;
            }
            // Packets in flight may still arrive.
            line.detours = line.detours.wrapping_add(1);
            line.quiet_until = line.quiet_until.max(self.last_tick + self.config.settle);
            if let Operation::Resolved { .. } = entry.request.what {
                self.lines.end_resolved(entry.line, entry.tag);
            }
            if entry.flow == NONE {
                continue;
            }
            self.end_connection(entry.flow);
        }
        let probe = self.shared_qps[shared_qp as usize].probe.take();
        self.probing -= usize::from(probe.is_some());
        self.flows[owner as usize].shared_qp = NONE;
        if self.flows[owner as usize].is_switch_owned {
            self.retire(shared_qp, owner);
        } else {
            self.end_connection(owner);
        }
        // Waiting flows choose another shared QP.
        let waiting = core::mem::replace(&mut self.shared_qps[shared_qp as usize].waiting, [NONE; 2]);
        let mut id = waiting[0];
        while id != NONE {
            let flow = &mut self.flows[id as usize];
            let next = flow.next_waiting;
            flow.waits_for = NONE;
            flow.next_waiting = NONE;
            if flow.stage == Stage::Translating {
                self.ready.push_back(id);
            }
            id = next;
        }
    }

    /// Ends a connection: all further packets are dropped.
    pub(crate) fn end_connection(&mut self, id: Id) {
        if id == NONE || self.flows[id as usize].server == NO_SERVER {
            return;
        }
        // The flow may have operations in flight on another connection.
        self.orphan(id);
        let flow = &mut self.flows[id as usize];
        flow.stage = Stage::Ended;
        flow.shared_in_flight = 0;
        flow.nak_due = false;
        // Operations in flight on this connection complete, but no new ones begin.
        flow.closing |= flow.shared_qp != NONE;
        self.unsteer(id);
    }
}
