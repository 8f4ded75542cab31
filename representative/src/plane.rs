//! Registers of one service, and their minimum in a tournament tree.

use onepipe::Timestamp;

/// Tree value of a link that takes no part in the minimum
pub(crate) const ABSENT: u64 = u64::MAX;
/// Tree value of a link that has carried no barrier yet, and the output while there is such a link
pub(crate) const AWAITED: u64 = 0;

/// Registers and output of one of the two services.
#[derive(Debug)]
pub(crate) struct Plane {
    /// Tournament tree: the winner at 1, the players of match `n` at `2n` and `2n + 1`, the links in the
    /// second half
    pub(crate) tree: Box<[u64]>,
    pub(crate) output: u64,
    /// Whether the output follows the minimum; before, links are still waited for
    pub(crate) is_started: bool,
    /// Links that take part
    pub(crate) live: usize,
}

impl Plane {
    /// Returns a plane in which all links take part, and none has carried a barrier. The output does not follow
    /// the minimum yet.
    pub(crate) fn new(inputs: usize) -> Self {
        let mut plane = Self { is_started: false, live: inputs, ..Self::empty(inputs) };
        for input in 0..inputs {
            plane.set_register(input, AWAITED);
        }
        plane
    }

    /// Returns a plane in which no link takes part, and whose output follows the minimum.
    pub(crate) fn empty(inputs: usize) -> Self {
        let leaves = inputs.next_power_of_two().max(2);
        Self { tree: vec![ABSENT; 2 * leaves].into(), output: AWAITED, is_started: true, live: 0 }
    }

    #[inline]
    pub(crate) fn register(&self, input: usize) -> u64 {
        self.tree[self.tree.len() / 2 + input]
    }

    /// Sets a link's register. Returns whether the minimum changed.
    #[inline]
    pub(crate) fn set_register(&mut self, input: usize, value: u64) -> bool {
        let mut node = self.tree.len() / 2 + input;
        let mut winner = value;
        self.tree[node] = value;
        while node > 1 {
            winner = winner.min(self.tree[node ^ 1]);
            node /= 2;
            if self.tree[node] == winner {
                return false;
            }
            self.tree[node] = winner;
        }
        true
    }

    /// Raises a link's register, or lets the link take part from now on; raises the output if the minimum
    /// rose. Returns whether the minimum rose and the output does not follow it yet.
    #[inline]
    pub(crate) fn raise(&mut self, input: usize, value: u64) -> bool {
        if self.set_register(input, value) && self.tree[1] != ABSENT {
            if !self.is_started {
                return true;
            }
            self.follow();
        }
        false
    }

    /// Raises the output to the minimum, if any link takes part.
    #[inline]
    pub(crate) fn follow(&mut self) {
        if self.tree[1] != ABSENT {
            self.output = self.output.max(self.tree[1]);
        }
    }

    /// Lets the output follow the minimum from now on.
    pub(crate) fn start(&mut self) {
        self.is_started = true;
        if self.tree[1] != ABSENT {
            self.output = self.tree[1];
        }
    }

    pub(crate) fn remove(&mut self, input: usize) -> bool {
        if self.register(input) == ABSENT {
            return false;
        }
        self.live -= 1;
        self.raise(input, ABSENT);
        true
    }

    /// Adds a register for a link that has none, not below the output.
    pub(crate) fn add(&mut self, input: usize, value: u64) {
        self.live += 1;
        self.raise(input, value.max(self.output));
    }

    /// Returns a link that holds the output, if any link takes part.
    pub(crate) fn holder(&self) -> Option<usize> {
        if self.tree[1] == ABSENT {
            return None;
        }
        let mut node = 1;
        while node < self.tree.len() / 2 {
            node *= 2;
            node += usize::from(self.tree[node] != self.tree[node / 2]);
        }
        Some(node - self.tree.len() / 2)
    }

    pub(crate) fn output_timestamp(&self) -> Option<Timestamp> {
        (self.output != AWAITED).then(|| Timestamp::new(self.output))
    }
}
