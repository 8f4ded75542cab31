//! Control plane of switch-owned QPs: connects them at each server that offers a service for it, and
//! reconnects lost ones.
//!
//! ```text
//! control plane          data plane              server
//!   | ------------------------- REQ ------------> |
//!   | <------------------------ REP ------------- |   queue pair, first PSN
//!   | -- OpenSharedQp ---> |                       |
//!   | <- SharedQpOpened -- |                       |
//!   | ------------------------- RTU ------------> |
//! ```

use crate::Id;
use crate::config::{Config, SwitchOwnedQps};
use crate::event::{Command, Event, OpenSharedQp};
use core::net::IpAddr;
use rnic::cm::{self, AddressPair, Conn, ConnectRequest, Event as CmEvent, RemoteReply};
use rnic::{Endpoint, Interface};
use rocev2::ethernet::{Ethernet, MacAddr, VlanTag, ethertype};
use rocev2::ipv4::Ipv4;
use rocev2::ipv6::Ipv6;
use rocev2::repr::{Ip, Repr};
use rocev2::udp::PROTOCOL as UDP;
use rocev2::{Bth, Opcode, Psn, Qpn};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use switch::{Egress, Nanos, PortId, Rng, metrics};
use zerocopy::FromBytes;

/// Maximum number of READs and atomics outstanding on a QP
const INITIATOR_DEPTH: u8 = 16;
/// Path MTU in bytes; the payloads of requests on shared QPs have at most 64
const PATH_MTU: u16 = 256;
/// Maximum number of retransmissions of a CM message
const CM_RETRIES: u8 = 5;
/// Smallest queue pair number used; smaller ones are reserved or easily mistaken for reserved ones
const FIRST_QPN: u64 = 16;
/// Maximum number of times that the back-off doubles
const MOST_DOUBLED: u32 = 8;
/// Interval between two attempts to resolve an unknown neighbour
const LOOKUP_INTERVAL: Nanos = Nanos::from_millis(20);
/// Maximum number of neighbours whose port is stored
const MAX_NEIGHBOURS: usize = 4096;
const HOP_LIMIT: u8 = 64;

/// Connection state of a switch-owned QP.
#[derive(Debug)]
enum Stage {
    /// The connection is attempted at this time.
    Waiting(Nanos),
    /// The REQ has been sent.
    Requested { conn: Conn, qpn: Qpn },
    /// The REP has arrived. The server's link-layer address is being resolved: next at `next_lookup`, and no
    /// longer than `until`.
    Replied { conn: Conn, qpn: Qpn, reply: Box<RemoteReply>, next_lookup: Nanos, until: Nanos },
    /// The data plane is opening the QP.
    Opening { conn: Conn, qpn: Qpn },
    /// The QP is in use.
    Open { conn: Conn, qpn: Qpn },
}

impl Stage {
    fn conn(&self) -> Option<(Conn, Qpn)> {
        match *self {
            Self::Waiting(_) => None,
            Self::Requested { conn, qpn }
            | Self::Replied { conn, qpn, .. }
            | Self::Opening { conn, qpn }
            | Self::Open { conn, qpn } => Some((conn, qpn)),
        }
    }
}

/// A switch-owned QP.
#[derive(Debug)]
struct SwitchOwnedQp {
    /// Worker of the server
    worker: usize,
    /// Index of the shared QP on that worker
    number: Id,
    host: IpAddr,
    connect: SwitchOwnedQps,
    stage: Stage,
    /// Failed attempts since the QP was last open
    failures: u32,
}

metrics! {
    /// Counters of connection attempts of switch-owned QPs.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct ConnectCounters {
        /// REQs sent to connect switch-owned QPs
        pub requested: u64 [messages as own_lanes_asked],
        /// QPs opened
        pub opened: u64,
        /// Attempts to connect a switch-owned QP that the server refused
        pub refused: u64 [attempts as own_lanes_refused],
        /// Attempts to connect a switch-owned QP without an answer
        pub unanswered: u64 [attempts as own_lanes_unanswered],
        /// Open QPs that were lost
        pub lost: u64,
    }
}

