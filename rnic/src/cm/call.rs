//! The calls of a connection's owner.

use super::connection::Connection;
use super::types::{Accept, CallError, Conn, ConnectError, ConnectRequest, Event};
use super::wire::{self, MessageType};
use super::{Cm, State};
use rocev2::cm::{Kind, MAD_LEN, RejReason};
use switch::{Full, Nanos};

impl Cm {
    /// Requests a connection: sends a REQ. [`Event::Replied`], `Rejected` or `Unreachable` follows.
    ///
    /// # Errors
    /// [`ConnectError::Families`] if the addresses are of different families, [`ConnectError::PrivateData`]
    /// if the private data is too long, [`ConnectError::PathMtu`] and [`ConnectError::Range`] for invalid
    /// attributes, and [`ConnectError::Full`] at the limit of connections.
    pub fn connect(&mut self, request: &ConnectRequest, now: Nanos) -> Result<Conn, ConnectError> {
        wire::check(request)?;
        let transaction = self.transaction();
        let mut connection =
            Connection::new(State::ReqSent, request.addresses, request.service_id, transaction);
        connection.local_qpn = Some(request.qpn);
        // The ACK timeout is twice the packet lifetime plus the adapter's ACK delay (IB 12.7.34).
        connection.round_trip =
            if request.ack_timeout == 0 { Nanos::ZERO } else { wire::span(request.ack_timeout) };
        connection.timeout =
            self.bounded_timeout(connection.round_trip + wire::span(self.config.response_timeout));
        connection.max_retries = self.config.max_retries;
        let conn = self.table.insert(connection).map_err(|Full| ConnectError::Full)?;
        self.send(conn, Kind::Req, wire::req(&self.config, request, conn, transaction));
        self.await_response(conn, State::ReqSent, now);
        Ok(conn)
    }

    /// Accepts a connection that was [`Requested`](Event::Requested): sends a REP. `Established`,
    /// `Disconnecting`, `Rejected` or `Unreachable` follows. The queue pair must be ready to receive before.
    ///
    /// # Errors
    /// [`CallError::Unknown`] if the connection does not exist, [`CallError::State`] if no REQ waits for an
    /// answer, and [`CallError::PrivateData`] if the private data is too long.
    pub fn accept(&mut self, conn: Conn, reply: &Accept, now: Nanos) -> Result<(), CallError> {
        let rep = self.rep(conn, reply)?;
        if let Some(connection) = self.table.get_mut(conn) {
            connection.local_qpn = Some(reply.qpn);
        }
        self.send(conn, Kind::Rep, rep);
        self.await_response(conn, State::RepSent, now);
        Ok(())
    }

    /// Returns the error with which [`accept`](Self::accept) would fail, for a check before a queue pair is
    /// made ready.
    ///
    /// # Errors
    /// As [`accept`](Self::accept).
    pub fn check_accept(&self, conn: Conn, reply: &Accept) -> Result<(), CallError> {
        self.rep(conn, reply).map(|_| ())
    }

    fn rep(&self, conn: Conn, reply: &Accept) -> Result<[u8; MAD_LEN], CallError> {
        let connection = self.table.get(conn).ok_or(CallError::Unknown)?;
        if !matches!(connection.state, State::ReqReceived | State::MraReqSent) {
            return Err(CallError::State(connection.state));
        }
        wire::rep(&self.config, conn, connection, reply)
    }

    /// Rejects a connection request, or gives up a connection before it is established: sends a REJ. No event
    /// follows. Before the REQ is answered, the remote side's communication ID is not known, and the REJ
    /// carries the reason timeout instead of `reason`.
    ///
    /// # Errors
    /// [`CallError::Unknown`] if the connection does not exist, [`CallError::State`] if it was established,
    /// and [`CallError::PrivateData`] if the private data is too long.
    pub fn reject(
        &mut self,
        conn: Conn,
        reason: RejReason,
        private_data: &[u8],
        now: Nanos,
    ) -> Result<(), CallError> {
        let connection = self.table.get(conn).ok_or(CallError::Unknown)?;
        if matches!(connection.state, State::Established | State::DreqSent | State::TimeWait) {
            return Err(CallError::State(connection.state));
        }
        let rej = wire::rej(&self.config, conn, connection, reason, private_data)?;
        self.send(conn, Kind::Rej, rej);
        self.close_connection(conn, None, now);
        Ok(())
    }

