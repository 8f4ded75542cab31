//! What can be said of a queue pair's requests only at the end of the capture.

use super::{OVERDUE_NS, Requests, Responder, Sink, report_missing};
use crate::diagnose::finding::{Detail, Event, Kind};
use crate::diagnose::packet::Sight;

/// Packets sent again from which on a connection has a retransmission storm, if they are a quarter of all
const STORM: u64 = 32;
/// Retransmissions of one packet in a row that are a storm, too
const STUCK: u32 = 4;

impl Requests {
    /// Reports what can be said only at the end of the capture.
    pub(crate) fn finish(&mut self, end: Sight, mut sink: impl Sink) {
        if self.packets == 0 {
            return;
        }
        self.holes.iter().for_each(|hole| report_missing(hole, &mut sink));
        self.settle();
        self.finish_unanswered(end, &mut sink);
        if let Some(nak) = self.nak.filter(|nak| end.since(nak.sight) > OVERDUE_NS) {
            let kind = if nak.rnr { Kind::RnrExhausted } else { Kind::NakUnheeded };
            let detail = Detail::Psns { from: nak.psn, len: 1 };
            sink(Event::new(kind, 1, nak.sight, detail));
        }
        let storm = self.repeated >= STORM && self.repeated * 4 >= self.packets;
        if storm || self.most_times >= STUCK {
            let (packets, repeated, retries) = (self.packets, self.repeated, self.retries);
            let detail = Detail::Storm { packets, repeated, retries, most: self.most_times };
            sink(Event::new(Kind::RetransmissionStorm, repeated, self.first, detail));
        }
        if self.reordered > 0 {
            sink(Event::new(Kind::Reordered, self.reordered, self.first_reordered, Detail::None));
        }
    }

    fn finish_unanswered(&self, end: Sight, sink: &mut impl Sink) {
        let [first, second] = self.first_timeouts;
        let overdue = self.waiting.filter(|sight| {
            self.responder != Responder::Refusing && self.nak.is_none() && end.since(*sight) > OVERDUE_NS
        });
        let mut event = Event {
            kind: Kind::RequestOrResponseLost,
            count: self.timeouts,
            sights: [first, second],
            detail: Detail::None,
        };
        let stuck = self.stuck.times >= 2 && !self.stuck.answered;
        if self.timeouts > 0 && self.responder == Responder::Silent {
            event.kind = Kind::NoResponse;
            event.sights = [Some(self.first), first];
        } else if stuck && self.stuck.payload_len > self.answered_len && self.answered_len > 0 {
            event.kind = Kind::MtuBlackHole;
            event.detail = Detail::Mtu { seen: self.stuck.payload_len, expected: self.answered_len };
        } else if let Some(sight) = overdue {
            event = Event::new(Kind::NoResponse, 1, sight, Detail::Time { ns: end.since(sight) });
        } else if self.timeouts == 0 {
            if self.acknowledged && self.responder == Responder::Silent && self.packets >= 16 {
                sink(Event::new(Kind::OneDirection, self.packets, self.first, Detail::None));
            }
            return;
        }
        sink(event);
    }
}
