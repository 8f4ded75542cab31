//! Membership of the reliable service in the polling thread: the controller's messages, reliable scatterings,
//! deliveries and events, between the process and rings.

use crate::function::{ORIGIN, Shared, encode_origin};
use crate::ring::{Taken, Writer};
use core::sync::atomic::Ordering;
use crossbeam_channel::{Receiver, Sender};
use onepipe::control::Envelope;
use onepipe::process::reliable::{Error, Event, Failed, Failure};
use onepipe::process::{Message, SendError, member};
use onepipe::{Process, ProcessId};
use rtrb::{Consumer, Producer};
use std::collections::VecDeque;
use std::sync::Arc;
use switch::Nanos;

/// Maximum number of events that wait for a ring
const MAX_WAITING: usize = 4096;

/// What comes from the controllers.
#[derive(Debug)]
pub(crate) enum Input {
    /// A connection has come up
    Connected,
    /// A message
    Message(Envelope),
}

/// What the control thread has to do.
#[derive(Debug)]
pub(crate) enum Output {
    /// Send a message to the controllers
    Send(Envelope),
    /// Keep it for the operator
    Report(member::Event),
}

/// Ends of the rings and channels.
pub(crate) struct Ends {
    pub(crate) inputs: Receiver<Input>,
    pub(crate) outputs: Sender<Output>,
    pub(crate) deliveries: Writer<ORIGIN>,
    pub(crate) events: Producer<Event>,
    pub(crate) failures: Producer<Failed>,
    /// Callbacks that have returned
    pub(crate) returned: Consumer<(u64, ProcessId)>,
}

/// Membership of a process, between it and the application's rings.
pub(crate) struct Membership {
    member: member::Member,
    ends: Ends,
    is_merged: bool,
    settled_events: bool,
    /// What the rings and the channel had no room for
    message: Option<Message>,
    output: Option<Output>,
    events: VecDeque<Event>,
    failures: VecDeque<Failed>,
    shared: Arc<Shared>,
}

impl Membership {
    pub(crate) fn new(
        member: member::Member,
        ends: Ends,
        (is_merged, settled_events): (bool, bool),
        shared: Arc<Shared>,
    ) -> Self {
        Self {
            member,
            ends,
            is_merged,
            settled_events,
            message: None,
            output: None,
            events: VecDeque::new(),
            failures: VecDeque::new(),
            shared,
        }
    }

    /// Returns the member's counters.
    pub(crate) fn counters(&self) -> Arc<member::Counters> {
        self.member.counters()
    }

    /// Returns whether both services have one order: then best-effort messages are delivered here.
    pub(crate) const fn is_merged(&self) -> bool {
        self.is_merged
    }

    /// Handles what has come from the controllers and the application, and the timer.
    pub(crate) fn advance(&mut self, process: &mut Process, now: Nanos) {
        let mut has_input = false;
        for input in self.ends.inputs.try_iter() {
            has_input = true;
            match input {
                Input::Connected => self.member.on_connected(process, now),
                // Refusals are counted.
                Input::Message(envelope) => _ = self.member.on_envelope(&envelope, process, now),
            }
        }
        if has_input {
            self.publish_members(process);
        }
        while let Ok((case, id)) = self.ends.returned.pop() {
            process.callback_done(case, id);
        }
        if self.member.next_timer() <= now {
            self.member.on_timer(process, now);
        }
    }

    /// Leaves the reliable service; see [`member::Member::leave`].
    pub(crate) fn leave(&mut self, process: &mut Process, now: Nanos) {
        self.member.leave(process, now);
    }

    /// Returns whether the process may end; see [`member::Member::may_end`].
    pub(crate) fn may_end(&self, process: &Process) -> bool {
        self.member.may_end(process)
    }

    /// Publishes which peers are members, which only a controller's message changes.
    fn publish_members(&self, process: &Process) {
        let members = process.members();
        for (peer, is_member) in process.config().peers.iter().zip(&self.shared.members) {
            is_member.store(members.contains(&peer.id), Ordering::Relaxed);
        }
    }

