//! Random schedules: every fault that can occur, drawn from seeds.

use super::{candidate, environment, links_of, run_for_frames};
use consensus::WaitReason;
use sim::{Fault, Link, Queues, Workers};
use std::collections::BTreeSet;
use switch::{Nanos, Probability, Rng};
use workloads::consensus::{Cluster, ClusterConfig, Proposer};

/// Returns the seeds of one of `PARTS` parts of all seeds, which are [`SEEDS`] or those that the environment
/// selects. The planted bugs are found by the first six.
fn seeds(part: u64) -> impl Iterator<Item = u64> {
    environment::seeds("consensus", SEEDS).filter(move |seed| seed % PARTS == part)
}

const PARTS: u64 = 4;
/// Seeds of all parts in `make test`; `make soak` runs others.
const SEEDS: u64 = 16;

/// Draws a switch with room for at most two groups of all servers, in a quarter of the seeds. Leaders then
/// replicate without the switch, now and then or always.
fn few_queue_pairs(seed: u64) -> Option<usize> {
    let mut rng = Rng::stream(seed, 0x7061_6972);
    (rng.below(4) == 0).then(|| 1 << rng.below(4))
}

/// Makes clocks drift and UDP source ports change in some seeds.
fn drift_and_rehash(net: &mut Cluster, seed: u64) {
    let (servers, within) = (net.servers.clone(), Nanos::from_millis(20));
    environment::rehash(&mut net.world, &servers, seed, within);
    environment::drift(&mut net.world, &[&servers[..], &[net.switch]].concat(), seed, within);
}

/// Draws the cluster of a seed: the number of servers, the values proposed, the loss of links, and the
/// requests of an outsider.
fn draw_config(seed: u64, rng: &mut Rng, least_len: u64) -> ClusterConfig {
    let max_share = [0, 0, 20, 200][rng.below(4) as usize];
    let mut share = || Probability::new(rng.between(0, max_share) as f64 / 10_000.0).unwrap();
    let mut link =
        Link { loss: share(), duplicate: share(), reorder: share(), corrupt: share(), ..Link::default() };
    environment::late(&mut link, seed, Nanos::from_millis(4));
    environment::short_queue(&mut link, seed);
    let window = rng.between(1, 16);
    // Values that fit one packet or take several, of one length or of many
    let max = [48, 3000, 8192][rng.below(3) as usize].max(least_len);
    let min = if rng.below(2) == 0 { max } else { least_len };
    ClusterConfig {
        queues: Queues::drawn(seed),
        forgetful: Probability::percent(50),
        same_keys_after_restart: environment::same_keys_after_restart(seed),
        queue_pairs: few_queue_pairs(seed).unwrap_or(64),
        first_psn: environment::psns_near_the_wrap(seed),
        seed,
        servers: [3, 5][rng.below(2) as usize],
        window,
        link,
        through_switch: rng.below(2) == 0,
        slots: rng.between(window.max(8), 64),
        sizes: (min as usize, max as usize),
        snapshot: [8, 1000, 20_000, 65_536][rng.below(4) as usize],
        secret: rng.below(4) == 0,
        outsider: (rng.below(4) == 0).then(|| Nanos::from_micros(rng.between(50, 2000))),
        max_proposals: 2_000_000 / (max + 1000),
        ..ClusterConfig::default()
    }
}

/// Time after the last fault by which every live server has applied a value that was proposed since, if a
/// majority of members is live. Half of all seeds need 0.6 ms, nine in ten 12 ms. An election takes some 10
/// ms (heartbeats of 100 us: 14 until the absence of the leader is detected, 60 of candidacy). A snapshot
/// takes 64 packets at a path MTU of 1,024, and as long again for its retransmission. But a NIC sends an ARP
/// request only every half second, and two requests or replies may be lost.
const CATCH_UP_LIMIT: Nanos = Nanos::from_millis(1500);
/// Time after the last fault by which what was in flight has arrived: seven tries of 131 us on both sides of
/// the switch
const IN_FLIGHT_LIMIT: Nanos = Nanos::from_millis(5);

