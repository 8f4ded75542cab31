//! The base transport header (BTH), in every RoCEv2 packet (IB 9.2).

use crate::{Opcode, Psn, Qpn};
use core::fmt;
use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const SOLICITED: u8 = 0x80;
const MIG_REQ: u8 = 0x40;
const FECN: u8 = 0x80;
const BECN: u8 = 0x40;
const ACK_REQ: u8 = 0x80;

/// The base transport header, 12 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Bth {
    opcode: u8,
    /// Solicited event (1 bit), `MigReq` (1), pad count (2), transport version (4)
    flags: u8,
    /// Partition key (P_Key); 0xffff, the default partition, unless partitions are configured
    pub pkey: U16,
    /// FECN (1), BECN (1), reserved (6): the one byte of the header that the ICRC does not cover
    ecn: u8,
    dest_qp: [u8; 3],
    /// `AckReq` (1), reserved (7)
    ack: u8,
    psn: [u8; 3],
}

impl Bth {
    /// Length on the wire, in bytes
    pub const LEN: usize = size_of::<Self>();
    /// Offset in the header of the byte that the ICRC does not cover
    pub const MASKED_BYTE: usize = 4;
    /// Offset in the header of the word with the destination QPN
    pub const DEST_QP_WORD: usize = 4;
    /// Offset in the header of the word with the PSN
    pub const PSN_WORD: usize = 8;

    /// Returns a header as a host sends it: `MigReq` set, default partition, no padding.
    pub fn new(opcode: Opcode, dest_qp: Qpn, psn: Psn) -> Self {
        Self {
            opcode: opcode.0,
            flags: MIG_REQ,
            pkey: U16::MAX_VALUE,
            ecn: 0,
            dest_qp: dest_qp.to_wire(),
            ack: 0,
            psn: psn.to_wire(),
        }
    }

    /// Returns the opcode.
    pub const fn opcode(&self) -> Opcode {
        Opcode(self.opcode)
    }

    /// Sets the opcode.
    pub const fn set_opcode(&mut self, opcode: Opcode) {
        self.opcode = opcode.0;
    }

    /// Returns the solicited-event bit: the receiver raises a completion event when the message completes.
    pub const fn solicited(&self) -> bool {
        self.flags & SOLICITED != 0
    }

    /// Sets the solicited-event bit.
    pub const fn set_solicited(&mut self, on: bool) {
        set_bit(&mut self.flags, SOLICITED, on);
    }

    /// Returns the path migration bit (`MigReq`), which NICs usually set.
    pub const fn mig_req(&self) -> bool {
        self.flags & MIG_REQ != 0
    }

    /// Sets the path migration bit.
    pub const fn set_mig_req(&mut self, on: bool) {
        set_bit(&mut self.flags, MIG_REQ, on);
    }

    /// Returns the number of padding bytes behind the payload, 0 to 3.
    pub const fn pad_count(&self) -> u8 {
        (self.flags >> 4) & 3
    }

    /// Sets the pad count to the two low bits of `pad`.
    pub const fn set_pad_count(&mut self, pad: u8) {
        self.flags = (self.flags & !0x30) | ((pad & 3) << 4);
    }

    /// Returns the transport header version; 0 in the current specification.
    pub const fn version(&self) -> u8 {
        self.flags & 0x0f
    }

    /// Sets the transport header version to the four low bits of `version`.
    pub const fn set_version(&mut self, version: u8) {
        self.flags = (self.flags & !0x0f) | (version & 0x0f);
    }

    /// Returns the forward explicit congestion notification bit (FECN).
    pub const fn fecn(&self) -> bool {
        self.ecn & FECN != 0
    }

    /// Sets the FECN bit.
    pub const fn set_fecn(&mut self, on: bool) {
        set_bit(&mut self.ecn, FECN, on);
    }

    /// Returns the backward explicit congestion notification bit (BECN), set in a CNP.
    pub const fn becn(&self) -> bool {
        self.ecn & BECN != 0
    }

    /// Sets the BECN bit.
    pub const fn set_becn(&mut self, on: bool) {
        set_bit(&mut self.ecn, BECN, on);
    }

