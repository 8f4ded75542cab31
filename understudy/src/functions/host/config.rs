//! Reads the table `[nic]`: a host on the port, and its services.

#[cfg(test)]
mod tests;

use super::{Client, HostConfig, Kind, MAX_ADDRESSES, PerftestConfig, ServiceConfig, Test};
use core::ops::Range;
use rnic::{AckPolicy, PathMtu, Transport};
use settings::address::{address, ip, station};
use settings::port::Ports;
use settings::report::Problem;
use settings::tree::{Table, Value};
use settings::words::one_of;
use switch::Nanos;
use workloads::scenario::AckSpec;

/// Values of `kind`, one for each service
const KINDS: [&str; 6] =
    ["rping_server", "rping_client", "ucmatose_server", "ucmatose_client", "memory", PerftestConfig::NAME];
/// Default ports of rping, ucmatose and perftest
const RPING_PORT: u64 = 7174;
const UCMATOSE_PORT: u64 = 7471;
const PERFTEST_PORT: u64 = 18515;
/// Longest message, in bytes (IB 9.4.1)
const MAX_SIZE: u64 = 1 << 30;

pub(super) fn read(table: &Table<'_>, ports: &Ports) -> Option<HostConfig> {
    if let Some(second) = ports.list.get(1).and_then(|port| port.name.as_ref()) {
        let problem = Problem::at(second.span(), "a host has exactly one port");
        table
            .problems()
            .add(problem.label("a second port").help("remove it, or run another instance for another host"));
    }
    let mac = table.get("mac", "\"02:00:00:00:00:02\"").and_then(|value| station(&value));
    let addresses = table.require("addresses", "[\"10.0.0.2/24\"]").and_then(|value| {
        let list = value.list()?;
        if list.is_empty() {
            value.add(
                value
                    .problem("`addresses` is empty")
                    .label("no address")
                    .help("write the host's address, such as `addresses = [\"10.0.0.2/24\"]`"),
            );
        }
        list.iter().map(address).collect::<Option<Vec<_>>>()
    });
    let gateways = table
        .get("gateways", "[\"10.0.0.254\"]")
        .map_or(Some(Vec::new()), |value| value.list()?.iter().map(ip).collect());
    let mtu = table.number("mtu", 256..=4096, 1024);
    let mtu = PathMtu::of_bytes(mtu as u16).or_else(|| {
        let value = table.get("mtu", "1024")?;
        value.add(
            value
                .problem(format!("{mtu} is not a path MTU"))
                .label("not defined by InfiniBand")
                .help("write 256, 512, 1024, 2048 or 4096; a port with MTU 1500 carries 1024"),
        );
        None
    });
    let ack = match table.get("ack", "\"on-request\"").and_then(|value| read_ack(&value)) {
        Some(AckSpec::EveryPacket) => AckPolicy::EveryPacket,
        Some(AckSpec::Every { packets, time }) => AckPolicy::Every { packets, time: Nanos(time) },
        Some(AckSpec::OnRequest | AckSpec::Any) | None => AckPolicy::OnRequest,
    };
    let services_read: Option<Vec<(Service, Range<usize>)>> =
        table.get("service", "[]").map_or(Some(Vec::new()), |value| {
            value.list()?.iter().map(|value| Some((service(value)?, value.span()))).collect()
        });
    let vlan = table.spanned_number("vlan", 1..=4094, 10).map(|id| id.into_inner() as u16);
    let window = table.number("window", 1..=65536, 128) as u32;
    let credits = table.boolean("credits", false);
    let max_qps = table.number("max_connections", 1..=1 << 20, 1024) as usize;
    let seed = table.spanned_number("seed", 0..=i64::MAX as u64, 1).map(toml::Spanned::into_inner);
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
        && let Some(value) = table.get("addresses", "[]")
    {
        let problem =
            value.problem(format!("a host with a perftest server has {} addresses", addresses.len()));
        value.add(
            problem
                .label("too many")
                .help(format!("list at most {MAX_ADDRESSES}, or remove the perftest server")),
        );
    }
    Some(HostConfig {
        mac,
        addresses,
        gateways: gateways?,
        vlan,
        mtu: mtu?,
        window,
        ack,
        credits,
        max_qps,
        seed,
        services,
        perftests,
    })
}

