//! The table `[process]`, which `understudy plan` writes, and files that contain it beside `[runtime]` and
//! one `[[port]]`.

use crate::config::{Clock, Config, Settings};
use core::net::IpAddr;
use core::ops::Range;
use onepipe::OnePipe;
use onepipe::process::{self, BeaconPeer, Peer, ProcessId};
use rocev2::Qpn;
use rocev2::ethernet::MacAddr;
use settings::address::{address, ip, station};
use settings::port::Ports;
use settings::runtime::Runtime;
use settings::tree::{Problems, Table, Value, section, subsections};
use settings::{Dpdk, Machine, Problem, Report, file};
use std::path::Path;
use switch::Nanos;
use toml::de::DeTable;

const BEACONS: &str = "[[process.beacons]]";
const PEERS: &str = "[[process.peers]]";
/// Maximum queue pair number: numbers have 24 bits, and the last one is for multicast
const MAX_QPN: u64 = 0xff_fffe;
/// Default queue pair number, as `understudy plan` assigns it
const DEFAULT_QPN: u64 = 0x11;
/// Maximum of most times, in microseconds: a second
const MAX_US: u64 = 1_000_000;
/// Lengths of IP, UDP, BTH, DETH and ICRC, for IPv4 and IPv6
const HEADERS: [u16; 2] = [20 + 8 + 12 + 8 + 4, 40 + 8 + 12 + 8 + 4];

/// Reads and validates a configuration file.
///
/// # Errors
/// All problems of the file.
pub fn load(path: &Path) -> Result<Config, Report> {
    let text = file::text_of(path)?;
    let folder = path.parent().unwrap_or(Path::new(""));
    file::parsed(path, &text, |root, problems| read_all(root, folder, problems))
}

fn read_all(root: &DeTable<'_>, folder: &Path, problems: &Problems) -> Option<Config> {
    let root = Table::root(root, problems);
    let dpdk = Dpdk::read(&root, folder, &Machine::this());
    check_runtime(&dpdk.runtime, problems);
    let process = section(&root, "process").and_then(|table| {
        let process = read(&table, &dpdk.ports);
        table.finish();
        process
    });
    root.finish();
    Some(Config { runtime: dpdk.build()?, process: process? })
}

/// Checks `[runtime]` for settings that are not valid with `[process]`.
pub fn check_runtime(runtime: &Runtime, problems: &Problems) {
    let reason = "[process] has one worker, its polling thread: its frames leave in one order";
    runtime.check_one_worker(reason, problems);
    runtime.reject_stop_when_idle("[process]", "a process runs until it leaves", problems);
}

/// Reads the table `[process]` of a file with these ports. Returns `None` if it is invalid; the problems are
/// reported to the table.
pub fn read(table: &Table<'_>, ports: &Ports) -> Option<Settings> {
    let id = table.require("id", "1").and_then(|value| value.number(0..=u32::MAX.into(), 1));
    let own_address = table.require("address", "\"10.0.0.1/24\"");
    let own_address = own_address.and_then(|value| address(&value));
    let mac = table.get("mac", "\"02:00:00:00:00:01\"").map(|value| station(&value));
    let qpn = Qpn::new(table.number("qpn", 2..=MAX_QPN, DEFAULT_QPN) as u32);
    let clock = table.get("clock", "\"realtime\"").and_then(|value| value.word(&["realtime", "tai"]));
    let tell_settled = table.boolean("tell_settled", false);
    let beacons = beacons(table, own_address.map(|(ip, _)| ip));
    let own = id.map(|id| ProcessId(id as u32));
    let peers = peers(table, own, own_address.map(|(ip, _)| ip));
    let numbers = Numbers::read(table, ports, own_address.map(|(ip, _)| ip));
    one_port(table, ports);
    let (own_address, prefix) = own_address?;
    let own = Peer { id: own?, mac: mac.flatten().unwrap_or_default(), address: own_address, qpn };
    let (switch, beacons) = beacons?;
    let mut process = process::Config::new(own, beacons);
    process.peers = peers?;
    numbers.apply(&mut process);
    let clock = if clock == Some("tai") { Clock::Tai } else { Clock::Realtime };
    Some(Settings { process, mac: mac.flatten(), prefix, switch, clock, tell_settled })
}

