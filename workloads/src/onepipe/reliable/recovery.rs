//! Recovery from failures of the reliable service (1Pipe, figure 10): for how long the commit barrier stands
//! still at the surviving processes, and in which steps that time passes.

use super::host::Host;
use super::measure::Testbed;
use controller::record::Stage;
use sim::{Fault, Switch};
use switch::Nanos;
use switch::forward::Forward;

/// Time after which routes avoid a part above the racks that has failed
pub(super) const REROUTED_AFTER: Nanos = Nanos::from_micros(10);
/// Longest time of a recovery
const RECOVERS_WITHIN: Nanos = Nanos::from_millis(20);

/// A part that fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// A host
    Host,
    /// The switch of a rack
    Tor,
    /// A link between a spine and a core switch
    CoreLink,
    /// A core switch
    CoreSwitch,
}

/// Times of a recovery's steps in nanoseconds, to the microsecond; each begins where the one before ends.
/// Steps that a failure does not have take no time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Steps {
    /// Until the controller suspects a failure
    pub detect: u64,
    /// Until it has waited for further reports
    pub gather: u64,
    /// Until everything around the suspects stands still. Determining who failed takes no time here
    pub freeze: u64,
    /// Until the decision is stored
    pub store: u64,
    /// Until the last process is called back: it has discarded
    pub broadcast: u64,
    /// Until all processes have recalled, all callbacks have returned, and that is stored
    pub callback: u64,
    /// Until the commit barrier has risen at the last process
    pub resume: u64,
}

impl Steps {
    /// Returns the time of all steps, in nanoseconds.
    pub const fn total(&self) -> u64 {
        let Self { detect, gather, freeze, store, broadcast, callback, resume } = *self;
        detect + gather + freeze + store + broadcast + callback + resume
    }
}

/// What a failure has led to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Recovery {
    /// Mean over the surviving processes of the longest time in which the commit barrier did not rise (ns)
    pub stall_ns: f64,
    /// The longest of these times (ns)
    pub longest_ns: u64,
    /// The steps
    pub steps: Steps,
    /// Number of processes that failed
    pub failed: usize,
    /// Number of surviving processes
    pub survivors: usize,
}

/// Moments at which steps end.
#[derive(Debug, Default)]
struct Moments {
    suspected: Option<Nanos>,
    gathered: Option<Nanos>,
    frozen: Option<Nanos>,
    decided: Option<Nanos>,
    called: Option<Nanos>,
    completed: Option<Nanos>,
}

impl Moments {
    fn steps(&self, begin: Nanos, end: Nanos) -> Steps {
        let mut last = begin;
        let mut step = |moment: Option<Nanos>| {
            let at = moment.unwrap_or(last).max(last);
            let took = at.since(last).0;
            last = at;
            took
        };
        Steps {
            detect: step(self.suspected),
            gather: step(self.gathered),
            freeze: step(self.frozen),
            store: step(self.decided),
            broadcast: step(self.called),
            callback: step(self.completed),
            resume: step(Some(end)),
        }
    }
}

impl Testbed {
    /// Lets a part fail, with writes that take `store_latency`, and waits until all surviving processes have recovered.
    ///
    /// # Errors
    /// A violation, or they do not recover within 20 ms.
    pub fn break_part(&mut self, broken: Broken, store_latency: Nanos) -> Result<Recovery, String> {
        self.system.plan.store_latency = store_latency.0;
        let survivors = self.survivors(broken);
        let (begin, cases) = (self.system.now(), self.system.image.cases.len());
        let failed = self.system.failures().len();
        for &host in &survivors {
            self.host_mut(host).meter.barriers[1].stall = Nanos::ZERO;
        }
        self.fail(broken);
        let mut moments = Moments::default();
        loop {
            let now = self.system.now();
            if now > begin + RECOVERS_WITHIN {
                return Err(format!("no recovery: {moments:?} {}", self.system.describe()));
            }
            if now.since(begin) == REROUTED_AFTER {
                self.reroute(broken);
            }
            self.run(Nanos::from_micros(1))?;
            self.see_steps(&mut moments, &survivors, cases);
            let Some(completed) = moments.completed else { continue };
            // The barrier has risen since at all of them, and goes on: the link that was waited for has left.
            let network = &self.system.network;
            let rose = |host: usize| {
                let at = self.system.host(host).meter.barriers[1].rose?;
                Some(network.world.when(network.hosts[host], at))
            };
            let risen = |&host: &usize| rose(host).is_some_and(|at| at > completed);
            if survivors.iter().all(risen) {
                let end = self.system.now();
                self.run(Nanos::from_micros(200))?;
                return Ok(self.recovery(&moments, [begin, end], failed, &survivors));
            }
        }
    }

