//! Encoding and decoding of CM messages.

use super::connection::Connection;
use super::state::State;
use super::types::{
    Accept, AddressPair, CallError, Config, Conn, ConnectError, ConnectRequest, ConnectedTransport,
    RemoteReply, RemoteRequest, private_data,
};
use core::net::IpAddr;
use rocev2::cm::{CmaHeader, Drep, Dreq, Kind, MAD_LEN, MadHeader, Mra, Rej, RejReason, Rep, Req, Rtu, emit};
use rocev2::{Psn, Qpn};
use switch::Nanos;
use zerocopy::{FromZeros, Immutable, IntoBytes};

/// Returns the time that a field of 5 bits encodes: 4.096 us times 2^`code` (IB 9.9.1).
pub(super) const fn span(code: u8) -> Nanos {
    Nanos(4096 << (code & 31))
}

/// The message that a REJ rejects or an MRA acknowledges (IB 12.6.7.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum MessageType {
    Req = 0,
    Rep = 1,
    Other = 2,
}

impl MessageType {
    /// Decodes the two upper bits of a byte.
    pub(super) const fn read(byte: u8) -> Option<Self> {
        match byte >> 6 {
            0 => Some(Self::Req),
            1 => Some(Self::Rep),
            2 => Some(Self::Other),
            _ => None,
        }
    }
}

/// Returns the RoCEv2 GID of an address: the IPv6 address, or the IPv4 address in ::ffff:0:0/96 (IB A17.4.4).
fn gid(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// Returns an address as in the RDMA IP CM header: an IPv4 address in the last 4 bytes, zeros before
/// (IB A11.4).
fn cma_address(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => u128::from(address.to_bits()).to_be_bytes(),
        IpAddr::V6(address) => address.octets(),
    }
}

fn mad(kind: Kind, transaction: u64, body: &(impl IntoBytes + Immutable)) -> [u8; MAD_LEN] {
    let mut mad = [0; MAD_LEN];
    emit(&MadHeader::new(kind, transaction), body, &mut mad);
    mad
}

/// Copies private data to the start of its field.
pub(super) fn fill(field: &mut [u8], data: &[u8]) -> Result<(), CallError> {
    let max = field.len();
    let target = field.get_mut(..data.len()).ok_or(CallError::PrivateData { len: data.len(), max })?;
    target.copy_from_slice(data);
    Ok(())
}

/// Checks that the values of a request fit the fields of a REQ.
pub(super) fn check(request: &ConnectRequest) -> Result<(), ConnectError> {
    let AddressPair { local, remote } = request.addresses;
    if local.is_ipv4() != remote.is_ipv4() {
        return Err(ConnectError::Families(local, remote));
    }
    let max = if request.cma_src_port.is_some() { private_data::REQ_CMA } else { private_data::REQ };
    let len = request.private_data.len();
    if len > max {
        return Err(ConnectError::PrivateData { len, max });
    }
    if !matches!(request.path_mtu, 256 | 512 | 1024 | 2048 | 4096) {
        return Err(ConnectError::PathMtu(request.path_mtu));
    }
    let ranges = [
        ("retry_count", request.retry_count.into(), 7),
        ("rnr_retry_count", request.rnr_retry_count.into(), 7),
        ("ack_timeout", request.ack_timeout.into(), 31),
        ("flow_label", request.flow_label, 0xf_ffff),
        ("service_level", request.service_level.into(), 15),
    ];
    match ranges.into_iter().find(|&(_, value, max)| value > max) {
        Some((field, value, max)) => Err(ConnectError::Range { field, value, max }),
        None => Ok(()),
    }
}

