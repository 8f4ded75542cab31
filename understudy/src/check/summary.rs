//! Describes what a configuration would run.

use crate::config::Config;
use crate::functions::tunnel;
use crate::machine::{Machine, cpu_list};
use core::fmt::Write;
use dataplane::config::{Device, Idle, Memory, OnLinkLoss, Port};
use settings::reference::set_values;
use std::collections::BTreeSet;
use std::path::Path;
use toml::de::DeTable;

/// Returns a description of the ports, the function and the workers, followed by notes, of which `interfaces`
/// are those about settings of the ports' interfaces.
pub(super) fn of(
    path: &Path,
    text: &str,
    config: &Config,
    machine: &Machine,
    interfaces: Vec<String>,
) -> String {
    let runtime = &config.runtime;
    let function = config.function.summary(&runtime.ports);
    let (root, _) = DeTable::parse_recoverable(text);
    let settings = set_values(root.get_ref(), text, config.function.table());
    let settings = settings.into_iter().zip(core::iter::once("settings").chain(core::iter::repeat("")));
    let rest = [
        ("workers", workers(&runtime.workers.cpus) + idle(runtime.workers.idle)),
        (
            "memory",
            match runtime.eal.memory {
                Memory::Ordinary { mb } => format!("{mb} MB in ordinary pages"),
                Memory::HugePages { mb } => format!("{mb} MB in huge pages"),
            } + &config.function.memory(),
        ),
        (
            "ends",
            match (config.function.end(), config.stop_when_idle) {
                (Some(end), _) => format!("{end}, or when interrupted (Ctrl-C)"),
                (None, Some(idle)) => format!(
                    "when no frame was received for {} ms, or when interrupted (Ctrl-C)",
                    idle.as_millis()
                ),
                (None, None) => "when interrupted (Ctrl-C)".to_owned(),
            } + match runtime.on_link_loss {
                OnLinkLoss::Wait => "",
                OnLinkLoss::Exit => ", or when a port loses its link",
            },
        ),
    ];
    let observe = &config.observe;
    let socket = observe.socket.iter().map(|path| format!("`top` and `trace` through {}", path.display()));
    let prometheus = observe.prometheus.iter().map(|at| {
        let reach = if at.ip().is_loopback() { "" } else { ", for every host that can reach it" };
        format!("Prometheus at http://{at}/metrics{reach}")
    });
    let observers = socket.chain(prometheus).map(|line| ("observers", line));
    let mut text = format!("{} is valid. It would run:\n\n{}\n", path.display(), ports(runtime));
    let tunnel = config.tunnel.iter().flat_map(tunnel::lines);
    for (key, value) in
        tunnel.chain(function).chain(settings.map(|(value, key)| (key, value))).chain(rest).chain(observers)
    {
        let _ = writeln!(text, "{key:<9} {value}");
    }
    let of_function = config.function.notes(runtime.workers.cpus.len());
    let unused = (!config.function.has_owners()).then(|| idle_workers(runtime)).flatten();
    let notes = unused.into_iter().chain(notes(runtime, machine));
    text + &note_lines(notes.chain(of_function).chain(interfaces))
}

/// Returns the lines of notes, after an empty line if there are any.
pub(super) fn note_lines(notes: impl Iterator<Item = String>) -> String {
    let mut lines = String::new();
    for note in notes {
        // An empty line before the first
        let start = if lines.is_empty() { "\n" } else { "" };
        _ = writeln!(lines, "{start}note: {note}");
    }
    lines
}

fn idle(idle: Idle) -> &'static str {
    match idle {
        Idle::Spin => "",
        Idle::Yield => ", yielding when idle",
        Idle::Sleep => ", sleeping when idle",
    }
}

