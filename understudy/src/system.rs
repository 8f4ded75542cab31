//! What the program takes from the system and the runtime: time, random numbers, signals, and errors with
//! their remedies.

use crate::interfaces;
use dataplane::{Runtime, Stop};
use miette::{MietteDiagnostic, Report};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hasher as _};
use std::time::{Duration, Instant};

/// Returns the current monotonic time.
#[allow(clippy::disallowed_methods, reason = "only the runtime reads the clock")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Returns an unpredictable number.
pub(crate) fn random_u64() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// Returns a flag that SIGINT, SIGTERM and SIGHUP set.
pub(crate) fn catch_signals() -> Result<Stop, Report> {
    catch(&[SIGINT, SIGTERM, SIGHUP])
}

/// Returns a flag that SIGINT and SIGTERM set, for a command that handles SIGHUP itself.
pub(crate) fn catch_signals_except_hangup() -> Result<Stop, Report> {
    catch(&[SIGINT, SIGTERM])
}

fn catch(signals: &[i32]) -> Result<Stop, Report> {
    let stop = Stop::new();
    for &signal in signals.iter().filter(|signal| **signal != SIGHUP || !hangup_is_ignored()) {
        signal_hook::flag::register(signal, stop.flag())
            .map_err(|error| miette::miette!("cannot catch signals: {error}"))?;
    }
    Ok(stop)
}

/// Returns whether the parent process made this one ignore SIGHUP, as `nohup` does.
pub(crate) fn hangup_is_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (SIGHUP - 1) & 1 == 1)
}

/// Starts DPDK and the ports, with warnings about settings of their interfaces.
pub(crate) fn start(config: dataplane::Config) -> Result<Runtime, Report> {
    interfaces::warn_of(&config.ports);
    Runtime::start(config).map_err(|error| explain(&error))
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

/// Parses an argument that is a number of seconds.
pub(crate) fn parse_seconds(text: &str) -> Result<Duration, String> {
    text.parse()
        .ok()
        .and_then(|s: f64| Duration::try_from_secs_f64(s).ok())
        .ok_or_else(|| "not a number of seconds".into())
}
