//! Networks of several processes in `configs/`, run as their files say.

use crate::commands::configs;
use crate::rdmc::Machine;
use std::fs;
use std::path::Path;
use tempfile::TempDir;

/// Returns a copy of a folder of examples, as their sockets are created beside them.
fn copy(examples: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for file in fs::read_dir(configs().join(examples)).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), folder.path().join(file.file_name())).unwrap();
    }
    folder
}

fn path(folder: &Path, name: &str) -> String {
    folder.join(name).to_str().unwrap().to_owned()
}

#[test]
fn two_processes_of_onepipe_print_the_same_order() {
    let folder = copy("onepipe/memif");
    let file = |name: &str| path(folder.path(), name);
    let _switch = Machine::start(&["run", &file("switch.toml")]);
    let options = ["--print", "--send", "100", "--to", "1,2", "--expect", "200", "--for", "60"];
    let start = |name| Machine::start(&[&["process", &file(name)], &options[..]].concat());
    let processes = [start("process-1.toml"), start("process-2.toml")];
    let [first, second] = processes.map(Machine::end);
    assert!(first.0 && second.0, "{first:?} {second:?}");
    // Messages are lines with a timestamp, which the report behind them has not.
    let messages = |printed: &str| -> Vec<String> {
        let is_message = |line: &&str| line.starts_with(|c: char| c.is_ascii_digit());
        printed.lines().filter(is_message).map(str::to_owned).collect()
    };
    assert_eq!(messages(&first.1).len(), 200, "{}", first.1);
    assert_eq!(messages(&first.1), messages(&second.1));
}

#[test]
fn two_receivers_of_rdmc_get_the_file() {
    let folder = copy("rdmc");
    let file = |name: &str| path(folder.path(), name);
    let _bridge = Machine::start(&["run", &file("bridge.toml")]);
    let object: Vec<u8> = (0..3_000_000_u32).map(|at| (at % 251) as u8).collect();
    fs::write(folder.path().join("object"), &object).unwrap();
    let receivers = [2, 3].map(|n| {
        let (into, host) = (file(&format!("into-{n}")), file(&format!("host-{n}.toml")));
        fs::create_dir(&into).unwrap();
        Machine::start(&["rdmc", "receive", "--from", "10.0.0.1", "--into", &into, "--on", &host])
    });
    let sender = ["rdmc", "send", &file("object"), "--to", "10.0.0.2,10.0.0.3", "--on", &file("host-1.toml")];
    let sent = Machine::start(&[&sender[..], &["--patience-s", "60"]].concat()).end();
    assert!(sent.0, "{sent:?}");
    for (n, receiver) in [2, 3].into_iter().zip(receivers) {
        let received = receiver.end();
        assert!(received.0, "{received:?}");
        assert!(fs::read(folder.path().join(format!("into-{n}/object"))).unwrap() == object);
    }
}
