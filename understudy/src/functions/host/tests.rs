//! Hosts and their services in the simulator.

use super::*;
use rnic::AckPolicy;
use sim::{Clock, Link, NodeId, Switch, World};
use switch::{Nanos, Probability};

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

fn add(world: &mut World, last: u8, services: Vec<ServiceConfig>) -> NodeId {
    let config = config(last, services);
    let make = move || Host::new(&config, [2, 0, 0, 0, 0, last]).unwrap();
    world.add(&last.to_string(), Switch::new(make), Clock::default())
}

fn rows(world: &World, host: NodeId) -> Vec<ServiceRow> {
    world.node::<Switch<Host>>(host).functions[0].status().lock().unwrap().services.clone()
}

/// Runs until the clients at `host` are done.
fn run(world: &mut World, host: NodeId) -> Vec<ServiceRow> {
    let until = Nanos::from_secs(3000);
    while world.node::<Switch<Host>>(host).events.is_empty() {
        assert!(world.step(until), "the clients do not finish: {:?}", rows(world, host));
    }
    // If the reply to a disconnection is lost, the request is retransmitted seconds later.
    let after = world.now() + Nanos::from_secs(60);
    world.run_until(after);
    rows(world, host)
}

/// Runs a server and a client with a link between them. Returns the client's report and the server's.
fn run_pair(seed: u64, link: Link, server: ServiceConfig, client: ServiceConfig) -> (ServiceRow, ServiceRow) {
    let mut world = World::new(seed);
    let a = add(&mut world, 1, vec![server]);
    let b = add(&mut world, 2, vec![client]);
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
    let a = add(&mut world, 1, vec![server(rping, 7174)]);
    let ten = ServiceConfig {
        client: Some(Client { server: [10, 0, 0, 1].into(), connections: 10, at_once: 4 }),
        ..client(rping, 7174, 10)
    };
    let config = HostConfig { max_qps, ..config(2, vec![ten]) };
    let make = move || Host::new(&config, [2, 0, 0, 0, 0, 2]).unwrap();
    let b = world.add("2", Switch::new(make), Clock::default());
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
