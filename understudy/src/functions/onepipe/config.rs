//! Reads the table `[onepipe]`: a switch's links, how it keeps barriers, and the bridge that it otherwise is.

#[cfg(test)]
mod tests;

use super::controller::ControllerConfig;
use crate::functions::forward::config::{self as forward, forwarding_or, router_mac};
use core::net::IpAddr;
use core::ops::Range;
use dataplane::config::Device;
use onepipe::{ClockSource, Timestamp};
use onepipe_host::Clock;
use representative::config::{
    BeaconForm, Config, Detour, End, Incarnation, Link, MIN_DEAD_AFTER, MIN_EVICT_AFTER, Pace, Registers,
    Side,
};
use rocev2::Qpn;
use rocev2::ethernet::MacAddr;
use settings::address::{own_addresses, station};
use settings::declare::{
    Kind, Type, boolean, inline, ip, mac, micros, nanos, or_inline, other, special, tables, whole, words,
};
use settings::port::{Ports, ReadPort};
use settings::report::Problem;
use settings::tree::{Table, Value};
use switch::forward::config::{ForwardingMode, MacTable};
use switch::{Nanos, PortId};

const LINK_HEADER: &str = "[[onepipe.links]]";
const REGISTERS_EXAMPLE: &str = "{ va = 0x100000, rkey = 0x31506970 }";
/// Largest queue pair number: it has 24 bits, and the last one is for multicast
const LAST_QP: u64 = 0xff_fffe;
/// Longest wait, in microseconds: one second. Longer ones are taken for mistakes
const MAX_WAIT_US: u64 = 1_000_000;
/// Longest name of a link, in characters, so that reports fit on a line
pub(crate) const MAX_NAME: usize = 64;

/// Contents of `[onepipe]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OnePipeConfig {
    /// Function of the switch. `mac` has to be replaced if the file does not set it, and `clock` in any case
    pub(crate) switch: Config,
    /// MAC address of the switch; the first port's if `None`
    pub(crate) mac: Option<MacAddr>,
    /// Addresses of the switch with the lengths of their prefixes
    pub(crate) addresses: Vec<(IpAddr, u8)>,
    /// Names of the links
    pub(crate) names: Vec<String>,
    /// Clock from which timestamps are taken
    pub(crate) clock: Clock,
    /// A link that holds the barrier and lags behind the others by more than this is reported; `None` reports
    /// none
    pub(crate) lag_alarm: Option<Nanos>,
    /// Controller of the reliable service
    pub(crate) controller: Option<ControllerConfig>,
    /// Number of workers
    pub(crate) workers: usize,
}

