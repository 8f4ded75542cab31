//! `understudy diagnose`: exit codes, standard input, and captures that cannot be read to their end.

use crate::commands::{configs, text, understudy};
use crate::common::json_page::assert_is_on_the_page;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Stdio;
use understudy_tests::{captures, processes};

fn path(name: &str) -> String {
    captures::path(name).to_str().unwrap().to_owned()
}

#[test]
fn the_exit_code_tells_whether_there_are_errors() {
    for (file, code, words) in [
        ("rc_send_64.pcap", 0, "no findings"),
        ("rc_rnr_nak.pcap", 0, "8 RNR NAKs (receiver not ready) from 10.0.0.1"),
        ("cm_reject.pcap", 1, "rejected: invalid service id (reason 8)"),
        ("rc_write_loss.pcap", 1, "2 request packets lost behind the capture point, on the way to 10.0.0.1"),
    ] {
        let output = understudy(&["diagnose", &path(file)]);
        let shown = text(&output.stdout);
        assert!(output.status.code() == Some(code) && shown.contains(words), "{file}: {shown}");
    }
}

#[test]
fn several_files_have_a_report_each() {
    let output = understudy(&["diagnose", "--json", &path("rc_send_64.pcap"), &path("cm_reject.pcap")]);
    assert_eq!(output.status.code(), Some(1));
    let shown = text(&output.stdout);
    let lines: Vec<Value> = shown.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2);
    for line in &lines {
        assert_is_on_the_page("`understudy diagnose --json`", line);
    }
    assert_eq!(lines[0]["findings"].as_array().unwrap().len(), 0);
    assert_eq!((lines[0]["packets"].as_u64(), lines[0]["connections"].as_u64()), (Some(40), Some(1)));
    let rejected = &lines[1]["findings"][0];
    assert_eq!((&rejected["kind"], &rejected["severity"]), (&"cm_rejected".into(), &"error".into()));
    assert_eq!(rejected["packets"][1]["number"], 2);
}

#[test]
fn a_cut_capture_is_diagnosed_as_far_as_it_goes() {
    let dir = tempfile::tempdir().unwrap();
    let cut = dir.path().join("cut.pcap");
    let whole = fs::read(captures::path("rc_write_loss.pcap")).unwrap();
    fs::write(&cut, &whole[..whole.len() - 10]).unwrap();
    let output = understudy(&["diagnose", cut.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stdout).contains("lost behind the capture point"));
    assert!(text(&output.stderr).contains("in the middle of a frame"));
    for file in ["none.pcap", "."] {
        let output = understudy(&["diagnose", dir.path().join(file).to_str().unwrap()]);
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(2), String::new()), "{file}");
    }
}

/// Writes a header of a capture of Ethernet frames.
fn write_header(to: &mut impl Write) {
    to.write_all(&words([0xa1b2_c3d4, 0x0004_0002, 0, 0])).unwrap();
    to.write_all(&words([65_535, 1, 0, 0])[..8]).unwrap();
}

fn words(words: [u32; 4]) -> Vec<u8> {
    words.map(u32::to_le_bytes).concat()
}

/// Writes frames to or from the queue pair with the number of the round.
fn write_round(to: &mut impl Write, frames: &[Vec<u8>], round: u32) {
    let mut records = Vec::new();
    for (n, frame) in (0..).zip(frames) {
        // Without the ICRC, as another snapshot length leaves it
        let len = frame.len() as u32 - 4;
        let at = round * 100 + n;
        records.extend(words([at / 1_000_000, at % 1_000_000, len, len + 4]));
        records.extend(&frame[..len as usize]);
        let qpn = records.len() - len as usize + 14 + 20 + 8 + 5;
        records[qpn..qpn + 2].copy_from_slice(&(round as u16).to_be_bytes());
    }
    to.write_all(&records).unwrap();
}

