//! Observation of running instances: snapshots agree with the closing report, metrics parse and only grow,
//! and packets are shown as they arrive and leave.
#![allow(clippy::disallowed_methods, reason = "the tests wait for other processes, with a timeout")]

use crate::common::json_page::assert_is_on_the_page;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Instant;
use tempfile::TempDir;
use understudy_tests::captures;
use understudy_tests::processes;

mod metrics;
mod trace;

use crate::common::machine::{DEADLINE, Machine};

/// Fifty CASes of 10.0.0.2, and their responses
const CAPTURE: &str = "rc_compare_swap.pcap";

fn understudy(arguments: &[&str]) -> Output {
    processes::command(env!("CARGO_BIN_EXE_understudy")).args(arguments).output().unwrap()
}

struct TestFolder(TempDir);

impl TestFolder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, text).unwrap();
        path
    }

    /// Writes a configuration that plays the capture between two ports, once or forever.
    fn config(&self, infinite: bool, rest: &str) -> PathBuf {
        let text = format!(
            "[[port]]\nname = \"left\"\nmtu = 9000\npcap = {{ rx = \"{}\", infinite = {infinite} }}\n\
             [[port]]\nname = \"right\"\nmtu = 9000\npcap = {{ tx = \"/dev/null\" }}\n\
             [observe]\nsocket = \"top.sock\"\n{rest}",
            captures::path(CAPTURE).display()
        );
        self.write("my.toml", &text)
    }
}

const PAIR: &str = "[forward]\npairs = [[\"left\", \"right\"]]\n";

fn top(config: &Path) -> Value {
    let output = understudy(&["top", "--json", config.to_str().unwrap()]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let state = serde_json::from_slice(&output.stdout).unwrap();
    assert_is_on_the_page("`understudy top --json`", &state);
    state
}

/// Repeats [`top`] until the condition is true.
fn top_until(config: &Path, condition: impl Fn(&Value) -> bool) -> Value {
    let began = Instant::now();
    loop {
        let seen = top(config);
        if condition(&seen) {
            return seen;
        }
        assert!(began.elapsed() < DEADLINE, "{seen}");
    }
}

fn table<'a>(snapshot: &'a Value, name: &str) -> &'a Value {
    let tables = snapshot["tables"].as_array().unwrap();
    tables
        .iter()
        .find(|table| table["name"] == name)
        .unwrap_or_else(|| panic!("no table {name} in {snapshot}"))
}

#[test]
fn a_snapshot_agrees_with_the_closing_report() {
    let test_folder = TestFolder::new();
    let config = test_folder.config(false, PAIR);
    let frames = captures::frames(&captures::path(CAPTURE)).len() as u64;
    let instance = Machine::ready("run", &config);
    let socket = fs::symlink_metadata(test_folder.path("top.sock")).unwrap();
    assert!(socket.file_type().is_socket() && socket.permissions().mode() & 0o777 == 0o600);

    let seen = top_until(&config, |seen| seen["ports"][1]["tx_frames"] == frames);
    // Selecting the instance by its socket, with output for people
    let socket = test_folder.path("top.sock");
    let once = understudy(&["top", "--once", socket.to_str().unwrap()]);
    let text = String::from_utf8(once.stdout).unwrap();
    for words in ["[forward]", "Ports\n", " left ", "RC CmpSwap", "10.0.0.1", "cycles/frame", "roce_frames"] {
        assert!(text.contains(words), "{words:?} is missing in\n{text}");
    }

    let report = instance.interrupt();
    assert!(!socket.exists(), "the instance has to remove its socket");
    for port in 0..2 {
        let (seen, reported) = (seen["ports"][port].as_object().unwrap(), &report["ports"][port]);
        assert!(
            seen.len() == 16
                && seen["link"] == "up"
                && seen.iter().all(|(key, value)| reported[key] == *value),
            "snapshot {seen:?}, report {reported}"
        );
    }
    let sum = |rows: &Value, count: usize| {
        rows["rows"].as_array().unwrap().iter().map(|row| row["counts"][count].as_u64().unwrap()).sum::<u64>()
    };
    for (name, reported) in [("queue_pair", "qps"), ("opcode", "opcodes")] {
        let reported = report[reported].as_array().unwrap();
        let seen = table(&seen, name);
        assert_eq!(seen["rows"].as_array().unwrap().len(), reported.len(), "{seen}");
        for (at, key) in ["frames", "bytes"].into_iter().enumerate() {
            let reported: u64 = reported.iter().map(|row| row[key].as_u64().unwrap()).sum();
            assert!(reported > 0 && sum(seen, at) == reported, "{name} {key}");
        }
    }
    assert_eq!(seen["workers"][0]["rx_frames"], report["workers"][0]["rx_frames"]);
    assert!(seen["workers"][0]["busy_cycles"].as_u64() > Some(0));
    assert_eq!(seen["instance"]["function"], "forward");

    // The instance has ended.
    let gone = understudy(&["top", "--once", config.to_str().unwrap()]);
    let error = String::from_utf8(gone.stderr).unwrap();
    assert!(gone.status.code() == Some(1) && error.contains("no instance listens at"), "{error}");
}

