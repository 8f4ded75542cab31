//! Acknowledgements: when ACKs and NAKs are due, and the windows that ACKs advertise (1Pipe, section 6.1).

use crate::header::{AckBody, NakBody, OnePipe, OnePipeOpcode, Timestamp};
use rocev2::Psn;
use std::collections::VecDeque;
use std::sync::Arc;
use switch::Nanos;
use zerocopy::IntoBytes;

use super::super::clock::Clock;
use super::super::config::{Config, MAX_ANSWERS};
use super::super::counters::Counters;
use super::super::peers::Peers;
use super::inbound::{AckContents, Inbound};
use super::room::Room;
use switch::timers::Timers;

/// Number of unacknowledged packets after which the contents of an ACK are saved, before its history is too
/// short for them
const SAVE_ACK_AFTER: u32 = AckBody::HISTORY - 32;

/// Acknowledgement state of one sender.
#[derive(Clone, Debug)]
struct AckState {
    /// Packets received since the last ACK
    unacknowledged: u32,
    /// Whether the timer for an ACK is set, because packets were received since the last one
    is_scheduled: bool,
    /// Whether the sender is in the queue for ACKs
    is_queued: bool,
    /// Window last advertised to the sender
    window: u32,
    /// Whether the free part of the buffer for all senders limited that window, so that an update is due when
    /// there is more room
    is_limited: bool,
}

/// ACKs and NAKs to all senders.
#[derive(Clone, Debug)]
pub(super) struct Acks {
    /// State of each sender, by index
    states: Box<[AckState]>,
    /// Senders that are owed an ACK
    queue: VecDeque<u32>,
    /// Number of senders that wait for a window update, because their advertised windows are small
    waiting: u32,
    /// Senders whose advertised windows are small because of the bytes buffered for other senders
    limited: Vec<u32>,
    /// ACKs with contents that a later ACK could no longer report
    saved: VecDeque<(u32, AckContents)>,
    naks: VecDeque<(u32, Psn, u8)>,
    /// Times at which ACKs are due
    timers: Timers,
    /// Number of packets after which an ACK is due, and its maximum delay
    every: u32,
    delay: Nanos,
    /// Incarnation number of this process, in each ACK
    incarnation: u8,
    counters: Arc<Counters>,
}

impl Acks {
    pub(super) fn new(config: &Config, incarnation: u8, counters: Arc<Counters>) -> Self {
        let count = config.peers.len();
        let state = AckState {
            unacknowledged: 0,
            is_scheduled: false,
            is_queued: false,
            window: u32::MAX,
            is_limited: false,
        };
        Self {
            states: vec![state; count].into(),
            queue: VecDeque::new(),
            waiting: 0,
            limited: Vec::new(),
            saved: VecDeque::new(),
            naks: VecDeque::new(),
            timers: Timers::new(count),
            every: config.ack_every,
            delay: config.ack_delay,
            incarnation,
            counters,
        }
    }

    /// Schedules an ACK after a packet of a sender was received.
    #[inline]
    pub(super) fn schedule(&mut self, peer: u32, inbound: &Inbound, now: Nanos) {
        let Some(state) = self.states.get_mut(peer as usize) else { return };
        state.unacknowledged += 1;
        if state.unacknowledged >= SAVE_ACK_AFTER && self.saved.len() < MAX_ANSWERS {
            // No ACK could be sent for long, because the port was busy or was not polled: a later ACK's
            // history would not reach back to these packets.
            state.unacknowledged = 0;
            self.saved.push_back((peer, inbound.ack_contents()));
        } else if state.unacknowledged >= self.every {
            self.queue(peer);
        } else if !state.is_scheduled {
            state.is_scheduled = true;
            self.timers.arm(peer, now + self.delay);
        }
    }

    /// Queues an ACK for a sender.
    pub(super) fn queue(&mut self, peer: u32) {
        let Some(state) = self.states.get_mut(peer as usize) else { return };
        if !state.is_queued {
            state.is_queued = true;
            self.queue.push_back(peer);
        }
    }

    /// Queues a NAK for a packet of a sender.
    pub(super) fn queue_nak(&mut self, peer: u32, psn: Psn, reason: u8) {
        if self.naks.len() < MAX_ANSWERS {
            self.naks.push_back((peer, psn, reason));
        } else {
            self.counters.naks_lost.add(1);
        }
    }

