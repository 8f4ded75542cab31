//! Expected beacons of a link.

use onepipe::beacon::ExpectedBeacon;
use rocev2::deth::Deth;
use rocev2::{Packet, Qpn};
use switch::PortId;

/// Interval, in beacons that differ from the expected one of their link, at which such a beacon replaces it
const LEARN_EVERY: u8 = 16;

/// Expected beacons of a link.
#[derive(Debug)]
pub(super) struct Expected {
    /// Port on which they arrive
    port: PortId,
    template: Option<ExpectedBeacon>,
    /// Queue pair of the template's sender, if it names one
    source: Option<Qpn>,
    /// Number of beacons that differed, modulo 256
    mismatches: u8,
}

impl Expected {
    /// Expects beacons on this port; none has been received yet.
    pub(super) const fn new(port: PortId) -> Self {
        Self { port, template: None, source: None, mismatches: 0 }
    }

    /// Returns the expected beacon of this port, with which received beacons are compared.
    #[inline]
    pub(super) fn template(&self, port: PortId) -> Option<&ExpectedBeacon> {
        self.template.as_ref().filter(|_| port == self.port)
    }

    /// Returns the queue pair of the sender of the expected beacons, if they name one.
    #[inline]
    pub(super) const fn source(&self) -> Option<Qpn> {
        self.source
    }

    /// Learns from a beacon that has passed every check, and differed from the expected one.
    #[cold]
    pub(super) fn learn(&mut self, packet: &Packet<'_>) {
        if self.mismatches.is_multiple_of(LEARN_EVERY) {
            self.template = ExpectedBeacon::new(packet.bytes(), packet.layout());
            self.source = packet.deth().map(Deth::src_qp);
        }
        self.mismatches = self.mismatches.wrapping_add(1);
    }
}
