//! A process whose clock follows clock beacons, and a switch that sends them.

use super::*;
use crate::ClockSource;
use crate::clock_sync::{ClockBody, Neighbour, Times};
use crate::control::Message;
use zerocopy::{FromBytes, IntoBytes};

const TURN: Nanos = Nanos(3_000 * crate::clock_sync::INTERVALS);

/// A process, and the switch at the other end of its link, which takes no time.
struct Link {
    process: Process,
    switch: Neighbour,
    /// Time by which the group is ahead of the process's machine (ns)
    ahead: i64,
    now: Nanos,
    /// Clocks that the process has shown, and the headers of all it has sent
    shown: Vec<Timestamp>,
    sent: Vec<OnePipe>,
    is_old: bool,
    is_silent: bool,
}

impl Link {
    fn new(ahead: i64, change: impl Fn(&mut Config)) -> Self {
        let mut config = config(0, 2, false);
        (config.clock_source, config.clock) = (ClockSource::Beacons, Timestamp::new(1 << 46));
        change(&mut config);
        let switch = Neighbour::new(config.beacon_interval, None);
        let process = Process::new(config).unwrap();
        Self {
            process,
            switch,
            ahead,
            now: Nanos::ZERO,
            shown: Vec::new(),
            sent: Vec::new(),
            is_old: false,
            is_silent: false,
        }
    }

    /// Returns the epoch of the group's clock.
    fn group(&self) -> Timestamp {
        Timestamp::new((1_u64 << 46).wrapping_add_signed(self.ahead))
    }

    fn clock_beacon(&mut self) -> Vec<u8> {
        let group = Some(self.group());
        let (header, body) = self.switch.beacon(&Times { group, forward: group, backward: None }, self.now);
        frame(peer(false, TOR), peer(false, 0), &header, body.as_bytes())
    }

    /// Advances the time by 1 us, `count` times.
    fn run(&mut self, count: u64) {
        for _ in 0..count {
            self.now = self.now + Nanos::from_micros(1);
            let mut frame = Vec::new();
            self.process.on_timer(self.now);
            while self.process.poll_transmit(self.now, &mut frame) {
                let packet = Packet::parse(&frame).unwrap();
                let header = *OnePipe::of(&packet).unwrap();
                self.sent.push(header);
                if header.opcode() == OnePipeOpcode::CLOCK && !self.is_old {
                    let payload = &packet.payload()[OnePipe::LEN..];
                    self.switch.on_beacon(&header, payload, self.now).unwrap();
                }
            }
            if self.is_silent {
                // Nothing arrives.
            } else if self.is_old {
                let beacon = beacon(false, 0, None, self.now);
                _ = self.process.on_frame(&beacon, self.now);
            } else if self.now.0.is_multiple_of(TURN.0) {
                let beacon = self.clock_beacon();
                self.process.on_frame(&beacon, self.now).unwrap();
            }
            if !self.process.is_waiting() {
                self.shown.push(self.process.timestamp(self.now));
            }
        }
    }

    /// Returns by how much the process's clock is ahead of the group's (ns).
    fn error(&mut self) -> i64 {
        self.process.timestamp(self.now).distance(self.group().add(self.now.0))
    }

    fn assert_clock_never_went_back(&self) {
        assert!(self.shown.windows(2).all(|pair| !pair[1].precedes(pair[0])), "the clock went back");
    }
}

#[test]
fn process_starts_with_the_groups_time_however_its_machine_is_off() {
    for ahead in [0, 1_000_000_000, -1_000_000_000, 700, -700] {
        let mut link = Link::new(ahead, |_| ());
        assert!(link.process.unreliable_send(Nanos::ZERO, &[(ProcessId(1), b"queued")]).is_ok());
        link.run(1_800);
        assert!(link.process.is_waiting() && link.shown.is_empty());
        let first = beacon(false, 0, Some(link.group()), link.now);
        assert_eq!(link.process.on_frame(&first, link.now), Err(Refusal::Unsynchronised));
        assert_eq!(link.process.send_at_once(link.now, ProcessId(1), b"m", &mut Vec::new()), None);
        assert!(
            link.sent.iter().all(|header| header.opcode() == OnePipeOpcode::CLOCK),
            "nothing else is sent"
        );
        link.run(400);
        assert!(!link.process.is_waiting() && link.process.is_synchronized(link.now));
        assert_eq!(link.error(), 0, "{ahead}");
        assert!(
            link.sent.iter().any(|header| header.opcode() == OnePipeOpcode::DATA),
            "what was queued leaves"
        );
        link.assert_clock_never_went_back();
    }
}

