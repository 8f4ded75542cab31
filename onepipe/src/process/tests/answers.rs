//! Results of messages when packets or ACKs are lost, or receivers restart or do not read.

use super::*;

/// Returns the messages of process 0 that have failed, as (number of the scattering, reason).
fn failed(group: &mut Group) -> Vec<(u64, Failure)> {
    let failed = |event| match event {
        Event::SendFailed { scattering, why, .. } => Some((scattering.0, why)),
        Event::Settled { .. } | Event::Stalled { .. } | Event::Recovered { .. } => None,
    };
    group.events(0).into_iter().filter_map(failed).collect()
}

const fn is_data(header: &OnePipe) -> bool {
    matches!(header.opcode(), OnePipeOpcode::DATA)
}

/// As long as ACKs arrive, a message that is reported as failed was not delivered; and a lost packet does not
/// block those behind it, however small the window.
#[test]
fn if_only_data_is_lost_no_delivered_message_fails() {
    let (mut all, mut silent) = (0, 0);
    for seed in 0..40 {
        let mut group = Group::new(2, |config| {
            config.receive_window = 2000;
            config.initial_window = 1500;
        });
        let mut rng = Rng::stream(seed, 1);
        group.loses = Box::new(move |_, _, header| is_data(&header) && rng.below(10) == 0);
        let mut lengths = Rng::stream(seed, 2);
        group.run(4);
        let (mut delivered, mut failures) = (Vec::new(), Vec::new());
        for n in 0..200u64 {
            let mut text = vec![0; lengths.below(900) as usize];
            text.splice(..0, n.to_le_bytes());
            group.scatter(0, &[(1, &text)]).unwrap();
            // Bursts, and pauses in which no packet follows a lost one
            let pause = if lengths.below(4) == 0 { 8 } else { 0 };
            group.run(pause);
            delivered.extend(group.received(1));
            failures.extend(failed(&mut group));
        }
        group.loses = Box::new(|_, _, _| false);
        for _ in 0..500 {
            group.run(6);
            delivered.extend(group.received(1));
            failures.extend(failed(&mut group));
        }
        let delivered: Vec<_> =
            delivered.iter().map(|(_, text)| u64::from_le_bytes(text[..8].try_into().unwrap())).collect();
        assert!(delivered.is_sorted(), "seed {seed}: {delivered:?}");
        assert_eq!(delivered.len() + failures.len(), 200, "seed {seed}: {failures:?}, {delivered:?}");
        assert!(failures.iter().all(|(n, _)| !delivered.contains(n)), "seed {seed}: {failures:?}");
        silent += failures.iter().filter(|(_, why)| *why == Failure::NotAcknowledged).count();
        all += failures.len();
    }
    assert!(all > 300 && 3 * silent < all, "of {all} that have failed, {silent} were not acknowledged");
}

/// Without that ACK, the sender would wait for the timeout, because no later packet triggers one.
#[test]
fn packets_decided_by_the_barrier_are_acknowledged() {
    // Packets are acknowledged before the barrier passes them.
    let mut group = Group::new(2, |config| config.ack_delay = Nanos::from_micros(1));
    group.run(4);
    let mut nth = 0;
    group.loses = Box::new(move |_, _, header| {
        nth += u32::from(is_data(&header));
        is_data(&header) && nth == 2
    });
    for text in [&b"first"[..], b"lost", &[0; 600]] {
        group.scatter(0, &[(1, text)]).unwrap();
    }
    group.run(12);
    assert_eq!(group.received(1).len(), 2);
    assert_eq!(failed(&mut group), [(1, Failure::Lost)]);
    assert_eq!((group.processes[0].unsettled(), group.processes[1].buffered()), (0, (0, 0)));
}

