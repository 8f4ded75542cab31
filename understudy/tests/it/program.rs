//! The built program: runs end by themselves, replays are identical to the bit, and errors name the remedy.

use crate::common::json_page::assert_is_on_the_page;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Output;
use understudy_tests::captures::{self, frames};
use understudy_tests::processes::{self, Process, Signal, command};

fn understudy(arguments: &[&str]) -> Output {
    processes::command(env!("CARGO_BIN_EXE_understudy")).args(arguments).output().expect("the program runs")
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().into()
}

#[test]
fn a_replay_is_identical_to_the_bit() {
    let dir = tempfile::tempdir().unwrap();
    for input in ["rc_write_loss.pcap", "damaged.pcap"] {
        let input = captures::path(input);
        let (config, output) = (dir.path().join("replay.toml"), dir.path().join("out.pcap"));
        let text = format!(
            "[runtime]\nstop_when_idle_ms = 200\n\
             [[port]]\nname = \"in\"\nmtu = 9000\npcap = {{ rx = \"{}\" }}\n\
             [[port]]\nname = \"out\"\nmtu = 9000\npcap = {{ tx = \"{}\" }}\n\
             [forward]\npairs = [[\"in\", \"out\"]]\nverify = [\"icrc\"]\n",
            input.display(),
            output.display()
        );
        std::fs::write(&config, text).unwrap();
        let run = understudy(&["run", config.to_str().unwrap(), "--json"]);
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
        // An empty frame cannot be sent.
        let sent: Vec<_> = frames(&input).into_iter().filter(|frame| !frame.is_empty()).collect();
        let received: Vec<_> = frames(&output).into_iter().filter(|frame| !frame.is_empty()).collect();
        assert_eq!(received.len(), sent.len(), "{}", input.display());
        assert!(received == sent, "{}", input.display());
        let report: Value = serde_json::from_slice(&run.stdout).unwrap();
        let port = &report["ports"][0];
        let kinds =
            ["roce_frames", "other_frames", "malformed_frames"].map(|kind| port[kind].as_u64().unwrap());
        assert_eq!(kinds.iter().sum::<u64>(), port["rx_frames"].as_u64().unwrap());
        assert_eq!(report["drops"], serde_json::json!([]));
    }
}

#[test]
fn impaired_replays_are_reproducible_to_the_bit() {
    let dir = tempfile::tempdir().unwrap();
    let input = captures::path("rc_write_4qp.pcap");
    let sent = frames(&input);
    let run = |seed: u64| {
        let (config, output) = (dir.path().join("impair.toml"), dir.path().join("out.pcap"));
        // Delays are far above the kernel's scheduling delays of a worker, on which the order would otherwise
        // depend.
        let text = format!(
            "[runtime]\nstop_when_idle_ms = 600\n\
             [[port]]\nname = \"in\"\nmtu = 9000\npcap = {{ rx = \"{}\" }}\n\
             [[port]]\nname = \"out\"\nmtu = 9000\npcap = {{ tx = \"{}\" }}\n\
             [impair]\npairs = [[\"in\", \"out\"]]\nseed = {seed}\n\
             [[impair.rule]]\nname = \"lose\"\nshare = 0.1\naction = \"drop\"\n\
             [[impair.rule]]\nname = \"swap\"\nshare = 0.1\naction = \"reorder\"\nbehind = 2\nat_most_us = 100000\n\
             [[impair.rule]]\nname = \"late\"\ntimes = 2\naction = \"delay\"\ndelay_us = 150000\n",
            input.display(),
            output.display()
        );
        std::fs::write(&config, text).unwrap();
        let run = understudy(&["run", config.to_str().unwrap(), "--json"]);
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
        let report: Value = serde_json::from_slice(&run.stdout).unwrap();
        let shown = understudy(&["run", config.to_str().unwrap()]);
        let shown = String::from_utf8(shown.stdout).unwrap();
        for words in
            ["Rules\n  rule  action", " lose  drop", "a rule of `[impair]` dropped it", "were held back"]
        {
            assert!(shown.contains(words), "{words:?} is missing in\n{shown}");
        }
        (frames(&output), report)
    };
    let (left, report) = run(1);
    let rule = |rule: usize, count: &str| report["impair"]["rules"][rule][count].as_u64().unwrap();
    let lost = rule(0, "acted");
    assert_eq!(rule(0, "matched"), sent.len() as u64, "all frames are RoCEv2 packets");
    assert!(lost > 0 && rule(1, "acted") > 0, "{report}");
    assert_eq!((rule(2, "acted"), rule(1, "matched")), (2, sent.len() as u64 - lost), "{report}");
    assert_eq!(report["drops"][0]["reason"], "impaired");
    assert_eq!(report["drops"][0]["frames"].as_u64(), Some(lost));
    let impair = &report["impair"];
    assert_eq!(impair["held"].as_u64(), Some(rule(1, "acted") + 2));
    assert_eq!((impair["held_at_end"].as_u64(), impair["held_full"].as_u64()), (Some(0), Some(0)));
    assert_eq!(left.len() as u64 + lost, sent.len() as u64, "frames that were held back are missing");
    assert!(left.iter().all(|frame| sent.contains(frame)));
    assert!(!left.is_empty() && run(1).0 == left && run(2).0 != left);
}

