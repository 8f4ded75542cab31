//! The profile of a run: streams, each of one verb between two hosts, on its own queue pairs, at its own
//! rate.

use crate::error::ProfileError;
pub use crate::limits::{
    MAX_OUTSTANDING, MAX_QPS, MAX_RESPONSE_PACKETS, MAX_SLOTS, MAX_STREAMS, MAX_WINDOW, STAMP_LEN,
};
use crate::pace::Rate;
use crate::part::{Division, undivided};
use core::net::IpAddr;
use onepipe::{OnePipe, Timestamp};
use rocev2::ethernet::MacAddr;
use rocev2::{MAX_PAYLOAD, Psn, Qpn};
use switch::{Nanos, PortId, Probability};

/// Configuration of a generator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Seed of all random choices
    pub seed: u64,
    /// Port on which requests are sent
    pub send: PortId,
    /// Port on which requests are received and checked; `None` if they are only sent. It may equal `send` if
    /// that port loops frames back
    pub receive: Option<PortId>,
    /// Whether requests are answered on the port where they are received
    pub respond: bool,
    /// Time for which streams send; without it, until each stream has sent its `packets`, or until
    /// [`Command::End`](crate::Command::End)
    pub duration: Option<Nanos>,
    /// Longest wait for the last packets and responses after sending has ended
    pub drain: Nanos,
    /// Longest interruption of the worker after which streams still send what came due meanwhile; what is
    /// older is forfeited
    pub catch_up: Nanos,
    /// Packets of its queue pair by which a packet may be overtaken and still count as received: a power of
    /// two from 64 to [`MAX_WINDOW`]
    pub window: u32,
    /// Capacity of this machine's own queues on the way out and back in, in frames. It bounds how many
    /// packets of a queue pair are in flight on this machine if none waits for a response
    pub queued: u32,
    /// 1Pipe timestamp at the run's time 0
    pub epoch: Timestamp,
    /// Streams: 1 to [`MAX_STREAMS`]
    pub streams: Vec<Stream>,
}

/// Half of the PSN space: a packet that is further behind cannot be told from one that is ahead
const HALF_OF_PSNS: u64 = 1 << 23;
/// Largest burst in packets if the profile states none
const MAX_BURST: u64 = 32;
/// Bursts a second that a rate is divided into if the profile states no burst
const BURSTS_PER_SECOND: u64 = 100_000;
/// A stream: packets of one verb on a range of queue pairs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stream {
    /// Name in reports; unique in the profile
    pub name: String,
    /// Verb of its requests
    pub verb: Verb,
    /// Sender
    pub src: HostAddress,
    /// Receiver
    pub dst: HostAddress,
    /// First queue pair number; the others follow. Both hosts use the same numbers
    pub first_qpn: Qpn,
    /// Number of queue pairs
    pub qps: u32,
    /// How the queue pair of the next message is chosen
    pub pick: Choice,
    /// Message sizes in bytes, each with the same probability. Empty for verbs without a size (atomics, ACKs,
    /// beacons)
    pub sizes: Vec<u32>,
    /// Largest payload of a packet, in bytes: the path MTU
    pub mtu: u16,
    /// Part of the receiver's memory that requests address
    pub memory: RemoteMemory,
    /// First PSN of each queue pair; drawn from the seed if `None`
    pub first_psn: Option<Psn>,
    /// Sending rate
    pub rate: Rate,
    /// Packets of a burst; if `None`, the packets that the rate earns in 10 us, from 1 to 32
    pub burst: Option<u16>,
    /// Number of packets to send, malformed ones excluded; without it the stream sends until the run ends
    pub packets: Option<u64>,
    /// Every `ack_every`-th message of a queue pair requests an acknowledgement; 0 for none
    pub ack_every: u32,
    /// Most outstanding requests of a queue pair: with that many, the next request waits for a response.
    /// `None` for no limit
    pub outstanding: Option<u16>,
    /// Time after which an unanswered request is given up
    pub timeout: Nanos,
    /// Whether payloads begin with the time of sending
    pub stamp: bool,
    /// Share of malformed packets. They take no PSN and count for the rate, but not as packets of the stream
    pub malformed: Probability,
}

/// Kind of a stream's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// RDMA WRITE Only, or First, Middle and Last
    Write,
    /// SEND Only, or First, Middle and Last
    Send,
    /// RDMA READ requests
    Read,
    /// Compare and swap: queue pairs contend for locks, one per slot
    CompareSwap,
    /// Fetch and add of 1
    FetchAdd,
    /// Acknowledgements, as from a responder
    Ack {
        /// PSNs that each packet acknowledges
        coalesce: u32,
    },
    /// 1Pipe best-effort messages: UD datagrams
    OnePipeMessage,
    /// 1Pipe beacons
    OnePipeBeacon,
}

