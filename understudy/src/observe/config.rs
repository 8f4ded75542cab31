//! Reads the table `[observe]`: where observers of a running instance connect.

use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use settings::tree::{Table, Value, absent, section};
use std::path::{Path, PathBuf};

const KEY: &str = "observe";
const ADDRESS_EXAMPLE: &str = "\"127.0.0.1:9464\"";
/// Default port of OpenTelemetry's exporter for Prometheus
const DEFAULT_PORT: u16 = 9464;

/// Contents of `[observe]`. Without it, nothing listens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ObserveConfig {
    /// Unix socket for `understudy top` and `understudy trace`
    pub(crate) socket: Option<PathBuf>,
    /// Address at which Prometheus reads metrics
    pub(crate) prometheus: Option<SocketAddr>,
}

/// Reads the table. A relative path in it begins in `folder`.
pub(crate) fn read(root: &Table<'_>, folder: &Path) -> ObserveConfig {
    let table = section(root, KEY).unwrap_or_else(|| absent(KEY, root.problems()));
    let socket = table.get("socket", "\"/run/understudy/observe.sock\"");
    let prometheus = table.get("prometheus", ADDRESS_EXAMPLE);
    let config = ObserveConfig {
        socket: socket.and_then(|value| settings::socket_path(&value, folder)),
        prometheus: prometheus.and_then(|value| address(&value)),
    };
    table.finish();
    config
}

/// Reads an address with a port, a port of the loopback address, or `true` for the default port there.
/// Returns `None` for `false` and for invalid values.
fn address(value: &Value<'_>) -> Option<SocketAddr> {
    let loopback = |port| SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port);
    if let Some(enabled) = value.boolean_if_any() {
        return enabled.then(|| loopback(DEFAULT_PORT));
    }
    if value.is_number() {
        return value.number(1..=u64::from(u16::MAX), DEFAULT_PORT.into()).map(|port| loopback(port as u16));
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
    address
}
