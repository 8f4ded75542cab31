//! `[[port]]` tables.

use crate::conflicts;
use crate::declare::{Key, Optional, inline, other, power_of_two, special, whole};
use crate::device::{self, InterfaceKeys, MemifKeys, NullKeys, PlacedDevice, RingKeys, VhostKeys, XdpKeys};
use crate::pcap::PcapKeys;
use crate::report::Problem;
use crate::tree::{Table, Value};
use crate::words::{all_of, closest, one_of};
use dataplane::config::Port;
use std::path::Path;
use switch::PortId;
use toml::Spanned;

/// Maximum count of ports that DPDK is built for
const MAX_PORTS: usize = 32;
/// Maximum length of a port's name, so that a line of a report holds it
const MAX_NAME: usize = 32;
/// Default count of a port's buffers, if that is enough
pub const BUFFERS: u64 = 8192;

/// A port as read; missing or invalid values are `None`.
pub struct ReadPort {
    /// Name of the port
    pub name: Option<Spanned<String>>,
    /// Device of the port
    pub device: Option<PlacedDevice>,
    /// MTU: largest IP packet, in bytes
    pub mtu: u16,
    /// Count of receive queues
    pub rx_queues: u16,
    /// Count of descriptors of each queue
    pub descriptors: u16,
    /// Count of packet buffers in the port's pool
    pub buffers: Option<Spanned<u64>>,
}

/// The ports of a file.
pub struct Ports {
    /// Ports in the order of the file
    pub list: Vec<ReadPort>,
    /// Whether each port has a name. If not, an unknown name may be that of a port that could not be read
    complete: bool,
}

/// Reads the `[[port]]` tables. Relative paths are relative to `folder`.
pub fn read(root: &Table<'_>, folder: &Path) -> Ports {
    let tables = root.sections(&Keys::TABLE);
    let complete = tables.is_some();
    let tables = tables.unwrap_or_default();
    if tables.is_empty() && complete {
        root.problems().add(Problem::of_file("there is no port").help(
            "add one for each device, such as\n\
             \n\
             [[port]]\n\
             name = \"host-a\"\n\
             af_packet = { interface = \"eth1\" }",
        ));
    }
    if let Some(first_too_many) = tables.get(MAX_PORTS) {
        let problem =
            first_too_many.problem(format!("there are {} ports, more than DPDK supports", tables.len()));
        let help = format!("remove some: {MAX_PORTS} is the most");
        root.problems().add(problem.label("the first too many").help(help));
    }
    let list: Vec<ReadPort> = tables.into_iter().map(|table| port(table, folder)).collect();
    let complete = complete && list.iter().all(|port| port.name.is_some());
    let ports = Ports { list, complete };
    ports.report_equal_names(root);
    let devices = ports.list.iter().filter_map(|port| Some((port.display_name(), port.device.as_ref()?)));
    conflicts::report(devices, root.problems());
    ports
}

