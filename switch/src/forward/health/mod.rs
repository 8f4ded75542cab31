//! Health of queue pairs, as seen between the hosts: gaps, retransmissions, NAKs, congestion, round-trip times.
//!
//! A request that is the next of its sequence, which is what most packets are, costs a comparison with the
//! expected PSN in the queue pair's cache line. `Monitor::judge` handles everything else.
//!
//! A packet belongs to its destination queue pair. Requests to a queue pair have one sequence of PSNs, responses
//! to it another. Which queue pair sends them is not in the packets: `pairs` finds it out, for round-trip times.

mod pairs;
mod requests;

use super::counters::Counters;
use super::queue_pairs::{NONE, QpIndex, QueuePair, SEARCHED, source};
use crate::counters::{Counter, Gauge, Maximum};
use crate::metrics;
use crate::metrics::{Metric, Metrics as _, concat};
use crate::table::Salt;
use crate::{Nanos, PortId};
use core::sync::atomic::Ordering;
use pairs::{Exchanges, Matches};
use requests::{Findings, Request, Requests};
use rocev2::aeth::{NakCode, Syndrome};
use rocev2::{Layout, Opcode, Packet, Psn, Qpn};

metrics! {
    /// Health of the packets received on a port, or of those to a queue pair.
    #[derive(Debug, Default)]
    pub struct Health {
        /// Requests and READ responses missing when a later one arrived: lost before this point, or late
        pub psn_gaps: Counter [packets],
        /// Requests that arrived late without being sent again, each of which was a gap before
        pub reordered: Counter [packets],
        /// Requests and READ responses sent again
        pub retransmitted: Counter [packets],
        /// NAKs for a PSN sequence error: a packet was lost on the way to the responder
        pub nak_sequence: Counter [packets],
        /// NAKs for an invalid request
        pub nak_invalid_request: Counter [packets],
        /// NAKs for a remote access error: the R_Key does not permit the access
        pub nak_remote_access: Counter [packets],
        /// NAKs for a remote operational error
        pub nak_remote_operational: Counter [packets],
        /// NAKs for an invalid RD request
        pub nak_invalid_rd: Counter [packets],
        /// NAKs with a reserved code
        pub nak_other: Counter [packets],
        /// RNR NAKs: the responder had no receive buffer
        pub nak_rnr: Counter [packets],
        /// Packets marked as Congestion Experienced
        pub ce_marks: Counter [packets],
        /// Congestion notification packets
        pub cnps_seen: Counter [packets],
    }
    also {
        /// Gaps, retransmissions, NAKs and RNR NAKs together
        Counter faults [packets] = Health::faults
    }
}

metrics! {
    /// Round-trip times from here to a queue pair and back.
    #[derive(Debug, Default)]
    pub struct RoundTrips {
        /// Round trips from here to the queue pair and back that were measured
        pub samples: Counter [round_trips as rtt_samples],
        /// Smoothed round-trip time from here to the queue pair and back, until the response is here
        pub smoothed: Gauge [nanoseconds as rtt_ns],
        /// Longest round-trip time
        pub longest: Maximum [nanoseconds as rtt_max_ns],
    }
}

/// Health of one queue pair.
#[derive(Debug, Default)]
pub struct QpHealth {
    /// Health of the packets to the queue pair
    pub packets: Health,
    /// Round-trip times of requests to the queue pair
    pub round_trips: RoundTrips,
}

impl QpHealth {
    /// Metrics of a queue pair's health
    pub(super) const FIELDS: [&'static [Metric];
        Health::GROUP.fields.len() + RoundTrips::GROUP.fields.len()] =
        concat(Health::GROUP.fields, RoundTrips::GROUP.fields);
}

impl Health {
    /// Returns the count of gaps, retransmissions, NAKs and RNR NAKs together.
    pub fn faults(&self) -> u64 {
        let naks = [
            &self.nak_sequence,
            &self.nak_invalid_request,
            &self.nak_remote_access,
            &self.nak_remote_operational,
            &self.nak_invalid_rd,
            &self.nak_other,
            &self.nak_rnr,
        ];
        let others = self.psn_gaps.get() + self.retransmitted.get();
        others + naks.into_iter().map(Counter::get).sum::<u64>()
    }

    fn count(&self, found: Findings) {
        self.psn_gaps.add(found.gap.into());
        self.reordered.add(found.reordered.into());
        self.retransmitted.add(found.retransmitted.into());
    }

