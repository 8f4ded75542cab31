//! Tests of the parser: what it reads, and the line, the message and the help of each problem.

mod devices;
mod keys;
mod observe;
mod ports;
mod reports;
mod runtime;
mod scenario;
mod syntax;
mod topology;
mod valid;

use super::{Config, Report, parse_on};
use crate::machine::Machine;
use std::fs;
use std::path::Path;
use tempfile::TempDir;

/// Two ports, and a function that joins them
pub(crate) const PORTS: &str = r#"
[[port]]
name = "a"
ring = {}
[[port]]
name = "b"
ring = {}
"#;
pub(crate) const FORWARD: &str = r#"
[forward]
pairs = [["a", "b"]]
"#;

/// Returns a file with these lines in `[runtime]`.
pub(crate) fn runtime(lines: &str) -> String {
    format!("[runtime]\n{lines}\n{PORTS}{FORWARD}")
}

/// Returns a file with these lines in the first of two ports.
pub(crate) fn port(lines: &str) -> String {
    device(&format!("ring = {{}}\n{lines}"))
}

/// Returns a file with these lines in place of the first port's device.
pub(crate) fn device(lines: &str) -> String {
    PORTS.replacen("ring = {}", lines, 1) + FORWARD
}

/// Returns a file with these lines in `[forward]`.
pub(crate) fn forward(lines: &str) -> String {
    format!("{PORTS}\n[forward]\n{lines}\n")
}

/// Returns a folder that stands for a machine with four CPUs.
pub(crate) fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let cpus = folder.path().join("sys/devices/system/cpu");
    fs::create_dir_all(&cpus).unwrap();
    fs::write(cpus.join("online"), "0-3\n").unwrap();
    folder
}

/// Returns such a folder with valid and invalid captures in it.
pub(crate) fn captures() -> TempDir {
    let folder = folder();
    let capture = |name: &str, link_type: u32, frames: &[u32]| {
        let header = [0xa1b2_c3d4, 0x0004_0002, 0, 0, 65535, link_type];
        let mut bytes: Vec<u8> = header.iter().flat_map(|word| word.to_le_bytes()).collect();
        for &len in frames {
            bytes.extend([0, 0, len, len].iter().flat_map(|word| word.to_le_bytes()));
            bytes.extend(std::iter::repeat_n(0, len as usize));
        }
        fs::write(folder.path().join(name), bytes).unwrap();
    };
    capture("in.pcap", 1, &[60, 60]);
    capture("many.pcap", 1, &[60; 3000]);
    capture("long.pcap", 1, &[5000]);
    capture("any.pcap", 113, &[60]);
    fs::write(folder.path().join("text.pcap"), "hello").unwrap();
    fs::write(folder.path().join("zip.pcap"), [0x1f, 0x8b, 8, 0]).unwrap();
    fs::create_dir(folder.path().join("no")).unwrap();
    folder
}

pub(crate) fn read_in(folder: &Path, text: &str) -> Result<Config, Report> {
    parse_on(Path::new("test.toml"), text, folder, &Machine::at(folder))
}

/// Reads a valid file.
#[track_caller]
pub(crate) fn read(text: &str) -> Config {
    let folder = folder();
    read_in(folder.path(), text).unwrap_or_else(|report| panic!("{}", report.render()))
}

/// Returns the lines, messages and helps of the problems of an invalid file.
pub(crate) fn problems_in(folder: &Path, text: &str) -> Vec<(usize, String, String)> {
    let report = read_in(folder, text).expect_err("the file is invalid");
    // The folder's name differs from run to run.
    let plain = |text: &str| text.replace(&format!("{}/", folder.display()), "");
    report.findings().map(|f| (f.position.line, plain(f.message), plain(f.help))).collect()
}

/// Asserts that there is exactly one problem, with this message and this help, on the line that is marked
/// with `#!` (or on the first line, if none is marked).
#[track_caller]
pub(crate) fn fails(text: &str, message: &str, help: &str) {
    fails_in(folder().path(), text, message, help);
}

#[track_caller]
pub(crate) fn fails_in(folder: &Path, text: &str, message: &str, help: &str) {
    let line = text.lines().position(|line| line.contains("#!")).map_or(1, |index| index + 1);
    let found = problems_in(folder, text);
    assert_eq!(found, [(line, message.to_owned(), help.to_owned())], "in:{text}");
}
