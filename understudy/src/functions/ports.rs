//! Ports in closing reports: their counters, and what is worth knowing of them.

use crate::observe::{Port, Values};
use crate::ring;
use core::fmt::Write as _;
use dataplane::{Link, Outcome, Runtime};

/// Ports at the end of a run.
#[derive(Default)]
pub(super) struct Ports {
    /// Counters of the ports, summed over all workers, and of their devices
    pub(super) rows: Vec<Port>,
    /// A line for each kind of lost frames of a port, how to avoid it, and links that are not up
    pub(super) notes: String,
}

impl Ports {
    pub(super) fn of(runtime: &Runtime, outcome: &Outcome) -> Self {
        let devices = (outcome.devices.clone(), outcome.states.clone());
        let rows = Port::all(runtime.ports(), &devices, &outcome.workers).collect();
        let mut notes = String::new();
        for (port, (device, state)) in
            runtime.config().ports.iter().zip(outcome.devices.iter().zip(&outcome.states))
        {
            let name = &port.name;
            Values::of(device).notes(&format!("port {name}: "), &mut notes);
            if let Some(advice) = ring::advice(port).filter(|_| device.missed > 0) {
                _ = writeln!(notes, "port {name}: {advice}");
            }
            if state.link != Link::Up {
                _ = writeln!(
                    notes,
                    "port {name}: its link is not up: {}",
                    state.link.name().replace('_', " ")
                );
            }
        }
        Self { rows, notes }
    }
}
