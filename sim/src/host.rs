//! A host of the network: a NIC, and the application that uses it.

use crate::node::{Node, Ports};
use rnic::{App, Rnic};
use switch::memory::MemoryFrame;
use switch::{Frame, Nanos, PortId};

/// A NIC with an application. Its port is port 0.
pub struct Host<A> {
    /// The NIC; another one after a crash
    pub nic: Rnic,
    /// The application, which outlives crashes: what it forgets is for it to say, in [`App::start`]
    pub app: A,
    make: Box<dyn FnMut() -> Rnic + Send>,
    /// How often it was started
    pub lives: u32,
}

impl<A: App> Host<A> {
    /// A host whose NIC `make` makes: at the beginning, and after each crash.
    pub fn new(mut make: impl FnMut() -> Rnic + Send + 'static, app: A) -> Self {
        Self { nic: make(), app, make: Box::new(make), lives: 0 }
    }
}

impl<A: App> Node for Host<A> {
    fn on_frame(&mut self, frame: MemoryFrame, _port: PortId, now: Nanos, out: &mut Ports<'_>) {
        self.nic.on_frame(frame.bytes(), now);
        out.net.recycle(frame.into_bytes());
        self.app.run(&mut self.nic, now);
    }

    fn on_timer(&mut self, now: Nanos, _out: &mut Ports<'_>) {
        self.nic.on_timer(now);
        self.app.run(&mut self.nic, now);
    }

    fn next_timer(&self) -> Option<Nanos> {
        [self.nic.next_timer(), self.app.next_timer()].into_iter().flatten().min()
    }

    fn poll_transmit(&mut self, _port: PortId, now: Nanos, frame: &mut Vec<u8>) -> bool {
        let before = self.nic.counters().completions;
        let sent = self.nic.poll_transmit(now, frame);
        if self.nic.counters().completions != before {
            self.app.run(&mut self.nic, now);
        }
        sent
    }

    fn crash(&mut self) {
        self.app.crash();
    }

    fn start(&mut self, now: Nanos, _out: &mut Ports<'_>) {
        if self.lives > 0 {
            self.nic = (self.make)();
        }
        self.lives += 1;
        self.app.start(&mut self.nic, now);
        self.app.run(&mut self.nic, now);
    }
}

impl<A> core::fmt::Debug for Host<A> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Host").field("lives", &self.lives).finish_non_exhaustive()
    }
}
