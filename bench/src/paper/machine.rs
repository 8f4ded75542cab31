//! Description of the program and of the machine for a report.

use miette::{IntoDiagnostic as _, Report};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

/// The program, and the machine that it ran on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Machine {
    /// The program's version, and the beginning of its file's SHA-256
    pub program: String,
    /// Its commit, if known
    pub commit: Option<String>,
    /// The CPU's name
    pub cpu: String,
    /// CPUs that the program may use
    pub cpus: usize,
    /// Memory, in MiB
    pub memory_mib: u64,
    /// Linux release
    pub kernel: String,
    /// DPDK version
    pub dpdk: String,
}

impl Machine {
    /// Reads the description from the system.
    ///
    /// # Errors
    /// The program's file cannot be read.
    pub(super) fn detect(program_path: &Path, dpdk: &str, commit: Option<&str>) -> Result<Self, Report> {
        let digest = Sha256::digest(std::fs::read(program_path).into_diagnostic()?);
        let mut program = format!("{} ", env!("CARGO_PKG_VERSION"));
        for byte in &digest[..6] {
            _ = write!(program, "{byte:02x}");
        }
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let kib = field(&read("/proc/meminfo"), "MemTotal").unwrap_or_default();
        let kib: u64 = kib.split_whitespace().next().and_then(|kib| kib.parse().ok()).unwrap_or(0);
        Ok(Self {
            program,
            commit: commit.map(Into::into).or_else(|| git(program_path)),
            cpu: field(&read("/proc/cpuinfo"), "model name").unwrap_or_else(|| std::env::consts::ARCH.into()),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            memory_mib: kib / 1024,
            kernel: read("/proc/sys/kernel/osrelease").trim().into(),
            dpdk: dpdk.trim_start_matches("DPDK ").into(),
        })
    }
}

/// Returns the value of the first line `name: value`.
fn field(text: &str, name: &str) -> Option<String> {
    let value = |line: &str| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim().to_owned())
    };
    text.lines().find_map(value)
}

/// Returns git's description of the work tree that contains the program, such as one in `target/release`.
fn git(program_path: &Path) -> Option<String> {
    let folder = program_path.parent()?;
    let output = Command::new("git")
        .arg("-C")
        .arg(folder)
        .args(["describe", "--always", "--dirty", "--abbrev=12"])
        .output()
        .ok()?;
    let name = String::from_utf8(output.stdout).ok()?;
    (output.status.success() && !name.trim().is_empty()).then(|| name.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_of_a_name_counts() {
        let text = "processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nmodel name\t: another\n";
        assert_eq!(field(text, "model name").as_deref(), Some("Some CPU @ 2 GHz"));
        assert_eq!(field(text, "nothing"), None);
    }

    #[test]
    fn programs_are_identified_by_their_digests() {
        let folder = tempfile::tempdir().unwrap();
        let of = |bytes: &[u8]| {
            let path = folder.path().join("program");
            std::fs::write(&path, bytes).unwrap();
            Machine::detect(&path, "DPDK 22.11.1", Some("abc")).unwrap()
        };
        let (one, other) = (of(b"one"), of(b"other"));
        assert_ne!(one.program, other.program);
        assert_eq!((one.program, one.dpdk.as_str()), (of(b"one").program, "22.11.1"));
        assert_eq!(one.commit.as_deref(), Some("abc"));
    }
}
