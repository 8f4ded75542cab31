//! The switch's data plane: scatters leaders' writes to replicas, gathers replicas' acknowledgements, and is
//! a learning bridge for all other frames.

mod groups;
mod owner;

pub(crate) use owner::worker_of;

use crate::gather::GatherResult;
use crate::group::{Group, GroupId, Member, Request};
use core::net::IpAddr;
use rocev2::ICRC_LEN;
use rocev2::aeth::{NakCode, Syndrome};
use rocev2::ethernet::{Ethernet, MacAddr};
use rocev2::ipv4::Ipv4;
use rocev2::neighbour;
use rocev2::reth::Reth;
use rocev2::udp::Udp;
use rocev2::{Bth, Fault, Layout, Opcode, Packet, Psn, Qpn};
use std::collections::VecDeque;
use std::sync::Arc;
use switch::counters::Counter;
use switch::forward::{self, Forward};
use switch::metrics;
use switch::{DropReason, Frame, Function, Nanos, Output, PortId, Verdict};
use zerocopy::FromBytes;

/// Configuration of [`P4ce`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Bridge for all frames that are not addressed to the switch
    pub forward: forward::Config,
    /// MAC address of the switch
    pub mac: MacAddr,
    /// IP addresses of the switch
    pub addresses: Vec<IpAddr>,
    /// Limit of groups
    pub groups: usize,
    /// Limit of queue pairs: one per group and one per replica of it. A power of two.
    pub queue_pairs: usize,
    /// Number of workers, each with an instance that has the queue pairs of its groups, which have consecutive slots
    pub workers: usize,
    /// Time after which a replica that is behind a quorum without progress is excluded; zero is unlimited
    pub silent_after: Nanos,
    /// Planted bug, to check that tests find it; has no effect without debug assertions
    pub bug: Option<crate::Bug>,
}

impl Config {
    /// Returns whether this bug was planted. Release builds have no bugs.
    #[inline]
    fn has_bug(&self, bug: crate::Bug) -> bool {
        cfg!(debug_assertions) && self.bug == Some(bug)
    }
}

/// A command of the control plane to the data plane.
#[derive(Debug)]
pub enum Command {
    /// Opens a group, whose packets are handled from now on. Answered by [`Event::Opened`].
    Open(Box<Group>),
    /// Closes a group. Answered by [`Event::Closed`].
    Close(GroupId),
    /// Learns a station that a worker saw on this port at this time.
    Learn(MacAddr, PortId, Nanos),
    /// Excludes a replica: it is no longer written to.
    Exclude(GroupId, usize),
    /// Changes the number of replicas in a quorum.
    SetQuorum(GroupId, usize),
}

/// An event that the data plane reports to the control plane.
#[derive(Debug)]
pub enum Event {
    /// The group is open if the second field is true; otherwise its slot or a queue pair number was taken.
    Opened(GroupId, bool),
    /// The group is closed; its memory is returned.
    Closed(GroupId, Option<Box<Group>>),
    /// The data plane excluded a replica.
    Excluded(GroupId, usize),
    /// The bridge of a worker saw a station on this port at this time, which all workers have to learn.
    Learned(MacAddr, PortId, Nanos),
}

metrics! {
    /// Counters of the data plane, in addition to those of the bridge.
    #[derive(Debug, Default)]
    #[repr(align(128))]
    pub struct Counters {
        /// Leaders' request packets passed to replicas
        pub requests: Counter [packets],
        /// Copies of these sent to replicas
        pub copies: Counter [packets],
        /// Responses of replicas
        pub responses: Counter [packets],
        /// Acknowledgements sent to leaders
        pub acks: Counter [packets],
        /// NAKs (PSN sequence error) sent to leaders
        pub naks: Counter [packets],
        /// RNR NAKs sent to leaders
        pub rnr_naks: Counter [packets],
        /// NAKs that end a connection, of replicas or of the switch itself
        pub fatal_naks: Counter [packets],
        /// Retransmitted requests that the switch acknowledged again, because a quorum holds them
        pub repeated: Counter [requests],
        /// Congestion notification packets passed to leaders
        pub cnps: Counter [packets],
        /// Groups opened
        pub opened: Counter,
        /// Groups closed
        pub closed: Counter,
        /// Replicas excluded by the data plane
        pub excluded: Counter,
        /// Leaders and replicas that moved to another port
        pub moved: Counter [hosts as moved / hosts_moved],
    }
}

/// The group and member to which one of the switch's queue pairs belongs.
#[derive(Clone, Copy, Debug)]
struct Slot {
    qpn: u32,
    group: u32,
    /// Index of the replica at the remote end, or [`LEADER`]
    member: u32,
}

