//! Constructed packets for each kind of finding, and look-alikes that are none.

mod lengths;

use super::*;
use crate::diagnose::packet::Access;
use core::net::Ipv4Addr;
use rocev2::Opcode;
use rocev2::aeth::{Aeth, Credit, NakCode, RnrTimer};
use rocev2::opcode::Headers;

const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
const SERVER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
const CLIENT_QP: Qpn = Qpn::new(0x21);
const SERVER_QP: Qpn = Qpn::new(0x42);
const MS: u64 = 1_000_000;

/// A capture point between a client and a server. Packets are 1 us apart.
struct Wire {
    connections: Connections,
    next: Observed,
}

impl Wire {
    fn new() -> Self {
        Self::with_max(64)
    }

    fn with_max(max: usize) -> Self {
        let next = Observed {
            sight: Sight { number: 0, time_ns: MS },
            interface: 0,
            key: FlowKey { src: CLIENT, dst: SERVER, qpn: SERVER_QP },
            src_port: 50_000,
            opcode: Opcode::RC_SEND_ONLY,
            psn: Psn::ZERO,
            ack_req: false,
            payload_len: 64,
            ce: false,
            icrc: Some(0),
            ip_id: None,
            link: 0,
            aeth: None,
            access: None,
        };
        Self { connections: Connections::new(max), next }
    }

    /// Lets a packet pass, after `change`.
    fn pass(&mut self, change: impl FnOnce(&mut Observed)) -> Observed {
        self.next.sight.number += 1;
        self.next.sight.time_ns += 1000;
        self.next.icrc = self.next.icrc.map(|icrc| icrc + 1);
        let mut packet = self.next;
        change(&mut packet);
        self.connections.observe(&packet);
        packet
    }

    fn wait(&mut self, ns: u64) {
        self.next.sight.time_ns += ns;
    }

    fn send(&mut self, psn: u32) -> Observed {
        self.request(Opcode::RC_SEND_ONLY, psn, 64)
    }

    fn request(&mut self, opcode: Opcode, psn: u32, len: u32) -> Observed {
        self.pass(|p| {
            (p.opcode, p.psn, p.ack_req) = (opcode, Psn::new(psn), true);
            p.payload_len = if opcode == Opcode::RC_READ_REQUEST { 0 } else { len };
            let keyed = opcode.headers().contains(Headers::RETH);
            p.access = keyed.then_some(Access { va: 0x1000, rkey: 0x77, len });
        })
    }

    fn response(&mut self, opcode: Opcode, psn: u32, syndrome: Syndrome, len: u32) -> Observed {
        self.pass(|p| {
            p.key = FlowKey { src: SERVER, dst: CLIENT, qpn: CLIENT_QP };
            (p.opcode, p.psn, p.payload_len) = (opcode, Psn::new(psn), len);
            p.aeth = Some(Aeth::new(syndrome, rocev2::Msn::ZERO));
        })
    }

    fn ack(&mut self, psn: u32) {
        self.response(Opcode::RC_ACKNOWLEDGE, psn, Syndrome::Ack(Credit::UNLIMITED), 0);
    }

    fn nak(&mut self, psn: u32, code: NakCode) {
        self.response(Opcode::RC_ACKNOWLEDGE, psn, Syndrome::Nak(code), 0);
    }

    fn rnr(&mut self, psn: u32) {
        self.response(Opcode::RC_ACKNOWLEDGE, psn, Syndrome::RnrNak(RnrTimer(12)), 0);
    }

    /// Returns the kinds and counts of the findings, the worst first.
    fn found(mut self) -> Vec<(Kind, u64)> {
        let (findings, _) = self.connections.finish();
        findings.iter().map(|finding| (finding.kind, finding.count)).collect()
    }
}

const LOST: NakCode = NakCode::PSN_SEQUENCE_ERROR;

#[test]
fn coalesced_acknowledgements_across_the_wrap_of_psns_are_no_finding() {
    let mut wire = Wire::new();
    for round in 0..40 {
        for packet in 0..5 {
            wire.send(0xff_ffb0 + round * 5 + packet);
        }
        wire.ack(0xff_ffb0 + round * 5 + 4);
    }
    assert_eq!(wire.found(), []);
}

#[test]
fn a_gap_that_is_repeated_after_a_nak_is_a_loss_before_the_capture_point() {
    let mut wire = Wire::new();
    for psn in [5, 6, 9, 10] {
        wire.send(psn);
    }
    wire.nak(7, LOST);
    // The responder may send the NAK again.
    wire.nak(7, LOST);
    for psn in 7..=11 {
        wire.send(psn);
    }
    wire.ack(11);
    assert_eq!(wire.found(), [(Kind::RequestLostBefore, 2)]);
}

