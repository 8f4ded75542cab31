//! Start and run of a switch function on the ports of a configuration, until a signal, a time limit, idleness
//! or its control plane ends the run.

use super::tunnel::types::TunnelConfig;
use crate::observe::steer::{self, Steering};
use crate::observe::{FunctionMetrics, Instance, ObserveConfig, Observer, QueuePair, TraceError, no_groups};
use crate::service::{self, Manager};
use crate::system::{now, start};
use core::cell::Cell;
use crossbeam_channel::{Receiver, Sender};
use dataplane::{
    ControlHandler, ControlOutput, LinkChange, Live, Mbuf, Outcome, PortInfo, Runtime, Stop, WorkerMain, log,
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

/// A run that has not started yet.
pub(crate) struct Launch<'a> {
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
    /// Newer versions of the configuration, if the program looks for them
    pub(crate) versions: Option<Box<dyn Versions + 'a>>,
}

/// Newer versions of a configuration, and what becomes of them in a run.
pub(crate) trait Versions {
    /// Looks for a newer version, and requests of the function what it changes.
    fn on_tick(&mut self, steering: &Sender<Steering>);

    /// Adds the state of the configuration to the metrics of the function.
    fn observed(&self, metrics: FunctionMetrics) -> FunctionMetrics;
}

impl<'a> Launch<'a> {
    /// Starts the ports and the observers.
    pub(super) fn start(self) -> Result<Run<'a>, Report> {
        let workers = self.runtime.workers.cpus.len();
        let ports = self.runtime.ports.clone();
        let runtime = start(self.runtime)?;
        let (steer, steering) = steer::queue();
        let function = self.instance.function.clone();
        let observer = Observer::start(self.observe, self.instance, &steer)?;
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
        let supervision = Supervision {
            observer,
            manager: Manager::new(status),
            versions: self.versions,
            steer,
            steering: Some(steering),
            function,
        };
        Ok(Run {
            runtime,
            ports,
            workers,
            options: self.options,
            tunnel: self.tunnel,
            stop: self.stop,
            lost_link: self.lost_link,
            supervision: Some(supervision),
            until,
        })
    }
}

/// Work of the control thread that does not depend on the function: observers, the service manager, newer versions of the
/// configuration.
pub(super) struct Supervision<'a> {
    observer: Option<Observer>,
    manager: Manager,
    versions: Option<Box<dyn Versions + 'a>>,
    steer: Sender<Steering>,
    /// Requests that change the function, until it takes their queue
    steering: Option<Receiver<Steering>>,
    /// Name of the function's table
    function: String,
}

impl Supervision<'_> {
    /// Responds to observers, sends messages to the service manager that are due, and looks for a newer version of the
    /// configuration.
    pub(super) fn on_tick<F: Function>(
        &mut self,
        live: &Live<'_>,
        out: &mut ControlOutput<'_, F>,
        metrics: impl Fn() -> FunctionMetrics,
        group: impl Fn(u32) -> Result<Vec<QueuePair>, TraceError>,
    ) {
        if let Some(observer) = &mut self.observer {
            let versions = &self.versions;
            let metrics = || match versions {
                Some(versions) => versions.observed(metrics()),
                None => metrics(),
            };
            observer.serve_requests(live, out, metrics, group);
        }
        if let Some(steering) = &self.steering {
            steer::refuse_all(steering, &self.function);
        }
        self.manager.on_tick(live);
        if let Some(versions) = &mut self.versions {
            versions.on_tick(&self.steer);
        }
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
    /// Until the run begins
    pub(super) supervision: Option<Supervision<'a>>,
    until: EndConditions,
}

impl Run<'_> {
    /// Returns the queue of requests that change the function. Without this call they are refused.
    pub(super) fn take_steering(&mut self) -> Option<Receiver<Steering>> {
        self.supervision.as_mut().and_then(|supervision| supervision.steering.take())
    }

    /// Returns the MAC address of the first port.
    pub(super) fn port_mac(&self) -> MacAddr {
        MacAddr(self.runtime.ports().next().map_or([0; 6], |port| port.mac))
    }

    /// Runs functions, one per worker, whose thread calls `main`, until the end conditions or a signal end the run.
    /// Returns the outcome and the duration in seconds. `metrics` returns the function's metrics for observation.
    pub(super) fn run<F: Function + Send, P: ControlHandler<F>>(
        &mut self,
        main: WorkerMain<F>,
        functions: Vec<F>,
        control: &mut P,
        metrics: impl Fn(&P) -> FunctionMetrics,
    ) -> (Outcome, f64) {
        self.run_groups(main, functions, control, metrics, |_, id| no_groups(id))
    }

    /// Runs functions as [`Self::run`] does, with `group` returning the queue pairs of a group.
    pub(super) fn run_groups<F: Function + Send, P: ControlHandler<F>>(
        &mut self,
        main: WorkerMain<F>,
        functions: Vec<F>,
        control: &mut P,
        metrics: impl Fn(&P) -> FunctionMetrics,
        group: impl Fn(&P, u32) -> Result<Vec<QueuePair>, TraceError>,
    ) -> (Outcome, f64) {
        let Self { runtime, until, stop, .. } = self;
        let supervision = self.supervision.take();
        let began = now();
        let mut control = RunControl { control, metrics, group, until, supervision, awaited: Vec::new() };
        let outcome = runtime.run_by(main, functions, &mut control, stop);
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

/// A control plane that also checks the end conditions, with all that goes on beside it.
struct RunControl<'a, P, T, G> {
    control: &'a mut P,
    metrics: T,
    group: G,
    until: &'a mut EndConditions,
    supervision: Option<Supervision<'a>>,
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
        if let Some(supervision) = &mut self.supervision {
            let (metrics, group) = (|| (self.metrics)(self.control), |id| (self.group)(self.control, id));
            supervision.on_tick(live, out, metrics, group);
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
