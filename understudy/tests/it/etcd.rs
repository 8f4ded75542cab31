//! Configurations in etcd: the start with and without it, and what a run does with newer versions.
#![allow(clippy::disallowed_methods, reason = "the tests wait for other processes, with a timeout")]

use crate::commands::{text, understudy};
use crate::common::machine::{DEADLINE, Machine};
use crate::hangup::RING;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use understudy_tests::etcd::Etcd;
use understudy_tests::etcd_stand_in::{Fault, StandIn};
use understudy_tests::processes::Signal;

const KEY: &str = "/understudy/rack1";

/// A folder with the socket of an instance.
struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Returns a wire with rules.
    fn wire(&self, runtime: &str, rules: &[&str]) -> String {
        let rule = |name: &&str| format!("[[impair.rule]]\nname = \"{name}\"\naction = \"drop\"\n");
        let rules: String = rules.iter().map(rule).collect();
        let socket = self.path("observe.sock").display().to_string();
        let ring = RING.replace("[runtime]\n", &format!("[runtime]\n{runtime}"));
        format!("{ring}[observe]\nsocket = {socket:?}\n[impair]\npairs = [[\"a\", \"a\"]]\n{rules}")
    }

    /// Returns the state of the instance's configuration.
    fn state(&self) -> Value {
        let output = understudy(&["top", "--once", "--json", self.path("observe.sock").to_str().unwrap()]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let snapshot: Value = serde_json::from_slice(&output.stdout).unwrap();
        let tables = snapshot["tables"].as_array().unwrap();
        let table =
            tables.iter().find(|table| table["name"] == "config").expect("a table of the configuration");
        let row = &table["rows"][0];
        let columns = table["columns"].as_array().unwrap().iter().zip(row["cells"].as_array().unwrap());
        let counts = table["counts"].as_array().unwrap().iter().zip(row["counts"].as_array().unwrap());
        columns
            .chain(counts)
            .map(|(name, value)| (name.as_str().unwrap().to_owned(), value.clone()))
            .collect()
    }

    /// Returns the names of the rules.
    fn rules(&self) -> Vec<String> {
        let output = understudy(&["impair", "--json", self.path("observe.sock").to_str().unwrap()]);
        let state: Value = serde_json::from_slice(&output.stdout).unwrap();
        let rules = state["rules"].as_array().unwrap();
        rules.iter().map(|rule| rule["name"].as_str().unwrap().to_owned()).collect()
    }
}

