//! The receiving side: compares received packets with what was sent, by order within the queue pair, ICRC,
//! and age.

use crate::counters::{Counters, StreamCounters};
use crate::error::ProfileError;
use crate::matcher::FrameMatcher;
use crate::part::Part;
use crate::profile::{Profile, STAMP_LEN, Stream, Verb};
use crate::responder::Responder;
use crate::sender::{FirstPsns, Sender};
use crate::window::{Arrival, Windows};
use core::net::IpAddr;
use rocev2::{Class, Fault, Opcode, Packet, Psn, classify};
use switch::{Frame, Nanos, Output, PortId};

/// Receiver's state of a stream.
struct StreamReceiver {
    src: IpAddr,
    dst: IpAddr,
    first_qpn: u32,
    qps: u32,
    verb: Verb,
    /// Template that intact packets are compared with, if all packets are alike
    matcher: Option<FrameMatcher>,
    windows: Windows,
    /// Offset in the payload at which the time stamp ends, if there is one
    stamp_end: Option<usize>,
    responder: Option<Responder>,
}

/// Direction of a packet.
#[derive(Clone, Copy)]
enum Direction {
    Request,
    Response,
}

/// Port number of a receiver without a port
const NO_PORT: u32 = u32::MAX;

/// Receiving side of a generator.
pub(crate) struct Receiver {
    streams: Box<[StreamReceiver]>,
    /// Port on which responses arrive
    send: PortId,
    /// Port on which requests arrive, or [`NO_PORT`]
    port: u32,
    /// Index of the last packet's stream: most of the time the next packet is of the same one
    last_stream: usize,
    /// Whether windows exceed the first-level cache
    prefetches: bool,
}

/// Bytes of windows that stay in the first-level cache, beside packets
const L1_BYTES: usize = 16 << 10;

impl StreamReceiver {
    fn new(profile: &Profile, part: &Part, matcher: Option<FrameMatcher>) -> Result<Self, ProfileError> {
        let (index, stream) = (part.index, &part.stream);
        let first_psns = FirstPsns::new(profile.seed, part);
        let first = |qp| first_psns.of(qp).get();
        let answers = profile.respond && stream.verb.is_request();
        let windows = Windows::new(stream.qps, profile.reach(), stream.psn_step(), first);
        let no_memory = |mb| ProfileError::Memory { stream: index, mb, what: "windows", key: "window" };
        Ok(Self {
            src: stream.src.ip,
            dst: stream.dst.ip,
            first_qpn: stream.first_qpn.get(),
            qps: stream.qps,
            verb: stream.verb,
            matcher,
            windows: windows.map_err(no_memory)?,
            stamp_end: stream.stamp.then(|| stream.stamp_end()),
            responder: answers.then(|| Responder::new(stream)),
        })
    }

    /// Returns the queue pair of the stream that the packet is for, and its direction.
    #[expect(clippy::inline_always, reason = "called about once a packet")]
    #[inline(always)]
    fn direction_of(&self, packet: &Packet<'_>) -> Option<(u32, Direction)> {
        let qp = packet.bth().dest_qp().get().wrapping_sub(self.first_qpn);
        if qp >= self.qps {
            return None;
        }
        if is_to(packet, self.dst) {
            return Some((qp, Direction::Request));
        }
        is_to(packet, self.src).then_some((qp, Direction::Response))
    }

    /// Returns whether the stream sends packets of this opcode.
    #[inline]
    const fn sends_opcode(&self, opcode: Opcode) -> bool {
        match self.verb {
            Verb::Write => matches!(
                opcode,
                Opcode::RC_WRITE_FIRST
                    | Opcode::RC_WRITE_MIDDLE
                    | Opcode::RC_WRITE_LAST
                    | Opcode::RC_WRITE_ONLY
            ),
            Verb::Send => matches!(
                opcode,
                Opcode::RC_SEND_FIRST | Opcode::RC_SEND_MIDDLE | Opcode::RC_SEND_LAST | Opcode::RC_SEND_ONLY
            ),
            Verb::Read => matches!(opcode, Opcode::RC_READ_REQUEST),
            Verb::CompareSwap => matches!(opcode, Opcode::RC_COMPARE_SWAP),
            Verb::FetchAdd => matches!(opcode, Opcode::RC_FETCH_ADD),
            Verb::Ack { .. } => matches!(opcode, Opcode::RC_ACKNOWLEDGE),
            Verb::OnePipeMessage | Verb::OnePipeBeacon => matches!(opcode, Opcode::UD_SEND_ONLY),
        }
    }
}

