//! The send side of the responder: acknowledgements, and responses that are cut from memory packet by packet.

use super::{AckSyndrome, Message, Response};
#[cfg(debug_assertions)]
use crate::config::Bug;
use crate::memory::Access;
#[cfg(debug_assertions)]
use crate::memory::Span;
use crate::path::packets_of;
use crate::qp::QpContext;
use rocev2::aeth::{Aeth, Credit, NakCode, Syndrome};
use rocev2::atomic::AtomicAckEth;
use rocev2::{Bth, Msn, Opcode, Psn};
use switch::Nanos;
use zerocopy::IntoBytes;

impl QpContext<'_> {
    /// Returns the credits that an acknowledgement announces: the number of posted receives. The message that
    /// is being received already holds its receive request, but is not yet counted in the MSN, so it adds
    /// one.
    fn credit(&mut self) -> Credit {
        if !self.config.credits || self.qp.init.srq.is_some() {
            return Credit::UNLIMITED;
        }
        let begun = matches!(self.qp.resp.message, Some(Message::Send { .. }));
        let room = self.qp.recv.len() as u32 + u32::from(begun);
        self.qp.resp.sent_zero_credits = room == 0;
        Credit::at_most(room)
    }

    /// Writes the next packet that is owed to the requester. Returns whether there was one that may leave.
    pub(crate) fn transmit_response(&mut self, now: Nanos, frame: &mut Vec<u8>) -> bool {
        let Some(response) = self.qp.resp.responses.front().copied() else { return false };
        let dest = self.qp.peer_qpn;
        match response {
            Response::Ack { psn, syndrome, msn } => {
                let syndrome = match syndrome {
                    AckSyndrome::Ack => Syndrome::Ack(self.credit()),
                    AckSyndrome::Other(syndrome) => syndrome,
                };
                let aeth = Aeth::new(syndrome, msn);
                self.emit(frame, Bth::new(Opcode::RC_ACKNOWLEDGE, dest, psn), &[aeth.as_bytes()], &[]);
                self.qp.resp.responses.pop_front();
            }
            Response::Atomic { psn, original, msn, .. } => {
                let aeth = Aeth::new(Syndrome::Ack(self.credit()), msn);
                let ack = AtomicAckEth { original: original.into() };
                let bth = Bth::new(Opcode::RC_ATOMIC_ACKNOWLEDGE, dest, psn);
                self.emit(frame, bth, &[aeth.as_bytes(), ack.as_bytes()], &[]);
                self.qp.resp.responses.pop_front();
            }
            // READ data is what congests the network, so it is subject to the DCQCN rate like requests. Later
            // responses wait behind it, because responses leave in order.
            Response::Read { .. } if !self.qp.pacer.may_send(now) => return false,
            Response::Read { .. } => {
                self.transmit_read(response, frame);
                self.qp.on_data_sent(frame.len(), now, self.config);
            }
        }
        true
    }

    /// Writes one packet of a READ response, with the current contents of the memory.
    fn transmit_read(&mut self, response: Response, frame: &mut Vec<u8>) {
        let Response::Read { psn, from, len, sent, msn, duplicate } = response else { return };
        let (mtu, dest) = (self.qp.mtu.bytes(), self.qp.peer_qpn);
        let packets = packets_of(len as usize, mtu);
        let at = sent as usize * mtu;
        let payload_len = (len as usize - at).min(mtu);
        let opcode = match (sent == 0, sent + 1 == packets) {
            (true, true) => Opcode::RC_READ_RESPONSE_ONLY,
            (true, false) => Opcode::RC_READ_RESPONSE_FIRST,
            (false, false) => Opcode::RC_READ_RESPONSE_MIDDLE,
            (false, true) => Opcode::RC_READ_RESPONSE_LAST,
        };
        let aeth = Aeth::new(Syndrome::Ack(self.credit()), msn);
        let aeth = aeth.as_bytes();
        let extended: &[&[u8]] = if opcode == Opcode::RC_READ_RESPONSE_MIDDLE { &[] } else { &[aeth] };
        // Access is checked for each packet: the region may have been deregistered since the last one.
        let span = match self.remote(from.skip(at), payload_len as u64, Access::REMOTE_READ) {
            Ok(span) => span,
            Err(code) => return self.nak_read(psn.add(sent), msn, code, duplicate, frame),
        };
        let bytes = span.map_or(&[][..], |span| self.memory.bytes(span, payload_len));
        #[cfg(debug_assertions)]
        let stale = self.stale_bytes(span, bytes.to_vec());
        #[cfg(debug_assertions)]
        let bytes = &stale[..];
        let bth = Bth::new(opcode, dest, psn.add(sent));
        if let Some((path_headers, _)) = &mut self.qp.path_headers {
            path_headers.emit(frame, bth, extended, bytes);
        }
        if sent + 1 == packets {
            self.qp.resp.responses.pop_front();
        } else if let Some(Response::Read { sent, .. }) = self.qp.resp.responses.front_mut() {
            *sent += 1;
        }
    }

    /// Sends a NAK in place of a packet of a READ response and of all later responses. A NAK for a duplicate
    /// READ does not fail the queue pair: the request may be an old copy for which no requester waits.
    fn nak_read(&mut self, psn: Psn, msn: Msn, code: NakCode, duplicate: bool, frame: &mut Vec<u8>) {
        self.counters.naks_sent += 1;
        let nak = Aeth::new(Syndrome::Nak(code), msn);
        let bth = Bth::new(Opcode::RC_ACKNOWLEDGE, self.qp.peer_qpn, psn);
        self.emit(frame, bth, &[nak.as_bytes()], &[]);
        if duplicate {
            self.qp.resp.responses.pop_front();
            return;
        }
        self.qp.resp.responses.clear();
        self.qp.resp.held_acks = 0;
        self.enter_error();
        self.report_error();
    }

    /// Implements the planted bug `StaleRead`: returns the data that the last READ of the same address
    /// returned.
    #[cfg(debug_assertions)]
    fn stale_bytes(&mut self, at: Option<Span>, bytes: Vec<u8>) -> Vec<u8> {
        let Some(at) = at.filter(|_| self.has_bug(Bug::StaleRead)) else { return bytes };
        match &self.qp.resp.stale {
            Some((before, kept)) if *before == at && kept.len() == bytes.len() => kept.clone(),
            _ => {
                self.qp.resp.stale = Some((at, bytes.clone()));
                bytes
            }
        }
    }
}