    fn count_nak(&self, syndrome: Syndrome) {
        match syndrome {
            Syndrome::RnrNak(_) => &self.nak_rnr,
            Syndrome::Nak(NakCode::PSN_SEQUENCE_ERROR) => &self.nak_sequence,
            Syndrome::Nak(NakCode::INVALID_REQUEST) => &self.nak_invalid_request,
            Syndrome::Nak(NakCode::REMOTE_ACCESS_ERROR) => &self.nak_remote_access,
            Syndrome::Nak(NakCode::REMOTE_OPERATIONAL_ERROR) => &self.nak_remote_operational,
            Syndrome::Nak(NakCode::INVALID_RD_REQUEST) => &self.nak_invalid_rd,
            Syndrome::Nak(_) => &self.nak_other,
            Syndrome::Ack(_) | Syndrome::Reserved(_) => return,
        }
        .add(1);
    }
}

/// Part of a packet in its connection.
mod class {
    /// Request of RC that takes one PSN
    pub(super) const REQUEST: u8 = 0;
    pub(super) const UC_REQUEST: u8 = 1;
    pub(super) const READ: u8 = 2;
    pub(super) const ACK: u8 = 3;
    /// Response to a READ or an atomic
    pub(super) const RESPONSE: u8 = 4;
    pub(super) const CNP: u8 = 5;
    /// Datagrams, whose PSNs mean nothing
    pub(super) const OTHER: u8 = 6;
}

/// Class of each opcode
static CLASSES: [u8; 256] = {
    let mut classes = [class::OTHER; 256];
    let mut opcode = 0;
    while opcode < 0x40 {
        classes[opcode] = match opcode {
            0x0c => class::READ,
            0x11 => class::ACK,
            0x0d..=0x12 => class::RESPONSE,
            0..=0x1f => class::REQUEST,
            _ => class::UC_REQUEST,
        };
        opcode += 1;
    }
    classes[Opcode::CNP.0 as usize] = class::CNP;
    classes
};

/// Position of a packet in its connection: its PSN in the upper 24 bits, where an addition wraps as PSNs do, and its
/// class in the lower 8. No position is [`NONE`].
#[derive(Clone, Copy, Debug)]
struct Position(u32);

impl Position {
    const fn new(psn: Psn, class: u8) -> Self {
        Self(psn.get() << 8 | class as u32)
    }

    const fn psn(self) -> Psn {
        Psn::new(self.0 >> 8)
    }

    const fn class(self) -> u8 {
        self.0 as u8
    }

    /// Returns the position of the next packet of the same class.
    const fn next(self) -> Self {
        Self(self.0.wrapping_add(1 << 8))
    }
}

/// Returns the PSN of an [expected](QueuePair::expected) position.
pub(super) const fn expected_psn(expected: u32) -> u32 {
    Position(expected).psn().get()
}

/// Distance of PSNs beyond which a packet belongs to another connection with the same queue pair
pub(super) const MAX_JUMP: u32 = 1 << 16;
/// ECN field of a packet that passed a congested queue (RFC 3168)
const CE: u8 = 3;
/// Mark of the latest response: its message has further packets
const GOES_ON: u32 = 1 << 24;
/// Time between two round trips that a worker begins to measure. A cache miss for each, at tens of thousands of
/// queue pairs, is what limits them
const SAMPLE_EVERY: Nanos = Nanos::from_micros(50);
/// Time between the first [`FIRST_SAMPLES`] round trips, by which most queue pairs find their other end
const FIRST_SAMPLES_EVERY: Nanos = Nanos::from_micros(10);
const FIRST_SAMPLES: u32 = 4096;
/// Time after which a response is no longer waited for
const SAMPLE_TIMEOUT: Nanos = Nanos::from_secs(1);

/// Bugs that a test can plant, to check that the test suites find them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// A packet that is sent again is the newest
    GoesBack,
    /// The round trip of a packet that is sent again is measured from the first transmission
    KeepsSample,
}

impl Bug {
    /// Every bug.
    pub const ALL: [Self; 2] = [Self::GoesBack, Self::KeepsSample];
}

/// Where and when a packet was received, and the tables that it may change.
pub(super) struct Place<'a> {
    pub(super) qps: &'a mut QpIndex,
    pub(super) counters: &'a Counters,
    pub(super) port: PortId,
    pub(super) now: Nanos,
}

