//! Services: what a host does on its connections.

use super::{memory, rping, ucmatose};
use core::net::IpAddr;
use rnic::cm::{Conn, Event as CmEvent, PortSpace, service_id_of};
use rnic::{
    Access, Buffer, Completion, ConnParam, Cq, Modify, Mr, Pd, QpInit, RecvRequest, Rnic, Sge, Transport,
};
use rocev2::Qpn;
use rocev2::cm::RejReason;
use serde::Serialize;
use std::collections::BTreeMap;
use switch::Nanos;

/// A service as the configuration has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServiceConfig {
    pub(crate) kind: Kind,
    /// The port that is listened at, or connected to
    pub(crate) port: u16,
    /// Whom to connect to, and how often at once; servers connect to nobody
    pub(crate) client: Option<Client>,
}

/// The side that connects
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Client {
    pub(crate) server: IpAddr,
    pub(crate) connections: u32,
    /// Connections that are asked for at once: the other side's backlog is not without end
    pub(crate) at_once: u32,
}

/// What is done on connections
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// rping: messages, READs and WRITEs of what the client has
    Rping {
        /// Pings of each connection of a client; 0 for no end
        count: u32,
        /// Bytes of a ping; a server's limit
        size: u32,
    },
    /// ucmatose: messages from the server to the client, and as many back
    Ucmatose { messages: u32, size: u32 },
    /// Memory for anybody to read and write: its address, key and length are the private data of the answer
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

/// What a service has done. Its serialised form is the program's interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct ServiceRow {
    pub(crate) service: &'static str,
    pub(crate) port: u16,
    /// Connections that came to stand
    pub(crate) connections: u64,
    /// of which so many ended as they should
    pub(crate) finished: u64,
    /// and so many did not
    pub(crate) failed: u64,
    /// Requests for a connection that were refused, or that nobody answered
    pub(crate) refused: u64,
    /// Messages, READs and WRITEs that completed here
    pub(crate) operations: u64,
    /// Bytes of them
    pub(crate) bytes: u64,
    /// The first thing that went wrong
    pub(crate) error: Option<String>,
}

/// What a session says when it was asked to go on.
pub(super) enum Step {
    /// It waits for something.
    Wait,
    /// All is done: the connection may end.
    Done,
    /// Something is wrong.
    Failed(String),
}

/// What happens on one connection.
pub(super) trait Session: Send {
    /// Whether this side ends the connection when all is done.
    fn disconnects(&self) -> bool;

    /// Posts what has to be posted before anything can come.
    fn prepare(&mut self, nic: &mut Rnic, at: &Place);

    /// The connection stands.
    fn begin(&mut self, nic: &mut Rnic, at: &Place) -> Step;

    /// A request has completed well.
    fn completed(&mut self, nic: &mut Rnic, at: &Place, completion: &Completion) -> Step;

    /// Whether the connection may end now, for all that this side knows.
    fn may_end(&self) -> bool;
}

/// What a session has of the NIC.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) qpn: Qpn,
    /// Its memory: a buffer and a region on all of it
    pub(super) buffer: Buffer,
    pub(super) mr: Mr,
}

/// Virtual address of the first byte of every region
pub(super) const VA: u64 = 0x10_0000;

impl Place {
    /// Makes a queue pair that anybody may do anything with, and its memory.
    pub(super) fn new(
        nic: &mut Rnic,
        pd: Pd,
        cq: Cq,
        transport: Transport,
        bytes: usize,
        depth: usize,
    ) -> Result<Self, String> {
        let text = |error: &dyn core::fmt::Display| error.to_string();
        let (buffer, mr) =
            nic.register_new(pd, bytes.max(1), VA, Access::ALL).map_err(|error| text(&error))?;
        let init =
            QpInit { transport, pd, send_cq: cq, recv_cq: cq, srq: None, max_send: depth, max_recv: depth };
        match nic.create_qp(init) {
            Ok(qpn) => {
                let ready = Modify::Init { access: Access::ALL, qkey: 0 };
                nic.modify_qp(qpn, ready).map_err(|error| text(&error))?;
                Ok(Self { qpn, buffer, mr })
            }
            Err(error) => {
                _ = nic.deregister(mr);
                _ = nic.free(buffer);
                Err(text(&error))
            }
        }
    }

