//! Process: an endpoint of 1Pipe's best-effort service, as a library without I/O (1Pipe, sections 2.1, 4.1
//! and 6.1).
//!
//! Each scattering is sent with one timestamp, and every receiver delivers messages in the order of timestamp
//! and sender. Each message is delivered at most once, below the barrier; otherwise its sender is notified
//! that it failed.
//!
//! # How to use it
//!
//! The owner of a [`Process`]
//!
//! * passes it every frame received ([`Process::on_frame`]),
//! * polls it for frames whenever the port has room ([`Process::poll_transmit`]), and sends them through
//!   **one queue, in that order**: a beacon promises that everything behind it is later, so no frame may
//!   overtake another,
//! * calls [`Process::on_timer`] at [`Process::next_timer`],
//! * and uses the interface of the paper's Table 1: [`timestamp`](Process::timestamp),
//!   [`unreliable_send`](Process::unreliable_send), [`unreliable_recv`](Process::unreliable_recv), and
//!   [`poll_event`](Process::poll_event) in place of the callback.
//!
//! All times are [`switch::Nanos`] of one clock that does not go back, the runner's clock. 1Pipe's clock is
//! another one, which may be [set](Process::set_clock), and which stands still where it was set back. The
//! same calls produce the same frames, byte for byte.
//!
//! # When a scattering gets its timestamp
//!
//! As late as possible: when all packets but the last one for each receiver have been sent, and all windows
//! have room for those. The last packets leave back to back, with one timestamp, the current time. The
//! packets before them are marked "timestamp follows". So the timestamps and barriers of the packets sent
//! never go back, and the link's barrier is held back only while one packet per receiver is sent, however
//! large the messages are: large messages are sent as fast as the windows allow, between small ones, and
//! delay no other message. (A message stamped when it starts would hold back every receiver's barrier until
//! its last packet has been sent: section 7.2 has 80 us for 1 MB.)

mod beacon;
mod clock;
mod config;
mod congestion;
mod counters;
mod inbound;
mod outbound;
mod receive;
mod reorder;
mod scattering;
mod send;

#[cfg(test)]
mod tests;

pub use config::{BeaconPeer, Config, ConfigError, MAX_MESSAGE, PACKET_COST, Peer};
pub use counters::{Counters, Refusal};

use clock::Clock;
use core::fmt;
use core::net::IpAddr;
use inbound::{AckContents, Inbound, Outcome};
use outbound::Outbound;
use reorder::Reorder;
use rocev2::Psn;
use rocev2::Qpn;
use rocev2::datagram::{Expected, Template};
use rocev2::ethernet::MacAddr;
use rocev2::onepipe::Timestamp;
use rocev2::route::{Route, RouteFields};
use scattering::Scatterings;
use std::collections::VecDeque;
use std::sync::Arc;
use switch::heap::Heap;
use switch::table::{Index, Key, Salt, mix};
use switch::{Nanos, Rng};

/// Number of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ProcessId(pub u32);

impl fmt::Display for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Number of a scattering that was passed to this process; numbers start from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Scattering(pub u64);

/// Message that is delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Position in the total order, together with the sender
    pub timestamp: Timestamp,
    /// Sender of the message
    pub src: ProcessId,
    /// Payload
    pub payload: Vec<u8>,
}

/// Event for the application, other than a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A message is not known to have arrived (1Pipe, Table 1, `onepipe_send_fail_callback`). It was not
    /// delivered if [`why`](Failure) is [`Lost`](Failure::Lost), [`Late`](Failure::Late) or
    /// [`NoRoom`](Failure::NoRoom); otherwise it may have been. No other event about the message follows but
    /// the scattering's [`Settled`](Self::Settled).
    SendFailed {
        /// Scattering of the message
        scattering: Scattering,
        /// Timestamp of the scattering, if it has been stamped
        timestamp: Option<Timestamp>,
        /// Receiver of the message
        dst: ProcessId,
        /// Index of the message in the call
        part: u32,
        /// Reason
        why: Failure,
    },
    /// For every message of a scattering, it is known whether it has arrived in time.
    Settled {
        /// The scattering
        scattering: Scattering,
        /// Timestamp of the scattering, if it has been stamped
        timestamp: Option<Timestamp>,
        /// Number of its messages that have failed
        failed: u32,
    },
}