/// Runs until all live servers have caught up after the last fault, and acts as the operator. If all servers
/// wait for a bootstrap, restarts those that a lost leader has written to, and bootstraps one server. If no
/// group was ever bootstrapped, starts the servers that are down. Returns false if fewer members are live
/// than a majority, so that the group makes no progress.
fn catch_up(net: &mut Cluster, seed: u64) -> Result<bool, String> {
    let begun = net.world.now();
    let (mark, mut end, mut bootstrapped) = (net.mark(), begun + CATCH_UP_LIMIT, false);
    net.propose_more(200);
    while let lagging = net.lagging(&mark)
        && !lagging.is_empty()
    {
        let now = net.world.now();
        let (all, majority) = (net.servers.len(), net.servers.len() / 2 + 1);
        let (live, members) = (net.live().count(), net.members().len());
        let waits = |server: usize| net.app(server).server().waits_for();
        let waits_for_operator =
            |server| matches!(waits(server), Some(WaitReason::Bootstrap | WaitReason::Restart(_)));
        let all_wait = live == all && (0..all).all(waits_for_operator);
        let written_servers: Vec<_> =
            (0..all).filter(|server| waits(*server) == Some(WaitReason::Restart(*server as u8))).collect();
        if all_wait && !written_servers.is_empty() {
            for server in written_servers {
                net.world.schedule(now, Fault::Crash(net.servers[server]));
                net.world.schedule(now + Nanos::from_micros(50), Fault::Restart(net.servers[server]));
            }
            end = now + CATCH_UP_LIMIT;
        } else if all_wait && !bootstrapped {
            net.bootstrap(seed as usize % all);
            (end, bootstrapped) = (now + CATCH_UP_LIMIT, true);
        } else if now >= begun + IN_FLIGHT_LIMIT && members < majority && (members > 0 || live < all) {
            check_no_progress(net)?;
            if members > 0 || net.entries() > 0 {
                return Ok(false);
            }
            // A group is bootstrapped only while all servers run. Either no server has bootstrapped it, or
            // the one that did crashed before a live server learned of it. Until all servers run, even a
            // majority that never crashed cannot proceed.
            start_all(net);
            end = net.world.now() + CATCH_UP_LIMIT;
        } else if now >= end {
            let describe = |server| {
                let app = net.app(server);
                (server, app.next(), app.server().membership(), app.server().waits_for())
            };
            let lagging: Vec<_> = lagging.into_iter().map(describe).collect();
            return Err(format!("{lagging:?} have not caught up, {} entries are decided", net.entries()));
        }
        net.run_until(net.world.now() + Nanos::from_micros(100));
    }
    net.check().map(|()| true)
}

/// Ends one crash of each server that is down. A server with overlapping crashes stays down until all have
/// ended.
fn start_all(net: &mut Cluster) {
    let now = net.world.now();
    for node in net.servers.clone() {
        if net.world.is_down(node) {
            net.world.schedule(now, Fault::Restart(node));
        }
    }
    net.run_until(now);
}

/// Checks that without a majority of members nothing is decided, no server becomes a member, and no server
/// waits for the operator, because a blank server sees a member or misses a server.
fn check_no_progress(net: &mut Cluster) -> Result<(), String> {
    let before = (net.entries(), net.members());
    net.run_until(net.world.now() + Nanos::from_millis(20));
    net.check()?;
    let after = (net.entries(), net.members());
    if after != before {
        return Err(format!("entries and members changed from {before:?} to {after:?} without a majority"));
    }
    let waits = |server: &usize| net.app(*server).server().waits_for() == Some(WaitReason::Bootstrap);
    net.live().find(waits).map_or(Ok(()), |server| Err(format!("server {server} waits for the operator")))
}

/// Draws, in a third of the cases, a partition between two servers at `at`, and its end. All other servers
/// still reach both.
fn draw_partition(net: &Cluster, at: Nanos) -> Option<(Fault, Fault)> {
    let mut rng = Rng::stream(at.0, 0x7061_7274);
    let [a, b] = [(); 2].map(|()| workloads::consensus::mac(rng.below(net.servers.len() as u64) as u8));
    (rng.below(3) == 0).then_some((Fault::PartitionPair(a, b), Fault::HealPair(a, b)))
}