    /// Queues a window update for a sender, if it waits for one and half of its window is free. `held` bytes
    /// are buffered for it.
    #[inline]
    pub(super) fn update_window(&mut self, peer: u32, held: usize, room: &Room) {
        if self.waiting > 0 {
            self.update_small_window(peer, held, room);
        }
    }

    #[inline(never)]
    fn update_small_window(&mut self, peer: u32, held: usize, room: &Room) {
        let Some(state) = self.states.get_mut(peer as usize) else { return };
        if room.is_small(state.window) && room.left_of_window(held) >= room.window() / 2 {
            state.window = u32::MAX;
            self.waiting -= 1;
            self.queue(peer);
        }
    }

    /// Queues window updates for senders whose windows were limited by the bytes buffered for other senders,
    /// once there is room again.
    #[inline]
    pub(super) fn update_limited_windows(&mut self, room: &Room) {
        if !self.limited.is_empty() && room.left_of_buffer() >= room.max_window() / 2 {
            self.queue_limited();
        }
    }

    #[cold]
    fn queue_limited(&mut self) {
        for peer in core::mem::take(&mut self.limited) {
            self.states[peer as usize].is_limited = false;
            self.queue(peer);
        }
    }

    /// Queues all ACKs that are due.
    pub(super) fn on_timer(&mut self, now: Nanos) {
        while let Some(peer) = self.timers.pop_due(now) {
            self.queue(peer);
        }
    }

    /// Returns the time of the next call of [`on_timer`](Self::on_timer).
    #[inline]
    pub(super) fn next_timer(&self) -> Option<Nanos> {
        self.timers.first()
    }

    /// Returns whether an ACK or NAK is to be sent.
    #[inline]
    pub(super) fn has_any(&self) -> bool {
        !(self.naks.is_empty() && self.saved.is_empty() && self.queue.is_empty())
    }

    /// Writes the next NAK. Returns false if there is none.
    pub(super) fn send_nak(
        &mut self,
        clock: &Clock,
        peers: &mut Peers,
        now: Nanos,
        frame: &mut Vec<u8>,
    ) -> bool {
        let Some((peer, psn, reason)) = self.naks.pop_front() else { return false };
        let header = ack_or_nak_header(OnePipeOpcode::NAK, Timestamp::new(clock.read(now)), psn);
        peers.route(peer).emit(frame, &header, NakBody::new(reason).as_bytes());
        self.counters.naks_sent.add(1);
        true
    }

    /// Writes the next ACK. Returns false if there is none.
    pub(super) fn send_ack(
        &mut self,
        senders: &[Option<Box<Inbound>>],
        room: &Room,
        peers: &mut Peers,
        frame: &mut Vec<u8>,
    ) -> bool {
        let Some((peer, contents)) = self.saved.pop_front().or_else(|| self.next_ack(senders)) else {
            return false;
        };
        let (Some(Some(inbound)), Some(state)) =
            (senders.get(peer as usize), self.states.get_mut(peer as usize))
        else {
            return false;
        };
        let of_sender = room.left_of_window(inbound.held());
        let of_all = room.left_of_buffer();
        let window = of_sender.min(of_all) as u32;
        self.waiting -= u32::from(room.is_small(state.window));
        self.waiting += u32::from(room.is_small(window));
        state.window = window;
        if of_all < of_sender && of_all < room.max_window() / 4 && !state.is_limited {
            state.is_limited = true;
            self.limited.push(peer);
        }
        let (latest, highest, mut arrivals) = contents;
        arrivals.window = window.into();
        arrivals.incarnation = self.incarnation;
        let header = ack_or_nak_header(OnePipeOpcode::ACK, Timestamp::new(latest), highest);
        peers.route(peer).emit(frame, &header, arrivals.as_bytes());
        self.counters.acks_sent.add(1);
        true
    }

    /// Removes and returns the next ACK of the queue.
    fn next_ack(&mut self, senders: &[Option<Box<Inbound>>]) -> Option<(u32, AckContents)> {
        let peer = self.queue.pop_front()?;
        let state = self.states.get_mut(peer as usize)?;
        (state.is_queued, state.unacknowledged, state.is_scheduled) = (false, 0, false);
        self.timers.remove(peer);
        Some((peer, senders.get(peer as usize)?.as_ref()?.ack_contents()))
    }
}

/// Returns a header without barriers, which switches leave unchanged.
fn ack_or_nak_header(opcode: OnePipeOpcode, time: Timestamp, psn: Psn) -> OnePipe {
    let mut header = OnePipe::new(opcode, time, psn);
    header.set_barrier(None);
    header
}
