//! DCQCN: the receiver of a packet that a congested switch marked sends a CNP (IB A17.9) to its sender, and
//! the sender reduces its rate (Zhu et al., "Congestion Control for Large-Scale RDMA Deployments", SIGCOMM
//! 2015, section 5 and figure 7).
//!
//! All arithmetic is in integers, so that a run repeats to the byte. Timers advance only when a packet is
//! sent: a queue pair with nothing to send needs no rate, and catches up on its timers when it sends again.

use switch::Nanos;

/// Parameters of DCQCN, named as in the paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dcqcn {
    /// Link rate, at which a queue pair starts, in bit/s
    pub line_rate_bps: u64,
    /// Lowest rate, in bit/s
    pub min_rate_bps: u64,
    /// Minimum interval between two CNPs of a queue pair at the notification point (N)
    pub cnp_interval: Nanos,
    /// Interval after which `alpha` decays if no CNP arrives (K)
    pub alpha_timer: Nanos,
    /// Binary logarithm of 1/g, where g is the weight of a CNP in `alpha`
    pub g_shift: u32,
    /// Interval between two rate increases by the timer (T)
    pub increase_timer: Nanos,
    /// Bytes between two rate increases by the byte counter (B)
    pub increase_bytes: u64,
    /// Rate increases in the fast recovery phase (F)
    pub fast_recovery: u32,
    /// Additive increase, in bit/s
    pub additive_bps: u64,
    /// Hyper increase, in bit/s
    pub hyper_bps: u64,
}

impl Dcqcn {
    /// Returns the paper's parameters for a link of this rate.
    pub const fn paper_defaults(line_rate_bps: u64) -> Self {
        Self {
            line_rate_bps,
            min_rate_bps: 10_000_000,
            cnp_interval: Nanos::from_micros(50),
            alpha_timer: Nanos::from_micros(55),
            g_shift: 8,
            increase_timer: Nanos::from_micros(55),
            increase_bytes: 10_000_000,
            fast_recovery: 5,
            additive_bps: 40_000_000,
            hyper_bps: 400_000_000,
        }
    }
}

/// Fixed-point representation of `alpha` = 1.
const ONE: u64 = 1 << 20;

/// Reaction point state of one queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rate {
    current: u64,
    target: u64,
    alpha: u64,
    alpha_at: Nanos,
    increase_at: Nanos,
    bytes: u64,
    timer_rounds: u32,
    byte_rounds: u32,
}

/// Send rate of one queue pair: unlimited until a CNP arrives.
#[derive(Debug, Default)]
pub(crate) struct Pacer {
    rate: Option<Box<Rate>>,
    next: Nanos,
    /// Whether a packet is ready and has to wait until `next`
    waiting: bool,
}

impl Pacer {
    /// Returns when a packet that was held back may leave.
    pub(crate) fn wake_at(&self) -> Option<Nanos> {
        self.waiting.then_some(self.next)
    }

    /// Ends the wait if its time has come.
    pub(crate) fn on_wake(&mut self, now: Nanos) {
        self.waiting &= now < self.next;
    }

    /// Returns whether a packet may leave now. If not, [`wake_at`](Self::wake_at) returns when.
    pub(crate) fn may_send(&mut self, now: Nanos) -> bool {
        self.waiting = self.rate.is_some() && now < self.next;
        !self.waiting
    }

    /// Returns the current rate in bit/s, if it is limited.
    pub(crate) fn bps(&self) -> Option<u64> {
        self.rate.as_ref().map(|rate| rate.current)
    }

    /// Accounts for a packet of `bytes` bytes that left.
    pub(crate) fn on_sent(&mut self, bytes: usize, now: Nanos, dcqcn: &Dcqcn) {
        let Some(rate) = &mut self.rate else { return };
        rate.advance(now, bytes as u64, dcqcn);
        if rate.current >= dcqcn.line_rate_bps {
            self.rate = None;
            return;
        }
        let span = bytes as u64 * 8 * 1_000_000_000 / rate.current.max(1);
        self.next = self.next.max(now) + Nanos(span);
    }

