//! Devices of ports.

use crate::declare::{boolean, other, special, whole, words};
use crate::paths::socket_path;
use crate::report::Problem;
use crate::tree::{Problems, Table, Value};
use crate::{capture, pcap};
use core::ops::Range;
use dataplane::config::Device;
use std::path::Path;
use toml::Spanned;

crate::table! {
    /// Interface of the kernel
    pub(crate) enum InterfaceKeys "`interface`";
    /// Name of the interface, as `ip link` shows it
    interface: String = other("name of an interface", interface) => required() example("eth1");
}

crate::table! {
    /// Interface of the kernel with AF_XDP
    pub(crate) enum XdpKeys "`af_xdp`" with InterfaceKeys;
    /// First queue of the interface that the port uses
    start_queue: u16 = whole(0..=1023) => default(0);
}

crate::table! {
    /// Shared memory with another process
    pub(crate) enum MemifKeys "`memif`";
    /// Path of the socket over which the two processes find each other
    socket: () = special("path") => required() example("/run/understudy/memif.sock");
    /// Number of the interface at the socket
    id: u32 = whole(0..=u32::MAX as u64) => default(0);
    /// Which end the port is; the other process has the other one
    role: bool = words(&[("server", true), ("client", false)]) => required() example("server");
    /// User whose processes may connect to a server
    peer_uid: u32 = whole(0..=u32::MAX as u64 - 1) => optional("the user of this process") example(1000);
}

crate::table! {
    /// Shared memory with a virtual machine
    pub(crate) enum VhostKeys "`vhost`";
    /// Path of the vhost-user socket
    socket: () = special("path") => required() example("/run/understudy/vm.sock");
    /// Whether the port connects to a socket of the virtual machine, instead of opening one
    client: bool = boolean() => default(false);
}

crate::table! {
    /// Ring in this process
    pub(crate) enum RingKeys "`ring`";
}

crate::table! {
    /// Generator of empty frames
    pub(crate) enum NullKeys "`null`";
    /// Size of a received frame
    size: u16 = whole(ETHERNET as u64..=9600 + ETHERNET as u64).unit("bytes") => default(64);
    /// Whether the frames are copied, which costs what a device's driver costs
    copy: bool = boolean() => default(false);
}

/// Maximum length of an interface name: `IFNAMSIZ` without the terminating zero
const MAX_INTERFACE: usize = 15;
/// Length of an Ethernet header, in bytes
const ETHERNET: u16 = 14;

/// A device and its position in the file.
pub struct PlacedDevice {
    /// The device
    pub device: Device,
    /// Byte range of the key
    pub key: Range<usize>,
    /// Byte range of the value
    pub value: Range<usize>,
    /// Contents of the captures that the device plays, if the size of its pool depends on them
    pub capture: Option<capture::Size>,
}

/// Reads the device that `key` names. `devargs` are arguments for the driver of hardware; relative paths are
/// relative to `folder`.
pub(crate) fn read(key: &str, value: &Value<'_>, devargs: &[String], folder: &Path) -> Option<PlacedDevice> {
    let mut capture = None;
    let device = match key {
        "pci" | "mlx5" => Device::Pci { address: pci_address(value)?, devargs: devargs.to_vec() },
        "pcap" => {
            let table = inline(value, key, "rx")?;
            let (device, size) = pcap::read(&table, folder);
            table.finish();
            capture = size;
            device?
        }
        "ring" => {
            inline(value, key, "")?.finish();
            Device::Ring
        }
        "null" => {
            let table = inline(value, key, "")?;
            let size = table.read(NullKeys::size);
            let copy = table.read(NullKeys::copy);
            table.finish();
            Device::Null { size, copy }
        }
        "memif" | "vhost" => {
            let table = inline(value, key, "socket")?;
            let device = if key == "memif" { memif(&table, folder) } else { vhost(&table, folder) };
            table.finish();
            device?
        }
        _ => {
            let table = inline(value, key, "interface")?;
            let interface = table.read(InterfaceKeys::interface);
            let start_queue = if key == "af_xdp" { table.read(XdpKeys::start_queue) } else { 0 };
            table.finish();
            let interface = interface?;
            match key {
                "af_packet" => Device::AfPacket { interface },
                "af_xdp" => Device::AfXdp { interface, start_queue },
                _ => Device::Tap { interface },
            }
        }
    };
    Some(PlacedDevice { device, key: value.key_span(), value: value.span(), capture })
}

/// Returns the inline table of a device. A bare string is reported with the key `first` that it probably
/// belongs to.
fn inline<'a>(value: &Value<'a>, key: &str, first: &str) -> Option<Table<'a>> {
    if let (Some(text), false) = (value.text_if_any(), first.is_empty()) {
        let problem = value.problem(format!("`{key}` has to be a table in braces")).label("a string alone");
        value.add(problem.help(format!("write `{key} = {{ {first} = \"{text}\" }}`")));
        return None;
    }
    value.table(&format!("`{key}`"))
}

