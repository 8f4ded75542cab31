//! `understudy run`, `host` and `pktgen`: starts a switch function on the ports of a configuration, runs it,
//! and prints its report.

mod consensus;
mod demo;
mod forward;
mod host;
mod impair;
mod onepipe;
mod p4ce;
pub(crate) mod pktgen;
mod report;
pub(crate) mod swordbox;
mod tunnel;

pub(crate) use forward::queue_pairs;
pub(crate) use report::{row, section};

use crate::config::{self, Config, FunctionConfig};
use crate::log;
use crate::observe::{FunctionMetrics, Observer, QueuePair, TraceError, no_groups};
use crate::output::print_error;
use clap::Args;
use dataplane::{Control, ControlOutput, Live, Mbuf, NoControl, Outcome, PortInfo, Runtime, Stop, Stopwatch};
use miette::{MietteDiagnostic, Report};
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hasher as _};
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use switch::{Function, PortId};
use tracing::info;

/// Run a switch function on the ports of a configuration, until Ctrl-C
#[derive(Args)]
pub(crate) struct RunArgs {
    /// Configuration file [default: a built-in demonstration that needs no hardware]
    config: Option<PathBuf>,
    /// End after this many seconds
    #[arg(long = "for", value_name = "SECONDS", value_parser = parse_seconds)]
    duration: Option<Duration>,
    /// Print the closing report as JSON
    #[arg(long)]
    json: bool,
    /// Print a line of JSON at this interval, for `[onepipe]`, `[pktgen]` and servers of `[consensus]` (fields:
    /// docs/onepipe.md, docs/pktgen.md and docs/p4ce.md)
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    live: Option<Duration>,
    /// Further arguments for DPDK's EAL
    #[arg(last = true, value_name = "EAL")]
    eal: Vec<String>,
    /// Folder for histograms of `[pktgen]`
    #[arg(skip)]
    hgrm: Option<PathBuf>,
    /// Whether this server of [consensus] bootstraps its group
    #[arg(skip)]
    bootstrap: bool,
}

/// Send RoCEv2 traffic according to a configuration with `[pktgen]`, and check what becomes of it
///
/// Exits with 1 if the numbers are not valid: a rate was not reached, a port went down, or frames were lost
/// on this side.
#[derive(Args)]
pub(crate) struct PktgenArgs {
    #[command(flatten)]
    run: RunArgs,
    /// Write histograms of latency into this folder, as .hgrm files
    #[arg(long, value_name = "FOLDER")]
    hgrm: Option<PathBuf>,
}

/// Runs a configuration that has `[pktgen]`, as [`run`] does.
pub(crate) fn pktgen(mut args: PktgenArgs) -> ExitCode {
    let invalid = |text: String| {
        print_error(text);
        ExitCode::from(config::EXIT_CODE)
    };
    let Some(path) = &args.run.config else {
        return invalid(
            "the configuration is missing; add a file with [pktgen], such as configs/pktgen/null.toml".into(),
        );
    };
    match config::load(path).map(|config| config.function) {
        Ok(FunctionConfig::Pktgen(_)) | Err(_) => {
            args.run.hgrm = args.hgrm;
            run(args.run)
        }
        Ok(_) => invalid(format!("{} has no [pktgen]; use `understudy run`", path.display())),
    }
}

/// Run an RDMA host on a port, from a configuration with `[nic]`, until Ctrl-C or until its clients are done
#[derive(Args)]
pub(crate) struct HostArgs {
    #[command(flatten)]
    run: RunArgs,
    /// Bootstrap the group of [consensus], empty, when all of its servers run and none is a member
    ///
    /// Use it for one server of a new group, or if all servers of a group have lost their memory and its
    /// contents may be lost. Do not put it into a service's unit file, where it would apply after every power
    /// failure.
    #[arg(long)]
    bootstrap: bool,
}

/// Runs a configuration that has a host, as [`run`] does.
pub(crate) fn host(mut args: HostArgs) -> ExitCode {
    let invalid = |text: String| {
        print_error(text);
        ExitCode::from(config::EXIT_CODE)
    };
    let Some(path) = &args.run.config else {
        return invalid(
            "the configuration is missing; add a file with [nic], such as configs/host.toml".into(),
        );
    };
    match config::load(path).map(|config| config.function) {
        Ok(FunctionConfig::Nic(_)) if args.bootstrap => {
            invalid(format!("{} has no [consensus]; remove --bootstrap", path.display()))
        }
        Ok(FunctionConfig::Nic(_) | FunctionConfig::Consensus(_)) | Err(_) => {
            args.run.bootstrap = args.bootstrap;
            run(args.run)
        }
        Ok(_) => invalid(format!("{} has no [nic]; use `understudy run`", path.display())),
    }
}

