//! A stream at work: chooses queue pairs, sizes and places, makes packets from templates, and sends them when they are due.

use crate::alias::{Chooser, turn};
use crate::alike::{Alike, Place, Qp, asks};
use crate::counters::{Counters, StreamCounters};
use crate::known::Known;
use crate::malformed;
use crate::message::{Message, messages};
use crate::pace::{Pace, Rate, Unit, WIRE_OVERHEAD};
use crate::profile::{Profile, ProfileError, Stream, Verb};
use crate::requester::{Ended, Request, Requester};
use crate::template::Address;
use rocev2::aeth::{Aeth, Syndrome};
use rocev2::ethernet::Ethernet;
use rocev2::ipv4::Ipv4;
use rocev2::ipv6::Ipv6;
use rocev2::onepipe::{OnePipe, OnePipeOpcode, Timestamp};
use rocev2::udp::Udp;
use rocev2::{Bth, Fault, Opcode, Packet, Psn};
use switch::{Frame as _, Full, Nanos, Output, PortId, Probability, Rng};
use zerocopy::IntoBytes as _;

/// Packets of a stream that leave in one turn at most, so that other streams and what comes in have their turn
const TURN: u64 = 256;
/// Queue pairs that are looked at for one that need not wait
const LOOKS: u32 = 16;
/// Where UDP headers begin, and where the first half of a RETH's address ends
const UDP_V4: usize = Ethernet::LEN + Ipv4::LEN;
const HEAD_V4: usize = UDP_V4 + Udp::LEN + Bth::LEN + 8;
const UDP_V6: usize = Ethernet::LEN + Ipv6::LEN;
const HEAD_V6: usize = UDP_V6 + Udp::LEN + Bth::LEN + 8;
/// No time at which anything is due
pub(crate) const NEVER: Nanos = Nanos(u64::MAX);

/// A message of which some packets have been sent, or none.
#[derive(Clone, Copy)]
struct Current {
    message: usize,
    qp: u32,
    /// Packets sent
    at: u32,
    slot: u32,
}

/// The lock that a queue pair holds, or wants.
#[derive(Clone, Copy, Default)]
struct Lock {
    slot: u32,
    held: bool,
}

/// Why the next packet is not sent now.
enum Wait {
    NoBuffer,
    /// For answers
    Answers,
}

/// A stream at work.
pub(crate) struct Emitter {
    verb: Verb,
    first_qpn: u32,
    qps: u32,
    step: u32,
    seed: u64,
    index: u64,
    first_psn: Option<Psn>,
    /// By number, from the first
    queue_pairs: Box<[Qp]>,
    messages: Box<[Message]>,
    current: Option<Current>,
    qp: Chooser,
    slot: Chooser,
    va: u64,
    slot_len: u64,
    chance: Rng,
    rate: Rate,
    pace: Pace,
    /// Packets that leave together, and a packet's length in the rate's units
    burst: u64,
    packet_units: u64,
    /// On a ramp without a burst of its own: what says how long one is
    climbs: Option<Box<Stream>>,
    /// The last burst did not leave whole: what is due does not wait for a whole one
    cut: bool,
    /// The same of the last burst before its time was over: it has not kept up
    behind: bool,
    /// Packets to send
    left: u64,
    ack_every: u32,
    /// Messages of a queue pair since the last that asked for an acknowledgement; empty if all or none do
    unasked: Box<[u32]>,
    malformed: Probability,
    broken: Box<[(Fault, Box<[u8]>)]>,
    requester: Option<Requester>,
    /// Compare and swap: by queue pair
    locks: Box<[Lock]>,
    /// Whether all packets are alike but for what each queue pair, time and place changes
    alike: bool,
    /// And nothing is waited for: how places in memory differ
    place: Option<Place>,
    /// 1Pipe's time at 0
    epoch: Timestamp,
    pub(crate) due: Nanos,
}

