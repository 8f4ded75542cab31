//! The switch's data plane: scatters what leaders write, gathers what replicas acknowledge, and is a learning bridge for
//! everything else.

use crate::gather::Gathered;
use crate::group::{Group, GroupId, Member, Request};
use core::net::IpAddr;
use rocev2::aeth::{NakCode, Syndrome};
use rocev2::ethernet::{Ethernet, MacAddr};
use rocev2::ipv4::Ipv4;
use rocev2::neighbour;
use rocev2::packet::ICRC_LEN;
use rocev2::reth::Reth;
use rocev2::udp::Udp;
use rocev2::{Bth, Fault, Layout, Opcode, Packet, Psn, Qpn};
use std::collections::VecDeque;
use std::sync::Arc;
use switch::counters::Counter;
use switch::forward::{self, Forward};
use switch::{DropReason, Frame, Function, Nanos, Output, PortId, Verdict};
use zerocopy::FromBytes;

/// Configuration of [`P4ce`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The bridge for all frames that are not the switch's own
    pub forward: forward::Config,
    /// The switch's MAC address
    pub mac: MacAddr,
    /// Its IP addresses
    pub addresses: Vec<IpAddr>,
    /// Groups at once
    pub groups: usize,
    /// Queue pairs at once: one a group and one a replica of it. A power of two
    pub queue_pairs: usize,
    /// A replica that has been behind a quorum for so long without moving is excluded; zero for never
    pub silent_after: Nanos,
    /// A planted bug, to see whether it is found
    #[cfg(debug_assertions)]
    pub bug: Option<crate::Bug>,
}

/// What the control plane tells the data plane.
#[derive(Debug)]
pub enum Command {
    /// The group's packets are to be handled from now on. Answered by [`Event::Opened`].
    Open(Box<Group>),
    /// The group is over. Answered by [`Event::Closed`].
    Close(GroupId),
    /// A replica is written to no more.
    Exclude(GroupId, usize),
    /// So many replicas make a quorum from now on.
    SetQuorum(GroupId, usize),
}

/// What the data plane tells the control plane.
#[derive(Debug)]
pub enum Event {
    /// A group's packets are handled; or not, as there is no place for it.
    Opened(GroupId, bool),
    /// A group's packets are handled no more; what it was made of is given back.
    Closed(GroupId, Option<Box<Group>>),
    /// A replica was excluded by the data plane.
    Excluded(GroupId, usize),
}

/// What the data plane counts, beside what the bridge does.
#[derive(Debug, Default)]
pub struct Counters {
    /// Requests of leaders that were passed to replicas
    pub requests: Counter,
    /// Their copies
    pub copies: Counter,
    /// Responses of replicas
    pub responses: Counter,
    /// Acknowledgements that leaders were told
    pub acks: Counter,
    /// NAKs (PSN sequence error) that leaders were told
    pub naks: Counter,
    /// "Receiver not ready" that leaders were told
    pub rnr_naks: Counter,
    /// NAKs that end a connection, of replicas or of the switch itself
    pub fatal_naks: Counter,
    /// Requests of which leaders were told again what a quorum holds
    pub repeated: Counter,
    /// Congestion notifications passed to leaders
    pub cnps: Counter,
    /// Groups opened
    pub opened: Counter,
    /// Groups closed
    pub closed: Counter,
    /// Replicas excluded by the data plane
    pub excluded: Counter,
    /// Leaders and replicas that were found at another port than before
    pub moved: Counter,
}

/// Whose queue pair one of the switch's is.
#[derive(Clone, Copy, Debug)]
struct Slot {
    qpn: u32,
    group: u32,
    /// The replica at its other end; [`LEADER`] for the leader
    member: u32,
}

const LEADER: u32 = u32::MAX;
const NOBODY: Slot = Slot { qpn: u32::MAX, group: 0, member: 0 };

