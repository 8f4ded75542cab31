//! 1Pipe's switch: the data plane on a worker; on the control thread, the clock, neighbour discovery and the
//! monitoring of links; and its part of the report.

use super::keeper::KeeperDriver;
use super::report::LagCounters;
use super::{OnePipeConfig, report};
use crate::functions::launch::Launch;
use crate::functions::report::Report;
use crate::functions::tunnel;
use crate::observe::FunctionMetrics;
use crate::system::{now, random_u64};
use dataplane::{ControlHandler, ControlOutput, Live, Mbuf};
use representative::{
    Command, Event, Gauges, LagMonitor, LagReport, LinkId, LinkState, Representative, SharedWords, View,
};
use rnic::{Endpoint, Interface, cm};
use rocev2::ethernet::MacAddr;
use std::io::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};
use switch::{Frame as _, Function, Nanos, PortId, forward};
use tracing::{info, warn};

/// Interval at which the control thread sends the time to the worker and reads the state of its links.
/// Between two updates, the worker uses the TSC, which drifts by microseconds at most in this time
const UPDATE_INTERVAL: Duration = Duration::from_millis(10);
/// Maximum number of lines about links per second; counters cover the rest
const MAX_LINES_PER_S: u32 = 20;

/// Returns the configuration of a representative on a switch whose first port has this MAC address, by the
/// time that `now` reads and its worker passes to it.
fn switch(config: &OnePipeConfig, port_mac: MacAddr, now: impl Fn() -> Nanos) -> representative::Config {
    let mac = config.mac.unwrap_or(port_mac);
    representative::Config { mac, clock: config.clock.at_start(now), ..config.switch.clone() }
}

/// The control plane.
struct Plane<'a> {
    config: &'a OnePipeConfig,
    began: Instant,
    updated_at: Option<Instant>,
    /// Responds to neighbour discovery for the switch's addresses, and rejects connections
    endpoint: Endpoint,
    frame: Vec<u8>,
    /// Of each worker
    gauges: Vec<Arc<Gauges>>,
    /// Links at the last reading
    view: Option<View>,
    watch: Option<LagMonitor>,
    lag: LagCounters,
    /// Start of the current second, and lines printed in it
    printed: (Instant, u32),
    live: Option<Lines<'a>>,
    /// Keeper of the links, with a controller
    keeper: Option<KeeperDriver>,
}

/// State of the periodic lines of JSON.
struct Lines<'a> {
    every: Duration,
    next: Instant,
    counters: &'a [Arc<representative::Counters>],
}

impl Plane<'_> {
    /// Returns the name of a link for messages: its number in the configuration, and its name.
    fn name(&self, LinkId(number): LinkId) -> String {
        format!("Link {number} ({})", self.config.names[usize::from(number)])
    }

    /// Emits an event about a link, unless the limit per second is reached.
    fn event(&mut self, emit: impl FnOnce()) {
        let now = now();
        if now.duration_since(self.printed.0) >= Duration::from_secs(1) {
            self.printed = (now, 0);
        }
        self.printed.1 += 1;
        match self.printed.1 {
            ..=MAX_LINES_PER_S => emit(),
            line if line == MAX_LINES_PER_S + 1 => {
                info!("There are more messages about links; the report counts them.");
            }
            _ => {}
        }
    }

    /// Checks the last state of the links, and requests a new one.
    fn update<F: Function<Command = Command>>(&mut self, out: &mut ControlOutput<'_, F>) {
        self.view = Gauges::read_all(&self.gauges).or(self.view.take());
        let now = out.now();
        let lagging: Vec<LagReport> = match (&mut self.watch, &self.view) {
            (Some(watch), Some(view)) => watch.check(view, now).collect(),
            _ => Vec::new(),
        };
        for LagReport { link, state, lag } in lagging {
            self.lag.lagging += 1;
            let name = self.name(link);
            self.event(|| {
                if state == LinkState::Waiting {
                    warn!(
                        "{name} has not sent a barrier for {} us, and the barrier waits for its first.",
                        lag.0 / 1_000
                    );
                } else {
                    warn!(
                        "{name} holds the barrier, {} us behind the others: check the clock and the path of its neighbour.",
                        lag.0 / 1_000
                    );
                }
            });
        }
        // If the queue is full, the commands are sent again at the next interval.
        let sample = self.config.clock.sample(|| out.now());
        for worker in 0..self.config.workers {
            _ = out.command(worker, Command::PublishGauges);
            _ = out.command(worker, Command::Clock(sample));
        }
    }

    fn print_line(&mut self) {
        let now = now();
        let Some(lines) = self.live.as_mut().filter(|lines| lines.next <= now) else { return };
        lines.next = now + lines.every;
        let keeper = self.keeper.as_ref().map(KeeperDriver::status);
        let report =
            report::switch_report(self.config, lines.counters, self.view.as_ref(), &self.lag, keeper);
        let seconds = self.began.elapsed().as_secs_f64();
        // A closed pipe does not end the switch.
        let line = serde_json::to_string(&report::LiveLine { seconds, onepipe: report });
        _ = writeln!(std::io::stdout(), "{}", line.expect("numbers and text always serialise"));
    }
}

