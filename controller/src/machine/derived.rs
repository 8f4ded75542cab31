//! What follows from the records alone. It is computed when they change, and not at every input.

use super::Machine;
use crate::decide::Fence;
use crate::graph::LinkId;
use crate::record::{Image, LinkState, RepState, Stage};
use std::collections::BTreeSet;
use std::sync::Arc;

/// What follows from the records.
#[derive(Clone, Debug, Default)]
pub(super) struct Derived {
    /// Number of the records' changes
    pub(super) revision: u64,
    /// Links that count for commit
    pub(super) counted: Arc<BTreeSet<LinkId>>,
    /// Links that count, are not known to be relied, and have a representative as their keeper
    pub(super) pending: Vec<LinkId>,
    /// Links that were dead and have left commit
    pub(super) absent: Vec<LinkId>,
    /// What stands still for decided cases
    pub(super) fence: Fence,
    /// Cases that are not closed
    pub(super) open: Vec<u64>,
    /// Switches with a representative whose floors are not known, or that leaves
    pub(super) changing: Vec<u16>,
    /// Representatives that have not taken their first state
    pub(super) configuring: Vec<(u16, u8)>,
}

impl Machine {
    /// Computes what follows from the records; called whenever they have changed.
    pub(super) fn derive(&mut self) {
        let leader = self.leader();
        let image: &Image = &leader.image;
        let absent = |link: LinkId| image.links.get(&link.0) == Some(&LinkState::Absent);
        let counted = self.graph.counted(|id| leader.takes_part(id), absent);
        let keeps = |link: LinkId| self.graph.at(self.graph.ends(link).to).switch().is_some();
        let pending = counted.iter().copied().filter(|link| !image.links.contains_key(&link.0));
        let decided = image.cases.values().filter(|case| case.stage == Stage::Decided);
        let is_configuring = |&(switch, seat): &(u16, u8)| {
            image.rep(switch, seat).is_some_and(|(_, rep)| rep.state == RepState::Configuring)
        };
        let derived = Derived {
            revision: leader.derived.revision + 1,
            pending: pending.filter(|&link| keeps(link)).collect(),
            absent: image.links.keys().map(|&link| LinkId(link)).filter(|&link| absent(link)).collect(),
            fence: decided.fold(Fence::default(), |fence, case| fence.union(&Fence::of(&case.fence))),
            open: image
                .cases
                .iter()
                .filter(|(_, case)| case.stage != Stage::Resumed)
                .map(|(&case, _)| case)
                .collect(),
            configuring: self.seats().filter(is_configuring).collect(),
            changing: self.switches().filter(|&switch| leader.is_changing(switch)).collect(),
            counted: Arc::new(counted),
        };
        self.leader_mut().derived = derived;
    }
}
