//! The table `[controller]` beside `[process]`: the controller of the reliable service.

use crate::config::Controller;
use core::fmt;
use core::net::SocketAddr;
use settings::declare::{TableSpec, boolean, other, special, whole};
use settings::report::Problem;
use settings::tree::{Table, Value};
use std::path::{Path, PathBuf};

/// Least value of `fail_after_intervals`, as of `dead_after_intervals`
const LEAST_FAIL_AFTER: u64 = 5;
/// Its default, as in the paper
const FAIL_AFTER: u32 = 10;

settings::table! {
    /// What each `[controller]` has
    pub enum CommonKeys "[controller]";
    /// File with the secret that all nodes, controllers and operators share: 16 bytes or more, readable by its owner alone
    secret_file: () = special("path") => optional("all programs are on this machine") example("secret");
    /// Intervals after which a silent link is reported to the controller, which waits for further reports for two more; not below `dead_after_intervals`
    fail_after_intervals: u32 = whole(LEAST_FAIL_AFTER..=1_000_000) => optional("10, or `dead_after_intervals` if that is more") example(10);
}

settings::table! {
    /// What `[controller]` of a process and of a representative have
    pub enum NodeKeys "[controller]" with CommonKeys;
    /// Addresses of the controllers
    addresses: Vec<SocketAddr> = other("list of addresses with ports", |value| value.list_of(reachable)) => required() example(["10.9.0.1:7070"]);
    /// Hash of the topology, as `understudy plan` writes it
    topology: u64 = other("string of 16 hexadecimal digits", hash) => required() example("00c0ffee00c0ffee");
}

settings::table! {
    /// Controller of 1Pipe's reliable service, beside `[process]`; without it, the service is refused
    pub(crate) enum Keys "[controller]" with NodeKeys;
    /// Whether messages of both services are received in one order, by `recv` alone
    merged: bool = boolean() => default(false);
    /// Buffer for reliable messages, which all members share
    reliable_buffer_kib: usize = whole(1..=1 << 30).unit("KiB") => default(131072);
    /// Members of the network, at most; the same in all processes
    max_members: usize = whole(2..=65_536) => default(512);
}

/// Table `[controller]` beside `[process]`
pub const TABLE: &TableSpec = &Keys::TABLE;

/// Reads an address with a port.
pub fn address(value: &Value<'_>) -> Option<SocketAddr> {
    let text = value.text()?;
    let address = text.parse().ok();
    if address.is_none() {
        refuse_address(value, text);
    }
    address
}

/// Reads an address to which nodes connect.
fn reachable(value: &Value<'_>) -> Option<SocketAddr> {
    let address = address(value)?;
    if address.port() == 0 {
        refuse_address(value, &address.to_string());
        return None;
    }
    Some(address)
}

/// Reports an address without a port, or one whose port a node cannot know.
pub fn refuse_address(value: &Value<'_>, address: &str) {
    let problem = value.problem(format!("`{address}` is not an address with a port"));
    let help = "write such as `\"10.9.0.1:7070\"` or `\"[fd00::1]:7070\"`; names are not resolved";
    value.add(problem.label("cannot be connected to").help(help));
}

/// Reads the hash of a topology.
fn hash(value: &Value<'_>) -> Option<u64> {
    let text = value.text()?;
    let is_hash = text.len() == 16 && text.bytes().all(|digit| digit.is_ascii_hexdigit());
    let hash = u64::from_str_radix(text, 16).ok().filter(|_| is_hash);
    if hash.is_none() {
        let problem = value.problem(format!("`{text}` is not the hash of a topology"));
        let help = "copy it from a file of `understudy plan --out DIR`";
        value.add(problem.label("not 16 hexadecimal digits").help(help));
    }
    hash
}

/// Returns the value of `secret_file`. Addresses on other machines, which `key` has, need it.
pub fn secret_file<'a>(
    table: &Table<'a>,
    addresses: &[SocketAddr],
    key: Option<&Value<'_>>,
) -> Option<Value<'a>> {
    let file = table.value(CommonKeys::secret_file);
    let far = addresses.iter().find(|address| !address.ip().to_canonical().is_loopback());
    if let (None, Some(far), Some(key)) = (&file, far, key) {
        let problem = key.problem(format!("there is no `secret_file`, and {far} is not a loopback address"));
        let help = "add `secret_file = \"secret\"`: any program could pose as the controller or as a node";
        key.add(problem.label("on another machine").help(help));
    }
    file
}

/// Returns the intervals after which a link is reported, which may not be fewer than those of best effort.
pub fn fail_after(table: &Table<'_>, least: u32) -> u32 {
    let Some(given) = table.spanned(CommonKeys::fail_after_intervals) else { return FAIL_AFTER.max(least) };
    let (span, intervals) = (given.span(), given.into_inner());
    if intervals < least {
        let message =
            format!("`fail_after_intervals` is {intervals}, below the `dead_after_intervals` of {least}");
        let help = format!("write {least} or more: a link leaves best effort before a process fails");
        table.problems().add(Problem::at(span, message).label("too few").help(help));
    }
    intervals
}

/// How a process or a representative reaches the controllers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Controllers {
    /// Addresses of the controllers
    pub addresses: Vec<SocketAddr>,
    /// File with the secret
    pub secret_file: Option<PathBuf>,
    /// Hash of the topology
    pub topology: u64,
}

impl fmt::Display for Controllers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let addresses: Vec<_> = self.addresses.iter().map(ToString::to_string).collect();
        let secret = if self.secret_file.is_some() { "with a secret" } else { "without a secret" };
        write!(f, "{} ({secret}; topology {:016x})", addresses.join(", "), self.topology)
    }
}

/// Reads what a process and a representative have in common, in a file in `folder`.
pub fn read_node(table: &Table<'_>, folder: &Path) -> Controllers {
    let (addresses, key) = (table.read(NodeKeys::addresses), table.value(NodeKeys::addresses));
    let secret_file = secret_file(table, addresses.as_deref().unwrap_or_default(), key.as_ref());
    if let (Some([]), Some(key)) = (addresses.as_deref(), &key) {
        let problem = key.problem("`addresses` is empty").label("no controller");
        key.add(problem.help("write `addresses = [\"10.9.0.1:7070\"]`, or remove [controller]"));
    }
    Controllers {
        addresses: addresses.unwrap_or_default(),
        secret_file: secret_file.and_then(|value| Some(folder.join(value.text()?))),
        topology: table.read(NodeKeys::topology).unwrap_or_default(),
    }
}

/// Reads the table of a file in `folder`, if the file has it; the problems are reported to the table.
pub fn read(root: &Table<'_>, folder: &Path, peers: usize) -> Option<Controller> {
    let table = root.optional_section(&Keys::TABLE)?;
    let max_members = table.read(Keys::max_members);
    if max_members <= peers {
        let message = format!("`max_members` is {max_members}, and there are {peers} peers");
        let problem = table.problem(message).label("too few");
        table.problems().add(problem.help(format!("write `max_members = {}` or more", peers + 1)));
    }
    let controller = Controller {
        controllers: read_node(&table, folder),
        fail_after: fail_after(&table, 0),
        is_merged: table.read(Keys::merged),
        reliable_buffer: table.read(Keys::reliable_buffer_kib) << 10,
        max_members,
    };
    table.finish();
    Some(controller)
}
