//! The seats of a switch: two places for representatives, of which one is enough.
//!
//! What any of them states is a lower bound, so their neighbours take the maximum, and one that is dead delays nothing.
//! But a *bound* of what the switch has stated needs all of them. So one that does not answer, or that is away,
//! is retired as soon as the other one can serve: it leaves (its neighbours do not listen to it any more), and when
//! they have acknowledged that, its seat is free. No process fails by that, and no case is opened.

use super::nodes::At;
use super::writes::Then;
use super::{Alarm, Leader, Machine, NodeKey};
use crate::graph::LinkId;
use crate::record::{Key, RepRecord, RepState, Value};
use onepipe::control::SEATS;
use std::collections::BTreeMap;
use switch::Nanos;

/// Multiple of the time for an answer after which a representative is retired that alone hears nothing of a link: the
/// other one has to answer meanwhile
pub(super) const DEAF_AFTER: u64 = 2;

/// What the leader knows of representatives beside their answers.
#[derive(Clone, Debug, Default)]
pub(super) struct Watch {
    /// Since when a node has had no connection
    parted: BTreeMap<NodeKey, Nanos>,
    /// When a representative has connected since this leader leads
    connected: BTreeMap<NodeKey, Nanos>,
    /// Since when one of two representatives has heard nothing of a link of which the other one has
    deaf: BTreeMap<At, Nanos>,
    /// When registers were asked for that have to reach a stored floor
    pub(super) asked: Nanos,
}

impl Leader {
    /// Returns the seats of a switch that have been taken, with the states of the last incarnations there.
    pub(super) fn rep_states(&self, switch: u16) -> impl Iterator<Item = (u8, RepState)> {
        (0..SEATS).filter_map(move |seat| Some((seat, self.image.rep(switch, seat)?.1.state)))
    }

    /// Returns the seats of a switch whose representatives have a state, or are about to take their first one.
    pub(super) fn serving(&self, switch: u16) -> impl Iterator<Item = u8> {
        let serves = |state| matches!(state, RepState::Configuring | RepState::Active);
        self.rep_states(switch).filter(move |&(_, state)| serves(state)).map(|(seat, _)| seat)
    }

    /// Returns whether a representative of a switch registers or leaves, so that neighbours may take what it states
    /// without having acknowledged that they listen to it, or that they do not any more.
    pub(super) fn is_changing(&self, switch: u16) -> bool {
        let changes = |state| matches!(state, RepState::Registering | RepState::Leaving);
        self.rep_states(switch).any(|(_, state)| changes(state))
    }

    /// Returns whether a representative of a switch leaves.
    pub(super) fn has_leaving(&self, switch: u16) -> bool {
        self.rep_states(switch).any(|(_, state)| state == RepState::Leaving)
    }
}

impl Machine {
    /// Returns the numbers of all switches.
    pub(super) fn switches(&self) -> impl Iterator<Item = u16> + use<> {
        0..self.graph.switches().len() as u16
    }

    /// Returns all seats of all switches.
    pub(super) fn seats(&self) -> impl Iterator<Item = (u16, u8)> + use<> {
        self.switches().flat_map(|switch| (0..SEATS).map(move |seat| (switch, seat)))
    }

    /// Notes that a node has connected.
    pub(super) fn connect(&mut self, node: NodeKey) {
        let now = self.now;
        if let (Some(leader), NodeKey::Rep(..)) = (&mut self.leader, node) {
            leader.seats.connected.insert(node, now);
        }
    }

    /// Returns how long a representative has had a connection, as far as this leader knows.
    pub(super) fn connected_for(&self, node: NodeKey) -> Nanos {
        let leader = self.leader();
        self.since(leader.seats.connected.get(&node).copied().unwrap_or(leader.since))
    }

    /// Notes that a node has no connection any more.
    pub(super) fn part(&mut self, node: NodeKey) {
        let now = self.now;
        if let Some(leader) = &mut self.leader {
            leader.seats.parted.insert(node, now);
        }
    }

    /// Returns whether a node has had no connection for as long as it may need to connect again.
    fn is_away(&self, node: NodeKey) -> bool {
        let leader = self.leader();
        let since = leader.seats.parted.get(&node).copied().unwrap_or(leader.since);
        !self.up.contains(&node) && self.since(since) >= self.config.reconnect_within
    }

    /// Returns whether a representative serves, or is about to, so that the other one of its switch is not needed.
    fn can_serve(&self, switch: u16, seat: u8) -> bool {
        let (leader, node) = (self.leader(), NodeKey::Rep(switch, seat));
        let state = leader.image.rep(switch, seat).map(|(_, rep)| rep.state);
        let is_present = state.is_some_and(|state| !matches!(state, RepState::Leaving | RepState::Retired));
        let answers =
            leader.nodes.get(&node).is_none_or(|state| state.is_settled() || !self.is_late(state.since));
        let is_suspected = leader.suspicion.as_ref().is_some_and(|suspicion| suspicion.has(node));
        is_present && answers && !is_suspected && self.up.contains(&node)
    }

