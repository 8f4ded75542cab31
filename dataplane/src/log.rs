//! Events of ports for the operator, as `tracing` events. A [`ControlHandler`](crate::ControlHandler) emits
//! them when links and peers change.

use crate::{Link, LinkChange, PortInfo};
use tracing::{info, warn};

/// Emits that a memif port has, or has lost, its peer.
pub fn peer(port: &PortInfo, up: bool) {
    if up {
        info!("Port {} has its peer.", port.name);
    } else {
        warn!("Port {} has lost its peer.", port.name);
    }
}

/// Emits that the link of a port has changed, and what to do about it.
pub fn link(port: &PortInfo, change: &LinkChange) {
    let text = link_text(port, change);
    match change {
        LinkChange::Now(Link::Up) => info!("{text}"),
        LinkChange::Now(_) | LinkChange::Recreated => warn!("{text}"),
    }
}

fn link_text(port: &PortInfo, change: &LinkChange) -> String {
    let name = &port.name;
    let Some(interface) = &port.interface else {
        return match change {
            LinkChange::Now(Link::Up) => format!("Port {name} is up."),
            LinkChange::Now(Link::Gone) => format!(
                "Port {name} is gone: its device is to be removed or to get another driver. This run ends, \
                 because the system waits for the device."
            ),
            LinkChange::Now(_) | LinkChange::Recreated => {
                format!("Port {name} is down: it has no link.")
            }
        };
    };
    match change {
        LinkChange::Now(Link::Up) => format!("Port {name} is up: interface {interface}."),
        LinkChange::Now(Link::Down) => format!(
            "Port {name} is down: interface {interface} was set down. To set it up: ip link set \
             {interface} up"
        ),
        LinkChange::Now(Link::NoCarrier | Link::NoPeer) => format!(
            "Port {name} is down: interface {interface} has no carrier. Set the other end of the veth up, \
             or check the cable."
        ),
        LinkChange::Now(Link::Gone) => format!(
            "Port {name} is gone: interface {interface} was removed, or moved to another network namespace. \
             The port cannot use it again, even under the same name: create it, and restart this instance."
        ),
        LinkChange::Recreated => {
            format!(
                "There is an interface {interface} again. Restart this instance to use it as port {name}."
            )
        }
    }
}

/// Emits that a port waits for its first peer.
pub fn awaited_peer(port: &PortInfo) {
    info!("Waiting for the peer of `{}`.", port.name);
}

/// Emits that a port refuses a peer.
pub fn refused_peer(port: &PortInfo, why: &str) {
    warn!("Port {} refuses a peer: {why}.", port.name);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_of_a_link_comes_with_what_to_do() {
        let port = |interface: Option<&str>| PortInfo {
            name: "a".into(),
            driver: String::new(),
            mac: [0; 6],
            interface: interface.map(Into::into),
        };
        let text = |change| link_text(&port(Some("eth1")), &change);
        assert_eq!(text(LinkChange::Now(Link::Up)), "Port a is up: interface eth1.");
        assert!(
            text(LinkChange::Now(Link::Down)).ends_with("was set down. To set it up: ip link set eth1 up")
        );
        assert!(text(LinkChange::Now(Link::NoCarrier)).contains("down: interface eth1 has no carrier"));
        assert!(text(LinkChange::Now(Link::Gone)).contains("gone: interface eth1 was removed"));
        assert!(text(LinkChange::Recreated).contains("an interface eth1 again. Restart this instance"));
        let hardware = link_text(&port(None), &LinkChange::Now(Link::NoCarrier));
        assert_eq!(hardware, "Port a is down: it has no link.");
        let requested = link_text(&port(None), &LinkChange::Now(Link::Gone));
        assert!(requested.starts_with("Port a is gone: its device is to be removed"), "{requested}");
    }
}
