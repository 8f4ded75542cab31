//! Fields of a RoCEv2 packet as `--json` prints them. Fields are added, not renamed.

use super::dissect::Roce;
use core::net::IpAddr;
use rocev2::Bth;
use rocev2::aeth::{Aeth, Syndrome};
use rocev2::atomic::AtomicAckEth;
use rocev2::cm::{self, Body, Message};
use rocev2::deth::Deth;
use rocev2::immediate::{Ieth, ImmDt};
use rocev2::opcode::Headers;
use serde::Serialize;
use serde_json::{Map, Value};

/// A RoCEv2 packet. What could not be read is null.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct PacketFields {
    /// Null if the capture is not of Ethernet
    src_mac: Option<String>,
    /// Null if the capture is not of Ethernet
    dst_mac: Option<String>,
    /// Address of the sender
    src: IpAddr,
    /// Address of the receiver
    dst: IpAddr,
    /// Differentiated services code point
    dscp: u8,
    /// ECN field: 0 not capable, 1 or 2 capable, 3 congestion experienced
    ecn: u8,
    /// IPv4's time to live, IPv6's hop limit
    ttl: u8,
    udp_src_port: u16,
    /// Outermost VLAN identifier
    vlan: Option<u16>,
    /// VLAN identifiers, outermost first, if there are several
    #[serde(skip_serializing_if = "Option::is_none")]
    vlans: Option<Vec<u16>>,
    /// Opcode of the base transport header, which has the fields up to `pkey`, too
    opcode: Option<u8>,
    opcode_name: Option<&'static str>,
    /// Destination queue pair
    dest_qp: Option<u32>,
    /// Packet sequence number
    psn: Option<u32>,
    /// Whether an acknowledgement is requested
    ack_req: Option<bool>,
    /// Whether an event is solicited
    solicited: Option<bool>,
    /// Migration state
    mig_req: Option<bool>,
    /// Forward congestion notification
    fecn: Option<bool>,
    /// Backward congestion notification
    becn: Option<bool>,
    /// Bytes of padding behind the payload
    pad: Option<u8>,
    /// Partition key
    pkey: Option<u16>,
    /// Bytes of payload, without padding
    payload_len: Option<usize>,
    #[serde(flatten)]
    extended: Extended,
    /// `ok`, `bad`, or `absent` if the capture does not have the whole packet
    icrc: &'static str,
    /// First rule of the format that the packet breaks, as one word
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'static str>,
}

