//! Which packets of a queue pair have come: the highest, and a bit for each of some behind it. Packets are known by their
//! positions: PSNs that do not wrap with 24 bits, because the sender, which is in the same process, knows how often they have.

use crate::memory::filled;
use rocev2::Psn;

/// What a packet is to those that came before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// The highest so far, so many behind the next one
    New {
        /// Packets that were skipped
        skipped: u32,
    },
    /// One that was skipped
    Late,
    /// One that came before
    Duplicate,
    /// So far behind that nobody knows whether it came before
    Stale,
    /// Between two packets: not one of the stream's
    Off,
}

/// A window for each queue pair, one behind the other in memory.
#[derive(Clone, Debug)]
pub(crate) struct Windows {
    /// By queue pair: the position after the highest (upper half) and the number of packets up to there (lower half), then the
    /// bits
    words: Box<[u64]>,
    stride: usize,
    /// Packets that a window reaches back
    reach: u32,
    /// PSNs from one packet to the next
    step: u32,
}

impl Windows {
    /// `first` says where the positions of each queue pair begin. Windows that reach nowhere are for who receives nothing. An error
    /// is how many MB there are not.
    pub(crate) fn new(qps: u32, reach: u32, step: u32, first: impl Fn(u32) -> u32) -> Result<Self, u64> {
        let stride = stride(reach);
        // What comes before the first counts as if it had come.
        let mut words = filled(stride.saturating_mul(qps as usize), u64::MAX)?;
        for qp in 0..qps {
            words[stride * qp as usize] = u64::from(first(qp)) << 32;
        }
        Ok(Self { words: words.into(), stride, reach, step })
    }

    /// What so many of them take in memory.
    pub(crate) fn bytes_of(qps: u32, reach: u32) -> u64 {
        u64::from(qps) * stride(reach) as u64 * 8
    }

    /// What all of them take in memory.
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.words)
    }

    /// Where what is known of a queue pair lies in memory.
    #[inline]
    pub(crate) fn place(&self, qp: u32) -> *const u8 {
        self.words[self.stride * qp as usize..].as_ptr().cast()
    }

    /// Packets up to `sent`, the position that is next to be sent, that come behind the highest that has come.
    pub(crate) fn behind(&self, qp: u32, sent: u32) -> u32 {
        let next = (self.words[self.stride * qp as usize] >> 32) as u32;
        sent.wrapping_sub(next) / self.step
    }

    #[cfg(test)]
    fn next(&self, qp: u32) -> u32 {
        (self.words[self.stride * qp as usize] >> 32) as u32
    }

    /// Whether the packet at this position has come, as far back as that is known.
    pub(crate) fn came(&self, qp: u32, position: u32) -> bool {
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

    /// A packet of this PSN has come that is the very next one, of a queue pair of which all before `sent` has been sent: as
    /// [`see`](Self::see) does, for what most packets are. False, and nothing is done, if it is another.
    #[expect(clippy::inline_always, reason = "asked once a packet")]
    #[inline(always)]
    pub(crate) fn see_next(&mut self, qp: u32, psn: Psn, sent: u32) -> bool {
        let at = self.stride * qp as usize;
        let Some([head, bits @ ..]) = self.words.get_mut(at..at + self.stride) else { return false };
        let (next, count) = ((*head >> 32) as u32, *head as u32);
        // Further behind, a PSN might be one of another round.
        if Psn::new(next) != psn || sent.wrapping_sub(next).wrapping_sub(1) >= 1 << 23 {
            return false;
        }
        let Some(word) = bits.get_mut((count & (self.reach - 1)) as usize / 64) else { return false };
        *word |= 1 << (count % 64);
        *head = u64::from(next.wrapping_add(self.step)) << 32 | u64::from(count.wrapping_add(1));
        true
    }

    /// The packet at this position has come.
    pub(crate) fn see(&mut self, qp: u32, position: u32) -> Seen {
        let [head, bits @ ..] = &mut self.words[self.stride * qp as usize..][..self.stride] else {
            unreachable!("a window has a head")
        };
        let (next, count) = ((*head >> 32) as u32, *head as u32);
        let mut distance = position.wrapping_sub(next) as i32;
        if self.step != 1 {
            if distance % self.step as i32 != 0 {
                return Seen::Off;
            }
            distance /= self.step as i32;
        }
        let place = |count: u32| ((count & (self.reach - 1)) as usize / 64, 1u64 << (count % 64));
        if distance < 0 {
            let back = distance.unsigned_abs();
            if back > self.reach {
                return Seen::Stale;
            }
            let (word, bit) = place(count.wrapping_sub(back));
            if bits[word] & bit != 0 {
                return Seen::Duplicate;
            }
            bits[word] |= bit;
            return Seen::Late;
        }
        let skipped = distance.unsigned_abs();
        if skipped > 0 {
            skip(bits, self.reach, count, skipped);
        }
        let (word, bit) = place(count.wrapping_add(skipped));
        bits[word] |= bit;
        let next = position.wrapping_add(self.step);
        *head = u64::from(next) << 32 | u64::from(count.wrapping_add(skipped + 1));
        Seen::New { skipped }
    }
}