/// Returns whether the packet is sent to this address.
#[inline]
fn is_to(packet: &Packet<'_>, ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => packet.ipv4().is_some_and(|header| header.dst == ip.octets()),
        IpAddr::V6(ip) => packet.ipv6().is_some_and(|header| header.dst == ip.octets()),
    }
}

impl Receiver {
    /// Returns the memory for the state of a stream's queue pairs, in bytes: windows, and the words of
    /// atomics.
    pub(crate) fn bytes_of(profile: &Profile, stream: &Stream) -> u64 {
        let answers = profile.respond && stream.verb.is_atomic();
        let words = if answers { u64::from(stream.memory.slots) * 8 } else { 0 };
        Windows::bytes_of(stream.qps, profile.reach()) + words
    }

    pub(crate) fn new(profile: &Profile, parts: &[Part], senders: &[Sender]) -> Result<Self, ProfileError> {
        let streams = parts.iter().zip(senders);
        let streams =
            streams.map(|(part, sender)| StreamReceiver::new(profile, part, sender.frame_matcher()));
        let streams: Box<[_]> = streams.collect::<Result<_, _>>()?;
        Ok(Self {
            prefetches: streams.iter().map(|stream| stream.windows.bytes()).sum::<usize>() > L1_BYTES,
            streams,
            send: profile.send,
            port: profile.receive.map_or(NO_PORT, |port| port.0.into()),
            last_stream: 0,
        })
    }

    /// Handles a received frame.
    #[inline]
    pub(crate) fn on_frame<O: Output>(
        &mut self,
        frame: &O::Frame,
        port: PortId,
        now: Nanos,
        senders: &mut [Sender],
        out: &mut O,
        counters: &Counters,
    ) {
        // Fast path: most packets are of the same stream as the last one, and differ from its template only
        // where they may.
        let (stream, bytes) = (self.last_stream, frame.bytes());
        let at_receiver = u32::from(port.0) == self.port;
        let expected = &mut self.streams[stream];
        if at_receiver
            && let Some(matcher) = &mut expected.matcher
            && let Some(fields) = matcher.varying_fields(bytes)
        {
            let qp = fields.qpn.wrapping_sub(expected.first_qpn);
            if qp < expected.qps {
                let to = senders[stream].queue_pair(qp);
                // A packet whose ICRC or flow is wrong is parsed, to find out why.
                if fields.is_intact(to.address, to.effect) {
                    let (psn, layout, own) =
                        (Psn::new(fields.psn), matcher.layout, &counters.streams[stream]);
                    let packet_fields = (qp, psn, bytes.len(), fields.stamp);
                    if expected.record(packet_fields, to.position, now, own)
                        && let Some(responder) = &mut expected.responder
                    {
                        let packet = Packet::new(bytes, layout);
                        responder.on_request(&packet, qp, port, out, own);
                    }
                    return;
                }
            }
        }
        // Of a frame longer than a buffer only the beginning is visible; it is counted as malformed.
        let layout = match classify(frame.bytes()) {
            Class::Roce(layout) => layout,
            Class::Other => return counters.other.add(1),
            Class::Malformed(fault) => return counters.faults[fault as usize].add(1),
        };
        let packet = Packet::new(frame.bytes(), layout);
        if !packet.verify_icrc() {
            return counters.faults[Fault::Icrc as usize].add(1);
        }
        let Some((stream, qp, direction)) = self.find(&packet) else { return counters.foreign.add(1) };
        let (expected, own) = (&mut self.streams[stream], &counters.streams[stream]);
        match direction {
            Direction::Request => {
                let sender = &senders[stream];
                if !expected.sends_opcode(packet.layout().opcode()) {
                    return own.unexpected.add(1);
                }
                if !at_receiver {
                    return own.reflected.add(1);
                }
                expected.on_request(&packet, frame.bytes().len(), qp, port, now, sender, out, own);
            }
            // A response of our own responder that arrives where the responder sends did not reach the
            // requester.
            Direction::Response if port != self.send && expected.responder.is_some() => own.reflected.add(1),
            Direction::Response => {
                // Our own responder answers what arrives, gaps or not. So what it acknowledges counts as
                // answered only if all of it arrived.
                let arrived = |first: u32, psns| {
                    let mut all = (0..psns).map(|n| first.wrapping_add(n));
                    expected.responder.is_none()
                        || all.all(|position| expected.windows.has_received(qp, position))
                };
                senders[stream].on_response(&packet, qp, now, arrived, own);
            }
        }
    }

