//! State of a switch's links for the control plane: which are alive, which lag, and for which link a barrier
//! waits (1Pipe, section 6.2.1: the control plane checks link barriers and reports a link whose barrier lags
//! significantly).
//!
//! None of this is on a packet's path. The worker copies its registers when the control plane requests it
//! ([`Command::PublishGauges`](crate::Command::PublishGauges)), all at one moment; the control plane reads
//! them ([`Gauges::read`]) and evaluates them ([`LagMonitor`]).

use crate::config::{LinkId, Side};
use crate::half::{DOWN, UP};
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};
use onepipe::Timestamp;
use std::sync::Arc;
use switch::Nanos;

/// Minimum time between two reports of a link that holds the barrier
const REPORT_INTERVAL: Nanos = Nanos::from_secs(1);

/// State of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum LinkState {
    /// The link takes part, and has carried no barrier yet, so there is no output barrier either
    Waiting,
    /// The link takes part
    Alive,
    /// The link was silent for too long, and takes no part
    Dead,
    /// The neighbour, or the control plane, announced that nothing follows on the link
    Left,
    /// The link's barrier was too far behind those of the others, and the link takes no part
    Evicted,
}

impl LinkState {
    const ALL: [Self; 5] = [Self::Waiting, Self::Alive, Self::Dead, Self::Left, Self::Evicted];

    /// Returns the state's name, as in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Alive => "alive",
            Self::Dead => "dead",
            Self::Left => "left",
            Self::Evicted => "evicted",
        }
    }
}

/// Registers of a link, unwrapped as those of the half that it feeds; 0 if there is none.
#[derive(Debug, Default)]
struct LinkGauge {
    state: AtomicU8,
    register: AtomicU64,
    carried: AtomicU64,
}

#[derive(Debug, Default)]
struct HalfGauge {
    best_effort: AtomicU64,
    commit: AtomicU64,
    /// Register of the down half's input that is the up half, plus one; 0 if that input takes no part
    loopback: AtomicU64,
}

/// Barriers of a half, unwrapped.
pub(crate) struct HalfBarriers {
    pub(crate) best_effort: Option<u64>,
    pub(crate) commit: Option<u64>,
    pub(crate) loopback: Option<u64>,
}

/// Registers of a representative at the last [`Command::PublishGauges`](crate::Command::PublishGauges):
/// written by its worker, read by any thread (a sequence lock).
#[derive(Debug)]
pub struct Gauges {
    /// Odd while the registers are being written
    sequence: AtomicU64,
    sides: Box<[Side]>,
    /// Whether each link is one of this worker's
    own: Box<[bool]>,
    halves: [HalfGauge; 2],
    links: Box<[LinkGauge]>,
}

impl Gauges {
    /// Creates the gauges of a worker's links, each with its side and whether it is one of this worker's.
    pub(crate) fn new(links: impl Iterator<Item = (Side, bool)>) -> Self {
        let (sides, own): (Vec<Side>, Vec<bool>) = links.unzip();
        let links = sides.iter().map(|_| LinkGauge::default()).collect();
        let (sides, own) = (sides.into(), own.into());
        Self { sequence: AtomicU64::new(0), sides, own, halves: Default::default(), links }
    }

    /// Publishes the registers. To be called by the representative's worker alone: `half` returns the
    /// barriers of a half, `link` the state of a link, its register, and the barrier that it last carried.
    pub(crate) fn publish(
        &self,
        half: impl Fn(usize) -> HalfBarriers,
        link: impl Fn(usize) -> (LinkState, u64, u64),
    ) {
        let sequence = self.sequence.load(Ordering::Relaxed);
        self.sequence.store(sequence + 1, Ordering::Relaxed);
        fence(Ordering::Release);
        for (number, gauge) in self.halves.iter().enumerate() {
            let HalfBarriers { best_effort, commit, loopback } = half(number);
            gauge.best_effort.store(best_effort.unwrap_or(0), Ordering::Relaxed);
            gauge.commit.store(commit.unwrap_or(0), Ordering::Relaxed);
            gauge.loopback.store(loopback.map_or(0, |register| register + 1), Ordering::Relaxed);
        }
        for (number, gauge) in self.links.iter().enumerate() {
            let (state, register, carried) = link(number);
            gauge.state.store(state as u8, Ordering::Relaxed);
            gauge.register.store(register, Ordering::Relaxed);
            gauge.carried.store(carried, Ordering::Relaxed);
        }
        self.sequence.store(sequence + 2, Ordering::Release);
    }

