//! Ended connections: translated connections whose PSN translation is lost. Their clients may only have
//! paused, and must not continue, because the server might take a new request for a duplicate.

use crate::config::{Config, Connection};
use crate::flow::{WINDOW, Window};
use core::net::IpAddr;
use rocev2::{Packet, Psn, Qpn};
use std::collections::HashMap;
use switch::Nanos;

/// A translated connection whose PSN translation is lost.
#[derive(Clone, Copy, Debug)]
struct EndedConnection {
    connection: Connection,
    /// Window of PSNs that its client would use next, and the next PSN that the server expects; `None` for
    /// connections from before a restart
    psns: Option<(Window, Psn)>,
}

impl EndedConnection {
    /// Returns whether a request with this PSN cannot come from the old client, and would be refused as too
    /// early by the server's old queue pair. If the server acknowledges such a request, the queue pair
    /// belongs to a new connection.
    fn is_new(&self, psn: Psn) -> bool {
        self.psns.is_some_and(|(window, server_next)| !window.fits(psn) && psn.distance(server_next) > WINDOW)
    }
}

/// All ended connections.
#[derive(Debug)]
pub(crate) struct EndedConnections {
    /// By what a request carries: everything but the client's queue pair
    all: HashMap<Connection, EndedConnection>,
    capacity: usize,
    /// Queue pairs of clients whose connections ended with the switch's restart, with the key of each
    orphaned_clients: HashMap<(IpAddr, Qpn), Connection>,
    /// Time of the first response
    first_response_at: Option<Nanos>,
}

/// Returns the key of the connection that a request belongs to.
fn key_of(packet: &Packet<'_>) -> Connection {
    Connection { server: (packet.dst(), packet.bth().dest_qp()), client: (packet.src(), Qpn::new(0)) }
}

impl EndedConnections {
    /// Returns the connections that ended with the switch's restart.
    pub(crate) fn new(config: &Config) -> Self {
        let mut all = HashMap::with_capacity(config.connections.max(config.ended.len()));
        all.extend(config.ended.iter().map(|connection| {
            (connection.without_client_qpn(), EndedConnection { connection: *connection, psns: None })
        }));
        let orphaned_clients = config.ended.iter().map(|ended| (ended.client, ended.without_client_qpn()));
        Self {
            all,
            capacity: config.connections,
            orphaned_clients: orphaned_clients.collect(),
            first_response_at: None,
        }
    }

    /// Returns whether a connection of this client's host to this queue pair has ended.
    pub(crate) fn contains(&self, connection: &Connection) -> bool {
        self.all.contains_key(&connection.without_client_qpn())
    }

    /// Returns whether a request may belong to an ended connection, by its addresses.
    pub(crate) fn may_include(&self, packet: &Packet<'_>) -> bool {
        self.all.contains_key(&key_of(packet))
    }

    /// Returns whether a request belongs to an ended connection.
    pub(crate) fn includes(&self, packet: &Packet<'_>) -> bool {
        self.all
            .get(&key_of(packet))
            .is_some_and(|ended| !ended.is_new(packet.bth().psn()) || !packet.verify_icrc())
    }

    /// Returns whether there is no room for both directions of one more connection.
    pub(crate) fn is_full(&self) -> bool {
        self.all.len() + 1 >= self.capacity
    }

    /// Adds a connection. `psns` are the window of PSNs that its client would use next, and the next PSN
    /// that the server expects.
    pub(crate) fn keep(&mut self, connection: Connection, psns: (Window, Psn)) {
        let ended = EndedConnection { connection, psns: Some(psns) };
        self.all.insert(connection.without_client_qpn(), ended);
    }

    /// Removes a connection of this client's host to this queue pair, and returns it.
    pub(crate) fn remove(&mut self, connection: &Connection) -> Option<Connection> {
        self.all.remove(&connection.without_client_qpn()).map(|ended| ended.connection)
    }

    /// Returns whether connections ended with the switch's restart.
    #[inline]
    pub(crate) fn has_orphaned_clients(&self) -> bool {
        !self.orphaned_clients.is_empty()
    }

    /// Returns whether a response is for a client whose connection ended with the switch's restart. It may
    /// belong to an operation of another client on that connection. Such responses arrive within `dead_after`
    /// of the first response.
    #[cold]
    pub(crate) fn is_for_orphaned_client(
        &mut self,
        packet: &Packet<'_>,
        now: Nanos,
        dead_after: Nanos,
    ) -> bool {
        let first_response_at = *self.first_response_at.get_or_insert(now);
        if now.since(first_response_at) > dead_after {
            return false;
        }
        let client = (packet.dst(), packet.bth().dest_qp());
        let Some(key) = self.orphaned_clients.get(&client) else { return false };
        self.all.get(key).is_some_and(|ended| ended.connection.client == client)
    }
}
