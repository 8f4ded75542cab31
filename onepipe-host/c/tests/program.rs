//! C programs that use the header and the library on a ring device, which returns what they send.

mod controller;

use controller::{Played, TOPOLOGY};
use onepipe::Timestamp;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use understudy_tests::processes::{self, Process};

/// Returns the directory of this package.
fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Builds a program, and returns its path.
fn build(source: &str, folder: &Path) -> PathBuf {
    // Test executables lie beside the library.
    let own = std::env::current_exe().unwrap();
    let libraries = own.parent().unwrap();
    let library = libraries.join("libonepipe_c.so");
    assert!(library.exists(), "the library is built with the tests");
    // The names under which it is installed
    for name in ["libonepipe.so", concat!("libonepipe.so.", env!("CARGO_PKG_VERSION_MAJOR"))] {
        std::os::unix::fs::symlink(&library, folder.join(name)).unwrap();
    }
    let program = folder.join("program");
    let out = processes::command("gcc")
        .args(["-std=c11", "-pthread", "-Wall", "-Wextra", "-Werror", "-pedantic", "-O1"])
        .arg(here().join(source))
        .arg("-I")
        .arg(here().join("include"))
        .arg("-L")
        .arg(folder)
        .args(["-lonepipe", "-o"])
        .arg(&program)
        .arg(format!("-Wl,-rpath,{}", folder.display()))
        .output()
        .expect("gcc is installed");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    program
}

/// Process 1, whose peer 2 is itself as well, and whose peer 3 does not exist
const CONFIG: &str = r#"
[runtime]
workers = ["any"]
idle = "sleep"

[[port]]
name = "ring"
ring = {}

[process]
id = 1
address = "10.0.0.1/24"
mac = "02:00:00:00:00:01"
beacon_interval_ns = 50000
clock_error_us = 0
timeout_us = 200000

[[process.beacons]]
switch = "itself"
mac = "02:00:00:00:00:01"
address = "10.0.0.1"
qpn = 0x11

[[process.peers]]
id = 2
mac = "02:00:00:00:00:01"
address = "10.0.0.1"

[[process.peers]]
id = 3
mac = "02:00:00:00:00:03"
address = "10.0.0.3"
"#;

fn run(program: &Path, config: &Path, arguments: &[&str]) -> Output {
    processes::command(program).arg(config).args(arguments).output().unwrap()
}

#[test]
fn example_in_c_sends_and_receives() {
    let folder = tempfile::tempdir().unwrap();
    let program = build("examples/scatter.c", folder.path());
    let config = folder.path().join("own.process.toml");
    std::fs::write(&config, CONFIG).unwrap();

    let out = run(&program, &config, &["300", "600", "1", "2"]);
    let (stdout, stderr) = (String::from_utf8(out.stdout).unwrap(), String::from_utf8(out.stderr).unwrap());
    assert_eq!((out.status.code(), stderr.trim()), (Some(0), "received 600, failed 0"));
    let lines: Vec<Vec<_>> = stdout.lines().map(|line| line.splitn(3, ' ').collect()).collect();
    for (n, pair) in lines.chunks(2).enumerate() {
        let text = format!("message {n}");
        assert_eq!(pair[0][0], pair[1][0], "the same timestamp");
        assert_eq!([pair[0][1], pair[1][1]], ["1", "2"], "in the order of senders");
        assert_eq!([pair[0][2], pair[1][2]], [&text, &text]);
    }

    let out = run(&program, &config, &["1", "2", "2", "3"]);
    let stdout = String::from_utf8(out.stdout).unwrap();
    assert_eq!(out.status.code(), Some(0), "{stdout}");
    assert!(stdout.contains("failed: message 1 of scattering 0 to 3: not acknowledged in time"), "{stdout}");

    let out = run(&program, &config, &["1", "1", "9"]);
    let stderr = String::from_utf8(out.stderr).unwrap();
    assert_eq!(
        (out.status.code(), stderr.trim()),
        (Some(1), "scattering 0: the process is not among the peers")
    );

    std::fs::write(&config, CONFIG.replace("id = 3", "id = 2")).unwrap();
    let out = run(&program, &config, &["1", "1"]);
    let stderr = String::from_utf8(out.stderr).unwrap();
    assert_eq!(out.status.code(), Some(2));
    assert!(stderr.contains("process number 2 is used twice"), "{stderr}");
}

#[test]
fn waiting_receiver_gets_left_and_exit_calls_back() {
    let folder = tempfile::tempdir().unwrap();
    let program = build("tests/leave.c", folder.path());
    let config = folder.path().join("own.process.toml");
    std::fs::write(&config, CONFIG).unwrap();
    let output_of = |what: &str| {
        let out = processes::command(&program).arg(what).arg(&config).output().unwrap();
        let stderr = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(0), "{what}: {stderr}");
        String::from_utf8(out.stdout).unwrap()
    };
    // ONEPIPE_LEFT, and for an unknown process ONEPIPE_UNKNOWN
    let after = "receive: -10, send: -10, alive: -10, unknown: -4";
    assert_eq!(output_of("leave"), format!("waiting receiver: -10\n{after}\ntime: 1\n"));
    // ONEPIPE_BUSY
    let meanwhile = "callback: -12, receive: -12, send: -10";
    assert_eq!(output_of("exit"), format!("to 3: not acknowledged in time\n{meanwhile}\ncallbacks: 1\n"));
    // Its beacons are for another switch, so it never gets a barrier.
    std::fs::write(&config, CONFIG.replace("qpn = 0x11", "qpn = 0x12")).unwrap();
    assert_eq!(output_of("stall"), "stalled: 1, barrier: 0, callback: -12\nopen: 0 0\n");
}

