//! BTH opcodes (IB table 38; RoCEv2's CNP: IB A17.9) and the extended transport headers of each.

use core::fmt;

/// A BTH opcode: transport service in the upper three bits, operation in the lower five. Every value is an
/// `Opcode`; [`info`](Self::info) describes those of RC, UC and UD and the CNP.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct Opcode(pub u8);

/// Headers and payload that an opcode implies behind the BTH. The order of the headers follows IB 9.2, figure
/// 84: DETH, then RETH or AETH or AtomicETH, then AtomicAckETH, ImmDt or IETH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Info {
    /// Name of the operation, such as `RC RDMA WRITE First`
    pub name: &'static str,
    /// Name of its constant, such as `RC_WRITE_FIRST`
    pub constant: &'static str,
    /// Extended transport headers behind the BTH
    pub headers: Headers,
    /// Whether a payload may follow the headers
    pub payload: bool,
}

/// A set of extended transport headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headers(u16);

impl Headers {
    /// The empty set
    pub const NONE: Self = Self(0);
    /// DETH, 8 bytes
    pub const DETH: Self = Self(1);
    /// RETH, 16 bytes
    pub const RETH: Self = Self(1 << 1);
    /// `AtomicETH`, 28 bytes
    pub const ATOMIC: Self = Self(1 << 2);
    /// AETH, 4 bytes
    pub const AETH: Self = Self(1 << 3);
    /// `AtomicAckETH`, 8 bytes
    pub const ATOMIC_ACK: Self = Self(1 << 4);
    /// `ImmDt`, 4 bytes
    pub const IMM: Self = Self(1 << 5);
    /// IETH, 4 bytes
    pub const IETH: Self = Self(1 << 6);
    /// The CNP's 16 reserved bytes
    pub const CNP: Self = Self(1 << 7);
    /// FETH of a memory placement FLUSH, 4 bytes, in front of all other headers (IB 1.6)
    pub const FETH: Self = Self(1 << 8);

    const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns whether the set contains `header`.
    pub const fn contains(self, header: Self) -> bool {
        self.0 & header.0 != 0
    }

    /// Returns the total length of the headers, in bytes.
    pub const fn len(self) -> usize {
        self.before(Self(0))
    }

    /// Returns whether the set is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the total length, in bytes, of the headers that precede `header` on the wire, or of all
    /// headers if `header` is [`NONE`](Self::NONE).
    #[inline]
    pub const fn before(self, header: Self) -> usize {
        const LEN: [usize; 8] = [8, 16, 28, 4, 8, 4, 4, 16];
        if header.0 == Self::FETH.0 {
            return 0;
        }
        // Bits below that of `header`, or all bits if `header` is NONE
        let before = self.0 & header.0.wrapping_sub(1);
        let mut bytes = if self.contains(Self::FETH) { 4 } else { 0 };
        let mut bit = 0;
        while bit < LEN.len() {
            if before & (1 << bit) != 0 {
                bytes += LEN[bit];
            }
            bit += 1;
        }
        bytes
    }
}

