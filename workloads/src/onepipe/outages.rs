//! Outages of parts of a network, as a seed draws them: they can be scheduled, compared with what
//! representatives report, and left out one by one until only those that a failure needs are left.

use super::{Network, Tree};
use representative::{Command, LinkId, Representative};
use sim::{Fault, LinkId as Wire, NodeId, Switch};
use switch::{Nanos, Probability};

/// Node of a network, by its number among the nodes of its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// A host
    Host(usize),
    /// A switch
    Switch(usize),
    /// The node that keeps a switch's barriers: the switch itself, or the representative beside it
    Keeper(usize),
}

/// Link of a network, by its number among the links of its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wiring {
    /// Link of a host
    Access(usize),
    /// Link of a switch to the one above it
    Uplink(usize),
    /// Link between a switch and its representative
    Beside(usize),
}

/// What fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failing {
    /// A node crashes, and restarts with empty memory
    Crash(Part),
    /// A node stops, and continues
    Pause(Part),
    /// A link loses all frames
    Cut(Wiring),
    /// A link loses the frames that this node sends
    Mute(Part, Wiring),
}

/// Failure of a part of a network for some time of the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outage {
    /// Its beginning
    pub from: Nanos,
    /// Its end
    pub until: Nanos,
    /// What fails
    pub what: Failing,
}

/// Command of an operator who is about to take a link down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Removal {
    /// When the representative gets the command
    pub at: Nanos,
    /// Number of the representative
    pub keeper: usize,
    /// The link
    pub link: LinkId,
}

/// Network with everything that happens to it.
#[derive(Clone, Debug)]
pub struct Trial {
    /// The network
    pub tree: Tree,
    /// Outages
    pub outages: Vec<Outage>,
    /// Commands of the operator
    pub removals: Vec<Removal>,
}

impl Trial {
    /// Returns the end of the last outage, or the time of the last command if that is later.
    pub fn last_fault(&self) -> Nanos {
        let ends = self.outages.iter().map(|outage| outage.until);
        ends.chain(self.removals.iter().map(|removal| removal.at)).max().unwrap_or_default()
    }

    /// Returns the beginning of the first outage, or the time of the first command if that is earlier.
    pub fn first_fault(&self) -> Option<Nanos> {
        let begins = self.outages.iter().map(|outage| outage.from);
        begins.chain(self.removals.iter().map(|removal| removal.at)).min()
    }

    /// Builds the network, and runs it until `until` with its outages and commands.
    pub fn run(&self, seed: u64, until: Nanos) -> Network {
        let mut network = self.tree.build(seed);
        network.world.record_losses();
        for outage in &self.outages {
            network.schedule(outage);
        }
        let mut removals = self.removals.clone();
        removals.sort_by_key(|removal| removal.at);
        for removal in removals {
            network.run_until(removal.at);
            network.command(removal.keeper, Command::Remove(removal.link));
        }
        network.run_until(until);
        network
    }

    /// Returns the smallest trial found that fails as well: without the outages, commands and impairments
    /// that are not needed.
    #[must_use]
    pub fn smallest(&self, fails: impl Fn(&Self) -> bool) -> Self {
        let mut smallest = self.clone();
        let mut attempt = |changed: Self| {
            let is_smaller = fails(&changed);
            if is_smaller {
                smallest = changed;
            }
            is_smaller
        };
        let mut trial = self.clone();
        for change in [quieter_links, equal_clocks, stay, on_one_worker] {
            let mut changed = trial.clone();
            change(&mut changed.tree);
            if attempt(changed.clone()) {
                trial = changed;
            }
        }
        for n in (0..self.outages.len()).rev() {
            let mut changed = trial.clone();
            changed.outages.remove(n);
            if attempt(changed.clone()) {
                trial = changed;
            }
        }
        for n in (0..self.removals.len()).rev() {
            let mut changed = trial.clone();
            changed.removals.remove(n);
            if attempt(changed.clone()) {
                trial = changed;
            }
        }
        smallest
    }
}

/// Removes the random impairments of links.
fn quieter_links(tree: &mut Tree) {
    let link = &mut tree.link;
    (link.loss, link.duplicate, link.reorder) = (Probability::NEVER, Probability::NEVER, Probability::NEVER);
    link.jitter = Nanos::ZERO;
}

