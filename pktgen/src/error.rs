//! Errors of profiles.

use crate::limits::{MAX_QPS, MAX_STREAMS};
use core::fmt;
use core::net::IpAddr;
use rocev2::Qpn;

/// Error of [`Profile::check`](crate::Profile::check) or [`Pktgen::new`](crate::Pktgen::new). `stream` is the
/// index of the stream in the profile; messages count streams from 1. Each message states the problem, its
/// stream, and a remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProfileError {
    /// No stream, or too many
    Streams(usize),
    /// Too many queue pairs in total
    Qps(u64),
    /// More workers than have something to do
    Workers {
        /// Number of workers
        workers: usize,
        /// The largest number of which each has something to do
        most: usize,
    },
    /// Queue pair numbers out of range
    Qpns {
        /// Index of the stream
        stream: usize,
        /// Its first queue pair number
        first: Qpn,
        /// Its last queue pair number, which may exceed 24 bits
        last: u64,
    },
    /// Two streams use the same queue pair of a host
    PsnsCollide {
        /// Index of the first stream
        first: usize,
        /// Index of the second stream
        second: usize,
        /// Lowest queue pair number that both use
        qpn: Qpn,
        /// Host of the queue pair
        host: IpAddr,
    },
    /// Payload shorter than the time stamp
    StampDoesNotFit {
        /// Index of the stream
        stream: usize,
        /// Size of its smallest message, in bytes
        size: u32,
        /// Length of a time stamp, in bytes
        needed: usize,
    },
    /// Time stamps for a verb without a payload
    NoPayloadToStamp {
        /// Index of the stream
        stream: usize,
        /// Its verb
        verb: &'static str,
    },
    /// Source and destination are the same host
    SameHost {
        /// Index of the stream
        stream: usize,
        /// Address of both ends
        host: IpAddr,
    },
    /// One address is IPv4, the other IPv6
    MixedIpVersions {
        /// Index of the stream
        stream: usize,
    },
    /// Value out of range
    Value {
        /// Index of the stream; `None` for a value of the profile itself
        stream: Option<usize>,
        /// Name of the value
        what: &'static str,
        /// The value
        value: u64,
        /// Values that are valid, in words
        valid: String,
    },
    /// READs of several sizes: their requests are identified by PSNs, and each takes as many PSNs as its
    /// response has packets
    ReadSizes {
        /// Index of the stream
        stream: usize,
    },
    /// `respond` without a port that receives
    NoReceivePort,
    /// `outstanding` for a verb that has no response
    NotAnswered {
        /// Index of the stream
        stream: usize,
        /// Its verb
        verb: &'static str,
    },
    /// Requests that wait for responses but do not request any
    NoAckRequested {
        /// Index of the stream
        stream: usize,
        /// `ack_every` of the stream
        ack_every: u32,
        /// `outstanding` of the stream
        outstanding: u16,
    },
    /// Only malformed packets, which do not count towards `packets`
    NeverEnds {
        /// Index of the stream
        stream: usize,
        /// `packets` of the stream
        packets: u64,
    },
    /// Range of PSNs of half the PSN space or more, in which earlier and later packets are ambiguous
    PsnRangeTooLarge {
        /// Index of the stream
        stream: usize,
        /// The window, or the packets that may be in flight at once
        packets: u32,
        /// PSNs from one packet to the next
        step: u32,
    },
    /// More packets outstanding than the window covers: the responder's acknowledgement is checked against
    /// the window
    Window {
        /// Index of the stream
        stream: usize,
        /// Packets that may be outstanding
        packets: u32,
        /// `window` of the profile
        window: u32,
    },
    /// Memory that could not be allocated
    Memory {
        /// Index of the stream
        stream: usize,
        /// Size of the allocation, in MB
        mb: u64,
        /// What the memory is for
        what: &'static str,
        /// Configuration key that determines the size
        key: &'static str,
    },
    /// Several outstanding compare-and-swap requests: what a lock's holder does next depends on the response
    CasOutstanding {
        /// Index of the stream
        stream: usize,
    },
}

