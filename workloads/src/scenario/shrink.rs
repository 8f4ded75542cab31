//! Shrinking: reduces a scenario with a violation as long as the violation remains.

use super::{AckSpec, FaultKind, GroupsSpec, NumberRange, Outcome, Planted, Scenario, VerbsSpec, Work, run};

/// A reduced scenario with a violation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shrunk {
    /// The scenario, without ranges
    pub scenario: Scenario,
    /// Outcome of its run
    pub outcome: Outcome,
    /// Number of scenarios tried
    pub tried: u32,
}

/// Tries up to `limit` scenarios with the same seed. Returns `None` if the scenario has no violation to begin
/// with.
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
            let smaller_outcome = run(&smaller, seed, planted, Vec::new());
            if smaller_outcome.violation.is_some() {
                (best, outcome) = (smaller, smaller_outcome);
                continue 'again;
            }
        }
        break;
    }
    Some(Shrunk { scenario: best, outcome, tried })
}

/// Returns scenarios that are reduced in one respect, the largest reductions first.
fn smaller(scenario: &Scenario) -> Vec<Scenario> {
    let mut all = Vec::new();
    let mut add = |change: &dyn Fn(&mut Scenario)| {
        let mut smaller = scenario.clone();
        change(&mut smaller);
        if smaller != *scenario {
            all.push(smaller);
        }
    };
    for number in 0..scenario.faults.len() {
        add(&|s| {
            s.faults.remove(number);
        });
    }
    for host in scenario.hosts.iter().filter(|host| can_do_without(scenario, &host.name)) {
        add(&|s| remove(s, &host.name));
    }
    let works: Vec<Work> = match &scenario.work {
        Work::Verbs(verbs) => smaller_verbs(verbs).into_iter().map(Work::Verbs).collect(),
        Work::Groups(groups) => smaller_groups(groups).into_iter().map(Work::Groups).collect(),
    };
    for work in works {
        add(&|s| s.work = work.clone());
    }
    for number in 0..scenario.links.len() {
        add(&|s| s.links[number].loss = NumberRange::fixed(0));
        add(&|s| s.links[number].duplicate = NumberRange::fixed(0));
        add(&|s| s.links[number].reorder = NumberRange::fixed(0));
        add(&|s| s.links[number].corrupt = NumberRange::fixed(0));
        add(&|s| s.links[number].jitter = NumberRange::fixed(0));
        add(&|s| s.links[number].ecn = None);
    }
    for number in 0..scenario.hosts.len() {
        add(&|s| s.hosts[number].ack = AckSpec::OnRequest);
        add(&|s| s.hosts[number].credits = NumberRange::fixed(0));
        add(&|s| s.hosts[number].dcqcn = NumberRange::fixed(0));
        add(&|s| s.hosts[number].forgetful = NumberRange::fixed(0));
        add(&|s| {
            s.hosts[number].clock_offset = NumberRange::fixed(0);
            s.hosts[number].clock_drift = NumberRange::fixed(0);
        });
    }
    all
}

/// Halves a number, but not below `least`.
fn half(number: &mut NumberRange, least: i64) {
    let value = number.value();
    *number = NumberRange::fixed(if value > least { (value / 2).max(least) } else { value });
}

fn one_less(number: &mut NumberRange) {
    *number = NumberRange::fixed((number.value() - 1).max(1));
}

fn set(number: &mut NumberRange, value: i64) {
    *number = NumberRange::fixed(value);
}

fn smaller_verbs(verbs: &VerbsSpec) -> Vec<VerbsSpec> {
    let without = (0..verbs.verbs.len()).filter(|_| verbs.verbs.len() > 1).map(|number| {
        let mut smaller = verbs.clone();
        smaller.verbs.remove(number);
        smaller
    });
    let changes: [fn(&mut VerbsSpec); 12] = [
        |s| set(&mut s.connections, 1),
        |s| set(&mut s.unreliable, 0),
        |s| half(&mut s.operations, 1),
        |s| half(&mut s.max_size, 1),
        |s| half(&mut s.depth, 1),
        |s| one_less(&mut s.operations),
        |s| set(&mut s.words, 1),
        |s| set(&mut s.repost_us, 0),
        |s| set(&mut s.srq, 0),
        |s| set(&mut s.flow_control, 0),
        |s| set(&mut s.background_reads, 0),
        |s| set(&mut s.revoke_us, 0),
    ];
    without.chain(changed(verbs, &changes)).collect()
}

fn smaller_groups(groups: &GroupsSpec) -> Vec<GroupsSpec> {
    let changes: [fn(&mut GroupsSpec); 8] = [
        |s| half(&mut s.groups, 1),
        |s| half(&mut s.operations, 1),
        |s| half(&mut s.max_size, 1),
        |s| half(&mut s.depth, 1),
        |s| one_less(&mut s.operations),
        |s| set(&mut s.messages, 0),
        |s| set(&mut s.outvote, 0),
        |s| set(&mut s.quorum, 0),
    ];
    changed(groups, &changes).collect()
}

fn changed<T: Clone>(from: &T, changes: &[fn(&mut T)]) -> impl Iterator<Item = T> {
    changes.iter().map(|change| {
        let mut smaller = from.clone();
        change(&mut smaller);
        smaller
    })
}

/// Returns whether the workload is still possible without a host.
fn can_do_without(scenario: &Scenario, name: &str) -> bool {
    let Work::Groups(groups) = &scenario.work else { return scenario.hosts.len() > 2 };
    if groups.leaders.iter().any(|leader| leader == name) {
        return groups.leaders.len() > 1;
    }
    let replicas = (scenario.hosts.len() - groups.leaders.len()) as i64;
    replicas > groups.quorum.value().max(1)
}

/// Removes a host, with its links and faults.
fn remove(scenario: &mut Scenario, name: &str) {
    scenario.hosts.retain(|host| host.name != name);
    if let Work::Groups(groups) = &mut scenario.work {
        groups.leaders.retain(|leader| leader != name);
    }
    scenario.links.retain(|link| !link.ends.iter().any(|end| end == name));
    scenario.faults.retain_mut(|fault| match &mut fault.kind {
        FaultKind::Crash(node)
        | FaultKind::Pause(node)
        | FaultKind::Outsider(node, _)
        | FaultKind::Rehash(node, _)
        | FaultKind::ClockStep(node, _)
        | FaultKind::ClockDrift(node, _) => node != name,
        FaultKind::PartitionPair(hosts) | FaultKind::Swap(hosts) | FaultKind::Mtu(hosts, _) => {
            hosts.iter().all(|node| node != name)
        }
        FaultKind::Partition(names) | FaultKind::Mute(names) => {
            names.retain(|node| node != name);
            !names.is_empty()
        }
    });
}
