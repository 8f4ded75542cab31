//! Writes the rules by which switches end tunnels, in the syntax of their operating systems. docs/onepipe.md
//! names the sources of the syntax.

use super::File;
use crate::config::{Network, System};
use core::fmt::Write as _;
use core::net::IpAddr;
use representative::plan::Switch;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

/// Returns the rules of each switch at which tunnels end.
pub(super) fn all(network: &Network) -> Vec<File> {
    let switches = network.topology.switches.iter().zip(&network.plan.switches).zip(&network.systems);
    let rules = switches.filter_map(|((switch, planned), system)| {
        let end = switch.tunnel.filter(|_| !planned.tunnel_sources.is_empty())?;
        let sources = &planned.tunnel_sources;
        let (ending, content) = match system {
            System::Sonic => ("sonic.json", sonic(end, sources)),
            System::Eos => ("eos", eos(end, sources)),
            System::Linux => ("linux.sh", linux(end, sources)),
            System::Understudy => ("tunnel.toml", understudy(switch, end, sources)),
            System::Other => ("tunnel.txt", description(end, sources)),
        };
        Some(File { name: format!("{}.{ending}", switch.name), content })
    });
    rules.collect()
}

fn list(addresses: &BTreeSet<IpAddr>) -> String {
    addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// Returns rules for `config load` (CONFIG_DB, table TUNNEL): one tunnel for each source, for which
/// tunnelmgrd makes a P2P term.
fn sonic(end: IpAddr, sources: &BTreeSet<IpAddr>) -> String {
    let tunnel = |(number, source): (usize, &IpAddr)| {
        let tunnel = json!({
            "tunnel_type": "IPINIP",
            "src_ip": source,
            "dst_ip": end,
            "dscp_mode": "uniform",
            "ecn_mode": "copy_from_outer",
            "ttl_mode": "pipe",
        });
        (format!("ONEPIPE_{number}"), tunnel)
    };
    let tunnels: Map<String, Value> = sources.iter().enumerate().map(tunnel).collect();
    format!("{:#}\n", json!({ "TUNNEL": tunnels }))
}

fn eos(end: IpAddr, sources: &BTreeSet<IpAddr>) -> String {
    let mut text =
        format!("! A decap group accepts tunnels from any source. These sources send: {}\n", list(sources));
    if end.is_ipv6() {
        text += "! Not every platform ends tunnels over IPv6.\n";
    }
    _ = write!(text, "ip decap-group onepipe\n   tunnel type ipip\n   tunnel decap-ip {end}\n!\n");
    text
}

/// Returns a script that makes a device for each source, and gives the tunnel's address to the loopback
/// interface.
fn linux(end: IpAddr, sources: &BTreeSet<IpAddr>) -> String {
    let mut text = String::from("#!/bin/sh\nset -e\n");
    let (length, kind) = if end.is_ipv4() { (32, "ipip") } else { (128, "ip6tnl mode ip6ip6") };
    _ = writeln!(text, "ip address replace {end}/{length} dev lo");
    for (number, source) in sources.iter().enumerate() {
        // The script can be run again: it removes an existing device first.
        _ = writeln!(text, "ip link del dev onepipe{number} 2>/dev/null || true");
        _ = writeln!(text, "ip link add name onepipe{number} type {kind} local {end} remote {source}");
        _ = writeln!(text, "ip link set dev onepipe{number} up");
        if end.is_ipv4() {
            text += "# The source of an inner packet may be this switch's own address, or one to which no \
             route leads back into the tunnel.\n";
            _ = writeln!(
                text,
                "sysctl -q -w net.ipv4.conf.onepipe{number}.rp_filter=0 \
                 net.ipv4.conf.onepipe{number}.accept_local=1"
            );
        }
    }
    text += if end.is_ipv4() {
        "sysctl -q -w net.ipv4.conf.all.rp_filter=0 net.ipv4.ip_forward=1\n"
    } else {
        "sysctl -q -w net.ipv6.conf.all.forwarding=1\n"
    };
    text
}

/// Returns a table for the configuration of the switch itself.
fn understudy(switch: &Switch, end: IpAddr, sources: &BTreeSet<IpAddr>) -> String {
    let mut text = format!(
        "# The tunnels that end at switch {} (written by `understudy plan`). Copy this into the configuration of the switch,\n\
         # beside [forward] or [onepipe] whose `routes` have a `mac`; a bridge needs `next_hops`, too (configs/tunnel.toml).\n\n\
         [tunnel]\n",
        switch.name
    );
    if let Some(mac) = switch.mac {
        _ = writeln!(text, "mac = \"{mac}\"");
    }
    let sources: Vec<_> = sources.iter().map(|source| format!("\"{source}\"")).collect();
    _ = write!(text, "addresses = [\"{end}\"]\nsources = [{}]\n", sources.join(", "));
    text
}

fn description(end: IpAddr, sources: &BTreeSet<IpAddr>) -> String {
    let (protocol, version) = if end.is_ipv4() { (4, 4) } else { (41, 6) };
    format!(
        "IP packets for {end} that carry IPv{version} packets (protocol {protocol}) end here, if they come \
         from {}:\nremove the outer header, and route by the inner one. Both headers have the same DSCP, \
         which selects the queue.\n",
        list(sources)
    )
}
