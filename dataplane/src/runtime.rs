//! Start, run and shutdown of DPDK with its ports and workers.

use crate::claim::{self, Claim};
use crate::config::{Config, Idle, OnLinkLoss};
use crate::control::{ControlHandler, ControlOutput, ToControl, ToWorker};
use crate::counters::WorkerCounters;
use crate::eal::{self, Eal, LogCapture};
use crate::error::Error;
use crate::idle::{self, Idler};
use crate::inputs::Dispatcher;
use crate::interrupt::park_interrupts;
use crate::link::{LinkChange, LinkHooks, LinkMonitor};
use crate::live::{DeviceCounters, Live, PortState};
use crate::memif::{Channels, MemifHooks, Signal};
use crate::port::{Port, PortInfo, Ports};
use crate::time::{self, Clock, cycles};
use crate::tx::{Exit, HandoffRing, MbufCache, Queue, Tx};
use crate::users::Users;
use crate::worker::{self, RxQueue, Worker};
use core::cell::{Cell, RefCell};
use core::sync::atomic::{AtomicBool, Ordering};
use crossbeam_channel::{Receiver, Sender};
use rtrb::{Consumer, Producer, RingBuffer};
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use switch::{Function, Nanos, PortId};

/// Sleep of the control thread when it has no work. It polls instead of waiting, because notifying it would
/// cost a worker a system call.
const TICK: Duration = Duration::from_millis(1);

/// Maximum time that workers wait for the servers of memif clients before a run
const SERVER_WAIT: Duration = Duration::from_millis(100);

/// DPDK with its ports started. Dropping it closes the ports and frees all resources.
#[derive(Debug)]
pub struct Runtime {
    // In the order of shutdown
    ports: Ports,
    channels: RefCell<Channels>,
    config: Config,
    /// Clock of the next run, if it has started
    clock: Cell<Option<Clock>>,
    _eal: Eal,
    _claims: Vec<Claim>,
}