/// Reason why a message failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Failure {
    /// The message, or a part of it, was lost in the network.
    #[error("lost in the network")]
    Lost,
    /// The message arrived when later ones might have been delivered already.
    #[error("arrived too late")]
    Late,
    /// The receiver had no room for the message.
    #[error("no room at the receiver")]
    NoRoom,
    /// The message was not acknowledged in time. If only the ACK was lost, it was delivered.
    #[error("not acknowledged in time")]
    NotAcknowledged,
    /// The receiver is known to have failed.
    #[error("the receiver has failed")]
    Dead,
    /// This process left before the message was acknowledged.
    #[error("this process has left")]
    Left,
}

/// Reason why a scattering was refused. Nothing of it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The scattering has no messages.
    #[error("the scattering has no messages; pass at least one")]
    Empty,
    /// A receiver is not in the table of peers.
    #[error("process {0} is unknown; add it to the table of peers")]
    Unknown(ProcessId),
    /// A receiver is known to have failed.
    #[error("process {0} has failed")]
    Dead(ProcessId),
    /// A message is longer than [`MAX_MESSAGE`].
    #[error("message of {len} bytes for process {dst} is too long; send at most 16 MiB")]
    TooLong {
        /// Receiver of the message
        dst: ProcessId,
        /// Length of the message, in bytes
        len: usize,
    },
    /// The messages for one receiver would never fit into that receiver's window.
    #[error(
        "messages for process {dst} take {cost} bytes of its window of {window}; send less at once or enlarge receive_window"
    )]
    TooLarge {
        /// Receiver of the messages
        dst: ProcessId,
        /// Their cost, in bytes, including [`PACKET_COST`] for each packet
        cost: usize,
        /// Size of an empty [window](Config::receive_window), in bytes
        window: usize,
    },
    /// The scattering would not even fit into an empty send buffer.
    #[error("{messages} messages of {bytes} bytes never fit into the send buffer; send less at once")]
    TooMuch {
        /// Sum of the messages' lengths, in bytes
        bytes: usize,
        /// Number of messages
        messages: usize,
    },
    /// The send buffer is full, or too many messages are not settled. Events that have not been polled count,
    /// too.
    #[error("the send buffer is full; try again later")]
    Full,
    /// This process has left.
    #[error("this process has left")]
    Left,
}

/// Source address and queue pair of a packet
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Source(IpAddr, Qpn);

impl Key for Source {
    fn hash(&self) -> u64 {
        let ip = match self.0 {
            IpAddr::V4(ip) => u128::from(ip.to_bits()),
            IpAddr::V6(ip) => ip.to_bits(),
        };
        mix(ip as u64 ^ mix((ip >> 64) as u64 ^ u64::from(self.1.get())))
    }

    fn salted(&self, salt: Salt) -> u64 {
        let ip = match self.0 {
            IpAddr::V4(ip) => u128::from(ip.to_bits()),
            IpAddr::V6(ip) => ip.to_bits(),
        };
        salt.hash(ip, self.1.get().into())
    }
}

impl Key for ProcessId {
    fn hash(&self) -> u64 {
        self.0.into()
    }
}

/// Peer, and the headers of frames to it.
#[derive(Debug)]
struct Remote {
    id: ProcessId,
    dead: bool,
    route: Template,
}

/// Whether a beacon is to be sent
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pending {
    None,
    Now,
    /// The last beacon could not promise its instant: another one follows when the scattering has been sent
    AfterScattering,
}

/// Scattering whose last packets are being sent: its index, its next run, and its timestamp
type Finishing = (u32, u32, u64);

/// Maximum number of NAKs waiting to be sent; also of saved ACKs, beside one per peer
const MAX_ANSWERS: usize = 1024;
/// Maximum number of payload buffers kept for reuse, and maximum capacity of each
const MAX_SPARES: usize = 1024;
const MAX_SPARE_BYTES: usize = 4096;
/// A run is abandoned when its sender has been silent for this many time-outs. Its last packet waits for the
/// other runs of its scattering, which may be 16 MB on a slow link.
const ABANDONED_AFTER: u64 = 10_000;
/// ECN-capable (RFC 3168, ECT(0))
const ECN_CAPABLE: u8 = 2;

