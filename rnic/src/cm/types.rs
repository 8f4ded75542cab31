//! Parameters, events and errors of the communication manager.

use super::state::State;
use core::net::IpAddr;
use rocev2::cm::{CmaHeader, RejReason};
use rocev2::{Psn, Qpn};
use switch::Nanos;

/// Maximum length of the application's private data in each message, in bytes (IB table 99).
pub mod private_data {
    /// A REQ (IB 12.6.5)
    pub const REQ: usize = 92;
    /// A REQ whose private data starts with the RDMA IP CM header (IB A11.4)
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

/// Configuration of a communication manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// GUID of the local channel adapter, which every REQ and REP carries
    pub ca_guid: u64,
    /// Response timeout announced for either side: 4.096 us times 2^`response_timeout` (5 bits). Linux: 20,
    /// 4.3 s
    pub response_timeout: u8,
    /// Retransmissions of a message before the remote side counts as unreachable (4 bits). Linux: 15
    pub max_retries: u8,
    /// ACK delay of the local adapter, which a REP carries: 4.096 us times 2^`ack_delay` (5 bits). Soft-RoCE:
    /// 15
    pub ack_delay: u8,
    /// Communication IDs that may be assigned
    pub ids: IdSpace,
    /// Limit of connections, including those in time wait; at most 2^24, and a quarter of the IDs
    pub capacity: usize,
    /// Time for which a closed connection is remembered, so that late messages find it
    pub time_wait: Nanos,
    /// Maximum response timeout, whatever the remote side announces: a REQ that announces two hours would
    /// hold a connection for more than a day
    pub max_response_timeout: Nanos,
}

impl Default for Config {
    /// Returns the values of Linux, and a capacity of 1,024 connections.
    fn default() -> Self {
        Self {
            ca_guid: 0,
            response_timeout: 20,
            max_retries: 15,
            ack_delay: 15,
            ids: IdSpace::ALL,
            capacity: 1024,
            time_wait: Nanos::from_secs(2),
            max_response_timeout: Nanos::from_secs(60),
        }
    }
}

/// A subset of the communication IDs: `first`, and every `step`-th ID from there. Several managers of a host divide the IDs
/// among themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdSpace {
    /// Smallest ID, less than `step`
    pub first: u32,
    /// Difference between two IDs, from 1
    pub step: u32,
}

impl IdSpace {
    /// All IDs
    pub const ALL: Self = Self { first: 0, step: 1 };

    /// Returns whether other managers have the remaining IDs.
    pub(super) const fn is_part(self) -> bool {
        self.step > 1
    }

    /// Returns the number of bits that the number of an ID has.
    pub(super) const fn bits(self) -> u32 {
        32 - self.step.next_power_of_two().trailing_zeros()
    }

    /// Returns the ID with a number of [`bits`](Self::bits) bits.
    pub(super) const fn id(self, number: u32) -> u32 {
        number * self.step + self.first
    }

    /// Returns the number of an ID, or `None` if the ID is not in the set.
    pub(super) const fn number(self, id: u32) -> Option<u32> {
        if id % self.step == self.first { Some(id / self.step) } else { None }
    }
}

/// Handle of a connection of this manager. The handle of a forgotten connection is recognised as such.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Conn(pub(super) u32);

impl Conn {
    /// Returns the local communication ID, by which the remote side's messages refer to the connection.
    pub const fn comm_id(self) -> u32 {
        self.0
    }
}

/// Handle of a service for which this manager listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Listener(pub(super) u64);

impl Listener {
    /// Returns the service ID.
    pub const fn service_id(self) -> u64 {
        self.0
    }
}

/// Local and remote address between which MADs are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AddressPair {
    /// Local address
    pub local: IpAddr,
    /// Remote address
    pub remote: IpAddr,
}

/// ConnectedTransport service of a connection's queue pairs (IB 12.6.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ConnectedTransport {
    /// Reliable connection
    Rc = 0,
    /// Unreliable connection
    Uc = 1,
}

