//! Switch-owned QPs in the data plane. The control plane connects them (`connect.rs`). They are flows like
//! those of clients, but have no client whose exit, messages or idle times could interrupt sharing.
//!
//! A key works only on queue pairs of its protection domain. Before the first operation with a key on a
//! switch-owned QP, the switch sends a READ with that key while nothing else is in flight. If the server
//! refuses it and moves its queue pair to the error state, no other operation is lost, and operations with
//! this key use client-owned QPs. After some idle time a QP is probed by a zero-length WRITE, so that a
//! server's restart is noticed before the QP is used again.

use crate::flow::{Flow, Stage, right};
use crate::function::{NO_SERVER, Swordbox, bits_of};
use crate::headers::{Base, Headers};
use crate::tend::TRIES;
use crate::{Id, NONE};
use rocev2::aeth::{NakCode, Syndrome};
use rocev2::neighbour;
use rocev2::reth::Reth;
use rocev2::{Opcode, Packet, Psn, Qpn};
use switch::forward::counters::HostQp;
use switch::{DropReason, Frame, Nanos, Output, PortId, Verdict};
use zerocopy::IntoBytes;

/// Keys remembered per shared QP; a power of two
const KEYS: usize = 256;
/// Time for which a refused key is not probed again
const REFUSED_FOR: Nanos = Nanos::from_secs(10);
/// Divisor of `dead_after` that gives the timeout of a probe
const PATIENCE: u64 = 4;
/// Maximum number of times that the retransmission interval of a probe doubles
const MOST_DOUBLED: u8 = 6;
/// Bytes that a probe of a key reads
const WORD: u32 = 8;

/// Parameters of a connected switch-owned QP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenLane {
    /// Index of the shared QP
    pub lane: u32,
    /// The switch's queue pair number
    pub qpn: Qpn,
    /// Packet with the headers of all packets on this QP
    pub template: Vec<u8>,
    /// Output port
    pub port: PortId,
    /// Starting PSN
    pub psn: Psn,
    /// READs and atomics that the server accepts at once
    pub rd_atomic: u8,
}

/// Keys that are known to work: a direct-mapped table.
#[derive(Debug)]
pub(crate) struct Keys(Box<[(u32, u8); KEYS]>);

fn place_of(rkey: u32) -> usize {
    switch::table::mix(rkey.into()) as usize % KEYS
}

impl Keys {
    pub(crate) fn new() -> Self {
        Self(Box::new([(0, 0); KEYS]))
    }

    /// Returns whether a key is known to work for all of `rights`.
    #[inline]
    pub(crate) fn has(&self, rkey: u32, rights: u8) -> bool {
        let (own, known) = self.0[place_of(rkey)];
        own == rkey && known & rights == rights
    }

    /// Notes that a key works for `rights`.
    pub(crate) fn add(&mut self, rkey: u32, rights: u8) {
        let place = &mut self.0[place_of(rkey)];
        *place = (rkey, if place.0 == rkey { place.1 | rights } else { rights });
    }

    fn clear(&mut self) {
        self.0.fill((0, 0));
    }
}

/// Keys that a server refused on a switch-owned QP, and the time until which they are not probed again.
#[derive(Debug)]
pub(crate) struct Refused(Box<[(u32, Nanos); KEYS]>);

impl Default for Refused {
    fn default() -> Self {
        Self(Box::new([(0, Nanos::ZERO); KEYS]))
    }
}

impl Refused {
    pub(crate) fn has(&self, rkey: u32, now: Nanos) -> bool {
        let (own, until) = self.0[place_of(rkey)];
        own == rkey && now < until
    }

    fn add(&mut self, rkey: u32, now: Nanos) {
        self.0[place_of(rkey)] = (rkey, now + REFUSED_FOR);
    }
}

/// Probe of a switch-owned QP or of a key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Probe {
    /// Virtual address and R_Key to read; `None` for a probe of the QP itself
    word: Option<(u64, u32)>,
    /// PSN, once the probe has been sent
    pub psn: Option<Psn>,
    /// Time of the first transmission (before it, of the request for the probe), and of the latest
    /// transmission
    since: Nanos,
    at: Nanos,
    /// Number of retransmissions
    pub tries: u8,
}

