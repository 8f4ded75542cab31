//! What the suites with outages have in common: they draw a trial from a seed, run it, and check it from
//! outside. A trial that fails is made smaller before it is reported.

use sim::Workers;
use switch::{Nanos, Probability, Rng};
use workloads::onepipe::{
    Change, ChangeKind, Conditions, Eligible, Explained, Failing, Network, Outage, Tree, Trial,
};

use crate::environment;
use representative::config::Pace;

/// Seeds of each suite in `make test`; `make soak` runs others.
pub(super) const SEEDS: u64 = 40;
/// Time after the last fault within which links that have died rejoin: with their first beacon
const REJOINS_WITHIN: Nanos = Nanos::from_micros(90);
/// Time after which a sender has noticed that a receiver has restarted, beyond the timeout of its messages
const NOTICES_WITHIN: Nanos = Nanos::from_micros(40);
/// Time for which hosts send after that
const SENDS_FOR: Nanos = Nanos::from_micros(40);

/// Counts over all seeds.
#[derive(Debug, Default)]
pub(super) struct Totals {
    pub(super) eligible: Eligible,
    /// Messages that were sent when all faults had ended
    pub(super) recovered: usize,
    pub(super) delivered: usize,
    /// Nodes that keep barriers by a wrong clock
    pub(super) wrong_clocks: usize,
    /// Starts of processes after a crash
    pub(super) restarts: usize,
    pub(super) left: usize,
    pub(super) dead: u64,
    pub(super) joined: u64,
    /// Links that were removed because they were behind
    pub(super) evicted: usize,
    pub(super) explained: Explained,
}

impl Totals {
    /// Asserts that the question for late packets was asked for at least half of all packets, and that
    /// removed links excused some.
    pub(super) fn assert_eligible(&self) {
        let Eligible { arrivals, eligible, excused } = self.eligible;
        assert!(2 * eligible >= arrivals, "most packets are excused: {self:?}");
        assert!(excused > 0, "no packet was late: {self:?}");
    }
}

/// Suite of trials.
pub(super) struct Suite {
    pub(super) name: &'static str,
    pub(super) draw: fn(u64) -> Trial,
    /// Time for which a link that takes part again may have messages below the barrier of its output
    pub(super) settled: fn(&Tree) -> Nanos,
    /// Whether messages may be late from the beginning, because links reorder or duplicate
    pub(super) is_disorderly: bool,
}

impl Suite {
    /// Runs and checks a trial.
    pub(super) fn run(&self, trial: &Trial, seed: u64, totals: &mut Totals) -> Result<(), String> {
        let tree = &trial.tree;
        let mut until = tree.lasts + Nanos::from_micros(100);
        let mut network = trial.run(seed, until);
        while network.each_host().any(|host| !host.is_settled()) && until < Nanos::from_millis(5) {
            until = until + Nanos::from_micros(50);
            network.run_until(until);
        }
        // The last acknowledged messages wait for the barrier.
        let longest = if self.is_disorderly { tree.link.reorder_by } else { Nanos::ZERO };
        let latest = Nanos(longest.0 * 2 * u64::from(tree.levels + 1));
        network.run_until(until + Nanos::from_micros(60) + latest);
        let excused: Vec<usize> = tree.wrong_host.iter().map(|&(host, _)| host).collect();
        network.check_order()?;
        network.check_fates_except(&excused)?;
        if !self.is_disorderly {
            totals.eligible.add(&network.check_late(tree, (self.settled)(tree), &excused)?);
        }
        network.check_left(tree)?;
        network.check_removed(tree)?;
        totals.recovered +=
            network.check_recovered(tree, trial.last_fault() + recovers_within(tree), &excused)?;
        if excused.is_empty() {
            let first = if self.is_disorderly { Some(Nanos::ZERO) } else { trial.first_fault() };
            let is_paused = |outage: &Outage| matches!(outage.what, Failing::Pause(_));
            let pauses = trial.outages.iter().any(is_paused);
            let drawn = Conditions { late_from: first, small: false, pauses };
            totals.explained.add(&network.check_losses(&drawn)?);
        }
        let keepers = 0..tree.switches();
        totals.wrong_clocks += keepers.filter(|&n| tree.keeper_off_by(n) != 0).count();
        count(&network, totals);
        Ok(())
    }

    /// Runs all seeds. Panics with the smallest trial that fails as well as the first seed that fails.
    pub(super) fn check(&self, seeds: impl Iterator<Item = u64>) -> Totals {
        let mut totals = Totals::default();
        for seed in seeds {
            let trial = (self.draw)(seed);
            if let Err(what) = self.run(&trial, seed, &mut totals) {
                panic!("{}, seed {seed}: {what}\n{}", self.name, self.smallest(&trial, seed));
            }
        }
        totals
    }

