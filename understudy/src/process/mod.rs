//! `understudy process`: a 1Pipe process on the host library, with a simple workload.

mod report;

use crate::config;
use crate::functions::FunctionConfig;
use crate::interfaces;
use crate::output::print_error;
use crate::system::{catch_signals, now, parse_seconds};
use miette::MietteDiagnostic;
use onepipe_host::{
    Config, Endpoint, Event, Failure, InitError, ProcessId, Scattering, SendError, Timestamp,
};
use report::ReceiveStats;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// Timeout of a receive when there is nothing to do
const RECV_TIMEOUT: Duration = Duration::from_millis(1);
/// Length of a message's number, in bytes
const NUMBER_LEN: usize = 8;

/// Join a 1Pipe network as a process: receive in order, and optionally send scatterings, until Ctrl-C
///
/// The configuration has `[process]`; `understudy plan --out DIR` writes one for each host.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Configuration file
    #[arg(value_name = "HOST.process.toml")]
    config: PathBuf,
    /// Send this many scatterings, starting when a barrier is known (before that, nothing is delivered)
    #[arg(long, value_name = "SCATTERINGS", default_value_t = 0)]
    send: u64,
    /// Send to these processes [default: all peers and the process itself]
    #[arg(long, value_name = "ID", value_delimiter = ',')]
    to: Vec<u32>,
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
    /// ("failed", number, receiver, reason); the report then goes to standard error
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

/// Returns exit code 2 for an invalid configuration, and 1 for run-time errors or messages out of order.
pub(crate) fn run(args: &Args) -> ExitCode {
    let invalid = |text: String| {
        print_error(text);
        ExitCode::from(config::EXIT_CODE)
    };
    let mut loaded = match config::load(&args.config) {
        Ok(loaded) => loaded,
        Err(report) => return invalid(report.render()),
    };
    let FunctionConfig::Process(process) = loaded.function else {
        let path = args.config.display();
        return invalid(format!(
            "{path} has no [process]; `understudy plan --out DIR` writes files with this table\n"
        ));
    };
    let ids = process.process.peers.iter().map(|peer| peer.id).chain([process.process.own.id]);
    let to: Vec<_> = if args.to.is_empty() {
        ids.collect()
    } else {
        let to: Vec<_> = args.to.iter().map(|&id| ProcessId(id)).collect();
        let known: Vec<_> = ids.collect();
        if let Some(unknown) = to.iter().find(|id| !known.contains(id)) {
            return invalid(format!("--to: there is no process {unknown} in {}\n", args.config.display()));
        }
        to
    };
    loaded.runtime.eal.extra.extend(args.eal.iter().cloned());
    let config = Config { runtime: loaded.runtime, process };
    match run_workload(args, config, &to) {
        Ok(code) => code,
        Err(report) => {
            print_error(format_args!("{report:?}"));
            ExitCode::FAILURE
        }
    }
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

/// The sending side of the workload.
struct Workload<'a> {
    args: &'a Args,
    to: &'a [ProcessId],
    payload: Vec<u8>,
    /// Time of the first scattering
    began: Option<Instant>,
    sent: u64,
    settled: u64,
}

