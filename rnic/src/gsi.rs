//! QP 1: the communication manager on the network, and the verbs by which an application connects its queue
//! pairs, as `rdma_cm` offers them. The communication manager decides; this module moves queue pairs to the
//! matching states.

use crate::cm::{
    self, Accept, CallError, Conn, ConnectError, ConnectRequest, Event as CmEvent, ListenError, Listener,
    Peer, PortSpace, RemoteReply, RemoteRequest,
};
use crate::memory::Access;
use crate::nic::{Config, Rnic};
use crate::qp::{Modify, Path, PathMtu, QpError, ReadyToReceive, ReadyToSend, State, Transport};
use core::net::IpAddr;
use rocev2::aeth::RnrTimer;
use rocev2::cm::RejReason;
use rocev2::{Packet, Psn, Qpn};
use std::collections::{BTreeMap, VecDeque};
use switch::Nanos;

const HOP_LIMIT: u8 = 64;

/// Parameters of one side of a connection, as in `rdma_conn_param`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnParam {
    /// Access that the remote side gets to local memory
    pub access: Access,
    /// READs and atomics from the remote side executed at once
    pub responder_resources: u8,
    /// READs and atomics outstanding at once
    pub initiator_depth: u8,
    /// How often either side retransmits a request that is not acknowledged (3 bits); the connecting side
    /// sets it
    pub retry_count: u8,
    /// How often the remote side retries a request when no receive is posted here (3 bits); 7 is unlimited
    pub rnr_retry_count: u8,
    /// Acknowledgement timeout of both sides: 4.096 us times 2^`ack_timeout` (5 bits); the connecting side
    /// sets it
    pub ack_timeout: u8,
    /// Time that the remote side waits after an RNR NAK
    pub min_rnr_timer: RnrTimer,
    /// Whether end-to-end credits are sent, and heeded if the remote side sends them as well
    pub flow_control: bool,
    /// DSCP and ECN of sent packets; the connecting side sets it for both
    pub traffic_class: u8,
    /// Source port that the connection carries in the RDMA IP CM header; only the connecting side has one
    pub src_port: u16,
    /// Private data for the application
    pub private_data: Vec<u8>,
}

impl Default for ConnParam {
    /// Returns full access, 16 READs and atomics each way, and seven retries with a timeout of 67 ms.
    fn default() -> Self {
        Self {
            access: Access::ALL,
            responder_resources: 16,
            initiator_depth: 16,
            retry_count: 7,
            rnr_retry_count: 7,
            ack_timeout: 14,
            min_rnr_timer: RnrTimer(12),
            flow_control: false,
            traffic_class: 0,
            src_port: 0,
            private_data: Vec::new(),
        }
    }
}

