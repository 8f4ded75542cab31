//! Communication management: the messages by which connections are made and ended (IB 12.6), sent as MADs (IB 13.4)
//! in UD packets to QP 1.
//!
//! ```text
//! active side                        passive side
//!     | ---------- REQ ----------------> |        MRA: "wait", in answer to REQ or REP
//!     | <--------- REP ----------------- |        REJ: "no", in answer to REQ, REP or in place of RTU
//!     | ---------- RTU ----------------> |
//!     | <--- DREQ, DREP (either side) -> |
//! ```

mod messages;

pub use messages::{CmaHeader, Drep, Dreq, Mra, Rej, RejReason, Rep, Req, Rtu};

use crate::deth::Deth;
use crate::{Opcode, Packet, Qpn};
use core::fmt;
use zerocopy::byteorder::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a MAD
pub const MAD_LEN: usize = 256;

/// The header common to all MADs, 24 bytes (IB 13.4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct MadHeader {
    /// 1
    pub base_version: u8,
    /// 7 for communication management
    pub class: u8,
    /// 2 for communication management
    pub class_version: u8,
    /// 3 (Send) for communication management
    pub method: u8,
    /// Status; 0
    pub status: U16,
    /// Specific to the class; 0
    pub class_specific: U16,
    /// Chosen by the sender; the answer to a message carries the same
    pub transaction_id: U64,
    /// Which message it is: see [`Kind`]
    pub attribute_id: U16,
    reserved: U16,
    /// 0
    pub attribute_modifier: U32,
}

impl MadHeader {
    /// Bytes on the wire
    pub const LEN: usize = size_of::<Self>();
    /// The management class of the CM
    pub const CM_CLASS: u8 = 7;

    /// The header of a CM message.
    pub fn new(kind: Kind, transaction_id: u64) -> Self {
        Self {
            base_version: 1,
            class: Self::CM_CLASS,
            class_version: 2,
            method: 3,
            status: U16::ZERO,
            class_specific: U16::ZERO,
            transaction_id: U64::new(transaction_id),
            attribute_id: U16::new(kind as u16),
            reserved: U16::ZERO,
            attribute_modifier: U32::ZERO,
        }
    }
}

/// The CM's messages, by attribute id (IB 16.7.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum Kind {
    /// Request for communication
    Req = 0x10,
    /// Message receipt acknowledgement: more time is needed
    Mra = 0x11,
    /// Reject
    Rej = 0x12,
    /// Reply to a request
    Rep = 0x13,
    /// Ready to use
    Rtu = 0x14,
    /// Request to disconnect
    Dreq = 0x15,
    /// Reply to it
    Drep = 0x16,
    /// Service id resolution request
    SidrReq = 0x17,
    /// Service id resolution response
    SidrRep = 0x18,
    /// Load alternate path
    Lap = 0x19,
    /// Alternate path response
    Apr = 0x1a,
}

impl Kind {
    /// Every kind, in ascending order.
    pub const ALL: [Self; 11] = [
        Self::Req,
        Self::Mra,
        Self::Rej,
        Self::Rep,
        Self::Rtu,
        Self::Dreq,
        Self::Drep,
        Self::SidrReq,
        Self::SidrRep,
        Self::Lap,
        Self::Apr,
    ];

    /// The message's name in the specification: `REQ`, `REP`, ...
    pub const fn name(self) -> &'static str {
        match self {
            Self::Req => "REQ",
            Self::Mra => "MRA",
            Self::Rej => "REJ",
            Self::Rep => "REP",
            Self::Rtu => "RTU",
            Self::Dreq => "DREQ",
            Self::Drep => "DREP",
            Self::SidrReq => "SIDR_REQ",
            Self::SidrRep => "SIDR_REP",
            Self::Lap => "LAP",
            Self::Apr => "APR",
        }
    }
}

/// Why bytes are no CM message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CmError {
    /// Not the length of a MAD
    #[error("a MAD has 256 bytes")]
    Length,
    /// A MAD of another management class or version
    #[error("not a MAD of the communication management class")]
    Class,
    /// A CM message of this attribute id, which the specification does not have
    #[error("unknown CM attribute {0:#06x}")]
    Attribute(u16),
}

/// A CM message in place.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// The MAD's header
    pub header: &'a MadHeader,
    /// What it says
    pub body: Body<'a>,
}

