//! Beacons of a process: when they are due, what they promise, and their detour (1Pipe, sections 4.2 and
//! 6.2.3).

use rocev2::Psn;
use rocev2::datagram::Template;
use rocev2::ethernet::{Ethernet, ethertype};
use rocev2::onepipe::{OnePipe, OnePipeOpcode, Timestamp};
use switch::{Nanos, tunnel};

use super::{Config, ConfigError, Pending, Process};

impl Process {
    /// Returns the next instant after `now` by this process's clock, at which all processes send beacons
    /// (1Pipe, section 4.2).
    pub(super) fn next_instant(&self, now: Nanos) -> Nanos {
        let clock = Timestamp::new(self.clock.unclamped(now)).nanos();
        let interval = self.config.beacon_interval.0;
        let rest = interval - clock % interval;
        now + Nanos(rest.min((1 << 48) - clock))
    }

    /// Writes a beacon, which promises that nothing before its time follows on the link. The time is the
    /// clock's, except while last packets of a scattering are waiting to be sent: then it is *their*
    /// timestamp. As that may be before the instant for which all receivers wait, another beacon follows as
    /// soon as these packets have been sent, instead of an interval later.
    pub(super) fn send_beacon(&mut self, now: Nanos, frame: &mut Vec<u8>) {
        self.beacon = Pending::None;
        let time = match self.finishing {
            #[cfg(debug_assertions)]
            _ if self.config.bug == Some(crate::Bug::OvertakingBeacon) => self.clock.issue(now),
            Some((_, _, time)) => {
                let clock = self.clock.read(now);
                let instant = clock - Timestamp::new(clock).nanos() % self.config.beacon_interval.0;
                if time < instant {
                    self.beacon = Pending::AfterScattering;
                }
                time
            }
            None => self.clock.issue(now),
        };
        let mut header = OnePipe::new(OnePipeOpcode::BEACON, Timestamp::new(time), self.beacon_psn);
        self.beacon_psn = self.beacon_psn.add(1);
        if self.has_left {
            header.set_barrier(None);
            header.set_nothing_follows(true);
        }
        self.tor.emit(frame, &header, &[]);
        insert_detour(frame, &self.detour);
        self.counters.beacons_sent.add(1);
    }
}

/// Returns the outer headers of the beacons' detour. They depend on the beacon's length only, which is
/// constant.
pub(super) fn detour(config: &Config, mut tor: Template) -> Result<Box<[u8]>, ConfigError> {
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