/// Contents of a REQ to send (IB 12.6.5). [`ConnectRequest::new`] fills in the values that `rdma_cm` uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectRequest {
    /// Addresses
    pub addresses: AddressPair,
    /// Service ID; see [`service_id_of`](super::service_id_of)
    pub service_id: u64,
    /// Local port, if the private data is to start with the RDMA IP CM header (IB A11.4); its addresses are
    /// /// those of `addresses`
    pub cma_src_port: Option<u16>,
    /// The application's private data: at most 56 bytes after the RDMA IP CM header, at most 92 bytes without
    /// it
    pub private_data: Vec<u8>,
    /// ConnectedTransport service
    pub transport: ConnectedTransport,
    /// Local queue pair
    pub qpn: Qpn,
    /// PSN of the remote side's first request
    pub starting_psn: Psn,
    /// Path MTU in bytes: 256, 512, 1024, 2048 or 4096
    pub path_mtu: u16,
    /// READs and atomics that the local side executes at once
    pub responder_resources: u8,
    /// READs and atomics that the local side has outstanding at once
    pub initiator_depth: u8,
    /// How often the remote side retransmits an unacknowledged request (3 bits)
    pub retry_count: u8,
    /// How often the remote side retries after an RNR NAK (3 bits); 7 is unlimited
    pub rnr_retry_count: u8,
    /// Acknowledgement timeout of the remote side: 4.096 us times 2^`ack_timeout` (5 bits); 0 is unlimited
    pub ack_timeout: u8,
    /// Whether the local queue pair uses a shared receive queue
    pub srq: bool,
    /// Whether the local side supports end-to-end flow control
    pub flow_control: bool,
    /// Partition key
    pub pkey: u16,
    /// Traffic class of the path
    pub traffic_class: u8,
    /// Hop limit of the path
    pub hop_limit: u8,
    /// Flow label of the path (20 bits)
    pub flow_label: u32,
    /// Service level of the path (4 bits)
    pub service_level: u8,
}

impl ConnectRequest {
    /// Returns a request as `rdma_cm` makes it on RoCE, without private data: RC, MTU 1,024, one READ each
    /// way, seven retries, ACK timeout 2.1 s, the default partition.
    pub const fn new(addresses: AddressPair, service_id: u64, qpn: Qpn, starting_psn: Psn) -> Self {
        Self {
            addresses,
            service_id,
            cma_src_port: None,
            private_data: Vec::new(),
            transport: ConnectedTransport::Rc,
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

/// Contents of a REP to send (IB 12.6.8).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accept {
    /// Local queue pair
    pub qpn: Qpn,
    /// PSN of the remote side's first request
    pub starting_psn: Psn,
    /// READs and atomics that the local side executes at once
    pub responder_resources: u8,
    /// READs and atomics that the local side has outstanding at once
    pub initiator_depth: u8,
    /// How often the remote side retries after an RNR NAK (3 bits); 7 is unlimited
    pub rnr_retry_count: u8,
    /// Whether the local queue pair uses a shared receive queue
    pub srq: bool,
    /// Whether the local side supports end-to-end flow control
    pub flow_control: bool,
    /// The application's private data, at most 196 bytes
    pub private_data: Vec<u8>,
}

impl Accept {
    /// Returns a reply without private data: one READ each way, unlimited RNR retries.
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

/// Contents of a received REQ (IB 12.6.5), from the sender's point of view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteRequest {
    /// Addresses
    pub addresses: AddressPair,
    /// Service ID
    pub service_id: u64,
    /// GUID of the sender's channel adapter
    pub ca_guid: u64,
    /// ConnectedTransport service
    pub transport: ConnectedTransport,
    /// The sender's queue pair
    pub qpn: Qpn,
    /// PSN of our first request
    pub starting_psn: Psn,
    /// Path MTU in bytes
    pub path_mtu: u16,
    /// READs and atomics that the sender executes at once
    pub responder_resources: u8,
    /// READs and atomics that the sender has outstanding at once
    pub initiator_depth: u8,
    /// How often we retransmit an unacknowledged request
    pub retry_count: u8,
    /// How often we retry after an RNR NAK; 7 is unlimited
    pub rnr_retry_count: u8,
    /// Our acknowledgement timeout: 4.096 us times 2^`ack_timeout`; 0 is unlimited
    pub ack_timeout: u8,
    /// Our time to respond: 4.096 us times 2^`our_response_timeout` ("remote CM response timeout")
    pub our_response_timeout: u8,
    /// The sender's maximum time to respond, in the same encoding ("local CM response timeout")
    pub response_timeout: u8,
    /// How often the sender retransmits CM messages ("max CM retries")
    pub max_cm_retries: u8,
    /// Whether the sender's queue pair uses a shared receive queue
    pub srq: bool,
    /// Whether the sender supports end-to-end flow control
    pub flow_control: bool,
    /// Partition key
    pub pkey: u16,
    /// Traffic class of the path
    pub traffic_class: u8,
    /// Hop limit of the path
    pub hop_limit: u8,
    /// Flow label of the path
    pub flow_label: u32,
    /// Service level of the path
    pub service_level: u8,
    /// The sender's GID in the REQ; the MAD itself came from `addresses.remote`
    pub local_gid: [u8; 16],
    /// Our GID in the REQ
    pub remote_gid: [u8; 16],
    /// The RDMA IP CM header, if the REQ has one
    pub cma: Option<CmaHeader>,
    /// The application's part of the private data: the whole field, 56 bytes after the RDMA IP CM header or
    /// 92 bytes without it, zero-padded, because the message does not carry the used length
    pub private_data: Vec<u8>,
}

/// Contents of a received REP (IB 12.6.8), from the sender's point of view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteReply {
    /// GUID of the sender's channel adapter
    pub ca_guid: u64,
    /// The sender's queue pair
    pub qpn: Qpn,
    /// PSN of our first request
    pub starting_psn: Psn,
    /// READs and atomics that the sender executes at once
    pub responder_resources: u8,
    /// READs and atomics that the sender has outstanding at once
    pub initiator_depth: u8,
    /// How often we retry after an RNR NAK; 7 is unlimited
    pub rnr_retry_count: u8,
    /// The sender's ACK delay: 4.096 us times 2^`target_ack_delay`
    pub target_ack_delay: u8,
    /// Whether the sender's queue pair uses a shared receive queue
    pub srq: bool,
    /// Whether the sender supports end-to-end flow control
    pub flow_control: bool,
    /// The application's private data, zero-padded
    pub private_data: Vec<u8>,
}

/// An event of a connection. Each connection that `connect` or [`Event::Requested`] created has at most one
/// final event: `Rejected`, `Disconnected` or `Unreachable`. It has none if its owner rejected or aborted it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A REQ arrived. The owner calls `accept` or `reject`; if it needs more time than the request allows,
    /// `delay`.
    Requested {
        /// The new connection
        conn: Conn,
        /// The requested service
        listener: Listener,
        /// The contents of the REQ
        request: Box<RemoteRequest>,
    },
    /// A REP arrived. The owner sets up its queue pair and calls `confirm`, or calls `reject`.
    Replied {
        /// The connection
        conn: Conn,
        /// The contents of the REP
        reply: Box<RemoteReply>,
    },
    /// Passive side: the RTU arrived, or data in its place.
    Established {
        /// The connection
        conn: Conn,
        /// The RTU's private data; empty if data arrived in its place
        private_data: Vec<u8>,
    },
    /// The remote side rejected the connection. This may follow its REP, if it gave up waiting for our RTU.
    Rejected {
        /// The connection
        conn: Conn,
        /// The REJ's reason
        reason: RejReason,
        /// The REJ's private data
        private_data: Vec<u8>,
    },
    /// A DREQ arrived and was answered; `Disconnected` follows. It may come instead of `Established`.
    Disconnecting {
        /// The connection
        conn: Conn,
        /// The DREQ's private data
        private_data: Vec<u8>,
    },
    /// The connection is closed: the DREQ was answered or timed out, or the remote side restarted.
    Disconnected {
        /// The connection
        conn: Conn,
    },
    /// A REQ or REP was not answered after all retransmissions.
    Unreachable {
        /// The connection
        conn: Conn,
    },
}