#[test]
fn the_demonstration_runs_without_a_configuration() {
    let dir = tempfile::tempdir().unwrap();
    let run = processes::command(env!("CARGO_BIN_EXE_understudy"))
        .arg("run")
        .current_dir(dir.path())
        .output()
        .unwrap();
    let (text, errors) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    assert!(run.status.success() && errors.contains("ready"), "{errors}");
    for word in ["RC RDMA WRITE First", "RC CmpSwap", "Malformed frames", "fd00::1", "cycles per frame"] {
        assert!(text.contains(word), "no {word} in\n{text}");
    }
    let report: Value = serde_json::from_slice(&understudy(&["run", "--json"]).stdout).unwrap();
    let ports = report["ports"].as_array().unwrap();
    let roce: u64 = ports.iter().map(|port| port["roce_frames"].as_u64().unwrap()).sum();
    let opcodes = report["opcodes"].as_array().unwrap().len();
    let headline = text.trim_end().lines().last().unwrap();
    let counted = format!(": {roce} RoCEv2 frames with {opcodes} opcodes to ");
    assert!(roce > 900 && headline.contains(&counted) && headline.ends_with("per frame"), "{headline}");
}

#[test]
fn a_run_ends_after_its_duration_or_at_a_signal() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("ring.toml");
    std::fs::write(&config, "[[port]]\nname = \"a\"\nring = {}\n[forward]\npairs = [[\"a\", \"a\"]]\n")
        .unwrap();
    let config = config.to_str().unwrap();
    assert!(understudy(&["run", config, "--for", "0.1"]).status.success());
    for signal in [Signal::INT, Signal::TERM] {
        let mut child = command(env!("CARGO_BIN_EXE_understudy"));
        child.args(["run", config, "--json"]);
        child.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        let mut child = Process::start(child);
        // The "ready" line is printed before the first frame is processed.
        let mut line = String::new();
        let mut stderr = std::io::BufReader::new(child.stderr.take().unwrap());
        std::io::BufRead::read_line(&mut stderr, &mut line).unwrap();
        assert!(line.contains("ready"), "{line}");
        child.signal(signal);
        let output = child.finish();
        assert!(output.status.success(), "{signal:?}");
        assert!(serde_json::from_slice::<Value>(&output.stdout).is_ok(), "{signal:?}");
    }
}

#[test]
fn a_missing_device_exits_with_one_and_a_wrong_file_with_two() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("wire.toml");
    let text = "[[port]]\nname = \"a\"\naf_packet = { interface = \"no-such-if\" }\n[forward]\npairs = [[\"a\", \"a\"]]\n";
    std::fs::write(&config, text).unwrap();
    let run = understudy(&["run", config.to_str().unwrap()]);
    let errors = String::from_utf8_lossy(&run.stderr);
    assert_eq!(run.status.code(), Some(1), "{errors}");
    assert!(errors.contains("there is no interface `no-such-if`") && errors.contains("help:"), "{errors}");
    std::fs::write(&config, text.replace("name", "nmae")).unwrap();
    let run = understudy(&["run", config.to_str().unwrap()]);
    let errors = String::from_utf8_lossy(&run.stderr);
    assert_eq!(run.status.code(), Some(2), "{errors}");
    assert!(errors.contains("did you mean `name`"), "{errors}");
}

