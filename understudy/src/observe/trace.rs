//! Packet trace of a running instance: the selection of packets, the watches on the workers, and the output
//! as lines of JSON.

use super::QueuePair;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use dataplane::watch::{FrameFilter, FrameRecord, SNAP_LEN, TraceAction, Watch, Watcher, watches};
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

/// Frames of one worker that may wait for the reader; a few megabytes
const RING_LEN: usize = 8192;
/// Interval at which the workers' rings are read
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Time for which a packet is held back, because other workers may still report earlier ones
const REORDER_WAIT: Nanos = Nanos::from_millis(10);
/// Maximum number of existing groups named in an error
const MAX_NAMED_GROUPS: usize = 20;

/// Selection of the packets to trace: those to one queue pair, those of one group, or all RoCEv2 packets; both
/// received and sent ones.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Request {
    pub(crate) qp: Option<u32>,
    /// Destination host, or with `all` either end; any if `None`
    pub(crate) host: Option<IpAddr>,
    pub(crate) group: Option<u32>,
    /// Number of packets after which the trace ends
    pub(crate) count: Option<u64>,
    /// Whether to trace the packets to all queue pairs
    #[serde(default)]
    pub(crate) all: bool,
    /// Bytes to copy of each frame; [`SNAP_LEN`] if `None`
    #[serde(default)]
    pub(crate) snaplen: Option<u32>,
}

/// A line of the output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Line {
    /// First line, with the names of the ports
    Begin { ports: Vec<String> },
    /// A packet
    Packet(TraceRecord),
    /// Last line: packets in the trace, and packets that were seen but lost because a ring was full
    End { packets: u64, missed: u64 },
}

/// A received packet and the frames sent for it, or a frame that the function sent by itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct TraceRecord {
    /// Number in the trace, from 1
    pub(crate) number: u64,
    /// Worker that handled it
    pub(crate) worker: usize,
    /// Time in ns since 1970
    pub(crate) time_ns: u64,
    /// The received frame, then what became of it; or sent frames
    pub(crate) parts: Vec<Part>,
    /// Frames sent before the last part that are not in `parts`, because there were too many
    #[serde(default)]
    pub(crate) left_out: u64,
}

/// Reason why a trace cannot start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TraceError {
    /// There can only be one trace at a time
    #[error("another trace is running; end it first, because there can only be one at a time")]
    Another,
    /// Nothing is selected, or more than one of the selections
    #[error("select either one queue pair, one group, or all packets")]
    Unclear,
    /// The group does not exist; `existing` are the existing groups
    #[error("there is no group {requested}: {}", list_groups(.existing))]
    NoSuchGroup { requested: u32, existing: Vec<u32> },
    /// The instance has no ports
    #[error("a controller has no packets; trace an instance of `understudy run`")]
    NoPorts,
    /// The run is over
    #[error("the instance is shutting down")]
    Ending,
}

impl TraceError {
    /// Returns the reason as one word, for programs.
    pub(super) const fn name(&self) -> &'static str {
        match self {
            Self::Another => "another_trace",
            Self::Unclear => "unclear",
            Self::NoSuchGroup { .. } => "no_such_group",
            Self::NoPorts => "no_ports",
            Self::Ending => "ending",
        }
    }
}

/// Returns a text that lists the first groups.
fn list_groups(existing: &[u32]) -> String {
    if existing.is_empty() {
        return "this instance has none now".into();
    }
    let first: Vec<_> = existing.iter().take(MAX_NAMED_GROUPS).map(u32::to_string).collect();
    let more = existing.len().saturating_sub(MAX_NAMED_GROUPS);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("existing groups are {}{more}", first.join(", "))
}

/// A frame, or what became of a received one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case", tag = "what")]
pub(crate) enum Part {
    In {
        /// Number of the port
        port: u16,
        /// Length of the frame, in bytes
        len: u32,
        /// First bytes of the frame, in hexadecimal digits
        bytes: Hex,
    },
    Out {
        /// Number of the port
        port: u16,
        /// Length of the frame, in bytes
        len: u32,
        /// First bytes of the frame, in hexadecimal digits
        bytes: Hex,
    },
    /// The frame was to be sent, but was lost
    Lost {
        /// Number of the port
        port: u16,
        /// Length of the frame, in bytes
        len: u32,
        /// First bytes of the frame, in hexadecimal digits
        bytes: Hex,
        /// Drop reason, as one word
        reason: String,
    },
    Dropped {
        /// Drop reason, as one word
        reason: String,
    },
    Punted,
    Consumed,
}

