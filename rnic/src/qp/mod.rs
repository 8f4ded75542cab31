//! Queue pairs: state, attributes, and the requester and responder of each (IB 10.2.4, 10.3, 11.2.4).
//!
//! [`Qp`] is the state of one queue pair. [`QpContext`] adds what its packets access: memory, queues, events
//! and counters of the NIC.

mod attributes;
mod context;
mod modify;
mod receive;
mod requester;
mod responder;

pub use attributes::{Event, Modify, QpError, QpInit, ReadyToReceive, ReadyToSend, State, Transport};
pub(crate) use context::QpContext;
pub(crate) use receive::Admission;

use crate::config::Config;
use crate::congestion::Pacer;
use crate::memory::Access;
use crate::path::{Path, PathMtu, packets_of};
use crate::queue::{Data, Operation, ReceiveQueue, SendRequest, UdDestination};
use crate::wire::{PathHeaders, src_port};
use core::net::IpAddr;
use requester::Requester;
use responder::Responder;
use rocev2::Qpn;
use switch::Nanos;

/// Limit of a message in packets: a quarter of the PSN space, so that old and new PSNs are always
/// distinguishable.
const MAX_PACKETS: u32 = 1 << 22;
/// Limit of a message in bytes (IB 9.4.1)
const MAX_MESSAGE: usize = 1 << 31;

/// A queue pair.
#[derive(Debug)]
pub(crate) struct Qp {
    qpn: Qpn,
    init: QpInit,
    state: State,
    access: Access,
    qkey: u32,
    path: Option<Path>,
    /// Headers that do not change, and the version of the neighbour table with which they were made
    path_headers: Option<(PathHeaders, u64)>,
    peer_qpn: Qpn,
    mtu: PathMtu,
    recv: ReceiveQueue,
    req: Requester,
    resp: Responder,
    /// Rate of requests and READ responses
    pacer: Pacer,
    /// Whether the next packet is a request, if one is ready, rather than a response
    request_next: bool,
    /// Whether it waits for its neighbour's MAC address
    unresolved: bool,
    /// Whether the event of the state has been reported: in RTR [`Event::Established`], in SQD
    /// [`Event::Drained`]
    event_reported: bool,
}

impl Qp {
    /// Creates a queue pair in the reset state.
    pub(crate) fn new(qpn: Qpn, init: QpInit) -> Self {
        Self {
            qpn,
            init,
            state: State::Reset,
            access: Access::LOCAL_READ,
            qkey: 0,
            path: None,
            path_headers: None,
            peer_qpn: Qpn::new(0),
            mtu: PathMtu::B1024,
            recv: ReceiveQueue::new(init.max_recv),
            req: Requester::default(),
            resp: Responder::default(),
            pacer: Pacer::default(),
            request_next: false,
            unresolved: false,
            event_reported: false,
        }
    }

    /// Returns its number.
    pub(crate) const fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// Returns the attributes with which it was created.
    pub(crate) const fn init(&self) -> &QpInit {
        &self.init
    }

    /// Returns its state.
    pub(crate) const fn state(&self) -> State {
        self.state
    }

    /// Returns its path and the remote queue pair number, if it is connected.
    pub(crate) fn peer(&self) -> Option<(Path, Qpn)> {
        Some((self.path?, self.peer_qpn))
    }

    /// Returns the rate in bit/s to which DCQCN limits it.
    pub(crate) fn rate_bps(&self) -> Option<u64> {
        self.pacer.bps()
    }

    /// Returns the number of send requests that have not completed.
    pub(crate) fn pending_sends(&self) -> usize {
        self.req.len()
    }

    /// Returns the earliest deadline of the queue pair.
    pub(crate) fn deadline(&self) -> Option<Nanos> {
        let [timeout, retry] = self.req.deadlines();
        [timeout, retry, self.pacer.wake_at(), self.resp.ack_deadline()].into_iter().flatten().min()
    }

