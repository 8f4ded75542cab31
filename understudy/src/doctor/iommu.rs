//! IOMMU and VFIO, which give hardware to a program.

use super::{Finding, Ports, add_kernel_options};
use crate::machine::Machine;

const TOPIC: &str = "IOMMU";
const NOIOMMU: &str = "/sys/module/vfio/parameters/enable_unsafe_noiommu_mode";

pub(super) fn examine(machine: &Machine) -> Vec<Finding> {
    vec![iommu(machine), vfio(machine)]
}

fn iommu(machine: &Machine) -> Finding {
    let groups = machine.list("/sys/kernel/iommu_groups").len();
    if groups > 0 {
        return Finding::ok(TOPIC, format!("on, with {groups} groups of devices"));
    }
    if machine.read(NOIOMMU).is_some_and(|value| value == "Y" || value == "1") {
        return Finding::note(
            TOPIC,
            "off, and VFIO is configured to work without it: ports work, but their devices can access all \
             memory",
        );
    }
    let line = machine.read("/proc/cmdline").unwrap_or_default();
    let requested = line.split_whitespace().any(|word| {
        let on = |value: &str| value.split(',').any(|part| part == "on" || part == "force" || part == "pt");
        word.split_once('=')
            .is_some_and(|(key, value)| matches!(key, "intel_iommu" | "amd_iommu" | "iommu") && on(value))
    });
    if requested {
        return Finding::warning(
            TOPIC,
            Ports::Hardware,
            "the kernel is configured to use it and finds none: enable VT-d or AMD-Vi in the firmware, or \
             do without it (devices can then access all memory; the kernel needs CONFIG_VFIO_NOIOMMU, which \
             Debian 12's does not have)",
        )
        .command(format!("modprobe vfio enable_unsafe_noiommu_mode=1; echo Y > {NOIOMMU}"));
    }
    // AMD's IOMMU is on unless the firmware disables it; the option does no harm there.
    Finding::warning(TOPIC, Ports::Hardware, "off: VFIO cannot give devices to understudy")
        .command(add_kernel_options("intel_iommu=on iommu=pt"))
}

fn vfio(machine: &Machine) -> Finding {
    if machine.has("/sys/module/vfio_pci") || machine.has("/sys/bus/pci/drivers/vfio-pci") {
        return Finding::ok(TOPIC, "the driver vfio-pci is loaded");
    }
    Finding::warning(TOPIC, Ports::Hardware, "the driver vfio-pci is not loaded").command("modprobe vfio-pci")
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::super::tests::{FakeMachine, only_finding};
    use super::*;

    #[test]
    fn iommu_states_are_told_apart() {
        let fake = FakeMachine::new(&[("/proc/cmdline", "quiet\n")]);
        let findings = examine(&fake.machine());
        let off = only_finding(&findings, "cannot give devices");
        assert_eq!(off.state, State::Warning(Ports::Hardware));
        assert!(off.command.as_ref().is_some_and(|command| command.contains("intel_iommu=on iommu=pt")));

        fake.write("/proc/cmdline", "quiet intel_iommu=on iommu=pt\n");
        let findings = examine(&fake.machine());
        let firmware = only_finding(&findings, "firmware");
        assert_eq!(firmware.state, State::Warning(Ports::Hardware));
        assert!(firmware.command.as_ref().is_some_and(|command| command.contains("noiommu")));

        fake.write(NOIOMMU, "Y\n");
        assert_eq!(only_finding(&examine(&fake.machine()), "configured to work without").state, State::Note);
        fake.write(NOIOMMU, "N\n");
        fake.write("/sys/kernel/iommu_groups/0/type", "DMA\n");
        fake.write("/sys/kernel/iommu_groups/1/type", "DMA\n");
        assert_eq!(only_finding(&examine(&fake.machine()), "on, with 2 groups").state, State::Ok);
    }

    #[test]
    fn an_iommu_that_the_kernel_disables_is_off() {
        let fake = FakeMachine::new(&[("/proc/cmdline", "intel_iommu=off\n")]);
        only_finding(&examine(&fake.machine()), "cannot give devices");
    }

    #[test]
    fn a_missing_vfio_driver_is_a_warning() {
        let fake = FakeMachine::new(&[]);
        let findings = examine(&fake.machine());
        let missing = only_finding(&findings, "not loaded");
        assert_eq!(missing.state, State::Warning(Ports::Hardware));
        assert_eq!(missing.command.as_deref(), Some("modprobe vfio-pci"));
        fake.write("/sys/module/vfio_pci/refcnt", "0\n");
        assert_eq!(only_finding(&examine(&fake.machine()), "is loaded").state, State::Ok);
    }
}