/// Bytes, serialised as hexadecimal digits
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(into = "String", try_from = "String")]
pub(crate) struct Hex(#[cfg_attr(test, schemars(with = "String"))] pub(crate) Vec<u8>);

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
    fn of(record: &FrameRecord) -> Self {
        let bytes = || Hex(record.bytes().to_vec());
        match record.action {
            TraceAction::In(PortId(port)) => Self::In { port, len: record.len, bytes: bytes() },
            TraceAction::Out(PortId(port)) => Self::Out { port, len: record.len, bytes: bytes() },
            TraceAction::Lost(PortId(port), reason) => {
                Self::Lost { port, len: record.len, bytes: bytes(), reason: reason.name().into() }
            }
            TraceAction::Dropped(reason) => Self::Dropped { reason: reason.name().into() },
            TraceAction::Punted => Self::Punted,
            TraceAction::Consumed => Self::Consumed,
        }
    }
}

/// The control thread's side of traces, of which one runs at a time.
#[derive(Default)]
pub(super) struct TraceControl {
    /// Alive while the client of the trace is connected
    running: Option<Weak<()>>,
    /// Commands that the workers have not received yet
    pending: Vec<(usize, Option<Box<Watch>>)>,
}

/// A running trace, for the thread that serves its client.
pub(super) struct RunningTrace {
    watchers: Vec<Watcher>,
    ports: Vec<String>,
    /// Time of day at which the watches' clocks are 0
    began: SystemTime,
    count: Option<u64>,
    _running: Arc<()>,
}

impl TraceControl {
    /// Sends pending commands to the workers.
    pub(super) fn send_pending<F: Function>(&mut self, out: &mut ControlOutput<'_, F>) {
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

    /// Starts a trace. `group` returns the queue pairs of a group.
    pub(super) fn start(
        &mut self,
        request: &Request,
        live: &Live<'_>,
        group: impl FnOnce(u32) -> Result<Vec<QueuePair>, TraceError>,
    ) -> Result<RunningTrace, TraceError> {
        if self.running.as_ref().is_some_and(|running| running.strong_count() > 0) {
            return Err(TraceError::Another);
        }
        let wanted = match (request.qp, request.group, request.all) {
            (Some(qp), None, false) => to_any(vec![(request.host, qp)]),
            (None, Some(number), false) => to_any(group(number)?),
            (None, None, true) => from_or_to(request.host),
            _ => return Err(TraceError::Unclear),
        };
        let snap_len = request.snaplen.map_or(SNAP_LEN, |bytes| bytes as usize);
        let running = Arc::new(());
        self.running = Some(Arc::downgrade(&running));
        let began = system_time();
        let (ends, watchers) = watches(live.workers().len(), &wanted, RING_LEN, snap_len);
        self.pending = (0..).zip(ends.into_iter().map(Some)).collect();
        let ports = live.ports().map(|port| port.name.clone()).collect();
        Ok(RunningTrace { watchers, ports, began, count: request.count, _running: running })
    }
}

#[allow(clippy::disallowed_methods, reason = "packets of a trace carry the time of day")]
fn system_time() -> SystemTime {
    SystemTime::now()
}

/// Selects packets to these queue pairs.
fn to_any(queue_pairs: Vec<QueuePair>) -> FrameFilter {
    Arc::new(move |frame: &[u8]| {
        ends(frame).is_some_and(|Ends { dst, qpn, .. }| {
            queue_pairs.iter().any(|(host, number)| *number == qpn && host.is_none_or(|host| host == dst))
        })
    })
}

/// Selects RoCEv2 packets from or to a host, or all of them.
fn from_or_to(host: Option<IpAddr>) -> FrameFilter {
    Arc::new(move |frame: &[u8]| {
        ends(frame).is_some_and(|Ends { src, dst, .. }| host.is_none_or(|host| host == src || host == dst))
    })
}

/// Addresses of a RoCEv2 packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ends {
    src: IpAddr,
    dst: IpAddr,
    qpn: u32,
}

