//! Runs the control plane of a function ([`switch::Control`]) on the control thread.

use crate::control::{ControlHandler, ControlOutput};
use crate::live::Live;
use crate::mbuf::Mbuf;
use std::collections::VecDeque;
use switch::{Egress, Frame, Function, Nanos, PortId};

/// Adapter for the control plane of a function, on any number of workers.
pub struct ControlPlane<C: switch::Control> {
    /// The control plane
    pub control: C,
    /// Commands by worker, for which the worker's queue had no room
    waiting: Vec<VecDeque<<C::Function as Function>::Command>>,
    frame: Vec<u8>,
}

impl<C: switch::Control> ControlPlane<C> {
    /// Wraps a control plane.
    pub fn new(control: C) -> Self {
        Self { control, waiting: Vec::new(), frame: Vec::new() }
    }

    /// Passes the control plane's commands to the workers, and its frames to the first of them.
    fn flush(&mut self, now: Nanos, out: &mut ControlOutput<'_, C::Function>) {
        self.waiting.resize_with(out.workers(), VecDeque::new);
        while let Some((worker, command)) = self.control.poll_command() {
            self.waiting[worker].push_back(command);
        }
        for (worker, commands) in self.waiting.iter_mut().enumerate() {
            while let Some(command) = commands.pop_front() {
                if let Err(full) = out.command(worker, command) {
                    commands.push_front(full.0);
                    break;
                }
            }
        }
        while let Some(egress) = self.control.poll_transmit(now, &mut self.frame) {
            let ports = match egress {
                Egress::Port(port) => port.0..port.0 + 1,
                Egress::All => 0..out.ports(),
            };
            for port in ports {
                // A frame for which there is no room is lost, as on a link: the protocols retransmit.
                if let Ok(frame) = out.make(&self.frame) {
                    drop(out.send(0, frame, PortId(port)));
                }
            }
        }
    }
}

impl<C: switch::Control> ControlHandler<C::Function> for ControlPlane<C> {
    fn on_event(
        &mut self,
        _worker: usize,
        event: <C::Function as Function>::Event,
        out: &mut ControlOutput<'_, C::Function>,
    ) {
        let now = out.now();
        self.control.on_event(event, now);
        self.flush(now, out);
    }

    fn on_punt(
        &mut self,
        _worker: usize,
        frame: Mbuf,
        port: PortId,
        out: &mut ControlOutput<'_, C::Function>,
    ) {
        let now = out.now();
        self.control.on_punt(frame.bytes(), port, now);
        self.flush(now, out);
    }

    fn on_tick(&mut self, _live: &Live<'_>, out: &mut ControlOutput<'_, C::Function>) -> bool {
        let now = out.now();
        if self.control.next_timer().is_some_and(|at| at <= now) {
            self.control.on_timer(now);
        }
        self.flush(now, out);
        true
    }
}