#[test]
fn a_gap_that_is_repeated_after_a_time_out_is_a_loss_before_the_capture_point() {
    let mut wire = Wire::new();
    wire.send(5);
    wire.ack(5);
    wire.send(7);
    wire.wait(60 * MS);
    wire.send(6);
    wire.send(7);
    wire.ack(7);
    assert_eq!(wire.found(), [(Kind::RequestLostBefore, 1)]);
}

#[test]
fn a_packet_that_was_seen_and_refused_was_lost_behind_the_capture_point() {
    let mut wire = Wire::new();
    for psn in 5..10 {
        wire.send(psn);
    }
    wire.nak(7, LOST);
    for psn in 7..10 {
        wire.send(psn);
    }
    // Lost again
    wire.nak(7, LOST);
    for psn in 7..10 {
        wire.send(psn);
    }
    wire.ack(9);
    assert_eq!(wire.found(), [(Kind::RequestLostBehind, 2)]);
}

#[test]
fn a_loss_within_a_retransmission_is_found_where_it_happened() {
    let mut wire = Wire::new();
    for psn in [5, 6, 7, 8, 9] {
        wire.send(psn);
    }
    wire.nak(6, LOST);
    // 7 does not arrive here the second time.
    for psn in [6, 8, 9] {
        wire.send(psn);
    }
    wire.nak(7, LOST);
    for psn in [7, 8, 9, 10] {
        wire.send(psn);
    }
    wire.ack(10);
    assert_eq!(wire.found(), [(Kind::RequestLostBehind, 1), (Kind::RequestLostBefore, 1)]);
}

#[test]
fn packets_of_the_same_time_in_another_order_are_no_finding() {
    let mut wire = Wire::new();
    wire.send(1);
    let time = wire.next.sight.time_ns;
    for psn in [3, 2, 4] {
        wire.pass(|p| (p.psn, p.sight.time_ns) = (Psn::new(psn), time));
    }
    wire.ack(4);
    assert_eq!(wire.found(), []);
}

#[test]
fn packets_in_another_order_are_a_note() {
    let mut wire = Wire::new();
    for psn in [1, 3, 2, 4] {
        wire.send(psn);
    }
    wire.ack(4);
    assert_eq!(wire.found(), [(Kind::Reordered, 1)]);
}

#[test]
fn a_packet_captured_on_two_interfaces_is_sent_once() {
    for late in [false, true] {
        let mut wire = Wire::new();
        for psn in 1..50 {
            let first = wire.send(psn);
            // Time for several other packets
            let at = u64::from(late) * 100_000;
            wire.pass(|p| *p = Observed { interface: 1, sight: p.sight, ..first });
            wire.wait(at);
            let ack = wire.response(Opcode::RC_ACKNOWLEDGE, psn, Syndrome::Ack(Credit(1)), 0);
            wire.pass(|p| *p = Observed { interface: 3, sight: p.sight, ..ack });
        }
        assert_eq!(wire.found(), []);
    }
}

#[test]
fn a_packet_captured_twice_on_one_interface_is_sent_once() {
    let mut wire = Wire::new();
    for psn in 1..50 {
        let first = wire.send(psn);
        wire.pass(|p| *p = Observed { sight: p.sight, ..first });
        wire.ack(psn);
    }
    assert_eq!(wire.found(), []);
}

#[test]
fn numbered_packets_that_look_the_same_are_copies_at_any_time() {
    for numbered in [true, false] {
        let mut wire = Wire::new();
        for psn in 1..5 {
            let id = if numbered { psn as u16 } else { 7 };
            let first = wire.pass(|p| (p.psn, p.ip_id) = (Psn::new(psn), Some(id)));
            wire.wait(MS);
            wire.pass(|p| *p = Observed { sight: p.sight, ..first });
            wire.ack(psn);
        }
        let found = if numbered { vec![] } else { vec![(Kind::RequestOrResponseLost, 3)] };
        assert_eq!(wire.found(), found);
    }
}

