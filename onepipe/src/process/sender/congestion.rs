//! Congestion window of a receiver: DCTCP (1Pipe, section 6.1; Alizadeh et al., SIGCOMM 2010; RFC 8257).
//!
//! Switches mark packets when their queues grow. Once per round trip, the window shrinks by half the share of
//! marked packets, averaged over rounds: a little if few packets were marked, to a half if all were. A loss
//! halves it, as in TCP.

use rocev2::Psn;

/// Fixed-point unit of [`Dctcp::alpha`]
const ONE: u32 = 1 << 10;
/// Weight of the latest round in the average: g = 1/16
const SHIFT: u32 = 4;

/// Congestion window, in bytes.
#[derive(Clone, Debug)]
pub(in super::super) struct Dctcp {
    window: u32,
    /// Slow-start threshold: below it, the window doubles every round
    threshold: u32,
    /// Average share of marked packets, in units of [`ONE`]
    alpha: u32,
    /// The round ends when this packet has been acknowledged
    round: Psn,
    packets: u32,
    marked: u32,
    /// Whether the window was lowered in this round because of a loss.
    lowered: bool,
    min_window: u32,
    max_window: u32,
}

/// Progress reported by an ACK.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct AckProgress {
    /// All packets before this one have left the network
    pub(in super::super) arrived: Psn,
    /// Next PSN to be sent
    pub(in super::super) next: Psn,
    /// Bytes that have left the network since the last ACK
    pub(in super::super) bytes: u32,
    /// Packets that have arrived since
    pub(in super::super) packets: u32,
    /// Number of these that were marked
    pub(in super::super) marked: u32,
    /// Whether the window kept more packets from being sent
    pub(in super::super) limited: bool,
}

impl Dctcp {
    /// Creates a window of `initial` bytes that stays between `min_window`, a packet, and `max_window`.
    pub(in super::super) fn new(initial: u32, min_window: u32, max_window: u32, first: Psn) -> Self {
        Self {
            window: initial.clamp(min_window, max_window.max(min_window)),
            threshold: u32::MAX,
            // No marks observed yet: the first mark counts as if all packets were marked (RFC 8257, 3.3).
            alpha: ONE,
            round: first,
            packets: 0,
            marked: 0,
            lowered: false,
            min_window,
            max_window: max_window.max(min_window),
        }
    }

    pub(in super::super) const fn window(&self) -> u32 {
        self.window
    }

    fn set(&mut self, window: u32) {
        self.window = window.clamp(self.min_window, self.max_window);
    }

    pub(in super::super) fn on_ack(&mut self, progress: AckProgress) {
        self.packets = self.packets.saturating_add(progress.packets);
        self.marked = self.marked.saturating_add(progress.marked);
        if progress.limited {
            let grown = if self.window < self.threshold {
                progress.bytes
            } else {
                // One packet per round
                (u64::from(self.min_window) * u64::from(progress.bytes) / u64::from(self.window.max(1)))
                    as u32
            };
            self.set(self.window.saturating_add(grown));
        }
        if !self.round.precedes(progress.arrived) || self.packets == 0 {
            return;
        }
        let share = (u64::from(self.marked) * u64::from(ONE) / u64::from(self.packets)) as u32;
        self.alpha = self.alpha - (self.alpha >> SHIFT) + (share.min(ONE) >> SHIFT);
        if self.marked > 0 && !self.lowered {
            let less = u64::from(self.window) * u64::from(self.alpha) / u64::from(2 * ONE);
            self.set(self.window - less as u32);
            self.threshold = self.window;
        }
        (self.round, self.packets, self.marked, self.lowered) = (progress.next, 0, 0, false);
    }

    /// Halves the window after a loss, at most once a round.
    pub(in super::super) fn on_loss(&mut self) {
        if !self.lowered {
            self.set(self.window / 2);
            (self.threshold, self.lowered) = (self.window, true);
        }
    }

    /// Sets the window to a packet after a timeout. Further timeouts without progress keep the slow-start threshold
    /// (RFC 5681, section 3.1): else the window would grow by a packet a round trip from then on.
    pub(in super::super) fn on_timeout(&mut self) {
        if self.window > self.min_window {
            self.threshold = (self.window / 2).max(2 * self.min_window);
        }
        self.set(self.min_window);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Acknowledges rounds of ten packets of 1,000 bytes, `marked` of which are marked.
    fn rounds(dctcp: &mut Dctcp, rounds: u32, marked: u32) {
        for _ in 0..rounds {
            let next = dctcp.round.add(10);
            let arrived = dctcp.round.add(1);
            dctcp.on_ack(AckProgress { arrived, next, bytes: 10_000, packets: 10, marked, limited: true });
        }
    }

    #[test]
    fn few_marks_lower_the_window_a_little_and_losses_by_half() {
        let mut dctcp = Dctcp::new(10_000, 1000, 1_000_000, Psn::new(0xff_fff0));
        rounds(&mut dctcp, 3, 0);
        assert_eq!(dctcp.window(), 40_000, "slow start");
        rounds(&mut dctcp, 1, 1);
        let cut = dctcp.window();
        assert!((25_000..35_000).contains(&cut), "alpha was near 1: {cut}");
        rounds(&mut dctcp, 60, 1);
        let before = dctcp.window();
        rounds(&mut dctcp, 1, 1);
        let after = dctcp.window();
        assert!(after * 100 >= before * 90, "one of ten is marked: a twentieth less, {before} to {after}");
        dctcp.on_loss();
        dctcp.on_loss();
        assert_eq!(dctcp.window(), after / 2, "a loss halves the window once a round");
        dctcp.on_timeout();
        assert_eq!(dctcp.window(), 1000);
        rounds(&mut dctcp, 60_000, 0);
        assert_eq!(dctcp.window(), 1_000_000, "the maximum");
    }

    #[test]
    fn repeated_timeouts_keep_the_slow_start_threshold() {
        let mut dctcp = Dctcp::new(64_000, 1000, 1_000_000, Psn::ZERO);
        for _ in 0..5 {
            dctcp.on_timeout();
        }
        rounds(&mut dctcp, 2, 0);
        assert_eq!(dctcp.window(), 21_000, "10,000 bytes a round are acknowledged");
        rounds(&mut dctcp, 2, 0);
        let before = dctcp.window();
        rounds(&mut dctcp, 1, 0);
        assert!(before > 32_000 && dctcp.window() < before + 1000, "half of the window of the first timeout");
    }

    #[test]
    fn unused_window_does_not_grow() {
        let mut dctcp = Dctcp::new(10_000, 1000, 1_000_000, Psn::ZERO);
        let next = Psn::new(20);
        dctcp.on_ack(AckProgress {
            arrived: Psn::new(1),
            next,
            bytes: 10,
            packets: 1,
            marked: 0,
            limited: false,
        });
        assert_eq!(dctcp.window(), 10_000);
    }
}
