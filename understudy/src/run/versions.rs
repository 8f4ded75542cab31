//! Newer versions of a configuration during a run: what can change takes effect, an invalid version is refused, and the
//! keys that need a restart are named.
//!
//! Each version is compared with the configuration of the start, and what can change with what is in effect. So it does
//! not matter which versions were read in between. A return to the configuration of the start needs no restart, except
//! to a ramp of `[pktgen]`, which no request can state.

use super::source::{self, Demand, Loaded};
use super::{cache, keys};
use crate::config::{Config, Source};
use crate::etcd::Reader;
use crate::functions::{FunctionConfig, Versions};
use crate::observe::steer::{Change, Outcome, SteerError, Steering};
use crate::observe::{ConfigState, FunctionMetrics};
use crate::system::now;
use crossbeam_channel::{Receiver, Sender, TryRecvError, bounded};
use settings::file::text_of;
use settings::words::all_of;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// Time in effect, with an answer of etcd at its end, after which a configuration is written to the cache: one that ends
/// the program, or that cuts it off from etcd, must not be there
const CACHED_AFTER: Duration = Duration::from_secs(10);

/// A version that was read, or why it is not valid, and its revision.
type Read = (Result<(Config, String), String>, u64);

/// A valid version.
struct Accepted {
    text: String,
    revision: u64,
    /// Keys that need a restart, if something does: none if that is something to which the keys refer
    restart: Option<Vec<String>>,
}

/// What a version has changed in the function.
enum Taken {
    Nothing,
    /// It is in effect, as described
    Everywhere(String),
    /// Some workers have not adopted it yet, as described
    NotEverywhere(String),
}

/// A version that changes the function, until that has an outcome.
struct Pending {
    version: Accepted,
    /// The function's configuration with the change
    function: FunctionConfig,
    progress: Progress,
    /// Whether it was reported that it waits for an earlier change
    is_reported: bool,
}

/// Progress of a change.
enum Progress {
    Unsent(Change),
    Sent(Outcome),
}

/// A configuration for the cache: its revision, its text, and since when it is in effect, if it is yet.
type Unwritten = (u64, String, Option<Instant>);

/// The file in which the last configuration in effect is kept.
struct Cache {
    path: PathBuf,
    key: String,
    /// The configuration in effect, until it is written
    unwritten: Option<Unwritten>,
    /// The configuration that a thread writes, and its result
    writing: Option<(Unwritten, Receiver<io::Result<()>>)>,
    /// Whether the last write failed
    has_failed: bool,
}

/// Follows the versions of a configuration.
pub(super) struct Follower<'a> {
    source: Source,
    demand: Arc<Demand>,
    /// The configuration of the start, and its text
    start: &'a Config,
    start_text: &'a str,
    /// The function's configuration in effect, and the text of the version that has brought it
    function: FunctionConfig,
    text: String,
    /// Set by SIGHUP, if it does not end the run
    hangup: Option<Arc<AtomicBool>>,
    reader: Option<Reader>,
    /// Result of the thread that reads a version
    reading: Option<Receiver<Read>>,
    pending: Option<Pending>,
    cache: Option<Cache>,
    state: ConfigState,
    began: Instant,
}

impl<'a> Follower<'a> {
    /// Follows the versions after `loaded`, with which the run starts. `cache` is the file for a start without etcd.
    pub(super) fn new(
        source: Source,
        loaded: &'a Loaded,
        reader: Option<Reader>,
        demand: Arc<Demand>,
        hangup: Option<Arc<AtomicBool>>,
        cache: Option<&Path>,
    ) -> Self {
        let began = now();
        let Loaded { config, text, revision, is_refused } = loaded;
        let cache = match (&source, cache) {
            (Source::Etcd(address), Some(path)) => Some(Cache {
                path: path.to_owned(),
                key: address.key.clone(),
                unwritten: revision.map(|revision| (revision, text.clone(), None)),
                writing: None,
                has_failed: false,
            }),
            _ => None,
        };
        let state = ConfigState {
            revision: revision.unwrap_or(0),
            hash: short_hash(text),
            is_cached: cache.is_some() && revision.is_none(),
            versions: u64::from(*is_refused),
            refused: u64::from(*is_refused),
            is_refused: *is_refused,
            ..ConfigState::default()
        };
        Self {
            source,
            demand,
            start: config,
            start_text: text,
            function: config.function.clone(),
            text: text.clone(),
            hangup,
            reader,
            reading: None,
            pending: None,
            cache,
            state,
            began,
        }
    }

