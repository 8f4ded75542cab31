//! Restart of a receiver: what was sent to its previous incarnation is neither delivered nor denied.

use super::*;
use crate::process::bug::Bug;

const CLOCK_ERROR: Nanos = Nanos::from_micros(10);

/// Returns a configuration of process 1 of two, which starts behind what was sent before.
fn restarting() -> Config {
    Config { clock_error: CLOCK_ERROR, ..config(1, 2, false) }
}

/// A process that starts, and 1Pipe's time at its start
struct Restarted {
    process: Process,
    now: Nanos,
    clock: Timestamp,
}

impl Restarted {
    fn new(bug: Option<Bug>) -> Self {
        let now = Nanos::from_micros(20);
        let config = Config { bug, ..restarting() };
        let clock = config.clock.add(now.0);
        let mut process = Process::new(config).unwrap();
        process.on_timer(now);
        Self { process, now, clock }
    }

    /// Handles a packet of process 0, with these flags, stamped `ago` nanoseconds before the start.
    fn packet(&mut self, psn: u32, ago: i64, (first, last): (bool, bool)) -> Result<(), Refusal> {
        let timestamp = self.clock.add(ago.wrapping_neg() as u64);
        let mut header = OnePipe::new(OnePipeOpcode::DATA, timestamp, Psn::new(psn));
        header.set_first(first);
        header.set_end_of_message(last);
        header.set_timestamp_follows(!last);
        self.process.on_frame(&frame(peer(false, 0), peer(false, 1), &header, b"x"), self.now)
    }

    fn message(&mut self, psn: u32, ago: i64) -> Result<(), Refusal> {
        self.packet(psn, ago, (true, true))
    }

    /// Handles a beacon whose barrier is `ago` nanoseconds before the start.
    fn barrier(&mut self, ago: i64) {
        let barrier = self.clock.add(ago.wrapping_neg() as u64);
        self.process.on_frame(&beacon(false, 1, Some(barrier), self.now), self.now).unwrap();
    }

    /// Lets time pass, and returns the headers of all frames but beacons that the process sends, with their
    /// payloads.
    fn answers(&mut self) -> Vec<(OnePipe, Vec<u8>)> {
        let (mut frame, mut answers) = (Vec::new(), Vec::new());
        for _ in 0..30 {
            self.now = self.now + Nanos::from_micros(1);
            self.process.on_timer(self.now);
            while self.process.poll_transmit(self.now, &mut frame) {
                let packet = Packet::parse(&frame).unwrap();
                let header = *OnePipe::of(&packet).unwrap();
                if header.opcode() != OnePipeOpcode::BEACON {
                    answers.push((header, packet.payload()[OnePipe::LEN..].to_vec()));
                }
            }
        }
        answers
    }
}

/// Runs what a previous incarnation may have refused, delivered, or not been able to acknowledge; returns what
/// goes wrong.
fn check_copies(bug: Option<Bug>) -> Result<(), String> {
    let mut restarted = Restarted::new(bug);
    // Before the first barrier: refused as late, or delivered, by the previous incarnation.
    _ = restarted.message(7, 90_000);
    // With a timestamp ahead of its own clock, which is slower than the sender's.
    _ = restarted.message(8, -(CLOCK_ERROR.0 as i64) + 1);
    restarted.barrier(5_000);
    // After the first barrier, below and above it.
    _ = restarted.message(6, 10_000);
    _ = restarted.message(9, 1_000);
    restarted.barrier(-20_000);
    let answers = restarted.answers();
    let delivered: Vec<_> = core::iter::from_fn(|| restarted.process.unreliable_recv()).collect();
    let before_start = restarted.process.counters().refused(Refusal::BeforeStart);
    match (&delivered[..], &answers[..], before_start) {
        ([], [], 4) => Ok(()),
        _ => Err(format!("{before_start} refused; delivered {delivered:?}; answered {answers:?}")),
    }
}

#[test]
fn restarted_process_accepts_nothing_that_was_sent_before() {
    assert_eq!(check_copies(None), Ok(()));
}

