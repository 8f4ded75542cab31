//! Configuration of an endpoint, which [`file`](crate::file) reads.

use core::net::IpAddr;
use onepipe::Timestamp;
use onepipe::process;
use rocev2::ethernet::MacAddr;
use rustix::time::{ClockId, clock_gettime};

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
}

impl Settings {
    /// Returns the address with its prefix length.
    pub const fn address(&self) -> (IpAddr, u8) {
        (self.process.own.address, self.prefix)
    }

    /// Returns the configuration of the process on a port with this MAC address.
    pub(crate) fn process(&self, port_mac: [u8; 6]) -> process::Config {
        let mut process = self.process.clone();
        process.own.mac = self.mac.unwrap_or(MacAddr(port_mac));
        process.clock = self.clock.now();
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
}
