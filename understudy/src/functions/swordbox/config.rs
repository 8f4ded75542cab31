//! Reads the table `[swordbox]`: the memory servers, what the switch does for their clients, the sizes of its
//! tables, and the bridge that it otherwise is.

mod structures;
#[cfg(test)]
mod tests;

use crate::functions::forward::config::forwarding;
use core::ops::Range;
use rnic::Interface;
use rnic::cm::{PortSpace, service_id_of};
use rocev2::ethernet::MacAddr;
use settings::address::address;
use settings::address::station;
use settings::port::Ports;
use settings::report::Problem;
use settings::tree::{Table, Value, subsections};
use std::path::PathBuf;
use switch::Nanos;
use switch::forward::config::Topology;
use swordbox::{Config, FailedCas, Layers, Server, SwitchOwnedQps};

const SERVER_HEADER: &str = "[[swordbox.server]]";
const TABLE_HEADER: &str = "[[swordbox.server.table]]";
/// Largest number of servers. They are numbered by a byte, of which one value means no server, and one number
/// is spare
const MAX_SERVERS: usize = 254;
/// Values of `layers`
const LAYERS: [&str; 4] = ["remap", "cas_to_write", "steer_writes", "steer_reads"];
/// Largest number of outstanding READs and atomics of a queue pair, which is a byte
const MAX_RD_ATOMIC: u64 = 255;
/// Longest wait, in microseconds: one minute. Longer ones are taken for mistakes
const MAX_WAIT_US: u64 = 60_000_000;
/// Default number of the switch's own queue pairs to a server
const DEFAULT_OWN_QPS: u64 = 4;
/// Length of a word, in bytes
const WORD_LEN: u64 = 8;

/// Contents of `[swordbox]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SwordboxConfig {
    /// Function of the switch, without the contents of the journal
    pub(crate) switch: Config,
    /// File that records connections
    pub(crate) journal: Option<PathBuf>,
    /// The switch uses the first port's MAC address, which is not yet in `switch`
    pub(crate) uses_port_mac: bool,
}

/// Reports next hops with a MAC address: packets that the switch sends itself keep the headers with which
/// they arrived, including the MAC addresses.
fn keeps_mac_addresses(table: &Table<'_>, forward: &switch::forward::Config) -> bool {
    let Topology::Routes(routes) = &forward.topology else { return true };
    let keeps = routes.routes.iter().flat_map(|route| &route.via).all(|hop| hop.mac.is_none());
    if !keeps {
        let problem = table.problem("[swordbox] cannot write the MAC addresses of next hops");
        let help = "remove `mac` from the next hops of its `routes`, so that packets keep theirs, or bridge \
         with `mac_table`";
        table.problems().add(problem.label("its routes have `mac`").help(help));
    }
    keeps
}

