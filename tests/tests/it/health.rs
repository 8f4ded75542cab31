//! Compares the health of queue pairs in the repository's captures with the known faults of the captures.

use rocev2::rewrite::Rewriter;
use rocev2::{Opcode, Packet, Psn};
use std::net::IpAddr;
use switch::forward::config::ForwardingMode;
use switch::forward::counters::QpCounter;
use switch::forward::health::Health;
use switch::forward::{Config, Forward};
use switch::memory::run_frame;
use switch::metrics::Metrics as _;
use switch::{Nanos, PortId};
use understudy_tests::{captures, packets};

/// Returns a point-to-point forwarder that observes the health of `queue_pairs` queue pairs.
fn wire(queue_pairs: usize) -> Forward {
    let mode = ForwardingMode::Pairs(vec![(PortId(0), PortId(1))]);
    Forward::new(&Config { ports: 2, mode, counted_qps: queue_pairs, health: true, ..Config::bridge(2, 1) })
}

/// Plays a capture at its times. Returns the wire.
fn play(name: &str, queue_pairs: usize) -> Forward {
    let mut wire = wire(queue_pairs);
    for (frame, at) in captures::timed_frames(&captures::path(name)) {
        run_frame(&mut wire, &frame, PortId(0), Nanos(at));
    }
    wire
}

/// Returns the values of a queue pair that are not zero, without packets, bytes and times.
fn nonzero(qp: &QpCounter<'_>) -> Vec<(&'static str, u64)> {
    let shown = |name: &str| !name.starts_with("rtt_") && !["frames", "bytes", "faults"].contains(&name);
    qp.reported().filter(|(name, value)| *value > 0 && shown(name)).collect()
}

