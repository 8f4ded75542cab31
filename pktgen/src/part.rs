//! Parts of streams: which queue pairs of a stream each of several workers has, and how frames find their worker.

use crate::limits::MAX_QPS;
use crate::profile::{Choice, Profile, Stream, Verb};
use core::net::IpAddr;
use rocev2::ethernet::Ethernet;
use rocev2::ipv4::Ipv4;
use rocev2::udp::Udp;
use rocev2::{Class, Packet, Qpn, classify, destination_qp, usual_bth};

/// Share of a stream's rate that one worker has: that of its queue pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Queue pairs of the part, and of the stream
    pub(crate) own: u32,
    pub(crate) all: u32,
    /// Number of the part, and how many parts there are
    pub(crate) part: u32,
    pub(crate) parts: u32,
}

impl Share {
    /// A whole stream
    pub(crate) const WHOLE: Self = Self { own: 1, all: 1, part: 0, parts: 1 };

    /// Returns the share of a rate, rounded down.
    pub(crate) fn of(self, rate: u64) -> u64 {
        (u128::from(rate) * u128::from(self.own) / u128::from(self.all)) as u64
    }
}

/// A worker's part of a stream: consecutive queue pairs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// Index of the stream in the profile
    pub(crate) index: usize,
    /// Number of the first queue pair, counted from the stream's first
    pub(crate) first_qp: u32,
    /// The stream, with the queue pairs and packets of the part
    pub(crate) stream: Stream,
    pub(crate) share: Share,
}

/// Offset of the BTH behind an IPv4 header without options
const V4: usize = Ethernet::LEN + Ipv4::LEN + Udp::LEN;
/// Scale of [`Placement::parts_each`]
const SHIFT: u32 = 41;
const _: () = assert!((MAX_QPS as u64).pow(2) < 1 << SHIFT && (MAX_QPS as u64) << SHIFT < u64::MAX);

/// Where the parts of a stream are.
#[derive(Clone, Debug)]
struct Placement {
    src: IpAddr,
    dst: IpAddr,
    first_qpn: u32,
    qps: u32,
    parts: u32,
    /// Parts for each queue pair, as a fraction of 2^[`SHIFT`]
    parts_each: u64,
    /// Worker of the first part; the others follow
    first_worker: usize,
}

impl Placement {
    fn new(stream: &Stream, parts: u32, first_worker: usize) -> Self {
        Self {
            src: stream.src.ip,
            dst: stream.dst.ip,
            first_qpn: stream.first_qpn.get(),
            qps: stream.qps,
            parts,
            parts_each: (u64::from(parts) << SHIFT).div_ceil(stream.qps.into()),
            first_worker,
        }
    }

    /// Returns the number of the first queue pair of a part, or of the end.
    fn start(&self, part: u32) -> u32 {
        (u64::from(part) * u64::from(self.qps)).div_ceil(self.parts.into()) as u32
    }

    /// Returns a part's share of the rate.
    fn share(&self, part: u32) -> Share {
        let own = self.start(part + 1) - self.start(part);
        Share { own, all: self.qps, part, parts: self.parts }
    }

    /// Returns how many of a stream's packets a part sends. The messages that its rate makes due by the time at which one
    /// worker would have sent all are its own; if they are too many or too few, the first parts send the others.
    fn packets_of(&self, part: u32, stream: &Stream, packets: u64) -> u64 {
        let lengths = || stream.sizes.iter().map(|size| u64::from(stream.packets_of(*size)));
        let length = match lengths().max() {
            Some(longest) if !stream.verb.has_payload() || lengths().min() != Some(longest) => 1,
            longest => longest.unwrap_or(1),
        };
        let messages = u128::from(packets / length);
        let due = |part| {
            let Share { own, all, part, parts } = self.share(part);
            let (own, all, parts) = (u128::from(own), u128::from(all), u128::from(parts));
            (messages * own * parts + all * (parts - 1 - u128::from(part))) / (all * parts)
        };
        // The parts before have taken theirs.
        let mut left = messages;
        let later = |part: u32| (part + 1..self.parts).map(due).sum::<u128>();
        let mut own = 0;
        for part in 0..=part {
            own = left.min(due(part) + u128::from(left > due(part) + later(part)));
            left -= own;
        }
        let rest = if part == 0 { packets % length } else { 0 };
        own as u64 * length + rest
    }

    /// Returns a part of the stream.
    fn part(&self, index: usize, stream: &Stream, part: u32) -> Part {
        let (first_qp, end) = (self.start(part), self.start(part + 1));
        let own = end - first_qp;
        let packets = |packets| self.packets_of(part, stream, packets);
        let burst = |burst: u16| (u32::from(burst) * own).div_ceil(self.qps) as u16;
        Part {
            index,
            first_qp,
            stream: Stream {
                first_qpn: Qpn::new(self.first_qpn + first_qp),
                qps: own,
                packets: stream.packets.map(packets),
                burst: stream.burst.map(burst),
                ..stream.clone()
            },
            share: self.share(part),
        }
    }

    /// Returns the part that has a queue pair.
    #[inline]
    fn part_of(&self, qp: u32) -> u32 {
        // Exact: what the fraction was rounded up by adds up to less than the least distance to the next part.
        ((u64::from(qp) * self.parts_each) >> SHIFT) as u32
    }

    #[inline]
    const fn has(&self, qpn: u32) -> bool {
        qpn.wrapping_sub(self.first_qpn) < self.qps
    }

    /// Returns whether the stream has packets to this host and queue pair: requests or responses.
    #[inline]
    fn is_to(&self, host: IpAddr, qpn: u32) -> bool {
        self.has(qpn) && (host == self.dst || host == self.src)
    }
}

