//! Configuration of a NIC.

use crate::congestion::Dcqcn;
use crate::neighbour::Interface;
use crate::part::Part;
use crate::path::PathMtu;
use switch::Nanos;

/// Configuration of a NIC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Port and addresses
    pub interface: Interface,
    /// Limit of queue pairs, at most [`MAX_QPS`](crate::part::MAX_QPS) divided by the number of parts, rounded up to a
    /// power of two
    pub max_qps: usize,
    /// Limit of memory regions, and of buffers
    pub max_regions: usize,
    /// Largest path MTU of connections that the communication manager makes
    pub mtu: PathMtu,
    /// Limit of packets in flight on a connection; clamped to 1..=2^22
    pub window: u32,
    /// When the responder acknowledges requests
    pub ack: AckPolicy,
    /// Whether responders announce credits; soft-RoCE does not
    pub credits: bool,
    /// Whether a responder remembers only the last `max_dest_rd_atomic` READs and atomics of a connection,
    /// counted together, and drops an older duplicate without a response, as soft-RoCE does. Otherwise it
    /// executes a duplicate READ again however old it is, and remembers the last `max_dest_rd_atomic`
    /// atomics.
    pub forgetful: bool,
    /// DCQCN; without it, packets are sent as not ECN-capable
    pub congestion: Option<Dcqcn>,
    /// Seed of all random values: keys, initial PSNs, communication and transaction IDs
    pub seed: u64,
    /// Seed of the `L_Key`s and `R_Key`s, if it differs from `seed`: a NIC may assign the same keys again
    /// after a restart
    pub key_seed: Option<u64>,
    /// Part of the host's NIC
    pub part: Part,
    /// Planted bug, to check that tests find it; has no effect without debug assertions
    pub bug: Option<Bug>,
}

impl Config {
    /// Returns the default configuration of a port: 1,024 queue pairs and regions, MTU 1,024, window 256, no
    /// DCQCN.
    pub fn new(interface: Interface) -> Self {
        Self {
            interface,
            max_qps: 1024,
            max_regions: 1024,
            mtu: PathMtu::B1024,
            window: 256,
            ack: AckPolicy::OnRequest,
            credits: false,
            forgetful: false,
            congestion: None,
            seed: 0,
            key_seed: None,
            part: Part::WHOLE,
            bug: None,
        }
    }
}

/// When a responder acknowledges, apart from NAKs and responses with data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AckPolicy {
    /// Acknowledges every request packet, with or without the AckReq bit
    EveryPacket,
    /// Acknowledges packets with the AckReq bit
    OnRequest,
    /// Coalesces: holds requested acknowledgements back until `packets` are owed, or the oldest has waited
    /// for `time`
    Every {
        /// Limit of owed acknowledgements
        packets: u32,
        /// Limit of the oldest acknowledgement's waiting time
        time: Nanos,
    },
}

/// Bugs that a test can plant with [`Config`]'s field `bug`, to check that the test suites find
/// them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bug {
    /// An acknowledgement covers one packet that has not arrived
    AckTooFar,
    /// A duplicate atomic is executed again
    AtomicTwice,
    /// A duplicate SEND is delivered again
    NoDuplicateCheck,
    /// PSNs are compared without wrap-around
    WrongWrap,
    /// A READ returns the data of the previous READ from the same address
    StaleRead,
    /// Requests leave only when no response is owed
    ResponsesFirst,
    /// An acknowledgement timeout is ignored while a packet waits for the DCQCN rate
    PaceExcuses,
    /// A queue pair's access flags are not checked
    AnyAccess,
}

impl Bug {
    /// Every bug.
    pub const ALL: [Self; 8] = [
        Self::AckTooFar,
        Self::AtomicTwice,
        Self::NoDuplicateCheck,
        Self::WrongWrap,
        Self::StaleRead,
        Self::ResponsesFirst,
        Self::PaceExcuses,
        Self::AnyAccess,
    ];
}
