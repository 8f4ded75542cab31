mod standby;

use super::*;
use crate::Representative;
use onepipe::control::FIRST_INCARNATION_QP;
use onepipe::{ClockSource, ProcessId};
use proptest::prelude::*;

fn mac(group: u8, n: usize) -> MacAddr {
    let [high, low] = (n as u16).to_be_bytes();
    MacAddr([2, 0, 0, group, high, low])
}

fn ip(group: u8, n: usize) -> IpAddr {
    let [high, low] = (n as u16).to_be_bytes();
    IpAddr::from([10, group, high, low])
}

/// Returns a switch with all optional addresses.
fn switch(name: &str, n: usize) -> Switch {
    Switch { name: name.into(), tunnel: Some(ip(255, n)), mac: Some(mac(1, n)), ..Switch::default() }
}

/// Returns host `n`, in a subnet of its own rack.
fn host(n: usize, switches: &[usize]) -> Host {
    Host {
        name: format!("h{n}"),
        id: Some(ProcessId(n as u32 + 1)),
        address: ip(switches[0] as u8, n),
        prefix: 16,
        mac: mac(0, n),
        switches: switches.into(),
        messages: true,
        represents: true,
    }
}

fn link(a: usize, b: usize) -> Link {
    Link { ends: [a, b], cost: 1 }
}

fn topology(names: &[&str], hosts: &[&[usize]], links: &[(usize, usize)]) -> Topology {
    Topology {
        settings: Settings::default(),
        switches: names.iter().enumerate().map(|(n, name)| switch(name, n)).collect(),
        hosts: hosts.iter().enumerate().map(|(n, at)| host(n, at)).collect(),
        links: links.iter().map(|&(a, b)| link(a, b)).collect(),
    }
}

/// Returns the paper's testbed (1Pipe, section 7.1): 32 hosts, 4 ToR, 4 spine and 2 core switches, in two
/// pods.
fn testbed() -> Topology {
    let names = ["t0", "t1", "t2", "t3", "s0", "s1", "s2", "s3", "c0", "c1"];
    let hosts: Vec<[usize; 1]> = (0..32).map(|n| [n / 8]).collect();
    let hosts: Vec<&[usize]> = hosts.iter().map(|at| &at[..]).collect();
    let pods = [(0, 4), (0, 5), (1, 4), (1, 5), (2, 6), (2, 7), (3, 6), (3, 7)];
    let core = (4..8).flat_map(|spine| [(spine, 8), (spine, 9)]);
    topology(&names, &hosts, &pods.into_iter().chain(core).collect::<Vec<_>>())
}

/// Checks that every representative's configuration is valid, and that every beacon arrives where it is
/// expected.
#[track_caller]
fn check(topology: &Topology, plan: &Plan) {
    for (number, planned) in plan.switches.iter().enumerate() {
        let config = plan.config(topology, number);
        assert_eq!(config.links.len(), planned.links.len());
        Representative::new(config).unwrap();
        for link in &planned.links {
            let Node::Switch(other) = link.to else { continue };
            let there = &plan.switches[other];
            let back = there.links.iter().position(|link| link.to == Node::Switch(number)).unwrap();
            assert_ne!(there.links[back].side, link.side);
            assert_eq!(link.beacons.address, topology.hosts[there.representative].address);
            assert_eq!(link.beacons.qpn.get(), there.first_qp.get() + back as u32);
            let va = there.registers.va_of(back as u16);
            assert_eq!(link.beacons.form, BeaconForm::Write { va, rkey: there.registers.rkey });
        }
    }
    // Representatives at one host share no queue pairs.
    let seat = |planned: &'_ PlannedSwitch, seat| {
        let (host, first_qp, _) = planned.seat(seat)?;
        Some((host, first_qp.get()..first_qp.get() + planned.links.len() as u32))
    };
    let seats: Vec<_> =
        plan.switches.iter().flat_map(|planned| Seat::ALL.map(|of| seat(planned, of))).flatten().collect();
    for (number, (host, qps)) in seats.iter().enumerate() {
        for (other, taken) in &seats[..number] {
            assert!(host != other || qps.end <= taken.start || taken.end <= qps.start);
        }
    }
}

fn valid_plan(topology: &Topology) -> Plan {
    let plan = plan(topology).unwrap_or_else(|problems| panic!("{problems:?}"));
    check(topology, &plan);
    plan
}

