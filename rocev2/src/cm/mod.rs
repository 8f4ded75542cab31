//! Communication management (CM): the messages that set up and tear down connections (IB 12.6), sent as MADs
//! (IB 13.4) in UD packets to QP 1. [`mad_of`] finds the MAD in a packet, [`Message::parse`] reads it and
//! [`emit`] writes one.
//!
//! ```text
//! active side                        passive side
//!     | ---------- REQ ----------------> |        MRA: more time needed, in response to REQ or REP
//!     | <--------- REP ----------------- |        REJ: refusal, in response to REQ or REP, or in place of RTU
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

/// Length of a MAD, in bytes
pub const MAD_LEN: usize = 256;

/// The header common to all MADs, 24 bytes (IB 13.4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct MadHeader {
    /// Base version; 1
    pub base_version: u8,
    /// Management class; 7 for communication management
    pub class: u8,
    /// Class version; 2 for communication management
    pub class_version: u8,
    /// Method; 3 (Send) for communication management
    pub method: u8,
    /// Status; 0
    pub status: U16,
    /// Class-specific field; 0
    pub class_specific: U16,
    /// Transaction ID, chosen by the sender of a request; the response carries the same
    pub transaction_id: U64,
    /// Attribute ID, which selects the message: see [`Kind`]
    pub attribute_id: U16,
    reserved: U16,
    /// Attribute modifier; 0
    pub attribute_modifier: U32,
}

impl MadHeader {
    /// Length on the wire, in bytes
    pub const LEN: usize = size_of::<Self>();
    /// The management class of the CM
    pub const CM_CLASS: u8 = 7;

    /// Returns the header of a CM message.
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

/// The CM messages, by attribute ID (IB 16.7.1).
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
    /// Reply to a request to disconnect
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

    /// Returns the message's name in the specification: `REQ`, `REP`, ...
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

/// The reason why bytes are not a CM message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CmError {
    /// The length is not that of a MAD
    #[error("not a MAD: the length is not 256 bytes")]
    Length,
    /// A MAD of another management class or class version
    #[error("not a MAD of the communication management class")]
    Class,
    /// An attribute ID that the specification does not assign to a CM message
    #[error("unknown CM attribute {0:#06x}")]
    Attribute(u16),
}

/// A CM message, borrowed from the packet.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// MAD header
    pub header: &'a MadHeader,
    /// Message body
    pub body: Body<'a>,
}

/// Body of a CM message.
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
    /// Reply to a request to disconnect
    Drep(&'a Drep),
    /// A message whose body is not decoded
    Opaque(Kind, &'a [u8; MAD_LEN - MadHeader::LEN]),
}

impl<'a> Message<'a> {
    /// Reads a MAD: the payload of a packet, as [`mad_of`] returns it.
    ///
    /// # Errors
    /// [`CmError`] if the length, the management class or the attribute ID is not that of a CM message.
    pub fn parse(mad: &'a [u8]) -> Result<Self, CmError> {
        let mad: &'a [u8; MAD_LEN] = mad.try_into().map_err(|_| CmError::Length)?;
        let (header, body) = MadHeader::ref_from_prefix(mad).map_err(|_| CmError::Length)?;
        if header.base_version != 1 || header.class != MadHeader::CM_CLASS || header.class_version != 2 {
            return Err(CmError::Class);
        }
        let id = header.attribute_id.get();
        let kind = Kind::ALL.into_iter().find(|&kind| kind as u16 == id).ok_or(CmError::Attribute(id))?;
        // Every body has the same size; `view` asserts it of each struct at compile time.
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

    /// Returns the kind of the message.
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

/// Returns the MAD that a packet carries: the payload of a UD SEND Only to QP 1 with the GSI's Q_Key.
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
