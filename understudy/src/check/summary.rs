//! What a configuration would run, on a screen.

use crate::config::{Config, FunctionConfig};
use crate::machine::Machine;
use core::fmt::Write;
use dataplane::config::{Device, Memory, Port};
use rocev2::Fault;
use std::path::Path;
use switch::PortId;
use switch::drop::FaultSet;
use switch::forward::config::Topology;

/// A table of the ports, the function, the workers, and what is worth a second look.
pub(super) fn of(path: &Path, config: &Config, machine: &Machine) -> String {
    let mut text = format!("{} is right. It would run:\n\n", path.display());
    ports(&mut text, config);
    let runtime = &config.runtime;
    let mut line = |key: &str, value: String| {
        let _ = writeln!(text, "{key:<9} {value}");
    };
    line("", String::new());
    match &config.function {
        FunctionConfig::Forward(forward) => {
            line("forward", topology(&forward.topology, &runtime.ports));
            line("", format!("verifies {}, drops {}", verified(forward), dropped(forward.drop)));
            line(
                "",
                match forward.counted_qps {
                    0 => "counts no queue pairs one by one".into(),
                    count => format!("counts up to {count} queue pairs one by one"),
                },
            );
        }
    }
    let worker =
        |cpu: &Option<usize>| cpu.map_or("a CPU that the kernel chooses".into(), |cpu| format!("CPU {cpu}"));
    line("workers", runtime.workers.cpus.iter().map(worker).collect::<Vec<_>>().join(", "));
    line(
        "memory",
        match runtime.eal.memory {
            Memory::Ordinary { mb } => format!("{mb} MB in ordinary pages"),
            Memory::HugePages { mb } => format!("{mb} MB in huge pages"),
        },
    );
    line(
        "ends",
        match config.stop_when_idle {
            Some(idle) => {
                format!("when no frame has come for {} ms, or when it is told to", idle.as_millis())
            }
            None => "when it is told to (Ctrl-C)".into(),
        },
    );
    for note in notes(config, machine) {
        let _ = writeln!(text, "\nnote: {note}");
    }
    text
}

fn ports(text: &mut String, config: &Config) {
    let rows: Vec<[String; 5]> = config
        .runtime
        .ports
        .iter()
        .map(|port| {
            let queues = match (&port.device, port.rx_queues) {
                (Device::Pcap { rx, .. }, _) => rx.len().max(1).to_string(),
                (Device::Pci { .. }, 0) => "1 a worker".into(),
                (_, queues) => queues.max(1).to_string(),
            };
            [port.name.clone(), device(&port.device), port.mtu.to_string(), queues, port.buffers.to_string()]
        })
        .collect();
    let heads = ["port", "device", "MTU", "queues", "buffers"].map(str::to_owned);
    let widths: [usize; 5] = core::array::from_fn(|column| {
        rows.iter().chain([&heads]).map(|row| row[column].chars().count()).max().unwrap_or(0)
    });
    for row in [&heads].into_iter().chain(&rows) {
        let cells: Vec<_> = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        let _ = writeln!(text, "{}", cells.join("  ").trim_end());
    }
}

fn device(device: &Device) -> String {
    match device {
        Device::Pci { address, devargs } if devargs.is_empty() => format!("PCI {address}"),
        Device::Pci { address, devargs } => format!("PCI {address} ({})", devargs.join(", ")),
        Device::AfPacket { interface } => format!("interface {interface} (AF_PACKET)"),
        Device::AfXdp { interface, start_queue } => {
            format!("interface {interface} (AF_XDP from queue {start_queue})")
        }
        Device::Tap { interface } => format!("new interface {interface} (TAP)"),
        Device::Memif { socket, id, server } => {
            format!("memif {id} of {} ({})", socket.display(), if *server { "server" } else { "client" })
        }
        Device::Vhost { socket, client } => {
            format!("vhost-user at {} ({})", socket.display(), if *client { "client" } else { "server" })
        }
        Device::Ring => "ring".into(),
        Device::Pcap { rx, tx, infinite } => {
            let played = match rx.as_slice() {
                [] => "plays nothing".into(),
                [one] => format!("plays {}", one.display()),
                [first, others @ ..] => format!("plays {} and {} more", first.display(), others.len()),
            };
            let again = if *infinite { " over and over" } else { "" };
            let recorded = tx.as_ref().map(|tx| format!(", records {}", tx.display())).unwrap_or_default();
            format!("{played}{again}{recorded}")
        }
        Device::Null { size, copy } => {
            format!("makes frames of {size} bytes{}", if *copy { ", copied" } else { "" })
        }
    }
}

fn topology(topology: &Topology, ports: &[Port]) -> String {
    let name = |port: PortId| ports[port.index()].name.as_str();
    match topology {
        Topology::Pairs(pairs) => {
            let pair = |&(a, b): &(PortId, PortId)| if a == b { format!("{} sends back what comes in", name(a)) } else { format!("{} <-> {}", name(a), name(b)) };
            pairs.iter().map(pair).collect::<Vec<_>>().join(", ")
        }
        Topology::Mac(table) => {
            let fixed = match table.fixed.len() {
                0 => String::new(),
                count => format!(" and {count} fixed"),
            };
            let seconds = table.ageing.0 / 1_000_000_000;
            format!("a bridge that learns {} stations{fixed}, each for {seconds} s", table.capacity)
        }
    }
}

fn verified(forward: &switch::forward::Config) -> String {
    let parts = [(forward.verify_icrc, Fault::Icrc), (forward.verify_udp_checksum, Fault::UdpChecksum)];
    let parts: Vec<_> = parts.iter().filter(|(wanted, _)| *wanted).map(|(_, fault)| fault.name()).collect();
    if parts.is_empty() { "headers only".into() } else { format!("headers, {}", parts.join(", ")) }
}

fn dropped(faults: FaultSet) -> String {
    match faults {
        FaultSet::NONE => "nothing".into(),
        FaultSet::ALL => "what is malformed".into(),
        some => some.iter().map(Fault::name).collect::<Vec<_>>().join(", "),
    }
}

/// What is right, and may still not be meant.
fn notes(config: &Config, machine: &Machine) -> Vec<String> {
    let mut notes = Vec::new();
    let workers = config.runtime.workers.cpus.len();
    let queues = |port: &Port| match (&port.device, port.rx_queues) {
        (Device::Pcap { rx, .. }, _) => rx.len().max(1),
        (Device::Pci { .. }, 0) => workers,
        (_, queues) => usize::from(queues.max(1)),
    };
    let queues: usize = config.runtime.ports.iter().map(queues).sum();
    if queues < workers {
        notes.push(format!(
            "there are {workers} workers and {queues} receive queues, so {} will have nothing to poll",
            workers - queues
        ));
    }
    for port in &config.runtime.ports {
        match &port.device {
            Device::AfPacket { interface } | Device::AfXdp { interface, .. }
                if machine.has("/sys/class/net") && !machine.has(format!("/sys/class/net/{interface}")) =>
            {
                notes.push(format!(
                    "port `{}`: this machine has no interface `{interface}` yet (`ip link` lists those it has)",
                    port.name
                ));
            }
            Device::Pcap { tx: Some(tx), .. } if tx.exists() => {
                notes.push(format!(
                    "port `{}`: {} is there and will be overwritten",
                    port.name,
                    tx.display()
                ));
            }
            _ => {}
        }
    }
    notes
}