#[track_caller]
fn expect_problems(topology: &Topology, expected: &[Problem]) {
    let problems = plan(topology).expect_err("the topology is invalid");
    assert_eq!(problems, expected);
    for problem in &problems {
        let (message, help) = problem.describe(topology);
        assert!(!message.is_empty() && !help.is_empty() && !message.ends_with('.'));
    }
}

/// Returns the beacons from a switch to a neighbour.
fn beacons(plan: &Plan, from: usize, to: Node) -> &Beacons {
    let link = plan.switches[from].links.iter().find(|link| link.to == to).expect("a link");
    &link.beacons
}

#[test]
fn plan_of_the_papers_testbed_is_right() {
    let topology = testbed();
    let plan = valid_plan(&topology);
    let layers: Vec<_> = plan.switches.iter().map(|switch| switch.layer).collect();
    assert_eq!(layers, [1, 1, 1, 1, 2, 2, 2, 2, 3, 3]);
    let representatives: Vec<_> = plan.switches.iter().map(|switch| switch.representative).collect();
    assert_eq!(representatives, [0, 8, 16, 24, 1, 2, 17, 18, 3, 4], "one each, in the nearest rack");
    let sizes: Vec<_> = plan.switches.iter().map(|switch| switch.links.len()).collect();
    assert_eq!(sizes, [10, 10, 10, 10, 4, 4, 4, 4, 4, 4]);
    assert!(plan.switches.iter().all(|switch| switch.has_hosts));
    // h0 represents t0, h1 represents s0: both are at t0, where packets between them turn round.
    let detoured = beacons(&plan, 0, Node::Switch(4));
    assert_eq!((detoured.crossing, &detoured.detour), (Crossing::Never, &vec![ip(255, 0), ip(255, 4)]));
    assert_eq!((detoured.next_hop, detoured.address), (mac(1, 0), ip(0, 1)));
    // h8 represents t1: its routes to h1 pass s0 or s1.
    let detoured = beacons(&plan, 1, Node::Switch(4));
    assert_eq!((detoured.crossing, &detoured.detour), (Crossing::Sometimes, &vec![ip(255, 1), ip(255, 4)]));
    // The other hosts in the rack are neighbours, and their link is the only path.
    let straight = beacons(&plan, 0, Node::Host(5));
    assert_eq!(
        (straight.crossing, &straight.detour, straight.next_hop),
        (Crossing::Always, &Vec::new(), mac(0, 5))
    );
    // What h0 sends to itself would not leave the host.
    let own = beacons(&plan, 0, Node::Host(0));
    assert_eq!((own.crossing, &own.detour, own.next_hop), (Crossing::Never, &vec![ip(255, 0)], mac(1, 0)));
    let [Uplink { switch: 0, beacons: own, .. }] = &plan.hosts[0][..] else { panic!("{:?}", plan.hosts[0]) };
    assert_eq!((own.crossing, &own.detour, own.address), (Crossing::Never, &vec![ip(255, 0)], ip(0, 0)));
    let [Uplink { switch: 0, beacons: straight, .. }] = &plan.hosts[7][..] else {
        panic!("{:?}", plan.hosts[7])
    };
    assert_eq!(
        (straight.crossing, straight.qpn, straight.next_hop),
        (Crossing::Always, Qpn::new(0x107), mac(0, 0))
    );
    // Every sender into a switch's tunnel is listed there.
    let sources: Vec<_> = plan.switches[0].tunnel_sources.iter().copied().collect();
    assert_eq!(sources, [ip(0, 0), ip(255, 4), ip(255, 5)]);
}

/// "The host representative is directly connected to the switch, so beacon packets do not need to detour."
#[test]
fn representatives_at_their_switches_need_no_detour() {
    let mut topology = testbed();
    for at in 0..10 {
        let n = topology.hosts.len();
        topology.hosts.push(Host { messages: false, ..host(n, &[at]) });
        topology.switches[at].representative = Some(n);
    }
    let plan = valid_plan(&topology);
    let all = plan.switches.iter().flat_map(|switch| &switch.links).map(|link| &link.beacons);
    for beacons in all.chain(plan.hosts.iter().flatten().map(|uplink| &uplink.beacons)) {
        assert_eq!((beacons.crossing, &beacons.detour), (Crossing::Always, &Vec::new()));
    }
    assert!(plan.switches.iter().all(|switch| switch.tunnel_sources.is_empty()));
    assert_eq!(
        plan.switches[0].links.len(),
        10,
        "the representative's own link is not one that its switch's barriers wait for"
    );
    // So no switch needs a tunnel address.
    for switch in &mut topology.switches {
        switch.tunnel = None;
    }
    valid_plan(&topology);
}

