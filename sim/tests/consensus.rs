//! Consensus in the simulator: servers, a bridge between them, and values that are proposed wherever somebody leads.

mod environment;

use p4ce::consensus::Standing;
use sim::consensus::{Cluster, ClusterConfig, Proposer};
use sim::{Fault, Link, LinkId};
use std::collections::BTreeSet;
use switch::{Chance, Nanos, Share};

#[test]
fn values_are_decided_everywhere() {
    let mut net = Cluster::new(&ClusterConfig { wanted: 500, ..ClusterConfig::default() });
    net.world.run_until(Nanos::from_millis(20));
    net.check().unwrap();
    assert!(net.app(0).server().leads(), "the lowest number");
    for app in net.apps() {
        assert_eq!(app.next(), 500);
    }
}

#[test]
fn a_switch_replicates_and_is_done_without_when_it_fails() {
    let mut net = Cluster::new(&ClusterConfig { through: true, ..ClusterConfig::default() });
    net.world.run_until(Nanos::from_millis(20));
    assert!(net.app(0).server().replicates_through());
    let before = net.app(0).next();
    let at_first = net.copies();
    net.world.run_until(Nanos::from_millis(30));
    let decided = net.app(0).next() - before;
    assert!(decided > 1000, "{decided}");
    assert!(net.copies() - at_first >= 2 * decided);
    // It comes back and knows nothing.
    net.world.schedule(Nanos::from_millis(30), Fault::Crash(net.switch));
    net.world.schedule(Nanos::from_micros(30_050), Fault::Restart(net.switch));
    net.world.run_until(Nanos::from_millis(40));
    assert!(!net.app(0).server().replicates_through());
    let before = net.app(0).next();
    net.world.run_until(Nanos::from_millis(45));
    assert!(net.app(0).next() > before + 500);
    net.world.run_until(Nanos::from_millis(200));
    assert!(net.app(0).server().replicates_through());
    net.check().unwrap();
}

#[test]
fn a_leader_that_crashes_is_followed_by_the_next() {
    let mut net = Cluster::new(&ClusterConfig { servers: 5, ..ClusterConfig::default() });
    net.world.schedule(Nanos::from_millis(10), Fault::Crash(net.servers[0]));
    net.world.run_until(Nanos::from_millis(10));
    let before = net.app(1).next();
    assert!(before > 100, "{before}");
    net.world.run_until(Nanos::from_millis(30));
    net.check().unwrap();
    let app = net.app(1);
    assert!(app.server().leads() && app.next() > before + 100, "{} after {before}", app.next());
}

#[test]
fn who_forgot_everything_becomes_a_member_again() {
    let mut net = Cluster::new(&ClusterConfig::default());
    net.world.schedule(Nanos::from_millis(10), Fault::Crash(net.servers[2]));
    net.world.schedule(Nanos::from_millis(12), Fault::Restart(net.servers[2]));
    net.world.run_until(Nanos::from_millis(11));
    let before = net.app(0).next();
    assert!(before > 1000, "more than the log holds, {before}");
    net.world.run_until(Nanos::from_millis(30));
    assert_eq!((net.app(2).server().standing(), net.app(2).installed()), (Standing::Member, 1));
    // It counts: there is no majority without it.
    net.world.schedule(Nanos::from_millis(30), Fault::Crash(net.servers[1]));
    net.world.run_until(Nanos::from_millis(32));
    let before = net.app(2).next();
    net.world.run_until(Nanos::from_millis(40));
    assert!(net.app(2).next() > before + 500, "{} after {before}", net.app(2).next());
    net.check().unwrap();
}

#[test]
fn who_forgot_everything_gets_into_the_group_again() {
    let mut net = Cluster::new(&ClusterConfig { through: true, ..ClusterConfig::default() });
    net.world.schedule(Nanos::from_millis(20), Fault::Crash(net.servers[2]));
    net.world.schedule(Nanos::from_millis(25), Fault::Restart(net.servers[2]));
    net.world.run_until(Nanos::from_millis(24));
    assert!(net.app(0).server().replicates_through(), "with one replica");
    net.world.run_until(Nanos::from_millis(60));
    assert_eq!(net.app(2).server().standing(), Standing::Member);
    assert!(net.app(0).server().replicates_through());
    // The group has it: two copies of each packet.
    let (copies, entries) = (net.copies(), net.entries());
    net.world.run_until(Nanos::from_millis(61));
    assert!(net.copies() - copies >= 2 * (net.entries() - entries).saturating_sub(16));
    net.check().unwrap();
}

#[test]
fn who_forgot_everything_becomes_a_member_again_through_a_switch() {
    let mut net = Cluster::new(&ClusterConfig { through: true, ..ClusterConfig::default() });
    // One that is missed, and one that is back before it is.
    for (n, down_us) in [(1, 2000), (2, 300)] {
        let at = Nanos::from_millis(100 * n as u64 - 80);
        net.world.schedule(at, Fault::Crash(net.servers[n]));
        net.world.schedule(at + Nanos::from_micros(down_us), Fault::Restart(net.servers[n]));
        net.world.run_until(at);
        assert!(net.app(0).server().replicates_through());
        net.world.run_until(at + Nanos::from_millis(60));
        assert_eq!(net.app(n).server().standing(), Standing::Member, "server {n}");
    }
    net.check().unwrap();
}

