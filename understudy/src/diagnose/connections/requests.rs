//! Requests of one queue pair, and the responses to them, as seen at one point between the two hosts. Uses the
//! same memory for any number of packets.

mod finish;

use super::copies::{Copies, Pair};
use super::holes::{Hole, Holes};
use super::reads::{Reads, span};
use crate::diagnose::finding::{Detail, Event, Kind};
use crate::diagnose::packet::{Access, Observed, Sight};
use rocev2::aeth::{NakCode, Syndrome};
use rocev2::{Opcode, Psn};

/// Packets that are remembered by their PSN
const MAX_RECENT: usize = 64;
/// Requests whose R_Key and address are remembered
const MAX_ACCESSES: usize = 8;
/// Distance of PSNs beyond which a packet belongs to another connection with the same queue pair
const MAX_JUMP: u32 = 1 << 16;
/// Time within which a missing packet that arrives without a NAK was reordered rather than retransmitted
const REORDER_NS: u64 = 200_000;
/// Time after which a response is overdue; the longest usual ACK time-outs are shorter
pub(super) const OVERDUE_NS: u64 = 1_000_000_000;
/// Smallest path MTU, in bytes
const MIN_MTU: u32 = 256;

/// A packet that was seen lately.
#[derive(Clone, Copy, Debug)]
struct Recent {
    psn: Psn,
    sight: Sight,
    icrc: Option<u32>,
    link: u16,
    opcode: Opcode,
}

/// Packets that were seen lately, each in the slot of its PSN.
#[derive(Clone, Debug)]
struct RecentPackets([Option<Recent>; MAX_RECENT]);

impl Default for RecentPackets {
    fn default() -> Self {
        Self([None; MAX_RECENT])
    }
}

/// A request with an R_Key.
#[derive(Clone, Copy, Debug)]
struct Keyed {
    psn: Psn,
    sight: Sight,
    opcode: Opcode,
    access: Access,
}

/// An outstanding NAK.
#[derive(Clone, Copy, Debug)]
struct Nak {
    psn: Psn,
    sight: Sight,
    rnr: bool,
}

/// Consecutive retransmissions that begin with the same packet.
#[derive(Clone, Copy, Debug, Default)]
struct Stuck {
    psn: Psn,
    times: u32,
    payload_len: u32,
    /// Whether only a response with the packet's PSN acknowledges it: it is a READ or an atomic
    exact: bool,
    /// Whether the packet was acknowledged since it was sent last
    answered: bool,
}

/// A retransmission without a visible cause.
#[derive(Clone, Copy, Debug)]
struct Doubt {
    psn: Psn,
    /// First and second sight of the packet
    sights: [Sight; 2],
    /// Responses since the packet was sent first, and count of times that it was sent
    answers: u32,
    sent: u32,
}

/// What the responder was seen to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Responder {
    #[default]
    Silent,
    Responding,
    /// A NAK has ended the connection
    Refusing,
}

/// Requests to one queue pair.
#[derive(Clone, Debug, Default)]
pub(crate) struct Requests {
    started: bool,
    acknowledged: bool,
    interface: u32,
    /// PSN behind the last new packet
    next: Psn,
    /// Count of PSNs behind `next` that the last READ may take as well
    uncertain: u32,
    /// Next PSN of a retransmission in progress
    run: Option<Psn>,
    holes: Holes,
    reads: Reads,
    recent: RecentPackets,
    accesses: [Option<Keyed>; MAX_ACCESSES],
    /// Latest PSN that the responder has acknowledged, and the response that did
    acked: Option<(Psn, Sight)>,
    responder: Responder,
    nak: Option<Nak>,
    /// The latest NAK or RNR NAK, whether or not it was heeded
    last_nak: Option<Sight>,
    /// First PSN of which a response was found missing
    unresponded: Option<Psn>,
    stuck: Stuck,
    /// The latest retransmission without a visible cause
    doubt: Option<Doubt>,
    /// Retransmissions without a visible cause, and the first of them
    timeouts: u64,
    first_timeouts: [Option<Sight>; 2],
    /// Oldest request that waits for a response
    waiting: Option<Sight>,
    first: Sight,
    packets: u64,
    repeated: u64,
    retries: u64,
    most_times: u32,
    reordered: u64,
    first_reordered: Sight,
    /// Path MTU: the payload of packets that are neither the last nor the only ones; 0 if not known
    mtu: u32,
    /// Path MTU that the communication manager agreed on; 0 if not known
    agreed_mtu: u32,
    /// Longest payload since everything was acknowledged, and the longest acknowledged
    pending_len: u32,
    answered_len: u32,
}

