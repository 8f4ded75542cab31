//! Reads the table `[pktgen]`: a packet generator, its receiver, and its streams.

mod stream;

use crate::functions::function::File;
use ::pktgen::profile::MAX_STREAMS;
use ::pktgen::{Profile, ProfileError};
use core::ops::Range;
use dataplane::config::Device;
use onepipe::Timestamp;
use settings::declare::{boolean, millis, number, power_of_two, special, tables, whole};
use settings::port::{Ports, ReadPort};
use settings::report::Problem;
use settings::tree::{Table, Value};
use stream::ReadStream;
use switch::{Nanos, PortId};

/// Header of a stream
const STREAM_HEADER: &str = "[[pktgen.stream]]";
/// Packets that a ring device holds between its two ends, whatever its number of descriptors
const RING_CAPACITY: u32 = 1024;
/// Longest duration, in seconds: one day
const MAX_DURATION_S: f64 = 86_400.0;

settings::table! {
    /// Packet generator: a sender, and a receiver that checks what arrives
    pub(crate) enum Keys "[pktgen]";
    /// Port from which streams are sent
    send: () = special("name of a port") => required() example("out");
    /// Port at which the packets arrive and are checked
    receive: () = special("name of a port") => optional("nothing is checked") example("in");
    /// Whether requests that arrive are answered
    respond: bool = boolean() => default(false);
    /// Seed of all random choices
    seed: u64 = whole(0..=i64::MAX as u64) => default(1);
    /// Time for which packets are sent
    duration_s: f64 = number(0.001..=MAX_DURATION_S).unit("s") => optional("until each stream has sent its `packets`") example(10);
    /// Longest wait for the last packets and responses after sending has ended
    drain_ms: Nanos = millis(0..=60_000) => default(100);
    /// Longest interruption of the worker after which streams still send what came due meanwhile
    catch_up_ms: Nanos = millis(0..=10_000) => default(10);
    /// Packets of its queue pair by which a packet may be overtaken and still count as received; a power of two
    window: u32 = power_of_two(64..=1 << 16) => default(1024);
    /// Streams, which are sent at the same time
    stream: () = tables(&stream::Keys::TABLE) => required();
}

pub(super) fn read(table: &Table<'_>, ports: &Ports) -> Option<Profile> {
    let before = table.problems().count();
    let sends = table.value(Keys::send);
    let send_port = sends.as_ref().and_then(|value| ports.find(value));
    let receive = table.value(Keys::receive);
    let receive_port = receive.as_ref().and_then(|value| ports.find(value));
    let (respond, responds) = (table.value(Keys::respond), table.read(Keys::respond));
    let (seed, window) = (table.read(Keys::seed), table.read(Keys::window));
    let duration = table.read(Keys::duration_s).map(|seconds| Nanos((seconds * 1e9) as u64));
    let (drain, catch_up) = (table.read(Keys::drain_ms), table.read(Keys::catch_up_ms));
    if let (Some(value), true, None) = (&respond, responds, &receive) {
        let problem = value.problem("`respond` needs `receive`");
        value.add(
            problem
                .label("no receive port")
                .help("add `receive = \"in\"`, the port at which requests arrive, or remove `respond`"),
        );
    }
    for (value, port) in [(&sends, send_port), (&receive, receive_port)] {
        if let (Some(value), Some(port)) = (value, port) {
            check_queues(value, &ports.list[port.index()]);
        }
    }
    // Packets that wait in the worker and in the devices
    let descriptors =
        |port: Option<PortId>| port.map_or(0, |port| u32::from(ports.list[port.index()].descriptors));
    let queued =
        dataplane::TX_QUEUE as u32 + (descriptors(send_port) + descriptors(receive_port)).max(RING_CAPACITY);
    let mtu = send_port.map(|port| ports.list[port.index()].mtu);
    let streams = streams(table, receive.is_some(), mtu);
    let (spans, streams): (Vec<_>, Vec<_>) =
        streams?.into_iter().map(|ReadStream { spans, stream }| (spans, stream)).unzip();
    let profile = Profile {
        seed,
        send: send_port?,
        receive: if receive.is_some() { Some(receive_port?) } else { None },
        respond: responds && receive.is_some(),
        duration,
        drain,
        catch_up,
        window,
        queued,
        epoch: Timestamp::default(),
        streams,
    };
    if table.problems().count() > before {
        // A value that could not be read may be the cause of any problem of the whole.
        return None;
    }
    if let Err(error) = profile.check() {
        table.problems().add(explain(&error, &profile, &spans, table));
        return None;
    }
    Some(profile)
}

