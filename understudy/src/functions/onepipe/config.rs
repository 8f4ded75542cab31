//! Reads the table `[onepipe]`: a switch's links, how it keeps barriers, and the bridge that it otherwise is.

#[cfg(test)]
mod tests;

use crate::functions::forward::config::{forwarding_or, router_mac};
use core::net::IpAddr;
use core::ops::Range;
use dataplane::config::Device;
use onepipe::{OnePipe, Timestamp};
use onepipe_host::Clock;
use representative::config::{
    BeaconForm, Config, Detour, Incarnation, Link, MIN_DEAD_AFTER, Pace, Registers, Side,
};
use rocev2::Qpn;
use rocev2::ethernet::MacAddr;
use settings::address::address;
use settings::address::station;
use settings::port::{Ports, ReadPort};
use settings::report::Problem;
use settings::tree::{Table, Value, subsections};
use switch::forward::config::{MacTable, Topology};
use switch::{Nanos, PortId};

const LINK_HEADER: &str = "[[onepipe.links]]";
/// Default target of beacons that are sent as WRITEs; the key equals the Q_Key of 1Pipe's datagrams
const DEFAULT_REGISTERS: Registers = Registers { va: 0x10_0000, rkey: OnePipe::QKEY };
const DEFAULT_FIRST_QP: u64 = 0x100;
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
}

pub(super) fn read(table: &Table<'_>, ports: &Ports) -> Option<OnePipeConfig> {
    let bridge = Topology::Mac(MacTable { capacity: 4096, ageing: Nanos::from_secs(300), fixed: Vec::new() });
    let forward = forwarding_or(table, ports, Some(bridge));
    let incarnation = table.require("incarnation", "\"chip\"");
    let incarnation = incarnation.and_then(|value| match value.word(&["chip", "switch-cpu", "host"])? {
        "chip" => Some(Incarnation::Chip),
        "switch-cpu" => Some(Incarnation::SwitchCpu),
        _ => Some(Incarnation::Host),
    });
    let pace = table.get("pace", "\"passing\"").and_then(|value| value.word(&["passing", "instants"]));
    let clock = table.get("clock", "\"realtime\"").and_then(|value| value.word(&["realtime", "tai"]));
    let mac = switch_mac(table, forward.as_ref().and_then(|forward| router_mac(&forward.topology)));
    let addresses = addresses(table);
    let interval = table.number("beacon_interval_ns", 1_000..=1_000_000, 3_000);
    let dead_after = table.number("dead_after_intervals", MIN_DEAD_AFTER.into()..=1_000_000, 10);
    let join_window = join_window(table, interval * dead_after);
    let lag_alarm = table.spanned_number("lag_alarm_us", 0..=MAX_WAIT_US, 300).map(toml::Spanned::into_inner);
    let ahead_max = Nanos::from_micros(table.number("ahead_max_us", 1..=MAX_WAIT_US, 10_000));
    let qkey = table.number("qkey", 0..=u32::MAX.into(), OnePipe::QKEY.into()) as u32;
    let traffic_class = table.number("traffic_class", 0..=255, 0) as u8;
    let registers = table.get("registers", "{ va = 0x100000, rkey = 0x31506970 }");
    let registers = registers.map_or(Some(DEFAULT_REGISTERS), |value| self::registers(&value));
    let links = links(table, ports, incarnation, addresses.as_deref());
    let first_qp = first_qp(table, links.as_ref().map_or(0, Vec::len));
    let (names, links): (Vec<_>, Vec<_>) = links?.into_iter().unzip();
    let addresses = addresses?;
    let switch = Config {
        forward: forward?,
        incarnation: incarnation?,
        pace: if pace == Some("instants") { Pace::Instants } else { Pace::Passing },
        mac: mac.unwrap_or(MacAddr([0; 6])),
        addresses: addresses.iter().map(|(ip, _)| *ip).collect(),
        qkey,
        first_qp,
        registers: registers?,
        beacon_interval: Nanos(interval),
        dead_after_intervals: dead_after as u32,
        join_window,
        ahead_max,
        clock: Timestamp::default(),
        traffic_class,
        links,
        bug: None,
    };
    Some(OnePipeConfig {
        mac,
        addresses,
        names,
        clock: if clock == Some("tai") { Clock::Tai } else { Clock::Realtime },
        lag_alarm: match lag_alarm {
            None => Some(join_window),
            Some(0) => None,
            Some(us) => Some(Nanos::from_micros(us)),
        },
        switch,
    })
}

