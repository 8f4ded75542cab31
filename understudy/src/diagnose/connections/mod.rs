//! Connections as seen at one point between their hosts: which packets belong together, and what happened to
//! them. A queue pair takes the same memory for any number of packets, and a table has a maximum of them. It
//! performs no I/O and knows nothing of files, so that it can follow live packets, too.

mod copies;
mod holes;
mod reads;
mod requests;
#[cfg(test)]
mod tests;

use super::finding::{Detail, Ends, Event, Findings, Kind};
use super::packet::{FlowKey, Observed, Role, Sight};
use copies::Copies;
use core::net::IpAddr;
use requests::{OVERDUE_NS, Requests, kind_of};
use rocev2::aeth::Syndrome;
use rocev2::{Psn, Qpn};
use std::collections::HashMap;

/// Responses of a flow after which its requests are searched for only now and then
const EAGER_SEARCHES: u64 = 64;
/// Flows among which the requests to a response are searched for
const MAX_CANDIDATES: usize = 1024;
/// Time after a CE mark within which a CNP has to follow
const CNP_NS: u64 = 1_000_000;

/// Packets to one queue pair from one host.
#[derive(Clone, Debug, Default)]
struct Flow {
    /// The other direction of the connection, if known
    reverse: Option<FlowKey>,
    src_port: u16,
    requests: Requests,
    /// Interface of the responses, the latest PSN of them, and their count
    responses: (u32, Option<Psn>, u64),
    copies: Copies,
    /// CE marks, the first of them, CNPs and the first of them
    marks: (u64, Sight, u64, Sight),
    /// Whether the flow was used since the clock's hand passed it
    used: bool,
}

/// A table of connections.
#[derive(Debug)]
pub(crate) struct Connections {
    index: HashMap<FlowKey, usize>,
    slots: Vec<(FlowKey, Flow)>,
    by_hosts: HashMap<(IpAddr, IpAddr), Vec<FlowKey>>,
    /// Peer of each queue pair of connections that the communication manager has set up and not ended
    peers: HashMap<(IpAddr, Qpn), IpAddr>,
    /// Next slot to be considered for eviction
    hand: usize,
    max: usize,
    /// Directions of connections that were forgotten because the table was full
    pub evicted: u64,
    findings: Findings,
    end: Sight,
}

/// Ends of a new connection, as the communication manager announces them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Established {
    pub client: (IpAddr, Qpn),
    pub server: (IpAddr, Qpn),
    /// First PSNs that client and server use
    pub psns: (Psn, Psn),
    /// Path MTU in bytes; 0 if not known
    pub mtu: u32,
}

impl Connections {
    /// Returns a table of at most `max` directions of connections.
    pub(crate) fn new(max: usize) -> Self {
        Self {
            index: HashMap::new(),
            slots: Vec::new(),
            by_hosts: HashMap::new(),
            peers: HashMap::new(),
            hand: 0,
            max: max.max(2),
            evicted: 0,
            findings: Findings::default(),
            end: Sight::default(),
        }
    }

    /// Takes a packet.
    pub(crate) fn observe(&mut self, p: &Observed) {
        if p.sight.time_ns >= self.end.time_ns {
            self.end = p.sight;
        }
        let before = (self.slots.len(), self.evicted);
        let at = self.slot(p.key);
        if (self.slots.len(), self.evicted) != before {
            self.check_peer(p);
        }
        let flow = &mut self.slots[at].1;
        flow.copies.observe(p, flow.reverse.is_some());
        flow.src_port = p.src_port;
        let new = match p.role() {
            Role::Request { acknowledged } => {
                let Self { slots, findings, .. } = self;
                let flow = &mut slots[at].1;
                let ends = Ends::of(p.key, flow.reverse.map(|reverse| reverse.qpn));
                let sink = |event| findings.add(Some(ends), event);
                flow.requests.request(p, acknowledged, &flow.copies, sink)
            }
            Role::Response => self.response(p, at),
            Role::Cnp => {
                let marks = &mut self.slots[at].1.marks;
                marks.3 = if marks.2 == 0 { p.sight } else { marks.3 };
                marks.2 += 1;
                true
            }
            Role::Other => true,
        };
        if p.ce && new {
            let marks = &mut self.slots[at].1.marks;
            marks.1 = if marks.0 == 0 { p.sight } else { marks.1 };
            marks.0 += 1;
        }
    }

    /// Adds an event that another part of the analysis noticed.
    pub(crate) fn add(&mut self, ends: Option<Ends>, event: Event) {
        self.findings.add(ends, event);
    }