/// Reports a port with several receive queues that may change the order of a queue pair's packets, which the receiver
/// checks.
fn check_queues(value: &Value<'_>, port: &ReadPort) {
    let queues = match port.device.as_ref().map(|device| &device.device) {
        Some(Device::Pcap { rx, .. }) => rx.len(),
        Some(Device::AfPacket { .. } | Device::Tap { .. } | Device::Vhost { .. }) => {
            usize::from(port.rx_queues)
        }
        // Generators and forwarders send a queue pair's packets through one queue, and a NIC keeps them in one.
        _ => 1,
    };
    if queues > 1 {
        let name = value.text_if_any().unwrap_or_default();
        let problem = value.problem(format!("port `{name}` has {queues} receive queues"));
        value.add(problem.label("queues do not keep the order").help(
            "write `rx_queues = 1` for that port, or one capture: the receiver checks the order of \
                 packets",
        ));
    }
}

/// Reports more workers than have something to do, or than a port has send queues for, and adds the rings between workers to
/// the profile's queues.
pub(super) fn check_workers(profile: &mut Profile, file: &File<'_>) {
    let workers = file.runtime.cpus.len();
    let reject = |why: &str, help: &str| {
        file.runtime.reject_workers(why, "too many workers", help, file.root.problems());
    };
    if let Err(error @ ProfileError::Workers { most, .. }) = profile.check_workers(workers) {
        let list = format!("list {most} CPU{} in `workers`", if most == 1 { "" } else { "s" });
        let help = match profile.undivided(workers).next() {
            Some((stream, _, why)) => {
                format!("{list}: `{}` is at one worker, because {why}", profile.streams[stream].name)
            }
            None => format!("{list}, or raise `qps`"),
        };
        reject(&error.problem(), &help);
    }
    if workers > 1 {
        // Packets also wait in the ring between two workers.
        profile.queued += (file.runtime.handoff_ring + dataplane::INPUT_CHUNK) as u32;
        if let Err(error) = profile.check() {
            reject(&error.problem(), &error.remedy());
        }
    }
    let responding = profile.receive.filter(|receive| profile.respond && *receive != profile.send);
    for port in [Some(profile.send), responding].into_iter().flatten() {
        let port = &file.ports.list[port.index()];
        let queues = usize::from(port.rx_queues.max(1));
        // Each worker waits for room in a queue of its own.
        let (send_queues, help) = match port.device.as_ref().map(|device| &device.device) {
            Some(Device::Ring | Device::Memif { .. } | Device::AfXdp { .. }) => {
                (queues, format!("write `rx_queues = {workers}` for that port"))
            }
            Some(
                Device::Pcap { .. } | Device::AfPacket { .. } | Device::Tap { .. } | Device::Vhost { .. },
            ) => (1, "write `workers = [1]`, or use another device".into()),
            _ => continue,
        };
        if send_queues < workers {
            let name = port.display_name();
            let s = if send_queues == 1 { "" } else { "s" };
            reject(&format!("{name} has {send_queues} send queue{s} for {workers} workers"), &help);
        }
    }
}

fn streams(table: &Table<'_>, received: bool, mtu: Option<u16>) -> Option<Vec<ReadStream>> {
    let tables = table.tables(Keys::stream)?;
    if tables.is_empty() {
        let problem = table.problem("[pktgen] has no stream").label("no [[pktgen.stream]]");
        table.problems().add(problem.help(format!(
            "add one, such as\n\n{STREAM_HEADER}\nverb = \"write\"\nsize = 64\nsrc = \"10.0.0.1\"\ndst = \"10.0.0.2\"\nrate = {{ packets_per_s = 1_000_000 }}"
        )));
        return None;
    }
    if let Some(excess) = tables.get(MAX_STREAMS) {
        let problem = excess.problem(format!("[pktgen] has {} streams", tables.len()));
        let problem = problem.label("the first one too many");
        table.problems().add(problem.help(format!("keep at most {MAX_STREAMS}")));
        for table in tables {
            table.discard();
        }
        return None;
    }
    let mut names: Vec<(String, Range<usize>)> = Vec::new();
    let read: Vec<_> = tables
        .into_iter()
        .enumerate()
        .map(|(index, table)| stream::read(table, index, received, mtu, &mut names))
        .collect();
    read.into_iter().collect()
}