/// Receiver of events.
pub(crate) trait Sink: FnMut(Event) {}
impl<T: FnMut(Event)> Sink for T {}

impl Requests {
    /// Begins a connection whose first PSN and path MTU are known.
    pub(crate) fn connect(&mut self, first: Psn, mtu: u32) {
        *self = Self { started: true, next: first, agreed_mtu: mtu, ..Self::default() };
    }

    /// Returns whether any request was seen.
    pub(crate) fn is_active(&self) -> bool {
        self.packets > 0
    }

    /// Returns how far behind the newest request a response with this PSN is, if it can be one to it.
    pub(crate) fn age(&self, psn: Psn) -> Option<u32> {
        let age = self.next.add(self.uncertain).distance(psn);
        (self.packets > 0 && (1..8192).contains(&age)).then_some(age as u32)
    }

    /// Path MTU as used, in bytes; 0 if not known
    pub(crate) fn mtu(&self) -> u32 {
        self.mtu
    }

    fn likely_mtu(&self) -> u32 {
        match (self.mtu, self.agreed_mtu) {
            (0, 0) => MIN_MTU,
            (0, agreed) => agreed,
            (seen, _) => seen,
        }
    }

    fn recent(&self, psn: Psn) -> Option<&Recent> {
        self.recent.0[psn.get() as usize % MAX_RECENT].as_ref().filter(|recent| recent.psn == psn)
    }

    /// Returns whether a packet was seen before at another place, or twice at this one, although it was sent
    /// once.
    fn is_copy(&self, p: &Observed, seen: bool, copies: &Copies) -> bool {
        if p.interface != self.interface {
            return seen;
        }
        let recent = self.recent(p.psn).filter(|recent| p.icrc.is_some() && recent.icrc == p.icrc);
        let pair = |recent: &Recent| Pair {
            ns: p.sight.since(recent.sight),
            same_link: recent.link == p.link,
            // Also packets behind the one that the NAK names are sent again.
            nak: self.last_nak.is_some_and(|nak| nak.time_ns >= recent.sight.time_ns),
            only_timeout: copies.is_answered() && !p.needs_response(),
        };
        recent.is_some_and(|recent| copies.are_likely(pair(recent)))
    }

    /// Takes a request. Returns false if it is a copy of one that was seen before.
    pub(crate) fn request(
        &mut self,
        p: &Observed,
        acknowledged: bool,
        copies: &Copies,
        mut sink: impl Sink,
    ) -> bool {
        let ahead = p.psn.distance(self.next);
        if !self.started || ahead.unsigned_abs() > MAX_JUMP {
            let known = (self.mtu, self.agreed_mtu);
            self.connect(p.psn, known.1);
        } else if self.packets > 0 && self.is_copy(p, ahead < 0, copies) {
            return false;
        }
        if self.packets == 0 {
            self.first = p.sight;
        }
        (self.interface, self.acknowledged) = (p.interface, acknowledged);
        self.packets += 1;
        self.check_length(p, &mut sink);
        let ahead = p.psn.distance(self.next);
        if ahead >= 0 {
            self.advance(p, ahead as u32, &mut sink);
        } else {
            self.repeat(p, &mut sink);
        }
        self.remember(p, ahead >= 0);
        true
    }

    /// Returns the least count of PSNs that a request takes.
    fn least_span(&self, p: &Observed) -> u32 {
        match p.access.filter(|_| p.opcode == Opcode::RC_READ_REQUEST) {
            Some(access) if self.mtu > 0 || self.agreed_mtu > 0 => span(access.len, self.likely_mtu()),
            _ => 1,
        }
    }

