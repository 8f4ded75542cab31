//! Looking at running instances: what is told adds up with the closing report, metrics parse and only grow, packets are shown as
//! they come and leave.
#![allow(clippy::disallowed_methods, reason = "what other processes do is waited for, but not for ever")]

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

/// fifty CAS of 10.0.0.2, and their answers
const CAPTURE: &str = "rc_compare_swap.pcap";

fn understudy(arguments: &[&str]) -> Output {
    processes::command(env!("CARGO_BIN_EXE_understudy")).args(arguments).output().unwrap()
}

struct Place(TempDir);

impl Place {
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

    /// Plays the capture, once or for ever, between two ports.
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

const WIRE: &str = "[forward]\npairs = [[\"left\", \"right\"]]\n";

fn top(config: &Path) -> Value {
    let output = understudy(&["top", "--json", config.to_str().unwrap()]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Looks until it is so.
fn top_until(config: &Path, so: impl Fn(&Value) -> bool) -> Value {
    let began = Instant::now();
    loop {
        let seen = top(config);
        if so(&seen) {
            return seen;
        }
        assert!(began.elapsed() < DEADLINE, "{seen}");
    }
}

fn table<'a>(snapshot: &'a Value, name: &str) -> &'a Value {
    let tables = snapshot["tables"].as_array().unwrap();
    tables.iter().find(|table| table["name"] == name).unwrap_or_else(|| panic!("no {name} in {snapshot}"))
}

#[test]
fn what_is_seen_is_what_is_reported_at_the_end() {
    let place = Place::new();
    let config = place.config(false, WIRE);
    let frames = captures::frames(&captures::path(CAPTURE)).len() as u64;
    let instance = Machine::ready("run", &config);
    let socket = fs::symlink_metadata(place.path("top.sock")).unwrap();
    assert!(socket.file_type().is_socket() && socket.permissions().mode() & 0o777 == 0o600);

    let seen = top_until(&config, |seen| seen["ports"][1]["tx_frames"] == frames);
    // By its socket, too, and for people
    let socket = place.path("top.sock");
    let once = understudy(&["top", "--once", socket.to_str().unwrap()]);
    let text = String::from_utf8(once.stdout).unwrap();
    for words in ["[forward]", "Ports\n", " left ", "RC CmpSwap", "10.0.0.1", "cycles/frame", "roce_frames"] {
        assert!(text.contains(words), "{words:?} in\n{text}");
    }

    let report = instance.interrupt();
    assert!(!socket.exists(), "it takes its socket with it");
    for port in 0..2 {
        let (seen, told) = (seen["ports"][port].as_object().unwrap(), &report["ports"][port]);
        assert!(seen.len() == 10 && seen.iter().all(|(key, value)| told[key] == *value), "{seen:?} {told}");
    }
    let sum = |rows: &Value, count: usize| {
        rows["rows"].as_array().unwrap().iter().map(|row| row["counts"][count].as_u64().unwrap()).sum::<u64>()
    };
    for (name, told) in [("queue_pair", "qps"), ("opcode", "opcodes")] {
        let told = report[told].as_array().unwrap();
        let seen = table(&seen, name);
        assert_eq!(seen["rows"].as_array().unwrap().len(), told.len(), "{seen}");
        for (at, key) in ["frames", "bytes"].into_iter().enumerate() {
            let told: u64 = told.iter().map(|row| row[key].as_u64().unwrap()).sum();
            assert!(told > 0 && sum(seen, at) == told, "{name} {key}");
        }
    }
    assert_eq!(seen["workers"][0]["rx_frames"], report["workers"][0]["rx_frames"]);
    assert!(seen["workers"][0]["busy_cycles"].as_u64() > Some(0));
    assert_eq!(seen["instance"]["function"], "forward");

    // Nobody is there any more.
    let gone = understudy(&["top", "--once", config.to_str().unwrap()]);
    let error = String::from_utf8(gone.stderr).unwrap();
    assert!(gone.status.code() == Some(1) && error.contains("is the instance running?"), "{error}");
}

#[test]
fn a_socket_is_one_instances_own() {
    let place = Place::new();
    let config = place.config(false, WIRE);
    let first = Machine::ready("run", &config);
    let second = understudy(&["run", config.to_str().unwrap()]);
    let error = String::from_utf8(second.stderr).unwrap();
    assert!(!second.status.success() && error.contains("another process"), "{error}");
    assert_eq!(top(&config)["instance"]["pid"], first.id());
    // Killed, it leaves a socket on which nobody listens: in nobody's way.
    drop(first);
    assert!(place.path("top.sock").exists());
    let third = Machine::ready("run", &config);
    assert_eq!(top(&config)["instance"]["pid"], third.id());
    drop(third);
    fs::remove_file(place.path("top.sock")).unwrap();
    place.write("top.sock", "a file");
    let fourth = understudy(&["run", config.to_str().unwrap()]);
    let error = String::from_utf8(fourth.stderr).unwrap();
    assert!(!fourth.status.success() && error.contains("not a socket"), "{error}");
    assert_eq!(fs::read_to_string(place.path("top.sock")).unwrap(), "a file");
}

/// What is checked can be opened: an address holds 107 bytes.
#[test]
fn a_socket_may_have_as_long_a_path_as_there_is() {
    let place = Place::new();
    let folder = place.0.path().as_os_str().len();
    let longest = "s".repeat(107 - folder - 1);
    let config = |socket: &str| {
        place.write(
            "long.toml",
            &format!("[[port]]\nname = \"a\"\nring = {{}}\n[forward]\npairs = [[\"a\", \"a\"]]\n[observe]\nsocket = \"{socket}\"\n"),
        )
    };
    let fits = config(&longest);
    let instance = Machine::ready("run", &fits);
    assert_eq!(top(&fits)["instance"]["pid"], instance.id());
    let mode = fs::symlink_metadata(place.path(&longest)).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    instance.interrupt();
    assert!(!place.path(&longest).exists());

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
fn what_is_no_question_is_refused() {
    let place = Place::new();
    let config = place.config(false, WIRE);
    let _instance = Machine::ready("run", &config);
    for question in
        ["hello\n".to_owned(), "{\"ask\":\"money\"}\n".into(), "x".repeat(100_000), "[".repeat(5000)]
    {
        let mut stream = std::os::unix::net::UnixStream::connect(place.path("top.sock")).unwrap();
        // It may have refused before it has read all.
        _ = stream.write_all(question.as_bytes());
        let mut answer = String::new();
        _ = BufReader::new(&stream).read_line(&mut answer);
        assert!(answer.is_empty() || answer.starts_with("{\"error\":\"that is no question"), "{answer}");
    }
    assert_eq!(top(&config)["instance"]["function"], "forward");
    let none =
        place.write("none.toml", "[[port]]\nname = \"a\"\nring = {}\n[forward]\npairs = [[\"a\", \"a\"]]\n");
    let refused = understudy(&["top", "--once", none.to_str().unwrap()]);
    let error = String::from_utf8(refused.stderr).unwrap();
    assert!(refused.status.code() == Some(2) && error.contains("has no socket to look through"), "{error}");
}
