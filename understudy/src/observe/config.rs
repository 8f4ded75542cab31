//! Reads the table `[observe]`: where observers of a running instance connect.

use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use settings::declare::{other, special};
use settings::tree::{Table, Value};
use std::path::{Path, PathBuf};

const ADDRESS_EXAMPLE: &str = "\"127.0.0.1:9464\"";
/// Default port of OpenTelemetry's exporter for Prometheus
const DEFAULT_PORT: u16 = 9464;

/// Contents of `[observe]`. Without it, nothing listens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ObserveConfig {
    /// Unix socket for the commands that observe and steer
    pub(crate) socket: Option<PathBuf>,
    /// Address at which Prometheus reads metrics
    pub(crate) prometheus: Option<SocketAddr>,
}

settings::table! {
    /// Where observers of the running instance connect
    pub(crate) enum Keys "[observe]";
    /// Path of a Unix socket for `understudy top`, `trace`, `diagnose --at`, `impair` and `rate`
    socket: () = special("path") => optional("no socket") example("/run/understudy/observe.sock");
    /// Address at which Prometheus reads metrics: with a port, or a port of 127.0.0.1, or `true` for port 9464
    prometheus: Option<SocketAddr> = other("address with a port, port, `true` or `false`", address) => default(false) example("127.0.0.1:9464");
}

/// Reads the table. A relative path in it begins in `folder`.
pub(crate) fn read(root: &Table<'_>, folder: &Path) -> ObserveConfig {
    let table = root.section(&Keys::TABLE).unwrap_or_else(|| Table::absent(&Keys::TABLE, root.problems()));
    let config = ObserveConfig {
        socket: table.value(Keys::socket).and_then(|value| settings::socket_path(&value, folder)),
        prometheus: table.read(Keys::prometheus),
    };
    table.finish();
    config
}

/// Reads an address with a port, a port of the loopback address, or `true` for the default port there.
/// `false` is no address.
#[expect(clippy::option_option, reason = "invalid, or no address")]
fn address(value: &Value<'_>) -> Option<Option<SocketAddr>> {
    let loopback = |port| SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port);
    if let Some(enabled) = value.boolean_if_any() {
        return Some(enabled.then(|| loopback(DEFAULT_PORT)));
    }
    if value.is_number() {
        let port = value.whole_in(1..=u64::from(u16::MAX), &DEFAULT_PORT.to_string())?;
        return Some(Some(loopback(port as u16)));
    }
    let text = value.text()?;
    let address = text.parse().ok();
    if address.is_none() {
        let problem = value
            .problem(format!("`{text}` is not an address with a port"))
            .label("not an address to listen at");
        value.add(problem.help(format!(
            "write `prometheus = {ADDRESS_EXAMPLE}`, `\"[::1]:{DEFAULT_PORT}\"`, or `prometheus = \
             {DEFAULT_PORT}` for this machine alone; names are not resolved"
        )));
    }
    Some(address)
}
