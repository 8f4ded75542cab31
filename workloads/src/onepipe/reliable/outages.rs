//! Outages of the parts of a network, one after the other, while applications use both services: what the
//! surviving processes see of each (1Pipe, section 5.2).

use super::measure::Testbed;
use super::recovery::{Broken, REROUTED_AFTER};
use controller::machine::NodeKey;
use onepipe::ProcessId;
use sim::Fault;
use switch::Nanos;

/// Time within which everything is settled at the end
const SETTLES_WITHIN: Nanos = Nanos::from_millis(20);
/// Time within which a representative leaves
const LEAVES_WITHIN: Nanos = Nanos::from_millis(10);

/// What happens at the beginning of an interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outage {
    /// Nothing
    Nothing,
    /// A host crashes
    Host(usize),
    /// A host's link is cut; it reaches the controller, and registers again after its failure
    Link(usize),
    /// A link between a spine and a core switch is cut. Routes avoid it after 10 us
    CoreLink,
    /// The controller ends
    Controller,
    /// A controller starts with what is stored
    NewController,
    /// The switch of the last rack crashes, by which its hosts reach the controller, too
    Rack,
    /// A representative of a switch ends that has another one
    Representative(usize),
    /// It starts again
    NewRepresentative(usize),
    /// An operator has the other one leave, as soon as the new one serves alone, and it starts again
    Drain(usize),
    /// Hosts, their links and switches return; a core link does not
    Return,
}

/// What the hosts that are not separated see in an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interval {
    /// Its length
    pub lasts: Nanos,
    /// Number of hosts that no outage has separated
    pub hosts: usize,
    /// Number of those that are members of the reliable service at its end
    pub members: usize,
    /// Messages of the best-effort and of the reliable service that were delivered
    pub delivered: [u64; 2],
    /// Reliable scatterings that were recalled
    pub recalled: u64,
    /// Processes that the controller has declared failed
    pub failed: usize,
    /// Longest time in which the best-effort and the commit barrier of one of the hosts did not rise
    pub stall: [Nanos; 2],
}

impl Testbed {
    /// Lets an outage happen, and runs for `time`, after a representative has left that an operator drains.
    ///
    /// # Errors
    /// A violation that a step shows, or a representative does not leave.
    pub fn interval(&mut self, outage: Outage, time: Nanos) -> Result<Interval, String> {
        let (begin, failed, recalled) =
            (self.system.now(), self.system.failures().len(), self.system.totals().recalled);
        self.begin(outage);
        let hosts: Vec<usize> = (0..self.tree.all_hosts()).filter(|n| !self.absent.contains(n)).collect();
        for &host in &hosts {
            self.host_mut(host).meter.barriers.iter_mut().for_each(|rises| rises.stall = Nanos::ZERO);
        }
        self.run(REROUTED_AFTER)?;
        if outage == Outage::CoreLink {
            self.reroute(Broken::CoreLink);
        }
        if let Outage::Drain(switch) = outage {
            self.system.drain((switch as u16, 1), self.system.now() + LEAVES_WITHIN)?;
        }
        self.run(time.since(REROUTED_AFTER))?;
        let now = self.system.now();
        Ok(Interval {
            lasts: now.since(begin),
            hosts: hosts.len(),
            members: hosts.iter().filter(|&&host| self.system.admitted(host).is_some()).count(),
            delivered: self.system.delivered(begin, now),
            recalled: self.system.totals().recalled - recalled,
            failed: self.system.failures().len() - failed,
            stall: [0, 1].map(|service| self.longest_stall(&hosts, service)),
        })
    }

    /// Returns the longest time in which a barrier of one of the hosts did not rise, up to now.
    fn longest_stall(&self, hosts: &[usize], service: usize) -> Nanos {
        let stall = |&host: &usize| {
            let rises = &self.system.host(host).meter.barriers[service];
            let network = &self.system.network;
            let since = rises.rose.map(|at| network.world.when(network.hosts[host], at));
            rises.stall.max(since.map_or(Nanos::ZERO, |at| self.system.now().since(at)))
        };
        hosts.iter().map(stall).max().unwrap_or_default()
    }