const LEADER: u32 = u32::MAX;
const UNUSED_SLOT: Slot = Slot { qpn: u32::MAX, group: 0, member: 0 };

/// The data plane: a [`Function`].
pub struct P4ce {
    config: Config,
    forward: Forward,
    slots: Box<[Slot]>,
    groups: Box<[Option<Box<Group>>]>,
    counters: Arc<Counters>,
    events: VecDeque<Event>,
    checked_at: Nanos,
}

/// How a leader's request packet is handled, by opcode.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A WRITE with a RETH, whose address and key are checked and rewritten.
    WithReth,
    /// Passed to all replicas without a RETH.
    WithoutReth,
    /// Consumed by the switch: acknowledgements and CNPs.
    Consumed,
    /// Answered with a NAK: not supported on a group.
    Refused,
}

static KINDS: [Kind; 256] = {
    let mut kinds = [Kind::Refused; 256];
    let mut at = 0;
    while at < kinds.len() {
        kinds[at] = match Opcode(at as u8) {
            Opcode::RC_WRITE_FIRST | Opcode::RC_WRITE_ONLY | Opcode::RC_WRITE_ONLY_IMM => Kind::WithReth,
            Opcode::RC_WRITE_MIDDLE
            | Opcode::RC_WRITE_LAST
            | Opcode::RC_WRITE_LAST_IMM
            | Opcode::RC_SEND_FIRST
            | Opcode::RC_SEND_MIDDLE
            | Opcode::RC_SEND_LAST
            | Opcode::RC_SEND_LAST_IMM
            | Opcode::RC_SEND_ONLY
            | Opcode::RC_SEND_ONLY_IMM => Kind::WithoutReth,
            Opcode::CNP | Opcode::RC_ACKNOWLEDGE => Kind::Consumed,
            _ => Kind::Refused,
        };
        at += 1;
    }
    kinds
};

impl P4ce {
    /// Creates a data plane without groups.
    ///
    /// # Panics
    /// If `queue_pairs` is not a power of two.
    pub fn new(config: Config) -> Self {
        assert!(
            config.queue_pairs.is_power_of_two(),
            "queue_pairs = {} is not a power of two",
            config.queue_pairs
        );
        Self {
            forward: Forward::embedded(&config.forward, config.workers),
            slots: vec![UNUSED_SLOT; config.queue_pairs].into(),
            groups: (0..config.groups).map(|_| None).collect(),
            counters: Arc::default(),
            events: VecDeque::with_capacity(64),
            checked_at: Nanos::ZERO,
            config,
        }
    }

    /// Salts the bridge's station table, as [`Forward::salted`] does.
    #[must_use]
    pub fn salted(mut self, seed: u64) -> Self {
        self.forward = self.forward.salted(seed);
        self
    }

