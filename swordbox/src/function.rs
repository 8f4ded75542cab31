//! The switch function: dispatches each frame by its kind.

use crate::config::{Config, Connection, Layers};
use crate::counters::Counters;
use crate::flow::{Flow, Stage};
use crate::guard::Guard;
use crate::headers::Headers;
use crate::held::Held;
use crate::lines::Lines;
use crate::message::Untracked;
use crate::op::{Kind, Op};
use crate::pairing::{EndedConnection, Handshakes, UnpairedEndpoints};
use crate::proof::Period;
use crate::range_invalidation::RangeInvalidations;
use crate::records::{NO_RECORD, Record, What};
use crate::shared_qp::SharedQp;
use crate::sketch::Sketch;
use crate::source::Sources;
use crate::steering::Steering;
use crate::successor::Successors;
use crate::switch_owned::{OpenSharedQp, RefusedKeys};
use crate::{Id, NONE};
use core::net::IpAddr;
use rocev2::aeth::Aeth;
use rocev2::atomic::AtomicEth;
use rocev2::checksum::Sum;
use rocev2::ethernet::{Ethernet, VlanTag, ethertype};
use rocev2::ipv6::Ipv6;
use rocev2::packet::ICRC_LEN;
use rocev2::reth::Reth;
use rocev2::udp::{PROTOCOL as UDP, Udp};
use rocev2::{Bth, Class, Fault, Layout, Msn, Opcode, Packet, Psn, Qpn};
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use switch::forward::counters::HostQp;
use switch::forward::{self, Forward};
use switch::table::Index;
use switch::{DropReason, Frame, Function, Nanos, Output, PortId, Verdict};
use zerocopy::FromBytes;

/// Command of the control plane to the function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// The connection may be translated from now on.
    PermitTranslation(Connection),
    /// Replaces the enabled layers.
    Layers(Layers),
    /// A switch-owned QP is connected. The reply is [`Event::SharedQpOpened`].
    OpenSharedQp(Box<OpenSharedQp>),
    /// A switch-owned QP is disconnected.
    CloseSharedQp {
        /// Index of the shared QP
        shared_qp: u32,
        /// The switch's queue pair number, which is new for each connection
        qpn: Qpn,
    },
}

/// Event from the function to the control plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Requests permission to translate the connection. The reply is [`Command::PermitTranslation`], once the journal
    /// has the connection.
    TranslationRequested(Connection),
    /// The connection is over: the journal may drop it.
    ConnectionEnded(Connection),
    /// Result of [`Command::OpenSharedQp`].
    SharedQpOpened {
        /// Index of the shared QP
        shared_qp: u32,
        /// The switch's queue pair number
        qpn: Qpn,
        /// Whether the QP is usable; false if the tables had no room
        opened: bool,
    },
    /// A switch-owned QP failed.
    SharedQpLost {
        /// Index of the shared QP
        shared_qp: u32,
        /// The switch's queue pair number
        qpn: Qpn,
    },
}

/// Interval of the timer while nothing is in flight
const IDLE: Nanos = Nanos::from_millis(10);
/// Server index of a host that is no configured server
pub(crate) const NO_SERVER: u8 = u8::MAX;

/// One tracked queue pair: an endpoint of a connection. The fields that untagged IPv4 packets need are in the
/// first cache line.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct Endpoint {
    /// Time of the last frame to this endpoint
    pub seen: Nanos,
    /// Endpoint of the peer, once it is known for certain; else `NONE`
    pub peer: Id,
    /// Queue pair number
    pub qpn: Qpn,
    /// Port through which frames to this endpoint are sent
    pub port: PortId,
    /// Port through which the peer is reached (the peer's `port`); [`UNKNOWN_PORT`] until it is known
    pub peer_port: PortId,
    /// Headers of frames to this endpoint
    pub headers: Headers,
    /// Address of the sending host as 128 bits: the source of all frames whose headers are in `headers`
    pub from: u128,
    /// Endpoint that is the likely peer, from the responses so far
    pub candidate_peer: Id,
    /// Number of responses that confirmed `candidate_peer`, and the PSN of the latest
    pub confirmed: (u8, Psn),
    /// Newest PSN acknowledged by a response to this endpoint, and its MSN, while the peer is unknown
    pub latest: Option<(Psn, Msn)>,
    /// Neighbours in the list of unpaired endpoints between the same two hosts
    pub next: Id,
    pub before: Id,
}

