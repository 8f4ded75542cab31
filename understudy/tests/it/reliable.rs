//! 1Pipe's reliable service by its programs: a controller, a switch and three processes, joined by memif.

use crate::commands::understudy;
use crate::common::json_page::assert_is_on_the_page;
use crate::controller::{Files, Running, states};
use onepipe::Timestamp;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::net::SocketAddr;
use std::time::Duration;
use understudy_tests::processes::{Process, Signal, command};

const PROCESSES: u32 = 3;
/// Intervals of 1 ms after which a silent link is dead: a process that shares its CPU may be silent for a while
const DEAD_AFTER: u32 = 3_000;
/// Time in which a node has to answer, which the machine's other work must not exceed
const RESPOND_WITHIN_MS: u32 = 60_000;

/// Programs of a rack.
struct Rack {
    files: Files,
    controller: Option<Running>,
    at: SocketAddr,
    processes: BTreeMap<u32, Process>,
    switch: Process,
}

/// Lines that a process has printed.
#[derive(Default)]
pub(crate) struct Printed {
    /// Timestamp, sender and number of each message, in their order
    pub(crate) messages: Vec<(u64, u32, u64)>,
    /// Scatterings that failed, with the reasons
    pub(crate) failed: BTreeMap<u64, BTreeSet<String>>,
    /// Failed processes with their timestamps
    pub(crate) processes_failed: Vec<(u32, u64)>,
}

impl Printed {
    /// Parses the complete lines.
    pub(crate) fn parse(text: &str) -> Self {
        let mut printed = Self::default();
        for line in text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
            let words: Vec<_> = line.split(' ').collect();
            match words[..] {
                ["process_failed", id, time] => {
                    printed.processes_failed.push((id.parse().unwrap(), time.parse().unwrap()));
                }
                ["failed", number, _, why] => {
                    printed.failed.entry(number.parse().unwrap()).or_default().insert(why.to_owned());
                }
                [time, src, number, _] => {
                    printed.messages.push((
                        time.parse().unwrap(),
                        src.parse().unwrap(),
                        number.parse().unwrap(),
                    ));
                }
                _ => panic!("{line:?}"),
            }
        }
        printed
    }

    /// Returns the numbers of a sender's messages later than this time.
    pub(crate) fn numbers(&self, sender: u32, after: u64) -> Vec<u64> {
        let of_sender = self.messages.iter().filter(|(time, src, _)| *src == sender && *time > after);
        of_sender.map(|(.., number)| *number).collect()
    }
}

/// Returns the keys of any node's `[controller]`.
fn controller_keys(at: SocketAddr, topology: &str) -> String {
    format!("[controller]\naddresses = [\"{at}\"]\nsecret_file = \"secret\"\ntopology = \"{topology}\"\n")
}

fn switch_file(at: SocketAddr, topology: &str) -> String {
    let (mut ports, mut links) = (String::new(), String::new());
    for n in 1..=PROCESSES {
        _ = write!(
            ports,
            "[[port]]\nname = \"p{n}\"\nmemif = {{ socket = \"rack.sock\", id = {n}, role = \"server\" }}\n"
        );
        _ = write!(
            links,
            "[[onepipe.links]]\nside = \"below\"\nport = \"p{n}\"\nmac = \"02:00:00:00:00:0{n}\"\n\
             address = \"10.0.0.{n}\"\nqpn = 0x11\n"
        );
    }
    format!(
        "[runtime]\nworkers = [\"any\"]\nidle = \"sleep\"\n{ports}\
         [onepipe]\nincarnation = \"chip\"\naddresses = [\"10.0.0.254/24\"]\nmac = \"02:00:00:00:00:fe\"\n\
         beacon_interval_ns = 1000000\ndead_after_intervals = {DEAD_AFTER}\nahead_max_us = 1000000\n\
         {links}{}switch = 0\nfail_after_intervals = {DEAD_AFTER}\n",
        controller_keys(at, topology)
    )
}

