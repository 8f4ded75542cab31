//! Processes on a network without delay, and a switch whose barriers the test determines.

use super::*;
use crate::datagram::Template;
use crate::header::{AckBody, NakBody, OnePipe, OnePipeOpcode};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use rocev2::ethernet::MacAddr;
use rocev2::path_headers::{PathHeaderFields, PathHeaders};
use rocev2::{Packet, Psn, Qpn};

mod answers;
mod at_once;
mod bad_input;
mod clock_beacons;
mod detour;
mod large;
mod leaving;
mod receive;
mod restarts;
mod stall;
mod standby;

pub(super) const TOR: u8 = 0xff;

fn ip(v6: bool, n: u8) -> IpAddr {
    if v6 {
        Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, n.into()).into()
    } else {
        Ipv4Addr::new(10, 0, 0, n).into()
    }
}

pub(super) fn peer(v6: bool, n: u8) -> Peer {
    let mac = MacAddr([2, 0, 0, 0, 0, n]);
    Peer { id: ProcessId(n.into()), mac, address: ip(v6, n), qpn: Qpn::new(0x40 + u32::from(n)) }
}

/// Returns the configuration of process `own`, whose peers are all others from 0 to `count` - 1.
pub(super) fn config(own: u8, count: u8, v6: bool) -> Config {
    let Peer { mac, address, qpn, .. } = peer(v6, TOR);
    let mut config = Config::new(peer(v6, own), BeaconPeer { mac, address, qpn, detour: Vec::new() });
    config.peers = (0..count).filter(|&n| n != own).map(|n| peer(v6, n)).collect();
    config.mtu = 256;
    // Barriers stand still in many tests; `stall` has the reports.
    config.stall_after = Nanos::ZERO;
    // Processes accept messages from the beginning; `restarts` has the others.
    config.clock_error = Nanos::ZERO;
    // Timestamps wrap after 50 us.
    config.clock = Timestamp::new((1 << 48) - 50_000);
    config
}

/// A group of processes whose frames arrive immediately, unless they are lost
struct Group {
    processes: Vec<Process>,
    now: Nanos,
    /// Barrier last promised by each process
    promised: Vec<Option<Timestamp>>,
    /// Returns whether a frame is lost, by its sender, receiver and header
    loses: Box<dyn FnMut(u8, u8, OnePipe) -> bool>,
    /// Frames that the processes have sent, without beacons
    frames: Vec<Vec<u8>>,
    v6: bool,
}

impl Group {
    fn new(count: u8, change: impl Fn(&mut Config)) -> Self {
        let process = |own| {
            let mut config = config(own, count, false);
            change(&mut config);
            Process::new(config).unwrap()
        };
        Self {
            processes: (0..count).map(process).collect(),
            now: Nanos::ZERO,
            promised: vec![None; count.into()],
            loses: Box::new(|_, _, _| false),
            frames: Vec::new(),
            v6: false,
        }
    }

    /// Sends the pending frames of process `n`, at most `most`. Returns their number.
    fn send(&mut self, n: usize, most: usize) -> usize {
        let mut frame = Vec::new();
        for sent in 0..most {
            if !self.processes[n].poll_transmit(self.now, &mut frame) {
                return sent;
            }
            let packet = Packet::parse(&frame).expect("a packet");
            assert!(packet.verify_icrc());
            let header = *OnePipe::of(&packet).unwrap();
            if let Some(barrier) = header.barrier() {
                let kept = self.promised[n].is_none_or(|before| !barrier.precedes(before));
                assert!(
                    kept && !header.timestamp().precedes(barrier),
                    "the link's barrier must hold: {header}"
                );
                self.promised[n] = Some(barrier);
            }
            let to = packet.ethernet().dst.0[5];
            if to != TOR {
                self.frames.push(frame.clone());
                if !(self.loses)(n as u8, to, header) {
                    _ = self.processes[usize::from(to)].on_frame(&frame, self.now);
                }
            }
        }
        most
    }

    /// Sends all pending frames, then sends the barrier to all processes.
    fn settle(&mut self) {
        while (0..self.processes.len()).map(|n| self.send(n, usize::MAX)).sum::<usize>() > 0 {}
        let promised: Option<Vec<_>> = self.promised.iter().copied().collect();
        let barrier = promised.and_then(|all| all.into_iter().reduce(Timestamp::earlier));
        for n in 0..self.processes.len() {
            let beacon = beacon(self.v6, n as u8, barrier, self.now);
            let result = self.processes[n].on_frame(&beacon, self.now);
            // A test may have sent a later barrier.
            assert!(matches!(result, Ok(()) | Err(Refusal::Stale)), "{result:?}");
        }
    }

