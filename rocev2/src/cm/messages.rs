//! Bodies of the CM messages, 232 bytes each, which follow the MAD header (IB 12.6.5 to 12.6.11), and the
//! header that `rdma_cm` puts at the start of a REQ's private data.

use crate::{Psn, Qpn};
use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use zerocopy::byteorder::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// REQ: request for communication (IB 12.6.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Req {
    /// The sender's communication ID of the connection
    pub local_comm_id: U32,
    reserved_4: U32,
    /// Requested service ID; for `rdma_cm`: port space and port
    pub service_id: U64,
    /// GUID of the sender's channel adapter
    pub local_ca_guid: U64,
    reserved_24: U32,
    /// Q_Key, for datagram services
    pub qkey: U32,
    qpn: [u8; 3],
    /// READs and atomics that the sender, as responder, executes concurrently
    pub responder_resources: u8,
    eecn: [u8; 3],
    /// READs and atomics that the sender, as requester, has outstanding
    pub initiator_depth: u8,
    remote_eecn: [u8; 3],
    /// Remote CM response timeout (5 bits), transport service (2), end-to-end flow control (1)
    pub timeout_service_flow: u8,
    starting_psn: [u8; 3],
    /// Local CM response timeout (5 bits), retry count (3)
    pub timeout_retries: u8,
    /// Partition key
    pub pkey: U16,
    /// Path MTU code (4 bits), RDC exists (1), RNR retry count (3)
    pub mtu_rnr: u8,
    /// Max CM retries (4 bits), SRQ (1), extended transport (3)
    pub cm_retries_srq: u8,
    /// Primary path
    pub primary: Path,
    /// Alternate path; all zero if there is none
    pub alternate: Path,
    /// The application's private data, behind `rdma_cm`'s header if there is one
    pub private_data: [u8; 92],
}

/// A path of a REQ, 44 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Path {
    /// LID of the local port; unused on Ethernet
    pub local_lid: U16,
    /// LID of the remote port; unused on Ethernet
    pub remote_lid: U16,
    /// The sender's GID: its IPv6 address, or its IPv4 address mapped into ::ffff:0:0/96
    pub local_gid: [u8; 16],
    /// The receiver's GID
    pub remote_gid: [u8; 16],
    /// Flow label (20 bits), reserved (6), packet rate (6)
    pub flow_rate: U32,
    /// Traffic class
    pub traffic_class: u8,
    /// Hop limit
    pub hop_limit: u8,
    /// Service level (4 bits), subnet local (1), reserved (3)
    pub sl: u8,
    /// Local ACK timeout (5 bits: 4.096 us * 2^value), reserved (3)
    pub ack_timeout: u8,
}

impl Req {
    /// Returns a request with all bytes zero.
    pub fn zeroed() -> Self {
        Self::new_zeroed()
    }

    /// Returns the sender's queue pair number.
    pub const fn qpn(&self) -> Qpn {
        Qpn::from_wire(self.qpn)
    }

    /// Sets the sender's queue pair.
    pub const fn set_qpn(&mut self, qpn: Qpn) {
        self.qpn = qpn.to_wire();
    }

    /// Returns the first PSN that the receiver of this message uses for its requests (not the sender's).
    pub const fn starting_psn(&self) -> Psn {
        Psn::from_wire(self.starting_psn)
    }

    /// Sets the first PSN of the receiver of this message.
    pub const fn set_starting_psn(&mut self, psn: Psn) {
        self.starting_psn = psn.to_wire();
    }

    /// Returns the path MTU in bytes, 256 to 4096; `None` for a reserved code.
    pub const fn path_mtu(&self) -> Option<u16> {
        match self.mtu_rnr >> 4 {
            code @ 1..=5 => Some(128 << code),
            _ => None,
        }
    }

    /// Returns `rdma_cm`'s header, if the private data begins with one.
    pub fn cma_header(&self) -> Option<&CmaHeader> {
        /// Prefix of the service IDs of the IP port spaces (IB annex A11)
        const IP_SERVICE: u64 = 0x0000_0000_0100_0000;
        let (header, _) = CmaHeader::ref_from_prefix(&self.private_data).ok()?;
        let ip_service = self.service_id.get() & !0xff_ffff == IP_SERVICE;
        (ip_service && header.version == 0 && matches!(header.ip_version >> 4, 4 | 6)).then_some(header)
    }
}

