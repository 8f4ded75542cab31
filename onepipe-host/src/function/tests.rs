//! The polling thread's function on frames in memory: the process receives the frames that it sends, because
//! its peer and its switch are itself.

use super::*;
use crate::ring::ring;
use core::net::IpAddr;
use onepipe::process::{BeaconPeer, Config, Peer, Scattering};
use rocev2::Qpn;
use rocev2::ethernet::MacAddr;
use rtrb::{Consumer, RingBuffer};
use switch::memory::{FrameCollector, MemoryFrame};

const TWIN: ProcessId = ProcessId(2);
const UNREACHABLE: ProcessId = ProcessId(3);

/// A process with the application's ends of its rings
struct Bench {
    host: ProcessFunction,
    sends: Writer<0>,
    deliveries: Reader<ORIGIN>,
    events: Consumer<Event>,
    now: Nanos,
}

fn bench(change: impl FnOnce(&mut Config)) -> Bench {
    let (mac, address, qpn) = (MacAddr([2, 0, 0, 0, 0, 1]), IpAddr::from([10, 0, 0, 1]), Qpn::new(0x11));
    let own = Peer { id: ProcessId(1), mac, address, qpn };
    let mut config = Config::new(own, BeaconPeer { mac, address, qpn, detour: Vec::new() });
    config.peers =
        vec![Peer { id: TWIN, ..own }, Peer { id: UNREACHABLE, address: IpAddr::from([10, 0, 0, 3]), ..own }];
    config.clock_error = Nanos::ZERO;
    config.stall_after = Nanos::ZERO;
    // Barriers in beacons only
    config.declares = false;
    change(&mut config);
    let (sends, to_host) = ring();
    let (from_host, deliveries) = ring();
    let (to_events, events) = RingBuffer::new(4);
    let shared = Arc::new(Shared::new(2));
    let host =
        ProcessFunction::new(Process::new(config).unwrap(), true, (to_host, from_host, to_events), shared);
    Bench { host, sends, deliveries, events, now: Nanos::ZERO }
}

impl Bench {
    fn send(&mut self, messages: &[(ProcessId, &[u8])]) {
        let mut record = Vec::new();
        submit::write(messages, &mut record);
        assert_eq!(self.sends.write([], &record), Ok(()));
        self.sends.publish();
    }

    /// Runs a turn of the worker, a microsecond later, in which the port has room for `room` frames, which
    /// come back in the same turn. Returns their number.
    fn turn(&mut self, room: usize) -> usize {
        self.now = self.now + Nanos::from_micros(1);
        let mut out = FrameCollector::with_room(room);
        if self.host.next_timer().is_some_and(|at| at <= self.now) {
            self.host.on_timer(self.now, &mut out);
        }
        let sent = out.frames.len();
        for (mut frame, port) in out.frames.drain(..) {
            assert_eq!(port, PORT);
            let verdict = self.host.on_frame(&mut frame, PORT, self.now, &mut FrameCollector::with_room(0));
            assert_eq!(verdict, Verdict::Consume);
        }
        sent
    }

    fn received(&mut self) -> Option<Vec<u8>> {
        let mut payload = None;
        self.deliveries.next(|_, body| {
            payload = Some(body.into_vec());
            true
        });
        payload
    }
}

#[test]
fn scattering_to_a_peer_that_dies_before_the_turn_fails_and_uses_up_its_number() {
    let mut bench = bench(|_| ());
    bench.send(&[(TWIN, b"a"), (UNREACHABLE, b"b")]);
    bench.send(&[(TWIN, b"c")]);
    bench.host.on_command(Command::Alive(UNREACHABLE, false), bench.now);
    while bench.received().is_none_or(|payload| payload != b"c") {
        bench.turn(32);
    }
    let failed = |dst, part| Event::SendFailed {
        scattering: Scattering(0),
        timestamp: None,
        dst,
        part,
        why: Failure::Dead,
    };
    let mut next = || bench.events.pop().unwrap();
    assert_eq!([next(), next()], [failed(TWIN, 0), failed(UNREACHABLE, 1)]);
    assert_eq!(next(), Event::Settled { scattering: Scattering(0), timestamp: None, failed: 2 });
    for _ in 0..10 {
        bench.turn(32);
    }
    let settled = bench.events.pop().unwrap();
    assert!(matches!(settled, Event::Settled { scattering: Scattering(1), failed: 0, .. }), "{settled:?}");
}

#[test]
fn events_wait_for_room() {
    let mut bench = bench(|_| ());
    for n in 0..50u8 {
        bench.send(&[(TWIN, &[n])]);
    }
    let mut settled = 0;
    for _ in 0..200 {
        bench.turn(64);
        while let Ok(event) = bench.events.pop() {
            assert!(
                matches!(event, Event::Settled { scattering, failed: 0, .. } if scattering == Scattering(settled))
            );
            settled += 1;
        }
    }
    assert_eq!(settled, 50, "the ring has room for four at once");
    assert!((0..50).all(|n| bench.received() == Some(vec![n])));
}

#[test]
fn application_that_takes_no_events_goes_on_sending() {
    let mut bench = bench(|_| ());
    for n in 0..50u8 {
        bench.send(&[(TWIN, &[n])]);
        bench.turn(64);
    }
    for _ in 0..20 {
        bench.turn(64);
    }
    assert!((0..50).all(|n| bench.received() == Some(vec![n])));
    assert_eq!((bench.events.slots(), bench.host.process.unsettled()), (4, 0));
}

