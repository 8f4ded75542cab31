//! What is sent: streams, each of one verb between two hosts, on its own queue pairs, at its own rate.

use crate::alike::Qp;
use crate::pace::Rate;
use crate::requester::Requester;
use crate::window::Windows;
use core::net::IpAddr;
use rocev2::ethernet::MacAddr;
use rocev2::onepipe::{OnePipe, Timestamp};
use rocev2::{MAX_PAYLOAD, Psn, Qpn};
use switch::{Nanos, PortId, Probability};

/// A generator's job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// What all chance comes from
    pub seed: u64,
    /// Where requests leave
    pub send: PortId,
    /// Where they arrive and are checked; `None` if they are only sent. It may be the port that sends, if that gives back what
    /// it is given
    pub receive: Option<PortId>,
    /// Whether requests are answered where they arrive
    pub respond: bool,
    /// For how long is sent; without it, until streams have sent what they were asked for, or somebody ends it
    pub duration: Option<Nanos>,
    /// For how long the last packets are waited for
    pub drain: Nanos,
    /// A worker that was kept from sending for longer than this does not make up for it
    pub catch_up: Nanos,
    /// By how many packets of its queue pair a packet may be overtaken and still count as received: a power of two from 64 on
    pub window: u32,
    /// Frames that this machine's own queues hold at most, from here out and back in: as many packets of a queue pair may be under
    /// way if none waits for an answer
    pub queued: u32,
    /// 1Pipe's time when the run's is 0
    pub epoch: Timestamp,
    /// Not empty
    pub streams: Vec<Stream>,
}

/// Most streams: each is looked at in each turn
pub const MAX_STREAMS: usize = 64;
/// Most queue pairs of all streams
pub const MAX_QPS: u32 = 1 << 20;
/// Most slots of a stream's memory
pub const MAX_SLOTS: u32 = 1 << 20;
/// Most requests that are under way on a queue pair
pub const MAX_OUTSTANDING: u16 = 256;
/// Largest READ that is answered: its response leaves at once, and has to find room
pub const MAX_RESPONSE_PACKETS: u32 = 256;
/// Bytes of the time in a payload
pub const STAMP_LEN: usize = 8;
/// Half of all PSNs: who is further behind could as well be ahead
const HALF_THE_CIRCLE: u64 = 1 << 23;
/// The most packets that leave together if nobody says how many
const MOST_BURST: u64 = 32;
/// Bursts a second, where a rate makes them shorter than that
const BURSTS_A_SECOND: u64 = 100_000;
/// The largest window
pub const MAX_WINDOW: u32 = 1 << 16;

/// Packets of one kind on some queue pairs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stream {
    /// What reports call it; no two have the same
    pub name: String,
    /// What its requests are
    pub verb: Verb,
    /// Who sends
    pub src: Host,
    /// Who receives
    pub dst: Host,
    /// The first of its queue pairs; the others follow. Both hosts have the same numbers
    pub first_qpn: Qpn,
    /// How many there are
    pub qps: u32,
    /// Which of them the next message is sent on
    pub pick: Choice,
    /// Bytes of a message; each is as likely as the others. For verbs without a payload of their own (atomics, ACKs, beacons)
    /// it is empty
    pub sizes: Vec<u32>,
    /// Largest payload of a packet: a path MTU
    pub mtu: u16,
    /// What of the receiver's memory is used
    pub memory: Memory,
    /// Where PSNs begin on each queue pair; by chance, if not said
    pub first_psn: Option<Psn>,
    /// How fast
    pub rate: Rate,
    /// Packets that leave together; without it as many as the rate earns in 10 us, from 1 to 32
    pub burst: Option<u16>,
    /// How many packets, if not for as long as there is time
    pub packets: Option<u64>,
    /// Every so many messages of a queue pair ask for an acknowledgement; 0 for none
    pub ack_every: u32,
    /// Requests of a queue pair that are under way at most: the next waits for an answer. Without it, nobody waits
    pub outstanding: Option<u16>,
    /// A request that is not answered for so long is given up
    pub timeout: Nanos,
    /// Whether payloads carry the time at which they were sent, at their beginning
    pub stamp: bool,
    /// How many of all packets are malformed. They take no PSN: what counts is as if they had not been sent
    pub malformed: Probability,
}

/// What a stream's packets are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// RDMA WRITE Only, or First, Middle and Last
    Write,
    /// SEND Only, or First, Middle and Last
    Send,
    /// RDMA READ requests
    Read,
    /// Compare and swap: queue pairs contend for locks, one a slot
    CompareSwap,
    /// Fetch and add of 1
    FetchAdd,
    /// Acknowledgements, as from a responder
    Ack {
        /// PSNs that each acknowledges
        coalesce: u32,
    },
    /// 1Pipe's best-effort messages: UD datagrams
    OnePipeMessage,
    /// 1Pipe's beacons
    OnePipeBeacon,
}

