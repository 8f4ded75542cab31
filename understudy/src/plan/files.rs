//! Writes the files of a plan for hosts: a configuration for `understudy run` of each representative, and one
//! for `understudy process` of each host that sends messages.

use super::File;
use crate::config::{Controller, Network};
use core::fmt::Write as _;
use onepipe::{ClockSource, ProcessId};
use representative::config::{BeaconForm, Registers, Side};
use representative::plan::{Beacons, Host, Node, PlannedLink, PlannedSwitch, Settings, Standby, Uplink};
use rocev2::Qpn;
use settings::Report;
use settings::file::text_of;
use std::path::Path;
use switch::Nanos;

/// Number of members for which processes have room at least, as without a plan
const MEMBERS: usize = 512;

/// Returns all files.
pub(super) fn all(network: &Network) -> Vec<File> {
    let switches = 0..network.topology.switches.len();
    let hosts = 0..network.topology.hosts.len();
    let processes = hosts.filter(|&host| !network.plan.hosts[host].is_empty());
    switches
        .flat_map(|switch| [Some(representative(network, switch)), standby(network, switch)])
        .flatten()
        .chain(processes.map(|host| process(network, host)))
        .collect()
}

fn hex(number: u64) -> String {
    format!("{number:#x}")
}

fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}

const fn micros(time: Nanos) -> u64 {
    time.0 / 1_000
}

/// Returns `[runtime]`. Barriers and promises need a single worker.
fn runtime(network: &Network) -> String {
    let idle = network.idle.map(|idle| format!("idle = \"{idle}\"\n")).unwrap_or_default();
    format!("[runtime]\nworkers = [\"any\"]\n{idle}")
}

fn detour(beacons: &Beacons) -> Option<String> {
    let ends: Vec<_> = beacons.detour.iter().map(|end| format!("\"{end}\"")).collect();
    (!ends.is_empty()).then(|| format!("detour = [{}]", ends.join(", ")))
}

/// Returns the keys that each `[controller]` has.
fn common_keys(network: &Network, controller: &Controller) -> String {
    let secret = controller.secret_file.as_ref();
    let secret = secret.map(|file| format!("secret_file = {}\n", quoted(file))).unwrap_or_default();
    let intervals = network.topology.settings.fail_after_intervals.unwrap_or_default();
    format!("{secret}fail_after_intervals = {intervals}\n")
}

/// Returns `[controller]` of a node with the keys that each node has.
fn node_keys(network: &Network, controller: &Controller) -> String {
    let (common, topology) = (common_keys(network, controller), network.topology.hash());
    format!(
        "\n[controller]\naddresses = [\"{}\"]\n{common}topology = \"{topology:016x}\"\n",
        controller.listen
    )
}

/// Returns the configuration of the controller, if there is one, and the topology in this file, which belongs to it.
pub(super) fn controller(network: &Network, topology: &Path) -> Result<Vec<File>, Report> {
    let Some(controller) = &network.controller else { return Ok(Vec::new()) };
    let Controller { listen, respond_within, .. } = controller;
    let content = format!(
        "# The controller of the reliable service (written by `understudy plan`), for `understudy controller`.\n\n\
         [controller]\nlisten = \"{listen}\"\ntopology = \"topology.toml\"\n{}store = {{ file = \"controller.redb\" }}\n\
         respond_within_ms = {}\n",
        common_keys(network, controller),
        respond_within.0 / 1_000_000
    );
    let topology = File { name: "topology.toml".into(), content: text_of(topology)? };
    Ok(vec![File { name: "controller.toml".into(), content }, topology])
}

/// Returns the configuration of a switch's representative.
fn representative(network: &Network, switch: usize) -> File {
    let PlannedSwitch { representative: host, first_qp, registers, links, .. } =
        &network.plan.switches[switch];
    let content = keeper(network, switch, "kept by host", &(*host, *first_qp, *registers), links);
    File { name: format!("{}.representative.toml", network.topology.switches[switch].name), content }
}

/// Returns the configuration of the standby of a switch's representative, if it has one.
fn standby(network: &Network, switch: usize) -> Option<File> {
    let Standby { host, first_qp, registers, links } = network.plan.switches[switch].standby.as_ref()?;
    let mut content = keeper(network, switch, "also kept by host", &(*host, *first_qp, *registers), links);
    content.extend(network.controller.as_ref().map(|_| "seat = 1\n"));
    Some(File { name: format!("{}.standby.toml", network.topology.switches[switch].name), content })
}

