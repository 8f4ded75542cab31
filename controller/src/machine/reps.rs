//! Representatives: registration, and the floors of a new incarnation.
//!
//! A new incarnation does not know what earlier ones have sent. Its *floor* is an upper bound of that, taken
//! from the registers of the nodes that its links lead to. None of its inputs counts before it has reached
//! the floor, so what it sends never lies below a value that was sent before and lets nothing through that
//! a relied input has not announced.

use super::writes::Then;
use super::{Alarm, Bug, Machine, NodeKey};
use crate::graph::{LinkId, Node, NodeId};
use crate::record::{Key, LinkState, MemberState, RepRecord, RepState, Value};
use onepipe::control::{Address, Boot, Message, Reason};
use std::collections::{BTreeMap, BTreeSet};

impl Machine {
    pub(super) fn register_rep(&mut self, switch: u16, boot: Boot, address: Address, topology: u64) {
        let node = NodeKey::Rep(switch);
        if topology != self.config.network {
            self.alarm(Alarm::OtherTopology(node));
            return self.send(node, Message::Refused { reason: Reason::OtherTopology });
        }
        if usize::from(switch) >= self.graph.switches().len() {
            self.alarm(Alarm::Unknown(node));
            return self.send(node, Message::Refused { reason: Reason::Unknown });
        }
        let leader = self.leader_mut();
        if leader.writes.contains(Then::RepKnown(switch)) {
            return;
        }
        let previous = leader.image.rep(switch).map(|(incarnation, rep)| (incarnation, rep.clone()));
        let mut changes = Vec::new();
        if let Some((incarnation, rep)) = previous {
            if rep.boot == boot {
                return self.welcome_rep(switch);
            }
            changes.push(RepRecord { state: RepState::Retired, ..rep }.put_at(Key::Rep(switch, incarnation)));
        }
        let ports = self.graph.switch(switch).ports.len() as u32;
        let writes = &mut self.leader_mut().writes;
        let first_qp = writes.queue_pairs(ports);
        let (incarnation, next) = writes.incarnation();
        let record = RepRecord { state: RepState::Registering, boot, address, first_qp, up: 0, down: 0 };
        changes.extend([record.put_at(Key::Rep(switch, incarnation)), next]);
        writes.add(changes, Then::RepKnown(switch));
    }

    /// Sends a representative its incarnation and its state, if its floors are known.
    fn welcome_rep(&mut self, switch: u16) {
        let Some((incarnation, rep)) = self.leader().image.rep(switch) else { return };
        if rep.state == RepState::Configuring || rep.state == RepState::Active {
            let message = Message::WelcomeRep { boot: rep.boot, incarnation, first_qp: rep.first_qp };
            self.send(NodeKey::Rep(switch), message);
            self.send_desired(NodeKey::Rep(switch));
        }
    }

    /// Computes the floors of registering representatives, when all neighbours that know something have
    /// acknowledged the change of their sources.
    pub(super) fn advance_reps(&mut self) {
        let leader = self.leader();
        let registering = leader.derived.registering.clone();
        if registering.is_empty() || leader.writes.contains(Then::FloorsKnown) {
            return;
        }
        // What an earlier incarnation has answered is not of this one.
        let known = registering.iter().map(|&switch| NodeKey::Rep(switch));
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
        let mut floors = BTreeMap::new();
        let changes = registering.iter().map(|&switch| {
            let (incarnation, rep) = self.leader().image.rep(switch).expect("registering");
            let node = self.graph.switch(switch);
            let (down, up) = (self.floor(node.down, &mut floors), self.floor(node.up, &mut floors));
            let record = RepRecord { state: RepState::Configuring, up, down, ..rep.clone() };
            record.put_at(Key::Rep(switch, incarnation))
        });
        let changes: Vec<_> = changes.take(crate::store::MAX_CHANGES).collect();
        self.leader_mut().writes.add(changes, Then::FloorsKnown);
    }

    /// Returns the nodes without whose answers the floors of registering representatives are not known.
    pub(super) fn floors_wait_for(&self) -> BTreeSet<NodeKey> {
        let counted = self.counted();
        let outputs = self.leader().derived.registering.iter().flat_map(|&switch| {
            let node = self.graph.switch(switch);
            [node.up, node.down].into_iter().flat_map(|node| self.graph.outputs(node).to_vec())
        });
        // A switch that is dead answers never; nothing relies on what it knows of a link that does not count.
        outputs
            .filter(|link| counted.contains(link))
            .map(|link| self.key(self.graph.ends(link).to))
            .filter(|&node| self.knows(node) && !self.leader().is_settled(node))
            .collect()
    }

    pub(super) fn rep_state(&self, switch: u16) -> Option<RepState> {
        self.leader().image.rep(switch).map(|(_, rep)| rep.state)
    }

    /// Returns whether the floors of a representative are not known yet.
    pub(super) fn has_registering(&self) -> bool {
        !self.leader().derived.registering.is_empty()
    }

    pub(super) fn is_registering(&self, switch: u16) -> bool {
        self.rep_state(switch) == Some(RepState::Registering)
    }

    /// Returns whether a node has a memory of what came over its links.
    fn knows(&self, node: NodeKey) -> bool {
        match node {
            // One that is configuring may have taken its state, and values of its inputs since.
            NodeKey::Rep(switch) => {
                matches!(self.rep_state(switch), Some(RepState::Configuring | RepState::Active))
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
        let key = self.key(to);
        let acked = leader.nodes.get(&key).and_then(|state| state.acked.as_ref());
        match (self.graph.at(to), acked) {
            (Node::Process(id), acked) => match leader.image.member(id) {
                Some((_, member)) if member.state == MemberState::Failed => member.delivered,
                _ => acked.map_or(0, |acked| acked.barrier),
            },
            (Node::Up(_) | Node::Down(_), _) if !self.counted().contains(&link) => 0,
            (_, Some(acked)) if self.knows(key) => acked.raws.get(&link).copied().unwrap_or(0),
            (Node::Up(switch) | Node::Down(switch), _) => {
                if leader.image.links.get(&link.0) != Some(&LinkState::Relied) {
                    return 0;
                }
                let stored = leader.image.rep(switch).map_or([0; 2], |(_, rep)| [rep.up, rep.down]);
                let stored = stored[usize::from(matches!(self.graph.at(to), Node::Down(_)))];
                stored.max(self.floor(to, known))
            }
        }
    }

    pub(super) fn floors_stored(&mut self) {
        self.refresh();
        for switch in 0..self.graph.switches().len() as u16 {
            if self.rep_state(switch) == Some(RepState::Configuring) {
                self.welcome_rep(switch);
            }
        }
    }

    /// Takes the first answer of a new incarnation.
    pub(super) fn rep_configured(&mut self, switch: u16) {
        let Some((incarnation, rep)) = self.leader().image.rep(switch) else { return };
        if rep.state == RepState::Configuring {
            let record = RepRecord { state: RepState::Active, ..rep.clone() };
            let change = record.put_at(Key::Rep(switch, incarnation));
            self.leader_mut().writes.add(vec![change], Then::RepActive(switch));
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

    /// Returns whether all representatives whose links to others count have the state that they have to have;
    /// an error is one that has not.
    pub(super) fn reps_settled(&self) -> Result<(), u16> {
        let mut switches = (0..self.graph.switches().len() as u16).filter(|&switch| self.is_needed(switch));
        let ready = |switch: &u16| {
            self.rep_state(*switch) == Some(RepState::Active)
                && self.leader().is_settled(NodeKey::Rep(*switch))
        };
        switches.find(|switch| !ready(switch)).map_or(Ok(()), Err)
    }
}
