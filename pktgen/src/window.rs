//! Receive windows of queue pairs: the highest packet received, and a bit for each of some packets behind it.
//! Packets are identified by their positions: PSNs that do not wrap at 24 bits. The receiver derives them
//! because the sender, in the same process, counts how often PSNs have wrapped.

use crate::memory::try_filled;
use rocev2::Psn;

/// Classification of a packet relative to those received before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// The highest so far
    New {
        /// Packets that were skipped, between this one and the highest before
        skipped: u32,
    },
    /// A packet that was skipped
    Late,
    /// A packet that was received before
    Duplicate,
    /// Further behind than the window: whether it was received before is not recorded
    Stale,
    /// Between two packets' positions: not a packet of the stream
    Off,
}

/// Windows of all queue pairs, contiguous in memory.
#[derive(Clone, Debug)]
pub(crate) struct Windows {
    /// By queue pair: a head word, with the position after the highest (upper half) and the number of packets
    /// up to there (lower half), then the bits
    words: Box<[u64]>,
    stride: usize,
    /// Packets that a window covers behind the highest
    reach: u32,
    /// PSNs from one packet to the next
    step: u32,
}

impl Windows {
    /// Creates windows in which nothing was received; `first` returns the first position of each queue pair.
    /// A `reach` of 0 is for a generator that receives nothing.
    ///
    /// # Errors
    ///
    /// The size in MB, if it could not be allocated.
    pub(crate) fn new(qps: u32, reach: u32, step: u32, first: impl Fn(u32) -> u32) -> Result<Self, u64> {
        let stride = stride(reach);
        // Positions before the first one count as received.
        let mut words = try_filled(stride.saturating_mul(qps as usize), u64::MAX)?;
        for qp in 0..qps {
            words[stride * qp as usize] = u64::from(first(qp)) << 32;
        }
        Ok(Self { words: words.into(), stride, reach, step })
    }

    /// Returns the memory that the windows of `qps` queue pairs need, in bytes.
    pub(crate) fn bytes_of(qps: u32, reach: u32) -> u64 {
        u64::from(qps) * stride(reach) as u64 * 8
    }

    /// Returns the memory of all windows, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.words)
    }

    /// Returns the address of a queue pair's window, for prefetching.
    #[inline]
    pub(crate) fn address_of(&self, qp: u32) -> *const u8 {
        self.words[self.stride * qp as usize..].as_ptr().cast()
    }

    /// Returns how many packets before the position `sent`, the next to be sent, are behind the highest
    /// received.
    pub(crate) fn behind(&self, qp: u32, sent: u32) -> u32 {
        let next = (self.words[self.stride * qp as usize] >> 32) as u32;
        sent.wrapping_sub(next) / self.step
    }

    #[cfg(test)]
    fn next(&self, qp: u32) -> u32 {
        (self.words[self.stride * qp as usize] >> 32) as u32
    }

    /// Returns whether the packet at this position was received, as far as the window reaches.
    pub(crate) fn has_received(&self, qp: u32, position: u32) -> bool {
        let [head, bits @ ..] = &self.words[self.stride * qp as usize..][..self.stride] else {
            unreachable!("a window has a head")
        };
        let (next, count) = ((*head >> 32) as u32, *head as u32);
        let back = (next.wrapping_sub(position) as i32) / self.step as i32;
        if back <= 0 || back.unsigned_abs() > self.reach {
            return false;
        }
        let at = count.wrapping_sub(back.unsigned_abs()) & (self.reach - 1);
        bits[at as usize / 64] & 1 << (at % 64) != 0
    }

    /// Records a packet of this PSN if it is the next one expected, of a queue pair that has sent all
    /// positions before `sent`. This is the fast path of [`record`](Self::record). Returns false and does
    /// nothing if it is another packet.
    #[expect(clippy::inline_always, reason = "called once a packet")]
    #[inline(always)]
    pub(crate) fn record_next(&mut self, qp: u32, psn: Psn, sent: u32) -> bool {
        let at = self.stride * qp as usize;
        let Some([head, bits @ ..]) = self.words.get_mut(at..at + self.stride) else { return false };
        let (next, count) = ((*head >> 32) as u32, *head as u32);
        // Further behind, the PSN might be one of another cycle.
        if Psn::new(next) != psn || sent.wrapping_sub(next).wrapping_sub(1) >= 1 << 23 {
            return false;
        }
        let Some(word) = bits.get_mut((count & (self.reach - 1)) as usize / 64) else { return false };
        *word |= 1 << (count % 64);
        *head = u64::from(next.wrapping_add(self.step)) << 32 | u64::from(count.wrapping_add(1));
        true
    }

    /// Records the packet at this position.
    pub(crate) fn record(&mut self, qp: u32, position: u32) -> Arrival {
        let [head, bits @ ..] = &mut self.words[self.stride * qp as usize..][..self.stride] else {
            unreachable!("a window has a head")
        };
        let (next, count) = ((*head >> 32) as u32, *head as u32);
        let mut distance = position.wrapping_sub(next) as i32;
        if self.step != 1 {
            if distance % self.step as i32 != 0 {
                return Arrival::Off;
            }
            distance /= self.step as i32;
        }
        let bit_of = |count: u32| ((count & (self.reach - 1)) as usize / 64, 1u64 << (count % 64));
        if distance < 0 {
            let back = distance.unsigned_abs();
            if back > self.reach {
                return Arrival::Stale;
            }
            let (word, bit) = bit_of(count.wrapping_sub(back));
            if bits[word] & bit != 0 {
                return Arrival::Duplicate;
            }
            bits[word] |= bit;
            return Arrival::Late;
        }
        let skipped = distance.unsigned_abs();
        if skipped > 0 {
            skip(bits, self.reach, count, skipped);
        }
        let (word, bit) = bit_of(count.wrapping_add(skipped));
        bits[word] |= bit;
        let next = position.wrapping_add(self.step);
        *head = u64::from(next) << 32 | u64::from(count.wrapping_add(skipped + 1));
        Arrival::New { skipped }
    }
}

