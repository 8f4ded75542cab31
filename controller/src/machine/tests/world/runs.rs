//! Drawn runs: faults at drawn moments.

use super::{AHEAD_MAX, BEHIND_MAX, Planted, RESPOND_WITHIN, STEP, World};
use crate::graph::Port;
use crate::machine::{Input, NodeKey};
use crate::record::{Image, MemberRecord, MemberState, Stage};
use crate::store::{Change, Fault, Term};
use onepipe::control::{Incarnation, Message};
use onepipe::{ProcessId, Timestamp};
use std::collections::{BTreeMap, VecDeque};
use switch::Rng;

impl World {
    /// Something fails, returns or is repaired.
    pub(super) fn fault(&mut self) -> Result<(), String> {
        let nodes = self.nodes();
        let links: Vec<_> = self
            .graph
            .links()
            .filter(|&link| self.graph.switches().iter().all(|switch| switch.loopback != link))
            .collect();
        match self.draw(15) {
            14 => {
                // The leader dies while it writes a decision.
                if self.steps_until_deciding(600)? {
                    let steps = self.draw(30);
                    self.steps(steps)?;
                    self.replace_controller();
                }
            }
            12 => {
                let n = self.draw(self.controllers.len());
                self.set_controller_clock(n);
            }
            0..3 => {
                let processes: Vec<_> =
                    nodes.into_iter().filter(|node| matches!(node, NodeKey::Process(_))).collect();
                let node = self.pick(&processes).expect("there are some");
                self.kill(node);
            }
            3 => {
                let node = self.pick(&nodes).expect("there are some");
                self.kill(node);
            }
            4..6 => {
                let dead: Vec<_> = self.dead.iter().copied().collect();
                if let Some(node) = self.pick(&dead) {
                    self.boot(node);
                }
            }
            6 => {
                let link = self.pick(&links).expect("there are some");
                self.cut.insert(link);
            }
            7 => self.cut.clear(),
            8 => self.replace_controller(),
            13 => {
                let processes: Vec<_> = self.processes.keys().copied().collect();
                let id = self.pick(&processes).expect("there are some");
                let rep = NodeKey::Rep(self.graph.place(id).expect("there").switch, 0);
                self.kill(NodeKey::Process(id));
                self.kill(rep);
                self.boot(rep);
            }
            9 => {
                // Another one takes over; the old one does not know, and is not heard for a while.
                if self.controllers.len() < 2 {
                    let stall = self.draw(600) as u64;
                    self.controllers[0].stalled_until = self.now + stall * STEP;
                    self.new_controller();
                    self.campaign(1);
                }
            }
            10 => {
                let fault = self.pick(&Fault::ALL).expect("five");
                self.store.inject([Some(fault)]);
            }
            _ => {
                let n = self.draw(self.controllers.len());
                let ids: Vec<_> = self.processes.keys().copied().collect();
                let id = self.pick(&ids).expect("there are some");
                self.declare(n, id);
                // Another one, perhaps while the decision about the first is being written
                if self.draw(2) == 0 && self.steps_until_deciding(300)? {
                    let id = self.pick(&ids).expect("there are some");
                    self.declare(0, id);
                }
            }
        }
        Ok(())
    }

    /// Runs until the first controller writes a decision, for at most `steps` steps. Returns whether it does.
    fn steps_until_deciding(&mut self, steps: usize) -> Result<bool, String> {
        for _ in 0..steps {
            if self.is_deciding() {
                break;
            }
            self.step()?;
        }
        Ok(self.is_deciding())
    }

    /// A controller's clock is set right, or wrong by a time about which nodes' values are refused.
    fn set_controller_clock(&mut self, n: usize) {
        let error = self.draw(6 * AHEAD_MAX as usize) as i64 - 4 * AHEAD_MAX as i64;
        self.controllers[n].clock_error = if self.draw(3) == 0 { 0 } else { error };
    }

