//! What is to be seen of a switch's links: who is alive, who lags, and whom a barrier waits for (1Pipe, section 7.1: the control
//! plane is told of a link whose barrier lags; FACTS C-46, OP-59).
//!
//! Nothing of this is on the way of a packet. The worker writes its registers down when the control plane asks
//! ([`Command::Show`](crate::Command::Show)), all at one moment; the control plane reads them ([`Gauges::read`]) and judges
//! ([`Watch`]).

use crate::config::Side;
use crate::function::LinkId;
use crate::half::{DOWN, UP};
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};
use rocev2::onepipe::Timestamp;
use switch::Nanos;

/// A link that holds the barrier is told of this often at most
const TOLD_EVERY: Nanos = Nanos::from_secs(1);

/// How a link is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum LinkState {
    /// It takes part, and has told no barrier yet: nobody has one before it does
    Waiting,
    /// It takes part
    Alive,
    /// It was silent for too long, and takes no part
    Dead,
    /// Its neighbour, or the control plane, said that nothing comes on it
    Left,
}

impl LinkState {
    const ALL: [Self; 4] = [Self::Waiting, Self::Alive, Self::Dead, Self::Left];

    /// A word for it, as in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Alive => "alive",
            Self::Dead => "dead",
            Self::Left => "left",
        }
    }
}

/// A link's registers, as numbers on the line of the half that it feeds; 0 is none.
#[derive(Debug, Default)]
struct LinkGauge {
    state: AtomicU8,
    register: AtomicU64,
    said: AtomicU64,
}

#[derive(Debug, Default)]
struct HalfGauge {
    best_effort: AtomicU64,
    commit: AtomicU64,
    /// Of the input of the way down that is the way up, if it takes part: its register plus one
    loopback: AtomicU64,
}

/// What a half shows of itself.
pub(crate) struct HalfShown {
    pub(crate) best_effort: Option<u64>,
    pub(crate) commit: Option<u64>,
    pub(crate) loopback: Option<u64>,
}

/// A representative's registers as they were when they were last shown: written by its worker, read by anyone.
#[derive(Debug)]
pub struct Gauges {
    /// Odd while they are written
    sequence: AtomicU64,
    sides: Box<[Side]>,
    halves: [HalfGauge; 2],
    links: Box<[LinkGauge]>,
}

impl Gauges {
    pub(crate) fn new(sides: impl Iterator<Item = Side>) -> Self {
        let sides: Box<[Side]> = sides.collect();
        let links = sides.iter().map(|_| LinkGauge::default()).collect();
        Self { sequence: AtomicU64::new(0), sides, halves: Default::default(), links }
    }

    /// To be called by the one worker that they are of: `half` and `link` say how each is, the latter with its register and
    /// with what it last said.
    pub(crate) fn show(
        &self,
        half: impl Fn(usize) -> HalfShown,
        link: impl Fn(usize) -> (LinkState, u64, u64),
    ) {
        let sequence = self.sequence.load(Ordering::Relaxed);
        self.sequence.store(sequence + 1, Ordering::Relaxed);
        fence(Ordering::Release);
        for (number, gauge) in self.halves.iter().enumerate() {
            let HalfShown { best_effort, commit, loopback } = half(number);
            gauge.best_effort.store(best_effort.unwrap_or(0), Ordering::Relaxed);
            gauge.commit.store(commit.unwrap_or(0), Ordering::Relaxed);
            gauge.loopback.store(loopback.map_or(0, |register| register + 1), Ordering::Relaxed);
        }
        for (number, gauge) in self.links.iter().enumerate() {
            let (state, register, said) = link(number);
            gauge.state.store(state as u8, Ordering::Relaxed);
            gauge.register.store(register, Ordering::Relaxed);
            gauge.said.store(said, Ordering::Relaxed);
        }
        self.sequence.store(sequence + 2, Ordering::Release);
    }

