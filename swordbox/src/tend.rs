//! Who waits for a lane, and what becomes of lanes on which something is lost, or that fail.

use crate::flow::Stage;
use crate::function::{NO_SERVER, Swordbox};
use crate::lane::Under;
use crate::{Id, NONE};
use rocev2::Psn;
use switch::{Nanos, Output};

/// How often everything on a lane is sent again in vain before it is given up, if the server makes new connections meanwhile
pub(crate) const TRIES: u32 = 6;

impl Swordbox {
    /// A server makes a new connection: it may have restarted. Lanes that it was not heard of on for a while are given up, if
    /// nothing is under way there; the others soon, if it does not answer.
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

    /// A flow waits for a lane; for nothing in particular, until its own requests are done.
    pub(crate) fn wait(&mut self, id: Id, lane: Id) {
        if lane == NONE || self.flows[id as usize].waits != NONE {
            return;
        }
        let owner = self.lanes[lane as usize].owner;
        if owner == NONE {
            // It is not there any more: it has another try soon.
            self.ready.push_back(id);
            return;
        }
        let until = self.flows[owner as usize].own_next;
        self.wait_until(id, lane, until);
    }

    /// Puts a flow at the end of those that wait for a lane.
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

    /// Whoever waits for a lane has another try.
    pub(crate) fn pump_lane<O: Output>(&mut self, lane: Id, now: Nanos, out: &mut O) {
        let there = &mut self.lanes[lane as usize];
        let [mut id, _] = core::mem::replace(&mut there.waiting, [NONE; 2]);
        let owner = there.owner;
        if owner != NONE && self.flows[owner as usize].waits == lane && there.under_way == 0 {
            // Its owner can go on only when the lane is empty.
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

    /// Returns whether a request that was turned away would be turned away again: its connection is the lane, where others
    /// still have operations under way, or what it waited for on the lane is not done.
    fn goes_on_waiting(&self, id: Id, lane: Id) -> bool {
        let (flow, there) = (&self.flows[id as usize], &self.lanes[lane as usize]);
        flow.turned_away
            && flow.nak_due
            && !flow.holds()
            && there.under_way > 0
            && (there.owner == id || there.acked.precedes(flow.waits_until))
    }

    /// Takes one out of a list of those that wait.
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

    /// Flows whose own requests are all done go on.
    pub(crate) fn pump_ready<O: Output>(&mut self, now: Nanos, out: &mut O) {
        // Those that find no buffer are ready again next time.
        for _ in 0..self.ready.len() {
            let Some(id) = self.ready.pop_front() else { break };
            self.pump(id, now, out);
        }
    }

    /// What is lost on lanes is sent again, and lanes that are silent are given up.
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
                    // What it has begun goes on.
                    (there.stuck_at, there.stuck) = (came, now);
                }
                let is_awaited = there.waiting[0] != NONE;
                if !is_awaited {
                    there.kept_since = Nanos::ZERO;
                } else if there.kept_since == Nanos::ZERO {
                    there.kept_since = now;
                }
                // Clients with short time-outs may not wait for as long as this takes, one after the other: how long the owner
                // has been stuck does not depend on them.
                let is_stuck = now.since(there.stuck) > there.patience(self.config.replay_after);
                let is_long = is_awaited && now.since(there.kept_since) > self.config.settle;
                if is_awaited && (is_stuck || is_long) && !self.keeps_stuck_lanes() {
                    // Its owner has begun something that does not end, as a SEND that waits for a receive, or not soon, as a very
                    // long WRITE, and others wait for it. Nothing of theirs is under way here: they take another lane.
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

    /// Returns whether a bug is planted by which a lane stays with an owner that does not go on.
    #[cfg(debug_assertions)]
    fn keeps_stuck_lanes(&self) -> bool {
        self.config.bug == Some(crate::Bug::StuckLane)
    }

    #[cfg(not(debug_assertions))]
    #[expect(clippy::unused_self, reason = "it has a planted bug in other builds")]
    const fn keeps_stuck_lanes(&self) -> bool {
        false
    }

    /// A lane does not work any more. What was under way there is over: some of it may have been done, in order, and the rest
    /// never will be. Its clients cannot be told which, so their connections end.
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
                // Perhaps this is why: that the memory is not there any more.
                line.reached = 0;
            }
            // What is on its way may still arrive.
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
        // Those that wait find another lane.
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

    /// Nothing of a flow passes any more.
    pub(crate) fn end(&mut self, id: Id) {
        if id == NONE || self.flows[id as usize].server == NO_SERVER {
            return;
        }
        // It may have something under way on another's lane.
        self.orphan(id);
        let flow = &mut self.flows[id as usize];
        flow.stage = Stage::Ended;
        flow.shared = 0;
        flow.nak_due = false;
        // What is under way on its lane is seen through, and nobody begins anything there.
        flow.leaving |= flow.lane != NONE;
        self.unsteer(id);
    }
}
