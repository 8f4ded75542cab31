//! SIGHUP, as a terminal sends it when it closes: every command that runs for long ends as at Ctrl-C, with its
//! report, unless it ignores the signal.
#![allow(clippy::disallowed_methods, reason = "the tests wait for other processes, with a timeout")]

use crate::common::machine::{DEADLINE, Machine};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use understudy_tests::processes::{Process, Signal, command};

pub(crate) const RING: &str = "[runtime]\nidle = \"sleep\"\n[[port]]\nname = \"a\"\nring = {}\n";
pub(crate) const NIC: &str =
    "[nic]\naddresses = [\"10.0.0.1/24\"]\n[[nic.service]]\nkind = \"rping_server\"\n";
pub(crate) const PKTGEN: &str = "[pktgen]\nsend = \"a\"\nreceive = \"a\"\n[[pktgen.stream]]\nverb = \"write\"\n\
                      src = \"10.0.0.1\"\ndst = \"10.0.0.2\"\nrate = { packets_per_s = 1000 }\n";
const PROCESS: &str = "[process]\nid = 1\naddress = \"10.0.0.1/24\"\n[[process.beacons]]\nmac = \"02:00:00:00:00:fe\"\n\
                       address = \"10.0.0.254\"\nqpn = 0x100\n[[process.peers]]\nid = 2\nmac = \"02:00:00:00:00:02\"\n\
                       address = \"10.0.0.2\"\n";

fn write(folder: &TempDir, name: &str, text: &str) -> PathBuf {
    let path = folder.path().join(name);
    fs::write(&path, text).unwrap();
    path
}

/// Starts a command, sends SIGHUP when it catches the signal and has printed `ready`, and returns its output.
fn hung_up(arguments: &[&str], ready: &str) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let mut program = command(env!("CARGO_BIN_EXE_understudy"));
    program.args(arguments).stdout(Stdio::piped()).stderr(fs::File::create(&log).unwrap());
    let process = Process::start(program);
    let printed = || fs::read_to_string(&log).unwrap();
    wait(|| catches_sighup(process.id()) && printed().contains(ready));
    process.signal(Signal::HUP);
    let output = process.finish();
    Output { stderr: printed().into_bytes(), ..output }
}

fn catches_sighup(process: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let mask = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & 1 == 1)
}

/// Panics if `condition` does not become true.
fn wait(condition: impl Fn() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < DEADLINE);
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn functions_report_at_sighup() {
    let folder = tempfile::tempdir().unwrap();
    let functions = [
        ("run", "[forward]\npairs = [[\"a\", \"a\"]]\n", "ports"),
        ("run", "[impair]\npairs = [[\"a\", \"a\"]]\n", "ports"),
        ("host", NIC, "services"),
        ("pktgen", PKTGEN, "streams"),
        ("process", PROCESS, "process"),
    ];
    for (command, function, key) in functions {
        let config = write(&folder, "my.toml", &format!("{RING}{function}"));
        let machine = Machine::ready(command, &config);
        machine.signal(Signal::HUP);
        let (succeeded, report) = machine.end();
        let report: Value = serde_json::from_str(&report).expect(command);
        // The exit code of `pktgen` says whether it reached its rate so far.
        assert!(succeeded || command == "pktgen", "{command}: {report}");
        assert!(!report[key].is_null(), "{command}: {report}");
    }
}

#[test]
fn a_function_that_ignores_sighup_ends_at_ctrl_c() {
    let folder = tempfile::tempdir().unwrap();
    let config = write(&folder, "my.toml", &format!("{RING}[forward]\npairs = [[\"a\", \"a\"]]\n"));
    let log = folder.path().join("log");
    let mut shell = command("sh");
    shell.args(["-c", "trap '' HUP; exec \"$0\" run --json \"$1\"", env!("CARGO_BIN_EXE_understudy")]);
    shell.arg(&config).stdout(Stdio::piped()).stderr(fs::File::create(&log).unwrap());
    let process = Process::start(shell);
    wait(|| fs::read_to_string(&log).unwrap().contains("is ready"));
    assert!(ignores_sighup(&process));
    process.signal(Signal::HUP);
    process.signal(Signal::INT);
    let output = process.finish();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(output.status.success() && !report["ports"].is_null(), "{report}");
}

