//! The ACK extended transport header (IB 9.3.5, 9.7.5.2.1): ACKs with credits, RNR NAKs and NAKs.

use crate::Msn;
use core::fmt;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The ACK extended transport header, 4 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Aeth {
    /// Syndrome byte: reserved bit, kind (2 bits) and value (5 bits). [`Aeth::kind`] decodes it.
    pub syndrome: u8,
    msn: [u8; 3],
}

impl Aeth {
    /// Length on the wire, in bytes
    pub const LEN: usize = size_of::<Self>();

    /// Returns a header with this syndrome and message sequence number.
    pub const fn new(syndrome: Syndrome, msn: Msn) -> Self {
        Self { syndrome: syndrome.to_wire(), msn: msn.to_wire() }
    }

    /// Decodes the syndrome.
    pub const fn kind(&self) -> Syndrome {
        Syndrome::from_wire(self.syndrome)
    }

    /// Returns the message sequence number: the number of messages that the responder has completed, modulo
    /// 2^24.
    pub const fn msn(&self) -> Msn {
        Msn::from_wire(self.msn)
    }

    /// Sets the message sequence number.
    pub const fn set_msn(&mut self, msn: Msn) {
        self.msn = msn.to_wire();
    }
}

impl fmt::Display for Aeth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} msn {}", self.kind(), self.msn())
    }
}

impl fmt::Debug for Aeth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Aeth({self})")
    }
}

/// A decoded AETH syndrome (IB table 45).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Syndrome {
    /// ACK, with the receiver's credits
    Ack(Credit),
    /// Receiver not ready; the requester retries after this time
    RnrNak(RnrTimer),
    /// NAK with an error code
    Nak(NakCode),
    /// A reserved kind, with the whole syndrome byte
    Reserved(u8),
}

impl Syndrome {
    /// Decodes a syndrome byte. The reserved top bit survives in [`Reserved`](Self::Reserved) only.
    pub const fn from_wire(byte: u8) -> Self {
        match byte >> 5 {
            0b000 => Self::Ack(Credit(byte & 0x1f)),
            0b001 => Self::RnrNak(RnrTimer(byte & 0x1f)),
            0b011 => Self::Nak(NakCode(byte & 0x1f)),
            _ => Self::Reserved(byte),
        }
    }

    /// Encodes the syndrome byte.
    pub const fn to_wire(self) -> u8 {
        match self {
            Self::Ack(Credit(value)) => value & 0x1f,
            Self::RnrNak(RnrTimer(value)) => 0x20 | (value & 0x1f),
            Self::Nak(NakCode(value)) => 0x60 | (value & 0x1f),
            Self::Reserved(byte) => byte,
        }
    }

    /// Returns the name used in traces: `ack`, `rnr_nak`, `nak_psn_sequence_error`, ...
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ack(_) => "ack",
            Self::RnrNak(_) => "rnr_nak",
            Self::Nak(code) => code.name(),
            Self::Reserved(_) => "reserved",
        }
    }
}

impl fmt::Display for Syndrome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        match self {
            Self::Ack(credit) => match credit.messages() {
                Some(n) => write!(f, " credits {n}"),
                None => f.write_str(" credits unlimited"),
            },
            Self::RnrNak(timer) => write!(f, " after {} us", timer.microseconds()),
            Self::Nak(_) => Ok(()),
            Self::Reserved(byte) => write!(f, " {byte:#04x}"),
        }
    }
}

/// An encoded end-to-end credit count, 0 to 31 (IB table 46): the number of further SENDs (or WRITEs with
/// immediate) for which the responder has receive buffers, counted from the AETH's MSN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Credit(pub u8);

/// Credit counts for the codes 0 to 30, in messages
const CREDITS: [u16; 31] = [
    0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072,
    4096, 6144, 8192, 12288, 16384, 24576, 32768,
];

impl Credit {
    /// No limit. Responders with a shared receive queue announce it, and soft-RoCE always does.
    pub const UNLIMITED: Self = Self(31);

