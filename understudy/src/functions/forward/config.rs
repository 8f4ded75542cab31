//! Reads the table `[forward]`.

pub(in crate::functions) mod pairs;
pub(in crate::functions) mod routes;
#[cfg(test)]
mod routes_tests;
#[cfg(test)]
mod tests;

use core::ops::Range;
use pairs::example_pairs;
use rocev2::Fault;
use rocev2::ethernet::MacAddr;
use routes::RouterKeys;
use settings::declare::{boolean, inline, list, mac, secs, special, whole};
use settings::port::Ports;
use settings::report::Problem;
use settings::tree::{Table, Value};
use settings::words::{all_of, closest};
use switch::drop::FaultSet;
use switch::forward::Config;
use switch::forward::config::{ForwardingMode, MacTable};
use switch::{Nanos, PortId};

/// Faults that are checked only if `verify` lists them, because the checks need the whole packet
const VERIFIABLE: [Fault; 2] = [Fault::Icrc, Fault::UdpChecksum];

settings::table! {
    /// Wires, a bridge or a router
    pub(crate) enum Keys "[forward]";
    /// Ports that are joined two by two; a port with itself reflects
    pairs: () = special("list of pairs of ports") => optional("another mode") example([["host-a", "host-b"]]);
    /// Learning bridge over all ports
    mac_table: () = inline(&BridgeKeys::TABLE) => optional("another mode") example({ capacity = 4096 });
    /// Router over all ports
    routes: () = inline(&RouterKeys::TABLE) => optional("another mode") example({});
    /// Checks of the whole packet, which cost time: `icrc`, `udp_checksum`. Headers are always checked
    verify: () = special("list of faults, `\"all\"` or `\"none\"`") => default([]) example(["icrc"]);
    /// Faults whose packets are dropped instead of forwarded; those of `verify` have to be listed there
    drop: () = special("list of faults, `\"all\"` or `\"none\"`") => default([]) example(["icrc"]);
    /// Queue pairs that are counted individually
    counted_qps: usize = whole(0..=1 << 20) => default(1024);
    /// Whether to observe the health of counted queue pairs: gaps, retransmissions, NAKs, congestion, round-trip times
    health: bool = boolean() => default(true);
}

settings::table! {
    /// Learning bridge
    pub(crate) enum BridgeKeys "`mac_table`";
    /// Stations that the bridge learns
    capacity: usize = whole(1..=1 << 20) => default(4096);
    /// Time after which the bridge forgets a silent station
    ageing_s: Nanos = secs(1..=1_000_000) => default(300);
    /// Stations that neither move nor age
    fixed: () = list(&FixedKeys::TABLE) => default([]) example([{ mac = "52:54:00:00:00:01", port = "host-a" }]);
}

settings::table! {
    /// Station that neither moves nor ages
    pub(crate) enum FixedKeys "`fixed`";
    /// MAC address of the station
    mac: MacAddr = mac() => required() example("52:54:00:00:00:01");
    /// Port at which it is
    port: () = special("name of a port") => required() example("host-a");
}

/// Advice for a port that is in two pairs
const IN_TWO_PAIRS_HELP: &str =
    "remove it from one of them; to join more than two ports use `mac_table = {}` in place of `pairs`";

/// Returns an example of the table for these ports.
pub(in crate::functions) fn example(ports: &Ports) -> String {
    format!("[forward]\npairs = {}", example_pairs(ports))
}

/// Reads the keys of `[forward]` from the table of any function that otherwise forwards.
pub(in crate::functions) fn forwarding(table: &Table<'_>, ports: &Ports) -> Option<Config> {
    forwarding_or(table, ports, None)
}

/// Reads the same keys as [`forwarding`]. `default` is the forwarding mode if the file defines none.
pub(in crate::functions) fn forwarding_or(
    table: &Table<'_>,
    ports: &Ports,
    default: Option<ForwardingMode>,
) -> Option<Config> {
    let mode = mode(table, ports, default);
    let verify = table.value(Keys::verify).map_or(FaultSet::NONE, |value| read_verify(&value));
    let drop = table.value(Keys::drop).map_or(FaultSet::NONE, |value| read_drop(&value, verify));
    let (counted_qps, health) = (table.read(Keys::counted_qps), table.read(Keys::health));
    Some(Config {
        ports: ports.list.len() as u16,
        mode: mode?,
        drop,
        verify_icrc: verify.has(Fault::Icrc),
        verify_udp_checksum: verify.has(Fault::UdpChecksum),
        counted_qps,
        health,
    })
}

fn mode(table: &Table<'_>, ports: &Ports, default: Option<ForwardingMode>) -> Option<ForwardingMode> {
    let pairs = table.value(Keys::pairs);
    let mac_table = table.value(Keys::mac_table);
    let routes = table.value(Keys::routes);
    let given = [(&pairs, "wires"), (&mac_table, "a bridge"), (&routes, "a router")];
    let mut given = given.into_iter().filter_map(|(value, label)| Some((value.as_ref()?, label)));
    if let (Some((first, label)), Some((second, other_label))) = (given.next(), given.next()) {
        let message = format!("{} has both {} and {}", table.name(), first.name(), second.name());
        let problem = Problem::at(second.key_span(), message).label(other_label);
        second.add(problem.also(first.key_span(), label).help(
            "keep `pairs` to join ports two by two, `mac_table` for a learning bridge, or `routes` for a \
             router",
        ));
    }
    // All three are read, so that the problems of each are reported.
    let routes = routes.as_ref().map(|routes| routes::read(routes, table, ports).map(ForwardingMode::Routes));
    let bridge = mac_table.as_ref().map(|bridge| self::mac_table(bridge, ports).map(ForwardingMode::Mac));
    let pairs =
        pairs.as_ref().map(|pairs| pairs::read(pairs, ports, IN_TWO_PAIRS_HELP).map(ForwardingMode::Pairs));
    match pairs.or(bridge).or(routes) {
        Some(mode) => mode,
        None if default.is_some() => default,
        None => {
            let message = format!("{} does not define where frames go", table.name());
            let problem = table.problem(message).label("no forwarding mode");
            table.problems().add(problem.help(format!(
                "add `pairs = {}` to join ports two by two, `mac_table = {{}}` for a learning bridge, or \
                 `routes` for a router",
                example_pairs(ports)
            )));
            None
        }
    }
}

