//! A representative that ends on the operator's request, because the other one of its switch serves: a rolling upgrade
//! without a stall.
//!
//! The leader remembers nothing of a request: it has the representative leave if the other one is ready, and does
//! nothing otherwise. What follows is in the records, so the next leader goes on with it.

use super::seats::DEAF_AFTER;
use super::{Bug, Machine, NodeKey};
use crate::graph::{LinkId, Node};
use crate::record::RepState;
use onepipe::control::{Incarnation, SEATS};

/// How far a representative is that is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drain {
    /// The one at this seat can leave
    Ready(u8),
    /// It leaves: not all neighbours have acknowledged that
    Leaves,
    /// It has left, and ends
    Retired,
}

/// Why a representative cannot leave.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotReady {
    /// There is no such representative
    #[error("switch {0} has no representative of incarnation {1}; `status` lists them")]
    Unknown(u16, Incarnation),
    /// A failure is suspected or not closed
    #[error("a case is open; `status` names what it waits for")]
    Case,
    /// The other representative is missing
    #[error("{0} does not serve; start the program of the other file of this switch, and see `status`")]
    Missing(NodeKey),
    /// The other representative may have started again
    #[error("{0} has connected a moment ago")]
    Connects(NodeKey),
    /// It has not caught up with an input
    #[error("{0} has not caught up with its input from {1}")]
    Behind(NodeKey, String),
    /// It is not heard at the end of an output
    #[error("{0} is not heard by {1}; mend the path between them")]
    Unheard(NodeKey, NodeKey),
    /// A node at the end of an output may not know yet whether it is heard
    #[error("{1} has not listened to {0} for long enough")]
    Recent(NodeKey, NodeKey),
}

impl Machine {
    /// Returns how far an incarnation of a switch's representative is that is to end.
    ///
    /// # Errors
    /// The other one is not ready to serve alone, or a case is open.
    pub fn drained(&self, switch: u16, incarnation: Incarnation) -> Result<Drain, NotReady> {
        let unknown = NotReady::Unknown(switch, incarnation);
        let Some(leader) = &self.leader else { return Err(unknown) };
        let of = |seat: u8| leader.image.reps.get(&(switch, seat, incarnation)).map(|rep| (seat, rep.state));
        match (0..SEATS).find_map(of) {
            None => Err(unknown),
            Some((_, RepState::Leaving)) => Ok(Drain::Leaves),
            Some((_, RepState::Retired)) => Ok(Drain::Retired),
            Some(_) if leader.has_open_case() => Err(NotReady::Case),
            Some((seat, _)) => self.serves_alone(switch, (seat + 1) % SEATS).map(|()| Drain::Ready(seat)),
        }
    }

    /// Has a representative leave if the other one of its switch serves alone.
    pub(super) fn drain(&mut self, switch: u16, seat: u8) {
        let Some(incarnation) = self.incarnation(NodeKey::Rep(switch, seat)) else { return };
        if self.drained(switch, incarnation) == Ok(Drain::Ready(seat)) {
            self.retire(switch, seat);
        }
    }

    /// Checks that a representative has caught up with all of its inputs, and is heard at all of its outputs.
    fn serves_alone(&self, switch: u16, seat: u8) -> Result<(), NotReady> {
        let (leader, node) = (self.leader(), NodeKey::Rep(switch, seat));
        let is_active = self.rep_state(switch, seat) == Some(RepState::Active);
        if !is_active || !self.up.contains(&node) || !leader.is_settled(node) {
            return Err(NotReady::Missing(node));
        }
        if self.has(Bug::DrainsUnready) {
            return Ok(());
        }
        let wait = self.config.respond_within.0 * DEAF_AFTER;
        // It may have started again, and register next.
        if self.connected_for(node).0 < wait {
            return Err(NotReady::Connects(node));
        }
        let (counted, switch) = (self.counted(), self.graph.switch(switch));
        let of = |links: &[LinkId]| -> Vec<_> {
            links.iter().copied().filter(|link| counted.contains(link)).collect()
        };
        let [up, down] = [switch.up, switch.down];
        for link in [up, down].into_iter().flat_map(|node| of(self.graph.inputs(node))) {
            let status = leader.links.get(&(link, seat)).copied().unwrap_or_default();
            if !status.caught || status.silent {
                return Err(NotReady::Behind(node, self.place_name(self.graph.ends(link).from)));
            }
        }
        let outputs = [up, down].into_iter().flat_map(|node| of(self.graph.outputs(node)));
        // The path between the halves is no output to another node.
        outputs.filter(|&link| link != switch.loopback).try_for_each(|link| self.is_heard(node, seat, link))
    }

    /// Checks that a representative at this seat is heard by all nodes at the end of an output, each of which has had
    /// the time to find that it is not.
    fn is_heard(&self, node: NodeKey, seat: u8, link: LinkId) -> Result<(), NotReady> {
        let leader = self.leader();
        let wait = self.config.respond_within.0 * DEAF_AFTER;
        self.keys(self.graph.ends(link).to).into_iter().try_for_each(|keeper| {
            let status = leader.links.get(&(link, Self::seat(keeper)));
            let state = leader.nodes.get(&keeper).filter(|state| state.is_settled());
            match (status, state) {
                (Some(status), Some(_)) if status.quiet & (1 << seat) != 0 => {
                    Err(NotReady::Unheard(node, keeper))
                }
                (Some(_), Some(state)) if self.since(state.since).0 >= wait => Ok(()),
                _ => Err(NotReady::Recent(node, keeper)),
            }
        })
    }

    /// Returns a node of the graph for operators.
    pub(super) fn place_name(&self, node: crate::graph::NodeId) -> String {
        match self.graph.at(node) {
            Node::Process(id) => format!("process {id}"),
            Node::Up(switch) => format!("switch {switch} up"),
            Node::Down(switch) => format!("switch {switch} down"),
        }
    }
}