/// As IPv6 packets look, which have no identification: what tells a copy from a retransmission is the link header,
/// or that only a time-out could have caused a retransmission.
#[test]
fn copies_without_identification_are_told_by_link_header_and_time() {
    let read = Opcode::RC_READ_REQUEST;
    for (opcode, link, answered, ns, is_copy) in [
        (Opcode::RC_SEND_ONLY, 0, true, 30_000, true),
        (Opcode::RC_SEND_ONLY, 0, false, 30_000, false),
        (Opcode::RC_SEND_ONLY, 0, true, 300_000, false),
        (Opcode::RC_SEND_ONLY, 1, false, 300_000, true),
        (read, 0, true, 30_000, false),
        (read, 1, true, 30_000, true),
    ] {
        let mut wire = Wire::new();
        for psn in 1..5 {
            let first = wire.request(opcode, psn, 64);
            wire.wait(ns);
            wire.pass(|p| *p = Observed { sight: p.sight, link, ..first });
            if answered && opcode == read {
                wire.response(Opcode::RC_READ_RESPONSE_ONLY, psn, Syndrome::Ack(Credit(1)), 64);
            } else if answered {
                wire.ack(psn);
            }
        }
        let found = wire.found();
        // The first packet was sent before any response was seen.
        let repeats = found.iter().map(|(_, count)| count).sum::<u64>();
        let expected = if is_copy { 0..2 } else { 3..5 };
        assert!(expected.contains(&repeats), "{opcode}, {link}, {answered}, {ns}: {found:?}");
    }
}

#[test]
fn a_read_takes_the_psns_of_its_responses() {
    let mut wire = Wire::new();
    for psn in (100..180).step_by(4) {
        wire.request(Opcode::RC_READ_REQUEST, psn, 4096);
        wire.response(Opcode::RC_READ_RESPONSE_FIRST, psn, Syndrome::Ack(Credit(1)), 1024);
        for middle in 1..3 {
            wire.pass(|p| {
                p.key = FlowKey { src: SERVER, dst: CLIENT, qpn: CLIENT_QP };
                (p.opcode, p.psn) = (Opcode::RC_READ_RESPONSE_MIDDLE, Psn::new(psn + middle));
                p.payload_len = 1024;
            });
        }
        wire.response(Opcode::RC_READ_RESPONSE_LAST, psn + 3, Syndrome::Ack(Credit(1)), 1024);
    }
    assert_eq!(wire.found(), []);
}

#[test]
fn a_read_repeated_from_its_middle_may_overtake_its_responses() {
    let mut wire = Wire::new();
    // The path MTU is not known when the READ is sent.
    wire.request(Opcode::RC_READ_REQUEST, 100, 16_384);
    let middle = |wire: &mut Wire, psn| {
        wire.pass(|p| {
            p.key = FlowKey { src: SERVER, dst: CLIENT, qpn: CLIENT_QP };
            (p.opcode, p.psn, p.payload_len) = (Opcode::RC_READ_RESPONSE_MIDDLE, Psn::new(psn), 1024);
        })
    };
    wire.response(Opcode::RC_READ_RESPONSE_FIRST, 100, Syndrome::Ack(Credit(1)), 1024);
    (101..110).for_each(|psn| _ = middle(&mut wire, psn));
    // 103 was lost behind the capture point. The first responses continue.
    wire.request(Opcode::RC_READ_REQUEST, 103, 16_384 - 3 * 1024);
    (110..115).for_each(|psn| _ = middle(&mut wire, psn));
    wire.response(Opcode::RC_READ_RESPONSE_LAST, 115, Syndrome::Ack(Credit(1)), 1024);
    wire.response(Opcode::RC_READ_RESPONSE_FIRST, 103, Syndrome::Ack(Credit(1)), 1024);
    (104..115).for_each(|psn| _ = middle(&mut wire, psn));
    wire.response(Opcode::RC_READ_RESPONSE_LAST, 115, Syndrome::Ack(Credit(1)), 1024);
    wire.send(116);
    wire.ack(116);
    assert_eq!(wire.found(), [(Kind::ResponseLostBehind, 1)]);
}

#[test]
fn a_missing_response_to_a_read_is_a_loss_before_the_capture_point() {
    let mut wire = Wire::new();
    let only = Opcode::RC_READ_RESPONSE_ONLY;
    for psn in [1, 2, 3] {
        wire.request(Opcode::RC_READ_REQUEST, psn, 64);
    }
    wire.response(only, 1, Syndrome::Ack(Credit(1)), 64);
    wire.response(only, 3, Syndrome::Ack(Credit(1)), 64);
    for psn in [2, 3] {
        wire.request(Opcode::RC_READ_REQUEST, psn, 64);
    }
    for psn in [2, 3] {
        wire.response(only, psn, Syndrome::Ack(Credit(1)), 64);
    }
    assert_eq!(wire.found(), [(Kind::ResponseLostBefore, 1)]);
}

