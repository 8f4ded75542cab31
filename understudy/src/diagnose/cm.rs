//! Connections that the communication manager sets up: exchanges of messages that do not complete.

use super::connections::{Connections, Established};
use super::finding::{Detail, Ends, Event, Kind};
use super::packet::Sight;
use core::net::IpAddr;
use rocev2::cm::{Body, Kind as Message, Message as Cm, RejReason, Req};
use rocev2::{Psn, Qpn};
use std::collections::HashMap;

/// Maximum count of exchanges that are remembered
const MAX_EXCHANGES: usize = 4096;

/// State of an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Requested,
    /// The responder needs more time
    Delayed,
    Replied,
    Established,
    Disconnecting,
    /// Rejected, disconnected, or evicted
    Over,
}

/// An exchange: a connection, or the resolution of a service ID.
#[derive(Clone, Copy, Debug)]
struct Exchange {
    client: (IpAddr, Option<Qpn>),
    server: (IpAddr, Option<Qpn>),
    state: State,
    /// First PSN of the server's requests, and the path MTU in bytes
    req: Option<(Psn, u32)>,
    /// Addresses of client and server on the primary path, which the connection's packets will have
    path: Option<(IpAddr, IpAddr)>,
    /// The message that waits for a response: its first sight, its last one, and how often it was sent
    first: Sight,
    last: Sight,
    times: u64,
    service_id: bool,
}

/// Exchange of a client: its address, and its communication ID or the ID of its request
type ExchangeKey = (IpAddr, u32, bool);

/// The exchanges of a capture.
#[derive(Debug, Default)]
pub(super) struct Exchanges {
    by_client: HashMap<ExchangeKey, Exchange>,
    /// Keys in the order of their first message
    order: std::collections::VecDeque<ExchangeKey>,
    pub evicted: u64,
}

impl Exchange {
    fn ends(&self) -> Ends {
        Ends { requester: self.client, responder: self.server }
    }

    /// Notes that a message waits for a response. The same message of another interface is not counted.
    fn wait(&mut self, state: State, sight: Sight) {
        if self.state == state {
            self.times += u64::from(sight.since(self.last) > 1_000_000);
        } else {
            (self.state, self.first, self.times) = (state, sight, 1);
        }
        self.last = sight;
    }
}

