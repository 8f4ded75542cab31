//! Tunnels that end in front of a function (`[tunnel]`).

mod config;
mod run;
mod summary;
pub(super) mod types;

pub(crate) use config::read_optional;
pub(in crate::functions) use run::run;
pub(crate) use summary::lines;
pub(crate) use types::TunnelConfig;

/// Returns the form of the tunnels' part of the closing report.
#[cfg(test)]
pub(crate) fn json() -> schemars::Schema {
    crate::reference::schema::<run::TunnelReport>()
}

/// The table `[tunnel]`
pub(crate) const TABLE: &settings::declare::TableSpec = &config::Keys::TABLE;
