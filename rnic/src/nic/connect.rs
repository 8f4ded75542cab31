//! QP 1: the communication manager on the network, and the verbs by which an application connects its queue
//! pairs, as `rdma_cm` offers them. The communication manager decides; this module moves queue pairs to the
//! matching states.

use super::Rnic;
use crate::cm::{
    self, Accept, AddressPair, CallError, Conn, ConnectRequest, Event as CmEvent, ListenError, Listener,
    PortSpace, RemoteReply, RemoteRequest,
};
use crate::connections::{Binding, ConnError, ConnParam};
use crate::path::{Path, PathMtu};
use crate::qp::{Modify, QpError, QpInit, ReadyToReceive, ReadyToSend, State, Transport};
use core::net::IpAddr;
use rocev2::cm::RejReason;
use rocev2::{Packet, Psn, Qpn};
use switch::Nanos;

const HOP_LIMIT: u8 = 64;

impl Rnic {
    /// Starts to report connection requests for a port, through [`poll_cm_event`](Self::poll_cm_event).
    ///
    /// # Errors
    /// [`ListenError::Taken`] if the port already has a listener.
    pub fn listen(&mut self, space: PortSpace, port: u16) -> Result<Listener, ListenError> {
        self.listen_service(cm::service_id_of(space, port))
    }

