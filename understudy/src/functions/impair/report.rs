//! The impairing function's part of the report.

use crate::functions::report::Section;
use crate::observe::{FunctionMetrics, Row, Table};
use crate::output::{row, section};
use core::fmt::Write as _;
use serde::Serialize;

/// Results of rules, and counts of held frames.
#[derive(Serialize)]
pub(super) struct ImpairReport {
    pub(super) rules: Vec<RuleRow>,
    /// Frames held back
    pub(super) held: u64,
    /// Frames still held when the run ended
    pub(super) held_at_end: u64,
    /// Largest number of frames that one worker held at once
    pub(super) held_peak: u64,
    /// Frames that were to be held but were sent at once because no slot was free
    pub(super) held_full: u64,
    /// Packets of flows whose first PSN could not be stored
    pub(super) flows_full: u64,
}

#[derive(Serialize)]
pub(super) struct RuleRow {
    pub(super) name: String,
    pub(super) action: &'static str,
    pub(super) matched: u64,
    pub(super) acted: u64,
    pub(super) unable: u64,
}

impl ImpairReport {
    /// Adds the function's metrics to `metrics`, for observation.
    pub(super) fn add_metrics(self, metrics: FunctionMetrics) -> FunctionMetrics {
        let rules = self
            .rules
            .iter()
            .map(|rule| Row::new([&*rule.name, rule.action], [rule.matched, rule.acted, rule.unable]));
        metrics
            .counters([("held", self.held), ("held_full", self.held_full), ("flows_full", self.flows_full)])
            .gauges([("held_now", self.held_at_end), ("held_peak", self.held_peak)])
            .first(Table::new("rule", &["rule", "action"], 1, &["matched", "acted", "unable"], rules))
    }
}

impl Section for ImpairReport {
    const KEY: &'static str = "impair";

    fn text(&self, text: &mut String) {
        let rules = self
            .rules
            .iter()
            .map(|rule| row(&[&rule.name, rule.action], &[rule.matched, rule.acted, rule.unable]));
        section(text, "Rules", &["rule", "action", "matched", "acted", "unable"], 2, rules);
        if self.held > 0 {
            let Self { held, held_peak, held_at_end, .. } = self;
            _ = write!(text, "{held} frames were held back, up to {held_peak} at once");
            if *held_at_end > 0 {
                _ = write!(text, "; {held_at_end} were still held when the run ended, and are lost");
            }
            text.push('\n');
        }
        for (count, what) in [
            (self.held_full, "frames were not held back because no slot was free; raise `held`"),
            (self.flows_full, "packets were of flows that could not be stored; raise `flows`"),
        ] {
            if count > 0 {
                _ = writeln!(text, "{count} {what}");
            }
        }
    }
}