    pub(super) fn destroy(&self, nic: &mut Rnic) {
        // Whatever of it is there.
        _ = nic.destroy_qp(self.qpn);
        _ = nic.deregister(self.mr);
        _ = nic.free(self.buffer);
    }

    pub(super) fn sge(&self, at: u64, len: u32) -> Sge {
        Sge { mr: self.mr, va: VA + at, len }
    }

    /// Posts a receive of so many bytes; false if it cannot be. On a queue pair that has failed it is flushed.
    pub(super) fn receive(&self, nic: &mut Rnic, at: u64, len: u32) -> bool {
        let data = (len > 0).then(|| self.sge(at, len));
        nic.post_recv(self.qpn, RecvRequest { id: at, data }).is_ok()
    }
}

struct Live {
    conn: Conn,
    place: Place,
    session: Box<dyn Session>,
    stands: bool,
    /// Its end was asked for, or has come.
    ending: bool,
    outcome: Outcome,
}

/// What is known of how a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// Nothing yet: its session says whether it may end
    Open,
    /// All is done.
    Done,
    /// Something went wrong, whatever the session says.
    Failed,
}

/// A service and its connections.
pub(super) struct Service {
    config: ServiceConfig,
    pd: Pd,
    cq: Cq,
    live: BTreeMap<u32, Live>,
    by_conn: BTreeMap<Conn, Qpn>,
    /// Connections that a client has still to ask for
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
        Self { config, pd, cq, live: BTreeMap::new(), by_conn: BTreeMap::new(), to_open, row }
    }

    pub(super) fn row(&self) -> &ServiceRow {
        &self.row
    }

    /// Whether a client has done what it was to do; servers have never.
    pub(super) fn is_done(&self) -> bool {
        self.config.client.is_some() && self.to_open == 0 && self.live.is_empty()
    }

    pub(super) fn is_server(&self) -> bool {
        self.config.client.is_none()
    }

    pub(super) fn port(&self) -> u16 {
        self.config.port
    }

    /// Whether the queue pair is one of its.
    pub(super) fn owns(&self, qpn: Qpn) -> bool {
        self.live.contains_key(&qpn.get())
    }

    /// Whether the connection is one of its.
    pub(super) fn has(&self, conn: Conn) -> bool {
        self.by_conn.contains_key(&conn)
    }

    fn fail(&mut self, what: impl Into<String>) {
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

    /// Makes a queue pair with its memory.
    fn make(&self, nic: &mut Rnic) -> Result<(Place, Box<dyn Session>), String> {
        let (mut session, bytes, depth) = self.session();
        let place = Place::new(nic, self.pd, self.cq, Transport::Rc, bytes, depth)?;
        session.prepare(nic, &place);
        Ok((place, session))
    }

    fn insert(&mut self, live: Live) {
        self.by_conn.insert(live.conn, live.place.qpn);
        self.live.insert(live.place.qpn.get(), live);
    }

    /// A client asks for its connections.
    pub(super) fn open(&mut self, nic: &mut Rnic, now: Nanos) {
        let Some(client) = self.config.client else { return };
        let opening = |live: &BTreeMap<u32, Live>| live.values().filter(|live| !live.stands).count();
        while self.to_open > 0 && opening(&self.live) < client.at_once as usize {
            self.to_open -= 1;
            let (place, session) = match self.make(nic) {
                Ok(made) => made,
                Err(_) if !self.live.is_empty() => {
                    // One that ends makes room, and asks again.
                    self.to_open += 1;
                    return;
                }
                Err(error) => {
                    self.row.failed += 1;
                    self.fail(format!("no room for a connection: {error}"));
                    continue;
                }
            };
            let service = service_id_of(PortSpace::Tcp, self.config.port);
            let param = ConnParam { src_port: place.qpn.get() as u16 | 0x8000, ..ConnParam::default() };
            match nic.connect(place.qpn, client.server, service, param, now) {
                Ok(conn) => {
                    let live =
                        Live { conn, place, session, stands: false, ending: false, outcome: Outcome::Open };
                    self.insert(live);
                }
                Err(error) => {
                    place.destroy(nic);
                    self.row.failed += 1;
                    self.fail(error.to_string());
                }
            }
        }
    }

    /// Somebody asks for a connection.
    pub(super) fn requested(&mut self, nic: &mut Rnic, conn: Conn, now: Nanos) {
        match self.make(nic) {
            Ok((place, session)) => {
                let private_data = match self.config.kind {
                    Kind::Memory { size } => memory::advertisement(place.mr, size),
                    _ => Vec::new(),
                };
                let live =
                    Live { conn, place, session, stands: false, ending: false, outcome: Outcome::Open };
                let param = ConnParam { private_data, ..ConnParam::default() };
                match nic.accept(conn, place.qpn, param, now) {
                    Ok(()) => {
                        self.insert(live);
                    }
                    Err(error) => {
                        place.destroy(nic);
                        _ = nic.reject(conn, RejReason::CONSUMER, &[], now);
                        self.row.refused += 1;
                        self.fail(error.to_string());
                    }
                }
            }
            Err(error) => {
                _ = nic.reject(conn, RejReason::NO_RESOURCES, &[], now);
                self.row.refused += 1;
                self.fail(format!("no room for a connection: {error}"));
            }
        }
    }

    /// Something happened to a connection of its.
    pub(super) fn on_cm(&mut self, nic: &mut Rnic, conn: Conn, event: &CmEvent, now: Nanos) {
        let Some(&qpn) = self.by_conn.get(&conn) else { return };
        let Some(live) = self.live.get_mut(&qpn.get()) else { return };
        match event {
            CmEvent::Requested { .. } => {}
            CmEvent::Replied { .. } | CmEvent::Established { .. } => {
                live.stands = true;
                self.row.connections += 1;
                let place = live.place;
                let step = live.session.begin(nic, &place);
                self.follow(nic, qpn, step, now);
                self.open(nic, now);
            }
            CmEvent::Disconnecting { .. } => live.ending = true,
            CmEvent::Rejected { reason, .. } if !live.stands => {
                let reason = *reason;
                self.row.refused += 1;
                self.close(nic, qpn, Some(format!("the connection was refused: {reason}")), now);
            }
            CmEvent::Unreachable { .. } if !live.stands => {
                self.row.refused += 1;
                self.close(nic, qpn, Some("the connection was not answered".into()), now);
            }
            CmEvent::Disconnected { .. } | CmEvent::Rejected { .. } | CmEvent::Unreachable { .. } => {
                let fine = match live.outcome {
                    Outcome::Open => live.session.may_end(),
                    outcome => outcome == Outcome::Done,
                };
                if fine {
                    self.row.finished += 1;
                } else {
                    self.row.failed += 1;
                }
                let error = (!fine).then(|| "a connection ended in the middle".to_owned());
                self.close(nic, qpn, error, now);
            }
        }
    }

    fn close(&mut self, nic: &mut Rnic, qpn: Qpn, error: Option<String>, now: Nanos) {
        if let Some(live) = self.live.remove(&qpn.get()) {
            self.by_conn.remove(&live.conn);
            live.place.destroy(nic);
        }
        if let Some(error) = error {
            self.fail(error);
        }
        self.open(nic, now);
    }

    pub(super) fn on_completion(&mut self, nic: &mut Rnic, completion: &Completion, now: Nanos) {
        let Some(live) = self.live.get_mut(&completion.qpn.get()) else { return };
        if completion.status != rnic::Status::Success {
            // What is flushed when a connection ends tells nothing.
            if !live.ending && live.outcome != Outcome::Done && completion.status != rnic::Status::Flushed {
                let what = format!("{:?} failed: {:?}", completion.of, completion.status);
                self.follow(nic, completion.qpn, Step::Failed(what), now);
            }
            return;
        }
        self.row.operations += 1;
        self.row.bytes += u64::from(completion.len);
        let place = live.place;
        let step = live.session.completed(nic, &place, completion);
        self.follow(nic, completion.qpn, step, now);
    }

    fn follow(&mut self, nic: &mut Rnic, qpn: Qpn, step: Step, now: Nanos) {
        let Some(live) = self.live.get_mut(&qpn.get()) else { return };
        let end = match step {
            Step::Wait => false,
            Step::Done => {
                live.outcome = Outcome::Done;
                live.session.disconnects()
            }
            Step::Failed(what) => {
                live.outcome = Outcome::Failed;
                self.fail(what);
                true
            }
        };
        let Some(live) = self.live.get_mut(&qpn.get()) else { return };
        if end && !live.ending {
            live.ending = true;
            // If it does not stand any more, an event has said so, or is about to.
            _ = nic.disconnect(live.conn, &[], now);
        }
    }
}
