//! Pacing: when packets are due, at rates in packets or bits a second.
//!
//! What a rate has earned by a time is computed in integers from the time since it began, and never
//! accumulated from rounded steps: there is no drift, and the error is below one burst however long a run is.

use crate::part::Share;
use switch::Nanos;

const SECOND: u128 = 1_000_000_000;

/// Unit of a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Packets
    Packets,
    /// Bits on the wire, with [`WIRE_OVERHEAD`] for each frame
    Bits,
}

/// Bytes that a frame takes on Ethernet beside its own: preamble (8), frame check sequence (4), gap (12).
pub const WIRE_OVERHEAD: usize = 24;

/// Sending rate of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rate {
    /// As fast as the port takes packets
    Max,
    /// Constant
    Steady {
        /// Unit of the rate
        unit: Unit,
        /// Units a second; not 0
        per_second: u64,
    },
    /// Linear from one rate to another, then constant
    Ramp {
        /// Unit of the rate
        unit: Unit,
        /// Initial rate, units a second
        from: u64,
        /// Final rate, units a second; not 0
        to: u64,
        /// Duration of the change; at most [`Rate::LONGEST_RAMP`]
        over: Nanos,
    },
}

impl Rate {
    /// Longest ramp, so that the square of its time fits into 128 bits
    pub const LONGEST_RAMP: Nanos = Nanos::from_secs(3600);
    /// Fastest rate, in units a second
    pub const FASTEST: u64 = 1_000_000_000_000;

    /// Returns the unit; `None` for the maximum rate.
    pub const fn unit(self) -> Option<Unit> {
        match self {
            Self::Max => None,
            Self::Steady { unit, .. } | Self::Ramp { unit, .. } => Some(unit),
        }
    }

    /// Returns the units that are earned in the first `time`.
    pub fn earned(self, time: Nanos) -> u128 {
        match self {
            Self::Max => u128::MAX,
            Self::Steady { per_second, .. } => u128::from(time.0) * u128::from(per_second) / SECOND,
            Self::Ramp { .. } => self.area(time) / SECOND,
        }
    }

    /// Returns the area below a ramp, in units a second times nanoseconds; 0 for other rates.
    fn area(self, time: Nanos) -> u128 {
        let Self::Ramp { from, to, over, .. } = self else { return 0 };
        let t = u128::from(time.0);
        let (from, to, over) = (u128::from(from), u128::from(to), u128::from(over.0.max(1)));
        let climbing = t.min(over);
        // from * t + (to - from) * t^2 / (2 * over); neither sum is below 0.
        let area = 2 * over * from * climbing + to * climbing * climbing - from * climbing * climbing;
        // Two consecutive floor divisions equal one by the product, and the intermediate values stay below 128 bits.
        area / (2 * over) + to * (t - climbing)
    }

    /// Returns the rate at a time, in units a second.
    pub(crate) fn at(self, time: Nanos) -> u64 {
        match self {
            Self::Max => u64::MAX,
            Self::Steady { per_second, .. } => per_second,
            Self::Ramp { from, to, over, .. } => {
                let (t, over) = (i128::from(time.0.min(over.0)), i128::from(over.0.max(1)));
                (i128::from(from) + (i128::from(to) - i128::from(from)) * t / over) as u64
            }
        }
    }
}

/// State of a rate: how many units may be sent now, and when the next are due.
///
/// Call [`allowance`](Self::allowance), send at most that many units, call [`spend`](Self::spend), and wait
/// until [`next`](Self::next).
#[derive(Clone, Debug)]
pub struct Pacer {
    rate: Rate,
    /// Share of the rate that this pacer has
    share: Share,
    began: Nanos,
    /// What counts as earned before, in fractions of a unit, of which one has [`scale`](Self::scale)
    ahead: u128,
    /// Units spent, including those that were given up because they came too late
    spent: u128,
    /// Longest interruption that the sender makes up for
    catch_up: Nanos,
    forfeited: u64,
}

impl Pacer {
    /// Starts a rate at `began`.
    pub fn new(rate: Rate, began: Nanos, catch_up: Nanos) -> Self {
        Self { rate, share: Share::WHOLE, began, ahead: 0, spent: 0, catch_up, forfeited: 0 }
    }

    /// Starts a share of a rate instead. `packet` is the mean length of a packet in units of the rate.
    pub(crate) fn with_share(self, share: Share, packet: u64) -> Self {
        let mut pacer = Self { share, ..self };
        pacer.ahead = pacer.head_start(packet);
        pacer
    }