#[test]
fn clock_follows_the_group_forward_at_once_and_back_by_running_slower() {
    let mut link = Link::new(50_000, |_| ());
    link.run(2_500);
    link.ahead += 5_000;
    link.run(200);
    assert_eq!(link.error(), 0);
    link.ahead -= 2_000;
    link.run(500);
    let error = link.error();
    assert!((1_000..2_000).contains(&error), "{error}");
    link.run(2_000);
    assert_eq!(link.error(), 0);
    link.assert_clock_never_went_back();
}

#[test]
fn machine_whose_clock_is_set_changes_nothing_but_what_the_process_contributes() {
    let mut link = Link::new(50_000, |_| ());
    link.run(2_500);
    for n in 0..3 {
        let sample = ClockSample::at(Timestamp::new(1 << 46).add(link.now.0 + 9_000_000), link.now);
        link.process.set_clock(sample, link.now + Nanos(n));
    }
    link.run(100);
    assert_eq!(link.error(), 0);
    let clock = link.switch.group(link.now).unwrap();
    assert_eq!(clock, Timestamp::new((1 << 46) + 9_000_000));
}

#[test]
fn process_keeps_its_correction_when_clock_beacons_end() {
    let mut link = Link::new(1_000_000_000, |_| ());
    link.run(2_500);
    link.is_old = true;
    link.run(3_000);
    assert!(!link.process.is_synchronized(link.now));
    assert_eq!(link.error(), 0, "by the run time");
    // The machine's clock is corrected by 40 us.
    for n in 0..4 {
        let sample = ClockSample::at(Timestamp::new(1 << 46).add(link.now.0 + 40_000), link.now);
        link.process.set_clock(sample, link.now + Nanos(n));
    }
    assert_eq!(link.error(), 40_000);
    link.assert_clock_never_went_back();
}

/// Sets the machine's clock, off by `by` nanoseconds, which the process believes after three samples.
fn set_machine(link: &mut Link, by: i64) {
    let clock = Timestamp::new(1 << 46).add(link.now.0.wrapping_add_signed(by));
    for _ in 0..3 {
        link.process.set_clock(ClockSample::at(clock, link.now), link.now);
    }
}

/// Returns the error of a clock whose machine's was set by a second, forward or back, while no clock beacons arrived.
fn error_when_set_in_silence(by: i64, bug: Option<Bug>) -> i64 {
    let mut link = Link::new(5_000_000, |config| config.bug = bug);
    link.run(2_500);
    link.is_old = true;
    link.run(3_000);
    set_machine(&mut link, by);
    link.run(10);
    link.assert_clock_never_went_back();
    link.error()
}

#[test]
fn machine_whose_clock_is_set_in_silence_does_not_move_the_process() {
    for by in [1_000_000_000, -1_000_000_000] {
        assert_eq!(error_when_set_in_silence(by, None), 0);
    }
}

/// Returns whether a process waits for a switch that has fallen silent, and its error when the switch has returned.
fn start_in_silence(bug: Option<Bug>) -> (bool, i64) {
    let mut link = Link::new(-1_000_000_000, |config| config.bug = bug);
    link.is_old = true;
    link.run(1_000);
    link.is_silent = true;
    link.run(4_000);
    let waits = link.process.is_waiting();
    (link.is_old, link.is_silent) = (false, false);
    link.run(2_500);
    assert!(!link.process.is_waiting());
    (waits, link.error())
}

#[test]
fn process_does_not_start_while_its_switch_is_silent() {
    assert_eq!(start_in_silence(None), (true, 0));
}

#[test]
fn machine_that_was_beyond_the_limit_takes_part_when_its_clock_is_set() {
    for by in [1_000_000_000, -1_000_000_000] {
        let mut link = Link::new(by, |config| config.clock_limit = Nanos::from_millis(10));
        link.run(3_000);
        assert!(link.process.is_waiting());
        set_machine(&mut link, by);
        link.run(200);
        assert!(!link.process.is_waiting());
        assert_eq!(link.error(), 0);
    }
}

