//! The reliable service on a network with faults. The test plays the switch, which keeps barriers, and the
//! controller.

use super::super::Config;

mod at_once;
mod controller;
mod frames;
mod hostile;
mod network;
mod oracle;
mod seeds;

pub(super) fn config(own: u8, count: u8) -> Config {
    super::super::tests::config(own, count, false)
}
