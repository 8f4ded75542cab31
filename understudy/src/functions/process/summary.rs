//! Describes the 1Pipe process of `[process]`.

use onepipe_host::Settings;

pub(super) fn lines(config: &Settings) -> Vec<(&'static str, String)> {
    let process = &config.process;
    let (address, prefix) = config.address();
    let mac = config.mac.map_or("the port's MAC address".into(), |mac| mac.to_string());
    let tunnel = match process.tor.detour.first() {
        Some(end) => format!(", through the tunnel that ends at {end}"),
        None => String::new(),
    };
    let mut lines = vec![
        (
            "process",
            format!("{} at {address}/{prefix}, {mac}, queue pair {}", process.own.id, process.own.qpn),
        ),
        (
            "beacons",
            format!(
                "every {} ns, to queue pair {} of {} for {}{tunnel}",
                process.beacon_interval.0, process.tor.qpn, process.tor.address, config.switch
            ),
        ),
        ("peers", process.peers.len().to_string()),
    ];
    if let Some(controller) = &config.controller {
        lines.push(("controller", controller.controllers.to_string()));
    }
    lines
}