/// Unknown port
pub(crate) const UNKNOWN_PORT: PortId = PortId(u16::MAX);

impl Endpoint {
    /// Returns whether a packet to this endpoint that arrived on `port` has the stored headers and port.
    #[expect(clippy::inline_always, reason = "consists of a few comparisons")]
    #[inline(always)]
    pub(crate) fn has_headers_of(&self, packet: &Packet<'_>, port: PortId) -> bool {
        self.peer_port == port && self.headers.has_path_of(packet)
    }

    const NEW: Self = Self {
        from: 0,
        seen: Nanos::ZERO,
        peer: NONE,
        qpn: Qpn::new(0),
        port: PortId(0),
        peer_port: UNKNOWN_PORT,
        headers: Headers::NONE,
        candidate_peer: NONE,
        confirmed: (0, Psn::ZERO),
        latest: None,
        next: NONE,
        before: NONE,
    };
}

/// A bridge that resolves atomics.
///
/// Drive it as a [`Function`]: pass frames to `on_frame`, call `on_timer` when `next_timer` is due, poll
/// `poll_event` and give the events to a [`Control`](crate::Control), whose commands go to `on_command`.
pub struct Swordbox {
    pub(crate) config: Config,
    pub(crate) forward: Forward,
    pub(crate) index: Index<HostQp>,
    pub(crate) endpoints: Vec<Endpoint>,
    pub(crate) flows: Vec<Flow>,
    /// `config.rd_atomic` records per flow
    pub(crate) records: Vec<Record>,
    pub(crate) shared_qps: Vec<SharedQp>,
    pub(crate) lines: Lines,
    pub(crate) sketch: Sketch,
    pub(crate) held: Held,
    pub(crate) steering: Steering,
    pub(crate) handshakes: Handshakes,
    pub(crate) unpaired: UnpairedEndpoints,
    pub(crate) sources: Sources,
    pub(crate) successors: Successors,
    pub(crate) untracked: Untracked,
    /// Endpoints added so far, modulo 2^32: the incarnation number of the latest
    incarnations: u32,
    /// Translated connections whose PSN translation is lost. The key is what a request carries: everything
    /// but the client's queue pair
    pub(crate) ended: HashMap<Connection, EndedConnection>,
    /// Last time at which a packet found no free table entry. While that connection may continue, responses
    /// may belong to it
    pub(crate) overflowed: Option<Nanos>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) events: VecDeque<Event>,
    /// Flows with held frames whose own requests are all complete
    pub(crate) ready: VecDeque<Id>,
    /// Flows with retransmitted READs
    pub(crate) rereading: Vec<Id>,
    pub(crate) layers: Layers,
    pub(crate) last_tick: Nanos,
    /// Current period of the expiry of proven rights (quarters of `proof`), including the periods skipped
    /// after a revocation
    pub(crate) period: Period,
    pub(crate) age_cursor: Id,
    /// Queue pairs of clients whose connections ended with the switch's restart, with the server's endpoint
    /// of each
    pub(crate) orphaned_clients: HashMap<(IpAddr, Qpn), Connection>,
    /// Time of the first frame
    pub(crate) first_frame_at: Option<Nanos>,
    /// Operations in flight on all shared QPs
    pub(crate) in_flight: usize,
    /// Switch-owned QPs with a probe that is pending or in flight
    pub(crate) probing: usize,
    /// Keys refused on switch-owned QPs, by server
    pub(crate) refused_keys: Box<[RefusedKeys]>,
    /// Addresses of the servers as 128 bits
    pub(crate) hosts: Box<[u128]>,
    /// Budget of untrusted hosts for suspending resolution, by server
    pub(crate) guards: Box<[Guard]>,
    /// Last time at which each server accepted a connection through the connection manager
    pub(crate) connected: Box<[Nanos]>,
}

/// Returns the source address of a packet; IPv4 is mapped to ::ffff:0:0/96.
#[inline]
pub(crate) fn source_of(packet: &Packet<'_>) -> u128 {
    match packet.ipv4() {
        Some(ip) => 0xffff_0000_0000 | u128::from(u32::from_be_bytes(ip.src)),
        None => packet.ipv6().map_or(0, |ip| u128::from_be_bytes(ip.src)),
    }
}

