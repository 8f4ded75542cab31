//! What `[consensus]` would run.

use crate::consensus::ConsensusConfig;

pub(super) fn lines(config: &ConsensusConfig) -> Vec<(&'static str, String)> {
    let ConsensusConfig { id, servers, port, layout, window, .. } = config;
    let servers: Vec<_> = servers.iter().map(ToString::to_string).collect();
    let through = match &config.switch {
        Some(switch) => format!("through the switch {} port {}", switch.address, switch.port),
        None => "to each other server".into(),
    };
    let heartbeat = config.heartbeat.0 / 1000;
    let mut lines = super::nic_lines(&config.host);
    lines.extend([
        (
            "server",
            format!("{id} of {}, at port {port}; writes {through} while it leads", servers.join(", ")),
        ),
        (
            "log",
            format!(
                "{} entries of {} bytes, snapshots of {}; a heartbeat every {heartbeat} us",
                layout.slots(),
                layout.max_value(),
                layout.max_snapshot()
            ),
        ),
    ]);
    if config.secret.is_some() {
        lines.push(("secret", "other servers and the switch have to know it".into()));
    }
    let load = match config.load {
        None => "nothing".into(),
        Some(load) => {
            let rate = load.rate.map_or("as fast as it goes".into(), |rate| format!("{rate} a second"));
            format!("values of {} bytes, {rate}, {window} at once", load.size)
        }
    };
    lines.push(("proposes", load));
    lines
}
