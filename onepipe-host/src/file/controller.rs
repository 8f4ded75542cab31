//! The table `[controller]` beside `[process]`: the controller of the reliable service.

use crate::config::Controller;
use core::net::SocketAddr;
use settings::declare::{TableSpec, boolean, other, special, whole};
use settings::tree::{Table, Value};
use std::path::Path;

/// Least number of intervals after which a process reports its silent link
pub const LEAST_FAIL_AFTER: u32 = 5;

settings::table! {
    /// Controller of 1Pipe's reliable service, beside `[process]`; without it, the service is refused
    pub(crate) enum Keys "[controller]";
    /// Addresses of the controllers
    addresses: Vec<SocketAddr> = other("list of addresses with ports", |value| value.list_of(address)) => required() example(["10.9.0.1:7070"]);
    /// File with the secret that all nodes and controllers share
    secret_file: () = special("path") => optional("only controllers on this machine can be reached") example("secret");
    /// Hash of the topology, as `understudy plan` writes it
    topology: u64 = other("string of 16 hexadecimal digits", hash) => required() example("00c0ffee00c0ffee");
    /// Intervals after which the process's silent link is reported to the controller
    fail_after_intervals: u32 = whole(LEAST_FAIL_AFTER as u64..=1_000_000) => default(10);
    /// Whether messages of both services are received in one order, by `recv` alone
    merged: bool = boolean() => default(false);
    /// Buffer for reliable messages, which all members share
    reliable_buffer_kib: usize = whole(1..=1 << 30).unit("KiB") => default(131072);
    /// Members of the network, at most; the same in all processes
    max_members: usize = whole(2..=65_536) => default(512);
}

/// Table `[controller]` beside `[process]`
pub const TABLE: &TableSpec = &Keys::TABLE;

/// Reads an address with a port, as every node's `[controller]` has them.
pub fn address(value: &Value<'_>) -> Option<SocketAddr> {
    let text = value.text()?;
    let address = text.parse::<SocketAddr>().ok().filter(|address| address.port() != 0);
    if address.is_none() {
        let problem = value.problem(format!("`{text}` is not an address with a port"));
        let help = "write such as `\"10.9.0.1:7070\"` or `\"[fd00::1]:7070\"`; names are not resolved";
        value.add(problem.label("cannot be connected to").help(help));
    }
    address
}

/// Reads the hash of a topology, as every node's `[controller]` has it.
pub fn hash(value: &Value<'_>) -> Option<u64> {
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

/// Reports controllers on other machines, if there is no secret.
pub fn check_secret(key: &Value<'_>, addresses: &[SocketAddr]) {
    let far = addresses.iter().find(|address| !address.ip().to_canonical().is_loopback());
    if let Some(far) = far {
        let problem = key.problem(format!("there is no `secret_file`, and {far} is not a loopback address"));
        let help = "add `secret_file = \"secret\"`: any program could pose as the controller";
        key.add(problem.label("on another machine").help(help));
    }
}

/// Checks the addresses of the controllers in any node's `[controller]`.
pub fn check_addresses(key: &Value<'_>, addresses: &[SocketAddr], has_secret: bool) {
    if !has_secret {
        check_secret(key, addresses);
    }
    if addresses.is_empty() {
        let problem = key.problem("`addresses` is empty").label("no controller");
        key.add(problem.help("write `addresses = [\"10.9.0.1:7070\"]`, or remove [controller]"));
    }
}

/// Reads the table of a file in `folder`, if the file has it; the problems are reported to the table.
pub fn read(root: &Table<'_>, folder: &Path, peers: usize) -> Option<Controller> {
    if root.header_span(&Keys::TABLE).is_none() {
        root.problems().add_absent(&Keys::TABLE);
        return None;
    }
    let table = root.section(&Keys::TABLE)?;
    let (addresses, key) = (table.read(Keys::addresses), table.value(Keys::addresses));
    let secret_file = table.value(Keys::secret_file);
    if let (Some(addresses), Some(key)) = (&addresses, &key) {
        check_addresses(key, addresses, secret_file.is_some());
    }
    let max_members = table.read(Keys::max_members);
    if max_members <= peers {
        let message = format!("`max_members` is {max_members}, and there are {peers} peers");
        let problem = table.problem(message).label("too few");
        table.problems().add(problem.help(format!("write `max_members = {}` or more", peers + 1)));
    }
    let controller = Controller {
        topology: table.read(Keys::topology).unwrap_or_default(),
        fail_after: table.read(Keys::fail_after_intervals),
        is_merged: table.read(Keys::merged),
        reliable_buffer: table.read(Keys::reliable_buffer_kib) << 10,
        max_members,
        secret_file: secret_file.and_then(|value| Some(folder.join(value.text()?))),
        addresses: addresses.unwrap_or_default(),
    };
    table.finish();
    Some(controller)
}