pub(crate) fn bits_of(host: IpAddr) -> u128 {
    match host {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().to_bits(),
        IpAddr::V6(ip) => ip.to_bits(),
    }
}

/// Returns the offset of the network layer header, and its ethertype.
fn network_of(bytes: &[u8]) -> Option<(usize, u16)> {
    let mut l3 = Ethernet::LEN;
    loop {
        let kind = u16::from_be_bytes(*bytes.get(l3 - 2..)?.first_chunk()?);
        if !ethertype::is_tag(kind) {
            return Some((l3, kind));
        }
        l3 += VlanTag::LEN;
    }
}

/// Returns whether a frame is an IPv4 packet with a wrong header checksum.
fn has_wrong_checksum(bytes: &[u8]) -> bool {
    let Some((l3, ethertype::IPV4)) = network_of(bytes) else { return false };
    let len = bytes.get(l3).map_or(0, |first| usize::from(first & 0x0f) * 4);
    bytes.get(l3..l3 + len).is_none_or(|header| Sum::default().add(header).folded() != 0xffff)
}

/// Returns whether a packet with an unknown opcode, whose headers are valid otherwise, has a wrong ICRC.
fn has_wrong_icrc(bytes: &[u8]) -> bool {
    let Some((l3, kind)) = network_of(bytes) else { return false };
    let field = |at: usize| {
        bytes.get(l3 + at..).and_then(|bytes| bytes.first_chunk()).map(|len| u16::from_be_bytes(*len))
    };
    let (udp, len) = match kind {
        ethertype::IPV4 => (bytes.get(l3).map_or(0, |first| usize::from(first & 0x0f) * 4), field(2)),
        // Extension headers are not parsed here.
        ethertype::IPV6 if bytes.get(l3 + 6) == Some(&UDP) => {
            (Ipv6::LEN, field(4).map(|len| len + Ipv6::LEN as u16))
        }
        _ => return false,
    };
    let packet = len.and_then(|len| bytes.get(l3..l3 + usize::from(len)));
    let Some((packet, icrc)) = packet.and_then(|packet| packet.split_last_chunk::<ICRC_LEN>()) else {
        return false;
    };
    rocev2::icrc::compute_for(packet, kind == ethertype::IPV6, udp) != u32::from_le_bytes(*icrc)
}

/// Returns the source and destination address and the destination queue pair of a malformed packet, as far as
/// they can be parsed.
fn addresses_of(bytes: &[u8]) -> Option<(IpAddr, IpAddr, Qpn)> {
    fn address<const N: usize>(bytes: &[u8], at: usize) -> Option<IpAddr>
    where
        [u8; N]: Into<IpAddr>,
    {
        Some((*bytes.get(at..)?.first_chunk::<N>()?).into())
    }
    let (l3, kind) = network_of(bytes)?;
    let (from, host, l4) = match kind {
        ethertype::IPV4 => {
            let l4 = l3 + usize::from(bytes.get(l3)? & 0x0f) * 4;
            (address::<4>(bytes, l3 + 12)?, address::<4>(bytes, l3 + 16)?, l4)
        }
        ethertype::IPV6 => (address::<16>(bytes, l3 + 8)?, address::<16>(bytes, l3 + 24)?, l3 + Ipv6::LEN),
        _ => return None,
    };
    let bth: &[u8; Bth::LEN] = bytes.get(l4 + Udp::LEN..)?.first_chunk()?;
    Some((from, host, Bth::ref_from_bytes(bth).ok()?.dest_qp()))
}

