//! The generator as a [`Function`]: the state machine of a run, which sends when the timer is due and passes
//! received frames to the receiver.

use crate::counters::{Counters, StreamCounters};
use crate::error::ProfileError;
use crate::pace::Rate;
use crate::part::{Division, Part, Share};
use crate::profile::Profile;
use crate::rates::RateMark;
use crate::receiver::Receiver;
use crate::schedule::NEVER;
use crate::sender::Sender;
use std::sync::Arc;
use switch::{Frame, Function, Nanos, Output, PortId, Verdict};

/// Interval of the checks whether the last packets have arrived
const CHECK_INTERVAL: Nanos = Nanos::from_micros(100);
/// Longest turn of a worker: a longer time between two calls of the timer counts as absence
const MAX_TURN: Nanos = Nanos::from_micros(20);

/// Commands from the control plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Begin sending
    Begin {
        /// Time at which the rates of several workers begin; one that gets the command later catches up. One worker alone
        /// begins when it gets the command
        at: Nanos,
    },
    /// Stop sending, wait for outstanding packets and responses, then report [`Event::Done`], or with several workers
    /// [`Event::Drained`]
    End,
    /// End the run of an instance that has reported [`Event::Drained`], because all have
    Finish,
    /// Send a stream at another rate from now on, and report [`Event::RateChanged`]. The next command for this
    /// stream has to wait for that
    SetRate {
        /// Index of the stream
        stream: usize,
        /// New rate
        rate: Rate,
    },
}

/// Events for the control plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// All packets were sent, and have arrived or were waited for: the counters are final
    Done,
    /// One of several workers has sent all its packets, and these have arrived or were waited for. It still counts frames
    /// of the others' streams, until [`Command::Finish`]
    Drained,
    /// The rate of a stream was changed; contains what the stream had sent before
    RateChanged {
        /// Index of the stream
        stream: usize,
        /// What it had sent
        mark: RateMark,
    },
}

/// Phase of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Waits for [`Command::Begin`]
    Ready,
    /// Sends, since this time
    Sending(Nanos),
    /// Everything was sent; waits for outstanding packets until this time at most
    Draining(Nanos),
    /// Waits for the other workers; [`Event::Drained`] is not reported yet
    Drained,
    /// Waits for [`Command::Finish`]
    Waiting,
    /// Over; [`Event::Done`] is not reported yet
    Ended,
    Done,
}

/// A packet generator, its receiver and its responder: one [`Function`]. With several workers, each has an instance, which
/// sends and checks what is on some of each stream's queue pairs.
pub struct Pktgen {
    division: Division,
    /// Index in the profile of each stream that the instance has a part of
    streams: Box<[usize]>,
    /// By stream of the instance
    senders: Box<[Sender]>,
    receiver: Receiver,
    send: PortId,
    receive: Option<PortId>,
    responds: bool,
    /// Whether frames from the port that sends are processed
    polls_send_port: bool,
    duration: Option<Nanos>,
    drain: Nanos,
    catch_up: Nanos,
    state: State,
    next: Nanos,
    /// Time of the last check whether something is due
    last_check: Nanos,
    /// Time during which something was due and the worker did not call the timer, without what a turn may
    /// take
    absence: Nanos,
    /// Whether a stream limits its outstanding requests
    limits_outstanding: bool,
    /// What each stream of the profile had sent when its rate was changed, until it is reported
    marks: Box<[Option<RateMark>]>,
    /// Number of marks
    marked: usize,
    /// Index of the stream that is first to use the port's room
    first_stream: usize,
    counters: Arc<Counters>,
}

impl Pktgen {
    /// Creates a generator for the profile. It sends nothing before [`Command::Begin`].
    ///
    /// # Errors
    ///
    /// The profile is invalid, or there is too little memory for its state ([`ProfileError::Memory`]).
    pub fn new(profile: &Profile) -> Result<Self, ProfileError> {
        Self::of_worker(profile, 0, 1)
    }

    /// Creates the instance of worker `worker` of `workers`, which are counted from 0. All instances get the same commands,
    /// and all report what these cause.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new); or a worker would have nothing to do ([`ProfileError::Workers`]).
    ///
    /// # Panics
    /// If there is no such worker.
    pub fn of_worker(profile: &Profile, worker: usize, workers: usize) -> Result<Self, ProfileError> {
        assert!(worker < workers, "worker {worker} of {workers}");
        profile.check()?;
        profile.check_workers(workers)?;
        let division = Division::new(profile, workers);
        let parts = division.parts(profile, worker);
        let senders: Box<[_]> =
            parts.iter().map(|part| Sender::new(profile, part)).collect::<Result<_, _>>()?;
        Ok(Self {
            receiver: Receiver::new(profile, &parts, &senders)?,
            division,
            counters: Arc::new(Counters::new(senders.len())),
            streams: parts.iter().map(|part: &Part| part.index).collect(),
            limits_outstanding: senders.iter().any(Sender::limits_outstanding),
            senders,
            send: profile.send,
            receive: profile.receive,
            responds: profile.respond,
            polls_send_port: profile.polls_send_port(),
            duration: profile.duration,
            drain: profile.drain,
            catch_up: profile.catch_up,
            state: State::Ready,
            next: Nanos::ZERO,
            last_check: Nanos::ZERO,
            absence: Nanos::ZERO,
            marks: vec![None; profile.streams.len()].into(),
            marked: 0,
            first_stream: 0,
        })
    }