    /// Advances the time by `us` microseconds, one at a time.
    fn run(&mut self, us: u64) {
        for _ in 0..us {
            self.now = self.now + Nanos::from_micros(1);
            for process in &mut self.processes {
                if process.next_timer().is_some_and(|at| at <= self.now) {
                    process.on_timer(self.now);
                }
            }
            self.settle();
        }
    }

    fn scatter(&mut self, from: usize, messages: &[(u32, &[u8])]) -> Result<Scattering, SendError> {
        let messages: Vec<_> = messages.iter().map(|&(to, text)| (ProcessId(to), text)).collect();
        self.processes[from].unreliable_send(self.now, &messages)
    }

    fn received(&mut self, n: usize) -> Vec<(u32, Vec<u8>)> {
        let messages = core::iter::from_fn(|| self.processes[n].unreliable_recv());
        messages.map(|message| (message.src.0, message.payload)).collect()
    }

    fn events(&mut self, n: usize) -> Vec<Event> {
        core::iter::from_fn(|| self.processes[n].poll_event()).collect()
    }

    /// Returns the messages of process `n` that have failed, as (receiver, part, reason).
    fn failures(&mut self, n: usize) -> Vec<(u32, u32, Failure)> {
        let failed = |event| match event {
            Event::SendFailed { dst, part, why, .. } => Some((dst.0, part, why)),
            Event::Settled { .. } | Event::Stalled { .. } | Event::Recovered { .. } => None,
        };
        self.events(n).into_iter().filter_map(failed).collect()
    }
}

/// Builds a frame for process `to`.
pub(super) fn frame(from: Peer, to: Peer, header: &OnePipe, payload: &[u8]) -> Vec<u8> {
    let route = PathHeaders::new(&PathHeaderFields {
        src_mac: from.mac,
        dst_mac: to.mac,
        vlan: None,
        src: from.address,
        dst: to.address,
        traffic_class: 0,
        hop_limit: 1,
        src_port: 0xc000,
    })
    .unwrap();
    let mut frame = Vec::new();
    Template::new(route, to.qpn, OnePipe::QKEY, from.qpn).emit(&mut frame, header, payload);
    frame
}

fn beacon(v6: bool, to: u8, barrier: Option<Timestamp>, now: Nanos) -> Vec<u8> {
    let clock = config(0, 1, v6).clock.add(now.0);
    let mut header = OnePipe::new(OnePipeOpcode::BEACON, clock, Psn::ZERO);
    header.set_barrier(barrier);
    frame(peer(v6, TOR), peer(v6, to), &header, &[])
}

#[test]
fn scattering_arrives_at_all_receivers_with_one_timestamp() {
    for v6 in [false, true] {
        let mut group = Group::new(3, |_| {});
        group.v6 = v6;
        group.processes = (0..3).map(|n| Process::new(config(n, 3, v6)).unwrap()).collect();
        group.run(4);
        let messages: [(u32, &[u8]); 5] =
            [(1, b"one"), (0, b"self"), (2, &[7; 700]), (1, b""), (1, b"again")];
        let scattering = group.scatter(0, &messages).unwrap();
        group.scatter(2, &[(1, b"other")]).unwrap();
        group.run(9);
        let first = group.processes[1].unreliable_recv().unwrap();
        assert_eq!((first.src, &first.payload[..]), (ProcessId(0), &b"one"[..]));
        let own = group.processes[0].unreliable_recv().unwrap();
        assert_eq!((own.timestamp, &own.payload[..]), (first.timestamp, &b"self"[..]));
        let [empty, again, other] =
            [(0, &b""[..]), (0, b"again"), (2, b"other")].map(|(from, text)| (from, text.to_vec()));
        assert_eq!(group.received(1), [empty, again, other], "ordered by timestamp, then by sender");
        let large = group.processes[2].unreliable_recv().unwrap();
        assert_eq!((large.timestamp, large.payload), (first.timestamp, vec![7; 700]));
        assert!((0..3).all(|n| group.received(n).is_empty()));
        let timestamp = Some(first.timestamp);
        assert_eq!(group.events(0), [Event::Settled { scattering, timestamp, failed: 0 }]);
        assert!((0..3).all(|n| group.processes[n].buffered() == (0, 0)), "no buffer is leaked");
    }
}