impl Verb {
    /// A word for it, as in configurations and reports.
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

    /// Whether messages have a payload, and hence sizes.
    pub const fn has_payload(self) -> bool {
        matches!(self, Self::Write | Self::Send | Self::OnePipeMessage)
    }

    /// Whether a responder answers it.
    pub const fn is_request(self) -> bool {
        matches!(self, Self::Write | Self::Send | Self::Read | Self::CompareSwap | Self::FetchAdd)
    }

    /// Whether it is 1Pipe's.
    pub const fn is_onepipe(self) -> bool {
        matches!(self, Self::OnePipeMessage | Self::OnePipeBeacon)
    }

    const fn is_atomic(self) -> bool {
        matches!(self, Self::CompareSwap | Self::FetchAdd)
    }

    const fn has_sizes(self) -> bool {
        self.has_payload() || matches!(self, Self::Read)
    }
}

/// Who sends or receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Host {
    /// On its network
    pub mac: MacAddr,
    /// Address
    pub ip: IpAddr,
}

/// What of the receiver's memory requests name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Where it begins
    pub va: u64,
    /// Its key
    pub rkey: u32,
    /// Places that messages go to, one behind the other, each as long as the longest message (8 bytes, for atomics)
    pub slots: u32,
    /// Which is next
    pub choice: Choice,
}

/// Which of many is next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// One after the other
    Turn,
    /// Each as likely as the others
    Uniform,
    /// The k-th with a chance proportional to 1 / k^s
    Zipf {
        /// s in thousandths: 990 is YCSB's
        thousandths: u32,
    },
}

/// Why a profile cannot be. `stream` is the place of the stream in it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProfileError {
    /// Nothing to send
    #[error("there are {0} streams, and 1 to {MAX_STREAMS} are possible")]
    Streams(usize),
    /// Each queue pair has state
    #[error("all streams have {0} queue pairs, and {MAX_QPS} are the most")]
    Qps(u64),
    /// The numbers end
    #[error("queue pairs {first} to {last} are no numbers from 2 to 0xfffffe")]
    Qpns {
        /// Which stream
        stream: usize,
        /// Its first
        first: Qpn,
        /// What its last would be
        last: u64,
    },
    /// Two streams count PSNs of one queue pair
    #[error("streams {first} and {second} share queue pair {qpn} of {host}: their PSNs collide")]
    PsnsCollide {
        /// The one
        first: usize,
        /// The other
        second: usize,
        /// First number of both
        qpn: Qpn,
        /// Whose it is
        host: IpAddr,
    },
    /// No room for the time
    #[error("a payload of {size} bytes has no room for a stamp of {needed}")]
    StampDoesNotFit {
        /// Which stream
        stream: usize,
        /// Bytes of its smallest message
        size: u32,
        /// What is needed
        needed: usize,
    },
    /// Nothing to put the time into
    #[error("{verb} has no payload that could carry the time of sending")]
    NothingToStamp {
        /// Which stream
        stream: usize,
        /// Its verb
        verb: &'static str,
    },
    /// A host does not send to itself
    #[error("source and destination are both {host}")]
    OneHost {
        /// Which stream
        stream: usize,
        /// Both of its ends
        host: IpAddr,
    },
    /// One address is IPv4, the other IPv6
    #[error("source and destination are of different versions of IP")]
    Versions {
        /// Which stream
        stream: usize,
    },
    /// A value is out of its range
    #[error("{what} cannot be {value}")]
    Value {
        /// Which stream; `None` for the profile itself
        stream: Option<usize>,
        /// What it is of
        what: &'static str,
        /// What it is
        value: u64,
    },
    /// A READ's requests are told apart by their PSNs, of which each takes as many as its response has packets
    #[error("a stream of READs has one size")]
    ReadSizes {
        /// Which stream
        stream: usize,
    },
    /// Answers are given where requests arrive
    #[error("requests are to be answered, and there is no port at which they are received")]
    NobodyReceives,
    /// Answers to these say nothing
    #[error("{verb} is not answered")]
    NotAnswered {
        /// Which stream
        stream: usize,
        /// Its verb
        verb: &'static str,
    },
    /// Only an answer frees a place
    #[error(
        "requests that wait for answers have to ask for them: `ack_every` is {ack_every}, and {outstanding} are outstanding"
    )]
    NeverAsked {
        /// Which stream
        stream: usize,
        /// As it is
        ack_every: u32,
        /// As it is
        outstanding: u16,
    },
    /// Malformed packets do not count
    #[error(
        "all packets are malformed, and of those that are not {packets} are to be sent: that would never end"
    )]
    NeverEnds {
        /// Which stream
        stream: usize,
        /// As it is
        packets: u64,
    },
    /// Nobody could tell early from late
    #[error(
        "{packets} packets of a queue pair, of {step} PSNs each, take half of all PSNs: which came first would not be known"
    )]
    HalfTheCircle {
        /// Which stream
        stream: usize,
        /// The window, or what may be under way at once
        packets: u32,
        /// PSNs from one to the next
        step: u32,
    },
    /// Whoever answers has to know of all that came
    #[error(
        "{packets} packets of a queue pair wait for answers at once, and it is known of {window} only whether they came"
    )]
    Window {
        /// Which stream
        stream: usize,
        /// What is outstanding
        packets: u32,
        /// As it is
        window: u32,
    },
    /// The machine has not got it
    #[error("there are no {mb} MB of memory for the {what} of stream {}: lower `{key}` or `qps`", stream + 1)]
    Memory {
        /// Which stream
        stream: usize,
        /// What is missing
        mb: u64,
        /// What for
        what: &'static str,
        /// What makes them large
        key: &'static str,
    },
    /// What a lock's holder does next depends on the answer
    #[error("compare and swap waits for each answer: one outstanding at most")]
    CasOutstanding {
        /// Which stream
        stream: usize,
    },
}

