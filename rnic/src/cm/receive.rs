//! Processing of received messages.

use super::connection::Connection;
use super::types::{AddressPair, Conn, Event, Listener};
use super::wire::{self, MessageType};
use super::{Cm, State};
use crate::part::{Notice, SETTLED_AFTER};
use core::net::IpAddr;
use rocev2::Qpn;
use rocev2::cm::{Body, Drep, Dreq, Kind, Message, Mra, Rej, RejReason, Rep, Req, Rtu};
use switch::{Full, Nanos};

/// MAD method of every CM message (Send). No CM message is a response in the sense of IB 13.4.5.
const METHOD_SEND: u8 = 3;

impl Cm {
    /// Processes a MAD that arrived on QP 1: the payload that [`mad_of`](rocev2::cm::mad_of) returns. A MAD
    /// that is not a CM message, or belongs to no connection, is ignored or rejected as IB 12.9.8 requires.
    pub fn on_mad(&mut self, addresses: AddressPair, mad: &[u8], now: Nanos) {
        let Ok(message) = Message::parse(mad) else { return };
        if message.header.method != METHOD_SEND {
            return;
        }
        let transaction = message.header.transaction_id.get();
        match message.body {
            Body::Req(req) => self.on_req(addresses, transaction, req, now),
            Body::Mra(mra) => self.on_mra(addresses, mra, now),
            Body::Rej(rej) => self.on_rej(addresses, rej, now),
            Body::Rep(rep) => self.on_rep(addresses, transaction, rep, now),
            Body::Rtu(rtu) => self.on_rtu(addresses, rtu),
            Body::Dreq(dreq) => self.on_dreq(addresses, transaction, dreq, now),
            Body::Drep(drep) => self.on_drep(addresses, drep, now),
            // RoCE has no alternate paths; Linux ignores these messages, too.
            Body::Opaque(..) => {}
        }
    }

    /// Returns the local connection that matches both IDs of a message.
    fn find(&self, addresses: AddressPair, local_id: u32, remote_id: u32) -> Option<(Conn, &Connection)> {
        let conn = Conn(local_id);
        let connection = self.table.get(conn)?;
        let same = connection.addresses.remote == addresses.remote && connection.remote_id == Some(remote_id);
        same.then_some((conn, connection))
    }

    fn on_req(&mut self, addresses: AddressPair, transaction: u64, req: &Req, now: Nanos) {
        let remote_id = req.local_comm_id.get();
        let by_id = self.table.by_remote_id.get(addresses.remote, remote_id);
        if let Some(conn) = by_id
            && let Some(connection) = self.table.get(conn)
            && wire::is_retransmission(connection, transaction, req.qpn(), req.starting_psn())
        {
            self.resend_response(conn, addresses, transaction, remote_id);
            return;
        }
        if let Err(reason) = self.on_new_req(addresses, transaction, req, by_id, now) {
            self.enqueue(addresses, wire::rej_of(MessageType::Req, transaction, remote_id, 0, reason));
        }
    }

    /// Processes a REQ that is not a retransmission.
    fn on_new_req(
        &mut self,
        addresses: AddressPair,
        transaction: u64,
        req: &Req,
        by_id: Option<Conn>,
        now: Nanos,
    ) -> Result<(), RejReason> {
        if self.close_stale_connections(addresses, by_id, req.qpn(), None, now) {
            return Err(RejReason::STALE_CONNECTION);
        }
        let service_id = req.service_id.get();
        if !self.listeners.contains(&service_id) {
            return Err(RejReason::INVALID_SERVICE_ID);
        }
        let request = wire::read_req(addresses, req)?;
        let mut connection = Connection::new(State::ReqReceived, addresses, service_id, transaction);
        connection.request_psn = request.starting_psn;
        connection.timeout = self.bounded_timeout(wire::span(request.response_timeout));
        connection.max_retries = request.max_cm_retries;
        if request.ack_timeout != 0 {
            connection.round_trip = wire::span(request.ack_timeout);
        }
        let conn = self.table.insert(connection).map_err(|Full| RejReason::NO_RESOURCES)?;
        if self.bind(conn, req.local_comm_id.get(), req.qpn(), now) == Err(Full) {
            self.table.remove(conn);
            return Err(RejReason::NO_RESOURCES);
        }
        let listener = Listener(service_id);
        self.events.push_back(Event::Requested { conn, listener, request: Box::new(request) });
        Ok(())
    }

    /// Closes other connections with the same remote ID or queue pair. Returns whether there was one.
    fn close_stale_connections(
        &mut self,
        addresses: AddressPair,
        by_id: Option<Conn>,
        qpn: Qpn,
        except: Option<Conn>,
        now: Nanos,
    ) -> bool {
        let by_qpn = self.table.by_remote_qpn.get(addresses.remote, qpn.get());
        let mut stale = false;
        for conn in [by_id, by_qpn].into_iter().flatten() {
            let Some(old) = self.table.get(conn).filter(|_| Some(conn) != except) else { continue };
            if old.state != State::TimeWait {
                // If `except` is set, the remote side answered our REQ: an old connection in state `DreqSent`
                // is then known to be closed on the remote side, and does not make the reply stale.
                stale |= except.is_none() || old.state != State::DreqSent;
                self.close_stale(conn, now);
            }
        }
        stale
    }