#[test]
fn single_switch_is_planned() {
    let mut single = topology(&["s"], &[&[0], &[0]], &[]);
    let plan = valid_plan(&single);
    assert_eq!((plan.switches[0].layer, plan.switches[0].representative), (1, 0));
    assert_eq!(beacons(&plan, 0, Node::Host(0)).detour, [ip(255, 0)], "to itself, over the host's link");
    assert_eq!(beacons(&plan, 0, Node::Host(1)).crossing, Crossing::Always);
    let sources: Vec<_> = plan.switches[0].tunnel_sources.iter().copied().collect();
    assert_eq!(sources, [ip(0, 0)]);
    // Another host represents it: no detours.
    single.hosts.push(Host { messages: false, ..host(2, &[0]) });
    single.switches[0] = Switch { representative: Some(2), tunnel: None, mac: None, ..switch("s", 0) };
    let plan = valid_plan(&single);
    assert!(plan.switches[0].links.iter().all(|link| link.beacons.crossing == Crossing::Always));
}

#[test]
fn loops_are_refused_and_named() {
    let ring = topology(&["a", "b", "c"], &[&[0], &[1], &[2]], &[(0, 1), (1, 2), (2, 0)]);
    let level = |link, cycle: &[usize]| Problem::Level { link, layer: 1, cycle: Some(cycle.into()) };
    expect_problems(&ring, &[level(0, &[0, 1, 2, 0]), level(1, &[1, 2, 0, 1]), level(2, &[2, 0, 1, 2])]);
    let (message, help) = level(0, &[0, 1, 2, 0]).describe(&ring);
    assert_eq!(message, "a loop: `a` - `b` - `c` - `a`");
    assert!(help.contains("`layer`"), "{help}");
    // A link between two ToR switches, which routes over the spine do not need
    let mut shortcut = topology(&["a", "b", "spine"], &[&[0], &[1]], &[(0, 2), (1, 2), (0, 1)]);
    expect_problems(&shortcut, &[level(2, &[0, 1, 2, 0])]);
    // Two switches alone are no loop, but neither is above the other.
    let two = topology(&["a", "b"], &[&[0], &[1]], &[(0, 1)]);
    expect_problems(&two, &[Problem::Level { link: 0, layer: 1, cycle: None }]);
    // `layer` can order them.
    let mut with_layer = two;
    with_layer.switches[1].layer = Some(2);
    let plan = valid_plan(&with_layer);
    assert_eq!(
        plan.switches[0].links.iter().map(|link| link.side).collect::<Vec<_>>(),
        [Side::Below, Side::Above]
    );
    assert_eq!(plan.switches[1].links.iter().map(|link| link.side).collect::<Vec<_>>(), [Side::Below; 2]);
    shortcut.switches[1].layer = Some(2);
    shortcut.switches[2].layer = Some(3);
    valid_plan(&shortcut);
}

/// ToR switches below two spines, of which one is far: the cheapest routes pass the rack between.
#[test]
fn routes_that_go_down_and_up_again_are_refused() {
    let mut topology =
        topology(&["a", "b", "c", "s", "t"], &[&[0], &[1], &[2]], &[(0, 3), (1, 3), (1, 4), (2, 4)]);
    let valley = Problem::Valley { from: 2, path: vec![2, 4, 1, 3], to: 0 };
    expect_problems(&topology, core::slice::from_ref(&valley));
    let (message, _) = valley.describe(&topology);
    assert_eq!(message, "a route from `h2` to `h0` goes down and up again: `c` - `t` - `b` - `s`");
    // With a path over the core, all routes are valid, unless that path costs too much.
    topology.switches.push(switch("core", 5));
    topology.links.extend([link(3, 5), link(4, 5)]);
    expect_problems(&topology, core::slice::from_ref(&valley));
    topology.links[1].cost = 2;
    valid_plan(&topology);
    topology.links[4].cost = 5;
    expect_problems(&topology, &[valley]);
}