    /// Returns the bytes of memory for the state of all queue pairs of a profile: next PSNs, windows,
    /// outstanding requests, and the words of atomics.
    pub fn state_bytes(profile: &Profile) -> u64 {
        let of = |stream| Sender::bytes_of(stream) + Receiver::bytes_of(profile, stream);
        profile.streams.iter().map(of).sum()
    }

    /// Returns the counters, which are updated during the run. Their streams are those of which the instance has a
    /// part; [`Totals`](crate::Totals) adds those of all workers.
    pub fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.counters)
    }

    /// Returns the index in the profile of each stream that the instance has a part of, and its share of the stream's
    /// rate.
    pub(crate) fn streams(&self) -> impl Iterator<Item = (usize, Share)> {
        self.streams.iter().copied().zip(self.senders.iter().map(|sender| sender.schedule().share()))
    }

    /// Returns the mean length of a stream's packets on the wire, in bits, if the instance has a part of the stream.
    pub fn packet_bits(&self, stream: usize) -> Option<u64> {
        let own = self.streams.iter().position(|index| *index == stream)?;
        Some(self.senders[own].schedule().packet_bits())
    }

    /// Changes the rate of a stream, if it exists and the run has not ended.
    #[cold]
    fn set_rate(&mut self, stream: usize, rate: Rate, now: Nanos) {
        let Some(mark) = self.marks.get_mut(stream) else { return };
        // Nothing is sent before the run begins.
        let now = if let State::Sending(began) = self.state { now.max(began) } else { now };
        // An instance without a part of the stream has sent nothing of it.
        let mut sent = RateMark::default();
        if let Some(own) = self.streams.iter().position(|index| *index == stream) {
            let counters = &self.counters.streams[own];
            self.senders[own].schedule_mut().change(rate, now, counters);
            sent = RateMark::of(counters);
        }
        let unreported = mark.replace(sent);
        self.marked += usize::from(unreported.is_none());
        if matches!(self.state, State::Sending(_)) {
            self.next = now;
        }
    }

    /// Returns whether the drain can end: all packets and responses have arrived. Overtaken packets may still
    /// arrive, so they are waited for.
    fn all_received(&self) -> bool {
        let is_complete = |counters: &StreamCounters, sender: &Sender| {
            // Our own responder has counted how many responses are to arrive.
            let responses = counters.responses.get() - counters.cnps.get();
            (self.receive.is_none() || counters.received.frames.get() == counters.sent.frames.get())
                && (!self.responds || responses >= counters.replies.get())
                && !sender.awaits_response()
        };
        self.counters
            .streams
            .iter()
            .zip(&self.senders)
            .all(|(counters, sender)| is_complete(counters, sender))
    }

    /// Stops sending. Streams were to send until `until`, which may be before `now`.
    fn end(&mut self, now: Nanos, until: Nanos) {
        for (sender, counters) in self.senders.iter_mut().zip(&self.counters.streams) {
            sender.schedule_mut().end(until, counters);
        }
        self.state = State::Draining(now + self.drain);
        self.next = now;
    }

    /// Sends what is due. Streams take turns: each gets its share of the port's remaining room, and the
    /// stream that was first is last the next time, so that a full port starves none.
    fn send_due<O: Output>(&mut self, began: Nanos, now: Nanos, out: &mut O) {
        let limit = self.duration.map_or(NEVER, |duration| began + duration);
        // Packets that came due in time are sent even if the worker calls late.
        let (at, late, ends) = (now.min(limit), now.since(limit), now >= limit);
        let due = |sender: &Sender| sender.schedule().is_due(at, ends);
        let mut waiting = self.senders.iter().filter(|sender| due(sender)).count();
        let (mut next, mut all_sent, mut pending, mut first) = (limit, true, false, None);
        for n in 0..self.senders.len() {
            let index = self.first_stream + n;
            let index = if index < self.senders.len() { index } else { index - self.senders.len() };
            let (sender, counters) = (&mut self.senders[index], &self.counters.streams[index]);
            if due(sender) {
                let share = out.room(self.send).div_ceil(waiting) as u64;
                sender.set_run_time(now.since(self.absence));
                let sent = sender.send((now, at, ends), share, self.send, out, &self.counters, counters);
                waiting -= 1;
                if sent > 0 {
                    first = first.or(Some(index));
                }
            }
            let schedule = sender.schedule();
            next = next.min(schedule.due());
            all_sent &= schedule.is_over();
            pending |= schedule.is_pending(limit);
        }
        if let Some(first) = first {
            self.first_stream = if first + 1 < self.senders.len() { first + 1 } else { 0 };
        }
        // A stream that waits for responses has to detect when the worker was away.
        self.next = if self.limits_outstanding { next.min(now + MAX_TURN) } else { next };
        if all_sent || (ends && (!pending || late >= self.catch_up)) {
            self.end(now, at);
        }
    }

    /// Ends the run: counts what the state of queue pairs shows.
    fn finish(&mut self) {
        self.state = State::Ended;
        for (index, counters) in self.counters.streams.iter().enumerate() {
            counters.behind.add(self.receiver.behind(index, &self.senders[index]));
            counters.waiting.add(self.senders[index].outstanding());
        }
    }

    /// Notes how long something was due before the worker called the timer.
    #[inline]
    fn note_absence(&mut self, now: Nanos) {
        let away = now.since(self.next.max(self.last_check)).0;
        self.counters.longest_away_ns.raise(away);
        self.absence = self.absence + Nanos(away.saturating_sub(MAX_TURN.0));
        self.last_check = now;
    }
}

