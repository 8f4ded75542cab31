//! Depths of the queue pairs that a node creates. [`Config`](crate::Config) computes the size of the
//! completion queue from them.

/// Queue lengths of a queue pair, in requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Depth {
    pub(crate) send: usize,
    pub(crate) recv: usize,
}

impl Depth {
    /// Depth of a link's queue pair: the maximum number of messages from the peer for which receives are
    /// posted, and of messages to it without acknowledgement.
    pub(crate) const LINK: Self = Self { send: 32, recv: 32 };

    /// Returns the room for writes of ready words: at most two for each block.
    pub(crate) const fn ready_writes(max_in_flight: usize) -> usize {
        3 * max_in_flight + 7
    }

    /// Returns the depth of a queue pair between two members that exchange blocks.
    pub(crate) const fn blocks(max_in_flight: usize) -> Self {
        Self { send: Self::ready_writes(max_in_flight) + max_in_flight + 1, recv: max_in_flight + 2 }
    }

    /// Returns the depth of a queue pair from the root to a switch that copies.
    pub(crate) const fn to_switch(max_in_flight: usize) -> Self {
        Self { send: max_in_flight + 1, recv: 1 }
    }

    /// Returns the depth of a queue pair from such a switch to a member.
    pub(crate) const fn from_switch(max_in_flight: usize) -> Self {
        Self { send: 1, recv: max_in_flight + 2 }
    }

    /// Returns the maximum number of completions of both queues.
    pub(crate) const fn completions(self) -> usize {
        self.send + self.recv
    }
}
