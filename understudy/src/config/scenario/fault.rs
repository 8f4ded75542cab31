//! Reads `[[fault]]`: an event that affects hosts, switches or links.

use super::network::Names;
use super::{MICRO, TIMES_US, read_range, read_scaled};
use crate::config::tree::{Table, Value};
use workloads::scenario::{FaultKind, FaultSpec, HostSpec, LinkSpec};

/// Nodes and links that a fault can affect
pub(super) struct Nodes<'a> {
    pub(super) names: &'a Names,
    pub(super) hosts: &'a [HostSpec],
    pub(super) links: &'a [LinkSpec],
}

pub(super) fn read(table: Table<'_>, nodes: &Nodes<'_>) -> Option<FaultSpec> {
    let at = table.require("at_us", "100").and_then(|value| read_scaled(&value, MICRO, TIMES_US));
    let lasts = read_range(&table, "for_us", MICRO, TIMES_US);
    let [crash, pause, clock, outsider, rehash] =
        ["crash", "pause", "clock", "stranger", "rehash"].map(|key| table.get(key, "\"a\""));
    let sides = ["partition", "mute"].map(|key| table.get(key, "[\"a\"]"));
    let [part, link, swap] = ["part", "link", "swap"].map(|key| table.get(key, "[\"a\", \"b\"]"));
    let clock_changes = ["step_us", "drift_ppm"].map(|key| table.get(key, "5"));
    let [mtu, packets, salt] =
        [("mtu", "600"), ("lies", "20"), ("salt", "7")].map(|(key, example)| table.get(key, example));
    let events = [&crash, &pause, &clock, &outsider, &rehash, &part, &link, &swap];
    let count = events.into_iter().chain(&sides).flatten().count();
    let is_complete = clock_changes.iter().flatten().count() == usize::from(clock.is_some())
        && mtu.is_some() == link.is_some()
        && packets.is_some() == outsider.is_some()
        && salt.is_some() == rehash.is_some();
    if count != 1 || !is_complete {
        let problem = table
            .problem("a [[fault]] needs exactly one event with all of its keys")
            .label("none, several, or incomplete");
        table.problems().add(problem.help(
            "write one of `crash = \"a\"`, `pause = \"a\"`, `partition = [\"a\"]`, `mute = [\"a\"]`, `part \
             = [\"a\", \"b\"]`, `link = [\"a\", \"b\"]` with `mtu`, `swap = [\"a\", \"b\"]`, `stranger = \
             \"s\"` with `lies`, `rehash = \"a\"` with `salt`, or `clock = \"a\"` with `step_us` or \
             `drift_ppm`; `for_us` is the duration",
        ));
        table.finish();
        return None;
    }
    let [crash, pause, clock] = [crash, pause, clock].map(|value| nodes.names.resolve(&value?));
    let [partition, mute] = sides.map(|value| nodes.side(&value?));
    let [step, drift] = clock_changes;
    let step = step.and_then(|value| read_scaled(&value, MICRO, -1e8..=1e8));
    let drift = drift.and_then(|value| read_scaled(&value, MICRO, -1e5..=1e5));
    let mtu = mtu.and_then(|value| read_scaled(&value, 1.0, 128.0..=65536.0));
    let packets = packets.and_then(|value| read_scaled(&value, 1.0, 1.0..=1e6));
    let salt = salt.and_then(|value| read_scaled(&value, 1.0, 0.0..=65535.0));
    let kind = crash
        .map(FaultKind::Crash)
        .or_else(|| pause.map(FaultKind::Pause))
        .or_else(|| partition.map(FaultKind::Partition))
        .or_else(|| mute.map(FaultKind::Mute))
        .or_else(|| {
            nodes
                .hosts(&part?, "part", "then do not receive each other's packets")
                .map(FaultKind::PartitionPair)
        })
        .or_else(|| nodes.neighbours(&swap?).map(FaultKind::Swap))
        .or_else(|| Some(FaultKind::Rehash(nodes.host(&rehash?)?, salt?)))
        .or_else(|| Some(FaultKind::Mtu(nodes.link(&link?)?, mtu?)))
        .or_else(|| Some(FaultKind::Outsider(nodes.switch(&outsider?)?, packets?)))
        .or_else(|| Some(FaultKind::ClockStep(clock.clone()?, step?)))
        .or_else(|| Some(FaultKind::ClockDrift(clock?, drift?)));
    table.finish();
    Some(FaultSpec { at: at?, kind: kind?, lasts })
}

