//! `understudy run`, `host` and `pktgen`: starts a switch function on the ports of a configuration, runs it,
//! and prints its report.

mod cache;
mod demo;
mod keys;
mod load;
mod source;
mod versions;

pub(crate) use load::{health_load, onepipe_load, p4ce_load, swordbox_load};

use crate::config::{self, Config, Source};
use crate::functions::{self, Closing, FunctionConfig, Launch, Options, Versions};
use crate::observe::Instance;
use crate::output::print_error;
use crate::service;
use crate::system::{catch_signals, catch_signals_except_hangup, hangup_is_ignored, parse_seconds};
use clap::Args;
use core::cell::Cell;
use dataplane::Stop;
use miette::Report;
use settings::words::one_of;
use signal_hook::consts::SIGHUP;
use source::Demand;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use versions::Follower;

/// Exit code of a run that ended because a port lost its link, or because its card is to be unplugged
pub(crate) const LINK_LOST: u8 = 3;

/// Run a switch function on the ports of a configuration, until Ctrl-C
#[derive(Args)]
pub(crate) struct RunArgs {
    /// Configuration: a file, or a key in etcd (etcd://HOST:PORT/KEY) [default: a built-in demonstration that needs no
    /// hardware]
    #[arg(value_name = "CONFIG", value_parser = Source::parser())]
    config: Option<Source>,
    #[command(flatten)]
    options: RunOptions,
}

/// Options of each command that runs a function.
#[derive(Args)]
struct RunOptions {
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
    /// For a configuration in etcd: file in which the last one is kept that was in effect for ten seconds. A run starts
    /// with it if etcd does not answer, or has no valid one
    #[arg(long, value_name = "FILE")]
    cache: Option<PathBuf>,
    /// For a configuration in etcd: longest time to wait for its first answer [default: 10]
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    wait: Option<Duration>,
    /// Further arguments for DPDK's EAL
    #[arg(last = true, value_name = "EAL")]
    eal: Vec<String>,
}

/// Default of `--wait`
const WAIT: Duration = Duration::from_secs(10);

/// What only some commands set.
#[derive(Default)]
struct Extra {
    /// Folder for histograms of `[pktgen]`
    hgrm: Option<PathBuf>,
    /// Whether this server of [consensus] bootstraps its group
    bootstrap: bool,
}

/// Send RoCEv2 traffic according to a configuration with `[pktgen]`, and check what becomes of it
#[derive(Args)]
pub(crate) struct PktgenArgs {
    /// Configuration file with `[pktgen]`, such as configs/pktgen/null.toml
    #[arg(value_name = "CONFIG", value_parser = Source::parser())]
    config: Source,
    #[command(flatten)]
    options: RunOptions,
    /// Write histograms of latency into this folder, as .hgrm files
    #[arg(long, value_name = "FOLDER")]
    hgrm: Option<PathBuf>,
}

/// Runs a configuration that has `[pktgen]`, as [`run`] does.
pub(crate) fn pktgen(args: PktgenArgs) -> ExitCode {
    let PktgenArgs { config, options, hgrm } = args;
    let demand = |config: &Config| match config.function {
        FunctionConfig::Pktgen(_) => Ok(()),
        _ => Err(format!("{} has no [pktgen]; use `understudy run`", config.path.display())),
    };
    run_with(Some(config), options, Extra { hgrm, ..Extra::default() }, demand)
}

/// Run an RDMA host on a port, from a configuration with `[nic]`, until Ctrl-C or until its clients are done
#[derive(Args)]
pub(crate) struct HostArgs {
    /// Configuration file with `[nic]`, such as configs/host.toml
    #[arg(value_name = "CONFIG", value_parser = Source::parser())]
    config: Source,
    #[command(flatten)]
    options: RunOptions,
    /// Bootstrap the group of [consensus], empty, when all of its servers run and none is a member
    ///
    /// Use it for one server of a new group, or if all servers of a group have lost their memory and its
    /// contents may be lost. Do not put it into a service's unit file, where it would apply after every power
    /// failure.
    #[arg(long)]
    bootstrap: bool,
}

/// Runs a configuration that has a host, as [`run`] does.
pub(crate) fn host(args: HostArgs) -> ExitCode {
    let HostArgs { config, options, bootstrap } = args;
    let demand = move |config: &Config| match config.function {
        FunctionConfig::Nic(_) if bootstrap => {
            Err(format!("{} has no [consensus]; remove --bootstrap", config.path.display()))
        }
        FunctionConfig::Nic(_) | FunctionConfig::Consensus(_) => Ok(()),
        _ => Err(format!("{} has no [nic]; use `understudy run`", config.path.display())),
    };
    run_with(Some(config), options, Extra { bootstrap, ..Extra::default() }, demand)
}

/// Runs a configuration, or the demonstration. The exit codes are those of `exit`.
pub(crate) fn run(args: RunArgs) -> ExitCode {
    let demand = |config: &Config| match (config.function.name(), config.function.command()) {
        (_, "run") => Ok(()),
        (table, command) => {
            Err(format!("{} has [{table}]; use `understudy {command}`", config.path.display()))
        }
    };
    run_with(args.config, args.options, Extra::default(), demand)
}

