//! A process: an endpoint of 1Pipe's best-effort service, as a library without I/O (1Pipe, sections 2.1, 4.1 and 6.1).
//!
//! Scatterings go out with one timestamp each, and come in, everywhere, in the order of timestamp and sender. Each message is
//! delivered at most once, below the barrier, or its sender learns that it failed.
//!
//! # How to use it
//!
//! Whoever owns a [`Process`]
//!
//! * hands it every frame that arrives ([`Process::on_frame`]),
//! * asks it for frames whenever the wire has room ([`Process::poll_transmit`]), and puts them into **one queue, in that
//!   order**: a beacon says of everything that follows it that it is later, so nothing may overtake anything,
//! * calls [`Process::on_timer`] when [`Process::next_timer`] says so,
//! * and uses it as the paper's Table 1 says: [`timestamp`](Process::timestamp),
//!   [`unreliable_send`](Process::unreliable_send), [`unreliable_recv`](Process::unreliable_recv),
//!   [`poll_event`](Process::poll_event) in place of the callback.
//!
//! All times are [`switch::Nanos`] of one clock that does not go back. 1Pipe's clock is another, which may be
//! [set](Process::set_clock), and which stands still where it was set back. The same calls give the same frames, to the byte.
//!
//! # When a scattering gets its timestamp
//!
//! As late as it can: when everything of it was sent but the last packet for each receiver, and all windows have room for
//! those. They leave one behind the other, with one timestamp, the current one. What went before says that the timestamp
//! follows. So timestamps and barriers of what leaves never go back, and the link's barrier is kept back for as long as one
//! packet for each receiver takes, however large the messages are: large ones are sent as fast as windows let them, between
//! small ones, and delay nobody. (Stamped at its beginning, a message would hold back every receiver's barrier for as long
//! as its windows take: section 7.2 has 80 us for 1 MB.)

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

pub use config::{Beacons, Config, ConfigError, MAX_MESSAGE, PACKET_COST, Peer};
pub use counters::{Counters, Refusal};

use clock::Clock;
use core::fmt;
use core::net::IpAddr;
use inbound::{Inbound, Outcome, Report};
use outbound::Outbound;
use reorder::Reorder;
use rocev2::Psn;
use rocev2::Qpn;
use rocev2::datagram::{Expected, Template};
use rocev2::ethernet::MacAddr;
use rocev2::onepipe::Timestamp;
use rocev2::route::{Ends, Route};
use scattering::Scatterings;
use std::collections::VecDeque;
use std::sync::Arc;
use switch::heap::Heap;
use switch::table::{Index, Key, Salt, mix};
use switch::{Chance, Nanos};

/// The number of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ProcessId(pub u32);

impl fmt::Display for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A scattering that was given to this process, by its number: they are counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Scattering(pub u64);

/// A message that is delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Its place in the order of all messages, together with its sender
    pub timestamp: Timestamp,
    /// Its sender
    pub src: ProcessId,
    /// What it says
    pub payload: Vec<u8>,
}

/// What a process tells beside messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A message is not known to have arrived (Table 1, `onepipe_send_fail_callback`). It has not if [`why`](Failure) is
    /// [`Lost`](Failure::Lost), [`Late`](Failure::Late) or [`NoRoom`](Failure::NoRoom); otherwise it may have. Nothing else is
    /// said of it.
    SendFailed {
        /// The scattering that it was part of
        scattering: Scattering,
        /// The scattering's timestamp, if it got one
        timestamp: Option<Timestamp>,
        /// The receiver
        dst: ProcessId,
        /// Which one it was in the call
        part: u32,
        /// Why
        why: Failure,
    },
    /// It is known of every message of a scattering whether it has arrived in time.
    Settled {
        /// The scattering
        scattering: Scattering,
        /// Its timestamp, if anything of it was sent
        timestamp: Option<Timestamp>,
        /// How many of its messages have failed
        failed: u32,
    },
}

/// Why a message failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Failure {
    /// It, or a part of it, was lost in the network.
    #[error("it was lost")]
    Lost,
    /// It came when later messages may have been delivered already.
    #[error("it came too late")]
    Late,
    /// The receiver had no room for it.
    #[error("the receiver had no room")]
    NoRoom,
    /// Nothing was heard of it. If it was the answer that was lost, it was delivered.
    #[error("no answer")]
    NoAnswer,
    /// The receiver is known to have failed.
    #[error("the receiver has failed")]
    Dead,
    /// This process has left before it was heard of.
    #[error("this process has left")]
    Left,
}