impl Swordbox {
    /// Returns whether a frame is sent to the switch itself, or asks for its address (ARP or neighbour
    /// discovery).
    #[inline]
    pub(crate) fn is_to_us(&self, bytes: &[u8]) -> bool {
        let Some(interface) = &self.config.interface else { return false };
        match bytes.first_chunk::<6>() {
            Some(dst) if *dst == interface.mac.0 => true,
            Some(dst) if dst[0] & 1 != 0 => neighbour::asked_for(bytes).is_some_and(|ip| interface.has(ip)),
            _ => false,
        }
    }

    /// Returns whether an endpoint is a queue pair of the switch.
    pub(crate) fn is_own_end(&self, id: Id) -> bool {
        self.flows.get(self.ends[id as usize].peer as usize).is_some_and(|flow| flow.is_own)
    }

    /// Handles a frame to the switch itself: a response on a switch-owned QP, or a frame for the control
    /// plane.
    #[inline]
    pub(crate) fn on_own_frame<O: Output>(
        &mut self,
        frame: &mut O::Frame,
        port: PortId,
        now: Nanos,
        out: &mut O,
    ) -> Verdict {
        let layout = match self.forward.admit(frame, port) {
            Ok(Some(layout)) => layout,
            // ARP, neighbour discovery and echo requests. The control plane drops malformed frames.
            Ok(None) => return Verdict::Punt,
            Err(verdict) => return verdict,
        };
        let packet = Packet::new(frame.bytes(), layout);
        if packet.bth().dest_qp() == Qpn::GSI {
            return Verdict::Punt;
        }
        let to = self.index.get(&HostQp::destination_of(&packet)).filter(|to| self.is_own_end(*to));
        let Some(to) = to else { return Verdict::Drop(DropReason::NoQueuePair) };
        let server = self.server_of(crate::function::source_of(&packet));
        let flow = &self.flows[self.ends[to as usize].peer as usize];
        if !flow.may_answer(packet.bth().psn()) {
            self.counters.strays.add(1);
            return Verdict::Drop(DropReason::NoQueuePair);
        }
        match layout.opcode() {
            Opcode::RC_ACKNOWLEDGE | Opcode::RC_ATOMIC_ACKNOWLEDGE | Opcode::RC_READ_RESPONSE_ONLY
                if server != NO_SERVER =>
            {
                self.on_response_at(to, server, frame, layout, port, now, out)
            }
            Opcode::CNP => {
                self.on_cnp(frame, layout, out);
                Verdict::Consume
            }
            _ => Verdict::Drop(DropReason::Unexpected),
        }
    }

    /// Handles [`Command::OpenLane`](crate::Command::OpenLane).
    pub(crate) fn open_lane(&mut self, asked: &OpenLane, now: Nanos) {
        let opened = self.try_open_lane(asked, now).is_some();
        let &OpenLane { lane, qpn, .. } = asked;
        self.counters.own_lanes.add(u64::from(opened));
        self.events.push_back(crate::Event::LaneOpened { lane, qpn, opened });
    }

