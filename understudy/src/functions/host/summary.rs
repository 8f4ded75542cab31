//! Describes what `[nic]` would run.

use super::{Client, HostConfig, PerftestConfig};

pub(in crate::functions) fn lines(nic: &HostConfig) -> Vec<(&'static str, String)> {
    let addresses: Vec<_> = nic.addresses.iter().map(|(ip, prefix)| format!("{ip}/{prefix}")).collect();
    let mac = nic.mac.map_or("the port's MAC address".into(), |mac| mac.to_string());
    let at_each =
        if nic.workers > 1 { format!(" at each of {} workers", nic.workers) } else { String::new() };
    let host = format!(
        "{} at {mac}, path MTU {}, up to {} connections{at_each}",
        addresses.join(", "),
        nic.mtu.bytes(),
        nic.max_qps
    );
    let mut lines = vec![("host", host)];
    if nic.workers > 1 {
        let owners =
            "connections are divided among the workers; worker 0 answers ARP, neighbour discovery and ping";
        lines.push(("", owners.into()));
    }
    for service in &nic.services {
        let name = service.kind.name(service.client.is_some());
        let line = match &service.client {
            None => format!("{name} at port {}", service.port),
            Some(Client { server, connections, .. }) => {
                format!("{name} to {server} port {}, {connections} connections", service.port)
            }
        };
        lines.push(("service", line));
    }
    for PerftestConfig { test, port, size, .. } in &nic.perftests {
        let line =
            format!("{} of ib_{} at TCP port {port}, up to {size} bytes", PerftestConfig::NAME, test.name());
        lines.push(("service", line));
    }
    lines
}
