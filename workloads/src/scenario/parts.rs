//! Parts of a scenario's network: links, switches, NICs and outsiders.

use super::{
    AckSpec, FaultKind, FaultSpec, HostSpec, LinkSpec, NumberRange, Scenario, SwitchKind, SwitchSpec, Work,
};
use crate::{groups, verbs};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use p4ce::P4ce;
use rnic::congestion::Dcqcn;
use rnic::{AckPolicy, Config, Interface};
use rocev2::Psn;
use rocev2::ethernet::MacAddr;
use sim::{Clock, Controlled, Ecn, Forger, ForgerConfig, Link, NodeId, Switch, World};
use switch::forward::{Config as ForwardConfig, Forward};
use switch::{Nanos, Probability, Rng};

/// Capacity of a switch's MAC table
const MAX_MACS: usize = 4096;
/// Addresses of outsiders, from the blocks for documentation (RFC 5737, RFC 3849)
const OUTSIDER: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 66));
const OUTSIDER_V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0x66));
/// Time limit for the set-up of a group; a lossy link needs many repetitions by the communication manager
const SETUP_TIMEOUT: Nanos = Nanos::from_secs(60);

/// Bug to plant in every NIC; only builds with debug assertions have any.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Planted {
    /// The bug, if any
    pub bug: Option<rnic::Bug>,
}

fn share(billionths: i64) -> Probability {
    Probability::new(billionths as f64 / 1e9).unwrap_or(Probability::NEVER)
}

pub(super) fn link_of(spec: &LinkSpec) -> Link {
    let unsigned = |number: NumberRange| number.value().max(0) as u64;
    Link {
        rate_bps: unsigned(spec.rate),
        delay: Nanos(unsigned(spec.delay)),
        jitter: Nanos(unsigned(spec.jitter)),
        loss: share(spec.loss.value()),
        duplicate: share(spec.duplicate.value()),
        reorder: share(spec.reorder.value()),
        reorder_by: Nanos(unsigned(spec.reorder_by)),
        corrupt: share(spec.corrupt.value()),
        mtu: unsigned(spec.mtu) as usize,
        queue: unsigned(spec.queue) as usize,
        ecn: spec.ecn.map(|ecn| Ecn {
            min: unsigned(ecn.min) as usize,
            max: unsigned(ecn.max) as usize,
            share: share(ecn.share.value()),
        }),
    }
}

pub(super) fn mac_of(kind: u8, number: usize) -> MacAddr {
    let [high, low] = (number as u16 + 1).to_be_bytes();
    MacAddr([0x02, 0x75, 0x73, kind, high, low])
}

pub(super) fn add_switch(
    world: &mut World,
    scenario: &Scenario,
    number: usize,
    spec: &SwitchSpec,
    seed: u64,
) -> NodeId {
    let linked = scenario.links.iter().filter(|link| link.ends.contains(&spec.name)).count();
    let ports = (linked + outsiders(scenario, &spec.name).count()) as u16;
    let forward = ForwardConfig::bridge(ports, MAX_MACS);
    let SwitchKind::P4ce { address, silent_after } = spec.kind else {
        return world.add(&spec.name, Switch::new(move || Forward::new(&forward)), Clock::default());
    };
    let mac = mac_of(1, number);
    let replicas: Vec<_> = replicas(scenario).map(|host| host.address.0).collect();
    let (groups, queue_pairs) = capacity(scenario);
    let mut rng = Rng::stream(switch::table::mix(seed ^ number as u64), 0x7034_6365);
    // Often just below 2^24, so that the PSN wraps around soon
    let near = Psn::new(0u32.wrapping_sub(rng.between(1, 64) as u32));
    let control = p4ce::ControlConfig {
        interface: Interface::new(mac, address.0, address.1),
        port: groups::SWITCH_PORT,
        groups,
        queue_pairs,
        workers: 1,
        max_replicas: replicas.len(),
        lists: [(groups::LIST, replicas)].into(),
        limits: p4ce::Limits::default(),
        secret: None,
        setup_timeout: SETUP_TIMEOUT,
        max_lag: p4ce::gather::MAX_LAG,
        seed: rng.bits(),
        first_psn: (rng.below(2) == 0).then_some(near),
    };
    let config = p4ce::Config {
        forward,
        mac,
        addresses: vec![address.0],
        groups,
        queue_pairs,
        workers: 1,
        silent_after: Nanos(silent_after.value().max(0) as u64),
        bug: None,
    };
    let made = move |incarnation| {
        p4ce::Control::new(p4ce::ControlConfig { seed: control.seed ^ incarnation << 32, ..control.clone() })
    };
    world.add(&spec.name, Controlled::new(move || P4ce::new(config.clone()), made), Clock::default())
}

