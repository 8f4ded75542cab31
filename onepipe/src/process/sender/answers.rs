//! Results of sent messages: ACKs, NAKs, and timeouts.

use crate::header::{AckBody, NakBody, OnePipe, Timestamp};
use switch::Nanos;
use zerocopy::FromBytes;

use super::super::config::cost;
use super::super::counters::Refusal;
use super::super::types::{Failure, Scattering};
use super::Sender;
use super::outbound::{InFlight, PartOf, Report};

impl Sender {
    /// Handles an ACK.
    pub(in super::super) fn on_ack(
        &mut self,
        peer: u32,
        header: &OnePipe,
        payload: &[u8],
        now: Nanos,
    ) -> Result<(), Refusal> {
        let (arrivals, _) = AckBody::read_from_prefix(payload).map_err(|_| Refusal::NoHeader)?;
        let outbound = self.receivers[peer as usize].as_mut().ok_or(Refusal::Answer)?;
        let has_restarted = outbound.on_ack(header.psn(), &arrivals, now)?;
        let report = Report::new(header.psn(), &arrivals, has_restarted);
        self.counters.acks_taken.add(1);
        let (mut at, mut acknowledged) = (0, 0);
        while let Some(outbound) = &mut self.receivers[peer as usize]
            && let Some((part_of, result)) = outbound.reported(at, &report)
        {
            let Some(result) = result else {
                at += 1;
                continue;
            };
            outbound.remove(at);
            if let (Ok(()), PartOf::Alone { number, time }) = (result, part_of) {
                self.results.report_settled(Scattering(number), Some(Timestamp::new(time)), 0);
                acknowledged += 1;
                continue;
            }
            if result == Err(Failure::Lost) {
                outbound.on_loss();
            }
            self.settle_sent(peer, part_of, result);
        }
        self.results.settle(acknowledged);
        self.results.acknowledge(acknowledged as u64);
        self.advance(peer, now);
        Ok(())
    }

    /// Handles a NAK.
    pub(in super::super) fn on_nak(
        &mut self,
        peer: u32,
        header: &OnePipe,
        payload: &[u8],
        now: Nanos,
    ) -> Result<(), Refusal> {
        let (refused, _) = NakBody::read_from_prefix(payload).map_err(|_| Refusal::NoHeader)?;
        let psn = header.psn();
        let outbound = self.receivers[peer as usize].as_mut().ok_or(Refusal::Answer)?;
        let failure = match refused.reason {
            NakBody::LATE => Failure::Late,
            NakBody::NO_ROOM => Failure::NoRoom,
            _ => Failure::Lost,
        };
        let part_of = if let Some(part_of) = outbound.take_with(psn) {
            part_of
        } else if let Some((index, run)) = outbound.first()
            && self.scatterings.get(index).has_sent(run, psn)
        {
            // The receiver refuses the whole run, so the rest is not sent.
            outbound.pop();
            PartOf::Scattering((index, run))
        } else {
            return Err(Refusal::Answer);
        };
        if failure == Failure::Lost {
            outbound.on_loss();
        }
        self.counters.naks_taken.add(1);
        self.settle_sent(peer, part_of, Err(failure));
        self.advance(peer, now);
        Ok(())
    }

    /// Handles all timers that are due.
    pub(in super::super) fn on_timer(&mut self, now: Nanos) {
        while let Some(peer) = self.timers.pop_due(now) {
            self.on_timeout(peer, now);
        }
    }

    /// Returns the time of the next call of [`on_timer`](Self::on_timer).
    #[inline]
    pub(in super::super) fn next_timer(&self) -> Option<Nanos> {
        self.timers.first()
    }

    /// Handles the timeout of a receiver: settles runs that were not acknowledged in time.
    fn on_timeout(&mut self, peer: u32, now: Nanos) {
        let timeout = self.settings.timeout;
        let mut timed_out = false;
        while let Some(outbound) = &mut self.receivers[peer as usize] {
            let due = |at: Nanos| at + timeout <= now;
            if let Some(&InFlight { last, sent_at, part_of, .. }) = outbound.oldest() {
                if !due(sent_at) {
                    self.timers.arm(peer, sent_at + timeout);
                    break;
                }
                outbound.presume_gone(last);
                outbound.pop_oldest();
                self.settle_sent(peer, part_of, Err(Failure::NotAcknowledged));
                timed_out = true;
                continue;
            }
            if !outbound.is_under_way() && !outbound.is_blocked() {
                break;
            }
            if !due(outbound.last()) {
                self.timers.arm(peer, outbound.last() + timeout);
                break;
            }
            if !outbound.is_under_way() {
                outbound.presume_room(cost(self.settings.fragment), now);
                break;
            }
            outbound.presume_all_gone();
            timed_out = true;
            if let Some((index, run)) = outbound.first()
                && self.scatterings.get(index).sent_packets(run).is_some()
            {
                outbound.pop();
                self.settle((index, run), Err(Failure::NotAcknowledged));
            }
        }
        if let Some(outbound) = &mut self.receivers[peer as usize]
            && timed_out
        {
            outbound.on_timeout();
        }
        self.advance(peer, now);
    }
}
