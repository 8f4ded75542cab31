//! Packets of a running instance: which ones, the watches on its workers, and what they see as lines of JSON.

use super::Snapshot;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use dataplane::ControlOutput;
use dataplane::watch::{Sight, Wanted, Watch, Watcher, What, watch};
use rocev2::UDP_PORT;
use rocev2::ethernet::ethertype;
use rocev2::udp::PROTOCOL as UDP;
use serde::{Deserialize, Serialize};
use std::io::{self, ErrorKind, Read as _};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use switch::{Function, PortId};

/// Frames of a worker that may wait to be told; some megabyte
const ROOM: usize = 4096;
/// How often workers' rings are looked at
const LOOK: Duration = Duration::from_millis(5);

/// Which packets are asked for: those to a queue pair, or of a group; as they come in or as they leave.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Asked {
    pub(crate) qp: Option<u32>,
    /// At this host alone
    pub(crate) host: Option<IpAddr>,
    pub(crate) group: Option<u32>,
    /// Ends after so many
    pub(crate) count: Option<u64>,
}

/// A line of the answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Line {
    /// Who is watched
    Begin { ports: Vec<String> },
    /// A packet
    Packet(Occasion),
    /// It is over; so many packets were seen and could not be told of
    End { packets: u64, missed: u64 },
}

/// A packet that came in, and what left for it; or one that left by itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Occasion {
    /// From 1
    pub(crate) number: u64,
    pub(crate) worker: usize,
    /// Since 1970
    pub(crate) time_ns: u64,
    pub(crate) parts: Vec<Part>,
}

/// A frame that was seen, or what became of one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "what")]
pub(crate) enum Part {
    In { port: u16, len: u32, bytes: Hex },
    Out { port: u16, len: u32, bytes: Hex },
    Dropped { reason: String },
    Punted,
    Consumed,
}

/// Bytes, as hexadecimal digits
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub(crate) struct Hex(pub(crate) Vec<u8>);

impl From<Hex> for String {
    fn from(Hex(bytes): Hex) -> Self {
        use core::fmt::Write as _;
        bytes.iter().fold(Self::with_capacity(bytes.len() * 2), |mut text, byte| {
            // Writing to a string does not fail.
            _ = write!(text, "{byte:02x}");
            text
        })
    }
}

impl TryFrom<String> for Hex {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let digit = |digit: u8| char::from(digit).to_digit(16).map(|digit| digit as u8);
        let (pairs, []) = text.as_bytes().as_chunks::<2>() else { return Err("half a byte".into()) };
        let bytes = pairs.iter().map(|&[high, low]| Some(digit(high)? << 4 | digit(low)?)).collect();
        Option::map(bytes, Self).ok_or_else(|| "not hexadecimal".into())
    }
}

impl Part {
    fn of(sight: &Sight) -> Self {
        let bytes = || Hex(sight.bytes().to_vec());
        match sight.what {
            What::In(PortId(port)) => Self::In { port, len: sight.len, bytes: bytes() },
            What::Out(PortId(port)) => Self::Out { port, len: sight.len, bytes: bytes() },
            What::Dropped(reason) => Self::Dropped { reason: reason.name().into() },
            What::Punted => Self::Punted,
            What::Consumed => Self::Consumed,
        }
    }
}

/// The control thread's side: one trace at a time.
#[derive(Default)]
pub(super) struct Traces {
    /// Alive as long as somebody listens
    running: Option<Weak<()>>,
    /// What workers have not been told yet
    pending: Vec<(usize, Option<Box<Watch>>)>,
}

/// A trace, for who listens to it.
pub(super) struct Tracing {
    watchers: Vec<Watcher>,
    ports: Vec<String>,
    /// What the watches' time counts from
    began: SystemTime,
    count: Option<u64>,
    _running: Arc<()>,
}

impl Traces {
    /// Tells workers what they have to know.
    pub(super) fn attend<F: Function>(&mut self, out: &mut ControlOutput<'_, F>) {
        if self.running.as_ref().is_some_and(|running| running.strong_count() == 0) {
            self.running = None;
            self.pending = (0..out.workers()).map(|worker| (worker, None)).collect();
        }
        while let Some((worker, watch)) = self.pending.pop() {
            if let Err(full) = out.watch(worker, watch) {
                self.pending.push((worker, full.0));
                break;
            }
        }
    }

    /// Begins a trace of an instance that is as this says.
    pub(super) fn begin(&mut self, asked: &Asked, now: &Snapshot) -> Result<Tracing, String> {
        if self.running.as_ref().is_some_and(|running| running.strong_count() > 0) {
            return Err("another trace is running: there can be one at a time".into());
        }
        let queue_pairs = queue_pairs(asked, now)?;
        let wanted: Wanted = Arc::new(move |frame: &[u8]| {
            destination(frame).is_some_and(|(host, qpn)| {
                queue_pairs.iter().any(|(at, number)| *number == qpn && at.is_none_or(|at| at == host))
            })
        });
        let running = Arc::new(());
        self.running = Some(Arc::downgrade(&running));
        let began = system_time();
        let (ends, watchers): (Vec<_>, Vec<_>) =
            now.workers.iter().map(|_| watch(Arc::clone(&wanted), ROOM)).unzip();
        self.pending = (0..).zip(ends.into_iter().map(Some)).collect();
        let ports = now.ports.iter().map(|port| port.name.clone()).collect();
        Ok(Tracing { watchers, ports, began, count: asked.count, _running: running })
    }
}

#[allow(clippy::disallowed_methods, reason = "what is traced is told with the time of day")]
fn system_time() -> SystemTime {
    SystemTime::now()
}

