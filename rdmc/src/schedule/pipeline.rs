//! The binomial pipeline (paper 4.3, 4.4), for any number of nodes.
//!
//! # Powers of two
//!
//! The 2^d nodes are the vertices of a hypercube. At step j everybody exchanges a block with the neighbour in direction
//! j mod d. What vertex v sends is in closed form: with s = v rotated right by j mod d and r the number of zeros at the
//! end of s, the root (s = 0) sends block j, the neighbour of the root (s = 1) nothing, everybody else block j - d + r, if
//! that is not negative; and whatever would be beyond the last block is the last block. Steps are 0 to d + k - 2.
//!
//! # Other numbers
//!
//! With d = floor(log2 n), vertices 1 to n - 2^d have two nodes each. To the others such a vertex looks like one node: at
//! each step one of the two takes the block that comes from outside, and the other one sends what the vertex has to send.
//! The two change their parts behind each step at which v has a one in the direction: that is when the vertex gets the
//! block that it will send until the next such step, so who sends it has it. Who takes a block from outside passes on to
//! the other one, at the same step, the block that it took the last time. Thus neither does more than one thing of a kind
//! at a step, and only the last block of each is left over behind the pipeline's steps: they exchange them at one step more
//! ("the final receipt spreads over two steps"). The steps are k + d, which is k + ceil(log2 n) - 1 as well.

type Pair = Option<(u32, u32)>;

#[derive(Clone, Copy, Debug)]
pub(super) struct Pipeline {
    n: u32,
    k: u32,
    /// The hypercube's dimension
    d: u32,
}

impl Pipeline {
    /// For two nodes at least
    pub(super) fn new(n: u32, k: u32) -> Self {
        Self { n, k, d: n.ilog2() }
    }

    /// Steps in which vertices exchange blocks
    fn outside_steps(self) -> u64 {
        u64::from(self.d) + u64::from(self.k) - 1
    }

    pub(super) fn steps(self) -> u64 {
        self.outside_steps() + u64::from(!self.n.is_power_of_two())
    }

    /// The vertex of a node, and whether it is the second one there
    fn vertex(self, node: u32) -> (u32, bool) {
        match node.checked_sub(1 << self.d) {
            Some(above) => (above + 1, true),
            None => (node, false),
        }
    }

    fn node(self, vertex: u32, second: bool) -> u32 {
        if second { vertex + (1 << self.d) - 1 } else { vertex }
    }

    fn is_double(self, vertex: u32) -> bool {
        vertex > 0 && vertex + (1 << self.d) - 1 < self.n
    }

    /// The direction of a step
    fn direction(self, step: u64) -> u32 {
        (step % u64::from(self.d)) as u32
    }

    fn neighbour(self, vertex: u32, step: u64) -> u32 {
        vertex ^ 1 << self.direction(step)
    }

    /// The block that a vertex sends to its neighbour at a step: the closed form
    fn block(self, vertex: u32, step: u64) -> Option<u32> {
        if step >= self.outside_steps() {
            return None;
        }
        let by = self.direction(step);
        let low = vertex & ((1 << by) - 1);
        let rotated = vertex >> by | low << (self.d - by);
        let block = match rotated {
            0 => step,
            1 => return None,
            _ => (step + u64::from(rotated.trailing_zeros())).checked_sub(self.d.into())?,
        };
        Some(block.min(u64::from(self.k) - 1) as u32)
    }

    /// Of a vertex with two nodes, whether it is the second one that takes what comes from outside at a step. The other one
    /// sends.
    fn second_takes(self, vertex: u32, step: u64) -> bool {
        let rounds = step / u64::from(self.d);
        let begun = vertex & ((1 << self.direction(step)) - 1);
        let turns = rounds * u64::from(vertex.count_ones()) + u64::from(begun.count_ones());
        turns % 2 == 1
    }

    fn taker(self, vertex: u32, step: u64) -> u32 {
        self.node(vertex, self.is_double(vertex) && self.second_takes(vertex, step))
    }

    fn sender(self, vertex: u32, step: u64) -> u32 {
        self.node(vertex, self.is_double(vertex) && !self.second_takes(vertex, step))
    }

    /// The last step before `step` at which this node of a vertex with two had the part of taking
    fn took(self, vertex: u32, second: bool, step: u64) -> Option<u64> {
        let last = step.checked_sub(1)?;
        if self.second_takes(vertex, last) == second {
            return Some(last);
        }
        // They changed parts behind the last step before that whose direction is one of the vertex's ones.
        let before = last.checked_sub(1)?;
        let at = self.direction(before);
        let mask = (1 << self.d) - 1;
        // That direction's bit is the highest here, the one before it the next, and so on.
        let ones = (vertex << (self.d - 1 - at) | vertex >> (at + 1)) & mask;
        before.checked_sub((self.d - 1 - ones.ilog2()).into())
    }

    /// The block that a node of a vertex with two passes on to the other one at a step
    fn passed_on(self, vertex: u32, second: bool, step: u64) -> Option<u32> {
        let passes = if step < self.outside_steps() {
            // Who takes one from outside has its sending half free, and the other one its receiving half.
            self.second_takes(vertex, step) == second
                && self.block(self.neighbour(vertex, step), step).is_some()
        } else {
            step < self.steps()
        };
        if !passes {
            return None;
        }
        let took = self.took(vertex, second, step)?;
        self.block(self.neighbour(vertex, took), took)
    }

    pub(super) fn send(self, node: u32, step: u64) -> Pair {
        let (vertex, second) = self.vertex(node);
        let double = self.is_double(vertex);
        if !double || self.second_takes(vertex, step) != second {
            let outside = self.block(vertex, step);
            if let Some(block) = outside {
                return Some((self.taker(self.neighbour(vertex, step), step), block));
            }
        }
        let block = if double { self.passed_on(vertex, second, step) } else { None };
        block.map(|block| (self.node(vertex, !second), block))
    }

    pub(super) fn receive(self, node: u32, step: u64) -> Pair {
        let (vertex, second) = self.vertex(node);
        let double = self.is_double(vertex);
        if !double || self.second_takes(vertex, step) == second {
            let neighbour = self.neighbour(vertex, step);
            if let Some(block) = self.block(neighbour, step) {
                return Some((self.sender(neighbour, step), block));
            }
        }
        let block = if double { self.passed_on(vertex, !second, step) } else { None };
        block.map(|block| (self.node(vertex, !second), block))
    }
}
