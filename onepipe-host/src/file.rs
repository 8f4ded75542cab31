//! The table `[process]`, which `understudy plan` writes, and files that contain it beside `[runtime]` and
//! one `[[port]]`.

pub mod controller;

use crate::config::{Clock, Config, Settings};
use core::net::IpAddr;
use core::ops::Range;
use onepipe::ClockSource;
use onepipe::process::{self, BeaconPeer, Peer, ProcessId};
use rocev2::Qpn;
use rocev2::ethernet::MacAddr;
use settings::address::ip;
use settings::declare::{
    TableSpec, boolean, inline, mac, micros, nanos, special, subnet_address, tables, text, whole, words,
};
use settings::port::Ports;
use settings::runtime::Runtime;
use settings::tree::{Problems, Table, Value};
use settings::{Dpdk, Machine, Problem, Report, file};
use std::path::Path;
use switch::Nanos;
use toml::de::DeTable;

const BEACONS: &str = BeaconKeys::TABLE.header;
const PEERS: &str = PeerKeys::TABLE.header;
/// Maximum queue pair number: numbers have 24 bits, and the last one is for multicast
const MAX_QPN: u64 = 0xff_fffe;
/// Maximum of most times, in microseconds: a second
const MAX_US: u64 = 1_000_000;
/// Lengths of IP, UDP, BTH, DETH and ICRC, for IPv4 and IPv6
const HEADERS: [u16; 2] = [20 + 8 + 12 + 8 + 4, 40 + 8 + 12 + 8 + 4];

/// The table `[process]`
pub const TABLE: &TableSpec = &Keys::TABLE;

settings::table! {
    /// 1Pipe process
    pub(crate) enum Keys "[process]";
    /// Number of the process, different from those of its peers
    id: u32 = whole(0..=u32::MAX as u64) => required() example(1);
    /// Address of the process, with the length of its subnet's prefix
    address: (IpAddr, u8) = subnet_address() => required() example("10.0.0.1/24");
    /// MAC address of the process
    mac: MacAddr = mac() => optional("that of the port") example("02:00:00:00:00:01");
    /// Queue pair number
    qpn: u32 = whole(2..=MAX_QPN) => default(0x11);
    /// Clock from which timestamps are taken: UTC or TAI
    clock: Clock = words(&[("realtime", Clock::Realtime), ("tai", Clock::Tai)]) => default("realtime");
    /// What 1Pipe's clock follows: the machine's clock, which something else synchronises, or clock beacons, which the switch has to send
    clock_from: ClockSource = words(&[("host", ClockSource::Host), ("beacons", ClockSource::Beacons)]) => default("host");
    /// With `clock_from = "beacons"`: greatest difference between the machine's clock and that of clock beacons, beyond which they are ignored. With `[controller]` at most `ahead_max_us`
    clock_limit_us: Nanos = micros(1..=10 * MAX_US) => default(2000000);
    /// Whether the application gets an event for every scattering that is settled, beside those for failed messages
    tell_settled: bool = boolean() => default(false);
    /// Switch that keeps the barriers of the process's link, or the host that represents it
    beacons: () = tables(&BeaconKeys::TABLE) => required();
    /// Other processes
    peers: () = tables(&PeerKeys::TABLE) => required();
    /// Longest delay of an acknowledgement
    ack_delay_us: Nanos = micros(1..=MAX_US) => default(3);
    /// Time between two beacons
    beacon_interval_ns: Nanos = nanos(1_000..=1_000_000) => default(3000);
    /// Has no effect: beacons declare whether messages carry barriers. Will be removed in a later version
    barriers_in_messages: bool = boolean() => default(false);
    /// Q_Key of 1Pipe's datagrams
    qkey: u32 = whole(0..=u32::MAX as u64) => default(0x31506970);
    /// Size of 1Pipe's header and data in a packet, a multiple of 4
    mtu: usize = whole(256..=rocev2::MAX_PAYLOAD as u64).unit("bytes") => default(1024);
    /// Traffic class of all packets; the DSCP has to be that of the representatives' beacons
    traffic_class: u8 = whole(0..=255) => default(0);
    /// Hop limit of packets
    hop_limit: u8 = whole(1..=255) => default(64);
    /// Lead over the clock from which a message is refused, and to which barriers are lowered
    ahead_max_us: Nanos = micros(1..=MAX_US) => default(10000);
    /// Largest difference between the clocks of two processes: a process that starts accepts only messages stamped later than its clock by this time. 0: it accepts all
    clock_error_us: Nanos = micros(0..=MAX_US) => optional("100, or `ahead_max_us` if that is shorter") example(100);
    /// Time after which the application is notified that the barrier of its link has not risen. 0: never
    stall_after_us: Nanos = micros(0..=10 * MAX_US) => optional("100 times `beacon_interval_ns`") example(300);
    /// Time without an acknowledgement after which a message fails
    timeout_us: Nanos = micros(2..=10 * MAX_US) => optional("1000, or 10 times `ack_delay_us` if that is longer") example(1000);
    /// Packets after which an acknowledgement is sent at once
    ack_every: u32 = whole(1..=64) => default(16);
    /// Messages whose result has not been reported to the application
    max_unsettled: usize = whole(1..=1 << 24) => default(65536);
    /// Messages that have not been sent
    send_buffer_kib: usize = whole(1..=4 << 20).unit("KiB") => default(65536);
    /// Buffer for one sender until the application has taken the messages; a longer message cannot be sent
    receive_window_kib: usize = whole(1..=1 << 18).unit("KiB") => default(18432);
    /// Buffer for all senders
    receive_buffer_kib: usize = whole(1..=1 << 30).unit("KiB") => default(262144);
    /// Initial congestion window of a receiver
    initial_window_kib: usize = whole(1..=1 << 20).unit("KiB") => default(64);
}

