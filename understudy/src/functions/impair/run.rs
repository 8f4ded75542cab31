//! How the impairing function, which needs no control plane, runs.

use super::report::ImpairReport;
use crate::functions::launch::Launch;
use crate::functions::report::Report;
use crate::observe::FunctionMetrics;
use crate::system::random_u64;
use dataplane::NoControl;
use std::sync::Arc;
use switch::impair::{Config, Impair};

pub(super) fn run(config: &Config, launch: Launch<'_, Config>) -> Result<Report, miette::Report> {
    let mut run = launch.start()?;
    let function = |worker| Impair::new(config, worker).salted(random_u64());
    let functions: Vec<_> = (0..run.workers).map(function).collect();
    let counters: Vec<_> = functions.iter().map(Impair::counters).collect();
    let seen: Vec<_> = counters.iter().map(|counters| Arc::clone(&counters.forward)).collect();
    let metrics =
        |_: &NoControl| ImpairReport::of(config, &counters).add_metrics(FunctionMetrics::forwarded(&seen));
    let (outcome, seconds) = run.run(functions, &mut NoControl, metrics);
    let report = Report::of(&run.runtime, &outcome, &seen, config.counted_qps, seconds);
    Ok(report.with(&ImpairReport::of(config, &counters)))
}