pub(crate) fn parse_seconds(text: &str) -> Result<Duration, String> {
    text.parse()
        .ok()
        .and_then(|s: f64| Duration::try_from_secs_f64(s).ok())
        .ok_or_else(|| "not a number of seconds".into())
}

/// Returns exit code 2 for an invalid configuration, and 1 for run-time errors.
pub(crate) fn run(args: RunArgs) -> ExitCode {
    let failed = |report: Report| (format!("{report:?}\n"), ExitCode::FAILURE);
    // The demonstration's folder has to exist until the run ends.
    let loaded = match &args.config {
        Some(path) => config::load(path)
            .map(|config| (config, None))
            .map_err(|report| (report.render(), ExitCode::from(config::EXIT_CODE))),
        None => demo::load().map(|(config, dir)| (config, Some(dir))).map_err(failed),
    };
    let loaded = loaded.and_then(|(config, dir)| match config.function {
        FunctionConfig::Process(_) => {
            let text = format!("{} has [process]; use `understudy process`\n", config.path.display());
            Err((text, ExitCode::from(config::EXIT_CODE)))
        }
        _ => Ok((config, dir)),
    });
    let prints_live = |config: &Config| match config.function {
        FunctionConfig::OnePipe(_) | FunctionConfig::Consensus(_) | FunctionConfig::Pktgen(_) => true,
        _ => args.live.is_none(),
    };
    let loaded = loaded.and_then(|(config, dir)| {
        if prints_live(&config) {
            return Ok((config, dir));
        }
        let path = config.path.display();
        let text = format!("{path} has no [onepipe], [pktgen] or [consensus]; remove --live\n");
        Err((text, ExitCode::from(config::EXIT_CODE)))
    });
    match loaded.and_then(|(config, _dir)| start(args, config).map_err(failed)) {
        Ok(code) => code,
        Err((text, code)) => {
            print_error(text);
            code
        }
    }
}

/// Runs the load that `bench p4ce` measures.
pub(crate) fn p4ce_load(args: &bench::p4ce::LoadArgs) -> Result<(), Report> {
    let config = config::load(&args.config).map_err(|report| miette::miette!("{}", report.render()))?;
    let FunctionConfig::P4ce(p4ce) = &config.function else {
        return Err(miette::miette!("{} has no [p4ce]; add this table", args.config.display()));
    };
    let stop = catch_signals()?;
    let mut runtime = config.runtime.clone();
    for port in &mut runtime.ports {
        port.share_from = args.share_from;
    }
    let mut runtime = Runtime::start(runtime).map_err(|error| explain(&error))?;
    p4ce::load(&mut runtime, p4ce, args, &stop);
    Ok(())
}

/// Runs the load that `bench swordbox` measures.
pub(crate) fn swordbox_load(args: &bench::swordbox::LoadArgs) -> Result<(), Report> {
    let config = config::load(&args.config).map_err(|report| miette::miette!("{}", report.render()))?;
    let stop = catch_signals()?;
    let load = args.load();
    let (_, function) = load.make();
    let watch = function.watch();
    let mut runtime = Runtime::start(config.runtime).map_err(|error| explain(&error))?;
    // The load made its control-plane requests when it was created.
    let outcome = runtime.run(vec![function], &mut NoControl, &stop);
    drop(runtime);
    let frames = outcome.workers.iter().map(|worker| worker.received()).sum();
    let tally = watch.tally();
    println!("{frames} frames: {tally:?}");
    bench::swordbox::check(&load, &tally, frames)
}