/// Why a scattering was not taken. Nothing of it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// It has no message.
    #[error("a scattering of no message")]
    Empty,
    /// A receiver is not in the table of peers.
    #[error("no process {0} is known")]
    Unknown(ProcessId),
    /// A receiver is known to have failed.
    #[error("process {0} has failed")]
    Dead(ProcessId),
    /// A message is longer than [`MAX_MESSAGE`].
    #[error("a message of {len} bytes for process {dst}; 16 MiB is the most")]
    TooLong {
        /// The receiver
        dst: ProcessId,
        /// How long it is
        len: usize,
    },
    /// What it has for one receiver would never fit into the window there.
    #[error("messages for process {dst} take {cost} bytes of a window that has {window}")]
    TooLarge {
        /// The receiver
        dst: ProcessId,
        /// What they take, with [`PACKET_COST`] for each packet
        cost: usize,
        /// The whole [window](Config::receive_window)
        window: usize,
    },
    /// It would not even fit into an empty send buffer.
    #[error("{messages} messages of {bytes} bytes are more than the send buffer ever has room for")]
    TooMuch {
        /// What they say, together
        bytes: usize,
        /// How many they are
        messages: usize,
    },
    /// The send buffer is full, or too many messages are not settled. Events that were not polled count.
    #[error("the send buffer is full")]
    Full,
    /// This process has left.
    #[error("this process has left")]
    Left,
}

/// Who sent a packet
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

/// A peer, and how frames get there.
#[derive(Debug)]
struct Known {
    id: ProcessId,
    dead: bool,
    route: Template,
}

/// Whether a beacon is to be sent
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pending {
    None,
    Now,
    /// The last one could not speak of its instant: another follows when the scattering has left
    AfterScattering,
}

/// A scattering whose last packets are being sent: its place, its next run, and its timestamp
type Finishing = (u32, u32, u64);

/// NAKs that wait for the wire at most; and ACKs, beside one for each peer
const ANSWERS: usize = 1024;
/// Messages whose memory is kept for others at most, and how much each may have
const SPARES: usize = 1024;
const SPARE_BYTES: usize = 4096;
/// A run is thrown away when nothing has come of its sender for so many time-outs. Its last packet waits for the other runs of its
/// scattering, which may be 16 MB on a slow link.
const ABANDONED_AFTER: u64 = 10_000;
/// ECN-capable (RFC 3168, ECT(0))
const ECN_CAPABLE: u8 = 2;

/// An endpoint of 1Pipe. Frames and time in ([`on_frame`](Self::on_frame), [`on_timer`](Self::on_timer)), frames, messages and
/// events out ([`poll_transmit`](Self::poll_transmit), [`unreliable_recv`](Self::unreliable_recv),
/// [`poll_event`](Self::poll_event)); see the module's page.
#[derive(Debug)]
pub struct Process {
    config: Config,
    clock: Clock,
    peers: Box<[Known]>,
    by_id: Index<ProcessId>,
    by_source: Index<Source>,
    /// What datagrams for it look like
    expected: Expected,
    tor: Template,
    /// The headers of its beacons' detour, if there is one
    detour: Box<[u8]>,
    /// By peer, from the first message on; the last one is this process itself
    outbound: Box<[Option<Box<Outbound>>]>,
    inbound: Box<[Option<Box<Inbound>>]>,
    scatterings: Scatterings,
    scatterings_given: u64,
    /// Scatterings that are ready to be stamped
    ready: VecDeque<u32>,
    finishing: Option<Finishing>,
    /// Peers that have something to send before the last packet of a run
    round: VecDeque<u32>,
    /// It is the turn of one of them, not of a scattering that is ready.
    is_rounds_turn: bool,
    /// Bytes of messages that were not sent
    unsent: usize,
    /// Messages that are not settled
    unsettled: usize,
    events: VecDeque<Event>,
    reorder: Reorder,
    /// What was delivered: the place of the sender, and what of its window becomes free with it
    inbox: VecDeque<(Message, u32, usize)>,
    /// Bytes that are kept for all senders
    held: usize,
    /// The best-effort and the commit barrier of this process's link, on the line; 0 before there is one
    barrier: u64,
    commit: u64,
    /// When each peer is due: as a receiver at twice its place, as a sender at the place behind that
    timers: Heap,
    next_beacon: Nanos,
    beacon: Pending,
    beacon_psn: Psn,
    /// What the switch's clock showed when it sent the last beacon that came, and a nanosecond more if that was to say that nothing
    /// follows
    tor_said_at: u64,
    /// What is first to be delivered waits for this process's own clock until then.
    wake: Option<Nanos>,
    /// Peers that are owed an ACK
    acks: VecDeque<u32>,
    /// Peers whose windows are small because of what is kept of others
    short: Vec<u32>,
    /// ACKs that say what could not be said later
    reports: VecDeque<(u32, Report)>,
    naks: VecDeque<(u32, Psn, u8)>,
    /// The peer that is looked at next for what it has left unfinished
    sweep: u32,
    has_left: bool,
    /// Says in ACKs which of its lives this is
    life: u8,
    counters: Arc<Counters>,
    chance: Chance,
    /// For sorting a scattering's messages by receiver
    order: Vec<(u32, u32)>,
    outcome: Outcome,
    /// The sender of which something was given up last (a planted bug)
    #[cfg(debug_assertions)]
    gave_up: Option<u32>,
}

