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
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use understudy_tests::captures;

/// Nothing is expected to take so long.
const DEADLINE: Duration = Duration::from_secs(40);
/// fifty CAS of 10.0.0.2, and their answers
const CAPTURE: &str = "rc_compare_swap.pcap";

fn understudy(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_understudy")).args(arguments).output().unwrap()
}

/// An instance that runs until it is told to end; killed when dropped.
struct Instance {
    child: Child,
    said: String,
    stderr: BufReader<std::process::ChildStderr>,
}

impl Instance {
    /// Returns when it is ready.
    fn start(command: &str, config: &Path) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_understudy"))
            .args([command, "--json", config.to_str().unwrap()])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let mut instance = Self { child, said: String::new(), stderr };
        while !instance.said.contains("is ready") {
            let read = instance.stderr.read_line(&mut instance.said).unwrap();
            assert!(read > 0, "it ended: {}", instance.said);
        }
        instance
    }

    /// Ctrl-C; its report.
    fn end(mut self) -> Value {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
        let mut report = String::new();
        self.child.stdout.take().unwrap().read_to_string(&mut report).unwrap();
        assert!(self.child.wait().unwrap().success(), "{}", self.said);
        serde_json::from_str(&report).unwrap()
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
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
    let instance = Instance::start("run", &config);
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

    let report = instance.end();
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
    let first = Instance::start("run", &config);
    let second = understudy(&["run", config.to_str().unwrap()]);
    let error = String::from_utf8(second.stderr).unwrap();
    assert!(!second.status.success() && error.contains("another process"), "{error}");
    assert_eq!(top(&config)["instance"]["pid"], first.child.id());
    // Killed, it leaves a socket on which nobody listens: in nobody's way.
    drop(first);
    assert!(place.path("top.sock").exists());
    let third = Instance::start("run", &config);
    assert_eq!(top(&config)["instance"]["pid"], third.child.id());
    drop(third);
    fs::remove_file(place.path("top.sock")).unwrap();
    place.write("top.sock", "a file");
    let fourth = understudy(&["run", config.to_str().unwrap()]);
    let error = String::from_utf8(fourth.stderr).unwrap();
    assert!(!fourth.status.success() && error.contains("something else"), "{error}");
    assert_eq!(fs::read_to_string(place.path("top.sock")).unwrap(), "a file");
}

#[test]
fn what_is_no_question_is_refused() {
    let place = Place::new();
    let config = place.config(false, WIRE);
    let _instance = Instance::start("run", &config);
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

/// Metrics by name and labels. Asserts that the text keeps the format's rules: a HELP and a TYPE line before the values of each
/// metric, all of which stand together, and no series twice.
fn parse(text: &str) -> BTreeMap<String, f64> {
    let mut series = BTreeMap::new();
    let mut heads = BTreeSet::new();
    let mut name = "";
    let plain = |name: &str| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            name = help.split(' ').next().unwrap();
            assert!(heads.insert(name) && plain(name), "{line}");
            let kind = lines.next().and_then(|line| line.strip_prefix("# TYPE ")).unwrap();
            let kind = kind.strip_prefix(name).unwrap().trim();
            assert!(["counter", "gauge", "summary"].contains(&kind), "{line}");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{name}");
            continue;
        }
        let (key, value) = line.rsplit_once(' ').unwrap();
        let base = key.split('{').next().unwrap();
        assert!(base == name || base.strip_suffix("_count") == Some(name), "{line} below {name}");
        if let Some(labels) = key.strip_prefix(base).filter(|labels| !labels.is_empty()) {
            let labels = labels.strip_prefix('{').and_then(|labels| labels.strip_suffix('}')).unwrap();
            for label in labels.split("\",") {
                let (label, value) = label.split_once("=\"").unwrap();
                assert!(plain(label) && !value.contains('\n'), "{line}");
            }
        }
        assert!(series.insert(key.to_owned(), value.parse().unwrap()).is_none(), "{line} twice");
    }
    series
}

fn http(address: &str, request: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "{request} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(!head.to_ascii_lowercase().contains("transfer-encoding"), "{head}");
    (head.to_owned(), body.to_owned())
}

/// Where an instance says that its metrics are
fn address(instance: &Instance) -> String {
    let at = instance.said.split("http://").nth(1).unwrap_or_else(|| panic!("{}", instance.said));
    at.split('/').next().unwrap().to_owned()
}

