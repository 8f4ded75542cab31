//! Errors before the first packet, each with a remedy.

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
