//! Forwarding: a wire with eyes. Every frame is parsed, counted by opcode, queue pair and fault, its ICRC verified if
//! wanted, and sent on: unchanged between pairs of ports or by a table of MAC addresses, or as a router does.

pub mod config;
pub mod counters;
mod routes;
mod stations;

pub use config::Config;
pub use counters::Counters;

use crate::drop::FaultSet;
use crate::table::{Index, Salt};
use crate::{DropReason, Frame, Function, Nanos, Output, PortId, Verdict};
use config::Topology;
use core::net::IpAddr;
use counters::HostQp;
use rocev2::ethernet::{Ethernet, MacAddr};
use rocev2::{Class, Fault, Layout, Packet, classify};
use routes::Routes;
use stations::Stations;
use std::sync::Arc;

/// The forwarding function.
pub struct Forward {
    ports: u16,
    route: Route,
    drop: FaultSet,
    verify_icrc: bool,
    verify_udp_checksum: bool,
    qps: Option<Index<HostQp>>,
    counters: Arc<Counters>,
}

enum Route {
    /// The other end of each port's wire
    Pairs(Vec<PortId>),
    Mac(Stations),
    Ip(Routes),
}

/// What the control plane tells the forwarding function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Another worker has heard this station on this port.
    Learn(MacAddr, PortId),
}

/// What the forwarding function tells the control plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A station was heard on this port: for the first time, somewhere else than before, or again after a while.
    Heard(MacAddr, PortId),
}

impl Forward {
    /// A function of this configuration, one of several workers' maybe. What it counts can be read from
    /// [`counters`](Self::counters) by others.
    ///
    /// # Panics
    /// If a port in `config` is not below `config.ports`.
    pub fn new(config: &Config) -> Self {
        Self::told(config, true)
    }

    /// The same, for a function that forwards besides, on one worker: it has no [events](Event), so nobody has to ask for
    /// them. Packets in which [`verify_icrc`](Config::verify_icrc) or [`verify_udp_checksum`](Config::verify_udp_checksum) finds
    /// a fault are dropped: a NIC takes one with a wrong UDP checksum, and it would pass without what the function does to it.
    pub fn alone(config: &Config) -> Self {
        let drop = config.drop.with(Fault::Icrc).with(Fault::UdpChecksum);
        Self::told(&Config { drop, ..config.clone() }, false)
    }

    /// Whether others are to be told of the stations that this one hears
    fn told(config: &Config, others: bool) -> Self {
        let route = match &config.topology {
            Topology::Pairs(pairs) => {
                let mut peers: Vec<_> = (0..config.ports).map(PortId).collect();
                for &(a, b) in pairs {
                    peers[a.index()] = b;
                    peers[b.index()] = a;
                }
                Route::Pairs(peers)
            }
            Topology::Mac(table) => {
                assert!(
                    table.fixed.iter().all(|(_, port)| port.0 < config.ports),
                    "a port that does not exist"
                );
                Route::Mac(Stations::new(table, others))
            }
            Topology::Routes(table) => {
                let mut hops = table.routes.iter().flat_map(|route| &route.via);
                assert!(hops.all(|hop| hop.port.0 < config.ports), "a port that does not exist");
                Route::Ip(Routes::new(table))
            }
        };
        Self {
            ports: config.ports,
            route,
            drop: config.drop,
            verify_icrc: config.verify_icrc,
            verify_udp_checksum: config.verify_udp_checksum,
            qps: (config.counted_qps > 0).then(|| Index::with_capacity(config.counted_qps)),
            counters: Arc::new(Counters::new(config.ports, config.counted_qps)),
        }
    }

    /// Salts the tables of what packets name, stations and queue pairs. The seed has to be random where hosts are not
    /// trusted (see [`Salt::new`]).
    #[must_use]
    pub fn salted(mut self, seed: u64) -> Self {
        let salt = Salt::new(seed);
        if let Route::Mac(stations) = &mut self.route {
            stations.set_salt(salt);
        }
        if let Some(qps) = &mut self.qps {
            qps.set_salt(salt);
        }
        self
    }

