//! What can go wrong before the first packet, each with what to do about it.

/// Why the runtime did not start.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
pub struct Error {
    /// What is wrong, in one sentence without a full stop
    pub what: String,
    /// What to do about it
    pub remedy: String,
    /// What DPDK logged meanwhile
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
