//! `understudy doctor`: examines this machine, and prints each finding with the command that corrects it.

mod cpus;
mod hugepages;
mod iommu;
mod nics;
mod permissions;
mod ports;
mod report;
mod software;

#[cfg(test)]
pub(crate) use report::Report as Findings;

use crate::config;
use crate::machine::Machine;
use crate::output::{print, print_error};
use dataplane::config::Port;
use std::path::PathBuf;
use std::process::ExitCode;

/// Examine this machine: what DPDK needs, what is missing, and the commands that provide it
///
/// Only reads; changes nothing.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Configuration whose ports are examined as well: their interfaces, and how to enlarge the rings in which frames
    /// wait for them
    #[arg(value_name = "CONFIG.toml")]
    config: Option<PathBuf>,
    /// Print {"findings": [{"topic", "state", "finding", "command"}], "virtual", "hardware", "verdict"}
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let ports = match args.config.as_deref().map(config::load).transpose() {
        Ok(config) => config.map(|config| config.runtime.ports).unwrap_or_default(),
        Err(report) => {
            print_error(report.render());
            return ExitCode::from(config::EXIT_CODE);
        }
    };
    let findings = examine(&Machine::this(), &dataplane::Runtime::version(), &ports);
    let text = if args.json { report::json(&findings) } else { report::text(&findings) };
    print(&text, ExitCode::SUCCESS)
}

/// Examines a machine, the DPDK of version `dpdk` that runs on it, and the ports of a configuration.
fn examine(machine: &Machine, dpdk: &str, ports: &[Port]) -> Vec<Finding> {
    [
        software::examine(machine, dpdk),
        permissions::examine(machine),
        cpus::examine(machine),
        hugepages::examine(machine),
        iommu::examine(machine),
        nics::examine(machine),
        ports::examine(machine, ports),
    ]
    .concat()
}

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing to do
    Ok,
    /// Works, but could be better or different
    Note,
    /// Ports of this kind do not work
    Warning(Ports),
}

/// Kind of ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ports {
    /// `af_packet`, `tap` and the like
    Virtual,
    /// `pci` and `mlx5`
    Hardware,
}

/// Result of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Finding {
    /// Subject, in one or two words
    topic: &'static str,
    state: State,
    /// Sentence without a full stop
    message: String,
    /// Command that corrects it, to be run as root
    command: Option<String>,
}

impl Finding {
    fn new(topic: &'static str, state: State, message: impl Into<String>) -> Self {
        Self { topic, state, message: message.into(), command: None }
    }

    fn ok(topic: &'static str, message: impl Into<String>) -> Self {
        Self::new(topic, State::Ok, message)
    }

    fn note(topic: &'static str, message: impl Into<String>) -> Self {
        Self::new(topic, State::Note, message)
    }

    fn warning(topic: &'static str, ports: Ports, message: impl Into<String>) -> Self {
        Self::new(topic, State::Warning(ports), message)
    }

    fn command(self, command: impl Into<String>) -> Self {
        Self { command: Some(command.into()), ..self }
    }
}

/// Returns a command that adds words to the kernel's command line, in the file of Debian and its derivatives.
fn add_kernel_options(words: &str) -> String {
    format!("sed -i 's/^GRUB_CMDLINE_LINUX=\"/&{words} /' /etc/default/grub && update-grub && reboot")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// Machine whose file system contains the given files.
    pub(super) struct FakeMachine(tempfile::TempDir);

    impl FakeMachine {
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

    /// Returns the only finding that contains `words`.
    pub(super) fn only_finding<'a>(findings: &'a [Finding], words: &str) -> &'a Finding {
        let mut found = findings.iter().filter(|finding| finding.message.contains(words));
        match (found.next(), found.next()) {
            (Some(finding), None) => finding,
            (None, _) => panic!("no finding contains {words:?}: {findings:#?}"),
            (Some(_), Some(_)) => panic!("several findings contain {words:?}: {findings:#?}"),
        }
    }

    #[test]
    fn an_empty_machine_has_findings_on_every_topic() {
        let findings = examine(&FakeMachine::new(&[]).machine(), "DPDK 22.11.11", &[]);
        for topic in ["DPDK", "CPU", "huge pages", "IOMMU", "permissions", "network cards"] {
            assert!(findings.iter().any(|finding| finding.topic == topic), "{topic}: {findings:#?}");
        }
    }

    #[test]
    fn findings_have_no_full_stop_and_good_ones_no_command() {
        for finding in examine(&FakeMachine::new(&[]).machine(), "DPDK 22.11.11", &[]) {
            assert!(!finding.message.ends_with('.'), "{finding:?}");
            assert!(finding.state != State::Ok || finding.command.is_none(), "{finding:?}");
        }
    }
}