    fn advance(&mut self, p: &Observed, ahead: u32, sink: &mut impl Sink) {
        if let Some(run) = self.run.take() {
            self.skip(run, self.next, p.sight, true, sink);
        }
        if ahead > self.uncertain {
            self.skip(self.next, p.psn, p.sight, false, sink);
        }
        let least = self.least_span(p);
        self.next = p.psn.add(least);
        let most = p.access.filter(|_| p.opcode == Opcode::RC_READ_REQUEST);
        let most = most.map_or(1, |access| span(access.len, MIN_MTU));
        self.uncertain = if least > 1 { 0 } else { most.saturating_sub(least) };
        self.pending_len = self.pending_len.max(p.payload_len);
    }

    /// Notes that the PSNs from `from` up to `to` were not seen.
    fn skip(&mut self, from: Psn, to: Psn, at: Sight, again: bool, sink: &mut impl Sink) {
        let len = to.distance(from);
        // In a retransmission, the requester skips what was acknowledged meanwhile.
        let acked = |acked: Psn| again && acked.distance(to) >= -1;
        if len <= 0 || self.acked.is_some_and(|(psn, _)| acked(psn)) {
            return;
        }
        let hole = Hole { from, len: len as u32, at, reported: false, again };
        if let Some(old) = self.holes.add(hole) {
            report_missing(&old, sink);
        }
    }

    fn repeat(&mut self, p: &Observed, sink: &mut impl Sink) {
        let span = self.least_span(p);
        let ahead = self.run.map(|run| p.psn.distance(run));
        if let Some(ahead @ 0..64) = ahead {
            if let Some(run) = self.run.filter(|_| ahead > 0) {
                self.skip(run, p.psn, p.sight, true, sink);
            }
            if let Some(hole) = self.holes.find(p.psn).filter(|hole| !hole.reported && !hole.again) {
                hole.reported = true;
                let detail = Detail::Psns { from: hole.from, len: hole.len };
                sink(Event::new(Kind::RequestLostBefore, hole.len.into(), hole.at, detail).and(p.sight));
            } else if self.holes.find(p.psn).is_none() {
                self.repeated += 1;
            }
        } else if let Some(hole) = self.holes.find(p.psn).copied() {
            if !self.fills(&hole, p, sink) {
                self.holes.fill(p.psn, span);
                return;
            }
        } else if self.acknowledged {
            self.retry(p, sink);
        } else {
            // UC never retransmits: the network or the capture has duplicated the packet.
            return;
        }
        self.holes.fill(p.psn, span);
        self.run = Some(p.psn.add(span));
    }

    /// Takes a packet that was missing, outside of a retransmission. Returns whether one begins with it.
    fn fills(&mut self, hole: &Hole, p: &Observed, sink: &mut impl Sink) -> bool {
        if hole.reported {
            self.begin_retry(p);
            return true;
        }
        let late = p.sight.since(hole.at);
        if !self.acknowledged || late <= REORDER_NS {
            if late > 0 && !hole.again {
                self.first_reordered = if self.reordered == 0 { p.sight } else { self.first_reordered };
                self.reordered += 1;
            }
            return false;
        }
        let detail = Detail::Psns { from: hole.from, len: hole.len };
        sink(Event::new(Kind::RequestLostBefore, hole.len.into(), hole.at, detail).and(p.sight));
        self.begin_retry(p);
        true
    }

    fn begin_retry(&mut self, p: &Observed) {
        self.retries += 1;
        self.nak = None;
        self.unresponded = None;
        self.holes.begin_again();
        if self.stuck.psn == p.psn && self.stuck.times > 0 && !self.stuck.answered {
            self.stuck.times += 1;
        } else {
            self.stuck = Stuck {
                psn: p.psn,
                times: 1,
                payload_len: p.payload_len,
                exact: p.needs_response(),
                answered: false,
            };
        }
        self.most_times = self.most_times.max(self.stuck.times);
    }

