//! Links: what they do to frames, and what they have done.

use switch::{Chance, Nanos, Share};

/// Bytes of a frame on the wire that are not in it: preamble, start, frame check sequence and gap.
pub const OVERHEAD: usize = 24;

/// A link, the same in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Bits a second; 0 takes no time
    pub rate_bps: u64,
    /// From the end of sending to the arrival
    pub delay: Nanos,
    /// Up to so much on top, at random. By itself it does not change the order.
    pub jitter: Nanos,
    /// Frames that are lost
    pub loss: Share,
    /// Frames that arrive twice
    pub duplicate: Share,
    /// Frames that others overtake, as they take longer by up to [`reorder_by`](Self::reorder_by)
    pub reorder: Share,
    /// By how much at most
    pub reorder_by: Nanos,
    /// Frames of which one bit is flipped; throughout a world those that are set, or those that are not
    pub corrupt: Share,
    /// The longest IP packet; a frame may have 14 bytes more, and 4 for each VLAN tag
    pub mtu: usize,
    /// Bytes that wait for the link at most; what comes then is dropped
    pub queue: usize,
    /// Marks by the length of the queue
    pub ecn: Option<Ecn>,
}

impl Default for Link {
    /// 100 Gb/s, one microsecond, nothing bad, MTU 1500, a queue of 1 MB that marks nothing.
    fn default() -> Self {
        Self {
            rate_bps: 100_000_000_000,
            delay: Nanos::from_micros(1),
            jitter: Nanos::ZERO,
            loss: Share::NEVER,
            duplicate: Share::NEVER,
            reorder: Share::NEVER,
            reorder_by: Nanos::from_micros(20),
            corrupt: Share::NEVER,
            mtu: 1500,
            queue: 1 << 20,
            ecn: None,
        }
    }
}

impl Link {
    /// How long a frame of `len` bytes keeps it busy.
    #[inline]
    pub(crate) fn occupied(&self, len: usize) -> Nanos {
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

/// When a queue marks packets with "congestion experienced": as DCQCN's switches do (Zhu et al., SIGCOMM 2015).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ecn {
    /// Below this length nothing is marked (bytes)
    pub min: usize,
    /// From this length on everything is marked
    pub max: usize,
    /// The share that is marked just below `max`; it grows from 0 at `min`
    pub share: Share,
}

impl Ecn {
    /// Whether a packet that finds this much in the queue is marked.
    pub(crate) fn marks(&self, queued: usize, chance: &mut Chance) -> bool {
        if queued >= self.max {
            return true;
        }
        if queued < self.min {
            return false;
        }
        let part = (queued - self.min) as f64 / (self.max - self.min) as f64;
        Share::new(part * self.share.get()).is_some_and(|share| chance.happens(share))
    }
}

/// What became of the frames that were given to a link, in one direction.
///
/// `offered + duplicated` is the sum of what was refused, dropped or lost, what arrived, and what is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Counters {
    /// Frames given to it
    pub offered: u64,
    /// Longer than the MTU
    pub too_long: u64,
    /// The queue was full
    pub queue_full: u64,
    /// Sent, and their bytes
    pub sent: u64,
    /// Bytes sent
    pub bytes: u64,
    /// Lost by chance
    pub lost: u64,
    /// Lost because the link was cut
    pub cut: u64,
    /// Arrived a second time
    pub duplicated: u64,
    /// Overtaken by others
    pub reordered: u64,
    /// With a flipped bit
    pub corrupted: u64,
    /// Marked by the queue
    pub marked: u64,
    /// Arrived at a host that was down, or that did not look for too long
    pub unheard: u64,
    /// Handed to the host or switch
    pub arrived: u64,
    /// Bytes handed over
    pub arrived_bytes: u64,
    /// The longest that the queue was (bytes)
    pub longest_queue: u64,
}

impl Counters {
    /// Frames that are waiting or flying: everything that has not ended yet.
    pub fn under_way(&self) -> u64 {
        let ended = self.too_long + self.queue_full + self.lost + self.cut + self.unheard + self.arrived;
        self.offered + self.duplicated - ended
    }
}