/// Runs a seed with lossy links, and with crashes, restarts, pauses and cuts of any number of servers. After
/// the faults, all live servers have to catch up, unless too many servers have crashed. If all have crashed,
/// or no group was bootstrapped, the operator bootstraps one.
fn run(seed: u64, tune: impl FnOnce(&mut ClusterConfig)) -> Result<Cluster, String> {
    let mut rng = Rng::new(seed);
    let mut config = draw_config(seed, &mut rng, 9);
    tune(&mut config);
    let servers = config.servers;
    let mut net = Cluster::new(&config);
    drift_and_rehash(&mut net, seed);
    let links: Vec<_> = net.world.links().collect();
    let (mut crashed, mut last) = (BTreeSet::new(), Nanos::ZERO);
    for n in 0..rng.between(1, 5) {
        let at = Nanos::from_micros(rng.between(1000, 15_000));
        let until = at + Nanos::from_micros(rng.between(10, 8000));
        last = last.max(until);
        let server = net.servers[rng.below(net.servers.len() as u64) as usize];
        let link = links[rng.below(links.len() as u64) as usize];
        match rng.below(12) {
            0..=2 => {
                net.world.schedule(at, Fault::Crash(net.switch));
                net.world.schedule(until, Fault::Restart(net.switch));
            }
            3..=5 => {
                net.world.schedule(at, Fault::Crash(server));
                crashed.insert(server);
                // As many servers as the group tolerates stay down.
                if n >= u64::from(servers / 2) || rng.below(2) == 0 {
                    net.world.schedule(until, Fault::Restart(server));
                }
            }
            6..=8 => {
                net.world.schedule(at, Fault::Pause(server));
                net.world.schedule(until, Fault::Resume(server));
            }
            // A power failure of the whole rack; or one server restarts, and all others restart before it is
            // admitted.
            9 => {
                let mut early = Rng::stream(seed, 0x6561_726c);
                let first = (early.below(2) == 0).then_some(server);
                for server in net.servers.clone() {
                    let is_first = Some(server) == first;
                    let down = if first.is_none() || is_first { at } else { until };
                    net.world.schedule(down, Fault::Crash(server));
                    let since = if is_first { at } else { until };
                    let back = since + Nanos::from_micros(rng.between(0, 3000));
                    net.world.schedule(back, Fault::Restart(server));
                    last = last.max(back);
                    crashed.insert(server);
                }
            }
            _ => {
                let (cut, heal) =
                    draw_partition(&net, at).unwrap_or_else(|| environment::cut(&net.world, link, at));
                net.world.schedule(at, cut);
                net.world.schedule(until, heal);
            }
        }
    }
    net.run_until(last);
    net.check()?;
    if !catch_up(&mut net, seed)? && crashed.len() <= usize::from(servers / 2) {
        return Err("a majority never crashed, but the group makes no progress".into());
    }
    Ok(net)
}

/// Runs a seed with repeated changes of leader. Each leader is cut off, paused or crashed after some frames,
/// in the middle of its writes. Values have few different lengths, so that they overwrite each other exactly.
fn changes(seed: u64, tune: impl FnOnce(&mut ClusterConfig)) -> Result<Cluster, String> {
    let mut rng = Rng::new(seed ^ 0x6368_616e);
    let mut config = draw_config(seed, &mut rng, 1500);
    config.window = config.window.min(4);
    config.max_proposals = 200;
    tune(&mut config);
    let mut net = Cluster::new(&config);
    drift_and_rehash(&mut net, seed);
    let max_crashes = net.servers.len() / 2;
    let mut end = Nanos::from_millis(10) + Nanos::from_micros(rng.between(0, 300));
    net.run_until(end);
    let (mut crashes, mut last) = (0, Nanos::ZERO);
    let mut lost_leaders: Vec<(usize, bool)> = Vec::new();
    for _ in 0..rng.between(2, 6) {
        let now = net.world.now();
        // Some servers do not receive what is sent now, ...
        let unreachable: Vec<usize> = (0..net.servers.len()).filter(|_| rng.below(3) == 0).collect();
        let links = links_of(&net, &unreachable);
        net.world.schedule(now, Fault::Cut(links.clone()));
        let leader = candidate(&net).unwrap_or(0);
        let (frames, end_of_wait) = (rng.below(60), now + Nanos::from_micros(rng.between(20, 400)));
        run_for_frames(&mut net, leader, frames, end_of_wait);
        let now = net.world.now();
        net.world.schedule(now, Fault::Heal(links));
        // ... and then the leader is lost, for a while or for good, and the servers that were lost before
        // come back.
        for (server, is_cut) in lost_leaders.drain(..) {
            let links = links_of(&net, &[server]);
            let fault = if is_cut { Fault::Heal(links) } else { Fault::Resume(net.servers[server]) };
            net.world.schedule(now + Nanos::from_micros(rng.below(300)), fault);
        }
        match rng.below(5) {
            0 if crashes < max_crashes => {
                crashes += 1;
                net.world.schedule(now, Fault::Crash(net.servers[leader]));
                if rng.below(2) == 0 {
                    let back = now + Nanos::from_micros(rng.between(100, 20_000));
                    net.world.schedule(back, Fault::Restart(net.servers[leader]));
                    last = last.max(back);
                }
            }
            1 => {
                net.world.schedule(now, Fault::Pause(net.servers[leader]));
                lost_leaders.push((leader, false));
            }
            _ => {
                let links = links_of(&net, &[leader]);
                net.world.schedule(now, Fault::Cut(links));
                lost_leaders.push((leader, true));
            }
        }
        // Until another server requests permission to write
        end = now + Nanos::from_millis(8);
        while candidate(&net).is_none_or(|next| next == leader) && net.step(end) {}
    }
    let now = net.world.now();
    for (server, is_cut) in lost_leaders {
        let links = links_of(&net, &[server]);
        let fault = if is_cut { Fault::Heal(links) } else { Fault::Resume(net.servers[server]) };
        net.world.schedule(now, fault);
    }
    net.run_until(last.max(now + Nanos::from_micros(300)));
    net.check()?;
    if catch_up(&mut net, seed)? { Ok(net) } else { Err("the group makes no progress".into()) }
}

