//! CPUs: whether workers can have some for themselves, and which features they have.

use super::{Finding, add_kernel_options};
use crate::machine::{Machine, cpu_list, parse_cpu_list};
use std::collections::BTreeSet;

const TOPIC: &str = "CPU";
const FOLDER: &str = "/sys/devices/system/cpu";

pub(super) fn examine(machine: &Machine) -> Vec<Finding> {
    let online = machine.online_cpus().unwrap_or_default();
    let mut findings = vec![carry_less_multiplication(machine), isolation(machine, &online)];
    findings.push(governor(machine, &online));
    findings.push(threads(machine));
    findings.push(nodes(machine));
    findings
}

/// Checks for the instruction that computes ICRCs.
fn carry_less_multiplication(machine: &Machine) -> Finding {
    let info = machine.read("/proc/cpuinfo").unwrap_or_default();
    let flags = info.lines().find_map(|line| line.strip_prefix("flags")).unwrap_or_default();
    if flags.split_whitespace().any(|flag| flag == "pclmulqdq") {
        Finding::ok(TOPIC, "PCLMULQDQ is available: ICRCs are computed in registers")
    } else {
        Finding::note(TOPIC, "PCLMULQDQ is missing: ICRCs are computed with a table, about ten times slower")
    }
}

/// Checks whether the kernel keeps CPUs free.
fn isolation(machine: &Machine, online: &BTreeSet<usize>) -> Finding {
    let line = machine.read("/proc/cmdline").unwrap_or_default();
    // Both lists may begin with flags: `isolcpus=domain,managed_irq,2-3`.
    let listed = |key: &str| -> BTreeSet<usize> {
        let value = line.split_whitespace().find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
        let parts = value.unwrap_or_default().split(',');
        parts.filter_map(parse_cpu_list).flatten().filter(|cpu| online.contains(cpu)).collect()
    };
    let (isolated, tickless) = (listed("isolcpus"), listed("nohz_full"));
    let both: BTreeSet<usize> = isolated.intersection(&tickless).copied().collect();
    if !both.is_empty() {
        let cpus: Vec<String> = both.iter().map(usize::to_string).collect();
        let message =
            format!("the kernel keeps CPU {} free: write `workers = [{}]`", cpu_list(&both), cpus.join(", "));
        return Finding::ok(TOPIC, message);
    }
    // The upper half, because the kernel itself prefers the first CPUs.
    let spare: BTreeSet<usize> = online.iter().copied().skip(online.len().div_ceil(2)).collect();
    if spare.is_empty() {
        return Finding::note(
            TOPIC,
            "one CPU, or none that is visible: a worker shares it with everything else",
        );
    }
    let list = cpu_list(&spare);
    let message = match (isolated.is_empty(), tickless.is_empty()) {
        (true, true) => {
            "no CPU is kept free (isolcpus, nohz_full): other programs interrupt the workers at times"
        }
        (false, _) => "isolcpus keeps CPUs free, but the timer still interrupts them (nohz_full)",
        (true, false) => "nohz_full stops the timer, but not other programs (isolcpus)",
    };
    let all = format!("isolcpus={list} nohz_full={list} rcu_nocbs={list}");
    let kept = if isolated.is_empty() { &tickless } else { &isolated };
    let missing = if isolated.is_empty() { "isolcpus" } else { "nohz_full" };
    let options = if kept.is_empty() { all } else { format!("{missing}={}", cpu_list(kept)) };
    Finding::note(TOPIC, message).command(add_kernel_options(&options))
}

/// Checks whether CPU clocks slow down when the kernel sees no load.
fn governor(machine: &Machine, online: &BTreeSet<usize>) -> Finding {
    let governor = |cpu: &usize| machine.read(format!("{FOLDER}/cpu{cpu}/cpufreq/scaling_governor"));
    let governors: BTreeSet<String> = online.iter().filter_map(governor).collect();
    if governors.is_empty() {
        return Finding::ok(TOPIC, "the kernel does not control the clock");
    }
    if governors.iter().all(|governor| governor == "performance") {
        return Finding::ok(TOPIC, "the clock stays high (governor performance)");
    }
    let names: Vec<_> = governors.into_iter().collect();
    Finding::note(TOPIC, format!("the clock varies (governor {})", names.join(", ")))
        .command("echo performance | tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor")
}

/// Checks whether two CPUs share a core.
fn threads(machine: &Machine) -> Finding {
    if machine.read(format!("{FOLDER}/smt/active")).is_none_or(|active| active == "0") {
        return Finding::ok(TOPIC, "each CPU is a separate core");
    }
    let siblings = machine.read(format!("{FOLDER}/cpu0/topology/thread_siblings_list"));
    let example = siblings.map(|list| format!(" (CPU {list} are one core)")).unwrap_or_default();
    let message =
        format!("two CPUs share each core{example}: place workers on different cores, or disable SMT");
    Finding::note(TOPIC, message).command(format!("echo off > {FOLDER}/smt/control"))
}

