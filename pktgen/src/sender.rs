//! The sending side of a stream: chooses queue pairs, sizes and slots, makes packets from templates, and
//! sends them when they are due.

use crate::chooser::{Chooser, round_robin};
use crate::counters::{Counters, StreamCounters};
use crate::error::ProfileError;
use crate::locks::Locks;
use crate::malformed;
use crate::matcher::FrameMatcher;
use crate::message::{Message, messages};
use crate::pace::WIRE_OVERHEAD;
use crate::part::Part;
use crate::profile::{Profile, Stream, Verb};
use crate::requester::{Completed, Request, Requester};
use crate::schedule::{Schedule, Sent};
use crate::template::Address;
use crate::uniform::{AddressField, Qp, UniformBurst, requests_ack};
use onepipe::{OnePipe, OnePipeOpcode, Timestamp};
use rocev2::aeth::{Aeth, Syndrome};
use rocev2::ethernet::Ethernet;
use rocev2::ipv4::Ipv4;
use rocev2::ipv6::Ipv6;
use rocev2::udp::Udp;
use rocev2::{Bth, Fault, Opcode, Packet, Psn};
use switch::{Frame as _, Full, Nanos, Output, PortId, Probability, Rng};
use zerocopy::IntoBytes as _;

/// Queue pairs that are tried to find one with room for another request
const QP_ATTEMPTS: u32 = 16;
/// Offsets in the frame: the UDP header, and the end of the first 8 bytes behind the BTH (a RETH's virtual
/// address)
const UDP_V4: usize = Ethernet::LEN + Ipv4::LEN;
const HEAD_V4: usize = UDP_V4 + Udp::LEN + Bth::LEN + 8;
const UDP_V6: usize = Ethernet::LEN + Ipv6::LEN;
const HEAD_V6: usize = UDP_V6 + Udp::LEN + Bth::LEN + 8;

/// A message that is being sent.
#[derive(Clone, Copy)]
struct Current {
    message: usize,
    qp: u32,
    /// Packets sent so far
    at: u32,
    slot: u32,
}

/// Reason why the next packet is not sent now.
enum Blocked {
    NoBuffer,
    /// No queue pair that was tried has room for another request
    Outstanding,
}

/// Sending side of a stream.
pub(crate) struct Sender {
    verb: Verb,
    first_qpn: u32,
    qps: u32,
    step: u32,
    first_psns: FirstPsns,
    /// Queue pairs, by number from the first
    queue_pairs: Box<[Qp]>,
    messages: Box<[Message]>,
    current: Option<Current>,
    qp: Chooser,
    slot: Chooser,
    va: u64,
    slot_len: u64,
    rng: Rng,
    schedule: Schedule,
    ack_every: u32,
    /// Messages of a queue pair since the last that requested an acknowledgement; empty if all or none do
    since_ack_req: Box<[u32]>,
    malformed: Probability,
    malformed_frames: Box<[(Fault, Box<[u8]>)]>,
    requester: Option<Requester>,
    /// Locks of compare and swap
    locks: Locks,
    /// Whether all packets are equal but for what queue pair, PSN, time and slot change
    uniform: bool,
    /// How virtual addresses differ, if packets are `uniform` and none waits for a response
    address_field: Option<AddressField>,
    /// 1Pipe timestamp at the run's time 0
    epoch: Timestamp,
}

/// First PSNs of a part's queue pairs, which do not depend on the number of workers.
#[derive(Clone, Copy)]
pub(crate) struct FirstPsns {
    seed: u64,
    stream: u64,
    /// Number of the part's first queue pair in the stream
    first_qp: u32,
    fixed: Option<Psn>,
}

impl FirstPsns {
    pub(crate) fn new(seed: u64, part: &Part) -> Self {
        Self { seed, stream: part.index as u64, first_qp: part.first_qp, fixed: part.stream.first_psn }
    }

