//! Formats the plan as tables and notes.

use crate::config::Network;
use comfy_table::{Table, presets};
use core::fmt::Write as _;
use representative::config::Side;
use representative::plan::{Beacons, Crossing, Host, Node, Uplink};

/// Names in a list at most; a longer list shows its length, the first and the last name
const MAX_NAMES: usize = 6;

fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(header);
    table
}

fn names<'a>(names: impl ExactSizeIterator<Item = &'a str>) -> String {
    match names.len() {
        0 => "-".into(),
        count if count > MAX_NAMES => {
            let mut names = names;
            let (first, last) = (names.next().unwrap_or_default(), names.last().unwrap_or_default());
            format!("{count}: {first} ... {last}")
        }
        _ => names.collect::<Vec<_>>().join(" "),
    }
}

/// Returns a table of the switches, with their two halves and their representatives.
pub(super) fn switches(network: &Network) -> String {
    let topology = &network.topology;
    let header = [
        "switch",
        "layer",
        "representative",
        "address",
        "queue pairs",
        "up: from -> to",
        "down: from -> to",
        "ends tunnels of",
    ];
    let mut table = table(&header);
    for (switch, planned) in topology.switches.iter().zip(&network.plan.switches) {
        let hosts: Vec<_> = planned.hosts().map(|host| &topology.hosts[host]).collect();
        let both =
            |of: &dyn Fn(&Host) -> String| hosts.iter().map(|&host| of(host)).collect::<Vec<_>>().join(", ");
        let side = |side| {
            let links = planned.links.iter().filter(move |link| link.side == side);
            names(links.map(|link| topology.name(link.to)).collect::<Vec<_>>().into_iter())
        };
        let (below, above) = (side(Side::Below), side(Side::Above));
        let standby = planned.standby.as_ref().map(|standby| standby.first_qp);
        let pairs = [Some(planned.first_qp), standby].into_iter().flatten().map(|first| {
            let first = first.get();
            format!("{first:#x}-{:#x}", first + planned.links.len().saturating_sub(1) as u32)
        });
        table.add_row([
            switch.name.clone(),
            planned.layer.to_string(),
            both(&|host| host.name.clone()),
            both(&|host| host.address.to_string()),
            pairs.collect::<Vec<_>>().join(", "),
            format!("{below} -> {above}"),
            // A packet from below may turn round at the switch.
            if above == "-" { format!("up -> {below}") } else { format!("{above}, up -> {below}") },
            if planned.tunnel_sources.is_empty() {
                "-".into()
            } else {
                planned.tunnel_sources.len().to_string()
            },
        ]);
    }
    format!("{}\n", table.trim_fmt())
}

/// Returns a table of the directions of links: all between switches, and those of hosts that need a detour.
pub(super) fn beacons(network: &Network) -> String {
    let topology = &network.topology;
    let mut table = table(&["beacons over", "sent by", "to", "routes pass the link", "way"]);
    let (mut all, mut as_routed, mut detoured) = (0, 0, 0);
    let mut add = |near: Node, far: Node, from: usize, to: usize, beacons: &Beacons| {
        all += 1;
        detoured += usize::from(!beacons.detour.is_empty());
        let between = matches!((near, far), (Node::Switch(_), Node::Switch(_)));
        if !between && beacons.detour.is_empty() {
            as_routed += 1;
            return;
        }
        let [from, to] = [from, to].map(|host| topology.hosts[host].name.clone());
        let ends = [near, far].into_iter().filter(|end| matches!(end, Node::Switch(_)));
        let route: Vec<_> = ends.map(|end| topology.name(end)).collect();
        table.add_row([
            format!("{} -> {}", topology.name(near), topology.name(far)),
            from.clone(),
            to.clone(),
            match beacons.crossing {
                Crossing::Always => "always",
                Crossing::Sometimes => "some do",
                Crossing::Never => "no",
            }
            .to_owned(),
            if beacons.detour.is_empty() {
                "as routed".into()
            } else {
                format!("{from} -> {} -> {to}: {} IP headers", route.join(" -> "), beacons.detour.len() + 1)
            },
        ]);
    };
    let hosts_of = |node| match node {
        Node::Host(host) => vec![host],
        Node::Switch(switch) => network.plan.switches[switch].hosts().collect(),
    };
    for (number, planned) in network.plan.switches.iter().enumerate() {
        let links =
            core::iter::once(&planned.links).chain(planned.standby.iter().map(|standby| &standby.links));
        for (from, links) in planned.hosts().zip(links) {
            for link in links {
                let ends = core::iter::once(&link.beacons).chain(&link.standby);
                for (to, beacons) in hosts_of(link.to).into_iter().zip(ends) {
                    add(Node::Switch(number), link.to, from, to, beacons);
                }
            }
        }
    }
    for (number, uplinks) in network.plan.hosts.iter().enumerate() {
        for Uplink { switch, beacons, standby } in uplinks {
            let (switch, ends) = (Node::Switch(*switch), core::iter::once(beacons).chain(standby));
            for (to, beacons) in hosts_of(switch).into_iter().zip(ends) {
                add(Node::Host(number), switch, number, to, beacons);
            }
        }
    }
    let mut text = if table.is_empty() { String::new() } else { format!("{}\n", table.trim_fmt()) };
    let links = match as_routed {
        0 => String::new(),
        _ => format!(
            "Between hosts and switches, {as_routed} {}are as routed. ",
            if detoured > 0 { "others " } else { "" }
        ),
    };
    _ = writeln!(
        text,
        "{}{links}{}",
        if text.is_empty() { "" } else { "\n" },
        match detoured {
            0 => "No beacons need a detour.".to_owned(),
            _ => format!("Of {all} directions of links, {detoured} need a detour."),
        }
    );
    text
}

/// Returns notes about valid properties of the plan that may surprise.
pub(super) fn notes(network: &Network) -> String {
    let topology = &network.topology;
    let mut text = String::new();
    for (switch, planned) in topology.switches.iter().zip(&network.plan.switches) {
        if !planned.has_hosts {
            _ = writeln!(
                text,
                "Note: no host that sends messages is at `{0}` or below it: `{0}` announces that, and no \
                 switch waits for it.",
                switch.name
            );
        }
    }
    let mut shared = Vec::new();
    for (number, host) in topology.hosts.iter().enumerate() {
        let represented = network.plan.switches.iter().zip(&topology.switches);
        let represented: Vec<_> = represented
            .filter(|(planned, _)| planned.hosts().any(|host| host == number))
            .map(|(_, switch)| switch.name.as_str())
            .collect();
        if !represented.is_empty() && represented.len() + usize::from(host.messages) > 1 {
            shared.push(format!("{} ({})", host.name, represented.join(", ")));
        }
    }
    if !shared.is_empty() {
        _ = writeln!(
            text,
            "Note: these represent several switches, or represent one and send messages: {}. Each task has \
             its own queue pairs, by which the network card has to separate them, and needs a CPU of its \
             own.",
            shared.join(", ")
        );
    }
    if text.is_empty() { text } else { format!("\n{text}") }
}
