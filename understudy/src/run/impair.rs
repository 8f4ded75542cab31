//! The impairing function, which needs no control plane, and its part of the report.

use super::report::{ImpairReport, Report, RuleRow};
use super::{EndConditions, forward, random_u64, run_until};
use crate::observe::FunctionMetrics;
use dataplane::{NoControl, Runtime, Stop};
use std::sync::Arc;
use switch::impair::counters::RuleCounters;
use switch::impair::{Config, Counters, Impair};

pub(super) fn run(
    runtime: &mut Runtime,
    config: &Config,
    workers: usize,
    until: EndConditions,
    stop: &Stop,
) -> Report {
    let function = |worker| Impair::new(config, worker).salted(random_u64());
    let functions: Vec<_> = (0..workers).map(function).collect();
    let counters: Vec<_> = functions.iter().map(Impair::counters).collect();
    let seen: Vec<_> = counters.iter().map(|counters| Arc::clone(&counters.forward)).collect();
    let metrics = |_: &NoControl| impaired(config, &counters).add_metrics(FunctionMetrics::forwarded(&seen));
    let (outcome, seconds) = run_until(runtime, functions, &mut NoControl, metrics, until, stop);
    let report = forward::report(runtime, &outcome, &seen, config.counted_qps, seconds);
    Report { impair: Some(impaired(config, &counters)), ..report }
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