fn ports(runtime: &dataplane::Config) -> String {
    let row = |port: &Port| {
        let queues = match (&port.device, port.rx_queues) {
            (Device::Pci { .. }, 0) => "1 a worker".into(),
            _ => rx_queues(port, 1).to_string(),
        };
        [port.name.clone(), device(&port.device), port.mtu.to_string(), queues, port.buffers.to_string()]
    };
    let header = ["port", "device", "MTU", "queues", "buffers"].map(str::to_owned);
    let rows: Vec<_> = core::iter::once(header).chain(runtime.ports.iter().map(row)).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; 5] = core::array::from_fn(width);
    let mut text = String::new();
    for row in rows {
        let cells: Vec<_> = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        let _ = writeln!(text, "{}", cells.join("  ").trim_end());
    }
    text
}

/// Returns the number of receive queues of a port.
fn rx_queues(port: &Port, workers: usize) -> usize {
    match (&port.device, port.rx_queues) {
        (Device::Pcap { rx, .. }, _) => rx.len().max(1),
        (Device::Pci { .. }, 0) => workers,
        (_, queues) => usize::from(queues.max(1)),
    }
}

fn device(device: &Device) -> String {
    let side = |server: bool| if server { "server" } else { "client" };
    match device {
        Device::Pci { address, devargs } if devargs.is_empty() => format!("PCI {address}"),
        Device::Pci { address, devargs } => format!("PCI {address} ({})", devargs.join(", ")),
        Device::AfPacket { interface } => format!("interface {interface} (AF_PACKET)"),
        Device::AfXdp { interface, start_queue } => {
            format!("interface {interface} (AF_XDP from queue {start_queue})")
        }
        Device::Tap { interface } => format!("new interface {interface} (TAP)"),
        Device::Memif { socket, id, server, .. } => {
            format!("memif {id} of {} ({})", socket.display(), side(*server))
        }
        Device::Vhost { socket, client } => format!("vhost-user {} ({})", socket.display(), side(!client)),
        Device::Ring => "ring".into(),
        Device::Pcap { rx, tx, infinite } => {
            let played = match rx.as_slice() {
                [] => "plays nothing".into(),
                [one] => format!("plays {}", one.display()),
                [first, others @ ..] => format!("plays {} and {} more", first.display(), others.len()),
            };
            let repeat = if *infinite { " over and over" } else { "" };
            let recorded = tx.as_ref().map(|tx| format!(", records {}", tx.display())).unwrap_or_default();
            format!("{played}{repeat}{recorded}")
        }
        Device::Null { size, copy } => {
            format!("makes frames of {size} bytes{}", if *copy { ", copied" } else { "" })
        }
    }
}

fn workers(cpus: &[Option<usize>]) -> String {
    let pinned: BTreeSet<usize> = cpus.iter().copied().flatten().collect();
    let count = cpus.len();
    match (pinned.len(), count - pinned.len()) {
        (0, _) => format!("{count}, placed by the kernel"),
        (_, 0) => format!("{count}, on CPU {}", cpu_list(&pinned)),
        (_, free) => format!("{count}, on CPU {}, and {free} placed by the kernel", cpu_list(&pinned)),
    }
}

/// Returns a note if some workers have no receive queue, and thus nothing to do.
fn idle_workers(runtime: &dataplane::Config) -> Option<String> {
    let workers = runtime.workers.cpus.len();
    let queues: usize = runtime.ports.iter().map(|port| rx_queues(port, workers)).sum();
    (queues < workers).then(|| {
        let idle = workers - queues;
        format!("{workers} workers have {queues} receive queues to poll: {idle} will be idle")
    })
}

