//! Reads the table `[nic]`: a host on the port, and its services.

#[cfg(test)]
mod tests;

use super::{Client, HostConfig, Kind, MAX_ADDRESSES, PerftestConfig, ServiceConfig, Test};
use crate::functions::function::File;
use core::net::IpAddr;
use core::ops::Range;
use rnic::part::MAX_QPS;
use rnic::{AckPolicy, PathMtu, Transport};
use rocev2::ethernet::MacAddr;
use settings::address::own_addresses;
use settings::declare::Kind as Values;
use settings::declare::{Type, boolean, ip, ips, mac, number, or_inline, other, tables, whole, words};
use settings::port::Ports;
use settings::report::Problem;
use settings::tree::{Table, Value};
use settings::words::one_of;
use switch::Nanos;
use workloads::scenario::AckSpec;

/// Default ports of rping, ucmatose and perftest
const RPING_PORT: u16 = 7174;
const UCMATOSE_PORT: u16 = 7471;
const PERFTEST_PORT: u16 = 18_515;
/// Longest message, in bytes (IB 9.4.1)
const MAX_SIZE: u64 = 1 << 30;

settings::table! {
    /// Host on the port: a software NIC, and services that use it
    pub(crate) enum Keys "[nic]";
    /// MAC address of the host
    mac: MacAddr = mac() => optional("that of the port") example("02:00:00:00:00:02");
    /// Addresses of the host, with the lengths of their subnets' prefixes
    addresses: Vec<(IpAddr, u8)> = other("list of IP addresses with prefix lengths", |value| {
        own_addresses(value, "write the host's address, such as `addresses = [\"10.0.0.2/24\"]`")
    }) => required() example(["10.0.0.2/24"]);
    /// Routers to hosts of other subnets
    gateways: Vec<IpAddr> = ips() => default([]) example(["10.0.0.254"]);
    /// Largest path MTU of the host's connections: 256, 512, 1024, 2048 or 4096
    mtu: PathMtu = Type::new(Values::Whole(256, 4096), path_mtu).unit("bytes") => default(1024);
    /// Requests that ask for an acknowledgement
    ack: AckSpec = or_inline("`\"on-request\"` (the last packet of a message), `\"every-packet\"`, `\"any\"`", &AckKeys::TABLE, read_ack) => default("on-request");
    /// Services of the host
    service: () = tables(&ServiceKeys::TABLE) => optional("no service");
    /// VLAN of the host's frames
    vlan: u16 = whole(1..=4094) => optional("no tag") example(10);
    /// Packets that a requester sends without an acknowledgement
    window: u32 = whole(1..=65_536).unit("packets") => default(128);
    /// Whether acknowledgements carry credits (IB 9.7.7.2)
    credits: bool = boolean() => default(false);
    /// Connections that may exist at one time; with several workers, at each of them
    max_connections: usize = whole(1..=1 << 20) => default(1024);
    /// Seed of first PSNs and of identifiers
    seed: u64 = whole(0..=i64::MAX as u64) => optional("random") example(1);
}

settings::table! {
    /// Requests that ask for an acknowledgement: one after some packets or some time
    pub(crate) enum AckKeys "`ack`";
    /// Packets after which one asks
    packets: u32 = whole(1..=1 << 20) => required() example(4);
    /// Time after which one asks
    time_us: f64 = number(0.0..=1e9).unit("us") => required() example(20);
}

settings::table! {
    /// Service of the host. `kind` determines the other keys
    pub(crate) enum ServiceKeys "[[nic.service]]";
    /// Program whose peer the service is, or memory that others access
    kind: ServiceKind = words(&[
        ("rping_server", ServiceKind::RpingServer),
        ("rping_client", ServiceKind::RpingClient),
        ("ucmatose_server", ServiceKind::UcmatoseServer),
        ("ucmatose_client", ServiceKind::UcmatoseClient),
        ("memory", ServiceKind::Memory),
        (PerftestConfig::NAME, ServiceKind::Perftest),
    ]) => required() example("rping_server");
    /// Test of perftest, without `ib_`; for `perftest_server`
    test: Test = words(&Test::ALL) => optional("only with `perftest_server`") example("write_bw");
    /// Port at which the service listens or is requested
    port: u16 = whole(1..=65_535) => optional("7174 for rping and memory, 7471 for ucmatose, 18515 for perftest") example(7174);
    /// Largest message, or the size of the memory
    size: u64 = whole(0..=MAX_SIZE).unit("bytes") => optional("1048576 for a server of rping and for memory, 64 for a client of rping, 100 for ucmatose, 8388608 for perftest (2 for write_lat)") example(64);
    /// Transport of the test; UC has neither READs nor atomics
    transport: Transport = words(&[("rc", Transport::Rc), ("uc", Transport::Uc)]) => default("rc");
    /// Address of the server; clients require it
    server: IpAddr = ip() => optional("only for clients") example("10.0.0.1");
    /// Connections of a client
    connections: u32 = whole(1..=1 << 20) => default(1);
    /// Connections that a client opens at one time
    at_once: u32 = whole(1..=1024) => default(64);
    /// Rounds of an rping client; 0 means no end
    count: u32 = whole(0..=u32::MAX as u64) => default(10);
    /// Messages of ucmatose on each connection
    messages: u32 = whole(0..=1 << 20) => default(10);
}

