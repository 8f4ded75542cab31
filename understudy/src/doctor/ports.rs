//! Ports of a configuration: the rings in which frames wait, and their interfaces.

use super::{Finding, Ports};
use crate::machine::Machine;
use crate::ring;
use dataplane::config::{Device, Port};

const TOPIC: &str = "ports";
/// Frames that the kernel queues for each CPU before it drops some, unless it is set otherwise
const BACKLOG: &str = "/proc/sys/net/core/netdev_max_backlog";

pub(super) fn examine(machine: &Machine, ports: &[Port]) -> Vec<Finding> {
    let mut findings: Vec<_> = ports.iter().flat_map(|port| port_findings(machine, port)).collect();
    let kernel = |port: &Port| matches!(port.device, Device::AfPacket { .. } | Device::AfXdp { .. });
    if let (true, Some(backlog)) = (ports.iter().any(kernel), machine.read(BACKLOG)) {
        let message = format!(
            "the kernel queues {backlog} frames for each CPU; if `kernel_rx_dropped` or `kernel_tx_dropped` of a port grows, \
             allow more:"
        );
        let more = backlog.parse::<u64>().unwrap_or(1000).saturating_mul(10);
        findings.push(
            Finding::note(TOPIC, message).command(format!("sysctl -w net.core.netdev_max_backlog={more}")),
        );
    }
    findings
}

fn port_findings(machine: &Machine, port: &Port) -> Vec<Finding> {
    let name = &port.name;
    let mut findings = Vec::new();
    if let Device::AfPacket { interface } | Device::AfXdp { interface, .. } = &port.device
        && machine.has("/sys/class/net")
    {
        let state = machine.read(format!("/sys/class/net/{interface}/operstate"));
        let finding = match state.as_deref() {
            None => Finding::warning(
                TOPIC,
                Ports::Virtual,
                format!("port `{name}`: there is no interface `{interface}`"),
            ),
            Some("down") => {
                let message = format!("port `{name}`: interface `{interface}` is down; to set it up:");
                Finding::warning(TOPIC, Ports::Virtual, message)
                    .command(format!("ip link set {interface} up"))
            }
            Some(_) => Finding::ok(TOPIC, format!("port `{name}`: interface `{interface}` exists")),
        };
        findings.push(finding);
    }
    if let Some(advice) = ring::advice(port) {
        let message = format!("port `{name}`: if `missed` grows, frames find no room: {advice}");
        findings.push(Finding::note(TOPIC, message));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::super::tests::{FakeMachine, only_finding};
    use super::*;

    fn port(interface: &str) -> Port {
        Port {
            name: format!("to-{interface}"),
            device: Device::AfPacket { interface: interface.into() },
            mtu: 1500,
            rx_queues: 0,
            descriptors: 512,
            buffers: 4096,
            share_from: None,
        }
    }

    #[test]
    fn ports_of_a_configuration_come_with_what_enlarges_their_rings() {
        let fake = FakeMachine::new(&[
            ("/sys/class/net/eth1/operstate", "up\n"),
            ("/sys/class/net/eth2/operstate", "down\n"),
            (BACKLOG, "1000\n"),
        ]);
        let findings = examine(&fake.machine(), &["eth1", "eth2", "eth3"].map(port));
        assert_eq!(only_finding(&findings, "interface `eth1` exists").state, State::Ok);
        let down = only_finding(&findings, "interface `eth2` is down");
        assert_eq!(down.state, State::Warning(Ports::Virtual));
        assert_eq!(down.command.as_deref(), Some("ip link set eth2 up"));
        assert_eq!(only_finding(&findings, "no interface `eth3`").state, State::Warning(Ports::Virtual));
        let ring = only_finding(&findings, "port `to-eth1`: if `missed` grows");
        assert!(ring.message.contains("set `descriptors = 4096` in its [[port]]"), "{ring:?}");
        let backlog = only_finding(&findings, "queues 1000 frames");
        assert_eq!(backlog.command.as_deref(), Some("sysctl -w net.core.netdev_max_backlog=10000"));
    }

    #[test]
    fn ports_without_an_interface_have_no_findings() {
        let fake = FakeMachine::new(&[(BACKLOG, "1000\n")]);
        let ring = Port { device: Device::Ring, ..port("eth1") };
        assert_eq!(examine(&fake.machine(), &[ring]), []);
    }
}
