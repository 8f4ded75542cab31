//! A barrier: a lower bound of the timestamps that may still arrive, aggregated from the barriers of all
//! input links (1Pipe, sections 4.1, 4.2 and 6.2.1).
//!
//! Each input link has a register. The output is the minimum over the links that are live (equation 4.1); it
//! never goes back:
//!
//! * A register never goes back: an update below the register is reported as [`UpdateResult::Stale`] and
//!   otherwise ignored.
//! * A link that is removed takes its register with it, which lets the minimum rise.
//! * A link that is added, or returns, gets a register that equals the output at least, whatever barrier it
//!   carries. So the output waits for the link until it has caught up: the paper's "suspends updates to
//!   B_new". [`Limits::window_ns`] bounds how far behind a returning link may be; without that bound, one
//!   clock that is an hour slow would stop all receivers for an hour. Where this node's clock shows that the link is
//!   right and the others are fast, [`Limits::stall_ns`] does; else one fast clock would exclude all that return.
//! * The output begins when every link has carried a barrier or is gone. Links whose first barrier is too far
//!   behind are left out then. The reference is the lower median of the links and, where they are those from
//!   below, of this node's clock: so one wrong clock of three decides nothing.
//!
//! The minimum is kept in a tournament tree, like the binary tree of registers in the paper's switch. A
//! register that rises replays its matches towards the root until one match has the same result as before: if
//! links are updated in turns, half of the updates are done after one match, a quarter after two, and so on.
//! With 1,024 inputs, the tree takes 16 KiB.
//!
//! Timestamps have 48 bits on the wire and are unwrapped to 64 bits here: each is placed next to the latest
//! timestamp received, on the side where the distance is shorter. So minima are those of integers, and
//! registers may be any time apart.

mod lag;
#[cfg(test)]
mod tests;
mod workers;

use crate::bug::Bug;
use crate::plane::{ABSENT, Plane};
use onepipe::Timestamp;

/// Unwrapped time where the first timestamp is placed: far enough from 0 for other timestamps to lie before
/// it.
const ORIGIN: u64 = 1 << 48;

/// Limits after which a silent link is dead, and within which a returning link is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// A link that was silent for more ticks than this is dead. Ticks are beacon intervals for which this
    /// node was running, not elapsed time: while this node's own worker does not run, silence of its
    /// neighbours does not count.
    pub dead_after_ticks: u64,
    /// A removed link that is behind the output by at most this time, in nanoseconds, is waited for when it
    /// returns. Bounds the time for which a returning link can stop the output
    pub window_ns: u64,
    /// The same for a link that is not too far behind the lower median of the other links and this node's clock: then
    /// the links that hold the output are ahead, not this one behind
    pub stall_ns: u64,
    /// A link whose barrier is behind the lower median of the others by more than twice the window for more
    /// ticks than this is removed; 0: never
    pub evict_after_ticks: u64,
}

/// Result of a link's barrier update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpdateResult {
    /// The link's best-effort register rose.
    Raised,
    /// The barrier equals the link's register: the link is alive, and itself waits for other links.
    Unchanged,
    /// The link had been removed, and takes part again.
    Joined,
    /// The link takes part again, but has still not caught up with the output.
    Behind,
    /// The barrier is below what the link has carried before: late, repeated, or forged.
    Stale,
    /// The link had been removed, and is too far behind to be waited for.
    TooFarBehind,
    /// The update carried no best-effort barrier: the neighbour is alive, and has no barrier yet.
    NoBarrier,
}

/// Reason why a link takes no part in the best-effort barrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Gone {
    /// Nothing follows on the link, as its neighbour or the control plane has stated.
    Left,
    /// The link was silent for too long. What follows on it is unknown.
    Silent,
    /// The link's barrier was too far behind those of the others.
    Evicted,
}

/// What the neighbours of a node may expect of it, by the state of its inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Inputs {
    /// At least one link takes part, or is waited for.
    Live,
    /// All links have left, or there are none: nothing follows.
    Left,
    /// No link takes part, and at least one has not left: what follows is unknown.
    Lost,
}

/// State of a link beside its registers.
#[derive(Clone, Copy, Debug)]
struct Link {
    /// Tick of the last update that raised or confirmed the link's register; [`NEVER_EXPIRES`] if the link
    /// never expires
    updated_at: u64,
    /// Barrier that the link last carried, if it takes part again and that barrier is below its register; 0
    /// otherwise
    behind_at: u64,
    /// Tick at which the link was first seen too far behind the others; 0 if it is not
    lagging_since: u64,
    /// Why the link takes no part; `None` if it does
    gone: Option<Gone>,
    /// Whether the link was evicted, and [`Barrier::expire`] has not returned it yet
    is_unreported: bool,
}

