//! Network cards on the PCI bus: their drivers, and whether DPDK can use them.

use super::{Finding, Ports};
use crate::machine::Machine;

const TOPIC: &str = "network cards";
const FOLDER: &str = "/sys/bus/pci/devices";
/// Drivers that give a device to a program
const USER_SPACE: [&str; 3] = ["vfio-pci", "uio_pci_generic", "igb_uio"];
/// Kernel drivers that share their device with DPDK
const SHARED: [&str; 2] = ["mlx5_core", "mlx4_core"];
/// Vendors for whose cards DPDK 22.11 has drivers
const VENDORS: [(&str, &str); 18] = [
    ("0x8086", "Intel"),
    ("0x15b3", "NVIDIA/Mellanox"),
    ("0x14e4", "Broadcom"),
    ("0x1af4", "virtio"),
    ("0x1d0f", "Amazon"),
    ("0x1ae0", "Google"),
    ("0x15ad", "VMware"),
    ("0x1425", "Chelsio"),
    ("0x1137", "Cisco"),
    ("0x1077", "QLogic"),
    ("0x1924", "Solarflare"),
    ("0x177d", "Marvell/Cavium"),
    ("0x19e5", "Huawei"),
    ("0x19ee", "Netronome"),
    ("0x1d6a", "Aquantia"),
    ("0x1dd8", "Pensando"),
    ("0x8088", "Wangxun"),
    ("0x1022", "AMD"),
];

struct Card {
    address: String,
    /// Numbers of vendor and device, as `lspci -n` prints them
    id: String,
    vendor: Option<&'static str>,
    driver: Option<String>,
    /// The kernel's interfaces of the card
    interfaces: Vec<String>,
    /// Whether other interfaces depend on these: a bond, a bridge, a VLAN
    has_upper: bool,
    node: Option<String>,
}

pub(super) fn examine(machine: &Machine) -> Vec<Finding> {
    let cards = cards(machine);
    if cards.is_empty() {
        let message = "none on the PCI bus; virtual devices need none";
        return vec![Finding::warning(TOPIC, Ports::Hardware, message)];
    }
    let bind = bind_command(machine);
    let default_interface = interface_of_default_route(machine);
    let mut findings: Vec<_> =
        cards.iter().map(|card| card.finding(default_interface.as_deref(), bind)).collect();
    if !cards.iter().any(Card::is_ready) {
        let message = if findings.iter().any(|finding| finding.command.is_some()) {
            "none is ready for DPDK; the commands above bind those that can be bound"
        } else {
            "none is ready for DPDK, and none can be bound: add one"
        };
        findings.push(Finding::warning(TOPIC, Ports::Hardware, message));
    }
    findings
}

fn cards(machine: &Machine) -> Vec<Card> {
    let card = |address: String| {
        let folder = format!("{FOLDER}/{address}");
        let read = |file: &str| machine.read(format!("{folder}/{file}"));
        // Class 02: network controllers
        read("class").filter(|class| class.starts_with("0x02"))?;
        let vendor = read("vendor").unwrap_or_default();
        let hex = |id: &str| id.trim_start_matches("0x").to_owned();
        let mut interfaces = machine.list(format!("{folder}/net"));
        // The interface of a virtio card belongs to a child of the PCI device.
        for child in machine.list(&folder).iter().filter(|name| name.starts_with("virtio")) {
            interfaces.extend(machine.list(format!("{folder}/{child}/net")));
        }
        let depends = |name: &String| {
            let entries = machine.list(format!("/sys/class/net/{name}"));
            entries.iter().any(|entry| entry == "master" || entry.starts_with("upper_"))
        };
        Some(Card {
            has_upper: interfaces.iter().any(depends),
            id: format!("{}:{}", hex(&vendor), hex(&read("device").unwrap_or_default())),
            vendor: VENDORS.iter().find(|(id, _)| *id == vendor).map(|(_, name)| *name),
            driver: machine.link_name(format!("{folder}/driver")),
            interfaces,
            node: read("numa_node").filter(|node| !node.starts_with('-')),
            address,
        })
    };
    machine.list(FOLDER).into_iter().filter_map(card).collect()
}

