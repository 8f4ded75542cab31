//! `understudy controller`: the program with nodes on the loopback interface.

#[cfg(feature = "etcd")]
mod etcd;
mod nodes;

use crate::commands::{text, understudy};
use crate::common::json_page::assert_is_on_the_page;
use management::Secret;
use nodes::{Network, Rack};
use onepipe::Timestamp;
use serde_json::Value;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::process::Stdio;
use std::time::Duration;
use understudy_tests::processes::{Process, Signal, command};

const TOPOLOGY: &str = "[topology]\nbeacon_interval_ns = 1000000\n\
    [[switch]]\nname = \"tor\"\nmac = \"02:00:00:00:01:00\"\ntunnel = \"10.255.0.1\"\n\
    [[host]]\nname = \"a\"\nid = 1\naddress = \"10.0.0.1/24\"\nmac = \"02:00:00:00:00:01\"\nswitch = \"tor\"\n\
    [[host]]\nname = \"b\"\nid = 2\naddress = \"10.0.0.2/24\"\nmac = \"02:00:00:00:00:02\"\nswitch = \"tor\"\n\
    [[host]]\nname = \"c\"\nid = 3\naddress = \"10.0.0.3/24\"\nmac = \"02:00:00:00:00:03\"\nswitch = \"tor\"\n";
const SECRET: &[u8] = b"sixteen bytes or more of it";

/// Folder with the files of a controller.
pub(crate) struct Files {
    folder: tempfile::TempDir,
    /// Time in which nodes have to answer
    respond_within_ms: u32,
    /// Name of the controller's file
    name: String,
    /// Value of `store` in it
    store: String,
    /// Its further tables
    tables: String,
}