#[test]
fn a_leader_that_restarts_leads_again() {
    let mut net = Cluster::new(&ClusterConfig::default());
    net.world.schedule(Nanos::from_millis(10), Fault::Crash(net.servers[0]));
    net.world.schedule(Nanos::from_millis(15), Fault::Restart(net.servers[0]));
    net.world.run_until(Nanos::from_millis(14));
    assert!(net.app(1).server().leads());
    net.world.run_until(Nanos::from_millis(60));
    assert!(net.app(0).server().leads());
    assert_eq!(net.app(0).installed(), 1);
    assert_eq!(net.app(1).server().leader(), Some(0));
    net.check().unwrap();
}

#[test]
fn who_forgot_everything_does_not_count() {
    let mut net = Cluster::new(&ClusterConfig::default());
    let alone: Vec<_> = net.world.links().skip(2).take(1).collect();
    net.world.schedule(Nanos::from_millis(10), Fault::Cut(alone.clone()));
    net.world.schedule(Nanos::from_millis(10), Fault::Crash(net.servers[1]));
    net.world.schedule(Nanos::from_millis(11), Fault::Restart(net.servers[1]));
    net.world.run_until(Nanos::from_millis(20));
    let before = net.app(0).next();
    net.world.run_until(Nanos::from_millis(50));
    assert_eq!(net.app(0).next(), before, "one of three, and one that knows nothing");
    assert_eq!(net.app(1).server().standing(), Standing::Blank);
    net.world.schedule(Nanos::from_millis(50), Fault::Heal(alone));
    net.world.run_until(Nanos::from_millis(90));
    assert!(net.app(0).next() > before + 1000, "{} after {before}", net.app(0).next());
    assert_eq!(net.app(1).server().standing(), Standing::Member);
    net.check().unwrap();
}

/// Links of servers, in the order of their numbers.
fn links_of(net: &Cluster, servers: &[usize]) -> Vec<LinkId> {
    let links: Vec<_> = net.world.links().collect();
    servers.iter().map(|server| links[*server]).collect()
}

#[test]
fn what_lies_below_a_snapshot_is_from_before() {
    let mut installed = 0;
    for (phase, wanted) in (0..12).flat_map(|phase| [57, 58, 59].map(|wanted| (phase, wanted))) {
        let config = ClusterConfig { servers: 5, window: 16, wanted, ..ClusterConfig::default() };
        let mut net = Cluster::new(&config);
        let change = |net: &mut Cluster, at: Nanos, cut: &[usize], heal: &[usize]| {
            let (cut, heal) = (links_of(net, cut), links_of(net, heal));
            net.world.schedule(at, Fault::Cut(cut));
            net.world.schedule(at, Fault::Heal(heal));
        };
        let mut at = Nanos::from_micros(500);
        while net.app(0).next() < 20 {
            at = at + Nanos(500);
            net.world.run_until(at);
        }
        // 0 writes to 3 alone what is not decided, ...
        change(&mut net, at, &[1, 2, 4], &[]);
        at = at + Nanos::from_micros(300);
        // ... and the others decide something else in its place.
        change(&mut net, at, &[0, 3], &[1, 2, 4]);
        while net.app(2).next() < 38 && at < Nanos::from_millis(60) {
            at = at + Nanos(50);
            net.world.run_until(at);
        }
        // 2 lacks what comes then, and 3 gets a snapshot when it is back.
        change(&mut net, at, &[2], &[0]);
        at = at + Nanos::from_millis(50);
        change(&mut net, at, &[], &[3]);
        at = at + Nanos::from_millis(40) + Nanos::from_micros(100 * phase);
        // 2 leads, and what 3 held before must not be taken for what was decided.
        change(&mut net, at, &[], &[2]);
        for server in [0, 1] {
            net.world.schedule(at, Fault::Crash(net.servers[server]));
        }
        net.world.run_until(at + Nanos::from_millis(40));
        installed += net.app(3).installed();
        net.check().unwrap_or_else(|wrong| panic!("{phase}, {wanted}: {wrong}"));
    }
    assert!(installed > 10, "{installed}");
}

#[test]
fn who_has_promised_more_to_itself_is_asked_in_a_later_term() {
    for us in (0..16_000).step_by(2000) {
        let mut net = Cluster::new(&ClusterConfig::default());
        let link = links_of(&net, &[2]);
        net.world.schedule(Nanos::from_millis(10), Fault::Cut(link.clone()));
        let heal = Nanos::from_micros(20_000 + us);
        net.world.schedule(heal, Fault::Heal(link));
        net.world.run_until(heal + Nanos::from_millis(20));
        let lacks = net.app(0).next() - net.app(2).next();
        assert!(lacks < 200, "healed after {us} us, it lacks {lacks} entries");
        net.check().unwrap();
    }
}

