//! What hands hardware to a program: the IOMMU and VFIO.

use super::{Finding, Ports, boot_with};
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
            "off, and VFIO is told to work without: ports work, and their devices can reach all of memory",
        );
    }
    let line = machine.read("/proc/cmdline").unwrap_or_default();
    let asked = line.split_whitespace().any(|word| {
        let on = |value: &str| value.split(',').any(|part| part == "on" || part == "force" || part == "pt");
        word.split_once('=')
            .is_some_and(|(key, value)| matches!(key, "intel_iommu" | "amd_iommu" | "iommu") && on(value))
    });
    if asked {
        return Finding::warning(
            TOPIC,
            Ports::Hardware,
            "the kernel is told to use it and finds none: switch on VT-d or AMD-Vi in the firmware's set-up, or do \
             without (the devices can then reach all of memory)",
        )
        .command(format!("modprobe vfio enable_unsafe_noiommu_mode=1; echo Y > {NOIOMMU}"));
    }
    // AMD's is on unless the firmware has it off; the word does no harm there.
    Finding::warning(TOPIC, Ports::Hardware, "off: VFIO cannot hand devices to understudy")
        .command(boot_with("intel_iommu=on iommu=pt"))
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
    use super::super::tests::{Fake, only};
    use super::*;

    #[test]
    fn on_off_and_without() {
        let fake = Fake::new(&[("/proc/cmdline", "quiet\n")]);
        let findings = examine(&fake.machine());
        let off = only(&findings, "cannot hand devices");
        assert_eq!(off.state, State::Warning(Ports::Hardware));
        assert!(off.command.as_ref().is_some_and(|command| command.contains("intel_iommu=on iommu=pt")));

        fake.write("/proc/cmdline", "quiet intel_iommu=on iommu=pt\n");
        let findings = examine(&fake.machine());
        let firmware = only(&findings, "firmware");
        assert_eq!(firmware.state, State::Warning(Ports::Hardware));
        assert!(firmware.command.as_ref().is_some_and(|command| command.contains("noiommu")));

        fake.write(NOIOMMU, "Y\n");
        assert_eq!(only(&examine(&fake.machine()), "told to work without").state, State::Note);
        fake.write(NOIOMMU, "N\n");
        fake.write("/sys/kernel/iommu_groups/0/type", "DMA\n");
        fake.write("/sys/kernel/iommu_groups/1/type", "DMA\n");
        assert_eq!(only(&examine(&fake.machine()), "on, with 2 groups").state, State::Ok);
    }

    #[test]
    fn an_iommu_that_is_switched_off_is_not_asked_for() {
        let fake = Fake::new(&[("/proc/cmdline", "intel_iommu=off\n")]);
        only(&examine(&fake.machine()), "cannot hand devices");
    }

    #[test]
    fn vfio_driver() {
        let fake = Fake::new(&[]);
        let findings = examine(&fake.machine());
        let missing = only(&findings, "not loaded");
        assert_eq!(missing.state, State::Warning(Ports::Hardware));
        assert_eq!(missing.command.as_deref(), Some("modprobe vfio-pci"));
        fake.write("/sys/module/vfio_pci/refcnt", "0\n");
        assert_eq!(only(&examine(&fake.machine()), "is loaded").state, State::Ok);
    }
}