fn leaders(scenario: &Scenario) -> &[String] {
    match &scenario.work {
        Work::Groups(work) => &work.leaders,
        Work::Verbs(_) => &[],
    }
}

fn replicas(scenario: &Scenario) -> impl Iterator<Item = &HostSpec> {
    scenario.hosts.iter().filter(|host| !leaders(scenario).contains(&host.name))
}

/// Returns the number of groups and queue pairs that a switch has capacity for.
fn capacity(scenario: &Scenario) -> (usize, usize) {
    let each = match &scenario.work {
        Work::Groups(work) => work.groups.value() as usize,
        Work::Verbs(_) => 0,
    };
    // A group that is requested again while the switch still has it takes another slot.
    let groups = 2 * leaders(scenario).len() * each;
    (groups, groups * (replicas(scenario).count() + 1))
}

/// Returns the faults that add an outsider to a switch, with its number of rounds.
fn outsiders<'a>(scenario: &'a Scenario, switch: &'a str) -> impl Iterator<Item = (&'a FaultSpec, u32)> {
    scenario.faults.iter().filter_map(move |fault| match &fault.kind {
        FaultKind::Outsider(at, rounds) if at == switch => Some((fault, rounds.value().max(0) as u32)),
        _ => None,
    })
}

/// Adds the outsiders of a switch.
pub(super) fn add_outsiders(
    world: &mut World,
    scenario: &Scenario,
    (switch, number, node): (&SwitchSpec, usize, NodeId),
    seed: u64,
) {
    let hosts: Vec<_> =
        (0..).zip(&scenario.hosts).map(|(number, host)| (host.address.0, mac_of(0, number))).collect();
    let is_v6 = hosts.first().is_some_and(|(address, _)| address.is_ipv6());
    for (outsider, (fault, rounds)) in outsiders(scenario, &switch.name).enumerate() {
        let config = ForgerConfig {
            seed: switch::table::mix(seed ^ (outsider as u64) << 32 ^ (number as u64) << 40),
            own: (if is_v6 { OUTSIDER_V6 } else { OUTSIDER }, mac_of(2 + number as u8, outsider)),
            targets: hosts.clone(),
            switch: match switch.kind {
                SwitchKind::P4ce { address, .. } => {
                    Some(((address.0, mac_of(1, number)), capacity(scenario).1))
                }
                SwitchKind::Bridge => None,
            },
            impersonated: hosts.clone(),
            words: (verbs::WORDS_VA, 16),
            by_cm: matches!(scenario.work, Work::Groups(_)),
            rounds,
            from: Nanos(fault.at.value().max(0) as u64),
        };
        let outsider = world.add("outsider", Forger::new(config), Clock::default());
        world.connect(outsider, node, Link::default());
    }
}

pub(super) fn nic_of(
    host: &HostSpec,
    number: usize,
    seed: u64,
    link: Option<&LinkSpec>,
    planted: Planted,
) -> Config {
    let mac = mac_of(0, number);
    let rate = link.map_or(0, |link| link.rate.value().max(0) as u64);
    let rate = if rate == 0 { 100_000_000_000 } else { rate };
    Config {
        window: host.window.value() as u32,
        ack: match host.ack {
            AckSpec::EveryPacket => AckPolicy::EveryPacket,
            AckSpec::OnRequest | AckSpec::Any => AckPolicy::OnRequest,
            AckSpec::Every { packets, time } => AckPolicy::Every { packets, time: Nanos(time) },
        },
        credits: host.credits.is_true(),
        forgetful: host.forgetful.is_true(),
        congestion: host.dcqcn.is_true().then(|| Dcqcn::paper_defaults(rate)),
        seed: switch::table::mix(seed ^ (number as u64 + 1) << 32),
        bug: planted.bug,
        ..Config::new(Interface::new(mac, host.address.0, host.address.1))
    }
}