/// Words of a window, with its head.
const fn stride(reach: u32) -> usize {
    1 + reach as usize / 64
}

/// Marks skipped packets as not received.
#[cold]
fn skip(bits: &mut [u64], reach: u32, count: u32, skipped: u32) {
    if skipped >= reach {
        bits.fill(0);
        return;
    }
    for n in 0..skipped {
        let at = count.wrapping_add(n) & (reach - 1);
        bits[at as usize / 64] &= !(1 << (at % 64));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    fn record_all(windows: &mut Windows, psns: &[u32]) -> Vec<Arrival> {
        psns.iter().map(|psn| windows.record(0, *psn)).collect()
    }

    #[test]
    fn classifies_new_late_duplicate_and_stale_packets() {
        let mut windows = Windows::new(2, 64, 1, |_| u32::MAX - 1).unwrap();
        let new = |skipped| Arrival::New { skipped };
        assert_eq!(
            record_all(&mut windows, &[u32::MAX - 1, 0, u32::MAX, u32::MAX, 1, u32::MAX - 2]),
            [new(0), new(1), Arrival::Late, Arrival::Duplicate, new(0), Arrival::Duplicate]
        );
        assert_eq!(
            record_all(&mut windows, &[101, 37, 38, 38, 2]),
            [new(99), Arrival::Stale, Arrival::Late, Arrival::Duplicate, Arrival::Stale]
        );
        assert_eq!(windows.record(1, u32::MAX - 1), new(0), "queue pairs have windows of their own");
    }

    #[test]
    fn packets_of_several_psns_count_by_steps() {
        let mut windows = Windows::new(1, 64, 4, |_| u32::MAX - 1).unwrap();
        let new = |skipped| Arrival::New { skipped };
        assert_eq!(
            record_all(&mut windows, &[u32::MAX - 1, 2, 3, 10, 6, 6]),
            [new(0), new(0), Arrival::Off, new(1), Arrival::Late, Arrival::Duplicate]
        );
        assert!(
            windows.has_received(0, u32::MAX - 1)
                && windows.has_received(0, 6)
                && !windows.has_received(0, 14)
        );
        assert_eq!((windows.behind(0, 14), windows.behind(0, 26)), (0, 3));
        // More of them in a row than half of the PSNs of 24 bits
        assert_eq!(record_all(&mut windows, &[14 + 4 * 3_000_000, 14]), [new(3_000_000), Arrival::Stale]);
        assert!(!windows.has_received(0, 14) && windows.has_received(0, 14 + 4 * 3_000_000));
    }

    #[test]
    fn a_reach_of_zero_needs_only_the_heads() {
        let windows = Windows::new(5, 0, 1, |qp| qp).unwrap();
        assert_eq!((windows.bytes(), windows.behind(3, 7)), (5 * 8, 4));
        let windows = Windows::new(5, 128, 1, |qp| qp).unwrap();
        assert_eq!((windows.bytes() as u64, Windows::bytes_of(5, 128)), (5 * 24, 5 * 24));
        assert!(Windows::new(u32::MAX, 1 << 31, 1, |qp| qp).is_err(), "too large to allocate");
    }

    proptest! {
        /// Compares with a set of all packets that were ever received.
        #[test]
        fn agrees_with_a_set_of_all_received_packets(
            first: u32,
            reach in prop::sample::select(vec![64u32, 256]),
            step in prop::sample::select(vec![1u32, 3, 1024]),
            jumps in proptest::collection::vec(-300i64..300, 1..400),
        ) {
            let mut windows = Windows::new(1, reach, step, |_| first).unwrap();
            let (mut received, mut next, mut at) = (HashSet::new(), 0i64, 0i64);
            for jump in jumps {
                at = (at + jump / 4).max(0);
                let position = first.wrapping_add((at as u32).wrapping_mul(step));
                let expected = if at >= next {
                    let skipped = (at - next) as u32;
                    next = at + 1;
                    received.insert(at);
                    Arrival::New { skipped }
                } else if next - at > i64::from(reach) {
                    Arrival::Stale
                } else if received.insert(at) {
                    Arrival::Late
                } else {
                    Arrival::Duplicate
                };
                // As in the receiver, the fast path is tried first.
                let sent = position.wrapping_add(step * (1 + at as u32 % 3));
                if at % 2 == 0 && windows.record_next(0, Psn::new(position), sent) {
                    prop_assert_eq!(expected, Arrival::New { skipped: 0 });
                } else {
                    let in_order = expected == Arrival::New { skipped: 0 };
                    prop_assert!(at % 2 != 0 || !in_order, "the next packet has to take the fast path");
                    prop_assert_eq!(windows.record(0, position), expected);
                }
                prop_assert!(!windows.record_next(0, Psn::new(windows.next(0)), windows.next(0)), "not sent yet");
                at += 1;
            }
        }
    }
}
