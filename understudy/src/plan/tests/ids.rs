//! Numbers of processes stay with their hosts.

use super::super::{Args, files, run};
use crate::config;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

fn testbed() -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs/onepipe/testbed.toml")).unwrap()
}

/// Returns the testbed's text before the hosts, and that of each host, which ends before the next table.
fn parts() -> (String, Vec<String>, String) {
    let text = testbed();
    let (head, rest) = text.split_at(text.find("[[host]]").unwrap());
    let (hosts, links) = rest.split_at(rest.find("\n# ").unwrap() + 1);
    let hosts = hosts.split_inclusive("\n\n").map(String::from).collect::<Vec<_>>();
    (head.into(), hosts, links.into())
}

/// Returns the numbers in the files of a plan: of each process by its host, and of each peer.
fn ids(text: &str) -> BTreeMap<String, u32> {
    let network =
        config::parse_plan(Path::new("x.toml"), text).unwrap_or_else(|report| panic!("{}", report.render()));
    let mut ids = BTreeMap::new();
    let mut note = |name: &str, id: &toml::Value| {
        let id = id.as_integer().unwrap() as u32;
        assert_eq!(*ids.entry(name.to_owned()).or_insert(id), id, "{name} has one number in all files");
    };
    for file in files::all(&network) {
        let Some(name) = file.name.strip_suffix(".process.toml") else { continue };
        let table: toml::Table = file.content.parse().unwrap();
        note(name, &table["process"]["id"]);
        // A comment has the peer's name.
        let names = file.content.lines().filter_map(|line| line.strip_prefix("[[process.peers]]    # "));
        for (peer, name) in table["process"]["peers"].as_array().unwrap().iter().zip(names) {
            note(name, &peer["id"]);
        }
    }
    ids
}

const ANOTHER: &str = "[[host]]\nname = \"another\"\nid = 99\naddress = \"10.0.1.99/24\"\nmac = \"02:00:00:00:09:99\"\nswitch = \"tor1\"\n\n";

#[test]
fn inserting_a_host_changes_no_number() {
    let (head, hosts, links) = parts();
    let before = ids(&testbed());
    assert_eq!((hosts.len(), before.len(), before["h17"]), (32, 32, 17));
    for at in [0, 1, 2, 16, 31, 32] {
        let mut more = hosts.clone();
        more.insert(at, ANOTHER.into());
        let mut after = ids(&[&head, &more.concat(), &links].map(String::as_str).concat());
        assert_eq!(after.remove("another"), Some(99));
        assert_eq!(after, before);
    }
    let reversed: String = hosts.iter().rev().map(String::as_str).collect();
    assert_eq!(ids(&[&head, &reversed, &links].map(String::as_str).concat()), before);
    let without: String = hosts[..5].concat() + &hosts[6..].concat();
    let mut rest = before.clone();
    rest.remove("h6");
    assert_eq!(ids(&[&head, &without, &links].map(String::as_str).concat()), rest);
}

/// A topology and the folder of its plan
struct Planned {
    _folder: tempfile::TempDir,
    topology: PathBuf,
    out: PathBuf,
}

impl Planned {
    fn new(text: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (topology, out) = (folder.path().join("my.toml"), folder.path().join("out"));
        fs::write(&topology, text).unwrap();
        Self { _folder: folder, topology, out }
    }

    fn plan(&self, number: bool, renumber: bool) -> ExitCode {
        let out = Some(self.out.clone());
        run(&Args { topology: self.topology.clone(), out, number, renumber })
    }

    /// Returns the names and contents of all files.
    fn written(&self) -> BTreeMap<PathBuf, String> {
        let entries = fs::read_dir(&self.out).unwrap().map(|entry| entry.unwrap().path());
        entries.map(|path| (path.clone(), fs::read_to_string(&path).unwrap())).collect()
    }
}

#[track_caller]
fn assert_code(code: ExitCode, expected: u8) {
    assert_eq!(format!("{code:?}"), format!("{:?}", ExitCode::from(expected)));
}