    /// What this instance has counted so far, and goes on to count.
    pub fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.counters)
    }

    /// Parses, checks and counts a frame: where its headers lie if it is a RoCEv2 packet, a fault if it is malformed.
    #[expect(clippy::inline_always, reason = "its caller looks at the layout in registers")]
    #[inline(always)]
    fn inspect(&mut self, frame: &impl Frame, port: PortId) -> Result<Option<Layout>, Fault> {
        let bytes = frame.bytes();
        match classify(bytes) {
            Class::Roce(layout) => {
                let packet = Packet::new(bytes, layout);
                self.count(&packet, port);
                if self.verify_icrc && !packet.verify_icrc() {
                    return Err(Fault::Icrc);
                }
                if self.verify_udp_checksum && !packet.verify_udp_checksum() {
                    return Err(Fault::UdpChecksum);
                }
                Ok(Some(layout))
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
    /// Counts a RoCEv2 packet.
    #[expect(clippy::inline_always, reason = "it is part of `inspect`")]
    #[inline(always)]
    fn count(&mut self, packet: &Packet<'_>, port: PortId) {
        let len = packet.bytes().len();
        self.counters.ports[port.index()].roce.count(len);
        self.counters.opcodes[usize::from(packet.layout().opcode().0)].count(len);
        if let Some(qps) = &mut self.qps {
            self.counters.qps.count(qps, HostQp::destination_of(packet), len);
        }
    }

    /// Parses, checks and counts a frame: where the headers of a RoCEv2 packet lie, or what becomes of a frame that goes
    /// no further. For functions that do more with a frame than to forward it.
    #[expect(clippy::inline_always, reason = "its caller looks at the layout in registers")]
    #[inline(always)]
    pub fn admit(&mut self, frame: &impl Frame, port: PortId) -> Result<Option<Layout>, Verdict> {
        self.inspect(frame, port).or_else(|fault| {
            self.counters.faults[fault as usize].add(1);
            if self.drop.has(fault) { Err(Verdict::Drop(DropReason::Malformed(fault))) } else { Ok(None) }
        })
    }

    /// Counts a frame that has all headers of one that was [admitted](Self::admit) with this layout, a right ICRC, and no UDP
    /// checksum or a right one: it would be, too.
    #[inline]
    pub fn admit_like(&mut self, frame: &[u8], layout: Layout, port: PortId) {
        self.count(&Packet::new(frame, layout), port);
    }

    /// Where a frame that was [admitted](Self::admit) goes, if that is one place, and makes it ready for that; `None` is
    /// everywhere. For functions that write something else on each link.
    #[expect(clippy::inline_always, reason = "a wire's other end is one look-up")]
    #[inline(always)]
    pub fn find_route(&mut self, frame: &mut impl Frame, port: PortId, now: Nanos) -> Option<Verdict> {
        match &mut self.route {
            Route::Pairs(peers) => Some(Verdict::Forward(peers[port.index()])),
            Route::Mac(stations) => stations.route(frame.bytes(), port, now),
            Route::Ip(routes) => Some(routes.route(frame.bytes_mut(), port)),
        }
    }

    /// Returns the port at which a bridge heard a station last; `None` if it has not, or is no bridge.
    pub fn find_station(&self, mac: MacAddr) -> Option<PortId> {
        match &self.route {
            Route::Mac(stations) => stations.find(mac),
            Route::Pairs(_) | Route::Ip(_) => None,
        }
    }

    /// Whether a frame to the switch's own MAC address is for the switch itself, which has these IP addresses: a router's is that
    /// of the next hop of everything.
    pub fn ends_here(&self, frame: &[u8], addresses: &[IpAddr]) -> bool {
        !matches!(self.route, Route::Ip(_))
            || routes::destination(frame).is_none_or(|destination| addresses.contains(&destination))
    }

    /// Where a frame that was [admitted](Self::admit) goes.
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

    /// Sends a frame everywhere but where it came from; the verdict is for the last copy.
    pub fn flood<O: Output>(&self, frame: &O::Frame, port: PortId, out: &mut O) -> Verdict {
        self.flood_to(frame, port, |_| true, out)
    }

    /// The same, to those ports alone that it may go to.
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
                // The runner counts what does not fit.
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
        match self.admit(frame, port) {
            Ok(_) => self.route(frame, port, now, out),
            Err(verdict) => verdict,
        }
    }

    fn on_timer<O: Output>(&mut self, now: Nanos, _out: &mut O) {
        match &mut self.route {
            Route::Pairs(_) | Route::Ip(_) => {}
            Route::Mac(stations) => stations.age(now),
        }
    }

    fn next_timer(&self) -> Option<Nanos> {
        match &self.route {
            Route::Pairs(_) | Route::Ip(_) => None,
            Route::Mac(stations) => Some(stations.next_ageing),
        }
    }

    fn on_command(&mut self, command: Command, now: Nanos) {
        match (&mut self.route, command) {
            (Route::Mac(stations), Command::Learn(mac, port)) => stations.learn(mac, port, now),
            (Route::Pairs(_) | Route::Ip(_), Command::Learn(..)) => {}
        }
    }

    fn poll_event(&mut self) -> Option<Event> {
        match &mut self.route {
            Route::Pairs(_) | Route::Ip(_) => None,
            Route::Mac(stations) => stations.poll_event(),
        }
    }
}

/// Source and destination address of a frame, if it is long enough to have them.
fn addresses(bytes: &[u8]) -> Option<(MacAddr, MacAddr)> {
    let (dst, rest) = bytes.split_first_chunk()?;
    let src = rest.first_chunk()?;
    const { assert!(Ethernet::LEN > 12) }
    Some((MacAddr(*src), MacAddr(*dst)))
}

#[cfg(test)]
mod tests;