    fn try_open_lane(&mut self, asked: &OpenLane, now: Nanos) -> Option<()> {
        let there = self.lanes.get(asked.lane as usize).filter(|lane| lane.is_own && lane.owner == NONE)?;
        let number = there.server;
        let packet = Packet::parse(&asked.template)?;
        let headers = Headers::of(&packet)?;
        let keys = [HostQp::new(packet.dst(), packet.bth().dest_qp()), HostQp::new(packet.src(), asked.qpn)];
        // Both queue pairs are new, so older connections with the same numbers are forgotten.
        for key in keys {
            if let Some(id) = self.index.get(&key) {
                self.forget(id);
            }
        }
        let [Some(to_server), Some(to_us)] = keys.map(|key| self.add_end(key)) else {
            for key in keys {
                self.index.remove(&key);
            }
            return None;
        };
        for (id, peer, from) in [(to_server, to_us, packet.src()), (to_us, to_server, packet.dst())] {
            let end = &mut self.ends[id as usize];
            (end.peer, end.port, end.from, end.seen) = (peer, asked.port, bits_of(from), now);
        }
        self.ends[to_server as usize].headers = headers;
        let flow = &mut self.flows[to_server as usize];
        flow.begin(asked.psn);
        (flow.stage, flow.is_own, flow.lane) = (Stage::Strict, true, asked.lane);
        let there = &mut self.lanes[asked.lane as usize];
        there.open(to_server, asked.psn, asked.rd_atomic.max(1).into(), now, now);
        there.keys.clear();
        self.give_back(number);
        Some(())
    }

    /// Returns the client-owned QPs of a server to their owners once nothing is in flight there.
    fn give_back(&mut self, server: u8) {
        for lent in self.lanes.iter_mut().filter(|lane| lane.server == server && !lane.is_own) {
            if lent.owner != NONE && !self.flows[lent.owner as usize].leaving {
                lent.is_given_back = true;
                self.flows[lent.owner as usize].leaving = true;
            }
        }
    }

    /// Handles [`Command::CloseLane`](crate::Command::CloseLane).
    pub(crate) fn close_lane(&mut self, lane: Id, qpn: Qpn) {
        let Some(there) = self.lanes.get(lane as usize).filter(|lane| lane.owner != NONE) else { return };
        let us = self.ends[there.owner as usize].peer;
        if there.is_own && self.index.key(us).is_some_and(|key| key.qpn() == qpn) {
            self.fail(lane);
        }
    }

    /// Removes both endpoints of a failed switch-owned QP, and reports it to the control plane, which
    /// connects it again.
    pub(crate) fn retire(&mut self, lane: Id, owner: Id) {
        let us = self.ends[owner as usize].peer;
        let qpn = self.index.key(us).map_or(Qpn::new(0), HostQp::qpn);
        for id in [owner, us] {
            (self.ends[id as usize].peer, self.ends[id as usize].from) = (NONE, 0);
            self.flows[id as usize] = Flow::new(self.flows[id as usize].server);
            if let Some(key) = self.index.key(id).copied() {
                self.index.remove(&key);
            }
        }
        self.counters.own_lanes_lost.add(1);
        self.events.push_back(crate::Event::LaneLost { lane, qpn });
    }

    /// Schedules a probe of a key, sent when nothing is in flight on the QP.
    pub(crate) fn want_probe(&mut self, lane: Id, va: u64, rkey: u32, now: Nanos) {
        self.begin_probe(lane, Some((va & !7, rkey)), now);
    }

    pub(crate) fn begin_probe(&mut self, lane: Id, word: Option<(u64, u32)>, now: Nanos) {
        let there = &mut self.lanes[lane as usize];
        if there.probe.is_some() {
            return;
        }
        there.probe = Some(Probe { word, psn: None, since: now, at: now, tries: 0 });
        // While a probe is scheduled, no operation begins on the QP.
        self.flows[there.owner as usize].in_message = true;
        self.probing += 1;
    }

    /// Handles the timers of a switch-owned QP without operations in flight.
    pub(crate) fn tend_own<O: Output>(&mut self, lane: Id, now: Nanos, out: &mut O) {
        let there = &self.lanes[lane as usize];
        let patience = there.patience(self.config.replay_after);
        let Some(probe) = there.probe else {
            if now.since(there.moved) > self.config.probe_after {
                self.begin_probe(lane, None, now);
                self.send_probe(lane, now, out);
            } else {
                self.pump_lane(lane, now, out);
            }
            return;
        };
        if probe.psn.is_none() {
            self.send_probe(lane, now, out);
        } else if now.since(probe.since) > Nanos(self.config.dead_after.0 / PATIENCE)
            || (u32::from(probe.tries) >= TRIES && self.is_replaced(there))
        {
            self.fail(lane);
        } else if now.since(probe.at) > Nanos(patience.0 << probe.tries) {
            self.send_probe(lane, now, out);
            self.pump_lane(lane, now, out);
        }
    }

