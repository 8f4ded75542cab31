//! Reads the table `[controller]` beside `[onepipe]`: the controller of the reliable service, whose states the
//! commit registers follow.

#[cfg(test)]
mod tests;

use crate::functions::function::File;
use onepipe_host::file::controller::{Controllers, NodeKeys, fail_after, read_node};
use representative::Config;
use representative::config::BeaconForm;
use settings::declare::whole;

settings::table! {
    /// Controller of 1Pipe's reliable service, beside `[onepipe]`; without it, links carry no commit barrier
    pub(crate) enum Keys "[controller]" with NodeKeys;
    /// Number of the switch in the topology: its place in the file, from 0
    switch: u16 = whole(0..=65_534) => required() example(0);
    /// Which of the switch's representatives this is: 0, or 1 for the standby
    seat: u8 = whole(0..=1) => default(0);
}

/// Contents of `[controller]`, but for what the representative takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ControllerConfig {
    /// How the representative reaches the controllers
    pub(crate) controllers: Controllers,
    /// Number of the switch
    pub(crate) switch: u16,
    /// Which of its representatives this is
    pub(crate) seat: u8,
}

/// Reads `[controller]`, if the file has it, and lets the switch take part in the reliable service.
pub(super) fn read_optional(
    file: &File<'_>,
    switch: &mut Config,
    names: &[String],
) -> Option<ControllerConfig> {
    let table = file.root.optional_section(&Keys::TABLE)?;
    let (controllers, number) = (read_node(&table, file.folder), table.read(Keys::switch));
    let seat = table.read(Keys::seat);
    switch.fail_after_intervals = Some(fail_after(&table, switch.dead_after_intervals));
    for (name, _) in names.iter().zip(&switch.links).filter(|(_, link)| link.beacon != BeaconForm::Datagram) {
        let message =
            format!("[controller] needs beacons that are datagrams, and those of link `{name}` are WRITEs");
        let help = "remove `beacon` from that link: a WRITE does not name its queue pair, by which the neighbour recognises this switch";
        table.problems().add(table.problem(message).label("commit barriers would be refused").help(help));
    }
    table.finish();
    Some(ControllerConfig { controllers, switch: number?, seat })
}
