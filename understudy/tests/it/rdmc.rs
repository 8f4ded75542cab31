//! File transfers to several hosts: processes at a bridge, joined by memif.

use crate::common::json_page::{assert_is_on_the_page, assert_report_is_on_the_page};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::thread::sleep;
use std::time::Duration;
use tempfile::TempDir;
use understudy_tests::processes::{Process, Signal, command};

/// A process, which is killed when dropped.
pub(crate) struct Machine(Process);

impl Machine {
    pub(crate) fn start(arguments: &[&str]) -> Self {
        let mut program = command(env!("CARGO_BIN_EXE_understudy"));
        program.args(arguments).env("NO_COLOR", "1").stdout(Stdio::piped()).stderr(Stdio::piped());
        Self(Process::start(program))
    }

    /// Waits for the end of the process. Returns whether it succeeded, and what it printed to standard output
    /// and standard error.
    pub(crate) fn end(mut self) -> (bool, String, String) {
        let (out, err) = self.printed();
        (self.0.wait().unwrap().success(), out, err)
    }

    /// Waits until the process closes its output. Returns what it printed to standard output and standard
    /// error.
    fn printed(&mut self) -> (String, String) {
        use std::io::Read as _;
        let (mut out, mut err) = (String::new(), String::new());
        self.0.stdout.take().unwrap().read_to_string(&mut out).unwrap();
        self.0.stderr.take().unwrap().read_to_string(&mut err).unwrap();
        (out, err)
    }
}

/// A bridge with hosts, of which host 1 sends.
struct Rack {
    folder: TempDir,
    bridge: Machine,
}

const IDLE: &str = "[runtime]\nidle = \"sleep\"\n";

impl Rack {
    fn new(hosts: u32) -> Self {
        Self::at(hosts, "[forward]\nmac_table = {}\n")
    }

    /// Starts hosts at a P4CE switch, with these lines in its table.
    fn at_switch(hosts: u32, lines: &str) -> Self {
        let switch = "[p4ce]\nmac = \"02:00:00:00:00:fe\"\naddresses = [\"10.0.0.254/24\"]\n";
        Self::at(hosts, &[switch, lines, "\n"].concat())
    }

    fn at(hosts: u32, function: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let port = |id: u32| {
            format!(
                "[[port]]\nname = \"p{id}\"\nmemif = {{ socket = \"rack.sock\", id = {id}, role = \"server\" }}\n"
            )
        };
        let ports: String = (1..=hosts).map(port).collect();
        let path = folder.path().join("bridge.toml");
        std::fs::write(&path, format!("{IDLE}{ports}{function}")).unwrap();
        let bridge = Machine::start(&["run", path.to_str().unwrap(), "--json"]);
        Self { folder, bridge }
    }

    /// Interrupts the bridge. Returns whether it succeeded, its report, and what it printed to standard
    /// error.
    fn interrupt(self) -> (bool, String, String) {
        self.bridge.0.signal(Signal::INT);
        self.bridge.end()
    }