#[test]
fn a_request_repeated_after_its_response_was_seen_lost_the_response_behind() {
    for read in [false, true] {
        let mut wire = Wire::new();
        for _ in 0..2 {
            if read {
                wire.request(Opcode::RC_READ_REQUEST, 7, 64);
                wire.response(Opcode::RC_READ_RESPONSE_ONLY, 7, Syndrome::Ack(Credit(1)), 64);
            } else {
                wire.send(7);
                wire.ack(7);
            }
            wire.wait(60 * MS);
        }
        assert_eq!(wire.found(), [(Kind::ResponseLostBehind, 1)]);
    }
}

#[test]
fn a_retransmission_without_a_cause_leaves_both_ways_open() {
    let mut wire = Wire::new();
    wire.send(1);
    wire.ack(1);
    wire.send(2);
    wire.wait(60 * MS);
    wire.send(2);
    wire.ack(2);
    assert_eq!(wire.found(), [(Kind::RequestOrResponseLost, 1)]);
}

#[test]
fn a_retransmission_that_is_answered_twice_was_too_early() {
    let mut wire = Wire::new();
    for psn in 1..4 {
        wire.send(psn);
        wire.wait(20 * MS);
        wire.send(psn);
        wire.wait(20 * MS);
        wire.ack(psn);
        wire.wait(MS);
        wire.ack(psn);
    }
    assert_eq!(wire.found(), [(Kind::EarlyRetransmission, 3)]);
}

#[test]
fn repeated_requests_without_any_response_have_no_responder() {
    let mut wire = Wire::new();
    for _ in 0..8 {
        wire.send(1);
        wire.wait(60 * MS);
    }
    assert_eq!(wire.found(), [(Kind::NoResponse, 7), (Kind::RetransmissionStorm, 7)]);
}

#[test]
fn a_request_that_waits_for_a_second_has_no_response() {
    let mut wire = Wire::new();
    wire.send(1);
    wire.ack(1);
    wire.send(2);
    wire.wait(1500 * MS);
    wire.pass(|p| p.key.qpn = Qpn::new(0x99));
    assert_eq!(wire.found(), [(Kind::NoResponse, 1)]);
}

#[test]
fn requests_at_the_end_of_the_capture_may_be_unanswered() {
    let mut wire = Wire::new();
    wire.send(1);
    wire.ack(1);
    wire.send(2);
    wire.send(3);
    assert_eq!(wire.found(), []);
}

#[test]
fn a_capture_of_one_direction_is_a_note() {
    let mut wire = Wire::new();
    for psn in 0..100 {
        wire.send(psn);
    }
    assert_eq!(wire.found(), [(Kind::OneDirection, 100)]);
}

#[test]
fn acknowledged_packets_that_are_missing_were_missed_by_the_capture() {
    let mut wire = Wire::new();
    for psn in [1, 2, 5, 6] {
        wire.send(psn);
    }
    wire.ack(6);
    assert_eq!(wire.found(), [(Kind::CaptureLost, 2)]);
}

#[test]
fn gaps_of_unacknowledged_transport_are_missing() {
    let mut wire = Wire::new();
    for psn in [1, 2, 5, 6, 4] {
        wire.request(Opcode::UC_SEND_ONLY, psn, 64);
    }
    assert_eq!(wire.found(), [(Kind::Missing, 1), (Kind::Reordered, 1)]);
}

#[test]
fn a_receiver_that_is_not_ready_lost_nothing() {
    let mut wire = Wire::new();
    for psn in 1..5 {
        wire.send(psn);
    }
    wire.ack(1);
    wire.rnr(2);
    // soft-RoCE also reports the packets behind it as out of sequence.
    wire.nak(2, LOST);
    wire.wait(MS);
    for psn in 2..5 {
        wire.send(psn);
    }
    wire.ack(4);
    assert_eq!(wire.found(), [(Kind::RnrNak, 1)]);
}

#[test]
fn a_requester_that_gives_up_after_rnr_naks_is_an_error() {
    let mut wire = Wire::new();
    for _ in 0..3 {
        wire.send(1);
        wire.rnr(1);
        wire.wait(MS);
    }
    wire.wait(2000 * MS);
    wire.pass(|p| p.key.qpn = Qpn::new(0x99));
    assert_eq!(wire.found(), [(Kind::RnrExhausted, 1), (Kind::RnrNak, 3)]);
}

