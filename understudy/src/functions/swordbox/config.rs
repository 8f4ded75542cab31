//! Reads the table `[swordbox]`: the memory servers, what the switch does for their clients, the sizes of its
//! tables, and the bridge that it otherwise is.

mod structures;
#[cfg(test)]
mod tests;

use crate::functions::forward::config::{self as forward, forwarding};
use core::net::IpAddr;
use core::ops::Range;
use rnic::Interface;
use rnic::cm::{PortSpace, service_id_of};
use rocev2::ethernet::MacAddr;
use settings::address::own_addresses;
use settings::declare::{
    Kind, Type, boolean, inline, ip, ips, list, mac, micros, millis, other, power_of_two, secs, special,
    tables, text, whole,
};
use settings::port::Ports;
use settings::report::Problem;
use settings::tree::{Table, Value};
use std::path::{Path, PathBuf};
use switch::Nanos;
use switch::forward::config::ForwardingMode;
use swordbox::steering::Structure;
use swordbox::{Config, FailedCas, Layers, Server, SwitchOwnedQps};

/// Largest number of servers. They are numbered by a byte, of which one value means no server, and one number
/// is spare
const MAX_SERVERS: usize = 254;
const SERVER_HEADER: &str = Servers::TABLE.header;
/// Values of `layers`
const LAYERS: [&str; 4] = ["remap", "cas_to_write", "steer_writes", "steer_reads"];
/// Largest number of outstanding READs and atomics of a queue pair, which is a byte
const MAX_RD_ATOMIC: u64 = 255;
/// Longest wait, in microseconds: one minute. Longer ones are taken for mistakes
const MAX_WAIT_US: u64 = 60_000_000;
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
    /// Number of workers
    pub(crate) workers: usize,
}

/// Reports next hops with a MAC address: packets that the switch sends itself keep the headers with which
/// they arrived, including the MAC addresses.
fn keeps_mac_addresses(table: &Table<'_>, forward: &switch::forward::Config) -> bool {
    let ForwardingMode::Routes(routes) = &forward.mode else { return true };
    let keeps = routes.routes.iter().flat_map(|route| &route.via).all(|hop| hop.mac.is_none());
    if !keeps {
        let problem = table.problem("[swordbox] cannot write the MAC addresses of next hops");
        let help = "remove `mac` from the next hops of its `routes`, so that packets keep theirs, or bridge \
         with `mac_table`";
        table.problems().add(problem.label("its routes have `mac`").help(help));
    }
    keeps
}

settings::table! {
    /// Switch that resolves atomics and steers stale requests for clients of memory servers, and a bridge or a router
    pub(crate) enum Keys "[swordbox]" with forward::Keys;
    /// What the switch does for clients: `remap` multiplexes operations on tracked words onto a shared queue pair, `cas_to_write` forwards an atomic whose result is known as a WRITE, `steer_writes` and `steer_reads` steer requests to lists
    layers: () = special("list of `\"remap\"`, `\"cas_to_write\"`, `\"steer_writes\"`, `\"steer_reads\"`") => default([]) example(["remap", "cas_to_write"]);
    /// File that records connections, which layers need; in the folder of the configuration file
    journal: String = text("path") => optional("no layer can be used") example("swordbox.journal");
    /// Operations in flight on a shared queue pair; a power of two
    in_flight: usize = power_of_two(2..=1 << 16) => default(1024);
    /// Whether a CAS that is known to fail leaves as a WRITE, too, or is answered by the switch
    failed_cas: FailedCas = settings::declare::words(&[("write", FailedCas::Write), ("answer", FailedCas::Respond)]) => default("write") example("answer");
    /// Connections that are tracked
    connections: usize = whole(1..=1 << 20) => default(65536);
    /// Connections of one host that are tracked
    connections_per_host: usize = whole(1..=1 << 20) => default(16384);
    /// READs and atomics recorded for each connection: as many as a client may have outstanding
    rd_atomic: usize = whole(1..=MAX_RD_ATOMIC) => default(16);
    /// Cached lines of 64 bytes of the servers' memory
    lines: usize = whole(1..=1 << 24) => default(16384);
    /// Slots for held frames, of which one client uses at most half
    held: usize = whole(2..=1 << 20).unit("frames") => default(4096);
    /// Nodes that may be pending in all data structures; while all slots are in use, further CAS are not steered
    appends: usize = whole(1..=1 << 20) => default(4096);
    /// Responses that wait until the node that they depend on is linked; further ones are dropped
    withheld: usize = whole(1..=1 << 20) => default(1024);
    /// Time without packets after which a connection is forgotten
    ageing_s: Nanos = secs(1..=1_000_000) => default(600);
    /// Time for which a client's right to an operation counts as proven after a successful use
    proof_s: Nanos = secs(1..=1_000_000) => default(10);
    /// Upper bound of the time that a request takes from the switch to the server's memory
    settle_us: Nanos = micros(1..=MAX_WAIT_US) => default(20000);
    /// Time after which unacknowledged operations on a shared queue pair are retransmitted
    replay_after_us: Nanos = micros(1..=MAX_WAIT_US) => default(100);
    /// Time without an acknowledgement after which a shared queue pair is given up
    dead_after_ms: Nanos = millis(1..=MAX_WAIT_US / 1000) => default(2000);
    /// MAC address of the switch
    mac: MacAddr = mac() => optional("that of the first port") example("02:00:00:00:00:fe");
    /// Addresses of the switch, which its own queue pairs (`connect`) need
    addresses: Vec<(IpAddr, u8)> = other("list of IP addresses with prefix lengths", |value| {
        own_addresses(value, "write an unused address of the server's network, or remove the key")
    }) => optional("no queue pairs of its own") example(["10.0.0.254/24"]);
    /// Routers to hosts of other subnets
    gateways: Vec<IpAddr> = ips() => default([]) example(["10.0.0.1"]);
    /// VLAN of the switch's own frames
    vlan: u16 = whole(1..=4094) => optional("no tag") example(10);
    /// Memory servers
    server: () = tables(&Servers::TABLE) => required();
}