/// Control plane of all switch-owned QPs.
#[derive(Debug)]
pub(crate) struct Connector {
    interface: Interface,
    endpoint: Endpoint,
    rng: Rng,
    /// Port on which each neighbour's latest frame arrived
    ports: BTreeMap<[u8; 6], PortId>,
    shared_qps: Vec<SwitchOwnedQp>,
    qpns: BTreeSet<Qpn>,
    timeout: Nanos,
    reconnect_after: Nanos,
    /// Commands, each with its worker
    commands: VecDeque<(usize, Command)>,
    counters: ConnectCounters,
}

/// Returns the exponent `n` of a CM timeout of 4.096 us times 2^n (rounded down).
fn exponent(time: Nanos) -> u8 {
    (time.0 / 4096).max(1).ilog2() as u8
}

impl Connector {
    /// Returns the connector of a configuration for `workers` workers, or `None` if the switch has no address or no
    /// server offers a service. QPNs, PSNs and ports are drawn from `seed`, which has to differ after each start so that no
    /// packet of an earlier connection fits a new one.
    pub(crate) fn of(config: &Config, workers: usize, seed: u64) -> Option<Self> {
        let interface = config.interface.clone()?;
        let mut shared_qps = Vec::new();
        for worker in 0..workers {
            let of_worker = config.clone().of_worker(worker, workers);
            shared_qps.extend(of_worker.switch_owned_qps().map(|(number, server)| SwitchOwnedQp {
                worker,
                number,
                host: server.0,
                connect: server.1.clone(),
                stage: Stage::Waiting(Nanos::ZERO),
                failures: 0,
            }));
        }
        let cm = cm::Config {
            capacity: 4 * shared_qps.len().max(1),
            response_timeout: exponent(config.connect_timeout),
            max_retries: CM_RETRIES,
            ..cm::Config::default()
        };
        (!shared_qps.is_empty()).then(|| Self {
            endpoint: Endpoint::new(interface.clone(), cm, seed),
            interface,
            rng: Rng::stream(seed, 0x6c61_6e65),
            ports: BTreeMap::new(),
            shared_qps,
            qpns: BTreeSet::new(),
            timeout: config.connect_timeout,
            reconnect_after: config.reconnect_after,
            commands: VecDeque::new(),
            counters: ConnectCounters::default(),
        })
    }

    pub(crate) fn counters(&self) -> ConnectCounters {
        self.counters
    }

    /// Handles a frame to the switch itself.
    pub(crate) fn on_punt(&mut self, frame: &[u8], port: PortId, now: Nanos) {
        if let Ok((ethernet, _)) = Ethernet::ref_from_prefix(frame)
            && !ethernet.src.is_group()
            && (self.ports.len() < MAX_NEIGHBOURS || self.ports.contains_key(&ethernet.src.0))
        {
            self.ports.insert(ethernet.src.0, port);
        }
        self.endpoint.on_frame(frame, now);
        self.process(now);
    }

    /// Handles an event of the data plane about a switch-owned QP.
    pub(crate) fn on_event(&mut self, event: Event, now: Nanos) {
        let (Event::SharedQpOpened { qpn: of, .. } | Event::SharedQpLost { qpn: of, .. }) = event else {
            return;
        };
        // Each attempt has a queue pair number of its own.
        let found =
            self.shared_qps.iter().enumerate().find_map(|(at, shared_qp)| {
                Some((at, shared_qp.stage.conn().filter(|(_, qpn)| *qpn == of)?))
            });
        let Some((at, (conn, qpn))) = found else { return };
        match event {
            Event::SharedQpOpened { opened: true, .. }
                if self.endpoint.cm_mut().confirm(conn, &[]).is_ok() =>
            {
                self.counters.opened += 1;
                self.shared_qps[at].failures = 0;
                self.shared_qps[at].stage = Stage::Open { conn, qpn };
            }
            Event::SharedQpOpened { opened: true, .. } => {
                self.send_close(at, qpn);
                self.give_up(at, now);
            }
            _ => self.give_up(at, now),
        }
        self.process(now);
    }

    pub(crate) fn on_timer(&mut self, now: Nanos) {
        if self.endpoint.next_timer().is_some_and(|at| at <= now) {
            self.endpoint.on_timer(now);
        }
        self.process(now);
    }