#[test]
fn a_refused_request_is_found_with_its_key() {
    for (code, kind) in [
        (NakCode::REMOTE_ACCESS_ERROR, Kind::AccessError),
        (NakCode::INVALID_REQUEST, Kind::InvalidRequest),
        (NakCode::REMOTE_OPERATIONAL_ERROR, Kind::OperationalError),
        (NakCode(9), Kind::OtherNak),
    ] {
        let mut wire = Wire::new();
        wire.request(Opcode::RC_WRITE_FIRST, 1, 1024);
        wire.request(Opcode::RC_WRITE_LAST, 2, 64);
        wire.nak(2, code);
        let (findings, _) = wire.connections.finish();
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert_eq!(findings[0].kind, kind);
        let access = Some(Access { va: 0x1000, rkey: 0x77, len: 1024 });
        let opcode = Some(Opcode::RC_WRITE_FIRST);
        assert_eq!(findings[0].detail, Detail::Refused { psn: Psn::new(2), opcode, access, code: code.0 });
        let numbers: Vec<_> = findings[0].packets.iter().map(|sight| sight.number).collect();
        assert_eq!(numbers, [2, 3]);
        let ends = findings[0].ends.unwrap();
        assert_eq!(ends.requester, (CLIENT, Some(CLIENT_QP)));
        assert_eq!(ends.responder, (SERVER, Some(SERVER_QP)));
    }
}

#[test]
fn a_nak_without_requests_says_that_they_are_not_there() {
    let mut wire = Wire::new();
    wire.nak(7, LOST);
    wire.rnr(9);
    assert_eq!(wire.found(), [(Kind::SequenceError, 1), (Kind::RnrNak, 1)]);
}

#[test]
fn a_nak_that_changes_nothing_is_found() {
    let mut wire = Wire::new();
    for psn in 1..4 {
        wire.send(psn);
    }
    wire.nak(2, LOST);
    wire.wait(2000 * MS);
    wire.pass(|p| p.key.qpn = Qpn::new(0x99));
    let found = wire.found();
    assert!(found.contains(&(Kind::RequestLostBehind, 1)), "{found:?}");
    assert!(found.contains(&(Kind::NakUnheeded, 1)), "{found:?}");
}

#[test]
fn many_retransmissions_are_a_storm() {
    let mut wire = Wire::new();
    for psn in 0..40 {
        wire.send(psn);
    }
    wire.nak(0, LOST);
    for psn in 0..40 {
        wire.send(psn);
    }
    wire.ack(39);
    assert_eq!(wire.found(), [(Kind::RequestLostBehind, 1), (Kind::RetransmissionStorm, 40)]);
}

#[test]
fn another_connection_on_the_same_queue_pair_is_no_loss() {
    let mut wire = Wire::new();
    for first in [100, 9_000_000, 200] {
        for psn in first..first + 10 {
            wire.send(psn);
            wire.ack(psn);
        }
    }
    assert_eq!(wire.found(), []);
}

#[test]
fn connections_with_the_same_psns_are_told_apart_by_their_ports() {
    let mut wire = Wire::new();
    for psn in 0..20 {
        for n in 0..4 {
            wire.pass(|p| {
                p.key.qpn = Qpn::new(0x100 + u32::from(n));
                (p.psn, p.src_port) = (Psn::new(psn), 50_000 + n);
            });
        }
        for n in 0..4 {
            wire.pass(|p| {
                p.key = FlowKey { src: SERVER, dst: CLIENT, qpn: Qpn::new(0x200 + u32::from(n)) };
                (p.psn, p.src_port, p.opcode) = (Psn::new(psn), 50_000 + n, Opcode::RC_ACKNOWLEDGE);
                let code = if (n, psn) == (2, 19) { 0x62 } else { 0x1f };
                p.aeth = Some(Aeth::new(Syndrome::from_wire(code), rocev2::Msn::ZERO));
            });
        }
    }
    let (findings, _) = wire.connections.finish();
    assert_eq!(findings.len(), 1);
    let ends = findings[0].ends.unwrap();
    assert_eq!((ends.requester.1, ends.responder.1), (Some(Qpn::new(0x202)), Some(Qpn::new(0x102))));
}

#[test]
fn a_full_table_forgets_idle_connections_and_keeps_their_findings() {
    let mut wire = Wire::with_max(16);
    wire.send(1);
    wire.send(2);
    wire.nak(1, LOST);
    for n in 0..10_000 {
        wire.pass(|p| p.key.qpn = Qpn::new(0x1000 + n));
    }
    assert!(wire.connections.slots.len() == 16 && wire.connections.index.len() == 16);
    assert!(wire.connections.by_hosts.values().map(Vec::len).sum::<usize>() == 16);
    assert_eq!(wire.connections.evicted, 10_002 - 16);
    assert_eq!(wire.found(), [(Kind::RequestLostBehind, 1)]);
}

#[test]
fn a_flow_takes_constant_memory() {
    assert!(size_of::<Flow>() < 5120, "{}", size_of::<Flow>());
}