    /// Stores the remote side's ID of a connection and its queue pair.
    fn bind(&mut self, conn: Conn, comm_id: u32, qpn: Qpn, now: Nanos) -> Result<(), Full> {
        self.table.bind(conn, comm_id, qpn, now)?;
        if self.config.ids.is_part() {
            self.unsettled.push_back((now + SETTLED_AFTER, conn));
        }
        Ok(())
    }

    /// Closes connections to a queue pair, and those with a remote ID, that are older than `than`: a manager that has other
    /// IDs of the same set has a newer one.
    pub(crate) fn close_older(&mut self, host: IpAddr, qpn: Qpn, comm_id: u32, than: Nanos, now: Nanos) {
        let by_id = self.table.by_remote_id.get(host, comm_id);
        let by_qpn = self.table.by_remote_qpn.get(host, qpn.get());
        let is_older = |old: &Connection| old.state != State::TimeWait && old.bound_at < than;
        for conn in [by_id, by_qpn].into_iter().flatten() {
            if self.table.get(conn).is_some_and(is_older) {
                self.close_stale(conn, now);
            }
        }
    }

    /// Closes the connection with this remote ID whose request the remote side gave up at `given_up`, as another manager has
    /// found out. Without a reply to its REP it is not newer, whenever its request was taken from a queue.
    pub(crate) fn close_given_up(&mut self, host: IpAddr, comm_id: u32, given_up: Nanos, now: Nanos) {
        let Some(conn) = self.table.by_remote_id.get(host, comm_id) else { return };
        let Some(connection) = self.table.get(conn) else { return };
        let is_half_open = !connection.active
            && matches!(
                connection.state,
                State::ReqReceived | State::MraReqSent | State::RepSent | State::MraRepReceived
            );
        if is_half_open || connection.bound_at < given_up {
            self.on_rejected(conn, RejReason::TIMEOUT, &[], now);
        }
    }

    /// Answers a retransmitted REQ: the remote side did not receive the first response.
    fn resend_response(&mut self, conn: Conn, addresses: AddressPair, transaction: u64, remote_id: u32) {
        let Some(connection) = self.table.get(conn) else { return };
        let last_kind = connection.last.map(|(kind, _)| kind);
        match connection.state {
            State::RepSent | State::MraReqSent => self.retransmit_last(conn),
            State::TimeWait if last_kind == Some(Kind::Rej) => self.retransmit_last(conn),
            State::TimeWait => {
                let rej =
                    wire::rej_of(MessageType::Req, transaction, remote_id, 0, RejReason::STALE_CONNECTION);
                self.enqueue(addresses, rej);
            }
            // The owner has not decided yet, or the remote side has already answered the REP.
            _ => {}
        }
    }

    fn on_rep(&mut self, addresses: AddressPair, transaction: u64, rep: &Rep, now: Nanos) {
        let conn = Conn(rep.remote_comm_id.get());
        let remote_id = rep.local_comm_id.get();
        let state = match self.table.get(conn) {
            Some(connection) if connection.active && connection.addresses.remote == addresses.remote => {
                // A second REP arrives if the remote side took a retransmitted REQ for a new one.
                let other = connection.remote_id.is_some_and(|id| id != remote_id);
                if other { State::TimeWait } else { connection.state }
            }
            _ => State::TimeWait,
        };
        match state {
            State::ReqSent | State::MraReqReceived => {
                if let Err(reason) = self.on_first_rep(conn, addresses, remote_id, rep, now) {
                    let rej = wire::rej_of(MessageType::Rep, transaction, remote_id, conn.comm_id(), reason);
                    self.enqueue(addresses, rej);
                    self.close_connection(
                        conn,
                        Some(Event::Rejected { conn, reason, private_data: Vec::new() }),
                        now,
                    );
                }
            }
            // The RTU or MRA was lost.
            State::Established | State::MraRepSent => self.retransmit_last(conn),
            State::TimeWait => {
                let reason = RejReason::INVALID_COMM_ID;
                let rej =
                    wire::rej_of(MessageType::Rep, transaction, remote_id, rep.remote_comm_id.get(), reason);
                self.enqueue(addresses, rej);
            }
            _ => {}
        }
    }

    /// Processes the first REP for our REQ.
    fn on_first_rep(
        &mut self,
        conn: Conn,
        addresses: AddressPair,
        remote_id: u32,
        rep: &Rep,
        now: Nanos,
    ) -> Result<(), RejReason> {
        let by_id = self.table.by_remote_id.get(addresses.remote, remote_id);
        if self.close_stale_connections(addresses, by_id, rep.qpn(), Some(conn), now) {
            return Err(RejReason::STALE_CONNECTION);
        }
        self.bind(conn, remote_id, rep.qpn(), now).map_err(|Full| RejReason::NO_RESOURCES)?;
        self.proceed(conn, State::RepReceived);
        self.events.push_back(Event::Replied { conn, reply: Box::new(wire::read_rep(rep)) });
        Ok(())
    }

