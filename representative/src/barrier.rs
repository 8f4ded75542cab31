//! A barrier: a lower bound of the timestamps that are still to come, out of what each input link has promised (1Pipe,
//! sections 4.1, 4.2 and 6.2.1; FACTS C-40 to C-42).
//!
//! Each input link has two registers, best effort and commit, and each of the two outputs is the minimum over the links that
//! are live for it (equation 4.1). An output never goes back:
//!
//! * A register never does: what a link says that lies before what it said is counted and forgotten.
//! * A link that is removed takes its register with it, which lets the minimum rise.
//! * A link that comes, or comes back, gets a register that stands at the output, whatever it says. So the output waits for
//!   it until it has caught up: the paper's "suspends updates to B_new". How far behind it may be to be waited for is bounded
//!   ([`Limits::window_ns`]), or one clock that is off by an hour would stop everyone for an hour.
//!
//! The minimum is kept in a tournament tree, as the paper's switch does. A register that rises replays its matches
//! upwards until one has the same result as before: of links that speak in turns, half are done after one match, a quarter
//! after two, and so on. All of 1,024 inputs is 16 KiB a plane.
//!
//! Timestamps have 48 bits on the wire and 64 in here: each is put on the line next to the latest one that was heard, by
//! the shorter way round. So minima are those of integers, and registers may be any time apart.

use rocev2::onepipe::Timestamp;

#[cfg(test)]
mod tests;

/// Where the first timestamp is put: far enough from 0 for others to lie before it.
const ORIGIN: u64 = 1 << 48;
/// In the tree: a link that takes no part in the minimum
const ABSENT: u64 = u64::MAX;
/// In the tree, and an output: a link that has said nothing yet. It holds the output back.
const AWAITED: u64 = 0;

/// What is waited for, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// A link that was silent for more ticks than this is dead. Ticks are beacon intervals that this end has lived through,
    /// not time that has passed: if it was itself asleep, nobody else is to blame (FACTS C-48).
    pub dead_after_ticks: u64,
    /// A removed link that is behind the output by no more than this is waited for, in nanoseconds: how long it may stop
    /// the others
    pub window_ns: u64,
}

/// What came of something that a link said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// Its best-effort register rose.
    Raised,
    /// It says what it said before: it is there, and waits for others itself.
    Same,
    /// It had been removed, and takes part again.
    Joined,
    /// It takes part again, and has still not caught up with the output.
    Behind,
    /// It lies before what the link said already: late, repeated, or made up.
    Stale,
    /// It had been removed, and is too far behind to be waited for.
    TooFarBehind,
    /// No best-effort barrier was in it: it is there, and does not know one yet.
    Nothing,
}

/// One of the two services' registers.
#[derive(Debug)]
struct Plane {
    /// The tournament: the winner at 1, the players of match `n` at `2n` and `2n + 1`, links from half of it on
    tree: Box<[u64]>,
    output: u64,
    /// Links that take part
    live: usize,
}

impl Plane {
    /// All links take part, and none has said anything.
    fn new(inputs: usize) -> Self {
        let places = inputs.next_power_of_two().max(2);
        let mut plane = Self { tree: vec![ABSENT; 2 * places].into(), output: AWAITED, live: inputs };
        for input in 0..inputs {
            plane.play(input, AWAITED);
        }
        plane
    }

    #[inline]
    fn register(&self, input: usize) -> u64 {
        self.tree[self.tree.len() / 2 + input]
    }

    /// Gives a link's register a value. Whether the minimum is another one than before
    #[inline]
    fn play(&mut self, input: usize, value: u64) -> bool {
        let mut at = self.tree.len() / 2 + input;
        let mut winner = value;
        self.tree[at] = value;
        while at > 1 {
            winner = winner.min(self.tree[at ^ 1]);
            at /= 2;
            if self.tree[at] == winner {
                return false;
            }
            self.tree[at] = winner;
        }
        true
    }

    /// The link's register rises, or takes part from now on.
    #[inline]
    fn set(&mut self, input: usize, value: u64) {
        if self.play(input, value) && self.tree[1] != ABSENT {
            self.output = self.output.max(self.tree[1]);
        }
    }

    fn remove(&mut self, input: usize) -> bool {
        if self.register(input) == ABSENT {
            return false;
        }
        self.live -= 1;
        self.set(input, ABSENT);
        true
    }

    /// A register for a link that has none: not before the output.
    fn add(&mut self, input: usize, value: u64) {
        self.live += 1;
        self.set(input, value.max(self.output));
    }