/// Returns notes about valid settings that may not be intended.
pub(super) fn notes(runtime: &dataplane::Config, machine: &Machine) -> Vec<String> {
    let mut notes = Vec::new();
    for Port { name, device, .. } in &runtime.ports {
        match device {
            Device::AfPacket { interface } | Device::AfXdp { interface, .. }
                if machine.has("/sys/class/net") && !machine.has(format!("/sys/class/net/{interface}")) =>
            {
                notes.push(format!(
                    "port `{name}`: this machine has no interface `{interface}` at present (see `ip link`)"
                ));
            }
            Device::Pci { address, .. }
                if machine.has("/sys/bus") && !machine.has(format!("/sys/bus/pci/devices/{address}")) =>
            {
                notes.push(format!(
                    "port `{name}`: this machine has no PCI device {address} at present (see `lspci -D`, or \
                     `understudy doctor`)"
                ));
            }
            Device::Pcap { tx: Some(tx), .. } if tx.exists() => {
                notes.push(format!("port `{name}`: `{}` exists and will be overwritten", tx.display()));
            }
            _ => {}
        }
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse;

    /// Returns the summary of a file, for a machine whose only interface is `eth1`.
    fn summary(text: &str, folder: &Path) -> String {
        std::fs::create_dir_all(folder.join("sys/class/net/eth1")).unwrap();
        let config = parse(text, "my.toml", folder).unwrap_or_else(|report| panic!("{}", report.render()));
        let text = of(Path::new("my.toml"), text, &config, &Machine::at(folder), Vec::new());
        // The folder's name differs from run to run, and the widths of columns depend on their contents.
        let mut text = text.replace(&format!("{}/", folder.display()), "");
        while text.contains("   ") {
            text = text.replace("   ", "  ");
        }
        text
    }

    #[test]
    fn the_summary_describes_wires() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("old.pcap"), "").unwrap();
        let text = r#"
            [runtime]
            workers = ["any", "any", "any", "any", "any"]
            idle = "yield"
            on_link_loss = "exit"
            stop_when_idle_ms = 300
            [[port]]
            name = "host-a"
            af_packet = { interface = "eth1" }
            [[port]]
            name = "host-b"
            mtu = 9000
            buffers = 16384
            af_xdp = { interface = "eth2", start_queue = 3 }
            [[port]]
            name = "tail"
            pcap = { tx = "old.pcap" }
            [forward]
            pairs = [["host-a", "host-b"], ["tail", "tail"]]
            verify = ["icrc"]
            drop = ["icrc", "truncated"]
            counted_qps = 64
        "#;
        let expected = "\
my.toml is valid. It would run:

port  device  MTU  queues  buffers
host-a  interface eth1 (AF_PACKET)  1500  1  8192
host-b  interface eth2 (AF_XDP from queue 3)  9000  1  16384
tail  plays nothing, records old.pcap  1500  1  8192

forward  host-a <-> host-b, tail reflects
counted  64 queue pairs with their health, in 46 KB per worker
settings  verify [\"icrc\"]; drop [\"icrc\", \"truncated\"]; counted_qps 64; health true
workers  5, placed by the kernel, yielding when idle
memory  272 MB in ordinary pages
ends  when no frame was received for 300 ms, or when interrupted (Ctrl-C), or when a port loses its link

note: 5 workers have 3 receive queues to poll: 2 will be idle
note: port `host-b`: this machine has no interface `eth2` at present (see `ip link`)
note: port `tail`: `old.pcap` exists and will be overwritten
";
        let shown = summary(text, folder.path());
        assert_eq!(shown, expected, "{shown}");
    }

    #[test]
    fn the_summary_describes_a_bridge_and_every_other_device() {
        let folder = tempfile::tempdir().unwrap();
        let devices = [
            ("pci = \"0000:3b:00.0\"", "PCI 0000:3b:00.0"),
            ("mlx5 = \"0000:3b:00.1\"\ndevargs = [\"mprq_en=1\"]", "PCI 0000:3b:00.1 (mprq_en=1)"),
            ("tap = { interface = \"us0\" }", "new interface us0 (TAP)"),
            ("memif = { socket = \"m\", id = 3, role = \"server\" }", "memif 3 of m (server)"),
            ("vhost = { socket = \"v\" }", "vhost-user v (server)"),
            ("vhost = { socket = \"w\", client = true }", "vhost-user w (client)"),
            ("ring = {}", "ring"),
            ("null = { copy = true }", "makes frames of 64 bytes, copied"),
        ];
        let ports: Vec<_> = devices
            .iter()
            .enumerate()
            .map(|(index, (device, _))| format!("[[port]]\nname = \"p{index}\"\n{device}\n"))
            .collect();
        let station = "{ mac = \"52:54:00:00:00:01\", port = \"p0\" }";
        let text = format!(
            "[runtime]\nworkers = [0]\nhugepages = true\n{}[forward.mac_table]\nageing_s = 60\nfixed = [{station}]\n",
            ports.concat()
        );
        let shown = summary(&text, folder.path());
        for (_, device) in devices {
            assert!(shown.contains(&format!("  {device}  ")), "{device} in\n{shown}");
        }
        for line in [
            "forward  a bridge that learns up to 4096 stations, each for 60 s, and has 1 fixed ones",
            "settings  verify []; drop []; counted_qps 1024; health true",
            "workers  1, on CPU 0",
            "memory  512 MB in huge pages",
            "ends  when interrupted (Ctrl-C)",
        ] {
            assert!(shown.contains(line), "{line} in\n{shown}");
        }
        assert!(shown.contains("  1 a worker  ") && !shown.contains("note:"), "{shown}");
    }

    #[test]
    fn the_summary_describes_wires_with_faults() {
        let folder = tempfile::tempdir().unwrap();
        let actions = [
            "action = \"drop\"\nmatch = { opcode = \"ack\", src = \"10.0.0.1\", psn = 5 }\nshare = 0.001",
            "action = \"delay\"\ndelay_us = 100\njitter_us = 50\nmatch = { qpn = 5 }\nskip = 3\ntimes = 1",
            "action = \"delay\"\ndelay_us = 100",
            "action = \"duplicate\"\ntimes = 7",
            "action = \"duplicate\"\ncopies = 2\nmatch = { psn_offset = 1 }",
            "action = \"reorder\"\nbehind = 3",
            "action = \"corrupt\"\nmatch = { port = \"a\", dst = \"10.0.0.1\" }",
            "action = \"corrupt\"\nfield = \"header\"",
            "action = \"corrupt\"\nfield = \"icrc\"",
            "action = \"mark\"",
            "action = \"mark\"\nforce = true",
        ];
        let rules = actions.map(|action| format!("[[impair.rule]]\n{action}\n")).concat();
        let head =
            "[runtime]\nworkers = [\"any\", \"any\"]\n[[port]]\nname = \"a\"\nrx_queues = 2\nring = {}\n";
        let shown = summary(&format!("{head}[impair]\npairs = [[\"a\", \"a\"]]\n{rules}"), folder.path());
        let expected = "\
impair  a reflects; seed 1; a worker holds back up to 4096 frames, in 6 MB
  `rule 1`: 0.1 % of the packets with its opcode, source and PSN are dropped
  `rule 2`: all of the packets with its QPN, except the first 3, are delayed by 100 to 150 us, once
  `rule 3`: all of the RoCEv2 packets are delayed by 100 us
  `rule 4`: all of the RoCEv2 packets are sent twice, up to 7 times
  `rule 5`: all of the packets with its PSN offset are sent 3 times
  `rule 6`: all of the RoCEv2 packets are sent behind 3 later ones, or after 10000 us
  `rule 7`: all of the packets with its destination and port get a bit flipped in the payload
  `rule 8`: all of the RoCEv2 packets get a bit flipped in the BTH
  `rule 9`: all of the RoCEv2 packets get a bit flipped in the ICRC
  `rule 10`: all of the RoCEv2 packets are ECN-marked if they are ECN-capable
  `rule 11`: all of the RoCEv2 packets are ECN-marked
counted  1024 queue pairs with their health, in 376 KB per worker
settings  seed 1; held 4096 frames; flows 4096; counted_qps 1024; health true
workers  2";
        assert!(shown.contains(expected), "{shown}");
        for rule in [2, 4, 5, 6] {
            let note = format!("note: rule `rule {rule}`: each of the 2 workers counts only its own packets");
            assert!(shown.contains(&note), "{shown}");
        }
        assert_eq!(shown.matches("note: rule").count(), 4, "{shown}");
        let shown = summary(
            "[[port]]\nname = \"a\"\nring = {}\n[impair]\npairs = [[\"a\", \"a\"]]\nseed = 3\n",
            folder.path(),
        );
        assert!(shown.contains("impair  a reflects; seed 3\ncounted"), "{shown}");
        assert!(shown.contains("note: [impair] has no [[impair.rule]]: all packets pass"), "{shown}");
    }
}
