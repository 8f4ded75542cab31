//! Common parts of sending and receiving: the host, progress, and the outcome.

use crate::config::{self, EXIT_CODE};
use crate::functions::FunctionConfig;
use crate::functions::host::HostConfig;
use crate::output::print_error;
use crate::run::LINK_LOST;
use crate::system::{catch_signals, start};
use core::net::IpAddr;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use dataplane::{ControlHandler, ControlOutput, LinkChange, Live, Mbuf, NoControl, PortInfo, Stop, log};
use indicatif::{ProgressBar, ProgressStyle};
use miette::{MietteDiagnostic, Report};
use rnic::{App, HostFunction, Rnic};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use switch::{Nanos, PortId};

/// Options for the host that sends or receives.
#[derive(clap::Args)]
pub(super) struct TransferArgs {
    /// Configuration of the host: a port, and `[nic]` with its address, as for `understudy host`
    #[arg(long, value_name = "HOST.toml")]
    on: PathBuf,
    /// Wait this long for hosts that do not respond
    #[arg(long, value_name = "SECONDS", default_value_t = 30.0)]
    pub(super) patience_s: f64,
}

/// Reason why the command fails, which determines its exit code.
pub(super) enum ExitReason {
    /// Invalid argument
    InvalidArgument(String),
    /// Invalid configuration file, with its report
    Config(Box<config::Report>),
    /// Run-time error
    Failed(Report),
    /// The port lost its link, which ends the run if `[runtime] on_link_loss` is "exit", or its card is to be unplugged
    LostLink,
}

impl From<Report> for ExitReason {
    fn from(report: Report) -> Self {
        Self::Failed(report)
    }
}

impl ExitReason {
    /// Prints the reason and returns the exit code.
    pub(super) fn report(self) -> ExitCode {
        let invalid = ExitCode::from(EXIT_CODE);
        match self {
            Self::InvalidArgument(what) => {
                print_error(format_args!("{:?}", Report::new(MietteDiagnostic::new(what))));
                invalid
            }
            Self::Config(report) => {
                print_error(report.render());
                invalid
            }
            Self::Failed(report) => {
                print_error(format_args!("{report:?}"));
                ExitCode::FAILURE
            }
            // The event of the link is printed already.
            Self::LostLink => ExitCode::from(LINK_LOST),
        }
    }
}

/// Returns a run-time error without a remedy.
pub(super) fn failed(what: &impl ToString) -> ExitReason {
    ExitReason::Failed(MietteDiagnostic::new(what.to_string()).into())
}

/// Progress of a transfer, which the worker publishes.
pub(super) struct Progress<T> {
    /// Bytes of the object that are stored, and its length
    pub(super) bytes: AtomicU64,
    pub(super) total: AtomicU64,
    pub(super) done: AtomicBool,
    /// The user requested the end: the worker notifies the other hosts and ends
    pub(super) stopping: AtomicBool,
    pub(super) outcome: Mutex<Option<T>>,
}

impl<T> Progress<T> {
    pub(super) fn new() -> Arc<Self> {
        let (bytes, total) = (AtomicU64::new(0), AtomicU64::new(0));
        let (done, stopping) = (AtomicBool::new(false), AtomicBool::new(false));
        Arc::new(Self { bytes, total, done, stopping, outcome: Mutex::new(None) })
    }

    /// Sets the outcome, unless there is one already.
    pub(super) fn end(&self, outcome: T) {
        self.outcome.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(outcome);
    }
}

/// Timing of a transfer's worker: when to poll channels that no frame announces, and when to end.
#[derive(Default)]
pub(super) struct Timing {
    last_run: Nanos,
    over_since: Option<Nanos>,
}

impl Timing {
    /// Polling interval while a read or write is pending
    const PENDING_INTERVAL: Nanos = Nanos::from_micros(100);
    /// Polling interval for a stop request
    const IDLE_INTERVAL: Nanos = Nanos::from_millis(20);
    /// Maximum time to wait, after the end, until the other hosts have been notified
    const LINGER: Nanos = Nanos::from_secs(2);

    /// Sets the time of the last run.
    pub(super) fn set_last_run(&mut self, now: Nanos) {
        self.last_run = now;
    }

    /// Returns whether the worker may end after the outcome: the other hosts have been notified
    /// (`all_notified`), or [`Self::LINGER`] has passed.
    pub(super) fn is_done(&mut self, all_notified: bool, now: Nanos) -> bool {
        all_notified || now.since(*self.over_since.get_or_insert(now)) > Self::LINGER
    }

    /// Returns the time of the next run if no frame comes. It is early if a read or write is pending.
    pub(super) fn next(&self, pending: bool) -> Nanos {
        self.last_run
            + if pending || self.over_since.is_some() { Self::PENDING_INTERVAL } else { Self::IDLE_INTERVAL }
    }
}

/// Control plane that shows the progress, and ends the run when the transfer is over.
struct ProgressControl<T> {
    progress: Arc<Progress<T>>,
    bar: ProgressBar,
    signals: Stop,
}

impl<A: App, T: Send> ControlHandler<HostFunction<A>> for ProgressControl<T> {
    fn on_event(&mut self, worker: usize, event: (), out: &mut ControlOutput<'_, HostFunction<A>>) {
        ControlHandler::<HostFunction<A>>::on_event(&mut NoControl, worker, event, out);
    }

