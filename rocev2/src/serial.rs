//! 24-bit numbers of the transport: packet and message sequence numbers, which wrap around (IB 9.7.1), and
//! queue pair numbers, which are identifiers only.

use core::fmt;

/// Mask of a 24-bit field
const MASK: u32 = 0x00ff_ffff;

macro_rules! serial24 {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        ///
        /// Arithmetic is modulo 2^24. There is no `Ord`, because values that wrap have no first element:
        /// [`distance`](Self::distance) and [`precedes`](Self::precedes) compare two numbers less than 2^23
        /// apart.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
        pub struct $name(u32);

        impl $name {
            /// The number 0.
            pub const ZERO: Self = Self(0);

            /// Returns a number from the low 24 bits of `value`.
            pub const fn new(value: u32) -> Self {
                Self(value & MASK)
            }

            /// Returns the number as an integer below 2^24.
            pub const fn get(self) -> u32 {
                self.0
            }

            /// Returns the number `n` after `self`.
            #[must_use]
            #[allow(clippy::should_implement_trait)] // `+` would suggest a total order
            pub const fn add(self, n: u32) -> Self {
                Self(self.0.wrapping_add(n) & MASK)
            }

            /// Returns the number `n` before `self`.
            #[must_use]
            #[allow(clippy::should_implement_trait)]
            pub const fn sub(self, n: u32) -> Self {
                Self(self.0.wrapping_sub(n) & MASK)
            }

            /// Returns the distance from `earlier` to `self`: positive if `self` is later, negative if it is
            /// earlier, -2^23 if the two are opposite.
            pub const fn distance(self, earlier: Self) -> i32 {
                ((self.0.wrapping_sub(earlier.0) << 8) as i32) >> 8
            }

            /// Returns whether `self` is before `other`, by the shorter distance modulo 2^24.
            pub const fn precedes(self, other: Self) -> bool {
                self.distance(other) < 0
            }

            /// Returns the later of the two.
            #[must_use]
            pub const fn later(self, other: Self) -> Self {
                if self.precedes(other) { other } else { self }
            }

            /// Encodes the number.
            pub const fn to_wire(self) -> [u8; 3] {
                let [_, a, b, c] = self.0.to_be_bytes();
                [a, b, c]
            }

            /// Decodes the number.
            pub const fn from_wire(wire: [u8; 3]) -> Self {
                Self(u32::from_be_bytes([0, wire[0], wire[1], wire[2]]))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

serial24! {
    /// A packet sequence number (IB 9.2, BTH:PSN).
    Psn
}
serial24! {
    /// A message sequence number (IB 9.7.7, AETH:MSN): the number of messages that the responder has
    /// completed.
    Msn
}

/// A queue pair number: 24 bits, unique only within its host.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Qpn(u32);

impl Qpn {
    /// QP 1, the general services interface, which the CM uses (IB 3.9.3)
    pub const GSI: Self = Self(1);

    /// Returns a number from the low 24 bits of `value`.
    pub const fn new(value: u32) -> Self {
        Self(value & MASK)
    }

    /// Returns the number as an integer below 2^24.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// Encodes the number.
    pub const fn to_wire(self) -> [u8; 3] {
        let [_, a, b, c] = self.0.to_be_bytes();
        [a, b, c]
    }

    /// Decodes the number.
    pub const fn from_wire(wire: [u8; 3]) -> Self {
        Self(u32::from_be_bytes([0, wire[0], wire[1], wire[2]]))
    }
}

impl fmt::Debug for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Qpn({:#x})", self.0)
    }
}

impl fmt::Display for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sequence_numbers_wrap_at_two_to_the_24() {
        let last = Psn::new(0x00ff_ffff);
        assert_eq!(last.add(1), Psn::ZERO);
        assert_eq!(Psn::ZERO.sub(1), last);
        assert_eq!(Psn::ZERO.distance(last), 1);
        assert!(last.precedes(Psn::ZERO));
        assert_eq!(last.later(Psn::ZERO), Psn::ZERO);
    }

    #[test]
    fn opposite_numbers_precede_each_other() {
        let (a, b) = (Psn::new(0), Psn::new(1 << 23));
        assert_eq!(a.distance(b), -(1 << 23));
        assert!(a.precedes(b) && b.precedes(a), "numbers 2^23 apart have no order");
    }

    #[test]
    fn upper_byte_is_dropped() {
        assert_eq!(Psn::new(0xab12_3456), Psn::new(0x0012_3456));
        assert_eq!(Qpn::new(0xff00_0001), Qpn::GSI);
    }

    proptest! {
        #[test]
        fn distance_undoes_add(start: u32, n in 0u32..(1 << 23)) {
            let start = Psn::new(start);
            prop_assert_eq!(start.add(n).distance(start), n as i32);
            prop_assert_eq!(start.distance(start.add(n)), -(n as i32));
            prop_assert_eq!(start.add(n).sub(n), start);
        }

        #[test]
        fn wire_round_trip(value: u32) {
            prop_assert_eq!(Psn::from_wire(Psn::new(value).to_wire()), Psn::new(value));
            prop_assert_eq!(Msn::from_wire(Msn::new(value).to_wire()), Msn::new(value));
            prop_assert_eq!(Qpn::from_wire(Qpn::new(value).to_wire()), Qpn::new(value));
        }
    }
}
