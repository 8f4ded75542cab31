//! `understudy controller`: runs 1Pipe's controller, or asks a running one.

pub(crate) mod metrics;
mod operator;
mod report;

#[cfg(test)]
pub(crate) use operator::{DrainJson, FailJson, StatusJson};
#[cfg(test)]
pub(crate) use report::Report as ClosingReport;

use crate::config::{self, ControllerConfig, StoreConfig};
use crate::observe::{Instance, Observer, steer};
use crate::output::{print, print_error};
use crate::service::{self, Watchdog};
use crate::system::{catch_signals, now, parse_seconds};
use ::controller::server::Controller;
use ::controller::store::{RedbStore, Store, StoreError};
use clap::Subcommand;
use core::net::SocketAddr;
use metrics::Metrics;
use miette::MietteDiagnostic;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tracing::{info, warn};

/// Time between two looks at signals
const TURN: Duration = Duration::from_millis(20);
/// Descriptors beside those of the nodes
const DESCRIPTORS: u64 = 512;

/// Run 1Pipe's controller, or ask a running one
///
/// The controller admits processes to the reliable service, and decides which of them failed. It runs until Ctrl-C,
/// SIGTERM or SIGHUP; nodes go on meanwhile, and a controller that starts with the same store takes over.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Args {
    /// Configuration file with `[controller]`, such as configs/onepipe/controller.toml
    #[arg(value_name = "CONTROLLER.toml", required = true)]
    config: Option<PathBuf>,
    /// End after this many seconds
    #[arg(long = "for", value_name = "SECONDS", value_parser = parse_seconds)]
    duration: Option<Duration>,
    /// Print the closing report as JSON
    #[arg(long)]
    json: bool,
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Subcommand)]
enum Action {
    /// Print the state of a running controller: members, representatives, open cases, silent links, alarms
    Status {
        #[command(flatten)]
        at: At,
    },
    /// Declare a process failed, and wait for the decision
    Fail {
        /// Number of the process
        #[arg(value_name = "PROCESS")]
        process: u32,
        #[command(flatten)]
        at: At,
    },
    /// End the older representative of a switch when its other one serves, and wait for that; after 30 s nothing has
    /// changed
    Drain {
        /// Number of the switch: its place in the topology, from 0
        #[arg(value_name = "SWITCH")]
        switch: u16,
        #[command(flatten)]
        at: At,
    },
}

