//! Waiting for shared QPs, retransmission on them, and their failure.

use crate::flow::Stage;
use crate::function::{NO_SERVER, Swordbox};
use crate::lane::Under;
use crate::{Id, NONE};
use rocev2::Psn;
use switch::{Nanos, Output};

/// Retransmissions without an acknowledgement after which a shared QP is given up, if the server has accepted
/// new connections meanwhile
pub(crate) const TRIES: u32 = 6;

impl Swordbox {
    /// Notes that a server accepts a new connection, so it may have restarted. Shared QPs without operations
    /// in flight and without an acknowledgement for `settle` are returned to their owners, or probed if the
    /// switch owns them. The others are given up soon if the server does not answer.
    pub(crate) fn on_connected(&mut self, server: u8, now: Nanos) {
        let Some(connected) = self.connected.get_mut(usize::from(server)) else { return };
        *connected = now;
        for lane in 0..self.lanes.len() {
            let there = &self.lanes[lane];
            let owner = there.owner;
            if there.server == server
                && owner != NONE
                && there.under_way == 0
                && now.since(there.moved) > self.config.settle
                && !self.flows[owner as usize].is_private()
            {
                if there.is_own {
                    self.begin_probe(lane as Id, None, now);
                } else {
                    self.leave(owner);
                }
            }
        }
    }

    /// Makes a flow wait for a shared QP. Has no effect for `NONE`: then the flow waits for its own requests.
    pub(crate) fn wait(&mut self, id: Id, lane: Id) {
        if lane == NONE || self.flows[id as usize].waits != NONE {
            return;
        }
        let owner = self.lanes[lane as usize].owner;
        if owner == NONE {
            // The shared QP is gone: the request is routed again soon.
            self.ready.push_back(id);
            return;
        }
        let until = self.flows[owner as usize].own_next;
        self.wait_until(id, lane, until);
    }

    /// Appends a flow to the list of those that wait for a shared QP.
    fn wait_until(&mut self, id: Id, lane: Id, until: Psn) {
        let flow = &mut self.flows[id as usize];
        flow.waits = lane;
        flow.waits_until = until;
        flow.next_waiting = NONE;
        let [first, last] = self.lanes[lane as usize].waiting;
        if first == NONE {
            self.lanes[lane as usize].waiting = [id, id];
        } else {
            self.flows[last as usize].next_waiting = id;
            self.lanes[lane as usize].waiting[1] = id;
        }
    }

    /// Retries all flows that wait for a shared QP.
    pub(crate) fn pump_lane<O: Output>(&mut self, lane: Id, now: Nanos, out: &mut O) {
        let there = &mut self.lanes[lane as usize];
        let [mut id, _] = core::mem::replace(&mut there.waiting, [NONE; 2]);
        let owner = there.owner;
        if owner != NONE && self.flows[owner as usize].waits == lane && there.under_way == 0 {
            // The owner can continue only while the shared QP is empty.
            self.unwait(owner, lane, &mut id);
            self.pump(owner, now, out);
        }
        while id != NONE {
            let flow = &mut self.flows[id as usize];
            let next = flow.next_waiting;
            flow.waits = NONE;
            flow.next_waiting = NONE;
            if self.goes_on_waiting(id, lane) {
                let until = self.flows[id as usize].waits_until;
                self.wait_until(id, lane, until);
            } else {
                self.pump(id, now, out);
            }
            id = next;
        }
    }

    /// Returns whether a request that found no free slot would be refused again: its own connection is the
    /// shared QP and has operations of other clients in flight, or the operation that it waited for has not
    /// completed.
    fn goes_on_waiting(&self, id: Id, lane: Id) -> bool {
        let (flow, there) = (&self.flows[id as usize], &self.lanes[lane as usize]);
        flow.turned_away
            && flow.nak_due
            && !flow.holds()
            && there.under_way > 0
            && (there.owner == id || there.acked.precedes(flow.waits_until))
    }

    /// Removes a flow from a list of waiting flows that begins with `first`.
    pub(crate) fn unwait(&mut self, id: Id, lane: Id, first: &mut Id) {
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
        debug_assert_eq!(flow.waits, lane);
        flow.waits = NONE;
        flow.next_waiting = NONE;
    }

    /// Continues flows whose own requests are complete.
    pub(crate) fn pump_ready<O: Output>(&mut self, now: Nanos, out: &mut O) {
        // Flows without a free buffer are appended again, for the next call.
        for _ in 0..self.ready.len() {
            let Some(id) = self.ready.pop_front() else { break };
            self.pump(id, now, out);
        }
    }

