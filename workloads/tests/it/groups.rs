//! P4CE's groups in the simulator: leaders, a switch, replicas.

mod net;

use self::net::{MAX_LATENESS, Net, SETUP, Setup, ip};
use crate::environment;
use core::net::IpAddr;
use p4ce::wire::Refusal;
use rnic::PathMtu;
use rocev2::Psn;
use sim::{Fault, Host, Link, Queues, Workers};
use switch::{DropReason, Nanos, Probability, Rng};
use workloads::groups::{Groups, JoinReply, LeaderApp, Outcome, ReplicaApp};

const LIMIT: Nanos = Nanos::from_secs(100);
/// Seeds of each test in `make test`; `make soak` runs others.
const SEEDS: u64 = 60;
/// Seeds with several workers
const SEEDS_OF_WORKERS: u64 = 40;

#[test]
fn a_leader_writes_once_and_all_replicas_have_the_data() {
    for v6 in [false, true] {
        let mut net = Net::new(1, v6, &Groups::default(), 1, 3, Link::default());
        net.run().unwrap();
        assert_eq!(net.outcomes(), [Outcome::Done]);
        let counters = net.counted();
        let requests = counters.requests.get();
        assert_eq!(counters.copies.get(), 3 * requests);
        assert!(counters.acks.get() <= requests, "at most one ACK per request with the AckReq bit");
        // After the disconnect, no state of the group is left.
        let leader = net.leaders[0];
        net.world
            .with(leader, |leader: &mut Host<LeaderApp>, now| leader.app.disconnect(&mut leader.nic, now));
        net.world.run_until(LIMIT);
        assert_eq!(net.control().groups().count(), 0);
        assert_eq!(
            net.counters(),
            p4ce::ControlCounters { requested: 1, opened: 1, closed: 1, ..Default::default() }
        );
    }
}

/// Returns the stream from which revocations are drawn, in a quarter of the seeds.
fn revoking(seed: u64) -> Option<Rng> {
    // A separate stream, so that all other draws of the seed stay the same.
    let mut rng = Rng::stream(seed, 0x7269_6768);
    (rng.below(4) == 0).then_some(rng)
}

/// Draws a path MTU, with which the longest messages are 4, 8 or 16 packets.
fn drawn_mtu(seed: u64) -> PathMtu {
    // A separate stream, so that all other draws of the seed stay the same.
    *Rng::stream(seed, 0x006d_7475).pick(&[PathMtu::B256, PathMtu::B512, PathMtu::B1024])
}

/// Draws a link on which each of four impairments affects a share of up to `max` of all frames.
fn draw_link(rng: &mut Rng, max: f64) -> Link {
    let mut share = || Probability::new(rng.below(1000) as f64 / 1000.0 * max).unwrap();
    Link { loss: share(), duplicate: share(), reorder: share(), corrupt: share(), ..Link::default() }
}

fn on_lossy_links(setup: Setup, seed: u64) -> Result<(), String> {
    run_on_lossy_links(setup, seed).map(drop)
}

/// Runs one seed on lossy links. All operations that were posted have to complete.
fn run_on_lossy_links(setup: Setup, seed: u64) -> Result<Net, String> {
    let mut rng = Rng::new(seed);
    let mut link = draw_link(&mut rng, 0.1);
    environment::late(&mut link, seed, MAX_LATENESS);
    environment::short_queue(&mut link, seed);
    let replicas = rng.between(1, 5) as u8;
    let groups = Groups {
        groups: rng.between(1, 3) as u32,
        operations: rng.between(1, 50) as u32,
        depth: rng.between(1, 16) as u32,
        quorum: rng.between(0, replicas.into()) as u8,
        outvote: rng.below(2) == 0,
        receives: rng.between(1, 16) as u32,
        messages: rng.below(6) as u32,
        mtu: drawn_mtu(seed),
        ..Groups::default()
    };
    // A replica that misses an entry that the leader counts as held does not get it again, and is excluded
    // only if the switch has a limit of silence. Without that limit, a group that has lost a replica may
    // hang, unless its quorum is all replicas, so that it ends.
    let groups = Groups { quorum: if revoking(seed).is_some() { replicas } else { groups.quorum }, ..groups };
    let leaders = rng.between(1, 2) as u8;
    // Half of the seeds begin just before the PSN wraps, where errors are likely.
    let near = Psn::new(0u32.wrapping_sub(rng.between(1, 64) as u32));
    let setup = Setup { first_psn: (rng.below(2) == 0).then_some(near), ..setup };
    let v6 = rng.below(2) == 0;
    let setup = Setup {
        // NAKs that leaders do not receive, so that they do not go back
        lose_naks: if rng.below(3) == 0 { Probability::new(0.5).unwrap() } else { Probability::NEVER },
        hostile: if rng.below(4) == 0 { rng.between(10, 30) as u32 } else { 0 },
        queue_pairs: 128,
        queues: Queues::drawn(seed),
        ..setup
    };
    let mut net = Net::with(setup, seed, v6, &groups, leaders, replicas, link);
    net.drift_and_rehash(seed);
    net.revoke(seed);
    if rng.below(3) == 0 {
        let hosts = net.leaders.len() + net.replicas.len();
        for _ in 0..rng.between(1, 3) {
            let (a, b) = (rng.below(hosts as u64) as usize, rng.below(hosts as u64) as usize);
            if a != b {
                net.swap(Nanos::from_micros(rng.between(1, 3000)), a, b);
            }
        }
    }
    net.run()?;
    net.check_outcomes()?;
    Ok(net)
}

