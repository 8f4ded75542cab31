//! The control plane's side: what comes up from the workers, and what goes down to them.

use crate::mbuf::Mbuf;
use crate::memif::Signal;
use crate::port::PortInfo;
use crate::runtime::Live;
use crate::watch::Watch;
use core::ptr::NonNull;
use crossbeam_channel::Sender;
use dpdk_sys::rte_mempool;
use switch::{Frame, Full, Function, PortId};

/// What a worker tells the control plane.
pub(crate) enum Up<F: Function> {
    Event {
        worker: usize,
        event: F::Event,
    },
    Punt {
        worker: usize,
        frame: Mbuf,
        port: PortId,
    },
    /// A watch that is over, to be freed
    Watch(Box<Watch>),
}

/// What the control plane tells a worker.
pub(crate) enum Down<F: Function> {
    Command(F::Command),
    Send { frame: Mbuf, port: PortId },
    Port(Signal),
    Watch(Option<Box<Watch>>),
}

/// The control plane of a function: one thread, which may take its time.
///
/// Workers never wait for it. What does not fit into a queue to it is dropped and counted
/// ([`DropReason::ControlFull`](switch::DropReason::ControlFull)) for frames, and kept by the function for events.
pub trait Control<F: Function> {
    /// The function told something on this worker.
    fn on_event(&mut self, worker: usize, event: F::Event, out: &mut ControlOutput<'_, F>);

    /// The function punted a frame that came in on `port`.
    fn on_punt(&mut self, worker: usize, frame: Mbuf, port: PortId, out: &mut ControlOutput<'_, F>);

    /// A moment has passed (about a millisecond). `false` ends the run.
    fn on_tick(&mut self, live: &Live<'_>, out: &mut ControlOutput<'_, F>) -> bool;

    /// The peer of a memif port has come or gone. Frames for a port without one are dropped and counted
    /// ([`DropReason::LinkDown`](switch::DropReason::LinkDown)).
    fn on_link(&mut self, _port: &PortInfo, _up: bool) {}

    /// A process that wanted to be the peer of a memif port was refused, for this reason. A reason is reported once
    /// until a peer has come or another reason follows.
    fn on_refused(&mut self, _port: &PortInfo, _why: &str) {}
}

/// How the control plane acts on the workers.
pub struct ControlOutput<'a, F: Function> {
    pub(crate) down: &'a [Sender<Down<F>>],
    /// Where frames of the control plane's own come from; the runtime's, which outlives this
    pub(crate) pool: NonNull<rte_mempool>,
    pub(crate) ports: u16,
}

/// The worker's queue is full; what could not be sent is given back.
#[derive(Debug)]
pub struct QueueFull<T>(pub T);

impl<F: Function> ControlOutput<'_, F> {
    /// How many workers there are.
    pub fn workers(&self) -> usize {
        self.down.len()
    }

    /// How many ports there are.
    pub fn ports(&self) -> u16 {
        self.ports
    }

    /// A frame of these bytes.
    pub fn make(&mut self, bytes: &[u8]) -> Result<Mbuf, Full> {
        // SAFETY: the runtime holds the pool for as long as it runs.
        let mut frame = unsafe { Mbuf::allocate(self.pool) }?;
        frame.resize(bytes.len()).map_err(|switch::NoRoom| Full)?;
        frame.bytes_mut().copy_from_slice(bytes);
        Ok(frame)
    }

    /// Tells the instance of this worker something.
    pub fn command(&mut self, worker: usize, command: F::Command) -> Result<(), QueueFull<F::Command>> {
        self.down[worker].try_send(Down::Command(command)).map_err(|error| match error.into_inner() {
            Down::Command(command) => QueueFull(command),
            Down::Send { .. } | Down::Port(_) | Down::Watch(_) => {
                unreachable!("what comes back is what was sent")
            }
        })
    }

    /// Has this worker be watched, in place of a watch that it has; or no longer.
    pub fn watch(
        &mut self,
        worker: usize,
        watch: Option<Box<Watch>>,
    ) -> Result<(), QueueFull<Option<Box<Watch>>>> {
        self.down[worker].try_send(Down::Watch(watch)).map_err(|error| match error.into_inner() {
            Down::Watch(watch) => QueueFull(watch),
            Down::Command(_) | Down::Port(_) | Down::Send { .. } => {
                unreachable!("what comes back is what was sent")
            }
        })
    }

    /// Has this worker send a frame out of `port`.
    pub fn send(&mut self, worker: usize, frame: Mbuf, port: PortId) -> Result<(), QueueFull<Mbuf>> {
        self.down[worker].try_send(Down::Send { frame, port }).map_err(|error| match error.into_inner() {
            Down::Send { frame, .. } => QueueFull(frame),
            Down::Command(_) | Down::Port(_) | Down::Watch(_) => {
                unreachable!("what comes back is what was sent")
            }
        })
    }
}

/// A control plane that looks on: for functions that need none.
#[derive(Clone, Copy, Debug, Default)]
pub struct Passive;

impl<F: Function> Control<F> for Passive {
    fn on_event(&mut self, _worker: usize, _event: F::Event, _out: &mut ControlOutput<'_, F>) {}

    fn on_punt(&mut self, _worker: usize, _frame: Mbuf, _port: PortId, _out: &mut ControlOutput<'_, F>) {}

    fn on_tick(&mut self, _live: &Live<'_>, _out: &mut ControlOutput<'_, F>) -> bool {
        true
    }
}