/// The header that `rdma_cm` puts at the start of a REQ's private data, 36 bytes (IB annex A11.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct CmaHeader {
    /// Version; 0
    pub version: u8,
    /// IP version (4 bits), reserved (4)
    pub ip_version: u8,
    /// The sender's port
    pub src_port: U16,
    /// The sender's address; an IPv4 address is in the last 4 bytes
    pub src: [u8; 16],
    /// The receiver's address, in the same format
    pub dst: [u8; 16],
}

impl CmaHeader {
    /// Length on the wire, in bytes; 56 bytes of a REQ's private data remain for the application
    pub const LEN: usize = size_of::<Self>();

    fn address(&self, address: [u8; 16]) -> IpAddr {
        if self.ip_version >> 4 == 4 {
            let [.., a, b, c, d] = address;
            Ipv4Addr::new(a, b, c, d).into()
        } else {
            Ipv6Addr::from(address).into()
        }
    }

    /// Returns the sender's address.
    pub fn src_addr(&self) -> IpAddr {
        self.address(self.src)
    }

    /// Returns the receiver's address.
    pub fn dst_addr(&self) -> IpAddr {
        self.address(self.dst)
    }
}

/// REP: reply to a request (IB 12.6.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Rep {
    /// The sender's communication ID of the connection
    pub local_comm_id: U32,
    /// The receiver's communication ID
    pub remote_comm_id: U32,
    /// Q_Key, for datagram services
    pub qkey: U32,
    qpn: [u8; 3],
    reserved_15: u8,
    eecn: [u8; 3],
    reserved_19: u8,
    starting_psn: [u8; 3],
    reserved_23: u8,
    /// READs and atomics that the sender, as responder, executes concurrently
    pub responder_resources: u8,
    /// READs and atomics that the sender, as requester, has outstanding
    pub initiator_depth: u8,
    /// Target ACK delay (5 bits), failover accepted (2), end-to-end flow control (1)
    pub delay_failover_flow: u8,
    /// RNR retry count (3 bits), SRQ (1), reserved (4)
    pub rnr_srq: u8,
    /// GUID of the sender's channel adapter
    pub local_ca_guid: U64,
    /// The application's private data
    pub private_data: [u8; 196],
}

impl Rep {
    /// Returns a reply with all bytes zero.
    pub fn zeroed() -> Self {
        Self::new_zeroed()
    }

    /// Returns the sender's queue pair number.
    pub const fn qpn(&self) -> Qpn {
        Qpn::from_wire(self.qpn)
    }

    /// Sets the sender's queue pair.
    pub const fn set_qpn(&mut self, qpn: Qpn) {
        self.qpn = qpn.to_wire();
    }

    /// Returns the first PSN that the receiver of this message uses for its requests (not the sender's).
    pub const fn starting_psn(&self) -> Psn {
        Psn::from_wire(self.starting_psn)
    }

    /// Sets the first PSN of the receiver of this message.
    pub const fn set_starting_psn(&mut self, psn: Psn) {
        self.starting_psn = psn.to_wire();
    }
}

/// REJ: reject (IB 12.6.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Rej {
    /// The sender's communication ID of the connection; 0 if it has none
    pub local_comm_id: U32,
    /// The receiver's communication ID
    pub remote_comm_id: U32,
    /// Rejected message (2 bits: 0 REQ, 1 REP, 2 none), reserved (6)
    pub rejected: u8,
    /// Length of the additional information in bytes (7 bits), reserved (1)
    pub info_len: u8,
    reason: U16,
    /// Additional information, whose meaning depends on the reason
    pub info: [u8; 72],
    /// The application's private data
    pub private_data: [u8; 148],
}

impl Rej {
    /// Returns a rejection of a REQ for this reason.
    pub fn of_req(local_comm_id: u32, remote_comm_id: u32, reason: RejReason) -> Self {
        let mut rej = Self::new_zeroed();
        rej.local_comm_id = local_comm_id.into();
        rej.remote_comm_id = remote_comm_id.into();
        rej.reason = reason.0.into();
        rej
    }

    /// Returns the reason of the rejection.
    pub fn reason(&self) -> RejReason {
        RejReason(self.reason.get())
    }
}

/// A reason to reject (IB table 111).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RejReason(pub u16);

