//! Answers made here, as the server would have sent them.

use crate::Id;
use crate::function::{End, Swordbox};
use crate::headers::Base;
use rocev2::aeth::{Aeth, Credit, Syndrome};
use rocev2::{Opcode, Packet, Psn};
use switch::{DropReason, Frame, NoRoom, Output, PortId, Verdict};

/// What a client is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// It is done.
    Ack,
    /// Something else
    Syndrome(Syndrome),
    /// An atomic is done, and found this.
    Atomic(u64),
    /// An ATOMIC WRITE or FLUSH is done: a READ response without payload
    Nothing,
}

impl End {
    /// Keeps the headers by which frames get here.
    pub(crate) fn refresh(&mut self, packet: &Packet<'_>) {
        if let Some(headers) = crate::headers::Headers::of(packet) {
            self.headers = headers;
        }
    }
}

impl Swordbox {
    /// Makes `frame` the answer to the request of flow `id` with this PSN; the port that it leaves through.
    #[expect(clippy::inline_always, reason = "its caller has in registers what the packet is made of")]
    #[inline(always)]
    pub(crate) fn build_answer<F: Frame>(
        &self,
        id: Id,
        frame: &mut F,
        psn: Psn,
        answer: Answer,
    ) -> Result<PortId, NoRoom> {
        let flow = &self.flows[id as usize];
        let peer = self.ends[id as usize].peer;
        let Some(end) = self.ends.get(peer as usize) else { return Err(NoRoom) };
        if end.headers.is_none() {
            return Err(NoRoom);
        }
        let (opcode, syndrome, value) = match answer {
            Answer::Ack => (Opcode::RC_ACKNOWLEDGE, Syndrome::Ack(Credit(flow.credit)), None),
            Answer::Syndrome(syndrome) => (Opcode::RC_ACKNOWLEDGE, syndrome, None),
            Answer::Nothing => (Opcode::RC_READ_RESPONSE_ONLY, Syndrome::Ack(Credit(flow.credit)), None),
            Answer::Atomic(value) => {
                (Opcode::RC_ATOMIC_ACKNOWLEDGE, Syndrome::Ack(Credit(flow.credit)), Some(value.to_be_bytes()))
            }
        };
        let base = Base::new(opcode, end.qpn, psn);
        let aeth: [u8; Aeth::LEN] = zerocopy::transmute!(Aeth::new(syndrome, flow.msn));
        match value {
            Some(value) => {
                let mut behind = [0; Aeth::LEN + 8];
                behind[..Aeth::LEN].copy_from_slice(&aeth);
                behind[Aeth::LEN..].copy_from_slice(&value);
                end.headers.build(frame, None, base, &behind)?;
            }
            None => end.headers.build(frame, None, base, &aeth)?,
        }
        Ok(end.port)
    }

    /// An answer takes the place of a frame.
    #[inline]
    pub(crate) fn answer_in<F: Frame>(&self, frame: &mut F, id: Id, psn: Psn, answer: Answer) -> Verdict {
        match self.build_answer(id, frame, psn, answer) {
            Ok(port) => Verdict::Forward(port),
            Err(NoRoom) => Verdict::Drop(DropReason::NoBuffer),
        }
    }

    /// Sends an answer in a frame of its own. Without room it is lost, as on a wire.
    pub(crate) fn send_answer<O: Output>(&self, id: Id, psn: Psn, answer: Answer, out: &mut O) {
        let Ok(mut frame) = out.make(0) else { return };
        if let Ok(port) = self.build_answer(id, &mut frame, psn, answer) {
            _ = out.send(frame, port);
        }
    }
}