    fn on_rtu(&mut self, addresses: AddressPair, rtu: &Rtu) {
        let Some((conn, connection)) =
            self.find(addresses, rtu.remote_comm_id.get(), rtu.local_comm_id.get())
        else {
            return;
        };
        if matches!(connection.state, State::RepSent | State::MraRepReceived) {
            self.proceed(conn, State::Established);
            self.events.push_back(Event::Established { conn, private_data: rtu.private_data.to_vec() });
        }
    }

    fn on_mra(&mut self, addresses: AddressPair, mra: &Mra, now: Nanos) {
        let conn = Conn(mra.remote_comm_id.get());
        let Some(connection) = self.table.get(conn) else { return };
        let remote_id = mra.local_comm_id.get();
        let ours = connection.addresses.remote == addresses.remote
            && connection.remote_id.is_none_or(|id| id == remote_id);
        let state = match (MessageType::read(mra.acknowledged), connection.state) {
            (Some(MessageType::Req), State::ReqSent | State::MraReqReceived) => State::MraReqReceived,
            (Some(MessageType::Rep), State::RepSent | State::MraRepReceived) => State::MraRepReceived,
            _ => return,
        };
        if !ours {
            return;
        }
        let wait = self.bounded_timeout(wire::span(mra.service_timeout >> 3) + connection.round_trip);
        // An MRA never shortens the wait: it may be late or duplicated.
        let deadline = connection.deadline().map_or(now + wait, |deadline| deadline.max(now + wait));
        if let Some(connection) = self.table.get_mut(conn) {
            connection.state = state;
        }
        self.table.arm(conn, deadline);
    }

    /// Returns the connection that a REJ closes.
    fn connection_of_rej(&self, addresses: AddressPair, rej: &Rej) -> Option<Conn> {
        let (local_id, remote_id) = (rej.remote_comm_id.get(), rej.local_comm_id.get());
        if rej.reason() == RejReason::TIMEOUT
            && let Some(conn) = self.table.by_remote_id.get(addresses.remote, remote_id)
        {
            return Some(conn);
        }
        let connection = self.table.get(Conn(local_id))?;
        let same = match connection.remote_id {
            // Our REQ is rejected without an ID, or with an ID that we have not received yet.
            None => true,
            // The REQ was answered by a REP since, or the REJ refers to this connection.
            Some(id) => MessageType::read(rej.rejected) != Some(MessageType::Req) && id == remote_id,
        };
        (same && connection.addresses.remote == addresses.remote).then_some(Conn(local_id))
    }

    fn on_rej(&mut self, addresses: AddressPair, rej: &Rej, now: Nanos) {
        if let Some(conn) = self.connection_of_rej(addresses, rej) {
            self.on_rejected(conn, rej.reason(), &rej.private_data, now);
        } else if rej.reason() == RejReason::TIMEOUT && self.config.ids.is_part() {
            let (host, comm_id) = (addresses.remote, rej.local_comm_id.get());
            self.announce(Notice::GivenUp { host, comm_id, at: now });
        }
    }

    /// Closes a connection that the remote side has rejected.
    fn on_rejected(&mut self, conn: Conn, reason: RejReason, private_data: &[u8], now: Nanos) {
        let Some(connection) = self.table.get_mut(conn) else { return };
        let event = match connection.state {
            State::TimeWait => return,
            State::DreqSent => Event::Disconnected { conn },
            _ => Event::Rejected { conn, reason, private_data: private_data.to_vec() },
        };
        connection.last = None;
        self.close_connection(conn, Some(event), now);
    }

    fn on_dreq(&mut self, addresses: AddressPair, transaction: u64, dreq: &Dreq, now: Nanos) {
        let known = self.find(addresses, dreq.remote_comm_id.get(), dreq.local_comm_id.get());
        if let Some((conn, connection)) = known {
            match connection.state {
                // The remote side has no established connection to close. A wrong queue pair number belongs
                // to an old connection.
                State::ReqReceived | State::MraReqSent | State::ReqSent | State::MraReqReceived => return,
                _ if connection.local_qpn != Some(dreq.remote_qpn()) => return,
                State::TimeWait => {}
                state => {
                    if state != State::DreqSent {
                        let private_data = dreq.private_data.to_vec();
                        self.events.push_back(Event::Disconnecting { conn, private_data });
                    }
                    if let Some(connection) = self.table.get_mut(conn) {
                        connection.last = None;
                    }
                    self.close_connection(conn, Some(Event::Disconnected { conn }), now);
                }
            }
        }
        // Forgotten connections are answered as well: the remote side retransmits its DREQ until it receives
        // a DREP.
        self.enqueue(addresses, wire::drep(transaction, dreq));
    }

    fn on_drep(&mut self, addresses: AddressPair, drep: &Drep, now: Nanos) {
        if let Some((conn, connection)) =
            self.find(addresses, drep.remote_comm_id.get(), drep.local_comm_id.get())
            && connection.state == State::DreqSent
        {
            self.close_connection(conn, Some(Event::Disconnected { conn }), now);
        }
    }
}
