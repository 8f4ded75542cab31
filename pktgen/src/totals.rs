//! Counters of a generator on several workers, added up.

use crate::counters::{Counters, StreamCounters};
use crate::function::Pktgen;
use crate::part::Share;
use crate::rates::RateMark;
use std::sync::Arc;
use switch::counters::FrameCounter;

/// Index in the profile of each stream of an instance, and the share of its rate
type Streams = Vec<(usize, Share)>;

/// Counters of all instances of a generator.
#[derive(Debug)]
pub struct Totals {
    instances: Vec<(Arc<Counters>, Streams)>,
    /// Number of streams in the profile
    streams: usize,
}

impl Totals {
    /// Returns the counters of all instances of a generator. `streams` is the number of streams in its profile.
    pub fn new<'a>(instances: impl IntoIterator<Item = &'a Pktgen>, streams: usize) -> Self {
        let instances = instances.into_iter().map(|pktgen| (pktgen.counters(), pktgen.streams().collect()));
        Self { instances: instances.collect(), streams }
    }

    /// Returns the counters, by stream of the profile: those of the only instance, or a copy in which those of all
    /// instances are added up, which later changes do not reach.
    pub fn get(&self) -> Arc<Counters> {
        if let [(counters, _)] = &*self.instances {
            return Arc::clone(counters);
        }
        let total = Counters::new(self.streams);
        for (counters, streams) in &self.instances {
            total.add(counters, streams);
        }
        for (stream, total) in total.streams.iter().enumerate() {
            let marks = self.parts(stream).map(|(_, share, counters)| (RateMark::of(counters), share));
            total.sending_ns.add(RateMark::sum(marks).sending.0);
        }
        Arc::new(total)
    }

    /// Returns the parts of a stream of the profile: the instance that has each, its share, and its counters.
    pub fn parts(&self, stream: usize) -> impl Iterator<Item = (usize, Share, &StreamCounters)> {
        self.instances.iter().enumerate().filter_map(move |(instance, (counters, streams))| {
            let own = streams.iter().position(|(index, _)| *index == stream)?;
            Some((instance, streams[own].1, &counters.streams[own]))
        })
    }
}

fn add_frames(to: &FrameCounter, from: &FrameCounter) {
    let (frames, bytes) = from.get();
    to.count_many(frames, bytes);
}

impl Counters {
    /// Adds the counters of an instance, whose streams have these indices in the profile.
    fn add(&self, other: &Self, indices: &[(usize, Share)]) {
        // With every field, so that none is forgotten
        let Self {
            streams,
            faults,
            foreign,
            other: not_roce,
            no_buffer,
            port_busy,
            too_late,
            drain_expired,
            longest_away_ns,
        } = other;
        for ((index, _), stream) in indices.iter().zip(streams) {
            self.streams[*index].add(stream);
        }
        for (total, fault) in self.faults.iter().zip(faults) {
            total.add(fault.get());
        }
        self.foreign.add(foreign.get());
        self.other.add(not_roce.get());
        self.no_buffer.add(no_buffer.get());
        self.port_busy.add(port_busy.get());
        self.too_late.add(too_late.get());
        self.drain_expired.add(drain_expired.get());
        self.longest_away_ns.raise(longest_away_ns.get());
    }
}