fn wait_until(what: &str, mut is_done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_done() {
        assert!(began.elapsed() < DEADLINE, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_run_follows_what_can_change_and_names_what_needs_a_restart() {
    let (folder, server) = (Folder::new(), StandIn::start(KEY));
    server.put(Some(&folder.wire("", &["one"])));
    let machine = Machine::ready("run", Path::new(&server.address()));
    machine.wait_for(&format!("Read {}, revision 2.", server.address()), 1);
    let hash = folder.state()["hash"].clone();
    let now = |value: Option<&str>, words: &str| {
        let revision = server.put(value);
        machine.signal(Signal::HUP);
        machine.wait_for(&words.replace("REVISION", &revision.to_string()), 1);
        revision
    };

    let third = now(Some(&folder.wire("", &["one", "two"])), "(revision REVISION): rules one, two.");
    assert_eq!(folder.rules(), ["one", "two"]);
    let state = folder.state();
    assert_eq!((&state["revision"], &state["is_refused"]), (&json!(third.to_string()), &json!("0")));
    assert_ne!(state["hash"], hash);

    now(
        Some("[[port]]\nnome = \"a\"\n"),
        "(revision REVISION) is refused, and the run goes on as before: it is not valid:",
    );
    machine.wait_for("`nome`", 1);
    now(Some("[process]\nid = 1\n"), "(revision REVISION) is refused");
    now(
        None,
        &format!("(revision REVISION) is refused, and the run goes on as before: etcd has no key `{KEY}`"),
    );
    assert_eq!(folder.rules(), ["one", "two"]);
    let state = folder.state();
    assert_eq!((&state["refused"], &state["is_refused"]), (&json!(3), &json!("1")), "{state}");
    assert_eq!(state["revision"], third.to_string(), "{state}");

    let runtime = "control_queue = 64\n";
    now(Some(&folder.wire(runtime, &["three"])), "(revision REVISION): rules three.");
    machine.wait_for("`runtime.control_queue` takes effect when the instance is started again.", 1);
    assert_eq!(folder.rules(), ["three"]);
    let state = folder.state();
    assert_eq!((&state["needs_restart"], &state["is_refused"]), (&json!("1"), &json!("0")), "{state}");

    // Rules that were changed meanwhile stay until a version states others.
    let socket = folder.path("observe.sock");
    assert!(understudy(&["impair", socket.to_str().unwrap(), "remove", "three"]).status.success());
    now(Some(&(folder.wire("", &["three"]) + "# more\n")), "(revision REVISION): nothing has changed.");
    assert_eq!(folder.rules(), [""; 0]);
    assert_eq!(folder.state()["needs_restart"], "0");
    server.restore(&folder.wire("", &[]));
    machine.signal(Signal::HUP);
    machine.wait_for("etcd is another cluster now", 1);
    machine.wait_for("rules none.", 1);
    let report = machine.interrupt();
    assert!(!report["ports"].is_null(), "{report}");
}

#[test]
fn a_run_starts_without_etcd_if_it_has_a_cache() {
    let (folder, server) = (Folder::new(), StandIn::start(KEY));
    let (address, cache) = (server.address(), folder.path("cache.toml"));
    let run =
        |wait: &str, cache: &[&str]| understudy(&[&["run", &address, "--wait", wait][..], cache].concat());
    let with_cache = ["--cache", cache.to_str().unwrap()];

    let output = run("30", &[]);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    let remedy =
        format!("etcd has no key `{KEY}`; write it with `etcdctl --endpoints {} put {KEY}", server.server());
    assert!(error.contains(&remedy), "{error}");
    server.set_fault(Some(Fault::HasNoLeader));
    let error = text(&run("4", &with_cache).stderr);
    assert!(error.contains("within 4 s") && error.contains("etcdserver: no leader"), "{error}");
    assert!(error.contains(&format!("there is no {}", cache.display())), "{error}");
    server.set_fault(None);
    server.put(Some("[[port]\n"));
    let output = run("30", &[]);
    // The value may be valid at the next attempt, so it is not the exit code of a file with mistakes.
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    fs::write(&cache, "[[port]]\n").unwrap();
    let error = text(&run("30", &with_cache).stderr);
    assert!(error.contains("is not valid, in revision 2:") && error.contains("cache.toml"), "{error}");

    // An operator has written the file.
    fs::write(&cache, folder.wire("", &["cached"])).unwrap();
    let started = Instant::now();
    let machine = Machine::ready(&format!("run --wait 30 --cache {}", cache.display()), Path::new(&address));
    machine.wait_for(&format!("The run starts with the configuration in {}.", cache.display()), 1);
    assert_eq!(folder.rules(), ["cached"]);
    assert_eq!(folder.state()["is_refused"], "1");
    let revision = server.put(Some(&folder.wire("", &["new"])));
    machine.wait_for(&format!("(revision {revision}): rules new."), 1);
    wait_until("the new version is cached", || folder.state()["is_cached"] == "1");
    assert!(started.elapsed() > Duration::from_secs(10));
    let written = fs::read_to_string(&cache).unwrap();
    assert!(written.ends_with(&folder.wire("", &["new"])), "{written}");
    machine.kill();
    server.set_fault(Some(Fault::Closes));
    let machine = Machine::ready(&format!("run --wait 0.2 --cache {}", cache.display()), Path::new(&address));
    assert_eq!(folder.rules(), ["new"]);
    machine.interrupt();
}

#[test]
fn a_run_that_waits_for_etcd_can_be_ended() {
    let server = StandIn::start(KEY);
    server.set_fault(Some(Fault::IsSilent));
    for signals in [&[Signal::TERM][..], &[Signal::HUP, Signal::INT]] {
        let reads = server.reads();
        let machine = Machine::start("run --wait 3600", Path::new(&server.address()));
        wait_until("the first request", || server.reads() > reads);
        for signal in signals {
            machine.signal(*signal);
        }
        let (succeeded, report) = machine.end();
        assert!(succeeded && report.is_empty(), "{report}");
    }
}

#[test]
fn a_version_in_etcd_is_checked_as_a_file_is() {
    let (folder, server) = (Folder::new(), StandIn::start(KEY));
    let address = server.address();
    let check = |options: &[&str]| understudy(&[&["check", &address], options].concat());
    let output = check(&[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains(&format!("etcd has no key `{KEY}`")));
    server.set_fault(Some(Fault::Closes));
    server.put(Some(&folder.wire("", &["one"])));
    let output = check(&["--json"]);
    server.set_fault(None);
    let errors: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(output.status.code() == Some(1) && errors["ok"] == false, "{errors}");
    let output = check(&[]);
    assert!(output.status.success() && text(&output.stdout).contains(&format!("{address} is valid.")));
    server.put(Some(&folder.wire("workers = []\n", &[])));
    let output = check(&["--json"]);
    assert_eq!(output.status.code(), Some(2));
    let errors: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(errors["errors"][0]["line"], 2, "{errors}");
    for (arguments, code, words) in [
        (&["run", "etcd://127.0.0.1"][..], 2, "has no key"),
        (&["run", "a.toml", "--wait", "1"], 2, "is a file"),
        (&["pktgen", &address], 1, "workers"),
        (&["top", "--once", &address], 2, "name its socket"),
    ] {
        let output = understudy(arguments);
        let error = text(&output.stderr);
        assert!(output.status.code() == Some(code) && error.contains(words), "{arguments:?}: {error}");
    }
}

#[test]
fn rates_and_layers_follow_as_rules_do() {
    let (folder, server) = (Folder::new(), StandIn::start(KEY));
    let generator = |rate: u32, size: u32| {
        let stream = "[[pktgen.stream]]\nname = \"writes\"\nverb = \"write\"\nsrc = \"10.0.0.1\"\ndst = \"10.0.0.2\"\n";
        format!(
            "{RING}[pktgen]\nsend = \"a\"\nreceive = \"a\"\ncatch_up_ms = 10_000\n{stream}size = {size}\nrate = {{ packets_per_s = {rate} }}\n"
        )
    };
    let journal = folder.path("journal").display().to_string();
    let switch = |layers: &str| {
        format!(
            "{RING}[swordbox]\npairs = [[\"a\", \"a\"]]\njournal = {journal:?}\nlayers = [{layers}]\n[[swordbox.server]]\nhost = \"10.0.0.9\"\n"
        )
    };
    for (command, first, second, words) in [
        ("pktgen", generator(100, 64), generator(250, 64), "rates 250pps of `writes`."),
        ("run", switch(""), switch("\"remap\""), "layers remap."),
    ] {
        server.put(Some(&first));
        let machine = Machine::ready(command, Path::new(&server.address()));
        server.put(Some(&second));
        machine.signal(Signal::HUP);
        machine.wait_for(words, 1);
        machine.signal(Signal::INT);
        machine.end();
    }
    server.put(Some(&generator(100, 64)));
    let machine = Machine::ready("pktgen", Path::new(&server.address()));
    server.put(Some(&generator(250, 128)));
    machine.signal(Signal::HUP);
    let keys = "`pktgen.stream.writes.size` and `pktgen.stream.writes.rate.packets_per_s` take effect";
    machine.wait_for(keys, 1);
}

/// Sends a request to a server of etcd, until it succeeds.
fn put(url: &str, value: &str) {
    let encode = |text: &str| {
        use base64::Engine as _;
        base64::engine::general_purpose::STANDARD.encode(text)
    };
    let body = json!({ "key": encode(KEY), "value": encode(value) }).to_string();
    wait_until("etcd stores the value", || {
        let timeout = Some(Duration::from_secs(2));
        let request = ureq::post(format!("{url}/v3/kv/put")).config().timeout_global(timeout).build();
        request.content_type("application/json").send(&body).is_ok()
    });
}

/// Servers of etcd are killed and suspended in turn, and the last value is in effect within seconds.
#[test]
fn a_run_follows_while_servers_of_etcd_fail() {
    let Some(mut etcd) = Etcd::start(3) else { return };
    let folder = Folder::new();
    put(&etcd.urls()[0], &folder.wire("", &["first"]));
    let servers: Vec<_> = (0..3).map(|server| format!("127.0.0.1:{}", etcd.port(server))).collect();
    let address = format!("etcd://{}{KEY}", servers.join(","));
    let machine = Machine::ready("run", Path::new(&address));
    for (step, server) in [0, 1, 2, 0].into_iter().enumerate() {
        let is_killed = step % 2 == 0;
        if is_killed {
            etcd.kill(server);
        } else {
            etcd.server(server).signal(Signal::STOP);
        }
        let name = format!("step-{step}");
        put(&etcd.urls()[(server + 1) % 3], &folder.wire("", &[&name]));
        machine.wait_for(&format!("rules {name}."), 1);
        if is_killed {
            etcd.restart(server);
        } else {
            etcd.server(server).signal(Signal::CONT);
        }
    }
    // Without a majority nothing changes.
    let count = |words: &str| machine.printed().matches(words).count();
    let answers = "etcd answers again.";
    wait_until("the last fault is over", || count(answers) == count("Cannot read etcd://"));
    let faults = count(answers);
    etcd.kill(0);
    etcd.kill(1);
    machine.wait_for("Cannot read etcd://", faults + 1);
    assert_eq!(folder.rules(), ["step-3"]);
    etcd.restart(0);
    machine.wait_for(answers, faults + 1);
    put(&etcd.urls()[2], &folder.wire("", &["last"]));
    machine.wait_for("rules last.", 1);
    machine.interrupt();
}
