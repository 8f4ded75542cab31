//! 1Pipe's host library for C: `include/onepipe.h` (1Pipe, Table 1).
//!
//! Each function checks its pointers for null. The caller guarantees everything else that the header requires
//! of a pointer: this is the safety contract of every `unsafe` block here.

#![allow(clippy::missing_safety_doc, reason = "documented in the header")]

mod error;
mod event;
mod receive;
mod reliable;

use core::cell::RefCell;
use core::ffi::{CStr, c_char, c_int, c_void};
use error::{Error, failure_number};
use onepipe_host::{
    Endpoint, Failed, Handle, Message, ProcessId, Receiver, Scattering, Sender, Stall, Timestamp,
};
use std::ffi::CString;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, TryLockError};

pub use error::{onepipe_strerror, onepipe_strfailure};
pub use event::{OnePipeEvent, onepipe_poll_event, onepipe_poll_reliable_event};
pub use receive::{onepipe_recv, onepipe_reliable_recv, onepipe_unreliable_recv};
pub use reliable::{
    ProcFailFn, onepipe_controller_report, onepipe_is_admitted, onepipe_is_member,
    onepipe_proc_fail_callback, onepipe_reliable_send,
};

/// Maximum number of messages of a scattering for which no memory is allocated
const INLINE_MESSAGES: usize = 16;
const NO_TIMESTAMP: u64 = u64::MAX;

/// `onepipe_t`
pub struct OnePipe {
    sender: Mutex<Sender>,
    receiver: Mutex<ReceiveState>,
    handle: Handle,
}

impl OnePipe {
    /// Returns the receiving half.
    ///
    /// # Errors
    /// Another thread receives, or this one is in a callback.
    fn receiving(&self) -> Result<MutexGuard<'_, ReceiveState>, Error> {
        match self.receiver.try_lock() {
            Ok(receiving) => Ok(receiving),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => Err(Error::Busy),
        }
    }
}

struct ReceiveState {
    receiver: Receiver,
    /// Message that did not fit into the caller's buffer
    waiting: Option<Message>,
    /// The same of the reliable service, or of both in the merged order
    reliable_waiting: Option<Message>,
}

/// `onepipe_message_t`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct OnePipeMessage {
    /// Receiver
    pub dst: u32,
    /// Payload
    pub data: *const c_void,
    /// Length of the payload, in bytes
    pub len: usize,
}

/// `onepipe_failed_t`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct OnePipeFailed {
    /// Number of the scattering
    pub scattering: u64,
    /// Timestamp of the scattering, or `NO_TIMESTAMP`
    pub timestamp: u64,
    /// Receiver
    pub dst: u32,
    /// Index of the message among those of the call
    pub part: u32,
    /// Value of `enum onepipe_failure`
    pub why: c_int,
}

/// `onepipe_send_fail_fn`
pub type SendFailFn = unsafe extern "C" fn(*const OnePipeFailed, *mut c_void);

/// `onepipe_stall_fn`
pub type StallFn = unsafe extern "C" fn(*mut c_void, c_int, u64);

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::default();
}

/// Argument of a callback; the caller that registers it guarantees that any thread may use it.
struct Argument(*mut c_void);

// SAFETY: the header states that it is used in the thread that receives, whichever that is.
unsafe impl Send for Argument {}

impl Argument {
    /// Returns the pointer. (A closure that used the field would capture the pointer alone, which is not
    /// `Send`.)
    const fn get(&self) -> *mut c_void {
        self.0
    }
}

/// Returns 0 or the number of an error.
fn number(result: Result<(), Error>) -> c_int {
    result.map_or_else(Error::number, |()| 0)
}

