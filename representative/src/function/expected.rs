//! Expected beacons of a link.

use onepipe::beacon::ExpectedBeacon;
use rocev2::Packet;
use switch::PortId;

/// Of the beacons that differ from the expected ones of their link, one in this many replaces what is
/// expected
const LEARN_EVERY: u8 = 16;

/// Expected beacons of a link.
#[derive(Debug)]
pub(super) struct Expected {
    /// Port on which they arrive
    port: PortId,
    template: Option<ExpectedBeacon>,
    /// Number of beacons that differed, modulo 256
    mismatches: u8,
}

impl Expected {
    /// Expects beacons on this port; none has been received yet.
    pub(super) const fn new(port: PortId) -> Self {
        Self { port, template: None, mismatches: 0 }
    }

    /// Returns what beacons are compared with that arrive on this port.
    #[inline]
    pub(super) fn template(&self, port: PortId) -> Option<&ExpectedBeacon> {
        self.template.as_ref().filter(|_| port == self.port)
    }

    /// Learns from a beacon that has passed every check, and differed from the expected one.
    #[cold]
    pub(super) fn learn(&mut self, packet: &Packet<'_>) {
        if self.mismatches.is_multiple_of(LEARN_EVERY) {
            self.template = ExpectedBeacon::new(packet.bytes(), packet.layout());
        }
        self.mismatches = self.mismatches.wrapping_add(1);
    }
}
