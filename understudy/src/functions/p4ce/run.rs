//! P4CE's switch: the data plane on a worker, the control plane on the control thread, and its part of the
//! report.

use super::P4ceConfig;
use super::report::{GroupRow, P4ceReport};
use crate::functions::launch::Launch;
use crate::functions::report::Report;
use crate::observe::{FunctionMetrics, QueuePair, Row, Table, TraceError, Values, busiest};
use crate::system::random_u64;
use dataplane::{ControlPlane, NoControl, Runtime, Stop};
use p4ce::{Command, Control, ControlConfig, Event, Group, GroupStatus, P4ce};
use rnic::Interface;
use rocev2::Qpn;
use rocev2::ethernet::MacAddr;
use std::collections::HashMap;
use std::sync::Arc;
use switch::drop::FaultSet;
use switch::forward::config::ForwardingMode;
use switch::forward::{Config as ForwardConfig, Counters};
use switch::memory::{MemoryFrame, run_frame};
use switch::metrics::{Group as MetricGroup, Kind, Metric};
use switch::{Function, Nanos, PortId};

/// Groups that are open now
pub(super) const OPEN_GROUPS: Metric =
    Metric::new(Kind::Gauge, "groups", "groups", "Groups that are open").observed_only();
/// Groups, with the packets received for them
pub(super) const GROUPS: MetricGroup = MetricGroup {
    item: "group",
    keys: &["group", "leader"],
    properties: &["replicas", "state"],
    fields: &[&[
        Metric::new(Kind::Counter, "requests", "packets", "Request packets of the leader").observed_only(),
        Metric::new(Kind::Counter, "request_bytes", "bytes", "Request packets of the leader, in bytes")
            .observed_only(),
        Metric::new(Kind::Counter, "responses", "packets", "Responses of the replicas").observed_only(),
    ]],
};

/// Returns the capacity for queue pairs: one for the leader and one for each replica of each group. Each worker has room
/// for its share of the groups, of any size.
fn queue_pairs(config: &P4ceConfig) -> usize {
    let groups = config.groups.div_ceil(config.workers) * config.workers;
    (groups * (config.max_replicas + 1)).next_power_of_two()
}

pub(crate) fn data_plane(config: &P4ceConfig, mac: MacAddr) -> p4ce::Config {
    p4ce::Config {
        forward: ForwardConfig {
            ports: config.ports,
            mode: ForwardingMode::Mac(config.stations.clone()),
            drop: FaultSet::NONE,
            verify_icrc: false,
            verify_udp_checksum: false,
            counted_qps: config.counted_qps,
            health: config.health,
        },
        mac,
        addresses: config.addresses.iter().map(|(ip, _)| *ip).collect(),
        groups: config.groups,
        queue_pairs: queue_pairs(config),
        workers: config.workers,
        silent_after: config.silent_after,
        bug: None,
    }
}

pub(crate) fn control_plane(config: &P4ceConfig, mac: MacAddr, seed: u64) -> ControlConfig {
    ControlConfig {
        interface: Interface {
            mac,
            addresses: config.addresses.clone(),
            gateways: config.gateways.clone(),
            vlan: config.vlan,
            neighbours: Vec::new(),
        },
        port: config.port,
        groups: config.groups,
        queue_pairs: queue_pairs(config),
        workers: config.workers,
        max_replicas: config.max_replicas,
        lists: config.lists.clone(),
        limits: config.limits.clone(),
        secret: config.secret.clone(),
        setup_timeout: config.setup_timeout,
        max_lag: p4ce::gather::MAX_LAG,
        seed,
        first_psn: None,
    }
}

pub(super) fn run(config: &P4ceConfig, launch: Launch<'_>) -> Result<Report, miette::Report> {
    let mut run = launch.start()?;
    let mac = config.mac.unwrap_or_else(|| run.port_mac());
    let function = |_| P4ce::new(data_plane(config, mac)).salted(random_u64());
    let functions: Vec<_> = (0..run.workers).map(function).collect();
    let counters: Vec<_> = functions.iter().map(P4ce::counters).collect();
    let bridged: Vec<_> = functions.iter().map(P4ce::forward_counters).collect();
    let control = Control::new(control_plane(config, mac, config.seed.unwrap_or_else(random_u64)));
    let mut plane = ControlPlane::new(control);
    let metrics = |plane: &ControlPlane<Control>| {
        let of_bridge = FunctionMetrics::forwarded(&bridged);
        let open = plane.control.groups().filter(|group| group.open).count() as u64;
        let groups = groups(&plane.control, config, &bridged);
        of_bridge.values(&counts(&plane.control, &counters)).value(&OPEN_GROUPS, Some(open)).first(groups)
    };
    let group = |plane: &ControlPlane<Control>, id| {
        let found = plane.control.groups().find(|group| group.id.0 == id);
        found.map(|group| queue_pairs_of(&group, config)).ok_or_else(|| TraceError::NoSuchGroup {
            requested: id,
            existing: plane.control.groups().map(|group| group.id.0).collect(),
        })
    };
    let (outcome, seconds) = run.run_groups(workers::p4ce, functions, &mut plane, metrics, group);
    let report = Report::of(&run.runtime, &outcome, &bridged, config.counted_qps, seconds);
    let p4ce = P4ceReport {
        counts: counts(&plane.control, &counters),
        groups: rows(&plane.control),
        setup: plane.control.counters(),
    };
    Ok(report.with(&p4ce))
}

