//! The receiving side: compares received packets with what was sent, by order within the queue pair, ICRC,
//! and age.

use crate::counters::{Counters, StreamCounters};
use crate::emitter::{Emitter, first_psn};
use crate::known::Known;
use crate::profile::{Profile, ProfileError, STAMP_LEN, Stream, Verb};
use crate::responder::Responder;
use crate::window::{Seen, Windows};
use core::net::IpAddr;
use rocev2::{Class, Fault, Opcode, Packet, Psn, classify};
use switch::{Frame, Nanos, Output, PortId};

/// Receiver's state of a stream.
struct Expected {
    src: IpAddr,
    dst: IpAddr,
    first_qpn: u32,
    qps: u32,
    verb: Verb,
    /// Template that intact packets are compared with, if all packets are alike
    known: Option<Known>,
    windows: Windows,
    /// Offset in the payload at which the time stamp ends, if there is one
    stamp_end: Option<usize>,
    responder: Option<Responder>,
}

/// Direction of a packet.
#[derive(Clone, Copy)]
enum Way {
    Request,
    Response,
}

/// Port number of a receiver without a port
const NO_PORT: u32 = u32::MAX;

/// Receiving side of a generator.
pub(crate) struct Receiver {
    streams: Box<[Expected]>,
    /// Port on which responses arrive
    send: PortId,
    /// Port on which requests arrive, or [`NO_PORT`]
    port: u32,
    /// Index of the last packet's stream: most of the time the next packet is of the same one
    last: usize,
    /// Whether windows exceed the first-level cache
    many: bool,
}

/// Bytes of windows that stay in the first-level cache, beside packets
const NEAR: usize = 16 << 10;

impl Expected {
    fn new(profile: &Profile, index: usize, known: Option<Known>) -> Result<Self, ProfileError> {
        let stream: &Stream = &profile.streams[index];
        let first = |qp| first_psn(profile.seed, index as u64, qp, stream.first_psn).get();
        let answers = profile.respond && stream.verb.is_request();
        let windows = Windows::new(stream.qps, profile.reach(), stream.psn_step(), first);
        let no_memory = |mb| ProfileError::Memory { stream: index, mb, what: "windows", key: "window" };
        Ok(Self {
            src: stream.src.ip,
            dst: stream.dst.ip,
            first_qpn: stream.first_qpn.get(),
            qps: stream.qps,
            verb: stream.verb,
            known,
            windows: windows.map_err(no_memory)?,
            stamp_end: stream.stamp.then(|| stream.stamp_end()),
            responder: answers.then(|| Responder::new(stream)),
        })
    }

    /// Returns the queue pair of the stream that the packet is for, and its direction.
    #[expect(clippy::inline_always, reason = "called about once a packet")]
    #[inline(always)]
    fn has(&self, packet: &Packet<'_>) -> Option<(u32, Way)> {
        let qp = packet.bth().dest_qp().get().wrapping_sub(self.first_qpn);
        if qp >= self.qps {
            return None;
        }
        if is(packet, self.dst) {
            return Some((qp, Way::Request));
        }
        is(packet, self.src).then_some((qp, Way::Response))
    }

    /// Returns whether the stream sends packets of this opcode.
    #[inline]
    const fn sends(&self, opcode: Opcode) -> bool {
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
fn is(packet: &Packet<'_>, ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => packet.ipv4().is_some_and(|header| header.dst == ip.octets()),
        IpAddr::V6(ip) => packet.ipv6().is_some_and(|header| header.dst == ip.octets()),
    }
}

impl Receiver {
    pub(crate) fn new(profile: &Profile, emitters: &[Emitter]) -> Result<Self, ProfileError> {
        let streams = emitters.iter().enumerate();
        let streams = streams.map(|(index, emitter)| Expected::new(profile, index, emitter.known()));
        let streams: Box<[_]> = streams.collect::<Result<_, _>>()?;
        Ok(Self {
            many: streams.iter().map(|stream| stream.windows.bytes()).sum::<usize>() > NEAR,
            streams,
            send: profile.send,
            port: profile.receive.map_or(NO_PORT, |port| port.0.into()),
            last: 0,
        })
    }