impl Stream {
    /// PSNs from one request to the next. Packets of messages have one each.
    pub fn psn_step(&self) -> u32 {
        match self.verb {
            Verb::Read => self.packets_of(self.sizes.first().copied().unwrap_or(0)),
            Verb::Ack { coalesce } => coalesce,
            _ => 1,
        }
    }

    /// Packets that leave together at so many packets a second.
    pub(crate) fn burst_at(&self, packets_per_s: u64) -> u64 {
        self.burst.map_or_else(|| (packets_per_s / BURSTS_A_SECOND).clamp(1, MOST_BURST), u64::from)
    }

    /// Packets of a message.
    pub fn packets_of(&self, size: u32) -> u32 {
        size.div_ceil(u32::from(self.mtu)).max(1)
    }

    /// Bytes from one place in memory to the next.
    pub fn slot_len(&self) -> u64 {
        match self.verb {
            Verb::CompareSwap | Verb::FetchAdd => 8,
            _ => self.sizes.iter().copied().max().unwrap_or(0).max(1).into(),
        }
    }

    /// Where a stamp begins in a payload, and where it ends: behind the header of 1Pipe's.
    pub(crate) const fn stamp_end(&self) -> usize {
        STAMP_LEN + if self.verb.is_onepipe() { OnePipe::LEN } else { 0 }
    }