#[test]
fn switch_without_a_representative_is_refused() {
    let mut topology = topology(&["a", "b", "spine"], &[&[0], &[1]], &[(0, 2), (1, 2)]);
    for host in &mut topology.hosts {
        host.represents = false;
    }
    topology.switches[0].representative = Some(0);
    expect_problems(&topology, &[Problem::NoRepresentative(1), Problem::NoRepresentative(2)]);
    let (message, _) = Problem::NoRepresentative(2).describe(&topology);
    assert_eq!(message, "`spine` has no representative, so its links have none: to `a`, `b`");
    topology.hosts[1].represents = true;
    let plan = valid_plan(&topology);
    assert_eq!(plan.switches.iter().map(|switch| switch.representative).collect::<Vec<_>>(), [0, 1, 1]);
    // One host for two switches: what it sends to itself has to go over the link.
    assert_eq!(beacons(&plan, 2, Node::Switch(1)).detour, [ip(255, 2), ip(255, 1)]);
    assert_eq!(beacons(&plan, 2, Node::Switch(1)).address, ip(1, 1));
    assert_ne!(plan.switches[1].first_qp, plan.switches[2].first_qp);
    assert_ne!(plan.switches[1].registers.va, plan.switches[2].registers.va);
}

/// Two networks in one file make two plans, and no host represents a switch of the other network.
#[test]
fn representative_must_be_connected_to_its_switch() {
    let mut apart = topology(&["t0", "s0", "t1", "s1"], &[&[0], &[0], &[2], &[2]], &[(0, 1), (2, 3)]);
    let plan = valid_plan(&apart);
    assert_eq!(plan.switches.iter().map(|switch| switch.representative).collect::<Vec<_>>(), [0, 1, 2, 3]);
    apart.switches[1].representative = Some(2);
    apart.switches[2].representative = Some(1);
    let disconnected = |switch, host| Problem::Disconnected { switch, host };
    expect_problems(&apart, &[disconnected(1, 2), disconnected(2, 1)]);
    let (message, _) = disconnected(1, 2).describe(&apart);
    assert_eq!(message, "`h2` is to represent `s0`, but no links connect the two");
    assert_eq!(disconnected(1, 2).about(), (About::Node(Node::Switch(1)), Some(About::Node(Node::Host(2)))));
    // A host at two switches sends through the first.
    for (first, second, [there, elsewhere]) in [(0, 2, [1, 3]), (2, 0, [3, 1])] {
        let mut both =
            topology(&["t0", "s0", "t1", "s1"], &[&[0], &[first, second], &[2]], &[(0, 1), (2, 3)]);
        both.switches[there].representative = Some(1);
        both.switches[elsewhere].representative = Some(1);
        expect_problems(&both, &[disconnected(elsewhere, 1)]);
        both.switches[elsewhere].representative = None;
        let plan = super::plan(&both).unwrap();
        assert_eq!(plan.switches[there].representative, 1);
        assert_ne!(plan.switches[elsewhere].representative, 1);
    }
}

#[test]
fn switch_without_hosts_below_is_planned() {
    let mut topology = topology(&["a", "empty", "spine"], &[&[0]], &[(0, 2), (1, 2)]);
    // Nothing marks it as a ToR switch, so it looks like a core switch.
    assert_eq!(valid_plan(&topology).switches[1].layer, 3);
    topology.switches[1].layer = Some(1);
    let plan = valid_plan(&topology);
    let has_hosts: Vec<_> = plan.switches.iter().map(|switch| switch.has_hosts).collect();
    assert_eq!(has_hosts, [true, false, true]);
    let only: Vec<_> = plan.switches[1].links.iter().map(|link| (link.to, link.side)).collect();
    assert_eq!(only, [(Node::Switch(2), Side::Above)]);
    topology.links.pop();
    expect_problems(&topology, &[Problem::Unreached(1)]);
}