    /// Reduces the rate because a CNP arrived.
    pub(crate) fn on_cnp(&mut self, now: Nanos, dcqcn: &Dcqcn) {
        let rate = self.rate.get_or_insert_with(|| {
            let line = dcqcn.line_rate_bps;
            Box::new(Rate {
                current: line,
                target: line,
                alpha: ONE,
                alpha_at: now,
                increase_at: now,
                bytes: 0,
                timer_rounds: 0,
                byte_rounds: 0,
            })
        });
        rate.advance(now, 0, dcqcn);
        rate.target = rate.current;
        rate.current = (rate.current - rate.current * rate.alpha / (2 * ONE)).max(dcqcn.min_rate_bps);
        rate.alpha = rate.alpha - (rate.alpha >> dcqcn.g_shift) + (ONE >> dcqcn.g_shift);
        rate.alpha = rate.alpha.min(ONE);
        (rate.alpha_at, rate.increase_at) = (now, now);
        (rate.bytes, rate.timer_rounds, rate.byte_rounds) = (0, 0, 0);
    }
}

impl Rate {
    /// Applies the timers that have expired, and counts bytes.
    fn advance(&mut self, now: Nanos, bytes: u64, dcqcn: &Dcqcn) {
        let step = dcqcn.alpha_timer.0.max(1);
        // After 10,000 steps alpha is practically zero; the bound keeps a long idle period cheap.
        let mut left = (now.since(self.alpha_at).0 / step).min(10_000);
        self.alpha_at = self.alpha_at + Nanos(now.since(self.alpha_at).0 / step * step);
        while left > 0 && self.alpha > 0 {
            self.alpha -= (self.alpha >> dcqcn.g_shift).max(1);
            left -= 1;
        }
        let step = dcqcn.increase_timer.0.max(1);
        while now.since(self.increase_at).0 >= step && self.current < dcqcn.line_rate_bps {
            self.increase_at = self.increase_at + Nanos(step);
            self.timer_rounds += 1;
            self.increase(dcqcn);
        }
        self.bytes += bytes;
        if self.bytes >= dcqcn.increase_bytes {
            self.bytes = 0;
            self.byte_rounds += 1;
            self.increase(dcqcn);
        }
    }

