//! Switch function of the polling thread: a process on a port, between the rings of its application.

use crate::membership::Membership;
use crate::ring::{Reader, Taken, Writer};
use crate::submit;
use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use onepipe::process::{Event, Failure, Refusal, SendError};
use onepipe::{ClockSample, Timestamp};
use onepipe::{Process, ProcessId};
use rnic::Outbox;
use rocev2::ethernet::{Ethernet, ethertype};
use rtrb::Producer;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use switch::{Frame, Function, Nanos, Output, PortId, Verdict};

/// Maximum number of scatterings taken in one turn, so that frames are received in between
const SENDS_PER_TURN: usize = 64;
/// The only port of a process
const PORT: PortId = PortId(0);
/// Number of beacons that announce that a process leaves; the switch may miss some
const FINAL_BEACONS: u64 = 3;
/// Number of message timeouts for which a leaving process waits for unsettled messages
const LEAVE_TIMEOUTS: u64 = 4;
/// Time for which a member that leaves waits for the controller's answer, and for its last messages to be received
const AGREE_WITHIN: Nanos = Nanos::from_millis(3_000);
/// Next-header value of ICMPv6, which includes neighbour discovery
const ICMPV6: u8 = 58;

/// State of a process that other threads read.
#[derive(Debug)]
pub(crate) struct Shared {
    /// 1Pipe's time, as last published by the polling thread
    pub(crate) clock: AtomicU64,
    /// Best-effort and commit barrier; [`NONE`](Self::NONE) before there is one
    pub(crate) barrier: AtomicU64,
    pub(crate) commit: AtomicU64,
    /// Whether the process accepts messages that are stamped now
    pub(crate) open: AtomicBool,
    /// Whether the process is a member of the reliable service and may send
    pub(crate) admitted: AtomicBool,
    /// Peers that are members of the reliable service, by index
    pub(crate) members: Box<[AtomicBool]>,
    /// Peers that are known to have failed, by index
    pub(crate) dead: Box<[AtomicBool]>,
    /// The process is to leave, or the polling thread has ended: no more scatterings are accepted.
    pub(crate) closing: AtomicBool,
    /// The threads have ended because the port lost its link.
    pub(crate) lost_link: AtomicBool,
    /// What the controller has last reported, for the operator. The polling thread does not lock it
    pub(crate) report: Mutex<Option<String>>,
    /// The polling thread has ended: no more messages or events follow.
    pub(crate) closed: AtomicBool,
}

impl Shared {
    /// Marks a barrier that is not known. Timestamps have 48 bits
    pub(crate) const NONE: u64 = u64::MAX;

    pub(crate) fn new(peers: usize) -> Self {
        Self {
            clock: AtomicU64::new(0),
            barrier: AtomicU64::new(Self::NONE),
            commit: AtomicU64::new(Self::NONE),
            open: AtomicBool::new(false),
            admitted: AtomicBool::new(false),
            members: (0..peers).map(|_| AtomicBool::new(false)).collect(),
            dead: (0..peers).map(|_| AtomicBool::new(false)).collect(),
            closing: AtomicBool::new(false),
            lost_link: AtomicBool::new(false),
            report: Mutex::new(None),
            closed: AtomicBool::new(false),
        }
    }
}

/// Command from the control thread to a process.
#[derive(Debug)]
pub enum Command {
    /// Corrects 1Pipe's clock by a sample of the machine's
    Clock(ClockSample),
    /// Sets whether a peer is alive
    Alive(ProcessId, bool),
    /// Leaves.
    Leave,
}

/// Event: the process has left.
#[derive(Clone, Copy, Debug)]
pub struct ProcessLeft;

/// Progress of a process that leaves
#[derive(Clone, Copy, Debug)]
enum Leaving {
    /// Waiting until all messages are settled, but at most until this time.
    Settling(Nanos),
    /// Waiting until the controller lets the member go and all is received, but at most until this time.
    Agreeing(Nanos),
    /// Announcing the end; has left when this total number of beacons has been sent.
    Announcing(u64),
    /// The control thread is to be notified.
    Left,
    /// The control thread has been notified.
    Reported,
}