#[cfg(debug_assertions)]
#[test]
fn planted_bugs_of_restarts_are_found() {
    for bug in [Bug::NoFloor, Bug::DeniesBeforeStart] {
        assert!(check_copies(Some(bug)).is_err(), "{bug:?}");
    }
}

#[test]
fn first_barrier_opens_the_process() {
    for barrier_ago in [5_000, -5_000] {
        let mut restarted = Restarted::new(None);
        let error = CLOCK_ERROR.0 as i64;
        assert!(!restarted.process.is_open(restarted.now));
        // The clock or the barrier, whichever is later
        restarted.barrier(barrier_ago);
        let floor = error.max(error - barrier_ago);
        assert_eq!(restarted.message(0, 1 - floor), Err(Refusal::BeforeStart));
        assert_eq!(restarted.message(1, -floor), Ok(()));
        let opens = restarted.now + Nanos(floor as u64);
        assert!(!restarted.process.is_open(Nanos(opens.0 - 1)) && restarted.process.is_open(opens));
        // Later barriers do not raise the floor.
        restarted.barrier(-floor);
        assert_eq!(restarted.message(2, -floor - 1), Ok(()));
    }
}

#[test]
fn beacon_without_a_barrier_does_not_open_the_process() {
    let mut restarted = Restarted::new(None);
    restarted.process.on_frame(&beacon(false, 1, None, restarted.now), restarted.now).unwrap();
    assert_eq!(restarted.message(0, -50_000), Err(Refusal::BeforeStart));
    assert!(!restarted.process.is_open(restarted.now + Nanos::from_millis(1)));
}

/// Its last packet was stamped after the start, the others before.
#[test]
fn run_that_began_before_the_start_fails_as_lost() {
    let mut restarted = Restarted::new(None);
    restarted.barrier(5_000);
    assert_eq!(restarted.packet(4, 100, (true, false)), Err(Refusal::BeforeStart));
    assert_eq!(restarted.packet(5, -20_000, (false, true)), Err(Refusal::Incomplete));
    restarted.barrier(-25_000);
    let answers = restarted.answers();
    let nak = answers.iter().find(|(header, _)| header.opcode() == OnePipeOpcode::NAK).expect("a NAK");
    assert_eq!((nak.0.psn(), nak.1.first()), (Psn::new(5), Some(&NakBody::INCOMPLETE)));
    assert_eq!(restarted.process.unreliable_recv(), None);
}

/// The sender's result is the only one that is true: the previous incarnation has delivered the message, and
/// its acknowledgement was lost.
#[test]
fn message_of_before_a_restart_fails_as_not_acknowledged() {
    let mut group = Group::new(2, |config| config.clock_error = CLOCK_ERROR);
    group.run(30);
    group.loses = Box::new(|_, _, header| header.opcode() == OnePipeOpcode::ACK);
    group.scatter(0, &[(1, b"delivered")]).unwrap();
    group.run(9);
    assert_eq!(group.received(1), [(0, b"delivered".to_vec())]);
    let copy = group.frames[0].clone();
    group.processes[1] = Process::new(Config { seed: 7, ..restarting() }).unwrap();
    group.loses = Box::new(|_, _, _| false);
    let now = group.now;
    assert_eq!(group.processes[1].on_frame(&copy, now), Err(Refusal::BeforeStart));
    group.run(1);
    assert_eq!(group.processes[1].on_frame(&copy, now), Err(Refusal::BeforeStart));
    group.run(30);
    group.scatter(0, &[(1, b"again")]).unwrap();
    group.run(1010);
    assert_eq!(group.received(1), [(0, b"again".to_vec())]);
    assert_eq!(group.failures(0), [(1, 0, Failure::NotAcknowledged)]);
}

#[test]
fn clock_error_is_at_most_ahead_max() {
    let mut config = restarting();
    config.clock_error = config.ahead_max;
    assert!(Process::new(config.clone()).is_ok());
    config.clock_error = Nanos(config.ahead_max.0 + 1);
    let error = ConfigError::ClockError { clock_error: config.clock_error, ahead_max: config.ahead_max };
    assert_eq!(Process::new(config).err(), Some(error));
}
