//! Limits of a receiver, its counters, and the times at which it has ACKs or NAKs to send.

use super::*;
use crate::process::config::MAX_ANSWERS;
use zerocopy::FromBytes;

/// Returns one of two processes, with the runner's time and 1Pipe's time of that moment.
fn receiver() -> (Process, Nanos, Timestamp) {
    let now = Nanos::from_micros(20);
    let config = config(1, 2, false);
    let clock = config.clock.add(now.0);
    let mut process = Process::new(config).unwrap();
    process.on_timer(now);
    (process, now, clock)
}

/// Builds a complete message from process 0 to process 1.
fn message(psn: u32, timestamp: Timestamp) -> Vec<u8> {
    let mut header = OnePipe::new(OnePipeOpcode::DATA, timestamp, Psn::new(psn));
    header.set_first(true);
    header.set_end_of_message(true);
    frame(peer(false, 0), peer(false, 1), &header, b"x")
}

#[test]
fn barriers_and_messages_may_be_ahead_by_ahead_max() {
    let (mut process, now, clock) = receiver();
    let most = clock.add(config(1, 2, false).ahead_max.0);
    assert_eq!(process.on_frame(&message(0, most.add(1)), now), Err(Refusal::Ahead));
    assert_eq!(process.on_frame(&message(0, most), now), Ok(()));
    assert_eq!(process.on_frame(&beacon(false, 1, Some(most.add(1)), now), now), Ok(()));
    assert_eq!(process.barriers().0, Some(most), "a barrier is lowered");
    assert_eq!(process.on_frame(&beacon(false, 1, Some(most), now), now), Ok(()));
}

#[test]
fn repeated_barrier_is_not_stale() {
    let (mut process, now, clock) = receiver();
    for barrier in [clock, clock] {
        assert_eq!(process.on_frame(&beacon(false, 1, Some(barrier), now), now), Ok(()));
    }
    let back = clock.add((1 << 48) - 1);
    assert_eq!(process.on_frame(&beacon(false, 1, Some(back), now), now), Err(Refusal::Stale));
    assert_eq!(process.counters().beacons_taken.get(), 2);
}

#[test]
fn beacon_that_announces_the_end_may_be_as_old_as_ahead_max() {
    let ahead_max = config(1, 2, false).ahead_max;
    // The first microseconds of this process's time are longer ago than `ahead_max`.
    let now = Nanos(ahead_max.0 + 5_000);
    let mut process = Process::new(config(1, 2, false)).unwrap();
    process.on_timer(now);
    process.leave();
    let mut last_beacon = |at: u64| {
        let mut header = OnePipe::new(OnePipeOpcode::BEACON, config(1, 2, false).clock.add(at), Psn::ZERO);
        header.set_nothing_follows(true);
        process.on_frame(&frame(peer(false, TOR), peer(false, 1), &header, &[]), now)
    };
    assert_eq!([last_beacon(0), last_beacon(4_999)], [Err(Refusal::Stale); 2]);
    assert_eq!(last_beacon(5_000), Ok(()));
}

#[test]
fn late_message_that_arrives_in_order_is_refused() {
    let (mut process, now, clock) = receiver();
    assert_eq!(process.on_frame(&message(0, clock), now), Ok(()));
    process.on_frame(&beacon(false, 1, Some(clock.add(10)), now), now).unwrap();
    assert_eq!(process.on_frame(&message(1, clock.add(9)), now), Err(Refusal::Late));
    assert_eq!(
        process.on_frame(&message(2, clock.add(10)), now),
        Ok(()),
        "a timestamp equal to the barrier is not late"
    );
}

#[test]
fn each_message_of_a_scattering_counts_as_delivered() {
    let mut group = Group::new(2, |_| {});
    group.run(4);
    group.scatter(0, &[(1, b"a"), (1, b"b"), (1, b"c")]).unwrap();
    group.scatter(0, &[(1, b"d")]).unwrap();
    group.run(9);
    assert_eq!((group.received(1).len(), group.processes[1].counters().delivered.get()), (4, 4));
}