    fn begin(&mut self, outage: Outage) {
        let rack = self.tree.all_hosts() - self.tree.hosts..self.tree.all_hosts();
        let network = &self.system.network;
        let fault = match outage {
            Outage::Nothing | Outage::Drain(_) => return,
            Outage::Representative(switch) => Fault::Crash(network.representatives[switch]),
            Outage::NewRepresentative(switch) => Fault::Restart(network.representatives[switch]),
            Outage::Host(host) => Fault::Crash(network.hosts[host]),
            Outage::Link(host) => Fault::Cut(vec![network.access[host]]),
            Outage::CoreLink => return self.fail(Broken::CoreLink),
            Outage::Rack => {
                rack.for_each(|host| self.cut_off(host, true));
                return self.fail(Broken::Tor);
            }
            Outage::Controller => return self.system.stop_controller(0),
            Outage::NewController => return self.system.start_controller(),
            Outage::Return => return self.return_all(),
        };
        match outage {
            Outage::Host(host) => self.cut_off(host, true),
            Outage::Link(host) => _ = self.absent.insert(host),
            _ => {}
        }
        let now = self.system.now();
        self.system.network.world.schedule(now, fault);
    }

    fn cut_off(&mut self, host: usize, is_cut: bool) {
        if is_cut {
            self.absent.insert(host);
        } else {
            self.host_mut(host).meter.barriers = Default::default();
        }
        self.system.cut_off(NodeKey::Process(ProcessId(host as u32)), is_cut);
    }

    fn return_all(&mut self) {
        for host in self.absent.clone() {
            self.cut_off(host, false);
        }
        let network = &mut self.system.network;
        let tors = self.tree.pods * self.tree.racks;
        let nodes = network.hosts.iter().copied().chain([network.switches[tors - 1]]);
        let down: Vec<_> = nodes.filter(|&node| network.world.is_down(node)).collect();
        let links = core::mem::take(&mut self.absent).into_iter().map(|host| network.access[host]).collect();
        let now = network.world.now();
        for fault in down.into_iter().map(Fault::Restart).chain([Fault::Heal(links)]) {
            network.world.schedule(now, fault);
        }
    }

    /// Stops sending, runs until everything is settled, and checks the run as a whole: one order, all or none of
    /// each scattering, one time for each failure.
    ///
    /// # Errors
    /// A violation, or it does not settle within 20 ms.
    pub fn finish(&mut self) -> Result<(), String> {
        for host in 0..self.tree.all_hosts() {
            self.host_mut(host).stop_sending();
        }
        self.system.run_until_settled(SETTLES_WITHIN)?;
        self.system.check()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::onepipe::FatTree;
    use representative::config::Incarnation;

    #[test]
    fn both_services_go_on_through_outages_and_all_hosts_return() {
        let mut tree = FatTree::of_hops(Incarnation::Host, 3);
        tree.every = Nanos::from_micros(30);
        let mut bed = Testbed::of_applications(&tree, 1).unwrap();
        let all = tree.all_hosts();
        let mut interval = |outage| bed.interval(outage, Nanos::from_millis(1)).unwrap();
        let first = interval(Outage::Nothing);
        assert_eq!((first.members, first.failed, first.recalled), (all, 0, 0), "{first:?}");
        let host = interval(Outage::Host(1));
        assert_eq!((host.hosts, host.members, host.failed), (all - 1, all - 1, 1), "{host:?}");
        let without = interval(Outage::Controller);
        assert!(without.delivered.iter().all(|&delivered| delivered > 100), "{without:?}");
        assert_eq!((without.members, without.failed), (all - 1, 0), "{without:?}");
        interval(Outage::NewController);
        let link = interval(Outage::Link(2));
        assert_eq!((link.members, link.failed), (all - 2, 1), "{link:?}");
        interval(Outage::Return);
        bed.finish().unwrap();
        let last = bed.interval(Outage::Nothing, Nanos::from_micros(50)).unwrap();
        assert_eq!((last.hosts, last.members), (all, all), "{last:?}");
    }
}
