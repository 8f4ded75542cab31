//! Why a port's device does not exist after the EAL has started.

use crate::config::{Device, Port as PortConfig};
use crate::error::Error;
use std::path::Path;

/// Derives the reason why the device of `port` is missing from the log.
pub(crate) fn explain(port: &PortConfig, log: &str) -> Error {
    let name = &port.name;
    if let Device::AfPacket { interface } | Device::AfXdp { interface, .. } = &port.device
        && !Path::new("/sys/class/net").join(interface).exists()
    {
        return Error::new(
            format!("port `{name}`: there is no interface `{interface}`"),
            "correct the name (`ip link` lists the interfaces), or create it: ip link add ...",
        );
    }
    // The AF_PACKET driver does not log why it got no socket; missing permission is almost the only reason.
    let denied = ["ermission denied", "ot permitted", "not open AF_PACKET socket"]
        .iter()
        .any(|words| log.contains(words));
    if denied && !matches!(port.device, Device::Pci { .. }) {
        return Error::new(
            format!("port `{name}`: permission denied"),
            "run as root, or give the program the capabilities CAP_NET_RAW and CAP_NET_ADMIN",
        );
    }
    // The driver computes the number of its fanout group as process ID XOR interface index; groups belong to
    // a network namespace.
    if log.contains("could not set PACKET_FANOUT") {
        return Error::new(
            format!("port `{name}`: another DPDK process has AF_PACKET sockets with the same group number"),
            "start this process again: the number depends on its process ID",
        );
    }
    match &port.device {
        Device::Pci { address, .. } => explain_card(name, address, &Card::of(address), log),
        Device::AfPacket { interface } | Device::AfXdp { interface, .. } => Error::new(
            format!("port `{name}`: DPDK could not open the interface `{interface}`"),
            "see the log below; another program may be using it",
        ),
        Device::Tap { interface } => Error::new(
            format!("port `{name}`: cannot create the interface `{interface}`"),
            "check that /dev/net/tun exists (modprobe tun) and that the name is free",
        ),
        Device::Memif { .. } => Error::new(
            format!("port `{name}`: DPDK did not create the memif interface"),
            "see the log below; check that DPDK's memif driver is installed",
        ),
        Device::Vhost { socket, .. } => Error::new(
            format!("port `{name}`: cannot open the socket {}", socket.display()),
            "its folder has to exist and be writable; remove a socket that a crashed process has left",
        ),
        Device::Pcap { .. } => Error::new(
            format!("port `{name}`: a capture file could not be opened"),
            "files to play have to be Ethernet captures in pcap format; the folder of the file to record to has to exist",
        ),
        Device::Ring | Device::Null { .. } => {
            Error::new(format!("port `{name}`: DPDK did not create the device"), "see the log below")
        }
    }
}

/// What the system knows of a device on PCI.
struct Card {
    exists: bool,
    /// Driver of the kernel to which it belongs
    driver: Option<String>,
    /// Number of its IOMMU group
    group: Option<String>,
}

impl Card {
    fn of(address: &str) -> Self {
        let folder = Path::new("/sys/bus/pci/devices").join(address);
        let link = |name: &str| {
            let target = std::fs::read_link(folder.join(name)).ok()?;
            Some(target.file_name()?.to_str()?.to_owned())
        };
        Self { exists: folder.exists(), driver: link("driver"), group: link("iommu_group") }
    }
}

