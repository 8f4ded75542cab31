//! What goes into the communication manager and comes out of it.

use super::State;
use core::net::IpAddr;
use rocev2::cm::{CmaHeader, RejReason};
use rocev2::{Psn, Qpn};
use switch::Nanos;

/// Bytes of private data that the application may put into each message (IB table 99).
pub mod private_data {
    /// A REQ (IB 12.6.5)
    pub const REQ: usize = 92;
    /// A REQ whose private data begins with `rdma_cm`'s header (IB A11.4)
    pub const REQ_CMA: usize = REQ - rocev2::cm::CmaHeader::LEN;
    /// A REP (IB 12.6.8)
    pub const REP: usize = 196;
    /// A REJ (IB 12.6.7)
    pub const REJ: usize = 148;
    /// An RTU (IB 12.6.9)
    pub const RTU: usize = 224;
    /// A DREQ (IB 12.6.10)
    pub const DREQ: usize = 220;
}

/// What a communication manager is told about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Our channel adapter's GUID, which every REQ and REP tells
    pub ca_guid: u64,
    /// How long either side may take to answer a message, as we announce it: 4.096 us times two to this (5 bits).
    /// Linux: 20, 4.3 s
    pub response_timeout: u8,
    /// How often a message is sent again before the other side counts as unreachable (4 bits). Linux: 15
    pub max_retries: u8,
    /// How long our adapter may take to acknowledge a packet, as a REP tells it: 4.096 us times two to this (5 bits).
    /// SoftRoCE: 15
    pub ack_delay: u8,
    /// Connections at once, those in time wait included; at most 2^24
    pub capacity: usize,
    /// How long an ended connection is remembered, so that what is still under way finds it
    pub time_wait: Nanos,
    /// The longest time to wait for an answer, whatever the other side announces: a REQ that announces two hours
    /// would hold a connection for more than a day
    pub longest_wait: Nanos,
}

impl Default for Config {
    /// What Linux has, and room for 1,024 connections.
    fn default() -> Self {
        Self {
            ca_guid: 0,
            response_timeout: 20,
            max_retries: 15,
            ack_delay: 15,
            capacity: 1024,
            time_wait: Nanos::from_secs(2),
            longest_wait: Nanos::from_secs(60),
        }
    }
}

/// A connection of this manager. The id of one that is forgotten is recognised as such.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Conn(pub(super) u32);

impl Conn {
    /// Our communication id: what the other side calls the connection by
    pub const fn comm_id(self) -> u32 {
        self.0
    }
}

/// A service that this manager listens for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Listener(pub(super) u64);

impl Listener {
    /// The service's id
    pub const fn service_id(self) -> u64 {
        self.0
    }
}

/// The addresses between which MADs go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Peer {
    /// Ours
    pub local: IpAddr,
    /// The other side's
    pub remote: IpAddr,
}

/// The kind of queue pairs that a connection joins (IB 12.6.5: transport service type).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Transport {
    /// Reliable connection
    Rc = 0,
    /// Unreliable connection
    Uc = 1,
}

/// What a REQ asks for (IB 12.6.5). [`ConnectRequest::new`] fills in what `rdma_cm` does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectRequest {
    /// From where to where
    pub peer: Peer,
    /// What is asked for; see [`service_id_of`](super::service_id_of)
    pub service_id: u64,
    /// Our port, if `rdma_cm`'s header is to stand in front of the private data (A11.4); the addresses are the peer's
    pub cma_src_port: Option<u16>,
    /// The application's: up to 56 bytes behind `rdma_cm`'s header, up to 92 without it
    pub private_data: Vec<u8>,
    /// The kind of queue pairs
    pub transport: Transport,
    /// Our queue pair
    pub qpn: Qpn,
    /// The PSN with which the other side begins to send
    pub starting_psn: Psn,
    /// Path MTU in bytes: 256, 512, 1024, 2048 or 4096
    pub path_mtu: u16,
    /// READs and atomics that we execute at once for the other side
    pub responder_resources: u8,
    /// READs and atomics that we have outstanding at once
    pub initiator_depth: u8,
    /// How often the other side repeats a request that is not acknowledged (3 bits)
    pub retry_count: u8,
    /// How often the other side repeats a request after "receiver not ready" (3 bits); 7 for ever
    pub rnr_retry_count: u8,
    /// How long the other side waits for an acknowledgement: 4.096 us times two to this (5 bits); 0 for ever
    pub ack_timeout: u8,
    /// Our queue pair receives from a shared receive queue
    pub srq: bool,
    /// We do end-to-end flow control
    pub flow_control: bool,
    /// Partition key
    pub pkey: u16,
    /// The path's traffic class
    pub traffic_class: u8,
    /// The path's hop limit
    pub hop_limit: u8,
    /// The path's flow label (20 bits)
    pub flow_label: u32,
    /// The path's service level (4 bits)
    pub service_level: u8,
}

