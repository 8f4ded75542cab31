//! Contact of nodes with the controller that leads, as seen from outside: a process that could be stopped must not
//! be one that "nothing could stop".

use super::System;
use super::control::RESPOND_WITHIN;
use controller::machine::NodeKey;
use controller::record::RepState;
use onepipe::ProcessId;
use std::collections::BTreeMap;
use switch::Nanos;

/// Time in which a node with contact has answered
const ANSWERS_WITHIN: Nanos = Nanos(2 * RESPOND_WITHIN.0);

/// When each node was last without contact: one that has restarted has none before it has the incarnation that is
/// stored, and a representative none before it has a state.
#[derive(Debug, Default)]
pub(super) struct Contact {
    last_without: BTreeMap<NodeKey, Nanos>,
}

impl System {
    /// Notes the nodes that have no contact.
    pub(super) fn see_contact(&mut self) {
        if self.plan.load.is_some() {
            return;
        }
        let now = self.now();
        for node in self.nodes() {
            let is_reached = self.leader().is_some_and(|leader| leader.reaches(node, now));
            if self.is_down(node) || !is_reached || !self.is_known(node) {
                self.contact.last_without.insert(node, now);
            }
        }
    }

    /// Returns whether a node is of the incarnation that is stored.
    fn is_known(&self, node: NodeKey) -> bool {
        match node {
            NodeKey::Process(id) => {
                let stored = self.image.member(id).map(|(incarnation, _)| incarnation.0);
                stored.is_some() && stored == self.host(id.0 as usize).member.last_incarnation()
            }
            NodeKey::Rep(switch, seat) => {
                let stored = self.image.rep(switch, seat);
                let present = self.sites[&(switch, seat)].keeper.status().incarnation;
                stored.is_some_and(|(incarnation, rep)| {
                    incarnation == present && matches!(rep.state, RepState::Configuring | RepState::Active)
                })
            }
        }
    }

    /// Checks that a process which the controller could not stop had no contact, nor had its switch.
    ///
    /// # Errors
    /// One of them could have answered.
    pub(super) fn check_unfenced(&self, case: u64, id: ProcessId) -> Result<(), String> {
        if self.plan.load.is_some() {
            return Ok(());
        }
        let place = self.graph.place(id).expect("a process of the graph");
        // All representatives of the switch have to answer.
        let of_switch = |(switch, _): &&super::SeatId| *switch == place.switch;
        let seats = self.sites.keys().filter(of_switch).map(|&(switch, seat)| NodeKey::Rep(switch, seat));
        let last = |node: NodeKey| self.contact.last_without.get(&node).copied();
        let of_process = last(NodeKey::Process(id));
        let of_switch = seats.filter_map(last).max();
        for (what, last) in [("it", of_process), ("its switch", of_switch)] {
            if last.is_none_or(|last| self.now() > last + ANSWERS_WITHIN) {
                return Err(format!(
                    "in case {case} nothing stopped process {id}, but {what} had contact since {last:?}"
                ));
            }
        }
        Ok(())
    }
}
