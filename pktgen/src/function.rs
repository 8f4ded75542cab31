//! The generator as a function: what it sends when time has come, and what it makes of what comes in.

use crate::counters::{Counters, StreamCounters};
use crate::emitter::{Emitter, NEVER};
use crate::profile::{Profile, ProfileError};
use crate::receiver::Receiver;
use std::sync::Arc;
use switch::{Frame, Function, Nanos, Output, PortId, Verdict};

/// How often it is looked whether the last packets have come
const LOOK: Nanos = Nanos::from_micros(100);
/// What a worker's turn may take. Who is not looked after for longer was not there
const TURN: Nanos = Nanos::from_micros(20);

/// What the control plane can tell a generator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Begin to send
    Begin,
    /// Send no more, wait for what is under way, and say that it is [done](Event::Done)
    End,
}

/// What a generator tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Everything was sent, and has come or been waited for
    Done,
}

/// Where a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Until it is told to begin
    Ready,
    /// Since then
    Sending(Nanos),
    /// Everything is sent; packets are waited for until then
    Draining(Nanos),
    /// It is to be told
    Ended,
    Done,
}

/// A packet generator, its receiver and its responder.
pub struct Pktgen {
    emitters: Box<[Emitter]>,
    receiver: Receiver,
    send: PortId,
    receive: Option<PortId>,
    responds: bool,
    /// Whether what comes to the port that sends is looked at
    listens: bool,
    duration: Option<Nanos>,
    drain: Nanos,
    catch_up: Nanos,
    state: State,
    next: Nanos,
    /// When it was looked last whether something is due
    looked: Nanos,
    /// For how long nobody looked though something was due, but for what turns may take
    absent: Nanos,
    /// Whether a stream waits for answers
    waits: bool,
    /// Whose turn it is to be the first that a port has room for
    turn: usize,
    counters: Arc<Counters>,
}

impl Pktgen {
    /// A generator of this profile.
    pub fn new(profile: &Profile) -> Result<Self, ProfileError> {
        profile.check()?;
        let emitters: Box<[_]> =
            (0..profile.streams.len()).map(|index| Emitter::new(profile, index)).collect::<Result<_, _>>()?;
        Ok(Self {
            receiver: Receiver::new(profile, &emitters)?,
            waits: emitters.iter().any(Emitter::waits),
            emitters,
            send: profile.send,
            receive: profile.receive,
            responds: profile.respond,
            listens: profile.listens(),
            duration: profile.duration,
            drain: profile.drain,
            catch_up: profile.catch_up,
            state: State::Ready,
            next: Nanos::ZERO,
            looked: Nanos::ZERO,
            absent: Nanos::ZERO,
            turn: 0,
            counters: Arc::new(Counters::new(profile.streams.len())),
        })
    }