impl Files {
    pub(crate) fn new(respond_within_ms: u32) -> Self {
        let files = Self {
            folder: tempfile::tempdir().unwrap(),
            respond_within_ms,
            name: "controller.toml".into(),
            store: "{ file = \"controller.redb\" }".into(),
            tables: String::new(),
        };
        files.write("network.toml", TOPOLOGY.as_bytes());
        files.write("secret", SECRET);
        files.write("wrong", b"another secret of sixteen bytes");
        files.listen("127.0.0.1:0");
        files
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    pub(crate) fn write(&self, name: &str, content: &[u8]) {
        std::fs::write(self.path(name), content).unwrap();
        std::fs::set_permissions(self.path(name), std::fs::Permissions::from_mode(0o600)).unwrap();
    }

    fn listen(&self, address: &str) {
        let text = format!(
            "[controller]\nlisten = \"{address}\"\ntopology = \"network.toml\"\nsecret_file = \"secret\"\n\
             store = {}\nrespond_within_ms = {}\n{}",
            self.store, self.respond_within_ms, self.tables
        );
        self.write(&self.name, text.as_bytes());
    }

    /// Starts a controller, and waits until it is ready.
    pub(crate) fn start(&self) -> Running {
        let mut program = command(env!("CARGO_BIN_EXE_understudy"));
        program.args(["controller", &self.path(&self.name), "--json"]);
        program.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = Process::start(program);
        let mut errors = BufReader::new(process.stderr.take().unwrap());
        let mut address = None;
        let mut log = String::new();
        while address.is_none() {
            let mut line = String::new();
            assert_ne!(errors.read_line(&mut line).unwrap(), 0, "the controller has ended: {log}");
            let at = line.split(" is ready at ").nth(1).and_then(|rest| rest.split(". ").next());
            address = at.map(|at| at.trim().parse::<SocketAddr>().unwrap());
            log += &line;
        }
        let address = address.unwrap();
        // Whatever it prints has to be read.
        let log = std::thread::spawn(move || {
            let mut rest = String::new();
            errors.read_to_string(&mut rest).map(|_| rest).unwrap_or_default()
        });
        // The next one gets the same address.
        self.listen(&address.to_string());
        Running { process, address, log }
    }

    pub(crate) fn ask(&self, action: &[&str], at: SocketAddr, secret: &str) -> std::process::Output {
        let (at, secret) = (at.to_string(), self.path(secret));
        let rest = ["--at", &at, "--secret-file", &secret, "--json"];
        understudy(&[&["controller"], action, &rest].concat())
    }

    pub(crate) fn status(&self, at: SocketAddr) -> Value {
        let output = self.ask(&["status"], at, "secret");
        assert!(output.status.success(), "{}", text(&output.stderr));
        let status = serde_json::from_slice(&output.stdout).unwrap();
        assert_is_on_the_page("`understudy controller status --json`", &status);
        status
    }

    /// Asks for the state until it is as expected.
    pub(crate) fn wait(&self, at: SocketAddr, what: &str, is: impl Fn(&Value) -> bool) -> Value {
        for _ in 0..1200 {
            let status = self.status(at);
            if is(&status) {
                return status;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("{what}: {}", self.status(at));
    }

    fn network(&self, controllers: &[SocketAddr], topology: u64) -> Network {
        assert!(std::path::Path::new(&self.path("secret")).exists());
        Network { controllers: controllers.to_vec(), secret: Secret::new(SECRET).unwrap(), topology }
    }
}

pub(crate) struct Running {
    pub(crate) process: Process,
    pub(crate) address: SocketAddr,
    log: std::thread::JoinHandle<String>,
}

fn topology(status: &Value) -> u64 {
    u64::from_str_radix(status["network"].as_str().unwrap(), 16).unwrap()
}

pub(crate) fn states(status: &Value) -> Vec<&str> {
    status["members"].as_array().unwrap().iter().map(|member| member["state"].as_str().unwrap()).collect()
}

#[test]
fn a_killed_controller_that_starts_again_decides_the_same() {
    let files = Files::new(1000);
    let first = files.start();
    let at = first.address;
    let status = files.wait(at, "leads", |status| status["term"] == 1);
    let rack = Rack::start(&files.network(&[at], topology(&status)), &[1, 2, 3]);
    files.wait(at, "all join", |status| states(status) == ["member"; 3]);
    let before = rack.barrier(1);

    // The callbacks of the failure do not return before the controller is killed.
    rack.set_calls_back(false);
    let output = files.ask(&["fail", "2"], at, "secret");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let decided: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_is_on_the_page("`understudy controller fail --json`", &decided);
    let time = decided["time_ns"].as_u64().unwrap();
    assert!(decided["case"] == 1 && time > before, "{decided}");
    let status = files.status(at);
    assert_eq!(
        (&status["cases"][0]["stage"], &status["cases"][0]["failed"]),
        (&"decided".into(), &vec![2].into())
    );
    first.process.signal(Signal::KILL);
    drop(first.process.finish());

    let second = files.start();
    assert_eq!(second.address, at);
    let status = files.wait(at, "leads again", |status| status["term"] == 2);
    assert_eq!(states(&status), ["member", "failed", "member"], "{status}");
    assert_eq!((&status["members"][1]["time_ns"], &status["members"][1]["case"]), (&time.into(), &1.into()));
    rack.set_calls_back(true);
    let status =
        files.wait(at, "the case is closed", |status| status["cases"].as_array().unwrap().is_empty());
    assert_eq!(states(&status), ["member", "failed", "member"]);
    for id in [1, 3] {
        assert_eq!(rack.notices(id), [(1, vec![(2, Timestamp::new(time))])].into());
    }
    assert!(rack.has_failed(2) && !rack.has_failed(1));
    assert!(rack.notices(2).is_empty());
    // The others go on.
    let barrier = rack.barrier(1);
    std::thread::sleep(Duration::from_millis(300));
    assert!(rack.barrier(1) > barrier && rack.barrier(2) <= barrier);

    // A process that dies is found by its silent link.
    rack.kill(3);
    let status = files.wait(at, "process 3 fails", |status| states(status) == ["member", "failed", "failed"]);
    assert_eq!(status["members"][2]["case"], 2, "{status}");
    let output = files.ask(&["fail", "3"], at, "secret");
    assert!(text(&output.stderr).contains("process 3 has failed already"), "{}", text(&output.stderr));

    second.process.signal(Signal::TERM);
    let output = second.process.finish();
    assert!(output.status.success(), "{:?}", output.status);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_is_on_the_page("`understudy controller --json`", &report);
    assert_eq!((&report["term"], &report["counters"]["failed"]), (&2.into(), &1.into()), "{report}");
    let log = second.log.join().unwrap();
    assert!(log.contains("Case 2: process 3 has failed"), "{log}");
}

#[test]
fn a_controller_is_observed() {
    let mut files = Files::new(1000);
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    files.tables = format!("[observe]\nsocket = \"observe.sock\"\nprometheus = {port}\n");
    files.listen("127.0.0.1:0");
    let running = files.start();
    let at = running.address;
    let status = files.wait(at, "leads", |status| status["term"] == 1);
    let _rack = Rack::start(&files.network(&[at], topology(&status)), &[1, 2, 3]);
    files.wait(at, "all join", |status| states(status) == ["member"; 3]);
    assert!(files.ask(&["fail", "2"], at, "secret").status.success());
    files.wait(at, "the case is closed", |status| status["cases"].as_array().unwrap().is_empty());
    // The state is at most 20 ms old.
    std::thread::sleep(Duration::from_millis(200));
    let top = understudy(&["top", "--json", &files.path("controller.toml")]);
    assert!(top.status.success(), "{}", text(&top.stderr));
    let snapshot: Value = serde_json::from_slice(&top.stdout).unwrap();
    let value = |kind: &str, name: &str| {
        let all = snapshot[kind].as_array().unwrap();
        all.iter().find(|value| value["name"] == name).unwrap_or_else(|| panic!("{name}: {snapshot}"))["value"].clone()
    };
    let gauges = ["term", "members", "joining", "failed_now", "representatives", "open_cases"];
    assert_eq!(gauges.map(|name| value("gauges", name)), [1, 2, 0, 1, 1, 0], "{snapshot}");
    assert_eq!(value("counters", "failed"), 1);
    let cells = &snapshot["tables"][0]["rows"][1]["cells"];
    assert_eq!((&cells[0], &cells[1]), (&"2".into(), &"failed".into()), "{snapshot}");
    let top = understudy(&["top", "--once", &files.path("observe.sock")]);
    let printed = text(&top.stdout);
    assert!(
        top.status.success() && printed.contains("failed") && printed.contains("[controller]"),
        "{printed}"
    );
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    for line in ["understudy_controller_members 2", "understudy_controller_failed_total 1"] {
        assert!(reply.contains(line), "{reply}");
    }
    let trace = understudy(&["trace", &files.path("observe.sock"), "--all"]);
    assert!(!trace.status.success(), "a controller has no packets");
    running.process.signal(Signal::TERM);
    let output = running.process.finish();
    assert!(output.status.success(), "{:?}", output.status);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["members"], &report["counters"]["failed"]), (&2.into(), &1.into()), "{report}");
    assert!(!std::path::Path::new(&files.path("observe.sock")).exists());
}

#[test]
fn a_second_controller_of_the_same_file_does_not_start() {
    let files = Files::new(1000);
    let first = files.start();
    files.listen("127.0.0.1:0");
    let output = understudy(&["controller", &files.path("controller.toml"), "--for", "5"]);
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.replace('\n', " ").contains("in use by another program"), "{errors}");
    assert_eq!(files.status(first.address)["term"], 1, "the first one goes on");
    // Another store, but the same address
    files.write(
        "controller.toml",
        std::fs::read_to_string(files.path("controller.toml"))
            .unwrap()
            .replace("controller.redb", "other.redb")
            .replace("127.0.0.1:0", &first.address.to_string())
            .as_bytes(),
    );
    let output = understudy(&["controller", &files.path("controller.toml"), "--for", "5"]);
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("cannot listen at"), "{errors}");
}