settings::table! {
    /// Switch that keeps 1Pipe's barriers, and a bridge or a router
    pub(crate) enum Keys "[onepipe]" with forward::Keys;
    /// Where barriers are kept: in the switch (`chip`), on its CPU, or on a host beside it
    incarnation: Incarnation = words(&[("chip", Incarnation::Chip), ("switch-cpu", Incarnation::SwitchCpu), ("host", Incarnation::Host)]) => required() example("chip");
    /// When beacons are sent: when the barrier passes an interval, or when the switch's clock reaches its end
    pace: Pace = words(&[("passing", Pace::Passing), ("instants", Pace::Instants)]) => default("passing");
    /// Clock from which timestamps are taken: UTC or TAI
    clock: Clock = words(&[("realtime", Clock::Realtime), ("tai", Clock::Tai)]) => default("realtime");
    /// What 1Pipe's clock follows: the machine's clock, which something else synchronises, or clock beacons, which are then exchanged with all neighbours that send them
    clock_from: ClockSource = words(&[("host", ClockSource::Host), ("beacons", ClockSource::Beacons)]) => default("host");
    /// MAC address of the switch
    mac: MacAddr = mac() => optional("that of `routes`, or of the first port") example("02:00:00:00:00:fe");
    /// Addresses of the switch, from which it sends beacons, with the lengths of their subnets' prefixes
    addresses: Vec<(IpAddr, u8)> = other("list of IP addresses with prefix lengths", |value| {
        own_addresses(value, "write the switch's address, from which it sends beacons")
    }) => required() example(["10.0.0.254/24"]);
    /// Interval between two beacons of an idle link; the same in the whole network
    beacon_interval_ns: Nanos = nanos(1_000..=1_000_000) => default(3000);
    /// Intervals without a beacon after which a link is dead
    dead_after_intervals: u32 = whole(MIN_DEAD_AFTER as u64..=1_000_000) => default(10);
    /// A link that comes back is waited for if it is behind by at most this time
    join_window_us: Nanos = micros(1..=MAX_WAIT_US) => optional("10 times the time after which a link is dead") example(300);
    /// Lag behind the other links after which a link is reported; 0 means never
    lag_alarm_us: Nanos = micros(0..=MAX_WAIT_US) => optional("`join_window_us`") example(300);
    /// A link whose barrier is behind those of the others by more than twice `join_window` for this long is removed; 0: never
    evict_after_us: Nanos = micros(0..=MAX_WAIT_US) => optional("10 times `join_window_us`") example(3000);
    /// Distance of the switch from the processes: 1 if it has any below, 2 above such switches, and so on
    layer: u32 = whole(1..=16) => default(1);
    /// Lead over the clock to which barriers are lowered
    ahead_max_us: Nanos = micros(1..=MAX_WAIT_US) => default(10000);
    /// Q_Key of beacons
    qkey: u32 = whole(0..=u32::MAX as u64) => default(0x31506970);
    /// DSCP and ECN of beacons; the DSCP has to be that of the messages
    traffic_class: u8 = whole(0..=255) => default(0);
    /// Memory to which neighbours write beacons that are WRITEs
    registers: Registers = Type::new(Kind::Table(&RegisterKeys::TABLE, ""), registers) => default({ va = 0x100000, rkey = 0x31506970 });
    /// Links, one for each neighbour
    links: () = tables(&LinkKeys::TABLE) => required();
    /// Queue pair number of the first link; the others follow
    first_qp: u32 = whole(2..=LAST_QP) => default(0x100);
}

settings::table! {
    /// Target of WRITEs
    pub(crate) enum RegisterKeys "`registers`";
    /// Address
    va: u64 = whole(0..=u64::MAX) => required() example(0x100000);
    /// Key of the memory
    rkey: u32 = whole(0..=u32::MAX as u64) => required() example(0x31506970);
}

settings::table! {
    /// Link to a neighbour: a switch, or a process
    pub(crate) enum LinkKeys "[[onepipe.links]]";
    /// Port of the link; only `incarnation = "host"` has several links at a port
    port: () = special("name of a port") => required() example("host-a");
    /// Name in reports
    name: String = other("string of up to 64 characters", name) => optional("`address`") example("host 1");
    /// Whether the neighbour is below (closer to processes) or above
    side: Side = words(&[("below", Side::Below), ("above", Side::Above)]) => required() example("below");
    /// MAC address of the neighbour, or of the next hop to its representative
    mac: MacAddr = mac() => required() example("02:00:00:00:00:01");
    /// Address of the neighbour, or of its representative; beacons from other addresses are refused
    address: IpAddr = ip() => required() example("10.0.0.1");
    /// Queue pair of the neighbour that takes beacons
    qpn: u32 = whole(0..=0xff_ffff) => required() example(0x11);
    /// Form of beacons: datagrams, or WRITEs to `{ va, rkey }`
    beacon: BeaconForm = or_inline("`\"datagram\"`", &RegisterKeys::TABLE, beacon_form) => default("datagram");
    /// Ends of the tunnels that lead beacons onto the link, the nearer one first; for `incarnation = "host"`
    detour: () = special("list of up to two IP addresses") => default([]) example(["10.255.0.1", "10.255.0.2"]);
    /// Standby of the neighbour, if the neighbour is a switch with two representatives; for `incarnation = "host"`
    standby: () = inline(&EndKeys::TABLE) => optional("none") example({ mac = "02:00:00:00:00:02", address = "10.0.0.2", qpn = 0x100 });
    /// Has no effect: beacons declare whether messages carry barriers. Will be removed in a later version
    barriers_in_messages: bool = boolean() => default(true);
}

