//! What nodes have acknowledged together with what stands still.
//!
//! A switch's value is one only if *all* of its representatives that have a state stand still there: what the switch
//! has stated is the maximum of what they have. While a representative registers or leaves, its neighbours may take
//! what nothing has acknowledged, so nothing of its switch is evidence. What those have stated that are gone is
//! in the stored floors of the others.

use super::nodes::{Acked, Desired};
use super::{Bug, Machine, NodeKey};
use crate::decide::Acknowledged;
use crate::graph::{LinkId, Node};
use crate::record::RepState;
use onepipe::control::LinkSetting;

/// A representative's answer.
struct Answer<'a> {
    acked: &'a Acked,
    links: &'a [LinkSetting],
    /// Upper bounds of what earlier representatives have stated, of the upper and of the lower node
    floors: [u64; 2],
}

/// Returns 0 for the upper node of a switch, and 1 for its lower one.
fn half(node: Node) -> usize {
    usize::from(matches!(node, Node::Down(_)))
}

impl Machine {
    /// Returns the values that nodes acknowledged together with what stands still.
    pub(super) fn acknowledged(&self) -> Acknowledged {
        let leader = self.leader();
        let mut values = Acknowledged::default();
        for (&node, state) in &leader.nodes {
            if let (NodeKey::Process(id), Some(acked)) = (node, &state.acked)
                && matches!(acked.desired, Desired::Process { held: true, .. })
            {
                values.held.insert(id, acked.barrier);
            }
        }
        self.switches().for_each(|switch| self.acknowledged_switch(switch, &mut values));
        values
    }

    /// Returns the answers of a switch's representatives, and whether they are all that bounds what it states.
    fn answers(&self, switch: u16) -> (Vec<Answer<'_>>, bool) {
        let leader = self.leader();
        let answer = |seat: u8| {
            let acked = leader.nodes.get(&NodeKey::Rep(switch, seat))?.acked.as_ref()?;
            let Desired::Rep { floors, links, .. } = &acked.desired else { return None };
            let stored = leader.image.rep(switch, seat).map_or([0; 2], |(_, rep)| [rep.up, rep.down]);
            let floors = [0, 1].map(|half| floors[half].max(stored[half]));
            Some(Answer { acked, links, floors })
        };
        let answers: Vec<_> = leader.serving(switch).filter_map(answer).collect();
        let is_complete = answers.len() == leader.serving(switch).count() && !leader.is_changing(switch);
        let is_enough = self.has(Bug::NoFreeze) || self.has(Bug::FrozenAtOneSeat);
        (answers, is_complete || is_enough)
    }

    fn acknowledged_switch(&self, switch: u16, to: &mut Acknowledged) {
        let (answers, are_all) = self.answers(switch);
        let Some(first) = answers.first() else { return };
        // All states of a switch have the same links.
        for (at, setting) in first.links.iter().enumerate() {
            let Some(input) = self.input(switch, setting.link) else { continue };
            let raw = |answer: &Answer<'_>| answer.acked.raws.get(&input).copied().unwrap_or(0);
            if self.is_replaced(input) {
                to.replaced.insert(input, answers.iter().map(raw).max().unwrap_or(0));
            }
            let still = |is: fn(&LinkSetting) -> bool| {
                let mut settings = answers.iter().map(|answer| &answer.links[at]);
                are_all && if self.has(Bug::FrozenAtOneSeat) { settings.any(is) } else { settings.all(is) }
            };
            if still(|setting| setting.frozen) || self.has(Bug::NoFreeze) {
                let half = half(self.graph.at(self.graph.ends(input).to));
                let bound = |answer: &Answer<'_>| raw(answer).max(answer.floors[half]);
                to.frozen.insert(input, answers.iter().map(bound).max().unwrap_or(0));
            }
            let port = self.graph.switch(switch).ports.get(usize::from(setting.link)).copied().flatten();
            if let Some(port) =
                port.filter(|port| still(|setting| setting.muted) && !self.hears_retired(port.output))
            {
                // One that has not caught up sends nothing yet; earlier incarnations have sent at most the floor.
                let half = half(self.graph.at(self.graph.ends(port.output).from));
                let bound = |answer: &Answer<'_>| answer.acked.outputs[half].max(answer.floors[half]);
                to.muted.insert(port.output, answers.iter().map(bound).max().unwrap_or(0));
            }
        }
    }

    /// Returns whether a representative of the switch at the beginning of a link was replaced, or leaves, and what it
    /// has stated is not bounded by its successor's floor yet.
    fn is_replaced(&self, input: LinkId) -> bool {
        let ends = self.graph.ends(input);
        let Some(from) = self.graph.at(ends.from).switch() else { return false };
        let is_new = |state| !matches!(state, RepState::Active | RepState::Retired);
        self.graph.at(ends.to).switch() != Some(from)
            && self.leader().rep_states(from).any(|(_, state)| is_new(state))
    }

    /// Returns whether the process at the end of a link may listen to a representative that was retired, and that
    /// has not acknowledged that the link carries no commit barrier.
    fn hears_retired(&self, output: LinkId) -> bool {
        let Node::Process(id) = self.graph.at(self.graph.ends(output).to) else { return false };
        let Some(given) = self.leader().given.get(&id) else { return false };
        let sources = self.sources(output);
        // One that restarts has ended before.
        let is_retired = |address| !sources.iter().any(|source| source.address == address);
        given.iter().any(|source| is_retired(source.address))
    }
}