/// A gap too long to be distinguished from a restart; yet the messages accepted behind it are not reported as
/// lost. The message lost before it is further back than an ACK's history.
#[test]
fn messages_accepted_behind_a_long_gap_stay_accepted() {
    let mut group = Group::new(2, |config| {
        config.initial_window = 1 << 20;
        config.timeout = Nanos::from_millis(20);
    });
    group.run(4);
    group.scatter(0, &[(1, b"x")]).unwrap();
    group.run(9);
    let mut nth = 0;
    group.loses = Box::new(move |_, _, header| {
        nth += u32::from(is_data(&header));
        is_data(&header) && nth == 1
    });
    for _ in 0..1200 {
        group.scatter(0, &[(1, b"x")]).unwrap();
    }
    assert_eq!(group.send(0, usize::MAX), 1200);
    group.run(20);
    assert_eq!(group.processes[1].counters().restarts.get(), 1, "mistaken for a restart");
    assert_eq!((group.received(1).len(), failed(&mut group)), (1200, vec![(1, Failure::NotAcknowledged)]));
}

/// The new incarnation of the receiver has no record of the messages that the previous one has delivered.
#[test]
fn restarted_receiver_may_have_delivered_what_it_does_not_report() {
    let mut group = Group::new(2, |_| {});
    group.run(4);
    for _ in 0..3 {
        group.scatter(0, &[(1, b"acknowledged")]).unwrap();
    }
    group.run(9);
    group.loses = Box::new(|_, _, header| header.opcode() == OnePipeOpcode::ACK);
    for _ in 0..2 {
        group.scatter(0, &[(1, b"delivered")]).unwrap();
    }
    group.run(9);
    assert_eq!((group.received(1).len(), failed(&mut group)), (5, vec![]));
    let mut config = config(1, 2, false);
    config.seed = 7;
    group.processes[1] = Process::new(config).unwrap();
    group.loses = Box::new(|_, _, _| false);
    // It counts more packets than the previous incarnation had acknowledged.
    for _ in 0..4 {
        group.scatter(0, &[(1, b"again")]).unwrap();
    }
    group.run(12);
    assert_eq!(group.received(1).len(), 4);
    assert_eq!(failed(&mut group), [(3, Failure::NotAcknowledged), (4, Failure::NotAcknowledged)]);
}

/// The same if no ACK of the previous incarnation was received, or if both incarnations have drawn the same
/// number.
#[test]
fn receiver_that_never_acknowledged_may_have_delivered_before_a_restart() {
    let mut group = Group::new(2, |_| {});
    group.run(4);
    group.loses = Box::new(|_, _, header| header.opcode() == OnePipeOpcode::ACK);
    for _ in 0..3 {
        group.scatter(0, &[(1, b"delivered")]).unwrap();
    }
    group.run(9);
    assert_eq!((group.received(1).len(), failed(&mut group)), (3, vec![]));
    group.processes[1] = Process::new(config(1, 2, false)).unwrap();
    let mut nth = 0;
    group.loses = Box::new(move |_, _, header| {
        nth += u32::from(is_data(&header));
        is_data(&header) && nth == 3
    });
    for _ in 0..6 {
        group.scatter(0, &[(1, b"again")]).unwrap();
    }
    group.run(12);
    assert_eq!(group.received(1).len(), 5);
    let no_answer = |n| (n, Failure::NotAcknowledged);
    assert_eq!(failed(&mut group), [no_answer(0), no_answer(1), no_answer(2), (5, Failure::Lost)]);
}

/// A zero window is probed with one packet, not with all that would fit into an open one.
#[test]
fn receiver_that_does_not_read_is_probed_with_one_packet_a_time_out() {
    let mut group = Group::new(2, |config| config.receive_window = 4000);
    group.run(4);
    for _ in 0..100 {
        group.scatter(0, &[(1, &[0; 200])]).unwrap();
    }
    group.run(5_100);
    let failures = failed(&mut group);
    assert!((3..=5).contains(&failures.len()), "one per timeout: {failures:?}");
    assert!(failures.iter().all(|(_, why)| *why == Failure::NoRoom), "{failures:?}");
    let mut read = 0;
    for _ in 0..100 {
        read += group.received(1).len();
        group.run(20);
    }
    assert_eq!((read + failures.len(), failed(&mut group)), (100, vec![]), "all other messages arrive");
}

