//! Describes what `[p4ce]` would run.

use super::P4ceConfig;
use crate::functions::forward::summary::counted;

pub(super) fn lines(config: &P4ceConfig) -> Vec<(&'static str, String)> {
    let mut lines = vec![("switch", "replicates writes; a bridge for all other traffic".into())];
    if config.workers > 1 {
        let text = "at the worker with the fewest, which gets their frames from the others";
        lines.push(("groups", text.into()));
    }
    for (number, list) in &config.lists {
        let names: Vec<_> = list.iter().map(ToString::to_string).collect();
        lines.push(("list", format!("{number}: {}", names.join(", "))));
    }
    lines.push(counted(config.counted_qps, config.health));
    lines
}
