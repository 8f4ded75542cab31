//! Groups drawn from hundreds of seeds: networks lose, delay, duplicate and damage frames; hosts pause, crash
//! and are cut off.
//!
//! FROM and SEEDS select other seeds: `SEEDS=100000 FROM=5000 cargo test -p workloads --release --test it
//! rdmc::seeds`

use crate::environment;
use rdmc::{Algorithm, Failure, GroupConfig, Racks};
use sim::{Fault, Link, Queues};
use switch::{Nanos, Probability, Rng};
use workloads::rdmc::{Cluster, GroupState, SWITCH_MAC, Setup, ip, len_of, mac};

/// Faults of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Frames are lost, duplicated, reordered and damaged.
    Lossy,
    /// Some hosts' links are slow, delays jump, and hosts pause for a while.
    Slow,
    /// Hosts crash.
    Crashing,
    /// Hosts are cut off, some of them for good.
    Cut,
}

impl Kind {
    const ALL: [Self; 4] = [Self::Lossy, Self::Slow, Self::Crashing, Self::Cut];
}

/// Counts over all runs.
#[derive(Debug, Default)]
struct Totals {
    closed: usize,
    failed: usize,
    messages: usize,
    retransmitted: u64,
    /// Groups in which some members had a message that other members never received
    uneven: usize,
    /// Packets that hosts refused because their sender has no such queue pair: forged ones
    forged: u64,
    /// Groups that failed without a fault because a NIC had exhausted its retries
    retries_exhausted: u64,
}

/// An outage of a host: it is cut off or crashes.
#[derive(Clone, Copy, Debug)]
struct Outage {
    host: u16,
    from: Nanos,
    /// Whether the link drops long packets from then on. The members then connect by short packets, and the
    /// first block is lost.
    stops_blocks: bool,
    /// Whether clocks drift. Clocks that are slow by 1 % make timeouts longer.
    drifts: bool,
}

impl Outage {
    /// Returns whether members may detect the outage at time `at`. They detect it at once, or when keepalives
    /// of the member are missing. A member that was cut off when the other members detected it detects it
    /// when the time to connect is over. A link that drops blocks is detected when the group is open and the
    /// first block is sent. That may be equally late, if packets that connect two members were lost before
    /// (seeds 13020751 and 13024271).
    fn explains(&self, failure: Failure, at: Nanos) -> bool {
        let is_immediate = matches!(failure, Failure::Gone(_)) && !self.stops_blocks;
        let late = if is_immediate { Nanos::ZERO } else { CREATE_TIMEOUT };
        let late = if self.drifts { Nanos(late.0 / 99 * 100) } else { late };
        (self.from..=self.from + DETECTION_LIMIT + late).contains(&at)
    }
}

/// Time that members have to connect where some fail. A lost ARP request is repeated after half a second, and
/// a lost message of the switch's communication manager after four: three of these.
const CREATE_TIMEOUT: Nanos = Nanos::from_secs(10);
/// Time from a crash or cut until all other members have detected it and notified each other: 60 ms until a
/// link works again, 30 ms without a keepalive, and retransmissions
const DETECTION_LIMIT: Nanos = Nanos::from_millis(200);
/// The longest delay of a late frame
const MAX_LATENESS: Nanos = Nanos::from_millis(4);

fn percent(rng: &mut Rng, max: u64) -> Probability {
    Probability::new(rng.below(max * 100 + 1) as f64 / 10_000.0).unwrap_or(Probability::NEVER)
}

fn algorithm(rng: &mut Rng, n: u16) -> Algorithm {
    match rng.below(8) {
        0 => Algorithm::Sequential,
        1 => Algorithm::Chain,
        2 => Algorithm::Tree,
        3 => Algorithm::InNetwork,
        4 => {
            let racks: Vec<u64> = (0..n).map(|_| rng.below(4)).collect();
            Racks::new(&racks).map_or(Algorithm::Pipeline, Algorithm::Hybrid)
        }
        _ => Algorithm::Pipeline,
    }
}