    /// Sends or retransmits a probe. Without a free buffer it counts as lost.
    fn send_probe<O: Output>(&mut self, lane: Id, now: Nanos, out: &mut O) {
        let there = &mut self.lanes[lane as usize];
        let owner = there.owner;
        let Some(probe) = &mut there.probe else { return };
        let psn = if let Some(psn) = probe.psn {
            probe.tries = (probe.tries + 1).min(MOST_DOUBLED);
            psn
        } else {
            let flow = &mut self.flows[owner as usize];
            let psn = flow.own_next;
            flow.own_next = psn.add(1);
            (probe.psn, probe.since) = (Some(psn), now);
            psn
        };
        probe.at = now;
        let (opcode, (va, rkey), len) = match probe.word {
            Some(word) => (Opcode::RC_READ_REQUEST, word, WORD),
            None => (Opcode::RC_WRITE_ONLY, (0, 0), 0),
        };
        let Ok(mut frame) = out.make(0) else { return };
        let end = &self.ends[owner as usize];
        let base = Base { ack_req: true, ..Base::new(opcode, end.qpn, psn) };
        let reth = Reth { va: va.into(), rkey: rkey.into(), len: len.into() };
        let mut behind = [0; Reth::LEN];
        behind.copy_from_slice(reth.as_bytes());
        if end.headers.build(&mut frame, None, base, &behind).is_ok() {
            _ = out.send(frame, end.port);
        }
    }

    /// Notes that a key does not work on switch-owned QPs, so that operations with it use other connections
    /// for `REFUSED_FOR`.
    pub(crate) fn refuse_key(&mut self, lane: Id, rkey: u32, now: Nanos) {
        let there = &self.lanes[lane as usize];
        if there.is_own {
            self.refused[usize::from(there.server)].add(rkey, now);
            self.counters.keys_refused.add(1);
        }
    }

    /// Handles a response to a probe. Returns false if it is none.
    pub(crate) fn on_probe<O: Output>(
        &mut self,
        lane: Id,
        packet: &Packet<'_>,
        now: Nanos,
        out: &mut O,
    ) -> bool {
        let Some(there) = self.lanes.get_mut(lane as usize) else { return false };
        let Some(probe) = there.probe.filter(|probe| probe.psn == Some(packet.bth().psn())) else {
            return false;
        };
        let Some(aeth) = packet.aeth() else { return false };
        match (packet.layout().opcode(), aeth.kind()) {
            (Opcode::RC_READ_RESPONSE_ONLY, _) if probe.word.is_some() => {}
            (Opcode::RC_ACKNOWLEDGE, Syndrome::Ack(_)) if probe.word.is_none() => {}
            (Opcode::RC_ACKNOWLEDGE, Syndrome::Nak(NakCode::PSN_SEQUENCE_ERROR)) => {
                self.send_probe(lane, now, out);
                return true;
            }
            (Opcode::RC_ACKNOWLEDGE, Syndrome::Nak(_)) => {
                if let Some((_, rkey)) = probe.word {
                    self.refuse_key(lane, rkey, now);
                }
                self.fail(lane);
                self.pump_ready(now, out);
                return true;
            }
            _ => return false,
        }
        there.probe = None;
        there.hear(packet.bth().psn(), now);
        if let Some((_, rkey)) = probe.word {
            there.keys.add(rkey, right::ATOMIC);
        }
        let owner = &mut self.flows[there.owner as usize];
        owner.in_message = false;
        owner.own_msn = owner.own_msn.add(1);
        self.probing -= 1;
        if probe.tries > 0 {
            // While the probe was overdue, operations may have moved to client-owned QPs.
            let server = self.lanes[lane as usize].server;
            self.give_back(server);
        }
        self.pump_lane(lane, now, out);
        true
    }
}