/// The polling thread's ends of the rings: scatterings to be sent, delivered messages, events
pub(crate) type Rings = (Reader<0>, Writer<ORIGIN>, Producer<Event>);

/// Length of the head of a delivery record, in bytes: timestamp and sender
pub(crate) const ORIGIN: usize = 12;

/// Returns the head of a delivery record.
#[inline]
pub(crate) fn encode_origin(timestamp: Timestamp, src: ProcessId) -> [u8; ORIGIN] {
    let mut head = [0; ORIGIN];
    head[..8].copy_from_slice(&timestamp.nanos().to_ne_bytes());
    head[8..].copy_from_slice(&src.0.to_ne_bytes());
    head
}

/// Returns the timestamp and the sender of a head.
#[inline]
pub(crate) fn decode_origin(head: &[u8; ORIGIN]) -> (Timestamp, ProcessId) {
    let [a, b, c, d, e, f, g, h, src @ ..] = *head;
    (Timestamp::new(u64::from_ne_bytes([a, b, c, d, e, f, g, h])), ProcessId(u32::from_ne_bytes(src)))
}

/// Process on a port, between the rings of its application: the switch function of the polling thread.
pub struct ProcessFunction {
    process: Process,
    sends: Reader<0>,
    deliveries: Writer<ORIGIN>,
    events: Producer<Event>,
    settled_events: bool,
    shared: Arc<Shared>,
    outbox: Outbox,
    /// Whether a frame or command has arrived that may have caused messages, events or ACKs.
    has_input: bool,
    /// Event for which the ring had no room
    event: Option<Event>,
    /// Events of a scattering that was refused here
    refused: VecDeque<Event>,
    leaving: Option<Leaving>,
    /// Membership of the reliable service, if there is a controller
    membership: Option<Box<Membership>>,
    /// Reused memory for the messages of a scattering
    list: Vec<(ProcessId, &'static [u8])>,
}

impl ProcessFunction {
    pub(crate) fn new(
        process: Process,
        settled_events: bool,
        (sends, deliveries, events): Rings,
        shared: Arc<Shared>,
    ) -> Self {
        Self {
            process,
            sends,
            deliveries,
            events,
            settled_events,
            shared,
            outbox: Outbox::default(),
            has_input: false,
            event: None,
            refused: VecDeque::new(),
            leaving: None,
            membership: None,
            list: Vec::new(),
        }
    }

    /// Lets the process take part in the reliable service.
    pub(crate) fn set_membership(&mut self, membership: Membership) {
        self.membership = Some(Box::new(membership));
    }

    /// Takes scatterings of the application, as long as the port and the process have room. Those that can be
    /// sent at once are.
    fn take_sends<O: Output>(&mut self, now: Nanos, out: &mut O) {
        // After leaving, all scatterings fail, which needs no room at the port.
        let fails = matches!(self.leaving, Some(Leaving::Announcing(_) | Leaving::Left | Leaving::Reported));
        let Self { sends, process, refused, list, outbox, membership, .. } = self;
        let mut left = SENDS_PER_TURN;
        sends.for_each(|[], record| {
            // A refused scattering has as many events as messages, so one is handled at a time.
            let has_room = fails || !(outbox.is_waiting() || out.room(PORT) == 0);
            if left == 0 || !refused.is_empty() || !has_room {
                return Taken::Not;
            }
            left -= 1;
            let is_reliable = submit::is_reliable(record.bytes());
            if let Some((dst, message)) = submit::read_one(record.bytes())
                && outbox.send_one(out, |frame| {
                    let sent = if is_reliable {
                        process.reliable_send_at_once(now, dst, message, frame)
                    } else {
                        process.send_at_once(now, dst, message, frame)
                    };
                    sent.is_some()
                })
            {
                return Taken::Yes;
            }
            let messages = submit::read(record.bytes(), core::mem::take(list));
            if let Some(membership) = membership.as_mut().filter(|_| is_reliable) {
                let taken = membership.send(process, &messages, now);
                *list = submit::clear_list(messages);
                return taken;
            }
            let taken = match process.unreliable_send(now, &messages) {
                Ok(_) => Taken::Yes,
                Err(SendError::Full) => Taken::Not,
                Err(why) => {
                    refuse(process, &messages, why, refused);
                    Taken::Yes
                }
            };
            *list = submit::clear_list(messages);
            taken
        });
    }