/// The switch has no sender left to wait for.
#[test]
fn buffered_messages_are_delivered_when_nothing_follows() {
    let mut group = Group::new(2, |_| {});
    group.run(4);
    group.scatter(0, &[(1, b"last")]).unwrap();
    group.send(0, usize::MAX);
    let now = group.now + Nanos::from_micros(1);
    assert_eq!(group.received(1), []);
    group.processes[1].leave();
    let ahead_max = group.processes[1].config.ahead_max.0;
    let beacon = |nothing_follows, ago: u64| {
        let time = config(0, 1, false).clock.add(now.0).add(0u64.wrapping_sub(ago));
        let mut header = OnePipe::new(OnePipeOpcode::BEACON, time, Psn::ZERO);
        header.set_barrier(None);
        header.set_nothing_follows(nothing_follows);
        frame(peer(false, TOR), peer(false, 1), &header, &[])
    };
    let process = &mut group.processes[1];
    // An announcement older than `ahead_max`
    assert_eq!(process.on_frame(&beacon(true, ahead_max + 1), now), Err(Refusal::Stale));
    process.on_frame(&beacon(false, 10), now).unwrap();
    assert_eq!(process.on_frame(&beacon(true, 11), now), Err(Refusal::Stale), "overtaken by a later beacon");
    assert_eq!(group.received(1), [], "no barrier yet");
    group.processes[1].on_frame(&beacon(true, 10), now).unwrap();
    assert_eq!(group.received(1), [(0, b"last".to_vec())]);
    assert_eq!(group.processes[1].on_frame(&beacon(true, 10), now), Err(Refusal::Stale), "repeated");
}

/// Bytes of one sender in the receiver's buffer block another sender, which continues as soon as they are
/// taken, and not a timeout later.
#[test]
fn sender_blocked_by_another_one_is_sent_a_window_update() {
    let mut group = Group::new(3, |config| {
        (config.receive_window, config.receive_buffer, config.initial_window) = (2000, 2400, 1500);
        config.timeout = Nanos::from_millis(10);
    });
    group.run(4);
    for _ in 0..7 {
        group.scatter(1, &[(2, &[1; 200])]).unwrap();
        group.run(8);
    }
    for text in [[2; 200].as_slice(), &[3; 230]] {
        group.scatter(0, &[(2, text)]).unwrap();
        group.run(20);
    }
    assert_eq!(group.processes[0].unsettled(), 1, "the second message has no room");
    for _ in 0..7 {
        assert_eq!(group.processes[2].unreliable_recv().map(|message| message.src), Some(ProcessId(1)));
    }
    group.run(20);
    assert_eq!(group.processes[0].unsettled(), 0);
    assert_eq!(group.received(2), [(0, vec![2; 200]), (0, vec![3; 230])]);
    assert!(failed(&mut group).is_empty());
}

/// A buffer that is smaller than the window of each sender is not mistaken for one that other senders have
/// filled.
#[test]
fn small_buffer_does_not_cause_acks_to_idle_senders() {
    let answers = |others: &[usize]| {
        let mut group = Group::new(3, |config| {
            (config.receive_window, config.receive_buffer, config.initial_window) = (12_000, 2_400, 1_500);
        });
        group.run(4);
        for &other in others {
            group.scatter(other, &[(2, &[1; 200])]).unwrap();
            group.run(8);
            assert_eq!(group.received(2).len(), 1);
        }
        let before = group.processes[2].counters().acks_sent.get();
        for _ in 0..20 {
            group.scatter(0, &[(2, &[2; 200])]).unwrap();
            group.run(8);
            assert_eq!(group.received(2).len(), 1);
        }
        group.processes[2].counters().acks_sent.get() - before
    };
    assert!(answers(&[0, 1]) <= answers(&[0]) + 1);
}
