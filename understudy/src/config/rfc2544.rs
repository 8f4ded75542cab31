//! Reads the table `[rfc2544]`: tests of a device between two ports.

use super::port::Ports;
use super::tree::{Table, Value, section};
use bench::rfc2544::{MaxRate, Settings};
use core::time::Duration;
use pktgen::Verb;
use pktgen::profile::{HostAddress, STAMP_LEN};
use rocev2::Bth;
use rocev2::ethernet::{Ethernet, MacAddr};
use rocev2::ipv4::Ipv4;
use rocev2::ipv6::Ipv6;
use rocev2::udp::Udp;
use settings::address::{ip, station};
use switch::{Nanos, PortId};

/// Default frame sizes, in bytes (RFC 2544, section 9.1)
const DEFAULT_SIZES: [u32; 7] = [64, 128, 256, 512, 1024, 1280, 1518];
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

pub(super) fn read(root: &Table<'_>, ports: &Ports) -> Option<(Settings, Traffic, Option<String>)> {
    let table = section(root, "rfc2544")?;
    let port = |key, example| table.require(key, example).and_then(|value| ports.find(&value));
    let (send, receive) = (port("send", "\"out\""), port("receive", "\"in\""));
    let host = |key, example, mac_key, mac: MacAddr| {
        let address = table.require(key, example).and_then(|value| ip(&value));
        let mac = table.get(mac_key, "\"02:00:00:00:00:01\"").map_or(Some(mac), |value| station(&value));
        Some(HostAddress { ip: address?, mac: mac? })
    };
    let src = host("src", "\"10.0.0.1\"", "src_mac", MacAddr([2, 0, 0, 0, 0, 1]));
    let dst = host("dst", "\"10.0.0.2\"", "dst_mac", MacAddr([2, 0, 0, 0, 0, 2]));
    let verb = match table.get("verb", "\"write\"") {
        Some(value) => value.word(&["write", "send"]),
        None => Some("write"),
    };
    let verb = verb.map(|word| if word == "send" { Verb::Send } else { Verb::Write });
    let qps = table.number("qps", 1..=MAX_QPS, 16) as u32;
    let settle = Nanos::from_millis(table.number("settle_ms", 1..=60_000, 100));
    let start = Duration::from_millis(table.number("start_ms", 1..=600_000, 10_000));
    let fraction = |key, example, range, default| {
        table.get(key, example).map_or(Some(default), |value| value.fraction(range))
    };
    let resolution = fraction("resolution", "0.01", 0.000_1..=0.5, 0.01);
    let loss_step = fraction("loss_step", "0.1", 0.01..=0.1, 0.1);
    let trial = fraction("trial_s", "60", 0.001..=3600.0, 1.0);
    let latency_trial = fraction("latency_trial_s", "120", 0.001..=3600.0, trial.unwrap_or(1.0));
    let burst = fraction("burst_s", "2", 0.000_1..=60.0, trial.unwrap_or(1.0));
    let min_core = fraction("min_core", "0.9", 0.0..=1.0, 0.9);
    let repeats = table.number("repeats", 1..=99, 3) as u32;
    let max_rate = highest_load(&table);
    let command = table.get("command", "\"understudy run device.toml\"");
    let command = match &command {
        Some(value) => value.text().map(|text| Some(text.to_owned())),
        None => Some(None),
    };
    let sizes = table.get("frame_sizes", "[64, 1518]");
    let requested: Option<Vec<_>> = match &sizes {
        Some(value) => value
            .one_or_list()
            .iter()
            .map(|size| size.number(64..=9_000, 128).map(|size| size as u32))
            .collect(),
        None => Some(DEFAULT_SIZES.to_vec()),
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
        Some(Traffic {
            send: send?,
            receive: receive?,
            src: src?,
            dst: dst?,
            verb: verb?,
            qps,
            settle,
            start,
        })
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
        max_rate: max_rate?,
        resolution: resolution?,
        loss_step: loss_step?,
        trial_s: trial?,
        latency_trial_s: latency_trial?,
        burst_s: burst?,
        repeats,
        min_core: min_core?,
    };
    Some((settings, traffic?, command?))
}

/// Reads the highest load to offer: the rate of the link, or a packet rate. Without both, the generator's own
/// limit applies.
#[expect(clippy::option_option, reason = "invalid, absent, or a rate")]
fn highest_load(table: &Table<'_>) -> Option<Option<MaxRate>> {
    let bits = table.get("link_gbps", "10");
    let packets = table.get("packets_per_s", "1_000_000");
    match (bits, packets) {
        (None, None) => Some(None),
        (Some(bits), None) => {
            bits.fraction(0.000_1..=800.0).map(|gbps| Some(MaxRate::BitsPerS((gbps * 1e9) as u64)))
        }
        (None, Some(packets)) => {
            packets.number(1..=1_000_000_000, 1_000_000).map(|n| Some(MaxRate::PacketsPerS(n)))
        }
        (Some(_), Some(packets)) => {
            let problem = packets.problem("`link_gbps` and `packets_per_s` both set the highest rate");
            packets.add(
                problem
                    .label("the second")
                    .help("keep one; without both, the highest rate of the generator is measured"),
            );
            None
        }
    }
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