impl ProfileError {
    /// Returns what is wrong, without the stream.
    pub fn problem(&self) -> String {
        match self {
            Self::Streams(count) => format!("there are {count} streams"),
            Self::Qps(count) => {
                format!("all streams together have {count} queue pairs, and the limit is {MAX_QPS}")
            }
            Self::Workers { workers, most } => {
                format!("the streams give {most} of {workers} workers something to send")
            }
            Self::Qpns { first, last, .. } => {
                format!("queue pairs {first} to {last} are outside of the valid range, 2 to 0xfffffe")
            }
            Self::PsnsCollide { first, second, qpn, host } => format!(
                "streams {} and {} share queue pair {qpn} of {host}: their PSNs collide",
                first + 1,
                second + 1
            ),
            Self::StampDoesNotFit { size, needed, .. } => {
                format!("a payload of {size} bytes has no room for a time stamp of {needed} bytes")
            }
            Self::NoPayloadToStamp { verb, .. } => {
                format!("{verb} has no payload that could carry the time of sending")
            }
            Self::SameHost { host, .. } => format!("source and destination are both {host}"),
            Self::MixedIpVersions { .. } => "source and destination use different versions of IP".into(),
            Self::Value { what, value, .. } => format!("{what} cannot be {value}"),
            Self::ReadSizes { .. } => "a stream of READs has to have exactly one size".into(),
            Self::NoReceivePort => "requests are to be answered, but no port receives them".into(),
            Self::NotAnswered { verb, .. } => format!("{verb} is not answered"),
            Self::NoAckRequested { ack_every, outstanding, .. } => format!(
                "`ack_every` = {ack_every} never requests an acknowledgement among {outstanding} outstanding requests"
            ),
            Self::NeverEnds { packets, .. } => format!(
                "all packets are malformed, and malformed packets do not count towards `packets` = {packets}: the run would never end"
            ),
            Self::PsnRangeTooLarge { packets, step, .. } => format!(
                "{packets} packets of a queue pair, of {step} PSNs each, take half of all PSNs: their order would be ambiguous"
            ),
            Self::Window { packets, window, .. } => format!(
                "{packets} packets of a queue pair are outstanding at once, but `window` covers only {window}"
            ),
            Self::Memory { stream, mb, what, .. } => {
                format!("cannot allocate {mb} MB for the {what} of stream {}", stream + 1)
            }
            Self::CasOutstanding { .. } => {
                "compare and swap waits for each response: at most one outstanding".into()
            }
        }
    }

    /// Returns what to change.
    pub fn remedy(&self) -> String {
        match self {
            Self::Streams(_) => format!("configure 1 to {MAX_STREAMS}"),
            Self::Qps(_) => "lower `qps`".into(),
            Self::Workers { most, .. } => {
                format!("use {most}, or more queue pairs of streams that are divided")
            }
            Self::Qpns { .. } => "choose `first_qpn` and `qps` within it".into(),
            Self::PsnsCollide { .. } => "give each stream its own queue pairs".into(),
            Self::StampDoesNotFit { needed, .. } => {
                format!("use a size of {needed} or more, or no time stamps")
            }
            Self::NoPayloadToStamp { .. } => "turn time stamps off".into(),
            Self::SameHost { .. } => "use another destination".into(),
            Self::MixedIpVersions { .. } => "use two IPv4 or two IPv6 addresses".into(),
            Self::Value { valid, .. } => format!("use {valid}"),
            Self::ReadSizes { .. } => "use a stream for each size".into(),
            Self::NoReceivePort => "set `receive`, or remove `respond`".into(),
            Self::NotAnswered { .. } => "remove `outstanding`".into(),
            Self::NoAckRequested { outstanding, .. } => format!("use an `ack_every` of 1 to {outstanding}"),
            Self::NeverEnds { .. } => "lower `malformed`, or limit the run by its duration".into(),
            Self::PsnRangeTooLarge { .. } => {
                "lower `window` or `outstanding`, or use fewer PSNs per packet".into()
            }
            Self::Window { .. } => "raise `window`, or lower `outstanding`".into(),
            Self::Memory { key, .. } => format!("lower `{key}` or `qps`"),
            Self::CasOutstanding { .. } => "use more queue pairs".into(),
        }
    }

    /// Returns the index of the stream that the problem is about, if it is one alone.
    const fn stream(&self) -> Option<usize> {
        match *self {
            Self::Qpns { stream, .. }
            | Self::StampDoesNotFit { stream, .. }
            | Self::NoPayloadToStamp { stream, .. }
            | Self::SameHost { stream, .. }
            | Self::MixedIpVersions { stream }
            | Self::ReadSizes { stream }
            | Self::NotAnswered { stream, .. }
            | Self::NoAckRequested { stream, .. }
            | Self::NeverEnds { stream, .. }
            | Self::PsnRangeTooLarge { stream, .. }
            | Self::Window { stream, .. }
            | Self::CasOutstanding { stream } => Some(stream),
            Self::Value { stream, .. } => stream,
            // The text of the last two names the streams itself.
            Self::Streams(_)
            | Self::Qps(_)
            | Self::Workers { .. }
            | Self::NoReceivePort
            | Self::PsnsCollide { .. }
            | Self::Memory { .. } => None,
        }
    }
}

impl fmt::Display for ProfileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(stream) = self.stream() {
            write!(f, "stream {}: ", stream + 1)?;
        }
        write!(f, "{}; {}", self.problem(), self.remedy())
    }
}

impl core::error::Error for ProfileError {}