/// A queue pair's address and number, and its metrics
type ExpectedMetrics = (&'static str, u32, &'static [(&'static str, u64)]);

/// Expected metrics of the captures with faults. The counts of retransmissions and NAKs are those that
/// `tshark` shows; the losses were behind the point of capture, so that nothing is missing.
const EXPECTED: [(&str, &[ExpectedMetrics]); 11] = [
    (
        "damaged.pcap",
        &[
            ("10.0.0.2", 0x11, &[("retransmitted", 20), ("ce_marks", 1)]),
            ("10.0.0.1", 0x11, &[("nak_other", 1)]),
        ],
    ),
    (
        "dscp_ce_ipv6_rc_write_64.pcap",
        &[("fd00::1", 0x1c, &[("ce_marks", 20)]), ("fd00::2", 0x1c, &[("ce_marks", 20)])],
    ),
    (
        "ipv6_odd_verbs.pcap",
        &[
            ("fd00::2", 0x19, &[("nak_remote_access", 1)]),
            ("fd00::2", 0x1a, &[("nak_invalid_request", 1)]),
            ("fd00::2", 0x1b, &[("nak_remote_operational", 1)]),
            ("fd00::1", 0x1c, &[("retransmitted", 1)]),
            ("fd00::2", 0x1c, &[("nak_rnr", 1)]),
        ],
    ),
    (
        "odd_verbs.pcap",
        &[
            ("10.0.0.2", 0x13, &[("nak_remote_access", 1)]),
            ("10.0.0.2", 0x14, &[("nak_invalid_request", 1)]),
            ("10.0.0.2", 0x15, &[("nak_remote_operational", 1)]),
            ("10.0.0.1", 0x16, &[("retransmitted", 1)]),
            ("10.0.0.2", 0x16, &[("nak_rnr", 1)]),
        ],
    ),
    ("rc_ack_loss.pcap", &[("10.0.0.1", 0x11, &[("retransmitted", 4)])]),
    (
        "rc_cas_request_loss.pcap",
        &[("10.0.0.1", 0x11, &[("retransmitted", 129)]), ("10.0.0.2", 0x11, &[("nak_sequence", 10)])],
    ),
    (
        "rc_fetch_add_response_loss.pcap",
        &[("10.0.0.1", 0x11, &[("retransmitted", 70)]), ("10.0.0.2", 0x11, &[("retransmitted", 55)])],
    ),
    (
        "rc_rnr_nak.pcap",
        &[
            ("10.0.0.1", 0x11, &[("retransmitted", 58)]),
            ("10.0.0.2", 0x11, &[("nak_sequence", 8), ("nak_rnr", 8)]),
        ],
    ),
    ("rc_write_64.pcap", &[("10.0.0.2", 0x11, &[("retransmitted", 10)])]),
    (
        "rc_write_loss.pcap",
        &[("10.0.0.1", 0x11, &[("retransmitted", 149)]), ("10.0.0.2", 0x11, &[("nak_sequence", 2)])],
    ),
    // The capture without faults from which others are derived
    ("rc_write_4096.pcap", &[]),
];

#[test]
fn captures_have_the_expected_faults() {
    for path in captures::all() {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let known = EXPECTED.iter().find(|(capture, _)| *capture == name).map_or(&[][..], |(_, known)| known);
        let counters = play(name, 64).counters();
        let found: Vec<_> = counters.qps.iter().map(|qp| (qp, nonzero(&qp))).collect();
        let found = found.iter().filter(|(_, values)| !values.is_empty());
        let found: Vec<_> =
            found.map(|(qp, values)| (qp.host.to_string(), qp.qpn.get(), values.clone())).collect();
        let known: Vec<_> =
            known.iter().map(|(host, qpn, values)| ((*host).to_owned(), *qpn, values.to_vec())).collect();
        let mut sorted = [found, known];
        for rows in &mut sorted {
            rows.sort();
        }
        assert_eq!(sorted[0], sorted[1], "{name}");
        // Queue pairs without counters of their own are in the totals of the port.
        let total = |counters: &switch::forward::Counters, name: &str| -> u64 {
            let of_port =
                |health: &Health| health.reported().find(|(known, _)| *known == name).map_or(0, |(_, n)| n);
            counters.health.iter().map(of_port).sum()
        };
        let few = play(name, 1).counters();
        for (stateless, _) in Health::default()
            .reported()
            .filter(|(name, _)| name.starts_with("nak_") || ["ce_marks", "cnps_seen"].contains(name))
        {
            assert_eq!(total(&few, stateless), total(&counters, stateless), "{name}: {stateless}");
        }
    }
}

/// Plays a capture without the frames that `lost` selects by their number, counted from 1
fn play_without(name: &str, lost: impl Fn(usize) -> bool) -> Forward {
    let mut wire = wire(64);
    let frames = captures::timed_frames(&captures::path(name));
    for (_, (frame, at)) in frames.iter().enumerate().filter(|(at, _)| !lost(at + 1)) {
        run_frame(&mut wire, frame, PortId(0), Nanos(*at));
    }
    wire
}

#[test]
fn lost_packets_of_captures_are_gaps() {
    // Each message has four packets: First, Middle, Middle, Last.
    for (name, host) in [("rc_write_4096.pcap", "10.0.0.1"), ("uc_write_4096.pcap", "10.0.0.1")] {
        let all = captures::timed_frames(&captures::path(name));
        let request = |at: usize| {
            let packet = Packet::parse(&all[at - 1].0).unwrap();
            packet.bth().opcode() != Opcode::RC_ACKNOWLEDGE && packet.dst().to_string() == host
        };
        let requests: Vec<_> = (1..=all.len()).filter(|at| request(*at)).collect();
        let lost = [requests[1], requests[2], requests[5]];
        let counters = play_without(name, |at| lost.contains(&at)).counters();
        let gaps: u64 = counters.qps.iter().map(|qp| nonzero(&qp).iter().map(|(_, n)| n).sum::<u64>()).sum();
        assert_eq!(gaps, 3, "{name}");
    }
    // A READ of 4,096 bytes has a response of four packets.
    let all = captures::timed_frames(&captures::path("rc_read_4096.pcap"));
    let opcode = |at: usize| Packet::parse(&all[at - 1].0).unwrap().bth().opcode();
    let of = |wanted| (1..=all.len()).filter(|at| opcode(*at) == wanted).nth(3).unwrap();
    for lost in
        [Opcode::RC_READ_RESPONSE_FIRST, Opcode::RC_READ_RESPONSE_MIDDLE, Opcode::RC_READ_RESPONSE_LAST]
    {
        let lost = of(lost);
        let counters = play_without("rc_read_4096.pcap", |at| at == lost).counters();
        let found: Vec<_> = counters.qps.iter().flat_map(|qp| nonzero(&qp)).collect();
        assert_eq!(found, [("psn_gaps", 1)], "{:?}", opcode(lost));
    }
}

#[test]
fn round_trips_are_measured_on_connections_of_the_communication_manager() {
    let counters = play("cm_rping.pcap", 64).counters();
    let of = |host: [u8; 4], qpn: u32| {
        let is = |qp: &QpCounter<'_>| qp.host == IpAddr::from(host) && qp.qpn.get() == qpn;
        counters.qps.iter().find(is).unwrap().health.unwrap().round_trips.values()
    };
    for (host, samples) in [([10, 0, 0, 1], 10), ([10, 0, 0, 2], 20)] {
        let [measured, smoothed, longest] = of(host, 0x11)[..] else { panic!("three metrics") };
        assert_eq!(measured, samples);
        assert!((1_000..50_000_000).contains(&smoothed) && smoothed <= longest, "{smoothed} {longest}");
    }
    assert_eq!(of([10, 0, 0, 1], 1), [0; 3], "datagrams have no round trips");
}

#[test]
fn congestion_notifications_are_counted_for_the_sender_to_which_they_are_addressed() {
    let cnp = packets::packet(Opcode::CNP, false, 0, &[]);
    for queue_pairs in [1, 64] {
        let mut wire = wire(queue_pairs);
        run_frame(&mut wire, &packets::packet(Opcode::UD_SEND_ONLY, true, 0, &[0; 4]), PortId(0), Nanos(1));
        for _ in 0..3 {
            run_frame(&mut wire, &cnp, PortId(1), Nanos(1));
        }
        let counters = wire.counters();
        assert_eq!(
            counters.health[1].reported().filter(|(_, n)| *n > 0).collect::<Vec<_>>(),
            [("cnps_seen", 3)]
        );
        let of_qps: Vec<_> = counters.qps.iter().flat_map(|qp| nonzero(&qp)).collect();
        // With one counter, the queue pair of the datagram has it.
        assert_eq!(of_qps, [("cnps_seen", 3)][..usize::from(queue_pairs > 1)], "{queue_pairs}");
    }
}

#[test]
fn a_new_connection_with_the_same_queue_pair_number_causes_no_gap() {
    let packet = |src: u8, psn: u32| {
        let mut frame = packets::packet(Opcode::RC_WRITE_ONLY, false, 0, &[0; 64]);
        let layout = Packet::parse(&frame).unwrap().layout();
        let mut rewriter = Rewriter::new(&mut frame, layout);
        rewriter.set_psn(Psn::new(psn));
        rewriter.set_ipv4_addresses([10, 1, 0, src], [10, 1, 0, 100]).unwrap();
        rewriter.finish();
        frame
    };
    let gaps = |packets: &[(u8, u32)]| {
        let mut wire = wire(64);
        for &(src, psn) in packets {
            run_frame(&mut wire, &packet(src, psn), PortId(0), Nanos(1));
        }
        wire.counters().health[0].faults()
    };
    assert_eq!(gaps(&[(1, 5), (1, 7)]), 1);
    assert_eq!(gaps(&[(1, 5), (1, 5 + 70_000), (1, 6 + 70_000)]), 0, "far away");
    assert_eq!(gaps(&[(1, 5), (2, 100), (2, 101), (1, 50)]), 0, "another host");
}

/// A device spreads one connection over two workers: each misses half of the packets.
#[test]
fn workers_that_share_a_connection_are_detected() {
    let frames = captures::timed_frames(&captures::path("rc_write_4096.pcap"));
    let mut wires = [wire(64), wire(64)];
    let mut requests = 0;
    for (frame, at) in &frames {
        let is_request = Packet::parse(frame).unwrap().bth().opcode() != Opcode::RC_ACKNOWLEDGE;
        requests += usize::from(is_request);
        let worker = if is_request { requests % 2 } else { 0 };
        run_frame(&mut wires[worker], frame, PortId(0), Nanos(*at));
    }
    let counters = wires.map(|wire| wire.counters());
    let [a, b] = [0, 1]
        .map(|at: usize| counters[at].qps.iter().find(|qp| qp.host == IpAddr::from([10, 0, 0, 1])).unwrap());
    assert!(a.health.unwrap().packets.psn_gaps.get() > 10, "each worker misses the packets of the other");
    assert!(a.shares_sequence_with(&b) && b.shares_sequence_with(&a));
    let ends: Vec<_> = counters[0].qps.iter().collect();
    assert!(!ends[0].shares_sequence_with(&ends[1]), "the other direction has no requests");
}
