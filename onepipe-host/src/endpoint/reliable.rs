//! Calls of the reliable service (1Pipe, Table 1 and section 5).

use super::{Endpoint, Handle, MAX_EVENTS, Receiver, Sender};
use crate::config::Controller;
use crate::membership::{Ends, Input, Output};
use crate::ring::ring;
use crate::service::{Inbox, ReliableError};
use core::sync::atomic::Ordering;
use crossbeam_channel::{Receiver as Outputs, Sender as Inputs};
use onepipe::ProcessId;
use onepipe::process::reliable::{Error, Event, Failed};
use onepipe::process::{Message, Scattering, SendError, member};
use rtrb::RingBuffer;

/// Maximum number of the controllers' messages that wait for the polling thread, and of its own for them
const MAX_CONTROL: usize = 4096;

/// Ends of the control thread: to the polling thread, and from it.
pub(super) type ControlEnds = (Inputs<Input>, Outputs<Output>);

/// Creates the rings of the reliable service.
pub(super) fn create_rings(controller: &Controller) -> (Inbox, (Ends, ControlEnds)) {
    let (deliveries, reader) = ring();
    let (to_events, events) = RingBuffer::new(MAX_EVENTS);
    let (to_failures, failures) = RingBuffer::new(MAX_EVENTS);
    let (to_returned, returned) = RingBuffer::new(MAX_EVENTS);
    let (to_inputs, inputs) = crossbeam_channel::bounded(MAX_CONTROL);
    let (to_outputs, outputs) = crossbeam_channel::bounded(MAX_CONTROL);
    let is_merged = controller.is_merged;
    let inbox = Inbox { ring: reader, events, failures, returned: to_returned, callback: None, is_merged };
    let ends =
        Ends { inputs, outputs: to_outputs, deliveries, events: to_events, failures: to_failures, returned };
    (inbox, (ends, (to_inputs, outputs)))
}

impl Handle {
    /// Returns whether the process is a member of the reliable service and may send.
    pub fn is_admitted(&self) -> bool {
        self.0.shared.admitted.load(Ordering::Relaxed)
    }

    /// Returns whether a process is a member of the reliable service, as far as this process knows; for its own
    /// number, whether it [is admitted](Self::is_admitted). A scattering to a process that is no member fails.
    pub fn is_member(&self, id: ProcessId) -> bool {
        if id == self.0.own {
            return self.is_admitted();
        }
        let index = self.0.peers.iter().position(|peer| *peer == id);
        index.is_some_and(|index| self.0.shared.members[index].load(Ordering::Relaxed))
    }

    /// Returns the counters of the membership, which stay up to date; `None` without a controller.
    pub fn member_counters(&self) -> Option<&member::Counters> {
        self.0.member_counters.as_deref()
    }

    /// Returns what the controller has last reported, or why it cannot be reached, if anything.
    pub fn controller_report(&self) -> Option<String> {
        let report = self.0.shared.report.lock();
        report.unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }
}

impl Sender {
    /// Sends messages to any members, this process included, as one scattering: all receivers that do not fail
    /// deliver it, or none does (1Pipe, Table 1, `onepipe_reliable_send`). Otherwise as
    /// [`unreliable_send`](Self::unreliable_send); [`Receiver::poll_reliable_event`] has the result.
    ///
    /// # Errors
    /// Nothing of the scattering is sent. [`SendError::Full`] is temporary. If this process or a receiver is no
    /// member any more when the polling thread has read the scattering, all of it fails as
    /// [`NotAdmitted`](onepipe::process::reliable::Failure::NotAdmitted).
    pub fn reliable_send(&mut self, messages: &[(ProcessId, &[u8])]) -> Result<Scattering, ReliableError> {
        if !self.handle.0.has_controller {
            return Err(ReliableError::NoController);
        }
        let shared = &self.handle.0.shared;
        let refused = |error: SendError| ReliableError::Service(Error::Send(error));
        if shared.closing.load(Ordering::Relaxed) {
            return Err(refused(SendError::Left));
        }
        if !shared.admitted.load(Ordering::Relaxed) {
            return Err(ReliableError::Service(Error::NotAdmitted));
        }
        self.reliable_limits.check(messages, |_| false).map_err(refused)?;
        self.submit(messages, true).map_err(refused)
    }
}

