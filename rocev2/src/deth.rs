//! The datagram extended transport header (DETH) of UD (IB 9.3.2).

use crate::Qpn;
use core::fmt;
use zerocopy::byteorder::network_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The datagram extended transport header, 8 bytes.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct Deth {
    /// Q_Key, which has to equal that of the destination queue pair; [`GSI_QKEY`](Self::GSI_QKEY) for MADs
    pub qkey: U32,
    reserved: u8,
    src_qp: [u8; 3],
}

impl Deth {
    /// Length on the wire, in bytes
    pub const LEN: usize = size_of::<Self>();
    /// Q_Key of QP 1 (IB 10.2.4)
    pub const GSI_QKEY: u32 = 0x8001_0000;

    /// Returns a header with this Q_Key and source queue pair.
    pub const fn new(qkey: u32, src_qp: Qpn) -> Self {
        Self { qkey: U32::new(qkey), reserved: 0, src_qp: src_qp.to_wire() }
    }

    /// Returns the source queue pair number.
    pub const fn src_qp(&self) -> Qpn {
        Qpn::from_wire(self.src_qp)
    }

    /// Sets the source queue pair.
    pub const fn set_src_qp(&mut self, qpn: Qpn) {
        self.src_qp = qpn.to_wire();
    }
}

impl fmt::Display for Deth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "qkey {:#x} from qp {}", self.qkey.get(), self.src_qp())
    }
}