    /// Starts to report connection requests for a service ID.
    ///
    /// # Errors
    /// [`ListenError::Taken`] if the service ID already has a listener.
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
    ///
    /// # Errors
    /// [`ConnError::Qp`] if the queue pair does not exist, is UD, or is not in the state Reset or Init,
    /// [`ConnError::Busy`] if it already has a connection, [`ConnError::NoAddress`] if the NIC has no address
    /// of `to`'s address family, and [`ConnError::Connect`] if `param` has too much private data or a value
    /// out of range, or the limit of connections is reached.
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
            ..ConnectRequest::new(AddressPair { local, remote: to }, service_id, qpn, rq_psn)
        };
        if self.qp_state(qpn) == Some(State::Reset) {
            self.modify_qp(qpn, Modify::Init { access: param.access, qkey: 0 })?;
        }
        let conn = self.endpoint.cm_mut().connect(&request, now)?;
        self.connections.bind(conn, Binding { qpn, param, rq_psn, ready: None });
        self.process_cm_events(now);
        Ok(conn)
    }

    /// Accepts a connection that was reported as `Requested`. The queue pair goes to RTR, and to RTS when
    /// `Established` is reported. Post receives before `accept`, sends after `Established`.
    ///
    /// # Errors
    /// [`ConnError::Qp`] if the queue pair does not exist, is not of the requested transport service, or is
    /// not in the state Reset or Init, [`ConnError::Busy`] if it already has a connection, and
    /// [`ConnError::Call`] if the request does not exist or was answered, or `param` has too much private
    /// data.
    pub fn accept(&mut self, conn: Conn, qpn: Qpn, param: ConnParam, now: Nanos) -> Result<(), ConnError> {
        let transport = self.connectable(qpn)?;
        let request = self.connections.request(conn).ok_or(CallError::Unknown)?.clone();
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
            ..Path::new(request.addresses.local, request.addresses.remote)
        };
        let mtu = PathMtu::of_bytes(request.path_mtu).unwrap_or(self.config.mtu);
        if self.qp_state(qpn) == Some(State::Reset) {
            self.modify_qp(qpn, Modify::Init { access: param.access, qkey: 0 })?;
        }
        let receive = ReadyToReceive {
            path,
            dest_qp: request.qpn,
            mtu,
            rq_psn,
            max_dest_rd_atomic: responder_resources,
            min_rnr_timer: param.min_rnr_timer,
        };
        self.modify_qp(qpn, Modify::Rtr(receive))?;
        self.endpoint.cm_mut().accept(conn, &reply, now)?;
        self.connections.bind(conn, Binding { qpn, param, rq_psn, ready: Some(ready) });
        self.process_cm_events(now);
        Ok(())
    }

    /// Creates a queue pair and requests a connection of it to port `to.1` of host `to.0`, in the TCP port
    /// space. Post receives after this call, sends after `Replied`; destroy the queue pair after the
    /// connection's last event. If the call fails, no queue pair is left.
    ///
    /// # Errors
    /// [`ConnError::Qp`] if the queue pair cannot be created ([`create_qp`](Self::create_qp)), and otherwise
    /// as [`connect`](Self::connect).
    pub fn connect_new(
        &mut self,
        init: QpInit,
        to: (IpAddr, u16),
        param: ConnParam,
        now: Nanos,
    ) -> Result<(Qpn, Conn), ConnError> {
        let qpn = self.create_qp(init)?;
        match self.connect(qpn, to.0, cm::service_id_of(PortSpace::Tcp, to.1), param, now) {
            Ok(conn) => Ok((qpn, conn)),
            Err(error) => Err(self.discard(qpn, error)),
        }
    }

    /// Creates a queue pair and accepts a connection request with it. Post receives after this call, sends
    /// after `Established`; destroy the queue pair after the connection's last event. If the call fails, no
    /// queue pair is left, and the request is still to be accepted or rejected.
    ///
    /// # Errors
    /// [`ConnError::Qp`] if the queue pair cannot be created ([`create_qp`](Self::create_qp)), and otherwise
    /// as [`accept`](Self::accept).
    pub fn accept_new(
        &mut self,
        conn: Conn,
        init: QpInit,
        param: ConnParam,
        now: Nanos,
    ) -> Result<Qpn, ConnError> {
        let qpn = self.create_qp(init)?;
        match self.accept(conn, qpn, param, now) {
            Ok(()) => Ok(qpn),
            Err(error) => Err(self.discard(qpn, error)),
        }
    }

    /// Destroys a queue pair that could not be connected. Returns the reason.
    fn discard(&mut self, qpn: Qpn, error: ConnError) -> ConnError {
        // It exists: the caller has just created it.
        _ = self.destroy_qp(qpn);
        error
    }

    /// Rejects a connection request, or gives up a connection before it is established.
    ///
    /// # Errors
    /// [`ConnError::Call`] if the connection does not exist or was established, or the private data is too
    /// long.
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
    ///
    /// # Errors
    /// [`ConnError::Call`] if the connection does not exist or is not established, or the private data is too
    /// long.
    pub fn disconnect(&mut self, conn: Conn, private_data: &[u8], now: Nanos) -> Result<(), ConnError> {
        self.endpoint.cm_mut().disconnect(conn, private_data, now)?;
        self.fail_qp(conn);
        self.process_cm_events(now);
        Ok(())
    }

    /// Returns the next connection event.
    #[inline]
    pub fn poll_cm_event(&mut self) -> Option<CmEvent> {
        self.connections.poll_event()
    }

    /// Returns the queue pair of a connection.
    pub fn connection_qp(&self, conn: Conn) -> Option<Qpn> {
        self.connections.binding(conn).map(|binding| binding.qpn)
    }

    /// Returns the connection of a queue pair.
    pub fn connection_of(&self, qpn: Qpn) -> Option<Conn> {
        self.connections.of_qp(qpn)
    }

    /// Returns the transport service with which a queue pair can be connected.
    fn connectable(&self, qpn: Qpn) -> Result<cm::ConnectedTransport, ConnError> {
        let qp = self.qps.find(qpn).ok_or(QpError::Unknown)?;
        if self.connection_of(qpn).is_some() {
            return Err(ConnError::Busy);
        }
        if !matches!(qp.state(), State::Reset | State::Init) {
            return Err(QpError::State(qp.state()).into());
        }
        match qp.init().transport {
            Transport::Rc => Ok(cm::ConnectedTransport::Rc),
            Transport::Uc => Ok(cm::ConnectedTransport::Uc),
            Transport::Ud => Err(QpError::Transport.into()),
        }
    }

    /// Moves queue pairs as the communication manager's events require, and reports the events.
    pub(super) fn process_cm_events(&mut self, now: Nanos) {
        while let Some(event) = self.endpoint.cm_mut().poll_event() {
            let conn = event.conn();
            let report = match &event {
                CmEvent::Requested { request, .. } => self.on_requested(conn, request, now),
                CmEvent::Replied { reply, .. } => self.on_replied(conn, reply, now),
                CmEvent::Established { .. } => {
                    if let Some(binding) = self.connections.binding(conn)
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
                self.connections.report(event);
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
        self.connections.add_request(conn, request);
        true
    }

    /// Handles the remote side's REP. Returns whether to report it to the application.
    fn on_replied(&mut self, conn: Conn, reply: &RemoteReply, now: Nanos) -> bool {
        let Some(binding) = self.connections.binding(conn) else { return false };
        let Some(addresses) = self.endpoint.cm().info(conn).map(|info| info.addresses) else { return false };
        let param = &binding.param;
        let path =
            Path { traffic_class: param.traffic_class, ..Path::new(addresses.local, addresses.remote) };
        let ready = ReadyToSend {
            sq_psn: reply.starting_psn,
            max_rd_atomic: param.initiator_depth.min(reply.responder_resources),
            timeout: param.ack_timeout,
            retry_count: param.retry_count,
            rnr_retry: reply.rnr_retry_count,
            flow_control: param.flow_control && reply.flow_control,
        };
        let qpn = binding.qpn;
        let receive = ReadyToReceive {
            path,
            dest_qp: reply.qpn,
            mtu: self.config.mtu,
            rq_psn: binding.rq_psn,
            max_dest_rd_atomic: param.responder_resources.min(reply.initiator_depth),
            min_rnr_timer: param.min_rnr_timer,
        };
        let set_up =
            self.modify_qp(qpn, Modify::Rtr(receive)).and_then(|()| self.modify_qp(qpn, Modify::Rts(ready)));
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
        self.connections.unbind(conn);
    }

    /// Processes a packet to QP 1.
    pub(super) fn on_gsi(&mut self, packet: &Packet<'_>, now: Nanos) {
        if self.endpoint.on_mad(packet, now) {
            self.process_cm_events(now);
        } else {
            self.counters.no_qp += 1;
        }
    }

    /// Completes the handshake of a queue pair that received data before the handshake was complete.
    pub(super) fn established_by_traffic(&mut self, qpn: Qpn, now: Nanos) {
        if let Some(conn) = self.connection_of(qpn) {
            self.endpoint.cm_mut().established_by_traffic(conn);
            self.process_cm_events(now);
        }
    }

    /// Aborts the connection of a queue pair that is being destroyed.
    pub(super) fn release_connection(&mut self, qpn: Qpn) {
        if let Some(conn) = self.connection_of(qpn) {
            self.connections.unbind(conn);
            self.endpoint.cm_mut().abort(conn);
        }
    }
}
