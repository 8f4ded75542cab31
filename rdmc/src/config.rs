//! What a node and a group are made with, and what they refuse.

use crate::group::Depth;
use crate::mesh;
use crate::schedule::{Algorithm, ScheduleError};
use core::net::IpAddr;
use p4ce::consensus::SwitchAddress;
use rnic::{MemoryError, Mr, QpError};
use switch::Nanos;

/// What a node is told about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Its address, by which others name it
    pub address: IpAddr,
    /// Where all nodes listen, in `rdma_cm`'s TCP port space
    pub port: u16,
    /// Connections for blocks at once, over all groups: a group has one to each node that it exchanges blocks with
    pub connections: usize,
    /// Other nodes that it speaks to at once
    pub links: usize,
    /// How long NICs wait for an acknowledgement: 4.096 us times two to this
    pub ack_timeout: u8,
    /// How often they try again (7 at most)
    pub retry_count: u8,
    /// How long all members have for calling [`create_group`](crate::Node::create_group), and for reaching each other
    pub create_timeout: Nanos,
    /// A node that was not heard of for so long is asked whether it is there, while a group with it exists
    pub probe_every: Nanos,
    /// And counts as failed when it was not heard of for so long
    pub dead_after: Nanos,
    /// How long a connection that was asked for may take, and the time between two attempts
    pub attempt: Nanos,
    /// For first PSNs and names of groups' lives
    pub seed: u64,
    /// A planted bug, to see whether it is found
    #[cfg(debug_assertions)]
    pub bug: Option<crate::Bug>,
}

impl Config {
    /// The port at which nodes listen if nothing else is said
    pub const PORT: u16 = 18_516;

    /// A node as most are: failures are found within two seconds, members have ten to come together.
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
            #[cfg(debug_assertions)]
            bug: None,
        }
    }

    /// Completions that may wait for the node at once, for which its queue has room. All that is posted to its queue pairs may end at
    /// one moment, as when a switch dies on which all others depend; and a queue that runs over takes all of its queue pairs along
    /// (IB 11.6.3.2). A link has a connection, and another one while it is made anew; beside each connection for blocks there may be
    /// one with a switch.
    pub const fn completions(&self) -> usize {
        let links = self.links.saturating_mul(2 * mesh::QUEUES.completions());
        let ahead = GroupConfig::MAX_AHEAD as usize;
        let (lane, feed) = (Depth::lane(ahead).completions(), Depth::feed(ahead).completions());
        let each = Depth::blocks(ahead).completions() + if lane > feed { lane } else { feed };
        links.saturating_add(self.connections.saturating_mul(each))
    }
}

/// What a group is made with. All members say the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupConfig {
    /// Its number, which all members know it by
    pub number: u32,
    /// Its members; the first one is the root
    pub members: Vec<IpAddr>,
    /// How blocks get around
    pub algorithm: Algorithm,
    /// Bytes of a block. Every member keeps one or two of them for each group, for the first block of what comes next.
    pub block_bytes: u32,
    /// Blocks that follow one another between the same two members and may be under way at once: two hide the time that
    /// an acknowledgement takes.
    pub ahead: u32,
    /// The P4CE switch that copies blocks, for [`Algorithm::InNetwork`]
    pub through: Option<SwitchAddress>,
}

impl GroupConfig {
    /// The longest block: half of what a message of RDMA may have
    pub const MAX_BLOCK: u32 = 1 << 30;

    /// Blocks that may be under way at once between the same two members, at most
    pub const MAX_AHEAD: u32 = 64;

    /// Blocks of a message at most: each member keeps a few bytes for each of them
    pub const MAX_BLOCKS: u32 = 1 << 20;

    /// A group with blocks of 1 MB by the binomial pipeline
    pub const fn new(number: u32, members: Vec<IpAddr>) -> Self {
        Self {
            number,
            members,
            algorithm: Algorithm::Pipeline,
            block_bytes: 1 << 20,
            ahead: 2,
            through: None,
        }
    }
}

/// Memory of a message: a region of [`Node::pd`](crate::Node::pd), and where in it the message begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// The region
    pub mr: Mr,
    /// The virtual address of the message's first byte
    pub va: u64,
}

