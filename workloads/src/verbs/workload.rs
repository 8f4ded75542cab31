//! Parameters of the workload, its verbs, and the state that all of its hosts share.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use rnic::{PathMtu, ReadyToSend};

/// Parameters of the workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verbs {
    /// Reliable connections (RC) between each two hosts
    pub connections: u32,
    /// Unreliable connections (UC) between each two hosts, in addition
    pub unreliable: u32,
    /// Operations of each end of a connection
    pub operations: u32,
    /// Outstanding requests of each end
    pub depth: u32,
    /// Longest message in bytes; all powers of two up to it are equally likely
    pub max_size: u32,
    /// Relative frequency of each verb, in the order of [`Verb::ALL`]
    pub mix: [u32; Verb::ALL.len()],
    /// Path MTU
    pub mtu: PathMtu,
    /// ACK timeout: 4.096 us * 2^`timeout`
    pub timeout: u8,
    /// Retry limit. With [`ReadyToSend::NO_LIMIT`] there is none, and no operation may fail
    pub retry_count: u8,
    /// Receive requests that each end keeps posted
    pub receives: u32,
    /// Upper bound of the time until a used receive request is posted again (us); causes RNR NAKs
    pub repost_us: u32,
    /// Minimum RNR NAK timer, as encoded (IB table 45)
    pub rnr_timer: u8,
    /// Outstanding READs and atomics of each end
    pub max_rd_atomic: u8,
    /// Words for atomics at each host
    pub words: u32,
    /// Whether all ends of a host share one receive queue
    pub srq: bool,
    /// Whether end-to-end credits are used
    pub flow_control: bool,
    /// Whether one end of each connection keeps READs outstanding until the other end has finished
    pub background_reads: bool,
    /// Each host revokes the access rights of one of its connections within this time (us); 0 for never
    pub revoke_us: u32,
}

impl Default for Verbs {
    fn default() -> Self {
        Self {
            connections: 1,
            unreliable: 0,
            operations: 20,
            depth: 8,
            max_size: 65536,
            mix: [1; Verb::ALL.len()],
            mtu: PathMtu::B1024,
            timeout: 8,
            retry_count: ReadyToSend::NO_LIMIT,
            receives: 8,
            repost_us: 0,
            rnr_timer: 1,
            max_rd_atomic: 4,
            words: 2,
            srq: false,
            flow_control: false,
            background_reads: false,
            revoke_us: 0,
        }
    }
}

/// A verb.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verb {
    /// RDMA WRITE
    Write,
    /// RDMA WRITE with immediate
    WriteImm,
    /// SEND
    Send,
    /// SEND with immediate
    SendImm,
    /// RDMA READ
    Read,
    /// `CmpSwap`
    CompareSwap,
    /// `FetchAdd`
    FetchAdd,
}

impl Verb {
    /// All verbs, in the order of [`Verbs::mix`].
    pub const ALL: [Self; 7] = [
        Self::Write,
        Self::WriteImm,
        Self::Send,
        Self::SendImm,
        Self::Read,
        Self::CompareSwap,
        Self::FetchAdd,
    ];

    /// Returns the verb's name in scenarios.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::WriteImm => "write_imm",
            Self::Send => "send",
            Self::SendImm => "send_imm",
            Self::Read => "read",
            Self::CompareSwap => "compare_swap",
            Self::FetchAdd => "fetch_add",
        }
    }

    /// Returns whether the verb consumes a receive request of the other end.
    pub(super) const fn takes_receive(self) -> bool {
        matches!(self, Self::WriteImm | Self::Send | Self::SendImm)
    }
}

/// State that all hosts of a workload share.
#[derive(Debug, Default)]
pub struct Shared {
    /// Logical clock: counts invocations and results of atomics
    pub(super) ticks: AtomicU64,
    pub(super) wrong: AtomicBool,
    /// Ends that have finished
    pub(super) done: AtomicU64,
    pub(super) ends: AtomicU64,
}

impl Shared {
    pub(super) fn tick(&self) -> u64 {
        self.ticks.fetch_add(1, Relaxed)
    }

    /// Returns whether a check has failed, so that the run may end.
    pub fn is_wrong(&self) -> bool {
        self.wrong.load(Relaxed)
    }

    /// Returns whether all ends have finished.
    pub fn is_done(&self) -> bool {
        self.done.load(Relaxed) == self.ends.load(Relaxed)
    }
}