impl Nodes<'_> {
    fn resolve(&self, value: &Value<'_>) -> Option<Vec<String>> {
        value.list()?.iter().map(|name| self.names.resolve(name)).collect()
    }

    /// Returns the nodes of one side of a partition. At least one link has to lead from them to other nodes.
    fn side(&self, value: &Value<'_>) -> Option<Vec<String>> {
        let nodes = self.resolve(value)?;
        let is_cut = |link: &LinkSpec| nodes.contains(&link.ends[0]) != nodes.contains(&link.ends[1]);
        // A link that could not be read may be one of them.
        if !self.links.iter().any(is_cut) && !self.links.is_empty() {
            let problem =
                value.problem("no link leads from these nodes to other nodes").label("nothing to cut");
            value.add(problem.help("name the hosts and switches of one side only, such as `[\"a\"]`"));
            return None;
        }
        Some(nodes)
    }

    /// Returns a host.
    fn host(&self, value: &Value<'_>) -> Option<String> {
        let name = self.names.resolve(value)?;
        if !self.hosts.iter().any(|host| host.name == name) {
            let problem =
                value.problem("`rehash` needs a host: a switch has no UDP source ports").label("not a host");
            value.add(problem.help("name a `[[host]]`"));
            return None;
        }
        Some(name)
    }

    /// Returns two hosts that are linked to the same switch.
    fn neighbours(&self, value: &Value<'_>) -> Option<[String; 2]> {
        let hosts = self.hosts(value, "swap", "then swap their ports")?;
        let switch_of = |host: &String| {
            let link = self.links.iter().find(|link| link.ends.contains(host))?;
            link.ends.iter().find(|end| *end != host)
        };
        // A link that could not be read may be one of theirs.
        if !self.links.is_empty()
            && (switch_of(&hosts[0]) != switch_of(&hosts[1]) || switch_of(&hosts[0]).is_none())
        {
            let problem =
                value.problem("hosts swap their ports only at one switch").label("not at one switch");
            value.add(problem.help("name two hosts that are linked to the same `[[switch]]`"));
            return None;
        }
        Some(hosts)
    }

    /// Returns the two hosts that `value` names. `key` and `what` are the key and its effect, for messages.
    fn hosts(&self, value: &Value<'_>, key: &str, what: &str) -> Option<[String; 2]> {
        let is_host = |name: &String| self.hosts.iter().any(|host| host.name == *name);
        match <[String; 2]>::try_from(self.resolve(value)?) {
            Ok([a, b]) if a != b && is_host(&a) && is_host(&b) => Some([a, b]),
            _ => {
                let problem =
                    value.problem(format!("`{key}` needs two hosts, which {what}")).label("not two hosts");
                value.add(problem.help(format!("write `{key} = [\"a\", \"b\"]`")));
                None
            }
        }
    }

    /// Returns a switch.
    fn switch(&self, value: &Value<'_>) -> Option<String> {
        let name = self.names.resolve(value)?;
        if self.hosts.iter().any(|host| host.name == name) {
            let problem =
                value.problem("`stranger` needs the switch at which the outsider is").label("not a switch");
            value.add(problem.help("name a `[[switch]]`"));
            return None;
        }
        Some(name)
    }

    /// Returns the ends of a link.
    fn link(&self, value: &Value<'_>) -> Option<[String; 2]> {
        let ends = <[String; 2]>::try_from(self.resolve(value)?).ok();
        // A link that could not be read may be this one.
        let ends =
            ends.filter(|ends| self.links.is_empty() || self.links.iter().any(|link| link.joins(ends)));
        if ends.is_none() {
            let problem = value.problem("no link joins these two nodes").label("not a link's ends");
            value.add(problem.help("write the `ends` of a `[[link]]`"));
        }
        ends
    }
}
