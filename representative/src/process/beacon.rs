//! Beacons of a process: when they are due, what they promise, and the detour that they take (1Pipe, sections 4.2 and 6.2.3).

use rocev2::Psn;
use rocev2::datagram::Template;
use rocev2::ethernet::{Ethernet, ethertype};
use rocev2::onepipe::{OnePipe, OnePipeOpcode, Timestamp};
use switch::{Nanos, tunnel};

use super::{Config, ConfigError, Pending, Process};

impl Process {
    /// The next instant after `now` by this process's clock, at which all processes send beacons (section 4.2).
    pub(super) fn next_instant(&self, now: Nanos) -> Nanos {
        let clock = Timestamp::new(self.clock.shows(now)).nanos();
        let interval = self.config.beacon_interval.0;
        let rest = interval - clock % interval;
        now + Nanos(rest.min((1 << 48) - clock))
    }

    /// Tells the link's other end that nothing before the clock follows. While last packets of a scattering wait, that is not
    /// true: nothing before *their* timestamp does (FACTS C-44). As that may lie before the instant for which everybody waits, the
    /// clock follows once they have left, and not an interval later.
    pub(super) fn send_beacon(&mut self, now: Nanos, frame: &mut Vec<u8>) {
        self.beacon = Pending::None;
        let time = match self.finishing {
            #[cfg(debug_assertions)]
            _ if self.config.bug == Some(crate::Bug::OvertakingBeacon) => self.clock.tell(now),
            Some((_, _, time)) => {
                let clock = self.clock.read(now);
                let instant = clock - Timestamp::new(clock).nanos() % self.config.beacon_interval.0;
                if time < instant {
                    self.beacon = Pending::AfterScattering;
                }
                time
            }
            None => self.clock.tell(now),
        };
        let mut header = OnePipe::new(OnePipeOpcode::BEACON, Timestamp::new(time), self.beacon_psn);
        self.beacon_psn = self.beacon_psn.add(1);
        if self.has_left {
            header.set_barrier(None);
            header.set_nothing_follows(true);
        }
        self.tor.emit(frame, &header, &[]);
        lead_around(frame, &self.detour);
        self.counters.beacons_sent.add(1);
    }
}

/// The headers that lead beacons around. All beacons are of one length, and no header says more of what follows it.
pub(super) fn detour(config: &Config, mut tor: Template) -> Result<Box<[u8]>, ConfigError> {
    let mut beacon = Vec::new();
    let header = OnePipe::new(OnePipeOpcode::BEACON, Timestamp::default(), Psn::ZERO);
    tor.emit(&mut beacon, &header, &[]);
    let headers = tunnel::headers(&config.tunnels(), &beacon[Ethernet::LEN..]);
    headers.map(Vec::into_boxed_slice).map_err(ConfigError::Detour)
}

/// Puts the headers of a detour between a frame's first header and its packet.
fn lead_around(frame: &mut Vec<u8>, detour: &[u8]) {
    let Some(first) = detour.first() else { return };
    let kind = if first >> 4 == 4 { ethertype::IPV4 } else { ethertype::IPV6 };
    frame.splice(Ethernet::LEN..Ethernet::LEN, detour.iter().copied());
    frame[Ethernet::LEN - 2..Ethernet::LEN].copy_from_slice(&kind.to_be_bytes());
}
