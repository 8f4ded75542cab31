//! Packets of a running instance: which ones, the watches on its workers, and what they see as lines of JSON.

use super::QueuePair;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use dataplane::watch::{Sight, Wanted, Watch, Watcher, What, watches};
use dataplane::{ControlOutput, Live};
use rocev2::UDP_PORT;
use rocev2::ethernet::ethertype;
use rocev2::udp::PROTOCOL as UDP;
use serde::{Deserialize, Serialize};
use std::io::{self, ErrorKind, Read as _};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use switch::{Function, Nanos, PortId};

/// Frames of a worker that may wait to be told; some megabytes
const ROOM: usize = 8192;
/// How often workers' rings are looked at
const LOOK: Duration = Duration::from_millis(5);
/// How long a packet is held back for the sake of earlier ones that other workers may still have
const WAIT: Nanos = Nanos::from_millis(10);
/// Groups that are named to who asks for one that is not there
const NAMED: usize = 20;

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
    /// Frames that left before the last part, and are none: there were too many
    #[serde(default)]
    pub(crate) left_out: u64,
}

/// Why there is no trace.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoTrace {
    /// There is one at a time
    #[error("another trace is running: there can be one at a time")]
    Another,
    /// Neither a queue pair nor a group is named, or both are
    #[error("a trace is of one queue pair or of one group")]
    Unclear,
    /// The group is not there; these are
    #[error("there is no group {asked}: {}", named(.there))]
    NoSuchGroup { asked: u32, there: Vec<u32> },
    /// The run is over
    #[error("the instance is ending")]
    Ending,
}

impl NoTrace {
    /// In a word, for programs
    pub(super) const fn name(&self) -> &'static str {
        match self {
            Self::Another => "another_trace",
            Self::Unclear => "unclear",
            Self::NoSuchGroup { .. } => "no_such_group",
            Self::Ending => "ending",
        }
    }
}

