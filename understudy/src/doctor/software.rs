//! DPDK's version, and whether the installed version is the one that runs.

use super::Finding;
use crate::machine::Machine;

const TOPIC: &str = "DPDK";
/// Folders in which distributions and `ninja install` put libraries and `pkgconfig/libdpdk.pc`
const LIBRARIES: [&str; 5] =
    ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/local/lib", "/usr/lib"];

/// Checks that the installed version is `running`, the loaded one, such as `DPDK 22.11.11`.
pub(super) fn examine(machine: &Machine, running: &str) -> Vec<Finding> {
    let number = running.strip_prefix("DPDK ").unwrap_or(running);
    let installed = LIBRARIES.iter().find_map(|folder| {
        let text = machine.read(format!("{folder}/pkgconfig/libdpdk.pc"))?;
        text.lines().find_map(|line| Some(line.strip_prefix("Version:")?.trim().to_owned()))
    });
    let finding = match installed {
        Some(installed) if installed == number => {
            Finding::ok(TOPIC, format!("version {number}, and its development files are installed"))
        }
        Some(installed) => Finding::note(
            TOPIC,
            format!("version {number} runs, but version {installed} is installed for building: build again"),
        )
        .command("cargo clean -p dpdk-sys && make build"),
        // They are needed to build understudy only.
        None => Finding::ok(TOPIC, format!("version {number} runs")),
    };
    vec![finding]
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::super::tests::{FakeMachine, only_finding};
    use super::*;

    const PC: &str = "/usr/lib/x86_64-linux-gnu/pkgconfig/libdpdk.pc";

    #[test]
    fn another_version_is_noted() {
        let fake = FakeMachine::new(&[(PC, "Name: DPDK\nVersion: 22.11.11\nRequires: x\n")]);
        let findings = examine(&fake.machine(), "DPDK 22.11.11");
        assert_eq!(only_finding(&findings, "version 22.11.11, and its development").state, State::Ok);

        let findings = examine(&fake.machine(), "DPDK 24.11.0");
        let other = only_finding(&findings, "version 24.11.0 runs, but version 22.11.11 is installed");
        assert_eq!(other.state, State::Note);
        assert!(other.command.as_ref().is_some_and(|command| command.contains("make build")));

        let findings = examine(&FakeMachine::new(&[]).machine(), "DPDK 22.11.11");
        assert_eq!(only_finding(&findings, "version 22.11.11 runs").state, State::Ok);
    }
}