fn setup(seed: u64, kind: Kind, rng: &mut Rng) -> Setup {
    let mut link = Link { delay: Nanos(rng.between(200, 4000)), ..Link::default() };
    match kind {
        Kind::Lossy => {
            link.loss = percent(rng, 4);
            link.duplicate = percent(rng, 3);
            link.reorder = percent(rng, 3);
            link.reorder_by = Nanos(rng.between(500, 20_000));
            link.corrupt = percent(rng, 2);
        }
        Kind::Slow => {
            link.rate_bps = *rng.pick(&[1_000_000_000, 10_000_000_000, 100_000_000_000]);
            link.jitter = Nanos(rng.below(50_000));
        }
        Kind::Crashing | Kind::Cut => link.loss = percent(rng, 1),
    }
    // A lost ARP request is repeated after half a second, and a lost message of the switch's communication
    // manager after four seconds.
    let has_no_outages = matches!(kind, Kind::Lossy | Kind::Slow);
    let create_timeout = if has_no_outages { Nanos::from_secs(40) } else { CREATE_TIMEOUT };
    let hosts = rng.between(2, 9) as u16;
    // Seeds with lossy links keep the usual queues, so that recorded seeds keep their meaning.
    let queues = if kind == Kind::Lossy { Queues::USUAL } else { Queues::drawn(seed) };
    if kind == Kind::Slow {
        link.reorder = percent(&mut Rng::stream(seed, 0x6f72_6465), 2);
        environment::late(&mut link, seed, MAX_LATENESS);
        environment::short_queue(&mut link, seed);
    }
    if kind == Kind::Lossy && environment::late(&mut link, seed, MAX_LATENESS) {
        // A frame that is later than the NICs' timeout costs a retry, as a lost one does.
        link.loss = Probability::new(link.loss.get() / 2.0).unwrap_or(Probability::NEVER);
    }
    let mut setup = Setup {
        seed,
        hosts,
        link,
        create_timeout,
        queues,
        same_keys_after_restart: environment::same_keys_after_restart(seed),
        first_psn: environment::psns_near_the_wrap(seed),
        ..Setup::default()
    };
    // A separate stream, so that all other draws of the seed stay the same.
    let mut forgery = Rng::stream(seed, 0x6c69_6573);
    setup.forged_rounds = if forgery.below(3) == 0 { forgery.between(10, 200) } else { 0 } as u32;
    if kind == Kind::Slow {
        // A block takes longer than the NICs' default timeout.
        setup.ack_timeout = 11;
        for _ in 0..rng.below(3) {
            let rate_bps = link.rate_bps / rng.between(2, 10);
            let delay = Nanos(link.delay.0 * rng.between(1, 10));
            setup.links.push((rng.below(hosts.into()) as u16, Link { rate_bps, delay, ..link }));
        }
    }
    setup
}

/// Makes clocks drift and UDP source ports change in some seeds. Returns whether clocks drift.
fn drift_and_rehash(cluster: &mut Cluster, seed: u64) -> bool {
    let (hosts, within) = (cluster.hosts.clone(), Nanos::from_millis(2));
    environment::rehash(&mut cluster.world, &hosts, seed, within);
    environment::drift(&mut cluster.world, &[&hosts[..], &[cluster.switch]].concat(), seed, within)
}