/// Groups, the first of them by name.
fn named(there: &[u32]) -> String {
    if there.is_empty() {
        return "this instance has none now".into();
    }
    let first: Vec<_> = there.iter().take(NAMED).map(u32::to_string).collect();
    let more = there.len().saturating_sub(NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("there are {}{more}", first.join(", "))
}

/// A frame that was seen, or what became of one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "what")]
pub(crate) enum Part {
    In {
        port: u16,
        len: u32,
        bytes: Hex,
    },
    Out {
        port: u16,
        len: u32,
        bytes: Hex,
    },
    /// It was to leave there, and did not
    Lost {
        port: u16,
        len: u32,
        bytes: Hex,
        reason: String,
    },
    Dropped {
        reason: String,
    },
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
            What::Lost(PortId(port), reason) => {
                Self::Lost { port, len: sight.len, bytes: bytes(), reason: reason.name().into() }
            }
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

    /// Begins a trace. `group` knows the queue pairs of groups.
    pub(super) fn begin(
        &mut self,
        asked: &Asked,
        live: &Live<'_>,
        group: impl FnOnce(u32) -> Result<Vec<QueuePair>, NoTrace>,
    ) -> Result<Tracing, NoTrace> {
        if self.running.as_ref().is_some_and(|running| running.strong_count() > 0) {
            return Err(NoTrace::Another);
        }
        let queue_pairs = match (asked.qp, asked.group) {
            (Some(qp), None) => vec![(asked.host, qp)],
            (None, Some(number)) => group(number)?,
            _ => return Err(NoTrace::Unclear),
        };
        let wanted: Wanted = Arc::new(move |frame: &[u8]| {
            destination(frame).is_some_and(|(host, qpn)| {
                queue_pairs.iter().any(|(at, number)| *number == qpn && at.is_none_or(|at| at == host))
            })
        });
        let running = Arc::new(());
        self.running = Some(Arc::downgrade(&running));
        let began = system_time();
        let (ends, watchers) = watches(live.workers().len(), &wanted, ROOM);
        self.pending = (0..).zip(ends.into_iter().map(Some)).collect();
        let ports = live.ports().map(|port| port.name.clone()).collect();
        Ok(Tracing { watchers, ports, began, count: asked.count, _running: running })
    }
}

#[allow(clippy::disallowed_methods, reason = "what is traced is told with the time of day")]
fn system_time() -> SystemTime {
    SystemTime::now()
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

/// What is known of a worker's next packet: when it came, if it is there; and whether one that is not there will not come.
#[derive(Clone, Copy)]
struct Head {
    at: Option<Nanos>,
    over: bool,
}

/// Whose packet is the next by time. `None` if there is none, or if a worker of which nothing is there may yet have an earlier
/// one: a worker tells of its packets in their order, and within [`WAIT`], unless the kernel keeps it from its work for longer.
fn earliest(heads: &[Head], now: Nanos) -> Option<usize> {
    let (at, worker) = heads.iter().zip(0..).filter_map(|(head, worker)| Some((head.at?, worker))).min()?;
    let all_known = heads.iter().all(|head| head.at.is_some() || head.over);
    (all_known || now.since(at) >= WAIT).then_some(worker)
}

/// How far it has been told
struct Told {
    packets: u64,
    /// Before the last one that was told, by worker
    missed: Vec<u64>,
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
        let mut told = Told { packets: 0, missed: vec![0; self.watchers.len()] };
        let mut ends = false;
        loop {
            // What is there when it ends is told: nothing is waited for any more.
            self.tell_what_is_there(&mut told, ends, &mut tell)?;
            let all = self.count == Some(told.packets);
            if ends || all || self.watchers.iter().all(|watcher| watcher.is_over() && watcher.is_empty()) {
                break;
            }
            ends = match (&mut &*listener).read(&mut [0; 64]) {
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => false,
                Err(error) if error.kind() == ErrorKind::Interrupted => false,
                Err(error) => return Err(error),
                Ok(0) => return Ok(()),
                Ok(_) => true,
            };
        }
        // Those behind the last of `count` packets are nothing to who asked for so many.
        let missed = if self.count == Some(told.packets) {
            told.missed.iter().sum()
        } else {
            self.watchers.iter().map(Watcher::missed).sum()
        };
        // Who reads that it is over may ask for the next one at once.
        drop(self);
        tell(&Line::End { packets: told.packets, missed })
    }

    /// Tells of packets in the order of their time, and for no longer than the listener may wait for. If it `ends`, none is
    /// held back.
    fn tell_what_is_there(
        &mut self,
        told: &mut Told,
        ends: bool,
        tell: &mut impl FnMut(&Line) -> io::Result<()>,
    ) -> io::Result<()> {
        let began = self.began.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
        // In this order: who was over before it was looked at has told all. And what was seen by now is there after now.
        let now = self.watchers.first().map_or(Nanos::ZERO, Watcher::now);
        let head = |watcher: &Watcher| {
            let over = ends || watcher.is_over();
            Head { over, at: watcher.next_at() }
        };
        let mut heads: Vec<_> = self.watchers.iter().map(head).collect();
        for _ in 0..ROOM * self.watchers.len() {
            let Some(worker) = earliest(&heads, now) else { break };
            // What came after it was told to end is nobody's business.
            if ends && heads[worker].at > Some(now) {
                break;
            }
            let watcher = &mut self.watchers[worker];
            let Some(first) = watcher.pop() else { break };
            let (mut parts, mut left_out) = (vec![Part::of(&first)], first.left_out);
            while let Some(next) = watcher.next_of(first.occasion) {
                parts.push(Part::of(&next));
                left_out = next.left_out;
            }
            heads[worker] = head(watcher);
            told.packets += 1;
            told.missed[worker] = first.missed;
            let time_ns = began + first.at.0;
            tell(&Line::Packet(Occasion { number: told.packets, worker, time_ns, parts, left_out }))?;
            if self.count == Some(told.packets) {
                break;
            }
        }
        Ok(())
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
    fn packets_of_several_workers_are_told_in_the_order_of_their_time() {
        let there = |at| Head { at: Some(Nanos::from_millis(at)), over: false };
        let (silent, gone) = (Head { at: None, over: false }, Head { at: None, over: true });
        let at = |now, heads: &[Head]| earliest(heads, Nanos::from_millis(now));
        assert_eq!(at(50, &[]), None);
        assert_eq!(at(50, &[silent, gone]), None);
        // Of all of them something is there: nothing is waited for, and the first worker is first if they are equal.
        assert_eq!(at(50, &[there(50)]), Some(0));
        assert_eq!(at(50, &[there(50), there(49), there(48)]), Some(2));
        assert_eq!(at(50, &[there(50), there(49), there(49)]), Some(1));
        // Who has nothing yet is waited for, and not for ever; who will have nothing is not.
        assert_eq!(at(50, &[there(45), silent, there(41)]), None);
        assert_eq!(at(51, &[there(45), silent, there(41)]), Some(2));
        assert_eq!(at(50, &[there(45), gone, there(46)]), Some(0));
    }

    #[test]
    fn who_asks_for_a_group_that_is_not_there_hears_of_others() {
        let said = |there| NoTrace::NoSuchGroup { asked: 9, there }.to_string();
        assert_eq!(said(vec![]), "there is no group 9: this instance has none now");
        assert_eq!(said(vec![1, 2]), "there is no group 9: there are 1, 2");
        let many = said((10..1000).collect());
        assert!(many.ends_with("there are 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29 and 970 more"), "{many}");
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
