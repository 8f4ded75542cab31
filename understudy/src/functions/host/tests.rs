//! Hosts and their services in the simulator.

use super::status::Total;
use super::*;
use rnic::AckPolicy;
use sim::{Clock, Controlled, Link, NodeId, Queues, Workers, World};
use switch::{Function as _, Nanos, Probability};

fn config(last: u8, services: Vec<ServiceConfig>) -> HostConfig {
    HostConfig {
        mac: None,
        addresses: vec![([10, 0, 0, last].into(), 24)],
        gateways: Vec::new(),
        vlan: None,
        mtu: PathMtu::B1024,
        window: 64,
        ack: AckPolicy::OnRequest,
        credits: false,
        max_qps: 256,
        seed: Some(last.into()),
        services,
        perftests: Vec::new(),
        workers: 1,
    }
}

fn server(kind: Kind, port: u16) -> ServiceConfig {
    ServiceConfig { kind, port, client: None }
}

fn client(kind: Kind, port: u16, connections: u32) -> ServiceConfig {
    ServiceConfig {
        kind,
        port,
        client: Some(Client { server: [10, 0, 0, 1].into(), connections, at_once: 64 }),
    }
}

/// Returns a host on these workers.
pub(super) fn node(config: HostConfig, mac: [u8; 6], workers: Workers) -> Controlled<HostControl> {
    let config = HostConfig { workers: workers.count, ..config };
    let count = workers.count;
    let mut functions = Vec::new();
    let make = move |worker| {
        if worker == 0 {
            functions = config.functions(mac).unwrap();
            functions.reverse();
        }
        functions.pop().expect("the functions of all workers are made in their order")
    };
    let queues = if count > 1 { Queues::drawn(workers.seed) } else { Queues::USUAL };
    Controlled::with_workers(workers, make, move |_| HostControl::new(count)).with_queues(queues)
}

fn add(world: &mut World, last: u8, services: Vec<ServiceConfig>, workers: Workers) -> NodeId {
    let host = node(config(last, services), [2, 0, 0, 0, 0, last], workers);
    world.add(&last.to_string(), host, Clock::default())
}

/// Returns the results of all services.
pub(super) fn rows(world: &World, host: NodeId) -> Vec<ServiceRow> {
    let functions = &world.node::<Controlled<HostControl>>(host).switch.functions;
    Total::of(&functions.iter().map(Host::status).collect::<Vec<_>>()).services
}

/// Runs until the clients at `host` are done.
fn run(world: &mut World, host: NodeId) -> Vec<ServiceRow> {
    let until = Nanos::from_secs(3000);
    while !world.node::<Controlled<HostControl>>(host).control.is_done() {
        assert!(world.step(until), "the clients do not finish: {:?}", rows(world, host));
    }
    // If the reply to a disconnection is lost, the request is retransmitted seconds later.
    let after = world.now() + Nanos::from_secs(60);
    world.run_until(after);
    rows(world, host)
}

/// Runs a server and a client with a link between them. Returns the client's report and the server's.
fn run_pair(seed: u64, link: Link, server: ServiceConfig, client: ServiceConfig) -> (ServiceRow, ServiceRow) {
    run_pair_on([Workers::ONE; 2], seed, link, server, client)
}

/// Runs a server and a client on these workers.
fn run_pair_on(
    workers: [Workers; 2],
    seed: u64,
    link: Link,
    server: ServiceConfig,
    client: ServiceConfig,
) -> (ServiceRow, ServiceRow) {
    let mut world = World::new(seed);
    let a = add(&mut world, 1, vec![server], workers[0]);
    let b = add(&mut world, 2, vec![client], workers[1]);
    world.connect(a, b, link);
    let rows_b = run(&mut world, b);
    (rows_b[0].clone(), rows(&world, a)[0].clone())
}

fn faulty_link(percent: u64) -> Link {
    let share = Probability::percent(percent);
    Link { loss: share, duplicate: share, reorder: share, corrupt: share, ..Link::default() }
}

#[test]
fn rping_completes_on_good_and_faulty_links() {
    for (seed, link) in [(1, Link::default()), (2, faulty_link(1)), (3, faulty_link(5))] {
        let server = server(Kind::Rping { count: 0, size: 100_000 }, 7174);
        let client = client(Kind::Rping { count: 20, size: 50_000 }, 7174, 8);
        let (client, server) = run_pair(seed, link, server, client);
        for row in [&client, &server] {
            assert_eq!((row.connections, row.finished, row.failed, row.refused), (8, 8, 0, 0), "{row:?}");
            assert_eq!(row.error, None);
        }
        // Two messages in each direction and, at the server, a READ and a WRITE. The last messages may be
        // unacknowledged when the client disconnects.
        assert!((8 * 20 * 4 - 8..=8 * 20 * 4).contains(&client.operations), "{client:?}");
        assert!((8 * 20 * 6 - 16..=8 * 20 * 6).contains(&server.operations), "{server:?}");
    }
}

