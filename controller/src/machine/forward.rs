//! Frames that the controller carries between two processes of which one hears nothing of the other.

use super::{Machine, NodeKey};
use onepipe::ProcessId;
use onepipe::control::{Incarnation, Message};
use std::collections::BTreeMap;
use switch::Nanos;

/// Bytes that may be under way to a receiver
const WINDOW: usize = 256 << 10;

/// What is under way to receivers.
#[derive(Clone, Debug, Default)]
pub(super) struct Forwards {
    next: u32,
    by_receiver: BTreeMap<NodeKey, UnderWay>,
}

#[derive(Clone, Copy, Debug)]
struct UnderWay {
    /// Incarnation of the receiver
    incarnation: Incarnation,
    /// Number of the ping behind the frames
    ping: u32,
    since: Nanos,
    bytes: usize,
}

impl Forwards {
    /// Returns whether nothing is under way.
    pub(super) fn is_empty(&self) -> bool {
        self.by_receiver.is_empty()
    }
}

impl Machine {
    /// Carries frames; the receiver has to answer a ping behind them.
    pub(super) fn forward(
        &mut self,
        from: ProcessId,
        to: ProcessId,
        incarnation: Incarnation,
        frames: Vec<Vec<u8>>,
    ) {
        let node = NodeKey::Process(to);
        let current = self.incarnation(node) == Some(incarnation);
        if !current || !self.leader().is_unfailed(to) || !self.leader().is_unfailed(from) {
            return self.send(NodeKey::Process(from), Message::NotMember { id: to, incarnation });
        }
        let bytes = frames.iter().map(Vec::len).sum::<usize>();
        let before = self.leader().forwards.by_receiver.get(&node).copied();
        let before = before.filter(|under_way| under_way.incarnation == incarnation);
        if before.map_or(0, |under_way| under_way.bytes) + bytes > WINDOW {
            self.counts.forward_refused += frames.len() as u64;
            return;
        }
        self.counts.forwarded += frames.len() as u64;
        let sender = self.incarnation(NodeKey::Process(from)).unwrap_or_default();
        self.send(node, Message::Forwarded { from, incarnation: sender, frames });
        let now = self.now;
        let forwards = &mut self.leader_mut().forwards;
        forwards.next += 1;
        let ping = forwards.next;
        let since = before.map_or(now, |under_way| under_way.since);
        let bytes = bytes + before.map_or(0, |under_way| under_way.bytes);
        forwards.by_receiver.insert(node, UnderWay { incarnation, ping, since, bytes });
        self.send(node, Message::Ping { number: ping });
    }

    pub(super) fn pong(&mut self, node: NodeKey, number: u32) {
        let now = self.now;
        let under_way = &mut self.leader_mut().forwards.by_receiver;
        match under_way.get_mut(&node) {
            Some(state) if state.ping == number => drop(under_way.remove(&node)),
            // It lives, and answers an earlier one.
            Some(state) => state.since = now,
            None => {}
        }
    }

    /// Suspects receivers that do not answer. The next incarnation of one that has failed owes no answer.
    pub(super) fn check_forwards(&mut self) {
        if self.leader().suspicion_is_writing() {
            return;
        }
        let forwards = self.leader().forwards.by_receiver.iter();
        let late = forwards.filter(|&(&node, state)| self.is_late(state.since) && !self.may_connect(node));
        let late: Vec<_> = late.map(|(&node, state)| (node, state.incarnation)).collect();
        for (node, incarnation) in late {
            self.leader_mut().forwards.by_receiver.remove(&node);
            if self.incarnation(node) == Some(incarnation) {
                self.suspect_node(node);
            }
        }
    }
}
