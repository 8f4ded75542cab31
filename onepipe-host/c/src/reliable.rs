//! The reliable service (1Pipe, Table 1 and section 5).

use crate::error::Error;
use crate::{Argument, OnePipe, OnePipeMessage, number, send};
use core::ffi::{c_char, c_int, c_void};
use onepipe_host::ProcessId;

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

/// Copies what the controller has last reported; see `onepipe.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onepipe_controller_report(
    endpoint: *const OnePipe,
    text: *mut c_char,
    capacity: usize,
) -> usize {
    // SAFETY: null, or from `onepipe_init`.
    let report = unsafe { endpoint.as_ref() }.and_then(|endpoint| endpoint.handle.controller_report());
    let report = report.unwrap_or_default();
    if !text.is_null() && capacity > 0 {
        let len = report.len().min(capacity - 1);
        // SAFETY: room for `capacity` bytes, as the header requires.
        unsafe {
            text.cast::<u8>().copy_from_nonoverlapping(report.as_ptr(), len);
            text.add(len).write(0);
        }
    }
    report.len()
}