    /// What was shown last; `None` if nothing was, or something just is: read again later.
    pub fn read(&self) -> Option<View> {
        let sequence = self.sequence.load(Ordering::Acquire);
        let load = |number: &AtomicU64| number.load(Ordering::Relaxed);
        let halves = self.halves.each_ref().map(|half| HalfShown {
            best_effort: Some(load(&half.best_effort)).filter(|&position| position > 0),
            commit: Some(load(&half.commit)).filter(|&position| position > 0),
            loopback: load(&half.loopback).checked_sub(1),
        });
        let links = self.links.iter().zip(&self.sides).map(|(link, &side)| Standing {
            side,
            state: LinkState::ALL[usize::from(link.state.load(Ordering::Relaxed))],
            register: load(&link.register),
            said: load(&link.said),
        });
        let links: Vec<_> = links.collect();
        fence(Ordering::Acquire);
        let whole =
            sequence > 0 && sequence.is_multiple_of(2) && self.sequence.load(Ordering::Relaxed) == sequence;
        whole.then(|| View::new(&halves, &links))
    }
}

/// A link as it was shown
struct Standing {
    side: Side,
    state: LinkState,
    register: u64,
    said: u64,
}

impl Standing {
    fn is_of(&self, half: usize) -> bool {
        (self.side == Side::Below) == (half == UP)
    }

    fn takes_part(&self) -> bool {
        matches!(self.state, LinkState::Waiting | LinkState::Alive)
    }
}

/// A switch's barriers and links at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// What the links to above carry
    pub above: BarrierView,
    /// What the links to below carry
    pub below: BarrierView,
    /// The links, in the order of the configuration
    pub links: Vec<LinkView>,
}

/// The barriers of the links to one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BarrierView {
    /// Best effort
    pub best_effort: Option<Timestamp>,
    /// Commit
    pub commit: Option<Timestamp>,
    /// The link that best effort waits for. That of the links to below may wait for one from below, by way of this
    /// switch's way up.
    pub holder: Option<LinkId>,
}

/// A link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkView {
    /// Where its neighbour is
    pub side: Side,
    /// How it is
    pub state: LinkState,
    /// How far its register is ahead of the barrier that it is part of; 0 holds it. `None` unless it is alive
    pub ahead: Option<Nanos>,
    /// How far what it says is behind the median of those that are part of the same barrier: half of them say so, so it is not
    /// one fast clock that makes others look slow. `None` unless it is alive
    pub lag: Option<Nanos>,
}

impl View {
    fn new(halves: &[HalfShown; 2], links: &[Standing]) -> Self {
        let medians = [UP, DOWN].map(|half| {
            let of_links = links.iter().filter(|link| link.is_of(half) && link.state == LinkState::Alive);
            let mut said: Vec<_> = of_links.map(|link| link.said).chain(halves[half].loopback).collect();
            said.retain(|&position| position > 0);
            said.sort_unstable();
            said.get(said.len() / 2).copied()
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
                lag: medians[half].filter(|_| alive).map(|median| Nanos(median.saturating_sub(link.said))),
            }
        });
        Self { above: barrier(UP, up), below: barrier(DOWN, down), links: links.collect() }
    }

    /// A link.
    pub fn link(&self, LinkId(number): LinkId) -> LinkView {
        self.links[usize::from(number)]
    }
}

/// A link holds a barrier, and lags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lagging {
    /// Which
    pub link: LinkId,
    /// How it is: one that is [`Waiting`](LinkState::Waiting) has told no barrier at all
    pub state: LinkState,
    /// How far it is behind the others, or for how long they have waited for its first barrier
    pub lag: Nanos,
}

/// Looks for a link that is alive and keeps everybody waiting: its neighbour's clock is slow, or something before it is.
#[derive(Clone, Debug)]
pub struct Watch {
    threshold: Nanos,
    /// When a link was last told of, of either half
    told: [Option<Nanos>; 2],
    /// Who has told nothing while others have, and since when that has been seen
    waits: [Option<(LinkId, Nanos)>; 2],
}

impl Watch {
    /// One that tells of lags above `threshold`.
    pub const fn new(threshold: Nanos) -> Self {
        Self { threshold, told: [None; 2], waits: [None; 2] }
    }

