//! `[[port]]` tables.

use crate::conflicts;
use crate::device::{self, PlacedDevice};
use crate::report::Problem;
use crate::tree::{Table, Value, sections};
use crate::words::{all_of, closest};
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
