//! Representatives: registration, and the floors of a new incarnation.
//!
//! A new incarnation does not know what earlier ones have sent. Its *floor* is an upper bound of that, taken
//! from the registers of the nodes that its links lead to. None of its inputs counts before it has reached
//! the floor, so what it sends never lies below a value that was sent before and lets nothing through that
//! a relied input has not announced.
//!
//! One of two representatives that leaves is treated as one whose successor states nothing: the same answers of its
//! neighbours are waited for, and the bound of what it has stated becomes a floor of the other one.

use super::writes::Then;
use super::{Alarm, Bug, Machine, NodeKey};
use crate::graph::{LinkId, Node, NodeId};
use crate::record::{Key, LinkState, MemberState, RepRecord, RepState, Value};
use crate::store::Change;
use onepipe::control::{Address, Boot, Message, Reason, SEATS};
use std::collections::{BTreeMap, BTreeSet};

impl Machine {
    pub(super) fn register_rep(
        &mut self,
        (switch, seat): (u16, u8),
        boot: Boot,
        address: Address,
        topology: u64,
    ) {
        let node = NodeKey::Rep(switch, seat);
        if topology != self.config.network {
            self.alarm(Alarm::OtherTopology(node));
            return self.send(node, Message::Refused { reason: Reason::OtherTopology });
        }
        if !self.graph.switches().get(usize::from(switch)).is_some_and(|switch| seat == 0 || switch.standby) {
            self.alarm(Alarm::Unknown(node));
            return self.send(node, Message::Refused { reason: Reason::Unknown });
        }
        let leader = self.leader_mut();
        if leader.writes.contains(Then::RepKnown(switch, seat))
            || leader.writes.contains(Then::Leaves(switch, seat))
        {
            // It asks again.
            return;
        }
        let previous = leader.image.rep(switch, seat).map(|(incarnation, rep)| (incarnation, rep.clone()));
        let mut changes = Vec::new();
        if let Some((incarnation, rep)) = previous {
            if rep.boot == boot {
                return self.welcome_rep(switch, seat);
            }
            changes.push(RepRecord { state: RepState::Retired, ..rep }.put_at(Key::Rep(
                switch,
                seat,
                incarnation,
            )));
        }
        let ports = self.graph.switch(switch).ports.len() as u32;
        let writes = &mut self.leader_mut().writes;
        let first_qp = writes.queue_pairs(ports);
        let (incarnation, next) = writes.incarnation();
        let record = RepRecord { state: RepState::Registering, boot, address, first_qp, up: 0, down: 0 };
        changes.extend([record.put_at(Key::Rep(switch, seat, incarnation)), next]);
        writes.add(changes, Then::RepKnown(switch, seat));
    }

    /// Sends a representative its incarnation and its state, if its floors are known; or that it has to end.
    fn welcome_rep(&mut self, switch: u16, seat: u8) {
        let node = NodeKey::Rep(switch, seat);
        let Some((incarnation, rep)) = self.leader().image.rep(switch, seat) else { return };
        match rep.state {
            RepState::Configuring | RepState::Active => {
                let message = Message::WelcomeRep { boot: rep.boot, incarnation, first_qp: rep.first_qp };
                self.send(node, message);
                self.send_desired(node);
            }
            RepState::Retired => self.send_retirement(switch, seat),
            RepState::Registering | RepState::Leaving => {}
        }
    }

    /// Has a representative end whose switch is served by the other one.
    pub(super) fn send_retirement(&mut self, switch: u16, seat: u8) {
        if self.rep_state(switch, seat) == Some(RepState::Retired) {
            self.send(NodeKey::Rep(switch, seat), Message::Retire {});
        }
    }

