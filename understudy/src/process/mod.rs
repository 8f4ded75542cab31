//! `understudy process`: a 1Pipe process on the host library, with a simple workload.

mod output;
mod reliable;
mod report;
mod session;
mod workload;

#[cfg(test)]
pub(crate) use report::ProcessReport;

use crate::config;
use crate::functions::FunctionConfig;
use crate::output::print_error;
use crate::system::parse_seconds;
use miette::MietteDiagnostic;
use onepipe_host::{Config, Failure, InitError, ProcessId, Settings, Timestamp};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use tracing::info;

/// Join a 1Pipe network as a process: receive in order, and optionally send scatterings, until Ctrl-C
///
/// The configuration has `[process]`; `understudy plan --out DIR` writes one for each host.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Configuration file
    #[arg(value_name = "HOST.process.toml")]
    config: PathBuf,
    /// Send this many scatterings, starting when a barrier is known (before that, nothing is delivered); with
    /// `--reliable`, when this process and all receivers are members
    #[arg(long, value_name = "SCATTERINGS", default_value_t = 0)]
    send: u64,
    /// Send to these processes [default: all peers and the process itself]
    #[arg(long, value_name = "ID", value_delimiter = ',')]
    to: Vec<u32>,
    /// Send by the reliable service, and receive both services in one order; the configuration needs [controller].
    /// Failed processes are left out until they have joined again
    #[arg(long)]
    reliable: bool,
    /// Size of each message in bytes
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(8..=16 << 20))]
    size: u32,
    /// Scatterings per second [default: unlimited]
    #[arg(long, value_name = "PER_SECOND", value_parser = parse_rate)]
    rate: Option<f64>,
    /// End when this many messages were received and all sent scatterings are settled
    #[arg(long, value_name = "MESSAGES")]
    expect: Option<u64>,
    /// End after this many seconds
    #[arg(long = "for", value_name = "SECONDS", value_parser = parse_seconds)]
    duration: Option<Duration>,
    /// Print each received message in order (timestamp, sender, number, bytes), and each failed one
    /// ("failed", number, receiver, reason) and failed process ("process_failed", number, timestamp); the report
    /// then goes to standard error
    #[arg(long)]
    print: bool,
    /// Write the closing report, and the lines of `--live`, to this file
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Print the closing report as JSON
    #[arg(long)]
    json: bool,
    /// Print a line of JSON at this interval
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    live: Option<Duration>,
    /// Further arguments for DPDK's EAL
    #[arg(last = true, value_name = "EAL")]
    eal: Vec<String>,
}

fn parse_rate(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|rate| *rate > 0.0 && *rate <= 1e9).ok_or_else(|| "not a number above 0".into())
}

/// Returns exit code 2 for an invalid configuration, 3 for a lost link, and 1 for run-time errors or messages
/// out of order.
pub(crate) fn run(args: &Args) -> ExitCode {
    let (config, to) = match prepare(args) {
        Ok(prepared) => prepared,
        Err(text) => {
            print_error(text);
            return ExitCode::from(config::EXIT_CODE);
        }
    };
    match session::run(args, config, &to) {
        Ok(code) => code,
        Err(report) => {
            print_error(format_args!("{report:?}"));
            ExitCode::FAILURE
        }
    }
}

/// Reads the configuration. Returns it with the receivers of every scattering.
///
/// # Errors
/// What is invalid, in it or in the arguments.
fn prepare(args: &Args) -> Result<(Config, Vec<ProcessId>), String> {
    let mut loaded = config::load(&args.config).map_err(|report| report.render())?;
    let path = args.config.display();
    let FunctionConfig::Process(mut process) = loaded.function else {
        return Err(format!(
            "{path} has no [process]; `understudy plan --out DIR` writes files with this table\n"
        ));
    };
    let to = receivers(args, &process)
        .map_err(|unknown| format!("--to: there is no process {unknown} in {path}\n"))?;
    if args.reliable {
        let Some(controller) = &mut process.controller else {
            return Err(format!(
                "--reliable: {path} has no [controller]; add it, or run `understudy plan --out DIR` with a topology \
                 that has [controller]\n"
            ));
        };
        controller.is_merged = true;
    } else if process.controller.take().is_some() {
        info!("Without --reliable, the process takes no part in the reliable service.");
    }
    loaded.runtime.eal.extra.extend(args.eal.iter().cloned());
    Ok((Config { runtime: loaded.runtime, process }, to))
}

/// Returns the receivers of every scattering.
///
/// # Errors
/// One that is not in the file.
fn receivers(args: &Args, settings: &Settings) -> Result<Vec<ProcessId>, ProcessId> {
    let process = &settings.process;
    let known: Vec<_> = process.peers.iter().map(|peer| peer.id).chain([process.own.id]).collect();
    if args.to.is_empty() {
        return Ok(known);
    }
    let known_only = |&id: &u32| Some(ProcessId(id)).filter(|id| known.contains(id)).ok_or(ProcessId(id));
    args.to.iter().map(known_only).collect()
}

/// Returns an error report with a remedy.
fn explain(error: InitError) -> miette::Report {
    match error {
        InitError::Dataplane { what, remedy, log } => {
            crate::system::explain(&dataplane::Error { what, remedy, log })
        }
        other => MietteDiagnostic::new(other.to_string()).into(),
    }
}

/// Position in the total order of all messages
type Position = (Timestamp, ProcessId);

/// Names of failure reasons in the output
const FAILURES: [(Failure, &str); 6] = [
    (Failure::Lost, "lost"),
    (Failure::Late, "late"),
    (Failure::NoRoom, "no_room"),
    (Failure::NotAcknowledged, "no_answer"),
    (Failure::Dead, "dead"),
    (Failure::Left, "left"),
];

/// Counts by name
type Counts = BTreeMap<&'static str, u64>;

/// Returns counts as a list for a reader.
fn list(counts: &Counts) -> String {
    let list: Vec<_> =
        counts.iter().map(|(name, count)| format!("{count} {}", name.replace('_', " "))).collect();
    list.join(", ")
}