/// Returns whether the kernel drops SIGHUP, which is signal 1, for a process.
fn ignores_sighup(process: &Process) -> bool {
    let status = fs::read_to_string(format!("/proc/{}/status", process.id())).unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    u64::from_str_radix(ignored.trim(), 16).unwrap() & 1 == 1
}

#[test]
fn transfers_and_tests_end_with_their_messages_at_sighup() {
    let folder = tempfile::tempdir().unwrap();
    let host = write(&folder, "host.toml", &format!("{RING}[nic]\naddresses = [\"10.0.0.1/24\"]\n"));
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let object = text(&write(&folder, "object", &"x".repeat(100)));
    let (host, into) = (text(&host), text(folder.path()));
    let receive = ["rdmc", "receive", "--from", "10.0.0.2", "--into", &into, "--on", &host];
    let output = hung_up(&receive, "");
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.code() == Some(1) && printed.contains("interrupted before the whole file"),
        "{printed}"
    );
    let send = ["rdmc", "send", &object, "--to", "10.0.0.2", "--on", &host];
    let output = hung_up(&send, "");
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && !printed.is_empty(), "{printed}");
    // No frame comes back, so the test would wait for ten minutes.
    let trial = "[rfc2544]\nsend = \"a\"\nreceive = \"b\"\nsrc = \"10.0.0.1\"\ndst = \"10.0.0.2\"\nstart_ms = 600_000\n";
    let ports = format!("{RING}[[port]]\nname = \"b\"\nring = {{}}\n");
    let rfc2544 = text(&write(&folder, "rfc2544.toml", &format!("{ports}{trial}")));
    let output = hung_up(&["bench", "rfc2544", &rfc2544], "");
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && printed.contains("interrupted before all tests"), "{printed}");
}

#[test]
fn observers_end_at_sighup() {
    let folder = tempfile::tempdir().unwrap();
    let observe = "[observe]\nsocket = \"observe.sock\"\n";
    let config = write(&folder, "my.toml", &format!("{RING}{PKTGEN}{observe}"));
    let instance = Machine::ready("pktgen", &config);
    let path = config.to_str().unwrap();
    let output = hung_up(&["trace", path, "--qp", "0xfff"], "Watching.");
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("0 packets"), "{output:?}");
    let output = hung_up(&["diagnose", "--at", path, "--qp", "0x11", "--for", "1000"], "");
    assert!(String::from_utf8_lossy(&output.stdout).contains("packets"), "{output:?}");
    drop(instance);
}

/// Starts `understudy top` in a terminal of `script`. Returns the terminal's process, and the ID of `top`.
fn top(folder: &TempDir, config: &Path) -> (Process, i32) {
    let id = folder.path().join("id");
    let program = env!("CARGO_BIN_EXE_understudy");
    let shown = format!("echo $$ > {}; exec {program} top {}", id.display(), config.display());
    let screen = folder.path().join("screen");
    let mut script = command("script");
    script.args(["--quiet", "--flush", "--return", "--command", &shown]).arg(&screen);
    script.stdin(Stdio::piped()).stdout(Stdio::null()).env("SHELL", "/bin/sh").env("TERM", "xterm");
    let terminal = Process::start(script);
    wait(|| fs::read_to_string(&screen).unwrap_or_default().contains("understudy"));
    let id = fs::read_to_string(id).unwrap().trim().parse().unwrap();
    (terminal, id)
}

#[test]
fn top_ends_at_sighup_and_when_its_terminal_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    let text = format!("{RING}[forward]\npairs = [[\"a\", \"a\"]]\n[observe]\nsocket = \"observe.sock\"\n");
    let config = write(&folder, "my.toml", &text);
    let _instance = Machine::ready("run", &config);
    let (terminal, id) = top(&folder, &config);
    let pid = rustix::process::Pid::from_raw(id).unwrap();
    rustix::process::kill_process(pid, Signal::HUP).unwrap();
    let output = terminal.finish();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let (mut terminal, id) = top(&folder, &config);
    terminal.kill().unwrap();
    terminal.wait().unwrap();
    wait(|| !Path::new(&format!("/proc/{id}")).exists());
}
