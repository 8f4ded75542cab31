//! How hosts behave.

use onepipe::process;
use switch::{Nanos, Probability};

/// Behaviour of a host.
#[derive(Clone, Copy, Debug)]
pub struct Behaviour {
    /// Sends only at multiples of this time by its clock; without skew, messages of different hosts then have
    /// equal timestamps
    pub tick: Nanos,
    /// Longest message (bytes); one of eight is up to this long
    pub largest: u64,
    /// Interval at which its application takes deliveries; 0 for at once
    pub reads_every: Nanos,
    /// Receive window of a sender (bytes)
    pub receive_window: u32,
    /// Receive buffer for all senders (bytes)
    pub receive_buffer: usize,
    /// Bytes that the process may send to a receiver before the first acknowledgement
    pub initial_window: u32,
    /// Time after which an unacknowledged message has failed
    pub timeout: Nanos,
    /// Largest offset to which its clock is stepped once (ns); 0 for no step
    pub step_ns: u64,
    /// Whether each scattering is a broadcast to all hosts that it sends to, including itself
    pub broadcasts: bool,
    /// Share of the hosts that leave at a random time before the end of sending
    pub leaves: Probability,
    /// Share of the hosts that send a message at once if nothing is queued, as the host library does
    pub at_once: Probability,
    /// Number of other hosts with which a host exchanges messages, wherever they are; 0 for all. Needs a
    /// power of two of hosts
    pub partners: usize,
    /// Whether hosts record every packet, for [`Network::check_losses`](super::Network::check_losses)
    pub records: bool,
    /// Longest time by which the commit barriers that a host writes into its beacons are behind its clock;
    /// `None` if it writes none
    pub commits: Option<Nanos>,
    /// Bug to plant, to test whether the checks find it
    pub bug: Option<process::Bug>,
    /// Bug of links with two ends to plant
    pub ends_bug: Option<onepipe::ends::Bug>,
}

impl Default for Behaviour {
    /// Small messages, the defaults of a process, and an exact clock.
    fn default() -> Self {
        Self {
            tick: Nanos::ZERO,
            largest: 8,
            reads_every: Nanos::ZERO,
            receive_window: 1 << 20,
            receive_buffer: 16 << 20,
            initial_window: 64 << 10,
            timeout: Nanos::from_micros(100),
            step_ns: 0,
            broadcasts: false,
            leaves: Probability::NEVER,
            at_once: Probability::NEVER,
            partners: 0,
            records: false,
            commits: None,
            bug: None,
            ends_bug: None,
        }
    }
}