/// Where the PSNs of a queue pair begin.
pub(crate) fn first_psn(seed: u64, stream: u64, qp: u32, fixed: Option<Psn>) -> Psn {
    if let Some(psn) = fixed {
        return psn;
    }
    // SplitMix64's finalizer (Steele et al., 2014)
    let mut x = seed ^ (stream << 32 | u64::from(qp)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    Psn::new((x ^ x >> 31) as u32)
}

impl Emitter {
    pub(crate) fn new(profile: &Profile, index: usize) -> Result<Self, ProfileError> {
        let stream = &profile.streams[index];
        let requester = stream.outstanding.map(|most| Requester::new(stream.qps, most, stream.timeout));
        let no_memory = |mb| ProfileError::Memory { stream: index, mb, what: "requests", key: "outstanding" };
        let requester = requester.transpose().map_err(no_memory)?;
        let messages = messages(stream);
        let unit = stream.rate.unit();
        let mean = {
            // Of a packet: messages of each size are equally frequent.
            let (mut packets, mut bytes) = (0, 0);
            for message in &messages {
                packets += u64::from(message.packets);
                let whole = message.first.template.bytes.len()
                    + message.last.as_ref().map_or(0, |last| last.template.bytes.len());
                let middle = message.middle.as_ref().map_or(0, |middle| middle.template.bytes.len());
                bytes += (whole + middle * message.packets.saturating_sub(2) as usize) as u64;
            }
            bytes / packets.max(1)
        };
        let packet_units = if unit == Some(Unit::Bits) { (mean + WIRE_OVERHEAD as u64) * 8 } else { 1 };
        let burst = stream.burst_at(stream.rate.at(Nanos::ZERO) / packet_units);
        let climbs = matches!(stream.rate, Rate::Ramp { .. }) && stream.burst.is_none();
        let asks = matches!(stream.verb, Verb::Write | Verb::Send);
        let counted = if asks && stream.ack_every > 1 { stream.qps } else { 0 };
        let locks = if stream.verb == Verb::CompareSwap { stream.qps } else { 0 };
        let queue_pair = |qp| Qp {
            position: first_psn(profile.seed, index as u64, qp, stream.first_psn).get(),
            address: Address::new(stream.first_qpn.get() + qp),
            effect: 0,
        };
        let mut queue_pairs: Box<[Qp]> = (0..stream.qps).map(queue_pair).collect();
        let alike = matches!(stream.verb, Verb::Write | Verb::Send | Verb::Read | Verb::FetchAdd)
            && matches!(&*messages, [message] if message.packets == 1);
        let place = Place::of(&messages[0].first, stream.memory.va, stream.slot_len());
        let place = place.filter(|_| alike && stream.outstanding.is_none() && stream.malformed.is_never());
        if alike {
            for qp in &mut queue_pairs {
                qp.effect = messages[0].first.template.effect_of_address(qp.address);
            }
        }
        Ok(Self {
            verb: stream.verb,
            first_qpn: stream.first_qpn.get(),
            qps: stream.qps,
            step: stream.psn_step(),
            seed: profile.seed,
            index: index as u64,
            first_psn: stream.first_psn,
            queue_pairs,
            alike,
            place,
            broken: if stream.malformed.is_never() {
                Box::default()
            } else {
                malformed::of(&messages[0].first.template)
            },
            messages,
            current: None,
            qp: Chooser::new(stream.pick, stream.qps),
            slot: Chooser::new(stream.memory.choice, stream.memory.slots),
            va: stream.memory.va,
            slot_len: stream.slot_len(),
            chance: Rng::stream(profile.seed, index as u64),
            rate: stream.rate,
            pace: Pace::new(stream.rate, Nanos::ZERO, profile.catch_up),
            burst,
            packet_units,
            climbs: climbs.then(|| stream.clone().into()),
            cut: false,
            behind: false,
            left: stream.packets.unwrap_or(u64::MAX),
            ack_every: if asks { stream.ack_every } else { 0 },
            unasked: vec![0; counted as usize].into(),
            malformed: stream.malformed,
            requester,
            locks: vec![Lock::default(); locks as usize].into(),
            epoch: profile.epoch,
            due: NEVER,
        })
    }

    /// Its rate begins.
    pub(crate) fn begin(&mut self, now: Nanos, catch_up: Nanos) {
        self.pace = Pace::new(self.rate, now, catch_up);
        self.due = self.pace.next(now, self.burst(now) * self.packet_units);
    }

    /// Packets that leave together now.
    #[inline]
    fn burst(&self, now: Nanos) -> u64 {
        let burst =
            |stream: &Stream| stream.burst_at(stream.rate.at(self.pace.time(now)) / self.packet_units);
        self.climbs.as_deref().map_or(self.burst, burst)
    }

    /// It sends no more: it was to send until then.
    pub(crate) fn end(&mut self, until: Nanos, counters: &StreamCounters) {
        // One that never began is due never.
        if self.left > 0 && self.due != NEVER {
            self.note_time(until, counters);
        }
        self.due = NEVER;
        self.left = 0;
    }

    /// How long it has sent for.
    fn note_time(&self, now: Nanos, counters: &StreamCounters) {
        counters.sending_ns.add(self.pace.time(now).0.saturating_sub(counters.sending_ns.get()));
    }

    pub(crate) const fn is_over(&self) -> bool {
        self.left == 0
    }

    /// Whether its requests wait for answers.
    pub(crate) const fn waits(&self) -> bool {
        self.requester.is_some()
    }

    /// Whether an answer to one of its requests is still to come.
    pub(crate) fn awaits(&self) -> bool {
        self.requester.as_ref().is_some_and(Requester::awaits)
    }

    /// Requests that are under way, counted where they wait.
    pub(crate) fn under_way(&self) -> u64 {
        self.requester.iter().flat_map(Requester::under_way).sum()
    }

    /// Its worker has lived through so much: requests are given up by that.
    pub(crate) const fn live(&mut self, lived: Nanos) {
        if let Some(requester) = &mut self.requester {
            requester.live(lived);
        }
    }

    /// What its packets have in common, if they are all alike.
    pub(crate) fn known(&self) -> Option<Known> {
        self.alike.then(|| Known::of(&self.messages[0].first))?
    }

    /// A queue pair, as what comes to it is checked.
    #[inline]
    pub(crate) fn queue_pair(&self, qp: u32) -> &Qp {
        &self.queue_pairs[qp as usize]
    }

    /// The position that the next packet of a queue pair will have.
    #[inline]
    pub(crate) fn next_position(&self, qp: u32) -> u32 {
        self.queue_pairs[qp as usize].position
    }

    /// How many queue pairs it has.
    pub(crate) const fn queue_pairs(&self) -> u32 {
        self.qps
    }

    /// Whether it has a rate other than the most.
    pub(crate) fn is_paced(&self) -> bool {
        self.rate != Rate::Max
    }

    /// Sends what is due at `at`, which may be earlier than now, but no more than its `share` of what the port has room for; how
    /// many packets left. At the end of its time, what is due need not be a whole burst.
    pub(crate) fn emit<O: Output>(
        &mut self,
        (now, at, ends): (Nanos, Nanos, bool),
        share: u64,
        port: PortId,
        out: &mut O,
        all: &Counters,
        counters: &StreamCounters,
    ) -> u64 {
        let by_bits = self.rate.unit() == Some(Unit::Bits);
        let left = if by_bits { u64::MAX } else { self.left };
        let burst = self.burst(at);
        let allowance = self.pace.allowance(at, burst * self.packet_units, left);
        let whole = if ends || self.cut { 1 } else { burst };
        let due = match self.rate {
            Rate::Max => burst,
            _ if by_bits && allowance < whole * self.packet_units => 0,
            _ if by_bits => TURN,
            // Whole bursts, or what is left to send
            _ if allowance >= self.left => self.left,
            _ => allowance / whole * whole,
        };
        let wanted = due.min(TURN).min(self.left);
        let most = wanted.min(share);
        if most < wanted {
            all.port_busy.add(1);
        }
        let (mut units, mut good, mut bytes) = (0, 0, 0);
        if self.place.is_some() && !by_bits {
            good = self.alike(most, now, port, out, all, counters);
            bytes = good * self.messages[0].first.template.bytes.len() as u64;
            units = good;
        }
        let (one_by_one, mut taken) = (self.place.is_none() || by_bits, good);
        while one_by_one && taken < most && (!by_bits || units < allowance) {
            match self.packet(now, port, out, counters) {
                Ok((len, counts)) => {
                    taken += 1;
                    units += if by_bits { (len + WIRE_OVERHEAD) as u64 * 8 } else { 1 };
                    if counts {
                        good += 1;
                        bytes += len as u64;
                    }
                }
                Err(Wait::NoBuffer) => {
                    all.no_buffer.add(1);
                    break;
                }
                Err(Wait::Answers) => {
                    counters.waited.add(1);
                    break;
                }
            }
        }
        counters.sent.count_many(good, bytes);
        if self.left != u64::MAX {
            self.left -= good;
        }
        self.pace.spend(units);
        counters.forfeited.add(self.pace.forfeited() - counters.forfeited.get());
        // Who had kept up until a worker came late to the end has sent for as long as it was to, and not until then.
        self.note_time(if taken > 0 && (self.behind || !ends) { now } else { at }, counters);
        let over = if by_bits { units >= allowance } else { taken == due };
        self.cut = due > 0 && !over;
        if !ends {
            self.behind = self.cut;
        }
        let next = if self.cut { 1 } else { burst };
        let next = if by_bits { next * self.packet_units } else { next.min(self.left) };
        self.due = if self.left == 0 { NEVER } else { self.pace.next(at, next) };
        taken
    }

    /// Sends packets of a stream of which all are alike: as [`packet`](Self::packet) does, without asking what cannot be. How many
    /// were sent.
    #[inline]
    fn alike<O: Output>(
        &mut self,
        most: u64,
        now: Nanos,
        port: PortId,
        out: &mut O,
        all: &Counters,
        counters: &StreamCounters,
    ) -> u64 {
        let Some(place) = self.place else { return 0 };
        let piece = &mut self.messages[0].first;
        piece.stamp(now);
        let v6 = piece.template.extended() == HEAD_V6 - 8;
        let mut alike = Alike {
            template: &piece.template,
            queue_pairs: &mut self.queue_pairs,
            unasked: &mut self.unasked,
            ack_every: self.ack_every,
            step: self.step,
            place,
        };
        let chance = &mut self.chance;
        // How they are chosen is asked once a burst.
        let sent = match (&mut self.qp, &mut self.slot) {
            (
                &mut Chooser::Turn { ref mut next, of },
                &mut Chooser::Turn { next: ref mut next_slot, of: slots },
            ) if !v6 => {
                let (mut qp, mut slot) = (*next, *next_slot);
                let sent = alike.send::<UDP_V4, HEAD_V4, O>(most, port, out, || {
                    (turn(&mut qp, of), turn(&mut slot, slots))
                });
                (*next, *next_slot) = (qp, slot);
                sent
            }
            (qp, slot) => {
                let choose = || (qp.choose(chance), if place.differs() { slot.choose(chance) } else { 0 });
                if v6 {
                    alike.send::<UDP_V6, HEAD_V6, O>(most, port, out, choose)
                } else {
                    alike.send::<UDP_V4, HEAD_V4, O>(most, port, out, choose)
                }
            }
        };
        if sent < most {
            all.no_buffer.add(1);
        }
        counters.messages.add(sent);
        sent
    }

    /// Sends a packet: its bytes, and whether it is one of the stream's rather than a malformed one.
    #[inline]
    fn packet<O: Output>(
        &mut self,
        now: Nanos,
        port: PortId,
        out: &mut O,
        counters: &StreamCounters,
    ) -> Result<(usize, bool), Wait> {
        if !self.malformed.is_never() && self.chance.happens(self.malformed) {
            let (_, bytes) = self.chance.pick(&self.broken);
            let frame = out.make_from(bytes).map_err(|Full| Wait::NoBuffer)?;
            counters.malformed.count(bytes.len());
            // What is not taken is counted by the runner.
            _ = out.send(frame, port);
            return Ok((bytes.len(), false));
        }
        let current = match self.current {
            Some(current) => current,
            None => self.next_message(counters).ok_or(Wait::Answers)?,
        };
        self.current = Some(current);
        let Current { message, qp: n, at, slot } = current;
        let message = &mut self.messages[message];
        let is_last = at + 1 == message.packets;
        let piece = match (&mut message.middle, &mut message.last) {
            (_, Some(last)) if is_last => last,
            (Some(middle), _) if at > 0 => middle,
            _ => &mut message.first,
        };
        piece.stamp(now);
        let piece = &*piece;
        let template = &piece.template;
        let mut frame = out.make_from(&template.bytes).map_err(|Full| Wait::NoBuffer)?;
        let qp = &mut self.queue_pairs[n as usize];
        let (position, psn) = (qp.position, qp.psn());
        let asks = is_last && self.ack_every > 0 && asks(&mut self.unasked, n, self.ack_every);
        let mut patch = template.begin(frame.bytes_mut(), qp.address, psn.get(), asks);
        qp.position = position.wrapping_add(self.step);
        let va = |slot: u32| self.va.wrapping_add(u64::from(slot) * self.slot_len);
        match self.verb {
            Verb::Write | Verb::Read | Verb::FetchAdd => piece.write_va(&mut patch, va(slot)),
            Verb::Send => {}
            Verb::CompareSwap => {
                let (lock, owner) = (&mut self.locks[n as usize], u64::from(self.first_qpn + n));
                let (swap, compare) = if lock.held { (0, owner) } else { (owner, 0) };
                if !lock.held {
                    lock.slot = slot;
                }
                let at = template.extended();
                piece.write_va(&mut patch, va(lock.slot));
                patch.long(at + 12, swap);
                patch.long(at + 20, compare);
                // If nobody tells whether it is held, every other one lets go.
                lock.held ^= self.requester.is_none();
            }
            Verb::Ack { .. } => {
                let first = first_psn(self.seed, self.index, n, self.first_psn);
                patch.low_24(template.extended(), psn.sub(first.get()).add(1).get());
            }
            Verb::OnePipeMessage | Verb::OnePipeBeacon => {
                let beacon = self.verb == Verb::OnePipeBeacon;
                let opcode = if beacon { OnePipeOpcode::BEACON } else { OnePipeOpcode::DATA };
                let mut header = OnePipe::new(opcode, self.epoch.add(now.0), psn);
                header.set_first(!beacon);
                header.set_end_of_message(!beacon);
                patch.words(template.payload, header.as_bytes());
                // Behind its key, a datagram's header names who sent it.
                patch.low_24(template.extended() + 4, self.first_qpn + n);
            }
        }
        patch.finish();
        let len = template.bytes.len();
        // What is not taken is counted by the runner, and is lost like what others lose.
        _ = out.send(frame, port);
        if is_last {
            counters.messages.add(1);
            if let Some(requester) = &mut self.requester {
                // A READ takes as many PSNs as its response has packets.
                let psns = if self.verb == Verb::Read { self.step } else { message.packets };
                let asks = asks || !matches!(self.verb, Verb::Write | Verb::Send);
                requester.push(n, Request::new(now, position.wrapping_sub(at), psns, asks));
            }
            self.current = None;
        } else {
            self.current = Some(Current { at: at + 1, ..current });
        }
        Ok((len, true))
    }

    /// Chooses what is next; nothing, if all that was looked at waits for answers.
    #[inline]
    fn next_message(&mut self, counters: &StreamCounters) -> Option<Current> {
        let mut qp = self.qp.choose(&mut self.chance);
        if let Some(requester) = &mut self.requester {
            for look in 1.. {
                let (room, given_up) = requester.make_room(qp);
                counters.unanswered.add(given_up.into());
                if room {
                    break;
                }
                if look == LOOKS.min(self.qps) {
                    return None;
                }
                qp = self.qp.choose(&mut self.chance);
            }
        }
        let message = match self.messages.len() {
            1 => 0,
            n => self.chance.below(n as u64) as usize,
        };
        Some(Current { message, qp, at: 0, slot: self.slot.choose(&mut self.chance) })
    }

    /// A packet came back to a queue pair. `came` says whether all packets of a request, by the position of the first and their
    /// number, are known to have arrived; whoever cannot know says yes.
    #[inline]
    pub(crate) fn on_response(
        &mut self,
        packet: &Packet<'_>,
        qp: u32,
        now: Nanos,
        came: impl Fn(u32, u32) -> bool,
        counters: &StreamCounters,
    ) {
        let (psn, opcode) = (packet.bth().psn(), packet.layout().opcode());
        let syndrome = packet.aeth().map(Aeth::kind);
        if opcode == Opcode::CNP {
            counters.responses.add(1);
            return counters.cnps.add(1);
        }
        if !self.verb.is_request() {
            return counters.unexpected.add(1);
        }
        // Who believed an answer to what was never asked would take all that is under way for answered.
        if psn.distance(Psn::new(self.next_position(qp))) >= 0 {
            return counters.unexpected_responses.add(1);
        }
        counters.responses.add(1);
        let refuses = matches!(syndrome, Some(Syndrome::Nak(_) | Syndrome::RnrNak(_)));
        if refuses {
            counters.naks.add(1);
        }
        let Some(requester) = &mut self.requester else { return };
        let acknowledged = matches!(self.verb, Verb::Write | Verb::Send);
        let ended = match opcode {
            // Who reads, or asks for a word, has no answer without it.
            Opcode::RC_ACKNOWLEDGE if refuses => {
                requester.refuse(qp, psn, |request| acknowledged && came(request.first, request.psns))
            }
            Opcode::RC_ACKNOWLEDGE if acknowledged => {
                requester.acknowledge(qp, psn, |request| came(request.first, request.psns))
            }
            Opcode::RC_READ_RESPONSE_FIRST
            | Opcode::RC_READ_RESPONSE_MIDDLE
            | Opcode::RC_READ_RESPONSE_LAST
            | Opcode::RC_READ_RESPONSE_ONLY
                if self.verb == Verb::Read =>
            {
                requester.respond(qp, psn)
            }
            Opcode::RC_ATOMIC_ACKNOWLEDGE if matches!(self.verb, Verb::CompareSwap | Verb::FetchAdd) => {
                requester.respond(qp, psn)
            }
            _ => Ended::default(),
        };
        counters.answered.add(ended.answered.into());
        counters.unanswered.add(ended.unanswered.into());
        if let Some(sent_at) = ended.sent_at {
            counters.round_trip.record(now.since(sent_at));
            if let Some(answer) = packet.atomic_ack()
                && self.verb == Verb::CompareSwap
            {
                let owner = u64::from(self.first_qpn + qp);
                self.locks[qp as usize].on_answer(answer.original.get(), owner, counters);
            }
        } else if ended == Ended::default() && is_whole(opcode) {
            counters.stale_responses.add(1);
        }
    }
}

/// Whether an answer of this kind could end a request.
const fn is_whole(opcode: Opcode) -> bool {
    !matches!(opcode, Opcode::RC_READ_RESPONSE_FIRST | Opcode::RC_READ_RESPONSE_MIDDLE)
}

impl Lock {
    /// What the word was.
    fn on_answer(&mut self, original: u64, owner: u64, counters: &StreamCounters) {
        let compare = if self.held { owner } else { 0 };
        let swapped = original == compare;
        if swapped { &counters.swapped } else { &counters.not_swapped }.add(1);
        // It may have been taken before, and the answer to that was lost.
        self.held = !self.held && (swapped || original == owner);
    }
}
