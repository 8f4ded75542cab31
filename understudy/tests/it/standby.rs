//! Switches with a standby, by the programs of a plan: two racks below a spine, whose switches are bridges. Each
//! switch has two representatives, which are killed in turn, or leave. Everything is joined by memif.

use crate::commands::{text, understudy};
use crate::common::json_page::assert_is_on_the_page;
use crate::reliable::Printed;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::Output;
use std::time::Duration;
use understudy_tests::processes::{Process, Signal, command};

/// Hosts with their switches: first those that send messages, then both representatives of each switch
const HOSTS: [(&str, &str); 9] = [
    ("a", "t1"),
    ("b", "t1"),
    ("c", "t2"),
    ("r1", "t1"),
    ("q1", "t1"),
    ("r2", "t2"),
    ("q2", "t2"),
    ("r3", "s"),
    ("q3", "s"),
];
/// Number of the hosts that send messages
const PROCESSES: usize = 3;
/// Switches with their representatives
const SWITCHES: [(&str, [&str; 2]); 3] = [("t1", ["r1", "q1"]), ("t2", ["r2", "q2"]), ("s", ["r3", "q3"])];
/// Links to the spine
const UPLINKS: [&str; 2] = ["t1", "t2"];
/// Intervals of 1 ms after which a silent link is dead: a program that shares its CPU may be silent for a while
const DEAD_AFTER: u64 = 3_000;
/// Messages of each process in a second
const RATE: u64 = 40;
/// Time in which a node has to answer the controller, which the machine's other work must not exceed
const RESPOND_WITHIN_MS: u32 = 5_000;

/// Programs of a network.
struct Network {
    folder: tempfile::TempDir,
    running: BTreeMap<String, Process>,
    /// Where the controller is, if there is one
    controller: Option<SocketAddr>,
}

fn topology(controller: Option<SocketAddr>) -> String {
    let mut text = format!(
        "[topology]\nbeacon_interval_ns = 1000000\ndead_after_intervals = {DEAD_AFTER}\nidle = \"sleep\"\n\
         ahead_max_us = 1000000\nclock_error_us = 0\ntimeout_us = 10000000\n"
    );
    for (switch, [representative, standby]) in SWITCHES {
        _ = write!(
            text,
            "[[switch]]\nname = \"{switch}\"\nrepresentative = \"{representative}\"\nstandby = \"{standby}\"\n"
        );
    }
    for (n, (host, switch)) in (1..).zip(HOSTS) {
        let sends = if n <= PROCESSES { format!("id = {n}") } else { "messages = false".into() };
        _ = write!(
            text,
            "[[host]]\nname = \"{host}\"\naddress = \"10.0.0.{n}/24\"\nmac = \"02:00:00:00:00:0{n}\"\nswitch = \
             \"{switch}\"\n{sends}\n"
        );
    }
    for tor in UPLINKS {
        _ = write!(text, "[[link]]\nends = [\"{tor}\", \"s\"]\n");
    }
    if let Some(at) = controller {
        _ = write!(
            text,
            "[controller]\nlisten = \"{at}\"\nfail_after_intervals = {DEAD_AFTER}\nrespond_within_ms = \
             {RESPOND_WITHIN_MS}\n"
        );
    }
    text
}

/// Returns a switch, as a bridge that forwards between its hosts and its links to other switches.
fn bridge(switch: &str) -> String {
    let mut text = String::from("[runtime]\nworkers = [\"any\"]\nidle = \"sleep\"\n");
    let mut port = |name: &str, at: &str, id: usize, role: &str| {
        let memif = format!("{{ socket = \"{at}.sock\", id = {id}, role = \"{role}\" }}");
        _ = write!(text, "[[port]]\nname = \"{name}\"\nmemif = {memif}\n");
    };
    for (id, (host, _)) in HOSTS.iter().enumerate().filter(|(_, (_, at))| *at == switch) {
        port(host, switch, id, "server");
    }
    for (id, tor) in (HOSTS.len()..).zip(UPLINKS) {
        match switch {
            "s" => port(tor, "s", id, "server"),
            _ if switch == tor => port("s", "s", id, "client"),
            _ => {}
        }
    }
    text + "[forward]\nmac_table = {}\n"
}

