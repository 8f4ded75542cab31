//! Faults at drawn moments, and their repair.

mod moments;
mod seats;

use super::System;
use super::host::Host;
use crate::onepipe::addresses::host_addresses;
use crate::onepipe::{Failing, Part, Wiring};
use controller::machine::NodeKey;
use controller::store::Fault as StoreFault;
use onepipe::ProcessId;
use sim::Fault;
use std::collections::BTreeMap;
use switch::Nanos;

/// Kinds of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FaultKind {
    /// A process crashes
    Process,
    /// A link is cut, in both directions or in one of them
    Link,
    /// A link is cut and healed again and again, each time for less than a silent link lives
    Flap,
    /// A representative crashes, and restarts soon, or late
    Representative,
    /// A controller stops, starts, is suspended, or is replaced
    Controller,
    /// A node loses its connections with the controllers, once or for some time
    Management,
    /// A write fails, or its answer is lost
    Store,
    /// A process, or a rack, is cut off from the controllers, and its link fails for a shorter time: it does not know
    /// that it has failed
    Isolation,
    /// The leader ends, or is suspended, while a failure is suspected, or decided and not completed
    Takeover,
    /// A connection with a controller stands still, and what was sent arrives late, perhaps after what other
    /// controllers have sent later
    Delay,
    /// A process restarts, and the representative of its switch while it joins
    Join,
    /// A process leaves in order, and starts again
    Departure,
    /// One of two representatives of a switch fails
    Seat,
    /// An operator asks for some time for the end of one of two representatives
    Drain,
}

impl FaultKind {
    /// All kinds for switches with one representative.
    pub const ALL: [Self; 12] = [
        Self::Process,
        Self::Link,
        Self::Flap,
        Self::Representative,
        Self::Controller,
        Self::Management,
        Self::Store,
        Self::Isolation,
        Self::Takeover,
        Self::Delay,
        Self::Join,
        Self::Departure,
    ];

    /// Kinds that need switches with two representatives.
    pub const SEATS: [Self; 2] = [Self::Seat, Self::Drain];
}

/// Faults of a run.
#[derive(Debug, Default)]
pub(super) struct Faults {
    /// When the next one is drawn
    next: Nanos,
    /// What ends those that have not ended
    ends: Vec<Fault>,
    /// When the last of those ends whose end was drawn
    last_end: Nanos,
    moments: moments::Moments,
    /// Number of each kind
    pub(super) counts: BTreeMap<FaultKind, u64>,
}

impl System {
    /// Runs until a time of the world, with faults drawn from `kinds` from a time on.
    ///
    /// # Errors
    /// A violation that a step shows.
    pub fn run_with_faults(&mut self, from: Nanos, until: Nanos, kinds: &[FaultKind]) -> Result<(), String> {
        self.run_until(from)?;
        while self.now() < until {
            self.run_until(self.now() + Nanos::from_micros(2))?;
            self.see_moments();
            self.set_clocks();
            if !kinds.is_empty() && self.faults.next <= self.now() {
                let gap = *self.rng.pick(&[20_000, 100_000, 600_000]);
                self.faults.next = self.now() + Nanos(1000 + self.rng.below(gap));
                let kind = *self.rng.pick(kinds);
                *self.faults.counts.entry(kind).or_default() += 1;
                self.draw(kind);
            }
        }
        Ok(())
    }

    /// Returns when the last fault of a drawn length ends.
    pub const fn last_end(&self) -> Nanos {
        self.faults.last_end
    }

    /// Returns how many faults of each kind have happened.
    pub fn faults(&self) -> &BTreeMap<FaultKind, u64> {
        &self.faults.counts
    }

    /// Lets a part of the data network fail from now on.
    pub fn fail(&mut self, what: Failing) {
        let Some((begin, end)) = self.network.faults(what) else { return };
        self.network.world.schedule(self.now(), begin);
        self.faults.ends.push(end);
    }

    /// Ends the failure of a part of the data network.
    pub fn mend(&mut self, what: Failing) {
        let Some((_, end)) = self.network.faults(what) else { return };
        if let Some(at) = self.faults.ends.iter().position(|other| *other == end) {
            self.network.world.schedule(self.now(), self.faults.ends.swap_remove(at));
        }
    }

    /// Lets no frame of process `from` reach process `to`, or each of them again. All other frames arrive.
    pub fn cut_path(&mut self, from: usize, to: usize, is_cut: bool) {
        let mac = host_addresses(from).mac;
        let host: &mut Host = self.network.world.node_mut(self.network.hosts[to]);
        host.unheard.retain(|other| *other != mac);
        if is_cut {
            host.unheard.push(mac);
        }
    }

    /// Cuts a node off from the controllers, or lets it reach them again.
    pub fn cut_off(&mut self, node: NodeKey, is_cut: bool) {
        if is_cut {
            self.cut_off.insert(node);
            self.disconnect(node);
        } else {
            self.cut_off.remove(&node);
        }
    }

