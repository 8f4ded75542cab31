//! The switch function: dispatches each frame by its kind.

#[cfg(test)]
mod bounds;
mod detour;
mod fast_path;
mod generated;
mod pairing;
mod prefetch;
mod recovery;
mod request;
mod reread;
mod response;
mod retransmitted;
mod route;
mod salt;
mod share;
mod shared_response;
mod steer;
mod succession;
mod switch_owned;
mod translated;
mod trust;

use crate::address::{NO_SERVER, bits_of, source_of};
use crate::config::{Config, Layers};
use crate::connections::Connections;
use crate::counters::Counters;
use crate::damaged::{addresses_of, has_wrong_checksum, has_wrong_icrc};
use crate::ended::EndedConnections;
use crate::event::{Command, Event};
use crate::flow::Stage;
use crate::handshakes::Handshakes;
use crate::held::Held;
use crate::lines::Lines;
use crate::message::Untracked;
use crate::op::{Kind, Op};
use crate::owners::Owners;
use crate::proof::Period;
use crate::records::{Record, RecordKind};
use crate::shared_qps::SharedQps;
use crate::source::Sources;
use crate::steering::Steering;
use crate::{Bug, Id, NONE};
use rocev2::aeth::Aeth;
use rocev2::atomic::AtomicEth;
use rocev2::reth::Reth;
use rocev2::{Class, Fault, Layout, Opcode, Packet};
use std::collections::VecDeque;
use std::sync::Arc;
use switch::forward::counters::HostQp;
use switch::forward::{self, Forward};
use switch::{DropReason, Frame, Function, Nanos, Output, PortId, Verdict};

/// Interval of the timer while nothing is in flight
const IDLE: Nanos = Nanos::from_millis(10);

/// A bridge that resolves atomics.
///
/// Drive it as a [`Function`]: pass frames to `on_frame`, call `on_timer` when `next_timer` is due, poll
/// `poll_event` and give the events to a [`Control`](crate::Control), whose commands go to `on_command`.
pub struct Swordbox {
    config: Config,
    owners: Owners,
    worker: usize,
    layers: Layers,
    forward: Forward,
    connections: Connections,
    ended: EndedConnections,
    handshakes: Handshakes,
    sources: Sources,
    /// Long WRITEs without a tracked connection
    untracked: Untracked,
    shared_qps: SharedQps,
    lines: Lines,
    steering: Steering,
    held: Held,
    /// Flows with retransmitted READs
    rereading: Vec<Id>,
    /// Current period of the expiry of proven rights (quarters of `proof`), including the periods skipped
    /// after a revocation
    period: Period,
    last_tick: Nanos,
    counters: Arc<Counters>,
    events: VecDeque<Event>,
}

