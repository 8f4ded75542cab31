//! The polling thread's part: a process on a port, between the rings of its application.

use crate::ring::{Reader, Taken, Writer};
use crate::submit;
use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use representative::process::{Event, Failure, Refusal, SendError};
use representative::{Process, ProcessId};
use rnic::Outbox;
use rocev2::ethernet::{Ethernet, ethertype};
use rocev2::onepipe::Timestamp;
use rtrb::Producer;
use std::collections::VecDeque;
use std::sync::Arc;
use switch::{Frame, Function, Nanos, Output, PortId, Verdict};

/// Scatterings that are taken in one turn at most, between which frames are received
const TAKEN_A_TURN: usize = 64;
/// A process has one port
const PORT: PortId = PortId(0);
/// Beacons by which a process that leaves says so: the switch may miss one
const FAREWELLS: u64 = 3;
/// Time-outs of messages that a process that leaves waits for what is not settled
const PATIENCE: u64 = 4;
/// The next header of ICMPv6, which neighbour discovery is part of
const ICMPV6: u8 = 58;

/// What other threads read of a process.
#[derive(Debug)]
pub(crate) struct Shared {
    /// 1Pipe's time, as the polling thread last told it
    pub(crate) clock: AtomicU64,
    /// Barriers; [`NONE`](Self::NONE) before there are any
    pub(crate) barrier: AtomicU64,
    pub(crate) commit: AtomicU64,
    /// Peers that are known to have failed, by place
    pub(crate) dead: Box<[AtomicBool]>,
    /// The polling thread has ended, or is to leave: it takes nothing more.
    pub(crate) ended: AtomicBool,
    /// It has ended: nothing more is delivered, and nothing is told.
    pub(crate) gone: AtomicBool,
}

impl Shared {
    /// For a barrier: there is none. Timestamps have 48 bits
    pub(crate) const NONE: u64 = u64::MAX;

    pub(crate) fn new(peers: usize) -> Self {
        Self {
            clock: AtomicU64::new(0),
            barrier: AtomicU64::new(Self::NONE),
            commit: AtomicU64::new(Self::NONE),
            dead: (0..peers).map(|_| AtomicBool::new(false)).collect(),
            ended: AtomicBool::new(false),
            gone: AtomicBool::new(false),
        }
    }
}

/// What the control thread tells a process.
#[derive(Debug)]
pub enum Command {
    /// What the machine's clock shows
    Clock(Timestamp),
    /// Whether a peer is there
    Alive(ProcessId, bool),
    /// It is to leave.
    Leave,
}

/// It has left.
#[derive(Clone, Copy, Debug)]
pub struct Gone;

/// How far a process that leaves is
#[derive(Clone, Copy, Debug)]
enum Leaving {
    /// What was sent is waited for, but no longer than until then.
    Settling(Nanos),
    /// It has left when it has sent so many beacons.
    Saying(u64),
    /// The control thread is to be told.
    Left,
    /// It was told.
    Told,
}

/// The polling thread's ends of the rings: what is to be sent, what was delivered, events
pub(crate) type Rings = (Reader<0>, Writer<ORIGIN>, Producer<Event>);

/// Bytes of the head of a delivery: timestamp and sender
pub(crate) const ORIGIN: usize = 12;

/// The head of a delivery
#[inline]
fn head(timestamp: Timestamp, src: ProcessId) -> [u8; ORIGIN] {
    let mut head = [0; ORIGIN];
    head[..8].copy_from_slice(&timestamp.nanos().to_ne_bytes());
    head[8..].copy_from_slice(&src.0.to_ne_bytes());
    head
}

/// The timestamp and the sender in it
#[inline]
pub(crate) fn origin(head: &[u8; ORIGIN]) -> (Timestamp, ProcessId) {
    let [a, b, c, d, e, f, g, h, src @ ..] = *head;
    (Timestamp::new(u64::from_ne_bytes([a, b, c, d, e, f, g, h])), ProcessId(u32::from_ne_bytes(src)))
}

