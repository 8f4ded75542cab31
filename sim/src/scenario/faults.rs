//! What a scenario's faults are in its world.

use super::parts::mac_of;
use super::{FaultKind, Scenario};
use crate::fault::Fault;
use crate::world::{LinkId, NodeId};
use rocev2::ethernet::MacAddr;

/// Returns what a fault brings about, each with what ends it. Links are in the scenario's order.
pub(super) fn of(
    kind: &FaultKind,
    scenario: &Scenario,
    node: impl Fn(&str) -> NodeId,
    links: &[LinkId],
) -> Vec<(Fault, Option<Fault>)> {
    // Links between some nodes and all others, each with its end among the former
    let leaving = |names: &[String]| -> Vec<(NodeId, LinkId)> {
        let between = scenario.links.iter().zip(links).filter_map(|(link, id)| {
            let [a, b] = &link.ends;
            match [a, b].map(|end| names.contains(end)) {
                [true, false] => Some((node(a), *id)),
                [false, true] => Some((node(b), *id)),
                _ => None,
            }
        });
        between.collect()
    };
    let mac = |name: &String| -> Option<MacAddr> {
        scenario.hosts.iter().position(|host| host.name == *name).map(|number| mac_of(0, number))
    };
    match kind {
        FaultKind::Crash(name) => vec![(Fault::Crash(node(name)), Some(Fault::Restart(node(name))))],
        FaultKind::Pause(name) => vec![(Fault::Pause(node(name)), Some(Fault::Resume(node(name))))],
        FaultKind::Partition(names) => {
            let cut: Vec<_> = leaving(names).into_iter().map(|(_, link)| link).collect();
            vec![(Fault::Cut(cut.clone()), Some(Fault::Heal(cut)))]
        }
        FaultKind::Mute(names) => leaving(names)
            .into_iter()
            .map(|(end, link)| (Fault::Mute(end, vec![link]), Some(Fault::Unmute(end, vec![link]))))
            .collect(),
        FaultKind::Part([a, b]) => {
            let pair = mac(a).zip(mac(b));
            pair.map(|(a, b)| (Fault::Part(a, b), Some(Fault::Join(a, b)))).into_iter().collect()
        }
        FaultKind::Mtu(ends, least) => {
            let narrow = scenario.links.iter().zip(links).filter(|(link, _)| link.joins(ends));
            let bytes = |mtu: &super::Between| mtu.value().max(0) as usize;
            narrow
                .map(|(link, id)| (Fault::Mtu(*id, bytes(least)), Some(Fault::Mtu(*id, bytes(&link.mtu)))))
                .collect()
        }
        // A node of its own
        FaultKind::Stranger(..) => Vec::new(),
        FaultKind::ClockStep(name, by) => vec![(Fault::ClockStep(node(name), by.value()), None)],
        FaultKind::ClockDrift(name, by) => vec![(Fault::ClockDrift(node(name), by.value()), None)],
    }
}