    /// A link that the output waits for
    fn holder(&self) -> Option<usize> {
        if self.tree[1] == ABSENT {
            return None;
        }
        let mut at = 1;
        while at < self.tree.len() / 2 {
            at *= 2;
            at += usize::from(self.tree[at] != self.tree[at / 2]);
        }
        Some(at - self.tree.len() / 2)
    }

    fn shown(&self) -> Option<Timestamp> {
        (self.output != AWAITED).then(|| Timestamp::new(self.output))
    }
}

/// What is known of a link beside its registers.
#[derive(Clone, Copy, Debug)]
struct Link {
    /// The tick in which it last said something that was new, or that it had no need to say anew; [`KEPT`] if that does not
    /// matter
    heard: u64,
    /// What it said, if it takes part again and that lies before its register; 0 otherwise
    behind_at: u64,
}

/// Of a link that does not die of silence
const KEPT: u64 = u64::MAX;

/// The barrier of a node of the routing graph.
#[derive(Debug)]
pub struct Barrier {
    best_effort: Plane,
    commit: Plane,
    links: Box<[Link]>,
    limits: Limits,
    /// The latest timestamp heard, on the line
    latest: u64,
    ticks: u64,
    #[cfg(debug_assertions)]
    bug: Option<crate::Bug>,
}

impl Barrier {
    /// A barrier over `inputs` links, all of which are waited for until each has said something or is
    /// [dead](Self::expire).
    pub fn new(inputs: usize, limits: Limits) -> Self {
        Self {
            best_effort: Plane::new(inputs),
            commit: Plane::new(inputs),
            links: vec![Link { heard: 0, behind_at: 0 }; inputs].into(),
            limits,
            latest: 0,
            ticks: 0,
            #[cfg(debug_assertions)]
            bug: None,
        }
    }

    #[cfg(debug_assertions)]
    pub(crate) fn plant(&mut self, bug: Option<crate::Bug>) {
        self.bug = bug;
    }

    /// The best-effort barrier: nothing to come is before it. `None` before all links have said something.
    #[inline]
    pub fn best_effort(&self) -> Option<Timestamp> {
        self.best_effort.shown()
    }

    /// The commit barrier: everything up to it is committed.
    #[inline]
    pub fn commit(&self) -> Option<Timestamp> {
        self.commit.shown()
    }

    /// The best-effort barrier on a line that does not wrap: the low 48 bits are the timestamp; 0 if there is none. Never
    /// goes back.
    #[inline]
    pub const fn position(&self) -> u64 {
        self.best_effort.output
    }

    /// Links that take part in the best-effort barrier
    pub const fn live(&self) -> usize {
        self.best_effort.live
    }

    /// Whether this link takes part in the best-effort barrier
    pub fn is_live(&self, input: usize) -> bool {
        self.best_effort.register(input) != ABSENT
    }

    /// Where a link's register stands on the line of [`position`](Self::position), and what it last said, which is earlier if it
    /// takes part again and has not caught up. 0 is nothing yet; `None` if it takes no part in the best-effort barrier
    pub fn standing(&self, input: usize) -> Option<(u64, u64)> {
        let register = self.best_effort.register(input);
        let said = match self.links[input].behind_at {
            0 => register,
            behind => behind,
        };
        (register != ABSENT).then_some((register, said))
    }

    /// The commit barrier on the same line; 0 if there is none
    pub const fn commit_position(&self) -> u64 {
        self.commit.output
    }

    /// The commit register of a link: what it has last committed, if anything. The controller asks for it when the link
    /// fails (section 5.2, "Detect").
    pub fn committed(&self, input: usize) -> Option<Timestamp> {
        match self.commit.register(input) {
            ABSENT | AWAITED => None,
            register => Some(Timestamp::new(register)),
        }
    }

    /// Puts a timestamp on the line.
    #[inline]
    fn unwrap(&self, timestamp: Timestamp) -> u64 {
        if self.latest == 0 {
            return ORIGIN + timestamp.nanos();
        }
        self.latest.wrapping_add_signed(timestamp.distance(Timestamp::new(self.latest)))
    }

