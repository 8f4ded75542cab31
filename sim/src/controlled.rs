//! A switch with a control plane.

use crate::node::{Node, Ports};
use crate::switch_node::Switch;
use crate::workers::Workers;
use std::collections::VecDeque;
use switch::memory::MemoryFrame;
use switch::{Control, Egress, Frame, Function, Nanos, Output, PortId, Rng};

/// Time until the control plane receives an event or a punted frame: it is a thread that polls periodically.
pub const CONTROL_LATENCY: Nanos = Nanos::from_micros(50);

/// Queues between a function and its control plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queues {
    /// Latency of events and punted frames on their way to the control plane
    pub up: Nanos,
    /// Latency of commands on their way to the function
    pub down: Nanos,
    /// Capacity of the queue to the control plane: events and punted frames. A frame that finds it full is
    /// lost; an event waits at the function
    pub capacity: usize,
}

impl Default for Queues {
    fn default() -> Self {
        Self::USUAL
    }
}

impl Queues {
    /// Queues of a machine with little load: 50 us up, no latency down, unbounded
    pub const USUAL: Self = Self { up: CONTROL_LATENCY, down: Nanos::ZERO, capacity: usize::MAX };

    /// Draws the queues from the seed: each direction has extra latency in half of the seeds (up to 150 us
    /// up, 100 us down), and the capacity is 32 to 256 in a quarter of them.
    pub fn drawn(seed: u64) -> Self {
        let mut rng = Rng::stream(seed, 0x7175_6575_6573);
        let mut below = |most: u64| if rng.below(2) == 0 { Nanos(rng.below(most)) } else { Nanos::ZERO };
        let (up, down) = (below(150_000), below(100_000));
        let capacity = if rng.below(4) == 0 { rng.between(32, 256) as usize } else { usize::MAX };
        Self { up: CONTROL_LATENCY + up, down, capacity }
    }
}

/// An item on its way to the control plane.
enum Upward<E> {
    Punt(MemoryFrame, PortId),
    Event(E),
}

/// A switch function and its control plane.
pub struct Controlled<C: Control> {
    /// The function, with its counters
    pub switch: Switch<C::Function>,
    /// The control plane; replaced by a new one after a crash
    pub control: C,
    make: Box<dyn FnMut(u64) -> C + Send>,
    incarnation: u64,
    queues: Queues,
    up: VecDeque<(Nanos, Upward<<C::Function as Function>::Event>)>,
    down: VecDeque<(Nanos, usize, <C::Function as Function>::Command)>,
    frame: Vec<u8>,
}

impl<C: Control> Controlled<C> {
    /// Creates a switch with one worker. `function` and `control` make its function and its control plane: at the
    /// beginning, and after each crash. `control` gets the number of its earlier calls.
    pub fn new(
        mut function: impl FnMut() -> C::Function + Send + 'static,
        control: impl FnMut(u64) -> C + Send + 'static,
    ) -> Self {
        Self::with_workers(Workers::ONE, move |_| function(), control)
    }

    /// Creates a switch, as [`new`](Self::new) does. `function` makes the function's instance on the worker with the
    /// given number.
    pub fn with_workers(
        workers: Workers,
        function: impl FnMut(usize) -> C::Function + Send + 'static,
        mut control: impl FnMut(u64) -> C + Send + 'static,
    ) -> Self {
        Self {
            switch: Switch::with_workers(workers, function),
            control: control(0),
            make: Box::new(control),
            incarnation: 0,
            queues: Queues::default(),
            up: VecDeque::new(),
            down: VecDeque::new(),
            frame: Vec::new(),
        }
    }

    /// Sets the queues between the function and the control plane.
    #[must_use]
    pub fn with_queues(self, queues: Queues) -> Self {
        Self { queues, ..self }
    }

    /// Queues the function's events and punted frames for the control plane.
    fn queue_upward(&mut self, now: Nanos) {
        let at = now + self.queues.up;
        let room = self.queues.capacity - self.up.len();
        let events = self.switch.events.len().min(room);
        let events = self.switch.events.drain(..events).map(|event| (at, Upward::Event(event)));
        self.up.extend(events);
        let room = self.queues.capacity - self.up.len();
        let punts = self.switch.punted.drain(..).take(room);
        self.up.extend(punts.map(|(frame, port)| (at, Upward::Punt(frame, port))));
    }

    /// Passes everything that is due to the control plane.
    fn run_control(&mut self, now: Nanos, out: &mut Ports<'_>) {
        while self.up.front().is_some_and(|(at, _)| *at <= now) {
            match self.up.pop_front() {
                Some((_, Upward::Punt(frame, port))) => self.control.on_punt(frame.bytes(), port, now),
                Some((_, Upward::Event(event))) => self.control.on_event(event, now),
                None => {}
            }
        }
        if self.control.next_timer().is_some_and(|at| at <= now) {
            self.control.on_timer(now);
        }
        self.execute(now, out);
    }

    /// Executes the control plane's commands, and sends its frames.
    fn execute(&mut self, now: Nanos, out: &mut Ports<'_>) {
        while let Some((worker, command)) = self.control.poll_command() {
            self.down.push_back((now + self.queues.down, worker, command));
        }
        let due = self.down.iter().take_while(|(at, ..)| *at <= now).count();
        for (_, worker, command) in self.down.drain(..due) {
            self.switch.command(worker, command);
        }
        let mut frame = core::mem::take(&mut self.frame);
        while let Some(egress) = self.control.poll_transmit(now, &mut frame) {
            let ports = match egress {
                Egress::Port(port) => port.0..port.0 + 1,
                Egress::All => 0..out.count(),
            };
            for port in ports {
                // A frame that finds the queue full is lost, as on a link.
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
        self.queue_upward(now);
    }

    fn on_timer(&mut self, now: Nanos, out: &mut Ports<'_>) {
        self.run_control(now, out);
        self.switch.on_timer(now, out);
        self.queue_upward(now);
    }

    fn next_timer(&self) -> Option<Nanos> {
        let up = self.up.front().map(|(at, _)| *at);
        let down = self.down.front().map(|(at, ..)| *at);
        [up, down, self.control.next_timer(), self.switch.next_timer()].into_iter().flatten().min()
    }

    fn start(&mut self, now: Nanos, out: &mut Ports<'_>) {
        self.switch.start(now, out);
    }

    fn crash(&mut self) {
        self.switch.crash();
        self.incarnation += 1;
        self.control = (self.make)(self.incarnation);
        self.up.clear();
        self.down.clear();
    }
}

impl<C: Control> core::fmt::Debug for Controlled<C> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Controlled").field("incarnation", &self.incarnation).finish_non_exhaustive()
    }
}