/// Returns the packets by opcode that the captures' README documents, in rows such as `| file | command | 4
/// x20, 17 x20 |`.
fn documented() -> Vec<(String, Vec<(u64, u64)>)> {
    let readme = std::fs::read_to_string(captures::path("README.md")).unwrap();
    let mut rows = Vec::new();
    for line in readme.lines().filter(|line| line.starts_with('|')) {
        let cells: Vec<_> = line.trim_matches('|').split('|').map(str::trim).collect();
        let (Some(file), Some(counts)) = (cells.first(), cells.last()) else { continue };
        let file = file.trim_matches('`');
        let pairs: Option<Vec<_>> = counts
            .split(',')
            .map(|pair| {
                let (opcode, count) = pair.trim().split_once(" x")?;
                Some((opcode.parse().ok()?, count.parse().ok()?))
            })
            .collect();
        if let Some(mut pairs) = pairs.filter(|_| file.contains(".pcap")) {
            pairs.sort_unstable();
            rows.push((file.to_owned(), pairs));
        }
    }
    rows
}

fn decode(path: &Path) -> Vec<Value> {
    let run = understudy(&["decode", "--json", path.to_str().unwrap()]);
    assert!(run.status.success(), "{}: {}", path.display(), String::from_utf8_lossy(&run.stderr));
    let text = String::from_utf8(run.stdout).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for line in &lines {
        assert_is_on_the_page("`understudy decode --json`", line);
    }
    lines
}

fn opcodes(lines: &[Value]) -> Vec<(u64, u64)> {
    let mut counts = std::collections::BTreeMap::new();
    for opcode in lines.iter().filter_map(|line| line["opcode"].as_u64()) {
        *counts.entry(opcode).or_default() += 1;
    }
    counts.into_iter().collect()
}

#[test]
fn captures_decode_to_the_counts_of_tshark() {
    let documented = documented();
    assert!(documented.len() >= 29, "{documented:?}");
    for (file, counts) in documented {
        if file == "damaged.pcap" {
            continue;
        }
        let lines = decode(&captures::path(&file));
        assert_eq!(opcodes(&lines), counts, "{file}");
    }
}

#[test]
fn every_icrc_is_correct_in_undamaged_captures() {
    for path in captures::all() {
        let damaged = path.file_stem().unwrap() == "damaged";
        let lines = decode(&path);
        let wrong = lines.iter().filter(|line| line["icrc"] != "ok" || line.get("error").is_some()).count();
        assert!(damaged == (wrong > 0), "{}: {wrong}", path.display());
        for key in
            ["frame", "src", "dst", "vlan", "opcode", "opcode_name", "dest_qp", "psn", "ack_req", "icrc"]
        {
            assert!(lines.iter().all(|line| line.get(key).is_some()), "{}: {key}", path.display());
        }
    }
}

#[test]
fn headers_are_decoded_by_name() {
    let first = |file: &str, opcode: u64| {
        decode(&captures::path(file))
            .into_iter()
            .find(|line| line["opcode"] == opcode)
            .expect("the file has a packet with this opcode")
    };
    let write = first("rc_write_64.pcap", 10);
    assert_eq!((write["reth"]["len"].as_u64(), write["payload_len"].as_u64()), (Some(64), Some(64)));
    let nak = decode(&captures::path("rc_write_loss.pcap"));
    assert!(
        nak.iter()
            .any(|line| line["aeth"]["kind"] == "nak_psn_sequence_error" && line["aeth"]["syndrome"] == 0x60)
    );
    assert!(first("rc_compare_swap.pcap", 19)["atomic"]["compare"].is_u64());
    assert!(first("rc_compare_swap.pcap", 18)["atomic_ack"]["original"].is_u64());
    assert!(first("ud_send_512.pcap", 100)["deth"]["qkey"].is_u64());
    assert!(first("ud_send_imm_udaddy.pcap", 101)["imm"].is_u64());
    assert_eq!(first("vlan_rc_write_4096.pcap", 6)["vlan"].as_u64(), Some(10));
    let cm: Vec<_> = decode(&captures::path("cm_rping.pcap"));
    let kinds: Vec<_> = cm.iter().filter_map(|line| line["cm"]["kind"].as_str()).collect();
    assert_eq!(kinds, ["REQ", "REP", "RTU", "DREQ", "DREP"]);
    assert_eq!(cm[0]["cm"]["rdma_cm"]["src"], "10.0.0.2");
}