settings::table! {
    /// Memory server
    pub(crate) enum Servers "[[swordbox.server]]";
    /// Address of the server
    host: IpAddr = ip() => required() example("10.0.0.9");
    /// Atomics after which a word outside all tables is tracked, too; 0 means never
    detect: u32 = whole(0..=u32::MAX as u64) => default(0);
    /// Connections of clients that are shared at one time
    lanes: usize = whole(1..=64) => default(4);
    /// READs and atomics that the server accepts at one time on a connection, unless the connection manager announced it
    rd_atomic: u8 = whole(1..=MAX_RD_ATOMIC) => default(1);
    /// Whether connections are shared, which relies on WRITEs of one connection taking effect in order
    share: bool = boolean() => default(true);
    /// Path MTU of connections that were set up without the connection manager; 0 means to learn it from packets
    path_mtu: u16 = whole(0..=4096).unit("bytes") => default(0);
    /// Service to which the switch connects queue pairs of its own; needs `addresses`
    connect: () = inline(&ConnectKeys::TABLE) => optional("clients' connections are shared") example({ port = 7471 });
    /// Ranges that are never cached, because programs on the server write to them
    never: () = list(&RangeKeys::TABLE) => default([]) example([{ va = 0x10000, bytes = 4096 }]);
    /// Tables of words
    table: () = tables(&TableKeys::TABLE) => optional("no table");
    /// Stores of lists
    lists: () = tables(&structures::ListsKeys::TABLE) => optional("no store");
    /// Tables of locks
    locks: () = tables(&structures::LocksKeys::TABLE) => optional("no locks");
}

settings::table! {
    /// Service to which the switch connects queue pairs of its own
    pub(crate) enum ConnectKeys "`connect`";
    /// Port of the service
    port: u16 = whole(1..=65_535) => required() example(7471);
    /// Queue pairs
    lanes: usize = whole(1..=64) => default(4);
    /// Private data of the requests, which some services need
    private_data: String = other("string", private_data) => optional("none") example("a word");
}

settings::table! {
    /// Range of a server's memory
    pub(crate) enum RangeKeys "`never`";
    /// First address
    va: u64 = whole(0..=u64::MAX) => required() example(0x10000);
    /// Length
    bytes: u64 = whole(1..=u64::MAX).unit("bytes") => required() example(4096);
}

settings::table! {
    /// Table of words: a range of memory, or all memory of a key
    pub(crate) enum TableKeys "[[swordbox.server.table]]";
    /// Key of the memory
    rkey: u32 = whole(0..=u32::MAX as u64) => optional("any key") example(0x1234);
    /// First address, a multiple of 8
    va: u64 = whole(0..=u64::MAX) => optional("all memory of `rkey`") example(0x10000);
    /// Bytes from one word to the next, a multiple of 8
    stride: u64 = Type::new(Kind::Whole(WORD_LEN, 1 << 30), |value| aligned(value, value.whole()?)).unit("bytes") => default(8);
    /// Whether a client with the right to atomics here may also WRITE; without it, a CAS becomes a WRITE only after some client has written with this key
    writable: bool = boolean() => default(false);
    /// Length of the range, which `va` needs
    bytes: u64 = whole(WORD_LEN..=u64::MAX).unit("bytes") => optional("only with `va`, which needs it") example(4096);
}