/// Builds the REQ of a checked request.
pub(super) fn req(config: &Config, request: &ConnectRequest, conn: Conn, transaction: u64) -> [u8; MAD_LEN] {
    let mut req = Req::zeroed();
    req.local_comm_id = conn.comm_id().into();
    req.service_id = request.service_id.into();
    req.local_ca_guid = config.ca_guid.into();
    req.set_qpn(request.qpn);
    req.responder_resources = request.responder_resources;
    req.initiator_depth = request.initiator_depth;
    let timeout = config.response_timeout & 31;
    req.timeout_service_flow = timeout << 3 | (request.transport as u8) << 1 | u8::from(request.flow_control);
    req.set_starting_psn(request.starting_psn);
    req.timeout_retries = timeout << 3 | request.retry_count;
    req.pkey = request.pkey.into();
    // 1 for 256 bytes to 5 for 4096
    let mtu = (request.path_mtu.trailing_zeros() as u8).saturating_sub(7);
    req.mtu_rnr = mtu << 4 | request.rnr_retry_count;
    req.cm_retries_srq = config.max_retries << 4 | u8::from(request.srq) << 3;
    let path = &mut req.primary;
    // Ethernet has no LIDs; Linux sets the permissive LID for every path that may be routed.
    path.local_lid = 0xffff.into();
    path.remote_lid = 0xffff.into();
    path.local_gid = gid(request.addresses.local);
    path.remote_gid = gid(request.addresses.remote);
    path.flow_rate = (request.flow_label << 12).into();
    path.traffic_class = request.traffic_class;
    path.hop_limit = request.hop_limit;
    path.sl = request.service_level << 4;
    path.ack_timeout = request.ack_timeout << 3;
    let mut application = 0;
    if let Some(port) = request.cma_src_port {
        let header = CmaHeader {
            version: 0,
            ip_version: if request.addresses.local.is_ipv4() { 0x40 } else { 0x60 },
            src_port: port.into(),
            src: cma_address(request.addresses.local),
            dst: cma_address(request.addresses.remote),
        };
        req.private_data[..CmaHeader::LEN].copy_from_slice(header.as_bytes());
        application = CmaHeader::LEN;
    }
    req.private_data[application..][..request.private_data.len()].copy_from_slice(&request.private_data);
    mad(Kind::Req, transaction, &req)
}

/// Decodes a REQ. The error is the reason for which it is rejected.
pub(super) fn read_req(addresses: AddressPair, req: &Req) -> Result<RemoteRequest, RejReason> {
    let transport = match req.timeout_service_flow >> 1 & 3 {
        0 => ConnectedTransport::Rc,
        1 => ConnectedTransport::Uc,
        _ => return Err(RejReason::INVALID_TRANSPORT_SERVICE),
    };
    let cma = req.cma_header().copied();
    let application = if cma.is_some() { CmaHeader::LEN } else { 0 };
    Ok(RemoteRequest {
        addresses,
        service_id: req.service_id.get(),
        ca_guid: req.local_ca_guid.get(),
        transport,
        qpn: req.qpn(),
        starting_psn: req.starting_psn(),
        path_mtu: req.path_mtu().ok_or(RejReason::INVALID_PATH_MTU)?,
        responder_resources: req.responder_resources,
        initiator_depth: req.initiator_depth,
        retry_count: req.timeout_retries & 7,
        rnr_retry_count: req.mtu_rnr & 7,
        ack_timeout: req.primary.ack_timeout >> 3,
        our_response_timeout: req.timeout_service_flow >> 3,
        response_timeout: req.timeout_retries >> 3,
        max_cm_retries: req.cm_retries_srq >> 4,
        srq: req.cm_retries_srq & 8 != 0,
        flow_control: req.timeout_service_flow & 1 != 0,
        pkey: req.pkey.get(),
        traffic_class: req.primary.traffic_class,
        hop_limit: req.primary.hop_limit,
        flow_label: req.primary.flow_rate.get() >> 12,
        service_level: req.primary.sl >> 4,
        local_gid: req.primary.local_gid,
        remote_gid: req.primary.remote_gid,
        cma,
        private_data: req.private_data[application..].to_vec(),
    })
}

/// Builds the REP of a connection.
pub(super) fn rep(
    config: &Config,
    conn: Conn,
    connection: &Connection,
    accept: &Accept,
) -> Result<[u8; MAD_LEN], CallError> {
    let mut rep = Rep::zeroed();
    rep.local_comm_id = conn.comm_id().into();
    rep.remote_comm_id = connection.remote_id.unwrap_or(0).into();
    rep.set_qpn(accept.qpn);
    rep.set_starting_psn(accept.starting_psn);
    rep.responder_resources = accept.responder_resources;
    rep.initiator_depth = accept.initiator_depth;
    rep.delay_failover_flow = config.ack_delay << 3 | u8::from(accept.flow_control);
    rep.rnr_srq = accept.rnr_retry_count << 5 | u8::from(accept.srq) << 4;
    rep.local_ca_guid = config.ca_guid.into();
    fill(&mut rep.private_data, &accept.private_data)?;
    Ok(mad(Kind::Rep, connection.transaction, &rep))
}

/// Decodes a REP.
pub(super) fn read_rep(rep: &Rep) -> RemoteReply {
    RemoteReply {
        ca_guid: rep.local_ca_guid.get(),
        qpn: rep.qpn(),
        starting_psn: rep.starting_psn(),
        responder_resources: rep.responder_resources,
        initiator_depth: rep.initiator_depth,
        rnr_retry_count: rep.rnr_srq >> 5,
        target_ack_delay: rep.delay_failover_flow >> 3,
        srq: rep.rnr_srq & 0x10 != 0,
        flow_control: rep.delay_failover_flow & 1 != 0,
        private_data: rep.private_data.to_vec(),
    }
}