/// The data plane.
pub struct P4ce {
    config: Config,
    forward: Forward,
    slots: Box<[Slot]>,
    groups: Box<[Option<Box<Group>>]>,
    counters: Arc<Counters>,
    events: VecDeque<Event>,
    looked: Nanos,
}

/// What is done with a request of a leader.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// It says where it writes to.
    Write,
    /// It goes to all replicas as it is.
    Plain,
    /// It is for the switch alone, and says nothing that concerns it.
    Notice,
    /// A group cannot do that.
    Refused,
}

static KINDS: [Kind; 256] = {
    let mut kinds = [Kind::Refused; 256];
    let mut at = 0;
    while at < kinds.len() {
        kinds[at] = match Opcode(at as u8) {
            Opcode::RC_WRITE_FIRST | Opcode::RC_WRITE_ONLY | Opcode::RC_WRITE_ONLY_IMM => Kind::Write,
            Opcode::RC_WRITE_MIDDLE
            | Opcode::RC_WRITE_LAST
            | Opcode::RC_WRITE_LAST_IMM
            | Opcode::RC_SEND_FIRST
            | Opcode::RC_SEND_MIDDLE
            | Opcode::RC_SEND_LAST
            | Opcode::RC_SEND_LAST_IMM
            | Opcode::RC_SEND_ONLY
            | Opcode::RC_SEND_ONLY_IMM => Kind::Plain,
            Opcode::CNP | Opcode::RC_ACKNOWLEDGE => Kind::Notice,
            _ => Kind::Refused,
        };
        at += 1;
    }
    kinds
};

impl P4ce {
    /// A data plane without groups.
    ///
    /// # Panics
    /// If `queue_pairs` is no power of two.
    pub fn new(config: Config) -> Self {
        assert!(config.queue_pairs.is_power_of_two(), "{} queue pairs", config.queue_pairs);
        Self {
            forward: Forward::alone(&config.forward),
            slots: vec![NOBODY; config.queue_pairs].into(),
            groups: (0..config.groups).map(|_| None).collect(),
            counters: Arc::default(),
            events: VecDeque::with_capacity(64),
            looked: Nanos::ZERO,
            config,
        }
    }

    /// Salts the bridge's table of stations, as [`Forward::salted`] does.
    #[must_use]
    pub fn salted(mut self, seed: u64) -> Self {
        self.forward = self.forward.salted(seed);
        self
    }