    /// What it has counted so far, and goes on to count.
    pub fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.counters)
    }

    /// Whether nothing is to be waited for any more. What was overtaken may still come.
    fn all_came(&self) -> bool {
        let came = |counters: &StreamCounters, emitter: &Emitter| {
            // Of our own responder, it is known how many answers are to come.
            let answers = counters.responses.get() - counters.cnps.get();
            (self.receive.is_none() || counters.received.frames.get() == counters.sent.frames.get())
                && (!self.responds || answers >= counters.replies.get())
                && !emitter.awaits()
        };
        self.counters.streams.iter().zip(&self.emitters).all(|(counters, emitter)| came(counters, emitter))
    }

    /// Nothing is sent any more: what was to be sent was to be sent until then.
    fn end(&mut self, now: Nanos, until: Nanos) {
        for (emitter, counters) in self.emitters.iter_mut().zip(&self.counters.streams) {
            emitter.end(until, counters);
        }
        self.state = State::Draining(now + self.drain);
        self.next = now;
    }

    /// Sends what is due. Streams take turns: each has its part of the room that its port has left, and who was first is last the
    /// next time, so that a port that is full starves none.
    fn send_due<O: Output>(&mut self, began: Nanos, now: Nanos, out: &mut O) {
        let limit = self.duration.map_or(NEVER, |duration| began + duration);
        // What came due in time is sent, though the worker may look at the clock late.
        let (at, late, ends) = (now.min(limit), now.since(limit), now >= limit);
        // At the end, a part of a burst may be due.
        let due = |emitter: &Emitter| {
            if ends { emitter.is_paced() && !emitter.is_over() } else { emitter.due <= at }
        };
        let mut waiting = self.emitters.iter().filter(|emitter| due(emitter)).count();
        let (mut next, mut over, mut owes, mut first) = (limit, true, false, None);
        for n in 0..self.emitters.len() {
            let index = self.turn + n;
            let index = if index < self.emitters.len() { index } else { index - self.emitters.len() };
            let (emitter, counters) = (&mut self.emitters[index], &self.counters.streams[index]);
            if due(emitter) {
                let share = out.room(self.send).div_ceil(waiting) as u64;
                emitter.live(now.since(self.absent));
                let sent = emitter.emit((now, at, ends), share, self.send, out, &self.counters, counters);
                waiting -= 1;
                if sent > 0 {
                    first = first.or(Some(index));
                }
            }
            next = next.min(emitter.due);
            over &= emitter.is_over();
            owes |= emitter.is_paced() && emitter.due <= limit;
        }
        if let Some(first) = first {
            self.turn = if first + 1 < self.emitters.len() { first + 1 } else { 0 };
        }
        // Who waits for answers has to know when it was away.
        self.next = if self.waits { next.min(now + TURN) } else { next };
        if over || (ends && (!owes || late >= self.catch_up)) {
            self.end(now, at);
        }
    }

    /// How long it took until somebody looked at what was due.
    #[inline]
    fn note_absence(&mut self, now: Nanos) {
        let away = now.since(self.next.max(self.looked)).0;
        let longest = self.counters.longest_away_ns.get();
        if away > longest {
            self.counters.longest_away_ns.add(away - longest);
        }
        self.absent = self.absent + Nanos(away.saturating_sub(TURN.0));
        self.looked = now;
    }
}

impl Function for Pktgen {
    type Command = Command;
    type Event = Event;

    #[inline]
    fn on_frame<O: Output>(
        &mut self,
        frame: &mut O::Frame,
        port: PortId,
        now: Nanos,
        out: &mut O,
    ) -> Verdict {
        // What has been told is not changed any more.
        if matches!(self.state, State::Ended | State::Done) {
            self.counters.too_late.add(1);
        } else {
            self.receiver.on_frame(frame, port, now, &mut self.emitters, out, &self.counters);
        }
        Verdict::Consume
    }

    #[inline]
    fn prefetch_state(&self, frame: &impl Frame, fetch: impl Fn(*const u8)) {
        self.receiver.foresee(frame, fetch);
    }

    fn on_timer<O: Output>(&mut self, now: Nanos, out: &mut O) {
        match self.state {
            State::Sending(began) => {
                self.note_absence(now);
                self.send_due(began, now, out);
            }
            State::Draining(until) => {
                self.note_absence(now);
                let all_came = self.all_came();
                if now >= until || all_came {
                    self.state = State::Ended;
                    self.counters.drain_expired.add(u64::from(!all_came));
                    for (index, counters) in self.counters.streams.iter().enumerate() {
                        counters.behind.add(self.receiver.behind(index, &self.emitters[index]));
                        counters.waiting.add(self.emitters[index].under_way());
                    }
                }
                self.next = (now + LOOK).min(until);
            }
            State::Ready | State::Ended | State::Done => {}
        }
    }

    #[inline]
    fn next_timer(&self) -> Option<Nanos> {
        (!matches!(self.state, State::Ready | State::Ended | State::Done)).then_some(self.next)
    }

    fn on_command(&mut self, command: Command, now: Nanos) {
        match (command, self.state) {
            (Command::Begin, State::Ready) => {
                for emitter in &mut self.emitters {
                    emitter.begin(now, self.catch_up);
                }
                self.state = State::Sending(now);
                (self.next, self.looked) = (now, now);
            }
            (Command::End, State::Ready | State::Sending(_)) => self.end(now, now),
            _ => {}
        }
    }

    #[inline]
    fn poll_event(&mut self) -> Option<Event> {
        if self.state != State::Ended {
            return None;
        }
        self.state = State::Done;
        Some(Event::Done)
    }

    fn receives_from(&self, port: PortId) -> bool {
        self.receive == Some(port) || (self.listens && self.send == port)
    }
}

#[cfg(test)]
pub(crate) mod tests;
