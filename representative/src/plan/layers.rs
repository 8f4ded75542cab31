//! Layers of switches: which direction of a link is up (1Pipe, section 3.1, figure 3).

use super::problem::Problem;
use super::routes::{Costs, Graph};
use super::topology::Topology;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Returns the distance of each switch from the hosts. Every link has to lead up or down; links that do not
/// are returned as problems.
pub(super) fn layers(topology: &Topology, graph: &Graph) -> Result<Vec<u32>, Vec<Problem>> {
    let mut layers = vec![None; topology.switches.len()];
    let with_hosts: BTreeSet<_> = topology.senders().flat_map(|(_, host)| &host.switches).copied().collect();
    let mut open: VecDeque<_> = with_hosts.into_iter().map(|switch| (switch, 1)).collect();
    while let Some((at, layer)) = open.pop_front() {
        if layers[at].is_none() {
            layers[at] = Some(layer);
            open.extend(graph.neighbours(at).map(|next| (next, layer + 1)));
        }
    }
    let mut problems = Vec::new();
    let mut found_layers = Vec::new();
    for (number, (switch, found)) in topology.switches.iter().zip(layers).enumerate() {
        match found {
            Some(layer) => found_layers.push(switch.layer.unwrap_or(layer)),
            None => problems.push(Problem::Unreached(number)),
        }
    }
    if !problems.is_empty() {
        return Err(problems);
    }
    for (number, link) in topology.links.iter().enumerate() {
        let [a, b] = link.ends;
        if found_layers[a] == found_layers[b] {
            // Prefer a loop of switches that are all in the same layer.
            let path = graph.path_around(b, a, |a, b| found_layers[a] == found_layers[b]);
            let path = path.or_else(|| graph.path_around(b, a, |_, _| true));
            let cycle = path.map(|path| [&[a], &path[..]].concat());
            problems.push(Problem::Level { link: number, layer: found_layers[a], cycle });
        }
    }
    if problems.is_empty() { Ok(found_layers) } else { Err(problems) }
}

/// Returns, for each switch, whether a host that sends messages is at the switch or below. `up` yields the
/// links, the lower end first.
pub(super) fn with_hosts(
    topology: &Topology,
    layers: &[u32],
    up: impl Iterator<Item = (usize, usize)>,
) -> Vec<bool> {
    let mut found = vec![false; topology.switches.len()];
    for &switch in topology.senders().flat_map(|(_, host)| &host.switches) {
        found[switch] = true;
    }
    let mut up: Vec<_> = up.collect();
    up.sort_by_key(|&(below, _)| layers[below]);
    for (below, above) in up {
        found[above] |= found[below];
    }
    found
}

/// Checks that all routes between hosts go up and then down. Returns the first one that does not as the
/// problem.
pub(super) fn check_routes(topology: &Topology, graph: &Graph, layers: &[u32]) -> Result<(), Vec<Problem>> {
    // Hosts at the same switches have the same routes.
    let destinations: BTreeMap<_, _> =
        topology.senders().map(|(number, host)| (&host.switches, number)).collect();
    let starts: BTreeMap<_, _> = destinations
        .iter()
        .flat_map(|(switches, &host)| switches.iter().map(move |&at| (at, host)))
        .collect();
    for &to in destinations.values() {
        let costs = graph.costs_to_host(topology, to);
        if let Some(path) = valley(graph, layers, &costs, starts.keys().copied()) {
            return Err(vec![Problem::Valley { from: starts[&path[0]], path, to }]);
        }
    }
    Ok(())
}

/// Returns the switches of a route that goes up after it has gone down.
fn valley(
    graph: &Graph,
    layers: &[u32],
    costs: &Costs,
    starts: impl Iterator<Item = usize>,
) -> Option<Vec<usize>> {
    // By switch, and whether the route had gone down before: the previous switch, and whether it had gone
    // down there.
    let mut seen = vec![[None; 2]; layers.len()];
    let mut open: Vec<_> = starts.map(|at| (at, false)).collect();
    while let Some((at, down)) = open.pop() {
        for next in graph.next(costs, at) {
            let up = layers[next] > layers[at];
            if down && up {
                let before = |&(at, down): &(usize, bool)| seen[at][usize::from(down)];
                let path = core::iter::successors(Some((at, down)), before).map(|(at, _)| at);
                let mut path: Vec<_> = core::iter::once(next).chain(path).collect();
                path.reverse();
                return Some(path);
            }
            let state = (next, down || !up);
            let slot = &mut seen[next][usize::from(state.1)];
            if slot.is_none() {
                *slot = Some((at, down));
                open.push(state);
            }
        }
    }
    None
}
