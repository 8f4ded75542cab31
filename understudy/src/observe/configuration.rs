//! State of an instance's configuration, of which newer versions may be read during the run.

use super::{FunctionMetrics, Row, Table, Values};
use switch::metrics::Metrics as _;

switch::metrics! {
    /// State of the configuration.
    #[derive(Clone, Debug, Default)]
    pub(crate) struct ConfigState of config by [source] {
        /// Versions read since the start of the run
        pub(crate) versions: u64 [versions as _ / versions],
        /// Versions that were not valid, that the function has refused, or of which the key was missing
        pub(crate) refused: u64 [versions as _ / refused],
        pub(crate) revision: u64,
        pub(crate) hash: u32,
        pub(crate) is_refused: bool,
        pub(crate) needs_restart: bool,
        pub(crate) is_cached: bool,
        pub(crate) silent_s: u64,
    }
    also {
        /// Revision of etcd of the last version that was entirely in effect; 0 for a file and for a cached version
        Gauge revision [number as _ / revision] = |config| config.revision,
        /// First 32 bits of the SHA-256 of the last version that was entirely in effect
        Gauge hash [number as _ / hash] = |config| config.hash.into(),
        /// 1 if the last version is refused, and an earlier one is in effect
        Gauge is_refused [number as _ / is_refused] = |config| config.is_refused.into(),
        /// 1 if the last valid version has changes that take effect when the instance is started again
        Gauge needs_restart [number as _ / needs_restart] = |config| config.needs_restart.into(),
        /// 1 if the configuration in effect is in the file of `--cache`
        Gauge is_cached [number as _ / is_cached] = |config| config.is_cached.into(),
        /// Time since the last answer of etcd; 0 for a file
        Gauge silent_seconds [seconds as _ / silent_seconds] = |config| config.silent_s,
    }
}

impl ConfigState {
    /// Adds the state of the configuration `source` to the metrics of a function.
    pub(crate) fn observed(&self, source: &str, metrics: FunctionMetrics) -> FunctionMetrics {
        metrics.table(Table::of(&Self::GROUP, [Row::of([source], &Values::of(self))]))
    }
}
