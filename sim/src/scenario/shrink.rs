//! Makes a scenario that breaks something smaller, as long as it still breaks something.

use super::run::Planted;
use super::{AckSpec, Between, FaultKind, Outcome, Scenario, run};

/// A smaller scenario in which something is wrong, too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shrunk {
    /// The scenario; it has no ranges
    pub scenario: Scenario,
    /// What comes of it
    pub outcome: Outcome,
    /// How many scenarios were tried
    pub tried: u32,
}

/// Tries up to `limit` smaller scenarios with the same seed. `None` if nothing is wrong to begin with.
pub fn shrink(scenario: &Scenario, seed: u64, planted: Planted, limit: u32) -> Option<Shrunk> {
    let mut best = scenario.drawn(seed);
    let mut outcome = run(&best, seed, planted, Vec::new());
    outcome.violation.as_ref()?;
    let mut tried = 1;
    'again: loop {
        for smaller in smaller(&best) {
            if tried >= limit {
                break 'again;
            }
            tried += 1;
            let of_it = run(&smaller, seed, planted, Vec::new());
            if of_it.violation.is_some() {
                (best, outcome) = (smaller, of_it);
                continue 'again;
            }
        }
        break;
    }
    Some(Shrunk { scenario: best, outcome, tried })
}

/// Scenarios that have a little less, those with much less first.
fn smaller(scenario: &Scenario) -> Vec<Scenario> {
    let mut all = Vec::new();
    let mut put = |change: &dyn Fn(&mut Scenario)| {
        let mut smaller = scenario.clone();
        change(&mut smaller);
        if smaller != *scenario {
            all.push(smaller);
        }
    };
    for number in 0..scenario.faults.len() {
        put(&|s| {
            s.faults.remove(number);
        });
    }
    if scenario.hosts.len() > 2 {
        for host in &scenario.hosts {
            put(&|s| remove(s, &host.name));
        }
    }
    for number in 0..scenario.verbs.verbs.len() {
        if scenario.verbs.verbs.len() > 1 {
            put(&|s| {
                s.verbs.verbs.remove(number);
            });
        }
    }
    let less = |number: &mut Between, least: i64| {
        let value = number.value();
        *number = Between::just(if value > least { (value / 2).max(least) } else { value });
    };
    let one_less = |number: &mut Between| {
        *number = Between::just((number.value() - 1).max(1));
    };
    put(&|s| s.verbs.connections = Between::just(1));
    put(&|s| s.verbs.unreliable = Between::just(0));
    put(&|s| less(&mut s.verbs.operations, 1));
    put(&|s| less(&mut s.verbs.max_size, 1));
    put(&|s| less(&mut s.verbs.depth, 1));
    put(&|s| one_less(&mut s.verbs.operations));
    put(&|s| s.verbs.words = Between::just(1));
    put(&|s| s.verbs.repost_us = Between::just(0));
    put(&|s| s.verbs.srq = Between::just(0));
    put(&|s| s.verbs.flow_control = Between::just(0));
    for number in 0..scenario.links.len() {
        put(&|s| s.links[number].loss = Between::just(0));
        put(&|s| s.links[number].duplicate = Between::just(0));
        put(&|s| s.links[number].reorder = Between::just(0));
        put(&|s| s.links[number].corrupt = Between::just(0));
        put(&|s| s.links[number].jitter = Between::just(0));
        put(&|s| s.links[number].ecn = None);
    }
    for number in 0..scenario.hosts.len() {
        put(&|s| s.hosts[number].ack = AckSpec::OnRequest);
        put(&|s| s.hosts[number].credits = Between::just(0));
        put(&|s| s.hosts[number].dcqcn = Between::just(0));
        put(&|s| {
            s.hosts[number].clock_offset = Between::just(0);
            s.hosts[number].clock_drift = Between::just(0);
        });
    }
    all
}

/// Takes a host away, with what is said of it.
fn remove(scenario: &mut Scenario, name: &str) {
    scenario.hosts.retain(|host| host.name != name);
    scenario.links.retain(|link| !link.ends.iter().any(|end| end == name));
    scenario.faults.retain_mut(|fault| match &mut fault.kind {
        FaultKind::Crash(node)
        | FaultKind::Pause(node)
        | FaultKind::ClockStep(node, _)
        | FaultKind::ClockDrift(node, _) => node != name,
        FaultKind::Partition(names) => {
            names.retain(|node| node != name);
            !names.is_empty()
        }
    });
}
