//! The tables `[[port]]`.

use crate::clash;
use crate::device::{self, PlacedDevice};
use crate::report::Problem;
use crate::tree::{Table, Value, sections};
use crate::words::{all_of, meant};
use dataplane::config::Port;
use std::path::Path;
use switch::PortId;
use toml::Spanned;

/// Most ports: as many as DPDK is built for
const MAX_PORTS: usize = 32;
/// Longest name of a port, so that reports fit on a line
const MAX_NAME: usize = 32;
/// Buffers of a port where nothing is said, if they are enough
pub const BUFFERS: u64 = 8192;

/// A port as it was read: what was wrong or left out is `None`.
pub struct ReadPort {
    /// What the file calls it
    pub name: Option<Spanned<String>>,
    /// What it is
    pub device: Option<PlacedDevice>,
    /// Largest IP packet in bytes
    pub mtu: u16,
    /// Receive queues
    pub rx_queues: u16,
    /// Descriptors of each queue
    pub descriptors: u16,
    /// Packet buffers of its pool
    pub buffers: Option<Spanned<u64>>,
}

/// The ports of a file.
pub struct Ports {
    /// In the order of the file
    pub list: Vec<ReadPort>,
    /// Whether each has a name; otherwise a name that is not found may be that of a port that was not understood
    complete: bool,
}

/// Reads the tables `[[port]]`. Relative paths begin in `folder`.
pub fn read(root: &Table<'_>, folder: &Path) -> Ports {
    let tables = sections(root, "port");
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
            first_too_many.problem(format!("there are {} ports, more than DPDK takes", tables.len()));
        let help = format!("remove some: {MAX_PORTS} is the most");
        root.problems().add(problem.label("the first too many").help(help));
    }
    let list: Vec<ReadPort> = tables.into_iter().map(|table| port(table, folder)).collect();
    let complete = complete && list.iter().all(|port| port.name.is_some());
    let ports = Ports { list, complete };
    ports.report_equal_names(root);
    let devices = ports.list.iter().filter_map(|port| Some((port.called(), port.device.as_ref()?)));
    clash::report(devices, root.problems());
    ports
}

fn port(table: Table<'_>, folder: &Path) -> ReadPort {
    let name = table.require("name", "\"host-a\"").and_then(|value| name(&value));
    let mtu = table.number("mtu", 68..=9600, 1500) as u16;
    let queues = table.spanned_number("rx_queues", 0..=128, 1);
    let descriptors = table.power_of_two("descriptors", 32..=32768, 512) as u16;
    let buffers = table.spanned_number("buffers", 64..=1 << 26, BUFFERS);
    let called = name.as_ref().map_or("this port".into(), |name| format!("port `{}`", name.get_ref()));
    let device = device::read(&table, &called, folder);
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

/// A name that fits into reports and commands.
fn name(value: &Value<'_>) -> Option<Spanned<String>> {
    let text = value.text()?;
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if text.len() > MAX_NAME || !text.chars().all(plain) {
        let problem =
            value.problem("a port cannot have this name").label("too long, or not only letters and digits");
        value.add(problem.help(format!(
            "write up to {MAX_NAME} letters, digits, `-`, `_` and `.`, such as `name = \"host-a\"`"
        )));
    }
    // Wrong or not, this is the name by which the rest of the file knows it.
    Some(Spanned::new(value.span(), text.to_owned()))
}

impl Ports {
    /// The names, in the order of the ports
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.list.iter().filter_map(|port| Some(port.name.as_ref()?.get_ref().as_str()))
    }

    /// The port of the name that `value` is
    pub fn find(&self, value: &Value<'_>) -> Option<PortId> {
        let text = value.text()?;
        let position = |port: &ReadPort| port.name.as_ref().is_some_and(|name| name.get_ref() == text);
        if let Some(index) = self.list.iter().position(position) {
            return Some(PortId(index as u16));
        }
        if self.complete && !self.list.is_empty() {
            let meant = meant(text, self.names());
            let meant = meant.map(|name| format!("did you mean `{name}`? ")).unwrap_or_default();
            let problem = value.problem(format!("there is no port `{text}`")).label("not the name of a port");
            value.add(problem.help(format!("{meant}the ports are {}", all_of(self.names()))));
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
    /// What messages call it
    pub fn called(&self) -> String {
        self.name.as_ref().map_or("a port".into(), |name| format!("port `{}`", name.get_ref()))
    }

    /// The port, if nothing of it is wrong
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