/// Endpoint of 1Pipe. Frames and time go in ([`on_frame`](Self::on_frame), [`on_timer`](Self::on_timer)),
/// frames, messages and events come out ([`poll_transmit`](Self::poll_transmit),
/// [`unreliable_recv`](Self::unreliable_recv), [`poll_event`](Self::poll_event)); see the [module](self).
#[derive(Debug)]
pub struct Process {
    config: Config,
    clock: Clock,
    peers: Box<[Remote]>,
    by_id: Index<ProcessId>,
    by_source: Index<Source>,
    /// Expected headers of datagrams for this process
    expected: Expected,
    tor: Template,
    /// Outer headers of beacons that take a detour; empty otherwise
    detour: Box<[u8]>,
    /// Sender state by peer, created with the first message; the last one is for this process itself
    outbound: Box<[Option<Box<Outbound>>]>,
    inbound: Box<[Option<Box<Inbound>>]>,
    scatterings: Scatterings,
    scatterings_given: u64,
    /// Scatterings that are ready to be stamped
    ready: VecDeque<u32>,
    finishing: Option<Finishing>,
    /// Peers for which a packet that is not its run's last can be sent
    round: VecDeque<u32>,
    /// The next packet is one of `round`, even if a scattering is ready.
    is_round_next: bool,
    /// Bytes of messages that have not been sent
    unsent: usize,
    /// Messages that are not settled
    unsettled: usize,
    events: VecDeque<Event>,
    reorder: Reorder,
    /// Delivered messages, each with the sender's index and the bytes of the sender's window that it frees
    inbox: VecDeque<(Message, u32, usize)>,
    /// Bytes buffered for all senders
    held: usize,
    /// Best-effort and commit barrier of this process's link, unwrapped; 0 before there is one
    barrier: u64,
    commit: u64,
    /// Timers of each peer: as a receiver in slot 2n, as a sender in slot 2n + 1
    timers: Heap,
    next_beacon: Nanos,
    beacon: Pending,
    beacon_psn: Psn,
    /// Time of the switch's clock in the last beacon received, plus 1 ns if that beacon announced that
    /// nothing follows; unwrapped
    last_tor_beacon: u64,
    /// Time until which the next message to be delivered waits for this process's own clock
    wake_at: Option<Nanos>,
    /// Peers that are owed an ACK
    acks: VecDeque<u32>,
    /// Peers whose advertised windows are small because of the bytes buffered for other peers
    window_limited: Vec<u32>,
    /// ACKs with contents that a later ACK could no longer report
    saved_acks: VecDeque<(u32, AckContents)>,
    naks: VecDeque<(u32, Psn, u8)>,
    /// Peer that is checked next for an abandoned run
    sweep: u32,
    has_left: bool,
    /// Incarnation number in ACKs, drawn at random at start
    incarnation: u8,
    counters: Arc<Counters>,
    rng: Rng,
    /// Scratch buffer to sort a scattering's messages by receiver
    order: Vec<(u32, u32)>,
    outcome: Outcome,
    /// Sender whose missing packets were given up last (a planted bug)
    #[cfg(debug_assertions)]
    gave_up: Option<u32>,
}

