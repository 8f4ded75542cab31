//! The forwarding function. [`Forward`] parses every frame, counts it by opcode, queue pair and fault,
//! optionally verifies its ICRC, and forwards it: between pairs of ports, as a learning bridge, or as a
//! router.

pub mod config;
pub mod counters;
pub mod health;
mod queue_pairs;
mod routes;
mod stations;

pub use config::Config;
pub use counters::Counters;

use crate::drop::FaultSet;
use crate::table::Salt;
use crate::{DropReason, Frame, Function, Nanos, Output, PortId, Verdict};
use config::ForwardingMode;
use core::net::IpAddr;
use counters::HostQp;
use health::Monitor;
use queue_pairs::{NONE, QpIndex};
use rocev2::ethernet::{Ethernet, MacAddr};
use rocev2::{Class, Fault, Layout, Packet, classify};
use routes::Routes;
use stations::Stations;
use std::sync::Arc;

/// The forwarding function.
pub struct Forward {
    ports: u16,
    table: Table,
    drop: FaultSet,
    /// Whether any of the following is
    verify: bool,
    verify_icrc: bool,
    verify_udp_checksum: bool,
    qps: Option<QpIndex>,
    monitor: Option<Box<Monitor>>,
    counters: Arc<Counters>,
}

enum Table {
    /// The other port of each port's pair
    Pairs(Vec<PortId>),
    Mac(Stations),
    Ip(Routes),
}

/// A command of the control plane to the forwarding function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Learns a station that another worker saw on this port at this time, unless it was seen elsewhere since.
    Learn(MacAddr, PortId, Nanos),
}

/// An event of the forwarding function for the control plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A station was seen on this port at this time: for the first time, on another port than before, or again
    /// after a quarter of the ageing time.
    Learned(MacAddr, PortId, Nanos),
}

impl Forward {
    /// Creates an instance. Several workers each have one. Other threads can read
    /// [`counters`](Self::counters).
    ///
    /// # Panics
    /// If a port in `config` is not below `config.ports`.
    pub fn new(config: &Config) -> Self {
        Self::with_events(config, true)
    }

    /// Creates an instance for use within another function, on one of `workers`. With one worker it generates no
    /// [events](Event), so the caller need not poll them. Packets in which [`verify_icrc`](Config::verify_icrc) or
    /// [`verify_udp_checksum`](Config::verify_udp_checksum) finds a fault are dropped: a NIC accepts a packet
    /// with a wrong UDP checksum, which would then bypass the enclosing function.
    pub fn embedded(config: &Config, workers: usize) -> Self {
        let drop = config.drop.with(Fault::Icrc).with(Fault::UdpChecksum);
        Self::with_events(&Config { drop, ..config.clone() }, workers > 1)
    }

    /// Creates an instance. `events` selects whether it generates events about the stations that it sees.
    fn with_events(config: &Config, events: bool) -> Self {
        let table = match &config.mode {
            ForwardingMode::Pairs(pairs) => {
                let mut peers: Vec<_> = (0..config.ports).map(PortId).collect();
                for &(a, b) in pairs {
                    peers[a.index()] = b;
                    peers[b.index()] = a;
                }
                Table::Pairs(peers)
            }
            ForwardingMode::Mac(table) => {
                assert!(
                    table.fixed.iter().all(|(_, port)| port.0 < config.ports),
                    "a static entry names a port that does not exist"
                );
                Table::Mac(Stations::new(table, events))
            }
            ForwardingMode::Routes(table) => {
                let mut hops = table.routes.iter().flat_map(|route| &route.via);
                assert!(
                    hops.all(|hop| hop.port.0 < config.ports),
                    "a route names a port that does not exist"
                );
                Table::Ip(Routes::new(table))
            }
        };
        let health = config.health && config.counted_qps > 0;
        Self {
            ports: config.ports,
            table,
            drop: config.drop,
            verify: config.verify_icrc || config.verify_udp_checksum,
            verify_icrc: config.verify_icrc,
            verify_udp_checksum: config.verify_udp_checksum,
            qps: (config.counted_qps > 0).then(|| QpIndex::new(config.counted_qps)),
            monitor: health.then(|| Box::new(Monitor::new(config.counted_qps))),
            counters: Arc::new(Counters::new(config.ports, config.counted_qps, health)),
        }
    }

    /// Salts the tables whose keys come from packets: stations and queue pairs. The seed has to be random if
    /// hosts are not trusted (see [`Salt::new`]).
    #[must_use]
    pub fn salted(mut self, seed: u64) -> Self {
        let salt = Salt::new(seed);
        if let Table::Mac(stations) = &mut self.table {
            stations.set_salt(salt);
        }
        if let Some(qps) = &mut self.qps {
            qps.set_salt(salt);
        }
        if let Some(monitor) = &mut self.monitor {
            monitor.set_salt(salt);
        }
        self
    }

    /// Plants a bug into the observation of health ([`health::Bug`]).
    pub fn plant(&mut self, bug: Option<health::Bug>) {
        if let Some(monitor) = &mut self.monitor {
            monitor.plant(bug);
        }
    }