    /// Returns the head start of a share, in fractions of a unit: part p of P starts with (P - 1 - p) / P of a packet. So the
    /// shares of one rate send in turns, and the packets of equal shares are due when those of the whole rate are.
    fn head_start(&self, packet: u64) -> u128 {
        let Share { part, parts, .. } = self.share;
        u128::from(packet) * u128::from(parts - 1 - part) * self.scale() / u128::from(parts)
    }

    /// Returns the fractions into which a unit is divided, so that no share of what a nanosecond earns is lost.
    fn scale(&self) -> u128 {
        SECOND * u128::from(self.share.all)
    }

    /// Returns the fractions of units that are earned in `time`, with those from before.
    #[inline]
    fn earned_fractions(&self, time: Nanos) -> u128 {
        let own = u128::from(self.share.own);
        let fractions = match self.rate {
            Rate::Max => return u128::MAX,
            Rate::Steady { per_second, .. } => u128::from(time.0) * (u128::from(per_second) * own),
            Rate::Ramp { .. } => self.rate.area(time) * own,
        };
        fractions + self.ahead
    }

    /// Returns the units that are earned by `time`.
    #[inline]
    fn earned(&self, time: Nanos) -> u128 {
        self.earned_fractions(time) / self.scale()
    }

    /// Returns the units that may be spent now, at most the `left` that remain to be spent at all. Units that
    /// were earned more than `catch_up` ago, and exceed `burst`, are given up.
    #[inline]
    pub fn allowance(&mut self, now: Nanos, burst: u64, left: u64) -> u64 {
        if self.rate == Rate::Max {
            return u64::MAX;
        }
        let time = self.time(now);
        let ready = self.earned(time).saturating_sub(self.spent).min(u128::from(left));
        let rate = u128::from(self.rate.at(time)) * u128::from(self.share.own);
        let most = rate * u128::from(self.catch_up.0) / self.scale();
        let most = most.max(u128::from(burst));
        if ready > most {
            let late = (ready - most).min(u128::from(u64::MAX)) as u64;
            self.spent += u128::from(late);
            self.forfeited = self.forfeited.saturating_add(late);
        }
        ready.min(most) as u64
    }

    /// Spends units that were sent.
    #[inline]
    pub const fn spend(&mut self, units: u64) {
        self.spent += units as u128;
    }

    /// Returns when `burst` more units will have been earned than were spent: exactly for a steady rate, and
    /// slightly early or late on a ramp. [`Nanos::ZERO`] for [`Rate::Max`].
    #[inline]
    pub fn next(&self, now: Nanos, burst: u64) -> Nanos {
        let wanted = self.spent + u128::from(burst);
        let own = u128::from(self.share.own);
        match self.rate {
            Rate::Max => Nanos::ZERO,
            Rate::Steady { per_second, .. } => {
                let missing = (wanted * self.scale()).saturating_sub(self.ahead);
                let time = missing.div_ceil(u128::from(per_second.max(1)) * own);
                self.began + Nanos(time.min(u128::from(u64::MAX)) as u64)
            }
            Rate::Ramp { .. } => {
                let time = self.time(now);
                let missing = wanted.saturating_sub(self.earned(time));
                let wait = missing * self.scale() / (u128::from(self.rate.at(time).max(1)) * own);
                // A ramp that begins at 0 has to be checked again soon: its current rate does not determine
                // when the units are earned.
                let limit = u128::from(Nanos::from_millis(1).0);
                now + Nanos(wait.clamp(u128::from(missing > 0), limit) as u64)
            }
        }
    }

    /// Changes the rate at `now`. Of what came due and was not spent, a whole packet and a part of one continue in
    /// the new rate; the rest is given up. `packet` is the mean length of a packet in units of the rate before, and
    /// of the new one.
    pub fn change(&mut self, rate: Rate, now: Nanos, packet: (u64, u64)) {
        let time = self.time(now);
        let mut owed = 0;
        if self.rate != Rate::Max {
            owed = self.earned(time).saturating_sub(self.spent);
        }
        let mut ahead = self.head_start(packet.1);
        if let Rate::Steady { .. } = self.rate {
            let length = u128::from(packet.0.max(1));
            let late = (owed / length).saturating_sub(1) * length;
            let fraction = self.earned_fractions(time) % self.scale();
            ahead = ((owed - late) * self.scale() + fraction) / length * u128::from(packet.1);
            owed = late;
        }
        self.forfeited = self.forfeited.saturating_add(owed.min(u128::from(u64::MAX)) as u64);
        (self.rate, self.began, self.spent, self.ahead) = (rate, now, 0, ahead);
    }