settings::table! {
    /// Second host that represents the neighbouring switch
    pub(crate) enum EndKeys "`standby`";
    /// MAC address of the host, or of the next hop to it
    mac: MacAddr = mac() => required() example("02:00:00:00:00:02");
    /// Address of the host, other than that of the link
    address: IpAddr = ip() => required() example("10.0.0.2");
    /// Queue pair that takes beacons
    qpn: u32 = whole(0..=0xff_ffff) => required() example(0x100);
    /// Form of beacons: datagrams, or WRITEs to `{ va, rkey }`
    beacon: BeaconForm = or_inline("`\"datagram\"`", &RegisterKeys::TABLE, beacon_form) => default("datagram");
    /// Ends of the tunnels that lead beacons onto the link, the nearer one first
    detour: () = special("list of up to two IP addresses") => default([]) example(["10.255.0.1", "10.255.0.2"]);
}

pub(super) fn read(table: &Table<'_>, ports: &Ports) -> Option<OnePipeConfig> {
    let bridge =
        ForwardingMode::Mac(MacTable { capacity: 4096, ageing: Nanos::from_secs(300), fixed: Vec::new() });
    let forward = forwarding_or(table, ports, Some(bridge));
    let incarnation = table.read(Keys::incarnation);
    let mac = switch_mac(table, forward.as_ref().and_then(|forward| router_mac(&forward.mode)));
    let addresses = table.read(Keys::addresses).filter(|addresses| !addresses.is_empty());
    let beacon_interval = table.read(Keys::beacon_interval_ns);
    let dead_after_intervals = table.read(Keys::dead_after_intervals);
    let join_window = join_window(table, beacon_interval.0 * u64::from(dead_after_intervals));
    let links = links(table, ports, incarnation, addresses.as_deref());
    let (pace, clock) = (table.read(Keys::pace), table.read(Keys::clock));
    let (qkey, traffic_class) = (table.read(Keys::qkey), table.read(Keys::traffic_class));
    let (lag_alarm, ahead_max) = (table.read(Keys::lag_alarm_us), table.read(Keys::ahead_max_us));
    let registers = table.read(Keys::registers);
    let least = Nanos(MIN_EVICT_AFTER * beacon_interval.0);
    let evict_after = table.read(Keys::evict_after_us).unwrap_or(Nanos(10 * join_window.0).max(least));
    let layer = table.read(Keys::layer);
    let first_qp = first_qp(table, links.as_ref().map_or(0, Vec::len));
    let (names, links): (Vec<_>, Vec<_>) = links?.into_iter().unzip();
    let clock_source = clock_source(table, &links);
    let addresses = addresses?;
    let switch = Config {
        forward: forward?,
        incarnation: incarnation?,
        pace,
        mac: mac.unwrap_or(MacAddr([0; 6])),
        addresses: addresses.iter().map(|(ip, _)| *ip).collect(),
        qkey,
        first_qp,
        registers,
        beacon_interval,
        dead_after_intervals,
        fail_after_intervals: None,
        join_window,
        ahead_max,
        clock_source,
        clock: Timestamp::default(),
        traffic_class,
        links,
        evict_after,
        layer,
        declares: true,
        bug: None,
    };
    Some(OnePipeConfig {
        mac,
        addresses,
        names,
        clock,
        lag_alarm: Some(lag_alarm.unwrap_or(join_window)).filter(|&lag| lag != Nanos::ZERO),
        controller: None,
        workers: 1,
        switch,
    })
}

