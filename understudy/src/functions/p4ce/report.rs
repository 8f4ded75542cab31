//! P4CE's part of the report.

use crate::functions::report::Section;
use crate::observe::Values;
use core::fmt::Write as _;
use p4ce::ControlCounters;
use serde::Serialize;

/// Groups of P4CE, and their packets.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct P4ceReport {
    #[serde(flatten)]
    #[cfg_attr(
        test,
        schemars(schema_with = "crate::reference::metrics2::<ControlCounters, p4ce::Counters>")
    )]
    pub(super) counts: Values,
    /// Groups that existed when the run ended
    pub(super) groups: Vec<GroupRow>,
    #[serde(skip)]
    pub(super) setup: ControlCounters,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct GroupRow {
    /// Number of the group
    pub(super) group: u32,
    /// Address of the leader
    pub(super) leader: String,
    /// Addresses of all replicas
    pub(super) replicas: Vec<String>,
    /// Replicas that were excluded
    pub(super) excluded: Vec<String>,
    /// Replicas whose acknowledgements make one for the leader
    pub(super) quorum: usize,
    /// Whether the leader's connection is established
    pub(super) open: bool,
}

impl Section for P4ceReport {
    const KEY: &'static str = "p4ce";

    fn text(&self, text: &mut String) {
        let ControlCounters { requested, opened, refused, closed, excluded, .. } = self.setup;
        _ = writeln!(
            text,
            "Groups: {requested} requested, {opened} opened, {refused} refused, {closed} closed; {excluded} replicas excluded"
        );
        let [requests, copies, responses, acks, naks, rnr_naks, fatal_naks] =
            ["requests", "copies", "responses", "acks", "naks", "rnr_naks", "fatal_naks"]
                .map(|name| self.counts.get(name));
        _ = writeln!(
            text,
            "{requests} requests of leaders were copied to {copies}; {responses} responses were gathered into {acks} ACKs, \
             {naks} NAKs, {rnr_naks} RNR NAKs, {fatal_naks} fatal NAKs"
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