    /// Takes the first packet of a retransmission of packets that were seen, and finds its cause.
    fn retry(&mut self, p: &Observed, sink: &mut impl Sink) {
        self.repeated += 1;
        let waits_longer = self.stuck.times > 0 && self.stuck.psn == p.psn && !self.stuck.answered;
        let acked = self.acked.filter(|(psn, _)| psn.distance(p.psn) >= 0 && !waits_longer);
        let acked = acked.filter(|_| !(p.needs_response() && self.reads.awaits(p.psn)));
        let by_nak = self.nak.is_some();
        let by_missing = self.unresponded.is_some_and(|psn| psn.distance(p.psn) >= 0);
        if by_nak || by_missing || self.responder == Responder::Refusing {
            // The cause is reported already.
        } else if let Some((_, response)) = acked {
            let detail = Detail::Psns { from: p.psn, len: 1 };
            sink(Event::new(Kind::ResponseLostBehind, 1, response, detail).and(p.sight));
        } else {
            self.time_out(p);
        }
        self.begin_retry(p);
    }

    /// Takes a packet that is sent again although neither a response nor a NAK was seen.
    fn time_out(&mut self, p: &Observed) {
        if let Some(doubt) = self.doubt.as_mut().filter(|doubt| doubt.psn == p.psn && doubt.answers == 0) {
            doubt.sent += 1;
            return;
        }
        self.settle();
        let first = self.sight_of(p.psn).unwrap_or(p.sight);
        self.doubt = Some(Doubt { psn: p.psn, sights: [first, p.sight], answers: 0, sent: 2 });
    }

    /// Counts the latest retransmission without a visible cause, of which no more can be found out.
    fn settle(&mut self) {
        let Some(doubt) = self.doubt.take() else { return };
        self.timeouts += u64::from(doubt.sent) - 1;
        for (slot, sight) in self.first_timeouts.iter_mut().filter(|slot| slot.is_none()).zip(doubt.sights) {
            *slot = Some(sight);
        }
    }

    /// Takes a response to a packet that was sent again. As many responses as packets mean that nothing was
    /// lost.
    fn resolve(&mut self, p: &Observed, sink: &mut impl Sink) {
        let Some(doubt) = self.doubt.as_mut().filter(|doubt| doubt.psn == p.psn) else { return };
        doubt.answers += u32::from(p.ends_response());
        if doubt.answers >= doubt.sent {
            let count = u64::from(doubt.sent) - 1;
            sink(Event::new(Kind::EarlyRetransmission, count, doubt.sights[1], Detail::None).and(p.sight));
            self.doubt = None;
        }
    }

    fn remember(&mut self, p: &Observed, new: bool) {
        let slot = &mut self.recent.0[p.psn.get() as usize % MAX_RECENT];
        // A retransmission from far back does not displace what was sent last.
        let is_newer =
            |old: Recent| p.psn.precedes(old.psn) && self.next.distance(old.psn) <= MAX_RECENT as i32;
        if !slot.is_some_and(is_newer) {
            *slot = Some(Recent { psn: p.psn, sight: p.sight, icrc: p.icrc, link: p.link, opcode: p.opcode });
        }
        if let Some(access) = p.access {
            let known = self.accesses.iter_mut().flatten().find(|keyed| keyed.psn == p.psn);
            if let Some(keyed) = known {
                keyed.sight = p.sight;
            } else {
                self.accesses.rotate_left(1);
                let keyed = Keyed { psn: p.psn, sight: p.sight, opcode: p.opcode, access };
                self.accesses[MAX_ACCESSES - 1] = Some(keyed);
            }
        }
        if p.needs_response() {
            let bytes = if p.opcode == Opcode::RC_READ_REQUEST { p.access.map_or(0, |a| a.len) } else { 0 };
            self.reads.request(p.psn, bytes, new);
        }
        if self.acknowledged && (p.ack_req || p.needs_response()) {
            self.waiting = self.waiting.or(Some(p.sight));
        }
    }