/// Gives a process three samples of a clock that is off by `by` nanoseconds, which it believes.
fn set_clock_off(group: &mut Group, n: usize, by: i64) {
    let clock = group.processes[n].config.clock.add(group.now.0.wrapping_add_signed(by));
    for _ in 0..3 {
        group.processes[n].set_clock(ClockSample::at(clock, group.now), group.now);
    }
}

#[test]
fn clock_that_is_set_back_runs_slower() {
    let mut group = Group::new(2, |_| {});
    group.run(20);
    let before = group.processes[0].timestamp(group.now);
    set_clock_off(&mut group, 0, -3_000);
    assert_eq!((group.processes[0].counters().clamped.get(), group.processes[0].clock_offset()), (3, -3_000));
    group.run(64);
    let elapsed = group.processes[0].timestamp(group.now).distance(before);
    assert!((62_900..63_100).contains(&elapsed), "1/64 slower: {elapsed}");
    group.scatter(1, &[(0, b"x")]).unwrap();
    group.run(7);
    assert_eq!(group.received(0), [(1, b"x".to_vec())], "its barrier goes on rising");
    group.run(200);
    assert_eq!(group.processes[0].clock_offset(), 0);
    let timestamp = group.processes[0].timestamp(group.now);
    assert_eq!(timestamp, config(0, 2, false).clock.add(group.now.0 - 3_000));
}

#[test]
fn process_whose_clock_is_set_back_by_a_second_goes_on_delivering() {
    let mut group = Group::new(2, |_| {});
    group.run(20);
    set_clock_off(&mut group, 0, -1_000_000_000);
    for tenth in 0..10u8 {
        // It falls behind by 1.6 us in 100 us.
        group.run(100);
        group.scatter(1, &[(0, &[tenth])]).unwrap();
        group.run(30);
        assert_eq!(group.received(0), [(1, vec![tenth])]);
    }
    assert_eq!((group.processes[0].counters().refused(Refusal::Ahead), group.failures(1)), (0, vec![]));
}

#[test]
fn outlier_of_the_clock_has_no_effect() {
    for by in [-3_600_000_000_000i64, 3_600_000_000_000] {
        let mut group = Group::new(2, |_| {});
        group.run(20);
        let clock = config(0, 2, false).clock.add(group.now.0);
        for off in [0, by, 0] {
            let sample = ClockSample::at(clock.add(off.cast_unsigned()), group.now);
            let now = group.now;
            group.processes[0].set_clock(sample, now);
            assert_eq!(group.processes[0].timestamp(now), clock);
        }
        // What is too far ahead is lowered as before.
        let now = group.now;
        let most = clock.add(group.processes[0].config.ahead_max.0);
        assert_eq!(group.processes[0].on_frame(&beacon(false, 0, Some(most.add(1)), now), now), Ok(()));
        assert_eq!(group.processes[0].barriers().0, Some(most));
    }
}

#[test]
fn nothing_is_delivered_before_the_own_clock_has_passed_it() {
    let mut group = Group::new(2, |_| {});
    group.run(4);
    // The peer's clock is ahead by 5 us, and this process's link is not part of the barrier.
    let now = group.now;
    set_clock_off(&mut group, 1, 5_000);
    group.scatter(1, &[(0, b"early")]).unwrap();
    group.send(1, usize::MAX);
    let timestamp = OnePipe::of(&Packet::parse(&group.frames[0]).unwrap()).unwrap().timestamp();
    let frame = beacon(false, 0, Some(timestamp.add(1)), now);
    assert_eq!(group.processes[0].on_frame(&frame, now), Ok(()));
    assert_eq!(group.received(0), []);
    let wake = group.processes[0].next_timer().unwrap();
    for _ in 0..9 {
        let at = group.processes[0].next_timer().unwrap();
        group.processes[0].on_timer(at);
        if let Some(message) = group.processes[0].unreliable_recv() {
            assert!(at >= wake && message.timestamp == timestamp);
            assert!(timestamp.precedes(group.processes[0].timestamp(at)), "{at:?}");
            return;
        }
    }
    panic!("the message was never delivered");
}