#[test]
fn link_and_ip_fields_are_decoded() {
    let lines = decode(&captures::path("qinq_rc_write_64.pcap"));
    let write = &lines[0];
    assert_eq!((write["src_mac"].as_str(), write["vlan"].as_u64()), (Some("52:54:00:00:00:02"), Some(200)));
    assert_eq!(
        (write["ttl"].as_u64(), write["dscp"].as_u64(), write["ecn"].as_u64()),
        (Some(64), Some(0), Some(0))
    );
    assert!(write["udp_src_port"].as_u64() >= Some(49152) && write["dst_mac"] == "52:54:00:00:00:01");
    // Ethernet, two tags, IPv4, UDP, BTH, RETH, payload, ICRC
    assert_eq!(write["frame_len"], 14 + 8 + 20 + 8 + 12 + 16 + 64 + 4);
    let time = write["time_ns"].as_u64().unwrap();
    assert!((time as f64 / 1e9 - write["time"].as_f64().unwrap()).abs() < 1e-6);
    let marked = decode(&captures::path("dscp_ce_ipv6_rc_write_64.pcap"));
    assert_eq!((marked[0]["dscp"].as_u64(), marked[0]["ecn"].as_u64()), (Some(26), Some(3)));
}

#[test]
fn standard_input_is_decoded_and_filtered() {
    let path = captures::path("cm_rping.pcap");
    let decode = |arguments: &[&str]| {
        let mut command = processes::command(env!("CARGO_BIN_EXE_understudy"));
        command.args(["decode", "--json", "-"]).args(arguments);
        command.stdin(std::fs::File::open(&path).unwrap()).output().unwrap()
    };
    for (arguments, count) in [
        (&[][..], 65),
        (&["--opcode", "READ Request"], 5),
        (&["--opcode", "0x0c", "--opcode", "acknowledge"], 30),
        (&["--host", "10.0.0.2"], 65),
        (&["--host", "10.0.0.3"], 0),
    ] {
        let output = decode(arguments);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(String::from_utf8(output.stdout).unwrap().lines().count(), count, "{arguments:?}");
    }
    let refused = decode(&["--opcode", "WRITTEN"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("no opcode has this in its name"));
}

#[test]
fn other_capture_formats_are_read_and_cut_files_reported() {
    let dir = tempfile::tempdir().unwrap();
    let original = captures::path("rc_send_64.pcap");
    let expected = decode(&original);
    let frames = frames(&original);
    // A big-endian pcap file with nanoseconds, and a pcapng file with an interface of microsecond resolution
    let mut big = Vec::new();
    for word in [0xa1b2_3c4d_u32, 0x0002_0004, 0, 0, 65_535, 1] {
        big.extend(word.to_be_bytes());
    }
    let mut ng = Vec::new();
    let mut block = |kind: u32, body: &[u8]| {
        let padding = body.len().wrapping_neg() % 4;
        let len = (body.len() + padding + 12) as u32;
        ng.extend(kind.to_le_bytes());
        ng.extend(len.to_le_bytes());
        ng.extend(body);
        ng.extend(&[0; 3][..padding]);
        ng.extend(len.to_le_bytes());
    };
    block(0x0a0d_0d0a, &[0x4d, 0x3c, 0x2b, 0x1a, 1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);
    block(1, &[1, 0, 0, 0, 0, 0, 4, 0]);
    for (n, frame) in frames.iter().enumerate() {
        let len = frame.len() as u32;
        for word in [7, 5, len, len] {
            big.extend(word.to_be_bytes());
        }
        big.extend(frame);
        let head = [0, 0, 1_000_000 + n as u32, len, len].map(u32::to_le_bytes).concat();
        block(6, &[head, frame.clone()].concat());
    }
    for (name, bytes, time) in [("big.pcap", &big, 7_000_000_005_u64), ("frames.pcapng", &ng, 1_000_000_000)]
    {
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        let lines = decode(&path);
        assert_eq!(opcodes(&lines), opcodes(&expected), "{name}");
        assert_eq!(lines[0]["time_ns"], time, "{name}");
        assert!((lines[0]["time"].as_f64().unwrap() - time as f64 / 1e9).abs() < 1e-9, "{name}");
    }
    // A file cut in the middle of a frame: the complete frames are shown, and the cut is reported.
    let path = dir.path().join("cut.pcap");
    std::fs::write(&path, &big[..big.len() - 10]).unwrap();
    let run = understudy(&["decode", "--json", path.to_str().unwrap()]);
    assert_eq!(run.status.code(), Some(1));
    assert_eq!(String::from_utf8(run.stdout).unwrap().lines().count(), frames.len() - 1);
    assert!(String::from_utf8_lossy(&run.stderr).contains("in the middle of a frame"));
    for (what, path) in
        [("No such file", dir.path().join("none")), ("neither a pcap nor", repository().join("LICENSE"))]
    {
        let run = understudy(&["decode", path.to_str().unwrap()]);
        assert_eq!(run.status.code(), Some(1));
        assert!(
            String::from_utf8_lossy(&run.stderr).contains(what),
            "{}",
            String::from_utf8_lossy(&run.stderr)
        );
    }
}
