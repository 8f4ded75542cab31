//! Checks that packet buffers and memory suffice for the ports, and default values for both.

use crate::port::{BUFFERS, ReadPort};
use crate::report::Problem;
use crate::runtime::{HUGEPAGES_MB, ORDINARY_MB, Runtime};
use crate::tree::Problems;
use dataplane::config::{Device, Memory};
use toml::Spanned;

/// Frames that a worker holds while it processes them, in bursts and in hand-off rings
const HELD_BY_WORKER: u64 = 512;

/// Returns the count of packet buffers of each port without a configured count, in the order of the ports.
/// Reports ports with too few.
pub fn buffers(ports: &[ReadPort], workers: usize, problems: &Problems) -> Vec<u64> {
    ports.iter().map(|port| port_buffers(port, workers, problems)).collect()
}

fn port_buffers(port: &ReadPort, workers: usize, problems: &Problems) -> u64 {
    let (rx, tx) = queues(port, workers);
    let queued = u64::from(port.descriptors) * (rx + tx) + HELD_BY_WORKER * workers as u64;
    let played = port.device.as_ref().and_then(|device| device.capture).map_or(0, |size| size.frames);
    let needed = queued + played;
    let enough = needed.next_power_of_two().max(BUFFERS);
    let Some(buffers) = port.buffers.as_ref().filter(|buffers| *buffers.get_ref() < needed) else {
        return enough;
    };
    let captures = if played > 0 { format!(", {played} frames of the captures") } else { String::new() };
    let sum = format!(
        "{} descriptors in each of {} queues, {HELD_BY_WORKER} for each worker{captures}",
        port.descriptors,
        rx + tx
    );
    let message = format!("{} needs {needed} buffers or more", port.display_name());
    problems.add(
        Problem::at(buffers.span(), message)
            .label("too few")
            .help(format!("write `buffers = {enough}` ({sum}), or reduce `descriptors`")),
    );
    enough
}

/// Returns the maximum counts of receive and send queues that the port can have; the device may have fewer.
fn queues(port: &ReadPort, workers: usize) -> (u64, u64) {
    let workers = workers as u64;
    let device = port.device.as_ref().map(|device| &device.device);
    let rx = match (device, port.rx_queues) {
        (Some(Device::Pcap { rx, .. }), _) => rx.len().max(1) as u64,
        (Some(Device::Pci { .. }), 0) => workers,
        (_, requested) => u64::from(requested).max(1),
    };
    let tx = match device {
        Some(Device::Pci { .. }) => workers,
        _ => workers.min(rx),
    };
    (rx, tx)
}

/// Returns the total memory in MB: the configured size if it suffices, else enough.
pub fn reserve(runtime: &Runtime, ports: &[ReadPort], buffers: &[u64], problems: &Problems) -> Memory {
    let (default, page) = if runtime.hugepages { (HUGEPAGES_MB, 2 << 20) } else { (ORDINARY_MB, 4 << 10) };
    let need = need(ports, buffers, runtime.cpus.len(), page);
    let mb = match &runtime.memory_mb {
        None => need.enough.max(default),
        Some(mb) if *mb.get_ref() < need.least.into() => {
            let message = format!("the packet buffers of the ports need {} MB or more", need.least);
            problems.add(
                Problem::at(mb.span(), message)
                    .label("too little")
                    .help(format!("write `memory_mb = {}`, leave it out, or reduce `buffers`", need.enough)),
            );
            need.enough
        }
        Some(mb) => *mb.get_ref() as u32,
    };
    if runtime.hugepages { Memory::HugePages { mb } } else { Memory::Ordinary { mb } }
}

struct Need {
    /// Memory without which the program cannot start, in MB
    least: u32,
    /// Memory with which the program starts, in MB
    enough: u32,
}

/// Returns the memory that the ports need, as measured on DPDK 22.11: a pool's objects do not cross page
/// boundaries unless they are larger than a page, and each pool has a cache of 1 MB for threads that this
/// program does not use.
fn need(ports: &[ReadPort], buffers: &[u64], workers: usize, page: u64) -> Need {
    const MB: u64 = 1 << 20;
    let (mut least, mut enough) = (MB / 2, 4 * MB);
    for (port, &default) in ports.iter().zip(buffers) {
        let buffers =
            port.buffers.as_ref().map_or(default, |buffers: &Spanned<u64>| (*buffers.get_ref()).min(1 << 26));
        let device = port.device.as_ref().map_or(&Device::Ring, |device| &device.device);
        // Space for the frame, the headroom, the mbuf and the object's header
        let object = (u64::from(device.data_room(port.mtu)) + 128 + 128 + 64).next_multiple_of(64);
        let (dense, padded) = match page / object {
            // A reservation requests whole pages, and succeeds with less.
            0 => (object * buffers, object.next_multiple_of(page) * buffers),
            objects_a_page => (
                buffers / objects_a_page * page + buffers % objects_a_page * object,
                buffers.div_ceil(objects_a_page) * page,
            ),
        };
        let ring = (buffers + 1).next_power_of_two() * 8;
        let (rx, tx) = queues(port, workers);
        // Hardware keeps its descriptors in this memory; the tap driver has its own pools for segmentation.
        let queues = match port.device.as_ref().map(|device| &device.device) {
            Some(Device::Pci { .. }) => (rx + tx) * MB,
            Some(Device::Tap { .. }) => tx * 2 * MB,
            _ => 0,
        };
        least += dense + ring + MB;
        enough += padded + ring + 2 * MB + queues;
    }
    Need { least: least.div_ceil(MB) as u32, enough: (enough.div_ceil(MB) as u32).next_multiple_of(16) }
}

/// Reports hardware without huge pages: devices cannot access ordinary pages.
pub fn check_hugepages(runtime: &Runtime, ports: &[ReadPort], problems: &Problems) {
    let hardware = |port: &&ReadPort| {
        port.device.as_ref().is_some_and(|device| matches!(device.device, Device::Pci { .. }))
    };
    if runtime.hugepages {
        return;
    }
    for port in ports.iter().filter(hardware) {
        let Some(device) = &port.device else { continue };
        let problem = Problem::at(
            device.key.clone(),
            format!("{} is hardware, which needs huge pages", port.display_name()),
        );
        problems.add(problem.label("needs huge pages").help(
            "add `hugepages = true` to [runtime] and reserve some (as root: echo 512 > /proc/sys/vm/nr_hugepages); \
             `understudy doctor` shows the reserved pages",
        ));
    }
}
