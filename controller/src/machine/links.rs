//! Links that count for commit from now on: those that have caught up, and those that are heard.

use super::Machine;
use super::writes::Then;
use crate::graph::{LinkId, Node};
use crate::record::{Key, LinkRecord, LinkState, Value};

/// Links per write of what was found out about links
const LINKS_PER_WRITE: usize = 90;

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
        let settled = |link: LinkId| leader.is_settled(self.key(self.graph.ends(link).to));
        let status = |link: LinkId| leader.links.get(&link).copied();
        let caught = leader
            .derived
            .pending
            .iter()
            .filter(|&&link| settled(link) && status(link).is_some_and(|status| status.caught));
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

    /// Returns whether a link that does not count is heard, and may count.
    fn is_back(&self, link: LinkId) -> bool {
        let (leader, ends) = (self.leader(), self.graph.ends(link));
        leader.suspicion.is_none()
            && [ends.from, ends.to].iter().all(|&node| self.up.contains(&self.key(node)))
            && leader.is_settled(self.key(ends.to))
            && leader.links.get(&link).is_some_and(|status| !status.silent)
    }

    /// Returns whether a link is one of a process.
    pub(super) fn is_access(&self, link: LinkId) -> bool {
        let ends = self.graph.ends(link);
        [ends.from, ends.to].into_iter().any(|node| matches!(self.graph.at(node), Node::Process(_)))
    }
}
