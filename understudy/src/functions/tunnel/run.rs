//! Tunnels that end in front of a function, and their part of the report.

use crate::functions::launch::Run;
use crate::functions::report::Section;
use crate::observe::FunctionMetrics;
use crate::output::{row, section};
use core::fmt::Write as _;
use dataplane::{ControlHandler, Outcome};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use switch::Function;
use switch::tunnel::{Counters, Refusal, Tunnel};

/// Runs functions as [`Run::run`] does, behind the tunnels that end at this instance. Returns what it returns,
/// and the tunnels' report if there are tunnels.
pub(in crate::functions) fn run<F, C>(
    run: &mut Run<'_>,
    functions: Vec<F>,
    control: &mut C,
    metrics: impl Fn(&C) -> FunctionMetrics,
) -> (Outcome, f64, Option<TunnelReport>)
where
    F: Function + Send,
    C: ControlHandler<F> + ControlHandler<Tunnel<F>>,
{
    let Some(config) = run.tunnel else {
        let (outcome, seconds) = run.run(functions, control, metrics);
        return (outcome, seconds, None);
    };
    let config = config.with_port_mac(run.port_mac());
    let behind = |function| Tunnel::new(&config, function);
    let functions: Vec<_> = functions.into_iter().map(behind).collect();
    let counters: Vec<_> = functions.iter().map(Tunnel::counters).collect();
    let metrics = |control: &C| metrics(control).counters(TunnelReport::of(&counters).counters());
    let (outcome, seconds) = run.run(functions, control, metrics);
    (outcome, seconds, Some(TunnelReport::of(&counters)))
}

/// Counts of decapsulated and dropped packets. Fields are added, not renamed.
#[derive(Serialize)]
pub(in crate::functions) struct TunnelReport {
    /// Packets whose outer header was removed
    terminated_frames: u64,
    /// Bytes of the inner frames, including their Ethernet headers
    terminated_bytes: u64,
    /// Packets that were dropped, by reason
    refused: BTreeMap<&'static str, u64>,
}

impl TunnelReport {
    fn of(counters: &[Arc<Counters>]) -> Self {
        let sum = |count: &dyn Fn(&Counters) -> u64| counters.iter().map(|counters| count(counters)).sum();
        let refused = Refusal::ALL.map(|why| (why.name(), sum(&|c| c.refused(why))));
        Self {
            terminated_frames: sum(&|c| c.terminated.frames.get()),
            terminated_bytes: sum(&|c| c.terminated.bytes.get()),
            refused: refused.into_iter().filter(|&(_, count)| count > 0).collect(),
        }
    }

    /// Returns the counters for observation.
    fn counters(&self) -> impl Iterator<Item = (String, u64)> {
        let refused = self.refused.iter().map(|(why, count)| (format!("tunnel_refused_{why}"), *count));
        [("tunnel_frames", self.terminated_frames), ("tunnel_bytes", self.terminated_bytes)]
            .map(|(name, count)| (name.to_owned(), count))
            .into_iter()
            .chain(refused)
    }
}

impl Section for TunnelReport {
    const KEY: &'static str = "tunnel";

    fn text(&self, text: &mut String) {
        let Self { terminated_frames, terminated_bytes, refused } = self;
        let refused = refused.iter().map(|(why, count)| row(&[why], &[*count]));
        section(text, "Tunnels: refused", &["why", "count"], 1, refused);
        _ = writeln!(text, "Tunnels: {terminated_frames} packets decapsulated, {terminated_bytes} bytes");
    }
}