pub(super) fn read(table: &Table<'_>, ports: &Ports) -> Option<SwordboxConfig> {
    let forward = forwarding(table, ports).filter(|forward| keeps_mac_addresses(table, forward));
    let layers = table.value(Keys::layers);
    let journal = table.value(Keys::journal);
    if let (Some(value), None) = (&layers, &journal) {
        check_journal(value);
    }
    let layers_read = layers.as_ref().map_or(Layers::PASS, read_layers);
    let journal = table.read(Keys::journal).map(PathBuf::from);
    let mac = table.read(Keys::mac);
    let interface = interface(table, mac);
    let servers = servers(table, interface.is_some());
    if let (Some(layers), Some(_), Some(servers)) = (&layers, &journal, &servers) {
        check_steering(layers, servers);
    }
    let switch = Config {
        connections: table.read(Keys::connections),
        per_host: table.read(Keys::connections_per_host),
        in_flight: table.read(Keys::in_flight),
        rd_atomic: table.read(Keys::rd_atomic),
        lines: table.read(Keys::lines),
        held: table.read(Keys::held),
        appends: table.read(Keys::appends),
        withheld: table.read(Keys::withheld),
        ageing: table.read(Keys::ageing_s),
        proof: table.read(Keys::proof_s),
        settle: table.read(Keys::settle_us),
        replay_after: table.read(Keys::replay_after_us),
        dead_after: table.read(Keys::dead_after_ms),
        layers: layers_read,
        failed_cas: table.read(Keys::failed_cas),
        ..Config::new(forward?)
    };
    let mac_of_port = interface.is_some() && mac.is_none();
    let switch = Config { servers: servers?, interface, ..switch };
    Some(SwordboxConfig { switch, journal, uses_port_mac: mac_of_port, workers: 1 })
}

/// Reads the switch's own addresses, which its own queue pairs need.
fn interface(table: &Table<'_>, mac: Option<MacAddr>) -> Option<Interface> {
    let addresses = table.read(Keys::addresses);
    let (gateways, vlan) = (table.read(Keys::gateways), table.read(Keys::vlan));
    addresses.map(|addresses| Interface {
        mac: mac.unwrap_or(MacAddr([0; 6])),
        addresses,
        gateways,
        vlan,
        neighbours: Vec::new(),
    })
}

/// Reads `connect`, the service to which the switch connects queue pairs of its own.
fn read_connect(value: &Value<'_>, has_address: bool) -> Option<SwitchOwnedQps> {
    if !has_address {
        let problem = value.problem("`connect` needs an address of the switch");
        value.add(problem.label("no source address").help(
            "add `addresses = [\"10.0.0.254/24\"]` to [swordbox], an unused address of the server's network",
        ));
    }
    let table = value.inline()?;
    let port = table.read(ConnectKeys::port);
    let (qps, private_data) = (table.read(ConnectKeys::lanes), table.read(ConnectKeys::private_data));
    table.finish();
    let service = service_id_of(PortSpace::Tcp, port?);
    Some(SwitchOwnedQps { service, private_data: private_data.unwrap_or_default().into_bytes(), qps })
}

fn private_data(value: &Value<'_>) -> Option<String> {
    let text = value.text()?;
    let max = rnic::cm::private_data::REQ_CMA;
    if text.len() > max {
        let problem = value.problem(format!("`private_data` has {} bytes", text.len())).label("too long");
        value.add(problem.help(format!("write at most {max} bytes, for which a REQ of rdma_cm has room")));
    }
    Some(text.to_owned())
}

/// Reports a layer that steers requests to lists, of which no server has any.
fn check_steering(layers: &Value<'_>, servers: &[Server]) {
    let lists =
        |server: &Server| server.structures.iter().any(|structure| matches!(structure, Structure::Lists(_)));
    let steers = |layer: &Value<'_>| layer.text_if_any().is_some_and(|layer| layer.starts_with("steer_"));
    let elements = layers.list_if_any().unwrap_or_default();
    let Some(layer) = elements.iter().find(|layer| steers(layer)) else { return };
    if !servers.iter().any(lists) {
        let name = layer.text_if_any().unwrap_or_default();
        let problem = layer.problem(format!("the layer `{name}` needs a [[swordbox.server.lists]]"));
        layer.add(problem.label("nothing to steer").help(
            "declare the store of lists of a server, or remove the layer: only requests to lists are steered",
        ));
    }
}

