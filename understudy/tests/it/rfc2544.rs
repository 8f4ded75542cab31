//! `understudy bench rfc2544` on DPDK's virtual devices, with short trials: whatever capacity it finds on
//! this machine, its report adds up, and errors are reported.

use crate::common::json_page::assert_is_on_the_page;
use serde_json::Value;
use std::path::Path;
use std::process::Output;
use tempfile::TempDir;
use understudy_tests::processes::{self, Process, Signal, command};

fn understudy(arguments: &[&str]) -> Output {
    processes::command(env!("CARGO_BIN_EXE_understudy"))
        .args(arguments)
        .env("NO_COLOR", "1")
        .output()
        .expect("the program runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn write(folder: &TempDir, name: &str, content: &str) -> String {
    let path = folder.path().join(name);
    std::fs::write(&path, content).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Options for short trials. `min_core = 0` makes each count although other tests use the CPUs, too.
const SHORT: &str = "src = \"10.0.0.1\"\ndst = \"10.0.0.2\"\nframe_sizes = [64, 512]\nresolution = 0.25\nloss_step = 0.1\n\
    trial_s = 0.01\nlatency_trial_s = 0.01\nburst_s = 0.005\nrepeats = 2\nsettle_ms = 1000\nmin_core = 0\npackets_per_s = 20_000\n";

/// Checks conditions that hold on any machine.
fn adds_up(report: &Value, frames: &[u64]) {
    assert_eq!(report["adds_up"], true, "{report}");
    let number = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("{value} in {report}"));
    let trials = report["trials"].as_array().unwrap();
    assert!(!trials.is_empty());
    for trial in trials {
        let count = |key: &str| trial[key].as_u64().unwrap();
        assert_eq!(count("sent"), count("received") + count("lost") + count("unseen"), "{trial}");
    }
    let rows = report["frames"].as_array().unwrap();
    assert_eq!(rows.iter().map(|row| row["frame"].as_u64().unwrap()).collect::<Vec<_>>(), frames);
    for row in rows {
        let throughput = &row["throughput"];
        let (least, median) = (number(&throughput["least"]), number(&throughput["median"]));
        let most = number(&throughput["most"]);
        assert!(least <= median && median <= most && most <= number(&row["most"]), "{row}");
        assert_eq!((&throughput["repeats"], &throughput["thrown"]), (&2.into(), &0.into()), "{row}");
        // At a rate that was found, there was a trial without loss.
        let passed = trials.iter().any(|trial| {
            let clean = trial["received"] == trial["sent"] && trial["offered"] == true;
            let rate = trial["load"]["packets_per_s"].as_f64() == Some(most);
            trial["test"] == "throughput" && trial["frame"] == row["frame"] && clean && rate
        });
        assert!(passed || most == 0.0, "{row}");
        let latency = row["latency"].as_array().unwrap();
        assert_eq!(latency.len(), if median > 0.0 { 3 } else { 0 }, "{row}");
        for at in latency {
            let time = |key: &str| at[key]["median"].as_f64();
            if let (Some(p50), Some(max)) = (time("p50_ns"), time("max_ns")) {
                assert!(p50 <= max && time("p50_ns") <= time("p99_ns"), "{at}");
            }
        }
        let parts: Vec<_> =
            row["loss"].as_array().unwrap().iter().map(|loss| number(&loss["part_of_most"])).collect();
        assert!(parts.len() >= 2 && parts[0] >= 1.0, "{row}");
        assert!(parts.windows(2).all(|two| (two[0] - two[1] - 0.1).abs() < 1e-9), "{row}");
        let burst = &row["back_to_back"];
        assert!(number(&burst["frames"]["median"]) <= number(&burst["longest"]), "{row}");
    }
}

fn report(output: &Output) -> Value {
    let report: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}\n{}", text(&output.stdout), text(&output.stderr)));
    let command = if report.get("ok").is_some() { "check" } else { "bench rfc2544" };
    assert_is_on_the_page(&format!("`understudy {command} --json`"), &report);
    report
}

#[test]
fn a_ring_without_a_device_has_a_complete_report() {
    let folder = tempfile::tempdir().unwrap();
    let config = write(
        &folder,
        "my.toml",
        &format!(
            "[[port]]\nname = \"loop\"\nring = {{}}\n[rfc2544]\nsend = \"loop\"\nreceive = \"loop\"\n{SHORT}"
        ),
    );
    let run = understudy(&["bench", "rfc2544", &config, "--json"]);
    let report = report(&run);
    assert!(run.status.success(), "{report}");
    // WRITEs with a timestamp: the shortest frame has 86 bytes, and the longest below 512 has 510.
    adds_up(&report, &[86, 510]);
    let shown = text(&understudy(&["bench", "rfc2544", &config]).stdout);
    for words in
        ["Throughput without loss (RFC 2544, 26.1)", "Latency (26.2)", "Loss (26.3)", "Back-to-back", "510 B"]
    {
        assert!(shown.contains(words), "{words} is missing in\n{shown}");
    }
}

