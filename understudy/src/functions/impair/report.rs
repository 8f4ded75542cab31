//! The impairing function's part of the report.

use crate::functions::report::Section;
use crate::observe::{FunctionMetrics, Row, Table, Values, headings};
use crate::output::{row, section};
use serde::Serialize;
use std::sync::Arc;
use switch::impair::counters::RuleCounters;
use switch::impair::{Config, Counters};
use switch::metrics::Metrics as _;

/// Results of rules, and counts of held frames.
#[derive(Serialize)]
pub(super) struct ImpairReport {
    rules: Vec<RuleRow>,
    #[serde(flatten)]
    counts: Values,
}

#[derive(Serialize)]
struct RuleRow {
    name: String,
    action: &'static str,
    #[serde(flatten)]
    counts: Values,
}

impl ImpairReport {
    pub(super) fn of(config: &Config, counters: &[Arc<Counters>]) -> Self {
        let rules = config.rules.iter().enumerate().map(|(index, rule)| RuleRow {
            name: rule.name.clone(),
            action: rule.action.name(),
            counts: Values::total(counters.iter().map(|counters| &counters.rules[index])),
        });
        Self { rules: rules.collect(), counts: Values::total(counters.iter().map(|counters| &**counters)) }
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
        self.counts.notes("", text);
    }
}
