//! Runs a function's control plane ([`switch::Control`]) on the control thread.

use crate::control::{Control, ControlOutput};
use crate::mbuf::Mbuf;
use crate::runtime::Live;
use crate::time::{Clock, cycles};
use std::collections::VecDeque;
use switch::{Egress, Frame, Function, Nanos, PortId};

/// A control plane of a function that has one worker.
pub struct Plane<C: switch::Control> {
    /// The control plane
    pub control: C,
    clock: Option<Clock>,
    /// What the worker's queue had no room for
    commands: VecDeque<<C::Function as Function>::Command>,
    frame: Vec<u8>,
}

impl<C: switch::Control> Plane<C> {
    /// Runs this.
    pub fn new(control: C) -> Self {
        Self { control, clock: None, commands: VecDeque::new(), frame: Vec::new() }
    }

    fn now(&mut self) -> Nanos {
        self.clock.get_or_insert_with(Clock::start).nanos(cycles())
    }

    /// Carries away what the control plane wants done.
    fn carry(&mut self, now: Nanos, out: &mut ControlOutput<'_, C::Function>) {
        while let Some(command) = self.commands.pop_front().or_else(|| self.control.poll_command()) {
            if let Err(full) = out.command(0, command) {
                self.commands.push_front(full.0);
                break;
            }
        }
        while let Some(egress) = self.control.poll_transmit(now, &mut self.frame) {
            let ports = match egress {
                Egress::Port(port) => port.0..port.0 + 1,
                Egress::All => 0..out.ports(),
            };
            for port in ports {
                // What finds no room is lost, as on a wire: whoever waits for it asks again.
                if let Ok(frame) = out.make(&self.frame) {
                    drop(out.send(0, frame, PortId(port)));
                }
            }
        }
    }
}

impl<C: switch::Control> Control<C::Function> for Plane<C> {
    fn on_event(
        &mut self,
        _worker: usize,
        event: <C::Function as Function>::Event,
        out: &mut ControlOutput<'_, C::Function>,
    ) {
        let now = self.now();
        self.control.on_event(event, now);
        self.carry(now, out);
    }

    fn on_punt(
        &mut self,
        _worker: usize,
        frame: Mbuf,
        port: PortId,
        out: &mut ControlOutput<'_, C::Function>,
    ) {
        let now = self.now();
        self.control.on_punt(frame.bytes(), port, now);
        self.carry(now, out);
    }

    fn on_tick(&mut self, _live: &Live<'_>, out: &mut ControlOutput<'_, C::Function>) -> bool {
        let now = self.now();
        if self.control.next_timer().is_some_and(|at| at <= now) {
            self.control.on_timer(now);
        }
        self.carry(now, out);
        true
    }
}