/// Explains why a profile is invalid, at the key that causes it.
fn explain(error: &ProfileError, profile: &Profile, spans: &[stream::Spans], table: &Table<'_>) -> Problem {
    // The position in the file names the stream.
    let text = error.problem();
    let at = |stream: usize| &spans[stream];
    let name = |stream: usize| &profile.streams[stream].name;
    match *error {
        ProfileError::PsnsCollide { first, second, qpn, host } => {
            let (one, other) = (&profile.streams[first], &profile.streams[second]);
            let free = profile.streams.iter().map(|s| s.first_qpn.get() + s.qps).max().unwrap_or(2);
            Problem::at(
                at(second).qpn(),
                format!(
                    "streams `{}` and `{}` both use queue pair {qpn} of {host}: their PSNs collide",
                    one.name, other.name
                ),
            )
            .label("these queue pairs are taken")
            .also(at(first).qpn(), "by this stream")
            .help(format!("give each stream its own queue pairs: write `first_qpn = {free:#x}` here"))
        }
        ProfileError::StampDoesNotFit { stream, size, needed } => Problem::at(
            at(stream).latency.clone().unwrap_or_else(|| at(stream).size()),
            format!("the timestamp, {needed} bytes, does not fit into a payload of {size}"),
        )
        .label("no room")
        .help(format!("write `size = {needed}` or more for `{}`, or `latency = false`", name(stream))),
        ProfileError::NoPayloadToStamp { stream, .. } => {
            let answered = profile.streams[stream].verb.is_request();
            let help = if answered {
                "remove `latency`: these requests are answered, and `outstanding` measures the round trip"
            } else {
                "remove `latency`"
            };
            let at = at(stream).latency.clone().unwrap_or_else(|| at(stream).header.clone());
            Problem::at(at, text).label("no payload").help(help)
        }
        ProfileError::SameHost { stream, .. } => {
            Problem::at(at(stream).dst(), text).label("the same as `src`").help(
                "give `dst` its own address, such as `dst = \"10.0.0.2\"`, which separates requests from \
             responses",
            )
        }
        ProfileError::ReadSizes { stream } => {
            Problem::at(at(stream).size(), text).label("several sizes").help(
                "keep one, and write a stream for each of the others: a READ takes as many PSNs as its \
             response has packets",
            )
        }
        ProfileError::NoAckRequested { stream, .. } => Problem::at(at(stream).outstanding(), text)
            .label("would wait for ever")
            .help("write `ack_every = 1`, or a number up to `outstanding`"),
        ProfileError::CasOutstanding { stream } => {
            Problem::at(at(stream).outstanding(), text).label("too many").help(
                "write `outstanding = 1`: the next request depends on the response; use more queue pairs for \
             more requests in flight",
            )
        }
        ProfileError::NeverEnds { stream, .. } => Problem::at(at(stream).malformed(), text)
            .label("all packets")
            .help("write `malformed = 0.99` or less, or replace `packets` by `duration_s`"),
        ProfileError::PsnRangeTooLarge { stream, step, .. } => {
            Problem::at(at(stream).step(), text).label(format!("{step} PSNs each")).help(
                "write a smaller `window` or `outstanding`, or use fewer PSNs, by a smaller `coalesce` or \
                 a smaller READ; there are 2^24 PSNs",
            )
        }
        ProfileError::Window { stream, packets, .. } => {
            Problem::at(at(stream).outstanding(), text).label(format!("{packets} packets")).help(format!(
                "write `window = {}` for `[pktgen]`, a smaller `outstanding`, or shorter messages",
                packets.next_power_of_two()
            ))
        }
        ProfileError::NotAnswered { stream, .. } => Problem::at(at(stream).outstanding(), text)
            .label("would wait for ever")
            .help("remove `outstanding`"),
        ProfileError::MixedIpVersions { stream } => Problem::at(at(stream).header.clone(), text)
            .label("IPv4 and IPv6")
            .help("write `src` and `dst` of the same IP version"),
        ProfileError::Qpns { stream, .. } => Problem::at(at(stream).qpn(), text).label("out of range").help(
            "lower `first_qpn` or `qps`: numbers have 24 bits, and the first two and the last are reserved",
        ),
        ProfileError::Value { stream: Some(stream), .. } => {
            let stamped = Problem::at(at(stream).size(), format!("`{}`: {text}", name(stream)));
            stamped.label("out of range").help(error.remedy())
        }
        ProfileError::Qps(_)
        | ProfileError::Workers { .. }
        | ProfileError::Memory { .. }
        | ProfileError::Streams(_)
        | ProfileError::NoReceivePort
        | ProfileError::Value { stream: None, .. } => table.problem(text).label("here").help(error.remedy()),
    }
}
