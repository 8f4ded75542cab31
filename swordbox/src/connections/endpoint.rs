//! An endpoint of a connection: a tracked queue pair.

use crate::headers::Headers;
use crate::{Id, NONE};
use rocev2::{Msn, Packet, Psn, Qpn};
use switch::{Nanos, PortId};

/// One tracked queue pair: an endpoint of a connection. The fields that untagged IPv4 packets need are in the
/// first cache line.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct Endpoint {
    /// Time of the last frame to this endpoint
    pub seen: Nanos,
    /// Endpoint of the peer, once it is known for certain; else `NONE`
    pub(super) peer: Id,
    /// Queue pair number
    pub qpn: Qpn,
    /// Port through which frames to this endpoint are sent
    pub port: PortId,
    /// Port through which the peer is reached (the peer's `port`); [`UNKNOWN_PORT`] until it is known
    pub peer_port: PortId,
    /// Headers of frames to this endpoint
    pub headers: Headers,
    /// Address of the sending host as 128 bits: the source of all frames whose headers are in `headers`
    pub from: u128,
    /// Endpoint that is the likely peer, from the responses so far
    pub candidate_peer: Id,
    /// Number of responses that confirmed `candidate_peer`, and the PSN of the latest
    pub confirmed: (u8, Psn),
    /// Newest PSN acknowledged by a response to this endpoint, and its MSN, while the peer is unknown
    pub latest: Option<(Psn, Msn)>,
    /// Neighbours in the list of unpaired endpoints between the same two hosts: before and behind this one
    pub(super) neighbours: [Id; 2],
}

/// Unknown port
pub(crate) const UNKNOWN_PORT: PortId = PortId(u16::MAX);

impl Endpoint {
    /// Returns the endpoint of the peer, once it is known for certain; else `NONE`.
    #[inline]
    pub(crate) fn peer(&self) -> Id {
        self.peer
    }

    /// Returns whether a packet to this endpoint that arrived on `port` has the stored headers and port.
    #[expect(clippy::inline_always, reason = "consists of a few comparisons")]
    #[inline(always)]
    pub(crate) fn has_headers_of(&self, packet: &Packet<'_>, port: PortId) -> bool {
        self.peer_port == port && self.headers.has_path_of(packet)
    }

    pub(super) const NEW: Self = Self {
        from: 0,
        seen: Nanos::ZERO,
        peer: NONE,
        qpn: Qpn::new(0),
        port: PortId(0),
        peer_port: UNKNOWN_PORT,
        headers: Headers::NONE,
        candidate_peer: NONE,
        confirmed: (0, Psn::ZERO),
        latest: None,
        neighbours: [NONE; 2],
    };

    /// Stores the headers of a frame to this endpoint.
    pub(crate) fn refresh(&mut self, packet: &Packet<'_>) {
        if let Some(headers) = Headers::of(packet) {
            self.headers = headers;
        }
    }
}