impl core::fmt::Debug for Swordbox {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let busy =
            self.flows.iter().enumerate().filter(|(_, flow)| {
                !flow.is_idle() || flow.next != flow.sent || flow.nak_due || flow.nak_sent
            });
        let open =
            |id: usize| self.records(id as Id).iter().filter(|record| !record.done).collect::<Vec<_>>();
        let busy = busy.map(|(id, flow)| (id, flow, open(id)));
        f.debug_struct("Swordbox")
            .field("usage", &self.usage())
            .field("busy", &busy.collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

impl Swordbox {
    /// Creates a Swordbox without tracked connections.
    ///
    /// # Panics
    /// If `in_flight` is not a power of two, or there are more than 254 servers.
    pub fn new(config: Config) -> Self {
        assert!(config.in_flight.is_power_of_two(), "in_flight is {}, not a power of two", config.in_flight);
        assert!(
            config.servers.len() < usize::from(NO_SERVER),
            "{} servers; at most 254 are supported",
            config.servers.len()
        );
        let ends = config.connections * 2;
        let own: HashSet<Id> = config.switch_owned_qps().map(|(shared_qp, _)| shared_qp).collect();
        let counts = config.servers.iter().map(|server| {
            let own = server.connect.as_ref().filter(|_| config.interface.is_some());
            own.map_or(0, |own| own.qps) + server.client_owned_qps
        });
        let shared_qps = counts.zip(0u8..).flat_map(|(count, server)| core::iter::repeat_n(server, count));
        let shared_qps = shared_qps
            .zip(0..)
            .map(|(server, number)| SharedQp::new(server, own.contains(&number), config.in_flight));
        Self {
            forward: Forward::embedded(&config.forward),
            index: Index::with_capacity(ends),
            endpoints: Vec::with_capacity(ends),
            flows: Vec::with_capacity(ends),
            records: Vec::with_capacity(ends * config.rd_atomic),
            refused_keys: (0..config.servers.len()).map(|_| RefusedKeys::default()).collect(),
            probing: 0,
            shared_qps: shared_qps.collect(),
            sketch: Sketch::new(),
            lines: Lines::with_capacity(config.lines, config.servers.len()),
            held: Held::with_capacity(config.held),
            steering: Steering::new(&config),
            handshakes: Handshakes::new(),
            unpaired: UnpairedEndpoints::with_capacity(ends),
            sources: Sources::new(ends, config.per_host),
            successors: Successors::new(),
            untracked: Untracked::new(),
            incarnations: 0,
            ended: {
                let mut ended = HashMap::with_capacity(config.connections.max(config.ended.len()));
                ended.extend(config.ended.iter().map(|connection| {
                    (connection.without_client_qpn(), EndedConnection { connection: *connection, psns: None })
                }));
                ended
            },
            overflowed: None,
            counters: Arc::default(),
            events: VecDeque::with_capacity(64),
            ready: VecDeque::with_capacity(64),
            rereading: Vec::with_capacity(64),
            layers: config.layers,
            last_tick: Nanos::ZERO,
            period: Period::default(),
            age_cursor: 0,
            orphaned_clients: config
                .ended
                .iter()
                .map(|ended_connection| (ended_connection.client, ended_connection.without_client_qpn()))
                .collect(),
            first_frame_at: None,
            in_flight: 0,
            guards: vec![Guard::default(); config.servers.len()].into(),
            connected: vec![Nanos::ZERO; config.servers.len()].into(),
            hosts: config.servers.iter().map(|server| bits_of(server.host)).collect(),
            config,
        }
    }

    /// Returns the counters, which the function keeps updating.
    pub fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.counters)
    }

    /// Returns the counters of the bridge.
    pub fn forward_counters(&self) -> Arc<forward::Counters> {
        self.forward.counters()
    }

    /// Returns the current number of connections, shared QPs, cached lines and held frames.
    pub fn usage(&self) -> [usize; 4] {
        let shared_qps = self.shared_qps.iter().filter(|shared_qp| shared_qp.owner != NONE).count();
        [self.index.len() / 2, shared_qps, self.lines.len(), self.held.len()]
    }

    /// Returns the index of the server with this address, or [`NO_SERVER`].
    pub(crate) fn server_of(&self, host: u128) -> u8 {
        let found = self.hosts.iter().position(|own| *own == host);
        found.map_or(NO_SERVER, |at| at as u8)
    }

    /// Returns the endpoint that `packet` is sent to, and adds it to the table if there is room.
    #[expect(clippy::inline_always, reason = "runs for every packet")]
    #[inline(always)]
    pub(crate) fn endpoint_of(&mut self, packet: &Packet<'_>) -> Option<Id> {
        let key = HostQp::destination_of(packet);
        self.index.get(&key).or_else(|| self.insert_endpoint(packet, key))
    }

    /// Returns the endpoint that a request is sent to. Endpoints on hosts that are no servers are not added.
    #[expect(clippy::inline_always, reason = "runs for every packet")]
    #[inline(always)]
    pub(crate) fn endpoint_of_request(&mut self, packet: &Packet<'_>) -> Option<Id> {
        let key = HostQp::destination_of(packet);
        self.index.get(&key).or_else(|| self.insert_endpoint_of_request(packet, key))
    }

