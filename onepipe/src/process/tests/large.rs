//! Large messages, windows, and the order in which messages wait for each other.

use super::*;
use zerocopy::IntoBytes as _;

#[test]
fn sixteen_megabytes_arrive_whole() {
    let mut group = Group::new(2, |config| {
        config.mtu = 4096;
        (config.initial_window, config.receive_window) = (20 << 20, 20 << 20);
    });
    group.run(4);
    let text: Vec<u8> = (0..MAX_MESSAGE).map(|n| (n % 251) as u8).collect();
    group.scatter(0, &[(1, &text)]).unwrap();
    group.run(9);
    let messages = group.received(1);
    assert!(messages.len() == 1 && messages[0].1 == text);
    assert_eq!((group.failures(0), group.processes[1].buffered()), (vec![], (0, 0)));
    let too_long = group.scatter(0, &[(1, &vec![0; MAX_MESSAGE + 1])]);
    assert_eq!(too_long, Err(SendError::TooLong { dst: ProcessId(1), len: MAX_MESSAGE + 1 }));
}

/// The barrier and small messages to another process advance with each frame, however much of a large message
/// is left.
#[test]
fn large_message_delays_neither_barriers_nor_small_messages() {
    let mut group = Group::new(3, |_| {});
    group.run(4);
    group.scatter(0, &[(1, &vec![0; 100_000])]).unwrap();
    for n in 0..40u8 {
        group.now = group.now + Nanos(100);
        assert_eq!(group.send(0, 1), 1, "a packet of the large message");
        let begun = group.processes[0].timestamp(group.now);
        group.scatter(0, &[(2, &[n])]).unwrap();
        group.now = group.now + Nanos(100);
        // Which of the two messages is sent first depends on the last one; the small one leaves with the
        // second frame at the latest.
        group.send(0, 2);
        assert!(group.promised[0].is_some_and(|promised| begun.precedes(promised)), "{n}");
        let last = group.frames.iter().rev().take(2).map(|frame| Packet::parse(frame).unwrap());
        assert!(last.into_iter().any(|packet| packet.payload()[OnePipe::LEN..] == [n]), "{n}");
    }
    group.run(20);
    assert_eq!(group.received(2).len(), 40);
    assert_eq!(group.received(1)[0].1.len(), 100_000);
}

#[test]
fn waiting_scattering_blocks_only_its_own_receivers() {
    let mut group = Group::new(4, |config| config.initial_window = 2000);
    group.run(4);
    // No ACKs arrive from process 1: its window is soon used up.
    group.loses = Box::new(|from, _, _| from == 1);
    group.scatter(0, &[(1, &[1; 1500])]).unwrap();
    group.settle();
    let waiting = group.scatter(0, &[(1, &[2; 900]), (2, b"with it")]).unwrap();
    group.scatter(0, &[(3, b"past it")]).unwrap();
    group.scatter(0, &[(2, b"behind it")]).unwrap();
    group.run(12);
    assert_eq!(group.received(3), [(0, b"past it".to_vec())]);
    assert_eq!(group.received(2), [], "later messages to the same receiver wait");
    let settled =
        |event: &Event| matches!(event, Event::Settled { scattering, .. } if *scattering == waiting);
    assert!(!group.events(0).iter().any(settled));
    group.loses = Box::new(|_, _, _| false);
    group.run(1010);
    assert_eq!(group.received(2), [(0, b"with it".to_vec()), (0, b"behind it".to_vec())]);
    assert!(group.received(1).len() == 2 && group.events(0).iter().any(settled));
}

#[test]
fn stream_of_small_messages_does_not_starve_a_large_one() {
    let mut group = Group::new(3, |config| config.initial_window = 4000);
    group.run(4);
    let large = group.scatter(0, &[(1, &vec![1; 20_000]), (2, &vec![2; 20_000])]).unwrap();
    let mut small = 0u32;
    let settled = |event: &Event| matches!(event, Event::Settled { scattering, .. } if *scattering == large);
    for round in 0.. {
        assert!(round < 1000, "the large scattering is never settled");
        // There are always more small messages than fit.
        while group.processes[0].buffered().0 < 50_000 {
            group.scatter(0, &[(1 + small % 2, &[3; 200])]).unwrap();
            small += 1;
        }
        group.send(0, 4);
        group.now = group.now + Nanos(400);
        for n in 1..3 {
            group.processes[n].on_timer(group.now);
            group.send(n, usize::MAX);
        }
        if group.events(0).iter().any(settled) {
            break;
        }
    }
}