settings::table! {
    /// Switch that keeps the barriers of the process's link, or the host that represents it
    pub(crate) enum BeaconKeys "[[process.beacons]]";
    /// Name of the switch, in reports
    switch: String = text("string") => optional("none") example("tor1");
    /// MAC address to which beacons are sent
    mac: MacAddr = mac() => required() example("02:00:00:00:00:fe");
    /// Address to which beacons are sent
    address: () = special("IP address") => required() example("10.0.0.254");
    /// Queue pair to which beacons are sent
    qpn: u32 = whole(2..=MAX_QPN) => required() example(0x100);
    /// End of the tunnel at the process's switch, which leads beacons onto the link; at most one
    detour: () = special("list of IP addresses") => default([]) example(["10.255.0.1"]);
    /// Second host that represents the switch, if it has one: it is enough to hear one of the two
    standby: () = inline(&StandbyKeys::TABLE) => optional("none") example({ mac = "02:00:00:00:00:fd", address = "10.0.0.253", qpn = 0x100 });
}

settings::table! {
    /// Second host that represents the switch of the process's link
    pub(crate) enum StandbyKeys "`standby`";
    /// MAC address to which beacons are sent
    mac: MacAddr = mac() => required() example("02:00:00:00:00:fd");
    /// Address to which beacons are sent, other than that of the first representative
    address: () = special("IP address") => required() example("10.0.0.253");
    /// Queue pair to which beacons are sent
    qpn: u32 = whole(2..=MAX_QPN) => required() example(0x100);
    /// End of the tunnel at the process's switch, which leads beacons onto the link; at most one
    detour: () = special("list of IP addresses") => default([]) example(["10.255.0.1"]);
}