/// Extended headers, as far as the packet has them.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Extended {
    /// Datagram header
    #[serde(skip_serializing_if = "Option::is_none")]
    deth: Option<DethFields>,
    /// RDMA header: memory of a READ or WRITE
    #[serde(skip_serializing_if = "Option::is_none")]
    reth: Option<RethFields>,
    /// Header of an atomic
    #[serde(skip_serializing_if = "Option::is_none")]
    atomic: Option<AtomicFields>,
    /// Header of an acknowledgement
    #[serde(skip_serializing_if = "Option::is_none")]
    aeth: Option<AethFields>,
    /// Header of the response to an atomic
    #[serde(skip_serializing_if = "Option::is_none")]
    atomic_ack: Option<AtomicAckFields>,
    /// Immediate data
    #[serde(skip_serializing_if = "Option::is_none")]
    imm: Option<u32>,
    /// Header of SEND with invalidate
    #[serde(skip_serializing_if = "Option::is_none")]
    ieth: Option<IethFields>,
    /// Message of the communication manager
    #[serde(skip_serializing_if = "Option::is_none")]
    cm: Option<CmFields>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct DethFields {
    /// Queue key
    qkey: u32,
    /// Queue pair of the sender
    src_qp: u32,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct RethFields {
    /// Virtual address
    va: u64,
    /// Key of the memory region
    rkey: u32,
    /// Length in bytes
    len: u32,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct AtomicFields {
    /// Virtual address
    va: u64,
    /// Key of the memory region
    rkey: u32,
    /// Value to write or to add
    swap_or_add: u64,
    /// Value to compare with
    compare: u64,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct AethFields {
    /// The whole syndrome
    syndrome: u8,
    /// Its meaning
    kind: &'static str,
    /// Message sequence number
    msn: u32,
    /// Receives that the responder has posted, of an ACK; null if it does not limit them
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schemars(extend("x-null" = true)))]
    #[expect(clippy::option_option, reason = "a missing field and null mean different things")]
    credits: Option<Option<u16>>,
    /// Time to wait before a retransmission, of an RNR NAK, in microseconds
    #[serde(skip_serializing_if = "Option::is_none")]
    timer_us: Option<u32>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct AtomicAckFields {
    /// Previous value of the word
    original: u64,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct IethFields {
    /// Key of the memory region that is invalidated
    rkey: u32,
}

/// A message of the communication manager; each kind has some of the fields.
#[derive(Default, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct CmFields {
    /// Name of the message
    kind: &'static str,
    transaction_id: u64,
    /// Identifier of the connection at the sender
    #[serde(skip_serializing_if = "Option::is_none")]
    local_comm_id: Option<u32>,
    /// Identifier of the connection at the receiver
    #[serde(skip_serializing_if = "Option::is_none")]
    remote_comm_id: Option<u32>,
    /// Hexadecimal digits
    #[serde(skip_serializing_if = "Option::is_none")]
    private_data: Option<String>,
    /// Service that a REQ requests
    #[serde(skip_serializing_if = "Option::is_none")]
    service_id: Option<u64>,
    /// Queue pair of the sender
    #[serde(skip_serializing_if = "Option::is_none")]
    qpn: Option<u32>,
    /// First packet sequence number that the sender expects
    #[serde(skip_serializing_if = "Option::is_none")]
    starting_psn: Option<u32>,
    /// Path MTU of a REQ, in bytes; null if the code is reserved
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schemars(extend("x-null" = true)))]
    #[expect(clippy::option_option, reason = "a missing field and null mean different things")]
    path_mtu: Option<Option<u16>>,
    /// Addresses that rdma_cm puts before the private data of a REQ
    #[serde(skip_serializing_if = "Option::is_none")]
    rdma_cm: Option<RdmaCmFields>,
    /// Reason of a REJ
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason_name: Option<&'static str>,
    /// Queue pair that a DREQ disconnects
    #[serde(skip_serializing_if = "Option::is_none")]
    remote_qpn: Option<u32>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct RdmaCmFields {
    /// Address of the client
    src: IpAddr,
    /// Port of the client
    src_port: u16,
    /// Address of the server
    dst: IpAddr,
}

impl Roce<'_> {
    /// Returns the extended headers by name.
    pub(crate) fn extended(&self) -> Map<String, Value> {
        map(&self.extended_fields())
    }

    /// Returns the fields as a map.
    pub(crate) fn fields(&self) -> Map<String, Value> {
        map(&self.packet_fields())
    }

    /// Returns the fields of a JSON line.
    pub(super) fn packet_fields(&self) -> PacketFields {
        let bth = self.bth.as_ref();
        PacketFields {
            src_mac: self.macs.map(|(src, _)| src.to_string()),
            dst_mac: self.macs.map(|(_, dst)| dst.to_string()),
            src: self.addresses.0,
            dst: self.addresses.1,
            dscp: self.traffic_class >> 2,
            ecn: self.traffic_class & 3,
            ttl: self.ttl,
            udp_src_port: self.src_port,
            vlan: self.vlans.first().copied(),
            vlans: (self.vlans.len() > 1).then(|| self.vlans.clone()),
            opcode: bth.map(|b| b.opcode().0),
            opcode_name: bth.map(|b| b.opcode().name()),
            dest_qp: bth.map(|b| b.dest_qp().get()),
            psn: bth.map(|b| b.psn().get()),
            ack_req: bth.map(Bth::ack_req),
            solicited: bth.map(Bth::solicited),
            mig_req: bth.map(Bth::mig_req),
            fecn: bth.map(Bth::fecn),
            becn: bth.map(Bth::becn),
            pad: bth.map(Bth::pad_count),
            pkey: bth.map(|b| b.pkey.get()),
            payload_len: self.payload_len,
            extended: self.extended_fields(),
            icrc: self.icrc_ok.map_or("absent", |ok| if ok { "ok" } else { "bad" }),
            error: self.fault.map(rocev2::Fault::name),
        }
    }

    fn extended_fields(&self) -> Extended {
        let deth = self.header::<Deth>(Headers::DETH);
        let atomic_ack = self.header::<AtomicAckEth>(Headers::ATOMIC_ACK);
        let atomic = self.atomic().map(|h| AtomicFields {
            va: h.va.get(),
            rkey: h.rkey.get(),
            swap_or_add: h.swap_or_add.get(),
            compare: h.compare.get(),
        });
        Extended {
            deth: deth.map(|h| DethFields { qkey: h.qkey.get(), src_qp: h.src_qp().get() }),
            reth: self.reth().map(|h| RethFields { va: h.va.get(), rkey: h.rkey.get(), len: h.len.get() }),
            atomic,
            aeth: self.aeth().copied().map(aeth_fields),
            atomic_ack: atomic_ack.map(|h| AtomicAckFields { original: h.original.get() }),
            imm: self.header::<ImmDt>(Headers::IMM).map(|h| h.data.get()),
            ieth: self.header::<Ieth>(Headers::IETH).map(|h| IethFields { rkey: h.rkey.get() }),
            cm: self.cm().as_ref().map(cm_fields),
        }
    }
}