/// A process on a port, between the rings of its application.
pub struct Host {
    process: Process,
    sends: Reader<0>,
    deliveries: Writer<ORIGIN>,
    events: Producer<Event>,
    tell_settled: bool,
    shared: Arc<Shared>,
    outbox: Outbox,
    /// Something came that may have to be told or answered.
    has_come: bool,
    /// An event for which there was no room
    event: Option<Event>,
    /// Events of a scattering that was refused here
    refused: VecDeque<Event>,
    leaving: Option<Leaving>,
    /// Memory for the messages of a scattering
    list: Vec<(ProcessId, &'static [u8])>,
}

impl Host {
    pub(crate) fn new(
        process: Process,
        tell_settled: bool,
        (sends, deliveries, events): Rings,
        shared: Arc<Shared>,
    ) -> Self {
        Self {
            process,
            sends,
            deliveries,
            events,
            tell_settled,
            shared,
            outbox: Outbox::default(),
            has_come: false,
            event: None,
            refused: VecDeque::new(),
            leaving: None,
            list: Vec::new(),
        }
    }

    /// Takes what the application wants sent, as long as the wire and the process have room. What can leave at once, does.
    fn take_sends<O: Output>(&mut self, now: Nanos, out: &mut O) {
        // Whoever has left sends nothing: all fails, for which no room is needed.
        let fails = matches!(self.leaving, Some(Leaving::Saying(_) | Leaving::Left | Leaving::Told));
        let Self { sends, process, refused, list, outbox, .. } = self;
        let mut left = TAKEN_A_TURN;
        sends.each(|[], record| {
            // A scattering that is refused has as many events as messages: one at a time.
            let has_room = fails || !(outbox.is_waiting() || out.room(PORT) == 0);
            if left == 0 || !refused.is_empty() || !has_room {
                return Taken::Not;
            }
            left -= 1;
            if let Some((dst, message)) = submit::read_one(record.bytes())
                && outbox.send_one(out, |frame| process.send_at_once(now, dst, message, frame).is_some())
            {
                return Taken::Yes;
            }
            let messages = submit::read(record.bytes(), core::mem::take(list));
            let taken = match process.unreliable_send(now, &messages) {
                Ok(_) => Taken::Yes,
                Err(SendError::Full) => Taken::Not,
                Err(why) => {
                    refuse(process, &messages, why, refused);
                    Taken::Yes
                }
            };
            *list = submit::forget(messages);
            taken
        });
    }

    /// Sends what the process has to send.
    fn transmit<O: Output>(&mut self, now: Nanos, out: &mut O) {
        let Self { outbox, process, .. } = self;
        outbox.send(out, |frame| process.poll_transmit(now, frame));
    }

    /// Tells the application what there is, as far as it has room.
    fn tell(&mut self, now: Nanos) {
        let shared = &self.shared;
        // Before any message that is earlier: whoever has seen it is to see a clock that is past it.
        shared.clock.store(self.process.timestamp(now).nanos(), Ordering::Release);
        let (barrier, commit) = self.process.barriers();
        let number = |barrier: Option<Timestamp>| barrier.map_or(Shared::NONE, Timestamp::nanos);
        shared.barrier.store(number(barrier), Ordering::Relaxed);
        shared.commit.store(number(commit), Ordering::Relaxed);
        let Self { process, deliveries, .. } = self;
        process.unreliable_recv_each(|timestamp, src, payload| {
            match deliveries.write_owned(head(timestamp, src), payload) {
                Err(_) if deliveries.is_abandoned() => Ok(None),
                written => written,
            }
        });
        self.deliveries.publish();
        self.tell_events();
    }