    /// Sends the process's pending frames.
    fn transmit<O: Output>(&mut self, now: Nanos, out: &mut O) {
        let Self { outbox, process, .. } = self;
        outbox.send(out, |frame| process.poll_transmit(now, frame));
    }

    /// Publishes clock, barriers, messages and events to the application, as far as the rings have room.
    fn publish(&mut self, now: Nanos) {
        let shared = &self.shared;
        // Before any earlier message: an application that has received a message must see a later clock.
        // Before the clock is synchronised it may go back.
        if !self.process.is_waiting() {
            shared.clock.store(self.process.timestamp(now).nanos(), Ordering::Release);
        }
        let (barrier, commit) = self.process.barriers();
        let number = |barrier: Option<Timestamp>| barrier.map_or(Shared::NONE, Timestamp::nanos);
        shared.barrier.store(number(barrier), Ordering::Relaxed);
        shared.commit.store(number(commit), Ordering::Relaxed);
        shared.open.store(self.process.is_open(now), Ordering::Relaxed);
        let Self { process, deliveries, membership, .. } = self;
        if let Some(membership) = membership {
            membership.publish(process, now);
            if membership.is_merged() {
                return self.publish_events();
            }
        }
        process.unreliable_recv_each(|timestamp, src, payload| {
            match deliveries.write_owned(encode_origin(timestamp, src), payload) {
                Err(_) if deliveries.is_abandoned() => Ok(None),
                written => written,
            }
        });
        self.deliveries.publish();
        self.publish_events();
    }

    /// Publishes events.
    #[inline]
    fn publish_events(&mut self) {
        // Several at once, because there are rarely others
        while self.settled_events && self.event.is_none() && self.refused.is_empty() {
            let next = self.process.next_events();
            let count = self.events.push_partial_slice(next).0.len();
            if count == 0 {
                break;
            }
            self.process.take_events(count);
        }
        while let Some(event) =
            self.event.take().or_else(|| self.refused.pop_front()).or_else(|| self.process.poll_event())
        {
            if !self.settled_events && matches!(event, Event::Settled { .. }) {
                continue;
            }
            if let Err(rtrb::PushError::Full(event)) = self.events.push(event)
                && !self.events.is_abandoned()
            {
                self.event = Some(event);
                break;
            }
        }
    }

    /// Advances the process's departure, if it is to leave.
    fn advance_leaving(&mut self, now: Nanos) {
        match self.leaving {
            Some(Leaving::Settling(until)) => {
                let settled = self.sends.is_empty()
                    && self.process.unsettled() == 0
                    && self.process.unsettled_reliable() == 0;
                if settled || until <= now {
                    if let Some(membership) = &mut self.membership {
                        membership.leave(&mut self.process, now);
                    }
                    self.leaving = Some(Leaving::Agreeing(now + AGREE_WITHIN));
                }
            }
            Some(Leaving::Agreeing(until)) => {
                let membership = self.membership.as_ref();
                let may_end = membership.is_none_or(|membership| membership.may_end(&self.process));
                if may_end || until <= now {
                    self.process.leave();
                    let sent = self.process.counters().beacons_sent.get();
                    self.leaving = Some(Leaving::Announcing(sent + FINAL_BEACONS));
                }
            }
            Some(Leaving::Announcing(beacons)) if self.process.counters().beacons_sent.get() >= beacons => {
                self.leaving = Some(Leaving::Left);
            }
            _ => {}
        }
    }