#[test]
fn host_at_two_switches_is_planned() {
    let mut topology =
        topology(&["a", "b", "s", "t"], &[&[0], &[1], &[0, 1]], &[(0, 2), (0, 3), (1, 2), (1, 3)]);
    topology.switches[0].representative = Some(0);
    topology.switches[1].representative = Some(1);
    let plan = valid_plan(&topology);
    // Either switch has another path to it, but the direct one is shorter.
    let [Uplink { switch: 0, beacons: first, .. }, Uplink { switch: 1, beacons: second, .. }] =
        &plan.hosts[2][..]
    else {
        panic!("{:?}", plan.hosts[2])
    };
    assert_eq!((first.crossing, first.next_hop), (Crossing::Always, mac(1, 0)), "the switch at its own port");
    assert_eq!((second.crossing, second.next_hop), (Crossing::Always, mac(1, 1)));
    assert_eq!(beacons(&plan, 0, Node::Host(2)).crossing, Crossing::Always);
    // If the representative of both is at a spine, routes use both.
    topology.hosts.push(Host { messages: false, ..host(3, &[2]) });
    topology.switches[0].representative = Some(3);
    let plan = valid_plan(&topology);
    let both = beacons(&plan, 0, Node::Host(2));
    assert_eq!((both.crossing, &both.detour), (Crossing::Sometimes, &vec![ip(255, 0)]));
}

#[test]
fn duplicates_are_refused() {
    let mut twice = topology(&["a", "b", "spine"], &[&[0], &[1]], &[(0, 2), (1, 2), (2, 0)]);
    expect_problems(&twice, &[Problem::Parallel(0, 2)]);
    twice.links[2] = link(1, 1);
    expect_problems(&twice, &[Problem::ToItself(2)]);
    twice.links.pop();
    twice.hosts[1].address = ip(0, 0);
    twice.hosts[1].mac = mac(0, 0);
    twice.switches[2].tunnel = Some(ip(255, 1));
    let [first, second] = [Node::Host(0), Node::Host(1)];
    let tunnels = Problem::SameAddress(Node::Switch(1), Node::Switch(2), ip(255, 1));
    expect_problems(
        &twice,
        &[Problem::SameAddress(first, second, ip(0, 0)), tunnels, Problem::SameMac(first, second)],
    );
    let mut gateway = topology(&["a", "b", "spine"], &[&[0], &[1]], &[(0, 2), (1, 2)]);
    gateway.switches[0].mac = Some(gateway.hosts[1].mac);
    expect_problems(&gateway, &[Problem::SameMac(Node::Switch(0), second)]);
    let mut hosts = topology(&["a"], &[&[0], &[0, 0]], &[]);
    expect_problems(&hosts, &[Problem::NotAtOneSwitch(1)]);
    hosts.hosts[1] = Host { switches: Vec::new(), ..host(1, &[0]) };
    expect_problems(&hosts, &[Problem::NotAtOneSwitch(1)]);
    hosts.hosts[1] = Host { address: IpAddr::from([0; 16]), ..host(1, &[0]) };
    expect_problems(&hosts, &[Problem::Version(second)]);
    hosts.hosts.truncate(1);
    hosts.hosts[0].messages = false;
    expect_problems(&hosts, &[Problem::NoHosts]);
}

#[test]
fn queue_pairs_of_incarnations_are_refused_with_a_controller() {
    let mut topology = testbed();
    let links = plan(&topology).expect("valid").switches[0].links.len() as u32;
    topology.settings.first_qp = Qpn::new(FIRST_INCARNATION_QP - links + 1);
    plan(&topology).expect("valid without a controller");
    topology.settings.fail_after_intervals = Some(10);
    let problems = plan(&topology).unwrap_err();
    let first = Problem::QueuePairs { switch: 0, last: FIRST_INCARNATION_QP };
    assert_eq!(problems[0], first);
    assert!(first.describe(&topology).0.ends_with("queue pair 0x10000"), "{:?}", first.describe(&topology));
    topology.settings.first_qp = Qpn::new(0x100);
    plan(&topology).expect("below those of incarnations");
}

