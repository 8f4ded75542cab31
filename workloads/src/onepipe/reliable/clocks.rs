//! Clocks of a system that follows clock beacons: machines whose clocks are wrong, show another time after each start,
//! and are set while they run; and what the clocks of processes have to keep.

use super::System;
use super::host::Host;
use crate::onepipe::Network;
use crate::onepipe::addresses::shifted_clock;
use crate::onepipe::host::{SYNCHRONIZES_WITHIN, unwrap};
use crate::onepipe::variation::drawn_error;
use onepipe::process::Config;
use onepipe::{ClockSample, ClockSource, Process, Timestamp};
use switch::{Nanos, Probability, Rng};

/// Drift of all oscillators, in parts per billion
const DRIFT: u64 = 100_000;
/// Largest difference between the clocks of two processes at the end of a run (ns). A process that starts when the group's
/// time is before the barrier starts with the barrier, which is behind the clocks by a path and some intervals
const APART: u64 = 50_000;
/// Time by which a process may be ahead because its link seems longer than the others (ns)
const LONGER_MAX: u64 = 1_000_000;
/// Mean time between two settings of a machine's clock (ns)
const SET_EVERY: u64 = 300_000;

/// Machines' clocks of a system.
#[derive(Clone, Copy, Debug)]
pub struct Clocks {
    /// Seed from which errors are drawn
    pub seed: u64,
    /// Largest error of a machine's clock (ns), drawn at each start of a process, a switch and a controller
    pub error_ns: u64,
    /// Whether machines' clocks are set to another error while they run
    pub are_set: bool,
}

impl Clocks {
    /// Time by which a run is longer: that in which processes get the time of their network.
    pub const LATER: Nanos = SYNCHRONIZES_WITHIN;

    /// Returns the error (ns) of the machine's clock of a node in its `start`th life.
    fn error(&self, node: u64, start: u64) -> i64 {
        drawn_error(self.seed ^ start << 48, self.error_ns, node)
    }
}

impl super::Plan {
    /// Lets all clocks follow clock beacons.
    pub fn follow_beacons(&mut self, clocks: Clocks) {
        self.clocks = Some(clocks);
        self.tree.beacon_clocks = Some((clocks.seed, clocks.error_ns));
        (self.tree.skew_ns, self.tree.drift_ppb) = (0, DRIFT);
        self.tree.lasts = self.tree.lasts + Clocks::LATER;
    }
}

/// Machine's clock of a host, and what its process's clock has shown.
#[derive(Clone, Copy, Debug)]
pub(super) struct HostClock {
    clocks: Clocks,
    /// Last time that the process's clock has shown, unwrapped, and the host's clock then
    shown: Option<(u64, Nanos)>,
    /// Greatest error that the machine's clock has had within the limit (ns)
    fastest: i64,
}

impl HostClock {
    /// Configures a process whose clock follows clock beacons, as the host library does where there is a controller.
    pub(super) fn new(clocks: Clocks, ahead_max: Nanos, off_by: i64, config: &mut Config) -> Self {
        config.clock_source = ClockSource::Beacons;
        config.ahead_max = ahead_max;
        config.clock_limit = config.clock_limit.min(ahead_max);
        // One that is beyond the limit must move no process.
        let fastest = if off_by.unsigned_abs() > ahead_max.0 { i64::MIN } else { off_by };
        Self { clocks, shown: None, fastest }
    }

    /// Returns the time of the machine's clock when the host's shows 0, after a restart.
    pub(super) fn restart(&mut self, host: u32, life: usize) -> Timestamp {
        self.shown = None;
        let error = self.clocks.error(host.into(), life as u64);
        self.fastest = self.fastest.max(error);
        shifted_clock(error)
    }

    /// Notes the time that the process's clock shows.
    ///
    /// # Errors
    /// It has shown a later one before.
    pub(super) fn see(&mut self, process: &mut Process, now: Nanos) -> Result<(), String> {
        if process.is_waiting() {
            return Ok(());
        }
        let shows = unwrap(process.timestamp(now), now);
        match self.shown.replace((shows, now)) {
            Some((before, _)) if shows < before => Err(format!("its clock shows {shows} after {before}")),
            _ => Ok(()),
        }
    }
}

/// Settings of machines' clocks.
#[derive(Debug)]
pub(super) struct Setter {
    rng: Rng,
    next: Nanos,
    /// Number of settings
    count: u64,
}

impl Setter {
    pub(super) fn new(seed: u64) -> Self {
        Self { rng: Rng::stream(seed, 0x636c_6f63_6b73), next: Nanos::ZERO, count: 0 }
    }
}

impl System {
    /// Returns the error of the clock of a controller that starts.
    pub(super) fn controller_clock_off(&self, started: u64) -> i64 {
        self.plan.clocks.map_or(0, |clocks| clocks.error(1 << 33, started))
    }

