//! How the impairing function runs.

use super::control::ImpairControl;
use super::report::ImpairReport;
use crate::functions::launch::Launch;
use crate::functions::report::Report;
use crate::observe::FunctionMetrics;
use crate::system::random_u64;
use std::sync::Arc;
use switch::impair::{Config, Impair, Rules};

pub(super) fn run(config: &Config, launch: Launch<'_>) -> Result<Report, miette::Report> {
    let mut run = launch.start()?;
    let function = |worker| Impair::new(config, worker).salted(random_u64());
    let functions: Vec<_> = (0..run.workers).map(function).collect();
    let counters: Vec<_> = functions.iter().map(Impair::counters).collect();
    let seen: Vec<_> = counters.iter().map(|counters| Arc::clone(&counters.forward)).collect();
    let rules = Rules::of(config, &functions).salted(random_u64());
    let requests = run.take_steering();
    let mut control = ImpairControl::new(rules, &run.ports, requests);
    let metrics = |control: &ImpairControl| {
        ImpairReport::of(&control.rules, &counters).add_metrics(FunctionMetrics::forwarded(&seen))
    };
    let (outcome, seconds) = run.run(workers::impair, functions, &mut control, metrics);
    let report = Report::of(&run.runtime, &outcome, &seen, config.counted_qps, seconds);
    Ok(report.with(&ImpairReport::of(&control.rules, &counters)))
}