/// Returns the command that gives a card to `vfio-pci`, without its arguments: preferably `driverctl`, whose choice
/// lasts over restarts of the machine.
fn bind_command(machine: &Machine) -> &'static str {
    let has = |name: &str| {
        ["/usr/bin", "/usr/sbin", "/usr/local/bin"]
            .iter()
            .any(|folder| machine.has(format!("{folder}/{name}")))
    };
    if has("driverctl") {
        "driverctl set-override"
    } else if has("dpdk-devbind.py") {
        "dpdk-devbind.py -b vfio-pci"
    } else {
        "apt install -y driverctl && driverctl set-override"
    }
}

/// Returns the interface of this machine's default route.
fn interface_of_default_route(machine: &Machine) -> Option<String> {
    let routes = machine.read("/proc/net/route")?;
    routes.lines().skip(1).find_map(|line| {
        let mut words = line.split_whitespace();
        let interface = words.next()?;
        (words.next()? == "00000000").then(|| interface.to_owned())
    })
}

impl Card {
    fn is_ready(&self) -> bool {
        self.driver.as_deref().is_some_and(|driver| USER_SPACE.contains(&driver) || SHARED.contains(&driver))
    }

    fn finding(&self, default_interface: Option<&str>, bind: &str) -> Finding {
        let Self { address, id, .. } = self;
        let node = self.node.as_ref().map(|node| format!(", NUMA node {node}")).unwrap_or_default();
        let label = format!("{address} ({} {id}{node})", self.vendor.unwrap_or("unknown vendor"));
        let interfaces = self.interfaces.join(", ");
        let driver_after = if bind.ends_with("vfio-pci") { "" } else { " vfio-pci" };
        let bind = format!("{bind} {address}{driver_after}");
        match self.driver.as_deref() {
            Some(driver) if USER_SPACE.contains(&driver) => {
                Finding::ok(TOPIC, format!("{label} is bound to {driver}: write `pci = \"{address}\"`"))
            }
            Some(driver) if SHARED.contains(&driver) => {
                let key = if driver == "mlx5_core" { "mlx5" } else { "pci" };
                let message =
                    format!("{label} stays with its kernel driver, {driver}: write `{key} = \"{address}\"`");
                Finding::ok(TOPIC, message)
            }
            _ if self.vendor.is_none() => {
                Finding::note(TOPIC, format!("{label} is of a vendor for which DPDK has no known driver"))
            }
            Some(driver)
                if default_interface.is_some_and(|default_interface| {
                    self.interfaces.iter().any(|name| name == default_interface)
                }) =>
            {
                Finding::note(
                    TOPIC,
                    format!(
                        "{label} is {interfaces} ({driver}), which has the default route: do not bind it"
                    ),
                )
            }
            Some(driver) if self.has_upper => Finding::note(
                TOPIC,
                format!(
                    "{label} is {interfaces} ({driver}), which is part of a bond, a bridge or a VLAN: remove it from \
                     there before you bind it"
                ),
            ),
            Some(driver) => {
                let owner = if interfaces.is_empty() {
                    "is used by the kernel".into()
                } else {
                    format!("is {interfaces}")
                };
                let message = format!(
                    "{label} {owner} ({driver}); to bind it to DPDK, which removes it from the kernel:"
                );
                Finding::note(TOPIC, message).command(bind)
            }
            None => Finding::note(TOPIC, format!("{label} has no driver; to bind it to DPDK:")).command(bind),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::super::tests::{FakeMachine, only_finding};
    use super::*;

    const ADDRESS: &str = "0000:3b:00.0";

    fn card(vendor: &str, driver: Option<&str>, interface: Option<&str>) -> FakeMachine {
        let folder = format!("{FOLDER}/{ADDRESS}");
        let fake = FakeMachine::new(&[("/sys/bus/pci/devices/0000:00:00.0/class", "0x060000\n")]);
        for (file, text) in
            [("class", "0x020000\n"), ("vendor", vendor), ("device", "0x101d\n"), ("numa_node", "1\n")]
        {
            fake.write(&format!("{folder}/{file}"), text);
        }
        if let Some(driver) = driver {
            fake.link(&format!("{folder}/driver"), &format!("../../bus/pci/drivers/{driver}"));
        }
        if let Some(interface) = interface {
            fake.write(&format!("{folder}/net/{interface}/mtu"), "1500\n");
        }
        fake
    }

    #[test]
    fn a_machine_without_cards_gets_a_warning() {
        let findings = examine(&FakeMachine::new(&[]).machine());
        assert_eq!(only_finding(&findings, "none on the PCI bus").state, State::Warning(Ports::Hardware));
    }

    #[test]
    fn cards_with_a_suitable_driver_are_ready() {
        for (vendor, driver, words) in [
            (
                "0x8086\n",
                "vfio-pci",
                "0000:3b:00.0 (Intel 8086:101d, NUMA node 1) is bound to vfio-pci: write `pci",
            ),
            ("0x15b3\n", "mlx5_core", "stays with its kernel driver, mlx5_core: write `mlx5"),
            ("0x15b3\n", "mlx4_core", "stays with its kernel driver, mlx4_core: write `pci"),
        ] {
            let findings = examine(&card(vendor, Some(driver), Some("eth1")).machine());
            assert_eq!(findings.len(), 1, "{findings:?}");
            assert_eq!(only_finding(&findings, words).state, State::Ok);
        }
    }

    #[test]
    fn cards_that_can_be_bound_come_with_the_command() {
        for (driver, interface, words) in [
            (Some("ice"), Some("eth1"), "is eth1 (ice); to bind it to DPDK"),
            (Some("ice"), None, "is used by the kernel (ice); to bind it to DPDK"),
            (None, None, "has no driver; to bind it to DPDK"),
        ] {
            let fake = card("0x8086\n", driver, interface);
            let findings = examine(&fake.machine());
            let finding = only_finding(&findings, words);
            assert_eq!(finding.state, State::Note);
            let bind = "driverctl set-override 0000:3b:00.0 vfio-pci";
            assert_eq!(finding.command, Some(format!("apt install -y driverctl && {bind}")));
            for (program, command) in [
                ("/usr/bin/dpdk-devbind.py", "dpdk-devbind.py -b vfio-pci 0000:3b:00.0"),
                ("/usr/sbin/driverctl", bind),
            ] {
                fake.write(program, "");
                let findings = examine(&fake.machine());
                assert_eq!(only_finding(&findings, words).command.as_deref(), Some(command));
            }
            assert_eq!(only_finding(&findings, "none is ready").state, State::Warning(Ports::Hardware));
        }
    }

    #[test]
    fn the_card_of_the_default_route_is_left_alone() {
        let fake = card("0x8086\n", Some("ice"), Some("eth1"));
        fake.write("/proc/net/route", "Iface\tDestination\tGateway\neth1\t00000000\t0100000A\n");
        let findings = examine(&fake.machine());
        assert_eq!(only_finding(&findings, "the default route: do not bind it").command, None);
        assert_eq!(only_finding(&findings, "none can be bound").state, State::Warning(Ports::Hardware));
        fake.write("/proc/net/route", "Iface\tDestination\tGateway\neth2\t00000000\t0100000A\n");
        only_finding(&examine(&fake.machine()), "is eth1 (ice); to bind it to DPDK");
    }

    #[test]
    fn the_card_of_a_bond_is_left_alone() {
        let fake = card("0x8086\n", Some("ice"), Some("eth1"));
        fake.write("/sys/class/net/eth1/upper_bond0", "");
        let findings = examine(&fake.machine());
        assert_eq!(only_finding(&findings, "is part of a bond").command, None);
    }

    #[test]
    fn cards_of_unknown_vendors_come_without_a_command() {
        let findings = examine(&card("0x10ec\n", Some("r8169"), Some("eth1")).machine());
        assert_eq!(only_finding(&findings, "is of a vendor for which").command, None);
    }
}