    /// Compares the payload's length with the path MTU. Responses to READs of the other end are checked here,
    /// too.
    pub(crate) fn check_length(&mut self, p: &Observed, sink: &mut impl Sink) {
        if p.fills_mtu() && self.mtu == 0 {
            self.mtu = p.payload_len;
        }
        let limit = match (self.mtu, self.agreed_mtu) {
            (0, limit) | (limit, 0) => limit,
            (seen, agreed) => seen.min(agreed),
        };
        let wrong = p.fills_mtu() && !(p.payload_len.is_power_of_two() && p.payload_len >= MIN_MTU);
        if wrong || (limit > 0 && (p.payload_len > limit || (p.fills_mtu() && p.payload_len < self.mtu))) {
            let detail = Detail::Mtu { seen: p.payload_len, expected: limit };
            sink(Event::new(Kind::MtuExceeded, 1, p.sight, detail));
        }
    }

    /// Takes a response.
    pub(crate) fn answer(&mut self, p: &Observed, mut sink: impl Sink) {
        if !self.started || p.psn.distance(self.next).unsigned_abs() > MAX_JUMP {
            return;
        }
        if self.responder == Responder::Silent {
            self.responder = Responder::Responding;
        }
        match p.syndrome() {
            None | Some(Syndrome::Ack(_) | Syndrome::Reserved(_)) => {
                let of_read = p.opcode != Opcode::RC_ACKNOWLEDGE;
                if of_read {
                    self.learn_span(p);
                }
                self.resolve(p, &mut sink);
                self.acknowledge(p.psn, of_read, p, &mut sink);
            }
            Some(Syndrome::RnrNak(timer)) => {
                self.acknowledge(p.psn.sub(1), false, p, &mut sink);
                let detail = Detail::Rnr { psn: p.psn, us: timer.microseconds() };
                let event = Event::new(Kind::RnrNak, 1, self.sight_of(p.psn).unwrap_or(p.sight), detail);
                sink(event.and(p.sight));
                self.last_nak = Some(p.sight);
                self.nak = Some(Nak { psn: p.psn, sight: p.sight, rnr: true });
                self.stuck.answered |= self.stuck.psn == p.psn;
            }
            Some(Syndrome::Nak(NakCode::PSN_SEQUENCE_ERROR)) => self.sequence_error(p, &mut sink),
            Some(Syndrome::Nak(code)) => self.refuse(p, code, &mut sink),
        }
    }

    /// Learns from a response which PSNs the last READ takes, if its path MTU was not known.
    fn learn_span(&mut self, p: &Observed) {
        let beyond = p.psn.distance(self.next);
        if (0..self.uncertain as i32).contains(&beyond) {
            self.next = p.psn.add(1);
            self.uncertain -= beyond as u32 + 1;
        }
        if p.ends_response() && self.next.distance(p.psn) == 1 {
            self.uncertain = 0;
        }
    }

    fn sight_of(&self, psn: Psn) -> Option<Sight> {
        self.recent(psn).map(|recent| recent.sight)
    }

    fn acknowledge(&mut self, psn: Psn, of_read: bool, p: &Observed, sink: &mut impl Sink) {
        if let Some((first, len)) = self.reads.response(psn, of_read, p.ends_response(), self.likely_mtu()) {
            self.unresponded = Some(first);
            let detail = Detail::Psns { from: first, len };
            sink(Event::new(Kind::ResponseLostBefore, len.into(), p.sight, detail));
        }
        if self.acked.is_none_or(|(acked, _)| psn.distance(acked) >= 0) {
            self.acked = Some((psn, p.sight));
        }
        let behind = psn.distance(self.stuck.psn);
        self.stuck.answered |= self.stuck.times > 0 && (behind == 0 || (behind > 0 && !self.stuck.exact));
        self.nak = self.nak.filter(|nak| nak.psn.distance(psn) > 0);
        self.holes.acknowledge(psn, |hole| {
            if !hole.reported && !hole.again {
                let detail = Detail::Psns { from: hole.from, len: hole.len };
                sink(Event::new(Kind::CaptureLost, hole.len.into(), hole.at, detail).and(p.sight));
            }
        });
        if self.next.distance(psn) <= 1 {
            self.answered_len = self.answered_len.max(self.pending_len);
            self.pending_len = 0;
            self.waiting = None;
        } else if self.waiting.is_some() {
            self.waiting = Some(p.sight);
        }
    }