/// Interval, in ticks, at which links are compared with one another
const LAG_CHECK: u64 = 8;

/// Value of [`Link::updated_at`] for a link that does not expire
const NEVER_EXPIRES: u64 = u64::MAX;

/// Barrier of a node of the routing graph.
///
/// Call [`update`](Self::update) for each barrier received. Once per beacon interval, call
/// [`tick`](Self::tick), then [`expire`](Self::expire) until it returns `None`. All methods that take an
/// `input` panic if it is not below the `inputs` given to [`new`](Self::new).
#[derive(Debug)]
pub struct Barrier {
    best_effort: Plane,
    links: Box<[Link]>,
    /// Number of links that have left
    left: usize,
    /// Number of links that were evicted and not returned
    unreported: usize,
    limits: Limits,
    /// This node's clock, if it is compared with the links
    clock: Option<Timestamp>,
    /// Barrier of this node by which a link that takes no part is measured as well
    floor: Option<Timestamp>,
    /// Whether an input may be missing: at the next tick, all are checked
    misses: bool,
    /// First input that stands for a worker of this switch. Medians are of links alone
    workers_from: usize,
    /// What the links of other workers have carried, unwrapped, which count for medians
    others: Vec<u64>,
    /// Whether a link of another worker has carried nothing yet, so that the output does not begin
    awaits_others: bool,
    /// Memory to find a median in
    scratch: Vec<u64>,
    /// Latest timestamp received, unwrapped
    latest: u64,
    ticks: u64,
    /// Planted bug
    bug: Option<Bug>,
}

impl Barrier {
    /// Creates a barrier over `inputs` links. All of them are waited for until each has carried a barrier or
    /// has [expired](Self::expire). `clock` is 1Pipe's time, if the links are to be compared with this node's
    /// clock as well.
    pub fn new(inputs: usize, limits: Limits, clock: Option<Timestamp>) -> Self {
        Self {
            best_effort: Plane::new(inputs),
            links: vec![
                Link {
                    updated_at: 0,
                    behind_at: 0,
                    lagging_since: 0,
                    gone: None,
                    is_unreported: false
                };
                inputs
            ]
            .into(),
            left: 0,
            unreported: 0,
            limits,
            clock,
            floor: None,
            misses: false,
            workers_from: usize::MAX,
            others: Vec::new(),
            awaits_others: false,
            scratch: Vec::with_capacity(inputs + 1),
            latest: 0,
            ticks: 0,
            bug: None,
        }
    }

    /// Plants a bug.
    pub(crate) fn plant(&mut self, bug: Option<Bug>) {
        self.bug = bug;
    }

    /// Returns whether this bug was planted. Release builds have no bugs.
    #[inline]
    fn has_bug(&self, bug: Bug) -> bool {
        cfg!(debug_assertions) && self.bug == Some(bug)
    }

    /// Returns the best-effort barrier: no later message has a timestamp below it. `None` before all links
    /// have carried a barrier.
    #[inline]
    pub fn best_effort(&self) -> Option<Timestamp> {
        self.best_effort.output_timestamp()
    }

    /// Returns the best-effort barrier, unwrapped: the low 48 bits are the timestamp; 0 if there is no
    /// barrier. Never goes back.
    #[inline]
    pub const fn position(&self) -> u64 {
        self.best_effort.output
    }

    /// Returns the number of links that take part in the best-effort barrier.
    pub const fn live(&self) -> usize {
        self.best_effort.live
    }

    /// Returns what the neighbours may expect of this node.
    #[inline]
    pub fn inputs(&self) -> Inputs {
        if self.best_effort.live > 0 {
            return Inputs::Live;
        }
        let all_left = self.left == self.links.len() || self.has_bug(Bug::DeafNothingFollows);
        if all_left { Inputs::Left } else { Inputs::Lost }
    }

    /// Returns whether a link that has not left is missing: it takes no part, or takes part again and has not
    /// caught up. So timestamps below the barrier may follow on it. Once no link is missing, this is false from
    /// the next tick on.
    #[inline]
    pub(crate) const fn misses(&self) -> bool {
        self.misses
    }