#[test]
fn incomplete_messages_of_all_senders_are_discarded() {
    let mut group = Group::new(4, |config| config.timeout = Nanos::from_micros(20));
    group.run(4);
    for from in [0, 2, 3] {
        group.scatter(from, &[(1, &[1; 700])]).unwrap();
        assert_eq!(group.send(from, 2), 2, "two packets of at least three");
    }
    // 10,000 timeouts, and a sweep for each peer
    group.now = group.now + Nanos::from_millis(201);
    for _ in 0..8 {
        group.now = group.now + Nanos::from_micros(3);
        let now = group.now;
        group.processes[1].on_timer(now);
    }
    assert_eq!(group.processes[1].counters().refused(Refusal::Incomplete), 3);
    assert_eq!(group.processes[1].buffered().1, 0);
}

#[test]
fn receiver_has_answers_until_all_are_sent() {
    let (mut process, now, clock) = receiver();
    let send_all = |process: &mut Process| {
        let mut frame = Vec::new();
        while process.poll_transmit(now, &mut frame) {}
        assert!(!process.has_acks_to_send());
    };
    send_all(&mut process);
    // A NAK
    process.on_frame(&beacon(false, 1, Some(clock.add(10)), now), now).unwrap();
    process.on_frame(&message(0, clock), now).unwrap_err();
    assert!(process.has_acks_to_send());
    send_all(&mut process);
    // An ACK, once enough packets have arrived
    let every = config(1, 2, false).ack_every;
    for psn in 1..=every {
        assert!(!process.has_acks_to_send() || psn == every);
        process.on_frame(&message(psn, clock.add(20)), now).unwrap();
    }
    assert!(process.has_acks_to_send());
    send_all(&mut process);
}

#[test]
fn ack_timer_is_cancelled_when_the_ack_is_sent() {
    let mut config = config(1, 2, false);
    (config.ack_every, config.ack_delay) = (2, Nanos(700));
    config.beacon_interval = Nanos::from_millis(1);
    let clock = config.clock.add(20_000);
    let now = Nanos::from_micros(20);
    let mut process = Process::new(config).unwrap();
    process.on_timer(now);
    process.on_frame(&message(0, clock), now).unwrap();
    assert_eq!(process.next_timer(), Some(Nanos(20_700)));
    process.on_frame(&message(1, clock), now).unwrap();
    let mut frame = Vec::new();
    while process.poll_transmit(now, &mut frame) {}
    assert_eq!(process.counters().acks_sent.get(), 1);
    assert!(process.next_timer().unwrap() > Nanos(20_700));
}

#[test]
fn message_at_the_barrier_waits_for_the_next_barrier() {
    let (mut process, now, clock) = receiver();
    let before = clock.add((1 << 48) - 5);
    process.on_frame(&message(0, before), now).unwrap();
    process.on_frame(&message(1, clock.add(10)), now).unwrap();
    process.on_frame(&beacon(false, 1, Some(clock.add(10)), now), now).unwrap();
    assert_eq!(process.unreliable_recv().map(|message| message.timestamp), Some(before));
    // The clock passes it in 10 ns, which is not waited for.
    assert!(process.next_timer().unwrap() > now + Nanos(100));
}

#[test]
fn packets_are_accepted_until_the_window_or_the_buffer_is_full() {
    let room = PACKET_COST * 10;
    for window_is_small in [true, false] {
        let mut config = config(1, 2, false);
        if window_is_small {
            config.receive_window = room as u32;
        } else {
            config.receive_buffer = room;
        }
        config.initial_window = room as u32;
        let clock = config.clock.add(20_000);
        let now = Nanos::from_micros(20);
        let mut process = Process::new(config).unwrap();
        process.on_timer(now);
        // Packets of one message, the last of which does not arrive
        let part = |psn: u32, len: usize| {
            let mut header = OnePipe::new(OnePipeOpcode::DATA, clock, Psn::new(psn));
            header.set_first(psn == 0);
            header.set_timestamp_follows(true);
            frame(peer(false, 0), peer(false, 1), &header, &vec![0; len])
        };
        let half = room / 2 - PACKET_COST;
        assert_eq!(process.on_frame(&part(0, half), now), Ok(()));
        assert_eq!(process.on_frame(&part(1, half), now), Ok(()));
        assert_eq!(process.buffered().1, room);
        assert_eq!(process.on_frame(&part(2, 0), now), Err(Refusal::NoRoom));
    }
}