/// Those that are asked for: the host, if it matters, and the number.
fn queue_pairs(asked: &Asked, now: &Snapshot) -> Result<Vec<(Option<IpAddr>, u32)>, String> {
    match (asked.qp, asked.group) {
        (Some(qp), None) => Ok(vec![(asked.host, qp)]),
        (None, Some(group)) => {
            let tables = now.told.tables.iter().filter(|table| table.name == "group");
            let groups: Vec<_> = tables.flat_map(|table| &table.rows).collect();
            let group = group.to_string();
            let found = groups.iter().find(|row| row.cells.first() == Some(&group));
            found.map(|row| row.queue_pairs.clone()).ok_or_else(|| {
                let there: Vec<_> =
                    groups.iter().filter_map(|row| Some(row.cells.first()?.as_str())).collect();
                match there.as_slice() {
                    [] => format!("there is no group {group}: this instance has none now"),
                    there => format!("there is no group {group}: there are {}", there.join(", ")),
                }
            })
        }
        _ => Err("a trace is of one queue pair or of one group".into()),
    }
}

/// Which queue pair a frame is for, at a glance: of frames in several segments only the first is there to be seen.
fn destination(frame: &[u8]) -> Option<(IpAddr, u32)> {
    let word = |at: usize| Some(u16::from_be_bytes(*frame.get(at..)?.first_chunk()?));
    let mut at = 12;
    while ethertype::is_tag(word(at)?) {
        at += 4;
    }
    let kind = word(at)?;
    at += 2;
    let (host, protocol, udp) = match kind {
        ethertype::IPV4 => {
            let host = Ipv4Addr::from(*frame.get(at + 16..)?.first_chunk::<4>()?);
            (IpAddr::V4(host), *frame.get(at + 9)?, at + usize::from(*frame.get(at)? & 0xf) * 4)
        }
        ethertype::IPV6 => {
            let host = Ipv6Addr::from(*frame.get(at + 24..)?.first_chunk::<16>()?);
            (IpAddr::V6(host), *frame.get(at + 6)?, at + 40)
        }
        _ => return None,
    };
    let [_, high, middle, low] = *frame.get(udp + 8 + 4..)?.first_chunk()?;
    let roce = protocol == UDP && word(udp + 2)? == UDP_PORT;
    roce.then(|| (host, u32::from_be_bytes([0, high, middle, low])))
}

impl Tracing {
    /// Tells all of it, until who listens says something, or goes away.
    pub(super) fn tell(
        mut self,
        listener: &UnixStream,
        mut tell: impl FnMut(&Line) -> io::Result<()>,
    ) -> io::Result<()> {
        listener.set_read_timeout(Some(LOOK))?;
        tell(&Line::Begin { ports: self.ports.clone() })?;
        let began = self.began.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
        let mut packets = 0;
        // Before the last one that was told, by worker
        let mut missed = vec![0; self.watchers.len()];
        let mut over = false;
        loop {
            for (worker, watcher) in self.watchers.iter_mut().enumerate() {
                // No longer than others may wait for
                for _ in 0..ROOM {
                    let Some(first) = watcher.pop() else { break };
                    let mut parts = vec![Part::of(&first)];
                    while let Some(next) = watcher.next_of(first.occasion) {
                        parts.push(Part::of(&next));
                    }
                    packets += 1;
                    missed[worker] = first.missed;
                    let time_ns = began + first.at.0;
                    tell(&Line::Packet(Occasion { number: packets, worker, time_ns, parts }))?;
                    over |= self.count == Some(packets);
                    if over {
                        break;
                    }
                }
                if over {
                    break;
                }
            }
            if over || self.watchers.iter().all(|watcher| watcher.is_over() && watcher.is_empty()) {
                break;
            }
            over = match (&mut &*listener).read(&mut [0; 64]) {
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => false,
                Err(error) if error.kind() == ErrorKind::Interrupted => false,
                Err(error) => return Err(error),
                Ok(0) => return Ok(()),
                Ok(_) => true,
            };
        }
        // Those behind the last of `count` packets are nothing to who asked for so many.
        let missed = if self.count == Some(packets) {
            missed.iter().sum()
        } else {
            self.watchers.iter().map(Watcher::missed).sum()
        };
        // Who reads that it is over may ask for the next one at once.
        drop(self);
        tell(&Line::End { packets, missed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use understudy_tests::captures;

    #[test]
    fn what_a_glance_tells_is_what_the_parser_says() {
        let mut seen = 0;
        for name in ["rc_write_4qp.pcap", "ipv6_ud_send_512.pcap", "vlan_rc_write_4096.pcap", "cm_rping.pcap"]
        {
            for frame in captures::frames(&captures::path(name)) {
                let rocev2::packet::Class::Roce(layout) = rocev2::classify(&frame) else { continue };
                let packet = rocev2::Packet::new(&frame, layout);
                let qp = switch::forward::counters::HostQp::destination_of(&packet);
                assert_eq!(destination(&frame), Some((qp.host(), qp.qpn().get())), "{name}");
                // Of a frame that is cut behind its BTH it says the same, and of one that is cut before nothing.
                for len in 0..frame.len().min(100) {
                    let said = destination(&frame[..len]);
                    assert!(said.is_none() || said == destination(&frame), "{name}");
                }
                seen += 1;
            }
        }
        assert!(seen > 100, "{seen}");
        assert_eq!(destination(&[0x81; 64]), None);
    }

    #[test]
    fn bytes_survive_their_text() {
        let hex = Hex((0..=255).collect());
        assert_eq!(Hex::try_from(String::from(hex.clone())), Ok(hex));
        for wrong in ["0", "0g", "+1"] {
            assert!(Hex::try_from(wrong.to_owned()).is_err(), "{wrong}");
        }
    }
}