    /// Handles a received frame.
    #[inline]
    pub(crate) fn on_frame<O: Output>(
        &mut self,
        frame: &O::Frame,
        port: PortId,
        now: Nanos,
        emitters: &mut [Emitter],
        out: &mut O,
        counters: &Counters,
    ) {
        // Fast path: most packets are of the same stream as the last one, and differ from its template only
        // where they may.
        let (stream, bytes) = (self.last, frame.bytes());
        let arrives = u32::from(port.0) == self.port;
        let expected = &mut self.streams[stream];
        if arrives
            && let Some(known) = &mut expected.known
            && let Some(changing) = known.changing(bytes)
        {
            let qp = changing.qpn.wrapping_sub(expected.first_qpn);
            if qp < expected.qps {
                let to = emitters[stream].queue_pair(qp);
                // A packet whose ICRC or flow is wrong is parsed, to find out why.
                if changing.is_right(to.address, to.effect) {
                    let (psn, layout, own) =
                        (Psn::new(changing.psn), known.layout, &counters.streams[stream]);
                    let came = (qp, psn, bytes.len(), changing.stamp);
                    if expected.arrive(came, to.position, now, own)
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
        let Some((stream, qp, way)) = self.find(&packet) else { return counters.foreign.add(1) };
        let (expected, own) = (&mut self.streams[stream], &counters.streams[stream]);
        match way {
            Way::Request => {
                let emitter = &emitters[stream];
                if !expected.sends(packet.layout().opcode()) {
                    return own.unexpected.add(1);
                }
                if !arrives {
                    return own.reflected.add(1);
                }
                expected.on_request(&packet, frame.bytes().len(), qp, port, now, emitter, out, own);
            }
            // A response of our own responder that arrives where the responder sends did not reach the
            // requester.
            Way::Response if port != self.send && expected.responder.is_some() => own.reflected.add(1),
            Way::Response => {
                // Our own responder answers what arrives, gaps or not. So what it acknowledges counts as
                // answered only if all of it arrived.
                let came = |first: u32, psns| {
                    let mut all = (0..psns).map(|n| first.wrapping_add(n));
                    expected.responder.is_none() || all.all(|position| expected.windows.came(qp, position))
                };
                emitters[stream].on_response(&packet, qp, now, came, own);
            }
        }
    }

    /// Returns the packets of a stream behind which none of their queue pair was received.
    pub(crate) fn behind(&self, stream: usize, emitter: &Emitter) -> u64 {
        let behind = |qp| u64::from(self.streams[stream].windows.behind(qp, emitter.next_position(qp)));
        (0..emitter.queue_pairs()).map(behind).sum()
    }

    /// Prefetches the window of the frame's queue pair, for IPv4 frames of the last stream.
    #[inline]
    pub(crate) fn foresee(&self, frame: &impl Frame, fetch: impl Fn(*const u8)) {
        const QPN: usize = 14 + 20 + 8 + 5;
        if !self.many {
            return;
        }
        let Some(qpn) = frame.bytes().get(QPN..QPN + 3) else { return };
        let qpn = u32::from_be_bytes([0, qpn[0], qpn[1], qpn[2]]);
        let expected = &self.streams[self.last];
        let qp = qpn.wrapping_sub(expected.first_qpn);
        if qp < expected.qps {
            fetch(expected.windows.place(qp));
        }
    }

    #[inline]
    fn find(&mut self, packet: &Packet<'_>) -> Option<(usize, u32, Way)> {
        if let Some((qp, way)) = self.streams[self.last].has(packet) {
            return Some((self.last, qp, way));
        }
        let found = self.streams.iter().enumerate().find_map(|(n, stream)| Some((n, stream.has(packet)?)));
        let (stream, (qp, way)) = found?;
        self.last = stream;
        Some((stream, qp, way))
    }
}

impl Expected {
    /// Handles a packet of an opcode that the stream sends.
    #[expect(clippy::too_many_arguments, reason = "the properties of a packet")]
    fn on_request<O: Output>(
        &mut self,
        packet: &Packet<'_>,
        len: usize,
        qp: u32,
        port: PortId,
        now: Nanos,
        emitter: &Emitter,
        out: &mut O,
        counters: &StreamCounters,
    ) {
        let stamp = self.stamp_end.and_then(|end| packet.payload().get(end - STAMP_LEN..end)?.first_chunk());
        let came = (qp, packet.bth().psn(), len, stamp.map(|stamp| u64::from_be_bytes(*stamp)));
        if self.arrive(came, emitter.next_position(qp), now, counters)
            && let Some(responder) = &mut self.responder
        {
            responder.on_request(packet, qp, port, out, counters);
        }
    }

    /// Records a packet of this PSN, length and time stamp, to a queue pair whose `next` position is the next
    /// to be sent. Returns whether it was received for the first time.
    #[expect(clippy::inline_always, reason = "called once a packet; a call with these arguments costs more")]
    #[inline(always)]
    fn arrive(
        &mut self,
        (qp, psn, len, stamp): (u32, Psn, usize, Option<u64>),
        next: u32,
        now: Nanos,
        counters: &StreamCounters,
    ) -> bool {
        if !self.windows.see_next(qp, psn, next) && !self.arrive_out_of_order(qp, psn, next, counters) {
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
    fn arrive_out_of_order(&mut self, qp: u32, psn: Psn, next: u32, counters: &StreamCounters) -> bool {
        // A PSN that was not sent yet is not a packet of the stream.
        let ahead = psn.distance(Psn::new(next));
        let seen =
            if ahead < 0 { self.windows.see(qp, next.wrapping_sub(ahead.unsigned_abs())) } else { Seen::Off };
        match seen {
            Seen::New { skipped: 0 } => {}
            Seen::New { skipped } => counters.skipped.add(skipped.into()),
            Seen::Late => counters.late.add(1),
            Seen::Duplicate => {
                counters.duplicates.add(1);
                return false;
            }
            Seen::Stale => {
                counters.stale.add(1);
                return false;
            }
            Seen::Off => {
                counters.unexpected.add(1);
                return false;
            }
        }
        true
    }
}