/// Checks for several NUMA nodes.
fn nodes(machine: &Machine) -> Finding {
    let folder = "/sys/devices/system/node";
    let online = machine.read(format!("{folder}/online")).and_then(|list| parse_cpu_list(&list));
    let Some(online) = online.filter(|online| online.len() > 1) else {
        return Finding::ok(TOPIC, "one NUMA node: all memory is equally near");
    };
    let cpus = |node: &usize| machine.read(format!("{folder}/node{node}/cpulist")).unwrap_or_default();
    let nodes: Vec<_> = online.iter().map(|node| format!("node {node} has CPU {}", cpus(node))).collect();
    Finding::note(
        TOPIC,
        format!(
            "{} NUMA nodes: place workers on the node of their network card; {}",
            online.len(),
            nodes.join(", ")
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::super::tests::{FakeMachine, only_finding};
    use super::*;

    fn examine_with(files: &[(&str, &str)]) -> Vec<Finding> {
        let fake = FakeMachine::new(&[("/sys/devices/system/cpu/online", "0-3\n")]);
        for (path, text) in files {
            fake.write(path, text);
        }
        examine(&fake.machine())
    }

    #[test]
    fn icrcs_use_registers_only_with_pclmulqdq() {
        let found = examine_with(&[("/proc/cpuinfo", "processor\t: 0\nflags\t\t: fpu pclmulqdq sse4_2\n")]);
        assert_eq!(only_finding(&found, "in registers").state, State::Ok);
        let found = examine_with(&[("/proc/cpuinfo", "processor\t: 0\nflags\t\t: fpu vpclmulqdq\n")]);
        assert_eq!(only_finding(&found, "with a table").state, State::Note);
    }

    #[test]
    fn isolated_cpus_are_suggested_for_workers() {
        let found = examine_with(&[("/proc/cmdline", "isolcpus=domain,managed_irq,2-3 nohz_full=2-3\n")]);
        assert_eq!(only_finding(&found, "keeps CPU 2-3 free: write `workers = [2, 3]`").state, State::Ok);
        for (line, message, options) in [
            ("quiet\n", "no CPU is kept free", "isolcpus=2-3 nohz_full=2-3 rcu_nocbs=2-3 "),
            ("isolcpus=2\n", "timer still interrupts", "&nohz_full=2 "),
            ("nohz_full=2-3\n", "not other programs", "&isolcpus=2-3 "),
        ] {
            let found = examine_with(&[("/proc/cmdline", line)]);
            let finding = only_finding(&found, message);
            assert_eq!(finding.state, State::Note);
            assert!(finding.command.as_ref().is_some_and(|command| command.contains(options)), "{finding:?}");
        }
        let found = examine_with(&[("/sys/devices/system/cpu/online", "0\n")]);
        assert_eq!(only_finding(&found, "one CPU").command, None);
    }

    #[test]
    fn a_varying_clock_is_noted() {
        let file = "/sys/devices/system/cpu/cpu1/cpufreq/scaling_governor";
        assert_eq!(only_finding(&examine_with(&[]), "does not control the clock").state, State::Ok);
        assert_eq!(only_finding(&examine_with(&[(file, "performance\n")]), "stays high").state, State::Ok);
        let found = examine_with(&[(file, "powersave\n")]);
        let saving = only_finding(&found, "governor powersave");
        assert_eq!(saving.state, State::Note);
        assert!(saving.command.as_ref().is_some_and(|command| command.starts_with("echo performance")));
    }

    #[test]
    fn shared_cores_are_noted() {
        let active = "/sys/devices/system/cpu/smt/active";
        assert_eq!(only_finding(&examine_with(&[]), "a separate core").state, State::Ok);
        assert_eq!(only_finding(&examine_with(&[(active, "0\n")]), "a separate core").state, State::Ok);
        let siblings = ("/sys/devices/system/cpu/cpu0/topology/thread_siblings_list", "0,2\n");
        let found = examine_with(&[(active, "1\n"), siblings]);
        let shared = only_finding(&found, "(CPU 0,2 are one core)");
        assert_eq!(shared.state, State::Note);
        assert_eq!(shared.command.as_deref(), Some("echo off > /sys/devices/system/cpu/smt/control"));
    }

    #[test]
    fn several_numa_nodes_are_noted() {
        let folder = "/sys/devices/system/node";
        let online = format!("{folder}/online");
        assert_eq!(only_finding(&examine_with(&[(&online, "0\n")]), "one NUMA node").state, State::Ok);
        let (first, second) = (format!("{folder}/node0/cpulist"), format!("{folder}/node1/cpulist"));
        let found = examine_with(&[(&online, "0-1\n"), (&first, "0-1\n"), (&second, "2-3\n")]);
        let two = only_finding(&found, "2 NUMA nodes");
        assert_eq!(two.state, State::Note);
        assert!(two.message.ends_with("node 0 has CPU 0-1, node 1 has CPU 2-3"), "{two:?}");
    }
}