/// Reads what the clock follows: not clock beacons where a neighbour has two representatives.
fn clock_source(table: &Table<'_>, links: &[Link]) -> ClockSource {
    let source = table.read(Keys::clock_from);
    if source == ClockSource::Beacons
        && links.iter().any(|link| link.standby.is_some())
        && let Some(value) = table.value(Keys::clock_from)
    {
        let problem = value.problem("clocks cannot follow beacons where a neighbour has a `standby`");
        value.add(problem.label("two senders").help(
            "write `clock_from = \"host\"`, or remove `standby`: clock beacons are exchanged with one representative",
        ));
    }
    source
}

/// Reads `mac`. A switch that routes has one MAC address: hosts that resolve the switch's IP address also
/// send to it the frames to be routed.
fn switch_mac(table: &Table<'_>, router_mac: Option<MacAddr>) -> Option<MacAddr> {
    let Some(value) = table.value(Keys::mac) else { return router_mac };
    let mac = station(&value)?;
    if let Some(router_mac) = router_mac.filter(|&router_mac| router_mac != mac) {
        let problem = value
            .problem(format!("`mac` of the switch is {mac}, but that of `routes` is {router_mac}"))
            .label("not the router's");
        value.add(problem.help(
            "write the same address in both: hosts that resolve the switch's address also send to it the \
             frames to be routed",
        ));
    }
    Some(mac)
}

/// Reads `join_window_us`: the longest time for which a link that comes back may stop the others.
fn join_window(table: &Table<'_>, dead_after_ns: u64) -> Nanos {
    let default = Nanos(10 * dead_after_ns);
    let Some(given) = table.value(Keys::join_window_us) else { return default };
    let default_us = default.0 / 1_000;
    let Some(us) = given.whole_in(1..=MAX_WAIT_US.max(default_us), &default_us.to_string()) else {
        return default;
    };
    let (span, window) = (given.span(), Nanos::from_micros(us));
    if window.0 < dead_after_ns {
        let min = dead_after_ns.div_ceil(1_000);
        let problem =
            Problem::at(span, "`join_window_us` is shorter than the time after which a link is dead");
        table.problems().add(problem.label("too short").help(format!(
            "write at least {min}, which is `beacon_interval_ns` times `dead_after_intervals`; otherwise \
             a dead link could never come back"
        )));
    }
    window
}

fn registers(value: &Value<'_>) -> Option<Registers> {
    let table = value.clone().with_example(REGISTERS_EXAMPLE).table(value.name())?;
    let (va, rkey) = (table.read(RegisterKeys::va), table.read(RegisterKeys::rkey));
    table.finish();
    Some(Registers { va: va?, rkey: rkey? })
}

fn first_qp(table: &Table<'_>, links: usize) -> Qpn {
    const DEFAULT: u32 = 0x100;
    let last = LAST_QP - links as u64;
    let given = table.value(Keys::first_qp).and_then(|value| value.whole_in(2..=last, "256"));
    Qpn::new(given.map_or(DEFAULT, |first| first as u32))
}

