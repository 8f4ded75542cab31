//! CPU of a measured host, which takes some time for each frame in either direction.

use std::collections::VecDeque;
use switch::Nanos;
use switch::memory::MemoryFrame;

/// CPU with the frames that wait for it.
#[derive(Debug)]
pub(super) struct Cpu {
    per_frame: Nanos,
    /// When it is free, if no frame waits
    busy_until: Nanos,
    /// Frames that have arrived, each with its time
    waiting: VecDeque<(Nanos, MemoryFrame)>,
    /// Whether a frame may be sent although some wait: it receives and sends in turns
    sends_next: bool,
    /// Whether a frame to be sent was refused
    is_wanted: bool,
}

impl Cpu {
    /// Returns a CPU that takes this time for a frame.
    pub(super) const fn new(per_frame: Nanos) -> Self {
        Self {
            per_frame,
            busy_until: Nanos::ZERO,
            waiting: VecDeque::new(),
            sends_next: false,
            is_wanted: false,
        }
    }

    /// Takes a frame that has arrived. Returns it if it is to be handled at once.
    pub(super) fn arrive(&mut self, frame: MemoryFrame, now: Nanos) -> Option<MemoryFrame> {
        if self.per_frame == Nanos::ZERO {
            return Some(frame);
        }
        self.waiting.push_back((now, frame));
        None
    }

    /// Returns when the next frame has been received.
    fn received_at(&self) -> Option<Nanos> {
        self.waiting.front().map(|(arrived, _)| self.busy_until.max(*arrived) + self.per_frame)
    }

    /// Returns the next frame that has been received by now.
    pub(super) fn poll(&mut self, now: Nanos) -> Option<MemoryFrame> {
        self.is_wanted &= self.busy_until > now;
        let at = self.received_at().filter(|&at| at <= now)?;
        (self.busy_until, self.sends_next) = (at, true);
        self.waiting.pop_front().map(|(_, frame)| frame)
    }

    /// Returns whether a frame may be sent now.
    pub(super) fn may_send(&mut self, now: Nanos) -> bool {
        let may = self.busy_until <= now && (self.waiting.is_empty() || self.sends_next);
        self.is_wanted = !may && self.waiting.is_empty();
        may
    }

    /// Takes the time of a frame that was sent.
    pub(super) fn sent(&mut self, now: Nanos) {
        self.busy_until = self.busy_until.max(now) + self.per_frame;
        self.sends_next = false;
    }

    /// Returns when [`poll`](Self::poll) or [`may_send`](Self::may_send) is due.
    pub(super) fn next_timer(&self) -> Option<Nanos> {
        self.received_at().or(self.is_wanted.then_some(self.busy_until))
    }

    /// Drops all frames that wait.
    pub(super) fn clear(&mut self) {
        self.waiting.clear();
        self.is_wanted = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use switch::Frame as _;

    fn frame(n: u8) -> MemoryFrame {
        MemoryFrame::new(vec![n])
    }

    #[test]
    fn frames_are_received_one_after_the_other_and_sent_in_between() {
        let mut cpu = Cpu::new(Nanos(200));
        assert!(cpu.may_send(Nanos(0)));
        for n in 0..2 {
            assert!(cpu.arrive(frame(n), Nanos(1000)).is_none());
        }
        assert_eq!(cpu.next_timer(), Some(Nanos(1200)));
        assert!(cpu.poll(Nanos(1199)).is_none() && !cpu.may_send(Nanos(1199)));
        assert_eq!(cpu.poll(Nanos(1200)).unwrap().bytes(), [0]);
        assert!(cpu.may_send(Nanos(1200)));
        cpu.sent(Nanos(1200));
        assert!(!cpu.may_send(Nanos(1400)), "a frame waits, and it is its turn");
        assert_eq!(cpu.next_timer(), Some(Nanos(1600)));
        assert_eq!(cpu.poll(Nanos(1600)).unwrap().bytes(), [1]);
        cpu.sent(Nanos(1600));
        assert!(!cpu.may_send(Nanos(1700)));
        assert_eq!(cpu.next_timer(), Some(Nanos(1800)), "something waits to be sent");
    }

    #[test]
    fn a_cpu_that_takes_no_time_delays_nothing() {
        let mut cpu = Cpu::new(Nanos::ZERO);
        assert_eq!(cpu.arrive(frame(3), Nanos(5)).unwrap().bytes(), [3]);
        cpu.sent(Nanos(5));
        assert!(cpu.may_send(Nanos(5)) && cpu.next_timer().is_none());
    }
}