/// Why a node does not start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// No room for a queue
    #[error(transparent)]
    Queue(#[from] QpError),
    /// No room for memory
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// Somebody listens at the port
    #[error(transparent)]
    Listen(#[from] rnic::cm::ListenError),
}

/// Why a call is refused. Nothing has changed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The node has not started
    #[error("the node has not started")]
    NotStarted,
    /// There is no such group, or no more
    #[error("there is no group {0}")]
    Unknown(u32),
    /// There is one of this number
    #[error("there is a group {0} already")]
    Exists(u32),
    /// Too few members, or too many
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// A member stands twice in the list
    #[error("{0} is a member twice")]
    Twice(IpAddr),
    /// A node does not call itself
    #[error("{0} is this node's own address")]
    Itself(IpAddr),
    /// This node is not in the list
    #[error("this node ({0}) is no member")]
    NotAMember(IpAddr),
    /// Nodes speak IPv4 with each other or IPv6
    #[error("{0} is of another family of addresses than this node")]
    Family(IpAddr),
    /// A block has one byte at least, and [`GroupConfig::MAX_BLOCK`] at most
    #[error("a block of {0} bytes: it has 1 to {max} bytes", max = GroupConfig::MAX_BLOCK)]
    Block(u32),
    /// At least one block is under way, [`GroupConfig::MAX_AHEAD`] at most
    #[error("{0} blocks at once: 1 to {max} are possible", max = GroupConfig::MAX_AHEAD)]
    Ahead(u32),
    /// There is no switch that copies
    #[error("blocks are to be copied by a switch, and no switch was named")]
    NoSwitch,
    /// The switch tells groups apart by 16 bits
    #[error("a group whose blocks a switch copies has a number from 1 to 65535, not {0}")]
    Number(u32),
    /// The NIC has no room for the group's queue pairs
    #[error("no queue pair for the group: {0}")]
    Queue(#[from] QpError),
    /// The NIC has no room for the group's memory, or the memory is not what it should be
    #[error("no memory for the group: {0}")]
    Memory(#[from] MemoryError),
    /// More connections than were planned for
    #[error("no room for {0} connections more")]
    Connections(usize),
    /// More nodes than were planned for
    #[error("no room for links to {0} nodes more")]
    Links(usize),
    /// Only the root sends
    #[error("only the root of group {0} sends")]
    NotRoot(u32),
    /// The group is being closed
    #[error("group {0} is being closed")]
    Closing(u32),
    /// A message without bytes
    #[error("an empty message")]
    Empty,
    /// A message of more blocks than [`GroupConfig::MAX_BLOCKS`]
    #[error("a message of {0} blocks: it has {max} at most", max = GroupConfig::MAX_BLOCKS)]
    Blocks(u32),
    /// Not within memory that the node may read
    #[error("the message is not within a region of the node's protection domain")]
    NotRegistered,
    /// The group has failed
    #[error("the group has failed: {0}")]
    Failed(#[from] Failure),
}

/// Why a group failed. Each names the member that it lay with, which a member that is not concerned hears from others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
pub enum Failure {
    /// A member is gone: its connection broke, or it was silent for too long
    #[error("{0} is gone")]
    Gone(IpAddr),
    /// A member did not create the group in time
    #[error("{0} has not created the group in time")]
    Silent(IpAddr),
    /// A member has created the group, and has not reached all others in time
    #[error("{0} has not reached all others in time")]
    Unjoined(IpAddr),
    /// A member created the group with other members or parameters
    #[error("{0} has another idea of the group")]
    Mismatch(IpAddr),
    /// A member had no memory for a message, or took it away
    #[error("{0} has no memory for the message")]
    NoMemory(IpAddr),
    /// A member sent what cannot be
    #[error("{0} broke the protocol")]
    Violation(IpAddr),
    /// A member gave the group up
    #[error("{0} gave it up")]
    Left(IpAddr),
    /// A member's NIC had no room
    #[error("the NIC of {0} has no room")]
    NoRoom(IpAddr),
    /// The switch refused this root, or gave it up
    #[error("the switch does not copy for {0} (any more)")]
    Switch(IpAddr),
}

impl Failure {
    /// The member that it lay with
    pub const fn member(&self) -> IpAddr {
        match *self {
            Self::Gone(ip)
            | Self::Silent(ip)
            | Self::Unjoined(ip)
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
            Self::Silent(_) => 2,
            Self::Mismatch(_) => 3,
            Self::NoMemory(_) => 4,
            Self::Violation(_) => 5,
            Self::Left(_) => 6,
            Self::NoRoom(_) => 7,
            Self::Switch(_) => 8,
            Self::Unjoined(_) => 9,
        }
    }

    pub(crate) const fn of(code: u32, ip: IpAddr) -> Option<Self> {
        Some(match code {
            1 => Self::Gone(ip),
            2 => Self::Silent(ip),
            3 => Self::Mismatch(ip),
            4 => Self::NoMemory(ip),
            5 => Self::Violation(ip),
            6 => Self::Left(ip),
            7 => Self::NoRoom(ip),
            8 => Self::Switch(ip),
            9 => Self::Unjoined(ip),
            _ => return None,
        })
    }
}
