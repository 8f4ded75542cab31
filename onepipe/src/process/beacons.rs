//! Beacons of a process: when they are due, what they promise, and their detour (1Pipe, sections 4.2 and
//! 6.2.3).

use crate::datagram::Template;
use crate::header::{OnePipe, OnePipeOpcode, Timestamp};
use rocev2::ethernet::{Ethernet, ethertype};
use rocev2::{Psn, Qpn};
use switch::{Nanos, tunnel};

use super::bug::Bug;
use super::clock::Clock;
use super::config::{Config, ConfigError};

/// Whether a beacon is to be sent
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pending {
    None,
    Now,
    /// The last beacon could not promise its instant: another one follows when the scattering with this
    /// timestamp has been sent
    AfterScattering(u64),
}

/// Beacons to the other end of the link.
#[derive(Clone, Debug)]
pub(super) struct Beacons {
    tor: Template,
    /// Outer headers of beacons that take a detour; empty otherwise
    detour: Box<[u8]>,
    interval: Nanos,
    next_instant: Nanos,
    pending: Pending,
    psn: Psn,
    /// Whether beacons declare what this process reads and writes
    declares: bool,
    /// Planted bug
    bug: Option<Bug>,
}

impl Beacons {
    /// Prepares the beacons; the first one is due at once.
    pub(super) fn new(config: &Config) -> Result<Self, ConfigError> {
        let tor = Self::template(config, config.own.qpn)?;
        Ok(Self {
            tor,
            detour: detour_headers(config, tor)?,
            interval: config.beacon_interval,
            next_instant: Nanos::ZERO,
            pending: Pending::None,
            psn: Psn::ZERO,
            declares: config.declares,
            bug: config.bug,
        })
    }

    fn template(config: &Config, from: Qpn) -> Result<Template, ConfigError> {
        config.template_from(from, config.tor.mac, config.tor.address, config.tor.qpn)
    }

    /// Sets the queue pair from which beacons leave. Returns whether it could be set.
    pub(super) fn set_queue_pair(&mut self, qpn: Qpn, config: &Config) -> bool {
        let template = Self::template(config, qpn);
        if let Ok(tor) = template {
            self.tor = tor;
        }
        template.is_ok()
    }

    /// Returns whether this bug was planted. Release builds have no bugs.
    #[inline]
    fn has_bug(&self, bug: Bug) -> bool {
        cfg!(debug_assertions) && self.bug == Some(bug)
    }

    /// Returns the next instant at which a beacon is due.
    #[inline]
    pub(super) const fn next_instant(&self) -> Nanos {
        self.next_instant
    }

    /// Returns whether a beacon is to be sent before anything else.
    #[inline]
    pub(super) fn is_due(&self) -> bool {
        self.pending == Pending::Now
    }

    /// Returns whether no beacon is due before the next instant.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.pending == Pending::None
    }

    /// Makes a beacon due.
    pub(super) const fn request(&mut self) {
        self.pending = Pending::Now;
    }

    /// Makes a beacon due if its instant has come. Returns whether it has.
    pub(super) fn on_timer(&mut self, clock: &Clock, now: Nanos) -> bool {
        let has_come = self.next_instant <= now;
        if has_come {
            self.request();
            self.next_instant = self.instant_after(clock, now);
        }
        has_come
    }

    /// Corrects the next instant after the clock has been set.
    pub(super) fn on_clock_set(&mut self, clock: &Clock, now: Nanos) {
        self.next_instant = self.next_instant.min(self.instant_after(clock, now));
    }

    /// Makes the beacon due that waits for a scattering, unless that is still being sent: then its timestamp
    /// is `finishing`.
    #[inline]
    pub(super) fn on_progress(&mut self, finishing: Option<u64>) {
        if let Pending::AfterScattering(time) = self.pending
            && finishing != Some(time)
        {
            self.request();
        }
    }

    /// Returns the next instant after `now` by this process's clock, at which all processes send beacons
    /// (1Pipe, section 4.2).
    fn instant_after(&self, clock: &Clock, now: Nanos) -> Nanos {
        let clock = Timestamp::new(clock.unclamped(now)).nanos();
        let interval = self.interval.0;
        let rest = interval - clock % interval;
        now + Nanos(rest.min((1 << 48) - clock))
    }

    /// Writes a beacon, which promises that nothing before its time follows on the link; if `is_final`, that
    /// nothing follows at all. The time is the clock's, except while last packets of a scattering are waiting
    /// to be sent: then it is *their* timestamp, `finishing`. As that may be before the instant for which all
    /// receivers wait, another beacon follows as soon as these packets have been sent, instead of an interval
    /// later. `commit` returns the commit value for the beacon's time.
    pub(super) fn send(
        &mut self,
        finishing: Option<u64>,
        is_final: bool,
        commit: impl FnOnce(u64) -> Option<Timestamp>,
        clock: &mut Clock,
        now: Nanos,
        frame: &mut Vec<u8>,
    ) {
        self.pending = Pending::None;
        let time = match finishing {
            _ if self.has_bug(Bug::OvertakingBeacon) => clock.issue(now),
            Some(time) => {
                let clock = clock.read(now);
                let instant = clock - Timestamp::new(clock).nanos() % self.interval.0;
                if time < instant {
                    self.pending = Pending::AfterScattering(time);
                }
                time
            }
            None => clock.issue(now),
        };
        let mut header = OnePipe::new(OnePipeOpcode::BEACON, Timestamp::new(time), self.psn);
        self.psn = self.psn.add(1);
        header.set_commit(commit(time));
        if is_final {
            header.set_barrier(None);
            header.set_nothing_follows(true);
        }
        if self.declares {
            header.declare(true, true);
        }
        self.tor.emit(frame, &header, &[]);
        insert_detour(frame, &self.detour);
    }
}

/// Returns the outer headers of the beacons' detour. They depend on the beacon's length only, which is
/// constant.
fn detour_headers(config: &Config, mut tor: Template) -> Result<Box<[u8]>, ConfigError> {
    let mut beacon = Vec::new();
    let header = OnePipe::new(OnePipeOpcode::BEACON, Timestamp::default(), Psn::ZERO);
    tor.emit(&mut beacon, &header, &[]);
    let headers = tunnel::encapsulation_headers(&config.tunnels(), &beacon[Ethernet::LEN..]);
    headers.map(Vec::into_boxed_slice).map_err(ConfigError::Detour)
}

/// Inserts the outer headers of a detour behind a frame's Ethernet header.
fn insert_detour(frame: &mut Vec<u8>, detour: &[u8]) {
    let Some(first) = detour.first() else { return };
    let outer_ethertype = if first >> 4 == 4 { ethertype::IPV4 } else { ethertype::IPV6 };
    frame.splice(Ethernet::LEN..Ethernet::LEN, detour.iter().copied());
    frame[Ethernet::LEN - 2..Ethernet::LEN].copy_from_slice(&outer_ethertype.to_be_bytes());
}
