//! Error of schedules and racks.

/// Maximum number of nodes of a schedule.
pub(super) const MAX_NODES: u32 = 1 << 16;

/// Error of [`Schedule::new`](super::Schedule::new) and [`Racks::new`](super::Racks::new).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    /// There is no receiver.
    #[error("a group of {0} has no receiver; use at least 2 members")]
    Nodes(u32),
    /// There are more nodes than [`Schedule::MAX_NODES`](super::Schedule::MAX_NODES).
    #[error("a group of {0} members is too large; use at most {max}", max = MAX_NODES)]
    TooManyNodes(u32),
    /// There are no blocks.
    #[error("an object of no blocks is not valid; use at least 1 block")]
    Blocks,
    /// The racks were made for another number of nodes.
    #[error("racks are given for {racks} nodes, but the group has {nodes}; give the rack of every node")]
    Racks {
        /// Nodes whose racks are given.
        racks: usize,
        /// Nodes of the group.
        nodes: u32,
    },
}