    /// What it has counted so far, and goes on to count
    pub fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.counters)
    }

    /// What the bridge has counted
    pub fn forward_counters(&self) -> Arc<forward::Counters> {
        self.forward.counters()
    }

    /// A group that is open
    pub fn group(&self, id: GroupId) -> Option<&Group> {
        self.groups.get(id.0 as usize)?.as_deref()
    }

    fn slot_of(&self, qpn: Qpn) -> usize {
        qpn.get() as usize & (self.slots.len() - 1)
    }

    /// A frame to the switch's own MAC address
    #[inline]
    fn on_own<O: Output>(&mut self, frame: &mut O::Frame, port: PortId, now: Nanos, out: &mut O) -> Verdict {
        let layout = match self.forward.admit(frame, port) {
            Ok(Some(layout)) => layout,
            // ARP, neighbour discovery, echo requests; malformed ones, which the control plane does not understand either
            Ok(None) => return self.punt(frame.bytes(), port, now),
            Err(verdict) => return verdict,
        };
        let qpn = Packet::new(frame.bytes(), layout).bth().dest_qp();
        if qpn == Qpn::GSI {
            return self.punt(frame.bytes(), port, now);
        }
        let slot = self.slots[self.slot_of(qpn)];
        if slot.qpn != qpn.get() {
            return Verdict::Drop(DropReason::NoQueuePair);
        }
        if slot.member == LEADER {
            self.scatter(slot.group as usize, frame, layout, (port, now), out)
        } else {
            self.gather(slot.group as usize, slot.member as usize, frame, layout, (port, now))
        }
    }

    /// A packet of a leader's (paper IV-B)
    #[inline]
    fn scatter<O: Output>(
        &mut self,
        group: usize,
        frame: &mut O::Frame,
        layout: Layout,
        (port, now): (PortId, Nanos),
        out: &mut O,
    ) -> Verdict {
        let Some(group) = &mut self.groups[group] else { return Verdict::Drop(DropReason::NoQueuePair) };
        let own = self.config.mac;
        let packet = Packet::new(frame.bytes(), layout);
        if !group.leader.is_of(&packet) {
            return Verdict::Drop(DropReason::WrongSource);
        }
        #[cfg(debug_assertions)]
        if self.config.bug == Some(crate::Bug::LeaderByPort) {
            let port = packet.udp().src_port.get();
            if *group.leader_port.get_or_insert(port) != port {
                return Verdict::Drop(DropReason::WrongSource);
            }
        }
        if group.leader.port != port {
            Self::follow_leader(&mut self.forward, &self.counters, &self.config, group, &packet, (port, now));
        }
        let (psn, ack_req) = (packet.bth().psn(), packet.bth().ack_req());
        let kind = KINDS[usize::from(layout.opcode().0)];
        let reth = if kind == Kind::Write { first_reth(&packet) } else { None };
        let allowed = reth.is_none_or(|reth| group.allows(reth.va.get(), reth.rkey.get(), reth.len.get()));
        if kind == Kind::Notice {
            return Verdict::Consume;
        }
        if kind == Kind::Refused || !allowed {
            // Damage may be why, and then the leader is to try again.
            if !packet.verify_icrc() {
                return Verdict::Drop(DropReason::Malformed(Fault::Icrc));
            }
            if !group.gather.is_outstanding(psn) {
                return Verdict::Drop(DropReason::Unexpected);
            }
            let code = if allowed { NakCode::INVALID_REQUEST } else { NakCode::REMOTE_ACCESS_ERROR };
            let answer = group.gather.refuse(psn, code);
            self.counters.fatal_naks.add(1);
            if let Ok(nak) = group.leader.make_answer(&packet, own, answer, out) {
                _ = out.send(nak, group.leader.port);
            }
            return Verdict::Drop(DropReason::Refused);
        }
        let next = group.gather.next();
        if psn != next {
            if !next.precedes(psn) {
                // A replica may not have got it as it has moved: the bridge may have heard it since.
                Self::find_replicas(&self.forward, &self.counters, &self.config, group);
            } else if !packet.verify_icrc() {
                // What a packet from the future says is remembered: it has to be true.
                return Verdict::Drop(DropReason::Malformed(Fault::Icrc));
            }
        }
        let request = Request { psn, va: reth.map(|reth| reth.va.get()) };
        if let Some(answer) = group.gather.on_request(psn, ack_req) {
            self.counters.repeated.add(1);
            if let Ok(ack) = group.leader.make_answer(&packet, own, answer, out) {
                _ = out.send(ack, group.leader.port);
            }
        }
        let Some((others, last)) = group.targets() else {
            return Verdict::Drop(DropReason::NoQueuePair);
        };
        self.counters.requests.add(1);
        self.counters.copies.add(others.len() as u64 + 1);
        for number in others {
            let member = &group.members[usize::from(*number)];
            let copy = if out.prefers_sharing(member.port, layout.icrc() - layout.payload()) {
                share(member, frame, layout, request, out)
            } else {
                out.copy(frame).map(|mut copy| {
                    member.scatter(copy.bytes_mut(), layout, request);
                    copy
                })
            };
            match copy {
                Ok(copy) => {
                    // The runner counts what does not fit; the replica will miss it, and say so.
                    _ = out.send(copy, member.port);
                }
                Err(switch::Full) => return Verdict::Drop(DropReason::NoBuffer),
            }
        }
        // The last copy needs no other buffer than the packet's own.
        last.scatter(frame.bytes_mut(), layout, request);
        Verdict::Forward(last.port)
    }

    /// A packet of a replica's (paper IV-C)
    #[inline]
    fn gather<F: Frame>(
        &mut self,
        number: usize,
        member: usize,
        frame: &mut F,
        layout: Layout,
        (port, now): (PortId, Nanos),
    ) -> Verdict {
        let Some(group) = &mut self.groups[number] else { return Verdict::Drop(DropReason::NoQueuePair) };
        let own = self.config.mac;
        let packet = Packet::new(frame.bytes(), layout);
        let replica = &group.members[member];
        if !replica.is_of(&packet) {
            return Verdict::Drop(DropReason::WrongSource);
        }
        let psn = packet.bth().psn().sub(replica.psn_ahead);
        let aeth = match layout.opcode() {
            Opcode::RC_ACKNOWLEDGE => packet.aeth().copied(),
            Opcode::CNP => None,
            // Replicas ask for nothing here, and nothing here is read.
            _ => return Verdict::Drop(DropReason::Unexpected),
        };
        if !packet.verify_icrc() {
            return Verdict::Drop(DropReason::Malformed(Fault::Icrc));
        }
        let Some(aeth) = aeth else {
            self.counters.cnps.add(1);
            group.leader.pass(frame.bytes_mut(), layout, own, Psn::ZERO);
            return Verdict::Forward(group.leader.port);
        };
        if replica.port != port {
            Self::follow_replica(
                &mut self.forward,
                &self.counters,
                &self.config,
                group,
                (member, &packet),
                (port, now),
            );
        }
        self.counters.responses.add(1);
        let gathered = group.gather.on_response(member, psn, aeth);
        while let Some(dropped) = group.gather.take_dropped() {
            #[cfg(debug_assertions)]
            if self.config.bug == Some(crate::Bug::DroppedSilently) {
                break;
            }
            group.exclude(dropped);
            self.counters.excluded.add(1);
            self.events.push_back(Event::Excluded(GroupId(number as u32), dropped));
        }
        match gathered {
            Gathered::Tell(answer) => {
                match answer.aeth.kind() {
                    Syndrome::Ack(_) => self.counters.acks.add(1),
                    Syndrome::RnrNak(_) => self.counters.rnr_naks.add(1),
                    Syndrome::Nak(NakCode::PSN_SEQUENCE_ERROR) => self.counters.naks.add(1),
                    Syndrome::Nak(_) | Syndrome::Reserved(_) => self.counters.fatal_naks.add(1),
                }
                group.leader.answer(frame.bytes_mut(), layout, own, answer);
                Verdict::Forward(group.leader.port)
            }
            Gathered::Absorbed => Verdict::Consume,
            Gathered::Stale => Verdict::Drop(DropReason::Stale),
            Gathered::Failed(answer) => {
                group.exclude(member);
                self.counters.excluded.add(1);
                self.events.push_back(Event::Excluded(GroupId(number as u32), member));
                let Some(answer) = answer else { return Verdict::Consume };
                self.counters.acks.add(1);
                group.leader.answer(frame.bytes_mut(), layout, own, answer);
                Verdict::Forward(group.leader.port)
            }
        }
    }

    /// A frame is for the control plane. The bridge hears its sender too, so it knows of every station what the control plane
    /// knows, or what is newer.
    #[cold]
    fn punt(&mut self, frame: &[u8], port: PortId, now: Nanos) -> Verdict {
        if let Ok((ethernet, _)) = Ethernet::ref_from_prefix(frame)
            && !ethernet.src.is_group()
        {
            self.forward.on_command(forward::Command::Learn(ethernet.src, port), now);
        }
        Verdict::Punt
    }

    /// A packet of a leader's came from another port than before.
    #[cold]
    fn follow_leader(
        forward: &mut Forward,
        counters: &Counters,
        config: &Config,
        group: &mut Group,
        packet: &Packet<'_>,
        (port, now): (PortId, Nanos),
    ) {
        if !Self::stays_put(config) && group.move_leader(packet, port) {
            counters.moved.add(1);
            forward.on_command(forward::Command::Learn(packet.ethernet().src, port), now);
        }
    }

    /// A response of a replica's came from another port than before.
    #[cold]
    fn follow_replica(
        forward: &mut Forward,
        counters: &Counters,
        config: &Config,
        group: &mut Group,
        (member, packet): (usize, &Packet<'_>),
        (port, now): (PortId, Nanos),
    ) {
        if !Self::stays_put(config) && group.move_member(member, packet, port) {
            counters.moved.add(1);
            // What the bridge has heard is never older than what the group knows.
            forward.on_command(forward::Command::Learn(packet.ethernet().src, port), now);
        }
    }

    /// A group was opened, or its leader repeats a packet: a replica that has moved may have been heard by the bridge alone.
    #[cold]
    fn find_replicas(forward: &Forward, counters: &Counters, config: &Config, group: &mut Group) {
        if !Self::stays_put(config) {
            counters.moved.add(group.find_members(|mac| forward.find_station(mac)));
        }
    }

    #[cfg(not(debug_assertions))]
    const fn stays_put(_: &Config) -> bool {
        false
    }

    #[cfg(debug_assertions)]
    fn stays_put(config: &Config) -> bool {
        config.bug == Some(crate::Bug::StaysPut)
    }

    fn open(&mut self, group: Box<Group>) {
        let config = group.config();
        let id = config.id;
        let qpns = config.replicas.iter().map(|replica| replica.peer.local_qp).zip(0..);
        let qpns: Vec<_> = qpns.chain([(config.leader.local_qp, LEADER)]).collect();
        let free = self.groups.get(id.0 as usize).is_some_and(Option::is_none)
            && qpns.iter().all(|(qpn, _)| self.slots[self.slot_of(*qpn)].qpn == NOBODY.qpn);
        if free {
            for (qpn, member) in qpns {
                let at = self.slot_of(qpn);
                self.slots[at] = Slot { qpn: qpn.get(), group: id.0, member };
            }
            self.counters.opened.add(1);
            // One may have moved since the control plane has heard it.
            let mut group = group;
            Self::find_replicas(&self.forward, &self.counters, &self.config, &mut group);
            #[cfg(debug_assertions)]
            let group = {
                let mut group = group;
                group.plant(self.config.bug);
                group
            };
            self.groups[id.0 as usize] = Some(group);
        }
        self.events.push_back(Event::Opened(id, free));
    }

    fn close(&mut self, id: GroupId) {
        let group = self.groups.get_mut(id.0 as usize).and_then(Option::take);
        if let Some(group) = &group {
            let config = group.config();
            let replicas = config.replicas.iter().map(|replica| replica.peer.local_qp);
            for qpn in replicas.chain([config.leader.local_qp]) {
                let at = self.slot_of(qpn);
                self.slots[at] = NOBODY;
            }
            self.counters.closed.add(1);
        }
        self.events.push_back(Event::Closed(id, group));
    }

    fn group_mut(&mut self, id: GroupId) -> Option<&mut Group> {
        self.groups.get_mut(id.0 as usize)?.as_deref_mut()
    }

    /// Whether a frame to a group address asks for one of the switch's own addresses.
    fn asks_for_us(&self, frame: &[u8]) -> bool {
        neighbour::asked_for(frame).is_some_and(|ip| self.config.addresses.contains(&ip))
    }

    fn exclude_silent(&mut self, now: Nanos) {
        for (number, group) in self.groups.iter_mut().enumerate() {
            let Some(group) = group else { continue };
            while let Some(member) = group.gather.find_silent(now, self.config.silent_after) {
                group.exclude(member);
                self.counters.excluded.add(1);
                self.events.push_back(Event::Excluded(GroupId(number as u32), member));
            }
        }
    }
}

