//! The reliable service on a network with faults, which a test plays together with the controller.

use super::super::Config;

pub(super) fn config(own: u8, count: u8) -> Config {
    super::super::tests::config(own, count, false)
}
