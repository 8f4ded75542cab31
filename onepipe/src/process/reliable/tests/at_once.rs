//! `reliable_send_at_once` against `reliable_send` of the same messages.

use super::super::super::tests::{TOR, frame, peer};
use super::super::super::{Process, ProcessId};
use super::super::{Failed, Member};
use crate::header::{OnePipe, OnePipeOpcode, Timestamp};
use rocev2::{Packet, Psn};
use switch::{Nanos, Rng};

/// Bytes granted to each sender: some packets
const GRANT: u32 = 4096;

/// Two equal members: one uses `reliable_send_at_once` whenever possible, one never does. Both receive the same
/// frames.
struct Twins {
    quick: Process,
    slow: Process,
    others: [Process; 2],
    /// Latest commit value of the twins' beacons, which is the commit barrier: the others send nothing
    commit: Option<Timestamp>,
    has_failed: bool,
    now: Nanos,
    rng: Rng,
    at_once: u32,
    queued: u32,
}

impl Twins {
    fn new(seed: u64) -> Self {
        let make = |own| {
            let mut config = super::config(own, 3);
            (config.max_members, config.reliable_buffer) = (4, 4 * GRANT as usize);
            // Both windows close sometimes, and both buffers fill.
            (config.initial_window, config.max_unsettled, config.send_buffer) = (1500, 30, 8000);
            let (clock, now) = (config.clock, Nanos::ZERO);
            let mut process = Process::new(config).unwrap();
            let member = |id: u8| {
                let (id, qpn) = (ProcessId(id.into()), peer(false, id).qpn);
                Member { id, incarnation: 1, qpn, grant: GRANT }
            };
            let members: Vec<_> = (0..3).filter(|id| *id != own).map(member).collect();
            process.join(1, &members, now).unwrap();
            process.admit(clock, now).unwrap();
            process
        };
        Self {
            quick: make(0),
            slow: make(0),
            others: [make(1), make(2)],
            commit: None,
            has_failed: false,
            now: Nanos::ZERO,
            rng: Rng::stream(seed, 4),
            at_once: 0,
            queued: 0,
        }
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
            && let Some(scattering) = self.quick.reliable_send_at_once(self.now, dst, text, &mut frame)
        {
            self.at_once += 1;
            assert_eq!(self.slow.reliable_send(self.now, &messages), Ok(scattering));
            let mut same = Vec::new();
            assert!(self.slow.poll_transmit(self.now, &mut same), "no other frame is pending");
            assert_eq!(frame, same);
            // Only this call completes the scattering.
            assert!(
                !self.slow.poll_transmit(self.now, &mut same)
                    && !self.quick.poll_transmit(self.now, &mut same)
            );
            return self.deliver(&frame);
        }
        self.queued += 1;
        let queued = self.quick.reliable_send(self.now, &messages);
        assert_eq!(queued, self.slow.reliable_send(self.now, &messages));
    }

    /// Delivers a frame to its receiver, unless it is lost.
    fn deliver(&mut self, frame: &[u8]) {
        let packet = Packet::parse(frame).unwrap();
        let header = *OnePipe::of(&packet).unwrap();
        if header.opcode() == OnePipeOpcode::BEACON {
            self.commit = header.commit().or(self.commit);
        }
        let to = packet.ethernet().dst.0[5];
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
            while other.reliable_recv().is_some() {}
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
            let mut header = OnePipe::new(OnePipeOpcode::BEACON, barrier, Psn::ZERO);
            header.set_barrier(Some(barrier));
            header.set_commit(self.commit);
            let beacon = frame(peer(false, TOR), peer(false, n), &header, &[]);
            let to = if n == 0 { &mut self.quick } else { &mut self.others[usize::from(n) - 1] };
            _ = to.on_frame(&beacon, self.now);
            if n == 0 {
                _ = self.slow.on_frame(&beacon, self.now);
            }
        }
    }

    /// Gives notice that process 2 has failed.
    fn fail(&mut self) {
        self.has_failed = true;
        let timestamp = self.quick.timestamp(self.now);
        assert_eq!(timestamp, self.slow.timestamp(self.now));
        let failed = Failed { case: 1, process: ProcessId(2), incarnation: 1, timestamp };
        for process in [&mut self.quick, &mut self.slow] {
            process.notice_failed(&[failed], self.now).unwrap();
        }
    }

    fn compare(&mut self) {
        for _ in 0..self.rng.below(4) {
            assert_eq!(self.quick.poll_reliable_event(), self.slow.poll_reliable_event());
        }
        assert_eq!(self.quick.poll_to_controller(), self.slow.poll_to_controller());
        let seen = |process: &Process| {
            let timer = process.next_timer();
            (process.unsettled_reliable(), process.held_reliable(), timer, process.delivered_up_to())
        };
        assert_eq!(seen(&self.quick), seen(&self.slow));
        assert_eq!(self.quick.reliable_recv(), self.slow.reliable_recv());
    }
}

#[test]
fn reliable_send_at_once_has_the_effects_of_reliable_send() {
    let (mut at_once, mut queued) = (0, 0);
    for seed in 0..120 {
        let mut twins = Twins::new(seed);
        for step in 0..600 {
            match twins.rng.below(16) {
                0..3 => twins.send(),
                3..8 => {
                    let most = 1 + twins.rng.below(24);
                    twins.transmit(most);
                }
                8..12 => twins.exchange_acks(),
                12..15 => twins.time_passes(),
                _ if step > 450 && !twins.has_failed => twins.fail(),
                _ => {}
            }
            twins.compare();
        }
        let counts = |process: &Process| format!("{:?}", process.counters());
        assert_eq!(counts(&twins.quick), counts(&twins.slow));
        at_once += twins.at_once;
        queued += twins.queued;
    }
    assert!(at_once > 700 && queued > 1000, "{at_once} at once, {queued} queued");
}
