//! The communication manager: makes and ends connections between queue pairs (IB 12.9).
//!
//! A state machine. Messages go in by [`Cm::on_mad`] and come out of [`Cm::poll_transmit`]; what happened comes out of
//! [`Cm::poll_event`]; time is an argument. It knows no queue pair: whoever owns it may connect numbers that are none,
//! as a switch's control plane does. The other side may be Linux' `rdma_cm` in either role.
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
//! Messages that go unanswered are sent again, messages that come again are answered again with the same. A connection
//! that is over is remembered for [`Config::time_wait`]. Same seed, same calls: same messages.

mod call;
mod connection;
mod receive;
mod service;
mod types;
mod wire;

pub use connection::State;
pub use service::{PortSpace, port_of, service_id_of};
pub use types::{
    Accept, CallError, Config, Conn, ConnectError, ConnectRequest, Event, Info, ListenError, Listener, Peer,
    RemoteReply, RemoteRequest, Transport, private_data,
};

use connection::{Connection, Table};
use rocev2::cm::{Kind, MAD_LEN, RejReason};
use std::collections::{BTreeSet, VecDeque};
use switch::Nanos;
use switch::random::Chance;

/// The shortest time to wait for an answer, whatever the other side announces. Linux rounds to it, too.
const SHORTEST_WAIT: Nanos = Nanos::from_millis(1);

/// Messages that wait to be sent at most
pub const MAX_MESSAGES: usize = 4096;

/// A communication manager.
#[derive(Debug)]
pub struct Cm {
    config: Config,
    /// For transaction ids
    chance: Chance,
    listeners: BTreeSet<u64>,
    table: Table,
    out: VecDeque<(Peer, [u8; MAD_LEN])>,
    dropped: u64,
    events: VecDeque<Event>,
}

impl Cm {
    /// A manager without connections. The seed decides its communication and transaction ids. Values beyond their
    /// field's range are cut to it.
    pub fn new(config: Config, seed: u64) -> Self {
        let config = Config {
            response_timeout: config.response_timeout & 31,
            max_retries: config.max_retries & 15,
            ack_delay: config.ack_delay & 31,
            longest_wait: config.longest_wait.max(SHORTEST_WAIT),
            ..config
        };
        Self {
            chance: Chance::stream(seed, 0),
            table: Table::new(config.capacity, Chance::stream(seed, 1)),
            config,
            listeners: BTreeSet::new(),
            out: VecDeque::new(),
            dropped: 0,
            events: VecDeque::new(),
        }
    }

    /// Requests for this service are reported from now on.
    pub fn listen(&mut self, service_id: u64) -> Result<Listener, ListenError> {
        if self.listeners.insert(service_id) {
            Ok(Listener(service_id))
        } else {
            Err(ListenError::Taken(service_id))
        }
    }

    /// Requests for this service are rejected from now on; those already reported stay.
    pub fn unlisten(&mut self, listener: Listener) {
        self.listeners.remove(&listener.0);
    }

    /// What is known of a connection; `None` once it is forgotten
    pub fn info(&self, conn: Conn) -> Option<Info> {
        self.table.get(conn).map(Connection::info)
    }

    /// Where a connection stands; `None` once it is forgotten
    pub fn state(&self, conn: Conn) -> Option<State> {
        self.table.get(conn).map(|connection| connection.state)
    }

    /// Connections, those in time wait included
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether there is none
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The next message to send as a UD SEND Only to QP 1. Of those that wait, so many are kept: [`MAX_MESSAGES`].
    pub fn poll_transmit(&mut self) -> Option<(Peer, [u8; MAD_LEN])> {
        self.out.pop_front()
    }

    /// Whether there are messages to send
    pub fn has_messages(&self) -> bool {
        !self.out.is_empty()
    }