    /// Ends all faults: one controller, which leads, is left or started.
    pub fn repair(&mut self) {
        for end in core::mem::take(&mut self.faults.ends) {
            self.network.world.schedule(self.now(), end);
        }
        self.cut_off.clear();
        self.repair_clocks();
        self.faults.moments = moments::Moments::default();
        self.store.clear_faults();
        while self.controllers.len() > 1 {
            self.stop_controller(0);
        }
        if self.controllers.is_empty() {
            self.start_controller();
        }
    }

    /// Lets something fail for a time.
    fn fail_for(&mut self, what: Failing, time: Nanos) {
        let Some((begin, end)) = self.network.faults(what) else { return };
        self.network.world.schedule(self.now(), begin);
        self.end_at(self.now() + time, end);
    }

    fn end_at(&mut self, at: Nanos, end: Fault) {
        self.network.world.schedule(at, end);
        self.faults.last_end = self.faults.last_end.max(at);
    }

    /// Draws a link, and one of its ends or none.
    fn draw_link(&mut self) -> Failing {
        let wires = self.plan.tree.wires();
        let wire = *self.rng.pick(&wires);
        let ends: [Part; 2] = match wire {
            Wiring::Access(host) => [Part::Host(host), Part::Switch(host / self.plan.tree.fanout)],
            Wiring::Uplink(switch) => {
                let level = self.plan.tree.level_of(switch);
                let parent = self.plan.tree.parent(level, switch).map_or(switch, |(parent, _)| parent);
                [Part::Switch(switch), Part::Switch(parent)]
            }
            Wiring::Beside(switch) => [Part::Switch(switch), Part::Keeper(switch)],
        };
        match self.rng.below(4) {
            0 => Failing::Mute(ends[0], wire),
            1 => Failing::Mute(ends[1], wire),
            _ => Failing::Cut(wire),
        }
    }

    fn draw(&mut self, kind: FaultKind) {
        match kind {
            FaultKind::Process => {
                let host = self.rng.below(self.network.hosts.len() as u64) as usize;
                if !self.network.world.is_down(self.network.hosts[host]) {
                    let time = Nanos(5000 + self.rng.below(800_000));
                    self.fail_for(Failing::Crash(Part::Host(host)), time);
                }
            }
            FaultKind::Link => {
                let what = self.draw_link();
                let most = *self.rng.pick(&[25_000, 100_000, 1_000_000]);
                let time = Nanos(1000 + self.rng.below(most));
                self.fail_for(what, time);
            }
            FaultKind::Flap => self.flap(),
            FaultKind::Representative => {
                let switch = self.rng.below(self.network.representatives.len() as u64) as usize;
                if !self.network.world.is_down(self.network.representatives[switch]) {
                    let most = *self.rng.pick(&[20_000, 500_000]);
                    let time = Nanos(3000 + self.rng.below(most));
                    self.fail_for(Failing::Crash(Part::Keeper(switch)), time);
                }
            }
            FaultKind::Controller => self.draw_controller(),
            FaultKind::Management => {
                let nodes = self.nodes();
                let node = *self.rng.pick(&nodes);
                match self.rng.below(3) {
                    0 => self.cut_off(node, true),
                    1 => self.cut_off.clear(),
                    _ => self.disconnect(node),
                }
            }
            FaultKind::Store => {
                let fault = *self.rng.pick(&StoreFault::ALL);
                self.store.inject([Some(fault)]);
            }
            FaultKind::Isolation => self.isolate(),
            FaultKind::Takeover => self.await_takeover(),
            FaultKind::Delay => self.delay(),
            FaultKind::Join => self.await_join(),
            FaultKind::Departure => self.depart(),
            FaultKind::Seat => self.draw_seat_fault(),
            FaultKind::Drain => self.draw_drain(),
        }
    }

    /// Cuts and heals a link for 12 beacon intervals.
    fn flap(&mut self) {
        let what = self.draw_link();
        let Some((begin, end)) = self.network.faults(what) else { return };
        let mut at = self.now();
        for _ in 0..6 {
            self.network.world.schedule(at, begin.clone());
            let healed_at = at + Nanos(3000 + self.rng.below(9000));
            self.end_at(healed_at, end.clone());
            at = at + Nanos(13_000);
        }
    }

    fn draw_controller(&mut self) {
        let count = self.controllers.len();
        let n = self.rng.below(count.max(1) as u64) as usize;
        match self.rng.below(5) {
            0 if count > 0 => self.stop_controller(n),
            1 if count > 0 => {
                self.stop_controller(n);
                self.start_controller();
            }
            2 | 3 if count > 0 => {
                let time = Nanos(self.rng.below(600_000));
                self.pause_controller(n, time);
                if count < 3 {
                    self.start_controller();
                }
            }
            _ if count < 3 => self.start_controller(),
            _ => {}
        }
    }

    /// Has the leader declare a process failed, as an operator.
    pub fn declare_failed(&mut self, id: u32) {
        self.input_all(&controller::machine::Input::Fail(ProcessId(id)));
    }

    /// Has controller `n` declare a process failed, also if it is suspended.
    pub fn declare_failed_by(&mut self, n: usize, id: u32) {
        self.input_one(n, controller::machine::Input::Fail(ProcessId(id)));
    }
}