    /// Computes the floors of registering representatives, and retires those that leave, when all neighbours that know
    /// something have acknowledged the change of their sources.
    pub(super) fn advance_reps(&mut self) {
        let leader = self.leader();
        let changing = leader.derived.changing.clone();
        if changing.is_empty() || leader.writes.contains(Then::FloorsKnown) {
            return;
        }
        // What an earlier incarnation has answered is not of this one, and what one that leaves answers is no evidence.
        let seats = |&switch: &u16| leader.rep_states(switch).map(move |(seat, state)| (switch, seat, state));
        let known = changing.iter().flat_map(seats);
        let known = known.filter(|(.., state)| matches!(state, RepState::Registering | RepState::Leaving));
        let known = known.map(|(switch, seat, _)| NodeKey::Rep(switch, seat));
        let known: Vec<_> = known.filter(|node| leader.nodes.contains_key(node)).collect();
        for node in known {
            self.forget_node(node);
        }
        self.refresh();
        let waited_for = self.floors_wait_for();
        if !waited_for.is_empty() {
            let nodes = &self.leader().nodes;
            let late =
                |node: &NodeKey| nodes.get(node).is_some_and(|state| self.is_overdue(*node, state.since));
            let late: Vec<_> = waited_for.into_iter().filter(late).collect();
            for node in late {
                self.suspect_node(node);
            }
            return;
        }
        let (mut floors, mut changes) = (BTreeMap::new(), Vec::new());
        for switch in changing {
            let of_switch = self.changed_reps(switch, &mut floors);
            if changes.len() + of_switch.len() <= crate::store::MAX_CHANGES {
                changes.extend(of_switch);
            }
        }
        self.leader_mut().writes.add(changes, Then::FloorsKnown);
    }

    /// Returns the changes by which the representatives of a switch that register get their floors, and one that leaves
    /// is retired: the other one has the bound of what it has stated then.
    fn changed_reps(&self, switch: u16, floors: &mut BTreeMap<NodeId, u64>) -> Vec<Change> {
        let (leader, node) = (self.leader(), self.graph.switch(switch));
        let (down, up) = (self.floor(node.down, floors), self.floor(node.up, floors));
        let retires = leader.has_leaving(switch) && !self.has(Bug::RetiredForgotten);
        let changed = |(seat, state): (u8, RepState)| {
            let (incarnation, rep) = leader.image.rep(switch, seat)?;
            let (up, down) = (rep.up.max(up), rep.down.max(down));
            let record = match state {
                RepState::Registering => RepRecord { state: RepState::Configuring, up, down, ..rep.clone() },
                RepState::Leaving => RepRecord { state: RepState::Retired, ..rep.clone() },
                RepState::Configuring | RepState::Active if retires => RepRecord { up, down, ..rep.clone() },
                RepState::Configuring | RepState::Active | RepState::Retired => return None,
            };
            Some(record.put_at(Key::Rep(switch, seat, incarnation)))
        };
        leader.rep_states(switch).filter_map(changed).collect()
    }

    /// Returns the nodes without whose answers the bounds of what changing switches have stated are not known.
    pub(super) fn floors_wait_for(&self) -> BTreeSet<NodeKey> {
        let counted = self.counted();
        let outputs = self.leader().derived.changing.iter().flat_map(|&switch| {
            let node = self.graph.switch(switch);
            [node.up, node.down].into_iter().flat_map(|node| self.graph.outputs(node).to_vec())
        });
        // A switch that is dead answers never; nothing relies on what it knows of a link that does not count.
        outputs
            .filter(|link| counted.contains(link))
            .flat_map(|link| self.keys(self.graph.ends(link).to))
            .filter(|&node| self.knows(node) && !self.leader().is_settled(node))
            .collect()
    }

    pub(super) fn rep_state(&self, switch: u16, seat: u8) -> Option<RepState> {
        self.leader().image.rep(switch, seat).map(|(_, rep)| rep.state)
    }

    /// Returns whether the bound of what some switch has stated is not known yet.
    pub(super) fn has_changing(&self) -> bool {
        !self.leader().derived.changing.is_empty()
    }

    /// Returns whether no representative of a switch has a state, and one is about to get its first one.
    pub(super) fn is_registering(&self, switch: u16) -> bool {
        self.leader().is_changing(switch) && self.leader().serving(switch).next().is_none()
    }

    /// Returns whether a node has a memory of what came over its links.
    fn knows(&self, node: NodeKey) -> bool {
        match node {
            // One that is configuring may have taken its state, and values of its inputs since.
            NodeKey::Rep(switch, seat) => {
                matches!(self.rep_state(switch, seat), Some(RepState::Configuring | RepState::Active))
            }
            NodeKey::Process(id) => self.leader().is_unfailed(id),
        }
    }

    /// Returns an upper bound of what earlier incarnations of a switch's node have sent.
    fn floor(&self, node: NodeId, known: &mut BTreeMap<NodeId, u64>) -> u64 {
        if let Some(&floor) = known.get(&node) {
            return floor;
        }
        let sent = |link: &LinkId| self.carried(*link, known);
        let floor = self.graph.outputs(node).iter().map(sent).max().unwrap_or(0);
        known.insert(node, floor);
        floor
    }

