//! A process that leaves: the frames that it still sends and accepts, and the results of its scatterings.
//! Also runs that their senders abandon.

use super::*;

/// Returns the opcodes of the frames sent from index `from` on.
fn opcodes(group: &Group, from: usize) -> Vec<OnePipeOpcode> {
    let opcode = |frame: &Vec<u8>| OnePipe::of(&Packet::parse(frame).unwrap()).unwrap().opcode();
    group.frames[from..].iter().map(opcode).collect()
}

/// Sends process `n` a barrier at the current time: the process that has left is not waited for.
fn send_barrier(group: &mut Group, n: u8) {
    let now = group.now;
    let barrier = group.processes[usize::from(n)].timestamp(now);
    let result = group.processes[usize::from(n)].on_frame(&beacon(false, n, Some(barrier), now), now);
    assert!(matches!(result, Ok(()) | Err(Refusal::Stale)), "{result:?}");
}

#[test]
fn leaving_amid_a_scattering_sends_nothing_more_of_it() {
    let mut group = Group::new(3, |_| {});
    group.run(4);
    let scattering = group.scatter(0, &[(1, b"first"), (2, b"second"), (0, b"self")]).unwrap();
    assert_eq!(group.send(0, 1), 1, "stamped, and one of its packets has been sent");
    let time = OnePipe::of(&Packet::parse(&group.frames[0]).unwrap()).unwrap().timestamp();
    let sent = group.frames.len();
    group.processes[0].leave();
    let failed = |dst, part, timestamp| {
        let why = Failure::Left;
        Event::SendFailed { scattering, timestamp, dst: ProcessId(dst), part, why }
    };
    let events = [
        failed(1, 0, Some(time)),
        failed(2, 1, None),
        Event::Settled { scattering, timestamp: Some(time), failed: 2 },
    ];
    assert_eq!(
        group.events(0),
        events,
        "the first may be delivered, the second is not sent, its own is delivered"
    );
    let kept = group.processes[0].buffered();
    assert!(kept.0 == 0 && kept.1 > 0, "its message to itself is still to be delivered");
    group.now = group.now + Nanos(100);
    group.settle();
    assert_eq!(opcodes(&group, sent), [], "only beacons are sent");
    for n in 0..3 {
        group.now = group.now + Nanos(100);
        send_barrier(&mut group, n);
    }
    group.run(8);
    assert_eq!(group.received(1), [(0, b"first".to_vec())]);
    assert_eq!((group.received(2), group.received(0)), (vec![], vec![(0, b"self".to_vec())]));
    // The ACK of the message that was sent arrives when it is no longer awaited.
    assert!(group.processes[1].counters().acks_sent.get() > 0);
    assert_eq!(group.events(0), []);
    assert_eq!((group.processes[0].unsettled(), group.processes[0].buffered()), (0, (0, 0)));
}

#[test]
fn leaving_amid_a_large_message_leaks_nothing() {
    let mut group = Group::new(2, |config| config.initial_window = 2000);
    group.run(4);
    let scatterings = [&[1; 1500][..], &[2; 900], b"behind it"].map(|text| {
        let taken = group.scatter(0, &[(1, text)]);
        taken.unwrap()
    });
    // Some packets of the first message have been sent, the others wait for it and for the window.
    assert_eq!(group.send(0, 3), 3);
    let sent = group.frames.len();
    for _ in 0..2 {
        // A second call changes nothing.
        group.processes[0].leave();
    }
    let failed = scatterings.map(|scattering| {
        let (timestamp, dst) = (None, ProcessId(1));
        [
            Event::SendFailed { scattering, timestamp, dst, part: 0, why: Failure::Left },
            Event::Settled { scattering, timestamp, failed: 1 },
        ]
    });
    assert_eq!(group.events(0), failed.concat());
    assert_eq!((group.processes[0].unsettled(), group.processes[0].buffered()), (0, (0, 0)));
    group.run(1100);
    assert_eq!((opcodes(&group, sent).contains(&OnePipeOpcode::DATA), group.events(0)), (false, vec![]));
    send_barrier(&mut group, 1);
    assert_eq!(group.received(1), [], "the message was incomplete");
}

#[test]
fn process_that_has_left_still_receives_and_acknowledges() {
    let mut group = Group::new(2, |_| {});
    group.run(4);
    group.scatter(0, &[(1, b"before")]).unwrap();
    group.run(9);
    assert_eq!((group.received(1).len(), group.events(0).len()), (1, 1));
    group.processes[0].leave();
    let (now, before, mut frame) = (group.now, group.frames.len(), vec![7; 3]);
    // To a process that it has sent to before, with no frame pending
    assert!(
        group.processes[0].poll_transmit(now, &mut frame)
            && !group.processes[0].poll_transmit(now, &mut frame)
    );
    let kept = frame.clone();
    assert_eq!(group.processes[0].send_at_once(now, ProcessId(1), b"x", &mut frame), None);
    assert!(frame == kept, "nothing was written");
    for n in 0..40u8 {
        assert_eq!(group.scatter(0, &[(1, b"x"), (0, b"x")]), Err(SendError::Left));
        group.scatter(1, &[(0, &[n])]).unwrap();
        group.run(3);
        send_barrier(&mut group, 0);
    }
    group.run(9);
    let all: Vec<_> = (0..40).map(|n| (1, vec![n])).collect();
    assert_eq!(group.received(0), all);
    let settled = group.events(1);
    let is_success = |event: &Event| matches!(event, Event::Settled { failed: 0, .. });
    assert!(settled.len() == 40 && settled.iter().all(is_success), "{settled:?}");
    // Every later beacon is the same, and nothing else is sent but ACKs and NAKs.
    let mut beacons = 0;
    for _ in 0..10 {
        group.now = group.now + Nanos::from_micros(3);
        let now = group.now;
        group.processes[0].on_timer(now);
        while group.processes[0].poll_transmit(now, &mut frame) {
            let header = *OnePipe::of(&Packet::parse(&frame).unwrap()).unwrap();
            if header.opcode() == OnePipeOpcode::BEACON {
                assert!(header.nothing_follows() && header.barrier().is_none(), "{header}");
                beacons += 1;
            }
        }
    }
    assert_eq!(beacons, 10);
    let own = |frame: &&Vec<u8>| Packet::parse(frame).unwrap().ethernet().src.0[5] == 0;
    let sent: Vec<_> = group.frames[before..].iter().filter(own).cloned().collect();
    group.frames = sent;
    let opcodes = opcodes(&group, 0);
    assert!(!opcodes.is_empty() && opcodes.iter().all(|opcode| *opcode == OnePipeOpcode::ACK), "{opcodes:?}");
}