#[test]
fn a_store_of_another_network_or_a_damaged_one_is_refused() {
    let files = Files::new(1000);
    let run = || understudy(&["controller", &files.path("controller.toml"), "--for", "0.2"]);
    assert!(run().status.success());
    files.write("network.toml", TOPOLOGY.replace("\"c\"", "\"d\"").as_bytes());
    let output = run();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("belongs to the network"), "{}", text(&output.stderr));
    files.write("network.toml", TOPOLOGY.as_bytes());
    files.write("controller.redb", b"no database");
    let output = run();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("damaged"), "{}", text(&output.stderr));
    assert_eq!(std::fs::read(files.path("controller.redb")).unwrap(), b"no database", "it is kept");
}

#[test]
fn operators_and_strangers_are_refused_by_name_and_counted() {
    let files = Files::new(1000);
    let running = files.start();
    let output = files.ask(&["status"], running.address, "wrong");
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("has another secret"), "{}", text(&output.stderr));
    let at = running.address.to_string();
    let output = understudy(&["controller", "status", "--at", &at]);
    assert!(text(&output.stderr).contains("this end has none"), "{}", text(&output.stderr));
    let output = understudy(&["controller", "fail", "9", "--at", "192.0.2.1:1"]);
    assert!(text(&output.stderr).contains("use --secret-file"), "{}", text(&output.stderr));
    let output = files.ask(&["fail", "9"], running.address, "secret");
    assert!(text(&output.stderr).contains("process 9 is not a member"), "{}", text(&output.stderr));
    // Half-open connections, and many of them, do not keep an operator out.
    let flood: Vec<_> = (0..300).map(|_| TcpStream::connect(running.address).unwrap()).collect();
    let status = files.status(running.address);
    let alarms: Vec<_> =
        status["alarms"].as_array().unwrap().iter().map(|alarm| alarm["text"].to_string()).collect();
    for words in ["the peer has another secret", "and the peer has none", "too many connections"] {
        assert!(alarms.iter().any(|alarm| alarm.contains(words)), "{words} is missing: {alarms:?}");
    }
    drop(flood);
    running.process.signal(Signal::INT);
    let output = running.process.finish();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let ended = &report["connections_ended"];
    assert!(ended["wrong_secret"].as_u64() >= Some(1) && ended["too_many"].as_u64() >= Some(1), "{report}");
}