/// The capture is repeated with other queue pair numbers, some 20 MB on a pipe.
#[test]
fn a_long_stream_on_standard_input_is_diagnosed() {
    let mut command = processes::command(env!("CARGO_BIN_EXE_understudy"));
    command.args(["diagnose", "--json", "-"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut process = command.spawn().unwrap();
    let mut input = process.stdin.take().unwrap();
    let frames = captures::frames(&captures::path("rc_send_64.pcap"));
    write_header(&mut input);
    for round in 0..5000 {
        write_round(&mut input, &frames, round);
    }
    drop(input);
    let output = process.wait_with_output().unwrap();
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{found}");
    assert_eq!((found["packets"].as_u64(), found["connections"].as_u64()), (Some(200_000), Some(5000)));
    assert_eq!(found["findings"].as_array().unwrap().len(), 0, "{found}");
}

/// Some 100 MB, of connections that end: after the first third, a process needs no more memory.
#[test]
fn long_captures_take_constant_memory() {
    let frames = captures::frames(&captures::path("rc_write_4096.pcap"));
    let round_len: usize = frames.iter().map(|frame| frame.len() + 12).sum();
    let rounds = 50_000_000 / round_len as u32;
    for arguments in [&["diagnose", "--json", "-"][..], &["decode", "--json", "-"]] {
        let mut command = processes::command(env!("CARGO_BIN_EXE_understudy"));
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::null());
        let mut process = command.spawn().unwrap();
        let mut input = process.stdin.take().unwrap();
        let peak_kb = |id: u32| -> u64 {
            let status = fs::read_to_string(format!("/proc/{id}/status")).unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
            line.trim().trim_end_matches(" kB").parse().unwrap()
        };
        write_header(&mut input);
        let mut early = 0;
        for round in 0..rounds {
            if round == rounds / 3 {
                early = peak_kb(process.id());
            }
            write_round(&mut input, &frames, round % (rounds / 6));
        }
        let late = peak_kb(process.id());
        drop(input);
        assert!(process.wait().unwrap().code().is_some());
        assert!(early > 1000 && late < early + 2048, "{arguments:?}: {early} kB, then {late} kB");
    }
}

#[test]
fn an_instance_that_does_not_run_is_named() {
    let output = understudy(&["diagnose", "--at", "/nowhere/observe.sock", "--for", "1"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("no instance listens at /nowhere/observe.sock"));
}

/// Runs the scenario of every verb with this loss, and returns the kinds of findings in its capture, which has
/// packets before the link loses them.
fn simulated(folder: &Path, loss: &str, seed: u32) -> BTreeSet<String> {
    let verbs = fs::read_to_string(configs().join("sim/verbs.toml")).unwrap();
    let line = |line: &str| match line.split(" = ").next().unwrap() {
        "loss" => format!("loss = {loss}\n"),
        key @ ("duplicate" | "reorder" | "corrupt" | "jitter_us" | "unreliable") => format!("{key} = 0\n"),
        "ecn" => String::new(),
        "timeout" => "timeout = 14\n".into(),
        _ => format!("{line}\n"),
    };
    let (scenario, capture) = (folder.join("verbs.toml"), folder.join("link.pcap"));
    fs::write(&scenario, verbs.lines().map(line).collect::<String>()).unwrap();
    let (scenario, capture) = (scenario.to_str().unwrap(), capture.to_str().unwrap());
    let run = understudy(&["sim", scenario, "--seed", &seed.to_string(), "--pcap", capture]);
    assert!(run.status.success(), "{}", text(&run.stderr));
    let found: Value = serde_json::from_slice(&understudy(&["diagnose", "--json", capture]).stdout).unwrap();
    assert_is_on_the_page("`understudy diagnose --json`", &found);
    let findings = found["findings"].as_array().unwrap().iter();
    findings.map(|finding| finding["kind"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn losses_in_the_simulator_are_found_on_the_right_side() {
    let folder = tempfile::tempdir().unwrap();
    let not_ready = ["rnr_nak", "retransmission_storm"];
    let behind = ["request_lost_behind", "response_lost_behind", "request_or_response_lost"];
    let mut all = BTreeSet::new();
    for seed in 1..=8 {
        let clean = simulated(folder.path(), "0", seed);
        assert!(clean.iter().all(|kind| not_ready.contains(&kind.as_str())), "seed {seed}: {clean:?}");
        let lossy = simulated(folder.path(), "0.03", seed);
        let known = |kind: &str| {
            not_ready.contains(&kind) || behind.contains(&kind) || kind == "early_retransmission"
        };
        assert!(lossy.iter().all(|kind| known(kind)), "seed {seed}: {lossy:?}");
        all.extend(lossy);
    }
    assert!(behind.iter().all(|kind| all.contains(*kind)), "{all:?}");
}
