//! What is to be done to which packets.

use crate::{Nanos, PortId, Share, forward};
use core::net::IpAddr;
use rocev2::{Opcode, Psn, Qpn};

/// Configuration of [`Impair`](super::Impair).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// How frames get through, but for the rules
    pub forward: forward::Config,
    /// The rules, in the order in which they are tried
    pub rules: Vec<Rule>,
    /// Decides everything that is left to chance
    pub seed: u64,
    /// Frames that are held back at once; more are not held
    pub held: usize,
    /// The longest frame that is held back, in bytes
    pub max_frame: usize,
}

/// What is done to some packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// What reports call it
    pub name: String,
    /// Packets that it is for
    pub of: Match,
    /// The first so many of them are left alone
    pub skip: u64,
    /// At most so many are acted on
    pub times: Option<u64>,
    /// The share of them that is acted on
    pub share: Share,
    /// What is done
    pub action: Action,
}

/// What is done to a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// It goes no further.
    Drop,
    /// It is held for so long, and up to `jitter` more. What comes after it may overtake it.
    Delay {
        /// At least
        base: Nanos,
        /// and up to so much more
        jitter: Nanos,
    },
    /// It goes on, and so many copies of it.
    Duplicate {
        /// Beside the packet itself
        copies: u32,
    },
    /// It is held until so many frames have left through the same port, but no longer than `at_most`.
    Reorder {
        /// Frames that overtake it
        behind: u32,
        /// For how long at most
        at_most: Nanos,
    },
    /// One bit is flipped. The ICRC tells it, as on a wire that is broken.
    Corrupt(Part),
    /// It is marked with "congestion experienced".
    Mark {
        /// Also if it does not say that it is ECN-capable
        force: bool,
    },
}

/// A part of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// The payload; of a packet without any, the ICRC
    Payload,
    /// The base transport header
    Header,
    /// The ICRC
    Icrc,
}

/// Which packets. What is not said does not matter.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Match {
    /// The port that they come in on
    pub port: Option<PortId>,
    /// The operation
    pub opcodes: Option<OpcodeSet>,
    /// The destination queue pair
    pub qpn: Option<Qpn>,
    /// PSNs from the first to the last, which may be smaller: they are counted modulo 2^24
    pub psn: Option<(Psn, Psn)>,
    /// The same, counted from the first PSN that was seen on the way to the same queue pair
    pub psn_offset: Option<(u32, u32)>,
    /// Where they come from
    pub src: Option<Network>,
    /// Where they go to
    pub dst: Option<Network>,
}

/// A set of opcodes.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct OpcodeSet([u64; 4]);

impl OpcodeSet {
    /// Those of which this is true.
    pub fn of(mut is_in: impl FnMut(Opcode) -> bool) -> Self {
        let mut set = Self::default();
        for opcode in (0..=u8::MAX).filter(|opcode| is_in(Opcode(*opcode))) {
            set.0[usize::from(opcode / 64)] |= 1 << (opcode % 64);
        }
        set
    }

    /// Both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(core::array::from_fn(|at| self.0[at] | other.0[at]))
    }

    /// Whether it has this opcode.
    #[inline]
    pub const fn has(&self, opcode: Opcode) -> bool {
        self.0[(opcode.0 / 64) as usize] >> (opcode.0 % 64) & 1 != 0
    }
}

impl core::fmt::Debug for OpcodeSet {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_set().entries((0..=u8::MAX).map(Opcode).filter(|opcode| self.has(*opcode))).finish()
    }
}

/// Addresses that begin with the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    /// One of them
    pub address: IpAddr,
    /// How many bits
    pub prefix: u8,
}

impl Network {
    /// Whether `ip` is in it.
    #[inline]
    pub fn has(&self, ip: IpAddr) -> bool {
        match (self.address, ip) {
            (IpAddr::V4(a), IpAddr::V4(b)) => {
                let differ = a.to_bits() ^ b.to_bits();
                differ.checked_shr(32 - u32::from(self.prefix.min(32))).unwrap_or(0) == 0
            }
            (IpAddr::V6(a), IpAddr::V6(b)) => {
                let differ = a.to_bits() ^ b.to_bits();
                differ.checked_shr(128 - u32::from(self.prefix.min(128))).unwrap_or(0) == 0
            }
            _ => false,
        }
    }
}