settings::table! {
    /// Another process
    pub(crate) enum PeerKeys "[[process.peers]]";
    /// Number of the process
    id: u32 = whole(0..=u32::MAX as u64) => required() example(2);
    /// MAC address of the process, or of the router to it
    mac: MacAddr = mac() => required() example("02:00:00:00:00:02");
    /// Address of the process
    address: () = special("IP address") => required() example("10.0.0.2");
    /// Queue pair number of the process
    qpn: u32 = whole(2..=MAX_QPN) => default(0x11);
}

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
    let process = root.section(TABLE).and_then(|table| {
        let process = read(&table, &dpdk.ports);
        table.finish();
        process
    });
    let mut process = process;
    if let Some(process) = &mut process {
        process.read_controller(&root, folder);
    }
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
    let id = table.read(Keys::id);
    let own_address = table.read(Keys::address);
    let mac = table.read(Keys::mac);
    let qpn = Qpn::new(table.read(Keys::qpn));
    let (clock, settled_events) = (table.read(Keys::clock), table.read(Keys::tell_settled));
    let beacons = beacons(table, own_address.map(|(ip, _)| ip));
    let own = id.map(ProcessId);
    let peers = peers(table, own, own_address.map(|(ip, _)| ip));
    let mtu = mtu(table, ports, own_address.map(|(ip, _)| ip));
    let (ack_delay, timeout) = (table.read(Keys::ack_delay_us), timeout(table));
    one_port(table, ports);
    let (own_address, prefix) = own_address?;
    let own = Peer { id: own?, mac: mac.unwrap_or_default(), address: own_address, qpn };
    let (switch, beacons, standby) = beacons?;
    let mut process = process::Config::new(own, beacons);
    process.standby = standby;
    process.peers = peers?;
    (process.mtu, process.ack_delay, process.timeout) = (mtu, ack_delay, timeout);
    process.clock_error = clock_error(table);
    process.clock_limit = table.read(Keys::clock_limit_us);
    process.clock_source = clock_source(table, process.standby.is_some());
    read_numbers(table, &mut process);
    Some(Settings { process, mac, prefix, switch, clock, settled_events, controller: None })
}

/// Reads the numeric and boolean keys, all of which have a default.
fn read_numbers(table: &Table<'_>, config: &mut process::Config) {
    table.read(Keys::barriers_in_messages);
    config.qkey = table.read(Keys::qkey);
    config.traffic_class = table.read(Keys::traffic_class);
    config.hop_limit = table.read(Keys::hop_limit);
    config.beacon_interval = table.read(Keys::beacon_interval_ns);
    config.ahead_max = table.read(Keys::ahead_max_us);
    let stall_after = table.read(Keys::stall_after_us);
    config.stall_after = stall_after.unwrap_or(Nanos(100 * config.beacon_interval.0));
    config.ack_every = table.read(Keys::ack_every);
    config.max_unsettled = table.read(Keys::max_unsettled);
    config.send_buffer = table.read(Keys::send_buffer_kib) << 10;
    config.receive_window = (table.read(Keys::receive_window_kib) << 10) as u32;
    config.receive_buffer = table.read(Keys::receive_buffer_kib) << 10;
    // The receive window bounds what may be in flight.
    let initial_window = (table.read(Keys::initial_window_kib) << 10) as u32;
    config.initial_window = initial_window.min(config.receive_window);
}

/// Reads the size of 1Pipe's header and data, which have to fit into the port's MTU.
fn mtu(table: &Table<'_>, ports: &Ports, own: Option<IpAddr>) -> usize {
    let (span, mtu) = (table.span_of(Keys::mtu), table.read(Keys::mtu));
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
    }
    mtu
}

/// Reads the largest difference between two clocks, which may not be longer than what is refused as too far
/// ahead.
fn clock_error(table: &Table<'_>) -> Nanos {
    const DEFAULT: Nanos = Nanos::from_micros(100);
    let ahead_max = table.read(Keys::ahead_max_us);
    let Some(given) = table.spanned(Keys::clock_error_us) else { return DEFAULT.min(ahead_max) };
    let (span, clock_error) = (given.span(), given.into_inner());
    if clock_error > ahead_max {
        let problem = Problem::at(span, "`clock_error_us` is longer than `ahead_max_us`").label("too long");
        table.problems().add(problem.help(format!(
            "messages of correct processes would be refused: write {} or less, or a longer `ahead_max_us`",
            ahead_max.0 / 1_000
        )));
    }
    clock_error
}

