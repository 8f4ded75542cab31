//! Budget of untrusted hosts. A host may have no right to write to a server's memory, and the switch cannot
//! tell whether the server refuses its packets. Such a host may suspend the resolution of operations for a
//! bounded share of the time only.

use switch::Nanos;

/// The window is open for one part of this many of all time, apart from the burst
const SHARE: u64 = 4;
/// Number of windows that may open in a row after a long closed time
const BURST: u64 = 8;

/// Window of time in which packets pass that invalidate cached values.
#[derive(Clone, Copy, Debug, Default)]
struct TimeWindow {
    until: Nanos,
    /// Time by which all open time so far is paid for
    paid: Nanos,
}

impl TimeWindow {
    /// Opens the window for `len` if the budget permits. Returns the time until which it is open.
    fn open(&mut self, len: Nanos, now: Nanos) -> Option<Nanos> {
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
    at_once: TimeWindow,
    later: TimeWindow,
}

impl Guard {
    /// Opens the window for packets that may pass at once.
    pub(super) fn open_at_once(&mut self, len: Nanos, now: Nanos) -> Option<Nanos> {
        self.at_once.open(len, now)
    }

    /// Opens the window for packets that have to wait for resolved operations.
    pub(super) fn open_later(&mut self, len: Nanos, now: Nanos) -> Option<Nanos> {
        self.later.open(len, now)
    }
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