    #[cold]
    fn insert_endpoint_of_request(&mut self, packet: &Packet<'_>, key: HostQp) -> Option<Id> {
        if self.server_of(bits_of(key.host())) == NO_SERVER {
            None
        } else {
            self.insert_endpoint(packet, key)
        }
    }

    #[cold]
    fn insert_endpoint(&mut self, packet: &Packet<'_>, key: HostQp) -> Option<Id> {
        if !packet.verify_icrc() {
            // The packet is damaged and may name a queue pair that does not exist.
            return None;
        }
        if self.server_of(bits_of(key.host())) != NO_SERVER
            && !self.sources.may_add(source_of(packet), self.last_tick)
        {
            self.counters.untracked.add(1);
            return None;
        }
        let id = self.add_endpoint(key);
        if id.is_none() {
            self.overflowed = Some(self.last_tick);
            self.counters.untracked.add(1);
        }
        id
    }

    pub(crate) fn add_endpoint(&mut self, key: HostQp) -> Option<Id> {
        let Ok(id) = self.index.get_or_insert(key) else { return None };
        let server = self.server_of(bits_of(key.host()));
        crate::lines::put(
            &mut self.endpoints,
            id,
            Endpoint { qpn: key.qpn(), ..Endpoint::NEW },
            Endpoint::NEW,
        );
        let mtu = self.config.servers.get(usize::from(server)).map_or(0, |server| server.path_mtu);
        self.incarnations = self.incarnations.wrapping_add(1);
        let flow = Flow { mtu, incarnation: self.incarnations, ..Flow::new(server) };
        crate::lines::put(&mut self.flows, id, flow, Flow::new(server));
        let records = (id as usize + 1) * self.config.rd_atomic;
        if self.records.len() < records {
            self.records.resize(records, NO_RECORD);
        }
        self.clear_records(id);
        Some(id)
    }

    /// Returns the public identity of a connection.
    pub(crate) fn connection_of(&self, id: Id) -> Option<Connection> {
        let peer = self.endpoints[id as usize].peer;
        let (server, client) = (self.index.key(id)?, self.index.key(peer)?);
        Some(Connection { server: (server.host(), server.qpn()), client: (client.host(), client.qpn()) })
    }

    fn on_roce<O: Output>(
        &mut self,
        frame: &mut O::Frame,
        layout: Layout,
        port: PortId,
        now: Nanos,
        out: &mut O,
    ) -> Verdict {
        // The layouts of nearly all packets when many clients share words. As constants, they let the
        // compiler specialise the handlers.
        const ACK: Layout = Layout::ipv4_without_options(Opcode::RC_ACKNOWLEDGE, Aeth::LEN);
        const CAS: Layout = Layout::ipv4_without_options(Opcode::RC_COMPARE_SWAP, AtomicEth::LEN);
        const WRITE: Layout = Layout::ipv4_without_options(Opcode::RC_WRITE_ONLY, Reth::LEN);
        if layout == ACK {
            return self.on_response(frame, ACK, port, now, out);
        }
        if layout == CAS {
            return self.on_request(frame, CAS, Op { kind: Kind::Atomic, is_last: true }, port, now, out);
        }
        if let Some(layout) = WRITE.with_payload_of(frame.bytes(), layout) {
            return self.on_request(frame, layout, Op { kind: Kind::Write, is_last: true }, port, now, out);
        }
        self.on_any(frame, layout, port, now, out)
    }

    /// Handles a packet of any layout.
    #[inline(never)]
    fn on_any<O: Output>(
        &mut self,
        frame: &mut O::Frame,
        layout: Layout,
        port: PortId,
        now: Nanos,
        out: &mut O,
    ) -> Verdict {
        let op = Op::of(layout.opcode());
        match op.kind {
            Kind::Response => self.on_response(frame, layout, port, now, out),
            Kind::Datagram => {
                let packet = Packet::new(frame.bytes(), layout);
                if self.on_datagram(&packet, port, now) {
                    self.forward_untracked(frame, layout, port, now, out)
                } else {
                    Verdict::Drop(DropReason::Delayed)
                }
            }
            Kind::Cnp => {
                self.on_cnp(frame, layout, out);
                self.forward_untracked(frame, layout, port, now, out)
            }
            Kind::Unreliable | Kind::Unknown => self.on_untracked(frame, layout, port, now, out),
            _ => self.on_request(frame, layout, op, port, now, out),
        }
    }

