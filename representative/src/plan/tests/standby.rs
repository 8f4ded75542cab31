//! Plans with standbys.

use super::*;

/// Returns the paper's testbed, in which switches of each layer have a standby.
fn with_standbys() -> Topology {
    let mut topology = testbed();
    // In the representative's rack, and in another one; h9 represents none.
    for (switch, host) in [(0, 5), (1, 6), (4, 9), (8, 9)] {
        topology.switches[switch].standby = Some(host);
    }
    topology
}

/// Returns the configurations of all representatives and standbys.
fn configs(topology: &Topology, plan: &Plan) -> Vec<Config> {
    let switches = 0..topology.switches.len();
    let both = |switch| [Some(plan.config(topology, switch)), plan.standby_config(topology, switch)];
    switches.flat_map(both).flatten().collect()
}

/// Returns the links at which a beacon arrives: those with this address and queue pair.
fn targets(configs: &[Config], address: IpAddr, qpn: Qpn) -> Vec<&config::Link> {
    let at = configs.iter().filter(|config| config.addresses == [address]);
    let link = |config: &'_ Config| qpn.get().checked_sub(config.first_qp.get()).map(|n| n as usize);
    at.filter_map(|config| config.links.get(link(config)?)).collect()
}

#[test]
fn beacons_go_to_and_come_from_both_ends_of_each_link() {
    let topology = with_standbys();
    let plan = valid_plan(&topology);
    let configs = configs(&topology, &plan);
    assert_eq!(configs.len(), 14);
    let (mut between, mut from_hosts) = (0, 0);
    let check = |source: IpAddr, address: IpAddr, qpn| {
        let [link] = &targets(&configs, address, qpn)[..] else {
            panic!("no single link at {address} {qpn}")
        };
        assert!(link.ends().contains(&Some(source)), "{source} is no end of the link at {address} {qpn}");
    };
    for config in &configs {
        Representative::new(config.clone()).expect("a valid configuration");
        for link in config.links.iter().filter(|link| link.qpn != topology.settings.host_qp) {
            check(config.addresses[0], link.address, link.qpn);
            between += 1;
            if let Some(standby) = &link.standby {
                check(config.addresses[0], standby.address, standby.qpn);
                between += 1;
            }
        }
    }
    for (number, host) in topology.senders() {
        let (switch, process) = plan.process(&topology, number).expect("every host sends messages");
        assert_eq!(process.standby.is_some(), topology.switches[switch].standby.is_some());
        for end in core::iter::once(&process.tor).chain(&process.standby) {
            check(host.address, end.address, end.qpn);
            from_hosts += 1;
        }
    }
    // By link between switches: both directions, times the seats of both ends
    let seats = |switch: usize| plan.switches[switch].hosts().count();
    let expected = topology.links.iter().map(|link| 2 * seats(link.ends[0]) * seats(link.ends[1]));
    assert_eq!((between, from_hosts), (expected.sum(), 32 + 2 * 8));
}

#[test]
fn standbys_take_detours_of_their_own() {
    let topology = with_standbys();
    let plan = valid_plan(&topology);
    let of = |switch: usize| plan.switches[switch].standby.as_ref().expect("it has one");
    // h5 is at t0 and h1 as well: what one sends to the other turns round there.
    let link = of(0).links.iter().find(|link| link.to == Node::Switch(4)).expect("a link");
    assert_eq!((link.beacons.address, &link.beacons.detour), (ip(0, 1), &vec![ip(255, 0), ip(255, 4)]));
    // h9 is at t1, through either spine.
    let standby = link.standby.as_ref().expect("s0 has a standby");
    assert_eq!((standby.address, standby.crossing), (ip(1, 9), Crossing::Sometimes));
    assert!(plan.switches[0].tunnel_sources.is_superset(&[ip(0, 0), ip(0, 5)].into()));
    // Two switches have the same host as their standby.
    assert_eq!(of(8).first_qp.get(), of(4).first_qp.get() + of(4).links.len() as u32);
    assert_ne!(of(8).registers.va, of(4).registers.va);
}

#[test]
fn standby_is_another_host_than_the_representative() {
    let mut topology = testbed();
    topology.switches[0].standby = Some(0);
    let plan = valid_plan(&topology);
    assert_eq!((plan.switches[0].representative, plan.switches[1].representative), (1, 8), "the next one");
    topology.switches[0].representative = Some(0);
    let problem = Problem::SameHost { switch: 0, host: 0 };
    let (message, help) = problem.describe(&topology);
    assert_eq!(message, "`h0` is both the representative and the standby of `t0`");
    assert!(help.starts_with("name another host with `standby = \"...\"`"), "{help}");
    expect_problems(&topology, &[problem]);
    // No links lead to the host.
    let mut apart = super::topology(&["a", "b"], &[&[0], &[0], &[1]], &[]);
    apart.switches[0].standby = Some(2);
    expect_problems(&apart, &[Problem::Disconnected { switch: 0, host: 2 }]);
}

#[test]
fn standby_is_refused_with_clock_beacons() {
    let mut topology = with_standbys();
    topology.settings.clock_source = ClockSource::Beacons;
    let expected = [0, 1, 4, 8].map(Problem::StandbyWithClocks);
    let (message, help) = expected[0].describe(&topology);
    assert_eq!(message, "`t0` has a standby, and `clock_from` is \"beacons\"");
    assert!(help.starts_with("remove `standby`, or write `clock_from = \"host\"`"), "{help}");
    expect_problems(&topology, &expected);
}

#[test]
fn queue_pairs_of_standbys_are_below_those_of_the_controller() {
    let mut topology = with_standbys();
    topology.settings.fail_after_intervals = Some(10);
    let planned = plan(&topology).expect("the topology is valid");
    let last = |switch: &PlannedSwitch| {
        let first = switch.standby.as_ref().map_or(0, |standby| standby.first_qp.get());
        first.max(switch.first_qp.get()) + switch.links.len() as u32 - 1
    };
    let last = planned.switches.iter().map(last).max().unwrap();
    topology.settings.first_qp = Qpn::new(topology.settings.first_qp.get() + (1 << 16) - 1 - last);
    plan(&topology).expect("the last one is just below");
    topology.settings.first_qp = Qpn::new(topology.settings.first_qp.get() + 1);
    let problems = plan(&topology).expect_err("one is above");
    assert!(problems.iter().all(|problem| matches!(problem, Problem::QueuePairs { .. })), "{problems:?}");
}
