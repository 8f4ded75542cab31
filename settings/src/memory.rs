//! Whether buffers and memory suffice for the ports, and how much there has to be where the file does not say.

use crate::port::{BUFFERS, ReadPort};
use crate::report::Problem;
use crate::runtime::{HUGEPAGES_MB, ORDINARY_MB, Runtime};
use crate::tree::Problems;
use dataplane::config::{Device, Memory};
use toml::Spanned;

/// Frames that a worker holds while it works on them, in bursts and in the rings to others
const HELD_BY_WORKER: u64 = 512;

/// Packet buffers that the ports have where the file does not say, in the order of the ports.
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
        "{} descriptors in each of {} queues, {HELD_BY_WORKER} with each worker{captures}",
        port.descriptors,
        rx + tx
    );
    let message = format!("{} needs {needed} buffers or more", port.called());
    problems.add(
        Problem::at(buffers.span(), message)
            .label("too few")
            .help(format!("write `buffers = {enough}` ({sum}), or ask for fewer `descriptors`")),
    );
    enough
}

/// Receive and send queues that the port can have; the device may have fewer.
fn queues(port: &ReadPort, workers: usize) -> (u64, u64) {
    let workers = workers as u64;
    let device = port.device.as_ref().map(|device| &device.device);
    let rx = match (device, port.rx_queues) {
        (Some(Device::Pcap { rx, .. }), _) => rx.len().max(1) as u64,
        (Some(Device::Pci { .. }), 0) => workers,
        (_, asked) => u64::from(asked).max(1),
    };
    let tx = match device {
        Some(Device::Pci { .. }) => workers,
        _ => workers.min(rx),
    };
    (rx, tx)
}

/// The memory of the whole, in megabytes: what the file says if that can do, or enough.
pub fn reserve(runtime: &Runtime, ports: &[ReadPort], buffers: &[u64], problems: &Problems) -> Memory {
    let (default, page) = if runtime.hugepages { (HUGEPAGES_MB, 2 << 20) } else { (ORDINARY_MB, 4 << 10) };
    let need = need(ports, buffers, runtime.cpus.len(), page);
    let mb = match &runtime.memory_mb {
        None => need.enough.max(default),
        Some(mb) if *mb.get_ref() < need.least.into() => {
            let message = format!("the packet buffers of the ports need {} MB or more", need.least);
            problems.add(Problem::at(mb.span(), message).label("too little").help(format!(
                "write `memory_mb = {}`, leave it out, or ask for fewer `buffers`",
                need.enough
            )));
            need.enough
        }
        Some(mb) => *mb.get_ref() as u32,
    };
    if runtime.hugepages { Memory::HugePages { mb } } else { Memory::Ordinary { mb } }
}

struct Need {
    /// With less it cannot start
    least: u32,
    /// With so much it starts
    enough: u32,
}

/// What the ports need, as measured on DPDK 22.11: a pool's objects do not cross pages unless they are larger, and a
/// pool has a cache of 1 MB for threads that we do not use.
fn need(ports: &[ReadPort], buffers: &[u64], workers: usize, page: u64) -> Need {
    const MB: u64 = 1 << 20;
    let (mut least, mut enough) = (MB / 2, 4 * MB);
    for (port, &default) in ports.iter().zip(buffers) {
        let buffers =
            port.buffers.as_ref().map_or(default, |buffers: &Spanned<u64>| (*buffers.get_ref()).min(1 << 26));
        let device = port.device.as_ref().map_or(&Device::Ring, |device| &device.device);
        // Room for the frame, the headroom, the mbuf and the object's header.
        let object = (u64::from(device.data_room(port.mtu)) + 128 + 128 + 64).next_multiple_of(64);
        let (dense, padded) = match page / object {
            // A reservation asks for whole pages and is content with less.
            0 => (object * buffers, object.next_multiple_of(page) * buffers),
            objects_a_page => (
                buffers / objects_a_page * page + buffers % objects_a_page * object,
                buffers.div_ceil(objects_a_page) * page,
            ),
        };
        let ring = (buffers + 1).next_power_of_two() * 8;
        let (rx, tx) = queues(port, workers);
        // Hardware has its descriptors there, and the tap driver pools of its own for segmentation.
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

/// Hardware cannot reach ordinary pages.
pub fn check_hugepages(runtime: &Runtime, ports: &[ReadPort], problems: &Problems) {
    let hardware = |port: &&ReadPort| {
        port.device.as_ref().is_some_and(|device| matches!(device.device, Device::Pci { .. }))
    };
    if runtime.hugepages {
        return;
    }
    for port in ports.iter().filter(hardware) {
        let Some(device) = &port.device else { continue };
        let problem =
            Problem::at(device.key.clone(), format!("{} is hardware, which needs huge pages", port.called()));
        problems.add(problem.label("needs huge pages").help(
            "add `hugepages = true` to [runtime] and reserve some (as root: echo 512 > /proc/sys/vm/nr_hugepages); \
             `understudy doctor` shows what there is",
        ));
    }
}
