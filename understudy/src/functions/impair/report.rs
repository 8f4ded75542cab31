//! The impairing function's part of the report.

use crate::functions::report::Section;
use crate::observe::{FunctionMetrics, Row, Table, Values, headings};
use crate::output::{row, section};
use serde::Serialize;
use std::sync::Arc;
use switch::impair::counters::{RemovedCounters, RuleCounters};
use switch::impair::{Counters, Rule, Rules};
use switch::metrics::Metrics as _;

/// Results of rules, and counts of held frames.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct ImpairReport {
    /// Rules at the end of the run
    rules: Vec<RuleRow>,
    /// Rules that were removed during the run, or whose action was changed, by this action
    #[serde(skip_serializing_if = "Vec::is_empty")]
    removed: Vec<RemovedRow>,
    #[serde(flatten)]
    #[cfg_attr(test, schemars(schema_with = "crate::reference::metrics::<Counters>"))]
    counts: Values,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct RuleRow {
    name: String,
    /// `drop`, `delay` and so on, as in the configuration
    action: &'static str,
    #[serde(flatten)]
    #[cfg_attr(test, schemars(schema_with = "crate::reference::metrics::<RuleCounters>"))]
    counts: Values,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct RemovedRow {
    /// Action of the rules that were removed
    action: &'static str,
    #[serde(flatten)]
    #[cfg_attr(test, schemars(schema_with = "crate::reference::metrics::<RemovedCounters>"))]
    counts: Values,
}

impl ImpairReport {
    pub(super) fn of(rules: &Rules, counters: &[Arc<Counters>]) -> Self {
        let row = |(rule, counters): (&Rule, &[Arc<RuleCounters>])| RuleRow {
            name: rule.name.clone(),
            action: rule.action.name(),
            counts: Values::total(counters.iter().map(|counters| &**counters)),
        };
        let removed =
            rules.removed().map(|(action, counters)| RemovedRow { action, counts: Values::of(counters) });
        Self {
            rules: rules.iter().map(row).collect(),
            removed: removed.collect(),
            counts: Values::total(counters.iter().map(|counters| &**counters)),
        }
    }

    /// Adds the function's metrics to `metrics`, for observation.
    pub(super) fn add_metrics(&self, metrics: FunctionMetrics) -> FunctionMetrics {
        let rules = self.rules.iter().map(|rule| Row::of([&*rule.name, rule.action], &rule.counts));
        metrics.values(&self.counts).first(Table::of(&RuleCounters::GROUP, rules))
    }
}

impl Section for ImpairReport {
    const KEY: &'static str = "impair";

    fn text(&self, text: &mut String) {
        let rules = self.rules.iter().map(|rule| row(&[&rule.name, rule.action], &rule.counts.numbers()));
        section(text, "Rules", &headings(&["rule", "action"], &RuleCounters::GROUP), 2, rules);
        let removed = self.removed.iter().map(|row_of| row(&[row_of.action], &row_of.counts.numbers()));
        section(text, "Removed rules", &headings(&["action"], &RemovedCounters::GROUP), 1, removed);
        self.counts.notes("", text);
    }
}