impl Receiver {
    fn inbox(&mut self) -> Result<&mut Inbox, ReliableError> {
        self.inbox.as_mut().ok_or(ReliableError::NoController)
    }

    /// Returns the next reliable message (1Pipe, Table 1, `onepipe_reliable_recv`). Calls the callbacks.
    ///
    /// # Errors
    /// There is no controller, or messages are received in the merged order.
    pub fn reliable_recv(&mut self) -> Result<Option<Message>, ReliableError> {
        self.call_back();
        let inbox = self.inbox()?;
        if inbox.is_merged { Err(ReliableError::Merged) } else { Ok(inbox.next()) }
    }

    /// Returns the next message of either service, in one order (see
    /// [`Process::recv`](onepipe::Process::recv)). Calls the callbacks. There is none before the process is a
    /// member.
    ///
    /// # Errors
    /// There is no controller, or messages are received by service: `merged` in `[controller]` selects.
    pub fn recv(&mut self) -> Result<Option<Message>, ReliableError> {
        self.call_back();
        let inbox = self.inbox()?;
        if inbox.is_merged { Ok(inbox.next()) } else { Err(ReliableError::NotMerged) }
    }

    /// Sets the callback for processes that have failed (1Pipe, Table 1, `onepipe_proc_fail_callback`), replacing
    /// an earlier one. It is called in the thread that receives or polls events, during that call. All processes
    /// wait until it has returned: one that takes longer than `respond_within_ms` of the controller, or a thread
    /// that does not receive for that long, fails its process.
    ///
    /// # Errors
    /// There is no controller.
    pub fn proc_fail_callback(
        &mut self,
        callback: impl FnMut(Failed) + Send + 'static,
    ) -> Result<(), ReliableError> {
        self.inbox()?.callback = Some(Box::new(callback));
        Ok(())
    }

    /// Returns the next event of the reliable service. Without a callback, a process that has failed is one, and
    /// counts as called back when it is returned. [`Event::Settled`] is only returned if that is
    /// [configured](crate::Settings::settled_events).
    ///
    /// # Errors
    /// There is no controller.
    pub fn poll_reliable_event(&mut self) -> Result<Option<Event>, ReliableError> {
        self.call_back();
        Ok(self.inbox()?.poll_event())
    }
}

impl Endpoint {
    /// See [`Sender::reliable_send`].
    ///
    /// # Errors
    /// Nothing of the scattering is sent.
    pub fn reliable_send(&mut self, messages: &[(ProcessId, &[u8])]) -> Result<Scattering, ReliableError> {
        self.sender.reliable_send(messages)
    }

    /// See [`Receiver::reliable_recv`].
    ///
    /// # Errors
    /// There is no controller, or messages are received in the merged order.
    pub fn reliable_recv(&mut self) -> Result<Option<Message>, ReliableError> {
        self.receiver.reliable_recv()
    }

    /// See [`Receiver::recv`].
    ///
    /// # Errors
    /// There is no controller, or messages are received by service.
    pub fn recv(&mut self) -> Result<Option<Message>, ReliableError> {
        self.receiver.recv()
    }

    /// See [`Receiver::proc_fail_callback`].
    ///
    /// # Errors
    /// There is no controller.
    pub fn proc_fail_callback(
        &mut self,
        callback: impl FnMut(Failed) + Send + 'static,
    ) -> Result<(), ReliableError> {
        self.receiver.proc_fail_callback(callback)
    }

    /// See [`Receiver::poll_reliable_event`].
    ///
    /// # Errors
    /// There is no controller.
    pub fn poll_reliable_event(&mut self) -> Result<Option<Event>, ReliableError> {
        self.receiver.poll_reliable_event()
    }
}
