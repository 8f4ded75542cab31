//! Reads the table `[controller]` beside `[onepipe]`: the controller of the reliable service, whose states the
//! commit registers follow.

#[cfg(test)]
mod tests;

use crate::functions::function::File;
use core::net::SocketAddr;
use onepipe_host::file::controller::{address, check_addresses, hash};
use representative::Config;
use representative::config::BeaconForm;
use settings::declare::{Key, Optional, other, special, whole};
use settings::report::Problem;
use settings::tree::Table;
use std::path::PathBuf;

/// Default of `fail_after_intervals`, as in the paper
const FAIL_AFTER: u32 = 10;

settings::table! {
    /// Controller of 1Pipe's reliable service, beside `[onepipe]`; without it, links carry no commit barrier
    pub(crate) enum Keys "[controller]";
    /// Addresses of the controllers
    addresses: Vec<SocketAddr> = other("list of addresses with ports", |value| value.list_of(address)) => required() example(["10.9.0.1:7070"]);
    /// File with the secret that all nodes and controllers share
    secret_file: () = special("path") => optional("only controllers on this machine can be reached") example("secret");
    /// Number of the switch in the topology: its place in the file, from 0
    switch: u16 = whole(0..=65_534) => required() example(0);
    /// Hash of the topology, as `understudy plan` writes it
    topology: u64 = other("string of 16 hexadecimal digits", hash) => required() example("00c0ffee00c0ffee");
    /// Intervals after which a silent link is reported to the controller
    fail_after_intervals: u32 = whole(1..=1_000_000) => optional("10, or `dead_after_intervals` if that is more") example(10);
}

/// Contents of `[controller]`, but for what the representative takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ControllerConfig {
    /// Addresses of the controllers
    pub(crate) addresses: Vec<SocketAddr>,
    /// File with the secret
    pub(crate) secret_file: Option<PathBuf>,
    /// Number of the switch
    pub(crate) switch: u16,
    /// Hash of the topology
    pub(crate) topology: u64,
}

/// Reads `[controller]`, if the file has it, and lets the switch take part in the reliable service.
pub(super) fn read_optional(
    file: &File<'_>,
    switch: &mut Config,
    names: &[String],
) -> Option<ControllerConfig> {
    let Some(given) = file.root.header_span(&Keys::TABLE) else {
        file.root.problems().add_absent(&Keys::TABLE);
        return None;
    };
    let table = file.root.section(&Keys::TABLE)?;
    let (addresses, key) = (table.read(Keys::addresses), table.value(Keys::addresses));
    let secret_file = table.value(Keys::secret_file);
    if let (Some(addresses), Some(key)) = (&addresses, &key) {
        check_addresses(key, addresses, secret_file.is_some());
    }
    let (number, topology) = (table.read(Keys::switch), table.read(Keys::topology));
    let intervals = fail_after(&table, Keys::fail_after_intervals, switch.dead_after_intervals);
    switch.fail_after_intervals = Some(intervals);
    for (name, _) in names.iter().zip(&switch.links).filter(|(_, link)| link.beacon != BeaconForm::Datagram) {
        let message =
            format!("[controller] needs beacons that are datagrams, and those of link `{name}` are WRITEs");
        let help = "remove `beacon` from that link: a WRITE does not name its queue pair, by which the neighbour recognises this switch";
        table
            .problems()
            .add(Problem::at(given.clone(), message).label("commit barriers would be refused").help(help));
    }
    let secret_file = secret_file.and_then(|value| Some(file.folder.join(value.text()?)));
    table.finish();
    Some(ControllerConfig { addresses: addresses?, secret_file, switch: number?, topology: topology? })
}

/// Reads the intervals after which a link is reported, which may not be fewer than those of best effort.
pub(crate) fn fail_after(table: &Table<'_>, key: Key<u32, Optional>, least: u32) -> u32 {
    let Some(given) = table.spanned(key) else { return FAIL_AFTER.max(least) };
    let (span, intervals) = (given.span(), given.into_inner());
    if intervals < least {
        let message =
            format!("`fail_after_intervals` is {intervals}, below the `dead_after_intervals` of {least}");
        let help = format!("write {least} or more: a link leaves best effort before a process fails");
        table.problems().add(Problem::at(span, message).label("too few").help(help));
    }
    intervals
}