/// Request to end the run, which a signal handler may set.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Returns a request that is not set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the flag, for a signal handler to set.
    pub fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.0)
    }

    /// Requests the end of the run.
    pub fn stop(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Result of a run.
#[derive(Debug)]
pub struct Outcome {
    /// Counters of each worker
    pub workers: Vec<Arc<WorkerCounters>>,
    /// Counters of each port's device since it was started
    pub devices: Vec<DeviceCounters>,
    /// Counters of each port's device at the beginning of this run
    pub devices_before: Vec<DeviceCounters>,
    /// State of each port
    pub states: Vec<PortState>,
    /// Port that has ended the run: its link was lost ([`OnLinkLoss::Exit`]), or the system requests its device
    pub lost_link: Option<PortId>,
    /// TSC frequency, in Hz
    pub tsc_hz: u64,
}

impl Runtime {
    /// Starts DPDK and the ports; possible once per process.
    ///
    /// # Errors
    /// [`Error`] with a message and a remedy.
    pub fn start(config: Config) -> Result<Self, Error> {
        check_cpus(&config.workers.cpus)?;
        let claims = claim::claim(&config.ports, config.workers.cpus.len())?;
        let channels = Channels::open(&config)?;
        let eal = Eal::start(&config, &channels)?;
        let log = LogCapture::begin();
        let ports = Ports::start(&config);
        let log = log.finish();
        // On failure the ports are dropped before the EAL, which was declared earlier.
        let ports = ports.map_err(|error| error.with_log(log))?;
        let clock = Cell::new(None);
        Ok(Self { ports, channels: channels.into(), config, clock, _eal: eal, _claims: claims })
    }

    /// Returns DPDK's version, such as `DPDK 22.11.11`.
    pub fn version() -> String {
        eal::version()
    }

    /// Returns the configuration with which the runtime was started.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the ports, in the order of the configuration.
    pub fn ports(&self) -> impl Iterator<Item = &PortInfo> {
        self.ports.iter().map(|port| &port.info)
    }

    /// Returns the time of the next run, which is the workers' and the control plane's. It starts from 0 with
    /// the first call before the run, otherwise with the run.
    pub fn now(&self) -> Nanos {
        let clock = self.clock.get().unwrap_or_else(Clock::start);
        self.clock.set(Some(clock));
        clock.nanos(cycles())
    }

    /// Runs a function on each worker, and the control plane on the calling thread, until `stop` is set or
    /// the control plane ends the run. Returns when the workers have drained.
    ///
    /// # Panics
    /// If the number of `functions` is not that of the configured workers, or if a worker panicked.
    pub fn run<F, C>(&mut self, functions: Vec<F>, control: &mut C, stop: &Stop) -> Outcome
    where
        F: Function + Send,
        C: ControlHandler<F>,
    {
        self.run_by(run_worker, functions, control, stop)
    }

    /// Runs as [`Self::run`] does, with `main` on the thread of each worker. The packet path is compiled where `main`
    /// is: for a function that is not generic, in the crate that defines it, and else in the caller's.
    ///
    /// # Panics
    /// As [`Self::run`] does.
    pub fn run_by<F, C>(
        &mut self,
        main: WorkerMain<F>,
        functions: Vec<F>,
        control: &mut C,
        stop: &Stop,
    ) -> Outcome
    where
        F: Function + Send,
        C: ControlHandler<F>,
    {
        let clock = self.clock.take().unwrap_or_else(Clock::start);
        let count = self.config.workers.cpus.len();
        assert_eq!(functions.len(), count, "one function for each worker");
        let counters: Vec<_> = (0..count).map(|_| Arc::new(WorkerCounters::new(self.ports.len()))).collect();
        let (to_control, from_workers) = crossbeam_channel::bounded(self.config.workers.control_queue);
        let (to_workers, from_control): (Vec<_>, Vec<_>) =
            (0..count).map(|_| crossbeam_channel::bounded(self.config.workers.control_queue)).unzip();
        let workers = self.workers(functions, from_control, &to_control, &counters, clock);
        drop(to_control);

        let live = Live::new(&self.ports, &counters);
        let devices_before = live.device_counters();
        let devices: Vec<_> = self.ports.iter().map(|port| port.id).collect();
        let mut channels = self.channels.borrow_mut();
        channels.begin(count);
        let mut links = LinkMonitor::new(&self.ports, |port| channels.is_memif(port), count);
        let mut lost_link = None;
        let exits_on_loss = self.config.on_link_loss == OnLinkLoss::Exit;
        let (quit, receiving, running) = (AtomicBool::new(false), Users::new(count), Users::new(count));
        let mut out = ControlOutput::new(&to_workers, &self.ports, clock);
        // Waits some milliseconds for running servers to respond, so that the first frames of the workers are
        // not lost.
        for _ in 0..SERVER_WAIT.as_millis() / TICK.as_millis() {
            if !channels.is_connecting() {
                break;
            }
            let (to_workers, lost_link) = (&to_workers, &mut lost_link);
            let mut hooks = Hooks { to_workers, ports: &self.ports, control, lost_link };
            if !channels.tick(&devices, &mut hooks) {
                thread::sleep(TICK);
            }
        }
        let sleeps = self.config.workers.idle == Idle::Sleep;
        thread::scope(|scope| {
            for (worker, &cpu) in workers.into_iter().zip(&self.config.workers.cpus) {
                let name = format!("worker-{}", worker.index);
                let thread = WorkerThread {
                    worker,
                    cpu,
                    sleeps,
                    quit: &quit,
                    receiving: &receiving,
                    running: &running,
                };
                thread::Builder::new()
                    .name(name)
                    .spawn_scoped(scope, move || main(thread))
                    .expect("the system can create a thread");
            }
            // Also set if the control plane panics; otherwise the scope would wait forever.
            let _quit_when_done = SetOnDrop(&quit);
            loop {
                let mut idle = true;
                for message in from_workers.try_iter().take(self.config.workers.control_queue) {
                    idle = false;
                    deliver(control, message, &mut out);
                }
                let (to_workers, lost) = (&to_workers, &mut lost_link);
                let mut hooks = Hooks { to_workers, ports: &self.ports, control, lost_link: lost };
                if !channels.is_empty() {
                    idle &= !channels.tick(&devices, &mut hooks);
                }
                links.tick(&self.ports, &mut hooks);
                // A worker that ends before `quit` is set has panicked.
                let all_running = running.count() == count;
                let is_lost = exits_on_loss && lost_link.is_some() || links.requested(&self.ports).is_some();
                let ends = stop.0.load(Ordering::Relaxed) || is_lost;
                if !control.on_tick(&live, &mut out) || ends || !all_running {
                    break;
                }
                if idle {
                    thread::sleep(TICK);
                }
            }
        });
        channels.close();
        for message in from_workers.try_iter() {
            deliver(control, message, &mut out);
        }
        let (devices, states) = live.devices();
        let lost_link = links.requested(&self.ports).or(lost_link.filter(|_| exits_on_loss));
        Outcome { devices, devices_before, states, lost_link, workers: counters, tsc_hz: time::hz() }
    }

    /// Returns the workers, with the rings between them.
    fn workers<F: Function>(
        &self,
        functions: Vec<F>,
        from_control: Vec<Receiver<ToWorker<F>>>,
        to_control: &Sender<ToControl<F>>,
        counters: &[Arc<WorkerCounters>],
        clock: Clock,
    ) -> Vec<Worker<F>> {
        let (count, capacity) = (functions.len(), self.config.workers.handoff_ring);
        let handoffs = rings_between(count, capacity).into_iter();
        let inputs = rings_between(count, if F::HAS_OWNERS { capacity } else { 0 }).into_iter();
        let parts = functions.into_iter().zip(from_control).zip(handoffs).zip(inputs).enumerate();
        parts
            .map(|(index, (((function, from_control), handoffs), inputs))| {
                let mut rx = self.rx_queues_of(index, count, &function);
                let exits = self.exits_of(index, &function);
                // Copies are allocated from the pool of a port that the worker polls, which is on its NUMA
                // node.
                let pool = &self.ports[rx.first().map_or(0, |rx| rx.port.index())].pool;
                let pool = pool.raw();
                // Memif ports have no peer yet.
                let channels = self.channels.borrow();
                let mut detached = Vec::with_capacity(rx.len());
                rx.retain(|rx| function.receives_from(rx.port));
                detached.extend(rx.extract_if(.., |rx| channels.is_memif(rx.port.index())));
                Worker {
                    index,
                    function,
                    tx: Tx {
                        exits,
                        handoffs: handoffs
                            .to
                            .into_iter()
                            .map(|ring| ring.map(|ring| HandoffRing::new(ring, F::HAS_SENDERS)))
                            .collect(),
                        share_from: self.ports.iter().map(|port| port.share_from).collect(),
                        pool,
                        mbuf_cache: MbufCache::new(),
                        counters: Arc::clone(&counters[index]),
                    },
                    rx,
                    detached,
                    dispatcher: (F::HAS_OWNERS && count > 1).then(|| Dispatcher::new(index, inputs.to)),
                    inputs: inputs.from,
                    handoffs: handoffs.from,
                    taken: Vec::with_capacity(if F::HAS_SENDERS { worker::BURST } else { 0 }),
                    to_control: to_control.clone(),
                    from_control,
                    clock,
                    unsent: None,
                    watch: None,
                    idler: Idler::new(self.config.workers.idle),
                }
            })
            .collect()
    }

    /// Returns the receive queues of a worker: those of the ports from which its function receives, if it states that;
    /// otherwise queues are assigned to the workers round-robin. A worker polls the queue with its own
    /// number of a port that has a queue for each worker; its send queue has the same number.
    fn rx_queues_of<F: Function>(&self, worker: usize, workers: usize, function: &F) -> Vec<RxQueue> {
        let mut next = 0;
        let mut own = Vec::new();
        for (port, device) in (0..).map(PortId).zip(self.ports.iter()) {
            let first = if usize::from(device.rx_queues).is_multiple_of(workers) { 0 } else { next };
            for queue in 0..device.rx_queues {
                let assigned = (first + usize::from(queue)) % workers;
                if worker == if F::HAS_SENDERS { function.receiver(port) } else { assigned } {
                    own.push(RxQueue { device: device.id, queue, port });
                }
            }
            next += usize::from(device.rx_queues);
        }
        own
    }

    /// Returns the exits of a worker: its own send queue of each port, or the worker that owns the queue. If the
    /// function has senders, each port has one queue, of its sender.
    fn exits_of<F: Function>(&self, worker: usize, function: &F) -> Vec<Exit> {
        let channels = self.channels.borrow();
        let exit = |(index, port): (usize, &Port)| {
            let (owner, number) = if F::HAS_SENDERS {
                (function.sender(PortId(index as u16)), 0)
            } else {
                let owner = worker % usize::from(port.tx_queues);
                (owner, owner as u16)
            };
            if owner != worker {
                return Exit::Worker(owner);
            }
            let queue = Queue::new(port.id, number);
            if channels.is_memif(index) { Exit::Detached(queue) } else { Exit::Queue(queue) }
        };
        self.ports.iter().enumerate().map(exit).collect()
    }
}

/// Interface of the memif channels and of the link monitor to the runtime.
struct Hooks<'a, F: Function, C> {
    to_workers: &'a [Sender<ToWorker<F>>],
    ports: &'a [Port],
    control: &'a mut C,
    /// Port that was the first to lose its link
    lost_link: &'a mut Option<PortId>,
}

