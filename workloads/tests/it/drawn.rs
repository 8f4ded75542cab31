//! What a seed of the word workload draws, independent of the switch between clients and servers.

use rnic::{AckPolicy, PathMtu};
use sim::{Fault, Link};
use switch::{Nanos, Probability, Rng};
use workloads::words::{Cluster, Config};

/// Longest time in microseconds that a request may take from the switch to a server. It is below the smallest
/// `settle` of all suites.
const MAX_REQUEST_DELAY_US: u64 = 300;
/// How long an access right counts as proven where some are revoked
pub(crate) const PROOF_LIFETIME: Nanos = Nanos::from_micros(100);

/// Draws a link with four impairments. Each is absent in half of the cases, and otherwise affects a share of
/// up to `max` of all frames.
fn draw_link(rng: &mut Rng, max: f64) -> Link {
    let mut share = || {
        let share = Probability::new(rng.below(1000) as f64 / 1000.0 * max).unwrap();
        if rng.below(2) == 0 { Probability::NEVER } else { share }
    };
    Link { loss: share(), duplicate: share(), reorder: share(), corrupt: share(), ..Link::default() }
}

/// Draws the configuration of a seed. Some have many clients with few operations each. `forgetful` is the
/// share of NICs that do not keep the results of old READs and atomics.
pub(crate) fn drawn(seed: u64, forgetful: Probability) -> (Config, Rng) {
    let mut rng = Rng::new(seed);
    let many = rng.below(40) == 0;
    let clients = if many { rng.between(64, 256) } else { rng.between(2, 16) } as u16;
    let depth = if many { rng.between(1, 4) } else { 1 << rng.below(7) } as u32;
    let mut config = Config {
        seed,
        clients,
        servers: if rng.below(5) == 0 { rng.between(2, 3) as u16 } else { 1 },
        connections: if many { 1 } else { rng.between(1, 3) as u32 },
        operations: if many { rng.between(3, 8) } else { rng.between(10, 40) } as u32,
        depth,
        max_rd_atomic: [1, 2, 4, 16][rng.below(4) as usize],
        words: if rng.below(3) == 0 { rng.between(1, 80) } else { rng.between(1, 4) } as u32,
        zipf: [0.0, 0.99][rng.below(2) as usize],
        mix: match rng.below(4) {
            0 => [1, 0, 0, 0, 0, 0, 0, 0, 0],
            1 => [4, 4, 4, 4, 0, 0, 0, 0, 0],
            _ => [4, 3, 3, 3, 1, 1, 1, 1, 1],
        },
        sections: if many { 1 } else { rng.below(8) as u32 },
        pages: rng.between(1, 4) as u32,
        page_size: rng.between(8, 3000) as u32,
        max_size: rng.between(8, 3000) as u32,
        mtu: PathMtu::ALL[rng.below(3) as usize],
        own_keys: rng.below(3) == 0,
        separate_keys: rng.below(2) == 0,
        by_cm: rng.below(4) == 0,
        equal_psns: rng.below(4) == 0,
        v6: rng.below(4) == 0,
        timeout: rng.between(5, 8) as u8,
        window: rng.between(4, 64) as u32,
        ack: match rng.below(3) {
            0 => AckPolicy::EveryPacket,
            1 => AckPolicy::OnRequest,
            _ => AckPolicy::Every {
                packets: rng.between(2, 16) as u32,
                time: Nanos::from_micros(rng.between(1, 20)),
            },
        },
        forgetful,
        receives: rng.between(1, 16) as u32,
        repost_us: if rng.below(4) == 0 { 20 } else { 0 },
        client_link: if rng.below(4) == 0 { Link::default() } else { draw_link(&mut rng, 0.05) },
        server_link: if rng.below(4) == 0 { Link::default() } else { draw_link(&mut rng, 0.05) },
        ..Config::default()
    };
    // Separate streams from here on: other draws of the seed do not depend on these.
    let mut paths = Rng::stream(seed, 0x7061_7468);
    config.rehashes = paths.below(5) as u32;
    config.forged_rounds = if paths.below(3) == 0 { paths.between(1, 40) } else { 0 } as u32;
    // Late frames, and duplicates of frames that were sent long before
    let mut late = Rng::stream(seed, 0x6c61_7465);
    if late.below(4) == 0 {
        config.client_link.reorder_by = Nanos::from_micros(late.between(20, 5000));
        config.server_link.reorder_by = Nanos::from_micros(late.between(20, MAX_REQUEST_DELAY_US));
    }
    // Short queues at the switch's ports to clients. A server's port, where the traffic of all clients meets,
    // has room for a window of each.
    crate::environment::short_queue(&mut config.client_link, seed);
    let mut local = Rng::stream(seed, 0x6c6f_6361);
    config.local_words = if local.below(8) == 0 { local.between(1, config.words.into()) } else { 0 } as u32;
    // Messages of up to 64 KB, of few clients only: memory is reserved for every message that may be
    // outstanding.
    let mut long = Rng::stream(seed, 0x6c6f_6e67);
    if long.below(20) == 0 {
        config.max_size = long.between(3000, 65536) as u32;
        (config.clients, config.depth) = (config.clients.min(4), config.depth.min(4));
        (config.connections, config.receives) = (1, config.receives.min(4));
    }
    (config, rng)
}

