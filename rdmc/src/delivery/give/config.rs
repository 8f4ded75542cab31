//! What a delivery is made with, why it cannot be, and what becomes of it.

use crate::config::{CallError, GroupConfig, StartError};
use crate::delivery::Lost;
use crate::schedule::{Algorithm, ScheduleError};
use core::net::IpAddr;
use p4ce::consensus::SwitchAddress;
use switch::Nanos;

/// What is to be delivered, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GiveConfig {
    /// To whom
    pub receivers: Vec<IpAddr>,
    /// What receivers are to call it: 1 to 255 bytes
    pub name: String,
    /// Bytes
    pub len: u64,
    /// Bytes of a segment: what a receiver has room for, and what is lost of the work done when the group fails
    pub segment_bytes: u32,
    /// Bytes of a block
    pub block_bytes: u32,
    /// How blocks get around; with a switch that fails twice although no receiver does, the binomial pipeline takes its place. For the
    /// hybrid, this node is node 0, and receivers follow in their order
    pub algorithm: Algorithm,
    /// The P4CE switch that copies, for [`Algorithm::InNetwork`]: receivers are told of it
    pub through: Option<SwitchAddress>,
    /// Segments that the slowest receiver has not written, at most
    pub window: u32,
    /// How long receivers have to answer, and to write what they have been given
    pub patience: Nanos,
}

impl GiveConfig {
    /// A delivery in blocks of 1 MB by the binomial pipeline, in segments of 16; of small objects, one block
    pub fn new(receivers: Vec<IpAddr>, name: String, len: u64) -> Self {
        let block_bytes = len.clamp(1, 1 << 20) as u32;
        Self {
            receivers,
            name,
            len,
            segment_bytes: block_bytes * 16,
            block_bytes,
            algorithm: Algorithm::Pipeline,
            through: None,
            window: 4,
            patience: Nanos::from_secs(10),
        }
    }
}

/// Why nothing is delivered (any more).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GiveError {
    /// There is nothing to deliver
    #[error("the object is empty")]
    Empty,
    /// There is nobody to deliver it to
    #[error("there are no receivers")]
    NoReceivers,
    /// A receiver is named twice, or is this node
    #[error("{0} is named twice, or is the sender")]
    Twice(IpAddr),
    /// A name that cannot be told
    #[error("the name has {0} bytes: 1 to 255 are possible")]
    Name(usize),
    /// Blocks of no bytes, or of more than there are
    #[error("blocks of {block} bytes of an object of {len}: 1 to {most} are possible", most = len.min(&u64::from(GroupConfig::MAX_BLOCK)))]
    Block {
        /// Bytes of a block
        block: u32,
        /// Bytes of the object
        len: u64,
    },
    /// A segment that has no block or too many, or a window without a segment
    #[error("a segment has 1 to {max} blocks, and one segment at least is under way", max = GroupConfig::MAX_BLOCKS)]
    Segment,
    /// There is no switch that copies
    #[error("blocks are to be copied by a switch, and no switch was named")]
    NoSwitch,
    /// The racks are of other nodes
    #[error(transparent)]
    Racks(#[from] ScheduleError),
    /// The NIC has no room
    #[error(transparent)]
    Start(#[from] StartError),
    /// The node refuses
    #[error(transparent)]
    Call(#[from] CallError),
    /// These do not answer
    #[error("no answer from {}", .0.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(", "))]
    Silent(Vec<IpAddr>),
    /// No receiver is left
    #[error("no receiver is left")]
    Alone(Vec<(IpAddr, Lost)>),
    /// It was stopped
    #[error("it was stopped before every receiver had the object")]
    Stopped,
    /// Groups fail again and again
    #[error("the group failed {0} times")]
    Rounds(u32),
}

/// What became of a delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Given {
    /// Who has it, and has compared the digest
    pub stored: Vec<IpAddr>,
    /// Who has not, and why
    pub lost: Vec<(IpAddr, Lost)>,
    /// Groups that were made
    pub rounds: u32,
    /// How blocks got around in the last one
    pub algorithm: Algorithm,
}
