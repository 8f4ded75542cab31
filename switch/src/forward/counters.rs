//! Counters of the forwarding function.

use crate::Full;
use crate::counters::{Counter, FrameCounter};
use crate::metrics;
use crate::metrics::{Group, Kind, Metric};
use crate::table::{Index, Key, Salt, mix};
use core::net::IpAddr;
use rocev2::{Fault, Packet, Qpn};
use std::sync::OnceLock;

/// Counters of one instance: written by its worker, read by any thread.
#[derive(Debug)]
pub struct Counters {
    /// Received frames, by port
    pub ports: Box<[RxCounters]>,
    /// RoCEv2 packets by opcode
    pub opcodes: Box<[FrameCounter; 256]>,
    /// Malformed frames by fault, whether dropped or not
    pub faults: [Counter; Fault::ALL.len()],
    /// RoCEv2 packets by destination queue pair
    pub qps: QpCounters,
}

metrics! {
    /// Frames received on one port. Each frame is counted in one of the three fields.
    #[derive(Debug, Default)]
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
    pub(super) fn new(ports: u16, counted_qps: usize) -> Self {
        Self {
            ports: (0..ports).map(|_| RxCounters::default()).collect(),
            opcodes: Box::new(core::array::from_fn(|_| FrameCounter::default())),
            faults: core::array::from_fn(|_| Counter::default()),
            qps: QpCounters {
                entries: (0..counted_qps).map(|_| QpCounter::default()).collect(),
                others: FrameCounter::default(),
            },
        }
    }
}

/// Packets by destination queue pair, in the order of the first packet of each.
#[derive(Debug)]
pub struct QpCounters {
    entries: Box<[QpCounter]>,
    /// Packets to queue pairs beyond those with counters of their own
    pub others: FrameCounter,
}

metrics! {
    /// Packets to one queue pair.
    #[derive(Debug, Default)]
    pub struct QpCounter of queue_pair by [host, qpn] {
        qp: OnceLock<(IpAddr, Qpn)>,
        /// RoCEv2 packets to the queue pair, before the function rewrites them
        packets: FrameCounter { frames: [frames], bytes: [bytes] },
    }
}

impl QpCounters {
    #[expect(
        clippy::inline_always,
        reason = "the call costs 24 instructions a frame; the caller exists in two copies"
    )]
    #[inline(always)]
    pub(super) fn count(&self, index: &mut Index<HostQp>, qp: HostQp, len: usize) {
        let id = match index.get(&qp) {
            Some(id) => Some(id),
            None => self.add(index, qp),
        };
        match id.and_then(|id| self.entries.get(id as usize)) {
            Some(entry) => entry.packets.count(len),
            None => self.others.count(len),
        }
    }

    /// Adds a queue pair. Called once for each.
    #[cold]
    fn add(&self, index: &mut Index<HostQp>, qp: HostQp) -> Option<u32> {
        match index.get_or_insert(qp) {
            Ok(id) => {
                self.entries[id as usize].qp.get_or_init(|| (qp.host(), qp.qpn()));
                Some(id)
            }
            Err(Full) => None,
        }
    }

    /// Returns the queue pairs seen so far: address of the host, QPN, packets, bytes.
    pub fn iter(&self) -> impl Iterator<Item = (IpAddr, Qpn, u64, u64)> {
        self.entries.iter().map_while(|entry| {
            let &(host, qpn) = entry.qp.get()?;
            let (frames, bytes) = entry.packets.get();
            Some((host, qpn, frames, bytes))
        })
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
        let qpn = packet.bth().dest_qp().get();
        let address = if let Some(ip) = packet.ipv4() {
            [0, MAPPED | u64::from(u32::from_be_bytes(ip.dst))]
        } else {
            let dst = packet.ipv6().map_or(0, |ip| u128::from_be_bytes(ip.dst));
            [(dst >> 64) as u64, dst as u64]
        };
        Self { address, qpn }
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