/// Returns the MAC address of a router that has one. Such a router writes the next hop's MAC address into
/// each frame.
pub(in crate::functions) fn router_mac(mode: &ForwardingMode) -> Option<MacAddr> {
    match mode {
        ForwardingMode::Routes(table) => Some(table.mac).filter(|&mac| mac != MacAddr([0; 6])),
        ForwardingMode::Pairs(_) | ForwardingMode::Mac(_) => None,
    }
}

fn mac_table(value: &Value<'_>, ports: &Ports) -> Option<MacTable> {
    let table = value.inline()?;
    let fixed = table.value(BridgeKeys::fixed);
    let fixed = fixed.map_or(Some(Vec::new()), |value| fixed_stations(&value, ports));
    if let [only] = ports.list.as_slice() {
        let problem = table.problem("a bridge needs at least two ports").label("a bridge");
        let problem = match &only.name {
            Some(name) => problem.also(name.span(), "the only port"),
            None => problem,
        };
        table.problems().add(
            problem
                .help(format!("add a [[port]], or reflect frames with `pairs = {}`", example_pairs(ports))),
        );
    }
    let (capacity, ageing) = (table.read(BridgeKeys::capacity), table.read(BridgeKeys::ageing_s));
    table.finish();
    Some(MacTable { capacity, ageing, fixed: fixed? })
}

fn fixed_stations(value: &Value<'_>, ports: &Ports) -> Option<Vec<(MacAddr, PortId)>> {
    let mut stations: Vec<(MacAddr, PortId)> = Vec::new();
    let mut spans: Vec<(MacAddr, Range<usize>)> = Vec::new();
    for table in value.list()?.iter().filter_map(Value::inline) {
        let mac = table.spanned(FixedKeys::mac);
        let port = table.value(FixedKeys::port).and_then(|value| ports.find(&value));
        if let Some(given) = mac {
            let (span, mac) = (given.span(), given.into_inner());
            if let Some((_, first)) = spans.iter().find(|(other, _)| *other == mac) {
                let problem = Problem::at(span.clone(), format!("`fixed` lists {mac} twice"));
                let problem = problem.label("again").also(first.clone(), "first here");
                table.problems().add(problem.help("remove one of the two"));
            }
            spans.push((mac, span));
            stations.extend(port.map(|port| (mac, port)));
        }
        table.finish();
    }
    Some(stations)
}

/// Reads `verify`: a list of faults, `"all"` or `"none"`.
fn read_verify(value: &Value<'_>) -> FaultSet {
    let words = VERIFIABLE.map(Fault::name);
    let verifiable = VERIFIABLE.into_iter().fold(FaultSet::NONE, FaultSet::with);
    read_faults(value, verifiable, |element| {
        let text = element.text()?;
        let fault = Fault::ALL.into_iter().find(|fault| fault.name() == text);
        if let Some(fault) = fault.filter(|fault| VERIFIABLE.contains(fault)) {
            return Some(fault);
        }
        let (message, help) = match (fault, closest(text, words)) {
            (Some(_), _) => (format!("`{text}` is always verified"), "remove it: ".into()),
            (None, Some(word)) => {
                (format!("`{text}` cannot be verified"), format!("did you mean `{word}`? "))
            }
            (None, None) => (format!("`{text}` cannot be verified"), String::new()),
        };
        let help = format!(
            "{help}`verify` takes {}, which cost time; the headers are always verified",
            all_of(words)
        );
        element.add(element.problem(message).label("not a value of `verify`").help(help));
        None
    })
}

/// Reads `drop`: a list of faults, `"all"` or `"none"`.
fn read_drop(value: &Value<'_>, verify: FaultSet) -> FaultSet {
    let words = Fault::ALL.map(Fault::name);
    read_faults(value, FaultSet::ALL, |element| {
        let fault = element.word(&words)?;
        let fault = Fault::ALL.into_iter().find(|known| known.name() == fault)?;
        if VERIFIABLE.contains(&fault) && !verify.has(fault) {
            let name = fault.name();
            let problem = element.problem(format!(
                "frames with a wrong `{name}` are never dropped, because nothing verifies it"
            ));
            element.add(problem.label("not in `verify`").help(format!(
                "add `\"{name}\"` to `verify`, such as `verify = [\"{name}\"]`, or remove it here"
            )));
        }
        Some(fault)
    })
}

/// Reads a list of faults, `"all"` or `"none"`. `fault` reads an element of the list.
fn read_faults(
    value: &Value<'_>,
    all: FaultSet,
    mut fault: impl FnMut(&Value<'_>) -> Option<Fault>,
) -> FaultSet {
    match value.text_if_any() {
        Some("all") => all,
        Some("none") => FaultSet::NONE,
        Some(_) => {
            let key = value.name();
            let problem =
                value.problem(format!("{key} takes a list, `\"all\"` or `\"none\"`")).label("none of these");
            value.add(problem.help(format!("write a list in brackets{}", value.such_as())));
            FaultSet::NONE
        }
        None => {
            let elements = value.list().unwrap_or_default();
            elements.iter().filter_map(&mut fault).fold(FaultSet::NONE, FaultSet::with)
        }
    }
}