impl Process {
    /// A process that has heard nothing yet.
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        config.check()?;
        let own = config.own;
        let route = |mac: MacAddr, address: IpAddr, qpn: Qpn| {
            // One path for each pair of queue pairs, which need not be the same for all (IB A17.4.5)
            let mixed = mix(u64::from(own.qpn.get()) << 24 | u64::from(qpn.get()));
            Route::new(&Ends {
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
            .ok_or(ConfigError::Family(address))
        };
        let tor = route(config.tor.mac, config.tor.address, config.tor.qpn)?;
        let detour = beacon::detour(&config, tor)?;
        let count = config.peers.len();
        let (mut by_id, mut by_source) = (Index::with_capacity(count), Index::with_capacity(count));
        let mut peers = Vec::with_capacity(count);
        for (number, peer) in (0..).zip(&config.peers) {
            // Ids are dense, so both are the place in the table, unless one was there before.
            let places =
                (by_id.get_or_insert(peer.id), by_source.get_or_insert(Source(peer.address, peer.qpn)));
            if places != (Ok(number), Ok(number)) || peer.id == own.id {
                return Err(ConfigError::Twice(peer.id));
            }
            let route = route(peer.mac, peer.address, peer.qpn)?;
            peers.push(Known { id: peer.id, dead: false, route });
        }
        #[cfg_attr(not(debug_assertions), expect(unused_mut, reason = "a bug may be planted"))]
        let mut reorder = Reorder::default();
        #[cfg(debug_assertions)]
        {
            reorder.by_arrival = (config.bug == Some(crate::Bug::TieByArrival)).then_some(0);
        }
        let mut chance = Chance::stream(config.seed, u64::from(own.id.0));
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
            is_rounds_turn: false,
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
            tor_said_at: 0,
            wake: None,
            acks: VecDeque::new(),
            short: Vec::new(),
            reports: VecDeque::new(),
            naks: VecDeque::new(),
            sweep: 0,
            has_left: false,
            life: chance.below(256) as u8,
            counters: Arc::default(),
            chance,
            order: Vec::new(),
            outcome: Outcome::default(),
            #[cfg(debug_assertions)]
            gave_up: None,
            config,
        })
    }

    /// What it was made with
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// What it has counted so far, and goes on to count
    pub fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.counters)
    }

    /// 1Pipe's clock (Table 1, `onepipe_get_timestamp`). Never goes back, and is past every message that was delivered.
    pub fn timestamp(&mut self, now: Nanos) -> Timestamp {
        Timestamp::new(self.clock.tell(now))
    }

    /// Sets the clock: whoever synchronises it found that it is off. Where it would go back, it stands still until that time
    /// has come again.
    pub fn set_clock(&mut self, clock: Timestamp, now: Nanos) {
        self.clock.set(clock, now);
        if self.clock.stands(now) {
            self.counters.clamped.add(1);
        }
        self.next_beacon = self.next_beacon.min(self.next_instant(now));
        self.deliver(now);
    }

    /// The best-effort and the commit barrier of its link, as far as it knows them. Best-effort messages below the one are
    /// delivered. The other is for the reliable service, which is not there yet.
    pub fn barriers(&self) -> (Option<Timestamp>, Option<Timestamp>) {
        let shown = |barrier| (barrier != 0).then(|| Timestamp::new(barrier));
        (shown(self.barrier), shown(self.commit))
    }

    /// The next message (Table 1, `onepipe_unreliable_recv`). Until it is taken, it takes of its sender's window.
    pub fn unreliable_recv(&mut self) -> Option<Message> {
        let (message, peer, cost) = self.inbox.pop_front()?;
        self.give_free(peer, cost);
        Some(message)
    }

    /// Shows messages, one after the other, to one who takes each of them and gives back its memory, if that is of no more use, or
    /// gives back the message, which then stays the next. Whether all were taken.
    pub fn unreliable_recv_each(
        &mut self,
        mut take: impl FnMut(Timestamp, ProcessId, Vec<u8>) -> Result<Option<Vec<u8>>, Vec<u8>>,
    ) -> bool {
        while let Some((message, peer, cost)) = self.inbox.front_mut() {
            let (peer, cost) = (*peer, *cost);
            match take(message.timestamp, message.src, core::mem::take(&mut message.payload)) {
                Ok(memory) => {
                    self.inbox.pop_front();
                    self.give_free(peer, cost);
                    if let Some(memory) = memory {
                        self.reuse(memory);
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

    /// Whether there is a message.
    pub fn has_message(&self) -> bool {
        !self.inbox.is_empty()
    }

    #[inline]
    fn give_free(&mut self, peer: u32, cost: usize) {
        self.held -= cost;
        if !self.short.is_empty() {
            self.tell_short();
        }
        if let Some(Some(inbound)) = self.inbound.get_mut(peer as usize) {
            inbound.held -= cost;
            if inbound.told_window >= self.config.receive_window / 4 {
                return;
            }
            let free = (self.config.receive_window as usize).saturating_sub(inbound.held) as u32;
            if free >= self.config.receive_window / 2 {
                // It waits for this to be said.
                inbound.told_window = u32::MAX;
                self.owe_ack(peer);
            }
        }
    }

    /// Takes back the memory of a message that the application is done with, for another one. Nobody has to give it.
    pub fn reuse(&mut self, payload: Vec<u8>) {
        if payload.capacity() <= SPARE_BYTES && self.outcome.spare.len() < SPARES {
            self.outcome.spare.push(payload);
        }
    }

    /// The next thing to tell the application.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The next events, one or more if there are any, to be [taken](Self::take_events).
    pub fn next_events(&self) -> &[Event] {
        self.events.as_slices().0
    }

    /// Takes the next events, no more than there are.
    pub fn take_events(&mut self, count: usize) {
        self.events.drain(..count);
    }

    /// Bytes that may be under way to a process (its congestion window), if anything was sent there
    pub fn congestion_window(&self, dst: ProcessId) -> Option<u32> {
        let peer = self.by_id.get(&dst)?;
        self.outbound[peer as usize].as_ref().map(|outbound| outbound.congestion_window())
    }

    /// Messages that were taken to be sent, and of which it is not known what became
    pub const fn unsettled(&self) -> usize {
        self.unsettled
    }

    /// Gives a scattering a number that nothing is sent of: whoever runs this has refused it, and numbers are counted by somebody
    /// else as well.
    pub const fn skip(&mut self) -> Scattering {
        let number = self.scatterings_given;
        self.scatterings_given += 1;
        Scattering(number)
    }

    /// Bytes of messages that were not sent, and bytes that are kept of messages that came, until they are taken
    pub const fn buffered(&self) -> (usize, usize) {
        (self.unsent, self.held)
    }

    /// The time that [`next_timer`](Self::next_timer) asked for has come.
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
                self.on_silence(slot / 2, now);
            } else {
                self.owe_ack(slot / 2);
            }
        }
        if self.wake.is_some_and(|at| at <= now) {
            self.deliver(now);
        }
    }

    /// When to call [`on_timer`](Self::on_timer)
    pub fn next_timer(&self) -> Option<Nanos> {
        let first = self.timers.first().map(|(at, _)| Nanos(at));
        [Some(self.next_beacon), first, self.wake].into_iter().flatten().min()
    }

    /// Has `slot` looked at by `at`. An entry that is earlier stays, and finds out.
    #[inline]
    fn arm(&mut self, slot: u32, at: Nanos) {
        if self.timers.key(slot).is_none_or(|(entry, _)| entry > at.0) {
            self.arm_anew(slot, at);
        }
    }

    #[inline(never)]
    fn arm_anew(&mut self, slot: u32, at: Nanos) {
        self.timers.remove(slot);
        self.timers.insert(slot, (at.0, slot.into()));
    }

    /// The wire has room: writes the next frame for it, or says that there is none.
    pub fn poll_transmit(&mut self, now: Nanos, frame: &mut Vec<u8>) -> bool {
        if self.beacon == Pending::Now {
            self.send_beacon(now, frame);
            return true;
        }
        if self.send_answer(now, frame) || self.send_data(now, frame) {
            return true;
        }
        // What has just been finished may have kept a beacon from saying what it should.
        let due = self.beacon == Pending::Now;
        if due {
            self.send_beacon(now, frame);
        }
        due
    }
}
