//! Budget of untrusted hosts. A host may have no right to write to a server's memory, and the switch cannot
//! tell whether the server refuses its packets. Such a host may suspend the resolution of operations for a
//! bounded share of the time only.

use crate::detour::Target;
use crate::function::Swordbox;
use crate::{Id, NONE};
use rocev2::Packet;
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
pub(crate) struct Guard {
    at_once: TimeWindow,
    later: TimeWindow,
}

impl Swordbox {
    /// Returns whether a client is trusted: requests of its connection were answered, or its host has used a
    /// right on another connection.
    pub(crate) fn is_trusted(&self, id: Id, from: u128) -> bool {
        self.endpoints.get(id as usize).is_some_and(|end| end.peer != NONE && end.from == from)
            || self.sources.has_proven(from)
    }

    /// Returns whether a packet of an untrusted client may pass that invalidates the memory that it may write
    /// to.
    pub(crate) fn may_invalidate(&mut self, id: Id, server: u8, packet: &Packet<'_>, now: Nanos) -> bool {
        match self.target_of(id, packet) {
            Target::Nothing => true,
            Target::Range(va, len) => self.may_invalidate_range(server, va, len, now),
            Target::Anywhere => self.may_invalidate_range(server, 0, u64::MAX, now),
        }
    }

    /// Returns whether a packet of an untrusted client may pass that invalidates a range.
    pub(crate) fn may_invalidate_range(&mut self, server: u8, va: u64, len: u64, now: Nanos) -> bool {
        if !self.lines.has_any(server, va, len) {
            return true;
        }
        let (settle, dead_after) = (self.config.settle, self.config.dead_after);
        let Some(guard) = self.guards.get_mut(usize::from(server)) else { return true };
        if !self.lines.has_resolved(server, va, len) {
            // The detour keeps the words from being learnt for `settle` once more.
            return guard.at_once.open(settle, now).is_some();
        }
        let Some(until) = guard.later.open(dead_after, now) else { return false };
        self.lines.detour(server, va, len, now, Nanos(until.0 - now.0)).is_ok()
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
