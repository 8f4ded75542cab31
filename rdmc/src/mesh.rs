//! Mesh of links: one reliable connection between each two nodes, for control messages. It is made when the
//! first group needs it, and kept. It takes the place of the paper's TCP connections (RDMC, section 4.2):
//! nodes create groups over it and relay failures, and while a group exists it shows whether the other node
//! is alive.
//!
//! The node with the higher address requests the connection, so that there is only one.

use crate::config::Config;
use crate::depth::Depth;
use crate::wire::{HELLO, LEN, Message, is_hello};
use core::net::IpAddr;
use rnic::cm::{Conn, Event as CmEvent, PortSpace, service_id_of};
use rnic::{
    Access, Buffer, Completion, CompletionOpcode, ConnParam, Cq, Data, Modify, Mr, Operation, Pd, QpInit,
    RecvRequest, Rnic, SendRequest, Sge, Status,
};
use rocev2::Qpn;
use rocev2::cm::RejReason;
use std::collections::{BTreeMap, VecDeque};
use switch::Nanos;

/// Event of the mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MeshEvent {
    /// The link to the peer is established.
    Established(IpAddr),
    /// The link is lost: the last messages may not have been delivered, and no more will arrive.
    Lost(IpAddr),
    /// Message from a peer about a group.
    Message(IpAddr, u32, Message),
}

/// Connection of a link: a queue pair and its receive buffers.
#[derive(Debug)]
struct Connection {
    qpn: Qpn,
    conn: Option<Conn>,
    buffer: Buffer,
    mr: Mr,
    started_at: Nanos,
    in_flight: usize,
}

/// State of the link between this node and a peer.
#[derive(Debug, Default)]
struct Link {
    established: Option<Connection>,
    /// Connection that is being set up.
    pending: Option<Connection>,
    /// Number of users: groups that need the link, and the application's request.
    users: usize,
    outbox: VecDeque<[u8; LEN]>,
    last_received: Nanos,
    last_probe: Nanos,
    /// The last keepalive was omitted, because messages waited whose acknowledgement would show as well that
    /// the peer is alive.
    probe_omitted: bool,
    /// Time before which no further connection is requested.
    retry_at: Nanos,
}

/// The node's protection domain and completion queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NicHandles {
    pub(crate) pd: Pd,
    pub(crate) cq: Cq,
}

/// Links of a node.
#[derive(Debug)]
pub(crate) struct Mesh {
    own: IpAddr,
    port: u16,
    ack_timeout: u8,
    retry_count: u8,
    probe_every: Nanos,
    dead_after: Nanos,
    attempt: Nanos,
    max_links: usize,
    links: BTreeMap<IpAddr, Link>,
    by_qpn: BTreeMap<u32, IpAddr>,
    by_conn: BTreeMap<Conn, IpAddr>,
    events: VecDeque<MeshEvent>,
    /// Lower bound of all links' next deadlines.
    timer: Option<Nanos>,
    /// Number of malformed messages.
    pub(crate) malformed: u64,
}