    pub(crate) fn next_timer(&self) -> Option<Nanos> {
        let due = self.shared_qps.iter().filter_map(|shared_qp| match shared_qp.stage {
            Stage::Waiting(at) => Some(at),
            Stage::Replied { next_lookup, .. } => Some(next_lookup),
            _ => None,
        });
        due.chain(self.endpoint.next_timer()).min()
    }

    fn send_close(&mut self, at: usize, qpn: Qpn) {
        let SwitchOwnedQp { worker, number: shared_qp, .. } = self.shared_qps[at];
        self.commands.push_back((worker, Command::CloseSharedQp { shared_qp, qpn }));
    }

    pub(crate) fn poll_command(&mut self) -> Option<(usize, Command)> {
        self.commands.pop_front()
    }

    pub(crate) fn poll_transmit(&mut self, now: Nanos, frame: &mut Vec<u8>) -> Option<Egress> {
        self.endpoint.poll_transmit(now, frame).then(|| {
            let port = frame.first_chunk().and_then(|dst| self.ports.get(dst));
            port.map_or(Egress::All, |port| Egress::Port(*port))
        })
    }

    /// Processes CM events, due attempts and pending REPs.
    fn process(&mut self, now: Nanos) {
        while let Some(event) = self.endpoint.cm_mut().poll_event() {
            self.on_cm(event, now);
        }
        for at in 0..self.shared_qps.len() {
            match self.shared_qps[at].stage {
                Stage::Waiting(time) if time <= now => self.send_req(at, now),
                Stage::Replied { .. } => self.open(at, now),
                _ => {}
            }
        }
    }

    fn on_cm(&mut self, event: CmEvent, now: Nanos) {
        let of =
            |shared_qp: &SwitchOwnedQp| shared_qp.stage.conn().is_some_and(|(conn, _)| conn == event.conn());
        let Some(at) = self.shared_qps.iter().position(of) else { return };
        let shared_qp = &mut self.shared_qps[at];
        match event {
            CmEvent::Replied { conn, reply } => {
                if let Stage::Requested { qpn, .. } = shared_qp.stage {
                    shared_qp.stage =
                        Stage::Replied { conn, qpn, reply, next_lookup: now, until: now + self.timeout };
                }
                return;
            }
            CmEvent::Rejected { .. } => self.counters.refused += 1,
            CmEvent::Unreachable { .. } => self.counters.unanswered += 1,
            CmEvent::Disconnecting { .. } | CmEvent::Disconnected { .. } => {}
            CmEvent::Requested { .. } | CmEvent::Established { .. } => return,
        }
        if let Stage::Opening { qpn, .. } | Stage::Open { qpn, .. } = shared_qp.stage {
            self.send_close(at, qpn);
        }
        self.give_up(at, now);
    }

    /// Sends a REQ for a QP.
    fn send_req(&mut self, at: usize, now: Nanos) {
        let shared_qp = &mut self.shared_qps[at];
        let addresses = self
            .interface
            .source_for(shared_qp.host)
            .map(|local| AddressPair { local, remote: shared_qp.host });
        let qpn = loop {
            let qpn = Qpn::new(self.rng.between(FIRST_QPN, (1 << 24) - 2) as u32);
            if self.qpns.insert(qpn) {
                break qpn;
            }
        };
        let psn = Psn::new(self.rng.bits() as u32);
        let attempt = addresses.and_then(|addresses| {
            let request = ConnectRequest {
                cma_src_port: Some(self.rng.between(1 << 15, (1 << 16) - 1) as u16),
                private_data: shared_qp.connect.private_data.clone(),
                path_mtu: PATH_MTU,
                responder_resources: 0,
                initiator_depth: INITIATOR_DEPTH,
                ack_timeout: exponent(self.timeout),
                ..ConnectRequest::new(addresses, shared_qp.connect.service, qpn, psn)
            };
            self.endpoint.cm_mut().connect(&request, now).ok()
        });
        self.counters.requested += 1;
        if let Some(conn) = attempt {
            shared_qp.stage = Stage::Requested { conn, qpn };
        } else {
            self.qpns.remove(&qpn);
            self.give_up(at, now);
        }
    }