#[test]
fn detour_requirements_are_checked() {
    let mut topology = testbed();
    topology.switches[4].tunnel = None;
    topology.switches[0].mac = None;
    let problems = plan(&topology).unwrap_err();
    assert!(problems.contains(&Problem::NoTunnel { switch: 4, near: Node::Switch(0), far: Node::Switch(4) }));
    assert!(problems.contains(&Problem::NoMac { switch: 0, host: 0 }));
    assert!(problems.iter().all(|problem| !problem.describe(&topology).0.is_empty()));
    // The link between a and s costs more than the path around it.
    let mut far = super::tests::topology(&["a", "b", "s"], &[&[0], &[1]], &[(0, 2), (1, 2), (0, 1)]);
    for (switch, layer) in far.switches.iter_mut().zip([1, 2, 3]) {
        switch.layer = Some(layer);
    }
    far.links[0].cost = 5;
    let problems = plan(&far).unwrap_err();
    assert!(problems.contains(&Problem::NotDirect(0, 2)), "{problems:?}");
    // Equal cost is not sufficient either.
    far.links[0].cost = 2;
    assert!(plan(&far).unwrap_err().contains(&Problem::NotDirect(0, 2)));
}

#[test]
fn neighbours_are_those_in_the_same_subnet() {
    let host = host(1, &[0]);
    for (prefix, other, neighbour) in
        [(16, ip(0, 700), true), (24, ip(0, 255), true), (24, ip(0, 256), false), (0, ip(9, 9), true)]
    {
        assert_eq!(Host { prefix, ..host.clone() }.is_neighbour(other), neighbour, "/{prefix} {other}");
    }
    assert!(!host.is_neighbour(IpAddr::from([0; 16])));
}

/// Generates switches joined at random, with random costs. The first `count - 1` links make the network
/// connected.
fn any_network() -> impl Strategy<Value = (usize, Vec<Link>)> {
    let tree = |count: usize| (1..count).map(|n| (0..n, Just(n), 1u32..4)).collect::<Vec<_>>();
    let more = |count: usize| proptest::collection::vec((0..count, 0..count, 1u32..4), 0..6);
    (2usize..7).prop_flat_map(move |count| (Just(count), tree(count), more(count))).prop_map(
        |(count, tree, more)| {
            let mut links: Vec<Link> = Vec::new();
            for (a, b, cost) in tree.into_iter().chain(more) {
                let known = links.iter().any(|link| link.ends == [a, b] || link.ends == [b, a]);
                if a != b && !known {
                    links.push(Link { ends: [a, b], cost });
                }
            }
            (count, links)
        },
    )
}

/// Returns all paths between two switches that visit none twice, with their costs.
fn all_paths(links: &[Link], from: usize, to: usize) -> Vec<(u32, Vec<usize>)> {
    let mut open = vec![(0, vec![from])];
    let mut paths = Vec::new();
    while let Some((cost, path)) = open.pop() {
        let at = path[path.len() - 1];
        if at == to {
            paths.push((cost, path));
            continue;
        }
        for link in links {
            let next = match link.ends {
                [a, b] if a == at => b,
                [a, b] if b == at => a,
                _ => continue,
            };
            if !path.contains(&next) {
                open.push((cost + link.cost, [&path[..], &[next]].concat()));
            }
        }
    }
    paths
}

fn cheapest(links: &[Link], from: usize, to: usize) -> Vec<Vec<usize>> {
    let paths = all_paths(links, from, to);
    let least = paths.iter().map(|(cost, _)| *cost).min();
    paths.into_iter().filter(|(cost, _)| Some(*cost) == least).map(|(_, path)| path).collect()
}

proptest! {
    /// Compares with an enumeration of all paths.
    #[test]
    fn routes_are_the_shortest_paths((count, links) in any_network(), from in 0usize..6, to in 0usize..6) {
        let (from, to) = (from % count, to % count);
        let names = ["s"; 6];
        let mut network = topology(&names[..count], &[&[to]], &[]);
        network.links = links.clone();
        let graph = Graph::new(&network);
        let costs = graph.costs_to_host(&network, 0);
        let paths = cheapest(&links, from, to);
        for [near, far] in links.iter().flat_map(|link| [link.ends, [link.ends[1], link.ends[0]]]) {
            let passing = paths.iter().filter(|path| path.windows(2).any(|hop| hop == [near, far])).count();
            let expected = match passing {
                0 => Crossing::Never,
                some if some == paths.len() => Crossing::Always,
                _ => Crossing::Sometimes,
            };
            prop_assert_eq!(graph.crossing(&costs, from, near, Node::Switch(far)), expected);
            prop_assert_eq!(graph.is_direct(near, far), cheapest(&links, near, far) == [[near, far]]);
        }
        prop_assert_eq!(graph.crossing(&costs, from, to, Node::Host(0)), Crossing::Always);
    }
}