    /// Returns whether this link takes part in the best-effort barrier.
    pub fn is_live(&self, input: usize) -> bool {
        self.best_effort.register(input) != ABSENT
    }

    /// Returns a link's register, unwrapped as [`position`](Self::position) is, and the barrier that the link
    /// last carried, which is lower if the link takes part again and has not caught up. 0 if it has carried
    /// no barrier yet; `None` if the link takes no part in the best-effort barrier.
    pub fn input_state(&self, input: usize) -> Option<(u64, u64)> {
        let register = self.best_effort.register(input);
        (register != ABSENT).then(|| (register, self.carried(input)))
    }

    /// Unwraps a timestamp to 64 bits.
    #[inline]
    fn unwrap(&self, timestamp: Timestamp) -> u64 {
        if self.latest == 0 {
            return ORIGIN + timestamp.nanos();
        }
        self.latest.wrapping_add_signed(timestamp.distance(Timestamp::new(self.latest)))
    }

    /// Updates a link's register: no message that follows on the link has a timestamp below `barrier`.
    #[allow(clippy::inline_always, reason = "the most frequent update takes a few comparisons")]
    #[inline(always)]
    pub fn update(&mut self, input: usize, barrier: Option<Timestamp>) -> UpdateResult {
        let register = self.best_effort.register(input);
        if let Some(barrier) = barrier {
            let value = self.unwrap(barrier);
            // Most updates are of this kind: a higher barrier of a link that takes part.
            if register < value && register != ABSENT {
                let link = &mut self.links[input];
                link.behind_at = 0;
                link.updated_at = if link.updated_at == NEVER_EXPIRES { NEVER_EXPIRES } else { self.ticks };
                self.latest = self.latest.max(value);
                if self.best_effort.raise(input, value) {
                    self.begin();
                }
                if self.has_bug(Bug::LastLink) {
                    self.best_effort.output = self.best_effort.output.max(value);
                }
                return UpdateResult::Raised;
            }
        }
        self.update_not_raising(input, register, barrier)
    }

    /// Handles an update of a link that takes no part, or that does not raise its register.
    #[inline(never)]
    fn update_not_raising(
        &mut self,
        input: usize,
        register: u64,
        barrier: Option<Timestamp>,
    ) -> UpdateResult {
        let Some(barrier) = barrier else {
            if register != ABSENT {
                self.touch(input);
            }
            return UpdateResult::NoBarrier;
        };
        let value = self.unwrap(barrier);
        if register == ABSENT {
            return self.join(input, value);
        }
        let behind_at = &mut self.links[input].behind_at;
        if value < register {
            if *behind_at == 0 || value < *behind_at {
                return UpdateResult::Stale;
            }
            *behind_at = value;
            self.touch(input);
            return UpdateResult::Behind;
        }
        *behind_at = 0;
        self.touch(input);
        UpdateResult::Unchanged
    }

    #[inline]
    fn touch(&mut self, input: usize) {
        let link = &mut self.links[input];
        if link.updated_at != NEVER_EXPIRES {
            link.updated_at = self.ticks;
        }
    }

    /// Returns whether a link that takes no part, and carries this time, is too far behind to be waited for.
    fn is_too_late(&mut self, value: u64) -> bool {
        let Limits { window_ns, stall_ns, .. } = self.limits;
        self.is_behind(value, window_ns)
            && (self.is_behind(value, stall_ns)
                || self.is_behind_median(value)
                || self.has_bug(Bug::FastLinks))
    }

    #[cold]
    fn join(&mut self, input: usize, value: u64) -> UpdateResult {
        if self.has_bug(Bug::ReturningLink) {
            self.touch(input);
            self.links[input].gone = None;
            self.best_effort.live += 1;
            self.best_effort.set_register(input, value);
            self.best_effort.output = self.best_effort.tree[1];
            return UpdateResult::Joined;
        }
        let output = self.best_effort.output;
        if self.links[input].updated_at != NEVER_EXPIRES && self.is_too_late(value) {
            return UpdateResult::TooFarBehind;
        }
        self.latest = self.latest.max(value);
        if self.links[input].gone.take() == Some(Gone::Left) {
            self.left -= 1;
        }
        self.set_reported(input);
        self.best_effort.add(input, value);
        self.links[input].behind_at = if value < output { value } else { 0 };
        self.misses |= value < output;
        self.touch(input);
        if !self.best_effort.is_started {
            self.begin();
        }
        UpdateResult::Joined
    }