impl Workload<'_> {
    /// Sends the scatterings that are due and fit. Returns whether any was sent.
    fn send(&mut self, endpoint: &mut Endpoint, now: Instant) -> Result<bool, SendError> {
        if !endpoint.handle().is_open() {
            return Ok(false);
        }
        let before = self.sent;
        let began = *self.began.get_or_insert(now);
        // At most 64 per call, because messages have to be received as well.
        let limit = self.args.send.min(self.sent + 64);
        let due = match self.args.rate {
            Some(rate) => (now.duration_since(began).as_secs_f64() * rate) as u64 + 1,
            None => u64::MAX,
        };
        while self.sent < limit.min(due) {
            self.payload[..NUMBER_LEN].copy_from_slice(&self.sent.to_be_bytes());
            let result = if let &[dst] = self.to {
                endpoint.unreliable_send(&[(dst, &self.payload)])
            } else {
                let messages: Vec<_> = self.to.iter().map(|&dst| (dst, &self.payload[..])).collect();
                endpoint.unreliable_send(&messages)
            };
            match result {
                Ok(_) => self.sent += 1,
                Err(SendError::Full) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(self.sent > before)
    }

    fn is_done(&self, received: u64) -> bool {
        self.args.expect.is_some_and(|expected| {
            received >= expected && self.sent == self.args.send && self.settled == self.sent
        })
    }
}

fn run_workload(args: &Args, mut config: Config, to: &[ProcessId]) -> Result<ExitCode, miette::Report> {
    let stop = catch_signals()?;
    let stop = stop.flag();
    config.process.tell_settled = true;
    let own = config.process.process.own.id;
    interfaces::warn_of(&config.runtime.ports);
    let mut endpoint = Endpoint::init(config).map_err(explain)?;
    info!("Process {own} is ready, with {} peers. Ctrl-C ends it.", endpoint.handle().peers().len());
    let began = now();
    let mut workload =
        Workload { args, to, payload: vec![0x5a; args.size as usize], began: None, sent: 0, settled: 0 };
    let mut stats = ReceiveStats::default();
    let mut next_line = args.live.map(|every| began + every);
    let mut reports = report_output(args)?;
    let mut out = BufWriter::new(std::io::stdout());
    while !stop.load(Ordering::Relaxed) && endpoint.handle().is_running() {
        let time = now();
        if args.duration.is_some_and(|limit| time.duration_since(began) >= limit)
            || workload.is_done(stats.received)
        {
            break;
        }
        let sent = workload.send(&mut endpoint, time).map_err(|error| miette::miette!("{error}"))?;
        while let Some(event) = endpoint.poll_event() {
            match event {
                Event::SendFailed { scattering, dst, why, .. } => {
                    let why = stats.record_failure(why);
                    if args.print {
                        print_failed(&mut out, scattering, dst, why);
                    }
                }
                Event::Settled { .. } => workload.settled += 1,
                Event::Stalled { barrier } => warn_stalled(barrier),
                Event::Recovered { after, .. } => {
                    info!("The barrier rises again, after {} us.", after.0 / 1_000)
                }
            }
        }
        let mut record = |timestamp, src, payload: &[u8]| {
            stats.record(timestamp, src, payload.len());
            if args.print {
                print(&mut out, timestamp, src, payload);
            }
        };
        // A limited number at a time, because scatterings have to be sent as well.
        let received = (0..1024).take_while(|_| endpoint.unreliable_recv_with(&mut record).is_some()).count();
        if received == 0
            && !sent
            && let Some(message) = endpoint.recv_timeout(RECV_TIMEOUT)
        {
            record(message.timestamp, message.src, &message.payload);
        }
        if let (Some(at), Some(every)) = (next_line, args.live)
            && at <= time
        {
            next_line = Some(time + every);
            let line = stats.json(&endpoint, workload.sent, time.duration_since(began).as_secs_f64());
            // A closed pipe does not end the process.
            // Messages before the line that counts them
            _ = out.flush();
            _ = writeln!(reports, "{line}");
            _ = reports.flush();
        }
    }
    let thread_ended = !endpoint.handle().is_running();
    let seconds = now().duration_since(began).as_secs_f64();
    endpoint.handle().exit();
    // Messages delivered during `exit`
    let mut record = |timestamp, src, payload: &[u8]| {
        stats.record(timestamp, src, payload.len());
        if args.print {
            print(&mut out, timestamp, src, payload);
        }
    };
    while endpoint.unreliable_recv_with(&mut record).is_some() {}
    while let Some(event) = endpoint.poll_event() {
        if let Event::SendFailed { scattering, dst, why, .. } = event {
            let why = stats.record_failure(why);
            if args.print {
                print_failed(&mut out, scattering, dst, why);
            }
        }
    }
    let text = if args.json {
        stats.json(&endpoint, workload.sent, seconds).to_string()
    } else {
        stats.text(&endpoint, workload.sent, seconds)
    };
    // Messages first, if both go to the same terminal.
    _ = out.flush();
    let written = writeln!(reports, "{text}").and_then(|()| reports.flush());
    if let (Err(error), Some(file)) = (written, &args.report) {
        return Err(miette::miette!("{}: {error}", file.display()));
    }
    if thread_ended {
        return Err(miette::miette!("the polling thread has ended"));
    }
    Ok(if stats.out_of_order == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns where reports go: a file, or the standard stream that has no messages.
fn report_output(args: &Args) -> Result<Box<dyn std::io::Write>, miette::Report> {
    Ok(match &args.report {
        Some(path) => Box::new(
            File::create(path).map_err(|error| miette::miette!("--report: {}: {error}", path.display()))?,
        ),
        None if args.print => Box::new(std::io::stderr()),
        None => Box::new(std::io::stdout()),
    })
}

/// Warns that nothing is delivered.
fn warn_stalled(barrier: Option<Timestamp>) {
    match barrier {
        Some(barrier) => warn!("The barrier stands still at {barrier}: nothing is delivered."),
        None => warn!("No barrier has arrived yet: nothing is delivered."),
    }
}

/// Prints a line for a received message.
fn print(out: &mut impl std::io::Write, timestamp: Timestamp, src: ProcessId, payload: &[u8]) {
    let number = payload.first_chunk().map_or(0, |number| u64::from_be_bytes(*number));
    _ = writeln!(out, "{} {src} {number} {}", timestamp.nanos(), payload.len());
}

/// Prints a line for a failed message. Scatterings are numbered as this program numbers its messages: by the
/// calls, from 0.
fn print_failed(out: &mut impl std::io::Write, number: Scattering, dst: ProcessId, why: &str) {
    _ = writeln!(out, "failed {} {dst} {why}", number.0);
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