#[test]
fn ucmatose_completes_on_good_and_faulty_links() {
    for (seed, link) in [(1, Link::default()), (2, faulty_link(1)), (3, faulty_link(5))] {
        let kind = Kind::Ucmatose { messages: 10, size: 3000 };
        let (client, server) = run_pair(seed, link, server(kind, 7471), client(kind, 7471, 100));
        for row in [&client, &server] {
            assert_eq!((row.connections, row.finished, row.failed), (100, 100, 0), "{row:?}");
            assert_eq!(row.error, None);
        }
    }
}

#[test]
fn failures_are_reported() {
    let rping = |size| Kind::Rping { count: 1, size };
    let (row, _) = run_pair(1, Link::default(), server(rping(64), 1), client(rping(64), 2, 3));
    assert_eq!((row.refused, row.connections, row.failed), (3, 0, 0));
    assert!(row.error.unwrap().starts_with("the server refused the connection: invalid_service_id"));
    let (client_row, server_row) =
        run_pair(1, Link::default(), server(rping(64), 1), client(rping(65), 1, 1));
    assert_eq!((client_row.connections, client_row.failed), (1, 1));
    assert_eq!(server_row.error.as_deref(), Some("received a ping of 65 bytes, but size is 64; raise size"));
    assert_eq!((server_row.connections, server_row.finished, server_row.failed), (1, 0, 1));
}

/// Returns the report of a client that has `max_qps` queue pairs and makes ten connections, four at once.
fn run_with_max_qps(max_qps: usize) -> ServiceRow {
    let mut world = World::new(1);
    let rping = Kind::Rping { count: 3, size: 64 };
    let a = add(&mut world, 1, vec![server(rping, 7174)], Workers::ONE);
    let ten = ServiceConfig {
        client: Some(Client { server: [10, 0, 0, 1].into(), connections: 10, at_once: 4 }),
        ..client(rping, 7174, 10)
    };
    let config = HostConfig { max_qps, ..config(2, vec![ten]) };
    let b = world.add("2", node(config, [2, 0, 0, 0, 0, 2], Workers::ONE), Clock::default());
    world.connect(a, b, Link::default());
    run(&mut world, b)[0].clone()
}

#[test]
fn a_client_with_few_queue_pairs_makes_its_connections_in_turn() {
    let row = run_with_max_qps(2);
    assert_eq!((row.connections, row.finished, row.failed, row.error), (10, 10, 0, None));
}

#[test]
fn a_client_without_queue_pairs_fails_all_connections_and_ends() {
    let row = run_with_max_qps(0);
    assert_eq!((row.connections, row.finished, row.failed), (0, 0, 10), "{row:?}");
    assert!(row.error.unwrap().starts_with("no resources for a connection"));
}

/// Draws several workers. With smaller rings, the packets of many connections are lost more often than retries allow.
pub(super) fn several_workers(seed: u64) -> Workers {
    Workers { ring: 1024, ..Workers::drawn(seed) }
}

/// Draws one worker, in a third of the seeds, or several.
fn drawn_workers(seed: u64) -> Workers {
    if seed.is_multiple_of(3) { Workers::ONE } else { several_workers(seed) }
}

#[test]
fn services_complete_on_several_workers() {
    let kinds = [Kind::Rping { count: 10, size: 10_000 }, Kind::Ucmatose { messages: 10, size: 3_000 }];
    for (seed, kind) in (1..=40).flat_map(|seed| kinds.map(|kind| (seed, kind))) {
        let mut rng = switch::Rng::stream(seed, 77);
        let workers = [drawn_workers(rng.bits()), drawn_workers(rng.bits())];
        let connections = rng.between(1, 30) as u32;
        let link = faulty_link(*rng.pick(&[0, 1, 3]));
        let at_once = rng.between(1, 40) as u32;
        let server_kind = match kind {
            Kind::Rping { size, .. } => Kind::Rping { count: 0, size },
            other => other,
        };
        let mut client = client(kind, 7174, connections);
        client.client.as_mut().unwrap().at_once = at_once;
        let (client, server) = run_pair_on(workers, seed, link, server(server_kind, 7174), client);
        let all = u64::from(connections);
        let is_complete = |row: &ServiceRow| {
            (row.connections, row.finished, row.failed, row.refused) == (all, all, 0, 0)
                && row.error.is_none()
        };
        assert!(is_complete(&client), "seed {seed}: {client:?}");
        // A client is done although the acknowledgement of the server's last message was lost. If its DREQ is lost, too,
        // the server retransmits to a queue pair that has ended.
        let lost_the_end = link.loss != Probability::NEVER
            && server.connections == server.finished + server.failed
            && server.failed <= 3
            && server.error.as_deref() == Some("Send failed: RetryExceeded");
        assert!(is_complete(&server) || lost_the_end, "seed {seed}: {server:?}");
        if let Kind::Rping { count, .. } = kind {
            // Two messages in each direction. The last one may be unacknowledged when the client disconnects.
            let operations = all * u64::from(count) * 4;
            assert!((operations - all..=operations).contains(&client.operations), "seed {seed}: {client:?}");
        }
    }
}