/// Returns `[controller]` of a process's file.
fn table_of(played: &Played) -> String {
    // The machine may be busy with other work for a while, so silence is not reported.
    format!(
        "[controller]\naddresses = [\"{}\"]\ntopology = \"{TOPOLOGY:016x}\"\nfail_after_intervals = 1000000\n",
        played.address()
    )
}

#[test]
fn reliable_example_is_admitted_sends_receives_and_is_called_back() {
    let folder = tempfile::tempdir().unwrap();
    let program = build("examples/reliable.c", folder.path());
    let config = folder.path().join("own.process.toml");
    let played = Played::new();
    let controller = table_of(&played);
    let start = |text: String, arguments: &[&str]| {
        std::fs::write(&config, text).unwrap();
        let mut command = processes::command(&program);
        command.arg(&config).args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
        Process::start(command)
    };
    // Process 3 is no member.
    let running = start(format!("{CONFIG}{controller}"), &["100", "200", "1", "1", "1"]);
    let node = played.admit();
    played.fail(node, 3, Timestamp::new(1_000));
    let out = running.finish();
    let (stdout, stderr) = (String::from_utf8(out.stdout).unwrap(), String::from_utf8(out.stderr).unwrap());
    assert_eq!(out.status.code(), Some(0), "{stderr}\n{stdout}");
    assert_eq!(stderr.trim(), "received 200, failed 0, processes failed 1");
    let count = |wanted: &str| stdout.lines().filter(|line| *line == wanted).count();
    assert_eq!((count("admitted"), count("process_failed 3 1000")), (1, 1), "{stdout}");
    let lines: Vec<Vec<_>> = stdout.lines().map(|line| line.splitn(3, ' ').collect()).collect();
    let messages: Vec<_> =
        lines.iter().filter(|line| line.len() == 3 && line[0] != "process_failed").collect();
    for (n, pair) in messages.chunks(2).enumerate() {
        let text = format!("message {n}");
        assert_eq!((pair[0][0], pair[0][1], pair[1][1]), (pair[1][0], "1", "1"));
        assert_eq!([pair[0][2], pair[1][2]], [&text, &text]);
    }

    let running = start(format!("{CONFIG}{controller}"), &["1", "2", "0", "1", "3"]);
    played.admit();
    let out = running.finish();
    let stdout = String::from_utf8(out.stdout).unwrap();
    assert_eq!(out.status.code(), Some(0), "{stdout}");
    let failed = "failed: message 1 of scattering 0 to 3: a receiver, or this process, was no member";
    assert!(stdout.contains(failed), "{stdout}");

    let refused = |text: String, why: &str| {
        let out = start(text, &["1", "1", "0", "1"]).finish();
        let stderr = String::from_utf8(out.stderr).unwrap();
        assert_eq!((out.status.code(), stderr.trim()), (Some(1), why));
    };
    refused(CONFIG.to_owned(), "the configuration has no [controller]");
}

#[test]
fn events_of_both_services_are_polled() {
    let folder = tempfile::tempdir().unwrap();
    let program = build("tests/events.c", folder.path());
    let config = folder.path().join("own.process.toml");
    let played = Played::new();
    let process = CONFIG.replace("id = 1\n", "id = 1\ntell_settled = true\n");
    std::fs::write(&config, format!("{process}{}", table_of(&played))).unwrap();
    let mut command = processes::command(&program);
    command.arg(&config).stdout(Stdio::piped());
    let mut running = Process::start(command);
    let mut lines = BufReader::new(running.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut seen = Vec::new();
    let mut read_until = |wanted: &str| {
        let found = lines.find(|line| {
            seen.push(line.clone());
            line == wanted
        });
        assert!(found.is_some(), "{wanted} after {seen:?}");
    };
    let (node, address) = played.admit_without_barriers();
    read_until("stalled");
    played.count_barriers(node, address);
    read_until("ready");
    played.exclude(node, Timestamp::new(1_000));
    read_until("null: -13 -13 -13");
    assert_eq!(running.finish().status.code(), Some(0));
    let stalls = seen.iter().filter(|line| ["stalled", "recovered"].contains(&line.as_str()));
    assert_eq!(stalls.take(2).collect::<Vec<_>>(), ["stalled", "recovered"]);
    // The machine may be busy with other work for a while, so there may be further stalls.
    seen.retain(|line| !["stalled", "recovered"].contains(&line.as_str()));
    let not_admitted = "a receiver, or this process, was no member";
    assert_eq!(
        seen,
        [
            "reliable: admitted, incarnation 5",
            "best effort: settled 0, failed 0, stamped",
            "reliable: settled 1, failed 0, stamped",
            &format!("reliable: message 0 of 2 to 1: {not_admitted}"),
            &format!("reliable: message 1 of 2 to 3: {not_admitted}"),
            "reliable: settled 2, failed 2, unstamped",
            "barriers: 1 1",
            "ready",
            "reliable: fenced, stamped",
            "error: no error",
            "report: the con, longer: 1",
            "null: -13 -13 -13",
        ]
    );
}