/// Numeric and boolean keys, each of which has a default
struct Numbers {
    barriers_in_messages: bool,
    qkey: u32,
    mtu: usize,
    traffic_class: u8,
    hop_limit: u8,
    beacon_interval: Nanos,
    ahead_max: Nanos,
    timeout: Nanos,
    ack_delay: Nanos,
    ack_every: u32,
    max_unsettled: usize,
    /// `send_buffer`, `receive_window`, `receive_buffer`, `initial_window`
    bytes: [usize; 4],
}

impl Numbers {
    fn read(table: &Table<'_>, ports: &Ports, own: Option<IpAddr>) -> Self {
        let micros = |key, range, default| Nanos::from_micros(table.number(key, range, default));
        let kib =
            |key, max, default: usize| (table.number(key, 1..=max, default as u64 >> 10) << 10) as usize;
        let placeholder =
            Peer { id: ProcessId(0), mac: MacAddr::default(), address: [0; 4].into(), qpn: Qpn::new(0) };
        let Peer { mac, address, qpn, .. } = placeholder;
        let default = process::Config::new(placeholder, BeaconPeer { mac, address, qpn, detour: Vec::new() });
        let ack_delay = micros("ack_delay_us", 1..=MAX_US, default.ack_delay.0 / 1_000);
        let interval = table.number("beacon_interval_ns", 1_000..=1_000_000, default.beacon_interval.0);
        Self {
            // Only `chip` writes a link's barriers into messages; otherwise they are the sender's, and not
            // valid for the link.
            barriers_in_messages: table.boolean("barriers_in_messages", false),
            qkey: table.number("qkey", 0..=u32::MAX.into(), OnePipe::QKEY.into()) as u32,
            mtu: mtu(table, ports, own, default.mtu),
            traffic_class: table.number("traffic_class", 0..=255, 0) as u8,
            hop_limit: table.number("hop_limit", 1..=255, default.hop_limit.into()) as u8,
            beacon_interval: Nanos(interval),
            ahead_max: micros("ahead_max_us", 1..=MAX_US, default.ahead_max.0 / 1_000),
            ack_delay,
            timeout: timeout(table, &default, ack_delay),
            ack_every: table.number("ack_every", 1..=64, default.ack_every.into()) as u32,
            max_unsettled: table.number("max_unsettled", 1..=1 << 24, default.max_unsettled as u64) as usize,
            bytes: [
                kib("send_buffer_kib", 4 << 20, default.send_buffer),
                kib("receive_window_kib", 1 << 18, default.receive_window as usize),
                kib("receive_buffer_kib", 1 << 30, default.receive_buffer),
                kib("initial_window_kib", 1 << 20, default.initial_window as usize),
            ],
        }
    }

    fn apply(self, config: &mut process::Config) {
        let [send_buffer, receive_window, receive_buffer, initial_window] = self.bytes;
        config.barriers_in_messages = self.barriers_in_messages;
        (config.qkey, config.mtu) = (self.qkey, self.mtu);
        (config.traffic_class, config.hop_limit) = (self.traffic_class, self.hop_limit);
        (config.beacon_interval, config.ahead_max) = (self.beacon_interval, self.ahead_max);
        (config.timeout, config.ack_delay, config.ack_every) = (self.timeout, self.ack_delay, self.ack_every);
        (config.max_unsettled, config.send_buffer) = (self.max_unsettled, send_buffer);
        (config.receive_window, config.receive_buffer) = (receive_window as u32, receive_buffer);
        // The receive window bounds what may be in flight.
        config.initial_window = (initial_window as u32).min(config.receive_window);
    }
}