    /// Forwards a packet that concerns no tracked connection. A packet with a wrong ICRC is dropped, since
    /// its undamaged original may concern one.
    pub(crate) fn forward_untracked<O: Output>(
        &mut self,
        frame: &mut O::Frame,
        layout: Layout,
        port: PortId,
        now: Nanos,
        out: &mut O,
    ) -> Verdict {
        if !Packet::new(frame.bytes(), layout).verify_icrc() {
            return self.refuse(Fault::Icrc);
        }
        self.forward.route(frame, port, now, out)
    }

    fn refuse(&self, fault: Fault) -> Verdict {
        self.counters.damaged.add(1);
        Verdict::Drop(DropReason::Malformed(fault))
    }

    /// Forwards a packet of an untracked connection, unless it may write to words with resolved operations in
    /// flight.
    pub(crate) fn on_untracked<O: Output>(
        &mut self,
        frame: &mut O::Frame,
        layout: Layout,
        port: PortId,
        now: Nanos,
        out: &mut O,
    ) -> Verdict {
        let packet = Packet::new(frame.bytes(), layout);
        if !packet.verify_icrc() {
            return self.refuse(Fault::Icrc);
        }
        let host = bits_of(packet.dst());
        let server = self.server_of(host);
        if server == NO_SERVER || self.lines.len() == 0 {
            return self.forward.route(frame, port, now, out);
        }
        let trusted = self.is_trusted(NONE, source_of(&packet));
        if !trusted && !self.may_invalidate(NONE, server, &packet, now) {
            self.counters.delayed.add(1);
            return Verdict::Drop(DropReason::Delayed);
        }
        if self.detour(server, &packet, now).is_err() {
            if trusted {
                // Until the packet is retransmitted, no further operation is resolved that it would have to
                // wait for.
                _ = self.detour_for(NONE, server, &packet, now, self.config.dead_after);
            }
            self.counters.delayed.add(1);
            return Verdict::Drop(DropReason::Delayed);
        }
        self.note_long_write(&packet, now);
        self.forward.route(frame, port, now, out)
    }
}

impl Function for Swordbox {
    type Command = Command;
    type Event = Event;

    #[inline]
    fn on_frame<O: Output>(
        &mut self,
        frame: &mut O::Frame,
        port: PortId,
        now: Nanos,
        out: &mut O,
    ) -> Verdict {
        if self.is_to_switch(frame.bytes()) {
            return self.on_frame_to_switch(frame, port, now, out);
        }
        match self.forward.admit(frame, port) {
            Ok(Some(layout)) => self.on_roce(frame, layout, port, now, out),
            Ok(None) => self.on_other(frame, port, now, out),
            Err(verdict) => verdict,
        }
    }

    #[inline]
    fn prefetch_table(&self, frame: &impl Frame, fetch: impl Fn(*const u8)) {
        self.prefetch_lookups(frame.bytes(), fetch);
    }

    #[inline]
    fn prefetch_state(&self, frame: &impl Frame, fetch: impl Fn(*const u8)) {
        self.prefetch_entries(frame.bytes(), fetch);
    }

    fn on_timer<O: Output>(&mut self, now: Nanos, out: &mut O) {
        if self.forward.next_timer().is_some_and(|at| at <= now) {
            self.forward.on_timer(now, out);
        }
        if now >= self.last_tick + self.tick_interval() {
            self.last_tick = now;
            #[cfg(debug_assertions)]
            let now_of_rights =
                if self.config.bug == Some(crate::Bug::KeptRight) { Nanos::ZERO } else { now };
            #[cfg(not(debug_assertions))]
            let now_of_rights = now;
            self.period.advance(now_of_rights, self.config.proof);
            self.lines.invalidations.iter_mut().for_each(RangeInvalidations::advance_epoch);
            self.tick_shared_qps(now, out);
            self.tick_rereads(now, out);
            self.tick_steering(now, out);
            self.age(now);
            self.sources.sweep(now, self.config.dead_after);
            self.counters.set_usage(self.usage());
        }
    }

    fn next_timer(&self) -> Option<Nanos> {
        [self.forward.next_timer(), Some(self.last_tick + self.tick_interval())].into_iter().flatten().min()
    }

