//! Describes what `[forward]` would run.

use dataplane::config::Port;
use switch::PortId;
use switch::forward::Config;
use switch::forward::config::{ForwardingMode, Ttl};

pub(super) fn lines(forward: &Config, ports: &[Port]) -> Vec<(&'static str, String)> {
    vec![("forward", forwarding_mode(&forward.mode, ports)), counted(forward.counted_qps, forward.health)]
}

/// Describes the counters of queue pairs and their memory, which does not depend on the traffic.
pub(in crate::functions) fn counted(queue_pairs: usize, health: bool) -> (&'static str, String) {
    let kb = Config::queue_pair_memory(queue_pairs, health).div_ceil(1024);
    let memory = if kb < 10_240 { format!("{kb} KB") } else { format!("{} MB", kb.div_ceil(1024)) };
    let text = match (queue_pairs, health) {
        (0, _) => "queue pairs are not counted".into(),
        (_, true) => format!("{queue_pairs} queue pairs with their health, in {memory} per worker"),
        (_, false) => format!("{queue_pairs} queue pairs without their health, in {memory} per worker"),
    };
    ("counted", text)
}

/// Describes pairs of ports.
pub(in crate::functions) fn pairs_text(pairs: &[(PortId, PortId)], ports: &[Port]) -> String {
    let name = |port: PortId| ports[port.index()].name.as_str();
    let pair = |&(a, b): &(PortId, PortId)| {
        if a == b { format!("{} reflects", name(a)) } else { format!("{} <-> {}", name(a), name(b)) }
    };
    pairs.iter().map(pair).collect::<Vec<_>>().join(", ")
}

/// Describes where frames go.
pub(in crate::functions) fn forwarding_mode(mode: &ForwardingMode, ports: &[Port]) -> String {
    match mode {
        ForwardingMode::Pairs(pairs) => pairs_text(pairs, ports),
        ForwardingMode::Routes(table) => {
            let max_hops = table.routes.iter().map(|route| route.via.len()).max().unwrap_or(0);
            let hop = match table.ttl {
                Ttl::Keep => "TTLs are kept",
                Ttl::Decrement => "TTLs are decremented",
            };
            format!("a router of {} routes, with up to {max_hops} equal next hops; {hop}", table.routes.len())
        }
        ForwardingMode::Mac(table) => {
            let fixed = match table.fixed.len() {
                0 => String::new(),
                count => format!(", and has {count} fixed ones"),
            };
            let seconds = table.ageing.0 / 1_000_000_000;
            format!("a bridge that learns up to {} stations, each for {seconds} s{fixed}", table.capacity)
        }
    }
}
