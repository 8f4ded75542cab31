//! Reads the table `[rfc2544]`: tests of a device between two ports.

use super::port::Ports;
use super::tree::{Table, Value};
use bench::rfc2544::{MaxRate, Settings};
use core::net::IpAddr;
use core::time::Duration;
use pktgen::Verb;
use pktgen::profile::{HostAddress, STAMP_LEN};
use rocev2::Bth;
use rocev2::ethernet::{Ethernet, MacAddr};
use rocev2::ipv4::Ipv4;
use rocev2::ipv6::Ipv6;
use rocev2::udp::Udp;
use settings::declare::{Kind, Type, ip, mac, millis, number, special, text, whole, words};
use switch::{Nanos, PortId};

/// Length of a frame check sequence, in bytes
const FCS_LEN: usize = 4;
/// Largest number of queue pairs: each has a window at the receiver
const MAX_QPS: u64 = 1 << 16;

/// Contents of a file with `[rfc2544]`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Rfc2544Config {
    /// DPDK, and the ports
    pub(crate) runtime: dataplane::Config,
    /// Settings of the tests; frame sizes are rounded to those that RoCEv2 allows
    pub(crate) settings: Settings,
    /// Traffic of the tests
    pub(crate) traffic: Traffic,
    /// Command that starts the device under test, if that is a program
    pub(crate) command: Option<String>,
}

/// Packets of the tests, and the ports between which they are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Traffic {
    pub(crate) send: PortId,
    pub(crate) receive: PortId,
    pub(crate) src: HostAddress,
    pub(crate) dst: HostAddress,
    /// WRITE or SEND
    pub(crate) verb: Verb,
    pub(crate) qps: u32,
    /// Time to wait for the last frames of a trial
    pub(crate) settle: Nanos,
    /// Longest time that the device may take until the first frame passes
    pub(crate) start: Duration,
}

impl Traffic {
    /// Returns the length of a frame, with its check sequence, without the payload, in bytes.
    pub(crate) fn overhead(&self) -> usize {
        let ip = if self.src.ip.is_ipv4() { Ipv4::LEN } else { Ipv6::LEN };
        let reth = if self.verb == Verb::Write { 16 } else { 0 };
        Ethernet::LEN + ip + Udp::LEN + Bth::LEN + reth + 4 + FCS_LEN
    }

    /// Returns the longest frame of at most `frame` bytes, or the shortest frame that is possible. RoCEv2
    /// pads payloads to four bytes, and the payloads here begin with a timestamp.
    fn rounded(&self, frame: u32) -> u32 {
        let payload = (frame as usize).saturating_sub(self.overhead()) / 4 * 4;
        (self.overhead() + payload.max(STAMP_LEN)) as u32
    }
}

settings::table! {
    /// Tests of a device between two ports (RFC 2544)
    pub(crate) enum Keys "[rfc2544]";
    /// Port from which frames are sent to the device
    send: () = special("name of a port") => required() example("out");
    /// Port at which the device's frames arrive
    receive: () = special("name of a port") => required() example("in");
    /// Address of the sender
    src: IpAddr = ip() => required() example("10.0.0.1");
    /// MAC address of the sender
    src_mac: MacAddr = mac() => default("02:00:00:00:00:01");
    /// Address of the receiver
    dst: IpAddr = ip() => required() example("10.0.0.2");
    /// MAC address of the receiver
    dst_mac: MacAddr = mac() => default("02:00:00:00:00:02");
    /// Packets: WRITEs or SENDs
    verb: Verb = words(&[("write", Verb::Write), ("send", Verb::Send)]) => default("write");
    /// Queue pairs that the packets are for
    qps: u32 = whole(1..=MAX_QPS) => default(16);
    /// Time to wait for the last frames of a trial
    settle_ms: Nanos = millis(1..=60_000) => default(100);
    /// Longest time that the device may take until the first frame passes
    start_ms: Nanos = millis(1..=600_000) => default(10000);
    /// Resolution of rates and bursts, as a share of the maximum
    resolution: f64 = number(0.000_1..=0.5) => default(0.01);
    /// Step of the loads at which loss is measured, as a share of the highest load
    loss_step: f64 = number(0.01..=0.1) => default(0.1);
    /// Duration of a trial
    trial_s: f64 = number(0.001..=3600.0).unit("s") => default(1) example(60);
    /// Duration of a trial that measures latency
    latency_trial_s: f64 = number(0.001..=3600.0).unit("s") => optional("`trial_s`") example(120);
    /// Longest burst of the test of back-to-back frames
    burst_s: f64 = number(0.000_1..=60.0).unit("s") => optional("`trial_s`") example(2);
    /// Smallest share of the time for which the polling thread must have had its CPU when it was runnable
    min_core: f64 = number(0.0..=1.0) => default(0.9);
    /// Measurements of each figure
    repeats: u32 = whole(1..=99) => default(3);
    /// Rate of the link, which is the highest load
    link_gbps: f64 = number(0.000_1..=800.0).unit("Gbit/s") => optional("the highest rate of the generator") example(10);
    /// Highest load in packets, in place of `link_gbps`
    packets_per_s: u64 = whole(1..=1_000_000_000) => optional("the highest rate of the generator") example(1000000);
    /// Command that starts the device, if that is a program
    command: String = text("command") => optional("the device runs already") example("understudy run device.toml");
    /// Sizes of frames with their check sequence; one or a list
    frame_sizes: Vec<u32> = Type::new(Kind::Wholes(64, 9_000), frame_sizes).unit("bytes") => default([64, 128, 256, 512, 1024, 1280, 1518]) example([64, 1518]);
}