    /// Returns the registers last published; `None` if there were none yet, or if they are being written just
    /// now: retry later.
    pub fn read(&self) -> Option<View> {
        let (halves, links) = self.load()?;
        Some(View::new(&halves, &links))
    }

    /// Returns the registers last published by all workers of a switch; `None` as [`read`](Self::read) does. The barriers
    /// are the lowest of all workers'.
    pub fn read_all(workers: &[Arc<Self>]) -> Option<View> {
        let (mut halves, mut links) = workers.first()?.load()?;
        let reference = halves.iter().find_map(|half| half.best_effort);
        // Each worker unwraps on its own.
        let near = |position: u64| match reference {
            Some(reference) if position > 0 => {
                reference.wrapping_add_signed(Timestamp::new(position).distance(Timestamp::new(reference)))
            }
            _ => position,
        };
        for worker in workers.get(1..)? {
            let (other_halves, other_links) = worker.load()?;
            for (half, other) in halves.iter_mut().zip(other_halves) {
                half.best_effort =
                    half.best_effort.zip(other.best_effort).map(|(one, other)| one.min(near(other)));
            }
            for (number, link) in other_links.into_iter().enumerate().filter(|(n, _)| worker.own[*n]) {
                let (register, carried) = (near(link.register), near(link.carried));
                links[number] = PublishedLink { register, carried, ..link };
            }
        }
        Some(View::new(&halves, &links))
    }

    fn load(&self) -> Option<([HalfBarriers; 2], Vec<PublishedLink>)> {
        let sequence = self.sequence.load(Ordering::Acquire);
        let load = |number: &AtomicU64| number.load(Ordering::Relaxed);
        let halves = self.halves.each_ref().map(|half| HalfBarriers {
            best_effort: Some(load(&half.best_effort)).filter(|&position| position > 0),
            commit: Some(load(&half.commit)).filter(|&position| position > 0),
            loopback: load(&half.loopback).checked_sub(1),
        });
        let links = self.links.iter().zip(&self.sides).map(|(link, &side)| PublishedLink {
            side,
            state: LinkState::ALL[usize::from(link.state.load(Ordering::Relaxed))],
            register: load(&link.register),
            carried: load(&link.carried),
        });
        let links: Vec<_> = links.collect();
        fence(Ordering::Acquire);
        let whole =
            sequence > 0 && sequence.is_multiple_of(2) && self.sequence.load(Ordering::Relaxed) == sequence;
        whole.then_some((halves, links))
    }
}

/// Link as published
struct PublishedLink {
    side: Side,
    state: LinkState,
    register: u64,
    carried: u64,
}

impl PublishedLink {
    fn is_of(&self, half: usize) -> bool {
        (self.side == Side::Below) == (half == UP)
    }

    fn takes_part(&self) -> bool {
        matches!(self.state, LinkState::Waiting | LinkState::Alive)
    }
}

/// Barriers and links of a switch at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// Barriers that links to above carry
    pub above: BarrierView,
    /// Barriers that links to below carry
    pub below: BarrierView,
    /// Links, in the order of the configuration
    pub links: Vec<LinkView>,
}

/// Barriers of the links to one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BarrierView {
    /// Best-effort barrier
    pub best_effort: Option<Timestamp>,
    /// Commit barrier
    pub commit: Option<Timestamp>,
    /// Link that the best-effort barrier waits for. The barrier of the links to below may wait for a link
    /// from below, by way of this switch's up half.
    pub holder: Option<LinkId>,
}