/// A replica's copy that shares the payload with the leader's packet. Headers and ICRC are the replica's while it is made,
/// and the leader's again in the end.
fn share<O: Output>(
    member: &Member,
    frame: &mut O::Frame,
    layout: Layout,
    request: Request,
    out: &mut O,
) -> Result<O::Frame, switch::Full> {
    let (payload, icrc) = (layout.payload(), layout.icrc());
    let bytes = frame.bytes_mut();
    let mut headers = [0; 128];
    let (Some(headers), Some(&right)) = (headers.get_mut(..payload), bytes[icrc..].first_chunk::<ICRC_LEN>())
    else {
        // Extension headers without end
        let mut copy = out.copy(frame)?;
        member.scatter(copy.bytes_mut(), layout, request);
        return Ok(copy);
    };
    headers.copy_from_slice(&bytes[..payload]);
    let tail = bytes.len() - icrc;
    member.scatter(bytes, layout, request);
    let copy = out.share(frame, payload, tail);
    let bytes = frame.bytes_mut();
    bytes[..payload].copy_from_slice(headers);
    bytes[icrc..icrc + ICRC_LEN].copy_from_slice(&right);
    copy
}

/// The RETH of a packet whose opcode has one, and nothing in front of it.
#[inline]
fn first_reth<'a>(packet: &Packet<'a>) -> Option<&'a Reth> {
    let behind = packet.bytes().get(packet.layout().bth() + Bth::LEN..)?;
    Reth::ref_from_prefix(behind).ok().map(|(reth, _)| reth)
}