#[test]
fn a_link_that_comes_and_goes_leaves_nothing_behind() {
    let mut net = Cluster::new(&ClusterConfig { wanted: 10, ..ClusterConfig::default() });
    let mut at = Nanos::from_millis(10);
    for _ in 0..60 {
        let link = links_of(&net, &[2]);
        net.world.schedule(at, Fault::Cut(link.clone()));
        net.world.schedule(at + Nanos::from_millis(3), Fault::Heal(link));
        at = at + Nanos::from_millis(6);
        net.world.run_until(at);
    }
    for app in net.apps() {
        let queue_pairs = app.server().queue_pairs();
        assert!(queue_pairs < 20, "{queue_pairs}");
    }
}

#[test]
fn a_copy_that_is_lost_behind_the_switch_stops_nobody() {
    for (loss, servers) in [(0.01, 3), (0.0001, 3), (0.0001, 5)] {
        let link = Link { loss: Share::new(loss).unwrap(), ..Link::default() };
        let config = ClusterConfig { seed: 7, through: true, link, servers, ..ClusterConfig::default() };
        let mut net = Cluster::new(&config);
        net.world.run_until(Nanos::from_millis(10));
        let mut before = net.entries();
        for ms in (20..=60).step_by(10) {
            net.world.run_until(Nanos::from_millis(ms));
            assert!(net.entries() > before, "{loss}, {servers} servers: nothing since {} ms", ms - 10);
            before = net.entries();
        }
        net.check().unwrap();
    }
}

/// The n-th of the parts of all seeds: 1,000, or as the environment has it.
fn seeds(part: u64) -> impl Iterator<Item = u64> {
    environment::seeds(1000).filter(move |seed| seed % PARTS == part)
}

const PARTS: u64 = 4;

/// Lossy wires, crashes, restarts, pauses and cuts. When they are over, it goes on, unless more servers than may be have
/// crashed.
fn run(seed: u64) -> Cluster {
    let mut chance = Chance::new(seed);
    let mut share = || Share::new(chance.below(1000) as f64 / 1000.0 * 0.02).unwrap();
    let link =
        Link { loss: share(), duplicate: share(), reorder: share(), corrupt: share(), ..Link::default() };
    let servers = [3, 5][chance.below(2) as usize];
    let window = chance.between(1, 16);
    let mut net = Cluster::new(&ClusterConfig {
        seed,
        servers,
        window,
        link,
        through: chance.below(2) == 0,
        slots: chance.between(window.max(8), 64),
        wanted: 2000,
        ..ClusterConfig::default()
    });
    let links: Vec<_> = net.world.links().collect();
    let mut crashed = BTreeSet::new();
    for n in 0..chance.between(1, 5) {
        let at = Nanos::from_micros(chance.between(1000, 15_000));
        let until = at + Nanos::from_micros(chance.between(10, 8000));
        let server = net.servers[chance.below(net.servers.len() as u64) as usize];
        let link = vec![links[chance.below(links.len() as u64) as usize]];
        match chance.below(4) {
            3 => {
                net.world.schedule(at, Fault::Crash(net.switch));
                net.world.schedule(until, Fault::Restart(net.switch));
            }
            // The last one never: what all have forgotten is forgotten.
            0 if server != net.servers[usize::from(servers) - 1] => {
                net.world.schedule(at, Fault::Crash(server));
                crashed.insert(server);
                // As many as may, for good
                if n >= u64::from(servers / 2) || chance.below(2) == 0 {
                    net.world.schedule(until, Fault::Restart(server));
                }
            }
            1 => {
                net.world.schedule(at, Fault::Pause(server));
                net.world.schedule(until, Fault::Resume(server));
            }
            _ => {
                net.world.schedule(at, Fault::Cut(link.clone()));
                net.world.schedule(until, Fault::Heal(link));
            }
        }
    }
    net.world.run_until(Nanos::from_millis(35));
    let before = net.entries();
    net.want(20);
    // A NIC that did not hear of a neighbour while the link was cut asks again after half a second.
    let mut at = Nanos::from_millis(55);
    net.world.run_until(at);
    while net.entries() == before && at < Nanos::from_millis(2000) {
        at = at + Nanos::from_millis(50);
        net.world.run_until(at);
    }
    net.check().unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    let after = net.entries();
    assert!(crashed.len() > usize::from(servers / 2) || after > before, "seed {seed}: nothing goes on");
    net
}

fn logs_agree(part: u64) {
    let (mut entries, mut installed) = (0, 0);
    for seed in seeds(part) {
        let net = run(seed);
        entries += net.entries();
        installed += net.apps().map(Proposer::installed).sum::<u64>();
    }
    assert!(entries > 10_000 && installed > 10, "{entries} entries, {installed} snapshots");
}

#[test]
fn logs_agree_whatever_happens_in_the_first_quarter_of_the_seeds() {
    logs_agree(0);
}

#[test]
fn logs_agree_whatever_happens_in_the_second_quarter_of_the_seeds() {
    logs_agree(1);
}

#[test]
fn logs_agree_whatever_happens_in_the_third_quarter_of_the_seeds() {
    logs_agree(2);
}

#[test]
fn logs_agree_whatever_happens_in_the_last_quarter_of_the_seeds() {
    logs_agree(3);
}