/// Returns the configuration of a host that keeps a switch's barriers, which has this first queue pair and this
/// memory.
fn keeper(
    network: &Network,
    switch: usize,
    kept: &str,
    (host, first_qp, registers): &(usize, Qpn, Registers),
    links: &[PlannedLink],
) -> String {
    let (topology, planned) = (&network.topology, &network.plan.switches[switch]);
    let (settings, name) = (&topology.settings, &topology.switches[switch].name);
    let (interface, host) = (&network.interfaces[*host], &topology.hosts[*host]);
    let mut text = format!(
        "# The barriers of switch {name}, {kept} {} (written by `understudy plan`).\n\n\
         {}\n\
         [[port]]\nname = \"network\"\naf_packet = {{ interface = {} }}\n\n\
         [onepipe]\nincarnation = \"host\"\naddresses = [\"{}/{}\"]\nmac = \"{}\"\n",
        host.name,
        runtime(network),
        quoted(interface),
        host.address,
        host.prefix,
        host.mac
    );
    _ = write!(
        text,
        "beacon_interval_ns = {}\ndead_after_intervals = {}\ntraffic_class = {}\nahead_max_us = {}\n{}layer = {}\nfirst_qp = {}\nregisters = {{ va = {}, rkey = {} }}\n",
        settings.beacon_interval.0,
        settings.dead_after_intervals,
        settings.traffic_class,
        micros(settings.ahead_max),
        clock_from(settings),
        planned.layer,
        hex(first_qp.get().into()),
        hex(registers.va),
        hex(registers.rkey.into())
    );
    for link in links {
        let beacons = &link.beacons;
        let (what, name) = match link.to {
            Node::Host(_) => ("host", topology.name(link.to)),
            Node::Switch(_) => ("switch", topology.name(link.to)),
        };
        _ = write!(
            text,
            "\n[[onepipe.links]]\nname = \"{what} {name}\"\nside = \"{}\"\nport = \"network\"\nmac = \"{}\"\naddress = \"{}\"\nqpn = {}\n",
            if link.side == Side::Below { "below" } else { "above" },
            beacons.next_hop,
            beacons.address,
            hex(beacons.qpn.get().into())
        );
        text.extend(form(beacons).map(|form| format!("{form}\n")));
        text.extend(detour(beacons).map(|detour| format!("{detour}\n")));
        text.extend(link.standby.as_ref().map(|end| second_end(end, true)));
    }
    if let Some(controller) = &network.controller {
        text += &node_keys(network, controller);
        _ = writeln!(text, "switch = {switch}");
    }
    text
}

/// Returns the line for clocks that follow clock beacons; none by default.
const fn clock_from(settings: &Settings) -> &'static str {
    match settings.clock_source {
        ClockSource::Host => "",
        ClockSource::Beacons => "clock_from = \"beacons\"\n",
    }
}

/// Returns the form of beacons that are WRITEs.
fn form(beacons: &Beacons) -> Option<String> {
    let BeaconForm::Write { va, rkey } = beacons.form else { return None };
    Some(format!("beacon = {{ va = {}, rkey = {} }}", hex(va), hex(rkey.into())))
}

/// Returns the standby at the other end of a link. Processes send no beacons in the `form` of WRITEs.
fn second_end(beacons: &Beacons, has_form: bool) -> String {
    let form = form(beacons).filter(|_| has_form);
    let more = [form, detour(beacons)].into_iter().flatten().map(|key| format!(", {key}"));
    format!(
        "standby = {{ mac = \"{}\", address = \"{}\", qpn = {}{} }}\n",
        beacons.next_hop,
        beacons.address,
        hex(beacons.qpn.get().into()),
        more.collect::<String>()
    )
}

/// Returns the number of a host's process.
fn id_of(host: &Host) -> ProcessId {
    host.id.expect("`config::load_plan` requires numbers")
}

/// Returns the configuration of a host's process.
fn process(network: &Network, number: usize) -> File {
    let topology = &network.topology;
    let (settings, host) = (&topology.settings, &topology.hosts[number]);
    let mut text = format!(
        "# The process on host {} (written by `understudy plan`), for `understudy process` and for the library:\n\
         # its number and queue pair, the representative that keeps the barriers of its link, and its peers.\n\n\
         {}\n\
         [[port]]\nname = \"network\"\naf_packet = {{ interface = {} }}\n\n\
         [process]\nid = {}\naddress = \"{}/{}\"\nmac = \"{}\"\nqpn = {}\nbeacon_interval_ns = {}\ntraffic_class = {}\nahead_max_us = {}\nclock_error_us = {}\n{}timeout_us = {}\n",
        host.name,
        runtime(network),
        quoted(&network.interfaces[number]),
        id_of(host),
        host.address,
        host.prefix,
        host.mac,
        hex(settings.host_qp.get().into()),
        settings.beacon_interval.0,
        settings.traffic_class,
        micros(settings.ahead_max),
        micros(settings.clock_error),
        clock_from(settings),
        micros(settings.timeout)
    );
    for Uplink { switch, beacons, standby } in &network.plan.hosts[number] {
        _ = write!(
            text,
            "\n[[process.beacons]]\nswitch = \"{}\"\nmac = \"{}\"\naddress = \"{}\"\nqpn = {}\n",
            topology.switches[*switch].name,
            beacons.next_hop,
            beacons.address,
            hex(beacons.qpn.get().into())
        );
        text.extend(detour(beacons).map(|detour| format!("{detour}\n")));
        text.extend(standby.as_ref().map(|end| second_end(end, false)));
    }
    for (other, peer) in topology.senders().filter(|(other, _)| *other != number) {
        let mac = topology.next_hop(number, other).map_or_else(
            || {
                format!(
                    "# mac = \"...\": that of switch {}, which the topology does not give",
                    topology.switches[host.switches[0]].name
                )
            },
            |mac| format!("mac = \"{mac}\""),
        );
        _ = write!(
            text,
            "\n[[process.peers]]    # {}\nid = {}\n{mac}\naddress = \"{}\"\nqpn = {}\n",
            peer.name,
            id_of(peer),
            peer.address,
            hex(settings.host_qp.get().into())
        );
    }
    if let Some(controller) = &network.controller {
        text += &node_keys(network, controller);
        // It divides the buffer, so it has to be the same in all processes.
        _ = writeln!(text, "max_members = {}", topology.senders().count().max(MEMBERS));
    }
    File { name: format!("{}.process.toml", host.name), content: text }
}