    /// Returns the credit count in messages, or `None` if it is unlimited.
    pub const fn messages(self) -> Option<u16> {
        let code = (self.0 & 0x1f) as usize;
        if code < CREDITS.len() { Some(CREDITS[code]) } else { None }
    }

    /// Returns the code of the largest count that does not exceed `messages`.
    pub fn at_most(messages: u32) -> Self {
        Self(CREDITS.partition_point(|&m| u32::from(m) <= messages) as u8 - 1)
    }
}

/// An encoded RNR NAK timer, 0 to 31 (IB table 47).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RnrTimer(pub u8);

/// Timer values for the codes 0 to 31, in units of 10 microseconds
const RNR_TIMERS: [u32; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
    3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

impl RnrTimer {
    /// Returns the time to wait, in microseconds: 10 to 655,360. Code 0 is the longest.
    pub const fn microseconds(self) -> u32 {
        RNR_TIMERS[(self.0 & 0x1f) as usize] * 10
    }
}

/// A NAK code, 0 to 31 (IB table 48).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NakCode(pub u8);

impl NakCode {
    /// PSN sequence error: a packet is missing, and the requester goes back to the AETH's PSN
    pub const PSN_SEQUENCE_ERROR: Self = Self(0);
    /// Invalid request: the responder does not support the request, or its length or opcode is wrong
    pub const INVALID_REQUEST: Self = Self(1);
    /// Remote access error: the R_Key does not permit this access
    pub const REMOTE_ACCESS_ERROR: Self = Self(2);
    /// Remote operational error: the responder failed
    pub const REMOTE_OPERATIONAL_ERROR: Self = Self(3);
    /// Invalid RD request: of the reliable datagram service, which RoCE does not have
    pub const INVALID_RD_REQUEST: Self = Self(4);

    /// Returns the name used in traces.
    pub const fn name(self) -> &'static str {
        match self {
            Self::PSN_SEQUENCE_ERROR => "nak_psn_sequence_error",
            Self::INVALID_REQUEST => "nak_invalid_request",
            Self::REMOTE_ACCESS_ERROR => "nak_remote_access_error",
            Self::REMOTE_OPERATIONAL_ERROR => "nak_remote_operational_error",
            Self::INVALID_RD_REQUEST => "nak_invalid_rd_request",
            _ => "nak_other",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn syndrome_bytes_round_trip() {
        for byte in 0..=255 {
            assert_eq!(Syndrome::from_wire(byte).to_wire(), byte);
        }
    }

    #[test]
    fn captured_headers_are_decoded() {
        let connectx = Aeth::ref_from_bytes(&[0x0d, 0, 0, 1]).unwrap();
        assert_eq!((connectx.kind(), connectx.msn()), (Syndrome::Ack(Credit(0x0d)), Msn::new(1)));
        assert_eq!(connectx.to_string(), "ack credits 96 msn 1");
        assert_eq!(Syndrome::from_wire(0x60), Syndrome::Nak(NakCode::PSN_SEQUENCE_ERROR));
        assert_eq!(Syndrome::from_wire(0x62).to_string(), "nak_remote_access_error");
        assert_eq!(Syndrome::from_wire(0x1f), Syndrome::Ack(Credit::UNLIMITED));
        assert_eq!(Syndrome::from_wire(0x21).to_string(), "rnr_nak after 10 us");
        assert_eq!(Aeth::new(Syndrome::Ack(Credit(13)), Msn::new(1)), *connectx);
    }

    #[test]
    fn credit_code_never_exceeds_the_count() {
        for have in (0..70_000).chain([u32::MAX]) {
            let code = Credit::at_most(have);
            let promised = u32::from(code.messages().expect("at_most() never returns the unlimited code"));
            assert!(promised <= have, "{have}");
            let next = Credit(code.0 + 1).messages().map_or(u32::MAX, u32::from);
            assert!(code.0 == 30 || next > have, "{have}");
        }
    }

    #[test]
    fn rnr_timer_codes_match_the_specification() {
        assert_eq!(RnrTimer(0).microseconds(), 655_360);
        assert_eq!(RnrTimer(31).microseconds(), 491_520);
        assert_eq!(RnrTimer(14).microseconds(), 1_280);
    }
}