fn frame_sizes(value: &Value<'_>) -> Option<Vec<u32>> {
    let sizes = value.one_or_list().into_iter();
    sizes.map(|size| size.whole_like("128").map(|size| size as u32)).collect()
}

pub(super) fn read(root: &Table<'_>, ports: &Ports) -> Option<(Settings, Traffic, Option<String>)> {
    let table = root.section(&Keys::TABLE)?;
    let send = table.value(Keys::send).and_then(|value| ports.find(&value));
    let receive = table.value(Keys::receive).and_then(|value| ports.find(&value));
    let (src, src_mac) = (table.read(Keys::src), table.read(Keys::src_mac));
    let (dst, dst_mac) = (table.read(Keys::dst), table.read(Keys::dst_mac));
    let [src, dst] = [(src, src_mac), (dst, dst_mac)].map(|(ip, mac)| ip.map(|ip| HostAddress { ip, mac }));
    let (verb, qps, settle) = (table.read(Keys::verb), table.read(Keys::qps), table.read(Keys::settle_ms));
    let start = Duration::from_nanos(table.read(Keys::start_ms).0);
    let (resolution, loss_step) = (table.read(Keys::resolution), table.read(Keys::loss_step));
    let trial_s = table.read(Keys::trial_s);
    let latency_trial_s = table.read(Keys::latency_trial_s).unwrap_or(trial_s);
    let burst_s = table.read(Keys::burst_s).unwrap_or(trial_s);
    let (min_core, repeats) = (table.read(Keys::min_core), table.read(Keys::repeats));
    let max_rate = highest_load(&table);
    let command = table.read(Keys::command);
    let sizes = table.value(Keys::frame_sizes);
    let requested = match &sizes {
        Some(value) => frame_sizes(value),
        None => Some(table.read(Keys::frame_sizes)),
    };
    if let (Some(value), Some([])) = (&sizes, requested.as_deref()) {
        value.add(
            value
                .problem("`frame_sizes` is empty")
                .label("no size")
                .help("write `frame_sizes = [128, 1518]`"),
        );
    }
    if let (Some(src), Some(dst)) = (src, dst)
        && src.ip.is_ipv4() != dst.ip.is_ipv4()
    {
        let problem = table.problem("`src` and `dst` have different IP versions").label("IPv4 and IPv6");
        table.problems().add(problem.help("write two addresses of the same version"));
    }
    let traffic = (|| {
        Some(Traffic { send: send?, receive: receive?, src: src?, dst: dst?, verb, qps, settle, start })
    })();
    let frames = traffic.zip(requested).map(|(traffic, requested)| {
        let mut frames: Vec<u32> = Vec::new();
        for frame in requested.into_iter().map(|size| traffic.rounded(size)) {
            if !frames.contains(&frame) {
                frames.push(frame);
            }
        }
        frames
    });
    if let (Some(traffic), Some(frames)) = (traffic, &frames) {
        check_mtu(&table, sizes.as_ref(), traffic, frames, ports);
    }
    table.finish();
    let settings = Settings {
        frames: frames?,
        max_rate,
        resolution,
        loss_step,
        trial_s,
        latency_trial_s,
        burst_s,
        repeats,
        min_core,
    };
    Some((settings, traffic?, command))
}

/// Reads the highest load to offer: the rate of the link, or a packet rate. Without both, the generator's own
/// limit applies.
fn highest_load(table: &Table<'_>) -> Option<MaxRate> {
    if let (Some(_), Some(packets)) = (table.value(Keys::link_gbps), table.value(Keys::packets_per_s)) {
        let problem = packets.problem("`link_gbps` and `packets_per_s` both set the highest rate");
        packets.add(
            problem
                .label("the second")
                .help("keep one; without both, the highest rate of the generator is measured"),
        );
    }
    let bits = table.read(Keys::link_gbps).map(|gbps| MaxRate::BitsPerS((gbps * 1e9) as u64));
    let packets = table.read(Keys::packets_per_s).map(MaxRate::PacketsPerS);
    bits.or(packets)
}

/// Reports frames that exceed the MTU of the ports.
fn check_mtu(table: &Table<'_>, sizes: Option<&Value<'_>>, traffic: Traffic, frames: &[u32], ports: &Ports) {
    let longest = frames.iter().copied().max().unwrap_or(0);
    let payload = longest as usize - traffic.overhead().min(longest as usize);
    let needed = longest.saturating_sub((Ethernet::LEN + FCS_LEN) as u32);
    let mtu = u32::from(ports.list[traffic.send.index()].mtu.min(ports.list[traffic.receive.index()].mtu));
    if needed > mtu || payload > rocev2::MAX_PAYLOAD {
        let message = format!("frames of {longest} bytes do not fit the ports' MTU of {mtu}");
        let problem = sizes.map_or_else(|| table.problem(&message), |value| value.problem(&message));
        let help = format!(
            "write `mtu = {needed}` for both ports (with at most 4096 bytes of payload), or smaller \
             `frame_sizes`"
        );
        table.problems().add(problem.label("too long").help(help));
    }
}