    /// Returns the packets of a stream behind which none of their queue pair was received.
    pub(crate) fn behind(&self, stream: usize, sender: &Sender) -> u64 {
        let behind = |qp| u64::from(self.streams[stream].windows.behind(qp, sender.next_position(qp)));
        (0..sender.queue_pairs()).map(behind).sum()
    }

    /// Prefetches the window of the frame's queue pair, for IPv4 frames of the last stream.
    #[inline]
    pub(crate) fn prefetch(&self, frame: &impl Frame, fetch: impl Fn(*const u8)) {
        const QPN: usize = 14 + 20 + 8 + 5;
        if !self.prefetches {
            return;
        }
        let Some(qpn) = frame.bytes().get(QPN..QPN + 3) else { return };
        let qpn = u32::from_be_bytes([0, qpn[0], qpn[1], qpn[2]]);
        let expected = &self.streams[self.last_stream];
        let qp = qpn.wrapping_sub(expected.first_qpn);
        if qp < expected.qps {
            fetch(expected.windows.address_of(qp));
        }
    }

    #[inline]
    fn find(&mut self, packet: &Packet<'_>) -> Option<(usize, u32, Direction)> {
        if let Some((qp, direction)) = self.streams[self.last_stream].direction_of(packet) {
            return Some((self.last_stream, qp, direction));
        }
        let found =
            self.streams.iter().enumerate().find_map(|(n, stream)| Some((n, stream.direction_of(packet)?)));
        let (stream, (qp, direction)) = found?;
        self.last_stream = stream;
        Some((stream, qp, direction))
    }
}

impl StreamReceiver {
    /// Handles a packet of an opcode that the stream sends.
    #[expect(clippy::too_many_arguments, reason = "the properties of a packet")]
    fn on_request<O: Output>(
        &mut self,
        packet: &Packet<'_>,
        len: usize,
        qp: u32,
        port: PortId,
        now: Nanos,
        sender: &Sender,
        out: &mut O,
        counters: &StreamCounters,
    ) {
        let stamp = self.stamp_end.and_then(|end| packet.payload().get(end - STAMP_LEN..end)?.first_chunk());
        let packet_fields = (qp, packet.bth().psn(), len, stamp.map(|stamp| u64::from_be_bytes(*stamp)));
        if self.record(packet_fields, sender.next_position(qp), now, counters)
            && let Some(responder) = &mut self.responder
        {
            responder.on_request(packet, qp, port, out, counters);
        }
    }

    /// Records a packet of this PSN, length and time stamp, to a queue pair whose `next` position is the next
    /// to be sent. Returns whether it was received for the first time.
    #[expect(clippy::inline_always, reason = "called once a packet; a call with these arguments costs more")]
    #[inline(always)]
    fn record(
        &mut self,
        (qp, psn, len, stamp): (u32, Psn, usize, Option<u64>),
        next: u32,
        now: Nanos,
        counters: &StreamCounters,
    ) -> bool {
        if !self.windows.record_next(qp, psn, next) && !self.record_out_of_order(qp, psn, next, counters) {
            return false;
        }
        counters.received.count(len);
        if let Some(stamp) = stamp {
            counters.latency.record(now.since(Nanos(stamp)));
        }
        true
    }

    /// Classifies and counts a packet that is not the next one expected. Returns whether it was received for
    /// the first time.
    #[inline(never)]
    fn record_out_of_order(&mut self, qp: u32, psn: Psn, next: u32, counters: &StreamCounters) -> bool {
        // A PSN that was not sent yet is not a packet of the stream.
        let ahead = psn.distance(Psn::new(next));
        let arrival = if ahead < 0 {
            self.windows.record(qp, next.wrapping_sub(ahead.unsigned_abs()))
        } else {
            Arrival::Off
        };
        match arrival {
            Arrival::New { skipped: 0 } => {}
            Arrival::New { skipped } => counters.skipped.add(skipped.into()),
            Arrival::Late => counters.late.add(1),
            Arrival::Duplicate => {
                counters.duplicates.add(1);
                return false;
            }
            Arrival::Stale => {
                counters.stale.add(1);
                return false;
            }
            Arrival::Off => {
                counters.unexpected.add(1);
                return false;
            }
        }
        true
    }
}