pub(super) fn read(table: &Table<'_>, ports: &Ports) -> Option<SwordboxConfig> {
    let forward = forwarding(table, ports).filter(|forward| keeps_mac_addresses(table, forward));
    let layers = table.get("layers", "[\"remap\", \"cas_to_write\"]");
    let journal = table.get("journal", "\"swordbox.journal\"");
    if let (Some(value), None) = (&layers, &journal) {
        check_journal(value);
    }
    let layers = layers.map_or(Layers::PASS, |value| read_layers(&value));
    let journal = journal.and_then(|value| value.text().map(PathBuf::from));
    let count = |key, max, default: usize| table.number(key, 1..=max, default as u64) as usize;
    // The defaults are the function's own, except for the forwarding, which is not used.
    let default = Config::new(switch::forward::Config {
        ports: 0,
        topology: Topology::Pairs(Vec::new()),
        drop: switch::drop::FaultSet::NONE,
        verify_icrc: false,
        verify_udp_checksum: false,
        counted_qps: 0,
    });
    let in_flight = table.power_of_two("in_flight", 2..=1 << 16, default.in_flight as u64) as usize;
    let failed_cas = table.get("failed_cas", "\"answer\"").and_then(|value| value.word(&["write", "answer"]));
    let us = |key, default: Nanos| Nanos::from_micros(table.number(key, 1..=MAX_WAIT_US, default.0 / 1000));
    let config = Config {
        connections: count("connections", 1 << 20, default.connections),
        per_host: count("connections_per_host", 1 << 20, default.per_host),
        in_flight,
        rd_atomic: count("rd_atomic", MAX_RD_ATOMIC, default.rd_atomic),
        lines: count("lines", 1 << 24, default.lines),
        held: table.number("held", 2..=1 << 20, default.held as u64) as usize,
        appends: count("appends", 1 << 20, default.appends),
        withheld: count("withheld", 1 << 20, default.withheld),
        ageing: Nanos::from_secs(table.number("ageing_s", 1..=1_000_000, default.ageing.0 / 1_000_000_000)),
        proof: Nanos::from_secs(table.number("proof_s", 1..=1_000_000, default.proof.0 / 1_000_000_000)),
        settle: us("settle_us", default.settle),
        replay_after: us("replay_after_us", default.replay_after),
        dead_after: Nanos::from_millis(table.number(
            "dead_after_ms",
            1..=MAX_WAIT_US / 1000,
            default.dead_after.0 / 1_000_000,
        )),
        layers,
        failed_cas: if failed_cas == Some("answer") { FailedCas::Respond } else { FailedCas::Write },
        ..default
    };
    let mac = table.get("mac", "\"02:00:00:00:00:fe\"").and_then(|value| station(&value));
    let interface = interface(table, mac);
    let servers = servers(table, interface.is_some());
    let mac_of_port = interface.is_some() && mac.is_none();
    let switch = Config { forward: forward?, servers: servers?, interface, ..config };
    Some(SwordboxConfig { switch, journal, uses_port_mac: mac_of_port })
}

/// Reads the switch's own addresses, which its own queue pairs need.
fn interface(table: &Table<'_>, mac: Option<MacAddr>) -> Option<Interface> {
    let addresses = table.get("addresses", "[\"10.0.0.254/24\"]");
    let gateways = table.get("gateways", "[\"10.0.0.1\"]");
    let vlan = table.spanned_number("vlan", 1..=4094, 10).map(|id| id.into_inner() as u16);
    let addresses: Vec<_> = addresses?.list()?.iter().map(address).collect::<Option<_>>()?;
    let gateways =
        gateways.map_or(Some(Vec::new()), |value| value.list()?.iter().map(settings::address::ip).collect());
    (!addresses.is_empty()).then(|| Interface {
        mac: mac.unwrap_or(MacAddr([0; 6])),
        addresses,
        gateways: gateways.unwrap_or_default(),
        vlan,
        neighbours: Vec::new(),
    })
}

/// Reads `connect`, the service to which the switch connects queue pairs of its own.
fn read_connect(value: Value<'_>, has_address: bool) -> Option<SwitchOwnedQps> {
    if !has_address {
        let problem = value.problem("`connect` needs an address of the switch");
        value.add(problem.label("no source address").help(
            "add `addresses = [\"10.0.0.254/24\"]` to [swordbox], an unused address of the server's network",
        ));
    }
    let table = value.with_example("{ port = 7471 }").table("`connect`")?;
    let port = table.require("port", "7471").and_then(|port| port.number(1..=65_535, 7471));
    let lanes = table.number("lanes", 1..=64, DEFAULT_OWN_QPS) as usize;
    let private_data = table.get("private_data", "\"a word\"").map_or(Some(Vec::new()), |value| {
        let bytes = value.text()?.as_bytes().to_vec();
        if bytes.len() > rnic::cm::private_data::REQ_CMA {
            let max = rnic::cm::private_data::REQ_CMA;
            let problem = value.problem(format!("`private_data` has {} bytes", bytes.len()));
            value.add(
                problem
                    .label("too long")
                    .help(format!("write at most {max} bytes, for which a REQ of rdma_cm has room")),
            );
        }
        Some(bytes)
    });
    table.finish();
    let service = service_id_of(PortSpace::Tcp, port? as u16);
    Some(SwitchOwnedQps { service, private_data: private_data?, qps: lanes })
}