impl Event {
    /// Returns the connection of the event.
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

    /// Returns whether it is the connection's final event.
    pub const fn is_last(&self) -> bool {
        matches!(self, Self::Rejected { .. } | Self::Disconnected { .. } | Self::Unreachable { .. })
    }
}

/// Attributes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnInfo {
    /// State
    pub state: State,
    /// Addresses
    pub addresses: AddressPair,
    /// Whether the local side requested the connection
    pub active: bool,
    /// Service ID
    pub service_id: u64,
    /// Remote communication ID, once received
    pub remote_comm_id: Option<u32>,
    /// Local queue pair; `None` before `accept`
    pub local_qpn: Option<Qpn>,
    /// Remote queue pair, once received
    pub remote_qpn: Option<Qpn>,
}

/// Why a listener cannot be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ListenError {
    /// There already is a listener for the service.
    #[error("service {0:#x} already has a listener; use another port")]
    Taken(u64),
}

/// Why a request was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// More private data than the message holds
    #[error("{len} bytes of private data exceed the limit of {max} bytes; shorten it")]
    PrivateData {
        /// Length of the data
        len: usize,
        /// Limit
        max: usize,
    },
    /// The path MTU is not one of IB
    #[error("path_mtu is {0} bytes; use 256, 512, 1024, 2048 or 4096")]
    PathMtu(u16),
    /// A value exceeds the range of its message field
    #[error("{field} is {value}; use at most {max}")]
    Range {
        /// Name of the field
        field: &'static str,
        /// Value
        value: u32,
        /// Largest valid value
        max: u32,
    },
    /// An IPv4 and an IPv6 address
    #[error("{0} and {1} are of different address families; use two of the same family")]
    Families(IpAddr, IpAddr),
    /// The limit of connections is reached
    #[error("the limit of connections is reached; close one first")]
    Full,
}

/// Why a call on a connection failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The connection does not exist, or was forgotten.
    #[error("no such connection; it may have ended")]
    Unknown,
    /// The connection's state does not allow the call.
    #[error("not valid in connection state {0:?}")]
    State(State),
    /// More private data than the message holds
    #[error("{len} bytes of private data exceed the limit of {max} bytes; shorten it")]
    PrivateData {
        /// Length of the data
        len: usize,
        /// Limit
        max: usize,
    },
}