    /// Returns the first PSN of a queue pair, counted from the part's first: the one in the profile, or one that is
    /// derived from the seed.
    pub(crate) fn of(self, qp: u32) -> Psn {
        if let Some(psn) = self.fixed {
            return psn;
        }
        let qp = u64::from(self.first_qp + qp);
        // SplitMix64's finalizer (Steele et al., 2014)
        let mut x = self.seed ^ (self.stream << 32 | qp).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        Psn::new((x ^ x >> 31) as u32)
    }
}

impl Sender {
    pub(crate) fn new(profile: &Profile, part: &Part) -> Result<Self, ProfileError> {
        let (index, stream) = (part.index, &part.stream);
        let first_psns = FirstPsns::new(profile.seed, part);
        let requester = stream.outstanding.map(|most| Requester::new(stream.qps, most, stream.timeout));
        let no_memory = |mb| ProfileError::Memory { stream: index, mb, what: "requests", key: "outstanding" };
        let requester = requester.transpose().map_err(no_memory)?;
        let messages = messages(stream);
        let mean = {
            // Mean over packets: messages of each size are equally frequent.
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
        let requests_response = matches!(stream.verb, Verb::Write | Verb::Send);
        let counted = if requests_response && stream.ack_every > 1 { stream.qps } else { 0 };
        let locks = if stream.verb == Verb::CompareSwap { stream.qps } else { 0 };
        let queue_pair = |qp| Qp {
            position: first_psns.of(qp).get(),
            address: Address::new(stream.first_qpn.get() + qp),
            effect: 0,
        };
        let mut queue_pairs: Box<[Qp]> = (0..stream.qps).map(queue_pair).collect();
        let uniform = matches!(stream.verb, Verb::Write | Verb::Send | Verb::Read | Verb::FetchAdd)
            && matches!(&*messages, [message] if message.packets == 1);
        let address_field = AddressField::of(&messages[0].first, stream.memory.va, stream.slot_len());
        let address_field =
            address_field.filter(|_| uniform && stream.outstanding.is_none() && stream.malformed.is_never());
        if uniform {
            for qp in &mut queue_pairs {
                qp.effect = messages[0].first.template.effect_of_address(qp.address);
            }
        }
        Ok(Self {
            verb: stream.verb,
            first_qpn: stream.first_qpn.get(),
            qps: stream.qps,
            step: stream.psn_step(),
            first_psns,
            queue_pairs,
            uniform,
            address_field,
            malformed_frames: if stream.malformed.is_never() {
                Box::default()
            } else {
                malformed::variants_of(&messages[0].first.template)
            },
            messages,
            current: None,
            qp: Chooser::new(stream.pick, stream.qps),
            slot: Chooser::new(stream.memory.choice, stream.memory.slots),
            va: stream.memory.va,
            slot_len: stream.slot_len(),
            rng: Rng::stream(profile.seed, index as u64 | u64::from(part.share.part) << 32),
            schedule: Schedule::new(part, mean, profile.catch_up),
            ack_every: if requests_response { stream.ack_every } else { 0 },
            since_ack_req: vec![0; counted as usize].into(),
            malformed: stream.malformed,
            requester,
            locks: Locks::new(locks),
            epoch: profile.epoch,
        })
    }

    /// Returns the memory for the state of a stream's queue pairs, in bytes: next PSNs and outstanding
    /// requests.
    pub(crate) fn bytes_of(stream: &Stream) -> u64 {
        let requests = stream.outstanding.map_or(0, |most| Requester::bytes_of(stream.qps, most));
        u64::from(stream.qps) * size_of::<Qp>() as u64 + requests
    }

    /// Returns the stream's schedule.
    #[inline]
    pub(crate) const fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    /// Returns the stream's schedule, to begin, change or end it.
    pub(crate) const fn schedule_mut(&mut self) -> &mut Schedule {
        &mut self.schedule
    }

    /// Returns whether the stream limits its outstanding requests.
    pub(crate) const fn limits_outstanding(&self) -> bool {
        self.requester.is_some()
    }

    /// Returns whether a response to one of its requests is still to arrive.
    pub(crate) fn awaits_response(&self) -> bool {
        self.requester.as_ref().is_some_and(Requester::awaits_response)
    }

    /// Returns the number of outstanding requests, counted in the rings of the queue pairs.
    pub(crate) fn outstanding(&self) -> u64 {
        self.requester.iter().flat_map(Requester::outstanding).sum()
    }

    /// Sets the worker's run time, which drives request timeouts.
    pub(crate) const fn set_run_time(&mut self, run_time: Nanos) {
        if let Some(requester) = &mut self.requester {
            requester.set_run_time(run_time);
        }
    }

    /// Returns the template that received packets are compared with, if all are alike.
    pub(crate) fn frame_matcher(&self) -> Option<FrameMatcher> {
        self.uniform.then(|| FrameMatcher::new(&self.messages[0].first))?
    }

    /// Returns the state of a queue pair, to check packets that arrive there.
    #[inline]
    pub(crate) fn queue_pair(&self, qp: u32) -> &Qp {
        &self.queue_pairs[qp as usize]
    }

    /// Returns the position of the next packet of a queue pair.
    #[inline]
    pub(crate) fn next_position(&self, qp: u32) -> u32 {
        self.queue_pairs[qp as usize].position
    }

    /// Returns the number of queue pairs.
    pub(crate) const fn queue_pairs(&self) -> u32 {
        self.qps
    }

    /// Sends what is due: `times` and `share` are those of [`Schedule::turn`]. Returns the packets sent.
    pub(crate) fn send<O: Output>(
        &mut self,
        times: (Nanos, Nanos, bool),
        share: u64,
        port: PortId,
        out: &mut O,
        all: &Counters,
        counters: &StreamCounters,
    ) -> u64 {
        let by_bits = self.schedule.is_by_bits();
        let turn = self.schedule.turn(times, share, all);
        let (now, most) = (times.0, turn.most);
        let mut sent = Sent::default();
        if self.address_field.is_some() && !by_bits {
            let good = self.send_uniform(most, now, port, out, all, counters);
            let bytes = good * self.messages[0].first.template.bytes.len() as u64;
            sent = Sent { packets: good, good, bytes, units: good };
        } else {
            while sent.packets < most && (!by_bits || turn.allows(sent.units)) {
                match self.packet(now, port, out, counters) {
                    Ok((len, counts)) => {
                        sent.packets += 1;
                        sent.units += if by_bits { (len + WIRE_OVERHEAD) as u64 * 8 } else { 1 };
                        if counts {
                            sent.good += 1;
                            sent.bytes += len as u64;
                        }
                    }
                    Err(Blocked::NoBuffer) => {
                        all.no_buffer.add(1);
                        break;
                    }
                    Err(Blocked::Outstanding) => {
                        counters.waited.add(1);
                        break;
                    }
                }
            }
        }
        self.schedule.account(&turn, &sent, counters);
        sent.packets
    }

    /// Sends packets of a stream whose packets are all alike: as [`packet`](Self::packet), without the checks
    /// that cannot apply. Returns the packets sent.
    #[inline]
    fn send_uniform<O: Output>(
        &mut self,
        most: u64,
        now: Nanos,
        port: PortId,
        out: &mut O,
        all: &Counters,
        counters: &StreamCounters,
    ) -> u64 {
        let Some(address_field) = self.address_field else { return 0 };
        let packet = &mut self.messages[0].first;
        packet.stamp(now);
        let v6 = packet.template.extended() == HEAD_V6 - 8;
        let mut burst = UniformBurst {
            template: &packet.template,
            queue_pairs: &mut self.queue_pairs,
            since_ack_req: &mut self.since_ack_req,
            ack_every: self.ack_every,
            step: self.step,
            address_field,
        };
        let rng = &mut self.rng;
        // The choosers' kinds are matched once a burst.
        let sent = match (&mut self.qp, &mut self.slot) {
            (
                &mut Chooser::RoundRobin { ref mut next, count: qps },
                &mut Chooser::RoundRobin { next: ref mut next_slot, count: slots },
            ) if !v6 => {
                let (mut qp, mut slot) = (*next, *next_slot);
                let sent = burst.send::<UDP_V4, HEAD_V4, O>(most, port, out, || {
                    (round_robin(&mut qp, qps), round_robin(&mut slot, slots))
                });
                (*next, *next_slot) = (qp, slot);
                sent
            }
            (qp, slot) => {
                let choose = || (qp.choose(rng), if address_field.differs() { slot.choose(rng) } else { 0 });
                if v6 {
                    burst.send::<UDP_V6, HEAD_V6, O>(most, port, out, choose)
                } else {
                    burst.send::<UDP_V4, HEAD_V4, O>(most, port, out, choose)
                }
            }
        };
        if sent < most {
            all.no_buffer.add(1);
        }
        counters.messages.add(sent);
        sent
    }

    /// Sends a packet. Returns its length in bytes, and whether it is one of the stream rather than a
    /// malformed one.
    #[inline]
    fn packet<O: Output>(
        &mut self,
        now: Nanos,
        port: PortId,
        out: &mut O,
        counters: &StreamCounters,
    ) -> Result<(usize, bool), Blocked> {
        if !self.malformed.is_never() && self.rng.happens(self.malformed) {
            let (_, bytes) = self.rng.pick(&self.malformed_frames);
            let frame = out.make_from(bytes).map_err(|Full| Blocked::NoBuffer)?;
            counters.malformed.count(bytes.len());
            // The runner counts a frame that the port does not take.
            _ = out.send(frame, port);
            return Ok((bytes.len(), false));
        }
        let current = match self.current {
            Some(current) => current,
            None => self.next_message(counters).ok_or(Blocked::Outstanding)?,
        };
        self.current = Some(current);
        let Current { message, qp: n, at, slot } = current;
        let message = &mut self.messages[message];
        let is_last = at + 1 == message.packets;
        let packet = match (&mut message.middle, &mut message.last) {
            (_, Some(last)) if is_last => last,
            (Some(middle), _) if at > 0 => middle,
            _ => &mut message.first,
        };
        packet.stamp(now);
        let packet = &*packet;
        let template = &packet.template;
        let mut frame = out.make_from(&template.bytes).map_err(|Full| Blocked::NoBuffer)?;
        let qp = &mut self.queue_pairs[n as usize];
        let (position, psn) = (qp.position, qp.psn());
        let requests_response =
            is_last && self.ack_every > 0 && requests_ack(&mut self.since_ack_req, n, self.ack_every);
        let mut fields = template.begin(frame.bytes_mut(), qp.address, psn.get(), requests_response);
        qp.position = position.wrapping_add(self.step);
        let va = |slot: u32| self.va.wrapping_add(u64::from(slot) * self.slot_len);
        match self.verb {
            Verb::Write | Verb::Read | Verb::FetchAdd => packet.write_va(&mut fields, va(slot)),
            Verb::Send => {}
            Verb::CompareSwap => {
                let owner = u64::from(self.first_qpn + n);
                let request = self.locks.request(n, owner, slot, self.requester.is_none());
                let at = template.extended();
                packet.write_va(&mut fields, va(request.slot));
                fields.set_u64(at + 12, request.swap);
                fields.set_u64(at + 20, request.compare);
            }
            Verb::Ack { .. } => {
                let first = self.first_psns.of(n);
                fields.set_u24(template.extended(), psn.sub(first.get()).add(1).get());
            }
            Verb::OnePipeMessage | Verb::OnePipeBeacon => {
                let beacon = self.verb == Verb::OnePipeBeacon;
                let opcode = if beacon { OnePipeOpcode::BEACON } else { OnePipeOpcode::DATA };
                let mut header = OnePipe::new(opcode, self.epoch.add(now.0), psn);
                header.set_first(!beacon);
                header.set_end_of_message(!beacon);
                if beacon {
                    // So chips take the barriers of the messages of other streams.
                    header.declare(false, true);
                }
                fields.set_words(template.payload, header.as_bytes());
                // Behind the Q_Key, the DETH has the sender's queue pair number.
                fields.set_u24(template.extended() + 4, self.first_qpn + n);
            }
        }
        fields.finish();
        let len = template.bytes.len();
        // The runner counts a frame that the port does not take; to the generator it is lost like one that
        // the network loses.
        _ = out.send(frame, port);
        if is_last {
            counters.messages.add(1);
            if let Some(requester) = &mut self.requester {
                // A READ takes as many PSNs as its response has packets.
                let psns = if self.verb == Verb::Read { self.step } else { message.packets };
                let requests_response = requests_response || !matches!(self.verb, Verb::Write | Verb::Send);
                requester.push(n, Request::new(now, position.wrapping_sub(at), psns, requests_response));
            }
            self.current = None;
        } else {
            self.current = Some(Current { at: at + 1, ..current });
        }
        Ok((len, true))
    }

    /// Chooses the next message. Returns `None` if all queue pairs that were tried wait for responses.
    #[inline]
    fn next_message(&mut self, counters: &StreamCounters) -> Option<Current> {
        let mut qp = self.qp.choose(&mut self.rng);
        if let Some(requester) = &mut self.requester {
            for attempt in 1.. {
                let (room, given_up) = requester.make_room(qp);
                counters.unanswered.add(given_up.into());
                if room {
                    break;
                }
                if attempt == QP_ATTEMPTS.min(self.qps) {
                    return None;
                }
                qp = self.qp.choose(&mut self.rng);
            }
        }
        let message = match self.messages.len() {
            1 => 0,
            n => self.rng.below(n as u64) as usize,
        };
        Some(Current { message, qp, at: 0, slot: self.slot.choose(&mut self.rng) })
    }

    /// Handles a response to a queue pair. `arrived` returns whether all packets of a request, given as the
    /// position of the first and their number, are known to have arrived; it returns true where this is not
    /// known.
    #[inline]
    pub(crate) fn on_response(
        &mut self,
        packet: &Packet<'_>,
        qp: u32,
        now: Nanos,
        arrived: impl Fn(u32, u32) -> bool,
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
        // A response to a PSN that was not sent yet would acknowledge all outstanding requests.
        if psn.distance(Psn::new(self.next_position(qp))) >= 0 {
            return counters.unexpected_responses.add(1);
        }
        counters.responses.add(1);
        let is_nak = matches!(syndrome, Some(Syndrome::Nak(_) | Syndrome::RnrNak(_)));
        if is_nak {
            counters.naks.add(1);
        }
        let Some(requester) = &mut self.requester else { return };
        let acknowledged = matches!(self.verb, Verb::Write | Verb::Send);
        let completed = match opcode {
            // A READ or an atomic has no response without its data.
            Opcode::RC_ACKNOWLEDGE if is_nak => {
                requester.on_nak(qp, psn, |request| acknowledged && arrived(request.first, request.psns))
            }
            Opcode::RC_ACKNOWLEDGE if acknowledged => {
                requester.on_ack(qp, psn, |request| arrived(request.first, request.psns))
            }
            Opcode::RC_READ_RESPONSE_FIRST
            | Opcode::RC_READ_RESPONSE_MIDDLE
            | Opcode::RC_READ_RESPONSE_LAST
            | Opcode::RC_READ_RESPONSE_ONLY
                if self.verb == Verb::Read =>
            {
                requester.on_response(qp, psn)
            }
            Opcode::RC_ATOMIC_ACKNOWLEDGE if matches!(self.verb, Verb::CompareSwap | Verb::FetchAdd) => {
                requester.on_response(qp, psn)
            }
            _ => Completed::default(),
        };
        counters.answered.add(completed.answered.into());
        counters.unanswered.add(completed.unanswered.into());
        if let Some(sent_at) = completed.sent_at {
            counters.round_trip.record(now.since(sent_at));
            if let Some(response) = packet.atomic_ack()
                && self.verb == Verb::CompareSwap
            {
                let owner = u64::from(self.first_qpn + qp);
                self.locks.on_response(qp, response.original.get(), owner, counters);
            }
        } else if completed == Completed::default() && completes_request(opcode) {
            counters.stale_responses.add(1);
        }
    }
}

/// Returns whether a response of this kind can complete a request.
const fn completes_request(opcode: Opcode) -> bool {
    !matches!(opcode, Opcode::RC_READ_RESPONSE_FIRST | Opcode::RC_READ_RESPONSE_MIDDLE)
}