impl Function for P4ce {
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
        let bytes = frame.bytes();
        match bytes.first_chunk::<6>() {
            Some(dst) if *dst == self.config.mac.0 => self.on_own(frame, port, now, out),
            Some(dst) if dst[0] & 1 != 0 && self.asks_for_us(bytes) => self.punt(bytes, port, now),
            _ => self.forward.on_frame(frame, port, now, out),
        }
    }

    #[inline]
    fn foresee(&self, frame: &impl Frame, fetch: impl Fn(*const u8)) {
        // Where most packets have it: without tag, IPv4 without options.
        const DEST_QP: usize = Ethernet::LEN + Ipv4::LEN + Udp::LEN + Bth::DEST_QP_WORD;
        let Some(word) = frame.bytes().get(DEST_QP..).and_then(|bytes| bytes.first_chunk()) else { return };
        let qpn = Qpn::new(u32::from_be_bytes(*word));
        let slot = self.slots[self.slot_of(qpn)];
        if let Some(Some(group)) = self.groups.get(slot.group as usize) {
            group.foresee((slot.member != LEADER).then_some(slot.member as usize), fetch);
        }
    }

    fn on_timer<O: Output>(&mut self, now: Nanos, out: &mut O) {
        if self.forward.next_timer().is_some_and(|at| at <= now) {
            self.forward.on_timer(now, out);
        }
        if self.config.silent_after > Nanos::ZERO && now >= self.looked + self.interval() {
            self.looked = now;
            self.exclude_silent(now);
        }
    }

    fn next_timer(&self) -> Option<Nanos> {
        let look = (self.config.silent_after > Nanos::ZERO).then(|| self.looked + self.interval());
        [self.forward.next_timer(), look].into_iter().flatten().min()
    }

    fn on_command(&mut self, command: Command, _now: Nanos) {
        match command {
            Command::Open(group) => self.open(group),
            Command::Close(id) => self.close(id),
            Command::Exclude(id, member) => {
                if let Some(group) = self.group_mut(id) {
                    group.exclude(member);
                }
            }
            Command::SetQuorum(id, quorum) => {
                if let Some(group) = self.group_mut(id) {
                    // A leader that waits is told when it asks again.
                    group.gather.set_quorum(quorum);
                }
            }
        }
    }

    fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }
}

impl P4ce {
    /// How often silent replicas are looked for
    fn interval(&self) -> Nanos {
        Nanos((self.config.silent_after.0 / 4).max(1))
    }
}

#[cfg(test)]
mod tests;