impl Verb {
    /// Returns the verb's name in configurations and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Send => "send",
            Self::Read => "read",
            Self::CompareSwap => "compare_swap",
            Self::FetchAdd => "fetch_add",
            Self::Ack { .. } => "ack",
            Self::OnePipeMessage => "onepipe_message",
            Self::OnePipeBeacon => "onepipe_beacon",
        }
    }

    /// Returns whether messages have a payload.
    pub const fn has_payload(self) -> bool {
        matches!(self, Self::Write | Self::Send | Self::OnePipeMessage)
    }

    /// Returns whether a responder answers the verb.
    pub const fn is_request(self) -> bool {
        matches!(self, Self::Write | Self::Send | Self::Read | Self::CompareSwap | Self::FetchAdd)
    }

    /// Returns whether the verb is one of 1Pipe's.
    pub const fn is_onepipe(self) -> bool {
        matches!(self, Self::OnePipeMessage | Self::OnePipeBeacon)
    }

    pub(crate) const fn is_atomic(self) -> bool {
        matches!(self, Self::CompareSwap | Self::FetchAdd)
    }

    const fn has_sizes(self) -> bool {
        self.has_payload() || matches!(self, Self::Read)
    }
}

/// One end of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostAddress {
    /// MAC address
    pub mac: MacAddr,
    /// IP address
    pub ip: IpAddr,
}

/// Memory of the receiver that requests address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteMemory {
    /// Virtual address of the first slot
    pub va: u64,
    /// Remote key
    pub rkey: u32,
    /// Number of consecutive slots, each as long as the longest message (8 bytes for atomics)
    pub slots: u32,
    /// How the slot of the next request is chosen
    pub choice: Choice,
}

/// How the next of several items is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// One after the other
    RoundRobin,
    /// Each with the same probability
    Uniform,
    /// The k-th with a probability proportional to 1 / k^s
    Zipf {
        /// s in thousandths: 990 as in YCSB
        thousandths: u32,
    },
}

/// Returns the packets of a burst at a rate of `packets_per_s`: `fixed`, if the profile states it.
pub(crate) fn burst_at(fixed: Option<u16>, packets_per_s: u64) -> u64 {
    fixed.map_or_else(|| (packets_per_s / BURSTS_PER_SECOND).clamp(1, MAX_BURST), u64::from)
}

impl Stream {
    /// Returns the PSNs from one packet of requests to the next: 1, but for READs and coalesced
    /// acknowledgements.
    pub fn psn_step(&self) -> u32 {
        match self.verb {
            Verb::Read => self.packets_of(self.sizes.first().copied().unwrap_or(0)),
            Verb::Ack { coalesce } => coalesce,
            _ => 1,
        }
    }

    /// Returns the packets of a message of `size` bytes.
    pub fn packets_of(&self, size: u32) -> u32 {
        size.div_ceil(u32::from(self.mtu)).max(1)
    }

    /// Returns the length of a slot of memory, in bytes.
    pub fn slot_len(&self) -> u64 {
        match self.verb {
            Verb::CompareSwap | Verb::FetchAdd => 8,
            _ => self.sizes.iter().copied().max().unwrap_or(0).max(1).into(),
        }
    }

    /// Returns the offset in the payload at which the time stamp ends; 1Pipe's header is in front of it.
    pub(crate) const fn stamp_end(&self) -> usize {
        STAMP_LEN + if self.verb.is_onepipe() { OnePipe::LEN } else { 0 }
    }

