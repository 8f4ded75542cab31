//! Several workers of a switch: which one receives a frame, rings to the frame's owner, and workers that pause.

use std::collections::VecDeque;
use switch::memory::MemoryFrame;
use switch::{Full, Nanos, PortId, Rng};

/// Workers of a switch, and how frames get to their owners.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workers {
    /// Number of workers
    pub count: usize,
    /// Longest time that a frame waits in a ring to another worker, if that worker does not pause: of a function with
    /// senders, about the longest time of a turn
    pub delay: Nanos,
    /// Frames for which a ring has room
    pub ring: usize,
    /// Frames between two pauses of a worker, on average; 0 if none pauses
    pub pause_every: u64,
    /// Longest pause
    pub pause: Nanos,
    /// Whether each port has one receive queue. Otherwise its flows are spread over all workers
    pub one_queue: bool,
    /// Seed of all draws
    pub seed: u64,
}

impl Workers {
    /// A single worker, which never pauses
    pub const ONE: Self = Self {
        count: 1,
        delay: Nanos::ZERO,
        ring: usize::MAX,
        pause_every: 0,
        pause: Nanos::ZERO,
        one_queue: true,
        seed: 0,
    };

    /// Draws two to four workers whose turns take some microseconds, with rings that hold 64 to 1,024 frames and
    /// without pauses: for functions with senders ([`switch::Function::HAS_SENDERS`]), whose neighbours notice a longer turn.
    pub fn of_senders(seed: u64) -> Self {
        let mut rng = Rng::stream(seed, 0x7365_6e64_6572_7300);
        Self {
            count: rng.between(2, 4) as usize,
            delay: Nanos(*rng.pick(&[0, 500, 2_000, 4_000])),
            ring: *rng.pick(&[64, 256, 1024]),
            seed,
            ..Self::ONE
        }
    }

    /// Draws two to four workers from the seed, rings that delay frames by up to 50 us and hold 64 to 1,024 of them,
    /// and pauses of up to 2 ms. With much longer delays, or smaller rings, NICs offer more retransmissions in an ACK
    /// timeout than a ring carries, and go-back-N makes no progress.
    pub fn drawn(seed: u64) -> Self {
        let mut rng = Rng::stream(seed, 0x776f_726b_6572_7300);
        Self {
            count: rng.between(2, 4) as usize,
            delay: Nanos(*rng.pick(&[0, 2_000, 50_000])),
            ring: *rng.pick(&[64, 256, 1024]),
            pause_every: *rng.pick(&[0, 1_000, 10_000]),
            pause: Nanos(rng.between(10_000, 2_000_000)),
            one_queue: rng.below(2) == 0,
            seed,
        }
    }
}

/// A frame that waits for its owner.
struct Waiting {
    /// When the owner takes it
    at: Nanos,
    frame: MemoryFrame,
    port: PortId,
}

/// Frames on their way from the worker that received them to the one that handles them.
pub(crate) struct InputRings {
    workers: Workers,
    rng: Rng,
    /// Ring from each worker (outer) to each other (inner); that from a worker to itself stands for the receive queues,
    /// in which frames wait while it pauses
    rings: Vec<Vec<VecDeque<Waiting>>>,
    /// End of each worker's pause
    paused_until: Vec<Nanos>,
}

impl InputRings {
    pub(crate) fn new(workers: Workers) -> Self {
        assert!(workers.count > 0, "a switch has at least one worker");
        let rings = || (0..workers.count).map(|_| VecDeque::new()).collect();
        Self {
            rng: Rng::stream(workers.seed, 0x7269_6e67_7300),
            rings: (0..workers.count).map(|_| rings()).collect(),
            paused_until: vec![Nanos::ZERO; workers.count],
            workers,
        }
    }