/// Returns an address as a GID.
fn gid(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// Returns the address that a GID stands for.
fn address(gid: [u8; 16]) -> IpAddr {
    IpAddr::V6(gid.into()).to_canonical()
}

impl Exchanges {
    /// Takes a message.
    pub(super) fn observe(
        &mut self,
        message: &Cm<'_>,
        (src, dst): (IpAddr, IpAddr),
        sight: Sight,
        connections: &mut Connections,
    ) {
        match message.body {
            Body::Req(req) => self.request(req, (src, dst), sight, connections),
            Body::Rep(rep) => {
                let key = (dst, rep.remote_comm_id.get(), false);
                let exchange = self.exchange(key, (dst, src), sight);
                exchange.server.1 = Some(rep.qpn());
                if matches!(exchange.state, State::Requested | State::Delayed | State::Replied) {
                    exchange.wait(State::Replied, sight);
                }
                if let (Some((psn, mtu)), Some(client)) = (exchange.req, exchange.client.1) {
                    let psns = (rep.starting_psn(), psn);
                    let hosts = exchange.path.unwrap_or((dst, src));
                    let (client, server) = ((hosts.0, client), (hosts.1, rep.qpn()));
                    connections.connect(&Established { client, server, psns, mtu });
                }
            }
            Body::Rtu(rtu) => self.pass((src, rtu.local_comm_id.get(), false), State::Established),
            Body::Mra(mra) => {
                let key = (dst, mra.remote_comm_id.get(), false);
                if self.by_client.get(&key).is_some_and(|exchange| exchange.state == State::Requested) {
                    self.pass(key, State::Delayed);
                }
            }
            Body::Rej(rej) => {
                let ids = (rej.local_comm_id.get(), rej.remote_comm_id.get());
                self.reject(ids, rej.reason(), (src, dst), sight, connections);
            }
            Body::Dreq(dreq) => {
                let ids = (dreq.local_comm_id.get(), dreq.remote_comm_id.get());
                let key = self.either(ids, (src, dst));
                if let Some(exchange) = key.and_then(|key| self.by_client.get_mut(&key)) {
                    connections.disconnect(exchange.ends());
                    exchange.wait(State::Disconnecting, sight);
                }
            }
            Body::Drep(drep) => {
                let ids = (drep.local_comm_id.get(), drep.remote_comm_id.get());
                if let Some(key) = self.either(ids, (src, dst)) {
                    if let Some(exchange) = self.by_client.get(&key) {
                        connections.disconnect(exchange.ends());
                    }
                    self.pass(key, State::Over);
                }
            }
            Body::Opaque(kind, body) => self.service_id(kind, body, (src, dst), sight, connections),
        }
    }

    fn request(&mut self, req: &Req, (src, dst): (IpAddr, IpAddr), sight: Sight, all: &mut Connections) {
        let exchange = self.exchange((src, req.local_comm_id.get(), false), (src, dst), sight);
        exchange.client.1 = Some(req.qpn());
        exchange.req = Some((req.starting_psn(), req.path_mtu().map_or(0, u32::from)));
        if matches!(exchange.state, State::Requested) {
            exchange.wait(State::Requested, sight);
        }
        exchange.path = Some((address(req.primary.local_gid), address(req.primary.remote_gid)));
        if req.primary.local_gid != gid(src) || req.primary.remote_gid != gid(dst) {
            let ends = exchange.ends();
            all.add(Some(ends), Event::new(Kind::GidMismatch, 1, sight, Detail::None));
        }
    }

    fn service_id(
        &mut self,
        kind: Message,
        body: &[u8],
        (src, dst): (IpAddr, IpAddr),
        sight: Sight,
        connections: &mut Connections,
    ) {
        let Some(&[a, b, c, d]) = body.first_chunk() else { return };
        let id = u32::from_be_bytes([a, b, c, d]);
        match kind {
            Message::SidrReq => {
                let exchange = self.exchange((src, id, true), (src, dst), sight);
                if exchange.state == State::Requested {
                    exchange.wait(State::Requested, sight);
                }
            }
            Message::SidrRep => {
                self.pass((dst, id, true), State::Over);
                if let Some(&status @ 1..) = body.get(4) {
                    let ends = Ends { requester: (dst, None), responder: (src, None) };
                    let detail = Detail::Named { number: status.into(), name: sidr_status(status) };
                    connections.add(Some(ends), Event::new(Kind::SidrRejected, 1, sight, detail));
                }
            }
            _ => {}
        }
    }

    /// Returns an exchange, which begins with this message if it is new.
    fn exchange(
        &mut self,
        key: ExchangeKey,
        (client, server): (IpAddr, IpAddr),
        sight: Sight,
    ) -> &mut Exchange {
        let is_over = |exchange: &Exchange| exchange.state == State::Over;
        if self.by_client.get(&key).is_none_or(is_over) {
            if self.by_client.remove(&key).is_none() {
                self.order.push_back(key);
            }
            if self.order.len() > MAX_EXCHANGES
                && let Some(oldest) = self.order.pop_front()
            {
                self.by_client.remove(&oldest);
                self.evicted += 1;
            }
        }
        self.by_client.entry(key).or_insert(Exchange {
            client: (client, None),
            server: (server, None),
            state: State::Requested,
            req: None,
            path: None,
            first: sight,
            last: sight,
            times: 1,
            service_id: key.2,
        })
    }

    /// Changes the state of an exchange that got the response it waited for.
    fn pass(&mut self, key: ExchangeKey, state: State) {
        if let Some(exchange) = self.by_client.get_mut(&key) {
            exchange.state = state;
        }
    }

    /// Returns the exchange to which a message of either end belongs.
    fn either(&self, (local, remote): (u32, u32), (src, dst): (IpAddr, IpAddr)) -> Option<ExchangeKey> {
        [(src, local, false), (dst, remote, false)].into_iter().find(|key| self.by_client.contains_key(key))
    }

    fn reject(
        &mut self,
        ids: (u32, u32),
        reason: RejReason,
        hosts: (IpAddr, IpAddr),
        sight: Sight,
        connections: &mut Connections,
    ) {
        let key = self.either(ids, hosts);
        let exchange = key.and_then(|key| self.by_client.get_mut(&key));
        // A REJ that is repeated, or that refuses a message about a connection that has ended
        if exchange.as_ref().is_some_and(|exchange| exchange.state == State::Over) {
            return;
        }
        let unknown = Ends { requester: (hosts.1, None), responder: (hosts.0, None) };
        let (ends, times) = exchange.as_ref().map_or((unknown, None), |e| (e.ends(), Some(e.first)));
        let detail = Detail::Named { number: reason.0.into(), name: reason.name() };
        let event = Event::new(Kind::CmRejected, 1, times.unwrap_or(sight), detail);
        connections.add(Some(ends), event.and(sight));
        if let Some(exchange) = exchange {
            exchange.state = State::Over;
        }
    }

    /// Reports the exchanges that wait for a message that is overdue at the end of the capture.
    pub(super) fn finish(&self, end: Sight, connections: &mut Connections) {
        for exchange in self.order.iter().filter_map(|key| self.by_client.get(key)) {
            let used = exchange
                .server
                .1
                .is_some_and(|qpn| connections.has_requests(exchange.client.0, (exchange.server.0, qpn)));
            let kind = match exchange.state {
                State::Requested if exchange.service_id => Kind::SidrNoReply,
                State::Requested => Kind::CmNoReply,
                // A request on the new connection replaces the RTU.
                State::Replied if !used => Kind::CmNoRtu,
                State::Disconnecting => Kind::CmNoDrep,
                _ => continue,
            };
            let waited = end.since(exchange.first);
            if exchange.times > 1 || waited > Connections::OVERDUE_NS {
                let mut event = Event::new(kind, exchange.times, exchange.first, Detail::Time { ns: waited });
                if exchange.last != exchange.first {
                    event = event.and(exchange.last);
                }
                connections.add(Some(exchange.ends()), event);
            }
        }
    }
}

/// Returns the name of a SIDR_REP's status (IB table 121).
fn sidr_status(status: u8) -> &'static str {
    match status {
        1 => "service_id_not_supported",
        2 => "rejected_by_service",
        3 => "no_qp_available",
        4 => "request_redirected",
        5 => "version_not_supported",
        _ => "other",
    }
}
