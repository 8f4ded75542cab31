//! Responses on shared QPs: each operation that they complete is answered to its client.

use super::Swordbox;
use super::generated::Response;
use crate::headers::{BthFields, TrafficClass};
use crate::shared_qps::Operation;
use crate::{Bug, Id, NONE};
use rocev2::aeth::{NakCode, Syndrome};
use rocev2::{Layout, Opcode, Packet, Psn};
use switch::{DropReason, Frame, Nanos, Output, Verdict};

/// Sends a copy of `frame` as `verdict` states, ahead of frames generated later. Returns the verdict for the
/// original frame.
pub(crate) fn send_first<O: Output>(verdict: Verdict, frame: &O::Frame, out: &mut O) -> Verdict {
    if let Verdict::Forward(port) = verdict
        && let Ok(copy) = out.copy(frame)
    {
        _ = out.send(copy, port);
        return Verdict::Consume;
    }
    verdict
}

impl Swordbox {
    /// Handles a response on a shared QP.
    pub(super) fn on_shared_qp<O: Output>(
        &mut self,
        shared_qp: Id,
        frame: &mut O::Frame,
        layout: Layout,
        now: Nanos,
        out: &mut O,
    ) -> Verdict {
        let packet = Packet::new(frame.bytes(), layout);
        let psn = packet.bth().psn();
        let qp = &self.shared_qps[shared_qp];
        if !psn.precedes(qp.acked.add(qp.in_flight())) {
            self.counters.stale.add(1);
            return Verdict::Drop(DropReason::Stale);
        }
        let operation = qp.entry(psn).request.what;
        let (until, found, resend) = match layout.opcode() {
            Opcode::RC_ACKNOWLEDGE => {
                let Some(aeth) = packet.aeth() else { return Verdict::Drop(DropReason::Unexpected) };
                match aeth.kind() {
                    Syndrome::Ack(_) => (psn.add(1), None, false),
                    Syndrome::Nak(NakCode::PSN_SEQUENCE_ERROR) => (psn, None, true),
                    // No operation on a shared QP consumes a receive request. The operation is retransmitted
                    // when its timeout expires.
                    Syndrome::RnrNak(_) => (psn, None, false),
                    Syndrome::Nak(code) => {
                        let verdict = self.complete_until(shared_qp, psn, None, frame, now, out);
                        let verdict = send_first::<O>(verdict, frame, out);
                        let qp = &self.shared_qps[shared_qp];
                        let refused = (qp.acked == psn).then(|| *qp.entry(psn));
                        if let Some(entry) = refused.filter(|entry| entry.flow != NONE) {
                            self.note_refusal(entry.flow, entry.psn, code);
                            self.send_response(
                                entry.flow,
                                entry.psn,
                                Response::Syndrome(Syndrome::Nak(code)),
                                out,
                            );
                        }
                        if let Some(entry) = refused {
                            self.refuse_key(shared_qp, entry.request.rkey, now);
                        }
                        self.fail_shared_qp(shared_qp);
                        self.forward_ready(now, out);
                        return verdict;
                    }
                    Syndrome::Reserved(_) => return Verdict::Drop(DropReason::Unexpected),
                }
            }
            Opcode::RC_ATOMIC_ACKNOWLEDGE if matches!(operation, Operation::Atomic(..)) => {
                let found = packet.atomic_ack().map(|ack| ack.original.get());
                (psn.add(1), found, false)
            }
            _ => return Verdict::Drop(DropReason::Unexpected),
        };
        let mut verdict = self.complete_until(shared_qp, until, found, frame, now, out);
        if self.held.has_ready() || self.shared_qps[shared_qp].waiting[0] != NONE {
            // The next requests may be answered at once; this response has to leave before.
            verdict = send_first::<O>(verdict, frame, out);
        }
        let qp = &self.shared_qps[shared_qp];
        // The server sent a NAK, or the response of an earlier atomic is missing.
        let missing = qp.acked.precedes(until);
        let just_did = qp.resent > qp.progress_at && now.since(qp.resent) < qp.round_trip;
        if (resend || missing) && qp.in_flight() > 0 && !just_did {
            let from = qp.acked;
            self.resend(shared_qp, from, now, out);
        }
        self.forward_ready(now, out);
        if self.shared_qps[shared_qp].waiting[0] != NONE {
            self.retry_waiting(shared_qp, now, out);
        }
        verdict
    }

    /// Completes the operations on a shared QP before `until`. `found` is the result of the last one if that
    /// is an atomic. Each client gets its own response; the last response is written into `frame`.
    fn complete_until<O: Output>(
        &mut self,
        shared_qp: Id,
        until: Psn,
        found: Option<u64>,
        frame: &mut O::Frame,
        now: Nanos,
        out: &mut O,
    ) -> Verdict {
        let mut last_response: Option<(Id, Psn, Response)> = None;
        let mut count = 0;
        loop {
            let qp = &self.shared_qps[shared_qp];
            let psn = qp.acked;
            if qp.in_flight() == 0 || !psn.precedes(until) {
                break;
            }
            let has_result = psn.add(1) == until && found.is_some();
            if qp.entry(psn).request.what.is_atomic() && !has_result {
                // Only the atomic's own response carries its result.
                break;
            }
            self.shared_qps[shared_qp].on_ack(psn, now);
            let next = self.complete(shared_qp, found.filter(|_| has_result));
            count += 1;
            if self.config.has_bug(Bug::LostAck) && count == 1 && psn.add(1) != until {
                continue;
            }
            if let Some((id, psn, response)) = next {
                self.counters.acks.add(1);
                if let Some((id, psn, response)) = last_response.replace((id, psn, response)) {
                    self.send_response(id, psn, response, out);
                }
            }
        }
        if count > 1 {
            self.counters.coalesced.add(1);
        }
        match last_response {
            Some((id, psn, response)) => self.respond_in(frame, id, psn, response),
            None => Verdict::Consume,
        }
    }

    /// Forwards a congestion notification for the owner of a shared QP to all clients with operations in
    /// flight there.
    pub(crate) fn on_cnp<O: Output>(&mut self, frame: &O::Frame, layout: Layout, out: &mut O) {
        let packet = Packet::new(frame.bytes(), layout);
        let key = switch::forward::counters::HostQp::destination_of(&packet);
        let Some(to) = self.connections.find(&key) else { return };
        let id = self.connections.endpoint(to).peer();
        if id == NONE || self.connections.flow(id).shared_qp == NONE {
            return;
        }
        let shared_qp = &self.shared_qps[self.connections.flow(id).shared_qp];
        // At most 16 clients are notified.
        let mut notified = [NONE; 16];
        let mut count = 0;
        for n in 0..shared_qp.in_flight() {
            let client = shared_qp.entry(shared_qp.acked.add(n)).flow;
            if client == NONE || client == id || notified.contains(&client) || count == notified.len() {
                continue;
            }
            notified[count] = client;
            count += 1;
            let peer = self.connections.endpoint(client).peer();
            let (Some(end), Some(key)) = (self.connections.get_endpoint(peer), self.connections.key(peer))
            else {
                continue;
            };
            let Ok(mut copy) = out.make(0) else { return };
            let base = BthFields { becn: true, ..BthFields::new(Opcode::CNP, key.qpn(), packet.bth().psn()) };
            if end.headers.build(&mut copy, Some(TrafficClass::of(&packet)), base, &[0; 16]).is_ok() {
                self.counters.cnps.add(1);
                _ = out.send(copy, end.port);
            }
        }
    }
}
