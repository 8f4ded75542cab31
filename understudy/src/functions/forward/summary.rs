//! Describes what `[forward]` would run.

use dataplane::config::Port;
use rocev2::Fault;
use switch::PortId;
use switch::drop::FaultSet;
use switch::forward::Config;
use switch::forward::config::{Topology, Ttl};

pub(super) fn lines(forward: &Config, ports: &[Port]) -> Vec<(&'static str, String)> {
    let verified =
        [(true, "headers"), (forward.verify_icrc, "ICRC"), (forward.verify_udp_checksum, "UDP checksum")];
    let verified: Vec<_> = verified.iter().filter(|(wanted, _)| *wanted).map(|(_, what)| *what).collect();
    let dropped = match forward.drop {
        FaultSet::NONE => "nothing".into(),
        FaultSet::ALL => "all that fail".into(),
        some => some.iter().map(Fault::name).collect::<Vec<_>>().join(", "),
    };
    let counted = match forward.counted_qps {
        0 => "no queue pair individually".into(),
        count => format!("up to {count} queue pairs individually"),
    };
    vec![
        ("forward", topology(&forward.topology, ports)),
        ("", format!("verifies {}; drops {dropped}; counts {counted}", verified.join(", "))),
    ]
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
pub(in crate::functions) fn topology(topology: &Topology, ports: &[Port]) -> String {
    match topology {
        Topology::Pairs(pairs) => pairs_text(pairs, ports),
        Topology::Routes(table) => {
            let max_hops = table.routes.iter().map(|route| route.via.len()).max().unwrap_or(0);
            let hop = match table.ttl {
                Ttl::Keep => "TTLs are kept",
                Ttl::Decrement => "TTLs are decremented",
            };
            format!("a router of {} routes, with up to {max_hops} equal next hops; {hop}", table.routes.len())
        }
        Topology::Mac(table) => {
            let fixed = match table.fixed.len() {
                0 => String::new(),
                count => format!(", and has {count} fixed ones"),
            };
            let seconds = table.ageing.0 / 1_000_000_000;
            format!("a bridge that learns up to {} stations, each for {seconds} s{fixed}", table.capacity)
        }
    }
}