/// State of a link, with its distances to other links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkView {
    /// Side of the switch that the neighbour is on
    pub side: Side,
    /// State of the link
    pub state: LinkState,
    /// How far the link's register is ahead of the barrier that it is an input of; 0 if it holds that
    /// barrier. `None` unless the link is alive
    pub ahead: Option<Nanos>,
    /// How far the barrier that the link last carried is behind the median of the links that are inputs of
    /// the same barrier. Half of the links are at the median or later, so one fast clock does not make the
    /// other links lag. `None` unless the link is alive
    pub lag: Option<Nanos>,
}

impl View {
    fn new(halves: &[HalfBarriers; 2], links: &[PublishedLink]) -> Self {
        let medians = [UP, DOWN].map(|half| {
            let of_links = links.iter().filter(|link| link.is_of(half) && link.state == LinkState::Alive);
            let mut carried: Vec<_> =
                of_links.map(|link| link.carried).chain(halves[half].loopback).collect();
            carried.retain(|&position| position > 0);
            carried.sort_unstable();
            carried.get(carried.len() / 2).copied()
        });
        let holder = |half: usize| {
            let of_links = (0..).zip(links).filter(|(_, link)| link.is_of(half) && link.takes_part());
            of_links.map(|(number, link)| (link.register, LinkId(number))).min()
        };
        let up = holder(UP);
        let down = match (holder(DOWN), halves[DOWN].loopback) {
            (Some((register, _)), Some(loopback)) if loopback < register => up,
            (None, Some(_)) => up,
            (down, _) => down,
        };
        let barrier = |half: usize, holder: Option<(u64, LinkId)>| BarrierView {
            best_effort: halves[half].best_effort.map(Timestamp::new),
            commit: halves[half].commit.map(Timestamp::new),
            holder: holder.map(|(_, link)| link),
        };
        let links = links.iter().map(|link| {
            let half = if link.is_of(UP) { UP } else { DOWN };
            let alive = link.state == LinkState::Alive;
            let barrier = halves[half].best_effort.unwrap_or(0);
            LinkView {
                side: link.side,
                state: link.state,
                ahead: (alive && barrier > 0).then(|| Nanos(link.register.saturating_sub(barrier))),
                lag: medians[half].filter(|_| alive).map(|median| Nanos(median.saturating_sub(link.carried))),
            }
        });
        Self { above: barrier(UP, up), below: barrier(DOWN, down), links: links.collect() }
    }

    /// Returns the state of a link. Panics if there is no such link.
    pub fn link(&self, LinkId(number): LinkId) -> LinkView {
        self.links[usize::from(number)]
    }
}

/// A link that holds a barrier, and lags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LagReport {
    /// The link
    pub link: LinkId,
    /// State of the link; one that is [`Waiting`](LinkState::Waiting) has carried no barrier at all
    pub state: LinkState,
    /// How far the link is behind the other links, or for how long they have waited for its first barrier
    pub lag: Nanos,
}

/// Detects links that are alive and hold back a barrier: the neighbour's clock, or one upstream of the
/// neighbour, is slow.
#[derive(Clone, Debug)]
pub struct LagMonitor {
    threshold: Nanos,
    /// When a link of either half was last reported
    reported_at: [Option<Nanos>; 2],
    /// Link of either half that has carried no barrier while other links have, and since when that has been
    /// observed
    silent: [Option<(LinkId, Nanos)>; 2],
}

impl LagMonitor {
    /// Creates a monitor that reports lags above `threshold`.
    pub const fn new(threshold: Nanos) -> Self {
        Self { threshold, reported_at: [None; 2], silent: [None; 2] }
    }

    /// Returns whether another link that waits for the silent one has carried a barrier: any link of either
    /// side, or, for a link to above, the links below together. Before that, no link is late.
    fn others_have_barriers(half: usize, view: &View) -> bool {
        let below = half == DOWN && view.above.best_effort.is_some();
        below || view.links.iter().any(|other| other.state == LinkState::Alive)
    }

