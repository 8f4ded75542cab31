//! The responder of a stream. It answers as a NIC on a lossless link: with an acknowledgement where one is
//! requested, with the response to a READ, with an atomic's original value. It neither repeats responses nor
//! sends NAKs: a duplicate is counted and not answered, and gaps are left to the receiver to detect.

use crate::counters::StreamCounters;
use crate::profile::{Stream, Verb};
use crate::template::{Address, Template, acknowledging};
use rocev2::{Msn, Opcode, Packet, Psn};
use switch::{Frame as _, Output, PortId};

/// Responder of one stream.
pub(crate) struct Responder {
    verb: Verb,
    first_qpn: u32,
    /// Completed messages, by queue pair
    msns: Box<[u32]>,
    /// Template of an acknowledgement, or of an atomic acknowledgement
    ack: Template,
    /// Templates of a READ response: Only; or First, Middle, Last
    response: Vec<Template>,
    packets: u32,
    va: u64,
    /// Words that atomics operate on
    words: Box<[u64]>,
}

impl Responder {
    pub(crate) fn new(stream: &Stream) -> Self {
        let template =
            |opcode, payload| Template::new(stream.dst, stream.src, opcode, acknowledging(), payload, 0);
        let atomics = matches!(stream.verb, Verb::CompareSwap | Verb::FetchAdd);
        let ack = template(if atomics { Opcode::RC_ATOMIC_ACKNOWLEDGE } else { Opcode::RC_ACKNOWLEDGE }, 0);
        let packets = if stream.verb == Verb::Read { stream.psn_step() } else { 0 };
        let response = match packets {
            0 => Vec::new(),
            1 => vec![template(Opcode::RC_READ_RESPONSE_ONLY, stream.sizes[0] as usize)],
            _ => {
                let mtu = usize::from(stream.mtu);
                let rest = stream.sizes[0] as usize - (packets as usize - 1) * mtu;
                vec![
                    template(Opcode::RC_READ_RESPONSE_FIRST, mtu),
                    template(Opcode::RC_READ_RESPONSE_MIDDLE, mtu),
                    template(Opcode::RC_READ_RESPONSE_LAST, rest),
                ]
            }
        };
        Self {
            verb: stream.verb,
            first_qpn: stream.first_qpn.get(),
            msns: vec![0; stream.qps as usize].into(),
            ack,
            response,
            packets,
            va: stream.memory.va,
            words: vec![0; if atomics { stream.memory.slots as usize } else { 0 }].into(),
        }
    }

    /// Answers a request that was received for the first time.
    #[inline]
    pub(crate) fn on_request<O: Output>(
        &mut self,
        packet: &Packet<'_>,
        qp: u32,
        port: PortId,
        out: &mut O,
        counters: &StreamCounters,
    ) {
        let (bth, opcode) = (packet.bth(), packet.layout().opcode());
        let psn = bth.psn();
        let msn = &mut self.msns[qp as usize];
        let next_msn = Msn::new(*msn).add(1);
        match self.verb {
            Verb::Write | Verb::Send => {
                if !ends_message(opcode) {
                    return;
                }
                *msn = next_msn.get();
                if bth.ack_req() {
                    self.send(&self.ack, qp, psn, None, port, out, counters);
                }
            }
            Verb::Read => {
                if out.room(port) < self.packets as usize {
                    counters.unable.add(1);
                    return;
                }
                *msn = next_msn.get();
                for n in 0..self.packets {
                    let template = match n {
                        0 => &self.response[0],
                        n if n + 1 == self.packets => &self.response[2],
                        _ => &self.response[1],
                    };
                    self.send(template, qp, psn.add(n), None, port, out, counters);
                }
            }
            Verb::CompareSwap | Verb::FetchAdd => {
                let Some(request) = packet.atomic() else { return };
                let offset = request.va.get().wrapping_sub(self.va);
                let word = usize::try_from(offset / 8).ok().and_then(|n| self.words.get_mut(n));
                let Some(word) = word.filter(|_| offset.is_multiple_of(8)) else {
                    counters.unable.add(1);
                    return;
                };
                let original = *word;
                let operand = request.swap_or_add.get();
                if opcode == Opcode::RC_FETCH_ADD {
                    *word = original.wrapping_add(operand);
                } else if original == request.compare.get() {
                    *word = operand;
                }
                *msn = next_msn.get();
                self.send(&self.ack, qp, psn, Some(original), port, out, counters);
            }
            Verb::Ack { .. } | Verb::OnePipeMessage | Verb::OnePipeBeacon => {}
        }
    }

    #[inline]
    #[expect(clippy::too_many_arguments, reason = "the fields of a packet")]
    fn send<O: Output>(
        &self,
        template: &Template,
        qp: u32,
        psn: Psn,
        original: Option<u64>,
        port: PortId,
        out: &mut O,
        counters: &StreamCounters,
    ) {
        let Ok(mut frame) = out.make_from(&template.bytes) else {
            counters.unable.add(1);
            return;
        };
        let mut fields =
            template.begin(frame.bytes_mut(), Address::new(self.first_qpn + qp), psn.get(), false);
        if template.has_aeth() {
            fields.set_u24(template.extended(), self.msns[qp as usize]);
        }
        if let Some(original) = original {
            fields.set_u64(template.extended() + 4, original);
        }
        fields.finish();
        // The runner counts a frame that the port does not take; to the generator it is lost like one that
        // the network loses.
        _ = out.send(frame, port);
        counters.replies.add(1);
    }
}

/// Returns whether the packet is the last of its message.
const fn ends_message(opcode: Opcode) -> bool {
    matches!(
        opcode,
        Opcode::RC_WRITE_ONLY | Opcode::RC_WRITE_LAST | Opcode::RC_SEND_ONLY | Opcode::RC_SEND_LAST
    )
}
