//! The communication manager (CM): opens and closes connections between queue pairs (IB 12.9).
//!
//! A sans-I/O state machine. Messages enter through [`Cm::on_mad`] and leave through [`Cm::poll_transmit`],
//! events are returned by [`Cm::poll_event`], and time is an argument. It has no queue pairs of its own: its
//! owner may connect virtual queue pair numbers, as a switch's control plane does. The remote side may be
//! Linux' `rdma_cm` in either role.
//!
//! ```text
//! active owner        Cm                     Cm        passive owner
//!   connect() ------> | -------- REQ ------> | ------> Requested
//!   Replied  <------- | <------- REP ------- | <------ accept()
//!   confirm() ------> | -------- RTU ------> | ------> Established
//!   disconnect() ---> | ------- DREQ ------> | ------> Disconnecting
//!   Disconnected <--- | <------ DREP ------- | ------> Disconnected
//! ```
//!
//! Unanswered messages are retransmitted, and duplicate messages are answered with the same response. A
//! closed connection is remembered for [`Config::time_wait`]. The same seed and the same calls produce the
//! same messages.

mod call;
mod connection;
mod receive;
mod service;
mod state;
mod types;
mod wire;

pub use service::{PortSpace, port_of, service_id_of};
pub use state::State;
pub use types::{
    Accept, AddressPair, CallError, Config, Conn, ConnInfo, ConnectError, ConnectRequest, ConnectedTransport,
    Event, IdSpace, ListenError, Listener, RemoteReply, RemoteRequest, private_data,
};

use crate::part::Notice;
use connection::{Connection, Table};
use rocev2::cm::{Kind, MAD_LEN, RejReason};
use std::collections::{BTreeSet, VecDeque};
use switch::Nanos;
use switch::random::Rng;

/// Minimum response timeout, whatever the remote side announces. Linux rounds up to it, too.
const MIN_RESPONSE_TIMEOUT: Nanos = Nanos::from_millis(1);

/// Limit of messages that wait to be sent, and of notices
pub const MAX_MESSAGES: usize = 4096;

/// A communication manager.
#[derive(Debug)]
pub struct Cm {
    config: Config,
    /// Source of transaction IDs
    rng: Rng,
    listeners: BTreeSet<u64>,
    table: Table,
    out: VecDeque<(AddressPair, [u8; MAD_LEN])>,
    dropped: u64,
    events: VecDeque<Event>,
    /// Connections to be announced to the managers that have the other IDs, and when
    unsettled: VecDeque<(Nanos, Conn)>,
    /// Notices for the managers that have the other IDs
    notices: VecDeque<Notice>,
}

impl Cm {
    /// Creates a communication manager without connections. The seed determines its communication and
    /// transaction IDs. Values of `config` that exceed the range of their message field are reduced to it.
    pub fn new(config: Config, seed: u64) -> Self {
        let config = Config {
            response_timeout: config.response_timeout & 31,
            max_retries: config.max_retries & 15,
            ack_delay: config.ack_delay & 31,
            max_response_timeout: config.max_response_timeout.max(MIN_RESPONSE_TIMEOUT),
            ..config
        };
        Self {
            rng: Rng::stream(seed, 0),
            table: Table::new(config.capacity, config.ids, Rng::stream(seed, 1)),
            config,
            listeners: BTreeSet::new(),
            out: VecDeque::new(),
            dropped: 0,
            events: VecDeque::new(),
            unsettled: VecDeque::new(),
            notices: VecDeque::new(),
        }
    }

    /// Starts to report requests for this service.
    ///
    /// # Errors
    /// [`ListenError::Taken`] if the service already has a listener.
    pub fn listen(&mut self, service_id: u64) -> Result<Listener, ListenError> {
        if self.listeners.insert(service_id) {
            Ok(Listener(service_id))
        } else {
            Err(ListenError::Taken(service_id))
        }
    }

    /// Rejects requests for this service from now on; requests that were already reported stay valid.
    pub fn unlisten(&mut self, listener: Listener) {
        self.listeners.remove(&listener.0);
    }

    /// Returns the attributes of a connection; `None` once it is forgotten.
    pub fn info(&self, conn: Conn) -> Option<ConnInfo> {
        self.table.get(conn).map(Connection::info)
    }

    /// Returns the state of a connection; `None` once it is forgotten.
    pub fn state(&self, conn: Conn) -> Option<State> {
        self.table.get(conn).map(|connection| connection.state)
    }

    /// Returns the number of connections, including those in time wait.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Returns whether there is no connection.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the next message, to be sent as a UD SEND Only to QP 1. At most [`MAX_MESSAGES`] messages are
    /// queued.
    pub fn poll_transmit(&mut self) -> Option<(AddressPair, [u8; MAD_LEN])> {
        self.out.pop_front()
    }

    /// Returns whether there are messages to send.
    pub fn has_messages(&self) -> bool {
        !self.out.is_empty()
    }

    /// Returns the next event. Call it until it returns `None` after each call of another method: the queue
    /// is unbounded.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Returns when to call [`on_timer`](Self::on_timer); there may be nothing to do then.
    pub fn next_timer(&self) -> Option<Nanos> {
        let settled = self.unsettled.front().map(|(at, _)| *at);
        [self.table.next_timer(), settled].into_iter().flatten().min()
    }