    fn check(&self, stream: usize, profile: &Profile) -> Result<(), ProfileError> {
        let range = |what, value: u64, least: u64, most: u64| {
            if (least..=most).contains(&value) {
                return Ok(());
            }
            Err(ProfileError::Value { stream: Some(stream), what, value })
        };
        range("qps", self.qps.into(), 1, MAX_QPS.into())?;
        let last = u64::from(self.first_qpn.get()) + u64::from(self.qps) - 1;
        if self.first_qpn.get() < 2 || last > 0xff_fffe {
            return Err(ProfileError::Qpns { stream, first: self.first_qpn, last });
        }
        if self.src.ip.is_ipv4() != self.dst.ip.is_ipv4() {
            return Err(ProfileError::Versions { stream });
        }
        // Who is who would not be known where packets arrive.
        if self.src.ip == self.dst.ip {
            return Err(ProfileError::OneHost { stream, host: self.src.ip });
        }
        range("burst", self.burst.unwrap_or(1).into(), 1, 256)?;
        range("slots", self.memory.slots.into(), 1, MAX_SLOTS.into())?;
        range("mtu", self.mtu.into(), 64, MAX_PAYLOAD as u64)?;
        if !self.mtu.is_multiple_of(4) {
            range("mtu", self.mtu.into(), 1, 0)?;
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
            return Err(ProfileError::NothingToStamp { stream, verb: self.verb.name() });
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
        // What is under way at once, as far as it is packets of our own
        let longest = match self.verb {
            Verb::Write | Verb::Send => self.packets_of(self.sizes.iter().copied().max().unwrap_or(0)),
            _ => 1,
        };
        let under_way = u32::from(self.outstanding.unwrap_or(0)).saturating_mul(longest);
        if profile.respond && under_way > profile.window {
            return Err(ProfileError::Window { stream, packets: under_way, window: profile.window });
        }
        let packets = profile.window.max(if self.outstanding.is_some() { under_way } else { profile.queued });
        let step = self.psn_step();
        if u64::from(packets) * u64::from(step) >= HALF_THE_CIRCLE {
            return Err(ProfileError::HalfTheCircle { stream, packets, step });
        }
        self.check_rate(stream)?;
        self.check_answers(stream)
    }

    fn check_rate(&self, stream: usize) -> Result<(), ProfileError> {
        let wrong = |what, value| Err(ProfileError::Value { stream: Some(stream), what, value });
        let possible = 1..=Rate::FASTEST;
        match self.rate {
            Rate::Steady { per_second, .. } if !possible.contains(&per_second) => {
                wrong("the rate", per_second)
            }
            Rate::Ramp { to, .. } if !possible.contains(&to) => wrong("the rate", to),
            Rate::Ramp { from, .. } if from > Rate::FASTEST => wrong("the rate", from),
            Rate::Ramp { over, .. } if over > Rate::LONGEST_RAMP || over == Nanos::ZERO => {
                wrong("the length of a ramp in ns", over.0)
            }
            _ => Ok(()),
        }
    }

    fn check_answers(&self, stream: usize) -> Result<(), ProfileError> {
        let Some(outstanding) = self.outstanding else { return Ok(()) };
        if !self.verb.is_request() {
            return Err(ProfileError::NotAnswered { stream, verb: self.verb.name() });
        }
        if !(1..=MAX_OUTSTANDING).contains(&outstanding) {
            return Err(ProfileError::Value {
                stream: Some(stream),
                what: "outstanding",
                value: outstanding.into(),
            });
        }
        let asks = matches!(self.verb, Verb::Write | Verb::Send);
        if asks && (self.ack_every == 0 || self.ack_every > outstanding.into()) {
            return Err(ProfileError::NeverAsked { stream, ack_every: self.ack_every, outstanding });
        }
        if self.verb == Verb::CompareSwap && outstanding != 1 {
            return Err(ProfileError::CasOutstanding { stream });
        }
        Ok(())
    }

    /// The first number of both, if they have one.
    fn meets(&self, other: &Self) -> Option<Qpn> {
        let (a, b) = (self.first_qpn.get(), other.first_qpn.get());
        let first = a.max(b);
        (first < a + self.qps && first < b + other.qps).then(|| Qpn::new(first))
    }
}

impl Profile {
    /// Whether anything is fetched from the port that sends, if that is not the one that receives.
    pub fn listens(&self) -> bool {
        self.respond || self.streams.iter().any(|stream| stream.outstanding.is_some())
    }

    /// How far windows reach: nowhere, if nobody receives.
    pub(crate) fn reach(&self) -> u32 {
        self.receive.map_or(0, |_| self.window)
    }

    /// Bytes of memory that it takes to know of each queue pair what was sent, what has come, and what waits for an answer.
    pub fn state_bytes(&self) -> u64 {
        let of = |stream: &Stream| {
            let words =
                if self.respond && stream.verb.is_atomic() { u64::from(stream.memory.slots) * 8 } else { 0 };
            let requests = stream.outstanding.map_or(0, |most| Requester::bytes_of(stream.qps, most));
            let sent = u64::from(stream.qps) * size_of::<Qp>() as u64;
            sent + Windows::bytes_of(stream.qps, self.reach()) + requests + words
        };
        self.streams.iter().map(of).sum()
    }

    /// Whether it can be run.
    pub fn check(&self) -> Result<(), ProfileError> {
        if self.streams.is_empty() || self.streams.len() > MAX_STREAMS {
            return Err(ProfileError::Streams(self.streams.len()));
        }
        if !self.window.is_power_of_two() || !(64..=MAX_WINDOW).contains(&self.window) {
            return Err(ProfileError::Value { stream: None, what: "window", value: self.window.into() });
        }
        if self.respond && self.receive.is_none() {
            return Err(ProfileError::NobodyReceives);
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
                // The requests' PSNs count at the one end, their answers' at the other.
                let ends =
                    [(a.dst.ip, b.dst.ip), (a.src.ip, b.src.ip), (a.dst.ip, b.src.ip), (a.src.ip, b.dst.ip)];
                let host = ends.into_iter().find(|(a, b)| a == b).map(|(host, _)| host);
                if let (Some(host), Some(qpn)) = (host, a.meets(b)) {
                    return Err(ProfileError::PsnsCollide { first, second, qpn, host });
                }
            }
        }
        Ok(())
    }
}