/// A thread that sleeps waits for its CPU at almost each wake-up, if only for microseconds, which `min_core = 1` does
/// not accept. A trial may be lucky, but not all trials of all figures.
#[test]
fn a_test_without_its_core_says_so_and_fails() {
    let folder = tempfile::tempdir().unwrap();
    let port = "[runtime]\nidle = \"sleep\"\n[[port]]\nname = \"loop\"\nring = {}\n";
    let strict = SHORT.replace("min_core = 0", "min_core = 1");
    let config =
        write(&folder, "my.toml", &format!("{port}[rfc2544]\nsend = \"loop\"\nreceive = \"loop\"\n{strict}"));
    let run = understudy(&["bench", "rfc2544", &config]);
    let printed = text(&run.stdout);
    assert_eq!(run.status.code(), Some(1), "{printed}");
    assert!(printed.contains("NOT MEASURED: ") && printed.contains("preempted"), "{printed}");
    let run = understudy(&["bench", "rfc2544", &config, "--json"]);
    assert_eq!((run.status.code(), report(&run)["complete"].as_bool()), (Some(1), Some(true)));
    assert!(text(&run.stderr).contains("or accept less by `min_core`, which is 1"), "{}", text(&run.stderr));
}

/// Writes configurations with two memif ports, and with another process as the device under test.
fn across(folder: &TempDir, device: &str, command: &str, rest: &str) -> String {
    let port = |name: &str, id: u8, role: &str| {
        format!(
            "[[port]]\nname = \"{name}\"\nmemif = {{ socket = \"wire.sock\", id = {id}, role = \"{role}\" }}\n"
        )
    };
    let device =
        format!("[runtime]\nidle = \"sleep\"\n{}{}{device}", port("a", 0, "client"), port("b", 1, "client"));
    write(folder, "device.toml", &device);
    let config = format!(
        "[runtime]\nidle = \"sleep\"\n{}{}[rfc2544]\nsend = \"out\"\nreceive = \"in\"\nverb = \"send\"\ncommand = \"{command}\"\n{SHORT}{rest}",
        port("out", 0, "server"),
        port("in", 1, "server")
    );
    write(folder, "my.toml", &config)
}

#[test]
fn another_process_may_be_the_device() {
    let folder = tempfile::tempdir().unwrap();
    let config = across(
        &folder,
        "[forward]\npairs = [[\"a\", \"b\"]]\n",
        "understudy run device.toml",
        "start_ms = 60_000\n",
    );
    let run = understudy(&["bench", "rfc2544", &config, "--json"]);
    let report = report(&run);
    assert!(run.status.success(), "{report}");
    adds_up(&report, &[70, 510]);
}

/// A device that loses every second frame has no throughput, which is reported.
#[test]
fn a_device_that_loses_frames_has_no_throughput() {
    let folder = tempfile::tempdir().unwrap();
    let lossy = "[impair]\npairs = [[\"a\", \"b\"]]\n[[impair.rule]]\naction = \"drop\"\nshare = 0.5\n";
    let config = across(&folder, lossy, "understudy run device.toml", "start_ms = 60_000\n");
    // Each trial loses frames, and would wait for them.
    let content = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, content.replace("settle_ms = 1000", "settle_ms = 20")).unwrap();
    let run = understudy(&["bench", "rfc2544", &config, "--json"]);
    let report = report(&run);
    assert!(run.status.success(), "{report}");
    assert_eq!(report["adds_up"], true);
    for row in report["frames"].as_array().unwrap() {
        assert!(row["throughput"]["median"].as_f64().unwrap() < 5_000.0, "{row}");
        // Unless this machine was too busy to offer the rate
        let trials = report["trials"].as_array().unwrap();
        let late = trials.iter().any(|trial| trial["test"] == "throughput" && trial["offered"] == false);
        assert!(row["limit"] == "loss" || (late && row["limit"] == "generator"), "{row}");
        let lost = row["loss"][0]["loss"]["median"].as_f64().unwrap();
        assert!((0.2..0.8).contains(&lost), "{row}");
    }
}

