//! Configuration of nodes and groups, and the errors of their calls.

use crate::depth::Depth;
use crate::schedule::{Algorithm, ScheduleError};
use core::net::IpAddr;
use p4ce::SwitchAddress;
use rnic::{MemoryError, Mr, QpError};
use switch::Nanos;

/// Configuration of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Address of the node, by which other nodes name it.
    pub address: IpAddr,
    /// Port on which all nodes listen, in the TCP port space of `rdma_cm`.
    pub port: u16,
    /// Maximum number of block connections over all groups. A group has one to each member with which it
    /// exchanges blocks.
    pub connections: usize,
    /// Maximum number of other nodes to which the node keeps a link at the same time.
    pub links: usize,
    /// Acknowledgement timeout of the queue pairs: 4.096 us times two to this power (IB 9.7.6.1.3).
    pub ack_timeout: u8,
    /// Number of retransmissions before a connection fails, at most 7.
    pub retry_count: u8,
    /// Time within which all members have to call [`create_group`](crate::Node::create_group) and to connect
    /// to each other.
    pub create_timeout: Nanos,
    /// Time without a message from a peer after which the node sends it a `Ping`, while a group with it
    /// exists.
    pub probe_every: Nanos,
    /// Time without a message from a peer after which the node treats it as failed.
    pub dead_after: Nanos,
    /// Maximum time for setting up a connection, and the interval between two attempts.
    pub attempt: Nanos,
    /// Seed for initial PSNs and for the incarnation numbers of groups.
    pub seed: u64,
    /// Planted bug, to check that tests find it; has no effect without debug assertions
    pub bug: Option<crate::Bug>,
}

impl Config {
    /// Default port.
    pub const PORT: u16 = 18_516;

    /// Returns a configuration with defaults: failures are detected within two seconds, and members have ten
    /// seconds to create a group.
    pub const fn new(address: IpAddr) -> Self {
        Self {
            address,
            port: Self::PORT,
            connections: 4096,
            links: 1024,
            ack_timeout: 14,
            retry_count: 7,
            create_timeout: Nanos::from_secs(10),
            probe_every: Nanos::from_millis(200),
            dead_after: Nanos::from_secs(2),
            attempt: Nanos::from_millis(500),
            seed: 0,
            bug: None,
        }
    }

    /// Returns the number of completions for which the node's completion queue has room. Everything that is
    /// posted to the node's queue pairs may complete at the same time, for instance when a switch fails on
    /// which all connections depend; a completion queue that overruns takes all of its queue pairs to the
    /// error state (IB 11.6.3.2). A link has one connection, and a second one while it is being replaced.
    /// Besides each block connection there may be one with a switch.
    pub const fn completions(&self) -> usize {
        let links = self.links.saturating_mul(2 * Depth::LINK.completions());
        let max_in_flight = GroupConfig::MAX_IN_FLIGHT as usize;
        let (to_switch, from_switch) =
            (Depth::to_switch(max_in_flight).completions(), Depth::from_switch(max_in_flight).completions());
        let each = Depth::blocks(max_in_flight).completions()
            + if to_switch > from_switch { to_switch } else { from_switch };
        links.saturating_add(self.connections.saturating_mul(each))
    }
}

/// Configuration of a group. All members pass the same one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupConfig {
    /// Number of the group, the same at all members.
    pub number: u32,
    /// Members of the group; the first one is the root.
    pub members: Vec<IpAddr>,
    /// Algorithm that distributes the blocks.
    pub algorithm: Algorithm,
    /// Bytes of a block. Every member keeps one or two blocks of memory for each group, for the first block
    /// of the next message.
    pub block_bytes: u32,
    /// Number of consecutive blocks between the same two members that may be in flight. Two hide the time of
    /// an acknowledgement.
    pub max_in_flight: u32,
    /// P4CE switch that copies blocks, for [`Algorithm::InNetwork`].
    pub switch: Option<SwitchAddress>,
}

impl GroupConfig {
    /// Maximum bytes of a block: half of the maximum length of an RDMA message.
    pub const MAX_BLOCK: u32 = 1 << 30;

    /// Maximum number of blocks in flight between the same two members.
    pub const MAX_IN_FLIGHT: u32 = 64;

    /// Maximum number of blocks of a message. Each member keeps a few bytes of state for each of them.
    pub const MAX_BLOCKS: u32 = 1 << 20;

    /// Returns the configuration of a group that uses the binomial pipeline with blocks of 1 MiB.
    pub const fn new(number: u32, members: Vec<IpAddr>) -> Self {
        Self {
            number,
            members,
            algorithm: Algorithm::Pipeline,
            block_bytes: 1 << 20,
            max_in_flight: 2,
            switch: None,
        }
    }
}

/// Memory of a message: a region in [`Node::pd`](crate::Node::pd), and the position of the message in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageMemory {
    /// Memory region.
    pub mr: Mr,
    /// Virtual address of the message's first byte.
    pub va: u64,
}

