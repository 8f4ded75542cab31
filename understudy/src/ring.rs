//! How to enlarge the ring in which frames wait until a worker receives them.

use dataplane::config::{Device, Port};

/// Largest `descriptors` of a port
const LARGEST: u16 = 32768;

/// Returns how many frames wait for a port at most, and what raises that number; `None` for devices that lose
/// no frames, or whose driver has its own limits.
pub(crate) fn advice(port: &Port) -> Option<String> {
    match &port.device {
        Device::AfPacket { .. } | Device::AfXdp { .. } if port.descriptors < LARGEST => Some(format!(
            "its ring holds {} frames; to enlarge it, set `descriptors = {}` in its [[port]]",
            port.descriptors,
            port.descriptors.saturating_mul(8).min(LARGEST)
        )),
        Device::AfPacket { .. } | Device::AfXdp { .. } => Some(format!(
            "its ring holds {LARGEST} frames, which is the most; give its worker a CPU of its own (`workers` in [runtime])"
        )),
        Device::Tap { interface } => Some(format!(
            "its ring holds `txqueuelen` frames of the interface; to enlarge it: ip link set dev {interface} txqueuelen 10000"
        )),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(device: Device, descriptors: u16) -> Port {
        Port {
            name: "a".into(),
            device,
            mtu: 1500,
            rx_queues: 0,
            descriptors,
            buffers: 4096,
            share_from: None,
        }
    }

    #[test]
    fn advice_names_the_key_and_a_valid_value() {
        let interface = || Device::AfPacket { interface: "eth1".into() };
        for (descriptors, words) in [
            (32, "holds 32 frames; to enlarge it, set `descriptors = 256`"),
            (512, "set `descriptors = 4096` in its [[port]]"),
            (16384, "set `descriptors = 32768`"),
            (32768, "which is the most; give its worker a CPU"),
        ] {
            let advice = advice(&port(interface(), descriptors)).unwrap();
            assert!(advice.contains(words), "{advice}");
        }
        let tap = advice(&port(Device::Tap { interface: "us0".into() }, 512)).unwrap();
        assert!(tap.ends_with("ip link set dev us0 txqueuelen 10000"), "{tap}");
        assert_eq!(advice(&port(Device::Ring, 512)), None);
    }
}