/// Reads the links with their names.
fn links(
    table: &Table<'_>,
    ports: &Ports,
    incarnation: Option<Incarnation>,
    own: Option<&[(IpAddr, u8)]>,
) -> Option<Vec<(String, Link)>> {
    let tables = table.tables(Keys::links)?;
    if tables.is_empty() {
        let problem = table.problem("[onepipe] has no link").label("no neighbour");
        table.problems().add(problem.help(format!(
            "add one for each neighbour, such as\n\n{LINK_HEADER}\nside = \"below\"\nport = \"host-a\"\nmac = \
             \"02:00:00:00:00:01\"\naddress = \"10.0.0.1\"\nqpn = 0x11"
        )));
    }
    if let Some(excess) = tables.get(usize::from(u16::MAX) - 1) {
        let problem = excess.problem(format!("[onepipe] has {} links", tables.len()));
        let problem = problem.label("the first one too many");
        table.problems().add(problem.help(format!("keep at most {}", u16::MAX - 1)));
        return None;
    }
    let mut used_ports: Vec<(PortId, Range<usize>)> = Vec::new();
    let mut links = Vec::new();
    for table in tables {
        let port = table.value(LinkKeys::port);
        let found = port.as_ref().and_then(|value| ports.find(value));
        if let (Some(value), Some(found)) = (port, found) {
            let first_use = used_ports.iter().find(|(other, _)| *other == found);
            if let Some((_, first_use)) =
                first_use.filter(|_| incarnation.is_some_and(|kind| kind != Incarnation::Host))
            {
                let name = value.text_if_any().unwrap_or_default();
                let problem = value.problem(format!("two links are at port `{name}`"));
                value.add(problem.label("again").also(first_use.clone(), "first here").help(
                    "give each link its own port; only `incarnation = \"host\"` distinguishes links by \
                     queue pair",
                ));
            }
            check_queues(&value, &ports.list[found.index()]);
            used_ports.push((found, value.span()));
        }
        let link = link(&table, found, incarnation, own);
        table.finish();
        links.push(link);
    }
    links.into_iter().collect()
}

/// Reports a port with several receive queues: they would not keep the order of a link's frames.
fn check_queues(link: &Value<'_>, port: &ReadPort) {
    let queues = match port.device.as_ref().map(|device| &device.device) {
        Some(Device::Pcap { rx, .. }) => rx.len(),
        _ => usize::from(port.rx_queues),
    };
    if queues > 1 {
        let name = link.text_if_any().unwrap_or_default();
        let problem = link.problem(format!("port `{name}` is at a link, but has {queues} receive queues"));
        link.add(problem.label("queues do not keep the order").help(
            "write `rx_queues = 1` for that port, or one capture: barriers need the order of each link's \
             frames",
        ));
    }
}

fn link(
    table: &Table<'_>,
    port: Option<PortId>,
    incarnation: Option<Incarnation>,
    own: Option<&[(IpAddr, u8)]>,
) -> Option<(String, Link)> {
    let (name, side, mac) =
        (table.read(LinkKeys::name), table.read(LinkKeys::side), table.read(LinkKeys::mac));
    let ip = table.read(LinkKeys::address);
    check_version(table.value(LinkKeys::address), ip, own);
    let (qpn, beacon) = (table.read(LinkKeys::qpn), table.read(LinkKeys::beacon));
    let detour = table.value(LinkKeys::detour);
    let detour = detour.map_or(Some(Detour::new()), |value| self::detour(&value, incarnation, own));
    table.read(LinkKeys::barriers_in_messages);
    let standby = table.value(LinkKeys::standby);
    let standby = match standby {
        None => Some(None),
        Some(value) => standby_of(&value, ip, incarnation, own).map(Some),
    };
    let link = Link {
        side: side?,
        port: port?,
        mac: mac?,
        address: ip?,
        detour: detour?,
        qpn: Qpn::new(qpn?),
        beacon,
        standby: standby?,
    };
    Some((name.unwrap_or_else(|| link.address.to_string()), link))
}

/// Reports an address of a neighbour of an IP version of which the switch has no address.
fn check_version(value: Option<Value<'_>>, ip: Option<IpAddr>, own: Option<&[(IpAddr, u8)]>) {
    if let (Some(value), Some(ip), Some(own)) = (value, ip, own)
        && own.iter().all(|(own, _)| own.is_ipv4() != ip.is_ipv4())
    {
        let version = if ip.is_ipv4() { "IPv4" } else { "IPv6" };
        let problem = value.problem(format!("{ip} is an {version} address, but the switch has none"));
        value.add(problem.label("no source address").help(format!(
            "add an {version} address to `addresses` of [onepipe], or write the neighbour's address of the \
             other version"
        )));
    }
}