/// A running controller, and how to print its answer.
#[derive(clap::Args)]
struct At {
    /// Address of the controller, the `listen` of its file
    #[arg(long = "at", value_name = "ADDRESS:PORT")]
    address: SocketAddr,
    /// File with the controller's secret, if it has one
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Returns exit code 2 for an invalid configuration, and 1 for what goes wrong later.
pub(crate) fn run(args: &Args) -> ExitCode {
    match &args.action {
        Some(Action::Status { at }) => return operator::status(at),
        Some(Action::Fail { process, at }) => return operator::fail(*process, at),
        Some(Action::Drain { switch, at }) => return operator::drain(*switch, at),
        None => {}
    }
    let path = args.config.as_deref().unwrap_or(Path::new(""));
    let config = match config::load_controller(path) {
        Ok(config) => config,
        Err(report) => {
            print_error(report.render());
            return ExitCode::from(config::EXIT_CODE);
        }
    };
    match serve(args, config) {
        Ok(code) => code,
        Err(report) => {
            print_error(format_args!("{report:?}"));
            ExitCode::FAILURE
        }
    }
}

/// Returns a report with a remedy, of an error whose text has both.
fn explain(text: &str) -> miette::Report {
    let (what, help) = text.split_once("; ").unwrap_or((text, ""));
    let what = MietteDiagnostic::new(what);
    if help.is_empty() { what.into() } else { what.with_help(help).into() }
}

/// Raises the limit of open descriptors to what all nodes may need.
fn raise_limit(nodes: usize) {
    let limit = getrlimit(Resource::Nofile);
    let wanted = nodes as u64 + DESCRIPTORS;
    let Some(current) = limit.current.filter(|current| *current < wanted) else { return };
    let raised = limit.maximum.map_or(wanted, |maximum| wanted.min(maximum));
    _ = setrlimit(Resource::Nofile, Rlimit { current: Some(raised), ..limit });
    if raised < wanted {
        warn!(
            "Only {} descriptors may be open, and all nodes need {wanted}; raise the limit with `ulimit -n {wanted}`.",
            raised.max(current)
        );
    }
}

/// Opens the store of a network.
fn open(config: &StoreConfig, network: u64) -> Result<Box<dyn Store>, miette::Report> {
    let failed = |error: StoreError| explain(&error.to_string());
    match config {
        StoreConfig::File(path) => Ok(Box::new(RedbStore::open(path, network).map_err(failed)?)),
        #[cfg(feature = "etcd")]
        StoreConfig::Etcd { servers, prefix, lease } => {
            let config = ::controller::store::EtcdConfig {
                servers: servers.clone(),
                prefix: prefix.clone(),
                lease: Duration::from_nanos(lease.0),
            };
            Ok(Box::new(::controller::store::EtcdStore::open(&config, network).map_err(failed)?))
        }
        #[cfg(not(feature = "etcd"))]
        StoreConfig::Etcd { .. } => Err(explain(
            "this program has no stores in etcd; build it with `cargo build --release --features etcd` (Debian: \
             protobuf-compiler and libprotobuf-dev), or write `store = { file = \"controller.redb\" }`",
        )),
    }
}

fn serve(args: &Args, config: ControllerConfig) -> Result<ExitCode, miette::Report> {
    let stop = catch_signals()?;
    let (processes, switches) = (config.graph.processes().count(), config.graph.switches().len());
    raise_limit(processes + switches);
    let store = open(&config.store, config.server.machine.network)?;
    let mut controller = Controller::start(config.graph, &config.server, store).map_err(|error| {
        let what = format!("cannot listen at {}: {error}", config.server.listen);
        explain(&format!("{what}; write another `listen`, or end the program that has this address"))
    })?;
    let address = controller.address();
    info!(
        "The controller of {processes} processes and {switches} switches is ready at {address}. Ctrl-C ends it."
    );
    let instance = Instance::this(args.config.as_deref().unwrap_or(Path::new("")), "controller");
    let (steer, steering) = steer::queue();
    let mut observer = Observer::start(&config.observe, instance, &steer)?;
    let metrics = |controller: &Controller| Metrics {
        snapshot: controller.snapshot(),
        connections: controller.connections(),
    };
    let mut watchdog = Watchdog::new("State machine", format!("ready at {address}"));
    let began = now();
    while !stop.flag().load(Ordering::Relaxed)
        && controller.is_running()
        && args.duration.is_none_or(|limit| began.elapsed() < limit)
    {
        // The state machine's thread writes snapshots while it goes on.
        watchdog.on_tick(core::iter::once_with(|| controller.snapshot().at.0));
        if let Some(observer) = &mut observer {
            observer.serve_without_ports(|| metrics(&controller).observed());
        }
        steer::refuse_all(&steering, "controller");
        std::thread::sleep(TURN);
    }
    service::stopping();
    let has_ended = !controller.is_running();
    let metrics = metrics(&controller);
    controller.stop();
    let seconds = began.elapsed().as_secs_f64();
    let text = if args.json {
        format!("{}\n", report::json(&metrics, seconds))
    } else {
        report::text(&metrics, seconds)
    };
    if has_ended {
        return Err(miette::miette!("the controller's thread has ended"));
    }
    Ok(print(&text, ExitCode::SUCCESS))
}

/// Returns what a file would run.
pub(crate) fn summary(path: &Path, config: &ControllerConfig) -> String {
    let server = &config.server;
    let secret = match &config.secret_file {
        Some(path) => format!("the secret in {}", path.display()),
        None => "no secret: programs on this machine alone".to_owned(),
    };
    let lines = [
        (
            "network",
            format!(
                "{} processes and {} switches of {}, {:016x}",
                config.graph.processes().count(),
                config.graph.switches().len(),
                config.topology.display(),
                server.machine.network
            ),
        ),
        ("listen", format!("{}, {secret}", server.listen)),
        ("store", config.store.to_string()),
        (
            "waits",
            format!(
                "{} us for further reports, {} ms for answers",
                server.machine.gather.0 / 1_000,
                server.machine.respond_within.0 / 1_000_000
            ),
        ),
        ("ends", "when interrupted (Ctrl-C)".to_owned()),
    ];
    let lines = lines.map(|(key, value)| format!("{key:<9} {value}\n")).concat();
    format!("{} is valid. It would run 1Pipe's controller:\n\n{lines}", path.display())
}