/// Reads the size of 1Pipe's header and data, which have to fit into the port's MTU.
fn mtu(table: &Table<'_>, ports: &Ports, own: Option<IpAddr>, default: usize) -> usize {
    let given = table.spanned_number("mtu", 256..=rocev2::MAX_PAYLOAD as u64, default as u64);
    let (span, mtu) = given.map_or((None, default), |mtu| (Some(mtu.span()), mtu.into_inner() as usize));
    let headers = HEADERS[usize::from(own.is_some_and(|own| own.is_ipv6()))];
    let port = ports.list.first().map_or(9_600, |port| port.mtu);
    let max = usize::from(port.saturating_sub(headers)) / 4 * 4;
    let at = |span: Option<Range<usize>>, message: String| match span {
        Some(span) => Problem::at(span, message).label("here"),
        None => table.problem(message).label("`mtu` defaults to 1024"),
    };
    if mtu > max {
        let problem = at(span, format!("packets of {mtu} bytes do not fit into the port's {port}"));
        table.problems().add(problem.help(format!(
            "write at most `mtu = {max}`, or a larger `mtu` for the port: headers take {headers} bytes"
        )));
    } else if !mtu.is_multiple_of(4) {
        let problem = at(span, format!("`mtu` has to be a multiple of four, but is {mtu}"));
        table.problems().add(problem.help(format!("write `mtu = {}`", mtu / 4 * 4)));
    } else {
        return mtu;
    }
    default
}

/// Reads the timeout of messages, which has to be longer than the delay of acknowledgements.
fn timeout(table: &Table<'_>, default: &process::Config, ack_delay: Nanos) -> Nanos {
    let delay = ack_delay.0 / 1_000;
    let Some(given) = table.spanned_number("timeout_us", 2..=10 * MAX_US, default.timeout.0 / 1_000) else {
        return default.timeout.max(Nanos::from_micros(10 * delay));
    };
    let (span, timeout) = (given.span(), given.into_inner());
    if timeout <= delay {
        let problem = Problem::at(span, "`timeout_us` is not longer than `ack_delay_us`").label("too short");
        table.problems().add(problem.help(format!(
            "every message would fail before it could be acknowledged: write {} or more, which is {delay} us and several round trips",
            10 * delay
        )));
        return default.timeout;
    }
    Nanos::from_micros(timeout)
}

/// Checks that the process has one port with one receive queue: its barriers rely on the order of frames
/// there.
fn one_port(table: &Table<'_>, ports: &Ports) {
    if let Some(second) = ports.list.get(1).and_then(|port| port.name.as_ref()) {
        let problem = Problem::at(second.span(), "a process has one port").label("a second one");
        table.problems().add(problem.help("remove it; run another process as another program"));
    }
    if let Some(port) = ports.list.first().filter(|port| port.rx_queues > 1)
        && let Some(name) = &port.name
    {
        let problem = Problem::at(name.span(), format!("the process's port has {} queues", port.rx_queues));
        table.problems().add(
            problem
                .label("frames in different queues are not ordered")
                .help("write `rx_queues = 1`: a barrier does not cover frames in another queue"),
        );
    }
}

/// Reads the switch that keeps the barriers of the process's link.
fn beacons(table: &Table<'_>, own: Option<IpAddr>) -> Option<(String, BeaconPeer)> {
    let mut tables = subsections(table, "beacons", BEACONS)?.into_iter();
    let first = tables.next();
    for second in tables {
        let problem = second.problem("a process's beacons go to one switch").label("another");
        table.problems().add(problem.help(
            "keep one: a process has one link. On a host at two switches, keep the switch that its routes pass",
        ));
        second.discard();
    }
    let Some(table) = first else {
        let problem = table
            .problem("[process] has no [[process.beacons]]")
            .label("the switch that keeps its barriers is missing");
        table.problems().add(problem.help(format!(
            "add its switch, or the host that represents it, such as\n\n{BEACONS}\nswitch = \"tor1\"\nmac = \
             \"02:00:00:00:00:fe\"\naddress = \"10.0.0.254\"\nqpn = 0x100"
        )));
        return None;
    };
    let switch = table.get("switch", "\"tor1\"").map_or(Some("its switch"), |value| value.text());
    let mac = table.require("mac", "\"02:00:00:00:00:fe\"").and_then(|value| station(&value));
    let address =
        table.require("address", "\"10.0.0.254\"").and_then(|value| address_of_version(&value, own));
    let qpn = table.require("qpn", "0x100").and_then(|value| value.number(2..=MAX_QPN, 0x100));
    let detour = table.get("detour", "[\"10.255.0.1\"]");
    let detour = detour.map_or(Some(Vec::new()), |value| self::detour(&value, own));
    table.finish();
    let beacons = BeaconPeer { mac: mac?, address: address?, qpn: Qpn::new(qpn? as u32), detour: detour? };
    Some((switch?.to_owned(), beacons))
}