    /// Retransmits lost operations on shared QPs, and gives up silent QPs.
    pub(crate) fn tend_lanes<O: Output>(&mut self, now: Nanos, out: &mut O) {
        for lane in 0..self.lanes.len() as Id {
            let there = &mut self.lanes[lane as usize];
            if there.owner == NONE {
                continue;
            }
            let owner = there.owner;
            if there.is_own && there.under_way == 0 {
                self.tend_own(lane, now, out);
                continue;
            }
            if there.under_way > 0 {
                let there = &self.lanes[lane as usize];
                let restarted = there.tries >= TRIES && self.is_doubtful(there);
                if restarted || now.since(there.moved) > self.config.dead_after {
                    self.fail(lane);
                    continue;
                }
                let there = &mut self.lanes[lane as usize];
                there.kept_since = Nanos::ZERO;
                if now.since(there.moved.max(there.resent)) > there.patience(self.config.replay_after) {
                    there.tries += 1;
                    let from = there.acked;
                    self.resend(lane, from, now, out);
                }
            } else if self.flows[owner as usize].leaving {
                self.flows[owner as usize].leaving = !there.is_given_back;
                self.leave(owner);
                continue;
            } else if !self.flows[owner as usize].is_private() {
                (there.stuck, there.kept_since) = (Nanos::ZERO, Nanos::ZERO);
            } else {
                let came = self.flows[owner as usize].came();
                if there.stuck == Nanos::ZERO || there.stuck_at != came {
                    // The owner's requests make progress.
                    (there.stuck_at, there.stuck) = (came, now);
                }
                let is_awaited = there.waiting[0] != NONE;
                if !is_awaited {
                    there.kept_since = Nanos::ZERO;
                } else if there.kept_since == Nanos::ZERO {
                    there.kept_since = now;
                }
                // Clients with short time-outs may not wait long enough, one after the other, so the time for
                // which the owner has been stuck does not depend on waiting clients.
                let is_stuck = now.since(there.stuck) > there.patience(self.config.replay_after);
                let is_long = is_awaited && now.since(there.kept_since) > self.config.settle;
                if is_awaited && (is_stuck || is_long) && !self.keeps_stuck_lanes() {
                    // The owner has begun a request that does not complete, such as a SEND that waits for a
                    // receive, or not soon, such as a very long WRITE, and other clients wait for it. None of
                    // their operations is in flight here, so they move to another shared QP.
                    self.leave(owner);
                    self.flows[owner as usize].unfit_until = now + self.config.dead_after;
                    self.counters.lanes_left.add(1);
                    continue;
                }
            }
            self.pump_lane(lane, now, out);
        }
        self.pump_ready(now, out);
    }

    /// Returns whether the planted bug is active by which a QP stays shared although its owner is stuck.
    #[cfg(debug_assertions)]
    fn keeps_stuck_lanes(&self) -> bool {
        self.config.bug == Some(crate::Bug::StuckLane)
    }

    #[cfg(not(debug_assertions))]
    #[expect(clippy::unused_self, reason = "debug builds read the planted bug")]
    const fn keeps_stuck_lanes(&self) -> bool {
        false
    }

    /// Gives up a shared QP. Of the operations in flight, the server has executed those up to some point, in
    /// order, and will never execute the rest. Clients cannot be told which, so their connections end.
    pub(crate) fn fail(&mut self, lane: Id) {
        let there = &mut self.lanes[lane as usize];
        let (owner, first, count) = (there.owner, there.acked, there.under_way);
        self.under_way -= count as usize;
        there.owner = NONE;
        there.under_way = 0;
        there.atomics = 0;
        self.counters.lanes_lost.add(1);
        for n in 0..count {
            let entry = *self.lanes[lane as usize].entry(first.add(n));
            let line = self.lines.get_mut(entry.line);
            line.under_way -= 1;
            #[cfg(debug_assertions)]
            let keeps = self.config.bug == Some(crate::Bug::KeptWord);
            #[cfg(not(debug_assertions))]
            let keeps = false;
            if !keeps {
                line.forget_all();
                // The memory may no longer exist, which may be the cause of the failure.
                line.reached = 0;
            }
            // Packets in flight may still arrive.
            line.detours = line.detours.wrapping_add(1);
            line.quiet_until = line.quiet_until.max(self.tick + self.config.settle);
            if let Under::Decided { .. } = entry.asked.what {
                self.lines.end_decided(entry.line, entry.tag);
            }
            if entry.flow == NONE {
                continue;
            }
            self.end(entry.flow);
        }
        let probe = self.lanes[lane as usize].probe.take();
        self.probing -= usize::from(probe.is_some());
        self.flows[owner as usize].lane = NONE;
        if self.flows[owner as usize].is_own {
            self.retire(lane, owner);
        } else {
            self.end(owner);
        }
        // Waiting flows choose another shared QP.
        let waiting = core::mem::replace(&mut self.lanes[lane as usize].waiting, [NONE; 2]);
        let mut id = waiting[0];
        while id != NONE {
            let flow = &mut self.flows[id as usize];
            let next = flow.next_waiting;
            flow.waits = NONE;
            flow.next_waiting = NONE;
            if flow.stage == Stage::Strict {
                self.ready.push_back(id);
            }
            id = next;
        }
    }

    /// Ends a connection: all further packets are dropped.
    pub(crate) fn end(&mut self, id: Id) {
        if id == NONE || self.flows[id as usize].server == NO_SERVER {
            return;
        }
        // The flow may have operations in flight on another connection.
        self.orphan(id);
        let flow = &mut self.flows[id as usize];
        flow.stage = Stage::Ended;
        flow.shared = 0;
        flow.nak_due = false;
        // Operations in flight on this connection complete, but no new ones begin.
        flow.leaving |= flow.lane != NONE;
        self.unsteer(id);
    }
}