impl StreamCounters {
    /// Adds the counters of a part of the stream.
    fn add(&self, part: &Self) {
        // With every field, so that none is forgotten. Workers may count meanwhile, so `late` is read before `skipped`, and
        // `received` before `sent`.
        let Self {
            late,
            skipped,
            received,
            responses,
            replies,
            answered,
            unanswered,
            messages,
            sent,
            malformed,
            forfeited,
            waited,
            // `Totals::get` computes the mean.
            sending_ns: _,
            behind,
            duplicates,
            stale,
            unexpected,
            reflected,
            unable,
            naks,
            cnps,
            waiting,
            stale_responses,
            unexpected_responses,
            swapped,
            not_swapped,
            latency,
            round_trip,
        } = part;
        for (total, part) in [
            (&self.late, late),
            (&self.skipped, skipped),
            (&self.answered, answered),
            (&self.unanswered, unanswered),
            (&self.messages, messages),
            (&self.forfeited, forfeited),
            (&self.waited, waited),
            (&self.behind, behind),
            (&self.duplicates, duplicates),
            (&self.stale, stale),
            (&self.unexpected, unexpected),
            (&self.reflected, reflected),
            (&self.responses, responses),
            (&self.replies, replies),
            (&self.unable, unable),
            (&self.naks, naks),
            (&self.cnps, cnps),
            (&self.waiting, waiting),
            (&self.stale_responses, stale_responses),
            (&self.unexpected_responses, unexpected_responses),
            (&self.swapped, swapped),
            (&self.not_swapped, not_swapped),
        ] {
            total.add(part.get());
        }
        add_frames(&self.received, received);
        add_frames(&self.sent, sent);
        add_frames(&self.malformed, malformed);
        self.latency.add(latency);
        self.round_trip.add(round_trip);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use switch::Nanos;
    use switch::metrics::Metrics as _;

    /// Each counter has a value of its own.
    fn counted() -> Counters {
        let counters = Counters::new(2);
        let c = &counters.streams[1];
        for (frames, at) in [&c.sent, &c.malformed, &c.received].into_iter().zip(1..) {
            frames.count_many(1 << at, 100 << at);
        }
        let all = [
            (&c.late, 1 << 12),
            (&c.skipped, 1 << 13),
            (&c.answered, 1 << 14),
            (&c.unanswered, 1 << 15),
            (&c.messages, 1 << 20),
            (&c.forfeited, 1 << 16),
            (&c.waited, 1 << 17),
            (&c.behind, 1 << 18),
            (&c.duplicates, 1 << 19),
            (&c.stale, 1 << 21),
            (&c.unexpected, 1 << 22),
            (&c.reflected, 1 << 23),
            (&c.responses, 1 << 24),
            (&c.replies, 1 << 25),
            (&c.unable, 1 << 26),
            (&c.naks, 1 << 27),
            (&c.cnps, 1 << 28),
            (&c.waiting, 1 << 29),
            (&c.stale_responses, 1 << 30),
            (&c.unexpected_responses, 1 << 31),
            (&c.swapped, 1 << 32),
            (&c.not_swapped, 1 << 33),
            (&counters.foreign, 1 << 34),
            (&counters.other, 1 << 35),
            (&counters.no_buffer, 1 << 36),
            (&counters.port_busy, 1 << 37),
            (&counters.too_late, 1 << 38),
            (&counters.faults[3], 1 << 39),
            (&counters.drain_expired, 1 << 40),
        ];
        for (counter, count) in all {
            counter.add(count);
        }
        counters.longest_away_ns.raise(1 << 41);
        c.latency.record(Nanos(3));
        c.round_trip.record(Nanos(70_000));
        counters
    }

    #[test]
    fn each_counter_is_added_to_its_own_total() {
        let (total, part) = (Counters::new(2), counted());
        total.add(&part, &[(1, Share::WHOLE), (0, Share::WHOLE)]);
        assert_eq!(total.values(), part.values());
        assert_eq!(total.streams[0].values(), part.streams[1].values());
        assert_eq!(total.streams[1].values(), StreamCounters::default().values());
        let (of_total, of_part) = (&total.streams[0], &part.streams[1]);
        assert_eq!(
            [of_total.behind.get(), of_total.waiting.get()],
            [of_part.behind.get(), of_part.waiting.get()]
        );
        assert_eq!(total.drain_expired.get(), part.drain_expired.get());
        let buckets =
            |c: &StreamCounters| [&c.latency, &c.round_trip].map(|times| times.buckets().collect::<Vec<_>>());
        assert_eq!(buckets(of_total), buckets(of_part));
        assert_eq!(total.faults[3].get(), 1 << 39);
        total.add(&part, &[(1, Share::WHOLE), (0, Share::WHOLE)]);
        assert_eq!((total.foreign.get(), total.longest_away_ns.get()), (1 << 35, 1 << 41));
    }
}