    pub(super) fn kill(&mut self, node: NodeKey) {
        self.dead.insert(node);
        for n in 0..self.controllers.len() {
            self.controllers[n].to_nodes.remove(&node);
            self.controllers[n].from_nodes.remove(&node);
            self.input(n, Input::Down(node));
        }
    }

    /// The leader takes a message of a node.
    pub(in super::super) fn tell(&mut self, node: NodeKey, message: Message) {
        self.reply(0, node, message);
        let envelope = self.controllers[0].from_nodes.get_mut(&node).and_then(VecDeque::pop_back);
        self.input(0, Input::FromNode(node, envelope.expect("just sent")));
    }

    pub(in super::super) fn fail(&mut self, id: u32) {
        self.declare(0, ProcessId(id));
    }

    /// The operator declares a process failed to a controller that leads.
    fn declare(&mut self, n: usize, id: ProcessId) {
        let machine = &self.controllers[n].machine;
        let unfailed = |record: &MemberRecord| {
            matches!(record.state, MemberState::Joining | MemberState::Member).then_some(())
        };
        let image = machine.image();
        let present =
            image.and_then(|image| image.member(id)).and_then(|(of, record)| unfailed(record).map(|()| of));
        if let (Some(term), Some(incarnation)) = (machine.term(), present) {
            self.declared.push((term, id, incarnation));
        }
        self.input(n, Input::Fail(id));
    }

    /// What the operator declared failed has failed, unless another controller leads since.
    fn check_declared(&self) -> Result<(), String> {
        let terms: Vec<_> =
            self.controllers.iter().filter_map(|controller| controller.machine.term()).collect();
        let stays = |&(term, id, incarnation): &(Term, ProcessId, Incarnation)| {
            terms == [term] && !self.is_stored_out(id, incarnation)
        };
        match self.declared.iter().copied().find(stays) {
            Some((_, id, incarnation)) => Err(format!("{id} {incarnation:?} was declared failed and stays")),
            None => Ok(()),
        }
    }

    /// A process that is not needed any more starts again.
    pub(in super::super) fn restart(&mut self, id: u32) {
        self.boot(NodeKey::Process(ProcessId(id)));
    }

    pub(in super::super) fn member(&self, id: u32) -> (Incarnation, MemberState) {
        let (incarnation, record) = self.image.member(ProcessId(id)).expect("it has joined");
        (incarnation, record.state)
    }

    /// Returns the number of writes so far, and of those with recalls.
    pub(in super::super) fn writes(&self) -> (usize, usize) {
        let log = self.store.log();
        let has_recall = |changes: &[Change]| {
            let mut image = Image::default();
            image.apply(changes);
            !image.recalls.is_empty()
        };
        (log.len(), log.iter().filter(|(_, changes)| has_recall(changes)).count())
    }

    pub(in super::super) fn recalls(&self) -> usize {
        self.image.recalls.values().map(BTreeMap::len).sum()
    }

    pub(in super::super) fn now(&self) -> Timestamp {
        Timestamp::new(self.clock())
    }

    pub(in super::super) fn check_callbacks(&self) -> Result<(), String> {
        for (id, process) in &self.processes {
            if let Some((of, count)) = process.callbacks.iter().find(|(_, count)| **count > 1) {
                return Err(format!("{id} was called back {count} times for {of:?}"));
            }
        }
        Ok(())
    }

    /// Connects the nodes whose time has come.
    pub(super) fn connect_due(&mut self, n: usize) {
        let due = |(_, at): &(&NodeKey, &u64)| **at <= self.now;
        let due: Vec<_> = self.controllers[n].away.iter().filter(due).map(|(&node, _)| node).collect();
        for node in due {
            self.connect(n, node);
        }
    }

    /// Kills a process for good; its successor registers later.
    pub(in super::super) fn kill_process(&mut self, id: u32) {
        self.kill(NodeKey::Process(ProcessId(id)));
    }

    /// Kills the leader, with all that is under way to and from it; another one begins.
    pub(in super::super) fn replace_controller(&mut self) {
        self.controllers.clear();
        self.new_controller();
    }