    /// Returns the counters, which continue to count.
    pub fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.counters)
    }

    /// Returns the bridge's counters.
    pub fn forward_counters(&self) -> Arc<forward::Counters> {
        self.forward.counters()
    }

    /// Returns a group that is open.
    pub fn group(&self, id: GroupId) -> Option<&Group> {
        self.groups.get(id.0 as usize)?.as_deref()
    }

    fn slot_of(&self, qpn: Qpn) -> usize {
        qpn.get() as usize & (self.slots.len() - 1)
    }

    /// Handles a frame to the switch's own MAC address.
    #[inline]
    fn on_own_frame<O: Output>(
        &mut self,
        frame: &mut O::Frame,
        port: PortId,
        now: Nanos,
        out: &mut O,
    ) -> Verdict {
        let layout = match self.forward.admit(frame, port, now) {
            Ok(Some(layout)) => layout,
            // ARP, neighbour discovery, echo requests, and malformed ones of these, which the control plane
            // drops.
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

    /// Handles a packet from a leader (P4CE, section IV-B).
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
        if !group.leader.is_from(&packet) {
            return Verdict::Drop(DropReason::WrongSource);
        }
        if self.config.has_bug(crate::Bug::LeaderByPort) {
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
        let reth = if kind == Kind::WithReth { first_reth(&packet) } else { None };
        let allowed = reth.is_none_or(|reth| group.allows(reth.va.get(), reth.rkey.get(), reth.len.get()));
        if kind == Kind::Consumed {
            return Verdict::Consume;
        }
        if kind == Kind::Refused || !allowed {
            // The packet may be damaged, and then the leader has to retransmit it.
            if !packet.verify_icrc() {
                return Verdict::Drop(DropReason::Malformed(Fault::Icrc));
            }
            if !group.gather.is_outstanding(psn) {
                return Verdict::Drop(DropReason::Unexpected);
            }
            let code = if allowed { NakCode::INVALID_REQUEST } else { NakCode::REMOTE_ACCESS_ERROR };
            let response = group.gather.refuse(psn, code);
            self.counters.fatal_naks.add(1);
            if let Ok(nak) = group.leader.make_response(&packet, own, response, out) {
                _ = out.send(nak, group.leader.port);
            }
            return Verdict::Drop(DropReason::Refused);
        }
        let next = group.gather.next();
        if psn != next {
            if !next.precedes(psn) {
                // The leader retransmits, perhaps because a replica has moved: the bridge may have learned
                // its new port since.
                Self::find_replicas(&self.forward, &self.counters, &self.config, group);
            } else if !packet.verify_icrc() {
                // A PSN ahead of the expected one changes state, so the packet has to be intact.
                return Verdict::Drop(DropReason::Malformed(Fault::Icrc));
            }
        }
        let request = Request { psn, va: reth.map(|reth| reth.va.get()) };
        if let Some(response) = group.gather.on_request(psn, ack_req) {
            self.counters.repeated.add(1);
            if let Ok(ack) = group.leader.make_response(&packet, own, response, out) {
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
                    // The output counts a frame that does not fit; the replica detects the gap and sends a
                    // NAK.
                    _ = out.send(copy, member.port);
                }
                Err(switch::Full) => return Verdict::Drop(DropReason::NoBuffer),
            }
        }
        // The last copy uses the packet's own buffer.
        last.scatter(frame.bytes_mut(), layout, request);
        Verdict::Forward(last.port)
    }

    /// Handles a packet from a replica (P4CE, section IV-C).
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
        if !replica.is_from(&packet) {
            return Verdict::Drop(DropReason::WrongSource);
        }
        let psn = packet.bth().psn().sub(replica.psn_ahead);
        let aeth = match layout.opcode() {
            Opcode::RC_ACKNOWLEDGE => packet.aeth().copied(),
            Opcode::CNP => None,
            // Replicas send no requests on this connection, and no READs are sent to them.
            _ => return Verdict::Drop(DropReason::Unexpected),
        };
        if !packet.verify_icrc() {
            return Verdict::Drop(DropReason::Malformed(Fault::Icrc));
        }
        let Some(aeth) = aeth else {
            self.counters.cnps.add(1);
            group.leader.forward(frame.bytes_mut(), layout, own, Psn::ZERO);
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
            if self.config.has_bug(crate::Bug::DroppedSilently) {
                break;
            }
            group.exclude(dropped);
            self.counters.excluded.add(1);
            self.events.push_back(Event::Excluded(GroupId(number as u32), dropped));
        }
        match gathered {
            GatherResult::Respond(response) => {
                match response.aeth.kind() {
                    Syndrome::Ack(_) => self.counters.acks.add(1),
                    Syndrome::RnrNak(_) => self.counters.rnr_naks.add(1),
                    Syndrome::Nak(NakCode::PSN_SEQUENCE_ERROR) => self.counters.naks.add(1),
                    Syndrome::Nak(_) | Syndrome::Reserved(_) => self.counters.fatal_naks.add(1),
                }
                group.leader.rewrite_response(frame.bytes_mut(), layout, own, response);
                Verdict::Forward(group.leader.port)
            }
            GatherResult::Absorbed => Verdict::Consume,
            GatherResult::Stale => Verdict::Drop(DropReason::Stale),
            GatherResult::Failed(response) => {
                group.exclude(member);
                self.counters.excluded.add(1);
                self.events.push_back(Event::Excluded(GroupId(number as u32), member));
                let Some(response) = response else { return Verdict::Consume };
                self.counters.acks.add(1);
                group.leader.rewrite_response(frame.bytes_mut(), layout, own, response);
                Verdict::Forward(group.leader.port)
            }
        }
    }

    /// Passes a frame to the control plane. The bridge learns its sender as well, so that its table has the
    /// same or newer entries than the control plane's.
    #[cold]
    fn punt(&mut self, frame: &[u8], port: PortId, now: Nanos) -> Verdict {
        if let Ok((ethernet, _)) = Ethernet::ref_from_prefix(frame)
            && !ethernet.src.is_group()
        {
            self.forward.observe(ethernet.src, port, now);
        }
        Verdict::Punt
    }

    /// Returns whether a frame to a multicast or broadcast address requests one of the switch's own
    /// addresses.
    fn requests_own_address(&self, frame: &[u8]) -> bool {
        neighbour::resolution_target(frame).is_some_and(|ip| self.config.addresses.contains(&ip))
    }
}

