//! Process: an endpoint of 1Pipe's best-effort service, as a library without I/O (1Pipe, sections 2.1, 4.1
//! and 6.1).
//!
//! Each scattering is sent with one timestamp, and every receiver delivers messages in the order of timestamp
//! and sender. Each message is delivered at most once, below the barrier; otherwise its sender is notified
//! that it failed.
//!
//! # Usage
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
//! The [reliable service](reliable) has the same owner and the same frames; a process takes part in it once the
//! controller's messages are passed to it.
//!
//! All times are [`switch::Nanos`] of the runner's clock, which is monotonic. 1Pipe's clock is a different
//! one. It follows [samples](Process::set_clock) of the machine's clock, and never goes back. The same calls produce
//! the same frames, byte for byte.
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

mod barriers;
mod beacons;
mod bug;
mod clock;
mod config;
mod counters;
mod filter;
pub mod member;
mod peers;
mod receiver;
mod relay;
pub mod reliable;
mod sender;
mod sources;
mod stall;
mod sync;
mod types;

#[cfg(test)]
mod tests;

pub use bug::Bug;
pub use config::{BeaconPeer, Config, ConfigError, MAX_MESSAGE, PACKET_COST, Peer};
pub use counters::{Counters, Refusal};
pub use member::Member;
pub use relay::Relayed;
pub use types::{Event, Failure, Message, ProcessId, Scattering, SendError};

use crate::clock::ClockSample;
use crate::datagram::Datagram;
use crate::ends::{self, Ends};
use crate::header::{OnePipe, OnePipeOpcode, Timestamp};
use beacons::Beacons;
use clock::Clock;
use core::net::IpAddr;
use filter::Filter;
use peers::Peers;
use receiver::Receiver;
use reliable::Reliable;
use rocev2::Qpn;
use sender::Sender;
use sources::{Sources, Takes};
use stall::Stall;
use std::sync::Arc;
use switch::{Nanos, Rng};
use sync::Sync;

/// Endpoint of 1Pipe. Frames and time go in ([`on_frame`](Self::on_frame), [`on_timer`](Self::on_timer)),
/// frames, messages and events come out ([`poll_transmit`](Self::poll_transmit),
/// [`unreliable_recv`](Self::unreliable_recv), [`poll_event`](Self::poll_event)); see the [module](self).
#[derive(Clone, Debug)]
pub struct Process {
    config: Config,
    clock: Clock,
    peers: Peers,
    filter: Filter,
    beacons: Beacons,
    sender: Sender,
    receiver: Receiver,
    stall: Stall,
    reliable: Reliable,
    sources: Sources,
    /// Clock beacons; `None` if the clock follows the machine's
    sync: Option<Box<Sync>>,
    /// Both ends of the link, if the switch has a standby
    ends: Option<Box<Ends>>,
    /// Number of beacon intervals for which this process was running
    intervals: u64,
    counters: Arc<Counters>,
}