macro_rules! opcodes {
    ($($value:literal $name:ident $text:literal $headers:expr, $payload:literal;)*) => {
        impl Opcode {
            $(#[doc = $text] pub const $name: Self = Self($value);)*

            /// Every opcode that has an [`info`](Self::info), in ascending order.
            pub const KNOWN: &'static [Self] = &[$(Self::$name,)*];
        }

        static INFO: [Option<Info>; 256] = {
            let mut table = [None; 256];
            $(table[$value] = Some(Info {
                name: $text,
                constant: stringify!($name),
                headers: $headers,
                payload: $payload,
            });)*
            table
        };

        /// Length of the extended headers by opcode; `UNKNOWN` if the opcode has no [`Info`]. A small table
        /// of its own, because every packet needs it.
        static HEADERS_LEN: [u8; 256] = {
            let mut table = [UNKNOWN; 256];
            $(table[$value] = $headers.len() as u8 | if $payload { 0 } else { NO_PAYLOAD };)*
            table
        };

        /// Extended headers by opcode, also in a small table
        static HEADERS: [Headers; 256] = {
            let mut table = [Headers::NONE; 256];
            $(table[$value] = $headers;)*
            table
        };
    };
}

const UNKNOWN: u8 = 0xff;
const NO_PAYLOAD: u8 = 0x80;

const NONE: Headers = Headers::NONE;
const IMM: Headers = Headers::IMM;
const IETH: Headers = Headers::IETH;
const RETH: Headers = Headers::RETH;
const AETH: Headers = Headers::AETH;
const DETH: Headers = Headers::DETH;

opcodes! {
    0x00 RC_SEND_FIRST "RC SEND First" NONE, true;
    0x01 RC_SEND_MIDDLE "RC SEND Middle" NONE, true;
    0x02 RC_SEND_LAST "RC SEND Last" NONE, true;
    0x03 RC_SEND_LAST_IMM "RC SEND Last with Immediate" IMM, true;
    0x04 RC_SEND_ONLY "RC SEND Only" NONE, true;
    0x05 RC_SEND_ONLY_IMM "RC SEND Only with Immediate" IMM, true;
    0x06 RC_WRITE_FIRST "RC RDMA WRITE First" RETH, true;
    0x07 RC_WRITE_MIDDLE "RC RDMA WRITE Middle" NONE, true;
    0x08 RC_WRITE_LAST "RC RDMA WRITE Last" NONE, true;
    0x09 RC_WRITE_LAST_IMM "RC RDMA WRITE Last with Immediate" IMM, true;
    0x0a RC_WRITE_ONLY "RC RDMA WRITE Only" RETH, true;
    0x0b RC_WRITE_ONLY_IMM "RC RDMA WRITE Only with Immediate" RETH.and(IMM), true;
    0x0c RC_READ_REQUEST "RC RDMA READ Request" RETH, false;
    0x0d RC_READ_RESPONSE_FIRST "RC RDMA READ Response First" AETH, true;
    0x0e RC_READ_RESPONSE_MIDDLE "RC RDMA READ Response Middle" NONE, true;
    0x0f RC_READ_RESPONSE_LAST "RC RDMA READ Response Last" AETH, true;
    0x10 RC_READ_RESPONSE_ONLY "RC RDMA READ Response Only" AETH, true;
    0x11 RC_ACKNOWLEDGE "RC Acknowledge" AETH, false;
    0x12 RC_ATOMIC_ACKNOWLEDGE "RC ATOMIC Acknowledge" AETH.and(Headers::ATOMIC_ACK), false;
    0x13 RC_COMPARE_SWAP "RC CmpSwap" Headers::ATOMIC, false;
    0x14 RC_FETCH_ADD "RC FetchAdd" Headers::ATOMIC, false;
    0x16 RC_SEND_LAST_INVALIDATE "RC SEND Last with Invalidate" IETH, true;
    0x17 RC_SEND_ONLY_INVALIDATE "RC SEND Only with Invalidate" IETH, true;
    0x1c RC_FLUSH "RC FLUSH" Headers::FETH.and(RETH), false;
    0x1d RC_ATOMIC_WRITE "RC ATOMIC WRITE" RETH, true;
    0x20 UC_SEND_FIRST "UC SEND First" NONE, true;
    0x21 UC_SEND_MIDDLE "UC SEND Middle" NONE, true;
    0x22 UC_SEND_LAST "UC SEND Last" NONE, true;
    0x23 UC_SEND_LAST_IMM "UC SEND Last with Immediate" IMM, true;
    0x24 UC_SEND_ONLY "UC SEND Only" NONE, true;
    0x25 UC_SEND_ONLY_IMM "UC SEND Only with Immediate" IMM, true;
    0x26 UC_WRITE_FIRST "UC RDMA WRITE First" RETH, true;
    0x27 UC_WRITE_MIDDLE "UC RDMA WRITE Middle" NONE, true;
    0x28 UC_WRITE_LAST "UC RDMA WRITE Last" NONE, true;
    0x29 UC_WRITE_LAST_IMM "UC RDMA WRITE Last with Immediate" IMM, true;
    0x2a UC_WRITE_ONLY "UC RDMA WRITE Only" RETH, true;
    0x2b UC_WRITE_ONLY_IMM "UC RDMA WRITE Only with Immediate" RETH.and(IMM), true;
    0x64 UD_SEND_ONLY "UD SEND Only" DETH, true;
    0x65 UD_SEND_ONLY_IMM "UD SEND Only with Immediate" DETH.and(IMM), true;
    0x81 CNP "CNP" Headers::CNP, false;
}

impl Opcode {
    /// Returns headers and payload of this opcode, or `None` if it is neither of RC, UC or UD nor the CNP.
    pub fn info(self) -> Option<&'static Info> {
        INFO[usize::from(self.0)].as_ref()
    }

    /// Returns the operation's name, or `unknown` if there is no [`info`](Self::info).
    pub fn name(self) -> &'static str {
        self.info().map_or("unknown", |info| info.name)
    }

    /// Returns the extended headers behind the BTH; none for an unknown opcode.
    #[inline]
    pub fn headers(self) -> Headers {
        HEADERS[usize::from(self.0)]
    }

    /// Returns the length of the extended headers in bytes, and whether a payload may follow; `None` for an
    /// unknown opcode.
    #[inline]
    pub(crate) fn shape(self) -> Option<(usize, bool)> {
        match HEADERS_LEN[usize::from(self.0)] {
            UNKNOWN => None,
            shape => Some((usize::from(shape & !NO_PAYLOAD), shape & NO_PAYLOAD == 0)),
        }
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.info() {
            Some(info) => f.write_str(info.name),
            None => write!(f, "opcode {:#04x}", self.0),
        }
    }
}