/// Reads the switch's tunnel address, through which beacons get onto the link.
fn detour(value: &Value<'_>, own: Option<IpAddr>) -> Option<Vec<IpAddr>> {
    let list = value.list()?;
    if list.len() > 1 {
        let problem = value.problem("the detour has more than one switch");
        value.add(
            problem.label("here").help("write only the address at which the process's switch ends tunnels"),
        );
        return None;
    }
    list.iter().map(|end| address_of_version(end, own)).collect()
}

/// Reads an address of the same IP version as the process's own.
fn address_of_version(value: &Value<'_>, own: Option<IpAddr>) -> Option<IpAddr> {
    let ip = ip(value)?;
    if let Some(own) = own.filter(|own| own.is_ipv4() != ip.is_ipv4()) {
        let [version, other] = if ip.is_ipv4() { ["IPv4", "IPv6"] } else { ["IPv6", "IPv4"] };
        let problem =
            value.problem(format!("{ip} is an {version} address, and the process's own is {other}"));
        value.add(problem.label("no source address of this version").help(format!(
            "write an {other} address, or give the process an {version} one: its own is {own}"
        )));
        return None;
    }
    Some(ip)
}

fn peers(table: &Table<'_>, own_id: Option<ProcessId>, own: Option<IpAddr>) -> Option<Vec<Peer>> {
    let tables = subsections(table, "peers", PEERS)?;
    if tables.is_empty() {
        let problem = table.problem("[process] has no peers").label("a peer is missing");
        table.problems().add(problem.help(format!(
            "add one for each other process, such as\n\n{PEERS}\nid = 2\nmac = \"02:00:00:00:00:02\"\naddress = \
             \"10.0.0.2\"\nqpn = 0x11"
        )));
    }
    let mut taken: Vec<(ProcessId, Range<usize>)> = Vec::new();
    let mut endpoints: Vec<((IpAddr, Qpn), Range<usize>)> = Vec::new();
    let mut peers = Vec::new();
    for table in tables {
        let id = table.require("id", "2");
        let number = id.as_ref().and_then(|value| value.number(0..=u32::MAX.into(), 2));
        let number = number.map(|id| ProcessId(id as u32));
        if let (Some(value), Some(number)) = (&id, number) {
            if Some(number) == own_id {
                let problem = value.problem(format!("process {number} is this one"));
                value.add(
                    problem
                        .label("its own number")
                        .help("remove it: a process is not listed among its own peers"),
                );
            } else if let Some((_, first)) = taken.iter().find(|(other, _)| *other == number) {
                let problem = value.problem(format!("process number {number} is used twice")).label("again");
                value.add(problem.also(first.clone(), "first here").help("give each process its own number"));
            }
            taken.push((number, value.span()));
        }
        let mac = table.require("mac", "\"02:00:00:00:00:02\"").and_then(|value| station(&value));
        let address_value = table.require("address", "\"10.0.0.2\"");
        let address = address_value.as_ref().and_then(|value| address_of_version(value, own));
        let qpn = Qpn::new(table.number("qpn", 2..=MAX_QPN, DEFAULT_QPN) as u32);
        if let (Some(value), Some(address)) = (address_value, address) {
            if let Some((_, first)) = endpoints.iter().find(|(other, _)| *other == (address, qpn)) {
                let problem = value.problem(format!("two processes are at {address} with queue pair {qpn}"));
                value.add(
                    problem.label("again").also(first.clone(), "first here").help(
                        "give each process of a host its own `qpn`: address and `qpn` identify a sender",
                    ),
                );
            }
            endpoints.push(((address, qpn), value.span()));
        }
        table.finish();
        peers.push(number.zip(mac).zip(address).map(|((id, mac), address)| Peer { id, mac, address, qpn }));
    }
    peers.into_iter().collect()
}
