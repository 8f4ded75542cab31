//! Services: what a host does on its connections.

use super::session::{Session, SessionQp, Step};
use super::{memory, rping, ucmatose};
use core::net::IpAddr;
use rnic::cm::{Conn, Event as CmEvent, PortSpace, service_id_of};
use rnic::{Completion, ConnParam, Cq, Pd, Rnic, Transport};
use rocev2::Qpn;
use rocev2::cm::RejReason;
use serde::Serialize;
use std::collections::BTreeMap;
use switch::Nanos;

/// Configuration of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServiceConfig {
    pub(crate) kind: Kind,
    /// Port to listen at, or to connect to
    pub(crate) port: u16,
    /// Parameters of a client; `None` for a server
    pub(crate) client: Option<Client>,
}

/// Parameters of the side that connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Client {
    pub(crate) server: IpAddr,
    pub(crate) connections: u32,
    /// Connection requests outstanding at once: the server's backlog is limited
    pub(crate) at_once: u32,
}

impl Client {
    /// Returns one of several parts of the client, among which its connections are divided, as those that it requests at
    /// once.
    pub(super) fn part(self, part: u32, parts: u32) -> Self {
        let parts = parts.min(self.at_once);
        if part >= parts {
            return Self { connections: 0, ..self };
        }
        let share = |all: u32| all / parts + u32::from(part < all % parts);
        Self { connections: share(self.connections), at_once: share(self.at_once), ..self }
    }
}

/// Protocol spoken on the connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// rping: messages, READs and WRITEs of the client's memory
    Rping {
        /// Pings on each connection of a client; 0 for no limit
        count: u32,
        /// Size of a ping in bytes; at a server, the largest size
        size: u32,
    },
    /// ucmatose: messages from the server to the client, and as many back
    Ucmatose { messages: u32, size: u32 },
    /// Memory that any client may read and write: its address, key and length are the private data of the
    /// connection reply
    Memory { size: u64 },
}

impl Kind {
    pub(crate) const fn name(self, client: bool) -> &'static str {
        match (self, client) {
            (Self::Rping { .. }, false) => "rping_server",
            (Self::Rping { .. }, true) => "rping_client",
            (Self::Ucmatose { .. }, false) => "ucmatose_server",
            (Self::Ucmatose { .. }, true) => "ucmatose_client",
            (Self::Memory { .. }, _) => "memory",
        }
    }
}

switch::metrics! {
    /// Results of a service. The serialised form is part of the program's interface.
    #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
    #[cfg_attr(test, derive(schemars::JsonSchema))]
    pub(crate) struct ServiceRow of service by [service, port] {
        /// `kind` of the service
        pub(crate) service: &'static str,
        /// Port of the communication manager, or of TCP
        pub(crate) port: u16,
        /// Connections that were established
        pub(crate) connections: u64 [connections],
        /// Established connections that ended in order
        pub(crate) finished: u64 [connections],
        /// Established connections that failed
        pub(crate) failed: u64 [connections],
        /// Connection requests that were refused or not answered
        pub(crate) refused: u64 [requests],
        /// Messages, READs and WRITEs that completed on this side
        pub(crate) operations: u64 [operations],
        /// Messages, READs and WRITEs that completed on this side; of an rping client, pings that came back; in bytes
        pub(crate) bytes: u64 [bytes],
        /// First error
        pub(crate) error: Option<String>,
    }
}

impl ServiceRow {
    /// Adds the results of another worker's part of the service.
    pub(super) fn add(&mut self, other: &Self) {
        let Self { service: _, port: _, connections, finished, failed, refused, operations, bytes, error } =
            other;
        self.connections += connections;
        self.finished += finished;
        self.failed += failed;
        self.refused += refused;
        self.operations += operations;
        self.bytes += bytes;
        self.error = self.error.take().or_else(|| error.clone());
    }
}

struct Connection {
    conn: Conn,
    qp: SessionQp,
    session: Box<dyn Session>,
    established: bool,
    /// Whether this side has requested the end of the connection, or the peer has
    ending: bool,
    outcome: Outcome,
}

/// What is known about the end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// Nothing yet: the session decides whether the connection may end
    Open,
    /// The session is done.
    Done,
    /// The session failed, whatever it reports later.
    Failed,
}

