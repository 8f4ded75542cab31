//! How the impairing function, which needs no control plane, runs.

use super::report::{ImpairReport, RuleRow};
use crate::functions::launch::Launch;
use crate::functions::report::Report;
use crate::observe::FunctionMetrics;
use crate::system::random_u64;
use dataplane::NoControl;
use std::sync::Arc;
use switch::impair::counters::RuleCounters;
use switch::impair::{Config, Counters, Impair};

pub(super) fn run(config: &Config, launch: Launch<'_, Config>) -> Result<Report, miette::Report> {
    let mut run = launch.start()?;
    let function = |worker| Impair::new(config, worker).salted(random_u64());
    let functions: Vec<_> = (0..run.workers).map(function).collect();
    let counters: Vec<_> = functions.iter().map(Impair::counters).collect();
    let seen: Vec<_> = counters.iter().map(|counters| Arc::clone(&counters.forward)).collect();
    let metrics = |_: &NoControl| impaired(config, &counters).add_metrics(FunctionMetrics::forwarded(&seen));
    let (outcome, seconds) = run.run(functions, &mut NoControl, metrics);
    let report = Report::of(&run.runtime, &outcome, &seen, config.counted_qps, seconds);
    Ok(report.with(&impaired(config, &counters)))
}

fn impaired(config: &Config, counters: &[Arc<Counters>]) -> ImpairReport {
    let sum = |count: &dyn Fn(&Counters) -> u64| counters.iter().map(|counters| count(counters)).sum::<u64>();
    let rule = |(index, rule): (usize, &switch::impair::Rule)| {
        let sum = |count: fn(&RuleCounters) -> u64| sum(&|counters| count(&counters.rules[index]));
        RuleRow {
            name: rule.name.clone(),
            action: rule.action.name(),
            matched: sum(|rule| rule.matched.get()),
            acted: sum(|rule| rule.acted.get()),
            unable: sum(|rule| rule.unable.get()),
        }
    };
    ImpairReport {
        rules: config.rules.iter().enumerate().map(rule).collect(),
        held: sum(&|c| c.held.get()),
        held_at_end: sum(&Counters::held_now),
        held_peak: counters.iter().map(|c| c.held_peak.get()).max().unwrap_or(0),
        held_full: sum(&|c| c.held_full.get()),
        flows_full: sum(&|c| c.flows_full.get()),
    }
}