fn explain_card(name: &str, address: &str, card: &Card, log: &str) -> Error {
    let error = |what: &str, remedy: String| Error::new(format!("port `{name}`: {what}"), remedy);
    if !card.exists {
        let remedy = "correct the address (`lspci -D` lists the devices), or plug the card in";
        return error(&format!("this machine has no PCI device {address}"), remedy.into());
    }
    let is_closed =
        |group: &str| log.lines().any(|line| line.ends_with(&format!("Failed to open VFIO group {group}")));
    match (card.driver.as_deref(), &card.group) {
        (Some("vfio-pci"), _) if log.contains("VFIO container") => error(
            "VFIO cannot be opened",
            "this process needs the file /dev/vfio/vfio (in a container: --device /dev/vfio/vfio)".into(),
        ),
        (Some("vfio-pci"), _) if log.contains(&format!("{address} VFIO group is not viable")) => error(
            &format!("other devices of the IOMMU group of {address} belong to the kernel"),
            format!("bind all of them: ls /sys/bus/pci/devices/{address}/iommu_group/devices"),
        ),
        (Some("vfio-pci"), Some(group)) if is_closed(group) => error(
            &format!("the VFIO group of {address} cannot be opened"),
            format!(
                "this process needs the file /dev/vfio/{group} (chgrp, or a rule of udev; in a container: \
                 --device); another program may be using it"
            ),
        ),
        (Some("vfio-pci"), _) if log.contains(&format!("{address} DMA remapping failed, error 12")) => error(
            "the memory that its device accesses may not be locked",
            "raise the limit, such as by `ulimit -l unlimited` as root (LimitMEMLOCK=infinity in a unit)".into(),
        ),
        (Some("vfio-pci" | "uio_pci_generic" | "igb_uio"), _) => error(
            &format!("DPDK cannot use the PCI device {address}"),
            "see the log below; DPDK may have no driver for this card".into(),
        ),
        (Some(driver @ ("mlx5_core" | "mlx4_core")), _) => error(
            &format!("DPDK cannot use the PCI device {address} of {driver}"),
            "see the log below; it needs DPDK's driver for it, and root or the capabilities CAP_IPC_LOCK and \
             CAP_NET_RAW"
                .into(),
        ),
        _ => error(
            &format!("the PCI device {address} is not bound to a driver for DPDK"),
            format!(
                "bind it: driverctl set-override {address} vfio-pci (not a NVIDIA NIC, which needs its kernel \
                 driver); `understudy doctor` lists the devices"
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(device: Device) -> PortConfig {
        PortConfig {
            name: "a".into(),
            device,
            mtu: 1500,
            rx_queues: 1,
            descriptors: 512,
            buffers: 4096,
            share_from: None,
        }
    }

    #[test]
    fn used_number_of_a_fanout_group_is_reported() {
        let port = port(Device::AfPacket { interface: "lo".into() });
        let log = "net_af_packet0: could not set PACKET_FANOUT on AF_PACKET socket for lo:Invalid argument";
        let error = explain(&port, log);
        assert!(error.what.contains("the same group number") && error.remedy.contains("again"), "{error}");
    }

    #[test]
    fn reason_depends_on_the_driver_of_the_card_and_on_the_log() {
        let explained = |driver: Option<&str>, log: &str| {
            let card = Card { exists: true, driver: driver.map(Into::into), group: Some("8".into()) };
            let error = explain_card("a", "0000:01:00.0", &card, log);
            format!("{}; {}", error.what, error.remedy)
        };
        let vfio = Some("vfio-pci");
        for (driver, log, words) in [
            (vfio, "EAL: Failed to open VFIO group 8", "the file /dev/vfio/8"),
            (vfio, "EAL: Failed to open VFIO group 81", "may have no driver for this card"),
            (vfio, "EAL: 0000:01:00.0 DMA remapping failed, error 12", "may not be locked; raise the limit"),
            (vfio, "EAL: 0000:02:00.0 DMA remapping failed, error 12", "may have no driver for this card"),
            (vfio, "EAL: Cannot open VFIO container /dev/vfio/vfio", "needs the file /dev/vfio/vfio"),
            (vfio, "EAL: 0000:01:00.0 VFIO group is not viable!", "belong to the kernel; bind all of them"),
            (vfio, "EAL: 0000:02:00.0 VFIO group is not viable!", "may have no driver for this card"),
            (Some("uio_pci_generic"), "", "may have no driver for this card"),
            (Some("mlx5_core"), "EAL: Failed to open VFIO group 8", "of mlx5_core; see the log"),
            (Some("e1000e"), "", "driverctl set-override 0000:01:00.0 vfio-pci"),
            (None, "EAL: Failed to open VFIO group 8", "driverctl set-override 0000:01:00.0 vfio-pci"),
        ] {
            let found = explained(driver, log);
            assert!(found.contains(words), "{found}");
        }
    }

    #[test]
    fn card_that_is_unplugged_is_reported() {
        let port = port(Device::Pci { address: "ffff:ff:1f.7".into(), devargs: Vec::new() });
        let error = explain(&port, "");
        assert!(
            error.what.contains("no PCI device ffff:ff:1f.7") && error.remedy.contains("plug"),
            "{error}"
        );
    }
}
