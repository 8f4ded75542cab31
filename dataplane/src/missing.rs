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
        Device::Pci { address, .. } if log.contains("Failed to open VFIO group") => Error::new(
            format!("port `{name}`: the VFIO group of {address} cannot be opened"),
            "give its file in /dev/vfio to this user, or run as root; another program may be using it",
        ),
        Device::Pci { .. } if log.contains("DMA remapping failed, error 12") => Error::new(
            format!("port `{name}`: the memory that its device accesses may not be locked"),
            "raise the limit, such as by `ulimit -l unlimited` as root (LimitMEMLOCK=infinity in a unit)",
        ),
        Device::Pci { address, .. } => Error::new(
            format!("port `{name}`: no DPDK driver supports the PCI device {address}"),
            format!(
                "bind it: driverctl set-override {address} vfio-pci (an NVIDIA NIC needs its kernel driver instead, and \
                     the package with DPDK's mlx5 driver); `understudy doctor` lists the devices"
            ),
        ),
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
    fn limit_of_locked_memory_is_reported() {
        let port = port(Device::Pci { address: "0000:01:00.0".into(), devargs: Vec::new() });
        let log = "EAL: 0000:01:00.0 DMA remapping failed, error 12 (Cannot allocate memory)";
        let error = explain(&port, log);
        assert!(error.what.contains("may not be locked") && error.remedy.contains("ulimit -l"), "{error}");
    }

    #[test]
    fn closed_vfio_group_is_reported() {
        let port = port(Device::Pci { address: "0000:01:00.0".into(), devargs: Vec::new() });
        let log = "EAL: Cannot open /dev/vfio/8: Operation not permitted\nEAL: Failed to open VFIO group 8";
        let error = explain(&port, log);
        assert!(error.what.contains("VFIO group of 0000:01:00.0 cannot be opened"), "{error}");
    }
}