/// Reads what the clock follows: not clock beacons on a link with two ends.
fn clock_source(table: &Table<'_>, has_standby: bool) -> ClockSource {
    let source = table.read(Keys::clock_from);
    if source == ClockSource::Beacons
        && has_standby
        && let Some(span) = table.span_of(Keys::clock_from)
    {
        let problem = Problem::at(span, "clocks cannot follow beacons where the switch has a `standby`");
        table.problems().add(problem.label("two senders").help(
            "write `clock_from = \"host\"`, or remove `standby`: clock beacons are exchanged with one representative",
        ));
    }
    source
}

/// Reads the time-out of messages, which has to be longer than the delay of acknowledgements.
fn timeout(table: &Table<'_>) -> Nanos {
    const DEFAULT: Nanos = Nanos::from_millis(1);
    let ack_delay = table.read(Keys::ack_delay_us);
    let delay = ack_delay.0 / 1_000;
    let Some(given) = table.spanned(Keys::timeout_us) else {
        return DEFAULT.max(Nanos::from_micros(10 * delay));
    };
    let (span, timeout) = (given.span(), given.into_inner());
    if timeout <= ack_delay {
        let problem = Problem::at(span, "`timeout_us` is not longer than `ack_delay_us`").label("too short");
        table.problems().add(problem.help(format!(
            "every message would fail before it could be acknowledged: write {} or more, which is {delay} us and several round trips",
            10 * delay
        )));
    }
    timeout
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
fn beacons(table: &Table<'_>, own: Option<IpAddr>) -> Option<(String, BeaconPeer, Option<BeaconPeer>)> {
    let mut tables = table.tables(Keys::beacons)?.into_iter();
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
    let switch = table.read(BeaconKeys::switch).unwrap_or_else(|| "its switch".into());
    let (mac, qpn) = (table.read(BeaconKeys::mac), table.read(BeaconKeys::qpn));
    let address = table.value(BeaconKeys::address).and_then(|value| address_of_version(&value, own));
    let detour = table.value(BeaconKeys::detour);
    let detour = detour.map_or(Some(Vec::new()), |value| self::detour(&value, own));
    let standby = match table.value(BeaconKeys::standby) {
        None => Some(None),
        Some(value) => standby(&value, address, own).map(Some),
    };
    table.finish();
    let beacons = BeaconPeer { mac: mac?, address: address?, qpn: Qpn::new(qpn?), detour: detour? };
    Some((switch, beacons, standby?))
}

/// Reads the second host that represents the switch; the first one is at `first`.
fn standby(value: &Value<'_>, first: Option<IpAddr>, own: Option<IpAddr>) -> Option<BeaconPeer> {
    let table = value.clone().table(value.name())?;
    let (mac, qpn) = (table.read(StandbyKeys::mac), table.read(StandbyKeys::qpn));
    let given = table.value(StandbyKeys::address);
    let address = given.as_ref().and_then(|value| address_of_version(value, own));
    let detour = table.value(StandbyKeys::detour);
    let detour = detour.map_or(Some(Vec::new()), |value| self::detour(&value, own));
    if let (Some(given), true) = (given, address.is_some() && address == first) {
        let problem = given.problem("the standby has the address of the first representative");
        given.add(problem.label("the same `address`").help(
            "write the address of another host, or remove `standby`: beacons are assigned to the two by their source",
        ));
    }
    table.finish();
    Some(BeaconPeer { mac: mac?, address: address?, qpn: Qpn::new(qpn?), detour: detour? })
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
    let tables = table.tables(Keys::peers)?;
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
        let (id, number) = (table.value(PeerKeys::id), table.read(PeerKeys::id).map(ProcessId));
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
        let mac = table.read(PeerKeys::mac);
        let address_value = table.value(PeerKeys::address);
        let address = address_value.as_ref().and_then(|value| address_of_version(value, own));
        let qpn = Qpn::new(table.read(PeerKeys::qpn));
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
