use super::*;
use onepipe::ProcessId as Id;
use proptest::prelude::*;

/// Returns the layouts of ToR switches with these numbers of processes, each linked to all of the spines.
/// Processes are numbered from 1.
pub(crate) fn fabric(racks: &[usize], spines: usize) -> Vec<Layout> {
    let mut next = 0;
    let mut process = |_| {
        next += 1;
        Some(Id(next))
    };
    let tors = racks.len();
    let above: Vec<_> = (0..spines).map(|spine| (tors + spine) as u16).collect();
    let below: Vec<_> = (0..tors as u16).collect();
    let tor = |&count: &usize| Layout {
        processes: (0..count).map(&mut process).collect(),
        below: Vec::new(),
        above: above.clone(),
        standby: true,
    };
    let mut layouts: Vec<_> = racks.iter().map(tor).collect();
    let spine = Layout { below, standby: true, ..Layout::default() };
    layouts.extend(std::iter::repeat_n(spine, spines));
    layouts
}

/// A random fabric of up to 7 switch nodes and processes.
pub(crate) fn fabrics() -> impl Strategy<Value = Graph> {
    (prop::collection::vec(1usize..4, 1..4), 0usize..3)
        .prop_map(|(racks, spines)| if racks.len() > 1 { (racks, spines.max(1)) } else { (racks, spines) })
        .prop_map(|(racks, spines)| Graph::new(&fabric(&racks, spines)))
}

fn path(graph: &Graph, from: NodeId, to: NodeId, usable: &dyn Fn(LinkId) -> bool, left: usize) -> bool {
    graph.outputs(from).iter().any(|&link| {
        let next = graph.ends(link).to;
        let on = |next| {
            left > 0 && !matches!(graph.at(next), Node::Process(_)) && path(graph, next, to, usable, left - 1)
        };
        usable(link) && (next == to || on(next))
    })
}

#[test]
fn a_switch_is_two_nodes() {
    let graph = Graph::new(&fabric(&[2, 1], 1));
    let place = graph.place(Id(1)).expect("it is there");
    assert_eq!(place.switch, 0);
    assert_eq!(graph.at(graph.ends(place.up).to), Node::Up(0));
    assert_eq!(graph.at(graph.ends(place.down).from), Node::Down(0));
    let spine = graph.switch(2);
    assert_eq!(graph.at(graph.ends(spine.loopback).from), Node::Up(2));
    // The same link seen from both ends.
    let (from_tor, at_spine) = (graph.switch(0).ports[2], spine.ports[0]);
    let (from_tor, at_spine) = (from_tor.expect("used"), at_spine.expect("used"));
    assert_eq!((from_tor.input, from_tor.output), (at_spine.output, at_spine.input));
    assert_eq!(graph.links().count(), 3 + 2 * 3 + 2 * 2);
}

#[test]
fn links_count_behind_processes_that_take_part() {
    let graph = Graph::new(&fabric(&[1, 1], 1));
    let only_first = graph.counted(|id| id == Id(1), |_| false);
    let place = |id| graph.place(Id(id)).expect("it is there");
    assert!(only_first.contains(&place(1).up) && !only_first.contains(&place(2).up));
    assert!(only_first.contains(&place(1).down) && only_first.contains(&place(2).down));
    assert!(!only_first.contains(&graph.switch(1).loopback), "no process below the second switch takes part");
    let cut = graph.switch(0).ports[1].expect("used").output;
    let without = graph.counted(|id| id == Id(1), |link| link == cut);
    assert!(!without.contains(&place(2).down) && without.contains(&place(1).down));
    assert!(graph.counted(|_| false, |_| false).is_empty());
}

#[test]
fn the_smaller_half_fails() {
    let graph = Graph::new(&fabric(&[1, 2], 1));
    let all = [1, 2, 3].map(Id);
    let cut = graph.switch(0).ports[1].expect("used");
    assert_eq!(graph.failed(&all, |link| link != cut.input), [Id(1)]);
    assert_eq!(graph.failed(&all, |_| true), []);
    assert_eq!(graph.unconnected_pair(&all, |link| link != cut.input), Some((Id(2), Id(1))));
    assert_eq!(graph.unconnected_pair(&all, |_| true), None);
}

#[test]
fn a_process_that_is_cut_in_one_direction_never_stays() {
    let graph = Graph::new(&fabric(&[2], 0));
    let down = graph.place(Id(1)).expect("it is there").down;
    assert_eq!(graph.failed(&[Id(1), Id(2)], |link| link != down), [Id(1)]);
    assert_eq!(graph.failed(&[Id(1)], |link| link != down), [Id(1)]);
    assert_eq!(graph.failed(&[Id(1), Id(2)], |_| false), [Id(1), Id(2)]);
}

proptest! {
    #[test]
    fn reachability_is_that_of_all_paths(graph in fabrics(), seed: u64) {
        let usable = |link: LinkId| seed >> (link.0 * 7 % 61) & 3 != 0;
        let ids: Vec<_> = graph.processes().map(|(id, _)| id).collect();
        let reachable = graph.reachable(&ids, &usable);
        for (a, from) in ids.iter().enumerate() {
            for (b, to) in ids.iter().enumerate() {
                let [from, to] = [from, to].map(|id| graph.place(*id).expect("it is there").node);
                prop_assert_eq!(reachable[a][b], path(&graph, from, to, &usable, 12));
            }
        }
    }

    #[test]
    fn counted_is_the_least_fixed_point(graph in fabrics(), seed: u64) {
        let takes_part = |id: Id| seed >> (id.0 % 64) & 1 != 0;
        let absent = |link: LinkId| (seed >> (link.0 * 11 % 59)).is_multiple_of(4);
        let counted = graph.counted(takes_part, absent);
        let mut expected = BTreeSet::new();
        loop {
            let more = graph.links().filter(|&link| !absent(link)).filter(|&link| {
                let from = graph.ends(link).from;
                match graph.at(from) {
                    Node::Process(id) => takes_part(id),
                    _ => graph.inputs(from).iter().any(|input| expected.contains(input)),
                }
            });
            let more: BTreeSet<_> = more.collect();
            if more == expected {
                break;
            }
            expected = more;
        }
        prop_assert_eq!(counted, expected);
    }

    #[test]
    fn chosen_processes_reach_each_other_and_none_can_be_added(graph in fabrics(), seed: u64) {
        let usable = |link: LinkId| seed >> (link.0 * 5 % 63) & 3 != 0;
        let ids: Vec<_> = graph.processes().map(|(id, _)| id).collect();
        let failed = graph.failed(&ids, usable);
        let stay: Vec<_> = ids.iter().copied().filter(|id| !failed.contains(id)).collect();
        prop_assert_eq!(graph.unconnected_pair(&stay, usable), None);
        for &id in &failed {
            let with = [&stay[..], &[id]].concat();
            prop_assert!(graph.unconnected_pair(&with, usable).is_some(), "{} need not fail", id);
        }
    }
}