/// Reports a layer without a journal: the two sides of a connection may differ only if the difference
/// survives a restart.
fn check_journal(layers: &Value<'_>) {
    let needs_journal = |layer: &Value<'_>| layer.text_if_any().is_some_and(|layer| LAYERS.contains(&layer));
    let elements = layers.list_if_any().unwrap_or_default();
    let Some(first) = elements.iter().find(|layer| needs_journal(layer)) else { return };
    let name = first.text_if_any().unwrap_or_default();
    let problem = first.problem(format!("the layer `{name}` needs a `journal`")).label("no `journal`");
    first.add(problem.help(
        "add `journal = \"swordbox.journal\"`, a file that records connections before their two sides \
         differ: after a restart without it, a server could take one of their packets for another",
    ));
}

fn read_layers(value: &Value<'_>) -> Layers {
    let mut layers = Layers::PASS;
    let mut cas_layer: Option<Value<'_>> = None;
    for element in value.list().unwrap_or_default() {
        match element.word(&LAYERS) {
            Some("remap") => layers.remap = true,
            Some("cas_to_write") => {
                layers.cas_to_write = true;
                cas_layer = Some(element);
            }
            Some("steer_writes") => layers.steer_writes = true,
            Some("steer_reads") => layers.steer_reads = true,
            _ => {}
        }
    }
    if let Some(cas_layer) = cas_layer.filter(|_| !layers.remap) {
        let problem =
            cas_layer.problem("the layer `cas_to_write` needs the layer `remap`").label("no `remap`");
        cas_layer.add(problem.help(
            "write `layers = [\"remap\", \"cas_to_write\"]`: the value of a word is known only if all \
             operations on it use one connection",
        ));
    }
    layers
}

fn servers(table: &Table<'_>, has_address: bool) -> Option<Vec<Server>> {
    let tables = subsections(table, "server", SERVER_HEADER)?;
    if tables.is_empty() {
        let problem = table.problem("[swordbox] has no server").label("no [[swordbox.server]]");
        table.problems().add(problem.help(format!(
            "add one for each memory server, such as\n\n{SERVER_HEADER}\nhost = \"10.0.0.9\""
        )));
    }
    if let Some(excess) = tables.get(MAX_SERVERS) {
        let problem = excess.problem(format!("[swordbox] has {} servers", tables.len()));
        let problem = problem.label("the first one too many");
        table.problems().add(problem.help(format!("keep at most {MAX_SERVERS}")));
    }
    let mut spans: Vec<(core::net::IpAddr, Range<usize>)> = Vec::new();
    let mut servers = Vec::new();
    for table in tables {
        let host = table.require("host", "\"10.0.0.9\"");
        let span = host.as_ref().map(Value::span);
        let ip = host.as_ref().and_then(settings::address::ip);
        if let (Some(ip), Some(span)) = (ip, span) {
            if let Some((_, first)) = spans.iter().find(|(other, _)| *other == ip) {
                let problem = Problem::at(span.clone(), format!("two servers have the address {ip}"));
                let problem = problem.label("again").also(first.clone(), "first here");
                table.problems().add(problem.help("join the two tables into one"));
            }
            spans.push((ip, span));
        }
        let server = server(&table, ip, has_address);
        table.finish();
        servers.push(server);
    }
    servers.into_iter().collect()
}