    /// Takes a NAK that reports a missing packet.
    fn sequence_error(&mut self, p: &Observed, sink: &mut impl Sink) {
        // A NAK that repeats the last one, before anything was retransmitted
        if self.nak.is_some_and(|nak| nak.psn == p.psn) {
            return;
        }
        self.acknowledge(p.psn.sub(1), false, p, sink);
        if let Some(hole) = self.holes.find(p.psn) {
            if !hole.reported {
                hole.reported = true;
                let detail = Detail::Psns { from: hole.from, len: hole.len };
                sink(Event::new(Kind::RequestLostBefore, hole.len.into(), hole.at, detail).and(p.sight));
            }
        } else if p.psn.precedes(self.next) {
            let detail = Detail::Psns { from: p.psn, len: 1 };
            let seen = self.sight_of(p.psn);
            // Within so few packets, it would be remembered. Before it was a READ of unknown length.
            let unseen = seen.is_none() && self.next.distance(p.psn) <= MAX_RECENT as i32;
            let kind = if unseen { Kind::RequestLostBefore } else { Kind::RequestLostBehind };
            sink(Event::new(kind, 1, seen.unwrap_or(p.sight), detail).and(p.sight));
        }
        self.last_nak = Some(p.sight);
        self.nak = Some(Nak { psn: p.psn, sight: p.sight, rnr: false });
        self.stuck.answered |= self.stuck.psn == p.psn;
    }

    /// Takes a NAK that ends the connection.
    fn refuse(&mut self, p: &Observed, code: NakCode, sink: &mut impl Sink) {
        // A responder may repeat it.
        if self.responder == Responder::Refusing {
            return;
        }
        self.acknowledge(p.psn.sub(1), false, p, sink);
        // Middle and Last packets of a WRITE belong to the key of its First; SENDs have none.
        let seen = self.recent(p.psn).map(|recent| recent.opcode);
        let has_key =
            seen.is_none_or(|opcode| (Opcode::RC_WRITE_FIRST.0..=Opcode::RC_FETCH_ADD.0).contains(&opcode.0));
        let before = |keyed: &&Keyed| has_key && p.psn.distance(keyed.psn) >= 0;
        let keyed =
            self.accesses.iter().flatten().filter(before).min_by_key(|keyed| p.psn.distance(keyed.psn));
        let detail = Detail::Refused {
            psn: p.psn,
            opcode: keyed.map(|keyed| keyed.opcode).or(seen),
            access: keyed.map(|keyed| keyed.access),
            code: code.0,
        };
        let request = self.sight_of(p.psn).or(keyed.map(|keyed| keyed.sight)).unwrap_or(p.sight);
        sink(Event::new(kind_of(code), 1, request, detail).and(p.sight));
        (self.responder, self.waiting, self.nak) = (Responder::Refusing, None, None);
    }
}

/// Returns the kind of a NAK that ends the connection.
pub(super) fn kind_of(code: NakCode) -> Kind {
    match code {
        NakCode::PSN_SEQUENCE_ERROR => Kind::SequenceError,
        NakCode::INVALID_REQUEST => Kind::InvalidRequest,
        NakCode::REMOTE_ACCESS_ERROR => Kind::AccessError,
        NakCode::REMOTE_OPERATIONAL_ERROR => Kind::OperationalError,
        _ => Kind::OtherNak,
    }
}

/// Reports a hole that was neither filled nor acknowledged.
fn report_missing(hole: &Hole, sink: &mut impl Sink) {
    if !hole.reported && !hole.again {
        let detail = Detail::Psns { from: hole.from, len: hole.len };
        sink(Event::new(Kind::Missing, hole.len.into(), hole.at, detail));
    }
}