    fn check(&self, stream: usize, profile: &Profile) -> Result<(), ProfileError> {
        let range = |what, value: u64, least: u64, most: u64| {
            if (least..=most).contains(&value) {
                return Ok(());
            }
            let valid = match most {
                u64::MAX => format!("{least} or more"),
                _ if least == most => least.to_string(),
                _ => format!("{least} to {most}"),
            };
            Err(ProfileError::Value { stream: Some(stream), what, value, valid })
        };
        range("qps", self.qps.into(), 1, MAX_QPS.into())?;
        let last = u64::from(self.first_qpn.get()) + u64::from(self.qps) - 1;
        if self.first_qpn.get() < 2 || last > 0xff_fffe {
            return Err(ProfileError::Qpns { stream, first: self.first_qpn, last });
        }
        if self.src.ip.is_ipv4() != self.dst.ip.is_ipv4() {
            return Err(ProfileError::MixedIpVersions { stream });
        }
        // The receiver tells requests from responses by the destination address.
        if self.src.ip == self.dst.ip {
            return Err(ProfileError::SameHost { stream, host: self.src.ip });
        }
        range("burst", self.burst.unwrap_or(1).into(), 1, 256)?;
        range("slots", self.memory.slots.into(), 1, MAX_SLOTS.into())?;
        range("mtu", self.mtu.into(), 64, MAX_PAYLOAD as u64)?;
        if !self.mtu.is_multiple_of(4) {
            let (value, valid) = (self.mtu.into(), format!("a multiple of 4 from 64 to {MAX_PAYLOAD}"));
            return Err(ProfileError::Value { stream: Some(stream), what: "mtu", value, valid });
        }
        if let Some(packets) = self.packets {
            range("packets", packets, 1, u64::MAX)?;
            if self.malformed == Probability::ALWAYS {
                return Err(ProfileError::NeverEnds { stream, packets });
            }
        }
        if self.verb.has_sizes() {
            range("the number of sizes", self.sizes.len() as u64, 1, 64)?;
            let most = match self.verb {
                Verb::OnePipeMessage => u64::from(self.mtu) - OnePipe::LEN as u64,
                _ => 1 << 30,
            };
            for size in &self.sizes {
                range("a size", u64::from(*size), u64::from(self.verb == Verb::Read), most)?;
            }
        } else {
            range("the number of sizes", self.sizes.len() as u64, 0, 0)?;
        }
        let smallest = self.sizes.iter().copied().min().unwrap_or(0);
        if self.stamp && !self.verb.has_payload() {
            return Err(ProfileError::NoPayloadToStamp { stream, verb: self.verb.name() });
        }
        if self.stamp && smallest < STAMP_LEN as u32 {
            return Err(ProfileError::StampDoesNotFit { stream, size: smallest, needed: STAMP_LEN });
        }
        match self.verb {
            Verb::Read if self.sizes.iter().any(|size| *size != self.sizes[0]) => {
                return Err(ProfileError::ReadSizes { stream });
            }
            Verb::Read if profile.respond => {
                range("packets of a response", self.psn_step().into(), 1, MAX_RESPONSE_PACKETS.into())?;
            }
            Verb::Read => range("packets of a response", self.psn_step().into(), 1, 1 << 22)?,
            Verb::Ack { coalesce } => range("coalesce", coalesce.into(), 1, 1 << 16)?,
            _ => {}
        }
        // Packets of outstanding requests, for verbs whose requests have several packets
        let longest = match self.verb {
            Verb::Write | Verb::Send => self.packets_of(self.sizes.iter().copied().max().unwrap_or(0)),
            _ => 1,
        };
        let outstanding_packets = u32::from(self.outstanding.unwrap_or(0)).saturating_mul(longest);
        if profile.respond && outstanding_packets > profile.window {
            return Err(ProfileError::Window {
                stream,
                packets: outstanding_packets,
                window: profile.window,
            });
        }
        let packets =
            profile.window.max(if self.outstanding.is_some() { outstanding_packets } else { profile.queued });
        let step = self.psn_step();
        if u64::from(packets) * u64::from(step) >= HALF_OF_PSNS {
            return Err(ProfileError::PsnRangeTooLarge { stream, packets, step });
        }
        self.check_rate(stream)?;
        self.check_outstanding(stream)
    }

    fn check_rate(&self, stream: usize) -> Result<(), ProfileError> {
        let invalid = |what, value, least, most| {
            let valid = format!("{least} to {most}");
            Err(ProfileError::Value { stream: Some(stream), what, value, valid })
        };
        let valid = 1..=Rate::FASTEST;
        match self.rate {
            Rate::Steady { per_second, .. } if !valid.contains(&per_second) => {
                invalid("the rate", per_second, 1, Rate::FASTEST)
            }
            Rate::Ramp { to, .. } if !valid.contains(&to) => invalid("the rate", to, 1, Rate::FASTEST),
            Rate::Ramp { from, .. } if from > Rate::FASTEST => invalid("the rate", from, 0, Rate::FASTEST),
            Rate::Ramp { over, .. } if over > Rate::LONGEST_RAMP || over == Nanos::ZERO => {
                invalid("the length of a ramp in ns", over.0, 1, Rate::LONGEST_RAMP.0)
            }
            _ => Ok(()),
        }
    }

