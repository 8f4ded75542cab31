//! Switches with a standby, by the programs of a plan: two racks below a spine, whose switches are bridges. Each
//! switch has two representatives, which are killed in turn. Everything is joined by memif.

use crate::commands::understudy;
use crate::reliable::Printed;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::PathBuf;
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
const DEAD_AFTER: u64 = 5_000;
/// Messages of each process in a second
const RATE: u64 = 40;

/// Programs of a network.
struct Network {
    folder: tempfile::TempDir,
    running: BTreeMap<String, Process>,
}

fn topology() -> String {
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
    fn start() -> Self {
        let mut network = Self { folder: tempfile::tempdir().unwrap(), running: BTreeMap::new() };
        let (path, plan) = (network.path("topology.toml"), network.path("plan"));
        fs::write(&path, topology()).unwrap();
        let output = understudy(&["plan", path.to_str().unwrap(), "--out", plan.to_str().unwrap()]);
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{printed}{}", String::from_utf8_lossy(&output.stderr));
        assert!(printed.contains("No beacons need a detour."), "{printed}");
        let rate = RATE.to_string();
        for (switch, _) in SWITCHES {
            network.run(switch, bridge(switch), &["run", "--json"]);
        }
        for (host, _) in &HOSTS[..PROCESSES] {
            let report = network.path(&format!("{host}.report"));
            let report = report.to_str().unwrap();
            let sends = ["--send", "1000000", "--rate", &rate, "--print", "--json", "--report", report];
            let planned = network.planned(&format!("{host}.process.toml"), host);
            network.run(host, planned, &[&["process"], &sends[..]].concat());
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
        for name in SWITCHES.iter().map(|(name, _)| name).chain(HOSTS.iter().map(|(name, _)| name)) {
            _ = writeln!(text, "-- {name}\n{}", self.read(&format!("{name}.err")));
        }
        text
    }

    fn wait(&self, what: &str, is: impl Fn(&Self) -> bool) {
        for _ in 0..1_200 {
            if is(self) {
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
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

    /// Returns a representative's last report.
    fn report(&self, host: &str) -> Option<Value> {
        self.read(&format!("{host}.out")).lines().rev().find_map(|line| serde_json::from_str(line).ok())
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
    let mut network = Network::start();
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
    let printed: Vec<_> = (0..PROCESSES).map(|process| network.printed(process)).collect();
    let common = printed.iter().map(|printed| printed.messages.len()).min().unwrap();
    for of in &printed {
        assert!(of.failed.is_empty(), "{:?}\n{}", of.failed, network.logs());
        assert_eq!(of.messages[..common], printed[0].messages[..common]);
        for sender in 1..=PROCESSES as u32 {
            let numbers = of.numbers(sender, 0);
            assert_eq!(numbers, (0..numbers.len() as u64).collect::<Vec<_>>(), "no message is missing");
        }
    }
    for (host, _) in &HOSTS[PROCESSES..] {
        let log = network.read(&format!("{host}.err"));
        assert!(!log.contains("is dead") && !log.contains("evicted"), "{host}: {log}");
    }
}