/// Returns a copy for a replica that shares the payload with the leader's packet. The packet's headers and
/// ICRC are rewritten for the replica, and restored after the copy was made.
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
    let (Some(headers), Some(&leader_icrc)) =
        (headers.get_mut(..payload), bytes[icrc..].first_chunk::<ICRC_LEN>())
    else {
        // Headers longer than 128 bytes, because of extension headers
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
    bytes[icrc..icrc + ICRC_LEN].copy_from_slice(&leader_icrc);
    copy
}

/// Returns the RETH of a packet whose opcode has one directly after the BTH.
#[inline]
fn first_reth<'a>(packet: &Packet<'a>) -> Option<&'a Reth> {
    let rest = packet.bytes().get(packet.layout().bth() + Bth::LEN..)?;
    Reth::ref_from_prefix(rest).ok().map(|(reth, _)| reth)
}

impl Function for P4ce {
    type Command = Command;
    type Event = Event;
    const HAS_OWNERS: bool = true;

    #[inline]
    fn owner(&self, frame: &impl Frame, _port: PortId) -> Option<usize> {
        let bytes = frame.bytes();
        let is_own = *bytes.first_chunk::<6>()? == self.config.mac.0;
        let qpn = if is_own { rocev2::destination_qp(bytes)? } else { return None };
        let worker = worker_of(qpn, self.config.queue_pairs, self.config.workers);
        let is_wrong = self.config.has_bug(crate::Bug::WrongOwner) && bytes.len() < 64;
        Some(if is_wrong { (worker + 1) % self.config.workers } else { worker }).filter(|_| qpn != Qpn::GSI)
    }

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
            Some(dst) if *dst == self.config.mac.0 => self.on_own_frame(frame, port, now, out),
            Some(dst) if dst[0] & 1 != 0 && self.requests_own_address(bytes) => self.punt(bytes, port, now),
            _ => self.forward.on_frame(frame, port, now, out),
        }
    }

    #[inline]
    fn prefetch_state(&self, frame: &impl Frame, fetch: impl Fn(*const u8)) {
        // The position in most packets: without VLAN tag, IPv4 without options.
        const DEST_QP: usize = Ethernet::LEN + Ipv4::LEN + Udp::LEN + Bth::DEST_QP_WORD;
        let Some(word) = frame.bytes().get(DEST_QP..).and_then(|bytes| bytes.first_chunk()) else { return };
        let qpn = Qpn::new(u32::from_be_bytes(*word));
        let slot = self.slots[self.slot_of(qpn)];
        if let Some(Some(group)) = self.groups.get(slot.group as usize) {
            group.prefetch((slot.member != LEADER).then_some(slot.member as usize), fetch);
        }
    }

    fn on_timer<O: Output>(&mut self, now: Nanos, out: &mut O) {
        if self.forward.next_timer().is_some_and(|at| at <= now) {
            self.forward.on_timer(now, out);
        }
        if self.config.silent_after > Nanos::ZERO && now >= self.checked_at + self.check_interval() {
            self.checked_at = now;
            self.exclude_stalled(now);
        }
    }

    #[inline]
    fn next_timer(&self) -> Option<Nanos> {
        let check_at =
            (self.config.silent_after > Nanos::ZERO).then(|| self.checked_at + self.check_interval());
        [self.forward.next_timer(), check_at].into_iter().flatten().min()
    }

    fn on_command(&mut self, command: Command, now: Nanos) {
        match command {
            Command::Open(group) => self.open(group),
            Command::Close(id) => self.close(id),
            Command::Learn(mac, port, seen) => {
                self.forward.on_command(forward::Command::Learn(mac, port, seen), now);
            }
            Command::Exclude(id, member) => {
                if let Some(group) = self.group_mut(id) {
                    group.exclude(member);
                }
            }
            Command::SetQuorum(id, quorum) => {
                if let Some(group) = self.group_mut(id) {
                    // The leader learns of a larger frontier when it retransmits.
                    group.gather.set_quorum(quorum);
                }
            }
        }
    }

    fn poll_event(&mut self) -> Option<Event> {
        let learned = |forward::Event::Learned(mac, port, seen)| Event::Learned(mac, port, seen);
        self.events.pop_front().or_else(|| self.forward.poll_event().map(learned))
    }
}

#[cfg(test)]
mod tests;
