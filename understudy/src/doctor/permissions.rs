//! Permissions of this process.

use super::{Finding, Ports};
use crate::machine::Machine;

const TOPIC: &str = "permissions";
// Bits of capability sets (linux/capability.h)
const CAP_NET_ADMIN: u32 = 12;
const CAP_NET_RAW: u32 = 13;
const CAP_IPC_LOCK: u32 = 14;
/// Locked memory that suffices for the DMA mappings of a few ports, in bytes
const ENOUGH_LOCKED: u64 = 1 << 30;

pub(super) fn examine(machine: &Machine) -> Vec<Finding> {
    let capabilities = capabilities(machine);
    vec![network(machine, capabilities), tun(machine), locked_memory(machine, capabilities)]
}

/// Returns the effective capabilities of this process, or none if the machine does not show them.
fn capabilities(machine: &Machine) -> u64 {
    let status = machine.read("/proc/self/status").unwrap_or_default();
    let set = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).unwrap_or(0)
}

fn network(machine: &Machine, capabilities: u64) -> Finding {
    let has = |capability: u32| capabilities >> capability & 1 != 0;
    match (has(CAP_NET_RAW), has(CAP_NET_ADMIN)) {
        (true, true) => Finding::ok(TOPIC, "this user may open and create interfaces (af_packet, tap)"),
        (raw, _) => {
            let lacking = if raw { "CAP_NET_ADMIN" } else { "CAP_NET_RAW" };
            let message = format!(
                "this user lacks {lacking}, which af_packet, af_xdp and tap ports need (pcap, ring, null \
                 and memif ports do not): run understudy as root, or grant the capability once"
            );
            let program = std::fs::read_link(machine.path("/proc/self/exe"));
            let program = program.map_or("understudy".into(), |path| path.display().to_string());
            Finding::warning(TOPIC, Ports::Virtual, message)
                .command(format!("setcap cap_net_raw,cap_net_admin+ep {program}"))
        }
    }
}

fn tun(machine: &Machine) -> Finding {
    if machine.has("/dev/net/tun") {
        return Finding::ok(TOPIC, "/dev/net/tun exists, for tap ports");
    }
    let message =
        "there is no /dev/net/tun, which tap ports need (start a container with --device /dev/net/tun)";
    Finding::warning(TOPIC, Ports::Virtual, message)
        .command("modprobe tun; mkdir -p /dev/net && mknod -m 666 /dev/net/tun c 10 200")
}

fn locked_memory(machine: &Machine, capabilities: u64) -> Finding {
    let limits = machine.read("/proc/self/limits").unwrap_or_default();
    let limit = limits.lines().find_map(|line| {
        let soft = line.strip_prefix("Max locked memory")?.split_whitespace().next()?;
        Some(if soft == "unlimited" { u64::MAX } else { soft.parse().ok()? })
    });
    if capabilities >> CAP_IPC_LOCK & 1 != 0 || limit.is_some_and(|limit| limit == u64::MAX) {
        return Finding::ok(TOPIC, "memory may be locked without limit");
    }
    match limit {
        Some(limit) if limit >= ENOUGH_LOCKED => {
            Finding::ok(TOPIC, format!("{} MB of memory may be locked", limit >> 20))
        }
        Some(limit) => {
            let message = format!(
                "only {} MB of memory may be locked, and hardware ports lock all of theirs: raise the \
                 limit, and log in again",
                limit >> 20
            );
            Finding::warning(TOPIC, Ports::Hardware, message)
                .command("echo '* - memlock unlimited' > /etc/security/limits.d/understudy.conf")
        }
        None => Finding::note(TOPIC, "the limit of locked memory is not visible here"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::super::tests::{FakeMachine, only_finding};
    use super::*;

    const LIMITS: &str = "Limit                     Soft Limit           Hard Limit           Units     \n\
                          Max locked memory         LIMIT              LIMIT              bytes     \n";

    fn examine_with(capabilities: &str, locked: &str) -> Vec<Finding> {
        let fake = FakeMachine::new(&[("/dev/net/tun", "")]);
        fake.link("/proc/self/exe", "/opt/understudy");
        fake.write("/proc/self/status", &format!("Name:\tx\nCapEff:\t{capabilities}\n"));
        fake.write("/proc/self/limits", &LIMITS.replace("LIMIT", locked));
        examine(&fake.machine())
    }

    #[test]
    fn missing_capabilities_are_a_warning() {
        assert_eq!(
            only_finding(&examine_with("000001ffffffffff", "1"), "may open and create").state,
            State::Ok
        );
        assert_eq!(
            only_finding(&examine_with("0000000000003000", "1"), "may open and create").state,
            State::Ok
        );
        for (set, lacking) in [("0000000000000000", "CAP_NET_RAW"), ("0000000000002000", "CAP_NET_ADMIN")] {
            let findings = examine_with(set, "1");
            let lacks = only_finding(&findings, &format!("this user lacks {lacking}"));
            assert_eq!(lacks.state, State::Warning(Ports::Virtual));
            assert!(lacks.command.as_ref().is_some_and(|command| command.ends_with(" /opt/understudy")));
        }
    }

    #[test]
    fn a_missing_tun_device_is_a_warning() {
        assert_eq!(only_finding(&examine_with("0", "1"), "/dev/net/tun exists").state, State::Ok);
        let findings = examine(&FakeMachine::new(&[]).machine());
        let missing = only_finding(&findings, "no /dev/net/tun");
        assert_eq!(missing.state, State::Warning(Ports::Virtual));
        assert!(missing.command.as_ref().is_some_and(|command| command.contains("modprobe tun")));
    }

    #[test]
    fn a_low_limit_of_locked_memory_is_a_warning() {
        assert_eq!(only_finding(&examine_with("0", "unlimited"), "without limit").state, State::Ok);
        assert_eq!(only_finding(&examine_with("4000", "8388608"), "without limit").state, State::Ok);
        assert_eq!(
            only_finding(&examine_with("0", "2147483648"), "2048 MB of memory may be locked").state,
            State::Ok
        );
        let findings = examine_with("0", "8388608");
        let little = only_finding(&findings, "only 8 MB");
        assert_eq!(little.state, State::Warning(Ports::Hardware));
        assert!(little.command.as_ref().is_some_and(|command| command.contains("memlock")));
        assert_eq!(
            only_finding(&examine(&FakeMachine::new(&[]).machine()), "is not visible here").state,
            State::Note
        );
    }
}