    /// Confirms a [`Replied`](Event::Replied) connection: sends an RTU. The queue pair must be ready to send
    /// before.
    ///
    /// # Errors
    /// [`CallError::Unknown`] if the connection does not exist, [`CallError::State`] if no REP waits for an
    /// answer, and [`CallError::PrivateData`] if the private data is too long.
    pub fn confirm(&mut self, conn: Conn, private_data: &[u8]) -> Result<(), CallError> {
        let connection = self.table.get(conn).ok_or(CallError::Unknown)?;
        if !matches!(connection.state, State::RepReceived | State::MraRepSent) {
            return Err(CallError::State(connection.state));
        }
        let rtu = wire::rtu(conn, connection, private_data)?;
        self.send(conn, Kind::Rtu, rtu);
        self.proceed(conn, State::Established);
        Ok(())
    }

    /// Sends an MRA, which extends the remote side's timeout for the response to its REQ or REP. May be
    /// repeated.
    ///
    /// `service_timeout` is the time that the response will take: 4.096 us times 2^`service_timeout` (5 bits;
    /// larger values are reduced to 31).
    ///
    /// # Errors
    /// [`CallError::Unknown`] if the connection does not exist, and [`CallError::State`] if neither a REQ nor
    /// a REP waits for an answer.
    pub fn delay(&mut self, conn: Conn, service_timeout: u8) -> Result<(), CallError> {
        let connection = self.table.get_mut(conn).ok_or(CallError::Unknown)?;
        let message_type = match connection.state {
            State::ReqReceived | State::MraReqSent => MessageType::Req,
            State::RepReceived | State::MraRepSent => MessageType::Rep,
            state => return Err(CallError::State(state)),
        };
        connection.state =
            if message_type == MessageType::Req { State::MraReqSent } else { State::MraRepSent };
        let mra = wire::mra(conn, connection, message_type, service_timeout.min(31));
        self.send(conn, Kind::Mra, mra);
        Ok(())
    }

    /// Closes a connection: sends a DREQ. [`Event::Disconnected`] follows.
    ///
    /// # Errors
    /// [`CallError::Unknown`] if the connection does not exist, [`CallError::State`] if it is not
    /// established, and [`CallError::PrivateData`] if the private data is too long.
    pub fn disconnect(&mut self, conn: Conn, private_data: &[u8], now: Nanos) -> Result<(), CallError> {
        let transaction = self.transaction();
        let connection = self.table.get(conn).ok_or(CallError::Unknown)?;
        if connection.state != State::Established {
            return Err(CallError::State(connection.state));
        }
        let dreq = wire::dreq(conn, connection, transaction, private_data)?;
        self.send(conn, Kind::Dreq, dreq);
        self.await_response(conn, State::DreqSent, now);
        Ok(())
    }

    /// Forgets a connection at once, without a message to the remote side and without an event.
    pub fn abort(&mut self, conn: Conn) {
        self.table.remove(conn);
    }

    /// Completes the handshake of a passive connection on whose queue pair data arrived before the RTU
    /// (IB 12.9.7.2). [`Event::Established`] follows, without the RTU's private data. Does nothing unless the
    /// connection waits for an RTU.
    pub fn established_by_traffic(&mut self, conn: Conn) {
        if let Some(connection) = self.table.get(conn)
            && matches!(connection.state, State::RepSent | State::MraRepReceived)
        {
            self.proceed(conn, State::Established);
            self.events.push_back(Event::Established { conn, private_data: Vec::new() });
        }
    }

    /// Closes a connection because the remote host or its queue pair was restarted.
    pub(super) fn close_stale(&mut self, conn: Conn, now: Nanos) {
        let transaction = self.transaction();
        let Some(connection) = self.table.get_mut(conn) else { return };
        match connection.state {
            State::Established => {
                let was_reported = core::mem::replace(&mut connection.end_reported, true);
                let dreq = wire::dreq(conn, connection, transaction, &[]);
                // The next request for the queue pair is no longer stale.
                self.table.unbind_qpn(conn);
                if !was_reported {
                    self.events.push_back(Event::Disconnected { conn });
                }
                // The remote side may still have the connection, if a REQ was delayed for long.
                if let Ok(dreq) = dreq {
                    self.send(conn, Kind::Dreq, dreq);
                }
                self.await_response(conn, State::DreqSent, now);
            }
            State::DreqSent | State::TimeWait => self.table.unbind_qpn(conn),
            _ => {
                connection.last = None;
                self.close_connection(conn, Some(Event::Disconnected { conn }), now);
            }
        }
    }
}
