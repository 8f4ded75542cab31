//! The findings in real captures, and those of the communication manager and of broken packets.

use super::analysis::{Analysis, Diagnosis};
use super::finding::{Kind, Severity};
use super::packet::Sight;
use super::{diagnose, report};
use crate::decode::dissect_ethernet;
use rocev2::cm::{self, Drep, Dreq, Kind as Message, MAD_LEN, MadHeader, Rej, RejReason, Rep, Req, Rtu};
use rocev2::deth::Deth;
use rocev2::ethernet::{Ethernet, ethertype};
use rocev2::repr::{Ip, Repr};
use rocev2::{Bth, Opcode, Psn, Qpn};
use understudy_tests::{captures, packets};
use zerocopy::{FromZeros as _, Immutable, IntoBytes};

const S: u64 = 1_000_000_000;

fn kinds(diagnosis: &Diagnosis) -> Vec<(&'static str, u64)> {
    diagnosis.findings.iter().map(|finding| (finding.kind.name(), finding.count)).collect()
}

/// Findings of each capture; any other has none.
const EXPECTED: &[(&str, &[(&str, u64)])] = &[
    ("cm_reject", &[("cm_rejected", 1)]),
    // Every third ACK was dropped; a lost ACK before another one costs nothing.
    ("rc_ack_loss", &[("response_lost_behind", 4)]),
    ("rc_cas_request_loss", &[("request_lost_behind", 10), ("retransmission_storm", 129)]),
    ("rc_fetch_add_response_loss", &[("response_lost_behind", 4), ("retransmission_storm", 70)]),
    ("rc_rnr_nak", &[("rnr_nak", 8), ("retransmission_storm", 58)]),
    ("rc_write_loss", &[("request_lost_behind", 2), ("retransmission_storm", 149)]),
    // An emulated host that responded late
    ("rc_write_64", &[("early_retransmission", 10)]),
    ("dscp_ce_ipv6_rc_write_64", &[("ce_without_cnp", 20)]),
    ("odd_verbs", ODD_VERBS),
    ("ipv6_odd_verbs", ODD_VERBS),
];

const ODD_VERBS: &[(&str, u64)] =
    &[("access_error", 1), ("invalid_request", 1), ("operational_error", 1), ("rnr_nak", 1)];

#[test]
fn the_cause_is_named_for_every_capture() {
    for path in captures::all() {
        let name = path.file_stem().unwrap().to_str().unwrap();
        if name == "damaged" {
            continue;
        }
        let (diagnosis, read) = diagnose(&path);
        assert!(read.is_ok(), "{name}");
        let expected = EXPECTED.iter().find(|(file, _)| *file == name).map_or(&[][..], |(_, found)| found);
        assert_eq!(kinds(&diagnosis), expected, "{}", report::text(name, &diagnosis));
        assert_eq!((diagnosis.totals.forgotten, diagnosis.totals.omitted), (0, 0));
    }
}

#[test]
fn damaged_packets_are_findings() {
    let (diagnosis, _) = diagnose(&captures::path("damaged.pcap"));
    let found = kinds(&diagnosis);
    for kind in ["malformed", "bad_icrc", "fragmented"] {
        assert!(found.iter().any(|(name, _)| *name == kind), "{kind}: {found:?}");
    }
}

