//! Rules of a running instance that change while hosts use a connection through it.
#![allow(clippy::disallowed_methods, reason = "the tests wait for other processes, with a timeout")]

use crate::common::json_page::assert_is_on_the_page;
use crate::common::machine::{DEADLINE, Machine};
use serde_json::Value;
use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::time::Instant;
use tempfile::TempDir;
use understudy_tests::processes;

fn understudy(arguments: &[&str]) -> Output {
    processes::command(env!("CARGO_BIN_EXE_understudy")).args(arguments).output().unwrap()
}

/// A wire with two workers, and a host at each end.
struct Line {
    folder: TempDir,
}

impl Line {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn config(&self, name: &str, workers: &str, text: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::write(&path, format!("[runtime]\nidle = \"sleep\"\n{workers}{text}")).unwrap();
        path
    }

    fn wire(&self, rules: &str) -> PathBuf {
        let port = |name, id| {
            format!(
                "[[port]]\nname = \"{name}\"\nmemif = {{ socket = \"line.sock\", id = {id}, role = \"server\" }}\n"
            )
        };
        let text = port("one", 1)
            + &port("two", 2)
            + "[observe]\nsocket = \"wire.sock\"\n[impair]\npairs = [[\"one\", \"two\"]]\n"
            + rules;
        self.config("wire.toml", "workers = [\"any\", \"any\"]\n", &text)
    }

    fn host(&self, id: u32, service: &str) -> Machine {
        let text = format!(
            "[[port]]\nname = \"eth\"\nmemif = {{ socket = \"line.sock\", id = {id}, role = \"client\" }}\n\
             [nic]\naddresses = [\"10.0.0.{id}/24\"]\n[[nic.service]]\n{service}\n[observe]\nsocket = \"host-{id}.sock\"\n"
        );
        Machine::start("host", &self.config(&format!("host-{id}.toml"), "", &text))
    }