    /// Begins to read a version, if there may be a newer one.
    fn read_newer(&mut self) {
        let is_hangup = self.hangup.as_ref().is_some_and(|hangup| hangup.swap(false, Ordering::Relaxed));
        match (&self.source, &self.reader) {
            (Source::File(path), _) if is_hangup => {
                let (path, demand) = (path.clone(), Arc::clone(&self.demand));
                self.read(move || {
                    let text = text_of(&path).map_err(|report| report.render_plain());
                    let folder = path.parent().unwrap_or(Path::new(""));
                    (text.and_then(|text| source::parse(&path, folder, text.into(), &*demand)), 0)
                });
            }
            (Source::Etcd(address), Some(reader)) => {
                if is_hangup {
                    reader.read_now();
                }
                let Some(version) = reader.take() else { return };
                let Some(value) = version.value else {
                    let why = format!("etcd has no key `{}`; write it again", address.key);
                    return self.refuse(&why, version.revision);
                };
                let (origin, demand) = (self.source.origin(), Arc::clone(&self.demand));
                let parse = move || source::parse(&origin, Path::new(""), value, &*demand);
                self.read(move || (parse(), version.revision));
            }
            _ => {}
        }
    }

    /// Reads a version in a thread, because the control thread must not wait for files.
    fn read(&mut self, read: impl FnOnce() -> Read + Send + 'static) {
        let (result, received) = bounded(1);
        let spawned = thread::Builder::new().name("config".into()).spawn(move || drop(result.send(read())));
        match spawned {
            Ok(_) => self.reading = Some(received),
            Err(error) => self.refuse(&format!("cannot start a thread: {error}"), 0),
        }
    }

    /// Compares a version with what is in effect, and begins to take it over.
    fn consider(&mut self, (version, revision): Read) {
        let (config, text) = match version {
            Ok(version) => version,
            Err(problems) => {
                return self.refuse(&format!("it is not valid:\n{}", problems.trim_end()), revision);
            }
        };
        let mut function = self.function.clone();
        let ports = &self.start.runtime.ports;
        let change = function.follow(&config.function, ports);
        let follows = config.runtime.ports == *ports && function == config.function;
        let rest = Config { function: self.start.function.clone(), ..config };
        let restart = (!follows || rest != *self.start).then(|| self.restart_keys(&text, follows));
        let version = Accepted { text, revision, restart };
        match change.filter(|_| follows) {
            Some(change) => {
                let progress = Progress::Unsent(change);
                self.pending = Some(Pending { version, function, progress, is_reported: false });
            }
            None => self.accept(version, &Taken::Nothing),
        }
    }

    /// Returns the keys of a version that need a restart. `follows` is whether what can change takes effect.
    fn restart_keys(&self, text: &str, follows: bool) -> Vec<String> {
        let changeable = self.start.function.changeable();
        let mut found = keys::changed(self.start_text, text);
        found.retain(|key| !key.is_one_of(changeable));
        if !follows {
            found.extend(keys::changed(&self.text, text).into_iter().filter(|key| key.is_one_of(changeable)));
        }
        found.into_iter().map(|key| key.name).collect()
    }

    /// Carries on with a version that changes the function.
    fn carry_on(&mut self, pending: Pending, steering: &Sender<Steering>) {
        let Pending { version, function, progress, is_reported } = pending;
        let mut outcome = match progress {
            Progress::Unsent(change) => match change.send(steering) {
                Ok(outcome) => outcome,
                Err(change) => {
                    let progress = Progress::Unsent(change);
                    self.pending = Some(Pending { version, function, progress, is_reported });
                    return;
                }
            },
            Progress::Sent(outcome) => outcome,
        };
        match outcome.poll() {
            None => {
                let progress = Progress::Sent(outcome);
                self.pending = Some(Pending { version, function, progress, is_reported });
            }
            Some(Ok(in_effect)) => {
                self.function = function;
                self.accept(version, &Taken::Everywhere(in_effect));
            }
            Some(Err(error @ SteerError::Late { .. })) => {
                self.function = function;
                self.accept(version, &Taken::NotEverywhere(error.to_string()));
            }
            Some(Err(error @ SteerError::Busy { .. })) => {
                if !is_reported {
                    warn!("{} waits: {error}.", self.named(version.revision));
                }
                self.read_newer();
                // A version that is read meanwhile replaces this one.
                if self.reading.is_none() {
                    let change = self.function.clone().follow(&function, &self.start.runtime.ports);
                    let is_reported = true;
                    self.pending = change.map(|change| Pending {
                        version,
                        function,
                        progress: Progress::Unsent(change),
                        is_reported,
                    });
                }
            }
            Some(Err(SteerError::Ending)) => {}
            Some(Err(error)) => self.refuse(&error.to_string(), version.revision),
        }
    }