crate::table! {
    /// A port; one table for each, with exactly one device
    pub(crate) enum Keys "[[port]]";
    /// Name by which other tables and reports refer to the port
    name: Spanned<String> = other("up to 32 letters, digits, `-`, `_` and `.`", name) => required() example("host-a");
    /// Largest IP packet
    mtu: u16 = whole(68..=9600).unit("bytes") => default(1500);
    /// Receive queues; 0 means one for each worker with a device on PCI, and one with any other
    rx_queues: u64 = whole(0..=128) => optional("as 0") example(1);
    /// Descriptors of each queue; a power of two
    descriptors: u16 = power_of_two(32..=32768) => default(512);
    /// Packet buffers of the port
    buffers: u64 = whole(64..=1 << 26) => optional("8192, or more if the queues need it") example(8192);
    /// Device on PCI with a DPDK driver: domain, bus, device and function
    pci: () = special("PCI address") => optional("another device") example("0000:3b:00.0");
    /// The same for a NVIDIA ConnectX, whose kernel driver stays
    mlx5: () = special("PCI address") => optional("another device") example("0000:3b:00.0");
    /// Interface of the kernel, through an AF_PACKET socket
    af_packet: () = inline(&InterfaceKeys::TABLE) => optional("another device") example({ interface = "eth1" });
    /// Interface of the kernel, through AF_XDP sockets
    af_xdp: () = inline(&XdpKeys::TABLE) => optional("another device") example({ interface = "eth1", start_queue = 0 });
    /// New interface of the kernel
    tap: () = inline(&InterfaceKeys::TABLE) => optional("another device") example({ interface = "us0" });
    /// Shared memory with another process on this machine
    memif: () = inline(&MemifKeys::TABLE) => optional("another device") example({ socket = "/run/understudy/memif.sock", id = 0, role = "server" });
    /// Shared memory with a virtual machine
    vhost: () = inline(&VhostKeys::TABLE) => optional("another device") example({ socket = "/run/understudy/vm.sock" });
    /// Ring in this process: what is sent is received
    ring: () = inline(&RingKeys::TABLE) => optional("another device") example({});
    /// Captures: one to play, one to record
    pcap: () = inline(&PcapKeys::TABLE) => optional("another device") example({ rx = "in.pcap", tx = "out.pcap" });
    /// Generator of empty frames, which drops what is sent
    null: () = inline(&NullKeys::TABLE) => optional("another device") example({ size = 64 });
    /// Arguments of the driver of a device on PCI
    devargs: () = special("list of `\"key=value\"`") => optional("the driver's defaults") example(["mprq_en=1"]);
}

/// Keys that name a device
const DEVICES: [Key<(), Optional>; 10] = [
    Keys::pci,
    Keys::mlx5,
    Keys::af_packet,
    Keys::af_xdp,
    Keys::tap,
    Keys::memif,
    Keys::vhost,
    Keys::ring,
    Keys::pcap,
    Keys::null,
];

fn port(table: Table<'_>, folder: &Path) -> ReadPort {
    let name = table.read(Keys::name);
    let mtu = table.read(Keys::mtu);
    let queues = table.spanned(Keys::rx_queues);
    let descriptors = table.read(Keys::descriptors);
    let buffers = table.spanned(Keys::buffers);
    let called = name.as_ref().map_or("this port".into(), |name| format!("port `{}`", name.get_ref()));
    let device = device(&table, &called, folder);
    if let Some(device) = &device {
        device.check_frames(mtu, &called, table.problems());
        if let Some(queues) = &queues {
            device.check_queues(queues, &called, table.problems());
        }
    }
    let rx_queues = queues.map_or(0, Spanned::into_inner) as u16;
    table.finish();
    ReadPort { name, device, mtu, rx_queues, descriptors, buffers }
}

/// Reads the device of a port. `called` is the port's name in messages; relative paths are relative to
/// `folder`.
fn device(table: &Table<'_>, called: &str, folder: &Path) -> Option<PlacedDevice> {
    let mut given: Vec<_> =
        DEVICES.iter().filter_map(|&key| Some((key.spec.name, table.value(key)?))).collect();
    given.sort_by_key(|(_, value)| value.span().start);
    let devargs = table.value(Keys::devargs);
    match given.as_slice() {
        [] => table.problems().add(
            table
                .problem(format!("{called} has no device"))
                .label("no device")
                .help(format!("add one of {}, such as `af_packet = {{ interface = \"eth1\" }}`", names())),
        ),
        [_] => {}
        [(_, first), (_, second), ..] => table.problems().add(
            Problem::at(second.key_span(), format!("{called} has {} devices", given.len()))
                .label("second device")
                .also(first.key_span(), "first device")
                .help("keep one, and write a [[port]] for each of the others"),
        ),
    }
    let hardware = given.iter().any(|(key, _)| matches!(*key, "pci" | "mlx5"));
    if let (Some(devargs), false) = (&devargs, hardware) {
        let problem = Problem::at(devargs.key_span(), "`devargs` is only valid for hardware")
            .label("this port is not hardware");
        devargs.add(problem.help("remove it, or use `pci` or `mlx5` for this port"));
    }
    let devargs = devargs.filter(|_| hardware).as_ref().map(device::driver_arguments).unwrap_or_default();
    // Reads all of them, to report the problems of each.
    let read: Vec<_> = given.iter().map(|(key, value)| device::read(key, value, &devargs, folder)).collect();
    read.into_iter().flatten().next()
}