/// Returns the position of a packet, and the syndrome if it is an acknowledgement.
#[expect(clippy::inline_always, reason = "part of `Forward::count`")]
#[inline(always)]
fn position_of(packet: &Packet<'_>) -> (Position, u8) {
    let [_, _, psn, aeth] = packet.transport_words();
    let class = CLASSES[usize::from(packet.layout().opcode().0)];
    (Position(psn << 8 | u32::from(class)), (aeth >> 24) as u8)
}

/// Returns whether a requester asks for an acknowledgement. Not inlined, so that the bit is read only while a round
/// trip is due.
#[cold]
#[inline(never)]
fn asks_for_ack(frame: &[u8], layout: Layout) -> bool {
    Packet::new(frame, layout).bth().ack_req()
}

/// What one worker knows of a queue pair beside its counters.
#[derive(Clone, Debug)]
struct State {
    requests: Requests,
    /// Host that sends to the queue pair
    src: [u64; 2],
    /// Queue pair that may be at the other end, and the count of responses that say so
    candidate: (u32, u32),
}

/// Observes the packets that one worker receives.
pub(super) struct Monitor {
    states: Box<[State]>,
    matches: Matches,
    exchanges: Exchanges,
    /// Time of the next round trip to be measured
    sample_due: Nanos,
    /// Round trips that are still measured at the first rate
    first_samples: u32,
    bug: Option<Bug>,
}

impl Monitor {
    pub(super) fn new(queue_pairs: usize) -> Self {
        let state = State { requests: Requests::new(), src: [0; 2], candidate: (NONE, 0) };
        Self {
            states: vec![state; queue_pairs].into(),
            matches: Matches::new(),
            exchanges: Exchanges::new(),
            sample_due: Nanos::ZERO,
            first_samples: FIRST_SAMPLES,
            bug: None,
        }
    }

    /// Returns the memory for `queue_pairs` queue pairs, with their counters, in bytes.
    pub(super) fn bytes(queue_pairs: usize) -> usize {
        queue_pairs * (size_of::<State>() + size_of::<QpHealth>()) + Matches::BYTES
    }

    pub(super) const fn set_salt(&mut self, salt: Salt) {
        self.matches.set_salt(salt);
    }

    /// Plants a bug, which builds without debug assertions do not contain.
    pub(super) const fn plant(&mut self, bug: Option<Bug>) {
        self.bug = bug;
    }

    fn has_bug(&self, bug: Bug) -> bool {
        cfg!(debug_assertions) && self.bug == Some(bug)
    }

    /// Observes a packet with this ECN field to a queue pair. Returns whether it is what is expected and shows nothing
    /// else; if not, it has to be [judged](Self::judge). Costs few instructions, and touches the queue pair's cache
    /// line only.
    #[expect(clippy::inline_always, reason = "part of `Forward::count`")]
    #[inline(always)]
    pub(super) fn expects(&self, entry: &QueuePair, ecn: u8, packet: &Packet<'_>, now: Nanos) -> bool {
        if ecn == CE {
            return false;
        }
        let (position, syndrome) = position_of(packet);
        if entry.expected.get() == position.0 {
            if now >= self.sample_due && asks_for_ack(packet.bytes(), packet.layout()) {
                return false;
            }
            entry.expected.set(position.next().0);
            return true;
        }
        match position.class() {
            // It is no NAK, ends no round trip, and does not help to find the other end.
            class::ACK => {
                let sample = entry.sample.get();
                let is_searched = || self.matches.knows(entry.low_address(), position.psn());
                matches!(Syndrome::from_wire(syndrome), Syndrome::Ack(_))
                    && (sample == NONE || sample == SEARCHED && !is_searched())
            }
            // It is no message of the communication manager.
            class::OTHER => packet.bth().dest_qp() != Qpn::GSI,
            _ => false,
        }
    }

