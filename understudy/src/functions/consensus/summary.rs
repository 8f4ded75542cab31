//! Describes what `[consensus]` would run.

use super::ConsensusConfig;
use crate::functions::host;

pub(super) fn lines(config: &ConsensusConfig) -> Vec<(&'static str, String)> {
    let ConsensusConfig { id, servers, window, .. } = config;
    let servers: Vec<_> = servers.iter().map(ToString::to_string).collect();
    let through = match &config.switch {
        Some(switch) => format!("through the switch {} port {}", switch.address, switch.port),
        None => "to each other server".into(),
    };
    let mut lines = host::summary::lines(&config.host);
    let server = format!("{id} of {}; writes {through} while it is the leader", servers.join(", "));
    lines.push(("server", server));
    if config.secret.is_some() {
        lines.push(("secret", "the other servers and the switch need it, too".into()));
    }
    let load = match config.load {
        None => "nothing".into(),
        Some(load) => {
            let rate = load.rate.map_or("at the highest rate".into(), |rate| format!("{rate} per second"));
            format!("values of {} bytes, {rate}, {window} in flight", load.size)
        }
    };
    lines.push(("proposes", load));
    lines
}