/// A fat tree of switches with `k` ports each (1,024 hosts for 16).
#[test]
fn fat_tree_of_1024_hosts_is_planned() {
    let k = 16;
    let half = k / 2;
    let tor = |pod: usize, n: usize| pod * k + n;
    let spine = |pod: usize, n: usize| pod * k + half + n;
    let core = |n: usize| k * k + n;
    let mut links = Vec::new();
    for pod in 0..k {
        for n in 0..half {
            links.extend((0..half).map(|other| (tor(pod, n), spine(pod, other))));
            links.extend((0..half).map(|other| (spine(pod, n), core(n * half + other))));
        }
    }
    let racks: Vec<_> = (0..k).flat_map(|pod| (0..half).map(move |n| [tor(pod, n)])).collect();
    let hosts: Vec<&[usize]> = racks.iter().flat_map(|rack| core::iter::repeat_n(&rack[..], half)).collect();
    let names = vec!["s"; k * k + half * half];
    let mut topology = topology(&names, &hosts, &links);
    for (number, host) in topology.hosts.iter_mut().enumerate() {
        let [.., high, low] = ((number / half) as u32).to_be_bytes();
        host.address = IpAddr::from([10, high, low, (number % half) as u8]);
        host.prefix = 24;
    }
    let plan = valid_plan(&topology);
    assert_eq!((topology.hosts.len(), topology.switches.len(), topology.links.len()), (1024, 320, 2048));
    let mut layers = [0; 4];
    plan.switches.iter().for_each(|switch| layers[switch.layer as usize] += 1);
    assert_eq!(layers, [0, 128, 128, 64]);
    // No host represents two switches while hosts nearby represent none.
    let busy: BTreeSet<_> = plan.switches.iter().map(|switch| switch.representative).collect();
    assert_eq!(busy.len(), 320);
}

#[test]
fn processes_have_the_numbers_of_the_topology() {
    let mut topology = topology(&["t"], &[&[0], &[0], &[0]], &[]);
    topology.hosts[1].id = Some(ProcessId(77));
    let (_, config) = valid_plan(&topology).process(&topology, 1).unwrap();
    assert_eq!(
        (config.own.id, config.peers[0].id, config.peers[1].id),
        (ProcessId(77), ProcessId(1), ProcessId(3))
    );
    topology.hosts[2].id = None;
    assert_eq!(valid_plan(&topology).process(&topology, 1), None);
    assert_eq!(topology.missing_ids(), [Problem::NoId(2)]);
    let (message, help) = Problem::NoId(2).describe(&topology);
    assert!(message.contains("`h2`") && help.contains("`id = 78`"), "{message} {help}");
    topology.hosts[2].messages = false;
    assert_eq!(topology.missing_ids(), []);
    // A number also belongs to a host that sends nothing at present.
    topology.hosts[2].id = Some(ProcessId(77));
    expect_problems(&topology, &[Problem::SameId(1, 2)]);
}

proptest! {
    /// Hosts get numbers, and keep those that they have.
    #[test]
    fn numbers_are_unique_and_stay(ids in proptest::collection::vec(proptest::option::of(prop_oneof![1u32..9, u32::MAX - 2..=u32::MAX]), 1..9)) {
        let mut seen = BTreeSet::new();
        let ids: Vec<_> = ids.into_iter().map(|id| id.filter(|id| seen.insert(*id))).collect();
        let racks: Vec<&[usize]> = vec![&[0]; ids.len()];
        let mut network = topology(&["t"], &racks, &[]);
        for (host, id) in network.hosts.iter_mut().zip(&ids) {
            host.id = id.map(ProcessId);
        }
        for (host, id) in network.numbering() {
            prop_assert_eq!(network.hosts[host].id, None);
            network.hosts[host].id = Some(id);
        }
        let all: Vec<_> = network.hosts.iter().map(|host| host.id.unwrap().0).collect();
        prop_assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), ids.len());
        prop_assert!(ids.iter().zip(&all).all(|(before, after)| before.is_none_or(|before| before == *after)));
        if seen.is_empty() {
            prop_assert_eq!(all, (1..=ids.len() as u32).collect::<Vec<_>>());
        }
    }
}