#[test]
fn metrics_parse_and_only_grow() {
    let place = Place::new();
    let config = place.config(true, &format!("prometheus = \"127.0.0.1:0\"\n{WIRE}"));
    let instance = Instance::start("run", &config);
    let address = address(&instance);
    assert!(!instance.said.contains("WARNING"), "{}", instance.said);
    let scrape = || {
        let (head, body) = http(&address, "GET /metrics");
        assert!(head.starts_with("HTTP/1.1 200") && head.contains("text/plain; version=0.0.4"), "{head}");
        parse(&body)
    };
    let received = "understudy_port_received_frames_total{port=\"left\"}";
    let first = scrape();
    let began = Instant::now();
    let second = loop {
        let second = scrape();
        if second[received] > first[received] {
            break second;
        }
        assert!(began.elapsed() < DEADLINE);
    };
    for (key, before) in first.iter().filter(|(key, _)| key.contains("_total")) {
        assert!(second[key] >= *before, "{key}: {before}, then {}", second[key]);
    }
    for key in [
        "understudy_dropped_frames_total{reason=\"port_full\"}",
        "understudy_worker_busy_seconds_total{worker=\"0\"}",
        "understudy_forward_roce_frames_total",
        "understudy_opcode_frames_total{opcode=\"RC CmpSwap\"}",
        "understudy_uptime_seconds",
    ] {
        assert!(second.contains_key(key), "{key} in {second:?}");
    }
    assert!(
        second
            .keys()
            .any(|key| key.starts_with("understudy_queue_pair_frames_total{host=\"10.0.0.1\",qpn=\"0x"))
    );
    assert!(http(&address, "GET /").0.starts_with("HTTP/1.1 404"));
    assert!(http(&address, "POST /metrics").0.starts_with("HTTP/1.1 405"));
    // Nothing that is sent there does harm.
    let said = |request: &str| {
        let mut stream = TcpStream::connect(&address).unwrap();
        // It may have answered, and gone, before all of it is sent.
        _ = stream.write_all(request.as_bytes());
        let mut answer = String::new();
        _ = stream.read_to_string(&mut answer);
        answer.split(' ').nth(1).unwrap_or_default().to_owned()
    };
    for length in ["100000000000000", "18446744073709551615", "-1"] {
        assert_eq!(said(&format!("GET /metrics HTTP/1.1\r\nContent-Length: {length}\r\n\r\n")), "200");
    }
    assert_eq!(said(&format!("GET /{}", "a".repeat(4096 - 4))), "400", "a head that is too long");
    let silent: Vec<_> = (0..16).map(|_| TcpStream::connect(&address).unwrap()).collect();
    assert_eq!(said("GET /metrics HTTP/1.1\r\n\r\n"), "503", "as many as there may be");
    drop(silent);
    let began = Instant::now();
    while said("GET /metrics HTTP/1.1\r\n\r\n") != "200" {
        assert!(began.elapsed() < DEADLINE);
    }
    // Every metric of the dashboard is one that is there, or one of a function that is not here.
    dashboard(&second);
    instance.end();
}

/// The names in expressions of the dashboard.
fn dashboard(series: &BTreeMap<String, f64>) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs/grafana/understudy.json");
    let text = fs::read_to_string(path).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let there: BTreeSet<_> = series.keys().map(|key| key.split('{').next().unwrap()).collect();
    let mut named = 0;
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let expression = target["expr"].as_str().unwrap();
            let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            for name in words.filter(|word| word.starts_with("understudy_")) {
                // Those of functions that `forward` is not are tested where these are.
                let elsewhere = [
                    "understudy_group_requests_total",
                    "understudy_group_responses_total",
                    "understudy_latency_seconds",
                ];
                assert!(there.contains(name) || elsewhere.contains(&name), "{name} of {}", panel["title"]);
                named += 1;
            }
        }
    }
    assert!(named >= 10, "{named}");
}

#[test]
fn an_address_beyond_this_machine_is_said_aloud() {
    let place = Place::new();
    let config = place.config(false, &format!("prometheus = \"0.0.0.0:0\"\n{WIRE}"));
    let instance = Instance::start("run", &config);
    assert!(instance.said.contains("WARNING: anybody who reaches 0.0.0.0:"), "{}", instance.said);
    instance.end();
}