#[test]
fn plan_refuses_to_change_a_number() {
    let text = testbed();
    let swapped =
        text.replace("id = 4\n", "id = x\n").replace("id = 3\n", "id = 4\n").replace("id = x\n", "id = 3\n");
    let (head, hosts, links) = parts();
    let reused = [&head, &hosts[..31].concat(), &ANOTHER.replace("99\na", "32\na"), &links]
        .map(String::as_str)
        .concat();
    for changed in [
        swapped,
        text.replace("id = 7\n", "id = 70\n"),
        reused,
        text.replace("name = \"h9\"", "name = \"h99\""),
    ] {
        let planned = Planned::new(&text);
        assert_code(planned.plan(false, false), 0);
        let before = planned.written();
        assert_code(planned.plan(false, false), 0);
        assert_eq!(planned.written(), before);
        fs::write(&planned.topology, &changed).unwrap();
        assert_code(planned.plan(false, false), 2);
        assert_eq!(planned.written(), before, "nothing is written");
        assert_code(planned.plan(false, true), 0);
        let read: BTreeMap<_, _> = files_of_processes(&planned);
        assert_eq!(read, ids(&changed), "also stale files are gone");
    }
}

/// Returns the numbers in the processes' files.
fn files_of_processes(planned: &Planned) -> BTreeMap<String, u32> {
    let files = planned.written().into_iter().filter_map(|(path, content)| {
        let name = path.file_name()?.to_str()?.strip_suffix(".process.toml")?.to_owned();
        let table: toml::Table = content.parse().unwrap();
        Some((name, table["process"]["id"].as_integer().unwrap() as u32))
    });
    files.collect()
}

#[test]
fn hosts_that_are_gone_are_no_change() {
    let (head, hosts, links) = parts();
    let planned = Planned::new(&testbed());
    assert_code(planned.plan(false, false), 0);
    fs::write(&planned.topology, [&head, &hosts[1..].concat(), &links].map(String::as_str).concat()).unwrap();
    assert_code(planned.plan(false, false), 0);
    assert!(planned.out.join("h1.process.toml").exists(), "its number stays reserved");
}

#[test]
fn file_that_could_hide_a_change_is_an_error() {
    for content in ["[process]\nid = -1\n", "[process]\n", "no toml"] {
        let planned = Planned::new(&testbed());
        assert_code(planned.plan(false, false), 0);
        fs::write(planned.out.join("old.process.toml"), content).unwrap();
        assert_code(planned.plan(false, false), 2);
        assert_code(planned.plan(false, true), 0);
    }
}

#[test]
fn plan_numbers_a_file_as_before() {
    let numbered = testbed();
    let is_id = |line: &&str| !line.starts_with("id = ");
    let without: String = numbered.split_inclusive('\n').filter(is_id).collect();
    for line_end in ["\n", "\r\n"] {
        let planned = Planned::new(&without.replace('\n', line_end));
        assert_code(planned.plan(false, false), 2);
        assert!(!planned.out.exists());
        for _ in 0..2 {
            assert_code(planned.plan(true, false), 0);
            assert_eq!(fs::read_to_string(&planned.topology).unwrap(), numbered.replace('\n', line_end));
        }
    }
    // Where some hosts have numbers, the others get higher ones.
    let some = numbered.replace("id = 5\n", "").replace("id = 9\n", "").replace("id = 32\n", "id = 40\n");
    let planned = Planned::new(&some);
    assert_code(planned.plan(true, false), 0);
    let ids = ids(&fs::read_to_string(&planned.topology).unwrap());
    assert_eq!([ids["h5"], ids["h9"], ids["h32"], ids["h6"]], [41, 42, 40, 6]);
}

/// Hosts of an inline table have no line of their own.
#[test]
fn file_into_which_no_numbers_can_be_written_stays() {
    let text = "host = [{ name = \"a\", address = \"10.0.0.1/24\", mac = \"02:00:00:00:00:01\", switch = \"s\" }]\n\
                switch = [{ name = \"s\" }]\nlink = []\n[topology]\n";
    let planned = Planned::new(text);
    assert_code(planned.plan(true, false), 2);
    assert_eq!(fs::read_to_string(&planned.topology).unwrap(), text);
}
