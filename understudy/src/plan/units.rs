//! Writes what runs a plan's files as services: a script that installs those of one host, and the controller's unit.
//! Representatives are instances of the unit that the package has.

use super::File;
use crate::config::Network;
use representative::plan::PlannedSwitch;
use std::fmt::Write as _;

const SCRIPT: &str = include_str!("install.sh.in");
const CONTROLLER: &str = include_str!("understudy-controller.service.in");

/// Returns the script and, if the network has a controller, its unit.
pub(super) fn all(network: &Network) -> Vec<File> {
    let script = File { name: "install.sh".into(), content: script(network) };
    let name = "understudy-controller.service".to_owned();
    let controller = network.controller.as_ref().map(|_| File { name, content: CONTROLLER.into() });
    [Some(script), controller].into_iter().flatten().collect()
}

/// Returns the instances of a host: the names of its files as a representative and as a standby.
fn instances(network: &Network, host: usize) -> Vec<String> {
    let switches = network.topology.switches.iter().zip(&network.plan.switches);
    let of = |name: &str, planned: &PlannedSwitch| {
        let represents = (planned.representative == host).then(|| format!("{name}.representative"));
        let is_standby = planned.standby.as_ref().is_some_and(|standby| standby.host == host);
        [represents, is_standby.then(|| format!("{name}.standby"))]
    };
    switches.flat_map(|(switch, planned)| of(&switch.name, planned)).flatten().collect()
}

/// Returns the script. Names have letters and digits, `-`, `_` and `.` only, and need no quotes.
fn script(network: &Network) -> String {
    let hosts = &network.topology.hosts;
    let mut cases = String::new();
    for (number, host) in hosts.iter().enumerate() {
        let mut case = format!("{}) instances=\"{}\"", host.name, instances(network, number).join(" "));
        if !network.plan.hosts[number].is_empty() {
            _ = write!(case, " process={}.process.toml", host.name);
        }
        _ = writeln!(cases, "{case} ;;");
    }
    if network.controller.is_some() {
        cases += "--controller) ;;\n";
    }
    let secret = network.controller.as_ref().and_then(|controller| controller.secret_file.as_deref());
    let names: Vec<_> = hosts.iter().map(|host| host.name.as_str()).collect();
    SCRIPT
        .replace("@HOSTS@", &names.join(", "))
        .replace("@CASES@\n", &cases)
        .replace("@SECRET@", &quoted(secret.unwrap_or_default()))
}

/// Returns a word of the shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}
