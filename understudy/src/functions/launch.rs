//! Start and run of a switch function on the ports of a configuration, until a signal, a time limit, idleness
//! or its control plane ends the run.

use super::tunnel::types::TunnelConfig;
use crate::observe::steer::Steering;
use crate::observe::{FunctionMetrics, Instance, ObserveConfig, Observer, QueuePair, TraceError, no_groups};
use crate::service::{self, Hangup, Manager};
use crate::system::{now, start};
use core::cell::Cell;
use crossbeam_channel::Receiver;
use dataplane::{
    ControlHandler, ControlOutput, LinkChange, Live, Mbuf, Outcome, PortInfo, Runtime, Stop, log,
};
use miette::Report;
use rocev2::ethernet::MacAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::{Duration, Instant};
use switch::{Function, PortId};
use tracing::{info, warn};

/// Options of the command line.
#[derive(Default)]
pub(crate) struct Options {
    /// Time after which the run ends
    pub(crate) duration: Option<Duration>,
    /// Interval of lines of JSON
    pub(crate) live: Option<Duration>,
    /// Folder for histograms of `[pktgen]`
    pub(crate) hgrm: Option<PathBuf>,
    /// Whether this server of `[consensus]` bootstraps its group
    pub(crate) bootstrap: bool,
}

/// A run that has not started yet, of a function with configuration `C`.
pub(crate) struct Launch<'a, C> {
    pub(crate) options: &'a Options,
    /// DPDK, ports and workers
    pub(crate) runtime: dataplane::Config,
    pub(crate) tunnel: Option<&'a TunnelConfig>,
    pub(crate) observe: &'a ObserveConfig,
    pub(crate) instance: Instance,
    /// Time without received frames after which the run ends
    pub(crate) idle: Option<Duration>,
    pub(crate) stop: Stop,
    /// Set if the loss of a link ends the run
    pub(crate) lost_link: Rc<Cell<bool>>,
    /// Reads the configuration file again; the error is a text for users
    pub(crate) reload: Reload<'a, C>,
    /// Handler of SIGHUP for a function that cannot reload
    pub(crate) hangup: Option<Hangup<'a>>,
}

/// Reads a configuration file again.
pub(crate) type Reload<'a, C> = Rc<dyn Fn() -> Result<Reloaded<C>, String> + 'a>;

/// A function's configuration in a file that was read again.
pub(crate) struct Reloaded<C> {
    pub(crate) function: C,
    /// Whether everything else in the file is as it was at the start
    pub(crate) rest_is_unchanged: bool,
}

impl<C> Reloaded<C> {
    /// Returns the configuration for a function of one type, or an error text if it is of another type.
    pub(super) fn narrowed<D>(self, select: impl Fn(C) -> Option<D>) -> Result<Reloaded<D>, String> {
        let Self { function, rest_is_unchanged } = self;
        let function = select(function).ok_or("it has another function now; restart the instance")?;
        Ok(Reloaded { function, rest_is_unchanged })
    }
}

impl<'a, C: 'a> Launch<'a, C> {
    /// Returns the launch for a function of one type. `select` returns the configuration of such a function.
    pub(super) fn narrowed<D: 'a>(self, select: fn(C) -> Option<D>) -> Launch<'a, D> {
        let Self { options, runtime, tunnel, observe, instance, idle, stop, lost_link, reload, hangup } =
            self;
        let reload = Rc::new(move || reload()?.narrowed(select));
        Launch { options, runtime, tunnel, observe, instance, idle, stop, lost_link, reload, hangup }
    }

    /// Starts the ports and the observers.
    pub(super) fn start(self) -> Result<Run<'a>, Report> {
        let workers = self.runtime.workers.cpus.len();
        let ports = self.runtime.ports.clone();
        let runtime = start(self.runtime)?;
        let observer = Observer::start(self.observe, self.instance)?;
        let names: Vec<&str> = runtime.ports().map(|port| port.name.as_str()).collect();
        let (names, plural) = (names.join(", "), if workers == 1 { "" } else { "s" });
        let status = format!("ready on {names}, with {workers} worker{plural} ({})", Runtime::version());
        info!("understudy is {status}.{}", if service::is_managed() { "" } else { " Ctrl-C ends it." });
        let until = EndConditions {
            began: now(),
            duration: self.options.duration,
            idle: self.idle,
            frames_seen: 0,
            last_frame_at: now(),
        };
        Ok(Run {
            runtime,
            ports,
            workers,
            options: self.options,
            tunnel: self.tunnel,
            stop: self.stop,
            lost_link: self.lost_link,
            observer,
            manager: Some(Manager::new(status, self.hangup)),
            until,
        })
    }
}

/// A run whose ports and observers have started.
pub(super) struct Run<'a> {
    pub(super) runtime: Runtime,
    /// Ports of the configuration
    pub(super) ports: Vec<dataplane::config::Port>,
    pub(super) workers: usize,
    pub(super) options: &'a Options,
    pub(super) tunnel: Option<&'a TunnelConfig>,
    /// Flag that signals set
    pub(super) stop: Stop,
    /// Set if the loss of a link ends the run
    pub(super) lost_link: Rc<Cell<bool>>,
    /// Responds to the observers of the instance
    pub(super) observer: Option<Observer>,
    /// Reports to the service manager during the run
    pub(super) manager: Option<Manager<'a>>,
    until: EndConditions,
}