/// Service, by how its clients connect
enum Service {
    /// Through rdma_cm
    Connected(ServiceConfig),
    /// Over TCP
    Perftest(PerftestConfig),
}

fn service(value: &Value<'_>) -> Option<Service> {
    let table = value.table("[[nic.service]]")?;
    let kind = table.require("kind", "\"rping_server\"").and_then(|value| value.word(&KINDS));
    if kind == Some(PerftestConfig::NAME) {
        let perftest = perftest(&table);
        table.finish();
        return perftest.map(Service::Perftest);
    }
    let default_port =
        if kind.is_some_and(|kind| kind.starts_with("ucmatose")) { UCMATOSE_PORT } else { RPING_PORT };
    let port = table.number("port", 1..=65535, default_port) as u16;
    let size = |table: &Table<'_>, default| table.number("size", 0..=MAX_SIZE, default);
    let read = |kind: &str| {
        let client = kind.ends_with("client");
        let client = if client {
            let server = table.require("server", "\"10.0.0.1\"").and_then(|value| ip(&value));
            let connections = table.number("connections", 1..=1 << 20, 1) as u32;
            let at_once = table.number("at_once", 1..=1024, 64) as u32;
            Some((server, connections, at_once))
        } else {
            None
        };
        let kind = match kind {
            "rping_server" => Kind::Rping { count: 0, size: size(&table, 1 << 20) as u32 },
            "rping_client" => {
                let count = table.number("count", 0..=u64::from(u32::MAX), 10) as u32;
                Kind::Rping { count, size: size(&table, 64) as u32 }
            }
            "ucmatose_server" | "ucmatose_client" => {
                let messages = table.number("messages", 0..=1 << 20, 10) as u32;
                Kind::Ucmatose { messages, size: size(&table, 100) as u32 }
            }
            _ => Kind::Memory { size: size(&table, 1 << 20) },
        };
        // All keys are read before an invalid server ends this, so that no key is reported as unknown.
        let client = match client {
            Some((server, connections, at_once)) => Some(Client { server: server?, connections, at_once }),
            None => None,
        };
        Some(ServiceConfig { kind, port, client })
    };
    let service = kind.and_then(read);
    if kind.is_some() {
        table.finish();
    } else {
        // The keys depend on `kind`, which is not known.
        table.discard();
    }
    service.map(Service::Connected)
}

fn perftest(table: &Table<'_>) -> Option<PerftestConfig> {
    let tests = Test::ALL.map(|(name, _)| name);
    let test = table.require("test", "\"write_bw\"").and_then(|value| value.word(&tests));
    let test = test.and_then(|word| Test::ALL.into_iter().find(|(name, _)| *name == word));
    let port = table.number("port", 1..=65535, PERFTEST_PORT) as u16;
    // Size that ib_write_lat starts with, and the largest size of the other tests with `-a`
    let default_size = if test.is_some_and(|(_, test)| test == Test::WriteLat) { 2 } else { 1 << 23 };
    let size = table.number("size", 1..=MAX_SIZE, default_size) as u32;
    let transport = table.get("transport", "\"rc\"");
    let word = transport.as_ref().map_or(Some("rc"), |value| value.word(&["rc", "uc"]));
    let (name, test) = test?;
    let transport = match (word?, transport) {
        ("uc", Some(value)) if !test.is_on_uc() => {
            let problem = value.problem(format!("{name} does not run on UC")).label("needs RC");
            value.add(problem.help("remove `transport`: UC has neither READs nor atomics"));
            return None;
        }
        ("uc", _) => Transport::Uc,
        _ => Transport::Rc,
    };
    Some(PerftestConfig { test, port, size, transport })
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
    let value = value.clone().with_example("{ packets = 4, time_us = 20 }");
    let table = value.table("`ack`")?;
    let packets = table.require("packets", "4").and_then(|value| value.number(1..=1 << 20, 4));
    let time = table.require("time_us", "20").and_then(|value| value.fraction(0.0..=1e9));
    table.finish();
    Some(AckSpec::Every { packets: packets? as u32, time: (time? * 1000.0).round() as u64 })
}