/// Reads `mac`. A switch that routes has one MAC address: hosts that resolve the switch's IP address also
/// send to it the frames to be routed.
fn switch_mac(table: &Table<'_>, router_mac: Option<MacAddr>) -> Option<MacAddr> {
    let Some(value) = table.get("mac", "\"02:00:00:00:00:fe\"") else { return router_mac };
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

fn addresses(table: &Table<'_>) -> Option<Vec<(IpAddr, u8)>> {
    let value = table.require("addresses", "[\"10.0.0.254/24\"]")?;
    let list = value.list()?;
    if list.is_empty() {
        let problem = value.problem("`addresses` is empty").label("no address");
        value.add(problem.help("write the switch's address, from which it sends beacons"));
        return None;
    }
    list.iter().map(address).collect()
}

/// Reads `join_window_us`: the longest time for which a link that comes back may stop the others.
fn join_window(table: &Table<'_>, dead_after_ns: u64) -> Nanos {
    let default = Nanos(10 * dead_after_ns);
    let Some(given) =
        table.spanned_number("join_window_us", 1..=MAX_WAIT_US.max(default.0 / 1_000), default.0 / 1_000)
    else {
        return default;
    };
    let (span, window) = (given.span(), Nanos::from_micros(given.into_inner()));
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
    let table = value.table("`registers`")?;
    let va =
        table.require("va", "0x100000").and_then(|value| value.number(0..=u64::MAX, DEFAULT_REGISTERS.va));
    let rkey = rkey(&table);
    table.finish();
    Some(Registers { va: va?, rkey: rkey? })
}

fn rkey(table: &Table<'_>) -> Option<u32> {
    let rkey = table.require("rkey", "0x31506970")?;
    rkey.number(0..=u32::MAX.into(), DEFAULT_REGISTERS.rkey.into()).map(|rkey| rkey as u32)
}

fn first_qp(table: &Table<'_>, links: usize) -> Qpn {
    let last = LAST_QP - links as u64;
    Qpn::new(table.number("first_qp", 2..=last, DEFAULT_FIRST_QP) as u32)
}

/// Reads the links with their names.
fn links(
    table: &Table<'_>,
    ports: &Ports,
    incarnation: Option<Incarnation>,
    own: Option<&[(IpAddr, u8)]>,
) -> Option<Vec<(String, Link)>> {
    let tables = subsections(table, "links", LINK_HEADER)?;
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
        let port = table.require("port", "\"host-a\"");
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
    let name = table.get("name", "\"host 1\"").and_then(|value| name(&value));
    let side = table.require("side", "\"below\"").and_then(|value| value.word(&["below", "above"]));
    let mac = table.require("mac", "\"02:00:00:00:00:01\"").and_then(|value| station(&value));
    let address = table.require("address", "\"10.0.0.1\"");
    let ip = address.as_ref().and_then(settings::address::ip);
    if let (Some(value), Some(ip), Some(own)) = (&address, ip, own)
        && own.iter().all(|(own, _)| own.is_ipv4() != ip.is_ipv4())
    {
        let version = if ip.is_ipv4() { "IPv4" } else { "IPv6" };
        let problem = value.problem(format!("{ip} is an {version} address, but the switch has none"));
        value.add(problem.label("no source address").help(format!(
            "add an {version} address to `addresses` of [onepipe], or write the neighbour's address of the \
             other version"
        )));
    }
    let qpn = table.require("qpn", "0x11").and_then(|value| value.number(0..=0xff_ffff, 0x11));
    let beacon = table.get("beacon", "\"datagram\"");
    let beacon = beacon.map_or(Some(BeaconForm::Datagram), |value| beacon_form(&value));
    let detour = table.get("detour", "[\"10.255.0.1\", \"10.255.0.2\"]");
    let detour = detour.map_or(Some(Detour::new()), |value| self::detour(&value, incarnation, own));
    let barriers_in_messages = table.boolean("barriers_in_messages", true);
    let link = Link {
        side: if side? == "below" { Side::Below } else { Side::Above },
        port: port?,
        mac: mac?,
        address: ip?,
        detour: detour?,
        qpn: Qpn::new(qpn? as u32),
        beacon: beacon?,
        barriers_in_messages,
    };
    Some((name.unwrap_or_else(|| link.address.to_string()), link))
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
    let table = value.clone().with_example("{ va = 0x100000, rkey = 0x31506970 }").table("`beacon`")?;
    let va =
        table.require("va", "0x100000").and_then(|value| value.number(0..=u64::MAX, DEFAULT_REGISTERS.va));
    let rkey = rkey(&table);
    table.finish();
    Some(BeaconForm::Write { va: va?, rkey: rkey? })
}
