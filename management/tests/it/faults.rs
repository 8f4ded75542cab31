//! Peers that do not behave: half-open connections, floods, peers that fall silent or take nothing.

use crate::world::{Node, Servers, TOPOLOGY, config};
use management::{ClientEvent, Connection, DEAD_AFTER, HANDSHAKE_TIME, Identity, Peer, Reason, ServerEvent};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};
use switch::Nanos;

#[allow(clippy::disallowed_methods, reason = "a test of time that passes")]
fn now() -> Instant {
    Instant::now()
}

/// Connects a node by hand, which does nothing after its handshake.
fn open(server: &Servers, id: u32) -> TcpStream {
    let mut socket = TcpStream::connect(server.server.address()).unwrap();
    let own = Identity { secret: None, topology: TOPOLOGY };
    let mut node = Connection::node(own, Peer::Process(id), [id as u8; 32], Nanos(0));
    socket.write_all(node.output()).unwrap();
    node.consume(node.output().len());
    let mut hello = [0; 96];
    socket.read_exact(&mut hello).unwrap();
    node.on_bytes(&hello, Nanos(0)).unwrap();
    socket.write_all(node.output()).unwrap();
    socket
}

fn echo(server: &Servers, node: &Node, id: u32) {
    let connection = server.connected(Peer::Process(id));
    node.wait(|event| matches!(event, ClientEvent::Connected(_)));
    node.client.send(b"request");
    assert_eq!(server.message(connection), b"request");
    server.server.send(connection, b"answer");
    assert_eq!(node.message(), b"answer");
}

#[test]
fn a_half_open_connection_ends_after_the_time_of_a_handshake() {
    let server = Servers::start(None);
    let start = now();
    let mut sockets: Vec<_> = (0..3).map(|_| TcpStream::connect(server.server.address()).unwrap()).collect();
    sockets[1].write_all(b"1PIPE-MN\x00\x02").unwrap();
    for _ in &sockets {
        let event = server.wait(|event| matches!(event, ServerEvent::Refused(..)));
        assert!(matches!(event, ServerEvent::Refused(_, Reason::HandshakeTime)), "{event:?}");
    }
    assert!(start.elapsed() >= Duration::from_nanos(HANDSHAKE_TIME.0));
    for mut socket in sockets {
        assert_eq!(socket.read(&mut [0; 10]).unwrap_or(0), 0, "the server has closed it");
    }
}

#[test]
fn a_flood_of_connections_does_not_keep_a_node_out() {
    let server = Servers::start(None);
    let first = Node::start(config(&server, Peer::Process(1)));
    echo(&server, &first, 1);
    let connect = || TcpStream::connect(server.server.address()).unwrap();
    let sockets: Vec<_> = (0..400).map(|_| connect()).collect();
    let second = Node::start(config(&server, Peer::Process(2)));
    echo(&server, &second, 2);
    let too_many = Reason::NAMES.iter().position(|name| *name == "too_many").unwrap();
    assert!(server.server.counts().ended[too_many] >= 100, "{:?}", server.server.counts());
    drop(sockets);
}

#[test]
fn a_peer_that_falls_silent_is_dead_after_the_stated_time() {
    let server = Servers::start(None);
    // A client that is connected before it stays, by its signs of life.
    let node = Node::start(config(&server, Peer::Process(2)));
    let other = server.connected(Peer::Process(2));
    let start = now();
    let socket = open(&server, 1);
    let id = server.connected(Peer::Process(1));
    let event = server.wait(|event| matches!(event, ServerEvent::Disconnected(..)));
    assert_eq!(event, ServerEvent::Disconnected(id, Reason::Silent));
    assert!(start.elapsed() >= Duration::from_nanos(DEAD_AFTER.0), "{:?}", start.elapsed());
    server.server.send(other, b"alive");
    assert_eq!(node.message(), b"alive");
    drop(socket);
}

#[test]
fn a_peer_that_takes_nothing_is_disconnected_and_the_others_are_served() {
    let server = Servers::start(None);
    let socket = open(&server, 1);
    let id = server.connected(Peer::Process(1));
    let node = Node::start(config(&server, Peer::Process(2)));
    let other = server.connected(Peer::Process(2));
    let long = vec![0; 60_000];
    // More than the sockets' buffers and the queue hold
    for _ in 0..600 {
        server.server.send(id, &long);
    }
    server.server.send(other, b"served");
    assert_eq!(node.message(), b"served");
    let event = server.wait(|event| matches!(event, ServerEvent::Disconnected(..)));
    assert_eq!(event, ServerEvent::Disconnected(id, Reason::Slow));
    drop(socket);
}

#[test]
fn a_silent_connection_is_replaced_by_a_new_one_of_its_peer() {
    let server = Servers::start(None);
    let socket = open(&server, 1);
    let id = server.connected(Peer::Process(1));
    // The node's host has lost its memory of the connection; it connects again until the old one is not heard.
    // A slow machine finds the old one silent before the node tries again.
    let node = Node::start(config(&server, Peer::Process(1)));
    let event = server.wait(|event| matches!(event, ServerEvent::Disconnected(..)));
    assert!(
        matches!(event, ServerEvent::Disconnected(of, Reason::Replaced | Reason::Silent) if of == id),
        "{event:?}"
    );
    let id = server.connected(Peer::Process(1));
    server.server.send(id, b"welcome");
    assert_eq!(node.message(), b"welcome");
    drop(socket);
}