impl ConnectRequest {
    /// A request as `rdma_cm` makes it on RoCE, without private data: RC, MTU 1024, one READ each way, seven
    /// retries, ACK time-out 2.1 s, the default partition.
    pub const fn new(peer: Peer, service_id: u64, qpn: Qpn, starting_psn: Psn) -> Self {
        Self {
            peer,
            service_id,
            cma_src_port: None,
            private_data: Vec::new(),
            transport: Transport::Rc,
            qpn,
            starting_psn,
            path_mtu: 1024,
            responder_resources: 1,
            initiator_depth: 1,
            retry_count: 7,
            rnr_retry_count: 7,
            ack_timeout: 19,
            srq: false,
            flow_control: false,
            pkey: 0xffff,
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
            service_level: 0,
        }
    }
}

/// What a REP says (IB 12.6.8).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accept {
    /// Our queue pair
    pub qpn: Qpn,
    /// The PSN with which the other side begins to send
    pub starting_psn: Psn,
    /// READs and atomics that we execute at once for the other side
    pub responder_resources: u8,
    /// READs and atomics that we have outstanding at once
    pub initiator_depth: u8,
    /// How often the other side repeats a request after "receiver not ready" (3 bits); 7 for ever
    pub rnr_retry_count: u8,
    /// Our queue pair receives from a shared receive queue
    pub srq: bool,
    /// We do end-to-end flow control
    pub flow_control: bool,
    /// The application's, up to 196 bytes
    pub private_data: Vec<u8>,
}

impl Accept {
    /// An answer without private data: one READ each way, RNR retries for ever.
    pub const fn new(qpn: Qpn, starting_psn: Psn) -> Self {
        Self {
            qpn,
            starting_psn,
            responder_resources: 1,
            initiator_depth: 1,
            rnr_retry_count: 7,
            srq: false,
            flow_control: false,
            private_data: Vec::new(),
        }
    }
}

/// A REQ that came (IB 12.6.5). All is said from its sender's side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteRequest {
    /// Between whom
    pub peer: Peer,
    /// What it asks for
    pub service_id: u64,
    /// The sender's channel adapter
    pub ca_guid: u64,
    /// The kind of queue pairs
    pub transport: Transport,
    /// The sender's queue pair
    pub qpn: Qpn,
    /// The PSN with which we begin to send
    pub starting_psn: Psn,
    /// Path MTU in bytes
    pub path_mtu: u16,
    /// READs and atomics that the sender executes at once for us
    pub responder_resources: u8,
    /// READs and atomics that the sender has outstanding at once
    pub initiator_depth: u8,
    /// How often we repeat a request that is not acknowledged
    pub retry_count: u8,
    /// How often we repeat a request after "receiver not ready"; 7 for ever
    pub rnr_retry_count: u8,
    /// How long we wait for an acknowledgement: 4.096 us times two to this; 0 for ever
    pub ack_timeout: u8,
    /// How long we have to answer: 4.096 us times two to this ("remote CM response timeout")
    pub our_response_timeout: u8,
    /// How long the sender takes to answer at most ("local CM response timeout")
    pub response_timeout: u8,
    /// How often the sender asks again ("max CM retries")
    pub max_cm_retries: u8,
    /// The sender's queue pair receives from a shared receive queue
    pub srq: bool,
    /// The sender does end-to-end flow control
    pub flow_control: bool,
    /// Partition key
    pub pkey: u16,
    /// The path's traffic class
    pub traffic_class: u8,
    /// The path's hop limit
    pub hop_limit: u8,
    /// The path's flow label
    pub flow_label: u32,
    /// The path's service level
    pub service_level: u8,
    /// The sender's GID as the REQ says it; the MAD itself came from `peer.remote`
    pub local_gid: [u8; 16],
    /// Our GID as the REQ says it
    pub remote_gid: [u8; 16],
    /// `rdma_cm`'s header, if the REQ has one
    pub cma: Option<CmaHeader>,
    /// The application's part of the private data. The message does not say how much of it is used: 56 bytes behind
    /// `rdma_cm`'s header, 92 without it, zeros at its end
    pub private_data: Vec<u8>,
}