/// Builds a packet of process 0 without data, which is the first of its run, or the last.
fn part(psn: u32, time: Timestamp, is_first: bool, is_last: bool) -> Vec<u8> {
    let mut header = OnePipe::new(OnePipeOpcode::DATA, time, Psn::new(psn));
    header.set_first(is_first);
    header.set_timestamp_follows(!is_last);
    frame(peer(false, 0), peer(false, 1), &header, &[])
}

/// Returns a receiver whose buffer has room for 15 packets, and whose sender has restarted nine times while a
/// packet waited behind a gap: only ten marks are left of those incarnations. Also returns the time, a
/// timestamp after those packets', and a PSN for the next incarnation.
fn receiver_after_ten_incarnations() -> (Process, Nanos, Timestamp, u32) {
    let mut config = config(1, 2, false);
    // The rest is less than a packet.
    config.receive_buffer = 15 * PACKET_COST + 40;
    let clock = config.clock.add(20_000);
    let now = Nanos::from_micros(20);
    let mut process = Process::new(config).unwrap();
    process.on_timer(now);
    for incarnation in 0..10u32 {
        let (psn, time) = (10_000 * incarnation, clock.add(incarnation.into()));
        assert_eq!(process.on_frame(&part(psn, time, true, false), now), Ok(()));
        assert_eq!(process.on_frame(&part(psn + 2, time, false, true), now), Ok(()));
        assert_eq!(process.buffered().1, 2 * PACKET_COST);
    }
    assert_eq!(process.counters().restarts.get(), 9);
    (process, now, clock.add(100), 100_000)
}

#[test]
fn sender_that_restarts_repeatedly_does_not_exceed_the_buffer() {
    let (mut process, now, clock, first) = receiver_after_ten_incarnations();
    for psn in first..first + 5 {
        assert_eq!(process.on_frame(&message(psn, clock), now), Ok(()));
    }
    assert_eq!(process.on_frame(&message(first + 5, clock), now), Err(Refusal::NoRoom));
    // There is room again when the barrier has passed the messages.
    process.on_frame(&beacon(false, 1, Some(clock), now), now).unwrap();
    let now = now + Nanos::from_micros(1);
    process.on_timer(now);
    assert_eq!(process.on_frame(&message(first + 6, clock), now), Ok(()));
}

/// One packet may complete several runs, more than there is room for.
#[test]
fn runs_completed_by_one_packet_are_accepted_and_nothing_after_them() {
    let (mut process, now, clock, first) = receiver_after_ten_incarnations();
    assert_eq!(process.on_frame(&message(first, clock), now), Ok(()));
    for (behind, is_first) in [(2, false), (3, true), (4, false), (1, true)] {
        let packet = part(first + behind, clock, is_first, !is_first);
        assert_eq!(process.on_frame(&packet, now), Ok(()));
    }
    assert_eq!(process.on_frame(&message(first + 5, clock), now), Err(Refusal::NoRoom));
    process.on_frame(&beacon(false, 1, Some(clock.add(1)), now), now).unwrap();
    let now = now + Nanos::from_micros(1);
    process.on_timer(now);
    assert_eq!(core::iter::from_fn(|| process.unreliable_recv()).count(), 3);
}

#[test]
fn pending_answers_are_bounded() {
    let sent = |process: &mut Process, now| {
        let mut frame = Vec::new();
        while process.poll_transmit(now, &mut frame) {}
        (process.counters().naks_sent.get(), process.counters().acks_sent.get())
    };
    let (mut process, now, clock) = receiver();
    process.on_frame(&beacon(false, 1, Some(clock.add(10)), now), now).unwrap();
    for psn in 0..=MAX_ANSWERS as u32 {
        assert_eq!(process.on_frame(&message(psn, clock), now), Err(Refusal::Late));
    }
    assert_eq!((sent(&mut process, now).0, process.counters().naks_lost.get()), (MAX_ANSWERS as u64, 1));
    // ACKs are saved before their history is too short; the last one reports the latest packets.
    let (mut process, now, clock) = receiver();
    let repeated = message(0, clock);
    assert_eq!(process.on_frame(&repeated, now), Ok(()));
    for _ in 0..200 * MAX_ANSWERS {
        assert_eq!(process.on_frame(&repeated, now), Err(Refusal::Duplicate));
    }
    assert_eq!(sent(&mut process, now), (0, MAX_ANSWERS as u64 + 1));
}