/// Why a connection cannot be opened or changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnError {
    /// The communication manager rejects the request
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The communication manager rejects another call
    #[error(transparent)]
    Call(#[from] CallError),
    /// The queue pair rejects the change
    #[error(transparent)]
    Qp(#[from] QpError),
    /// The queue pair already belongs to a connection
    #[error("the queue pair already belongs to a connection; use another one")]
    Busy,
    /// No local address has the destination's address family
    #[error("no local address of the address family of {0}; configure one")]
    NoAddress(IpAddr),
}

/// A connection and its queue pair.
#[derive(Debug)]
struct Binding {
    qpn: Qpn,
    param: ConnParam,
    /// The PSN of the first incoming request
    rq_psn: Psn,
    ready: Option<ReadyToSend>,
}

/// Connections and their queue pairs.
#[derive(Debug, Default)]
pub(crate) struct Gsi {
    bindings: BTreeMap<Conn, Binding>,
    by_qpn: BTreeMap<u32, Conn>,
    /// Connection requests that the application has neither accepted nor rejected
    requests: BTreeMap<Conn, Box<RemoteRequest>>,
    events: VecDeque<CmEvent>,
}

/// Returns the configuration of the NIC's communication manager.
pub(crate) fn cm_config(config: &Config) -> cm::Config {
    cm::Config { capacity: config.max_qps.max(1024) * 2, ..cm::Config::default() }
}

impl Gsi {
    fn unbind(&mut self, conn: Conn) -> Option<Binding> {
        self.requests.remove(&conn);
        let binding = self.bindings.remove(&conn)?;
        self.by_qpn.remove(&binding.qpn.get());
        Some(binding)
    }
}

impl Rnic {
    /// Starts to report connection requests for a port, through [`poll_cm_event`](Self::poll_cm_event).
    pub fn listen(&mut self, space: PortSpace, port: u16) -> Result<Listener, ListenError> {
        self.listen_service(cm::service_id_of(space, port))
    }

    /// Starts to report connection requests for a service ID.
    pub fn listen_service(&mut self, service_id: u64) -> Result<Listener, ListenError> {
        self.endpoint.cm_mut().listen(service_id)
    }

    /// Rejects connection requests from now on.
    pub fn unlisten(&mut self, listener: Listener) {
        self.endpoint.cm_mut().unlisten(listener);
    }

    /// Requests a connection of a queue pair to a service of host `to`. The queue pair goes to Init. When the
    /// remote side accepts, it goes to RTS, and `Replied` is reported. Post receives before this call, sends
    /// after `Replied`.
    pub fn connect(
        &mut self,
        qpn: Qpn,
        to: IpAddr,
        service_id: u64,
        param: ConnParam,
        now: Nanos,
    ) -> Result<Conn, ConnError> {
        let transport = self.connectable(qpn)?;
        let local = self.config.interface.source_for(to).ok_or(ConnError::NoAddress(to))?;
        let rq_psn = Psn::new(self.rng.bits() as u32);
        let request = ConnectRequest {
            cma_src_port: cm::port_of(service_id).map(|_| param.src_port),
            private_data: param.private_data.clone(),
            transport,
            path_mtu: self.config.mtu.bytes() as u16,
            responder_resources: param.responder_resources,
            initiator_depth: param.initiator_depth,
            // The REQ carries at most 7; the local requester may retry more often.
            retry_count: param.retry_count.min(7),
            rnr_retry_count: param.rnr_retry_count,
            ack_timeout: param.ack_timeout,
            srq: self.qp_init(qpn).is_some_and(|init| init.srq.is_some()),
            flow_control: param.flow_control,
            traffic_class: param.traffic_class,
            hop_limit: HOP_LIMIT,
            ..ConnectRequest::new(Peer { local, remote: to }, service_id, qpn, rq_psn)
        };
        if self.qp_state(qpn) == Some(State::Reset) {
            self.modify_qp(qpn, Modify::Init { access: param.access, qkey: 0 })?;
        }
        let conn = self.endpoint.cm_mut().connect(&request, now)?;
        self.gsi.by_qpn.insert(qpn.get(), conn);
        self.gsi.bindings.insert(conn, Binding { qpn, param, rq_psn, ready: None });
        self.process_cm_events(now);
        Ok(conn)
    }

    /// Accepts a connection that was reported as `Requested`. The queue pair goes to RTR, and to RTS when
    /// `Established` is reported. Post receives before `accept`, sends after `Established`.
    pub fn accept(&mut self, conn: Conn, qpn: Qpn, param: ConnParam, now: Nanos) -> Result<(), ConnError> {
        let transport = self.connectable(qpn)?;
        let request = self.gsi.requests.get(&conn).ok_or(CallError::Unknown)?.clone();
        if transport != request.transport {
            return Err(QpError::Transport.into());
        }
        let rq_psn = Psn::new(self.rng.bits() as u32);
        // The negotiated depths are the smaller of both sides' values (IB 12.7.29, 12.7.30).
        let responder_resources = param.responder_resources.min(request.initiator_depth);
        let initiator_depth = param.initiator_depth.min(request.responder_resources);
        let reply = Accept {
            responder_resources,
            initiator_depth,
            rnr_retry_count: param.rnr_retry_count,
            srq: self.qp_init(qpn).is_some_and(|init| init.srq.is_some()),
            flow_control: param.flow_control,
            private_data: param.private_data.clone(),
            ..Accept::new(qpn, rq_psn)
        };
        self.endpoint.cm().check_accept(conn, &reply)?;
        let ready = ReadyToSend {
            sq_psn: request.starting_psn,
            max_rd_atomic: initiator_depth,
            timeout: request.ack_timeout,
            retry_count: request.retry_count,
            rnr_retry: request.rnr_retry_count,
            flow_control: param.flow_control && request.flow_control,
        };
        let path = Path {
            traffic_class: request.traffic_class,
            hop_limit: request.hop_limit.max(1),
            ..Path::new(request.peer.local, request.peer.remote)
        };
        let mtu = PathMtu::of_bytes(request.path_mtu).unwrap_or(self.config.mtu);
        if self.qp_state(qpn) == Some(State::Reset) {
            self.modify_qp(qpn, Modify::Init { access: param.access, qkey: 0 })?;
        }
        let binding = Binding { qpn, param, rq_psn, ready: Some(ready) };
        self.ready_to_receive(&binding, path, request.qpn, mtu, responder_resources)?;
        self.endpoint.cm_mut().accept(conn, &reply, now)?;
        self.gsi.requests.remove(&conn);
        self.gsi.by_qpn.insert(qpn.get(), conn);
        self.gsi.bindings.insert(conn, binding);
        self.process_cm_events(now);
        Ok(())
    }

    /// Rejects a connection request, or gives up a connection before it is established.
    pub fn reject(
        &mut self,
        conn: Conn,
        reason: RejReason,
        private_data: &[u8],
        now: Nanos,
    ) -> Result<(), ConnError> {
        self.endpoint.cm_mut().reject(conn, reason, private_data, now)?;
        self.end_connection(conn);
        self.process_cm_events(now);
        Ok(())
    }

    /// Disconnects a connection: its queue pair goes into the error state, and `Disconnected` is reported.
    pub fn disconnect(&mut self, conn: Conn, private_data: &[u8], now: Nanos) -> Result<(), ConnError> {
        self.endpoint.cm_mut().disconnect(conn, private_data, now)?;
        self.fail_qp(conn);
        self.process_cm_events(now);
        Ok(())
    }

    /// Returns the next connection event.
    pub fn poll_cm_event(&mut self) -> Option<CmEvent> {
        self.gsi.events.pop_front()
    }

    /// Returns the queue pair of a connection.
    pub fn connection_qp(&self, conn: Conn) -> Option<Qpn> {
        self.gsi.bindings.get(&conn).map(|binding| binding.qpn)
    }

    /// Returns the connection of a queue pair.
    pub fn connection_of(&self, qpn: Qpn) -> Option<Conn> {
        self.gsi.by_qpn.get(&qpn.get()).copied()
    }

    /// Returns the transport service with which a queue pair can be connected.
    fn connectable(&self, qpn: Qpn) -> Result<cm::Transport, ConnError> {
        let qp = self.qp(qpn).ok_or(QpError::Unknown)?;
        if self.gsi.by_qpn.contains_key(&qpn.get()) {
            return Err(ConnError::Busy);
        }
        if !matches!(qp.state, State::Reset | State::Init) {
            return Err(QpError::State(qp.state).into());
        }
        match qp.init.transport {
            Transport::Rc => Ok(cm::Transport::Rc),
            Transport::Uc => Ok(cm::Transport::Uc),
            Transport::Ud => Err(QpError::Transport.into()),
        }
    }

    fn ready_to_receive(
        &mut self,
        binding: &Binding,
        path: Path,
        dest_qp: Qpn,
        mtu: PathMtu,
        max_dest_rd_atomic: u8,
    ) -> Result<(), QpError> {
        let ready = ReadyToReceive {
            path,
            dest_qp,
            mtu,
            rq_psn: binding.rq_psn,
            max_dest_rd_atomic,
            min_rnr_timer: binding.param.min_rnr_timer,
        };
        self.modify_qp(binding.qpn, Modify::Rtr(ready))
    }

    /// Moves queue pairs as the communication manager's events require, and reports the events.
    pub(crate) fn process_cm_events(&mut self, now: Nanos) {
        while let Some(event) = self.endpoint.cm_mut().poll_event() {
            let conn = event.conn();
            let report = match &event {
                CmEvent::Requested { request, .. } => self.on_requested(conn, request, now),
                CmEvent::Replied { reply, .. } => self.on_replied(conn, reply, now),
                CmEvent::Established { .. } => {
                    if let Some(binding) = self.gsi.bindings.get(&conn)
                        && let Some(ready) = binding.ready
                    {
                        // This fails if the queue pair has failed meanwhile, which another event reports.
                        _ = self.modify_qp(binding.qpn, Modify::Rts(ready));
                    }
                    true
                }
                CmEvent::Disconnecting { .. } => {
                    self.fail_qp(conn);
                    true
                }
                CmEvent::Rejected { .. } | CmEvent::Disconnected { .. } | CmEvent::Unreachable { .. } => {
                    self.end_connection(conn);
                    true
                }
            };
            if report {
                self.gsi.events.push_back(event);
            }
        }
    }

    /// Returns whether the application decides on the request.
    fn on_requested(&mut self, conn: Conn, request: &RemoteRequest, now: Nanos) -> bool {
        // Packets longer than the port's MTU would always be lost.
        if request.path_mtu as usize > self.config.mtu.bytes() {
            _ = self.endpoint.cm_mut().reject(conn, RejReason::INVALID_PATH_MTU, &[], now);
            return false;
        }
        self.gsi.requests.insert(conn, Box::new(request.clone()));
        true
    }

    /// Handles the remote side's REP. Returns whether to report it to the application.
    fn on_replied(&mut self, conn: Conn, reply: &RemoteReply, now: Nanos) -> bool {
        let Some(binding) = self.gsi.bindings.remove(&conn) else { return false };
        let Some(peer) = self.endpoint.cm().info(conn).map(|info| info.peer) else { return false };
        let param = &binding.param;
        let path = Path { traffic_class: param.traffic_class, ..Path::new(peer.local, peer.remote) };
        let ready = ReadyToSend {
            sq_psn: reply.starting_psn,
            max_rd_atomic: param.initiator_depth.min(reply.responder_resources),
            timeout: param.ack_timeout,
            retry_count: param.retry_count,
            rnr_retry: reply.rnr_retry_count,
            flow_control: param.flow_control && reply.flow_control,
        };
        let (qpn, resources) = (binding.qpn, param.responder_resources.min(reply.initiator_depth));
        let set_up = self
            .ready_to_receive(&binding, path, reply.qpn, self.config.mtu, resources)
            .and_then(|()| self.modify_qp(qpn, Modify::Rts(ready)));
        self.gsi.bindings.insert(conn, binding);
        // The application may have destroyed or changed its queue pair while it was being connected.
        if set_up.is_err() || self.endpoint.cm_mut().confirm(conn, &[]).is_err() {
            _ = self.endpoint.cm_mut().reject(conn, RejReason::CONSUMER, &[], now);
            self.end_connection(conn);
            return false;
        }
        true
    }

    fn fail_qp(&mut self, conn: Conn) {
        if let Some(qpn) = self.connection_qp(conn) {
            // The queue pair may have been destroyed.
            _ = self.modify_qp(qpn, Modify::Error);
        }
    }

    fn end_connection(&mut self, conn: Conn) {
        self.fail_qp(conn);
        self.gsi.unbind(conn);
    }

    /// Processes a packet to QP 1.
    pub(crate) fn on_gsi(&mut self, packet: &Packet<'_>, now: Nanos) {
        if self.endpoint.on_mad(packet, now) {
            self.process_cm_events(now);
        } else {
            self.counters.no_qp += 1;
        }
    }

    /// Completes the handshake of a queue pair that received data before the handshake was complete.
    pub(crate) fn established_by_traffic(&mut self, qpn: Qpn, now: Nanos) {
        if let Some(conn) = self.connection_of(qpn) {
            self.endpoint.cm_mut().established_by_traffic(conn);
            self.process_cm_events(now);
        }
    }

    /// Aborts the connection of a queue pair that is being destroyed.
    pub(crate) fn release_connection(&mut self, qpn: Qpn) {
        if let Some(conn) = self.connection_of(qpn) {
            self.gsi.unbind(conn);
            self.endpoint.cm_mut().abort(conn);
        }
    }
}
