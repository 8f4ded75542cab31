//! Connections of queue pairs: their parameters, and which queue pair each one has.

use crate::cm::{self, CallError, Conn, ConnectError, Event, RemoteRequest};
use crate::config::Config;
use crate::memory::Access;
use crate::qp::{QpError, ReadyToSend};
use core::net::IpAddr;
use rocev2::aeth::RnrTimer;
use rocev2::{Psn, Qpn};
use std::collections::{BTreeMap, VecDeque};

/// Parameters of one side of a connection, as in `rdma_conn_param`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnParam {
    /// Access that the remote side gets to local memory
    pub access: Access,
    /// READs and atomics from the remote side executed at once
    pub responder_resources: u8,
    /// READs and atomics outstanding at once
    pub initiator_depth: u8,
    /// How often either side retransmits a request that is not acknowledged (3 bits); the connecting side
    /// sets it
    pub retry_count: u8,
    /// How often the remote side retries a request when no receive is posted here (3 bits); 7 is unlimited
    pub rnr_retry_count: u8,
    /// Acknowledgement timeout of both sides: 4.096 us times 2^`ack_timeout` (5 bits); the connecting side
    /// sets it
    pub ack_timeout: u8,
    /// Time that the remote side waits after an RNR NAK
    pub min_rnr_timer: RnrTimer,
    /// Whether end-to-end credits are sent, and heeded if the remote side sends them as well
    pub flow_control: bool,
    /// DSCP and ECN of sent packets; the connecting side sets it for both
    pub traffic_class: u8,
    /// Source port that the connection carries in the RDMA IP CM header; only the connecting side has one
    pub src_port: u16,
    /// Private data for the application
    pub private_data: Vec<u8>,
}

impl Default for ConnParam {
    /// Returns full access, 16 READs and atomics each way, and seven retries with a timeout of 67 ms.
    fn default() -> Self {
        Self {
            access: Access::ALL,
            responder_resources: 16,
            initiator_depth: 16,
            retry_count: 7,
            rnr_retry_count: 7,
            ack_timeout: 14,
            min_rnr_timer: RnrTimer(12),
            flow_control: false,
            traffic_class: 0,
            src_port: 0,
            private_data: Vec::new(),
        }
    }
}

/// Why a connection cannot be opened or changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnError {
    /// The communication manager rejects the request
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The communication manager rejects another call
    #[error(transparent)]
    Call(#[from] CallError),
    /// The queue pair rejects the change
    #[error(transparent)]
    Qp(#[from] QpError),
    /// The queue pair already belongs to a connection
    #[error("the queue pair already belongs to a connection; use another one")]
    Busy,
    /// No local address has the destination's address family
    #[error("no local address of the address family of {0}; configure one")]
    NoAddress(IpAddr),
}

/// A connection's queue pair, and what its states require.
#[derive(Debug)]
pub(crate) struct Binding {
    pub(crate) qpn: Qpn,
    pub(crate) param: ConnParam,
    /// The PSN of the first incoming request
    pub(crate) rq_psn: Psn,
    /// Attributes of RTS, known on the passive side before the handshake is complete
    pub(crate) ready: Option<ReadyToSend>,
}

/// Connections and their queue pairs.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    bindings: BTreeMap<Conn, Binding>,
    by_qpn: BTreeMap<u32, Conn>,
    /// Connection requests that the application has neither accepted nor rejected
    requests: BTreeMap<Conn, Box<RemoteRequest>>,
    events: VecDeque<Event>,
}

/// Returns the configuration of the NIC's communication manager.
pub(crate) fn cm_config(config: &Config) -> cm::Config {
    cm::Config { capacity: config.max_qps.max(1024) * 2, ids: config.part.ids(), ..cm::Config::default() }
}

impl Connections {
    /// Gives a connection its queue pair. Its request, if there was one, is accepted.
    pub(crate) fn bind(&mut self, conn: Conn, binding: Binding) {
        self.requests.remove(&conn);
        self.by_qpn.insert(binding.qpn.get(), conn);
        self.bindings.insert(conn, binding);
    }

    /// Forgets a connection.
    pub(crate) fn unbind(&mut self, conn: Conn) {
        self.requests.remove(&conn);
        if let Some(binding) = self.bindings.remove(&conn) {
            self.by_qpn.remove(&binding.qpn.get());
        }
    }

    /// Returns a connection's queue pair and parameters.
    pub(crate) fn binding(&self, conn: Conn) -> Option<&Binding> {
        self.bindings.get(&conn)
    }

    /// Returns the connection of a queue pair.
    pub(crate) fn of_qp(&self, qpn: Qpn) -> Option<Conn> {
        self.by_qpn.get(&qpn.get()).copied()
    }

    /// Keeps a connection request for the application to decide.
    pub(crate) fn add_request(&mut self, conn: Conn, request: &RemoteRequest) {
        self.requests.insert(conn, Box::new(request.clone()));
    }

    /// Returns a connection request that waits for the application.
    pub(crate) fn request(&self, conn: Conn) -> Option<&RemoteRequest> {
        self.requests.get(&conn).map(Box::as_ref)
    }

    /// Reports an event to the application.
    pub(crate) fn report(&mut self, event: Event) {
        self.events.push_back(event);
    }

    /// Returns the next event.
    pub(crate) fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }
}