    /// The same of events
    fn tell_events(&mut self) {
        // Some at once, as nearly always there are no others
        while self.tell_settled && self.event.is_none() && self.refused.is_empty() {
            let next = self.process.next_events();
            let told = self.events.push_partial_slice(next).0.len();
            if told == 0 {
                break;
            }
            self.process.take_events(told);
        }
        while let Some(event) =
            self.event.take().or_else(|| self.refused.pop_front()).or_else(|| self.process.poll_event())
        {
            if !self.tell_settled && matches!(event, Event::Settled { .. }) {
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

    /// Goes on to leave, if it is to.
    fn go_on_leaving(&mut self, now: Nanos) {
        match self.leaving {
            Some(Leaving::Settling(until)) => {
                let settled = self.sends.is_empty() && self.process.unsettled() == 0;
                if settled || until <= now {
                    self.process.leave();
                    let sent = self.process.counters().beacons_sent.get();
                    self.leaving = Some(Leaving::Saying(sent + FAREWELLS));
                }
            }
            Some(Leaving::Saying(beacons)) if self.process.counters().beacons_sent.get() >= beacons => {
                self.leaving = Some(Leaving::Left);
            }
            _ => {}
        }
    }

    /// Whether something waits that is not a matter of time
    fn is_waiting(&self) -> bool {
        self.has_come
            || self.outbox.is_waiting()
            || self.process.has_message()
            || self.event.is_some()
            || !self.refused.is_empty()
            || !self.sends.is_empty()
            // Of what the application has just taken, too
            || self.process.has_answers()
    }
}

/// A scattering that the process does not take: all of it fails. The handle has checked whatever does not change.
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
        why => unreachable!("the sender has checked it: {why}"),
    };
    let scattering = process.skip();
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

/// Whether a frame may ask for an address: ARP, or what neighbour discovery is part of
fn asks(frame: &[u8]) -> bool {
    let Some(kind) = frame.get(Ethernet::LEN - 2..Ethernet::LEN) else { return false };
    let of = |wanted: u16| kind == wanted.to_be_bytes();
    of(ethertype::ARP) || of(ethertype::IPV6) && frame.get(Ethernet::LEN + 6) == Some(&ICMPV6)
}

impl Function for Host {
    type Command = Command;
    type Event = Gone;

    fn on_frame<O: Output>(
        &mut self,
        frame: &mut O::Frame,
        _port: PortId,
        now: Nanos,
        _out: &mut O,
    ) -> Verdict {
        self.has_come = true;
        match self.process.on_frame(frame.bytes(), now) {
            Err(Refusal::NotOurs) if asks(frame.bytes()) => Verdict::Punt,
            _ => Verdict::Consume,
        }
    }

    fn on_timer<O: Output>(&mut self, now: Nanos, out: &mut O) {
        self.has_come = false;
        if self.process.next_timer().is_some_and(|at| at <= now) {
            self.process.on_timer(now);
        }
        // What is before the messages that the application has sent since; and what of them could not leave at once.
        self.transmit(now, out);
        self.take_sends(now, out);
        self.transmit(now, out);
        self.tell(now);
        self.go_on_leaving(now);
    }

    fn next_timer(&self) -> Option<Nanos> {
        if self.is_waiting() { Some(Nanos::ZERO) } else { self.process.next_timer() }
    }

    fn on_command(&mut self, command: Command, now: Nanos) {
        match command {
            Command::Clock(clock) => self.process.set_clock(clock, now),
            Command::Alive(id, alive) => _ = self.process.set_alive(id, alive, now),
            Command::Leave => {
                let patience = self.process.config().timeout.0.saturating_mul(PATIENCE);
                self.leaving.get_or_insert(Leaving::Settling(now + Nanos(patience)));
            }
        }
        self.has_come = true;
    }

    fn poll_event(&mut self) -> Option<Gone> {
        matches!(self.leaving, Some(Leaving::Left)).then(|| {
            self.leaving = Some(Leaving::Told);
            Gone
        })
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host").field("process", &self.process).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