/// Schedules crashes, pauses and cuts. Returns the outages, and the time by which all faults are over.
fn schedule_faults(cluster: &mut Cluster, seed: u64, kind: Kind, rng: &mut Rng) -> (Vec<Outage>, Nanos) {
    let drifts = drift_and_rehash(cluster, seed);
    let hosts = cluster.hosts.len() as u64;
    let begun = cluster.world.now();
    let (mut outages, mut last) = (Vec::<Outage>::new(), Nanos::ZERO);
    let links: Vec<_> = cluster.world.links().collect();
    for _ in 0..rng.between(1, 3) {
        let host = rng.below(hosts) as u16;
        let node = cluster.hosts[usize::from(host)];
        // Mostly while blocks are in flight, sometimes while the group is being created
        let within = *rng.pick(&[100_000, 400_000, 2_000_000]);
        let at = Nanos(rng.below(within));
        match kind {
            Kind::Lossy => {}
            Kind::Slow => {
                // Shorter than the time after which a host counts as gone
                let until = at + Nanos(rng.between(1000, 8_000_000));
                cluster.world.schedule(at, Fault::Pause(node));
                cluster.world.schedule(until, Fault::Resume(node));
                last = last.max(until);
            }
            Kind::Crashing => {
                if !outages.iter().any(|outage| outage.host == host) {
                    outages.push(Outage { host, from: begun + at, stops_blocks: false, drifts });
                    cluster.world.schedule(at, Fault::Crash(node));
                    if rng.below(2) == 0 {
                        cluster.world.schedule(at + Nanos(rng.below(5_000_000)), Fault::Restart(node));
                    }
                }
            }
            Kind::Cut => {
                let (cut, heal) = crate::environment::cut(&cluster.world, links[usize::from(host)], at);
                let stops_blocks = matches!(cut, Fault::Mtu(..));
                let mut outage = Outage { host, from: begun + at, stops_blocks, drifts };
                if let Fault::Swap(_, other) = cut {
                    let host = links.iter().position(|link| *link == other);
                    outages.extend(host.map(|host| Outage { host: host as u16, ..outage }));
                }
                cluster.world.schedule(at, cut);
                if rng.below(3) > 0 {
                    let until = at + Nanos(rng.below(60_000_000));
                    cluster.world.schedule(until, heal);
                    last = last.max(until);
                    outage.stops_blocks = false;
                }
                outages.push(outage);
            }
        }
        last = last.max(at);
    }
    if kind == Kind::Cut {
        schedule_partition(cluster, seed, (begun, drifts), &mut outages, &mut last);
    }
    (outages, last)
}

/// In a quarter of the seeds, two members, or a member and the switch, cannot reach each other from some time
/// on, whereas all other paths work.
fn schedule_partition(
    cluster: &mut Cluster,
    seed: u64,
    (begun, drifts): (Nanos, bool),
    outages: &mut Vec<Outage>,
    last: &mut Nanos,
) {
    // A separate stream, so that all other draws of the seed stay the same.
    let mut rng = Rng::stream(seed, 0x7061_7274);
    if rng.below(4) > 0 {
        return;
    }
    let hosts = cluster.hosts.len() as u64;
    let within = *rng.pick(&[100_000, 400_000, 2_000_000]);
    let at = Nanos(rng.below(within));
    let a = rng.below(hosts) as u16;
    let b = rng.below(hosts + 1) as u16;
    let other = if u64::from(b) < hosts { mac(b) } else { SWITCH_MAC };
    cluster.world.schedule(at, Fault::PartitionPair(mac(a), other));
    if rng.below(3) > 0 {
        let until = at + Nanos(rng.below(60_000_000));
        cluster.world.schedule(until, Fault::HealPair(mac(a), other));
        *last = (*last).max(until);
    }
    *last = (*last).max(at);
    let outage = |host| Outage { host, from: begun + at, stops_blocks: false, drifts };
    outages.extend([a, b].map(outage));
}

