//! The forwarding function's control plane, and how it runs.

use crate::functions::launch::Launch;
use crate::functions::report::Report;
use crate::functions::tunnel;
use crate::observe::FunctionMetrics;
use crate::system::random_u64;
use dataplane::{ControlHandler, ControlOutput, Live, Mbuf};
use switch::forward::{Command, Config, Event, Forward};
use switch::{Function, PortId};

/// Distributes the MAC addresses that one worker has learned to all workers.
struct Bridge;

impl<F: Function<Command = Command, Event = Event>> ControlHandler<F> for Bridge {
    fn on_event(&mut self, worker: usize, event: Event, out: &mut ControlOutput<'_, F>) {
        let Event::Learned(mac, port, seen) = event;
        for other in (0..out.workers()).filter(|&other| other != worker) {
            // A worker whose queue is full has no entry, and floods frames to this station, or an old one, until a
            // frame of the station is reported again: after a quarter of the ageing time at the latest.
            _ = out.command(other, Command::Learn(mac, port, seen));
        }
    }

    fn on_punt(&mut self, _worker: usize, _frame: Mbuf, _port: PortId, _out: &mut ControlOutput<'_, F>) {}

    fn on_tick(&mut self, _live: &Live<'_>, _out: &mut ControlOutput<'_, F>) -> bool {
        true
    }
}

pub(super) fn run(config: &Config, launch: Launch<'_>) -> Result<Report, miette::Report> {
    let mut run = launch.start()?;
    let functions: Vec<_> = (0..run.workers).map(|_| Forward::new(config).salted(random_u64())).collect();
    let counters: Vec<_> = functions.iter().map(Forward::counters).collect();
    let metrics = |_: &Bridge| FunctionMetrics::forwarded(&counters);
    let mains = (workers::forward as _, workers::tunnelled_forward as _);
    let (outcome, seconds, tunnel) = tunnel::run(&mut run, mains, functions, &mut Bridge, metrics);
    let report = Report::of(&run.runtime, &outcome, &counters, config.counted_qps, seconds);
    Ok(tunnel.iter().fold(report, Report::with))
}