    /// Begins a connection that the communication manager has set up.
    pub(crate) fn connect(&mut self, new: &Established) {
        for (own, peer) in [(new.client, new.server), (new.server, new.client)] {
            if self.peers.len() < self.max {
                self.peers.insert(own, peer.0);
            }
        }
        let to_server = FlowKey { src: new.client.0, dst: new.server.0, qpn: new.server.1 };
        let to_client = FlowKey { src: new.server.0, dst: new.client.0, qpn: new.client.1 };
        for (key, reverse, first) in [(to_server, to_client, new.psns.0), (to_client, to_server, new.psns.1)]
        {
            let at = self.slot(key);
            let flow = &mut self.slots[at].1;
            // A REP that is repeated changes nothing.
            if flow.reverse != Some(reverse) || !flow.requests.is_active() {
                *flow = Flow { reverse: Some(reverse), used: true, ..Flow::default() };
                flow.requests.connect(first, new.mtu);
            }
        }
    }

    /// Notes that the communication manager ends the connection of these ends.
    pub(crate) fn disconnect(&mut self, ends: Ends) {
        for (_, qpn) in [ends.requester, ends.responder] {
            // The addresses may be those of another path.
            self.peers.retain(|(host, own), peer| {
                let is_end = |address: &IpAddr| *address == ends.requester.0 || *address == ends.responder.0;
                Some(*own) != qpn || !(is_end(host) || is_end(peer))
            });
        }
    }

    /// Reports the first packet from another address than that of the queue pair's peer.
    fn check_peer(&mut self, p: &Observed) {
        let peer = self.peers.get(&(p.key.dst, p.key.qpn)).copied();
        if let Some(peer) = peer.filter(|peer| *peer != p.key.src) {
            let ends = Ends { requester: (p.key.src, None), responder: (p.key.dst, Some(p.key.qpn)) };
            self.findings.add(
                Some(ends),
                Event::new(Kind::GidUnexpected, 1, p.sight, Detail::Address { address: peer }),
            );
        }
    }

    /// Returns whether requests from `client` to this queue pair were seen.
    pub(crate) fn has_requests(&self, client: IpAddr, server: (IpAddr, Qpn)) -> bool {
        let key = FlowKey { src: client, dst: server.0, qpn: server.1 };
        self.index.get(&key).is_some_and(|&at| self.slots[at].1.requests.is_active())
    }

    /// Returns the count of connections in the table.
    pub(crate) fn count(&self) -> usize {
        let paired = |flow: &Flow| flow.reverse.is_some_and(|reverse| self.index.contains_key(&reverse));
        let double = self.slots.iter().filter(|(_, flow)| paired(flow)).count();
        self.slots.len() - double / 2
    }

    /// Returns a flow's slot. A new flow takes the place of an unused one if the table is full.
    fn slot(&mut self, key: FlowKey) -> usize {
        if let Some(&at) = self.index.get(&key) {
            self.slots[at].1.used = true;
            return at;
        }
        let flow = (key, Flow { used: true, ..Flow::default() });
        let at = if self.slots.len() < self.max {
            self.slots.push(flow);
            self.slots.len() - 1
        } else {
            let at = self.evict();
            self.slots[at] = flow;
            at
        };
        self.index.insert(key, at);
        self.by_hosts.entry((key.src, key.dst)).or_default().push(key);
        at
    }

    /// Removes a flow that was not used lately, and returns its slot.
    fn evict(&mut self) -> usize {
        while core::mem::take(&mut self.slots[self.hand].1.used) {
            self.hand = (self.hand + 1) % self.slots.len();
        }
        let at = self.hand;
        self.hand = (self.hand + 1) % self.slots.len();
        self.finish_flow(at);
        self.evicted += 1;
        let key = self.slots[at].0;
        self.index.remove(&key);
        if let Some(keys) = self.by_hosts.get_mut(&(key.src, key.dst)) {
            keys.retain(|other| *other != key);
            if keys.is_empty() {
                self.by_hosts.remove(&(key.src, key.dst));
            }
        }
        at
    }

    /// Takes a response. Returns false if it is a copy of one that was seen before.
    fn response(&mut self, p: &Observed, at: usize) -> bool {
        let flow = &mut self.slots[at].1;
        let (interface, latest, count) = &mut flow.responses;
        let seen = latest.is_some_and(|latest| p.psn.distance(latest) <= 0);
        if *count > 0 && ((*interface != p.interface && seen) || flow.copies.response_is_copy(p)) {
            return false;
        }
        (*interface, *latest) = (p.interface, Some(latest.map_or(p.psn, |latest| latest.later(p.psn))));
        *count += 1;
        let search = *count <= EAGER_SEARCHES || count.is_power_of_two();
        let Self { slots, findings, .. } = self;
        // Responses to READs show the path MTU of the responder.
        let ends = Ends::of(p.key, slots[at].1.reverse.map(|reverse| reverse.qpn));
        slots[at].1.requests.check_length(p, &mut |event| findings.add(Some(ends), event));
        if slots[at].1.reverse.is_none() && search {
            self.pair(p, at);
        }
        let reverse = self.slots[at].1.reverse.and_then(|key| self.index.get(&key));
        match reverse.copied() {
            Some(at) => self.answer(p, at),
            None => self.unpaired(p),
        }
        true
    }