/// What a CM message says.
#[derive(Clone, Copy, Debug)]
pub enum Body<'a> {
    /// Request for communication
    Req(&'a Req),
    /// More time is needed
    Mra(&'a Mra),
    /// Reject
    Rej(&'a Rej),
    /// Reply to a request
    Rep(&'a Rep),
    /// Ready to use
    Rtu(&'a Rtu),
    /// Request to disconnect
    Dreq(&'a Dreq),
    /// Reply to it
    Drep(&'a Drep),
    /// A message that is passed on without being looked into
    Opaque(Kind, &'a [u8; MAD_LEN - MadHeader::LEN]),
}

impl<'a> Message<'a> {
    /// Reads a MAD. The payload of a packet that [`mad_of`] gives is one.
    pub fn parse(mad: &'a [u8]) -> Result<Self, CmError> {
        let mad: &'a [u8; MAD_LEN] = mad.try_into().map_err(|_| CmError::Length)?;
        let (header, body) = MadHeader::ref_from_prefix(mad).map_err(|_| CmError::Length)?;
        if header.base_version != 1 || header.class != MadHeader::CM_CLASS || header.class_version != 2 {
            return Err(CmError::Class);
        }
        let id = header.attribute_id.get();
        let kind = Kind::ALL.into_iter().find(|&kind| kind as u16 == id).ok_or(CmError::Attribute(id))?;
        // Every body has the same size, which the structs are checked against at compile time.
        let body = match kind {
            Kind::Req => Body::Req(view(body)?),
            Kind::Mra => Body::Mra(view(body)?),
            Kind::Rej => Body::Rej(view(body)?),
            Kind::Rep => Body::Rep(view(body)?),
            Kind::Rtu => Body::Rtu(view(body)?),
            Kind::Dreq => Body::Dreq(view(body)?),
            Kind::Drep => Body::Drep(view(body)?),
            Kind::SidrReq | Kind::SidrRep | Kind::Lap | Kind::Apr => {
                Body::Opaque(kind, body.try_into().map_err(|_| CmError::Length)?)
            }
        };
        Ok(Self { header, body })
    }

    /// Which message it is
    pub const fn kind(&self) -> Kind {
        match self.body {
            Body::Req(_) => Kind::Req,
            Body::Mra(_) => Kind::Mra,
            Body::Rej(_) => Kind::Rej,
            Body::Rep(_) => Kind::Rep,
            Body::Rtu(_) => Kind::Rtu,
            Body::Dreq(_) => Kind::Dreq,
            Body::Drep(_) => Kind::Drep,
            Body::Opaque(kind, _) => kind,
        }
    }
}

fn view<T: FromBytes + KnownLayout + Immutable + Unaligned>(body: &[u8]) -> Result<&T, CmError> {
    const { assert!(size_of::<T>() == MAD_LEN - MadHeader::LEN) }
    T::ref_from_bytes(body).map_err(|_| CmError::Length)
}

/// Writes a message as a MAD.
pub fn emit(header: &MadHeader, body: &(impl IntoBytes + Immutable), mad: &mut [u8; MAD_LEN]) {
    let (head, tail) = mad.split_at_mut(MadHeader::LEN);
    head.copy_from_slice(header.as_bytes());
    tail.copy_from_slice(body.as_bytes());
}

/// The MAD that a packet carries: the payload of a UD SEND Only to QP 1 with the GSI's `Q_Key`.
pub fn mad_of<'a>(packet: &Packet<'a>) -> Option<&'a [u8]> {
    let deth = packet.deth()?;
    let to_gsi = packet.layout().opcode() == Opcode::UD_SEND_ONLY && packet.bth().dest_qp() == Qpn::GSI;
    (to_gsi && deth.qkey.get() == Deth::GSI_QKEY).then(|| packet.payload())
}

impl fmt::Display for Message<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind().name())?;
        let ids = |f: &mut fmt::Formatter<'_>, local: U32, remote: U32| {
            write!(f, " {:#x} to {:#x}", local.get(), remote.get())
        };
        match self.body {
            Body::Req(m) => {
                write!(f, " {:#x} qp {} psn {}", m.local_comm_id.get(), m.qpn(), m.starting_psn())?;
                write!(f, " service {:#x}", m.service_id.get())?;
                m.path_mtu().map_or(Ok(()), |mtu| write!(f, " mtu {mtu}"))
            }
            Body::Rep(m) => {
                ids(f, m.local_comm_id, m.remote_comm_id)?;
                write!(f, " qp {} psn {}", m.qpn(), m.starting_psn())
            }
            Body::Rej(m) => {
                ids(f, m.local_comm_id, m.remote_comm_id)?;
                write!(f, " {}", m.reason())
            }
            Body::Mra(m) => ids(f, m.local_comm_id, m.remote_comm_id),
            Body::Rtu(m) => ids(f, m.local_comm_id, m.remote_comm_id),
            Body::Dreq(m) => {
                ids(f, m.local_comm_id, m.remote_comm_id)?;
                write!(f, " qp {}", m.remote_qpn())
            }
            Body::Drep(m) => ids(f, m.local_comm_id, m.remote_comm_id),
            Body::Opaque(..) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