/// Value of `kind`
#[derive(Clone, Copy, PartialEq, Eq)]
enum ServiceKind {
    RpingServer,
    RpingClient,
    UcmatoseServer,
    UcmatoseClient,
    Memory,
    Perftest,
}

/// Reads a path MTU.
fn path_mtu(value: &Value<'_>) -> Option<PathMtu> {
    let bytes = value.whole()?;
    let mtu = PathMtu::of_bytes(bytes as u16);
    if mtu.is_none() {
        let problem = value.problem(format!("{bytes} is not a path MTU")).label("not defined by InfiniBand");
        value.add(problem.help("write 256, 512, 1024, 2048 or 4096; a port with MTU 1500 carries 1024"));
    }
    mtu
}

pub(super) fn read(table: &Table<'_>, ports: &Ports) -> Option<HostConfig> {
    if let Some(second) = ports.list.get(1).and_then(|port| port.name.as_ref()) {
        let problem = Problem::at(second.span(), "a host has exactly one port");
        table
            .problems()
            .add(problem.label("a second port").help("remove it, or run another instance for another host"));
    }
    let addresses = table.read(Keys::addresses);
    let ack = match table.read(Keys::ack) {
        AckSpec::EveryPacket => AckPolicy::EveryPacket,
        AckSpec::Every { packets, time } => AckPolicy::Every { packets, time: Nanos(time) },
        AckSpec::OnRequest | AckSpec::Any => AckPolicy::OnRequest,
    };
    let services_read: Option<Vec<(Service, Range<usize>)>> =
        table.value(Keys::service).map_or(Some(Vec::new()), |value| {
            value.list()?.iter().map(|value| Some((service(value)?, value.span()))).collect()
        });
    let config = HostConfig {
        mac: table.read(Keys::mac),
        addresses: addresses.clone().unwrap_or_default(),
        gateways: table.read(Keys::gateways),
        vlan: table.read(Keys::vlan),
        mtu: table.read(Keys::mtu),
        window: table.read(Keys::window),
        ack,
        credits: table.read(Keys::credits),
        max_qps: table.read(Keys::max_connections),
        seed: table.read(Keys::seed),
        services: Vec::new(),
        perftests: Vec::new(),
        workers: 1,
    };
    let (mut services, mut perftests) = (Vec::new(), Vec::new());
    // The ports of TCP and those of rdma_cm are different ones.
    let (mut rdma_cm, mut tcp) = (Vec::new(), Vec::new());
    for (service, span) in services_read? {
        match service {
            Service::Connected(service) => {
                if service.client.is_none() {
                    rdma_cm.push((service.port, service.kind.name(false), span));
                }
                services.push(service);
            }
            Service::Perftest(perftest) => {
                tcp.push((perftest.port, PerftestConfig::NAME, span));
                perftests.push(perftest);
            }
        }
    }
    check_ports(table, &rdma_cm);
    check_ports(table, &tcp);
    let addresses = addresses?;
    if !perftests.is_empty()
        && addresses.len() > MAX_ADDRESSES
        && let Some(value) = table.value(Keys::addresses)
    {
        let problem =
            value.problem(format!("a host with a perftest server has {} addresses", addresses.len()));
        value.add(
            problem
                .label("too many")
                .help(format!("list at most {MAX_ADDRESSES}, or remove the perftest server")),
        );
    }
    Some(HostConfig { services, perftests, ..config })
}

/// Reports more connections than there are queue pair numbers.
pub(super) fn check_workers(config: &HostConfig, file: &File<'_>) {
    let most = MAX_QPS / config.workers.next_power_of_two();
    if config.max_qps > most {
        let workers = config.workers;
        let problem =
            format!("{} connections at each of {workers} workers; the limit is {most}", config.max_qps);
        let help = format!("write `max_connections = {most}`, or list fewer workers");
        file.runtime.reject_workers(&problem, "too many", &help, file.root.problems());
    }
}

