//! Waiting for shared QPs, retransmission on them, and their failure.

use super::Swordbox;
use crate::address::NO_SERVER;
use crate::flow::Stage;
use crate::shared_qps::Operation;
use crate::{Bug, Id, NONE};
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
        if !self.shared_qps.note_connected(server, now) {
            return;
        }
        for shared_qp in self.shared_qps.ids() {
            let qp = &self.shared_qps[shared_qp];
            let owner = qp.owner;
            if qp.server == server
                && owner != NONE
                && qp.in_flight() == 0
                && now.since(qp.progress_at) > self.config.settle
                && !self.connections.flow(owner).uses_own_connection()
            {
                if qp.is_switch_owned {
                    self.schedule_probe(shared_qp, None, now);
                } else {
                    self.unshare(owner);
                }
            }
        }
    }

    /// Makes a flow wait for a shared QP. Has no effect for `NONE`: then the flow waits for its own requests.
    pub(crate) fn wait(&mut self, id: Id, shared_qp: Id) {
        if shared_qp == NONE || self.connections.flow(id).waits_for != NONE {
            return;
        }
        let owner = self.shared_qps[shared_qp].owner;
        if owner == NONE {
            // The shared QP is gone: the request is routed again soon.
            self.held.continue_later(id);
            return;
        }
        let until = self.connections.flow(owner).translation.next();
        self.wait_until(id, shared_qp, until);
    }

    /// Appends a flow to the list of those that wait for a shared QP.
    fn wait_until(&mut self, id: Id, shared_qp: Id, until: Psn) {
        let flow = self.connections.flow_mut(id);
        flow.waits_for = shared_qp;
        flow.waits_until = until;
        flow.next_waiting = NONE;
        let [first, last] = self.shared_qps[shared_qp].waiting;
        if first == NONE {
            self.shared_qps[shared_qp].waiting = [id, id];
        } else {
            self.connections.flow_mut(last).next_waiting = id;
            self.shared_qps[shared_qp].waiting[1] = id;
        }
    }

    /// Retries all flows that wait for a shared QP.
    pub(crate) fn retry_waiting<O: Output>(&mut self, shared_qp: Id, now: Nanos, out: &mut O) {
        let qp = &mut self.shared_qps[shared_qp];
        let [mut id, _] = core::mem::replace(&mut qp.waiting, [NONE; 2]);
        let owner = qp.owner;
        if owner != NONE && self.connections.flow(owner).waits_for == shared_qp && qp.in_flight() == 0 {
            // The owner can continue only while the shared QP is empty.
            self.remove_waiting(owner, shared_qp, &mut id);
            self.forward_held(owner, now, out);
        }
        while id != NONE {
            let next = self.connections.flow_mut(id).stop_waiting();
            if self.keeps_waiting(id, shared_qp) {
                let until = self.connections.flow(id).waits_until;
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
        let (flow, qp) = (self.connections.flow(id), &self.shared_qps[shared_qp]);
        flow.found_no_slot
            && flow.nak_due
            && !flow.has_held()
            && qp.in_flight() > 0
            && (qp.owner == id || qp.acked.precedes(flow.waits_until))
    }

    /// Removes a flow from a list of waiting flows that begins with `first`.
    pub(crate) fn remove_waiting(&mut self, id: Id, shared_qp: Id, first: &mut Id) {
        let mut at = *first;
        let next = self.connections.flow(id).next_waiting;
        if at == id {
            *first = next;
        }
        while at != NONE && at != id {
            let following = self.connections.flow(at).next_waiting;
            if following == id {
                self.connections.flow_mut(at).next_waiting = next;
            }
            at = following;
        }
        let flow = self.connections.flow_mut(id);
        debug_assert_eq!(flow.waits_for, shared_qp);
        flow.stop_waiting();
    }

    /// Continues flows whose own requests are complete.
    pub(crate) fn forward_ready<O: Output>(&mut self, now: Nanos, out: &mut O) {
        // Flows without a free buffer are appended again, for the next call.
        for _ in 0..self.held.ready_len() {
            let Some(id) = self.held.next_ready() else { break };
            self.forward_held(id, now, out);
        }
    }

    /// Retransmits lost operations on shared QPs, and gives up silent QPs.
    pub(crate) fn tick_shared_qps<O: Output>(&mut self, now: Nanos, out: &mut O) {
        for shared_qp in self.shared_qps.ids() {
            let qp = &mut self.shared_qps[shared_qp];
            if qp.owner == NONE {
                continue;
            }
            let owner = qp.owner;
            if qp.is_switch_owned && qp.in_flight() == 0 {
                self.tick_switch_owned(shared_qp, now, out);
                continue;
            }
            if qp.in_flight() > 0 {
                let qp = &self.shared_qps[shared_qp];
                let restarted = qp.tries >= MAX_TRIES && self.shared_qps.may_have_restarted(qp);
                if restarted || now.since(qp.progress_at) > self.config.dead_after {
                    self.fail_shared_qp(shared_qp);
                    continue;
                }
                let qp = &mut self.shared_qps[shared_qp];
                qp.waited_since = Nanos::ZERO;
                if now.since(qp.progress_at.max(qp.resent)) > qp.retransmit_timeout(self.config.replay_after)
                {
                    qp.tries += 1;
                    let from = qp.acked;
                    self.resend(shared_qp, from, now, out);
                }
            } else if self.connections.flow(owner).closing {
                self.connections.flow_mut(owner).closing = !qp.is_returning;
                self.unshare(owner);
                continue;
            } else if !self.connections.flow(owner).uses_own_connection() {
                (qp.stuck_since, qp.waited_since) = (Nanos::ZERO, Nanos::ZERO);
            } else {
                let progress = self.connections.flow(owner).progress();
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
                // Clients with short timeouts may not wait long enough, one after the other, so the time for
                // which the owner has been stuck does not depend on waiting clients.
                let is_stuck = now.since(qp.stuck_since) > qp.retransmit_timeout(self.config.replay_after);
                let is_long = has_waiting && now.since(qp.waited_since) > self.config.settle;
                let keeps_owner = self.config.has_bug(Bug::StuckOwner);
                if has_waiting && (is_stuck || is_long) && !keeps_owner {
                    // The owner has begun a request that does not complete (such as a SEND that waits for a
                    // receive) or takes long (such as a very long WRITE), and other clients wait for it. None
                    // of their operations is in flight here, so they move to another shared QP.
                    self.unshare(owner);
                    self.connections.flow_mut(owner).unshareable_until = now + self.config.dead_after;
                    self.counters.shared_qps_returned.add(1);
                    continue;
                }
            }
            self.retry_waiting(shared_qp, now, out);
        }
        self.forward_ready(now, out);
    }

    /// Gives up a shared QP. Of the operations in flight, the server has executed those up to some point, in
    /// order, and will never execute the rest. Clients cannot be notified which operations were executed, so
    /// their connections end.
    pub(crate) fn fail_shared_qp(&mut self, shared_qp: Id) {
        let (owner, first, count) = self.shared_qps.close(shared_qp);
        self.counters.shared_qps_lost.add(1);
        let keeps_words = self.config.has_bug(Bug::KeptWord);
        for n in 0..count {
            let entry = *self.shared_qps[shared_qp].entry(first.add(n));
            let line = self.lines.get_mut(entry.line);
            line.in_flight -= 1;
            if !keeps_words {
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
        self.connections.flow_mut(owner).shared_qp = NONE;
        if self.connections.flow(owner).is_switch_owned {
            self.retire(shared_qp, owner);
        } else {
            self.end_connection(owner);
        }
        // Waiting flows choose another shared QP.
        let waiting = core::mem::replace(&mut self.shared_qps[shared_qp].waiting, [NONE; 2]);
        let mut id = waiting[0];
        while id != NONE {
            let flow = self.connections.flow_mut(id);
            if flow.stage == Stage::Translating {
                self.held.continue_later(id);
            }
            id = flow.stop_waiting();
        }
    }

    /// Ends a connection: all further packets are dropped.
    pub(crate) fn end_connection(&mut self, id: Id) {
        if id == NONE || self.connections.flow(id).server == NO_SERVER {
            return;
        }
        // The flow may have operations in flight on another connection.
        self.orphan(id);
        let flow = self.connections.flow_mut(id);
        flow.stage = Stage::Ended;
        flow.shared_in_flight = 0;
        flow.nak_due = false;
        // Operations in flight on this connection complete, but no new ones begin.
        flow.closing |= flow.shared_qp != NONE;
        self.unsteer(id);
    }
}