    /// Returns whether a time is behind the output of this half or of the other one by more than `by` nanoseconds.
    fn is_behind(&self, value: u64, by: u64) -> bool {
        // Both halves of a node unwrap on their own.
        let distance = i64::try_from(by).unwrap_or(i64::MAX);
        let is_behind_node = self.floor.is_some_and(|floor| floor.distance(Timestamp::new(value)) > distance);
        value.saturating_add(by) < self.best_effort.output || is_behind_node
    }

    /// Returns the barrier that a link last carried; [`AWAITED`] if none.
    fn carried(&self, input: usize) -> u64 {
        match self.links[input].behind_at {
            0 => self.best_effort.register(input),
            behind => behind,
        }
    }

    /// Forgets that a link was evicted, because its state has changed.
    fn set_reported(&mut self, input: usize) {
        self.unreported -= usize::from(core::mem::take(&mut self.links[input].is_unreported));
    }

    /// Removes a link from the best-effort barrier because nothing follows on it. Returns whether that
    /// changes its state: a link that was removed for silence may leave as well.
    pub fn leave(&mut self, input: usize) -> bool {
        let changes = self.links[input].gone != Some(Gone::Left);
        if changes {
            self.take_out(input, Gone::Left);
        }
        changes
    }

    /// Removes a link from the best-effort barrier, like [`expire`](Self::expire), because what follows on it
    /// is unknown. Returns whether it took part.
    pub fn lose(&mut self, input: usize) -> bool {
        let changes = self.links[input].gone.is_none();
        if changes {
            self.take_out(input, Gone::Silent);
        }
        changes
    }

    /// Removes a link from the best-effort barrier for this reason.
    #[cold]
    fn take_out(&mut self, input: usize, why: Gone) {
        let before = self.links[input].gone.replace(why);
        self.left += usize::from(why == Gone::Left);
        self.misses |= why != Gone::Left;
        self.left -= usize::from(before == Some(Gone::Left));
        self.set_reported(input);
        self.links[input].lagging_since = 0;
        self.best_effort.remove(input);
        if !self.best_effort.is_started {
            self.begin();
        }
    }

    /// Exempts a link from expiry and from every bound of how far it may be behind, for a link inside this
    /// node.
    pub fn never_expire(&mut self, input: usize) {
        self.links[input].updated_at = NEVER_EXPIRES;
    }

    /// Counts a beacon interval, at whose end 1Pipe's clock shows `clock`. The clock advances the unwrapped
    /// time even if all links are silent for days.
    pub fn tick(&mut self, clock: Timestamp) {
        self.ticks += 1;
        self.clock = self.clock.and(Some(clock));
        if self.misses {
            self.check_missing();
        }
        if self.latest != 0 {
            self.latest = self.latest.max(self.unwrap(clock));
        }
        if self.ticks.is_multiple_of(LAG_CHECK) {
            self.check_lag();
        }
    }

    /// Checks whether a link is missing that has not left.
    #[cold]
    fn check_missing(&mut self) {
        let waits_for_none = self.has_bug(Bug::ReturnedAtOnce);
        self.misses = self.links.iter().any(|link| match link.gone {
            None => link.behind_at != 0 && !waits_for_none,
            Some(why) => why != Gone::Left,
        });
    }

    /// Sets another barrier of this node: a link that takes no part and is too far behind that is not waited
    /// for. A half whose links were all silent for an hour would otherwise wait for a clock that is an hour
    /// slow.
    pub fn set_floor(&mut self, floor: Option<Timestamp>) {
        self.floor = floor;
    }

    /// Returns a link that was evicted, or removes a link that holds the best-effort barrier and is dead, and
    /// returns it, with the reason. To be called after each [tick](Self::tick) until it returns `None`.
    ///
    /// Only links that hold the barrier are checked. A dead link soon holds it, because the other links go
    /// on; and if they do not, removing the dead link gains nothing.
    pub fn expire(&mut self) -> Option<(usize, Gone)> {
        if self.unreported > 0
            && let Some(input) = self.links.iter().position(|link| link.is_unreported)
        {
            self.set_reported(input);
            return Some((input, Gone::Evicted));
        }
        let input = self.best_effort.holder()?;
        let updated_at = self.links[input].updated_at;
        if updated_at == NEVER_EXPIRES || self.ticks - updated_at <= self.limits.dead_after_ticks {
            return None;
        }
        self.take_out(input, Gone::Silent);
        Some((input, Gone::Silent))
    }
}
