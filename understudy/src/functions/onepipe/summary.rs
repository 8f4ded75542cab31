//! Describes what `[onepipe]` would run.

use super::OnePipeConfig;
use crate::functions::forward::summary::{counted, forwarding_mode};
use dataplane::config::Port;
use representative::config::{BeaconForm, Incarnation, Link, Side};

pub(super) fn lines(config: &OnePipeConfig, ports: &[Port]) -> Vec<(&'static str, String)> {
    let switch = &config.switch;
    let addresses: Vec<_> = config.addresses.iter().map(|(ip, prefix)| format!("{ip}/{prefix}")).collect();
    let mac = config.mac.map_or("the first port's MAC address".into(), |mac| mac.to_string());
    let incarnation = match switch.incarnation {
        Incarnation::Chip => "barriers in the switch: messages carry them",
        Incarnation::SwitchCpu => "barriers on the switch's CPU: beacons alone carry them",
        Incarnation::Host => {
            "barriers on a host beside the switch: beacons pass the links that they describe"
        }
    };
    let mut lines = vec![
        ("1Pipe", format!("{} at {mac}; {incarnation}", addresses.join(", "))),
        counted(switch.forward.counted_qps, switch.forward.health),
        ("", format!("other frames: {}", forwarding_mode(&switch.forward.mode, ports))),
    ];
    if config.workers > 1 {
        let worker = |worker: usize| {
            let ports = ports.iter().enumerate().filter(|(port, _)| port % config.workers == worker);
            let names: Vec<_> = ports.map(|(_, port)| port.name.as_str()).collect();
            if names.is_empty() { "none".to_owned() } else { names.join(" ") }
        };
        let all: Vec<_> = (0..config.workers).map(|n| format!("{n}: {}", worker(n))).collect();
        lines.push(("ports", format!("one receive and one send queue each, by worker: {}", all.join(", "))));
    }
    if let Some(controller) = &config.controller {
        let intervals = switch.fail_after_intervals.unwrap_or_default();
        lines.push((
            "controller",
            format!(
                "{}, as switch {}; links that are silent for {intervals} intervals are reported",
                controller.controllers, controller.switch
            ),
        ));
    }
    lines.extend(
        config.names.iter().zip(&switch.links).map(|(name, link)| ("link", self::link(name, link, ports))),
    );
    lines
}

fn link(name: &str, link: &Link, ports: &[Port]) -> String {
    let side = if link.side == Side::Below { "below" } else { "above" };
    let beacon = match link.beacon {
        BeaconForm::Datagram => "datagrams".into(),
        BeaconForm::Write { va, rkey } => format!("WRITEs to {va:#x} with key {rkey:#x}"),
    };
    let port = &ports[link.port.index()].name;
    format!("{name}, {side}, at {port}: {beacon} to queue pair {} of {}", link.qpn, link.address)
}
