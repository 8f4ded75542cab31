//! Reads `[[fault]]`: an event that affects hosts, switches or links.

use super::network::Names;
use super::{TIMES_US, drawn, ppm, us};
use crate::config::tree::{Table, Value};
use settings::declare::special;
use workloads::scenario::{FaultKind, FaultSpec, HostSpec, LinkSpec, NumberRange};

/// Nodes and links that a fault can affect
pub(super) struct Nodes<'a> {
    pub(super) names: &'a Names,
    pub(super) hosts: &'a [HostSpec],
    pub(super) links: &'a [LinkSpec],
}

settings::table! {
    /// Fault: exactly one event, with all of its keys
    pub(crate) enum Keys "[[fault]]";
    /// Time of the event
    at_us: NumberRange = us(TIMES_US) => required() example(100);
    /// Duration
    for_us: NumberRange = us(TIMES_US) => optional("to the end") example(1000);
    /// Host or switch that crashes, and restarts after `for_us`
    crash: () = special("name") => optional("another event") example("a");
    /// Host or switch that does nothing for a time
    pause: () = special("name") => optional("another event") example("a");
    /// Host whose clock changes, with `step_us` or `drift_ppm`
    clock: () = special("name") => optional("another event") example("a");
    /// Switch at which an outsider sends forged packets, with `lies`
    stranger: () = special("name of a switch") => optional("another event") example("s");
    /// Host that sends from other UDP source ports, with `salt`
    rehash: () = special("name of a host") => optional("another event") example("a");
    /// Nodes that are cut off from the others
    partition: () = special("list of names") => optional("another event") example(["a"]);
    /// Nodes from which nothing arrives
    mute: () = special("list of names") => optional("another event") example(["a"]);
    /// Two hosts that do not receive each other's packets
    part: () = special("list of two names") => optional("another event") example(["a", "b"]);
    /// Link whose MTU changes, with `mtu`
    link: () = special("list of two names") => optional("another event") example(["a", "b"]);
    /// Two hosts that swap their ports
    swap: () = special("list of two names") => optional("another event") example(["a", "b"]);
    /// Step of the clock
    step_us: NumberRange = us(-1e8..=1e8) => optional("only with `clock`") example(5);
    /// Drift of the clock from then on
    drift_ppm: NumberRange = ppm() => optional("only with `clock`") example(5);
    /// MTU of the link
    mtu: NumberRange = drawn(128.0..=65536.0).unit("bytes") => optional("only with `link`") example(600);
    /// Packets of the outsider
    lies: NumberRange = drawn(1.0..=1e6) => optional("only with `stranger`") example(20);
    /// Salt of the UDP source ports
    salt: NumberRange = drawn(0.0..=65535.0) => optional("only with `rehash`") example(7);
}

pub(super) fn read(table: Table<'_>, nodes: &Nodes<'_>) -> Option<FaultSpec> {
    let (at, lasts) = (table.read(Keys::at_us), table.read(Keys::for_us));
    let [crash, pause, clock, outsider, rehash] =
        [Keys::crash, Keys::pause, Keys::clock, Keys::stranger, Keys::rehash].map(|key| table.value(key));
    let sides = [Keys::partition, Keys::mute].map(|key| table.value(key));
    let [part, link, swap] = [Keys::part, Keys::link, Keys::swap].map(|key| table.value(key));
    let clock_changes = [Keys::step_us, Keys::drift_ppm].map(|key| table.value(key));
    let [mtu, packets, salt] = [Keys::mtu, Keys::lies, Keys::salt].map(|key| table.value(key));
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
    let (step, drift) = (table.read(Keys::step_us), table.read(Keys::drift_ppm));
    let [mtu, packets, salt] = [Keys::mtu, Keys::lies, Keys::salt].map(|key| table.read(key));
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