impl Process {
    /// Creates a process that has received nothing yet.
    ///
    /// # Errors
    /// The configuration is invalid.
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        config.check()?;
        let counters = Arc::default();
        let mut rng = Rng::stream(config.seed, u64::from(config.own.id.0));
        let incarnation = rng.below(256) as u8;
        Ok(Self {
            clock: Clock::new(&config),
            beacons: Beacons::new(&config)?,
            peers: Peers::new(&config)?,
            filter: Filter::new(&config),
            sender: Sender::new(&config, rng, &counters),
            receiver: Receiver::new(&config, incarnation, &counters),
            stall: Stall::new(&config),
            reliable: Reliable::default(),
            sources: Sources::default(),
            sync: Sync::new(&config)?,
            ends: config
                .standby
                .as_ref()
                .map(|_| Box::new(Ends::new(receiver::LEASE_INTERVALS, config.ends_bug))),
            intervals: 0,
            counters,
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

    /// Corrects 1Pipe's clock by a sample of the machine's: to the median of the last three samples, forward
    /// at once, and back by running slower by 1/64. To be called every few milliseconds.
    ///
    /// With [`ClockSource::Beacons`](crate::ClockSource::Beacons) it is what the process contributes to the time of its
    /// network, and what the clock follows while no clock beacons arrive.
    pub fn set_clock(&mut self, sample: ClockSample, now: Nanos) {
        let sample = match &mut self.sync {
            Some(sync) => sync.on_machine(&sample, now),
            None => Some(sample),
        };
        if let Some(sample) = sample
            && self.clock.sample(sample, now)
        {
            self.counters.clamped.add(1);
        }
        self.on_clock_set(now);
    }

    /// Lets go what waited for the clock.
    fn on_clock_set(&mut self, now: Nanos) {
        self.beacons.on_clock_set(&self.clock, now);
        self.receiver.deliver(&mut self.clock, now);
        self.reliable.on_clock_set(&mut self.clock, now);
    }

    /// Returns the best-effort and the commit barrier of the process's link, as received. Best-effort
    /// messages below the former are delivered. The latter is for the reliable service, whose messages are
    /// delivered up to [`delivered_up_to`](Self::delivered_up_to).
    pub fn barriers(&self) -> (Option<Timestamp>, Option<Timestamp>) {
        self.receiver.barriers()
    }

    /// Returns by how many nanoseconds 1Pipe's clock is behind the machine's, by the samples; negative if it is
    /// ahead.
    pub const fn clock_offset(&self) -> i64 {
        self.clock.offset()
    }

    /// Returns whether the process has received a barrier and accepts messages that are stamped now. A process
    /// that starts accepts none that may have been sent before ([`Config::clock_error`]).
    pub fn is_open(&self, now: Nanos) -> bool {
        self.receiver.is_open(&self.clock, now)
    }

    /// Returns the next message (1Pipe, Table 1, `onepipe_unreliable_recv`). Until then, it occupies its
    /// sender's window.
    pub fn unreliable_recv(&mut self) -> Option<Message> {
        self.receiver.pop_message()
    }

    /// Passes messages to `take`, in order. `take` accepts a message by returning `Ok`, with the payload's
    /// memory if it can be reused; or returns the payload as `Err`, and the message stays the next one.
    /// Returns whether all messages were accepted.
    pub fn unreliable_recv_each(
        &mut self,
        take: impl FnMut(Timestamp, ProcessId, Vec<u8>) -> Result<Option<Vec<u8>>, Vec<u8>>,
    ) -> bool {
        self.receiver.pop_messages(take)
    }

    /// Returns whether there is a message to receive.
    pub fn has_message(&self) -> bool {
        self.receiver.has_message()
    }

    /// Returns the memory of a received payload for reuse. Optional.
    #[inline]
    pub fn reuse_buffer(&mut self, payload: Vec<u8>) {
        self.receiver.reuse_buffer(payload);
    }

    /// Returns the next event for the application.
    #[inline]
    pub fn poll_event(&mut self) -> Option<Event> {
        self.stall.pop().or_else(|| self.sender.pop_event())
    }

    /// Returns the next events about messages, at least one if there are any; remove them by
    /// [`take_events`](Self::take_events).
    pub fn next_events(&self) -> &[Event] {
        self.sender.events()
    }

    /// Removes the next `count` events.
    ///
    /// # Panics
    /// If there are fewer events.
    pub fn take_events(&mut self, count: usize) {
        self.sender.remove_events(count);
    }

    /// Returns the congestion window of a receiver in bytes, or `None` if nothing was sent to it.
    pub fn congestion_window(&self, dst: ProcessId) -> Option<u32> {
        self.sender.congestion_window(self.peers.find(dst)?)
    }

    /// Returns the number of messages accepted for sending whose result is not known yet.
    pub const fn unsettled(&self) -> usize {
        self.sender.unsettled()
    }

    /// Consumes a scattering number without sending anything: for a caller that also counts scatterings and
    /// has refused one itself.
    pub const fn skip_number(&mut self) -> Scattering {
        self.sender.next_number()
    }

    /// Returns the bytes of messages that have not been sent, and the bytes buffered of received messages,
    /// until the application has taken them.
    pub const fn buffered(&self) -> (usize, usize) {
        (self.sender.unsent(), self.receiver.held())
    }

    /// Sends messages to any processes, this one included, as one scattering, which has one timestamp (1Pipe,
    /// Table 1, `onepipe_unreliable_send`). Several messages for one process arrive in their order, all or
    /// none. The bytes are copied.
    ///
    /// The scattering is sent as soon as the windows of all receivers have room; meanwhile scatterings to
    /// other receivers may overtake it, those to the same ones may not. [`Event`]s report the result.
    ///
    /// # Errors
    /// Nothing of the scattering is sent. [`SendError::Full`] is temporary; the other errors are not.
    pub fn unreliable_send(
        &mut self,
        now: Nanos,
        messages: &[(ProcessId, &[u8])],
    ) -> Result<Scattering, SendError> {
        self.sender.send(messages, &self.config, &self.peers, now)
    }

    /// Sends one message to another process at once, if nothing waits before it: writes its frame, which has
    /// to leave behind all frames that [`poll_transmit`](Self::poll_transmit) has written. The effect is that
    /// of [`unreliable_send`](Self::unreliable_send) and `poll_transmit`, but nothing is buffered in between.
    ///
    /// Returns `None` if anything is waiting that has to be sent first, if the windows have no room, if the
    /// message is longer than a packet or the first one to its receiver, or if it is invalid. Call
    /// `unreliable_send` then, which accepts the message or returns the error.
    pub fn send_at_once(
        &mut self,
        now: Nanos,
        dst: ProcessId,
        message: &[u8],
        frame: &mut Vec<u8>,
    ) -> Option<Scattering> {
        if !self.beacons.is_idle() || self.has_acks_to_send() || self.is_waiting() {
            return None;
        }
        self.sender.send_at_once((dst, message), &mut self.clock, &mut self.peers, now, frame)
    }

    /// Sends one reliable message to another process at once, as [`send_at_once`](Self::send_at_once) does: the
    /// effect is that of [`reliable_send`](Self::reliable_send) and `poll_transmit`, under the same conditions.
    ///
    /// Returns `None` if anything is waiting that has to be sent first, if the windows have no room, if the message
    /// is longer than a packet, or if it is refused. Call `reliable_send` then.
    pub fn reliable_send_at_once(
        &mut self,
        now: Nanos,
        dst: ProcessId,
        message: &[u8],
        frame: &mut Vec<u8>,
    ) -> Option<Scattering> {
        if self.is_waiting() {
            return None;
        }
        let Self { beacons, sender, receiver, reliable, clock, peers, .. } = self;
        if !beacons.is_idle() || !sender.is_idle() || receiver.has_acks_to_send() || reliable.has_answers() {
            return None;
        }
        reliable.send_at_once(|| sender.next_number(), (dst, message), clock, peers, now, frame)
    }

    /// Sets whether a process is alive, as the control plane has determined. Messages in flight to a dead
    /// process fail, and so do messages sent to it. Returns false if the process is not in the table of
    /// peers.
    pub fn set_alive(&mut self, id: ProcessId, alive: bool, now: Nanos) -> bool {
        let Some(peer) = self.peers.find(id) else { return false };
        self.peers.set_dead(peer, !alive);
        if !alive {
            self.sender.on_peer_dead(peer, now);
        }
        true
    }

    /// Leaves (1Pipe, Table 1, `onepipe_exit`): messages that were not sent fail, only ACKs and NAKs are sent
    /// from now on, and beacons announce that nothing follows, so that no receiver waits for this process.
    pub fn leave(&mut self) {
        self.sender.leave();
        self.reliable.leave();
        self.beacons.request();
    }

    /// Handles all timers that are due. To be called at [`next_timer`](Self::next_timer); earlier or later
    /// calls are valid.
    pub fn on_timer(&mut self, now: Nanos) {
        if self.sync.is_some() {
            self.on_sync_timer(now);
        }
        if self.beacons.next_instant() <= now {
            // Before the beacon: if it was sent with an earlier time than that of its instant, it would not count.
            self.clock.advance(now);
        }
        let instant_has_come = self.beacons.on_timer(&self.clock, now);
        self.sender.on_timer(now);
        self.receiver.on_timer(&mut self.clock, now);
        if instant_has_come {
            self.intervals += 1;
            self.receiver.sweep(now);
            if !self.sender.has_left() && !self.is_waiting() {
                self.stall.check(self.receiver.barrier(), now, &self.counters);
            }
        }
        if self.reliable.on_timer(&mut self.clock, now) {
            self.beacons.request();
        }
    }

    /// Returns the time of the next call of [`on_timer`](Self::on_timer).
    pub fn next_timer(&self) -> Option<Nanos> {
        let beacon = Some(self.beacons.next_instant());
        let timers =
            [beacon, self.sender.next_timer(), self.receiver.next_timer(), self.reliable.next_timer()];
        let sync = self.sync.as_ref().map(|sync| sync.next_timer());
        timers.into_iter().chain([sync]).flatten().min()
    }

    /// Handles a received frame.
    ///
    /// # Errors
    /// The reason why the frame, or the barrier in it, was refused. The process counts it; the caller need not
    /// act on it.
    pub fn on_frame(&mut self, frame: &[u8], now: Nanos) -> Result<(), Refusal> {
        let result = self.receive_datagram(frame, now);
        if let Err(why) = result {
            self.counters.refuse(why);
        }
        result
    }

    /// Handles a datagram. It has one place where all datagrams go on, so that what follows is inlined.
    #[inline]
    fn receive_datagram(&mut self, frame: &[u8], now: Nanos) -> Result<(), Refusal> {
        let datagram = match self.filter.read(frame) {
            Some(datagram) => datagram,
            None => self.filter.parse(frame)?,
        };
        let Datagram { src, src_qp, ecn, header, payload, .. } = datagram;
        if header.version != OnePipe::VERSION {
            return Err(Refusal::OtherVersion);
        }
        if self.sync.is_some()
            && let Some(result) = self.receive_for_clock(&datagram, now)
        {
            return result;
        }
        if header.opcode() == OnePipeOpcode::BEACON {
            return self.receive_beacon((src, src_qp), header, now);
        }
        if header.opcode().is_reliable() {
            return self.receive_reliable(&datagram, now);
        }
        let peer = self.peers.find_source(src, src_qp);
        let peer = peer.ok_or_else(|| refusal_of_stranger(header.opcode()))?;
        match header.opcode() {
            OnePipeOpcode::DATA => {
                let sender = (peer, self.peers.id(peer));
                self.receiver.on_data(sender, (header, payload), ecn, &mut self.clock, now)
            }
            OnePipeOpcode::ACK => self.sender.on_ack(peer, header, payload, now),
            OnePipeOpcode::NAK => self.sender.on_nak(peer, header, payload, now),
            _ => Err(Refusal::Opcode),
        }
    }

    #[inline]
    fn receive_beacon(&mut self, source: (IpAddr, Qpn), header: &OnePipe, now: Nanos) -> Result<(), Refusal> {
        let takes = self.sources.classify(&self.config, source);
        if takes == Takes::Nothing {
            return Err(Refusal::WrongSource);
        }
        let has_left = self.sender.has_left();
        let result = if self.ends.is_some() {
            self.receive_of_two(source.0, header, now)
        } else {
            self.receiver.on_beacon(header, has_left, &mut self.clock, now)
        };
        match takes {
            Takes::Both => self.reliable.on_beacon(header.commit(), &mut self.clock, now),
            _ if header.commit().is_some() && self.reliable.is_joined() => {
                self.counters.refuse(Refusal::CommitSource);
            }
            _ => {}
        }
        result
    }

    /// Handles a beacon of one of two ends. A process whose link has one end never calls this.
    #[cold]
    #[inline(never)]
    fn receive_of_two(&mut self, from: IpAddr, header: &OnePipe, now: Nanos) -> Result<(), Refusal> {
        let Some(ends) = &mut self.ends else { return Ok(()) };
        let end = usize::from(from != self.config.tor.address);
        let word = ends.on_beacon(end, *header, self.intervals).map_err(|ends::Stale| Refusal::Stale)?;
        self.receiver.on_beacon(&word, self.sender.has_left(), &mut self.clock, now)
    }

    #[inline(never)]
    fn receive_reliable(&mut self, datagram: &Datagram<'_>, now: Nanos) -> Result<(), Refusal> {
        let &Datagram { src, src_qp, ecn, header, payload, .. } = datagram;
        let mut peer = self.peers.find_member(src, src_qp);
        let mut is_right = self.filter.is_to_member(datagram);
        if self.config.has_bug(Bug::OtherIncarnation) {
            (peer, is_right) = (peer.or_else(|| self.peers.find_address(src)), true);
        }
        let peer = peer.ok_or(Refusal::UnknownSource)?;
        if !self.reliable.is_joined() {
            return Err(Refusal::NotAdmitted);
        }
        if !is_right {
            return Err(Refusal::OtherIncarnation);
        }
        let from = (peer, self.peers.id(peer));
        self.peers.relay().on_direct(peer, now);
        let wants_beacon = self.reliable.on_frame(from, (ecn, header, payload), &self.clock, now)?;
        if matches!(header.opcode(), OnePipeOpcode::RELIABLE_ACK | OnePipeOpcode::RECALL_ACK) {
            self.reliable.on_direct_answer(peer);
        }
        if wants_beacon {
            self.beacons.request();
        }
        Ok(())
    }

    /// Returns whether an ACK or NAK is to be sent with the next frames of
    /// [`poll_transmit`](Self::poll_transmit): no other timer announces these.
    #[inline]
    pub fn has_acks_to_send(&self) -> bool {
        self.receiver.has_acks_to_send() || self.reliable.has_answers()
    }

    /// Writes the next frame to send. Returns false if there is none. To be called when the port has room.
    pub fn poll_transmit(&mut self, now: Nanos, frame: &mut Vec<u8>) -> bool {
        if self.sync.is_some()
            && let Some(has_sent) = self.send_for_clock(now, frame)
        {
            return has_sent;
        }
        if self.beacons.is_due() {
            self.send_beacon(now, frame);
            return true;
        }
        if self.reliable.is_joined() && self.send_reliable_in_turn(now, frame) {
            return true;
        }
        let Self { clock, peers, sender, receiver, .. } = self;
        if receiver.send_ack_or_nak(clock, peers, now, frame) {
            return true;
        }
        let has_sent = sender.send_data(receiver, clock, peers, now, frame);
        self.beacons.on_progress(self.sender.finishing());
        if has_sent {
            return true;
        }
        // A scattering that has just been sent may have kept the last beacon from promising its instant.
        if self.beacons.is_due() {
            self.send_beacon(now, frame);
            return true;
        }
        self.reliable.send_data(&mut self.clock, &mut self.peers, now, frame)
    }

    /// Writes an answer of the reliable service, or its next packet if it is its turn: not while a best-effort
    /// scattering is being sent, whose timestamp holds the link's barrier. Returns false if there is none.
    #[cold]
    fn send_reliable_in_turn(&mut self, now: Nanos, frame: &mut Vec<u8>) -> bool {
        let Self { clock, peers, sender, reliable, .. } = self;
        reliable.send_answer(peers, frame)
            || sender.finishing().is_none()
                && reliable.takes_turn()
                && reliable.send_data(clock, peers, now, frame)
    }

    fn send_beacon(&mut self, now: Nanos, frame: &mut Vec<u8>) {
        let Self { clock, sender, reliable, .. } = self;
        let commit = |issued| reliable.commit(issued);
        self.beacons.send(sender.finishing(), sender.has_left(), commit, clock, now, frame);
        self.counters.beacons_sent.add(1);
    }
}

/// Returns why a packet is refused whose sender is in no table.
#[cold]
fn refusal_of_stranger(opcode: OnePipeOpcode) -> Refusal {
    if opcode == OnePipeOpcode::CLOCK { Refusal::Clock } else { Refusal::UnknownSource }
}