    /// Passes messages to the controllers, and deliveries and events to the application, as far as there is room.
    pub(crate) fn publish(&mut self, process: &mut Process, now: Nanos) {
        let next = |member: &mut member::Member, process: &mut Process| {
            let event = member.poll_event().map(Output::Report);
            event.or_else(|| member.poll_envelope(process, now).map(Output::Send))
        };
        while let Some(output) = self.output.take().or_else(|| next(&mut self.member, process)) {
            if let Err(full) = self.ends.outputs.try_send(output) {
                // Without the control thread, the process is about to end.
                self.output = full.is_full().then(|| full.into_inner());
                break;
            }
        }
        self.deliver(process);
        self.take_events(process);
        self.publish_events();
    }

    fn deliver(&mut self, process: &mut Process) {
        let is_merged = self.is_merged;
        let next = |process: &mut Process| {
            if is_merged { process.recv().ok().flatten() } else { process.reliable_recv() }
        };
        while let Some(message) = self.message.take().or_else(|| next(process)) {
            let Message { timestamp, src, payload } = message;
            if let Err(payload) = self.ends.deliveries.write_owned(encode_origin(timestamp, src), payload)
                && !self.ends.deliveries.is_abandoned()
            {
                self.message = Some(Message { timestamp, src, payload });
                break;
            }
        }
        self.ends.deliveries.publish();
    }

    fn take_events(&mut self, process: &mut Process) {
        while self.events.len() < MAX_WAITING
            && let Some(event) = process.poll_reliable_event()
        {
            match event {
                Event::ProcessFailed(failed) => self.failures.push_back(failed),
                Event::Settled { .. } if !self.settled_events => {}
                event => {
                    match event {
                        Event::Admitted { .. } => self.shared.admitted.store(true, Ordering::Relaxed),
                        Event::Fenced { .. } => self.shared.admitted.store(false, Ordering::Relaxed),
                        _ => {}
                    }
                    self.events.push_back(event);
                }
            }
        }
    }

    fn publish_events(&mut self) {
        while let Some(&failed) = self.failures.front()
            && self.ends.failures.push(failed).is_ok()
        {
            self.failures.pop_front();
        }
        while let Some(&event) = self.events.front()
            && (self.ends.events.push(event).is_ok() || self.ends.events.is_abandoned())
        {
            self.events.pop_front();
        }
    }

    /// Sends a reliable scattering. One that is refused fails: the application's side has checked everything that
    /// does not change.
    pub(crate) fn send(
        &mut self,
        process: &mut Process,
        messages: &[(ProcessId, &[u8])],
        now: Nanos,
    ) -> Taken {
        let why = match process.reliable_send(now, messages) {
            Ok(_) => return Taken::Yes,
            Err(Error::Send(SendError::Full)) => return Taken::Not,
            Err(Error::Send(SendError::Left)) => Failure::Left,
            Err(_) => Failure::NotAdmitted,
        };
        if self.events.len() >= MAX_WAITING {
            return Taken::Not;
        }
        let scattering = process.skip_number();
        let failed = |(part, &(dst, _)): (u32, &(ProcessId, &[u8]))| Event::SendFailed {
            scattering,
            timestamp: None,
            dst,
            part,
            why,
        };
        self.events.extend((0..).zip(messages).map(failed));
        if self.settled_events {
            let failed = messages.len() as u32;
            self.events.push_back(Event::Settled { scattering, timestamp: None, failed });
        }
        Taken::Yes
    }

    /// Returns whether there is work that does not wait for a timer.
    pub(crate) fn is_waiting(&self) -> bool {
        self.message.is_some()
            || self.output.is_some()
            || !self.events.is_empty()
            || !self.failures.is_empty()
            || !self.ends.inputs.is_empty()
            || !self.ends.returned.is_empty()
    }

    pub(crate) fn next_timer(&self) -> Nanos {
        self.member.next_timer()
    }
}