    /// Makes the data plane open a QP whose REP has arrived, if the server's link-layer address is known.
    fn open(&mut self, at: usize, now: Nanos) {
        let shared_qp = &mut self.shared_qps[at];
        let Stage::Replied { conn, qpn, reply, next_lookup, until } = &mut shared_qp.stage else { return };
        let (conn, qpn) = (*conn, *qpn);
        // The probes of keys need at least one READ.
        let usable = reply.responder_resources > 0;
        let local = self.interface.source_for(shared_qp.host);
        let mac = self.endpoint.resolve(shared_qp.host, now);
        let port = mac.and_then(|mac| self.ports.get(&mac.0).copied());
        let (Some(local), Some(mac), Some(port), true) = (local, mac, port, usable) else {
            *next_lookup = now + LOOKUP_INTERVAL;
            if !usable || *until <= now {
                self.counters.refused += u64::from(!usable);
                self.give_up(at, now);
            }
            return;
        };
        let template = template(&self.interface, (local, qpn), mac, (shared_qp.host, reply.qpn));
        let open = Command::OpenSharedQp(Box::new(OpenSharedQp {
            shared_qp: shared_qp.number,
            qpn,
            template,
            port,
            psn: reply.starting_psn,
            rd_atomic: reply.responder_resources.min(INITIATOR_DEPTH),
        }));
        self.commands.push_back((shared_qp.worker, open));
        shared_qp.stage = Stage::Opening { conn, qpn };
    }

    /// Closes a QP or an attempt, and schedules the next attempt with back-off.
    fn give_up(&mut self, at: usize, now: Nanos) {
        let shared_qp = &mut self.shared_qps[at];
        self.counters.lost += u64::from(matches!(shared_qp.stage, Stage::Open { .. }));
        if let Some((conn, qpn)) = shared_qp.stage.conn() {
            let cm = self.endpoint.cm_mut();
            if cm.disconnect(conn, &[], now).is_err() {
                // The connection is not established yet, or is over.
                _ = cm.reject(conn, rocev2::cm::RejReason::CONSUMER, &[], now);
            }
            self.qpns.remove(&qpn);
        }
        let wait = self.reconnect_after.0 << shared_qp.failures.min(MOST_DOUBLED);
        shared_qp.failures += 1;
        shared_qp.stage = Stage::Waiting(now + Nanos(wait + self.rng.below(wait.max(1))));
    }
}

/// Returns a zero-length WRITE with the headers of all packets on a QP.
fn template(interface: &Interface, own: (IpAddr, Qpn), mac: MacAddr, server: (IpAddr, Qpn)) -> Vec<u8> {
    let ip = match (own.0, server.0) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let ip = Ipv4 {
                version_ihl: 0x45,
                tos: 0,
                total_len: 0.into(),
                id: 0.into(),
                flags_fragment: 0x4000.into(),
                ttl: HOP_LIMIT,
                protocol: UDP,
                checksum: 0.into(),
                src: src.octets(),
                dst: dst.octets(),
            };
            Ip::V4(ip, &[])
        }
        (src, dst) => {
            let octets = |ip: IpAddr| match ip {
                IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
                IpAddr::V6(ip) => ip.octets(),
            };
            Ip::V6(
                Ipv6 {
                    version_class_flow: 0x6000_0000.into(),
                    payload_len: 0.into(),
                    next_header: UDP,
                    hop_limit: HOP_LIMIT,
                    src: octets(src),
                    dst: octets(dst),
                },
                &[],
            )
        }
    };
    let kind = if server.0.is_ipv4() { ethertype::IPV4 } else { ethertype::IPV6 };
    let tagged = interface.vlan.is_some();
    let first = if tagged { ethertype::VLAN } else { kind };
    let ethernet = Ethernet { dst: mac, src: interface.mac, ethertype: first.into() };
    let mut repr = Repr::new(ethernet, ip, Bth::new(Opcode::RC_WRITE_ONLY, server.1, Psn::ZERO));
    repr.tag_count = usize::from(tagged);
    repr.tags[0] = VlanTag { tci: interface.vlan.unwrap_or(0).into(), ethertype: kind.into() };
    // The UDP source port is the same for all packets of a queue pair (IB A17.4.5.2).
    repr.udp.src_port = (0xc000 | own.1.get() as u16 & 0x3fff).into();
    let mut bytes = vec![0; 256];
    let len = repr.build(&mut bytes).unwrap_or(0);
    bytes.truncate(len);
    bytes
}
