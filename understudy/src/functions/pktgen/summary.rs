//! Describes a packet generator.

use super::report::describe_rate;
use dataplane::config::Port;
use pktgen::{Profile, Stream};

pub(super) fn lines(profile: &Profile, ports: &[Port]) -> Vec<(&'static str, String)> {
    let send = &ports[profile.send.index()].name;
    let receive = match profile.receive {
        Some(port) if profile.respond => format!("; checked and answered at {}", ports[port.index()].name),
        Some(port) => format!("; checked at {}", ports[port.index()].name),
        None => "; not received".into(),
    };
    let time = match profile.duration {
        Some(time) => format!(", for {} s", time.0 as f64 / 1e9),
        None if profile.streams.iter().all(|stream| stream.packets.is_some()) => String::new(),
        None => ", until interrupted".into(),
    };
    let first = ("pktgen", format!("sends through {send}{time}{receive}; seed {}", profile.seed));
    core::iter::once(first).chain(profile.streams.iter().map(|stream| ("", line(stream)))).collect()
}

/// Notes streams that one of several workers has.
pub(super) fn notes(profile: &Profile, workers: usize) -> Vec<String> {
    if workers == 1 {
        return Vec::new();
    }
    let note = |(stream, worker, why): (usize, usize, &str)| {
        let name = &profile.streams[stream].name;
        format!("worker {worker} alone sends and checks `{name}`: {why}")
    };
    profile.undivided(workers).map(note).collect()
}

/// Returns the memory for the state of queue pairs, which packet buffers do not include.
pub(super) fn state(profile: &Profile) -> String {
    format!(", and {:.1} MB for the state of queue pairs", pktgen::Pktgen::state_bytes(profile) as f64 / 1e6)
}

fn line(stream: &Stream) -> String {
    let sizes: Vec<_> = stream.sizes.iter().map(u32::to_string).collect();
    let sizes = if sizes.is_empty() { String::new() } else { format!(" of {} B", sizes.join(", ")) };
    let packets = stream.packets.map(|packets| format!(", {packets} packets")).unwrap_or_default();
    let waits = stream.outstanding.map(|most| format!(", {most} outstanding")).unwrap_or_default();
    let qps = if stream.qps == 1 { "1 queue pair".into() } else { format!("{} queue pairs", stream.qps) };
    let (name, verb, rate) = (&stream.name, stream.verb.name(), describe_rate(stream.rate));
    format!("`{name}`: {verb}{sizes} on {qps} of {}, {rate}{packets}{waits}", stream.dst.ip)
}