    /// Reports a version of which everything has been requested that can change in a run, and makes it the one in effect.
    fn accept(&mut self, version: Accepted, taken: &Taken) {
        let Accepted { text, revision, restart } = version;
        let named = self.named(revision);
        match taken {
            Taken::Everywhere(in_effect) => info!("Reloaded {named}: {in_effect}."),
            Taken::NotEverywhere(error) => warn!("Reloaded {named}: {error}."),
            Taken::Nothing if restart.is_none() => info!("Reloaded {named}: nothing has changed."),
            Taken::Nothing => {}
        }
        self.state.versions += 1;
        self.state.is_refused = false;
        self.state.needs_restart = restart.is_some();
        let is_complete = restart.is_none();
        if let Some(keys) = restart {
            let what = match &keys[..] {
                [] => "a file that it names, or this machine, has changed, which takes".into(),
                [key] => format!("`{key}` takes"),
                _ => format!("{} take", all_of(keys)),
            };
            warn!("Reloaded {named}: {what} effect when the instance is started again.");
        } else {
            self.state.revision = revision;
            self.state.hash = short_hash(&text);
        }
        let has_changed = !matches!(taken, Taken::Nothing);
        if is_complete || has_changed {
            // What is in effect is no longer what was to be written, or is written.
            self.state.is_cached = false;
            if let Some(cache) = &mut self.cache {
                let is_whole = is_complete && !matches!(taken, Taken::NotEverywhere(_));
                cache.unwritten = is_whole.then(|| (revision, text.clone(), Some(now())));
            }
            self.text = text;
        }
    }

    /// Reports a version that changes nothing, and why.
    fn refuse(&mut self, why: &str, revision: u64) {
        self.state.versions += 1;
        self.state.refused += 1;
        self.state.is_refused = true;
        warn!("{} is refused, and the run goes on as before: {why}", self.named(revision));
    }

    /// Returns what messages call a version.
    fn named(&self, revision: u64) -> String {
        match &self.source {
            Source::File(path) => path.display().to_string(),
            Source::Etcd(address) => format!("{address} (revision {revision})"),
        }
    }

    /// Writes the configuration in effect to the cache when it has been in effect for long enough.
    fn write_cache(&mut self) {
        let Some(cache) = &mut self.cache else { return };
        if let Some((unwritten, result)) = &cache.writing {
            let failed = match result.try_recv() {
                Ok(Ok(())) => None,
                Ok(Err(error)) => Some(error.to_string()),
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => Some("the thread that writes it has failed".into()),
            };
            // Another version may be in effect by now.
            let is_in_effect = unwritten.1 == self.text && cache.unwritten.is_none();
            self.state.is_cached = failed.is_none() && is_in_effect;
            if let Some(error) = &failed {
                if !cache.has_failed {
                    warn!(
                        "Cannot write {}, which is for a start without etcd: {error}.",
                        cache.path.display()
                    );
                }
                if is_in_effect {
                    cache.unwritten = Some((unwritten.0, unwritten.1.clone(), None));
                }
            }
            cache.has_failed = failed.is_some();
            cache.writing = None;
        }
        let Some((.., since)) = &mut cache.unwritten else { return };
        let since = *since.get_or_insert_with(now);
        let answered_at = self.reader.as_ref().and_then(Reader::answered_at);
        if answered_at.is_none_or(|answered| answered < since + CACHED_AFTER) {
            return;
        }
        if let Some(unwritten) = cache.unwritten.take() {
            let (path, key, (revision, text, _)) = (cache.path.clone(), cache.key.clone(), unwritten.clone());
            let (sender, result) = bounded(1);
            let write = move || drop(sender.send(cache::write(&path, &key, revision, &text)));
            // Without a thread, the channel is disconnected.
            _ = thread::Builder::new().name("cache".into()).spawn(write);
            cache.writing = Some((unwritten, result));
        }
    }
}

impl Versions for Follower<'_> {
    fn on_tick(&mut self, steering: &Sender<Steering>) {
        self.write_cache();
        if let Some(pending) = self.pending.take() {
            return self.carry_on(pending, steering);
        }
        let read = match &self.reading {
            None => return self.read_newer(),
            Some(reading) => reading.try_recv(),
        };
        match read {
            Ok(read) => {
                self.reading = None;
                self.consider(read);
            }
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => {
                self.reading = None;
                self.refuse("the thread that reads it has failed", 0);
            }
        }
    }

    fn observed(&self, metrics: FunctionMetrics) -> FunctionMetrics {
        if self.reader.is_none() && self.state.versions == 0 {
            return metrics;
        }
        let last = self.reader.as_ref().map(|reader| reader.answered_at().unwrap_or(self.began));
        let silent_s = last.map_or(0, |last| now().saturating_duration_since(last).as_secs());
        ConfigState { silent_s, ..self.state.clone() }.observed(&self.source.to_string(), metrics)
    }
}

/// Returns the first 32 bits of a configuration's hash.
fn short_hash(text: &str) -> u32 {
    let [a, b, c, d, ..] = cache::hash(text);
    u32::from_be_bytes([a, b, c, d])
}

#[cfg(test)]
mod tests;
