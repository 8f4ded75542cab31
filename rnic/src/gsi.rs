//! QP 1: the communication manager on the wire, and the verbs by which an application has its queue pairs connected, as
//! `rdma_cm` offers them. The manager decides; here queue pairs follow.

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

/// What an application says of its end of a connection, as `rdma_conn_param` does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnParam {
    /// What the other side may do
    pub access: Access,
    /// READs and atomics executed at once for the other side
    pub responder_resources: u8,
    /// READs and atomics outstanding at once
    pub initiator_depth: u8,
    /// How often either side repeats a request that is not acknowledged (3 bits); said by the side that connects
    pub retry_count: u8,
    /// How often the other side repeats a request when no receive is posted here (3 bits); 7 for ever
    pub rnr_retry_count: u8,
    /// How long either side waits for an acknowledgement: 4.096 us times two to this (5 bits); said by the side that
    /// connects
    pub ack_timeout: u8,
    /// For how long the other side waits when no receive is posted here
    pub min_rnr_timer: RnrTimer,
    /// Credits are announced, and heeded if the other side announces them as well
    pub flow_control: bool,
    /// DSCP and ECN of what is sent; the side that connects says it for both
    pub traffic_class: u8,
    /// The port that the connection seems to come from; only the side that connects has one
    pub src_port: u16,
    /// The application's own
    pub private_data: Vec<u8>,
}

