//! What came, compared with what was sent: each packet's place in the order of its queue pair, its ICRC, and its age.

use crate::counters::{Counters, StreamCounters};
use crate::emitter::{Emitter, first_psn};
use crate::known::Known;
use crate::profile::{Profile, ProfileError, STAMP_LEN, Stream, Verb};
use crate::responder::Responder;
use crate::window::{Seen, Windows};
use core::net::IpAddr;
use rocev2::{Class, Fault, Opcode, Packet, Psn, classify};
use switch::{Frame, Nanos, Output, PortId};

/// What is known of a stream where its packets arrive.
struct Expected {
    src: IpAddr,
    dst: IpAddr,
    first_qpn: u32,
    qps: u32,
    verb: Verb,
    /// What packets of the stream have in common that come as they were sent, if they are alike
    known: Option<Known>,
    windows: Windows,
    /// Bytes from the payload's beginning to the end of the stamp, if there is one
    stamp_end: Option<usize>,
    responder: Option<Responder>,
}

/// Whose packet it is.
#[derive(Clone, Copy)]
enum Way {
    Request,
    Response,
}

/// Where no port is
const NO_PORT: u32 = u32::MAX;

/// The receiving side of a generator.
pub(crate) struct Receiver {
    streams: Box<[Expected]>,
    /// Where answers arrive
    send: PortId,
    /// The number of the port where requests arrive, or [`NO_PORT`]
    port: u32,
    /// Where the last packet belonged: most of the time the next one does, too
    last: usize,
    /// Whether there is more of windows than the nearest cache holds
    many: bool,
}

/// Bytes of windows that stay in the nearest cache, beside packets
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

    /// The queue pair of the stream that the packet is for, and on which way it is.
    #[expect(clippy::inline_always, reason = "most of the time it is asked once a packet")]
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

    /// Whether the stream sends such packets.
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

/// Whether the packet goes to this address.
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

    /// A frame came in.
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
        // Most packets are like those of the stream that the last one was of: no header of it is to be searched for.
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
                // A packet that is not right is parsed, to say what is wrong.
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
        // A frame longer than a buffer shows its beginning only, and is malformed by that.
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
            // What our own responder has sent has not been anywhere.
            Way::Response if port != self.send && expected.responder.is_some() => own.reflected.add(1),
            Way::Response => {
                // What our own responder acknowledges has come, or is told here as lost: it answers what comes, gaps or not.
                let came = |first: u32, psns| {
                    let mut all = (0..psns).map(|n| first.wrapping_add(n));
                    expected.responder.is_none() || all.all(|position| expected.windows.came(qp, position))
                };
                emitters[stream].on_response(&packet, qp, now, came, own);
            }
        }
    }

    /// Packets of a stream behind which none of their queue pair has come.
    pub(crate) fn behind(&self, stream: usize, emitter: &Emitter) -> u64 {
        let behind = |qp| u64::from(self.streams[stream].windows.behind(qp, emitter.next_position(qp)));
        (0..emitter.queue_pairs()).map(behind).sum()
    }

    /// Where what is known of the frame's queue pair lies in memory, if that can be said at a glance.
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
    /// A packet came of a kind that the stream sends.
    #[expect(clippy::too_many_arguments, reason = "all that is known of a packet")]
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

    /// A packet of this PSN, length and time of sending came to a queue pair whose `next` position is to be sent; whether it came
    /// for the first time.
    #[expect(
        clippy::inline_always,
        reason = "asked once a packet, it costs less than a call with all that is known of one"
    )]
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

    /// What such a packet is, if it is not the very next one; whether it came for the first time.
    #[inline(never)]
    fn arrive_out_of_order(&mut self, qp: u32, psn: Psn, next: u32, counters: &StreamCounters) -> bool {
        // What was never sent is no packet of the stream's, whoever sent it.
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