impl<F: Function<Command = Command, Event = Event>> ControlHandler<F> for Plane<'_> {
    fn on_event(&mut self, worker: usize, event: Event, out: &mut ControlOutput<'_, F>) {
        match event {
            Event::Dead(link) => {
                let name = self.name(link);
                let silent =
                    self.config.switch.beacon_interval.0 * u64::from(self.config.switch.dead_after_intervals);
                self.event(|| {
                    warn!(
                        "{name} is dead: silent for {} us. The barrier continues without it.",
                        silent / 1_000
                    );
                });
            }
            Event::Evicted(link) => {
                let name = self.name(link);
                self.event(|| {
                    warn!("{name} is too far behind the others and is left out: check the clock of its neighbour.");
                });
            }
            Event::Left(link) => {
                let name = self.name(link);
                self.event(|| {
                    info!("{name} has left: its neighbour reports that it sends nothing on this link.");
                });
            }
            event @ (Event::Configured(_) | Event::Commit(_)) => {
                if let Some(keeper) = &mut self.keeper {
                    keeper.on_event(event, out.now());
                }
            }
            Event::Learned(forward::Event::Learned(mac, port, seen)) => {
                // A station that a full queue hides from a worker is reported again.
                for other in (0..self.config.workers).filter(|&other| other != worker) {
                    let station = forward::Command::Learn(mac, port, seen);
                    _ = out.command(other, Command::Learn(station));
                }
            }
            Event::Joined(link) => {
                let name = self.name(link);
                self.event(|| info!("{name} has joined again."));
            }
        }
    }

    fn on_punt(&mut self, _worker: usize, frame: Mbuf, port: PortId, out: &mut ControlOutput<'_, F>) {
        let now = out.now();
        self.endpoint.on_frame(frame.bytes(), now);
        while self.endpoint.poll_transmit(now, &mut self.frame) {
            // A frame that does not fit is lost, as on a link: the host that waits for it asks again.
            if let Ok(frame) = out.make(&self.frame) {
                drop(out.send(0, frame, port));
            }
        }
    }

    fn on_tick(&mut self, _live: &Live<'_>, out: &mut ControlOutput<'_, F>) -> bool {
        if let Some(keeper) = &mut self.keeper {
            keeper.turn(out);
        }
        let now = now();
        if self.updated_at.is_none_or(|updated_at| now.duration_since(updated_at) >= UPDATE_INTERVAL) {
            self.updated_at = Some(now);
            let nanos = out.now();
            if self.endpoint.next_timer().is_some_and(|at| at <= nanos) {
                self.endpoint.on_timer(nanos);
            }
            self.update(out);
            self.print_line();
        }
        !self.keeper.as_ref().is_some_and(KeeperDriver::is_retired)
    }
}

pub(super) fn run(config: &OnePipeConfig, launch: Launch<'_>) -> Result<Report, miette::Report> {
    let mut launch = launch;
    // A link's frames keep their order only in one queue.
    launch.runtime.ports.iter_mut().for_each(|port| port.rx_queues = port.rx_queues.max(1));
    let mut run = launch.start()?;
    let switch = switch(config, run.port_mac(), || run.runtime.now());
    let interface = Interface {
        mac: switch.mac,
        addresses: config.addresses.clone(),
        gateways: Vec::new(),
        vlan: None,
        neighbours: Vec::new(),
    };
    let counted_qps = switch.forward.counted_qps;
    let keeper = config.controller.as_ref();
    let keeper = keeper.map(|controller| KeeperDriver::start(controller, switch.clone())).transpose()?;
    let shared = SharedWords::new(&switch, run.workers);
    let functions = (0..run.workers).map(|worker| {
        let function = Representative::on_worker(switch.clone(), worker, &shared);
        Ok(function.map_err(|error| miette::miette!("invalid [onepipe]: {error}"))?.salted(random_u64()))
    });
    let functions: Vec<Representative> = functions.collect::<Result<_, miette::Report>>()?;
    let counters: Vec<_> = functions.iter().map(Representative::counters).collect();
    let bridged: Vec<_> = functions.iter().map(Representative::forward_counters).collect();
    let began = now();
    let mut plane = Plane {
        config,
        began,
        updated_at: None,
        endpoint: Endpoint::new(interface, cm::Config::default(), random_u64()),
        frame: Vec::new(),
        gauges: functions.iter().map(Representative::gauges).collect(),
        view: None,
        watch: config.lag_alarm.map(LagMonitor::new),
        lag: LagCounters::default(),
        printed: (began, 0),
        live: run.options.live.map(|every| Lines { every, next: began + every, counters: &counters }),
        keeper,
    };
    let metrics = |plane: &Plane<'_>| {
        let of_bridge = FunctionMetrics::forwarded(&bridged);
        let keeper = plane.keeper.as_ref().map(KeeperDriver::status);
        report::switch_report(config, &counters, plane.view.as_ref(), &plane.lag, keeper)
            .add_metrics(&counters, of_bridge)
    };
    let mains = (workers::representative as _, workers::tunnelled_representative as _);
    let (outcome, seconds, tunnel) = tunnel::run(&mut run, mains, functions, &mut plane, metrics);
    let report = Report::of(&run.runtime, &outcome, &bridged, counted_qps, seconds);
    let view = Gauges::read_all(&plane.gauges).or(plane.view);
    let keeper = plane.keeper.as_ref().map(KeeperDriver::status);
    let onepipe = report::switch_report(config, &counters, view.as_ref(), &plane.lag, keeper);
    Ok(tunnel.iter().fold(report.with(&onepipe), Report::with))
}
