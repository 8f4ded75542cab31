//! The thread that reads a key again and again.

use super::{Address, Client, Version};
use crate::system::{now, random_u64};
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// Time between two reads, to which up to a quarter is added at random, so that instances do not read together
const INTERVAL: Duration = Duration::from_millis(1_750);

/// Reads a key every two seconds. The thread ends after the reader is dropped, when its request has been answered.
pub(crate) struct Reader {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// The newest version, until it is taken
    version: Option<Version>,
    /// Time of etcd's last answer
    answered_at: Option<Instant>,
    /// Why the last read failed
    error: Option<String>,
    /// Reads that have ended
    reads: u64,
    /// Whether to read at once
    is_urgent: bool,
    /// Whether to return the next version in any case
    is_requested: bool,
    is_ended: bool,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reader {
    /// Starts the thread.
    pub(crate) fn start(address: Address) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let state = Arc::clone(&shared);
        thread::Builder::new().name("etcd".into()).spawn(move || read_on(&address, &state))?;
        Ok(Self { shared })
    }

    /// Returns the newest version that was read, if it is another one than before, or was requested.
    pub(crate) fn take(&self) -> Option<Version> {
        self.shared.state().version.take()
    }

    /// Returns the time of etcd's last answer.
    pub(crate) fn answered_at(&self) -> Option<Instant> {
        self.shared.state().answered_at
    }

    /// Returns why the last read failed, if it did.
    pub(crate) fn error(&self) -> Option<String> {
        self.shared.state().error.clone()
    }

    /// Reads at once. [`Self::take`] returns what is read, although it may be the same version as before.
    pub(crate) fn read_now(&self) {
        let mut state = self.shared.state();
        (state.is_urgent, state.is_requested) = (true, true);
        drop(state);
        self.shared.changed.notify_one();
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.shared.state().is_ended = true;
        self.shared.changed.notify_one();
    }
}

