//! QP 1.
use crate::nic::{Config, Rnic};
use rocev2::Packet;
use switch::Nanos;

#[derive(Debug)]
pub(crate) struct Gsi;

impl Gsi {
    pub(crate) fn new(_config: &Config) -> Self {
        Self
    }
}

impl Rnic {
    pub(crate) fn on_gsi(&mut self, _packet: &Packet<'_>, _now: Nanos) {
        self.counters.no_qp += 1;
    }
    pub(crate) fn poll_gsi(&mut self, _now: Nanos, _frame: &mut Vec<u8>) -> bool {
        false
    }
    pub(crate) fn gsi_has_mads(&self) -> bool {
        false
    }
    pub(crate) fn gsi_timer(&self) -> Option<Nanos> {
        None
    }
    pub(crate) fn on_gsi_timer(&mut self, _now: Nanos) {}
}