    /// Replaces the controller; some nodes connect to the next one after some steps only.
    pub(in super::super) fn replace_controller_late(
        &mut self,
        steps: u64,
        is_late: impl Fn(NodeKey) -> bool,
    ) {
        self.replace_controller();
        let nodes: Vec<_> = self.nodes().into_iter().filter(|&node| is_late(node)).collect();
        for node in nodes {
            self.part(node, self.now + steps * STEP);
        }
    }

    /// Breaks a node's connection with the controllers until a time.
    pub(super) fn part(&mut self, node: NodeKey, until: u64) {
        for n in 0..self.controllers.len() {
            self.controllers[n].to_nodes.remove(&node);
            self.controllers[n].from_nodes.remove(&node);
            self.controllers[n].away.insert(node, until);
            self.input(n, Input::Down(node));
        }
    }

    /// Breaks the connections of a switch and of the processes below with the controllers for good.
    pub(in super::super) fn part_rack(&mut self, switch: u16) {
        let below = self.graph.processes().filter(|(_, place)| place.switch == switch);
        let nodes = below.map(|(id, _)| NodeKey::Process(id)).chain([NodeKey::Rep(switch, 0)]);
        let nodes: Vec<_> = nodes.collect();
        for node in nodes {
            self.part(node, u64::MAX);
        }
    }

    /// Breaks a node's connections with the controllers for good.
    pub(in super::super) fn part_for_good(&mut self, node: NodeKey) {
        self.part(node, u64::MAX);
    }

    /// Cuts or heals all links that begin at a switch.
    pub(in super::super) fn cut_outputs(&mut self, switch: u16, is_cut: bool) {
        let ports: Vec<_> = self.graph.switch(switch).ports.iter().flatten().copied().collect();
        for Port { output, .. } in ports {
            if is_cut {
                self.cut.insert(output)
            } else {
                self.cut.remove(&output)
            };
        }
    }

    /// Returns the number of links that are silent for the first controller.
    pub(in super::super) fn silent_links(&self) -> usize {
        self.controllers[0].machine.silent_links().len()
    }

    /// Cuts or heals the links of a switch with other switches.
    pub(in super::super) fn cut_rack(&mut self, switch: u16, is_cut: bool) {
        let ports: Vec<_> = self.graph.switch(switch).ports.iter().flatten().copied().collect();
        for link in ports.into_iter().flat_map(|port| [port.input, port.output]) {
            if self.is_core(link) {
                if is_cut {
                    self.cut.insert(link)
                } else {
                    self.cut.remove(&link)
                };
            }
        }
    }

    pub(in super::super) fn kill_rep(&mut self, switch: u16) {
        self.kill(NodeKey::Rep(switch, 0));
    }

    pub(in super::super) fn restart_rep(&mut self, switch: u16) {
        self.boot(NodeKey::Rep(switch, 0));
    }

    /// Lets time pass in which nothing happens.
    pub(in super::super) fn skip(&mut self, nanoseconds: u64) {
        self.skipped += nanoseconds;
    }

    pub(in super::super) fn barrier(&self, id: u32) -> u64 {
        self.processes[&ProcessId(id)].barrier
    }

    /// Returns the time of a failed process.
    pub(in super::super) fn failed_at(&self, id: u32) -> Option<u64> {
        let cases = self.image.cases.values();
        cases
            .flat_map(|case| &case.failed)
            .find(|failed| failed.id == ProcessId(id))
            .map(|failed| failed.time)
    }

    /// Returns the stored failures of processes.
    pub(in super::super) fn failures(&self) -> Vec<(ProcessId, Incarnation)> {
        let cases = self.image.cases.values();
        cases.flat_map(|case| &case.failed).map(|failed| (failed.id, failed.incarnation)).collect()
    }

    /// Returns whether the first controller writes a decision.
    pub(in super::super) fn is_deciding(&self) -> bool {
        let status = self.controllers[0].machine.suspicion_status();
        status.is_some_and(|status| status.phase == crate::operator::Phase::Writing)
    }