#[test]
fn all_mistakes_of_a_file_are_reported_with_their_lines() {
    let files = Files::new(1000);
    std::fs::set_permissions(files.path("secret"), std::fs::Permissions::from_mode(0o644)).unwrap();
    files.write("network.toml", TOPOLOGY.replace("id = 2", "id = 1").as_bytes());
    let file = "[controller]\nlisten = \"nowhere\"\ntopology = \"network.toml\"\nsecret_file = \"secret\"\n\
                store = { file = \"a\", etcd = [\"https://10.9.0.1\"], prefix = \"1pipe/\", lease_ms = 10 }\nrespond_within_ms = 0\nfial_after_intervals = 3\n";
    files.write("controller.toml", file.as_bytes());
    let output = understudy(&["check", "--json", &files.path("controller.toml")]);
    assert_eq!(output.status.code(), Some(2));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let errors = report["errors"].as_array().unwrap();
    let find = |line: u64, message: &str| {
        let found = errors.iter().any(|error| {
            error["line"] == line
                && error["message"].as_str().unwrap().contains(message)
                && error["help"] != ""
        });
        assert!(found, "{message} at {line}: {report:#}");
    };
    find(2, "`nowhere` is not an address");
    find(3, "the topology is not valid");
    find(4, "other users may use the secret");
    find(5, "`store` has both `file` and `etcd`");
    find(5, "`https://10.9.0.1` is not the URL");
    find(5, "`1pipe/` is not a prefix");
    find(5, "lease_ms");
    find(6, "respond_within_ms");
    find(7, "fial_after_intervals");

    let files = Files::new(1000);
    let file = "[controller]\nlisten = \"0.0.0.0:7070\"\ntopology = \"network.toml\"\n\
                store = { file = \"controller.redb\" }\nfail_after_intervals = 7\n";
    files.write("controller.toml", file.as_bytes());
    let output = understudy(&["controller", &files.path("controller.toml")]);
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    for words in ["there is no `secret_file`", "below the `dead_after_intervals` of 10"] {
        assert!(errors.contains(words), "{words} is missing: {errors}");
    }
}

#[test]
fn each_mistake_of_a_store_is_reported() {
    let files = Files::new(1000);
    let file = std::fs::read_to_string(files.path("controller.toml")).unwrap();
    for (store, message) in [
        ("{}", "`store` has neither `file` nor `etcd`"),
        ("{ etcd = [] }", "`etcd` names no server"),
        ("{ etcd = [\"http://:2379\"] }", "`http://:2379` is not the URL"),
        ("{ etcd = [\"http://[::1]:0\"] }", "`http://[::1]:0` is not the URL"),
        ("{ file = \"a\", lease_ms = 2000 }", "`lease_ms` is not valid for a store in a file"),
    ] {
        let file = file.replace("{ file = \"controller.redb\" }", store);
        files.write("controller.toml", file.as_bytes());
        let output = understudy(&["controller", &files.path("controller.toml")]);
        assert_eq!(output.status.code(), Some(2), "{store}");
        assert!(text(&output.stderr).contains(message), "{store}: {}", text(&output.stderr));
    }
}

#[test]
fn a_program_without_etcd_names_the_feature() {
    let files = Files::new(1000);
    let store = "{ etcd = [\"http://[::1]:1\", \"http://etcd-2.example:2379\"], prefix = \"/a/b\" }";
    let file = std::fs::read_to_string(files.path("controller.toml")).unwrap();
    let file = file.replace("{ file = \"controller.redb\" }", store);
    files.write("controller.toml", file.as_bytes());
    let output = understudy(&["check", &files.path("controller.toml")]);
    assert!(text(&output.stdout).contains("/a/b in etcd at http://[::1]:1, http://etcd-2"), "{output:?}");
    let output = understudy(&["controller", &files.path("controller.toml"), "--for", "0.2"]);
    if cfg!(feature = "etcd") {
        assert!(output.status.success(), "servers that do not answer end nothing: {output:?}");
    } else {
        assert_eq!(output.status.code(), Some(1));
        assert!(text(&output.stderr).contains("--features etcd"), "{}", text(&output.stderr));
    }
}
