//! Tunnels that end in front of a function (`[tunnel]`).

pub(super) mod config;
mod run;
mod summary;

pub(crate) use config::{TunnelConfig, read_optional};
pub(in crate::functions) use run::run;
pub(crate) use summary::lines;

/// The table `[tunnel]`
pub(crate) const TABLE: &settings::declare::TableSpec = &config::Keys::TABLE;