    /// Handles a packet that is not [expected](Self::expects): to the queue pair `id`, or to none.
    #[inline(never)]
    pub(super) fn judge(&mut self, id: Option<u32>, packet: &Packet<'_>, mut place: Place<'_>) {
        let counters = place.counters;
        let qp = id.and_then(|id| Some((id, counters.qps.entries.get(id as usize)?)));
        let (position, syndrome) = position_of(packet);
        let marked = packet.ecn() == CE;
        let of_port = &counters.health[place.port.index()];
        let of_qp = qp.and_then(|(id, _)| counters.qps.health.get(id as usize));
        let both = [Some(of_port), of_qp.map(|health| &health.packets)];
        let count = |count: &dyn Fn(&Health)| both.into_iter().flatten().for_each(count);
        if marked {
            count(&|health| health.ce_marks.add(1));
        }
        let psn = position.psn();
        match (position.class(), qp) {
            // The expected request, with which a round trip begins
            (_, Some((id, entry))) if entry.expected.get() == position.0 && !marked => {
                entry.expected.set(position.next().0);
                self.sample(id, packet, &place);
            }
            (class::REQUEST | class::UC_REQUEST | class::READ, Some((id, entry))) => {
                let found = self.request(id, entry, position, packet, &place);
                if found != Findings::default() {
                    count(&|health| health.count(found));
                }
            }
            (class::ACK, _) => {
                let syndrome = Syndrome::from_wire(syndrome);
                if let Syndrome::Nak(_) | Syndrome::RnrNak(_) = syndrome {
                    count(&|health| health.count_nak(syndrome));
                }
                match (syndrome, qp) {
                    (Syndrome::Nak(_) | Syndrome::RnrNak(_), Some((_, entry))) => self.refuse(entry, psn),
                    (_, Some((id, entry))) => self.acknowledge(id, entry, psn, packet, &place),
                    (_, None) => {}
                }
            }
            (class::RESPONSE, Some((id, entry))) => {
                let found = self.response(entry, psn, packet);
                if found != Findings::default() {
                    count(&|health| health.count(found));
                }
                self.acknowledge(id, entry, psn, packet, &place);
            }
            (class::CNP, _) => count(&|health| health.cnps_seen.add(1)),
            (class::OTHER, _) if packet.bth().dest_qp() == Qpn::GSI => self.exchange(packet, &mut place),
            _ => {}
        }
    }

    /// Takes a request that is not expected.
    fn request(
        &mut self,
        id: u32,
        entry: &QueuePair,
        position: Position,
        packet: &Packet<'_>,
        place: &Place<'_>,
    ) -> Findings {
        let (opcode, bth) = (packet.layout().opcode(), packet.bth());
        let request = Request {
            psn: position.psn(),
            reliable: position.class() != class::UC_REQUEST,
            read: packet.reth().filter(|_| position.class() == class::READ).map(|reth| reth.len.get()),
        };
        let src = source(packet);
        let state = &mut self.states[id as usize];
        let expected = entry.expected.get();
        if expected != NONE {
            state.requests.next = Position(expected).psn();
        }
        if state.src != src || !state.requests.continues(request.psn) {
            // Another connection with the same number
            state.requests = Requests::new();
            state.src = src;
            self.separate(id, place.counters);
        }
        let goes_back = self.has_bug(Bug::GoesBack);
        let requests = &mut self.states[id as usize].requests;
        let found = requests.take(request, place.now);
        if !requests.knows_mtu() && fills_mtu(opcode) {
            requests.learn_mtu(packet.payload().len() as u32);
        }
        if goes_back && found.retransmitted > 0 {
            requests.next = request.psn.add(1);
        }
        let class = if request.reliable { class::REQUEST } else { class::UC_REQUEST };
        let settled = requests.is_settled();
        entry.expected.set(if settled { Position::new(requests.next, class).0 } else { NONE });
        if found.retransmitted > 0 && !self.has_bug(Bug::KeepsSample) {
            cancel_sample(entry, place.counters);
        } else if (bth.ack_req() || request.read.is_some()) && place.now >= self.sample_due {
            self.sample(id, packet, place);
        }
        found
    }

    /// Takes a response to a READ or an atomic, and returns what it shows. Of a READ whose whole response is
    /// missing, only the repeated request tells.
    fn response(&mut self, entry: &QueuePair, psn: Psn, packet: &Packet<'_>) -> Findings {
        let opcode = packet.layout().opcode();
        let within = matches!(opcode, Opcode::RC_READ_RESPONSE_MIDDLE | Opcode::RC_READ_RESPONSE_LAST);
        let goes_on = fills_mtu(opcode);
        if let Some(peer) = self.states.get_mut(entry.peer.get() as usize)
            && goes_on
            && !peer.requests.knows_mtu()
        {
            peer.requests.learn_mtu(packet.payload().len() as u32);
        }
        let before = entry.responded.get();
        let distance = psn.distance(Psn::new(before));
        let behind = psn.add(1).get() | if goes_on { GOES_ON } else { 0 };
        if before == NONE || distance.unsigned_abs() > MAX_JUMP {
            entry.responded.set(behind);
            return Findings::default();
        }
        if distance < 0 {
            return Findings { retransmitted: 1, ..Findings::default() };
        }
        entry.responded.set(behind);
        let gap = match (within, before & GOES_ON != 0) {
            (true, true) => distance as u32,
            // The first packet of this message is missing, or the last of the one before. How many others are
            // is not known: requests without a response take PSNs as well.
            (true, false) | (false, true) => u32::from(distance > 0),
            (false, false) => 0,
        };
        Findings { gap, ..Findings::default() }
    }