/// A REP that came (IB 12.6.8). All is said from its sender's side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteReply {
    /// The sender's channel adapter
    pub ca_guid: u64,
    /// The sender's queue pair
    pub qpn: Qpn,
    /// The PSN with which we begin to send
    pub starting_psn: Psn,
    /// READs and atomics that the sender executes at once for us
    pub responder_resources: u8,
    /// READs and atomics that the sender has outstanding at once
    pub initiator_depth: u8,
    /// How often we repeat a request after "receiver not ready"; 7 for ever
    pub rnr_retry_count: u8,
    /// How long the sender may take to acknowledge a packet: 4.096 us times two to this
    pub target_ack_delay: u8,
    /// The sender's queue pair receives from a shared receive queue
    pub srq: bool,
    /// The sender does end-to-end flow control
    pub flow_control: bool,
    /// The application's, with zeros at its end
    pub private_data: Vec<u8>,
}

/// What happened to a connection. Each connection that `connect` or [`Event::Requested`] made has at most one last
/// event: `Rejected`, `Disconnected` or `Unreachable`; none, if its owner rejected or aborted it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A REQ came. The owner calls `accept` or `reject`; if it needs longer than the request allows, `delay`.
    Requested {
        /// The new connection
        conn: Conn,
        /// The service asked for
        listener: Listener,
        /// What was said
        request: Box<RemoteRequest>,
    },
    /// A REP came. The owner sets up its queue pair, then calls `confirm`; or `reject`.
    Replied {
        /// The connection
        conn: Conn,
        /// What was said
        reply: Box<RemoteReply>,
    },
    /// Passive side: the RTU came, or traffic in its place.
    Established {
        /// The connection
        conn: Conn,
        /// The RTU's private data; empty if traffic came in its place
        private_data: Vec<u8>,
    },
    /// The other side rejects; also when it took up the connection before (it gave up waiting for our RTU).
    Rejected {
        /// The connection
        conn: Conn,
        /// Why
        reason: RejReason,
        /// The REJ's private data
        private_data: Vec<u8>,
    },
    /// A DREQ came and was answered; `Disconnected` follows. It may come in place of `Established`.
    Disconnecting {
        /// The connection
        conn: Conn,
        /// The DREQ's private data
        private_data: Vec<u8>,
    },
    /// The connection is over: DREQ was answered, or was not in time, or the other side has begun anew.
    Disconnected {
        /// The connection
        conn: Conn,
    },
    /// A REQ or REP was not answered, however often it was sent.
    Unreachable {
        /// The connection
        conn: Conn,
    },
}

impl Event {
    /// The connection that it is about
    pub const fn conn(&self) -> Conn {
        match *self {
            Self::Requested { conn, .. }
            | Self::Replied { conn, .. }
            | Self::Established { conn, .. }
            | Self::Rejected { conn, .. }
            | Self::Disconnecting { conn, .. }
            | Self::Disconnected { conn }
            | Self::Unreachable { conn } => conn,
        }
    }

    /// Whether it is the connection's last
    pub const fn is_last(&self) -> bool {
        matches!(self, Self::Rejected { .. } | Self::Disconnected { .. } | Self::Unreachable { .. })
    }
}

/// What is known of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Info {
    /// Where it stands
    pub state: State,
    /// Between whom
    pub peer: Peer,
    /// We asked for it
    pub active: bool,
    /// The service asked for
    pub service_id: u64,
    /// The other side's communication id, once it told it
    pub remote_comm_id: Option<u32>,
    /// Our queue pair; `None` before `accept`
    pub local_qpn: Option<Qpn>,
    /// The other side's queue pair, once it told it
    pub remote_qpn: Option<Qpn>,
}

/// Why there is no listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ListenError {
    /// Somebody listens already.
    #[error("service {0:#x} is listened for already")]
    Taken(u64),
}

/// Why a request was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// More private data than the message holds
    #[error("{len} bytes of private data, where {max} fit")]
    PrivateData {
        /// Bytes given
        len: usize,
        /// Bytes that fit
        max: usize,
    },
    /// No path MTU of IB
    #[error("{0} bytes are no path MTU: 256, 512, 1024, 2048 or 4096")]
    PathMtu(u16),
    /// A value that its field does not hold
    #[error("{field} is {value}, but {max} at most")]
    Range {
        /// The field
        field: &'static str,
        /// The value given
        value: u32,
        /// The largest that it holds
        max: u32,
    },
    /// An IPv4 address and an IPv6 address
    #[error("{0} and {1} are of different families")]
    Families(IpAddr, IpAddr),
    /// As many connections as there may be
    #[error("no room for another connection")]
    Full,
}

/// Why nothing was done with a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// There is no such connection, or no more.
    #[error("no such connection")]
    Unknown,
    /// The connection is not at the point for it.
    #[error("not possible in state {0:?}")]
    State(State),
    /// More private data than the message holds
    #[error("{len} bytes of private data, where {max} fit")]
    PrivateData {
        /// Bytes given
        len: usize,
        /// Bytes that fit
        max: usize,
    },
}
