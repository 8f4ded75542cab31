//! Control plane of a function: a state machine like the function itself, off the packet path.
//!
//! A control plane runs on one thread, may allocate, and may take its time. The runner (DPDK's control
//! thread, the simulator, a test) passes punted frames, the function's events and the time to it, and carries
//! its commands to the function and its frames to the ports.

use crate::{Function, Nanos, PortId};

/// Where a frame of the control plane is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Egress {
    /// Through this port
    Port(PortId),
    /// Through every port, because the location of the destination is unknown
    All,
}

/// The control plane of a function.
///
/// The runner calls [`on_punt`](Self::on_punt), [`on_event`](Self::on_event) and [`on_timer`](Self::on_timer)
/// as inputs arrive. After each call it polls [`poll_command`](Self::poll_command) and
/// [`poll_transmit`](Self::poll_transmit) until both return `None`, and reads
/// [`next_timer`](Self::next_timer).
pub trait Control {
    /// Type of the function
    type Function: Function;

    /// Handles a frame that the function punted after receiving it on `port`.
    fn on_punt(&mut self, frame: &[u8], port: PortId, now: Nanos);

    /// Handles an event of the function, on any worker.
    fn on_event(&mut self, event: <Self::Function as Function>::Event, now: Nanos);

    /// Handles the expiry of the timer that [`next_timer`](Self::next_timer) returned.
    fn on_timer(&mut self, now: Nanos);

    /// Returns when to call [`on_timer`](Self::on_timer), or `None` if no timer is armed.
    fn next_timer(&self) -> Option<Nanos>;

    /// Returns the next command, and the worker, from 0, whose instance of the function gets it.
    fn poll_command(&mut self) -> Option<(usize, <Self::Function as Function>::Command)>;

    /// Writes the next frame to send to `frame`, and returns where to send it.
    fn poll_transmit(&mut self, now: Nanos, frame: &mut Vec<u8>) -> Option<Egress>;
}