impl Process {
    /// Creates a process that has received nothing yet.
    ///
    /// # Errors
    /// The configuration is invalid.
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        config.check()?;
        let own = config.own;
        let route = |mac: MacAddr, address: IpAddr, qpn: Qpn| {
            // One path for each pair of queue pairs, different from pair to pair (IB A17.4.5)
            let mixed = mix(u64::from(own.qpn.get()) << 24 | u64::from(qpn.get()));
            Route::new(&RouteFields {
                src_mac: own.mac,
                dst_mac: mac,
                vlan: None,
                src: own.address,
                dst: address,
                traffic_class: config.traffic_class & !3 | ECN_CAPABLE,
                hop_limit: config.hop_limit,
                src_port: 0xc000 | (mixed as u16 & 0x3fff),
            })
            .map(|route| Template::new(route, qpn, config.qkey, own.qpn))
            .ok_or(ConfigError::IpVersion(address))
        };
        let tor = route(config.tor.mac, config.tor.address, config.tor.qpn)?;
        let detour = beacon::detour(&config, tor)?;
        let count = config.peers.len();
        let (mut by_id, mut by_source) = (Index::with_capacity(count), Index::with_capacity(count));
        let mut peers = Vec::with_capacity(count);
        for (number, peer) in (0..).zip(&config.peers) {
            // Ids are dense, so both lookups return the index in the table unless the id or the address is a
            // duplicate.
            let indices =
                (by_id.get_or_insert(peer.id), by_source.get_or_insert(Source(peer.address, peer.qpn)));
            if indices != (Ok(number), Ok(number)) || peer.id == own.id {
                return Err(ConfigError::Duplicate(peer.id));
            }
            let route = route(peer.mac, peer.address, peer.qpn)?;
            peers.push(Remote { id: peer.id, dead: false, route });
        }
        #[cfg_attr(not(debug_assertions), expect(unused_mut, reason = "a bug may be planted"))]
        let mut reorder = Reorder::default();
        #[cfg(debug_assertions)]
        {
            reorder.by_arrival = (config.bug == Some(crate::Bug::TieByArrival)).then_some(0);
        }
        let mut rng = Rng::stream(config.seed, u64::from(own.id.0));
        Ok(Self {
            clock: Clock::new(config.clock),
            peers: peers.into(),
            by_id,
            by_source,
            expected: Expected::new(own.mac, own.address, own.qpn, config.qkey),
            tor,
            detour,
            outbound: (0..=count).map(|_| None).collect(),
            inbound: (0..count).map(|_| None).collect(),
            scatterings: Scatterings::default(),
            scatterings_given: 0,
            ready: VecDeque::new(),
            finishing: None,
            round: VecDeque::new(),
            is_round_next: false,
            unsent: 0,
            unsettled: 0,
            events: VecDeque::new(),
            reorder,
            inbox: VecDeque::new(),
            held: 0,
            barrier: 0,
            commit: 0,
            timers: Heap::new(2 * count),
            next_beacon: Nanos::ZERO,
            beacon: Pending::None,
            beacon_psn: Psn::ZERO,
            last_tor_beacon: 0,
            wake_at: None,
            acks: VecDeque::new(),
            window_limited: Vec::new(),
            saved_acks: VecDeque::new(),
            naks: VecDeque::new(),
            sweep: 0,
            has_left: false,
            incarnation: rng.below(256) as u8,
            counters: Arc::default(),
            rng,
            order: Vec::new(),
            outcome: Outcome::default(),
            #[cfg(debug_assertions)]
            gave_up: None,
            config,
        })
    }

    /// Returns the configuration.
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the counters, which stay up to date.
    pub fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.counters)
    }

    /// Returns 1Pipe's time (1Pipe, Table 1, `onepipe_get_timestamp`). It never goes back, and is later than
    /// every message delivered.
    pub fn timestamp(&mut self, now: Nanos) -> Timestamp {
        Timestamp::new(self.clock.issue(now))
    }

    /// Corrects 1Pipe's clock after it has been found to be off. A clock that would go back stands still
    /// until that time has come again.
    pub fn set_clock(&mut self, clock: Timestamp, now: Nanos) {
        self.clock.set(clock, now);
        if self.clock.is_clamped(now) {
            self.counters.clamped.add(1);
        }
        self.next_beacon = self.next_beacon.min(self.next_instant(now));
        self.deliver(now);
    }

    /// Returns the best-effort and the commit barrier of the process's link, as received. Best-effort
    /// messages below the former are delivered. The latter is for the reliable service, which is not
    /// implemented.
    pub fn barriers(&self) -> (Option<Timestamp>, Option<Timestamp>) {
        let timestamp = |barrier| (barrier != 0).then(|| Timestamp::new(barrier));
        (timestamp(self.barrier), timestamp(self.commit))
    }

    /// Returns the next message (1Pipe, Table 1, `onepipe_unreliable_recv`). Until then, it occupies its
    /// sender's window.
    pub fn unreliable_recv(&mut self) -> Option<Message> {
        let (message, peer, cost) = self.inbox.pop_front()?;
        self.release_window(peer, cost);
        Some(message)
    }

    /// Passes messages to `take`, in order. `take` accepts a message by returning `Ok`, with the payload's
    /// memory if it can be reused; or returns the payload as `Err`, and the message stays the next one.
    /// Returns whether all messages were accepted.
    pub fn unreliable_recv_each(
        &mut self,
        mut take: impl FnMut(Timestamp, ProcessId, Vec<u8>) -> Result<Option<Vec<u8>>, Vec<u8>>,
    ) -> bool {
        while let Some((message, peer, cost)) = self.inbox.front_mut() {
            let (peer, cost) = (*peer, *cost);
            match take(message.timestamp, message.src, core::mem::take(&mut message.payload)) {
                Ok(memory) => {
                    self.inbox.pop_front();
                    self.release_window(peer, cost);
                    if let Some(memory) = memory {
                        self.reuse_buffer(memory);
                    }
                }
                Err(payload) => {
                    message.payload = payload;
                    return false;
                }
            }
        }
        true
    }

    /// Returns whether there is a message to receive.
    pub fn has_message(&self) -> bool {
        !self.inbox.is_empty()
    }

    #[inline]
    fn release_window(&mut self, peer: u32, cost: usize) {
        self.held -= cost;
        if !self.window_limited.is_empty() {
            self.update_limited_windows();
        }
        if let Some(Some(inbound)) = self.inbound.get_mut(peer as usize) {
            inbound.held -= cost;
            if inbound.advertised_window >= self.config.receive_window / 4 {
                return;
            }
            let free = (self.config.receive_window as usize).saturating_sub(inbound.held) as u32;
            if free >= self.config.receive_window / 2 {
                // The sender waits for this update.
                inbound.advertised_window = u32::MAX;
                self.queue_ack(peer);
            }
        }
    }

    /// Returns the memory of a received payload for reuse. Optional.
    pub fn reuse_buffer(&mut self, payload: Vec<u8>) {
        if payload.capacity() <= MAX_SPARE_BYTES && self.outcome.spare.len() < MAX_SPARES {
            self.outcome.spare.push(payload);
        }
    }

    /// Returns the next event for the application.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Returns the next events, at least one if there are any; remove them by
    /// [`take_events`](Self::take_events).
    pub fn next_events(&self) -> &[Event] {
        self.events.as_slices().0
    }

    /// Removes the next `count` events. Panics if there are fewer.
    pub fn take_events(&mut self, count: usize) {
        self.events.drain(..count);
    }

    /// Returns the congestion window of a receiver in bytes, or `None` if nothing was sent to it.
    pub fn congestion_window(&self, dst: ProcessId) -> Option<u32> {
        let peer = self.by_id.get(&dst)?;
        self.outbound[peer as usize].as_ref().map(|outbound| outbound.congestion_window())
    }

    /// Returns the number of messages accepted for sending whose result is not known yet.
    pub const fn unsettled(&self) -> usize {
        self.unsettled
    }

    /// Consumes a scattering number without sending anything: for a caller that also counts scatterings and
    /// has refused one itself.
    pub const fn skip_number(&mut self) -> Scattering {
        let number = self.scatterings_given;
        self.scatterings_given += 1;
        Scattering(number)
    }

    /// Returns the bytes of messages that have not been sent, and the bytes buffered of received messages,
    /// until the application has taken them.
    pub const fn buffered(&self) -> (usize, usize) {
        (self.unsent, self.held)
    }

    /// Handles all timers that are due. To be called at [`next_timer`](Self::next_timer); earlier or later
    /// calls are valid.
    pub fn on_timer(&mut self, now: Nanos) {
        if self.next_beacon <= now {
            self.beacon = Pending::Now;
            self.next_beacon = self.next_instant(now);
            self.sweep(now);
        }
        while self.timers.first().is_some_and(|(at, _)| at <= now.0)
            && let Some(slot) = self.timers.pop()
        {
            if slot % 2 == 0 {
                self.on_timeout(slot / 2, now);
            } else {
                self.queue_ack(slot / 2);
            }
        }
        if self.wake_at.is_some_and(|at| at <= now) {
            self.deliver(now);
        }
    }

    /// Returns the time of the next call of [`on_timer`](Self::on_timer).
    pub fn next_timer(&self) -> Option<Nanos> {
        let first = self.timers.first().map(|(at, _)| Nanos(at));
        [Some(self.next_beacon), first, self.wake_at].into_iter().flatten().min()
    }

    /// Sets a timer to `at`. A timer that is set to an earlier time stays, and is set again when it expires.
    #[inline]
    fn arm(&mut self, slot: u32, at: Nanos) {
        if self.timers.key(slot).is_none_or(|(entry, _)| entry > at.0) {
            self.rearm(slot, at);
        }
    }

    #[inline(never)]
    fn rearm(&mut self, slot: u32, at: Nanos) {
        self.timers.remove(slot);
        self.timers.insert(slot, (at.0, slot.into()));
    }

    /// Writes the next frame to send. Returns false if there is none. To be called when the port has room.
    pub fn poll_transmit(&mut self, now: Nanos, frame: &mut Vec<u8>) -> bool {
        if self.beacon == Pending::Now {
            self.send_beacon(now, frame);
            return true;
        }
        if self.send_ack_or_nak(now, frame) || self.send_data(now, frame) {
            return true;
        }
        // A scattering that has just been sent may have kept the last beacon from promising its instant.
        let due = self.beacon == Pending::Now;
        if due {
            self.send_beacon(now, frame);
        }
        due
    }
}