/// Error of [`Node::start`](crate::Node::start).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// The NIC has no room for the completion queue.
    #[error(transparent)]
    Queue(#[from] QpError),
    /// The NIC has no room for memory.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The port is in use.
    #[error(transparent)]
    Listen(#[from] rnic::cm::ListenError),
}

/// Error of a call. The call has changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The node has not started.
    #[error("the node has not started; call start first")]
    NotStarted,
    /// The group does not exist, or no longer exists.
    #[error("group {0} does not exist")]
    Unknown(u32),
    /// A group of this number exists.
    #[error("group {0} exists already; choose another number")]
    Exists(u32),
    /// The group has too few members, or too many.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// A member is listed twice.
    #[error("member {0} is listed twice; list it once")]
    Twice(IpAddr),
    /// The node cannot have a link to itself.
    #[error("{0} is this node's own address; request a link to another node")]
    Itself(IpAddr),
    /// The list of members lacks this node.
    #[error("this node ({0}) is not in the list of members; add it")]
    NotAMember(IpAddr),
    /// Nodes reach each other by IPv4 or by IPv6, not by both.
    #[error("{0} is of another IP version than this node's address; use one version for all nodes")]
    Family(IpAddr),
    /// The block size is outside of 1 to [`GroupConfig::MAX_BLOCK`] bytes.
    #[error("a block size of {0} bytes is out of range; use 1 to {max}", max = GroupConfig::MAX_BLOCK)]
    Block(u32),
    /// The number of blocks in flight is outside of 1 to [`GroupConfig::MAX_IN_FLIGHT`].
    #[error("{0} blocks in flight is out of range; use 1 to {max}", max = GroupConfig::MAX_IN_FLIGHT)]
    InFlight(u32),
    /// The algorithm needs a switch, and the configuration names none.
    #[error("the in-network algorithm needs a switch that copies, and none is given; name one")]
    NoSwitch,
    /// The switch identifies a group by 16 bits, which exclude 0.
    #[error("group number {0} is not valid for the in-network algorithm; use 1 to 65535")]
    Number(u32),
    /// The NIC has no room for the group's queue pairs.
    #[error("cannot create a queue pair for the group: {0}")]
    Queue(#[from] QpError),
    /// The NIC has no room for the group's memory, or the memory is invalid.
    #[error("cannot register memory for the group: {0}")]
    Memory(#[from] MemoryError),
    /// The group needs more block connections than [`Config::connections`] leaves.
    #[error("no room for {0} more block connections; raise Config::connections")]
    Connections(usize),
    /// The call needs more links than [`Config::links`] leaves.
    #[error("no room for links to {0} more nodes; raise Config::links")]
    Links(usize),
    /// Only the root may send.
    #[error("this node is not the root of group {0}; send from the root")]
    NotRoot(u32),
    /// The group is being closed.
    #[error("group {0} is being closed and accepts no more messages; create another group")]
    Closing(u32),
    /// The message has no bytes.
    #[error("the message is empty; send at least 1 byte")]
    Empty,
    /// The message has more blocks than [`GroupConfig::MAX_BLOCKS`].
    #[error("a message of {0} blocks is too long; send at most {max}, or use larger blocks", max = GroupConfig::MAX_BLOCKS)]
    Blocks(u32),
    /// The message lies outside of memory that the node may read.
    #[error("the message is not in a readable region of the node's protection domain; register it there")]
    NotRegistered,
    /// The group has failed.
    #[error("the group has failed: {0}")]
    Failed(#[from] Failure),
}

/// Reason for which a group failed. It names the member at fault, which the other members learn from relayed
/// `Failed` messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
pub enum Failure {
    /// A member's connection broke, or it was silent for [`Config::dead_after`].
    #[error("the connection to {0} is lost")]
    Gone(IpAddr),
    /// A member did not create the group within [`Config::create_timeout`].
    #[error("{0} did not create the group in time")]
    NotCreated(IpAddr),
    /// A member created the group, and did not connect to all other members in time.
    #[error("{0} did not connect to all other members in time")]
    NotJoined(IpAddr),
    /// A member created the group with other members or parameters.
    #[error("the group configuration of {0} differs from that of other members")]
    Mismatch(IpAddr),
    /// A member had no memory for a message, or deregistered it during the transfer.
    #[error("{0} has no usable memory for the message")]
    NoMemory(IpAddr),
    /// A member sent an invalid message or block.
    #[error("{0} violated the protocol")]
    Violation(IpAddr),
    /// A member abandoned the group.
    #[error("{0} abandoned the group")]
    Left(IpAddr),
    /// A member had no room: in its NIC, or for groups that other members created first.
    #[error("{0} has no free resources")]
    NoRoom(IpAddr),
    /// The switch refused this root, or stopped copying for it.
    #[error("the switch does not copy, or no longer copies, for {0}")]
    Switch(IpAddr),
}

impl Failure {
    /// Returns the member at fault.
    pub const fn member(&self) -> IpAddr {
        match *self {
            Self::Gone(ip)
            | Self::NotCreated(ip)
            | Self::NotJoined(ip)
            | Self::Mismatch(ip)
            | Self::NoMemory(ip)
            | Self::Violation(ip)
            | Self::Left(ip)
            | Self::NoRoom(ip)
            | Self::Switch(ip) => ip,
        }
    }

    pub(crate) const fn code(&self) -> u32 {
        match self {
            Self::Gone(_) => 1,
            Self::NotCreated(_) => 2,
            Self::Mismatch(_) => 3,
            Self::NoMemory(_) => 4,
            Self::Violation(_) => 5,
            Self::Left(_) => 6,
            Self::NoRoom(_) => 7,
            Self::Switch(_) => 8,
            Self::NotJoined(_) => 9,
        }
    }

    pub(crate) const fn of(code: u32, ip: IpAddr) -> Option<Self> {
        Some(match code {
            1 => Self::Gone(ip),
            2 => Self::NotCreated(ip),
            3 => Self::Mismatch(ip),
            4 => Self::NoMemory(ip),
            5 => Self::Violation(ip),
            6 => Self::Left(ip),
            7 => Self::NoRoom(ip),
            8 => Self::Switch(ip),
            9 => Self::NotJoined(ip),
            _ => return None,
        })
    }
}