    /// Returns the links that lag, at most one a second for either half.
    pub fn check(&mut self, view: &View, now: Nanos) -> impl Iterator<Item = LagReport> + use<> {
        let lagging = [(UP, view.above), (DOWN, view.below)].map(|(half, barrier)| {
            let link = barrier.holder?;
            let LinkView { side, state, lag, .. } = view.link(link);
            if (side == Side::Below) != (half == UP) {
                return None; // reported for the up half
            }
            let lag = if state == LinkState::Waiting {
                if !Self::others_have_barriers(half, view) {
                    self.silent[half] = None;
                    return None;
                }
                let known = self.silent[half].filter(|&(known, _)| known == link);
                let (_, since) = *self.silent[half].insert(known.unwrap_or((link, now)));
                now.since(since)
            } else {
                self.silent[half] = None;
                lag?
            };
            let is_recent =
                self.reported_at[half].is_some_and(|reported_at| now.since(reported_at) < REPORT_INTERVAL);
            if lag <= self.threshold || is_recent {
                return None;
            }
            self.reported_at[half] = Some(now);
            Some(LagReport { link, state, lag })
        });
        lagging.into_iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Builds a view of two links from below and two from above, with these registers.
    fn view(up: [u64; 2], down: [u64; 2], state: [LinkState; 4]) -> View {
        let sides = [Side::Below, Side::Below, Side::Above, Side::Above];
        let gauges = Gauges::new(sides.into_iter().map(|side| (side, true)));
        assert_eq!(gauges.read(), None, "nothing was published yet");
        let registers = [up[0], up[1], down[0], down[1]];
        let takes_part = |n: &usize| matches!(state[*n], LinkState::Alive | LinkState::Waiting);
        let low = |inputs: core::ops::Range<usize>| inputs.filter(takes_part).map(|n| registers[n]).min();
        let half = |half| {
            let best_effort = if half == UP { low(0..2) } else { low(0..4) };
            let best_effort = best_effort.filter(|&barrier| barrier > 0);
            HalfBarriers { best_effort, commit: None, loopback: low(0..2).filter(|_| half == DOWN) }
        };
        gauges.publish(half, |link| (state[link], registers[link], registers[link]));
        gauges.read().unwrap()
    }

    const ALIVE: [LinkState; 4] = [LinkState::Alive; 4];

    #[test]
    fn view_names_the_link_that_holds_each_barrier() {
        let seen = view([5_000, 9_000], [7_000, 8_000], ALIVE);
        assert_eq!(
            (seen.above.holder, seen.below.holder),
            (Some(LinkId(0)), Some(LinkId(0))),
            "through the up half"
        );
        assert_eq!(seen.above.best_effort, Some(Timestamp::new(5_000)));
        let of = |ahead, lag| (Some(Nanos(ahead)), Some(Nanos(lag)));
        let distances: Vec<_> = seen.links.iter().map(|link| (link.ahead, link.lag)).collect();
        // The median of the down half's inputs is 7,000: 5,000 of the up half, 7,000, 8,000.
        assert_eq!(distances, [of(0, 4_000), of(4_000, 0), of(2_000, 0), of(3_000, 0)]);
        let seen = view([5_000, 9_000], [4_000, 8_000], ALIVE);
        assert_eq!((seen.above.holder, seen.below.holder), (Some(LinkId(0)), Some(LinkId(2))));
        let gone = [LinkState::Dead, LinkState::Left, LinkState::Alive, LinkState::Alive];
        let seen = view([5_000, 9_000], [4_000, 8_000], gone);
        assert_eq!((seen.above.holder, seen.below.holder), (None, Some(LinkId(2))));
        assert_eq!((seen.links[0].ahead, seen.links[1].lag), (None, None));
    }

    #[test]
    fn one_fast_clock_does_not_make_other_links_lag() {
        let mut monitor = LagMonitor::new(Nanos(100));
        let seen = view([5_000, 5_010], [5_000, 900_000], ALIVE);
        assert_eq!(monitor.check(&seen, Nanos::ZERO).count(), 0, "{seen:?}");
    }

    #[test]
    fn lag_is_reported_once_a_second() {
        let mut monitor = LagMonitor::new(Nanos(100));
        let close = view([5_000, 5_100], [5_100, 5_000], ALIVE);
        assert_eq!(monitor.check(&close, Nanos::ZERO).count(), 0, "at the threshold");
        let far = view([5_000, 5_101], [4_000, 5_101], ALIVE);
        let expected = [(0, 101), (2, 1_000)];
        let expected = expected.map(|(link, lag)| LagReport {
            link: LinkId(link),
            state: LinkState::Alive,
            lag: Nanos(lag),
        });
        assert_eq!(monitor.check(&far, Nanos(1)).collect::<Vec<_>>(), expected);
        assert_eq!(monitor.check(&far, Nanos(1_000_000_000)).count(), 0, "less than a second later");
        assert_eq!(monitor.check(&far, Nanos(1_000_000_001)).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn link_that_never_carries_a_barrier_is_reported() {
        let mut monitor = LagMonitor::new(Nanos(100));
        let states = [LinkState::Waiting, LinkState::Alive, LinkState::Alive, LinkState::Alive];
        let seen = view([0, 5_000], [5_000, 5_000], states);
        assert_eq!(seen.links[0].lag, None);
        assert_eq!(monitor.check(&seen, Nanos(1_000)).count(), 0);
        let expected = LagReport { link: LinkId(0), state: LinkState::Waiting, lag: Nanos(101) };
        assert_eq!(monitor.check(&seen, Nanos(1_101)).collect::<Vec<_>>(), [expected]);
        // Before any link has carried a barrier, no link is late.
        let mut monitor = LagMonitor::new(Nanos(100));
        let seen = view([0, 0], [0, 0], [LinkState::Waiting; 4]);
        assert_eq!(
            monitor.check(&seen, Nanos(1_000)).count() + monitor.check(&seen, Nanos(2_000)).count(),
            0
        );
        // The time for which all links were silent does not count.
        let seen = view([0, 5_000], [5_000, 5_000], states);
        assert_eq!(
            monitor.check(&seen, Nanos(3_000)).count() + monitor.check(&seen, Nanos(3_100)).count(),
            0
        );
        assert_eq!(monitor.check(&seen, Nanos(3_101)).collect::<Vec<_>>(), [expected]);
    }

    /// The only link to above can be compared only with the links below.
    #[test]
    fn only_link_of_a_side_is_reported_too() {
        use LinkState::{Alive, Left, Waiting};
        let expected = |link| LagReport { link: LinkId(link), state: Waiting, lag: Nanos(101) };
        let mut monitor = LagMonitor::new(Nanos(100));
        let seen = view([5_000, 5_100], [0, 0], [Alive, Alive, Waiting, Left]);
        assert_eq!((seen.below.holder, seen.below.best_effort), (Some(LinkId(2)), None));
        assert_eq!(seen.above.best_effort, Some(Timestamp::new(5_000)));
        assert_eq!(monitor.check(&seen, Nanos(1_000)).count(), 0);
        assert_eq!(monitor.check(&seen, Nanos(1_101)).collect::<Vec<_>>(), [expected(2)]);
        // The same for the only link from below, for which the links above wait
        let mut monitor = LagMonitor::new(Nanos(100));
        let seen = view([0, 0], [5_000, 6_000], [Left, Waiting, Alive, Alive]);
        assert_eq!(monitor.check(&seen, Nanos(1_000)).count(), 0);
        assert_eq!(monitor.check(&seen, Nanos(1_101)).collect::<Vec<_>>(), [expected(1)], "{seen:?}");
        // Two links that have carried no barrier: the up half has none for which the down half could wait.
        let mut monitor = LagMonitor::new(Nanos(100));
        let seen = view([0, 0], [0, 0], [Left, Waiting, Waiting, Left]);
        assert_eq!(
            monitor.check(&seen, Nanos(1_000)).count() + monitor.check(&seen, Nanos(2_000)).count(),
            0
        );
    }
}
