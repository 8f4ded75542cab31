//! A host as a switch function: a NIC on port 0, and the application that uses it.

use crate::nic::Rnic;
use core::fmt;
use switch::{Frame, Function, Nanos, Output, PortId, Verdict};

/// An application on a [`HostFunction`]. All times are readings of its host's clock.
pub trait App: Send + 'static {
    /// Called when the host starts, or restarts after a crash; the NIC is new.
    fn start(&mut self, nic: &mut Rnic, now: Nanos);

    /// Called after anything may have happened: completions, events, or its own timer.
    fn run(&mut self, nic: &mut Rnic, now: Nanos);

    /// Called when the host crashes.
    fn crash(&mut self, _nic: &Rnic) {}

    /// Returns when [`run`](Self::run) should be called at the latest.
    fn next_timer(&self) -> Option<Nanos> {
        None
    }
}

/// A call on an application and its NIC, sent as a command by the control plane.
pub type HostCall<A> = Box<dyn FnOnce(&mut A, &mut Rnic, Nanos) + Send>;

/// Frames on their way to port 0.
#[derive(Debug, Default)]
pub struct Outbox {
    frame: Vec<u8>,
    waiting: bool,
}

impl Outbox {
    /// Returns whether a frame waits because the port had no buffer for it.
    pub const fn is_waiting(&self) -> bool {
        self.waiting
    }

    /// Sends the frames that `next` writes, until it has no more or the port has no room.
    #[inline]
    pub fn send<O: Output>(&mut self, out: &mut O, mut next: impl FnMut(&mut Vec<u8>) -> bool) {
        while out.room(PortId(0)) > 0 {
            if !self.waiting && !next(&mut self.frame) || !self.put(out) {
                return;
            }
        }
    }

    /// Sends the one frame that `next` writes, after all others. Returns whether it was written: `next` is
    /// called only if there is room and no frame waits.
    #[inline]
    pub fn send_one<O: Output>(&mut self, out: &mut O, next: impl FnOnce(&mut Vec<u8>) -> bool) -> bool {
        let written = !self.waiting && out.room(PortId(0)) > 0 && next(&mut self.frame);
        if written {
            self.put(out);
        }
        written
    }

    /// Returns whether the port took the frame. If no buffer is available, the frame waits. If the port
    /// refuses it although it reported room, the frame is lost, as any packet may be.
    #[inline]
    fn put<O: Output>(&mut self, out: &mut O) -> bool {
        let Ok(frame) = out.make_from(&self.frame) else {
            self.waiting = true;
            return false;
        };
        self.waiting = false;
        out.send(frame, PortId(0)).is_ok()
    }
}

/// A NIC on port 0 with an application: a [`Function`] that consumes frames.
pub struct HostFunction<A> {
    nic: Rnic,
    app: A,
    started: bool,
    outbox: Outbox,
}

impl<A: App> HostFunction<A> {
    /// Creates a host whose application starts at the first frame, timer or command.
    pub fn new(nic: Rnic, app: A) -> Self {
        Self { nic, app, started: false, outbox: Outbox::default() }
    }

    fn start(&mut self, now: Nanos) {
        if !self.started {
            self.started = true;
            self.app.start(&mut self.nic, now);
        }
    }

    fn run(&mut self, now: Nanos) {
        self.start(now);
        self.app.run(&mut self.nic, now);
    }

    /// Sends as many frames as the port takes. Sends that complete when they leave let the application post
    /// more.
    fn transmit<O: Output>(&mut self, now: Nanos, out: &mut O) {
        loop {
            let before = self.nic.counters().completions;
            self.outbox.send(out, |frame| self.nic.poll_transmit(now, frame));
            if self.nic.counters().completions == before {
                return;
            }
            self.run(now);
        }
    }
}

impl<A: App> Function for HostFunction<A> {
    type Command = HostCall<A>;
    type Event = ();

    fn on_frame<O: Output>(
        &mut self,
        frame: &mut O::Frame,
        _port: PortId,
        now: Nanos,
        out: &mut O,
    ) -> Verdict {
        self.nic.on_frame(frame.bytes(), now);
        self.run(now);
        self.transmit(now, out);
        Verdict::Consume
    }

    fn on_timer<O: Output>(&mut self, now: Nanos, out: &mut O) {
        if self.nic.next_timer().is_some_and(|at| at <= now) {
            self.nic.on_timer(now);
        }
        self.run(now);
        self.transmit(now, out);
    }

    fn next_timer(&self) -> Option<Nanos> {
        if self.outbox.is_waiting() || !self.started || self.nic.wants_to_transmit() {
            return Some(Nanos::ZERO);
        }
        [self.nic.next_timer(), self.app.next_timer()].into_iter().flatten().min()
    }

    fn on_command(&mut self, call: HostCall<A>, now: Nanos) {
        self.start(now);
        call(&mut self.app, &mut self.nic, now);
        // Requests that the call posted leave at the next timer.
        self.app.run(&mut self.nic, now);
    }

    fn poll_event(&mut self) -> Option<()> {
        None
    }
}

impl<A> fmt::Debug for HostFunction<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostFunction").field("started", &self.started).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, Interface};
    use rocev2::ethernet::MacAddr;
    use switch::memory::{FrameCollector, MemoryFrame};

    #[derive(Default)]
    struct Counting {
        started: u32,
        ran: u32,
    }

    impl App for Counting {
        fn start(&mut self, _nic: &mut Rnic, _now: Nanos) {
            self.started += 1;
        }

        fn run(&mut self, _nic: &mut Rnic, _now: Nanos) {
            self.ran += 1;
        }

        fn next_timer(&self) -> Option<Nanos> {
            Some(Nanos(77))
        }
    }

    #[test]
    fn an_application_starts_once_and_runs_on_every_event() {
        let interface = Interface::new(MacAddr([2, 0, 0, 0, 0, 1]), [10, 0, 0, 1].into(), 24);
        let mut host = HostFunction::new(Rnic::new(Config::new(interface)), Counting::default());
        let mut out = FrameCollector::with_room(4);
        assert_eq!(host.next_timer(), Some(Nanos::ZERO), "the application has not started");
        host.on_command(Box::new(|app, _, now| app.ran += now.0 as u32), Nanos(10));
        assert_eq!((host.app.started, host.app.ran), (1, 11));
        host.on_timer(Nanos(77), &mut out);
        let mut frame = MemoryFrame::new(vec![0; 60]);
        assert_eq!(host.on_frame(&mut frame, PortId(0), Nanos(80), &mut out), Verdict::Consume);
        assert_eq!((host.app.started, host.app.ran), (1, 13));
        assert_eq!(host.next_timer(), Some(Nanos(77)));
    }
}