    fn recovery(
        &self,
        moments: &Moments,
        [begin, end]: [Nanos; 2],
        failed: usize,
        survivors: &[usize],
    ) -> Recovery {
        let stalls: Vec<u64> =
            survivors.iter().map(|&n| self.system.host(n).meter.barriers[1].stall.0).collect();
        Recovery {
            stall_ns: stalls.iter().sum::<u64>() as f64 / stalls.len() as f64,
            longest_ns: stalls.iter().copied().max().unwrap_or(0),
            steps: moments.steps(begin, end),
            failed: self.system.failures().len() - failed,
            survivors: survivors.len(),
        }
    }

    pub(super) fn host_mut(&mut self, n: usize) -> &mut Host {
        let node = self.system.network.hosts[n];
        self.system.network.world.node_mut(node)
    }

    /// Returns the hosts that do not fail. The last host or the last rack does.
    fn survivors(&self, broken: Broken) -> Vec<usize> {
        let hosts = self.tree.all_hosts();
        let failed = match broken {
            Broken::Host => 1,
            Broken::Tor => self.tree.hosts,
            Broken::CoreLink | Broken::CoreSwitch => 0,
        };
        (0..hosts - failed).collect()
    }

    pub(super) fn fail(&mut self, broken: Broken) {
        let tree = &self.tree;
        let (tors, spines) = (tree.pods * tree.racks, tree.pods * tree.spines);
        let network = &mut self.system.network;
        let fault = match broken {
            Broken::Host => Fault::Crash(network.hosts[tree.all_hosts() - 1]),
            Broken::Tor => Fault::Crash(network.switches[tors - 1]),
            // The first core switch's link to the first pod; links of spines to racks come before.
            Broken::CoreLink => Fault::Cut(vec![network.uplinks[spines * tree.racks]]),
            Broken::CoreSwitch => Fault::Crash(network.switches[tors + spines]),
        };
        let now = network.world.now();
        network.world.schedule(now, fault);
    }

    /// Changes the racks' routes, so that they avoid what has failed above them.
    pub(super) fn reroute(&mut self, broken: Broken) {
        if matches!(broken, Broken::CoreLink | Broken::CoreSwitch) {
            for (switch, router) in self.tree.detour_routers(0, 1) {
                let node = self.system.network.switches[switch];
                self.system.network.world.node_mut::<Switch<Forward>>(node).functions[0] = router;
            }
        }
    }

    fn see_steps(&self, moments: &mut Moments, survivors: &[usize], cases: usize) {
        use controller::operator::Phase;
        let now = self.system.now();
        let case = self.system.image.cases.iter().nth(cases);
        let phase = self.system.leader().and_then(|leader| leader.machine().suspicion_status());
        let phase = phase.map(|status| status.phase);
        let mark = |moment: &mut Option<Nanos>, is_reached: bool| {
            if is_reached && moment.is_none() {
                *moment = Some(now);
            }
        };
        mark(&mut moments.suspected, phase.is_some() || case.is_some());
        mark(&mut moments.gathered, phase.is_some_and(|phase| phase != Phase::Gathering) || case.is_some());
        mark(&mut moments.frozen, phase == Some(Phase::Writing) || case.is_some());
        let Some((&number, record)) = case else { return };
        mark(&mut moments.decided, true);
        let is_called = |&host: &usize| self.system.was_called(host, number);
        mark(&mut moments.called, !record.failed.is_empty() && survivors.iter().all(is_called));
        mark(&mut moments.completed, record.stage != Stage::Decided);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::onepipe::FatTree;
    use crate::onepipe::reliable::Load;
    use representative::config::Incarnation;

    /// Returns the recovery of a tree whose hosts are this many switches apart, with writes that take 200 us.
    fn recovery(hops: u32, broken: Broken) -> Recovery {
        let mut tree = FatTree::of_hops(Incarnation::Host, hops);
        tree.every = Nanos::from_micros(20);
        let mut bed = Testbed::new(&tree, &Load::light(), 1).unwrap();
        bed.break_part(broken, Nanos::from_micros(200)).unwrap()
    }

    #[test]
    fn no_barrier_rises_while_a_dead_link_is_being_removed() {
        let recovery = recovery(5, Broken::CoreLink);
        assert_eq!((recovery.failed, recovery.survivors), (0, 32));
        assert!(recovery.steps.store >= 199_000, "{recovery:?}");
        assert!((recovery.stall_ns - recovery.steps.total() as f64).abs() < 15_000.0, "{recovery:?}");
    }

    #[test]
    fn steps_add_up_to_the_time_for_which_barriers_stand_still() {
        let recovery = recovery(3, Broken::Host);
        assert_eq!((recovery.failed, recovery.survivors), (1, 15));
        let Steps { detect, gather, store, .. } = recovery.steps;
        assert!(detect >= 29_000 && gather >= 5_000 && store >= 199_000, "{recovery:?}");
        assert!((recovery.stall_ns - recovery.steps.total() as f64).abs() < 20_000.0, "{recovery:?}");
    }
}