/// Returns the hosts and the destination queue pair of a frame. Only the first segment of a segmented frame is
/// visible.
fn ends(frame: &[u8]) -> Option<Ends> {
    let word = |at: usize| Some(u16::from_be_bytes(*frame.get(at..)?.first_chunk()?));
    let mut at = 12;
    while ethertype::is_tag(word(at)?) {
        at += 4;
    }
    let kind = word(at)?;
    at += 2;
    let (src, dst, protocol, udp) = match kind {
        ethertype::IPV4 => {
            let host = |at: usize| Some(Ipv4Addr::from(*frame.get(at..)?.first_chunk::<4>()?).into());
            let udp = at + usize::from(*frame.get(at)? & 0xf) * 4;
            (host(at + 12)?, host(at + 16)?, *frame.get(at + 9)?, udp)
        }
        ethertype::IPV6 => {
            let host = |at: usize| Some(Ipv6Addr::from(*frame.get(at..)?.first_chunk::<16>()?).into());
            (host(at + 8)?, host(at + 24)?, *frame.get(at + 6)?, at + 40)
        }
        _ => return None,
    };
    let [_, high, middle, low] = *frame.get(udp + 8 + 4..)?.first_chunk()?;
    let roce = protocol == UDP && word(udp + 2)? == UDP_PORT;
    roce.then(|| Ends { src, dst, qpn: u32::from_be_bytes([0, high, middle, low]) })
}

/// State of a worker's ring: the time of its next packet, if there is one, and whether no further packet will
/// come.
#[derive(Clone, Copy)]
struct RingHead {
    at: Option<Nanos>,
    over: bool,
}

/// Returns the worker with the earliest packet. Returns `None` if there is no packet, or if a worker with an
/// empty ring may still report an earlier one: a worker reports its packets in order, and within
/// [`REORDER_WAIT`] unless the kernel deschedules it for longer.
fn earliest(heads: &[RingHead], now: Nanos) -> Option<usize> {
    let (at, worker) = heads.iter().zip(0..).filter_map(|(head, worker)| Some((head.at?, worker))).min()?;
    let all_known = heads.iter().all(|head| head.at.is_some() || head.over);
    (all_known || now.since(at) >= REORDER_WAIT).then_some(worker)
}

/// Progress of a trace.
struct Progress {
    packets: u64,
    /// Packets lost before the last one that was reported, by worker
    missed: Vec<u64>,
}