#[test]
fn port_without_room_is_waited_for() {
    let mut bench = bench(|_| ());
    bench.send(&[(TWIN, b"a")]);
    assert_eq!((bench.turn(0), bench.host.process.counters().sent.get()), (0, 0));
    // One frame at a time: a beacon first, then the message.
    let mut turns = 0;
    while bench.received().is_none() {
        assert!(bench.turn(1) <= 1);
        turns += 1;
    }
    assert!(turns > 1);
}

/// When the application takes messages, a window update is sent at once, however long it is until the next
/// beacon.
#[test]
fn window_updates_do_not_wait_for_a_beacon() {
    let mut bench = bench(|config| {
        config.beacon_interval = Nanos::from_millis(1);
        (config.receive_window, config.receive_buffer, config.initial_window) = (2_000, 2_000, 1_900);
    });
    let mut updates = 0;
    for n in 0..10u8 {
        // The maximum number of messages; none is delivered before the barrier passes it
        for _ in 0..6 {
            bench.send(&[(TWIN, &[n; 200])]);
        }
        let before = loop {
            let before = bench.host.process.counters().acks_sent.get();
            bench.turn(32);
            // An event without room would cause a turn each time, which would hide the effect.
            while bench.events.pop().is_ok() {}
            if bench.received().is_some() {
                break before;
            }
        };
        assert!((1..6).all(|_| bench.received().is_some()), "{n}");
        // Pending ACKs leave in the next turn, which nothing else triggers.
        let owes = bench.host.process.has_acks_to_send();
        bench.turn(32);
        assert!(!bench.host.process.has_acks_to_send(), "{n}");
        updates += u32::from(owes && bench.host.process.counters().acks_sent.get() == before + 1);
    }
    assert!(updates > 5, "{updates}");
}

#[test]
fn scatterings_fail_after_leaving_even_if_the_port_has_no_room() {
    let mut bench = bench(|config| config.timeout = Nanos::from_micros(100));
    bench.host.on_command(Command::Leave, bench.now);
    while !matches!(bench.host.leaving, Some(Leaving::Announcing(_))) {
        bench.turn(32);
    }
    bench.send(&[(TWIN, b"late")]);
    for _ in 0..10 {
        bench.turn(0);
    }
    let failed = bench.events.pop().unwrap();
    assert!(matches!(failed, Event::SendFailed { dst: TWIN, why: Failure::Left, .. }), "{failed:?}");
}

#[test]
fn address_requests_are_punted_to_the_control_thread() {
    let mut bench = bench(|_| ());
    let mut verdict = |frame: &[u8]| {
        let mut frame = MemoryFrame::new(frame);
        bench.host.on_frame(&mut frame, PORT, Nanos(1), &mut FrameCollector::with_room(0))
    };
    let mut frame = [0xff; 64];
    frame[12..14].copy_from_slice(&ethertype::ARP.to_be_bytes());
    assert_eq!(verdict(&frame), Verdict::Punt);
    frame[12..14].copy_from_slice(&ethertype::IPV6.to_be_bytes());
    (frame[14], frame[20]) = (0x60, ICMPV6);
    assert_eq!(verdict(&frame), Verdict::Punt);
    frame[20] = 6;
    assert_eq!(verdict(&frame), Verdict::Consume, "TCP");
    assert_eq!((verdict(&frame[..13]), verdict(&[])), (Verdict::Consume, Verdict::Consume));
    assert_eq!(bench.host.process.counters().refused(Refusal::NotOurs), 5);
}

#[test]
fn leaving_waits_for_messages_announces_the_end_and_reports_once() {
    let mut bench = bench(|config| config.timeout = Nanos::from_micros(100));
    bench.send(&[(TWIN, b"a"), (UNREACHABLE, b"b")]);
    bench.host.on_command(Command::Leave, bench.now);
    let mut turns = 0;
    while bench.host.poll_event().is_none() {
        bench.turn(32);
        turns += 1;
        assert!(turns < 1000);
    }
    // One timeout without an ACK was waited for; and three beacons take three intervals.
    assert!((100..400).contains(&turns), "{turns}");
    assert!(bench.host.poll_event().is_none(), "reported once");
    let failed = bench.events.pop().unwrap();
    assert!(
        matches!(failed, Event::SendFailed { dst: UNREACHABLE, why: Failure::NotAcknowledged, .. }),
        "{failed:?}"
    );
    assert_eq!(bench.received(), Some(b"a".to_vec()));
}

#[test]
fn leaving_does_not_wait_for_ever() {
    let mut bench = bench(|config| config.timeout = Nanos::from_micros(100));
    bench.host.on_command(Command::Leave, bench.now);
    // The application goes on sending.
    let mut turns = 0;
    while bench.host.poll_event().is_none() {
        bench.send(&[(UNREACHABLE, b"x")]);
        bench.turn(32);
        while bench.events.pop().is_ok() {}
        turns += 1;
        assert!(turns < 1000);
    }
    assert!(turns >= 400, "four timeouts: {turns}");
}

#[test]
fn deliveries_without_a_receiver_are_dropped() {
    let mut bench = bench(|_| ());
    let Bench { deliveries, events, .. } = &mut bench;
    *deliveries = ring().1;
    *events = RingBuffer::new(1).1;
    for n in 0..200u8 {
        bench.send(&[(TWIN, &[n])]);
        bench.turn(32);
    }
    for _ in 0..20 {
        bench.turn(32);
    }
    let counters = bench.host.process.counters();
    assert_eq!((counters.delivered.get(), counters.failed.get()), (200, 0));
    assert_eq!(bench.host.process.buffered(), (0, 0));
    assert!(!bench.host.process.has_message() && bench.host.event.is_none() && bench.host.refused.is_empty());
}
