//! Errors of profiles.

use crate::limits::{MAX_QPS, MAX_STREAMS};
use core::net::IpAddr;
use rocev2::Qpn;

/// Error of [`Profile::check`](crate::Profile::check) or [`Pktgen::new`](crate::Pktgen::new). `stream` is the
/// index of the stream in the profile; messages count streams from 1. Each message states the problem, its
/// stream, and a remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProfileError {
    /// No stream, or too many
    #[error("there are {0} streams; configure 1 to {MAX_STREAMS}")]
    Streams(usize),
    /// Too many queue pairs in total
    #[error("all streams together have {0} queue pairs, and the limit is {MAX_QPS}; lower `qps`")]
    Qps(u64),
    /// Queue pair numbers out of range
    #[error(
        "stream {}: queue pairs {first} to {last} are outside of the valid range, 2 to 0xfffffe; choose \
         `first_qpn` and `qps` within it",
        stream + 1
    )]
    Qpns {
        /// Index of the stream
        stream: usize,
        /// Its first queue pair number
        first: Qpn,
        /// Its last queue pair number, which may exceed 24 bits
        last: u64,
    },
    /// Two streams use the same queue pair of a host
    #[error(
        "streams {} and {} share queue pair {qpn} of {host}: their PSNs collide; give each stream its own queue pairs",
        first + 1,
        second + 1
    )]
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
    #[error(
        "stream {}: a payload of {size} bytes has no room for a time stamp of {needed} bytes; use a size of {needed} or \
         more, or no time stamps",
        stream + 1
    )]
    StampDoesNotFit {
        /// Index of the stream
        stream: usize,
        /// Size of its smallest message, in bytes
        size: u32,
        /// Length of a time stamp, in bytes
        needed: usize,
    },
    /// Time stamps for a verb without a payload
    #[error(
        "stream {}: {verb} has no payload that could carry the time of sending; turn time stamps off",
        stream + 1
    )]
    NoPayloadToStamp {
        /// Index of the stream
        stream: usize,
        /// Its verb
        verb: &'static str,
    },
    /// Source and destination are the same host
    #[error("stream {}: source and destination are both {host}; use another destination", stream + 1)]
    SameHost {
        /// Index of the stream
        stream: usize,
        /// Address of both ends
        host: IpAddr,
    },
    /// One address is IPv4, the other IPv6
    #[error(
        "stream {}: source and destination use different versions of IP; use two IPv4 or two IPv6 addresses",
        stream + 1
    )]
    MixedIpVersions {
        /// Index of the stream
        stream: usize,
    },
    /// Value out of range
    #[error("{}{what} cannot be {value}; use {valid}", place(*stream))]
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
    #[error(
        "stream {}: a stream of READs has to have exactly one size; use a stream for each size",
        stream + 1
    )]
    ReadSizes {
        /// Index of the stream
        stream: usize,
    },
    /// `respond` without a port that receives
    #[error("requests are to be answered, but no port receives them; set `receive`, or remove `respond`")]
    NoReceivePort,
    /// `outstanding` for a verb that has no response
    #[error("stream {}: {verb} is not answered; remove `outstanding`", stream + 1)]
    NotAnswered {
        /// Index of the stream
        stream: usize,
        /// Its verb
        verb: &'static str,
    },
    /// Requests that wait for responses but do not request any
    #[error(
        "stream {}: `ack_every` = {ack_every} never requests an acknowledgement among {outstanding} outstanding requests; \
         use an `ack_every` of 1 to {outstanding}",
        stream + 1
    )]
    NoAckRequested {
        /// Index of the stream
        stream: usize,
        /// `ack_every` of the stream
        ack_every: u32,
        /// `outstanding` of the stream
        outstanding: u16,
    },
    /// Only malformed packets, which do not count towards `packets`
    #[error(
        "stream {}: all packets are malformed, and malformed packets do not count towards `packets` = {packets}: the run \
         would never end; lower `malformed`, or limit the run by its duration",
        stream + 1
    )]
    NeverEnds {
        /// Index of the stream
        stream: usize,
        /// `packets` of the stream
        packets: u64,
    },
    /// Range of PSNs of half the PSN space or more, in which earlier and later packets are ambiguous
    #[error(
        "stream {}: {packets} packets of a queue pair, of {step} PSNs each, take half of all PSNs: their order would be \
         ambiguous; lower `window` or `outstanding`, or use fewer PSNs per packet",
        stream + 1
    )]
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
    #[error(
        "stream {}: {packets} packets of a queue pair are outstanding at once, but `window` covers only {window}; raise \
         `window`, or lower `outstanding`",
        stream + 1
    )]
    Window {
        /// Index of the stream
        stream: usize,
        /// Packets that may be outstanding
        packets: u32,
        /// `window` of the profile
        window: u32,
    },
    /// Memory that could not be allocated
    #[error("cannot allocate {mb} MB for the {what} of stream {}; lower `{key}` or `qps`", stream + 1)]
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
    #[error(
        "stream {}: compare and swap waits for each response: at most one outstanding; use more queue pairs",
        stream + 1
    )]
    CasOutstanding {
        /// Index of the stream
        stream: usize,
    },
}

/// Returns the beginning of a message about a stream, or about the profile itself.
fn place(stream: Option<usize>) -> String {
    stream.map_or_else(String::new, |stream| format!("stream {}: ", stream + 1))
}
