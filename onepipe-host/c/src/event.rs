//! Events of both services.

use crate::error::{Error, reliable_failure_number};
use crate::{NO_TIMESTAMP, OnePipe};
use core::ffi::c_int;
use onepipe_host::{Event, Receiver, Scattering, Timestamp, reliable};

/// `enum onepipe_event_kind`
#[cfg(test)]
pub(crate) const EVENTS: [(&str, c_int); 6] = [
    ("ONEPIPE_EVENT_ADMITTED", ADMITTED),
    ("ONEPIPE_EVENT_FENCED", FENCED),
    ("ONEPIPE_EVENT_STALLED", STALLED),
    ("ONEPIPE_EVENT_RECOVERED", RECOVERED),
    ("ONEPIPE_EVENT_SEND_FAILED", SEND_FAILED),
    ("ONEPIPE_EVENT_SETTLED", SETTLED),
];
const ADMITTED: c_int = 1;
const FENCED: c_int = 2;
const STALLED: c_int = 3;
const RECOVERED: c_int = 4;
const SEND_FAILED: c_int = 5;
const SETTLED: c_int = 6;

/// `onepipe_event_t`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct OnePipeEvent {
    /// Value of `enum onepipe_event_kind`
    pub kind: c_int,
    /// Value of `enum onepipe_failure`, or 0
    pub why: c_int,
    /// Number of the scattering, or 0
    pub scattering: u64,
    /// Timestamp, or `NO_TIMESTAMP`
    pub timestamp: u64,
    /// Receiver, or 0
    pub dst: u32,
    /// Index of the message among those of the call, or 0
    pub part: u32,
    /// Number of the scattering's messages that have failed, or 0
    pub failed: u32,
    /// Incarnation of this process, or 0
    pub incarnation: u32,
}

impl OnePipeEvent {
    const fn of(kind: c_int) -> Self {
        let timestamp = NO_TIMESTAMP;
        Self { kind, why: 0, scattering: 0, timestamp, dst: 0, part: 0, failed: 0, incarnation: 0 }
    }

    fn of_scattering(kind: c_int, scattering: Scattering, timestamp: Option<Timestamp>) -> Self {
        let timestamp = timestamp.map_or(NO_TIMESTAMP, Timestamp::nanos);
        Self { scattering: scattering.0, timestamp, ..Self::of(kind) }
    }

    /// Returns an event of best effort in C's form; `None` for those that have a callback.
    fn of_best_effort(event: Event) -> Option<Self> {
        match event {
            Event::Settled { scattering, timestamp, failed } => {
                Some(Self { failed, ..Self::of_scattering(SETTLED, scattering, timestamp) })
            }
            Event::SendFailed { .. } | Event::Stalled { .. } | Event::Recovered { .. } => None,
        }
    }

    /// Returns an event of the reliable service in C's form; `None` for a failed process, which has a callback.
    fn of_reliable(event: reliable::Event) -> Option<Self> {
        Some(match event {
            reliable::Event::Admitted { incarnation } => Self { incarnation, ..Self::of(ADMITTED) },
            reliable::Event::Fenced { timestamp } => {
                Self { timestamp: timestamp.nanos(), ..Self::of(FENCED) }
            }
            reliable::Event::Stalled => Self::of(STALLED),
            reliable::Event::Recovered => Self::of(RECOVERED),
            reliable::Event::SendFailed { scattering, timestamp, dst, part, why } => {
                let why = reliable_failure_number(why);
                Self { why, dst: dst.0, part, ..Self::of_scattering(SEND_FAILED, scattering, timestamp) }
            }
            reliable::Event::Settled { scattering, timestamp, failed } => {
                Self { failed, ..Self::of_scattering(SETTLED, scattering, timestamp) }
            }
            reliable::Event::ProcessFailed(_) => return None,
        })
    }
}

/// Writes the next event to `to`. Returns 1, 0 if there is none, or an error's number.
///
/// # Safety
/// The pointers are as the header requires.
unsafe fn poll(
    endpoint: *mut OnePipe,
    to: *mut OnePipeEvent,
    next: impl FnOnce(&mut Receiver) -> Result<Option<OnePipeEvent>, Error>,
) -> c_int {
    // SAFETY: null, or from `onepipe_init`.
    let Some(endpoint) = (unsafe { endpoint.as_ref() }) else { return Error::Argument.number() };
    if to.is_null() {
        return Error::Argument.number();
    }
    match endpoint.receiving().and_then(|mut receiving| next(&mut receiving.receiver)) {
        Ok(Some(event)) => {
            // SAFETY: room for an event, as the header requires.
            unsafe { to.write(event) };
            1
        }
        Ok(None) => 0,
        Err(error) => error.number(),
    }
}

/// Returns the next event of best effort; see `onepipe.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onepipe_poll_event(endpoint: *mut OnePipe, event: *mut OnePipeEvent) -> c_int {
    // SAFETY: as the header requires.
    unsafe {
        poll(endpoint, event, |receiver| Ok(receiver.poll_event().and_then(OnePipeEvent::of_best_effort)))
    }
}

/// Returns the next event of the reliable service; see `onepipe.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onepipe_poll_reliable_event(
    endpoint: *mut OnePipe,
    event: *mut OnePipeEvent,
) -> c_int {
    let next =
        |receiver: &mut Receiver| Ok(receiver.poll_reliable_event()?.and_then(OnePipeEvent::of_reliable));
    // SAFETY: as the header requires.
    unsafe { poll(endpoint, event, next) }
}