impl RejReason {
    /// No resources for another connection
    pub const NO_RESOURCES: Self = Self(3);
    /// The sender has timed out waiting for a response
    pub const TIMEOUT: Self = Self(4);
    /// The communication ID is unknown to the sender of the REJ
    pub const INVALID_COMM_ID: Self = Self(6);
    /// No application listens for the service ID
    pub const INVALID_SERVICE_ID: Self = Self(8);
    /// The transport service (queue pair type) is not supported
    pub const INVALID_TRANSPORT_SERVICE: Self = Self(9);
    /// The REQ names a queue pair that is connected already, or the message a connection that no longer
    /// exists
    pub const STALE_CONNECTION: Self = Self(10);
    /// The path MTU code is reserved, or its MTU is not supported
    pub const INVALID_PATH_MTU: Self = Self(26);
    /// The application rejects; its private data may carry a reason
    pub const CONSUMER: Self = Self(28);

    /// Returns the name used in traces.
    pub const fn name(self) -> &'static str {
        match self.0 {
            1 => "no_qp",
            2 => "no_eec",
            3 => "no_resources",
            4 => "timeout",
            5 => "unsupported_request",
            6 => "invalid_comm_id",
            7 => "invalid_comm_instance",
            8 => "invalid_service_id",
            9 => "invalid_transport_service",
            10 => "stale_connection",
            11 => "rdc_not_there",
            12 => "primary_gid_rejected",
            13 => "primary_lid_rejected",
            14 => "invalid_primary_sl",
            15 => "invalid_primary_traffic_class",
            16 => "invalid_primary_hop_limit",
            17 => "invalid_primary_packet_rate",
            18 => "alternate_gid_rejected",
            19 => "alternate_lid_rejected",
            20 => "invalid_alternate_sl",
            21 => "invalid_alternate_traffic_class",
            22 => "invalid_alternate_hop_limit",
            23 => "invalid_alternate_packet_rate",
            24 => "port_and_cm_redirection",
            25 => "port_redirection",
            26 => "invalid_path_mtu",
            27 => "insufficient_responder_resources",
            28 => "consumer",
            29 => "rnr_retry_count",
            30 => "duplicate_local_comm_id",
            31 => "invalid_class_version",
            32 => "invalid_flow_label",
            33 => "invalid_alternate_flow_label",
            _ => "other",
        }
    }
}

impl fmt::Display for RejReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name(), self.0)
    }
}

/// MRA: message receipt acknowledgement (IB 12.6.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Mra {
    /// The sender's communication ID of the connection
    pub local_comm_id: U32,
    /// The receiver's communication ID
    pub remote_comm_id: U32,
    /// Acknowledged message (2 bits: 0 REQ, 1 REP, 2 LAP), reserved (6)
    pub acknowledged: u8,
    /// Time that the sender needs (5 bits: 4.096 us * 2^value), reserved (3)
    pub service_timeout: u8,
    /// The application's private data
    pub private_data: [u8; 222],
}

/// RTU: ready to use (IB 12.6.9).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Rtu {
    /// The sender's communication ID of the connection
    pub local_comm_id: U32,
    /// The receiver's communication ID
    pub remote_comm_id: U32,
    /// The application's private data
    pub private_data: [u8; 224],
}

/// DREQ: request to disconnect (IB 12.6.10).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Dreq {
    /// The sender's communication ID of the connection
    pub local_comm_id: U32,
    /// The receiver's communication ID
    pub remote_comm_id: U32,
    remote_qpn: [u8; 3],
    reserved_11: u8,
    /// The application's private data
    pub private_data: [u8; 220],
}

impl Dreq {
    /// Returns the receiver's queue pair number.
    pub const fn remote_qpn(&self) -> Qpn {
        Qpn::from_wire(self.remote_qpn)
    }

    /// Sets the receiver's queue pair.
    pub const fn set_remote_qpn(&mut self, qpn: Qpn) {
        self.remote_qpn = qpn.to_wire();
    }
}

/// DREP: reply to a request to disconnect (IB 12.6.11).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Drep {
    /// The sender's communication ID of the connection
    pub local_comm_id: U32,
    /// The receiver's communication ID
    pub remote_comm_id: U32,
    /// The application's private data
    pub private_data: [u8; 224],
}