    /// Takes a response that acknowledges requests up to `psn`.
    fn acknowledge(&mut self, id: u32, entry: &QueuePair, psn: Psn, packet: &Packet<'_>, place: &Place<'_>) {
        let peer = entry.peer.get();
        if peer == NONE {
            return self.search(id, psn, packet, place.counters);
        }
        let sample = entry.sample.get();
        if sample != NONE && (0..MAX_JUMP as i32).contains(&psn.distance(Psn::new(sample))) {
            entry.sample.set(NONE);
            let sent = Nanos(entry.sampled_at.load(Ordering::Relaxed));
            if let Some(health) = place.counters.qps.health.get(peer as usize) {
                health.round_trips.add(place.now.since(sent));
            }
        }
    }

    /// Takes a NAK of the packet with `psn`, whose requester will send it again.
    fn refuse(&mut self, entry: &QueuePair, psn: Psn) {
        if let Some(peer) = self.states.get_mut(entry.peer.get() as usize) {
            entry.sample.set(NONE);
            peer.requests.refuse(psn);
        }
    }

    /// Sets the time of the next round trip after one that begins now.
    fn delay_next_sample(&mut self, now: Nanos) {
        self.sample_due = now + if self.first_samples > 0 { FIRST_SAMPLES_EVERY } else { SAMPLE_EVERY };
        self.first_samples = self.first_samples.saturating_sub(1);
    }

    /// Begins to measure a round trip.
    fn sample(&mut self, id: u32, packet: &Packet<'_>, place: &Place<'_>) {
        self.delay_next_sample(place.now);
        let (entries, psn) = (&place.counters.qps.entries, packet.bth().psn());
        let Some(peer) = entries.get(entries[id as usize].peer.get() as usize) else {
            return self.matches.add(id, source(packet)[1], psn);
        };
        let sent = Nanos(peer.sampled_at.load(Ordering::Relaxed));
        if peer.sample.get() == NONE || place.now.since(sent) > SAMPLE_TIMEOUT {
            peer.sampled_at.store(place.now.0, Ordering::Relaxed);
            peer.sample.set(psn.get());
        }
    }
}

/// Gives up the round trip that is being measured to a queue pair, because it is not known to which of several
/// transmissions the response belongs (Karn's rule).
fn cancel_sample(entry: &QueuePair, counters: &Counters) {
    if let Some(peer) = counters.qps.entries.get(entry.peer.get() as usize) {
        peer.sample.set(NONE);
    }
}

impl RoundTrips {
    /// Adds a round trip. The mean has the weights of RFC 6298.
    fn add(&self, time: Nanos) {
        let before = self.smoothed.get();
        let mean = if self.samples.get() == 0 { time.0 } else { (7 * before + time.0) / 8 };
        self.smoothed.set(mean);
        self.longest.raise(time.0);
        self.samples.add(1);
    }
}

/// Returns whether the payload of a packet has to be exactly the path MTU: First and Middle of SENDs, WRITEs and
/// READ responses.
const fn fills_mtu(opcode: Opcode) -> bool {
    matches!(opcode.0, 0x00 | 0x01 | 0x06 | 0x07 | 0x0d | 0x0e | 0x20 | 0x21 | 0x26 | 0x27)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips_begin_often_at_first_and_less_often_later() {
        let mut monitor = Monitor::new(0);
        let mut now = Nanos::ZERO;
        let mut next = || {
            monitor.delay_next_sample(now);
            let every = monitor.sample_due.since(now);
            now = monitor.sample_due;
            every
        };
        assert!((0..FIRST_SAMPLES).all(|_| next() == FIRST_SAMPLES_EVERY));
        assert!((0..10).all(|_| next() == SAMPLE_EVERY));
    }

    #[test]
    fn positions_wrap_within_their_class() {
        let last = Position::new(Psn::new(0xff_ffff), class::UC_REQUEST);
        assert_eq!((last.psn(), last.class()), (Psn::new(0xff_ffff), class::UC_REQUEST));
        assert_eq!((last.next().psn(), last.next().class()), (Psn::ZERO, class::UC_REQUEST));
    }
}
