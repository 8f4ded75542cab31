//! A packet as the analysis sees it: the fields that it needs, without the frame.

use crate::decode::Roce;
use core::net::IpAddr;
use rocev2::aeth::{Aeth, Syndrome};
use rocev2::{Opcode, Psn, Qpn};
use serde::Serialize;

/// Place of a packet in the capture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Sight {
    /// Number of the frame, from 1
    pub number: u64,
    /// Capture time in nanoseconds since 1970
    pub time_ns: u64,
}

impl Sight {
    /// Returns the time from `earlier` to this packet, in nanoseconds; 0 if the capture's times are not in order.
    pub(crate) fn since(self, earlier: Self) -> u64 {
        self.time_ns.saturating_sub(earlier.time_ns)
    }
}

/// Memory that a request accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Access {
    /// Virtual address
    pub va: u64,
    /// Key of the memory region
    pub rkey: u32,
    /// Length in bytes
    pub len: u32,
}

/// A direction of a connection: packets from one host to a queue pair of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FlowKey {
    pub src: IpAddr,
    pub dst: IpAddr,
    pub qpn: Qpn,
}

/// Part that a packet has in its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Request; `acknowledged` is true on RC
    Request { acknowledged: bool },
    /// ACK, NAK, or response to a READ or an atomic
    Response,
    /// Congestion notification packet
    Cnp,
    /// Datagram, or a packet of another transport
    Other,
}

/// A decoded packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Observed {
    pub sight: Sight,
    /// Interface on which the packet was captured
    pub interface: u32,
    pub key: FlowKey,
    pub src_port: u16,
    pub opcode: Opcode,
    pub psn: Psn,
    pub ack_req: bool,
    /// Payload, in bytes
    pub payload_len: u32,
    /// Whether the packet is marked as Congestion Experienced
    pub ce: bool,
    /// ICRC, which covers everything that a sender varies between packets
    pub icrc: Option<u32>,
    /// IPv4's identification
    pub ip_id: Option<u16>,
    /// Hash of what routers change and the ICRC does not cover: MAC addresses, VLANs, hop limit
    pub link: u16,
    pub aeth: Option<Aeth>,
    pub access: Option<Access>,
}

/// ECN field of a packet that passed a congested queue (RFC 3168)
const CE: u8 = 3;

/// Returns a hash of the link header and the hop limit (FNV-1a).
fn link(packet: &Roce<'_>) -> u16 {
    let macs = packet.macs.iter().flat_map(|(src, dst)| src.0.into_iter().chain(dst.0));
    let vlans = packet.vlans.iter().flat_map(|vlan| vlan.to_be_bytes());
    let bytes = macs.chain(vlans).chain([packet.ttl]);
    let hash = bytes.fold(0x811c_9dc5, |hash: u32, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    (hash >> 16 ^ hash) as u16
}

impl Observed {
    /// Returns the fields of a packet; `None` if it has no BTH.
    pub(crate) fn of(packet: &Roce<'_>, sight: Sight, interface: u32) -> Option<Self> {
        let bth = packet.bth.as_ref()?;
        let (src, dst) = packet.addresses;
        let by_reth = packet.reth().map(|h| Access { va: h.va.get(), rkey: h.rkey.get(), len: h.len.get() });
        let by_atomic = packet.atomic().map(|h| Access { va: h.va.get(), rkey: h.rkey.get(), len: 8 });
        Some(Self {
            sight,
            interface,
            key: FlowKey { src, dst, qpn: bth.dest_qp() },
            src_port: packet.src_port,
            opcode: bth.opcode(),
            psn: bth.psn(),
            ack_req: bth.ack_req(),
            payload_len: packet.payload_len.unwrap_or(0) as u32,
            ce: packet.traffic_class & 3 == CE,
            icrc: packet.icrc,
            ip_id: packet.ip_id,
            link: link(packet),
            aeth: packet.aeth().copied(),
            access: by_reth.or(by_atomic),
        })
    }

    pub(crate) fn role(&self) -> Role {
        match self.opcode {
            Opcode::CNP => Role::Cnp,
            Opcode(0x0d..=0x12) => Role::Response,
            Opcode(0x00..=0x1f) => Role::Request { acknowledged: true },
            Opcode(0x20..=0x3f) => Role::Request { acknowledged: false },
            _ => Role::Other,
        }
    }

    /// Returns whether the packet is a READ or an atomic, to which the responder has to respond by itself.
    pub(crate) fn needs_response(&self) -> bool {
        matches!(
            self.opcode,
            Opcode::RC_READ_REQUEST
                | Opcode::RC_COMPARE_SWAP
                | Opcode::RC_FETCH_ADD
                | Opcode::RC_ATOMIC_WRITE
        )
    }

    /// Returns whether the payload of the packet has to be exactly the path MTU.
    pub(crate) fn fills_mtu(&self) -> bool {
        // SEND and WRITE First and Middle on RC and UC, READ Response First and Middle
        matches!(self.opcode.0 & 0x1f, 0 | 1 | 6 | 7) && self.opcode.0 < 0x40
            || matches!(self.opcode, Opcode::RC_READ_RESPONSE_FIRST | Opcode::RC_READ_RESPONSE_MIDDLE)
    }

    /// Returns whether the packet is the last of its response.
    pub(crate) fn ends_response(&self) -> bool {
        !matches!(self.opcode, Opcode::RC_READ_RESPONSE_FIRST | Opcode::RC_READ_RESPONSE_MIDDLE)
    }

    /// Returns the decoded syndrome; an ACK for READ Response Middle, which has none.
    pub(crate) fn syndrome(&self) -> Option<Syndrome> {
        self.aeth.map(|aeth| aeth.kind())
    }
}