/// Checks that an outage explains each failure that a member reports. The member that the failure names was
/// cut off or down; or it had itself reported a failure before, as it could reach no member; or the switch
/// gave up a group to which it belonged. A member that failed before it could announce the group as created
/// counts as one that did not create it.
fn check_failures_are_explained(
    cluster: &Cluster,
    outages: &[Outage],
    number: u32,
    hosts: &[u16],
) -> Result<(), String> {
    let failed = |host: u16| cluster.failure(host, number);
    for host in hosts {
        let Some((failure, at)) = failed(*host) else { continue };
        let (is_loss, is_late) = match failure {
            Failure::Gone(_) | Failure::Switch(_) => (true, false),
            Failure::NotCreated(_) | Failure::NotJoined(_) => (true, true),
            _ => (false, false),
        };
        let member = hosts.iter().find(|host| ip(**host) == failure.member());
        let is_cause = |outage: &Outage| {
            let was_reported = |(other, when)| other == failure && when <= at;
            // A member whose time limit is the same names the member that it could not reach itself.
            let failed_before = |member: &u16| {
                failed(*member)
                    .is_some_and(|(why, when)| when < at || when == at && why.member() == ip(outage.host))
            };
            // A fast clock ends the time limit before the member that is named reaches its own, and that
            // member then learns that it is named (seed 40003995).
            let is_notified =
                |member: &u16| outage.drifts && failed(*member).is_some_and(|(why, _)| why == failure);
            failure == Failure::Switch(ip(hosts[0]))
                || member == Some(&outage.host)
                || failed(outage.host).is_some_and(was_reported)
                || is_late && member.is_some_and(|member| failed_before(member) || is_notified(member))
        };
        let mut of_group = outages.iter().filter(|outage| hosts.contains(&outage.host));
        if !is_loss || !of_group.any(|outage| outage.explains(failure, at) && is_cause(outage)) {
            return Err(format!(
                "host {host} reports at {at:?} for group {number}: {failure}; no outage explains this: {outages:?}"
            ));
        }
    }
    Ok(())
}

/// Runs a seed, and checks it. `plant` changes the setup of the hosts.
fn run(seed: u64, plant: impl Fn(&mut Setup), totals: &mut Totals) -> Result<(), String> {
    let kind = Kind::ALL[seed as usize % Kind::ALL.len()];
    let mut rng = Rng::stream(seed, 0x5244_4d43);
    let mut setup = setup(seed, kind, &mut rng);
    plant(&mut setup);
    let mut cluster = Cluster::new(&setup);
    let all: Vec<u16> = (0..setup.hosts).collect();
    // Up to three groups, which share hosts; the first one has all hosts.
    let mut groups = Vec::new();
    for number in 1..=rng.between(1, 3) as u32 {
        let mut hosts = all.clone();
        hosts.rotate_left(rng.below(all.len() as u64) as usize);
        if number > 1 {
            hosts.truncate(rng.between(2, all.len() as u64) as usize);
        }
        let config = GroupConfig {
            algorithm: algorithm(&mut rng, hosts.len() as u16),
            block_bytes: *rng.pick(&[1, 700, 1024, 5000, 40_000]),
            max_in_flight: rng.between(1, 4) as u32,
            ..GroupConfig::new(number, Vec::new())
        };
        cluster.create(&config, &hosts).map_err(|error| error.to_string())?;
        // Short messages, too: a single block takes another route than two blocks do.
        let max = (config.block_bytes * *rng.pick(&[2, 24])).min(60_000);
        let messages = rng.below(5) as usize;
        for message in 0..messages {
            cluster
                .send(hosts[0], number, len_of(number, message as u64, max))
                .map_err(|error| error.to_string())?;
        }
        cluster.destroy(number, &hosts);
        groups.push((number, hosts, messages, config));
    }
    let (outages, last) = schedule_faults(&mut cluster, seed, kind, &mut rng);
    let down = outages.iter().filter(|_| kind == Kind::Crashing);
    let crashed: Vec<u16> = down.map(|outage| outage.host).collect();
    let context = |what: String| {
        format!(
            "{kind:?} {:?}: {what}",
            groups
                .iter()
                .map(|(_, hosts, messages, config)| (
                    hosts.len(),
                    messages,
                    config.algorithm.name(),
                    config.block_bytes
                ))
                .collect::<Vec<_>>()
        )
    };
    let end = last + Nanos::from_secs(60);
    for (number, hosts, messages, _) in &groups {
        let survivors: Vec<u16> = hosts.iter().copied().filter(|host| !crashed.contains(host)).collect();
        cluster.run_until_ended(end, *number, &survivors);
        cluster.check_end(*number, hosts, &crashed, *messages).map_err(&context)?;
        let counts = || hosts.iter().map(|host| cluster.member(*host).messages(*number));
        for host in &survivors {
            match cluster.group_state(*host, *number) {
                GroupState::Closed => totals.closed += 1,
                _ => totals.failed += 1,
            }
        }
        totals.messages += counts().sum::<usize>();
        totals.uneven += usize::from(counts().max() != counts().min());
        let now = |host: &u16| cluster.group_state(*host, *number);
        let is_lost = |host| {
            matches!(
                now(host),
                GroupState::Closed | GroupState::Failed(Failure::Gone(_) | Failure::Switch(_))
            )
        };
        let gave_up = hosts.iter().any(|host| cluster.nic(*host).retries_exceeded > 0);
        let open = hosts.iter().find(|host| now(host) != GroupState::Closed);
        let has_no_outages = matches!(kind, Kind::Lossy | Kind::Slow);
        if let Some(host) = open.filter(|_| has_no_outages) {
            // Eight losses in a row of the same packet or of its response
            if !gave_up || !hosts.iter().all(is_lost) {
                return Err(context(format!("group {number} is {:?} at {host}", now(host))));
            }
            totals.retries_exhausted += 1;
        } else {
            check_failures_are_explained(&cluster, &outages, *number, hosts).map_err(&context)?;
        }
    }
    let survivors: Vec<u16> = all.iter().copied().filter(|host| !crashed.contains(host)).collect();
    cluster.check_memory(&survivors).map_err(context)?;
    // NICs that crashed restart their counters.
    totals.forged += all.iter().map(|host| cluster.nic(*host).no_qp).sum::<u64>();
    totals.retransmitted += all.iter().map(|host| cluster.nic(*host).retransmitted).sum::<u64>();
    Ok(())
}

