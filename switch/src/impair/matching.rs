//! Conditions by which rules select packets.

use crate::PortId;
use core::fmt;
use core::net::IpAddr;
use rocev2::{Opcode, Packet, Psn, Qpn};

/// Condition of a rule. A packet matches if it meets every criterion that is set; without criteria, every
/// RoCEv2 packet matches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Match {
    /// Operation
    pub operations: Option<Operations>,
    /// Destination queue pairs; any, if empty
    pub qpns: Vec<Qpn>,
    /// Source network
    pub src: Option<IpPrefix>,
    /// Destination network
    pub dst: Option<IpPrefix>,
    /// Port on which the packet was received
    pub port: Option<PortId>,
    /// PSN
    pub psn: Option<PsnRange>,
    /// Distance of the PSN from that of the first packet of the flow. The requests to one queue pair are a
    /// flow, and so are the responses to it, because each have PSNs of their own. CNPs have no PSN and do not
    /// match.
    pub psn_offset: Option<PsnRange>,
}

/// A set of operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Operations {
    opcodes: [u64; 4],
    /// Whether the set contains the messages of the communication manager (CM), which are UD SENDs to QP 1
    cm: bool,
}

impl Operations {
    /// Names of operation classes.
    pub const CLASSES: [&'static str; 8] =
        ["request", "response", "ack", "read", "write", "send", "atomic", "cm"];

    /// Returns the set of a class in [`CLASSES`](Self::CLASSES), or `None` for another word. CM messages are
    /// in `cm` only: a rule that drops SENDs is seldom meant to prevent connections.
    pub fn class(word: &str) -> Option<Self> {
        let in_class: fn(Opcode) -> bool = match word {
            "request" => |op| !is_response(op) && op != Opcode::CNP,
            "response" => is_response,
            "ack" => |op| matches!(op, Opcode::RC_ACKNOWLEDGE | Opcode::RC_ATOMIC_ACKNOWLEDGE),
            "read" => |op| (Opcode::RC_READ_REQUEST..=Opcode::RC_READ_RESPONSE_ONLY).contains(&op),
            "write" => |op| matches!(op.0, 0x06..=0x0b | 0x26..=0x2b),
            "send" => |op| matches!(op.0, 0x00..=0x05 | 0x16 | 0x17 | 0x20..=0x25 | 0x64 | 0x65),
            "atomic" => |op| {
                let atomic = (Opcode::RC_ATOMIC_ACKNOWLEDGE..=Opcode::RC_FETCH_ADD).contains(&op);
                atomic || op == Opcode::RC_ATOMIC_WRITE
            },
            "cm" => return Some(Self { opcodes: [0; 4], cm: true }),
            _ => return None,
        };
        let known = Opcode::KNOWN.iter().copied().filter(|&op| in_class(op));
        Some(known.fold(Self::default(), |set, op| Self { cm: false, ..set.and(Self::only(op)) }))
    }

    /// Returns the set of packets with this opcode, including CM messages.
    pub fn only(opcode: Opcode) -> Self {
        let mut opcodes = [0; 4];
        opcodes[usize::from(opcode.0 / 64)] = 1 << (opcode.0 % 64);
        Self { opcodes, cm: opcode == Opcode::UD_SEND_ONLY }
    }

    /// Returns the union of two sets.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            opcodes: core::array::from_fn(|at| self.opcodes[at] | other.opcodes[at]),
            cm: self.cm || other.cm,
        }
    }

    /// Returns the classes and the opcodes of which the set is the union, as few as a greedy search finds. An
    /// opcode is the name of its constant, in lower case.
    pub fn names(&self) -> Vec<String> {
        let mut classes = Self::CLASSES.map(|word| (word, Self::class(word).unwrap_or_default()));
        classes.sort_by_key(|(_, class)| core::cmp::Reverse(class.len()));
        let (mut names, mut covered) = (Vec::new(), Self::default());
        for (word, class) in classes {
            if class.and(*self) == *self && class.and(covered) != covered {
                names.push(word.to_owned());
                covered = covered.and(class);
            }
        }
        for &opcode in Opcode::KNOWN {
            let only = Self::only(opcode);
            if only.and(*self) == *self && only.and(covered) != covered {
                names.extend(opcode.info().map(|info| info.constant.to_lowercase()));
                covered = covered.and(only);
            }
        }
        names
    }

    /// Returns the count of opcodes.
    fn len(&self) -> u32 {
        self.opcodes.iter().map(|word| word.count_ones()).sum()
    }

    /// Returns whether the set contains packets with this opcode to this queue pair.
    #[inline]
    pub fn has(&self, opcode: Opcode, to: Qpn) -> bool {
        if opcode == Opcode::UD_SEND_ONLY && to == Qpn::GSI {
            return self.cm;
        }
        self.opcodes[usize::from(opcode.0 / 64)] & 1 << (opcode.0 % 64) != 0
    }
}