#[test]
fn latencies_of_a_generator_are_metrics_too() {
    let place = Place::new();
    let config = place.write(
        "pktgen.toml",
        "[[port]]\nname = \"loop\"\nring = {}\n[observe]\nsocket = \"top.sock\"\nprometheus = \"127.0.0.1:0\"\n\
         [pktgen]\nsend = \"loop\"\nreceive = \"loop\"\n[[pktgen.stream]]\nname = \"writes\"\nverb = \"write\"\nsize = 64\n\
         src = \"10.0.0.1\"\ndst = \"10.0.0.2\"\nrate = { packets_per_s = 10_000 }\nlatency = true\n",
    );
    let instance = Instance::start("pktgen", &config);
    let seen = top_until(&config, |seen| {
        seen["latencies"].as_array().unwrap().iter().any(|latency| latency["count"].as_u64() > Some(100))
    });
    assert_eq!(seen["latencies"][0]["name"], "writes latency");
    let streams = table(&seen, "stream")["rows"][0]["counts"].as_array().unwrap().clone();
    assert!(streams[0].as_u64() > Some(100) && streams[2].as_u64() > Some(100), "{streams:?}");
    let (_, body) = http(&address(&instance), "GET /metrics");
    let series = parse(&body);
    assert!(series["understudy_latency_seconds{of=\"writes latency\",quantile=\"0.5\"}"] > 0.0, "{series:?}");
    assert!(series["understudy_latency_seconds_count{of=\"writes latency\"}"] > 100.0, "{series:?}");
    assert!(series["understudy_stream_sent_total{stream=\"writes\"}"] > 100.0, "{series:?}");
}

const HOP: &str = "02:00:00:00:00:01";

/// A router between two ports, and a capture whose CAS are for it.
fn router(place: &Place) -> (PathBuf, u32) {
    let frames = captures::frames(&captures::path(CAPTURE));
    // Behind Ethernet and IPv4 there is the destination, behind UDP the BTH.
    let request = frames.iter().find(|frame| frame[42] == 0x13).unwrap();
    let mac: Vec<_> = request[..6].iter().map(|byte| format!("{byte:02x}")).collect();
    let qpn = u32::from_be_bytes([0, request[47], request[48], request[49]]);
    let rest = format!(
        "[forward.routes]\nmac = \"{}\"\n[[forward.routes.to]]\nprefix = \"10.0.0.0/24\"\n\
         via = [{{ port = \"right\", mac = \"{HOP}\" }}]\n",
        mac.join(":")
    );
    (place.config(true, &rest), qpn)
}

