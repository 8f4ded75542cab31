//! A server and nodes that record their events.

use management::{
    Client, ClientConfig, ClientEvent, ConnectionId, Peer, Secret, Server, ServerConfig, ServerEvent,
};
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

pub(crate) const TOPOLOGY: u64 = 7;
pub(crate) const MAX_CONNECTIONS: usize = 20;
/// Longest time for which a test waits for an event
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) fn secret() -> Secret {
    Secret::new(b"a secret that is long enough").unwrap()
}

pub(crate) struct Servers {
    pub(crate) server: Server,
    events: Receiver<ServerEvent>,
    secret: Option<Secret>,
}

impl Servers {
    pub(crate) fn start(secret: Option<Secret>) -> Self {
        Self::start_at("127.0.0.1:0".parse().unwrap(), secret)
    }

    pub(crate) fn start_at(listen: SocketAddr, secret: Option<Secret>) -> Self {
        let (sender, events) = channel();
        let config = ServerConfig {
            listen,
            secret: secret.clone(),
            topology: TOPOLOGY,
            max_connections: MAX_CONNECTIONS,
        };
        let server = Server::start(&config, move |event| drop(sender.send(event))).unwrap();
        Self { server, events, secret }
    }

    /// Waits for an event, and drops those before.
    pub(crate) fn wait(&self, which: impl Fn(&ServerEvent) -> bool) -> ServerEvent {
        loop {
            let event = self.events.recv_timeout(PATIENCE).expect("an event");
            if which(&event) {
                return event;
            }
        }
    }

    pub(crate) fn connected(&self, peer: Peer) -> ConnectionId {
        match self.wait(|event| matches!(event, ServerEvent::Connected(_, of, _) if *of == peer)) {
            ServerEvent::Connected(id, ..) => id,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn message(&self, from: ConnectionId) -> Vec<u8> {
        match self.wait(|event| matches!(event, ServerEvent::Message(id, _) if *id == from)) {
            ServerEvent::Message(_, message) => message,
            other => panic!("{other:?}"),
        }
    }
}

pub(crate) struct Node {
    pub(crate) client: Client,
    events: Receiver<ClientEvent>,
}

pub(crate) fn config(server: &Servers, peer: Peer) -> ClientConfig {
    let controllers = vec![server.server.address()];
    ClientConfig { controllers, secret: server.secret.clone(), peer, topology: TOPOLOGY }
}

impl Node {
    pub(crate) fn start(config: ClientConfig) -> Self {
        let (sender, events) = channel();
        Self { client: Client::start(config, move |event| drop(sender.send(event))).unwrap(), events }
    }

    /// Waits for an event, and drops those before.
    pub(crate) fn wait(&self, which: impl Fn(&ClientEvent) -> bool) -> ClientEvent {
        loop {
            let event = self.events.recv_timeout(PATIENCE).expect("an event");
            if which(&event) {
                return event;
            }
        }
    }

    pub(crate) fn message(&self) -> Vec<u8> {
        match self.wait(|event| matches!(event, ClientEvent::Message(_))) {
            ClientEvent::Message(message) => message,
            other => panic!("{other:?}"),
        }
    }
}