/// The beginning of a run does not occupy this process's buffer for ever, and later messages of a returning
/// sender are accepted.
#[test]
fn abandoned_run_is_discarded_after_10_000_timeouts() {
    // 10,000 timeouts
    let limit = Nanos::from_millis(200);
    let mut group = Group::new(2, |config| config.timeout = Nanos::from_secs(1));
    let mut receiver = config(1, 2, false);
    receiver.timeout = Nanos::from_micros(20);
    group.processes[1] = Process::new(receiver).unwrap();
    group.run(4);
    group.scatter(0, &[(1, b"whole")]).unwrap();
    group.scatter(0, &[(1, &[1; 700])]).unwrap();
    assert_eq!(group.send(0, 3), 3, "one message, and two packets of at least three");
    let text = |group: &mut Group| group.received(1);
    group.now = group.now + Nanos::from_micros(1);
    let begun = group.now;
    // Its last packets are delayed on another path.
    let mut late = Vec::new();
    let mut frame = Vec::new();
    while group.processes[0].poll_transmit(begun, &mut frame) {
        late.push(frame.clone());
    }
    assert!(!late.is_empty());
    send_barrier(&mut group, 1);
    let sweeps = |group: &mut Group| {
        for _ in 0..4 {
            group.now = group.now + Nanos::from_micros(3);
            let now = group.now;
            group.processes[1].on_timer(now);
        }
    };
    group.now = begun + Nanos(limit.0 - 50_000);
    sweeps(&mut group);
    let (incomplete, kept) = (Refusal::Incomplete, group.processes[1].buffered().1);
    assert!(kept >= 2 * PACKET_COST, "still {kept} bytes");
    assert_eq!(group.processes[1].counters().refused(incomplete), 0);
    group.now = begun + Nanos(limit.0 + 50_000);
    sweeps(&mut group);
    assert_eq!(group.processes[1].counters().refused(incomplete), 1);
    let whole = text(&mut group);
    assert!(whole.iter().all(|(_, text)| text == b"whole"), "{whole:?}");
    assert_eq!(group.processes[1].buffered().1, 0, "all buffers are free");
    sweeps(&mut group);
    assert_eq!(group.processes[1].counters().refused(incomplete), 1, "counted once");
    // The rest arrives after all: that message is lost, and its sender is notified; the next one is not.
    let now = group.now;
    for frame in &late {
        _ = group.processes[1].on_frame(frame, now);
    }
    group.scatter(0, &[(1, b"next")]).unwrap();
    group.run(12);
    send_barrier(&mut group, 1);
    group.run(12);
    assert_eq!(text(&mut group), [(0, b"next".to_vec())]);
    assert_eq!(group.failures(0).len(), 1);
    assert_eq!((group.processes[0].unsettled(), group.processes[1].buffered().1), (0, 0));
}

/// If a large and a small message arrive together, the small one does not keep the large one's memory.
#[test]
fn each_message_has_its_own_memory() {
    let mut group = Group::new(2, |_| {});
    group.run(4);
    let large = vec![5; 20_000];
    group.scatter(0, &[(1, &large), (1, b"a little"), (1, b"end")]).unwrap();
    group.run(12);
    let first = group.processes[1].unreliable_recv().unwrap();
    assert_eq!(first.payload, large);
    for text in [&b"a little"[..], b"end"] {
        let payload = group.processes[1].unreliable_recv().unwrap().payload;
        assert_eq!(payload, text);
        assert!(payload.capacity() < 1000, "{} bytes are kept for {}", payload.capacity(), text.len());
    }
}

/// A process's own link is an input of what its switch sends down, so the switch cannot know that nothing
/// follows before the process has left.
#[test]
fn process_that_has_not_left_expects_more() {
    let mut group = Group::new(2, |_| {});
    group.run(4);
    group.scatter(0, &[(1, b"x")]).unwrap();
    group.send(0, usize::MAX);
    let now = group.now + Nanos::from_micros(1);
    let last = |ago: u64| {
        let time = config(0, 1, false).clock.add(now.0 - ago);
        let mut header = OnePipe::new(OnePipeOpcode::BEACON, time, Psn::ZERO);
        header.set_barrier(None);
        header.set_nothing_follows(true);
        frame(peer(false, TOR), peer(false, 1), &header, &[])
    };
    let barriers = group.processes[1].barriers();
    assert_eq!(group.processes[1].on_frame(&last(20), now), Err(Refusal::Contradiction));
    assert_eq!((group.received(1), group.processes[1].barriers()), (vec![], barriers));
    assert_eq!(group.processes[1].counters().refused(Refusal::Contradiction), 1);
    group.processes[1].leave();
    assert_eq!(group.processes[1].on_frame(&last(10), now), Ok(()));
    assert_eq!(group.received(1), [(0, b"x".to_vec())]);
}