#[test]
fn a_refused_access_is_named_with_key_and_address() {
    let (diagnosis, _) = diagnose(&captures::path("odd_verbs.pcap"));
    let text = report::text("odd", &diagnosis);
    assert!(text.contains("R_Key 0x224") && text.contains("0x562ebb5ab000, 64 bytes"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    let json = report::json("odd", &diagnosis);
    let access = json["findings"].as_array().unwrap().iter().find(|f| f["kind"] == "access_error").unwrap();
    assert!(access["detail"]["access"]["rkey"].is_u64() && access["packets"][0]["number"].is_u64());
    assert_eq!(access["severity"], "error");
}

/// Returns a frame from one host to another; host n has the address 10.0.0.n.
fn frame((src, dst): (u8, u8), bth: Bth, payload: &[u8]) -> Vec<u8> {
    let ethernet = Ethernet { ethertype: ethertype::IPV4.into(), ..Ethernet::default() };
    let ip = Ip::between([10, 0, 0, src].into(), [10, 0, 0, dst].into(), 0);
    let mut repr = Repr::new(ethernet, ip, bth);
    repr.extended.deth = Deth::new(Deth::GSI_QKEY, Qpn::GSI);
    repr.payload = payload;
    let mut frame = vec![0; repr.frame_len()];
    let len = repr.build(&mut frame).unwrap();
    frame.truncate(len);
    frame
}

/// Messages of the communication manager between hosts 1 and 2.
struct Network {
    analysis: Analysis,
    sight: Sight,
}

impl Network {
    fn new() -> Self {
        Self { analysis: Analysis::default(), sight: Sight { number: 0, time_ns: S } }
    }

    fn pass(&mut self, frame: &[u8]) {
        self.sight.number += 1;
        self.sight.time_ns += 2_000_000;
        self.analysis.frame(self.sight, 0, &dissect_ethernet(frame, frame.len()).unwrap());
    }

    fn message(&mut self, hosts: (u8, u8), kind: Message, body: &(impl IntoBytes + Immutable)) {
        let mut mad = [0; MAD_LEN];
        cm::emit(&MadHeader::new(kind, 7), body, &mut mad);
        self.pass(&frame(hosts, Bth::new(Opcode::UD_SEND_ONLY, Qpn::GSI, Psn::ZERO), &mad));
    }

    fn req(&mut self) {
        let mut req = Req::zeroed();
        req.local_comm_id = 5.into();
        req.set_qpn(Qpn::new(0x21));
        req.set_starting_psn(Psn::new(900));
        req.mtu_rnr = 3 << 4;
        req.primary.local_gid = std::net::Ipv4Addr::new(10, 0, 0, 1).to_ipv6_mapped().octets();
        req.primary.remote_gid = std::net::Ipv4Addr::new(10, 0, 0, 2).to_ipv6_mapped().octets();
        self.message((1, 2), Message::Req, &req);
    }

    fn rep(&mut self) {
        let mut rep = Rep::zeroed();
        (rep.local_comm_id, rep.remote_comm_id) = (6.into(), 5.into());
        rep.set_qpn(Qpn::new(0x42));
        rep.set_starting_psn(Psn::new(100));
        self.message((2, 1), Message::Rep, &rep);
    }

    fn rtu(&mut self) {
        let mut rtu = Rtu::new_zeroed();
        (rtu.local_comm_id, rtu.remote_comm_id) = (5.into(), 6.into());
        self.message((1, 2), Message::Rtu, &rtu);
    }

    fn dreq(&mut self) {
        let mut dreq = Dreq::new_zeroed();
        (dreq.local_comm_id, dreq.remote_comm_id) = (5.into(), 6.into());
        self.message((1, 2), Message::Dreq, &dreq);
    }

    fn drep(&mut self) {
        let mut drep = Drep::new_zeroed();
        (drep.local_comm_id, drep.remote_comm_id) = (6.into(), 5.into());
        self.message((2, 1), Message::Drep, &drep);
    }

    fn send(&mut self, psn: u32) {
        self.pass(&frame((1, 2), Bth::new(Opcode::RC_SEND_ONLY, Qpn::new(0x42), Psn::new(psn)), &[0; 4]));
    }

    /// Returns the findings two seconds later.
    fn later(mut self) -> Vec<(&'static str, u64)> {
        self.sight.time_ns += 2 * S;
        self.pass(&frame((8, 9), Bth::new(Opcode::UC_SEND_ONLY, Qpn::new(0x99), Psn::ZERO), &[0; 4]));
        kinds(&self.analysis.finish())
    }
}

#[test]
fn complete_exchanges_are_no_finding() {
    let mut network = Network::new();
    network.req();
    network.rep();
    network.rtu();
    network.dreq();
    network.drep();
    assert_eq!(network.later(), []);
}

#[test]
fn the_first_message_that_is_missing_is_named() {
    let mut network = Network::new();
    network.req();
    assert_eq!(network.later(), [("cm_no_reply", 1)]);

    let mut network = Network::new();
    network.req();
    network.rep();
    network.rep();
    assert_eq!(network.later(), [("cm_no_rtu", 2)]);

    let mut network = Network::new();
    network.req();
    network.rep();
    network.rtu();
    network.dreq();
    assert_eq!(network.later(), [("cm_no_drep", 1)]);
}

#[test]
fn a_request_on_the_new_connection_replaces_the_rtu() {
    let mut network = Network::new();
    network.req();
    network.rep();
    network.send(100);
    assert_eq!(network.later(), []);
}

#[test]
fn an_exchange_at_the_end_of_the_capture_may_be_incomplete() {
    let mut network = Network::new();
    network.req();
    assert_eq!(kinds(&network.analysis.finish()), []);
}

#[test]
fn the_first_packet_of_a_connection_is_missed() {
    let mut network = Network::new();
    network.req();
    network.rep();
    network.rtu();
    network.send(101);
    assert_eq!(network.later(), [("missing", 1)]);
}

#[test]
fn a_rejected_request_is_found_with_its_reason() {
    let mut network = Network::new();
    network.req();
    let rej = Rej::of_req(0, 5, RejReason::STALE_CONNECTION);
    network.message((2, 1), Message::Rej, &rej);
    network.message((2, 1), Message::Rej, &rej);
    let diagnosis = network.analysis.finish();
    assert_eq!(kinds(&diagnosis), [("cm_rejected", 1)]);
    let text = report::text("-", &diagnosis);
    assert!(text.contains("stale connection (reason 10)"), "{text}");
}

#[test]
fn a_request_with_another_gid_is_found() {
    let mut network = Network::new();
    let mut req = Req::zeroed();
    req.primary.local_gid = [0xfe; 16];
    network.message((1, 2), Message::Req, &req);
    network.message((2, 1), Message::Rej, &Rej::of_req(0, 0, RejReason::CONSUMER));
    assert_eq!(network.later(), [("cm_rejected", 1), ("gid_mismatch", 1)]);
}

#[test]
fn packets_from_another_address_than_the_peers_are_found() {
    let from_three = frame((3, 2), Bth::new(Opcode::RC_SEND_ONLY, Qpn::new(0x42), Psn::new(900)), &[0; 4]);
    let mut network = Network::new();
    network.req();
    network.rep();
    network.rtu();
    network.send(100);
    network.pass(&from_three);
    network.pass(&from_three);
    let diagnosis = network.analysis.finish();
    let found = diagnosis.findings.iter().find(|finding| finding.kind == Kind::GidUnexpected).unwrap();
    assert_eq!(found.count, 1);
    let text = report::text("-", &diagnosis);
    assert!(text.contains("from another address") && text.contains("10.0.0.3"), "{text}");
    // The number may be used again after the connection.
    let mut network = Network::new();
    network.req();
    network.rep();
    network.rtu();
    network.dreq();
    network.drep();
    network.pass(&from_three);
    assert!(network.later().iter().all(|(kind, _)| *kind != "gid_unexpected"));
}

/// The GIDs of a REQ are the addresses that the connection's packets have, also if the REQ has others.
#[test]
fn the_gids_of_a_request_are_the_peers_addresses() {
    let mut network = Network::new();
    let mut req = Req::zeroed();
    req.local_comm_id = 5.into();
    req.set_qpn(Qpn::new(0x21));
    req.set_starting_psn(Psn::new(900));
    req.primary.local_gid = std::net::Ipv4Addr::new(10, 0, 0, 3).to_ipv6_mapped().octets();
    req.primary.remote_gid = std::net::Ipv4Addr::new(10, 0, 0, 2).to_ipv6_mapped().octets();
    network.message((1, 2), Message::Req, &req);
    network.rep();
    network.rtu();
    network.pass(&frame((3, 2), Bth::new(Opcode::RC_SEND_ONLY, Qpn::new(0x42), Psn::new(100)), &[0; 4]));
    let found = kinds(&network.analysis.finish());
    assert!(
        found.contains(&("gid_mismatch", 1)) && found.iter().all(|(kind, _)| *kind != "gid_unexpected"),
        "{found:?}"
    );
}

#[test]
fn a_service_id_that_is_not_resolved_is_found() {
    let (mut request, mut refusal) = ([0u8; MAD_LEN - MadHeader::LEN], [0u8; MAD_LEN - MadHeader::LEN]);
    (request[3], refusal[3], refusal[4]) = (9, 9, 1);
    let mut network = Network::new();
    network.message((1, 2), Message::SidrReq, &request);
    network.message((2, 1), Message::SidrRep, &refusal);
    assert_eq!(network.later(), [("sidr_rejected", 1)]);
    let mut network = Network::new();
    network.message((1, 2), Message::SidrReq, &request);
    assert_eq!(network.later(), [("sidr_no_reply", 1)]);
}

#[test]
fn packets_that_receivers_drop_are_findings() {
    let mut network = Network::new();
    let sound = packets::packet(Opcode::UC_SEND_ONLY, false, 0, &[1; 64]);
    let mut wrong = sound.clone();
    *wrong.last_mut().unwrap() ^= 1;
    network.pass(&wrong);
    let table = packets::table();
    let fragment = table.iter().find(|row| row.fault == Some(rocev2::Fault::Fragment)).unwrap();
    network.pass(&fragment.frame);
    let mut version_one = sound;
    version_one[12..14].copy_from_slice(&[0x89, 0x15]);
    network.pass(&version_one);
    let found = kinds(&network.analysis.finish());
    assert_eq!(found, [("bad_icrc", 1), ("fragmented", 1), ("roce_v1", 1)]);
}

#[test]
fn a_packet_that_the_instance_drops_is_found_with_the_reason() {
    let mut network = Network::new();
    let frame = packets::packet(Opcode::UC_SEND_ONLY, false, 0, &[1; 64]);
    let Some(crate::decode::Dissection::Roce(packet)) = dissect_ethernet(&frame, frame.len()) else {
        panic!("a sound packet");
    };
    network.analysis.dropped(Sight { number: 1, time_ns: 1 }, &packet, "port_full");
    let diagnosis = network.analysis.finish();
    assert_eq!(diagnosis.findings[0].kind, Kind::DroppedHere);
    assert_eq!(diagnosis.findings[0].severity, Severity::Error);
    assert!(report::text("-", &diagnosis).contains("port full"));
}