/// Runs a configuration that meets what the command demands, or the demonstration.
fn run_with(
    source: Option<Source>,
    options: RunOptions,
    extra: Extra,
    demand: impl Fn(&Config) -> Result<(), String> + Send + Sync + 'static,
) -> ExitCode {
    let failed = |report: Report| (format!("{report:?}\n"), ExitCode::FAILURE);
    let prints_lines = options.live.is_some();
    let demand: Arc<Demand> = Arc::new(move |config: &Config| {
        demand(config)?;
        if prints_lines { check_prints_lines(config) } else { Ok(()) }
    });
    let ran = match source {
        // The demonstration's folder has to exist until the run ends.
        None => demo::load().map_err(failed).and_then(|(config, _folder)| {
            demand(&config).map_err(|text| (text, ExitCode::from(config::EXIT_CODE)))?;
            let stop = catch_signals().map_err(failed)?;
            start(options, extra, &config, stop, None).map_err(failed)
        }),
        Some(source) => run_source(source, options, extra, demand),
    };
    match ran {
        Ok(code) => code,
        Err((text, code)) => {
            print_error(text);
            code
        }
    }
}

/// Runs the configuration of a source, and follows its newer versions.
fn run_source(
    source: Source,
    options: RunOptions,
    extra: Extra,
    demand: Arc<Demand>,
) -> Result<ExitCode, source::Refusal> {
    let failed = |report: Report| (format!("{report:?}\n"), ExitCode::FAILURE);
    let cache = options.cache.clone();
    let hangup = Arc::new(AtomicBool::new(false));
    let (loaded, reader, stop) = match &source {
        Source::File(path) => {
            if options.cache.is_some() || options.wait.is_some() {
                let text =
                    format!("--cache and --wait are for a configuration in etcd, and {source} is a file");
                return Err((text, ExitCode::from(config::EXIT_CODE)));
            }
            (source::load_file(path, &*demand)?, None, None)
        }
        Source::Etcd(address) => {
            // Without handlers, the first process of a container would not end.
            let stop = catch_all(&hangup).map_err(failed)?;
            let wait = options.wait.unwrap_or(WAIT);
            let Some((loaded, reader)) = source::load_key(address, cache.as_deref(), wait, &*demand, &stop)?
            else {
                return Ok(ExitCode::SUCCESS);
            };
            (loaded, Some(reader), Some(stop))
        }
    };
    let config = &loaded.config;
    // A service has no terminal that could hang up: its manager requests a reload with SIGHUP.
    let reloads = reader.is_some() || service::is_managed() || config.function.reloads();
    let stop = match stop {
        Some(stop) => Ok(stop),
        None if reloads => catch_all(&hangup),
        None => catch_signals(),
    };
    let stop = stop.map_err(failed)?;
    let hangup = reloads.then_some(hangup);
    let versions = Follower::new(source, &loaded, reader, demand, hangup, cache.as_deref());
    start(options, extra, config, stop, Some(Box::new(versions))).map_err(failed)
}

/// Returns a flag that SIGINT and SIGTERM set. SIGHUP sets `hangup`.
fn catch_all(hangup: &Arc<AtomicBool>) -> Result<Stop, Report> {
    if !hangup_is_ignored() {
        signal_hook::flag::register(SIGHUP, Arc::clone(hangup))
            .map_err(|error| miette::miette!("cannot catch signals: {error}"))?;
    }
    catch_signals_except_hangup()
}

/// Refuses a function that prints no lines with `--live`.
fn check_prints_lines(config: &Config) -> Result<(), String> {
    let live: Vec<_> = functions::live_tables().collect();
    if live.contains(&config.function.name()) {
        return Ok(());
    }
    let tables = one_of(live.iter().map(|table| format!("[{table}]"))).replace('`', "");
    Err(format!("{} has no {tables}; remove --live", config.path.display()))
}

/// Runs a configuration. The demonstration, which has no newer versions, ends with its result in a line.
fn start(
    options: RunOptions,
    extra: Extra,
    config: &Config,
    stop: Stop,
    versions: Option<Box<dyn Versions + '_>>,
) -> Result<ExitCode, Report> {
    let RunOptions { duration, json, live, eal, .. } = options;
    let Extra { hgrm, bootstrap } = extra;
    let mut runtime = config.runtime.clone();
    runtime.eal.extra.extend(eal);
    let lost_link = Rc::new(Cell::new(false));
    let is_demo = versions.is_none();
    let launch = Launch {
        options: &Options { duration, live, hgrm, bootstrap },
        runtime,
        tunnel: config.tunnel.as_ref(),
        observe: &config.observe,
        instance: Instance::this(&config.path, config.function.name()),
        idle: config.stop_when_idle,
        stop,
        lost_link: Rc::clone(&lost_link),
        versions,
    };
    let Closing { report, deferred } = config.function.run(launch)?;
    let mut text = if json { report.json() } else { report.text() };
    if is_demo && !json {
        let report = serde_json::from_str(&report.json()).expect("the report is JSON");
        text = format!("{text}\n\n{}", demo::headline(&report));
    }
    // A closed pipe is not a failure.
    _ = writeln!(std::io::stdout(), "{text}");
    deferred.map(|()| if lost_link.get() { ExitCode::from(LINK_LOST) } else { report.code() })
}