#[test]
fn incomplete_message_is_kept_for_ten_thousand_timeouts() {
    let mut config = config(1, 2, false);
    config.timeout = Nanos::from_micros(20);
    let clock = config.clock.add(20_000);
    let interval = config.beacon_interval;
    let now = Nanos::from_micros(20);
    let mut process = Process::new(config).unwrap();
    process.on_timer(now);
    assert_eq!(process.on_frame(&part(0, clock, true, false), now), Ok(()));
    let last = now + Nanos::from_millis(200);
    process.on_timer(last);
    assert_eq!(process.buffered().1, PACKET_COST);
    // Each beacon interval, one peer is checked.
    (1..=2).for_each(|n| process.on_timer(last + Nanos(n * interval.0)));
    assert_eq!((process.buffered().1, process.counters().refused(Refusal::Incomplete)), (0, 1));
}

/// Process 1, with this window for each sender and a buffer of 4,000 bytes, receives these numbers of
/// messages of 500 bytes from processes 0 and 2. Returns the window advertised to process 2 after that, and
/// after each message that is taken.
fn advertised_windows(window: u32, [of_0, of_2]: [u32; 2]) -> Vec<Option<u32>> {
    const BUFFER: usize = 4000;
    const COST: usize = 500;
    let mut config = config(1, 3, false);
    (config.receive_window, config.receive_buffer, config.initial_window) = (window, BUFFER, 400);
    config.ack_every = 1;
    let clock = config.clock.add(20_000);
    let now = Nanos::from_micros(20);
    let mut process = Process::new(config).unwrap();
    process.on_timer(now);
    for (from, psn) in (0..of_0).map(|psn| (0, psn)).chain((0..of_2).map(|psn| (2, psn))) {
        let mut header = OnePipe::new(OnePipeOpcode::DATA, clock, Psn::new(psn));
        header.set_first(true);
        header.set_end_of_message(true);
        let message = frame(peer(false, from), peer(false, 1), &header, &[0; COST - PACKET_COST]);
        assert_eq!(process.on_frame(&message, now), Ok(()));
    }
    // Returns the window advertised to process 2, if an ACK is sent to it.
    let advertised = |process: &mut Process| {
        let (mut frame, mut window) = (Vec::new(), None);
        while process.poll_transmit(now, &mut frame) {
            let packet = Packet::parse(&frame).unwrap();
            if packet.ethernet().dst == peer(false, 2).mac {
                let (arrivals, _) = AckBody::ref_from_prefix(&packet.payload()[OnePipe::LEN..]).unwrap();
                window = Some(arrivals.window.get());
            }
        }
        window
    };
    let mut advertised_windows = vec![advertised(&mut process)];
    let now_past = now + Nanos(10);
    process.on_frame(&beacon(false, 1, Some(clock.add(2)), now_past), now_past).unwrap();
    assert_eq!(advertised(&mut process), None);
    while process.unreliable_recv().is_some() {
        advertised_windows.push(advertised(&mut process));
    }
    advertised_windows
}

/// A sender whose window is limited by other senders' messages gets a window update once half of the buffer
/// is free.
#[test]
fn window_update_is_sent_once_half_of_the_buffer_is_free() {
    let windows = advertised_windows(4000, [6, 1]);
    assert_eq!(windows[..5], [Some(500), None, None, Some(2000), None]);
}

#[test]
fn sender_with_a_quarter_of_the_buffer_gets_no_update() {
    assert_eq!(advertised_windows(4000, [5, 1]), [Some(1000), None, None, None, None, None, None]);
}

/// There is one message of process 0; the rest of the buffer is as large as the rest of process 2's own
/// window.
#[test]
fn sender_that_fills_its_own_window_gets_an_update_once_half_of_it_is_free() {
    assert_eq!(advertised_windows(3500, [1, 6]), [Some(500), None, None, None, Some(2000), None, None, None]);
}
