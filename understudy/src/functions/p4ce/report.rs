//! P4CE's part of the report.

use crate::functions::report::Section;
use core::fmt::Write as _;
use serde::Serialize;

/// Groups of P4CE, and their packets.
#[derive(Serialize)]
pub(super) struct P4ceReport {
    /// Groups that leaders requested, and those opened, refused and closed
    pub(super) requested: u64,
    pub(super) opened: u64,
    pub(super) refused: u64,
    /// Groups refused because the leader may not open groups, or not as many
    pub(super) limited: u64,
    pub(super) closed: u64,
    /// Replicas excluded from groups that continued without them
    pub(super) excluded: u64,
    /// Requests of leaders that were sent to replicas, and their copies
    pub(super) requests: u64,
    pub(super) copies: u64,
    /// Responses of replicas
    pub(super) responses: u64,
    /// Responses sent to leaders
    pub(super) acks: u64,
    pub(super) naks: u64,
    pub(super) rnr_naks: u64,
    pub(super) fatal_naks: u64,
    pub(super) repeated: u64,
    pub(super) cnps: u64,
    /// Leaders and replicas that moved to another port
    pub(super) moved: u64,
    /// Groups that existed when the run ended
    pub(super) groups: Vec<GroupRow>,
}

#[derive(Serialize)]
pub(super) struct GroupRow {
    pub(super) group: u32,
    pub(super) leader: String,
    pub(super) replicas: Vec<String>,
    pub(super) excluded: Vec<String>,
    pub(super) quorum: usize,
    pub(super) open: bool,
}

impl Section for P4ceReport {
    const KEY: &'static str = "p4ce";

    fn text(&self, text: &mut String) {
        _ = writeln!(
            text,
            "Groups: {} requested, {} opened, {} refused, {} closed; {} replicas excluded",
            self.requested, self.opened, self.refused, self.closed, self.excluded
        );
        _ = writeln!(
            text,
            "{} requests of leaders were copied to {}; {} responses were gathered into {} ACKs, {} NAKs, {} RNR NAKs, {} fatal NAKs",
            self.requests, self.copies, self.responses, self.acks, self.naks, self.rnr_naks, self.fatal_naks
        );
        for group in &self.groups {
            let state = if group.open { "" } else { ", not open yet" };
            let excluded = if group.excluded.is_empty() {
                String::new()
            } else {
                format!(", without {}", group.excluded.join(", "))
            };
            _ = writeln!(
                text,
                "Group {}: {} to {}, quorum {}{excluded}{state}",
                group.group,
                group.leader,
                group.replicas.join(", "),
                group.quorum
            );
        }
    }
}
