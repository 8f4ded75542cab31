//! Straight path: a request that can use its shared QP at once, and the acknowledgement of the oldest
//! operation there, which are nearly all packets between clients that share words and their server. Any other
//! packet takes the general path, which would give the same result for these: debug builds assert that.

use crate::flow::{Stage, right};
use crate::function::Swordbox;
use crate::lines::word_of;
use crate::op::{Op, aeth_of};
use crate::way::Passage;
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
    pub(crate) fn straight_way_of(&self, id: Id, packet: &Packet<'_>, op: Op) -> Option<Passage> {
        let flow = &self.flows[id as usize];
        if flow.stage != Stage::Strict
            || packet.bth().psn() != flow.next
            || flow.in_message
            || flow.holds()
            || flow.unsure.is_some()
            || flow.rereading
            || flow.nak_sent
            || !self.layers.remap
        {
            return None;
        }
        let wish = self.wish_of(flow.server, packet, op)?;
        let line = self.lines.find(flow.server, wish.va)?;
        let own = self.lines.get(line);
        let lane = own.lane;
        let there = self.lanes.get(lane as usize)?;
        let owner = self.flows.get(there.owner as usize)?;
        let known = own.value(word_of(wish.va)).filter(|_| self.layers.cas_to_write);
        let busy = if flow.shared > 0 { flow.via != lane } else { !flow.is_quiet() };
        let taken = there.owner != id
            && (owner.is_private() || owner.waits == lane || owner.leaving || owner.nak_sent);
        if own.rkey != wish.rkey
            || own.incarnation != there.incarnation
            || !self.lines.is_checked(line)
            || busy
            || taken
            || there.is_full()
            || there.tries >= 2
            || (wish.atomic && known.is_none())
            || !flow.has_proven(wish.rkey, wish.rights, self.period)
            || !self.is_of_incarnation(id, there)
            || !own.has_reached(wish.va, wish.len)
            || !there.accepts(owner, wish.rkey, right::WRITE)
            || (own.under_way == 0
                && (there.server != flow.server
                    || owner.leaving
                    || !there.accepts(owner, wish.rkey, right::ATOMIC)))
        {
            return None;
        }
        Some(Passage { lane, line, known: known.filter(|_| wish.atomic), wish })
    }

    /// Returns the shared QP whose oldest operation, and no other, `packet` acknowledges, if the operation is
    /// no atomic and no flow waits.
    #[expect(clippy::inline_always, reason = "the layout of the packet is a constant in the caller")]
    #[inline(always)]
    pub(crate) fn straight_answer_to(
        &self,
        to: Id,
        packet: &Packet<'_>,
        server: u8,
        port: PortId,
    ) -> Option<Id> {
        let end = &self.ends[to as usize];
        let flow = self.flows.get(end.peer as usize)?;
        let there = self.lanes.get(flow.lane as usize)?;
        let psn = packet.bth().psn();
        let straight = packet.layout().opcode() == Opcode::RC_ACKNOWLEDGE
            && psn == there.acked
            && there.under_way > 0
            && there.waiting[0] == NONE
            && flow.server == server
            && flow.stage >= Stage::Strict
            && end.knows(packet, port)
            && self.ready.is_empty()
            && matches!(aeth_of(packet)?.kind(), Syndrome::Ack(_))
            && !there.entry(psn).asked.what.is_atomic();
        straight.then_some(flow.lane)
    }

    /// Completes the oldest operation on a shared QP, and replaces the frame by the response to its client.
    #[expect(clippy::inline_always, reason = "the layout of the packet is a constant in the caller")]
    #[inline(always)]
    pub(crate) fn answer_straight<O: Output>(
        &mut self,
        lane: Id,
        frame: &mut O::Frame,
        now: Nanos,
        out: &mut O,
    ) -> Verdict {
        let there = &mut self.lanes[lane as usize];
        there.hear(there.acked, now);
        let verdict = match self.complete_inline(lane, None) {
            Some((id, psn, answer)) => {
                self.counters.acks.add(1);
                self.answer_in(frame, id, psn, answer)
            }
            None => Verdict::Consume,
        };
        if self.ready.is_empty() {
            return verdict;
        }
        // The next requests may be answered at once; this response has to leave before.
        let verdict = crate::response::send_first::<O>(verdict, frame, out);
        self.pump_ready(now, out);
        verdict
    }
}
