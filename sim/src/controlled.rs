//! A switch with a control plane.

use crate::node::{Node, Ports};
use crate::switch_node::Switch;
use std::collections::VecDeque;
use switch::memory::MemoryFrame;
use switch::{Control, Egress, Frame, Function, Nanos, Output, PortId};

/// How long it takes until the control plane hears of something: it is a thread that looks every now and then.
pub const CONTROL_LATENCY: Nanos = Nanos::from_micros(50);

/// What is on its way up.
enum Up<E> {
    Punt(MemoryFrame, PortId),
    Event(E),
}

/// A function and its control plane.
pub struct Controlled<C: Control> {
    /// The function, and what became of frames
    pub switch: Switch<C::Function>,
    /// The control plane; another one after a crash
    pub control: C,
    make: Box<dyn FnMut(u64) -> C + Send>,
    lives: u64,
    up: VecDeque<(Nanos, Up<<C::Function as Function>::Event>)>,
    frame: Vec<u8>,
}

impl<C: Control> Controlled<C> {
    /// A switch whose function and control plane are made by these: at the beginning, and after each crash. The control
    /// plane is told how often it was made before.
    pub fn new(
        function: impl FnMut() -> C::Function + Send + 'static,
        mut control: impl FnMut(u64) -> C + Send + 'static,
    ) -> Self {
        Self {
            switch: Switch::new(function),
            control: control(0),
            make: Box::new(control),
            lives: 0,
            up: VecDeque::new(),
            frame: Vec::new(),
        }
    }

    /// What the function has for the control plane is on its way.
    fn lift(&mut self, now: Nanos) {
        let at = now + CONTROL_LATENCY;
        let events = self.switch.events.drain(..).map(|event| (at, Up::Event(event)));
        let punts = self.switch.punted.drain(..).map(|(frame, port)| (at, Up::Punt(frame, port)));
        self.up.extend(events.chain(punts));
    }

    /// The control plane does what is due.
    fn run_control(&mut self, now: Nanos, out: &mut Ports<'_>) {
        while self.up.front().is_some_and(|(at, _)| *at <= now) {
            match self.up.pop_front() {
                Some((_, Up::Punt(frame, port))) => self.control.on_punt(frame.bytes(), port, now),
                Some((_, Up::Event(event))) => self.control.on_event(event, now),
                None => {}
            }
        }
        if self.control.next_timer().is_some_and(|at| at <= now) {
            self.control.on_timer(now);
        }
        self.carry(now, out);
    }

    /// What the control plane wants is done.
    fn carry(&mut self, now: Nanos, out: &mut Ports<'_>) {
        while let Some(command) = self.control.poll_command() {
            self.switch.command(command);
        }
        let mut frame = core::mem::take(&mut self.frame);
        while let Some(egress) = self.control.poll_transmit(now, &mut frame) {
            let ports = match egress {
                Egress::Port(port) => port.0..port.0 + 1,
                Egress::All => 0..out.count(),
            };
            for port in ports {
                // What finds no room is lost, as on a wire.
                _ = out.send(MemoryFrame::new(frame.clone()), PortId(port));
            }
        }
        self.frame = frame;
    }
}

impl<C: Control + Send + 'static> Node for Controlled<C>
where
    C::Function: Send + 'static,
    <C::Function as Function>::Event: 'static,
    <C::Function as Function>::Command: 'static,
{
    fn on_frame(&mut self, frame: MemoryFrame, port: PortId, now: Nanos, out: &mut Ports<'_>) {
        self.switch.on_frame(frame, port, now, out);
        self.lift(now);
    }

    fn on_timer(&mut self, now: Nanos, out: &mut Ports<'_>) {
        self.run_control(now, out);
        self.switch.on_timer(now, out);
        self.lift(now);
    }

    fn next_timer(&self) -> Option<Nanos> {
        let up = self.up.front().map(|(at, _)| *at);
        [up, self.control.next_timer(), self.switch.next_timer()].into_iter().flatten().min()
    }

    fn start(&mut self, now: Nanos, out: &mut Ports<'_>) {
        self.switch.start(now, out);
    }

    fn crash(&mut self) {
        self.switch.crash();
        self.lives += 1;
        self.control = (self.make)(self.lives);
        self.up.clear();
    }
}

impl<C: Control> core::fmt::Debug for Controlled<C> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Controlled").field("lives", &self.lives).finish_non_exhaustive()
    }
}