    /// Has a representative leave if the other one of its switch can serve. Returns whether it leaves, or will when this
    /// is called again.
    pub(super) fn retire(&mut self, switch: u16, seat: u8) -> bool {
        let leader = self.leader();
        let Some((incarnation, rep)) = leader.image.rep(switch, seat) else { return false };
        match rep.state {
            RepState::Leaving => return true,
            RepState::Retired => return false,
            RepState::Registering | RepState::Configuring | RepState::Active => {}
        }
        let other = (seat + 1) % SEATS;
        if leader.writes.contains(Then::Leaves(switch, other)) || !self.can_serve(switch, other) {
            return false;
        }
        // What is written meanwhile is about records as they were.
        let pending = [Then::Leaves(switch, seat), Then::RepKnown(switch, seat), Then::FloorsKnown];
        if pending.into_iter().any(|then| leader.writes.contains(then)) {
            return true;
        }
        let record = RepRecord { state: RepState::Leaving, ..rep.clone() };
        let change = record.put_at(Key::Rep(switch, seat, incarnation));
        self.leader_mut().writes.add(vec![change], Then::Leaves(switch, seat));
        true
    }

    /// Returns the nodes without those representatives that can be retired, which leave.
    pub(super) fn without_retired(&mut self, nodes: Vec<NodeKey>) -> Vec<NodeKey> {
        let stays =
            |node: &NodeKey| !matches!(*node, NodeKey::Rep(switch, seat) if self.retire(switch, seat));
        nodes.into_iter().filter(stays).collect()
    }

    /// Returns the switches for which two representatives serve.
    fn doubled(&self) -> impl Iterator<Item = u16> {
        self.switches().filter(|&switch| self.leader().serving(switch).count() > 1)
    }

    /// Returns whether time decides about a representative of a switch that has two.
    pub(super) fn watches_seats(&self) -> bool {
        let leader = self.leader();
        let is_missed = |switch: u16| {
            let mut nodes = leader.serving(switch).map(|seat| NodeKey::Rep(switch, seat));
            nodes.any(|node| !self.up.contains(&node) || !leader.is_settled(node))
        };
        !leader.seats.deaf.is_empty() || self.doubled().any(is_missed)
    }

    /// Retires representatives that are away, do not answer, or hear less than the other one of their switch.
    pub(super) fn watch_seats(&mut self) {
        if self.graph.switches().iter().all(|switch| !switch.standby) || self.distrusts_clock() {
            return;
        }
        let (up, seats) = (&self.up, &mut self.leader.as_mut().expect("it leads").seats);
        seats.parted.retain(|node, _| !up.contains(node));
        let is_lost = |&node: &NodeKey| {
            let state = self.leader().nodes.get(&node).filter(|state| !state.is_settled());
            self.is_away(node) || state.is_some_and(|state| self.is_overdue(node, state.since))
        };
        let nodes = |switch| self.leader().serving(switch).map(move |seat| NodeKey::Rep(switch, seat));
        let lost: Vec<_> = self.doubled().flat_map(nodes).filter(is_lost).collect();
        self.without_retired(lost);
        self.watch_deaf();
    }

    /// Returns the links of which one of two representatives hears nothing, while the other one does.
    fn deaf(&self) -> Vec<At> {
        let (leader, counted) = (self.leader(), self.counted());
        let hears_less = |&(link, _): &At| counted.contains(&link) && !self.is_silent(link);
        leader.silent.iter().copied().filter(hears_less).collect()
    }

    /// Retires representatives that have been deaf for a link. A dead one may have heard it before its end: so the
    /// other one has to answer first.
    fn watch_deaf(&mut self) {
        let (deaf, now) = (self.deaf(), self.now);
        let known = &mut self.leader_mut().seats.deaf;
        known.retain(|at, _| deaf.contains(at));
        let new: Vec<_> = deaf.iter().copied().filter(|at| !known.contains_key(at)).collect();
        known.extend(new.iter().map(|&at| (at, now)));
        for &(link, seat) in &new {
            if let Some(switch) = self.keeper(link) {
                self.ask_seat(switch, (seat + 1) % SEATS);
            }
        }
        let wait = self.config.respond_within.0 * DEAF_AFTER;
        let due = self.leader().seats.deaf.iter().filter(|(_, since)| now.since(**since).0 >= wait);
        for (link, seat) in due.map(|(&at, _)| at).collect::<Vec<_>>() {
            let Some(switch) = self.keeper(link) else { continue };
            if self.leader().is_settled(NodeKey::Rep(switch, (seat + 1) % SEATS)) && self.retire(switch, seat)
            {
                self.alarm(Alarm::Deaf(NodeKey::Rep(switch, seat)));
                self.leader_mut().seats.deaf.remove(&(link, seat));
            }
        }
    }

    /// Returns the switch that keeps a link.
    fn keeper(&self, link: LinkId) -> Option<u16> {
        self.graph.at(self.graph.ends(link).to).switch()
    }

    /// Has a representative answer its state once more.
    fn ask_seat(&mut self, switch: u16, seat: u8) {
        let now = self.now;
        let node = NodeKey::Rep(switch, seat);
        let leader = self.leader_mut();
        let Some(state) = leader.nodes.get_mut(&node) else { return };
        leader.versions += 1;
        state.renew(u64::from(leader.term.0) << 32 | leader.versions, now);
        self.send_desired(node);
    }
}
