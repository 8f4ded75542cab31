//! The reliable service (1Pipe, Table 1 and section 5).

use crate::error::{Error, reliable_failure_number};
use crate::{Argument, NO_TIMESTAMP, OnePipe, OnePipeMessage, ReceiveState, Target, number, send};
use core::ffi::{c_int, c_void};
use core::time::Duration;
use onepipe_host::reliable::Event;
use onepipe_host::{Message, ProcessId, Receiver, ReliableError, Timestamp};

/// `enum onepipe_event_kind`
#[cfg(test)]
pub(crate) const EVENTS: [(&str, c_int); 5] = [
    ("ONEPIPE_EVENT_ADMITTED", ADMITTED),
    ("ONEPIPE_EVENT_FENCED", FENCED),
    ("ONEPIPE_EVENT_STALLED", STALLED),
    ("ONEPIPE_EVENT_RECOVERED", RECOVERED),
    ("ONEPIPE_EVENT_SEND_FAILED", SEND_FAILED),
];
const ADMITTED: c_int = 1;
const FENCED: c_int = 2;
const STALLED: c_int = 3;
const RECOVERED: c_int = 4;
const SEND_FAILED: c_int = 5;

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
}

impl OnePipeEvent {
    /// Returns the event in C's form; `None` for a failed process, which has a callback,
    /// and for results, which are not configured.
    fn of(event: Event) -> Option<Self> {
        let of = |kind| Self { kind, why: 0, scattering: 0, timestamp: NO_TIMESTAMP, dst: 0, part: 0 };
        let nanos = |time: Option<Timestamp>| time.map_or(NO_TIMESTAMP, Timestamp::nanos);
        Some(match event {
            Event::Admitted { .. } => of(ADMITTED),
            Event::Fenced { timestamp } => Self { timestamp: timestamp.nanos(), ..of(FENCED) },
            Event::Stalled => of(STALLED),
            Event::Recovered => of(RECOVERED),
            Event::SendFailed { scattering, timestamp, dst, part, why } => Self {
                why: reliable_failure_number(why),
                scattering: scattering.0,
                timestamp: nanos(timestamp),
                dst: dst.0,
                part,
                ..of(SEND_FAILED)
            },
            Event::ProcessFailed(_) | Event::Settled { .. } => return None,
        })
    }
}

/// `onepipe_proc_fail_fn`
pub type ProcFailFn = unsafe extern "C" fn(*mut c_void, u32, u64);

/// Sends `count` messages as one reliable scattering; see `onepipe.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onepipe_reliable_send(
    endpoint: *mut OnePipe,
    messages: *const OnePipeMessage,
    count: usize,
    scattering: *mut u64,
) -> c_int {
    // SAFETY: as the header requires.
    unsafe {
        send(endpoint, messages, count, scattering, |sender, messages| {
            sender.reliable_send(messages).map_err(Error::from)
        })
    }
}

/// Receives the next message, and waits for it for up to `timeout_us` microseconds.
///
/// # Safety
/// The pointers are as the header requires.
unsafe fn receive(
    endpoint: *mut OnePipe,
    timeout_us: u64,
    target: &Target,
    next: impl Fn(&mut Receiver, Duration) -> Result<Option<Message>, ReliableError>,
) -> c_int {
    // SAFETY: null, or from `onepipe_init`.
    let Some(endpoint) = (unsafe { endpoint.as_ref() }) else { return Error::Argument.number() };
    let Ok(mut receiving) = endpoint.receiving() else { return Error::Busy.number() };
    let ReceiveState { receiver, reliable_waiting, .. } = &mut *receiving;
    // Read before the ring: messages that were delivered before the endpoint ended can still be received.
    let mut has_ended = endpoint.handle.has_ended();
    if reliable_waiting.is_none() {
        match next(receiver, Duration::from_micros(timeout_us)) {
            Ok(message) => *reliable_waiting = message,
            Err(error) => return Error::from(error).number(),
        }
        if reliable_waiting.is_none() && !has_ended && endpoint.handle.has_ended() {
            has_ended = true;
            *reliable_waiting = next(receiver, Duration::ZERO).ok().flatten();
        }
    }
    target.put_waiting(reliable_waiting, has_ended)
}

/// Receives the next reliable message; see `onepipe.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onepipe_reliable_recv(
    endpoint: *mut OnePipe,
    timeout_us: u64,
    timestamp: *mut u64,
    src: *mut u32,
    buffer: *mut c_void,
    capacity: usize,
    len: *mut usize,
) -> c_int {
    let target = Target { timestamp, src, buffer, capacity, len };
    // SAFETY: as the header requires.
    unsafe { receive(endpoint, timeout_us, &target, Receiver::reliable_recv_timeout) }
}

/// Receives the next message of either service; see `onepipe.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onepipe_recv(
    endpoint: *mut OnePipe,
    timeout_us: u64,
    timestamp: *mut u64,
    src: *mut u32,
    buffer: *mut c_void,
    capacity: usize,
    len: *mut usize,
) -> c_int {
    let target = Target { timestamp, src, buffer, capacity, len };
    // SAFETY: as the header requires.
    unsafe { receive(endpoint, timeout_us, &target, Receiver::merged_recv_timeout) }
}

/// Sets the callback for processes that fail; see `onepipe.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onepipe_proc_fail_callback(
    endpoint: *mut OnePipe,
    callback: Option<ProcFailFn>,
    arg: *mut c_void,
) -> c_int {
    // SAFETY: null, or from `onepipe_init`.
    let Some(endpoint) = (unsafe { endpoint.as_ref() }) else { return Error::Argument.number() };
    let Ok(mut receiving) = endpoint.receiving() else { return Error::Busy.number() };
    let arg = Argument(arg);
    let set = receiving.receiver.proc_fail_callback(move |failed| {
        let Some(callback) = callback else { return };
        // SAFETY: a function that takes these arguments, as the header requires.
        unsafe { callback(arg.get(), failed.process.0, failed.timestamp.nanos()) };
    });
    number(set.map_err(Error::from))
}

/// Returns the next event of the reliable service; see `onepipe.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onepipe_poll_reliable_event(
    endpoint: *mut OnePipe,
    event: *mut OnePipeEvent,
) -> c_int {
    // SAFETY: null, or from `onepipe_init`.
    let Some(endpoint) = (unsafe { endpoint.as_ref() }) else { return Error::Argument.number() };
    if event.is_null() {
        return Error::Argument.number();
    }
    let Ok(mut receiving) = endpoint.receiving() else { return Error::Busy.number() };
    let next = receiving.receiver.poll_reliable_event();
    match next.map(|next| next.and_then(OnePipeEvent::of)) {
        Ok(Some(next)) => {
            // SAFETY: room for an event, as the header requires.
            unsafe { event.write(next) };
            1
        }
        Ok(None) => 0,
        Err(error) => Error::from(error).number(),
    }
}

/// Returns whether the process is a member of the reliable service; see `onepipe.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onepipe_is_admitted(endpoint: *const OnePipe) -> c_int {
    // SAFETY: null, or from `onepipe_init`.
    unsafe { endpoint.as_ref() }.map_or(0, |endpoint| endpoint.handle.is_admitted().into())
}

/// Returns whether a process is a member of the reliable service; see `onepipe.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onepipe_is_member(endpoint: *const OnePipe, id: u32) -> c_int {
    // SAFETY: null, or from `onepipe_init`.
    unsafe { endpoint.as_ref() }.map_or(0, |endpoint| endpoint.handle.is_member(ProcessId(id)).into())
}
