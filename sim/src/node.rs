//! Participants of the network.

use crate::net::Net;
use core::any::Any;
use switch::memory::MemoryFrame;
use switch::{Frame, Full, Nanos, Output, PortId};

/// Handle of a host or switch of the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub(crate) usize);

/// A host, a switch, or any other device with ports. All times are readings of the node's own clock.
pub trait Node: Any + Send {
    /// Handles a frame that arrived at `port`.
    fn on_frame(&mut self, frame: MemoryFrame, port: PortId, now: Nanos, out: &mut Ports<'_>);

    /// Handles the timer: the time that [`next_timer`](Self::next_timer) returned has come, or has passed.
    fn on_timer(&mut self, now: Nanos, out: &mut Ports<'_>);

    /// Returns when [`on_timer`](Self::on_timer) is due.
    fn next_timer(&self) -> Option<Nanos>;

    /// Writes the next frame for `port`, whose link is idle, into `frame`, and returns whether there was one.
    /// For nodes that build packets only when they can send them, as a NIC does; the default is for nodes
    /// that queue what they send.
    fn poll_transmit(&mut self, _port: PortId, _now: Nanos, _frame: &mut Vec<u8>) -> bool {
        false
    }

    /// Starts the node without any state: when the world begins, and on each restart after a crash.
    fn start(&mut self, now: Nanos, out: &mut Ports<'_>);

    /// Takes the node down.
    fn crash(&mut self) {}

    /// Changes the UDP source ports of all packets that the node sends from now on, if it sends RoCEv2
    /// packets of its own.
    fn rehash(&mut self, _salt: u16) {}
}

/// Ports of a node, each with the send queue of its link.
#[derive(Debug)]
pub struct Ports<'a> {
    pub(crate) net: &'a mut Net,
    pub(crate) node: usize,
}

impl Ports<'_> {
    /// Returns the number of ports.
    pub fn count(&self) -> u16 {
        self.net.ports_of(self.node) as u16
    }

    /// Loses a frame within the node, as a link does.
    pub(crate) fn lose(&mut self, frame: MemoryFrame) {
        self.net.lose(frame.into_bytes());
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
