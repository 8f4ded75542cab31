//! What takes part in the network.

use crate::net::Net;
use core::any::Any;
use switch::memory::MemoryFrame;
use switch::{Frame, Full, Nanos, Output, PortId};

/// A host, a switch, or anything else with ports. All times are what its own clock shows.
pub trait Node: Any + Send {
    /// A frame came in.
    fn on_frame(&mut self, frame: MemoryFrame, port: PortId, now: Nanos, out: &mut Ports<'_>);

    /// The time asked for has come, or has passed.
    fn on_timer(&mut self, now: Nanos, out: &mut Ports<'_>);

    /// When [`on_timer`](Self::on_timer) is due
    fn next_timer(&self) -> Option<Nanos>;

    /// The link at `port` is free: writes the next frame for it, as a NIC does that builds packets when it can send
    /// them. Nodes that queue what they send have none.
    fn poll_transmit(&mut self, _port: PortId, _now: Nanos, _frame: &mut Vec<u8>) -> bool {
        false
    }

    /// It was down and begins anew, knowing nothing. Also called when the world begins.
    fn start(&mut self, now: Nanos, out: &mut Ports<'_>);

    /// It goes down.
    fn crash(&mut self) {}

    /// Changes the UDP source ports of what it sends from now on, if it sends RoCEv2 packets of its own.
    fn rehash(&mut self, _salt: u16) {}
}

/// The ports of a node: its links' queues.
#[derive(Debug)]
pub struct Ports<'a> {
    pub(crate) net: &'a mut Net,
    pub(crate) node: usize,
}

impl Ports<'_> {
    /// How many there are
    pub fn count(&self) -> u16 {
        self.net.ports_of(self.node) as u16
    }
}

impl Output for Ports<'_> {
    type Frame = MemoryFrame;

    fn make(&mut self, len: usize) -> Result<MemoryFrame, Full> {
        let mut bytes = self.net.spare();
        bytes.resize(len, 0);
        Ok(MemoryFrame::new(bytes))
    }

    fn room(&self, port: PortId) -> usize {
        self.net.room(self.node, port)
    }

    fn copy(&mut self, frame: &MemoryFrame) -> Result<MemoryFrame, Full> {
        let mut bytes = self.net.spare();
        bytes.extend_from_slice(frame.bytes());
        Ok(MemoryFrame::new(bytes))
    }

    fn send(&mut self, frame: MemoryFrame, port: PortId) -> Result<(), Full> {
        self.net.send(self.node, port, frame.into_bytes())
    }
}
