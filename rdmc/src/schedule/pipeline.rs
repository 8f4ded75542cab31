//! The binomial pipeline (RDMC, sections 4.3 and 4.4), extended to any number of nodes.
//!
//! # Powers of two
//!
//! The 2^d nodes are the vertices of a hypercube. At step j every vertex exchanges a block with its neighbour
//! in direction j mod d. The block that vertex v sends has a closed form. Let s be v rotated right by j mod
//! d, and r the number of trailing zeros of s. The root (s = 0) sends block j. The root's neighbour at this
//! step (s = 1) sends nothing. Every other vertex sends block j - d + r, unless that is negative. A block
//! number beyond the last block means the last block. Steps are 0 to d + k - 2.
//!
//! # Other numbers
//!
//! With d = floor(log2 n), vertices 1 to n - 2^d have two nodes each. To the other vertices, such a vertex
//! looks like one node: at each step one of its two nodes (the taker) receives the block from the neighbour
//! vertex, and the other one (the sender) sends the block that the vertex has to send. The two swap these
//! roles after each step whose direction is a one bit of v: at such a step the vertex receives the block that
//! it will send until the next such step, so the new sender has it. In the same step, the taker passes the
//! block that it received the last time it was the taker on to the other node. Thus neither node sends or
//! receives more than one block in a step. Only the last block of each node remains after the pipeline's
//! steps; the two exchange these in one more step ("the final receipt spreads over two asynchronous steps").
//! There are k + d steps, which is k + ceil(log2 n) - 1, as with powers of two.

type Pair = Option<(u32, u32)>;

#[derive(Clone, Copy, Debug)]
pub(super) struct Pipeline {
    n: u32,
    k: u32,
    /// Dimension of the hypercube.
    d: u32,
}

impl Pipeline {
    /// Returns the pipeline of `n` nodes, at least two, and `k` blocks.
    pub(super) fn new(n: u32, k: u32) -> Self {
        Self { n, k, d: n.ilog2() }
    }

    /// Returns the number of steps in which vertices exchange blocks.
    fn vertex_steps(self) -> u64 {
        u64::from(self.d) + u64::from(self.k) - 1
    }

    pub(super) fn steps(self) -> u64 {
        self.vertex_steps() + u64::from(!self.n.is_power_of_two())
    }

    /// Returns the vertex of a node, and whether the node is the second one of that vertex.
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

    /// Returns the direction of a step.
    fn direction(self, step: u64) -> u32 {
        (step % u64::from(self.d)) as u32
    }

    fn neighbour(self, vertex: u32, step: u64) -> u32 {
        vertex ^ 1 << self.direction(step)
    }

    /// Returns the block that a vertex sends to its neighbour at a step, by the closed form.
    fn block(self, vertex: u32, step: u64) -> Option<u32> {
        if step >= self.vertex_steps() {
            return None;
        }
        let direction = self.direction(step);
        let low = vertex & ((1 << direction) - 1);
        let rotated = vertex >> direction | low << (self.d - direction);
        let block = match rotated {
            0 => step,
            1 => return None,
            _ => (step + u64::from(rotated.trailing_zeros())).checked_sub(self.d.into())?,
        };
        Some(block.min(u64::from(self.k) - 1) as u32)
    }

    /// Returns whether the second node of a vertex with two nodes is the taker at a step. The other node is
    /// the sender.
    fn second_is_taker(self, vertex: u32, step: u64) -> bool {
        let rounds = step / u64::from(self.d);
        let partial_round = vertex & ((1 << self.direction(step)) - 1);
        let swaps = rounds * u64::from(vertex.count_ones()) + u64::from(partial_round.count_ones());
        swaps % 2 == 1
    }

    fn taker(self, vertex: u32, step: u64) -> u32 {
        self.node(vertex, self.is_double(vertex) && self.second_is_taker(vertex, step))
    }

    fn sender(self, vertex: u32, step: u64) -> u32 {
        self.node(vertex, self.is_double(vertex) && !self.second_is_taker(vertex, step))
    }

    /// Returns the last step before `step` at which this node of a vertex with two nodes was the taker.
    fn last_taken(self, vertex: u32, second: bool, step: u64) -> Option<u64> {
        let last = step.checked_sub(1)?;
        if self.second_is_taker(vertex, last) == second {
            return Some(last);
        }
        // The two nodes swapped roles after the last step before `last` whose direction is a one bit of the
        // vertex.
        let before = last.checked_sub(1)?;
        let at = self.direction(before);
        let mask = (1 << self.d) - 1;
        // The highest bit of `ones` is the bit of that direction, the next lower one that of the direction
        // before it, and so on.
        let ones = (vertex << (self.d - 1 - at) | vertex >> (at + 1)) & mask;
        before.checked_sub((self.d - 1 - ones.ilog2()).into())
    }

    /// Returns the block that a node of a vertex with two nodes passes on to the other node at a step.
    fn passed_on(self, vertex: u32, second: bool, step: u64) -> Option<u32> {
        let passes = if step < self.vertex_steps() {
            // A taker that receives from another vertex is free to send, and the other node is free to
            // receive.
            self.second_is_taker(vertex, step) == second
                && self.block(self.neighbour(vertex, step), step).is_some()
        } else {
            step < self.steps()
        };
        if !passes {
            return None;
        }
        let step_taken = self.last_taken(vertex, second, step)?;
        self.block(self.neighbour(vertex, step_taken), step_taken)
    }

    pub(super) fn send(self, node: u32, step: u64) -> Pair {
        let (vertex, second) = self.vertex(node);
        let double = self.is_double(vertex);
        if !double || self.second_is_taker(vertex, step) != second {
            let block_for_neighbour = self.block(vertex, step);
            if let Some(block) = block_for_neighbour {
                return Some((self.taker(self.neighbour(vertex, step), step), block));
            }
        }
        let block = if double { self.passed_on(vertex, second, step) } else { None };
        block.map(|block| (self.node(vertex, !second), block))
    }

    pub(super) fn receive(self, node: u32, step: u64) -> Pair {
        let (vertex, second) = self.vertex(node);
        let double = self.is_double(vertex);
        if !double || self.second_is_taker(vertex, step) == second {
            let neighbour = self.neighbour(vertex, step);
            if let Some(block) = self.block(neighbour, step) {
                return Some((self.sender(neighbour, step), block));
            }
        }
        let block = if double { self.passed_on(vertex, !second, step) } else { None };
        block.map(|block| (self.node(vertex, !second), block))
    }
}
