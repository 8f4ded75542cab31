//! Analysis of captured packets: a state machine over decoded packets, without I/O, in bounded memory.

use super::cm::Exchanges;
use super::connections::Connections;
use super::finding::{Detail, Ends, Event, Finding, Kind};
use super::packet::{Observed, Sight};
use crate::decode::{Dissection, Roce};
use rocev2::packet::Fault;

/// Directions of connections that are followed at once; some 2 kB each
const MAX_FLOWS: usize = 32_768;
/// EtherType of RoCE version 1
const ROCE_V1: &str = "ethertype 0x8915";

/// An analysis in progress.
#[derive(Debug)]
pub(crate) struct Analysis {
    connections: Connections,
    exchanges: Exchanges,
    totals: Totals,
    last_time_ns: u64,
    end: Sight,
}

/// Counts of an analysis.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Totals {
    pub frames: u64,
    /// RoCEv2 packets
    pub packets: u64,
    /// Connections with packets, as far as they are remembered
    pub connections: usize,
    /// Directions of connections and exchanges of the communication manager that were forgotten for lack of room
    pub forgotten: u64,
    /// Events without room for a finding
    pub omitted: u64,
    /// Frames that are earlier than the frame before them
    pub unordered: u64,
    /// Packets that came too fast for a trace
    pub missed: u64,
    /// Time from the first to the last packet, in nanoseconds
    pub duration_ns: u64,
}

/// Result of an analysis.
#[derive(Debug)]
pub(crate) struct Diagnosis {
    pub totals: Totals,
    /// Findings, the worst first
    pub findings: Vec<Finding>,
    /// Time of the first packet in nanoseconds since 1970
    pub began_ns: u64,
}

impl Default for Analysis {
    fn default() -> Self {
        Self::with_flows(MAX_FLOWS)
    }
}

impl Analysis {
    /// Returns an analysis that follows at most `max` directions of connections.
    pub(crate) fn with_flows(max: usize) -> Self {
        Self {
            connections: Connections::new(max),
            exchanges: Exchanges::default(),
            totals: Totals::default(),
            last_time_ns: 0,
            end: Sight::default(),
        }
    }

    /// Takes a frame. `interface` tells apart the places where frames were captured.
    pub(crate) fn frame(&mut self, sight: Sight, interface: u32, dissection: &Dissection<'_>) {
        self.totals.frames += 1;
        match dissection {
            Dissection::Roce(packet) => self.packet(sight, interface, packet),
            Dissection::Other(what) if what == ROCE_V1 => {
                self.connections.add(None, Event::new(Kind::RoceV1, 1, sight, Detail::None));
            }
            Dissection::Other(_) => {}
        }
    }

    fn packet(&mut self, sight: Sight, interface: u32, packet: &Roce<'_>) {
        if self.totals.packets == 0 {
            self.end = sight;
            self.totals.duration_ns = 0;
        }
        self.totals.packets += 1;
        self.totals.unordered += u64::from(sight.time_ns < self.last_time_ns);
        self.last_time_ns = sight.time_ns;
        if sight.time_ns >= self.end.time_ns {
            self.totals.duration_ns += sight.since(self.end);
            self.end = sight;
        }
        let Some(observed) = self.sound(sight, interface, packet) else { return };
        self.connections.observe(&observed);
        if let Some(message) = packet.cm() {
            self.exchanges.observe(&message, packet.addresses, sight, &mut self.connections);
        }
    }

    /// Returns a packet that its receiver accepts. Any other is a finding, and counts as lost here.
    fn sound(&mut self, sight: Sight, interface: u32, packet: &Roce<'_>) -> Option<Observed> {
        let observed = Observed::of(packet, sight, interface);
        let (kind, detail) = match (packet.fault, packet.icrc_ok) {
            (Some(Fault::Fragment), _) => (Kind::Fragmented, Detail::None),
            (Some(fault), _) => (Kind::Malformed, Detail::Named { number: fault as u32, name: fault.name() }),
            (None, Some(false)) => (Kind::BadIcrc, Detail::None),
            (None, _) => return observed,
        };
        let (src, dst) = packet.addresses;
        let to = observed.map(|observed| observed.key.qpn);
        let ends = Ends { requester: (src, None), responder: (dst, to) };
        self.connections.add(Some(ends), Event::new(kind, 1, sight, detail));
        None
    }

    /// Takes a packet that the observed instance received and dropped.
    pub(crate) fn dropped(&mut self, sight: Sight, packet: &Roce<'_>, reason: &'static str) {
        let (src, dst) = packet.addresses;
        let to = packet.bth.as_ref().map(rocev2::Bth::dest_qp);
        let ends = Ends { requester: (src, None), responder: (dst, to) };
        let detail = Detail::Named { number: 0, name: reason };
        self.connections.add(Some(ends), Event::new(Kind::DroppedHere, 1, sight, detail));
    }

    /// Ends the analysis.
    pub(crate) fn finish(mut self) -> Diagnosis {
        self.exchanges.finish(self.end, &mut self.connections);
        let (findings, omitted) = self.connections.finish();
        let mut totals = self.totals;
        totals.connections = self.connections.count();
        totals.forgotten = self.connections.evicted + self.exchanges.evicted;
        totals.omitted = omitted;
        let began_ns = self.end.time_ns - totals.duration_ns;
        Diagnosis { totals, findings, began_ns }
    }
}