fn process_file(own: u32, at: SocketAddr, topology: &str) -> String {
    let mut text = format!(
        "[runtime]\nworkers = [\"any\"]\nidle = \"sleep\"\n\
         [[port]]\nname = \"eth\"\nmemif = {{ socket = \"rack.sock\", id = {own}, role = \"client\" }}\n\
         [process]\nid = {own}\naddress = \"10.0.0.{own}/24\"\nmac = \"02:00:00:00:00:0{own}\"\n\
         beacon_interval_ns = 1000000\nahead_max_us = 1000000\nclock_error_us = 0\ntimeout_us = 1000000\n\
         [[process.beacons]]\nmac = \"02:00:00:00:00:fe\"\naddress = \"10.0.0.254\"\nqpn = {}\n",
        0x100 + own - 1
    );
    for n in (1..=PROCESSES).filter(|&n| n != own) {
        _ = write!(
            text,
            "[[process.peers]]\nid = {n}\nmac = \"02:00:00:00:00:0{n}\"\naddress = \"10.0.0.{n}\"\n"
        );
    }
    // The switch reports the link of a process that is killed.
    text + &controller_keys(at, topology) + "fail_after_intervals = 1000000\n"
}

impl Rack {
    fn start(options: &[&str]) -> Self {
        let files = Files::new(RESPOND_WITHIN_MS);
        let controller = files.start();
        let at = controller.address;
        let status = files.wait(at, "the controller leads", |status| status["term"] == 1);
        let topology = status["network"].as_str().unwrap();
        let start = |name: &str, content: String, arguments: &[&str]| {
            let config = files.path(&format!("{name}.toml"));
            fs::write(&config, content).unwrap();
            let mut program = command(env!("CARGO_BIN_EXE_understudy"));
            program.args(arguments).arg(config);
            program.stdout(File::create(files.path(&format!("{name}.out"))).unwrap());
            program.stderr(File::create(files.path(&format!("{name}.err"))).unwrap());
            Process::start(program)
        };
        let switch = start("switch", switch_file(at, topology), &["run", "--json"]);
        let processes = (1..=PROCESSES).map(|n| {
            let report = files.path(&format!("{n}.report"));
            let reports = ["--print", "--json", "--live", "0.05", "--report", &report];
            let arguments = [&["process", "--reliable"], options, &reports].concat();
            (n, start(&n.to_string(), process_file(n, at, topology), &arguments))
        });
        let processes = processes.collect();
        Self { files, controller: Some(controller), at, processes, switch }
    }

    fn read(&self, name: &str) -> String {
        String::from_utf8_lossy(&fs::read(self.files.path(name)).unwrap()).into_owned()
    }

    fn printed(&self, id: u32) -> Printed {
        Printed::parse(&self.read(&format!("{id}.out")))
    }

    /// Returns everything that the programs have logged and reported, for the message of a test that fails.
    fn logs(&self) -> String {
        let mut text = String::new();
        for name in ["switch", "1", "2", "3"] {
            _ = writeln!(text, "-- {name}\n{}", self.read(&format!("{name}.err")));
        }
        for id in 1..=PROCESSES {
            let report = self.read(&format!("{id}.report"));
            _ = writeln!(text, "-- report of {id}: {}", report.lines().last().unwrap_or_default());
        }
        text
    }