#[test]
fn parts_of_a_client_add_up_to_the_client() {
    for (connections, at_once, workers) in [(0, 1, 1), (1, 64, 4), (10, 3, 4), (7, 7, 2), (100, 1, 3)] {
        let all = Client { server: [10, 0, 0, 1].into(), connections, at_once };
        let parts: Vec<_> = (0..workers).map(|part| all.part(part, workers)).collect();
        let sum = parts.iter().map(|part| part.connections).sum::<u32>();
        let active = parts.iter().filter(|part| part.connections > 0);
        assert_eq!(sum, connections);
        assert!(active.clone().all(|part| part.at_once > 0), "{parts:?}");
        assert!(active.map(|part| part.at_once).sum::<u32>() <= at_once, "{parts:?}");
    }
}

#[test]
fn clients_with_one_connection_are_at_different_workers() {
    let services = (0..4).map(|port| client(Kind::Rping { count: 1, size: 64 }, port + 1, 1)).collect();
    let config = HostConfig { workers: 4, ..config(2, services) };
    for worker in 0..4 {
        let of_worker: u32 =
            config.part(worker, 1).services.iter().map(|s| s.client.unwrap().connections).sum();
        assert_eq!(of_worker, 1);
    }
}

#[test]
fn connections_to_a_server_and_from_a_client_are_at_all_workers() {
    for (seed, count) in (1..=12).zip([2, 3, 4].into_iter().cycle()) {
        let workers = Workers { count, ..several_workers(seed) };
        let mut world = World::new(seed);
        let rping = Kind::Rping { count: 2, size: 64 };
        let a = add(&mut world, 1, vec![server(rping, 7174)], workers);
        let b = add(&mut world, 2, vec![client(rping, 7174, 16)], workers);
        world.connect(a, b, Link::default());
        run(&mut world, b);
        for host in [a, b] {
            let functions = &world.node::<Controlled<HostControl>>(host).switch.functions;
            let connections = |host: &Host| host.status().lock().unwrap().services[0].connections;
            let of_workers: Vec<_> = functions.iter().map(connections).collect();
            assert!(of_workers.iter().all(|n| *n > 0), "seed {seed}: {of_workers:?}");
        }
    }
}

#[test]
fn tcp_connections_of_a_host_are_at_all_workers() {
    for workers in [2, 3, 4, 6, 8] {
        let config = HostConfig { workers, ..config(9, Vec::new()) };
        let host = &config.functions([2, 0, 0, 0, 0, 9]).unwrap()[0];
        let owner = |port| {
            let frame = perftest::tests::world::segment(7, 7, port, 2, 1, 0);
            host.owner(&switch::memory::MemoryFrame::new(frame), switch::PortId(0)).unwrap()
        };
        let owners: std::collections::BTreeSet<_> = (40_000..40_064).map(owner).collect();
        assert_eq!(owners, (0..workers).collect(), "{workers} workers");
    }
}

#[test]
fn notices_that_the_control_plane_does_not_take_are_bounded() {
    let config =
        HostConfig { workers: 2, addresses: vec![([10, 0, 0, 9].into(), 16)], ..config(9, Vec::new()) };
    let host = &mut config.functions([2, 0, 0, 0, 0, 9]).unwrap()[0];
    let mut out = switch::memory::FrameCollector::with_room(usize::MAX);
    for n in (0..10_000).cycle().take(20_000) {
        let mut frame = switch::memory::MemoryFrame::new(perftest::tests::world::arp_request(n));
        host.on_frame(&mut frame, switch::PortId(0), Nanos(u64::from(n)), &mut out);
    }
    assert_eq!(core::iter::from_fn(|| host.poll_event()).count(), 4096);
}
