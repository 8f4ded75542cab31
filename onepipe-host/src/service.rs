//! The application's interface to the reliable service (1Pipe, Table 1 and section 5).

use crate::function::{ORIGIN, decode_origin};
use crate::ring::Reader;
use onepipe::ProcessId;
use onepipe::process::Message;
use onepipe::process::reliable::{self, Event, Failed};
use rtrb::{Consumer, Producer};

/// Reason why a call of the reliable service was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReliableError {
    /// The configuration has no controller
    #[error("the reliable service needs a controller; write [controller] into the process's file")]
    NoController,
    /// Messages are received in the merged order
    #[error("[controller] has merged = true; receive both services by recv, or remove it")]
    Merged,
    /// Messages are received by service
    #[error("[controller] has merged = false; write merged = true, or receive each service by its own call")]
    NotMerged,
    /// The service has refused the scattering
    #[error(transparent)]
    Service(#[from] reliable::Error),
}

/// Callback for processes that failed
type Callback = Box<dyn FnMut(Failed) + Send>;

/// Receiving half of the reliable service.
pub(crate) struct Inbox {
    pub(crate) ring: Reader<ORIGIN>,
    pub(crate) events: Consumer<Event>,
    pub(crate) failures: Consumer<Failed>,
    pub(crate) returned: Producer<(u64, ProcessId)>,
    pub(crate) callback: Option<Callback>,
    pub(crate) is_merged: bool,
}

impl Inbox {
    /// Returns the next message. Calls the callback for processes that have failed.
    pub(crate) fn next(&mut self) -> Option<Message> {
        self.call_back();
        let mut message = None;
        self.ring.next(|head, body| {
            let (timestamp, src) = decode_origin(head);
            message = Some(Message { timestamp, src, payload: body.into_vec() });
            true
        });
        message
    }

    /// Calls the callback for processes that have failed, and tells the controller when it has returned.
    pub(crate) fn call_back(&mut self) {
        let Some(callback) = &mut self.callback else { return };
        // A full ring keeps the failure for the next call.
        while !self.returned.is_full()
            && let Ok(failed) = self.failures.pop()
        {
            callback(failed);
            _ = self.returned.push((failed.case, failed.process));
        }
    }

    /// Returns the next event. Without a callback, a process that failed is one, and counts as called back.
    pub(crate) fn poll_event(&mut self) -> Option<Event> {
        self.call_back();
        if self.callback.is_none()
            && !self.returned.is_full()
            && let Ok(failed) = self.failures.pop()
        {
            _ = self.returned.push((failed.case, failed.process));
            return Some(Event::ProcessFailed(failed));
        }
        self.events.pop().ok()
    }
}