/// Seeds of all kinds in `make test`; `make soak` runs others.
const SEEDS: u64 = 120;
/// Minimum of refused packets in these seeds of a kind in which hosts are sound. Without forged packets, it
/// is half of that.
const MIN_FORGED: u64 = 600;

fn seeds(kind: Kind, is_covered: impl Fn(&Totals) -> bool) {
    let mut totals = Totals::default();
    let mut seeds = 0;
    for seed in crate::environment::seeds("rdmc", SEEDS) {
        seeds += 1;
        if Kind::ALL[seed as usize % Kind::ALL.len()] == kind
            && let Err(what) = run(seed, |_| {}, &mut totals)
        {
            panic!("seed {seed}: {what}");
        }
    }
    println!("{kind:?}: {totals:?}");
    assert!(totals.retries_exhausted <= 1 + seeds / 10_000, "{totals:?}");
    if crate::environment::selects_default_seeds() {
        assert!(totals.messages > 100 && is_covered(&totals), "{totals:?}");
    }
}

#[test]
fn lossy_links_lose_no_messages() {
    let is_covered = |totals: &Totals| totals.closed > 200 && totals.retransmitted > 200;
    seeds(Kind::Lossy, |totals| is_covered(totals) && totals.forged > MIN_FORGED);
}

/// With a loss of 3.6 % and damage to 1.6 % of frames, a NIC transmits one packet eight times without a
/// response.
#[test]
fn a_group_may_fail_if_its_nic_exhausted_its_retries() {
    let mut totals = Totals::default();
    run(2_021_852, |_| {}, &mut totals).unwrap();
    assert_eq!(totals.retries_exhausted, 1);
}

#[test]
fn slow_links_and_paused_hosts_lose_no_messages() {
    seeds(Kind::Slow, |totals| totals.closed > 200 && totals.forged > MIN_FORGED);
}

#[test]
fn crashes_are_reported_to_all_members() {
    seeds(Kind::Crashing, |totals| totals.failed > 60 && totals.closed > 20 && totals.uneven > 4);
}

#[test]
fn members_on_both_sides_of_a_cut_are_notified() {
    seeds(Kind::Cut, |totals| totals.failed > 60 && totals.closed > 20 && totals.uneven > 4);
}

#[cfg(debug_assertions)]
#[test]
fn planted_bugs_are_found() {
    for bug in rdmc::Bug::ALL {
        let found = crate::environment::find_bug("rdmc", &bug, 1..1001, |seed| {
            run(seed, |setup| setup.bug = Some(bug), &mut Totals::default()).err()
        });
        println!("{bug:?}: {found:?}");
        assert!(found.is_some(), "{bug:?} was not found");
    }
}
