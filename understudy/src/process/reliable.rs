//! What a process reports of the reliable service.

use super::Counts;
use crate::observe::Values;
use core::fmt::Write as _;
use onepipe_host::Handle;
use onepipe_host::member::Refused;
use onepipe_host::reliable::{Event, Failed, Failure};
use serde::Serialize;
use tracing::{info, warn};

/// Names of failure reasons in the output
const FAILURES: [(Failure, &str); 5] = [
    (Failure::Recalled, "recalled"),
    (Failure::Dead, "receiver_failed"),
    (Failure::Fenced, "excluded"),
    (Failure::Left, "left"),
    (Failure::NotAdmitted, "not_admitted"),
];

/// Section of the JSON report.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct ReliableReport {
    /// Whether the process is a member
    admitted: bool,
    /// Times that it became one
    admissions: u64,
    /// Times that it was excluded
    exclusions: u64,
    /// Times that the commit barrier stood still
    stalls: u64,
    /// Scatterings that were settled
    settled: u64,
    /// Messages that were not delivered, by reason
    failed: Counts,
    /// Other processes that failed
    processes_failed: Vec<FailedRow>,
    /// Last report about the controller, in words
    controller: Option<String>,
    /// Counters of the membership that are not zero, by name
    counters: Counts,
    /// Messages of controllers that were refused, by reason
    refused: Counts,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct FailedRow {
    /// Number of the process
    id: u32,
    /// Time up to which its messages count, in 1Pipe's time
    time_ns: u64,
    /// Case in which it failed
    case: u64,
}

/// Counts of the reliable service's events.
#[derive(Default)]
pub(super) struct ReliableStats {
    admissions: u64,
    exclusions: u64,
    stalls: u64,
    settled: u64,
    failed: Counts,
    processes_failed: Vec<Failed>,
}

impl ReliableStats {
    /// Counts a failed message and returns the name of the reason.
    pub(super) fn record_failure(&mut self, why: Failure) -> &'static str {
        let name = FAILURES.iter().find(|(failure, _)| *failure == why).map_or("other", |(_, name)| name);
        *self.failed.entry(name).or_default() += 1;
        name
    }

    /// Counts an event, and logs those of the membership.
    pub(super) fn record(&mut self, event: &Event) {
        match *event {
            Event::Admitted { incarnation } => {
                self.admissions += 1;
                info!("Admitted to the reliable service, as incarnation {incarnation}.");
            }
            Event::Fenced { timestamp } => {
                self.exclusions += 1;
                warn!(
                    "Fenced: this process has failed at {timestamp}, as the controller has decided; it joins again."
                );
            }
            Event::Stalled => {
                self.stalls += 1;
                warn!("Stalled: the commit barrier stands still, so no reliable message is delivered.");
            }
            Event::Recovered => info!("Recovered: the commit barrier rises again."),
            Event::ProcessFailed(failed) => {
                warn!("Process {} has failed at {}.", failed.process, failed.timestamp);
                self.processes_failed.push(failed);
            }
            Event::Settled { .. } => self.settled += 1,
            Event::SendFailed { .. } => {}
        }
    }

    /// Returns the section of the JSON report.
    pub(super) fn json(&self, handle: &Handle) -> ReliableReport {
        let failed = self.processes_failed.iter().map(|failed| FailedRow {
            id: failed.process.0,
            time_ns: failed.timestamp.nanos(),
            case: failed.case,
        });
        ReliableReport {
            admitted: handle.is_admitted(),
            admissions: self.admissions,
            exclusions: self.exclusions,
            stalls: self.stalls,
            settled: self.settled,
            failed: self.failed.clone(),
            processes_failed: failed.collect(),
            controller: handle.controller_report(),
            counters: counters(handle),
            refused: refused(handle),
        }
    }

    /// Adds the section of the text report.
    pub(super) fn text(&self, handle: &Handle, text: &mut String) {
        // Writing to a string does not fail.
        _ = writeln!(
            text,
            "reliable service: {}admitted {} times, excluded {}, stalled {}, {} scatterings settled",
            if handle.is_admitted() { "a member, " } else { "no member, " },
            self.admissions,
            self.exclusions,
            self.stalls,
            self.settled
        );
        for failed in &self.processes_failed {
            _ = writeln!(text, "process {} failed at {}", failed.process, failed.timestamp);
        }
        let all = [("failed", &self.failed), ("counted", &counters(handle)), ("refused", &refused(handle))];
        for (what, counts) in all.into_iter().filter(|(_, counts)| !counts.is_empty()) {
            _ = writeln!(text, "reliable service, {what}: {}", super::list(counts));
        }
        if let Some(report) = handle.controller_report() {
            _ = writeln!(text, "last report about the controller: {report}");
        }
    }
}

/// Returns the counters of the membership that are not zero.
fn counters(handle: &Handle) -> Counts {
    handle.member_counters().map(|counters| Values::of(counters).nonzero().collect()).unwrap_or_default()
}

/// Returns the counts of refused messages of controllers, by reason, that are not zero.
fn refused(handle: &Handle) -> Counts {
    let Some(counters) = handle.member_counters() else { return Counts::new() };
    let all = Refused::ALL.into_iter().map(|why| (why.name(), counters.refused(why)));
    all.filter(|(_, count)| *count > 0).collect()
}