fn map(fields: &impl Serialize) -> Map<String, Value> {
    match serde_json::to_value(fields) {
        Ok(Value::Object(map)) => map,
        _ => unreachable!("structs with names are objects"),
    }
}

fn aeth_fields(aeth: Aeth) -> AethFields {
    let (credits, timer_us) = match aeth.kind() {
        Syndrome::Ack(credit) => (Some(credit.messages()), None),
        Syndrome::RnrNak(timer) => (None, Some(timer.microseconds())),
        Syndrome::Nak(_) | Syndrome::Reserved(_) => (None, None),
    };
    AethFields { syndrome: aeth.syndrome, kind: aeth.kind().name(), msn: aeth.msn().get(), credits, timer_us }
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        _ = write!(text, "{byte:02x}");
        text
    })
}

fn cm_fields(message: &Message<'_>) -> CmFields {
    let base = || CmFields {
        kind: message.kind().name(),
        transaction_id: message.header.transaction_id.get(),
        ..CmFields::default()
    };
    let ids = |local: u32, remote: Option<u32>, private: &[u8]| CmFields {
        local_comm_id: Some(local),
        remote_comm_id: remote,
        private_data: Some(hex(private)),
        ..base()
    };
    match message.body {
        Body::Req(m) => {
            let cma = m.cma_header();
            let private = &m.private_data[if cma.is_some() { cm::CmaHeader::LEN } else { 0 }..];
            CmFields {
                service_id: Some(m.service_id.get()),
                qpn: Some(m.qpn().get()),
                starting_psn: Some(m.starting_psn().get()),
                path_mtu: Some(m.path_mtu()),
                rdma_cm: cma.map(|cma| RdmaCmFields {
                    src: cma.src_addr(),
                    src_port: cma.src_port.get(),
                    dst: cma.dst_addr(),
                }),
                ..ids(m.local_comm_id.get(), None, private)
            }
        }
        Body::Rep(m) => CmFields {
            qpn: Some(m.qpn().get()),
            starting_psn: Some(m.starting_psn().get()),
            ..ids(m.local_comm_id.get(), Some(m.remote_comm_id.get()), &m.private_data)
        },
        Body::Rej(m) => CmFields {
            reason: Some(m.reason().0),
            reason_name: Some(m.reason().name()),
            ..ids(m.local_comm_id.get(), Some(m.remote_comm_id.get()), &m.private_data)
        },
        Body::Mra(m) => ids(m.local_comm_id.get(), Some(m.remote_comm_id.get()), &m.private_data),
        Body::Rtu(m) => ids(m.local_comm_id.get(), Some(m.remote_comm_id.get()), &m.private_data),
        Body::Dreq(m) => CmFields {
            remote_qpn: Some(m.remote_qpn().get()),
            ..ids(m.local_comm_id.get(), Some(m.remote_comm_id.get()), &m.private_data)
        },
        Body::Drep(m) => ids(m.local_comm_id.get(), Some(m.remote_comm_id.get()), &m.private_data),
        Body::Opaque(..) => base(),
    }
}
