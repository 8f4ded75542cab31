//! Counters of the forwarding function.

use super::health::Health;
pub use super::queue_pairs::{QpCounter, QpCounters};
use crate::counters::{Counter, FrameCounter};
use crate::metrics;
use crate::metrics::{Group, Kind, Metric};
use crate::table::{Key, Salt, mix};
use core::net::IpAddr;
use rocev2::{Fault, Packet, Qpn};

/// Counters of one instance: written by its worker, read by any thread.
#[derive(Debug)]
pub struct Counters {
    /// Received frames, by port
    pub ports: Box<[RxCounters]>,
    /// Health of the RoCEv2 packets received, by port; empty if it is not observed
    pub health: Box<[Health]>,
    /// RoCEv2 packets by opcode
    pub opcodes: Box<[FrameCounter; 256]>,
    /// Malformed frames by fault, whether dropped or not
    pub faults: [Counter; Fault::ALL.len()],
    /// RoCEv2 packets by destination queue pair
    pub qps: QpCounters,
}

metrics! {
    /// Frames received on one port. Each frame is counted in one of the three fields.
    // Workers write to different counters, which do not share a cache line.
    #[derive(Debug, Default)]
    #[repr(align(128))]
    pub struct RxCounters {
        /// Well-formed RoCEv2 packets received
        pub roce: FrameCounter { frames: [frames as roce_frames] },
        /// Frames received that are not RoCEv2 packets
        pub other: FrameCounter { frames: [frames as other_frames] },
        /// Malformed frames received, whether dropped or not
        pub malformed: FrameCounter { frames: [frames as malformed_frames] },
    }
}

impl Counters {
    /// RoCEv2 packets received, by opcode
    pub const OPCODES: Group = Group {
        item: "opcode",
        keys: &["opcode"],
        properties: &[],
        fields: &[&[
            Metric::new(Kind::Counter, "frames", "frames", "RoCEv2 packets with this opcode"),
            Metric::new(Kind::Counter, "bytes", "bytes", "RoCEv2 packets with this opcode, in bytes"),
        ]],
    };
    /// Malformed frames received, by fault
    pub const FAULTS: Group = Group {
        item: "malformed",
        keys: &["reason"],
        properties: &["meaning"],
        fields: &[&[Metric::new(
            Kind::Counter,
            "frames",
            "frames",
            "Frames with this fault, whether dropped or not",
        )]],
    };
}

impl Counters {
    pub(super) fn new(ports: u16, counted_qps: usize, health: bool) -> Self {
        Self {
            ports: (0..ports).map(|_| RxCounters::default()).collect(),
            health: (0..if health { ports } else { 0 }).map(|_| Health::default()).collect(),
            opcodes: Box::new(core::array::from_fn(|_| FrameCounter::default())),
            faults: core::array::from_fn(|_| Counter::default()),
            qps: QpCounters::new(counted_qps, health),
        }
    }
}

/// A queue pair and its host. A QPN is unique only within its host: hosts often use the same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostQp {
    /// The host's address as two words; IPv4 addresses are mapped into ::ffff:0:0/96
    address: [u64; 2],
    qpn: u32,
}

/// Lower word of ::ffff:0:0/96
const MAPPED: u64 = 0xffff_0000_0000;

impl HostQp {
    /// Returns the queue pair with this number at `host`.
    pub fn new(host: IpAddr, qpn: Qpn) -> Self {
        let address = match host {
            IpAddr::V4(ip) => [0, MAPPED | u64::from(u32::from(ip))],
            IpAddr::V6(ip) => [(u128::from(ip) >> 64) as u64, u128::from(ip) as u64],
        };
        Self { address, qpn: qpn.get() }
    }

    /// Returns the destination queue pair of `packet`.
    #[inline]
    pub fn destination_of(packet: &Packet<'_>) -> Self {
        Self::destination_and_ecn(packet).0
    }

    /// Returns the destination queue pair and the ECN field of `packet`, which are read together because the IP
    /// header is known to be of one version then.
    #[expect(clippy::inline_always, reason = "part of `Forward::count`")]
    #[inline(always)]
    pub(super) fn destination_and_ecn(packet: &Packet<'_>) -> (Self, u8) {
        let [_, qpn, _, _] = packet.transport_words();
        let (address, ecn) = match (packet.ipv4(), packet.ipv6()) {
            (Some(ip), _) => ([0, MAPPED | u64::from(u32::from_be_bytes(ip.dst))], ip.ecn()),
            (None, Some(ip)) => {
                let dst = u128::from_be_bytes(ip.dst);
                ([(dst >> 64) as u64, dst as u64], ip.ecn())
            }
            (None, None) => ([0, 0], 0),
        };
        (Self { address, qpn: Qpn::new(qpn).get() }, ecn)
    }

    /// Returns the queue pair with this number at the host with the address `address`, in two words.
    pub(super) const fn of_words(address: [u64; 2], qpn: Qpn) -> Self {
        Self { address, qpn: qpn.get() }
    }

    /// Returns the host's address in two words.
    #[inline]
    pub(super) const fn address(&self) -> [u64; 2] {
        self.address
    }

    /// Address of the host
    pub fn host(&self) -> IpAddr {
        match self.address {
            [0, low] if low & !0xffff_ffff == MAPPED => IpAddr::V4((low as u32).into()),
            [high, low] => IpAddr::V6((u128::from(high) << 64 | u128::from(low)).into()),
        }
    }

    /// Queue pair number
    pub fn qpn(&self) -> Qpn {
        Qpn::new(self.qpn)
    }
}

impl Key for HostQp {
    #[inline]
    fn hash(&self) -> u64 {
        // The upper half of an address is the same for all hosts of a network; it must not cancel the lower
        // half.
        let [high, low] = self.address;
        mix(low ^ high.rotate_left(17) ^ u64::from(self.qpn) << 40)
    }

    #[inline]
    fn salted(&self, salt: Salt) -> u64 {
        let [high, low] = self.address;
        salt.hash(u128::from(high) << 64 | u128::from(low), self.qpn.into())
    }
}