    /// Returns a description of the smallest trial found that fails.
    pub(super) fn smallest(&self, trial: &Trial, seed: u64) -> String {
        let run = |trial: &Trial| self.run(trial, seed, &mut Totals::default());
        let smallest = trial.smallest(|trial| run(trial).is_err());
        format!("Smallest trial: {smallest:#?}\n{}", run(&smallest).err().unwrap_or_default())
    }

    /// Returns the first seed that finds a planted bug, with a violation that contains `question`.
    #[cfg(debug_assertions)]
    pub(super) fn find(
        &self,
        bug: &dyn core::fmt::Debug,
        question: &str,
        plant: impl Fn(&mut Tree),
    ) -> Option<(u64, String)> {
        environment::find_bug(self.name, bug, 1..1001, |seed| {
            let mut trial = (self.draw)(seed);
            plant(&mut trial.tree);
            let what = self.run(&trial, seed, &mut Totals::default()).err()?;
            what.contains(question).then_some(what)
        })
    }
}

fn count(network: &Network, totals: &mut Totals) {
    for host in network.each_host() {
        totals.delivered += host.delivered.len();
        totals.restarts += host.incarnations().len() - 1;
        totals.left += usize::from(host.has_left());
    }
    let evicted = |change: &&Change| matches!(change.kind, ChangeKind::Evicted(_));
    totals.evicted += network.record.changes.iter().filter(evicted).count();
    for keeper in 0..network.representatives.len() {
        totals.dead += network.counters(keeper).dead.get();
        totals.joined += network.counters(keeper).joined.get();
    }
}

/// Draws a tree whose links keep the order of frames.
pub(super) fn orderly_tree(seed: u64, rng: &mut Rng) -> Tree {
    let incarnation = *rng.pick(&super::ALL);
    let (levels, fanout) = *rng.pick(&[(1, 2), (1, 3), (2, 2), (2, 2), (2, 3), (3, 2)]);
    let mut tree = Tree::new(incarnation, levels, fanout);
    tree.incarnations = (rng.below(3) == 0).then_some(seed);
    tree.pace = if rng.below(4) == 0 { Pace::Instants } else { Pace::Passing };
    tree.every = Nanos(rng.between(1500, 6000));
    tree.skew_ns = rng.below(2000);
    tree.drift_ppb = 100_000;
    tree.link.jitter = Nanos(rng.below(500));
    if rng.below(2) == 0 {
        tree.link.loss = Probability::new(rng.below(20) as f64 / 1000.0).unwrap();
    }
    tree.link.rate_bps = *rng.pick(&[10_000_000_000, 100_000_000_000]);
    tree.join_window = Nanos(rng.between(40_000, 300_000));
    tree.behaviour.records = true;
    tree.behaviour.timeout = Nanos::from_micros(rng.between(40, 100));
    tree.behaviour.at_once = Probability::percent(*rng.pick(&[0, 50, 100]));
    // A separate stream, so that all other draws of the seed stay the same.
    if Rng::stream(seed, 0x776f_726b).below(2) == 0 {
        tree.workers = Workers::of_senders(seed);
    }
    tree
}

/// Returns the time after the last fault from which on messages have to be delivered again.
fn recovers_within(tree: &Tree) -> Nanos {
    REJOINS_WITHIN.max(tree.behaviour.timeout + NOTICES_WITHIN)
}

/// Sets the time for which hosts send, such that the network has time to recover.
pub(super) fn let_recover(mut trial: Trial) -> Trial {
    let recovered = trial.last_fault().max(trial.tree.starts_sending()) + recovers_within(&trial.tree);
    trial.tree.lasts = recovered + SENDS_FOR;
    trial
}

/// Draws the beginning and the end of an outage.
pub(super) fn span(tree: &Tree, most: u64, rng: &mut Rng) -> (Nanos, Nanos) {
    let from = Nanos(rng.between(5000, tree.starts_sending().0 + 60_000));
    (from, from + Nanos(rng.between(1000, most)))
}

/// Returns the outages that keep all beacons from a representative for a while: its neighbours are muted.
pub(super) fn deafen(tree: &Tree, keeper: usize, (from, until): (Nanos, Nanos)) -> Vec<Outage> {
    let mute = |what| Outage { from, until, what };
    tree.senders_to(keeper).into_iter().map(|(sender, wire)| mute(Failing::Mute(sender, wire))).collect()
}