/// Runs the load that `bench onepipe` measures.
pub(crate) fn onepipe_load(args: &bench::onepipe::LoadArgs) -> Result<(), Report> {
    let config = config::load(&args.config).map_err(|report| miette::miette!("{}", report.render()))?;
    let stop = catch_signals()?;
    let load = args.load();
    let function = load.make();
    let counters = function.counters();
    let function = Stopwatch::new(function);
    let laps = function.laps();
    let mut runtime = Runtime::start(config.runtime).map_err(|error| explain(&error))?;
    let outcome = runtime.run(vec![function], &mut NoControl, &stop);
    drop(runtime);
    let frames = outcome.workers.iter().map(|worker| worker.received()).sum();
    println!("{frames} frames, {} beacons sent", counters.beacons.get());
    if let Some(ns) = laps.median_ns() {
        println!("{}{ns}", bench::OWN_TIME);
    }
    bench::onepipe::check(&load, &counters, frames)
}

/// Returns a flag that SIGINT and SIGTERM set.
pub(crate) fn catch_signals() -> Result<Stop, Report> {
    let stop = Stop::new();
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, stop.flag())
            .map_err(|error| miette::miette!("cannot catch signals: {error}"))?;
    }
    Ok(stop)
}

fn start(args: RunArgs, mut config: Config) -> Result<ExitCode, Report> {
    let stop = catch_signals()?;
    let swordbox = swordbox::Prepared::of(&config)?;
    config.runtime.eal.extra.extend(args.eal);
    pktgen::prepare(args.hgrm.as_deref())?;
    let workers = config.runtime.workers.cpus.len();
    let mut runtime = Runtime::start(config.runtime.clone()).map_err(|error| explain(&error))?;

    let observer = Observer::start(&config)?;
    let names: Vec<&str> = runtime.ports().map(|port| port.name.as_str()).collect();
    info!(
        "understudy is ready on {}, with {workers} worker{} ({}). Ctrl-C ends it.",
        names.join(", "),
        if workers == 1 { "" } else { "s" },
        Runtime::version(),
    );
    let until = EndConditions {
        began: now(),
        duration: args.duration,
        idle: config.stop_when_idle,
        frames_seen: 0,
        last_frame_at: now(),
        observer,
    };
    // Error that is reported after the closing report
    let mut deferred = Ok(());
    let (text, code) = match &config.function {
        FunctionConfig::Forward(function) => {
            let stage = tunnel::TunnelStage::of(&config, &runtime);
            let report = forward::run(&mut runtime, function, &stage, workers, until, &stop);
            (if args.json { report.json() } else { report.text() }, ExitCode::SUCCESS)
        }
        FunctionConfig::Impair(config) => {
            let report = impair::run(&mut runtime, config, workers, until, &stop);
            (if args.json { report.json() } else { report.text() }, ExitCode::SUCCESS)
        }
        FunctionConfig::Nic(config) => {
            let report = host::run(&mut runtime, config, until, &stop)?;
            (if args.json { report.json() } else { report.text() }, report.code())
        }
        FunctionConfig::Consensus(config) => {
            let report = consensus::run(&mut runtime, config, args.bootstrap, args.live, until, &stop);
            (if args.json { report.json() } else { report.text() }, report.code())
        }
        FunctionConfig::P4ce(config) => {
            let report = p4ce::run(&mut runtime, config, until, &stop);
            (if args.json { report.json() } else { report.text() }, ExitCode::SUCCESS)
        }
        FunctionConfig::OnePipe(onepipe) => {
            let stage = tunnel::TunnelStage::of(&config, &runtime);
            let report = onepipe::run(&mut runtime, onepipe, &stage, args.live, until, &stop)?;
            (if args.json { report.json() } else { report.text() }, ExitCode::SUCCESS)
        }
        FunctionConfig::Process(_) => unreachable!("`run` rejects [process]"),
        FunctionConfig::Pktgen(profile) => {
            let options =
                pktgen::Options { duration: args.duration, live: args.live, hgrm: args.hgrm.as_deref() };
            let (report, written) =
                pktgen::run(&mut runtime, &config.runtime.ports, profile, &options, until.observer, &stop)?;
            deferred = written;
            (if args.json { report.json() } else { report.text() }, report.code())
        }
        FunctionConfig::Swordbox(config) => {
            let prepared = swordbox.expect("`Prepared::of` returns `Some` for [swordbox]");
            let report = swordbox::run(&mut runtime, config, prepared, until, &stop);
            (if args.json { report.json() } else { report.text() }, ExitCode::SUCCESS)
        }
    };
    drop(runtime);
    // A closed pipe is not a failure.
    _ = writeln!(std::io::stdout(), "{text}");
    deferred.map(|()| code)
}

