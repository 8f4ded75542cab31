//! Links that count for commit from now on: those that have caught up, and those that are heard.

use super::nodes::At;
use super::writes::Then;
use super::{Machine, NodeKey};
use crate::graph::{LinkId, Node};
use crate::record::{Key, LinkRecord, LinkState, Value};
use onepipe::control::SEATS;
use std::collections::BTreeSet;

/// Links per write of what was found out about links
const LINKS_PER_WRITE: usize = 90;
/// Questions for a register within the time for an answer
const ASKS: u64 = 10;

impl Machine {
    /// Stores that links are relied, or that links which were dead speak again.
    pub(super) fn settle_links(&mut self) {
        let leader = self.leader();
        let completing =
            leader.derived.open.iter().any(|&case| leader.writes.contains(Then::Completed(case)));
        let changes = completing || leader.writes.has_departure() || leader.suspicion_is_writing();
        if leader.writes.contains(Then::Links) || changes {
            return;
        }
        let caught = leader.derived.pending.iter().filter(|&&link| self.has_caught(link));
        let relied = caught.map(|link| LinkRecord { state: LinkState::Relied }.put_at(Key::Link(link.0)));
        // Both links of a process count from the same write on: a number of links that is even, and first.
        let joining = leader.joins.keys().filter(|&&id| self.is_listening(id));
        let joining = joining.filter_map(|&id| self.graph.place(id)).map(|place| [place.up, place.down]);
        let heard = joining.filter(|links| links.iter().all(|&link| self.is_back(link))).flatten();
        let core = leader.derived.absent.iter().copied();
        let core = core.filter(|&link| !self.is_access(link) && self.is_back(link));
        let back = heard.chain(core).map(|link| Key::Link(link.0).delete());
        let changes: Vec<_> = back.chain(relied).take(LINKS_PER_WRITE).collect();
        if !changes.is_empty() {
            self.leader_mut().writes.add(changes, Then::Links);
        }
    }

    /// Returns whether all representatives that keep a link have caught up on it, and with what their switch has
    /// stated through one that is retired: that may have been before the link counted there.
    fn has_caught(&self, link: LinkId) -> bool {
        let to = self.graph.at(self.graph.ends(link).to);
        let Some(switch) = to.switch() else { return false };
        let leader = self.leader();
        let has_caught = |seat: u8| {
            let status =
                leader.links.get(&(link, seat)).filter(|_| leader.is_settled(NodeKey::Rep(switch, seat)));
            status.is_some_and(|status| status.caught && status.raw >= self.stored_floor(to, seat))
        };
        let mut seats = leader.serving(switch).peekable();
        !leader.is_changing(switch) && seats.peek().is_some() && seats.all(has_caught)
    }

    /// Returns the stored floor of a representative's node.
    pub(super) fn stored_floor(&self, node: Node, seat: u8) -> u64 {
        let rep = node.switch().and_then(|switch| self.leader().image.rep(switch, seat));
        rep.map_or(0, |(_, rep)| if matches!(node, Node::Down(_)) { rep.down } else { rep.up })
    }

    /// Asks again for registers that have caught up with an output, and not yet with a floor that was raised since.
    pub(super) fn ask_for_registers(&mut self) {
        let (now, wait) = (self.now, self.config.respond_within.0 / ASKS);
        if now.since(self.leader().seats.asked).0 < wait {
            return;
        }
        let is_low = |&(link, seat): &At| {
            let to = self.graph.at(self.graph.ends(link).to);
            let status = self.leader().links.get(&(link, seat));
            status.is_some_and(|status| status.caught && status.raw < self.stored_floor(to, seat))
        };
        let pending = self.leader().derived.pending.iter();
        let low = pending.flat_map(|&link| (0..SEATS).map(move |seat| (link, seat))).filter(is_low);
        let node = |(link, seat)| Some(NodeKey::Rep(self.graph.at(self.graph.ends(link).to).switch()?, seat));
        let low: BTreeSet<_> = low.filter_map(node).collect();
        if !low.is_empty() {
            self.leader_mut().seats.asked = now;
            for node in low {
                self.send_desired(node);
            }
        }
    }

    /// Returns whether a link that does not count is heard, and may count.
    fn is_back(&self, link: LinkId) -> bool {
        let (leader, ends) = (self.leader(), self.graph.ends(link));
        let hears = |node: &NodeKey| {
            let at = (link, Self::seat(*node));
            self.up.contains(node)
                && leader.is_settled(*node)
                && leader.links.get(&at).is_some_and(|status| !status.silent)
        };
        leader.suspicion.is_none()
            && self.keys(ends.from).iter().any(|node| self.up.contains(node))
            && self.keys(ends.to).iter().any(hears)
    }

    /// Returns whether a link is one of a process.
    pub(super) fn is_access(&self, link: LinkId) -> bool {
        let ends = self.graph.ends(link);
        [ends.from, ends.to].into_iter().any(|node| matches!(self.graph.at(node), Node::Process(_)))
    }
}