    /// Interrupts the bridge. Returns how many bytes each host has sent, indexed by the host's number.
    fn sent(self) -> Vec<u64> {
        let (_, report, printed) = self.interrupt();
        let report: Value = serde_json::from_str(&report).unwrap_or_else(|_| panic!("{report}\n{printed}"));
        assert_report_is_on_the_page(&report);
        let ports = report["ports"].as_array().unwrap().iter();
        core::iter::once(0).chain(ports.map(|port| port["rx_bytes"].as_u64().unwrap())).collect()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn host(&self, id: u32) -> String {
        let path = self.path(&format!("host-{id}.toml"));
        let text = format!(
            "{IDLE}[[port]]\nname = \"eth\"\nmemif = {{ socket = \"rack.sock\", id = {id}, role = \"client\" }}\n\
             [nic]\naddresses = [\"10.0.0.{id}/24\"]\n"
        );
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// Returns the folder into which a host receives.
    fn inbox(&self, id: u32) -> PathBuf {
        let folder = self.path(&format!("into-{id}"));
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    fn receive(&self, id: u32) -> Machine {
        let (into, host) = (self.inbox(id), self.host(id));
        let into = into.to_str().unwrap();
        Machine::start(&["rdmc", "receive", "--from", "10.0.0.1", "--into", into, "--on", &host])
    }

    fn send(&self, file: &Path, receivers: &[u32]) -> Machine {
        self.send_by(file, receivers, &[])
    }

    fn send_by(&self, file: &Path, receivers: &[u32], how: &[&str]) -> Machine {
        let to: Vec<String> = receivers.iter().map(|id| format!("10.0.0.{id}")).collect();
        let (to, host) = (to.join(","), self.host(1));
        let file = file.to_str().unwrap();
        let rest = ["--json", "--block-bytes", "65536", "--patience-s", "60"];
        let mut arguments = vec!["rdmc", "send", file, "--to", &to, "--on", &host];
        arguments.extend(rest);
        arguments.extend(how);
        Machine::start(&arguments)
    }

    fn file(&self, len: usize) -> (PathBuf, Vec<u8>) {
        let bytes: Vec<u8> =
            (0..len as u64).map(|at| switch::table::mix(at / 8).to_le_bytes()[(at % 8) as usize]).collect();
        let path = self.path("the object");
        std::fs::write(&path, &bytes).unwrap();
        (path, bytes)
    }
}

fn entries(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn a_file_is_stored_by_all_receivers() {
    let rack = Rack::new(4);
    let (file, bytes) = rack.file(3_000_001);
    let receivers: Vec<Machine> = (2..=4).map(|id| rack.receive(id)).collect();
    let (succeeded, report, printed) = rack.send(&file, &[2, 3, 4]).end();
    assert!(succeeded, "{report}\n{printed}");
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_is_on_the_page("`understudy rdmc send --json`", &report);
    assert_eq!(report["stored"].as_array().unwrap().len(), 3, "{report}");
    assert_eq!((&report["bytes"], &report["rounds"]), (&3_000_001.into(), &1.into()));
    for (id, receiver) in (2..).zip(receivers) {
        let (succeeded, text, printed) = receiver.end();
        assert!(succeeded && text.contains(report["sha256"].as_str().unwrap()), "{text}\n{printed}");
        assert_eq!(entries(&rack.inbox(id)), ["the object"]);
        assert!(std::fs::read(rack.inbox(id).join("the object")).unwrap() == bytes, "host {id}");
    }
    // A second transfer, where one receiver already has a file of this name
    std::fs::remove_file(rack.inbox(2).join("the object")).unwrap();
    let receivers: Vec<Machine> = (2..=3).map(|id| rack.receive(id)).collect();
    let (succeeded, report, _) = rack.send(&file, &[2, 3]).end();
    assert!(!succeeded && report.contains("an object of this name exists"), "{report}");
    let ends: Vec<_> = receivers.into_iter().map(Machine::end).collect();
    assert!(ends[0].0 && !ends[1].0, "{ends:?}");
    assert!(ends[1].2.contains("exists already"), "{}", ends[1].2);
    assert!(std::fs::read(rack.inbox(2).join("the object")).unwrap() == bytes);
}

/// Hosts 1, 2 and 3 are in one rack, and hosts 4 and 5 in another one. The object enters that rack once, at
/// host 4, which relays it to host 5. The bridge's counters show how much each host has sent.
#[test]
fn a_file_crosses_between_racks_once() {
    let rack = Rack::new(5);
    let switch = |(n, name): (u32, &str)| {
        format!("[[switch]]\nname = \"{name}\"\ntunnel = \"10.255.0.{n}\"\nmac = \"02:00:00:00:01:0{n}\"\n")
    };
    let host = |id: u32| {
        let switch = if id < 4 { "left" } else { "right" };
        format!(
            "[[host]]\nname = \"h{id}\"\naddress = \"10.0.0.{id}/24\"\nmac = \"02:00:00:00:00:0{id}\"\nswitch = \"{switch}\"\n"
        )
    };
    let link = |name: &str| format!("[[link]]\nends = [\"{name}\", \"above\"]\n");
    let network: String = [String::from("[topology]\n")]
        .into_iter()
        .chain((1..).zip(["left", "right", "above"]).map(switch))
        .chain((1..=5).map(host))
        .chain(["left", "right"].map(link))
        .collect();
    let path = rack.path("network.toml");
    std::fs::write(&path, network).unwrap();
    let (file, bytes) = rack.file(6_000_001);
    let receivers: Vec<Machine> = (2..=5).map(|id| rack.receive(id)).collect();
    let how = ["--algorithm", "hybrid", "--topology", path.to_str().unwrap()];
    let (succeeded, report, printed) = rack.send_by(&file, &[2, 3, 4, 5], &how).end();
    assert!(succeeded, "{report}\n{printed}");
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!((&report["bytes"], &report["rounds"]), (&6_000_001.into(), &1.into()), "{report}");
    for (id, receiver) in (2..).zip(receivers) {
        let (succeeded, text, printed) = receiver.end();
        assert!(succeeded && text.contains(report["sha256"].as_str().unwrap()), "{text}\n{printed}");
        assert!(std::fs::read(rack.inbox(id).join("the object")).unwrap() == bytes, "host {id}");
    }
    let (sent, whole) = (rack.sent(), bytes.len() as u64);
    // The other hosts send the object at most once, apart from retransmissions. Acknowledgements are small.
    assert!(sent[4] > whole && sent[5] < whole / 10, "{sent:?}");
    assert!(sent[1] > 2 * whole, "host 1 has to send to the other rack and within its own: {sent:?}");
}

/// Hosts 1 to 4 are at a P4CE switch, which copies the packets of host 1. The object leaves host 1 once, and
/// receivers send only acknowledgements.
#[test]
fn a_switch_copies_a_file_to_all_receivers() {
    let rack = Rack::at_switch(4, "");
    let (file, bytes) = rack.file(3_000_001);
    let receivers: Vec<Machine> = (2..=4).map(|id| rack.receive(id)).collect();
    let how = ["--algorithm", "in-network", "--switch", "10.0.0.254:18515"];
    let (succeeded, report, printed) = rack.send_by(&file, &[2, 3, 4], &how).end();
    assert!(succeeded, "{report}\n{printed}");
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_is_on_the_page("`understudy rdmc send --json`", &report);
    assert_eq!(report["stored"].as_array().unwrap().len(), 3, "{report}");
    assert_eq!((&report["algorithm"], &report["rounds"]), (&"in-network".into(), &1.into()), "{report}");
    for (id, receiver) in (2..).zip(receivers) {
        let (succeeded, text, printed) = receiver.end();
        assert!(succeeded && text.contains(report["sha256"].as_str().unwrap()), "{text}\n{printed}");
        assert!(std::fs::read(rack.inbox(id).join("the object")).unwrap() == bytes, "host {id}");
    }
    let (sent, whole) = (rack.sent(), bytes.len() as u64);
    assert!(sent[1] > whole && sent[2..].iter().all(|sent| *sent < whole / 10), "{sent:?}");
}

/// The switch does not admit this sender's groups, so the sender falls back to the pipeline, with all
/// receivers.
#[test]
fn a_switch_that_does_not_copy_is_replaced_by_a_pipeline() {
    let rack = Rack::at_switch(3, "leaders = [\"10.0.0.9/32\"]");
    let (file, bytes) = rack.file(300_001);
    let receivers: Vec<Machine> = (2..=3).map(|id| rack.receive(id)).collect();
    let how = ["--algorithm", "in-network", "--switch", "10.0.0.254:18515"];
    let (succeeded, report, printed) = rack.send_by(&file, &[2, 3], &how).end();
    assert!(succeeded, "{report}\n{printed}");
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["algorithm"], "pipeline", "{report}");
    for (id, receiver) in (2..).zip(receivers) {
        let (succeeded, text, printed) = receiver.end();
        assert!(succeeded, "{text}\n{printed}");
        assert!(std::fs::read(rack.inbox(id).join("the object")).unwrap() == bytes, "host {id}");
    }
    let (_, report, _) = rack.interrupt();
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!((&report["p4ce"]["opened"], &report["p4ce"]["limited"]), (&0.into(), &2.into()), "{report}");
}

/// A file that changes during the transfer would be stored as a mixture. The sender reports it, and no
/// receiver keeps the file.
#[test]
fn a_file_that_changes_while_it_is_sent_is_not_kept() {
    let mut rack = Rack::new(2);
    let (file, _) = rack.file(100_000_000);
    let receiver = rack.receive(2);
    let mut sender = rack.send(&file, &[2]);
    let into = rack.inbox(2);
    wait_for_part(&into, &mut sender, &mut rack);
    {
        use std::os::unix::fs::FileExt as _;
        let file = std::fs::File::options().write(true).open(&file).unwrap();
        file.write_all_at(b"another beginning", 0).unwrap();
    }
    let (succeeded, report, printed) = sender.end();
    assert!(
        !succeeded && printed.replace('\n', " ").contains("was changed or replaced"),
        "{report}\n{printed}"
    );
    let (succeeded, text, printed) = receiver.end();
    assert!(!succeeded, "{text}\n{printed}");
    assert!(entries(&into).is_empty(), "{:?}", entries(&into));
}

/// The sender's segments need more memory than the receiver allows.
#[test]
fn a_receiver_without_memory_for_segments_reports_it() {
    let rack = Rack::new(2);
    let (file, _) = rack.file(3_000_001);
    let (into, host) = (rack.inbox(2), rack.host(2));
    let into = into.to_str().unwrap();
    let receiver = Machine::start(&[
        "rdmc",
        "receive",
        "--from",
        "10.0.0.1",
        "--into",
        into,
        "--on",
        &host,
        "--memory-mb",
        "1",
    ]);
    let (succeeded, _, printed) = rack.send(&file, &[2]).end();
    assert!(!succeeded && printed.contains("no memory for segments of this size"), "{printed}");
    let (succeeded, _, printed) = receiver.end();
    assert!(!succeeded && printed.contains("no memory for segments of this size"), "{printed}");
    assert!(entries(&rack.inbox(2)).is_empty());
}

/// Waits until part of a file is in a folder. Panics with what the sender and the bridge printed if nothing
/// arrives.
fn wait_for_part(into: &Path, sender: &mut Machine, rack: &mut Rack) {
    if !has_part(into) {
        let printed = [sender, &mut rack.bridge].map(|machine| {
            machine.0.signal(Signal::INT);
            machine.printed()
        });
        panic!("nothing arrived in {}: {printed:?}", into.display());
    }
}

fn has_part(into: &Path) -> bool {
    let part = |entry: std::io::Result<std::fs::DirEntry>| {
        entry.unwrap().metadata().is_ok_and(|metadata| metadata.len() > 0)
    };
    (0..4000).any(|_| {
        let begun = std::fs::read_dir(into).unwrap().any(part);
        if !begun {
            sleep(Duration::from_millis(10));
        }
        begun
    })
}

#[test]
fn all_other_receivers_get_the_file_when_one_is_killed() {
    let mut rack = Rack::new(4);
    let (file, bytes) = rack.file(40_000_000);
    let mut receivers: Vec<Machine> = (2..=4).map(|id| rack.receive(id)).collect();
    let mut sender = rack.send(&file, &[2, 3, 4]);
    let into = rack.inbox(3);
    wait_for_part(&into, &mut sender, &mut rack);
    drop(receivers.remove(1));
    let (succeeded, report, printed) = sender.end();
    let report: Value = serde_json::from_str(&report).unwrap_or_else(|_| panic!("{report}\n{printed}"));
    assert!(!succeeded && report["stored"] == serde_json::json!(["10.0.0.2", "10.0.0.4"]), "{report}");
    assert_eq!(report["lost"][0]["receiver"], "10.0.0.3", "{report}");
    for (id, receiver) in [2, 4].into_iter().zip(receivers) {
        let (succeeded, text, printed) = receiver.end();
        assert!(succeeded, "{text}\n{printed}");
        assert!(std::fs::read(rack.inbox(id).join("the object")).unwrap() == bytes, "host {id}");
    }
    assert!(!into.join("the object").exists(), "a part of the file has the name of the whole");
    // The next receiver removes the remains.
    assert_eq!(entries(&into).len(), 1, "{:?}", entries(&into));
    let receiver = rack.receive(3);
    let (succeeded, report, printed) = rack.send(&file, &[3]).end();
    assert!(succeeded, "{report}\n{printed}");
    assert!(receiver.end().0);
    assert_eq!(entries(&into), ["the object"]);
}

/// A receiver that its user stops notifies the sender, which does not wait for it.
#[test]
fn a_receiver_that_is_stopped_notifies_the_sender() {
    let rack = Rack::new(3);
    let (file, bytes) = rack.file(100_000_000);
    let stopped = rack.receive(2);
    let other = rack.receive(3);
    let sender = rack.send(&file, &[2, 3]);
    for _ in 0..4000 {
        if !entries(&rack.inbox(2)).is_empty() {
            break;
        }
        sleep(Duration::from_millis(10));
    }
    stopped.0.signal(Signal::INT);
    let (succeeded, _, printed) = stopped.end();
    assert!(!succeeded && printed.contains("interrupted before the whole file was received"), "{printed}");
    assert!(entries(&rack.inbox(2)).is_empty(), "part of the file is left");
    let (succeeded, report, printed) = sender.end();
    let report: Value = serde_json::from_str(&report).unwrap_or_else(|_| panic!("{report}\n{printed}"));
    assert!(!succeeded && report["stored"] == serde_json::json!(["10.0.0.3"]), "{report}");
    assert_eq!(report["lost"][0]["why"], "refused the object: it was stopped", "{report}");
    let (succeeded, text, printed) = other.end();
    assert!(succeeded, "{text}\n{printed}");
    assert!(std::fs::read(rack.inbox(3).join("the object")).unwrap() == bytes);
}

fn understudy(arguments: &[&str]) -> Output {
    command(env!("CARGO_BIN_EXE_understudy")).args(arguments).env("NO_COLOR", "1").output().unwrap()
}

#[test]
fn invalid_calls_are_refused_before_anything_begins() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let host = path(
        "host.toml",
        "[[port]]\nname = \"eth\"\nmemif = { socket = \"x.sock\", id = 1, role = \"client\" }\n[nic]\naddresses = [\"10.0.0.1/24\"]\n",
    );
    let two_workers = std::fs::read_to_string(&host).unwrap() + "[runtime]\nworkers = [\"any\", \"any\"]\n";
    let two_workers = path("two.toml", &two_workers);
    let (file, empty) = (path("file", "some bytes"), path("empty", ""));
    let gone = folder.path().join("gone").to_str().unwrap().to_owned();
    let dir = folder.path().to_str().unwrap().to_owned();
    let pipe = folder.path().join("pipe");
    assert!(command("mkfifo").arg(&pipe).status().unwrap().success());
    let pipe = pipe.to_str().unwrap().to_owned();
    let topology = concat!(env!("CARGO_MANIFEST_DIR"), "/../configs/onepipe/testbed.toml");
    let cases: [(&[&str], &str); 14] = [
        (&["send", &pipe, "--to", "10.0.0.2", "--on", &host], "is not a regular file"),
        (&["send", &gone, "--to", "10.0.0.2", "--on", &host], "No such file"),
        (&["send", &dir, "--to", "10.0.0.2", "--on", &host], "is not a regular file"),
        (&["send", &empty, "--to", "10.0.0.2", "--on", &host], "the object is empty"),
        (&["send", &file, "--to", "10.0.0.2,10.0.0.2", "--on", &host], "10.0.0.2 is named twice"),
        (&["send", &file, "--to", "10.0.0.1", "--on", &host], "named twice, or is the sender"),
        (&["send", &file, "--to", "10.0.0.2", "--on", &host, "--block-bytes", "0"], "1 to 10 are possible"),
        (&["send", &file, "--to", "10.0.0.2", "--on", &host, "--block-bytes", "11"], "1 to 10 are possible"),
        (&["send", &file, "--to", "fd00::2", "--on", &host], "no address of the same family as"),
        (&["send", &file, "--to", "10.0.0.2", "--on", &two_workers], "a transfer supports one worker"),
        (&["send", &file, "--to", "10.0.0.2", "--on", &host, "--algorithm", "in-network"], "--switch"),
        (&["send", &file, "--to", "10.0.0.2", "--on", &host, "--algorithm", "hybrid"], "--topology"),
        (
            &[
                "send",
                &file,
                "--to",
                "10.0.0.2",
                "--on",
                &host,
                "--algorithm",
                "hybrid",
                "--topology",
                topology,
            ],
            "has no host with the address 10.0.0.1",
        ),
        (&["receive", "--from", "10.0.0.1", "--into", &dir, "--on", &host], "own address"),
    ];
    for (arguments, what) in cases {
        let output = understudy(&[&["rdmc"], arguments].concat());
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {printed}");
        // Long lines are wrapped, and continuation lines begin with a bar.
        let words = printed.split_whitespace().filter(|word| *word != "│");
        let joined = words.collect::<Vec<_>>().join(" ");
        assert!(joined.contains(what), "{arguments:?}: {printed}");
    }
}

#[test]
fn a_schedule_is_printed() {
    let output = understudy(&["rdmc", "schedule", "-n", "8", "-k", "3"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && text.contains("\n   0 0>1  1>2  2>4  2>1     2>2\n"), "{text}");
    let output = understudy(&["rdmc", "schedule", "-n", "1", "-k", "3"]);
    assert_eq!(output.status.code(), Some(2));
}
