//! Translation of a scenario's faults to faults of its world.

use super::parts::mac_of;
use super::{FaultKind, Scenario};
use crate::fault::Fault;
use crate::link::LinkId;
use crate::node::NodeId;
use rocev2::ethernet::MacAddr;
use switch::Nanos;

/// Number of announcements of a host at another port of its switch, and the interval between them. Several,
/// because announcements may be lost, or the host may be paused
const ANNOUNCEMENTS: u64 = 20;
const ANNOUNCEMENT_INTERVAL: Nanos = Nanos::from_millis(1);

/// Returns the frames that hosts send after a fault that gives them other ports, with the times after it.
/// They are gratuitous ARP even where packets are IPv6, since a switch inspects the source address only.
pub(super) fn announcements(
    kind: &FaultKind,
    scenario: &Scenario,
    node: impl Fn(&str) -> NodeId,
) -> Vec<(Nanos, Fault)> {
    let FaultKind::Swap(hosts) = kind else { return Vec::new() };
    let of = |name: &String| {
        let number = scenario.hosts.iter().position(|host| host.name == *name)?;
        let mac = mac_of(0, number).0;
        let mut frame = [[0xff; 6], mac].concat();
        frame.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
        frame.extend(mac);
        // Unspecified addresses, so that no neighbour learns from them
        frame.extend([0; 4 + 6 + 4]);
        frame.resize(60, 0);
        Some((1..=ANNOUNCEMENTS).map(move |n| (Nanos(ANNOUNCEMENT_INTERVAL.0 * n), frame.clone())))
    };
    hosts
        .iter()
        .flat_map(|name| of(name).into_iter().flatten().map(move |(after, frame)| (after, name, frame)))
        .map(|(after, name, frame)| (after, Fault::Send(node(name), frame)))
        .collect()
}

/// Returns the world's faults for a fault of the scenario, each with the fault that ends it. `links` are in
/// the scenario's order.
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
        FaultKind::PartitionPair([a, b]) => {
            let pair = mac(a).zip(mac(b));
            pair.map(|(a, b)| (Fault::PartitionPair(a, b), Some(Fault::HealPair(a, b)))).into_iter().collect()
        }
        FaultKind::Mtu(ends, least) => {
            let affected = scenario.links.iter().zip(links).filter(|(link, _)| link.joins(ends));
            let bytes = |mtu: &super::NumberRange| mtu.value().max(0) as usize;
            affected
                .map(|(link, id)| (Fault::Mtu(*id, bytes(least)), Some(Fault::Mtu(*id, bytes(&link.mtu)))))
                .collect()
        }
        FaultKind::Swap(hosts) => {
            let link = |host: &String| {
                scenario.links.iter().position(|link| link.ends.contains(host)).map(|number| links[number])
            };
            let both = link(&hosts[0]).zip(link(&hosts[1]));
            both.map(|(a, b)| (Fault::Swap(a, b), Some(Fault::Swap(a, b)))).into_iter().collect()
        }
        FaultKind::Rehash(name, salt) => {
            vec![(Fault::Rehash(node(name), salt.value() as u16), Some(Fault::Rehash(node(name), 0)))]
        }
        // Added as a node of its own
        FaultKind::Outsider(..) => Vec::new(),
        FaultKind::ClockStep(name, by) => vec![(Fault::ClockStep(node(name), by.value()), None)],
        FaultKind::ClockDrift(name, by) => vec![(Fault::ClockDrift(node(name), by.value()), None)],
    }
}
