//! Controller that a test plays, for a process alone on a ring device.

use management::{ConnectionId, Server, ServerConfig, ServerEvent};
use onepipe::control::{Address, Envelope, Failed, Incarnation, Message, Reason, Source};
use onepipe::{ProcessId, Timestamp};
use rocev2::Qpn;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// Hash of the topology
pub(crate) const TOPOLOGY: u64 = 0x77;
const INCARNATION: Incarnation = Incarnation(5);
const QPN: Qpn = Qpn::new(0x500);
/// Time for a message, on a machine that may be busy
const PATIENCE: Duration = Duration::from_secs(60);

/// The controller: its server, and what it receives.
pub(crate) struct Played {
    server: Server,
    events: Receiver<ServerEvent>,
}

impl Played {
    pub(crate) fn new() -> Self {
        let (sender, events) = channel();
        let listen = "127.0.0.1:0".parse().unwrap();
        let config = ServerConfig { listen, secret: None, topology: TOPOLOGY, max_connections: 4 };
        let server = Server::start(&config, move |event| _ = sender.send(event)).unwrap();
        Self { server, events }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.server.address()
    }

    pub(crate) fn next(&self) -> (ConnectionId, Message) {
        loop {
            if let ServerEvent::Message(from, bytes) = self.events.recv_timeout(PATIENCE).expect("a message")
            {
                return (from, Envelope::decode(&bytes).unwrap().message);
            }
        }
    }

    pub(crate) fn send(&self, to: ConnectionId, message: Message) {
        let envelope = Envelope { term: 1, incarnation: INCARNATION, message };
        self.server.send(to, &envelope.encode().unwrap());
    }

    /// Admits the process that registers. Returns its connection.
    pub(crate) fn admit(&self) -> ConnectionId {
        let (node, address) = self.admit_without_barriers();
        self.count_barriers(node, address);
        node
    }

    /// Admits the process that registers, and names no source of commit barriers. Returns its connection and
    /// address.
    pub(crate) fn admit_without_barriers(&self) -> (ConnectionId, Address) {
        loop {
            if let (from, Message::Register { boot, address, .. }) = self.next() {
                self.send(
                    from,
                    Message::Welcome { boot, incarnation: INCARNATION, qpn: QPN, members: Vec::new() },
                );
                self.send(from, Message::Admitted { after: None });
                return (from, address);
            }
        }
    }

    /// Names a process itself as the source of its commit barriers.
    pub(crate) fn count_barriers(&self, node: ConnectionId, address: Address) {
        let sources = vec![Source { address, qpn: QPN }];
        self.send(node, Message::Desired { version: 1, held: false, sources });
    }

    /// Declares a process failed, which has nothing to recover.
    pub(crate) fn exclude(&self, node: ConnectionId, time: Timestamp) {
        self.send(node, Message::YouFailed { case: 4, time });
        while !matches!(self.next().1, Message::Recover { .. }) {}
        self.send(node, Message::Refused { reason: Reason::Forgotten });
    }

    /// Gives notice that a process has failed, and waits until the callback has returned.
    pub(crate) fn fail(&self, node: ConnectionId, id: u32, time: Timestamp) {
        let failed = Failed { id: ProcessId(id), incarnation: Incarnation(1), time };
        self.send(node, Message::Notice { case: 3, failed: vec![failed] });
        while self.next().1 != (Message::Completed { case: 3 }) {}
    }
}