/// A service and its connections.
pub(super) struct Service {
    config: ServiceConfig,
    pd: Pd,
    cq: Cq,
    connections: BTreeMap<u32, Connection>,
    by_conn: BTreeMap<Conn, Qpn>,
    /// Connections that a client has not requested yet
    to_open: u32,
    row: ServiceRow,
}

impl Service {
    pub(super) fn new(config: ServiceConfig, pd: Pd, cq: Cq) -> Self {
        let row = ServiceRow {
            service: config.kind.name(config.client.is_some()),
            port: config.port,
            ..ServiceRow::default()
        };
        let to_open = config.client.map_or(0, |client| client.connections);
        Self { config, pd, cq, connections: BTreeMap::new(), by_conn: BTreeMap::new(), to_open, row }
    }

    pub(super) fn row(&self) -> &ServiceRow {
        &self.row
    }

    /// Returns whether a client has finished its work; always `false` for a server.
    pub(super) fn is_done(&self) -> bool {
        self.config.client.is_some() && self.to_open == 0 && self.connections.is_empty()
    }

    pub(super) fn is_server(&self) -> bool {
        self.config.client.is_none()
    }

    pub(super) fn port(&self) -> u16 {
        self.config.port
    }

    /// Returns whether the queue pair belongs to this service.
    pub(super) fn owns(&self, qpn: Qpn) -> bool {
        self.connections.contains_key(&qpn.get())
    }

    /// Returns whether the connection belongs to this service.
    pub(super) fn has_connection(&self, conn: Conn) -> bool {
        self.by_conn.contains_key(&conn)
    }

    fn record_error(&mut self, what: impl Into<String>) {
        let what = what.into();
        self.row.error.get_or_insert(what);
    }

    fn session(&self) -> (Box<dyn Session>, usize, usize) {
        let client = self.config.client.is_some();
        match self.config.kind {
            Kind::Rping { count, size } if client => rping::client(count, size),
            Kind::Rping { size, .. } => rping::server(size),
            Kind::Ucmatose { messages, size } => ucmatose::session(client, messages, size),
            Kind::Memory { size } => memory::session(size),
        }
    }

    /// Creates a queue pair with its memory.
    fn create(&self, nic: &mut Rnic) -> Result<(SessionQp, Box<dyn Session>), String> {
        let (mut session, bytes, depth) = self.session();
        let qp = SessionQp::new(nic, self.pd, self.cq, Transport::Rc, bytes, depth)?;
        session.prepare(nic, &qp);
        Ok((qp, session))
    }

    fn insert(&mut self, connection: Connection) {
        self.by_conn.insert(connection.conn, connection.qp.qpn);
        self.connections.insert(connection.qp.qpn.get(), connection);
    }

    /// Requests a client's connections, as many at once as its configuration allows.
    pub(super) fn open_connections(&mut self, nic: &mut Rnic, now: Nanos) {
        let Some(client) = self.config.client else { return };
        let opening = |connections: &BTreeMap<u32, Connection>| {
            connections.values().filter(|connection| !connection.established).count()
        };
        while self.to_open > 0 && opening(&self.connections) < client.at_once as usize {
            self.to_open -= 1;
            let (qp, session) = match self.create(nic) {
                Ok(made) => made,
                Err(_) if !self.connections.is_empty() => {
                    // This is tried again when a connection ends and frees its resources.
                    self.to_open += 1;
                    return;
                }
                Err(error) => {
                    self.row.failed += 1;
                    self.record_error(format!("no resources for a connection: {error}"));
                    continue;
                }
            };
            let service = service_id_of(PortSpace::Tcp, self.config.port);
            let param = ConnParam { src_port: qp.qpn.get() as u16 | 0x8000, ..ConnParam::default() };
            match nic.connect(qp.qpn, client.server, service, param, now) {
                Ok(conn) => {
                    let connection = Connection {
                        conn,
                        qp,
                        session,
                        established: false,
                        ending: false,
                        outcome: Outcome::Open,
                    };
                    self.insert(connection);
                }
                Err(error) => {
                    qp.destroy(nic);
                    self.row.failed += 1;
                    self.record_error(error.to_string());
                }
            }
        }
    }