    fn answer(&mut self, p: &Observed, at: usize) {
        let Self { slots, findings, .. } = self;
        let (key, flow) = &mut slots[at];
        if !flow.requests.is_active() {
            return self.unpaired(p);
        }
        let ends = Ends::of(*key, Some(p.key.qpn));
        flow.requests.answer(p, |event| findings.add(Some(ends), event));
    }

    /// Searches for the requests to which a response belongs: the only ones from its destination to its source
    /// that have an outstanding packet with its PSN, or the only ones of these with the same UDP source port.
    fn pair(&mut self, p: &Observed, at: usize) {
        let Some(keys) = self.by_hosts.get(&(p.key.dst, p.key.src)) else { return };
        let candidates = || {
            let flows = keys.iter().rev().take(MAX_CANDIDATES).map(|key| &self.slots[self.index[key]]);
            flows.filter(|(_, flow)| {
                flow.requests.age(p.psn).is_some() && flow.reverse.is_none_or(|reverse| reverse == p.key)
            })
        };
        let only = |port: Option<u16>| {
            let mut matching = candidates().filter(|(_, flow)| port.is_none_or(|port| flow.src_port == port));
            let first = matching.next()?.0;
            matching.next().is_none().then_some(first)
        };
        if let Some(key) = only(None).or_else(|| only(Some(p.src_port))) {
            self.slots[at].1.reverse = Some(key);
            let reverse = self.index[&key];
            self.slots[reverse].1.reverse = Some(p.key);
        }
    }

    /// Takes a response whose requests are not known. A NAK is a finding nevertheless.
    fn unpaired(&mut self, p: &Observed) {
        let ends = Ends { requester: (p.key.dst, Some(p.key.qpn)), responder: (p.key.src, None) };
        let event = match p.syndrome() {
            Some(Syndrome::RnrNak(timer)) => {
                let detail = Detail::Rnr { psn: p.psn, us: timer.microseconds() };
                Event::new(Kind::RnrNak, 1, p.sight, detail)
            }
            Some(Syndrome::Nak(code)) => {
                let detail = Detail::Refused { psn: p.psn, opcode: None, access: None, code: code.0 };
                Event::new(kind_of(code), 1, p.sight, detail)
            }
            _ => return,
        };
        self.findings.add(Some(ends), event);
    }

    /// Reports what remains of a flow.
    fn finish_flow(&mut self, at: usize) {
        let (key, reverse) = (self.slots[at].0, self.slots[at].1.reverse);
        let other = reverse.and_then(|reverse| self.index.get(&reverse)).map(|&at| &self.slots[at].1);
        let (other_mtu, other_cnps) = other.map_or((0, 0), |flow| (flow.requests.mtu(), flow.marks.2));
        let host_cnps = || {
            let keys = self.by_hosts.get(&(key.dst, key.src)).into_iter().flatten();
            keys.map(|key| self.slots[self.index[key]].1.marks.2).sum::<u64>()
        };
        let (ce, first_ce, cnps, first_cnp) = self.slots[at].1.marks;
        let unheeded = ce > 0 && other_cnps + host_cnps() == 0 && self.end.since(first_ce) > CNP_NS;
        let unmarked = cnps > 0 && other.is_none_or(|flow| flow.marks.0 == 0);
        let ends = Ends::of(key, reverse.map(|reverse| reverse.qpn));
        let Self { slots, findings, end, .. } = self;
        let requests = &mut slots[at].1.requests;
        requests.finish(*end, |event| findings.add(Some(ends), event));
        // The CNPs concern what their receiver sends, and are sent by the responder.
        if unmarked {
            let requester = (key.dst, Some(key.qpn));
            let ends = Ends { requester, responder: (key.src, reverse.map(|reverse| reverse.qpn)) };
            findings.add(Some(ends), Event::new(Kind::CnpWithoutCe, cnps, first_cnp, Detail::None));
        }
        if unheeded {
            findings.add(Some(ends), Event::new(Kind::CeWithoutCnp, ce, first_ce, Detail::None));
        }
        let mtu = requests.mtu();
        // Both directions compare; one reports.
        let first = (key.src, key.qpn) < (key.dst, reverse.map_or(key.qpn, |reverse| reverse.qpn));
        if first && mtu > 0 && other_mtu > 0 && mtu != other_mtu {
            let detail = Detail::Mtu { seen: mtu, expected: other_mtu };
            findings.add(Some(ends), Event::new(Kind::MtuDiffers, 1, *end, detail));
        }
    }

    /// Ends the analysis and returns the findings, the worst first.
    pub(crate) fn finish(&mut self) -> (Vec<super::finding::Finding>, u64) {
        for at in 0..self.slots.len() {
            self.finish_flow(at);
        }
        let findings = core::mem::take(&mut self.findings);
        let omitted = findings.omitted;
        let reverse = |key| self.index.get(&key).and_then(|&at| Some(self.slots[at].1.reverse?.qpn));
        (findings.sorted(reverse), omitted)
    }

    /// Time after which something is overdue, in nanoseconds
    pub(crate) const OVERDUE_NS: u64 = OVERDUE_NS;
}
