//! `understudy doctor`: what this machine has and lacks, each finding with the command that mends it.

mod cpus;
mod hugepages;
mod iommu;
mod nics;
mod permissions;
mod report;
mod software;

use crate::machine::Machine;
use crate::output::print;
use std::process::ExitCode;

/// Look at this machine: what it has for DPDK, what it lacks, and the command for it
///
/// Reads only; nothing is changed. Always ends with 0.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print {"findings": [{"topic", "state", "finding", "command"}], "virtual", "hardware", "verdict"}
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let findings = examine(&Machine::this(), &dataplane::Runtime::version());
    let text = if args.json { report::json(&findings) } else { report::text(&findings) };
    print(&text, ExitCode::SUCCESS)
}

/// Everything there is to say about a machine, and about the DPDK of this version that runs on it.
fn examine(machine: &Machine, dpdk: &str) -> Vec<Finding> {
    [
        software::examine(machine, dpdk),
        permissions::examine(machine),
        cpus::examine(machine),
        hugepages::examine(machine),
        iommu::examine(machine),
        nics::examine(machine),
    ]
    .concat()
}

/// Whether something has to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// All is well
    Ok,
    /// It works, and could be better or different
    Note,
    /// Some kind of port does not work like this
    Warning(Ports),
}

/// The ports that do not work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ports {
    /// `af_packet`, `tap` and the like
    Virtual,
    /// `pci` and `mlx5`
    Hardware,
}

/// Something about the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Finding {
    /// What it is about, in a word or two
    topic: &'static str,
    state: State,
    /// A sentence without a full stop
    what: String,
    /// What mends it, to be typed as root
    command: Option<String>,
}

impl Finding {
    fn new(topic: &'static str, state: State, what: impl Into<String>) -> Self {
        Self { topic, state, what: what.into(), command: None }
    }

    fn ok(topic: &'static str, what: impl Into<String>) -> Self {
        Self::new(topic, State::Ok, what)
    }

    fn note(topic: &'static str, what: impl Into<String>) -> Self {
        Self::new(topic, State::Note, what)
    }

    fn warning(topic: &'static str, ports: Ports, what: impl Into<String>) -> Self {
        Self::new(topic, State::Warning(ports), what)
    }

    fn command(self, command: impl Into<String>) -> Self {
        Self { command: Some(command.into()), ..self }
    }
}

/// A command that adds words to the kernel's command line, where Debian and its kin keep it.
fn boot_with(words: &str) -> String {
    format!("sed -i 's/^GRUB_CMDLINE_LINUX=\"/&{words} /' /etc/default/grub && update-grub && reboot")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// A machine whose file system holds these files.
    pub(super) struct Fake(tempfile::TempDir);

    impl Fake {
        pub(super) fn new(files: &[(&str, &str)]) -> Self {
            let fake = Self(tempfile::tempdir().unwrap());
            for (path, text) in files {
                fake.write(path, text);
            }
            fake
        }

        pub(super) fn write(&self, path: &str, text: &str) {
            let path = self.machine().path(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }

        pub(super) fn link(&self, path: &str, target: &str) {
            let path = self.machine().path(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::os::unix::fs::symlink(Path::new(target), path).unwrap();
        }

        pub(super) fn machine(&self) -> Machine {
            Machine::at(self.0.path())
        }
    }

    /// The only finding that says `words`.
    pub(super) fn only<'a>(findings: &'a [Finding], words: &str) -> &'a Finding {
        let mut found = findings.iter().filter(|finding| finding.what.contains(words));
        match (found.next(), found.next()) {
            (Some(finding), None) => finding,
            (None, _) => panic!("nobody says {words:?}: {findings:#?}"),
            (Some(_), Some(_)) => panic!("more than one says {words:?}: {findings:#?}"),
        }
    }

    #[test]
    fn an_empty_machine_is_examined_all_the_same() {
        let findings = examine(&Fake::new(&[]).machine(), "DPDK 22.11.11");
        for topic in ["DPDK", "CPU", "huge pages", "IOMMU", "permissions", "network cards"] {
            assert!(findings.iter().any(|finding| finding.topic == topic), "{topic}: {findings:#?}");
        }
    }

    #[test]
    fn sentences_have_no_full_stop_and_warnings_a_command_or_a_reason() {
        for finding in examine(&Fake::new(&[]).machine(), "DPDK 22.11.11") {
            assert!(!finding.what.ends_with('.'), "{finding:?}");
            assert!(finding.state != State::Ok || finding.command.is_none(), "{finding:?}");
        }
    }
}
