//! A function's control plane: a state machine like the function itself, beside the path of packets.
//!
//! It has one thread, may allocate and take its time. The runner (DPDK's control thread, the simulator, a test) gives it
//! punted frames, the function's events and the time, and carries its commands and frames away.

use crate::{Function, Nanos, PortId};

/// Where a frame of the control plane's leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Egress {
    /// Through this port
    Port(PortId),
    /// Through every port: nobody knows where its destination lies
    All,
}

/// The control plane of a function.
pub trait Control {
    /// The function
    type Function: Function;

    /// The function punted a frame that came in on `port`.
    fn on_punt(&mut self, frame: &[u8], port: PortId, now: Nanos);

    /// The function told something.
    fn on_event(&mut self, event: <Self::Function as Function>::Event, now: Nanos);

    /// The time asked for has come.
    fn on_timer(&mut self, now: Nanos);

    /// When to call [`on_timer`](Self::on_timer), if at all
    fn next_timer(&self) -> Option<Nanos>;

    /// The next thing to tell the function
    fn poll_command(&mut self) -> Option<<Self::Function as Function>::Command>;

    /// The next frame to send, written to `frame`, and where it leaves
    fn poll_transmit(&mut self, now: Nanos, frame: &mut Vec<u8>) -> Option<Egress>;
}