/// The barrier does not wait for a link that was removed from it: a process may receive a barrier by which
/// later messages can be delivered while its own scattering is still being sent.
#[test]
fn message_to_itself_enters_the_reorder_buffer_when_stamped() {
    let mut group = Group::new(3, |_| {});
    group.run(4);
    group.scatter(0, &[(0, b"first"), (1, b"first"), (2, b"first")]).unwrap();
    assert_eq!(group.send(0, 1), 1, "stamped, and one of its packets has been sent");
    group.now = group.now + Nanos(500);
    group.scatter(1, &[(0, b"second")]).unwrap();
    group.send(1, usize::MAX);
    group.now = group.now + Nanos(500);
    let barrier = group.processes[0].timestamp(group.now);
    let now = group.now;
    group.processes[0].on_frame(&beacon(false, 0, Some(barrier), now), now).unwrap();
    group.send(0, usize::MAX);
    assert_eq!(group.received(0), [(0, b"first".to_vec()), (1, b"second".to_vec())]);
}

/// All receivers wait for the instant: a process whose beacon could not promise it, because a scattering was
/// being sent, sends another beacon right after that.
#[test]
fn beacon_amid_a_scattering_is_followed_by_another() {
    let mut group = Group::new(3, |_| {});
    group.run(5);
    group.scatter(0, &[(1, b"x"), (2, b"y")]).unwrap();
    assert_eq!(group.send(0, 1), 1, "stamped, and one of its packets has been sent");
    let before = group.processes[0].counters().beacons_sent.get();
    group.now = Nanos::from_micros(7);
    let now = group.now;
    group.processes[0].on_timer(now);
    assert_eq!(group.send(0, 1), 1);
    let time = OnePipe::of(&Packet::parse(&group.frames[0]).unwrap()).unwrap().timestamp();
    assert_eq!(group.promised[0], Some(time), "the beacon promises the scattering's timestamp only");
    assert_eq!(group.send(0, usize::MAX), 2, "the last packet, and a beacon");
    assert_eq!(group.promised[0], Some(group.processes[0].timestamp(now)));
    assert_eq!(group.processes[0].counters().beacons_sent.get(), before + 2);
    // A scattering that was stamped after the instant requires no second beacon.
    group.scatter(0, &[(1, b"x"), (2, b"y")]).unwrap();
    group.send(0, 1);
    group.processes[0].beacons.request();
    assert_eq!(group.send(0, usize::MAX), 2, "a beacon, and the last packet");
}

#[test]
fn message_below_the_barrier_is_refused_and_naked() {
    let mut group = Group::new(2, |_| {});
    group.run(4);
    let now = group.now;
    let barrier = group.processes[0].timestamp(now).add(100);
    group.scatter(0, &[(1, b"late")]).unwrap();
    group.processes[1].on_frame(&beacon(false, 1, Some(barrier), now), now).unwrap();
    group.settle();
    assert_eq!(group.received(1), []);
    assert_eq!(group.failures(0), [(1, 0, Failure::Late)]);
    assert_eq!(group.processes[1].counters().refused(Refusal::Late), 1);
    assert_eq!(group.processes[0].counters().naks_taken.get(), 1);
}

#[test]
fn lost_messages_fail_and_later_ones_do_not() {
    let mut group = Group::new(2, |_| {});
    group.run(4);
    let mut nth = 0;
    group.loses = Box::new(move |from, _, header| {
        nth += u32::from(from == 0 && header.opcode() == OnePipeOpcode::DATA);
        // The second packet of the first message, and the second message
        from == 0 && header.opcode() == OnePipeOpcode::DATA && [2, 4].contains(&nth)
    });
    for text in [&[1; 600][..], b"two", b"three"] {
        group.scatter(0, &[(1, text)]).unwrap();
    }
    group.run(12);
    assert_eq!(group.received(1), [(0, b"three".to_vec())]);
    assert_eq!(group.failures(0), [(1, 0, Failure::Lost), (1, 0, Failure::Lost)], "long before the timeout");
    // No later packet reveals the loss of the last one.
    group.loses = Box::new(|_, _, header| header.opcode() == OnePipeOpcode::DATA);
    group.scatter(0, &[(1, b"four")]).unwrap();
    group.run(1002);
    assert_eq!((group.received(1), group.failures(0)), (vec![], vec![(1, 0, Failure::NotAcknowledged)]));
}

