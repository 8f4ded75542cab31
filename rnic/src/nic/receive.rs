//! The receive path: checks frames and dispatches them to a queue pair, the communication manager or the
//! neighbour table.

use super::Rnic;
use crate::qp::{Admission, Event};
use rocev2::ethernet::Ethernet;
use rocev2::{Class, Packet, Qpn, classify};
use switch::Nanos;

/// Partition key of the default partition without the membership bit: full and limited members match
/// (IB 10.9.3)
const DEFAULT_PKEY: u16 = 0x7fff;

impl Rnic {
    /// Processes a received frame.
    pub fn on_frame(&mut self, frame: &[u8], now: Nanos) {
        self.counters.received += 1;
        let Some(dst) = frame.first_chunk::<6>() else {
            self.counters.malformed += 1;
            return;
        };
        if *dst != self.config.interface.mac.0 && dst[0] & 1 == 0 {
            self.counters.not_for_us += 1;
            return;
        }
        match classify(frame) {
            Class::Roce(layout) => {
                let packet = Packet::new(frame, layout);
                if !self.config.interface.has(packet.dst()) || !self.has_our_tag(&packet) {
                    self.counters.not_for_us += 1;
                } else if packet.verify_icrc() {
                    self.on_packet(&packet, now);
                } else {
                    self.counters.icrc_errors += 1;
                }
            }
            Class::Other if frame.len() >= Ethernet::LEN => {
                if self.endpoint.on_neighbour_frame(frame, now) {
                    self.wake_unresolved();
                }
            }
            Class::Other | Class::Malformed(_) => self.counters.malformed += 1,
        }
        self.handle_overrun();
    }

    fn has_our_tag(&self, packet: &Packet<'_>) -> bool {
        let id = packet.tags().first().map_or(0, rocev2::ethernet::VlanTag::id);
        packet.tags().len() <= 1 && id == self.config.interface.vlan.unwrap_or(0) & 0xfff
    }

    fn on_packet(&mut self, packet: &Packet<'_>, now: Nanos) {
        let bth = packet.bth();
        let qpn = bth.dest_qp();
        if bth.pkey.get() & 0x7fff != DEFAULT_PKEY {
            self.counters.no_qp += 1;
            return;
        }
        if qpn == Qpn::GSI {
            self.on_gsi(packet, now);
            return;
        }
        let Some(slot) = self.qps.slot(qpn) else {
            self.counters.no_qp += 1;
            return;
        };
        let Some(mut ctx) = self.context(slot) else { return };
        match ctx.admit(packet, now) {
            Admission::Refused => return,
            Admission::Cnp => return self.update_schedule(slot),
            Admission::First => {
                self.report_established(slot, now);
                let Some(again) = self.context(slot) else { return };
                ctx = again;
            }
            Admission::Admitted => {}
        }
        let duplicates = ctx.counters.duplicates;
        ctx.on_packet(packet, now);
        if self.counters.duplicates > duplicates {
            // The requester may retransmit because our responses go to a stale MAC address.
            self.endpoint.verify(packet.src(), now);
        }
        self.update_schedule(slot);
    }

    /// Completes the handshake of a connection on which a packet arrived before the RTU, and reports it once.
    fn report_established(&mut self, slot: u32, now: Nanos) {
        let Some(qp) = self.qps.at(slot) else { return };
        if qp.note_established() {
            let qpn = qp.qpn();
            self.events.push_back(Event::Established(qpn));
            self.established_by_traffic(qpn, now);
        }
    }

    /// Fails queue pairs whose completions were lost. Returns whether a completion queue had overrun.
    pub(super) fn handle_overrun(&mut self) -> bool {
        let overrun = self.overrun;
        // A queue pair that fails may overrun another completion queue.
        while core::mem::take(&mut self.overrun) {
            self.fail_overrun();
        }
        overrun
    }

    /// Moves queue pairs whose completions were lost to the error state (IB 11.6.3.2).
    #[cold]
    fn fail_overrun(&mut self) {
        for slot in 0..self.qps.slots() {
            if self.context(slot).is_some_and(|mut ctx| ctx.fail_overrun()) {
                self.update_schedule(slot);
            }
        }
    }
}
