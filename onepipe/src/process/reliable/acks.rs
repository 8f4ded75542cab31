//! Acknowledgements of reliable packets: when they are due, and the windows that they grant (1Pipe, sections
//! 5.1 and 6.1).

use std::collections::VecDeque;
use switch::Nanos;
use switch::timers::Timers;

use super::super::config::Config;

/// Acknowledgement state of one sender.
#[derive(Clone, Debug, Default)]
struct State {
    /// Packets received since the last ACK
    owed: u32,
    is_queued: bool,
    /// Window last granted; none before the first ACK
    window: Option<u32>,
}

/// ACKs to all senders.
#[derive(Clone, Debug)]
pub(super) struct Acks {
    states: Box<[State]>,
    queue: VecDeque<u32>,
    timers: Timers,
    /// Number of packets after which an ACK is due, and its maximum delay
    every: u32,
    delay: Nanos,
}

impl Acks {
    pub(super) fn new(config: &Config) -> Self {
        let count = config.peers.len();
        Self {
            states: vec![State::default(); count].into(),
            queue: VecDeque::new(),
            timers: Timers::new(count),
            every: config.ack_every,
            delay: config.ack_delay,
        }
    }

    /// Forgets what a sender is owed.
    pub(super) fn reset(&mut self, peer: u32) {
        self.states[peer as usize] = State::default();
        self.queue.retain(|&other| other != peer);
        self.timers.remove(peer);
    }

    /// Schedules an ACK after a packet was received.
    #[inline]
    pub(super) fn schedule(&mut self, peer: u32, now: Nanos) {
        let state = &mut self.states[peer as usize];
        state.owed += 1;
        if state.owed >= self.every {
            self.queue(peer);
        } else if state.owed == 1 {
            self.timers.arm(peer, now + self.delay);
        }
    }

    /// Queues an ACK.
    #[inline]
    pub(super) fn queue(&mut self, peer: u32) {
        let state = &mut self.states[peer as usize];
        if !state.is_queued {
            state.is_queued = true;
            self.queue.push_back(peer);
        }
    }

    /// Queues an ACK if the sender waits for a larger window than it has, and `window` is one.
    #[inline]
    pub(super) fn update_window(&mut self, peer: u32, window: u32, is_small: impl Fn(u32) -> bool) {
        let Some(state) = self.states.get(peer as usize) else { return };
        if state.window.is_some_and(&is_small) && !is_small(window) {
            self.queue(peer);
        }
    }

    /// Removes and returns the next sender to which an ACK is to be sent.
    pub(super) fn pop(&mut self) -> Option<u32> {
        let peer = self.queue.pop_front()?;
        let state = &mut self.states[peer as usize];
        (state.is_queued, state.owed) = (false, 0);
        self.timers.remove(peer);
        Some(peer)
    }

    /// Records the window that an ACK grants.
    pub(super) fn granted(&mut self, peer: u32, window: u32) {
        self.states[peer as usize].window = Some(window);
    }

    /// Returns whether an ACK is to be sent.
    #[inline]
    pub(super) fn has_any(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Queues all ACKs that are due.
    pub(super) fn on_timer(&mut self, now: Nanos) {
        while let Some(peer) = self.timers.pop_due(now) {
            self.queue(peer);
        }
    }

    /// Returns the time of the next call of [`on_timer`](Self::on_timer).
    pub(super) fn next_timer(&self) -> Option<Nanos> {
        self.timers.first()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ack_is_due_after_some_packets_or_a_delay() {
        let mut config = super::super::tests::config(0, 3);
        (config.ack_every, config.ack_delay) = (3, Nanos(50));
        let mut acks = Acks::new(&config);
        acks.schedule(1, Nanos(10));
        acks.schedule(1, Nanos(20));
        assert_eq!((acks.pop(), acks.next_timer()), (None, Some(Nanos(60))));
        acks.schedule(1, Nanos(30));
        assert_eq!((acks.pop(), acks.next_timer(), acks.pop()), (Some(1), None, None));
        acks.schedule(0, Nanos(40));
        acks.on_timer(Nanos(90));
        assert_eq!(acks.pop(), Some(0));
        let is_small = |window| window < 100;
        acks.update_window(1, 500, is_small);
        assert!(!acks.has_any(), "no ACK has granted a window yet");
        acks.granted(1, 99);
        acks.update_window(1, 99, is_small);
        assert!(!acks.has_any());
        acks.update_window(1, 100, is_small);
        acks.reset(1);
        assert!(!acks.has_any());
    }
}