    /// Returns an upper bound of what came over a link.
    fn carried(&self, link: LinkId, known: &mut BTreeMap<NodeId, u64>) -> u64 {
        let leader = self.leader();
        let to = self.graph.ends(link).to;
        let acked = |node: NodeKey| leader.nodes.get(&node).and_then(|state| state.acked.as_ref());
        let switch = match self.graph.at(to) {
            Node::Process(id) => match leader.image.member(id) {
                Some((_, member)) if member.state == MemberState::Failed => return member.delivered,
                _ => return acked(NodeKey::Process(id)).map_or(0, |acked| acked.barrier),
            },
            Node::Up(_) | Node::Down(_) if !self.counted().contains(&link) => return 0,
            Node::Up(switch) | Node::Down(switch) => switch,
        };
        let answers: Vec<_> = leader.serving(switch).map(|seat| acked(NodeKey::Rep(switch, seat))).collect();
        let raws = answers.iter().flatten().filter_map(|acked| acked.raws.get(&link).copied());
        let raw = raws.max().unwrap_or(0);
        if leader.image.links.get(&link.0) != Some(&LinkState::Relied) {
            return raw;
        }
        // Earlier ones may have passed on more than the registers of those that have not caught up show.
        let stored = (0..SEATS).map(|seat| self.stored_floor(self.graph.at(to), seat)).max().unwrap_or(0);
        let knows_all =
            !answers.is_empty() && answers.iter().all(Option::is_some) && !leader.is_changing(switch);
        raw.max(stored).max(if knows_all { 0 } else { self.floor(to, known) })
    }

    pub(super) fn floors_stored(&mut self) {
        self.refresh();
        for (switch, seat) in self.seats() {
            if matches!(self.rep_state(switch, seat), Some(RepState::Configuring | RepState::Retired)) {
                self.welcome_rep(switch, seat);
            }
        }
    }

    /// Stores that representatives have taken their first states.
    pub(super) fn activate_reps(&mut self) {
        // Their records are being written.
        if self.leader().writes.contains(Then::FloorsKnown) {
            return;
        }
        for (switch, seat) in self.leader().derived.configuring.clone() {
            let leader = self.leader();
            let leaves = leader.writes.contains(Then::Leaves(switch, seat));
            let Some((incarnation, rep)) = leader.image.rep(switch, seat) else { continue };
            if !leaves && leader.is_settled(NodeKey::Rep(switch, seat)) {
                let record = RepRecord { state: RepState::Active, ..rep.clone() };
                let change = record.put_at(Key::Rep(switch, seat, incarnation));
                self.leader_mut().writes.add(vec![change], Then::RepActive(switch, seat));
            }
        }
    }

    /// Returns whether a switch may pass a commit barrier on to a failed process, which may not know that it has
    /// failed: its representative has not acknowledged that the link carries none. Such a switch gets none, also where
    /// links that lead to it have been away, and return.
    pub(super) fn is_leaky(&self, switch: u16) -> bool {
        let down = self.graph.switch(switch).down;
        let passes_on = |&&output: &&LinkId| match self.graph.at(self.graph.ends(output).to) {
            Node::Process(id) => self.leader().state(id) == Some(MemberState::Failed),
            Node::Down(below) => self.is_leaky(below),
            Node::Up(_) => false,
        };
        // One that has no state yet states nothing; its first one mutes the link.
        !self.is_registering(switch)
            && !self.has(Bug::CompletedUnmuted)
            && self.graph.outputs(down).iter().filter(passes_on).any(|&output| !self.has_muted(output))
    }

    /// Returns whether links of a switch to other nodes count, so that its values bound those of others.
    pub(super) fn is_needed(&self, switch: u16) -> bool {
        let counted = self.counted();
        let ports = self.graph.switch(switch).ports.iter().flatten();
        ports.map(|port| port.output).any(|output| counted.contains(&output))
    }

    /// Returns whether all representatives whose links to others count have the state that they have to have, and none
    /// registers or leaves; an error is the switch of one.
    pub(super) fn reps_settled(&self) -> Result<(), u16> {
        let mut switches = (0..self.graph.switches().len() as u16).filter(|&switch| self.is_needed(switch));
        let leader = self.leader();
        let ready = |switch: &u16| {
            let is_ready = |seat: u8| {
                self.rep_state(*switch, seat) == Some(RepState::Active)
                    && leader.is_settled(NodeKey::Rep(*switch, seat))
            };
            let mut seats = leader.serving(*switch).peekable();
            !leader.is_changing(*switch) && seats.peek().is_some() && seats.all(is_ready)
        };
        switches.find(|switch| !ready(switch)).map_or(Ok(()), Err)
    }
}