fn server(table: &Table<'_>, host: Option<core::net::IpAddr>, has_address: bool) -> Option<Server> {
    let default = Server::new(core::net::Ipv4Addr::UNSPECIFIED.into());
    let detect = table.number("detect", 0..=u32::MAX.into(), default.detect_after.into()) as u32;
    let lanes = table.number("lanes", 1..=64, default.client_owned_qps as u64) as usize;
    let rd_atomic = table.number("rd_atomic", 1..=MAX_RD_ATOMIC, default.rd_atomic.into()) as u8;
    let share = table.boolean("share", true);
    let path_mtu = table.number("path_mtu", 0..=4096, default.path_mtu.into()) as u16;
    let connect = table.get("connect", "{ port = 7471 }");
    let connect = connect.map_or(Some(None), |value| read_connect(value, has_address).map(Some));
    let never_cached =
        table.get("never", "[{ va = 0x10000, bytes = 4096 }]").map_or(Some(Vec::new()), |value| {
            let excluded = |element: Value<'_>| {
                let table = element.with_example("{ va = 0x10000, bytes = 4096 }").table("`never`")?;
                let va = table.require("va", "0x10000");
                let range = va.and_then(|va| range(&table, &va, 1));
                table.finish();
                range
            };
            value.list()?.into_iter().map(excluded).collect::<Option<Vec<_>>>()
        });
    let tables = subsections(table, "table", TABLE_HEADER)?;
    let tables: Option<Vec<_>> = tables.into_iter().map(lock_table).collect();
    let structures = structures::read(table);
    let (host, tables, structures, never_cached) = (host?, tables?, structures?, never_cached?);
    Some(Server {
        host,
        tables,
        structures,
        never_cached,
        detect_after: detect,
        client_owned_qps: lanes,
        path_mtu,
        rd_atomic,
        share,
        connect: connect?,
    })
}

/// Reads a range of words in a server's memory.
fn lock_table(table: Table<'_>) -> Option<swordbox::WordTable> {
    let rkey = table.spanned_number("rkey", 0..=u32::MAX.into(), 0x1234).map(|rkey| rkey.into_inner() as u32);
    let va = table.get("va", "0x10000");
    let no_va = va.is_none();
    if no_va && rkey.is_none() {
        let problem = table
            .problem(format!("{TABLE_HEADER} does not define where the words are"))
            .label("no `va` and no `rkey`");
        table
            .problems()
            .add(problem.help(
                "add `va = 0x10000` and `bytes = 4096`, or `rkey = 0x1234` for all memory of that key",
            ));
    }
    let range = match va {
        Some(va) => range(&table, &va, WORD_LEN),
        None => Some(0..u64::MAX),
    };
    let stride = stride(&table);
    let writable = table.boolean("writable", false);
    if no_va && let Some(bytes) = table.get("bytes", "4096") {
        let problem = Problem::at(bytes.key_span(), "`bytes` needs `va`");
        table.problems().add(problem.label("no first address").help("add `va = 0x10000`"));
    }
    table.finish();
    Some(swordbox::WordTable { rkey, range: range?, stride: stride?, writable })
}

/// Reads `stride`: the bytes from the start of one word to the start of the next.
fn stride(table: &Table<'_>) -> Option<u64> {
    table.get("stride", "8").map_or(Some(WORD_LEN), |value| {
        let stride = value.number(WORD_LEN..=1 << 30, WORD_LEN)?;
        aligned(&value, stride)
    })
}

/// Reads the range of `bytes` bytes from `va` on, with at least `multiple` bytes. `va` has to be aligned if
/// `multiple` is a word.
fn range(table: &Table<'_>, va: &Value<'_>, multiple: u64) -> Option<Range<u64>> {
    let bytes = table.require("bytes", "4096")?;
    let first = va.number(0..=u64::MAX, 0x10000);
    let len = bytes.number(multiple..=u64::MAX, 4096);
    let (first, len) = (first?, len?);
    if multiple == WORD_LEN {
        aligned(va, first)?;
    }
    let Some(end) = first.checked_add(len) else {
        let problem = bytes.problem(format!("{len} bytes from {first:#x} on exceed the address space"));
        bytes.add(problem.label("too many").help("write the length of the region, in bytes"));
        return None;
    };
    Some(first..end)
}

fn aligned(value: &Value<'_>, number: u64) -> Option<u64> {
    if number.is_multiple_of(WORD_LEN) {
        return Some(number);
    }
    let problem = value.problem(format!("{} has to be a multiple of {WORD_LEN}", value.name()));
    let below = number - number % WORD_LEN;
    value.add(
        problem
            .label("not aligned")
            .help(format!("write {below:#x}: atomics need words that are aligned to {WORD_LEN} bytes")),
    );
    None
}
