//! Clocks of a tree: by how much they may differ, and which are wrong; and a link that is longer than others.

use super::addresses::shifted_clock;
use super::host::SYNCHRONIZES_WITHIN;
use super::{Tree, Wire, incarnations};
use onepipe::{ClockSource, Timestamp};
use switch::{Nanos, Rng};

impl Tree {
    /// Returns the largest difference between the clocks of two hosts, except for
    /// [`wrong_host`](Self::wrong_host).
    pub fn clock_error(&self) -> Nanos {
        incarnations::clock_error(self.skew_ns, self.behaviour.step_ns)
    }

    /// Returns the age of the world at which hosts begin to send.
    pub fn starts_sending(&self) -> Nanos {
        let synchronizes = if self.beacon_clocks.is_some() { SYNCHRONIZES_WITHIN } else { Nanos::ZERO };
        incarnations::starts_sending(self.clock_error()) + synchronizes
    }

    /// Returns the parameters of a host's link.
    pub(super) fn link_of_host(&self, n: usize) -> Wire {
        let farther = self.far_host.map_or(Nanos::ZERO, |(far, by)| if far == n { by } else { Nanos::ZERO });
        Wire { delay: self.link.delay + farther, ..self.link }
    }

    /// Returns by how many nanoseconds the machine's clock of a node is wrong where nodes exchange clock beacons.
    pub(super) fn drawn_error(&self, node: u64) -> i64 {
        self.beacon_clocks.map_or(0, |(seed, most)| drawn_error(seed, most, node))
    }

    /// Returns the maximum time by which a barrier is ahead of a clock: where there is a controller, machines' clocks
    /// are off by less.
    pub(super) fn ahead_max(&self) -> Nanos {
        let most = self.beacon_clocks.filter(|_| self.controlled).map_or(0, |(_, most)| 5 * most / 2);
        Nanos(most.max(10_000_000))
    }

    /// Returns the time that the clock of switch `n` shows when the runner's is 0, after a restart, if machines with a
    /// controller exchange clock beacons.
    pub(super) fn clock_after(&self, n: usize, restarts: u64) -> Option<Timestamp> {
        let (seed, most) = self.beacon_clocks.filter(|_| self.controlled && restarts > 0)?;
        Some(shifted_clock(drawn_error(seed ^ restarts << 48, most, 1 << 32 | n as u64)))
    }

    /// Returns by how many nanoseconds the 1Pipe clock at switch `n` is wrong from the beginning.
    pub fn keeper_off_by(&self, n: usize) -> i64 {
        let Some((seed, max)) = self.wrong_keepers else { return 0 };
        let mut rng = Rng::stream(seed, 1 << 37 | n as u64);
        // Errors of all orders of magnitude
        let magnitude = rng.below(u64::from(max.max(1).ilog2()) + 1);
        let size = rng.below(max >> magnitude | 1) as i64;
        match rng.below(4) {
            0 => size,
            1 => -size,
            _ => 0,
        }
    }
}

/// Returns an error of a machine's clock up to `most` nanoseconds.
pub(super) fn drawn_error(seed: u64, most: u64, node: u64) -> i64 {
    let mut rng = Rng::stream(seed, 1 << 43 | node);
    rng.below(2 * most + 1) as i64 - most as i64
}

/// Returns what clocks follow.
pub(super) const fn clock_source(beacons: bool) -> ClockSource {
    if beacons { ClockSource::Beacons } else { ClockSource::Host }
}
