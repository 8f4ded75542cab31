//! Clients and servers on the loopback interface.

mod faults;
mod world;

use management::{ClientEvent, Peer, Reason, Secret, ServerEvent};
use world::{Node, Servers, TOPOLOGY, config, secret};

#[test]
fn messages_go_both_ways_in_order() {
    let server = Servers::start(Some(secret()));
    let node = Node::start(config(&server, Peer::Process(3)));
    let id = server.connected(Peer::Process(3));
    node.wait(|event| matches!(event, ClientEvent::Connected(_)));
    for n in 0..200_u32 {
        node.client.send(&n.to_be_bytes());
        server.server.send(id, &n.to_be_bytes());
    }
    let long = vec![7; management::MAX_MESSAGE];
    node.client.send(&long);
    server.server.send(id, &long);
    for n in 0..200_u32 {
        assert_eq!(server.message(id), n.to_be_bytes());
        assert_eq!(node.message(), n.to_be_bytes());
    }
    assert_eq!(server.message(id), long);
    assert_eq!(node.message(), long);
    let counts = server.server.counts();
    assert_eq!((counts.opened, counts.received, counts.sent), (1, 201, 201));
}

#[test]
fn a_client_comes_back_to_a_server_that_has_restarted() {
    let server = Servers::start(None);
    let address = server.server.address();
    let node = Node::start(config(&server, Peer::Switch(1, 1)));
    server.connected(Peer::Switch(1, 1));
    node.wait(|event| matches!(event, ClientEvent::Connected(_)));
    drop(server);
    node.wait(|event| matches!(event, ClientEvent::Disconnected(at, _) if *at == address));
    let server = Servers::start_at(address, None);
    let id = server.connected(Peer::Switch(1, 1));
    server.server.send(id, b"welcome back");
    assert_eq!(node.message(), b"welcome back");
}

#[test]
fn a_client_sends_to_all_controllers_that_are_there() {
    let (first, second) = (Servers::start(None), Servers::start(None));
    let mut config = config(&first, Peer::Process(1));
    // No controller listens at the discard port.
    config.controllers.extend([second.server.address(), "127.0.0.1:9".parse().unwrap()]);
    let node = Node::start(config);
    let ids = [first.connected(Peer::Process(1)), second.connected(Peer::Process(1))];
    let ups = [0, 1].map(|_| node.wait(|event| matches!(event, ClientEvent::Connected(_))));
    assert_ne!(ups[0], ups[1]);
    node.client.send(b"to both");
    assert_eq!(first.message(ids[0]), b"to both");
    assert_eq!(second.message(ids[1]), b"to both");
}

#[test]
fn ends_that_do_not_fit_are_refused_by_name_and_counted() {
    let server = Servers::start(Some(secret()));
    let other = Secret::new(b"another secret that is long enough").unwrap();
    for (secret, topology, at_node, at_server) in [
        (Some(other), TOPOLOGY, "wrong_secret", "wrong_secret"),
        (None, TOPOLOGY, "secret_missing", "no_secret"),
        (Some(secret()), 8, "topology", "topology"),
    ] {
        let mut config = config(&server, Peer::Process(1));
        (config.secret, config.topology) = (secret, topology);
        let node = Node::start(config);
        let event = node.wait(|event| matches!(event, ClientEvent::Disconnected(..)));
        assert!(
            matches!(event, ClientEvent::Disconnected(_, reason) if reason.name() == at_node),
            "{event:?}"
        );
        let event = server.wait(|event| matches!(event, ServerEvent::Refused(..)));
        assert!(matches!(event, ServerEvent::Refused(_, reason) if reason.name() == at_server), "{event:?}");
        let at = Reason::NAMES.iter().position(|name| *name == at_server).unwrap();
        assert!(server.server.counts().ended[at] >= 1);
        assert_eq!(server.server.counts().opened, 0);
    }
}

#[test]
fn a_second_program_of_the_same_number_is_refused_while_the_first_is_alive() {
    let server = Servers::start(None);
    let first = Node::start(config(&server, Peer::Process(5)));
    let id = server.connected(Peer::Process(5));
    let second = Node::start(config(&server, Peer::Process(5)));
    let event = second.wait(|event| matches!(event, ClientEvent::Disconnected(..)));
    assert!(matches!(event, ClientEvent::Disconnected(_, Reason::Connected)), "{event:?}");
    server.server.send(id, b"still here");
    assert_eq!(first.message(), b"still here");
    drop(first);
    let id = server.connected(Peer::Process(5));
    server.server.send(id, b"now you");
    assert_eq!(second.message(), b"now you");
}

#[test]
fn without_a_secret_only_the_loopback_interface_is_used() {
    let config = management::ServerConfig {
        listen: "0.0.0.0:0".parse().unwrap(),
        secret: None,
        topology: 0,
        max_connections: 1,
    };
    let error = management::Server::start(&config, |_| ()).unwrap_err();
    assert!(error.to_string().contains("write secret_file"), "{error}");
    let config = management::ClientConfig {
        controllers: vec!["127.0.0.1:1".parse().unwrap(), "192.0.2.1:1".parse().unwrap()],
        secret: None,
        peer: Peer::Operator,
        topology: 0,
    };
    let error = management::Client::start(config, |_| ()).unwrap_err();
    assert!(error.to_string().contains("192.0.2.1:1 is not on the loopback interface"), "{error}");
}

#[test]
fn more_nodes_than_allowed_are_refused() {
    let server = Servers::start(None);
    let nodes: Vec<_> = (0..world::MAX_CONNECTIONS as u32)
        .map(|id| Node::start(config(&server, Peer::Process(id))))
        .collect();
    for _ in &nodes {
        server.wait(|event| matches!(event, ServerEvent::Connected(..)));
    }
    let node = Node::start(config(&server, Peer::Process(1000)));
    let event = node.wait(|event| matches!(event, ClientEvent::Disconnected(..)));
    assert!(matches!(event, ClientEvent::Disconnected(_, Reason::TooMany)), "{event:?}");
    // An operator is not one of them.
    let operator = Node::start(config(&server, Peer::Operator));
    let id = server.connected(Peer::Operator);
    server.server.send(id, b"status");
    assert_eq!(operator.message(), b"status");
    server.server.close(id);
    operator.wait(|event| matches!(event, ClientEvent::Disconnected(_, Reason::Closed)));
}