    /// Accepts or rejects a client's connection request.
    pub(super) fn on_request(&mut self, nic: &mut Rnic, conn: Conn, now: Nanos) {
        match self.create(nic) {
            Ok((qp, session)) => {
                let private_data = match self.config.kind {
                    Kind::Memory { size } => memory::advertisement(qp.mr, size),
                    _ => Vec::new(),
                };
                let connection = Connection {
                    conn,
                    qp,
                    session,
                    established: false,
                    ending: false,
                    outcome: Outcome::Open,
                };
                let param = ConnParam { private_data, ..ConnParam::default() };
                match nic.accept(conn, qp.qpn, param, now) {
                    Ok(()) => {
                        self.insert(connection);
                    }
                    Err(error) => {
                        qp.destroy(nic);
                        _ = nic.reject(conn, RejReason::CONSUMER, &[], now);
                        self.row.refused += 1;
                        self.record_error(error.to_string());
                    }
                }
            }
            Err(error) => {
                _ = nic.reject(conn, RejReason::NO_RESOURCES, &[], now);
                self.row.refused += 1;
                self.record_error(format!("no resources for a connection: {error}"));
            }
        }
    }

    /// Processes an event on a connection of this service.
    pub(super) fn on_cm(&mut self, nic: &mut Rnic, conn: Conn, event: &CmEvent, now: Nanos) {
        let Some(&qpn) = self.by_conn.get(&conn) else { return };
        let Some(connection) = self.connections.get_mut(&qpn.get()) else { return };
        match event {
            CmEvent::Requested { .. } => {}
            CmEvent::Replied { .. } | CmEvent::Established { .. } => {
                connection.established = true;
                self.row.connections += 1;
                let qp = connection.qp;
                let step = connection.session.start(nic, &qp);
                self.apply(nic, qpn, step, now);
                self.open_connections(nic, now);
            }
            CmEvent::Disconnecting { .. } => connection.ending = true,
            CmEvent::Rejected { reason, .. } if !connection.established => {
                let reason = *reason;
                self.row.refused += 1;
                self.close(nic, qpn, Some(format!("the server refused the connection: {reason}")), now);
            }
            CmEvent::Unreachable { .. } if !connection.established => {
                self.row.refused += 1;
                self.close(nic, qpn, Some("the server did not answer the connection request".into()), now);
            }
            CmEvent::Disconnected { .. } | CmEvent::Rejected { .. } | CmEvent::Unreachable { .. } => {
                let succeeded = match connection.outcome {
                    Outcome::Open => connection.session.may_end(),
                    outcome => outcome == Outcome::Done,
                };
                if succeeded {
                    self.row.finished += 1;
                } else {
                    self.row.failed += 1;
                }
                let error = (!succeeded).then(|| "a connection ended before its session was done".to_owned());
                self.close(nic, qpn, error, now);
            }
        }
    }

    fn close(&mut self, nic: &mut Rnic, qpn: Qpn, error: Option<String>, now: Nanos) {
        if let Some(connection) = self.connections.remove(&qpn.get()) {
            self.by_conn.remove(&connection.conn);
            connection.qp.destroy(nic);
        }
        if let Some(error) = error {
            self.record_error(error);
        }
        self.open_connections(nic, now);
    }

    pub(super) fn on_completion(&mut self, nic: &mut Rnic, completion: &Completion, now: Nanos) {
        let Some(connection) = self.connections.get_mut(&completion.qpn.get()) else { return };
        if completion.status != rnic::Status::Success {
            // Requests that are flushed when a connection ends are not errors.
            if !connection.ending
                && connection.outcome != Outcome::Done
                && completion.status != rnic::Status::Flushed
            {
                let what = format!("{:?} failed: {:?}", completion.opcode, completion.status);
                self.apply(nic, completion.qpn, Step::Failed(what), now);
            }
            return;
        }
        self.row.operations += 1;
        let qp = connection.qp;
        let step = connection.session.on_completion(nic, &qp, completion);
        self.row.bytes += connection.session.completed_bytes(completion);
        self.apply(nic, completion.qpn, step, now);
    }

    fn apply(&mut self, nic: &mut Rnic, qpn: Qpn, step: Step, now: Nanos) {
        let Some(connection) = self.connections.get_mut(&qpn.get()) else { return };
        let end = match step {
            Step::Wait => false,
            Step::Done => {
                connection.outcome = Outcome::Done;
                connection.session.disconnects()
            }
            Step::Failed(what) => {
                connection.outcome = Outcome::Failed;
                self.record_error(what);
                true
            }
        };
        let Some(connection) = self.connections.get_mut(&qpn.get()) else { return };
        if end && !connection.ending {
            connection.ending = true;
            // If the connection is not established any more, an event has reported it or is about to.
            _ = nic.disconnect(connection.conn, &[], now);
        }
    }
}
