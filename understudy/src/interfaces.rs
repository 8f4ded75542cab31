//! Warnings about kernel interfaces of ports: settings of the kernel with which pings pass and TCP does not, and
//! the commands that change them.

use dataplane::config::{Device, Port};
use dataplane::interface::{Interface, Namespace, Offloads, Peer};
use tracing::warn;

/// Returns a warning for each setting of the ports' interfaces that interferes with the frames of the ports.
pub(crate) fn warnings(ports: &[Port]) -> Vec<String> {
    let of = |port: &Port| {
        let (Device::AfPacket { interface: name } | Device::AfXdp { interface: name, .. }) = &port.device
        else {
            return Vec::new();
        };
        // DPDK reports an interface that does not exist.
        let Ok(interface) = Interface::query(name) else { return Vec::new() };
        let kernel_receives = matches!(port.device, Device::AfPacket { .. });
        problems(name, &interface, kernel_receives)
            .into_iter()
            .map(|problem| format!("port `{}`: {problem}", port.name))
            .collect()
    };
    ports.iter().flat_map(of).collect()
}

/// Emits the warnings before the ports are opened.
pub(crate) fn warn_of(ports: &[Port]) {
    for warning in warnings(ports) {
        warn!("{warning}");
    }
}

/// Describes what interferes with an interface. `kernel_receives` states whether its frames reach the kernel,
/// too.
fn problems(name: &str, interface: &Interface, kernel_receives: bool) -> Vec<String> {
    let mut problems = Vec::new();
    if kernel_receives && let Some((first, prefix)) = interface.addresses.first() {
        let more = match interface.addresses.len() - 1 {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        problems.push(format!(
            "the kernel has the address {first}/{prefix}{more} on `{name}`: it answers ARP and connections for this address \
             beside the port; run: ip addr flush dev {name}"
        ));
    }
    // A tap's frames come from a program, one by one.
    if kernel_receives && interface.kind.as_deref() != Some("tun") {
        let merging = on(&[("gro", interface.offloads.gro), ("lro", interface.offloads.lro)]);
        if !merging.is_empty() {
            problems.push(format!(
                "the kernel merges received TCP segments of `{name}` ({}) into frames that are longer than the port can \
                 receive; run: ethtool -K {name} {}",
                merging.join(", "),
                off(&merging)
            ));
        }
    }
    problems.extend(interface.peer.as_ref().and_then(|peer| peer_problem(name, peer)));
    problems
}

/// Describes the offloads of the other end of a veth that leave frames incomplete.
fn peer_problem(name: &str, peer: &Peer) -> Option<String> {
    let index = peer.index;
    let prefix = match &peer.namespace {
        Namespace::Own | Namespace::Unknown => String::new(),
        Namespace::Named(namespace) => format!("ip netns exec {namespace} "),
        Namespace::Process(pid) => format!("nsenter -t {pid} -n "),
    };
    let Some((peer_name, offloads)) = &peer.state else {
        return Some(format!(
            "the other end of `{name}`, interface {index} of another network namespace, cannot be examined without root; \
             its TCP passes only without offloads; run there: ethtool -K NAME tx off tso off gso off, with the NAME that \
             `ip link` shows for {index}"
        ));
    };
    let Offloads { tx_checksum, tso, gso, .. } = *offloads;
    // The kernel completes what GSO left undone, if neither the checksum nor TSO is left to the device.
    if !tx_checksum && !tso {
        return None;
    }
    let left = on(&[("tx", tx_checksum), ("tso", tso), ("gso", gso)]);
    let place = match &peer.namespace {
        Namespace::Own | Namespace::Unknown => String::new(),
        Namespace::Named(namespace) => format!(" in the namespace {namespace}"),
        Namespace::Process(pid) => format!(" in the network namespace of process {pid}"),
    };
    Some(format!(
        "`{peer_name}`{place}, the other end of `{name}`, leaves checksums and the division into segments to hardware \
         ({}), and a veth has none: its TCP and UDP packets arrive with wrong checksums or too long; run: \
         {prefix}ethtool -K {peer_name} {}",
        left.join(", "),
        off(&left)
    ))
}

/// Returns the names of the offloads that are on.
fn on(offloads: &[(&'static str, bool)]) -> Vec<&'static str> {
    offloads.iter().filter(|(_, on)| *on).map(|(name, _)| *name).collect()
}

/// Returns ethtool's arguments that turn offloads off.
fn off(offloads: &[&str]) -> String {
    offloads.iter().map(|name| format!("{name} off")).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Offloads = Offloads { tx_checksum: false, tso: false, gso: false, gro: false, lro: false };

    fn veth(namespace: Namespace, offloads: Offloads) -> Interface {
        let state = Some(("far".into(), offloads));
        let peer = Some(Peer { index: 7, namespace, state });
        Interface { addresses: Vec::new(), offloads: NONE, kind: Some("veth".into()), peer }
    }

    /// Returns the command of each problem.
    fn commands(interface: &Interface, kernel_receives: bool) -> Vec<String> {
        let command =
            |problem: String| problem.split_once("; run: ").expect("each has a command").1.to_owned();
        problems("near", interface, kernel_receives).into_iter().map(command).collect()
    }

    #[test]
    fn an_interface_without_addresses_and_offloads_has_no_warning() {
        let idle = Offloads { gso: true, gro: true, ..NONE };
        assert_eq!(commands(&veth(Namespace::Own, idle), true), [""; 0]);
    }

    #[test]
    fn addresses_and_merging_are_reported_if_the_kernel_receives() {
        let addresses = vec![("10.0.0.1".parse().unwrap(), 24), ("2001:db8::1".parse().unwrap(), 64)];
        let offloads = Offloads { gro: true, lro: true, tso: true, ..NONE };
        let mut nic = Interface { addresses, offloads, kind: None, peer: None };
        let expected = ["ip addr flush dev near", "ethtool -K near gro off lro off"];
        assert_eq!(commands(&nic, true), expected);
        assert!(problems("near", &nic, true)[0].contains("10.0.0.1/24 and 1 more"));
        assert_eq!(commands(&nic, false), [""; 0]);
        nic.kind = Some("tun".into());
        assert_eq!(commands(&nic, true), expected[..1]);
    }

    #[test]
    fn commands_for_the_other_end_run_in_its_namespace() {
        let all = Offloads { tx_checksum: true, tso: true, gso: true, ..NONE };
        let ethtool = "ethtool -K far tx off tso off gso off";
        for (namespace, prefix) in [
            (Namespace::Own, ""),
            (Namespace::Named("blue".into()), "ip netns exec blue "),
            (Namespace::Process(12), "nsenter -t 12 -n "),
        ] {
            assert_eq!(commands(&veth(namespace, all), false), [format!("{prefix}{ethtool}")]);
        }
        let only_checksum = veth(Namespace::Own, Offloads { tx_checksum: true, ..NONE });
        assert_eq!(commands(&only_checksum, true), ["ethtool -K far tx off"]);
    }

    #[test]
    fn another_end_that_cannot_be_examined_is_reported() {
        let peer = Peer { index: 7, namespace: Namespace::Unknown, state: None };
        let text = peer_problem("near", &peer).unwrap();
        assert!(
            text.contains("interface 7 of another network namespace") && text.contains("ethtool -K NAME"),
            "{text}"
        );
    }
}
