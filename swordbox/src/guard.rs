//! Hosts of which it is not known that they may write to a server's memory at all: what they send may be refused there, and
//! whether it is cannot be told here. So it may keep operations from being decided for a share of the time only.

use crate::detour::Target;
use crate::function::Swordbox;
use crate::{Id, NONE};
use rocev2::Packet;
use switch::Nanos;

/// Of all time, one part in so many is open, but for the first few times
const SHARE: u64 = 4;
/// Times that it is open without having been closed for long
const BURST: u64 = 8;

/// Times at which packets pass that make doubtful what is known.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    until: Nanos,
    /// All that has been open is paid for by then
    paid: Nanos,
}

impl Window {
    /// Opens for so long if it may; until when it is open.
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

/// Two of them: for packets that may pass at once, and for those that have to wait until what was decided is done.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Guard {
    at_once: Window,
    later: Window,
}

impl Swordbox {
    /// Whether a client is one of the server's, by what was seen: requests of its connection have been answered, or its host
    /// has used a right on another.
    pub(crate) fn is_trusted(&self, id: Id, from: u128) -> bool {
        self.ends.get(id as usize).is_some_and(|end| end.peer != NONE && end.from == from)
            || self.sources.has_proven(from)
    }

    /// Whether a packet may pass that makes doubtful what is known of the memory that it writes to, of a client that is not trusted.
    pub(crate) fn may_disturb(&mut self, id: Id, server: u8, packet: &Packet<'_>, now: Nanos) -> bool {
        match self.target_of(id, packet) {
            Target::Nothing => true,
            Target::Range(va, len) => self.may_disturb_range(server, va, len, now),
            Target::Anywhere => self.may_disturb_range(server, 0, u64::MAX, now),
        }
    }

    /// The same for a range.
    pub(crate) fn may_disturb_range(&mut self, server: u8, va: u64, len: u64, now: Nanos) -> bool {
        if !self.lines.has_any(server, va, len) {
            return true;
        }
        let (settle, dead_after) = (self.config.settle, self.config.dead_after);
        let Some(guard) = self.guards.get_mut(usize::from(server)) else { return true };
        if !self.lines.is_decided(server, va, len) {
            // What is learnt later is kept from being learnt for as long again.
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
    fn it_is_open_for_a_share_of_the_time() {
        let mut window = Window::default();
        let len = Nanos(1000);
        let open = |window: &mut Window, times: core::ops::Range<u64>| {
            times.filter(|now| window.open(len, Nanos(*now)).is_some()).count()
        };
        assert_eq!(open(&mut window, 0..8000), 8000);
        // It has been paid for by then but for what goes on.
        let later = open(&mut window, 1_000_000..2_000_000);
        assert!((250_000..260_000).contains(&later), "{later}");
    }
}
