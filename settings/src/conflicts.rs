//! Devices that two ports cannot share.

use crate::device::PlacedDevice;
use crate::paths::canonical;
use crate::report::Problem;
use crate::tree::Problems;
use dataplane::config::Device;
use std::path::{Path, PathBuf};

/// Reports devices that are used by two ports.
pub(crate) fn report<'a>(devices: impl IntoIterator<Item = (String, &'a PlacedDevice)>, problems: &Problems) {
    let devices: Vec<_> = devices.into_iter().collect();
    for (index, (called, device)) in devices.iter().enumerate() {
        let shared = devices[..index]
            .iter()
            .find_map(|(other, d)| Some((other, d, shared(&d.device, &device.device)?)));
        if let Some((other_called, other, what)) = shared {
            let problem =
                Problem::at(device.value.clone(), format!("{other_called} and {called} both use {what}"));
            let problem = problem.label("again").also(other.value.clone(), "first here");
            problems.add(problem.help("give each port a device of its own"));
        }
    }
}

/// Returns the resource that two devices cannot share, or `None` if there is none.
fn shared(a: &Device, b: &Device) -> Option<String> {
    let interface = |device: &Device| match device {
        Device::AfPacket { interface } | Device::AfXdp { interface, .. } | Device::Tap { interface } => {
            Some(interface.clone())
        }
        _ => None,
    };
    match (a, b) {
        (Device::Pci { address: a, .. }, Device::Pci { address: b, .. }) => {
            (a == b).then(|| format!("the PCI device {a}"))
        }
        // Each may have queues of its own on one interface.
        (Device::AfXdp { start_queue: a, .. }, Device::AfXdp { start_queue: b, .. }) if a != b => None,
        (
            Device::Memif { socket: a, id, server, .. },
            Device::Memif { socket: b, id: other, server: role, .. },
        ) => (canonical(a) == canonical(b) && id == other && server == role)
            .then(|| format!("the interface {id} of the socket {}", a.display())),
        (
            Device::Memif { socket: a, .. } | Device::Vhost { socket: a, .. },
            Device::Memif { socket: b, .. } | Device::Vhost { socket: b, .. },
        ) => (canonical(a) == canonical(b)).then(|| format!("the socket {}", a.display())),
        (Device::Pcap { rx: a_rx, tx: a_tx, .. }, Device::Pcap { rx: b_rx, tx: b_tx, .. }) => {
            let same_file = |a: &Path, b: &Path| canonical(a) == canonical(b);
            let recorded = |tx: &Option<PathBuf>, rx: &[PathBuf], other_tx: &Option<PathBuf>| {
                let tx = tx.as_ref()?;
                let shared = rx.iter().chain(other_tx).any(|path| same_file(path, tx));
                shared.then(|| format!("the file `{}`, to which one of them records", tx.display()))
            };
            recorded(a_tx, b_rx, b_tx).or_else(|| recorded(b_tx, a_rx, a_tx))
        }
        _ => {
            interface(a).filter(|a| Some(a) == interface(b).as_ref()).map(|a| format!("the interface `{a}`"))
        }
    }
}
