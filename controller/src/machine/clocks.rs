//! Times of nodes against this controller's clock.
//!
//! A value far ahead of the clock is refused, as it might be one of the past: times on the wire have 48 bits. It is no
//! sign that its node has failed. If several nodes are ahead, this controller's clock is the wrong one.

use super::{Alarm, Bug, Machine, NodeKey};
use switch::Nanos;

/// Nodes that have to be ahead so that the controller distrusts its own clock
const DISTRUST: usize = 2;
/// Times within that for an answer at which a node that is ahead is asked again
const TRIES: u64 = 4;

/// A node that has reported a time ahead of the clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ahead {
    /// When it did so last
    at: Nanos,
    /// When it was asked last
    asked: Nanos,
    /// By how much it was ahead
    by: u64,
}

impl Machine {
    /// Returns whether times of a node are not too far ahead of the clock.
    pub(super) fn plausible(&mut self, node: NodeKey, times: impl IntoIterator<Item = u64>) -> bool {
        let latest = times.into_iter().max().unwrap_or(0);
        let by = latest.saturating_sub(self.clock);
        if by <= self.config.ahead_max.0 {
            self.forget_ahead(node);
            return true;
        }
        let at = self.now;
        let ahead = &mut self.leader_mut().ahead;
        let asked = ahead.get(&node).map_or(at, |before| before.asked);
        ahead.insert(node, Ahead { at, asked, by });
        let (count, least) = (ahead.len(), ahead.values().map(|ahead| ahead.by).min().unwrap_or(0));
        if count < DISTRUST {
            self.alarm(Alarm::Ahead(node, by));
        } else {
            self.alarm(Alarm::OwnClock(count, node, least));
        }
        false
    }

    pub(super) fn forget_ahead(&mut self, node: NodeKey) {
        if let Some(leader) = &mut self.leader {
            leader.ahead.remove(&node);
        }
    }

    /// Returns whether this controller's clock is behind those of several nodes: then nothing is decided.
    pub(super) fn distrusts_clock(&self) -> bool {
        self.leader().ahead.len() >= DISTRUST && !self.has(Bug::AheadIsLate)
    }

    /// Returns when a node has answered last with a time ahead of the clock: it has answered.
    pub(super) fn answered_ahead(&self, node: NodeKey) -> Option<Nanos> {
        self.leader().ahead.get(&node).filter(|_| !self.has(Bug::AheadIsLate)).map(|ahead| ahead.at)
    }

    /// Asks nodes that are ahead again: the clock follows, or is set right. One that does not answer is ahead no more.
    pub(super) fn ask_again(&mut self) {
        if self.leader().ahead.is_empty() {
            return;
        }
        let (now, wait) = (self.now, self.config.respond_within);
        let leader = self.leader_mut();
        leader.ahead.retain(|_, ahead| now.0.saturating_sub(ahead.at.0) < wait.0);
        let is_due = |ahead: &Ahead| now.0.saturating_sub(ahead.asked.0) >= (wait.0 / TRIES).max(1);
        let due = leader.ahead.iter_mut().filter(|(_, ahead)| is_due(ahead));
        let due: Vec<_> = due
            .map(|(&node, ahead)| {
                ahead.asked = now;
                node
            })
            .collect();
        for node in due {
            self.send_desired(node);
            if let NodeKey::Process(id) = node {
                self.announce_to(id);
            }
        }
    }
}