/// Starts the endpoint of a configuration file; see `onepipe.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onepipe_init(config: *const c_char, endpoint: *mut *mut OnePipe) -> c_int {
    LAST_ERROR.take();
    if config.is_null() || endpoint.is_null() {
        return Error::Argument.number();
    }
    // SAFETY: a null-terminated string, as the header requires.
    let Ok(path) = unsafe { CStr::from_ptr(config) }.to_str() else { return Error::Argument.number() };
    let started = onepipe_host::load(Path::new(path))
        .map_err(|report| (Error::Config, report.render()))
        .and_then(|config| Endpoint::init(config).map_err(|error| (Error::Start, error.to_string())));
    match started {
        Ok(started) => {
            let handle = started.handle().clone();
            let (sender, mut receiver) = started.split();
            // Without a callback, events would fill their queue.
            receiver.send_fail_callback(drop);
            receiver.stall_callback(drop);
            // Without a callback, all processes would wait for this one; refused without a controller.
            _ = receiver.proc_fail_callback(drop);
            let receiver = Mutex::new(ReceiveState { receiver, waiting: None, reliable_waiting: None });
            let started = Box::new(OnePipe { sender: Mutex::new(sender), receiver, handle });
            // SAFETY: room for a pointer, as the header requires.
            unsafe { endpoint.write(Box::into_raw(started)) };
            0
        }
        Err((error, text)) => {
            let text = CString::new(text.replace('\0', "")).unwrap_or_default();
            LAST_ERROR.with_borrow_mut(|last| *last = text);
            error.number()
        }
    }
}

/// Leaves, and frees the endpoint; see `onepipe.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onepipe_exit(endpoint: *mut OnePipe) {
    // SAFETY: null, or from `onepipe_init`.
    if let Some(open) = unsafe { endpoint.as_ref() } {
        open.handle.exit();
        // A callback may call other functions: the endpoint is still complete, with its receiver locked.
        let mut receiving = open.receiver.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        // Calls the callback for all failures.
        while receiving.receiver.poll_event().is_some() {}
        drop(receiving);
        // SAFETY: from `onepipe_init`, which leaked a box, and not used any more, as the header requires.
        drop(unsafe { Box::from_raw(endpoint) });
    }
}

/// Leaves, and returns when the process has left; see `onepipe.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onepipe_leave(endpoint: *mut OnePipe) {
    // SAFETY: null, or from `onepipe_init`.
    if let Some(endpoint) = unsafe { endpoint.as_ref() } {
        endpoint.handle.exit();
    }
}

/// Returns 1Pipe's time in nanoseconds, or `NO_TIMESTAMP` for a null pointer; see `onepipe.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onepipe_get_timestamp(endpoint: *const OnePipe) -> u64 {
    // SAFETY: null, or from `onepipe_init`.
    unsafe { endpoint.as_ref() }.map_or(NO_TIMESTAMP, |endpoint| endpoint.handle.timestamp().nanos())
}

/// Writes both barriers; see `onepipe.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onepipe_barriers(
    endpoint: *const OnePipe,
    best_effort: *mut u64,
    commit: *mut u64,
) -> c_int {
    // SAFETY: null, or from `onepipe_init`.
    let Some(endpoint) = (unsafe { endpoint.as_ref() }) else { return Error::Argument.number() };
    let barriers = endpoint.handle.barriers();
    for (to, barrier) in [(best_effort, barriers.0), (commit, barriers.1)] {
        if !to.is_null() {
            // SAFETY: room for a timestamp, as the header requires.
            unsafe { to.write(barrier.map_or(NO_TIMESTAMP, Timestamp::nanos)) };
        }
    }
    0
}

/// Sends `count` messages as one scattering; see `onepipe.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onepipe_unreliable_send(
    endpoint: *mut OnePipe,
    messages: *const OnePipeMessage,
    count: usize,
    scattering: *mut u64,
) -> c_int {
    // SAFETY: as the header requires.
    unsafe {
        send(endpoint, messages, count, scattering, |sender, messages| {
            sender.unreliable_send(messages).map_err(Error::from)
        })
    }
}

