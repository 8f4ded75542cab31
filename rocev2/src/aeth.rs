//! The ACK extended transport header (IB 9.3.5, 9.7.5.2.1): acknowledgements with credits, RNR NAKs and NAKs.

use crate::Msn;
use core::fmt;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The ACK extended transport header, 4 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Aeth {
    /// Kind (3 bits, the first of them reserved) and value (5 bits): see [`Syndrome`]
    pub syndrome: u8,
    msn: [u8; 3],
}

impl Aeth {
    /// Bytes on the wire
    pub const LEN: usize = size_of::<Self>();

    /// A header of this syndrome and message sequence number.
    pub const fn new(syndrome: Syndrome, msn: Msn) -> Self {
        Self { syndrome: syndrome.to_wire(), msn: msn.to_wire() }
    }

    /// What the syndrome says
    pub const fn kind(&self) -> Syndrome {
        Syndrome::from_wire(self.syndrome)
    }

    /// Messages that the responder has completed
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

/// The meaning of an AETH syndrome (IB table 45).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Syndrome {
    /// Acknowledged, with room for more messages
    Ack(Credit),
    /// Receiver not ready: try again after this time
    RnrNak(RnrTimer),
    /// Refused
    Nak(NakCode),
    /// A reserved kind; the whole byte
    Reserved(u8),
}

impl Syndrome {
    /// Reads a syndrome byte. The reserved top bit is kept in [`Reserved`](Self::Reserved) only.
    pub const fn from_wire(byte: u8) -> Self {
        match byte >> 5 {
            0b000 => Self::Ack(Credit(byte & 0x1f)),
            0b001 => Self::RnrNak(RnrTimer(byte & 0x1f)),
            0b011 => Self::Nak(NakCode(byte & 0x1f)),
            _ => Self::Reserved(byte),
        }
    }

    /// The syndrome byte.
    pub const fn to_wire(self) -> u8 {
        match self {
            Self::Ack(Credit(value)) => value & 0x1f,
            Self::RnrNak(RnrTimer(value)) => 0x20 | (value & 0x1f),
            Self::Nak(NakCode(value)) => 0x60 | (value & 0x1f),
            Self::Reserved(byte) => byte,
        }
    }

    /// A word for it: `ack`, `rnr_nak`, `nak_psn_sequence_error`, ...
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

/// An encoded end-to-end credit count, 0 to 31 (IB table 46): how many more SENDs (or WRITEs with immediate) the
/// responder has room for, counted from the AETH's MSN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Credit(pub u8);

/// Messages for the codes 0 to 30.
const CREDITS: [u16; 31] = [
    0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072,
    4096, 6144, 8192, 12288, 16384, 24576, 32768,
];

impl Credit {
    /// No limit; what responders with a shared receive queue, and soft-RoCE always, announce
    pub const UNLIMITED: Self = Self(31);

    /// How many messages, or `None` without a limit.
    pub const fn messages(self) -> Option<u16> {
        let code = (self.0 & 0x1f) as usize;
        if code < CREDITS.len() { Some(CREDITS[code]) } else { None }
    }

    /// The largest count that can be announced without promising more than `messages`.
    pub fn at_most(messages: u32) -> Self {
        Self(CREDITS.partition_point(|&m| u32::from(m) <= messages) as u8 - 1)
    }
}

/// An encoded RNR NAK timer, 0 to 31 (IB table 47).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RnrTimer(pub u8);

/// Units of 10 microseconds for the codes 0 to 31.
const RNR_TIMERS: [u32; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
    3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

impl RnrTimer {
    /// The time to wait, in microseconds: 10 to 655,360; code 0 is the longest.
    pub const fn microseconds(self) -> u32 {
        RNR_TIMERS[(self.0 & 0x1f) as usize] * 10
    }
}

/// A NAK code, 0 to 31 (IB table 48).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NakCode(pub u8);

impl NakCode {
    /// A packet is missing: go back to the AETH's PSN
    pub const PSN_SEQUENCE_ERROR: Self = Self(0);
    /// The request makes no sense to the responder
    pub const INVALID_REQUEST: Self = Self(1);
    /// The memory may not be accessed so
    pub const REMOTE_ACCESS_ERROR: Self = Self(2);
    /// The responder failed
    pub const REMOTE_OPERATIONAL_ERROR: Self = Self(3);

    /// A word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::PSN_SEQUENCE_ERROR => "nak_psn_sequence_error",
            Self::INVALID_REQUEST => "nak_invalid_request",
            Self::REMOTE_ACCESS_ERROR => "nak_remote_access_error",
            Self::REMOTE_OPERATIONAL_ERROR => "nak_remote_operational_error",
            _ => "nak_other",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_syndrome_byte_survives() {
        for byte in 0..=255 {
            assert_eq!(Syndrome::from_wire(byte).to_wire(), byte);
        }
    }

    #[test]
    fn fields_of_real_headers() {
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
    fn credits_never_promise_more() {
        for have in (0..70_000).chain([u32::MAX]) {
            let code = Credit::at_most(have);
            let promised = u32::from(code.messages().expect("a limit was asked for"));
            assert!(promised <= have, "{have}");
            let next = Credit(code.0 + 1).messages().map_or(u32::MAX, u32::from);
            assert!(code.0 == 30 || next > have, "{have}");
        }
    }

    #[test]
    fn rnr_timers() {
        assert_eq!(RnrTimer(0).microseconds(), 655_360);
        assert_eq!(RnrTimer(31).microseconds(), 491_520);
        assert_eq!(RnrTimer(14).microseconds(), 1_280);
    }
}