    /// Runs `understudy impair` on the wire. Returns the rules.
    fn impair(&self, arguments: &[&str]) -> Value {
        let output = self.try_impair(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        let rules = serde_json::from_slice(&output.stdout).unwrap();
        assert_is_on_the_page("`understudy impair --json`", &rules);
        rules
    }

    fn try_impair(&self, arguments: &[&str]) -> Output {
        let socket = self.folder.path().join("wire.sock");
        understudy(&[&["impair", "--json", socket.to_str().unwrap()], arguments].concat())
    }

    /// Waits until a rule has acted this often.
    fn wait_for(&self, rule: usize, acted: u64) -> Value {
        let began = Instant::now();
        loop {
            let state = self.impair(&[]);
            if state["rules"][rule]["acted"].as_u64().unwrap() >= acted {
                return state;
            }
            assert!(began.elapsed() < DEADLINE, "{state}");
        }
    }
}

/// Pings in both directions go on while the wire loses nothing, 3 % of the requests, and nothing. With 10 %, a NIC on a busy
/// machine may exhaust its retries: each message has several packets.
#[test]
fn connections_survive_changes_of_the_loss() {
    let line = Line::new();
    let wire = line.wire("[[impair.rule]]\nname = \"copy\"\naction = \"duplicate\"\nshare = 0.1\n");
    let instance = Machine::ready("run", &wire);
    let server = line.host(1, "kind = \"rping_server\"");
    let client =
        line.host(2, "kind = \"rping_client\"\nserver = \"10.0.0.1\"\ncount = 100000000\nsize = 3000");
    line.wait_for(0, 100);
    let state = line.impair(&["add", "name=lose", "action=drop", "share=0", "match.opcode=request"]);
    assert_eq!((&state["workers"], &state["waiting"]), (&2.into(), &Value::Array(vec![])));
    assert_eq!(state["rules"][1]["acted"], 0);
    line.impair(&["set", "lose", "share=0.03"]);
    let lossy = line.wait_for(1, 20);
    // The copies' counters go on.
    assert!(lossy["rules"][0]["acted"].as_u64().unwrap() >= 100, "{lossy}");
    line.impair(&["set", "lose", "share=0"]);
    // A rule that holds packets back is added and removed; what it holds arrives.
    line.impair(&["add", "name=late", "action=delay", "delay_us=500", "--before", "copy"]);
    line.wait_for(0, 20);
    let after = line.impair(&["remove", "late"]);
    let copied = after["rules"][0]["acted"].as_u64().unwrap();
    let lost = after["rules"][1]["acted"].as_u64().unwrap();
    let quiet = line.wait_for(0, copied + 100);
    assert_eq!(quiet["rules"][1]["acted"], lost, "nothing is lost any more");
    // `top` has the same rules by name.
    let top = understudy(&["top", "--json", wire.to_str().unwrap()]);
    let top: Value = serde_json::from_slice(&top.stdout).unwrap();
    let rules = top["tables"].as_array().unwrap().iter().find(|table| table["name"] == "rule").unwrap();
    let mut names: Vec<_> =
        rules["rows"].as_array().unwrap().iter().map(|row| row["cells"][0].as_str().unwrap()).collect();
    names.sort_unstable();
    assert_eq!(names, ["copy", "lose"]);
    let client = client.interrupt();
    let service = &client["services"][0];
    assert_eq!((&service["failed"], &service["refused"]), (&0.into(), &0.into()), "{client}");
    server.interrupt();
    let report = instance.interrupt();
    let impair = &report["impair"];
    let dropped =
        report["drops"].as_array().unwrap().iter().find(|drop| drop["reason"] == "impaired").unwrap();
    assert_eq!((&dropped["frames"], &impair["rules"][1]["acted"]), (&lost.into(), &lost.into()));
    assert!(impair["removed"][0]["action"] == "delay" && impair["removed"][0]["acted"].as_u64() >= Some(20));
    assert_eq!(impair["held_at_end"], 0, "{impair}");
}

#[test]
fn files_of_rules_are_applied_as_a_whole() {
    let line = Line::new();
    let wire = line.wire("");
    let instance = Machine::ready("run", &wire);
    let config = wire.to_str().unwrap();
    let file = line.folder.path().join("rules.toml");
    let apply = |text: &str| {
        std::fs::write(&file, text).unwrap();
        line.try_impair(&["apply", file.to_str().unwrap()])
    };
    let rules = "[[impair.rule]]\nname = \"a\"\naction = \"drop\"\nmatch = { port = \"two\" }\n[[impair.rule]]\naction = \"mark\"\n";
    assert!(apply(rules).status.success());
    let before = line.impair(&["list"]);
    assert_eq!((&before["rules"][0]["name"], &before["rules"][1]["name"]), (&"a".into(), &"rule 2".into()));
    // The second rule is wrong, so the first does not apply, either.
    let refused = apply(
        "[[impair.rule]]\nname = \"b\"\naction = \"drop\"\n[[impair.rule]]\nmatch = { port = \"tow\" }\naction = \"drop\"\n",
    );
    let error = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(1));
    assert!(error.contains("there is no port `tow`") && error.contains("rules.toml:5"), "{error}");
    assert_eq!(line.impair(&[]), before);
    // What is printed can be applied again, from standard input.
    let text = understudy(&["impair", config, "--toml"]).stdout;
    let mut command = processes::command(env!("CARGO_BIN_EXE_understudy"));
    command.args(["impair", config, "apply", "-"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut process = command.spawn().unwrap();
    std::io::Write::write_all(&mut process.stdin.take().unwrap(), &text).unwrap();
    let shown = String::from_utf8(process.wait_with_output().unwrap().stdout).unwrap();
    assert!(shown.contains("`a`: all of the packets with its port are dropped"), "{shown}");
    assert_eq!(line.impair(&[]), before);
    // An instance of another function refuses.
    let pair = line.config("pair.toml", "", "[[port]]\nname = \"x\"\nring = {}\n[observe]\nsocket = \"pair.sock\"\n[forward]\npairs = [[\"x\", \"x\"]]\n");
    let other = Machine::ready("run", &pair);
    let refused = understudy(&["impair", pair.to_str().unwrap()]);
    let error = String::from_utf8(refused.stderr).unwrap();
    assert!(error.contains("this instance runs [forward], not [impair]"), "{error}");
    other.interrupt();
    instance.interrupt();
    let gone = line.try_impair(&["remove", "a"]);
    assert!(String::from_utf8(gone.stderr).unwrap().contains("no instance listens at"));
}

/// A client in whose way the instance ends gets an answer.
#[test]
fn changes_while_the_instance_ends_are_answered() {
    let line = Line::new();
    let instance = Machine::ready("run", &line.wire(""));
    let changes = std::thread::scope(|scope| {
        let clients: Vec<_> = ["one", "two"]
            .into_iter()
            .map(|name| {
                let line = &line;
                scope.spawn(move || {
                    let name = format!("name={name}");
                    for changes in 0.. {
                        let output = line.try_impair(&["add", &name, "action=drop"]);
                        if output.status.success() {
                            line.try_impair(&["remove", &name[5..]]);
                            continue;
                        }
                        return (changes, String::from_utf8(output.stderr).unwrap());
                    }
                    unreachable!("the instance ends")
                })
            })
            .collect();
        let began = Instant::now();
        // Both change rules at once.
        while began.elapsed().as_millis() < 500 {
            std::thread::yield_now();
        }
        instance.interrupt();
        clients.into_iter().map(|client| client.join().unwrap()).collect::<Vec<_>>()
    });
    for (_, error) in changes {
        let known = ["no instance listens", "stopped responding", "is shutting down", "is a rule"];
        assert!(known.iter().any(|text| error.contains(text)), "{error}");
    }
}

/// A client of another user may not connect.
#[test]
fn another_user_gets_a_clear_message() {
    if !is_root() {
        return;
    }
    let line = Line::new();
    let instance = Machine::ready("run", &line.wire(""));
    let program = line.folder.path().join("understudy");
    std::fs::copy(env!("CARGO_BIN_EXE_understudy"), &program).unwrap();
    std::fs::set_permissions(line.folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .unwrap();
    let output = processes::command("setpriv")
        .args(["--reuid", "65534", "--clear-groups", "--", program.to_str().unwrap(), "impair"])
        .arg(line.folder.path().join("wire.sock"))
        .output()
        .unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(
        error.contains("you may not connect to") && error.contains("the user with ID 0 alone"),
        "{error}"
    );
    instance.interrupt();
}

fn is_root() -> bool {
    std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/proc/self").unwrap()) == 0
}