#[test]
fn process_at_a_switch_without_clock_beacons_follows_its_machine() {
    let mut link = Link::new(1_000_000_000, |_| ());
    link.is_old = true;
    link.run(1_800);
    assert!(link.process.is_waiting());
    link.run(300);
    assert!(!link.process.is_waiting() && !link.process.is_synchronized(link.now));
    assert_eq!(link.error(), -1_000_000_000);
    let clock = |header: &&OnePipe| header.opcode() == OnePipeOpcode::CLOCK;
    assert!(link.sent.iter().filter(clock).count() <= 2, "a switch of an earlier version floods them");
}

#[test]
fn time_beyond_the_limit_is_ignored_and_counted() {
    let mut link = Link::new(3_000_000, |config| config.clock_limit = Nanos::from_millis(2));
    link.run(3_000);
    assert!(!link.process.is_synchronized(link.now) && link.process.counters().clock_beyond_limit.get() > 10);
    // A process that hears no time that it believes goes on waiting.
    assert!(link.process.is_waiting());
    link.ahead = 1_000_000;
    link.run(600);
    assert_eq!(link.error(), 0);
    link.ahead = 9_000_000;
    link.run(3_000);
    assert_eq!(link.error(), -8_000_000, "the correction stays");
}

#[test]
fn clock_beacons_are_refused_with_the_right_reason() {
    let mut link = Link::new(0, |_| ());
    link.run(2_500);
    let good = link.clock_beacon();
    assert_eq!(link.process.on_frame(&good, link.now), Ok(()));
    assert_eq!(link.process.on_frame(&good, link.now), Err(Refusal::Clock), "repeated");
    let packet = Packet::parse(&good).unwrap();
    let (header, body) = OnePipe::ref_from_prefix(packet.payload()).unwrap();
    assert!(ClockBody::ref_from_prefix(body).is_ok());
    let other = frame(peer(false, 1), peer(false, 0), header, body);
    assert_eq!(link.process.on_frame(&other, link.now), Err(Refusal::WrongSource));
    let short = frame(peer(false, TOR), peer(false, 0), header, &body[..8]);
    assert_eq!(link.process.on_frame(&short, link.now), Err(Refusal::Clock));
    let mut by_machine = Process::new(config(0, 2, false)).unwrap();
    assert_eq!(by_machine.on_frame(&good, link.now), Err(Refusal::Clock));
    let mut standby = config(0, 2, false);
    standby.clock_source = ClockSource::Beacons;
    standby.standby = Some(BeaconPeer { address: ip(false, 0xfe), ..standby.tor.clone() });
    assert_eq!(Process::new(standby).err(), Some(ConfigError::ClockOfTwo));
}

#[test]
fn process_registers_with_the_groups_time() {
    let mut link = Link::new(-1_000_000_000, |_| ());
    let mut member = Member::new(member::Config::new([7; 16], 77), &link.process).unwrap();
    member.on_connected(&mut link.process, link.now);
    assert!(member.poll_envelope(&mut link.process, link.now).is_none(), "its clock would be fixed");
    link.run(2_500);
    // Registrations are repeated after times that double.
    let at = link.now + Nanos::from_millis(1_000);
    member.on_timer(&mut link.process, at);
    let envelope = member.poll_envelope(&mut link.process, at).unwrap();
    let Message::Register { clock: Some(clock), .. } = envelope.message else { panic!("{envelope:?}") };
    assert_eq!(clock.distance(link.group().add(at.0)), 0);
}

#[cfg(debug_assertions)]
#[test]
fn planted_bug_of_a_clock_that_steps_back_is_found() {
    let mut link = Link::new(50_000, |config| config.bug = Some(Bug::ClockStepsBack));
    link.run(2_500);
    link.ahead -= 2_000;
    link.run(400);
    assert!(link.shown.windows(2).any(|pair| pair[1].precedes(pair[0])));
}

#[cfg(debug_assertions)]
#[test]
fn planted_bug_of_a_clock_that_is_set_in_silence_is_found() {
    assert_ne!(error_when_set_in_silence(1_000_000_000, Some(Bug::SetMovesClock)), 0);
}

#[cfg(debug_assertions)]
#[test]
fn planted_bug_of_a_process_that_starts_in_silence_is_found() {
    let (waits, error) = start_in_silence(Some(Bug::StartsInSilence));
    assert!(!waits && error > 900_000_000, "{error}");
}
