//! Errors before the first packet, each with a remedy.

use std::ffi::CStr;

/// The reason why the runtime did not start.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
pub struct Error {
    /// Message: one sentence without a full stop
    pub what: String,
    /// Remedy
    pub remedy: String,
    /// DPDK's log of the failed step
    pub log: String,
}

impl Error {
    pub(crate) fn new(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { what: what.into(), remedy: remedy.into(), log: String::new() }
    }

    pub(crate) fn with_log(mut self, log: String) -> Self {
        self.log = log;
        self
    }
}

/// Returns `rte_errno`: the reason of the calling thread's last failure.
pub(crate) fn errno() -> i32 {
    // SAFETY: reads a thread-local variable.
    unsafe { dpdk_sys::understudy_rte_errno() }
}

/// Returns DPDK's text for an error number, positive or negative.
pub(crate) fn error_text(errno: i32) -> String {
    // SAFETY: returns a string in a thread-local buffer, which is copied before the next call.
    unsafe { CStr::from_ptr(dpdk_sys::rte_strerror(errno.abs())) }.to_string_lossy().into_owned()
}