    fn on_command(&mut self, command: Command, now: Nanos) {
        match command {
            Command::OpenSharedQp(shared_qp) => self.open_switch_owned(&shared_qp, now),
            Command::CloseSharedQp { shared_qp, qpn } => self.close_switch_owned(shared_qp, qpn),
            Command::PermitTranslation(connection) => {
                let key = HostQp::new(connection.server.0, connection.server.1);
                let Some(id) = self.index.get(&key) else { return };
                if self.connection_of(id) == Some(connection)
                    && self.flows[id as usize].stage == Stage::Requesting
                {
                    // While the last request's PSN count is unknown, the next request's PSN is unknown. And
                    // an atomic whose result is unknown could not be answered again.
                    let open = |record: &Record| record.count > 0 && record.what == What::Unknown;
                    let known = !self.records(id).iter().any(open);
                    let flow = &mut self.flows[id as usize];
                    // A forged DREQ may have set `over`; the next request requests translation again.
                    let known = known && flow.uncounted_read.is_none() && !flow.disconnected;
                    flow.stage = if known { Stage::Translating } else { Stage::Synced };
                    self.counters.diverged.add(u64::from(known));
                }
            }
            Command::Layers(layers) => {
                let steering = |layers: Layers| (layers.steer_writes, layers.steer_reads);
                if steering(layers) != steering(self.layers) {
                    // CAS that passed while steering was off make the cached state stale.
                    self.steering.forget();
                }
                self.layers = layers;
                if !layers.cas_to_write {
                    self.lines.iter_mut().for_each(crate::lines::Line::forget_all);
                }
            }
        }
    }

    fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }
}

impl Swordbox {
    /// Handles a frame that is no RoCEv2 packet, or that is not understood.
    ///
    /// Damaged frames to or from servers are dropped. Another bit error could make such a frame valid again
    /// for a receiver, which would then have a state that the switch does not know. A packet with an unknown
    /// opcode is forwarded if its connection is not translated, and invalidates all cached words of the
    /// server. On a translated connection it would use a PSN that is already assigned to another request.
    fn on_other<O: Output>(
        &mut self,
        frame: &mut O::Frame,
        port: PortId,
        now: Nanos,
        out: &mut O,
    ) -> Verdict {
        let bytes = frame.bytes();
        let fault = match rocev2::classify(bytes) {
            Class::Malformed(Fault::UnknownOpcode) if has_wrong_icrc(bytes) => Some(Fault::Icrc),
            Class::Malformed(fault) => Some(fault),
            Class::Other => has_wrong_checksum(bytes).then_some(Fault::IpChecksum),
            // The checks of the bridge (`verify`) found the damage.
            Class::Roce(layout) if Packet::new(bytes, layout).verify_icrc() => Some(Fault::UdpChecksum),
            Class::Roce(_) => Some(Fault::Icrc),
        };
        // A frame longer than one buffer cannot be checked as a whole.
        if let Some(fault) = fault.filter(|fault| *fault != Fault::UnknownOpcode && frame.is_whole()) {
            return self.refuse(fault);
        }
        if let Some(fault) = fault
            && let Some((from, host, qpn)) = addresses_of(frame.bytes())
            && let server = self.server_of(bits_of(host))
            && server != NO_SERVER
        {
            let end = self.index.get(&HostQp::new(host, qpn));
            if end.is_some_and(|id| self.flows[id as usize].stage >= Stage::Translating) {
                return Verdict::Drop(DropReason::Malformed(fault));
            }
            let trusted = self.is_trusted(end.unwrap_or(NONE), bits_of(from));
            if fault == Fault::UnknownOpcode
                && self.lines.len() > 0
                && ((!trusted && !self.may_invalidate_range(server, 0, u64::MAX, now))
                    || self.lines.detour_everywhere(server, now, self.config.settle).is_err())
            {
                self.counters.delayed.add(1);
                return Verdict::Drop(DropReason::Delayed);
            }
        }
        self.forward.route(frame, port, now, out)
    }

    /// Returns the time until the next tick.
    pub(crate) fn tick_interval(&self) -> Nanos {
        let busy = self.held.len() > 0 || self.in_flight > 0 || self.probing > 0 || !self.steering.is_idle();
        // Proven rights have to expire in time.
        let idle = Nanos((self.config.proof.0 / 4).clamp(1, IDLE.0));
        if busy { Nanos((self.config.replay_after.0 / 2).max(1)).min(idle) } else { idle }
    }
}