    /// Sets the clock of a drawn machine, if it is time for that.
    pub(super) fn set_clocks(&mut self) {
        let Some(clocks) = self.plan.clocks.filter(|clocks| clocks.are_set) else { return };
        let now = self.now();
        if now < self.setter.next {
            return;
        }
        let Setter { rng, next, count } = &mut self.setter;
        *count += 1;
        *next = now + Nanos(1 + rng.below(2 * SET_EVERY));
        let (hosts, switches) = (self.network.hosts.len(), self.network.representatives.len());
        let (node, draw) = (rng.below((hosts + switches) as u64) as usize, rng.below(1 << 14));
        let by = clocks.error(node as u64, 1 << 14 | draw);
        if node >= hosts {
            self.set_switch_clock(node - hosts, by);
        } else if self.plan.clock_off.is_none_or(|(wrong, _)| wrong != node) {
            self.set_host_clock(node, by);
        }
    }

    fn set_host_clock(&mut self, host: usize, by: i64) {
        let node = self.network.hosts[host];
        if self.network.world.is_down(node) {
            return;
        }
        self.network.world.with(node, |host: &mut Host, now| {
            if let Some(clock) = &mut host.clock {
                clock.fastest = clock.fastest.max(by);
            }
            // The process believes the median of three.
            for _ in 0..3 {
                host.process.set_clock(ClockSample::at(shifted_clock(by).add(now.0), now), now);
            }
            host.after(now);
        });
    }

    fn set_switch_clock(&mut self, switch: usize, by: i64) {
        if self.network.world.is_down(self.network.representatives[switch]) {
            return;
        }
        for _ in 0..3 {
            let command = self.network.clock_off_by(switch, by);
            self.network.command(switch, command);
        }
    }

    /// Sets the clock right that is wrong from the beginning, and sets no other any more.
    pub(super) fn repair_clocks(&mut self) {
        let Some(clocks) = &mut self.plan.clocks else { return };
        clocks.are_set = false;
        if let Some((wrong, _)) = self.plan.clock_off {
            self.set_host_clock(wrong, 0);
        }
    }

    /// Returns by how much the clock of a process was ahead of the right one when it was read last (ns).
    fn clock_ahead(&self, host: &Host) -> Option<i64> {
        let (shown, at) = host.clock.as_ref()?.shown?;
        Some(shown.cast_signed() - Network::time(self.when(host, at)).cast_signed())
    }

    /// Returns the time that the clock of a process that follows clock beacons shows, or the right one.
    pub(super) fn time_of(&self, host: &Host) -> u64 {
        let off = self.clock_ahead(host).unwrap_or(0);
        Network::time(self.now()).wrapping_add_signed(off)
    }

    /// Returns by how much more clocks may be apart (ns). When the fastest machine ends or is set back, the group's time
    /// goes back, and processes that have followed it run slower; one that has not heard it is behind them by as much. So
    /// is one whose link carries no late frames, where others do.
    pub(super) fn clocks_apart(&self) -> u64 {
        let Some(clocks) = self.plan.clocks else { return 0 };
        let keeps_its_clocks =
            self.setter.count == 0 && self.faults.counts.is_empty() && self.plan.clock_off.is_none();
        let by_machines =
            if keeps_its_clocks { 0 } else { 2 * clocks.error_ns + self.plan.tree.join_window.0 };
        by_machines + self.late_frames()
    }

    /// Returns by how much late frames may move a clock forward (ns). After a silence the first round trips of a link may
    /// all be those of frames that arrive late: half of one counts, and a link that seems long.
    fn late_frames(&self) -> u64 {
        let link = &self.plan.tree.link;
        if link.reorder == Probability::NEVER { 0 } else { link.reorder_by.0 + LONGER_MAX }
    }

    /// The clocks of all processes agree when all faults have ended, and none is later than each machine was.
    pub(super) fn check_clocks(&self) -> Result<(), String> {
        let ahead: Vec<_> = self.hosts().filter_map(|host| self.clock_ahead(host)).collect();
        if let (Some(most), Some(least)) = (ahead.iter().max(), ahead.iter().min())
            && most.abs_diff(*least) > APART + self.clocks_apart()
        {
            return Err(format!("clocks of processes are apart by {} ns: {ahead:?}", most - least));
        }
        let fastest = self.hosts().filter_map(|host| Some(host.clock.as_ref()?.fastest)).max();
        if let (Some(most), Some(fastest)) = (ahead.iter().max(), fastest)
            && *most > fastest + (APART + self.late_frames()).cast_signed()
        {
            return Err(format!(
                "a process is ahead by {most} ns, and each machine was by {fastest} at most"
            ));
        }
        Ok(())
    }
}
