//! The version of a configuration with which a run starts.

use super::cache;
use crate::config::{self, Config, Source};
use crate::etcd::{Address, Reader, Version};
use crate::system::now;
use dataplane::Stop;
use settings::file::{text_from, text_of};
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;
use tracing::{info, warn};

/// Interval at which an answer of etcd and the stop flag are looked for
const TURN: Duration = Duration::from_millis(10);
/// Problems of a version that a message has
const MAX_PROBLEMS: usize = 10;

/// What a command demands of a configuration. The error is a text for users.
pub(super) type Demand = dyn Fn(&Config) -> Result<(), String> + Send + Sync;

/// A configuration with which a run starts.
pub(super) struct Loaded {
    pub(super) config: Config,
    pub(super) text: String,
    /// Revision of etcd; `None` for a file or a cached version
    pub(super) revision: Option<u64>,
    /// Whether etcd has a version that is not valid, or no such key
    pub(super) is_refused: bool,
}

/// Reads a version of a configuration. Relative paths in it begin in `folder`. The error is a text for users.
pub(super) fn parse(
    origin: &Path,
    folder: &Path,
    bytes: Vec<u8>,
    demand: &Demand,
) -> Result<(Config, String), String> {
    let read = || {
        let text = text_from(origin, bytes)?;
        Ok((config::load_text(origin, &text, folder)?, text))
    };
    let (config, text) = read().map_err(|report: settings::Report| report.render_for_log(MAX_PROBLEMS))?;
    demand(&config)?;
    Ok((config, text))
}

/// Why a run does not start: a text for users, and the exit code.
pub(super) type Refusal = (String, ExitCode);

/// Reads a file.
pub(super) fn load_file(path: &Path, demand: &Demand) -> Result<Loaded, Refusal> {
    let wrong = |text| (text, ExitCode::from(config::EXIT_CODE));
    let read = || {
        let text = text_of(path)?;
        let folder = path.parent().unwrap_or(Path::new(""));
        Ok((config::load_text(path, &text, folder)?, text))
    };
    let (config, text) = read().map_err(|report: settings::Report| wrong(report.render()))?;
    demand(&config).map_err(wrong)?;
    Ok(Loaded { config, text, revision: None, is_refused: false })
}

/// Reads a key of etcd, and waits for an answer for this time. If there is none, no such key, or no valid version, the
/// version in the file `cache` is taken. Returns it with the thread that reads the key, or `None` if the wait was
/// interrupted.
pub(super) fn load_key(
    address: &Address,
    cache: Option<&Path>,
    wait: Duration,
    demand: &Demand,
    stop: &Stop,
) -> Result<Option<(Loaded, Reader)>, Refusal> {
    let failed = |text| (text, ExitCode::FAILURE);
    let reader = Reader::start(address.clone())
        .map_err(|error| failed(format!("cannot start the thread that reads {address}: {error}")))?;
    let until = now() + wait;
    let version = loop {
        if let Some(version) = reader.take() {
            break Some(version);
        }
        if stop.flag().load(Ordering::Relaxed) {
            return Ok(None);
        }
        if now() >= until {
            break None;
        }
        thread::sleep(TURN);
    };
    let origin = Source::Etcd(address.clone()).origin();
    let is_refused = version.is_some();
    let why = match version {
        Some(Version { value: Some(value), revision, .. }) => {
            match parse(&origin, Path::new(""), value, demand) {
                Ok((config, text)) => {
                    info!("Read {address}, revision {revision}.");
                    let revision = Some(revision);
                    return Ok(Some((Loaded { config, text, revision, is_refused: false }, reader)));
                }
                Err(problems) => format!("{address} is not valid, in revision {revision}:\n{problems}"),
            }
        }
        Some(Version { value: None, .. }) => {
            let (key, endpoints) = (&address.key, address.endpoints());
            format!(
                "etcd has no key `{key}`; write it with `etcdctl --endpoints {endpoints} put {key} < CONFIG.toml`, or name \
                 another one"
            )
        }
        None => {
            let error = reader.error().unwrap_or_else(|| "no answer".into());
            format!("cannot read {address} within {} s: {error}", wait.as_secs_f64())
        }
    };
    let Some(path) = cache else { return Err(failed(why)) };
    let cached = match cache::read(path, &address.key) {
        Ok(Some(text)) => parse(path, Path::new(""), text.into_bytes(), demand),
        Ok(None) => Err(format!(
            "there is no {}, which is written when a configuration has been in effect",
            path.display()
        )),
        Err(error) => Err(error),
    };
    match cached {
        Ok((config, text)) => {
            warn!("{}\nThe run starts with the configuration in {}.", why.trim_end(), path.display());
            let config = Config { path: origin, ..config };
            Ok(Some((Loaded { config, text, revision: None, is_refused }, reader)))
        }
        Err(error) => Err(failed(format!("{}\n{}", why.trim_end(), error.trim_end()))),
    }
}