/// Returns whether responders send packets with this opcode.
pub(super) fn is_response(opcode: Opcode) -> bool {
    (Opcode::RC_READ_RESPONSE_FIRST..=Opcode::RC_ATOMIC_ACKNOWLEDGE).contains(&opcode)
}

/// A network: hosts whose addresses have a common prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpPrefix {
    address: u128,
    mask: u128,
}

impl IpPrefix {
    /// Returns the network of the first `prefix` bits of `address`, or `None` if `prefix` exceeds the
    /// address's length.
    pub fn new(address: IpAddr, prefix: u32) -> Option<Self> {
        let (bits, unused) = match address {
            IpAddr::V4(_) => (32, 96),
            IpAddr::V6(_) => (128, 0),
        };
        if prefix > bits {
            return None;
        }
        // IPv4 addresses are mapped into ::ffff:0:0/96.
        let mask = u128::MAX.checked_shl(128 - prefix - unused).unwrap_or(0);
        Some(Self { address: number(address) & mask, mask })
    }

    /// Returns the network of a single host.
    pub fn host(address: IpAddr) -> Self {
        Self { address: number(address), mask: u128::MAX }
    }

    /// Returns whether the network contains `address`.
    pub fn has(&self, address: IpAddr) -> bool {
        self.has_number(number(address))
    }

    #[inline]
    fn has_number(&self, address: u128) -> bool {
        address & self.mask == self.address
    }

    /// Returns the first address of the network.
    pub fn first(&self) -> IpAddr {
        IpAddr::V6(self.address.into()).to_canonical()
    }
}

/// An address, or a network in CIDR notation
impl fmt::Display for IpPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (first, prefix) = (self.first(), self.mask.count_ones());
        let prefix = if first.is_ipv4() { prefix.saturating_sub(96) } else { prefix };
        if self.mask == u128::MAX { write!(f, "{first}") } else { write!(f, "{first}/{prefix}") }
    }
}

/// ::ffff:0:0/96, into which IPv4 addresses are mapped
const MAPPED: u128 = 0xffff_0000_0000;

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => MAPPED | u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// An inclusive range of PSNs, which may wrap around.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PsnRange {
    /// First PSN
    pub first: Psn,
    /// Last PSN, which is a smaller number if the range wraps around
    pub last: Psn,
}

/// The first and the last PSN
impl fmt::Display for PsnRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first.get(), self.last.get())
    }
}

impl PsnRange {
    /// Returns whether the range contains `psn`.
    #[inline]
    pub fn has(&self, psn: Psn) -> bool {
        psn.sub(self.first.get()).get() <= self.last.sub(self.first.get()).get()
    }
}

/// The fields that rules compare, taken from the packet as received: a rule does not see the changes of
/// earlier rules.
#[derive(Clone, Copy)]
pub(super) struct PacketFields {
    port: PortId,
    opcode: Opcode,
    to: Qpn,
    psn: Psn,
    /// Distance from the first PSN of the flow; `None` if no rule needs it, or the flow is unknown
    offset: Option<Psn>,
    src: u128,
    dst: u128,
}

impl PacketFields {
    #[inline]
    pub(super) fn of(packet: &Packet<'_>, port: PortId, offset: Option<Psn>) -> Self {
        let bth = packet.bth();
        Self {
            port,
            opcode: bth.opcode(),
            to: bth.dest_qp(),
            psn: bth.psn(),
            offset,
            src: number(packet.src()),
            dst: number(packet.dst()),
        }
    }
}

impl Match {
    #[inline]
    pub(super) fn has(&self, fields: &PacketFields) -> bool {
        self.port.is_none_or(|port| port == fields.port)
            && self.operations.is_none_or(|some| some.has(fields.opcode, fields.to))
            && (self.qpns.is_empty() || self.qpns.contains(&fields.to))
            && self.psn.is_none_or(|range| range.has(fields.psn))
            && self.psn_offset.is_none_or(|range| fields.offset.is_some_and(|offset| range.has(offset)))
            && self.src.is_none_or(|network| network.has_number(fields.src))
            && self.dst.is_none_or(|network| network.has_number(fields.dst))
    }
}