impl fmt::Debug for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Opcode({:#04x} {})", self.0, self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_lengths_match_the_specification() {
        for (opcode, len) in [
            (Opcode::RC_SEND_ONLY, 0),
            (Opcode::RC_WRITE_ONLY, 16),
            (Opcode::RC_WRITE_ONLY_IMM, 20),
            (Opcode::RC_WRITE_LAST_IMM, 4),
            (Opcode::RC_READ_RESPONSE_MIDDLE, 0),
            (Opcode::RC_ACKNOWLEDGE, 4),
            (Opcode::RC_ATOMIC_ACKNOWLEDGE, 12),
            (Opcode::RC_COMPARE_SWAP, 28),
            (Opcode::RC_SEND_LAST_INVALIDATE, 4),
            (Opcode::UD_SEND_ONLY_IMM, 12),
            (Opcode::CNP, 16),
            (Opcode::RC_FLUSH, 20),
        ] {
            assert_eq!(opcode.headers().len(), len, "{opcode}");
        }
    }

    #[test]
    fn small_tables_agree_with_info() {
        for value in 0..=255 {
            let opcode = Opcode(value);
            assert_eq!(opcode.shape(), opcode.info().map(|info| (info.headers.len(), info.payload)));
        }
        assert_eq!(Opcode::KNOWN.len(), INFO.iter().flatten().count());
    }

    #[test]
    fn headers_precede_each_other_in_wire_order() {
        assert_eq!(Opcode::RC_WRITE_ONLY_IMM.headers().before(Headers::IMM), 16);
        assert_eq!(Opcode::RC_FLUSH.headers().before(Headers::RETH), 4);
        assert_eq!(Opcode::UD_SEND_ONLY_IMM.headers().before(Headers::IMM), 8);
        assert_eq!(Opcode::RC_ATOMIC_ACKNOWLEDGE.headers().before(Headers::ATOMIC_ACK), 4);
        assert_eq!(Opcode::RC_ATOMIC_ACKNOWLEDGE.headers().before(Headers::AETH), 0);
    }

    #[test]
    fn unknown_opcodes_have_a_name() {
        assert_eq!(Opcode(0xc5).to_string(), "opcode 0xc5");
        assert_eq!(Opcode(0x15).info(), None);
    }
}
