//! Beacons of a process: when they are due, what they promise, and their detour (1Pipe, sections 4.2 and
//! 6.2.3).

use crate::datagram::Template;
use crate::header::{OnePipe, OnePipeOpcode, Timestamp};
use rocev2::ethernet::{Ethernet, ethertype};
use rocev2::{Psn, Qpn};
use switch::{Nanos, tunnel};

use super::bug::Bug;
use super::clock::Clock;
use super::config::{BeaconPeer, Config, ConfigError};

/// Share of an interval by which a clock may run slower in it
const SLOWEST: u64 = 64;

/// Whether a beacon is to be sent
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pending {
    /// The last beacon is to be sent to the standby as well
    Standby,
    None,
    Now,
    /// The last beacon could not promise its instant: another one follows when the scattering with this
    /// timestamp has been sent
    AfterScattering(u64),
}

/// Headers of the beacons to one node at the other end of the link.
#[derive(Clone, Debug)]
pub(super) struct To {
    template: Template,
    /// Outer headers of beacons that take a detour; empty otherwise
    detour: Box<[u8]>,
}

impl To {
    /// Prepares beacons whose header is followed by `body` bytes.
    pub(super) fn new(config: &Config, to: &BeaconPeer, body: usize) -> Result<Self, ConfigError> {
        let template = Self::template(config, to, config.own.qpn)?;
        Ok(Self { template, detour: detour_headers(config, to, template, body)? })
    }

    fn template(config: &Config, to: &BeaconPeer, from: Qpn) -> Result<Template, ConfigError> {
        config.template_from(from, to.mac, to.address, to.qpn)
    }

    #[inline]
    pub(super) fn emit(&mut self, frame: &mut Vec<u8>, header: &OnePipe, body: &[u8]) {
        self.template.emit(frame, header, body);
        insert_detour(frame, &self.detour);
    }
}

/// Beacons to the standby of the switch.
#[derive(Clone, Debug)]
struct Standby {
    to: To,
    /// Beacon that it gets next, as the other node has got it: what it promises still holds
    header: OnePipe,
    /// What is pending then
    then: Pending,
    /// Whether each of both nodes gets no commit value: the controller has not named a source there
    mutes: [bool; 2],
}

impl Standby {
    fn new(config: &Config, to: &BeaconPeer) -> Result<Box<Self>, ConfigError> {
        let header = OnePipe::new(OnePipeOpcode::BEACON, Timestamp::default(), Psn::ZERO);
        Ok(Box::new(Self { to: To::new(config, to, 0)?, header, then: Pending::None, mutes: [false; 2] }))
    }
}

/// Beacons to the other end of the link.
#[derive(Clone, Debug)]
pub(super) struct Beacons {
    tor: To,
    /// Beacons to the switch's standby
    standby: Option<Box<Standby>>,
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
        let standby = config.standby.as_ref().map(|standby| Standby::new(config, standby));
        Ok(Self {
            tor: To::new(config, &config.tor, 0)?,
            standby: standby.transpose()?,
            interval: config.beacon_interval,
            next_instant: Nanos::ZERO,
            pending: Pending::None,
            psn: Psn::ZERO,
            declares: config.declares,
            bug: config.bug,
        })
    }

    /// Sets the queue pair from which beacons leave. Returns whether it could be set.
    pub(super) fn set_queue_pair(&mut self, qpn: Qpn, config: &Config) -> bool {
        let standby = self.standby.as_mut().map(|standby| &mut standby.to).zip(config.standby.as_ref());
        let ends = [Some((&mut self.tor, &config.tor)), standby];
        ends.into_iter().flatten().all(|(to, peer)| {
            let template = To::template(config, peer, qpn);
            if let Ok(template) = template {
                to.template = template;
            }
            template.is_ok()
        })
    }

    /// Has commit values sent to those nodes alone at which there is a source of the link, as bits, if there are two:
    /// so one that does not serve any more, and does not know it, states no later commit barrier.
    pub(super) fn mute(&mut self, named: u8) {
        if let Some(standby) = &mut self.standby {
            standby.mutes = [0, 1].map(|end| named & (1 << end) == 0);
        }
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
        matches!(self.pending, Pending::Standby | Pending::Now)
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
        if self.next_instant > now {
            return false;
        }
        let is_first = self.next_instant == Nanos::ZERO;
        self.next_instant = self.instant_after(clock, now);
        // The clock ran slower in the meantime, so the instant is still ahead.
        let rest = self.interval.0 - Timestamp::new(clock.unclamped(now)).nanos() % self.interval.0;
        let is_early = !is_first && rest <= self.interval.0 / SLOWEST;
        if !is_early {
            self.request();
        }
        !is_early
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

    /// Writes the last beacon to the standby, if the standby has not got it; or a new one. It promises that nothing
    /// before its time follows on the link; if `is_final`, that nothing follows at all. The time is the clock's, except while last packets of a scattering are waiting
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
        if self.pending == Pending::Standby {
            return self.send_to_standby(frame);
        }
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
        if self.standby.is_some() {
            return self.send_to_first(header, frame);
        }
        self.tor.emit(frame, &header, &[]);
    }

    /// Writes a beacon to the first of two nodes; the standby gets it next.
    #[cold]
    fn send_to_first(&mut self, mut header: OnePipe, frame: &mut Vec<u8>) {
        let Some(standby) = &mut self.standby else { return };
        (standby.header, standby.then) = (header, self.pending);
        self.pending = Pending::Standby;
        if standby.mutes[0] {
            header.set_commit(None);
        }
        self.tor.emit(frame, &header, &[]);
    }

    /// Writes the last beacon to the standby.
    #[cold]
    fn send_to_standby(&mut self, frame: &mut Vec<u8>) {
        self.pending = Pending::None;
        if let Some(standby) = &mut self.standby {
            self.pending = standby.then;
            if standby.mutes[1] {
                standby.header.set_commit(None);
            }
            standby.to.emit(frame, &standby.header, &[]);
        }
    }
}

/// Returns the outer headers of the beacons' detour. They depend on the beacon's length only, which is
/// constant.
fn detour_headers(
    config: &Config,
    to: &BeaconPeer,
    mut tor: Template,
    body: usize,
) -> Result<Box<[u8]>, ConfigError> {
    let mut beacon = Vec::new();
    let header = OnePipe::new(OnePipeOpcode::BEACON, Timestamp::default(), Psn::ZERO);
    tor.emit(&mut beacon, &header, &vec![0; body]);
    let headers = tunnel::encapsulation_headers(&config.tunnels(to), &beacon[Ethernet::LEN..]);
    headers.map(Vec::into_boxed_slice).map_err(ConfigError::Detour)
}

/// Inserts the outer headers of a detour behind a frame's Ethernet header.
fn insert_detour(frame: &mut Vec<u8>, detour: &[u8]) {
    let Some(first) = detour.first() else { return };
    let outer_ethertype = if first >> 4 == 4 { ethertype::IPV4 } else { ethertype::IPV6 };
    frame.splice(Ethernet::LEN..Ethernet::LEN, detour.iter().copied());
    frame[Ethernet::LEN - 2..Ethernet::LEN].copy_from_slice(&outer_ethertype.to_be_bytes());
}
