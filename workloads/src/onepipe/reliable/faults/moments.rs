//! Faults at the moments at which they matter: while something else is under way.

use super::super::System;
use super::super::control::Controller;
use super::super::host::Host;
use crate::onepipe::{Failing, Part, Wiring};
use controller::machine::NodeKey;
use controller::record::Stage;
use onepipe::ProcessId;
use onepipe::control::Incarnation;
use switch::Nanos;

/// What is waited for.
#[derive(Debug, Default)]
pub(super) struct Moments {
    /// Nodes that are cut off from the controllers, each until a time
    pub(super) isolated: Vec<(Nanos, NodeKey)>,
    /// Representatives whose end an operator asks for, each until a time
    pub(super) drains: Vec<(Nanos, u16, Incarnation)>,
    /// The leader is to be replaced in this stage of a failure
    takeover: Option<Open>,
    /// When it is to be replaced
    takeover_at: Option<Nanos>,
    /// Process that restarts: the representative of its switch is to restart when it joins
    joining: Option<usize>,
    /// Switch whose representative restarts, and when
    restarts: Vec<(Nanos, usize)>,
}

/// Stage of a failure.
#[derive(Clone, Copy, Debug)]
enum Open {
    Suspected,
    Decided,
}

impl System {
    /// Does what is due, or what was waited for.
    pub(super) fn see_moments(&mut self) {
        let now = self.now();
        self.ask_for_drains();
        for (_, node) in self.faults.moments.isolated.extract_if(.., |(at, _)| *at <= now).collect::<Vec<_>>()
        {
            self.cut_off.remove(&node);
        }
        if self.faults.moments.takeover.is_some_and(|stage| self.is_open(stage)) {
            self.faults.moments.takeover = None;
            self.faults.moments.takeover_at = Some(now + Nanos(self.rng.below(150_000)));
        }
        if self.faults.moments.takeover_at.take_if(|at| *at <= now).is_some() {
            self.take_over();
        }
        if let Some(host) = self
            .faults
            .moments
            .joining
            .take_if(|host| is_joining(self.network.world.node(self.network.hosts[*host])))
        {
            let at = now + Nanos(self.rng.below(60_000));
            self.faults.moments.restarts.push((at, host / self.plan.tree.fanout));
        }
        for (_, switch) in
            self.faults.moments.restarts.extract_if(.., |(at, _)| *at <= now).collect::<Vec<_>>()
        {
            if !self.network.world.is_down(self.network.representatives[switch]) {
                let time = Nanos(3000 + self.rng.below(20_000));
                self.fail_for(Failing::Crash(Part::Keeper(switch)), time);
            }
        }
    }

    fn is_open(&self, stage: Open) -> bool {
        match stage {
            Open::Suspected => self.leader().is_some_and(Controller::suspects),
            Open::Decided => self.image.cases.values().any(|case| case.stage == Stage::Decided),
        }
    }

    /// Cuts a process, or a rack, off from the controllers, and lets its link fail for a shorter time.
    pub(super) fn isolate(&mut self) {
        let tree = self.plan.tree;
        let is_rack = tree.levels > 1 && self.rng.below(3) > 0;
        let (part, wire, nodes) = if is_rack {
            let rack = self.rng.below((tree.hosts() / tree.fanout) as u64) as usize;
            let hosts = rack * tree.fanout..(rack + 1) * tree.fanout;
            let hosts = hosts.map(|host| NodeKey::Process(ProcessId(host as u32)));
            let seats = self.sites.keys().filter(|(switch, _)| usize::from(*switch) == rack);
            let seats = seats.map(|&(switch, seat)| NodeKey::Rep(switch, seat));
            let nodes: Vec<_> = hosts.chain(seats).collect();
            (Part::Switch(rack), Wiring::Uplink(rack), nodes)
        } else {
            let host = self.rng.below(tree.hosts() as u64) as usize;
            (Part::Host(host), Wiring::Access(host), vec![NodeKey::Process(ProcessId(host as u32))])
        };
        let longest = *self.rng.pick(&[500_000, 3_000_000]);
        let until = self.now() + Nanos(50_000 + self.rng.below(longest));
        self.faults.last_end = self.faults.last_end.max(until);
        for node in nodes {
            self.cut_off(node, true);
            self.faults.moments.isolated.push((until, node));
        }
        let what = if self.rng.below(3) > 0 { Failing::Mute(part, wire) } else { Failing::Cut(wire) };
        let longest = *self.rng.pick(&[100_000, 500_000, 3_000_000]);
        let time = Nanos(25_000 + self.rng.below(longest));
        self.fail_for(what, time);
    }

    /// Has the leader replaced in the next failure.
    pub(super) fn await_takeover(&mut self) {
        self.faults.moments.takeover =
            Some(if self.rng.below(3) == 0 { Open::Suspected } else { Open::Decided });
    }

    fn take_over(&mut self) {
        let Some(leader) = self.leader_number() else { return };
        if self.rng.below(2) == 0 {
            self.stop_controller(leader);
        } else {
            let time = Nanos(150_000 + self.rng.below(500_000));
            self.pause_controller(leader, time);
        }
        if self.controllers.len() < 3 {
            self.start_controller();
        }
    }

    /// Lets connections of a controller stand still for a time, in which the leader may be replaced.
    pub(super) fn delay(&mut self) {
        if self.controllers.is_empty() {
            return;
        }
        let now = self.now();
        let until = now + Nanos(20_000 + self.rng.below(700_000));
        let (n, nodes) = (self.rng.below(self.controllers.len() as u64) as usize, self.nodes());
        let some = *self.rng.pick(&[1, 3, nodes.len()]);
        if self.rng.below(3) == 0 {
            self.faults.moments.takeover_at = Some(now + Nanos(self.rng.below(100_000)));
        }
        for _ in 0..some {
            let node = *self.rng.pick(&nodes);
            self.stall_connection(n, node, until);
        }
    }

    /// Lets a process restart, and the representative of its switch while it joins.
    pub(super) fn await_join(&mut self) {
        let host = self.rng.below(self.network.hosts.len() as u64) as usize;
        if self.plan.unmanaged != Some(host) && !self.network.world.is_down(self.network.hosts[host]) {
            let time = Nanos(5000 + self.rng.below(200_000));
            self.fail_for(Failing::Crash(Part::Host(host)), time);
            self.faults.moments.joining = Some(host);
        }
    }

    /// Lets a process leave. It starts again later.
    pub(super) fn depart(&mut self) {
        let host = self.rng.below(self.network.hosts.len() as u64) as usize;
        let node = self.network.hosts[host];
        if self.plan.unmanaged != Some(host) && !self.network.world.is_down(node) {
            self.network.world.with(node, |host: &mut Host, now| host.leave(now));
        }
    }

    /// Ends the program of a process that has left, and starts it again after a drawn time.
    pub(in super::super) fn end_host(&mut self, host: usize) {
        let longest = *self.rng.pick(&[20_000, 500_000]);
        let time = Nanos(3000 + self.rng.below(longest));
        self.fail_for(Failing::Crash(Part::Host(host)), time);
    }
}

/// Returns whether a process has an incarnation, and is not admitted.
fn is_joining(host: &Host) -> bool {
    host.member.incarnation().is_some() && host.admitted.is_none()
}
