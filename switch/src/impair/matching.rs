//! Which packets a rule is for.

use crate::PortId;
use core::net::IpAddr;
use rocev2::{Opcode, Packet, Psn, Qpn};

/// What a packet has to be. It matches if all is true that is asked for; with nothing asked for, every RoCEv2 packet does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Match {
    /// One of these operations
    pub operations: Option<Operations>,
    /// To one of these queue pairs; to any, if there is none
    pub qpns: Vec<Qpn>,
    /// From a host in this network
    pub src: Option<Network>,
    /// To a host in this network
    pub dst: Option<Network>,
    /// Received on this port
    pub port: Option<PortId>,
    /// With one of these PSNs
    pub psn: Option<PsnRange>,
    /// So far behind the first packet of its flow, in PSNs. A flow is what one queue pair is sent: requests and responses
    /// each, for they have PSNs of their own. CNPs have none, and do not match.
    pub psn_offset: Option<PsnRange>,
}

/// A set of operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Operations {
    opcodes: [u64; 4],
    /// Whether the communication manager's messages are in it, which are UD SENDs to QP 1
    cm: bool,
}

impl Operations {
    /// Words for sets of operations.
    pub const CLASSES: [&'static str; 8] =
        ["request", "response", "ack", "read", "write", "send", "atomic", "cm"];

    /// The set that one of [`CLASSES`](Self::CLASSES) stands for. The communication manager's messages are in `cm` alone:
    /// who wants SENDs lost seldom means that nothing should connect.
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

    /// Packets of this opcode, the communication manager's included.
    pub fn only(opcode: Opcode) -> Self {
        let mut opcodes = [0; 4];
        opcodes[usize::from(opcode.0 / 64)] = 1 << (opcode.0 % 64);
        Self { opcodes, cm: opcode == Opcode::UD_SEND_ONLY }
    }

    /// What is in either set.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            opcodes: core::array::from_fn(|at| self.opcodes[at] | other.opcodes[at]),
            cm: self.cm || other.cm,
        }
    }

    /// Whether it has the packets of this opcode to this queue pair.
    #[inline]
    pub fn has(&self, opcode: Opcode, to: Qpn) -> bool {
        if opcode == Opcode::UD_SEND_ONLY && to == Qpn::GSI {
            return self.cm;
        }
        self.opcodes[usize::from(opcode.0 / 64)] & 1 << (opcode.0 % 64) != 0
    }
}

/// Whether a responder sends it.
pub(super) fn is_response(opcode: Opcode) -> bool {
    (Opcode::RC_READ_RESPONSE_FIRST..=Opcode::RC_ATOMIC_ACKNOWLEDGE).contains(&opcode)
}

/// The hosts whose addresses begin alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: u128,
    mask: u128,
}

impl Network {
    /// The addresses that have the first `prefix` bits of `address`; `None` if an address has not so many bits.
    pub fn new(address: IpAddr, prefix: u32) -> Option<Self> {
        let (bits, unused) = match address {
            IpAddr::V4(_) => (32, 96),
            IpAddr::V6(_) => (128, 0),
        };
        if prefix > bits {
            return None;
        }
        // An IPv4 address is written into ::ffff:0:0/96.
        let mask = u128::MAX.checked_shl(128 - prefix - unused).unwrap_or(0);
        Some(Self { address: number(address) & mask, mask })
    }

    /// One host.
    pub fn host(address: IpAddr) -> Self {
        Self { address: number(address), mask: u128::MAX }
    }

    /// Whether `address` is one of them.
    pub fn has(&self, address: IpAddr) -> bool {
        self.has_number(number(address))
    }

    #[inline]
    fn has_number(&self, address: u128) -> bool {
        address & self.mask == self.address
    }

    /// The first of them.
    pub fn first(&self) -> IpAddr {
        IpAddr::V6(self.address.into()).to_canonical()
    }
}

/// ::ffff:0:0/96, where IPv4 addresses are written among those of IPv6
const MAPPED: u128 = 0xffff_0000_0000;

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => MAPPED | u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// PSNs from one to another, both included, on the way up round the circle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PsnRange {
    /// The first
    pub first: Psn,
    /// The last, which may be a smaller number
    pub last: Psn,
}

impl PsnRange {
    /// Whether `psn` is one of them.
    #[inline]
    pub fn has(&self, psn: Psn) -> bool {
        psn.sub(self.first.get()).get() <= self.last.sub(self.first.get()).get()
    }
}

/// What rules look at, taken from the packet as it arrived: what one rule changes, no other sees.
#[derive(Clone, Copy)]
pub(super) struct Facts {
    port: PortId,
    opcode: Opcode,
    to: Qpn,
    psn: Psn,
    /// From the first PSN of the flow; `None` if nobody asks, or the flow is not known
    offset: Option<Psn>,
    src: u128,
    dst: u128,
}

impl Facts {
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
    pub(super) fn has(&self, facts: &Facts) -> bool {
        self.port.is_none_or(|port| port == facts.port)
            && self.operations.is_none_or(|some| some.has(facts.opcode, facts.to))
            && (self.qpns.is_empty() || self.qpns.contains(&facts.to))
            && self.psn.is_none_or(|range| range.has(facts.psn))
            && self.psn_offset.is_none_or(|range| facts.offset.is_some_and(|offset| range.has(offset)))
            && self.src.is_none_or(|network| network.has_number(facts.src))
            && self.dst.is_none_or(|network| network.has_number(facts.dst))
    }
}