/// Sends `count` messages by a service.
///
/// # Safety
/// The pointers are as the header requires.
unsafe fn send(
    endpoint: *mut OnePipe,
    messages: *const OnePipeMessage,
    count: usize,
    scattering: *mut u64,
    by: impl FnOnce(&mut Sender, &[(ProcessId, &[u8])]) -> Result<Scattering, Error>,
) -> c_int {
    // SAFETY: null, or from `onepipe_init`.
    let Some(endpoint) = (unsafe { endpoint.as_ref() }) else { return Error::Argument.number() };
    let messages = if count == 0 {
        &[]
    } else if messages.is_null() {
        return Error::Argument.number();
    } else {
        // SAFETY: `count` messages, as the header requires.
        unsafe { core::slice::from_raw_parts(messages, count) }
    };
    if messages.iter().any(|message| message.data.is_null() && message.len > 0) {
        return Error::Argument.number();
    }
    let bytes = |message: &OnePipeMessage| {
        let bytes: &[u8] = if message.len == 0 {
            &[]
        } else {
            // SAFETY: `len` bytes and not null, as the header requires.
            unsafe { core::slice::from_raw_parts(message.data.cast(), message.len) }
        };
        (ProcessId(message.dst), bytes)
    };
    let mut inline = [(ProcessId(0), &[][..]); INLINE_MESSAGES];
    let allocated: Vec<_>;
    let messages = if let Some(inline) = inline.get_mut(..count) {
        for (slot, message) in inline.iter_mut().zip(messages) {
            *slot = bytes(message);
        }
        &*inline
    } else {
        allocated = messages.iter().map(bytes).collect();
        &allocated
    };
    // A thread that panicked with the lock was not inside a sender's method: these do not panic.
    let mut sender = endpoint.sender.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    match by(&mut sender, messages) {
        Ok(number) => {
            if !scattering.is_null() {
                // SAFETY: room for a number, as the header requires.
                unsafe { scattering.write(number.0) };
            }
            0
        }
        Err(error) => error.number(),
    }
}

/// Sets the callback for messages that fail; see `onepipe.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onepipe_send_fail_callback(
    endpoint: *mut OnePipe,
    callback: Option<SendFailFn>,
    arg: *mut c_void,
) -> c_int {
    // SAFETY: null, or from `onepipe_init`.
    let Some(endpoint) = (unsafe { endpoint.as_ref() }) else { return Error::Argument.number() };
    let Ok(mut receiving) = endpoint.receiving() else { return Error::Busy.number() };
    let arg = Argument(arg);
    receiving.receiver.send_fail_callback(move |failed: Failed| {
        let Some(callback) = callback else { return };
        let message = OnePipeFailed {
            scattering: failed.scattering.0,
            timestamp: failed.timestamp.map_or(NO_TIMESTAMP, Timestamp::nanos),
            dst: failed.dst.0,
            part: failed.part,
            why: failure_number(failed.why),
        };
        // SAFETY: a function that takes these arguments, as the header requires.
        unsafe { callback(&raw const message, arg.get()) };
    });
    0
}

/// Sets the callback for a barrier that stands still or rises again; see `onepipe.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onepipe_stall_callback(
    endpoint: *mut OnePipe,
    callback: Option<StallFn>,
    arg: *mut c_void,
) -> c_int {
    // SAFETY: null, or from `onepipe_init`.
    let Some(endpoint) = (unsafe { endpoint.as_ref() }) else { return Error::Argument.number() };
    let Ok(mut receiving) = endpoint.receiving() else { return Error::Busy.number() };
    let arg = Argument(arg);
    receiving.receiver.stall_callback(move |stall| {
        let Some(callback) = callback else { return };
        let (stalled, barrier) = match stall {
            Stall::Stalled { barrier } => (1, barrier),
            Stall::Recovered { barrier, .. } => (0, Some(barrier)),
        };
        // SAFETY: a function that takes these arguments, as the header requires.
        unsafe { callback(arg.get(), stalled, barrier.map_or(NO_TIMESTAMP, Timestamp::nanos)) };
    });
    0
}

/// Returns whether the process accepts messages that are stamped now; see `onepipe.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onepipe_is_open(endpoint: *const OnePipe) -> c_int {
    // SAFETY: null, or from `onepipe_init`.
    unsafe { endpoint.as_ref() }.map_or(0, |endpoint| endpoint.handle.is_open().into())
}

/// Sets whether a process is alive; see `onepipe.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onepipe_set_alive(endpoint: *mut OnePipe, id: u32, alive: c_int) -> c_int {
    // SAFETY: null, or from `onepipe_init`.
    let Some(endpoint) = (unsafe { endpoint.as_ref() }) else { return Error::Argument.number() };
    let id = ProcessId(id);
    number(if endpoint.handle.set_alive(id, alive != 0) {
        Ok(())
    } else if endpoint.handle.peers().contains(&id) {
        Err(Error::Left)
    } else {
        Err(Error::Unknown)
    })
}

/// Returns the message of the last failed `onepipe_init` of this thread; see `onepipe.h`.
#[unsafe(no_mangle)]
pub extern "C" fn onepipe_last_error() -> *const c_char {
    LAST_ERROR.with_borrow(|last| last.as_ptr())
}