impl Function for Pktgen {
    type Command = Command;
    type Event = Event;

    const HAS_OWNERS: bool = true;

    #[inline]
    fn owner(&self, frame: &impl Frame, _port: PortId) -> Option<usize> {
        self.division.owner(frame.bytes())
    }

    #[inline]
    fn on_frame<O: Output>(
        &mut self,
        frame: &mut O::Frame,
        port: PortId,
        now: Nanos,
        out: &mut O,
    ) -> Verdict {
        // Counters are final after the end.
        if matches!(self.state, State::Ended | State::Done) {
            self.counters.too_late.add(1);
        } else {
            self.receiver.on_frame(frame, port, now, &mut self.senders, out, &self.counters);
        }
        Verdict::Consume
    }

    #[inline]
    fn prefetch_state(&self, frame: &impl Frame, fetch: impl Fn(*const u8)) {
        self.receiver.prefetch(frame, fetch);
    }

    fn on_timer<O: Output>(&mut self, now: Nanos, out: &mut O) {
        match self.state {
            State::Sending(began) => {
                self.note_absence(now);
                self.send_due(began, now, out);
            }
            State::Draining(until) => {
                self.note_absence(now);
                let all_received = self.all_received();
                if now >= until || all_received {
                    self.counters.drain_expired.add(u64::from(!all_received));
                    if self.division.workers() > 1 {
                        self.state = State::Drained;
                    } else {
                        self.finish();
                    }
                }
                self.next = (now + CHECK_INTERVAL).min(until);
            }
            State::Ready | State::Drained | State::Waiting | State::Ended | State::Done => {}
        }
    }

    #[inline]
    fn next_timer(&self) -> Option<Nanos> {
        matches!(self.state, State::Sending(_) | State::Draining(_)).then_some(self.next)
    }

    fn on_command(&mut self, command: Command, now: Nanos) {
        match (command, self.state) {
            (Command::Begin { at }, State::Ready) => {
                // One worker waits for no other.
                let at = if self.division.workers() > 1 { at } else { now };
                for sender in &mut self.senders {
                    sender.schedule_mut().begin(at, self.catch_up);
                }
                self.state = State::Sending(at);
                (self.next, self.last_check) = (at, at);
            }
            (Command::Finish, State::Drained | State::Waiting) => self.finish(),
            (Command::End, State::Ready | State::Sending(_)) => self.end(now, now),
            (Command::SetRate { stream, rate }, _) => self.set_rate(stream, rate, now),
            _ => {}
        }
    }

    #[inline]
    fn poll_event(&mut self) -> Option<Event> {
        if self.marked > 0 {
            let mut marks = self.marks.iter_mut().enumerate();
            if let Some((stream, mark)) = marks.find_map(|(stream, mark)| Some((stream, mark.take()?))) {
                self.marked -= 1;
                return Some(Event::RateChanged { stream, mark });
            }
        }
        let (next, event) = match self.state {
            State::Drained => (State::Waiting, Event::Drained),
            State::Ended => (State::Done, Event::Done),
            _ => return None,
        };
        self.state = next;
        Some(event)
    }

    fn receives_from(&self, port: PortId) -> bool {
        self.receive == Some(port) || (self.polls_send_port && self.send == port)
    }
}

#[cfg(test)]
pub(crate) mod tests;