impl Network {
    /// Plans the network, and starts its programs: representatives last, so that they wait for no other one.
    fn start(controller: Option<SocketAddr>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut network = Self { folder, running: BTreeMap::new(), controller };
        let (path, plan) = (network.path("topology.toml"), network.path("plan"));
        fs::write(&path, topology(controller)).unwrap();
        let output = understudy(&["plan", path.to_str().unwrap(), "--out", plan.to_str().unwrap()]);
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{printed}{}", String::from_utf8_lossy(&output.stderr));
        assert!(printed.contains("No beacons need a detour."), "{printed}");
        if controller.is_some() {
            let planned = network.path("plan/controller.toml");
            let checked = understudy(&["check", planned.to_str().unwrap()]);
            assert!(checked.status.success(), "{}", text(&checked.stderr));
            network.run("controller", fs::read_to_string(planned).unwrap(), &["controller"]);
        }
        let rate = RATE.to_string();
        for (switch, _) in SWITCHES {
            network.run(switch, bridge(switch), &["run", "--json"]);
        }
        for (host, _) in &HOSTS[..PROCESSES] {
            let report = network.path(&format!("{host}.report"));
            let report = report.to_str().unwrap();
            let sends = ["--send", "1000000", "--rate", &rate, "--print", "--json", "--report", report];
            let planned = network.planned(&format!("{host}.process.toml"), host);
            let process: &[_] = if controller.is_some() { &["process", "--reliable"] } else { &["process"] };
            network.run(host, planned, &[process, &sends[..]].concat());
        }
        for (switch, [representative, standby]) in SWITCHES {
            network.start_representative(switch, representative, "representative");
            network.start_representative(switch, standby, "standby");
        }
        network
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns a file of the plan with a memif port in place of the host's network interface.
    fn planned(&self, file: &str, host: &str) -> String {
        let path = self.path("plan").join(file);
        let checked = understudy(&["check", path.to_str().unwrap()]);
        assert!(checked.status.success(), "{file}: {}", String::from_utf8_lossy(&checked.stderr));
        let id = HOSTS.iter().position(|(other, _)| *other == host).unwrap();
        let port = format!("memif = {{ socket = \"{}.sock\", id = {id}, role = \"client\" }}", HOSTS[id].1);
        let text = fs::read_to_string(path).unwrap();
        let line = "af_packet = { interface = \"eth0\" }";
        assert!(text.contains(line), "{text}");
        text.replace(line, &port)
    }

    fn run(&mut self, name: &str, content: String, arguments: &[&str]) {
        let config = self.path(&format!("{name}.toml"));
        fs::write(&config, content).unwrap();
        let mut program = command(env!("CARGO_BIN_EXE_understudy"));
        program.args(arguments).arg(config);
        program.stdout(File::create(self.path(&format!("{name}.out"))).unwrap());
        program.stderr(File::create(self.path(&format!("{name}.err"))).unwrap());
        self.running.insert(name.into(), Process::start(program));
    }

    fn start_representative(&mut self, switch: &str, host: &str, kind: &str) {
        let planned = self.planned(&format!("{switch}.{kind}.toml"), host);
        self.run(host, planned, &["run", "--json", "--live", "0.1"]);
    }

    fn read(&self, name: &str) -> String {
        String::from_utf8_lossy(&fs::read(self.path(name)).unwrap()).into_owned()
    }

    fn printed(&self, process: usize) -> Printed {
        Printed::parse(&self.read(&format!("{}.out", HOSTS[process].0)))
    }

    /// Returns the number of messages of each sender at each process, the fewest.
    fn delivered(&self) -> usize {
        let of = |printed: &Printed| (1..=PROCESSES as u32).map(|id| printed.numbers(id, 0).len()).min();
        (0..PROCESSES).filter_map(|process| of(&self.printed(process))).min().unwrap()
    }

    fn logs(&self) -> String {
        let mut text = String::new();
        let switches = SWITCHES.iter().map(|(name, _)| name);
        let programs = switches.chain(HOSTS.iter().map(|(name, _)| name));
        let controller = self.controller.map(|_| &"controller");
        for name in programs.chain(controller) {
            _ = writeln!(text, "-- {name}\n{}", self.read(&format!("{name}.err")));
        }
        text
    }

    fn wait(&self, what: &str, is: impl Fn(&Self) -> bool) {
        // Each look parses all that processes have printed.
        for _ in 0..400 {
            if is(self) {
                return;
            }
            std::thread::sleep(Duration::from_millis(300));
        }
        panic!("{what}\n{}", self.logs());
    }

    /// Waits until all processes have delivered messages for longer than a silent link lives.
    fn wait_until_it_goes_on(&self, what: &str) {
        let messages = self.delivered() + (RATE * (DEAD_AFTER / 1_000 + 1)) as usize;
        self.wait(what, |network| network.delivered() >= messages);
    }

    fn kill(&mut self, host: &str) {
        let process = self.running.remove(host).unwrap();
        process.signal(Signal::KILL);
        drop(process.finish());
    }

    /// Returns the output of `understudy controller`, with these arguments.
    fn ask(&self, action: &[&str]) -> Output {
        let at = self.controller.unwrap().to_string();
        understudy(&[&["controller"], action, &["--at", &at, "--json"]].concat())
    }

    /// Waits until the controller's state is as expected.
    fn wait_for_status(&self, what: &str, is: impl Fn(&Value) -> bool) -> Value {
        let status = || serde_json::from_slice(&self.ask(&["status"]).stdout).ok();
        self.wait(what, |_| status().is_some_and(|status| is(&status)));
        status().unwrap()
    }

    /// Waits until both representatives of each switch serve.
    fn wait_for_both(&self) {
        self.wait_for_status("both representatives of each switch serve", |status| {
            let reps = status["representatives"].as_array().unwrap();
            let active = reps.iter().filter(|rep| rep["state"] == "active" && rep["connected"] == true);
            active.count() == 2 * SWITCHES.len()
        });
    }

    /// Returns a representative's last report.
    fn report(&self, host: &str) -> Option<Value> {
        self.read(&format!("{host}.out")).lines().rev().find_map(|line| serde_json::from_str(line).ok())
    }

    /// Checks that all processes have delivered all messages in one order, and that no process has failed.
    fn check_messages(&self) {
        let printed: Vec<_> = (0..PROCESSES).map(|process| self.printed(process)).collect();
        let common = printed.iter().map(|printed| printed.messages.len()).min().unwrap();
        for of in &printed {
            // What is sent before all have joined has failed.
            let mut reasons = of.failed.values().flatten();
            let is_early = |why: &String| self.controller.is_some() && why == "not_admitted";
            assert!(reasons.all(is_early), "{:?}\n{}", of.failed, self.logs());
            assert_eq!(of.processes_failed, [], "{}", self.logs());
            assert_eq!(of.messages[..common], printed[0].messages[..common]);
            for sender in 1..=PROCESSES as u32 {
                let numbers = of.numbers(sender, 0);
                let first = numbers.first().copied().unwrap_or_default();
                let all = first..first + numbers.len() as u64;
                assert!(first == 0 || self.controller.is_some(), "no message is missing");
                assert_eq!(numbers, all.collect::<Vec<_>>(), "no message is missing");
            }
        }
    }

    /// Waits until a representative has caught up with what processes have delivered by now.
    fn wait_for_barriers(&self, host: &str) {
        let delivered = self.printed(0).messages.last().unwrap().0;
        self.wait("the representative has caught up", |network| {
            network.report(host).is_some_and(|report| {
                let barrier = report["onepipe"]["below"]["best_effort_ns"].as_u64();
                barrier.is_some_and(|barrier| barrier > delivered)
            })
        });
    }
}

#[test]
fn representatives_are_killed_in_turn_and_nothing_else_ends() {
    let mut network = Network::start(None);
    network.wait("messages of all", |network| network.delivered() >= 50);
    for (switch, host) in [("t1", "r1"), ("s", "q3")] {
        let (_, [representative, standby]) = SWITCHES.into_iter().find(|(name, _)| *name == switch).unwrap();
        let (other, kind) =
            if host == representative { (standby, "representative") } else { (representative, "standby") };
        network.kill(host);
        network.wait_until_it_goes_on(&format!("messages without {host}"));
        network.start_representative(switch, host, kind);
        network.wait_for_barriers(host);
        network.kill(other);
        network.wait_until_it_goes_on(&format!("messages without {other}"));
    }
    network.check_messages();
    for (host, _) in &HOSTS[PROCESSES..] {
        let log = network.read(&format!("{host}.err"));
        assert!(!log.contains("is dead") && !log.contains("evicted"), "{host}: {log}");
    }
}

/// Returns an address of this machine that is free.
fn free_address() -> SocketAddr {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap()
}

#[test]
fn a_representative_is_killed_and_one_leaves_and_no_process_fails() {
    let mut network = Network::start(Some(free_address()));
    network.wait("messages of all", |network| network.delivered() >= 50);
    network.wait_for_both();
    network.kill("r1");
    network.wait_until_it_goes_on("messages without r1");
    network.start_representative("t1", "r1", "representative");
    network.wait_for_both();
    // The older one leaves.
    let drained = network.ask(&["drain", "0"]);
    assert!(drained.status.success(), "{}\n{}", text(&drained.stderr), network.logs());
    let drained: Value = serde_json::from_slice(&drained.stdout).unwrap();
    assert_is_on_the_page("`understudy controller drain --json`", &drained);
    assert_eq!(drained["switch"], 0, "{drained}");
    let ended = network.running.remove("q1").unwrap().finish();
    assert!(ended.status.success(), "{:?}\n{}", ended.status, network.logs());
    let log = network.read("q1.err");
    assert_eq!(log.matches("The controller has retired this representative").count(), 1, "{log}");
    network.wait_until_it_goes_on("messages without q1");
    let status = network.wait_for_status("the leader answers", |status| status["term"] == 1);
    let of_tor = |rep: &&Value| rep["switch"] == 0;
    let reps: Vec<_> = status["representatives"].as_array().unwrap().iter().filter(of_tor).collect();
    let present = reps.iter().map(|rep| (rep["seat"].as_u64(), rep["state"].as_str()));
    let expected = [(Some(0), Some("active")), (Some(1), Some("retired"))];
    assert_eq!(present.collect::<Vec<_>>(), expected, "{status}");
    assert_eq!(status["failed"], 0, "{status}");
    // It starts again, as a new version would.
    network.start_representative("t1", "q1", "standby");
    network.wait_for_both();
    network.check_messages();
    let unknown = network.ask(&["drain", "7"]);
    let why = text(&unknown.stderr);
    assert!(!unknown.status.success() && why.contains("switch 7 has no representative"), "{why}");
}