    pub(in super::super) fn cases(&self) -> usize {
        self.decided.len()
    }

    /// Repairs everything; one controller is left.
    pub(in super::super) fn repair(&mut self) {
        self.cut.clear();
        self.controllers.iter_mut().for_each(|controller| controller.clock_error = 0);
        let dead: Vec<_> = self.dead.iter().copied().collect();
        for node in dead {
            self.boot(node);
        }
        if self.controllers.len() > 1 {
            self.replace_controller();
        }
    }

    /// Everything is as if nothing had ever failed: all are members, and barriers rise.
    pub(in super::super) fn check_settled(&mut self) -> Result<(), String> {
        for (id, process) in &self.processes {
            if !process.admitted || process.failed {
                return Err(format!("{id} is no member: {process:?}, {:?}", self.image.member(*id)));
            }
            if let Some((other, incarnation)) = process.missed {
                return Err(format!("{id} was not notified that {other} failed, incarnation {incarnation}"));
            }
        }
        if self.controllers.iter().all(|controller| controller.machine.suspects()) {
            return Err("a suspicion stays".into());
        }
        self.check_declared()?;
        if let Some((case, record)) = self.image.cases.iter().find(|(_, case)| case.stage != Stage::Resumed) {
            return Err(format!("case {case} stays open: {record:?}"));
        }
        let before: Vec<_> = self.processes.values().map(|process| process.barrier).collect();
        self.steps(2_000)?;
        let rises = self.processes.values().zip(before).all(|(process, before)| process.barrier > before);
        if rises { Ok(()) } else { Err("a barrier stands still".into()) }
    }
}

/// Runs a network in which a leader's last command, that no register has to stand still, is under way for long. Its
/// successor declares the register's process failed meanwhile.
pub(in super::super) fn run_late_command(seed: u64, planted: Option<Planted>) -> Result<(), String> {
    let mut world = World::new(seed, &[2, 1], 1, planted);
    world.steps(3_000)?;
    let id = ProcessId(1);
    world.controllers[0].stalled_until = u64::MAX;
    let place = world.graph.place(id).expect("there");
    world.input(0, Input::Up(NodeKey::Rep(place.switch, 0)));
    world.new_controller();
    world.campaign(1);
    world.steps(200)?;
    world.input(1, Input::Fail(id));
    let steps = world.draw(200);
    world.steps(steps)?;
    world.controllers[0].stalled_until = 0;
    world.steps(2_000)?;
    world.check_callbacks()
}

/// Runs a network whose controller has a wrong clock when a process dies, until it is set right. No other one fails.
pub(in super::super) fn run_wrong_clock(seed: u64, planted: Option<Planted>) -> Result<(), String> {
    let mut draws = Rng::stream(seed, 2);
    let racks: Vec<_> = (0..=draws.below(3)).map(|_| 1 + draws.below(2) as usize).collect();
    let mut world = World::new(seed, &racks, 1 + draws.below(2) as usize, planted);
    world.steps(6_000)?;
    world.check_settled()?;
    world.keeps_memory = true;
    world.set_controller_clock(0);
    world.steps(draws.below(500) as usize)?;
    let at = draws.below(world.processes.len() as u64) as usize;
    let id = *world.processes.keys().nth(at).expect("drawn");
    world.kill_process(id.0);
    world.steps((RESPOND_WITHIN / STEP) as usize * (2 + draws.below(3) as usize))?;
    world.controllers[0].clock_error = 0;
    world.steps(8_000)?;
    let failed: Vec<_> = world.failures().into_iter().map(|(id, _)| id).collect();
    if failed == [id] { Ok(()) } else { Err(format!("{id} has died, and {failed:?} have failed")) }
}