    /// Returns the worker that receives a frame: the same for all frames of a flow.
    pub(crate) fn receiver(&self, frame: &[u8], port: PortId) -> usize {
        let count = self.workers.count as u64;
        if count == 1 {
            return 0;
        }
        // Ethernet addresses, and the IP addresses and ports of an IPv4 packet without options
        let flow =
            if self.workers.one_queue { [&[][..]; 2] } else { [0..12, 26..38].map(|at| part(frame, at)) };
        let hash = flow.concat().iter().fold(self.workers.seed ^ u64::from(port.0), |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        (hash >> 32) as usize % count as usize
    }

    /// Returns whether a frame from this receiver is handled at once. The receiver may begin to pause.
    pub(crate) fn is_direct(&mut self, from: usize, owner: usize, now: Nanos) -> bool {
        let pauses = self.pauses(from, now);
        from == owner && self.rings[from][owner].is_empty() && !pauses
    }

    /// Returns whether a worker pauses, and draws whether it begins to.
    fn pauses(&mut self, worker: usize, now: Nanos) -> bool {
        let every = self.workers.pause_every;
        if now >= self.paused_until[worker] && every > 0 && self.rng.below(every) == 0 {
            self.paused_until[worker] = now + Nanos(self.rng.between(1, self.workers.pause.0));
        }
        now < self.paused_until[worker]
    }

    /// Puts a frame into the ring to its owner.
    pub(crate) fn push(
        &mut self,
        (from, owner): (usize, usize),
        frame: MemoryFrame,
        port: PortId,
        now: Nanos,
    ) -> Result<(), Full> {
        let delay = if from == owner { 0 } else { self.rng.below(self.workers.delay.0 + 1) };
        let ring = &mut self.rings[from][owner];
        if ring.len() >= self.workers.ring {
            return Err(Full);
        }
        // A ring is first in, first out.
        let after = ring.back().map_or(Nanos::ZERO, |last| last.at);
        let received = now.max(self.paused_until[from]);
        let at = (received + Nanos(delay)).max(after).max(self.paused_until[owner]);
        ring.push_back(Waiting { at, frame, port });
        Ok(())
    }

    /// Removes and returns the next frame that is due, and its owner.
    pub(crate) fn pop(&mut self, now: Nanos) -> Option<(usize, MemoryFrame, PortId)> {
        let due = |ring: &VecDeque<Waiting>| ring.front().is_some_and(|frame| frame.at <= now);
        for owner in 0..self.workers.count {
            for from in 0..self.workers.count {
                if due(&self.rings[from][owner]) {
                    if self.pauses(owner, now) {
                        let until = self.paused_until[owner];
                        for frame in self.rings.iter_mut().flat_map(|rings| &mut rings[owner]) {
                            frame.at = frame.at.max(until);
                        }
                        break;
                    }
                    let Waiting { frame, port, .. } = self.rings[from][owner].pop_front()?;
                    return Some((owner, frame, port));
                }
            }
        }
        None
    }

    /// Returns when the next frame is due.
    pub(crate) fn next(&self) -> Option<Nanos> {
        self.rings.iter().flatten().filter_map(|ring| Some(ring.front()?.at)).min()
    }

    /// Returns until when a worker pauses; its timer and commands wait.
    pub(crate) fn paused_until(&self, worker: usize) -> Nanos {
        self.paused_until[worker]
    }

    /// Loses all frames in rings.
    pub(crate) fn clear(&mut self) {
        self.rings.iter_mut().flatten().for_each(VecDeque::clear);
        self.paused_until.fill(Nanos::ZERO);
    }
}

/// Returns the bytes of a frame in a range, as far as it has them.
fn part(frame: &[u8], at: core::ops::Range<usize>) -> &[u8] {
    &frame[at.start.min(frame.len())..at.end.min(frame.len())]
}

#[cfg(test)]
mod tests {
    use super::*;
    use switch::Frame;

    fn frame(n: u8) -> MemoryFrame {
        MemoryFrame::new(vec![n; 60])
    }

    #[test]
    fn a_ring_keeps_the_order_of_its_frames_and_refuses_what_does_not_fit() {
        for seed in 0..100 {
            let workers = Workers { count: 2, ring: 8, delay: Nanos(1_000), ..Workers::drawn(seed) };
            let mut rings = InputRings::new(workers);
            for n in 0..10 {
                let pushed = rings.push((0, 1), frame(n), PortId(3), Nanos(u64::from(n)));
                assert_eq!(pushed, if n < 8 { Ok(()) } else { Err(Full) });
            }
            let mut taken = Vec::new();
            while let Some(at) = rings.next() {
                while let Some((owner, frame, port)) = rings.pop(at) {
                    assert_eq!((owner, port), (1, PortId(3)));
                    taken.push(frame.bytes()[0]);
                }
            }
            assert_eq!(taken, [0, 1, 2, 3, 4, 5, 6, 7], "seed {seed}");
        }
    }

    #[test]
    fn frames_of_a_flow_have_one_receiver_and_those_of_a_port_several() {
        let rings = InputRings::new(Workers { count: 4, one_queue: false, ..Workers::drawn(1) });
        let receivers: Vec<_> = (0..64).map(|n| rings.receiver(frame(n).bytes(), PortId(0))).collect();
        assert!((0..4).all(|worker| receivers.contains(&worker)));
        let again: Vec<_> = (0..64).map(|n| rings.receiver(frame(n).bytes(), PortId(0))).collect();
        assert_eq!(receivers, again);
    }
}