    /// Returns the destination queue pair number.
    pub const fn dest_qp(&self) -> Qpn {
        Qpn::from_wire(self.dest_qp)
    }

    /// Sets the destination queue pair.
    pub const fn set_dest_qp(&mut self, qpn: Qpn) {
        self.dest_qp = qpn.to_wire();
    }

    /// Returns the `AckReq` bit: the responder has to acknowledge this packet.
    pub const fn ack_req(&self) -> bool {
        self.ack & ACK_REQ != 0
    }

    /// Sets the `AckReq` bit.
    pub const fn set_ack_req(&mut self, on: bool) {
        set_bit(&mut self.ack, ACK_REQ, on);
    }

    /// Returns the packet sequence number.
    pub const fn psn(&self) -> Psn {
        Psn::from_wire(self.psn)
    }

    /// Sets the packet sequence number.
    pub const fn set_psn(&mut self, psn: Psn) {
        self.psn = psn.to_wire();
    }
}

const fn set_bit(byte: &mut u8, bit: u8, on: bool) {
    *byte = if on { *byte | bit } else { *byte & !bit };
}

impl fmt::Display for Bth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to qp {} psn {}", self.opcode(), self.dest_qp(), self.psn())?;
        for (set, name) in [
            (self.ack_req(), " ack_req"),
            (self.solicited(), " solicited"),
            (self.fecn(), " fecn"),
            (self.becn(), " becn"),
        ] {
            if set {
                f.write_str(name)?;
            }
        }
        match self.pad_count() {
            0 => Ok(()),
            pad => write!(f, " pad {pad}"),
        }
    }
}

impl fmt::Debug for Bth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bth({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// BTH of an acknowledgement that a ConnectX sent.
    const CONNECTX_ACK: [u8; 12] = [0x11, 0x40, 0xff, 0xff, 0x00, 0x00, 0x6c, 0xa9, 0x00, 0x00, 0x0c, 0x71];

    #[test]
    fn captured_header_is_decoded() {
        let bth = Bth::ref_from_bytes(&CONNECTX_ACK).unwrap();
        assert_eq!(bth.opcode(), Opcode::RC_ACKNOWLEDGE);
        assert_eq!((bth.dest_qp(), bth.psn()), (Qpn::new(0x6ca9), Psn::new(0xc71)));
        assert!(bth.mig_req() && !bth.ack_req() && !bth.fecn() && !bth.becn() && !bth.solicited());
        assert_eq!(*bth, Bth::new(Opcode::RC_ACKNOWLEDGE, Qpn::new(0x6ca9), Psn::new(0xc71)));
    }

    proptest! {
        #[test]
        fn setters_change_only_their_own_bits(wire: [u8; 12], pad in 0u8..4, flags: [bool; 5], qpn: u32, psn: u32) {
            let before = Bth::read_from_bytes(&wire).unwrap();
            let mut bth = before;
            bth.set_pad_count(pad);
            bth.set_solicited(flags[0]);
            bth.set_mig_req(flags[1]);
            bth.set_fecn(flags[2]);
            bth.set_becn(flags[3]);
            bth.set_ack_req(flags[4]);
            bth.set_dest_qp(Qpn::new(qpn));
            bth.set_psn(Psn::new(psn));
            let read = [bth.solicited(), bth.mig_req(), bth.fecn(), bth.becn(), bth.ack_req()];
            prop_assert_eq!((read, bth.pad_count()), (flags, pad));
            prop_assert_eq!((bth.dest_qp(), bth.psn()), (Qpn::new(qpn), Psn::new(psn)));
            // Fields without a setter above, and reserved bits, are unchanged.
            let after = bth.as_bytes();
            prop_assert_eq!((after[0], after[1] & 0x0f, &after[2..4]), (wire[0], wire[1] & 0x0f, &wire[2..4]));
            prop_assert_eq!((after[4] & 0x3f, after[8] & 0x7f), (wire[4] & 0x3f, wire[8] & 0x7f));
            bth.set_version(5);
            prop_assert_eq!(bth.version(), 5);
            prop_assert_eq!(bth.pad_count(), pad);
        }
    }
}
