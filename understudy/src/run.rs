//! `understudy run`, `host` and `pktgen`: starts a switch function on the ports of a configuration, runs it,
//! and prints its report.

mod demo;
mod load;

pub(crate) use load::{health_load, onepipe_load, p4ce_load, swordbox_load};

use crate::config::{self, Config};
use crate::functions::{self, Closing, FunctionConfig, Launch, Options, Reloaded};
use crate::observe::Instance;
use crate::output::print_error;
use crate::system::{catch_signals, parse_seconds};
use clap::Args;
use miette::Report;
use settings::words::one_of;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

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
    let loaded = loaded.and_then(|(config, dir)| match unsuitable(&args, &config) {
        Some(text) => Err((text, ExitCode::from(config::EXIT_CODE))),
        None => Ok((config, dir)),
    });
    match loaded.and_then(|(config, _dir)| start(args, &config).map_err(failed)) {
        Ok(code) => code,
        Err((text, code)) => {
            print_error(text);
            code
        }
    }
}

/// Returns why a configuration cannot be run with these arguments, as a text for users.
fn unsuitable(args: &RunArgs, config: &Config) -> Option<String> {
    let (path, function) = (config.path.display(), &config.function);
    if function.command() != "run" {
        return Some(format!("{path} has [{}]; use `understudy {}`\n", function.name(), function.command()));
    }
    let live: Vec<_> = functions::live_tables().collect();
    if args.live.is_some() && !live.contains(&function.name()) {
        let tables = one_of(live.iter().map(|table| format!("[{table}]"))).replace('`', "");
        return Some(format!("{path} has no {tables}; remove --live\n"));
    }
    None
}

fn start(args: RunArgs, config: &Config) -> Result<ExitCode, Report> {
    let RunArgs { duration, json, live, eal, hgrm, bootstrap, .. } = args;
    let mut runtime = config.runtime.clone();
    runtime.eal.extra.extend(eal);
    let launch = Launch {
        options: &Options { duration, live, hgrm, bootstrap },
        runtime,
        tunnel: config.tunnel.as_ref(),
        observe: &config.observe,
        instance: Instance::this(&config.path, config.function.name()),
        idle: config.stop_when_idle,
        stop: catch_signals()?,
        reload: Rc::new(|| reload(config)),
    };
    let Closing { report, deferred } = config.function.run(launch)?;
    // A closed pipe is not a failure.
    _ = writeln!(std::io::stdout(), "{}", if json { report.json() } else { report.text() });
    deferred.map(|()| report.code())
}

/// Reads the file of a configuration again.
fn reload(initial: &Config) -> Result<Reloaded<FunctionConfig>, String> {
    let again = config::load(&initial.path).map_err(|report| report.render())?;
    Ok(initial.reloaded(again))
}
