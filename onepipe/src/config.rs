//! What an endpoint is asked for, as a value; [`file`](crate::file) reads it.

use core::net::IpAddr;
use representative::process;
use rocev2::ethernet::MacAddr;
use rocev2::onepipe::Timestamp;
use rustix::time::{ClockId, clock_gettime};

/// Configuration of an [`Endpoint`](crate::Endpoint).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// DPDK, the process's one port and its polling thread
    pub runtime: dataplane::Config,
    /// The process
    pub process: Settings,
}

/// What the table `[process]` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The process and its peers. `own.mac` is to be replaced if the file does not say it, `clock` in any case
    pub process: process::Config,
    /// Its MAC address; the port's own if not said
    pub mac: Option<MacAddr>,
    /// Length of its address's prefix
    pub prefix: u8,
    /// What the switch at the other end of its link is called
    pub switch: String,
    /// Whose time 1Pipe's is
    pub clock: Clock,
    /// Whether the application is told of every scattering what became of it
    /// ([`Event::Settled`](process::Event::Settled)), and not of messages that failed alone
    pub tell_settled: bool,
}

impl Settings {
    /// The address with the length of its prefix
    pub const fn address(&self) -> (IpAddr, u8) {
        (self.process.own.address, self.prefix)
    }

    /// The process on a port of this MAC address.
    pub(crate) fn process(&self, port_mac: [u8; 6]) -> process::Config {
        let mut process = self.process.clone();
        process.own.mac = self.mac.unwrap_or(MacAddr(port_mac));
        process.clock = self.clock.now();
        process
    }
}

/// A clock of the machine's, which somebody synchronises.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Clock {
    /// Coordinated Universal Time: stands still, or goes back, for a second when a leap second is put in
    #[default]
    Realtime,
    /// International Atomic Time: no leap seconds. The kernel has to have been told how far it is from UTC
    Tai,
}

impl Clock {
    /// What it shows, as 1Pipe's time
    pub fn now(self) -> Timestamp {
        let time = clock_gettime(match self {
            Self::Realtime => ClockId::Realtime,
            Self::Tai => ClockId::Tai,
        });
        let (seconds, nanos) = (time.tv_sec.cast_unsigned(), time.tv_nsec.cast_unsigned());
        Timestamp::new(seconds.wrapping_mul(1_000_000_000).wrapping_add(nanos))
    }
}
