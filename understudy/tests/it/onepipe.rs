//! `understudy run` with `[onepipe]`: what it prints about links, and its report.

use crate::common::json_page::{assert_is_on_the_page, assert_report_is_on_the_page};
use onepipe::{OnePipe, OnePipeOpcode, Timestamp};
use rocev2::deth::Deth;
use rocev2::ethernet::{Ethernet, MacAddr, ethertype};
use rocev2::ipv4::Ipv4;
use rocev2::repr::{Ip, Repr};
use rocev2::{Bth, Opcode, Psn, Qpn};
use serde_json::Value;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Output;
use std::time::{SystemTime, UNIX_EPOCH};
use understudy_tests::captures;
use understudy_tests::processes;
use zerocopy::IntoBytes;

fn run(config: &Path, options: &[&str]) -> Output {
    let run = processes::command(env!("CARGO_BIN_EXE_understudy"));
    let output = { run }.args(["run", config.to_str().unwrap()]).args(options).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output
}

#[test]
fn the_example_runs_and_reports_dead_links() {
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs/onepipe.toml");
    let output = run(&config, &["--for", "0.4", "--json", "--live", "0.1"]);
    let printed = String::from_utf8_lossy(&output.stderr);
    for link in ["Link 0 (host a)", "Link 1 (host b)", "Link 2 (host c)", "Link 3 (spine 1)"] {
        assert!(
            printed.contains(&format!("{link} is dead: silent for 30 us")),
            "{link} is missing in\n{printed}"
        );
    }
    let lines: Vec<Value> = output
        .stdout
        .split(|&byte| byte == b'\n')
        .filter_map(|line| serde_json::from_slice(line).ok())
        .collect();
    let (last, live) = lines.split_last().unwrap();
    assert_eq!(assert_report_is_on_the_page(last), ["onepipe"]);
    for line in live {
        assert_is_on_the_page("Lines of `--live` with `[onepipe]`", line);
    }
    assert!(!live.is_empty(), "no live lines were printed");
    assert!(live.iter().all(|line| line["onepipe"]["intervals"].is_u64()));
    let onepipe_report = &last["onepipe"];
    assert_eq!(
        (onepipe_report["dead"].as_u64(), onepipe_report["links"].as_array().unwrap().len()),
        (Some(4), 4),
        "{onepipe_report}"
    );
    assert!(
        onepipe_report["links"].as_array().unwrap().iter().all(|link| link["state"] == "dead"),
        "{onepipe_report}"
    );
    assert!(last["onepipe"]["intervals"].as_u64() > Some(100), "{last}");
    // One on each link in each interval, until all links are dead: what follows is unknown then.
    let sent = last["onepipe"]["beacons_sent"].as_u64().unwrap();
    assert!((4..=4 * 12).contains(&sent), "{last}");
}

/// Returns a 1Pipe packet from host `from` to the switch, or to host 3 through it.
fn packet(from: u8, opcode: OnePipeOpcode, timestamp: Timestamp) -> Vec<u8> {
    let dst = if opcode == OnePipeOpcode::BEACON {
        MacAddr([2, 0, 0, 0, 0, 0xfe])
    } else {
        MacAddr([2, 0, 0, 0, 0, 3])
    };
    // Queue pair of its link, or of host 3
    let qpn = if opcode == OnePipeOpcode::BEACON { 0xff + u32::from(from) } else { 0x11 };
    let ethernet = Ethernet { dst, src: MacAddr([2, 0, 0, 0, 0, from]), ethertype: ethertype::IPV4.into() };
    let ip = Ipv4 { src: [10, 0, 0, from], dst: [10, 0, 0, 3], ..Ipv4::default() };
    let mut repr =
        Repr::new(ethernet, Ip::V4(ip, &[]), Bth::new(Opcode::UD_SEND_ONLY, Qpn::new(qpn), Psn::ZERO));
    repr.extended.deth = Deth::new(OnePipe::QKEY, Qpn::new(0x11));
    let header = OnePipe::new(opcode, timestamp, Psn::ZERO);
    repr.payload = header.as_bytes();
    let mut frame = vec![0; repr.frame_len()];
    repr.build(&mut frame).unwrap();
    frame
}