/// Runs a network in which the clocks of members go wrong for good: any number are fast, and one may be slow. The
/// slow one fails, and no other.
pub(in super::super) fn run_wrong_members(seed: u64, planted: Option<Planted>) -> Result<(), String> {
    let mut draws = Rng::stream(seed, 4);
    let racks: Vec<_> = (0..=draws.below(2)).map(|_| 2 + draws.below(3) as usize).collect();
    let mut world = World::new(seed, &racks, 1, planted);
    world.steps(8_000)?;
    world.check_settled()?;
    world.keeps_memory = true;
    let ids: Vec<_> = world.processes.keys().copied().collect();
    let slow = ids[draws.below(ids.len() as u64) as usize];
    let has_slow = ids.len() >= 3 && draws.below(3) > 0;
    let (fast, bound) = (draws.below(5), BEHIND_MAX as i64);
    for &id in &ids {
        let error = if id == slow && has_slow {
            -2 * bound - draws.below(20 * BEHIND_MAX) as i64
        } else if id != slow && draws.below(4) < fast {
            draws.below(20 * BEHIND_MAX) as i64
        } else {
            draws.below(BEHIND_MAX / 2) as i64 - bound / 4
        };
        world.processes.get_mut(&id).expect("there").clock_error = error;
    }
    world.steps(12_000)?;
    let failed: Vec<_> = world.failures().into_iter().map(|(id, _)| id).collect();
    let expected = if has_slow { vec![slow] } else { Vec::new() };
    if failed != expected {
        return Err(format!("{expected:?} are slow, and {failed:?} have failed"));
    }
    let others = ids.iter().filter(|id| !failed.contains(id)).map(|id| id.0);
    let before: Vec<_> = others.map(|id| (id, world.barrier(id))).collect();
    world.steps(2_000)?;
    let stands = before.into_iter().find(|&(id, before)| world.barrier(id) <= before);
    stands.map_or(Ok(()), |(id, _)| Err(format!("the barrier of {id} stands still")))
}

/// Runs a network in which a process dies, and its switch's representative restarts at about the same time. No other
/// process fails.
pub(in super::super) fn run_double_death(seed: u64, planted: Option<Planted>) -> Result<(), String> {
    let mut draws = Rng::stream(seed, 3);
    let racks: Vec<_> = (0..=draws.below(3)).map(|_| 1 + draws.below(3) as usize).collect();
    let mut world = World::new(seed, &racks, 1 + draws.below(2) as usize, planted);
    world.steps(8_000)?;
    world.check_settled()?;
    world.keeps_memory = true;
    let at = draws.below(world.processes.len() as u64) as usize;
    let id = *world.processes.keys().nth(at).expect("drawn");
    let switch = world.graph.place(id).expect("there").switch;
    world.kill_process(id.0);
    world.steps(draws.below(100) as usize)?;
    world.kill_rep(switch);
    world.steps(draws.below(200) as usize)?;
    world.restart_rep(switch);
    world.steps(12_000)?;
    world.check_callbacks()?;
    let failed: Vec<_> = world.failures().into_iter().map(|(id, _)| id).collect();
    if failed != [id] {
        return Err(format!("{id} has died, and {failed:?} have failed"));
    }
    world.keeps_memory = false;
    world.restart(id.0);
    world.steps(8_000)?;
    world.check_settled()
}

/// Runs a drawn network with drawn faults. Returns the number of cases.
pub(in super::super) fn run(seed: u64, planted: Option<Planted>) -> Result<usize, String> {
    let mut draws = Rng::stream(seed, 1);
    let racks: Vec<_> = (0..=draws.below(3)).map(|_| 1 + draws.below(2) as usize).collect();
    let mut world = World::new(seed, &racks, 1 + draws.below(2) as usize, planted);
    world.steps(1_500)?;
    world.reconnects_late = draws.below(2) == 0;
    for _ in 0..draws.below(6) {
        world.fault()?;
        let steps = [20, 150, 1_000][draws.below(3) as usize];
        world.steps(draws.below(steps) as usize)?;
        world.check_callbacks()?;
    }
    world.repair();
    for _ in 0..12 {
        world.steps(1_000)?;
    }
    world.check_callbacks()?;
    world.check_settled()?;
    Ok(world.cases())
}