    fn on_punt(
        &mut self,
        _worker: usize,
        _frame: Mbuf,
        _port: PortId,
        _out: &mut ControlOutput<'_, HostFunction<A>>,
    ) {
    }

    fn on_tick(&mut self, _live: &Live<'_>, _out: &mut ControlOutput<'_, HostFunction<A>>) -> bool {
        if self.signals.flag().load(Ordering::Relaxed) {
            self.progress.stopping.store(true, Ordering::Relaxed);
        }
        self.bar.set_length(self.progress.total.load(Ordering::Relaxed));
        self.bar.set_position(self.progress.bytes.load(Ordering::Relaxed));
        !self.progress.done.load(Ordering::Relaxed)
    }

    fn on_link(&mut self, port: &PortInfo, up: bool) {
        self.bar.suspend(|| log::peer(port, up));
    }

    fn on_link_change(&mut self, port: &PortInfo, change: &LinkChange) {
        self.bar.suspend(|| log::link(port, change));
    }

    fn on_peer_awaited(&mut self, port: &PortInfo) {
        self.bar.suspend(|| log::awaited_peer(port));
    }

    fn on_peer_refused(&mut self, port: &PortInfo, why: &str) {
        self.bar.suspend(|| log::refused_peer(port, why));
    }
}

impl TransferArgs {
    pub(super) fn patience(&self) -> Result<Nanos, ExitReason> {
        if !(0.1..=86_400.0).contains(&self.patience_s) {
            return Err(ExitReason::InvalidArgument("--patience-s is out of range; use 0.1 to 86400".into()));
        }
        Ok(Nanos((self.patience_s * 1e9) as u64))
    }

    /// Returns the host's configuration and the address that it uses with `peer`.
    pub(super) fn host(&self, peer: IpAddr) -> Result<(dataplane::Config, HostConfig, IpAddr), ExitReason> {
        let config = config::load(&self.on).map_err(|report| ExitReason::Config(Box::new(report)))?;
        let FunctionConfig::Nic(host) = config.function else {
            return Err(ExitReason::InvalidArgument(format!(
                "{} has no [nic]; add this table",
                self.on.display()
            )));
        };
        if host.workers > 1 {
            return Err(ExitReason::InvalidArgument(format!(
                "a transfer supports one worker, but {} has {}; write `workers = [1]`, or leave the key out",
                self.on.display(),
                host.workers
            )));
        }
        // An address on the peer's subnet is preferred.
        let family = || host.addresses.iter().filter(|(ip, _)| ip.is_ipv4() == peer.is_ipv4());
        let own =
            family().find(|(ip, prefix)| is_same_subnet(*ip, peer, *prefix)).or_else(|| family().next());
        let own = own.map(|(ip, _)| *ip);
        let own = own.ok_or_else(|| {
            ExitReason::InvalidArgument(format!(
                "{} has no address of the same family as {peer}; add one",
                self.on.display()
            ))
        })?;
        Ok((config.runtime, host, own))
    }
}

/// Returns whether two addresses of the same family are in the same subnet.
fn is_same_subnet(ip: IpAddr, other: IpAddr, prefix: u8) -> bool {
    let bits = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => u128::from(ip.to_bits()) << 96,
        IpAddr::V6(ip) => ip.to_bits(),
    };
    (bits(ip) ^ bits(other)).leading_zeros() >= prefix.into()
}

/// Returns the RDMC configuration of a host with this address. Software hosts share CPUs with other
/// processes, so they are declared dead only after a few seconds.
pub(super) fn node_config(own: IpAddr, patience: Nanos) -> ::rdmc::Config {
    ::rdmc::Config {
        ack_timeout: 16,
        dead_after: Nanos::from_secs(6),
        create_timeout: patience,
        seed: crate::system::random_u64(),
        ..::rdmc::Config::new(own)
    }
}

/// Runs an application on a host until it is done, and returns its outcome. A signal stops the application,
/// which notifies the other hosts.
pub(super) fn run_transfer<A: App, T: Send + 'static>(
    runtime: dataplane::Config,
    host: &HostConfig,
    app: A,
    progress: &Arc<Progress<T>>,
    verb: &str,
) -> Result<Option<T>, ExitReason> {
    let signals = catch_signals()?;
    let mut runtime = start(runtime)?;
    let mac = runtime.ports().next().map_or([0; 6], |port| port.mac);
    let station = HostFunction::new(Rnic::new(host.nic(mac)), app);
    let bar = ProgressBar::new(0).with_message(verb.to_owned());
    let style = "{msg} {bar:32} {binary_bytes}/{binary_total_bytes}, {binary_bytes_per_sec}, {eta} left";
    if let Ok(style) = ProgressStyle::with_template(style) {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(200));
    let mut control = ProgressControl { progress: Arc::clone(progress), bar: bar.clone(), signals };
    let lost_link = runtime.run(vec![station], &mut control, &Stop::new()).lost_link;
    bar.finish_and_clear();
    drop(runtime);
    match progress.outcome.lock().unwrap_or_else(PoisonError::into_inner).take() {
        None if lost_link.is_some() => Err(ExitReason::LostLink),
        outcome => Ok(outcome),
    }
}