/// Checks that replicas too far behind a quorum are excluded: the switch writes to them no more, and reports
/// them to the control plane.
fn far_behind(setup: Setup, seed: u64) -> Result<(), String> {
    let mut rng = Rng::stream(seed, 0x6c61_6721);
    let link = draw_link(&mut rng, 0.05);
    let replicas = rng.between(2, 5) as u8;
    let groups = Groups {
        operations: rng.between(50, 150) as u32,
        quorum: rng.between(1, u64::from(replicas) - 1) as u8,
        outvote: true,
        messages: 0,
        retry_count: 5,
        ..Groups::default()
    };
    let setup = Setup { max_lag: rng.between(1, 40) as u32, ..setup };
    let mut net = Net::with(setup, seed, false, &groups, 1, replicas, link);
    net.drift_and_rehash(seed);
    net.run()?;
    net.world.run_until(net.world.now() + Nanos::from_millis(1));
    net.check()?;
    let dropped = net.counted().excluded.get();
    if net.counters().excluded < dropped {
        return Err(format!("{dropped} replicas were excluded, but {} reported", net.counters().excluded));
    }
    Ok(())
}

#[test]
fn replicas_far_behind_are_excluded_and_reported() {
    for seed in environment::seeds("groups", SEEDS) {
        far_behind(SETUP, seed).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
}

#[test]
fn lossy_links_stop_no_group() {
    for seed in environment::seeds("groups", SEEDS) {
        on_lossy_links(SETUP, seed).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
}

#[test]
fn several_workers_stop_no_group() {
    let (mut dispatched, mut dropped) = (0, 0);
    for seed in environment::seeds("groups_workers", SEEDS_OF_WORKERS) {
        let setup = Setup { workers: Workers::drawn(seed), ..SETUP };
        let net = run_on_lossy_links(setup, seed).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
        let counters = &net.node().switch.counters;
        dispatched += counters.dispatched;
        dropped += counters.dropped[DropReason::InputFull.index()];
    }
    println!("{dispatched} packets dispatched, {dropped} dropped by full rings");
    assert!(!environment::selects_default_seeds() || dispatched > 10_000 && dropped > 100);
}

/// Bugs that a switch with one worker cannot have
#[cfg(debug_assertions)]
const BUGS_OF_WORKERS: [p4ce::Bug; 2] = [p4ce::Bug::WrongOwner, p4ce::Bug::UnsharedStations];

#[cfg(debug_assertions)]
#[test]
fn planted_bugs_of_several_workers_are_found() {
    for bug in BUGS_OF_WORKERS {
        let found = environment::find_bug("groups_workers", &bug, 1..151, |seed| {
            // Groups that are done at all are done much sooner.
            let limit = Nanos::from_secs(2);
            let setup = Setup { limit, workers: Workers::drawn(seed), ..SETUP };
            let wrong = on_lossy_links(Setup { bug: Some(bug), ..setup }, seed).err()?;
            on_lossy_links(setup, seed).is_ok().then_some(wrong)
        });
        let (seed, wrong) = found.unwrap_or_else(|| panic!("{bug:?} was not found"));
        println!("{bug:?}: seed {seed}: {wrong}");
    }
}

#[cfg(debug_assertions)]
#[test]
fn planted_bugs_are_found() {
    for bug in p4ce::Bug::ALL.into_iter().filter(|bug| !BUGS_OF_WORKERS.contains(bug)) {
        let setup = Setup { bug: Some(bug), ..SETUP };
        let found = environment::find_bug("groups", &bug, 1..1001, |seed| {
            on_lossy_links(setup, seed).and_then(|()| far_behind(setup, seed)).err()
        });
        let (seed, wrong) = found.unwrap_or_else(|| panic!("{bug:?} was not found"));
        println!("{bug:?}: seed {seed}: {wrong}");
    }
}

/// A host requests 30 groups at once, with tables that have room for all of them.
#[cfg(debug_assertions)]
fn run_with_hostile_host(bug: Option<p4ce::Bug>, seed: u64) -> Result<(), String> {
    let setup = Setup { groups: 64, queue_pairs: 1024, hostile: 30, bug, ..SETUP };
    let mut net = Net::with(setup, seed, false, &Groups::default(), 1, 3, Link::default());
    net.run()?;
    net.check_outcomes()
}

/// With the bug, a replica's NIC accepts WRITEs of a leader whose right to write was revoked.
#[cfg(debug_assertions)]
#[test]
fn planted_writes_without_a_right_are_found() {
    let bug = rnic::Bug::AnyAccess;
    let setup = Setup { nic_bug: Some(bug), ..SETUP };
    let found = environment::find_bug("groups", &bug, 1..1001, |seed| {
        let wrong = on_lossy_links(setup, seed).err()?;
        on_lossy_links(SETUP, seed).is_ok().then_some(wrong)
    });
    let (seed, wrong) = found.expect("the bug is found within 1,000 seeds");
    println!("AnyAccess: seed {seed}: {wrong}");
}

#[cfg(debug_assertions)]
#[test]
fn planted_missing_request_limit_is_found() {
    assert_eq!(run_with_hostile_host(None, 1), Ok(()));
    let wrong = run_with_hostile_host(Some(p4ce::Bug::UnlimitedRequests), 1).unwrap_err();
    assert!(wrong.ends_with("15 are allowed"), "{wrong}");
}

/// Only what a replica held when it crashed counts. The replica restarts before the leader has written
/// anything.
#[cfg(debug_assertions)]
#[test]
fn planted_minority_quorum_is_found_after_a_replica_restarts() {
    let run = |bug| {
        let setup = Setup { bug, ..SETUP };
        let groups = Groups { quorum: 2, retry_count: 5, ..Groups::default() };
        let mut net = Net::with(setup, 1, false, &groups, 1, 2, Link::default());
        while net.node().switch.functions[0].function().group(p4ce::GroupId(0)).is_none() {
            assert!(net.world.step(LIMIT));
        }
        let now = net.world.now();
        net.world.schedule(now, Fault::Crash(net.replicas[1]));
        net.world.schedule(now, Fault::Restart(net.replicas[1]));
        net.run()
    };
    assert_eq!(run(None), Ok(()));
    let wrong = run(Some(p4ce::Bug::Minority)).unwrap_err();
    assert!(wrong.ends_with("held by 1 of 2"), "{wrong}");
}

/// The quorum holds everything, and one more replica misses what was sent while its link was cut.
#[cfg(debug_assertions)]
#[test]
fn planted_wrong_progress_is_found_at_a_replica_outside_the_quorum() {
    let run = |bug| {
        let setup = Setup { bug, ..SETUP };
        let groups = Groups { quorum: 1, outvote: true, messages: 0, ..Groups::default() };
        let mut net = Net::with(setup, 1, false, &groups, 1, 2, Link::default());
        while net.world.node::<Host<LeaderApp>>(net.leaders[0]).app.done() < 10 {
            assert!(net.world.step(LIMIT));
        }
        let (now, link) = (net.world.now(), net.world.links().skip(2).collect::<Vec<_>>());
        net.world.schedule(now, Fault::Cut(link.clone()));
        net.world.schedule(now + Nanos::from_micros(20), Fault::Heal(link));
        net.run()
    };
    assert_eq!(run(None), Ok(()));
    let wrong = run(Some(p4ce::Bug::LagIgnored)).unwrap_err();
    assert!(wrong.starts_with("replica 1 is taken to hold"), "{wrong}");
}

/// Draws adverse conditions for the switch other than crashes, from a separate stream.
fn draw_adverse_setup(seed: u64) -> Setup {
    let mut rng = Rng::stream(seed, 0x6861_7264);
    let near = Psn::new(0u32.wrapping_sub(rng.between(1, 64) as u32));
    Setup {
        first_psn: (rng.below(2) == 0).then_some(near),
        lose_naks: if rng.below(3) == 0 { Probability::new(0.5).unwrap() } else { Probability::NEVER },
        hostile: if rng.below(4) == 0 { rng.between(10, 30) as u32 } else { 0 },
        queue_pairs: 128,
        queues: Queues::drawn(seed),
        same_keys_after_restart: environment::same_keys_after_restart(seed),
        ..SETUP
    }
}

/// Runs one seed with crashes, pauses and cuts. Returns the counts of groups that were done and that failed.
fn amid_crashes(setup: Setup, seed: u64) -> Result<[u32; 2], String> {
    let mut rng = Rng::new(seed);
    let mut link = draw_link(&mut rng, 0.02);
    environment::late(&mut link, seed, MAX_LATENESS);
    environment::short_queue(&mut link, seed);
    let replicas = rng.between(2, 5) as u8;
    let groups = Groups {
        operations: rng.between(20, 100) as u32,
        quorum: rng.between(0, replicas.into()) as u8,
        outvote: rng.below(2) == 0,
        retry_count: 5,
        mtu: drawn_mtu(seed),
        ..Groups::default()
    };
    let setup = Setup { silent_after: Nanos::from_millis(5), ..setup };
    let mut net = Net::with(setup, seed, false, &groups, rng.between(1, 2) as u8, replicas, link);
    net.partition(seed);
    net.drift_and_rehash(seed);
    net.revoke(seed);
    let links: Vec<_> = net.world.links().collect();
    for _ in 0..rng.between(1, 3) {
        let at = Nanos::from_micros(rng.between(0, 3000));
        let until = at + Nanos::from_micros(rng.between(10, 20_000));
        let replica = net.replicas[rng.below(net.replicas.len() as u64) as usize];
        let leader = net.leaders[rng.below(net.leaders.len() as u64) as usize];
        let link = links[rng.below(links.len() as u64) as usize];
        let (first, then) = match rng.below(6) {
            0 => (Fault::Crash(replica), Fault::Restart(replica)),
            1 => (Fault::Crash(leader), Fault::Restart(leader)),
            2 => (Fault::Crash(net.switch), Fault::Restart(net.switch)),
            3 => (Fault::Pause(replica), Fault::Resume(replica)),
            4 => (Fault::Pause(net.switch), Fault::Resume(net.switch)),
            _ => environment::cut(&net.world, link, at),
        };
        net.world.schedule(at, first);
        net.world.schedule(until, then);
    }
    net.run()?;
    let groups = net.outcomes().into_iter().take(net.regular_groups);
    Ok(groups.fold([0, 0], |[done, failed], outcome| match outcome {
        Outcome::Done => [done + 1, failed],
        _ => [done, failed + 1],
    }))
}

/// Runs seeds with crashes, and asserts that some groups are done and others fail, at least `least` of each.
fn crashes_lose_no_acknowledged_write(
    seeds: impl Iterator<Item = u64>,
    workers: impl Fn(u64) -> Workers,
    least: u32,
) {
    let [mut done, mut failed] = [0, 0];
    for seed in seeds {
        let setup = Setup { workers: workers(seed), ..draw_adverse_setup(seed) };
        let groups = amid_crashes(setup, seed).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
        done += groups[0];
        failed += groups[1];
    }
    assert!(
        !environment::selects_default_seeds() || done.min(failed) > least,
        "too few of one kind: {done} groups done, {failed} failed"
    );
}

#[test]
fn crashes_and_partitions_lose_no_acknowledged_write() {
    crashes_lose_no_acknowledged_write(environment::seeds("groups", SEEDS), |_| Workers::ONE, 12);
}

#[test]
fn several_workers_lose_no_acknowledged_write() {
    crashes_lose_no_acknowledged_write(
        environment::seeds("groups_workers", SEEDS_OF_WORKERS),
        Workers::drawn,
        6,
    );
}

#[test]
fn a_switch_failure_after_any_packet_loses_no_acknowledged_write() {
    let groups = Groups { operations: 6, retry_count: 2, messages: 3, ..Groups::default() };
    let mut whole = Net::new(1, false, &groups, 1, 2, Link::default());
    whole.run().unwrap();
    let (steps, _) = whole.world.events();
    for stop in 0..steps {
        let mut net = Net::new(1, false, &groups, 1, 2, Link::default());
        while net.world.events().0 < stop {
            assert!(net.world.step(LIMIT));
        }
        let now = net.world.now();
        net.world.schedule(now, Fault::Crash(net.switch));
        net.run().unwrap_or_else(|wrong| panic!("switch failure after event {stop}: {wrong}"));
    }
}

/// Returns the outcome of the leader's only group in this network, and the network.
fn outcome_of(setup: Setup, groups: &Groups, replicas: u8, change: impl FnOnce(&mut Net)) -> (Outcome, Net) {
    let mut net = Net::with(setup, 1, false, groups, 1, replicas, Link::default());
    change(&mut net);
    net.run().unwrap();
    (net.outcomes().remove(0), net)
}

fn refusal(setup: Setup, groups: &Groups, replicas: u8, change: impl FnOnce(&mut Net)) -> Refusal {
    let (outcome, mut net) = outcome_of(setup, groups, replicas, change);
    let Outcome::Refused(Some(refusal)) = outcome else { panic!("{outcome:?}") };
    // No state of the group is left, at the switch or at any replica.
    net.world.run_until(LIMIT);
    assert_eq!(net.control().groups().count(), 0);
    assert_eq!((net.counters().opened, net.counters().refused), (0, 1));
    for replica in &net.replicas {
        assert_eq!(net.world.node::<Host<ReplicaApp>>(*replica).app.open(), 0);
    }
    refusal
}

#[test]
fn an_invalid_group_is_refused_with_the_reason() {
    let groups = Groups::default();
    let replies = |reply| {
        move |net: &mut Net| {
            let last = *net.replicas.last().unwrap();
            net.world.with(last, |replica: &mut Host<ReplicaApp>, _| replica.app.join_reply = reply);
        }
    };
    let last: IpAddr = ip(false, 2);
    let rejected = Refusal::Rejected { replica: last, reason: rocev2::cm::RejReason::CONSUMER };
    assert_eq!(refusal(SETUP, &groups, 2, replies(JoinReply::Reject)), rejected);
    assert_eq!(refusal(SETUP, &groups, 2, replies(JoinReply::NoMemory)), Refusal::NoMemory(last));
    assert_eq!(refusal(SETUP, &groups, 2, replies(JoinReply::ExtraByte)), Refusal::Size(last));
    let absent = |net: &mut Net| {
        let last = *net.replicas.last().unwrap();
        net.world.schedule(Nanos::ZERO, Fault::Crash(last));
    };
    let soon = Setup { connect_timeout: Nanos::from_secs(3), ..SETUP };
    assert_eq!(refusal(soon, &groups, 2, absent), Refusal::Unreachable(last));
    let none = |_: &mut Net| {};
    let few = Setup { max_replicas: 2, ..SETUP };
    assert_eq!(refusal(few, &groups, 3, none), Refusal::Count);
    assert_eq!(refusal(Setup { queue_pairs: 2, ..SETUP }, &groups, 2, none), Refusal::Full);
    assert_eq!(refusal(Setup { groups: 0, ..SETUP }, &groups, 2, none), Refusal::Full);
    assert_eq!(refusal(SETUP, &Groups { quorum: 3, ..groups.clone() }, 2, none), Refusal::Quorum);
    assert_eq!(refusal(SETUP, &groups, 0, none), Refusal::Count);
}

#[test]
fn a_group_survives_the_crash_of_a_replica() {
    let groups = Groups { operations: 400, ..Groups::default() };
    let setup = Setup { silent_after: Nanos::from_millis(1), ..SETUP };
    let slow = Link { rate_bps: 1_000_000_000, ..Link::default() };
    let mut net = Net::with(setup, 1, false, &groups, 1, 2, slow);
    net.world.schedule(Nanos::from_micros(600), Fault::Crash(net.replicas[1]));
    net.run().unwrap();
    assert_eq!(net.outcomes(), [Outcome::Done]);
    assert_eq!(net.counters().excluded, 1);
    let status = net.control().groups().next().unwrap();
    assert_eq!(status.replicas, [(ip(false, 1), true), (ip(false, 2), false)]);
}
