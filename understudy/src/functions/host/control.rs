//! The control plane of a host: carries notices between the workers' parts of its NIC, and knows when all clients are done.

use super::function::{Event, Host};
use std::collections::VecDeque;
use switch::{Control, Egress, Nanos, PortId};

/// Control plane of a host.
pub(crate) struct HostControl {
    /// Whether the clients of each worker are done
    done: Vec<bool>,
    commands: VecDeque<(usize, <Host as switch::Function>::Command)>,
}

impl HostControl {
    pub(crate) fn new(workers: usize) -> Self {
        Self { done: vec![false; workers], commands: VecDeque::new() }
    }

    /// Returns whether the clients of all workers are done.
    pub(crate) fn is_done(&self) -> bool {
        self.done.iter().all(|done| *done)
    }
}

impl Control for HostControl {
    type Function = Host;

    fn on_punt(&mut self, _frame: &[u8], _port: PortId, _now: Nanos) {}

    fn on_event(&mut self, event: Event, _now: Nanos) {
        match event {
            Event::Done { worker } => self.done[worker] = true,
            Event::Notice { worker, notice } => {
                let others = (0..self.done.len()).filter(|other| *other != worker);
                self.commands.extend(others.map(|other| (other, notice)));
            }
        }
    }

    fn on_timer(&mut self, _now: Nanos) {}

    fn next_timer(&self) -> Option<Nanos> {
        None
    }

    fn poll_command(&mut self) -> Option<(usize, <Host as switch::Function>::Command)> {
        self.commands.pop_front()
    }

    fn poll_transmit(&mut self, _now: Nanos, _frame: &mut Vec<u8>) -> Option<Egress> {
        None
    }
}
