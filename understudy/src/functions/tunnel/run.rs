//! Tunnels that end in front of a function, and their part of the report.

use crate::functions::launch::Run;
use crate::functions::report::Section;
use crate::observe::{FunctionMetrics, Values};
use crate::output::{row, section};
use core::fmt::Write as _;
use dataplane::{ControlHandler, Outcome, WorkerMain};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use switch::Function;
use switch::tunnel::{Counters, Refusal, Tunnel};

/// Runs functions as [`Run::run`] does, behind the tunnels that end at this instance. `mains` are for functions without
/// and with tunnels. Returns what it returns, and the tunnels' report if there are tunnels.
pub(in crate::functions) fn run<F, C>(
    run: &mut Run<'_>,
    mains: (WorkerMain<F>, WorkerMain<Tunnel<F>>),
    functions: Vec<F>,
    control: &mut C,
    metrics: impl Fn(&C) -> FunctionMetrics,
) -> (Outcome, f64, Option<TunnelReport>)
where
    F: Function + Send,
    C: ControlHandler<F> + ControlHandler<Tunnel<F>>,
{
    let Some(config) = run.tunnel else {
        let (outcome, seconds) = run.run(mains.0, functions, control, metrics);
        return (outcome, seconds, None);
    };
    let config = config.with_port_mac(run.port_mac());
    let behind = |function| Tunnel::new(&config, function);
    let functions: Vec<_> = functions.into_iter().map(behind).collect();
    let counters: Vec<_> = functions.iter().map(Tunnel::counters).collect();
    let metrics = |control: &C| {
        let terminated = Values::total(counters.iter().map(|counters| &**counters));
        metrics(control)
            .values(&terminated)
            .reasons(Refusal::ALL.map(|why| (why.metric(), refused(&counters, why))))
    };
    let (outcome, seconds) = run.run(mains.1, functions, control, metrics);
    (outcome, seconds, Some(TunnelReport::of(&counters)))
}

/// Counts of decapsulated and dropped packets. Fields are added, not renamed.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(in crate::functions) struct TunnelReport {
    #[serde(flatten)]
    #[cfg_attr(test, schemars(schema_with = "crate::reference::metrics::<Counters>"))]
    terminated: Values,
    /// Packets that were dropped, by reason
    refused: BTreeMap<&'static str, u64>,
}

impl TunnelReport {
    fn of(counters: &[Arc<Counters>]) -> Self {
        let refused = Refusal::ALL.into_iter().map(|why| (why.name(), refused(counters, why)));
        Self {
            terminated: Values::total(counters.iter().map(|counters| &**counters)),
            refused: refused.filter(|(_, count)| *count > 0).collect(),
        }
    }
}

/// Returns the count of packets that all workers dropped for this reason.
fn refused(counters: &[Arc<Counters>], why: Refusal) -> u64 {
    counters.iter().map(|counters| counters.refused(why)).sum()
}

impl Section for TunnelReport {
    const KEY: &'static str = "tunnel";

    fn text(&self, text: &mut String) {
        let refused = self.refused.iter().map(|(why, count)| row(&[why], &[*count]));
        section(text, "Tunnels: refused", &["why", "count"], 1, refused);
        if let [frames, bytes] = self.terminated.numbers()[..] {
            _ = writeln!(text, "Tunnels: {frames} packets decapsulated, {bytes} bytes");
        }
    }
}