    /// Returns the counters of this instance, which it continues to update.
    pub fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.counters)
    }

    /// Parses, checks and counts a frame. Returns its layout if it is a RoCEv2 packet, `None` if it is
    /// something else, or the fault if it is malformed.
    #[expect(clippy::inline_always, reason = "the caller keeps the layout in registers")]
    #[inline(always)]
    fn inspect(&mut self, frame: &impl Frame, port: PortId, now: Nanos) -> Result<Option<Layout>, Fault> {
        let bytes = frame.bytes();
        match classify(bytes) {
            Class::Roce(layout) => {
                let damage = if self.verify { self.verify(bytes, layout) } else { None };
                // The receiver of a damaged packet drops it, and its fields mean nothing.
                self.count(&Packet::new(bytes, layout), port, damage.is_none().then_some(now));
                damage.map_or(Ok(Some(layout)), Err)
            }
            Class::Other => {
                self.counters.ports[port.index()].other.count(bytes.len());
                Ok(None)
            }
            Class::Malformed(fault) => {
                self.counters.ports[port.index()].malformed.count(bytes.len());
                Err(if frame.is_whole() { fault } else { Fault::Oversized })
            }
        }
    }
}

impl Forward {
    /// Verifies the checksums that the configuration selects. Takes a layout, not a packet, which the caller would
    /// store for it, also if nothing is verified.
    #[expect(clippy::inline_always, reason = "part of `inspect`")]
    #[inline(always)]
    fn verify(&self, frame: &[u8], layout: Layout) -> Option<Fault> {
        let packet = Packet::new(frame, layout);
        if self.verify_icrc && !packet.verify_icrc() {
            Some(Fault::Icrc)
        } else if self.verify_udp_checksum && !packet.verify_udp_checksum() {
            Some(Fault::UdpChecksum)
        } else {
            None
        }
    }

    /// Counts a RoCEv2 packet. One that is not damaged was received at `sound`.
    #[expect(clippy::inline_always, reason = "part of `inspect`")]
    #[inline(always)]
    fn count(&mut self, packet: &Packet<'_>, port: PortId, sound: Option<Nanos>) {
        let len = packet.bytes().len();
        let counters = &*self.counters;
        let opcode = usize::from(packet.layout().opcode().0);
        counters.ports[port.index()].roce.count(len);
        counters.opcodes[opcode].count(len);
        if let Some(qps) = &mut self.qps {
            let (key, ecn) = HostQp::destination_and_ecn(packet);
            let found = qps.count(&counters.qps, key, len);
            if let (Some(monitor), Some(now)) = (&self.monitor, sound)
                && !found.is_some_and(|(_, entry)| monitor.expects(entry, ecn, packet, now))
            {
                let id = found.map_or(NONE, |(id, _)| id);
                self.judge(id, packet.bytes(), packet.layout(), port, now);
            }
        }
    }

    /// Has a packet to the queue pair `id`, or [`NONE`], judged that is not expected. Takes values, not
    /// references, so that the caller need not store them for each packet.
    #[cold]
    #[inline(never)]
    fn judge(&mut self, id: u32, frame: &[u8], layout: Layout, port: PortId, now: Nanos) {
        let (Some(monitor), Some(qps)) = (&mut self.monitor, &mut self.qps) else { return };
        let place = health::Place { qps, counters: &self.counters, port, now };
        monitor.judge((id != NONE).then_some(id), &Packet::new(frame, layout), place);
    }

    /// Parses, checks and counts a frame, for functions that do more than forwarding. Returns the layout of a
    /// RoCEv2 packet, `None` for any other frame that is to be forwarded, or the verdict for a frame that is
    /// not.
    #[expect(clippy::inline_always, reason = "the caller keeps the layout in registers")]
    #[inline(always)]
    pub fn admit(&mut self, frame: &impl Frame, port: PortId, now: Nanos) -> Result<Option<Layout>, Verdict> {
        self.inspect(frame, port, now).or_else(|fault| {
            self.counters.faults[fault as usize].add(1);
            if self.drop.has(fault) { Err(Verdict::Drop(DropReason::Malformed(fault))) } else { Ok(None) }
        })
    }

    /// Counts a frame without parsing it. All its headers have to equal those of a frame that was
    /// [admitted](Self::admit) with this layout; its ICRC has to be right, and its UDP checksum right or
    /// absent, so that it would be admitted too.
    #[inline]
    pub fn count_admitted(&mut self, frame: &[u8], layout: Layout, port: PortId, now: Nanos) {
        if self.qps.is_some() {
            return self.count_apart(frame, layout, port, now);
        }
        self.counters.ports[port.index()].roce.count(frame.len());
        self.counters.opcodes[usize::from(layout.opcode().0)].count(frame.len());
    }