    /// The next thing that happened. To be emptied after each call: the queue has no bound.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When [`on_timer`](Self::on_timer) is to be called; there may be nothing to do then
    pub fn next_timer(&self) -> Option<Nanos> {
        self.table.next_timer()
    }

    /// Sends again what was not answered in time, gives up what was not answered at all, forgets what is long over.
    pub fn on_timer(&mut self, now: Nanos) {
        while let Some(conn) = self.table.due(now) {
            let Some(connection) = self.table.get_mut(conn) else { continue };
            if connection.state == State::TimeWait {
                self.table.remove(conn);
            } else if connection.retries_left > 0 {
                connection.retries_left -= 1;
                let deadline = now + connection.timeout;
                self.repeat(conn);
                self.table.arm(conn, deadline);
            } else {
                self.give_up(conn, now);
            }
        }
    }

    /// The other side has not answered, however often it was asked.
    fn give_up(&mut self, conn: Conn, now: Nanos) {
        let Some(connection) = self.table.get(conn) else { return };
        if connection.state == State::DreqSent {
            self.end(conn, Some(Event::Disconnected { conn }), now);
            return;
        }
        // If it does hear us, it is not left with half a connection.
        if let Ok(mad) = wire::rej(&self.config, conn, connection, RejReason::TIMEOUT, &[]) {
            self.send(conn, Kind::Rej, mad);
        }
        self.end(conn, Some(Event::Unreachable { conn }), now);
    }

    /// Queues a message. Where too many wait, as nothing can be sent, it is dropped and counted: what matters is sent
    /// again by one side or the other.
    fn put(&mut self, peer: Peer, mad: [u8; MAD_LEN]) {
        if self.out.len() < MAX_MESSAGES {
            self.out.push_back((peer, mad));
        } else {
            self.dropped += 1;
        }
    }

    /// Messages dropped because too many waited to be sent
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Sends a connection's message and keeps it, to be sent again.
    fn send(&mut self, conn: Conn, kind: Kind, mad: [u8; MAD_LEN]) {
        let Some(connection) = self.table.get_mut(conn) else { return };
        connection.last = Some((kind, mad));
        let peer = connection.peer;
        self.put(peer, mad);
    }

    /// Sends a connection's last message again.
    fn repeat(&mut self, conn: Conn) {
        if let Some(connection) = self.table.get(conn)
            && let Some((_, mad)) = connection.last
        {
            let peer = connection.peer;
            self.put(peer, mad);
        }
    }

    /// Waits for the answer to what was just sent, with all retries left.
    fn await_answer(&mut self, conn: Conn, state: State, now: Nanos) {
        let Some(connection) = self.table.get_mut(conn) else { return };
        connection.state = state;
        connection.retries_left = connection.max_retries;
        let deadline = now + connection.timeout;
        self.table.arm(conn, deadline);
    }

    /// Goes on without waiting for an answer.
    fn proceed(&mut self, conn: Conn, state: State) {
        if let Some(connection) = self.table.get_mut(conn) {
            connection.state = state;
        }
        self.table.disarm(conn);
    }

    /// The connection is over; `last` tells its owner, unless it knows.
    fn end(&mut self, conn: Conn, last: Option<Event>, now: Nanos) {
        // The queue pairs are free for the next connection: Linux connects the same ones again after a rejection.
        self.table.unbind_qpn(conn);
        let Some(connection) = self.table.get_mut(conn) else { return };
        connection.state = State::TimeWait;
        let told = core::mem::replace(&mut connection.over, true);
        self.table.arm(conn, now + self.config.time_wait);
        if !told {
            self.events.extend(last);
        }
    }

    /// A transaction id, never 0
    fn transaction(&mut self) -> u64 {
        self.chance.bits().max(1)
    }

    /// How long to wait for an answer that may take this long
    fn bounded(&self, wait: Nanos) -> Nanos {
        wait.clamp(SHORTEST_WAIT, self.config.longest_wait)
    }
}

#[cfg(test)]
mod tests;