/// Returns `config` for a network in which nodes crash and connections may fail.
pub(crate) fn may_fail(config: &Config, rng: &mut Rng) -> Config {
    let mut rights = Rng::stream(config.seed, 0x7269_6768);
    let revocations = if rights.below(3) == 0 { rights.between(1, 3) } else { 0 } as u32;
    let mut config = config.clone();
    if restart_rng(config.seed).is_some() {
        // Many words, so that some still have their state from before the restart when the first operations
        // after it bypass the switch's cache.
        let mut rng = Rng::stream(config.seed, 0x776f_7264);
        config.words = rng.between(16, 80) as u32;
        config.local_words = config.local_words.min(config.words);
        // The whole seed of the NIC repeats: with the communication manager, its ids and PSNs would repeat,
        // too.
        config.same_keys_after_restart = !config.by_cm && rng.below(2) == 0;
        config.keeps_memory = rng.below(3) == 0;
    }
    let retry_count = rng.between(3, 7);
    let mut timeout = rng.between(3, 6) as u8;
    // All clients may contend for one word, which takes a round trip of 2 us or more per read and write. No
    // request may time out before its turn.
    let turns = 8_000 * u64::from(config.clients) * u64::from(config.connections);
    while (4096 << timeout) * (retry_count + 1) < turns {
        timeout += 1;
    }
    // A new queue pair relies on no packet of the old one being in flight any more: the CM's TIMEWAIT lasts
    // as long as the ACK timeout assumes for the lifetime of packets.
    let latest = Nanos((4096 << timeout) / 2).max(Link::default().reorder_by);
    for link in [&mut config.client_link, &mut config.server_link] {
        link.reorder_by = link.reorder_by.min(latest);
    }
    Config {
        may_fail: true,
        revocations,
        revoked_within: PROOF_LIFETIME + Nanos(PROOF_LIFETIME.0 / 2),
        retry_count: retry_count as u8,
        timeout,
        linger: rng.below(2) == 0,
        reconnect_after: Nanos::from_micros(rng.between(200, 500)),
        ..config
    }
}

/// Makes the clocks of hosts and switches drift in some seeds.
pub(crate) fn drift(net: &mut Cluster) {
    let (nodes, seed) = (net.nodes(), net.seed());
    crate::environment::drift(&mut net.world, &nodes, seed, Nanos::from_micros(500));
}

/// Schedules one to four faults of clients, of the switch and, rarely, of a server, then restarts of servers
/// and partitions of pairs of hosts.
pub(crate) fn schedule_faults(net: &mut Cluster, rng: &mut Rng) {
    for _ in 0..rng.between(1, 4) {
        let at = Nanos::from_micros(rng.between(1, 200));
        let until = at + Nanos::from_micros(rng.between(1, 2000));
        let client = net.clients[rng.below(net.clients.len() as u64) as usize];
        let links: Vec<_> = net.world.links().collect();
        let link = links[rng.below(links.len() as u64) as usize];
        let (first, then) = match rng.below(16) {
            0..3 => (Fault::Crash(client), None),
            3..8 => (Fault::Crash(client), Some(Fault::Restart(client))),
            8..12 => (Fault::Crash(net.sides.servers), Some(Fault::Restart(net.sides.servers))),
            12 => {
                let server = net.servers[rng.below(net.servers.len() as u64) as usize];
                (Fault::Crash(server), Some(Fault::Restart(server)))
            }
            13 => (Fault::Pause(client), Some(Fault::Resume(client))),
            _ => {
                let (cut, heal) = crate::environment::cut(&net.world, link, at);
                (cut, Some(heal))
            }
        };
        net.schedule(at, first);
        if let Some(then) = then {
            net.schedule(until, then);
        }
    }
    restart_servers(net);
    part(net);
}

/// Returns the stream from which a temporary partition between one client and one server is drawn, in a
/// quarter of the seeds.
pub(crate) fn partition_rng(seed: u64) -> Option<Rng> {
    // A separate stream, so that all other draws of the seed stay the same.
    let mut rng = Rng::stream(seed, 0x7061_7274);
    (rng.below(4) == 0).then_some(rng)
}

fn part(net: &mut Cluster) {
    let Some(mut rng) = partition_rng(net.seed()) else { return };
    let at = Nanos::from_micros(rng.between(1, 200));
    let until = at + Nanos::from_micros(rng.between(1, 2000));
    let [client, server] = [&net.clients, &net.servers].map(|hosts| rng.below(hosts.len() as u64) as u16);
    net.partition(client, server, at, until);
}

/// Returns the stream from which restarts of servers are drawn, in a third of the seeds.
fn restart_rng(seed: u64) -> Option<Rng> {
    let mut rng = Rng::stream(seed, 0x7265_7374);
    (rng.below(3) == 0).then_some(rng)
}

/// Restarts servers with empty memory repeatedly, sometimes before any client detects it.
fn restart_servers(net: &mut Cluster) {
    let Some(mut rng) = restart_rng(net.seed()) else { return };
    let mut at = Nanos::from_micros(rng.between(20, 400));
    for _ in 0..rng.between(1, 4) {
        let server = net.servers[rng.below(net.servers.len() as u64) as usize];
        net.schedule(at, Fault::Crash(server));
        at = at + Nanos::from_micros(1 << rng.between(0, 8));
        net.schedule(at, Fault::Restart(server));
        at = at + Nanos::from_micros(rng.between(300, 3000));
    }
}