    fn increase(&mut self, dcqcn: &Dcqcn) {
        let (low, high) = (self.timer_rounds.min(self.byte_rounds), self.timer_rounds.max(self.byte_rounds));
        if low > dcqcn.fast_recovery {
            self.target += dcqcn.hyper_bps;
        } else if high > dcqcn.fast_recovery {
            self.target += dcqcn.additive_bps;
        }
        self.target = self.target.min(dcqcn.line_rate_bps);
        // Rounds up, so that the line rate is reached.
        self.current = (self.current + self.target).div_ceil(2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cnp_halves_the_rate_and_time_restores_it() {
        let dcqcn = Dcqcn::paper_defaults(100_000_000_000);
        let mut pacer = Pacer::default();
        assert!(pacer.may_send(Nanos::ZERO) && pacer.bps().is_none());
        pacer.on_cnp(Nanos::ZERO, &dcqcn);
        assert_eq!(pacer.bps(), Some(50_000_000_000), "alpha starts at 1");
        pacer.on_sent(1250, Nanos::ZERO, &dcqcn);
        assert!(!pacer.may_send(Nanos(199)), "1,250 bytes take 200 ns at 50 Gbit/s");
        assert_eq!(pacer.wake_at(), Some(Nanos(200)));
        assert!(pacer.may_send(Nanos(200)) && pacer.wake_at().is_none());
        // Fast recovery: each step adds half of the difference to the target.
        pacer.on_sent(0, Nanos::from_micros(55), &dcqcn);
        assert_eq!(pacer.bps(), Some(75_000_000_000));
        let mut now = Nanos::from_micros(56);
        while pacer.bps().is_some() {
            now = now + Nanos::from_micros(10);
            pacer.on_sent(0, now, &dcqcn);
            assert!(now < Nanos::from_millis(10), "the line rate is reached within 10 ms");
        }
    }

    /// Returns the rate gained in ten rounds, by the byte counter alone or by both counters, from a target
    /// that many cuts have lowered.
    fn gains(dcqcn: &Dcqcn, round: Nanos) -> u64 {
        let (mut pacer, mut now) = (Pacer::default(), Nanos::ZERO);
        for _ in 0..20 {
            pacer.on_cnp(now, dcqcn);
        }
        let mut rounds = |pacer: &mut Pacer, count| {
            for _ in 0..count {
                now = now + round;
                pacer.on_sent(dcqcn.increase_bytes as usize, now, dcqcn);
            }
            pacer.bps().unwrap()
        };
        // Fast recovery is over, and the remaining gain of its last halvings is less than one additive step.
        let before = rounds(&mut pacer, 40);
        rounds(&mut pacer, 10) - before
    }

    #[test]
    fn rate_grows_faster_when_both_counters_passed_fast_recovery() {
        let dcqcn = Dcqcn::paper_defaults(1_000_000_000_000);
        assert!(dcqcn.hyper_bps > 2 * dcqcn.additive_bps);
        let [additive, hyper] = [Nanos::ZERO, dcqcn.increase_timer].map(|round| gains(&dcqcn, round));
        assert!(additive.abs_diff(10 * dcqcn.additive_bps) < dcqcn.additive_bps, "{additive}");
        assert!(hyper.abs_diff(20 * dcqcn.hyper_bps) < dcqcn.hyper_bps, "{hyper}");
    }

    #[test]
    fn a_paced_packet_waits_until_its_send_time() {
        let dcqcn = Dcqcn::paper_defaults(100_000_000_000);
        let mut pacer = Pacer::default();
        pacer.on_cnp(Nanos::ZERO, &dcqcn);
        pacer.on_sent(1250, Nanos::ZERO, &dcqcn);
        assert!(!pacer.may_send(Nanos::ZERO));
        pacer.on_wake(Nanos(199));
        assert_eq!(pacer.wake_at(), Some(Nanos(200)));
        pacer.on_wake(Nanos(200));
        assert_eq!(pacer.wake_at(), None);
    }

    /// Alpha becomes `(1 - g) alpha` after each alpha timer without a CNP, and `(1 - g) alpha + g` after a
    /// CNP, which reduces the rate by half of alpha (the paper's equations 1 and 2).
    #[test]
    fn a_cnp_after_a_pause_cuts_less() {
        let never = Nanos::from_secs(1000);
        let dcqcn = Dcqcn { increase_timer: never, ..Dcqcn::paper_defaults(100_000_000_000) };
        let (mut pacer, mut alpha, mut rate) = (Pacer::default(), 1.0, 100e9);
        let g = 1.0 / f64::from(1 << dcqcn.g_shift);
        let mut half_timers = 0;
        // Half alpha timers between CNPs, at which packets leave: a timer that has not expired at one packet
        // has at the next.
        for pauses in [&[][..], &[], &[1, 100, 200, 211], &[], &[1, 1], &[300]] {
            let began = half_timers;
            for pause in pauses {
                half_timers += pause;
                pacer.on_sent(0, Nanos(dcqcn.alpha_timer.0 * half_timers / 2), &dcqcn);
            }
            for _ in 0..(half_timers - began) / 2 {
                alpha *= 1.0 - g;
            }
            pacer.on_cnp(Nanos(dcqcn.alpha_timer.0 * half_timers / 2), &dcqcn);
            rate *= 1.0 - alpha / 2.0;
            alpha = (1.0 - g) * alpha + g;
            let measured = pacer.bps().unwrap() as f64;
            assert!((measured / rate - 1.0).abs() < 0.001, "{measured} bit/s instead of {rate}, {pauses:?}");
        }
    }

    #[test]
    fn the_target_rises_after_the_increases_of_fast_recovery() {
        let dcqcn = Dcqcn::paper_defaults(100_000_000_000);
        let (mut pacer, mut now) = (Pacer::default(), Nanos::ZERO);
        // The second CNP sets the target to half the line rate.
        pacer.on_cnp(now, &dcqcn);
        pacer.on_cnp(now, &dcqcn);
        let target = |pacer: &Pacer| pacer.rate.as_ref().unwrap().target;
        let half = target(&pacer);
        for _ in 0..dcqcn.fast_recovery {
            now = now + dcqcn.increase_timer;
            pacer.on_sent(dcqcn.increase_bytes as usize, now, &dcqcn);
            assert_eq!(target(&pacer), half);
        }
        pacer.on_sent(0, now + dcqcn.increase_timer, &dcqcn);
        assert_eq!(target(&pacer), half + dcqcn.additive_bps, "the timer alone has passed fast recovery");
        pacer.on_sent(dcqcn.increase_bytes as usize, now + dcqcn.increase_timer, &dcqcn);
        assert_eq!(
            target(&pacer),
            half + dcqcn.additive_bps + dcqcn.hyper_bps,
            "the timer and the byte counter have passed it"
        );
    }

    #[test]
    fn many_cnps_reduce_the_rate_to_the_minimum() {
        let dcqcn = Dcqcn::paper_defaults(10_000_000_000);
        let mut pacer = Pacer::default();
        for n in 0..100 {
            pacer.on_cnp(Nanos::from_micros(50 * n), &dcqcn);
        }
        assert_eq!(pacer.bps(), Some(dcqcn.min_rate_bps));
    }
}
