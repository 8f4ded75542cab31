//! Fast path: a request that can use its shared QP at once, and the acknowledgement of the oldest
//! operation there, which are nearly all packets between clients that share words and their server. Any other
//! packet takes the general path, which would give the same result for these. Debug builds assert that both
//! paths choose the same route for a request; for acknowledgements nothing is asserted.

use super::Swordbox;
use super::route::SharedRoute;
use super::shared_response::send_first;
use crate::flow::Stage;
use crate::lines::word_of;
use crate::op::{Op, aeth_of};
use crate::proof::right;
use crate::shared_qps::SUSPECT_TRIES;
use crate::{Id, NONE};
use rocev2::aeth::Syndrome;
use rocev2::{Opcode, Packet};
use switch::{Nanos, Output, PortId, Verdict};

impl Swordbox {
    /// Returns the route on a shared QP of a client's next request in order, if nothing is held and no
    /// condition requires the general path.
    #[expect(
        clippy::inline_always,
        reason = "the kind and the layout of the request are constants in the caller"
    )]
    #[inline(always)]
    pub(crate) fn fast_route_of(&self, id: Id, packet: &Packet<'_>, op: Op) -> Option<SharedRoute> {
        let flow = self.connections.flow(id);
        if flow.stage != Stage::Translating
            || packet.bth().psn() != flow.next
            || flow.in_message
            || flow.has_held()
            || flow.uncounted_read.is_some()
            || flow.rereading
            || flow.nak_sent
            || !self.layers.remap
        {
            return None;
        }
        let access = self.access_of(flow.server, packet, op)?;
        let line = self.lines.find(flow.server, access.va)?;
        let cached = self.lines.get(line);
        let shared_qp = cached.shared_qp;
        let qp = self.shared_qps.get(shared_qp)?;
        let owner = self.connections.get_flow(qp.owner)?;
        let known = cached.value(word_of(access.va)).filter(|_| self.layers.cas_to_write);
        let busy = if flow.shared_in_flight > 0 { flow.via != shared_qp } else { !flow.is_idle() };
        let taken = qp.owner != id
            && (owner.uses_own_connection()
                || owner.waits_for == shared_qp
                || owner.closing
                || owner.nak_sent);
        if cached.rkey != access.rkey
            || cached.incarnation != qp.incarnation
            || !self.lines.is_up_to_date(line)
            || busy
            || taken
            || qp.is_full()
            || qp.tries >= SUSPECT_TRIES
            || (access.atomic && known.is_none())
            || !flow.proofs.has(access.rkey, access.rights, self.period)
            || !self.is_of_incarnation(id, qp)
            || !cached.exists(access.va, access.len)
            || !qp.accepts(owner, access.rkey, right::WRITE)
            || (cached.in_flight == 0
                && (qp.server != flow.server
                    || owner.closing
                    || !qp.accepts(owner, access.rkey, right::ATOMIC)))
        {
            return None;
        }
        Some(SharedRoute { shared_qp, line, known: known.filter(|_| access.atomic), access })
    }

    /// Returns the shared QP whose oldest operation, and no other, `packet` acknowledges, if the operation is
    /// no atomic and no flow waits.
    #[expect(clippy::inline_always, reason = "the layout of the packet is a constant in the caller")]
    #[inline(always)]
    pub(crate) fn fast_ack_of(&self, to: Id, packet: &Packet<'_>, server: u8, port: PortId) -> Option<Id> {
        let end = self.connections.endpoint(to);
        let flow = self.connections.get_flow(end.peer())?;
        let qp = self.shared_qps.get(flow.shared_qp)?;
        let psn = packet.bth().psn();
        let is_fast = packet.layout().opcode() == Opcode::RC_ACKNOWLEDGE
            && psn == qp.acked
            && qp.in_flight() > 0
            && qp.waiting[0] == NONE
            && flow.server == server
            && flow.stage >= Stage::Translating
            && end.has_headers_of(packet, port)
            && !self.held.has_ready()
            && matches!(aeth_of(packet)?.kind(), Syndrome::Ack(_))
            && !qp.entry(psn).request.what.is_atomic();
        is_fast.then_some(flow.shared_qp)
    }

    /// Completes the oldest operation on a shared QP, and replaces the frame by the response to its client.
    #[expect(clippy::inline_always, reason = "the layout of the packet is a constant in the caller")]
    #[inline(always)]
    pub(crate) fn complete_fast<O: Output>(
        &mut self,
        shared_qp: Id,
        frame: &mut O::Frame,
        now: Nanos,
        out: &mut O,
    ) -> Verdict {
        let qp = &mut self.shared_qps[shared_qp];
        qp.on_ack(qp.acked, now);
        let verdict = match self.complete_inline(shared_qp, None) {
            Some((id, psn, response)) => {
                self.counters.acks.add(1);
                self.respond_in(frame, id, psn, response)
            }
            None => Verdict::Consume,
        };
        if !self.held.has_ready() {
            return verdict;
        }
        // The next requests may be answered at once; this response has to leave before.
        let verdict = send_first::<O>(verdict, frame, out);
        self.forward_ready(now, out);
        verdict
    }
}
