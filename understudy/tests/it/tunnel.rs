//! `understudy run` with `[tunnel]`: decapsulated packets go on to a router or to 1Pipe's switch.

use crate::common::json_page::assert_report_is_on_the_page;
use core::net::{IpAddr, Ipv4Addr};
use rocev2::ethernet::{Ethernet, MacAddr, ethertype};
use rocev2::ipv4::Ipv4;
use rocev2::repr::{Ip, Repr};
use rocev2::{Bth, Opcode, Packet, Psn, Qpn};
use serde_json::Value;
use std::path::Path;
use understudy_tests::captures;
use understudy_tests::processes;

const SWITCH_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 0xfe]);
const TUNNEL_END: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 255, 0, 1));
const KNOWN_SOURCE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 255, 0, 5));
const UNKNOWN_SOURCE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 9, 9, 9));

/// Returns a packet to host 2, with this PSN.
fn packet(psn: u32) -> Vec<u8> {
    let ethernet =
        Ethernet { dst: SWITCH_MAC, src: MacAddr([2, 0, 0, 0, 1, 5]), ethertype: ethertype::IPV4.into() };
    let ip = Ipv4 { src: [10, 0, 0, 1], dst: [10, 0, 0, 2], ttl: 9, ..Ipv4::default() };
    let bth = Bth::new(Opcode::UC_SEND_ONLY, Qpn::new(0x11), Psn::new(psn));
    let mut repr = Repr::new(ethernet, Ip::V4(ip, &[]), bth);
    repr.payload = &[7; 24];
    let mut frame = vec![0; repr.frame_len()];
    repr.build(&mut frame).unwrap();
    frame
}

/// Returns the packet in a tunnel.
fn encapsulate(frame: &[u8], src: IpAddr) -> Vec<u8> {
    let (ethernet, packet) = frame.split_at(Ethernet::LEN);
    [ethernet, &switch::tunnel::encapsulation_headers(&[(src, TUNNEL_END)], packet).unwrap(), packet].concat()
}

/// Runs a function behind `[tunnel]` on three frames. Returns the frames at the other port, and the report as
/// JSON and as text.
fn run(tunnel: &str, function: &str) -> (Vec<Vec<u8>>, Value, String) {
    let folder = tempfile::tempdir().unwrap();
    let frames = [
        encapsulate(&packet(1), KNOWN_SOURCE),
        encapsulate(&packet(2), UNKNOWN_SOURCE),
        encapsulate(&packet(3), KNOWN_SOURCE),
    ];
    let mut capture = Vec::new();
    for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65_535, 1] {
        capture.extend(word.to_le_bytes());
    }
    for frame in &frames {
        let len = frame.len() as u32;
        capture.extend([0, 0, len, len].map(u32::to_le_bytes).concat());
        capture.extend(frame);
    }
    std::fs::write(folder.path().join("in.pcap"), capture).unwrap();
    let text = format!(
        "[runtime]\nstop_when_idle_ms = 200\n\
         [[port]]\nname = \"spine\"\npcap = {{ rx = \"in.pcap\", tx = \"back.pcap\" }}\n\
         [[port]]\nname = \"host\"\npcap = {{ tx = \"out.pcap\" }}\n\
         [tunnel]\naddresses = [\"{TUNNEL_END}\"]\nsources = [\"{KNOWN_SOURCE}\"]\n{tunnel}\n{function}"
    );
    let config = folder.path().join("my.toml");
    std::fs::write(&config, text).unwrap();
    let run = |options: &[&str]| {
        let program = processes::command(env!("CARGO_BIN_EXE_understudy"));
        let output = { program }.arg("run").arg(&config).args(options).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    };
    let text = String::from_utf8(run(&[])).unwrap();
    let report = serde_json::from_slice(&run(&["--json"])).unwrap();
    (captures::frames(&folder.path().join("out.pcap")), report, text)
}

/// Checks that the packets of the known source left with a new hop's addresses and TTL, and that the other
/// packet is counted.
fn check((frames, report, text): &(Vec<Vec<u8>>, Value, String), dst: MacAddr) {
    let packets: Vec<_> =
        frames.iter().filter_map(|frame| Packet::parse(frame).map(|packet| (frame, packet))).collect();
    let psns: Vec<_> = packets.iter().map(|(_, packet)| packet.bth().psn().get()).collect();
    assert_eq!(psns, [1, 3]);
    for (frame, packet) in packets {
        assert_eq!((&frame[..6], &frame[6..12]), (&dst.0[..], &SWITCH_MAC.0[..]));
        assert_eq!(frame[Ethernet::LEN + 8], 8, "the TTL has to be decremented");
        assert!(packet.verify_icrc());
    }
    let plain = packet(1).len() as u64;
    let expected = serde_json::json!({
        "terminated_frames": 2, "terminated_bytes": 2 * plain, "refused": { "source": 1 }
    });
    assert_eq!(report["tunnel"], expected);
    assert_eq!(report["drops"], serde_json::json!([{ "reason": "wrong_source", "frames": 1 }]));
    assert!(text.contains(&format!("Tunnels: 2 packets decapsulated, {} bytes", 2 * plain)), "{text}");
    assert!(text.contains("Tunnels: refused\n"), "{text}");
}

#[test]
fn tunnels_end_in_front_of_a_router() {
    let dst = MacAddr([2, 0, 0, 0, 0, 2]);
    let router = format!(
        "[forward.routes]\nmac = \"{SWITCH_MAC}\"\n\
         [[forward.routes.to]]\nprefix = \"10.0.0.0/24\"\nvia = [{{ port = \"host\", mac = \"{dst}\" }}]\n"
    );
    check(&run("", &router), dst);
}

#[test]
fn tunnels_end_in_front_of_onepipes_switch() {
    let dst = MacAddr([2, 0, 0, 0, 0, 2]);
    let switch = format!(
        "[onepipe]\nincarnation = \"chip\"\naddresses = [\"10.0.0.254/24\"]\nmac = \"{SWITCH_MAC}\"\nbeacon_interval_ns = 1000000\n\
         mac_table = {{ fixed = [{{ mac = \"{dst}\", port = \"host\" }}] }}\n\
         [[onepipe.links]]\nside = \"above\"\nport = \"spine\"\nmac = \"02:00:00:00:01:05\"\naddress = \"10.0.1.5\"\nqpn = 0x11\n"
    );
    check(&run(&format!("next_hops = [{{ address = \"10.0.0.2\", mac = \"{dst}\" }}]"), &switch), dst);
}

#[test]
fn the_example_runs() {
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs/tunnel.toml");
    let program = processes::command(env!("CARGO_BIN_EXE_understudy"));
    let output = { program }.arg("run").arg(config).args(["--for", "0.1", "--json"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(assert_report_is_on_the_page(&report), ["tunnel"]);
    let nothing = serde_json::json!({ "terminated_frames": 0, "terminated_bytes": 0, "refused": {} });
    assert_eq!(report["tunnel"], nothing);
}