fn bytes(part: &Value) -> Vec<u8> {
    let text = part["bytes"].as_str().unwrap();
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

#[test]
fn packets_are_seen_as_they_come_and_as_they_leave() {
    let place = Place::new();
    let (config, qpn) = router(&place);
    let instance = Instance::start("run", &config);
    let (config, file) = (config.to_str().unwrap(), place.path("trace.pcapng"));
    let qp = format!("{qpn:#x}");
    let trace = |more: &[&str]| {
        let output = understudy(&[&["trace", config, "--count", "20"], more].concat());
        let error = String::from_utf8(output.stderr).unwrap();
        // The first ones all find room.
        assert!(output.status.success() && error == "Watching. Ctrl-C ends it.\n20 packets\n", "{error}");
        String::from_utf8(output.stdout).unwrap()
    };
    let lines = trace(&["--qp", &qp, "--host", "10.0.0.1", "--json", "--pcapng", file.to_str().unwrap()]);
    let hop = [2, 0, 0, 0, 0, 1];
    let mut times = Vec::new();
    for (at, line) in lines.lines().enumerate() {
        let packet: Value = serde_json::from_str(line).unwrap();
        assert_eq!(packet["number"], at as u64 + 1);
        times.push(packet["time_ns"].as_u64().unwrap());
        let parts = packet["parts"].as_array().unwrap();
        let whats: Vec<_> = parts.iter().map(|part| part["what"].as_str().unwrap()).collect();
        assert_eq!(whats, ["in", "out"], "{packet}");
        assert_eq!((&parts[0]["port"], &parts[1]["port"]), (&0.into(), &1.into()));
        let (before, after) = (bytes(&parts[0]), bytes(&parts[1]));
        // It was to the router; it is from it, to the next hop, and has come a hop nearer to its end.
        assert!(after[..6] == hop && after[6..12] == before[..6], "{packet}");
        assert_eq!(after[22], before[22] - 1);
        assert_eq!(u32::from_be_bytes([0, before[47], before[48], before[49]]), qpn);
        assert_eq!(after[42..], before[42..], "what RDMA says, its ICRC included");
    }
    assert!(times.len() == 20 && times.is_sorted(), "{times:?}");

    let text = trace(&["--qp", &qp, "--host", "10.0.0.1"]);
    let first: Vec<_> = text.lines().take(2).collect();
    assert!(
        first[0].starts_with("     1     0.000000  left   in   10.0.0.2 > 10.0.0.1  RC CmpSwap"),
        "{text}"
    );
    assert!(first[1].trim_start().starts_with("right  out  10.0.0.2 > 10.0.0.1  RC CmpSwap"), "{text}");

    // What is for others is dropped, and said to be.
    let answer =
        captures::frames(&captures::path(CAPTURE)).into_iter().find(|frame| frame[42] == 0x12).unwrap();
    let other = u32::from_be_bytes([0, answer[47], answer[48], answer[49]]).to_string();
    let text = trace(&["--qp", &other, "--host", "10.0.0.2"]);
    assert!(text.lines().nth(1).unwrap().ends_with("dropped: other station"), "{text}");

    // One that is too many is refused; the counts did not suffer.
    let refused = understudy(&["trace", config, "--group", "3"]);
    let error = String::from_utf8(refused.stderr).unwrap();
    assert!(
        !refused.status.success() && error.contains("there is no group 3: this instance has none"),
        "{error}"
    );
    let report = instance.end();
    let port = |port: usize, count: &str| report["ports"][port][count].as_u64().unwrap();
    let drops: u64 =
        report["drops"].as_array().unwrap().iter().map(|drop| drop["frames"].as_u64().unwrap()).sum();
    assert_eq!(port(0, "rx_frames"), port(1, "tx_frames") + drops);

    let decoded = understudy(&["decode", "--json", file.to_str().unwrap()]);
    assert!(decoded.status.success());
    let decoded = String::from_utf8(decoded.stdout).unwrap();
    assert_eq!(decoded.lines().count(), 40, "{decoded}");
    for line in decoded.lines() {
        let packet: Value = serde_json::from_str(line).unwrap();
        assert_eq!((&packet["icrc"], &packet["dest_qp"]), (&"ok".into(), &qpn.into()));
        let time = packet["time"].as_f64().unwrap() * 1e9;
        assert!(time > times[0] as f64 - 1e3 && time < times[19] as f64 + 1e3, "{time} is not in {times:?}");
    }
    let names = fs::read(&file).unwrap();
    for name in ["left-in", "left-out", "right-in", "right-out"] {
        assert!(names.windows(name.len()).any(|window| window == name.as_bytes()), "{name}");
    }
}

#[test]
fn there_is_one_trace_at_a_time_and_the_next_when_it_is_over() {
    let place = Place::new();
    let (config, qpn) = router(&place);
    let instance = Instance::start("run", &config);
    let qp = qpn.to_string();
    let config = config.to_str().unwrap();
    // Of a queue pair that nobody sends to; it begins, and waits.
    let mut waiting = Command::new(env!("CARGO_BIN_EXE_understudy"))
        .args(["trace", config, "--qp", "0xabcdef"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stderr = BufReader::new(waiting.stderr.take().unwrap());
    let mut said = String::new();
    stderr.read_line(&mut said).unwrap();
    assert!(said.starts_with("Watching."), "{said}");
    let second = understudy(&["trace", config, "--qp", &qp, "--count", "1"]);
    let error = String::from_utf8(second.stderr).unwrap();
    assert!(!second.status.success());
    assert!(error.contains("another trace is running"), "{error}");
    // Told to end, it says what it saw.
    assert!(Command::new("kill").args(["-INT", &waiting.id().to_string()]).status().unwrap().success());
    let mut said = String::new();
    stderr.read_to_string(&mut said).unwrap();
    assert!(waiting.wait().unwrap().success() && said == "0 packets\n", "{said}");
    // The place is free again, also after one that was killed.
    let began = Instant::now();
    while !understudy(&["trace", config, "--qp", &qp, "--count", "1"]).status.success() {
        assert!(began.elapsed() < DEADLINE);
    }
    // One that runs when its instance ends, ends.
    let mut left = Command::new(env!("CARGO_BIN_EXE_understudy"))
        .args(["trace", config, "--qp", &qp])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stderr = BufReader::new(left.stderr.take().unwrap());
    let mut said = String::new();
    stderr.read_line(&mut said).unwrap();
    assert!(said.starts_with("Watching."), "{said}");
    instance.end();
    stderr.read_to_string(&mut said).unwrap();
    left.wait().unwrap();
    assert!(said.contains(" packets") || said.contains("does not answer any more"), "{said}");
}

/// Three servers, a bridge and a P4CE switch, each a process.
fn consensus(place: &Place) -> Vec<Instance> {
    let runtime = "[runtime]\nidle = \"sleep\"\n";
    let port = |name: &str, id: u32, role: &str| {
        format!(
            "[[port]]\nname = \"{name}\"\nmemif = {{ socket = \"rack.sock\", id = {id}, role = \"{role}\" }}\n"
        )
    };
    let ports: String = (0..4).map(|n| port(&format!("p{n}"), n, "server")).collect();
    let bridge = place.write("bridge.toml", &format!("{runtime}{ports}[forward]\nmac_table = {{}}\n"));
    let switch = port("rack", 3, "client")
        + "[p4ce]\nmac = \"02:00:00:00:00:fe\"\naddresses = [\"10.0.0.254/24\"]\n[observe]\nsocket = \"switch.sock\"\n";
    let switch = place.write("switch.toml", &format!("{runtime}{switch}"));
    let server = |n: u32| {
        let text = port("eth", n, "client");
        let text = format!(
            "{runtime}{text}[nic]\naddresses = [\"10.0.0.{}/24\"]\nmac = \"02:00:00:00:00:0{}\"\n[consensus]\nid = {n}\n\
             servers = [\"10.0.0.1\", \"10.0.0.2\", \"10.0.0.3\"]\nswitch = \"10.0.0.254\"\nheartbeat_us = 20000\n\
             propose = {{ size = 64 }}\n[observe]\nsocket = \"server-{n}.sock\"\n",
            n + 1,
            n + 1
        );
        place.write(&format!("server-{n}.toml"), &text)
    };
    let mut all = vec![Instance::start("run", &bridge), Instance::start("run", &switch)];
    all.extend((0..3).map(|n| Instance::start("host", &server(n))));
    all
}

#[test]
fn a_groups_packets_are_seen_to_be_scattered() {
    let place = Place::new();
    let _all = consensus(&place);
    let switch = place.path("switch.toml");
    let began = Instant::now();
    let (group, packet) = loop {
        assert!(began.elapsed() < DEADLINE, "{}", top(&switch));
        let seen = top(&switch);
        let tables = seen["tables"].as_array().unwrap();
        let Some(groups) = tables.iter().find(|table| table["name"] == "group") else { continue };
        let row = &groups["rows"][0];
        if row["counts"][0].as_u64() < Some(100) || row["counts"][2].as_u64() < Some(100) {
            continue;
        }
        // It may end at any time, and another begin.
        let id = row["cells"][0].as_str().unwrap();
        let trace = ["trace", switch.to_str().unwrap(), "--json", "--count", "50", "--group", id];
        let output = understudy(&trace);
        let lines = String::from_utf8(output.stdout).unwrap();
        let packets = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let whats = |packet: &Value| -> Vec<String> {
            packet["parts"]
                .as_array()
                .unwrap()
                .iter()
                .map(|part| part["what"].as_str().unwrap().into())
                .collect()
        };
        let scattered =
            |packet: &Value| whats(packet) == ["in", "out", "out"] && bytes(&packet["parts"][0])[42] == 0x0a;
        if let Some(packet) = packets.into_iter().find(scattered) {
            break (row.clone(), packet);
        }
    };
    let parts: Vec<_> = packet["parts"].as_array().unwrap().iter().map(bytes).collect();
    let to =
        |frame: &[u8]| (frame[30..34].to_vec(), u32::from_be_bytes([0, frame[47], frame[48], frame[49]]));
    let (leaders, one, other) = (to(&parts[0]), to(&parts[1]), to(&parts[2]));
    assert_eq!(leaders.0, [10, 0, 0, 254]);
    // To each replica, at its own queue pair
    let pairs: Vec<_> = group["queue_pairs"].as_array().unwrap().iter().collect();
    for (host, qpn) in [&leaders, &one, &other] {
        let host = format!("{}.{}.{}.{}", host[0], host[1], host[2], host[3]);
        assert!(pairs.iter().any(|pair| pair[0] == host && pair[1] == *qpn), "{host} {qpn} in {group}");
    }
    assert!(one.0 != other.0 && one.0 != leaders.0, "{packet}");
    // What a server says of itself
    let server = top_until(&place.path("server-0.toml"), |seen| {
        seen["counters"]
            .as_array()
            .unwrap()
            .iter()
            .any(|counter| counter["name"] == "decided" && counter["value"].as_u64() > Some(0))
    });
    assert_eq!(server["instance"]["function"], "consensus");
}