    /// Waits until each of these processes has printed what is wanted.
    fn wait(&self, what: &str, ids: &[u32], is: impl Fn(&Printed) -> bool) {
        for _ in 0..1_200 {
            if ids.iter().all(|&id| is(&self.printed(id))) {
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        let status = if self.controller.is_some() { self.files.status(self.at) } else { Value::Null };
        panic!("{what}: {status:#}\n{}", self.logs());
    }

    fn kill(&mut self, id: u32) {
        let process = self.processes.remove(&id).unwrap();
        process.signal(Signal::KILL);
        drop(process.finish());
    }

    /// Ends a process by Ctrl-C. Returns what it has printed, and its report.
    fn interrupt(&mut self, id: u32) -> (Printed, Value) {
        let process = self.processes.remove(&id).unwrap();
        process.signal(Signal::INT);
        self.collect(id, process)
    }

    fn kill_controller(&mut self) {
        let controller = self.controller.take().unwrap();
        controller.process.signal(Signal::KILL);
        drop(controller.process.finish());
    }

    /// Ends the processes. Returns what each has printed, and its report.
    fn finish(&mut self) -> BTreeMap<u32, (Printed, Value)> {
        let processes = std::mem::take(&mut self.processes);
        for process in processes.values() {
            process.signal(Signal::TERM);
        }
        let mut all = BTreeMap::new();
        for (id, process) in processes {
            all.insert(id, self.collect(id, process));
        }
        self.switch.signal(Signal::TERM);
        all
    }

    /// Waits for a process that ends. Returns what it has printed, and its report.
    fn collect(&self, id: u32, process: Process) -> (Printed, Value) {
        let output = process.finish();
        assert!(output.status.success(), "process {id}: {:?}\n{}", output.status, self.logs());
        let report = self.read(&format!("{id}.report"));
        let report: Value = serde_json::from_str(report.lines().last().unwrap()).unwrap();
        assert_is_on_the_page(
            "Closing report of `understudy process --json`, and its lines of `--live`",
            &report,
        );
        assert_eq!(report["out_of_order"], 0, "{report}");
        (self.printed(id), report)
    }
}

#[test]
fn all_processes_deliver_all_scatterings_in_one_order() {
    const SCATTERINGS: u32 = 200;
    let mut rack = Rack::start(&["--send", &SCATTERINGS.to_string()]);
    let all = (PROCESSES * SCATTERINGS) as usize;
    rack.wait("all messages", &[1, 2, 3], |printed| printed.messages.len() >= all);
    let finished = rack.finish();
    let (first, _) = &finished[&1];
    for sender in 1..=PROCESSES {
        assert_eq!(first.numbers(sender, 0), (0..SCATTERINGS.into()).collect::<Vec<_>>());
    }
    for (printed, report) in finished.values() {
        assert_eq!(printed.messages, first.messages);
        assert!(printed.failed.is_empty(), "{:?}", printed.failed);
        let reliable = &report["reliable"];
        assert_eq!(
            (&reliable["admissions"], &reliable["exclusions"], &reliable["settled"]),
            (&1.into(), &0.into(), &SCATTERINGS.into()),
            "{report}"
        );
    }
}

#[test]
fn survivors_agree_about_a_killed_process_and_go_on() {
    let mut rack = Rack::start(&["--send", "1000000", "--rate", "100"]);
    let from_all = |printed: &Printed| (1..=PROCESSES).all(|id| printed.numbers(id, 0).len() >= 50);
    rack.wait("messages of all", &[1, 2, 3], from_all);
    rack.kill(2);
    // It is decided by the controller that starts again.
    rack.kill_controller();
    rack.controller = Some(rack.files.start());
    rack.files.wait(rack.at, "the controller leads again", |status| status["term"] == 2);
    rack.wait("the failure", &[1, 3], |printed| !printed.processes_failed.is_empty());
    let status = rack
        .files
        .wait(rack.at, "the case is closed", |status| status["cases"].as_array().unwrap().is_empty());
    assert_eq!(states(&status), ["member", "failed", "member"], "{status}");
    rack.wait("messages after the failure", &[1, 3], |printed| {
        let (_, time) = printed.processes_failed[0];
        [1, 3].into_iter().all(|id| printed.numbers(id, time).len() >= 50)
    });
    let killed = rack.printed(2);
    let finished = rack.finish();
    let [(one, _), (three, _)] = [&finished[&1], &finished[&3]];
    // The controller counts from the epoch, processes in 48 bits.
    let time = Timestamp::new(status["members"][1]["time_ns"].as_u64().unwrap()).nanos();
    for printed in [one, three] {
        // One that ends later may get the failure of the one that has ended.
        assert_eq!(printed.processes_failed[0], (2, time));
        assert_eq!(printed.processes_failed.iter().filter(|(id, _)| *id == 2).count(), 1);
        assert!(printed.numbers(2, time).is_empty(), "messages above T_P");
        // What the killed process has delivered, all have.
        assert_eq!(printed.messages[..killed.messages.len()], killed.messages);
    }
    let common = one.messages.len().min(three.messages.len());
    assert_eq!(one.messages[..common], three.messages[..common]);
    assert_eq!(one.numbers(2, 0), three.numbers(2, 0));
    // All or none: what a survivor has sent is delivered or has failed.
    for (sender, printed) in [(1, one), (3, three)] {
        let delivered: BTreeSet<_> = one.numbers(sender, 0).into_iter().collect();
        assert!(delivered.iter().all(|number| !printed.failed.contains_key(number)));
        let last = *delivered.last().unwrap();
        assert!((0..=last).all(|number| delivered.contains(&number) || printed.failed.contains_key(&number)));
        let reasons: BTreeSet<_> = printed.failed.values().flatten().map(String::as_str).collect();
        let expected = ["left", "not_admitted", "receiver_failed", "recalled"];
        assert!(reasons.iter().all(|reason| expected.contains(reason)), "{reasons:?}");
    }
}

#[test]
fn a_process_that_ends_leaves_without_a_failure() {
    let mut rack = Rack::start(&["--send", "1000000", "--rate", "100"]);
    let from_all = |printed: &Printed| (1..=PROCESSES).all(|id| printed.numbers(id, 0).len() >= 50);
    rack.wait("messages of all", &[1, 2, 3], from_all);
    let (left, report) = rack.interrupt(2);
    let status = rack.files.status(rack.at);
    assert_eq!(states(&status), ["member", "left", "member"], "{status}\n{}", rack.logs());
    assert_eq!((&status["failed"], &status["silent"]), (&0.into(), &Value::Array(Vec::new())), "{status}");
    assert_eq!(report["reliable"]["exclusions"], 0, "{report}");
    let (time, ..) = *left.messages.last().unwrap();
    rack.wait("messages after it has left", &[1, 3], |printed| {
        [1, 3].into_iter().all(|id| printed.numbers(id, time).len() >= 50)
    });
    let status = rack.files.status(rack.at);
    assert_eq!(states(&status), ["member", "left", "member"], "{status}");
    assert!(status["cases"].as_array().unwrap().is_empty() && status["failed"] == 0, "{status}");
    let finished = rack.finish();
    let [(one, _), (three, _)] = [&finished[&1], &finished[&3]];
    for printed in [one, three] {
        assert_eq!(printed.processes_failed, []);
        // All that it has sent and delivered, the others have delivered, too.
        assert_eq!(printed.numbers(2, 0), left.numbers(2, 0));
        let to_all: BTreeSet<_> = left.messages.iter().collect();
        assert!(to_all.is_subset(&printed.messages.iter().collect()));
        let reasons: BTreeSet<_> = printed.failed.values().flatten().map(String::as_str).collect();
        assert!(reasons.iter().all(|reason| ["left", "not_admitted"].contains(reason)), "{reasons:?}");
    }
}

#[test]
fn reliable_without_a_controller_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("1.toml");
    let text = process_file(1, "127.0.0.1:7070".parse().unwrap(), "00c0ffee00c0ffee");
    let (without, _) = text.split_once("[controller]").unwrap();
    fs::write(&path, without).unwrap();
    let output = understudy(&["process", "--reliable", path.to_str().unwrap()]);
    let printed = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{printed}");
    assert!(printed.contains("has no [controller]"), "{printed}");
}