impl Run<'_> {
    /// Returns the queue of requests that steer the function, if there is a socket for them.
    pub(super) fn take_steering(&mut self) -> Option<Receiver<Steering>> {
        self.observer.as_mut().and_then(Observer::take_steering)
    }

    /// Returns the MAC address of the first port.
    pub(super) fn port_mac(&self) -> MacAddr {
        MacAddr(self.runtime.ports().next().map_or([0; 6], |port| port.mac))
    }

    /// Runs functions, one per worker, until the end conditions or a signal end the run. Returns the outcome
    /// and the duration in seconds. `metrics` returns the function's metrics for observation.
    pub(super) fn run<F: Function + Send, P: ControlHandler<F>>(
        &mut self,
        functions: Vec<F>,
        control: &mut P,
        metrics: impl Fn(&P) -> FunctionMetrics,
    ) -> (Outcome, f64) {
        self.run_groups(functions, control, metrics, |_, id| no_groups(id))
    }

    /// Runs functions as [`Self::run`] does, with `group` returning the queue pairs of a group.
    pub(super) fn run_groups<F: Function + Send, P: ControlHandler<F>>(
        &mut self,
        functions: Vec<F>,
        control: &mut P,
        metrics: impl Fn(&P) -> FunctionMetrics,
        group: impl Fn(&P, u32) -> Result<Vec<QueuePair>, TraceError>,
    ) -> (Outcome, f64) {
        let Self { runtime, until, stop, .. } = self;
        let (observer, manager) = (self.observer.take(), self.manager.take());
        let began = now();
        let mut control =
            RunControl { control, metrics, group, until, observer, manager, awaited: Vec::new() };
        let outcome = runtime.run(functions, &mut control, stop);
        self.lost_link.set(outcome.lost_link.is_some());
        for port in control.awaited {
            warn!("Port {port} had no peer during the whole run.");
        }
        (outcome, began.elapsed().as_secs_f64())
    }
}

/// Conditions under which a run ends by itself.
struct EndConditions {
    began: Instant,
    duration: Option<Duration>,
    idle: Option<Duration>,
    /// Frames received up to the last check at which there were new ones, and the time of that check
    frames_seen: u64,
    last_frame_at: Instant,
}

impl EndConditions {
    fn continues(&mut self, live: &Live<'_>) -> bool {
        let now = now();
        let received = live.workers().iter().map(|worker| worker.received()).sum();
        if received != self.frames_seen {
            (self.frames_seen, self.last_frame_at) = (received, now);
        }
        let in_time = self.duration.is_none_or(|limit| now.duration_since(self.began) < limit);
        let busy = self.idle.is_none_or(|limit| now.duration_since(self.last_frame_at) < limit);
        in_time && busy
    }
}

/// A control plane that also checks the end conditions and serves observers.
struct RunControl<'a, P, T, G> {
    control: &'a mut P,
    metrics: T,
    group: G,
    until: &'a mut EndConditions,
    observer: Option<Observer>,
    manager: Option<Manager<'a>>,
    /// Names of the ports that wait for their first peer
    awaited: Vec<String>,
}

impl<F, P, T, G> ControlHandler<F> for RunControl<'_, P, T, G>
where
    F: Function,
    P: ControlHandler<F>,
    T: Fn(&P) -> FunctionMetrics,
    G: Fn(&P, u32) -> Result<Vec<QueuePair>, TraceError>,
{
    fn on_event(&mut self, worker: usize, event: F::Event, out: &mut ControlOutput<'_, F>) {
        self.control.on_event(worker, event, out);
    }

    fn on_punt(&mut self, worker: usize, frame: Mbuf, port: PortId, out: &mut ControlOutput<'_, F>) {
        self.control.on_punt(worker, frame, port, out);
    }

    fn on_tick(&mut self, live: &Live<'_>, out: &mut ControlOutput<'_, F>) -> bool {
        if let Some(observer) = &mut self.observer {
            let (metrics, group) = (|| (self.metrics)(self.control), |id| (self.group)(self.control, id));
            observer.serve_requests(live, out, metrics, group);
        }
        if let Some(manager) = &mut self.manager {
            manager.on_tick(live);
        }
        self.until.continues(live) && self.control.on_tick(live, out)
    }

    fn on_link(&mut self, port: &PortInfo, up: bool) {
        log::peer(port, up);
        self.awaited.retain(|name| *name != port.name);
        self.control.on_link(port, up);
    }

    fn on_link_change(&mut self, port: &PortInfo, change: &LinkChange) {
        log::link(port, change);
        self.control.on_link_change(port, change);
    }

    fn on_peer_awaited(&mut self, port: &PortInfo) {
        log::awaited_peer(port);
        self.awaited.push(port.name.clone());
    }

    fn on_peer_refused(&mut self, port: &PortInfo, why: &str) {
        log::refused_peer(port, why);
    }
}

/// Closing report of a run: as tables for the terminal, as JSON for programs.
pub(crate) trait ClosingReport {
    fn text(&self) -> String;

    fn json(&self) -> String;

    /// Returns the exit code of the program.
    fn code(&self) -> ExitCode {
        ExitCode::SUCCESS
    }
}

/// End of a run.
pub(crate) struct Closing {
    pub(crate) report: Box<dyn ClosingReport>,
    /// Error that is shown after the report
    pub(crate) deferred: Result<(), Report>,
}

impl<R: ClosingReport + 'static> From<R> for Closing {
    fn from(report: R) -> Self {
        Self { report: Box::new(report), deferred: Ok(()) }
    }
}
