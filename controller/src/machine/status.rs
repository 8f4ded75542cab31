//! What operators see of a controller, and when it has to be called again.

use super::cases::Answer;
use super::{Machine, NodeKey};
use crate::operator::{CaseStatus, MemberStatus, RepStatus, SilentLink, SuspicionStatus};
use crate::record::Stage;
use onepipe::ProcessId;
use std::collections::BTreeSet;
use switch::Nanos;

/// Time between two calls while answers are missing, as a share of the time for an answer
const CHECKS: u64 = 10;

impl core::fmt::Display for NodeKey {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Process(id) => write!(f, "process {id}"),
            Self::Rep(switch, 0) => write!(f, "switch {switch}"),
            Self::Rep(switch, _) => write!(f, "standby of switch {switch}"),
        }
    }
}

impl Machine {
    /// Returns the last incarnation of each process that the store knows.
    pub fn member_status(&self) -> Vec<MemberStatus> {
        let Some(leader) = &self.leader else { return Vec::new() };
        let ids: BTreeSet<_> = leader.image.members.keys().map(|&(id, _)| id).collect();
        let status = |id: ProcessId| {
            let (incarnation, record) = leader.image.member(id)?;
            let connected = self.up.contains(&NodeKey::Process(id));
            let (state, case, time) = (record.state, record.case, record.time);
            Some(MemberStatus { id, incarnation, state, connected, case, time })
        };
        ids.into_iter().filter_map(status).collect()
    }

    /// Returns the last incarnation of each representative that the store knows.
    pub fn rep_status(&self) -> Vec<RepStatus> {
        let Some(leader) = &self.leader else { return Vec::new() };
        let seats: BTreeSet<_> = leader.image.reps.keys().map(|&(switch, seat, _)| (switch, seat)).collect();
        let status = |(switch, seat): (u16, u8)| {
            let (incarnation, record) = leader.image.rep(switch, seat)?;
            let node = NodeKey::Rep(switch, seat);
            let (connected, settled) = (self.up.contains(&node), leader.is_settled(node));
            Some(RepStatus { switch, seat, incarnation, state: record.state, connected, settled })
        };
        seats.into_iter().filter_map(status).collect()
    }

    /// Returns the cases that are not closed.
    pub fn case_status(&self) -> Vec<CaseStatus> {
        let Some(leader) = &self.leader else { return Vec::new() };
        let open = leader.image.cases.iter().filter(|(_, record)| record.stage != Stage::Resumed);
        open.map(|(&case, record)| {
            let progress = leader.progress.get(&case);
            let missing = progress.map(|progress| progress.missing(Answer::Completed)).unwrap_or_default();
            CaseStatus {
                case,
                stage: record.stage,
                failed: record.failed.iter().map(|failed| failed.id).collect(),
                waits: missing.into_iter().filter(|&id| leader.is_unfailed(id)).collect(),
                at: record.at,
            }
        })
        .collect()
    }

    /// Returns the present suspicion.
    pub fn suspicion_status(&self) -> Option<SuspicionStatus> {
        let suspicion = self.leader.as_ref()?.suspicion.as_ref()?;
        let names = |nodes: Vec<NodeKey>| nodes.iter().map(NodeKey::to_string).collect();
        Some(SuspicionStatus {
            phase: suspicion.phase(),
            suspects: names(suspicion.suspects()),
            waits: names(self.unsettled()),
        })
    }

    /// Returns the links whose keepers hear nothing.
    pub fn silent_links(&self) -> Vec<SilentLink> {
        let Some(leader) = &self.leader else { return Vec::new() };
        let silent: BTreeSet<_> =
            leader.links.iter().filter(|(_, status)| status.silent).map(|((link, _), _)| *link).collect();
        silent
            .into_iter()
            .map(|link| {
                let ends = self.graph.ends(link);
                SilentLink { from: self.place_name(ends.from), to: self.place_name(ends.to) }
            })
            .collect()
    }

    /// Returns the time at which [`super::Input::Timer`] has to be given, if nothing else happens.
    pub fn next_timer(&self) -> Option<Nanos> {
        let leader = self.leader.as_ref()?;
        if let Some(at) =
            leader.suspicion.as_ref().and_then(|suspicion| suspicion.gathers_until(self.config.gather))
        {
            return Some(at);
        }
        if let Some(at) = leader.writes.gathers_until() {
            return Some(at);
        }
        if let Some(at) = self.clocks_due().filter(|_| !self.waits()) {
            return Some(at);
        }
        self.waits().then(|| self.now + Nanos((self.config.respond_within.0 / CHECKS).max(1)))
    }

    /// Returns whether an answer is missing that something depends on.
    fn waits(&self) -> bool {
        let leader = self.leader();
        // A representative that does not answer is waited for by joins and cases only.
        leader.suspicion.is_some()
            || !leader.joins.is_empty()
            || !leader.progress.is_empty()
            || !leader.recoveries.is_empty()
            || !leader.writes.is_empty()
            || !leader.forwards.is_empty()
            || !leader.ahead.is_empty()
            || self.has_changing()
            || self.watches_seats()
    }
}