fn read_on(address: &Address, shared: &Shared) {
    let mut client = Client::new(address.clone());
    let mut last: Option<Version> = None;
    loop {
        let is_requested = core::mem::take(&mut shared.state().is_requested);
        let answer = client.read();
        // Logging may block, which must not hold up the control thread.
        let had_error = shared.state().error.is_some();
        match &answer {
            Ok(version) => {
                if had_error {
                    info!("etcd answers again.");
                }
                if let Some(before) = &last {
                    warn_of_restores(before, version);
                }
            }
            // The reason may change from one read to the next.
            Err(error) if !had_error => {
                warn!("Cannot read {address}: {error}. Reading it again every two seconds.");
            }
            Err(_) => {}
        }
        let mut state = shared.state();
        state.reads += 1;
        match answer {
            Ok(version) => {
                state.error = None;
                state.answered_at = Some(now());
                if is_requested || last.as_ref().is_none_or(|last| is_another(last, &version)) {
                    state.version = Some(version.clone());
                }
                last = Some(version);
            }
            Err(error) => {
                state.error = Some(error);
                state.is_requested |= is_requested;
            }
        }
        let until = now() + INTERVAL + Duration::from_nanos(random_u64() % (INTERVAL.as_nanos() as u64 / 4));
        while !state.is_ended && !core::mem::take(&mut state.is_urgent) {
            let left = until.saturating_duration_since(now());
            if left.is_zero() {
                break;
            }
            state = shared.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        if state.is_ended {
            return;
        }
    }
}

/// Returns whether an answer has another version than the one before. Revisions count only beside a value: that of a
/// missing key is etcd's own, which rises with every other key.
fn is_another(last: &Version, version: &Version) -> bool {
    let rewritten = (last.revision, last.cluster) != (version.revision, version.cluster);
    last.value != version.value || version.value.is_some() && rewritten
}

/// Warns of an answer that is not a continuation of `before`. Its value counts in any case.
fn warn_of_restores(before: &Version, version: &Version) {
    if version.cluster != before.cluster {
        warn!("etcd is another cluster now ({:x}, before {:x}).", version.cluster, before.cluster);
    } else if version.now < before.now {
        warn!("etcd went back from revision {} to {}, as after a restore.", before.now, version.now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use understudy_tests::etcd_stand_in::{Fault, StandIn};

    const KEY: &str = "/understudy/rack1";
    /// Far above all expected times, for busy machines
    const DEADLINE: Duration = Duration::from_secs(40);

    fn wait_for<T>(mut next: impl FnMut() -> Option<T>) -> T {
        let began = now();
        loop {
            if let Some(found) = next() {
                return found;
            }
            assert!(began.elapsed() < DEADLINE);
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Reads until a read fails or succeeds that began after this call.
    fn read_once(reader: &Reader) {
        let count = |reader: &Reader| reader.shared.state().reads;
        let before = count(reader);
        wait_for(|| {
            reader.shared.state().is_urgent = true;
            reader.shared.changed.notify_one();
            // One may have been under way.
            (count(reader) >= before + 2).then_some(())
        });
    }

    /// Drawn writes, deletions, restores and faults of two servers: values are seen in their order, none twice in a row, and
    /// the last one at the end, if one server answers.
    #[test]
    fn the_last_value_is_read_whatever_servers_do() {
        for seed in 0..8 {
            let servers = [StandIn::start(KEY), StandIn::start(KEY)];
            let address = format!("etcd://{},{}{KEY}", servers[0].server(), servers[1].server());
            let reader = Reader::start(address.parse().unwrap()).unwrap();
            let mut state: u64 = seed * 7919 + 1;
            let mut draw = |below: u64| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) % below
            };
            let (mut written, mut read) = (vec![None], Vec::new());
            for step in 0..12 {
                let value = format!("value {step}");
                match draw(8) {
                    0 => {
                        for server in &servers {
                            server.restore(&value);
                        }
                        written.push(Some(value));
                    }
                    1 => {
                        for server in &servers {
                            server.put(None);
                        }
                        written.push(None);
                    }
                    _ => {
                        for server in &servers {
                            server.put(Some(&value));
                        }
                        written.push(Some(value));
                    }
                }
                for server in &servers {
                    // A server that is silent costs the client three seconds.
                    let fault = Fault::ALL[draw(Fault::ALL.len() as u64) as usize];
                    let is_slow = fault == Fault::IsSilent && draw(8) > 0;
                    server.set_fault((draw(2) == 0 && !is_slow).then_some(fault));
                }
                read_once(&reader);
                read.extend(reader.take().map(|version| version.value));
            }
            servers[draw(2) as usize].set_fault(None);
            read_once(&reader);
            read.extend(reader.take().map(|version| version.value));
            let mut rest = written.iter().map(|value| value.as_ref().map(|value| value.as_bytes().to_vec()));
            assert_eq!(read.last(), rest.clone().next_back().as_ref(), "seed {seed}: the last value");
            assert!(read.iter().all(|value| rest.any(|other| other == *value)), "seed {seed}: {read:?}");
            assert!(read.windows(2).all(|two| two[0] != two[1]), "seed {seed}: {read:?}");
            assert!(reader.error().is_none() && reader.answered_at().is_some());
            // It is the same, and is returned on request.
            assert_eq!(reader.take(), None);
            reader.read_now();
            assert_eq!(wait_for(|| reader.take()).value, *read.last().unwrap());
        }
    }

    #[test]
    fn errors_name_each_server_and_what_it_answers() {
        let server = StandIn::start(KEY);
        server.put(Some(""));
        let mut client = Client::new(server.address().parse().unwrap());
        let read = client.read().unwrap();
        assert_eq!((read.value, read.revision), (Some(Vec::new()), 2));
        for (fault, expected) in [
            (Fault::HasNoLeader, "etcdserver: no leader (HTTP 503)"),
            (Fault::IsAnother, "the answer is not one of etcd"),
            (Fault::IsSilent, "timeout"),
            (Fault::SendsNoise, ""),
            (Fault::AnswersHalf, ""),
            (Fault::Closes, ""),
        ] {
            server.set_fault(Some(fault));
            let error = client.read().unwrap_err();
            assert!(error.contains(expected) && error.starts_with(&server.server()), "{fault:?}: {error}");
            println!("{fault:?}: {error}");
        }
        let other: Address = format!("etcd://{}/other", server.server()).parse().unwrap();
        server.set_fault(None);
        let error = Client::new(other).read().unwrap_err();
        assert!(error.ends_with("unexpected request (HTTP 400)"), "{error}");
    }
}