/// Crashes server 0 before it bootstraps the group or, if `begun`, afterwards but before another server has
/// learned of it. The other servers, a majority that never crashes, wait until server 0 is
/// started. Returns the result of [`catch_up`], and how often the group was bootstrapped until then.
fn catch_up_after_an_early_crash(begun: bool) -> (Result<bool, String>, u64) {
    let mut net = Cluster::new(&ClusterConfig { bootstraps: begun, ..ClusterConfig::default() });
    while begun && net.bootstrap_count() == 0 && net.step(Nanos::from_millis(5)) {}
    let now = net.world.now();
    // Two overlapping crashes
    for _ in 0..2 {
        net.world.schedule(now, Fault::Crash(net.servers[0]));
    }
    net.run_until(now + Nanos::from_millis(10));
    assert_eq!((net.bootstrap_count(), net.entries(), net.members()), (u64::from(begun), 0, vec![]));
    (catch_up(&mut net, 1), net.bootstrap_count())
}

#[test]
fn a_group_whose_bootstrap_was_interrupted_continues_when_all_servers_run() {
    assert_eq!(catch_up_after_an_early_crash(false), (Ok(true), 1));
    assert_eq!(catch_up_after_an_early_crash(true), (Ok(true), 2));
}

fn logs_agree(part: u64) {
    let (mut entries, mut installed, mut requests) = (0, 0, 0);
    for seed in seeds(part) {
        for net in [run(seed, |_| {}), changes(seed, |_| {})] {
            let net = net.unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
            entries += net.entries();
            installed += net.apps().map(Proposer::installed).sum::<u64>();
            requests += net.requests_of_outsider();
        }
    }
    let enough = entries > 100 && installed > 2 && requests > 10;
    println!("{entries} entries, {installed} snapshots, {requests} requests of an outsider");
    assert!(enough || !environment::selects_default_seeds());
}

#[cfg(debug_assertions)]
#[test]
fn planted_bugs_are_found() {
    use consensus::Bug;
    // The schedules of the module `majorities` find these sooner.
    let is_elsewhere =
        |bug: &Bug| matches!(bug, Bug::CountsBlank | Bug::OldTermByCount | Bug::BootstrapsOverEntries);
    for bug in Bug::ALL.into_iter().filter(|bug| !is_elsewhere(bug)) {
        let plant = |config: &mut ClusterConfig| config.bug = Some(bug);
        let found = environment::find_bug("consensus", &bug, 1..251, |seed| {
            run(seed, plant).err().or_else(|| changes(seed, plant).err())
        });
        let (seed, wrong) = found.unwrap_or_else(|| panic!("{bug:?} was not found"));
        println!("{bug:?}: seed {seed}: {wrong}");
    }
}

#[test]
fn several_workers_of_the_switch_let_logs_agree() {
    for seed in environment::seeds("consensus_workers", SEEDS / 2) {
        let plant = |config: &mut ClusterConfig| {
            config.through_switch = true;
            config.workers = Workers::drawn(seed);
            config.queue_pairs *= config.workers.count.next_power_of_two();
        };
        for net in [run(seed, plant), changes(seed, plant)] {
            let net = net.unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
            assert!(!environment::selects_default_seeds() || net.entries() > 0, "seed {seed}");
        }
    }
}

#[test]
fn logs_agree_in_the_first_quarter_of_the_seeds() {
    logs_agree(0);
}

#[test]
fn logs_agree_in_the_second_quarter_of_the_seeds() {
    logs_agree(1);
}

#[test]
fn logs_agree_in_the_third_quarter_of_the_seeds() {
    logs_agree(2);
}

#[test]
fn logs_agree_in_the_last_quarter_of_the_seeds() {
    logs_agree(3);
}
