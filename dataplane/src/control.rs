//! Messages between workers and the control plane, and the control plane's interface.

use crate::link::LinkChange;
use crate::live::Live;
use crate::mbuf::Mbuf;
use crate::memif::Signal;
use crate::port::{Port, PortInfo};
use crate::time::{Clock, cycles};
use crate::watch::Watch;
use core::ptr::NonNull;
use crossbeam_channel::Sender;
use dpdk_sys::rte_mempool;
use switch::{Frame, Full, Function, Nanos, PortId};

/// Message of a worker to the control plane.
pub(crate) enum ToControl<F: Function> {
    Event {
        worker: usize,
        event: F::Event,
    },
    Punt {
        worker: usize,
        frame: Mbuf,
        port: PortId,
    },
    /// A watch that has ended, to be freed
    Watch(Box<Watch>),
}

/// Message of the control plane to a worker.
pub(crate) enum ToWorker<F: Function> {
    Command(F::Command),
    Send {
        frame: Mbuf,
        port: PortId,
    },
    Port(Signal),
    /// Whether to send through a port, whose link is up or not
    SendThrough(PortId, bool),
    Watch(Option<Box<Watch>>),
}

/// Handler of a function on the control thread: gets the events, punted frames and ticks of all workers, and
/// may take its time. [`ControlPlane`](crate::ControlPlane) runs a [`switch::Control`] as one.
///
/// Workers never wait for it. A frame that does not fit into the queue to it is dropped and counted
/// ([`DropReason::ControlFull`](switch::DropReason::ControlFull)); events stay in the function until there is
/// room.
pub trait ControlHandler<F: Function> {
    /// Handles an event of the function on this worker.
    fn on_event(&mut self, worker: usize, event: F::Event, out: &mut ControlOutput<'_, F>);

    /// Handles a frame that the function punted after receiving it on `port`.
    fn on_punt(&mut self, worker: usize, frame: Mbuf, port: PortId, out: &mut ControlOutput<'_, F>);

    /// Called about once a millisecond. Returning `false` ends the run.
    fn on_tick(&mut self, live: &Live<'_>, out: &mut ControlOutput<'_, F>) -> bool;

    /// The peer of a memif port has connected or disconnected. Frames for a port without a peer are dropped
    /// and counted ([`DropReason::LinkDown`](switch::DropReason::LinkDown)).
    fn on_link(&mut self, _port: &PortInfo, _up: bool) {}

    /// The link of a port other than memif has changed, or is not up at the start. Frames for a port with a
    /// kernel interface whose link is not up are dropped and counted
    /// ([`DropReason::LinkDown`](switch::DropReason::LinkDown)).
    fn on_link_change(&mut self, _port: &PortInfo, _change: &LinkChange) {}

    /// A memif port has waited for its first peer for half a second. Reported once.
    fn on_peer_awaited(&mut self, _port: &PortInfo) {}

    /// A process that connected to a memif port was refused as peer, for the reason `why`. The same reason is
    /// reported only once until a peer has connected or another reason occurs.
    fn on_peer_refused(&mut self, _port: &PortInfo, _why: &str) {}
}

/// Interface of the control plane to the workers.
pub struct ControlOutput<'a, F: Function> {
    to_workers: &'a [Sender<ToWorker<F>>],
    /// Pool for the control plane's frames; owned by the runtime, which outlives this
    pool: NonNull<rte_mempool>,
    ports: u16,
    clock: Clock,
}

/// The worker's queue is full; contains what could not be sent.
#[derive(Debug)]
pub struct QueueFull<T>(pub T);

impl<'a, F: Function> ControlOutput<'a, F> {
    /// Creates the interface. `ports` have to outlive it.
    pub(crate) fn new(to_workers: &'a [Sender<ToWorker<F>>], ports: &[Port], clock: Clock) -> Self {
        Self { to_workers, pool: ports[0].pool.raw(), ports: ports.len() as u16, clock }
    }

    /// Returns the workers' time: the clock whose values they pass to the function.
    pub fn now(&self) -> Nanos {
        self.clock.nanos(cycles())
    }

    /// Returns the number of workers.
    pub fn workers(&self) -> usize {
        self.to_workers.len()
    }

    /// Returns the number of ports.
    pub fn ports(&self) -> u16 {
        self.ports
    }

    /// Allocates a frame with these bytes.
    ///
    /// # Errors
    /// [`Full`] if the pool is empty or a buffer is too short.
    pub fn make(&mut self, bytes: &[u8]) -> Result<Mbuf, Full> {
        // SAFETY: the runtime owns the pool and outlives this borrow.
        let mut frame = unsafe { Mbuf::allocate(self.pool) }?;
        frame.resize(bytes.len()).map_err(|switch::NoRoom| Full)?;
        frame.bytes_mut().copy_from_slice(bytes);
        Ok(frame)
    }

    /// Sends a command to this worker's instance of the function.
    ///
    /// # Errors
    /// [`QueueFull`] with the command, if the worker's queue is full.
    pub fn command(&mut self, worker: usize, command: F::Command) -> Result<(), QueueFull<F::Command>> {
        self.to_workers[worker].try_send(ToWorker::Command(command)).map_err(|error| {
            match error.into_inner() {
                ToWorker::Command(command) => QueueFull(command),
                ToWorker::Send { .. }
                | ToWorker::Port(_)
                | ToWorker::SendThrough(..)
                | ToWorker::Watch(_) => {
                    unreachable!("try_send returns the message that was sent")
                }
            }
        })
    }

    /// Starts a watch on this worker, which replaces an existing one, or ends it with `None`.
    ///
    /// # Errors
    /// [`QueueFull`] with the watch, if the worker's queue is full.
    pub fn watch(
        &mut self,
        worker: usize,
        watch: Option<Box<Watch>>,
    ) -> Result<(), QueueFull<Option<Box<Watch>>>> {
        self.to_workers[worker].try_send(ToWorker::Watch(watch)).map_err(|error| match error.into_inner() {
            ToWorker::Watch(watch) => QueueFull(watch),
            ToWorker::Command(_) | ToWorker::Port(_) | ToWorker::SendThrough(..) | ToWorker::Send { .. } => {
                unreachable!("try_send returns the message that was sent")
            }
        })
    }

    /// Makes this worker send a frame through `port`.
    ///
    /// # Errors
    /// [`QueueFull`] with the frame, if the worker's queue is full.
    pub fn send(&mut self, worker: usize, frame: Mbuf, port: PortId) -> Result<(), QueueFull<Mbuf>> {
        self.to_workers[worker].try_send(ToWorker::Send { frame, port }).map_err(|error| {
            match error.into_inner() {
                ToWorker::Send { frame, .. } => QueueFull(frame),
                ToWorker::Command(_) | ToWorker::Port(_) | ToWorker::SendThrough(..) | ToWorker::Watch(_) => {
                    unreachable!("try_send returns the message that was sent")
                }
            }
        })
    }
}

/// A control plane that does nothing, for functions that need none.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoControl;

impl<F: Function> ControlHandler<F> for NoControl {
    fn on_event(&mut self, _worker: usize, _event: F::Event, _out: &mut ControlOutput<'_, F>) {}

    fn on_punt(&mut self, _worker: usize, _frame: Mbuf, _port: PortId, _out: &mut ControlOutput<'_, F>) {}

    fn on_tick(&mut self, _live: &Live<'_>, _out: &mut ControlOutput<'_, F>) -> bool {
        true
    }
}