/// The division of a profile among workers.
#[derive(Clone, Debug)]
pub(crate) struct Division {
    workers: usize,
    streams: Box<[Placement]>,
    /// Whether the number of a queue pair determines its stream, without the host
    is_by_number: bool,
}

/// Returns why all queue pairs of a stream have to be at one worker, if they have to.
pub(crate) fn undivided(stream: &Stream, responds: bool) -> Option<&'static str> {
    match stream.verb {
        Verb::CompareSwap | Verb::FetchAdd if responds => Some("one responder has the words of its atomics"),
        Verb::OnePipeMessage | Verb::OnePipeBeacon => {
            Some("timestamps on a link may not fall, so one worker sends all of 1Pipe's")
        }
        _ if matches!(stream.pick, Choice::Zipf { .. }) => Some("Zipf's law is that of all its queue pairs"),
        _ => None,
    }
}

impl Division {
    /// Divides a profile among workers.
    pub(crate) fn new(profile: &Profile, workers: usize) -> Self {
        let mut next = 0;
        let streams = profile.streams.iter().map(|stream| {
            let most = if undivided(stream, profile.respond).is_none() { workers } else { 1 };
            let parts = (stream.qps as usize).min(most);
            // All of 1Pipe's streams are at one worker, for the order of their timestamps.
            let first_worker = if stream.verb.is_onepipe() { 0 } else { next };
            if !stream.verb.is_onepipe() {
                next = (next + parts) % workers;
            }
            Placement::new(stream, parts as u32, first_worker)
        });
        let streams: Box<[_]> = streams.collect();
        let mut ranges: Vec<_> = streams.iter().map(|stream| (stream.first_qpn, stream.qps)).collect();
        ranges.sort_unstable();
        let is_by_number = ranges.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0);
        Self { workers, streams, is_by_number }
    }

    /// Returns the number of workers.
    pub(crate) const fn workers(&self) -> usize {
        self.workers
    }

    /// Returns the worker that has the first part of a stream.
    pub(crate) const fn first_worker(&self, stream: usize) -> usize {
        self.streams[stream].first_worker
    }

    /// Returns the parts of a worker.
    pub(crate) fn parts(&self, profile: &Profile, worker: usize) -> Vec<Part> {
        let of_stream = |(index, (placement, stream)): (usize, (&Placement, &Stream))| {
            let number = (worker + self.workers - placement.first_worker) % self.workers;
            let part = u32::try_from(number).ok().filter(|part| *part < placement.parts)?;
            Some(placement.part(index, stream, part))
        };
        self.streams.iter().zip(&profile.streams).enumerate().filter_map(of_stream).collect()
    }

    /// Returns the worker that has the queue pair of a frame, or `None` if it belongs to no stream.
    #[inline]
    pub(crate) fn owner(&self, frame: &[u8]) -> Option<usize> {
        let qpn = destination_qp(frame)?.get();
        let mut streams = self.streams.iter();
        let placement = if self.is_by_number {
            streams.find(|placement| placement.has(qpn))?
        } else {
            let host = destination(frame)?;
            streams.find(|placement| placement.is_to(host, qpn))?
        };
        let part = placement.part_of(qpn - placement.first_qpn);
        let worker = placement.first_worker + part as usize;
        Some(if worker < self.workers { worker } else { worker - self.workers })
    }
}

/// Returns the destination address of a RoCEv2 packet.
fn destination(frame: &[u8]) -> Option<IpAddr> {
    let bytes = |at: usize| frame.get(at..);
    match usual_bth(frame) {
        Some(V4) => Some(IpAddr::from(*bytes(Ethernet::LEN + 16)?.first_chunk::<4>()?)),
        Some(_) => Some(IpAddr::from(*bytes(Ethernet::LEN + 24)?.first_chunk::<16>()?)),
        None => {
            let Class::Roce(layout) = classify(frame) else { return None };
            let packet = Packet::new(frame, layout);
            let v4 = packet.ipv4().map(|header| IpAddr::from(header.dst));
            v4.or_else(|| packet.ipv6().map(|header| IpAddr::from(header.dst)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::function::tests::stream;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_queue_pair_is_in_the_part_that_begins_at_or_below_it(
            qps in prop_oneof![1u32..200, 1..=MAX_QPS, Just(MAX_QPS)],
            parts in 1u32..=128,
            at in 0u32..MAX_QPS,
        ) {
            let parts = parts.min(qps);
            let placement = Placement::new(&stream(Verb::Write, 2, qps), parts, 0);
            let ends = (0..parts).flat_map(|part| [placement.start(part), placement.start(part + 1) - 1]);
            for qp in ends.chain([at % qps]) {
                let part = placement.part_of(qp);
                prop_assert!(placement.start(part) <= qp && qp < placement.start(part + 1));
            }
            prop_assert_eq!((placement.start(0), placement.start(parts)), (0, qps));
        }

        #[test]
        fn packets_are_divided_by_queue_pairs(qps in 1u32..50, parts in 1u32..9, packets in 1u64..100_000) {
            let parts = parts.min(qps);
            let stream = stream(Verb::Read, 2, qps);
            let placement = Placement::new(&stream, parts, 0);
            for part in 0..parts {
                let own = placement.packets_of(part, &stream, packets);
                let share = placement.share(part);
                let exact = u128::from(packets) * u128::from(share.own) / u128::from(share.all);
                // One for what the part has of its first packet, one to make the sum right
                prop_assert!(u128::from(own).abs_diff(exact) <= 2, "{} of {}, {}", own, packets, exact);
            }
        }
    }
}