impl RunningTrace {
    /// Writes the whole trace with `write_line`, until the client sends a byte or disconnects.
    pub(super) fn write(
        mut self,
        listener: &UnixStream,
        mut write_line: impl FnMut(&Line) -> io::Result<()>,
    ) -> io::Result<()> {
        listener.set_read_timeout(Some(POLL_INTERVAL))?;
        write_line(&Line::Begin { ports: self.ports.clone() })?;
        let mut progress = Progress { packets: 0, missed: vec![0; self.watchers.len()] };
        let mut ends = false;
        loop {
            // At the end, what the rings hold is reported without holding packets back.
            self.write_available(&mut progress, ends, &mut write_line)?;
            let all = self.count == Some(progress.packets);
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
        // If the trace ends at `count` packets, losses after the last of them do not concern its client.
        let missed = if self.count == Some(progress.packets) {
            progress.missed.iter().sum()
        } else {
            self.watchers.iter().map(Watcher::missed).sum()
        };
        // The client may start another trace as soon as it reads that this one has ended.
        drop(self);
        write_line(&Line::End { packets: progress.packets, missed })
    }

    /// Reports packets in the order of their time, and not more than the rings hold, so that the client is
    /// checked in between. If `ends` is true, no packet is held back.
    fn write_available(
        &mut self,
        progress: &mut Progress,
        ends: bool,
        write_line: &mut impl FnMut(&Line) -> io::Result<()>,
    ) -> io::Result<()> {
        let began = self.began.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
        // The order matters: a watcher that is over before it is read has reported everything, and what was
        // seen before `now` is in the rings after `now` is read.
        let now = self.watchers.first().map_or(Nanos::ZERO, Watcher::now);
        let head = |watcher: &Watcher| {
            let over = ends || watcher.is_over();
            RingHead { over, at: watcher.next_at() }
        };
        let mut heads: Vec<_> = self.watchers.iter().map(head).collect();
        for _ in 0..RING_LEN * self.watchers.len() {
            let Some(worker) = earliest(&heads, now) else { break };
            // Packets after the request to end are not part of the trace.
            if ends && heads[worker].at > Some(now) {
                break;
            }
            let watcher = &mut self.watchers[worker];
            let Some(first) = watcher.pop() else { break };
            let (mut parts, mut left_out) = (vec![Part::of(&first)], first.omitted);
            while let Some(next) = watcher.next_of(first.event_id) {
                parts.push(Part::of(&next));
                left_out = next.omitted;
            }
            heads[worker] = head(watcher);
            progress.packets += 1;
            progress.missed[worker] = first.missed;
            let time_ns = began + first.at.0;
            write_line(&Line::Packet(TraceRecord {
                number: progress.packets,
                worker,
                time_ns,
                parts,
                left_out,
            }))?;
            if self.count == Some(progress.packets) {
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
    fn the_ends_agree_with_the_full_parser() {
        let mut seen = 0;
        for name in ["rc_write_4qp.pcap", "ipv6_ud_send_512.pcap", "vlan_rc_write_4096.pcap", "cm_rping.pcap"]
        {
            for frame in captures::frames(&captures::path(name)) {
                let rocev2::packet::Class::Roce(layout) = rocev2::classify(&frame) else { continue };
                let packet = rocev2::Packet::new(&frame, layout);
                let qp = switch::forward::counters::HostQp::destination_of(&packet);
                let expected = Ends { src: packet.src(), dst: qp.host(), qpn: qp.qpn().get() };
                assert_eq!(ends(&frame), Some(expected), "{name}");
                let (some, other) = (from_or_to(Some(expected.src)), from_or_to(Some([9, 9, 9, 9].into())));
                assert!(some(&frame) && from_or_to(Some(expected.dst))(&frame) && from_or_to(None)(&frame));
                assert!(!other(&frame) && to_any(vec![(None, expected.qpn)])(&frame));
                // A frame that is truncated before the end of its BTH has no destination; after it, the same one.
                let is_found = |len: usize| ends(&frame[..len]).is_some();
                let shortest = (0..=frame.len()).find(|len| is_found(*len)).unwrap();
                assert!(shortest <= layout.payload(), "{name}");
                assert!((shortest..=frame.len()).all(|len| ends(&frame[..len]) == ends(&frame)), "{name}");
                seen += 1;
            }
        }
        assert!(seen > 100, "{seen}");
        assert_eq!(ends(&[0x81; 64]), None);
        assert!(!from_or_to(None)(&[0x81; 64]));
    }

    #[test]
    fn packets_of_several_workers_are_reported_in_order_of_time() {
        let ready = |at| RingHead { at: Some(Nanos::from_millis(at)), over: false };
        let (empty, gone) = (RingHead { at: None, over: false }, RingHead { at: None, over: true });
        let at = |now, heads: &[RingHead]| earliest(heads, Nanos::from_millis(now));
        assert_eq!(at(50, &[]), None);
        assert_eq!(at(50, &[empty, gone]), None);
        // All rings have a packet: there is nothing to wait for, and the lowest worker comes first if times
        // are equal.
        assert_eq!(at(50, &[ready(50)]), Some(0));
        assert_eq!(at(50, &[ready(50), ready(49), ready(48)]), Some(2));
        assert_eq!(at(50, &[ready(50), ready(49), ready(49)]), Some(1));
        // A worker with an empty ring is waited for, but only for a time; one that has ended is not.
        assert_eq!(at(50, &[ready(45), empty, ready(41)]), None);
        assert_eq!(at(51, &[ready(45), empty, ready(41)]), Some(2));
        assert_eq!(at(50, &[ready(45), gone, ready(46)]), Some(0));
    }

    #[test]
    fn a_request_for_an_unknown_group_lists_existing_groups() {
        let text = |existing| TraceError::NoSuchGroup { requested: 9, existing }.to_string();
        assert_eq!(text(vec![]), "there is no group 9: this instance has none now");
        assert_eq!(text(vec![1, 2]), "there is no group 9: existing groups are 1, 2");
        let many = text((10..1000).collect());
        assert!(many.ends_with("existing groups are 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29 and 970 more"), "{many}");
    }

    #[test]
    fn bytes_are_unchanged_by_a_round_trip_through_text() {
        let hex = Hex((0..=255).collect());
        assert_eq!(Hex::try_from(String::from(hex.clone())), Ok(hex));
        for wrong in ["0", "0g", "+1"] {
            assert!(Hex::try_from(wrong.to_owned()).is_err(), "{wrong}");
        }
    }
}
