//! One reliable connection between each two nodes, for short messages: made when the first group needs it, and kept. It
//! stands for the paper's TCP connections (2, 4.2): groups are brought together over it, failures are told over it, and
//! while there is a group it shows whether the other node is still there.
//!
//! The node with the higher address asks for the connection, so that there is one.

use crate::config::Config;
use crate::group::Depth;
use crate::wire::{HELLO, LEN, Message, is_hello};
use core::net::IpAddr;
use rnic::cm::{Conn, Event as CmEvent, PortSpace, service_id_of};
use rnic::{
    Access, Buffer, Completion, CompletionOpcode, ConnParam, Cq, Data, Modify, Mr, Operation, Pd, QpInit,
    RecvRequest, Rnic, SendRequest, Sge, Status, Transport,
};
use rocev2::Qpn;
use rocev2::cm::RejReason;
use std::collections::{BTreeMap, VecDeque};
use switch::Nanos;

/// Messages that a node has room for, from each other one; and that it sends before the first is acknowledged
const DEPTH: usize = 32;
/// What its queue pairs have room for
pub(crate) const QUEUES: Depth = Depth { send: DEPTH, recv: DEPTH };

/// What came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// The other node can be spoken to
    Up(IpAddr),
    /// What was said last may not have been heard, and nothing will come any more
    Lost(IpAddr),
    /// A message about a group
    Message(IpAddr, u32, Message),
}

/// A queue pair and its receive buffers.
#[derive(Debug)]
struct Lane {
    qpn: Qpn,
    conn: Option<Conn>,
    buffer: Buffer,
    mr: Mr,
    since: Nanos,
    under_way: usize,
}

/// What there is between this node and another one.
#[derive(Debug, Default)]
struct Link {
    up: Option<Lane>,
    /// Being connected
    coming: Option<Lane>,
    /// Groups that need it
    users: usize,
    outbox: VecDeque<[u8; LEN]>,
    heard: Nanos,
    probed: Nanos,
    /// It was to be asked then, and something waited that would have shown it as well
    unasked: bool,
    /// Not asked for before
    retry_at: Nanos,
}

/// What the mesh needs of its NIC.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Queues {
    pub(crate) pd: Pd,
    pub(crate) cq: Cq,
}