impl Default for ConnParam {
    /// All rights, 16 READs and atomics each way, seven retries after 67 ms each.
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

/// A connection that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnError {
    /// What the manager says to a request
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// What the manager says to another call
    #[error(transparent)]
    Call(#[from] CallError),
    /// What the queue pair says
    #[error(transparent)]
    Qp(#[from] QpError),
    /// The queue pair is another connection's
    #[error("the queue pair has a connection")]
    Busy,
    /// No own address is of the destination's family
    #[error("no own address speaks to {0}")]
    NoAddress(IpAddr),
}

/// A connection and its queue pair.
#[derive(Debug)]
struct Binding {
    qpn: Qpn,
    param: ConnParam,
    /// The PSN of the first request to come
    rq_psn: Psn,
    ready: Option<ReadyToSend>,
}

/// Connections and their queue pairs.
#[derive(Debug, Default)]
pub(crate) struct Gsi {
    bindings: BTreeMap<Conn, Binding>,
    by_qpn: BTreeMap<u32, Conn>,
    /// Requests that the application has not answered
    requests: BTreeMap<Conn, Box<RemoteRequest>>,
    events: VecDeque<CmEvent>,
}

/// What the NIC's communication manager is told.
pub(crate) fn cm_of(config: &Config) -> cm::Config {
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
    /// Requests for a port are reported from now on, by [`poll_cm_event`](Self::poll_cm_event).
    pub fn listen(&mut self, space: PortSpace, port: u16) -> Result<Listener, ListenError> {
        self.listen_service(cm::service_id_of(space, port))
    }

    /// Requests for a service are reported from now on.
    pub fn listen_service(&mut self, service_id: u64) -> Result<Listener, ListenError> {
        self.endpoint.cm_mut().listen(service_id)
    }

    /// Requests are rejected from now on.
    pub fn unlisten(&mut self, listener: Listener) {
        self.endpoint.cm_mut().unlisten(listener);
    }

    /// Asks a host for a connection of a queue pair to a service. The queue pair goes to Init. When the other side
    /// accepts, it goes to RTS, and `Replied` is reported: receives are posted before, sends after.
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
        let rq_psn = Psn::new(self.chance.bits() as u32);
        let request = ConnectRequest {
            cma_src_port: cm::port_of(service_id).map(|_| param.src_port),
            private_data: param.private_data.clone(),
            transport,
            path_mtu: self.config.mtu.bytes() as u16,
            responder_resources: param.responder_resources,
            initiator_depth: param.initiator_depth,
            // The other side is told the most that can be said; here, more is possible.
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
        self.follow(now);
        Ok(conn)
    }

    /// Takes up a connection that was `Requested`. The queue pair goes to RTR, and to RTS when `Established` is
    /// reported: receives are posted before `accept`, sends after `Established`.
    pub fn accept(&mut self, conn: Conn, qpn: Qpn, param: ConnParam, now: Nanos) -> Result<(), ConnError> {
        let transport = self.connectable(qpn)?;
        let request = self.gsi.requests.get(&conn).ok_or(CallError::Unknown)?.clone();
        if transport != request.transport {
            return Err(QpError::Transport.into());
        }
        let rq_psn = Psn::new(self.chance.bits() as u32);
        // What neither side can have more of (IB 12.7.29, 12.7.30).
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
        self.follow(now);
        Ok(())
    }

    /// Refuses a connection, or gives it up before it stands.
    pub fn reject(
        &mut self,
        conn: Conn,
        reason: RejReason,
        private_data: &[u8],
        now: Nanos,
    ) -> Result<(), ConnError> {
        self.endpoint.cm_mut().reject(conn, reason, private_data, now)?;
        self.end(conn);
        self.follow(now);
        Ok(())
    }

    /// Ends a connection: its queue pair goes into the error state, and `Disconnected` is reported.
    pub fn disconnect(&mut self, conn: Conn, private_data: &[u8], now: Nanos) -> Result<(), ConnError> {
        self.endpoint.cm_mut().disconnect(conn, private_data, now)?;
        self.fail_qp(conn);
        self.follow(now);
        Ok(())
    }

    /// The next thing that happened to a connection
    pub fn poll_cm_event(&mut self) -> Option<CmEvent> {
        self.gsi.events.pop_front()
    }

    /// The queue pair of a connection
    pub fn qp_of(&self, conn: Conn) -> Option<Qpn> {
        self.gsi.bindings.get(&conn).map(|binding| binding.qpn)
    }

    /// The connection of a queue pair
    pub fn connection_of(&self, qpn: Qpn) -> Option<Conn> {
        self.gsi.by_qpn.get(&qpn.get()).copied()
    }

    /// Whether a queue pair can be connected, and as what.
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

    /// Does what the manager's events ask of queue pairs, and reports them.
    pub(crate) fn follow(&mut self, now: Nanos) {
        while let Some(event) = self.endpoint.cm_mut().poll_event() {
            let conn = event.conn();
            let report = match &event {
                CmEvent::Requested { request, .. } => self.on_requested(conn, request, now),
                CmEvent::Replied { reply, .. } => self.on_replied(conn, reply, now),
                CmEvent::Established { .. } => {
                    if let Some(binding) = self.gsi.bindings.get(&conn)
                        && let Some(ready) = binding.ready
                    {
                        // It fails if the queue pair has failed meanwhile, which is told by itself.
                        _ = self.modify_qp(binding.qpn, Modify::Rts(ready));
                    }
                    true
                }
                CmEvent::Disconnecting { .. } => {
                    self.fail_qp(conn);
                    true
                }
                CmEvent::Rejected { .. } | CmEvent::Disconnected { .. } | CmEvent::Unreachable { .. } => {
                    self.end(conn);
                    true
                }
            };
            if report {
                self.gsi.events.push_back(event);
            }
        }
    }

    /// Whether the application is to decide.
    fn on_requested(&mut self, conn: Conn, request: &RemoteRequest, now: Nanos) -> bool {
        // A longer packet than the port carries would be lost each time.
        if request.path_mtu as usize > self.config.mtu.bytes() {
            _ = self.endpoint.cm_mut().reject(conn, RejReason::INVALID_PATH_MTU, &[], now);
            return false;
        }
        self.gsi.requests.insert(conn, Box::new(request.clone()));
        true
    }

    /// The other side has accepted. Whether the application is to know.
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
        // The application has destroyed or changed its queue pair while it was being connected.
        if set_up.is_err() || self.endpoint.cm_mut().confirm(conn, &[]).is_err() {
            _ = self.endpoint.cm_mut().reject(conn, RejReason::CONSUMER, &[], now);
            self.end(conn);
            return false;
        }
        true
    }

    fn fail_qp(&mut self, conn: Conn) {
        if let Some(qpn) = self.qp_of(conn) {
            // It may be gone.
            _ = self.modify_qp(qpn, Modify::Error);
        }
    }

    fn end(&mut self, conn: Conn) {
        self.fail_qp(conn);
        self.gsi.unbind(conn);
    }

    /// A packet to QP 1
    pub(crate) fn on_gsi(&mut self, packet: &Packet<'_>, now: Nanos) {
        if self.endpoint.on_mad(packet, now) {
            self.follow(now);
        } else {
            self.counters.no_qp += 1;
        }
    }

    /// Data has come to a queue pair whose handshake is not over: it is.
    pub(crate) fn established_by_traffic(&mut self, qpn: Qpn, now: Nanos) {
        if let Some(conn) = self.connection_of(qpn) {
            self.endpoint.cm_mut().established_by_traffic(conn);
            self.follow(now);
        }
    }

    /// A queue pair is destroyed: so is its connection.
    pub(crate) fn release(&mut self, qpn: Qpn) {
        if let Some(conn) = self.connection_of(qpn) {
            self.gsi.unbind(conn);
            self.endpoint.cm_mut().abort(conn);
        }
    }
}
