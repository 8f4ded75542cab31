//! `understudy process`: three processes and a switch between them, each a program of its own, joined by
//! memif.

use crate::common::json_page::assert_is_on_the_page;
use serde_json::Value;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use understudy_tests::processes::{Process, command};

const PROCESSES: u32 = 3;
const SCATTERINGS: u32 = 200;

fn understudy(arguments: &[&str], config: &Path) -> Command {
    let mut program = command(env!("CARGO_BIN_EXE_understudy"));
    program.args(arguments).arg(config).stdout(Stdio::piped()).stderr(Stdio::piped());
    program
}

/// Returns the configuration of a switch with a number of workers, and a port and a link for each process.
fn switch(workers: usize, more: &str) -> String {
    let mut text = format!("[runtime]\nworkers = {:?}\nidle = \"sleep\"\n", vec!["any"; workers]);
    let mut links = String::new();
    for n in 1..=PROCESSES {
        _ = write!(
            text,
            "[[port]]\nname = \"p{n}\"\nmemif = {{ socket = \"rack.sock\", id = {n}, role = \"server\" }}\n"
        );
        _ = write!(
            links,
            "[[onepipe.links]]\nside = \"below\"\nport = \"p{n}\"\nmac = \"02:00:00:00:00:0{n}\"\n\
             address = \"10.0.0.{n}\"\nqpn = 0x11\n"
        );
    }
    // A process that shares its CPU may be silent for a while, but is not dead.
    text + "[onepipe]\nincarnation = \"chip\"\naddresses = [\"10.0.0.254/24\"]\nmac = \"02:00:00:00:00:fe\"\n\
            beacon_interval_ns = 1000000\ndead_after_intervals = 1000000\nahead_max_us = 1000000\n"
        + more
        + &links
}

fn process(own: u32, more: &str) -> String {
    // The processes start one after the other, so one without `clock_error_us = 0` would refuse messages of another.
    let mut text = format!(
        "[runtime]\nworkers = [\"any\"]\nidle = \"sleep\"\n\
         [[port]]\nname = \"eth\"\nmemif = {{ socket = \"rack.sock\", id = {own}, role = \"client\" }}\n\
         [process]\nid = {own}\naddress = \"10.0.0.{own}/24\"\nmac = \"02:00:00:00:00:0{own}\"\n\
         beacon_interval_ns = 1000000\nahead_max_us = 1000000\nclock_error_us = 0\ntimeout_us = 10000000\ninitial_window_kib = 16\n{more}\
         [[process.beacons]]\nmac = \"02:00:00:00:00:fe\"\naddress = \"10.0.0.254\"\nqpn = {}\n",
        // Queue pair of the link
        0x100 + own - 1
    );
    for n in (1..=PROCESSES).filter(|&n| n != own) {
        _ = write!(
            text,
            "[[process.peers]]\nid = {n}\nmac = \"02:00:00:00:00:0{n}\"\naddress = \"10.0.0.{n}\"\n"
        );
    }
    text
}

#[test]
fn all_processes_receive_all_messages_in_one_order() {
    exchange(1, "");
}

#[test]
fn all_processes_receive_all_messages_in_one_order_from_a_switch_with_two_workers() {
    exchange(2, "");
}

#[test]
fn all_processes_receive_all_messages_in_one_order_with_clocks_from_beacons() {
    for report in exchange(1, "clock_from = \"beacons\"\n") {
        let [sent, taken] =
            ["clock_beacons_sent", "clock_beacons_taken"].map(|name| report["counters"][name].as_u64());
        assert!(sent > Some(2) && taken > Some(2), "{report}");
    }
}

/// Runs a switch with a number of workers, and processes, with more lines in their tables, and checks what they have received. Returns their
/// reports.
fn exchange(workers: usize, more: &str) -> Vec<Value> {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path
    };
    let switch = Process::start(understudy(&["run"], &path("switch.toml", &switch(workers, more))));
    let (scatterings, expected) = (SCATTERINGS.to_string(), (PROCESSES * SCATTERINGS).to_string());
    let options =
        ["process", "--print", "--json", "--send", &scatterings, "--expect", &expected, "--for", "40"];
    let report_file = folder.path().join("report");
    let processes: Vec<_> = (1..=PROCESSES)
        .map(|n| {
            let mut command = understudy(&options, &path(&format!("{n}.toml"), &process(n, more)));
            // The others report to standard error.
            if n == 1 {
                command.arg("--report").arg(&report_file);
            }
            Process::start(command)
        })
        .collect();
    let outputs: Vec<Output> = processes.into_iter().map(Process::finish).collect();
    drop(switch);
    let (mut first, mut reports) = (None::<Vec<String>>, Vec::new());
    for (n, output) in (1..).zip(&outputs) {
        let stdout = String::from_utf8_lossy(&output.stdout);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{stderr}");
        // Standard output has messages only.
        let lines: Vec<String> = stdout.lines().map(str::to_owned).collect();
        let report = if n == 1 { fs::read_to_string(&report_file).unwrap() } else { stderr.to_string() };
        let report: Value = serde_json::from_str(report.lines().last().unwrap()).unwrap();
        assert_is_on_the_page(
            "Closing report of `understudy process --json`, and its lines of `--live`",
            &report,
        );
        assert_eq!(
            (report["process"].as_u64(), report["out_of_order"].as_u64()),
            (Some(n), Some(0)),
            "{report}"
        );
        assert_eq!(report["scatterings"].as_u64(), Some(SCATTERINGS.into()), "{report}\n{stderr}");
        for sender in 1..=PROCESSES {
            let count = &report["received_by_sender"][sender.to_string()];
            assert_eq!(count.as_u64(), Some(SCATTERINGS.into()), "{report}");
        }
        assert_eq!(report["failed"].as_object().map(serde_json::Map::len), Some(0), "{report}");
        // Lines with timestamp, sender, number and bytes, which are the same for all processes
        match &first {
            None => first = Some(lines),
            Some(first) => assert_eq!(first, &lines),
        }
        reports.push(report);
    }
    reports
}

#[test]
fn files_for_another_subcommand_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let [own, other] = [("p.toml", process(1, "")), ("s.toml", switch(1, ""))].map(|(name, text)| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path
    });
    let refused = |arguments: &[&str], path: &Path, why: &str| {
        let output = understudy(arguments, path).output().unwrap();
        let printed = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{printed}");
        assert!(printed.contains(why), "{printed}");
    };
    refused(&["process"], &other, "has no [process]");
    refused(&["run"], &own, "use `understudy process`");
    refused(&["process", "--to", "9"], &own, "there is no process 9");
    let output = understudy(&["check"], &own).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && printed.contains("1 at 10.0.0.1/24, 02:00:00:00:00:01, queue pair"),
        "{printed}"
    );
}
