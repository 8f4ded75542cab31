//! `send_at_once` against `unreliable_send` of the same messages.

use super::*;

/// Two equal processes: one uses `send_at_once` whenever possible, one never does. Both receive the same
/// frames.
struct Twins {
    quick: Process,
    slow: Process,
    others: [Process; 2],
    now: Nanos,
    rng: Rng,
    at_once: u32,
    buffered: u32,
}

impl Twins {
    fn new(seed: u64) -> Self {
        let make = |own| {
            let mut config = config(own, 3, false);
            // Both windows close sometimes, and both buffers fill.
            (config.receive_window, config.initial_window) = (2000, 1000);
            (config.max_unsettled, config.send_buffer) = (12, 4000);
            config.timeout = Nanos::from_micros(40);
            Process::new(config).unwrap()
        };
        let others = [make(1), make(2)];
        let rng = Rng::stream(seed, 3);
        Self { quick: make(0), slow: make(0), others, now: Nanos::ZERO, rng, at_once: 0, buffered: 0 }
    }

    fn send(&mut self) {
        // Sometimes to itself, or to an unknown process
        let dst = |rng: &mut Rng| ProcessId([1, 2, 1, 2, 1, 2, 0, 9][rng.below(8) as usize]);
        let count = if self.rng.below(4) == 0 { 2 + self.rng.below(3) } else { 1 };
        let most = if self.rng.below(6) == 0 { 700 } else { 100 };
        let messages: Vec<_> = (0..count)
            .map(|_| (dst(&mut self.rng), vec![self.rng.below(256) as u8; self.rng.below(most) as usize]))
            .collect();
        let messages: Vec<_> = messages.iter().map(|(dst, text)| (*dst, &text[..])).collect();
        let mut frame = vec![0; self.rng.below(300) as usize];
        if let [(dst, text)] = messages[..]
            && let Some(scattering) = self.quick.send_at_once(self.now, dst, text, &mut frame)
        {
            self.at_once += 1;
            assert_eq!(self.slow.unreliable_send(self.now, &messages), Ok(scattering));
            let mut same = Vec::new();
            assert!(self.slow.poll_transmit(self.now, &mut same), "no other frame is pending");
            assert_eq!(frame, same);
            // Only this call completes the scattering, which the time of a beacon would reveal.
            assert!(
                !self.slow.poll_transmit(self.now, &mut same)
                    && !self.quick.poll_transmit(self.now, &mut same)
            );
            self.deliver(&frame);
            return;
        }
        self.buffered += 1;
        let buffered = self.quick.unreliable_send(self.now, &messages);
        assert_eq!(buffered, self.slow.unreliable_send(self.now, &messages));
    }

    /// Delivers a frame to its receiver, unless it is lost.
    fn deliver(&mut self, frame: &[u8]) {
        let to = Packet::parse(frame).unwrap().ethernet().dst.0[5];
        if let 1 | 2 = to
            && self.rng.below(8) > 0
        {
            _ = self.others[usize::from(to) - 1].on_frame(frame, self.now);
        }
    }

    fn transmit(&mut self, most: u64) {
        let (mut frame, mut same) = (Vec::new(), Vec::new());
        for _ in 0..most {
            let sent = self.quick.poll_transmit(self.now, &mut frame);
            assert_eq!(sent, self.slow.poll_transmit(self.now, &mut same));
            if !sent {
                return;
            }
            assert_eq!(frame, same);
            self.deliver(&frame);
        }
    }

    fn exchange_acks(&mut self) {
        let mut frame = Vec::new();
        for other in &mut self.others {
            while other.poll_transmit(self.now, &mut frame) {
                if frame[5] == 0 && self.rng.below(8) > 0 {
                    let result = self.quick.on_frame(&frame, self.now);
                    assert_eq!(result, self.slow.on_frame(&frame, self.now));
                }
            }
            while other.unreliable_recv().is_some() {}
        }
    }

    fn time_passes(&mut self) {
        self.now = self.now + Nanos(self.rng.below(4000));
        let barrier = self.quick.timestamp(self.now);
        assert_eq!(barrier, self.slow.timestamp(self.now));
        for process in [&mut self.quick, &mut self.slow].into_iter().chain(&mut self.others) {
            if process.next_timer().is_some_and(|at| at <= self.now) {
                process.on_timer(self.now);
            }
        }
        for n in 0..3 {
            let beacon = beacon(false, n, Some(barrier), self.now);
            let to = if n == 0 { &mut self.quick } else { &mut self.others[usize::from(n) - 1] };
            _ = to.on_frame(&beacon, self.now);
            if n == 0 {
                _ = self.slow.on_frame(&beacon, self.now);
            }
        }
    }

    fn compare(&mut self) {
        let next = self.quick.next_events();
        let count = self.rng.below(next.len() as u64 + 1) as usize;
        for &event in &next[..count] {
            assert_eq!(Some(event), self.slow.poll_event());
        }
        self.quick.take_events(count);
        let seen = |process: &Process| (process.unsettled(), process.next_timer(), process.barriers());
        assert_eq!(seen(&self.quick), seen(&self.slow));
        assert_eq!(self.quick.unreliable_recv(), self.slow.unreliable_recv());
    }
}

#[test]
fn send_at_once_has_the_effects_of_unreliable_send() {
    let (mut at_once, mut buffered) = (0, 0);
    for seed in 0..80 {
        let mut twins = Twins::new(seed);
        for _ in 0..400 {
            match twins.rng.below(16) {
                0..5 => twins.send(),
                5..9 => {
                    let most = 1 + twins.rng.below(12);
                    twins.transmit(most);
                }
                9..12 => twins.exchange_acks(),
                12..15 => twins.time_passes(),
                _ => {
                    let alive = twins.rng.below(4) > 0;
                    for process in [&mut twins.quick, &mut twins.slow] {
                        process.set_alive(ProcessId(2), alive, twins.now);
                    }
                }
            }
            twins.compare();
        }
        let counts = |process: &Process| format!("{:?}", process.counters());
        assert_eq!(counts(&twins.quick), counts(&twins.slow));
        at_once += twins.at_once;
        buffered += twins.buffered;
    }
    assert!(at_once > 700 && buffered > 1000, "{at_once} at once, {buffered} kept");
}