/// Reads a PCI address with domain, bus, device and function, as `lspci -D` prints it.
fn pci_address(value: &Value<'_>) -> Option<String> {
    let text = value.text()?;
    let hex = |part: &str, digits: usize, max: u32| {
        let right = part.len() == digits && part.bytes().all(|c| c.is_ascii_hexdigit());
        right && u32::from_str_radix(part, 16).is_ok_and(|number| number <= max)
    };
    let fits = |text: &str| {
        let (domain, rest) = text.split_once(':')?;
        let (bus, rest) = rest.split_once(':')?;
        let (device, function) = rest.split_once('.')?;
        let fits = hex(domain, 4, 0xffff) && hex(bus, 2, 0xff) && hex(device, 2, 0x1f) && hex(function, 1, 7);
        fits.then(|| text.to_ascii_lowercase())
    };
    let address = fits(text);
    if address.is_none() {
        let whole = fits(&format!("0000:{text}"));
        let problem = value.problem(format!("`{text}` is not a PCI address")).label("not DDDD:BB:DD.F");
        value.add(match whole {
            Some(whole) => problem.help(format!("add the domain: `\"{whole}\"`")),
            None => problem.help(
                "write domain, bus, device and function as `lspci -D` shows them, such as `\"0000:3b:00.0\"`; \
                 `understudy doctor` lists the network cards",
            ),
        });
    }
    address
}

pub(crate) fn driver_arguments(value: &Value<'_>) -> Vec<String> {
    let argument = |element: Value<'_>| {
        let text = element.text()?;
        let whole =
            text.split_once('=').is_some_and(|(key, _)| !key.is_empty()) && !text.contains([',', ' ']);
        if !whole {
            let problem =
                element.problem(format!("`{text}` is not a driver argument")).label("not key=value");
            element.add(problem.help("write each as `key=value`, such as `devargs = [\"mprq_en=1\"]`"));
        }
        whole.then(|| text.to_owned())
    };
    value.list().unwrap_or_default().into_iter().filter_map(argument).collect()
}

fn interface(value: &Value<'_>) -> Option<String> {
    let text = value.text()?;
    if text.len() > MAX_INTERFACE {
        let message =
            format!("an interface has a name of {MAX_INTERFACE} bytes at most, and this has {}", text.len());
        value.add(
            value
                .problem(message)
                .label("too long")
                .help("choose a shorter name; `ip link` lists what there is"),
        );
        return None;
    }
    let forbidden = |c: char| c.is_whitespace() || c.is_control() || "/:,=[]".contains(c);
    if text.contains(forbidden) || text == "." || text == ".." {
        let problem = value.problem(format!("`{text}` cannot be the name of an interface"));
        value.add(
            problem
                .label("has a character that is not allowed")
                .help("use letters, digits, `-`, `_` and `.`; `ip link` lists what there is"),
        );
        return None;
    }
    Some(text.to_owned())
}

fn memif(table: &Table<'_>, folder: &Path) -> Option<Device> {
    let socket = table.value(MemifKeys::socket).and_then(|value| socket_path(&value, folder));
    let (id, role) = (table.read(MemifKeys::id), table.read(MemifKeys::role));
    let peer_uid = table.read(MemifKeys::peer_uid);
    Some(Device::Memif { socket: socket?, id, server: role?, peer_uid })
}

fn vhost(table: &Table<'_>, folder: &Path) -> Option<Device> {
    let socket = table.value(VhostKeys::socket).and_then(|value| socket_path(&value, folder));
    let client = table.read(VhostKeys::client);
    Some(Device::Vhost { socket: socket?, client })
}

impl PlacedDevice {
    /// Reports a count of receive queues that the device does not have.
    pub fn check_queues(&self, queues: &Spanned<u64>, called: &str, problems: &Problems) {
        let Device::Pcap { rx, .. } = &self.device else { return };
        let files = rx.len().max(1) as u64;
        let requested = *queues.get_ref();
        if requested != 0 && requested != files {
            let problem =
                Problem::at(queues.span(), format!("{called} has a receive queue for each file it plays"));
            problems
                .add(problem.label(format!("but there are {files} of them")).help("leave `rx_queues` out"));
        }
    }

    /// Reports frames that are longer than the port's buffers.
    pub fn check_frames(&self, mtu: u16, called: &str, problems: &Problems) {
        let longest = mtu + ETHERNET;
        let problem = match (&self.device, self.capture) {
            (Device::Null { size, .. }, _) if *size > longest => {
                let message =
                    format!("{called} generates frames of {size} bytes, but its MTU allows only {longest}");
                Problem::at(self.value.clone(), message)
                    .label("too long for the MTU")
                    .help(format!("set `mtu = {}`, or `size = {longest}` at most", size - ETHERNET))
            }
            // DPDK loads the whole capture into buffers, one for each frame.
            (_, Some(size)) if size.longest > u32::from(longest.max(2048)) => {
                let mtu = size.longest - u32::from(ETHERNET);
                let message = format!(
                    "{called} plays frames of {} bytes, but its MTU allows only {longest}",
                    size.longest
                );
                Problem::at(self.value.clone(), message).label("too long for the MTU").help(if mtu <= 9600 {
                    format!("set `mtu = {mtu}`")
                } else {
                    "9600 is the largest MTU: remove `infinite`, or play another capture".into()
                })
            }
            _ => return,
        };
        problems.add(problem);
    }
}