    /// A link says what no message that follows on it will be before, and what is committed.
    #[allow(clippy::inline_always, reason = "what is heard most comes to a few comparisons")]
    #[inline(always)]
    pub fn update(&mut self, input: usize, barrier: Option<Timestamp>, commit: Option<Timestamp>) -> Heard {
        if let Some(commit) = commit {
            self.update_commit(input, commit);
        }
        let register = self.best_effort.register(input);
        if let Some(barrier) = barrier {
            let value = self.unwrap(barrier);
            // Most that is heard is this: something new, of a link that takes part.
            if register < value && register != ABSENT {
                let link = &mut self.links[input];
                link.behind_at = 0;
                link.heard = if link.heard == KEPT { KEPT } else { self.ticks };
                self.latest = self.latest.max(value);
                self.best_effort.set(input, value);
                #[cfg(debug_assertions)]
                if self.bug == Some(crate::Bug::LastLink) {
                    self.best_effort.output = self.best_effort.output.max(value);
                }
                return Heard::Raised;
            }
        }
        self.hear_again(input, register, barrier)
    }

    #[inline(never)]
    fn update_commit(&mut self, input: usize, commit: Timestamp) {
        let (value, register) = (self.unwrap(commit), self.commit.register(input));
        // A link that was removed for good joins when it is told to: see `add_commit`.
        if register < value && register != ABSENT {
            self.latest = self.latest.max(value);
            self.commit.set(input, value);
        }
    }

    /// A link that does not take part, or says nothing new
    #[inline(never)]
    fn hear_again(&mut self, input: usize, register: u64, barrier: Option<Timestamp>) -> Heard {
        let Some(barrier) = barrier else {
            if register != ABSENT {
                self.hear(input);
            }
            return Heard::Nothing;
        };
        let value = self.unwrap(barrier);
        if register == ABSENT {
            return self.join(input, value);
        }
        let behind_at = &mut self.links[input].behind_at;
        if value < register {
            if *behind_at == 0 || value < *behind_at {
                return Heard::Stale;
            }
            *behind_at = value;
            self.hear(input);
            return Heard::Behind;
        }
        *behind_at = 0;
        self.hear(input);
        Heard::Same
    }

    #[inline]
    fn hear(&mut self, input: usize) {
        let link = &mut self.links[input];
        if link.heard != KEPT {
            link.heard = self.ticks;
        }
    }

    #[cold]
    fn join(&mut self, input: usize, value: u64) -> Heard {
        #[cfg(debug_assertions)]
        if self.bug == Some(crate::Bug::ReturningLink) {
            self.hear(input);
            self.best_effort.live += 1;
            self.best_effort.play(input, value);
            self.best_effort.output = self.best_effort.tree[1];
            return Heard::Joined;
        }
        let output = self.best_effort.output;
        if value.saturating_add(self.limits.window_ns) < output {
            return Heard::TooFarBehind;
        }
        self.latest = self.latest.max(value);
        self.best_effort.add(input, value);
        self.links[input].behind_at = if value < output { value } else { 0 };
        self.hear(input);
        Heard::Joined
    }

    /// Removes a link from the best-effort barrier: it has left, or is known to be dead. Whether it took part
    pub fn remove(&mut self, input: usize) -> bool {
        self.best_effort.remove(input)
    }

    /// Removes a link from the commit barrier: the controller says that everyone knows what is to become of its messages
    /// (section 5.2, "Resume"). Whether it took part
    pub fn remove_commit(&mut self, input: usize) -> bool {
        self.commit.remove(input)
    }

    /// Lets a removed link take part in the commit barrier again, which waits for it. Whether it did not
    pub fn add_commit(&mut self, input: usize) -> bool {
        let removed = self.commit.register(input) == ABSENT;
        if removed {
            self.commit.add(input, AWAITED);
        }
        removed
    }

    /// A link that does not die of silence, because it is inside this node.
    pub fn keep(&mut self, input: usize) {
        self.links[input].heard = KEPT;
    }

    /// A beacon interval has passed, and it is so late. Where all links are silent for days, the line goes on.
    pub fn tick(&mut self, clock: Timestamp) {
        self.ticks += 1;
        if self.latest != 0 {
            self.latest = self.latest.max(self.unwrap(clock));
        }
    }

    /// Removes a link that the best-effort barrier waits for and that is dead. To be called after each [tick](Self::tick) until
    /// there is none.
    ///
    /// Only links that hold the barrier are looked at. A dead one does before it is long dead, as the others go on; and if they
    /// do not, nothing is gained by removing it.
    pub fn expire(&mut self) -> Option<usize> {
        let input = self.best_effort.holder()?;
        let heard = self.links[input].heard;
        if heard == KEPT || self.ticks - heard <= self.limits.dead_after_ticks {
            return None;
        }
        self.best_effort.remove(input);
        Some(input)
    }
}