    fn check_outstanding(&self, stream: usize) -> Result<(), ProfileError> {
        let Some(outstanding) = self.outstanding else { return Ok(()) };
        if !self.verb.is_request() {
            return Err(ProfileError::NotAnswered { stream, verb: self.verb.name() });
        }
        if !(1..=MAX_OUTSTANDING).contains(&outstanding) {
            return Err(ProfileError::Value {
                stream: Some(stream),
                what: "outstanding",
                value: outstanding.into(),
                valid: format!("1 to {MAX_OUTSTANDING}"),
            });
        }
        let acknowledged = matches!(self.verb, Verb::Write | Verb::Send);
        if acknowledged && (self.ack_every == 0 || self.ack_every > outstanding.into()) {
            return Err(ProfileError::NoAckRequested { stream, ack_every: self.ack_every, outstanding });
        }
        if self.verb == Verb::CompareSwap && outstanding != 1 {
            return Err(ProfileError::CasOutstanding { stream });
        }
        Ok(())
    }

    /// Returns the lowest queue pair number that both streams use.
    fn shared_qpn(&self, other: &Self) -> Option<Qpn> {
        let (a, b) = (self.first_qpn.get(), other.first_qpn.get());
        let first = a.max(b);
        (first < a + self.qps && first < b + other.qps).then(|| Qpn::new(first))
    }
}

impl Profile {
    /// Returns whether frames are polled from the port that sends, if another port receives.
    pub fn polls_send_port(&self) -> bool {
        self.respond || self.streams.iter().any(|stream| stream.outstanding.is_some())
    }

    /// Returns the reach of windows, in packets: 0 if no port receives.
    pub(crate) fn reach(&self) -> u32 {
        self.receive.map_or(0, |_| self.window)
    }

    /// Checks the profile.
    ///
    /// # Errors
    ///
    /// The first problem found, in the order of the streams.
    pub fn check(&self) -> Result<(), ProfileError> {
        if self.streams.is_empty() || self.streams.len() > MAX_STREAMS {
            return Err(ProfileError::Streams(self.streams.len()));
        }
        if !self.window.is_power_of_two() || !(64..=MAX_WINDOW).contains(&self.window) {
            return Err(ProfileError::Value {
                stream: None,
                what: "window",
                value: self.window.into(),
                valid: format!("a power of two from 64 to {MAX_WINDOW}"),
            });
        }
        if self.respond && self.receive.is_none() {
            return Err(ProfileError::NoReceivePort);
        }
        for (n, stream) in self.streams.iter().enumerate() {
            stream.check(n, self)?;
        }
        let qps = self.streams.iter().map(|stream| u64::from(stream.qps)).sum();
        if qps > u64::from(MAX_QPS) {
            return Err(ProfileError::Qps(qps));
        }
        for (second, b) in self.streams.iter().enumerate() {
            for (first, a) in self.streams[..second].iter().enumerate() {
                // Requests' PSNs count at one end, their responses' at the other.
                let ends =
                    [(a.dst.ip, b.dst.ip), (a.src.ip, b.src.ip), (a.dst.ip, b.src.ip), (a.src.ip, b.dst.ip)];
                let host = ends.into_iter().find(|(a, b)| a == b).map(|(host, _)| host);
                if let (Some(host), Some(qpn)) = (host, a.shared_qpn(b)) {
                    return Err(ProfileError::PsnsCollide { first, second, qpn, host });
                }
            }
        }
        Ok(())
    }

    /// Returns the streams whose queue pairs are all at one of several workers: the index of each, its worker, and the
    /// reason, as a clause.
    pub fn undivided(&self, workers: usize) -> impl Iterator<Item = (usize, usize, &'static str)> {
        let division = Division::new(self, workers);
        self.streams.iter().enumerate().filter_map(move |(index, stream)| {
            let why = undivided(stream, self.respond).filter(|_| stream.qps > 1)?;
            Some((index, division.first_worker(index), why))
        })
    }

    /// Checks that each of several workers has something to do: queue pairs of a stream that is divided
    /// ([`undivided`](Self::undivided)), or a whole stream.
    ///
    /// # Errors
    ///
    /// [`ProfileError::Workers`]
    pub fn check_workers(&self, workers: usize) -> Result<(), ProfileError> {
        let is_busy = |workers| {
            let division = Division::new(self, workers);
            (0..workers).all(|worker| !division.parts(self, worker).is_empty())
        };
        match (1..=workers).rev().find(|workers| is_busy(*workers)).unwrap_or(1) {
            most if most < workers => Err(ProfileError::Workers { workers, most }),
            _ => Ok(()),
        }
    }
}