/// Makes all clocks exact.
fn equal_clocks(tree: &mut Tree) {
    (tree.skew_ns, tree.drift_ppb, tree.wrong_host, tree.wrong_keepers) = (0, 0, None, None);
}

/// Lets all hosts stay.
fn stay(tree: &mut Tree) {
    tree.behaviour.leaves = Probability::NEVER;
}

/// Lets all switches run on one worker.
fn on_one_worker(tree: &mut Tree) {
    tree.workers = sim::Workers::ONE;
}

impl Tree {
    /// Returns the number of links of a switch.
    pub fn links_of(&self, switch: usize) -> usize {
        self.fanout + usize::from(switch + 1 < self.switches())
    }

    /// Returns the link of the network at a link of a switch.
    pub fn wire_at(&self, switch: usize, link: LinkId) -> Wiring {
        self.way(switch, link).1.get(1).map_or(Wiring::Beside(switch), |&(wire, _)| wire)
    }

    /// Returns the nodes that send to a switch, each with its link.
    pub fn senders_to(&self, switch: usize) -> Vec<(Part, Wiring)> {
        let links = (0..self.links_of(switch)).map(|link| self.way(switch, LinkId(link as u16)).1);
        links.filter_map(|wires| wires.get(1).map(|&(wire, sender)| (sender, wire))).collect()
    }

    /// Returns all links, those to representatives included.
    pub fn wires(&self) -> Vec<Wiring> {
        let beside = (0..self.switches()).filter(|&n| self.is_bridge(n)).map(Wiring::Beside);
        let access = (0..self.hosts()).map(Wiring::Access);
        access.chain((1..self.switches()).map(|n| Wiring::Uplink(n - 1))).chain(beside).collect()
    }
}

impl Network {
    /// Gives a representative of barriers a command, which it executes before its next frame or timer.
    pub fn command(&mut self, representative: usize, command: Command) {
        if let Command::Remove(link) = command {
            self.record.remove(Removal { at: self.world.now(), keeper: representative, link });
        }
        let switch: &mut Switch<Representative> = self.world.node_mut(self.representatives[representative]);
        // Those for commit registers are for a switch with one worker.
        for worker in 1..switch.functions.len() {
            match &command {
                Command::Clock(sample) => switch.command(worker, Command::Clock(*sample)),
                Command::Remove(link) => switch.command(worker, Command::Remove(*link)),
                Command::PublishGauges => switch.command(worker, Command::PublishGauges),
                Command::Introduce(_) | Command::Configure(_) | Command::Learn(_) => {}
            }
        }
        switch.command(0, command);
    }

    /// Returns a node.
    pub fn node_of(&self, part: Part) -> NodeId {
        match part {
            Part::Host(n) => self.hosts[n],
            Part::Switch(n) => self.switches[n],
            Part::Keeper(n) => self.representatives[n],
        }
    }

    /// Returns a link of the world; `None` if the switch has no representative beside it.
    pub fn wire_of(&self, wiring: Wiring) -> Option<Wire> {
        match wiring {
            Wiring::Access(n) => self.access.get(n).copied(),
            Wiring::Uplink(n) => self.uplinks.get(n).copied(),
            Wiring::Beside(n) => {
                let ends = [self.switches[n], self.representatives[n]];
                self.world.links().find(|&link| self.world.ends(link) == ends)
            }
        }
    }

    /// Schedules an outage, and records it for the oracle.
    pub fn schedule(&mut self, outage: &Outage) {
        let Some((begin, end)) = self.faults(outage.what) else { return };
        self.world.schedule(outage.from, begin);
        self.world.schedule(outage.until, end);
        self.record.outages.push(*outage);
    }

    pub(super) fn faults(&self, what: Failing) -> Option<(Fault, Fault)> {
        Some(match what {
            Failing::Crash(part) => {
                let node = self.node_of(part);
                (Fault::Crash(node), Fault::Restart(node))
            }
            Failing::Pause(part) => {
                let node = self.node_of(part);
                (Fault::Pause(node), Fault::Resume(node))
            }
            Failing::Cut(wiring) => {
                let wires = vec![self.wire_of(wiring)?];
                (Fault::Cut(wires.clone()), Fault::Heal(wires))
            }
            Failing::Mute(part, wiring) => {
                let (node, wires) = (self.node_of(part), vec![self.wire_of(wiring)?]);
                (Fault::Mute(node, wires.clone()), Fault::Unmute(node, wires))
            }
        })
    }
}