/// Returns the device keys as a list for messages.
fn names() -> String {
    one_of(DEVICES.iter().map(|key| key.spec.name))
}

/// Reads a port's name, which has to be suitable for reports and commands.
fn name(value: &Value<'_>) -> Option<Spanned<String>> {
    let text = value.text()?;
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if text.len() > MAX_NAME || !text.chars().all(plain) {
        let problem = value
            .problem("not a valid name of a port")
            .label("too long, or with other characters than letters and digits");
        value.add(problem.help(format!(
            "write up to {MAX_NAME} letters, digits, `-`, `_` and `.`, such as `name = \"host-a\"`"
        )));
    }
    // Valid or not, the rest of the file refers to the port by this name.
    Some(Spanned::new(value.span(), text.to_owned()))
}

impl Ports {
    /// Returns ports of a configuration that was read before, to which other texts refer by name.
    pub fn of(ports: &[Port]) -> Self {
        let port = |port: &Port| ReadPort {
            name: Some(Spanned::new(0..0, port.name.clone())),
            device: None,
            mtu: port.mtu,
            rx_queues: port.rx_queues,
            descriptors: port.descriptors,
            buffers: None,
        };
        Self { list: ports.iter().map(port).collect(), complete: true }
    }

    /// Names of the ports, in their order
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.list.iter().filter_map(|port| Some(port.name.as_ref()?.get_ref().as_str()))
    }

    /// Returns the port whose name is `value`, or reports that there is none.
    pub fn find(&self, value: &Value<'_>) -> Option<PortId> {
        let text = value.text()?;
        let position = |port: &ReadPort| port.name.as_ref().is_some_and(|name| name.get_ref() == text);
        if let Some(index) = self.list.iter().position(position) {
            return Some(PortId(index as u16));
        }
        if self.complete && !self.list.is_empty() {
            let meant = closest(text, self.names());
            let meant = meant.map(|name| format!("did you mean `{name}`? ")).unwrap_or_default();
            let problem = value.problem(format!("there is no port `{text}`")).label("not the name of a port");
            let mut names: Vec<_> = self.names().collect();
            names.dedup();
            let are = if names.len() == 1 { "the only port is" } else { "the ports are" };
            value.add(problem.help(format!("{meant}{are} {}", all_of(names))));
        }
        None
    }

    fn report_equal_names(&self, root: &Table<'_>) {
        let names: Vec<&Spanned<String>> = self.list.iter().filter_map(|port| port.name.as_ref()).collect();
        for (index, name) in names.iter().enumerate() {
            if let Some(first) = names[..index].iter().find(|first| first.get_ref() == name.get_ref()) {
                let problem = Problem::at(name.span(), format!("two ports are called `{}`", name.get_ref()));
                let problem = problem.label("again").also(first.span(), "first here");
                root.problems().add(problem.help("give each port a name of its own"));
            }
        }
    }
}

impl ReadPort {
    /// Name in messages
    pub fn display_name(&self) -> String {
        self.name.as_ref().map_or("a port".into(), |name| format!("port `{}`", name.get_ref()))
    }

    /// Returns the port, or `None` if it has problems.
    pub fn build(self, default_buffers: u64) -> Option<Port> {
        Some(Port {
            name: self.name?.into_inner(),
            device: self.device?.device,
            mtu: self.mtu,
            rx_queues: self.rx_queues,
            descriptors: self.descriptors,
            buffers: self.buffers.map_or(default_buffers, Spanned::into_inner) as u32,
            share_from: None,
        })
    }
}