    /// Returns whether there is work that does not wait for a timer.
    fn is_waiting(&self) -> bool {
        self.has_input
            || self.outbox.is_waiting()
            || self.process.has_message()
            || self.membership.as_ref().is_some_and(|membership| membership.is_waiting())
            || self.event.is_some()
            || !self.refused.is_empty()
            || !self.sends.is_empty()
            // The call also sends window updates for messages that the application has just taken.
            || self.process.has_acks_to_send()
    }
}

/// Fails all messages of a scattering that the process refuses. The sender has checked everything that does
/// not change.
#[cold]
fn refuse(
    process: &mut Process,
    messages: &[(ProcessId, &[u8])],
    why: SendError,
    refused: &mut VecDeque<Event>,
) {
    let why = match why {
        SendError::Dead(_) => Failure::Dead,
        SendError::Left => Failure::Left,
        why => unreachable!("the sender has checked the scattering: {why}"),
    };
    let scattering = process.skip_number();
    let failed = |(part, &(dst, _)): (u32, &(ProcessId, &[u8]))| Event::SendFailed {
        scattering,
        timestamp: None,
        dst,
        part,
        why,
    };
    refused.extend((0..).zip(messages).map(failed));
    refused.push_back(Event::Settled { scattering, timestamp: None, failed: messages.len() as u32 });
}

/// Returns whether a frame may request an address: ARP, or ICMPv6, which includes neighbour discovery.
fn may_request_address(frame: &[u8]) -> bool {
    let Some(kind) = frame.get(Ethernet::LEN - 2..Ethernet::LEN) else { return false };
    let of = |wanted: u16| kind == wanted.to_be_bytes();
    of(ethertype::ARP) || of(ethertype::IPV6) && frame.get(Ethernet::LEN + 6) == Some(&ICMPV6)
}

impl Function for ProcessFunction {
    type Command = Command;
    type Event = ProcessLeft;

    fn on_frame<O: Output>(
        &mut self,
        frame: &mut O::Frame,
        _port: PortId,
        now: Nanos,
        _out: &mut O,
    ) -> Verdict {
        self.has_input = true;
        match self.process.on_frame(frame.bytes(), now) {
            Err(Refusal::NotOurs) if may_request_address(frame.bytes()) => Verdict::Punt,
            _ => Verdict::Consume,
        }
    }

    fn on_timer<O: Output>(&mut self, now: Nanos, out: &mut O) {
        self.has_input = false;
        if self.process.next_timer().is_some_and(|at| at <= now) {
            self.process.on_timer(now);
        }
        if let Some(membership) = &mut self.membership {
            membership.advance(&mut self.process, now);
        }
        // First the frames that precede the application's new scatterings; then those frames of the
        // scatterings that could not be sent at once.
        self.transmit(now, out);
        self.take_sends(now, out);
        self.transmit(now, out);
        self.publish(now);
        self.advance_leaving(now);
    }

    fn next_timer(&self) -> Option<Nanos> {
        if self.is_waiting() {
            return Some(Nanos::ZERO);
        }
        let membership = self.membership.as_ref().map(|membership| membership.next_timer());
        [self.process.next_timer(), membership].into_iter().flatten().min()
    }

    fn on_command(&mut self, command: Command, now: Nanos) {
        match command {
            Command::Clock(sample) => self.process.set_clock(sample, now),
            Command::Alive(id, alive) => _ = self.process.set_alive(id, alive, now),
            Command::Leave => {
                let limit = self.process.config().timeout.0.saturating_mul(LEAVE_TIMEOUTS);
                self.leaving.get_or_insert(Leaving::Settling(now + Nanos(limit)));
            }
        }
        self.has_input = true;
    }

    fn poll_event(&mut self) -> Option<ProcessLeft> {
        matches!(self.leaving, Some(Leaving::Left)).then(|| {
            self.leaving = Some(Leaving::Reported);
            ProcessLeft
        })
    }
}

impl fmt::Debug for ProcessFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host").field("process", &self.process).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