/// Reports a journal whose folder does not exist.
pub(super) fn check_journal_folder(journal: &Path, root: &Table<'_>) {
    let Some(folder) = journal.parent().filter(|folder| !folder.as_os_str().is_empty() && !folder.is_dir())
    else {
        return;
    };
    let Some(table) = root.section(&Keys::TABLE) else { return };
    if let Some(value) = table.value(Keys::journal) {
        let problem =
            value.problem(format!("the folder `{}` of the journal does not exist", folder.display()));
        let help = format!("create it: `mkdir -p {}`", folder.display());
        value.add(problem.label("folder does not exist").help(help));
    }
    table.discard();
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
    let tables = table.tables(Keys::server)?;
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
    let mut spans: Vec<(IpAddr, Range<usize>)> = Vec::new();
    let mut servers = Vec::new();
    for table in tables {
        let host = table.spanned(Servers::host);
        let ip = host.as_ref().map(|host| *host.get_ref());
        if let Some(host) = host {
            let (span, ip) = (host.span(), host.into_inner());
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

fn server(table: &Table<'_>, host: Option<IpAddr>, has_address: bool) -> Option<Server> {
    let connect = table.value(Servers::connect);
    let connect = connect.map_or(Some(None), |value| read_connect(&value, has_address).map(Some));
    let never_cached = table.value(Servers::never).map_or(Some(Vec::new()), |value| value.list_of(excluded));
    let tables: Option<Vec<_>> = table.tables(Servers::table)?.into_iter().map(lock_table).collect();
    let structures = structures::read(table);
    let (detect_after, share) = (table.read(Servers::detect), table.read(Servers::share));
    let (client_owned_qps, rd_atomic) = (table.read(Servers::lanes), table.read(Servers::rd_atomic));
    let path_mtu = table.read(Servers::path_mtu);
    Some(Server {
        host: host?,
        tables: tables?,
        structures: structures?,
        never_cached: never_cached?,
        detect_after,
        client_owned_qps,
        path_mtu,
        rd_atomic,
        share,
        connect: connect?,
    })
}

/// Reads a range of memory that is never tracked.
fn excluded(element: &Value<'_>) -> Option<Range<u64>> {
    let table = element.inline()?;
    let (va, bytes) = (table.value(RangeKeys::va), table.value(RangeKeys::bytes));
    table.finish();
    range(&va?, &bytes?)
}

/// Reads a range of words in a server's memory.
fn lock_table(table: Table<'_>) -> Option<swordbox::WordTable> {
    let (rkey, va) = (table.read(TableKeys::rkey), table.value(TableKeys::va));
    if va.is_none() && rkey.is_none() {
        let header = TableKeys::TABLE.header;
        let problem = table
            .problem(format!("{header} does not define where the words are"))
            .label("no `va` and no `rkey`");
        table
            .problems()
            .add(problem.help(
                "add `va = 0x10000` and `bytes = 4096`, or `rkey = 0x1234` for all memory of that key",
            ));
    }
    let bytes = table.value(TableKeys::bytes);
    let range = match (va, bytes) {
        (Some(va), Some(bytes)) => words(&va, &bytes),
        (Some(_), None) => {
            table.require_here(TableKeys::bytes);
            None
        }
        (None, bytes) => {
            if let Some(bytes) = bytes {
                let problem = Problem::at(bytes.key_span(), "`bytes` needs `va`");
                table.problems().add(problem.label("no first address").help("add `va = 0x10000`"));
            }
            Some(0..u64::MAX)
        }
    };
    let (stride, writable) = (table.read(TableKeys::stride), table.read(TableKeys::writable));
    table.finish();
    Some(swordbox::WordTable { rkey, range: range?, stride, writable })
}

/// Reads the range of `bytes` bytes from `va` on.
fn range(va: &Value<'_>, bytes: &Value<'_>) -> Option<Range<u64>> {
    let (first, len) = (va.whole(), bytes.whole());
    let (first, len) = (first?, len?);
    let Some(end) = first.checked_add(len) else {
        let problem = bytes.problem(format!("{len} bytes from {first:#x} on exceed the address space"));
        bytes.add(problem.label("too many").help("write the length of the region, in bytes"));
        return None;
    };
    Some(first..end)
}

/// Reads the same range, both ends of which have to be aligned to words.
fn words(va: &Value<'_>, bytes: &Value<'_>) -> Option<Range<u64>> {
    let range = range(va, bytes)?;
    let (first, len) = (aligned(va, range.start), aligned(bytes, range.end - range.start));
    Some(first?..first? + len?)
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
