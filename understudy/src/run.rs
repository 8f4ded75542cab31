//! `understudy run`, `host` and `pktgen`: starts a switch function on the ports of a configuration, runs it,
//! and prints its report.

mod demo;
mod load;

pub(crate) use load::{health_load, onepipe_load, p4ce_load, swordbox_load};

use crate::config::{self, Config};
use crate::functions::{self, Closing, FunctionConfig, Launch, Options, Reloaded};
use crate::observe::Instance;
use crate::output::print_error;
use crate::service::{self, Hangup};
use crate::system::{catch_signals, catch_signals_except_hangup, parse_seconds};
use clap::Args;
use core::cell::Cell;
use miette::Report;
use settings::words::one_of;
use std::fmt::Display;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

/// Exit code of a run that ended because a port lost its link, or because its card is to be unplugged
pub(crate) const LINK_LOST: u8 = 3;

/// Run a switch function on the ports of a configuration, until Ctrl-C
///
/// Exits with 3 if a port lost its link and `[runtime] on_link_loss` is "exit", or if a port's card is to be unplugged.
#[derive(Args)]
pub(crate) struct RunArgs {
    /// Configuration file [default: a built-in demonstration that needs no hardware]
    config: Option<PathBuf>,
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
    /// Further arguments for DPDK's EAL
    #[arg(last = true, value_name = "EAL")]
    eal: Vec<String>,
}

/// What only some commands set.
#[derive(Default)]
struct Extra {
    /// Folder for histograms of `[pktgen]`
    hgrm: Option<PathBuf>,
    /// Whether this server of [consensus] bootstraps its group
    bootstrap: bool,
}

/// Send RoCEv2 traffic according to a configuration with `[pktgen]`, and check what becomes of it
///
/// Exits with 1 if the numbers are not valid: a rate was not reached, a port went down, or frames were lost
/// on this side.
#[derive(Args)]
pub(crate) struct PktgenArgs {
    /// Configuration file with `[pktgen]`, such as configs/pktgen/null.toml
    #[arg(value_name = "CONFIG.toml")]
    config: PathBuf,
    #[command(flatten)]
    options: RunOptions,
    /// Write histograms of latency into this folder, as .hgrm files
    #[arg(long, value_name = "FOLDER")]
    hgrm: Option<PathBuf>,
}

/// Runs a configuration that has `[pktgen]`, as [`run`] does.
pub(crate) fn pktgen(args: PktgenArgs) -> ExitCode {
    let PktgenArgs { config: path, options, hgrm } = args;
    match config::load(&path).map(|config| config.function) {
        Ok(FunctionConfig::Pktgen(_)) | Err(_) => {
            run_with(Some(&path), options, Extra { hgrm, ..Extra::default() })
        }
        Ok(_) => invalid(format_args!("{} has no [pktgen]; use `understudy run`", path.display())),
    }
}

fn invalid(text: impl Display) -> ExitCode {
    print_error(text);
    ExitCode::from(config::EXIT_CODE)
}

/// Run an RDMA host on a port, from a configuration with `[nic]`, until Ctrl-C or until its clients are done
#[derive(Args)]
pub(crate) struct HostArgs {
    /// Configuration file with `[nic]`, such as configs/host.toml
    #[arg(value_name = "CONFIG.toml")]
    config: PathBuf,
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
    let HostArgs { config: path, options, bootstrap } = args;
    match config::load(&path).map(|config| config.function) {
        Ok(FunctionConfig::Nic(_)) if bootstrap => {
            invalid(format_args!("{} has no [consensus]; remove --bootstrap", path.display()))
        }
        Ok(FunctionConfig::Nic(_) | FunctionConfig::Consensus(_)) | Err(_) => {
            run_with(Some(&path), options, Extra { bootstrap, ..Extra::default() })
        }
        Ok(_) => invalid(format_args!("{} has no [nic]; use `understudy run`", path.display())),
    }
}

/// Returns exit code 2 for an invalid configuration, and 1 for run-time errors.
pub(crate) fn run(args: RunArgs) -> ExitCode {
    run_with(args.config.as_deref(), args.options, Extra::default())
}

/// Runs a configuration, or the demonstration.
fn run_with(path: Option<&Path>, options: RunOptions, extra: Extra) -> ExitCode {
    let failed = |report: Report| (format!("{report:?}\n"), ExitCode::FAILURE);
    // The demonstration's folder has to exist until the run ends.
    let loaded = match path {
        Some(path) => config::load(path)
            .map(|config| (config, None))
            .map_err(|report| (report.render(), ExitCode::from(config::EXIT_CODE))),
        None => demo::load().map(|(config, dir)| (config, Some(dir))).map_err(failed),
    };
    let loaded = loaded.and_then(|(config, dir)| match unsuitable(&options, &config) {
        Some(text) => Err((text, ExitCode::from(config::EXIT_CODE))),
        None => Ok((config, dir)),
    });
    let start =
        |(config, demo): (Config, Option<_>)| start(options, extra, &config, demo.is_some()).map_err(failed);
    match loaded.and_then(start) {
        Ok(code) => code,
        Err((text, code)) => {
            print_error(text);
            code
        }
    }
}

/// Returns why a configuration cannot be run with these arguments, as a text for users.
fn unsuitable(options: &RunOptions, config: &Config) -> Option<String> {
    let (path, function) = (config.path.display(), &config.function);
    if function.command() != "run" {
        return Some(format!("{path} has [{}]; use `understudy {}`\n", function.name(), function.command()));
    }
    let live: Vec<_> = functions::live_tables().collect();
    if options.live.is_some() && !live.contains(&function.name()) {
        let tables = one_of(live.iter().map(|table| format!("[{table}]"))).replace('`', "");
        return Some(format!("{path} has no {tables}; remove --live\n"));
    }
    None
}

/// Runs a configuration. The report of the demonstration ends with its result in a line.
fn start(options: RunOptions, extra: Extra, config: &Config, is_demo: bool) -> Result<ExitCode, Report> {
    let RunOptions { duration, json, live, eal } = options;
    let Extra { hgrm, bootstrap } = extra;
    let mut runtime = config.runtime.clone();
    runtime.eal.extra.extend(eal);
    let lost_link = Rc::new(Cell::new(false));
    // A service has no terminal that could hang up: its manager requests a reload with SIGHUP.
    let hangup = (service::is_managed() && !config.function.reloads())
        .then(|| {
            Hangup::register(&config.path, || {
                reload(config).map(|again| again.rest_is_unchanged && again.function == config.function)
            })
        })
        .transpose()?;
    let catches_hangup = hangup.is_some() || config.function.reloads();
    let launch = Launch {
        options: &Options { duration, live, hgrm, bootstrap },
        runtime,
        tunnel: config.tunnel.as_ref(),
        observe: &config.observe,
        instance: Instance::this(&config.path, config.function.name()),
        idle: config.stop_when_idle,
        stop: if catches_hangup { catch_signals_except_hangup()? } else { catch_signals()? },
        lost_link: Rc::clone(&lost_link),
        reload: Rc::new(|| reload(config)),
        hangup,
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

/// Reads the file of a configuration again.
fn reload(initial: &Config) -> Result<Reloaded<FunctionConfig>, String> {
    let again = config::load(&initial.path).map_err(|report| report.render())?;
    Ok(initial.reloaded(again))
}