    /// Validates and queues a request.
    pub(crate) fn post_send(&mut self, request: SendRequest) -> Result<(), QpError> {
        if !self.state.sends() && self.state != State::Error {
            return Err(QpError::State(self.state));
        }
        if self.req.len() >= self.init.max_send {
            return Err(QpError::Full);
        }
        let (len, operation) = (request.data.len(), request.operation);
        let connected = match self.init.transport {
            Transport::Rc => true,
            Transport::Uc => !operation.fetches() && !matches!(operation, Operation::SendInvalidate(_)),
            Transport::Ud => matches!(operation, Operation::Send | Operation::SendImm(_)),
        };
        if !connected {
            return Err(QpError::Transport);
        }
        if (self.init.transport == Transport::Ud) != request.to.is_some() {
            return Err(QpError::Destination);
        }
        if operation.fetches() && !self.req.may_fetch() {
            return Err(QpError::NoFetches);
        }
        let mtu = self.mtu.bytes();
        let inline_fetch = operation.fetches() && matches!(request.data, Data::Inline(_));
        let too_long = match self.init.transport {
            Transport::Ud => len > rocev2::MAX_PAYLOAD,
            Transport::Rc | Transport::Uc => len > MAX_MESSAGE || packets_of(len, mtu) > MAX_PACKETS,
        };
        if inline_fetch || too_long || (operation.is_atomic() && len != 8) {
            return Err(QpError::Length);
        }
        let packets = if self.init.transport == Transport::Ud { 1 } else { packets_of(len, mtu) };
        self.req.push(request, packets);
        Ok(())
    }

    /// Accounts for a packet with data that left.
    fn on_data_sent(&mut self, bytes: usize, now: Nanos, config: &Config) {
        if let Some(dcqcn) = &config.congestion {
            self.pacer.on_sent(bytes, now, dcqcn);
        }
    }

    /// Returns the destination of the next packet.
    fn destination(&self) -> Option<IpAddr> {
        self.req.datagram().map(|to| to.path).or(self.path).map(|path| path.dst)
    }

    /// Returns whether it may have something to send. Windows, credits and rates are checked when its turn
    /// comes.
    pub(crate) fn wants_to_send(&self) -> bool {
        self.resp.wants_to_send() || (self.state.sends() && self.req.wants_to_send())
    }

    /// Returns whether the last request in flight has just completed in state SQD.
    pub(crate) fn has_drained(&mut self) -> bool {
        let drained = self.state == State::Sqd && !self.event_reported && !self.req.is_in_flight();
        self.event_reported |= drained;
        drained
    }

    /// Notes that the first packet has arrived in RTR. Returns whether that completes a handshake.
    pub(crate) fn note_established(&mut self) -> bool {
        self.event_reported = true;
        self.init.transport != Transport::Ud
    }

    /// Returns whether it waits for its neighbour's MAC address.
    pub(crate) const fn is_unresolved(&self) -> bool {
        self.unresolved
    }

    /// Ends the wait for its neighbour's MAC address.
    pub(crate) const fn stop_waiting(&mut self) {
        self.unresolved = false;
    }

    /// Starts to wait for its neighbour's MAC address.
    pub(crate) fn wait_for_neighbour(&mut self, now: Nanos) {
        self.unresolved = true;
        // A host that does not resolve does not acknowledge, either.
        if self.init.transport == Transport::Rc {
            self.req.expect_response(now);
        }
    }

    /// Returns the host whose MAC address it waits for.
    pub(crate) fn unresolved_destination(&self) -> Option<IpAddr> {
        if self.unresolved { self.destination() } else { None }
    }

    /// Returns whether its headers were built with this version of the neighbour table.
    #[inline]
    pub(crate) fn has_path_headers(&self, version: u64) -> bool {
        self.path_headers.is_some_and(|(_, built_with)| built_with == version)
    }

    /// Sets its headers, which were built with this version of the neighbour table.
    pub(crate) const fn set_path_headers(&mut self, path_headers: PathHeaders, version: u64) {
        self.path_headers = Some((path_headers, version));
    }

    /// Returns the UDP source port of its packets to a remote queue pair.
    pub(crate) fn src_port(&self, remote: Qpn) -> u16 {
        src_port(self.qpn, remote)
    }

    /// Returns the destination of the next datagram. In SQD no new datagram starts.
    pub(crate) fn next_datagram(&self) -> Option<UdDestination> {
        if self.state == State::Rts { self.req.datagram() } else { None }
    }
}

#[cfg(test)]
impl Qp {
    /// Returns the receive side.
    pub(crate) fn responder(&mut self) -> &mut Responder {
        &mut self.resp
    }
}