impl Mesh {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            own: config.address,
            port: config.port,
            ack_timeout: config.ack_timeout,
            retry_count: config.retry_count,
            probe_every: config.probe_every,
            dead_after: config.dead_after,
            attempt: config.attempt,
            max_links: config.links,
            links: BTreeMap::new(),
            by_qpn: BTreeMap::new(),
            by_conn: BTreeMap::new(),
            events: VecDeque::new(),
            timer: None,
            malformed: 0,
        }
    }

    pub(crate) fn poll(&mut self) -> Option<MeshEvent> {
        self.events.pop_front()
    }

    /// Makes room for links to `peers`, by dropping links that no group needs and over which all messages are
    /// acknowledged. Returns the number of links for which there is still no room.
    pub(crate) fn make_room(&mut self, nic: &mut Rnic, peers: &[IpAddr], now: Nanos) -> usize {
        let new = peers.iter().filter(|peer| !self.links.contains_key(peer)).count();
        let too_many = (self.links.len() + new).saturating_sub(self.max_links);
        let idle = |(peer, link): (&IpAddr, &Link)| {
            let idle = link.users == 0 && link.pending.is_none() && link.is_acknowledged();
            (idle && !peers.contains(peer)).then_some(*peer)
        };
        let idle: Vec<IpAddr> = self.links.iter().filter_map(idle).take(too_many).collect();
        for peer in &idle {
            self.drop_link(nic, *peer, now);
            self.links.remove(peer);
        }
        too_many - idle.len()
    }

    /// Returns the number of queue pairs; each has a region.
    pub(crate) fn connection_count(&self) -> usize {
        self.links
            .values()
            .map(|link| usize::from(link.established.is_some()) + usize::from(link.pending.is_some()))
            .sum()
    }

    pub(crate) fn is_up(&self, peer: IpAddr) -> bool {
        self.links.get(&peer).is_some_and(|link| link.established.is_some())
    }

    /// Returns whether all messages are acknowledged.
    pub(crate) fn is_acknowledged(&self) -> bool {
        self.links.values().all(Link::is_acknowledged)
    }

    /// Returns the numbers of the queue pairs.
    #[cfg(test)]
    pub(crate) fn queue_pairs(&self) -> impl Iterator<Item = &u32> {
        self.by_qpn.keys()
    }

    /// Returns the number of messages that wait for earlier ones to be acknowledged.
    pub(crate) fn queued_messages(&self) -> usize {
        self.links.values().map(|link| link.outbox.len()).sum()
    }

    /// Adds a user of the link to a peer, and connects it if necessary.
    pub(crate) fn acquire(&mut self, nic: &mut Rnic, handles: NicHandles, peer: IpAddr, now: Nanos) {
        let link = self.links.entry(peer).or_default();
        link.users += 1;
        if link.users == 1 {
            (link.last_received, link.last_probe) = (now, now);
        }
        self.check_link(nic, handles, peer, now);
    }

    /// Removes a user of the link to a peer.
    pub(crate) fn release(&mut self, peer: IpAddr) {
        if let Some(link) = self.links.get_mut(&peer) {
            link.users = link.users.saturating_sub(1);
        }
    }

    /// Sends a message, if the link to the peer is established. Otherwise drops it.
    pub(crate) fn send(&mut self, nic: &mut Rnic, peer: IpAddr, group: u32, message: Message) -> bool {
        let link = self.links.get_mut(&peer).filter(|link| link.established.is_some());
        let Some(link) = link else { return false };
        link.outbox.push_back(message.to_bytes(group));
        link.flush(nic);
        true
    }

    /// Returns the time at which [`on_timer`](Self::on_timer) is due.
    pub(crate) const fn next_timer(&self) -> Option<Nanos> {
        self.timer
    }

    /// Moves the timer forward to a link's deadline, if that is earlier. (A later deadline is found when the
    /// timer is due.)
    fn arm(&mut self, peer: IpAddr) {
        let due = self.links.get(&peer).and_then(|link| self.due(peer, link));
        self.timer = [self.timer, due].into_iter().flatten().min();
    }

    fn due(&self, peer: IpAddr, link: &Link) -> Option<Nanos> {
        let pending = link.pending.as_ref().map(|connection| connection.started_at + self.attempt);
        let wanted = link.users > 0;
        let next = match &link.established {
            Some(_) if wanted => {
                let probe = link.last_probe.max(link.last_received) + self.probe_every;
                Some(probe.min(link.last_received + self.dead_after))
            }
            None if wanted && pending.is_none() && self.own > peer => Some(link.retry_at),
            _ => None,
        };
        [pending, next].into_iter().flatten().min()
    }

    /// Handles the deadlines that have passed.
    pub(crate) fn on_timer(&mut self, nic: &mut Rnic, handles: NicHandles, now: Nanos) {
        let due = |(peer, link): (&IpAddr, &Link)| {
            self.due(*peer, link).is_some_and(|at| at <= now).then_some(*peer)
        };
        if self.timer.is_none_or(|at| at > now) {
            return;
        }
        for peer in self.links.iter().filter_map(due).collect::<Vec<_>>() {
            self.check_link(nic, handles, peer, now);
        }
        self.timer = self.links.iter().filter_map(|(peer, link)| self.due(*peer, link)).min();
    }

    fn check_link(&mut self, nic: &mut Rnic, handles: NicHandles, peer: IpAddr, now: Nanos) {
        let Some(link) = self.links.get_mut(&peer) else { return };
        if link.pending.as_ref().is_some_and(|connection| connection.started_at + self.attempt <= now) {
            let connection = link.pending.take();
            link.retry_at = now;
            self.drop_connection(nic, connection, now);
        }
        let Some(link) = self.links.get_mut(&peer) else { return };
        if link.users == 0 {
            return;
        }
        if link.established.is_some() {
            if link.last_received + self.dead_after <= now {
                self.drop_link(nic, peer, now);
            } else if link.last_probe.max(link.last_received) + self.probe_every <= now {
                link.last_probe = now;
                // The acknowledgements of waiting messages show as well whether the peer is alive.
                link.probe_omitted = !link.outbox.is_empty();
                if !link.probe_omitted {
                    self.send(nic, peer, 0, Message::Ping);
                }
            }
        } else if link.pending.is_none() && self.own > peer && link.retry_at <= now {
            link.retry_at = now + self.attempt;
            self.connect(nic, handles, peer, now);
        }
        self.arm(peer);
    }

    fn new_connection(nic: &mut Rnic, handles: NicHandles, now: Nanos) -> Option<Connection> {
        let init = QpInit::rc(handles.pd, handles.cq, Depth::LINK.send, Depth::LINK.recv);
        let (buffer, mr) =
            nic.register_new(handles.pd, Depth::LINK.recv * LEN, 0, Access::LOCAL_WRITE).ok()?;
        let Ok(qpn) = nic.create_qp(init) else {
            _ = nic.deregister(mr);
            _ = nic.free(buffer);
            return None;
        };
        Some(Connection { qpn, conn: None, buffer, mr, started_at: now, in_flight: 0 })
    }

    fn param(&self) -> ConnParam {
        ConnParam {
            access: Access::LOCAL_WRITE,
            ack_timeout: self.ack_timeout,
            retry_count: self.retry_count,
            ..ConnParam::default()
        }
    }

    fn connect(&mut self, nic: &mut Rnic, handles: NicHandles, peer: IpAddr, now: Nanos) {
        let Some(mut connection) = Self::new_connection(nic, handles, now) else { return };
        let param = ConnParam { private_data: HELLO.to_vec(), ..self.param() };
        let service = service_id_of(PortSpace::Tcp, self.port);
        let Ok(conn) = nic.connect(connection.qpn, peer, service, param, now) else {
            return self.drop_connection(nic, Some(connection), now);
        };
        connection.conn = Some(conn);
        connection.post_all(nic);
        self.by_conn.insert(conn, peer);
        self.by_qpn.insert(connection.qpn.get(), peer);
        if let Some(link) = self.links.get_mut(&peer) {
            link.pending = Some(connection);
        }
    }

    fn drop_connection(&mut self, nic: &mut Rnic, connection: Option<Connection>, now: Nanos) {
        let Some(connection) = connection else { return };
        // Without the reset, all posted requests would complete: over all links, more than one poll takes.
        _ = nic.modify_qp(connection.qpn, Modify::Reset);
        if let Some(conn) = connection.conn {
            self.by_conn.remove(&conn);
            // The connection may have ended already.
            _ = nic.disconnect(conn, &[], now);
        }
        self.by_qpn.remove(&connection.qpn.get());
        // These calls cannot fail: the resources belong to this connection alone.
        _ = nic.destroy_qp(connection.qpn);
        _ = nic.deregister(connection.mr);
        _ = nic.free(connection.buffer);
    }

    /// Drops the link's connection, and reports the loss of the peer if it was established.
    fn drop_link(&mut self, nic: &mut Rnic, peer: IpAddr, now: Nanos) {
        let Some(link) = self.links.get_mut(&peer) else { return };
        let connection = link.established.take();
        link.outbox.clear();
        link.retry_at = now + self.attempt;
        if connection.is_some() {
            self.events.push_back(MeshEvent::Lost(peer));
        }
        self.drop_connection(nic, connection, now);
        self.arm(peer);
    }

    /// Handles a connection request from a peer. Returns whether it is accepted.
    fn on_request(
        &mut self,
        nic: &mut Rnic,
        handles: NicHandles,
        peer: IpAddr,
        conn: Conn,
        now: Nanos,
    ) -> bool {
        // Refuses a request of a node with a lower address, and one for which there is no room.
        if self.own >= peer || (!self.links.contains_key(&peer) && self.links.len() >= self.max_links) {
            return false;
        }
        let Some(mut connection) = Self::new_connection(nic, handles, now) else { return false };
        connection.conn = Some(conn);
        // Receives can be posted once the queue pair has left the reset state, to which `accept` moves it.
        if nic.accept(conn, connection.qpn, self.param(), now).is_err() {
            connection.conn = None;
            self.drop_connection(nic, Some(connection), now);
            return false;
        }
        connection.post_all(nic);
        self.by_conn.insert(conn, peer);
        self.by_qpn.insert(connection.qpn.get(), peer);
        let before = self.links.entry(peer).or_default().pending.replace(connection);
        self.drop_connection(nic, before, now);
        self.arm(peer);
        true
    }

    /// Replaces the link's connection by the one that has just been established. An existing one belongs to a
    /// previous incarnation of the peer.
    fn on_established(&mut self, nic: &mut Rnic, peer: IpAddr, now: Nanos) {
        self.drop_link(nic, peer, now);
        let Some(link) = self.links.get_mut(&peer) else { return };
        link.established = link.pending.take();
        (link.last_received, link.last_probe, link.probe_omitted) = (now, now, false);
        self.events.push_back(MeshEvent::Established(peer));
        self.arm(peer);
    }

    /// Handles a CM event. Returns whether it belongs to a link.
    pub(crate) fn on_cm(&mut self, nic: &mut Rnic, handles: NicHandles, event: &CmEvent, now: Nanos) -> bool {
        let conn = event.conn();
        if let CmEvent::Requested { request, .. } = event {
            if !is_hello(&request.private_data) {
                return false;
            }
            if !self.on_request(nic, handles, request.addresses.remote, conn, now) {
                _ = nic.reject(conn, RejReason::CONSUMER, &[], now);
            }
            return true;
        }
        let Some(peer) = self.by_conn.get(&conn).copied() else { return false };
        let Some(link) = self.links.get_mut(&peer) else { return false };
        let is_pending = link.pending.as_ref().is_some_and(|connection| connection.conn == Some(conn));
        match event {
            CmEvent::Replied { .. } | CmEvent::Established { .. } if is_pending => {
                self.on_established(nic, peer, now);
            }
            CmEvent::Replied { .. } | CmEvent::Established { .. } => {}
            _ if is_pending => {
                let connection = link.pending.take();
                link.retry_at = now + self.attempt;
                self.drop_connection(nic, connection, now);
                self.arm(peer);
            }
            _ => self.drop_link(nic, peer, now),
        }
        true
    }

    /// Handles a completion. Returns whether it belongs to a link.
    pub(crate) fn on_completion(&mut self, nic: &mut Rnic, done: &Completion, now: Nanos) -> bool {
        let Some(peer) = self.by_qpn.get(&done.qpn.get()).copied() else { return false };
        let Some(link) = self.links.get_mut(&peer) else { return false };
        let of = |connection: &Option<Connection>| {
            connection.as_ref().is_some_and(|connection| connection.qpn == done.qpn)
        };
        if of(&link.pending) {
            // The CM reports the end of the handshake before any message completes, so only failures remain
            // here.
            if done.status != Status::Success {
                let connection = link.pending.take();
                link.retry_at = now + self.attempt;
                self.drop_connection(nic, connection, now);
                self.arm(peer);
            }
            return true;
        }
        let Some(connection) = link.established.as_mut().filter(|connection| connection.qpn == done.qpn)
        else {
            return true;
        };
        if done.status != Status::Success {
            self.drop_link(nic, peer, now);
        } else if done.opcode == CompletionOpcode::RecvWriteImm {
            // An empty WRITE with immediate data, which needs no access right.
            connection.post(nic, done.id);
            self.malformed += 1;
        } else if done.opcode == CompletionOpcode::Recv {
            link.last_received = now;
            let at = done.id as usize * LEN;
            let bytes = &nic.bytes(connection.buffer)[at..at + (done.len as usize).min(LEN)];
            let message = Message::from_bytes(bytes);
            connection.post(nic, done.id);
            match message {
                // Messages that wait serve as a response as well, once there is room for them. A peer that
                // sends requests and acknowledges nothing must not make the queue grow.
                Some((_, Message::Ping)) if link.outbox.is_empty() => {
                    self.send(nic, peer, 0, Message::Pong);
                }
                Some((_, Message::Ping | Message::Pong)) => {}
                Some((group, message)) => self.events.push_back(MeshEvent::Message(peer, group, message)),
                None => self.malformed += 1,
            }
        } else {
            connection.in_flight -= 1;
            link.flush(nic);
            // No keepalive was sent while messages waited, and the peer need not respond to those.
            if link.outbox.is_empty() && link.probe_omitted {
                link.probe_omitted = false;
                self.send(nic, peer, 0, Message::Ping);
            }
        }
        true
    }
}

impl Link {
    /// Returns whether all messages over this link are acknowledged.
    fn is_acknowledged(&self) -> bool {
        self.outbox.is_empty() && self.established.as_ref().is_none_or(|connection| connection.in_flight == 0)
    }

    fn flush(&mut self, nic: &mut Rnic) {
        let Some(connection) = &mut self.established else { return };
        while connection.in_flight < Depth::LINK.send
            && let Some(bytes) = self.outbox.pop_front()
        {
            let request = SendRequest::new(0, Operation::Send, Data::Inline(bytes.to_vec()));
            // A queue pair that cannot send has failed, and its completions report that.
            if nic.post_send(connection.qpn, request).is_ok() {
                connection.in_flight += 1;
            }
        }
    }
}

impl Connection {
    fn post(&self, nic: &mut Rnic, slot: u64) {
        let sge = Sge { mr: self.mr, va: slot * LEN as u64, len: LEN as u32 };
        // In the error state the receive completes as flushed.
        _ = nic.post_recv(self.qpn, RecvRequest { id: slot, data: Some(sge) });
    }

    fn post_all(&self, nic: &mut Rnic) {
        for slot in 0..Depth::LINK.recv as u64 {
            self.post(nic, slot);
        }
    }
}