/// Service, by how its clients connect
enum Service {
    /// Through rdma_cm
    Connected(ServiceConfig),
    /// Over TCP
    Perftest(PerftestConfig),
}

fn service(value: &Value<'_>) -> Option<Service> {
    let table = value.inline()?;
    let service = match table.read(ServiceKeys::kind) {
        Some(ServiceKind::Perftest) => perftest(&table).map(Service::Perftest),
        Some(kind) => connected(&table, kind).map(Service::Connected),
        None => {
            // The keys depend on `kind`, which is not known.
            table.discard();
            return None;
        }
    };
    table.finish_read();
    service
}

/// Reads a service whose clients connect through rdma_cm.
fn connected(table: &Table<'_>, kind: ServiceKind) -> Option<ServiceConfig> {
    use ServiceKind::{RpingClient, RpingServer, UcmatoseClient, UcmatoseServer};
    let default_port = match kind {
        UcmatoseServer | UcmatoseClient => UCMATOSE_PORT,
        _ => RPING_PORT,
    };
    let port = table.read(ServiceKeys::port).unwrap_or(default_port);
    let client = matches!(kind, RpingClient | UcmatoseClient).then(|| {
        table.require_here(ServiceKeys::server);
        let (connections, at_once) = (table.read(ServiceKeys::connections), table.read(ServiceKeys::at_once));
        (table.read(ServiceKeys::server), connections, at_once)
    });
    let size = |default| table.read(ServiceKeys::size).unwrap_or(default);
    let kind = match kind {
        RpingServer => Kind::Rping { count: 0, size: size(1 << 20) as u32 },
        RpingClient => Kind::Rping { count: table.read(ServiceKeys::count), size: size(64) as u32 },
        UcmatoseServer | UcmatoseClient => {
            Kind::Ucmatose { messages: table.read(ServiceKeys::messages), size: size(100) as u32 }
        }
        _ => Kind::Memory { size: size(1 << 20) },
    };
    // All keys are read before an invalid server ends this, so that no key is reported as unknown.
    let client = match client {
        Some((server, connections, at_once)) => Some(Client { server: server?, connections, at_once }),
        None => None,
    };
    Some(ServiceConfig { kind, port, client })
}

fn perftest(table: &Table<'_>) -> Option<PerftestConfig> {
    table.require_here(ServiceKeys::test);
    let test = table.read(ServiceKeys::test);
    let port = table.read(ServiceKeys::port).unwrap_or(PERFTEST_PORT);
    // Size that ib_write_lat starts with, and the largest size of the other tests with `-a`
    let default_size = if test == Some(Test::WriteLat) { 2 } else { 1 << 23 };
    let size = table.value(ServiceKeys::size).and_then(|value| value.whole_in(1..=MAX_SIZE, "64"));
    let transport = table.read(ServiceKeys::transport);
    let test = test?;
    if let (Transport::Uc, Some(value)) = (transport, table.value(ServiceKeys::transport))
        && !test.is_on_uc()
    {
        let problem = value.problem(format!("{} does not run on UC", test.name())).label("needs RC");
        value.add(problem.help("remove `transport`: UC has neither READs nor atomics"));
    }
    Some(PerftestConfig { test, port, size: size.unwrap_or(default_size) as u32, transport })
}

/// Reports servers (port, name, position) that listen at the same port.
fn check_ports(table: &Table<'_>, servers: &[(u16, &str, Range<usize>)]) {
    for (index, (port, name, span)) in servers.iter().enumerate() {
        if let Some((_, first, at)) = servers[..index].iter().find(|(first, ..)| first == port) {
            let names = if first == name { "one of them".into() } else { one_of([first, name]) };
            let problem = Problem::at(span.clone(), format!("two services listen at port {port}"));
            let problem = problem.label("the second").also(at.clone(), "the first");
            table.problems().add(problem.help(format!("give {names} another `port`")));
        }
    }
}

/// Reads `ack`: which requests of a host ask for an acknowledgement.
pub(crate) fn read_ack(value: &Value<'_>) -> Option<AckSpec> {
    if value.text_if_any().is_some() {
        return Some(match value.word(&["any", "every-packet", "on-request"])? {
            "any" => AckSpec::Any,
            "every-packet" => AckSpec::EveryPacket,
            _ => AckSpec::OnRequest,
        });
    }
    let table = value.clone().with_example("{ packets = 4, time_us = 20 }").inline()?;
    let (packets, time) = (table.read(AckKeys::packets), table.read(AckKeys::time_us));
    table.finish();
    Some(AckSpec::Every { packets: packets?, time: (time? * 1000.0).round() as u64 })
}
