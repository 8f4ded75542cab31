//! Configuration of an endpoint, which [`file`](crate::file) reads.

use crate::file::controller::{self, Controllers};
use core::net::IpAddr;
use onepipe::process;
use onepipe::{ClockSample, Timestamp};
use rocev2::ethernet::MacAddr;
use rustix::time::{ClockId, clock_gettime};
use settings::tree::Table;
use std::path::Path;
use switch::Nanos;

/// Number of readings for a sample of the clock, so that an interrupt delays at most one of them
const READINGS: usize = 5;

/// Configuration of an [`Endpoint`](crate::Endpoint).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// DPDK, the process's one port, and its polling thread
    pub runtime: dataplane::Config,
    /// The process
    pub process: Settings,
}

/// Contents of the table `[process]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The process and its peers. [`Endpoint::init`](crate::Endpoint::init) replaces `own.mac`, unless `mac`
    /// is set, and `clock`
    pub process: process::Config,
    /// MAC address of the process; the port's if `None`
    pub mac: Option<MacAddr>,
    /// Prefix length of its address
    pub prefix: u8,
    /// Name of the switch at the other end of its link
    pub switch: String,
    /// Machine clock that 1Pipe's clock follows
    pub clock: Clock,
    /// Whether the application gets an event for every scattering that is settled
    /// ([`Event::Settled`](process::Event::Settled)), beside those for messages that failed
    pub settled_events: bool,
    /// Controller of the reliable service; without it, the service is refused
    pub controller: Option<Controller>,
}

/// Contents of the table `[controller]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Controller {
    /// How the process reaches the controllers
    pub controllers: Controllers,
    /// Number of beacon intervals after which the process's silent link is reported
    pub fail_after: u32,
    /// Whether messages of both services are received in one order
    pub is_merged: bool,
    /// Bytes of reliable messages that the process buffers
    pub reliable_buffer: usize,
    /// Maximum number of members
    pub max_members: usize,
}

impl Settings {
    /// Reads the table `[controller]` of the file, which is in `folder`.
    pub fn read_controller(&mut self, root: &Table<'_>, folder: &Path) {
        self.controller = controller::read(root, folder, self.process.peers.len());
        if let Some(controller) = &self.controller {
            self.process.reliable_buffer = controller.reliable_buffer;
            self.process.max_members = controller.max_members;
            // The controller compares the members' clocks with its own.
            self.process.clock_limit = self.process.clock_limit.min(self.process.ahead_max);
        }
    }

    /// Returns the address with its prefix length.
    pub const fn address(&self) -> (IpAddr, u8) {
        (self.process.own.address, self.prefix)
    }

    /// Returns the configuration of the process on a port with this MAC address, by the time that `now` reads
    /// and passes to the process later.
    pub(crate) fn process(&self, port_mac: [u8; 6], now: impl Fn() -> Nanos) -> process::Config {
        let mut process = self.process.clone();
        process.own.mac = self.mac.unwrap_or(MacAddr(port_mac));
        process.clock = self.clock.at_start(now);
        process
    }
}

/// Clock of the machine, synchronised by PTP, for example.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Clock {
    /// Coordinated Universal Time, which stands still or goes back for a second at a leap second
    #[default]
    Realtime,
    /// International Atomic Time: no leap seconds. The kernel's offset from UTC has to be configured
    Tai,
}

impl Clock {
    /// Returns the clock's current value as 1Pipe's time.
    pub fn now(self) -> Timestamp {
        let time = clock_gettime(match self {
            Self::Realtime => ClockId::Realtime,
            Self::Tai => ClockId::Tai,
        });
        let (seconds, nanos) = (time.tv_sec.cast_unsigned(), time.tv_nsec.cast_unsigned());
        Timestamp::new(seconds.wrapping_mul(1_000_000_000).wrapping_add(nanos))
    }

    /// Returns 1Pipe's time at the time 0 of the clock that `now` reads.
    pub fn at_start(self, now: impl Fn() -> Nanos) -> Timestamp {
        let ClockSample { time, read_at, .. } = self.sample(now);
        time.add(0u64.wrapping_sub(read_at.0))
    }

    /// Reads the clock, between two readings of the clock that `now` reads: the closest pair of several.
    pub fn sample(self, now: impl Fn() -> Nanos) -> ClockSample {
        let read = |_| {
            let before = now();
            let time = self.now();
            let error = Nanos(now().since(before).0 / 2);
            ClockSample { time, read_at: before + error, error }
        };
        (1..READINGS).map(read).fold(read(0), |best, next| if next.error < best.error { next } else { best })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::Cell;

    #[test]
    fn clock_at_the_start_is_that_of_time_0() {
        let elapsed = Nanos::from_millis(1234);
        let before = Clock::Tai.now();
        let time = Clock::Tai.at_start(|| elapsed).add(elapsed.0);
        assert!(!time.precedes(before) && !Clock::Tai.now().precedes(time), "{time}");
    }

    #[test]
    fn sample_is_the_closest_of_several_readings() {
        let times = [100, 900, 1_000, 1_080, 1_200, 1_260, 2_000, 2_100, 3_000, 3_090].map(Nanos);
        let times = Cell::new(&times[..]);
        let now = || {
            let (first, rest) = times.get().split_first().unwrap();
            times.set(rest);
            *first
        };
        let sample = Clock::Realtime.sample(now);
        assert_eq!((sample.read_at, sample.error), (Nanos(1_230), Nanos(30)));
    }
}