    /// Whether anybody has told a barrier who waits for one that has not: another link of either side, or, for a link to above,
    /// those below together. Before that nobody is late.
    fn others_speak(half: usize, view: &View) -> bool {
        let below = half == DOWN && view.above.best_effort.is_some();
        below || view.links.iter().any(|other| other.state == LinkState::Alive)
    }

    /// Those who lag, once a second at most on either side.
    pub fn look(&mut self, view: &View, now: Nanos) -> impl Iterator<Item = Lagging> + use<> {
        let lagging = [(UP, view.above), (DOWN, view.below)].map(|(half, barrier)| {
            let link = barrier.holder?;
            let LinkView { side, state, lag, .. } = view.link(link);
            if (side == Side::Below) != (half == UP) {
                return None; // the way up tells
            }
            let lag = if state == LinkState::Waiting {
                if !Self::others_speak(half, view) {
                    self.waits[half] = None;
                    return None;
                }
                let known = self.waits[half].filter(|&(known, _)| known == link);
                let (_, since) = *self.waits[half].insert(known.unwrap_or((link, now)));
                now.since(since)
            } else {
                self.waits[half] = None;
                lag?
            };
            let lately = self.told[half].is_some_and(|told| now.since(told) < TOLD_EVERY);
            if lag <= self.threshold || lately {
                return None;
            }
            self.told[half] = Some(now);
            Some(Lagging { link, state, lag })
        });
        lagging.into_iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two links from below and two from above, at these places on the line
    fn view(up: [u64; 2], down: [u64; 2], state: [LinkState; 4]) -> View {
        let sides = [Side::Below, Side::Below, Side::Above, Side::Above];
        let gauges = Gauges::new(sides.into_iter());
        assert_eq!(gauges.read(), None, "nothing was shown yet");
        let place = [up[0], up[1], down[0], down[1]];
        let takes_part = |n: &usize| matches!(state[*n], LinkState::Alive | LinkState::Waiting);
        let low = |inputs: core::ops::Range<usize>| inputs.filter(takes_part).map(|n| place[n]).min();
        let half = |half| {
            let best_effort = if half == UP { low(0..2) } else { low(0..4) };
            let best_effort = best_effort.filter(|&barrier| barrier > 0);
            HalfShown { best_effort, commit: None, loopback: low(0..2).filter(|_| half == DOWN) }
        };
        gauges.show(half, |link| (state[link], place[link], place[link]));
        gauges.read().unwrap()
    }

    const ALIVE: [LinkState; 4] = [LinkState::Alive; 4];

    #[test]
    fn the_one_that_all_wait_for_is_named() {
        let seen = view([5_000, 9_000], [7_000, 8_000], ALIVE);
        assert_eq!(
            (seen.above.holder, seen.below.holder),
            (Some(LinkId(0)), Some(LinkId(0))),
            "by the way up"
        );
        assert_eq!(seen.above.best_effort, Some(Timestamp::new(5_000)));
        let of = |ahead, lag| (Some(Nanos(ahead)), Some(Nanos(lag)));
        let told: Vec<_> = seen.links.iter().map(|link| (link.ahead, link.lag)).collect();
        // The median of what feeds the way down is 7,000: 5,000 by the way up, 7,000, 8,000.
        assert_eq!(told, [of(0, 4_000), of(4_000, 0), of(2_000, 0), of(3_000, 0)]);
        let seen = view([5_000, 9_000], [4_000, 8_000], ALIVE);
        assert_eq!((seen.above.holder, seen.below.holder), (Some(LinkId(0)), Some(LinkId(2))));
        let gone = [LinkState::Dead, LinkState::Left, LinkState::Alive, LinkState::Alive];
        let seen = view([5_000, 9_000], [4_000, 8_000], gone);
        assert_eq!((seen.above.holder, seen.below.holder), (None, Some(LinkId(2))));
        assert_eq!((seen.links[0].ahead, seen.links[1].lag), (None, None));
    }

    #[test]
    fn one_fast_clock_makes_nobody_lag() {
        let mut watch = Watch::new(Nanos(100));
        let seen = view([5_000, 5_010], [5_000, 900_000], ALIVE);
        assert_eq!(watch.look(&seen, Nanos::ZERO).count(), 0, "{seen:?}");
    }

    #[test]
    fn a_lag_is_told_once_a_second() {
        let mut watch = Watch::new(Nanos(100));
        let close = view([5_000, 5_100], [5_100, 5_000], ALIVE);
        assert_eq!(watch.look(&close, Nanos::ZERO).count(), 0, "no more than is allowed");
        let far = view([5_000, 5_101], [4_000, 5_101], ALIVE);
        let expected = [(0, 101), (2, 1_000)];
        let expected = expected.map(|(link, lag)| Lagging {
            link: LinkId(link),
            state: LinkState::Alive,
            lag: Nanos(lag),
        });
        assert_eq!(watch.look(&far, Nanos(1)).collect::<Vec<_>>(), expected);
        assert_eq!(watch.look(&far, Nanos(1_000_000_000)).count(), 0, "less than a second later");
        assert_eq!(watch.look(&far, Nanos(1_000_000_001)).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_link_that_never_tells_a_barrier_is_told_of() {
        let mut watch = Watch::new(Nanos(100));
        let states = [LinkState::Waiting, LinkState::Alive, LinkState::Alive, LinkState::Alive];
        let seen = view([0, 5_000], [5_000, 5_000], states);
        assert_eq!(seen.links[0].lag, None);
        assert_eq!(watch.look(&seen, Nanos(1_000)).count(), 0);
        let expected = Lagging { link: LinkId(0), state: LinkState::Waiting, lag: Nanos(101) };
        assert_eq!(watch.look(&seen, Nanos(1_101)).collect::<Vec<_>>(), [expected]);
        // Before anybody has spoken, nobody is late.
        let mut watch = Watch::new(Nanos(100));
        let seen = view([0, 0], [0, 0], [LinkState::Waiting; 4]);
        assert_eq!(watch.look(&seen, Nanos(1_000)).count() + watch.look(&seen, Nanos(2_000)).count(), 0);
        // The time for which all were silent is nobody's fault.
        let seen = view([0, 5_000], [5_000, 5_000], states);
        assert_eq!(watch.look(&seen, Nanos(3_000)).count() + watch.look(&seen, Nanos(3_100)).count(), 0);
        assert_eq!(watch.look(&seen, Nanos(3_101)).collect::<Vec<_>>(), [expected]);
    }

    /// The only link to above has nobody to be compared with but those below.
    #[test]
    fn the_only_link_of_a_side_is_told_of_too() {
        use LinkState::{Alive, Left, Waiting};
        let expected = |link| Lagging { link: LinkId(link), state: Waiting, lag: Nanos(101) };
        let mut watch = Watch::new(Nanos(100));
        let seen = view([5_000, 5_100], [0, 0], [Alive, Alive, Waiting, Left]);
        assert_eq!((seen.below.holder, seen.below.best_effort), (Some(LinkId(2)), None));
        assert_eq!(seen.above.best_effort, Some(Timestamp::new(5_000)));
        assert_eq!(watch.look(&seen, Nanos(1_000)).count(), 0);
        assert_eq!(watch.look(&seen, Nanos(1_101)).collect::<Vec<_>>(), [expected(2)]);
        // The same of the only one from below, for which those to above wait
        let mut watch = Watch::new(Nanos(100));
        let seen = view([0, 0], [5_000, 6_000], [Left, Waiting, Alive, Alive]);
        assert_eq!(watch.look(&seen, Nanos(1_000)).count(), 0);
        assert_eq!(watch.look(&seen, Nanos(1_101)).collect::<Vec<_>>(), [expected(1)], "{seen:?}");
        // Two that have told nothing: the way up has none for the way down to wait with.
        let mut watch = Watch::new(Nanos(100));
        let seen = view([0, 0], [0, 0], [Left, Waiting, Waiting, Left]);
        assert_eq!(watch.look(&seen, Nanos(1_000)).count() + watch.look(&seen, Nanos(2_000)).count(), 0);
    }
}
