//! Describes what `[p4ce]` would run.

use super::P4ceConfig;
use switch::Nanos;

pub(super) fn lines(config: &P4ceConfig) -> Vec<(&'static str, String)> {
    let addresses: Vec<_> = config.addresses.iter().map(|(ip, prefix)| format!("{ip}/{prefix}")).collect();
    let mac = config.mac.map_or("the first port's MAC address".into(), |mac| mac.to_string());
    let silent = match config.silent_after {
        Nanos::ZERO => "never excluded for silence".into(),
        after => format!("excluded after {} ms of silence", after.0 / 1_000_000),
    };
    let mut lines = vec![
        ("switch", format!("{} at {mac}; a bridge for all other traffic", addresses.join(", "))),
        (
            "groups",
            format!(
                "up to {} of up to {} replicas, requested at port {}; a replica is {silent}",
                config.groups, config.max_replicas, config.port
            ),
        ),
    ];
    if config.secret.is_some() {
        lines.push(("secret", "leaders need it".into()));
    }
    for (number, list) in &config.lists {
        let names: Vec<_> = list.iter().map(ToString::to_string).collect();
        lines.push(("list", format!("{number}: {}", names.join(", "))));
    }
    lines
}