#[test]
fn a_missing_device_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let forward = "[forward]\npairs = [[\"a\", \"b\"]]\n";
    let config = across(&folder, forward, "understudy run nowhere.toml", "");
    let run = understudy(&["bench", "rfc2544", &config]);
    let printed = text(&run.stderr);
    assert_eq!(run.status.code(), Some(1), "{printed}");
    assert!(printed.contains("the device under test") && printed.contains("nowhere.toml"), "{printed}");

    let config = write(
        &folder,
        "null.toml",
        &format!(
            "[[port]]\nname = \"hole\"\nring = {{}}\n[[port]]\nname = \"in\"\nring = {{}}\n[rfc2544]\nsend = \"hole\"\nreceive = \"in\"\nstart_ms = 100\n{SHORT}"
        ),
    );
    let run = understudy(&["bench", "rfc2544", &config]);
    let printed = text(&run.stderr);
    assert!(
        run.status.code() == Some(1) && printed.contains("no frame sent through hole arrived at in"),
        "{printed}"
    );
}

#[test]
fn configuration_errors_are_reported_with_a_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let ports = "[[port]]\nname = \"loop\"\nring = {}\n[rfc2544]\nsend = \"loop\"\nreceive = \"loop\"\n";
    let hosts = "src = \"10.0.0.1\"\ndst = \"10.0.0.2\"\n";
    let cases = [
        (format!("{hosts}frame_sizes = [2000]"), "frames of 1998 bytes do not fit", "mtu = 1980"),
        (format!("{hosts}link_gbps = 10\npackets_per_s = 5"), "both set the highest rate", "keep one"),
        (format!("{hosts}verb = \"read\""), "`verb` cannot be `read`", "write"),
        (format!("{hosts}repeat = 5"), "there is no key `repeat`", "did you mean `repeats`?"),
        ("src = \"10.0.0.1\"\ndst = \"fd00::2\"".into(), "different IP versions", "the same version"),
        ("src = \"10.0.0.1\"".into(), "has no `dst`", "dst = "),
    ];
    for (rest, message, help) in cases {
        let path = write(&folder, "wrong.toml", &format!("{ports}{rest}\n"));
        assert!(Path::new(&path).exists());
        let output = understudy(&["check", &path, "--json"]);
        let report = report(&output);
        let errors = report["errors"].as_array().unwrap();
        let found = errors.iter().any(|error| {
            error["message"].as_str().unwrap().contains(message)
                && error["help"].as_str().unwrap().contains(help)
        });
        assert!(found && output.status.code() == Some(2), "{message:?} and {help:?} in {report}");
        assert_eq!(understudy(&["bench", "rfc2544", &path]).status.code(), Some(2));
    }
}

/// A run that is interrupted prints the results up to then.
#[test]
fn an_interrupted_run_prints_its_results_so_far() {
    let folder = tempfile::tempdir().unwrap();
    let long = SHORT.replace("latency_trial_s = 0.01", "latency_trial_s = 60");
    let config = write(
        &folder,
        "my.toml",
        &format!(
            "[[port]]\nname = \"loop\"\nring = {{}}\n[rfc2544]\nsend = \"loop\"\nreceive = \"loop\"\n{long}start_ms = 60_000\n"
        ),
    );
    let mut run = command(env!("CARGO_BIN_EXE_understudy"));
    run.args(["bench", "rfc2544", &config, "--json"]);
    run.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let mut run = Process::start(run);
    // Each trial has its own worker thread. After three of them there are results to print, and the first
    // latency trial takes a minute.
    let mut trials = std::collections::BTreeSet::new();
    while trials.len() < 3 {
        assert!(run.try_wait().unwrap().is_none(), "ended after {} trials", trials.len());
        let tasks = std::fs::read_dir(format!("/proc/{}/task", run.id())).into_iter().flatten().flatten();
        trials.extend(tasks.map(|task| task.path()).filter(|task| {
            std::fs::read_to_string(task.join("comm")).is_ok_and(|name| name.trim() == "worker-0")
        }));
        std::thread::yield_now();
    }
    run.signal(Signal::INT);
    let run = run.finish();
    let printed = text(&run.stderr);
    assert_eq!(run.status.code(), Some(1), "{printed}");
    assert!(printed.contains("interrupted before all tests were done"), "{printed}");
    let report = report(&run);
    assert_eq!((&report["complete"], &report["adds_up"]), (&false.into(), &true.into()), "{report}");
    assert!(!report["trials"].as_array().unwrap().is_empty(), "{report}");
}