    /// Returns the time since the rate began.
    pub fn time(&self, now: Nanos) -> Nanos {
        now.since(self.began)
    }

    /// Returns the units that came due and were given up because the rate was not reached.
    pub const fn forfeited(&self) -> u64 {
        self.forfeited
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::MAX_QPS;
    use proptest::prelude::*;

    /// Runs a rate for `time`, reading the clock at the time that `next` returned and up to `late` ns after.
    /// Returns by how many units it was off at the last reading.
    fn run(rate: Rate, time: Nanos, burst: u64, late: &mut dyn FnMut() -> u64) -> u128 {
        let began = Nanos(12_345);
        let mut pace = Pacer::new(rate, began, Nanos::from_millis(10));
        let (mut now, mut sent, mut last) = (began, 0, began);
        while now.since(began) < time {
            let due = pace.allowance(now, burst, u64::MAX) / burst * burst;
            pace.spend(due);
            sent += due;
            last = now;
            let next = pace.next(now, burst);
            assert!(next > now || due == 0, "nothing more can be due now");
            now = next.max(now + Nanos(1)) + Nanos(late());
        }
        assert_eq!(pace.forfeited(), 0);
        rate.earned(last.since(began)).abs_diff(sent.into())
    }

    #[test]
    fn a_steady_rate_has_no_drift() {
        for per_second in [10_000, 333_333, 1_000_003, 14_880_952, 148_809_523] {
            for burst in [1, 32] {
                let time = Nanos::from_millis(50);
                let rate = Rate::Steady { unit: Unit::Packets, per_second };
                let mut turn = 0;
                let error = run(rate, time, burst, &mut || {
                    turn += 1;
                    turn * 7919 % 400
                });
                assert!(error < u128::from(burst), "{per_second} by {burst}: off by {error}");
            }
        }
    }

    #[test]
    fn a_ramp_earns_its_area() {
        let rate = Rate::Ramp { unit: Unit::Packets, from: 0, to: 2_000_000, over: Nanos::from_millis(100) };
        assert_eq!(rate.earned(Nanos::from_millis(100)), 100_000);
        assert_eq!(rate.earned(Nanos::from_millis(50)), 25_000);
        assert_eq!(rate.earned(Nanos::from_millis(200)), 300_000);
        assert_eq!(run(rate, Nanos::from_millis(200), 1, &mut || 0), 0);
        let down = Rate::Ramp { unit: Unit::Packets, from: 2_000_000, to: 1, over: Nanos::from_millis(100) };
        assert_eq!(down.earned(Nanos::from_millis(100)), 100_000);
        assert!(run(down, Nanos::from_millis(100), 32, &mut || 0) < 32);
    }

    #[test]
    fn units_older_than_catch_up_are_given_up_and_counted() {
        let rate = Rate::Steady { unit: Unit::Packets, per_second: 1_000_000 };
        let mut pace = Pacer::new(rate, Nanos::ZERO, Nanos::from_millis(1));
        assert_eq!((pace.allowance(Nanos::from_millis(5), 32, 900), pace.forfeited()), (900, 0));
        assert_eq!(pace.allowance(Nanos::from_millis(5), 32, u64::MAX), 1_000);
        pace.spend(1_000);
        assert_eq!((pace.forfeited(), pace.allowance(Nanos::from_millis(5), 32, u64::MAX)), (4_000, 0));
        assert_eq!(pace.next(Nanos::from_millis(5), 32), Nanos::from_micros(5_032));
    }

    /// A rate that is set again and again, more often than packets come due, sends as if it was never set.
    #[test]
    fn changes_of_the_rate_lose_no_part_of_a_packet() {
        for (unit, per_second, packet) in [(Unit::Packets, 1_000, 1), (Unit::Bits, 12_000_000, 12_000)] {
            let rate = Rate::Steady { unit, per_second };
            let mut pace = Pacer::new(rate, Nanos::ZERO, Nanos::from_millis(10));
            let (mut now, mut sent) = (Nanos::ZERO, 0);
            for _ in 0..10_000 {
                now = now + Nanos(300_007);
                pace.change(rate, now, (packet, packet));
                let due = pace.allowance(now, packet, u64::MAX) / packet;
                pace.spend(due * packet);
                sent += due;
            }
            assert!(now.0 / 1_000_000 - sent <= 1, "{sent}");
            assert_eq!(pace.forfeited(), 0);
        }
    }

    #[test]
    fn a_change_gives_up_whole_packets_and_converts_the_unit() {
        let packets = Rate::Steady { unit: Unit::Packets, per_second: 1_000_000 };
        let bits = Rate::Steady { unit: Unit::Bits, per_second: 1_000_000 };
        let mut pace = Pacer::new(packets, Nanos::ZERO, Nanos::from_millis(10));
        pace.change(bits, Nanos::from_micros(10), (1, 800));
        assert_eq!((pace.forfeited(), pace.allowance(Nanos::from_micros(10), 1, u64::MAX)), (9, 800));
        pace.change(Rate::Max, Nanos::from_micros(10), (800, 1));
        assert_eq!((pace.forfeited(), pace.next(Nanos::from_micros(10), 1)), (9, Nanos::ZERO));
        pace.change(packets, Nanos::from_secs(9), (1, 1));
        assert_eq!((pace.forfeited(), pace.allowance(Nanos::from_secs(9), 32, u64::MAX)), (9, 0));
    }

    proptest! {
        /// Also at the fastest rates, the most queue pairs and after half a year: nothing overflows. (An allowance has 64 bits,
        /// which the fastest rate exceeds after 213 days without a packet.)
        #[test]
        fn shares_add_up_to_the_rate(
            per_second in prop_oneof![1u64..1_000, 1..=Rate::FASTEST, Just(Rate::FASTEST)],
            all in prop_oneof![1u32..100, Just(MAX_QPS)],
            parts in 1u32..=128,
            time in prop_oneof![0u64..1 << 40, 0u64..1 << 54],
            is_ramp: bool,
        ) {
            let parts = parts.min(all);
            let unit = Unit::Packets;
            let rate = if is_ramp {
                Rate::Ramp { unit, from: per_second / 3, to: per_second, over: Rate::LONGEST_RAMP }
            } else {
                Rate::Steady { unit, per_second }
            };
            let mut sum = 0;
            for part in 0..parts {
                let start = |part: u32| (u64::from(part) * u64::from(all)).div_ceil(parts.into()) as u32;
                let share = Share { own: start(part + 1) - start(part), all, part, parts };
                let mut pacer = Pacer::new(rate, Nanos::ZERO, Nanos(u64::MAX)).with_share(share, 1);
                // A ramp gives units up while it is below one packet a second.
                let burst = if is_ramp { u64::MAX } else { 1 };
                let earned = u128::from(pacer.allowance(Nanos(time), burst, u64::MAX));
                sum += earned;
                if !is_ramp && earned > 0 {
                    pacer.spend(earned as u64 - 1);
                    let due = pacer.next(Nanos::ZERO, 1);
                    prop_assert!(due <= Nanos(time) && pacer.earned(due) == earned);
                    prop_assert!(due.0 == 0 || pacer.earned(Nanos(due.0 - 1)) < earned);
                }
            }
            let off = if all.is_multiple_of(parts) { 0 } else { u128::from(parts) - 1 };
            prop_assert!(sum.abs_diff(rate.earned(Nanos(time))) <= off, "{sum}");
        }

        #[test]
        fn a_burst_is_due_exactly_when_it_is_earned(per_second in 1u64..=Rate::FASTEST, spent in 0u64..1 << 40, burst in 1u64..1000) {
            let rate = Rate::Steady { unit: Unit::Bits, per_second };
            let mut pace = Pacer::new(rate, Nanos::ZERO, Nanos::ZERO);
            pace.spend(spent);
            let next = pace.next(Nanos::ZERO, burst);
            let wanted = u128::from(spent) + u128::from(burst);
            prop_assume!(next.0 < u64::MAX);
            prop_assert!(rate.earned(next) >= wanted);
            prop_assert!(rate.earned(Nanos(next.0 - 1)) < wanted);
        }

        #[test]
        fn ramps_never_go_back(from in 0..=Rate::FASTEST, to in 1..=Rate::FASTEST, over in 1u64..=Rate::LONGEST_RAMP.0, t in 0u64..1 << 43) {
            let rate = Rate::Ramp { unit: Unit::Bits, from, to, over: Nanos(over) };
            prop_assert!(rate.earned(Nanos(t)) <= rate.earned(Nanos(t + 1)));
        }
    }
}