    /// Retransmits messages whose response timed out, gives up connections without retries left, and forgets
    /// connections whose time wait is over.
    pub fn on_timer(&mut self, now: Nanos) {
        self.announce_settled(now);
        while let Some(conn) = self.table.due(now) {
            let Some(connection) = self.table.get_mut(conn) else { continue };
            if connection.state == State::TimeWait {
                self.table.remove(conn);
            } else if connection.retries_left > 0 {
                connection.retries_left -= 1;
                let deadline = now + connection.timeout;
                self.retransmit_last(conn);
                self.table.arm(conn, deadline);
            } else {
                self.give_up(conn, now);
            }
        }
    }

    /// Announces connections that have existed for [`SETTLED_AFTER`](crate::part::SETTLED_AFTER) to the managers that have
    /// the other IDs.
    fn announce_settled(&mut self, now: Nanos) {
        while let Some(&(at, conn)) = self.unsettled.front()
            && at <= now
        {
            self.unsettled.pop_front();
            if let Some(connection) = self.table.get(conn).filter(|old| old.state != State::TimeWait)
                && let (Some(comm_id), Some(qpn)) = (connection.remote_id, connection.remote_qpn)
            {
                let (host, at) = (connection.addresses.remote, connection.bound_at);
                self.announce(Notice::Connected { host, qpn, comm_id, at });
            }
        }
    }

    /// Queues a notice for the managers that have the other IDs. Beyond the limit, it is dropped and counted.
    fn announce(&mut self, notice: Notice) {
        if self.notices.len() < MAX_MESSAGES {
            self.notices.push_back(notice);
        } else {
            self.dropped += 1;
        }
    }

    /// Gives up a connection whose remote side answered none of the retries.
    fn give_up(&mut self, conn: Conn, now: Nanos) {
        let Some(connection) = self.table.get(conn) else { return };
        if connection.state == State::DreqSent {
            self.close_connection(conn, Some(Event::Disconnected { conn }), now);
            return;
        }
        // If the remote side receives this, it does not keep a half-open connection.
        if let Ok(mad) = wire::rej(&self.config, conn, connection, RejReason::TIMEOUT, &[]) {
            self.send(conn, Kind::Rej, mad);
        }
        self.close_connection(conn, Some(Event::Unreachable { conn }), now);
    }

    /// Queues a message. Beyond the limit, the message is dropped and counted: one of the two sides
    /// retransmits every message that matters.
    fn enqueue(&mut self, addresses: AddressPair, mad: [u8; MAD_LEN]) {
        if self.out.len() < MAX_MESSAGES {
            self.out.push_back((addresses, mad));
        } else {
            self.dropped += 1;
        }
    }

    /// Returns the number of messages and notices dropped because too many waited.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Returns the next notice for the managers that have the other IDs.
    pub(crate) fn poll_notice(&mut self) -> Option<Notice> {
        self.notices.pop_front()
    }

    /// Sends a message of a connection and keeps it for retransmission.
    fn send(&mut self, conn: Conn, kind: Kind, mad: [u8; MAD_LEN]) {
        let Some(connection) = self.table.get_mut(conn) else { return };
        connection.last = Some((kind, mad));
        let addresses = connection.addresses;
        self.enqueue(addresses, mad);
    }

    /// Retransmits a connection's last message.
    fn retransmit_last(&mut self, conn: Conn) {
        if let Some(connection) = self.table.get(conn)
            && let Some((_, mad)) = connection.last
        {
            let addresses = connection.addresses;
            self.enqueue(addresses, mad);
        }
    }

    /// Waits for the response to the message that was just sent, with all retries left.
    fn await_response(&mut self, conn: Conn, state: State, now: Nanos) {
        let Some(connection) = self.table.get_mut(conn) else { return };
        connection.state = state;
        connection.retries_left = connection.max_retries;
        let deadline = now + connection.timeout;
        self.table.arm(conn, deadline);
    }

    /// Enters a state that waits for no response.
    fn proceed(&mut self, conn: Conn, state: State) {
        if let Some(connection) = self.table.get_mut(conn) {
            connection.state = state;
        }
        self.table.disarm(conn);
    }

    /// Closes the connection; `last` is reported to its owner, unless the end was already reported.
    fn close_connection(&mut self, conn: Conn, last: Option<Event>, now: Nanos) {
        // The queue pairs are free for the next connection: Linux connects the same ones again after a
        // rejection.
        self.table.unbind_qpn(conn);
        let Some(connection) = self.table.get_mut(conn) else { return };
        connection.state = State::TimeWait;
        let was_reported = core::mem::replace(&mut connection.end_reported, true);
        self.table.arm(conn, now + self.config.time_wait);
        if !was_reported {
            self.events.extend(last);
        }
    }

    /// Returns a transaction ID, never 0.
    fn transaction(&mut self) -> u64 {
        self.rng.bits().max(1)
    }

    /// Returns the timeout for a response that may take `wait`.
    fn bounded_timeout(&self, wait: Nanos) -> Nanos {
        wait.clamp(MIN_RESPONSE_TIMEOUT, self.config.max_response_timeout)
    }
}

#[cfg(test)]
mod tests;