#[test]
fn an_instance_does_not_take_over_a_socket_in_use() {
    let test_folder = TestFolder::new();
    let config = test_folder.config(false, PAIR);
    let first = Machine::ready("run", &config);
    let second = understudy(&["run", config.to_str().unwrap()]);
    let error = String::from_utf8(second.stderr).unwrap();
    assert!(!second.status.success() && error.contains("another"), "{error}");
    assert_eq!(top(&config)["instance"]["pid"], first.id());
    // A killed instance leaves a socket without a listener, which the next one replaces.
    drop(first);
    assert!(test_folder.path("top.sock").exists());
    let third = Machine::ready("run", &config);
    assert_eq!(top(&config)["instance"]["pid"], third.id());
    drop(third);
    fs::remove_file(test_folder.path("top.sock")).unwrap();
    test_folder.write("top.sock", "a file");
    let fourth = understudy(&["run", config.to_str().unwrap()]);
    let error = String::from_utf8(fourth.stderr).unwrap();
    assert!(!fourth.status.success() && error.contains("not a socket"), "{error}");
    assert_eq!(fs::read_to_string(test_folder.path("top.sock")).unwrap(), "a file");
}

/// A path that passes the check can also be bound: a socket address holds 107 bytes.
#[test]
fn a_socket_path_may_have_107_bytes() {
    let test_folder = TestFolder::new();
    let folder = test_folder.0.path().as_os_str().len();
    let longest = "s".repeat(107 - folder - 1);
    let config = |socket: &str| {
        test_folder.write(
            "long.toml",
            &format!("[[port]]\nname = \"a\"\nring = {{}}\n[forward]\npairs = [[\"a\", \"a\"]]\n[observe]\nsocket = \"{socket}\"\n"),
        )
    };
    let fits = config(&longest);
    let instance = Machine::ready("run", &fits);
    assert_eq!(top(&fits)["instance"]["pid"], instance.id());
    let mode = fs::symlink_metadata(test_folder.path(&longest)).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    instance.interrupt();
    assert!(!test_folder.path(&longest).exists());

    let too_long = config(&(longest + "s"));
    for command in ["check", "run"] {
        let refused = understudy(&[command, too_long.to_str().unwrap()]);
        let error = String::from_utf8(refused.stderr).unwrap();
        assert!(refused.status.code() == Some(2), "{command}: {error}");
        assert!(
            error.contains("a socket has a path of 107 bytes at most, and this has 108"),
            "{command}: {error}"
        );
    }
}

#[test]
fn a_malformed_request_is_refused() {
    let test_folder = TestFolder::new();
    let config = test_folder.config(false, PAIR);
    let _instance = Machine::ready("run", &config);
    let too_long = "x".repeat(2 << 20);
    for request in ["hello\n", "{\"ask\":\"money\"}\n", &too_long, &"[".repeat(5000)] {
        let mut stream = std::os::unix::net::UnixStream::connect(test_folder.path("top.sock")).unwrap();
        // The instance may refuse before it has read everything.
        _ = stream.write_all(request.as_bytes());
        // The end of the stream ends the last line.
        _ = stream.shutdown(std::net::Shutdown::Write);
        let mut response = String::new();
        _ = BufReader::new(&stream).read_line(&mut response);
        let error = if request == too_long { "the request is too long" } else { "invalid request" };
        let may_close_early = request == too_long && response.is_empty();
        assert!(may_close_early || response.starts_with(&format!("{{\"error\":\"{error}")), "{response}");
    }
    assert_eq!(top(&config)["instance"]["function"], "forward");
    let none = test_folder
        .write("none.toml", "[[port]]\nname = \"a\"\nring = {}\n[forward]\npairs = [[\"a\", \"a\"]]\n");
    let refused = understudy(&["top", "--once", none.to_str().unwrap()]);
    let error = String::from_utf8(refused.stderr).unwrap();
    assert!(refused.status.code() == Some(2) && error.contains("has no `socket` to connect to"), "{error}");
}
