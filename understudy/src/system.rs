//! What the program takes from the system and the runtime: time, random numbers, signals, and errors with
//! their remedies.

use dataplane::Stop;
use miette::{MietteDiagnostic, Report};
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

/// Returns a flag that SIGINT and SIGTERM set.
pub(crate) fn catch_signals() -> Result<Stop, Report> {
    let stop = Stop::new();
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, stop.flag())
            .map_err(|error| miette::miette!("cannot catch signals: {error}"))?;
    }
    Ok(stop)
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
