//! Configuration, errors and result of a delivery at its root.

use crate::config::{CallError, GroupConfig, StartError};
use crate::delivery::LossReason;
use crate::schedule::{Algorithm, ScheduleError};
use core::net::IpAddr;
use p4ce::SwitchAddress;
use switch::Nanos;

/// Object to be delivered, and parameters of the delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SenderConfig {
    /// Addresses of the receivers.
    pub receivers: Vec<IpAddr>,
    /// Name of the object at the receivers: 1 to 255 bytes.
    pub name: String,
    /// Bytes of the object.
    pub len: u64,
    /// Bytes of a segment: the unit of a receiver's memory, and of the work that is lost when the group
    /// fails.
    pub segment_bytes: u32,
    /// Bytes of a block.
    pub block_bytes: u32,
    /// Algorithm that distributes the blocks. If the switch fails twice and no receiver has failed, the
    /// binomial pipeline replaces [`Algorithm::InNetwork`]. For [`Algorithm::Hybrid`], this node is node 0,
    /// and the receivers follow in their order.
    pub algorithm: Algorithm,
    /// P4CE switch that copies, for [`Algorithm::InNetwork`]. The root sends it to the receivers.
    pub switch: Option<SwitchAddress>,
    /// Maximum number of segments that are sent and that the slowest receiver has not written.
    pub window: u32,
    /// Time for receivers to respond, and to write what they have received.
    pub patience: Nanos,
}

impl SenderConfig {
    /// Returns a delivery by the binomial pipeline in blocks of 1 MiB and segments of 16 blocks. An object
    /// smaller than 1 MiB is one block.
    pub fn new(receivers: Vec<IpAddr>, name: String, len: u64) -> Self {
        let block_bytes = len.clamp(1, 1 << 20) as u32;
        Self {
            receivers,
            name,
            len,
            segment_bytes: block_bytes * 16,
            block_bytes,
            algorithm: Algorithm::Pipeline,
            switch: None,
            window: 4,
            patience: Nanos::from_secs(10),
        }
    }
}

/// Reason for which a delivery is impossible, or has ended without success.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SenderError {
    /// The object has no bytes.
    #[error("the object is empty")]
    Empty,
    /// The list of receivers is empty.
    #[error("there are no receivers; name at least one")]
    NoReceivers,
    /// A receiver is listed twice, or is this node.
    #[error("{0} is named twice, or is the sender; name each receiver once")]
    Twice(IpAddr),
    /// The length of the name is outside of 1 to 255 bytes.
    #[error("a name of {0} bytes is out of range; use 1 to 255 bytes")]
    Name(usize),
    /// The block size is zero, or larger than the object or than [`GroupConfig::MAX_BLOCK`].
    #[error("blocks of {block} bytes of an object of {len}: 1 to {most} are possible", most = len.min(&u64::from(GroupConfig::MAX_BLOCK)))]
    Block {
        /// Bytes of a block.
        block: u32,
        /// Bytes of the object.
        len: u64,
    },
    /// A segment has no block, or more than [`GroupConfig::MAX_BLOCKS`]; or the window is 0.
    #[error("segment size or window is out of range; use 1 to {max} blocks per segment and a window of at least 1", max = GroupConfig::MAX_BLOCKS)]
    Segment,
    /// The algorithm needs a switch, and the configuration names none.
    #[error("the in-network algorithm needs a switch that copies, and none is given; name one")]
    NoSwitch,
    /// There are too many receivers, or the racks were made for another number of nodes.
    #[error(transparent)]
    Racks(#[from] ScheduleError),
    /// The NIC has no room.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The node returned an error.
    #[error(transparent)]
    Call(#[from] CallError),
    /// These receivers did not respond in time.
    #[error("no response from {}", .0.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(", "))]
    Silent(Vec<IpAddr>),
    /// All receivers were lost, for these reasons.
    #[error("no receiver is left")]
    AllReceiversLost(Vec<(IpAddr, LossReason)>),
    /// The application stopped the delivery.
    #[error("the delivery was stopped before every receiver had the object")]
    Stopped,
    /// The maximum number of rounds was reached.
    #[error("the delivery failed in {0} rounds, which is the maximum")]
    Rounds(u32),
}

/// Result of a delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeliveryReport {
    /// Receivers that have the object, and have compared its digest.
    pub stored: Vec<IpAddr>,
    /// Receivers that do not, and the reasons.
    pub lost: Vec<(IpAddr, LossReason)>,
    /// Number of rounds, each with one group.
    pub rounds: u32,
    /// Algorithm of the last round.
    pub algorithm: Algorithm,
}