#[test]
fn slow_reader_stops_only_its_own_senders() {
    let mut group = Group::new(3, |config| config.receive_window = 4000);
    group.run(4);
    for n in 0..40u8 {
        group.scatter(0, &[(1, &[n; 200])]).unwrap();
        group.scatter(0, &[(2, &[n])]).unwrap();
        group.run(4);
        group.received(2);
    }
    let (unsent, _) = group.processes[0].buffered();
    let (_, held) = group.processes[1].buffered();
    assert!(unsent > 0 && (3000..=4000).contains(&held), "{unsent} bytes are unsent, {held} are buffered");
    assert_eq!(group.failures(0), []);
    let mut texts = Vec::new();
    for _ in 0..40 {
        texts.extend(group.received(1).into_iter().map(|(_, text)| text[0]));
        group.run(4);
    }
    assert_eq!(texts, (0..40).collect::<Vec<_>>(), "the sender continues when there is room");
    assert_eq!((group.failures(0), group.processes[1].counters().refused(Refusal::NoRoom)), (vec![], 0));
}

#[test]
fn marks_shrink_the_congestion_window() {
    let mut group = Group::new(2, |_| {});
    group.run(4);
    let window = |group: &Group| group.processes[0].congestion_window(ProcessId(1)).unwrap();
    group.scatter(0, &[(1, b"first")]).unwrap();
    group.run(4);
    let before = window(&group);
    let mut frame = Vec::new();
    for _ in 0..20 {
        group.scatter(0, &[(1, b"marked")]).unwrap();
        while group.processes[0].poll_transmit(group.now, &mut frame) {
            let packet = Packet::parse(&frame).unwrap();
            assert_eq!(packet.ecn(), 2, "ECN-capable");
            if packet.ethernet().dst.0[5] == 1 {
                // A switch marks it (the IPv4 checksum is updated; the ICRC does not cover these bits).
                frame[15] |= 3;
                let mut ip = *packet_ip(&frame);
                ip.fill_checksum(&[]);
                frame[14..34].copy_from_slice(ip.as_bytes());
                group.processes[1].on_frame(&frame, group.now).unwrap();
            }
        }
        group.run(4);
    }
    assert_eq!(group.processes[1].counters().marked.get(), 20);
    assert!(window(&group) < before / 8, "{} of {before}", window(&group));
}

fn packet_ip(frame: &[u8]) -> &rocev2::ipv4::Ipv4 {
    zerocopy::FromBytes::ref_from_bytes(&frame[14..34]).unwrap()
}

#[test]
fn buffers_are_bounded() {
    let change = |config: &mut Config| {
        (config.send_buffer, config.max_unsettled, config.receive_window) = (1000, 3, 600);
    };
    let mut group = Group::new(2, change);
    group.run(4);
    assert_eq!(group.scatter(0, &[]), Err(SendError::Empty));
    assert_eq!(group.scatter(0, &[(7, b"")]), Err(SendError::Unknown(ProcessId(7))));
    let too_large = |cost| Err(SendError::TooLarge { dst: ProcessId(1), cost, window: 600 });
    assert_eq!(group.scatter(0, &[(1, &[0; 600])]), too_large(600 + 3 * PACKET_COST));
    assert_eq!(group.scatter(0, &[(1, &[0; 300]), (1, &[0; 300])]), too_large(600 + 4 * PACKET_COST));
    let too_much = SendError::TooMuch { bytes: 0, messages: 4 };
    assert_eq!(group.scatter(0, &[(1, &[][..]); 4]), Err(too_much));
    for _ in 0..3 {
        group.scatter(0, &[(1, &[0; 300])]).unwrap();
    }
    assert_eq!(group.scatter(0, &[(1, &[0; 300])]), Err(SendError::Full), "bytes");
    assert_eq!(group.scatter(0, &[(1, b"")]), Err(SendError::Full), "messages");
    for _ in 0..9 {
        group.run(3);
        group.received(1);
    }
    assert_eq!(group.scatter(0, &[(1, b"")]), Err(SendError::Full), "events that have not been polled");
    assert_eq!(group.events(0).len(), 3);
    assert!(group.scatter(0, &[(1, b"")]).is_ok());
}