/// Returns the table of groups, with the packets received for them. The bridge counts these by queue pair, up
/// to `counted_qps`.
fn groups(control: &Control, config: &P4ceConfig, bridged: &[Arc<Counters>]) -> Table {
    let mut own = HashMap::<_, (u64, u64)>::new();
    for qp in bridged.iter().flat_map(|counters| counters.qps.iter()) {
        if config.addresses.iter().any(|(ip, _)| *ip == qp.host) {
            let (frames, bytes) = qp.packets.get();
            let sum = own.entry(qp.qpn).or_default();
            *sum = (sum.0 + frames, sum.1 + bytes);
        }
    }
    let counted = |group: GroupStatus| {
        let received = |qpn: &Qpn| own.get(qpn).copied().unwrap_or((0, 0));
        let (requests, bytes) = group.own.first().map_or((0, 0), received);
        let responses: u64 = group.own.iter().skip(1).map(|qpn| received(qpn).0).sum();
        ([requests, bytes, responses], group)
    };
    let groups = busiest(control.groups().map(counted), |(a, one), (b, other)| {
        b.cmp(a).then_with(|| one.id.0.cmp(&other.id.0))
    });
    let row = |(counts, group): ([u64; 3], GroupStatus)| {
        let replicas: Vec<_> = group
            .replicas
            .iter()
            .map(|(ip, there)| format!("{ip}{}", if *there { "" } else { " (excluded)" }))
            .collect();
        let state = if group.open { "open" } else { "not open" };
        let cells = [&group.id.0.to_string(), &group.leader.to_string(), &replicas.join(" "), state];
        Row { queue_pairs: queue_pairs_of(&group, config), ..Row::new(cells, counts) }
    };
    Table::of_busiest(&GROUPS, groups, row)
}

/// Returns the queue pairs of a group: the switch's at each of its addresses, the leader's and the replicas'.
fn queue_pairs_of(group: &GroupStatus, config: &P4ceConfig) -> Vec<QueuePair> {
    let own = group.own.iter().flat_map(|qpn| config.addresses.iter().map(|(ip, _)| (Some(*ip), qpn.get())));
    own.chain(group.peers.iter().map(|(ip, qpn)| (Some(*ip), qpn.get()))).collect()
}

/// Returns the counters of the control plane, and those of the data plane on all workers.
fn counts(control: &Control, counters: &[Arc<p4ce::Counters>]) -> Values {
    Values::of(&control.counters()).and(Values::total(counters.iter().map(Arc::as_ref)))
}

/// Returns the list of groups for the report.
fn rows(control: &Control) -> Vec<GroupRow> {
    let row = |group: GroupStatus| GroupRow {
        group: group.id.0,
        leader: group.leader.to_string(),
        replicas: group.replicas.iter().map(|(ip, _)| ip.to_string()).collect(),
        excluded: group.replicas.iter().filter(|(_, there)| !there).map(|(ip, _)| ip.to_string()).collect(),
        quorum: group.quorum,
        open: group.open,
    };
    control.groups().map(row).collect()
}

/// Runs the data plane with groups that are open from the start, until `stop` is set. `bench p4ce` measures
/// it.
pub(crate) fn load(runtime: &mut Runtime, config: &P4ceConfig, args: &bench::p4ce::LoadArgs, stop: &Stop) {
    let mac = config.mac.unwrap_or(MacAddr([2, 0, 0, 0, 0, 1]));
    let workers = config.workers as u32;
    let mut functions: Vec<_> = (0..workers).map(|_| P4ce::new(data_plane(config, mac))).collect();
    for (n, group) in (0..).zip(bench::p4ce::groups(args.groups, args.replicas, workers)) {
        let group = Group::new(group).expect("the groups are valid");
        let function = &mut functions[(n % workers) as usize];
        function.on_command(Command::Open(group), Nanos::ZERO);
        assert!(
            matches!(function.poll_event(), Some(Event::Opened(_, true))),
            "the switch has room for the group"
        );
        // Only requests that were sent can be acknowledged.
        let write = bench::p4ce::write_to_group(n, workers, 64);
        assert_eq!(function.owner(&MemoryFrame::new(write.clone()), PortId(0)), Some((n % workers) as usize));
        run_frame(function, &write, PortId(0), Nanos::ZERO);
    }
    runtime.run_by(workers::p4ce, functions, &mut NoControl, stop);
}