/// Builds the REJ of a message that belongs to no connection; the IDs are those of the message.
pub(super) fn rej_of(
    message_type: MessageType,
    transaction: u64,
    remote_id: u32,
    local_id: u32,
    reason: RejReason,
) -> [u8; MAD_LEN] {
    let mut rej = Rej::of_req(local_id, remote_id, reason);
    rej.rejected = (message_type as u8) << 6;
    mad(Kind::Rej, transaction, &rej)
}

/// Builds the REJ with which we close a connection.
pub(super) fn rej(
    config: &Config,
    conn: Conn,
    connection: &Connection,
    reason: RejReason,
    data: &[u8],
) -> Result<[u8; MAD_LEN], CallError> {
    let (message_type, local_id) = match connection.state {
        // The remote side never learned our ID, so the REJ carries none.
        State::ReqReceived => (MessageType::Req, 0),
        State::MraReqSent => (MessageType::Req, conn.comm_id()),
        State::RepReceived | State::MraRepSent => (MessageType::Rep, conn.comm_id()),
        _ => (MessageType::Other, conn.comm_id()),
    };
    // Without the remote side's ID the reason has to be timeout: the remote side then finds the connection by
    // our CA GUID and our ID (IB 12.6.7.2).
    let reason = if connection.remote_id.is_none() { RejReason::TIMEOUT } else { reason };
    let mut rej = Rej::of_req(local_id, connection.remote_id.unwrap_or(0), reason);
    rej.rejected = (message_type as u8) << 6;
    if reason == RejReason::TIMEOUT {
        rej.info_len = 8 << 1;
        rej.info[..8].copy_from_slice(&config.ca_guid.to_be_bytes());
    }
    fill(&mut rej.private_data, data)?;
    Ok(mad(Kind::Rej, connection.transaction, &rej))
}

/// Builds the MRA that extends the timeout for the response to a REQ or REP.
pub(super) fn mra(
    conn: Conn,
    connection: &Connection,
    message_type: MessageType,
    service_timeout: u8,
) -> [u8; MAD_LEN] {
    let mut mra = Mra::new_zeroed();
    mra.local_comm_id = conn.comm_id().into();
    mra.remote_comm_id = connection.remote_id.unwrap_or(0).into();
    mra.acknowledged = (message_type as u8) << 6;
    mra.service_timeout = service_timeout << 3;
    mad(Kind::Mra, connection.transaction, &mra)
}

/// Builds the RTU of a connection.
pub(super) fn rtu(conn: Conn, connection: &Connection, data: &[u8]) -> Result<[u8; MAD_LEN], CallError> {
    let mut rtu = Rtu::new_zeroed();
    rtu.local_comm_id = conn.comm_id().into();
    rtu.remote_comm_id = connection.remote_id.unwrap_or(0).into();
    fill(&mut rtu.private_data, data)?;
    Ok(mad(Kind::Rtu, connection.transaction, &rtu))
}

/// Builds the DREQ of a connection, which has a transaction ID of its own.
pub(super) fn dreq(
    conn: Conn,
    connection: &Connection,
    transaction: u64,
    data: &[u8],
) -> Result<[u8; MAD_LEN], CallError> {
    let mut dreq = Dreq::new_zeroed();
    dreq.local_comm_id = conn.comm_id().into();
    dreq.remote_comm_id = connection.remote_id.unwrap_or(0).into();
    dreq.set_remote_qpn(connection.remote_qpn.unwrap_or(Qpn::new(0)));
    fill(&mut dreq.private_data, data)?;
    Ok(mad(Kind::Dreq, transaction, &dreq))
}

/// Builds the response to a DREQ, whether or not the connection exists.
pub(super) fn drep(transaction: u64, request: &Dreq) -> [u8; MAD_LEN] {
    let mut drep = Drep::new_zeroed();
    drep.local_comm_id = request.remote_comm_id;
    drep.remote_comm_id = request.local_comm_id;
    mad(Kind::Drep, transaction, &drep)
}

/// Returns whether a REQ is a retransmission of the one that created this connection.
pub(super) fn is_retransmission(connection: &Connection, transaction: u64, qpn: Qpn, psn: Psn) -> bool {
    !connection.active
        && connection.transaction == transaction
        && connection.remote_qpn == Some(qpn)
        && connection.request_psn == psn
}