/// Reads the standby of a neighbour at `first`.
fn standby_of(
    value: &Value<'_>,
    first: Option<IpAddr>,
    incarnation: Option<Incarnation>,
    own: Option<&[(IpAddr, u8)]>,
) -> Option<End> {
    let table = value.clone().table(value.name())?;
    let (mac, ip) = (table.read(EndKeys::mac), table.read(EndKeys::address));
    check_version(table.value(EndKeys::address), ip, own);
    let (qpn, beacon) = (table.read(EndKeys::qpn), table.read(EndKeys::beacon));
    let detour = table.value(EndKeys::detour);
    let detour = detour.map_or(Some(Detour::new()), |value| self::detour(&value, incarnation, own));
    if incarnation.is_some_and(|kind| kind != Incarnation::Host) {
        let problem = value.problem("a switch that keeps its own barriers hears one node per link");
        value.add(problem.label("a second one").help(
            "remove `standby`, here and at the neighbouring switch; only `incarnation = \"host\"` has links to two \
             representatives",
        ));
    } else if let (Some(address), true) = (table.value(EndKeys::address), ip.is_some() && ip == first) {
        let problem = address.problem("the standby has the address of the neighbour's first representative");
        address.add(problem.label("the link's `address`").help(
            "write the address of another host, or remove `standby`: beacons are assigned to the two by their source",
        ));
    }
    table.finish();
    Some(End { mac: mac?, address: ip?, detour: detour?, qpn: Qpn::new(qpn?), beacon })
}

fn name(value: &Value<'_>) -> Option<String> {
    let text = value.text()?;
    if text.chars().count() > MAX_NAME || text.chars().any(char::is_control) {
        let problem =
            value.problem("`name` does not fit on a line").label("too long, or with control characters");
        value.add(problem.help(format!("write at most {MAX_NAME} characters")));
        return None;
    }
    Some(text.to_owned())
}

/// Reads `detour`: the ends of the tunnels that lead beacons onto a link.
fn detour(
    value: &Value<'_>,
    incarnation: Option<Incarnation>,
    own: Option<&[(IpAddr, u8)]>,
) -> Option<Detour> {
    let list = value.list()?;
    let problem = |what: &str| value.problem(what.to_owned()).label("not valid");
    if incarnation.is_some_and(|kind| kind != Incarnation::Host) && !list.is_empty() {
        let problem = problem("a switch needs no detour for its own beacons");
        value.add(problem.help(
            "remove `detour`: frames that the switch sends at a port pass the port's link; only \
             `incarnation = \"host\"` needs a detour",
        ));
        return None;
    }
    if list.len() > 2 {
        let help =
            "write the addresses at which the two switches of the link end tunnels, the nearer one first";
        value.add(problem("a detour has at most two switches, the ends of the link").help(help));
        return None;
    }
    let detour: Detour = list.iter().map(settings::address::ip).collect::<Option<_>>()?;
    let same_version = detour.iter().all(|end| end.is_ipv4() == detour[0].is_ipv4());
    let has_source =
        |end: &IpAddr| own.is_none_or(|own| own.iter().any(|(own, _)| own.is_ipv4() == end.is_ipv4()));
    if !same_version || !detour.iter().all(has_source) {
        let help = "write addresses of one IP version, of which `addresses` of [onepipe] has one: the \
         tunnels start there";
        value.add(
            problem("the addresses of a detour need one IP version, which the switch has as well").help(help),
        );
        return None;
    }
    Some(detour)
}

/// Reads `beacon`: a word, or the target of a WRITE.
fn beacon_form(value: &Value<'_>) -> Option<BeaconForm> {
    if value.text_if_any().is_some() {
        return value.word(&["datagram"]).map(|_| BeaconForm::Datagram);
    }
    let Registers { va, rkey } = registers(value)?;
    Some(BeaconForm::Write { va, rkey })
}