impl<F: Function, C: ControlHandler<F>> MemifHooks for Hooks<'_, F, C> {
    fn workers(&self) -> usize {
        self.to_workers.len()
    }

    fn signal(&mut self, worker: usize, signal: Signal) -> bool {
        self.to_workers[worker].try_send(ToWorker::Port(signal)).is_ok()
    }

    fn on_link(&mut self, port: usize, up: bool) {
        if !up {
            self.lost_link.get_or_insert(PortId(port as u16));
        }
        self.control.on_link(&self.ports[port].info, up);
    }

    fn on_peer_awaited(&mut self, port: usize) {
        self.control.on_peer_awaited(&self.ports[port].info);
    }

    fn on_peer_refused(&mut self, port: usize, why: &str) {
        self.control.on_peer_refused(&self.ports[port].info, why);
    }
}

impl<F: Function, C: ControlHandler<F>> LinkHooks for Hooks<'_, F, C> {
    fn workers(&self) -> usize {
        self.to_workers.len()
    }

    fn send_through(&mut self, worker: usize, port: PortId, up: bool) -> bool {
        self.to_workers[worker].try_send(ToWorker::SendThrough(port, up)).is_ok()
    }

    fn on_link_loss(&mut self, port: usize) {
        self.lost_link.get_or_insert(PortId(port as u16));
    }

    fn on_link_change(&mut self, port: usize, change: &LinkChange) {
        self.control.on_link_change(&self.ports[port].info, change);
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        if !self.channels.borrow().is_empty() {
            park_interrupts();
        }
    }
}

