//! Budget of untrusted hosts. A host may have no right to write to a server's memory, and the switch cannot
//! tell whether the server refuses its packets. Such a host may suspend the resolution of operations for a
//! bounded share of the time only.

use switch::Nanos;

/// Reciprocal of the share of time for which the window may be open, apart from the burst
const SHARE: u64 = 4;
/// Number of windows that may open in a row after a long closed time
const BURST: u64 = 8;

/// Window of time in which packets pass that invalidate cached values.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TimeWindow {
    until: Nanos,
    /// Time at which the open time so far is within the budget again
    paid: Nanos,
}

impl TimeWindow {
    /// Opens the window for `len` if the budget permits. Returns the time until which it is open.
    pub(super) fn open(&mut self, len: Nanos, now: Nanos) -> Option<Nanos> {
        if now < self.until {
            return Some(self.until);
        }
        let cost = Nanos(len.0 * SHARE);
        if self.paid > now + Nanos(cost.0 * (BURST - 1)) {
            return None;
        }
        self.paid = self.paid.max(now) + cost;
        self.until = now + len;
        Some(self.until)
    }
}

/// Windows for packets that may pass at once, and for packets that have to wait for resolved operations.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Guard {
    pub(super) at_once: TimeWindow,
    pub(super) later: TimeWindow,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_open_for_a_quarter_of_the_time() {
        let mut window = TimeWindow::default();
        let len = Nanos(1000);
        let open = |window: &mut TimeWindow, times: core::ops::Range<u64>| {
            times.filter(|now| window.open(len, Nanos(*now)).is_some()).count()
        };
        assert_eq!(open(&mut window, 0..8000), 8000);
        // The burst is paid for by then; one share of the time remains.
        let later = open(&mut window, 1_000_000..2_000_000);
        assert!((250_000..260_000).contains(&later), "{later}");
    }
}