/// Words of a window.
const fn stride(reach: u32) -> usize {
    1 + reach as usize / 64
}

/// None of these has come.
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

    fn see(windows: &mut Windows, psns: &[u32]) -> Vec<Seen> {
        psns.iter().map(|psn| windows.see(0, *psn)).collect()
    }

    #[test]
    fn each_kind() {
        let mut windows = Windows::new(2, 64, 1, |_| u32::MAX - 1).unwrap();
        let new = |skipped| Seen::New { skipped };
        assert_eq!(
            see(&mut windows, &[u32::MAX - 1, 0, u32::MAX, u32::MAX, 1, u32::MAX - 2]),
            [new(0), new(1), Seen::Late, Seen::Duplicate, new(0), Seen::Duplicate]
        );
        assert_eq!(
            see(&mut windows, &[101, 37, 38, 38, 2]),
            [new(99), Seen::Stale, Seen::Late, Seen::Duplicate, Seen::Stale]
        );
        assert_eq!(windows.see(1, u32::MAX - 1), new(0), "queue pairs have their own");
    }

    #[test]
    fn steps() {
        let mut windows = Windows::new(1, 64, 4, |_| u32::MAX - 1).unwrap();
        let new = |skipped| Seen::New { skipped };
        assert_eq!(
            see(&mut windows, &[u32::MAX - 1, 2, 3, 10, 6, 6]),
            [new(0), new(0), Seen::Off, new(1), Seen::Late, Seen::Duplicate]
        );
        assert!(windows.came(0, u32::MAX - 1) && windows.came(0, 6) && !windows.came(0, 14));
        assert_eq!((windows.behind(0, 14), windows.behind(0, 26)), (0, 3));
        // More of them in a row than half of the PSNs of 24 bits
        assert_eq!(see(&mut windows, &[14 + 4 * 3_000_000, 14]), [new(3_000_000), Seen::Stale]);
        assert!(!windows.came(0, 14) && windows.came(0, 14 + 4 * 3_000_000));
    }

    #[test]
    fn who_receives_nothing_needs_none() {
        let windows = Windows::new(5, 0, 1, |qp| qp).unwrap();
        assert_eq!((windows.bytes(), windows.behind(3, 7)), (5 * 8, 4));
        let windows = Windows::new(5, 128, 1, |qp| qp).unwrap();
        assert_eq!((windows.bytes() as u64, Windows::bytes_of(5, 128)), (5 * 24, 5 * 24));
        assert!(Windows::new(u32::MAX, 1 << 31, 1, |qp| qp).is_err(), "nobody has got so much");
    }

    proptest! {
        /// Against a set of all that ever came.
        #[test]
        fn agrees_with_a_memory_of_everything(
            first: u32,
            reach in prop::sample::select(vec![64u32, 256]),
            step in prop::sample::select(vec![1u32, 3, 1024]),
            jumps in proptest::collection::vec(-300i64..300, 1..400),
        ) {
            let mut windows = Windows::new(1, reach, step, |_| first).unwrap();
            let (mut came, mut next, mut at) = (HashSet::new(), 0i64, 0i64);
            for jump in jumps {
                at = (at + jump / 4).max(0);
                let position = first.wrapping_add((at as u32).wrapping_mul(step));
                let expected = if at >= next {
                    let skipped = (at - next) as u32;
                    next = at + 1;
                    came.insert(at);
                    Seen::New { skipped }
                } else if next - at > i64::from(reach) {
                    Seen::Stale
                } else if came.insert(at) {
                    Seen::Late
                } else {
                    Seen::Duplicate
                };
                // Most packets are asked for by their PSN first.
                let sent = position.wrapping_add(step * (1 + at as u32 % 3));
                if at % 2 == 0 && windows.see_next(0, Psn::new(position), sent) {
                    prop_assert_eq!(expected, Seen::New { skipped: 0 });
                } else {
                    let in_order = expected == Seen::New { skipped: 0 };
                    prop_assert!(at % 2 != 0 || !in_order, "it was the very next one");
                    prop_assert_eq!(windows.see(0, position), expected);
                }
                prop_assert!(!windows.see_next(0, Psn::new(windows.next(0)), windows.next(0)), "it was not sent yet");
                at += 1;
            }
        }
    }
}