#[allow(clippy::disallowed_methods, reason = "timestamps of the capture have to match the program's clock")]
fn wall_clock() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64
}

fn capture(path: &Path, frames: &[Vec<u8>]) {
    let mut bytes = Vec::new();
    for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65_535, 1] {
        bytes.extend(word.to_le_bytes());
    }
    for frame in frames {
        let len = frame.len() as u32;
        bytes.extend([0, 0, len, len].map(u32::to_le_bytes).concat());
        bytes.extend(frame);
    }
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn the_link_that_holds_the_barrier_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let now = wall_clock();
    // Host 2 is 5 ms behind the other hosts. All hosts have sent a beacon before one sends a message, to host
    // 3.
    let mut text = String::from("[runtime]\nstop_when_idle_ms = 300\n");
    for n in 1..=3 {
        let printed = Timestamp::new(now - if n == 2 { 5_000_000 } else { u64::from(n) });
        let mut frames = vec![packet(n, OnePipeOpcode::BEACON, printed); 3];
        if n == 1 {
            // Ports are polled in turn, in bursts of 32, so the message comes after the other hosts' beacons.
            frames.resize(64, frames[0].clone());
            frames.push(packet(n, OnePipeOpcode::DATA, printed));
        }
        capture(&folder.path().join(format!("{n}.pcap")), &frames);
        _ = write!(
            text,
            "[[port]]\nname = \"p{n}\"\npcap = {{ rx = \"{n}.pcap\", tx = \"{n}-out.pcap\" }}\n"
        );
    }
    text += "[onepipe]\nincarnation = \"chip\"\naddresses = [\"10.0.0.254/24\"]\nmac = \"02:00:00:00:00:fe\"\n\
             beacon_interval_ns = 1000000\ndead_after_intervals = 100000\nlag_alarm_us = 1000\n\
             mac_table = { fixed = [{ mac = \"02:00:00:00:00:03\", port = \"p3\" }] }\n";
    for n in 1..=3 {
        _ = write!(
            text,
            "[[onepipe.links]]\nname = \"host {n}\"\nside = \"below\"\nport = \"p{n}\"\nmac = \"02:00:00:00:00:0{n}\"\n\
             address = \"10.0.0.{n}\"\nqpn = 0x11\n"
        );
    }
    let config = folder.path().join("my.toml");
    std::fs::write(&config, text).unwrap();
    let output = run(&config, &["--json"]);
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(printed.contains("Link 1 (host 2) holds the barrier, 4999 us behind the others"), "{printed}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let onepipe_report = &report["onepipe"];
    assert_eq!(
        (onepipe_report["lagging"].as_u64(), onepipe_report["messages"].as_u64()),
        (Some(1), Some(1)),
        "{onepipe_report}"
    );
    for side in ["above", "below"] {
        assert_eq!(onepipe_report[side]["holder_name"], "host 2", "{onepipe_report}");
        assert_eq!(
            onepipe_report[side]["best_effort_ns"],
            Timestamp::new(now - 5_000_000).nanos(),
            "{onepipe_report}"
        );
    }
    assert_eq!(
        (&onepipe_report["links"][1]["ahead_ns"], &onepipe_report["links"][1]["lag_ns"]),
        (&0.into(), &4_999_997.into())
    );
    assert_eq!(onepipe_report["links"][0]["state"], "alive", "{onepipe_report}");
    let sent = captures::frames(&folder.path().join("3-out.pcap"));
    let message =
        rocev2::Packet::parse(sent.iter().find(|frame| frame[5] == 3 && frame[11] == 1).unwrap()).unwrap();
    assert!(message.verify_icrc());
    assert_eq!(OnePipe::of(&message).unwrap().barrier(), Some(Timestamp::new(now - 5_000_000)));

    let text = String::from_utf8(run(&config, &[]).stdout).unwrap();
    for words in ["1Pipe\n", "behind the others, ns", "held by link 1 (host 2)"] {
        assert!(text.contains(words), "{words:?} is missing in\n{text}");
    }
}

#[test]
fn live_is_refused_for_functions_without_live_output() {
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs/demo.toml");
    let output = processes::command(env!("CARGO_BIN_EXE_understudy"))
        .arg("run")
        .arg(config)
        .args(["--live", "1"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("has no [onepipe], [pktgen] or [consensus]"));
}
