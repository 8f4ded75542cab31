//! Configuration of an endpoint, which [`file`](crate::file) reads.

use core::net::IpAddr;
use onepipe::Timestamp;
use onepipe::process;
use rocev2::ethernet::MacAddr;
use rustix::time::{ClockId, clock_gettime};
use switch::Nanos;

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
    pub tell_settled: bool,
}

impl Settings {
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
        let time = self.now();
        time.add(0u64.wrapping_sub(now().0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::Cell;

    #[test]
    fn clock_at_the_start_is_that_of_time_0() {
        let elapsed = Nanos::from_millis(1234);
        let (before, read_at) = (Clock::Tai.now(), Cell::new(None));
        let start = Clock::Tai.at_start(|| {
            read_at.set(Some(Clock::Tai.now()));
            elapsed
        });
        let time = start.add(elapsed.0);
        assert!(!time.precedes(before) && !read_at.get().unwrap().precedes(time), "{time}");
    }
}