impl core::fmt::Debug for Swordbox {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let busy =
            self.connections.flows().enumerate().filter(|(_, flow)| {
                !flow.is_idle() || flow.next != flow.sent || flow.nak_due || flow.nak_sent
            });
        let open = |id: usize| {
            self.connections.records(id as Id).iter().filter(|record| !record.done).collect::<Vec<_>>()
        };
        let busy = busy.map(|(id, flow)| (id, flow, open(id)));
        f.debug_struct("Swordbox")
            .field("usage", &self.usage())
            .field("busy", &busy.collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

impl Swordbox {
    /// Creates a Swordbox without tracked connections, for one worker.
    ///
    /// # Panics
    /// As [`of_worker`](Self::of_worker).
    pub fn new(config: Config) -> Self {
        Self::of_worker(config, 0, 1)
    }

    /// Creates the instance of worker `worker` of `workers`, without tracked connections. `config` is the same for all
    /// workers. The instance has the state of its own servers, in tables of the configured capacities: the server with
    /// index `n` belongs to worker `n` modulo `workers`.
    ///
    /// # Panics
    /// If there is no such worker, or if `in_flight` is not a power of two, there are more than 254 servers, the bridge's topology names a
    /// port that does not exist, or the capacity of a table does not fit into 32 bits.
    pub fn of_worker(config: Config, worker: usize, workers: usize) -> Self {
        let owners = Owners::new(&config, workers);
        let config = config.of_worker(worker, workers);
        assert!(config.in_flight.is_power_of_two(), "in_flight is {}, not a power of two", config.in_flight);
        assert!(
            config.servers.len() < usize::from(NO_SERVER),
            "{} servers; at most 254 are supported",
            config.servers.len()
        );
        Self {
            layers: config.layers,
            owners,
            worker,
            forward: Forward::embedded(&config.forward, workers),
            connections: Connections::new(&config),
            ended: EndedConnections::new(&config),
            handshakes: Handshakes::new(),
            sources: Sources::new(config.connections * 2, config.per_host),
            untracked: Untracked::new(),
            shared_qps: SharedQps::new(&config),
            lines: Lines::with_capacity(config.lines, config.servers.len()),
            steering: Steering::new(
                config.servers.iter().map(|server| &server.structures[..]),
                config.appends,
                config.withheld,
            ),
            held: Held::with_capacity(config.held),
            rereading: Vec::with_capacity(64),
            period: Period::default(),
            last_tick: Nanos::ZERO,
            counters: Arc::default(),
            events: VecDeque::with_capacity(64),
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
        [self.connections.len() / 2, self.shared_qps.in_use(), self.lines.len(), self.held.len()]
    }

    /// Returns the endpoint that `packet` is sent to, and adds it to the table if there is room.
    #[expect(clippy::inline_always, reason = "runs for every packet")]
    #[inline(always)]
    pub(crate) fn endpoint_of(&mut self, packet: &Packet<'_>) -> Option<Id> {
        let key = HostQp::destination_of(packet);
        self.connections.find(&key).or_else(|| self.insert_endpoint(packet, key))
    }

    /// Returns the endpoint that a request is sent to. Endpoints on hosts that are no servers are not added.
    #[expect(clippy::inline_always, reason = "runs for every packet")]
    #[inline(always)]
    pub(crate) fn endpoint_of_request(&mut self, packet: &Packet<'_>) -> Option<Id> {
        let key = HostQp::destination_of(packet);
        self.connections.find(&key).or_else(|| self.insert_endpoint_of_request(packet, key))
    }

    #[cold]
    fn insert_endpoint_of_request(&mut self, packet: &Packet<'_>, key: HostQp) -> Option<Id> {
        if self.connections.server_of(bits_of(key.host())) == NO_SERVER {
            None
        } else {
            self.insert_endpoint(packet, key)
        }
    }

    #[cold]
    fn insert_endpoint(&mut self, packet: &Packet<'_>, key: HostQp) -> Option<Id> {
        if !packet.verify_icrc() {
            // The packet is damaged, and may carry a queue pair number that does not exist.
            return None;
        }
        if self.connections.server_of(bits_of(key.host())) != NO_SERVER
            && !self.sources.may_add(source_of(packet), self.last_tick)
        {
            self.counters.untracked.add(1);
            return None;
        }
        let id = self.connections.add(key);
        if id.is_none() {
            self.sources.note_overflow(self.last_tick);
            self.counters.untracked.add(1);
        }
        id
    }

    #[inline(always)]
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
            Kind::UnreliableDatagram => {
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
            Kind::UnreliableConnection | Kind::Unknown => self.on_untracked(frame, layout, port, now, out),
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

    /// Verdict on a packet of a tracked connection with a wrong ICRC, which is not counted as damaged.
    const WRONG_ICRC: Verdict = Verdict::Drop(DropReason::Malformed(Fault::Icrc));

    /// Drops and counts a damaged frame.
    fn refuse(&self, fault: Fault) -> Verdict {
        self.counters.damaged.add(1);
        Verdict::Drop(DropReason::Malformed(fault))
    }

    /// Drops and counts a packet that its sender has to retransmit, because it may not be forwarded now.
    fn delay(&self) -> Verdict {
        self.counters.delayed.add(1);
        Verdict::Drop(DropReason::Delayed)
    }

    /// Drops and counts a packet of an ended connection.
    fn drop_ended_packet(&self) -> Verdict {
        self.counters.ended.add(1);
        Verdict::Drop(DropReason::NoQueuePair)
    }

    /// Drops and counts a packet whose PSN is outside the window of its connection.
    fn drop_stray_packet(&self) -> Verdict {
        self.counters.strays.add(1);
        Verdict::Drop(DropReason::NoQueuePair)
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
        let server = self.connections.server_of(host);
        if server == NO_SERVER || self.lines.len() == 0 {
            return self.forward.route(frame, port, now, out);
        }
        let trusted = self.is_trusted(NONE, source_of(&packet));
        if !trusted && !self.may_invalidate(NONE, server, &packet, now) {
            return self.delay();
        }
        if self.invalidate_untracked(server, &packet, now).is_err() {
            if trusted {
                // Until the packet is retransmitted, no further operation is resolved that it would have to
                // wait for.
                _ = self.invalidate_for(NONE, server, &packet, now, self.config.dead_after);
            }
            return self.delay();
        }
        self.track_long_write(&packet, now);
        self.forward.route(frame, port, now, out)
    }
}

impl Function for Swordbox {
    type Command = Command;
    type Event = Event;
    const HAS_OWNERS: bool = true;

    #[inline]
    fn owner(&self, frame: &impl Frame, _port: PortId) -> Option<usize> {
        self.owners.owner(frame.bytes(), self.config.has_bug(Bug::WrongOwner))
    }

    #[expect(clippy::inline_always, reason = "runs for every packet")]
    #[inline(always)]
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
        match self.forward.admit(frame, port, now) {
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
            let now_of_rights = if self.config.has_bug(Bug::KeptRight) { Nanos::ZERO } else { now };
            self.period.advance(now_of_rights, self.config.proof);
            self.lines.advance_epoch();
            self.tick_shared_qps(now, out);
            self.tick_rereads(now, out);
            self.tick_steering(now, out);
            self.age(now);
            self.sources.sweep(now, self.config.dead_after);
            self.counters.usage.set(self.usage());
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
                let Some(id) = self.connections.find(&key) else { return };
                if self.connections.connection_of(id) == Some(connection)
                    && self.connections.flow(id).stage == Stage::Requesting
                {
                    // While the last request's PSN count is unknown, the next request's PSN is unknown. And
                    // an atomic whose result is unknown could not be answered again.
                    let open =
                        |record: &Record| record.count > 0 && record.kind == RecordKind::AtomicWithoutResult;
                    let known = !self.connections.records(id).iter().any(open);
                    let flow = self.connections.flow_mut(id);
                    // A forged DREQ may have set `disconnected`; the next request requests translation again.
                    let known = known && flow.uncounted_read.is_none() && !flow.disconnected;
                    flow.stage = if known { Stage::Translating } else { Stage::Synced };
                    self.counters.diverged.add(u64::from(known));
                }
            }
            Command::Bridge(command) => self.forward.on_command(command, now),
            Command::Layers(layers) => {
                let steering = |layers: Layers| (layers.steer_writes, layers.steer_reads);
                if steering(layers) != steering(self.layers) {
                    // CAS that passed while steering was off make the cached state stale.
                    self.steering.forget();
                }
                self.layers = layers;
                if !layers.cas_to_write {
                    self.lines.forget_all();
                }
            }
        }
    }

    fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front().or_else(|| self.forward.poll_event().map(Event::Bridge))
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
            // The checks of the bridge (`verify_icrc`, `verify_udp_checksum`) found the damage.
            Class::Roce(layout) if Packet::new(bytes, layout).verify_icrc() => Some(Fault::UdpChecksum),
            Class::Roce(_) => Some(Fault::Icrc),
        };
        // A frame longer than one buffer cannot be checked as a whole.
        if let Some(fault) = fault.filter(|fault| *fault != Fault::UnknownOpcode && frame.is_whole()) {
            return self.refuse(fault);
        }
        if let Some(fault) = fault
            && let Some((from, host, qpn)) = addresses_of(frame.bytes())
            && let server = self.connections.server_of(bits_of(host))
            && server != NO_SERVER
        {
            let end = self.connections.find(&HostQp::new(host, qpn));
            if end.is_some_and(|id| self.connections.flow(id).stage >= Stage::Translating) {
                return Verdict::Drop(DropReason::Malformed(fault));
            }
            let trusted = self.is_trusted(end.unwrap_or(NONE), bits_of(from));
            if fault == Fault::UnknownOpcode
                && self.lines.len() > 0
                && ((!trusted && !self.may_invalidate_range(server, 0, u64::MAX, now))
                    || self.lines.detour_everywhere(server, now, self.config.settle).is_err())
            {
                return self.delay();
            }
        }
        self.forward.route(frame, port, now, out)
    }

    /// Returns the time until the next tick.
    pub(crate) fn tick_interval(&self) -> Nanos {
        let busy = self.held.len() > 0 || !self.shared_qps.is_idle() || !self.steering.is_idle();
        // Proven rights have to expire in time.
        let idle = Nanos((self.config.proof.0 / 4).clamp(1, IDLE.0));
        if busy { Nanos((self.config.replay_after.0 / 2).max(1)).min(idle) } else { idle }
    }
}