fn deliver<F: Function, C: ControlHandler<F>>(
    control: &mut C,
    message: ToControl<F>,
    out: &mut ControlOutput<'_, F>,
) {
    match message {
        ToControl::Event { worker, event } => control.on_event(worker, event, out),
        ToControl::Punt { worker, frame, port } => control.on_punt(worker, frame, port, out),
        ToControl::Watch(watch) => drop(watch),
    }
}

/// Rings between one worker and the others.
struct Rings<T> {
    /// Ring to each worker; `None` for the worker itself
    to: Vec<Option<Producer<T>>>,
    from: Vec<Consumer<T>>,
}

/// Returns the rings of each worker: there is one from each to each other.
fn rings_between<T>(workers: usize, capacity: usize) -> Vec<Rings<T>> {
    let mut all: Vec<_> = (0..workers).map(|_| Rings { to: Vec::new(), from: Vec::new() }).collect();
    for from in 0..workers {
        for to in 0..workers {
            let ring = (to != from).then(|| RingBuffer::new(capacity));
            let (producer, consumer) = ring.unzip();
            all[from].to.push(producer);
            all[to].from.extend(consumer);
        }
    }
    all
}

struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Leaves `Users` when a worker panics; a worker that ends regularly leaves by itself.
struct CountPanic<'a>(&'a Users);

impl Drop for CountPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.leave(|| {});
        }
    }
}

/// A worker that its thread is to run, until the run ends.
pub struct WorkerThread<'a, F: Function> {
    worker: Worker<F>,
    cpu: Option<usize>,
    /// Whether the worker sleeps when it is idle
    sleeps: bool,
    /// Set when the run ends
    quit: &'a AtomicBool,
    receiving: &'a Users,
    running: &'a Users,
}

/// Main function of a worker's thread, which calls [`run_worker`]
pub type WorkerMain<F> = fn(WorkerThread<'_, F>);

/// Runs a worker on its thread.
pub fn run_worker<F: Function>(thread: WorkerThread<'_, F>) {
    let WorkerThread { worker, cpu, sleeps, quit, receiving, running } = thread;
    let _count_panic = CountPanic(running);
    if sleeps {
        idle::wake_on_time();
    }
    if let Some(id) = cpu {
        // A CPU that has gone offline meanwhile affects performance, not correctness.
        core_affinity::set_for_current(core_affinity::CoreId { id });
    }
    let _registered = Registered::new();
    worker.run(quit, receiving, running);
}

/// Checks that this process may run on the workers' CPUs, which the cpuset of its control group limits. The mask of
/// the calling thread does not show it: isolated CPUs are not in it.
fn check_cpus(cpus: &[Option<usize>]) -> Result<(), Error> {
    for &id in cpus.iter().flatten() {
        let trial = thread::spawn(move || core_affinity::set_for_current(core_affinity::CoreId { id }));
        if !trial.join().unwrap_or(false) {
            return Err(Error::new(
                format!("this process may not run on CPU {id}, which `workers` names"),
                "name CPUs of its control group (cpuset.cpus.effective), or write \"any\"",
            ));
        }
    }
    Ok(())
}

/// Registration of a thread with the EAL. It is dropped even if the worker panics, or the buffers in the
/// thread's mempool caches would be unavailable to the next run.
struct Registered(bool);

impl Registered {
    /// Registers the thread, which gives it a cache in each pool, unless the EAL has too many threads.
    fn new() -> Self {
        // SAFETY: the EAL is up, and the thread is not registered.
        Self(unsafe { dpdk_sys::rte_thread_register() } == 0)
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        if self.0 {
            // SAFETY: the thread is registered, and has released all DPDK resources.
            unsafe { dpdk_sys::rte_thread_unregister() };
        }
    }
}
