//! Links: their parameters and their counters.

use switch::{Nanos, Probability, Rng, metrics};

/// Bytes of a frame on the link that are not part of its buffer: preamble, start delimiter, frame check
/// sequence and inter-packet gap.
pub const OVERHEAD: usize = 24;

/// Handle of a link of the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub(crate) usize);

/// Parameters of a link; both directions have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Bits per second; 0 means that sending takes no time
    pub rate_bps: u64,
    /// Propagation delay: from the end of sending to the arrival
    pub delay: Nanos,
    /// Upper bound of the random extra delay of each frame. Jitter alone does not reorder frames
    pub jitter: Nanos,
    /// Share of frames that are lost
    pub loss: Probability,
    /// Share of frames that arrive twice
    pub duplicate: Probability,
    /// Share of frames that later frames overtake, because they take longer by up to
    /// [`reorder_by`](Self::reorder_by)
    pub reorder: Probability,
    /// Upper bound of a reordered frame's extra delay
    pub reorder_by: Nanos,
    /// Share of frames of which one bit is flipped. In one world all damage sets bits, or all damage clears
    /// bits
    pub corrupt: Probability,
    /// MTU: bytes of the longest IP packet. A frame may have 14 bytes more, and 4 more for each VLAN tag
    pub mtu: usize,
    /// Capacity of the send queue in bytes; frames that do not fit are dropped
    pub queue: usize,
    /// ECN marking by queue length
    pub ecn: Option<Ecn>,
}

impl Default for Link {
    /// 100 Gb/s, 1 us delay, no loss or damage, MTU 1500, a queue of 1 MB without marking.
    fn default() -> Self {
        Self {
            rate_bps: 100_000_000_000,
            delay: Nanos::from_micros(1),
            jitter: Nanos::ZERO,
            loss: Probability::NEVER,
            duplicate: Probability::NEVER,
            reorder: Probability::NEVER,
            reorder_by: Nanos::from_micros(20),
            corrupt: Probability::NEVER,
            mtu: 1500,
            queue: 1 << 20,
            ecn: None,
        }
    }
}

impl Link {
    /// Returns for how long a frame of `len` bytes occupies the link.
    #[inline]
    pub(crate) fn transmission_time(&self, len: usize) -> Nanos {
        if self.rate_bps == 0 {
            return Nanos::ZERO;
        }
        let bits = (len + OVERHEAD) as u64 * 8;
        match bits.checked_mul(1_000_000_000) {
            Some(product) => Nanos(product.div_ceil(self.rate_bps)),
            None => Nanos((u128::from(bits) * 1_000_000_000).div_ceil(u128::from(self.rate_bps)) as u64),
        }
    }
}

/// RED-like ECN marking by queue length, as DCQCN's switches do it (Zhu et al., SIGCOMM 2015).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ecn {
    /// Queue length in bytes below which no packet is marked
    pub min: usize,
    /// Queue length in bytes from which on every packet is marked
    pub max: usize,
    /// Share of packets that are marked just below `max`; it grows linearly from 0 at `min`
    pub share: Probability,
}

impl Ecn {
    /// Returns whether to mark a packet that finds `queued` bytes in the queue.
    pub(crate) fn marks(&self, queued: usize, rng: &mut Rng) -> bool {
        if queued >= self.max {
            return true;
        }
        if queued < self.min {
            return false;
        }
        let part = (queued - self.min) as f64 / (self.max - self.min) as f64;
        Probability::new(part * self.share.get()).is_some_and(|share| rng.happens(share))
    }
}

metrics! {
    /// Frames of one direction of a link, by outcome.
    ///
    /// `offered + duplicated` is the sum of `too_long`, `queue_full`, `lost`, `cut`, `undelivered`, `arrived` and the
    /// frames that are still [under way](Self::under_way).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct Counters {
        /// Frames that the node gave to the link
        pub offered: u64 [frames as offered / _],
        /// Frames dropped because they exceed the MTU
        pub too_long: u64 [frames as too_long / _],
        /// Frames dropped because the queue was full
        pub queue_full: u64 [frames as queue_full / _],
        /// Frames sent on the link
        pub sent: u64 [frames as sent / _],
        /// Bytes sent on the link
        pub bytes: u64,
        /// Frames lost at random
        pub lost: u64 [frames as lost / _],
        /// Frames lost because the link was cut
        pub cut: u64 [frames as cut / _],
        /// Frames that arrived a second time
        pub duplicated: u64 [frames as duplicated / _],
        /// Frames that later ones may have overtaken
        pub reordered: u64 [frames as reordered / _],
        /// Frames with a flipped bit
        pub corrupted: u64 [frames as corrupted / _],
        /// Frames that the queue marked with "congestion experienced"
        pub marked: u64 [frames as marked / _],
        /// Frames that arrived at a node that was down, or paused with a full inbox, or that crashed before
        /// it continued
        pub undelivered: u64 [frames as unheard / _],
        /// Frames handed to the host or switch
        pub arrived: u64 [frames as arrived / _],
        /// Bytes handed to the host or switch
        pub arrived_bytes: u64 [bytes as arrived_bytes / _],
        /// Longest queue so far (bytes)
        pub longest_queue: u64,
    }
}

impl Counters {
    /// Returns the number of frames in the queue or in flight.
    pub fn under_way(&self) -> u64 {
        let ended = self.too_long + self.queue_full + self.lost + self.cut + self.undelivered + self.arrived;
        self.offered + self.duplicated - ended
    }
}