/// Returns an unpredictable number.
pub(crate) fn random_u64() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// Returns the current time of the program's only clock.
#[allow(clippy::disallowed_methods, reason = "only the runtime reads the clock")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Returns a report of a runtime error with its remedy and DPDK's last log lines.
pub(crate) fn explain(error: &dataplane::Error) -> Report {
    let mut help = error.remedy.clone();
    let log: Vec<_> = error.log.lines().filter(|line| !line.trim().is_empty()).collect();
    if !log.is_empty() {
        help += "\n\nDPDK logged:\n";
        help += &log[log.len().saturating_sub(12)..].join("\n");
    }
    MietteDiagnostic::new(error.what.clone()).with_help(help).into()
}

/// Conditions under which a run ends by itself, and the observation of the run.
struct EndConditions {
    began: Instant,
    duration: Option<Duration>,
    idle: Option<Duration>,
    /// Frames received up to the last check at which there were new ones, and the time of that check
    frames_seen: u64,
    last_frame_at: Instant,
    /// Responds to the observers of the instance
    observer: Option<Observer>,
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

/// Runs functions, one per worker, until `until` or `stop` ends the run. Returns the outcome and the duration
/// in seconds. `metrics` returns the function's metrics for observation.
fn run_until<F: Function + Send, C: Control<F>>(
    runtime: &mut Runtime,
    functions: Vec<F>,
    control: &mut C,
    metrics: impl Fn(&C) -> FunctionMetrics,
    until: EndConditions,
    stop: &Stop,
) -> (Outcome, f64) {
    run_groups_until(runtime, functions, control, metrics, |_, id| no_groups(id), until, stop)
}

/// Runs functions as [`run_until`] does, with `group` returning the queue pairs of a group.
fn run_groups_until<F: Function + Send, C: Control<F>>(
    runtime: &mut Runtime,
    functions: Vec<F>,
    control: &mut C,
    metrics: impl Fn(&C) -> FunctionMetrics,
    group: impl Fn(&C, u32) -> Result<Vec<QueuePair>, TraceError>,
    until: EndConditions,
    stop: &Stop,
) -> (Outcome, f64) {
    let began = now();
    let outcome = runtime.run(functions, &mut RunControl { control, metrics, group, until }, stop);
    (outcome, began.elapsed().as_secs_f64())
}

/// Runs functions, one per worker, until their control plane ends the run. Returns the outcome and the
/// duration in seconds.
fn run_until_done<F: Function + Send, C: Control<F>>(
    runtime: &mut Runtime,
    functions: Vec<F>,
    control: &mut C,
) -> (Outcome, f64) {
    let began = now();
    let outcome = runtime.run(functions, control, &Stop::new());
    (outcome, began.elapsed().as_secs_f64())
}

/// A control plane that also checks the end conditions and serves observers.
struct RunControl<'a, C, T, G> {
    control: &'a mut C,
    metrics: T,
    group: G,
    until: EndConditions,
}

impl<F, C, T, G> Control<F> for RunControl<'_, C, T, G>
where
    F: Function,
    C: Control<F>,
    T: Fn(&C) -> FunctionMetrics,
    G: Fn(&C, u32) -> Result<Vec<QueuePair>, TraceError>,
{
    fn on_event(&mut self, worker: usize, event: F::Event, out: &mut ControlOutput<'_, F>) {
        self.control.on_event(worker, event, out);
    }

    fn on_punt(&mut self, worker: usize, frame: Mbuf, port: PortId, out: &mut ControlOutput<'_, F>) {
        self.control.on_punt(worker, frame, port, out);
    }

    fn on_tick(&mut self, live: &Live<'_>, out: &mut ControlOutput<'_, F>) -> bool {
        if let Some(observer) = &mut self.until.observer {
            let (metrics, group) = (|| (self.metrics)(self.control), |id| (self.group)(self.control, id));
            observer.serve_requests(live, out, metrics, group);
        }
        self.until.continues(live) && self.control.on_tick(live, out)
    }

    fn on_link(&mut self, port: &PortInfo, up: bool) {
        log::peer(port, up);
        self.control.on_link(port, up);
    }

    fn on_peer_refused(&mut self, port: &PortInfo, why: &str) {
        log::refused_peer(port, why);
    }
}