/// The links of a node.
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
    news: VecDeque<News>,
    /// No link's time comes before
    timer: Option<Nanos>,
    /// Messages that were none
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
            news: VecDeque::new(),
            timer: None,
            malformed: 0,
        }
    }

    pub(crate) fn poll(&mut self) -> Option<News> {
        self.news.pop_front()
    }

    /// Makes room for links to these nodes: links that no group needs, and over which everything is said, make way. How many there would be too many
    pub(crate) fn make_room(&mut self, nic: &mut Rnic, peers: &[IpAddr], now: Nanos) -> usize {
        let new = peers.iter().filter(|peer| !self.links.contains_key(peer)).count();
        let too_many = (self.links.len() + new).saturating_sub(self.max_links);
        let idle = |(peer, link): (&IpAddr, &Link)| {
            let idle = link.users == 0 && link.coming.is_none() && link.is_heard();
            (idle && !peers.contains(peer)).then_some(*peer)
        };
        let idle: Vec<IpAddr> = self.links.iter().filter_map(idle).take(too_many).collect();
        for peer in &idle {
            self.lose(nic, *peer, now);
            self.links.remove(peer);
        }
        too_many - idle.len()
    }

    /// Queue pairs that it has, each with a region
    pub(crate) fn lanes(&self) -> usize {
        self.links
            .values()
            .map(|link| usize::from(link.up.is_some()) + usize::from(link.coming.is_some()))
            .sum()
    }

    pub(crate) fn is_up(&self, peer: IpAddr) -> bool {
        self.links.get(&peer).is_some_and(|link| link.up.is_some())
    }

    /// Whether everything that was said is acknowledged.
    pub(crate) fn is_heard(&self) -> bool {
        self.links.values().all(Link::is_heard)
    }

    /// The numbers of its queue pairs
    #[cfg(test)]
    pub(crate) fn queue_pairs(&self) -> impl Iterator<Item = &u32> {
        self.by_qpn.keys()
    }

    /// Messages for others that wait until those before are heard
    pub(crate) fn unsaid(&self) -> usize {
        self.links.values().map(|link| link.outbox.len()).sum()
    }

    /// A group needs the link to a node.
    pub(crate) fn want(&mut self, nic: &mut Rnic, queues: Queues, peer: IpAddr, now: Nanos) {
        let link = self.links.entry(peer).or_default();
        link.users += 1;
        if link.users == 1 {
            (link.heard, link.probed) = (now, now);
        }
        self.tend(nic, queues, peer, now);
    }

    /// A group does not need it any more.
    pub(crate) fn release(&mut self, peer: IpAddr) {
        if let Some(link) = self.links.get_mut(&peer) {
            link.users = link.users.saturating_sub(1);
        }
    }

    /// Says something, if the other node can be spoken to.
    pub(crate) fn send(&mut self, nic: &mut Rnic, peer: IpAddr, group: u32, message: Message) {
        if let Some(link) = self.links.get_mut(&peer).filter(|link| link.up.is_some()) {
            link.outbox.push_back(message.to_bytes(group));
            link.flush(nic);
        }
    }

    /// When [`on_timer`](Self::on_timer) is due
    pub(crate) const fn next_timer(&self) -> Option<Nanos> {
        self.timer
    }

    /// A link's time may have become an earlier one. (That it has become a later one is found when the timer is due.)
    fn arm(&mut self, peer: IpAddr) {
        let due = self.links.get(&peer).and_then(|link| self.due(peer, link));
        self.timer = [self.timer, due].into_iter().flatten().min();
    }

    fn due(&self, peer: IpAddr, link: &Link) -> Option<Nanos> {
        let coming = link.coming.as_ref().map(|lane| lane.since + self.attempt);
        let wanted = link.users > 0;
        let next = match &link.up {
            Some(_) if wanted => {
                let probe = link.probed.max(link.heard) + self.probe_every;
                Some(probe.min(link.heard + self.dead_after))
            }
            None if wanted && coming.is_none() && self.own > peer => Some(link.retry_at),
            _ => None,
        };
        [coming, next].into_iter().flatten().min()
    }

    /// Looks after every link whose time has come.
    pub(crate) fn on_timer(&mut self, nic: &mut Rnic, queues: Queues, now: Nanos) {
        let due = |(peer, link): (&IpAddr, &Link)| {
            self.due(*peer, link).is_some_and(|at| at <= now).then_some(*peer)
        };
        if self.timer.is_none_or(|at| at > now) {
            return;
        }
        for peer in self.links.iter().filter_map(due).collect::<Vec<_>>() {
            self.tend(nic, queues, peer, now);
        }
        self.timer = self.links.iter().filter_map(|(peer, link)| self.due(*peer, link)).min();
    }

    fn tend(&mut self, nic: &mut Rnic, queues: Queues, peer: IpAddr, now: Nanos) {
        let Some(link) = self.links.get_mut(&peer) else { return };
        if link.coming.as_ref().is_some_and(|lane| lane.since + self.attempt <= now) {
            let lane = link.coming.take();
            link.retry_at = now;
            self.drop_lane(nic, lane, now);
        }
        let Some(link) = self.links.get_mut(&peer) else { return };
        if link.users == 0 {
            return;
        }
        if link.up.is_some() {
            if link.heard + self.dead_after <= now {
                self.lose(nic, peer, now);
            } else if link.probed.max(link.heard) + self.probe_every <= now {
                link.probed = now;
                // What waits to be heard shows as well whether it is there.
                link.unasked = !link.outbox.is_empty();
                if !link.unasked {
                    self.send(nic, peer, 0, Message::Ping);
                }
            }
        } else if link.coming.is_none() && self.own > peer && link.retry_at <= now {
            link.retry_at = now + self.attempt;
            self.connect(nic, queues, peer, now);
        }
        self.arm(peer);
    }

    fn lane(nic: &mut Rnic, queues: Queues, now: Nanos) -> Option<Lane> {
        let init = QpInit {
            transport: Transport::Rc,
            pd: queues.pd,
            send_cq: queues.cq,
            recv_cq: queues.cq,
            srq: None,
            max_send: QUEUES.send,
            max_recv: QUEUES.recv,
        };
        let (buffer, mr) = nic.register_new(queues.pd, DEPTH * LEN, 0, Access::LOCAL_WRITE).ok()?;
        let Ok(qpn) = nic.create_qp(init) else {
            _ = nic.deregister(mr);
            _ = nic.free(buffer);
            return None;
        };
        Some(Lane { qpn, conn: None, buffer, mr, since: now, under_way: 0 })
    }

    fn param(&self) -> ConnParam {
        ConnParam {
            access: Access::LOCAL_WRITE,
            ack_timeout: self.ack_timeout,
            retry_count: self.retry_count,
            ..ConnParam::default()
        }
    }

    fn connect(&mut self, nic: &mut Rnic, queues: Queues, peer: IpAddr, now: Nanos) {
        let Some(mut lane) = Self::lane(nic, queues, now) else { return };
        let param = ConnParam { private_data: HELLO.to_vec(), ..self.param() };
        let service = service_id_of(PortSpace::Tcp, self.port);
        let Ok(conn) = nic.connect(lane.qpn, peer, service, param, now) else {
            return self.drop_lane(nic, Some(lane), now);
        };
        lane.conn = Some(conn);
        lane.post_all(nic);
        self.by_conn.insert(conn, peer);
        self.by_qpn.insert(lane.qpn.get(), peer);
        if let Some(link) = self.links.get_mut(&peer) {
            link.coming = Some(lane);
        }
    }

    fn drop_lane(&mut self, nic: &mut Rnic, lane: Option<Lane>, now: Nanos) {
        let Some(lane) = lane else { return };
        // Otherwise all that is posted would complete: of all links together, more than is polled at once.
        _ = nic.modify_qp(lane.qpn, Modify::Reset);
        if let Some(conn) = lane.conn {
            self.by_conn.remove(&conn);
            // It may have ended by itself.
            _ = nic.disconnect(conn, &[], now);
        }
        self.by_qpn.remove(&lane.qpn.get());
        // Nothing here can fail: they are ours, and nobody else has them.
        _ = nic.destroy_qp(lane.qpn);
        _ = nic.deregister(lane.mr);
        _ = nic.free(lane.buffer);
    }

    /// The other node is gone, as far as this link tells.
    fn lose(&mut self, nic: &mut Rnic, peer: IpAddr, now: Nanos) {
        let Some(link) = self.links.get_mut(&peer) else { return };
        let lane = link.up.take();
        link.outbox.clear();
        link.retry_at = now + self.attempt;
        if lane.is_some() {
            self.news.push_back(News::Lost(peer));
        }
        self.drop_lane(nic, lane, now);
        self.arm(peer);
    }

    /// Another node asks for a connection.
    fn requested(&mut self, nic: &mut Rnic, queues: Queues, peer: IpAddr, conn: Conn, now: Nanos) -> bool {
        // It would be one too many, or the wrong way round.
        if self.own >= peer || (!self.links.contains_key(&peer) && self.links.len() >= self.max_links) {
            return false;
        }
        let Some(mut lane) = Self::lane(nic, queues, now) else { return false };
        lane.conn = Some(conn);
        // Receives can be posted once the queue pair has left the reset state, which `accept` sees to.
        if nic.accept(conn, lane.qpn, self.param(), now).is_err() {
            lane.conn = None;
            self.drop_lane(nic, Some(lane), now);
            return false;
        }
        lane.post_all(nic);
        self.by_conn.insert(conn, peer);
        self.by_qpn.insert(lane.qpn.get(), peer);
        let before = self.links.entry(peer).or_default().coming.replace(lane);
        self.drop_lane(nic, before, now);
        self.arm(peer);
        true
    }

    /// The connection that was being made stands. One that stood before was of an earlier life of the other node.
    fn stands(&mut self, nic: &mut Rnic, peer: IpAddr, now: Nanos) {
        self.lose(nic, peer, now);
        let Some(link) = self.links.get_mut(&peer) else { return };
        link.up = link.coming.take();
        (link.heard, link.probed, link.unasked) = (now, now, false);
        self.news.push_back(News::Up(peer));
        self.arm(peer);
    }

    /// Something happened to a connection. Whether it is one between nodes.
    pub(crate) fn on_cm(&mut self, nic: &mut Rnic, queues: Queues, event: &CmEvent, now: Nanos) -> bool {
        let conn = event.conn();
        if let CmEvent::Requested { request, .. } = event {
            if !is_hello(&request.private_data) {
                return false;
            }
            if !self.requested(nic, queues, request.peer.remote, conn, now) {
                _ = nic.reject(conn, RejReason::CONSUMER, &[], now);
            }
            return true;
        }
        let Some(peer) = self.by_conn.get(&conn).copied() else { return false };
        let Some(link) = self.links.get_mut(&peer) else { return false };
        let is_coming = link.coming.as_ref().is_some_and(|lane| lane.conn == Some(conn));
        match event {
            CmEvent::Replied { .. } | CmEvent::Established { .. } if is_coming => self.stands(nic, peer, now),
            CmEvent::Replied { .. } | CmEvent::Established { .. } => {}
            _ if is_coming => {
                let lane = link.coming.take();
                link.retry_at = now + self.attempt;
                self.drop_lane(nic, lane, now);
                self.arm(peer);
            }
            _ => self.lose(nic, peer, now),
        }
        true
    }

    /// A completion. Whether it was of a connection between nodes.
    pub(crate) fn on_completion(&mut self, nic: &mut Rnic, done: &Completion, now: Nanos) -> bool {
        let Some(peer) = self.by_qpn.get(&done.qpn.get()).copied() else { return false };
        let Some(link) = self.links.get_mut(&peer) else { return false };
        let of = |lane: &Option<Lane>| lane.as_ref().is_some_and(|lane| lane.qpn == done.qpn);
        if of(&link.coming) {
            // What comes before the handshake is over ends it, which is told before; only failures are left.
            if done.status != Status::Success {
                let lane = link.coming.take();
                link.retry_at = now + self.attempt;
                self.drop_lane(nic, lane, now);
                self.arm(peer);
            }
            return true;
        }
        let Some(lane) = link.up.as_mut().filter(|lane| lane.qpn == done.qpn) else { return true };
        if done.status != Status::Success {
            self.lose(nic, peer, now);
        } else if done.opcode == CompletionOpcode::RecvWriteImm {
            // An empty WRITE, which needs no right to write anywhere
            lane.post(nic, done.id);
            self.malformed += 1;
        } else if done.opcode == CompletionOpcode::Recv {
            link.heard = now;
            let at = done.id as usize * LEN;
            let bytes = &nic.bytes(lane.buffer)[at..at + (done.len as usize).min(LEN)];
            let message = Message::from_bytes(bytes);
            lane.post(nic, done.id);
            match message {
                // What waits already says as much, as soon as there is room for it; and one that asks without hearing must not
                // make it grow.
                Some((_, Message::Ping)) if link.outbox.is_empty() => self.send(nic, peer, 0, Message::Pong),
                Some((_, Message::Ping | Message::Pong)) => {}
                Some((group, message)) => self.news.push_back(News::Message(peer, group, message)),
                None => self.malformed += 1,
            }
        } else {
            lane.under_way -= 1;
            link.flush(nic);
            // While something waited, nobody was asked; and who took it may have nothing to say.
            if link.outbox.is_empty() && link.unasked {
                link.unasked = false;
                self.send(nic, peer, 0, Message::Ping);
            }
        }
        true
    }
}

impl Link {
    /// Whether everything that was said over it is acknowledged.
    fn is_heard(&self) -> bool {
        self.outbox.is_empty() && self.up.as_ref().is_none_or(|lane| lane.under_way == 0)
    }

    fn flush(&mut self, nic: &mut Rnic) {
        let Some(lane) = &mut self.up else { return };
        while lane.under_way < DEPTH
            && let Some(bytes) = self.outbox.pop_front()
        {
            let request = SendRequest::new(0, Operation::Send, Data::Inline(bytes.to_vec()));
            // A queue pair that is not ready to send has failed, and says so by its completions.
            if nic.post_send(lane.qpn, request).is_ok() {
                lane.under_way += 1;
            }
        }
    }
}

impl Lane {
    fn post(&self, nic: &mut Rnic, slot: u64) {
        let sge = Sge { mr: self.mr, va: slot * LEN as u64, len: LEN as u32 };
        // In the error state it comes back as flushed.
        _ = nic.post_recv(self.qpn, RecvRequest { id: slot, data: Some(sge) });
    }

    fn post_all(&self, nic: &mut Rnic) {
        for slot in 0..DEPTH as u64 {
            self.post(nic, slot);
        }
    }
}