    /// Counts a packet out of line: inlined, counting queue pairs costs a caller that counts none 20 instructions.
    #[inline(never)]
    fn count_apart(&mut self, frame: &[u8], layout: Layout, port: PortId, now: Nanos) {
        self.count(&Packet::new(frame, layout), port, Some(now));
    }

    /// Returns the verdict for a frame that was [admitted](Self::admit), and rewrites the frame as forwarding
    /// requires; `None` if it is to be flooded. For functions that write different contents for each link.
    #[expect(clippy::inline_always, reason = "for wires this is a single table access")]
    #[inline(always)]
    pub fn find_route(&mut self, frame: &mut impl Frame, port: PortId, now: Nanos) -> Option<Verdict> {
        match &mut self.table {
            Table::Pairs(peers) => Some(Verdict::Forward(peers[port.index()])),
            Table::Mac(stations) => stations.route(frame.bytes(), port, now),
            Table::Ip(routes) => Some(routes.route(frame.bytes_mut(), port)),
        }
    }

    /// Returns the port on which a bridge last saw a station, or `None` if it has not seen the station or the
    /// function is not a bridge.
    pub fn find_station(&self, mac: MacAddr) -> Option<PortId> {
        match &self.table {
            Table::Mac(stations) => stations.find(mac),
            Table::Pairs(_) | Table::Ip(_) => None,
        }
    }

    /// Learns the port of a station whose frame the enclosing function has handled. A bridge's entry is then as new as
    /// what that function knows.
    pub fn observe(&mut self, mac: MacAddr, port: PortId, now: Nanos) {
        if let Table::Mac(stations) = &mut self.table {
            stations.observe(mac, port, now);
        }
    }

    /// Returns whether a frame addressed to the switch's MAC address is for the switch itself, which has the
    /// IP addresses `addresses`. A router's MAC address is also that of the next hop of transit packets.
    pub fn is_addressed_to_switch(&self, frame: &[u8], addresses: &[IpAddr]) -> bool {
        !matches!(self.table, Table::Ip(_))
            || routes::destination(frame).is_none_or(|destination| addresses.contains(&destination))
    }

    /// Forwards a frame that was [admitted](Self::admit).
    #[inline]
    pub fn route<O: Output>(
        &mut self,
        frame: &mut O::Frame,
        port: PortId,
        now: Nanos,
        out: &mut O,
    ) -> Verdict {
        self.find_route(frame, port, now).unwrap_or_else(|| self.flood(frame, port, out))
    }

    /// Sends a frame through all ports but the one on which it was received. The verdict is for the last
    /// copy.
    pub fn flood<O: Output>(&self, frame: &O::Frame, port: PortId, out: &mut O) -> Verdict {
        self.flood_to(frame, port, |_| true, out)
    }

    /// Floods a frame through those ports for which `may` returns `true`.
    pub fn flood_to<O: Output>(
        &self,
        frame: &O::Frame,
        port: PortId,
        may: impl Fn(PortId) -> bool,
        out: &mut O,
    ) -> Verdict {
        let mut others = (0..self.ports).map(PortId).filter(|&other| other != port && may(other));
        let Some(last) = others.next_back() else { return Verdict::Drop(DropReason::SamePort) };
        for other in others {
            match out.copy(frame) {
                // The runner counts a copy that does not fit.
                Ok(copy) => _ = out.send(copy, other),
                Err(crate::Full) => return Verdict::Drop(DropReason::NoBuffer),
            }
        }
        Verdict::Forward(last)
    }
}

impl Function for Forward {
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
        match self.admit(frame, port, now) {
            Ok(_) => self.route(frame, port, now, out),
            Err(verdict) => verdict,
        }
    }

    fn on_timer<O: Output>(&mut self, now: Nanos, _out: &mut O) {
        match &mut self.table {
            Table::Pairs(_) | Table::Ip(_) => {}
            Table::Mac(stations) => stations.age(now),
        }
    }

    fn next_timer(&self) -> Option<Nanos> {
        match &self.table {
            Table::Pairs(_) | Table::Ip(_) => None,
            Table::Mac(stations) => Some(stations.next_ageing),
        }
    }

    fn on_command(&mut self, command: Command, _now: Nanos) {
        match (&mut self.table, command) {
            (Table::Mac(stations), Command::Learn(mac, port, seen)) => stations.learn(mac, port, seen),
            (Table::Pairs(_) | Table::Ip(_), Command::Learn(..)) => {}
        }
    }

    fn poll_event(&mut self) -> Option<Event> {
        match &mut self.table {
            Table::Pairs(_) | Table::Ip(_) => None,
            Table::Mac(stations) => stations.poll_event(),
        }
    }
}

/// Returns source and destination address of a frame, or `None` if the frame is too short.
fn addresses(bytes: &[u8]) -> Option<(MacAddr, MacAddr)> {
    let (dst, rest) = bytes.split_first_chunk()?;
    let src = rest.first_chunk()?;
    const { assert!(Ethernet::LEN > 12) }
    Some((MacAddr(*src), MacAddr(*dst)))
}

#[cfg(test)]
mod tests;