#[test]
fn message_whose_ack_is_lost_may_have_arrived() {
    let mut group = Group::new(2, |_| {});
    group.run(4);
    group.loses = Box::new(|_, _, header| header.opcode() == OnePipeOpcode::ACK);
    group.scatter(0, &[(1, b"one")]).unwrap();
    group.run(1010);
    assert_eq!(group.received(1), [(0, b"one".to_vec())]);
    assert_eq!(group.failures(0), [(1, 0, Failure::NotAcknowledged)]);
    // A later ACK repeats the contents of the earlier one.
    group.scatter(0, &[(1, b"two")]).unwrap();
    group.run(10);
    group.loses = Box::new(|_, _, _| false);
    group.scatter(0, &[(1, b"three")]).unwrap();
    group.run(10);
    assert_eq!((group.received(1).len(), group.failures(0)), (2, vec![]));
}

/// The receiver's thread has slept for long: many packets arrive before the first ACK can be sent.
#[test]
fn all_messages_are_acknowledged_however_late() {
    let mut group = Group::new(2, |config| config.initial_window = 1 << 20);
    group.run(4);
    for _ in 0..1000 {
        group.scatter(0, &[(1, b"x")]).unwrap();
    }
    assert_eq!(group.send(0, usize::MAX), 1000);
    group.run(9);
    assert_eq!((group.received(1).len(), group.failures(0)), (1000, vec![]));
}

#[test]
fn restarted_sender_is_accepted_at_once() {
    let mut group = Group::new(2, |_| {});
    group.run(4);
    group.scatter(0, &[(1, b"one")]).unwrap();
    // Aborted after the first packet
    group.scatter(0, &[(1, &[0; 1000])]).unwrap();
    group.send(0, 2);
    let seeds = (1..4).chain([1]);
    for seed in seeds {
        group.run(3);
        let mut config = config(0, 2, false);
        config.seed = seed;
        group.processes[0] = Process::new(config).unwrap();
        group.run(3);
        group.scatter(0, &[(1, b"again")]).unwrap();
        group.run(9);
        assert_eq!(group.received(1).pop(), Some((0, b"again".to_vec())));
        assert_eq!(group.failures(0), []);
    }
    assert_eq!(group.processes[1].counters().restarts.get(), 4);
    assert_eq!(group.processes[1].buffered().1, 0);
}

#[test]
fn no_messages_are_sent_to_a_dead_process_or_after_leaving() {
    let mut group = Group::new(3, |_| {});
    group.run(4);
    group.scatter(0, &[(1, b"x"), (2, b"y"), (0, b"z")]).unwrap();
    let now = group.now;
    assert!(group.processes[0].set_alive(ProcessId(1), false, now));
    assert!(!group.processes[0].set_alive(ProcessId(9), false, now));
    assert_eq!(group.failures(0), [(1, 0, Failure::Dead)]);
    assert_eq!(group.scatter(0, &[(2, b""), (1, b"")]), Err(SendError::Dead(ProcessId(1))));
    group.run(9);
    assert_eq!(
        (group.received(2).len(), group.received(0).len()),
        (1, 1),
        "messages to other processes are delivered"
    );
    assert!(matches!(group.events(0)[..], [Event::Settled { failed: 1, .. }]));
    group.processes[0].set_alive(ProcessId(1), true, now);
    group.scatter(0, &[(1, b"back"), (0, b"self")]).unwrap();
    group.processes[0].leave();
    assert_eq!(group.failures(0), [(1, 0, Failure::Left), (0, 1, Failure::Left)]);
    assert_eq!(group.scatter(0, &[(2, b"")]), Err(SendError::Left));
    let mut frame = Vec::new();
    assert!(group.processes[0].poll_transmit(now, &mut frame));
    let header = *OnePipe::of(&Packet::parse(&frame).unwrap()).unwrap();
    assert!(
        header.nothing_follows() && header.barrier().is_none(),
        "the beacon announces that nothing follows: {header}"
    );
    assert_eq!(group.processes[0].buffered(), (0, 0));
}

#[test]
fn beacons_declare_that_messages_carry_barriers() {
    for declares in [true, false] {
        let mut config = config(0, 2, false);
        config.declares = declares;
        let mut process = Process::new(config).unwrap();
        let mut beacon = Vec::new();
        process.on_timer(Nanos::ZERO);
        assert!(process.poll_transmit(Nanos::ZERO, &mut beacon));
        let header = *OnePipe::of(&Packet::parse(&beacon).unwrap()).unwrap();
        assert_eq!(header.opcode(), OnePipeOpcode::BEACON);
        assert_eq!(
            (header.declares(), header.reads_barriers(), header.writes_barriers()),
            (declares, declares, declares)
        );
    }
}
