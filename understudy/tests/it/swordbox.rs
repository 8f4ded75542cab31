//! `understudy run` with `[swordbox]`: its journal, what it refuses after a restart, and changes of layers
//! while it runs.

use crate::common::json_page::assert_report_is_on_the_page;
use serde_json::Value;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use tempfile::TempDir;
use understudy_tests::captures;
use understudy_tests::processes::{self, Process, Signal, command};

/// A real client's fifty CASes, and their responses
const CAPTURE: &str = "rc_compare_swap.pcap";
/// Opcode of a CAS. The BTH follows Ethernet, IPv4 and UDP.
const CAS: u8 = 0x13;

/// A folder for runs of `understudy run`
struct TestFolder {
    folder: TempDir,
}

fn run(config: &Path) -> Output {
    let run = processes::command(env!("CARGO_BIN_EXE_understudy"));
    let output = { run }.args(["run", "--json", config.to_str().unwrap()]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output
}

fn report(output: &Output) -> Value {
    let report = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(assert_report_is_on_the_page(&report), ["swordbox"]);
    report
}

impl TestFolder {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn journal(&self) -> PathBuf {
        self.folder.path().join("my.journal")
    }

    /// Writes a configuration that plays the capture through a Swordbox, each response after its request.
    /// `lines` are added to `[swordbox]`.
    fn config(&self, lines: &str) -> PathBuf {
        let frames = captures::frames(&captures::path(CAPTURE));
        let (requests, answers): (Vec<_>, Vec<_>) = frames.into_iter().partition(|frame| frame[42] == CAS);
        let mut bytes = Vec::new();
        for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65_535, 1] {
            bytes.extend(word.to_le_bytes());
        }
        for frame in requests.iter().zip(&answers).flat_map(|(request, answer)| [request, answer]) {
            let len = frame.len() as u32;
            bytes.extend([0, 0, len, len].map(u32::to_le_bytes).concat());
            bytes.extend(frame);
        }
        let capture = self.folder.path().join("in.pcap");
        fs::write(&capture, bytes).unwrap();
        let server = "[[swordbox.server]]\nhost = \"10.0.0.1\"\ndetect = 1\n";
        let text = format!(
            "[runtime]\nstop_when_idle_ms = 300\n\
             [[port]]\nname = \"in\"\nmtu = 9000\npcap = {{ rx = \"{}\" }}\n\
             [[port]]\nname = \"out\"\nmtu = 9000\npcap = {{ tx = \"out.pcap\" }}\n\
             [swordbox]\npairs = [[\"in\", \"out\"]]\njournal = \"my.journal\"\n{lines}\n{server}",
            capture.display()
        );
        let path = self.folder.path().join("my.toml");
        fs::write(&path, text).unwrap();
        path
    }

    fn lines(&self) -> Vec<String> {
        let text = fs::read_to_string(self.journal()).unwrap();
        text.lines().skip(1).map(str::to_owned).collect()
    }
}

#[test]
fn connections_in_the_journal_are_refused_after_a_restart() {
    let test_folder = TestFolder::new();
    let config = test_folder.config("layers = [\"remap\", \"cas_to_write\"]");
    let first = run(&config);
    let swordbox_report = &report(&first)["swordbox"];
    assert_eq!(swordbox_report["layers"], "remap, cas_to_write");
    assert!(swordbox_report["paired"].as_u64() >= Some(1), "{swordbox_report}");
    assert_eq!(
        (swordbox_report["ended"].as_u64(), swordbox_report["unwritten"].as_u64()),
        (Some(0), Some(0)),
        "{swordbox_report}"
    );
    assert_eq!(swordbox_report["usage"]["connections"], 1, "{swordbox_report}");
    assert!(swordbox_report["memory_bytes"]["connections"].as_u64() > Some(1 << 20), "{swordbox_report}");
    assert!(String::from_utf8_lossy(&first.stderr).contains("up to 65536 connections in "));
    let lines = test_folder.lines();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].starts_with("+ 10.0.0.1 0x") && lines[0].contains(" 10.0.0.2 0x"), "{lines:?}");

    // The first run was never notified of the end of the connection.
    let second = run(&config);
    let swordbox_report = &report(&second)["swordbox"];
    assert_eq!(
        swordbox_report["ended"], 100,
        "requests, and late responses to them, have to be refused: {swordbox_report}"
    );
    assert!(
        String::from_utf8_lossy(&second.stderr)
            .contains("earlier run, refused until they are established again: 1.")
    );
    assert_eq!(test_folder.lines(), lines);
    let drops = report(&second)["drops"].as_array().unwrap().clone();
    assert!(drops.iter().any(|drop| drop["reason"] == "no_queue_pair"), "{drops:?}");

    // Without these layers, nothing is written to the journal.
    fs::remove_file(test_folder.journal()).unwrap();
    let third = run(&test_folder.config(""));
    assert_eq!(report(&third)["swordbox"]["ended"], 0);
    assert!(test_folder.lines().is_empty());
    let text = processes::command(env!("CARGO_BIN_EXE_understudy")).arg("run").arg(&config).output().unwrap();
    let text = String::from_utf8(text.stdout).unwrap();
    for words in ["Swordbox\n", " paired ", "Layers: none. At the end: 1 connections"] {
        assert!(text.contains(words), "{words:?} is missing in\n{text}");
    }
}

#[test]
fn a_file_that_is_not_a_journal_is_not_changed() {
    let test_folder = TestFolder::new();
    let config = test_folder.config("layers = [\"remap\"]");
    fs::write(test_folder.journal(), "dear diary\n").unwrap();
    let output =
        processes::command(env!("CARGO_BIN_EXE_understudy")).arg("run").arg(&config).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let words = String::from_utf8_lossy(&output.stderr).replace(['\n', '│'], " ");
    assert!(words.contains("is not a journal") && !words.contains("ready"), "{words}");
    assert_eq!(fs::read_to_string(test_folder.journal()).unwrap(), "dear diary\n");
}

#[test]
fn layers_can_be_changed_while_it_runs() {
    let test_folder = TestFolder::new();
    let config = test_folder.folder.path().join("live.toml");
    let write = |lines: &str| {
        let text = format!(
            "[[port]]\nname = \"a\"\nring = {{}}\n[swordbox]\npairs = [[\"a\", \"a\"]]\njournal = \"my.journal\"\n{lines}\n\
             [[swordbox.server]]\nhost = \"10.0.0.1\"\n"
        );
        fs::write(&config, text).unwrap();
    };
    write("layers = []");
    let mut child = command(env!("CARGO_BIN_EXE_understudy"));
    child.args(["run", "--json", config.to_str().unwrap()]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = Process::start(child);
    let mut printed = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    let mut wait_for =
        |words: &str| assert!(printed.any(|line| line.contains(words)), "no line with {words:?}");
    wait_for("Swordbox keeps up to");
    write("layers = [\"remap\", \"cas_to_write\"]");
    child.signal(Signal::HUP);
    wait_for(": layers remap, cas_to_write.");
    write("layers = [\"remap\"]\nheld = 7");
    child.signal(Signal::HUP);
    wait_for("`swordbox.held` and `swordbox.layers` take effect when the instance is started again.");
    write("layers = [\"remap\", \"cas_to_wriet\"]");
    child.signal(Signal::HUP);
    wait_for("is refused, and the run goes on as before: it is not valid:");
    wait_for("cas_to_wriet");
    child.signal(Signal::INT);
    let output = child.finish();
    assert!(output.status.success());
    assert_eq!(report(&output)["swordbox"]["layers"], "remap, cas_to_write");
}
